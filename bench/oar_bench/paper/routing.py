"""The paper's Table 13 for recorded drafts: does a draft say which questions need several owners?

Precision and recall of each draft router's relay decision against the reference cover, with
intervals, and how the draft's misroutes come about. Questions without a reference cover are left
out, as in the paper; of a drafts file that has no line for a question, the question was not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from oar_bench.drafts import Draft, read_drafts
from oar_bench.layout import Benchmark
from oar_bench.paper.figures import Column, Figure, Row, Table, estimated
from oar_bench.paper.frozen import named_tables
from oar_bench.paper.routers import (
    DRAFT_ROUTERS,
    KAPPA,
    KAPPA_FROZEN,
    Case,
    Holders,
    Router,
    covers_two,
    draft_tables,
)
from oar_bench.paper.statistics import RESAMPLES, Estimate, bootstrap
from oar_bench.routing import gold_kappa

Miss = Literal["unread", "unlisted", "fewer"]
"""Why a question that needs several owners is not relayed: the draft is empty or does not parse,
names a table that no owner holds, or joins the tables of fewer owners."""

_Outcome = tuple[bool, tuple[bool, ...]]
"""Whether a question needs relay, and whether each draft router sends it there."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One router's figures in per cent; ``relayed`` questions, and ``agree`` with the reference."""

    relayed: int
    agree: int
    precision: Estimate | None
    recall: Estimate | None


@dataclass(frozen=True, slots=True)
class DraftRouting:
    """What one model's drafts say.

    ``more_precision`` and ``more_recall`` are our parser's points over the paper's on the same
    questions. ``missed`` counts by router, ``recovered`` the multi-owner questions whose draft
    names an unlisted table for the paper's parser and is relayed by ours.
    """

    questions: int
    multi_owner: int
    signals: Mapping[str, Signal]
    more_precision: Estimate | None
    more_recall: Estimate | None
    missed: Mapping[str, Mapping[Miss, int]]
    recovered: int


def measure(benchmark: Benchmark, *, resamples: int = RESAMPLES) -> dict[str, DraftRouting]:
    """Measure every drafts file of a benchmark that drafts a question with a cover: by model."""
    results = {}
    for model, path in benchmark.drafts.items():
        cases = list(_cases(benchmark, read_drafts(path)))
        if cases:
            results[model] = _measure(cases, resamples)
    return results


def _cases(benchmark: Benchmark, drafts: Mapping[str, Draft]) -> Iterator[tuple[Case, bool]]:
    holders = {name: org.holders for name, org in benchmark.organisations.items()}
    for question in benchmark.questions:
        draft, held = drafts.get(question.id), holders.get(question.org)
        if draft is None or held is None:
            continue
        kappa = gold_kappa(question, held)
        if kappa is not None:
            yield Case(question, held, draft), kappa >= 2


def _measure(cases: list[tuple[Case, bool]], resamples: int) -> DraftRouting:
    outcomes = [
        (needed, tuple(bool(router.relays(case)) for router in DRAFT_ROUTERS.values()))
        for case, needed in cases
    ]
    estimates = bootstrap(outcomes, _figures, resamples=resamples)
    signals = {
        name: Signal(
            relayed=sum(relays[place] for _, relays in outcomes),
            agree=sum(relays[place] == needed for needed, relays in outcomes),
            precision=estimates[2 * place],
            recall=estimates[2 * place + 1],
        )
        for place, name in enumerate(DRAFT_ROUTERS)
    }
    missed: dict[str, Counter[Miss]] = {KAPPA_FROZEN: Counter(), KAPPA: Counter()}
    recovered = 0
    for case, needed in cases:
        if case.draft is None or not needed:
            continue
        frozen = _miss(named_tables(case.draft.sql), case.holders)
        ours = _miss(draft_tables(case.draft), case.holders)
        for name, miss in ((KAPPA_FROZEN, frozen), (KAPPA, ours)):
            if miss is not None:
                missed[name][miss] += 1
        recovered += frozen == "unlisted" and ours is None
    return DraftRouting(
        questions=len(outcomes),
        multi_owner=sum(needed for needed, _ in outcomes),
        signals=signals,
        more_precision=estimates[-2],
        more_recall=estimates[-1],
        missed={name: dict(counts) for name, counts in missed.items()},
        recovered=recovered,
    )


