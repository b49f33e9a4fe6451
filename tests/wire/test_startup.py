from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_proxy.errors import FeatureNotSupported, OarError, ProtocolViolation
from oar_proxy.wire import startup
from oar_proxy.wire.startup import CancelRequest, GSSENCRequest, SSLRequest, StartupMessage


def packet(major, minor, body=b"", length=None):
    return struct.pack("!IHH", 8 + len(body) if length is None else length, major, minor) + body


PARAMETERS = b"user\0anna\0database\0oar\0\0"

GOOD = {
    "TLS": (packet(1234, 5679), SSLRequest()),
    "GSSAPI": (packet(1234, 5680), GSSENCRequest()),
    "cancel, 4 byte key": (
        packet(1234, 5678, struct.pack("!I", 77) + b"abcd"),
        CancelRequest(77, b"abcd"),
    ),
    "cancel, 256 byte key": (
        packet(1234, 5678, struct.pack("!I", 77) + b"k" * 256),
        CancelRequest(77, b"k" * 256),
    ),
    "3.0": (
        packet(3, 0, PARAMETERS),
        StartupMessage(0, ((b"user", b"anna"), (b"database", b"oar")), packet(3, 0, PARAMETERS)),
    ),
    "quoted value": (
        packet(3, 2, b"user\0anna\0client_encoding\0'utf-8'\0\0"),
        StartupMessage(
            2,
            ((b"user", b"anna"), (b"client_encoding", b"'utf-8'")),
            packet(3, 2, b"user\0anna\0client_encoding\0'utf-8'\0\0"),
        ),
    ),
    "grease": (
        packet(3, 9999, b"user\0a\0_pq_.test_protocol_negotiation\0\0\0"),
        StartupMessage(
            9999,
            ((b"user", b"a"), (b"_pq_.test_protocol_negotiation", b"")),
            packet(3, 9999, b"user\0a\0_pq_.test_protocol_negotiation\0\0\0"),
        ),
    ),
}

BAD = {
    "empty": (b"", ProtocolViolation),
    "shorter than a packet can be": (packet(3, 0, length=4), ProtocolViolation),
    "negative length": (packet(3, 0, PARAMETERS, length=0xFFFFFFFF), ProtocolViolation),
    "longer than allowed": (packet(3, 0, b"x" * 9993), ProtocolViolation),
    "length says less": (packet(3, 0, PARAMETERS, length=12), ProtocolViolation),
    "length says more": (packet(3, 0, PARAMETERS, length=200), ProtocolViolation),
    "trailing byte": (packet(3, 0, PARAMETERS + b"x"), ProtocolViolation),
    "TLS with a body": (packet(1234, 5679, b"x"), ProtocolViolation),
    "cancel without a key": (packet(1234, 5678, b"\0\0\0\1"), ProtocolViolation),
    "cancel with a short key": (packet(1234, 5678, b"\0\0\0\1abc"), ProtocolViolation),
    "cancel with a long key": (packet(1234, 5678, b"\0\0\0\1" + b"k" * 257), ProtocolViolation),
    "no terminator": (packet(3, 0, b"user\0anna"), ProtocolViolation),
    "name without value": (packet(3, 0, b"user\0anna\0database\0\0"), ProtocolViolation),
    "terminator in the middle": (packet(3, 0, b"user\0a\0\0b\0c\0\0"), ProtocolViolation),
    "no user": (packet(3, 0, b"database\0oar\0\0"), ProtocolViolation),
    "no parameters": (packet(3, 0), ProtocolViolation),
    "replication": (packet(3, 0, b"user\0a\0replication\0true\0\0"), FeatureNotSupported),
    "protocol 2": (packet(2, 0, PARAMETERS), FeatureNotSupported),
    "protocol 4": (packet(4, 0, PARAMETERS), FeatureNotSupported),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", ProtocolViolation),
}


@pytest.mark.parametrize("name", GOOD)
def test_reads(name):
    raw, expected = GOOD[name]
    assert startup.packet_length(raw) == len(raw)
    assert startup.decode(raw) == expected


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    raw, error = BAD[name]
    with pytest.raises(error):
        startup.decode(raw)


@pytest.mark.parametrize("name", GOOD)
def test_every_proper_part_of_a_packet_is_refused(name):
    raw, _ = GOOD[name]
    for end in range(len(raw)):
        with pytest.raises(ProtocolViolation):
            startup.decode(raw[:end])


@pytest.mark.parametrize("value", ["off", "OF", "false", "f", "no", "n", "0"])
def test_no_replication_is_no_replication(value):
    body = b"user\0a\0replication\0" + value.encode() + b"\0\0"
    assert isinstance(startup.decode(packet(3, 0, body)), StartupMessage)


@pytest.mark.parametrize("value", ["", "on", "true", "database", "1", "o", "falsey", "yes"])
def test_any_other_value_asks_for_replication(value):
    body = b"user\0a\0replication\0" + value.encode() + b"\0\0"
    with pytest.raises(FeatureNotSupported, match="replication"):
        startup.decode(packet(3, 0, body))


def test_cancel_is_written_as_it_is_read():
    for secret in (b"abcd", b"k" * 32, b"k" * 256):
        assert startup.decode(startup.encode_cancel(9, secret)) == CancelRequest(9, secret)


def test_secrets_are_not_shown():
    assert "abcd" not in repr(CancelRequest(1, b"abcd"))
    assert "anna" not in repr(startup.decode(GOOD["3.0"][0]))


def outcome(raw):
    try:
        startup.decode(raw)
    except OarError as error:
        return error.sqlstate
    return None


@given(st.binary(max_size=64), st.sampled_from([(3, 0), (3, 2), (1234, 5678), (1234, 5679)]))
def test_any_bytes_are_read_or_refused(body, code):
    assert outcome(packet(*code, body)) in {None, "08P01", "0A000"}


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_read_or_refused(raw):
    assert outcome(raw) in {None, "08P01", "0A000"}
