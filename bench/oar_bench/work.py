"""Where a benchmark's servers keep their files while it runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_directory() -> Iterator[Path]:
    """Make a directory for hubs and policies, and remove it at the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix="oar-bench-"))
    try:
        if os.geteuid() == 0:
            # PostgreSQL then runs as another OS user, which has to get to its own directory below.
            directory.chmod(0o711)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