def _figures(outcomes: Counter[_Outcome]) -> tuple[float | None, ...]:
    """Precision and recall in per cent of each router, then ours minus the paper's of both."""
    figures: list[float | None] = []
    for place in range(len(DRAFT_ROUTERS)):
        figures += precision_recall(
            (need, relays[place], times) for (need, relays), times in outcomes.items()
        )
    names = list(DRAFT_ROUTERS)
    ours, frozen = 2 * names.index(KAPPA), 2 * names.index(KAPPA_FROZEN)
    return (
        *figures,
        _minus(figures[ours], figures[frozen]),
        _minus(figures[ours + 1], figures[frozen + 1]),
    )


def outcomes_of(cases: Iterable[Case], router: Router) -> list[tuple[bool, bool, int]]:
    """Return whether each case with a reference cover needs relay and is sent there, counted."""
    counted: Counter[tuple[bool, bool]] = Counter()
    for case in cases:
        kappa, relays = gold_kappa(case.question, case.holders), router.relays(case)
        if kappa is not None and relays is not None:
            counted[kappa >= 2, relays] += 1
    return [(*outcome, times) for outcome, times in counted.items()]


def precision_recall(
    outcomes: Iterable[tuple[bool, bool, int]],
) -> tuple[float | None, float | None]:
    """Return precision and recall in per cent: of (needs relay, is relayed, how many) each.

    None where nothing is relayed, or nothing needs it.
    """
    needed = relayed = hit = 0
    for needs, relays, times in outcomes:
        needed += times * needs
        relayed += times * relays
        hit += times * (needs and relays)
    return _per_cent(hit, relayed), _per_cent(hit, needed)


def _per_cent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _miss(tables: frozenset[str] | None, holders: Holders) -> Miss | None:
    if not tables:
        return "unread"
    if any(not holders.get(table) for table in tables):
        return "unlisted"
    return None if covers_two(tables, holders) else "fewer"


def routing_table(found: Mapping[str, DraftRouting]) -> Table:
    """Table 13 of drafts alone: how each draft router sends them, with intervals."""
    rows = []
    for drafts, measured in found.items():
        for name, signal in measured.signals.items():
            figures = (
                Figure(measured.questions),
                Figure(measured.multi_owner),
                Figure(signal.relayed),
                Figure(signal.agree),
                estimated(signal.precision),
                estimated(signal.recall),
            )
            more = (
                (estimated(measured.more_precision), estimated(measured.more_recall))
                if name == KAPPA
                else (None, None)
            )
            rows.append(Row(drafts, (*figures, *more), name))
    return Table(
        "routing",
        "how drafts route: relay against the reference cover's κ ≥ 2",
        (
            *(Column(name, "count") for name in ("Qs", "κ ≥ 2", "relayed", "right")),
            Column("Prec."),
            Column("Rec."),
            Column("Prec.", "points", "ours − paper's"),
            Column("Rec.", "points", "ours − paper's"),
        ),
        tuple(rows),
        part="router",
        note="In brackets 95 % intervals.",
    )


def misses_table(found: Mapping[str, DraftRouting]) -> Table:
    """Why questions that need several owners are not relayed, by parser."""
    kinds: tuple[Miss, ...] = ("unread", "unlisted", "fewer")
    return Table(
        "misses",
        "questions of several owners that are not relayed",
        (
            Column("κ ≥ 2", "count"),
            *(Column(kind, "count", "Missed") for kind in kinds),
            Column("recovered", "count"),
        ),
        tuple(
            Row(
                drafts,
                (
                    Figure(one.multi_owner),
                    *(Figure(one.missed[name].get(kind, 0)) for kind in kinds),
                    Figure(one.recovered) if name == KAPPA else None,
                ),
                name,
            )
            for drafts, one in found.items()
            for name in (KAPPA_FROZEN, KAPPA)
        ),
        part="router",
        note="unread: the draft is empty or does not parse; unlisted: it names a table that no "
        "owner holds; fewer: it joins fewer owners. recovered: unlisted for the paper's parser, "
        "relayed by ours.",
    )
