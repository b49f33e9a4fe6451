"""One connection to a MariaDB or MySQL server: set up, read from, stopped.

The driver leaves two things to do. It reads whatever the server sends, so it is paused between
batches; and it closes the connection when it is cancelled, which the server notices only when it
next writes, so whatever ends early is ended with KILL QUERY from a second connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import asyncmy
from asyncmy.constants import FIELD_TYPE
from asyncmy.cursors import Cursor, SSCursor

from oar_adapters.batches import fitting
from oar_adapters.interface import OwnerError, OwnerErrorKind, base_type
from oar_adapters.unreached import system_reason

BATCH_ROWS: Final = 2000
"""Rows a batch. Measured on 100,000 rows of three columns: 1,000 94 ms, 2,000 95 ms, 5,000
125 ms."""

FIRST_ROWS: Final = 100
"""Rows of the first batch, which foretells nothing yet."""

KILL_SECONDS: Final = 5.0
"""How long the server may take to accept a KILL before we only hang up."""

ABORT_SECONDS: Final = 1.0
"""How long whoever gives up waits for a KILL; it goes on meanwhile."""

QUIT_SECONDS: Final = 1.0
"""How long taking leave of a server may take."""

WRITE_SECONDS: Final = 600
"""How long the server waits for a reader; a slow one's answer ends at its default, a minute."""

