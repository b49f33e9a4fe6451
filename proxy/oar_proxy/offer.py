"""What asking for one occurrence would bring, given those that are asked before it.

An edge is *worth it* when it is expected to carry no more keys than its target has rows left:
each key then stands against a row that its owner may be spared to send. Below a condition their
number is a guess, and may be more than a limit allows: they are counted before they leave. An edge
whose opposite is sound, but forbidden, is used whatever it carries: the relay turns round. An edge
is *implied* by another one into the same column whose own keys were already looked up among its: it
is left out, and discloses nothing. Inside an owner no key leaves: a semi-join is worth it when what
it joins is filtered, or smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from oar_proxy.edges import Edges, Stage
from oar_proxy.estimate import Estimates
from oar_proxy.hub.planreading import KeyEdge, Origin

Pair = frozenset[int]
"""Two occurrences that are joined."""

Row = tuple[Origin, ...]
"""Columns of one occurrence, whose values in one of its rows belong together."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """An edge along which keys travel: taken at a stage of its sources, expected to be so many."""

    edge: KeyEdge
    stage: Stage = "rows"
    keys: float = 0.0


@dataclass(frozen=True, slots=True)
class Local:
    """Reduction of an occurrence by another one beside it, joined inside their owner.

    ``edges`` and ``local`` are what reduces the other one, from elsewhere and there.
    """

    edge: KeyEdge
    edges: tuple[Relayed, ...] = ()
    local: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to ask an occurrence's holders for, with which edges.

    ``rows`` are expected. ``keys`` are the columns asked for where only keys are.
    """

    occurrence: int
    stage: Stage
    rows: float
    edges: tuple[Relayed, ...] = ()
    local: tuple[Local, ...] = ()
    keys: frozenset[str] = frozenset()

    def relayed(self) -> Iterable[Relayed]:
        """Yield the edges whose keys the query carries, also inside its semi-joins."""
        yield from self.edges
        waiting = list(self.local)
        while waiting:
            local = waiting.pop()
            yield from local.edges
            waiting.extend(local.local)


@dataclass(frozen=True)
class State:
    """What is known when some occurrences have been asked, in this order.

    ``rows`` are those each occurrence has left. ``within``: for some columns of one, in the order
    of their names, others whose rows include all that it has left; ``values``: at most how many
    values a column has. ``depth`` is how many round trips an occurrence's rows took. ``told`` are
    the edges whose keys a receiver has, and ``reduced`` the pairs that they reduce.
    """

    chosen: tuple[Chosen, ...]
    rows: Mapping[int, float]
    within: Mapping[Row, frozenset[Row]] = field(default_factory=dict)
    values: Mapping[Origin, float] = field(default_factory=dict)
    depth: Mapping[int, int] = field(default_factory=dict)
    told: Mapping[KeyEdge, float] = field(default_factory=dict)
    reduced: frozenset[Pair] = frozenset()

    @cached_property
    def done(self) -> frozenset[int]:
        """The occurrences that have been asked."""
        return frozenset(self.depth)

    @property
    def keys(self) -> float:
        """Keys that reach another owner, each edge's once."""
        return sum(self.told.values())


@dataclass(frozen=True, slots=True)
class _Inside:
    """A reduction inside an owner, and how many keys are expected to do it there."""

    local: Local
    keys: float


