"""Settings: one model's saved runs on one benchmark under one budget, scored every way there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from oar_bench.drafts import Draft, read_drafts
from oar_bench.layout import Benchmark, Question
from oar_bench.paper import comparison
from oar_bench.paper.comparison import ALL, FIXED, Scored
from oar_bench.paper.routers import DRAFT, FAN_OUT, Case, Holders
from oar_bench.paper.runs import BUDGET, SavedRuns
from oar_bench.paper.scoring import Score, Share, mean
from oar_bench.paper.statistics import Estimate

Drafters = Mapping[str, Mapping[str, Draft]]
"""Who wrote drafts, which others' runs may be routed by → question → draft."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One model's runs on one benchmark; ``budget`` is in tokens.

    ``cases`` are the questions with each run's number, ``scored`` what they give each way.
    """

    benchmark: str
    model: str
    budget: int
    questions: Mapping[str, Question]
    cases: tuple[Case, ...]
    scored: Mapping[str, Scored]
    drafters: Drafters

    @property
    def holders(self) -> Mapping[str, Holders]:
        """Who holds which table, by question."""
        return {case.question.id: case.holders for case in self.cases}

    @property
    def name(self) -> str:
        """The setting's label; the budget is named where it is not the paper's."""
        plain = f"{self.benchmark}, {self.model}"
        return plain if self.budget == BUDGET else f"{plain}, B={self.budget:,}"

    def scores(self, way: str, stratum: str = ALL) -> Scored:
        """Return the scores of one way to answer on the questions of a stratum."""
        return comparison.within(self.scored.get(way, {}), self.questions, stratum)

    def mean(self, way: str, stratum: str = ALL) -> Score | None:
        """Return the mean scores over the questions of a stratum; None without any."""
        scores = self.scores(way, stratum)
        return mean(scores.values()) if scores else None

    def per_cent(self, way: str, stratum: str = ALL, share: Share = "accuracy") -> float | None:
        """Return a mean score in per cent."""
        return comparison.per_cent(self.scores(way, stratum), share)

    def ahead(self, way: str, other: str | None, stratum: str = ALL) -> Estimate | None:
        """Points of accuracy by which ``way`` is ahead of the other on one stratum's questions."""
        if other is None:
            return None
        return comparison.contrast(self.scores(way, stratum), self.scores(other, stratum))

    def of_stratum(self, stratum: str) -> list[str]:
        """Return the questions of a stratum, in the benchmark's order."""
        return [key for key, question in self.questions.items() if question.stratum == stratum]

    def interaction(self, way: str, other: str = FAN_OUT) -> Estimate | None:
        """Points by which ``way`` is ahead on two-owner minus those on single-owner questions.

        Row-split questions are neither (the paper's Section 2).
        """
        return comparison.interaction_of(
            self.scores(way),
            self.scores(other),
            self.of_stratum("single-owner"),
            self.of_stratum("two-owner"),
        )

    def best_fixed(self) -> str | None:
        """The fixed protocol that is the most accurate over all questions, in hindsight."""
        found = {way: self.per_cent(way) for way in FIXED}
        known = {way: accuracy for way, accuracy in found.items() if accuracy is not None}
        return max(known, key=known.__getitem__, default=None)


def settings(
    benchmarks: Iterable[Benchmark], saved: SavedRuns, drafts: Mapping[str, Draft] | None = None
) -> Iterator[Setting]:
    """Score every model's runs on every benchmark that they answer a question of.

    ``drafts`` is a drafts file for the runs without a saved draft. Raises
    :class:`~oar_bench.layout.BenchmarkError` for a drafts file of a benchmark that is not one.
    """
    written = _written(saved)
    for benchmark in benchmarks:
        recorded = {name: read_drafts(path) for name, path in benchmark.drafts.items()}
        for (model, budget), runs in saved.items():
            cases = tuple(comparison.cases(benchmark, runs, drafts))
            scored = comparison.evaluate(cases)
            if scored:
                asked = {case.question.id for case in cases}
                yield Setting(
                    benchmark.name,
                    model,
                    budget,
                    {one.id: one for one in benchmark.questions if one.id in asked},
                    cases,
                    scored,
                    {
                        name: of_model
                        for name, of_model in (written | recorded).items()
                        if name != model and of_model.keys() & asked
                    },
                )


def _written(saved: SavedRuns) -> dict[str, dict[str, Draft]]:
    """Return the drafts that the saved runs hold by model: of several runs the first one's."""
    found: dict[str, dict[str, Draft]] = {}
    for (model, _), runs in saved.items():
        for key in sorted(runs):
            call = runs[key].get(DRAFT)
            if call is not None and call.draft is not None:
                found.setdefault(model, {}).setdefault(key[0], call.draft)
    return found
