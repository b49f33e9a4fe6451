"""postgres_fdw of another database: REPEATABLE READ, cursors, and what IMPORT FOREIGN SCHEMA finds."""

from __future__ import annotations

import os

import psycopg
from common import DATABASE, SERVER, told
from psycopg.conninfo import make_conninfo
from psycopg3 import Psycopg


def connected():
    """Make a database whose tables are the server's, and connect to it."""
    estimate = os.environ["ESTIMATE"]
    name = f"foreign_{SERVER['port']}_{estimate}"
    with psycopg.connect(os.environ["ADMIN"], autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")
        admin.execute(f"CREATE DATABASE {name}")
    here = make_conninfo(os.environ["ADMIN"], dbname=name)
    connection = psycopg.connect(here, autocommit=True)
    server = f"host '{SERVER['host']}', port '{SERVER['port']}', dbname '{DATABASE}'"
    login = f"user '{SERVER['user']}', password '{SERVER['password']}'"
    connection.execute(
        "CREATE EXTENSION postgres_fdw;"
        "CREATE SERVER oar FOREIGN DATA WRAPPER postgres_fdw"
        f" OPTIONS ({server}, fetch_size '1000', use_remote_estimate '{estimate}');"
        f"CREATE USER MAPPING FOR CURRENT_USER SERVER oar OPTIONS ({login})"
    )
    for schema in ("shop", "fleet"):
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"IMPORT FOREIGN SCHEMA {schema} FROM SERVER oar INTO {schema}")
    return connection, here


class Foreign(Psycopg):
    def __init__(self, connection, here):
        super().__init__(connection)
        self.executes = (here,)

    def connect(self):
        return self.ask("SELECT server_name, valid FROM postgres_fdw_get_connections()")

    def introspect(self):
        statement = (
            "SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " JOIN pg_foreign_table ON ftrelid = attrelid WHERE attnum > 0 ORDER BY 1, attnum"
        )
        return told(self.ask(statement))


Foreign(*connected()).run()
