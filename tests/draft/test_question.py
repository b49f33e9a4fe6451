from __future__ import annotations

import time

import pytest
from oar_proxy.question import normalise


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("  How  many\n orders ? ", "How many orders ?"),
        ("orders  with code 'A  B'  of  May", "orders with code 'A  B' of May"),
        ('«A  B»  and "C\tD"', '«A  B» and "C\tD"'),
        ("Bob's  and  Ann's orders", "Bob's and Ann's orders"),
        # A value ends with its closing mark and a space behind it.
        ("'90s  hits of the  'top  ten'", "'90s hits of the 'top  ten'"),
        ('"never   closed', '"never closed'),
        ("cafe\u0301  'e\u0301  x'", "café 'é  x'"),
        ("", ""),
    ],
)
def test_spaces_count_in_quotes_alone(text, normalised):
    assert normalise(text) == normalised
    assert normalise(normalised) == normalised


@pytest.mark.parametrize("mark", ["«", '"', "'"])
def test_many_marks_take_no_longer_than_their_number(mark):
    began = time.process_time()
    normalise(f"{mark}x " * 200_000)
    assert time.process_time() - began < 5  # seconds; every mark with every other takes minutes
