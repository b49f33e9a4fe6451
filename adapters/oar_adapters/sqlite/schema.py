"""What an SQLite owner publishes, read from the file's own schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from oar_adapters.interface import Agreement, Column, OwnerSchema, Table
from oar_adapters.naming import Names
from oar_adapters.sqltext import quoted

DEFAULT_ROWS: Final = 1000.0
"""Rows assumed for a view, as PostgreSQL assumes them for a set function."""

COUNTED_ROWS: Final = 50_000
"""Rows up to which a table without statistics is simply counted: a few milliseconds."""

SAMPLED_ROWS: Final = 2000
"""Rows looked at for how many different values a column has: a few milliseconds a table."""

SAMPLED_COLUMNS: Final = 500
"""Columns looked at so: two numbers of each, where SQLite gives 2,000 at most in one row."""

_TYPES: Final = (
    # SQLite's own rules of affinity come first and in its order, so that the published type
    # is one the column's affinity keeps.
    (re.compile(r"BOOL"), "boolean"),
    (re.compile(r"INT"), "bigint"),
    (re.compile(r"CHAR|CLOB|TEXT"), "text"),
    (re.compile(r"BLOB"), "bytea"),
    (re.compile(r"REAL|FLOA|DOUB"), "double precision"),
    (re.compile(r"DATETIME|TIMESTAMP"), "timestamp without time zone"),
    (re.compile(r"DATE"), "date"),
    (re.compile(r"TIME"), "time without time zone"),
    (re.compile(r"NUMERIC|DECIMAL|NUMBER|MONEY"), "numeric"),
)

_AFFINITY_KEEPS: Final = frozenset({"bigint", "double precision", "numeric", "text", "bytea"})
"""Published types whose stored values, where the column's declaration gave the type, compare
as the published ones do: anything else in such a column equals no value of the type."""

_KEY_TYPES: Final = frozenset(
    {"bigint", "double precision", "numeric", "text", "bytea", "boolean", "date"}
)
"""Types with one stored form a value. ``2020-01-01 10:00`` and ``2020-01-01T10:00`` are different
values to a unique index and the same timestamp."""


@dataclass(frozen=True, slots=True)
class Naming(Names):
    """How the owner's file is published: the options ``case``, ``tables`` and ``types``."""

    types: Mapping[tuple[str, str], str] | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """A published schema, and its columns (source names) that need no guard in a predicate."""

    schema: OwnerSchema
    settled: frozenset[tuple[str, str]]
    enforced: frozenset[tuple[str, str]]
    """Columns (source names) that cannot hold a value of another type."""
    unicode: bool
    """Text is stored as UTF-8, so that its bytes order as the hub's do."""


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    kind: str
    without_rowid: bool
    strict: bool


def published_type(declared: str) -> str:
    """Return the PostgreSQL type for a declared one; what no rule knows is text."""
    upper = declared.upper()
    return next((type_ for pattern, type_ in _TYPES if pattern.search(upper)), "text")


def discover(connection: sqlite3.Connection, naming: Naming) -> Discovery:
    """Read the published schema. Raises ``sqlite3.Error``."""
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    unicode = encoding == "UTF-8"
    statistics = _statistics(connection)
    tables: list[Table] = []
    settled: set[tuple[str, str]] = set()
    enforced: set[tuple[str, str]] = set()
    for listed in _list(connection):
        if not naming.wanted(listed.name):
            continue
        try:
            columns, own = _columns(connection, listed, naming, unicode=unicode)
        except sqlite3.OperationalError as error:
            if listed.kind == "view" and error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                continue  # what it reads is gone: nobody can ask it anything
            raise
        if not columns:
            continue
        settled |= {(listed.name, name) for name in own}
        alias = _rowid_alias(connection, listed)
        # Text may hold a NUL whatever the declaration.
        texts = {column.source_name for column in columns if column.type == "text"}
        kept = own - texts if listed.strict else own & {alias or ""}
        enforced |= {(listed.name, name) for name in kept}
        primary, unique = _keys(connection, listed, columns)
        table = Table(
            name=naming.published(listed.name),
            columns=tuple(columns),
            source_name=listed.name,
            primary_key=primary,
            unique_keys=unique,
        )
        rows = _estimate(connection, listed, statistics)
        if listed.kind == "table":
            table = replace(table, columns=_counted(connection, table, rows, statistics))
        tables.append(replace(table, row_estimate=rows))
    return Discovery(OwnerSchema(tuple(tables)), frozenset(settled), frozenset(enforced), unicode)


