"""psycopg2: the simple protocol, and cursors by SQL."""

from __future__ import annotations

import psycopg2
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

connection = psycopg2.connect(**SERVER, dbname=DATABASE)


def ask(statement, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()


def connect():
    return [connection.server_version, connection.encoding, connection.get_transaction_status()]


def introspect():
    statement = (
        "SELECT c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid WHERE a.attnum > 0"
        " AND c.relnamespace IN ('shop'::regnamespace, 'fleet'::regnamespace) ORDER BY c.relname, attnum"
    )
    return told(ask(statement))


def parameters():
    return told(ask(JOIN, (CITY, DAYS)))


def cursor():
    with connection, connection.cursor("few") as named:
        named.itersize = 100
        named.execute(CURSOR)
        return summed(named)


def big():
    return summed(ask(BIG))


def fails(statement):
    try:
        ask(statement)
    except psycopg2.Error as error:
        return error.pgcode
    return "nothing failed"


def errors():
    connection.rollback()
    connection.autocommit = True
    seen = [fails(FAILS), ask(COUNT)]
    connection.autocommit = False
    seen += [ask(COUNT), fails(FAILS), fails(COUNT)]
    connection.rollback()
    return [*seen, ask(COUNT)]


def cancel():
    connection.rollback()
    thread = later(connection.cancel)
    seen = fails(SLOW)
    thread.join()
    connection.rollback()
    return [seen, ask(COUNT)]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
