"""Locks at which sessions of the hub wait while their statement is worked on elsewhere.

PostgreSQL lets a cancel fall that comes while a session has nothing to do (``pg_cancel_backend``
then says true, and nothing happens). A session whose owners are being asked has nothing to do. So
it is given something: it waits for an advisory lock that the proxy holds, and hears what it is
told. It works in read-only transactions and on a standby, and leaves nothing behind.

What is short is not worth it. Whoever passes on a statement that tells sessions something has
them all wait first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self

import psycopg
import structlog

from oar_proxy.hub.address import HubAddress

WAIT: Final = "SELECT oar_internal.wait_for_proxy($1)"
"""What a session runs to wait for the lock, whose key is its parameter."""

_SECONDS: Final = 5.0
"""Seconds that a turn at the connection is waited for, and then the lock, which is done without."""

_HEARING: Final = 1.0
"""Seconds that who tells sessions something waits for them to hear it."""

_log = structlog.get_logger("oar.hub")


class Sentinels:
    """The locks, all held by one connection of the proxy's own. An asynchronous context manager."""

    def __init__(self, address: HubAddress) -> None:
        self._conninfo = address.session
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self._held: set[int] = set()
        self.sessions: set[Callable[[], Awaitable[None]]] = set()
        """For each session with work under way, what returns once it hears what it is told."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._turn:
            await self._leave()

    async def lock(self) -> int | None:
        """Lock something new and return its key; None: the hub does not give it now."""
        key = secrets.randbits(62)
        try:
            async with asyncio.timeout(_SECONDS) as limit, self._turn:
                limit.reschedule(asyncio.get_running_loop().time() + _SECONDS)
                await self._do("SELECT pg_catalog.pg_advisory_lock(%s)", key)
                self._held.add(key)
        except (psycopg.Error, OSError) as error:  # TimeoutError is one
            _log.warning("no lock for a session to wait at", error=type(error).__name__)
            return None
        return key

    async def unlock(self, key: int) -> None:
        """Let go of whoever waits for this lock."""
        async with self._turn:
            if key not in self._held:  # it went with its connection
                return
            self._held.remove(key)
            try:
                async with asyncio.timeout(_SECONDS):
                    await self._do("SELECT pg_catalog.pg_advisory_unlock(%s)", key)
            except (psycopg.Error, OSError) as error:
                _log.warning("locks of sessions given up", error=type(error).__name__)

    async def all_hear(self) -> None:
        """Return once every session hears what it is told, but for those that cannot be made to."""
        if self.sessions:
            hearing = [asyncio.ensure_future(hear()) for hear in self.sessions]
            _, late = await asyncio.wait(hearing, timeout=_HEARING)
            for each in late:
                each.cancel()

    async def _do(self, statement: str, key: int) -> None:
        """Run a statement, for whoever has the turn: no other one may use or close the connection.

        Where one fails nobody knows which locks there are. They go with the connection.
        """
        try:
            if self._connection is None or self._connection.closed:
                self._held.clear()
                self._connection = await psycopg.AsyncConnection.connect(
                    self._conninfo, autocommit=True, application_name="oar sentinel"
                )
            await self._connection.execute(statement.encode(), (key,))
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        self._held.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()
