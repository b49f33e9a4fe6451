"""How often the owner cover of a draft finds the questions that need several owners.

A draft routes its question to relay when its own κ is 2 or more. That is compared with the κ of
the question's gold SQL: precision over the questions routed to relay, recall over those that need
two owners or more. A draft that does not parse, or names a table nobody holds, has no κ and goes
to fan-out; a question for which the file has no line was not asked and is not counted; nor is a
question without a gold κ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oar_proxy.cover import cover
from oar_proxy.route import RouteKind, route

from oar_bench.drafts import Dialect, base_tables, read_drafts
from oar_bench.layout import Benchmark, Question


@dataclass(frozen=True, slots=True)
class Routing:
    """Counts of one drafts file: questions by the draft's route and by what the gold needs."""

    hit: int
    false_alarm: int
    missed: int
    fan_out: int

    @property
    def precision(self) -> float | None:
        """Per cent of the relayed questions that need two owners; None when none is relayed."""
        return _per_cent(self.hit, self.hit + self.false_alarm)

    @property
    def recall(self) -> float | None:
        """Per cent of the questions that need two owners that are relayed; None without any."""
        return _per_cent(self.hit, self.hit + self.missed)

    @property
    def questions(self) -> int:
        """All that were counted."""
        return self.hit + self.false_alarm + self.missed + self.fan_out


def _per_cent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def relays(sql: str, dialect: Dialect, holders: Mapping[str, tuple[str, ...]]) -> bool:
    """Tell whether a statement's own κ sends it to relay."""
    tables = base_tables(sql, dialect)
    return tables is not None and (route(cover(sorted(tables), holders)).kind is RouteKind.RELAY)


def gold_kappa(question: Question, holders: Mapping[str, tuple[str, ...]]) -> int | None:
    """Return the κ the file names, else that of the gold SQL; None for an unanswerable question."""
    if question.kappa is not None:
        return question.kappa
    tables = None if question.unanswerable else gold_tables(question)
    return None if tables is None else cover(sorted(tables), holders).kappa


def gold_tables(question: Question) -> frozenset[str] | None:
    """Return the tables that the gold SQL reads; None without one that parses."""
    if question.gold_sql is not None:
        return base_tables(question.gold_sql, "sqlite")
    if question.gold_sql_postgres is not None:
        return base_tables(question.gold_sql_postgres, "postgres")
    return None


def measure(benchmark: Benchmark) -> dict[str, Routing]:
    """Measure every drafts file of a benchmark: model → counts."""
    holders = {name: org.holders for name, org in benchmark.organisations.items()}
    needs_relay: dict[str, bool] = {}
    for question in benchmark.questions:
        kappa = gold_kappa(question, holders.get(question.org, {}))
        if kappa is not None:
            needs_relay[question.id] = kappa >= 2
    asked = [q for q in benchmark.questions if q.id in needs_relay]
    results = {}
    for model, path in benchmark.drafts.items():
        drafts = read_drafts(path)
        results[model] = _count(
            (relays(drafts[q.id].sql, drafts[q.id].dialect, holders[q.org]), needs_relay[q.id])
            for q in asked
            if q.id in drafts and q.org in holders
        )
    return results


def _count(outcomes: Iterable[tuple[bool, bool]]) -> Routing:
    """Count ``(routed to relay, needs relay)`` pairs."""
    pairs = list(outcomes)
    return Routing(
        hit=pairs.count((True, True)),
        false_alarm=pairs.count((True, False)),
        missed=pairs.count((False, True)),
        fan_out=pairs.count((False, False)),
    )
