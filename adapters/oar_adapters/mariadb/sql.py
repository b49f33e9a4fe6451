"""The SQL a MariaDB or MySQL owner is sent, and how far its comparisons are PostgreSQL's. Pure.

Sessions run with ``ANSI_QUOTES`` and ``NO_BACKSLASH_ESCAPES``, so names and strings are quoted as
in PostgreSQL. Constants are always typed as PostgreSQL compares them: ``0 = 'abc'`` is true here,
and a string is compared with a date in one place as a date and in another as a string.

Text is compared by its bytes through a binary NO PAD collation, which no index has. Equality is
therefore asked twice, first in the column's own collation: equal bytes are equal in any.

A constant that the column cannot hold is never looked for: MariaDB rounds it to one that the column
can, and takes what an index finds then.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oar_adapters import sqltext
from oar_adapters.interface import (
    Agreement,
    And,
    Column,
    Comparison,
    KeyFilter,
    Membership,
    NullTest,
    Or,
    Partial,
    PatternMatch,
    Predicate,
    Scan,
    SemiJoin,
    Table,
    base_type,
)
from oar_adapters.mariadb.constants import Convert, Operand, accepts_keys, key_conversion, operand
from oar_adapters.mariadb.schema import Family, Trait, Traits
from oar_adapters.predicates import (
    FLOATS,
    INTEGERS,
    Leaf,
    agreement,
    known,
    leaves,
    pattern_is_complete,
)
from oar_adapters.sqltext import pads_of, quoted, row, string, where

ALIAS: Final = "t"
FALSE: Final = "(1 = 0)"

CHUNK_KEYS: Final = 10_000
"""Keys a query (rule R34). MariaDB looks no more than ``optimizer_max_sel_args`` (16,000) of them
up in an index, MySQL as many as fit into ``range_optimizer_max_mem_size`` (about 36,000)."""

KEYS_BYTES: Final = 4_000_000
"""Bytes that keys take in one query at most."""


_TIMES: Final = frozenset({Family.DATE, Family.DATETIME, Family.INSTANT})


@dataclass(frozen=True, slots=True)
class Dialect:
    """What depends on the server: the name of its binary NO PAD collation, and a size in bytes."""

    collation: str = "utf8mb4_nopad_bin"
    keys_bytes: int = KEYS_BYTES
    """Bytes of SQL that keys may take, well below ``max_allowed_packet``."""


def agrees(table: Table, predicate: Predicate, traits: Traits) -> Agreement:
    """Tell how far a predicate means here what it means in PostgreSQL."""
    return agreement(predicate, lambda leaf: _leaf_agreement(table, leaf, traits))


def _leaf_agreement(table: Table, leaf: Leaf, traits: Traits) -> Agreement:
    try:
        column = table.column(leaf.column)
        trait = traits[(table.source_name, column.source_name)]
    except KeyError:
        return Agreement.NONE
    match leaf:
        case NullTest():
            usable = True
        case PatternMatch(pattern=pattern):
            text = trait.family in (Family.TEXT, Family.NAMED)
            usable = text and pattern_is_complete(pattern) and "\0" not in pattern
        case Membership(values=()):
            usable = accepts_keys(trait, base_type(leaf.type))
        case Membership(values=values):
            usable = all(operand(trait, value, leaf.type) for value in values)
        case Comparison():
            usable = operand(trait, leaf.value, leaf.type) is not None
            if leaf.op not in ("=", "<>"):
                usable = usable and column.ordered
    return Agreement.EXACT if usable else Agreement.NONE


# --- writing --------------------------------------------------------------------------------------


def scan(
    query: Scan, traits: Traits, dialect: Dialect, keys: Sequence[str], limit: int | None
) -> str:
    """Write a scan with conditions on keys. Without columns the server counts: one integer.

    Raises ``ValueError`` or ``KeyError`` for one that is not evaluated here.
    """
    writer = Writer(query.table, traits, dialect)
    bytewise = query.distinct or query.counted
    outputs = [writer.output(column, bytewise=bytewise) for column in query.columns]
    conditions = [*(writer.guarded(predicate) for predicate in query.predicates), *keys]
    tail = "" if limit is None else f" LIMIT {limit:d}"
    once = "DISTINCT " if query.distinct and outputs else ""
    source = f"{quoted(query.table.source_name)} AS {ALIAS}"
    if query.counted:
        told = [output for partial in query.partials for output in writer.told(partial)]
        grouped = [str(number) for number, _ in enumerate(outputs, start=1)]
        grouped += [part for column in query.columns for part in writer.told_apart(column)]
        group = f" GROUP BY {', '.join(grouped)}" if grouped else ""
        listed = ", ".join([*outputs, "count(*)", *told])
        return f"SELECT {listed} FROM {source}{where(conditions)}{group}{tail}"
    body = f"SELECT {once}{', '.join(outputs) or '1'} FROM {source}{where(conditions)}{tail}"
    return body if outputs else f"SELECT count(*) FROM ({body}) AS q"


def counts(query: Scan, traits: Traits) -> bool:
    """Tell whether the groups and partials of a counted scan are PostgreSQL's."""

    def trait(column: Column) -> Trait | None:
        return traits.get((query.table.source_name, column.source_name))

    grouped = [trait(column) for column in query.columns]
    told = [(each.column, trait(each.column)) for each in query.partials]
    return all(t is not None and t.family in _GROUPED for t in grouped) and all(
        t is not None and t.family in _SUMMED and _digits(column.type) <= MAX_SUMMED
        for column, t in told
    )


