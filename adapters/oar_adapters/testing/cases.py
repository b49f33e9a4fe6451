"""The predicates every adapter is asked about, by name. Pure values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from oar_adapters.interface import (
    And,
    Comparison,
    ComparisonOperator,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Predicate,
)
from oar_adapters.testing.samples import THINGS, Kind, SampleColumn, Value, spell

Case = tuple[str, Predicate]

OPERATORS: Final[tuple[ComparisonOperator, ...]] = ("=", "<>", "<", "<=", ">", ">=")

PATTERNS: Final = (
    "a%", "%b", "a_b", "a\\_b", "a\\%b", "a\\\\b", "%", "", "_", "a*b", "a?b", "a[b", "%é%", "A%",
    "%\\%%", "ВЕСНА__", "__",
)  # fmt: skip

ELSEWHERE: Final[dict[Kind, tuple[tuple[str, str], ...]]] = {
    # Constants no sample holds, or of another type of the family: (text, type).
    "integer": (("5", "integer"), ("0.5", "numeric"), ("9007199254740993", "numeric"),
                ("-3", "smallint"), ("9007199254740993.5", "numeric")),
    "float": (("0.1", "numeric"), ("3", "integer"), ("0.25", "double precision"),
              ("0.30000000000000004", "numeric")),
    "text": (("ac", "text"), ("a", "character varying"), ("É", "text")),
    "numeric": (("0.10", "numeric"), ("3", "integer"), ("0.3", "numeric"),
                ("12345678.90000000000000001", "numeric")),
    "boolean": (),
    "date": (("2012-12-12", "date"),),
    "timestamp": (("2024-02-29 12:30:00.25", "timestamp without time zone"),),
    "bytes": (("\\x6162", "bytea"),),
}  # fmt: skip

CONSTANT_TYPES: Final[dict[Kind, str]] = {
    "integer": "bigint",
    "float": "double precision",
    "text": "text",
    "numeric": "numeric",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp without time zone",
    "bytes": "bytea",
}


def simple() -> Iterator[Case]:
    """Yield every operator on every column with constants that are there and that are not.

    The name is the kind and the operator: ``text <``, ``date IN``, ``integer IS NULL``.
    """
    for column in THINGS.columns[1:]:
        constants = _constants(column)
        for operator, (text, type_) in itertools.product(OPERATORS, constants):
            yield f"{column.kind} {operator}", Comparison(column.name, operator, text, type_)
        own = [text for text, type_ in constants if type_ == CONSTANT_TYPES[column.kind]]
        for size in (0, 1, 3, len(own)):
            values = tuple(own[:size])
            yield f"{column.kind} IN", Membership(column.name, values, CONSTANT_TYPES[column.kind])
        for negated in (False, True):
            yield f"{column.kind} IS NULL", NullTest(column.name, negated)
    for pattern, negated in itertools.product(PATTERNS, (False, True)):
        yield "text LIKE", PatternMatch("s", pattern, negated)


def combined(count: int = 400) -> Iterator[Case]:
    """Yield nested combinations of the simple cases, the same ones each time."""
    chance = random.Random(20_260_101)  # noqa: S311 - reproducible, not secret
    leaves = [predicate for _, predicate in simple()]
    for _ in range(count):
        yield "combined", _combine(chance, leaves, depth=3)


def _combine(chance: random.Random, leaves: Sequence[Predicate], depth: int) -> Predicate:
    choice = chance.randrange(4) if depth else 0
    if choice == 0:
        return chance.choice(leaves)
    arguments = tuple(
        _combine(chance, leaves, depth - 1)
        for _ in range(1 if choice == 1 else chance.choice((2, 3)))
    )
    if choice == 1:
        return Not(arguments[0])
    return And(arguments) if choice == 2 else Or(arguments)


def _constants(column: SampleColumn) -> list[tuple[str, str]]:
    position = THINGS.position(column.name)
    present: dict[Value, None] = dict.fromkeys(
        row[position] for row in THINGS.rows if row[position] is not None
    )
    type_ = CONSTANT_TYPES[column.kind]
    return [(spell(value), type_) for value in present] + list(ELSEWHERE[column.kind])
