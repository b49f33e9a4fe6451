"""Random statements over a world's tables, of the shapes the rule table tells apart.

What a statement answers is always determined by its rows: LIMIT stands above an ORDER BY of every
output, DISTINCT ON and order-dependent windows sort by everything, and nothing is computed whose
value depends on the order of the rows. Expressions that could fail on some row (division by a
column, arithmetic over extreme values, a subquery of several rows as a value) are not written:
an owner that is asked for fewer rows may hide such an error (R38).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from oar_bench.fuzz.world import POOLS, WILD, World, quote

MODES: Final = ("simple", "parameters", "prepared", "cursor", "execute", "copy", "table as")
_MODE_WEIGHTS: Final = (46, 14, 12, 12, 6, 5, 5)

_CASTS: Final = {
    "int": "bigint",
    "text": "text",
    "num": "numeric",
    "date": "date",
    "bool": "boolean",
    "float": "double precision",
    "stamp": "timestamp",
    "uuid": "uuid",
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
_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Col:
    """A column in scope: how to write it, and what may be done with it."""

    ref: str
    family: str
    tame: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A query's text and its output columns, whose ``ref`` are their names."""

    sql: str
    columns: tuple[Col, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A statement, how it is sent, and what is known of its answer.

    ``arguments`` are one list of parameters an execution. ``ordered``: rows come in this order.
    ``loose``: sums of floats may differ in their last digits.
    """

    sql: str
    mode: str
    tables: frozenset[str]
    arguments: tuple[tuple[str | None, ...], ...] = ((),)
    ordered: bool = False
    loose: bool = False


@dataclass
class _From:
    """A FROM clause as it grows: its text, the columns it offers, whole rows that may be named."""

    sql: str
    columns: list[Col]
    rows: list[str] = field(default_factory=list)
    keyed: list[tuple[str, list[Col]]] = field(default_factory=list)
    """Primary keys, each with the columns it determines."""
    where: tuple[str, ...] = ()
    """Conditions that belong to joins written with a comma."""


def random_case(random: Random, world: World) -> Case:
    """Draw a statement over the world's tables."""
    (mode,) = random.choices(MODES, _MODE_WEIGHTS)
    if mode == "copy" and "extra_float_digits" in world.settings:
        mode = "simple"  # COPY is refused there: literals would lose digits
    while True:
        writer = _Writer(random, world, parameters=mode in ("parameters", "prepared", "execute"))
        sql, ordered = writer.statement()
        if writer.tables:
            break
    sql, families = _renumbered(sql, writer.parameters)
    runs = 2 if mode in ("prepared", "execute") else 1
    arguments = tuple(tuple(map(writer.value, families)) for _ in range(runs))
    return Case(
        sql=sql,
        mode=mode,
        tables=frozenset(writer.tables),
        arguments=arguments,
        ordered=ordered,
        loose=writer.loose,
    )


def _renumbered(sql: str, families: Sequence[str]) -> tuple[str, list[str]]:
    """Number the parameters from 1: some were drawn for a part that was not written after all."""
    used = sorted({int(number) for number in _PARAMETER.findall(sql)})
    places = {number: place for place, number in enumerate(used, start=1)}
    text = _PARAMETER.sub(lambda match: f"${places[int(match[1])]}", sql)
    return text, [families[number - 1] for number in used]


class _Writer:
    def __init__(self, random: Random, world: World, *, parameters: bool) -> None:
        self.random = random
        self.world = world
        self.with_parameters = parameters
        self.parameters: list[str] = []
        self.tables: set[str] = set()
        self.loose = False
        self._relations = MAX_RELATIONS
        self._aliases = 0
        self._names: set[str] = set()
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

    # --- the statement --------------------------------------------------------------------------

    def statement(self) -> tuple[str, bool]:
        """Return a statement and whether its rows are in a determined order."""
        depth = self.random.choice((1, 2, 2, 3, 3))
        if self.chance(0.45):
            directed = self._directed()
            if directed is not None:
                return self._top(directed)
        kind = self.pick({"select": 74, "set": 8, "with": 12, "values": 2, "recursive": 4})
        if kind == "with":
            return self._with(depth)
        if kind == "recursive":
            return self._recursive()
        if kind == "values":
            rows = ", ".join(f"({self._scalar([], 1, 'int')}, 'v{n}')" for n in range(2))
            return f"VALUES {rows}", False
        query = self._set_operation(depth, [], None) if kind == "set" else None
        return self._top(query or self._select(depth, [], None, top=True))

    def _top(self, query: Query) -> tuple[str, bool]:
        if not query.columns or not self.chance(0.35):
            return query.sql, False
        return f"{query.sql}{self._order(query, 0.5)}", True

    def _order(self, query: Query, limited: float) -> str:
        """ORDER BY every output, so that LIMIT may follow."""
        places = [str(n + 1) for n in range(len(query.columns))]
        self.random.shuffle(places)
        endings = ("", "", " DESC", " ASC NULLS FIRST", " DESC NULLS LAST")
        order = ", ".join(place + self.random.choice(endings) for place in places)
        text = f" ORDER BY {order}"
        if self.chance(limited):
            text += self.random.choice((" LIMIT {n}", " FETCH FIRST {n} ROWS WITH TIES")).format(
                n=self.random.choice((0, 1, 2, 2, 5))
            )
            if "LIMIT" in text and self.chance(0.3):
                text += f" OFFSET {self.random.choice((0, 1, 2))}"
        return text

    def _with(self, depth: int) -> tuple[str, bool]:
        parts = []
        for _ in range(self.random.choice((1, 1, 2))):
            query = self.query(max(depth - 1, 1), [], None)
            name = self.alias("w")
            how = self.random.choice(("", "", "", "MATERIALIZED ", "NOT MATERIALIZED "))
            parts.append(f"{name} AS {how}({query.sql})")
            self._ctes.append((name, query.columns))
        self._relations = max(self._relations, 3)
        main, ordered = self._top(self._select(depth, [], None, top=True))
        return f"WITH {', '.join(parts)} {main}", ordered

    def _recursive(self) -> tuple[str, bool]:
        start, step = self._base(), self._base()
        key = self._of(start.columns, ["int"])
        links = [c for c in step.columns if c.family == "int"]
        if key is None or len(links) < 2:
            return self._top(self._select(2, [], None, top=True))
        near, far = self.random.sample(links, 2)
        name = self.alias("r")
        where = self._where(start, [], 1)
        sql = (
            f"WITH RECURSIVE {name}(k) AS (SELECT {key.ref}::numeric FROM {start.sql}{where} "
            f"UNION SELECT {far.ref}::numeric FROM {step.sql} "
            f"JOIN {name} ON {near.ref} = {name}.k) SELECT k FROM {name}"
        )
        if self.chance(0.4):
            other = self._base()
            column = self._of(other.columns, ["int", "num"])
            if column is not None:
                sql = f"{sql} JOIN {other.sql} ON {column.ref} = {name}.k"
        return sql, False

    # --- one rule at a time -----------------------------------------------------------------------

    def _directed(self) -> Query | None:
        """A join or subquery on one key, of the shapes that decide what may be reduced.

        Everything is selected and little is filtered, so that a row too few is seen.
        """
        left = self._base()
        key = self._of(left.columns, ("int", "int", "text", "date", "num", "bool"))
        if key is None:
            return None
        kind = self.pick({"derived": 40, "subquery": 28, "cte": 12, "tree": 20})
        if kind == "subquery":
            return self._directed_subquery(left, key)
        if kind == "tree":
            return self._directed_tree(left)
        begin = ""
        if kind == "cte":
            name = self.alias("w")
            how = self.random.choice(
                ("", "", "MATERIALIZED ", "NOT MATERIALIZED ", "NOT MATERIALIZED ")
            )
            inner = self._derived(key.family)
            if inner is None:
                return None
            begin = f"WITH {name} AS {how}({inner.sql}) "
            right = self._used_again(name, inner)
        else:
            inner = self._derived(key.family)
            if inner is None:
                return None
            right = self._renamed(inner, self.alias("q"))
        join = self.pick({"JOIN": 40, "LEFT JOIN": 25, "RIGHT JOIN": 20, "FULL JOIN": 15})
        far = next((c for c in right.columns if c.family == key.family), None)
        if far is None:
            return None
        query = self._everything(
            f"{left.sql} {join} {right.sql} ON {key.ref} = {far.ref}",
            left.columns + right.columns,
            self._light_filter(left.columns + right.columns),
        )
        return replace(query, sql=begin + query.sql)

    def _used_again(self, name: str, inner: Query) -> _From:
        """A CTE that is read once or twice, with a condition on one of the uses."""
        first = self.alias("e")
        columns = [replace(c, ref=f"{first}.{c.ref}") for c in inner.columns]
        source = _From(f"{name} AS {first}", columns)
        if self.chance(0.3):
            return source
        if self.chance(0.3):
            test = self._simple_condition(columns)
            key = inner.columns[0].ref
            counted = f"(SELECT count(*) FROM {name} WHERE {first}.{key} IS NULL OR {test})"
            count = Col(counted, "int", True)
            return _From(source.sql, [*columns, count])
        second = self.alias("e")
        others = [replace(c, ref=f"{second}.{c.ref}") for c in inner.columns]
        on = self._simple_condition(others) if self.chance(0.7) else "true"
        how = self.random.choice(("JOIN", "LEFT JOIN"))
        return _From(f"({source.sql} {how} {name} AS {second} ON {on})", columns + others)

    def _everything(self, source: str, columns: Sequence[Col], where: str) -> Query:
        most = list(columns)[:8]
        outputs, listed = self._named(most, bare=False)
        return Query(f"SELECT {listed} FROM {source}{where}", outputs)

    def _light_filter(self, columns: Sequence[Col]) -> str:
        return f" WHERE {self._simple_condition(columns)}" if self.chance(0.4) else ""

    def _derived(self, family: str) -> Query | None:
        """A query over one table whose first output is of the family, seen through an operator."""
        table = self._base()
        key = self._of(table.columns, (family,))
        if key is None:
            return None
        others = [c for c in table.columns if c.ref != key.ref and c.family not in ("uuid", "bool")]
        other = self.random.choice(others) if others else key
        where = self._light_filter(table.columns)
        source = f"{table.sql}{where}"
        k, o = key.ref, other.ref
        extreme = "bool_or" if family == "bool" else self.random.choice(("min", "max"))
        every = ", ".join(c.ref for c in table.columns)
        form = self.pick(
            {"group": 10, "global group": 10, "rollup": 8, "window": 12, "limit": 10,
             "distinct on": 10, "set": 16, "distinct": 4, "having": 4, "join": 12}
        )  # fmt: skip
        one, two = self.alias("c"), self.alias("c")
        outputs = (Col(one, family, False, one), Col(two, "int", False, two))
        if form == "join":
            return self._derived_join(table, key, outputs)
        if form == "set":
            return self._derived_set(table, key, outputs[0])
        texts = {
            "group": f"SELECT {k} AS {one}, count(*) AS {two} FROM {source} GROUP BY {k}",
            "global group": f"SELECT {extreme}({k}) AS {one}, count(*) AS {two} FROM {source}"
            + self.random.choice(("", f" GROUP BY {o}", f" GROUP BY {o}")),
            "rollup": f"SELECT {k} AS {one}, count(*) AS {two} FROM {source} GROUP BY "
            + self.random.choice(
                (f"ROLLUP ({k})", f"CUBE ({k}, {o})", f"GROUPING SETS (({k}), ({o}))")
            ),
            "window": f"SELECT {k} AS {one}, {self._rank(key, other, every)} AS {two} "
            f"FROM {source}",
            "limit": f"SELECT {k} AS {one}, {k} IS NULL AS {two} FROM {source} ORDER BY {k}"
            + self.random.choice(
                (" LIMIT 2", " DESC LIMIT 3", " OFFSET 1", " DESC NULLS LAST LIMIT 2")
            ),
            "distinct on": f"SELECT DISTINCT ON ({self.random.choice((k, o, o))}) {k} AS {one}, "
            f"count(*) OVER (PARTITION BY {k}) AS {two} FROM {source}",
            "distinct": f"SELECT DISTINCT {k} AS {one}, {o} IS NULL AS {two} FROM {source}",
            "having": f"SELECT {k} AS {one}, count(*) AS {two} FROM {source} GROUP BY {k} "
            f"HAVING count(*) > 1",
        }
        text = texts[form]
        if form == "distinct on":
            on = text[text.index("ON (") + 4 : text.index(") ")]
            text = f"SELECT * FROM ({text} ORDER BY {on}, {every}) AS {self.alias('q')}"
        if form in ("limit", "distinct"):
            outputs = (outputs[0], Col(two, "bool", False, two))
        if self.chance(0.15):
            name = self.alias("q")
            text = f"SELECT * FROM ({text}) AS {name} WHERE {one} IS NOT NULL OR {two} IS NULL"
        return Query(text, outputs)

    def _rank(self, key: Col, other: Col, every: str) -> str:
        over = self.random.choice(
            (f"ORDER BY {every}", f"PARTITION BY {key.ref} ORDER BY {every}",
             f"PARTITION BY {other.ref} ORDER BY {every}",
             f"PARTITION BY {key.ref}, {other.ref}", "")
        )  # fmt: skip
        name = "row_number" if "ORDER BY" in over else "count"
        return f"{name}({'' if name == 'row_number' else '*'}) OVER ({over})"

    def _derived_set(self, table: _From, key: Col, output: Col) -> Query | None:
        other = self._base()
        far = self._of(other.columns, (key.family,))
        if far is None:
            return None
        operator = self.random.choice(
            ("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL")
        )
        one = (
            f"SELECT {key.ref} AS {output.ref} FROM {table.sql}{self._light_filter(table.columns)}"
        )
        two = f"SELECT {far.ref} FROM {other.sql}{self._light_filter(other.columns)}"
        return Query(f"{one} {operator} {two}", (output,))

    def _derived_join(self, table: _From, key: Col, outputs: tuple[Col, Col]) -> Query | None:
        other = self._base()
        pair = self._pair(table.columns, other.columns)
        if pair is None:
            return None
        join = self.random.choice(("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        shown = self._of(table.columns + other.columns, (key.family,)) or key
        text = (
            f"SELECT {shown.ref} AS {outputs[0].ref}, {pair[1].ref} IS NULL AS {outputs[1].ref} "
            f"FROM {table.sql} {join} {other.sql} ON {pair[0].ref} = {pair[1].ref}"
        )
        return Query(text, (outputs[0], Col(outputs[1].ref, "bool", False, outputs[1].ref)))

    def _directed_tree(self, left: _From) -> Query | None:
        """Three or four tables, joined on plain columns in any tree."""
        items = [left, *(self._base() for _ in range(self.random.choice((1, 2, 2, 3))))]
        while len(items) > 1:
            place = self.random.randrange(len(items) - 1)
            one, two = items[place], items[place + 1]
            pair = self._pair(one.columns, two.columns)
            join = self.pick({"JOIN": 40, "LEFT JOIN": 30, "RIGHT JOIN": 18, "FULL JOIN": 12})
            if pair is None:
                return None
            on = f"{pair[0].ref} = {pair[1].ref}"
            if self.chance(0.2):
                side = self.random.choice((one, two)).columns
                on += f" AND {self._simple_condition(side)}"
            second = f"({two.sql})" if " ON " in two.sql else two.sql
            merged = _From(f"{one.sql} {join} {second} ON {on}", one.columns + two.columns)
            items[place : place + 2] = [merged]
        columns = list(items[0].columns)
        self.random.shuffle(columns)
        return self._everything(items[0].sql, columns, self._light_filter(columns))

    def _directed_subquery(self, left: _From, key: Col) -> Query | None:
        """A subquery on the key, as a condition or as a value."""
        inner = self._base()
        far = self._of(inner.columns, (key.family,))
        if far is None:
            return None
        also = f" AND {self._simple_condition(inner.columns)}" if self.chance(0.4) else ""
        some = f" WHERE {self._simple_condition(inner.columns)}" if self.chance(0.5) else ""
        linked = f"FROM {inner.sql} WHERE {far.ref} = {key.ref}{also}"
        condition = self.random.choice(
            (f"EXISTS (SELECT 1 {linked})", f"NOT EXISTS (SELECT 1 {linked})",
             f"NOT EXISTS (SELECT 1 {linked})",
             f"{key.ref} IN (SELECT {far.ref} FROM {inner.sql}{some})",
             f"{key.ref} NOT IN (SELECT {far.ref} FROM {inner.sql}{some})",
             f"{key.ref} = ANY (SELECT {far.ref} FROM {inner.sql}{some})",
             f"{key.ref} >= ALL (SELECT {far.ref} FROM {inner.sql}{some})",
             f"EXISTS (SELECT 1 {linked} OFFSET 1)",
             f"(SELECT count(*) {linked}) < 2",
             f"(SELECT count(*) FROM {inner.sql}{some}) > 2")
        )  # fmt: skip
        columns = list(left.columns)
        place = self.pick({"where": 45, "value": 25, "or": 15, "case": 8, "not": 7})
        where = ""
        if place == "value":
            columns.insert(0, Col(f"({condition})", "bool", True))
        elif place == "case":
            test = self._simple_condition(left.columns)
            where = f" WHERE CASE WHEN {test} THEN {condition} ELSE true END"
        else:
            where = (
                " WHERE "
                + {
                    "where": condition,
                    "or": f"({self._simple_condition(left.columns)} OR {condition})",
                    "not": f"NOT ({condition})",
                }[place]
            )
        if self.chance(0.3):
            extra = f"(SELECT count(*) FROM {inner.sql} WHERE {far.ref} = {key.ref})"
            columns.insert(0, Col(extra, "int", True))
        source = left.sql
        if self.chance(0.3):
            other = self._base()
            pair = self._pair(left.columns, other.columns)
            if pair is not None:
                join = self.random.choice(("JOIN", "LEFT JOIN"))
                source += f" {join} {other.sql} ON {pair[0].ref} = {pair[1].ref}"
                columns += other.columns
        return self._everything(source, columns, where)

    # --- queries --------------------------------------------------------------------------------

    def query(self, depth: int, outer: Sequence[Col], want: Sequence[str] | None) -> Query:
        """Write a query for use inside another; ``want`` are the families of its outputs."""
        if depth > 1 and self._relations >= 2 and self.chance(0.14):
            query = self._set_operation(depth, outer, want)
        else:
            query = self._select(depth, outer, want, top=False)
        if self.chance(0.12):
            return replace(query, sql=f"{query.sql}{self._order(query, 0.8)}")
        return query

    def _set_operation(self, depth: int, outer: Sequence[Col], want: Sequence[str] | None) -> Query:
        first = self._select(depth - 1, outer, want, top=False)
        families = [column.family for column in first.columns]
        parts, columns = [f"({first.sql})"], list(first.columns)
        for _ in range(self.random.choice((1, 1, 1, 2))):
            other = self._select(depth - 1, outer, families, top=False)
            operator = self.random.choice(
                ("UNION", "UNION ALL", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL",
                 "INTERSECT ALL")
            )  # fmt: skip
            text = f"({other.sql}{self._order(other, 1.0)})" if self.chance(0.1) else other.sql
            if text is other.sql and self.chance(0.5):
                text = f"({text})"
            parts += [operator, text]
            columns = [
                replace(one, tame=one.tame and two.tame)
                for one, two in zip(columns, other.columns, strict=True)
            ]
        if " ORDER BY " in parts[-1] and not parts[-1].startswith("("):
            parts[-1] = f"({parts[-1]})"
        return Query(" ".join(parts), tuple(columns))

    def _select(
        self, depth: int, outer: Sequence[Col], want: Sequence[str] | None, *, top: bool
    ) -> Query:
        source = self._from(depth, outer, 3 if top else 2)
        kind = self.pick({"plain": 52, "group": 26, "distinct": 7, "distinct on": 5, "window": 10})
        where = self._where(source, outer, depth)
        if kind == "group":
            return self._grouped(source, where, outer, want, depth)
        targets = self._targets(source, outer, want, depth, rows=kind == "plain")
        if kind == "window":
            place = self.random.randrange(len(targets))
            windowed = self._window(source, targets[place].family if want else None)
            if windowed is not None:
                targets[place] = windowed
        begin = "SELECT "
        if kind == "distinct":
            begin = "SELECT DISTINCT "
        columns, listed = self._named(targets, bare=top and self.chance(0.2))
        if kind == "distinct on":
            on = self.random.choice(targets)
            if self.chance(0.7) and source.columns:
                on = self.random.choice(source.columns)
            order = ", ".join([on.ref, *(target.ref for target in targets)])
            sql = (
                f"SELECT DISTINCT ON ({on.ref}) {listed} FROM {source.sql}{where} ORDER BY {order}"
            )
            if top:
                sql = f"SELECT * FROM ({sql}) AS {self.alias('q')}"
                return Query(sql, columns)
            name = self.alias("q")
            return Query(f"SELECT * FROM ({sql}) AS {name}", columns)
        if top and kind == "plain" and want is None and self.chance(0.08):
            sql = f"SELECT * FROM {source.sql}{where}"
            # USING and NATURAL merge columns: how many there are is not known here.
            return Query(sql, ())
        return Query(f"{begin}{listed} FROM {source.sql}{where}", columns)

    def _named(self, targets: Sequence[Col], *, bare: bool) -> tuple[tuple[Col, ...], str]:
        if bare:
            return tuple(targets), ", ".join(target.ref for target in targets)
        names = [self.alias("c") for _ in targets]
        columns = tuple(
            Col(name, target.family, target.tame, name)
            for name, target in zip(names, targets, strict=True)
        )
        return columns, ", ".join(f"{t.ref} AS {n}" for t, n in zip(targets, names, strict=True))

    def _targets(
        self,
        source: _From,
        outer: Sequence[Col],
        want: Sequence[str] | None,
        depth: int,
        *,
        rows: bool,
    ) -> list[Col]:
        if want is not None:
            return [self._expression(source.columns, family, depth, outer) for family in want]
        targets = []
        for _ in range(self.random.choice((1, 2, 2, 3, 4))):
            if rows and source.rows and self.chance(0.05):
                row = self.random.choice(source.rows)
                form = self.random.choice(("{r} IS NULL", "to_jsonb({r})::text", "{r}::text"))
                family = "bool" if "IS NULL" in form else "text"
                targets.append(Col(f"({form.format(r=row)})", family, False))
                continue
            families = [column.family for column in source.columns] or ["int"]
            family = self.random.choice(families)
            if self.chance(0.2):
                condition = self._condition(source.columns, outer, depth)
                targets.append(Col(f"({condition})", "bool", True))
            else:
                targets.append(self._expression(source.columns, family, depth, outer))
        return targets

    def _where(self, source: _From, outer: Sequence[Col], depth: int) -> str:
        conditions = list(source.where)
        conditions += [
            self._condition(source.columns, outer, depth)
            for _ in range(self.random.choice((0, 0, 0, 1, 1, 1, 2, 3)))
        ]
        inner = [c for c in source.columns if c.family in ("int", "text", "num", "date")]
        if outer and inner and self.chance(0.65):
            near = self.random.choice(inner)
            far = self._matching(near, outer)
            if far is not None:
                sign = "=" if self.chance(0.8) else self._comparator()
                conditions.append(f"{near.ref} {sign} {far.ref}")
        return f" WHERE {AND.join(conditions)}" if conditions else ""

    # --- groups and windows -----------------------------------------------------------------------

    def _grouped(
        self,
        source: _From,
        where: str,
        outer: Sequence[Col],
        want: Sequence[str] | None,
        depth: int,
    ) -> Query:
        keys: list[Col] = []
        usable = source.columns
        if usable:
            keys = self.random.sample(usable, min(len(usable), self.random.choice((0, 1, 1, 1, 2))))
        if depth > 1 and self._relations > 0 and self.chance(0.08):
            # Written twice, and one expression all the same.
            test = self._subquery_condition(usable, outer, depth)
            keys.append(Col(f"({test})", "bool", True))
        determined: list[Col] = []
        if source.keyed and self.chance(0.15):
            key, determined = self.random.choice(source.keyed)
            keys = [Col(key, "int", True)]
        families = list(want) if want is not None else []
        targets: list[Col] = []
        if want is None:
            targets += [key for key in keys if self.chance(0.8)]
            if determined:
                targets.append(self.random.choice(determined))
            targets += [
                self._aggregate(source.columns, None) for _ in range(self.random.choice((1, 1, 2)))
            ]
        for family in families:
            held = [key for key in keys if key.family == family]
            if held and self.chance(0.7):
                targets.append(self.random.choice(held))
            else:
                targets.append(self._aggregate(source.columns, family))
        columns, listed = self._named(targets, bare=False)
        # A key in grouping sets does not determine its row (the hub's view has no key).
        group = f" GROUP BY {keys[0].ref}" if determined else self._group_by(keys)
        having = ""
        if self.chance(0.25):
            counted = self._aggregate(source.columns, "int")
            having = f" HAVING {counted.ref} {self._comparator()} {self.random.choice((0, 1, 2))}"
            if keys and self.chance(0.3):
                having += f" AND {self._condition(keys, outer, 1 if depth < 2 else 2)}"
        return Query(f"SELECT {listed} FROM {source.sql}{where}{group}{having}", columns)

    def _group_by(self, keys: Sequence[Col]) -> str:
        if not keys:
            return self.random.choice(("", "", "", " GROUP BY ()"))
        listed = ", ".join(key.ref for key in keys)
        form = self.pick({"plain": 80, "rollup": 8, "cube": 5, "sets": 7})
        if form == "rollup":
            return f" GROUP BY ROLLUP ({listed})"
        if form == "cube":
            return f" GROUP BY CUBE ({listed})"
        if form == "sets":
            last = self.random.choice((", ()", f", ({keys[0].ref})"))
            return f" GROUP BY GROUPING SETS (({listed}){last})"
        return f" GROUP BY {listed}"

    def _aggregate(self, columns: Sequence[Col], family: str | None) -> Col:
        held = [c for c in columns if family in (None, c.family)]
        column = self.random.choice(held) if held else None
        if column is None or column.family in ("uuid",):
            if family in (None, "int"):
                return Col("count(*)", "int", True)
            return self._literal(family or "int", min_of=True)
        forms = self._aggregate_forms(column, family)
        form = self.random.choice(forms)
        filtered = ""
        if self.chance(0.2):
            filtered = f" FILTER (WHERE {self._simple_condition(columns)})"
        distinct = "DISTINCT " if "{d}" in form and self.chance(0.25) else ""
        text = form.format(d=distinct, c=column.ref) + filtered
        if "sum" in form and column.family == "int" and family == "int":
            text = f"({text})::bigint"
        if form.startswith(("sum", "avg")) and column.family == "float":
            self.loose = True
        result = column.family
        if form.startswith("count"):
            result = "int"
        elif (form.startswith("avg") and column.family == "int") or (
            form.startswith("sum") and family is None and column.family == "int"
        ):
            result = "num"
        elif form.startswith("string_agg"):
            result = "text"
        return Col(text, result, column.tame or result in ("bool",) or form.startswith("count"))

    @staticmethod
    def _aggregate_forms(column: Col, family: str | None) -> list[str]:
        forms: list[str] = []
        if column.family == "bool":
            forms = ["bool_and({c})", "bool_or({c})", "every({c})"]
        else:
            forms = ["min({c})", "max({c})"]
        if column.family in ("int", "num", "float") and column.tame:
            forms.append("sum({d}{c})")
            if family != "int" or column.family != "int":
                forms.append("avg({c})")
        if column.family == "text":
            forms.append("string_agg({c}, '|' ORDER BY {c})")
        if family is None or (family == "int" and column.family == "int"):
            forms += ["count({d}{c})", "count(*)"]
        return forms

    def _window(self, source: _From, family: str | None) -> Col | None:
        if not source.columns:
            return None
        partition = self.random.sample(
            source.columns, min(len(source.columns), self.random.choice((0, 1, 1, 2)))
        )
        split = f"PARTITION BY {', '.join(c.ref for c in partition)} " if partition else ""
        everything = list(source.columns)
        self.random.shuffle(everything)
        total = f"ORDER BY {', '.join(c.ref for c in everything)}"
        some = f"ORDER BY {self.random.choice(everything).ref}{self.random.choice(('', ' DESC'))}"
        held = [c for c in source.columns if family in (None, c.family) and c.family != "uuid"]
        forms: list[tuple[str, str, bool]] = []
        if family in (None, "int"):
            forms += [
                (f"row_number() OVER ({split}{total})", "int", True),
                (f"rank() OVER ({split}{some})", "int", True),
                (f"dense_rank() OVER ({split}{some})", "int", True),
                (f"count(*) OVER ({split}{self.random.choice(('', some))})", "int", True),
                (f"ntile(3) OVER ({split}{total})", "int", True),
            ]
        if held:
            column = self.random.choice(held)
            name = self.random.choice(("lag", "lead", "first_value", "last_value"))
            forms.append(
                (f"{name}({column.ref}) OVER ({split}{total})", column.family, column.tame)
            )
            if column.family != "bool":
                text = f"max({column.ref}) OVER ({split}{self.random.choice(('', some))})"
                forms.append((text, column.family, column.tame))
            if family is None and column.tame and column.family in ("int", "num"):
                forms.append((f"sum({column.ref}) OVER ({split}{some})", "num", True))
        if not forms:
            return None
        text, result, tame = self.random.choice(forms)
        if result == "int" and not text.startswith(("lag", "lead", "first", "last", "max")):
            text = f"({text})::bigint"
        return Col(text, result, tame)

    # --- FROM ---------------------------------------------------------------------------------

    def _from(self, depth: int, outer: Sequence[Col], most: int) -> _From:
        count = self.random.choice((1, 1, 2, 2, 2, 3)[: 6 if most >= 3 else 5])
        source = self._item(depth, outer)
        for number in range(min(count, most) - 1, 0, -1):
            if self._relations <= 0:
                break
            if number == 1 and self.chance(0.12):
                return self._listed(source, self._item(depth, outer))
            source = self._join(source, depth, outer)
        return source

    def _listed(self, left: _From, right: _From) -> _From:
        """Two items with a comma between, and mostly a condition that equates them."""
        pair = self._pair(left.columns, right.columns) if self.chance(0.85) else None
        where = () if pair is None else (f"{pair[0].ref} = {pair[1].ref}",)
        columns = left.columns + right.columns
        rows, keyed = left.rows + right.rows, left.keyed + right.keyed
        return _From(f"{left.sql}, {right.sql}", columns, rows, keyed, where)

    def _join(self, left: _From, depth: int, outer: Sequence[Col]) -> _From:
        if depth > 1 and self.chance(0.12):
            return self._lateral(left, depth)
        right = self._item(depth, outer)
        if self._relations > 0 and self.chance(0.15):
            inner = self._join_with(right, self._item(depth, outer), depth)
            right = replace(inner, sql=f"({inner.sql})")
        return self._join_with(left, right, depth)

    def _join_with(self, left: _From, right: _From, depth: int) -> _From:
        kind = self.pick(
            {"JOIN": 44, "LEFT JOIN": 26, "RIGHT JOIN": 10, "FULL JOIN": 10, "CROSS JOIN": 4}
        )
        rows, keyed = left.rows + right.rows, left.keyed + right.keyed
        columns = left.columns + right.columns
        if kind == "CROSS JOIN":
            return _From(f"{left.sql} CROSS JOIN {right.sql}", columns, rows, keyed)
        shared = self._shared_names(left, right)
        if shared and self.chance(0.22):
            chosen = self.random.sample(shared, self.random.choice((1, min(2, len(shared)))))
            listed = ", ".join(f'"{name}"' for name in chosen)
            sql = f"{left.sql} {kind} {right.sql} USING ({listed})"
            merged = [
                Col(f'"{name}"', column.family, False)
                for name in chosen
                for column in left.columns
                if column.name == name
            ]
            return _From(sql, merged + columns, rows, keyed)
        if shared and left.sql.count(" ") <= 3 and self.chance(0.06):
            return _From(f"{left.sql} NATURAL {kind} {right.sql}", columns, rows, keyed)
        on = self._on(left, right, depth, full=kind == "FULL JOIN")
        return _From(f"{left.sql} {kind} {right.sql} ON {on}", columns, rows, keyed)

    @staticmethod
    def _shared_names(left: _From, right: _From) -> list[str]:
        """Names that stand once on each side, with families that compare."""
        ours = [column.name for column in left.columns if column.name]
        theirs = [column.name for column in right.columns if column.name]
        return [name for name in dict.fromkeys(ours)
                if ours.count(name) == 1 and theirs.count(name) == 1]  # fmt: skip

    def _on(self, left: _From, right: _From, depth: int, *, full: bool) -> str:
        pair = self._pair(left.columns, right.columns)
        if pair is None:
            return "true" if not full else "1 = 1"
        near, far = pair
        equal = f"{near.ref} = {far.ref}"
        if full:
            kind = self.pick({"equal": 70, "two": 15, "filter": 15})
        else:
            kind = self.pick(
                {"equal": 50, "two": 9, "filter": 14, "or": 6, "expression": 6, "null-safe": 6,
                 "order": 5, "subquery": 2, "true": 2}
            )  # fmt: skip
        if kind == "two":
            other = self._pair(left.columns, right.columns) or pair
            return f"{equal} AND {other[0].ref} = {other[1].ref}"
        if kind == "filter":
            side = self.random.choice((left, right)).columns
            return f"{equal} AND {self._simple_condition(side)}"
        if kind == "or":
            return f"{equal} OR {self._simple_condition(left.columns + right.columns)}"
        if kind == "expression":
            return f"{near.ref} = {self._variant(far)}"
        if kind == "null-safe":
            return f"{near.ref} IS NOT DISTINCT FROM {far.ref}"
        if kind == "order":
            extra = f" AND {equal}" if self.chance(0.3) else ""
            return f"{near.ref} {self._comparator()} {far.ref}{extra}"
        if kind == "subquery" and depth > 1:
            columns = left.columns + right.columns
            return f"{equal} AND {self._condition(columns, (), depth)}"
        return "true" if kind == "true" else equal

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

    def _lateral(self, left: _From, depth: int) -> _From:
        query = self.query(depth - 1, left.columns, None)
        name = self.alias("l")
        right = self._renamed(query, name)
        if self.chance(0.5):
            sql = f"{left.sql} LEFT JOIN LATERAL {right.sql} ON true"
        else:
            sql = f"{left.sql} CROSS JOIN LATERAL {right.sql}"
        return _From(sql, left.columns + right.columns, left.rows + right.rows, left.keyed)

    def _item(self, depth: int, outer: Sequence[Col]) -> _From:
        kind = self.pick({"base": 70, "derived": 24 if depth > 1 else 0, "values": 3,
                          "cte": 60 if self._ctes else 0})  # fmt: skip
        if kind == "derived" and self._relations > 0:
            query = self.query(depth - 1, outer if self.chance(0.3) else (), None)
            return self._renamed(query, self.alias("q"))
        if kind == "cte" or (self._relations <= 0 and self._ctes):
            name, columns = self.random.choice(self._ctes)
            alias = self.alias("e")
            held = [replace(c, ref=f"{alias}.{c.ref}", name=c.ref) for c in columns]
            return _From(f"{name} AS {alias}", held)
        if kind == "values" or self._relations <= 0:
            alias = self.alias("v")
            rows = ", ".join(
                f"({self.random.choice(POOLS['int'])}, {quote(self.random.choice(POOLS['text']))})"
                for _ in range(self.random.choice((1, 3)))
            )
            columns = (Col(f"{alias}.k", "int", True, "k"), Col(f"{alias}.s", "text", True, "s"))
            return _From(f"(VALUES {rows}) AS {alias}(k, s)", list(columns))
        return self._base()

    def _renamed(self, query: Query, name: str) -> _From:
        """Put a query in FROM, with names its columns share with tables now and then."""
        names = [column.ref for column in query.columns]
        listed = ""
        if self.chance(0.3):
            fresh = [self.random.choice(("k", "s", "n", "z")) for _ in names]
            if len(set(fresh)) == len(fresh):
                matching = {"k": "int", "n": "int", "s": "text"}
                fits = all(matching.get(f, c.family) == c.family
                           for f, c in zip(fresh, query.columns, strict=True))  # fmt: skip
                if fits:
                    names, listed = fresh, f"({', '.join(fresh)})"
        columns = [
            Col(f"{name}.{new}", column.family, column.tame, new)
            for new, column in zip(names, query.columns, strict=True)
        ]
        return _From(f"({query.sql}) AS {name}{listed}", columns)

    def _base(self) -> _From:
        self._relations -= 1
        table = self.random.choice(self.world.tables)
        self.tables.add(table.name)
        name, written = self.alias("a"), f'"{table.name}"'
        if self.chance(0.1):
            written = f'"{self.world.name}".{written}'
        sql = f"{written} AS {name}"
        if table.name not in self._names and self.chance(0.2):
            name, sql = f'"{table.name}"', written
        self._names.add(table.name)
        columns = [Col(f'{name}."{c.name}"', c.family, c.tame, c.name) for c in table.columns]
        keyed = [(f"{name}.id", columns)] if table.primary_key else []
        return _From(sql, columns, [name], keyed)

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
        column = self.random.choice(columns)
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
            scalar = self._scalar(seen, depth - 1, column.family)
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
            return Col(self._scalar([*columns, *outer], depth - 1, family), family, False)
        return column

    def _scalar(self, outer: Sequence[Col], depth: int, family: str) -> str:
        """A subquery of one row at most."""
        if family != "uuid" and self.chance(0.7):
            source = self._from(max(depth, 1), outer, 2)
            where = self._where(source, outer, max(depth, 1))
            result = self._aggregate(source.columns, family)
            return f"(SELECT {result.ref} FROM {source.sql}{where})"
        query = self._select(max(depth, 1), outer, [family], top=False)
        return f"({query.sql} ORDER BY 1 LIMIT 1)"

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
        return self.random.choice(("=", "=", "=", "<", ">", "<=", ">=", "<>"))

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
