"""Peak memory of the proxy and of its hub while a statement runs, read from Linux's /proc.

The proxy is one process: the kernel keeps its high-water mark, which is reset before. The hub is
many that share memory: the sum of their proportional set sizes is sampled, and the greatest kept.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oar_bench.overhead.processes import Proxy

_RESET_HIGH_WATER: Final = "5"
"""What proc(5) wants in ``clear_refs`` for it."""

_SECONDS: Final = 0.01
"""Between samples: a step of the hub's that allocates takes longer."""

_PROC: Final = Path("/proc")


class NoProc(Exception):
    """This system has no /proc of Linux's kind, or does not let us write to it. One line."""


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB before the statement and at most while it ran."""

    proxy_before: float
    proxy_peak: float
    hub_before: float
    hub_peak: float


class Meter:
    """Reads the memory of a proxy and of its hub. Raises :class:`NoProc`."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = _PROC / str(proxy.pid)
        self._postmaster = proxy.postmaster
        try:
            self._reset()
        except OSError as error:
            raise NoProc(f"memory is read from Linux's /proc: {error.strerror}") from error

    def measure(self, work: Callable[[], object]) -> Memory:
        """Run something and return what memory it took."""
        self._reset()
        proxy_before = mebibytes(self._proxy / "status", "VmRSS")
        hub_before = hub_peak = hub_memory(self._postmaster)
        done = threading.Event()

        def sample() -> None:
            nonlocal hub_peak
            while not done.wait(_SECONDS):
                hub_peak = max(hub_peak, hub_memory(self._postmaster))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            work()
        finally:
            done.set()
            sampler.join()
        proxy_peak = mebibytes(self._proxy / "status", "VmHWM")
        return Memory(proxy_before, proxy_peak, hub_before, hub_peak)

    def _reset(self) -> None:
        (self._proxy / "clear_refs").write_text(_RESET_HIGH_WATER)


def hub_memory(postmaster: int) -> float:
    """Return the MiB of a server's processes together; one that ends meanwhile holds nothing."""
    total = 0.0
    for pid in (postmaster, *children(postmaster)):
        try:
            total += mebibytes(_PROC / str(pid) / "smaps_rollup", "Pss")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = (_PROC / str(pid) / "task" / str(pid) / "children").read_text()
    return [int(child) for child in listed.split()]


def mebibytes(file: Path, name: str) -> float:
    """Read one line of a file of /proc's that tells of memory."""
    return number(file, name) / 1024


def number(file: Path, name: str) -> int:
    """Read the number of one line of a file of /proc's; 0 where it has no such line."""
    found = re.search(rf"^{name}:\s+(\d+)", file.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
