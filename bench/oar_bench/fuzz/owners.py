"""The databases that owners' rows are put into, one kind of owner each.

Databases of servers are kept and emptied for the next batch; each SQLite file is made anew.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote as url_quote

import asyncmy
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from oar_bench.addresses import owner_url

LOCK_SECONDS: Final = 60
"""How long a writer waits for who reads an SQLite file: for a proxy on a busy machine."""

MARIADB_MODE: Final = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES"
"""MariaDB then reads names and strings as they are written for the other kinds."""

CI: Final = (
    "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)
"""A collation without regard to case, for columns of a PostgreSQL with ICU."""


class Database(Protocol):
    """Where one owner's tables are, and how the proxy reaches it."""

    @property
    def url(self) -> str: ...

    @property
    def options(self) -> Mapping[str, str]: ...

    async def run(self, statements: Sequence[str]) -> None:
        """Run statements that return nothing, all or none where the owner can."""


class Pool(Protocol):
    """Where databases of one kind come from."""

    async def take(self, count: int) -> Sequence[Database]:
        """Return so many empty databases; those taken before are given back."""


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """An SQLite owner."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{url_quote(str(self.path))}"

    @property
    def options(self) -> Mapping[str, str]:
        return {}

    async def run(self, statements: Sequence[str]) -> None:
        # The proxy runs in this process: whoever waits here for its reader to end must let it.
        await asyncio.to_thread(self._write, statements)

    def _write(self, statements: Sequence[str]) -> None:
        with closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS)) as file, file:
            for statement in statements:
                file.execute(statement)


class SqliteFiles:
    """Files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0

    async def take(self, count: int) -> Sequence[SqliteFile]:
        first, self._made = self._made, self._made + count
        return [SqliteFile(self._directory / f"owner-{n}.sqlite") for n in range(first, self._made)]


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """An owner on a PostgreSQL server, as its administrator."""

    conninfo: str

    @property
    def url(self) -> str:
        return owner_url(self.conninfo)

    @property
    def options(self) -> Mapping[str, str]:
        return {"pool_size": "3"}

    async def run(self, statements: Sequence[str]) -> None:
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            for statement in statements:
                await connection.execute(statement.encode())
            await connection.execute("ANALYZE")


class PostgresDatabases:
    """Databases of one server. ``first`` are run in each that is empty."""

    def __init__(self, conninfo: str, first: Sequence[str] = ()) -> None:
        self._conninfo = conninfo
        self._first = ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", *first)
        self._made: list[PostgresDatabase] = []

    async def take(self, count: int) -> Sequence[PostgresDatabase]:
        async with await psycopg.AsyncConnection.connect(
            self._conninfo, dbname="postgres", autocommit=True
        ) as connection:
            while len(self._made) < count:
                name = f"owner_{len(self._made) + 1}"
                await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                self._made.append(PostgresDatabase(make_conninfo(self._conninfo, dbname=name)))
        for database in self._made[:count]:
            await database.run(self._first)
        return self._made[:count]


@dataclass(frozen=True, slots=True)
class MariadbDatabase:
    """An owner on a MariaDB server: filled by its administrator, read by a login of its own."""

    socket: Path
    name: str
    password: str

    @property
    def url(self) -> str:
        return f"mariadb://{self.name}:{self.password}@/{self.name}?socket={self.socket}"

    @property
    def options(self) -> Mapping[str, str]:
        return {"pool_size": "3", "tinyint1": "boolean"}

    async def run(self, statements: Sequence[str]) -> None:
        await _run_mariadb(self.socket, statements, self.name)


class MariadbDatabases:
    """Databases of one server."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._made: list[MariadbDatabase] = []

    async def take(self, count: int) -> Sequence[MariadbDatabase]:
        while len(self._made) < count:
            password = secrets.token_hex(8)
            made = MariadbDatabase(self._socket, f"owner_{len(self._made) + 1}", password)
            login = f"{made.name}@localhost"
            await _run_mariadb(
                self._socket,
                (
                    f"CREATE USER {login} IDENTIFIED BY '{password}'",
                    f"GRANT SELECT ON {made.name}.* TO {login}",
                ),
            )
            self._made.append(made)
        for database in self._made[:count]:
            create = f"CREATE OR REPLACE DATABASE {database.name} CHARACTER SET utf8mb4"
            await _run_mariadb(self._socket, (create,))
        return self._made[:count]


async def _run_mariadb(
    socket: Path, statements: Sequence[str], database: str | None = None
) -> None:
    async with (
        asyncmy.connect(
            unix_socket=str(socket),
            user="root",
            database=database,
            charset="utf8mb4",
            init_command=f"SET sql_mode = '{MARIADB_MODE}'",
            autocommit=True,
        ) as connection,
        connection.cursor() as cursor,
    ):
        for statement in statements:
            await cursor.execute(statement)
