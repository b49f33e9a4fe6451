"""Exact multiset match and row-level F1."""

from __future__ import annotations

import pytest
from oar_bench.layout import Question
from oar_bench.paper.scoring import Score, mean, score

RIGHT, WRONG = Score(1, 1, 0, 0), Score(0, 0, 0, 0)
ABSTAINED, FAILED = Score(0, 0, 1, 0), Score(0, 0, 0, 1)


def asked(*rows, unanswerable=False):
    return Question("1", "o", rows=rows, unanswerable=unanswerable)


@pytest.mark.parametrize(
    ("question", "rows", "abstained", "scored"),
    [
        (asked((1, "x"), (2, "y")), [(2.0, "y"), ("1", "x")], False, RIGHT),
        (asked((1,), (1,), (2,)), [(1,), (2,)], False, Score(0, 0.8, 0, 0)),
        (asked((1,), (2,)), [(1,)], False, Score(0, pytest.approx(2 / 3), 0, 0)),
        (asked((1,), (2,)), [(2,), (3,), (4,), (5,)], False, Score(0, pytest.approx(1 / 3), 0, 0)),
        (asked((1, 2)), [(2, 1)], False, WRONG),
        (asked((1,)), [], False, WRONG),
        (asked(), [], False, RIGHT),
        (asked(), [(1,)], False, WRONG),
        (asked((1,)), None, True, ABSTAINED),
        (asked((1,)), None, False, FAILED),
        (asked(unanswerable=True), None, True, Score(1, 1, 1, 0)),
        (asked(unanswerable=True), None, False, FAILED),
        (asked(unanswerable=True), [], False, WRONG),
        (Question("1", "o"), [(1,)], False, None),
    ],
)
def test_score(question, rows, abstained, scored):
    assert score(question, rows, abstained) == scored


def test_means_are_taken_of_every_score():
    two = [Score(1, 0.5, 0, 0, 4, 100, 2.0), Score(0, 0, 1, 0, 2, 50, 1.0)]
    assert mean(two) == Score(0.5, 0.25, 0.5, 0, 3, 75, 1.5)
    with pytest.raises(ValueError, match="no scores"):
        mean([])
