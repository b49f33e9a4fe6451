"""What a MariaDB or MySQL owner publishes, from ``information_schema``. Pure.

A type is published as the PostgreSQL type that holds each of its values; where there is none,
the column is left out. The values that a type of PostgreSQL has no place for (zero dates, text
with a NUL) fail the statement that meets them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from oar_adapters.interface import Agreement, Column, OwnerSchema, Table
from oar_adapters.naming import Names

TABLES: Final = """
SELECT TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, TABLE_COMMENT
FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME
"""

COLUMNS: Final = """
SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME,
    COLLATION_NAME, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, COLUMN_COMMENT, PRIVILEGES
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()
ORDER BY TABLE_NAME, ORDINAL_POSITION
"""

KEYS: Final = """
SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND NON_UNIQUE = 0
ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX
"""

CARDINALITIES: Final = """
SELECT TABLE_NAME, COLUMN_NAME, CARDINALITY
FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND SEQ_IN_INDEX = 1 AND COLUMN_NAME IS NOT NULL
"""
"""About how many values there are of each column that an index begins with."""

COLUMN_STATISTICS: Final = """
SELECT table_name, column_name, avg_frequency, nulls_ratio
FROM mysql.column_stats WHERE db_name = DATABASE()
"""
"""MariaDB's statistics that belong to no engine, where there are any and the role may read them:
rows a value, and the share of NULLs."""

DEFAULT_ROWS: Final = 1000.0
"""Rows assumed for a view, as PostgreSQL assumes them for a set function."""

Row = Sequence[str | None]


class Family(Enum):
    """What the owner's comparisons on a column are like; decides how it is read and compared."""

    INTEGER = auto()
    YEAR = auto()
    DECIMAL = auto()
    DOUBLE = auto()
    REAL = auto()
    BOOLEAN = auto()
    BITS = auto()
    TEXT = auto()
    NAMED = auto()
    """Enumerations and sets: text to read, numbers in an index."""
    BYTES = auto()
    DATE = auto()
    DATETIME = auto()
    INSTANT = auto()
    INTERVAL = auto()
    UUID = auto()
    OPAQUE = auto()
    """Read as text, never compared here."""


@dataclass(frozen=True, slots=True)
class Trait:
    """What has to be known of an owner's column beyond :class:`~oar_adapters.interface.Column`."""

    family: Family
    charset: str | None = None
    collation: str | None = None
    scale: int | None = None
    """Digits behind the point that are stored, where their number is fixed."""
    strays: bool = False
    """Values may be there that the published type has no place for: other numbers where a number is
    published as ``boolean`` at the owner's word, characters that Unicode does not have in text."""


Traits = Mapping[tuple[str, str], Trait]
"""By table and column, in the owner's spelling."""


@dataclass(frozen=True, slots=True)
class Naming(Names):
    """How the owner's database is published: its options."""

    engines: Collection[str] = frozenset({"innodb", "rocksdb"})
    booleans: bool = False
    """``tinyint(1)`` is published as ``boolean``."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """A published schema and what is known of its columns."""

    schema: OwnerSchema
    traits: Traits


def discover(
    tables: Sequence[Row],
    columns: Sequence[Row],
    keys: Sequence[Row],
    naming: Naming,
    *,
    cardinalities: Sequence[Row] = (),
    statistics: Sequence[Row] = (),
) -> Discovery:
    """Make the published schema from the rows of the queries above.

    Two names that differ in case only may fall into one: whoever publishes them leaves them out.
    """
    published = []
    traits: dict[tuple[str, str], Trait] = {}
    for name, kind, engine, rows, comment in tables:
        if name is None or not _is_published(name, kind or "", engine or "", naming):
            continue
        stored = kind != "VIEW"
        made = [
            (row[1] or "", *found)
            for row in columns
            if row[0] == name and (found := _column(row, naming, stored=stored)) is not None
        ]
        if not made:
            continue
        traits |= {(name, source): trait for source, _, trait in made}
        primary, unique = (
            _keys([row for row in keys if row[0] == name], made) if stored else ((), ())
        )
        count = max(1.0, float(rows or 1)) if stored else DEFAULT_ROWS
        counted = _counted(
            count,
            [row[1:] for row in cardinalities if row[0] == name],
            [row[1:] for row in statistics if row[0] == name],
        )
        published.append(
            Table(
                name=naming.published(name),
                columns=tuple(
                    replace(column, distinct=distinct, null_fraction=nulls)
                    for source, column, _ in made
                    for distinct, nulls in (counted.get(source, (None, None)),)
                ),
                source_name=name,
                primary_key=primary,
                unique_keys=unique,
                row_estimate=count,
                comment=(comment or None) if stored else None,
            )
        )
    return Discovery(OwnerSchema(tuple(published)), traits)


def _counted(
    rows: float, cardinalities: Sequence[Row], statistics: Sequence[Row]
) -> Mapping[str, tuple[float | None, float | None]]:
    """Return each column's different values and share of NULLs, as far as the owner knows them."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for column, frequency, nulls in statistics:
        share = None if nulls is None else float(nulls)
        each = float(frequency or 0)
        distinct = rows * (1 - (share or 0.0)) / each if each > 0 else None
        found[column or ""] = distinct, share
    for column, cardinality in cardinalities:
        distinct, share = found.get(column or "", (None, None))
        if distinct is None and cardinality:
            # InnoDB counts by a sample of its pages, and may count more than there are rows.
            found[column or ""] = min(max(1.0, float(cardinality)), rows), share
    return found


