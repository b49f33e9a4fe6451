from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_proxy.errors import InsufficientPrivilege, LimitExceeded, ProtocolViolation
from oar_proxy.federation import Parameter
from oar_proxy.wire import messages
from oar_proxy.wire.messages import Bind, Parse


def frame(code, body):
    return code + struct.pack("!I", len(body) + 4) + body


def joined(parts):
    return b"".join(parts)


DECODERS = {
    "parse": (
        messages.decode_parse,
        messages.encode_parse(b"s", b"SELECT $1", (23, 0)),
        Parse(b"s", b"SELECT $1", (23, 0)),
    ),
    "bind": (
        messages.decode_bind,
        joined(
            messages.encode_bind(
                b"p", b"s", (Parameter(23, 1, b"\0\0\0\1"), Parameter(25, 0, None)), (1,)
            )
        ),
        Bind(b"p", b"s", (1, 0), (b"\0\0\0\1", None), (1,)),
    ),
    "execute": (messages.decode_execute, messages.encode_execute(b"p", 7), (b"p", 7)),
    "execute for all rows": (
        messages.decode_execute,
        messages.encode_execute(b"p", 2**32 - 1),  # below zero, to PostgreSQL
        (b"p", 0),
    ),
    "describe": (messages.decode_target, messages.encode_describe(b"S", b"s"), (83, b"s")),
    "close": (messages.decode_target, messages.encode_close(b"P", b""), (80, b"")),
    "parameter description": (
        messages.decode_parameter_description,
        frame(b"t", struct.pack("!HII", 2, 23, 25)),
        (23, 25),
    ),
    "row description": (
        messages.decode_row_description,
        frame(b"T", b"\0\1id\0" + struct.pack("!IHIhiH", 0, 0, 23, 4, -1, 0)),
        ((b"id", 23),),
    ),
    "data row": (
        messages.decode_data_row,
        frame(b"D", b"\0\2\0\0\0\1x\xff\xff\xff\xff"),
        (b"x", None),
    ),
    "command complete": (
        messages.decode_command_complete,
        messages.command_complete(b"SELECT 5"),
        b"SELECT 5",
    ),
    "backend key": (messages.decode_backend_key, frame(b"K", b"\0\0\0\5abcd"), (5, b"abcd")),
    "long backend key": (
        messages.decode_backend_key,
        frame(b"K", b"\0\0\0\5" + b"k" * 256),
        (5, b"k" * 256),
    ),
    "mechanisms": (
        messages.decode_mechanisms,
        messages.sasl_request([b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"]),
        [b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"],
    ),
    "initial response": (
        messages.decode_sasl_initial,
        messages.sasl_initial(b"SCRAM-SHA-256", b"n,,n=,r=x"),
        (b"SCRAM-SHA-256", b"n,,n=,r=x"),
    ),
    "initial response without data": (
        messages.decode_sasl_initial,
        messages.sasl_initial(b"SCRAM-SHA-256", None),
        (b"SCRAM-SHA-256", None),
    ),
    "error": (
        messages.decode_fields,
        frame(b"E", b"SERROR\0C42601\0\0"),
        {"S": b"ERROR", "C": b"42601"},
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decodes(name):
    decode, raw, expected = DECODERS[name]
    assert decode(raw) == expected


@pytest.mark.parametrize("name", DECODERS)
def test_a_part_a_trailing_byte_or_a_lie_is_refused(name):
    decode, raw, _ = DECODERS[name]
    lies = [raw[:1] + struct.pack("!I", length) + raw[5:] for length in (0, 3, 4, 2**31, 2**32 - 1)]
    parts = [raw[:end] for end in range(len(raw))]
    for wrong in (*parts, *lies, raw + b"\0"):
        with pytest.raises(ProtocolViolation):
            decode(wrong)


@pytest.mark.parametrize("name", DECODERS)
@given(body=st.binary(max_size=80))
def test_any_body_is_read_or_refused(name, body):
    decode, raw, _ = DECODERS[name]
    try:
        decode(frame(raw[:1], body))
    except ProtocolViolation:
        return
    assert decode is not messages.decode_backend_key or 8 <= len(body) <= 260


@pytest.mark.parametrize(
    ("formats", "values", "expected"),
    [
        ((), (b"a", b"b"), (0, 0)),
        ((1,), (b"a", b"b"), (1, 1)),
        ((0, 1), (b"a", b"b"), (0, 1)),
        ((1,), (), ()),
        ((), (), ()),
    ],
)
def test_formats_stand_for_none_one_or_each(formats, values, expected):
    assert Bind(b"", b"", formats, values, ()).value_formats() == expected


def test_formats_of_another_number_are_refused():
    with pytest.raises(ProtocolViolation):
        Bind(b"", b"", (0, 1), (b"a", b"b", b"c"), ()).value_formats()


def test_a_message_postgresql_cannot_read_is_not_written():
    cell = bytes(1024 * 1024)
    with pytest.raises(LimitExceeded):
        messages.encode_bind(b"", b"", [Parameter(17, 1, cell)] * 1024)
    with pytest.raises(LimitExceeded):
        messages.encode_bind(b"", b"", [Parameter(17, 1, None)] * 65536)


def test_errors_carry_every_field():
    error = InsufficientPrivilege("denied", detail="theirs", hint="ask", position=3)
    fields = messages.decode_fields(messages.error_response(error, shift=10))
    assert fields == {
        "S": b"ERROR",
        "V": b"ERROR",
        "C": b"42501",
        "M": b"denied",
        "D": b"theirs",
        "H": b"ask",
        "P": b"13",
    }


@pytest.mark.parametrize(("shift", "position"), [(0, b"5"), (7, b"12"), (None, None)])
def test_positions_move(shift, position):
    response = messages.encode_fields(b"E", {"C": b"42601", "P": b"5"})
    moved = messages.decode_fields(messages.with_position(response, shift))
    assert moved.get("P") == position
    without = messages.encode_fields(b"E", {"C": b"42601"})
    assert messages.with_position(without, shift) is without


def test_a_zero_byte_does_not_end_a_field_early():
    error = InsufficientPrivilege("a\0b")
    assert messages.decode_fields(messages.error_response(error))["M"] == b"ab"
