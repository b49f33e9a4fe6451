"""pg8000: all of the protocol in Python."""

from __future__ import annotations

import pg8000.dbapi
import pg8000.native
from common import (
    BIG,
    CITY,
    COUNT,
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

connection = pg8000.dbapi.connect(**SERVER, database=DATABASE)
connection.autocommit = True


def ask(statement, parameters=()):
    cursor = connection.cursor()
    cursor.execute(statement, parameters)
    return cursor.fetchall()


def connect():
    return sorted(
        (name, value)
        for name, value in connection.parameter_statuses.items()
        if name in ("server_version", "client_encoding", "is_superuser")
    )


def introspect():
    statement = (
        "SELECT table_name, column_name, udt_name FROM information_schema.columns"
        " WHERE table_schema IN (%s, %s) ORDER BY table_name, ordinal_position"
    )
    return told(ask(statement, ("shop", "fleet")))


def parameters():
    prepared = pg8000.native.Connection(**SERVER, database=DATABASE)
    numbered = prepared.prepare(JOIN.replace("%s", ":city", 1).replace("%s", ":days"))
    rows = numbered.run(city=CITY, days=DAYS)
    numbered.close()
    prepared.close()
    assert [list(row) for row in ask(JOIN, (CITY, DAYS))] == rows
    return told(rows)


def big():
    return summed(ask(BIG))


def fails(statement):
    try:
        ask(statement)
    except pg8000.dbapi.DatabaseError as error:
        return error.args[0]["C"]
    return "nothing failed"


def errors():
    seen = [fails(FAILS), ask(COUNT)]
    connection.autocommit = False
    seen += [ask(COUNT), fails(FAILS), fails(COUNT)]
    connection.rollback()
    connection.autocommit = True
    return [*seen, ask(COUNT)]


def cancel():
    ((pid,),) = ask("SELECT pg_backend_pid()")

    def other():
        with pg8000.native.Connection(**SERVER, database=DATABASE) as second:
            second.run("SELECT pg_cancel_backend(:pid)", pid=pid)

    thread = later(other)
    seen = fails(SLOW)
    thread.join()
    return [seen, ask(COUNT)]


main(
    connect=connect,
    introspect=introspect,
    parameters=parameters,
    big=big,
    errors=errors,
    cancel=cancel,
)
