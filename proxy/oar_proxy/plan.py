"""The plan: which owner is asked for what, and which keys travel from whom to whom.

Fan-out is a plan without key edges; relay is the same plan with them (decision 6). See
:mod:`oar_proxy.planning`, which makes it, and :mod:`oar_proxy.run`, which carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from oar_adapters.interface import KeyFilter, Scan, SemiJoin, Statement

from oar_proxy.cover import Cover
from oar_proxy.decision import Checked, EdgeVerdict, KeyEdge
from oar_proxy.edges import Stage, UsedEdge
from oar_proxy.grouping import Withheld
from oar_proxy.hub.planreading import Origin
from oar_proxy.keys import digested_keys
from oar_proxy.leaves import Leaf
from oar_proxy.order import Alternative
from oar_proxy.pushdown import Whole
from oar_proxy.route import Route
from oar_proxy.statement import FederatedStatement


@dataclass(frozen=True, slots=True)
class LocalSemiJoin:
    """Rows are reduced by those of another occurrence beside them, inside their owner.

    ``scan`` reads that occurrence with conditions and reductions of its own; no key of it leaves.
    ``also`` are further columns, each with the one of the same row that it has to match.
    """

    column: str
    source: Origin
    scan: Scan
    also: tuple[tuple[str, str], ...] = ()
    edges: tuple[UsedEdge, ...] = ()
    semi_joins: tuple[LocalSemiJoin, ...] = ()


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
    kept: tuple[str, ...] = ()
    """Conditions on the scan that stay for the hub."""
    unreduced: tuple[str, ...] = ()
    """Reductions that are not made, with the rule that forbids each, or why it is not worth it."""
    stage: Stage = "rows"
    semi_joins: tuple[LocalSemiJoin, ...] = ()
    rules: tuple[str, ...] = ()
    """The owner's rules by which it reads less than the table has."""
    merging: tuple[tuple[Leaf, UsedEdge], ...] = ()
    """Leaves, each with the edge of its keys: ``scan`` counts rows without regard to the columns
    they go to. It holds if all of them travel, and each row of a joined leaf has one of its own."""
    apart: Scan | None = None
    """What is asked for where that does not hold."""
    matching: tuple[Leaf, ...] = ()
    """Leaves that the proxy may look the rows up in, whether or not their keys travel: they find
    one by a single integer or date, which nothing else needs."""

    @property
    def estimate(self) -> float:
        """The rows that are expected."""
        return self.scan.expected or 0.0

    @property
    def looked_up(self) -> tuple[Leaf, ...]:
        """The leaves that rows are looked up in: those of ``matching`` that are not ``merging``."""
        merged = [leaf for leaf, _ in self.merging]
        return tuple(leaf for leaf in self.matching if leaf not in merged)

    @property
    def all_edges(self) -> tuple[UsedEdge, ...]:
        """The edges whose keys the query carries, also inside its semi-joins."""
        return tuple(_edges_of(self))

    @property
    def sources(self) -> frozenset[tuple[int, Stage]]:
        """Occurrences and stages whose answers have to be there first."""
        return frozenset((s.occurrence, e.stage) for e in self.all_edges for s in e.sources)


def _edges_of(reduced: Step | LocalSemiJoin) -> Iterator[UsedEdge]:
    yield from reduced.edges
    for semi_join in reduced.semi_joins:
        yield from _edges_of(semi_join)


def bound_scan(
    reduced: Step | LocalSemiJoin, bind: Callable[[UsedEdge], Iterable[KeyFilter]]
) -> Scan:
    """Put the keys of each edge in their place."""
    return replace(
        reduced.scan,
        key_filters=tuple(bound for used in reduced.edges for bound in bind(used)),
        semi_joins=tuple(
            SemiJoin(local.column, local.source.column, bound_scan(local, bind), local.also)
            for local in reduced.semi_joins
        ),
    )


def keyless_scan(step: Step) -> Scan:
    """Return a step's query before any key is known: each edge is in its place, with no key."""

    def bind(used: UsedEdge) -> list[KeyFilter]:
        return [key_filter(used.columns, [()] * len(used.columns), bytes(32))]

    return bound_scan(step, bind)


def key_filter(
    columns: Sequence[UsedEdge], keys: Sequence[tuple[bytes, ...]], secret: bytes
) -> KeyFilter:
    """Put keys to the columns of one edge, which belong together.

    Those that may leave as digests only are digested under the ``secret``.
    """
    first, *others = (
        KeyFilter(column.column, column.type, cells)
        if column.verdict.form == "plain"
        else KeyFilter(
            column.column, column.type, digested_keys(cells, column.type, secret), hmac=secret
        )
        for column, cells in zip(columns, keys, strict=True)
    )
    return replace(first, also=tuple(others))


@dataclass(frozen=True)
class Plan:
    """Everything a run needs. ``whole`` set: one owner answers the statement by itself."""

    statement: FederatedStatement
    cover: Cover[tuple[str, str]]
    route: Route
    steps: tuple[Step, ...]
    whole: Whole | None = None
    whole_query: Statement | None = None
    notes: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    """Orders that were compared: the one that was taken first, with no reason against it."""
    checked: Checked = field(default_factory=dict)
    """The owners' rules about use that the statement was checked against."""
    withheld: Withheld | None = None
    """The groups that are not shown, where a policy shows large ones only."""

    @property
    def owners(self) -> set[str]:
        """Those that are asked."""
        if self.whole is not None:
            return {self.whole.owner}
        return {step.owner for step in self.steps}

    @property
    def unread(self) -> tuple[int, ...]:
        """Occurrences whose rows cannot matter: the planner scans them nowhere."""
        read = {step.occurrence for step in self.steps}
        if self.whole is not None:
            return ()
        numbers = dict.fromkeys(o.number for o in self.statement.occurrences)
        return tuple(number for number in numbers if number not in read)
