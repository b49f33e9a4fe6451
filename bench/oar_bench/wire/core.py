"""The code under test without a socket: what a session's two sides make of a conversation."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from oar_proxy.errors import OarError
from oar_proxy.replies import Answer, Noted
from oar_proxy.replies import Step as OwnStep
from oar_proxy.wire import messages, startup
from oar_proxy.wire.conversation import Conversation, Expected, Kind
from oar_proxy.wire.messages import HEADER
from oar_proxy.wire.requests import (
    READ_AHEAD,
    Own,
    OwnExecute,
    OwnParse,
    OwnProof,
    OwnQuery,
    Requests,
)
from oar_proxy.wire.scram import SCRAM_PLUS, Authentication, Keys

from oar_bench.wire.recording import CLIENT, HUB, MARK, Step, frames

MAX_MESSAGE: Final = 64 * 1024
"""``listen.max_message_bytes`` of these sessions."""

SQLSTATES: Final = {"08P01", "28000", "XX000", "0A000"}
"""What a broken conversation may end with."""

NOTICE: Final = messages.notice_response("asking one owner", None)
_MARK: Final = MARK.encode()
_END_POINT: Final = hashlib.sha256(b"a certificate").digest()
_KEYS: Final = Keys(bytes(32), bytes(range(32)))


def with_channel_binding(startup: Sequence[Step]) -> list[Step]:
    """Return a recorded startup as it would be under TLS, for the keys that sessions here have."""
    packet, offer, initial, challenge, final, (_, end) = startup
    first = messages.decode_sasl_initial(initial[1])[1]
    assert first is not None
    header, bare = b"p=tls-server-end-point,,", first.split(b",", 2)[2]
    _, _, rest = final[1][HEADER.size :].partition(b",")
    bound = b"c=" + base64.b64encode(header + _END_POINT) + b"," + rest
    said = b",".join((bare, challenge[1][HEADER.size + 4 :], b"c=biws", rest.partition(b",p=")[0]))
    signature = b"v=" + base64.b64encode(hmac.digest(_KEYS.server, said, "sha256"))
    return [
        packet,
        offer,
        (CLIENT, messages.sasl_initial(SCRAM_PLUS, header + bare)),
        challenge,
        (CLIENT, messages.sasl_response(bound)),
        (HUB, messages.sasl_final(signature) + b"".join(frames(end)[1:])),
    ]


class Broken(Exception):
    """A promise of the code under test that it did not keep. One line."""


@dataclass
class Outcome:
    """What came of a conversation: what either side was sent, and how it ended."""

    to_hub: bytearray
    to_client: bytearray
    end: str
    """The SQLSTATE and message it ended with; empty when it goes on."""
    state: tuple[Any, ...] = ()
    """What is remembered at the end."""


class _Names:
    """What may be ours: statements with the mark, and names that were given to one."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.may_be_statement: set[bytes] = set()
        self.may_be_portal: set[bytes] = set()

    def suspect(self, text: bytes) -> bool:
        return not self._conversation.skipping and _MARK in text

    def other_parse(self, name: bytes) -> Expected:
        return Noted(Kind.PARSE, partial(self.may_be_statement.discard, name))

    def bind(self, raw: bytes, portal: bytes, name: bytes) -> Expected:
        if name in self.may_be_statement:
            self.may_be_portal.add(portal)
        return Noted(Kind.BIND, partial(_decode, messages.decode_bind, raw))

    def close(self, kind: int, name: bytes) -> Expected:
        names = self.may_be_statement if kind == ord("S") else self.may_be_portal
        return Noted(Kind.CLOSE, partial(names.discard, name))


def _decode(decode: Any, raw: bytes) -> None:
    decode(raw)


