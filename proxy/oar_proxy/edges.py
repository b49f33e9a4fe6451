"""Which key edges a plan may use: sound types, an owner that can look up, the gate's verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from oar_adapters.interface import Adapter, Membership, base_type

from oar_proxy import predicate as predicates
from oar_proxy.catalog import Holder, PublishedTable
from oar_proxy.decision import Decisions, EdgeVerdict, KeyEdge, KeyOrigin
from oar_proxy.hub import planreading
from oar_proxy.hub.planreading import Origin, Reading
from oar_proxy.statement import Occurrence

Stage = Literal["rows", "keys"]
"""What is asked for: the rows of an occurrence, or first only the keys it would pass on."""


@dataclass(frozen=True, slots=True)
class UsedEdge:
    """Keys of ``sources`` go to one holder of the step's table, under the gate's verdict.

    ``stage`` says which step of the sources they are taken from; so many ``keys`` are expected.
    ``also`` are further columns of the same rows, whose keys belong to these (R13).
    """

    sources: tuple[Origin, ...]
    stage: Stage
    column: str
    type: str
    edge: KeyEdge
    verdict: EdgeVerdict
    keys: float = 0.0
    also: tuple[UsedEdge, ...] = ()

    @property
    def columns(self) -> tuple[UsedEdge, ...]:
        """The edge of each column."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    @property
    def limit(self) -> EdgeVerdict:
        """The verdict that lets the fewest keys pass: they count in each column."""
        return min((each.verdict for each in self.columns), key=lambda verdict: verdict.max_keys)


