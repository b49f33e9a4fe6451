"""Which tests of the conformance suite are there for an adapter that cannot do everything."""

from __future__ import annotations

import pytest
from oar_adapters.testing.conformance import STATEMENTS, AdapterConformance


def collected(suite):
    return {name for name in dir(suite) if name.startswith("test_") and getattr(suite, name)}


@pytest.mark.parametrize(
    ("cannot", "left_out"),
    [
        ((), set()),
        (("text LIKE", "date max"), set()),
        (("first rows",), {"test_sends_the_first_rows_by_every_column_with_an_order"}),
        (("text IN", "boolean IN"), set()),
        (("statement rows",), {"test_counts_a_whole_statement_between_two_batches_of_it"}),
        (
            STATEMENTS,
            {
                "test_answers_whole_statements",
                "test_counts_a_whole_statement_between_two_batches_of_it",
            },
        ),
        (
            ("wrong values",),
            {
                "test_fails_on_a_value_of_another_type",
                "test_aggregates_no_value_of_another_type",
            },
        ),
    ],
)
def test_what_an_adapter_cannot_do_is_not_collected(cannot, left_out):
    suite = type("Suite", (AdapterConformance,), {"cannot": frozenset(cannot)})
    assert collected(AdapterConformance) - collected(suite) == left_out
