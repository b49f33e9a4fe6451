"""How far compiled drafts are ahead of each router: of its bounds, and of its saved runs.

A router of a draft, or of the question alone, needs no saved run to route. What its protocols would
then answer is not known without one; a bound says what they would answer *at most*, or *if* an
assumption held. Every bound is of one draft: the same one that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from oar_bench.layout import Benchmark, Question
from oar_bench.paper.answers import Replayed
from oar_bench.paper.comparison import COMPILED, STRATA, Scored, contrast, per_cent, within
from oar_bench.paper.figures import Column, Row, Table, estimated, figure
from oar_bench.paper.routers import (
    DIFFICULTY,
    DRAFT_ROUTERS,
    FAN_OUT,
    ORACLE,
    RELAY,
    ROUTERS,
    Case,
    Router,
)
from oar_bench.paper.scoring import Score
from oar_bench.routing import gold_kappa

FAN_OUT_AT_MOST: Final[Mapping[str, float]] = {"two-owner": 0.043, "three-or-more": 0.059}
"""The most that fan-out answers of questions that join tables of several owners, in any setting of
the paper: of two owners' (its abstract), of more (its Table 5)."""

PUBLISHED: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "peoplejoin": {
        "single-owner": (0.803, 0.741),
        "row-split": (0.690, 0.241),
        "two-owner": (0.043, 0.479),
        "three-or-more": (0.059, 0.294),
        "unanswerable": (0.925, 0.906),
    },
    "bird": {
        "single-owner": (0.544, 0.529),
        "two-owner": (0.038, 0.339),
        "three-or-more": (0.024, 0.246),
    },
}
"""The most accurate fan-out and the most accurate relay or relay+ that the paper has for a
benchmark's stratum: the highest of all models and pools in its Tables 4 and 5."""

RUNS: Final = "saved runs"
"""What is no bound: the router's accuracy on the same model's runs."""


@dataclass(frozen=True, slots=True)
class Routed:
    """One question as a router sent it; ``draft_accuracy`` is its draft's on merged tables."""

    benchmark: str
    question: Question
    several_owners: bool
    relayed: bool
    draft_accuracy: float


def perfect(routed: Routed) -> float | None:
    """Relay answers all it is sent; fan-out what needs no join across owners, else the most ever.

    What routes these questions so is above this only where fan-out does better than ever measured.
    """
    return 1.0 if routed.relayed else _fan_out(routed)


def as_the_draft(routed: Routed) -> float | None:
    """The protocols' queries are right where this draft is, and only there.

    No bound in the strict sense: a planner that reads rows may repair what the draft has wrong.
    """
    reach = 1.0 if routed.relayed else _fan_out(routed)
    return reach * routed.draft_accuracy


def _fan_out(routed: Routed) -> float:
    if not routed.several_owners:
        return 1.0
    return FAN_OUT_AT_MOST.get(routed.question.stratum or "", max(FAN_OUT_AT_MOST.values()))


def as_published(routed: Routed) -> float | None:
    """Each protocol is as accurate in each stratum as the paper's most accurate model there."""
    of_benchmark = PUBLISHED.get(routed.benchmark, {})
    accuracies = of_benchmark.get(routed.question.stratum or "")
    return None if accuracies is None else accuracies[routed.relayed]


ASSUMPTIONS: Final[Mapping[str, Callable[[Routed], float | None]]] = {
    "perfect protocols": perfect,
    "right as the draft": as_the_draft,
    "paper's best": as_published,
}

BOUNDED: Final[Mapping[str, Router]] = {
    FAN_OUT: Router(lambda _: False),
    RELAY: Router(lambda _: True),
    **DRAFT_ROUTERS,
    DIFFICULTY: ROUTERS[DIFFICULTY],
    ORACLE: ROUTERS[ORACLE],
}
"""Those that need no saved run to route, the two that route nothing included."""

Bounds = Mapping[tuple[str, str], Scored]
"""(Assumption, router) → scores by question, of accuracy alone."""


def bounds(benchmark: Benchmark, replayed: Replayed, runs: Mapping[str, Scored]) -> Bounds:
    """Compute every bound of one model's drafts; ``runs`` are its saved runs, scored each way."""
    found: dict[tuple[str, str], Scored] = {}
    for assumption, accuracy in ASSUMPTIONS.items():
        for name, router in BOUNDED.items():
            scored = {
                routed.question.id: Score(value, value, 0, 0)
                for routed in _routed(benchmark, replayed, router)
                if (value := accuracy(routed)) is not None
            }
            if scored:
                found[assumption, name] = scored
    return found | {(RUNS, way): scored for way, scored in runs.items()}


def _routed(benchmark: Benchmark, replayed: Replayed, router: Router) -> Iterator[Routed]:
    for key, question in replayed.questions.items():
        holders = benchmark.organisations[question.org].holders
        relayed = router.relays(Case(question, holders, replayed.drafts[key]))
        if relayed is not None:
            yield Routed(
                benchmark.name,
                question,
                several_owners=(gold_kappa(question, holders) or 0) >= 2,
                relayed=relayed,
                draft_accuracy=replayed.centralized[key].accuracy,
            )


NOTE: Final = (
    "Bounds, computed from the drafts and no run. perfect protocols: relay answers all it is sent, "
    "fan-out all that needs no join across owners, and of the rest the most it ever did in the "
    "paper (4.3 % with two owners, 5.9 % with more). right as the draft: the same where the draft "
    "is right on merged tables, and nothing where it is not. paper's best: each protocol as "
    "accurate as the paper's most accurate model in the stratum. "
    f"{RUNS}: measured, no bound."
)


def bounds_table(found: Iterable[tuple[Replayed, Bounds]]) -> Table:
    """The accuracy of compiled drafts, and what bounds each router's, by stratum."""
    rows = []
    for replayed, of_drafts in found:
        ways = {COMPILED: replayed.compiled} | {
            f"{assumption}: {way}": scored for (assumption, way), scored in of_drafts.items()
        }
        for way, scored in ways.items():
            accuracies = (
                per_cent(within(_asked(scored, replayed), replayed.questions, stratum))
                for stratum in STRATA
            )
            rows.append(Row(replayed.name, tuple(map(figure, accuracies)), way))
    return Table(
        "bounds",
        "what bounds each router's accuracy",
        tuple(Column(heading) for heading in STRATA.values()),
        tuple(rows),
        part="assumption: router",
        note=NOTE,
    )


def ahead_table(found: Iterable[tuple[Replayed, Bounds]]) -> Table:
    """Points by which compiled drafts are ahead of each router's bound, by stratum."""
    rows = [
        Row(
            replayed.name,
            tuple(
                estimated(
                    contrast(
                        within(replayed.compiled, replayed.questions, stratum),
                        within(_asked(scored, replayed), replayed.questions, stratum),
                    )
                )
                for stratum in STRATA
            ),
            f"{assumption}: {way}",
        )
        for replayed, of_drafts in found
        for (assumption, way), scored in of_drafts.items()
    ]
    return Table(
        "ahead",
        "points by which compiled drafts are ahead of each router's bound",
        tuple(Column(heading, "points") for heading in STRATA.values()),
        tuple(rows),
        part="assumption: router",
        note=f"{NOTE} In brackets 95 % intervals, over the questions that both have; the paper's "
        "own error is not in them.",
    )


def _asked(scored: Scored, replayed: Replayed) -> Scored:
    """Leave out the saved runs of questions that were not replayed."""
    return {key: one for key, one in scored.items() if key in replayed.questions}
