"""The embedded server: made, started, recovered and stopped inside one directory.

The directory (``hub.data_dir``) holds::

    lock             held by the proxy that uses the directory
    admin-password   of role oar_admin, readable by the server's OS user only
    pgdata/          PostgreSQL's own files
    log/             PostgreSQL's log, a file a weekday
    run/             the socket, unless its path would be too long
    programs/        a copy of the server's programs, where its OS user may not read the originals

The server listens on that socket only. Under root it runs as another OS user, because PostgreSQL
refuses to run as root.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg.conninfo
import structlog

from oar_proxy.hub.account import Account, server_account
from oar_proxy.hub.address import HubAddress, HubError
from oar_proxy.hub.binaries import find_binaries
from oar_proxy.hub.postmaster import clear_away, read_postmaster
from oar_proxy.hub.programs import Programs
from oar_proxy.settings import HubSettings

ADMIN_ROLE: Final = "oar_admin"

PORT: Final = 5432
"""Only names the socket file; the server listens on no network address."""

_CONNECTIONS: Final = 200
"""Where nobody says how many clients there will be."""

_SOCKET_PATH_LIMIT: Final = 103
"""Bytes of a socket's path: 107 on Linux, 103 on macOS and the BSDs."""

_SOCKET_DIRECTORY_PREFIX: Final = "oar-hub-"
_START_LOG: Final = "start.log"

_START_SECONDS: Final = 600
"""Recovery after a crash replays the log since the last checkpoint before the server is ready."""

_STOP_SECONDS: Final = 60

_LOOK_SECONDS: Final = 0.5
"""Between two looks whether the server is there: two files of a few bytes are read."""

_AGAIN_SECONDS: Final = 5.0
"""Between two attempts to start one that does not start."""

# Written once, at the end of a new postgresql.conf: an operator's to change.
_DEFAULTS: Final[Mapping[str, str]] = {
    "password_encryption": "'scram-sha-256'",
    # Clients' rows live in statements, not in tables: memory goes to hashing and sorting them.
    "work_mem": "'64MB'",  # the hash table of a join of a million rows stays in memory
    "max_locks_per_transaction": "256",  # one transaction publishes the whole catalog
    "max_wal_size": "'256MB'",
    "max_logical_replication_workers": "0",
    "jit": "off",  # compiling costs more than the short statements of a hub gain
    # The log must never hold a statement or a value: PostgreSQL's ERROR messages quote both.
    "log_min_messages": "'log'",
    "log_min_error_statement": "'panic'",
    "log_error_verbosity": "'terse'",
    "logging_collector": "on",
    "log_filename": "'hub-%a.log'",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "'1d'",
    "log_rotation_size": "0",
}

_log = structlog.get_logger("oar.hub")

_HBA: Final = "# Written by oar: the socket is the only way in, with a password.\n" + (
    "local all all scram-sha-256\n"
)


@asynccontextmanager
async def embedded_hub(settings: HubSettings) -> AsyncIterator[HubAddress]:
    """Run the embedded server for the length of the block; one that ends is started again.

    Raises :class:`HubError` when the directory is in use, or the server cannot be started.
    """
    server = EmbeddedServer(settings)
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        address = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The thread cannot be interrupted: a server that came up meanwhile must not be left over.
        with contextlib.suppress(HubError):
            await starting
            await asyncio.to_thread(server.stop)
        raise
    watching = asyncio.create_task(_keep_running(server), name="hub")
    try:
        yield address
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
        await asyncio.shield(asyncio.to_thread(server.stop))


