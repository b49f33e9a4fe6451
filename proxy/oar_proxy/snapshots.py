"""Snapshots at owners, as one statement uses them, and the faults in our terms."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
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
from oar_proxy.moment import Moment
from oar_proxy.slots import OwnerSlots

_OF_THE_STATEMENT: Final = ("0A", "21", "22", "23")
"""Classes of errors that a statement meets wherever it is evaluated: of what PostgreSQL does not
do (a date has no time zone to extract), of subqueries that give too many rows, of values that
cannot be computed with, and of those that are not of a view's domain."""


class Snapshots:
    """The snapshots that one statement reads, opened when needed, used by one step a time."""

    def __init__(
        self,
        moment: Moment,
        adapters: Mapping[str, Adapter],
        decisions: Decisions,
        timeout: float,
    ) -> None:
        self._moment = moment
        self._adapters = adapters
        self._decisions = decisions
        self._timeout = timeout

    def lasts(self, owner: str) -> bool:
        """Tell whether a snapshot may be opened any time before it is needed.

        Where an owner's own limit is shorter than the statement's, that would pass meanwhile.
        """
        return self._decisions.timeout(owner) >= self._timeout

    async def reserve(self, slots: OwnerSlots, owners: Collection[str]) -> None:
        """Hold a place at each owner. Raises ``OarError`` where its snapshot is not to be had."""
        self._moment.require(owners, self)
        await self._moment.reserve(slots, owners)

    async def warm(self, owner: str) -> None:
        """Open the snapshot while the ledger is being written; a failure shows at first use."""
        with contextlib.suppress(OwnerError):
            async with self.use(owner):
                pass

    @asynccontextmanager
    async def use(self, owner: str) -> AsyncIterator[Snapshot]:
        """Take a turn at the owner's snapshot. Raises ``OwnerError`` when it does not open."""
        seconds = min(self._moment.seconds, self._decisions.timeout(owner))
        open_ = partial(self._adapters[owner].snapshot, seconds)
        async with self._moment.use(owner, self, open_, seconds) as snapshot:
            yield snapshot

    def rest(self, owner: str) -> AbstractContextManager[None]:
        """Ask nothing of the owner for a while. See :meth:`Moment.rest`."""
        return self._moment.rest(owner)


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
        return OwnerWrongValue(
            f"owner {owner}: {error.what}",
            hint=f"leave that column out, or ask those who run {owner}: the value, or the type "
            "that the column is published as, has to be another one",
        )
    if error.kind is OwnerErrorKind.SCHEMA_CHANGED:
        return OwnerSchemaChanged(
            f"owner {owner} changed its schema: {error.what}",
            hint="retry: the catalog follows shortly",
        )
    if error.sqlstate is not None and error.sqlstate.startswith(_OF_THE_STATEMENT):
        return OwnerDataException(f"{_condition(error.sqlstate)} at owner {owner}", error.sqlstate)
    return OwnerFault(
        f"owner {owner} refused a query{state}",
        hint=f"try again; if it stays so, ask those who run {owner}: oar check may tell them why",
    )


def _condition(sqlstate: str) -> str:
    """The name of a SQLSTATE in words: its owner's own message may quote a value."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "data exception"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
