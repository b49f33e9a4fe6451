"""The proxy as a process of its own, and the PostgreSQL programs that measure it."""

from __future__ import annotations

import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.hub.server import running_hub
from oar_proxy.settings import HubSettings
from psycopg.conninfo import make_conninfo

from oar_bench.harness import USER

_START_SECONDS: Final = 120
"""The first start makes the hub's files."""

_STOP_SECONDS: Final = 60

HOST: Final = "127.0.0.1"


class OverheadError(Exception):
    """A program that a measurement needs is missing or failed. One line."""


class Proxy:
    """A proxy that runs as ``oar serve``, with one user."""

    def __init__(
        self, pid: int, port: int, password: str, hub: HubAddress, hub_directory: Path
    ) -> None:
        self.pid = pid
        self.port = port
        self.password = password
        self.hub = hub
        self.hub_directory = hub_directory

    @property
    def conninfo(self) -> str:
        """How the client connects, as libpq has it."""
        return make_conninfo(
            host=HOST,
            port=self.port,
            user=USER,
            password=self.password,
            dbname=self.hub.database,
        )

    @property
    def postmaster(self) -> int:
        """The hub's first process."""
        return postmaster(self.hub_directory)

    def connect(self) -> psycopg.Connection[Any]:
        """Connect as the client. Raises ``psycopg.OperationalError``."""
        return psycopg.connect(self.conninfo, autocommit=True)


@contextmanager
def proxy_process(
    directory: Path,
    password: str,
    sections: Mapping[str, Any] | None = None,
    *,
    log: Path | None = None,
) -> Iterator[Proxy]:
    """Run ``oar serve`` with its hub in ``directory``, for the length of the block.

    ``sections`` are added to its configuration; errors go to ``log``, or where this process's do.
    Raises :class:`OverheadError` when it does not come up.
    """
    port = free_port()
    config = directory / "oar.yaml"
    hub = HubSettings(data_dir=directory / "hub")
    further = dict(sections or {})
    content = {
        "listen": {"host": HOST, "port": port, **further.pop("listen", {})},
        "hub": {"data_dir": str(hub.data_dir), **further.pop("hub", {})},
        "log_level": "error",
        **further,
    }
    config.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "oar_proxy.cli", "serve", "--config", str(config)]
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("wb"))
        process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
        try:
            wait_for_port(process, port, "oar serve")
            address = running_hub(hub)
            if address is None:
                raise OverheadError("oar serve is up, but its hub is not")
            add_bench_user(address.conninfo, password)
            try:
                yield Proxy(process.pid, port, password, address, hub.data_dir)
            finally:
                if process.poll() is not None:  # whatever failed at a client failed for that
                    raise OverheadError(_ended(process.returncode, log))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _ended(status: int, log: Path | None) -> str:
    lines = [] if log is None else log.read_text(errors="replace").strip().splitlines()
    said = f"; its log ends with: {lines[-1][-400:]}" if lines else ""
    return f"oar serve ended while clients asked it: exit status {status}{said}"


def add_bench_user(conninfo: str, password: str) -> None:
    """Make the client user as ``oar user add`` does; a running proxy needs no restart for it."""
    import asyncio

    from oar_proxy.hub.users import add_user

    async def add() -> None:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await add_user(connection, USER, password)

    asyncio.run(add())


def postmaster(data_dir: Path) -> int:
    """Return the first process of the embedded server in a directory. Raises ``OSError``."""
    return int((data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()[0])


def free_port() -> int:
    """Return a TCP port that nothing listens on just now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def wait_for_port(process: subprocess.Popen[bytes], port: int, what: str) -> None:
    """Wait until a process listens. Raises :class:`OverheadError` when it ends or takes long."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OverheadError(f"{what} ended at once: exit status {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise OverheadError(f"{what} did not listen within {_START_SECONDS} s")


def program(name: str) -> str:
    """Find one of PostgreSQL's client programs. Raises :class:`OverheadError`."""
    beside_server = find_binaries().directory / name
    found = str(beside_server) if beside_server.is_file() else shutil.which(name)
    if found is None:
        raise OverheadError(f"{name} is not installed")
    return found


def run(command: Sequence[str], password: str) -> str:
    """Run a client program and return what it printed. Raises :class:`OverheadError`."""
    answer = subprocess.run(
        command,
        env={"PGPASSWORD": password, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise OverheadError(f"{Path(command[0]).name} failed: {reason}")
    return answer.stdout


def interleaved(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Measure all contestants in turn, ``rounds`` times over, and return each one's median.

    In turn, so that whatever else the machine does meets all of them.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, measure in contestants.items():
            figures[name].append(measure())
    return {name: statistics.median(values) for name, values in figures.items()}


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)
