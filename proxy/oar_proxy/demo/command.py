"""``oar demo``: owners, proxy and questions in one command."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import psycopg.conninfo
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from rich.console import Console
from rich.text import Text

from oar_proxy import log
from oar_proxy.app import open_application
from oar_proxy.demo import databases, orders
from oar_proxy.demo.orders import Marketplace
from oar_proxy.demo.show import ask_all
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.server import embedded_hub
from oar_proxy.hub.users import add_user, list_users, set_password
from oar_proxy.settings import ConfigurationError, HubSettings, Settings, load

USER: Final = "demo"
PASSWORD: Final = "demo"  # noqa: S105 - printed for everyone to use; the demo listens on loopback

DEFAULT_PORT: Final = 6432
PORTS_TRIED: Final = 20

_BUILT: Final = "built"
"""Marker file: the databases hold the rows that the text in it stands for."""
_CONTENT: Final = f"{orders.SEED} {orders.ORDERS} 1\n"
"""Seed, orders and a number that grows when tables change."""

_POSTGRES_OWNER: Final = re.compile(r"@localhost:5433/(\w+)")
_SQLITE_OWNER: Final = re.compile(r"sqlite:////var/lib/marketplace/(\w+\.db)")
_PORT_LINE: Final = re.compile(rf"port: {DEFAULT_PORT}\b")


async def run_demo(directory: Path, *, port: int | None, once: bool) -> bool:
    """Run the demo; returns whether every answer was as expected.

    ``directory`` is an absolute path that is there. Raises ``HubError``, ``ConfigurationError``
    and ``OSError``.
    """
    console = Console()
    port = free_port(DEFAULT_PORT, PORTS_TRIED) if port is None else free_port(port, 1)

    def progress(text: str) -> None:
        console.print(Text(f"• {text}", style="dim"))

    progress("starting the owners' PostgreSQL")
    owners_settings = HubSettings(data_dir=directory / "owners", database="postgres")
    async with embedded_hub(owners_settings) as server:
        rows = await asyncio.to_thread(prepare, directory, server, progress)
        settings = configure(directory, server, port)
        log.configure("warning", "console")
        progress("starting the proxy")
        async with open_application(settings, on_event=progress) as application:
            async with application.hub.admin.connection() as connection:
                await _ensure_user(connection)
            database = application.hub.database
            conninfo = psycopg.conninfo.make_conninfo(
                host=application.host,
                port=application.port,
                dbname=database,
                user=USER,
                password=PASSWORD,
            )
            right = await asyncio.to_thread(ask_all, console, conninfo, rows)
            if not once:
                url = f"postgresql://{USER}:{PASSWORD}@{application.host}:{application.port}"
                _invite(console, f"{url}/{database}")
                await application.serve_forever()
    return right


def prepare(
    directory: Path, server: HubAddress, progress: Callable[[str], None] = lambda _: None
) -> Marketplace:
    """Make the owners' databases unless they are there, and return their rows. Blocks."""
    rows = orders.make()
    marker = directory / _BUILT
    if not marker.exists() or marker.read_text(encoding="ascii") != _CONTENT:
        progress(f"making {len(rows.deliveries):,} orders at four owners")
        marker.unlink(missing_ok=True)
        databases.build_sqlite(directory, rows)
        databases.build_postgres(server, rows)
        marker.write_text(_CONTENT, encoding="ascii")
    return rows


def configure(directory: Path, server: HubAddress, port: int) -> Settings:
    """Write configuration and policies into ``directory`` and read them back.

    They are the files of ``examples/marketplace``, with this demo's addresses put in.
    """
    source = resources.files("oar_proxy.demo") / "marketplace"
    policies = directory / "policies"
    policies.mkdir(exist_ok=True)
    for policy in (source / "policies").iterdir():
        (policies / policy.name).write_text(policy.read_text(encoding="utf-8"), encoding="utf-8")
    where = urlencode({"host": server.host, "port": server.port}, quote_via=quote)
    text = (source / "oar.yaml").read_text(encoding="utf-8")
    text = _put(_POSTGRES_OWNER, rf"@/\1?{where}", text)
    text = _put(_SQLITE_OWNER, rf"sqlite:///{quote(str(directory))}/\1", text)
    text = _put(_PORT_LINE, f"port: {port}", text)
    path = directory / "oar.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


async def _ensure_user(connection: AsyncConnection[TupleRow]) -> None:
    present = {user.name for user in await list_users(connection)}
    await (set_password if USER in present else add_user)(connection, USER, PASSWORD)


def _put(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    changed, count = pattern.subn(replacement, text)
    if not count:
        raise ConfigurationError(f"the demo's configuration has nothing like {pattern.pattern}")
    return changed


def free_port(first: int, tried: int) -> int:
    """Return the first port from ``first`` that nobody listens on; 0 is always free.

    Raises ``OSError``.
    """
    for port in range(first, first + tried):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    ports = f"port {first}" if tried == 1 else f"every port from {first} to {first + tried - 1}"
    raise OSError(f"{ports} is in use: name another one with --port")


def _invite(console: Console, url: str) -> None:
    console.print()
    console.rule("The proxy stays up. Ask on", align="left")
    console.print(Text(f"  psql {url}"))
    console.print(Text("  SELECT * FROM oar_ask('How many deliveries are there in Казань?');"))
    console.print(Text("  SELECT * FROM oar.disclosures;"))
    console.print(Text("Ctrl-C stops it.", style="dim"))
