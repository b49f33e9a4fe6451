"""Comparing an answer with the reference's, where SQL leaves the answer open included.

Without ORDER BY and LIMIT, results are compared as multisets. With ORDER BY, rows that tie may
come in any order, and with LIMIT any of the tied rows at the cut may come; the reference itself
says which rows tie (``FETCH FIRST n ROWS WITH TIES``). LIMIT without ORDER BY may return any rows
of the statement without its LIMIT, as many as the reference does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import psycopg
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from oar_bench.result import Result, Row, Run, close, leftover


class Verdict(enum.Enum):
    """How an answer compares with the reference's."""

    EQUAL = "equal"
    EQUAL_WITH_TIES = "equal with ties"
    """The statement leaves the answer open, and this is one of the answers it allows."""
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict; ``why`` says what differs, in one line without any row."""

    verdict: Verdict
    why: str = ""


_EQUAL: Final = Comparison(Verdict.EQUAL)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a statement says about the order and number of its rows.

    ``offset`` is in rows, ``unlimited`` the statement without its LIMIT and OFFSET.
    """

    ordered: bool = False
    limited: bool = False
    offset: int = 0
    aggregates: bool = False
    unlimited: str = ""


async def compare(sql: str, got: Result, want: Result, run: Run) -> Comparison:
    """Compare ``got`` with the reference's ``want`` for one PostgreSQL statement.

    ``run`` is asked for more of the reference's rows where the two are not plainly equal. Raises
    ``psycopg.Error`` when the reference fails there.
    """
    why = _mismatch(got, want)
    if why is not None:
        return Comparison(Verdict.DIFFERENT, why)
    shape = _shape(sql)
    loose = want.float_columns if shape.aggregates else frozenset()
    if all(close(one, two, loose) for one, two in zip(got.rows, want.rows, strict=True)):
        return _EQUAL
    if shape.ordered:
        return await _compare_ordered(shape, got, want, run, loose)
    if leftover(want.rows, got.rows, loose) is not None:
        return _EQUAL
    if shape.limited and leftover((await run(shape.unlimited)).rows, got.rows, loose) is not None:
        return Comparison(Verdict.EQUAL_WITH_TIES)
    return Comparison(Verdict.DIFFERENT, "other rows")


def _mismatch(got: Result, want: Result) -> str | None:
    """Say what differs whatever the order of the rows is."""
    if (got.names, got.oids) != (want.names, want.oids):
        return "other columns or types"
    if len(got.rows) != len(want.rows):
        return f"{len(got.rows)} rows, not {len(want.rows)}"
    return None


def _shape(sql: str) -> _Shape:
    """Read a statement's outermost ORDER BY, LIMIT and OFFSET.

    One that cannot be read is compared as a multiset.
    """
    try:
        tree = sqlglot.parse_one(sql, read="postgres")
    except (SqlglotError, RecursionError):
        return _Shape()
    if not isinstance(tree, exp.Query):
        return _Shape()
    aggregates = tree.find(exp.AggFunc, exp.Window) is not None
    limit, offset = _count(tree.args.get("limit")), _count(tree.args.get("offset"))
    if limit == -1 or offset == -1:
        return _Shape(aggregates=aggregates)
    bare = tree.copy()
    bare.set("limit", None)
    bare.set("offset", None)
    return _Shape(
        ordered=tree.args.get("order") is not None,
        limited=limit is not None or offset is not None,
        offset=offset or 0,
        aggregates=aggregates,
        unlimited=bare.sql(dialect="postgres"),
    )


def _count(clause: exp.Expr | None) -> int | None:
    """Return the literal number of a LIMIT, FETCH or OFFSET; -1 for anything that is not one."""
    if clause is None:
        return None
    number = clause.args.get("count") or clause.args.get("expression")
    if isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit():
        return int(number.name)
    return -1


async def _compare_ordered(
    shape: _Shape, got: Result, want: Result, run: Run, loose: frozenset[int]
) -> Comparison:
    """Check every group of tied rows in which the two results are not in the same order."""
    ties = _Ties(shape.unlimited, run)
    place = 0
    while place < len(got.rows):
        if close(got.rows[place], want.rows[place], loose):
            place += 1
            continue
        try:
            low, high, group = await ties.around(shape.offset + place)
        except psycopg.Error as error:
            why = f"other order, and ties cannot be listed: SQLSTATE {error.sqlstate}"
            return Comparison(Verdict.DIFFERENT, why)
        first = max(low - shape.offset, 0)
        last = min(high - shape.offset, len(got.rows))
        if leftover(group, got.rows[first:last], loose) is None:
            return Comparison(Verdict.DIFFERENT, f"row {place + 1} is not among those tied there")
        place = last
    return Comparison(Verdict.EQUAL_WITH_TIES)


class _Ties:
    """Groups of rows that an ORDER BY does not tell apart, as the reference lists them."""

    def __init__(self, unlimited: str, run: Run) -> None:
        self._unlimited = unlimited
        self._run = run

    async def around(self, place: int) -> tuple[int, int, list[Row]]:
        """Return first place, end and rows of the group that holds the row at ``place`` (from 0).

        A prefix with ties is longer than ``place`` exactly when it reaches into that group, so
        the group's start is found by bisection.
        """
        whole = await self._prefix(place + 1)
        high = len(whole)
        low, reaching = 0, place + 1
        while low + 1 < reaching:
            middle = (low + reaching) // 2
            if len(await self._prefix(middle)) > place:
                reaching = middle
            else:
                low = middle
        before = await self._prefix(low)
        group = leftover(whole, before)
        if group is None or len(before) != low:
            raise psycopg.DataError("the reference's own rows change from run to run")
        return low, high, group

    async def _prefix(self, rows: int) -> tuple[Row, ...]:
        if rows == 0:
            return ()
        return (await self._run(f"{self._unlimited} FETCH FIRST {rows} ROWS WITH TIES")).rows
