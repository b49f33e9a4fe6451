"""The paper's scores of one answer: exact multiset match and row-level F1.

Both compare rows under one normalisation of values, that of ``oar bench ask``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, Literal

from oar_bench.ask import normal_rows
from oar_bench.layout import Question

Share = Literal["accuracy", "f1", "abstained", "failed"]
"""The scores that are shares of the questions."""


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one run, or their means over several; all but the costs are between 0 and 1.

    ``failed`` ended with neither rows nor an abstention. Costs are sums over everything that the
    question took; ``dollars`` are None where the price of a part is not known.
    """

    accuracy: float
    f1: float
    abstained: float
    failed: float
    calls: float = 0
    tokens: float = 0
    seconds: float = 0
    dollars: float | None = 0


def score(
    question: Question, rows: Iterable[Iterable[Any]] | None, abstained: bool
) -> Score | None:
    """Score an answer, ``rows`` None where there is none; None without a reference answer.

    Abstaining is right on an unanswerable question, and F1 then is 1.
    """
    failed = float(rows is None and not abstained)
    if question.unanswerable:
        return Score(float(abstained), float(abstained), float(abstained), failed)
    if question.rows is None:
        return None
    if rows is None:
        return Score(0, 0, float(abstained), failed)
    want, got = normal_rows(question.rows), normal_rows(rows)
    common, all_rows = (want & got).total(), want.total() + got.total()
    return Score(float(want == got), 2 * common / all_rows if all_rows else 1.0, 0, 0)


def mean(scores: Iterable[Score]) -> Score:
    """Average scores, of a question's runs or of questions. Raises ``ValueError`` without any."""
    taken = list(scores)
    if not taken:
        raise ValueError("no scores")
    return Score(*(_mean([getattr(one, f.name) for one in taken]) for f in fields(Score)))


def _mean(values: list[float | None]) -> Any:
    """Average values; None, unknown, where one is."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
