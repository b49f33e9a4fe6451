"""Cells as the elements of an array: what is packed comes out again, whatever it looks like."""

from __future__ import annotations

import random
import struct

import pytest
from oar_adapters.interface import Packed

COLUMNS = {
    "none": [],
    "one NULL": [None],
    "NULL among numbers": [bytes(8), None, bytes(8)],
    "of one width": [struct.pack("!q", n) for n in (-1, 0, 7, 2**62)],
    "empty": [b"", b"", b""],
    "of two widths": [b"ab", b"c"],
    "as long together as of one width": [b"ab", b"c", b"def"],
    "a cell that looks like the next one's length": [b"\0\0\0\4", b"\0\0\0\4"],
    "an empty cell before one like a length": [b"", b"\0\0\0\0"],
    "of 255 bytes": [b"x" * 255] * 2,
    "of 256 bytes": [b"x" * 256] * 2,
}


@pytest.mark.parametrize("name", COLUMNS)
def test_cells_come_out_as_they_went_in(name):
    packed = Packed.of(COLUMNS[name])
    assert list(packed) == COLUMNS[name]
    assert list(packed) == COLUMNS[name]  # again: it is a sequence
    assert len(packed) == len(COLUMNS[name])
    assert packed.nulls == (None in COLUMNS[name])


def test_cells_of_few_bytes_come_out_as_they_went_in():
    draw = random.Random(7)
    for _ in range(5_000):
        width = draw.randrange(6)
        cells = [
            bytes(draw.choice((0, width)) for _ in range(draw.choice((width, width, 3))))
            for _ in range(draw.randrange(4))
        ]
        assert list(Packed.of(cells)) == cells
