"""Connections to a PostgreSQL owner, each inside one read-only transaction while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import asyncpg

from oar_adapters.interface import OwnerError, OwnerErrorKind
from oar_adapters.postgres.portal import Connection
from oar_adapters.unreached import system_reason

CLOSE_SECONDS: Final = 1.0
"""How long running queries may take to end when the adapter is closed."""

ROLLBACK_SECONDS: Final = 1.0
"""How long the owner may take to acknowledge a cancelled statement before we hang up. Whoever has
cancelled it waits as long; the owner stops by itself when it finds nobody there."""

CODECS: Final = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "numeric": "numeric",
    "boolean": "bool",
    "text": "text",
    "character varying": "varchar",
    "character": "bpchar",
    "uuid": "uuid",
    "date": "date",
    "time without time zone": "time",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "bytea": "bytea",
}
"""``pg_type.typname`` of each type in :data:`~oar_adapters.interface.BINARY_TYPES`."""

SETTINGS: Final = {
    "application_name": "oar",
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO, MDY",
    "default_transaction_read_only": "on",
    "extra_float_digits": "1",
    # Else an index may give some of what it finds, at random.
    "gin_fuzzy_search_limit": "0",
    "IntervalStyle": "postgres",
    # The generic plan of a prepared statement takes a key list for ten keys.
    "plan_cache_mode": "force_custom_plan",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "transform_null_equals": "off",
}
"""What each connection starts with: one text form a value, nothing found by a search path."""


class Transactions:
    """The transactions at one owner, each on a connection of its own, of which there are few."""

    def __init__(self, url: str, connections: int, connect_timeout: float) -> None:
        self._url = url
        self._connections = connections
        self._connect_timeout = connect_timeout
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._asked_for = 0
        """Connections that are taken, or waited for."""

    @asynccontextmanager
    async def begin(
        self, seconds: float, moment: str | None = None
    ) -> AsyncIterator[tuple[Connection, float]]:
        """Hold one connection in a read-only transaction until the deadline (loop time).

        It sees the ``moment`` that another one exported, or its own. Raises :class:`OwnerError`.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        self._asked_for += 1
        try:
            with translated("connecting"):
                pool = await self._open_pool()
                connection = await pool.acquire(timeout=seconds)
            try:
                # The pool's wrapper is empty as soon as the owner closes the connection, and then
                # fails in ways of its own; what is in it says what happened.
                wrapped: Connection | None = connection._con
                try:
                    with translated("opening a snapshot"):
                        if wrapped is None:
                            raise asyncpg.ConnectionDoesNotExistError
                        await wrapped.execute(_begin(seconds, moment), timeout=left(deadline))
                except BaseException:
                    # There is nothing to roll back; an owner that hangs would not answer that.
                    _hang_up(connection)
                    raise
                yield wrapped, deadline
            finally:
                await _end(pool, connection)
        finally:
            self._asked_for -= 1

    @property
    def spare(self) -> bool:
        """Tell whether one more would leave another statement a connection."""
        return self._asked_for + 2 <= self._connections

    async def close(self) -> None:
        """Close every connection; the owner stops a query that still runs."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    async def _open_pool(self) -> asyncpg.Pool:
        async with self._opening:
            if self._closed:
                raise OwnerError(OwnerErrorKind.UNREACHABLE, "the owner's adapter is closed")
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._connections,
                    timeout=self._connect_timeout,
                    connection_class=Connection,
                    server_settings=SETTINGS,
                    init=_prepare,
                    # Every transaction is rolled back, and with it whatever it had set.
                    reset=_nothing,
                )
            return self._pool


async def _undecoded(connection: Connection) -> None:
    """Pass binary cells through as they are; asyncpg knows these types without asking."""
    for name in CODECS.values():
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
        )


async def _prepare(connection: Connection) -> None:
    """Set up a new connection."""
    await _undecoded(connection)
    # Else a query runs on at the owner when the proxy is gone. Since PostgreSQL 14, and not on
    # every platform.
    with suppress(asyncpg.PostgresError):
        await connection.execute("SET client_connection_check_interval = '1s'")


async def _nothing(_connection: Connection) -> None:
    pass


def _begin(seconds: float, moment: str | None) -> str:
    """Write what opens a snapshot, in one round trip.

    The SELECT takes the snapshot now, unless it is a ``moment`` that was exported. The later two
    timeouts end what a vanished proxy leaves behind; they cost the connection, hence a second after
    ours. ``transaction_timeout`` exists since PostgreSQL 17.
    """
    # The settings are 32-bit numbers of milliseconds.
    statement = min(max(1, int(seconds * 1000)), 2_000_000_000)
    transaction = statement + 1000
    taken = "" if moment is None else f"SET TRANSACTION SNAPSHOT '{moment}';"
    return (
        f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;{taken}"
        f"SELECT set_config('statement_timeout', '{statement}', true),"
        f" set_config('idle_in_transaction_session_timeout', '{transaction}', true),"
        " CASE WHEN current_setting('server_version_num')::int >= 170000"
        f" THEN set_config('transaction_timeout', '{transaction}', true) END"
    )


async def _end(pool: asyncpg.Pool, connection: Connection) -> None:
    """Roll back and give the connection back, or hang up where that cannot be had."""
    try:
        await connection.execute("ROLLBACK", timeout=ROLLBACK_SECONDS)
    except (
        TimeoutError,
        OSError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,  # of a query that ran out of time and has not ended
    ):
        _hang_up(connection)
    except BaseException:
        # Cancelled again: nobody waits, and a connection inside a transaction may not go back.
        _hang_up(connection)
        raise
    finally:
        await pool.release(connection)


def _hang_up(connection: Connection) -> None:
    # asyncpg raises when the connection is already gone.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def left(deadline: float) -> float:
    """Return the seconds that are left. Raises ``TimeoutError`` when there are none."""
    seconds = deadline - asyncio.get_running_loop().time()
    if seconds <= 0:
        raise TimeoutError
    return seconds


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn asyncpg's errors into :class:`OwnerError`; the owner's text can quote rows, so it goes.

    ``doing`` stands in front of the reason.
    """
    try:
        yield
    except TimeoutError:
        raise OwnerError(OwnerErrorKind.TIMEOUT, f"{doing}: the owner ran out of time") from None
    except asyncpg.PostgresError as error:
        if isinstance(error, asyncpg.InvalidCachedStatementError):
            raise OwnerError(OwnerErrorKind.SCHEMA_CHANGED, f"{doing}: {_GONE}", "0A000") from None
        kind, why = _reason(error.sqlstate or "")
        raise OwnerError(kind, f"{doing}: {why}", error.sqlstate) from None
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        # asyncpg's own words, which name the server: they have no number.
        plain = " (the server does not offer TLS)" if "rejected SSL upgrade" in str(error) else ""
        raise OwnerError(
            OwnerErrorKind.UNREACHABLE,
            f"{doing}: no connection to the owner's database{plain or system_reason(error)}",
        ) from None


_NOT_LET_IN: Final = {
    "28": "the owner's database does not accept the user or the password of its URL",
    "3D000": "the owner's server has no such database",
}
"""By how SQLSTATEs begin: what those who run a proxy can do something about."""


_GONE: Final = "a published table or column is no longer there"


def _reason(sqlstate: str) -> tuple[OwnerErrorKind, str]:
    # 25P03 and 25P04 are the idle-in-transaction and the transaction timeout.
    if sqlstate in ("57014", "25P03", "25P04"):
        return OwnerErrorKind.TIMEOUT, "the owner ran out of time"
    if sqlstate in ("42P01", "42703"):
        return OwnerErrorKind.SCHEMA_CHANGED, _GONE
    if sqlstate[:2] in ("08", "57") or sqlstate == "53300":
        return OwnerErrorKind.UNREACHABLE, "the owner's database accepts no connection"
    for begins, why in _NOT_LET_IN.items():
        if sqlstate.startswith(begins):
            return OwnerErrorKind.UNREACHABLE, f"{why} ({sqlstate})"
    return OwnerErrorKind.REFUSED, f"the owner's database reported an error ({sqlstate})"
