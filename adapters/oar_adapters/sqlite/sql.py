"""The SQL an SQLite owner is sent, and how far its comparisons are PostgreSQL's. Pure.

Each column is qualified by its table's alias: an unqualified quoted name that does not exist is
a *string* to SQLite, and would answer in silence.

A condition on a column whose stored values may have another form than the one compared here gets
a guard, ``OR <not of that form>``: such rows are kept, and either mean a value after all (the
statement is evaluated again) or fail at the fetch. Nothing is dropped without being understood.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from oar_adapters import cells as decode
from oar_adapters.interface import (
    Agreement,
    And,
    Column,
    Comparison,
    KeyFilter,
    Membership,
    Not,
    NullTest,
    Or,
    Partial,
    PartialFunction,
    PatternMatch,
    Predicate,
    Scan,
    SemiJoin,
    Table,
    base_type,
)
from oar_adapters.predicates import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    TEXTS,
    Leaf,
    agreement,
    decimal_constant,
    double_constant,
    leaves,
    pattern_is_complete,
)
from oar_adapters.sqlite import cells
from oar_adapters.sqlite.schema import quoted

_Key = int | str
"""A key as JSON holds it."""

Settled = Collection[tuple[str, str]]
"""Columns (table and column, source names) that need no guard."""

ALIAS: Final = "t"
INT64: Final = range(-(2**63), 2**63)
PATTERN_BYTES: Final = 50_000
"""SQLite's own limit on the length of a pattern."""
PATTERN_STARS: Final = 8
"""Matching takes time to the power of the number of stars, and cannot be interrupted."""

_CLOCK: Final = re.compile(r"\d{2}:\d{2}:\d{2}(\.\d{1,6})?", re.ASCII)
_DIGITS: Final = {
    "date": "YYYY-MM-DD",
    "timestamp without time zone": "YYYY-MM-DD hh:mm:ss",
    "time without time zone": "hh:mm:ss",
}


@dataclass(slots=True)
class Parameters:
    """What is bound instead of written: keys, and doubles.

    SQLite's own reading of decimal digits is not always the nearest double.
    """

    values: list[str | float] = field(default_factory=list)
    shown: bool = False
    """Write constants for a reader instead of binding them; keys are a placeholder."""

    def number(self, value: float) -> str:
        """Write a double."""
        if self.shown:
            return repr(value)
        self.values.append(value)
        return "?"

    def keys(self, values: Iterable[_Key | tuple[_Key, ...]]) -> str:
        """Write a list of keys: one JSON array, however many there are (rule R34).

        Keys that belong together are an array inside.
        """
        if not self.shown:
            self.values.append(json.dumps(list(values), ensure_ascii=False))
        return "?"


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant as SQLite has to compare it, and how far that agrees.

    ``as_double`` compares the column's value as a double, as PostgreSQL does with a double.
    """

    value: int | float | str | bytes
    equality: Agreement = Agreement.EXACT
    order: Agreement = Agreement.EXACT
    as_double: bool = False


def scan(query: Scan, settled: Settled, parameters: Parameters, source: str | None = None) -> str:
    """Write a scan. Without columns SQLite counts: one row, one integer.

    ``source`` is what stands for a derived table, with its parameters bound already.
    """
    if source is None:
        source = f"main.{quoted(query.table.source_name)}"
    names = [f"{ALIAS}.{quoted(column.source_name)}" for column in query.columns]
    writer = Writer(query.table, settled, parameters)
    where = writer.where(query)
    limit = "" if query.limit is None else f" LIMIT {query.limit:d}"
    rows = f" FROM {source} AS {ALIAS}{where}"
    if query.counted:
        return _counted(query, rows) + limit
    # A collation that takes case twins for one would keep only one of them.
    exact = all(column.equality is Agreement.EXACT for column in query.columns)
    once = "DISTINCT " if query.distinct and names and exact else ""
    body = f"SELECT {once}{', '.join(names) or '1'}{rows}{limit}"
    return body if names else f"SELECT count(*) FROM ({body})"


def _counted(query: Scan, rows: str) -> str:
    """Write a counted scan without its limit; see :func:`partial` for what it gives."""
    names = [f"{ALIAS}.{quoted(column.source_name)}" for column in query.columns]
    outputs = [*names, "count(*)"]
    for each in query.partials:
        outputs += partial(each)
    # 1 and 1.0 are one value to SQLite; every other difference is one of bytes.
    keys = [part for name in names for part in (f"{name} COLLATE BINARY", f"typeof({name})")]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join(outputs)}{rows}{group}"


def partial(asked: Partial) -> list[str]:
    """Write what is read of one column in a counted scan.

    Whether some value is not of the published type, the count, then what was asked for. A sum comes
    as two: SQLite's own is no longer exact, or fails, past 64 bits.
    """
    column, asked_for = asked.column, asked.functions
    name = f"{ALIAS}.{quoted(column.source_name)}"
    outputs = [f"max({strange(column)})", f"count({name})"]
    if "sum" in asked_for:
        outputs += [f"sum({name} >> 32)", f"sum({name} & 4294967295)"]
    outputs += [f"{f}({name} COLLATE BINARY)" for f in ("min", "max") if f in asked_for]
    return outputs


def counts(query: Scan) -> bool:
    """Tell whether a counted scan is one whose groups and partials are PostgreSQL's."""
    return all(column.type in _GROUPED for column in query.columns) and all(
        each.functions <= _TOLD.get(each.column.type, _NOTHING)
        and (each.column.ordered or not each.functions)
        and each.column.type in _TOLD
        for each in query.partials
    )


