"""postgres_fdw of another database: REPEATABLE READ, cursors, and what IMPORT FOREIGN SCHEMA finds."""

from __future__ import annotations

import os

import psycopg
from common import (  # fmt: skip
    BIG,
    CITY,
    COUNT,
    CURSOR,
    DATABASE,
    DAYS,
    FAILS,
    JOIN,
    SERVER,
    SLOW,
    later,
    main,
    summed,
    told,
)

with psycopg.connect(os.environ["ADMIN"], autocommit=True) as admin:
    name = f"foreign_{SERVER['port']}"
    admin.execute(f"DROP DATABASE IF EXISTS {name}")
    admin.execute(f"CREATE DATABASE {name}")
connection = psycopg.connect(os.environ["ADMIN"], dbname=name, autocommit=True)
options = (
    f"host '{SERVER['host']}', port '{SERVER['port']}', dbname '{DATABASE}', fetch_size '1000'"
)
login = f"user '{SERVER['user']}', password '{SERVER['password']}'"
connection.execute("CREATE EXTENSION postgres_fdw")
connection.execute(f"CREATE SERVER oar FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({options})")
connection.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER oar OPTIONS ({login})")
for schema in ("shop", "fleet"):
    connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"IMPORT FOREIGN SCHEMA {schema} FROM SERVER oar INTO {schema}")


def connect():
    return connection.execute(
        "SELECT server_name, valid FROM postgres_fdw_get_connections()"
    ).fetchall()


def introspect():
    return told(
        connection.execute(
            "SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " JOIN pg_foreign_table ON ftrelid = attrelid WHERE attnum > 0 ORDER BY 1, attnum"
        )
    )


def parameters():
    return told(connection.execute(JOIN, (CITY, DAYS)))


def cursor():
    with connection.transaction(), connection.cursor(name="few") as named:
        named.itersize = 100
        return summed(named.execute(CURSOR))


def big():
    return summed(connection.execute(BIG))


def fails(statement):
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return "nothing failed"


def errors():
    seen = [fails(FAILS), connection.execute(COUNT).fetchone()]
    connection.execute("BEGIN")
    seen += [connection.execute(COUNT).fetchone(), fails(FAILS), fails(COUNT)]
    connection.execute("ROLLBACK")
    return [*seen, connection.execute(COUNT).fetchone()]


def cancel():
    thread = later(connection.cancel_safe)
    seen = fails(SLOW)
    thread.join()
    return [seen, connection.execute(COUNT).fetchone()]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
