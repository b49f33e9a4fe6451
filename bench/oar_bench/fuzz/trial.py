"""Sending one statement, in its way, and telling whether two answers are the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import AsyncRawCursor

from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.world import quote
from oar_bench.fuzz.writing import WRITTEN
from oar_bench.result import FLOAT_OIDS, Result, close, leftover

Connection = psycopg.AsyncConnection[Any]

NUMERIC_OID: Final = 1700
DATA_ERRORS: Final = ("21", "22")
"""Classes of errors that rows bring about: fewer rows may hide one (R20, R38)."""

_OF_TWO_QUERIES: Final = re.compile(r"\b(?:EXCEPT|INTERSECT)\b")
"""Whose columns PostgreSQL gives no modifier when it describes them, and the first query's when it
runs them by the simple protocol or replans them."""

TOO_MUCH: Final = ("57014", "53", "54")
"""Classes and codes of statements the reference itself gives up on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the place of an answer; ``text`` is for people."""

    sqlstate: str
    text: str


Answer = Result | Failure


async def ask(connection: Connection, case: Case, *, plainly: bool = False) -> list[Answer]:
    """Send a case and return the answer of each execution.

    ``plainly``: a COPY as the query it holds, for the types of its columns.
    Raises ``psycopg.OperationalError`` when the connection is lost.
    """
    mode = "simple" if plainly and case.mode == "copy" else case.mode
    try:
        return await _SENDERS[mode](connection, case)
    except psycopg.Error as error:
        if connection.closed:
            raise
        failure = Failure(error.sqlstate or "?", _first_line(error))
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await connection.execute("ROLLBACK")
        return [failure]


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).partition("\n")[0]


async def _fetch(
    connection: Connection, sql: str, arguments: Sequence[str | None] = (), *, prepare: bool = False
) -> Result:
    cursor = AsyncRawCursor(connection)
    await cursor.execute(sql.encode(), arguments or None, prepare=prepare)
    return _result(cursor)


def _result(cursor: psycopg.AsyncCursor[Any]) -> Result:
    answer = cursor.pgresult
    if answer is None:
        raise psycopg.ProgrammingError("no result")
    columns = range(answer.nfields)
    return Result(
        names=tuple((answer.fname(column) or b"").decode() for column in columns),
        oids=tuple(answer.ftype(column) for column in columns),
        rows=tuple(
            tuple(answer.get_value(row, column) for column in columns)
            for row in range(answer.ntuples)
        ),
        modifiers=tuple(answer.fmod(column) for column in columns),
    )


async def _simple(connection: Connection, case: Case) -> list[Answer]:
    return [await _fetch(connection, case.sql)]


async def _parameters(connection: Connection, case: Case) -> list[Answer]:
    return [await _fetch(connection, case.sql, case.arguments[0])]


async def _prepared(connection: Connection, case: Case) -> list[Answer]:
    return [await _fetch(connection, case.sql, given, prepare=True) for given in case.arguments]


async def _execute(connection: Connection, case: Case) -> list[Answer]:
    await connection.execute(f"PREPARE fuzz AS {case.sql}".encode())
    try:
        found: list[Answer] = []
        for given in case.arguments:
            listed = f"({', '.join(map(quote, given))})" if given else ""
            found.append(await _fetch(connection, f"EXECUTE fuzz{listed}"))
        return found
    finally:
        await connection.execute("DEALLOCATE fuzz")


async def _cursor(connection: Connection, case: Case) -> list[Answer]:
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await connection.execute(f"DECLARE fuzz CURSOR FOR {case.sql}".encode())
    first = await _fetch(connection, "FETCH 3 FROM fuzz")
    rest = await _fetch(connection, "FETCH ALL FROM fuzz")
    await connection.execute("COMMIT")
    return [replace(first, rows=first.rows + rest.rows)]


async def _copy(connection: Connection, case: Case) -> list[Answer]:
    rows = []
    async with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({case.sql}) TO STDOUT".encode()) as copy,
    ):
        async for row in copy.rows():
            rows.append(tuple(None if cell is None else str(cell).encode() for cell in row))
    return [Result((), (), tuple(rows))]


async def _table_as(connection: Connection, case: Case) -> list[Answer]:
    await connection.execute("BEGIN")
    await connection.execute(f"CREATE TEMP TABLE fuzzed ON COMMIT DROP AS {case.sql}".encode())
    result = await _fetch(connection, "TABLE fuzzed")
    await connection.execute("COMMIT")
    return [result]


async def _writing(connection: Connection, case: Case) -> list[Answer]:
    """Return what the statement returns, or how many rows it wrote; then what is written."""
    await connection.execute("BEGIN")
    cursor = AsyncRawCursor(connection)
    await cursor.execute(case.sql.encode())
    returned = _result(cursor)
    if not returned.names:
        returned = Result((), (), ((str(cursor.rowcount).encode(),),))
    table = await _fetch(connection, f"TABLE {WRITTEN}")
    await connection.execute("ROLLBACK")
    return [returned, table]


_SENDERS: Final = {
    "simple": _simple,
    "parameters": _parameters,
    "prepared": _prepared,
    "execute": _execute,
    "cursor": _cursor,
    "copy": _copy,
    "table as": _table_as,
    "writing": _writing,
}


def difference(case: Case, got: Sequence[Answer], want: Sequence[Answer]) -> str | None:
    """Say in one line how answers differ; None where they are the same.

    Errors of one class are the same answer. ``want`` has the types of the columns.
    """
    for one, other in zip(got, want, strict=False):
        why = _difference(case, one, other)
        if why is not None:
            return why
    return None if len(got) == len(want) else "another number of answers"


def hides_an_error(got: Sequence[Answer], want: Sequence[Answer]) -> bool:
    """Tell whether the reference alone has an error that a value brings about (R38)."""
    failed = [w for w in want if isinstance(w, Failure)]
    return (
        bool(failed)
        and failed[0].sqlstate.startswith(DATA_ERRORS)
        and not any(isinstance(g, Failure) for g in got)
    )


def _difference(case: Case, got: Answer, want: Answer) -> str | None:
    if isinstance(got, Failure) or isinstance(want, Failure):
        if isinstance(got, Failure) and isinstance(want, Failure):
            of_rows = case.fallible and _is_of_rows(got) and _is_of_rows(want)
            same = of_rows or got.sqlstate[:2] == want.sqlstate[:2]
            return None if same else f"{_spell(got)}, not {_spell(want)}"
        return f"{_spell(got)}, not {_spell(want)}"
    if got.oids and _header(case, got) != _header(case, want):
        return "other columns or types"
    if len(got.rows) != len(want.rows):
        return f"{len(got.rows)} rows, not {len(want.rows)}"
    one, other = got, want
    if not case.exact:
        one, other = (replace(want, rows=canonical(r.rows, want.oids)) for r in (got, want))
    loose = want.float_columns if case.loose else frozenset()
    in_order = case.ordered and case.mode != "table as"
    if in_order:
        same = all(close(a, b, loose) for a, b in zip(one.rows, other.rows, strict=True))
        return None if same else "other rows, or another order"
    return None if leftover(other.rows, one.rows, loose) is not None else "other rows"


def _is_of_rows(failure: Failure) -> bool:
    """Tell whether an error may be one that values bring about, functions' own included."""
    return failure.sqlstate.startswith((*DATA_ERRORS, "42601", "XX000"))


