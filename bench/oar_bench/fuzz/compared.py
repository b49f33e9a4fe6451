"""Statements that compare, join, group and sort by columns of every type, also across types."""

from __future__ import annotations

from random import Random
from typing import Final

from oar_bench.fuzz.samples import ORDERED, SAMPLES, WILD, column_name
from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.typed import Form, TypedWriter
from oar_bench.fuzz.world import Table, World, quote

_TOGETHER: Final = (
    ("smallint", "integer", "bigint", "numeric", "numeric(8,3)", "numeric(3,-2)", "real",
     "double precision"),
    ("text", "character varying", "character varying(12)"),
    ("character(5)", "bpchar"),
    ("text", "character(5)", "bpchar", "character varying"),
    ("date", "timestamp without time zone", "timestamp with time zone",
     "timestamp(3) without time zone"),
    ("time without time zone", "time with time zone", "time(2) without time zone"),
    ("inet", "cidr"),
    ("interval", "interval hour to second(2)"),
)  # fmt: skip
"""Types that compare with each other; each other one with itself."""

_ALONE: Final = sorted(ORDERED - {type_ for group in _TOGETHER for type_ in group})

_ONE_EXTREME: Final = frozenset(
    {"smallint", "integer", "bigint", "numeric(8,3)", "text", "character varying", "date",
     "timestamp without time zone", "timestamp with time zone", "time without time zone", "oid"}
)  # fmt: skip
"""Types with a least value, and one way to write it."""

_SUMMED: Final = frozenset({"smallint", "integer", "bigint", "numeric(8,3)"})


def compared_case(random: Random, world: World) -> Case:
    """Draw a statement over a wild world."""
    return _Writer(random, world).case()


