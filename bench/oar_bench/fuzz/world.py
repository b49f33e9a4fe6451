"""Random owners: which tables there are, who holds their rows, and the rows themselves.

Values are kept in PostgreSQL's text form (None is NULL), so that an owner's insert, the
reference's and a printed script say the same. All columns of a family draw from one pool, so that
keys of different tables meet; every column leaves some of the pool out, so that some do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its published type. ``tame``: arithmetic over its values cannot fail.

    ``folds``: text that its owner compares without regard to case, where it can.
    """

    name: str
    type: str
    family: str
    not_null: bool = False
    tame: bool = True
    folds: bool = False


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
    """Owners by name with their kind (one of :data:`KINDS`), and tables between them.

    ``settings`` are those of the client's session, here and at the reference. ``policies`` are the
    texts of owners' policies; an owner without one lets every key travel.
    """

    name: str
    owners: Mapping[str, str]
    tables: tuple[Table, ...]
    settings: Mapping[str, str]
    policies: Mapping[str, str] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """Return the table of this name. Raises ``StopIteration`` where there is none."""
        return next(table for table in self.tables if table.name == name)

    def without(self, names: Sequence[str]) -> World:
        """Return the world without some of its tables."""
        return replace(self, tables=tuple(t for t in self.tables if t.name not in names))


KINDS: Final = ("postgres", "sqlite", "icu", "mariadb")
"""Kinds of owners: PostgreSQL that orders text by its bytes, SQLite, PostgreSQL that orders text as
en-US does, MariaDB."""

_POSTGRES_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("bigint", "bigint", "integer", "smallint"),
    "text": ("text", "text", "character varying", "character varying(20)", "character(4)"),
    "num": ("numeric", "numeric(12,2)", "numeric(6,3)"),
    "date": ("date",),
    "bool": ("boolean",),
    "float": ("double precision", "double precision", "real"),
    "stamp": ("timestamp without time zone",),
    "uuid": ("uuid",),
    "span": ("interval",),
    "net": ("inet",),
}
_SQLITE_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("bigint",),
    "text": ("text",),
    "num": ("numeric",),
    "date": ("date",),
    "bool": ("boolean",),
    "float": ("double precision",),
}
_MARIADB_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    **_POSTGRES_TYPES,
    "text": ("text",),
    "num": ("numeric(12,2)", "numeric(6,3)"),
    "span": (),
    "net": (),
}
TYPES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "postgres": _POSTGRES_TYPES,
    "icu": _POSTGRES_TYPES,
    "sqlite": _SQLITE_TYPES,
    "mariadb": _MARIADB_TYPES,
}
"""Published types of a family, by kind; the more often named, the more often taken."""

_DECLARED: Final[Mapping[str, Mapping[str, str]]] = {
    "postgres": {},
    "icu": {},
    "sqlite": {
        "bigint": "INTEGER",
        "text": "TEXT",
        "numeric": "DECIMAL",
        "date": "DATE",
        "boolean": "BOOLEAN",
        "double precision": "REAL",
    },
    "mariadb": {
        "text": "VARCHAR(60)",
        "boolean": "TINYINT(1)",
        "double precision": "DOUBLE",
        "real": "FLOAT",
        "timestamp without time zone": "DATETIME(6)",
    },
}
"""How a kind declares a published type; by its own name where there is none."""

_COLLATED: Final[Mapping[str, tuple[str, str]]] = {
    "sqlite": ("", " COLLATE NOCASE"),
    "icu": ("", " COLLATE ci"),
    "mariadb": (" COLLATE utf8mb4_nopad_bin", ""),
}
"""What a text column is declared with besides: one that does not fold case, and one that does."""

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("k", "k", "k", "m", "n"),
    "text": ("s", "s", "t", "ключ"),
    "num": ("p",),
    "date": ("d", "day"),
    "bool": ("f",),
    "float": ("x",),
    "stamp": ("at",),
    "uuid": ("u",),
    "span": ("w",),
    "net": ("h",),
}
"""Columns of one name share a family: they are what USING and NATURAL join on."""

