"""Owners, proxy and reference for batches of worlds, on one embedded PostgreSQL.

The server holds the hub's database, a database for each PostgreSQL owner and the reference's, in
which every world is a schema with all its tables merged. Databases are kept from batch to batch;
the application is started anew for each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote as url_quote

import psycopg
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.server import embedded_hub
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from oar_bench.fuzz.world import Row, Table, World, create, insert
from oar_bench.harness import ALLOW_ALL, USER, Served, run_proxy

SHRINK_USER: Final = "bench_shrink"
"""Who asks again without reductions: the ledger keeps its rows apart."""

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
    databases: Mapping[str, str]
    files: Mapping[str, Path]

    async def replace_rows(
        self, world: World, table: Table, owner: str, rows: Sequence[Row]
    ) -> None:
        """Give one owner other rows of a table. The published estimate stays what it was."""
        if world.owners[owner] == "sqlite":
            with closing(sqlite3.connect(self.files[owner])) as file, file:
                file.execute(f'DELETE FROM "{table.name}"')
                statement = insert(table, rows, "sqlite")
                if statement is not None:
                    file.execute(statement)
            return
        async with await psycopg.AsyncConnection.connect(self.databases[owner]) as connection:
            await connection.execute(f'DELETE FROM "{table.name}"'.encode())
            statement = insert(table, rows, "postgres")
            if statement is not None:
                await connection.execute(statement.encode())


class Bed:
    """The server with everything on it; see :func:`open_bed`."""

    def __init__(self, server: HubAddress, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._databases: list[str] = []
        self._batches = 0
        self._policy = directory / "allow-all.yaml"
        self._policy.write_text(ALLOW_ALL)

    @asynccontextmanager
    async def reference(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Connect to the merged tables."""
        dsn = make_conninfo(self._server.conninfo, dbname=REFERENCE)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield connection

    @asynccontextmanager
    async def batch(self, worlds: Sequence[World]) -> AsyncIterator[Batch]:
        """Fill owners and reference and run a proxy over them. Raises what those raise."""
        self._batches += 1
        databases, files = await self._fill_owners(worlds)
        async with self.reference() as connection:
            for world in worlds:
                await fill_reference(connection, world)
        owners = {}
        for world in worlds:
            for owner, kind in world.owners.items():
                url = (
                    f"sqlite:///{url_quote(str(files[owner]))}"
                    if kind == "sqlite"
                    else _url(databases[owner])
                )
                owners[owner] = OwnerSettings.model_validate(
                    {
                        "url": url,
                        "schema": world.name,
                        "policy": self._policy,
                        "options": {} if kind == "sqlite" else {"pool_size": "3"},
                    }
                )
        settings = Settings(
            owners=owners,
            hub=HubSettings.model_validate(
                {"dsn": make_conninfo(self._server.conninfo, dbname="oar")}
            ),
            listen=Listen(port=0),
            log_level="error",
        )
        async with run_proxy(settings, (USER, SHRINK_USER)) as served:
            yield Batch(served, databases, files)

    async def _fill_owners(self, worlds: Sequence[World]) -> tuple[dict[str, str], dict[str, Path]]:
        databases: dict[str, str] = {}
        files: dict[str, Path] = {}
        wanted = [o for w in worlds for o, kind in w.owners.items() if kind == "postgres"]
        for owner, dsn in zip(wanted, await self._take_databases(len(wanted)), strict=True):
            databases[owner] = dsn
        for world in worlds:
            for owner, kind in world.owners.items():
                statements = owner_script(world, owner)
                if kind == "sqlite":
                    files[owner] = self._directory / f"{self._batches}-{owner}.sqlite"
                    with closing(sqlite3.connect(files[owner])) as file, file:
                        for statement in statements:
                            file.execute(statement)
                    continue
                async with await psycopg.AsyncConnection.connect(databases[owner]) as connection:
                    for statement in statements:
                        await connection.execute(statement.encode())
                    await connection.execute("ANALYZE")
        return databases, files

    async def _take_databases(self, count: int) -> list[str]:
        """Return connection strings of empty databases, made now or emptied."""
        async with await psycopg.AsyncConnection.connect(
            self._server.conninfo, dbname="postgres", autocommit=True
        ) as connection:
            while len(self._databases) < count:
                name = f"owner_{len(self._databases) + 1}"
                await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                self._databases.append(make_conninfo(self._server.conninfo, dbname=name))
        taken = self._databases[:count]
        for dsn in taken:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await connection.execute("DROP SCHEMA public CASCADE")
                await connection.execute("CREATE SCHEMA public")
        return taken


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


def _url(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return (
        f"postgres://{parts['user']}:{url_quote(str(parts['password']))}@/{parts['dbname']}"
        f"?host={url_quote(str(parts['host']), safe='/')}&port={parts['port']}"
    )


@asynccontextmanager
async def open_bed(directory: Path) -> AsyncIterator[Bed]:
    """Start the server in ``directory``, and stop it at the end of the block.

    Raises ``oar_proxy.hub.address.HubError`` when it cannot be started.
    """
    settings = HubSettings(data_dir=directory / "server", max_connections=500)
    async with embedded_hub(settings) as server:
        async with await psycopg.AsyncConnection.connect(
            server.conninfo, dbname="postgres", autocommit=True
        ) as connection:
            for name, value in _SERVER.items():
                await connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
            await connection.execute("SELECT pg_reload_conf()")
            await connection.execute(f"CREATE DATABASE {REFERENCE}".encode())
        yield Bed(server, directory)