_GROUPED: Final = frozenset(
    {
        Family.INTEGER,
        Family.YEAR,
        Family.DECIMAL,
        Family.BOOLEAN,
        Family.TEXT,
        Family.NAMED,
        Family.BYTES,
        Family.DATE,
        Family.DATETIME,
        Family.INSTANT,
        Family.UUID,
    }
)
"""What no two different values of are one to the server. A double's zero may have a sign."""

_SUMMED: Final = frozenset({Family.INTEGER, Family.DECIMAL})
"""What every stored value of is one of the published type: an aggregate hides none that is not."""

MAX_SUMMED: Final = 38
"""Digits of what is summed: a sum has 22 more of them, and 65 at most."""


def _digits(type_name: str) -> int:
    """Return a decimal's digits, 0 where the type does not limit them more than a sum needs."""
    limited = re.match(r"numeric\((\d+)", type_name)
    return int(limited[1]) if limited else 0


def shown(query: Scan, traits: Traits, dialect: Dialect) -> str:
    """Write a scan for a reader: keys are a placeholder."""
    writer = Writer(query.table, traits, dialect)
    keys = [writer.shown_keys(key_filter) for key_filter in query.key_filters]
    keys += [writer.semi_join(each, Writer.shown_keys) for each in query.semi_joins]
    return scan(query, traits, dialect, keys, query.limit)


def key_conditions(query: Scan, traits: Traits, dialect: Dialect) -> Iterator[tuple[str, ...]]:
    """Yield the conditions that keys put on each query a scan is sent as; one when it has no keys.

    Chunks of distinct keys under exact equality share no row. Those of a semi-join's keys might,
    so that they are not several queries: a list that does not fit into one is left out.
    """
    writer = Writer(query.table, traits, dialect)
    lists = sum(len(part.key_filters) for part in query.parts())
    size = dialect.keys_bytes // max(1, lists)
    parts = [list(writer.keys(key_filter, size)) for key_filter in query.key_filters]

    def fitting(inner: Writer, key_filter: KeyFilter) -> str | None:
        condition = f"({' OR '.join(inner.keys(key_filter, size))})"
        return condition if len(condition.encode()) <= size else None

    parts += [[writer.semi_join(semi_join, fitting)] for semi_join in query.semi_joins]
    return itertools.product(*parts)


