"""Statements that put one rule at a time to the test.

Everything is selected and little is filtered, so that a row too few is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oar_bench.fuzz.expressions import Col, From, Query
from oar_bench.fuzz.queries import QueryWriter


class DirectedWriter(QueryWriter):
    """Writes a join or a subquery on one key, of the shapes that decide what may be reduced."""

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
            f"{left.sql} {join} {right.sql} ON {self._equal(key, far, join)}",
            left.columns + right.columns,
            self._light_filter(left.columns + right.columns),
        )
        return replace(query, sql=begin + query.sql)

    def _used_again(self, name: str, inner: Query) -> From:
        """A CTE that is read once or twice, with a condition on one of the uses."""
        first = self.alias("e")
        columns = [replace(c, ref=f"{first}.{c.ref}") for c in inner.columns]
        source = From(f"{name} AS {first}", columns)
        if self.chance(0.3):
            return source
        if self.chance(0.3):
            test = self._simple_condition(columns)
            key = inner.columns[0].ref
            counted = f"(SELECT count(*) FROM {name} WHERE {first}.{key} IS NULL OR {test})"
            count = Col(counted, "int", True)
            return From(source.sql, [*columns, count])
        second = self.alias("e")
        others = [replace(c, ref=f"{second}.{c.ref}") for c in inner.columns]
        on = self._simple_condition(others) if self.chance(0.7) else "true"
        how = self.random.choice(("JOIN", "LEFT JOIN"))
        return From(f"({source.sql} {how} {name} AS {second} ON {on})", columns + others)

    def _equal(self, near: Col, far: Col, join: str) -> str:
        """Equality, now and then one that NULLs have as well (R12); no FULL JOIN takes that."""
        safe = join != "FULL JOIN" and self.chance(0.08)
        return f"{near.ref} {'IS NOT DISTINCT FROM' if safe else '='} {far.ref}"

    def _everything(self, source: str, columns: Sequence[Col], where: str) -> Query:
        most = list(columns)[:8]
        outputs, listed = self._named(most, bare=False)
        return Query(f"SELECT {listed} FROM {source}{where}", outputs)

    def _light_filter(self, columns: Sequence[Col]) -> str:
        return f" WHERE {self._simple_condition(columns)}" if self.chance(0.4) else ""

    def _derived(self, family: str, form: str | None = None) -> Query | None:
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
        form = form or self.pick(
            {"group": 10, "global group": 12, "rollup": 8, "window": 22, "limit": 20,
             "distinct on": 16, "set": 14, "distinct": 4, "having": 4, "join": 10}
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

    def _derived_set(self, table: From, key: Col, output: Col) -> Query | None:
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

    def _derived_join(self, table: From, key: Col, outputs: tuple[Col, Col]) -> Query | None:
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

    def _directed_tree(self, left: From) -> Query | None:
        """Three or four tables, joined on plain columns in any tree."""
        tree = self._tree([left, *(self._base() for _ in range(self.random.choice((1, 2, 2, 3))))])
        if tree is None:
            return None
        columns = list(tree.columns)
        self.random.shuffle(columns)
        return self._everything(tree.sql, columns, self._light_filter(columns))

    def _tree(self, items: list[From]) -> From | None:
        """Join items on plain columns in any tree; None where two of them share no family."""
        while len(items) > 1:
            place = self.random.randrange(len(items) - 1)
            one, two = items[place], items[place + 1]
            pair = self._pair(one.columns, two.columns)
            join = self.pick({"JOIN": 40, "LEFT JOIN": 30, "RIGHT JOIN": 18, "FULL JOIN": 12})
            if pair is None:
                return None
            on = self._equal(*pair, join)
            if self.chance(0.2):
                side = self.random.choice((one, two)).columns
                on += f" AND {self._simple_condition(side)}"
            second = f"({two.sql})" if " ON " in two.sql else two.sql
            merged = From(f"{one.sql} {join} {second} ON {on}", one.columns + two.columns)
            merged.joined = [*one.joined, *two.joined, *pair]
            items[place : place + 2] = [merged]
        return items[0]

    def _directed_subquery(self, left: From, key: Col) -> Query | None:
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
