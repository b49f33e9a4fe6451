from __future__ import annotations

import hashlib

import pytest
from oar_proxy.demo import orders
from oar_proxy.demo.questions import QUESTIONS, same_rows


@pytest.fixture(scope="module")
def rows():
    return orders.make()


def test_the_rows_are_the_same_everywhere(rows):
    """What the demo shows, and what is said about it, depends on these very rows."""
    digest = hashlib.sha256()
    for table in (rows.deliveries, rows.promos, rows.returns_west, rows.returns_east):
        for row in table:
            digest.update(repr(tuple(map(str, row))).encode())
    assert digest.hexdigest()[:16] == "990d535ec5e29d3b"


def test_every_question_has_a_worthwhile_answer(rows):
    sizes = [len(question.answer(rows)) for question in QUESTIONS if question.answer]
    assert sizes == [12, 1, 5, 6]


def test_returns_are_split_and_disjoint(rows):
    west = {returned.order_id for returned in rows.returns_west}
    east = {returned.order_id for returned in rows.returns_east}
    assert west
    assert east
    assert not west & east


def test_refunds_add_up_in_any_order(rows):
    refunds = [returned.refund for returned in rows.returns]
    assert sum(refunds) == sum(reversed(refunds)) == sum(sorted(refunds))


@pytest.mark.parametrize(
    ("answered", "expected", "same"),
    [
        ([(1.5, "a"), (2, "b")], [(2, "b"), (1.5, "a")], True),
        ([("a",), ("a",)], [("a",)], False),
        ([(1.0000001,)], [(1,)], True),
        ([(1.00001,)], [(1,)], False),
        ([(None,)], [(0,)], False),
        ([], [], True),
    ],
)
def test_rows_are_compared_as_a_multiset(answered, expected, same: bool):
    assert same_rows(answered, expected) is same
