"""Whole statements a PostgreSQL owner answers: they mean there what they mean at the hub. Pure.

Their functions and aggregates are compared with :class:`~oar_adapters.interface.Capabilities`
before; what is left are columns whose type or collation is the owner's own, and session settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import sqlglot
from sqlglot import exp

from oar_adapters.interface import Statement, Table, base_type
from oar_adapters.postgres import sql

FUNCTIONS: Final = frozenset(
    {
        "abs", "bit_length", "btrim", "ceil", "ceiling", "char_length", "character_length",
        "date_part", "date_trunc", "div", "extract", "factorial", "floor", "gcd", "isfinite",
        "lcm", "left", "length", "lpad", "ltrim", "make_date", "make_time", "make_timestamp", "md5",
        "min_scale", "mod", "octet_length", "overlay", "position", "repeat", "replace", "reverse",
        "right", "round", "rpad", "rtrim", "scale", "sign", "split_part", "sqrt", "starts_with",
        "strpos", "substr", "substring", "to_hex", "translate", "trim_scale", "trunc",
    }
)  # fmt: skip
"""Immutable functions of ``pg_catalog`` whose value depends on their arguments alone: on no
collation, character class, time zone or other setting, and on no version that still lives. Those
the owner's version lacks are left out of its :class:`~oar_adapters.interface.Capabilities`.

``concat`` and ``to_char`` are stable; ``lower``, ``upper`` and ``initcap`` follow the locale;
``power``, logarithms and trigonometry follow the platform's library. ``power`` of ``numeric`` gives
other digits since 16, and ``width_bucket`` another bucket at some bounds. Without ``justify_days``
and its kin no interval has months, whose quarter is another one since 18. The three functions on
time depend on no zone as long as :func:`speaks_alike` keeps ``timestamp with time zone`` away from
them.
"""

AGGREGATES: Final = frozenset(
    {
        "avg", "bool_and", "bool_or", "count", "every", "max", "min", "stddev", "stddev_pop",
        "stddev_samp", "sum", "var_pop", "var_samp", "variance",
    }
)  # fmt: skip
"""Aggregates of the same value on the same multiset of rows. Over ``real`` and ``double
precision`` the last bits of sums follow the order of the rows, at the owner as at the hub."""

CHARACTERS: Final = frozenset({"bit_length", "length", "md5", "octet_length", "reverse"})
"""Functions that see how characters are encoded."""

_TIME_DEPENDENT: Final = (
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.CurrentUser,
    exp.Rand,
)
_LOCALE_DEPENDENT: Final = (exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)


BYTEA_COMPUTED: Final = 18
"""The version since which ``bytea`` has extremes, a reverse, and casts to and from integers."""

WEEKS_OF_INTERVALS: Final = 18
"""The version since which an interval has a week."""

NAMELESS_SUBQUERIES: Final = 16
"""The version since which a query in FROM needs no name, and numbers are also hexadecimal, octal,
binary or have underscores."""

_NEW_NUMBERS: Final = re.compile(r"\b0[xob][0-9a-f]|\d_\d", re.IGNORECASE)


def speaks_alike(
    statement: Statement, unlike: Mapping[tuple[str, str], frozenset[str]], version: int
) -> bool:
    """Tell whether a statement means at the owner what it means at the hub.

    ``unlike`` are the columns of :class:`~oar_adapters.postgres.schema.Discovery`, ``version`` is
    the major version of the owner's server.
    """
    try:
        sql.statement(statement)
        tree = sqlglot.parse_one(statement.sql, read="postgres")
    except (ValueError, sqlglot.errors.SqlglotError):
        return False
    if any(isinstance(dot.expression, exp.Func) for dot in tree.find_all(exp.Dot)):
        return False  # under a schema's name no function is known for what it is
    if version < NAMELESS_SUBQUERIES and (
        _NEW_NUMBERS.search(statement.sql) or _has_nameless_subquery(tree)
    ):
        return False
    return _known(tree, statement.tables, version) and _speaks_alike(tree, statement.tables, unlike)


def _has_nameless_subquery(tree: exp.Expr) -> bool:
    for query in tree.find_all(exp.Select, exp.SetOperation):
        around = query.parent
        while isinstance(around, exp.Subquery | exp.Lateral) and not around.alias:
            around = around.parent
        if isinstance(around, exp.From | exp.Join):
            return True
    return False


def _known(tree: exp.Expr, tables: Sequence[Table], version: int) -> bool:
    """Tell whether the owner's version has what the statement computes, as a later hub has."""
    if version < BYTEA_COMPUTED and tree.find(exp.Min, exp.Max, exp.Reverse, exp.Cast):
        binary = _columns_of(tables, "bytea")
        if binary and (_mentioned(tree) & binary or _takes_whole_rows(tree, tables)):
            return False
    parts = [part for part in tree.find_all(exp.Extract) if part.this.name.upper() == "WEEK"]
    return version >= WEEKS_OF_INTERVALS or not (parts and tree.find(exp.Sub))


def _speaks_alike(
    tree: exp.Expr,
    tables: Sequence[Table],
    unlike: Mapping[tuple[str, str], frozenset[str]],
) -> bool:
    if not isinstance(tree, exp.Query) or tree.find(*_TIME_DEPENDENT, *_LOCALE_DEPENDENT):
        return False
    if tree.find(exp.DateTrunc, exp.TimestampTrunc) and _may_see_dates(tree, tables):
        return False
    own = {
        name
        for table in tables
        for name in unlike.get((table.source_schema or "", table.source_name), ())
    }
    if own and (_mentioned(tree) & own or _takes_whole_rows(tree, tables)):
        return False
    zoned = _columns_of(tables, "timestamp with time zone")
    return not (zoned and _mentioned(tree) & zoned) or _is_free_of_time_zones(tree)


def _columns_of(tables: Sequence[Table], type_: str) -> set[str]:
    return {
        column.source_name
        for table in tables
        for column in table.columns
        if base_type(column.type) == type_
    }


def _may_see_dates(tree: exp.Expr, tables: Sequence[Table]) -> bool:
    """Tell whether an argument of ``date_trunc`` could be a ``date``.

    It becomes a ``timestamp with time zone`` then, by the session's time zone.
    """
    made = tree.find(exp.Cast, exp.DateFromParts) is not None
    return made or bool(_mentioned(tree) & _columns_of(tables, "date"))


def _mentioned(tree: exp.Expr) -> set[str]:
    return {identifier.name for identifier in tree.find_all(exp.Identifier)}


def _takes_whole_rows(tree: exp.Expr, tables: Sequence[Table]) -> bool:
    """Tell whether columns may be used without being named: ``*``, NATURAL, a row as a value."""
    if any(join.method == "NATURAL" for join in tree.find_all(exp.Join)):
        return True
    stars = (star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))
    if next(stars, None) is not None:
        return True
    ranges = {table.source_name for table in tables}
    ranges |= {alias.name for alias in tree.find_all(exp.TableAlias)}
    return any(not column.table and column.name in ranges for column in tree.find_all(exp.Column))


def _is_free_of_time_zones(tree: exp.Expr) -> bool:
    """Tell whether nothing in a statement could read the session's time zone.

    Comparing, counting and taking extremes does not; casts, constants and other functions may.
    """
    if any(node.is_string for node in tree.find_all(exp.Literal)) or tree.find(exp.Cast):
        return False
    plain = (exp.Count, exp.Min, exp.Max, exp.Sum, exp.Avg, exp.And, exp.Or)
    return all(isinstance(node, plain) for node in tree.find_all(exp.Func))
