"""The proxy's own requests on a client's hub connection, in order with the client's.

All of them are extended-query messages under names no client uses, closed again at once, and
never followed by a Sync: that would commit what the client has under way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from oar_adapters.encodings import UTF8
from oar_adapters.interface import Cell

from oar_proxy.federation import HubRejected, Parameter
from oar_proxy.hub.sentinel import WAIT
from oar_proxy.moment import Moment, TransactionMoment
from oar_proxy.sessionstate import SESSION_STATE, SessionState
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, Kind

SENT_AT_ONCE: Final = 64 * 1024
"""Bytes of a message that are written before it is asked whether the hub keeps up."""

TEXT_OID: Final = 25
_INT8_OID: Final = 20
_BYTEA_OID: Final = 17

_ENCODING: Final = "'client_encoding'"

_IN_UTF8: Final = (
    f"SELECT pg_catalog.current_setting({_ENCODING}),"
    f" pg_catalog.set_config({_ENCODING}, '{UTF8}', true)"
)
"""For the transaction: whatever ends or fails that makes the client's encoding hold again."""

_PORTAL: Final = (
    f"SELECT c.statement, {SESSION_STATE}"
    " FROM pg_catalog.pg_cursors c WHERE c.name OPERATOR(pg_catalog.=) $1"
)


