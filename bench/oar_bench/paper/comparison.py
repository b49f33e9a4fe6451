"""Protocols and routers over saved runs: scores by question, contrasts, the interaction.

Each router picks, for every question and run number, the saved run of that same question and
number (the paper's Section 6): what it differs by from a protocol comes from routing alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from oar_bench.drafts import Draft
from oar_bench.layout import Benchmark, Question
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
    Router,
    protocols,
    with_retry,
)
from oar_bench.paper.runs import OfModel
from oar_bench.paper.scoring import Score, Share, mean, score
from oar_bench.paper.statistics import RESAMPLES, Estimate, interaction, paired_difference

Scored = Mapping[str, Score]
"""Question → its scores, averaged over its runs."""

RELAY_PLUS: Final = "relay+"
COMPILED: Final = "compiled"
BOUND: Final = "best of fan-out and relay"
"""Which of the two is right, known in hindsight: no router of the same runs is above it."""

OAR: Final = KAPPA_FROZEN
OAR_PLUS: Final = f"{KAPPA_FROZEN}, {RELAY_PLUS}"
OURS: Final = KAPPA
OURS_PLUS: Final = f"{KAPPA}, {RELAY_PLUS}"
"""The paper's router with its parser and with ours, and both with relay+ as the relay branch."""

FIXED: Final = (FAN_OUT, RELAY, RELAY_PLUS)
"""The paper's fixed protocols."""

ALL: Final = "all"
"""The stratum of every question."""

UNKNOWN: Final = "unknown"
"""The stratum of a question whose line names none."""

STRATA: Final[Mapping[str, str]] = {
    ALL: "All",
    "single-owner": "Single-owner",
    "row-split": "Row-split",
    "two-owner": "Two-owner",
    "three-or-more": "Three or more",
    "unanswerable": "Unanswerable",
}
"""The strata in the order of the tables, with their headings."""

CALLS: Final = frozenset({DRAFT, SELF, ASK})
"""A router's own calls, which answer nothing."""


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


def evaluate(asked: Iterable[Case]) -> dict[str, Scored]:
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


def evaluate_router(asked: Iterable[Case], name: str) -> Scored:
    """Score one of :data:`~oar_bench.paper.routers.ROUTERS` on cases."""
    found: dict[str, list[Score]] = defaultdict(list)
    for case in asked:
        chosen = _routed(ROUTERS[name], case)
        scored = None if chosen is None else _score(case, chosen)
        if scored is not None:
            found[case.question.id].append(scored)
    return {question: mean(scores) for question, scores in found.items()}


def _spent(case: Case) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name each way to answer, with the saved runs it spends in order; the last one answers."""
    for protocol in case.runs:
        if protocol not in CALLS:
            yield protocol, (protocol,)
    for name, router in ROUTERS.items():
        chosen = _routed(router, case)
        if chosen is not None:
            yield name, chosen
    for name in (KAPPA_FROZEN, KAPPA):
        chosen, plus = _routed(ROUTERS[name], case), _routed(ROUTERS[name], case, RELAY_PLUS)
        if chosen is not None:
            yield retried(name), with_retry(chosen, case)
        if plus is not None:
            yield f"{name}, {RELAY_PLUS}", plus
    if _are_saved(case, FAN_OUT, RELAY):
        yield retried(FAN_OUT), with_retry((FAN_OUT,), case)


def _routed(router: Router, case: Case, relay: str = RELAY) -> tuple[str, ...] | None:
    """Return the runs a router spends; None where it cannot decide, or a branch was not saved.

    Both branches have to be there: with the one it took alone, a file without relay's runs would
    score a router on the questions that it sends to fan-out.
    """
    return protocols(router, case, relay) if _are_saved(case, FAN_OUT, relay) else None


def _are_saved(case: Case, *ways: str) -> bool:
    return all(way in case.runs for way in ways)


def retried(way: str) -> str:
    """Return the name of a way that goes on to relay where fan-out abstains or stops."""
    return f"{way}, retry"


def _score(case: Case, spent: tuple[str, ...]) -> Score | None:
    """Score the last run spent, with the costs of all; None where its run was not saved."""
    answer = case.runs.get(spent[-1])
    if answer is None or answer.outcome is None:
        return None
    scored = score(case.question, answer.rows, answer.outcome == "abstained")
    # A draft from a drafts file has no saved cost.
    paid = [case.runs[protocol] for protocol in spent if protocol in case.runs]
    prices = [run.dollars for run in paid if run.dollars is not None]
    return scored and replace(
        scored,
        calls=sum(run.calls for run in paid),
        tokens=sum(run.tokens for run in paid),
        seconds=sum(run.seconds for run in paid),
        dollars=sum(prices) if len(prices) == len(paid) else None,
    )


def _bound(case: Case) -> Score | None:
    both = [_score(case, (protocol,)) for protocol in (FAN_OUT, RELAY)]
    scores = [one for one in both if one is not None]
    return max(scores, key=lambda one: (one.accuracy, one.f1)) if len(scores) == 2 else None


def within(scored: Scored, questions: Mapping[str, Question], stratum: str) -> Scored:
    """Return the scores of one stratum's questions; of all under :data:`ALL`."""
    if stratum == ALL:
        return scored
    return {
        key: one for key, one in scored.items() if stratum == (questions[key].stratum or UNKNOWN)
    }


def among(scored: Scored, questions: Iterable[str]) -> Scored:
    """Return the scores of these questions, of those that have one."""
    return {key: scored[key] for key in questions if key in scored}


def per_cent(scored: Scored, share: Share = "accuracy") -> float | None:
    """Return a mean score over the questions in per cent; None without any."""
    return 100 * float(getattr(mean(scored.values()), share)) if scored else None


def contrast(one: Scored, other: Scored, *, resamples: int = RESAMPLES) -> Estimate | None:
    """Points of accuracy by which ``one`` is ahead, over the questions that both have."""
    estimate = paired_difference(_accuracy(one), _accuracy(other), resamples=resamples)
    return None if estimate is None else estimate.scaled(100)


def interaction_of(
    one: Scored,
    other: Scored,
    smaller: Sequence[str],
    larger: Sequence[str],
    *,
    resamples: int = RESAMPLES,
) -> Estimate | None:
    """Points by which ``one`` is ahead on the ``larger`` questions, minus those on the ``smaller``.

    Both are questions, resampled separately (the paper's Appendix D); those count that both ways
    have.
    """
    strata = (
        [one[key].accuracy - other[key].accuracy for key in keys if key in one and key in other]
        for keys in (smaller, larger)
    )
    estimate = interaction(*strata, resamples=resamples)
    return None if estimate is None else estimate.scaled(100)


def _accuracy(scored: Scored) -> dict[str, float]:
    return {question: one.accuracy for question, one in scored.items()}