class Writer:
    """Writes conditions on one table. The caller has asked :func:`agrees` first."""

    def __init__(self, table: Table, traits: Traits, dialect: Dialect, alias: str = ALIAS) -> None:
        self._table = table
        self._traits = traits
        self._dialect = dialect
        self._alias = alias

    def semi_join(
        self,
        semi_join: SemiJoin,
        keys: Callable[[Writer, KeyFilter], str | None],
        depth: int = 1,
    ) -> str:
        """Write a semi-join with another table; ``keys`` writes each list of keys inside."""
        source = semi_join.source
        inner = Writer(source.table, self._traits, self._dialect, f"s{depth}")
        columns = [self._table.column(column) for column, _ in semi_join.pairs]
        others = [source.table.column(column) for _, column in semi_join.pairs]
        compared = [
            self._compared(column, inner, other)
            for column, other in zip(columns, others, strict=True)
        ]
        listed = [keys(inner, key_filter) for key_filter in source.key_filters]
        conditions = [
            *(inner.guarded(predicate) for predicate in source.predicates),
            *(condition for condition in listed if condition is not None),
            *(inner.semi_join(each, keys, depth + 1) for each in source.semi_joins),
        ]
        relation = f"{quoted(source.table.source_name)} AS {inner._alias}"
        lefts, rights = zip(*compared, strict=True)
        found = f"SELECT {', '.join(rights)} FROM {relation}{where(conditions)}"
        return self._or_strays(f"{row(lefts)} IN ({found})", columns)

    def _compared(self, column: Column, inner: Writer, source_column: Column) -> tuple[str, str]:
        """Write a column and one of a semi-join's source so that they compare."""
        own, other = self._trait(column), inner._trait(source_column)
        left = _left(own, self._name(column), as_double=False)
        right = _left(other, inner._name(source_column), as_double=False)
        alike = (own.family, own.charset, own.collation) == (
            other.family,
            other.charset,
            other.collation,
        )
        if own.charset is not None and (own.family is not Family.TEXT or not alike):
            # Two collations do not compare, and enumerations would by their numbers.
            return self._bytewise(own, left), inner._bytewise(other, right)
        return left, right

    def _or_strays(self, condition: str, columns: Iterable[Column], *, texts: bool = False) -> str:
        """Keep what is no value of the published type, outside of any negation.

        ``texts``: also of text, which equals no key: a guard would only keep an index unused.
        """
        guards = [
            self._stray(column)
            for column in columns
            if self._trait(column).strays and (texts or self._trait(column).charset is None)
        ]
        return f"({' OR '.join([condition, *guards])})" if guards else condition

    def _stray(self, column: Column) -> str:
        """Write what is true of a value that the published type has no place for."""
        trait, name = self._trait(column), self._name(column)
        if trait.charset is None:
            return f"{name} NOT IN (0, 1)"
        # One for one, characters that Unicode lacks become what neither side counts here.
        known = f"REPLACE(REPLACE({_unicode(trait, name)}, '?', ''), '\ufffd', '')"
        return f"CHAR_LENGTH({known}) < CHAR_LENGTH(REPLACE({name}, '?', ''))"

    def told(self, partial: Partial) -> list[str]:
        """Write what a counted scan tells of a column."""
        name = self._name(partial.column)
        asked = [f"{f}({name})" for f in ("sum", "min", "max") if f in partial.functions]
        return [f"count({name})", *asked]

    def told_apart(self, column: Column) -> list[str]:
        """Write what GROUP BY needs beside a column to tell its values apart.

        Strings are sorted and grouped by their first ``max_sort_length`` bytes (1,024).
        """
        strings = (Family.TEXT, Family.NAMED, Family.BYTES)
        if self._trait(column).family not in strings:
            return []
        return [f"sha2({self.output(column, bytewise=True)}, 256)"]

    def output(self, column: Column, *, bytewise: bool) -> str:
        """Write a column as it is read."""
        trait, name = self._trait(column), self._name(column)
        if trait.family in (Family.REAL, Family.DOUBLE):
            # FLOAT is printed with six digits, DOUBLE(m,d) with d behind the point.
            return _as_double(name)
        text = self._bytewise(trait, name) if bytewise and trait.charset is not None else name
        if trait.charset is not None and trait.strays:
            # No text of PostgreSQL's has a NUL: reading it fails.
            return f"IF({self._stray(column)}, CHAR(0 USING utf8mb4), {text})"
        return text

    def guarded(self, predicate: Predicate) -> str:
        """Write a predicate with the guards its columns need."""
        named = {leaf.column for leaf in leaves(predicate) if not isinstance(leaf, NullTest)}
        columns = map(self._table.column, sorted(named))
        return self._or_strays(self.condition(predicate), columns, texts=not _equates(predicate))

    def condition(self, predicate: Predicate) -> str:
        """Write a predicate without guards."""
        return sqltext.condition(
            predicate,
            lambda leaf: self._leaf(self._table.column(leaf.column), leaf),
            true="(1 = 1)",
            false=FALSE,
        )

    def keys(self, key_filter: KeyFilter, size: int) -> Iterator[str]:
        """Write a key list, in chunks of at most so many bytes (but one key at least)."""
        columns = [self._table.column(part.column) for part in key_filter.columns]
        traits, lefts, converts = self._looked_up(key_filter)
        literals = map(map, converts, (part.keys for part in key_filter.columns))
        # Other keys may be the same ones here, and one that no stored value can equal is None.
        rows = dict.fromkeys(row for row in zip(*literals, strict=True) if None not in row)
        if not rows:
            yield FALSE
        chunks = _chunks(
            [row(each) for each in rows], size // 2, max(1, CHUNK_KEYS // len(columns))
        )
        for number, chunk in enumerate(chunks):
            condition = self._member(traits, lefts, chunk)
            # What is kept whatever the keys are must not come once for each chunk.
            yield condition if number else self._or_strays(condition, columns)

    def shown_keys(self, key_filter: KeyFilter) -> str:
        """Write a key list, and what it is digested under, as placeholders."""
        traits, lefts, _ = self._looked_up(key_filter, shown=True)
        return f"{row(self._exact(traits, lefts))} IN (?)"

    def _looked_up(
        self, key_filter: KeyFilter, *, shown: bool = False
    ) -> tuple[tuple[Trait, ...], tuple[str, ...], tuple[Convert, ...]]:
        """What is known of the columns, what is compared with keys, and how keys are written."""
        traits, lefts = [], []
        converts: list[Convert] = []
        for part in key_filter.columns:
            column = self._table.column(part.column)
            trait, type_ = self._trait(column), base_type(part.type)
            if part.hmac is not None:
                pads = (
                    ("?", "?") if shown else tuple(f"x'{pad.hex()}'" for pad in pads_of(part.hmac))
                )
                converts.append(lambda key: f"x'{key.hex()}'")
                lefts.append(_digested(trait, self._name(column), *pads))
                # A digest is bytes, whatever the column is.
                traits.append(Trait(Family.BYTES))
                continue
            converts.append(key_conversion(trait, type_))
            lefts.append(_left(trait, self._name(column), as_double=type_ in FLOATS))
            traits.append(trait)
        return tuple(traits), tuple(lefts), tuple(converts)

    def _name(self, column: Column) -> str:
        return f"{self._alias}.{quoted(column.source_name)}"

    def _trait(self, column: Column) -> Trait:
        return self._traits[(self._table.source_name, column.source_name)]

    def _leaf(self, column: Column, leaf: Leaf) -> str:
        trait, name = self._trait(column), self._name(column)
        match leaf:
            case NullTest():
                # `IS NULL` is true of a zero date in a NOT NULL column.
                test = f"{name} <=> NULL"
                return f"(NOT {test})" if leaf.negated else f"({test})"
            case PatternMatch():
                word = "NOT LIKE" if leaf.negated else "LIKE"
                return f"({self._bytewise(trait, name)} {word} {string(leaf.pattern)} ESCAPE '\\')"
            case Membership(values=()):
                return FALSE
            case Membership():
                return self._equal(
                    trait, name, [known(operand(trait, v, leaf.type)) for v in leaf.values]
                )
            case Comparison():
                single = known(operand(trait, leaf.value, leaf.type))
                if leaf.op == "=":
                    return self._equal(trait, name, [single])
                if leaf.op == "<>":
                    return f"(NOT {self._equal(trait, name, [single])})"
                left = _left(trait, name, as_double=single.as_double)
                if trait.charset is not None:
                    left = self._bytewise(trait, left)
                return f"({left} {leaf.op} {single.text})"

    def _equal(self, trait: Trait, name: str, right: Sequence[Operand]) -> str:
        held = [each for each in right if _holds(trait, each)]
        if not held:
            # False, and unknown of NULL.
            return f"({name} <> {name})"
        left = _left(trait, name, as_double=any(each.as_double for each in held))
        return self._member((trait,), (left,), [each.text for each in held])

    def _member(self, traits: Sequence[Trait], lefts: Sequence[str], rows: Sequence[str]) -> str:
        """Compare some columns at once with rows of literals."""
        values = ", ".join(rows)
        exacts = self._exact(traits, lefts)
        exact = f"{row(exacts)} IN ({values})"
        indexed = exacts != tuple(lefts) and all(
            trait.charset is None
            or (
                trait.family is Family.TEXT
                # Else the column would be converted, or the constant not fit.
                and (trait.charset == "utf8mb4" or values.isascii())
            )
            for trait in traits
        )
        return f"({row(lefts)} IN ({values}) AND {exact})" if indexed else f"({exact})"

    def _exact(self, traits: Sequence[Trait], lefts: Sequence[str]) -> tuple[str, ...]:
        """Write columns so that text compares by its bytes."""
        return tuple(
            left if trait.charset is None else self._bytewise(trait, left)
            for trait, left in zip(traits, lefts, strict=True)
        )

    def _bytewise(self, trait: Trait, name: str) -> str:
        if trait.collation == self._dialect.collation and trait.family is Family.TEXT:
            return name
        return f"{_unicode(trait, name)} COLLATE {self._dialect.collation}"


