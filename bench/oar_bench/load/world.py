"""What carries the load: a proxy of its own, owners of three kinds, a model.

``shop`` is a PostgreSQL and ``depot`` an SQLite file, which nothing happens to. ``fleet``, a
PostgreSQL with a server of its own, and ``crm``, a MariaDB, stand behind a :class:`Shim` each, and
what happens to them must not reach anybody who does not ask them. All rows follow from their
number, so that every answer can be checked.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncmy
import psycopg
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from oar_bench.addresses import owner_url
from oar_bench.fuzz.servers import mariadb_server
from oar_bench.harness import ALLOW_ALL
from oar_bench.load.model import Model
from oar_bench.load.shim import Shim
from oar_bench.overhead.memory import children
from oar_bench.overhead.processes import HOST, Proxy, postmaster, proxy_process

ORDERS: Final = 20_000
PROMOS: Final = 1_000
"""Each of as many orders, evenly spread."""

EVENTS: Final = 200_000
NOTE: Final = "x" * 100

_SHOP: Final = f"""
CREATE TABLE orders (order_id bigint PRIMARY KEY, promo text NOT NULL, amount integer NOT NULL);
INSERT INTO orders SELECT i, 'P' || i % {PROMOS}, i % 1000 FROM generate_series(1, {ORDERS}) AS i;
CREATE INDEX ON orders (promo);
CREATE TABLE events (id bigint PRIMARY KEY, note text NOT NULL);
INSERT INTO events SELECT i, '{NOTE}' FROM generate_series(1, {EVENTS}) AS i;
ANALYZE;
"""
_FLEET: Final = f"""
CREATE TABLE couriers (order_id bigint PRIMARY KEY, courier text NOT NULL);
INSERT INTO couriers SELECT i, 'c' || i % 50 FROM generate_series(1, {ORDERS}) AS i;
ANALYZE;
"""


POOLS: Final = {"shop": 24, "depot": 12, "fleet": 6, "crm": 6}
"""Connections to each owner. Those that a statement at ``fleet`` or ``crm`` holds at another owner
must not be all that this one has."""

_MISTAKES: Final = ("internal error", "session failed", "not understood", "Traceback", "never ")
"""What only a mistake of the proxy's leaves in its log, or asyncio of a task that was lost."""


class Server:
    """A PostgreSQL with one owner's database, which can be stopped, restarted, and made to hang."""

    def __init__(self, directory: Path, database: str, script: str) -> None:
        self._server = EmbeddedServer(HubSettings(data_dir=directory))
        self._directory = directory
        self.database = database
        address = self._server.start()
        self.socket = Path(address.host) / f".s.PGSQL.{address.port}"
        self._admin = address.conninfo
        with psycopg.connect(self._admin, dbname="postgres", autocommit=True) as connection:
            name = sql.Identifier(database)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        self.conninfo = make_conninfo(self._admin, dbname=database)
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(script.encode())

    def url(self, port: int | None = None) -> str:
        """Return how the proxy reaches it: by its socket, or through what listens on a port."""
        if port is None:
            return owner_url(self.conninfo)
        through = make_conninfo(self.conninfo, host=HOST, port=port)
        return f"{owner_url(through)}&sslmode=disable"

    def at_work(self) -> list[tuple[str, str]]:
        """Return state and query of what runs there, or has a transaction open."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(
                "SELECT state, left(query, 60) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = %s AND state <> 'idle'",
                (self.database,),
            ).fetchall()

    def restart(self) -> None:
        """Stop the server, breaking off all that runs there, and start it again."""
        self._server.stop()
        self._server.start()

    def stop(self) -> None:
        """Stop it for good."""
        self._server.stop()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all its processes where they are, for the length of the block."""
        first = postmaster(self._directory)
        # The postmaster last, and first again: a child that it finds stopped it takes for crashed.
        stopped = [*children(first), first]
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


