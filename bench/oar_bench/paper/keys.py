"""Key passing in relay runs, as Table 9 of the paper defines it.

A run passes a key when a later query to one owner contains a literal that another owner returned
earlier. A returned string counts where it stands quoted; a returned number where it is a token of
its own (or a whole quoted literal) that the question does not have and that is not the argument of
LIMIT or OFFSET.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from oar_bench.layout import Question
from oar_bench.paper.runs import Run
from oar_bench.paper.scoring import score

_QUOTED: Final = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"]|\"\")*)\"")
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\w)")
_LIMIT: Final = re.compile(r"\b(?:LIMIT|OFFSET)\s+\d+(?:\s*,\s*\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeyPassing:
    """Counts over the runs of two-owner questions; ``correct_keyed`` of ``keyed`` are correct."""

    runs: int
    keyed: int
    correct_keyed: int
    correct_unkeyed: int

    @property
    def keyed_share(self) -> float | None:
        """Per cent of the runs that passed a key; None without a run."""
        return 100 * self.keyed / self.runs if self.runs else None

    @property
    def share(self) -> float | None:
        """Per cent of the correct runs that passed a key; None without a correct one."""
        correct = self.correct_keyed + self.correct_unkeyed
        return 100 * self.correct_keyed / correct if correct else None

    @property
    def keyed_accuracy(self) -> float | None:
        """Per cent correct of the runs that passed a key."""
        return 100 * self.correct_keyed / self.keyed if self.keyed else None

    @property
    def unkeyed_accuracy(self) -> float | None:
        """Per cent correct of the runs that passed none."""
        unkeyed = self.runs - self.keyed
        return 100 * self.correct_unkeyed / unkeyed if unkeyed else None


def measure(runs: Iterable[tuple[Question, Run]]) -> KeyPassing:
    """Count the scored runs of two-owner questions among ``runs``."""
    found: list[tuple[bool, bool]] = []
    for question, run in runs:
        scored = score(question, run.rows, run.outcome == "abstained")
        if question.stratum == "two-owner" and scored is not None:
            found.append((passes_key(run, question.text or ""), scored.accuracy == 1))
    return KeyPassing(
        runs=len(found),
        keyed=sum(keyed for keyed, _ in found),
        correct_keyed=found.count((True, True)),
        correct_unkeyed=found.count((False, True)),
    )


def is_correct(question: Question, run: Run) -> bool:
    """Tell whether a run's answer is the reference answer, or rightly abstains."""
    scored = score(question, run.rows, run.outcome == "abstained")
    return scored is not None and scored.accuracy == 1


def passes_key(run: Run, question: str) -> bool:
    """Tell whether a query of the run has a literal that another owner returned before it."""
    asked = set(_numbers(question))
    for place, step in enumerate(run.steps):
        strings = {_unquoted(match) for match in _QUOTED.finditer(step.sql)}
        bare = _LIMIT.sub(" ", _QUOTED.sub(" '' ", step.sql))
        whole = {float(text) for text in strings if _NUMBER.fullmatch(text)}
        numbers = (set(_numbers(bare)) | whole) - asked
        for earlier in run.steps[:place]:
            if earlier.owner != step.owner and any(
                _is_literal(value, strings, numbers) for row in earlier.rows for value in row
            ):
                return True
    return False


def _is_literal(value: Any, strings: set[str], numbers: set[float]) -> bool:
    if isinstance(value, str):
        return value in strings
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) in numbers


def _unquoted(match: re.Match[str]) -> str:
    single, double = match.groups()
    return single.replace("''", "'") if single is not None else double.replace('""', '"')


def _numbers(text: str) -> Iterator[float]:
    yield from (float(number) for number in _NUMBER.findall(text))