def strange(column: Column) -> str:
    """Write what is true of a value that is not of the published type, unknown or not of NULL.

    For the types that have one stored form a value.
    """
    name = f"{ALIAS}.{quoted(column.source_name)}"
    if column.type == "date":
        # Without a modifier some versions of SQLite give 30 February back as it came.
        wrong = f"date({name}, '+0 days') IS NOT {name} OR {name} < '0001-01-01'"
        return f"{name} IS NOT NULL AND (typeof({name}) <> 'text' OR {wrong})"
    wrong = f"typeof({name}) NOT IN ({STORAGE[column.type]}, 'null')"
    return f"{wrong} OR {name} NOT IN (0, 1)" if column.type == "boolean" else wrong


def agrees(table: Table, predicate: Predicate) -> Agreement:
    """Tell how far a predicate means in SQLite what it means in PostgreSQL."""
    return agreement(predicate, lambda leaf: _leaf_agreement(table, leaf))


def _leaf_agreement(table: Table, leaf: Leaf) -> Agreement:
    try:
        column = table.column(leaf.column)
    except KeyError:
        return Agreement.NONE
    match leaf:
        case NullTest():
            return Agreement.EXACT
        case PatternMatch(pattern=pattern):
            # GLOB compares bytes and counts characters whatever the collation.
            usable = column.type == "text" and glob(pattern) is not None
            return Agreement.EXACT if usable else Agreement.NONE
        case Membership(values=()):
            known = accepts_keys(column, base_type(leaf.type))
            return column.equality if known else Agreement.NONE
        case Membership(values=values):
            operands = [operand(column, value, leaf.type) for value in values]
            return _worst([column.equality, *(_equality_of(each) for each in operands)])
        case Comparison():
            return _comparison_agreement(column, leaf)


def _comparison_agreement(column: Column, leaf: Comparison) -> Agreement:
    right = operand(column, leaf.value, leaf.type)
    if right is None:
        return Agreement.NONE
    if leaf.op not in ("=", "<>"):
        return right.order if column.ordered else Agreement.NONE
    verdict = _worst([column.equality, right.equality])
    lossy = leaf.op == "<>" and verdict is not Agreement.EXACT
    return Agreement.NONE if lossy else verdict


def _equality_of(right: Operand | None) -> Agreement:
    return Agreement.NONE if right is None else right.equality


def _worst(verdicts: Iterable[Agreement]) -> Agreement:
    found = set(verdicts)
    for verdict in (Agreement.NONE, Agreement.SUPERSET):
        if verdict in found:
            return verdict
    return Agreement.EXACT


