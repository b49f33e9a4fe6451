"""``oar policy test``: what owner files expect, held against what would be decided."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oar_policies.cases import Case, Edge, EdgeEnd

from oar_proxy.decision import EdgeVerdict, KeyEdge, KeyOrigin
from oar_proxy.governance.dryrun import DryRun, Refusal, open_dry_run
from oar_proxy.plan import Plan
from oar_proxy.settings import load


@dataclass(frozen=True, slots=True)
class Result:
    """One test, and in what its outcome is not as expected."""

    source: str
    case: Case
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.problems

    def __str__(self) -> str:
        place = f"{self.source}:{self.case.mark.line}:{self.case.mark.column}"
        told = f"{place}: {'pass' if self.passed else 'FAIL'}: {self.case.name}"
        return "\n".join((told, *(f"    {problem}" for problem in self.problems)))

    def document(self) -> dict[str, Any]:
        """The same as JSON's plain values."""
        return {
            "file": self.source,
            "line": self.case.mark.line,
            "column": self.case.mark.column,
            "name": self.case.name,
            "passed": self.passed,
            "problems": list(self.problems),
        }


async def run_tests(config: Path, catalog: Path | None) -> list[Result]:
    """Run the tests of all configured files.

    Raises ``ConfigurationError``, ``OwnerError`` and ``HubError``.
    """
    async with open_dry_run(load(config), catalog) as dry:
        return [
            Result(policy.source, case, tuple([p async for p in _problems(dry, case)]))
            for policy in dry.policies.values()
            for case in policy.tests
        ]


async def _problems(dry: DryRun, case: Case) -> AsyncIterator[str]:
    if case.edge is not None:
        for problem in _edge_problems(dry, case, case.edge):
            yield problem
        return
    assert case.sql is not None
    outcome = await dry.plan(case.sql, case.subject, case.day)
    for problem in _sql_problems(case, outcome):
        yield problem


# --- an edge --------------------------------------------------------------------------------


def _edge_problems(dry: DryRun, case: Case, edge: Edge) -> Iterator[str]:
    missing = [end.name for end in (edge.sender, edge.receiver) if not _exists(dry, end)]
    if missing:
        # Keys of nothing are denied, too: a misspelt test would pass for ever.
        yield from (f"there is no column {name}" for name in missing)
        return
    verdict = dry.decisions(case.subject, case.day).edge(gate_edge(dry, edge))
    if verdict.permitted != case.expected.allow:
        yield f"{_word(verdict.permitted)}: {told(verdict)}"
    if case.expected.rule not in (None, verdict.rule):
        yield f"rule {verdict.rule} decides, and not {case.expected.rule}"


def gate_edge(dry: DryRun, edge: Edge) -> KeyEdge:
    """Return an edge as the gate knows it."""
    schema, _ = dry.owners.catalog[edge.sender.owner]
    origin = KeyOrigin(edge.sender.owner, schema, edge.sender.table, edge.sender.column)
    return KeyEdge((origin,), edge.receiver.owner, edge.receiver.table, edge.receiver.column)


def _exists(dry: DryRun, end: EdgeEnd) -> bool:
    if end.owner not in dry.owners.catalog:
        return False
    _, content = dry.owners.catalog[end.owner]
    return any(
        table.name == end.table and any(column.name == end.column for column in table.columns)
        for table in content.tables
    )


def told(verdict: EdgeVerdict) -> str:
    """Say what was decided about an edge, and what would change it."""
    return f"{verdict.reason} (rule {verdict.rule})" + (
        f"; {verdict.remedy}" if verdict.remedy else ""
    )


# --- a statement ----------------------------------------------------------------------------


def _sql_problems(case: Case, outcome: Plan | Refusal | None) -> Iterator[str]:
    expected = case.expected
    if isinstance(outcome, Refusal):
        said = f"{outcome.message} [{outcome.sqlstate}]"
        if expected.allow:
            yield f"denied: {said}" + (f"; {outcome.detail}" if outcome.detail else "")
            return
        if expected.sqlstate not in (None, outcome.sqlstate):
            yield f"SQLSTATE {outcome.sqlstate} and not {expected.sqlstate}: {outcome.message}"
        if expected.rule is not None and not _names_rule(outcome, expected.rule):
            yield f"rule {expected.rule} is not why it is denied: {outcome.detail or said}"
        return
    if not expected.allow:
        yield "allowed" if outcome is None else f"allowed: {outcome.route.reason}"
        return
    if outcome is None:
        if expected.route or expected.keys or expected.rule:
            yield "it reads nothing that is published"
        return
    yield from _plan_problems(case, outcome)


def _plan_problems(case: Case, plan: Plan) -> Iterator[str]:
    expected, route = case.expected, plan.route
    if expected.route not in (None, route.kind.value):
        yield f"route {route.kind.value} and not {expected.route}: {route.reason}"
    if expected.keys is not None:
        travelling = set(disclosed(plan))
        for edge in _sorted(travelling - expected.keys):
            yield f"keys travel that are not expected: {spell(edge)}"
        for edge in _sorted(expected.keys - travelling):
            yield f"no keys travel: {spell(edge)}"
    rules = list(dict.fromkeys(_rules(plan)))
    if expected.rule is not None and expected.rule not in rules:
        yield f"rule {expected.rule} does not decide; these do: {', '.join(rules) or 'none'}"


def disclosed(plan: Plan) -> Iterator[Edge]:
    """Yield the edges along which keys of one owner reach another."""
    for step in plan.steps:
        for used in step.all_edges:
            for column in used.columns:
                yield from edges_of(column.edge)


def edges_of(edge: KeyEdge) -> Iterator[Edge]:
    """Yield an edge as tests write it, for each owner whose keys leave it."""
    receiver = EdgeEnd(edge.receiver, edge.receiver_table, edge.receiver_column)
    for origin in edge.origins:
        if origin.owner != edge.receiver:
            yield Edge(EdgeEnd(origin.owner, origin.table, origin.column), receiver)


def _rules(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        yield from step.rules
        for used in step.all_edges:
            yield from (column.verdict.rule for column in used.columns)
        yield from (verdict.rule for _, verdict in step.denied)


def _names_rule(refusal: Refusal, rule: str) -> bool:
    text = f"{refusal.detail or ''} {refusal.hint or ''}"
    return re.search(rf"(?<![\w/.]){re.escape(rule)}(?![\w\[]|\.\w)", text) is not None


def _sorted(edges: Iterable[Edge]) -> Sequence[Edge]:
    return sorted(edges, key=spell)


def spell(edge: Edge) -> str:
    """Write an edge for people."""
    return f"{edge.sender.name} -> {edge.receiver.name}"


def _word(permitted: bool) -> str:
    return "allowed" if permitted else "denied"