class _Session:
    """The two sides of a session, tied together as `oar_proxy.session.Session` does."""

    def __init__(self, *, authenticated: bool, bound: bool) -> None:
        self._own: Own | None = None
        self._copy_in = False
        self.failure: OarError | None = None
        self.authentication = Authentication(_END_POINT if bound else None)
        self.conversation = Conversation(
            on_authentication=self._authenticate,
            on_key=self._key,
            on_copy_in=self._copies,
            on_ready=lambda: None,
        )
        self.requests = Requests(
            self.conversation,
            _Names(self.conversation),
            self.authentication,
            max_message=MAX_MESSAGE,
            unsettled=(),
            on_own=self._take,
        )
        if authenticated:
            self.requests.authenticated()
        else:
            self.conversation.sent(Expected(Kind.STARTUP))

    def _authenticate(self, message: bytes) -> bytes:
        if messages.decode_authentication(message) == messages.AUTHENTICATION_OK:
            self.requests.authenticated()
        return self.authentication.from_hub(message)

    def _key(self, message: bytes) -> None:
        messages.decode_backend_key(message)

    def _copies(self) -> None:
        self._copy_in = True

    def _take(self, own: Own) -> None:
        self._own = own

    @property
    def ended(self) -> OarError | None:
        return self.failure or self.requests.violation or self.conversation.confusion

    def settle(self) -> tuple[bytes, bytes]:
        """Do what a session does between two reads: its own work, and what waited for that."""
        to_hub, to_client = b"", b""
        while self._own is not None and self.ended is None:
            own, self._own = self._own, None
            asked, told = self._work(own)
            to_hub, to_client = to_hub + asked, to_client + told
            self.requests.running = False
            to_hub += b"".join(self.requests.resume())
        if self._copy_in and self.ended is None:
            self._copy_in = False
            to_hub += b"".join(self.requests.resume())
        return to_hub, to_client

    def _work(self, own: Own) -> tuple[bytes, bytes]:
        told = b""
        sent = self.conversation.sent
        match own:
            case OwnProof(raw):
                try:
                    return self.authentication.prove(raw, _KEYS), b""
                except OarError as error:
                    self.failure = error
                    return b"", b""
            case OwnQuery(raw, _):
                told += self.conversation.interject(NOTICE)
                sent(Expected(Kind.QUERY))
            case OwnParse(raw, parse):
                names = self.requests._names
                assert isinstance(names, _Names)
                names.may_be_statement.add(parse.name)
                sent(OwnStep(Kind.PARSE, shows=b"1"))
                told += self.conversation.interject(NOTICE)
            case OwnExecute(raw, _, _):
                sent(Answer(None))
        return raw, told


def converse(
    steps: Sequence[Step], cuts: Sequence[Sequence[bytes]], *, from_startup: bool, bound: bool
) -> Outcome:
    """Have a conversation, each step in the pieces given. Raises :class:`Broken`."""
    session = _Session(authenticated=not from_startup, bound=bound)
    outcome = Outcome(bytearray(), bytearray(), "")
    received = 0
    for (side, _), pieces in zip(steps, cuts, strict=True):
        for piece in pieces:
            received += len(piece)
            if side == CLIENT:
                outcome.to_hub += b"".join(session.requests.receive(piece))
            else:
                outcome.to_client += b"".join(session.conversation.receive(piece))
            _check_bounds(session, received, len(piece))
            if session.ended is not None:
                break
        if session.ended is None:
            asked, told = session.settle()
            outcome.to_hub += asked
            outcome.to_client += told
        if (error := session.ended) is not None:
            if error.sqlstate not in SQLSTATES:
                raise Broken(f"it ended with SQLSTATE {error.sqlstate}")
            outcome.end = f"{error.sqlstate} {error.message}"
            return outcome
    outcome.state = _state(session)
    return outcome


def _state(session: _Session) -> tuple[Any, ...]:
    conversation, requests = session.conversation, session.requests
    return (
        [expected.kind for expected in conversation._queue],
        conversation.skipping,
        conversation.copying,
        conversation.open_pipeline,
        conversation.implicit_block,
        conversation.status,
        conversation.withheld,
        conversation.inside_message,
        bytes(conversation._partial),
        bytes(requests.pending),
        requests.inside_message,
        requests.terminated,
    )


def _check_bounds(session: _Session, received: int, piece: int) -> None:
    """Compare what is held with what may be: nothing grows by itself, nor past its limit."""
    conversation, requests = session.conversation, session.requests
    if len(requests.pending) > max(MAX_MESSAGE, READ_AHEAD) + piece:
        raise Broken(f"{len(requests.pending)} bytes of the client's are held")
    held = len(requests.pending) + len(conversation._partial)
    if held > received:
        raise Broken(f"{held} bytes are held of {received} received")
    if len(conversation._queue) > 2 * received + 1:
        raise Broken(f"{len(conversation._queue)} answers are awaited for {received} bytes")


def read_startup(packet: bytes) -> str:
    """Read a startup packet; return what came of it. Raises :class:`Broken`."""
    try:
        return type(startup.decode(packet)).__name__
    except OarError as error:
        if error.sqlstate not in SQLSTATES:
            raise Broken(f"it ended with SQLSTATE {error.sqlstate}") from error
        return error.sqlstate
