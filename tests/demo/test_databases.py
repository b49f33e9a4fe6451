from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.demo import databases, orders


@pytest.fixture(scope="module")
def rows():
    return orders.make(500)


def test_sqlite_holds_the_rows(tmp_path, rows):
    databases.build_sqlite(tmp_path, rows)
    with closing(sqlite3.connect(tmp_path / "marketing.db")) as connection:
        assert connection.execute("SELECT * FROM promos ORDER BY order_id").fetchall() == list(
            rows.promos
        )
    with closing(sqlite3.connect(tmp_path / "returns_west.db")) as connection:
        assert connection.execute("SELECT * FROM returns ORDER BY order_id").fetchall() == [
            (r.order_id, r.reason, r.refund, r.returned_on.isoformat()) for r in rows.returns_west
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marketing.db", "returns_west.db"]


def test_postgres_holds_the_rows_and_its_reader_only_reads(hub_server, rows):
    databases.build_postgres(hub_server, rows)
    databases.build_postgres(hub_server, rows)  # what an interrupted attempt left is replaced

    def reader(database: str) -> psycopg.Connection:
        return psycopg.connect(
            psycopg.conninfo.make_conninfo(
                hub_server.conninfo,
                dbname=database,
                user=databases.READER,
                password=databases.READER_PASSWORD,
            )
        )

    try:
        with reader("logistics") as connection:
            columns = "order_id, pvz_city, courier, delay_days, delivered_on, distance_km"
            cursor = connection.execute(f"SELECT {columns} FROM deliveries ORDER BY order_id")
            assert cursor.fetchall() == list(rows.deliveries)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("DELETE FROM deliveries")
        with reader("returns_east") as connection:
            cursor = connection.execute("SELECT * FROM returns ORDER BY order_id")
            assert cursor.fetchall() == list(rows.returns_east)
            cursor = connection.execute(
                "SELECT col_description('returns'::regclass, 3), reltuples FROM pg_class"
                " WHERE oid = 'returns'::regclass"
            )
            comment, estimate = cursor.fetchone()
            assert comment.startswith("Возвращённая сумма, руб.")
            assert estimate == len(rows.returns_east)
    finally:
        with psycopg.connect(hub_server.conninfo, autocommit=True) as admin:
            admin.execute("DROP DATABASE logistics")
            admin.execute("DROP DATABASE returns_east")
            admin.execute(f"DROP ROLE {databases.READER}")