async def _keep_running(server: EmbeddedServer) -> None:
    """Start the server again whenever it has ended: killed, or for want of memory."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            if server.alive():
                continue
        except (HubError, OSError) as error:
            _log.error("it cannot be told whether the hub runs", error=type(error).__name__)
            await asyncio.sleep(_AGAIN_SECONDS)
            continue
        _log.error("the hub has ended and is started again")
        starting = asyncio.ensure_future(asyncio.to_thread(server.restart))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))  # the thread cannot be interrupted
            raise
        except HubError as error:
            _log.error("the hub does not start", reason=error.message)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            _log.warning("the hub runs again")


def running_hub(settings: HubSettings) -> HubAddress | None:
    """Return the address of the embedded server another process runs, None when there is none.

    Raises :class:`HubError` when its password may not be read.
    """
    return EmbeddedServer(settings).running()


class EmbeddedServer:
    """One server over one directory. Not thread-safe; every call blocks."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._directory = settings.data_dir.expanduser().absolute()
        self._pgdata = self._directory / "pgdata"
        self._log = self._directory / "log"
        self._password_file = self._directory / "admin-password"
        self._lock: int | None = None
        self._sockets: Path | None = None
        self._account: Account | None = None
        self._programs: Programs | None = None

    def start(self) -> HubAddress:
        """Take the directory, recover what an earlier proxy left there, and start the server.

        Raises :class:`HubError`; then nothing is left running and the directory is free again.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(self._directory / "lock")
        except OSError as error:
            raise HubError(f"hub directory {self._directory}: {error.strerror}") from error
        try:
            return self._start()
        except OSError as error:
            self._release()
            raise HubError(f"hub directory {self._directory}: {error}") from error
        except BaseException:
            self._release()
            raise

    def stop(self) -> None:
        """Stop the server, ending its connections, and free the directory."""
        try:
            if self._programs is not None:
                self._stop_server(self._programs)
        finally:
            self._release()

    def restart(self) -> None:
        """Start a server again that has ended, at the same address. Raises :class:`HubError`."""
        assert self._programs is not None, "it was never started"
        assert self._sockets is not None, "it was never started"
        try:
            clear_away(self._pgdata)
            for left in self._sockets.iterdir():
                left.unlink()
            self._launch(self._programs, self._sockets)
        except OSError as error:
            raise HubError(f"hub directory {self._directory}: {error}") from error

    def running(self) -> HubAddress | None:
        """Return the address of a server that runs over the directory, whoever started it."""
        postmaster = read_postmaster(self._pgdata)
        if postmaster is None or not postmaster.alive:
            return None
        return self._address(postmaster.socket_directory)

    def alive(self) -> bool:
        """Tell whether a server runs over the directory.

        Raises ``OSError`` and :class:`HubError` when that cannot be told.
        """
        postmaster = read_postmaster(self._pgdata)
        return postmaster is not None and postmaster.alive

    def _start(self) -> HubAddress:
        self._account = server_account(self._pgdata)
        self._make_directories()
        found = find_binaries(self._initialised_major())
        programs = Programs(found, self._account, self._pgdata, self._log)
        self._programs = programs = programs.reachable(self._directory / "programs")
        self._stop_server(programs)
        if not self._pgdata.exists():
            self._initialise(programs)
        clear_away(self._pgdata)
        self._sockets = self._socket_directory()
        self._launch(programs, self._sockets)
        return self._address(str(self._sockets))

    # --- making the files -------------------------------------------------------------------

    def _make_directories(self) -> None:
        if self._account is not None:
            self._directory.chmod(0o711)
        self._make_private(self._log)
        if not self._password_file.exists():
            self._write_password()

    def _make_private(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._give(directory)

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _write_password(self) -> None:
        if self._pgdata.exists():
            raise HubError(
                f"the hub's {self._password_file} is missing, and its server exists",
                hint="restore the file, or set a new password as docs/operator.md describes",
            )
        descriptor = os.open(self._password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        self._give(self._password_file)

    def _initialised_major(self) -> int | None:
        version = self._pgdata / "PG_VERSION"
        if not self._pgdata.exists():
            return None
        try:
            return int(version.read_text().strip())
        except (OSError, ValueError) as error:
            raise HubError(
                f"hub directory {self._pgdata} holds no PostgreSQL data",
                hint="restore it from a backup, or move it away to begin anew",
            ) from error

    def _initialise(self, programs: Programs) -> None:
        # Made under another name, so that an interrupted initdb is never taken for a server.
        fresh = self._directory / "pgdata.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        self._make_private(fresh)
        programs.run(
            "initdb",
            f"--pgdata={fresh}",
            f"--username={ADMIN_ROLE}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-instructions",
            *_locale_arguments(programs.binaries.major),
        )
        defaults = dict(_DEFAULTS) | {"log_directory": _quoted(str(self._log))}
        if programs.binaries.major >= 18:
            # Nothing here is read from disk in bulk: three worker processes would only idle.
            defaults["io_method"] = "'sync'"
        with (fresh / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write("\n# Written by oar when it made this directory; change as you see fit.\n")
            file.writelines(f"{name} = {value}\n" for name, value in defaults.items())
        (fresh / "pg_hba.conf").write_text(_HBA, encoding="utf-8")
        fresh.rename(self._pgdata)
        _sync_directory(self._directory)

    def _socket_directory(self) -> Path:
        directory = self._directory / "run"
        path = directory / f".s.PGSQL.{PORT}"
        # libpq takes a comma for the end of one host of a list.
        if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT and "," not in str(path):
            # A killed server leaves a lock file here, and its number may be another's by now.
            shutil.rmtree(directory, ignore_errors=True)
            self._make_private(directory)
            return directory
        short = Path(tempfile.mkdtemp(prefix=_SOCKET_DIRECTORY_PREFIX))
        self._give(short)
        return short

    # --- running it -------------------------------------------------------------------------

    def _launch(self, programs: Programs, socket_directory: Path) -> None:
        (self._log / _START_LOG).unlink(missing_ok=True)
        socket = str(socket_directory).replace('"', '""')
        required = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": f'"{socket}"',
            "unix_socket_permissions": "0700",
            "max_connections": str(self._settings.max_connections or _CONNECTIONS),
        }
        options = [part for name, value in required.items() for part in ("-c", f"{name}={value}")]
        programs.run(
            "pg_ctl",
            "start",
            "--wait",
            f"--timeout={_START_SECONDS}",
            f"--log={_START_LOG}",
            f"--options={shlex.join(options)}",
        )

    def _stop_server(self, programs: Programs) -> None:
        postmaster = read_postmaster(self._pgdata)
        if postmaster is None:
            return
        if postmaster.alive:
            stop = ("stop", "--wait", f"--timeout={_STOP_SECONDS}")
            try:
                programs.run("pg_ctl", *stop, "--mode=fast")
            except HubError:
                # Fast has had its minute; immediate loses nothing that was committed.
                programs.run("pg_ctl", *stop, "--mode=immediate")
        socket_directory = Path(postmaster.socket_directory)
        if socket_directory.name.startswith(_SOCKET_DIRECTORY_PREFIX):
            shutil.rmtree(socket_directory, ignore_errors=True)

    def _address(self, socket_directory: str) -> HubAddress:
        try:
            password = self._password_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise HubError(
                f"the hub's {self._password_file} cannot be read: {error.strerror}",
                hint="run this as the OS user that runs oar serve",
            ) from error
        return HubAddress(
            host=socket_directory,
            port=PORT,
            database=self._settings.database,
            conninfo=psycopg.conninfo.make_conninfo(
                host=socket_directory,
                port=PORT,
                dbname=self._settings.database,
                user=ADMIN_ROLE,
                password=password,
            ),
            embedded=True,
        )

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _take_lock(path: Path) -> int:
    """Return a descriptor that holds the lock; it is not inherited, so it dies with the proxy."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise HubError(
            f"hub directory {path.parent} is in use by another oar (process {holder or 'unknown'})",
            hint="stop it, or give this one a hub.data_dir of its own",
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _locale_arguments(major: int) -> list[str]:
    # Text must sort by code point, as owners are asked to (Capabilities.text_order).
    if major >= 17:
        return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    return ["--locale=C.UTF-8", "--lc-messages=C"]


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
