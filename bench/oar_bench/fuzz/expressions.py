"""Random conditions and expressions over the columns in scope.

Expressions that could fail on some row (division by a column, arithmetic over extreme values, a
subquery of several rows as a value) are not written: an owner that is asked for fewer rows may hide
such an error (R38).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from oar_bench.fuzz.world import POOLS, WILD, Table, World, quote

_CASTS: Final = {
    "int": "bigint",
    "text": "text",
    "num": "numeric",
    "date": "date",
    "bool": "boolean",
    "float": "double precision",
    "stamp": "timestamp",
    "uuid": "uuid",
    "span": "interval",
    "net": "inet",
}
_COMPARED: Final = {
    "int": ("int", "num", "float"),
    "num": ("num", "int", "float"),
    "float": ("float", "int", "num"),
    "stamp": ("stamp", "date"),
    "date": ("date", "stamp"),
}
"""Families that compare with each other; each with itself besides."""

MAX_RELATIONS: Final = 6
"""Tables a statement reads: six of twenty-five rows are the most a cross join should meet."""

AND: Final = " AND "


@dataclass(frozen=True, slots=True)
class Col:
    """A column in scope: how to write it, and what may be done with it."""

    ref: str
    family: str
    tame: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A query's text and its output columns, whose ``ref`` are their names.

    ``ordered``: its rows come in a determined order.
    """

    sql: str
    columns: tuple[Col, ...]
    ordered: bool = False


@dataclass
class From:
    """A FROM clause as it grows: its text, the columns it offers, whole rows that may be named."""

    sql: str
    columns: list[Col]
    rows: list[str] = field(default_factory=list)
    keyed: list[tuple[str, list[Col]]] = field(default_factory=list)
    """Primary keys, each with the columns it determines."""
    where: tuple[str, ...] = ()
    """Conditions that belong to joins written with a comma."""
    joined: list[Col] = field(default_factory=list)
    """Columns that joins compare."""


