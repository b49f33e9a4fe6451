"""A whole proxy over real owners, and one PostgreSQL database that holds all their tables.

Owners: ``north`` and ``west`` are PostgreSQL databases, ``south`` is an SQLite file. Table ``a`` is
north's, ``b`` south's, ``c`` west's; the rows of ``split`` are north's and south's. ``d`` lies beside
``a`` at north. Data hold NULLs, duplicates, unmatched keys on both sides, case twins, an empty table.
"""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.settings import HubSettings, Limits, Listen, OwnerSettings, Settings

TABLES = {
    "a": ("id bigint, k bigint, v text", [(1, 10, "x"), (2, 20, "y"), (3, None, "x"), (4, 10, None),
          (5, 50, "y"), (6, 60, "Привет")]),
    "b": ("id bigint, k bigint, w bigint, s text", [(1, 10, 100, "p"), (2, 10, 200, "q"),
          (3, 30, 300, "p"), (4, None, 400, "q"), (5, 50, 900, "P"), (6, 60, None, None)]),
    "c": ("id bigint, k bigint, u text", [(1, 10, "m"), (2, 50, "n"), (3, 70, "o"), (4, None, "m")]),
    "d": ("id bigint primary key, name text", [(1, "one"), (2, "two"), (10, "ten"), (50, "fifty")]),
    "empty": ("id bigint, k bigint", []),
    "split": ("id bigint, k bigint, t text", [(1, 10, "n"), (2, 60, "n"), (3, 10, "s"), (4, 80, "s"),
              (5, None, "s")]),
}  # fmt: skip
HOLDERS = {"a": "north", "d": "north", "b": "south", "empty": "south", "c": "west"}


@dataclass(frozen=True)
class Line:
    """Connection strings of a client of the proxy, and of the merged tables."""

    dsn: str
    merged: str
    hub: str
    settings: Settings


def owner_url(server, dsn):
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return (
        f"postgres://{parts['user']}:{parts['password']}@/{parts['dbname']}"
        f"?host={server.host}&port={server.port}"
    )


def fill(connection, tables):
    for name in tables:
        columns, rows = TABLES[name]
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join(["%s"] * (columns.count(",") + 1))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


def fill_sqlite(path, tables):
    connection = sqlite3.connect(path)
    with connection:
        for name, rows in tables.items():
            columns = TABLES[name][0].replace("bigint", "INTEGER").replace("text", "TEXT")
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.close()


class Owners:
    """The three owners with their data, to build proxies with different policies over."""

    ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 1000}\n"

    def __init__(self, server, directory, new_database):
        self.server = server
        self.directory = directory
        made = {name: new_database(name) for name in ("north", "west", "merged")}
        self.merged = made["merged"]
        with psycopg.connect(made["merged"]) as connection:
            fill(connection, TABLES)
        with psycopg.connect(made["north"]) as connection:
            fill(connection, ("a", "d"))
            connection.execute("CREATE TABLE split (id bigint, k bigint, t text)")
            connection.execute("INSERT INTO split VALUES (1, 10, 'n'), (2, 60, 'n')")
            connection.execute("ANALYZE")
        with psycopg.connect(made["west"]) as connection:
            fill(connection, ("c",))
            connection.execute("ANALYZE")
        south = directory / "south.sqlite"
        split = TABLES["split"][1][2:]
        fill_sqlite(south, {"b": TABLES["b"][1], "empty": [], "split": split})
        self.north, self.west = made["north"], made["west"]
        self.urls = {
            "north": owner_url(server, made["north"]),
            "south": f"sqlite:///{south}",
            "west": owner_url(server, made["west"]),
        }

    def settings(self, hub, policies, limits=None):
        owners = {}
        for name, url in self.urls.items():
            policy = None
            if name in policies:
                policy = self.directory / f"{name}-{secrets.token_hex(4)}.yaml"
                policy.write_text(policies[name])
            owners[name] = OwnerSettings(url=url, schema="shop", policy=policy)
        return Settings(
            owners=owners,
            hub=HubSettings(dsn=hub),
            listen=Listen(port=0),
            limits=limits or Limits(),
        )


@pytest.fixture(scope="session")
def owners(hub_server, new_database, tmp_path_factory):
    directory = tmp_path_factory.mktemp("owners")
    return Owners(hub_server, directory, new_database)


@pytest.fixture(scope="session")
def line(owners, new_database, running_proxy):
    """A proxy whose owners allow every key edge."""
    hub = new_database("hub")
    settings = owners.settings(hub, dict.fromkeys(owners.urls, owners.ALLOW))
    with running_proxy(settings) as (refresh, dsn):
        with psycopg.connect(hub, autocommit=True) as connection:
            connection.execute("CREATE TABLE public.hub_table (id int primary key, k bigint)")
            connection.execute("INSERT INTO public.hub_table VALUES (1, 10), (2, 60), (3, 99)")
            connection.execute("GRANT SELECT ON public.hub_table TO oar_client")
            connection.execute(
                "CREATE VIEW public.kept AS SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k)"
            )
            connection.execute("GRANT SELECT ON public.kept TO oar_client")
        refresh()
        with psycopg.connect(owners.merged, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS hub_table (id int primary key, k bigint)"
            )
            connection.execute("INSERT INTO hub_table VALUES (1, 10), (2, 60), (3, 99)")
            connection.execute("CREATE VIEW kept AS SELECT a.id, b.w FROM a JOIN b USING (k)")
        yield Line(dsn, owners.merged, hub, settings)


@pytest.fixture
def client(line):
    with psycopg.connect(line.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def merged(line):
    with psycopg.connect(line.merged, autocommit=True) as connection:
        yield connection


@pytest.fixture
def new_hub(new_database):
    """Make an empty database for a hub and return how to reach it."""
    return lambda: new_database("hub")


@pytest.fixture
def proxy(new_hub, owners, running_proxy):
    """Make a proxy with these policies and connect to it."""
    opened = []

    def open_proxy(policies, limits=None):
        context = running_proxy(owners.settings(new_hub(), policies, limits))
        _, dsn = context.__enter__()
        connection = psycopg.connect(dsn, autocommit=True)
        opened.append((context, connection))
        return connection

    yield open_proxy
    for context, connection in opened:
        connection.close()
        context.__exit__(None, None, None)
