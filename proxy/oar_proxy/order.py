"""The order in which owners are asked, and along which edges keys travel on the way.

Allowed by policy first, then fewest expected rows (decision 6). The edges themselves are sound
whatever the order: estimates decide what is worth it, never what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from oar_proxy.edges import Edges, Stage
from oar_proxy.hub import planreading

_ROWS: Final[Stage] = "rows"


@dataclass(frozen=True, slots=True)
class Local:
    """Reduction of an occurrence by another one beside it, joined inside their owner.

    ``edges`` and ``local`` are what reduces the other one, from elsewhere and there.
    """

    edge: planreading.KeyEdge
    edges: tuple[tuple[planreading.KeyEdge, Stage], ...] = ()
    local: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to ask an occurrence's holders for, in this order, with which edges.

    ``keys`` are the columns asked for where only keys are.
    """

    occurrence: int
    stage: Stage
    edges: tuple[tuple[planreading.KeyEdge, Stage], ...]
    keys: frozenset[str] = frozenset()
    local: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class _Offer:
    """What asking for an occurrence now would bring. ``filtered``: fewer rows than it has."""

    rows: float
    edges: tuple[planreading.KeyEdge, ...]
    local: tuple[Local, ...]
    filtered: bool


class Order:
    """Orders the occurrences of one statement. ``filtered`` are those that bring fewer rows.

    ``eager``: reduce whatever can be reduced inside an owner, also by what is not filtered.
    """

    def __init__(
        self,
        edges: Edges,
        candidates: Sequence[planreading.KeyEdge],
        estimates: dict[int, float],
        filtered: set[int],
        *,
        eager: bool = False,
    ) -> None:
        self.edges = edges
        self.local = [edge for edge in candidates if edges.local(edge)]
        self.relayed = [edge for edge in candidates if edge not in self.local]
        self.estimates = estimates
        self.filtered = filtered
        self.conditioned = frozenset(filtered)
        self.eager = eager
        self.notes: list[str] = []

    def forward(self, scanned: Sequence[int]) -> list[Chosen]:
        """Take the occurrence with the fewest expected rows next, reduced by those before it."""
        left = list(scanned)
        ordered: list[Chosen] = []
        done: set[int] = set()
        while left:
            offers = {number: self._offer(number, done) for number in left}
            number = min(left, key=lambda n: (self._waits(n, left), offers[n].rows, n))
            offer = offers[number]
            self.estimates[number] = offer.rows
            if offer.filtered:
                self.filtered.add(number)
            edges = tuple((edge, _ROWS) for edge in offer.edges)
            ordered.append(Chosen(number, "rows", edges, local=offer.local))
            done.add(number)
            left.remove(number)
        return ordered

    def full(self, scanned: Sequence[int]) -> list[Chosen] | None:
        """Reduce a tree of joins from its leaves up and then down again (Yannakakis 1981).

        On the way up only keys are asked for, on the way down rows: each occurrence's rows are
        then looked up by its parent's rows and its children's keys. Between tables of one owner
        nothing has to travel. None where edges form a ring.
        """
        if not all(map(self.edges.settled, scanned)):
            self.notes.append("not reduced in full: asked twice, a subquery may give other rows")
            return None
        between: dict[tuple[int, int], list[planreading.KeyEdge]] = {}
        for edge in (*self.relayed, *self.local):
            usable = edge in self.local or self.edges.most_keys(edge) > 0
            if len(edge.sources) == 1 and usable:
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
        return self._up_and_down(_Tree(order, between, frozenset(self.local)))

    def _up_and_down(self, tree: _Tree) -> list[Chosen]:
        chosen: list[Chosen] = []
        for number, parent in reversed(tree.order):
            upward = tree.relayed(number, parent)
            if upward:
                edges, local = tree.from_below(number)
                columns = frozenset(edge.sources[0].column for edge in upward)
                chosen.append(Chosen(number, "keys", edges, columns, local))
        for number, _ in tree.order:
            edges, local = tree.from_everywhere(number, None)
            chosen.append(Chosen(number, "rows", edges, local=local))
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

    def _offer(self, number: int, done: Set[int]) -> _Offer:
        """What an occurrence would bring now, reduced by those before it and those beside it."""
        edges = self._relayed_into(number, done)
        inside = self._inside(number, done, edges)
        rows = self._reduced(number, edges, inside)
        return _Offer(
            max(rows, 1.0), edges, tuple(each.local for each in inside), bool(edges or inside)
        )

    def _relayed_into(self, number: int, done: Set[int]) -> tuple[planreading.KeyEdge, ...]:
        """The edges that are worth it, from occurrences that are asked before."""
        edges: list[planreading.KeyEdge] = []
        for edge in self.relayed:
            sources = {source.occurrence for source in edge.sources}
            if edge.target.occurrence != number or not sources <= done:
                continue
            keys = self._keys(edge)
            worth = (
                keys <= self.estimates[number]
                or bool(sources & self.filtered)
                or self._turned_round(edge)
            )
            if keys <= self.edges.most_keys(edge) and worth:
                edges.append(edge)
        return tuple(edges)

    def _reduced(
        self, number: int, edges: Sequence[planreading.KeyEdge], inside: Sequence[_Inside]
    ) -> float:
        """How many rows of an occurrence are left."""
        left = [self._keys(edge) * self.edges.rows_each(edge.target) for edge in edges]
        left += [each.rows * self.edges.rows_each(each.local.edge.target) for each in inside]
        return min([self.estimates[number], *left])

    def _inside(
        self, number: int, done: Set[int], edges: Sequence[planreading.KeyEdge]
    ) -> list[_Inside]:
        """The reductions of an occurrence by those beside it that are worth it.

        Each of them is read at most once for it, next to the nearest one that it joins: that ends
        where joins form a ring.
        """
        children: dict[int, list[planreading.KeyEdge]] = {}
        seen, waiting = {number}, [number]
        while waiting:
            parent = waiting.pop(0)
            links = [edge for edge in self.local if edge.target.occurrence == parent]
            children[parent] = [e for e in links if e.sources[0].occurrence not in seen]
            found = dict.fromkeys(e.sources[0].occurrence for e in children[parent])
            seen.update(found)
            waiting.extend(found)
        return self._beside(number, done, edges, children)

    def _beside(
        self,
        number: int,
        done: Set[int],
        edges: Sequence[planreading.KeyEdge],
        children: Mapping[int, Sequence[planreading.KeyEdge]],
    ) -> list[_Inside]:
        found: list[_Inside] = []
        read: set[int] = set()
        for link in children[number]:
            (source,) = link.sources
            beside = source.occurrence
            relayed: tuple[planreading.KeyEdge, ...] = ()
            deeper: list[_Inside] = []
            if beside not in read:
                # Joined on several columns, it is reduced once; then its own conditions do.
                relayed = tuple(
                    edge
                    for edge in self._relayed_into(beside, done)
                    if not _implied(edge, link, edges)
                )
                deeper = self._beside(beside, done, (*edges, *relayed), children)
            rows = self._reduced(beside, relayed, deeper)
            filtered = beside in self.conditioned or bool(relayed or deeper)
            if filtered or rows < self.estimates[number] or self.eager:
                pairs = tuple((edge, _ROWS) for edge in relayed)
                local = Local(link, pairs, tuple(each.local for each in deeper))
                found.append(_Inside(local, rows))
            read.add(beside)
        return found

    def _waits(self, number: int, left: Sequence[int]) -> bool:
        """Whether to ask later: the occurrence's own keys may not leave, while others' may come."""
        return any(
            edge.target.occurrence == number
            and all(s.occurrence in left for s in edge.sources)
            and self._keys(edge) <= self.edges.most_keys(edge)
            and self._turned_round(edge)
            for edge in self.relayed
        )

    def _keys(self, edge: planreading.KeyEdge) -> float:
        return sum(self.estimates[number] for number in {s.occurrence for s in edge.sources})

    def _turned_round(self, edge: planreading.KeyEdge) -> bool:
        """Whether the opposite edge is sound but forbidden, so that only this direction is left."""
        sources = {source.occurrence for source in edge.sources}
        opposite = [
            other
            for other in self.relayed
            if other.target.occurrence in sources
            and any(s.occurrence == edge.target.occurrence for s in other.sources)
        ]
        return bool(opposite) and all(self.edges.most_keys(other) == 0 for other in opposite)