class Maria:
    """The MariaDB owner, filled."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        rows = ", ".join(f"({number}, 'n{number}')" for number in range(1, ORDERS + 1))
        self.run(
            "CREATE DATABASE crm CHARACTER SET utf8mb4",
            "CREATE USER crm@localhost IDENTIFIED BY 'load'",
            "GRANT SELECT ON crm.* TO crm@localhost",
            "CREATE TABLE crm.customers (order_id bigint PRIMARY KEY, name varchar(20) NOT NULL)",
            f"INSERT INTO crm.customers VALUES {rows}",
            "ANALYZE TABLE crm.customers",
        )

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the administrator; returns the last one's rows."""

        async def talk() -> list[tuple[Any, ...]]:
            connecting = asyncmy.connect(unix_socket=str(self.socket), user="root", autocommit=True)
            async with connecting as connection, connection.cursor() as cursor:
                for statement in statements:
                    await cursor.execute(statement)
                return list(await cursor.fetchall())

        return asyncio.run(talk())

    def at_work(self) -> list[tuple[str, str]]:
        """Return state and query of what runs there for the proxy."""
        found = self.run(
            "SELECT COMMAND, LEFT(COALESCE(INFO, STATE), 60) FROM information_schema.PROCESSLIST"
            " WHERE USER = 'crm' AND COMMAND <> 'Sleep'"
        )
        return [(str(command), str(what)) for command, what in found]


@dataclass(frozen=True, slots=True)
class World:
    """All of it, running. ``crm`` is None where no MariaDB is installed."""

    proxy: Proxy
    model: Model
    shop: Server
    fleet: Server
    fleet_shim: Shim
    crm: Maria | None
    crm_shim: Shim | None
    log: Path
    patience: float
    """Seconds that clients and owners keep others waiting, and that a statement at ``fleet`` and a
    startup may take."""
    cancels: list[float] = field(default_factory=list)
    """Seconds until statements that nothing else ends were answered when they were cancelled."""
    notes: list[str] = field(default_factory=list)
    """What a fault has to tell beside what was wrong."""

    def left_at_owners(self) -> list[str]:
        """Say what still runs at an owner."""
        return [
            f"{name}: {state}: {query}"
            for name, owner in (("shop", self.shop), ("fleet", self.fleet), ("crm", self.crm))
            if owner is not None
            for state, query in owner.at_work()
        ]

    def unexpected(self) -> list[str]:
        """Return what the proxy logged that is a mistake of its own, whatever happened."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line[-600:] for line in lines if any(mark in line for mark in _MISTAKES)]


@contextmanager
def world(directory: Path, clients: int, patience: float) -> Iterator[World]:
    """Start owners, model, hub and proxy below ``directory``, for the length of the block.

    ``clients`` is how many there will be.
    """
    with ExitStack() as stack:
        shop = Server(directory / "shop", "shop", _SHOP)
        stack.callback(shop.stop)
        fleet = Server(directory / "fleet", "fleet", _FLEET)
        stack.callback(fleet.stop)
        fleet_shim = stack.enter_context(Shim(fleet.socket).running())
        socket = stack.enter_context(mariadb_server(directory / "crm"))
        crm = None if socket is None else Maria(socket)
        crm_shim = None if crm is None else stack.enter_context(Shim(crm.socket).running())
        model = stack.enter_context(Model().serving())
        depot = _depot(directory / "depot.sqlite")
        policy = directory / "allow.yaml"
        policy.write_text(ALLOW_ALL)
        urls = {
            "shop": shop.url(),
            "fleet": fleet.url(fleet_shim.port),
            "depot": f"sqlite:///{depot}",
        }
        if crm_shim is not None:
            urls["crm"] = f"mariadb://crm:load@{HOST}:{crm_shim.port}/crm"
        log = directory / "proxy.log"
        content = {
            "listen": {"max_clients": clients, "startup_timeout": patience},
            "owners": {
                name: {
                    "url": url,
                    "policy": str(policy),
                    "options": {"pool_size": str(POOLS[name])},
                }
                for name, url in urls.items()
            },
            "drafter": {
                "kind": "litellm",
                "model": "openai/load",
                "api_base": model.url,
                "api_key": "none",
            },
            "catalog_refresh": 5,
        }
        proxy = stack.enter_context(
            proxy_process(directory, secrets.token_urlsafe(12), content, log=log)
        )
        yield World(proxy, model, shop, fleet, fleet_shim, crm, crm_shim, log, patience)


def _depot(path: Path) -> Path:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE TABLE deliveries"
            " (order_id INTEGER PRIMARY KEY, city TEXT NOT NULL, delay INTEGER NOT NULL)"
        )
        rows = ((i, f"city {i % 40}", i % 17) for i in range(1, ORDERS + 1))
        connection.executemany("INSERT INTO deliveries VALUES (?, ?, ?)", rows)
    connection.close()
    return path
