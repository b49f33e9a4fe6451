"""The conformance suite, against an SQLite file in WAL mode."""

from __future__ import annotations

import sqlite3
import threading
from decimal import Decimal

import pytest
from oar_adapters.interface import Scan
from oar_adapters.testing.conformance import AdapterConformance
from oar_adapters.testing.samples import TABLES

TYPES = {
    "integer": "INTEGER",
    "float": "REAL",
    "text": "VARCHAR(40)",
    "numeric": "DECIMAL(14, 2)",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "DATETIME",
    "bytes": "BLOB",
}


def stored(value):
    """Store a value as an application written for SQLite would."""
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return value.isoformat(sep=" ") if hasattr(value, "hour") else value.isoformat()


class SqliteOwner:
    unreachable_url = "sqlite:////nosuch/directory/owner.sqlite"

    def __init__(self, path):
        self.path = path
        self.url = f"sqlite:///{path}"
        self.options = {"pool_size": "3"}
        self._execute("PRAGMA journal_mode = WAL")
        for table in TABLES:
            self._create(table)
        self._execute(
            "CREATE VIEW slow AS WITH RECURSIVE n(i) AS"
            " (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000000000) SELECT max(i) AS i FROM n"
        )

    def _create(self, table):
        columns = table.declarations(TYPES)
        self._execute(f'CREATE TABLE "{table.name}" ({columns})')
        marks = ", ".join("?" * len(table.columns))
        with sqlite3.connect(self.path) as connection:
            connection.executemany(
                f'INSERT INTO "{table.name}" VALUES ({marks})',
                [tuple(map(stored, row)) for row in table.rows],
            )
        connection.close()
        self._execute(
            f'CREATE INDEX "i_{table.name}" ON "{table.name}" ("{table.columns[1].name}")'
        )

    def _execute(self, text, *parameters):
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(text, parameters).fetchall()
        finally:
            connection.close()

    def insert(self, table, row):
        marks = ", ".join("?" * len(row))
        self._execute(f'INSERT INTO "{table}" VALUES ({marks})', *map(stored, row))

    def rows(self, table):
        return self._execute(f'SELECT count(*) FROM "{table}"')[0][0]

    def slow_query(self, published):
        table = next(table for table in published.tables if table.name == "slow")
        return Scan(table, table.columns)

    def running(self):
        """SQLite runs in our threads: one that is not waiting for work is running a query."""
        return sum(
            thread.name.startswith("oar-sqlite") and _is_busy(thread)
            for thread in threading.enumerate()
        )

    def break_value(self, table, column, key):
        self._execute(f'UPDATE "{table}" SET "{column}" = \'not a number\' WHERE id = ?', key)

    def drop_column(self, table, column):
        self._execute(f'DROP INDEX "i_{table}"')
        self._execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def _is_busy(thread):
    import sys

    frame = sys._current_frames().get(thread.ident)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return "locked" in names


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    return SqliteOwner(tmp_path_factory.mktemp("owner") / "owner.sqlite")


class TestSqlite(AdapterConformance):
    cannot = frozenset(
        {
            "first rows",
            "float by",
            "float count",
            "numeric sum",
            "timestamp count",
            "timestamp max",
            "timestamp min",
        }
    )
