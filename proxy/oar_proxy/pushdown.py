"""Whole statements for the one owner that covers them.

A statement goes whole only when everything in it is on a list: node types, functions, operators
and casts whose result depends on the values alone and is the same at the owner. The owner's text
order is never trusted: unless the owner's database compares bytes, its text columns are read under
``COLLATE "C"``, which is how the hub compares (R47).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oar_adapters.interface import Agreement, Capabilities, Column, Table, base_type

from oar_proxy.predicate import family
from oar_proxy.sessionstate import SessionState
from oar_proxy.sql.text import Edit, quote_identifier, splice
from oar_proxy.sql.tree import ast, children, enums, names_a_moment
from oar_proxy.statement import FederatedStatement, Occurrence

_NODES: Final = frozenset(
    {
        "SelectStmt",
        "ResTarget",
        "ColumnRef",
        "A_Star",
        "String",
        "A_Const",
        "Integer",
        "Float",
        "Boolean",
        "A_Expr",
        "BoolExpr",
        "NullTest",
        "BooleanTest",
        "CaseExpr",
        "CaseWhen",
        "CoalesceExpr",
        "MinMaxExpr",
        "SubLink",
        "RangeVar",
        "JoinExpr",
        "RangeSubselect",
        "Alias",
        "SortBy",
        "FuncCall",
        "WithClause",
        "CommonTableExpr",
        "TypeCast",
        "TypeName",
        "A_ArrayExpr",
        "List",
        "WindowDef",
        "GroupingSet",
    }
)
"""Node types that mean the same at every PostgreSQL."""

_OPERATORS: Final = frozenset(
    {"=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "~~", "!~~"}
)
_WINDOW_FUNCTIONS: Final = frozenset(
    {
        "row_number",
        "rank",
        "dense_rank",
        "percent_rank",
        "cume_dist",
        "ntile",
        "lag",
        "lead",
        "first_value",
        "last_value",
        "nth_value",
    }
)
_TYPES: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "numeric",
        "real",
        "double precision",
        "boolean",
        "text",
        "character varying",
        "uuid",
        "date",
        "timestamp without time zone",
        "bytea",
    }
)
"""Types whose text form, order and equality depend on no setting that is checked below."""

_CAST_NAMES: Final = frozenset(
    {
        "int2",
        "int4",
        "int8",
        "numeric",
        "float4",
        "float8",
        "bool",
        "text",
        "varchar",
        "uuid",
        "date",
        "timestamp",
    }
)
_PLAIN_SETTINGS: Final = {
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "transform_null_equals": "off",
}


@dataclass(frozen=True, slots=True)
class Whole:
    """The statement as the owner gets it, with its place in the text of the statement."""

    owner: str
    sql: str
    tables: tuple[Table, ...]
    start: int
    end: int


def whole_statement(
    statement: FederatedStatement,
    capabilities: Mapping[str, Capabilities],
    parameters: Sequence[Edit],
) -> Whole | str:
    """Return the statement for its one owner, or why it does not go whole."""
    extent = statement.parsed.query_extent
    if extent is None or statement.others or statement.calls:
        return "the hub has a part in it"
    return whole_query(
        statement,
        statement.occurrences,
        statement.parsed.query,
        extent,
        capabilities=capabilities,
        parameters=parameters,
    )


def whole_query(
    statement: FederatedStatement,
    occurrences: Sequence[Occurrence],
    node: Any,
    extent: tuple[int, int],
    *,
    capabilities: Mapping[str, Capabilities],
    parameters: Sequence[Edit],
) -> Whole | str:
    """Return a query of the statement for the one owner of its tables, or why it does not go whole.

    ``occurrences`` are all it reads, ``extent`` is where it stands. ``parameters`` are typed
    literals in the place of the client's.
    """
    owners = {owner for occurrence in occurrences for owner in occurrence.table.owners}
    if len(owners) != 1:
        return "more than one owner holds rows of it"
    (owner,) = owners
    can = capabilities[owner]
    reason = _unfaithful(occurrences, node, statement.state, can)
    if reason is not None:
        return reason
    start, end = extent
    edits = [
        *parameters,
        *(_source(occurrence, can) for occurrence in occurrences),
        *statement.prefix_edits(),
    ]
    inside = [
        Edit(e.start - start, e.end - start, e.replacement) for e in edits if start <= e.start < end
    ]
    return Whole(
        owner=owner,
        sql=splice(statement.parsed.text[start:end], inside),
        tables=tuple(_used_part(o) for o in occurrences),
        start=start,
        end=end,
    )


def _used_part(occurrence: Occurrence) -> Table:
    """The owner's table with the columns the statement may use: what the gate decides about."""
    table = occurrence.table.holders[0].table
    return Table(
        name=table.name,
        columns=_used_columns(occurrence),
        source_name=table.source_name,
        source_schema=table.source_schema,
        primary_key=table.primary_key,
        unique_keys=table.unique_keys,
        row_estimate=table.row_estimate,
        only=table.only,
    )


