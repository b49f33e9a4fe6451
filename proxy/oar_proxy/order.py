"""The order in which owners are asked, and along which edges keys travel on the way.

Allowed by policy first, then fewest expected rows (decision 6). The edges themselves are sound
whatever the order: estimates decide what is worth it, never what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oar_proxy.edges import Edges, Stage
from oar_proxy.hub import planreading


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to ask an occurrence's holders for, in this order, with which edges.

    ``keys`` are the columns asked for where only keys are.
    """

    occurrence: int
    stage: Stage
    edges: tuple[tuple[planreading.KeyEdge, Stage], ...]
    keys: frozenset[str] = frozenset()


@dataclass
class Order:
    """Orders the occurrences of one statement. ``filtered`` are those that bring fewer rows."""

    edges: Edges
    candidates: Sequence[planreading.KeyEdge]
    estimates: dict[int, float]
    filtered: set[int]
    notes: list[str] = field(default_factory=list)

    def forward(self, scanned: Sequence[int]) -> list[Chosen]:
        """Take the occurrence with the fewest expected rows next, reduced by those before it."""
        left = list(scanned)
        ordered: list[Chosen] = []
        done: set[int] = set()
        while left:
            offers = [(*self._offer(number, done), number) for number in left]
            estimate, edges, number = min(
                offers, key=lambda o: (self._waits(o[2], left), o[0], o[2])
            )
            self.estimates[number] = estimate
            if edges:
                self.filtered.add(number)
            ordered.append(Chosen(number, "rows", tuple((edge, "rows") for edge in edges)))
            done.add(number)
            left.remove(number)
        return ordered

    def full(self, scanned: Sequence[int]) -> list[Chosen] | None:
        """Reduce a tree of joins from its leaves up and then down again (Yannakakis 1981).

        On the way up only keys are asked for, on the way down rows: each occurrence's rows are
        then looked up by its parent's rows and its children's keys. None where edges form a ring.
        """
        between: dict[tuple[int, int], list[planreading.KeyEdge]] = {}
        for edge in self.candidates:
            if len(edge.sources) == 1 and self.edges.most_keys(edge) > 0:
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
        chosen: list[Chosen] = []
        asked_up: dict[int, list[tuple[planreading.KeyEdge, Stage]]] = {n: [] for n in scanned}
        for number, parent in reversed(order):
            upward = between.get((number, parent), []) if parent is not None else []
            if upward and parent is not None:
                chosen.append(
                    Chosen(
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
            chosen.append(Chosen(number, "rows", edges))
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

    def _offer(self, number: int, done: set[int]) -> tuple[float, tuple[planreading.KeyEdge, ...]]:
        """How many rows an occurrence would bring now, and by which edges."""
        estimate = self.estimates[number]
        edges: list[planreading.KeyEdge] = []
        for edge in self.candidates:
            if edge.target.occurrence != number:
                continue
            sources = {source.occurrence for source in edge.sources}
            if not sources <= done:
                continue
            keys = self._keys(edge)
            worth = (
                keys <= self.estimates[number]
                or bool(sources & self.filtered)
                or self._turned_round(edge)
            )
            if keys <= self.edges.most_keys(edge) and worth:
                edges.append(edge)
                estimate = min(estimate, keys * self.edges.rows_each(edge.target))
        return max(estimate, 1.0), tuple(edges)

    def _waits(self, number: int, left: Sequence[int]) -> bool:
        """Whether to ask later: the occurrence's own keys may not leave, while others' may come."""
        return any(
            edge.target.occurrence == number
            and all(s.occurrence in left for s in edge.sources)
            and self._keys(edge) <= self.edges.most_keys(edge)
            and self._turned_round(edge)
            for edge in self.candidates
        )

    def _keys(self, edge: planreading.KeyEdge) -> float:
        return sum(self.estimates[number] for number in {s.occurrence for s in edge.sources})

    def _turned_round(self, edge: planreading.KeyEdge) -> bool:
        """Whether the opposite edge is sound but forbidden, so that only this direction is left."""
        sources = {source.occurrence for source in edge.sources}
        opposite = [
            other
            for other in self.candidates
            if other.target.occurrence in sources
            and any(s.occurrence == edge.target.occurrence for s in other.sources)
        ]
        return bool(opposite) and all(self.edges.most_keys(other) == 0 for other in opposite)
