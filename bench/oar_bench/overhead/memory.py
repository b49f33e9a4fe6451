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

import psycopg

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
        try:
            # While it is connected: its process ends with the connection.
            with psycopg.connect(proxy.hub.conninfo) as connection:
                status = (_PROC / str(connection.info.backend_pid) / "status").read_text()
            self._reset()
        except OSError as error:
            raise NoProc(f"memory is read from Linux's /proc: {error.strerror}") from error
        parent = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
        if parent is None:
            raise NoProc("memory is read from Linux's /proc: it names no parent process")
        self._postmaster = int(parent[1])

    def measure(self, work: Callable[[], object]) -> Memory:
        """Run something and return what memory it took."""
        self._reset()
        proxy_before = mebibytes(self._proxy / "status", "VmRSS")
        hub_before = hub_peak = self._hub()
        done = threading.Event()

        def sample() -> None:
            nonlocal hub_peak
            while not done.wait(_SECONDS):
                hub_peak = max(hub_peak, self._hub())

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

    def _hub(self) -> float:
        """The hub's processes together; one that ends meanwhile holds nothing."""
        total = 0.0
        for pid in (self._postmaster, *children(self._postmaster)):
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
    found = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
