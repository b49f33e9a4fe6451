"""Rows of one query in as few round trips as the protocol needs.

asyncpg's own cursors take three for the first row: one each to prepare, to bind and to fetch. Here
a query is bound and fetched in one, and a query that its connection ran before is not prepared
again. Built on the base class of asyncpg's cursors, so the versions that fit are in pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import asyncpg
from asyncpg.cursor import BaseCursor

T = TypeVar("T")

# asyncpg has no types, hence what mypy ignores here.


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection to an owner, whose prepared statements outlive a transaction."""

    def portal(self, text: str, arguments: Sequence[Any]) -> Portal:
        """Make the portal of one query, within a transaction."""
        return Portal(self, text, None, arguments, None)


class Portal(BaseCursor):  # type: ignore[misc]
    """The rows of one query: ``open`` it, then ``fetch`` until fewer rows come than were asked for.

    Or ``fetch_all`` of them. All three raise asyncpg's errors. A table that was altered may have
    made the statement unusable (``InvalidCachedStatementError``): the connection then forgets what
    it prepared, and by the time this is asked again, other types may have been published.
    """

    _state: Any

    async def open(
        self,
        types: Sequence[str],
        timeout: float,  # noqa: ASYNC109 - asyncpg's name for it
    ) -> bool:
        """Prepare the query, unless that was done before.

        Tells whether its last columns have those types (``pg_type`` names). What was prepared
        before the table was altered is prepared anew.
        """
        if await self._has(types, timeout):
            return True
        self._state.detach()
        self._state = None
        await self._connection.reload_schema_state()
        return await self._has(types, timeout)

    async def _has(self, types: Sequence[str], timeout: float) -> bool:  # noqa: ASYNC109
        self._state = await self._connection._get_statement(self._query, timeout, named=True)
        self._state.attach()
        sent = [attribute.type.name for attribute in self._state._get_attributes()]
        return sent[len(sent) - len(types) :] == list(types)

    async def fetch(self, rows: int, timeout: float) -> list[asyncpg.Record]:  # noqa: ASYNC109
        """Return up to so many rows more."""
        step = self._bind_exec if self._portal_name is None else self._exec
        fetched: list[asyncpg.Record] = await self._executed(step(rows, timeout))
        return fetched

    async def fetch_all(self, timeout: float) -> list[asyncpg.Record]:  # noqa: ASYNC109
        """Return all rows; the owner, which keeps nothing of the query then, may start workers."""
        self._check_ready()
        protocol = self._connection._protocol
        executed = protocol.bind_execute(self._state, self._args, "", 0, True, timeout)
        fetched: list[asyncpg.Record]
        fetched, _, _ = await self._executed(executed)
        return fetched

    async def _executed(self, execution: Awaitable[T]) -> T:
        try:
            return await execution
        except asyncpg.InvalidCachedStatementError:
            await self._connection.reload_schema_state()
            raise
