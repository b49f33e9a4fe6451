"""Full reduction of a tree of joins: no owner sends a row that joins with nothing.

From the leaves up only keys are asked for, then down again rows: each occurrence's rows are looked
up by its parent's rows and its children's keys (Yannakakis 1981). Between tables of one owner
nothing has to travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oar_proxy.edges import Stage
from oar_proxy.hub.planreading import KeyEdge
from oar_proxy.offer import Chosen, Local, Offers, Relayed

Reductions = tuple[tuple[Relayed, ...], tuple[Local, ...]]


def full(offers: Offers, scanned: Sequence[int]) -> list[Chosen] | None:
    """Order both passes; None where edges form a ring."""
    between: dict[tuple[int, int], list[KeyEdge]] = {}
    for edge in (*offers.most, *offers.local):
        usable = edge in offers.local or offers.most[edge] > 0
        if len(edge.sources) == 1 and usable:
            pair = (edge.sources[0].occurrence, edge.target.occurrence)
            between.setdefault(pair, []).append(edge)
    rows = offers.estimates.rows
    order = _rooted(sorted(scanned, key=lambda number: -rows[number]), between)
    if order is None:
        return None
    tree = _Tree(order, between, offers)
    chosen: list[Chosen] = []
    for number, parent in reversed(order):
        upward = tree.relayed(number, parent)
        if upward:
            reductions = tree.from_below(number)
            columns = frozenset(c.sources[0].column for each in upward for c in each.edge.columns)
            chosen.append(Chosen(number, "keys", rows[number], *reductions, columns))
    for number, _ in order:
        reductions = tree.from_everywhere(number, None)
        chosen.append(Chosen(number, "rows", rows[number], *reductions))
    return chosen


def _rooted(
    scanned: Sequence[int], between: Mapping[tuple[int, int], object]
) -> list[tuple[int, int | None]] | None:
    """Each occurrence with its parent, parents first; None when the edges form a ring.

    The root is the first one, with the most rows: it is asked once, when all others have their say.
    """
    neighbours: dict[int, set[int]] = {number: set() for number in scanned}
    for source, target in between:
        neighbours[source].add(target)
        neighbours[target].add(source)
    order: list[tuple[int, int | None]] = []
    seen: set[int] = set()
    for root in scanned:
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


@dataclass(frozen=True)
class _Tree:
    """A tree of joins: each occurrence with its parent, parents first, and the edges between."""

    order: Sequence[tuple[int, int | None]]
    between: Mapping[tuple[int, int], Sequence[KeyEdge]]
    offers: Offers

    def relayed(self, source: int, target: int | None, stage: Stage = "keys") -> list[Relayed]:
        """Return the edges along which keys travel."""
        estimates = self.offers.estimates
        return [
            Relayed(edge, stage, estimates.edge_keys(edge, estimates.rows))
            for edge in self._edges(source, target)
            if edge not in self.offers.local
        ]

    def from_below(self, number: int, other_than: int | None = None) -> Reductions:
        """Return what an occurrence's children reduce it by, but for one of them."""
        edges: list[Relayed] = []
        local: list[Local] = []
        for child, parent in self.order:
            if parent == number and child != other_than:
                edges += self.relayed(child, number)
                local += self._inside(child, number, self.from_below(child))
        return tuple(edges), tuple(local)

    def from_everywhere(self, number: int, other_than: int | None) -> Reductions:
        """Return what children and parent reduce an occurrence by, but for one of the children."""
        edges, local = self.from_below(number, other_than)
        parent = dict(self.order)[number]
        if parent is None:
            return edges, local
        inside = self._inside(parent, number, self.from_everywhere(parent, number))
        return (*self.relayed(parent, number, "rows"), *edges), (*inside, *local)

    def _inside(self, source: int, target: int, reductions: Reductions) -> list[Local]:
        links = [edge for edge in self._edges(source, target) if edge in self.offers.local]
        return [Local(link, *(reductions if link is links[0] else ((), ()))) for link in links]

    def _edges(self, source: int, target: int | None) -> Sequence[KeyEdge]:
        return () if target is None else self.between.get((source, target), ())