class _Writer(TypedWriter):
    def __init__(self, random: Random, world: World) -> None:
        super().__init__(random, world, wild=True)
        pairs = [
            (one, other)
            for group in (*_TOGETHER, *((type_,) for type_ in _ALONE))
            for one in group
            for other in group
            if _has(self.first, one) and _has(self.second, other)
        ]
        self._type, self._other_type = random.choice(pairs)
        self._a = f"a.{column_name(self._type)}"
        self._b = f"b.{column_name(self._other_type)}"
        shared = {c.name for c in self.first.columns if c.type in ORDERED}
        shared &= {c.name for c in self.second.columns} - {"id"}
        self._shared = random.choice(sorted(shared))
        self._grouped = f"a.{random.choice([c.name for c in self.first.columns if c.name != 'id'])}"

    def case(self) -> Case:
        """Draw one."""
        forms = self._joins() | self._subqueries() | self._conditions() | self._groups()
        return self.written(forms | self._sorted(), loose=True)

    def _on(self) -> str:
        """How ``a`` and ``b`` are joined, with another condition now and then."""
        also = self.random.choice(
            (
                lambda: "",
                lambda: "",
                lambda: f" AND a.{self._shared} = b.{self._shared}",
                lambda: f" AND {self._a} IS NOT NULL",
                lambda: f" AND {self._a} <> {self.constant(self._type)}",
                lambda: f" AND {self._b} >= {self.constant(self._other_type)}",
            )
        )()
        return f"{self._a} = {self._b}{also}"

    def _joined(self) -> str:
        return f"{self.of_a} {self.join()} {self.of_b} ON {self._on()}"

    def _joins(self) -> dict[str, Form]:
        a, b, ids = self._a, self._b, "SELECT a.id, b.id AS other FROM"
        return {
            "join": lambda: f"{ids} {self._joined()}",
            "join cells": lambda: f"SELECT {a} AS x, {b} AS y FROM {self._joined()}",
            "full join": lambda: f"{ids} {self.of_a} FULL JOIN {self.of_b} ON {a} = {b}",
            "comma": lambda: f"{ids} {self.of_a}, {self.of_b} WHERE {self._on()}",
            "using": lambda: f"{ids} {self.of_a} {self.join()} {self.of_b} USING ({self._shared})",
            "less": lambda: (
                f"{ids} {self.of_a} {self.pick('JOIN', 'LEFT JOIN')} {self.of_b} ON {a} "
                f"{self.pick('<', '>=', '<>', 'IS DISTINCT FROM')} {b}"
            ),
            "distinct from": lambda: (
                f"{ids} {self.of_a} JOIN {self.of_b} ON {a} IS NOT DISTINCT FROM {b}"
            ),
            "three": lambda: (
                f"SELECT count(*) AS n, count(DISTINCT c.id) AS m FROM {self.of_a} JOIN "
                f"{self.of_b} ON {a} = {b} JOIN {self.first.name} AS c ON "
                f"c.{column_name(self._type)} = {b}"
            ),
            "lateral": lambda: (
                f"SELECT a.id, q.n FROM {self.of_a} LEFT JOIN LATERAL (SELECT b.id AS n FROM "
                f"{self.of_b} WHERE {a} = {b} ORDER BY b.id LIMIT 2) AS q ON true"
            ),
        }

    def _subqueries(self) -> dict[str, Form]:
        a, b, of = self._a, self._b, f"SELECT a.id FROM {self.of_a} WHERE"
        return {
            "in": lambda: (
                f"{of} {a} {self.pick('', 'NOT ')}IN (SELECT {b} FROM {self.of_b}"
                f"{self.pick('', f' WHERE {b} IS NOT NULL', ' WHERE b.id > 2')})"
            ),
            "rows in": lambda: (
                f"{of} ({a}, a.{self._shared}) {self.pick('', 'NOT ')}IN "
                f"(SELECT {b}, b.{self._shared} FROM {self.of_b})"
            ),
            "exists": lambda: (
                f"{of} {self.pick('', 'NOT ')}EXISTS (SELECT FROM {self.of_b} WHERE {self._on()})"
            ),
            "any": lambda: (
                f"{of} {a} {self.pick('>= ALL', '<> ALL', '< ANY', '= ANY')} "
                f"(SELECT {b} FROM {self.of_b})"
            ),
            "scalar": lambda: (
                f"SELECT b.id, (SELECT count(*) FROM {self.of_a} WHERE {a} = {b}) AS n "
                f"FROM {self.of_b}"
            ),
        }

    def _conditions(self) -> dict[str, Form]:
        a, of = self._a, f"SELECT a.id FROM {self.of_a} WHERE"
        other = f"SELECT a.id, b.id AS other FROM {self.of_a}"
        return {
            "compared": lambda: f"{of} {self._comparison()}",
            "not compared": lambda: (
                f"{of} NOT ({self._comparison()} {self.pick('AND', 'OR')} {self._comparison()})"
            ),
            "across": lambda: (
                f"{of} {a} {self.pick('=', '<>', '<', '>=')} {self.constant(self._other_type)}"
            ),
            "untyped": lambda: f"{of} {a} {self.pick('=', '<>', '<', '>=')} {quote(self._value())}",
            "list": lambda: (
                f"{of} {a} {self.pick('', 'NOT ')}IN ({self.constant(self._type)}, "
                f"{self.constant(self._type)}{self.pick('', ', NULL')})"
            ),
            "between": lambda: (
                f"{of} {a} {self.pick('', 'NOT ')}BETWEEN {self.constant(self._type)} AND "
                f"{self.constant(self._type)}"
            ),
            "joined": lambda: (
                f"{other} {self.join()} {self.of_b} ON a.{self._shared} = b.{self._shared} "
                f"WHERE {self._comparison()}"
            ),
            "cells": lambda: f"SELECT a.id, {a} FROM {self.of_a}",
            "array": lambda: f"SELECT array_agg({a}::text ORDER BY a.id) AS c FROM {self.of_a}",
            "nullif": lambda: (
                f"SELECT a.id, nullif({a}, {self.constant(self._type)}) AS c, "
                f"coalesce({a}, {self.constant(self._type)}) AS d FROM {self.of_a}"
            ),
            "case": lambda: (
                f"SELECT a.id, CASE {a} WHEN {self.constant(self._type)} THEN 1 "
                f"WHEN {self.constant(self._type)} THEN 2 END AS c FROM {self.of_a}"
            ),
        }

    def _value(self) -> str:
        return self.random.choice((*SAMPLES[self._type], *WILD.get(self._type, ())))

    def _comparison(self) -> str:
        sign = self.pick(
            "=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"
        )
        return f"{self._a} {sign} {self.constant(self._type)}"

    def _groups(self) -> dict[str, Form]:
        a, b = self._a, self._b
        # Which of several equal values a group shows is not determined: groups are counted.
        outside = "SELECT n, count(*) AS groups FROM"
        shown = {c.name for c in self.first.columns if c.type in _ONE_EXTREME or c.name == "id"}
        key = self._grouped if self._grouped.removeprefix("a.") in shown else "a.id"
        sets = ("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
        return {
            "aggregates": lambda: f"SELECT {self._aggregates()} FROM {self._joined()}",
            "aggregates by": lambda: (
                f"SELECT {key} AS k, {self._aggregates()} FROM {self._joined()} GROUP BY 1"
            ),
            "groups": lambda: (
                f"{outside} (SELECT {a}, count(*) AS n FROM {self.of_a} GROUP BY {a}) AS q "
                "GROUP BY n"
            ),
            "groups of a join": lambda: (
                f"{outside} (SELECT {a}, count(*) AS n FROM {self._joined()} GROUP BY {a}) AS q "
                "GROUP BY n"
            ),
            "distinct": lambda: (
                f"SELECT count(*) AS n FROM (SELECT DISTINCT {a} FROM {self.of_a}) AS q"
            ),
            "set": lambda: (
                f"SELECT count(*) AS n FROM (SELECT {a} FROM {self.of_a} {self.pick(*sets)} "
                f"SELECT {b} FROM {self.of_b}) AS q"
            ),
        }

    def _aggregates(self) -> str:
        return (
            f"count(*) AS n, {self._aggregate(self._a, self._type)} AS c, "
            f"{self._aggregate(self._b, self._other_type)} AS d"
        )

    def _aggregate(self, column: str, type_: str) -> str:
        forms = ["count({})", "count(DISTINCT {})"]
        if type_ in _ONE_EXTREME:
            forms += ["min({})", "max({})"]
        if type_ in _SUMMED:
            forms += ["sum({})", "avg({})", "sum(DISTINCT {})"]
        return self.pick(*forms).format(column)

    def _sorted(self) -> dict[str, Form]:
        a = self._a
        order = f"{a} {self.pick('', 'DESC', 'NULLS FIRST')}, a.id"
        return {
            "order": lambda: (
                f"SELECT a.id FROM {self.of_a} ORDER BY {order}"
                f"{self.pick('', ' LIMIT 3', ' OFFSET 2')}"
            ),
            "order of a join": lambda: (
                f"SELECT a.id, b.id AS other FROM {self.of_a} {self.pick('JOIN', 'LEFT JOIN')} "
                f"{self.of_b} ON a.{self._shared} = b.{self._shared} ORDER BY {order}, b.id LIMIT 4"
            ),
            "ranked": lambda: (
                f"SELECT a.id, rank() OVER (ORDER BY {a}) AS n, count(*) OVER (PARTITION BY {a}) "
                f"AS c FROM {self.of_a}"
            ),
            "first of each": lambda: (
                f"SELECT DISTINCT ON ({a}) a.id FROM {self.of_a} ORDER BY {a}, a.id"
            ),
        }


def _has(table: Table, type_: str) -> bool:
    return any(column.type == type_ for column in table.columns)