_FAMILY_WEIGHTS: Final = {
    "int": 9, "text": 6, "num": 4, "date": 3, "bool": 2, "float": 2, "stamp": 1, "uuid": 1,
    "span": 1, "net": 1,
}  # fmt: skip

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
    # Types that travel as text, whose order is another one; no two of these are equal.
    "span": ("00:00:00", "02:00:00", "10:00:00", "2 days", "10 days", "1 mon", "-1 days", "1 year"),
    "net": ("9.0.0.1", "10.0.0.1", "10.0.0.0/8", "127.0.0.1", "::1", "fe80::1"),
}  # fmt: skip
"""Values whose arithmetic neither overflows nor rounds: floats here are sums of powers of two."""

WILD: Final[Mapping[str, tuple[str, ...]]] = {
    "bigint": ("9223372036854775807", "-9223372036854775808", "9007199254740993", "40000"),
    "integer": ("2147483647", "-2147483648", "40000"),
    "smallint": ("32767", "-32768"),
    "numeric": ("123456789012345678901234567890.5", "0.00000000000000000001", "NaN"),
    "numeric(12,2)": ("9999999999.99", "-9999999999.99", "0.01"),
    "numeric(6,3)": ("999.999", "-999.999", "0.001"),
    "double precision": ("1e300", "-1e300", "0.1", "9007199254740992", "1e-300", "0.3"),
    "real": ("0.1", "16777216", "1e30"),
    "date": ("0001-01-01", "9999-12-31"),
    "text": ("\u041f\u0440\u0438\u0432\u0435\u0442", "it's", "back\\slash", "\ud55c\uae00", "a\tb",
             "Z", "null"),
}  # fmt: skip
"""Extreme values by published type. Columns that hold some are not computed with."""

_SQLITE_SAFE_NUMERIC: Final = ("40000", "0.3")
"""SQLite keeps fifteen digits of a decimal, so extreme ones are another value there (R49)."""

TABLE_NAMES: Final = ("t1", "t2", "orders", "t4", "заказы", "items")
ROW_COUNTS: Final = (0, 1, 3, 6, 6, 9, 9, 14, 14, 20, 25)
REPEATING_ROW_COUNTS: Final = (9, 14, 25, 40)
"""Rows of a table whose columns have few values: most rows have the same key as others."""
SETTINGS: Final = (
    {"DateStyle": "SQL, DMY"},
    {"DateStyle": "German"},
    {"TimeZone": "Asia/Tokyo"},
    {"extra_float_digits": "0"},
)


def random_world(random: Random, name: str, kinds: Collection[str] = KINDS) -> World:
    """Draw a world: two or three owners of these kinds, and two to six tables.

    One owner is a PostgreSQL database, one is of another technology.
    """
    postgres = [kind for kind in ("postgres", "icu") if kind in kinds]
    others = [kind for kind in ("sqlite", "sqlite", "mariadb") if kind in kinds]
    drawn = [random.choice(postgres), random.choice(others)]
    drawn += random.sample(postgres + others, random.choice((0, 1, 1)))
    random.shuffle(drawn)
    owners = {f"{name}_{number}": kind for number, kind in enumerate(drawn, start=1)}
    tables = tuple(
        _random_table(random, table_name, owners)
        for table_name in random.sample(TABLE_NAMES, random.choice((2, 3, 4, 4, 5, 6)))
    )
    settings = random.choice(SETTINGS) if random.random() < 0.15 else {}
    policies = _random_policies(random, owners, tables) if random.random() < 0.4 else {}
    return World(name, owners, tables, settings, policies)


def _random_table(random: Random, name: str, owners: Mapping[str, str]) -> Table:
    holders = random.sample(list(owners), 2 if random.random() < 0.25 else 1)
    kinds = {owners[holder] for holder in holders}
    types = {
        family: [t for t in TYPES[min(kinds)][family] if all(t in TYPES[k][family] for k in kinds)]
        for family in NAMES
        if all(family in TYPES[kind] for kind in kinds)
    }
    repeating = random.random() < 0.5
    families = [family for family in types if types[family]]
    weights = [_FAMILY_WEIGHTS[family] for family in families]
    wanted = ["int", *random.choices(families, weights, k=random.randint(1, 5))]
    columns: dict[str, Column] = {}
    with_id = random.random() < 0.75
    keyed = with_id and len(holders) == 1 and random.random() < 0.6
    if with_id:
        columns["id"] = Column("id", "bigint", "int", not_null=keyed)
    for family in wanted:
        column = _random_column(random, family, random.choice(types[family]))
        columns.setdefault(column.name, column)
    listed = tuple(columns.values())
    pools = [_pool(random, column, kinds, repeating=repeating) for column in listed]
    held = {holder: _random_rows(random, listed, pools, repeating) for holder in holders}
    if with_id:
        held = _numbered(held)
    return Table(name, listed, ("id",) if keyed else (), held)


