"""Two and three owners of every kind that can be had, and the same tables in one database.

A combination is named by the kinds of its left and right owner: ``pg`` is a PostgreSQL database that
compares bytes, ``icu`` one whose database orders text as en-US does, ``sqlite`` a file. The third
owner is of the left one's kind. Each combination has a schema of its own in the reference database,
with the types that its owners publish.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import psycopg.conninfo
import pytest
import yaml
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
    "character(5)": ("CHAR(5)", "text"),
    "numeric": ("NUMERIC", "numeric"),
    "double precision": ("DOUBLE", "double precision"),
    "real": ("REAL", "double precision"),
    "boolean": ("BOOLEAN", "boolean"),
    "date": ("DATE", "date"),
    "timestamp without time zone": ("DATETIME", "timestamp without time zone"),
    "bytea": ("BLOB", "bytea"),
}
"""How SQLite declares a type, and what is published of it."""

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
    return kind in TABLES[table].get("only", ("pg", "icu", "sqlite"))


def kind_of(combination, table):
    left, right = combination.split("-")
    return right if TABLES[table]["owner"] == "right" else left


@pytest.fixture(scope="session")
def rule_owners(request, hub_server, new_database, tmp_path_factory):
    """Give the URL of one owner of a kind at a place, filled at first use."""
    made = {}

    def url(kind, place):
        if (kind, place) not in made:
            tables = [n for n, t in TABLES.items() if t["owner"] == place and holds(kind, n)]
            if kind == "sqlite":
                made[kind, place] = _sqlite(tmp_path_factory.mktemp(place), tables)
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
        settings[place] = OwnerSettings(url=owners(kind, place), schema="shop", policy=policy)
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
        _fill(merged, tables, {n: _published(kinds[TABLES[n]["owner"]], n) for n in tables})
    merged.execute(f"SET search_path = {schema}, public")
    merged.execute("SET default_transaction_read_only = on")
    return Combination(client, merged, hub)


# --- tables --------------------------------------------------------------------------------


def _published(kind, table):
    """The columns' types as the owner publishes them."""
    columns = {}
    for column, declared in TABLES[table]["columns"].items():
        base, _, rest = _split(declared)
        published = base if kind != "sqlite" else _at_sqlite(base)[1]
        columns[column] = f"{published} {rest}".strip()
    return columns


def _split(declared):
    """Take a type apart: itself, the collation it is to have, what else is declared."""
    words = re.fullmatch(r"(.*?)( ci| ai)?( not null| primary key)?", declared)
    return words[1], (words[2] or "").strip(), (words[3] or "").strip()


def _at_sqlite(base):
    if base.startswith("numeric("):
        return base.replace("numeric", "DECIMAL"), "numeric"
    return _SQLITE[base]


def _fill(connection, tables, types):
    for table in tables:
        declared = ", ".join(f"{name} {kind}" for name, kind in types[table].items())
        connection.execute(f"CREATE TABLE {table} ({declared})")
        if "series" in TABLES[table]:
            connection.execute(
                f"INSERT INTO {table} SELECT i, i * {TABLES[table]['series']} "
                f"FROM generate_series(1, {SERIES}) i"
            )
        for row in TABLES[table].get("rows", ()):
            values = [None if value is None else str(value) for value in row]
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
        _fill(connection, tables, types)
        connection.execute("ANALYZE")
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    password = f":{quote(parts['password'])}" if "password" in parts else ""
    return (
        f"postgres://{parts['user']}{password}@/{parts['dbname']}"
        f"?host={quote(str(parts['host']), safe='')}&port={parts.get('port', 5432)}"
    )


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


def _stored(value, base):
    if base == "bytea" and value is not None:
        return bytes.fromhex(value.removeprefix("\\x"))
    return value
