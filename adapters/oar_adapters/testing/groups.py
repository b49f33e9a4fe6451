"""The counted scans every adapter is asked about, and what PostgreSQL would say of each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from oar_adapters.interface import Partial, PartialFunction, Scan, Table
from oar_adapters.testing.samples import THINGS, Kind, Row, SampleTable, Value

Asked = tuple[str, frozenset[PartialFunction]]
"""A column, and what is asked of it beside the number of its values."""

Case = tuple[str, tuple[str, ...], tuple[Asked, ...]]
"""A name, the columns to count by, what is asked."""

Groups = dict[Row, list[Value]]

_FUNCTIONS: Final[dict[Kind, tuple[PartialFunction, ...]]] = {
    "integer": ("sum", "min", "max"),
    "numeric": ("sum", "min", "max"),
    "text": ("min", "max"),
    "date": ("min", "max"),
    "timestamp": ("min", "max"),
}

_BY: Final = ((), ("b",), ("s",), ("b", "d"))
"""What a column is told of by; numbers and text are told apart where it is a column's own turn."""


def _cases() -> Iterator[Case]:
    for column in THINGS.columns[1:]:
        yield f"{column.kind} by", (column.name,), ()
        functions = _FUNCTIONS.get(column.kind, ())
        for by in _BY:
            if column.name in by:
                continue
            yield f"{column.kind} count", by, ((column.name, frozenset()),)
            for function in functions:
                yield f"{column.kind} {function}", by, ((column.name, frozenset({function})),)
    several: tuple[Asked, ...] = (("n", frozenset(("sum", "min", "max"))), ("id", frozenset()))
    yield "several", ("b", "s"), several


CASES: Final[Sequence[Case]] = tuple(_cases())
"""``float by`` counts by a float, ``date max`` asks for a date's maximum."""


def scan(table: Table, by: Sequence[str], asked: Sequence[Asked]) -> Scan:
    """Make the query of a case."""
    return Scan(
        table,
        tuple(map(table.column, by)),
        counted=True,
        partials=tuple(Partial(table.column(name), functions) for name, functions in asked),
    )


def due(sample: SampleTable, by: Sequence[str], asked: Sequence[Asked]) -> Groups:
    """Compute the groups of a sample."""
    rows: dict[Row, list[Row]] = {}
    for row in sample.rows:
        rows.setdefault(tuple(row[sample.position(name)] for name in by), []).append(row)
    found: Groups = {}
    for key, members in rows.items():
        told: list[Value] = [len(members)]
        for name, functions in asked:
            values = [row[sample.position(name)] for row in members]
            values = [value for value in values if value is not None]
            told += [len(values), *_of(values, functions)]
        found[key] = told
    return found


def merged(query: Scan, rows: Sequence[Row]) -> Groups:
    """Put together what was sent of each group, which may be several rows."""
    plain = len(query.columns)
    names = [output.name for output in query.outputs[plain:]]
    found: Groups = {}
    for row in rows:
        key, told = row[:plain], list(row[plain:])
        known = found.get(key)
        if known is not None:
            told = [_together(*pair) for pair in zip(names, known, told, strict=True)]
        found[key] = told
    return found


def _of(values: Sequence[Value], functions: frozenset[PartialFunction]) -> Iterator[Value]:
    if "sum" in functions:
        yield sum((Decimal(str(value)) for value in values), Decimal()) if values else None
    if "min" in functions:
        yield min(values, key=_order, default=None)
    if "max" in functions:
        yield max(values, key=_order, default=None)


def _together(name: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return right if left is None else left
    if name.startswith(("count", "sum")):
        return Decimal(str(left)) + Decimal(str(right))
    choose = min if name.startswith("min") else max
    return choose((left, right), key=_order)


def _order(value: Value) -> Any:
    """PostgreSQL's order: of text that of its bytes."""
    return value.encode() if isinstance(value, str) else value
