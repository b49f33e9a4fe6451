"""From an intent to SQL.

Tables that are shown, counted or sorted by are joined; tables that only filter stand in EXISTS,
so that they neither multiply nor merge what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from oar_proxy.catalog import PublishedColumn, PublishedTable, TableName
from oar_proxy.drafters.rules.intent import (
    Condition,
    Having,
    Intent,
    Mention,
    Ordering,
    Shown,
    Unread,
)
from oar_proxy.drafters.rules.joins import Edge, Joins, NoJoin
from oar_proxy.drafters.rules.names import (
    CODE_WORDS,
    Names,
    is_date,
    is_numeric,
    is_text,
    key_of,
    label_of,
)
from oar_proxy.drafters.rules.resolve import Found, Resolver, listed
from oar_proxy.drafters.rules.words import stem
from oar_proxy.prompt import is_plain

_FUNCTIONS: Final = {"avg": exp.Avg, "max": exp.Max, "min": exp.Min, "sum": exp.Sum}
_OPERATORS: Final = {"=": exp.EQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}


def compose(intent: Intent, names: Names, joins: Joins, qualified: frozenset[str]) -> str:
    """Return the SQL of an intent; tables whose name is in ``qualified`` keep their schema.

    Raises :class:`Unread`.
    """
    return _Composer(intent, names, joins, qualified).compose()


@dataclass(slots=True)
class _Filter:
    """A predicate and the tables it reads."""

    predicate: exp.Expr
    tables: frozenset[TableName]


@dataclass(slots=True)
class _Branch:
    """Tables that only filter, hanging off the joined ones by one edge."""

    outer: PublishedTable
    edges: list[Edge] = field(default_factory=list)
    tables: list[PublishedTable] = field(default_factory=list)


class _Composer:
    def __init__(
        self, intent: Intent, names: Names, joins: Joins, qualified: frozenset[str]
    ) -> None:
        self._intent = intent
        self._joins = joins
        self._tables = {table.key: table for table in names.tables}
        self._resolver = Resolver(intent, names, self._joins)
        self._qualified = qualified
        self._joined: dict[TableName, PublishedTable] = {}
        self._filtering: dict[TableName, PublishedTable] = {}
        self._columns: list[PublishedColumn] = []

    def compose(self) -> str:
        intent = self._intent
        if not intent.shown:
            raise Unread("it is not clear what to show")
        grouped = self._is_grouped()
        select, grouping = self._select(grouped)
        ordering = [self._ordered(ordering, select) for ordering in intent.ordering]
        having = [self._having(having) for having in intent.having]
        if (having or any(o.counted for o in intent.ordering)) and not grouping:
            grouping = self._group_by_shown(select)
        filters = self._filters()
        for mention in intent.existing:
            self._keep(self._resolver.table(mention), self._filtering)
        self._check_repeated()
        query = exp.select(*[item for item, _ in select])
        query = self._from(query, filters)
        if grouping:
            query = query.group_by(*grouping, copy=False)
        for condition in having:
            query = query.having(condition, copy=False)
        if grouping and any(not _sortable(o.this, grouping) for o in ordering):
            raise Unread("it is not clear what to sort by")
        query = query.order_by(*ordering, copy=False) if ordering else query
        query = self._limited(query)
        query = self._distinct(query, select, grouping, ordering)
        if not query.args.get("joins") and query.find(exp.Exists) is None:
            for column in query.find_all(exp.Column):
                column.set("table", None)
        return query.sql("postgres")

    def _limited(self, query: exp.Select) -> exp.Select:
        limits = {o.limit for o in self._intent.ordering if o.limit}
        if len(limits) > 1 or (limits and len(self._intent.ordering) > 1):
            raise Unread("it is not clear which order comes first")
        return query.limit(limits.pop(), copy=False) if limits else query

    def _distinct(
        self,
        query: exp.Select,
        select: Sequence[tuple[exp.Expr, Shown]],
        grouping: Sequence[exp.Expr],
        ordering: Sequence[exp.Ordered],
    ) -> exp.Select:
        if not self._intent.distinct or grouping:
            return query
        if any(shown.function for _, shown in select):
            if not any(shown.distinct for _, shown in select):
                raise Unread("it is not clear what is distinct")
            return query
        if any(o.this not in [item for item, _ in select] for o in ordering):
            raise Unread("distinct rows cannot be sorted by what is not shown")
        return query.distinct(copy=False)

    # --- tables and columns in use ---

    @staticmethod
    def _keep(table: PublishedTable, where: dict[TableName, PublishedTable]) -> PublishedTable:
        where.setdefault(table.key, table)
        return table

    def _use(self, found: Found, where: dict[TableName, PublishedTable]) -> Found:
        self._keep(found[0], where)
        self._columns.append(found[1])
        return found

    def _check_repeated(self) -> None:
        """See that a name said besides the rest is a column already used, or tells a join."""
        for mention in self._intent.repeated:
            table, column = self._resolver.column(mention)
            if column in self._columns:
                continue
            if any(
                edge.column_of(table.key) is column
                for other in self._tables
                for edge in self._joins.between(table.key, other)
            ):
                self._columns.append(column)
                continue
            raise Unread(f'it is not clear what is asked of "{mention.item.text}"')

    # --- SELECT and GROUP BY ---

    def _is_grouped(self) -> bool:
        functions = [s for s in self._intent.shown if s.function]
        plain = [s for s in self._intent.shown if not s.function]
        if not functions or not plain:
            return False
        if (
            any(s.grouped for s in plain)
            or all(s.function == "count" for s in functions)
            or self._intent.distinct
        ):
            return True
        raise Unread("it is not clear whether the aggregate is over all rows or for each")

    def _select(self, grouped: bool) -> tuple[list[tuple[exp.Expr, Shown]], list[exp.Expr]]:
        select: list[tuple[exp.Expr, Shown]] = []
        group: list[exp.Expr] = []
        plain = [s for s in self._intent.shown if not s.function and not s.grouped]
        for shown in self._intent.shown:
            if shown.function:
                select.append((self._function(shown), shown))
                continue
            if shown.grouped and shown.mention.item.tables and (plain or not grouped):
                # "the name and number of songs of each singer": the columns shown say which
                if grouped:
                    group.extend(self._key(self._resolver.table(shown.mention)))
                    continue
                if len(self._intent.shown) > 1:
                    continue
            found = self._use(self._shown_column(shown), self._joined)
            column = self._column(found)
            if column in [item for item, _ in select]:
                continue
            select.append((column, shown))
            if grouped:
                group.append(column.copy())
                if list(label_of(found[0])) == [found[1]]:
                    group.extend(self._key(found[0]))
        return select, list(dict.fromkeys(group))

    def _shown_column(self, shown: Shown) -> Found:
        if shown.hint is not None:
            mention = shown.mention
            entity = mention.item.tables
            table = self._resolver.table(mention) if entity else self._resolver.column(mention)[0]
            return self._resolver.hinted(shown.hint, [table])
        return self._resolver.shown(shown.mention)

    def _key(self, table: PublishedTable) -> list[exp.Expr]:
        """Return a table's key to group by: two rows may bear one name."""
        key = key_of(table)
        if key is None:
            return []
        self._keep(table, self._joined)
        return [self._column((table, key))]

    def _function(self, shown: Shown) -> exp.Expr:
        if shown.function is None or shown.function == "count":
            return self._count(shown)
        found = self._use(self._resolver.column(shown.mention), self._joined)
        column = found[1]
        if shown.function in ("avg", "sum") or (is_text(column) and not is_date(column)):
            return _FUNCTIONS[shown.function](this=self._number(found))
        return _FUNCTIONS[shown.function](this=self._column(found))

    def _count(self, shown: Shown) -> exp.Expr:
        mention = shown.mention
        if not mention.item.tables:
            found = self._use(self._resolver.column(mention), self._joined)
            return self._count_distinct(found)
        table = self._resolver.table(mention)
        if not shown.distinct:
            self._keep(table, self._joined)
            return exp.Count(this=exp.Star())
        others = [t for t in self._resolver.home if t.key != table.key]
        if len(others) == 1 and others[0].key not in self._joined:
            # "how many different singers have songs": as many as songs refer to
            edges = self._joins.between(table.key, others[0].key)
            if len(edges) == 1:
                return self._count_distinct(
                    self._use((others[0], edges[0].column_of(others[0].key)), self._joined)
                )
        return self._count_distinct(self._use(self._resolver.label(table), self._joined))

    def _count_distinct(self, found: Found) -> exp.Expr:
        return exp.Count(this=exp.Distinct(expressions=[self._column(found)]))

    def _group_by_shown(self, select: Sequence[tuple[exp.Expr, Shown]]) -> list[exp.Expr]:
        if any(shown.function not in (None, "count") for _, shown in select):
            raise Unread("it is not clear what is counted for each")
        group = [item.copy() for item, shown in select if not shown.function]
        if not group:
            raise Unread("it is not clear what is counted for each")
        for item in list(group):
            table, column = self._found(item)
            if list(label_of(table)) == [column] or column is key_of(table):
                group.extend(self._key(table))
        return list(dict.fromkeys(group))

    def _found(self, column: exp.Expr) -> Found:
        table = next(t for t in self._joined.values() if t.name == column.text("table"))
        return table, table.column(column.name)

    # --- conditions ---

    def _filters(self) -> list[_Filter]:
        filters: list[_Filter] = []
        together: dict[str, list[Condition]] = {}
        absent: dict[int, list[exp.Expr]] = {}
        alternatives = False
        for condition in self._intent.conditions:
            gone = [
                number
                for number, chain in enumerate(self._intent.absent)
                if any(mention is condition.subject for mention in chain)
            ]
            used: dict[TableName, PublishedTable] = {}
            predicate = self._predicate(condition, used)
            if gone:
                chain = self._intent.absent[gone[0]]
                if not set(used) <= {self._resolver.table(mention).key for mention in chain}:
                    raise Unread("it is not clear what is absent")
                absent.setdefault(gone[0], []).append(predicate)
                continue
            self._filtering.update(used)
            tables = frozenset(used)
            if condition.or_before and filters:
                if len(filters) > 1:
                    raise Unread('it is not clear how far "or" reaches')
                filters[-1].predicate = exp.or_(filters[-1].predicate, predicate)
                filters[-1].tables |= tables
                alternatives = True
                continue
            if alternatives:
                raise Unread('it is not clear how far "or" reaches')
            filters.append(_Filter(predicate, tables))
            for column in predicate.find_all(exp.Column):
                together.setdefault(column.sql("postgres"), []).append(condition)
        for conditions in together.values():
            _satisfiable(conditions)
        for number, chain in enumerate(self._intent.absent):
            filters.append(self._absence(chain, absent.get(number, [])))
        return filters

    def _predicate(self, condition: Condition, used: dict[TableName, PublishedTable]) -> exp.Expr:
        if condition.operator.startswith("label"):
            predicate = self._named(condition, used)
        else:
            found = self._use(self._conditioned(condition), used)
            predicate = self._compare(found, condition, condition.values)
        if not condition.negated:
            return predicate
        if isinstance(predicate, exp.EQ):
            return exp.NEQ(this=predicate.this, expression=predicate.expression)
        return exp.not_(predicate)

    def _conditioned(self, condition: Condition) -> Found:
        mention = condition.mention
        if mention is not None and mention.item.columns and condition.hint is None:
            return self._resolver.column(mention)
        about = mention or condition.subject
        tables = [self._resolver.table(about)] if about is not None else self._resolver.home
        return self._resolver.hinted(condition.hint or "place", tables, condition.numeric)

    def _named(self, condition: Condition, used: dict[TableName, PublishedTable]) -> exp.Expr:
        assert condition.mention is not None
        table = self._resolver.table(condition.mention)
        return exp.and_(
            *(
                self._compare(
                    self._use(found, used), condition, condition.values if part is None else (part,)
                )
                for found, part in self._resolver.named(table, condition.values)
            )
        )

    def _compare(self, found: Found, condition: Condition, constants: Sequence[str]) -> exp.Expr:
        column = found[1]
        operator = condition.operator.removeprefix("label").strip() or "="
        this: exp.Expr = self._column(found)
        if condition.aggregate is not None:
            return self._against_aggregate(found, condition)
        if operator == "like":
            if not is_text(column):
                raise Unread(f"{column.name} is not text")
            return exp.Like(this=this, expression=_text(constants[0]))
        if is_numeric(column) and not condition.numeric:
            raise Unread(f"{column.name} is a number")
        if column.type.startswith(("date", "timestamp")) and condition.numeric:
            this = exp.Extract(this=exp.var("YEAR"), expression=this)
        elif operator != "=" and is_text(column):
            if condition.numeric:
                this = self._number(found)
            elif not is_date(column):
                raise Unread(f"{column.name} is text, which has no order to compare by")
        if operator != "=" and column is key_of(found[0]) and not _says_key(condition):
            raise Unread(f"{column.name} only identifies")
        numeric = condition.numeric and not (operator == "=" and is_text(column))
        values = [exp.Literal.number(v) if numeric else _text(v) for v in constants]
        if operator == "between":
            return exp.Between(this=this, low=values[0], high=values[1])
        if len(values) > 1:
            return exp.In(this=this, expressions=values)
        return _OPERATORS[operator](this=this, expression=values[0])

    def _against_aggregate(self, found: Found, condition: Condition) -> exp.Expr:
        assert condition.aggregate is not None
        inner = self._number(found)
        for column in inner.find_all(exp.Column):
            column.set("table", None)
        subquery = exp.select(_FUNCTIONS[condition.aggregate](this=inner)).from_(
            self._source(found[0])
        )
        return _OPERATORS[condition.operator](
            this=self._number(found), expression=exp.Subquery(this=subquery)
        )

    def _absence(self, chain: Sequence[Mention], predicates: Sequence[exp.Expr]) -> _Filter:
        entity = self._resolver.home[0]
        branch = _Branch(entity)
        outer = entity
        for mention in chain:
            table = self._resolver.table(mention)
            edges = self._joins.between(outer.key, table.key)
            if table in (*self._resolver.home, *branch.tables) or len(edges) != 1:
                raise Unread(f'it is not clear what has no "{mention.item.text}"')
            branch.edges.append(edges[0])
            branch.tables.append(table)
            outer = table
        self._keep(entity, self._filtering)
        return _Filter(exp.not_(self._exists(branch, list(predicates))), frozenset((entity.key,)))

    # --- HAVING and ORDER BY ---

    def _having(self, having: Having) -> exp.Expr:
        table = self._resolver.table(having.counted)
        counted_for = f'it is not clear what "{having.counted.item.text}" is counted for'
        if self._resolver.home == [table]:
            # "cities with at least two shops": the shops of each city
            if self._named_besides(having.counted, table) or self._shows_rows(table):
                raise Unread(counted_for)
        elif table.key == self._resolver.home[0].key:
            raise Unread(counted_for)
        elif having.operator in ("<", "<="):
            raise _without_any(having.counted)
        self._keep(table, self._joined)
        count = exp.Count(this=exp.Star())
        return _OPERATORS[having.operator](this=count, expression=exp.Literal.number(having.value))

    def _named_besides(self, counted: Mention, table: PublishedTable) -> bool:
        others = [m for m in self._intent.tables if m is not counted]
        return any(self._resolver.table(mention) is table for mention in others)

    def _shows_rows(self, table: PublishedTable) -> bool:
        """Tell whether each row of a table is shown by itself: its key or its label."""
        shown = [self._shown_column(s) for s in self._intent.shown if not s.function]
        own = (key_of(table), *label_of(table))
        return any(found[0] is table and found[1] in own for found in shown)

    def _ordered(self, ordering: Ordering, select: Sequence[tuple[exp.Expr, Shown]]) -> exp.Ordered:
        descending = ordering.direction == "desc"
        if ordering.counted:
            if ordering.mention is not None:
                table = self._resolver.table(ordering.mention)
                if not descending and table.key not in self._joined:
                    raise _without_any(ordering.mention)
                self._keep(table, self._joined)
            return exp.Ordered(this=exp.Count(this=exp.Star()), desc=descending)
        if ordering.mention is None:
            return exp.Ordered(this=select[0][0].copy(), desc=descending)
        found = self._use(self._sorted_by(ordering, ordering.mention), self._joined)
        ranked = ordering.limit and is_text(found[1]) and not is_date(found[1])
        if ranked and ordering.hint is None:
            raise Unread(f"{found[1].name} is text, which has no highest")
        value = self._number(found) if ranked else self._column(found)
        # A NULL is no extreme: PostgreSQL would put it first when descending.
        return exp.Ordered(this=value, desc=descending, nulls_first=False if descending else None)

    def _sorted_by(self, ordering: Ordering, mention: Mention) -> Found:
        if ordering.hint is None:
            return self._resolver.column(mention)
        if mention.item.tables:
            return self._resolver.hinted(ordering.hint, [self._resolver.table(mention)])
        found = self._resolver.column(mention)
        if is_date(found[1]) if ordering.hint == "date" else is_numeric(found[1]):
            return found
        return self._resolver.hinted(ordering.hint, [found[0]])

    # --- FROM ---

    def _from(self, query: exp.Select, filters: Sequence[_Filter]) -> exp.Select:
        joined = [t for t in self._resolver.home if t.key in self._joined]
        joined += [t for t in self._joined.values() if t not in joined]
        others = [t for t in self._resolver.home if t.key not in self._joined]
        others += [
            t for t in self._filtering.values() if t.key not in self._joined and t not in others
        ]
        _same_names([*joined, *others])
        main = self._connect(joined)
        edges = self._connect([*joined, *others])
        query = query.from_(self._source(joined[0]), copy=False)
        reached = {joined[0].key}
        for edge in main:
            new = next(iter(edge.ends - reached))
            reached.add(new)
            query = query.join(self._source(self._tables[new]), on=self._on(edge), copy=False)
        branches = self._branches(edges[len(main) :], reached)
        for predicate in self._placed(filters, reached, branches):
            query = query.where(predicate, copy=False)
        return query

    def _connect(self, tables: Sequence[PublishedTable]) -> list[Edge]:
        try:
            return self._joins.connect(tables, self._columns)
        except NoJoin as error:
            raise Unread(f"{listed(table.name for table in tables)}: {error}") from None

    def _branches(self, edges: Sequence[Edge], joined: set[TableName]) -> list[_Branch]:
        branches: list[_Branch] = []
        member: dict[TableName, _Branch] = {}
        for edge in edges:
            old = next(key for key in edge.ends if key in joined or key in member)
            new = next(iter(edge.ends - {old}))
            branch = member.get(old)
            if branch is None:
                branch = _Branch(self._tables[old])
                branches.append(branch)
            branch.edges.append(edge)
            branch.tables.append(self._tables[new])
            member[new] = branch
        return branches

    def _placed(
        self, filters: Sequence[_Filter], joined: set[TableName], branches: Sequence[_Branch]
    ) -> list[exp.Expr]:
        """Put each filter where its tables are: beside the joins, or inside one EXISTS."""
        own = [f.predicate for f in filters if f.tables <= joined]
        left = [f for f in filters if not f.tables <= joined]
        placed = []
        for branch in branches:
            inside = joined | {table.key for table in branch.tables}
            here = [f for f in left if f.tables <= inside]
            left = [f for f in left if f not in here]
            placed.append(self._exists(branch, [f.predicate for f in here]))
        if left:
            raise Unread("it is not clear how the conditions belong together")
        return [*own, *placed]

    def _exists(self, branch: _Branch, predicates: Sequence[exp.Expr]) -> exp.Expr:
        query = exp.select(exp.Literal.number(1)).from_(self._source(branch.tables[0]))
        for edge, table in zip(branch.edges[1:], branch.tables[1:], strict=True):
            query = query.join(self._source(table), on=self._on(edge), copy=False)
        query = query.where(self._on(branch.edges[0]), *predicates, copy=False)
        return exp.Exists(this=query)

    # --- spelling ---

    def _on(self, edge: Edge) -> exp.Expr:
        left: exp.Expr = self._column((edge.left, edge.left_column))
        right: exp.Expr = self._column((edge.right, edge.right_column))
        if edge.cast:
            left = exp.Cast(this=left, to=exp.DataType.build("text"))
            right = exp.Cast(this=right, to=exp.DataType.build("text"))
        return exp.EQ(this=left, expression=right)

    def _source(self, table: PublishedTable) -> exp.Table:
        schema = _identifier(table.schema) if table.name in self._qualified else None
        return exp.Table(this=_identifier(table.name), db=schema)

    @staticmethod
    def _column(found: Found) -> exp.Column:
        table, column = found
        return exp.Column(this=_identifier(column.name), table=_identifier(table.name))

    def _number(self, found: Found) -> exp.Expr:
        """Return a column to calculate with. Text that is no number then fails, not counts 0."""
        column = found[1]
        if is_numeric(column):
            return self._column(found)
        if not is_text(column) or is_date(column) or column in label_of(found[0]):
            raise Unread(f"{column.name} is not a number")
        return exp.Cast(this=self._column(found), to=exp.DataType.build("numeric"))