def _list(connection: sqlite3.Connection) -> list[_Listed]:
    """List tables and views; not SQLite's own, nor virtual tables and their shadows."""
    rows = connection.execute(
        "SELECT name, type, wr, strict FROM pragma_table_list"
        " WHERE schema = 'main' AND type IN ('table', 'view') ORDER BY name"
    ).fetchall()
    return [
        _Listed(name, kind, bool(without_rowid), bool(strict))
        for name, kind, without_rowid, strict in rows
        if not name.lower().startswith("sqlite_")
    ]


def _columns(
    connection: sqlite3.Connection, listed: _Listed, naming: Naming, *, unicode: bool
) -> tuple[list[Column], set[str]]:
    rows = connection.execute(
        "SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?, 'main')",
        (listed.name,),
    ).fetchall()
    alias = _rowid_alias(connection, listed)
    collations = _collations(connection, listed, [row[0] for row in rows])
    columns, settled = [], set()
    for name, declared, not_null, place_in_key, hidden in rows:
        if hidden == 1:
            continue
        chosen = (naming.types or {}).get((listed.name.lower(), name.lower()))
        type_ = chosen or published_type(declared)
        kept = chosen is None and listed.kind == "table" and type_ in _AFFINITY_KEEPS
        if kept and _has_affinity(declared):
            settled.add(name)
        key_is_full = listed.strict or listed.without_rowid
        columns.append(
            Column(
                name=naming.published(name),
                type=type_,
                source_name=name,
                not_null=bool(not_null or name == alias or (place_in_key and key_is_full)),
                equality=_equality(type_, name in settled, collations.get(name)),
                ordered=type_ != "text" or (unicode and collations.get(name) is not None),
            )
        )
    return columns, settled


def _has_affinity(declared: str) -> bool:
    """Tell whether the declaration, and not our fallback to text, gave the column its type."""
    return any(pattern.search(declared.upper()) for pattern, _ in _TYPES)


def _equality(type_: str, settled: bool, collation: str | None) -> Agreement:
    if type_ != "text":
        return Agreement.EXACT
    if collation is None:
        return Agreement.NONE
    # Columns that need a guard anyway are compared with COLLATE BINARY: no index is lost.
    if collation == "BINARY" or not settled:
        return Agreement.EXACT
    return Agreement.SUPERSET


def _rowid_alias(connection: sqlite3.Connection, listed: _Listed) -> str | None:
    """Return the column that is the rowid itself: always an integer, never NULL.

    It is the only column of a primary key, declared INTEGER, that needed no index of its own
    (``INTEGER PRIMARY KEY DESC`` does).
    """
    if listed.kind != "table" or listed.without_rowid:
        return None
    key: list[tuple[str, str]] = connection.execute(
        "SELECT name, type FROM pragma_table_xinfo(?, 'main') WHERE pk", (listed.name,)
    ).fetchall()
    own_index = connection.execute(
        "SELECT 1 FROM pragma_index_list(?, 'main') WHERE origin = 'pk'", (listed.name,)
    ).fetchone()
    single = len(key) == 1 and key[0][1].upper() == "INTEGER" and own_index is None
    return key[0][0] if single else None


def _collations(
    connection: sqlite3.Connection, listed: _Listed, names: Sequence[str]
) -> dict[str, str]:
    """Return each column's collation, where it is one of SQLite's own.

    No pragma tells a column's collation, but an index takes it over: an empty twin of the table
    in memory is indexed and asked. What a view's columns collate as is settled by COLLATE BINARY
    in each predicate.
    """
    if listed.kind == "view":
        return dict.fromkeys(names, "BINARY")
    (definition,) = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (listed.name,)
    ).fetchone()
    twin = sqlite3.connect(":memory:")
    found: dict[str, str] = {}
    try:
        twin.execute(definition)
        for number, name in enumerate(names):
            found |= _collation(twin, listed.name, name, number)
    except sqlite3.Error:
        # A definition that needs what only the owner's program has: no collation is known.
        return {}
    finally:
        twin.close()
    return found


def _collation(twin: sqlite3.Connection, table: str, column: str, number: int) -> dict[str, str]:
    probe = f"oar_probe_{number}"
    try:
        twin.execute(f"CREATE INDEX {quoted(probe)} ON {quoted(table)} ({quoted(column)})")
    except sqlite3.OperationalError:
        # Its collation is the owner's program's own.
        return {}
    (collation,) = twin.execute(
        "SELECT coll FROM pragma_index_xinfo(?) WHERE key", (probe,)
    ).fetchone()
    known = collation.upper()
    return {column: known} if known in ("BINARY", "NOCASE", "RTRIM") else {}


