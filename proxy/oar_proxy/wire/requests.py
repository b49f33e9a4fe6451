"""What a client sends: which messages go to the hub as they are, and which the proxy takes over.

:meth:`Requests.receive` walks the client's bytes, notes what the hub will answer and returns what
the hub gets; stretches of messages that need no look leave as they came. A message that may be a
federated statement's is handed to ``on_own`` instead, and what follows it waits until the proxy is
done with it.

What a client may send, and how long it may be, is a table of the phase it is in: 54.7 for a client
the hub has accepted, one message for one it has not. A missing entry is the error, and ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from oar_proxy.errors import OarError, ProtocolViolation
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, Kind
from oar_proxy.wire.messages import HEADER, Parse
from oar_proxy.wire.scram import Authentication

READ_AHEAD: Final = 1024 * 1024
"""Bytes of the client's that wait behind a federated statement before reading stops."""

AUTHENTICATION_MESSAGE: Final = 64 * 1024
"""Bytes of the largest message before a client is known: PostgreSQL's
``PG_MAX_AUTH_TOKEN_LENGTH``."""

_COPY_DATA: Final = ord("d")

_ENDING: Final = b"SHX"
"""What ends a statement, or the session, and begins nothing."""

_COPYING: Final = b"dcf"
"""What the hub reads while rows are copied in."""


@dataclass(frozen=True, slots=True)
class OwnQuery:
    """A query string that may hold a statement of ours."""

    raw: bytes = field(repr=False)
    text: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OwnParse:
    """A Parse message whose statement may be ours."""

    raw: bytes = field(repr=False)
    parse: Parse


@dataclass(frozen=True, slots=True)
class OwnExecute:
    """An Execute message of a portal that may be ours, for so many rows (0: all)."""

    raw: bytes = field(repr=False)
    portal: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class OwnProof:
    """The client's proof of its password, bound to the proxy's certificate."""

    raw: bytes = field(repr=False)


Own = OwnQuery | OwnParse | OwnExecute | OwnProof


class Names(Protocol):
    """Which statements, and which names of statements and portals, may be ours: supersets.

    ``suspect`` looks at a query string, or at a message with one in it. The others tell what the
    hub will answer, and remember what it then does.
    """

    @property
    def may_be_statement(self) -> Collection[bytes]: ...

    @property
    def may_be_portal(self) -> Collection[bytes]: ...

    def suspect(self, text: bytes) -> bool: ...

    def other_parse(self, name: bytes) -> Expected: ...

    def bind(self, raw: bytes, portal: bytes, name: bytes) -> Expected: ...

    def close(self, kind: int, name: bytes) -> Expected: ...


