"""Protocols and routers over saved runs: scores by question, contrasts, the interaction.

Each router picks, for every question and run number, the saved run of that same question and
number (the paper's Section 6): what it differs by from a protocol comes from routing alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from oar_bench.drafts import Draft
from oar_bench.layout import Benchmark, Question
from oar_bench.paper import keys
from oar_bench.paper.routers import (
    ASK,
    DRAFT,
    FAN_OUT,
    KAPPA,
    KAPPA_FROZEN,
    RELAY,
    ROUTERS,
    SELF,
    Case,
    protocols,
    with_retry,
)
from oar_bench.paper.runs import Run
from oar_bench.paper.scoring import Score, mean, score
from oar_bench.paper.statistics import RESAMPLES, Estimate, interaction, paired_difference

Scored = Mapping[str, Score]
"""Question → its scores, averaged over its runs."""

OfModel = Mapping[tuple[str, int], Mapping[str, Run]]
"""One model's saved runs: (question, run number) → protocol → run."""

RELAY_PLUS: Final = "relay+"
BOUND: Final = "best of fan-out and relay"
"""Which of the two is right, known in hindsight: no router of the same runs is above it."""

UNKNOWN: Final = "unknown"
"""The stratum of a question whose line names none."""

_CALLS: Final = frozenset({DRAFT, SELF, ASK})


def cases(
    benchmark: Benchmark, runs: OfModel, drafts: Mapping[str, Draft] | None = None
) -> Iterator[Case]:
    """Pair each saved question and run number with its draft.

    The draft is that of the saved runs, else of ``drafts``, a drafts file; a drafts file counts
    for every run number. Runs of questions that the benchmark does not have are left out.
    """
    questions = {question.id: question for question in benchmark.questions}
    for (key, _), saved in runs.items():
        question = questions.get(key)
        if question is None or question.org not in benchmark.organisations:
            continue
        call = saved.get(DRAFT)
        draft = call.draft if call is not None else (drafts or {}).get(key)
        yield Case(question, benchmark.organisations[question.org].holders, draft, saved)


def evaluate(asked: list[Case]) -> dict[str, Scored]:
    """Score every protocol that was run, and every router of which there is what it reads."""
    found: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for case in asked:
        for name, spent in _spent(case):
            scored = _score(case, spent)
            if scored is not None:
                found[name][case.question.id].append(scored)
        bound = _bound(case)
        if bound is not None:
            found[BOUND][case.question.id].append(bound)
    return {
        name: {question: mean(scores) for question, scores in by_question.items()}
        for name, by_question in found.items()
    }


def _spent(case: Case) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name each way to answer, with the saved runs it spends in order; the last one answers."""
    for protocol in case.runs:
        if protocol not in _CALLS:
            yield protocol, (protocol,)
    for name, router in ROUTERS.items():
        chosen = protocols(router, case)
        if chosen is not None:
            yield name, chosen
    for name in (KAPPA_FROZEN, KAPPA):
        chosen, plus = protocols(ROUTERS[name], case), protocols(ROUTERS[name], case, RELAY_PLUS)
        if chosen is not None and plus is not None:
            yield f"{name}, retry", with_retry(chosen, case)
            if RELAY_PLUS in case.runs:
                yield f"{name}, {RELAY_PLUS}", plus
    yield "fan-out, retry", with_retry((FAN_OUT,), case)


def _score(case: Case, spent: tuple[str, ...]) -> Score | None:
    """Score the last run spent, with the costs of all; None where its run was not saved."""
    answer = case.runs.get(spent[-1])
    if answer is None or answer.outcome is None:
        return None
    scored = score(case.question, answer.rows, answer.outcome == "abstained")
    # A draft from a drafts file has no saved cost.
    paid = [case.runs[protocol] for protocol in spent if protocol in case.runs]
    return scored and replace(
        scored,
        calls=sum(run.calls for run in paid),
        tokens=sum(run.tokens for run in paid),
        seconds=sum(run.seconds for run in paid),
    )


def _bound(case: Case) -> Score | None:
    both = [_score(case, (protocol,)) for protocol in (FAN_OUT, RELAY)]
    scores = [one for one in both if one is not None]
    return max(scores, key=lambda one: (one.accuracy, one.f1)) if len(scores) == 2 else None


def by_stratum(scored: Scored, questions: Mapping[str, Question]) -> dict[str, tuple[int, Score]]:
    """Count and average questions by stratum, and all of them under ``all``."""
    groups: dict[str, list[Score]] = defaultdict(list)
    for key, one in scored.items():
        groups[questions[key].stratum or UNKNOWN].append(one)
        groups["all"].append(one)
    return {name: (len(group), mean(group)) for name, group in sorted(groups.items())}


def contrast(one: Scored, other: Scored, *, resamples: int = RESAMPLES) -> Estimate | None:
    """Points of accuracy by which ``one`` is ahead, over the questions that both have."""
    estimate = paired_difference(_accuracy(one), _accuracy(other), resamples=resamples)
    return None if estimate is None else estimate.scaled(100)


def ownership_interaction(
    scored: Mapping[str, Scored],
    questions: Mapping[str, Question],
    relay: str = RELAY,
    *,
    resamples: int = RESAMPLES,
) -> Estimate | None:
    """Relay's advantage over fan-out on two-owner minus that on single-owner questions, in points.

    Row-split questions are neither (Section 2).
    """
    ahead: dict[str | None, list[float]] = defaultdict(list)
    fan_out = scored.get(FAN_OUT, {})
    for key, one in scored.get(relay, {}).items():
        if key in fan_out:
            ahead[questions[key].stratum].append(one.accuracy - fan_out[key].accuracy)
    estimate = interaction(ahead["single-owner"], ahead["two-owner"], resamples=resamples)
    return None if estimate is None else estimate.scaled(100)


def key_passing(asked: list[Case], relay: str = RELAY) -> keys.KeyPassing:
    """Count the keys passed in the saved relay runs of two-owner questions."""
    return keys.measure((case.question, case.runs[relay]) for case in asked if relay in case.runs)


def _accuracy(scored: Scored) -> dict[str, float]:
    return {question: one.accuracy for question, one in scored.items()}