class Offers:
    """The edges of one statement, and what each would do."""

    def __init__(
        self,
        edges: Edges,
        candidates: Sequence[KeyEdge],
        estimates: Estimates,
        conditioned: Set[int],
        *,
        eager: bool = False,
    ) -> None:
        """Look at the edges ``candidates``.

        ``conditioned`` are occurrences on which owners evaluate a condition. ``eager``: a table
        beside another one reduces it though it is neither filtered nor smaller.
        """
        self._edges = edges
        self.estimates = estimates
        self._conditioned = conditioned
        self._eager = eager
        self.local = frozenset(edge for edge in candidates if edges.local(edge))
        self.most = {e: edges.most_keys(e) for e in candidates if e not in self.local}
        self._into: dict[int, list[KeyEdge]] = {}
        self._beside: dict[int, list[KeyEdge]] = {}
        for edge in candidates:
            into = self._beside if edge in self.local else self._into
            into.setdefault(edge.target.occurrence, []).append(edge)
        self._forced = frozenset(e for e in self.most if self._is_last_direction(e))
        self.pairs = frozenset(
            pair for edge, most in self.most.items() if most > 0 for pair in _pairs(edge)
        )
        """Joined occurrences of which a policy lets keys of one reach the other."""

    def settled(self, number: int) -> bool:
        """Tell whether an occurrence asked twice gives the same rows."""
        return self._edges.settled(number)

    def asked(self, state: State, number: int, *, relay: bool = True) -> State:
        """Ask for an occurrence next. Without ``relay`` no key travels."""
        reduction = _Reduction(self, state, number, relay=relay)
        edges = reduction.relayed(number)
        inside = reduction.beside(number, edges, self._tree(number))
        chosen = Chosen(
            number, "rows", reduction.left(number), edges, tuple(each.local for each in inside)
        )
        used = list(chosen.relayed())
        sources = {s.occurrence for each in used for s in each.edge.sources}
        depth = 1 + max((state.depth[source] for source in sources), default=0)
        told = {e.edge: e.keys * len(e.edge.columns) for e in used if self._edges.discloses(e.edge)}
        return replace(
            state,
            chosen=(*state.chosen, chosen),
            rows={**state.rows, number: chosen.rows},
            within=reduction.within,
            values={**state.values, **reduction.values_of(number)},
            depth={**state.depth, number: depth},
            told={**state.told, **told},
            reduced=state.reduced | reduction.reduced,
        )

    def left_out(self, state: State) -> Iterator[tuple[Origin, str]]:
        """Yield what no key reduces that a policy would let through, and why not."""
        place = {chosen.occurrence: n for n, chosen in enumerate(state.chosen)}
        for edge, most in self.most.items():
            if most <= 0 or any(pair in state.reduced for pair in _pairs(edge)):
                continue
            keys = round(self.keys(edge, state))
            rows = round(state.rows[edge.target.occurrence])
            number = edge.target.occurrence
            if keys > most:
                rule = self._edges.limit_rule(edge)
                said = f"about {keys} keys are expected, at most {most} may travel ({rule})"
            elif keys > rows:
                said = f"about {keys} keys are not worth its about {rows} rows"
            elif any(place[source.occurrence] > place[number] for source in edge.sources):
                said = "it is asked before what it is joined with"
            else:
                continue
            yield from ((column.target, said) for column in edge.columns)

    def keys(self, edge: KeyEdge, state: State) -> float:
        """How many keys an edge is expected to carry.

        Each column of a composite one is for itself where all together are more than may travel.
        """
        keys = self.estimates.edge_keys(edge, state.rows, state.values)
        if not edge.also or keys <= self.most[edge]:
            return keys
        alone = (self.estimates.edge_keys(c, state.rows, state.values) for c in edge.columns)
        return min(alone)

    def into(self, number: int) -> Sequence[KeyEdge]:
        """The edges along which keys may travel to an occurrence."""
        return self._into.get(number, ())

    def worth(self, edge: KeyEdge, keys: float, rows: float) -> bool:
        """Tell whether so many keys may travel, and are worth it for so many rows.

        Only the owner knows how many rows a condition leaves. A guess forbids nothing: when there
        are too many after all, they are left out then.
        """
        most = self.most[edge]
        guessed = any(source.occurrence in self._conditioned for source in edge.sources)
        allowed = keys <= most or (guessed and most > 0)
        return allowed and (keys <= rows or edge in self._forced)

    def worth_beside(self, number: int, other: int, rows: float, *, reduced: bool) -> bool:
        """Tell whether another occurrence, with so many rows left, is worth joining inside."""
        filtered = reduced or other in self._conditioned
        return filtered or self._eager or rows < self.estimates.rows[number]

    def _tree(self, number: int) -> Mapping[int, Sequence[KeyEdge]]:
        """The occurrences that may reduce one inside their owner, each by what it stands next to.

        Each is read at most once for it, beside the nearest one that it joins: that ends where
        joins form a ring.
        """
        tree: dict[int, list[KeyEdge]] = {}
        seen, waiting = {number}, [number]
        while waiting:
            parent = waiting.pop(0)
            links = self._beside.get(parent, [])
            tree[parent] = [e for e in links if e.sources[0].occurrence not in seen]
            found = dict.fromkeys(e.sources[0].occurrence for e in tree[parent])
            seen.update(found)
            waiting.extend(found)
        return tree

    def _is_last_direction(self, edge: KeyEdge) -> bool:
        """Whether the opposite edge is sound but forbidden, so that only this direction is left."""
        opposite = [
            other
            for source in edge.sources
            for other in self.into(source.occurrence)
            if any(s.occurrence == edge.target.occurrence for s in other.sources)
        ]
        return bool(opposite) and all(self.most[other] == 0 for other in opposite)