class HubChannel:
    """Where requests to the hub are written and what the client is told, with their order.

    ``hub_room`` waits until the hub has read most of what was written. ``unsettled`` is what still
    runs for statements that the client was answered; ``on_settled`` is called when that is over.
    ``question_name`` and ``statement_name`` name statement and portal of the proxy's questions, and
    of what it executes on the client's behalf. ``moment`` is what its transaction reads.
    """

    def __init__(
        self,
        conversation: Conversation,
        to_hub: Callable[[Sequence[bytes]], None],
        to_client: Callable[[Sequence[bytes]], None],
        hub_room: Callable[[], Awaitable[object]],
        on_settled: Callable[[], None],
    ) -> None:
        self.conversation = conversation
        self._on_settled = on_settled
        self.unsettled: set[asyncio.Task[None]] = set()
        self._hub_room = hub_room
        self._to_hub = to_hub
        self._to_client = to_client
        self._unsent: list[bytes] = []
        self._wanted: asyncio.Event | None = None
        # Differs from session to session: the hub may be reached through another proxy.
        private = f"oar:{secrets.token_hex(4)}:".encode()
        self.question_name = private + b"question"
        self.statement_name = private + b"statement"
        self.moment = TransactionMoment()
        self._clients: tuple[str, int] | None = None

    @property
    def client_encoding(self) -> str | None:
        """The client's encoding while the hub takes and gives UTF-8 instead; None: it does not."""
        if self._clients is None or self._clients[1] != self.conversation.failures:
            return None  # what fails undoes what was set
        return self._clients[0]

    async def speak_utf8(self) -> None:
        """Have the hub take and give UTF-8 until :meth:`speak_as_client`.

        Which encoding the client has by now is asked: the hub reports it only when all that it
        was sent is done. Raises :class:`HubRejected`.
        """
        if self.conversation.speaks_utf8 or self.client_encoding is not None:
            return
        exchange = self._ask(_IN_UTF8)
        self.flush()
        await exchange.answered
        encoding = exchange.rows[0][0]
        assert encoding is not None
        self._clients = (encoding.decode(), self.conversation.failures)

    def speak_as_client(self) -> None:
        """Have the hub take and give what the client does: what it sends and gets comes next."""
        encoding = self.client_encoding
        if encoding is not None:
            self.set_local("client_encoding", encoding)
        self._clients = None

    def set_local(self, name: str, value: str) -> None:
        """Set a parameter from here on, to the end of the client's transaction at most."""
        if not self.conversation.skipping:
            self._ask(f"SELECT pg_catalog.set_config('{name}', '{value}', true)")

    def transaction_over(self) -> None:
        """Forget what was true of the client's transaction, and is no more."""
        self._clients = None
        self.moment.end()

    def _ask(self, sql: str) -> _Exchange:
        exchange, name = _Exchange(None, ours=True), self.question_name
        if self.conversation.skipping:
            raise HubRejected(b"")
        for kind, parts in (
            (Kind.CLOSE, (messages.encode_close(b"S", name),)),
            (Kind.PARSE, (messages.encode_parse(name, sql.encode()),)),
            (Kind.BIND, messages.encode_bind(name, name)),
            (Kind.EXECUTE, (messages.encode_execute(name),)),
            (Kind.CLOSE, (messages.encode_close(b"P", name),)),
        ):
            self.request(_Question(kind, exchange), *parts)
        last = _Question(Kind.CLOSE, exchange, last=True)
        self.request(last, messages.encode_close(b"S", name))
        return exchange

    def request(self, expected: Expected, *parts: bytes) -> None:
        """Send one message that the hub answers, together with others of this moment."""
        if self._wanted is not None:
            self._wanted.set()
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.send)
        self._unsent += parts
        expected.utf8 = self.client_encoding is not None
        self.conversation.sent(expected)

    async def request_large(self, expected: Expected, parts: Iterable[bytes]) -> None:
        """Send one message, which may be large, as fast as the hub reads it.

        Parts are taken when there is room for them, so that few of them wait in memory. Whoever is
        cancelled meanwhile leaves the rest to be sent: the hub would take what comes next for it.
        """
        self.request(expected)
        size = 0
        rest = iter(parts)
        try:
            for part in rest:
                self._unsent.append(part)
                size += len(part)
                if size >= SENT_AT_ONCE:
                    size = 0
                    self.send()
                    await self._hub_room()
        finally:
            self._unsent += rest
            asyncio.get_running_loop().call_soon(self.send)

    async def wait_at(
        self,
        key: int,
        over: asyncio.Event,
        unlock: Callable[[int], Awaitable[None]],
        hears: asyncio.Event,
    ) -> None:
        """Have the session wait for a lock that the proxy holds, until ``over`` is set.

        Or until anything is requested of the hub. Raises :class:`HubRejected` when the session
        was told to stop meanwhile. The lock is let go of on every path. ``hears`` is set for as
        long as it can be told to.
        """
        waiting = _Exchange(None, ours=True)
        name, parameters = self.question_name, [Parameter(_INT8_OID, 0, b"%d" % key)]
        for kind, parts in (
            (Kind.CLOSE, (messages.encode_close(b"S", name),)),
            (Kind.PARSE, (messages.encode_parse(name, WAIT.encode(), [_INT8_OID]),)),
            (Kind.BIND, messages.encode_bind(name, name, parameters)),
        ):
            self.request(_Aside(kind, waiting), *parts)
        self.request(_AtLock(waiting, hears), messages.encode_execute(name))
        self.request(_Aside(Kind.CLOSE, waiting), messages.encode_close(b"P", name))
        self.request(_Aside(Kind.CLOSE, waiting, last=True), messages.encode_close(b"S", name))
        self.flush()
        self._wanted = asyncio.Event()
        until: set[asyncio.Future[Any]] = {waiting.answered}
        until.update(asyncio.ensure_future(event.wait()) for event in (over, self._wanted))
        try:
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._wanted = None
            hears.clear()
            for each in until - {waiting.answered}:
                each.cancel()
            await unlock(key)
        await waiting.answered

    def hold(self, task: asyncio.Task[None]) -> None:
        """Have the client's next statement wait for a task."""
        self.unsettled.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self.unsettled.discard(task)
        if not self.unsettled:
            self._on_settled()

    def flush(self) -> None:
        """Make the hub send what it has answered so far.

        A Sync does too, and nothing may stand behind it: the hub's timers of sessions that are
        idle run from ReadyForQuery to the next message, whatever that is.
        """
        if self.conversation.open_pipeline:
            self._unsent.append(messages.FLUSH)
        self.send()

    def send(self, parts: Sequence[bytes] = ()) -> None:
        """Write what was requested, and parts behind it: one write, since each wakes the hub."""
        if self._unsent:
            parts, self._unsent = [*self._unsent, *parts], []
        if parts:
            self._to_hub(parts)

    def tell(self, message: bytes) -> None:
        """Give the client a message of ours, after the answers to all that was sent before."""
        if now := self.conversation.interject(message):
            self._to_client((now,))


SUCCEEDED: Final = "00000"
"""What a settled request yields when nothing went wrong, otherwise the error's SQLSTATE."""


def _is_plain(parameter: Parameter) -> bool:
    """Tell whether a parameter is the same in every encoding."""
    return not isinstance(parameter.cell, bytes) or parameter.cell.isascii()


