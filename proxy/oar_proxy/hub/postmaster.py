"""The processes of a server over one data directory: its postmaster, and backends it left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oar_proxy.hub.address import HubError

_PROC: Final = Path("/proc")

_ORPHAN_SECONDS: Final = 5
"""What the backends of a killed server get to end by themselves."""


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What ``postmaster.pid`` says. ``alive``: that process is a server over that directory."""

    socket_directory: str
    alive: bool


def read_postmaster(pgdata: Path) -> Postmaster | None:
    """Return what ``postmaster.pid`` says, None where there is none, or half of one.

    Raises ``OSError`` and :class:`HubError` when it cannot be read, or its process looked at.
    """
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    except PermissionError as error:
        raise HubError(
            f"hub directory {pgdata} may not be read",
            hint="run this as the OS user that runs oar serve",
        ) from error
    socket_directory = lines[4].strip() if len(lines) > 4 else ""
    return Postmaster(socket_directory, _serves(pid, pgdata))


def clear_away(pgdata: Path) -> None:
    """Remove what a killed server leaves; for who holds the lock, when no postmaster is alive."""
    orphans = _backends(pgdata)
    for ending in (signal.SIGQUIT, signal.SIGKILL):
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, ending)
        deadline = time.monotonic() + _ORPHAN_SECONDS
        while (orphans := _backends(pgdata)) and time.monotonic() < deadline:
            time.sleep(0.02)
    # PostgreSQL keeps the file whenever some process of the same OS user has that number,
    # which is common in a restarted container. Against orphans it has a lock besides.
    (pgdata / "postmaster.pid").unlink(missing_ok=True)


def _serves(pid: int, pgdata: Path) -> bool:
    """Tell whether process ``pid`` is a PostgreSQL server over ``pgdata`` (numbers are reused)."""
    if _PROC.exists():
        return _is_postgres(pid, pgdata)
    listed = subprocess.run(  # noqa: S603 - a fixed program
        ["/bin/ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip().rpartition("/")[2] == "postgres"


def _backends(pgdata: Path) -> list[int]:
    """Return the processes that work in ``pgdata``; where there is no /proc, none is found."""
    if not _PROC.exists():
        return []
    numbers = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return [pid for pid in numbers if _is_postgres(pid, pgdata)]


def _is_postgres(pid: int, pgdata: Path) -> bool:
    try:
        working = (_PROC / str(pid) / "cwd").readlink()
        name = (_PROC / str(pid) / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # not others: for want of a file descriptor a server would seem to have ended
    return name == "postgres" and working == pgdata.resolve()
