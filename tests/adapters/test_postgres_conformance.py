"""The conformance suite, against a PostgreSQL of its own."""

from __future__ import annotations

import socket

import psycopg
import pytest
from oar_adapters.interface import Output, Statement
from oar_adapters.testing.conformance import AdapterConformance
from oar_adapters.testing.samples import TABLES

TYPES = {
    "integer": "bigint",
    "float": "double precision",
    "text": "text",
    "numeric": "numeric(14,2)",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "bytes": "bytea",
}


class PostgresOwner:
    unreachable_url = "postgresql://nobody:secret@127.0.0.1:1/nowhere"

    def __init__(self, conninfo, url):
        self.connection = psycopg.connect(conninfo, autocommit=True)
        self.url = url
        self.options = {"pool_size": "3"}
        for table in TABLES:
            self._create(table)

    def _create(self, table):
        columns = table.declarations(TYPES)
        self.connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
        with self.connection.cursor().copy(f'COPY "{table.name}" FROM STDIN') as copy:
            for row in table.rows:
                copy.write_row(row)
        self.connection.execute(f'CREATE INDEX ON "{table.name}" ("{table.columns[1].name}")')
        self.connection.execute(f'ANALYZE "{table.name}"')

    def insert(self, table, row):
        marks = ", ".join(["%s"] * len(row))
        self.connection.execute(f'INSERT INTO "{table}" VALUES ({marks})', row)

    def rows(self, table):
        return self.connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]

    def slow_query(self, published):
        return Statement("SELECT pg_sleep(60)::text", (), (Output("c", "text"),))

    def running(self):
        return self.connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oar'"
            " AND datname = current_database() AND state = 'active'"
        ).fetchone()[0]

    def drop_column(self, table, column):
        self.connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def docker_answers():
    """Whether an engine listens where testcontainers looks for one by default."""
    with socket.socket(socket.AF_UNIX) as engine:
        return engine.connect_ex("/var/run/docker.sock") == 0


WHERE = ["postgres_owner", "icu_owner", *(["container_owner"] if docker_answers() else [])]


def test_an_owner_in_a_container_is_tested_where_docker_answers():
    if not docker_answers():
        pytest.skip("no Docker engine answers here: the suite runs without its container")
    assert "container_owner" in WHERE


@pytest.fixture(scope="module", params=WHERE)
def owner(request):
    owner = PostgresOwner(*request.getfixturevalue(request.param))
    yield owner
    owner.connection.close()


class TestPostgres(AdapterConformance):
    cannot = frozenset({"wrong values"})
