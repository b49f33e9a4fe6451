"""The plan: which owner is asked for what, and which keys travel from whom to whom.

Fan-out is a plan without key edges; relay is the same plan with them (decision 6). Edges come from
the hub's planner and are sound; policy decides which of them may be used, estimates which are worth
it, and the order of the steps follows. Planning touches no owner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from oar_adapters.interface import (
    Adapter,
    Column,
    Membership,
    Predicate,
    Scan,
    Statement,
    base_type,
)

from oar_proxy import predicate as predicates
from oar_proxy import sqltree
from oar_proxy.catalog import Holder, PublishedTable
from oar_proxy.cover import Cover, cover
from oar_proxy.gate import EdgeVerdict, Gate, KeyEdge, KeyOrigin
from oar_proxy.hub import planreading
from oar_proxy.hub.planreading import Origin, Reading
from oar_proxy.pushdown import Whole
from oar_proxy.route import Route, RouteKind, route
from oar_proxy.sqltree import preview_rows
from oar_proxy.statement import FederatedStatement

_DUPLICATES: Final = 10.0
"""Guessed rows for each value of a column that is no key; only orders steps."""


Stage = Literal["rows", "keys"]
"""What is asked for: the rows of an occurrence, or first only the keys it would pass on."""


@dataclass(frozen=True, slots=True)
class UsedEdge:
    """Keys of ``sources`` go to one holder of the step's table, under the gate's verdict.

    ``stage`` says which step of the sources they are taken from.
    """

    sources: tuple[Origin, ...]
    stage: Stage
    column: str
    type: str
    edge: KeyEdge
    verdict: EdgeVerdict


@dataclass(frozen=True, slots=True)
class Step:
    """One query to one owner for one occurrence: its keys are filled in when they are known.

    ``denied`` are edges that would have reduced it and that a policy forbids.
    """

    number: int
    occurrence: int
    owner: str
    scan: Scan
    edges: tuple[UsedEdge, ...] = ()
    denied: tuple[tuple[KeyEdge, EdgeVerdict], ...] = ()
    estimate: float = 0.0
    kept: tuple[str, ...] = ()
    """Conditions on the scan that stay for the hub."""
    unreduced: tuple[str, ...] = ()
    """Reductions that are not made, with the rule that forbids each."""
    stage: Stage = "rows"

    @property
    def sources(self) -> frozenset[tuple[int, Stage]]:
        """Occurrences and stages whose answers have to be there first."""
        return frozenset((s.occurrence, edge.stage) for edge in self.edges for s in edge.sources)


@dataclass(frozen=True)
class Plan:
    """Everything a run needs. ``whole`` set: one owner answers the statement by itself."""

    statement: FederatedStatement
    cover: Cover[tuple[str, str]]
    route: Route
    steps: tuple[Step, ...]
    whole: Whole | None = None
    whole_query: Statement | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def unread(self) -> tuple[int, ...]:
        """Occurrences whose rows cannot matter: the planner scans them nowhere."""
        read = {step.occurrence for step in self.steps}
        if self.whole is not None:
            return ()
        numbers = dict.fromkeys(o.number for o in self.statement.occurrences)
        return tuple(number for number in numbers if number not in read)


def cover_of(statement: FederatedStatement) -> Cover[tuple[str, str]]:
    """The owner cover of a statement's published tables."""
    return cover(
        [table.key for table in statement.tables],
        {table.key: table.owners for table in statement.tables},
    )


def whole_plan(statement: FederatedStatement, whole: Whole, query: Statement) -> Plan:
    """One owner answers the statement by itself."""
    covered = cover_of(statement)
    return Plan(statement, covered, route(covered), (), whole, query)


def make_plan(
    statement: FederatedStatement,
    reading: Reading | None,
    *,
    adapters: Mapping[str, Adapter],
    gate: Gate,
    notes: Sequence[str] = (),
    max_keys: int | None = None,
    full: bool = False,
) -> Plan:
    """Plan the steps. Without a ``reading`` of the planner every table is read unreduced.

    ``full``: where the joins form a tree, no owner sends a row that joins with nothing; that
    costs round trips and keys, which travel both ways.
    """
    covered = cover_of(statement)
    planner = _Planner(statement, reading, adapters, gate, max_keys)
    steps = planner.steps(full=full)
    said = (*notes, *planner.notes)
    return Plan(statement, covered, _route(covered, steps), steps, notes=said)


