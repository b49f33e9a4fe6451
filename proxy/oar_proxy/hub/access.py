"""Opening a hub, whichever kind the settings name, and the proxy's own connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import psycopg.conninfo
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from oar_proxy.hub.address import HubAddress, HubError
from oar_proxy.hub.bootstrap import bootstrap, create_database
from oar_proxy.hub.reaching import encryption, require_encryption
from oar_proxy.hub.server import embedded_hub, running_hub
from oar_proxy.settings import HubSettings

AdminPool = AsyncConnectionPool[AsyncConnection[TupleRow]]
"""Connections of the proxy's own role, in autocommit mode."""

_CONNECT_SECONDS = 10


@asynccontextmanager
async def open_hub(settings: HubSettings) -> AsyncIterator[HubAddress]:
    """Start or reach the hub and set it up; an embedded one stops at the end of the block.

    Raises :class:`HubError`.
    """
    if settings.dsn is not None:
        yield await _reach(settings, settings.dsn.get_secret_value())
        return
    async with embedded_hub(settings) as address:
        await _set_up(address)
        yield address


@asynccontextmanager
async def join_hub(settings: HubSettings) -> AsyncIterator[HubAddress]:
    """Reach the hub of a proxy that runs, else open it: for commands beside ``oar serve``.

    Raises :class:`HubError`.
    """
    running = running_hub(settings) if settings.dsn is None else None
    if running is not None:
        yield running
        return
    async with open_hub(settings) as address:
        yield address


@asynccontextmanager
async def admin_pool(address: HubAddress, *, size: int = 4) -> AsyncIterator[AdminPool]:
    """Keep up to ``size`` connections of the proxy's own role, closed at the end of the block."""
    pool: AdminPool = AsyncConnectionPool(
        address.session,
        kwargs={"autocommit": True, "application_name": "oar"},
        min_size=1,
        max_size=size,
        check=ended,
        open=False,
        name="oar",
    )
    async with pool:
        yield pool


async def ended(connection: AsyncConnection[Any]) -> None:
    """Raise ``psycopg.OperationalError`` where the hub has ended a connection.

    A pool's check before it gives one away, without a round trip. The hub's last words are read
    first, and then that nothing follows.
    """
    for _ in range(2):
        connection.pgconn.consume_input()


async def _reach(settings: HubSettings, dsn: str) -> HubAddress:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    database = str(parts.get("dbname") or settings.database)
    conninfo = psycopg.conninfo.make_conninfo(dsn, dbname=database)
    address = await _set_up(HubAddress("", 0, database, conninfo))
    if address.encryption is not None:
        await require_encryption(address)
    return address


async def _set_up(address: HubAddress) -> HubAddress:
    """Bootstrap the hub; return its address with what it was reached at."""
    try:
        async with await _connect_creating(address) as connection:
            await bootstrap(connection, embedded=address.embedded)
            info = connection.info
            return replace(
                address,
                # Where a host's address is given besides, its name is only for the certificate.
                host=info.hostaddr if "hostaddr" in info.get_parameters() else info.host,
                port=info.port,
                encryption=encryption(connection),
            )
    except psycopg.Error as error:
        raise HubError(f"the hub could not be set up: {_first_line(error)}") from error


async def _connect_creating(address: HubAddress) -> AsyncConnection[TupleRow]:
    try:
        return await _connect(address.session)
    except psycopg.OperationalError:
        # Why it failed is known as text only, in the server's language: look for the database.
        if not await _create_missing(address):
            raise
    return await _connect(address.session)


async def _create_missing(address: HubAddress) -> bool:
    maintenance = psycopg.conninfo.make_conninfo(address.conninfo, dbname="postgres")
    try:
        connection = await _connect(maintenance)
    except psycopg.OperationalError:
        return False
    async with connection:
        cursor = await connection.execute(
            "SELECT FROM pg_database WHERE datname = %s", (address.database,)
        )
        if await cursor.fetchone() is not None:
            return False
        await create_database(connection, address.database, embedded=address.embedded)
    return True


async def _connect(conninfo: str) -> AsyncConnection[TupleRow]:
    return await AsyncConnection.connect(
        conninfo,
        autocommit=True,
        connect_timeout=_CONNECT_SECONDS,
        client_encoding="utf8",  # else a SQL_ASCII database answers with bytes
        application_name="oar",
    )


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).partition("\n")[0]