def _is_published(name: str, kind: str, engine: str, naming: Naming) -> bool:
    """Tell whether a table is published.

    Engines without transactions have no snapshot: two reads of a statement could differ.
    """
    if not naming.wanted(name):
        return False
    stored = kind in ("BASE TABLE", "SYSTEM VERSIONED") and engine.lower() in naming.engines
    return kind == "VIEW" or stored


def _column(row: Row, naming: Naming, *, stored: bool) -> tuple[Column, Trait] | None:
    (
        _,
        name,
        data_type,
        declared,
        nullable,
        charset,
        collation,
        digits,
        scale,
        places,
        comment,
        may,
    ) = row
    if name is None or "select" not in (may or "").lower():
        return None
    found = published_type(
        (data_type or "").lower(), (declared or "").lower(), digits, scale, booleans=naming.booleans
    )
    if found is None:
        return None
    type_, family = found
    if family in (Family.TEXT, Family.NAMED) and charset in (None, "binary"):
        return None
    strays = (
        family is Family.BOOLEAN and data_type != "bit"
        if charset is None
        else charset not in _UNICODE_CHARSETS
    )
    column = Column(
        name=naming.published(name),
        type=type_,
        source_name=name,
        # What a view says of itself is as old as the view.
        not_null=stored and nullable == "NO",
        comment=comment or None,
        equality=Agreement.NONE if family in _NEVER_COMPARED else Agreement.EXACT,
        ordered=family not in _NEVER_COMPARED and family is not Family.UUID,
    )
    fixed = "0" if family is Family.DATE else places if scale is None else scale
    return column, Trait(family, charset, collation, None if fixed is None else int(fixed), strays)


_NEVER_COMPARED: Final = frozenset({Family.REAL, Family.BITS, Family.INTERVAL, Family.OPAQUE})

_SIGNED: Final = {
    "tinyint": "smallint",
    "smallint": "smallint",
    "mediumint": "integer",
    "int": "integer",
    "bigint": "bigint",
}
_UNSIGNED: Final = {
    "tinyint": "smallint",
    "smallint": "integer",
    "mediumint": "integer",
    "int": "bigint",
    "bigint": "numeric(20,0)",
}
_OTHERS: Final = {
    "year": ("smallint", Family.YEAR),
    "double": ("double precision", Family.DOUBLE),
    "float": ("real", Family.REAL),
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ("text", Family.TEXT)
    ),
    **dict.fromkeys(("enum", "set"), ("text", Family.NAMED)),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        ("bytea", Family.BYTES),
    ),
    "date": ("date", Family.DATE),
    "datetime": ("timestamp without time zone", Family.DATETIME),
    "timestamp": ("timestamp with time zone", Family.INSTANT),
    # From -838:59:59 to 838:59:59.
    "time": ("interval", Family.INTERVAL),
    "uuid": ("uuid", Family.UUID),
    "json": ("json", Family.OPAQUE),
    "inet4": ("text", Family.OPAQUE),
    "inet6": ("text", Family.OPAQUE),
}


def published_type(
    data_type: str, declared: str, digits: str | None, scale: str | None, *, booleans: bool
) -> tuple[str, Family] | None:
    """Return the PostgreSQL type of a column and its family; None for one with no such type."""
    if data_type in _SIGNED:
        if booleans and declared == "tinyint(1)":
            return "boolean", Family.BOOLEAN
        kinds = _UNSIGNED if "unsigned" in declared else _SIGNED
        return kinds[data_type], Family.INTEGER
    if data_type == "decimal":
        # Constants with more digits behind the point are not taken everywhere.
        family = Family.DECIMAL if int(scale or 0) <= 30 else Family.OPAQUE
        return f"numeric({digits},{scale})", family
    if data_type == "bit":
        return ("boolean", Family.BOOLEAN) if digits == "1" else (f"bit({digits})", Family.BITS)
    return _OTHERS.get(data_type)


_UNICODE_CHARSETS: Final = frozenset(
    {
        "armscii8", "cp850", "cp852", "cp866", "gb18030", "keybcs2", "koi8r", "koi8u", "latin1",
        "latin2", "latin5", "latin7", "macce", "macroman", "ucs2", "utf16", "utf16le", "utf32",
        "utf8", "utf8mb3", "utf8mb4",
    }
)  # fmt: skip
"""Character sets that can hold no text but such as Unicode has too. In others there may be bytes
that mean nothing (``98`` in ``cp1251``), of which the server makes a question mark."""

_DISTINCT_CHARSETS: Final = frozenset(
    {"ascii", "latin1", "ucs2", "utf16", "utf16le", "utf32", "utf8", "utf8mb3", "utf8mb4"}
)
"""Character sets no two of whose texts become one in UTF-8."""


def _keys(
    rows: Sequence[Row], made: Sequence[tuple[str, Column, Trait]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the keys. What is unique by a prefix, or regardless of case, is unique."""
    named = {
        source: column.name
        for source, column, trait in made
        if trait.charset is None or trait.charset in _DISTINCT_CHARSETS
    }
    indexes: dict[str, list[str | None]] = {}
    for _, index, column in rows:
        # An expression has no column.
        indexes.setdefault(index or "", []).append(named.get(column or ""))
    primary: tuple[str, ...] = ()
    unique = []
    for index, names in indexes.items():
        key = tuple(name for name in names if name is not None)
        if len(key) != len(names):
            continue
        if index == "PRIMARY":
            primary = key
        else:
            unique.append(key)
    return primary, tuple(unique)
