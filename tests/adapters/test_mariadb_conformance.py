"""The conformance suite, against a MariaDB server of its own."""

from __future__ import annotations

import pytest
from oar_adapters.interface import Scan
from oar_adapters.testing.conformance import AdapterConformance
from oar_adapters.testing.samples import TABLES

TYPES = {
    "integer": "bigint",
    "float": "double",
    "text": "varchar(40)",
    "numeric": "decimal(14,2)",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "datetime(6)",
    "bytes": "varbinary(40)",
}


class MariadbOwner:
    unreachable_url = "mariadb://nobody:secret@127.0.0.1:1/nowhere"

    def __init__(self, server, collation):
        self.server = server
        self.options = {"pool_size": "3", "tinyint1": "boolean"}
        self.database, self.url = server.new_database(
            "sample", options=f"CHARACTER SET utf8mb4 COLLATE {collation}"
        )
        for table in TABLES:
            self._create(table)
        self._run("CREATE VIEW slow AS SELECT sum(a.k * b.k) AS i FROM numbers a JOIN numbers b")

    def _create(self, table):
        columns = table.declarations(TYPES)
        second = table.columns[1].name
        self._run(f"CREATE TABLE {table.name} ({columns}, INDEX ({second}))")
        marks = ", ".join(["%s"] * len(table.columns))
        self._run(f"INSERT INTO {table.name} VALUES ({marks})", rows=table.rows)
        self._run(f"ANALYZE TABLE {table.name}")

    def _run(self, *statements, rows=None):
        return self.server.run(*statements, database=self.database, rows=rows)

    def insert(self, table, row):
        marks = ", ".join(["%s"] * len(row))
        self._run(f"INSERT INTO {table} VALUES ({marks})", rows=[row])

    def rows(self, table):
        return self._run(f"SELECT count(*) FROM {table}")[0][0]

    def slow_query(self, published):
        table = next(table for table in published.tables if table.name == "slow")
        return Scan(table, table.columns)

    def running(self):
        return self._run(
            "SELECT count(*) FROM information_schema.processlist"
            f" WHERE user = '{self.database}' AND command = 'Query'"
        )[0][0]

    def drop_column(self, table, column):
        self._run(f"ALTER TABLE {table} DROP COLUMN {column}")


@pytest.fixture(scope="module", params=["utf8mb4_unicode_ci", "utf8mb4_nopad_bin"])
def owner(request, mariadb_server):
    return MariadbOwner(mariadb_server, request.param)


class TestMariadb(AdapterConformance):
    cannot = frozenset(
        {
            "first rows",
            "interleaving",
            "statement count",
            "statement groups",
            "statement left join",
            "statement rows",
            "wrong values",
            "boolean count",
            "bytes count",
            "date count",
            "date max",
            "date min",
            "float by",
            "float count",
            "text count",
            "text max",
            "text min",
            "timestamp count",
            "timestamp max",
            "timestamp min",
        }
    )
