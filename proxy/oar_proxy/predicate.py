"""Conditions PostgreSQL puts on one scan, as predicates an owner's adapter can be asked about.

The input is what EXPLAIN prints: constants folded, every literal typed. A form that is not in the
list below is no error: it is simply not sent, and the hub evaluates it (decision 4).
"""

from __future__ import annotations

from typing import Any, Final

from oar_adapters.interface import (
    And,
    Comparison,
    ComparisonOperator,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Predicate,
    base_type,
)

from oar_proxy.catalog import PublishedTable
from oar_proxy.sql.parse import parse_expression
from oar_proxy.sql.tree import ast, enums

_TYPE_NAMES: Final = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
    "varchar": "character varying",
    "bpchar": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
}
"""The parser's names of types, as ``format_type`` writes them."""

_FAMILIES: Final = {
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "text": "text",
    "character varying": "text",
}
_COMPARABLE: Final = frozenset(
    {
        "integer",
        "text",
        "character",
        "numeric",
        "real",
        "double precision",
        "boolean",
        "uuid",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)
"""Families whose comparison depends on the two values alone."""

_FLOATS: Final = frozenset({"real", "double precision"})

_RELAYABLE: Final = frozenset({"integer", "text", "numeric", "uuid", "date", "bytea", "boolean"})
"""Families whose equality is transitive and the same at every owner (R39 to R50). Floats are not:
equality across their widths is not transitive. ``numeric`` is compared by value."""

_OPERATORS: Final[dict[str, ComparisonOperator]] = {
    "=": "=",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_MIRRORED: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}


def family(type_name: str) -> str:
    """The types that compare with each other without a cast share a family."""
    base = base_type(type_name)
    return _FAMILIES.get(base, base)


def relayable(source_type: str, target_type: str) -> bool:
    """Tell whether keys of one type may be looked up in a column of the other."""
    return family(source_type) == family(target_type) and family(source_type) in _RELAYABLE


def read(
    text: str, table: PublishedTable, alias: str, *, exact_floats: bool = True
) -> Predicate | None:
    """Read one condition on a scan of ``table`` under ``alias``; None: not expressible.

    ``exact_floats`` is false where floats were printed with fewer digits than tell them apart
    (``extra_float_digits`` below 1): a literal may then be another number than the hub compares.
    """
    predicate = _read(parse_expression(text), table, alias)
    if not exact_floats and predicate is not None and _has_float(predicate):
        return None
    return predicate


def _has_float(predicate: Predicate) -> bool:
    if isinstance(predicate, (Comparison, Membership)):
        return predicate.type in _FLOATS
    if isinstance(predicate, Not):
        return _has_float(predicate.argument)
    return isinstance(predicate, (And, Or)) and any(map(_has_float, predicate.arguments))


def _read(node: Any, table: PublishedTable, alias: str) -> Predicate | None:
    if isinstance(node, ast.BoolExpr):
        return _boolean(node, table, alias)
    if isinstance(node, ast.NullTest):
        column = _column(node.arg, table, alias)
        if column is None:
            return None
        return NullTest(column, node.nulltesttype == enums.NullTestType.IS_NOT_NULL)
    if isinstance(node, ast.A_Expr):
        return _operator(node, table, alias)
    column = _column(node, table, alias)
    if column is not None and base_type(table.column(column).type) == "boolean":
        return Comparison(column, "=", "true", "boolean")
    return None


def _boolean(node: Any, table: PublishedTable, alias: str) -> Predicate | None:
    arguments = [_read(argument, table, alias) for argument in node.args]
    known = tuple(argument for argument in arguments if argument is not None)
    if len(known) != len(arguments):
        return None
    if node.boolop == enums.BoolExprType.AND_EXPR:
        return And(known)
    if node.boolop == enums.BoolExprType.OR_EXPR:
        return Or(known)
    return Not(known[0])


def _operator(node: Any, table: PublishedTable, alias: str) -> Predicate | None:
    if len(node.name) != 1:
        return None
    symbol = node.name[0].sval
    kinds = enums.A_Expr_Kind
    if node.kind == kinds.AEXPR_OP and node.lexpr is not None:
        if symbol in ("~~", "!~~"):
            return _pattern(node, table, alias, negated=symbol == "!~~")
        operator = _OPERATORS.get(symbol)
        if operator is None:
            return None
        compared = _comparison(node.lexpr, operator, node.rexpr, table, alias)
        if compared is None:
            compared = _comparison(node.rexpr, _MIRRORED[operator], node.lexpr, table, alias)
        return compared
    if node.kind == kinds.AEXPR_OP_ANY and symbol == "=":
        return _membership(node, table, alias)
    if node.kind == kinds.AEXPR_OP_ALL and symbol == "<>":
        member = _membership(node, table, alias)
        return None if member is None else Not(member)
    return None


def _comparison(
    left: Any, operator: ComparisonOperator, right: Any, table: PublishedTable, alias: str
) -> Predicate | None:
    column = _column(left, table, alias)
    constant = _constant(right)
    if column is None or constant is None:
        return None
    value, type_name = constant
    column_family = family(table.column(column).type)
    if column_family != family(type_name) or column_family not in _COMPARABLE:
        return None
    return Comparison(column, operator, value, type_name)


def _pattern(node: Any, table: PublishedTable, alias: str, *, negated: bool) -> Predicate | None:
    column = _column(node.lexpr, table, alias)
    constant = _constant(node.rexpr)
    if column is None or constant is None or family(table.column(column).type) != "text":
        return None
    if family(constant[1]) != "text":
        return None
    return PatternMatch(column, constant[0], negated)


def _membership(node: Any, table: PublishedTable, alias: str) -> Predicate | None:
    column = _column(node.lexpr, table, alias)
    array = node.rexpr
    if column is None or not isinstance(array, ast.TypeCast) or not array.typeName.arrayBounds:
        return None
    type_name = _type_name(array.typeName)
    literal = array.arg
    if not isinstance(literal, ast.A_Const) or not isinstance(literal.val, ast.String):
        return None
    column_family = family(table.column(column).type)
    if column_family != family(type_name) or column_family not in _COMPARABLE:
        return None
    values = array_elements(literal.val.sval)
    if values is None or not values:
        return None
    return Membership(column, values, type_name)


def _column(node: Any, table: PublishedTable, alias: str) -> str | None:
    if isinstance(node, ast.TypeCast):
        # varchar compares as text: the planner prints the relabelling.
        if _type_name(node.typeName) != "text" or node.typeName.arrayBounds:
            return None
        inner = _column(node.arg, table, alias)
        is_text = inner is not None and family(table.column(inner).type) == "text"
        return inner if is_text else None
    if not isinstance(node, ast.ColumnRef) or len(node.fields) != 2:
        return None
    qualifier, name = node.fields
    if not isinstance(name, ast.String) or qualifier.sval != alias:
        return None
    return str(name.sval) if any(c.name == name.sval for c in table.columns) else None


def _constant(node: Any) -> tuple[str, str] | None:
    cast = None
    if isinstance(node, ast.TypeCast):
        if node.typeName.arrayBounds:
            return None
        cast = _type_name(node.typeName)
        node = node.arg
    if not isinstance(node, ast.A_Const) or node.isnull:
        return None
    value = node.val
    if isinstance(value, ast.Integer):
        return str(value.ival), cast or "integer"
    if isinstance(value, ast.Float):
        return value.fval, cast or "numeric"
    if isinstance(value, ast.Boolean):
        return ("true" if value.boolval else "false"), cast or "boolean"
    if isinstance(value, ast.String) and cast is not None:
        return value.sval, cast
    return None


def _type_name(node: Any) -> str:
    name: str = node.names[-1].sval
    return _TYPE_NAMES.get(name, name)


def array_elements(literal: str) -> tuple[str, ...] | None:
    """Split a one-dimensional array literal; None where it has a NULL or more dimensions."""
    if not (literal.startswith("{") and literal.endswith("}")):
        return None
    values: list[str] = []
    position, end = 1, len(literal) - 1
    while position < end:
        if literal[position] == "{":
            return None
        if literal[position] == '"':
            value, position = _quoted_element(literal, position + 1)
        else:
            stop = literal.find(",", position, end)
            stop = end if stop < 0 else stop
            value = literal[position:stop]
            position = stop
            if value.upper() == "NULL":
                return None
        values.append(value)
        position += 1  # the comma
    return tuple(values)


def _quoted_element(literal: str, position: int) -> tuple[str, int]:
    characters: list[str] = []
    while literal[position] != '"':
        if literal[position] == "\\":
            position += 1
        characters.append(literal[position])
        position += 1
    return "".join(characters), position + 1
