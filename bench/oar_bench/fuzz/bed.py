"""Owners, proxy and reference for batches of worlds.

An embedded PostgreSQL holds the hub's database, a database for each PostgreSQL owner and the
reference's, in which every world is a schema with all its tables merged. Owners whose text collates
otherwise are on servers of their own, where those are installed. Databases are kept from batch to
batch; the application is started anew for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
from oar_proxy import matching
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.server import embedded_hub
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from oar_bench.fuzz.owners import (
    CI,
    Database,
    MariadbDatabases,
    Pool,
    PostgresDatabases,
    SqliteFiles,
)
from oar_bench.fuzz.reductions import Permits
from oar_bench.fuzz.servers import Servers, open_servers
from oar_bench.fuzz.world import KINDS, Row, Table, World, create, insert
from oar_bench.fuzz.writing import CREATE_WRITTEN, WRITTEN
from oar_bench.harness import ALLOW_ALL, USER, Served, run_proxy

SHRINK_USERS: Final = tuple(f"bench_shrink_{number}" for number in range(3))
"""Who asks again with other reductions, one a client: the ledger keeps their rows apart."""

REFERENCE: Final = "reference"
_SERVER: Final = {
    # Nothing here is kept: a crash loses the run, and nothing else.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """A proxy over some worlds, and where each owner's rows are."""

    served: Served
    databases: Mapping[str, Database]
    permits: Permits

    async def replace_rows(
        self, world: World, table: Table, owner: str, rows: Sequence[Row]
    ) -> None:
        """Give one owner other rows of a table. The published estimate stays what it was."""
        statement = insert(table, rows, world.owners[owner])
        new = [] if statement is None else [statement]
        await self.databases[owner].run([f'DELETE FROM "{table.name}"', *new])


class Bed:
    """The servers with everything on them; see :func:`open_bed`."""

    def __init__(self, server: HubAddress, others: Servers, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._pools: dict[str, Pool] = {
            "postgres": PostgresDatabases(server.conninfo),
            "sqlite": SqliteFiles(directory),
        }
        if others.icu is not None:
            self._pools["icu"] = PostgresDatabases(others.icu, (CI,))
        if others.mariadb is not None:
            self._pools["mariadb"] = MariadbDatabases(others.mariadb)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of owners that worlds may have here."""
        return tuple(kind for kind in KINDS if kind in self._pools)

    @asynccontextmanager
    async def reference(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Connect to the merged tables."""
        dsn = make_conninfo(self._server.conninfo, dbname=REFERENCE)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield connection

    @asynccontextmanager
    async def batch(self, worlds: Sequence[World]) -> AsyncIterator[Batch]:
        """Fill owners and reference and run a proxy over them. Raises what those raise."""
        databases = await self._fill_owners(worlds)
        async with self.reference() as connection:
            for world in worlds:
                await fill_reference(connection, world)
        settings = Settings(
            owners={
                owner: OwnerSettings.model_validate(
                    {
                        "url": databases[owner].url,
                        "schema": world.name,
                        "policy": self._policy(world, owner),
                        "options": databases[owner].options,
                    }
                )
                for world in worlds
                for owner in world.owners
            },
            hub=HubSettings.model_validate(
                {"dsn": make_conninfo(self._server.conninfo, dbname="oar")}
            ),
            listen=Listen(port=0),
            log_level="error",
        )
        async with run_proxy(settings, (USER, *SHRINK_USERS)) as served:
            permits = Permits()
            served.permit_reductions(permits)
            # Tables here are small: rows are looked up all the same.
            with patch.object(matching, "WORTHWHILE", 0):
                yield Batch(served, databases, permits)

    def _policy(self, world: World, owner: str) -> Path:
        path = self._directory / f"{owner}.yaml"
        path.write_text(world.policies.get(owner, ALLOW_ALL))
        return path

    async def _fill_owners(self, worlds: Sequence[World]) -> dict[str, Database]:
        databases: dict[str, Database] = {}
        for kind, pool in self._pools.items():
            wanted = [o for world in worlds for o, its in world.owners.items() if its == kind]
            databases |= zip(wanted, await pool.take(len(wanted)), strict=True)
        for world in worlds:
            for owner in world.owners:
                await databases[owner].run(owner_script(world, owner))
        return databases


def owner_script(world: World, owner: str) -> list[str]:
    """Return the statements that make an owner's tables."""
    kind = world.owners[owner]
    statements: list[str | None] = []
    for table in world.tables:
        if owner in table.held:
            statements.append(create(table, kind))
            statements.append(insert(table, table.held[owner], kind))
    return [statement for statement in statements if statement is not None]


async def fill_reference(connection: psycopg.AsyncConnection[Any], world: World) -> None:
    """Make the world's schema anew, with all rows of its tables."""
    name = sql.Identifier(world.name)
    await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
    await connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    for table in world.tables:
        await connection.execute(create(table, "postgres", world.name).encode())
        statement = insert(table, table.rows, "postgres", world.name)
        if statement is not None:
            await connection.execute(statement.encode())


async def enter(connection: psycopg.AsyncConnection[Any], world: World, seconds: float) -> None:
    """Set the session of a client, or of the reference, to a world."""
    await connection.execute("RESET ALL")
    path = sql.SQL("SET search_path = {}, public").format(sql.Identifier(world.name))
    await connection.execute(path)
    await connection.execute(f"SET statement_timeout = '{round(seconds * 1000)}ms'".encode())
    for name, value in world.settings.items():
        await connection.execute(
            sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
        )
    await connection.execute(f"DROP TABLE IF EXISTS pg_temp.{WRITTEN}".encode())
    for statement in CREATE_WRITTEN:
        await connection.execute(statement.encode())


@asynccontextmanager
async def open_bed(directory: Path, kinds: Collection[str] = KINDS) -> AsyncIterator[Bed]:
    """Start the servers in ``directory``, and stop them at the end of the block.

    Owners of ``kinds`` that are not installed are left out. Raises
    ``oar_proxy.hub.address.HubError`` and :class:`~oar_bench.fuzz.servers.ServerError` when a
    server cannot be started.
    """
    settings = HubSettings(data_dir=directory / "server", max_connections=500)
    async with embedded_hub(settings) as server, open_servers(directory, kinds) as others:
        async with await psycopg.AsyncConnection.connect(
            server.conninfo, dbname="postgres", autocommit=True
        ) as connection:
            for name, value in _SERVER.items():
                await connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
            await connection.execute("SELECT pg_reload_conf()")
            await connection.execute(f"CREATE DATABASE {REFERENCE}".encode())
        yield Bed(server, others, directory)
