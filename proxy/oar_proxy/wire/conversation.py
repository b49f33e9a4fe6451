"""Which answer of the hub belongs to which request, and where it goes.

A session appends an :class:`Expected` for every message it sends to the hub and the hub answers;
:meth:`Conversation.receive` walks the hub's bytes, gives each message to the request at the head
of the queue and returns what the client gets. Rows for the client are only stepped over: a chunk
of nothing but those leaves as it came.

The rules are those of the message flow chapter (54.2): an error in an extended-query message
makes the hub discard everything up to the next Sync; a Query, Sync or FunctionCall is always
closed by ReadyForQuery; while rows are copied in, Sync and Flush are ignored.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from oar_adapters.encodings import UTF8

from oar_proxy.errors import OarError, ProtocolViolation
from oar_proxy.wire import messages
from oar_proxy.wire.encodings import AS_UTF8
from oar_proxy.wire.messages import HEADER
from oar_proxy.wire.stepping import after_rows


class Kind(enum.Enum):
    """What was sent, and the table of legal answers to it: a missing entry is the error.

    The value: messages that may answer it, and those that complete it. At any time there may come
    an ErrorResponse as well, which completes it too, and what is asynchronous (54.2.6).
    """

    STARTUP = ("startup", b"RKvZ", b"Z")
    PARSE = ("parse", b"1", b"1")
    BIND = ("bind", b"2", b"2")
    CLOSE = ("close", b"3", b"3")
    DESCRIBE_STATEMENT = ("describe statement", b"tTn", b"Tn")
    DESCRIBE_PORTAL = ("describe portal", b"Tn", b"Tn")
    EXECUTE = ("execute", b"DCIsGHdc", b"CIs")
    SYNC = ("sync", b"Z", b"Z")
    QUERY = ("query", b"TDCIGHdcZ", b"Z")
    FUNCTION = ("function call", b"VZ", b"Z")
    MALFORMED = ("malformed message", b"E", b"E")
    COPY_END = ("copy end", b"", b"")
    INTERJECTION = ("interjection", b"", b"")

    def __init__(self, label: str, answers: bytes, completed_by: bytes) -> None:
        self.label = label
        self.answers = answers
        self.completed_by = completed_by
        self.plain_answers = bytes(
            code for code in answers if code not in completed_by and code not in b"RKG"
        )
        """Answers that change nothing."""
        self.plain_ends = bytes(code for code in completed_by if code not in b"E")
        """Answers after which there is one request less."""
        self.ready_follows = b"Z" in completed_by
        """ReadyForQuery closes it, also behind an error."""


# The members under names of their own: attributes of an enumeration are slow to look up.
_STARTUP: Final = Kind.STARTUP
_EXECUTE: Final = Kind.EXECUTE
_SYNC: Final = Kind.SYNC

_IGNORED_WHILE_COPYING: Final = (Kind.SYNC, Kind.MALFORMED)

_ROWS: Final = b"Dd"
_ERROR: Final = ord("E")
_NOTICE: Final = ord("N")
_PARAMETER_STATUS: Final = ord("S")
_NOTIFICATION: Final = ord("A")
_READY: Final = ord("Z")
_IDLE: Final = ord("I")
_COPY_IN: Final = ord("G")

_READY_LENGTH: Final = HEADER.size + 1

_LONGEST: Final = [
    messages.LARGEST_MESSAGE if code in b"RSTtDdVENA" else 30_000 for code in range(256)
]
"""The greatest length of each message that has to come to its end before it is looked at. Past the
smaller one libpq believes that synchronization is lost; all that has no size of its own is far
below it."""


class Expected:
    """A request the hub will answer. This class: the client gets the answer as it is.

    Subclasses are given each message that is not ``plain``; the hooks are called in the order
    of the hub's answers, exactly one of ``done``, ``failed`` and ``skipped`` a request.
    """

    __slots__ = ("ends", "kind", "plain", "utf8")
    passes = True
    aside = False
    """The client gets what is interjected before this is answered: it waits for nothing of ours."""
    routine = True
    """No hook does anything: true of this class, false of every subclass."""
    between = False
    """It stands between requests, and is none."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.plain = kind.plain_answers if self.passes else b""
        """Messages that need no look."""
        self.ends = kind.plain_ends if self.routine else b""
        """Messages that end it, of which no hook has to be told."""
        self.utf8 = False
        """Sent while the hub takes and gives UTF-8, whatever the client's encoding is."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.routine = False

    def message(self, code: int, message: bytes) -> bytes | None:  # noqa: ARG002
        """Return what the client gets of one message of the answer."""
        return message

    def notice(self, notice: bytes) -> bytes | None:
        """Return what the client gets of a NoticeResponse that comes before the answer ends."""
        return notice if self.passes else self.message(_NOTICE, notice)

    def done(self, message: bytes) -> None:
        """The last message of the answer has come."""

    def failed(self, response: bytes) -> bytes | None:
        """The hub reported an error. Return what the client gets; None withholds it."""
        return response

    def skipped(self) -> bytes | None:
        """The hub discards the request: an earlier one of its pipeline failed.

        Return what the client gets in place of an error that was withheld from it.
        """
        return None


class Interjection(Expected):
    """Bytes of ours for the client, placed after the answers to all that was sent before."""

    __slots__ = ("content",)
    between = True

    def __init__(self, content: bytes) -> None:
        super().__init__(Kind.INTERJECTION)
        self.content = content


class _CopyEnd(Expected):
    """Where the client has said that there are no more rows."""

    __slots__ = ()
    between = True


_COPY_END: Final = _CopyEnd(Kind.COPY_END)

_NOTHING: Final = Expected(Kind.INTERJECTION)
"""At the head of an empty queue: it has no answers."""


class HubConfused(OarError):
    """The hub sent what does not answer anything: the two sides no longer agree."""

    sqlstate = "XX000"


class Conversation:
    """The requests under way on one hub connection.

    ``skipping``: the hub discards what it is sent until a Sync. ``open_pipeline``: extended-query
    messages were sent that no Sync has ended. ``implicit_block``: a statement of the client's was
    executed by such a message, and what follows, a Query too, is in one transaction with it up to
    the Sync. ``copying``: the hub reads CopyData. ``status``: the
    transaction status of the last ReadyForQuery. ``withheld``: an ErrorResponse that ended a
    pipeline and that the client has not been given. ``client_encoding``: as the hub has reported
    it. ``failures`` counts the errors of the hub's. ``confusion``: the hub sent what is not legal;
    nothing more is read, and nothing can be said any more.
    """

    def __init__(
        self,
        *,
        on_authentication: Callable[[bytes], bytes],
        on_key: Callable[[bytes], None],
        on_copy_in: Callable[[], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.skipping = False
        self.open_pipeline = False
        self.implicit_block = False
        self.copying = False
        self.status = ord("I")
        self.withheld: bytes | None = None
        self.client_encoding = UTF8
        self.failures = 0
        self.fatal = False
        self.confusion: OarError | None = None
        self._queue: deque[Expected] = deque()
        self._passing = 0
        self._partial = bytearray()
        self._needed = 0
        self._on_authentication = on_authentication
        self._on_key = on_key
        self._on_copy_in = on_copy_in
        self._on_ready = on_ready

    # --- what is sent ---------------------------------------------------------------------

    @property
    def head(self) -> Expected | None:
        """The request the hub is working on."""
        return self._queue[0] if self._queue else None

    @property
    def idle(self) -> bool:
        """Nothing is awaited from the hub."""
        return not self._queue

    @property
    def speaks_utf8(self) -> bool:
        """Whether the client surely has UTF-8, or no encoding at all.

        What it has executed since the last Sync may have set another, which is reported then.
        """
        return self.client_encoding in AS_UTF8 and not self.implicit_block

    def sent(self, expected: Expected) -> None:
        """Note a request that has just been sent to the hub."""
        kind = expected.kind
        if kind.ready_follows and self.copying:
            return  # 54.2.7: ignored by the hub while it reads CopyData
        if self.skipping:
            if kind is not _SYNC:
                expected.skipped()
                return
            self.skipping = False
        self.open_pipeline = not kind.ready_follows
        if kind is _EXECUTE:
            self.implicit_block = self.implicit_block or expected.passes
        elif kind is _SYNC:
            self.implicit_block = False
        self._queue.append(expected)

    def sent_run(self, run: Sequence[Expected]) -> None:
        """Note requests that have just been sent together, of which the last is a Sync."""
        if self.copying or self.skipping:
            for expected in run:
                self.sent(expected)
        else:
            self._queue.extend(run)
            self.open_pipeline = self.implicit_block = False

    def sent_copy_end(self) -> None:
        """Note that CopyDone or CopyFail was sent. The hub ignores one it does not wait for."""
        if self.copying:
            self.copying = False
        elif self._queue:
            self._queue.append(_COPY_END)

    def interject(self, content: bytes) -> bytes:
        """Place bytes for the client behind all awaited answers; return them if that is now."""
        if all(expected.aside for expected in self._queue):
            return content
        self._queue.append(Interjection(content))
        return b""

    def abandon(self) -> None:
        """The hub connection is gone: nothing awaited will come."""
        while self._queue:
            self._queue.popleft().skipped()

    # --- what is received -------------------------------------------------------------------

    @property
    def inside_message(self) -> bool:
        """The client has got the beginning of a message, and not yet the rest."""
        return self._passing > 0

    def receive(self, chunk: bytes) -> list[bytes]:
        """Take bytes from the hub; return those for the client, in parts."""
        if self._passing >= len(chunk):
            self._passing -= len(chunk)
            return [chunk]
        if self.confusion is not None:
            return []
        if self._partial:
            self._partial += chunk
            if len(self._partial) < self._needed:
                return []
            chunk = bytes(self._partial)
            self._partial.clear()
        out: list[bytes] = []
        try:
            at = self._walk(chunk, out)
        except (HubConfused, ProtocolViolation) as error:
            self.confusion = error
            return out
        if at < len(chunk):
            self._partial += chunk[at:]
        else:
            self._passing = at - len(chunk)  # of a row whose rest is still to come
        return out

    def _walk(self, chunk: bytes, out: list[bytes]) -> int:
        """Step over the messages of a chunk; gather the stretches that go to the client as is.

        Returns where the first message begins that is not stepped over.
        """
        start, at, end = 0, self._passing, len(chunk)
        self._passing = 0
        last_header = end - HEADER.size
        self._needed = HEADER.size
        queue = self._queue
        head = queue[0] if queue else _NOTHING
        unpack = HEADER.unpack_from
        try:
            while at <= last_header:
                code, length = unpack(chunk, at)
                if code in _ROWS and code in head.plain:
                    at += 1 + length
                    if at <= last_header and chunk[at] == code:
                        at = after_rows(chunk, at)
                    continue
                if not 4 <= length <= _LONGEST[code]:
                    raise HubConfused(f"invalid message length from the hub: {length}")
                after = at + 1 + length
                if after > end:
                    self._needed = after - at
                    break
                if code in head.ends:
                    queue.popleft()
                    self.copying = False
                    if code == _READY:
                        self._ready(chunk[at:after])
                    head = queue[0] if queue else _NOTHING
                    if head.between:
                        out += filter(None, (chunk[start:after], self._due_interjections()))
                        start = after
                        head = queue[0] if queue else _NOTHING
                elif code not in head.plain:
                    message = chunk[at:after]
                    given = self._message(code, message)
                    if given is not message:  # hidden, replaced, or followed by something of ours
                        out += filter(None, (chunk[start:at], given))
                        start = after
                    head = queue[0] if queue else _NOTHING
                at = after
        finally:
            if start < at:
                out.append(chunk[start:at])
        return at

    def _ready(self, message: bytes) -> None:
        if len(message) != _READY_LENGTH:
            raise HubConfused("invalid message from the hub: no transaction status")
        self.status = message[HEADER.size]
        if self.status == _IDLE and not self._queue:
            self.implicit_block = False  # a COMMIT has ended it, or a Query of several
        self._on_ready()

    def _message(self, code: int, message: bytes) -> bytes | None:
        """Return what the client gets of a message: itself (the same object), else, or None."""
        head = self._queue[0] if self._queue else None
        if code in (_ERROR, _NOTICE) and head is not None and head.utf8:
            message = messages.recoded(message, self.client_encoding)
        if code == _ERROR:
            return self._error(message)
        if code == _NOTICE:
            return message if head is None else head.notice(message)
        if code == _PARAMETER_STATUS:
            return self._setting(message)
        if code == _NOTIFICATION:
            return message
        if head is None or code not in head.kind.answers:
            return self._unexpected(code, head, message)
        return self._answer(head, code, message)

    def _answer(self, head: Expected, code: int, message: bytes) -> bytes | None:
        if head.kind is _STARTUP:
            message = self._startup(code, message)
        elif code == _COPY_IN:
            self._copy_in()
        given = head.message(code, message)
        if code not in head.kind.completed_by:
            return given
        self._queue.popleft()
        self.copying = False
        if code == _READY:
            self._ready(message)
        head.done(message)
        extra = self._due_interjections()
        return (given or b"") + extra if extra else given

    def _unexpected(self, code: int, head: Expected | None, message: bytes) -> bytes:
        """Nobody waits for this message.

        One case is legal: after a failed copy the hub answers each Sync it had not yet read while
        copying, which from here cannot be told from one it had ignored.
        """
        if code == _READY and head is None and len(message) == _READY_LENGTH:
            self.status = message[HEADER.size]
            self.skipping = False
            return message
        waiting = "nothing" if head is None else f"a {head.kind.label}"
        raise HubConfused(f"unexpected message from the hub: type {code:#04x} for {waiting}")

    def _startup(self, code: int, message: bytes) -> bytes:
        if code == ord("R"):
            return self._on_authentication(message)
        if code == ord("K"):
            self._on_key(message)
        return message

    def _setting(self, message: bytes) -> bytes:
        name, _, value = message[HEADER.size :].partition(b"\0")
        if name == b"client_encoding":
            self.client_encoding = value[:-1].decode("ascii", errors="replace")
        return message

    def _error(self, message: bytes) -> bytes | None:
        self.failures += 1
        self.fatal = messages.decode_fields(message).get("V") in (b"FATAL", b"PANIC")
        if not self._queue or self.fatal:
            return message
        self.copying = False
        head = self._queue[0]
        if head.kind.ready_follows:
            return head.failed(message)
        self._queue.popleft()
        given = head.failed(message)
        while self._queue and self._queue[0].kind is not _SYNC:
            instead = self._queue.popleft().skipped()
            given = instead if given is None else given
        if given is None:
            self.withheld = message
        self.skipping = not self._queue
        return given

    def _copy_in(self) -> None:
        """Rows are read from here on: forget each Sync sent before the end of the rows."""
        waiting = list(self._queue)
        before = next((i for i, e in enumerate(waiting) if e.kind is Kind.COPY_END), None)
        ended = before is not None
        self.copying = not ended
        kept = [e for e in waiting[1:before] if e.kind not in _IGNORED_WHILE_COPYING]
        rest = waiting[before + 1 :] if before is not None else []
        self._queue.clear()
        self._queue += (waiting[0], *kept, *rest)
        self._on_copy_in()

    def _due_interjections(self) -> bytes:
        """Return what the client may be told now that the head of the queue has gone."""
        due = b""
        while self._queue and self._queue[0].between:
            entry = self._queue.popleft()
            if isinstance(entry, Interjection):
                due += entry.content
        return due
