from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from oar_proxy.wire.stepping import after_rows

ROW, END = b"D", b"Cabc"


def message(code: bytes, length: int) -> bytes:
    # Contents that look like headers of their own, so that only true ones may be taken for such.
    return code + struct.pack("!I", 4 + length) + (b"D\0\0\0\x08" * (length // 5 + 1))[:length]


def one_by_one(chunk: bytes) -> int:
    at, (code, length) = 0, struct.unpack_from("!BI", chunk)
    while code == ROW[0]:
        at += 1 + length
        if at > len(chunk) - 5:
            break
        code, length = struct.unpack_from("!BI", chunk, at)
    return at


stretches = st.lists(
    st.tuples(st.integers(0, 3000), st.sampled_from([0, 1, 4, 5, 9, 10, 251, 252, 256, 300])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300)
@given(stretches, st.sampled_from([END, b"", b"Z", b"D\0\0\0", b"D\0\0\0\xff", b"d\0\0\0\x04"]))
def test_rows_end_where_they_do_one_by_one(lengths, behind):
    rows = b"".join(message(ROW, length) * count for count, length in lengths)
    chunk = message(ROW, 7) + rows + behind
    assert after_rows(chunk, 0) == one_by_one(chunk)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=2000), st.integers(5, 60_000))
def test_rows_of_any_length_cut_anywhere(lengths, cut):
    chunk = b"".join(message(ROW, length) for length in lengths)[:cut]
    if len(chunk) >= 5:
        assert after_rows(chunk, 0) == one_by_one(chunk)


pieces = st.sampled_from([b"D", b"\0", b"\4", b"D\0\0\0\0", b"D\0\0\0\1" * 50, b"\0" * 200, b"Z"])


@given(st.lists(pieces, min_size=5, max_size=40))
def test_lengths_that_lie(parts):
    chunk = b"D" + b"".join(parts)
    assert after_rows(chunk, 0) == one_by_one(chunk)
