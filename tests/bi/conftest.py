"""A proxy as BI tools find it: owners of two technologies, and all tables in one PostgreSQL.

``sales`` is a PostgreSQL database, ``crm`` an SQLite file; each is a schema of its own name, and so
it is in the merged database, with the same comments; there, as in the hub, the tables are views.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.settings import (
    HubSettings,
    Listen,
    OwnerSettings,
    Settings,
)

ORDERS = """CREATE TABLE {}orders (
  id bigint PRIMARY KEY, customer_id bigint, placed_at timestamp, amount numeric(10,2),
  status text NOT NULL)"""
COMMENTS = {"{1} {0}orders": "Orders of the shop", "COLUMN {0}orders.amount": "In roubles"}
CUSTOMERS = "CREATE TABLE {}customers (id {} PRIMARY KEY, name {}, city {})"
STATUSES = ("new", "paid", "sent")
ORDER_ROWS = [
    (n, n % 7 or None, datetime(2026, 1, 1 + n % 28, n % 24), Decimal(n * 5) / 4, STATUSES[n % 3])
    for n in range(1, 41)
]
CUSTOMER_ROWS = [(n, f"Customer {n}", "Казань" if n % 2 else None) for n in range(1, 9)]
DAY = date(2026, 1, 5)

ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 1000}\n"


@dataclass(frozen=True)
class Shop:
    """How to reach the owners, the merged tables and ``log``, where ``sales`` writes statements."""

    urls: dict[str, str]
    sales: str
    merged: str
    log: Path
    directory: Path

    def settings(self, hub, port=0, policies=None, **more):
        owners = {}
        for name, url in self.urls.items():
            policy = self.directory / f"{name}-{len(list(self.directory.iterdir()))}.yaml"
            policy.write_text((policies or {}).get(name, ALLOW))
            owners[name] = OwnerSettings(url=url, policy=policy)
        return Settings(owners=owners, hub=HubSettings(dsn=hub), listen=Listen(port=port), **more)

    def _statements(self):
        """All that databases with a log of their statements wrote into it so far."""
        mark = secrets.token_hex(8)
        with psycopg.connect(self.sales, autocommit=True) as connection:
            connection.execute(f"SELECT '{mark}'")
        # A process of its own writes the log, in the order in which it is told.
        deadline = time.monotonic() + 30
        lines = []
        while not any(mark in line for line in lines):
            assert time.monotonic() < deadline, "the log is not written"
            lines = [
                line
                for path in sorted(self.log.iterdir())
                for line in path.read_text(errors="replace").splitlines()
            ]
        return lines

    def asked(self):
        """What ``sales`` was asked for so far; its catalog and transactions left out."""
        return [line for line in self._statements() if '"public"."orders"' in line]

    def begun(self):
        """The transactions that were opened so far."""
        return [line for line in self._statements() if "BEGIN" in line]


@pytest.fixture(scope="session")
def shop(hub_server, new_database, tmp_path_factory):
    directory = tmp_path_factory.mktemp("shop")
    sales, merged = new_database("sales"), new_database("merged")
    crm = directory / "crm.sqlite"
    with sqlite3.connect(crm) as connection:
        connection.execute(CUSTOMERS.format("", "INTEGER", "TEXT", "TEXT"))
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", CUSTOMER_ROWS)
    connection.close()
    parts = psycopg.conninfo.conninfo_to_dict(sales)
    with psycopg.connect(merged, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA private")
        connection.execute(CUSTOMERS.format("private.", "bigint", "text", "text"))
        fill(connection, "private.customers", CUSTOMER_ROWS)
        fill_orders(connection, "private.")
        for name in ("sales.orders", "crm.customers"):
            schema, table = name.split(".")
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"COMMENT ON SCHEMA {schema} IS 'tables of {schema}'")
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM private.{table}")
        comment(connection, "sales.", "VIEW")
    with psycopg.connect(sales, autocommit=True) as connection:
        fill_orders(connection, "")
        connection.execute(f"ALTER DATABASE {parts['dbname']} SET log_statement = 'all'")
    return Shop(
        {
            "sales": owner_url(sales),
            "crm": f"sqlite:///{crm}",
        },
        sales,
        merged,
        Path(hub_server.host).parent / "log",
        directory,
    )


def fill_orders(connection, prefix):
    connection.execute(ORDERS.format(prefix))
    fill(connection, f"{prefix}orders", ORDER_ROWS)
    comment(connection, prefix, "TABLE")


def comment(connection, prefix, kind):
    for what, text in COMMENTS.items():
        connection.execute(f"COMMENT ON {what.format(prefix, kind)} IS '{text}'")


def fill(connection, table, rows):
    marks = ", ".join(["%s"] * len(rows[0]))
    connection.cursor().executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    connection.execute(f"ANALYZE {table}")


@pytest.fixture(scope="session")
def tool(shop, new_database, running_proxy):
    """A proxy whose owners allow every key edge: how to connect, and to its hub."""
    hub = new_database("hub")
    with running_proxy(shop.settings(hub)) as (_, dsn):
        yield dsn, hub


@pytest.fixture
def client(tool):
    with psycopg.connect(tool[0], autocommit=True) as connection:
        yield connection


@pytest.fixture
def merged(shop):
    with psycopg.connect(shop.merged, autocommit=True) as connection:
        yield connection