def _seen(answered: asyncio.Future[None]) -> None:
    """Take note of a failure that nobody waits for any more."""
    if not answered.cancelled():
        answered.exception()


class _Exchange:
    """One question of the proxy: several requests that stand or fall together.

    ``shift`` is for positions in the client's own text. ``ours``: the text is the proxy's, of which
    the client is to see no context.
    """

    def __init__(self, shift: int | None, *, ours: bool = False) -> None:
        self.rows: list[tuple[Cell, ...]] = []
        self.parameter_oids: tuple[int, ...] = ()
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered.add_done_callback(_seen)
        self._shift = shift
        self._ours = ours

    def reject(self, response: bytes) -> None:
        if not self.answered.done():
            if response:
                response = messages.with_position(response, self._shift)
                if self._ours:
                    response = messages.without_context(response)
            self.answered.set_exception(HubRejected(response))

    def finish(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


class _Question(Expected):
    """One request of an exchange: the client sees nothing of it, not even its failure."""

    __slots__ = ("_exchange", "_last")
    passes = False

    def __init__(self, kind: Kind, exchange: _Exchange, *, last: bool = False) -> None:
        super().__init__(kind)
        self._exchange = exchange
        self._last = last

    def message(self, code: int, message: bytes) -> bytes | None:
        match chr(code):
            case "D":
                self._exchange.rows.append(messages.decode_data_row(message))
            case "t":
                self._exchange.parameter_oids = messages.decode_parameter_description(message)
        return None

    def done(self, message: bytes) -> None:  # noqa: ARG002
        if self._last:
            self._exchange.finish()

    def failed(self, response: bytes) -> bytes | None:
        self._exchange.reject(response)
        return None

    def skipped(self) -> bytes | None:
        self._exchange.reject(b"")
        return None


class _Aside(_Question):
    """A request that the client's notices do not wait for."""

    __slots__ = ()
    aside = True


class _AtLock(_Aside):
    """The wait itself. It gives notice when it begins, and from then on is told what is told."""

    __slots__ = ("_hears",)

    def __init__(self, exchange: _Exchange, hears: asyncio.Event) -> None:
        super().__init__(Kind.EXECUTE, exchange)
        self._hears = hears

    def notice(self, notice: bytes) -> bytes | None:  # noqa: ARG002
        self._hears.set()
        return None


class SessionLink:
    """The :class:`~oar_proxy.federation.HubLink` of one statement.

    ``text`` is the client's statement; ``shift`` is where it stands in what the client sent, in
    characters. An error about exactly that text keeps its position.
    """

    def __init__(self, channel: HubChannel, text: str = "", shift: int = 0) -> None:
        self._channel = channel
        self._name = channel.question_name
        self._text = text
        self.shift = shift
        self._state: SessionState | None = None
        self.guard: asyncio.Future[str] | None = None
        """The outcome of what stands in the statement's place, where that is still to come."""

    async def query(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[tuple[Cell, ...]]:
        """Run one statement in the client's session; the rows come as text cells."""
        await self._channel.speak_utf8()
        exchange = _Exchange(None, ours=True)
        self._parse(exchange, sql, [parameter.oid for parameter in parameters])
        bind = messages.encode_bind(self._name, self._name, parameters)
        await self._channel.request_large(_Question(Kind.BIND, exchange), bind)
        self._ask(exchange, Kind.EXECUTE, messages.encode_execute(self._name))
        self._close(exchange)
        await self._answer(exchange)
        return exchange.rows

    async def state(self) -> SessionState:
        """Return the session's state. See :class:`~oar_proxy.federation.HubLink`."""
        if self._state is None:
            ((cell,),) = await self.query(f"SELECT {SESSION_STATE}")
            return self.learn(cell)
        return self._state

    def learn(self, cell: Cell) -> SessionState:
        """Take in a state that was asked for along with something else."""
        self._state = SessionState.read(cell)
        return self._state

    async def portal_statement(self, portal: bytes) -> Cell:
        """Return the text a portal runs, None when there is none; and learn the session's state."""
        found = await self.query(_PORTAL, (Parameter(TEXT_OID, 0, portal),))
        if not found:
            return None
        ((text, state),) = found
        self.learn(state)
        return text

    async def decoded(self, text: bytes) -> str:
        """Read a text of the client's, in whatever encoding that has."""
        await self._channel.speak_utf8()
        encoding = self._channel.client_encoding or UTF8
        given = Parameter(_BYTEA_OID, 1, text)
        ((cell,),) = await self.query(f"SELECT pg_catalog.convert_from($1, '{encoding}')", (given,))
        assert cell is not None
        return cell.decode()

    async def in_utf8(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Have the hub put a client's parameters into UTF-8, where the client has another encoding.

        It reads them as the client means them, and writes them in the same formats.
        """
        channel = self._channel
        if channel.conversation.speaks_utf8 or all(map(_is_plain, parameters)):
            return list(parameters)
        channel.speak_as_client()
        exchange, name = _Exchange(None, ours=True), channel.statement_name
        listed = ", ".join(f"${number}" for number in range(1, len(parameters) + 1))
        parse = messages.encode_parse(
            name, f"SELECT {listed}".encode(), [p.oid for p in parameters]
        )
        bind = messages.encode_bind(name, name, parameters, [p.format for p in parameters])
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"S", name))
        self._ask(exchange, Kind.PARSE, parse)
        await channel.request_large(_Question(Kind.BIND, exchange), bind)
        await channel.speak_utf8()
        self._ask(exchange, Kind.EXECUTE, messages.encode_execute(name))
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"P", name))
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"S", name), last=True)
        await self._answer(exchange)
        return [
            given if _is_plain(given) else Parameter(given.oid, given.format, cell)
            for given, cell in zip(parameters, exchange.rows[0], strict=True)
        ]

    async def check(self, sql: str, parameter_oids: Sequence[int] = ()) -> tuple[int, ...]:
        """Parse and Bind without executing; returns the types of the parameters."""
        await self._channel.speak_utf8()
        exchange = self._exchange(sql)
        self._parse(exchange, sql, parameter_oids)
        oids: tuple[int, ...] = ()
        if "$" in sql or parameter_oids:
            # How many NULLs to bind is known once the hub has said how many parameters there are.
            self._ask(
                exchange,
                Kind.DESCRIBE_STATEMENT,
                messages.encode_describe(b"S", self._name),
                last=True,
            )
            await self._answer(exchange)
            oids = exchange.parameter_oids
            exchange = self._exchange(sql)
        nulls = [Parameter(oid, 0, None) for oid in oids]
        self._ask(exchange, Kind.BIND, *messages.encode_bind(self._name, self._name, nulls))
        self._close(exchange)
        await self._answer(exchange)
        return oids

    async def accepted(self) -> None:
        """Wait until the hub has accepted the guard. See :class:`~oar_proxy.federation.HubLink`."""
        if self.guard is not None and await self.guard != SUCCEEDED:
            raise HubRejected(b"")

    def hold(self, task: asyncio.Task[None]) -> None:
        """Have the client's next statement wait for a task, which never fails."""
        self._channel.hold(task)

    def moment(self, state: SessionState, seconds: float) -> Moment | None:
        """Return what all statements of the transaction read, where it is one moment."""
        if state.transaction is None:
            return None
        return self._channel.moment.of(state.transaction, seconds)

    def notice(self, message: str, *, detail: str | None = None) -> None:
        """Send the client a NOTICE, after the answers to its earlier statements."""
        encoding = self._channel.conversation.client_encoding
        self._channel.tell(messages.notice_response(message, detail, encoding=encoding))

    def _exchange(self, sql: str) -> _Exchange:
        return _Exchange(self.shift if sql == self._text else None)

    def _parse(self, exchange: _Exchange, sql: str, oids: Sequence[int]) -> None:
        if self._channel.conversation.skipping:
            raise HubRejected(b"")
        # A failed exchange may have left its statement behind: close before as well as after.
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"S", self._name))
        self._ask(exchange, Kind.PARSE, messages.encode_parse(self._name, sql.encode(), oids))

    def _close(self, exchange: _Exchange) -> None:
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"P", self._name))
        self._ask(exchange, Kind.CLOSE, messages.encode_close(b"S", self._name), last=True)

    def _ask(self, exchange: _Exchange, kind: Kind, *parts: bytes, last: bool = False) -> None:
        self._channel.request(_Question(kind, exchange, last=last), *parts)

    async def _answer(self, exchange: _Exchange) -> None:
        self._channel.flush()
        await exchange.answered
