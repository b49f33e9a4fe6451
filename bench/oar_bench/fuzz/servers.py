"""The servers of owners whose text collates otherwise, where their programs are installed.

MariaDB compares without regard to case and to padding, a PostgreSQL with ICU orders as en-US does.
Neither is installed with this package: where one is missing, no owner of its kind is drawn.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psycopg.conninfo import make_conninfo

_START_SECONDS: Final = 60
_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin"
_POSTGRES: Final = Path("/usr/lib/postgresql")
"""Where Debian's packages have PostgreSQL, which is built with ICU."""


class ServerError(Exception):
    """An installed server that does not start. One line."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Connection string of the PostgreSQL with ICU, and MariaDB's socket; None: not installed."""

    icu: str | None = None
    mariadb: Path | None = None


@asynccontextmanager
async def open_servers(directory: Path, kinds: Collection[str]) -> AsyncIterator[Servers]:
    """Start those of ``kinds`` that are installed, and stop them at the end of the block.

    Raises :class:`ServerError`.
    """
    async with AsyncExitStack() as stack:

        async def start(kind: str, running: Any) -> Any:
            if kind not in kinds:
                return None
            context = running(directory / kind)
            found = await asyncio.to_thread(context.__enter__)
            stack.push_async_callback(asyncio.to_thread, context.__exit__, None, None, None)
            return found

        icu, mariadb = await asyncio.gather(start("icu", _icu), start("mariadb", mariadb_server))
        yield Servers(icu, mariadb)


def _account() -> dict[str, Any]:
    """Another OS user: neither server runs as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _own_directory(directory: Path) -> None:
    directory.mkdir()
    account = _account()
    if account:
        os.chown(directory, account["user"], account["group"])


def _run(command: list[str | Path], log: Path) -> None:
    with log.open("ab") as output:
        ran = subprocess.run(
            command, stdout=output, stderr=output, cwd="/", check=False, **_account()
        )
    if ran.returncode != 0:
        raise ServerError(f"{Path(command[0]).name} failed: {_last_line(log)}")


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]


@contextmanager
def _icu(directory: Path) -> Iterator[str | None]:
    installed = sorted(_POSTGRES.glob("*/bin/initdb"))
    if not installed:
        yield None
        return
    _own_directory(directory)
    programs, log = installed[-1].parent, directory.with_suffix(".log")
    data = ("-D", directory / "data")
    _run(
        [programs / "initdb", *data, "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-sync",
         "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"],
        log,
    )  # fmt: skip
    options = f"-c listen_addresses='' -c fsync=off -c autovacuum=off -k {directory}"
    _run([programs / "pg_ctl", *data, "-w", "-l", directory / "log", "-o", options, "start"], log)
    try:
        # The server asks for no password; the URL of an owner has a place for one.
        yield make_conninfo(f"host={directory} user=admin password=none dbname=postgres")
    finally:
        _run([programs / "pg_ctl", *data, "-w", "-m", "immediate", "stop"], log)


@contextmanager
def mariadb_server(directory: Path) -> Iterator[Path | None]:
    """Run a MariaDB with its files in a new ``directory``; its socket, None: not installed."""
    daemon, install = (
        shutil.which(name, path=_PATH) for name in ("mariadbd", "mariadb-install-db")
    )
    if not (daemon and install):
        yield None
        return
    _own_directory(directory)
    log, socket = directory.with_suffix(".log"), directory / "s"
    common = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}"]
    _run([install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"], log)
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [daemon, *common, f"--socket={socket}", f"--pid-file={directory}/pid",
             "--skip-networking", "--innodb-flush-log-at-trx-commit=0",
             # What an owner may have set, and whose meaning must not reach the answer.
             "--default-time-zone=+05:00", "--character-set-server=latin1"],
            stdout=output, stderr=output, cwd="/", **_account(),
        ) as server,
    ):  # fmt: skip
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not socket.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise ServerError(f"mariadbd does not start: {_last_line(log)}")
                time.sleep(0.05)
            yield socket
        finally:
            server.terminate()
            server.wait()
