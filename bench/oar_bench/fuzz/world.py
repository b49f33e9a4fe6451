"""Random owners: which tables there are, who holds their rows, and the rows themselves.

Values are kept in PostgreSQL's text form (None is NULL), so that an owner's insert, the
reference's and a printed script say the same. All columns of a family draw from one pool, so that
keys of different tables meet; every column leaves some of the pool out, so that some do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its published type. ``tame``: arithmetic over its values cannot fail."""

    name: str
    type: str
    family: str
    not_null: bool = False
    tame: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its rows at each owner that holds some; more than one owner: split."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    held: Mapping[str, tuple[Row, ...]]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all owners."""
        return tuple(row for rows in self.held.values() for row in rows)


@dataclass(frozen=True, slots=True)
class World:
    """Owners by name with their kind (``postgres`` or ``sqlite``), and tables between them.

    ``settings`` are those of the client's session, here and at the reference.
    """

    name: str
    owners: Mapping[str, str]
    tables: tuple[Table, ...]
    settings: Mapping[str, str]

    def table(self, name: str) -> Table:
        """Return the table of this name. Raises ``StopIteration`` where there is none."""
        return next(table for table in self.tables if table.name == name)

    def without(self, names: Sequence[str]) -> World:
        """Return the world without some of its tables."""
        return replace(self, tables=tuple(t for t in self.tables if t.name not in names))


FAMILY_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("bigint", "bigint", "integer", "smallint"),
    "text": ("text", "text", "character varying", "character varying(20)", "character(4)"),
    "num": ("numeric", "numeric(12,2)"),
    "date": ("date",),
    "bool": ("boolean",),
    "float": ("double precision", "double precision", "real"),
    "stamp": ("timestamp without time zone",),
    "uuid": ("uuid",),
}
"""What a PostgreSQL owner may declare for a family; the more often named, the more often taken."""

SQLITE_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "int": ("bigint", "INTEGER"),
    "text": ("text", "TEXT"),
    "num": ("numeric", "DECIMAL"),
    "date": ("date", "DATE"),
    "bool": ("boolean", "BOOLEAN"),
    "float": ("double precision", "REAL"),
}
"""Published and declared type of a family at an SQLite owner."""

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("k", "k", "k", "m", "n"),
    "text": ("s", "s", "t", "ключ"),
    "num": ("p",),
    "date": ("d", "day"),
    "bool": ("f",),
    "float": ("x",),
    "stamp": ("at",),
    "uuid": ("u",),
}
"""Columns of one name share a family: they are what USING and NATURAL join on."""

POOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("0", "1", "2", "3", "5", "7", "10", "11", "20", "-1", "-4"),
    "text": ("a", "a ", "A", "b", "Bob", "bob", "", "10", "9", "1", "\u00e9", "e\u0301", "x%y",
             "x_y"),
    "num": ("0", "1", "1.5", "2", "2.25", "-3", "10", "0.1", "20"),
    "date": ("2024-01-01", "2024-02-29", "2023-12-31", "1999-12-31", "2024-01-02"),
    "bool": ("t", "f"),
    "float": ("0", "1", "1.5", "2", "-2.25", "10", "20", "0.5"),
    "stamp": ("2024-01-01 00:00:00", "2024-01-01 12:30:00.25", "2023-12-31 23:59:59"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
}  # fmt: skip
"""Values whose arithmetic neither overflows nor rounds: floats here are sums of powers of two."""

WILD: Final[Mapping[str, tuple[str, ...]]] = {
    "bigint": ("9223372036854775807", "-9223372036854775808", "9007199254740993", "40000"),
    "integer": ("2147483647", "-2147483648", "40000"),
    "smallint": ("32767", "-32768"),
    "numeric": ("123456789012345678901234567890.5", "0.00000000000000000001", "NaN"),
    "numeric(12,2)": ("9999999999.99", "0.01"),
    "double precision": ("1e300", "-1e300", "0.1", "9007199254740992", "1e-300", "0.3"),
    "real": ("0.1", "16777216", "1e30"),
    "date": ("0001-01-01", "9999-12-31"),
    "text": ("\u041f\u0440\u0438\u0432\u0435\u0442", "it's", "back\\slash", "\ud55c\uae00", "a\tb",
             "Z", "null"),
}  # fmt: skip
"""Extreme values by published type. Columns that hold some are not computed with."""

_SQLITE_SAFE_NUMERIC: Final = ("40000", "0.3")
"""SQLite keeps fifteen digits of a decimal, so extreme ones are another value there (R49)."""

TABLE_NAMES: Final = ("t1", "t2", "orders", "t4", "заказы")
ROW_COUNTS: Final = (0, 1, 3, 6, 6, 9, 9, 14, 25)
SETTINGS: Final = (
    {"DateStyle": "SQL, DMY"},
    {"DateStyle": "German"},
    {"TimeZone": "Asia/Tokyo"},
    {"extra_float_digits": "0"},
)


