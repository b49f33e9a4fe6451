"""Conditions of which it is known on the tree that they tell of rows by TRUE or not alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from oar_adapters.interface import base_type

from oar_proxy.sql.tree import ast, enums

_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", "<=", ">", ">=", "~~", "!~~", "~~*", "!~~*"})
_KINDS: Final = enums.A_Expr_Kind
_COMPARING: Final = frozenset(
    {
        _KINDS.AEXPR_OP,
        _KINDS.AEXPR_IN,
        _KINDS.AEXPR_LIKE,
        _KINDS.AEXPR_ILIKE,
        _KINDS.AEXPR_DISTINCT,
        _KINDS.AEXPR_NOT_DISTINCT,
        _KINDS.AEXPR_OP_ANY,
        _KINDS.AEXPR_OP_ALL,
    }
)
_BETWEEN: Final = frozenset(
    {
        _KINDS.AEXPR_BETWEEN,
        _KINDS.AEXPR_NOT_BETWEEN,
        _KINDS.AEXPR_BETWEEN_SYM,
        _KINDS.AEXPR_NOT_BETWEEN_SYM,
    }
)


def compares_columns(node: Any) -> bool:
    """Tell whether it is ``a = b``."""
    return (
        isinstance(node, ast.A_Expr)
        and node.kind in (_KINDS.AEXPR_OP, _KINDS.AEXPR_NOT_DISTINCT)
        and [part.sval for part in node.name] == ["="]
        and isinstance(node.lexpr, ast.ColumnRef)
        and isinstance(node.rexpr, ast.ColumnRef)
    )


def _is_column(node: Any) -> bool:
    return isinstance(node, ast.ColumnRef)


def is_constant(node: Any) -> bool:
    """Tell whether it is made of constants and parameters, cast or listed."""
    if isinstance(node, tuple):
        return all(map(is_constant, node))
    if isinstance(node, ast.TypeCast):
        return is_constant(node.arg)
    if isinstance(node, ast.A_ArrayExpr):
        return all(map(is_constant, node.elements or ()))
    return isinstance(node, ast.A_Const | ast.ParamRef)


def compared_with_constants(
    node: Any,
    constant: Callable[[Any], bool] = is_constant,
    compared: Callable[[Any], bool] = _is_column,
) -> Any | None:
    """Return the column that is compared with nothing but constants, as it is.

    A cast or a function of it may fail, with an error that quotes the value. ``constant`` tells
    what is a constant, ``compared`` what may be compared.
    """
    if isinstance(node, ast.NullTest | ast.BooleanTest):
        return node.arg if compared(node.arg) else None
    if compared(node):
        return node
    if not isinstance(node, ast.A_Expr):
        return None
    known = node.kind in _COMPARING and [p.sval for p in node.name][1:] == []
    if node.kind not in _BETWEEN and not (known and node.name[0].sval in _COMPARISONS):
        return None
    for one, other in ((node.lexpr, node.rexpr), (node.rexpr, node.lexpr)):
        if compared(one) and constant(other):
            return one
    return None


def constants(node: Any) -> list[Any]:
    """Return what a list or an array of constants is made of, casts as they are."""
    if isinstance(node, tuple):
        return [each for inner in node for each in constants(inner)]
    if isinstance(node, ast.A_ArrayExpr):
        return constants(node.elements or ())
    return [node]


def matches_a_pattern(node: Any) -> bool:
    """Tell whether a comparison is LIKE or ILIKE, by whatever name."""
    return isinstance(node, ast.A_Expr) and "~~" in node.name[-1].sval


_TIME_FORMS: Final = {
    "YYYY-MM-DD": "%Y-%m-%d",
    "YYYY-MM-DD HH24:MI:SS": "%Y-%m-%d %H:%M:%S",
    "YYYY-MM-DD HH24:MI:SS.US": "%Y-%m-%d %H:%M:%S.%f",
}


def is_time(text: str, form: str) -> bool:
    """Tell whether a text is a time of a form that PostgreSQL reads without fail."""
    try:
        datetime.strptime(text, _TIME_FORMS[form])
    except (KeyError, ValueError):
        return False
    return True


_WIDER: Final = {
    "smallint": {"int4", "int8", "numeric", "float8"},
    "integer": {"int8", "numeric", "float8"},
    "bigint": {"numeric", "float8"},
    "real": {"float8"},
}
"""Types that hold all values of another."""


def widens(type_name: str, to: Any) -> bool:
    """Tell whether a cast of a type to one that the tree names cannot fail."""
    *schema, name = (part.sval for part in to.names)
    plain = schema in ([], ["pg_catalog"]) and not to.typmods and not to.arrayBounds
    return plain and name in _WIDER.get(base_type(type_name), ())


def compares_literals(node: Any) -> bool:
    """Tell whether it is ``1 = 1``, which tools write where there is no condition."""
    return (
        isinstance(node, ast.A_Expr)
        and node.kind == enums.A_Expr_Kind.AEXPR_OP
        and isinstance(node.lexpr, ast.A_Const)
        and isinstance(node.rexpr, ast.A_Const)
    )


def orders_columns(node: Any) -> bool:
    """Tell whether a condition compares two columns as they are, which cannot fail."""
    return (
        isinstance(node, ast.A_Expr)
        and node.kind in (enums.A_Expr_Kind.AEXPR_OP, enums.A_Expr_Kind.AEXPR_DISTINCT)
        and [part.sval for part in node.name]
        in (["<"], ["<="], [">"], [">="], ["<>"], ["!="], ["="])
        and isinstance(node.lexpr, ast.ColumnRef)
        and isinstance(node.rexpr, ast.ColumnRef)
    )
