"""One client and its hub connection: bytes pass both ways, statements that are ours step aside.

Two :class:`asyncio.Protocol` objects share one :class:`Session`. What either side writes faster
than the other reads stops the reading, so a session holds a bounded number of bytes however slow
its client is. While a federated statement runs, what the client sends next waits, up to
``READ_AHEAD``; reading goes on until then, because only reading shows that a client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from oar_proxy.errors import HubConnectionLost, InternalError, OarError, ShuttingDown
from oar_proxy.federated import Federated
from oar_proxy.federation import Federation
from oar_proxy.guards import Guards
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.hublink import HubChannel
from oar_proxy.log import raised_at
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, Kind
from oar_proxy.wire.requests import Own, OwnExecute, OwnParse, OwnProof, OwnQuery, Requests
from oar_proxy.wire.scram import Authentication, Keys

WRITE_AHEAD: Final = 256 * 1024
"""Bytes that wait for a slow reader before the other side is not read any more."""

LINGER: Final = 5.0
"""Seconds a closing connection has to take its last bytes."""

_STARTUP: Final = Expected(Kind.STARTUP)

_log = structlog.get_logger("oar.session")


class Session:
    """What passes between one client and the hub.

    ``authenticated`` is done once the hub has accepted the client; ``closed`` once both
    connections are gone. ``keys`` looks up the user's. ``cancel_hub`` delivers a CancelRequest
    for the given process and secret to the hub, and returns when the hub has taken it. ``on_key``
    learns those two. ``federates``: the client is in the database with the published tables.
    """

    def __init__(
        self,
        federation: Federation,
        authentication: Authentication,
        *,
        max_message: int,
        keys: Callable[[], Coroutine[Any, Any, Keys]],
        cancel_hub: Callable[[int, bytes], Coroutine[Any, Any, None]],
        on_key: Callable[[int, bytes], None],
        federates: bool,
        sentinels: Sentinels | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.authenticated: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.conversation = Conversation(
            on_authentication=self._authenticate,
            on_key=self._key,
            on_copy_in=self._copy_in,
            on_ready=self._ready,
        )
        self._hub_room = asyncio.Event()
        self._hub_room.set()
        self._channel = HubChannel(
            self.conversation,
            self._to_hub,
            self._to_client,
            self._hub_room.wait,
            self._settled,
        )
        suspects = _suspects(federation, self.conversation) if federates else _nothing_is_suspect
        self._guards = Guards(self.conversation, suspects)
        self._federated = Federated(federation, self._channel, self._guards, sentinels=sentinels)
        self.requests = Requests(
            self.conversation,
            self._guards,
            authentication,
            max_message=max_message,
            unsettled=self._channel.unsettled,
            on_own=self._step_aside,
        )
        self._authentication = authentication
        self._keys = keys
        self._cancel_hub = cancel_hub
        self._on_key = on_key
        self._client: asyncio.Transport | None = None
        self._hub: asyncio.Transport | None = None
        self._pid = 0
        self._secret = b""
        self._task: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._ending = False
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
    def key(self) -> tuple[int, bytes]:
        """Process and secret that a CancelRequest for this session names."""
        return self._pid, self._secret

    @property
    def busy(self) -> bool:
        """Something of the client's is under way or waits."""
        return bool(self._task or self.requests.pending or not self.conversation.idle)

    def fail(self, error: OarError) -> None:
        """Tell the client a fatal error and end both connections.

        In the middle of a message the end of the connection has to tell it.
        """
        silent = self.conversation.fatal or self.conversation.inside_message
        if not self._ending and self._client is not None and not silent:
            encoding = self.conversation.client_encoding
            self._client.write(messages.error_response(error, "FATAL", encoding=encoding))
        self._end()

    def drain(self) -> None:
        """End as soon as nothing is under way."""
        self._draining = True
        if not self.busy:
            self.fail(ShuttingDown())

    def cut(self) -> None:
        """End now, and stop what the hub and the owners are doing for the client."""
        self._abandon()
        self.fail(ShuttingDown())

    async def finished(self) -> None:
        """Wait until both connections are closed and nothing runs for them."""
        await self.closed
        running = {task for task in (self._task, self._farewell) if task is not None}
        if running:
            await asyncio.wait(running)
        await self._guards.stop()
        await self._channel.moment.finished()

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
        if self.requests.terminated:
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
            if self._hub is not None and not self.requests.inside_message:
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
        if not self._ending:
            self._forward(self.requests.receive(data))

    def _resume(self) -> None:
        """Go on with what the client sent while it had to wait."""
        if self._ending:
            return
        self._forward(self.requests.resume())
        if self._draining and not self.busy:
            self.fail(ShuttingDown())

    def _forward(self, parts: list[bytes]) -> None:
        """Give the hub what it gets of what the client sent."""
        requests = self.requests
        self._channel.send(parts)
        if requests.pending or self._not_reading_client:
            self._read_client("read ahead", requests.enough)
        if requests.violation is not None:
            self.fail(requests.violation)

    def _step_aside(self, own: Own) -> None:
        """Let a federated statement run; what the client sends next waits until it is done."""
        self._task = asyncio.create_task(self._work(own))
        self._task.add_done_callback(self._statement_done)

    def _work(self, own: Own) -> Coroutine[Any, Any, None]:
        match own:
            case OwnQuery(raw, text):
                return self._federated.query(raw, text)
            case OwnParse(raw, parse):
                return self._federated.parse(raw, parse)
            case OwnExecute():
                return self._federated.execute(own)
            case OwnProof(raw):
                return self._prove(raw)

    async def _prove(self, raw: bytes) -> None:
        """Give the hub the client's proof, if that is for this connection."""
        try:
            self._channel.send((self._authentication.prove(raw, await self._keys()),))
        except OarError as error:
            self.fail(error)

    def _statement_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.requests.running = False
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error(
                "session failed",
                error=type(error).__name__,
                pid=self._pid,
                where=raised_at(error),
            )
            self.fail(InternalError("internal error: the connection is closed"))
        else:
            self._resume()

    # --- from the hub ---------------------------------------------------------------------------

    def hub_sent(self, data: bytes) -> None:
        """Take bytes from the hub."""
        if given := self.conversation.receive(data):
            self._to_client(given)
        confusion = self.conversation.confusion
        if confusion is not None and not self._ending:
            reason = confusion.message
            _log.error("the hub's messages are not understood", reason=reason, pid=self._pid)
            self.fail(InternalError("internal error: the hub's answer was not understood"))

    def _authenticate(self, message: bytes) -> bytes:
        kind = messages.decode_authentication(message)
        if kind == messages.AUTHENTICATION_OK and not self.authenticated.done():
            self.authenticated.set_result(None)
            self.requests.authenticated()
        return self._authentication.from_hub(message)

    def _copy_in(self) -> None:
        asyncio.get_running_loop().call_soon(self._resume)

    def _key(self, message: bytes) -> None:
        self._pid, self._secret = messages.decode_backend_key(message)
        self._federated.activity.pid = self._pid
        self._on_key(self._pid, self._secret)

    def _ready(self) -> None:
        self._guards.ready()
        if self.conversation.status == ord("I"):
            self._channel.transaction_over()
        if self._draining and not self.busy:
            asyncio.get_running_loop().call_soon(self.fail, ShuttingDown())

    # --- cancellation ---------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Do what a CancelRequest asks for; returns when it can no longer hit a later statement.

        What the client sends meanwhile waits, so that the hub's signal finds the statement it
        was meant for, or nothing.
        """
        if self._ending or self._federated.activity.cancel() or self.conversation.idle:
            return
        self.requests.holds += 1
        try:
            await self._cancel_hub(self._pid, self._secret)
        finally:
            self.requests.holds -= 1
            self._settled()

    def _settled(self) -> None:
        """Something that the client's messages waited for is over."""
        if not self.requests.holds and self._task is None:
            self._resume()

    # --- writing and the pace of it --------------------------------------------------------------

    def _to_hub(self, parts: Sequence[bytes]) -> None:
        if self._hub is not None and not self._ending:
            self._hub.writelines(parts)

    def _to_client(self, parts: Sequence[bytes]) -> None:
        if self._client is not None and not self._ending:
            self._client.writelines(parts)

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


def _suspects(federation: Federation, conversation: Conversation) -> Callable[[bytes], bool]:
    """Return what looks for words of ours; they are known in UTF-8, and in ASCII."""

    def suspect(text: bytes) -> bool:
        known = text.isascii() or conversation.speaks_utf8
        return not known or federation.suspect(text)

    return suspect


def _nothing_is_suspect(text: bytes) -> bool:  # noqa: ARG001
    return False


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
