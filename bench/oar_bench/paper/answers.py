"""Recorded drafts compiled by the proxy, against the paper's centralized reference.

The reference runs the same draft once on the owners' merged tables (Appendix A); both are scored
against the question's reference answer. Neither is cut to the paper's 100 rows or 8,000 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from oar_bench import ask
from oar_bench.drafts import Draft
from oar_bench.layout import Benchmark
from oar_bench.paper.comparison import Scored
from oar_bench.paper.scoring import Score, score


@dataclass(frozen=True, slots=True)
class Replayed:
    """One model's drafts, scored by question."""

    compiled: Scored
    centralized: Scored


async def measure(
    benchmark: Benchmark, drafts: Mapping[str, Mapping[str, Draft]], directory: Path
) -> dict[str, Replayed]:
    """Replay each model's drafts of the questions that have rows: model → scores.

    Models without a scored question are left out. Raises what :func:`oar_bench.ask.replay` raises.
    """
    results = {}
    for model, scores in (await ask.replay(benchmark, drafts, directory)).items():
        compiled: dict[str, Score] = {}
        centralized: dict[str, Score] = {}
        for one in scores.answered:
            question = one.asked.question
            got, want = _score(one, one.answer), _score(one, one.merged)
            if got is not None and want is not None:
                compiled[question.id], centralized[question.id] = got, want
        if compiled:
            results[model] = Replayed(compiled, centralized)
    return results


def _score(one: ask.Answered, answer: ask.Answer | None) -> Score | None:
    """Score what came back; an empty draft abstains, one that cannot be sent has failed."""
    if answer is None or isinstance(answer, psycopg.Error):
        empty = answer is None and one.asked.draft is not None and not one.asked.draft.sql.strip()
        abstained = empty or (answer is not None and ask.is_abstention(answer))
        return score(one.asked.question, None, abstained)
    return score(one.asked.question, ask.result_rows(answer), abstained=False)
