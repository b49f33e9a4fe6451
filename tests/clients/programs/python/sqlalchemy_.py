"""SQLAlchemy over the driver that DRIVER names: reflection, and streaming results."""

from __future__ import annotations

import asyncio
import os

import sqlalchemy
from common import BIG, CITY, COUNT, CURSOR, DAYS, FAILS, JOIN, URL, main, summed, told
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

driver = os.environ["DRIVER"]
url = f"postgresql+{driver}://{URL}"
loop = asyncio.new_event_loop()
asynchronous = driver == "asyncpg"
engine = create_async_engine(url) if asynchronous else sqlalchemy.create_engine(url)


def run(work):
    """Do something with a connection, which is a transaction as well."""
    if not asynchronous:
        with engine.connect() as connection:
            return work(connection)

    async def talk():
        async with engine.connect() as connection:
            return await connection.run_sync(work)

    return loop.run_until_complete(talk())


def connect():
    return run(
        lambda connection: [
            connection.dialect.server_version_info,
            connection.default_isolation_level,
        ]
    )


def introspect():
    def look(connection):
        inspector = sqlalchemy.inspect(connection)
        schemas = [name for name in inspector.get_schema_names() if name in ("shop", "fleet")]
        found = []
        for schema in schemas:
            for view in sorted(inspector.get_view_names(schema)):
                columns = inspector.get_columns(view, schema)
                found.append(
                    (schema, view, [(c["name"], str(c["type"]), c["nullable"]) for c in columns])
                )
            metadata = sqlalchemy.MetaData(schema=schema)
            metadata.reflect(connection, views=True)
            found.append(sorted(metadata.tables))
        return found

    return run(look)


def parameters():
    def look(connection):
        return told(connection.execute(text(JOIN), {"city": CITY, "days": DAYS}))

    return run(look)


def cursor():
    options = {"yield_per": 100}
    if asynchronous:

        async def walk():
            async with engine.connect() as connection:
                result = await connection.stream(text(CURSOR), execution_options=options)
                return summed([row async for row in result])

        return loop.run_until_complete(walk())
    return run(
        lambda connection: summed(connection.execute(text(CURSOR), execution_options=options))
    )


def big():
    return run(lambda connection: summed(connection.execute(text(BIG))))


def errors():
    def fails(connection, statement):
        try:
            connection.execute(text(statement))
        except sqlalchemy.exc.DBAPIError as error:
            orig = error.orig
            return next(
                (
                    str(value)
                    for name in ("sqlstate", "pgcode")
                    if (value := getattr(orig, name, None))
                ),
                orig.args[0] if isinstance(orig.args[0], str) else orig.args[0]["C"],
            )
        return "nothing failed"

    def look(connection):
        seen = [fails(connection, FAILS), fails(connection, COUNT)]
        connection.rollback()
        seen.append(connection.execute(text(COUNT)).scalar())
        with connection.begin_nested():
            seen.append(connection.execute(text(COUNT)).scalar())
        nested = connection.begin_nested()
        seen.append(fails(connection, FAILS))
        nested.rollback()
        return [*seen, connection.execute(text(COUNT)).scalar()]

    return run(look)


main(
    connect=connect,
    introspect=introspect,
    parameters=parameters,
    cursor=cursor,
    big=big,
    errors=errors,
)
