"""Memory, descriptors and connections of a proxy and its hub, sampled while they work."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oar_bench.overhead.memory import children, hub_memory, mebibytes, number
from oar_bench.overhead.processes import Proxy

_PROC: Final = Path("/proc")

HUB_SECONDS: Final = 5.0
"""Between looks at the hub: a look at a thousand processes takes half a second of the kernel's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """MiB, and counts. ``hub`` is the proportional set size of all its ``processes``."""

    at: float
    proxy: float
    hub: float
    descriptors: int
    threads: int
    processes: int


class Watch:
    """Takes samples. Needs Linux's /proc."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> Sample:
        """Take a sample now, and keep it."""
        place = _PROC / str(self._proxy.pid)
        postmaster = self._proxy.postmaster
        sample = Sample(
            time.monotonic() - self._began,
            mebibytes(place / "status", "VmRSS"),
            hub_memory(postmaster),
            len(list((place / "fd").iterdir())),
            number(place / "status", "Threads"),
            len(children(postmaster)),
        )
        self.samples.append(sample)
        return sample

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            with contextlib.suppress(OSError):  # the hub may be on its way down or up
                await asyncio.to_thread(self.look)
            await asyncio.sleep(HUB_SECONDS)

    @property
    def peak(self) -> Sample:
        """The greatest of each, whenever that was; of the proxy as the kernel keeps it."""
        place = _PROC / str(self._proxy.pid)
        return Sample(
            max(each.at for each in self.samples),
            mebibytes(place / "status", "VmHWM"),
            max(each.hub for each in self.samples),
            max(each.descriptors for each in self.samples),
            max(each.threads for each in self.samples),
            max(each.processes for each in self.samples),
        )


def curve(samples: list[Sample]) -> dict[str, float]:
    """Return how the proxy's memory went, in MiB, and by how many an hour it grows.

    The first tenth of the time is for what is kept: caches, connections, the allocator's own.
    ``first`` and ``last`` are medians of a tenth of the samples each; ``slope`` is that of the line
    through all that are left, by least squares.
    """
    until = samples[0].at + (samples[-1].at - samples[0].at) / 10
    kept = [sample for sample in samples if sample.at >= until]
    few = max(len(kept) // 10, 1)
    line = statistics.linear_regression([each.at for each in kept], [each.proxy for each in kept])
    return {
        "first": statistics.median(each.proxy for each in kept[:few]),
        "last": statistics.median(each.proxy for each in kept[-few:]),
        "slope an hour": line.slope * 3600,
    }