_SET_OPTION: Final = 0x1B
_MULTI_STATEMENTS_OFF: Final = b"\x01\x00"
_BINARY: Final = 63
"""The number of the character set ``binary``."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Address:
    """How a server is reached and who logs in."""

    user: str
    database: str
    password: str = field(default="", repr=False)
    host: str | None = None
    port: int = 3306
    socket: str | None = None
    tls: ssl.SSLContext | None = None
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """What a session needs to know of the server."""

    mariadb: bool
    version: tuple[int, ...]
    packet: int
    """``max_allowed_packet``, in bytes."""


class Session:
    """One connection. Used by one task at a time; :meth:`stop` may be called from another."""

    def __init__(self, address: Address, connection: Any) -> None:
        self._address = address
        self._connection = connection
        self._thread = 0
        self._cursor: Any = None
        self._stopped = False
        self._kill: asyncio.Task[None] | None = None
        self._abandoning = asyncio.Lock()
        self.deadline = 0.0
        self.server = Server(mariadb=True, version=(), packet=0)

    @classmethod
    async def open(cls, address: Address) -> Session:
        """Connect and set the connection up. Raises :class:`OwnerError`."""
        with translated("connecting"):
            async with asyncio.timeout(address.seconds):
                session = cls(address, await _connect(address))
                try:
                    await session._set_up()
                except BaseException:
                    session.hang_up()
                    raise
        return session

    @property
    def usable(self) -> bool:
        """Whether the connection is open, and nothing is running on it."""
        return bool(self._connection.connected) and self._cursor is None and not self._stopped

    async def begin(self, seconds: float) -> None:
        """Open a read-only snapshot that lives at most so many seconds."""
        self.deadline = asyncio.get_running_loop().time() + seconds
        limit = (
            f"max_statement_time = {seconds:.3f}"
            if self.server.mariadb
            else f"max_execution_time = {max(1, int(seconds * 1000))}"
        )
        with translated("opening a snapshot"):
            await self._execute(f"SET SESSION {limit}")
            await self._execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    async def end(self) -> None:
        """End the snapshot; where that cannot be had, hang up, and stop what runs."""
        if not self.usable:
            await self._abort()
            return
        self.deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        try:
            await self._execute("ROLLBACK")
        except (TimeoutError, OSError, asyncmy.errors.MySQLError):
            await self._abort()

    async def rows(self, text: str) -> list[tuple[str | None, ...]]:
        """Fetch a few rows as text. Raises :class:`OwnerError`."""
        with translated("reading its catalogs"):
            fetched = await self._execute(text)
        return [tuple(None if v is None else v.decode() for v in row) for row in fetched]

    async def stream(
        self, text: str, types: Sequence[str]
    ) -> AsyncGenerator[list[tuple[bytes | None, ...]], None]:
        """Fetch rows in batches. Raises :class:`OwnerError`, also where a type has changed."""
        with translated(_RUNNING):
            await self._abandon(self._cursor)
            self._check_open()
            cursor = self._cursor = self._connection.cursor(SSCursor)
        try:
            with translated(_RUNNING):
                await self._guarded(cursor.execute(text))
                _check_types(cursor, types)
            size = FIRST_ROWS
            while True:
                with translated(_RUNNING):
                    rows = await self._guarded(cursor.fetchmany(size))
                if not rows:
                    break
                size = fitting(rows, BATCH_ROWS)
                self._pause()
                yield rows
                self._resume()
            self._cursor = None
        finally:
            await self._abandon(cursor)

    def stop(self) -> Awaitable[None]:
        """Make what runs fail, here and at the server; waits for the server when awaited."""
        self._stopped = True
        self.hang_up()
        return self._killed()

    async def close(self) -> None:
        """Take leave of the server, and close the connection."""
        try:
            async with asyncio.timeout(QUIT_SECONDS):
                await self._connection.ensure_closed()
        except (TimeoutError, OSError, asyncmy.errors.MySQLError):
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection without a word."""
        self._connection.close()

    # --- one command ------------------------------------------------------------------------------

    async def _execute(self, text: str) -> Sequence[tuple[bytes | None, ...]]:
        await self._abandon(self._cursor)
        self._check_open()
        cursor = self._connection.cursor(Cursor)

        async def run() -> Sequence[tuple[bytes | None, ...]]:
            await cursor.execute(text)
            rows: Sequence[tuple[bytes | None, ...]] = await cursor.fetchall()
            return rows

        return await self._guarded(run())

    async def _guarded(self, command: Awaitable[_T]) -> _T:
        """Wait for a command until the deadline; one that is given up is killed."""
        try:
            async with asyncio.timeout_at(self.deadline):
                return await command
        except (TimeoutError, asyncio.CancelledError):
            await self._abort()
            raise
        except asyncmy.errors.MySQLError:
            # An error is the end of an answer.
            self._cursor = None
            raise

    def _check_open(self) -> None:
        if self._stopped or not self._connection.connected:
            raise asyncmy.errors.InterfaceError(0, "closed")

    async def _abort(self) -> None:
        """Hang up, and stop what runs at the server."""
        self._cursor = None
        self.hang_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._killed()

    def _killed(self) -> Awaitable[None]:
        """Send KILL QUERY, once; goes on when whoever waits is cancelled."""
        if self._kill is None:
            self._kill = asyncio.create_task(kill(self._address, self._thread))
        return asyncio.shield(self._kill)

    async def _abandon(self, cursor: Any) -> None:
        """Stop an answer that nobody reads to its end, and keep the snapshot."""
        async with self._abandoning:
            if cursor is None or self._cursor is not cursor:
                return
            try:
                if self._connection.connected:
                    self._resume()
                    await self._drain(cursor)
            except (TimeoutError, OSError, asyncmy.errors.MySQLError):
                self.hang_up()
            except BaseException:
                self.hang_up()
                raise
            finally:
                self._cursor = None

    async def _drain(self, cursor: Any) -> None:
        await kill(self._address, self._thread)
        async with asyncio.timeout(KILL_SECONDS):
            try:
                while await cursor.fetchmany(BATCH_ROWS):
                    pass
            except asyncmy.errors.MySQLError as error:
                if _number(error) != _INTERRUPTED:
                    raise
            # A KILL that came too late for its statement meets this one.
            with suppress(asyncmy.errors.MySQLError):
                await self._connection.query("DO 0")

    # --- flow control -----------------------------------------------------------------------------

    def _pause(self) -> None:
        transport = self._connection._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def _resume(self) -> None:
        transport = self._connection._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    # --- set-up -----------------------------------------------------------------------------------

    async def _set_up(self) -> None:
        """Make the session read-only, and its meaning independent of the server's settings."""
        self.deadline = asyncio.get_running_loop().time() + self._address.seconds
        await self._connection._execute_command(_SET_OPTION, _MULTI_STATEMENTS_OFF)
        await self._connection.read_packet()
        ((version, thread, packet),) = await self._execute(
            "SELECT VERSION(), CONNECTION_ID(), @@max_allowed_packet"
        )
        self._thread = int(thread or 0)
        text = (version or b"").decode()
        numbers = text.partition("-")[0].split(".")
        self.server = Server(
            mariadb="mariadb" in text.lower(),
            version=tuple(int(number) for number in numbers if number.isdecimal()),
            packet=int(packet or 0),
        )
        settings = SETTINGS | (MARIADB_SETTINGS if self.server.mariadb else {})
        await self._execute("SET NAMES utf8mb4")
        await self._execute(
            "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())
        )
        await self._execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


