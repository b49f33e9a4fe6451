"""Random queries: SELECT lists, groups, windows, set operations and FROM clauses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from oar_bench.fuzz.expressions import AND, Col, ExpressionWriter, From, Query
from oar_bench.fuzz.world import POOLS, Table, quote


class QueryWriter(ExpressionWriter):
    """Writes queries over the world's tables."""

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
        source: From,
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

    def _where(self, source: From, outer: Sequence[Col], depth: int) -> str:
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
        source: From,
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
        if form.startswith("JSON"):
            text = f"({text})::text"
        if form.startswith(("sum", "avg")) and column.family == "float":
            self.loose = True
        result = column.family
        if form.startswith("count"):
            result = "int"
        elif (form.startswith("avg") and column.family == "int") or (
            form.startswith("sum") and family is None and column.family == "int"
        ):
            result = "num"
        elif form.startswith(("string_agg", "JSON")):
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
            # The one is a call on the tree, the other has words of its own in the grammar.
            forms += ["string_agg({c}, '|' ORDER BY {c})", "JSON_ARRAYAGG({c} ORDER BY {c})"]
        if family is None or (family == "int" and column.family == "int"):
            forms += ["count({d}{c})", "count(*)"]
        return forms

    def _window(self, source: From, family: str | None) -> Col | None:
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

    def _from(self, depth: int, outer: Sequence[Col], most: int) -> From:
        count = self.random.choice((1, 1, 2, 2, 2, 3)[: 6 if most >= 3 else 5])
        source = self._item(depth, outer)
        for number in range(min(count, most) - 1, 0, -1):
            if self._relations <= 0:
                break
            if number == 1 and self.chance(0.12):
                return self._listed(source, self._item(depth, outer))
            source = self._join(source, depth, outer)
        return source

    def _listed(self, left: From, right: From) -> From:
        """Two items with a comma between, and mostly a condition that equates them."""
        pair = self._pair(left.columns, right.columns) if self.chance(0.85) else None
        where = () if pair is None else (f"{pair[0].ref} = {pair[1].ref}",)
        columns = left.columns + right.columns
        rows, keyed = left.rows + right.rows, left.keyed + right.keyed
        return From(f"{left.sql}, {right.sql}", columns, rows, keyed, where)

    def _join(self, left: From, depth: int, outer: Sequence[Col]) -> From:
        if depth > 1 and self.chance(0.12):
            return self._lateral(left, depth)
        right = self._item(depth, outer)
        if self._relations > 0 and self.chance(0.15):
            inner = self._join_with(right, self._item(depth, outer), depth)
            right = replace(inner, sql=f"({inner.sql})")
        return self._join_with(left, right, depth)

    def _join_with(self, left: From, right: From, depth: int) -> From:
        kind = self.pick(
            {"JOIN": 44, "LEFT JOIN": 26, "RIGHT JOIN": 10, "FULL JOIN": 10, "CROSS JOIN": 4}
        )
        rows, keyed = left.rows + right.rows, left.keyed + right.keyed
        columns = left.columns + right.columns
        if kind == "CROSS JOIN":
            return From(f"{left.sql} CROSS JOIN {right.sql}", columns, rows, keyed)
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
            return From(sql, merged + columns, rows, keyed)
        if shared and left.sql.count(" ") <= 3 and self.chance(0.06):
            return From(f"{left.sql} NATURAL {kind} {right.sql}", columns, rows, keyed)
        on = self._on(left, right, depth, full=kind == "FULL JOIN")
        return From(f"{left.sql} {kind} {right.sql} ON {on}", columns, rows, keyed)

    @staticmethod
    def _shared_names(left: From, right: From) -> list[str]:
        """Names that stand once on each side, with families that compare."""
        ours = [column.name for column in left.columns if column.name]
        theirs = [column.name for column in right.columns if column.name]
        return [name for name in dict.fromkeys(ours)
                if ours.count(name) == 1 and theirs.count(name) == 1]  # fmt: skip

    def _on(self, left: From, right: From, depth: int, *, full: bool) -> str:
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

    def _lateral(self, left: From, depth: int) -> From:
        query = self.query(depth - 1, left.columns, None)
        name = self.alias("l")
        right = self._renamed(query, name)
        if self.chance(0.5):
            sql = f"{left.sql} LEFT JOIN LATERAL {right.sql} ON true"
        else:
            sql = f"{left.sql} CROSS JOIN LATERAL {right.sql}"
        return From(sql, left.columns + right.columns, left.rows + right.rows, left.keyed)

    def _item(self, depth: int, outer: Sequence[Col]) -> From:
        kind = self.pick({"base": 70, "derived": 24 if depth > 1 else 0, "values": 3,
                          "cte": 60 if self._ctes else 0})  # fmt: skip
        if kind == "derived" and self._relations > 0:
            query = self.query(depth - 1, outer if self.chance(0.3) else (), None)
            return self._renamed(query, self.alias("q"))
        if kind == "cte" or (self._relations <= 0 and self._ctes):
            name, columns = self.random.choice(self._ctes)
            alias = self.alias("e")
            held = [replace(c, ref=f"{alias}.{c.ref}", name=c.ref) for c in columns]
            return From(f"{name} AS {alias}", held)
        if kind == "values" or self._relations <= 0:
            alias = self.alias("v")
            rows = ", ".join(
                f"({self.random.choice(POOLS['int'])}, {quote(self.random.choice(POOLS['text']))})"
                for _ in range(self.random.choice((1, 3)))
            )
            columns = (Col(f"{alias}.k", "int", True, "k"), Col(f"{alias}.s", "text", True, "s"))
            return From(f"(VALUES {rows}) AS {alias}(k, s)", list(columns))
        return self._base()

    def _renamed(self, query: Query, name: str) -> From:
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
        return From(f"({query.sql}) AS {name}{listed}", columns)

    def _base(self, tables: Sequence[Table] | None = None) -> From:
        """A table, of those given or of those that the query being written is confined to."""
        self._relations -= 1
        table = self.random.choice(tables or self._confined or self.world.tables)
        self.tables.add(table.name)
        name, written = self._name_of_use(table.name), f'"{table.name}"'
        if table.name in self._hidden or self.chance(0.1):
            written = f'"{self.world.name}".{written}'
        sql = written if name == f'"{table.name}"' else f"{written} AS {name}"
        columns = [Col(f'{name}."{c.name}"', c.family, c.tame, c.name) for c in table.columns]
        keyed = [(f"{name}.id", columns)] if table.primary_key else []
        return From(sql, columns, [name], keyed)

    def _name_of_use(self, table: str) -> str:
        """An alias: mostly one of ours, the table's own name, or the name of another table."""
        name = table
        if self.chance(0.07):
            name = self.random.choice(self.world.tables).name
        elif not self.chance(0.2):
            return self.alias("a")
        if name in self._names:
            return self.alias("a")
        self._names.add(name)
        return f'"{name}"'

    @contextmanager
    def _confined_to(self, tables: Sequence[Table]) -> Iterator[None]:
        """Write queries over these tables only, for the length of the block."""
        before, self._confined = self._confined, tables
        try:
            yield
        finally:
            self._confined = before

    def _cte_name(self) -> str:
        """A name for a CTE: now and then a table's, which has to be qualified from then on."""
        if not self.chance(0.25):
            return self.alias("w")
        table = self.random.choice(self.world.tables).name
        if table in self._names or table in self._hidden:
            return self.alias("w")
        self._hidden.add(table)
        return f'"{table}"'

    def scalar(self, outer: Sequence[Col], depth: int, family: str) -> str:
        """A subquery of one row at most."""
        if family != "uuid" and self.chance(0.7):
            source = self._from(max(depth, 1), outer, 2)
            where = self._where(source, outer, max(depth, 1))
            result = self._aggregate(source.columns, family)
            return f"(SELECT {result.ref} FROM {source.sql}{where})"
        query = self._select(max(depth, 1), outer, [family], top=False)
        return f"({query.sql} ORDER BY 1 LIMIT 1)"

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
