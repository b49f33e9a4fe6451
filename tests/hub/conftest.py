"""A small published catalog, and client connections to the hub itself, without a proxy."""

from __future__ import annotations

import asyncio
import secrets

import psycopg
import psycopg.conninfo
import pytest
from oar_adapters.interface import Column, OwnerSchema, Table
from oar_proxy.catalog import build
from oar_proxy.hub.access import admin_pool
from oar_proxy.hub.publication import publish, publishing
from oar_proxy.hub.users import add_user


def make_table(name, *columns, **properties):
    """Columns are ``(name, type)`` or ``(name, type, not_null)``."""
    made = tuple(
        Column(column, type_, column, not_null=bool(rest and rest[0]))
        for column, type_, *rest in columns
    )
    return Table(name, made, name, **properties)


@pytest.fixture(scope="session")
def table():
    return make_table


@pytest.fixture(scope="session")
def catalog():
    """Build a catalog from ``{(owner, schema): [tables]}``."""

    def make(owners):
        return build(
            [(owner, schema, OwnerSchema(tuple(tables))) for (owner, schema), tables in owners]
        )

    return make


@pytest.fixture(scope="module")
def published_now(hub):
    """Publish a catalog, and what hides something of it; returns what became of it."""

    def now(wanted, *hides):
        async def run():
            async with admin_pool(hub, size=1) as pool, publishing(pool) as connection:
                return await publish(connection, wanted, *hides)

        return asyncio.run(run())

    return now


@pytest.fixture(scope="module")
def publish_now(published_now):
    """Publish a catalog, all of it; returns whether it changed anything."""

    def now(wanted):
        published = published_now(wanted)
        assert published.refused == ()
        assert published.catalog == wanted
        return published.changed

    return now


@pytest.fixture
def admin(hub):
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def client_conninfo(hub):
    """How an ordinary client user of this module connects to the hub itself."""
    name, password = f"anna {secrets.token_hex(4)}", "пароль' \\"

    async def make():
        async with await psycopg.AsyncConnection.connect(
            hub.conninfo, autocommit=True
        ) as connection:
            await add_user(connection, name, password)

    asyncio.run(make())
    yield psycopg.conninfo.make_conninfo(hub.conninfo, user=name, password=password)
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        quoted = psycopg.sql.Identifier(name)
        connection.execute(psycopg.sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(quoted))


@pytest.fixture
def client(client_conninfo):
    with psycopg.connect(client_conninfo, autocommit=True) as connection:
        yield connection
