"""Two and three owners of every kind that can be had, and the same tables in one database.

A combination is named by the kinds of its left and right owner: ``pg`` is a PostgreSQL database that
compares bytes, ``icu`` one whose database orders text as en-US does, ``sqlite`` a file, ``mariadb`` a
database whose collation ignores case, accents and trailing blanks, and whose columns ``k`` have an
index. The third owner is of the left one's kind. Each combination has a schema of its own in the
reference database, with the types that its owners publish.
"""

from __future__ import annotations

import datetime
import re
import secrets
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
import yaml
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())

SERIES = 70_000
"""Above the 32,766 parameters of an SQLite statement and the 65,535 of a PostgreSQL message."""

_SQLITE = {
    "bigint": ("INTEGER", "bigint"),
    "integer": ("INTEGER", "bigint"),
    "smallint": ("SMALLINT", "bigint"),
    "text": ("TEXT", "text"),
    "character varying(10)": ("VARCHAR(10)", "text"),
    "numeric": ("NUMERIC", "numeric"),
    "double precision": ("DOUBLE", "double precision"),
    "real": ("REAL", "double precision"),
    "boolean": ("BOOLEAN", "boolean"),
    "date": ("DATE", "date"),
    "timestamp(0) without time zone": ("DATETIME", "timestamp without time zone"),
    "timestamp without time zone": ("DATETIME", "timestamp without time zone"),
    "bytea": ("BLOB", "bytea"),
}
"""How SQLite declares a type, and what is published of it."""

_MARIADB = {
    "bigint": ("BIGINT", "bigint"),
    "integer": ("INT", "integer"),
    "smallint": ("SMALLINT", "smallint"),
    "text": ("VARCHAR(100)", "text"),
    "character varying(10)": ("VARCHAR(10)", "text"),
    "numeric": ("DECIMAL(20,6)", "numeric(20,6)"),
    "double precision": ("DOUBLE", "double precision"),
    "real": ("FLOAT", "real"),
    "boolean": ("BOOLEAN", "boolean"),
    "date": ("DATE", "date"),
    "timestamp(0) without time zone": ("DATETIME", "timestamp without time zone"),
    "timestamp without time zone": ("DATETIME(6)", "timestamp without time zone"),
    "timestamp(0) with time zone": ("TIMESTAMP NULL", "timestamp with time zone"),
    "timestamp with time zone": ("TIMESTAMP(6) NULL", "timestamp with time zone"),
    "bytea": ("VARBINARY(100)", "bytea"),
    "uuid": ("UUID", "uuid"),
    "jsonb": ("JSON", "text"),
    # What PostgreSQL has no like of.
    "tinyint(1)": ("BOOLEAN", "smallint"),
    "bit(1)": ("BIT(1)", "boolean"),
    "bigint unsigned": ("BIGINT UNSIGNED", "numeric(20,0)"),
    "year": ("YEAR", "smallint"),
    "time": ("TIME", "interval"),
    "enum": ("ENUM('b', 'a', 'C', '1')", "text"),
    "latin1": ("VARCHAR(100) CHARACTER SET latin1", "text"),
    "no pad": ("VARCHAR(100) COLLATE utf8mb4_general_nopad_ci", "text"),
}
"""How MariaDB declares a type, and what is published of it."""

_MARIADB_COLLATIONS = {
    "left": "utf8mb4_general_ci",
    "right": "utf8mb4_uca1400_ai_ci",
    "third": "utf8mb4_general_ci",
}
"""What a database's text is compared by: its distribution's default, and MariaDB's since 11.6."""

_MARIADB_COLLATED = {
    "": "",
    "ci": "COLLATE utf8mb4_general_ci",
    "ai": "COLLATE utf8mb4_uca1400_ai_ci",
}

_OPTIONS = {
    ("mariadb", "left"): {"tinyint1": "boolean"},
    ("mariadb", "right"): {"tinyint1": "boolean"},
}
"""The third owner publishes a ``tinyint(1)`` as a number, which is the default."""

_COLLATIONS = """
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION ai (provider = icu, locale = 'und-u-ks-level1', deterministic = false)
"""

_HUB_COLLATION = """
CREATE COLLATION public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)
"""
_HUB_TABLE = """
CREATE TABLE public.hub_ci (id bigint, k text COLLATE public.ci);
INSERT INTO public.hub_ci VALUES (1, 'BOB'), (2, 'Alice')
"""

_ALLOWED = {
    "both": {"left": ("*",), "right": ("*",), "third": ("*",)},
    "rightward": {"left": ("right", "third"), "right": ("third",), "third": ()},
    "leftward": {"left": (), "right": ("left",), "third": ("left", "right")},
    "none": {"left": (), "right": (), "third": ()},
}
"""Whose keys may reach whom."""


@dataclass(frozen=True)
class Combination:
    """A client of a proxy, and one of the reference database, each where the tables are."""

    client: psycopg.Connection
    merged: psycopg.Connection
    hub: str


def holds(kind, table):
    """Tell whether a kind of owner can hold a table."""
    definition = TABLES[table]
    return kind in definition.get("only", (kind,)) and kind not in definition.get("cannot", ())