class _Reduction:
    """The reductions of one occurrence, and of those beside it, collected one after another."""

    def __init__(self, offers: Offers, state: State, number: int, *, relay: bool) -> None:
        self._offers = offers
        self._state = state
        self._relay = relay
        self._shares: dict[int, dict[frozenset[Origin], float]] = {}
        self._number = number
        self._values: dict[Origin, float] = {}
        self.within = dict(state.within)
        self.reduced: set[Pair] = set()

    def left(self, number: int) -> float:
        """How many rows are left: columns reduce one by one, keys of one column not twice."""
        rows = self._offers.estimates.rows[number]
        for share in self._shares.get(number, {}).values():
            rows *= share
        return max(rows, 1.0)

    def values_of(self, number: int) -> dict[Origin, float]:
        """How many values the columns of an occurrence have at most, where they were looked up."""
        return {o: keys for o, keys in self._values.items() if o.occurrence == number}

    def relayed(
        self, number: int, link: KeyEdge | None = None, outside: Sequence[Relayed] = ()
    ) -> tuple[Relayed, ...]:
        """Choose the edges into an occurrence, those with the fewest keys first.

        ``link`` joins it to what is asked for, which has the edges ``outside``.
        """
        state = self._state
        ready = [
            (self._offers.keys(edge, state), edge)
            for edge in self._offers.into(number)
            if all(source.occurrence in state.depth for source in edge.sources)
        ]
        taken: list[Relayed] = []
        for keys, edge in sorted(ready, key=lambda each: each[0]) if self._relay else ():
            if link is not None and _reaches(edge, link, outside):
                continue
            if self._implied(edge, taken):
                self.reduced.update(_pairs(edge))
            elif self._offers.worth(edge, keys, self.left(number)):
                taken.append(Relayed(edge, "rows", keys))
                self._keep(edge, keys)
                self.reduced.update(_pairs(edge))
        for each in taken:
            self._bound(each.edge)
        return tuple(taken)

    def beside(
        self, number: int, edges: Sequence[Relayed], tree: Mapping[int, Sequence[KeyEdge]]
    ) -> list[_Inside]:
        """Choose the reductions of an occurrence by those beside it."""
        found: list[_Inside] = []
        read: set[int] = set()
        for link in tree[number]:
            (source,) = link.sources
            other = source.occurrence
            relayed: tuple[Relayed, ...] = ()
            deeper: list[_Inside] = []
            if other not in read:
                # Joined on several columns, it is reduced once; then its own conditions do.
                relayed = self.relayed(other, link, edges)
                deeper = self.beside(other, (*edges, *relayed), tree)
            rows = self.left(other)
            reduced = bool(relayed or deeper)
            if self._offers.worth_beside(number, other, rows, reduced=reduced):
                keys = self._offers.estimates.edge_keys(link, {other: rows}, self._values)
                local = Local(link, relayed, tuple(each.local for each in deeper))
                found.append(_Inside(local, keys))
                self._keep(link, keys)
                self._bound(link)
            read.add(other)
        return found

    def _keep(self, edge: KeyEdge, keys: float) -> None:
        share = self._offers.estimates.share(keys, edge)
        shares = self._shares.setdefault(edge.target.occurrence, {})
        targets = frozenset(column.target for column in edge.columns)
        shares[targets] = min(share, shares.get(targets, 1.0))
        for target in targets:
            self._values[target] = min(keys, self._values.get(target, keys))

    def _bound(self, edge: KeyEdge) -> None:
        """Note that the rows left have keys that the source's rows have, in all columns or one."""
        if edge.target.occurrence != self._number or len(edge.sources) > 1:
            return
        for part in dict.fromkeys((edge, *edge.columns)):
            targets, sources = _rows(part)
            around = {sources} | self._around(sources)
            self.within[targets] = self.within.get(targets, frozenset()) | around

    def _around(self, row: Row) -> frozenset[Row]:
        """The rows whose values include those of a row, in the order of its columns."""
        order = sorted(range(len(row)), key=lambda place: row[place].column)
        known = self.within.get(tuple(row[place] for place in order), frozenset())
        back = sorted(range(len(row)), key=lambda place: order[place])
        return frozenset(tuple(other[place] for place in back) for other in known)

    def _implied(self, edge: KeyEdge, taken: Iterable[Relayed]) -> bool:
        """Whether keys that are looked up in the columns anyway are among those of the edge."""
        if len(edge.sources) > 1:
            return False
        targets, sources = _rows(edge)
        for each in taken:
            other = {column.target: column.sources[0] for column in each.edge.columns}
            looked_up = len(each.edge.sources) == 1 and other.keys() >= set(targets)
            if looked_up and sources in self._around(tuple(other[target] for target in targets)):
                return True
        return False


def _reaches(edge: KeyEdge, link: KeyEdge, outside: Iterable[Relayed]) -> bool:
    """Tell whether the same keys reach the other end of a link as well, on the same columns."""
    beyond = {column.sources[0]: column.target for column in link.columns}
    reached = {(column.sources, beyond.get(column.target)) for column in edge.columns}
    return any(
        reached <= {(column.sources, column.target) for column in each.edge.columns}
        for each in outside
    )


def _rows(edge: KeyEdge) -> tuple[Row, Row]:
    """The target's and the source's columns of an edge, in the order of the target's names."""
    columns = sorted(edge.columns, key=lambda column: column.target.column)
    return tuple(c.target for c in columns), tuple(c.sources[0] for c in columns)


def _pairs(edge: KeyEdge) -> Iterable[Pair]:
    return (frozenset((source.occurrence, edge.target.occurrence)) for source in edge.sources)
