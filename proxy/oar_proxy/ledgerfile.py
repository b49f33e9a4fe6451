"""The ledger's copy in a file: JSON lines, one an entry, on disk before anything is sent.

One proxy writes one file. It holds only what the hub has on disk, so a file is never ahead of its
hub, and after a crash the proxy completes it from there.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from oar_proxy.chain import Entry, Head

_BLOCK: Final = 64 * 1024
_LINE_BEGINS: Final = b'{"hash":"'
"""How :meth:`oar_proxy.chain.Entry.line` begins."""


class LedgerFileError(Exception):
    """The file cannot be the ledger's copy: the message says why, in one line."""


class LedgerFile:
    """A file that entries are appended to. Closed by :meth:`close`."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; a line that a crash cut short is taken off.

        Raises ``OSError``, and :class:`LedgerFileError` for a file that is another proxy's or no
        ledger.
        """
        self._path = path
        # A caller that gave up waiting for the disk leaves its thread at work.
        self._turn = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._size = self._whole_lines()
            # A file that is something else is left as it is.
            self.first, self.last = self._ends()
            os.ftruncate(self._fd, self._size)
            if not self._size:
                _sync_directory(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    first: uuid.UUID | None
    """The writer of the first line: what the file is known by on the ledger."""
    last: Head | None
    """The last entry in the file."""

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries and wait for the disk. Raises ``OSError``: then none of them counts.

        Those of the last entry's writer that are in the file already are left out.
        """
        with self._turn:
            self._append([entry for entry in entries if not self._has(entry)])

    def _has(self, entry: Entry) -> bool:
        last = self.last
        return last is not None and last.writer == entry.writer and entry.number <= last.number

    def _append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        data = "".join(entry.line() + "\n" for entry in entries).encode()
        os.lseek(self._fd, self._size, os.SEEK_SET)
        os.ftruncate(self._fd, self._size)
        written = 0
        while written < len(data):
            written += os.write(self._fd, data[written:])
        os.fdatasync(self._fd)
        self._size += len(data)
        self.first = self.first or entries[0].writer
        self.last = entries[-1].head

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerFileError(f"{self._path} is written by another proxy") from None

    def _whole_lines(self) -> int:
        """Return the size up to the end of the last whole line."""
        end = os.fstat(self._fd).st_size
        while end:
            start = max(0, end - _BLOCK)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def _ends(self) -> tuple[uuid.UUID | None, Head | None]:
        if not self._size:
            # Of a first line that was cut short, zeros may stand for what did not reach the disk.
            begun = os.pread(self._fd, len(_LINE_BEGINS), 0).rstrip(b"\0")
            if not _LINE_BEGINS.startswith(begun):
                raise LedgerFileError(f"{self._path} is not a ledger: a line is no entry")
            return None, None
        try:
            return self._first_line().writer, self._last_line().head
        except ValueError:
            raise LedgerFileError(f"{self._path} is not a ledger: a line is no entry") from None

    def _first_line(self) -> Entry:
        line = b""
        while b"\n" not in line:
            line += os.pread(self._fd, _BLOCK, len(line))
        return Entry.of_line(line.partition(b"\n")[0].decode())

    def _last_line(self) -> Entry:
        start, line = self._size - 1, b""
        while start and b"\n" not in line:
            step = min(_BLOCK, start)
            start -= step
            line = os.pread(self._fd, step, start) + line
        return Entry.of_line(line.rpartition(b"\n")[2].decode())


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
