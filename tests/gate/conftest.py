import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from oar_proxy import ledger
from oar_proxy.hub.bootstrap import bootstrap, create_database
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings
from psycopg import sql
from psycopg.conninfo import make_conninfo


@dataclass(frozen=True)
class Hub:
    """A real server with the ledger installed."""

    server: EmbeddedServer
    directory: Path
    conninfo: str

    def execute(self, statement: str, *parameters: object) -> list[tuple]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def user(self, group: str = "oar_client") -> str:
        """Create a login role of its own and return its name."""
        name = f"u{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x' IN ROLE {}").format(
                    sql.Identifier(name), sql.Identifier(group)
                )
            )
        return name

    @contextmanager
    def database(self) -> Iterator[str]:
        """A database of its own that is set up, with no key of a ledger yet: how to connect to it."""
        name = f"oar_{uuid.uuid4().hex[:12]}"
        conninfo = make_conninfo(self.conninfo, dbname=name)
        asyncio.run(_bootstrapped(conninfo, name))
        yield conninfo
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def as_user(self, name: str) -> psycopg.Connection:
        return psycopg.connect(
            make_conninfo(self.conninfo, user=name, password="x"), autocommit=True
        )


async def _bootstrapped(conninfo: str, database: str) -> None:
    maintenance = make_conninfo(conninfo, dbname="postgres")
    async with await psycopg.AsyncConnection.connect(maintenance, autocommit=True) as connection:
        await create_database(connection, database, embedded=True)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await bootstrap(connection, embedded=True)


async def _installed(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for _ in range(2):
            await ledger.install(connection)


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    # Not under pytest's own directory: that is closed to the OS user the server runs as.
    directory = Path(tempfile.mkdtemp(prefix="oar-gate-"))
    server = EmbeddedServer(HubSettings(data_dir=directory / "hub"))
    directory.chmod(0o711)
    try:
        address = server.start()
        asyncio.run(_bootstrapped(address.conninfo, address.database))
        asyncio.run(_installed(address.conninfo))
        yield Hub(server, directory / "hub", address.conninfo)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_hub(hub: Hub) -> Iterator[Hub]:
    """A database of the test's own on that server, with the ledger installed."""
    with hub.database() as conninfo:
        asyncio.run(_installed(conninfo))
        yield Hub(hub.server, hub.directory, conninfo)
