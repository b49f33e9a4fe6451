"""What is killed: two proxies as processes of their own, their hub, and two owners that log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.ledger import digest
from oar_proxy.settings import HubSettings
from psycopg.conninfo import make_conninfo

from oar_bench.harness import ALLOW_ALL, USER
from oar_bench.overhead.owners import Owners
from oar_bench.overhead.processes import HOST, add_bench_user, free_port, postmaster, wait_for_port

OWNERS: Final = ("east", "west")
PROXIES: Final = 2
DATABASE: Final = "ledger"
ROWS: Final = 60

_QUIET_SECONDS: Final = 30
"""What the owners' servers get to notice that a proxy is gone."""

_TABLE: Final = """
CREATE TABLE t (id bigint PRIMARY KEY, k bigint NOT NULL, v text NOT NULL);
INSERT INTO t SELECT i, i % 20, 'row ' || i FROM generate_series(1, {rows}) AS i;
ANALYZE t;
"""

# One file of its own, whatever its size, each line an object.
_LOGGED: Final = """
ALTER SYSTEM SET log_statement = 'all';
ALTER SYSTEM SET log_destination = 'jsonlog';
ALTER SYSTEM SET log_filename = 'queries';
ALTER SYSTEM SET log_rotation_age = 0;
ALTER SYSTEM SET log_rotation_size = 0;
"""


class KillsError(Exception):
    """The world did not come up, or does not come to rest. One line."""


class Hub:
    """The hub's server, with a database that the proxies reach as any other server's."""

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedServer(HubSettings(data_dir=directory))
        self._directory = directory
        self.conninfo = ""

    def start(self) -> None:
        """Start the server, also after it was killed."""
        self.conninfo = make_conninfo(self._server.start().conninfo, dbname=DATABASE)

    def stop(self) -> None:
        """Stop the server."""
        self._server.stop()

    def kill(self) -> None:
        """Kill the postmaster, as a machine that fails would, and start it again."""
        with suppress(ProcessLookupError):
            os.kill(postmaster(self._directory), signal.SIGKILL)
        while self._server.running() is not None:
            time.sleep(0.01)
        self._server.stop()
        self.start()

    def kill_ledger(self) -> None:
        """Kill a process of the server that writes the ledger: all others end and begin again."""
        with self.connect() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'oar ledger%'"
                " ORDER BY random() LIMIT 1"
            ).fetchall()
        for (pid,) in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)
        # The postmaster has seen it by now; it ends all others before it takes anybody again.
        time.sleep(0.05)
        self.connect().close()

    def connect(self) -> psycopg.Connection[Any]:
        """Connect as the proxies do, when the server recovers as soon as it has."""
        deadline = time.monotonic() + _QUIET_SECONDS
        while True:
            try:
                return psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5)
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise KillsError("the hub did not come back") from error
                time.sleep(0.05)


@dataclass
class OwnerLog:
    """What the owners' server logged of statements that read an owner's table."""

    path: Path
    offset: int = 0
    queries: Counter[str] = field(default_factory=Counter)
    """By the digest that the ledger has of them."""
    marks: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Take in what was logged since."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            message = str(json.loads(line).get("message", ""))
            how, _, text = message.partition(": ")
            if "oar kills mark" in text:
                self.marks.add(text)
            elif how.startswith("execute fetch"):
                continue  # more rows of a query that was counted
            elif how.split(" ")[0] in ("execute", "statement") and '"public"."t"' in text:
                self.queries[digest(text)] += 1


class World:
    """All of it, running."""

    def __init__(self, directory: Path, hub: Hub, owners: Owners, log: OwnerLog) -> None:
        self.directory = directory
        self.hub = hub
        self.owners = owners
        self.log = log
        self._marked = 0
        self._policy = directory / "allow.yaml"
        self._policy.write_text(ALLOW_ALL)
        self.ports: list[int] = []
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * PROXIES
        self.password = "kills"  # noqa: S105 - of a server that ends with the run

    def file(self, proxy: int) -> Path:
        """Return where a proxy keeps its copy of the ledger."""
        return self.directory / f"ledger-{proxy}.jsonl"

    def start(self, proxy: int) -> None:
        """Start one of the proxies. Raises :class:`OverheadError`."""
        if not self.ports:
            self.ports = [free_port() for _ in range(PROXIES)]
        config = self.directory / f"oar-{proxy}.yaml"
        content: dict[str, Any] = {
            "listen": {"host": HOST, "port": self.ports[proxy], "shutdown_timeout": 1},
            "hub": {"dsn": self.hub.conninfo},
            "ledger": {"file": str(self.file(proxy))},
            "owners": {
                name: {"url": self.owners.url(name), "policy": str(self._policy)} for name in OWNERS
            },
            "log_level": "error",
        }
        config.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "oar_proxy.cli", "serve", "--config", str(config)]
        with (self.directory / f"proxy-{proxy}.log").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self.processes[proxy] = process
        wait_for_port(process, self.ports[proxy], "oar serve")

    def kill(self, proxy: int) -> None:
        """Kill a proxy with SIGKILL."""
        process = self.processes[proxy]
        if process is not None:
            process.kill()
            process.wait()
            self.processes[proxy] = None

    def stop(self) -> None:
        """Stop all proxies in order."""
        for proxy, process in enumerate(self.processes):
            if process is not None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_QUIET_SECONDS)
                self.kill(proxy)

    def connect(self, proxy: int) -> psycopg.Connection[Any]:
        """Connect as a client. Raises ``psycopg.OperationalError``."""
        return psycopg.connect(
            host=HOST,
            port=self.ports[proxy],
            user=USER,
            password=self.password,
            dbname=DATABASE,
            autocommit=True,
            connect_timeout=5,
        )

    def come_to_rest(self) -> None:
        """Wait until the owners have ended what killed proxies asked, and logged it."""
        self._marked += 1
        mark = f"SELECT 'oar kills mark {self._marked}'"
        with self.owners.connect("postgres") as connection:
            deadline = time.monotonic() + _QUIET_SECONDS
            while self._busy(connection):
                if time.monotonic() > deadline:
                    raise KillsError("the owners still work for a proxy")
                time.sleep(0.01)
            connection.execute(mark.encode())
        while mark not in self.log.marks:
            if time.monotonic() > deadline:
                raise KillsError("the owners' log does not grow")
            self.log.read()
            time.sleep(0.01)

    @staticmethod
    def _busy(connection: psycopg.Connection[Any]) -> int:
        ((busy,),) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = ANY(%s) AND state = 'active'",
            (list(OWNERS),),
        ).fetchall()
        return int(busy)


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Start owners, hub and proxies below ``directory``, for the length of the block."""
    with ExitStack() as stack:
        server = EmbeddedServer(HubSettings(data_dir=directory / "owners"))
        stack.callback(server.stop)
        address = server.start()
        with psycopg.connect(address.conninfo, dbname="postgres", autocommit=True) as connection:
            for setting in _LOGGED.strip().splitlines():
                connection.execute(setting.encode())
        server.stop()
        owners = Owners(server.start().conninfo)
        for name in OWNERS:
            owners.create(name)
            with owners.connect(name) as connection:
                connection.execute(_TABLE.format(rows=ROWS).encode())
        hub = Hub(directory / "hub")
        stack.callback(hub.stop)
        hub.start()
        log = OwnerLog(directory / "owners" / "log" / "queries.json")
        made = World(directory, hub, owners, log)
        stack.callback(made.stop)
        made.start(0)
        add_bench_user(hub.conninfo, made.password)
        for proxy in range(1, PROXIES):
            made.start(proxy)
        yield made
