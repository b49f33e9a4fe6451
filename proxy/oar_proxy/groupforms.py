"""What a grouping query may evaluate for rows, and what for groups: lists of forms, on the tree.

A value that is made of a row can fail, with an error that quotes it or is there for that row
alone; a function of the session's own can tell it. So rows are only joined, compared and grouped by
what can do neither; aggregates take columns as they are, and are those that make one number of all
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oar_adapters.interface import base_type

from oar_proxy.conditions import (
    compared_with_constants,
    compares_columns,
    constants,
    matches_a_pattern,
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
_TEXTS: Final = ("::text)", "::character varying)", "::bpchar)", "::unknown)", "::name)")
"""How literals of types end that a cast reads: it may fail, for a row that gets as far."""


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
Types = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Source:
    """What FROM of the grouping query names.

    ``types`` None: its columns are not known. ``renamed``: they have other names there.
    """

    name: str | None
    types: Types | None
    renamed: bool = False


class GroupingQuery:
    """A SELECT that groups, checked. ``sources`` is what its FROM names.

    ``types`` gives the columns of the relation that is named at a position, None for a CTE;
    ``literals`` are the client's parameters. ``refuse`` makes the error of what is on no list.
    """

    def __init__(
        self,
        select: Any,
        types: Callable[[int], Types | None],
        literals: Mapping[int, str],
        refuse: Refuse,
    ) -> None:
        self._types_at = types
        self._literals = literals
        self._refuse = refuse
        self._targets: Sequence[Any] = select.targetList or ()
        self.sources: Sequence[Source] = ()
        self._check(select)

    # --- what is evaluated for rows ---------------------------------------------------------------

    def _check(self, select: Any) -> None:
        if select.op != enums.SetOperation.SETOP_NONE:
            raise self._refuse("a set operation combines it")
        if select.withClause is not None:
            raise self._refuse("the grouping query has a WITH of its own")
        if select.windowClause:
            raise self._refuse("windows look at other groups, also those that are not shown")
        self.sources = [source for item in select.fromClause for source in self._from(item)]
        self._condition(select.whereClause)
        for part in ("targetList", "havingClause", "sortClause", "limitCount", "limitOffset"):
            self._of_groups(getattr(select, part))
        if any(each is not None for each in select.distinctClause or ()):
            raise self._refuse("DISTINCT ON picks one of several")

    def _from(self, item: Any) -> Iterator[Source]:
        alias = getattr(item, "alias", None)
        if isinstance(item, ast.RangeVar):
            name = item.relname if alias is None else alias.aliasname
            renamed = alias is not None and bool(alias.colnames)
            yield Source(name, None if renamed else self._known(item.location), renamed)
        elif isinstance(item, ast.JoinExpr) and alias is None and item.join_using_alias is None:
            yield from self._from(item.larg)
            yield from self._from(item.rarg)
            self._condition(item.quals)
        elif isinstance(item, ast.RangeSubselect) and alias is not None and not item.lateral:
            renamed = bool(alias.colnames)
            types = self._plain(item.subquery)
            yield Source(alias.aliasname, None if renamed else types)
        else:
            raise self._refuse("FROM has more than tables, joins and plain subqueries")

    def _known(self, position: int) -> Types:
        found = self._types_at(position)
        if found is None:
            raise self._refuse("a CTE stands beside it")
        return found

    def _plain(self, select: Any) -> Types | None:
        """Check a query that gives columns of rows as they are, or constants.

        Returns its columns, None where a star stands for ones that are not known.
        """
        if not isinstance(select, ast.SelectStmt) or any(
            getattr(select, name) for name in _MORE_THAN_ROWS
        ):
            raise self._refuse("a subquery in FROM or WHERE is more than columns of rows")
        sources = [source for item in select.fromClause or () for source in self._from(item)]
        self._condition(select.whereClause)
        types: dict[str, str] = {}
        for target in select.targetList or ():
            value = target.val
            if not isinstance(value, ast.ColumnRef):
                if not self._constant(value):
                    raise self._refuse("a subquery in FROM or WHERE makes something of a row")
                types[target.name or "?column?"] = ""
            elif isinstance(value.fields[-1], ast.A_Star):
                if any(source.types is None for source in sources):
                    return None
                for source in sources:
                    types |= source.types or {}
            else:
                types[target.name or value.fields[-1].sval] = _type(value, sources) or ""
        return types

    def _condition(self, node: Any) -> None:
        if node is None:
            return
        if isinstance(node, ast.BoolExpr):
            for argument in node.args:
                self._condition(argument)
        elif isinstance(node, ast.SubLink):
            self._semi_join(node)
        elif isinstance(node, ast.ColumnRef | ast.NullTest | ast.BooleanTest):
            if compared_with_constants(node) is None:
                raise self._refuse("a condition makes something of a row")
        elif self._constant(node) or _compares_constants(node):
            return
        elif not (compares_columns(node) or _orders_columns(node)):
            column = compared_with_constants(node)
            sides = (getattr(node, "lexpr", None), getattr(node, "rexpr", None))
            given = [side for side in sides if side is not column]
            if column is None or not all(map(self._constant, constants(tuple(given)))):
                raise self._refuse("a condition does not just compare columns")
            if matches_a_pattern(node) and not all(map(self._pattern, constants(tuple(given)))):
                raise self._refuse("a pattern may fail where it is reached")

    def _semi_join(self, node: Any) -> None:
        kinds = enums.SubLinkType
        equals = node.operName is None or [part.sval for part in node.operName] == ["="]
        column = isinstance(node.testexpr, ast.ColumnRef)
        known = node.subLinkType == kinds.EXISTS_SUBLINK or (
            node.subLinkType == kinds.ANY_SUBLINK and equals and column
        )
        if not known:
            raise self._refuse("a subquery in a condition is neither IN nor EXISTS")
        self._plain(node.subselect)

    def _constant(self, node: Any) -> bool:
        """Tell whether it is a constant that has its value before any row is read."""
        if isinstance(node, ast.TypeCast):
            if isinstance(node.arg, ast.ParamRef):
                return not self._literals.get(node.arg.number, "").endswith(_TEXTS)
            return isinstance(node.arg, ast.A_Const)
        return isinstance(node, ast.A_Const | ast.ParamRef)

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
            if not isinstance(argument, ast.ColumnRef):
                raise self._refuse(f"the argument of {name} is not a column as it is")
            self._column(argument)

    def _column(self, node: Any) -> None:
        """Refuse ``t.f`` that may be a function of a row, and stars."""
        names = [part.sval for part in node.fields if isinstance(part, ast.String)]
        if len(names) < len(node.fields):
            raise self._refuse("a star stands for columns that are no keys")
        if len(names) > 1:
            known = [s for s in self.sources if s.name == names[-2]]
            if any(s.types is not None and names[-1] not in s.types for s in known):
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
            known = [s for s in self.sources if s.types is not None and name in s.types]
            if named and not known:
                if any(source.types is None for source in self.sources):
                    raise self._refuse(
                        f"GROUP BY {name} may mean a column or what is selected by that name"
                    )
                return named[0]
        return item

    def _key(self, node: Any) -> str:
        if isinstance(node, ast.ColumnRef):
            self._column(node)
            return ".".join(quote_identifier(part.sval) for part in node.fields)
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
        if isinstance(node, ast.ColumnRef) and _type(node, self.sources) not in _TIMES:
            raise self._refuse("GROUP BY takes a part of what is not known to be a time")
        return self._key(node)


def _type(node: Any, sources: Sequence[Source]) -> str | None:
    """Return the type of a column without its modifier, None where it is not known."""
    names = [part.sval for part in node.fields if isinstance(part, ast.String)]
    meant = [s for s in sources if len(names) == 1 or s.name == names[-2]]
    found = [s.types[names[-1]] for s in meant if s.types and names[-1] in s.types]
    return base_type(found[0]) if len(found) == 1 and None not in (s.types for s in meant) else None


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


def _compares_constants(node: Any) -> bool:
    """Tell whether it is ``1 = 1``, which tools write where there is no condition."""
    return (
        isinstance(node, ast.A_Expr)
        and node.kind == enums.A_Expr_Kind.AEXPR_OP
        and isinstance(node.lexpr, ast.A_Const)
        and isinstance(node.rexpr, ast.A_Const)
    )


def _orders_columns(node: Any) -> bool:
    """Tell whether a condition compares two columns as they are, which cannot fail."""
    return (
        isinstance(node, ast.A_Expr)
        and node.kind in (enums.A_Expr_Kind.AEXPR_OP, enums.A_Expr_Kind.AEXPR_DISTINCT)
        and [part.sval for part in node.name]
        in (["<"], ["<="], [">"], [">="], ["<>"], ["!="], ["="])
        and isinstance(node.lexpr, ast.ColumnRef)
        and isinstance(node.rexpr, ast.ColumnRef)
    )


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
