"""Statements around a call of something in PostgreSQL's catalog, over columns of every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from oar_adapters.interface import base_type
from oar_adapters.postgres.whole import AGGREGATES, FUNCTIONS

from oar_bench.fuzz.catalog import Call
from oar_bench.fuzz.samples import ORDERED, SAMPLES
from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.typed import Form, TypedWriter, columns_of
from oar_bench.fuzz.world import Table, World

Rows = tuple[str, Table]
"""What a call may name columns of: an alias and its table."""

_LIKED: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("abc", "b"),
    '"char"': ("a", "b"),
    "regconfig": ("english", "simple"),
    "regdictionary": ("english_stem", "simple"),
    "regtype": ("integer",),
    "money": ("12.50", "3"),
    "tid": ("(0,1)",),
    "xid": ("5",),
    "smallint[]": ("{1,2}",),
    "text": ("abc", "a", "1", "YYYY-MM-DD", "day", "week", "UTC", "hex", "b", r"\w+", "(?i)\u00c9"),
    "integer": ("1", "2", "0"),
}
"""Constants of types that no column is published as, and those that functions like to have."""

_BASES: Final = frozenset(map(base_type, SAMPLES)) | SAMPLES.keys()
_ORDERED_BASES: Final = frozenset(map(base_type, ORDERED))
_ELEMENTS: Final = ("integer", "text", "numeric", "boolean", "date", "double precision", "bigint")
_RANGES: Final = {
    "int4range": ("integer", "int4multirange"),
    "numrange": ("numeric", "nummultirange"),
    "daterange": ("date", "datemultirange"),
}
_SETTLED: Final = frozenset(
    {
        "avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "corr", "count", "covar_pop",
        "covar_samp", "every", "max", "min", "range_agg", "range_intersect_agg", "stddev",
        "stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp", "variance",
    }
)  # fmt: skip
"""Aggregates whose value is the same in whatever order they get their rows."""

_GRAMMAR: Final = frozenset(
    {
        "bit", "bool", "bpchar", "char", "collation", "date", "extract", "float4", "float8", "int2",
        "int4", "int8", "interval", "is_normalized", "left", "like", "name", "normalize",
        "notlike", "numeric", "overlaps", "overlay", "position", "right", "similar_to_escape",
        "substring", "text", "time", "timestamp", "timestamptz", "timetz", "trim", "varchar",
        "xmlexists",
    }
)  # fmt: skip
"""Functions whose plain name the grammar takes for something else, or may."""


_SENT: Final = FUNCTIONS | AGGREGATES | {"+", "-", "*", "/", "%", "||", "=", "<", "~~"}
"""Names of what a PostgreSQL owner may evaluate."""

_DEEPEST: Final = 2
"""Calls within a call's arguments, within those of another."""


class Calls:
    """What may be called; what owners may evaluate is drawn as often as all together."""

    def __init__(self, found: Sequence[Call]) -> None:
        self._all = [call for call in found if writable(call)]
        self._sent = [call for call in self._all if call.name in _SENT or call.kind == "cast"]
        self._giving: dict[str, list[Call]] = {}
        for call in (*self._all, *self._sent):
            if call.kind not in ("aggregate", "window") and not call.returns_set:
                self._giving.setdefault(call.result, []).append(call)

    def draw(self, random: Random) -> Call:
        """Draw any."""
        return random.choice(self._sent if random.random() < 0.5 else self._all)

    def draw_giving(self, random: Random, type_: str) -> Call | None:
        """Draw one that gives a value of a type."""
        return random.choice(self._giving[type_]) if type_ in self._giving else None


def call_case(random: Random, world: World, calls: Calls) -> Case:
    """Draw a statement over a tame world that has one of the calls somewhere."""
    return _Writer(random, world, calls).case()


def writable(call: Call) -> bool:
    """Tell whether there are values of all its arguments' types."""
    return all(
        type_ in _BASES
        or type_ in _LIKED
        or type_ == "record"
        or (type_.strip('"').startswith("any") and type_ != "anyenum")
        for type_ in call.arguments
    )