@dataclass(frozen=True, slots=True)
class Edges:
    """The sound edges of one statement, and what owners and policies make of each."""

    occurrences: Mapping[int, Occurrence]
    adapters: Mapping[str, Adapter]
    decisions: Decisions
    max_keys: int | None

    def candidates(self, reading: Reading | None) -> tuple[planreading.KeyEdge, ...]:
        """The edges of the planner whose keys compare at an owner as they do at the hub.

        Those that hold for the same two rows are one, where that can be (R13).
        """
        if reading is None:
            return ()
        found = {edge: None for group in reading.together if (edge := self._composite(group))}
        parts = {edge: frozenset(edge.columns) for edge in found}
        composite = [e for e in found if not any(parts[e] < others for others in parts.values())]
        inside = frozenset().union(*parts.values())
        alone = (e for e in reading.edges if e not in inside and self.usable(e))
        return (*composite, *alone)

    def _composite(self, group: Iterable[planreading.KeyEdge]) -> planreading.KeyEdge | None:
        """One edge of the columns whose keys every holder may have and looks up; None: no two are.

        Columns that are joined inside an owner do not travel for the sake of those that are not.
        """
        usable = [edge for edge in group if self.usable(edge)]
        if not usable:
            return None
        holders = self.occurrences[usable[0].target.occurrence].table.holders
        if not all(self.adapters[holder.owner].capabilities.composite_keys for holder in holders):
            return None
        travelling = [
            edge
            for edge in usable
            if all(self.looks_up(edge, h) and self._verdict(edge, h).permitted for h in holders)
        ]
        first, *others = [e for e in usable if self.local(e)] or travelling or [usable[0]]
        return replace(first, also=tuple(others)) if others else None

    def usable(self, edge: planreading.KeyEdge) -> bool:
        """Tell whether types on both sides are sound, and it is another occurrence (R39 to R50)."""
        target = self.occurrences[edge.target.occurrence].table
        target_type = _column_type(target, edge.target.column)
        if target_type is None or self.computed(edge):
            return False
        for source in edge.sources:
            if source.occurrence == edge.target.occurrence:
                return False
            table = self.occurrences[source.occurrence].table
            source_type = _column_type(table, source.column)
            if source_type is None or not predicates.relayable(source_type, target_type):
                return False
        return True

    def computed(self, edge: planreading.KeyEdge) -> bool:
        """Tell whether one end is a value that a subquery's owner makes, and no table's column."""
        ends = (edge.target, *edge.sources)
        return any(self.occurrences[e.occurrence].table.origin(e.column) is None for e in ends)

    def settled(self, occurrence: int) -> bool:
        """Tell whether an occurrence asked twice in one snapshot gives the same rows (R27)."""
        derived = self.occurrences[occurrence].table.holders[0].table.derived
        return derived is None or derived.settled

    def looks_up(self, edge: planreading.KeyEdge, holder: Holder) -> bool:
        """Tell whether the owner compares keys of these types with its columns as the hub does."""
        return all(
            self.adapters[holder.owner].supports(
                holder.table, Membership(column.target.column, (), self._key_type(column))
            )
            for column in edge.columns
        )

    def local(self, edge: planreading.KeyEdge) -> bool:
        """Tell whether one owner holds both sides alone and joins them itself: no key leaves it.

        What PostgreSQL takes for equal is equal there as well: both columns take keys of one type.
        """
        if len(edge.sources) != 1:
            return False
        (source,) = edge.sources
        holders = (
            *self.occurrences[source.occurrence].table.holders,
            *self.occurrences[edge.target.occurrence].table.holders,
        )
        if len(holders) != 2 or holders[0].owner != holders[1].owner:
            return False
        if holders[0].table.derived is not None:
            return False  # evaluated again, a subquery may give other rows (R27)
        adapter = self.adapters[holders[0].owner]
        return adapter.capabilities.semi_joins and all(
            adapter.supports(holder.table, Membership(end.column, (), self._key_type(column)))
            for column in edge.columns
            for holder, end in zip(holders, (*column.sources, column.target), strict=True)
        )

    def most_keys(self, edge: planreading.KeyEdge) -> int:
        """Return how many keys may travel along it at most: 0 where no holder may have any."""
        return max((verdict.max_keys for verdict in self._verdicts(edge)), default=0)

    def limit_rule(self, edge: planreading.KeyEdge) -> str:
        """Return the rule behind :meth:`most_keys`."""
        return max(self._verdicts(edge), key=lambda verdict: verdict.max_keys).limit_rule

    def _verdicts(self, edge: planreading.KeyEdge) -> Iterator[EdgeVerdict]:
        """Yield what each holder that can look keys up may have: they count in each column."""
        for holder in self.occurrences[edge.target.occurrence].table.holders:
            if self.looks_up(edge, holder):
                verdicts = (self._verdict(column, holder) for column in edge.columns)
                yield min(verdicts, key=lambda verdict: verdict.max_keys)

    def _verdict(self, column: planreading.KeyEdge, holder: Holder) -> EdgeVerdict:
        verdict = self._decided(column, holder)
        if self.max_keys is None or self.max_keys >= verdict.max_keys:
            return verdict
        return replace(verdict, max_keys=self.max_keys, limit_rule="oar.max_keys")

    def _decided(self, column: planreading.KeyEdge, holder: Holder) -> EdgeVerdict:
        """What policies say, where the holder can do it in the form they ask for."""
        verdict = self.decisions.edge(self._gate_edge(column, holder))
        digested = self.adapters[holder.owner].capabilities.digested_types
        if verdict.form == "plain" or self._key_type(column) in digested:
            return verdict
        rule = f"{verdict.rule}.form"
        return EdgeVerdict(
            permitted=False,
            rule=rule,
            reason=f"owner {holder.owner} does not look up digests of these keys",
            max_keys=0,
            limit_rule=rule,
            remedy=f"{rule} can be plain, if its owner agrees",
        )

    def discloses(self, edge: planreading.KeyEdge) -> bool:
        """Tell whether keys along it reach an owner that does not hold them."""
        origins = {
            holder.owner
            for source in edge.sources
            for holder in self.occurrences[source.occurrence].table.holders
        }
        receivers = set(self.occurrences[edge.target.occurrence].table.owners)
        return len(origins | receivers) > 1

    def used(
        self, edge: planreading.KeyEdge, stage: Stage, keys: float, holder: Holder
    ) -> UsedEdge | None:
        """Bring an edge that is expected to carry so many keys to one holder.

        None where the holder may not have them.
        """
        first, *others = (
            UsedEdge(
                column.sources,
                stage,
                column.target.column,
                self._key_type(column),
                self._gate_edge(column, holder),
                self._verdict(column, holder),
                keys,
            )
            for column in edge.columns
        )
        used = replace(first, also=tuple(others))
        permitted = all(column.verdict.permitted for column in used.columns)
        return used if permitted and self.looks_up(edge, holder) else None

    def denied(
        self, candidates: Iterable[planreading.KeyEdge], holder: Holder
    ) -> Iterator[tuple[KeyEdge, EdgeVerdict]]:
        """Yield the edges that would reduce a holder's rows and that a policy forbids."""
        for edge in candidates:
            if self.looks_up(edge, holder):
                gate_edge = self._gate_edge(edge, holder)
                verdict = self._decided(edge, holder)
                if not verdict.permitted:
                    yield gate_edge, verdict

    def _key_type(self, edge: planreading.KeyEdge) -> str:
        return key_type(
            _column_type(self.occurrences[o.occurrence].table, o.column) or ""
            for o in (*edge.sources, edge.target)
        )

    def _gate_edge(self, edge: planreading.KeyEdge, holder: Holder) -> KeyEdge:
        origins = tuple(
            KeyOrigin(source_holder.owner, *self._origin(source))
            for source in edge.sources
            for source_holder in self.occurrences[source.occurrence].table.holders
        )
        _, table, column = self._origin(edge.target)
        return KeyEdge(origins, holder.owner, table, column)

    def _origin(self, column: Origin) -> tuple[str, str, str]:
        found = self.occurrences[column.occurrence].table.origin(column.column)
        assert found is not None  # such an edge is not usable
        return found


def _column_type(table: PublishedTable, column: str) -> str | None:
    for candidate in table.columns:
        if candidate.name == column:
            return candidate.type
    return None


_INTEGERS: Final = ("smallint", "integer", "bigint")


def key_type(columns: Iterable[str]) -> str:
    """Return the type keys of such columns are compared in (R41): the widest integer; text."""
    types = {base_type(type_) for type_ in columns}
    if types <= set(_INTEGERS):
        return max(types, key=_INTEGERS.index)
    if types <= {"text", "character varying"}:
        return "text"
    (only,) = types
    return only