def _used_columns(occurrence: Occurrence) -> tuple[Column, ...]:
    """The columns the statement may use; any one where it only counts rows."""
    columns = occurrence.table.holders[0].table.columns
    used = tuple(column for column in columns if column.name in occurrence.columns)
    return used or columns[:1]


def _source(occurrence: Occurrence, can: Capabilities) -> Edit:
    """The owner's own table in the place of the published name."""
    table = occurrence.table.holders[0].table
    name = quote_identifier(table.source_name)
    if table.source_schema is not None:
        name = f"{quote_identifier(table.source_schema)}.{name}"
    # Column by column: a star must not bring along what the owner has and does not publish.
    listed = ", ".join(_read_column(c, can) for c in _used_columns(occurrence))
    only = "ONLY " if table.only and can.dialect == "postgres" else ""
    return occurrence.relation.replace(f"SELECT {listed} FROM {only}{name}")


def _read_column(column: Column, can: Capabilities) -> str:
    source, name = quote_identifier(column.source_name), quote_identifier(column.name)
    if family(column.type) == "text" and not can.text_order and can.dialect == "postgres":
        return f'{source} COLLATE "C" AS {name}'
    return source if source == name else f"{source} AS {name}"


def _unfaithful(
    occurrences: Sequence[Occurrence],
    node: Any,
    state: SessionState,
    can: Capabilities,
) -> str | None:
    if not can.statements:
        return "its owner's adapter takes no whole statements"
    if state.foreign_names is not None:
        return state.foreign_names
    for occurrence in occurrences:
        for column in occurrence.table.holders[0].table.columns:
            if column.name not in occurrence.columns:
                continue
            if base_type(column.type) not in _TYPES or column.equality is not Agreement.EXACT:
                return f'column "{column.name}" is compared differently by its owner'
    reason = _unlike_setting(state, node)
    if reason is not None:
        return reason
    if not can.text_order and _orders(node) and _makes_text(node, alone=True):
        return "text that is no column's would be compared in its owner's order (R47)"
    return _unlisted(node, can)


def _unlike_setting(state: SessionState, node: Any) -> str | None:
    """Name a setting by which a query means or shows something else at the owner."""
    for name, value in _PLAIN_SETTINGS.items():
        if state.settings.get(name, value) != value:
            return f"the session's {name} is not {value}"
    # From 1 on each float has one text; drivers for Java set 3.
    if int(state.settings.get("extra_float_digits", "1")) < 1:
        return "the session's extra_float_digits is below 1"
    style, _, order = state.settings.get("DateStyle", "").upper().partition(",")
    if style != "ISO":
        return "the session's DateStyle is not ISO"
    if order.strip() != "MDY" and _reads_days(node):
        return "the session's DateStyle reads days and months in another order than MDY"
    return None


