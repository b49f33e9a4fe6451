from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_adapters.interface import Packed
from oar_proxy import matching

WIDTHS = sorted(set(matching.WIDTHS.values()))


def packed(numbers, width, size=3):
    """A column in chunks of at most ``size`` cells."""
    cells = [None if n is None else n.to_bytes(width, "big", signed=True) for n in numbers]
    return [Packed.of(cells[at : at + size]) for at in range(0, len(cells), size)]


def numbers_of(column):
    return [int.from_bytes(cell, "big", signed=True) for cell in column]


@st.composite
def columns(draw, **options):
    width = draw(st.sampled_from(WIDTHS))
    most = 2 ** (8 * width - 1)
    extremes = st.sampled_from([-most, most - 1, 0, 1, -1])
    number = st.one_of(st.integers(-4, 4), extremes, st.integers(-most, most - 1))
    return width, draw(st.lists(number, **options)), draw(st.lists(number, min_size=1, **options))


@given(columns(max_size=40))
def test_cells_among_the_keys_become_the_first_of_them(drawn):
    width, numbers, keys = drawn
    marked = matching.marked(packed(numbers, width), packed(keys, width), width, once=False)
    assert len(marked) == len(numbers)
    found = [number == keys[0] for number in numbers_of(marked)]
    assert found == [number in keys for number in numbers]


@given(columns(max_size=10))
def test_a_key_that_comes_twice_is_no_key_of_one_row(drawn):
    width, numbers, keys = drawn
    marked = matching.marked(packed(numbers, width), packed(keys, width), width, once=True)
    assert (marked is None) == (len(set(keys)) < len(keys))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("numbers", "keys"),
    [([1, None], [1]), ([1, 2], [None, 1]), ([], []), ([1], []), ([None] * 9, [1])],
)
def test_with_a_null_or_without_a_key_nothing_is_told(width, numbers, keys):
    column, held = packed(numbers, width), packed(keys, width)
    assert matching.marked(column, held, width, once=False) is None


def test_cells_of_another_width_that_make_up_the_same_length_are_not_taken_for_numbers():
    # Two cells of 12 bytes each with their lengths, and two that have 24 together.
    odd = [Packed.of([b"\0" * 4, b"\0" * 12])]
    assert len(odd[0].elements) == 24
    assert matching.marked(odd, packed([0], 8), 8, once=False) is None
