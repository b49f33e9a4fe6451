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


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        # A number is the same whatever its type and its text.
        (1, 1.0, True),
        (1, "1", True),
        (1.5, "1.50", True),
        (1000, "1e3", True),
        (-0.5, "-.5", True),
        (0, -0.0, True),
        (True, 1, True),
        (False, "0", True),
        # To nine digits, wherever the point is.
        (2 / 3, 0.666666667, True),
        (2 / 3, 0.66666667, False),
        (1234567890.1, 1234567890.4, True),
        (123456789, 123456788, False),
        # Everything else is as it is written.
        ("a", "A", False),
        ("a", "a ", False),
        ("1,000", 1000, False),
        ("1 ", 1, False),
        ("2024-01-01", "2024-01-01", True),
        ("2024-01-01", "2024-1-1", False),
        ("NaN", "NaN", True),
        (None, None, True),
        (None, "", False),
        (None, 0, False),
        ("", 0, False),
    ],
)
def test_values_are_normalised(want, got, same):
    assert score(asked((want,)), [(got,)], abstained=False).accuracy == same


@pytest.mark.parametrize(
    ("want", "got", "f1"),
    [
        # Row precision 2/3, row recall 2/4: 2 * 2 / (3 + 4).
        ("aabc", "abx", 4 / 7),
        # Multisets: of three a's one is there.
        ("a", "aaa", 2 / 4),
        ("aab", "abb", 4 / 6),
        ("ab", "ba", 1),
        ("ab", "cd", 0),
        ("", "a", 0),
    ],
)
def test_f1_is_of_rows_as_a_multiset(want, got, f1):
    rows = [(value,) for value in got]
    assert score(asked(*want), rows, abstained=False).f1 == pytest.approx(f1)


def test_an_unknown_price_leaves_the_mean_unknown():
    known, unknown = Score(1, 1, 0, 0, dollars=0.5), Score(1, 1, 0, 0, dollars=None)
    assert mean([known, known]).dollars == 0.5
    assert mean([known, unknown]).dollars is None


def test_means_are_taken_of_every_score():
    two = [Score(1, 0.5, 0, 0, 4, 100, 2.0), Score(0, 0, 1, 0, 2, 50, 1.0)]
    assert mean(two) == Score(0.5, 0.25, 0.5, 0, 3, 75, 1.5, 0)
    with pytest.raises(ValueError, match="no scores"):
        mean([])