def random_world(random: Random, name: str) -> World:
    """Draw a world: two or three owners, at least one of each kind, two to five tables."""
    kinds = ["postgres", "sqlite", *random.sample(["postgres", "sqlite"], random.choice((0, 1)))]
    random.shuffle(kinds)
    owners = {f"{name}_{number}": kind for number, kind in enumerate(kinds, start=1)}
    tables = tuple(
        _random_table(random, table_name, owners)
        for table_name in random.sample(TABLE_NAMES, random.randint(2, 5))
    )
    settings = random.choice(SETTINGS) if random.random() < 0.15 else {}
    return World(name, owners, tables, settings)


def _random_table(random: Random, name: str, owners: Mapping[str, str]) -> Table:
    holders = random.sample(list(owners), 2 if random.random() < 0.25 else 1)
    portable = any(owners[holder] == "sqlite" for holder in holders)
    families = ["int", "int", "text", "num", "date", "bool", "float"]
    families += [] if portable else ["stamp", "uuid"]
    wanted = ["int", *random.choices(families, weights=[6, 3, 6, 3, 3, 2, 2, 1, 1][: len(families)],
                                     k=random.randint(1, 5))]  # fmt: skip
    columns: dict[str, Column] = {}
    with_id = random.random() < 0.75
    keyed = with_id and len(holders) == 1 and random.random() < 0.6
    if with_id:
        columns["id"] = Column("id", "bigint", "int", not_null=keyed)
    for family in wanted:
        column = _random_column(random, family, portable=portable)
        columns.setdefault(column.name, column)
    listed = tuple(columns.values())
    held = {holder: _random_rows(random, listed, portable=portable) for holder in holders}
    if with_id:
        held = _numbered(held)
    return Table(name, listed, ("id",) if keyed else (), held)


def _random_column(random: Random, family: str, *, portable: bool) -> Column:
    type_ = SQLITE_TYPES[family][0] if portable else random.choice(FAMILY_TYPES[family])
    return Column(
        name=random.choice(NAMES[family]),
        type=type_,
        family=family,
        not_null=random.random() < 0.25,
        tame=random.random() < 0.75 or type_ not in WILD,
    )


def _random_rows(random: Random, columns: Sequence[Column], *, portable: bool) -> tuple[Row, ...]:
    count = random.choice(ROW_COUNTS)
    drawn = [_random_cells(random, column, count, portable=portable) for column in columns]
    rows = list(zip(*drawn, strict=True))
    return tuple(rows)


def _random_cells(
    random: Random, column: Column, count: int, *, portable: bool
) -> list[str | None]:
    pool = list(POOLS[column.family])
    pool = random.sample(pool, max(1, len(pool) * random.choice((4, 7, 10)) // 10))
    if not column.tame:
        wild = WILD[column.type]
        if portable and column.type == "numeric":
            wild = _SQLITE_SAFE_NUMERIC
        pool += random.sample(wild, min(len(wild), 3))
    nulls = 0.0 if column.not_null else random.choice((0.0, 0.15, 0.3))
    return [None if random.random() < nulls else random.choice(pool) for _ in range(count)]


def _numbered(held: Mapping[str, tuple[Row, ...]]) -> dict[str, tuple[Row, ...]]:
    """Number the rows of all owners, in the first column."""
    numbered: dict[str, tuple[Row, ...]] = {}
    number = 0
    for owner, rows in held.items():
        numbered[owner] = tuple((str(number + i), *row[1:]) for i, row in enumerate(rows, start=1))
        number += len(rows)
    return numbered


# --- as SQL ----------------------------------------------------------------------------------


def quote(value: str | None) -> str:
    """Write a value as a literal both PostgreSQL and SQLite read."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create(table: Table, kind: str, schema: str | None = None) -> str:
    """Return CREATE TABLE for an owner of this kind, or for the reference's ``schema``."""
    parts = []
    for column in table.columns:
        declared = SQLITE_TYPES[column.family][1] if kind == "sqlite" else column.type
        null = " NOT NULL" if column.not_null else ""
        parts.append(f"{_name(column.name)} {declared}{null}")
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(_name, table.primary_key))})")
    return f"CREATE TABLE {_qualified(table, schema)} ({', '.join(parts)})"


def insert(table: Table, rows: Sequence[Row], kind: str, schema: str | None = None) -> str | None:
    """Return INSERT of rows, None where there is none."""
    if not rows:
        return None
    listed = ", ".join(
        f"({', '.join(_cell(cell, c, kind) for cell, c in zip(row, table.columns, strict=True))})"
        for row in rows
    )
    return f"INSERT INTO {_qualified(table, schema)} VALUES {listed}"


def _qualified(table: Table, schema: str | None) -> str:
    return _name(table.name) if schema is None else f"{_name(schema)}.{_name(table.name)}"


def _cell(cell: str | None, column: Column, kind: str) -> str:
    if kind == "sqlite" and cell is not None and column.family == "bool":
        return "1" if cell == "t" else "0"
    # Affinity turns the text into what the column is declared as.
    return quote(cell)
