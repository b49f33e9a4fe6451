"""What every adapter needs to reason about predicates: combining agreements, type families.

Pure. The rules are those of principle P1 (an owner may keep more rows than PostgreSQL would,
never fewer) and of three-valued logic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final, TypeVar

from oar_adapters.interface import (
    Agreement,
    And,
    Comparison,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Predicate,
    base_type,
)

_Operand = TypeVar("_Operand")

Leaf = Comparison | Membership | NullTest | PatternMatch

INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
FLOATS: Final = frozenset({"real", "double precision"})
NUMBERS: Final = INTEGERS | FLOATS | {"numeric"}
TEXTS: Final = frozenset({"text", "character varying", "character", "bpchar"})


def agreement(predicate: Predicate, leaf: Callable[[Leaf], Agreement]) -> Agreement:
    """Combine what an owner agrees on for the leaves into what it agrees on for the whole.

    A conjunction or disjunction is as good as its worst argument. A negation turns a superset
    into a subset, so it needs an exact argument.
    """
    if isinstance(predicate, And | Or):
        parts = {agreement(argument, leaf) for argument in predicate.arguments}
        if Agreement.NONE in parts:
            return Agreement.NONE
        return Agreement.SUPERSET if Agreement.SUPERSET in parts else Agreement.EXACT
    if isinstance(predicate, Not):
        inner = agreement(predicate.argument, leaf)
        return inner if inner is Agreement.EXACT else Agreement.NONE
    return leaf(predicate)


def leaves(predicate: Predicate) -> Iterator[Leaf]:
    """Yield the leaves of a predicate from left to right."""
    if isinstance(predicate, And | Or):
        for argument in predicate.arguments:
            yield from leaves(argument)
    elif isinstance(predicate, Not):
        yield from leaves(predicate.argument)
    else:
        yield predicate


def constants(leaf: Leaf) -> tuple[str, ...]:
    """Return the constants that a leaf compares with."""
    match leaf:
        case NullTest():
            return ()
        case PatternMatch():
            return (leaf.pattern,)
        case Membership():
            return leaf.values
        case Comparison():
            return (leaf.value,)


def known(operand: _Operand | None) -> _Operand:
    """Return a constant as an owner compares it. Raises ``ValueError`` where it does not."""
    if operand is None:
        raise ValueError("the predicate is not one this adapter evaluates")
    return operand


def comparable(column_type: str, value_type: str) -> bool:
    """Tell whether PostgreSQL compares the two types by an immutable operator.

    Mixing ``date`` or ``timestamp`` with ``timestamp with time zone`` depends on the session's
    time zone (rule R48); text against a number is an error there (rule R42).
    """
    left, right = base_type(column_type), base_type(value_type)
    if left == right:
        return True
    return any(
        left in family and right in family
        for family in (NUMBERS, TEXTS, {"date", "timestamp without time zone"})
    )


def pattern_is_complete(pattern: str) -> bool:
    """Tell whether a LIKE pattern does not end inside an escape (PostgreSQL raises there)."""
    trailing = len(pattern) - len(pattern.rstrip("\\"))
    return trailing % 2 == 0


_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
"""What PostgreSQL writes; Python's own reading takes underscores and other scripts' digits."""


def decimal_constant(value: str) -> Decimal | None:
    """Read a number in PostgreSQL's text format; None for NaN, infinity and what is no number."""
    return Decimal(value) if _DECIMAL.fullmatch(value) else None


def double_constant(value: str, plain: str) -> float | None:
    """Read a constant as the double PostgreSQL compares; None for NaN, which other databases lack.

    A ``real`` rounds twice on the way, and overflow is an error there: both are left to the hub.
    """
    if plain not in NUMBERS or plain == "real":
        return None
    if plain == "double precision" and value.lower() in ("infinity", "-infinity"):
        return float(value)
    number = decimal_constant(value)
    if number is None:
        return None
    double = float(int(number)) if plain in INTEGERS else float(value)
    lost = double in (float("inf"), float("-inf")) or (double == 0) != (number == 0)
    return None if lost else double