class Requests:
    """The client's side of a session.

    What a message waits for: ``running``, work of the proxy's own; ``holds``, the number of
    cancellations on their way to the hub; and ``unsettled``, which only a new statement has to
    wait for. Whoever ends one of these calls :meth:`resume`. ``pending``: what was read and waits,
    for that or for the rest of a message. ``terminated``: the client has said that it goes.
    ``violation``: what it sent cannot be, and nothing more is read.
    """

    def __init__(
        self,
        conversation: Conversation,
        names: Names,
        authentication: Authentication,
        *,
        max_message: int,
        unsettled: Collection[object],
        on_own: Callable[[Own], None],
    ) -> None:
        self.running = False
        self.holds = 0
        self.terminated = False
        self.violation: OarError | None = None
        self._conversation = conversation
        self._names = names
        self._authentication = authentication
        self._unsettled = unsettled
        self._on_own = on_own
        self._max_message = max_message
        self._limits = _BEFORE_AUTHENTICATION
        self.pending = bytearray()
        self._needed = 0
        self._stalled = False
        self._rest = 0

    def authenticated(self) -> None:
        """The hub has accepted the client: from here on it may ask."""
        self._limits = _limits(self._max_message)

    @property
    def inside_message(self) -> bool:
        """The hub has got the beginning of a message, and not yet the rest."""
        return self._rest > 0

    @property
    def enough(self) -> bool:
        """So much waits its turn that nothing more should be read.

        What waits for the rest of a message is not counted: that rest is always read.
        """
        return self._stalled and len(self.pending) > READ_AHEAD

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes from the client; return those for the hub, in parts."""
        out: list[bytes] = []
        if self.terminated or self.violation is not None:
            return out
        if self._rest:
            out.append(data[: self._rest])
            data = data[self._rest :]
            self._rest -= len(out[0])
        if self.pending:
            self.pending += data
            if self._stalled or len(self.pending) < self._needed:
                return out
            data = bytes(self.pending)
            self.pending.clear()
        self._walk(data, out)
        return out

    def resume(self) -> list[bytes]:
        """Go on with what had to wait, as far as it can; return what of it the hub gets."""
        out: list[bytes] = []
        if self._stalled:
            self._stalled = False
            data = bytes(self.pending)
            self.pending.clear()
            self._walk(data, out)
        return out

    def _walk(self, data: bytes, out: list[bytes]) -> None:
        """Look at each whole message; gather the stretches that go to the hub as they are."""
        self._needed = HEADER.size
        start = at = 0
        end = len(data)
        last_header = end - HEADER.size
        conversation = self._conversation
        names = self._names
        watching = names.may_be_statement or names.may_be_portal
        plain = _ANSWERED if watching else _PLAIN
        unsettled = self._unsettled
        unpack = HEADER.unpack_from
        while at <= last_header:
            code, length = unpack(data, at)
            if not 4 <= length <= self._limits[code]:
                self.violation = self._violates(code)
                end = at
                break
            if (self.running or self.holds or unsettled) and self._waits(code):
                self._stalled = True
                break
            if not watching and end - at <= _LONGEST_RUN and (run := _RUNS.get(data[at:])):
                conversation.sent_run(run)
                at = end
                break
            if code == _COPY_DATA and (rows_end := self._after_rows(data, at)) > at:
                at = rows_end
                continue
            after = at + 1 + length
            if after > end:
                self._needed = after - at
                break
            if (expected := plain.get(code)) is not None:
                conversation.sent(expected)
            else:
                raw = data[at:after]
                given = _LOOK[code](self, raw)
                if given is not raw:  # taken over, or followed by something of ours
                    out += filter(None, (data[start:at], given))
                    start = after
                if self.terminated or self.violation is not None:
                    at = end = after
                    break
            at = after
        if start < at:
            out.append(data[start:at])
        if at < end:
            self.pending += data[at:]

    def _after_rows(self, data: bytes, at: int) -> int:
        """Step over a run of CopyData messages: nothing answers them, and some drivers send many.

        One that may not be is not stepped over.
        """
        unpack = HEADER.unpack_from
        end = len(data)
        last_header = end - HEADER.size
        limit = self._limits[_COPY_DATA]
        while at <= last_header:
            code, length = unpack(data, at)
            if code != _COPY_DATA or not 4 <= length <= limit:
                break
            after = at + 1 + length
            if after > end:
                if not self.running:
                    # Rows need no look and so no buffer. Not in a batch: what it sends next must
                    # not come between the two halves.
                    self._rest = after - end
                    at = end
                break
            at = after
        return at

    def _violates(self, code: int) -> ProtocolViolation:
        if self._limits[code]:
            return ProtocolViolation("invalid message length")
        if self._limits is _BEFORE_AUTHENTICATION:
            return ProtocolViolation(f"expected password response, got message type {code}")
        return ProtocolViolation(f"invalid frontend message type {code}")

    def _waits(self, code: int) -> bool:
        """Tell whether a message has to wait for a federated statement or a cancellation."""
        if not (self.running or self.holds):
            return code not in _ENDING
        # A batch with a COPY in it waits for the rows, and for nothing else.
        return not (self.running and self._conversation.copying and code in _COPYING)

    # --- one message: what the hub gets of it (the same object: as it is), or None --------------

    def _password(self, raw: bytes) -> bytes | None:
        if self._authentication.proof_is_due:
            self._take(OwnProof(raw))
            return None
        try:
            return self._authentication.from_client(raw)
        except OarError as error:
            self.violation = error
            return None

    def _query(self, raw: bytes) -> bytes | None:
        text = raw[HEADER.size : -1]
        # A string that ends elsewhere is malformed: the hub says so.
        if self._names.suspect(text) and raw[-1] == 0 and b"\0" not in text:
            self._take(OwnQuery(raw, text))
            return None
        self._conversation.sent(_QUERY)
        return raw

    def _parse(self, raw: bytes) -> bytes | None:
        expected = _PARSE
        if self._names.may_be_statement or self._names.suspect(raw):
            try:
                parse = messages.decode_parse(raw)
            except ProtocolViolation:
                pass  # the hub says what is wrong with it
            else:
                if self._names.suspect(parse.query):
                    self._take(OwnParse(raw, parse))
                    return None
                if parse.name in self._names.may_be_statement:
                    expected = self._names.other_parse(parse.name)
        self._conversation.sent(expected)
        return raw

    def _bind(self, raw: bytes) -> bytes | None:
        expected = _BIND
        try:
            portal, statement = messages.bind_names(raw)
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            if statement in self._names.may_be_statement or portal in self._names.may_be_portal:
                expected = self._names.bind(raw, portal, statement)
        self._conversation.sent(expected)
        return raw

    def _execute(self, raw: bytes) -> bytes | None:
        try:
            portal, rows = messages.decode_execute(raw)
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            if portal in self._names.may_be_portal and not self._conversation.skipping:
                self._take(OwnExecute(raw, portal, rows))
                return None
        self._conversation.sent(_EXECUTE)
        return raw

    def _describe(self, raw: bytes) -> bytes | None:
        of_statement = raw[HEADER.size : HEADER.size + 1] == b"S"
        self._conversation.sent(_DESCRIBE_STATEMENT if of_statement else _DESCRIBE_PORTAL)
        return raw

    def _close(self, raw: bytes) -> bytes | None:
        expected = _CLOSE
        try:
            kind, name = messages.decode_target(raw)
        except ProtocolViolation:
            pass  # the hub says what is wrong with it
        else:
            expected = self._names.close(kind, name)
        self._conversation.sent(expected)
        return raw

    def _flush(self, raw: bytes) -> bytes | None:
        if len(raw) > HEADER.size and not self._conversation.copying:
            self._conversation.sent(_MALFORMED)
        return raw

    def _copy_end(self, raw: bytes) -> bytes | None:
        self._conversation.sent_copy_end()
        # A batch awaits the answer, and the hub ignored its Flush while copying.
        return raw + messages.FLUSH if self.running else raw

    def _terminate(self, raw: bytes) -> bytes | None:
        self.terminated = True
        return raw

    def _take(self, own: Own) -> None:
        """Hand a message over; what the client sends next waits until that is done."""
        self.running = True
        self._on_own(own)


_BIND: Final = Expected(Kind.BIND)
_CLOSE: Final = Expected(Kind.CLOSE)
_DESCRIBE_STATEMENT: Final = Expected(Kind.DESCRIBE_STATEMENT)
_DESCRIBE_PORTAL: Final = Expected(Kind.DESCRIBE_PORTAL)
_EXECUTE: Final = Expected(Kind.EXECUTE)
_FUNCTION: Final = Expected(Kind.FUNCTION)
_MALFORMED: Final = Expected(Kind.MALFORMED)
_PARSE: Final = Expected(Kind.PARSE)
_QUERY: Final = Expected(Kind.QUERY)
_SYNC: Final = Expected(Kind.SYNC)

_ANSWERED: Final = {ord("F"): _FUNCTION, ord("S"): _SYNC}
"""Messages passed on without a look, and what the hub owes for each."""

_PLAIN: Final = {**_ANSWERED, ord("B"): _BIND, ord("E"): _EXECUTE, ord("C"): _CLOSE}
"""The same, while the session holds no name that may be a federated statement's."""

