"""What a grouping query may evaluate for rows, and what for groups: lists of forms, on the tree.

Rows are joined, compared and grouped by what neither fails nor tells (:mod:`oar_proxy.rowforms`);
aggregates take columns as they are, and are those that make one number of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_proxy.conditions import compares_columns
from oar_proxy.rowforms import (
    Columns,
    Known,
    Places,
    Refuse,
    RowForms,
    Source,
    Sources,
    find,
    places,
)
from oar_proxy.sql.text import quote_identifier
from oar_proxy.sql.tree import JSON_AGGREGATES, ast, children, enums, is_star, written

AGGREGATES: Final = frozenset(
    {
        "avg",
        "count",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)
"""Those that make one number of all rows. ``min`` and ``max`` give the value of one."""

_SCALARS: Final = frozenset(
    {
        "abs",
        "btrim",
        "ceil",
        "ceiling",
        "concat",
        "concat_ws",
        "date_part",
        "date_trunc",
        "extract",
        "floor",
        "format",
        "initcap",
        "left",
        "length",
        "lower",
        "lpad",
        "ltrim",
        "mod",
        "now",
        "position",
        "replace",
        "right",
        "round",
        "row_to_json",
        "rpad",
        "rtrim",
        "sign",
        "split_part",
        "sqrt",
        "strpos",
        "substr",
        "substring",
        "timezone",
        "to_char",
        "to_date",
        "to_json",
        "to_jsonb",
        "to_timestamp",
        "trunc",
        "upper",
    }
)
"""Functions that are no aggregates: of groups that are shown they may be called."""

_OF_GROUPS: Final = (
    *(ast.A_Const, ast.A_Star, ast.Boolean, ast.ColumnRef, ast.Float, ast.Integer, ast.ParamRef),
    *(ast.SQLValueFunction, ast.String),
    *(ast.A_ArrayExpr, ast.A_Expr, ast.BoolExpr, ast.BooleanTest, ast.CaseExpr, ast.CaseWhen),
    *(ast.CoalesceExpr, ast.CollateClause, ast.FuncCall, ast.MinMaxExpr, ast.NamedArgExpr),
    *(ast.NullTest, ast.ResTarget, ast.RowExpr, ast.SortBy, ast.TypeCast, ast.TypeName),
)
"""What is evaluated of groups that are shown: of each by itself, and of nothing else."""

_MORE_THAN_ROWS: Final = (
    "withClause",
    "distinctClause",
    "groupClause",
    "havingClause",
    "windowClause",
    "valuesLists",
    "limitCount",
    "limitOffset",
    "lockingClause",
    "larg",
)


@dataclass(frozen=True, slots=True)
class Published:
    """What is known of a published table: its columns, and its keys."""

    columns: Columns
    keys: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Matched:
    """A column of what an outer join may add to a row, in ``select``: of few, it would weigh those.

    It is the column ``column`` of what ``source`` names there, and NULL where nothing is added.
    """

    select: Any
    source: str
    column: str


class GroupingQuery:
    """A SELECT that groups, checked. ``sources`` is what its FROM names.

    ``published`` gives the table that is named at a position, None for another relation;
    ``literals`` are the client's parameters. ``refuse`` makes the error of what is on no list.
    ``matched``: of each of these, too, a group has to have values of enough entities.
    """

    def __init__(
        self,
        select: Any,
        published: Callable[[int], Published | None],
        literals: Mapping[int, str],
        refuse: Refuse,
    ) -> None:
        self._published = published
        self._refuse = refuse
        self._rows = RowForms(literals, lambda query: self._plain(query, picks=True)[1], refuse)
        self._targets: Sequence[Any] = select.targetList or ()
        self._contributing: dict[str, None] = {}
        self.matched: list[Matched] = []
        self.sources: Sources = ()
        self._check(select)

    @property
    def contributing(self) -> Sequence[str]:
        """The columns that are aggregated and may be NULL, as the query writes them."""
        return list(self._contributing)

    # --- what is evaluated for rows ---------------------------------------------------------------

    def _check(self, select: Any) -> None:
        if select.op != enums.SetOperation.SETOP_NONE:
            raise self._refuse("a set operation combines it")
        if select.withClause is not None:
            raise self._refuse("the grouping query has a WITH of its own")
        if select.windowClause:
            raise self._refuse("windows look at other groups, also those that are not shown")
        self.sources = self._from_all(select, picks=False)
        self._rows.filter(select.whereClause, self.sources)
        for part in ("targetList", "havingClause", "sortClause", "limitCount", "limitOffset"):
            self._of_groups(getattr(select, part))
        if any(each is not None for each in select.distinctClause or ()):
            raise self._refuse("DISTINCT ON picks one of several")

    def _from_all(self, select: Any, *, picks: bool) -> Sources:
        return [
            source
            for item in select.fromClause or ()
            for source in self._from(item, select, picks=picks)
        ]

    def _from(self, item: Any, select: Any, *, picks: bool) -> list[Source]:
        """Read an item of FROM. ``picks``: it is of a query that picks rows, and multiplies none.

        Whoever could say how often a row is there could weigh single ones, and read them in a sum.
        So rows are joined with those of owners only, by columns that are equal. Nor do others pick
        rows: a view, a CTE or a row security policy may call a function with what is compared.
        """
        alias = getattr(item, "alias", None)
        if isinstance(item, ast.RangeVar):
            name = item.relname if alias is None else alias.aliasname
            table = self._published(item.location)
            if table is None:
                raise self._refuse("what stands beside it is no owner's table")
            if alias is not None and alias.colnames:
                raise self._refuse("its columns are renamed in FROM")
            return [Source(name, table.columns, table.keys)]
        if isinstance(item, ast.JoinExpr) and alias is None and item.join_using_alias is None:
            return self._join(item, select, picks=picks)
        if isinstance(item, ast.RangeSubselect) and alias is not None and not item.lateral:
            columns, inner = self._plain(item.subquery, picks=picks)
            renamed = [name.sval for name in alias.colnames or ()]
            if renamed:
                return [Source(alias.aliasname, _renamed(item.subquery, columns, renamed))]
            return [Source(alias.aliasname, columns, _keys(item.subquery, inner))]
        raise self._refuse("FROM has more than tables, joins and plain subqueries")

    def _join(self, item: Any, select: Any, *, picks: bool) -> list[Source]:
        left = self._from(item.larg, select, picks=picks)
        right = self._from(item.rarg, select, picks=picks)
        sources = [*left, *right]
        kind, lefts = item.jointype, frozenset(range(len(left)))
        rights = frozenset(range(len(sources))) - lefts
        joins = enums.JoinType
        added = {
            joins.JOIN_LEFT: [rights],
            joins.JOIN_RIGHT: [lefts],
            joins.JOIN_FULL: [lefts, rights],
        }.get(kind, [])
        nullable = frozenset[int]().union(*added)
        # A condition on rows that are there whether it holds or not would multiply some of them.
        sides = None if kind == joins.JOIN_INNER else nullable
        sides = frozenset() if kind == joins.JOIN_FULL else sides
        self._rows.filter(item.quals, sources, None if picks else sides, picks=picks)
        for side in [] if picks else added:
            self._require_matches(item, select, sources, side)
        return [
            replace(source, nullable=source.nullable or place in nullable)
            for place, source in enumerate(sources)
        ]

    def _require_matches(self, item: Any, select: Any, sources: Sources, side: Places) -> None:
        """See to it that what an outer join adds is no more than a row, or added for enough."""
        equal: dict[tuple[int, str], None] = {}
        if item.isNatural or item.usingClause:
            given = [name.sval for name in item.usingClause or ()]
            others = [s.columns or {} for p, s in enumerate(sources) if p not in side]
            for place in side:
                columns = sources[place].columns
                if columns is None:
                    raise self._refuse("it is not known which columns an outer join compares")
                common = given or [c for c in columns if any(c in other for other in others)]
                equal |= dict.fromkeys((place, name) for name in common if name in columns)
        for condition in _parts(item.quals):
            if not compares_columns(condition):
                continue
            named = (condition.lexpr, condition.rexpr)
            for column, other in (named, named[::-1]):
                at = places(column, sources)
                if at & side and not places(other, sources) & side:
                    if not at <= side or len(at) > 1:
                        raise self._refuse("it is not clear which columns an outer join compares")
                    equal[min(at), column.fields[-1].sval] = None
        if not equal:
            return  # all rows alike
        if len(side) == 1:
            (place,) = side
            names = {name for _, name in equal}
            if any(names.issuperset(key) for key in sources[place].keys if key):
                return
        place, name = next(iter(equal))
        self.matched.append(Matched(select, sources[place].name or "", name))

    def _plain(self, select: Any, *, picks: bool) -> tuple[Columns | None, Sources]:
        """Check a query that gives rows: columns of others, and what is made of those.

        Returns its columns, None where a star stands for ones that are not known, and what its FROM
        names.
        """
        if not isinstance(select, ast.SelectStmt) or any(
            getattr(select, name) for name in _MORE_THAN_ROWS
        ):
            raise self._refuse("a subquery in FROM or WHERE is more than columns of rows")
        sources = self._from_all(select, picks=picks)
        self._rows.filter(select.whereClause, sources, picks=picks)
        columns: dict[str, Known] = {}
        known = True
        for target in select.targetList or ():
            value = target.val
            if is_star(value):
                known = known and all(source.columns is not None for source in sources)
                for source in sources:
                    if len(value.fields) == 1 or source.name == value.fields[-2].sval:
                        columns |= source.columns or {}
            else:
                columns[_output(target)] = self._rows.value(value, sources)
        for item in select.sortClause or ():
            if item.useOp:
                raise self._refuse("a subquery sorts by an operator of its own")
            if not _names_one(item.node, columns):
                self._rows.value(item.node, sources)
        return columns if known else None, sources

    # --- what is evaluated for groups -------------------------------------------------------------

    def _of_groups(self, node: Any) -> None:
        """Check an expression of keys and aggregates. That all else is a key PostgreSQL checks."""
        if isinstance(node, ast.FuncCall) and node.funcname[-1].sval in AGGREGATES:
            self._aggregate(node)
            return
        if isinstance(node, ast.ColumnRef):
            self._rows.require_column(node, self.sources)
            return
        require_scalar(node, self._refuse)
        for child in children(node):
            self._of_groups(child)

    def _aggregate(self, node: Any) -> None:
        *schema, name = (part.sval for part in node.funcname)
        if schema not in ([], ["pg_catalog"]):
            raise self._refuse(f"{name} is not PostgreSQL's own")
        more = (node.agg_filter, node.agg_order, node.agg_within_group, node.func_variadic)
        if any(more) or node.over is not None:
            raise self._refuse(f"{name} looks at a part of a group, or at several")
        if node.agg_distinct and name != "count":
            raise self._refuse(f"{name} takes no DISTINCT")
        for argument in node.args or ():
            if isinstance(argument, ast.A_Const):
                continue  # sum(1) is another count(*)
            column = argument.arg if isinstance(argument, ast.TypeCast) else argument
            if not isinstance(column, ast.ColumnRef):
                raise self._refuse(f"the argument of {name} is not a column as it is")
            known = find(column, self.sources)
            if known is None:
                raise self._refuse(f"it is not known of which table the argument of {name} is")
            if self._rows.value(argument, self.sources).made:
                raise self._refuse(f"the argument of {name} is made of a column")
            if not known.not_null:
                self._contributing[_written(column)] = None

    # --- keys -------------------------------------------------------------------------------------

    def keys(self, select: Any) -> list[str]:
        """Write what it groups by, so that it means the same without the targets."""
        if select.groupClause:
            return [self._key(self._meant(item)) for item in select.groupClause]
        if select.distinctClause and not aggregates(select):
            return [self._key(target.val) for target in self._targets]
        return []

    def _meant(self, item: Any) -> Any:
        if isinstance(item, ast.A_Const) and isinstance(item.val, ast.Integer):
            number = int(item.val.ival or 0)
            if not 0 < number <= len(self._targets):
                raise self._refuse("GROUP BY counts more columns than there are")
            return self._targets[number - 1].val
        if isinstance(item, ast.ColumnRef) and len(item.fields) == 1:
            name = getattr(item.fields[0], "sval", None)
            named = [t.val for t in self._targets if t.name == name]
            known = [s for s in self.sources if s.columns is not None and name in s.columns]
            if named and not known:
                if any(source.columns is None for source in self.sources):
                    raise self._refuse(
                        f"GROUP BY {name} may mean a column or what is selected by that name"
                    )
                return named[0]
        return item

    def _key(self, node: Any) -> str:
        if isinstance(node, ast.GroupingSet):
            raise self._refuse("GROUPING SETS, ROLLUP and CUBE give totals beside their parts")
        self._rows.value(node, self.sources)
        if any(map(_is_parameter, _below(node))):
            raise self._refuse("a key has a parameter")
        return written(node)


def _written(column: Any) -> str:
    return ".".join(quote_identifier(part.sval) for part in column.fields)


def _parts(condition: Any) -> Iterator[Any]:
    if isinstance(condition, ast.BoolExpr) and condition.boolop == enums.BoolExprType.AND_EXPR:
        for argument in condition.args:
            yield from _parts(argument)
    else:
        yield condition


def _below(node: Any) -> Iterator[Any]:
    yield node
    for child in children(node):
        yield from _below(child)


def _is_parameter(node: Any) -> bool:
    return isinstance(node, ast.ParamRef)


def _output(target: Any) -> str:
    """Return the name of what is selected; any that nobody writes where PostgreSQL makes it up."""
    if target.name is None and isinstance(target.val, ast.ColumnRef):
        return str(target.val.fields[-1].sval)
    if target.name is None and isinstance(target.val, ast.FuncCall):
        return str(target.val.funcname[-1].sval)
    return target.name or f"?{target.location}"


def _names_one(node: Any, columns: Columns) -> bool:
    """Tell whether ORDER BY names one of the columns that are selected."""
    return isinstance(node, ast.ColumnRef) and getattr(node.fields[0], "sval", None) in columns


def _renamed(select: Any, columns: Columns | None, names: Sequence[str]) -> Columns | None:
    """Return columns by the names that FROM gives the first of them."""
    if columns is None or any(is_star(target.val) for target in select.targetList):
        return None
    if len(columns) != len(select.targetList):
        return None
    old = list(columns.items())
    return {
        new: known
        for new, (_, known) in zip([*names, *list(columns)[len(names) :]], old, strict=True)
    }


def _keys(select: Any, sources: Sources) -> Sequence[Sequence[str]]:
    """Return the keys of a query over one source that it passes on, by its own names."""
    if len(sources) != 1:
        return ()
    passed: dict[str, str] = {}
    for target in select.targetList or ():
        if is_star(target.val):
            passed |= {name: name for name in sources[0].columns or {}}
        elif isinstance(target.val, ast.ColumnRef):
            passed[target.val.fields[-1].sval] = _output(target)
    return [[passed[n] for n in key] for key in sources[0].keys if passed.keys() >= set(key)]


def aggregates(select: Any) -> bool:
    """Tell whether a query calls an aggregate; any function that is no known other one is one."""
    waiting = [select.targetList, select.havingClause, select.sortClause]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.SubLink):
            continue
        if isinstance(node, JSON_AGGREGATES):
            return True
        if isinstance(node, ast.FuncCall) and node.funcname[-1].sval not in _SCALARS:
            return True
        waiting.extend(children(node))
    return False


def repeatable(query: Any) -> bool:
    """Tell whether a query gives the same rows each time."""
    nodes = list(_below(query))
    if any(isinstance(node, ast.RangeTableSample | ast.RangeFunction) for node in nodes):
        return False
    picks = ("limitCount", "limitOffset", "windowClause", "distinctClause")
    if any(getattr(n, p) for n in nodes if isinstance(n, ast.SelectStmt) for p in picks):
        return False
    called = {node.funcname[-1].sval for node in nodes if isinstance(node, ast.FuncCall)}
    return called <= AGGREGATES | _SCALARS


def require_scalars(node: Any, refuse: Refuse) -> None:
    """Refuse an expression that may make one value of several groups, or look elsewhere."""
    require_scalar(node, refuse)
    for child in children(node):
        require_scalars(child, refuse)


def require_scalar(node: Any, refuse: Refuse) -> None:
    """The same of one node."""
    if isinstance(node, ast.FuncCall):
        parts = [part.sval for part in node.funcname]
        known = parts[-1] in _SCALARS and parts[:-1] in ([], ["pg_catalog"])
        if not known or node.over is not None:
            raise refuse(f"{parts[-1]} may look at several groups or rows")
    elif isinstance(node, ast.Node) and not isinstance(node, _OF_GROUPS):
        raise refuse(f"{type(node).__name__} stands where groups are shown")


def groups(select: Any) -> bool:
    """Tell whether a query gives groups and no rows."""
    asked = select.groupClause or select.havingClause or select.distinctClause
    return bool(asked) or aggregates(select)