def _keys(
    connection: sqlite3.Connection, listed: _Listed, columns: Sequence[Column]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the keys SQLite enforces; a primary key that admits NULL is a unique key only."""
    by_source = {column.source_name: column for column in columns}
    rows = connection.execute(
        "SELECT name FROM pragma_table_xinfo(?, 'main') WHERE pk ORDER BY pk", (listed.name,)
    ).fetchall()
    candidates = [tuple(row[0] for row in rows)] if rows else []
    indexes = connection.execute(
        "SELECT name FROM pragma_index_list(?, 'main')"
        " WHERE \"unique\" AND NOT partial AND origin <> 'pk' ORDER BY seq",
        (listed.name,),
    ).fetchall()
    for (index,) in indexes:
        parts = connection.execute(
            "SELECT name FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (index,)
        ).fetchall()
        candidates.append(tuple(part[0] for part in parts))
    primary: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = []
    for number, names in enumerate(candidates):
        # An expression has no name. Uniqueness under NOCASE or RTRIM is more than the hub's.
        key = [by_source.get(name) for name in names]
        named = tuple(c.name for c in key if c is not None and c.type in _KEY_TYPES)
        if not named or len(named) != len(key):
            continue
        full = all(c is not None and c.not_null for c in key)
        if number == 0 and rows and full:
            primary = named
        else:
            unique.append(named)
    return primary, tuple(unique)


@dataclass(frozen=True, slots=True)
class _Statistics:
    """What ANALYZE found, where the owner has run it.

    ``rows`` of a table; ``rows_each`` value of a column that an index begins with.
    """

    rows: Mapping[str, float]
    rows_each: Mapping[tuple[str, str], float]


def _statistics(connection: sqlite3.Connection) -> _Statistics:
    try:
        found = connection.execute("SELECT tbl, idx, stat FROM sqlite_stat1").fetchall()
    except sqlite3.OperationalError:
        return _Statistics({}, {})
    rows: dict[str, float] = {}
    rows_each: dict[tuple[str, str], float] = {}
    for table, index, stat in found:
        numbers = [float(part) for part in str(stat or "").split(" ") if part.isdigit()]
        if not numbers:
            continue
        rows[table] = max(rows.get(table, 0.0), numbers[0])
        first = connection.execute(
            "SELECT name FROM pragma_index_xinfo(?) WHERE seqno = 0", (index,)
        ).fetchone()
        if len(numbers) > 1 and first is not None and first[0] is not None:
            rows_each[table, first[0]] = max(1.0, numbers[1])
    return _Statistics(rows, rows_each)


def _counted(
    connection: sqlite3.Connection, table: Table, rows: float, statistics: _Statistics
) -> tuple[Column, ...]:
    """Count different values and NULLs among some rows; ANALYZE knows better how many values."""
    # Reading bytes may cost more than the answer is worth.
    looked_at = [column for column in table.columns if column.type != "bytea"][:SAMPLED_COLUMNS]
    if not looked_at:
        return table.columns
    names = [quoted(column.source_name) for column in looked_at]
    counts = ", ".join(f"count({name}), count(DISTINCT {name})" for name in names)
    rows_of = f"SELECT {', '.join(names)} FROM main.{quoted(table.source_name)}"
    try:
        seen, *found = connection.execute(
            f"SELECT count(*), {counts} FROM ({rows_of} LIMIT {SAMPLED_ROWS})"
        ).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            return table.columns  # one is computed by a function of the owner's program
        raise
    counted = dict(zip(looked_at, zip(found[::2], found[1::2], strict=True), strict=True))
    columns = []
    for column in table.columns:
        values, different = counted.get(column, (0, 0))
        distinct = _extrapolated(different, values, seen, rows) if values else None
        each = statistics.rows_each.get((table.source_name, column.source_name))
        if each is not None:
            distinct = rows / each
        nulls = 1 - values / seen if seen and column in counted else None
        columns.append(replace(column, distinct=distinct, null_fraction=nulls))
    return tuple(columns)


def _extrapolated(different: int, values: int, seen: int, rows: float) -> float:
    """Guess a table's different values from those of some rows.

    Where values repeat a lot, most have been seen; else their number grows with the rows.
    """
    if seen < SAMPLED_ROWS or different * 10 < values:
        return float(different)
    return different * max(1.0, rows / seen)


def _estimate(connection: sqlite3.Connection, listed: _Listed, statistics: _Statistics) -> float:
    if listed.kind == "view":
        return DEFAULT_ROWS
    if listed.name in statistics.rows:
        return max(1.0, statistics.rows[listed.name])
    name = quoted(listed.name)
    (counted,) = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM main.{name} LIMIT {COUNTED_ROWS})"
    ).fetchone()
    if counted < COUNTED_ROWS or listed.without_rowid:
        return max(1.0, float(counted))
    # Rowids are dense unless rows were deleted or ids chosen; the file's size bounds both.
    (last,) = connection.execute(f"SELECT max(rowid) FROM main.{name}").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    return float(max(counted, min(last, pages * page // 8)))