# --- writing -----------------------------------------------------------------------------------


class Writer:
    """Writes conditions on one table. The caller has asked :func:`agrees` first."""

    def __init__(
        self, table: Table, settled: Settled, parameters: Parameters, alias: str = ALIAS
    ) -> None:
        self._alias = alias
        self._table = table
        self._settled = settled
        self._parameters = parameters

    def where(self, query: Scan, depth: int = 0) -> str:
        """Write the conditions of a scan, which is inside so many semi-joins."""
        conditions = [self.guarded(predicate) for predicate in query.predicates]
        conditions += [self.keys(key_filter) for key_filter in query.key_filters]
        conditions += [self.semi_join(semi_join, depth) for semi_join in query.semi_joins]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def semi_join(self, semi_join: SemiJoin, depth: int) -> str:
        """Write a semi-join with another table of the file."""
        source = semi_join.source
        inner = Writer(source.table, self._settled, self._parameters, f"s{depth + 1}")
        columns = [self._table.column(column) for column, _ in semi_join.pairs]
        lefts, rights = [], []
        for column, (_, name) in zip(columns, semi_join.pairs, strict=True):
            source_column = source.table.column(name)
            left, right = self._name(column), inner._name(source_column)
            settled = self._is_settled(column) and inner._is_settled(source_column)
            if column.type == "numeric" and not settled:
                # One decimal may be stored as an integer here and as the double next to it there.
                left, right = _as_double(left), _as_double(right)
            lefts.append(left)
            rights.append(right)
        relation = f"main.{quoted(source.table.source_name)} AS {inner._alias}"
        found = f"SELECT {', '.join(rights)} FROM {relation}{inner.where(source, depth + 1)}"
        return self._or_guards(f"{_row(lefts)} IN ({found})", columns)

    def guarded(self, predicate: Predicate) -> str:
        """Write a predicate with the guards its columns need, outside of any negation."""
        named = {leaf.column for leaf in leaves(predicate) if not isinstance(leaf, NullTest)}
        columns = [self._table.column(name) for name in sorted(named)]
        return self._or_guards(self.condition(predicate), columns)

    def _or_guards(self, condition: str, columns: Iterable[Column]) -> str:
        guards = [guard for column in columns if (guard := self._guard(column)) is not None]
        return f"({' OR '.join([condition, *guards])})" if guards else condition

    def keys(self, key_filter: KeyFilter) -> str:
        """Write a key list. A key that no stored value can equal is left out."""
        columns = [self._table.column(part.column) for part in key_filter.columns]
        names, reads, converted = [], [], []
        for column, part in zip(columns, key_filter.columns, strict=True):
            type_ = base_type(part.type)
            if not accepts_keys(column, type_):
                raise ValueError(f"keys of type {type_} are not compared with {column.type}")
            doubled = type_ in FLOATS and column.type != "double precision"
            names.append(_as_double(self._name(column)) if doubled else self._name(column))
            convert, read = _conversion(column, type_)
            reads.append(read)
            converted.append(map(convert, part.keys))
        if len(columns) == 1:
            array = self._parameters.keys(value for value in converted[0] if value is not None)
            outputs = reads[0].format("value")
        else:
            rows = zip(*converted, strict=True)
            array = self._parameters.keys(row for row in rows if None not in row)
            outputs = ", ".join(
                read.format(f"json_extract(value, '$[{n}]')") for n, read in enumerate(reads)
            )
        found = f"SELECT {outputs} FROM json_each({array})"
        return self._or_guards(f"{_row(names)} IN ({found})", columns)

    def condition(self, predicate: Predicate) -> str:
        """Write a predicate without guards."""
        match predicate:
            case And(arguments=arguments):
                return self._joined(arguments, " AND ", empty="1")
            case Or(arguments=arguments):
                return self._joined(arguments, " OR ", empty="0")
            case Not(argument=argument):
                return f"(NOT {self.condition(argument)})"
            case _:
                return self._leaf(self._table.column(predicate.column), predicate)

    def _joined(self, arguments: tuple[Predicate, ...], word: str, *, empty: str) -> str:
        if not arguments:
            return empty
        return "(" + word.join(self.condition(argument) for argument in arguments) + ")"

    def _leaf(self, column: Column, leaf: Leaf) -> str:
        name = self._name(column)
        match leaf:
            case NullTest():
                test = "IS NOT NULL" if leaf.negated else "IS NULL"
                return f"{self._alias}.{quoted(column.source_name)} {test}"
            case PatternMatch():
                word = "NOT GLOB" if leaf.negated else "GLOB"
                return f"{name} {word} {_string(glob(leaf.pattern) or '')}"
            case Membership():
                right = [_known(operand(column, value, leaf.type)) for value in leaf.values]
                left = _as_double(name) if any(each.as_double for each in right) else name
                return f"{left} IN ({', '.join(self._constant(each.value) for each in right)})"
            case Comparison():
                single = _known(operand(column, leaf.value, leaf.type))
                left = _as_double(name) if single.as_double else name
                if column.type == "text" and leaf.op not in ("=", "<>"):
                    left = f"{left} COLLATE BINARY"
                return f"{left} {leaf.op} {self._constant(single.value)}"

    def _is_settled(self, column: Column) -> bool:
        return (self._table.source_name, column.source_name) in self._settled

    def _name(self, column: Column) -> str:
        """Write a column so that it compares as its published type.

        Unary plus takes away an affinity that would turn the text '5' into a number.
        """
        name = f"{self._alias}.{quoted(column.source_name)}"
        if column.type == "text" and not self._is_settled(column):
            return f"(+{name} COLLATE BINARY)"
        return name

    def _guard(self, column: Column) -> str | None:
        name = f"{self._alias}.{quoted(column.source_name)}"
        if column.type == "boolean":
            return f"{name} NOT IN (0, 1)"
        if column.type in _DIGITS:
            form = re.sub("[A-Za-z]", "[0-9]", _DIGITS[column.type])
            return f"typeof({name}) NOT IN ('text', 'null') OR {name} NOT GLOB '{form}'"
        if self._is_settled(column):
            return None
        return f"typeof({name}) NOT IN ({STORAGE[column.type]}, 'null')"

    def _constant(self, value: float | str | bytes) -> str:
        match value:
            case float():
                return self._parameters.number(value)
            case int():
                # Its magnitude alone would not fit.
                return str(value) if value != INT64[0] else f"({INT64[0] + 1} - 1)"
            case str():
                return _string(value)
            case bytes():
                return f"x'{value.hex()}'"


