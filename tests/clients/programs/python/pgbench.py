"""pgbench in its three protocols: several connections, statements prepared once."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from common import COUNT, CURSOR, DATABASE, main


def bench(mode, *options):
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.sql"
        script.write_text(
            f"\\set days random(1, 3)\nBEGIN;\n{COUNT};\nSELECT count(*) AS n FROM ({CURSOR}) AS q"
            " WHERE delay_days > :days \\gset\n"
            "SELECT :n + 0;\nEND;\n"
        )
        process = subprocess.run(
            ["pgbench", "-n", "-M", mode, "-c", "2", "-t", "3", "-f", script,
             *options, DATABASE],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    if process.returncode:
        raise RuntimeError(process.stderr)
    return re.findall(r"transactions actually processed: (.*)", process.stdout)


def connect():
    return bench("simple", "-C")


def parameters():
    return bench("extended"), bench("prepared")


main(connect=connect, parameters=parameters)
