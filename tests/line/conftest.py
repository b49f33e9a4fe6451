"""A whole proxy over real owners, and one PostgreSQL database that holds all their tables.

Owners: ``north`` and ``west`` are PostgreSQL databases, ``south`` is an SQLite file. Table ``a`` is
north's, ``b`` south's, ``c`` west's; the rows of ``split`` are north's and south's. ``d`` lies beside
``a`` at north. Data hold NULLs, duplicates, unmatched keys on both sides, case twins, an empty table.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url
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


def insertion(name, columns, mark="%s"):
    return f"INSERT INTO {name} VALUES ({', '.join([mark] * (columns.count(',') + 1))})"


def fill(dsn, tables):
    """Make tables, by name (columns, rows), and have them analysed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            connection.cursor().executemany(insertion(name, columns), rows)
        connection.execute("ANALYZE")


def fill_sqlite(path, tables, text="TEXT"):
    connection = sqlite3.connect(path)
    with connection:
        for name, (columns, rows) in tables.items():
            declared = columns.replace("bigint", "INTEGER").replace("text", text)
            connection.execute(f"CREATE TABLE {name} ({declared})")
            connection.executemany(insertion(name, columns, "?"), rows)
    connection.close()


def fill_mariadb(server, tables):
    database, url = server.new_database("south")
    for name, (columns, rows) in tables.items():
        server.run(f"CREATE TABLE {name} ({columns})", database=database)
        server.run(insertion(name, columns), database=database, rows=rows)
    return url


class Owners:
    """The three owners with their data, to build proxies with different policies over."""

    ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 1000}\n"

    def __init__(self, directory, new_database):
        self.directory = directory
        made = {name: new_database(name) for name in ("north", "west", "merged")}
        self.merged = made["merged"]
        south = directory / "south.sqlite"
        columns, rows = TABLES["split"]
        held = {
            owner: {name: TABLES[name] for name, holder in HOLDERS.items() if holder == owner}
            for owner in ("north", "south", "west")
        }
        fill(made["merged"], TABLES)
        fill(made["north"], held["north"] | {"split": (columns, rows[:2])})
        fill(made["west"], held["west"])
        fill_sqlite(south, held["south"] | {"split": (columns, rows[2:])})
        self.north, self.west = made["north"], made["west"]
        self.urls = {
            "north": owner_url(made["north"]),
            "south": f"sqlite:///{south}",
            "west": owner_url(made["west"]),
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
def owners(new_database, tmp_path_factory):
    directory = tmp_path_factory.mktemp("owners")
    return Owners(directory, new_database)


@pytest.fixture(scope="session")
def two_owners(new_database, running_proxy, tmp_path_factory):
    """Make proxies by policy over a PostgreSQL owner and another one, and their merged tables."""

    @contextmanager
    def open_owners(request, kind, tables, text="TEXT"):
        """``tables`` of ``north``, and of ``south``, which is of that kind."""
        north, merged = new_database("north"), new_database("merged")
        fill(north, tables["north"])
        fill(merged, tables["north"] | tables["south"])
        directory = tmp_path_factory.mktemp("places")
        if kind == "postgres":
            south = new_database("south")
            fill(south, tables["south"])
            south_url = owner_url(south)
        elif kind == "sqlite":
            fill_sqlite(directory / "south.sqlite", tables["south"], text)
            south_url = f"sqlite:///{directory}/south.sqlite"
        else:
            south_url = fill_mariadb(request.getfixturevalue("mariadb_server"), tables["south"])
        urls = {"north": owner_url(north), "south": south_url}
        opened = {}

        def client(**policies):
            key = tuple(sorted(policies.items()))
            if key not in opened:
                owners = {}
                for name, url in urls.items():
                    policy = directory / f"{name}-{len(opened)}.yaml"
                    policy.write_text(policies.get(name, Owners.ALLOW))
                    owners[name] = OwnerSettings(url=url, schema="shop", policy=policy)
                hub = HubSettings(dsn=new_database("hub"))
                settings = Settings(owners=owners, hub=hub, listen=Listen(port=0))
                _, dsn = stack.enter_context(running_proxy(settings))
                connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
                connection.execute("SET search_path = shop")
                opened[key] = connection
            connection = opened[key]
            connection.execute("RESET oar.reduction; RESET oar.max_keys")
            return connection

        with ExitStack() as stack, psycopg.connect(merged, autocommit=True) as connection:
            yield client, connection

    return open_owners


@pytest.fixture(scope="session")
def steps():
    """Run a statement, and say what its steps did."""

    def explained(connection, statement):
        (document,) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()
        return document[0]["Plan"]["Steps"]

    return explained


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
