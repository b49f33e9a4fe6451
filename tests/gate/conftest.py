import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from oar_proxy import ledger
from oar_proxy.hub import inforce
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

    def as_user(self, name: str) -> psycopg.Connection:
        return psycopg.connect(
            make_conninfo(self.conninfo, user=name, password="x"), autocommit=True
        )


async def _prepare(conninfo: str, database: str) -> None:
    maintenance = make_conninfo(conninfo, dbname="postgres")
    async with await psycopg.AsyncConnection.connect(maintenance, autocommit=True) as connection:
        await create_database(connection, database, embedded=True)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await bootstrap(connection, embedded=True)
        for _ in range(2):
            await ledger.install(connection)
            await inforce.install(connection)


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    # Not under pytest's own directory: that is closed to the OS user the server runs as.
    directory = Path(tempfile.mkdtemp(prefix="oar-gate-"))
    server = EmbeddedServer(HubSettings(data_dir=directory / "hub"))
    directory.chmod(0o711)
    try:
        address = server.start()
        asyncio.run(_prepare(address.conninfo, address.database))
        yield Hub(server, directory / "hub", address.conninfo)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_hub(hub: Hub) -> Iterator[Hub]:
    """A database of the test's own on that server, with the ledger installed."""
    name = f"oar_{uuid.uuid4().hex[:12]}"
    conninfo = make_conninfo(hub.conninfo, dbname=name)
    asyncio.run(_prepare(conninfo, name))
    yield Hub(hub.server, hub.directory, conninfo)
    hub.execute(f"DROP DATABASE {name} WITH (FORCE)")
