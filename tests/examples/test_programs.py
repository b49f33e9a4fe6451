"""The example programs, run as a person runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from oar_proxy.hub.binaries import find_binaries

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(command: list[str | Path], dsn: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "OAR_DSN": dsn},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "shows"),
    [
        (
            "psycopg_example.py",
            [
                "Владивосток: 3.74 days late",
                "Владивосток: 41 late orders with ВЕСНА25",
                "marketing gave marketing.promos.order_id to logistics: 2588 keys",
                "OA001: not answered",
            ],
        ),
        (
            "asyncpg_example.py",
            ["Москва: ", "'reason': 'брак'", "5748 returns read through a cursor"],
        ),
        (
            "sqlalchemy_pandas_example.py",
            ["pvz_city: TEXT - Город пункта выдачи", "397 rows of three owners"],
        ),
    ],
)
def test_python_programs(demo, program: str, shows: list[str]):
    printed = run([sys.executable, "-W", "error", EXAMPLES / program], demo.dsn)
    assert [text for text in shows if text not in printed] == []


def psql() -> Path:
    found = shutil.which("psql")
    return Path(found) if found else find_binaries().directory / "psql"


def test_psql_script(demo):
    printed = run([psql(), "-X", demo.dsn, "-f", EXAMPLES / "psql_script.sql"], demo.dsn)
    for shown in (
        "returns   | returns    | {returns_west,returns_east} | t",
        "Draft (offline): ",
        "Keys: marketing: marketing.promos.order_id -> logistics: deliveries.order_id",
        "reason,count\nбрак,1203\n",
        "marketing/key_disclosure[0]",
    ):
        assert shown in printed


def test_every_example_is_run_here():
    text = Path(__file__).read_text(encoding="utf-8")
    programs = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sql"}]
    assert [name for name in programs if f'"{name}"' not in text] == []