_EXECUTED: Final = {messages.encode_execute(b""): _EXECUTE, messages.SYNC: _SYNC}
_DESCRIBED: Final = {messages.encode_describe(b"P", b""): _DESCRIBE_PORTAL, **_EXECUTED}
_RUNS: Final = {b"".join(run): tuple(run.values()) for run in (_EXECUTED, _DESCRIBED)}
"""What most drivers end a statement with, and what the hub owes for it: one look for two or three
messages, while the session holds no name that may be a federated statement's."""
_LONGEST_RUN: Final = max(map(len, _RUNS))

_LOOK: Final[dict[int, Callable[[Requests, bytes], bytes | None]]] = {
    ord("Q"): Requests._query,
    ord("P"): Requests._parse,
    ord("B"): Requests._bind,
    ord("E"): Requests._execute,
    ord("D"): Requests._describe,
    ord("C"): Requests._close,
    ord("H"): Requests._flush,
    ord("c"): Requests._copy_end,
    ord("f"): Requests._copy_end,
    ord("X"): Requests._terminate,
    ord("p"): Requests._password,
}
"""Messages that are looked at. CopyData is in neither table: nothing answers it."""


def _limits(max_message: int) -> list[int]:
    """Return the greatest length of each message type, 0 for what clients do not send."""
    limits = [0] * 256
    for code in messages.SMALL_CLIENT_MESSAGES:
        limits[code] = messages.SMALL_MESSAGE
    for code in messages.LARGE_CLIENT_MESSAGES:
        limits[code] = max_message
    return limits


_BEFORE_AUTHENTICATION: Final = [
    AUTHENTICATION_MESSAGE if code == ord("p") else 0 for code in range(256)
]
"""The same, before the hub has accepted the client: it may answer what it was asked, no more."""
