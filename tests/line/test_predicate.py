"""Conditions as EXPLAIN prints them, read into what an adapter is asked."""

from __future__ import annotations

import pytest
from oar_proxy import predicate
from oar_proxy.catalog import PublishedColumn, PublishedTable

TABLE = PublishedTable(
    schema="shop",
    name="t",
    columns=(
        PublishedColumn("x", "double precision", False, None),
        PublishedColumn("k", "bigint", False, None),
    ),
    holders=(),
    planning_name="t",
)


@pytest.mark.parametrize(
    ("condition", "sent"),
    [
        ("(\"o:1\".x = '0.3'::double precision)", False),
        ("(\"o:1\".x = ANY ('{0.3,7}'::double precision[]))", False),
        ('(("o:1".k = 7) OR ("o:1".x > \'0.3\'::double precision))', False),
        ("(NOT (\"o:1\".x = '0.3'::double precision))", False),
        ('("o:1".x IS NULL)', True),
        ('("o:1".k = 7)', True),
    ],
)
def test_a_float_that_was_printed_short_is_not_sent(condition, sent):
    assert predicate.read(condition, TABLE, "o:1") is not None
    assert (predicate.read(condition, TABLE, "o:1", exact_floats=False) is not None) == sent