_DATES: Final = frozenset({"date", "timestamp"})
_SEVERAL_NUMBERS: Final = re.compile(r"\d\D+\d")
_YEAR_FIRST: Final = re.compile(r"\d{4}-\d\d?-\d\d?([ T][\d:.]*)?")


def _reads_days(node: Any) -> bool:
    """Tell whether a query may read a text as a date whose day and month could be each other's."""
    if isinstance(node, ast.A_Const) and isinstance(node.val, ast.String):
        text = node.val.sval.strip()
        return bool(_SEVERAL_NUMBERS.search(text)) and not _YEAR_FIRST.fullmatch(text)
    if isinstance(node, ast.TypeCast) and node.typeName.names[-1].sval in _DATES:
        # Of a column it could be one of text.
        return not isinstance(node.arg, ast.A_Const | ast.ParamRef) or _reads_days(node.arg)
    return any(map(_reads_days, children(node)))


_ORDERING: Final = frozenset({"<", "<=", ">", ">="})
_BETWEEN: Final = (
    enums.A_Expr_Kind.AEXPR_BETWEEN,
    enums.A_Expr_Kind.AEXPR_NOT_BETWEEN,
    enums.A_Expr_Kind.AEXPR_BETWEEN_SYM,
    enums.A_Expr_Kind.AEXPR_NOT_BETWEEN_SYM,
)


def _orders(node: Any) -> bool:
    """Tell whether a query compares or sorts by an order anywhere."""
    here = isinstance(node, ast.SortBy | ast.MinMaxExpr)
    if isinstance(node, ast.A_Expr):
        here = node.kind in _BETWEEN or node.name[-1].sval in _ORDERING
    elif isinstance(node, ast.FuncCall):
        here = node.funcname[-1].sval in ("min", "max")
    return here or any(map(_orders, children(node)))


def _makes_text(node: Any, *, alone: bool) -> bool:
    """Tell whether a query may have text that is made of no column: it has the owner's collation.

    Columns are read under a collation of their own, which holds for what is made of them, too. A
    string is not ``alone`` beside a plain column: if that is text, its collation holds for both.
    """
    if isinstance(node, ast.A_Const):
        return alone and isinstance(node.val, ast.String)
    if isinstance(node, ast.TypeCast):
        name = node.typeName.names[-1].sval
        literal = isinstance(node.arg, ast.A_Const)
        # Of a date or a number that is written as a string no text is left.
        return name in ("text", "varchar") or (not literal and _makes_text(node.arg, alone=True))
    if isinstance(node, ast.SelectStmt) and node.valuesLists:
        return True
    if isinstance(node, ast.FuncCall) and node.funcname[-1].sval in _TO_TEXT:
        return True
    if isinstance(node, ast.FuncCall) and node.funcname[-1].sval in _OF_TIME:
        return any(_makes_text(child, alone=False) for child in children(node))
    beside: Sequence[Any] = ()
    if isinstance(node, ast.A_Expr) and node.name[-1].sval != "||":
        beside = [node.lexpr, *(node.rexpr if isinstance(node.rexpr, tuple) else (node.rexpr,))]
    elif isinstance(node, ast.CoalesceExpr | ast.MinMaxExpr):
        beside = list(node.args or ())
    elif isinstance(node, ast.CaseExpr):
        whens: Any = node.args or ()
        beside = [*(when.result for when in whens), node.defresult]
        if any(isinstance(each, ast.ColumnRef) for each in beside):
            tested = [node.arg, *(when.expr for when in whens)]
            return any(_makes_text(each, alone=True) for each in tested) or any(
                _makes_text(each, alone=False) for each in beside
            )
        return any(_makes_text(child, alone=True) for child in children(node))
    inside = not any(isinstance(each, ast.ColumnRef) for each in beside)
    return any(_makes_text(child, alone=inside) for child in children(node))


_TO_TEXT: Final = frozenset({"md5", "to_hex"})
"""Functions whose text may be made of no text."""

_OF_TIME: Final = frozenset({"date_part", "date_trunc", "extract"})
"""Functions whose string says which part of a time is meant."""