STORAGE: Final = {
    "bigint": "'integer'",
    "double precision": "'real'",
    "numeric": "'integer', 'real'",
    "text": "'text'",
    "bytea": "'blob'",
    "boolean": "'integer'",
}


_NOTHING: Final[frozenset[PartialFunction]] = frozenset()
_EXTREMES: Final[frozenset[PartialFunction]] = frozenset({"min", "max"})
_TOLD: Final[dict[str, frozenset[PartialFunction]]] = {
    "bigint": _EXTREMES | {"sum"},
    "numeric": _EXTREMES,
    "text": _EXTREMES,
    "date": _EXTREMES,
    "bytea": _NOTHING,
    "boolean": _NOTHING,
}
"""What SQLite can tell of a group of values of a type as PostgreSQL would."""

_GROUPED: Final = frozenset(
    {
        "bigint",
        "numeric",
        "text",
        "bytea",
        "boolean",
        "date",
        "timestamp without time zone",
        "time without time zone",
    }
)
"""Types no two of whose values are one to SQLite. A double's zero may have a sign."""


def _row(values: Sequence[str]) -> str:
    """Write values that are compared together."""
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


def _string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _as_double(name: str) -> str:
    return f"CAST({name} AS REAL)"


def _known(right: Operand | None) -> Operand:
    if right is None:
        raise ValueError("the predicate is not one this adapter evaluates")
    return right