def _unicode(trait: Trait, name: str) -> str:
    return name if trait.charset == "utf8mb4" else f"CONVERT({name} USING utf8mb4)"


def _equates(predicate: Predicate) -> bool:
    """Tell whether a predicate is true of nothing but values equal to constants, or NULL."""
    match predicate:
        case And() | Or():
            return all(map(_equates, predicate.arguments))
        case Comparison():
            return predicate.op == "="
        case Membership():
            return True
        case NullTest():
            return not predicate.negated
    return False


def _holds(trait: Trait, right: Operand) -> bool:
    """Tell whether some value of the column could equal a constant."""
    return right.as_double or trait.scale is None or right.places <= trait.scale


def _left(trait: Trait, name: str, *, as_double: bool) -> str:
    # DOUBLE(m,d) has a scale.
    if (as_double and trait.family is not Family.DOUBLE) or (
        trait.family is Family.DOUBLE and trait.scale is not None
    ):
        return _as_double(name)
    # A YEAR takes 24 for 2024.
    return f"CAST({name} AS SIGNED)" if trait.family is Family.YEAR else name


DIGESTED: Final = INTEGERS | {"text", "character varying", "uuid"}
"""Types of keys that are looked up as digests: of a column's equal values there is one text."""

_DIGITS: Final = (Family.INTEGER, Family.YEAR)


def _digested(trait: Trait, name: str, outer: str, inner: str) -> str:
    """Write a value's HMAC-SHA-256 (RFC 2104)."""
    # ZEROFILL would write zeros in front.
    text = f"CAST({name} AS SIGNED)" if trait.family in _DIGITS else name
    value = f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"
    hashed = f"UNHEX(SHA2(CONCAT({inner}, {value}), 256))"
    return f"UNHEX(SHA2(CONCAT({outer}, {hashed}), 256))"


def _as_double(name: str) -> str:
    return f"CAST({name} AS DOUBLE)"


def _chunks(literals: Sequence[str], size: int, most: int) -> Iterator[list[str]]:
    chunk: list[str] = []
    taken = 0
    for literal in literals:
        # No character takes more than four bytes.
        length = len(literal) if literal.isascii() else 4 * len(literal)
        if chunk and (len(chunk) == most or taken + length > size):
            yield chunk
            chunk, taken = [], 0
        chunk.append(literal)
        taken += length + 2
    if chunk:
        yield chunk
