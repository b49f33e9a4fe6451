"""The front door: listening, TLS, startup, the routing of cancellations, limits and the way out.

Every accepted socket is one task. Until TLS is settled it is read as a plain socket, byte for
byte and no further than needed, so that nothing a client (or somebody between) sent in clear can
ever be taken for something sent under TLS (CVE-2021-23214).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

import structlog

from oar_proxy.errors import (
    HubConnectionLost,
    OarError,
    ProtocolViolation,
    QueryCanceled,
    ShuttingDown,
    TooManyConnections,
)
from oar_proxy.federation import Federation
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.reaching import Closing, connect
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.session import LINGER, HubSide, Session
from oar_proxy.settings import Listen
from oar_proxy.tls import Certificate
from oar_proxy.wire import messages, startup
from oar_proxy.wire.scram import Authentication, Keys
from oar_proxy.wire.startup import CancelRequest, Packet, SSLRequest, StartupMessage

KeysOf = Callable[[bytes], Awaitable[Keys | None]]
"""Looks up a user's SCRAM keys by name, None where there are none. Raises ``OarError``."""

CANCEL_TIMEOUT: Final = 5.0
"""Seconds the hub has to take a CancelRequest."""

GRACE: Final = 1.0
"""Seconds that a connection has to open before it gives way to others where there are too many."""

_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)
"""A peer that is gone is noticed within a minute. TCP_USER_TIMEOUT is left alone: Linux applies
it to a zero window too and would cut off clients that merely read slowly."""

_log = structlog.get_logger("oar.server")