class _Writer(TypedWriter):
    def __init__(self, random: Random, world: World, calls: Calls) -> None:
        super().__init__(random, world, wild=False)
        self._calls = calls
        self._call = calls.draw(random)
        self._types, self._result = self._settled_types(self._call)
        if not any(columns_of(self.first, type_) for type_ in self._types):
            self.first = world.tables[0]  # which has all types

    def _settled_types(self, call: Call) -> tuple[list[str], str]:
        """The types of the arguments and of the result, polymorphic ones the same way."""
        range_ = self.random.choice(list(_RANGES))
        bound, multirange = _RANGES[range_]
        ranged = any("range" in type_ for type_ in call.arguments)
        element = bound if ranged else self.random.choice(_ELEMENTS)
        stands = {"element": element, "nonarray": element, "": element, "array": f"{element}[]",
                  "range": range_, "multirange": multirange}  # fmt: skip
        known = {f"any{kind}": type_ for kind, type_ in stands.items() if kind}
        known |= {f"anycompatible{kind}": type_ for kind, type_ in stands.items()}
        types = [
            self.random.choice(list(SAMPLES)) if t == '"any"' else known.get(t, t)
            for t in call.arguments
        ]
        return types, known.get(call.result, call.result)

    def case(self) -> Case:
        """Draw one."""
        aggregates = self._call.kind in ("aggregate", "window")
        if aggregates:
            forms = self._windows() if self._call.kind == "window" else self._aggregates()
        elif self._call.returns_set:
            forms = self._sets()
        else:
            forms = self._scalars() | (self._sorted() if self._comparable else {})
        return self.written(forms, loose=aggregates)

    # --- the call ---------------------------------------------------------------------------------

    def _of(self, *rows: Rows, order: str = "") -> str:
        """The call, with at least one column where there is one of a type."""
        return self._spelled(self._call, self._types, rows, order, depth=0)

    def _spelled(
        self, call: Call, types: Sequence[str], rows: Sequence[Rows], order: str, *, depth: int
    ) -> str:
        direct = call.direct or 0
        filled = [any(columns_of(table, t) for _, table in rows) for t in types]
        first = next((n for n, there in enumerate(filled) if there and n >= direct), None)
        listed = [
            self._argument(t, rows if n >= direct else (), column=n == first, depth=depth)
            for n, t in enumerate(types)
        ]
        if call.kind == "cast":
            return f"{listed[0]}::{call.result}"
        if call.kind == "operator":
            *left, right = listed
            return f"({' '.join([*left, call.name, right])})"
        if call.name == "count" and not listed:
            return "count(*)"
        quoted = call.name in _GRAMMAR or self.random.random() < 0.15
        name = f'pg_catalog."{call.name}"' if quoted else call.name
        if call.direct is None:
            return f"{name}({', '.join(listed)}{order})"
        given, ordered = ", ".join(listed[:direct]), ", ".join(listed[direct:])
        return f"{name}({given}) WITHIN GROUP (ORDER BY {ordered})"

    def _argument(self, type_: str, rows: Sequence[Rows], *, column: bool, depth: int) -> str:
        if type_ == "record":
            return self.pick(*(alias for alias, _ in rows))
        if rows and depth < _DEEPEST and self.random.random() < 0.25:
            inner = self._calls.draw_giving(self.random, type_)
            if inner is not None:
                types, _ = self._settled_types(inner)
                return self._spelled(inner, types, rows, "", depth=depth + 1)
        held = [f"{alias}.{name}" for alias, table in rows for name in columns_of(table, type_)]
        if held and (column or self.random.random() < 0.6):
            return self.random.choice(held)
        liked = self.random.choice(_LIKED[type_]) if type_ in _LIKED else None
        return self.constant(type_, liked)

    @property
    def _comparable(self) -> bool:
        return self._result in _ORDERED_BASES

    def _condition(self, *rows: Rows) -> str:
        call = self._of(*rows)
        if self._result == "boolean" and self.random.random() < 0.8:
            return call
        if self._comparable and self.random.random() < 0.6:
            sign = self.pick("=", "<>", "<", ">=", "IS DISTINCT FROM")
            constant = self.random.random() < 0.5
            other = self.constant(self._result) if constant else self._of(*rows)
            return f"{call} {sign} {other}"
        return self.pick(f"({call})::text > '1'", f"{call} IS NULL", f"{call} IS NOT NULL")

    # --- statements -------------------------------------------------------------------------------

    @property
    def _joined(self) -> str:
        return f"{self.of_a} {self.join()} {self.of_b} ON a.id = b.id"

    def _scalars(self) -> dict[str, Form]:
        a, b, again = ("a", self.first), ("b", self.second), ("c", self.first)
        both = "SELECT a.id, b.id AS other FROM"
        return {
            "cells": lambda: f"SELECT a.id, {self._of(a)} AS c FROM {self.of_a}",
            "unnamed": lambda: f"SELECT {self._of(a)} FROM {self.of_a}",
            "where": lambda: f"SELECT a.id FROM {self.of_a} WHERE {self._condition(a)}",
            "not": lambda: f"SELECT a.id FROM {self.of_a} WHERE NOT ({self._condition(a)})",
            "case": lambda: (
                f"SELECT a.id, CASE WHEN {self._condition(a)} THEN {self._of(a)} END AS c "
                f"FROM {self.of_a}"
            ),
            "join": lambda: f"SELECT a.id, {self._of(a, b)} AS c FROM {self._joined}",
            "join of one": lambda: (
                f"SELECT a.id, {self._of(a, again)} AS c FROM {self.of_a} JOIN {self.first.name} "
                f"AS c ON a.id = c.id WHERE {self._condition(a)}"
            ),
            "where of a join": lambda: f"{both} {self._joined} WHERE {self._condition(a, b)}",
            "where of one": lambda: f"{both} {self._joined} WHERE {self._condition(a)}",
            "on": lambda: (
                f"{both} {self.of_a} {self.join()} {self.of_b} ON {self._condition(a, b)}"
            ),
            "on besides": lambda: f"{both} {self._joined} AND {self._condition(b)}",
            "exists": lambda: (
                f"SELECT a.id FROM {self.of_a} WHERE {self.pick('', 'NOT ')}EXISTS (SELECT FROM "
                f"{self.of_b} WHERE a.id = b.id AND {self._condition(a, b)})"
            ),
            "in": lambda: (
                f"SELECT a.id FROM {self.of_a} WHERE a.id {self.pick('', 'NOT ')}IN "
                f"(SELECT b.id FROM {self.of_b} WHERE {self._condition(b)})"
            ),
            "scalar": lambda: (
                f"SELECT a.id, (SELECT {self._of(b)} FROM {self.of_b} WHERE b.id = a.id) AS c "
                f"FROM {self.of_a}"
            ),
            "count": lambda: f"SELECT count({self._of(a)}) AS n FROM {self._joined}",
            "filter": lambda: (
                f"SELECT count(*) FILTER (WHERE {self._condition(a)}) AS n FROM {self.of_a}"
            ),
            "derived": lambda: (
                f"SELECT q.c, b.id FROM (SELECT a.id, {self._of(a)} AS c FROM {self.of_a}) AS q "
                f"JOIN {self.of_b} ON b.id = q.id"
            ),
        }

    def _sorted(self) -> dict[str, Form]:
        a, b = ("a", self.first), ("b", self.second)
        return {
            "group": lambda: (
                f"SELECT {self._of(a)} AS c, count(*) AS n FROM {self.of_a} GROUP BY 1"
            ),
            "group of a join": lambda: (
                f"SELECT {self._of(a, b)} AS c, count(*) AS n FROM {self._joined} GROUP BY 1"
            ),
            "distinct": lambda: f"SELECT DISTINCT {self._of(a)} AS c FROM {self.of_a}",
            "order": lambda: (
                f"SELECT {self._of(a)} AS c, a.id FROM {self.of_a} ORDER BY 1, 2 LIMIT 4"
            ),
            "order of a join": lambda: (
                f"SELECT {self._of(a)} AS c, a.id, b.id AS other FROM {self._joined} "
                "ORDER BY 1, 2, 3 LIMIT 3"
            ),
            "on equal": lambda: (
                f"SELECT a.id, b.id AS other FROM {self.of_a} {self.join()} {self.of_b} "
                f"ON {self._of(a)} = {self._of(b)}"
            ),
            "rank": lambda: (
                f"SELECT a.id, rank() OVER (ORDER BY {self._of(a)}) AS n FROM {self.of_a}"
            ),
            "union": lambda: (
                f"SELECT {self._of(a)} AS c FROM {self.of_a} UNION "
                f"SELECT {self._of(b)} FROM {self.of_b}"
            ),
            "in values": lambda: (
                f"SELECT a.id FROM {self.of_a} WHERE {self._of(a)} IN "
                f"(SELECT {self._of(b)} FROM {self.of_b})"
            ),
        }

    def _sets(self) -> dict[str, Form]:
        a, b = ("a", self.first), ("b", self.second)
        return {
            "cells": lambda: f"SELECT a.id, {self._of(a)} AS c FROM {self.of_a}",
            "from": lambda: f"SELECT a.id, q.* FROM {self.of_a}, {self._of(a)} AS q",
            "from of a join": lambda: (
                f"SELECT a.id, b.id AS other, q FROM {self._joined} "
                f"CROSS JOIN LATERAL {self._of(a, b)} AS q"
            ),
            "exists": lambda: (
                f"SELECT a.id FROM {self.of_a} WHERE EXISTS (SELECT FROM {self._of(a)} AS q)"
            ),
            "scalar": lambda: (
                f"SELECT b.id, (SELECT count(*) FROM {self._of(b)} AS q) AS n FROM {self.of_b}"
            ),
            "numbered": lambda: (
                f"SELECT a.id, q.n FROM {self.of_a} LEFT JOIN LATERAL (SELECT count(*) AS n "
                f"FROM {self._of(a)} WITH ORDINALITY) AS q ON true"
            ),
        }

    def _aggregate(self, *rows: Rows) -> str:
        order = ""
        settled = self._call.name in _SETTLED and self.random.random() < 0.7
        if self._call.direct is None and self._types and not settled:
            order = f" ORDER BY {', '.join(f'{alias}.id' for alias, _ in rows)}"
        filtered = f" FILTER (WHERE {rows[0][0]}.id > 2)" if self.random.random() < 0.2 else ""
        return self._of(*rows, order=order) + filtered

    def _aggregates(self) -> dict[str, Form]:
        a, b = ("a", self.first), ("b", self.second)
        ordered = [c.name for c in self.first.columns if c.type in ORDERED]
        key = f"a.{self.random.choice(ordered)}"
        forms: dict[str, Form] = {
            "all": lambda: f"SELECT {self._aggregate(a)} AS c FROM {self.of_a}",
            "unnamed": lambda: f"SELECT {self._aggregate(a)} FROM {self.of_a} WHERE a.id < 5",
            "by": lambda: (
                f"SELECT {key}, {self._aggregate(a)} AS c FROM {self.of_a} GROUP BY {key}"
            ),
            "of a join": lambda: f"SELECT {self._aggregate(a, b)} AS c FROM {self._joined}",
            "of a join by": lambda: (
                f"SELECT {key}, {self._aggregate(a, b)} AS c FROM {self._joined} GROUP BY {key}"
            ),
            "by the other": lambda: (
                f"SELECT b.id, {self._aggregate(a)} AS c FROM {self._joined} GROUP BY b.id"
            ),
            "having": lambda: (
                f"SELECT {key}, count(*) AS n FROM {self.of_a} GROUP BY {key} "
                f"HAVING {self._aggregate(a)} IS NOT NULL"
            ),
            "scalar": lambda: (
                f"SELECT a.id, (SELECT {self._aggregate(b)} FROM {self.of_b} WHERE b.id <= a.id) "
                f"AS c FROM {self.of_a}"
            ),
            "derived": lambda: (
                f"SELECT a.id, q.c FROM {self.of_a} JOIN (SELECT b.id % 3 AS k, "
                f"{self._aggregate(b)} AS c FROM {self.of_b} GROUP BY 1) AS q ON q.k = a.id"
            ),
        }
        return forms | (self._windows() if self._call.direct is None else {})

    def _windows(self) -> dict[str, Form]:
        a, b = ("a", self.first), ("b", self.second)
        frame = " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING"
        over = self.pick(
            *("ORDER BY a.id", f"ORDER BY a.id{frame}", "PARTITION BY a.id % 2 ORDER BY a.id DESC")
        )
        return {
            "window": lambda: f"SELECT a.id, {self._of(a)} OVER ({over}) AS c FROM {self.of_a}",
            "window of a join": lambda: (
                f"SELECT a.id, {self._of(a, b)} OVER ({over}) AS c FROM {self.of_a} JOIN "
                f"{self.of_b} ON a.id = b.id"
            ),
        }
