"""Values that an owner returned and that a model wrote into the query for another owner. Pure.

Such a value is a join key on its way, and the gate decides about it as about every other. A value
is recognised where the query has it, or a part of it, as a constant, inside of a longer one, or as
a name. What the question itself says is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from oar_adapters.interface import Table

from oar_proxy.decision import KeyEdge, KeyOrigin
from oar_proxy.gate import BoundEdge
from oar_proxy.sql.parsed import Parsed
from oar_proxy.sql.text import identifiers
from oar_proxy.sql.tree import ast, children

MIN_PART: Final = 4
"""Characters of a value that is looked for inside of a constant, and of a constant that is looked
for inside of a value: fewer are found anywhere."""

_WILDCARDS: Final = re.compile("[%_]+")

ANY_COLUMN: Final = "*"
"""What a value is compared with where the query compares it with no column by itself."""

_Column = tuple[str | None, str]
"""A column as the query writes it: qualifier and name."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a query, the column it is compared with, whether it counts rows."""

    value: str
    column: _Column | None = None
    counts_rows: bool = False


@dataclass
class Seen:
    """Values that came from owners, with every column each may be of."""

    question: str = field(repr=False)
    _origins: dict[str, dict[KeyOrigin, None]] = field(default_factory=dict, repr=False)

    def add(self, value: object, origins: Iterable[KeyOrigin]) -> None:
        """Note a value; NULLs and booleans tell nothing apart and are no keys."""
        if value is None or isinstance(value, bool):
            return
        self._origins.setdefault(canonical(str(value)), {}).update(dict.fromkeys(origins))

    def edges(
        self, parsed: Parsed, receiver: str, tables: Sequence[Table], max_rows: int
    ) -> tuple[BoundEdge, ...]:
        """Return the key edges that a query for an owner makes; keys are distinct values.

        ``tables`` are the receiver's. A LIMIT or OFFSET up to ``max_rows`` is no value.
        """
        found: dict[tuple[tuple[KeyOrigin, ...], str, str], dict[str, None]] = {}
        for constant in _constants(parsed, tables):
            if constant.counts_rows and _is_at_most(constant.value, max_rows):
                continue
            for value in self._within(constant.value):
                origins = tuple(o for o in self._origins[value] if o.owner != receiver)
                if not origins:
                    continue
                place = _place(parsed, constant.column, tables)
                found.setdefault((origins, *place), {})[value] = None
        return tuple(
            BoundEdge(
                KeyEdge(origins, receiver, table, column),
                len(values),
                (len(values),) * len(origins),
            )
            for (origins, table, column), values in found.items()
        )

    def _within(self, constant: str) -> Iterator[str]:
        """The values a constant is or holds, but for those of the question."""
        written = canonical(constant)
        pieces = [canonical(piece) for piece in _WILDCARDS.split(constant)]
        # A list, a row or a document holds more values than one, and a prefix names few rows.
        parts = [p for p in (written, *pieces) if len(p) >= MIN_PART and not self._is_asked(p)]
        pattern = canonical(constant.strip("%_"))
        for value in self._origins:
            held = value in (written, pattern) or (len(value) >= MIN_PART and value in written)
            held = held or (not _is_number(value) and any(part in value for part in parts))
            if held and not self._is_asked(value):
                yield value

    def _is_asked(self, value: str) -> bool:
        pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
        return re.search(pattern, self.question.casefold()) is not None


def canonical(text: str) -> str:
    """Return one spelling of a value: a number by its value, a text without case and outer space.

    ``50``, ``50.0`` and ``'50'`` are one value.
    """
    stripped = text.strip().casefold()
    number = _number(stripped)
    return stripped if number is None else f"{number.normalize():f}"


def _number(text: str) -> Decimal | None:
    try:
        # PostgreSQL writes whole numbers in other bases too.
        number = Decimal(int(text, 0)) if text[:2] in ("0x", "0o", "0b") else Decimal(text)
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


def _is_number(value: str) -> bool:
    return _number(value) is not None


def _is_at_most(value: str, most: int) -> bool:
    return value.isdecimal() and int(value) <= most


def _constants(parsed: Parsed, tables: Sequence[Table]) -> Iterator[Constant]:
    """Yield the constants of a query, and the names in it that are not the owner's."""
    # A stack, since a query may nest deeper than Python recurses.
    waiting: list[tuple[Any, Constant]] = [(parsed.node, Constant(""))]
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, ast.A_Const):
            value = _text(node)
            if value is not None:
                yield Constant(value, place.column, place.counts_rows)
            continue
        if isinstance(node, ast.SelectStmt):
            place = Constant("")
            rows = Constant("", counts_rows=True)
            counting = [n for n in (node.limitCount, node.limitOffset) if n is not None]
            waiting.extend((limit, rows if isinstance(limit, ast.A_Const) else place)
                           for limit in counting)  # fmt: skip
            waiting.extend((n, place) for n in children(node) if n not in counting)
            continue
        if isinstance(node, ast.A_Expr):
            column = _column(node.lexpr) or _column(node.rexpr)
            place = Constant("", column)
        elif isinstance(node, ast.SubLink):
            place = Constant("", _column(node.testexpr))
        waiting.extend((child, place) for child in children(node))
    published = {
        name for table in tables for name in (table.name, *(c.name for c in table.columns))
    }
    yield from (Constant(name) for name in identifiers(parsed.text) if name not in published)


def _text(node: Any) -> str | None:
    value = node.val
    if isinstance(value, ast.Integer):
        return str(value.ival or 0)
    if isinstance(value, ast.Float):
        return str(value.fval)
    if isinstance(value, ast.String):
        return str(value.sval)
    if isinstance(value, ast.BitString):
        # The number it is as an integer: x'98' is 152.
        digits, base = str(value.bsval)[1:], 16 if str(value.bsval)[0] == "x" else 2
        return str(int(digits, base)) if digits else None
    return None


def _column(node: Any) -> _Column | None:
    while isinstance(node, ast.TypeCast):
        node = node.arg
    if not isinstance(node, ast.ColumnRef):
        return None
    parts = [part.sval for part in node.fields if isinstance(part, ast.String)]
    if len(parts) < len(node.fields):
        return None
    return (parts[-2] if len(parts) > 1 else None, parts[-1])


def _place(parsed: Parsed, column: _Column | None, tables: Sequence[Table]) -> tuple[str, str]:
    """The owner's table and column that a constant is compared with, as far as is known."""
    used = {relation.reference: relation.name for relation in parsed.relations}
    held = {table.name: {c.name for c in table.columns} for table in tables}
    if column is not None:
        qualifier, name = column
        candidates = [used[qualifier]] if qualifier in used else list(used.values())
        having = [table for table in candidates if name in held.get(table, ())]
        if having:
            return having[0], name
    return next(iter(used.values()), ANY_COLUMN), ANY_COLUMN