@dataclass(frozen=True, slots=True)
class _Inside:
    """A reduction inside an owner, and how many rows are expected to do it."""

    local: Local
    rows: float


def _implied(
    edge: planreading.KeyEdge, link: planreading.KeyEdge, edges: Sequence[planreading.KeyEdge]
) -> bool:
    """Tell whether the same keys reach the other end of a link as well, on the same column."""
    return edge.target == link.sources[0] and any(
        other.sources == edge.sources and other.target == link.target for other in edges
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tree of joins: each occurrence with its parent, parents first, and the edges between."""

    order: Sequence[tuple[int, int | None]]
    between: Mapping[tuple[int, int], Sequence[planreading.KeyEdge]]
    local: Set[planreading.KeyEdge]

    def relayed(self, source: int, target: int | None) -> list[planreading.KeyEdge]:
        """Return the edges along which keys travel."""
        return [edge for edge in self._edges(source, target) if edge not in self.local]

    def from_below(self, number: int, other_than: int | None = None) -> _Reductions:
        """Return what an occurrence's children reduce it by, but for one of them."""
        edges: list[tuple[planreading.KeyEdge, Stage]] = []
        local: list[Local] = []
        for child, parent in self.order:
            if parent != number or child == other_than:
                continue
            edges += [(edge, "keys") for edge in self.relayed(child, number)]
            local += self._inside(child, number, self.from_below(child))
        return tuple(edges), tuple(local)

    def from_everywhere(self, number: int, other_than: int | None) -> _Reductions:
        """Return what children and parent reduce an occurrence by, but for one of the children."""
        edges, local = self.from_below(number, other_than)
        parent = dict(self.order)[number]
        if parent is None:
            return edges, local
        downward = tuple((edge, _ROWS) for edge in self.relayed(parent, number))
        inside = self._inside(parent, number, self.from_everywhere(parent, number))
        return (*downward, *edges), (*inside, *local)

    def _inside(self, source: int, target: int, reductions: _Reductions) -> list[Local]:
        links = [edge for edge in self._edges(source, target) if edge in self.local]
        return [Local(link, *(reductions if link is links[0] else ((), ()))) for link in links]

    def _edges(self, source: int, target: int | None) -> Sequence[planreading.KeyEdge]:
        return () if target is None else self.between.get((source, target), ())


_Reductions = tuple[tuple[tuple[planreading.KeyEdge, Stage], ...], tuple[Local, ...]]