def _random_column(random: Random, family: str, type_: str) -> Column:
    return Column(
        name=random.choice(NAMES[family]),
        type=type_,
        family=family,
        not_null=random.random() < 0.25,
        tame=random.random() < 0.75 or type_ not in WILD,
        # Pattern matching and char(n) have no collation without case.
        folds=type_ in ("text", "character varying") and random.random() < 0.6,
    )


def _pool(random: Random, column: Column, kinds: Collection[str], *, repeating: bool) -> list[str]:
    """Values a column of some owners draws from."""
    pool = list(POOLS[column.family])
    share = max(1, len(pool) * random.choice((4, 7, 10)) // 10)
    pool = random.sample(pool, min(share, random.choice((2, 3, 4)) if repeating else share))
    if not column.tame:
        wild = WILD[column.type]
        if "sqlite" in kinds and column.type == "numeric":
            wild = _SQLITE_SAFE_NUMERIC
        pool += random.sample(wild, min(len(wild), 3))
    return pool


def _random_rows(
    random: Random, columns: Sequence[Column], pools: Sequence[Sequence[str]], repeating: bool
) -> tuple[Row, ...]:
    count = random.choice(REPEATING_ROW_COUNTS if repeating else ROW_COUNTS)
    drawn = []
    for column, pool in zip(columns, pools, strict=True):
        nulls = 0.0 if column.not_null else random.choice((0.0, 0.15, 0.3))
        drawn.append(
            [None if random.random() < nulls else random.choice(pool) for _ in range(count)]
        )
    return tuple(zip(*drawn, strict=True))


def _random_policies(
    random: Random, owners: Mapping[str, str], tables: Sequence[Table]
) -> dict[str, str]:
    """Policies that let no key, some keys or few keys travel, so that relays turn or cannot be."""
    return {owner: _random_policy(random, owner, owners, tables) for owner in owners}


def _random_policy(
    random: Random, owner: str, owners: Mapping[str, str], tables: Sequence[Table]
) -> str:
    lines = ["version: 1"]
    if random.random() < 0.25:
        lines.append(f"limits: {{max_keys_in: {random.choice((0, 1, 2, 5))}}}")
    kind = random.choice(("all", "none", "columns", "columns", "receivers"))
    grants = []
    if kind == "columns":
        own = [(t.name, c.name) for t in tables if owner in t.held for c in t.columns]
        for table, column in random.sample(own, min(len(own), random.choice((1, 2, 3)))):
            grants.append(random.choice((f"{table}.{column}", f"{table}.*")))
    elif kind != "none":
        grants.append("*")
    others = [other for other in owners if other != owner]
    for column in grants:
        to = "*" if kind == "all" or random.random() < 0.5 else random.choice(others)
        most = random.choice((1, 2, 3, 5, 1000, 1000, 1000))
        lines.append(f'  - {{column: "{column}", to: ["{to}"], max_keys: {most}}}')
    if grants:
        lines.insert(len(lines) - len(grants), "key_disclosure:")
    return "\n".join(lines) + "\n"


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
    """Write a value as a literal every kind of owner reads."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create(table: Table, kind: str, schema: str | None = None) -> str:
    """Return CREATE TABLE for an owner of a kind, or for the reference's ``schema``."""
    parts = []
    for column in table.columns:
        null = " NOT NULL" if column.not_null else ""
        parts.append(f"{_name(column.name)} {_declared(column, kind)}{null}")
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(_name, table.primary_key))})")
    return f"CREATE TABLE {_qualified(table, schema)} ({', '.join(parts)})"


def _declared(column: Column, kind: str) -> str:
    declared = _DECLARED.get(kind, {}).get(column.type, column.type)
    if column.type not in ("text", "character varying") or kind not in _COLLATED:
        return declared
    return declared + _COLLATED[kind][column.folds]


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
    if kind in ("sqlite", "mariadb") and cell is not None and column.family == "bool":
        return "1" if cell == "t" else "0"
    # Affinity turns the text into what the column is declared as.
    return quote(cell)
