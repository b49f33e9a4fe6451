"""The exchange of RFC 7677's example, bound to a certificate on one side and not on the other."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_proxy.errors import InvalidAuthorization, OarError, ProtocolViolation
from oar_proxy.wire import messages
from oar_proxy.wire.scram import Authentication, Keys, decode_verifier

# RFC 7677, 3: user "user", password "pencil".
CLIENT_FIRST = b"n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
NONCE = SERVER_FIRST.partition(b",")[0]
PROOF_UNBOUND = b"c=biws," + NONCE + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
HUBS_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

SALTED = hashlib.pbkdf2_hmac(
    "sha256", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096
)
CLIENT_KEY = hmac.digest(SALTED, b"Client Key", "sha256")
KEYS = Keys(hashlib.sha256(CLIENT_KEY).digest(), hmac.digest(SALTED, b"Server Key", "sha256"))

END_POINT = hashlib.sha256(b"a certificate").digest()
HEADER = b"p=tls-server-end-point,,"


def request(kind, content=b""):
    body = struct.pack("!I", kind) + content
    return b"R" + struct.pack("!I", len(body) + 4) + body


OFFER = messages.sasl_request([b"SCRAM-SHA-256"])
BOTH = messages.sasl_request([b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"])


def signed(key, unproved):
    return hmac.digest(key, b",".join((CLIENT_FIRST, SERVER_FIRST, unproved)), "sha256")


def proof(end_point=END_POINT, header=HEADER):
    unproved = b"c=" + base64.b64encode(header + end_point) + b"," + NONCE
    signature = signed(KEYS.stored, unproved)
    proved = bytes(a ^ b for a, b in zip(CLIENT_KEY, signature, strict=True))
    return unproved + b",p=" + base64.b64encode(proved)


@pytest.fixture
def bound():
    """An exchange in which the client's proof is due."""
    exchange = Authentication(END_POINT)
    assert exchange.from_hub(OFFER) == BOTH
    first = messages.sasl_initial(b"SCRAM-SHA-256-PLUS", HEADER + CLIENT_FIRST)
    assert exchange.from_client(first) == messages.sasl_initial(
        b"SCRAM-SHA-256", b"n,," + CLIENT_FIRST
    )
    challenge = request(11, SERVER_FIRST)
    assert exchange.from_hub(challenge) == challenge
    assert exchange.proof_is_due
    return exchange


def test_the_hub_gets_the_proof_that_the_client_would_give_it(bound):
    given_to_hub = bound.prove(messages.sasl_response(proof()), KEYS)
    assert given_to_hub == messages.sasl_response(PROOF_UNBOUND)
    final = bound.from_hub(request(12, HUBS_SIGNATURE))
    unproved = proof().rpartition(b",p=")[0]
    assert final == request(12, b"v=" + base64.b64encode(signed(KEYS.server, unproved)))
    assert bound.from_hub(request(0)) == request(0)


def test_a_hub_that_does_not_know_the_user_is_not_believed(bound):
    bound.prove(messages.sasl_response(proof()), KEYS)
    with pytest.raises(ProtocolViolation):
        bound.from_hub(request(12, b"v=" + base64.b64encode(bytes(32))))


@pytest.mark.parametrize(
    ("end_point", "header"),
    [
        (bytes(32), HEADER),
        (b"", HEADER),
        (b"", b"n,,"),
        (b"", b"y,,"),
        (END_POINT, b"p=tls-unique,,"),
        (END_POINT, b"p=tls-server-end-point,a=x,"),
    ],
)
def test_a_proof_for_anything_else_is_refused(bound, end_point, header):
    with pytest.raises(InvalidAuthorization):
        bound.prove(messages.sasl_response(proof(end_point, header)), KEYS)


def test_with_the_keys_of_nobody_the_proof_is_worth_nothing(bound):
    given_to_hub = bound.prove(messages.sasl_response(proof()), Keys.of_nobody())
    assert given_to_hub != messages.sasl_response(PROOF_UNBOUND)
    assert len(given_to_hub) == len(messages.sasl_response(PROOF_UNBOUND))


def test_without_a_certificate_all_passes_as_it_is():
    exchange = Authentication(None)
    for message in (OFFER, request(11, SERVER_FIRST), request(12, HUBS_SIGNATURE), request(0)):
        assert exchange.from_hub(message) is message
        assert not exchange.proof_is_due
    for content in (b"", b"y,,n=", PROOF_UNBOUND):
        message = messages.sasl_response(content)
        assert exchange.from_client(message) is message


@pytest.mark.parametrize("kind", [0, 3, 5, 7, 9])
def test_other_ways_to_authenticate_pass_as_they_are(kind):
    exchange = Authentication(END_POINT)
    asked, password = request(kind, b"salt"), messages.sasl_response(b"secret\0")
    assert exchange.from_hub(asked) is asked
    assert exchange.from_client(password) is password


def test_channel_binding_by_a_certificate_of_the_hubs_is_not_offered():
    assert Authentication(None).from_hub(BOTH) == OFFER
    assert Authentication(END_POINT).from_hub(BOTH) == BOTH
    with pytest.raises(ProtocolViolation):
        Authentication(None).from_hub(messages.sasl_request([b"SCRAM-SHA-256-PLUS"]))


def test_mechanisms_that_are_not_known_pass():
    exchange = Authentication(END_POINT)
    offer = messages.sasl_request([b"OAUTHBEARER"])
    assert exchange.from_hub(offer) == offer
    token = messages.sasl_initial(b"OAUTHBEARER", b"n,,\1auth=Bearer x\1\1")
    assert exchange.from_client(token) is token


@pytest.mark.parametrize(
    ("verifier", "known"),
    [
        ("SCRAM-SHA-256$4096:c2FsdA==$" + "A" * 43 + "=:" + "B" * 43 + "=", True),
        ("md5" + "0" * 32, False),
        ("SCRAM-SHA-256$4096:c2FsdA==$", False),
        ("", False),
        (None, False),
    ],
)
def test_verifiers(verifier, known):
    assert (decode_verifier(verifier) is not None) is known


def test_keys_are_not_shown():
    assert repr(KEYS) == "Keys()"


@given(
    offered=st.booleans(),
    steps=st.lists(
        st.one_of(
            st.binary(max_size=60).map(messages.sasl_response),
            st.builds(
                messages.sasl_initial,
                st.sampled_from([b"SCRAM-SHA-256", b"SCRAM-SHA-256-PLUS", b"X"]),
                st.one_of(
                    st.none(),
                    st.binary(max_size=20),
                    st.sampled_from([HEADER + CLIENT_FIRST, b"n,," + CLIENT_FIRST, b"y,,"]),
                ),
            ),
            st.sampled_from([proof(), PROOF_UNBOUND]).map(messages.sasl_response),
            st.sampled_from(
                [OFFER, BOTH, request(11, SERVER_FIRST), request(12, b"v="), request(0)]
            ),
        ),
        max_size=6,
    ),
)
def test_any_exchange_passes_or_is_refused(offered, steps):
    exchange = Authentication(END_POINT if offered else None)
    try:
        for message in steps:
            if message[:1] == b"R":
                exchange.from_hub(message)
            elif exchange.proof_is_due:
                exchange.prove(message, KEYS)
            else:
                exchange.from_client(message)
    except OarError:
        return
