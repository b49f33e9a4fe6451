"""Key passing: literals that another owner returned earlier."""

from __future__ import annotations

import pytest
from oar_bench.layout import Question
from oar_bench.paper.keys import KeyPassing, measure, passes_key
from oar_bench.paper.runs import Run, Step


def relay(*steps, **fields):
    return Run("1", "relay", "m", 1, steps=tuple(Step(*step) for step in steps), **fields)


def then(sql, *values, owner="b"):
    """A first query to owner a that returned one row, and a second one."""
    return relay(("a", "SELECT 1", (values,)), (owner, sql, ()))


@pytest.mark.parametrize(
    ("run", "passed"),
    [
        (then("SELECT 1 FROM t WHERE k = 'rec7'", "rec7"), True),
        (then('SELECT 1 FROM t WHERE k = "rec7"', "rec7"), True),
        (then("SELECT 1 FROM t WHERE k = 'O''Neil'", "O'Neil"), True),
        (then("SELECT rec7 FROM t", "rec7"), False),
        (then("SELECT 1 FROM t WHERE k = 'rec70'", "rec7"), False),
        (then("SELECT 1 FROM t WHERE k = 'rec7'", "rec7", owner="a"), False),
        (then("SELECT 1 FROM t WHERE k IN (7, 42)", 42), True),
        (then("SELECT 1 FROM t WHERE k = 42.0", 42), True),
        (then("SELECT 1 FROM t WHERE k = '42'", 42), True),
        (then("SELECT 1 FROM t WHERE k = 42", "42"), False),
        (then("SELECT 1 FROM t42 WHERE k = 420 OR k = 1.42 OR k = 42.5", 42), False),
        (then("SELECT 1 FROM t WHERE day = '2012-42-01'", 42), False),
        (then("SELECT 1 FROM t LIMIT 42", 42), False),
        (then("SELECT 1 FROM t LIMIT 5 OFFSET 42", 42), False),
        (then("SELECT 1 FROM t limit 42, 5", 5), False),
        (then("SELECT 1 FROM t WHERE k = 42 LIMIT 42", 42), True),
        (then("SELECT 1 FROM t WHERE year = 2012", 2012), False),  # the question has it
        (then("SELECT 1 FROM t WHERE k = 1 AND j = ''", True, None), False),
        # That the question has it too is said of numbers only.
        (then("SELECT 1 FROM t WHERE k = 'sold'", "sold"), True),
        (then("SELECT 1 FROM t WHERE k = -42", -42), True),
        (then("SELECT 1 FROM t WHERE k = 42.50", 42.5), True),
        (then("SELECT 1 FROM t WHERE k = 42", 42.0), True),
        (then("SELECT 1 FROM t WHERE k LIKE '%rec7%'", "rec7"), False),
        # One of several rows, in a later step than the next.
        (
            relay(("a", "SELECT 1", ((1,), (77,))), ("a", "SELECT 2", ((3,),)), ("b", "SELECT 77")),
            True,
        ),
        # The value comes after the query that has it.
        (relay(("b", "SELECT 1 FROM t WHERE k = 'x'", ()), ("a", "SELECT 1", (("x",),))), False),
        (
            relay(("a", "SELECT 1", (("x",),)), ("c", "SELECT 2", ()), ("b", "SELECT 'x'", ())),
            True,
        ),
        (relay(), False),
    ],
)
def test_a_passed_key(run, passed):
    assert passes_key(run, "What was sold in 2012?") is passed


def test_counts_are_of_two_owner_questions_only():
    two = Question("1", "o", rows=((1,),), stratum="two-owner")
    one = Question("2", "o", rows=((1,),), stratum="single-owner")
    keyed = (("a", "SELECT 1", (("x",),)), ("b", "SELECT 'x'", ()))
    right, wrong = {"outcome": "answered", "rows": ((1,),)}, {"outcome": "answered", "rows": ()}
    found = measure(
        [
            (two, relay(*keyed, **right)),
            (two, relay(*keyed, **right)),
            (two, relay(*keyed, **wrong)),
            (two, relay(**right)),
            (two, relay(outcome="stopped")),
            (one, relay(*keyed, **right)),
        ]
    )
    assert found == KeyPassing(runs=5, keyed=3, correct_keyed=2, correct_unkeyed=1)
    assert found.keyed_share == pytest.approx(60)
    assert found.keyed_accuracy == pytest.approx(200 / 3)
    assert found.unkeyed_accuracy == pytest.approx(50)
    assert found.share == pytest.approx(200 / 3)


def test_no_share_of_nothing():
    nothing = measure([])
    assert (nothing.keyed_share, nothing.share) == (None, None)
    assert (nothing.keyed_accuracy, nothing.unkeyed_accuracy) == (None, None)
