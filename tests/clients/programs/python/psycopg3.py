"""psycopg 3, with libpq."""

from __future__ import annotations

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

connection = psycopg.connect(**SERVER, dbname=DATABASE, autocommit=True)


def connect():
    info = connection.info
    status = [
        info.parameter_status(name) for name in ("server_version", "client_encoding", "TimeZone")
    ]
    return f"{status} {info.transaction_status.name}"


def introspect():
    statement = (
        "SELECT table_schema, table_name, column_name, data_type, is_nullable, numeric_scale"
        " FROM information_schema.columns WHERE table_schema IN ('shop', 'fleet')"
        " ORDER BY 1, 2, ordinal_position"
    )
    return told(connection.execute(statement))


def parameters():
    rows = connection.execute(JOIN, (CITY, DAYS)).fetchall()
    binary = connection.cursor(binary=True).execute(JOIN, (CITY, DAYS)).fetchall()
    assert rows == binary
    with connection.pipeline():
        cursors = [connection.execute(JOIN, (CITY, days)) for days in (DAYS, DAYS + 1)]
    assert cursors[0].fetchall() == rows
    return told(rows)


def cursor():
    with connection.transaction(), connection.cursor(name="few") as named:
        named.itersize = 100
        named.execute(CURSOR)
        return summed(named)


def big():
    with connection.cursor().copy(f"COPY ({BIG}) TO STDOUT") as copy:
        copied = sum(1 for _ in copy.rows())
    return f"{copied}, {summed(connection.execute(BIG))}, {summed(connection.cursor().stream(BIG))}"


def fails(statement):
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return "nothing failed"


def errors():
    seen = [fails(FAILS), connection.execute(COUNT).fetchone()[0]]
    connection.execute("BEGIN")
    seen.append(connection.execute(COUNT).fetchone()[0])
    connection.execute("SAVEPOINT one")
    seen += [fails(FAILS), fails(COUNT), connection.info.transaction_status.name]
    connection.execute("ROLLBACK TO one")
    seen.append(connection.execute(COUNT).fetchone()[0])
    seen += [fails(FAILS), fails("SELECT 1")]
    connection.execute("ROLLBACK")
    return [*seen, connection.execute(COUNT).fetchone()[0]]


def cancel():
    thread = later(connection.cancel_safe)
    seen = fails(SLOW)
    thread.join()
    return [seen, connection.execute(COUNT).fetchone()[0]]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
