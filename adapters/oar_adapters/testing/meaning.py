"""What a predicate means, in Python: the reference that adapters are compared with.

PostgreSQL's semantics on the sample tables: three-valued logic, text compared by its bytes, LIKE
with backslash as the escape. Used by tests only, so plain rather than fast.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from oar_adapters.interface import (
    And,
    Comparison,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Predicate,
)
from oar_adapters.testing.samples import Kind, Row, SampleTable, Value

Truth = bool | None

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(table: SampleTable, row: Row, predicate: Predicate) -> bool:
    """Tell whether a WHERE clause keeps a row: only what is true is kept."""
    return truth(table, row, predicate) is True


def truth(table: SampleTable, row: Row, predicate: Predicate) -> Truth:
    """Evaluate a predicate; None is SQL's unknown."""
    match predicate:
        case And(arguments=arguments):
            found = [truth(table, row, argument) for argument in arguments]
            return False if False in found else None if None in found else True
        case Or(arguments=arguments):
            found = [truth(table, row, argument) for argument in arguments]
            return True if True in found else None if None in found else False
        case Not(argument=argument):
            inner = truth(table, row, argument)
            return None if inner is None else not inner
        case NullTest(column=column, negated=negated):
            return (row[table.position(column)] is None) is not negated
    value = row[table.position(predicate.column)]
    if value is None:
        return False if isinstance(predicate, Membership) and not predicate.values else None
    kind = table.kind(predicate.column)
    match predicate:
        case Comparison(op=op, value=text):
            return _OPERATORS[op](*_comparable(value, read(kind, text)))
        case Membership(values=values):
            return any(_equal(value, read(kind, text)) for text in values)
        case PatternMatch(pattern=pattern, negated=negated):
            matched = re.fullmatch(_expression(pattern), str(value), re.DOTALL) is not None
            return matched is not negated


def read(kind: Kind, text: str) -> Value:
    """Read a constant that is compared with a column of a kind."""
    match kind:
        case "integer" | "numeric":
            return Decimal(text)
        case "float":
            return float(text)
        case "boolean":
            return text == "t"
        case "date":
            return datetime.date.fromisoformat(text)
        case "timestamp":
            return datetime.datetime.fromisoformat(text)
        case "bytes":
            return bytes.fromhex(text[2:])
        case "text":
            return text


def _comparable(left: Value, right: Value) -> tuple[Any, Any]:
    if isinstance(left, str) and isinstance(right, str):
        return left.encode(), right.encode()
    return left, right


def _equal(left: Value, right: Value) -> bool:
    one, other = _comparable(left, right)
    return bool(one == other)


def _expression(pattern: str) -> str:
    parts, escaped = [], False
    for character in pattern:
        if not escaped and character == "\\":
            escaped = True
            continue
        wild = {"%": ".*", "_": "."}.get(character)
        parts.append(re.escape(character) if escaped or wild is None else wild)
        escaped = False
    return "".join(parts)
