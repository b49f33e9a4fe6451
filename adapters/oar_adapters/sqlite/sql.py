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
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from oar_adapters import sqltext
from oar_adapters.interface import (
    Agreement,
    Column,
    Comparison,
    KeyFilter,
    Membership,
    NullTest,
    Partial,
    PartialFunction,
    PatternMatch,
    Predicate,
    Scan,
    SemiJoin,
    Table,
    base_type,
)
from oar_adapters.predicates import FLOATS, Leaf, agreement, known, leaves, pattern_is_complete
from oar_adapters.sqlite.constants import (
    INT64,
    PLAIN,
    Key,
    Operand,
    accepts_keys,
    conversion,
    operand,
)
from oar_adapters.sqltext import quoted, row, string, where

Settled = Collection[tuple[str, str]]
"""Columns (table and column, source names) that need no guard."""

ALIAS: Final = "t"
PATTERN_BYTES: Final = 50_000
"""SQLite's own limit on the length of a pattern."""
PATTERN_STARS: Final = 8
"""Matching takes time to the power of the number of stars, and cannot be interrupted."""

_DIGITS: Final = {
    "date": "YYYY-MM-DD",
    "timestamp without time zone": "YYYY-MM-DD hh:mm:ss",
    "time without time zone": "hh:mm:ss",
}
"""The one stored form of each type that is compared with; a guard keeps the others."""

_READ: Final = {"timestamp without time zone": "datetime", "time without time zone": "time"}
"""What SQLite reads every stored form of a type with, and writes in that one. It drops a fraction,
so more values are equal than are."""


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

    def secret(self, value: bytes) -> str:
        """Write what keys are digested under, in hex; no reader sees it."""
        if not self.shown:
            self.values.append(value.hex())
        return "?"

    def keys(self, values: Iterable[Key | tuple[Key, ...]]) -> str:
        """Write a list of keys: one JSON array, however many there are (rule R34).

        Keys that belong together are an array inside.
        """
        if not self.shown:
            self.values.append(json.dumps(list(values), ensure_ascii=False))
        return "?"


def scan(query: Scan, settled: Settled, parameters: Parameters, source: str | None = None) -> str:
    """Write a scan. Without columns SQLite counts: one row, one integer.

    ``source`` is what stands for a derived table, with its parameters bound already.
    """
    if source is None:
        source = f"main.{quoted(query.table.source_name)}"
    writer = Writer(query.table, settled, parameters)
    where = writer.where(query)
    limit = "" if query.limit is None else f" LIMIT {query.limit:d}"
    rows = f" FROM {source} AS {ALIAS}{where}"
    if query.counted:
        return _counted(query, rows) + limit
    if not query.columns:
        return f"SELECT count(*) FROM (SELECT 1{rows}{limit})"
    # A collation that takes case twins for one would keep only one of them.
    once = query.distinct and all(c.equality is Agreement.EXACT for c in query.columns)
    names = map(writer.compared if once else writer.name, query.columns)
    return f"SELECT {'DISTINCT ' if once else ''}{', '.join(names)}{rows}{limit}"


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
    if column.type == "numeric":
        # How SQLite writes infinity.
        return f"{wrong} OR {name} IN (9e999, -9e999)"
    if column.type == "text":
        return f"{wrong} OR instr(CAST({name} AS BLOB), x'00') > 0"
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
        return where(conditions)

    def semi_join(self, semi_join: SemiJoin, depth: int) -> str:
        """Write a semi-join with another table of the file."""
        source = semi_join.source
        inner = Writer(source.table, self._settled, self._parameters, f"s{depth + 1}")
        columns = [self._table.column(column) for column, _ in semi_join.pairs]
        lefts, rights = [], []
        for column, (_, name) in zip(columns, semi_join.pairs, strict=True):
            source_column = source.table.column(name)
            left, right = self.compared(column), inner.compared(source_column)
            settled = self._is_settled(column) and inner._is_settled(source_column)
            if column.type in _READ:
                # What the guard does not keep has the form that this gives to every other one.
                right = f"{_READ[column.type]}({right})"
            if column.type == "numeric" and not settled:
                # One decimal may be stored as an integer here and as the double next to it there.
                left, right = _as_double(left), _as_double(right)
            lefts.append(left)
            rights.append(right)
        relation = f"main.{quoted(source.table.source_name)} AS {inner._alias}"
        found = f"SELECT {', '.join(rights)} FROM {relation}{inner.where(source, depth + 1)}"
        return self._or_guards(f"{row(lefts)} IN ({found})", columns)

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
        names, reads = [], []
        converted: list[Iterable[Key | None]] = []
        for column, part in zip(columns, key_filter.columns, strict=True):
            type_ = base_type(part.type)
            if not accepts_keys(column, type_):
                raise ValueError(f"keys of type {type_} are not compared with {column.type}")
            if part.hmac is not None:
                secret = self._parameters.secret(part.hmac)
                names.append(f"oar_hmac({secret}, {self.name(column)})")
                reads.append(PLAIN)
                converted.append(map(bytes.hex, part.keys))
                continue
            doubled = type_ in FLOATS and column.type != "double precision"
            names.append(_as_double(self.compared(column)) if doubled else self.compared(column))
            convert, read = conversion(column, type_)
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
        return self._or_guards(f"{row(names)} IN ({found})", columns)

    def condition(self, predicate: Predicate) -> str:
        """Write a predicate without guards."""
        return sqltext.condition(
            predicate,
            lambda leaf: self._leaf(self._table.column(leaf.column), leaf),
            true="1",
            false="0",
        )

    def _leaf(self, column: Column, leaf: Leaf) -> str:
        name = self.compared(column)
        match leaf:
            case NullTest():
                test = "IS NOT NULL" if leaf.negated else "IS NULL"
                return f"{self.name(column)} {test}"
            case PatternMatch():
                word = "NOT GLOB" if leaf.negated else "GLOB"
                return f"{name} {word} {string(glob(leaf.pattern) or '')}"
            case Membership():
                right = [known(operand(column, value, leaf.type)) for value in leaf.values]
                left = _as_double(name) if any(each.as_double for each in right) else name
                return f"{left} IN ({', '.join(self._constant(each.value) for each in right)})"
            case Comparison():
                single = known(operand(column, leaf.value, leaf.type))
                left = _as_double(name) if single.as_double else name
                if column.type == "text" and leaf.op not in ("=", "<>"):
                    left = f"{left} COLLATE BINARY"
                return f"{left} {leaf.op} {self._constant(single.value)}"

    def _is_settled(self, column: Column) -> bool:
        return (self._table.source_name, column.source_name) in self._settled

    def name(self, column: Column) -> str:
        """Write a column."""
        return f"{self._alias}.{quoted(column.source_name)}"

    def compared(self, column: Column) -> str:
        """Write a column so that it compares as its published type.

        Unary plus takes away an affinity that would turn the text '5' into a number.
        """
        name = self.name(column)
        if column.type == "text" and not self._is_settled(column):
            return f"(+{name} COLLATE BINARY)"
        return name

    def _guard(self, column: Column) -> str | None:
        name = self.name(column)
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
                return string(value)
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


def _as_double(name: str) -> str:
    return f"CAST({name} AS REAL)"


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
