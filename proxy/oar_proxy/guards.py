"""Names of statements and portals that stand for guards at the hub, inside one session.

What is remembered by name is never trusted on its own: SQL (``DEALLOCATE``, ``CLOSE``,
``ROLLBACK TO``) changes names behind the proxy's back. Every guard carries a number, and before
anything is executed in a guard's place the hub is asked which statement the portal really runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.federation import Parameter, Prepared
from oar_proxy.hublink import SessionLink
from oar_proxy.replies import Flow, Noted, Step
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, Kind
from oar_proxy.wire.messages import Bind

_STATEMENTS: Final = "SELECT s.name FROM pg_catalog.pg_prepared_statements s"

_PRUNE_AT: Final = 256
"""Remembered statements past which the hub is asked which of them still exist: drivers that
deallocate by SQL would make the memory grow with every statement they prepare."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A guard the hub holds: its text there, and what the hub said about it."""

    prepared: Prepared
    guard: bytes
    description: Step

    @property
    def parameter_oids(self) -> tuple[int, ...]:
        described = self.description.parameters
        return () if described is None else messages.decode_parameter_description(described)

    @property
    def gives_rows(self) -> bool:
        return self.description.rows is not None

    @property
    def columns(self) -> tuple[tuple[bytes, int], ...]:
        return columns(self.description)


@dataclass(slots=True)
class Portal:
    """A guard that was bound, with the values to run it with, and the answer it has begun to give.

    While an answer is given in chunks, they are bound to another portal, and the guard stays: a
    FETCH by SQL from this one must not take a chunk for all there is.
    """

    statement: Statement
    bind: Bind = field(repr=False)
    flow: Flow | None = None

    def parameters(self) -> list[Parameter]:
        return [
            Parameter(oid, code, value)
            for oid, code, value in zip(
                self.statement.parameter_oids,
                self.bind.value_formats(),
                self.bind.values,
                strict=True,
            )
        ]


def columns(described: Step) -> tuple[tuple[bytes, int], ...]:
    """Return name and type of the columns that a Describe was answered with."""
    rows = described.rows
    return () if rows is None else messages.decode_row_description(rows)


class Guards:
    """The names of one session; the `oar_proxy.wire.requests.Names` of it.

    ``may_be_statement`` and ``may_be_portal`` are names that have to be looked at more closely:
    supersets of what is ours, kept at the moment of sending, before the hub has answered.
    """

    def __init__(self, conversation: Conversation, suspects: Callable[[bytes], bool]) -> None:
        """Take ``suspects``, which tells of a text whether it may be a statement of ours."""
        self._conversation = conversation
        self._suspects = suspects
        self._statements: dict[bytes, Statement] = {}
        self._portals: dict[bytes, Portal] = {}
        self.may_be_statement: set[bytes] = set()
        self.may_be_portal: set[bytes] = set()
        self._left: list[bytes] = []
        self._closing: set[asyncio.Task[None]] = set()

    # --- what the client sends -----------------------------------------------------------------

    def suspect(self, text: bytes) -> bool:
        """Tell whether a query string has to be looked at; the hub discards it when skipping."""
        return not self._conversation.skipping and self._suspects(text)

    def other_parse(self, name: bytes) -> Expected:
        """A statement that is not ours takes a name that may be."""
        if not name:  # Parse destroys the unnamed statement even when it fails
            self.may_be_statement.discard(name)
        return Noted(Kind.PARSE, lambda: self.forget(name))

    def parse(self, name: bytes, statement: Statement, shift: int | None) -> Expected:
        """A guard takes a name. For ``shift`` see `oar_proxy.replies.Settling`."""
        self.may_be_statement.add(name)

        def note() -> None:
            self._statements[name] = statement

        return Noted(Kind.PARSE, note, shift=shift)

    def bind(self, raw: bytes, portal: bytes, name: bytes) -> Expected:
        """The client binds a statement that may be ours, or to a portal that may be."""
        if name in self.may_be_statement:
            self.may_be_portal.add(portal)
        else:
            self.may_be_portal.discard(portal)

        def note() -> None:
            self.forget_portal(portal)
            if (statement := self._statements.get(name)) is not None:
                self._portals[portal] = Portal(statement, messages.decode_bind(raw))

        return Noted(Kind.BIND, note)

    def close(self, kind: int, name: bytes) -> Expected:
        """The client closes a name that may be ours."""
        if kind == ord("S"):
            return Noted(Kind.CLOSE, lambda: self.forget(name))
        return Noted(Kind.CLOSE, lambda: self.forget_portal(name))

    # --- what is remembered ----------------------------------------------------------------------

    def portal(self, name: bytes, text: bytes | None) -> Portal | None:
        """Return the guard of that name, if it is what the hub says the portal runs."""
        portal = self._portals.get(name)
        return portal if portal is not None and portal.statement.guard == text else None

    def forget(self, name: bytes) -> None:
        """The statement of that name is no guard any more."""
        self._statements.pop(name, None)

    def forget_portal(self, name: bytes) -> None:
        """The portal of that name is no guard any more; what it still gave stops."""
        portal = self._portals.pop(name, None)
        if portal is not None and portal.flow is not None:
            self._left.append(portal.flow.portal)
            closing = asyncio.create_task(portal.flow.stack.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def replace_portal(self, name: bytes) -> None:
        """What answers takes the guard's place in the portal of that name."""
        self.forget_portal(name)
        self.may_be_portal.discard(name)

    def take_left(self) -> bytes | None:
        """Return a portal that chunks were bound to and are no more, for others; None: none is."""
        return self._left.pop() if self._left else None

    def ready(self) -> None:
        """The hub is ready for the next statement: portals end with their transaction."""
        if not (self.may_be_statement or self.may_be_portal or self._portals):
            return
        if self._conversation.status == ord("I"):
            self._forget_portals()
        if self._conversation.idle:
            self.may_be_portal = set(self._portals)
            self.may_be_statement = set(self._statements)

    def _forget_portals(self) -> None:
        for name in tuple(self._portals):
            self.forget_portal(name)

    async def prune(self, link: SessionLink) -> None:
        """Forget statements that the hub does not have any more, where there are many."""
        if len(self._statements) <= _PRUNE_AT:
            return
        alive = {row[0] for row in await link.query(_STATEMENTS)} | {b""}
        self._statements = {n: s for n, s in self._statements.items() if n in alive}

    async def stop(self) -> None:
        """Stop what owners still send for portals that are suspended."""
        self._forget_portals()
        await self.stopped()

    async def stopped(self) -> None:
        """Wait until owners send nothing any more for portals that were closed."""
        if self._closing:
            await asyncio.wait(self._closing)