def glob(pattern: str) -> str | None:
    """Translate a LIKE pattern; None for one that cannot be, or would take too long.

    SQLite's LIKE folds case unless a deprecated pragma, absent from some builds, says otherwise.
    """
    if not pattern_is_complete(pattern) or "\0" in pattern:
        return None
    parts, stars, escaped = [], 0, False
    for character in pattern:
        if not escaped and character == "\\":
            escaped = True
            continue
        if not escaped and character == "%":
            parts.append("*")
            stars += 1
        elif not escaped and character == "_":
            parts.append("?")
        else:
            parts.append(f"[{character}]" if character in "*?[" else character)
        escaped = False
    translated = "".join(parts)
    fits = len(translated.encode()) <= PATTERN_BYTES and stars <= PATTERN_STARS
    return translated if fits else None


# --- constants and keys -----------------------------------------------------------------------


def operand(column: Column, value: str, type_: str) -> Operand | None:
    """Turn a constant in PostgreSQL's text format into what SQLite compares; None: it cannot be.

    The comparison is the one PostgreSQL makes between the column's type and ``type_``.
    """
    plain = base_type(type_)
    if "\0" in value:
        return None
    convert = _OPERANDS.get(column.type)
    return None if convert is None else convert(value, plain)


def _int64(number: Decimal) -> int | None:
    """Return a number that is a 64-bit integer as one."""
    if number.adjusted() > 18 or number != number.to_integral_value():
        return None
    whole = int(number)
    return whole if whole in INT64 else None


def _to_bigint(value: str, plain: str) -> Operand | None:
    if plain == "double precision":
        double = double_constant(value, plain)
        return None if double is None else Operand(double, as_double=True)
    number = decimal_constant(value)
    if plain not in INTEGERS | {"numeric"} or number is None:
        return None
    whole = _int64(number)
    if whole is not None:
        return Operand(whole)
    # Past 64 bits a stored integer would be compared with a rounded one.
    return None if number == number.to_integral_value() else _shortest(number)


def _to_numeric(value: str, plain: str) -> Operand | None:
    if plain == "double precision":
        return _to_bigint(value, plain)
    number = decimal_constant(value)
    if plain not in INTEGERS | {"numeric"} or number is None:
        return None
    whole = _int64(number)
    return _shortest(number) if whole is None else Operand(whole)


def _shortest(number: Decimal) -> Operand | None:
    """Compare by the double nearest to a decimal.

    A stored double is published as the shortest decimal that rounds to it. Where the constant is
    itself such a decimal, order and equality of the doubles are those of the decimals, also
    against stored integers; any other constant equals none of them.
    """
    double = float(number)
    if double in (float("inf"), float("-inf")):
        return None
    if Decimal(repr(double)) == number:
        return Operand(double)
    return Operand(double, equality=Agreement.SUPERSET, order=Agreement.NONE)


def _to_double(value: str, plain: str) -> Operand | None:
    double = double_constant(value, plain)
    return None if double is None else Operand(double)


def _to_text(value: str, plain: str) -> Operand | None:
    if plain not in TEXTS:
        return None
    # PostgreSQL turns a char(n) constant to text by dropping the padding (rule R44).
    return Operand(value.rstrip(" ") if plain in ("character", "bpchar") else value)


def _to_bytea(value: str, plain: str) -> Operand | None:
    if plain != "bytea" or not re.fullmatch(r"\\x([0-9a-fA-F]{2})*", value):
        return None
    return Operand(bytes.fromhex(value[2:]))


def _to_boolean(value: str, plain: str) -> Operand | None:
    known = {"t": 1, "true": 1, "f": 0, "false": 0}
    return Operand(known[value]) if plain == "boolean" and value in known else None


def _to_date(value: str, plain: str) -> Operand | None:
    usable = plain == "date" and cells.DATE.fullmatch(value) and value[:4] != "0000"
    return Operand(value) if usable else None


def _to_timestamp(value: str, plain: str) -> Operand | None:
    if plain == "date" and _to_date(value, plain):
        return Operand(f"{value} 00:00:00")
    day, _, clock = value.partition(" ")
    usable = (
        plain == "timestamp without time zone" and _to_date(day, "date") and _CLOCK.fullmatch(clock)
    )
    return Operand(_trimmed(value)) if usable else None


