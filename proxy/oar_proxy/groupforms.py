"""What a grouping query may evaluate for rows, and what for groups: lists of forms, on the tree.

A value that is made of a row can fail, with an error that quotes it or is there for that row
alone; a function of the session's own can tell it. So rows are only joined, compared and grouped by
what can do neither; aggregates take columns as they are, and are those that make one number of all
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_adapters.interface import base_type

from oar_proxy.conditions import (
    compared_with_constants,
    compares_columns,
    compares_literals,
    constants,
    is_time,
    matches_a_pattern,
    orders_columns,
    widens,
)
from oar_proxy.errors import InsufficientPrivilege
from oar_proxy.sql.text import quote_identifier, quote_literal
from oar_proxy.sql.tree import ast, children, enums

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
        "length",
        "lower",
        "replace",
        "round",
        "row_to_json",
        "sign",
        "sqrt",
        "substring",
        "to_char",
        "to_json",
        "to_jsonb",
        "trunc",
        "upper",
    }
)
"""Functions that are no aggregates: of groups that are shown they may be called."""

_UNITS: Final = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})
_FIELDS: Final = _UNITS | {"dow", "isodow", "doy", "isoyear"}
_TIMES: Final = frozenset({"date", "timestamp without time zone", "timestamp with time zone"})
_TIME_CASTS: Final = {"date": "date", "timestamp": "timestamp", "timestamptz": "timestamptz"}
_TEXTS: Final = frozenset({"bpchar", "character varying", "name", "text", "unknown"})
"""Types whose literals a cast reads: it may fail, for a row that gets as far."""

_CONSTANTS: Final = _TEXTS | {
    *("bool", "bytea", "date", "float4", "float8", "int2", "int4", "int8", "interval", "numeric"),
    *("time", "timestamp", "timestamptz", "timetz", "uuid", "varchar"),
    *("bigint", "boolean", "character", "double precision", "integer", "real", "smallint"),
    *("time with time zone", "time without time zone"),
    *("timestamp with time zone", "timestamp without time zone"),
}
"""Types of constants, in both spellings. For one of another, such as ``oid``, PostgreSQL may cast
the column instead, which fails for some of its values."""

_MORE_THAN_ROWS: Final = (
    "withClause",
    "distinctClause",
    "groupClause",
    "havingClause",
    "windowClause",
    "valuesLists",
    "sortClause",
    "limitCount",
    "limitOffset",
    "lockingClause",
    "larg",
)

Refuse = Callable[[str], InsufficientPrivilege]


@dataclass(frozen=True, slots=True)
class Known:
    """A column: its type, empty where that is not known, and whether it is never NULL."""

    type: str
    not_null: bool


Columns = Mapping[str, Known]


@dataclass(frozen=True, slots=True)
class Source:
    """What FROM names.

    ``columns`` None: they are not known. ``nullable``: an outer join may give NULLs in their place.
    """

    name: str | None
    columns: Columns | None
    nullable: bool = False


Sources = Sequence[Source]
Places = frozenset[int]
"""Sources, by their place, of which one may be meant."""


class GroupingQuery:
    """A SELECT that groups, checked. ``sources`` is what its FROM names.

    ``columns`` gives those of the published table that is named at a position, None for another
    relation; ``literals`` are the client's parameters. ``refuse`` makes the error of what is on no
    list.
    """

    def __init__(
        self,
        select: Any,
        columns: Callable[[int], Columns | None],
        literals: Mapping[int, str],
        refuse: Refuse,
    ) -> None:
        self._columns_at = columns
        self._literals = literals
        self._refuse = refuse
        self._targets: Sequence[Any] = select.targetList or ()
        self._contributing: dict[str, None] = {}
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
        self.sources = [source for item in select.fromClause for source in self._from(item)]
        self._filter(select.whereClause, self.sources)
        for part in ("targetList", "havingClause", "sortClause", "limitCount", "limitOffset"):
            self._of_groups(getattr(select, part))
        if any(each is not None for each in select.distinctClause or ()):
            raise self._refuse("DISTINCT ON picks one of several")

    def _from(self, item: Any, *, picks: bool = False) -> list[Source]:
        """Read an item of FROM. ``picks``: it is of a query that picks rows, and multiplies none.

        Whoever could say how often a row is there could weigh single ones, and read them in a sum.
        So rows are joined with those of owners only, by columns that are equal. Nor do others pick
        rows: a view, a CTE or a row security policy may call a function with what is compared.
        """
        alias = getattr(item, "alias", None)
        if isinstance(item, ast.RangeVar):
            name = item.relname if alias is None else alias.aliasname
            columns = self._columns_at(item.location)
            if columns is None:
                raise self._refuse("what stands beside it is no owner's table")
            if alias is not None and alias.colnames:
                raise self._refuse("its columns are renamed in FROM")
            return [Source(name, columns)]
        if isinstance(item, ast.JoinExpr) and alias is None and item.join_using_alias is None:
            return self._join(item, picks=picks)
        if isinstance(item, ast.RangeSubselect) and alias is not None and not item.lateral:
            columns, _ = self._plain(item.subquery, picks=picks)
            return [Source(alias.aliasname, None if alias.colnames else columns)]
        raise self._refuse("FROM has more than tables, joins and plain subqueries")

    def _join(self, item: Any, *, picks: bool) -> list[Source]:
        left, right = self._from(item.larg, picks=picks), self._from(item.rarg, picks=picks)
        sources = [*left, *right]
        kind, lefts = item.jointype, frozenset(range(len(left)))
        rights = frozenset(range(len(sources))) - lefts
        joins = enums.JoinType
        nullable = {
            joins.JOIN_LEFT: rights,
            joins.JOIN_RIGHT: lefts,
            joins.JOIN_FULL: lefts | rights,
        }.get(kind, frozenset())
        # A condition on rows that are there whether it holds or not would multiply some of them.
        sides = None if kind == joins.JOIN_INNER else nullable
        sides = frozenset() if kind == joins.JOIN_FULL else sides
        self._filter(item.quals, sources, None if picks else sides, picks=picks)
        return [
            replace(source, nullable=source.nullable or place in nullable)
            for place, source in enumerate(sources)
        ]

    def _plain(self, select: Any, *, picks: bool) -> tuple[Columns | None, Sources]:
        """Check a query that gives columns of rows as they are, or constants.

        Returns its columns, None where a star stands for ones that are not known, and what its FROM
        names.
        """
        if not isinstance(select, ast.SelectStmt) or any(
            getattr(select, name) for name in _MORE_THAN_ROWS
        ):
            raise self._refuse("a subquery in FROM or WHERE is more than columns of rows")
        items = select.fromClause or ()
        sources = [source for item in items for source in self._from(item, picks=picks)]
        self._filter(select.whereClause, sources, picks=picks)
        columns: dict[str, Known] = {}
        known = True
        for target in select.targetList or ():
            value = target.val
            if not isinstance(value, ast.ColumnRef):
                if not self._constant(value):
                    raise self._refuse("a subquery in FROM or WHERE makes something of a row")
                columns[target.name or "?column?"] = Known("", False)
            elif isinstance(value.fields[-1], ast.A_Star):
                known = known and all(source.columns is not None for source in sources)
                for source in sources:
                    columns |= source.columns or {}
            else:
                found = _find(value, sources)
                columns[target.name or value.fields[-1].sval] = found or Known("", False)
        return columns if known else None, sources

    def _filter(
        self, node: Any, sources: Sources, sides: Places | None = None, *, picks: bool = False
    ) -> None:
        """Check a condition on rows: each part of it is of one source, or joins two by ``=``.

        ``sides``: the sources that it may be of, None for any. Where it only ``picks`` rows it may
        be of several.
        """
        if node is None:
            return
        if isinstance(node, ast.BoolExpr) and node.boolop == enums.BoolExprType.AND_EXPR:
            for argument in node.args:
                self._filter(argument, sources, sides, picks=picks)
            return
        meant = [_places(each, sources) for each in self._condition(node, sources, picks=picks)]
        if picks or not meant:
            return
        common = meant[0].intersection(*meant)
        if not common and not compares_columns(node):
            raise self._refuse("a condition on two tables together is more than =")
        if common and sides is not None and not common <= sides:
            raise self._refuse("ON of an outer join has a condition on rows that are kept anyway")

    def _condition(self, node: Any, sources: Sources, *, picks: bool) -> list[Any]:
        """Check the form of a condition. Returns the columns that it compares."""
        if isinstance(node, ast.BoolExpr):
            inside = [self._condition(each, sources, picks=picks) for each in node.args]
            return [column for columns in inside for column in columns]
        if isinstance(node, ast.SubLink):
            return self._semi_join(node, sources)
        if self._constant(node) or compares_literals(node):
            return []
        if compares_columns(node) or orders_columns(node):
            return [node.lexpr, node.rexpr]
        column = compared_with_constants(node, self._constants)
        if column is None:
            raise self._refuse("a condition does not just compare columns")
        if isinstance(node, ast.A_Expr):
            given = constants(node.rexpr if node.lexpr is column else node.lexpr)
            if matches_a_pattern(node) and not all(map(self._pattern, given)):
                raise self._refuse("a pattern may fail where it is reached")
        return [column]

    def _semi_join(self, node: Any, sources: Sources) -> list[Any]:
        kinds = enums.SubLinkType
        equals = node.operName is None or [part.sval for part in node.operName] == ["="]
        tested = [node.testexpr] if isinstance(node.testexpr, ast.ColumnRef) else []
        known = node.subLinkType == kinds.EXISTS_SUBLINK or (
            node.subLinkType == kinds.ANY_SUBLINK and equals and tested
        )
        if not known:
            raise self._refuse("a subquery in a condition is neither IN nor EXISTS")
        _, inner = self._plain(node.subselect, picks=True)
        outer = [each for each in _column_refs(node.subselect) if not _places(each, inner)]
        if not all(_places(each, sources) for each in outer):
            raise self._refuse("a name in a subquery may mean several things")
        return [*tested, *outer]

    def _constants(self, node: Any) -> bool:
        return all(map(self._constant, constants(node)))

    def _constant(self, node: Any) -> bool:
        """Tell whether it is a constant that has its value before any row is read, or cannot fail.

        BI tools write times as ``to_timestamp('2026-01-31 00:00:00', 'YYYY-MM-DD HH24:MI:SS')``.
        """
        if isinstance(node, ast.SQLValueFunction):
            return True
        if isinstance(node, ast.FuncCall):
            *schema, name = (part.sval for part in node.funcname)
            texts = [getattr(getattr(each, "val", None), "sval", "") for each in node.args or ()]
            return schema in ([], ["pg_catalog"]) and (
                (name == "now" and not texts)
                or (name in ("to_date", "to_timestamp") and len(texts) == 2 and is_time(*texts))
            )
        if isinstance(node, ast.ParamRef):
            return self._type(node) in _CONSTANTS
        if isinstance(node, ast.TypeCast):
            *schema, name = (part.sval for part in node.typeName.names)
            if schema not in ([], ["pg_catalog"]) or name not in _CONSTANTS:
                return False
            if isinstance(node.arg, ast.ParamRef):
                return self._type(node.arg) in _CONSTANTS - _TEXTS
            return isinstance(node.arg, ast.A_Const)
        return isinstance(node, ast.A_Const)

    def _type(self, parameter: Any) -> str:
        """Return the type of a parameter, or of its elements, as its literal ends with it."""
        literal = self._literals.get(parameter.number, "(NULL::bigint)")
        return base_type(literal.removesuffix(")").rpartition("::")[2].removesuffix("[]"))

    def _pattern(self, node: Any) -> bool:
        while isinstance(node, ast.TypeCast):
            node = node.arg
        if isinstance(node, ast.ParamRef):
            return "\\" not in self._literals.get(node.number, "")
        text = getattr(node.val, "sval", "") if isinstance(node, ast.A_Const) else "\\"
        return (len(text) - len(text.rstrip("\\"))) % 2 == 0

    # --- what is evaluated for groups -------------------------------------------------------------

    def _of_groups(self, node: Any) -> None:
        """Check an expression of keys and aggregates. That all else is a key PostgreSQL checks."""
        if isinstance(node, ast.FuncCall) and node.funcname[-1].sval in AGGREGATES:
            self._aggregate(node)
            return
        if isinstance(node, ast.ColumnRef):
            self._column(node)
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
            self._column(column)
            found = _find(column, self.sources)
            if column is not argument and not (found and widens(found.type, argument.typeName)):
                raise self._refuse(f"the argument of {name} is cast so that it may fail")
            if found is None:
                raise self._refuse(f"it is not known of which table the argument of {name} is")
            if not found.not_null:
                self._contributing[_written(column)] = None

    def _column(self, node: Any) -> None:
        """Refuse ``t.f`` that may be a function of a row, and stars."""
        names = [part.sval for part in node.fields if isinstance(part, ast.String)]
        if len(names) < len(node.fields):
            raise self._refuse("a star stands for columns that are no keys")
        if len(names) > 1:
            known = [s for s in self.sources if s.name == names[-2]]
            if any(s.columns is not None and names[-1] not in s.columns for s in known):
                raise self._refuse(f"{names[-1]} may be a function of a row")

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
        if isinstance(node, ast.ColumnRef):
            self._column(node)
            return _written(node)
        if isinstance(node, ast.FuncCall):
            *schema, name = (part.sval for part in node.funcname)
            arguments: Any = node.args or ()
            units = {"date_trunc": _UNITS, "extract": _FIELDS, "date_part": _FIELDS}.get(name)
            if schema in ([], ["pg_catalog"]) and units and len(arguments) == 2:
                unit = getattr(getattr(arguments[0], "val", None), "sval", None)
                if unit in units:
                    return f"pg_catalog.{name}({quote_literal(unit)}, {self._time(arguments[1])})"
        if isinstance(node, ast.TypeCast) and not node.typeName.typmods:
            *schema, name = (part.sval for part in node.typeName.names)
            if schema in ([], ["pg_catalog"]) and name in _TIME_CASTS:
                return f"CAST({self._time(node.arg)} AS pg_catalog.{name})"
        raise self._refuse("a key is neither a column nor a part of a time")

    def _time(self, node: Any) -> str:
        if isinstance(node, ast.ColumnRef):
            found = _find(node, self.sources)
            if found is None or base_type(found.type) not in _TIMES:
                raise self._refuse("GROUP BY takes a part of what is not known to be a time")
        return self._key(node)


def _written(column: Any) -> str:
    return ".".join(quote_identifier(part.sval) for part in column.fields)


def _column_refs(node: Any) -> Iterator[Any]:
    if isinstance(node, ast.ColumnRef):
        yield node
    for child in children(node):
        yield from _column_refs(child)


def _places(node: Any, sources: Sources) -> Places:
    """Return the sources of which a column may be one."""
    names = [part.sval for part in node.fields if isinstance(part, ast.String)]
    if len(names) > 1 or len(names) < len(node.fields):
        named = names[-2:-1] if len(names) == len(node.fields) else names[-1:]
        return frozenset(n for n, source in enumerate(sources) if [source.name] == named)
    return frozenset(
        n
        for n, source in enumerate(sources)
        if source.columns is None or names[0] in source.columns
    )


def _find(node: Any, sources: Sources) -> Known | None:
    """Return what is known of a column, None where that is not clear.

    A column that a join merges is as either side has it.
    """
    places = sorted(_places(node, sources))
    name: str = node.fields[-1].sval if isinstance(node.fields[-1], ast.String) else "*"
    held = [(sources[place], (sources[place].columns or {}).get(name)) for place in places]
    if not held or any(known is None for _, known in held):
        return None
    found = [Known(k.type, k.not_null and not s.nullable) for s, k in held if k is not None]
    return replace(found[0], not_null=all(each.not_null for each in found))


def aggregates(select: Any) -> bool:
    """Tell whether a query calls an aggregate; any function that is no known other one is one."""
    waiting = [select.targetList, select.havingClause, select.sortClause]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.SubLink):
            continue
        if isinstance(node, ast.FuncCall) and node.funcname[-1].sval not in _SCALARS:
            return True
        waiting.extend(children(node))
    return False


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
    elif isinstance(node, ast.SubLink | ast.A_Indirection | ast.GroupingFunc):
        raise refuse("a subquery, a field or GROUPING stands where groups are shown")


def groups(select: Any) -> bool:
    """Tell whether a query gives groups and no rows."""
    asked = select.groupClause or select.havingClause or select.distinctClause
    return bool(asked) or aggregates(select)