def _identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=not is_plain(name))


def _text(value: str) -> exp.Literal:
    return exp.Literal.string(value)


def _sortable(value: exp.Expr, grouping: Sequence[exp.Expr]) -> bool:
    return isinstance(value, exp.AggFunc) or value in grouping


def _says_key(condition: Condition) -> bool:
    words = condition.mention.item.text.lower().split() if condition.mention is not None else ()
    return any(stem(word) in CODE_WORDS for word in words)


def _without_any(mention: Mention) -> Unread:
    """A join leaves out what has no row to count, and the fewest may be none at all."""
    return Unread(f'it is not clear whether those without "{mention.item.text}" count')


def _same_names(tables: Sequence[PublishedTable]) -> None:
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise Unread(f"two schemas have {listed(n for n in names if names.count(n) > 1)}")


def _satisfiable(conditions: Sequence[Condition]) -> None:
    """Refuse conditions on one column that no row can meet together.

    ``born before 1945 and after 1955`` asks for what two different rows have in common.
    """
    plain = [c for c in conditions if not c.negated and not c.or_before and c.aggregate is None]
    equal = [c for c in plain if c.operator in ("=", "label") and len(c.values) == 1]
    if len({c.values for c in equal}) > 1:
        raise Unread("one value cannot equal two others")
    low = [float(c.values[0]) for c in plain if c.operator in (">", ">=") and c.numeric]
    high = [float(c.values[0]) for c in plain if c.operator in ("<", "<=") and c.numeric]
    if low and high and max(low) >= min(high):
        raise Unread("no value is both over and under those limits")
