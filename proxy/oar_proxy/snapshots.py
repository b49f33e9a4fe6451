"""Snapshots at owners: one for a statement, and the faults in our terms."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import psycopg.errors
from oar_adapters.interface import Adapter, OwnerError, OwnerErrorKind, Snapshot

from oar_proxy.decision import Decisions
from oar_proxy.errors import (
    OarError,
    OwnerDataException,
    OwnerFault,
    OwnerSchemaChanged,
    OwnerUnreachable,
    OwnerWrongValue,
    QueryCanceled,
)

_DATA_EXCEPTION: Final = "22"
"""The class of SQLSTATEs that are about values."""


class Snapshots:
    """One snapshot an owner for the statement, opened when needed, used by one step a time."""

    def __init__(
        self,
        stack: AsyncExitStack,
        adapters: Mapping[str, Adapter],
        decisions: Decisions,
        timeout: float,
    ) -> None:
        self._stack = stack
        self._adapters = adapters
        self._decisions = decisions
        self._timeout = timeout
        self._locks: dict[str, asyncio.Lock] = {}
        self._open: dict[str, Snapshot] = {}

    def lasts(self, owner: str) -> bool:
        """Tell whether a snapshot may be opened any time before it is needed.

        Where an owner's own limit is shorter than the statement's, that would pass meanwhile.
        """
        return self._seconds(owner) >= self._timeout

    def _seconds(self, owner: str) -> float:
        return min(self._timeout, self._decisions.timeout(owner))

    async def warm(self, owner: str) -> None:
        """Open the snapshot while the ledger is being written; a failure shows at first use."""
        with contextlib.suppress(OwnerError):
            async with self.use(owner):
                pass

    @asynccontextmanager
    async def use(self, owner: str) -> AsyncIterator[Snapshot]:
        """Take a turn at the owner's snapshot. Raises ``OwnerError`` when it does not open."""
        async with self._locks.setdefault(owner, asyncio.Lock()):
            if owner not in self._open:
                self._open[owner] = await self._stack.enter_async_context(
                    self._adapters[owner].snapshot(self._seconds(owner))
                )
            yield self._open[owner]


def owner_fault(owner: str, error: OwnerError) -> OarError:
    """Translate what an adapter reports; the owner's own words never pass."""
    state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
    if error.kind is OwnerErrorKind.UNREACHABLE:
        return OwnerUnreachable(
            f"owner {owner} cannot be reached",
            hint=f"try again later, or ask those who run {owner}",
        )
    if error.kind is OwnerErrorKind.TIMEOUT:
        return QueryCanceled(
            f"canceling statement: owner {owner} did not answer in time",
            detail=f"limit: timeout of owner {owner} or of the statement",
            hint="ask for less, or raise statement_timeout",
        )
    if error.kind is OwnerErrorKind.WRONG_VALUE:
        return OwnerWrongValue(f"owner {owner}: {error.what}")
    if error.kind is OwnerErrorKind.SCHEMA_CHANGED:
        return OwnerSchemaChanged(
            f"owner {owner} changed its schema: {error.what}",
            hint="retry: the catalog follows shortly",
        )
    if error.sqlstate is not None and error.sqlstate.startswith(_DATA_EXCEPTION):
        return OwnerDataException(f"{_condition(error.sqlstate)} at owner {owner}", error.sqlstate)
    return OwnerFault(f"owner {owner} refused a query{state}")


def _condition(sqlstate: str) -> str:
    """The name of a SQLSTATE in words: its owner's own message may quote a value."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "data exception"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
