"""What may be evaluated for rows behind groups: lists of values and conditions, on the tree.

A value that is made of a row can fail, with an error that quotes it or is there for that row
alone; a function of the session's own can tell it. So a row is compared, and a value made of it, by
what can do neither, whatever is in the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from oar_proxy.sql.tree import ast, column_refs, enums, has_query

_UNITS: Final = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})
_FIELDS: Final = _UNITS | {"dow", "isodow", "doy", "epoch", "isoyear"}
_TAKES_PART: Final = {"date_trunc": _UNITS, "extract": _FIELDS, "date_part": _FIELDS}

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_EXACT: Final = _INTEGERS | {"numeric"}
_NUMBERS: Final = _EXACT | {"real", "double precision"}
_TIMES: Final = frozenset({"date", "timestamp without time zone", "timestamp with time zone"})
_ZONED: Final = {
    "timestamp without time zone": "timestamp with time zone",
    "timestamp with time zone": "timestamp without time zone",
}
"""What a time with a zone is without, and the other way round."""

_STRINGS: Final = frozenset({"character", "character varying", "text", "unknown"})
_AS_TEXT: Final = _NUMBERS | _TIMES | _STRINGS | {"boolean", "uuid"}
"""Types of which every value has a text."""

_OF_TEXT: Final = frozenset({"btrim", "initcap", "lower", "ltrim", "rtrim", "upper"})
_CUTTING: Final = frozenset({"left", "right", "substr", "substring"})
_ROUNDING: Final = frozenset({"ceil", "ceiling", "floor", "round", "trunc"})

_FEW_DIGITS: Final = "numeric(a few digits)"
"""What most parts of a time are, which fit an integer."""

_ENDLESS: Final = frozenset({"epoch", "isoyear", "year"})
"""Parts that ``infinity`` has: infinitely many, which fit none."""

_ZONES: Final = frozenset({"UTC", "Etc/UTC", "GMT"})
"""Names of zones that every PostgreSQL knows. Of another one it says with the first row if not."""

_MOST_STEPS: Final = 64
"""Steps that a value is made by: many could make it too large, depending on what is in the row."""

_MOVE: Final = 20
"""What moving a time counts as."""

_TIME_FORMAT: Final = re.compile(
    r"(?:YYYY|IYYY|YY|MM|DDD|DD|D|HH24|HH12|MI|SS|Q|WW|IW|Month|Mon|Day|Dy|[ :/._-])+"
)
_INTERVAL: Final = re.compile(
    r"-?(?:\d{1,5} ?(?:second|minute|hour|day)|\d{1,3} ?(?:week|month|year))s?", re.IGNORECASE
)
"""So short that no time that somebody means is out of range with three of them."""

_PLAIN: Final = re.compile(r"-?(?=.{1,20}$)(?:\d+\.?\d*|\.\d+)")
"""A number of so few digits that no value of a row is out of range with it."""

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

_SPELLED: Final = {
    "bool": "boolean",
    "bpchar": "character",
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "varchar": "character varying",
}
"""Types as the grammar names them, and as ``format_type`` does."""

Refuse = Callable[[str], InsufficientPrivilege]


@dataclass(frozen=True, slots=True)
class Known:
    """A column: its type, empty where that is not known, and whether it is never NULL.

    ``made``: of how many steps it is made, by expressions of the statement's author; 0 where it is
    as it is.
    """

    type: str
    not_null: bool
    made: int = 0


Columns = Mapping[str, Known]


@dataclass(frozen=True, slots=True)
class Source:
    """What FROM names.

    ``columns`` None: they are not known. ``keys`` are columns that no two rows of it have alike.
    ``nullable``: an outer join may give NULLs in its place.
    """

    name: str | None
    columns: Columns | None
    keys: Sequence[Sequence[str]] = ()
    nullable: bool = False


Sources = Sequence[Source]
Places = frozenset[int]
"""Sources, by their place, of which one may be meant."""


class RowForms:
    """Checks of what is evaluated for rows.

    ``literals`` are the client's parameters; ``picking`` checks a query in a condition, and gives
    the sources of its FROM. ``refuse`` makes the error of what is on no list.
    """

    def __init__(
        self, literals: Mapping[int, str], picking: Callable[[Any], Sources], refuse: Refuse
    ) -> None:
        self._literals = literals
        self._picking = picking
        self._refuse = refuse

    # --- conditions -------------------------------------------------------------------------------

    def filter(
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
                self.filter(argument, sources, sides, picks=picks)
            return
        meant = [places(each, sources) for each in self._condition(node, sources)]
        if picks or not meant:
            return
        common = meant[0].intersection(*meant)
        if not common and not compares_columns(node):
            raise self._refuse("a condition on two tables together is more than =")
        if common and sides is not None and not common <= sides:
            raise self._refuse("ON of an outer join has a condition on rows that are kept anyway")

    def _condition(self, node: Any, sources: Sources) -> list[Any]:
        """Check the form of a condition. Returns the columns that it compares."""
        if isinstance(node, ast.BoolExpr):
            inside = [self._condition(each, sources) for each in node.args]
            return [column for columns in inside for column in columns]
        if isinstance(node, ast.SubLink):
            return self._semi_join(node, sources)
        if self._constant(node) or compares_literals(node):
            return []
        if compares_columns(node) or orders_columns(node):
            self.require_column(node.lexpr, sources)
            self.require_column(node.rexpr, sources)
            return [node.lexpr, node.rexpr]

        def compared(one: Any) -> bool:
            return self._value(one, sources) is not None

        value = compared_with_constants(node, self._constants, compared)
        if value is None:
            raise self._refuse("a condition does not just compare columns")
        if isinstance(node, ast.A_Expr) and node is not value:
            given = constants(node.rexpr if node.lexpr is value else node.lexpr)
            if matches_a_pattern(node) and not all(map(self._pattern, given)):
                raise self._refuse("a pattern may fail where it is reached")
        return list(column_refs(value))

    def _semi_join(self, node: Any, sources: Sources) -> list[Any]:
        kinds = enums.SubLinkType
        equals = node.operName is None or [part.sval for part in node.operName] == ["="]
        tested = [node.testexpr] if isinstance(node.testexpr, ast.ColumnRef) else []
        known = node.subLinkType == kinds.EXISTS_SUBLINK or (
            node.subLinkType == kinds.ANY_SUBLINK and equals and tested
        )
        if not known:
            raise self._refuse("a subquery in a condition is neither IN nor EXISTS")
        inner = self._picking(node.subselect)
        outer = [each for each in column_refs(node.subselect) if not places(each, inner)]
        if not all(places(each, sources) for each in outer):
            raise self._refuse("a name in a subquery may mean several things")
        return [*tested, *outer]

    # --- values -----------------------------------------------------------------------------------

    def value(self, node: Any, sources: Sources) -> Known:
        """Check a value that is made of a row, or is one of its columns."""
        found = self._value(node, sources)
        if found is None:
            raise self._refuse("something that may fail is made of a row")
        return found

    def require_column(self, node: Any, sources: Sources) -> None:
        """Refuse ``t.f`` that may be a function of a row, and stars."""
        names = [part.sval for part in node.fields if isinstance(part, ast.String)]
        if len(names) < len(node.fields):
            raise self._refuse("a star stands for columns that are no keys")
        if len(names) > 1:
            known = [s for s in sources if s.name == names[-2]]
            if any(s.columns is not None and names[-1] not in s.columns for s in known):
                raise self._refuse(f"{names[-1]} may be a function of a row")

    def _value(self, node: Any, sources: Sources) -> Known | None:
        """Return what is known of a value, None where it may fail for some row."""
        if isinstance(node, ast.ColumnRef):
            self.require_column(node, sources)
            return find(node, sources) or Known("", not_null=False)
        if self._literal(node):
            return Known(_literal_type(node), not_null=False)
        if isinstance(node, ast.SQLValueFunction):
            return Known(_NOW.get(node.op, ""), not_null=False)
        if isinstance(node, ast.TypeCast):
            return self._cast(node, sources)
        if isinstance(node, ast.FuncCall):
            return self._call(node, sources)
        if isinstance(node, ast.A_Expr) and node.kind == enums.A_Expr_Kind.AEXPR_OP:
            return self._operation(node, sources)
        if isinstance(node, ast.CoalesceExpr):
            return self._alike(node.args, sources)
        if isinstance(node, ast.CaseExpr) and not any(map(has_query, node.args)):
            return self._case(node, sources)
        return None

    def _cast(self, node: Any, sources: Sources) -> Known | None:
        inner = self._value(node.arg, sources)
        *schema, name = (part.sval for part in node.typeName.names)
        plain = schema in ([], ["pg_catalog"]) and not (
            node.typeName.typmods or node.typeName.arrayBounds
        )
        if inner is None or not plain:
            return None
        kind = base_type(inner.type)
        if widens(kind, node.typeName):
            return replace(inner, type=_SPELLED.get(name, name))
        to_time = kind in _TIMES and name in ("date", "timestamp", "timestamptz")
        to_text = kind in _AS_TEXT and name in ("text", "varchar")
        to_number = inner.type == _FEW_DIGITS and name in ("int4", "int8")
        if not (to_time or to_text or to_number):
            return None
        return _made(_SPELLED.get(name, name), inner)

    def _call(self, node: Any, sources: Sources) -> Known | None:
        *schema, name = (part.sval for part in node.funcname)
        more = (node.agg_filter, node.agg_order, node.over, node.func_variadic, node.agg_distinct)
        if schema not in ([], ["pg_catalog"]) or any(more) or node.agg_star:
            return None
        arguments: Sequence[Any] = node.args or ()
        if name == "now" and not arguments:
            return Known("timestamp with time zone", not_null=True)
        if name in _TAKES_PART:
            return self._part_of_time(name, arguments, sources)
        if name == "timezone":
            return self._in_a_zone(arguments, sources)
        values = self._values(arguments, sources)
        if not values:
            return None
        kinds = [base_type(value.type) for value in values]
        if name == "concat" or (name in _OF_TEXT and len(kinds) == 1):
            return _made("text", *values) if _STRINGS.issuperset(kinds) else None
        if name in _CUTTING and _STRINGS.issuperset(kinds[:1]):
            lengths = [_number(each) for each in arguments[1:]]
            unknown = any(n is None or n < 0 for n in lengths)
            return None if unknown else _made("text", *values)
        if name in _ROUNDING and len(kinds) == 1 and kinds[0] in _NUMBERS:
            exact = kinds[0] == "numeric"
            return _made(values[0].type if exact else "double precision", *values)
        if name in ("round", "trunc") and kinds == ["numeric", "integer"]:
            fixed = isinstance(arguments[1], ast.A_Const)
            return _made("numeric", *values) if fixed else None
        if name == "to_char" and len(kinds) == 2 and kinds[0] in _TIMES:
            known = _TIME_FORMAT.fullmatch(_text(arguments[1]))
            return _made("text", *values) if known else None
        return None

    def _part_of_time(self, name: str, arguments: Sequence[Any], sources: Sources) -> Known | None:
        if len(arguments) != 2:
            return None
        unit = _text(arguments[0]).lower()
        time = self._value(arguments[1], sources)
        if time is None or unit not in _TAKES_PART[name] or base_type(time.type) not in _TIMES:
            return None
        if name == "date_trunc":
            return _made(
                "timestamp with time zone" if time.type == "date" else base_type(time.type), time
            )
        if name == "date_part":
            return _made("double precision", time)
        return _made("numeric" if unit in _ENDLESS else _FEW_DIGITS, time)

    def _in_a_zone(self, arguments: Sequence[Any], sources: Sources) -> Known | None:
        """``time AT TIME ZONE 'UTC'``."""
        time = self._value(arguments[1], sources)
        kind = "" if time is None else base_type(time.type)
        if time is None or kind not in _ZONED or _text(arguments[0]) not in _ZONES:
            return None
        return _made(_ZONED[kind], time, steps=_MOVE)

    def _operation(self, node: Any, sources: Sources) -> Known | None:
        operator = "".join(part.sval for part in node.name)
        left, right = (self._value(each, sources) for each in (node.lexpr, node.rexpr))
        if left is None or right is None or len(node.name) > 1:
            return None
        kinds = {base_type(left.type), base_type(right.type)}
        if operator == "||" and kinds <= _STRINGS:
            return _made("text", left, right)
        if not kinds <= _EXACT:
            return self._moved(node, left, operator)
        numbers = [_number(node.lexpr), _number(node.rexpr)]
        divides = operator in ("/", "%")
        if (divides and numbers[1] in (None, 0, -1)) or numbers == [None, None]:
            return None
        if "numeric" in kinds and (divides or operator in ("+", "-", "*")):
            return _made("numeric", left, right)
        return _made("bigint", left, right) if divides else None

    def _moved(self, node: Any, left: Known, operator: str) -> Known | None:
        """Let a time be moved by a little."""
        if operator not in ("+", "-") or base_type(left.type) not in _TIMES:
            return None
        cast = node.rexpr
        if not isinstance(cast, ast.TypeCast) or not self._literal(cast):
            return None
        if _literal_type(cast) != "interval" or not _INTERVAL.fullmatch(_text(cast.arg)):
            return None
        kind = "timestamp without time zone" if left.type == "date" else left.type
        return _made(kind, left, steps=_MOVE)

    def _case(self, node: Any, sources: Sources) -> Known | None:
        if node.arg is not None and self._value(node.arg, sources) is None:
            return None
        for when in node.args:
            if node.arg is None:
                self._condition(when.expr, sources)
            elif not self._literal(when.expr):
                return None
        given = [*(when.result for when in node.args), node.defresult]
        return self._alike([each for each in given if each is not None], sources)

    def _alike(self, nodes: Sequence[Any], sources: Sources) -> Known | None:
        """Return what is known of one of several values, which no cast makes alike."""
        values = self._values(nodes, sources)
        kinds = {base_type(value.type) for value in values or ()} - {"unknown"}
        if not values or "" in kinds:
            return None
        if len(kinds) > 1 and not kinds <= _EXACT and not kinds <= _STRINGS:
            return None
        if len(kinds) > 1:
            return _made("numeric" if kinds <= _EXACT else "text", *values)
        return _made(kinds.pop() if kinds else "text", *values)

    def _values(self, nodes: Sequence[Any], sources: Sources) -> list[Known] | None:
        values = [self._value(each, sources) for each in nodes]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else None

    # --- constants --------------------------------------------------------------------------------

    def _constants(self, node: Any) -> bool:
        return all(map(self._constant, constants(node)))

    def _constant(self, node: Any) -> bool:
        """Tell whether it has its value before any row is read, or cannot fail."""
        if self._literal(node):
            return True
        return next(column_refs(node), None) is None and self._value(node, ()) is not None

    def _literal(self, node: Any) -> bool:
        """Tell whether it is a constant as it is written, or a parameter.

        BI tools write times as ``to_timestamp('2026-01-31 00:00:00', 'YYYY-MM-DD HH24:MI:SS')``.
        """
        if isinstance(node, ast.FuncCall):
            *schema, name = (part.sval for part in node.funcname)
            texts = [_text(each) for each in node.args or ()]
            reads = name in ("to_date", "to_timestamp") and len(texts) == 2
            return schema in ([], ["pg_catalog"]) and reads and is_time(*texts)
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
        if isinstance(node, ast.FuncCall):
            return all(map(self._pattern, node.args or ()))
        if isinstance(node, ast.ParamRef):
            return "\\" not in self._literals.get(node.number, "")
        text = getattr(node.val, "sval", "") if isinstance(node, ast.A_Const) else "\\"
        return (len(text) - len(text.rstrip("\\"))) % 2 == 0


_NOW: Final = {
    enums.SQLValueFunctionOp.SVFOP_CURRENT_DATE: "date",
    enums.SQLValueFunctionOp.SVFOP_CURRENT_TIMESTAMP: "timestamp with time zone",
    enums.SQLValueFunctionOp.SVFOP_LOCALTIMESTAMP: "timestamp without time zone",
}


def _made(kind: str, *of: Known, steps: int = 0) -> Known | None:
    """Return what is made of others; None where that takes too many steps."""
    made = (steps or len(of)) + sum(each.made for each in of)
    return Known(kind, not_null=False, made=made) if made <= _MOST_STEPS else None


def _literal_type(node: Any) -> str:
    """Return the type of a constant, empty where it is not worth knowing."""
    if isinstance(node, ast.TypeCast):
        name = node.typeName.names[-1].sval
        return "" if node.typeName.arrayBounds else _SPELLED.get(name, name)
    if isinstance(node, ast.FuncCall):
        is_date = node.funcname[-1].sval == "to_date"
        return "date" if is_date else "timestamp with time zone"
    if not isinstance(node, ast.A_Const):
        return ""
    if isinstance(node.val, ast.Integer):
        return "integer"
    if isinstance(node.val, ast.Float):
        return "numeric" if "." in node.val.fval and _PLAIN.fullmatch(node.val.fval) else ""
    return "boolean" if isinstance(node.val, ast.Boolean) else "unknown"


def _number(node: Any) -> float | None:
    """Return a constant number of few digits."""
    if not isinstance(node, ast.A_Const) or not isinstance(node.val, ast.Integer | ast.Float):
        return None
    text = str(node.val.ival or 0) if isinstance(node.val, ast.Integer) else node.val.fval
    return float(text) if _PLAIN.fullmatch(text) else None


def _text(node: Any) -> str:
    """Return a constant text, empty where it is none."""
    return str(getattr(getattr(node, "val", None), "sval", ""))


def places(node: Any, sources: Sources) -> Places:
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


def find(node: Any, sources: Sources) -> Known | None:
    """Return what is known of a column, None where that is not clear.

    A column that a join merges is as either side has it.
    """
    at = sorted(places(node, sources))
    name: str = node.fields[-1].sval if isinstance(node.fields[-1], ast.String) else "*"
    held = [(sources[place], (sources[place].columns or {}).get(name)) for place in at]
    if not held or any(known is None for _, known in held):
        return None
    found = [replace(k, not_null=k.not_null and not s.nullable) for s, k in held if k is not None]
    return replace(found[0], not_null=all(each.not_null for each in found))