def _header(case: Case, result: Result) -> tuple[object, ...]:
    modifiers = () if _OF_TWO_QUERIES.search(case.sql) else result.modifiers
    return result.names, result.oids, modifiers


def canonical(
    rows: Sequence[tuple[bytes | None, ...]], oids: Sequence[int]
) -> tuple[tuple[bytes | None, ...], ...]:
    """Write equal numbers alike: which of 1.5 and 1.50 a group shows is not determined (R49)."""
    numbers = [place for place, oid in enumerate(oids) if oid == NUMERIC_OID or oid in FLOAT_OIDS]
    if not numbers:
        return tuple(rows)
    written = []
    for row in rows:
        cells = list(row)
        for place in numbers:
            cells[place] = _canonical(cells[place], oids[place])
        written.append(tuple(cells))
    return tuple(written)


def _canonical(cell: bytes | None, oid: int) -> bytes | None:
    if cell is None:
        return None
    if oid in FLOAT_OIDS:
        return b"0" if cell == b"-0" else cell
    # Not by Decimal: its arithmetic rounds to a precision, and would hide a last digit.
    return cell.rstrip(b"0").removesuffix(b".") if b"." in cell else cell


def _spell(answer: Answer) -> str:
    if isinstance(answer, Failure):
        return f"error {answer.sqlstate} ({answer.text})"
    return f"{len(answer.rows)} rows"
