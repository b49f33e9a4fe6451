"""What memory the proxy takes for answers that are far larger than it: none that grows with them.

Rows are made where they are read, so that no disk is measured. Every statement moves the same
number of bytes, in rows of 2 kB; a tenth of that goes before each, unmeasured, since what a
process has allocated for the first rows it does not give back at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings

from oar_bench.harness import ALLOW_ALL
from oar_bench.overhead.memory import Memory, Meter, NoProc
from oar_bench.overhead.owners import Connection, Owners
from oar_bench.overhead.processes import OverheadError, Proxy, proxy_process

_OWNER: Final = "warehouse"
_ROW_BYTES: Final = 2_000
_BLOCK: Final = (b"x" * (_ROW_BYTES - 1) + b"\n") * 500
_FETCHED: Final = 1000
"""Rows that libpq gives at once: a client that holds few."""

_MADE: Final = "SELECT repeat('x', {row}) AS filler FROM generate_series(1, {rows}) AS i"
_HELD: Final = f"SELECT filler FROM {_OWNER}.made WHERE i <= {{rows}}"


@dataclass(frozen=True, slots=True)
class Volume:
    """One statement: GB that its client got or sent, seconds, and memory."""

    gigabytes: float
    seconds: float
    memory: Memory


def _select(client: Connection, statement: str) -> int:
    with client.cursor() as cursor:
        rows = cursor.stream(statement.encode(), size=_FETCHED)
        return sum(len(filler) for (filler,) in rows)


def _copy_out(client: Connection, statement: str) -> int:
    with client.cursor().copy(f"COPY ({statement}) TO STDOUT".encode()) as copy:
        return sum(map(len, copy))


def _copy_in(client: Connection, rows: int) -> int:
    """Send rows of which the server keeps none."""
    client.execute("CREATE TEMP TABLE IF NOT EXISTS sink (filler text)")
    sent = 0
    with client.cursor().copy("COPY sink FROM STDIN WHERE false") as copy:
        while sent < rows * _ROW_BYTES:
            copy.write(_BLOCK)
            sent += len(_BLOCK)
    return sent


def _made(rows: int) -> str:
    return _MADE.format(row=_ROW_BYTES, rows=rows)


def _held(rows: int) -> str:
    return _HELD.format(rows=rows)


CASES: Final[dict[str, Callable[[Connection, int], int]]] = {
    "SELECT, passes through": lambda client, rows: _select(client, _made(rows)),
    "COPY TO, passes through": lambda client, rows: _copy_out(client, _made(rows)),
    "COPY FROM, passes through": _copy_in,
    "SELECT, one owner's": lambda client, rows: _select(client, _held(rows)),
    "COPY TO, one owner's": lambda client, rows: _copy_out(client, _held(rows)),
}
"""What a client does with so many rows; it returns how many bytes they had."""


def measure(directory: Path, *, gigabytes: float) -> dict[str, Volume]:
    """Measure each of ``CASES`` with so many GB (10⁹ bytes). Raises ``OverheadError``."""
    rows = round(gigabytes * 1e9 / _ROW_BYTES)
    server = EmbeddedServer(HubSettings(data_dir=directory / "owner"))
    try:
        owners = Owners(server.start().conninfo)
        owners.create(_OWNER)
        with owners.connect(_OWNER) as owner:
            made = f"CREATE VIEW made AS {_made(rows)}".replace("SELECT", "SELECT i,", 1)
            owner.execute(made.encode())
        policy = directory / "allow-all.yaml"
        policy.write_text(ALLOW_ALL)
        sections = {
            "owners": {_OWNER: {"url": owners.url(_OWNER), "policy": str(policy)}},
            "limits": {"max_rows": rows, "statement_timeout": 3600},
        }
        with proxy_process(directory, secrets.token_urlsafe(12), sections) as proxy:
            return _measured(proxy, rows)
    finally:
        server.stop()


def _measured(proxy: Proxy, rows: int) -> dict[str, Volume]:
    try:
        meter = Meter(proxy)
    except NoProc as error:
        raise OverheadError(str(error)) from error
    found = {}
    for name, work in CASES.items():
        with psycopg.connect(proxy.conninfo, autocommit=True) as client:
            work(client, rows // 10)
            found[name] = _volume(meter, partial(work, client, rows))
    return found


def _volume(meter: Meter, work: Callable[[], int]) -> Volume:
    moved: list[int] = []
    started = time.monotonic()
    memory = meter.measure(lambda: moved.append(work()))
    return Volume(moved[0] / 1e9, time.monotonic() - started, memory)
