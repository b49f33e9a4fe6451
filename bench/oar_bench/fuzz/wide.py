"""Statements over several owners, of the shapes for which an owner may do more than scan.

Aggregates over joins of owners' tables, subqueries that one owner could answer by itself, several
tables of one owner in a wider join, CTEs written out twice, and the first rows of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oar_bench.fuzz.directed import DirectedWriter
from oar_bench.fuzz.expressions import AND, Col, From, Query
from oar_bench.fuzz.world import Table

_NUMBERS = ("int", "num", "float")


class WideWriter(DirectedWriter):
    """Writes statements that need two owners or more, where the world has tables for them."""

    def wide(self) -> Query | None:
        """Write one; None where nothing fits."""
        kind = self.pick(
            {
                "counted": 34,
                "leaves": 12,
                "unit": 26,
                "local": 14,
                "twice": 18,
                "first": 16,
                "text": 8,
            }
        )
        if kind == "counted":
            return self._counted_within()
        if kind == "leaves":
            return self._over_leaves()
        if kind == "unit":
            return self._unit()
        if kind == "local":
            return self._local()
        if kind == "text":
            return self._by_text()
        return self._twice() if kind == "twice" else self._first_rows()

    # --- choosing tables --------------------------------------------------------------------------

    def _of_one_owner(self) -> dict[str, list[Table]]:
        """Tables that one owner holds alone, by owner."""
        found: dict[str, list[Table]] = {}
        for table in self.world.tables:
            if len(table.held) == 1:
                found.setdefault(next(iter(table.held)), []).append(table)
        return found

    def _elsewhere(self, table: Table) -> list[Table]:
        """Tables that another owner has a part in."""
        return [other for other in self.world.tables if set(other.held) - set(table.held)]

    def _several(self, count: int) -> list[Table]:
        """Tables of two owners at least, where there are any."""
        first = self.random.choice(self.world.tables)
        others = self._elsewhere(first) or list(self.world.tables)
        rest = [self.random.choice(self.world.tables) for _ in range(count - 2)]
        chosen = [first, self.random.choice(others), *rest]
        self.random.shuffle(chosen)
        return chosen

    # --- aggregates over joins --------------------------------------------------------------------

    def _counted_within(self) -> Query | None:
        """Aggregates over a join, mostly as the statement, else within another query."""
        tables = self._several(self.random.choice((2, 2, 2, 3)))
        query = self._counted(tables)
        if query is None or self.chance(0.75):
            # A fixed number of digits behind the point is kept by every aggregate but avg.
            self.exact = query is not None and all(
                column.type != "numeric" for table in tables for column in table.columns
            )
            return query
        outside = self._base()
        inner = self._renamed(query, self.alias("q"))
        pair = self._pair(outside.columns, inner.columns)
        if pair is None:
            return None
        join = self.random.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN"))
        source = f"{outside.sql} {join} {inner.sql} ON {pair[0].ref} = {pair[1].ref}"
        columns = inner.columns + outside.columns
        return self._everything(source, columns, self._light_filter(columns))

    def _over_leaves(self) -> Query | None:
        """Aggregates of one table that others only filter."""
        table = self.random.choice(self.world.tables)
        target = self._base([table])
        sql, columns, conditions = target.sql, list(target.columns), list[str]()
        for _ in range(self.random.choice((1, 1, 1, 2))):
            leaf = self._base(self._elsewhere(table) or self.world.tables)
            pair = self._pair(columns or target.columns, leaf.columns)
            if pair is None:
                return None
            on, own = [f"{pair[0].ref} = {pair[1].ref}"], list[str]()
            if self.chance(0.7):
                numbers = [column for column in leaf.columns if column.family == "int"]
                own.append(self._simple_condition(numbers if self.chance(0.6) else leaf.columns))
            form = self.pick({"join": 60, "in": 20, "exists": 20})
            if form == "join":
                sql += f" JOIN {leaf.sql} ON {' AND '.join(on + own)}"
            elif form == "exists":
                conditions.append(
                    f"EXISTS (SELECT 1 FROM {leaf.sql} WHERE {' AND '.join(on + own)})"
                )
            else:
                where = f" WHERE {own[0]}" if own else ""
                conditions.append(f"{pair[0].ref} IN (SELECT {pair[1].ref} FROM {leaf.sql}{where})")
            if self.chance(0.9):
                columns = [column for column in columns if column.ref != pair[0].ref]
        return self._aggregated(From(sql, columns or target.columns), conditions)

    def _counted(self, tables: Sequence[Table]) -> Query | None:
        source = self._tree([self._base([table]) for table in tables])
        return None if source is None else self._aggregated(source)

    def _aggregated(self, source: From, conditions: Sequence[str] = ()) -> Query:
        joined = {column.ref for column in source.joined}
        others = [column for column in source.columns if column.ref not in joined]
        grouped = self._some([*source.joined, *source.joined, *others], (0, 1, 1, 1, 2))
        free = [column for column in others if column not in grouped]
        if self.chance(0.2):
            free = source.columns
        targets = [column for column in grouped if self.chance(0.85)]
        for column in self._some(free, (1, 1, 2, 3)):
            targets += self._aggregates_of(column, source)
        if not targets or self.chance(0.3):
            targets.append(Col(f"count(*){self._filtered(source)}", "int", True))
        if self.chance(0.12):
            targets.append(self._near_miss(source))
        if self.chance(0.12):
            total = self.random.choice(("rank() OVER (ORDER BY count(*))", "sum(count(*)) OVER ()"))
            targets.append(Col(total, "num", False))
        outputs, listed = self._named(targets, bare=False)
        usable = grouped if self.chance(0.5) else source.columns
        held = list(conditions)
        if usable and self.chance(0.35):
            held.append(self._simple_condition(usable))
        where = f" WHERE {' AND '.join(f'({each})' for each in held)}" if held else ""
        having = ""
        if self.chance(0.25):
            counted = self.random.choice(targets)
            test = f"{counted.ref} IS NOT NULL" if " OVER " not in counted.ref else "count(*) > 0"
            having = self.random.choice((" HAVING count(*) > 1", f" HAVING {test}"))
        text = f"SELECT {listed} FROM {source.sql}{where}{self._group_by(grouped)}{having}"
        return Query(text, outputs)

    def _some(self, columns: Sequence[Col], counts: Sequence[int]) -> list[Col]:
        different = list({column.ref: column for column in columns}.values())
        return self.random.sample(different, min(len(different), self.random.choice(counts)))

    def _filtered(self, source: From) -> str:
        if not self.chance(0.15):
            return ""
        return f" FILTER (WHERE {self._simple_condition(source.columns)})"

    def _aggregates_of(self, column: Col, source: From) -> list[Col]:
        """Some of the aggregates of one column, each at most once."""
        forms = {"count({c})": "int", "count(DISTINCT {c})": "int"}
        if column.family == "bool":
            forms |= {"bool_and({c})": "bool", "bool_or({c})": "bool"}
        elif column.family != "uuid":
            forms |= {"min({c})": column.family, "max({c})": column.family}
        if column.family in ("int", "num") or (column.family == "float" and column.tame):
            result = "float" if column.family == "float" else "num"
            forms |= dict.fromkeys(("sum({c})", "avg({c})", "sum(DISTINCT {c})"), result)
            self.loose |= column.family == "float"
        chosen = self.random.sample(list(forms), self.random.randint(1, min(5, len(forms))))
        return [
            Col(form.format(c=column.ref) + self._filtered(source), forms[form], False)
            for form in chosen
        ]

    def _near_miss(self, source: From) -> Col:
        """An aggregate of more than a column."""
        column = self.random.choice(source.columns)
        forms = [f"count(coalesce({column.ref}, NULL))", f"count(*) * count({column.ref})",
                 f"max(CASE WHEN {column.ref} IS NULL THEN 1 ELSE 0 END)",
                 f"coalesce(count({column.ref}), 0)"]  # fmt: skip
        if column.family in _NUMBERS and column.tame:
            forms += [f"min({column.ref} + 1)::numeric", f"sum({column.ref} * 2)::numeric"]
            self.loose |= column.family == "float"
        return Col(self.random.choice(forms), "num", False)

    # --- subqueries of one owner ------------------------------------------------------------------

    def _unit(self) -> Query | None:
        """A subquery over one owner's tables, and tables of others around it."""
        owners = self._of_one_owner()
        if not owners:
            return None
        tables = owners[self.random.choice(list(owners))]
        kind = self.pick({"derived": 30, "CTE": 20, "scalar": 14, "IN": 20, "EXISTS": 4,
                          "ARRAY": 12})  # fmt: skip
        family = self.random.choice(("int", "int", "int", "text", "num", "date"))
        if kind in ("derived", "CTE"):
            return self._unit_in_from(tables, family, cte=kind == "CTE")
        left = self._around(tables)
        key = self._of(left.columns, (family,)) or self._of(left.columns, ("int",))
        if key is None:
            return None
        with self._confined_to(tables):
            outer: Sequence[Col] = left.columns if self.chance(0.2) else ()
            inner = self._unit_query(key.family, outer, single=True)
            scalar = self.scalar(outer, 1, key.family)
        condition = {
            "scalar": f"{key.ref} {self._comparator()} {scalar}",
            "IN": f"{key.ref} {self.random.choice(('', '', 'NOT '))}IN ({inner.sql})",
            "EXISTS": f"{self.random.choice(('', 'NOT '))}EXISTS ({inner.sql})",
            "ARRAY": f"{key.ref} = ANY (ARRAY({inner.sql}))",
        }[kind]
        columns = list(left.columns)
        if self.chance(0.35):
            value = scalar if kind == "scalar" else f"({condition})"
            columns.insert(0, Col(value, key.family if kind == "scalar" else "bool", False))
            return self._everything(left.sql, columns, self._light_filter(left.columns))
        if self.chance(0.2):
            condition = f"({condition} OR {self._simple_condition(left.columns)})"
        parts = [condition, *([self._simple_condition(left.columns)] if self.chance(0.3) else [])]
        return self._everything(left.sql, columns, f" WHERE {AND.join(parts)}")

    def _unit_query(self, family: str, outer: Sequence[Col], *, single: bool) -> Query:
        """A query of the owner's whose first output is of the family."""
        if self.chance(0.4) and not outer:
            derived = self._derived(family)
            if derived is not None:
                alias = self.alias("q")
                first = derived.columns[0]
                if not single:
                    return derived
                return Query(
                    f"SELECT {alias}.{first.ref} FROM ({derived.sql}) AS {alias}", (first,)
                )
        want = [family] if single else [family, self.random.choice(("int", "int", "text", "num"))]
        return self.query(self.random.choice((1, 2, 2)), outer, want)

    def _around(self, tables: Sequence[Table]) -> From:
        """One or two tables, of which one is another owner's where there is one."""
        left = self._base(self._elsewhere(tables[0]))
        if self.chance(0.4):
            return self._tree([left, self._base()]) or left
        return left

    def _unit_in_from(self, tables: Sequence[Table], family: str, *, cte: bool) -> Query | None:
        with self._confined_to(tables):
            inner = self._unit_query(family, (), single=False)
        begin = ""
        if cte:
            name = self._cte_name()
            how = self.random.choice(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
            begin = f"WITH {name} AS {how}({inner.sql}) "
            right = self._used_again(name, inner)
        else:
            right = self._renamed(inner, self.alias("q"))
        left = self._around(tables)
        pair = self._pair(left.columns, right.columns)
        if pair is None:
            return None
        join = self.pick({"JOIN": 45, "LEFT JOIN": 25, "RIGHT JOIN": 15, "FULL JOIN": 10})
        source = f"{left.sql} {join} {right.sql} ON {pair[0].ref} = {pair[1].ref}"
        columns = right.columns + left.columns
        query = self._everything(source, columns, self._light_filter(columns))
        return replace(query, sql=begin + query.sql)

    # --- tables of one owner in a wider join ------------------------------------------------------

    def _local(self) -> Query | None:
        """Two tables of one owner and one or two of others, joined in any tree."""
        owners = [tables for tables in self._of_one_owner().values() if len(tables) > 1]
        if not owners:
            return None
        tables = self.random.choice(owners)
        two = self.random.sample(tables, 2) if self.chance(0.85) else [tables[0]] * 2
        others = self._elsewhere(tables[0])
        if not others:
            return None
        count = self.random.choice((1, 1, 2))
        chosen = [*two, *(self.random.choice(others) for _ in range(count))]
        self.random.shuffle(chosen)
        items = [self._base([table]) for table in chosen]
        source = self._tree(list(items))
        if source is None:
            return None
        conditions = [self._simple_condition(item.columns) for item in items if self.chance(0.3)]
        where = f" WHERE {AND.join(conditions)}" if conditions else ""
        columns = list(source.columns)
        self.random.shuffle(columns)
        query = self._everything(source.sql, columns, where)
        if not self.chance(0.2):
            return query
        key = self._of(columns, ("int", "text")) or columns[0]
        return Query(f"SELECT {key.ref} AS c, count(*) AS n FROM {source.sql}{where} "
                     f"GROUP BY {key.ref}",
                     (Col("c", key.family, False, "c"), Col("n", "int", True, "n")))  # fmt: skip

    # --- CTEs that are written out twice ----------------------------------------------------------

    def _twice(self) -> Query | None:
        """A CTE with an operator in it, joined with two tables by its two uses."""
        family = self.random.choice(("int", "int", "text"))
        form = self.pick({"rollup": 34, "group": 14, "window": 12, "limit": 8, "distinct on": 8,
                          "set": 12, "distinct": 6, "join": 10})  # fmt: skip
        inner = self._derived(family, form)
        if inner is None:
            return None
        name = self._cte_name()
        how = self.random.choice(("NOT MATERIALIZED ", "NOT MATERIALIZED ", "", "MATERIALIZED "))
        uses: list[From] = []
        last = len(inner.columns) - 1
        for _ in range(2):
            use = self.alias("e")
            columns = [replace(c, ref=f"{use}.{c.ref}") for c in inner.columns]
            table = self._base()
            near = self._of(table.columns, (family,))
            if near is None:
                return None
            join = self.pick({"JOIN": 50, "LEFT JOIN": 25, "RIGHT JOIN": 25})
            on = f"{near.ref} = {columns[0].ref}"
            if self.chance(0.3):
                on += f" AND {self._simple_condition(table.columns)}"
            sql = f"{table.sql} {join} {name} AS {use} ON {on}"
            uses.append(From(sql, columns + table.columns))
        if self.chance(0.5):
            parts = [
                f"SELECT '{n}' AS part, {use.columns[0].ref} AS c, {use.columns[last].ref} AS d, "
                f"count(*) AS n FROM {use.sql}{self._light_filter(use.columns)} GROUP BY 2, 3"
                for n, use in enumerate(uses)
            ]
            outputs = (
                Col("part", "text", True, "part"), replace(inner.columns[0], ref="c", name="c"),
                replace(inner.columns[-1], ref="d", name="d"), Col("n", "int", True, "n"),
            )  # fmt: skip
            query = Query(" UNION ALL ".join(parts), outputs)
        else:
            one, two = uses
            pair = self._pair(one.columns, two.columns)
            if pair is None:
                return None
            join = self.random.choice(("JOIN", "LEFT JOIN", "FULL JOIN"))
            source = f"{one.sql} {join} ({two.sql}) ON {pair[0].ref} = {pair[1].ref}"
            columns = one.columns + two.columns
            query = self._everything(source, columns, self._light_filter(columns))
        return replace(query, sql=f"WITH {name} AS {how}({inner.sql}) {query.sql}")

    # --- first rows -------------------------------------------------------------------------------

    def _first_rows(self) -> Query | None:
        """The first rows of a join, of all its columns or of one table's."""
        items = [self._base([table]) for table in self._several(self.random.choice((2, 2, 3)))]
        if self.chance(0.65):
            return self._first_kept(items[0], items[1:])
        shown = self.random.choice(items).columns
        source = self._tree(list(items))
        if source is None:
            return None
        columns = shown if self.chance(0.6) else source.columns
        query = self._everything(source.sql, columns, self._light_filter(source.columns))
        return Query(f"{query.sql}{self._order(query, 0.9)}", query.columns, ordered=True)

    def _first_kept(self, first: From, others: Sequence[From]) -> Query | None:
        """The first rows of a table whose rows joins keep, most of the time."""
        source = first.sql
        for other in others if self.chance(0.8) else ():
            pair = self._pair(first.columns, other.columns)
            if pair is None:
                return None
            join = "LEFT JOIN" if self.chance(0.75) else "JOIN"
            source += f" {join} {other.sql} ON {self._equal(*pair, join)}"
            if self.chance(0.2):
                source += f" AND {self._simple_condition(other.columns)}"
        where = self._light_filter(first.columns) if self.chance(0.4) else ""
        query = self._everything(source, first.columns, where)
        return Query(f"{query.sql}{self._order(query, 1.0)}", query.columns, ordered=True)

    # --- order and equality of text ---------------------------------------------------------------

    def _by_text(self) -> Query | None:
        """A query of one owner in which it matters how text is ordered, and what is equal."""
        owners = [tables for tables in self._of_one_owner().values() if _has_text(tables)]
        if not owners:
            return None
        tables = self.random.choice(owners)
        source = self._base([table for table in tables if _has_text([table])])
        if self.chance(0.3):
            source = self._tree([source, self._base(tables)]) or source
        text = self._of(source.columns, ("text",))
        if text is None:
            return None
        other = self.random.choice(source.columns)
        number, kept = self.alias("c"), self.alias("c")
        outputs = (Col(kept, "text", False, kept), Col(number, "int", True, number))
        where = f" WHERE {self._simple_condition([text])}" if self.chance(0.5) else ""
        least = self.random.choice(("min", "max"))
        forms = (
            f"SELECT {least}({text.ref}) AS {kept}, count(*) AS {number} FROM {source.sql}{where}"
            + self.random.choice(("", f" GROUP BY {other.ref}")),
            f"SELECT {text.ref} AS {kept}, count(*) AS {number} FROM {source.sql}{where}"
            f" GROUP BY {text.ref}",
            f"SELECT {text.ref} AS {kept}, rank() OVER (ORDER BY {text.ref}) AS {number}"
            f" FROM {source.sql}{where}",
            f"SELECT DISTINCT {text.ref} AS {kept}, length({text.ref}) AS {number}"
            f" FROM {source.sql}{where}",
        )
        query = Query(self.random.choice(forms), outputs)
        if self.chance(0.5):
            ending = self.random.choice(("", " DESC", " NULLS FIRST"))
            limit = self.random.choice(("", " LIMIT 1", " LIMIT 3", " OFFSET 2"))
            return Query(f"{query.sql} ORDER BY 1{ending}, 2{limit}", outputs, ordered=True)
        return query


def _has_text(tables: Sequence[Table]) -> bool:
    return any(column.family == "text" for table in tables for column in table.columns)