SETTINGS: Final = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY,STRICT_ALL_TABLES,"
    "NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'",
    "time_zone": "'+00:00'",
    # Else an answer could be cut, or a NULL test mean the last row that was inserted.
    "sql_select_limit": "18446744073709551615",
    "sql_auto_is_null": "0",
    # Warnings quote names and values, and the driver logs those there are.
    "max_error_count": "0",
    "net_write_timeout": str(WRITE_SECONDS),
    "autocommit": "1",
}
"""What each connection starts with, whatever the server's own settings."""

MARIADB_SETTINGS: Final = {
    # Long lists of keys are looked up in an index, and not made a table of another collation.
    "in_predicate_conversion_threshold": "0",
    # Else tables with versions could be read as they once were.
    "system_versioning_asof": "DEFAULT",
}


async def _connect(address: Address) -> Any:
    where = (
        {"unix_socket": address.socket}
        if address.socket
        else {"host": address.host, "port": address.port, "ssl": address.tls}
    )
    return await asyncmy.connect(
        **where,
        user=address.user,
        password=address.password,
        database=address.database,
        charset="utf8mb4",
        # Every value as the bytes that were sent.
        use_unicode=False,
        conv={},
        autocommit=None,
        local_infile=False,
        connect_timeout=address.seconds,
    )


async def kill(address: Address, thread: int) -> None:
    """Stop what a connection runs. What has ended by itself, or cannot be reached, is let be."""
    if not thread:
        return
    with suppress(TimeoutError, OSError, asyncmy.errors.MySQLError):
        async with asyncio.timeout(KILL_SECONDS):
            connection = await _connect(address)
            try:
                await connection.query(f"KILL QUERY {thread:d}")
            finally:
                connection.close()


# --- what comes back ------------------------------------------------------------------------------

_STRINGS: Final = frozenset(
    {
        FIELD_TYPE.VARCHAR,
        FIELD_TYPE.VAR_STRING,
        FIELD_TYPE.STRING,
        FIELD_TYPE.TINY_BLOB,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.MEDIUM_BLOB,
        FIELD_TYPE.LONG_BLOB,
        FIELD_TYPE.ENUM,
        FIELD_TYPE.SET,
        FIELD_TYPE.JSON,
    }
)
_INTEGERS: Final = frozenset(
    {
        FIELD_TYPE.TINY,
        FIELD_TYPE.SHORT,
        FIELD_TYPE.INT24,
        FIELD_TYPE.LONG,
        FIELD_TYPE.LONGLONG,
        FIELD_TYPE.YEAR,
    }
)
_DECIMALS: Final = frozenset({FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL})
_DOUBLES: Final = frozenset({FIELD_TYPE.DOUBLE})

