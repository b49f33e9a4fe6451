"""A benchmark that is told to stop leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from waits import eventually


def servers(directory):
    """The processes whose command or environment names a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if str(directory).encode() in said and b"postgres" in said:
            found.append(process.name)
    return found


def started(directory):
    with suppress(FileNotFoundError):  # what is made is renamed and removed while one looks
        return any(directory.rglob("postmaster.pid"))
    return False


@pytest.mark.parametrize("trap", [":", "trap '' INT"], ids=["alone", "of a script"])
def test_its_servers_end_with_it(trap):
    # Where other users may go: as root, the servers run as one.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        process = subprocess.Popen(
            # A script's shell has what it runs in the background ignore SIGINT.
            ["sh", "-c", f'{trap}; exec "$0" -m oar_bench reduction --count 500', sys.executable],
            env={**os.environ, "TMPDIR": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: started(directory))
            assert servers(directory)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) != 0
        finally:
            process.kill()
        eventually(lambda: not servers(directory))