def _to_time(value: str, plain: str) -> Operand | None:
    usable = plain == "time without time zone" and _CLOCK.fullmatch(value)
    return Operand(_trimmed(value)) if usable else None


def _trimmed(clock: str) -> str:
    """Drop a fraction of zeros, so that the text compares with one that has no fraction."""
    return clock.rstrip("0").rstrip(".") if "." in clock else clock


_OPERANDS: Final[dict[str, Callable[[str, str], Operand | None]]] = {
    "bigint": _to_bigint,
    "numeric": _to_numeric,
    "double precision": _to_double,
    "text": _to_text,
    "bytea": _to_bytea,
    "boolean": _to_boolean,
    "date": _to_date,
    "timestamp without time zone": _to_timestamp,
    "time without time zone": _to_time,
}


# JSON's reading of decimal digits is not always the nearest double, and it has no bytes: such keys
# are strings there, which a function of ours reads inside SQLite, once a query.
PLAIN: Final = "{}"
DOUBLE: Final = "oar_double({})"
NUMBER: Final = "oar_number({})"
BLOB: Final = "oar_blob({})"


def read_number(text: str) -> int | float:
    """Read a key the way :func:`spell_number` wrote it."""
    return float.fromhex(text) if "x" in text or "n" in text else int(text)


def spell_number(number: float) -> str:
    """Write an integer in decimal digits, a double in hexadecimal ones: both exactly."""
    return str(number) if isinstance(number, int) else number.hex()


FUNCTIONS: Final[dict[str, Callable[[str], int | float | bytes]]] = {
    "oar_double": float.fromhex,
    "oar_number": read_number,
    "oar_blob": bytes.fromhex,
}
"""What each connection is given; they are called with keys and nothing else."""


def accepts_keys(column: Column, type_: str) -> bool:
    """Tell whether a list of keys of a type can be compared with a column as PostgreSQL would."""
    if column.type in NUMBERS:
        return type_ in NUMBERS
    return (column.type, type_) in _DECODERS


def _conversion(column: Column, type_: str) -> tuple[Callable[[bytes], _Key | None], str]:
    """Return what turns a key into one that JSON can hold, and how SQLite reads it back.

    It makes None of a key that no stored value can equal.
    """
    if column.type in NUMBERS:
        return _number_conversion(column, type_)
    return _DECODERS[(column.type, type_)], BLOB if column.type == "bytea" else PLAIN


def _number_conversion(column: Column, type_: str) -> tuple[Callable[[bytes], _Key | None], str]:
    if type_ in FLOATS:
        return lambda key: decode.double(key).hex(), DOUBLE
    if column.type == "double precision":
        read = decode.integer if type_ in INTEGERS else decode.numeric
        return lambda key: _hexadecimal(read(key)), DOUBLE
    if type_ in INTEGERS:
        return decode.integer, PLAIN
    if column.type == "bigint":
        return lambda key: _whole(decode.numeric(key)), PLAIN
    return lambda key: _spelled(decode.numeric(key)), NUMBER


def _hexadecimal(number: int | Decimal) -> str | None:
    return float(number).hex() if isinstance(number, int) or number.is_finite() else None


def _whole(number: Decimal) -> int | None:
    return _int64(number) if number.is_finite() else None


def _spelled(number: Decimal) -> str | None:
    return spell_number(_nearest(number)) if number.is_finite() else None


def _nearest(number: Decimal) -> int | float:
    whole = _int64(number)
    return float(number) if whole is None else whole


def _padded(key: bytes) -> str:
    return key.decode().rstrip(" ")


_DECODERS: Final[dict[tuple[str, str], Callable[[bytes], int | str | None]]] = {
    ("text", "text"): bytes.decode,
    ("text", "character varying"): bytes.decode,
    ("text", "character"): _padded,
    ("text", "bpchar"): _padded,
    ("bytea", "bytea"): bytes.hex,
    ("boolean", "boolean"): decode.boolean,
    ("date", "date"): decode.date,
    ("timestamp without time zone", "timestamp without time zone"): decode.timestamp,
    ("time without time zone", "time without time zone"): decode.time,
}
