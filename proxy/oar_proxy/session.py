"""One client and its hub connection: bytes pass both ways, statements that are ours step aside.

Two :class:`asyncio.Protocol` objects share one :class:`Session`. What either side writes faster
than the other reads stops the reading, so a session holds a bounded number of bytes however slow
its client is. While a federated statement runs, what the client sends next waits here, up to
``READ_AHEAD``; reading goes on until then, because only reading shows that a client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from oar_proxy.errors import (
    HubConnectionLost,
    InternalError,
    OarError,
    ProtocolViolation,
    ShuttingDown,
)
from oar_proxy.federated import Federated
from oar_proxy.federation import Federation
from oar_proxy.hublink import HubChannel
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, HubConfused, Kind
from oar_proxy.wire.messages import HEADER

READ_AHEAD: Final = 1024 * 1024
"""Bytes of the client's that wait behind a federated statement before reading stops."""

WRITE_AHEAD: Final = 256 * 1024
"""Bytes that wait for a slow reader before the other side is not read any more."""

AUTHENTICATION_MESSAGE: Final = 64 * 1024
"""Bytes of the largest message before a client is known: PostgreSQL's
``PG_MAX_AUTH_TOKEN_LENGTH``."""

LINGER: Final = 5.0
"""Seconds a closing connection has to take its last bytes."""

_STARTUP = Expected(Kind.STARTUP)
_BIND = Expected(Kind.BIND)
_CLOSE = Expected(Kind.CLOSE)
_DESCRIBE_STATEMENT = Expected(Kind.DESCRIBE_STATEMENT)
_DESCRIBE_PORTAL = Expected(Kind.DESCRIBE_PORTAL)
_EXECUTE = Expected(Kind.EXECUTE)
_FUNCTION = Expected(Kind.FUNCTION)
_PARSE = Expected(Kind.PARSE)
_QUERY = Expected(Kind.QUERY)
_SYNC = Expected(Kind.SYNC)

_COPY_DATA: Final = ord("d")
_OF_STATEMENT: Final = ord("S")

_ANSWERED: Final = {ord("F"): _FUNCTION, ord("S"): _SYNC}
"""Messages passed on without a look, and what the hub owes for each."""

_PLAIN: Final = {**_ANSWERED, ord("B"): _BIND, ord("E"): _EXECUTE, ord("C"): _CLOSE}
"""The same, while the session holds no name that may be a federated statement's."""

_log = structlog.get_logger("oar.session")


