"""The seam between a client's session and everything that makes a statement ours.

The session speaks the protocol and owns the client's hub connection; what is behind this seam
understands statements, asks owners and says what the hub has to evaluate. Neither knows how the
other does it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from oar_adapters.interface import Cell

from oar_proxy.sessionstate import SessionState

if TYPE_CHECKING:
    import asyncio

    from oar_proxy.moment import Moment


class Pieces(Protocol):
    """A large cell in pieces, which can be taken once: whoever takes it has it, and nobody else."""

    size: int

    def take(self) -> Iterator[bytes]:
        """Give the pieces away, ``size`` bytes in all."""
        ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a Bind message: its type (0: not said), format (0 text, 1 binary), cell."""

    oid: int
    format: int
    cell: Cell | Pieces = field(repr=False)


# The hub may be reached through another proxy, which has portals in the same session.
_PORTALS: Final = f"oar:{secrets.token_hex(4)}:given"


def given(number: int) -> str:
    """Name the portal that gives a statement without parameters the one of that number."""
    return f"{_PORTALS}:{number}"


class HubReader(Protocol):
    """A hub session, for the proxy's questions about it.

    Nothing else runs in between, so what was asked through it stays true as long as it is used.
    """

    async def query(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[tuple[Cell, ...]]:
        """Run one statement in the client's session, in order with what the client sent before.

        Returns the rows as text cells. Raises :class:`HubRejected` when the hub reports an error
        (the session's transaction is then as the hub says) or skips to the client's next Sync.
        """
        ...

    async def state(self) -> SessionState:
        """Return the session's state, which is asked for once, at most. Raises as `query`."""
        ...

    def learn(self, cell: Cell) -> SessionState:
        """Take in what ``SESSION_STATE`` gave, where it was asked for along with something else."""
        ...


class HubLink(HubReader, Protocol):
    """The client's session. One link serves one statement of one client message."""

    async def check(self, sql: str, parameter_oids: Sequence[int] = ()) -> tuple[int, ...]:
        """Parse, Bind (all parameters NULL) and Close, without executing: names and privileges.

        Returns the parameter types the hub inferred. Raises :class:`HubRejected`.
        """
        ...

    async def accepted(self) -> None:
        """Wait until the hub has looked at what it parses in the statement's place.

        Raises :class:`HubRejected` where that failed: the client has the hub's error then.
        """
        ...

    def hold(self, task: asyncio.Task[None]) -> None:
        """Have the client's next statement wait for a task, which never fails.

        The client may be answered meanwhile, but then finds what the task does done: the outcome
        of one statement is on the ledger when the next one reads that.
        """
        ...

    def moment(self, state: SessionState, seconds: float) -> Moment | None:
        """Return what all statements of the client's transaction read, where it is one moment.

        It lasts ``seconds`` when it begins now. None at READ COMMITTED.
        """
        ...

    def notice(self, message: str, *, detail: str | None = None) -> None:
        """Send the client a NOTICE now."""
        ...


def tell(link: HubLink, state: SessionState, message: str, *, detail: str | None = None) -> None:
    """Send a NOTICE, unless the session asked for warnings only."""
    if state.settings.get("client_min_messages", "notice") not in ("warning", "error"):
        link.notice(message, detail=detail)


class HubRejected(Exception):
    """The hub reported an error for a question of the proxy's: it is the client's answer.

    ``response`` is the hub's ErrorResponse message as it came, empty when the hub was already
    skipping to the next Sync.
    """

    def __init__(self, response: bytes) -> None:
        super().__init__("the hub reported an error")
        self.response = response


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a query string. ``suspect``: it may be ours, ask `Federation.prepare`.

    ``at`` is where it begins in the string, in characters; ``fetches`` names the cursor that it
    fetches from, if it does. ``parameter`` is the first ``$n`` in it: n, and where it stands.
    ``ends``: it ends the transaction that it stands in.
    """

    text: str
    at: int
    suspect: bool
    fetches: str | None = None
    parameter: tuple[int, int] | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that is ours.

    ``guard_sql`` is what the hub parses in its place: same parameters, same columns, and it
    raises if it is ever executed. ``statement`` is opaque to the session. ``in_place``: what the
    guard has in common with the client's statement stands in the same places. ``in_block``: it
    is an error outside a transaction. ``note`` is a comment that is kept behind it.
    """

    guard_sql: str
    statement: object = field(repr=False)
    in_place: bool = False
    in_block: bool = False
    note: str = ""


class Chunks(Protocol):
    """The rest of an answer that comes in chunks; the owner sends while they are taken.

    ``copied``: they are executed as COPY statements, whose data are one COPY's for the client.
    """

    @property
    def copied(self) -> Copied | None: ...

    async def next(self) -> Execution | None:
        """Return what to execute next, None after the last chunk.

        Raises ``OarError``: the answer is not complete then, and never will be.
        """
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """What stands around the rows of each COPY: a line of names, or binary header and trailer."""

    header: bool
    binary: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """What the hub executes in place of the guard.

    ``sql`` takes the client's parameters first (as many as the guard has, when
    ``client_parameters``), then ``parameters``. Where it is a statement that takes none they are
    ``given``: each by the portal :func:`given`. With ``more`` these are its first rows only: the
    answer is what each execution gives, one after another. Parameters can be sent once.
    ``nested_loops``: the hub may plan them, as the session lets it. ``is_utility``: it is planned
    when it is executed, not when it is bound.
    """

    sql: str
    parameters: tuple[Parameter, ...] = ()
    client_parameters: bool = True
    given: tuple[Parameter, ...] = ()
    nested_loops: bool = True
    is_utility: bool = False
    more: Chunks | None = field(default=None, repr=False, compare=False)


class Federation(Protocol):
    """What a session asks about statements."""

    def suspect(self, text: bytes) -> bool:
        """Tell cheaply whether a query string may hold a statement of ours (false alarms only)."""
        ...

    def split(self, text: str) -> Sequence[Piece] | None:
        """Split a query string into statements; None when the hub has to judge it (syntax error).

        A string that is nothing but a comment ``/* oar: question */`` is one suspect piece.
        """
        ...

    async def prepare(self, text: str, link: HubLink) -> Prepared | None:
        """Decide whether a statement is ours; no owner is contacted. None: pass it through.

        Raises ``OarError`` or :class:`HubRejected`.
        """
        ...

    async def execute(
        self,
        prepared: Prepared,
        link: HubLink,
        parameters: Sequence[Parameter],
        stack: AsyncExitStack,
    ) -> Execution:
        """Ask the owners, under their policies, and return what the hub has to evaluate.

        What lasts longer than the call is left on ``stack``: memory until the hub has taken the
        rows, snapshots at owners, owners that still send. Closing it stops them. What is held at an
        owner may be let go of, and the outcome be written on the ledger, even later: see
        `HubLink.hold`. Cancelling the task stops every owner. Nothing is asked of an owner, and
        no error raised, before `HubLink.accepted`. Raises ``OarError`` or :class:`HubRejected`.
        """
        ...
