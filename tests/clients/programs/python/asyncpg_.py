"""asyncpg: its own implementation, Parse, Describe and Flush, everything binary."""

from __future__ import annotations

import asyncio

import asyncpg
from common import (
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
    main,
    summed,
    told,
)

loop = asyncio.new_event_loop()
connection = loop.run_until_complete(asyncpg.connect(**SERVER, database=DATABASE))
run = loop.run_until_complete


def connect():
    return [connection.get_server_version(), connection.get_settings().client_encoding]


def introspect():
    statement = (
        "SELECT n.nspname, c.relname, a.attname, a.atttypid::regtype FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE n.nspname = ANY($1) AND attnum > 0 ORDER BY 1, 2, attnum"
    )
    described = run(connection.prepare(BIG)).get_attributes()
    columns = [(column.name, column.type.name) for column in described]
    return f"{told(run(connection.fetch(statement, ['shop', 'fleet'])))} {columns}"


def parameters():
    prepared = run(connection.prepare(JOIN))
    rows = run(prepared.fetch(CITY, DAYS))
    assert run(connection.fetch(JOIN, CITY, DAYS)) == rows
    return f"{told(rows)} {[parameter.name for parameter in prepared.get_parameters()]}"


async def walk():
    async with connection.transaction():
        rows = [row async for row in connection.cursor(CURSOR, prefetch=100)]
        few = await connection.cursor(CURSOR)
        return summed(rows), len(await few.fetch(10)), len(await few.fetch(100))


def cursor():
    return run(walk())


def big():
    copied = []

    async def take(data):
        copied.append(data)

    run(connection.copy_from_query(BIG, output=take))
    return summed(run(connection.fetch(BIG))), b"".join(copied).count(b"\n")


def fails(statement, **options):
    try:
        run(connection.fetch(statement, **options))
    except asyncpg.PostgresError as error:
        return error.sqlstate
    except TimeoutError:
        return "timeout"
    return "nothing failed"


def errors():
    seen = [fails(FAILS), run(connection.fetchval(COUNT))]
    transaction = connection.transaction()
    run(transaction.start())
    seen += [
        run(connection.fetchval(COUNT)),
        fails(FAILS),
        fails(COUNT),
        connection.is_in_transaction(),
    ]
    run(transaction.rollback())
    run(connection.reset())
    return [*seen, run(connection.fetchval(COUNT))]


def cancel():
    return [fails(SLOW, timeout=1.5), run(connection.fetchval(COUNT))]


main(connect=connect, introspect=introspect, parameters=parameters, cursor=cursor, big=big,
     errors=errors, cancel=cancel)  # fmt: skip