class Session:
    """What passes between one client and the hub.

    ``authenticated`` is done once the hub has accepted the client; ``closed`` once both
    connections are gone. ``cancel_hub`` delivers a CancelRequest for the given process and
    secret to the hub, and returns when the hub has taken it. ``on_key`` learns those two.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        max_message: int,
        cancel_hub: Callable[[int, bytes], Coroutine[Any, Any, None]],
        on_key: Callable[[int, bytes], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.authenticated: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.conversation = Conversation(
            on_authentication=self._authentication,
            on_key=self._key,
            on_copy_in=self._copy_in,
            on_ready=self._ready,
        )
        self._hub_room = asyncio.Event()
        self._hub_room.set()
        self._channel = HubChannel(
            self.conversation,
            self._write_to_hub,
            self._to_client,
            self._hub_room.wait,
            self._settled,
        )
        self._federated = Federated(federation, self._channel)
        self._limits = [AUTHENTICATION_MESSAGE if code == ord("p") else 0 for code in range(256)]
        self._max_message = max_message
        self._cancel_hub = cancel_hub
        self._on_key = on_key
        self._client: asyncio.Transport | None = None
        self._hub: asyncio.Transport | None = None
        self._pid = 0
        self._secret = b""
        self._pending = bytearray()
        self._needed = 0
        self._rest = 0
        self._task: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._holds = 0
        self._ending = False
        self._terminating = False
        self._draining = False
        self._not_reading_client: set[str] = set()

    # --- life -----------------------------------------------------------------------------------

    def attach(self, client: asyncio.Transport, hub: asyncio.Transport, startup: bytes) -> None:
        """Begin: both connections are open, and the hub gets the client's startup packet."""
        self._client, self._hub = client, hub
        for transport in (client, hub):
            transport.set_write_buffer_limits(high=WRITE_AHEAD)
        hub.write(startup)
        self.conversation.sent(_STARTUP)

    @property
    def busy(self) -> bool:
        """Something of the client's is under way or waits."""
        return bool(self._task or self._pending or not self.conversation.idle)

    def fail(self, error: OarError) -> None:
        """Tell the client a fatal error and end both connections."""
        if not self._ending and self._client is not None and not self.conversation.fatal:
            self._client.write(messages.error_response(error, "FATAL"))
        self._end()

    def drain(self) -> None:
        """End as soon as nothing is under way."""
        self._draining = True
        if not self.busy:
            self.fail(_shutting_down())

    def cut(self) -> None:
        """End now, and stop what the hub and the owners are doing for the client."""
        self._abandon()
        self.fail(_shutting_down())

    async def finished(self) -> None:
        """Wait until both connections are closed and nothing runs for them."""
        await self.closed
        running = {task for task in (self._task, self._farewell) if task is not None}
        if running:
            await asyncio.wait(running)
        await self._federated.stop()

    def client_lost(self) -> None:
        """The client has gone: nothing is computed for it any more."""
        self._client = None
        self._abandon()
        self._end()

    def hub_lost(self) -> None:
        """The hub has closed the connection, or it broke."""
        self._hub = None
        self._hub_room.set()  # what is still to be written to it goes nowhere
        self.conversation.abandon()
        if self._terminating:
            self._end()
        else:
            self.fail(
                HubConnectionLost("connection lost: the hub has closed it", hint="connect again")
            )

    def _abandon(self) -> None:
        """Make the hub stop: it would notice a lost client only when it writes to it."""
        if self._hub is not None and not self._ending and not self.conversation.idle:
            self._farewell = asyncio.create_task(self._cancel_hub(self._pid, self._secret))

    def _end(self) -> None:
        """Close both connections; what was written before still leaves."""
        if not self._ending:
            self._ending = True
            if self._task is not None:
                self._task.cancel()
            if self._hub is not None and not self._rest:
                self._hub.write(messages.TERMINATE)
            loop = asyncio.get_running_loop()
            for transport in (self._client, self._hub):
                if transport is not None:
                    transport.close()
                    loop.call_later(LINGER, transport.abort)
        if self._client is None and self._hub is None and not self.closed.done():
            self.closed.set_result(None)

    # --- from the client --------------------------------------------------------------------------

    def client_sent(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._ending or self._terminating:
            return
        if self._rest:
            part = data[: self._rest]
            self._rest -= len(part)
            self._to_hub((part,))
            data = data[len(part) :]
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return
            data = bytes(self._pending)
            self._pending.clear()
        self._process(data)

    def _resume(self) -> None:
        """Go on with what the client sent while it had to wait."""
        if self._ending:
            return
        if self._pending:
            data = bytes(self._pending)
            self._pending.clear()
            self._process(data)
        if self._draining and not self.busy:
            self.fail(_shutting_down())

    def _process(self, data: bytes) -> None:
        """Look at each whole message; pass on runs of them as they are, with one write."""
        start = at = 0
        needed = HEADER.size
        last_header = len(data) - HEADER.size
        sent = self.conversation.sent
        plain = _ANSWERED if self._federated.watching else _PLAIN
        unsettled = self._channel.unsettled
        while at <= last_header:
            code, length = HEADER.unpack_from(data, at)
            if not 4 <= length <= self._limits[code]:
                self.fail(self._violation(code))
                return
            if (self._task or self._holds or self._terminating or unsettled) and self._waits(code):
                break
            after = at + 1 + length
            if after > len(data):
                needed = after - at
                if code == _COPY_DATA and self._task is None:
                    # Rows need no look and so no buffer. Not in a batch: what it sends next must
                    # not come between the two halves.
                    self._rest = after - len(data)
                    at = len(data)
                break
            expected = plain.get(code)
            if expected is not None:
                sent(expected)
            elif not self._passes(code, data, at, after):
                self._to_hub((data[start:at],))
                start = after
            at = after
        if start < at:
            self._to_hub((data if start == 0 and at == len(data) else data[start:at],))
        self._pending += data[at:]
        self._needed = needed
        if self._not_reading_client or self._pending:
            self._limit_read_ahead()

    def _violation(self, code: int) -> ProtocolViolation:
        if self._limits[code]:
            return ProtocolViolation("invalid message length")
        if not self.authenticated.done():
            return ProtocolViolation(f"expected password response, got message type {code}")
        return ProtocolViolation(f"invalid frontend message type {code}")

    def _waits(self, code: int) -> bool:
        """Tell whether a message has to wait for a federated statement or a cancellation."""
        if not (self._task or self._holds or self._terminating):
            return code not in _ENDING
        # A batch with a COPY in it waits for the rows, and for nothing else.
        return not (self._task is not None and self.conversation.copying and code in _COPYING)

    def _limit_read_ahead(self) -> None:
        """Stop reading when enough whole messages wait; the rest of a message is always read."""
        waits = bool(self._task or self._holds or self._channel.unsettled)
        whole = len(self._pending) >= self._needed
        self._read_client("read ahead", waits and whole and len(self._pending) > READ_AHEAD)

    def _passes(self, code: int, data: bytes, at: int, after: int) -> bool:
        """Note what a message makes the hub answer. False: it is not passed on as it is."""
        look = _LOOK.get(code)
        if look is not None:
            return look(self, data, at, after)
        match chr(code):
            case "c" | "f":
                self.conversation.sent_copy_end()
                if self._task is not None:
                    # A batch awaits the answer, and the hub ignored its Flush while copying.
                    asyncio.get_running_loop().call_soon(self._to_hub, (messages.FLUSH,))
            case "X":
                self._terminating = True
        return True

    def _query(self, data: bytes, at: int, after: int) -> bool:
        text = data[at + HEADER.size : after - 1]
        if self._federated.suspect(text):
            return self._step_aside(self._federated.query(data[at:after], text))
        self.conversation.sent(_QUERY)
        return True

    def _parse(self, data: bytes, at: int, after: int) -> bool:
        expected = _PARSE
        if self._federated.may_be_statement or self._federated.suspect(data[at:after]):
            try:
                parse = messages.decode_parse(data[at:after])
            except ProtocolViolation:
                pass  # the hub says what is wrong with it
            else:
                if self._federated.suspect(parse.query):
                    return self._step_aside(self._federated.parse(data[at:after], parse))
                if parse.name in self._federated.may_be_statement:
                    expected = self._federated.other_parse(parse.name)
        self.conversation.sent(expected)
        return True

    def _bind(self, data: bytes, at: int, after: int) -> bool:
        raw = data[at:after]
        expected = _BIND
        try:
            portal, statement = messages.bind_names(raw)
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            ours = self._federated
            if statement in ours.may_be_statement or portal in ours.may_be_portal:
                expected = ours.bind(raw, portal, statement)
        self.conversation.sent(expected)
        return True

    def _execute(self, data: bytes, at: int, after: int) -> bool:
        raw = data[at:after]
        try:
            portal, _ = messages.decode_execute(raw)
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            if portal in self._federated.may_be_portal and not self.conversation.skipping:
                return self._step_aside(self._federated.execute(raw, portal))
        self.conversation.sent(_EXECUTE)
        return True

    def _describe(self, data: bytes, at: int, after: int) -> bool:  # noqa: ARG002
        statement = data[at + HEADER.size] == _OF_STATEMENT
        self.conversation.sent(_DESCRIBE_STATEMENT if statement else _DESCRIBE_PORTAL)
        return True

    def _close(self, data: bytes, at: int, after: int) -> bool:
        expected = _CLOSE
        try:
            kind, name = messages.decode_target(data[at:after])
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            expected = self._federated.close(kind, name)
        self.conversation.sent(expected)
        return True

    def _step_aside(self, work: Coroutine[Any, Any, None]) -> bool:
        """Let a federated statement run; what the client sends next waits until it is done."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._statement_done)
        return False

    def _statement_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("session failed", error=type(error).__name__, pid=self._pid, exc_info=error)
            self.fail(InternalError("internal error: the connection is closed"))
        else:
            self._resume()

    # --- from the hub ---------------------------------------------------------------------------

    def hub_sent(self, data: bytes) -> None:
        """Take bytes from the hub."""
        try:
            given = self.conversation.receive(data)
        except (HubConfused, ProtocolViolation) as error:
            _log.error("the hub's messages are not understood", reason=error.message, pid=self._pid)
            self.fail(InternalError("internal error: the hub's answer was not understood"))
            return
        if given:
            self._to_client(*given)

    def _authentication(self, message: bytes) -> bytes:
        kind = messages.decode_authentication(message)
        if kind == messages.AUTHENTICATION_OK and not self.authenticated.done():
            self.authenticated.set_result(None)
            self._limits = _limits(self._max_message)
        if kind == messages.AUTHENTICATION_SASL:
            return messages.without_channel_binding(message)
        return message

    def _copy_in(self) -> None:
        asyncio.get_running_loop().call_soon(self._resume)

    def _key(self, message: bytes) -> None:
        self._pid, self._secret = messages.decode_backend_key(message)
        self._federated.activity.pid = self._pid
        self._on_key(self._pid, self._secret)

    def _ready(self) -> None:
        self._federated.ready()
        if self._draining and not self.busy:
            asyncio.get_running_loop().call_soon(self.fail, _shutting_down())

    # --- cancellation ---------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Do what a CancelRequest asks for; returns when it can no longer hit a later statement.

        What the client sends meanwhile waits, so that the hub's signal finds the statement it
        was meant for, or nothing.
        """
        if self._ending or self._federated.activity.cancel() or self.conversation.idle:
            return
        self._holds += 1
        try:
            await self._cancel_hub(self._pid, self._secret)
        finally:
            self._holds -= 1
            self._settled()

    def _settled(self) -> None:
        """Something that the client's messages waited for is over."""
        if not self._holds and self._task is None:
            self._resume()

    # --- writing and the pace of it --------------------------------------------------------------

    def _to_hub(self, parts: Sequence[bytes]) -> None:
        """Pass on what the client sent, behind what was requested of the hub before."""
        self._channel.send()
        self._write_to_hub(parts)

    def _write_to_hub(self, parts: Sequence[bytes]) -> None:
        if self._hub is not None and not self._ending:
            _write(self._hub, parts)

    def _to_client(self, *parts: bytes) -> None:
        if self._client is not None and not self._ending:
            _write(self._client, parts)

    def client_writable(self, writable: bool) -> None:
        """The client reads again, or has stopped reading: so do or do not we from the hub."""
        if self._hub is not None and not self._hub.is_closing():
            if writable:
                self._hub.resume_reading()
            else:
                self._hub.pause_reading()

    def hub_writable(self, writable: bool) -> None:
        """The hub reads again, or has stopped reading."""
        self._read_client("hub is slow", not writable)
        (self._hub_room.set if writable else self._hub_room.clear)()

    def _read_client(self, reason: str, stop: bool) -> None:
        """Stop reading from the client for a reason, or drop that reason."""
        before = bool(self._not_reading_client)
        (self._not_reading_client.add if stop else self._not_reading_client.discard)(reason)
        after = bool(self._not_reading_client)
        if before != after and self._client is not None and not self._client.is_closing():
            if after:
                self._client.pause_reading()
            else:
                self._client.resume_reading()


_ENDING: Final = b"SHX"
"""What ends a statement, or the session, and begins nothing."""

_COPYING: Final = b"dcf"
"""What the hub reads while rows are copied in."""

_LOOK: Final[dict[int, Callable[[Session, bytes, int, int], bool]]] = {
    ord("Q"): Session._query,
    ord("P"): Session._parse,
    ord("B"): Session._bind,
    ord("E"): Session._execute,
    ord("D"): Session._describe,
    ord("C"): Session._close,
}


def _limits(max_message: int) -> list[int]:
    """Return the greatest length of each message type, 0 for what clients do not send."""
    limits = [0] * 256
    for code in messages.SMALL_CLIENT_MESSAGES:
        limits[code] = messages.SMALL_MESSAGE
    for code in messages.LARGE_CLIENT_MESSAGES:
        limits[code] = max_message
    return limits


def _write(transport: asyncio.Transport, parts: Sequence[bytes]) -> None:
    """Write with one system call, if that takes it all."""
    if len(parts) == 1:
        transport.write(parts[0])
    else:
        transport.writelines(parts)


class HubSide(asyncio.Protocol):
    """The hub's end of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: bytes) -> None:
        self._session.hub_sent(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._session.hub_lost()

    def pause_writing(self) -> None:
        self._session.hub_writable(False)

    def resume_writing(self) -> None:
        self._session.hub_writable(True)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("terminating connection due to administrator command")
