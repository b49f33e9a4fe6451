"""Checking the ledger where it is kept: in the hub, in a file, or the one against the other."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import TupleRow

from oar_proxy.chain import NAMING, Entry, Head, Named, Report, Verification
from oar_proxy.settings import ConfigurationError
from oar_proxy.writer import connection_name

_COLUMNS: Final = ("at", "kind", "ask", "step", "principal")
"""What the table repeats of a body, in the order that it is selected in."""

_FETCHED: Final = 2000

_RUNNING: Final[LiteralString] = """
SELECT application_name FROM pg_catalog.pg_stat_activity
WHERE datname = current_database()
  AND has_table_privilege(usesysid, 'oar_internal.entries', 'INSERT')
"""
"""What writers call themselves while they run. Clients, who may take any name, are none."""

NOWHERE: Final = uuid.UUID(int=0)
"""The writer of a fault that is of none: a line that is no entry."""


async def verify_hub(
    connection: psycopg.AsyncConnection[TupleRow], expected: Iterable[tuple[Head, str]] = ()
) -> Report:
    """Check all chains in a hub, as they are at one moment.

    ``expected`` are entries that have to be there, each with who says so. Chains that a running
    proxy holds are not ``open``.
    """
    named = Named()
    for head, by in expected:
        named.add(head, by)
    async with _at_one_moment(connection):
        async for entry, _ in _stored(connection, "WHERE kind = ANY(%s)", list(NAMING)):
            named.read(entry)
        verification = Verification(named)
        async for entry, columns in _stored(connection):
            verification.take(entry, _difference(entry, columns))
        report = verification.report()
        running = {name for (name,) in await (await connection.execute(_RUNNING)).fetchall()}
    report.open = [writer for writer in report.open if connection_name(writer) not in running]
    return report


def verify_file(path: Path, expected: Iterable[tuple[Head, str]] = ()) -> Report:
    """Check a copy of one proxy's chains. Raises ``OSError``."""
    named = Named(wholly=False)
    for head, by in expected:
        named.add(head, by)
        named.in_file.add(head.writer)
    for _, entry in _lines(path):
        if entry is not None:
            named.read(entry)
    verification = Verification(named)
    for number, entry in _lines(path):
        if entry is None:
            verification.fault(NOWHERE, number, "changed", f"line {number} is no entry")
        else:
            verification.take(entry)
    return verification.report()


def read_heads(path: Path) -> list[tuple[Head, str]]:
    """Read the heads that an earlier report printed as JSON.

    Raises ``OSError`` and ``ConfigurationError``.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return [(Head.read(named), str(path)) for named in read["heads"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError(
            f"{path} does not hold heads", hint="keep what oar audit heads prints"
        ) from None


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as it is printed."""
    return {
        "sound": report.sound,
        "entries": report.entries,
        "faults_found": report.found,
        "faults": [
            {
                "writer": str(fault.writer),
                "number": fault.number,
                "kind": fault.kind,
                "text": fault.text,
            }
            for fault in report.faults
        ],
        "open": [str(writer) for writer in report.open],
        "heads": [head.named() for head in report.heads.values()],
    }


@asynccontextmanager
async def _at_one_moment(connection: psycopg.AsyncConnection[TupleRow]) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


async def _stored(
    connection: psycopg.AsyncConnection[TupleRow], condition: str = "", *parameters: object
) -> AsyncIterator[tuple[Entry, tuple[Any, ...]]]:
    async with connection.cursor(name="oar_audit") as cursor:
        text = (
            f"SELECT writer, number, body, hash, {', '.join(_COLUMNS)} FROM oar_internal.entries "
            f"{condition} ORDER BY writer, number"
        )
        await cursor.execute(text.encode(), parameters)
        while rows := await cursor.fetchmany(_FETCHED):
            for row in rows:
                yield Entry(*row[:4]), tuple(row[4:])


def _difference(entry: Entry, columns: tuple[Any, ...]) -> str | None:
    """Say which column does not repeat its body; None also for a body that cannot be read."""
    try:
        body = json.loads(entry.body)
        at, kind, ask, step, principal = (body.get(name) for name in _COLUMNS)
        said = (
            datetime.fromisoformat(at),
            kind,
            None if ask is None else uuid.UUID(ask),
            step,
            principal,
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    for name, value, column in zip(_COLUMNS, said, columns, strict=True):
        if value != column:
            return f"its column {name} says something else than its body"
    return None


def _lines(path: Path) -> Iterator[tuple[int, Entry | None]]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, Entry.of_line(line)
            except ValueError:
                yield number, None
