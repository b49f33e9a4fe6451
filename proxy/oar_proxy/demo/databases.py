"""The owners' databases of the demo: two in PostgreSQL, two in SQLite, made once and kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from oar_proxy.demo.orders import Marketplace
from oar_proxy.hub.address import HubAddress

READER: Final = "oar_reader"
READER_PASSWORD: Final = "demo"  # noqa: S105 - the demo's server listens on a private socket only

_DELIVERIES: Final = (
    "CREATE TABLE deliveries (order_id bigint PRIMARY KEY, pvz_city text NOT NULL,"
    " courier text NOT NULL, delay_days bigint NOT NULL, delivered_on date NOT NULL,"
    " distance_km double precision NOT NULL, customer_phone text NOT NULL)"
)
_DELIVERY_COMMENTS: Final = {
    "": "Доставки заказов в пункты выдачи. Deliveries of orders to pick-up points",
    "order_id": "Номер заказа. Order number",
    "pvz_city": "Город пункта выдачи. City of the pick-up point",
    "courier": "Служба доставки. Courier company",
    "delay_days": "Опоздание в днях, 0 если вовремя. Delay in days, 0 when on time",
    "delivered_on": "Дата вручения. Date of delivery",
    "distance_km": "Расстояние от склада, км. Distance from the warehouse in km",
    "customer_phone": "Телефон покупателя. Phone number of the customer",
}
# The same columns in both technologies: what SQLite's INTEGER, TEXT, REAL and DATE publish as.
_RETURNS_POSTGRES: Final = (
    "CREATE TABLE returns (order_id bigint PRIMARY KEY, reason text NOT NULL,"
    " refund double precision NOT NULL, returned_on date NOT NULL)"
)
_RETURN_COMMENTS: Final = {
    "": "Возвраты. Returned orders",
    "order_id": "Номер заказа. Order number",
    "reason": "Причина возврата. Reason of the return",
    "refund": "Возвращённая сумма, руб. Amount refunded in roubles",
    "returned_on": "Дата возврата. Date of the return",
}
_RETURNS_SQLITE: Final = (
    "CREATE TABLE returns (order_id INTEGER PRIMARY KEY, reason TEXT NOT NULL,"
    " refund REAL NOT NULL, returned_on DATE NOT NULL)"
)
_PROMOS: Final = (
    "CREATE TABLE promos (order_id INTEGER PRIMARY KEY, promo_code TEXT NOT NULL,"
    " discount_percent INTEGER NOT NULL)",
    "CREATE INDEX promos_code ON promos (promo_code)",
)


class _PostgresTable(NamedTuple):
    database: str
    table: str
    create: str
    comments: dict[str, str]
    rows: Iterable[Sequence[Any]]


def build_sqlite(directory: Path, rows: Marketplace) -> None:
    """Write ``marketing.db`` and ``returns_west.db``. Blocks."""
    _write_sqlite(directory / "marketing.db", _PROMOS, "promos", rows.promos)
    _write_sqlite(
        directory / "returns_west.db",
        (_RETURNS_SQLITE,),
        "returns",
        [(*row[:3], row.returned_on.isoformat()) for row in rows.returns_west],
    )


def build_postgres(server: HubAddress, rows: Marketplace) -> None:
    """Make the databases ``logistics`` and ``returns_east`` and the role that reads them. Blocks.

    What an interrupted attempt left behind is dropped first.
    """
    deliveries = (
        (*delivery, f"+7 9{delivery.order_id * 7919 % 10**9:09d}") for delivery in rows.deliveries
    )
    tables = (
        _PostgresTable("logistics", "deliveries", _DELIVERIES, _DELIVERY_COMMENTS, deliveries),
        _PostgresTable(
            "returns_east", "returns", _RETURNS_POSTGRES, _RETURN_COMMENTS, rows.returns_east
        ),
    )
    with _connect(server, "postgres", autocommit=True) as connection:
        for table in tables:
            name = sql.Identifier(table.database)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(name))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(READER)))
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(READER), sql.Literal(READER_PASSWORD)
            )
        )
    for table in tables:
        with _connect(server, table.database) as connection:
            _fill_postgres(connection, table)


def _connect(
    server: HubAddress, database: str, *, autocommit: bool = False
) -> psycopg.Connection[Any]:
    return psycopg.connect(server.conninfo, dbname=database, autocommit=autocommit)


def _fill_postgres(connection: psycopg.Connection[Any], table: _PostgresTable) -> None:
    name = sql.Identifier(table.table)
    with connection.cursor() as cursor:
        cursor.execute(table.create.encode())
        with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(name)) as copy:
            for row in table.rows:
                copy.write_row(row)
        for column, comment in table.comments.items():
            target = (
                sql.SQL("COLUMN {}.{}").format(name, sql.Identifier(column))
                if column
                else sql.SQL("TABLE {}").format(name)
            )
            cursor.execute(sql.SQL("COMMENT ON {} IS {}").format(target, sql.Literal(comment)))
        cursor.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(name, sql.Identifier(READER)))
        cursor.execute(sql.SQL("ANALYZE {}").format(name))


def _write_sqlite(
    path: Path, create: Sequence[str], table: str, rows: Sequence[Sequence[Any]]
) -> None:
    # Written beside and renamed, so that an interrupted build is never taken for a database.
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    marks = ", ".join("?" * len(rows[0]))
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for statement in create:
            connection.execute(statement)
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.execute("ANALYZE")
        connection.commit()
    unfinished.rename(path)
