"""One demo for all tests here, started as a person starts it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

OAR = Path(sys.executable).with_name("oar")


@dataclass(frozen=True)
class Demo:
    """A demo that runs: where, what it printed before it invited clients, its directory."""

    dsn: str
    printed: str
    directory: Path


@pytest.fixture(scope="session")
def demo():
    directory = Path(tempfile.mkdtemp(prefix="oar-demo-"))
    directory.chmod(0o711)  # under root the servers' OS user has to get to its own part
    process = subprocess.Popen(
        [OAR, "demo", "--dir", directory / "demo", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "160", "LC_ALL": "C.UTF-8"},
    )
    assert process.stdout is not None
    printed = []
    try:
        for line in process.stdout:
            printed.append(line)
            if "Ctrl-C" in line:
                break
        text = "".join(printed)
        url = re.search(r"psql (postgresql://\S+)", text)
        assert url is not None, text
        yield Demo(url[1], text, directory / "demo")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, text + rest
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)