class FrontDoor:
    """Accepts PostgreSQL clients and gives each a session with the hub."""

    def __init__(
        self,
        listen: Listen,
        hub: HubAddress,
        federation: Federation,
        *,
        certificate: Certificate | None = None,
        keys: KeysOf | None = None,
        sentinels: Sentinels | None = None,
    ) -> None:
        """Take ``keys``, which looks up a user's; without it no channel binding is offered.

        The published tables are in the hub's database. A client may connect to another one of its
        server, if that lets it; nothing is federated there.
        """
        self._listen = listen
        self._hub = hub
        self._federation = federation
        self._database = hub.database.encode()
        self._tls = certificate
        self._keys_of = keys
        self._sentinels = sentinels
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._opening: dict[ClientSide, asyncio.Task[None]] = {}
        self._connecting = 0
        self._stopping = False
        self._sessions: set[Session] = set()
        self._keys: dict[tuple[int, bytes], Session] = {}

    async def start(self) -> int:
        """Listen; return the port. Raises ``OSError`` when the address cannot be used."""
        try:
            return await self._start()
        except OSError as error:
            await self.stop()
            where = f"listen.host {self._listen.host}, port {self._listen.port}"
            raise OSError(error.errno, f"{where}: {error.strerror}") from None

    async def _start(self) -> int:
        loop = asyncio.get_running_loop()
        port = self._listen.port
        found = await loop.getaddrinfo(
            self._listen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            listener = _listener(family, (str(address[0]), port))
            port = listener.getsockname()[1]
            self._listeners.append(listener)
            self._accepting.append(loop.create_task(self._accept(listener)))
        return port

    async def stop(self) -> None:
        """Stop gracefully: idle sessions at once, busy ones after ``shutdown_timeout``."""
        self._stopping = True
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        for task in list(self._opening.values()):
            task.cancel()
        for session in list(self._sessions):
            session.drain()
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._listen.shutdown_timeout)
        for session in list(self._sessions):
            session.cut()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                _log.warning("connection not accepted", error=error.strerror)
                await asyncio.sleep(0.1)  # until another connection is closed
                continue
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        """Serve a connection. Who accepts keeps nothing of it, which would last until the next."""
        side = ClientSide(client)
        task = asyncio.create_task(self._serve(side))
        self._connections.add(task)
        self._opening[side] = task
        task.add_done_callback(self._connections.discard)

    async def _room(self) -> None:
        """Wait until one more connection may open.

        Whoever connects and says nothing keeps nobody out: of too many, the one that has been at
        it the longest gives way. A rush of clients waits in the listener's queue meanwhile.
        """
        now = asyncio.get_running_loop().time
        while len(self._opening) >= self._listen.max_unauthenticated:
            longest, task = next(iter(self._opening.items()))
            if now() - longest.began > GRACE and not longest.crowded_out:
                longest.crowded_out = True
                task.cancel()
            await asyncio.sleep(0.01)

    # --- one connection ---------------------------------------------------------------------------

    async def _serve(self, side: ClientSide) -> None:
        """One client, from its first byte to its last."""
        try:
            side.socket.setblocking(False)
            _keep_alive(side.socket)
            async with asyncio.timeout(self._listen.startup_timeout):
                await self._open(side)
        except TimeoutError:
            side.fail(QueryCanceled("canceling authentication due to timeout"))
        except OarError as error:
            side.fail(error)
        except (OSError, EOFError) as error:
            # Health checks and scanners open and close: nothing to tell anybody.
            _log.debug("connection ended before it began", error=type(error).__name__)
        except asyncio.CancelledError:
            side.fail(self._too_many_opening() if side.crowded_out else ShuttingDown())
            if not self._stopping and not side.crowded_out:
                raise
        finally:
            self._opening.pop(side, None)
            if side.session is None:
                side.close()
        if side.session is not None:
            await self._run(side.session)

    async def _run(self, session: Session) -> None:
        try:
            await session.finished()
        finally:
            self._sessions.discard(session)
            self._keys.pop(session.key, None)

    async def _open(self, side: ClientSide) -> None:
        """TLS, startup and authentication. Raises ``OarError``, ``OSError`` or ``EOFError``."""
        loop = asyncio.get_running_loop()
        opening = await self._negotiate(side.socket)
        served = self._tls.served() if self._tls is not None and opening.encrypted else None
        side.in_clear = served is None
        context = None if served is None else served.context
        await loop.connect_accepted_socket(lambda: side, side.socket, ssl=context)
        if opening.direct and side.alpn != startup.ALPN:
            raise ProtocolViolation("direct TLS without the protocol name postgresql (ALPN)")
        match await side.startup_packet(opening.head):
            case CancelRequest() as request:
                await self._cancel(request)
            case StartupMessage() as message:
                if len(self._sessions) + self._connecting >= self._listen.max_clients:
                    raise self._too_many_clients()
                end_point = None if served is None else served.end_point
                await self._authenticate(side, message, end_point)
            case _:
                raise ProtocolViolation("encryption requested twice")

    async def _negotiate(self, client: socket.socket) -> _Opening:
        """Settle encryption, on the bare socket."""
        loop = asyncio.get_running_loop()
        await _readable(client)
        if client.recv(1, socket.MSG_PEEK) == bytes([startup.TLS_RECORD]):
            if self._tls is None:
                raise EOFError("direct TLS, and no certificate is configured")
            return _Opening(encrypted=True, direct=True)
        refused: list[Packet] = []
        while True:
            head = await _receive(client, startup.REQUEST_LENGTH)
            if startup.packet_length(head) != startup.REQUEST_LENGTH:
                return _Opening(head=head)
            request = startup.decode(head)
            if isinstance(request, SSLRequest) and self._tls is not None:
                if _has_bytes(client):
                    raise ProtocolViolation("received unencrypted data after SSL request")
                await loop.sock_sendall(client, b"S")
                return _Opening(encrypted=True)
            if request in refused:
                raise ProtocolViolation("encryption requested twice")
            refused.append(request)
            await loop.sock_sendall(client, b"N")

    async def _authenticate(
        self, side: ClientSide, message: StartupMessage, end_point: bytes | None
    ) -> None:
        """Open the session's hub connection and relay until the hub knows the client."""
        keys_of = self._keys_of

        async def keys() -> Keys:
            assert keys_of is not None  # else no client is offered what needs them
            return await keys_of(dict(message.parameters)[b"user"]) or Keys.of_nobody()

        def on_key(pid: int, secret: bytes) -> None:
            self._keys[pid, secret] = session

        session = Session(
            self._federation,
            Authentication(None if keys_of is None else end_point),
            keys=keys,
            max_message=self._listen.max_message_bytes,
            cancel_hub=self._cancel_hub,
            on_key=on_key,
            federates=message.database == self._database,
            sentinels=self._sentinels,
        )
        self._connecting += 1
        try:
            hub = await self._connect(session)
        except OSError as error:
            _log.error("hub not reached", error=type(error).__name__)
            raise HubConnectionLost(
                "connection not made: the hub does not answer", hint="try again later"
            ) from None
        finally:
            self._connecting -= 1
        side.begin(session, hub, message)
        self._sessions.add(session)  # not of a client that has left meanwhile: nobody would end it
        await asyncio.wait(
            (session.authenticated, session.closed), return_when=asyncio.FIRST_COMPLETED
        )

    def _too_many_clients(self) -> TooManyConnections:
        return TooManyConnections(
            "sorry, too many clients already",
            detail=f"limit: listen.max_clients, {self._listen.max_clients}",
            hint="try again when others have left, or raise listen.max_clients",
        )

    def _too_many_opening(self) -> TooManyConnections:
        return TooManyConnections(
            "sorry, too many connections are being opened",
            detail=f"limit: listen.max_unauthenticated, {self._listen.max_unauthenticated}",
            hint="try again, or raise listen.max_unauthenticated",
        )

    async def _connect(self, session: Session) -> asyncio.Transport:
        """Open a session's hub connection. Raises ``OSError``."""
        transport = await connect(self._hub, lambda: HubSide(session))
        if transport.is_closing():
            # The session was told before it had a client, so nobody would end that client's.
            raise ConnectionResetError(errno.ECONNRESET, "the hub closed the connection")
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            _keep_alive(connection)
        return transport

    # --- cancellation ---------------------------------------------------------------------------

    async def _cancel(self, request: CancelRequest) -> None:
        """Cancel what that session is doing; the socket is closed once it is delivered."""
        session = self._keys.get((request.pid, request.secret))
        if session is not None:
            await session.cancel()

    async def _cancel_hub(self, pid: int, secret: bytes) -> None:
        """Deliver a CancelRequest; the hub closes the connection once it has sent the signal."""
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                closing = Closing()
                transport = await connect(self._hub, lambda: closing)
                try:
                    transport.write(startup.encode_cancel(pid, secret))
                    await closing.closed.wait()
                finally:
                    transport.close()
        except OSError as error:  # TimeoutError is one
            _log.warning("cancellation not delivered to the hub", error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a connection begins: with TLS or not, and the bytes read by then."""

    encrypted: bool = False
    direct: bool = False
    head: bytes = b""


class ClientSide(asyncio.Protocol):
    """The client's end of a session, and before that the reader of its startup packet."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.began = asyncio.get_running_loop().time()
        self.crowded_out = False
        self.session: Session | None = None
        self.in_clear = True
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._lost = False

    @property
    def alpn(self) -> str | None:
        """The protocol name TLS agreed on."""
        if self._transport is None:
            return None
        tls: ssl.SSLObject = self._transport.get_extra_info("ssl_object")
        return tls.selected_alpn_protocol()

    async def startup_packet(self, head: bytes) -> Packet:
        """Return the packet that begins with ``head``. Raises ``OarError`` or ``EOFError``."""
        self._received[:0] = head
        needed = 4
        while True:
            if len(self._received) >= 4:
                needed = startup.packet_length(bytes(self._received[:4]))
            if len(self._received) >= needed:
                packet = bytes(self._received[:needed])
                del self._received[:needed]
                return startup.decode(packet)
            if self._lost:
                raise EOFError("closed before the startup packet was complete")
            self._changed.clear()
            await self._changed.wait()

    def begin(self, session: Session, hub: asyncio.Transport, message: StartupMessage) -> None:
        """Hand over to the session."""
        if self._transport is None or self._lost:
            hub.abort()
            raise EOFError("closed before the hub was reached")
        self.session = session
        session.attach(self._transport, hub, message.raw)
        if self._received:
            session.client_sent(bytes(self._received))
        self._transport.resume_reading()

    def fail(self, error: OarError) -> None:
        """Tell the client a fatal error and close."""
        if self.session is not None:
            self.session.fail(error)
            return
        response = messages.error_response(error, "FATAL")
        if self._transport is not None:
            if not self._transport.is_closing():
                self._transport.write(response)
        elif self.in_clear:
            with contextlib.suppress(OSError):  # a client that has gone is not told
                self.socket.send(response)
        self.close()

    def close(self) -> None:
        """Close the connection; what was written still leaves."""
        if self._transport is None:
            self.socket.close()
        elif not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.client_sent(data)
            return
        self._received += data
        self._changed.set()
        if len(self._received) > startup.MAXIMUM and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lost = True
        self._changed.set()
        if self.session is not None:
            self.session.client_lost()

    def pause_writing(self) -> None:
        if self.session is not None:
            self.session.client_writable(False)

    def resume_writing(self) -> None:
        if self.session is not None:
            self.session.client_writable(True)


def _listener(family: int, address: tuple[str, int]) -> socket.socket:
    try:
        listener = socket.create_server(address, family=family, backlog=512)
    except OSError as error:
        if not error.errno:
            raise
        raise OSError(error.errno, os.strerror(error.errno)) from None  # its own has the address
    listener.setblocking(False)
    return listener


def _keep_alive(connection: socket.socket) -> None:
    """Set both keepalive and TCP_NODELAY, before anything else uses the socket."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # Linux; other systems keep their own intervals
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


async def _receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly that many bytes. Raises ``EOFError``."""
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < size:
        part = await loop.sock_recv(connection, size - len(received))
        if not part:
            raise EOFError("closed before the first packet")
        received += part
        if len(received) >= 4:
            startup.packet_length(received)  # refuse a lie before waiting for its rest
    return received


def _has_bytes(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