_SENT: Final = {
    "smallint": _INTEGERS,
    "integer": _INTEGERS,
    "bigint": _INTEGERS,
    "numeric": _DECIMALS | {FIELD_TYPE.LONGLONG},
    "double precision": _DOUBLES,
    "real": _DOUBLES,
    "boolean": frozenset({FIELD_TYPE.TINY, FIELD_TYPE.BIT}),
    "bit": frozenset({FIELD_TYPE.BIT}),
    "date": frozenset({FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE}),
    "timestamp without time zone": frozenset({FIELD_TYPE.DATETIME}),
    "timestamp with time zone": frozenset({FIELD_TYPE.TIMESTAMP}),
    "interval": frozenset({FIELD_TYPE.TIME}),
}
"""The server's types a published type is sent as; the others are strings."""


def _check_types(cursor: Any, types: Sequence[str]) -> None:
    """Compare what is about to come with what was published.

    Raises :class:`OwnerError` when a column has another type by now.
    """
    fields = cursor._result.fields
    for sent, type_ in zip(fields, types, strict=True):
        plain = base_type(type_)
        fits = sent.type_code in _SENT.get(plain, _STRINGS)
        if plain in ("text", "bytea"):
            fits = fits and (sent.charsetnr == _BINARY) is (plain == "bytea")
        if not fits and sent.type_code != FIELD_TYPE.NULL:
            raise OwnerError(
                OwnerErrorKind.SCHEMA_CHANGED,
                "running a query: a published column has another type",
            )


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the driver's errors into :class:`OwnerError`, without their text, which quotes rows.

    ``doing`` stands in front of the reason.
    """
    try:
        yield
    except TimeoutError:
        raise OwnerError(OwnerErrorKind.TIMEOUT, f"{doing}: the owner ran out of time") from None
    except asyncmy.errors.MySQLError as error:
        kind, why = _reason(_number(error), connecting=doing != _RUNNING)
        # The driver wraps what the system says of a connection.
        cause = system_reason(error.__cause__ or error.__context__)
        raise OwnerError(kind, f"{doing}: {why}{cause}") from None
    except OSError as error:
        kind, why = _reason(0, connecting=True)
        raise OwnerError(kind, f"{doing}: {why}{system_reason(error)}") from None


def _number(error: asyncmy.errors.MySQLError) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


_RUNNING: Final = "running a query"
_INTERRUPTED: Final = 1317
_TIMEOUTS: Final = frozenset({1205, 1969, 3024})
"""Waiting for a lock, and each server's limit on a statement's time."""
_SCHEMA: Final = frozenset({1054, 1146, 1356, 1412})
"""Unknown column, no such table, a view that is no longer valid, a table changed meanwhile."""
_AWAY: Final = frozenset({0, 1040, 1053, 1129, 1130, 1152, 1158, 1159, 1160, 1161, 1203, 1226, 1927,
                          *range(2000, 2100), 4031})  # fmt: skip
"""Too many connections, shutdown, a host that is not let in, the client's own numbers."""


_NOT_LET_IN: Final = {
    1044: "the user of the owner's URL may not use its database",
    1045: "the owner's database does not accept the user or the password of its URL",
    1049: "the owner's server has no such database",
}
"""What those who run a proxy can do something about."""


def _reason(number: int, *, connecting: bool) -> tuple[OwnerErrorKind, str]:
    if number in _TIMEOUTS:
        return OwnerErrorKind.TIMEOUT, "the owner ran out of time"
    if number in _SCHEMA:
        return OwnerErrorKind.SCHEMA_CHANGED, "a published table or column is no longer there"
    if number in _AWAY:
        return OwnerErrorKind.UNREACHABLE, "no connection to the owner's database"
    if number == _INTERRUPTED:
        return OwnerErrorKind.UNREACHABLE, "the query was stopped"
    # While a query runs it is a view's definer who is not let in.
    if number in _NOT_LET_IN and connecting:
        return OwnerErrorKind.UNREACHABLE, f"{_NOT_LET_IN[number]} ({number})"
    return OwnerErrorKind.REFUSED, f"the owner's database reported an error ({number})"