class ExpressionWriter(ABC):
    """Writes conditions and expressions; what is a query is left to the class below."""

    def __init__(self, random: Random, world: World, *, parameters: bool) -> None:
        self.random = random
        self.world = world
        self.with_parameters = parameters
        self.parameters: list[str] = []
        self.tables: set[str] = set()
        self.loose = False
        self.exact = False
        self._relations = MAX_RELATIONS
        self._aliases = 0
        self._names: set[str] = set()
        self._hidden: set[str] = set()
        """Tables whose plain name means a CTE."""
        self._confined: Sequence[Table] = ()
        self._ctes: list[tuple[str, tuple[Col, ...]]] = []

    # --- chance ---------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, weighted: dict[str, int]) -> str:
        (choice,) = self.random.choices(list(weighted), list(weighted.values()))
        return choice

    def alias(self, letter: str) -> str:
        self._aliases += 1
        return f"{letter}{self._aliases}"

    @abstractmethod
    def query(self, depth: int, outer: Sequence[Col], want: Sequence[str] | None) -> Query:
        """Write a query for use inside another; ``want`` are the families of its outputs."""

    @abstractmethod
    def scalar(self, outer: Sequence[Col], depth: int, family: str) -> str:
        """Write a subquery of one row at most."""

    # --- conditions -----------------------------------------------------------------------------

    def _condition(self, columns: Sequence[Col], outer: Sequence[Col], depth: int) -> str:
        kind = self.pick(
            {"simple": 60, "columns": 10, "or": 9, "not": 5, "case": 4,
             "subquery": 26 if depth > 1 and self._relations > 0 else 0}
        )  # fmt: skip
        if kind == "subquery":
            return self._subquery_condition(columns, outer, depth)
        if kind == "or":
            one = self._condition(columns, outer, depth - 1)
            two = self._condition(columns, outer, depth)
            return f"({one} {self.random.choice(('OR', 'OR', 'AND'))} {two})"
        if kind == "not":
            inner = self._condition(columns, outer, depth)
            return self.random.choice(
                (f"NOT ({inner})", f"({inner}) IS TRUE", f"({inner}) IS NOT TRUE",
                 f"({inner}) IS UNKNOWN", f"({inner}) IS FALSE")
            )  # fmt: skip
        if kind == "case":
            one = self._condition(columns, outer, depth - 1)
            two = self._simple_condition(columns)
            return f"CASE WHEN {two} THEN {one} ELSE {self._simple_condition(columns)} END"
        if kind == "columns" and columns:
            column = self.random.choice(columns)
            other = self._matching(column, [*columns, *outer])
            if other is not None:
                sign = self.random.choice(
                    ("=", "=", "<", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
                )
                return f"{column.ref} {sign} {other.ref}"
        return self._simple_condition(columns)

    def _simple_condition(self, columns: Sequence[Col]) -> str:
        """A condition over one column and constants."""
        if not columns:
            return self.random.choice(("true", "1 = 1", "NULL::boolean", "false"))
        # Owners differ most in what they make of text.
        texts = [column for column in columns if column.family == "text"]
        column = self.random.choice(texts if texts and self.chance(0.3) else columns)
        ref, family = column.ref, column.family
        kind = self.pick(
            {"compare": 45, "null": 12, "in": 10, "between": 6, "coalesce": 5, "distinct": 4,
             "form": 14, "any": 3}
        )  # fmt: skip
        if kind == "null":
            return f"{ref} IS {self.random.choice(('', 'NOT '))}NULL"
        if kind == "in":
            listed = ", ".join(self._constant(family) for _ in range(self.random.choice((1, 2, 3))))
            if self.chance(0.1):
                listed += ", NULL"
            return f"{ref} {self.random.choice(('IN', 'IN', 'NOT IN'))} ({listed})"
        if kind == "between":
            bounds = f"{self._constant(family)} AND {self._constant(family)}"
            return f"{ref} {self.random.choice(('', 'NOT '))}BETWEEN {bounds}"
        if kind == "coalesce":
            return f"coalesce({ref}, {self._constant(family)}) = {self._constant(family)}"
        if kind == "distinct":
            form = self.random.choice(("IS DISTINCT FROM", "IS NOT DISTINCT FROM"))
            return f"{ref} {form} {self._constant(family)}"
        if kind == "any":
            values = ", ".join(self._constant(family, plain=True) for _ in range(2))
            form = self.random.choice(("= ANY", "<> ALL", "> ANY", "< ALL"))
            return f"{ref} {form} (ARRAY[{values}]::{_CASTS[family]}[])"
        if kind == "form":
            return self._typed_condition(column)
        return f"{ref} {self._comparator()} {self._constant(family)}"

    def _typed_condition(self, column: Col) -> str:
        ref = column.ref
        if column.family == "bool":
            return self.random.choice(
                (ref, f"NOT {ref}", f"{ref} IS NOT TRUE", f"{ref} IS UNKNOWN")
            )
        if column.family == "text":
            pattern = self.random.choice(("a%", "%b", "_", "B%", "%\\%%", "%", "x_y", "", "%O%"))
            like = self.random.choice(("LIKE", "LIKE", "NOT LIKE", "ILIKE"))
            return self.random.choice(
                (f"{ref} {like} {quote(pattern)}", f"lower({ref}) = 'bob'", f"length({ref}) > 1",
                 f"{ref} || 'x' > 'b'", f"{ref} ~ '^[aB]'", f"starts_with({ref}, 'b')")
            )  # fmt: skip
        if column.family in ("int", "num") and column.tame:
            return self.random.choice(
                (f"{ref} + 1 > {self._constant('int')}", f"{ref} % 2 = 0", f"abs({ref}) < 10",
                 f"{ref} / 10 * 10 = {ref}", f"{ref} * 2 <> {self._constant('int')}")
            )  # fmt: skip
        if column.family == "date" and column.tame:
            return self.random.choice(
                (f"{ref} + 1 = {self._constant('date')}", f"extract(year FROM {ref}) = 2024",
                 f"date_trunc('month', {ref}) = '2024-01-01'")
            )  # fmt: skip
        if column.family == "float" and column.tame:
            return f"{ref} * 2 >= {self._constant('float')}"
        return f"{ref} IS NOT NULL"

    def _subquery_condition(self, columns: Sequence[Col], outer: Sequence[Col], depth: int) -> str:
        seen = [*columns, *outer]
        column = self._of(columns, ("int", "text", "num", "date", "float"))
        kind = self.pick(
            {"exists": 26, "not exists": 14, "in": 22, "not in": 14, "any": 6, "all": 6,
             "scalar": 12, "row in": 4}
        )  # fmt: skip
        if kind in ("exists", "not exists") or column is None:
            inner = self.query(depth - 1, seen, None)
            return f"{'NOT ' if kind == 'not exists' else ''}EXISTS ({inner.sql})"
        # IN and the like are mostly not correlated.
        visible: Sequence[Col] = seen if self.chance(0.25) else ()
        if kind == "scalar":
            scalar = self.scalar(seen, depth - 1, column.family)
            return f"{column.ref} {self._comparator()} {scalar}"
        if kind == "row in":
            other = self._of(columns, ("int", "text", "num", "date")) or column
            inner = self.query(depth - 1, visible, [column.family, other.family])
            no = self.random.choice(("", "", "NOT "))
            return f"({column.ref}, {other.ref}) {no}IN ({inner.sql})"
        inner = self.query(depth - 1, visible, [column.family])
        if kind == "in":
            return f"{column.ref} IN ({inner.sql})"
        if kind == "not in":
            return self.random.choice(
                (f"{column.ref} NOT IN ({inner.sql})", f"NOT ({column.ref} IN ({inner.sql}))")
            )
        quantifier = "ANY" if kind == "any" else "ALL"
        return f"{column.ref} {self._comparator()} {quantifier} ({inner.sql})"

    # --- expressions ----------------------------------------------------------------------------

    def _expression(
        self, columns: Sequence[Col], family: str, depth: int, outer: Sequence[Col] = ()
    ) -> Col:
        """Write an expression of a family, mostly a column."""
        held = [column for column in columns if column.family == family]
        if not held:
            return self._literal(family)
        column = self.random.choice(held)
        kind = self.pick({"column": 76, "variant": 8, "case": 6, "coalesce": 4,
                          "scalar": 10 if depth > 1 and self._relations > 0 else 0})  # fmt: skip
        if kind == "variant":
            text = self._variant(column)
            return Col(text, family, column.tame)
        if kind == "case":
            other = self.random.choice(held)
            test = self._condition(columns, outer, depth)
            text = f"CASE WHEN {test} THEN {column.ref} ELSE {other.ref} END"
            return Col(text, family, column.tame and other.tame)
        if kind == "coalesce":
            other = self.random.choice(held)
            text = f"coalesce({column.ref}, {other.ref})"
            return Col(text, family, column.tame and other.tame)
        if kind == "scalar":
            return Col(self.scalar([*columns, *outer], depth - 1, family), family, False)
        return column

    def _variant(self, column: Col) -> str:
        """An expression over one column that is not the column."""
        if column.family in ("int", "num") and column.tame:
            form = self.random.choice(("({c} + 1)", "({c} / 10 * 10)", "abs({c})", "(- {c})"))
            return form.format(c=column.ref)
        if column.family == "text":
            form = self.random.choice(("lower({c})", "upper({c})", "trim({c})", "({c} || '')"))
            return form.format(c=column.ref)
        if column.family == "date" and column.tame:
            return f"({column.ref} + 1)"
        return f"coalesce({column.ref}, {self._literal(column.family).ref})"

    def _literal(self, family: str, *, min_of: bool = False) -> Col:
        constant, cast = self._constant(family), f"::{_CASTS[family]}"
        text = constant if constant.endswith(cast) else constant + cast
        if min_of and family != "uuid":
            text = f"{'bool_or' if family == 'bool' else 'min'}({text})"
        return Col(f"({text})", family, tame=True)

    def _constant(self, family: str, *, plain: bool = False) -> str:
        if self.with_parameters and not plain and self.chance(0.35):
            self.parameters.append(family)
            number = f"${len(self.parameters)}"
            return number if self.chance(0.3) and family != "int" else f"{number}::{_CASTS[family]}"
        value = self.random.choice(POOLS[family])
        if self.chance(0.04) and _CASTS[family] in WILD:
            value = self.random.choice(WILD[_CASTS[family]])
        if family in ("int", "num") and value != "NaN" and not value.startswith("-"):
            return value
        return f"{quote(value)}::{_CASTS[family]}" if self.chance(0.4) or plain else quote(value)

    def value(self, family: str) -> str | None:
        """A value for a parameter."""
        return None if self.chance(0.06) else self.random.choice(POOLS[family])

    def _comparator(self) -> str:
        return self.random.choice(("=", "=", "=", "<", ">", "<=", ">=", "<>", "<>"))

    # --- choosing columns -----------------------------------------------------------------------

    def _of(self, columns: Sequence[Col], families: Sequence[str]) -> Col | None:
        held = [column for column in columns if column.family in families]
        return self.random.choice(held) if held else None

    def _matching(self, column: Col, others: Sequence[Col]) -> Col | None:
        """Another column it compares with, mostly of its own family."""
        same = [c for c in others if c.family == column.family and c.ref != column.ref]
        if same and self.chance(0.9):
            return self.random.choice(same)
        comparable = _COMPARED.get(column.family, (column.family,))
        held = [c for c in others if c.family in comparable and c.ref != column.ref]
        return self.random.choice(held) if held else None

    def _pair(self, left: Sequence[Col], right: Sequence[Col]) -> tuple[Col, Col] | None:
        """Two columns to join on; keys are rather integers than anything else."""
        ordered = sorted(left, key=lambda c: self.random.random() * (3 if c.family == "int" else 1))
        for near in reversed(ordered):
            far = self._matching(near, right)
            if far is not None:
                return near, far
        return None
