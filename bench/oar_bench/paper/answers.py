"""Recorded drafts compiled by the proxy, against the paper's centralized reference.

The reference runs the same draft once on the owners' merged tables (Appendix A); both are scored
against the question's reference answer. Neither is cut to the paper's 100 rows or 8,000 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from oar_bench import ask
from oar_bench.drafts import Draft
from oar_bench.layout import Benchmark, Question
from oar_bench.paper.comparison import (
    STRATA,
    Scored,
    contrast,
    per_cent,
    within,
)
from oar_bench.paper.figures import Column, Figure, Row, Table, estimated, figure
from oar_bench.paper.scoring import Score, Share, score

SHARES: Final[Mapping[Share, str]] = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "abstained": "Abst.",
    "failed": "Failed",
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """One model's drafts on one benchmark, scored by question.

    ``drafts`` are those of the scored questions. Of ``compared`` drafts, which run on the merged
    tables, ``equal`` give an answer through the proxy that the merged tables give too.
    """

    name: str
    questions: Mapping[str, Question]
    drafts: Mapping[str, Draft]
    compiled: Scored
    centralized: Scored
    compared: int
    equal: int


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
        questions: dict[str, Question] = {}
        for one in scores.answered:
            question = one.asked.question
            got, want = _score(one, one.answer), _score(one, one.merged)
            if got is not None and want is not None:
                compiled[question.id], centralized[question.id] = got, want
                questions[question.id] = question
        if compiled:
            results[model] = Replayed(
                f"{benchmark.name}, {model}",
                questions,
                drafts[model],
                compiled,
                centralized,
                scores.compared,
                scores.equal_to_merged,
            )
    return results


def _score(one: ask.Answered, answer: ask.Answer | None) -> Score | None:
    """Score what came back; an empty draft abstains, one that cannot be sent has failed."""
    if answer is None or isinstance(answer, psycopg.Error):
        empty = answer is None and one.asked.draft is not None and not one.asked.draft.sql.strip()
        abstained = empty or (answer is not None and ask.is_abstention(answer))
        return score(one.asked.question, None, abstained)
    return score(one.asked.question, ask.result_rows(answer), abstained=False)


def answers_table(replayed: Sequence[Replayed]) -> Table:
    """Compiled drafts and the same drafts on merged tables, by stratum."""
    rows = []
    for one in replayed:
        for stratum, name in STRATA.items():
            compiled, central = (
                within(scored, one.questions, stratum) for scored in (one.compiled, one.centralized)
            )
            if compiled:
                figures = (
                    Figure(len(compiled)),
                    *(figure(per_cent(compiled, share)) for share in SHARES),
                    *(figure(per_cent(central, share)) for share in SHARES),
                    estimated(contrast(compiled, central)),
                )
                rows.append(Row(one.name, figures, name))
    return Table(
        "answers",
        "compiled drafts, and the same drafts on merged tables",
        (
            Column("Qs", "count"),
            *(Column(name, "%", "Compiled") for name in SHARES.values()),
            *(Column(name, "%", "Merged tables") for name in SHARES.values()),
            Column("Compiled ahead", "points"),
        ),
        tuple(rows),
        part="stratum",
        note="Failed: neither rows nor an abstention. In brackets 95 % intervals.",
    )


def equality_table(replayed: Sequence[Replayed]) -> Table:
    """How many drafts give the same answer both ways, where SQL leaves it open included."""
    rows = []
    for one in replayed:
        differ = sum(
            scored.accuracy != one.centralized[key].accuracy for key, scored in one.compiled.items()
        )
        counts = (one.compared, one.equal, differ)
        rows.append(Row(one.name, tuple(map(Figure, counts))))
    return Table(
        "equality",
        "drafts whose compiled answer the merged tables give too",
        tuple(Column(name, "count") for name in ("run on merged", "equal", "scored otherwise")),
        tuple(rows),
        note="equal: one of the answers that the draft leaves open, where it does (ties at a "
        "LIMIT). scored otherwise: one of the two is the reference answer, the other is not.",
    )
