"""Authentication as it passes between client and hub; SCRAM with channel binding under our TLS.

Without channel binding every message passes as it is: the hub alone authenticates clients.

Channel binding (RFC 5802 with RFC 5929, ``tls-server-end-point``) has the client prove, along with
its password, which certificate it sees: nobody in between can pass the exchange on. That is the
proxy's certificate, which the hub does not know, so the client's proof would mean nothing to the
hub. What both exchanges have in common is ClientKey. With the user's verifier the proxy takes it
out of the client's proof and proves it to the hub. Whether it is right is for the hub to say, as
is everything else: whose password has expired, who may not log in, and what salt a user has whom
there is not. The proxy decides one thing, that the client saw the proxy's certificate.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.errors import InvalidAuthorization, ProtocolViolation
from oar_proxy.wire import messages
from oar_proxy.wire.messages import HEADER

SCRAM: Final = b"SCRAM-SHA-256"
SCRAM_PLUS: Final = b"SCRAM-SHA-256-PLUS"

_BINDING_TYPE: Final = b"tls-server-end-point"
_UNBOUND: Final = b"c=" + base64.b64encode(b"n,,")
_KEY_SIZE: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Keys:
    """StoredKey and ServerKey of a user (RFC 5802, 3)."""

    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)

    @classmethod
    def of_nobody(cls) -> Keys:
        """Keys that no password fits, for a user who has none: the exchange goes on as ever."""
        return cls(secrets.token_bytes(_KEY_SIZE), secrets.token_bytes(_KEY_SIZE))


_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$\d+:[^$:]+\$([^$:]+):([^$:]+)")


def decode_verifier(verifier: str | None) -> Keys | None:
    """Read what PostgreSQL keeps of a password; None when that is no SCRAM verifier."""
    match = _VERIFIER.fullmatch(verifier or "")
    return None if match is None else Keys(*map(base64.b64decode, match.groups()))


class _Awaited(enum.Enum):
    """What comes next of an exchange that has to be looked at."""

    MECHANISM = enum.auto()
    CLIENT_FIRST = enum.auto()
    SERVER_FIRST = enum.auto()
    CLIENT_FINAL = enum.auto()
    SERVER_FINAL = enum.auto()


class Authentication:
    """The exchange of one client and the hub.

    ``end_point`` is the hash of the certificate that the client's TLS connection has (RFC 5929, 4),
    None where channel binding is not to be offered.
    """

    def __init__(self, end_point: bytes | None) -> None:
        self._end_point = end_point
        self._awaited: _Awaited | None = None
        self._bound = False
        self._header = b""
        self._client_first = b""
        self._server_first = b""
        self._due = b""
        """The hub's signature that shows that it knows the user, and then ours for the client."""
        self._signature = b""

    # --- from the hub ---------------------------------------------------------------------------

    def from_hub(self, message: bytes) -> bytes:
        """Return what the client gets of an Authentication message.

        Raises :class:`~oar_proxy.errors.ProtocolViolation` for what the hub should not say.
        """
        kind = messages.decode_authentication(message)
        if kind == messages.AUTHENTICATION_SASL:
            return self._offer(message)
        content = message[HEADER.size + 4 :]
        if kind == messages.AUTHENTICATION_SASL_CONTINUE and self._is(_Awaited.SERVER_FIRST):
            self._server_first = content
            self._awaited = _Awaited.CLIENT_FINAL
        if kind == messages.AUTHENTICATION_SASL_FINAL and self._is(_Awaited.SERVER_FINAL):
            self._awaited = None
            if not hmac.compare_digest(content, self._due):
                raise ProtocolViolation("the hub does not know the user's verifier")
            return messages.sasl_final(self._signature)
        return message

    def _offer(self, message: bytes) -> bytes:
        """Offer channel binding by our certificate, and none by a certificate of the hub's."""
        offered = messages.decode_mechanisms(message)
        mechanisms = [name for name in offered if not name.endswith(b"-PLUS")]
        if not mechanisms:
            raise ProtocolViolation("the hub offers no authentication without channel binding")
        if self._end_point is not None and SCRAM in mechanisms:
            self._awaited = _Awaited.MECHANISM
            mechanisms.insert(mechanisms.index(SCRAM), SCRAM_PLUS)
        elif SCRAM_PLUS in offered:
            self._awaited = _Awaited.MECHANISM  # to tell what the hub would take for an attack
        return message if mechanisms == offered else messages.sasl_request(mechanisms)

    # --- from the client ------------------------------------------------------------------------

    @property
    def proof_is_due(self) -> bool:
        """The client's next message is its proof, which :meth:`prove` has to translate."""
        return self._is(_Awaited.CLIENT_FINAL)

    def from_client(self, message: bytes) -> bytes:
        """Return what the hub gets of a message of the client's, other than its proof.

        Raises :class:`~oar_proxy.errors.ProtocolViolation` and
        :class:`~oar_proxy.errors.InvalidAuthorization`.
        """
        if self._is(_Awaited.MECHANISM):
            mechanism, first = messages.decode_sasl_initial(message)
            if mechanism != SCRAM and (mechanism != SCRAM_PLUS or self._end_point is None):
                self._awaited = None
                return message
            self._bound = mechanism == SCRAM_PLUS
            self._awaited = _Awaited.CLIENT_FIRST
            return messages.sasl_initial(SCRAM, None if first is None else self._first(first))
        if self._is(_Awaited.CLIENT_FIRST):
            return messages.sasl_response(self._first(message[HEADER.size :]))
        return message

    def _first(self, message: bytes) -> bytes:
        """Return the client-first-message for the hub."""
        flag, authorization, bare = _split(message)
        if not self._bound:
            self._awaited = None
            if flag == b"y" and self._end_point is None:
                raise InvalidAuthorization(
                    "SCRAM channel binding negotiation error",
                    detail="The client supports SCRAM channel binding, as the hub does, and the"
                    " proxy between them cannot offer it.",
                    hint="set the driver's channel_binding to disable, or let the hub's role read"
                    " its users' verifiers",
                )
            if flag == b"y":
                raise InvalidAuthorization(
                    "SCRAM channel binding negotiation error",
                    detail="The client supports SCRAM channel binding but thinks the server does"
                    " not.  However, this server does support channel binding.",
                )
            return message
        if flag in (b"n", b"y"):
            raise _malformed(
                "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include"
                " channel binding data."
            )
        if flag != b"p=" + _BINDING_TYPE:
            raise ProtocolViolation("unsupported SCRAM channel-binding type")
        self._header = message.removesuffix(bare)
        self._client_first = bare
        self._awaited = _Awaited.SERVER_FIRST
        return b"n," + authorization + b"," + bare

    def prove(self, message: bytes, keys: Keys) -> bytes:
        """Check the channel binding of the client's proof; return the proof that the hub gets.

        Raises as :meth:`from_client`.
        """
        assert self._end_point is not None
        unproved, comma, encoded = message[HEADER.size :].rpartition(b",p=")
        binding, _, rest = unproved.partition(b",")
        if not comma or not binding.startswith(b"c="):
            raise _malformed("Attribute expected in client-final-message.")
        seen = b"c=" + base64.b64encode(self._header + self._end_point)
        if not hmac.compare_digest(binding, seen):
            raise InvalidAuthorization("SCRAM channel binding check failed")
        try:
            proof = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            proof = b""
        if len(proof) != _KEY_SIZE:
            raise _malformed("Malformed proof in client-final-message.")
        self._awaited = _Awaited.SERVER_FINAL
        for_hub = _UNBOUND + b"," + rest
        client_key = _xor(proof, self._sign(keys.stored, unproved))
        self._due = self._server_signature(keys, for_hub)
        self._signature = self._server_signature(keys, unproved)
        proved = base64.b64encode(_xor(client_key, self._sign(keys.stored, for_hub)))
        return messages.sasl_response(for_hub + b",p=" + proved)

    def _server_signature(self, keys: Keys, unproved: bytes) -> bytes:
        return b"v=" + base64.b64encode(self._sign(keys.server, unproved))

    def _sign(self, key: bytes, unproved: bytes) -> bytes:
        """Sign the AuthMessage that ends in a client-final-message-without-proof."""
        said = b",".join((self._client_first, self._server_first, unproved))
        return hmac.digest(key, said, "sha256")

    def _is(self, awaited: _Awaited) -> bool:
        return self._awaited is awaited


def _split(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Return channel binding flag, authorization identity, and client-first-message-bare."""
    parts = message.split(b",", 2)
    if len(parts) != 3:
        raise _malformed("Attribute expected in client-first-message.")
    return parts[0], parts[1], parts[2]


def _malformed(detail: str) -> ProtocolViolation:
    return ProtocolViolation("malformed SCRAM message", detail=detail)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