def _route(covered: Cover[tuple[str, str]], steps: Sequence[Step]) -> Route:
    """A relay whose every key edge is forbidden or unsound is a fan-out (decision 6)."""
    decided = route(covered)
    if decided.kind is not RouteKind.RELAY or any(step.edges for step in steps):
        return decided
    rules = dict.fromkeys(verdict.rule for step in steps for _, verdict in step.denied)
    if rules:
        reason = f"{decided.reason}, and no key may travel between them ({', '.join(rules)})"
    else:
        reason = f"{decided.reason}, and no key would reduce what another has to send"
    return Route(RouteKind.FAN_OUT, reason)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What to ask an occurrence's holders for, in this order, with which edges.

    ``keys`` are the columns asked for where only keys are.
    """

    occurrence: int
    stage: Stage
    edges: tuple[tuple[planreading.KeyEdge, Stage], ...]
    keys: frozenset[str] = frozenset()


class _Planner:
    def __init__(
        self,
        statement: FederatedStatement,
        reading: Reading | None,
        adapters: Mapping[str, Adapter],
        gate: Gate,
        max_keys: int | None,
    ) -> None:
        self.statement = statement
        self.occurrences = {o.number: o for o in statement.occurrences}
        self.reading = reading
        self.adapters = adapters
        self.gate = gate
        self.max_keys = max_keys
        self.estimates: dict[int, float] = {}
        self.filtered: set[int] = set()
        self.notes: list[str] = []

    def steps(self, *, full: bool) -> tuple[Step, ...]:
        scanned = (
            sorted(self.reading.scans) if self.reading is not None else sorted(self.occurrences)
        )
        conditions = {number: self._conditions(number) for number in scanned}
        for number in scanned:
            self.estimates[number] = self._estimate(number, conditions[number])
        limit = self._preview_limit(scanned)
        candidates = [
            edge
            for edge in (self.reading.edges if self.reading is not None else ())
            if self._usable(edge)
        ]
        chosen = self._reduced_fully(scanned, candidates) if full else None
        if chosen is None:
            chosen = self._order(scanned, candidates)
        steps: list[Step] = []
        for chosen_step in chosen:
            occurrence = self.occurrences[chosen_step.occurrence]
            for holder in occurrence.table.holders:
                step = self._step(chosen_step, holder, conditions[chosen_step.occurrence], limit)
                steps.append(replace(step, number=len(steps) + 1))
        return tuple(steps)

    # --- conditions -----------------------------------------------------------------------------

    def _conditions(self, number: int) -> list[tuple[str, Predicate | None]]:
        if self.reading is None:
            return []
        occurrence = self.occurrences[number]
        alias = planreading.marker(number)
        exact = int(self.statement.state.settings.get("extra_float_digits", "1")) >= 1
        return [
            (text, predicates.read(text, occurrence.table, alias, exact_floats=exact))
            for text in self.reading.scans[number]
        ]

    def _estimate(self, number: int, conditions: Sequence[tuple[str, Predicate | None]]) -> float:
        table = self.occurrences[number].table
        estimate = max(table.row_estimate, 1.0)
        for _, condition in conditions:
            if condition is not None:
                estimate *= predicates.selectivity(condition, table)
                self.filtered.add(number)
        return max(estimate, 1.0)

    # --- order and direction ------------------------------------------------------------------

    def _order(
        self, scanned: Sequence[int], candidates: Sequence[planreading.KeyEdge]
    ) -> list[_Chosen]:
        """Take the occurrence with the fewest expected rows next, reduced by those before it."""
        left = list(scanned)
        ordered: list[_Chosen] = []
        done: set[int] = set()
        while left:
            offers = [(*self._offer(number, candidates, done), number) for number in left]
            estimate, edges, number = min(
                offers, key=lambda o: (self._waits(o[2], candidates, left), o[0], o[2])
            )
            self.estimates[number] = estimate
            if edges:
                self.filtered.add(number)
            ordered.append(_Chosen(number, "rows", tuple((edge, "rows") for edge in edges)))
            done.add(number)
            left.remove(number)
        return ordered

    def _reduced_fully(
        self, scanned: Sequence[int], candidates: Sequence[planreading.KeyEdge]
    ) -> list[_Chosen] | None:
        """Reduce a tree of joins from its leaves up and then down again (Yannakakis 1981).

        On the way up only keys are asked for, on the way down rows: each occurrence's rows are
        then looked up by its parent's rows and its children's keys. None where edges form a ring.
        """
        between: dict[tuple[int, int], list[planreading.KeyEdge]] = {}
        for edge in candidates:
            if len(edge.sources) == 1 and self._most_keys(edge) > 0:
                pair = (edge.sources[0].occurrence, edge.target.occurrence)
                between.setdefault(pair, []).append(edge)
        neighbours: dict[int, set[int]] = {number: set() for number in scanned}
        for source, target in between:
            neighbours[source].add(target)
            neighbours[target].add(source)
        order = self._rooted(scanned, neighbours)
        if order is None:
            self.notes.append("not reduced in full: its joins form a ring")
            return None
        chosen: list[_Chosen] = []
        asked_up: dict[int, list[tuple[planreading.KeyEdge, Stage]]] = {n: [] for n in scanned}
        for number, parent in reversed(order):
            upward = between.get((number, parent), []) if parent is not None else []
            if upward and parent is not None:
                chosen.append(
                    _Chosen(
                        number,
                        "keys",
                        tuple(asked_up[number]),
                        frozenset(edge.sources[0].column for edge in upward),
                    )
                )
                asked_up[parent] += [(edge, "keys") for edge in upward]
        for number, parent in order:
            downward = between.get((parent, number), []) if parent is not None else []
            edges = (*((edge, "rows") for edge in downward), *asked_up[number])
            chosen.append(_Chosen(number, "rows", edges))
        return chosen

    def _rooted(
        self, scanned: Sequence[int], neighbours: Mapping[int, set[int]]
    ) -> list[tuple[int, int | None]] | None:
        """Each occurrence with its parent, parents first; None when the edges form a ring.

        The root is the one with the most rows: it is asked once, when all others have their say.
        """
        order: list[tuple[int, int | None]] = []
        seen: set[int] = set()
        for root in sorted(scanned, key=lambda number: -self.estimates[number]):
            if root in seen:
                continue
            seen.add(root)
            waiting: list[tuple[int, int | None]] = [(root, None)]
            while waiting:
                number, parent = waiting.pop(0)
                order.append((number, parent))
                for other in sorted(neighbours[number] - {parent}):
                    if other in seen:
                        return None
                    seen.add(other)
                    waiting.append((other, number))
        return order

    def _offer(
        self, number: int, candidates: Sequence[planreading.KeyEdge], done: set[int]
    ) -> tuple[float, tuple[planreading.KeyEdge, ...]]:
        """How many rows an occurrence would bring now, and by which edges."""
        estimate = self.estimates[number]
        edges: list[planreading.KeyEdge] = []
        for edge in candidates:
            if edge.target.occurrence != number:
                continue
            sources = {source.occurrence for source in edge.sources}
            if not sources <= done:
                continue
            keys = sum(self.estimates[source] for source in sources)
            worth = (
                keys <= self.estimates[number]
                or bool(sources & self.filtered)
                or self._turned_round(edge, candidates)
            )
            if keys <= self._most_keys(edge) and worth:
                edges.append(edge)
                estimate = min(estimate, keys * self._rows_each(edge.target))
        return max(estimate, 1.0), tuple(edges)

    def _waits(
        self, number: int, candidates: Sequence[planreading.KeyEdge], left: Sequence[int]
    ) -> bool:
        """Whether to ask later: the occurrence's own keys may not leave, while others' may come."""
        return any(
            edge.target.occurrence == number
            and all(s.occurrence in left for s in edge.sources)
            and sum(self.estimates[s.occurrence] for s in edge.sources) <= self._most_keys(edge)
            and self._turned_round(edge, candidates)
            for edge in candidates
        )

    def _turned_round(
        self, edge: planreading.KeyEdge, candidates: Sequence[planreading.KeyEdge]
    ) -> bool:
        """Whether the opposite edge is sound but forbidden, so that only this direction is left."""
        sources = {source.occurrence for source in edge.sources}
        opposite = [
            other
            for other in candidates
            if other.target.occurrence in sources
            and any(s.occurrence == edge.target.occurrence for s in other.sources)
        ]
        return bool(opposite) and all(self._most_keys(other) == 0 for other in opposite)

    def _rows_each(self, target: Origin) -> float:
        table = self.occurrences[target.occurrence].table
        unique = (target.column,) in (table.primary_key, *table.unique_keys)
        return 1.0 if unique else _DUPLICATES

    def _most_keys(self, edge: planreading.KeyEdge) -> int:
        verdicts = [
            self.gate.edge(self._gate_edge(edge, holder)).max_keys
            for holder in self.occurrences[edge.target.occurrence].table.holders
            if self._looks_up(edge, holder)
        ]
        most = max(verdicts, default=0)
        return most if self.max_keys is None else min(most, self.max_keys)

    def _usable(self, edge: planreading.KeyEdge) -> bool:
        """Sound types on both sides, another occurrence, and an owner that can look keys up."""
        target = self.occurrences[edge.target.occurrence].table
        target_type = _column_type(target, edge.target.column)
        if target_type is None:
            return False
        for source in edge.sources:
            if source.occurrence == edge.target.occurrence:
                return False
            table = self.occurrences[source.occurrence].table
            source_type = _column_type(table, source.column)
            if source_type is None or not predicates.relayable(source_type, target_type):
                return False
        return True

    def _looks_up(self, edge: planreading.KeyEdge, holder: Holder) -> bool:
        """Whether the owner compares keys of this type with its column as the hub does."""
        question = Membership(edge.target.column, (), self._key_type(edge))
        return self.adapters[holder.owner].supports(holder.table, question)

    def _key_type(self, edge: planreading.KeyEdge) -> str:
        types = {
            base_type(_column_type(self.occurrences[o.occurrence].table, o.column) or "")
            for o in (*edge.sources, edge.target)
        }
        return _widest(types)

    def _gate_edge(self, edge: planreading.KeyEdge, holder: Holder) -> KeyEdge:
        origins = tuple(
            KeyOrigin(source_holder.owner, table.schema, table.name, source.column)
            for source in edge.sources
            for table in (self.occurrences[source.occurrence].table,)
            for source_holder in table.holders
        )
        return KeyEdge(origins, holder.owner, holder.table.name, edge.target.column)

    # --- steps --------------------------------------------------------------------------------

    def _step(
        self,
        chosen: _Chosen,
        holder: Holder,
        conditions: Sequence[tuple[str, Predicate | None]],
        preview: int | None,
    ) -> Step:
        occurrence = self.occurrences[chosen.occurrence]
        adapter = self.adapters[holder.owner]
        sent: list[Predicate] = []
        kept: list[str] = []
        for text, condition in conditions:
            if condition is not None and adapter.supports(holder.table, condition):
                sent.append(condition)
            else:
                kept.append(text)
        used: list[UsedEdge] = []
        denied: list[tuple[KeyEdge, EdgeVerdict]] = []
        for edge, stage in chosen.edges:
            if not self._looks_up(edge, holder):
                continue
            gate_edge = self._gate_edge(edge, holder)
            verdict = self.gate.edge(gate_edge)
            if verdict.permitted:
                used.append(self._used(edge, stage, gate_edge, verdict))
        used = _distinct(used)
        for edge in self.reading.edges if self.reading is not None else ():
            if edge.target.occurrence != occurrence.number or not self._usable(edge):
                continue
            if self._looks_up(edge, holder):
                gate_edge = self._gate_edge(edge, holder)
                verdict = self.gate.edge(gate_edge)
                if not verdict.permitted:
                    denied.append((gate_edge, verdict))
        cap, _ = self.gate.row_cap(holder.owner)
        limit = cap + 1 if preview is None else min(cap + 1, preview)
        names = set(occurrence.columns)
        names.update(
            source.column
            for edge in (self.reading.edges if self.reading is not None else ())
            for source in edge.sources
            if source.occurrence == occurrence.number
        )
        distinct = chosen.stage == "keys"
        if distinct:
            names = set(chosen.keys)
        columns: tuple[Column, ...] = tuple(c for c in holder.table.columns if c.name in names)
        return Step(
            number=0,
            occurrence=occurrence.number,
            owner=holder.owner,
            scan=Scan(holder.table, columns, tuple(sent), (), limit, distinct),
            edges=tuple(used),
            denied=tuple(dict.fromkeys(denied)),
            estimate=self.estimates[occurrence.number],
            kept=tuple(kept),
            unreduced=self._unreduced(occurrence.number),
            stage=chosen.stage,
        )

    def _unreduced(self, number: int) -> tuple[str, ...]:
        if self.reading is None:
            return ()
        said = [
            f"{u.target.column}: {u.reason}"
            for u in self.reading.unreduced
            if u.target.occurrence == number
        ]
        for edge in self.reading.edges:
            if edge.target.occurrence == number and not self._usable(edge):
                said.append(
                    f"{edge.target.column}: keys of these types do not compare as such (R39)"
                )
        return tuple(dict.fromkeys(said))

    def _used(
        self, edge: planreading.KeyEdge, stage: Stage, gate_edge: KeyEdge, verdict: EdgeVerdict
    ) -> UsedEdge:
        if self.max_keys is not None and self.max_keys < verdict.max_keys:
            verdict = replace(verdict, max_keys=self.max_keys, limit_rule="oar.max_keys")
        return UsedEdge(
            edge.sources, stage, edge.target.column, self._key_type(edge), gate_edge, verdict
        )

    def _preview_limit(self, scanned: Sequence[int]) -> int | None:
        """Rows that are enough for ``SELECT … FROM t LIMIT n``, which any n rows answer (R27)."""
        if self.reading is None or len(scanned) != 1 or len(self.occurrences) != 1:
            return None
        if self.reading.scans[scanned[0]] or self.statement.others:
            return None
        return preview_rows(self.statement.parsed.node)


def _distinct(edges: Sequence[UsedEdge]) -> list[UsedEdge]:
    return list({(edge.sources, edge.stage, edge.column): edge for edge in edges}.values())


def _column_type(table: PublishedTable, column: str) -> str | None:
    for candidate in table.columns:
        if candidate.name == column:
            return candidate.type
    return None


_INTEGERS: Final = ("smallint", "integer", "bigint")


def _widest(types: set[str]) -> str:
    """The type keys are compared in (R41): the widest integer; text for varchar."""
    if types <= set(_INTEGERS):
        return max(types, key=_INTEGERS.index)
    if types <= {"text", "character varying"}:
        return "text"
    (only,) = types
    return only


def subquery_columns(statement: FederatedStatement) -> planreading.SubqueryColumns:
    """Tell a subquery's columns by its alias and the occurrences inside it, if just one fits."""
    numbers = [(o.relation.start, o.relation.end, o.number) for o in statement.occurrences]

    def inside(node: Any) -> frozenset[int]:
        return frozenset(
            number
            for position in sqltree.relation_positions(node)
            for start, end, number in numbers
            if start <= position < end
        )

    candidates = [
        (alias, inside(query), columns)
        for alias, query, columns in sqltree.subqueries(statement.parsed.node)
    ]

    def columns_of(alias: str, scanned: frozenset[int]) -> Sequence[str] | None:
        fitting = [
            columns
            for name, occurrences, columns in candidates
            if scanned <= occurrences and _may_print_as(name, alias)
        ]
        return fitting[0] if len(fitting) == 1 else None

    return columns_of


def _may_print_as(name: str, printed: str) -> bool:
    """EXPLAIN makes a repeated alias unique with a number behind it."""
    return printed == name or re.fullmatch(re.escape(name[:50]) + r".*_\d+", printed) is not None
