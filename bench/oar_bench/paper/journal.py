"""JSONL files that a collection appends to, and goes on with after it was killed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from oar_bench.layout import BenchmarkError, read_lines


class Journal:
    """An open file, to which one collection at a time appends."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Use :func:`open_journal`."""
        self._path = path
        self._file = file

    def records(self) -> Iterator[dict[str, Any]]:
        """Read what is there. Raises :class:`~oar_bench.layout.BenchmarkError` for other lines."""
        return (record for _, record in read_lines(self._path))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, which is in the file when this returns. Raises ``OSError``."""
        # In ASCII: some characters of a model's reply end a line for some readers.
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open a file for the length of the block; a new one is readable by its owner alone.

    A last line that was not written to its end is removed. Raises
    :class:`~oar_bench.layout.BenchmarkError` where another collection has the file open, and
    ``OSError``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchmarkError(f"{path}: another collection writes to this file") from error
        _end_at_a_line(path, file)
        yield Journal(path, file)


def _end_at_a_line(path: Path, file: BinaryIO) -> None:
    """Remove what a killed process wrote of its last line, unless all of it is there."""
    size, last = 0, b""
    with path.open("rb") as lines:
        for last in lines:
            size += len(last)
    if not last or last.endswith(b"\n"):
        return
    try:
        json.loads(last)
    except ValueError:
        file.truncate(size - len(last))
    else:
        file.write(b"\n")
        file.flush()
