"""Making a plan of a statement that several owners answer together.

Edges come from the hub's planner and are sound; policy decides which of them may be used, estimates
which are worth it, and the order of the steps follows. Planning touches no owner.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oar_adapters.interface import (
    Adapter,
    Agreement,
    And,
    Column,
    Not,
    NullTest,
    Or,
    Predicate,
    Scan,
    SortKey,
    Statement,
    base_type,
)

from oar_proxy import counting, leaves, matching
from oar_proxy import predicate as predicates
from oar_proxy.catalog import Holder
from oar_proxy.counting import Counted
from oar_proxy.cover import Cover, cover
from oar_proxy.decision import Decisions
from oar_proxy.edges import Edges, UsedEdge
from oar_proxy.estimate import Estimates, selectivity
from oar_proxy.firstrows import FirstRows, first_rows
from oar_proxy.hub import planreading
from oar_proxy.hub.planreading import Origin, Reading
from oar_proxy.leaves import Leaf
from oar_proxy.offer import Chosen, Local, Offers, Relayed
from oar_proxy.order import Ordered, order
from oar_proxy.plan import LocalSemiJoin, Plan, Step
from oar_proxy.pushdown import Whole
from oar_proxy.route import Route, RouteKind, route
from oar_proxy.sql.tree import relation_positions, subqueries
from oar_proxy.statement import FederatedStatement, Occurrence
from oar_proxy.uses import countable


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
    decisions: Decisions,
    notes: Sequence[str] = (),
    max_keys: int | None = None,
    full: bool = False,
    permit: Callable[[str], bool] | None = None,
) -> Plan:
    """Plan the steps. Without a ``reading`` of the planner every table is read unreduced.

    ``full``: where the joins form a tree, no owner sends a row that joins with nothing; that
    costs round trips and keys, which travel both ways. ``permit`` is asked by name before rows are
    counted at their owner, or only the first of them are asked for.
    """
    covered = cover_of(statement)
    planner = _Planner(statement, reading, adapters, decisions, max_keys=max_keys, permit=permit)
    ordered = planner.ordered(full=full)
    steps = planner.steps(ordered)
    return Plan(
        statement,
        covered,
        _route(covered, steps),
        steps,
        notes=(*notes, *ordered.notes),
        alternatives=ordered.alternatives,
    )


def expected_rows(
    statement: FederatedStatement,
    reading: Reading,
    *,
    adapters: Mapping[str, Adapter],
    decisions: Decisions,
) -> Mapping[int, float]:
    """Return about how many rows of each occurrence the conditions on it leave."""
    planner = _Planner(statement, reading, adapters, decisions, max_keys=None, permit=None)
    return planner.estimates().rows


def _route(covered: Cover[tuple[str, str]], steps: Sequence[Step]) -> Route:
    """A relay whose every key edge is forbidden or unsound is a fan-out (decision 6)."""
    decided = route(covered)
    if decided.kind is not RouteKind.RELAY or any(step.all_edges for step in steps):
        return decided
    rules = dict.fromkeys(verdict.rule for step in steps for _, verdict in step.denied)
    if rules:
        reason = f"{decided.reason}, and no key may travel between them ({', '.join(rules)})"
    else:
        reason = f"{decided.reason}, and no key would reduce what another has to send"
    return Route(RouteKind.FAN_OUT, reason)


class _Planner:
    def __init__(
        self,
        statement: FederatedStatement,
        reading: Reading | None,
        adapters: Mapping[str, Adapter],
        decisions: Decisions,
        *,
        max_keys: int | None,
        permit: Callable[[str], bool] | None,
    ) -> None:
        self.statement = statement
        self.occurrences = {o.number: o for o in statement.occurrences}
        self.reading = reading
        self.adapters = adapters
        self.decisions = decisions
        self.permit = permit
        self.edges = Edges(self.occurrences, adapters, decisions, max_keys)
        self.candidates = self.edges.candidates(reading)
        self.scanned = sorted(reading.scans) if reading is not None else sorted(self.occurrences)
        self.conditions = {number: self._split(number) for number in self.scanned}
        self.first = self._first_rows()
        self.counted = dict(self._counted())
        relayed = self.candidates and self.first is None
        self.targets = leaves.targets(statement) if relayed else {}

    def ordered(self, *, full: bool) -> Ordered:
        """Choose the order, and what reduces what."""
        conditioned = {n for n, held in self._sent().items() if any(kept for _, kept in held)}
        estimates = self.estimates()
        if self.first is not None:
            number, first = self.first
            estimates.rows[number] = max(1.0, min(estimates.rows[number], first.rows))
        offers = Offers(self.edges, self.candidates, estimates, conditioned, eager=full)
        return order(offers, self.scanned, reduce_fully=full)

    def estimates(self) -> Estimates:
        """What to expect of each occurrence before keys reduce it."""
        return Estimates(self.occurrences, self._sent())

    def _sent(self) -> dict[int, list[tuple[Holder, Sequence[Predicate]]]]:
        return {
            number: [(h, held[h.owner][0]) for h in self.occurrences[number].table.holders]
            for number, held in self.conditions.items()
        }

    def steps(self, ordered: Ordered) -> tuple[Step, ...]:
        """Make a step of each choice for each of its holders."""
        steps: list[Step] = []
        sent = {
            source
            for chosen in ordered.chosen
            for relayed in chosen.relayed()
            if relayed.stage == "rows"
            for column in relayed.edge.columns
            for source in column.sources
        }
        for chosen in ordered.chosen:
            for holder in self.occurrences[chosen.occurrence].table.holders:
                step = self._filtered(self._step(chosen, holder), sent)
                left_out = (
                    f"{target.column}: {reason}"
                    for target, reason in ordered.left_out
                    if target.occurrence == chosen.occurrence
                )
                unreduced = tuple(dict.fromkeys((*step.unreduced, *left_out)))
                steps.append(replace(step, number=len(steps) + 1, unreduced=unreduced))
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

    def _split(self, number: int) -> dict[str, _Conditions]:
        """Split conditions into what each holder evaluates and what stays for the hub."""
        read = self._conditions(number)
        split: dict[str, _Conditions] = {}
        for holder in self.occurrences[number].table.holders:
            adapter = self.adapters[holder.owner]
            sent: list[Predicate] = []
            if holder.table.derived is None:
                sent.extend(self.decisions.row_filter(holder.owner, holder.table.name))
            kept: list[str] = []
            for text, condition in read:
                if condition is not None and adapter.supports(holder.table, condition):
                    sent.append(condition)
                else:
                    kept.append(text)
            split[holder.owner] = tuple(sent), tuple(kept)
        return split

    # --- steps --------------------------------------------------------------------------------

    def _step(self, chosen: Chosen, holder: Holder) -> Step:
        occurrence = self.occurrences[chosen.occurrence]
        sent, kept = self.conditions[occurrence.number][holder.owner]
        into = (e for e in self.candidates if e.target.occurrence == occurrence.number)
        cap = self.decisions.row_cap(holder.owner).number
        limit, sort_keys = cap + 1, tuple[SortKey, ...]()
        if self.first is not None and (occurrence.number, "rows") == (self.first[0], chosen.stage):
            limit, sort_keys = min(limit, self.first[1].rows), self.first[1].sort_keys
        names = {*occurrence.columns, *self._passed_on(occurrence.number)}
        distinct = chosen.stage == "keys"
        if distinct:
            names = set(chosen.keys)
        columns: tuple[Column, ...] = tuple(c for c in holder.table.columns if c.name in names)
        edges = self._used(chosen.edges, holder)
        expected = chosen.rows * holder.table.row_estimate / occurrence.table.row_estimate
        if chosen.stage == "rows" and limit == cap + 1:
            told = tuple(self._matching_nothing(chosen, edges, holder, sent))
            expected *= math.prod(selectivity(each, holder.table) for each in told)
            sent += told
        scan = Scan(
            holder.table, columns, sent, (), limit, distinct, order=sort_keys, expected=expected
        )
        how = self.counted.get(occurrence.number) if chosen.stage == "rows" else None
        return Step(
            number=0,
            occurrence=occurrence.number,
            owner=holder.owner,
            scan=scan if how is None else how.scan(scan),
            edges=edges,
            denied=tuple(dict.fromkeys(self.edges.denied(into, holder))),
            kept=kept,
            unreduced=self._unreduced(occurrence.number),
            stage=chosen.stage,
            semi_joins=tuple(self._semi_join(local) for local in chosen.local),
            rules=self.decisions.view_rules(holder.owner, holder.table.name),
        )

    def _matching_nothing(
        self,
        chosen: Chosen,
        edges: Sequence[UsedEdge],
        holder: Holder,
        sent: Sequence[Predicate],
    ) -> Iterator[Predicate]:
        """Yield what keeps rows from being sent whose key is NULL: they join with nothing (R1).

        Where keys reach a column, or a condition or a table beside it compares it, those rows stay
        away anyway.
        """
        told = {column.column for used in edges for column in used.columns}
        told |= {e.target.column for local in chosen.local for e in local.edge.columns}
        told |= {each.column for each in sent if not isinstance(each, And | Or | Not)}
        for edge in self.candidates:
            for end in (column.target for column in edge.columns):
                if end.occurrence != chosen.occurrence or end.column in told:
                    continue
                told.add(end.column)
                not_null = NullTest(end.column, negated=True)
                nullable = not holder.table.column(end.column).not_null
                if nullable and self.adapters[holder.owner].supports(holder.table, not_null):
                    yield not_null

    # --- rows that leaves filter ----------------------------------------------------------------

    def _filtered(self, step: Step, sent: Collection[Origin]) -> Step:
        """Tell which leaves filter a step's rows, and have these counted if that is all they do.

        Without regard, then, to what their leaves' keys are compared with. ``sent`` are the columns
        whose values in rows are other occurrences' keys.
        """
        number, target = step.occurrence, self.targets.get(step.occurrence)
        occurrence = self.occurrences[number]
        if target is None or step.stage != "rows" or len(occurrence.table.holders) > 1:
            return step
        kept = {origin.column for origin in sent if origin.occurrence == number}
        used = {*target.uses.plain, *target.uses.aggregated}
        joined = Counter(column for leaf in target.leaves for column in leaf.columns)
        # One value stands for all of a column: that of one row of one leaf.
        kept |= {column for column, times in joined.items() if times > 1}
        free = [
            leaf
            for leaf in target.leaves
            if (kept | used).isdisjoint(leaf.columns) and self._only_filters(leaf, occurrence)
        ]
        if not self.permit or self.permit(f"matching {number}"):
            numbered = tuple(leaf for leaf in free if self._is_number(leaf, occurrence))
            step = replace(step, matching=numbered)
        merging = {leaf: edge for leaf in free for edge in step.edges if self._brings(edge, leaf)}
        kept.update(c for leaf in target.leaves if leaf not in merging for c in leaf.columns)
        how = counting.counted(occurrence, target.uses, kept, self.adapters) if merging else None
        if how is None or (self.permit and not self.permit(f"leaves {number}")):
            return step
        return replace(
            step,
            scan=how.scan(step.scan),
            merging=tuple(merging.items()),
            apart=step.scan,
        )

    def _is_number(self, leaf: Leaf, target: Occurrence) -> bool:
        types = [target.table.column(column).type for column in leaf.columns]
        return len(types) == 1 and types[0] in matching.WIDTHS

    def _brings(self, edge: UsedEdge, leaf: Leaf) -> bool:
        """Tell whether an edge carries a leaf's rows, each as one key."""
        return (
            edge.stage == "rows"
            and all(len(column.sources) == 1 for column in edge.columns)
            and {column.sources[0].occurrence for column in edge.columns} == {leaf.number}
            and {(c.sources[0].column, c.column) for c in edge.columns} == leaf.pairs
        )

    def _only_filters(self, leaf: Leaf, target: Occurrence) -> bool:
        """Tell whether the rows that owners send of a leaf pass all its conditions at the hub.

        Rows that find one of its keys at their owner have to be those that join it there as well.
        """
        table = self.occurrences[leaf.number].table
        (holder,) = target.table.holders
        for name, into in leaf.pairs:
            key, column = table.column(name), holder.table.column(into)
            alike = key.type == column.type and base_type(key.type) in leaves.ALIKE
            if not alike or column.equality is not Agreement.EXACT:
                return False
        return all(
            not kept and all(adapter.supports(each.table, Not(condition)) for condition in held)
            for each in table.holders
            for held, kept in [self.conditions[leaf.number][each.owner]]
            for adapter in [self.adapters[each.owner]]
        )

    def _used(self, edges: Sequence[Relayed], holder: Holder) -> tuple[UsedEdge, ...]:
        used = (self.edges.used(each.edge, each.stage, each.keys, holder) for each in edges)
        return _distinct(edge for edge in used if edge is not None)

    def _semi_join(self, local: Local) -> LocalSemiJoin:
        (source,) = local.edge.sources
        (holder,) = self.occurrences[source.occurrence].table.holders
        sent, _ = self.conditions[source.occurrence][holder.owner]
        pairs = [(column.target.column, column.sources[0].column) for column in local.edge.columns]
        return LocalSemiJoin(
            column=local.edge.target.column,
            source=source,
            also=tuple(pairs[1:]),
            scan=Scan(holder.table, tuple(holder.table.column(name) for _, name in pairs), sent),
            edges=self._used(local.edges, holder),
            semi_joins=tuple(self._semi_join(each) for each in local.local),
        )

    def _passed_on(self, number: int) -> set[str]:
        """The columns of an occurrence whose values are other occurrences' keys."""
        edges = self.reading.edges if self.reading is not None else ()
        sources = (source for edge in edges for source in edge.sources)
        return {source.column for source in sources if source.occurrence == number}

    def _counted(self) -> Iterator[tuple[int, Counted]]:
        """Yield the occurrences whose owners send groups of rows, counted."""
        if self.reading is None:
            return
        uses_of, _ = countable(self.statement)
        for number, uses in uses_of.items():
            if number in self.scanned and (self.first is None or number != self.first[0]):
                occurrence, keys = self.occurrences[number], self._passed_on(number)
                how = counting.counted(occurrence, uses, keys, self.adapters)
                if how is None or (self.permit and not self.permit(f"counted {number}")):
                    continue
                yield number, how

    def _unreduced(self, number: int) -> tuple[str, ...]:
        if self.reading is None:
            return ()
        said = [
            f"{u.target.column}: {u.reason}"
            for u in self.reading.unreduced
            if u.target.occurrence == number
        ]
        for edge in self.reading.edges:
            if edge.target.occurrence == number and not self.edges.usable(edge):
                why = "keys of these types do not compare as such (R39)"
                if self.edges.computed(edge):
                    why = "an owner's subquery computes one side: no key of a table (R22)"
                said.append(f"{edge.target.column}: {why}")
        return tuple(dict.fromkeys(said))

    def _first_rows(self) -> tuple[int, FirstRows] | None:
        """The occurrence of which the first rows are enough, if its owners can tell which (R27)."""
        found = first_rows(self.statement.parsed.node, self._columns())
        if found is None or self.reading is None or not self.reading.complete:
            return None
        for occurrence in self.statement.occurrences:
            if occurrence.relation.start <= found.position < occurrence.relation.end:
                number = occurrence.number
                enough = number in self.conditions and self._tells_first(number, found)
                permitted = self.permit is None or self.permit(f"first rows {number}")
                return (number, found) if enough and permitted else None
        return None

    def _columns(self) -> dict[str, set[str]]:
        """The columns that every relation of a name has, by what the statement calls it."""
        found: dict[str, set[str]] = {}
        named = [
            *((o.relation, [c.name for c in o.table.columns]) for o in self.occurrences.values()),
            *((o.relation, [name for name, _ in o.columns]) for o in self.statement.others),
        ]
        for relation, columns in named:
            known = found.setdefault(relation.reference, set(columns))
            known.intersection_update(columns)
        return found

    def _tells_first(self, number: int, first: FirstRows) -> bool:
        conditioned = bool(self.reading is not None and self.reading.scans[number])
        if conditioned and (len(self.occurrences) > 1 or self.statement.others):
            return False
        for holder in self.occurrences[number].table.holders:
            adapter = self.adapters[holder.owner]
            sent, kept = self.conditions[number][holder.owner]
            # Only what an owner evaluates exactly may be negated: a superset is no first rows.
            if kept or not all(adapter.supports(holder.table, Not(each)) for each in sent):
                return False
            if first.sort_keys and not adapter.capabilities.first_rows:
                return False
            ordered = {column.name for column in holder.table.columns if column.ordered}
            if not ordered.issuperset(key.column for key in first.sort_keys):
                return False
        return True


_Conditions = tuple[tuple[Predicate, ...], tuple[str, ...]]
"""What an owner evaluates, and the text of what it does not."""


def _distinct(edges: Iterable[UsedEdge]) -> tuple[UsedEdge, ...]:
    return tuple(
        {
            (edge.stage, *((each.sources, each.column) for each in edge.columns)): edge
            for edge in edges
        }.values()
    )


def subquery_columns(statement: FederatedStatement) -> planreading.SubqueryColumns:
    """Tell a subquery's columns by its alias and the occurrences inside it, if just one fits."""
    numbers = [(o.relation.start, o.relation.end, o.number) for o in statement.occurrences]

    def inside(node: Any) -> frozenset[int]:
        return frozenset(
            number
            for position in relation_positions(node)
            for start, end, number in numbers
            if start <= position < end
        )

    candidates = [
        (alias, inside(query), columns)
        for alias, query, columns in subqueries(statement.parsed.node)
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
