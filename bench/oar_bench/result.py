"""A statement's result as the server sent it, and when two of them are the same rows.

Cells are kept as PostgreSQL's own text, so nothing a client library would round or convert can
hide a difference. Floats alone may differ in their last digits, and only where a statement
aggregates: the order of a sum is the planner's, and addition of floats is not associative.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

Row = tuple[bytes | None, ...]

FLOAT_OIDS: Final = frozenset({700, 701})
"""``real`` and ``double precision`` in ``pg_type``; fixed numbers of the protocol."""

RELATIVE_TOLERANCE: Final = 1e-9
"""A double carries 15 digits; summing a million of them in another order moves the tenth."""


@dataclass(frozen=True, slots=True)
class Result:
    """Names, type OIDs and modifiers of the columns, and the rows in the order they came.

    Where modifiers are not looked at there are none.
    """

    names: tuple[str, ...]
    oids: tuple[int, ...]
    rows: tuple[Row, ...] = field(repr=False)
    modifiers: tuple[int, ...] = ()

    @property
    def float_columns(self) -> frozenset[int]:
        """The positions of the columns that hold floats."""
        return frozenset(place for place, oid in enumerate(self.oids) if oid in FLOAT_OIDS)


Run = Callable[[str], Awaitable[Result]]
"""Runs one statement and returns its result. Raises ``psycopg.Error``."""


async def fetch(connection: psycopg.AsyncConnection[Any], sql: str) -> Result:
    """Run one statement and keep its result as text. Raises ``psycopg.Error``.

    One that is no query, or several at once, raise ``psycopg.ProgrammingError``.
    """
    cursor = await connection.execute(sql.encode())
    answer = cursor.pgresult
    if answer is None or cursor.description is None or cursor.nextset():
        raise psycopg.ProgrammingError("not exactly one query")
    columns = range(answer.nfields)
    return Result(
        names=tuple(column.name for column in cursor.description),
        oids=tuple(column.type_code for column in cursor.description),
        rows=tuple(
            tuple(answer.get_value(row, column) for column in columns)
            for row in range(answer.ntuples)
        ),
    )


def leftover(
    pool: Sequence[Row], rows: Sequence[Row], loose: frozenset[int] = frozenset()
) -> list[Row] | None:
    """Take ``rows`` out of ``pool`` as multisets; None when one of them is not there.

    Cells of the ``loose`` columns are floats that may differ by :data:`RELATIVE_TOLERANCE`.
    """
    index: dict[Row, list[Row]] = defaultdict(list)
    for row in pool:
        index[_exact_part(row, loose)].append(row)
    unmatched = []
    for row in rows:
        candidates = index[_exact_part(row, loose)]
        if row in candidates:
            candidates.remove(row)
        else:
            unmatched.append(row)
    for row in unmatched:
        candidates = index[_exact_part(row, loose)]
        near = next((other for other in candidates if loose and close(row, other, loose)), None)
        if near is None:
            return None
        candidates.remove(near)
    return [row for candidates in index.values() for row in candidates]


def _exact_part(row: Row, loose: frozenset[int]) -> Row:
    return tuple(cell for place, cell in enumerate(row) if place not in loose)


def close(row: Row, other: Row, loose: frozenset[int]) -> bool:
    """Tell whether two rows agree, cells of the ``loose`` columns up to the tolerance."""
    return all(
        one == two or (place in loose and _close(one, two))
        for place, (one, two) in enumerate(zip(row, other, strict=True))
    )


def _close(one: bytes | None, two: bytes | None) -> bool:
    if one is None or two is None:
        return False
    return math.isclose(float(one), float(two), rel_tol=RELATIVE_TOLERANCE)