@pytest.fixture(scope="session")
def rule_owners(request, hub_server, new_database, tmp_path_factory):
    """Give the URL of one owner of a kind at a place, filled at first use."""
    made = {}

    def url(kind, place):
        if (kind, place) not in made:
            tables = [n for n, t in TABLES.items() if t["owner"] == place and holds(kind, n)]
            if kind == "sqlite":
                made[kind, place] = _sqlite(tmp_path_factory.mktemp(place), tables)
            elif kind == "mariadb":
                server = request.getfixturevalue("mariadb_server")
                made[kind, place] = _mariadb(server, place, tables)
            elif kind == "pg":
                made[kind, place] = _postgres(new_database(place), tables, kind)
            else:
                server = request.getfixturevalue("icu_server")
                made[kind, place] = _postgres(_icu_database(server, place), tables, kind)
        return made[kind, place]

    return url


@pytest.fixture(scope="session")
def combinations(request, rule_owners, new_database, running_proxy, tmp_path_factory):
    """Open a combination under a policy once, however many cases use it.

    ``hub="icu"``: hub and reference are on the PostgreSQL that has ICU's collations.
    """

    def icu_database(name):
        server = request.getfixturevalue("icu_server")
        dsn = _icu_database(
            server, name, "TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C.UTF-8'"
        )
        with psycopg.connect(dsn) as connection:
            connection.execute(_HUB_COLLATION + ";" + _HUB_TABLE)
        return dsn

    databases = {"embedded": new_database, "icu": icu_database}
    references = {}
    opened = {}
    with ExitStack() as stack:

        def combination(name, allowed="both", hub="embedded"):
            if hub not in references:
                references[hub] = databases[hub]("reference")
            if (name, allowed, hub) not in opened:
                opened[name, allowed, hub] = _open(
                    stack, name, allowed, references[hub], rule_owners, databases[hub]("hub"),
                    running_proxy, tmp_path_factory.mktemp("policies"),
                )  # fmt: skip
            return opened[name, allowed, hub]

        yield combination


def _open(stack, name, allowed, reference, owners, hub, running_proxy, directory):
    left, right = name.split("-")
    kinds = {"left": left, "right": right, "third": left}
    settings = {}
    for place, kind in kinds.items():
        policy = directory / f"{place}.yaml"
        receivers = ", ".join(f"'{r}'" for r in _ALLOWED[allowed][place])
        policy.write_text(
            "version: 1\n"
            + (
                f"key_disclosure:\n  - {{column: '*', to: [{receivers}], max_keys: 100000}}\n"
                if receivers
                else ""
            )
        )
        settings[place] = OwnerSettings(
            url=owners(kind, place),
            schema="shop",
            policy=policy,
            options=_OPTIONS.get((kind, place), {}),
        )
    _, dsn = stack.enter_context(
        running_proxy(Settings(owners=settings, hub=HubSettings(dsn=hub), listen=Listen(port=0)))
    )
    client = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    client.execute("SET search_path = shop, public")
    with psycopg.connect(hub) as administrator:
        if administrator.execute("SELECT to_regclass('public.hub_ci')").fetchone()[0]:
            administrator.execute("GRANT SELECT ON public.hub_ci TO oar_client")
    merged = stack.enter_context(psycopg.connect(reference, autocommit=True))
    schema = f'"{name}"'
    if not merged.execute("SELECT to_regnamespace(%s)", [schema]).fetchone()[0]:
        merged.execute(f"CREATE SCHEMA {schema}")
        merged.execute(f"SET search_path = {schema}, public")
        tables = [
            n for n, t in TABLES.items() if holds(kinds[t["owner"]], n) and t.get("merged", True)
        ]
        at = {table: kinds[TABLES[table]["owner"]] for table in tables}
        _fill(merged, {table: _published(kind, table) for table, kind in at.items()}, at)
    merged.execute(f"SET search_path = {schema}, public")
    merged.execute("SET default_transaction_read_only = on")
    return Combination(client, merged, hub)


# --- tables --------------------------------------------------------------------------------


def _published(kind, table):
    """The columns' types as the owner publishes them."""
    columns = {}
    for column, declared in TABLES[table]["columns"].items():
        base, _, rest = _split(declared)
        columns[column] = f"{_DECLARED[kind](base)[1]} {rest}".strip()
    return columns


def _split(declared):
    """Take a type apart: itself, the collation it is to have, what else is declared."""
    words = re.fullmatch(r"(.*?)( ci| ai)?( not null| primary key)?", declared)
    return words[1], (words[2] or "").strip(), (words[3] or "").strip()


def _at_postgres(base):
    return base, base


def _at_sqlite(base):
    if base.startswith("numeric("):
        return base.replace("numeric", "DECIMAL"), "numeric"
    if base.startswith("character("):
        return base.replace("character", "CHAR"), "text"
    return _SQLITE[base]


def _at_mariadb(base):
    if base.startswith("numeric("):
        return base.replace("numeric", "DECIMAL"), base
    if base.startswith("character("):
        return base.replace("character", "CHAR"), "text"
    return _MARIADB[base]


