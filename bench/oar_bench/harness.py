"""A proxy over a benchmark's owners, in this process, and a client connected to it.

All organisations are served at once: each owner under a name with its organisation's before it,
each organisation's tables in a schema of its name. Nothing is mocked: the hub is the embedded
PostgreSQL, owners are their SQLite files, the client speaks the protocol over TCP.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from oar_proxy import log
from oar_proxy.app import Application, open_application
from oar_proxy.compile import Permit
from oar_proxy.hub.access import AdminPool
from oar_proxy.hub.users import add_user, set_password
from oar_proxy.settings import DrafterSettings, HubSettings, Listen, OwnerSettings, Settings
from psycopg import sql

from oar_bench.layout import Organisation, Owner
from oar_bench.result import Result, fetch

USER: Final = "bench"

ALLOW_ALL: Final = """\
# Every key may go to every owner: what is measured is the answer, not the policy.
version: 1
key_disclosure:
  - column: "*"
    to: ["*"]
    max_keys: 1000000
"""

ALLOW_MODELS: Final = (
    ALLOW_ALL
    + """\
# The paper's protocols show rows to a model.
model: {rows: allow}
"""
)

STATEMENT_SECONDS: Final = 120
"""Benchmark statements take milliseconds; one that takes minutes has failed."""


class Client:
    """One client connection to the proxy. Only what any client could do."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._schema: str | None = None

    async def run(self, organisation: str, statement: str) -> Result:
        """Run a statement with the organisation's schema as the search path.

        Raises ``psycopg.Error``.
        """
        await self._enter(organisation)
        return await fetch(self._connection, statement)

    async def check(self, organisation: str, query: str) -> None:
        """Have a query checked and not run. Raises ``psycopg.Error`` where it is refused."""
        await self._enter(organisation)
        await self._connection.execute(f"PREPARE checked AS {query}".encode())
        await self._connection.execute("DEALLOCATE checked")

    async def _enter(self, organisation: str) -> None:
        if self._schema != organisation:
            path = sql.SQL("SET search_path = {}, public").format(sql.Identifier(organisation))
            await self._connection.execute(path)
            self._schema = organisation


class Served:
    """A proxy that runs, with the password of its one user."""

    def __init__(self, application: Application, password: str) -> None:
        self.application = application
        self.password = password

    @property
    def admin(self) -> AdminPool:
        """Connections of the proxy's own role, to read the ledger."""
        return self.application.hub.admin

    def permit_reductions(self, permits: Callable[[str], Permit | None]) -> None:
        """Have the proxy ask before it makes a reduction for some principals."""
        self.application.pipeline.compiler.permits = permits

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Connect as a client, for the length of the block. Raises ``psycopg.Error``."""
        async with self.connection() as connection:
            await connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
            yield Client(connection)

    @asynccontextmanager
    async def connection(self, user: str = USER) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Connect as one of the users, without settings of ours. Raises ``psycopg.Error``."""
        async with await psycopg.AsyncConnection.connect(
            host=self.application.host,
            port=self.application.port,
            user=user,
            password=self.password,
            dbname=self.application.hub.database,
            autocommit=True,
        ) as connection:
            yield connection


@asynccontextmanager
async def serve(
    organisations: Iterable[Organisation], directory: Path, drafter: DrafterSettings | None = None
) -> AsyncIterator[Served]:
    """Run a proxy over the organisations' owners that hold rows, its hub in ``directory``.

    Raises what ``open_application`` raises.
    """
    policy = directory / "allow-all.yaml"
    policy.write_text(ALLOW_ALL)
    settings = Settings(
        owners=owner_settings(organisations, policy),
        hub=HubSettings(data_dir=directory / "hub"),
        listen=Listen(port=0),
        drafter=drafter or DrafterSettings(),
        # Nothing changes but what a measurement puts in force itself.
        catalog_refresh=86_400,
        log_level="warning",
    )
    async with run_proxy(settings) as served:
        yield served


@asynccontextmanager
async def run_proxy(settings: Settings, users: Sequence[str] = (USER,)) -> AsyncIterator[Served]:
    """Run a proxy that admits these users. Raises what ``open_application`` raises."""
    log.configure(settings.log_level, settings.log_format)
    async with open_application(settings) as application:
        password = secrets.token_urlsafe(16)
        async with application.hub.admin.connection() as connection:
            for user in users:
                await _admit(connection, user, password)
        yield Served(application, password)


async def _admit(connection: psycopg.AsyncConnection[Any], user: str, password: str) -> None:
    """Make a user, or give it a new password on a hub that has served before."""
    found = await connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (user,))
    if found.rowcount:
        await set_password(connection, user, password)
    else:
        await add_user(connection, user, password)


def owner_settings(organisations: Iterable[Organisation], policy: Path) -> dict[str, OwnerSettings]:
    """Configure one owner a SQLite file, named ``<organisation>__<owner>``."""
    owners: dict[str, OwnerSettings] = {}
    for organisation in organisations:
        for owner in organisation.with_rows:
            name = owner_name(f"{organisation.name}__{owner.name}", owners)
            owners[name] = owner_setting(organisation, owner, policy)
    return owners


def owner_setting(organisation: Organisation, owner: Owner, policy: Path) -> OwnerSettings:
    """Configure an owner's SQLite file, its tables in a schema of its organisation's name."""
    return OwnerSettings.model_validate(
        {
            "url": f"sqlite:///{quote(str(owner.file))}",
            "schema": organisation.name,
            "policy": policy,
        }
    )


def owner_name(wanted: str, taken: Iterable[str]) -> str:
    """Fold a name to what the configuration accepts; number it where another folds to the same."""
    folded = re.sub(r"[^a-z0-9_]", "_", wanted.lower())
    if folded[0].isdigit():
        folded = f"_{folded}"
    name, number = folded[:63], 1
    while name in taken:
        number += 1
        name = f"{folded[:58]}_{number}"
    return name