def _unlisted(root: Any, can: Capabilities) -> str | None:
    """Name the first thing that is on no list, depth first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, ast.Node):
            reason = _unlisted_node(node, can)
            if reason is not None:
                return reason
            waiting.extend(children(node))
    return None


def _unlisted_node(node: Any, can: Capabilities) -> str | None:
    kind = type(node).__name__
    if kind == "ParamRef":  # replaced by a typed literal before it is sent
        return None
    if kind not in _NODES:
        return f"{kind} is evaluated by the hub"
    if isinstance(node, ast.FuncCall):
        return _unlisted_function(node, can)
    if isinstance(node, ast.A_Expr):
        return _unlisted_operator(node)
    if isinstance(node, ast.SubLink) and node.operName is not None:
        names = [part.sval for part in node.operName]
        return None if names in (["="], ["<>"]) else "a quantified comparison"
    if isinstance(node, ast.TypeName):
        *schema, name = (part.sval for part in node.names)
        known = name in _CAST_NAMES and schema in ([], ["pg_catalog"])
        return None if known else f"type {name} is evaluated by the hub"
    if isinstance(node, ast.SortBy) and node.useOp is not None:
        return "ORDER BY USING"
    if names_a_moment(node):
        return "a literal that names a moment"
    if isinstance(node, ast.JoinExpr) and node.isNatural:
        # The owner's table may have columns that are not published (R11).
        return "NATURAL JOIN"
    if isinstance(node, ast.CommonTableExpr) and node.ctematerialized not in (
        enums.CTEMaterialize.CTEMaterializeDefault,
    ):
        return "a materialised CTE"
    return None


def _unlisted_function(node: Any, can: Capabilities) -> str | None:
    parts = [part.sval for part in node.funcname]
    name = parts[-1]
    if len(parts) > 1 and parts[:-1] != ["pg_catalog"]:
        return f"function {'.'.join(parts)} is the hub's"
    if node.agg_within_group or node.func_variadic:
        return f"{name} in this form is evaluated by the hub"
    if name == "substring" and not _is_number(node.args[1]):
        return "a pattern's classes of characters follow the locale"
    known = can.functions | can.aggregates
    if node.over is not None and can.dialect == "postgres":
        known = known | _WINDOW_FUNCTIONS
    return None if name in known else f"function {name} is evaluated by the hub"


_PLACES: Final = frozenset(
    {"char_length", "character_length", "length", "octet_length", "position", "strpos"}
)


def _is_number(node: Any) -> bool:
    """Tell whether a second argument of ``substring`` is surely a place, and no pattern."""
    if isinstance(node, ast.A_Const):
        return isinstance(node.val, ast.Integer)
    if isinstance(node, ast.TypeCast):
        return node.typeName.names[-1].sval in ("int2", "int4", "int8")
    if isinstance(node, ast.FuncCall):
        return node.funcname[-1].sval in _PLACES
    arithmetic = ("+", "-", "*", "/", "%")
    return isinstance(node, ast.A_Expr) and node.name[-1].sval in arithmetic


def _unlisted_operator(node: Any) -> str | None:
    kinds = enums.A_Expr_Kind
    if node.kind in (
        kinds.AEXPR_DISTINCT,
        kinds.AEXPR_NOT_DISTINCT,
        kinds.AEXPR_NULLIF,
        kinds.AEXPR_BETWEEN,
        kinds.AEXPR_NOT_BETWEEN,
        kinds.AEXPR_BETWEEN_SYM,
        kinds.AEXPR_NOT_BETWEEN_SYM,
    ):
        return None
    if len(node.name) != 1 or node.name[0].sval not in _OPERATORS:
        return f"operator {node.name[-1].sval} is evaluated by the hub"
    if node.kind in (kinds.AEXPR_OP, kinds.AEXPR_IN, kinds.AEXPR_LIKE):
        return None
    return "a quantified comparison"