_DECLARED = {
    "pg": _at_postgres, "icu": _at_postgres, "sqlite": _at_sqlite, "mariadb": _at_mariadb,
}  # fmt: skip


def _held(kind, base, value):
    """What an owner of a kind has of a value: trailing blanks are no part of MariaDB's CHAR."""
    padded = kind == "mariadb" and base.startswith("character(") and value is not None
    return value.rstrip(" ") if padded else value


def _fill(connection, types, at):
    """Make tables of these columns with the rows that an owner of a kind has."""
    for table in types:
        declared = ", ".join(f"{name} {kind}" for name, kind in types[table].items())
        connection.execute(f"CREATE TABLE {table} ({declared})")
        bases = [_split(declared)[0] for declared in TABLES[table]["columns"].values()]
        if "series" in TABLES[table]:
            connection.execute(
                f"INSERT INTO {table} SELECT i, i * {TABLES[table]['series']} "
                f"FROM generate_series(1, {SERIES}) i"
            )
        for row in TABLES[table].get("rows", ()):
            held = [_held(at[table], base, value) for base, value in zip(bases, row, strict=True)]
            values = [None if value is None else str(value) for value in held]
            marks = ", ".join(f"%s::text::{_plain(kind)}" for kind in types[table].values())
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)


def _plain(kind):
    return re.sub(r" (not null|primary key|COLLATE \w+)", "", kind)


def _postgres(dsn, tables, kind):
    with psycopg.connect(dsn, autocommit=True) as connection:
        types = {table: _published(kind, table) for table in tables}
        if kind == "icu":
            connection.execute(_COLLATIONS)
            for table in tables:
                for column, declared in TABLES[table]["columns"].items():
                    collation = _split(declared)[1]
                    if collation:
                        types[table][column] += f" COLLATE {collation}"
        _fill(connection, types, dict.fromkeys(tables, kind))
        connection.execute("ANALYZE")
    return owner_url(dsn)


def _icu_database(server, name, options=""):
    database = f"{name}_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database} {options}")
    return psycopg.conninfo.make_conninfo(server, dbname=database)


def _sqlite(directory, tables):
    path = directory / "owner.sqlite"
    connection = sqlite3.connect(path)
    with connection:
        for table in tables:
            columns = []
            for name, declared in TABLES[table]["columns"].items():
                base, collation, rest = _split(declared)
                nocase = "COLLATE NOCASE" if collation else ""
                columns.append(f"{name} {_at_sqlite(base)[0]} {rest} {nocase}")
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            bases = [_split(declared)[0] for declared in TABLES[table]["columns"].values()]
            marks = ", ".join("?" * len(columns))
            if "series" in TABLES[table]:
                step = TABLES[table]["series"]
                numbers = ((i, i * step) for i in range(1, SERIES + 1))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", numbers)
            for row in TABLES[table].get("rows", ()):
                values = [_stored(v, base) for v, base in zip(row, bases, strict=True)]
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.close()
    return f"sqlite:///{path}"


def _mariadb(server, place, tables):
    name, url = server.new_database(
        place, options=f"CHARACTER SET utf8mb4 COLLATE {_MARIADB_COLLATIONS[place]}"
    )
    # Else a value would be cut or taken for another.
    strict = "SET sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00'"
    statements = [f"CREATE TABLE {table} ({_columns_at_mariadb(table)})" for table in tables]
    server.run(strict, *statements, database=name)
    for table in tables:
        bases = [_split(declared)[0] for declared in TABLES[table]["columns"].values()]
        rows = [
            [_stored(value, base) for value, base in zip(row, bases, strict=True)]
            for row in TABLES[table].get("rows", ())
        ]
        marks = ", ".join(["%s"] * len(bases))
        insert = f"INSERT INTO {table} VALUES ({marks})"
        if rows:
            server.run(strict, insert, database=name, rows=rows)
        if "series" in TABLES[table]:
            numbers = f"SELECT seq, seq * {TABLES[table]['series']} FROM seq_1_to_{SERIES}"
            server.run(f"INSERT INTO {table} {numbers}", database=name)
    server.run(f"ANALYZE TABLE {', '.join(tables)}", database=name)
    return url


def _columns_at_mariadb(table):
    columns = []
    for column, declared in TABLES[table]["columns"].items():
        base, collation, rest = _split(declared)
        columns.append(f"{column} {_at_mariadb(base)[0]} {_MARIADB_COLLATED[collation]} {rest}")
    if TABLES[table]["columns"].get("k", "jsonb") != "jsonb":
        # Where there is an index a constant is turned into the column's type first.
        columns.append("INDEX (k)")
    return ", ".join(columns)


def _stored(value, base):
    """A value as a driver takes it that knows nothing of PostgreSQL's types."""
    if value is None:
        return None
    if base == "bytea":
        return bytes.fromhex(value.removeprefix("\\x"))
    if base.endswith("with time zone"):
        moment = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
        return moment.replace(tzinfo=None).isoformat(sep=" ")
    return value
