"""Two PostgreSQL owners of a big table each, and databases that join them by other means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from oar_bench.addresses import owner_url

Connection = psycopg.Connection[Any]

OWNERS: Final = ("shop", "fleet")

_ORDERS: Final = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, promo text NOT NULL, lot integer NOT NULL, amount integer NOT NULL,
    batch text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN lot < 1000 THEN 'B1000' WHEN lot < 11000 THEN 'B10000'
             WHEN lot < 111000 THEN 'B100000' ELSE 'rest' END
    ) STORED
);
INSERT INTO orders (order_id, promo, lot, amount)
SELECT i,
       CASE WHEN i % ({rows} / 50) = 7 THEN 'P50'
            WHEN i % ({rows} / 150) = 11 THEN 'P150'
            WHEN i % ({rows} / 5550) = 13 THEN 'P5550'
            ELSE 'G' || i % 100 END,
       -- A permutation of 0 … rows - 1: the orders of a batch are spread evenly.
       i * 7919 % {rows},
       i % 1000
FROM generate_series(1, {rows}::bigint) AS i;
CREATE INDEX ON orders (promo);
CREATE INDEX ON orders (lot);
CREATE INDEX ON orders (batch);
-- By default the sample holds one or two of the 50 rows, and a plan that rests on it is luck.
ALTER TABLE orders ALTER COLUMN promo SET STATISTICS 1000;
ANALYZE orders;
"""
_DELIVERIES: Final = """
CREATE TABLE deliveries (
    order_id bigint PRIMARY KEY, city text NOT NULL, delay_days integer NOT NULL
);
INSERT INTO deliveries SELECT i, 'city ' || (i / 7) % 40, i % 17
FROM generate_series({rows} / 10, {rows} + {rows} / 10) AS i;
ANALYZE deliveries;
"""
"""A tenth of the orders has no delivery, so that an outer join has something to extend."""


class Owners:
    """A server with a database for each of the two owners, and others that join them."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def conninfo(self, database: str) -> str:
        """Return how libpq reaches a database of the server."""
        return make_conninfo(self._conninfo, dbname=database)

    def connect(self, database: str) -> Connection:
        """Connect in autocommit. Raises ``psycopg.OperationalError``."""
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def create(self, database: str) -> None:
        """Create a database."""
        with self.connect("postgres") as connection:
            name = sql.Identifier(database)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))

    def url(self, database: str) -> str:
        """Return the owner's URL as the adapter reads it."""
        return owner_url(self.conninfo(database))

    @contextmanager
    def foreign(self, database: str, options: str) -> Iterator[Connection]:
        """Join both owners in a database of its own through postgres_fdw."""
        self.create(database)
        part = conninfo_to_dict(self._conninfo)
        with self.connect(database) as connection:
            connection.execute("CREATE EXTENSION postgres_fdw")
            for owner in OWNERS:
                more = f", {options}" if options else ""
                server = f"host '{part['host']}', port '{part['port']}', dbname '{owner}'{more}"
                login = f"user '{part['user']}', password '{part['password']}'"
                for statement in (
                    f"CREATE SERVER {owner} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({server})",
                    f"CREATE USER MAPPING FOR CURRENT_USER SERVER {owner} OPTIONS ({login})",
                    f"CREATE SCHEMA {owner}",
                    f"IMPORT FOREIGN SCHEMA public FROM SERVER {owner} INTO {owner}",
                ):
                    connection.execute(statement.encode())
            if options:
                connection.execute("ANALYZE shop.orders")
                connection.execute("ANALYZE fleet.deliveries")
            yield connection


@contextmanager
def open_owners(directory: Path, rows: int) -> Iterator[Owners]:
    """Start the server below ``directory`` and fill both owners with ``rows`` rows each."""
    server = EmbeddedServer(HubSettings(data_dir=directory / "owners"))
    try:
        owners = Owners(server.start().conninfo)
        for database, script in zip(OWNERS, (_ORDERS, _DELIVERIES), strict=True):
            owners.create(database)
            with owners.connect(database) as connection:
                connection.execute(script.format(rows=rows).encode())
                # Otherwise a scan now and then meets the vacuum of the rows just written.
                connection.execute("VACUUM ANALYZE")
        yield owners
    finally:
        server.stop()
