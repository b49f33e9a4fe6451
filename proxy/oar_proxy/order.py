"""The order in which owners are asked, chosen among alternatives that are all sound.

Of two orders the better one is, in this sequence (decision 6):

1. what policies allow first: the one that leaves fewer joins unreduced which keys may reduce;
2. then what leaves the owners: fewer keys told to other owners and fewer rows sent to the hub, a
   key counting as :data:`KEY` rows. Neither alone would do: without any key all rows leave, and
   the fewest rows may take the most keys;
3. then fewer keys, then fewer round trips.

Estimates decide what is worth it, never what is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from oar_proxy.full import full
from oar_proxy.hub.planreading import Origin
from oar_proxy.offer import Chosen, Offers, State

KEY: Final = 10.0
"""Rows that weigh as much as a key: the hub forgets rows with the statement, while an owner that
was told a key may keep it."""

SHOWN: Final = 4
"""Alternatives that are told of."""

_WIDTHS: Final = ((6, 20), (10, 4))
"""Sets of occurrences that are extended at each length: all of them for up to six occurrences
(no length has more than twenty), the best four for up to ten, and for more the best one."""

Rank = tuple[int, float, float, int]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One order: ``waves`` are the occurrences asked at the same time, and what it is expected of.

    ``unreduced`` counts joins that keys might reduce and do not. ``reason`` says why it was not
    taken; empty for the one that was.
    """

    waves: tuple[tuple[int, ...], ...]
    keys: float
    rows: float
    unreduced: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ordered:
    """What to ask for, in this order; the alternatives, with the one that was taken first.

    ``left_out`` are columns that keys might reduce, and why they do not.
    """

    chosen: tuple[Chosen, ...]
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[Origin, str], ...] = ()


def order(offers: Offers, scanned: Sequence[int], *, reduce_fully: bool) -> Ordered:
    """Choose the order of the occurrences ``scanned``.

    ``reduce_fully``: both passes of a full reduction, where the joins form a tree.
    """
    found = _forward(offers, scanned)
    if not reduce_fully:
        return found
    if not all(map(offers.settled, scanned)):
        note = "not reduced in full: asked twice, a subquery may give other rows"
        return replace(found, notes=(note,))
    chosen = full(offers, scanned)
    if chosen is None:
        return replace(found, notes=("not reduced in full: its joins form a ring",))
    return Ordered(tuple(chosen))


def _forward(offers: Offers, scanned: Sequence[int]) -> Ordered:
    """Ask each occurrence once, reduced by those before it."""
    best = _start(offers, scanned)
    complete: list[State] = []
    for group in _connected(offers, scanned):
        orders = _orders(offers, best, group)
        best = min(orders, key=lambda state: _rank(offers, state))
        complete += orders
    # What another order of one group leaves open follows as in the best one.
    numbers = [chosen.occurrence for chosen in best.chosen]
    alternatives = [_extended(offers, state, numbers) for state in complete]
    plain = _extended(offers, _start(offers, scanned), numbers, relay=False)
    told = _told(offers, [best, *alternatives, plain])
    return Ordered(best.chosen, tuple(told), (), tuple(offers.left_out(best)))


def _start(offers: Offers, scanned: Iterable[int]) -> State:
    return State((), {number: offers.estimates.rows[number] for number in scanned})


def _extended(offers: Offers, state: State, numbers: Sequence[int], *, relay: bool = True) -> State:
    """Ask for the rest of some occurrences, in their order."""
    for number in numbers:
        if number not in state.done:
            state = offers.asked(state, number, relay=relay)
    return state


def _connected(offers: Offers, scanned: Sequence[int]) -> list[list[int]]:
    """The occurrences in groups that no edge connects: their orders do not depend on each other."""
    groups = [{number} for number in scanned]
    for edge in (*offers.most, *offers.local):
        ends = {edge.target.occurrence, *(source.occurrence for source in edge.sources)}
        joined = [group for group in groups if group & ends]
        groups = [group for group in groups if not group & ends]
        groups.append(set().union(*joined))
    return sorted(sorted(group) for group in groups if group)


def _orders(offers: Offers, start: State, numbers: Sequence[int]) -> list[State]:
    """Ask for some occurrences next in every order, but keep the best of each set on the way."""
    width = next((width for most, width in _WIDTHS if len(numbers) <= most), 1)
    states = [start]
    for length in range(len(numbers)):
        longer = [
            offers.asked(state, number)
            for state in states
            for number in numbers
            if number not in state.done
        ]
        longer.sort(key=lambda state: _rank(offers, state))
        if length + 1 == len(numbers):
            return longer
        first = {state.done: state for state in reversed(longer)}
        states = sorted(first.values(), key=lambda state: _rank(offers, state))[:width]
    return states


def _rank(offers: Offers, state: State) -> Rank:
    """Lower is better: see the top of this module."""
    unreduced = sum(pair <= state.done and pair not in state.reduced for pair in offers.pairs)
    keys, rows = state.keys, sum(chosen.rows for chosen in state.chosen)
    return unreduced, KEY * keys + rows, keys, max(state.depth.values(), default=0)


def _told(offers: Offers, complete: Sequence[State]) -> Iterable[Alternative]:
    """Describe the best orders, without those that send the same keys."""
    taken = complete[0]
    different = {frozenset(state.told): state for state in reversed(complete)}
    ranked = sorted(
        different.values(), key=lambda state: (state is not taken, _rank(offers, state))
    )
    for state in ranked[:SHOWN]:
        reason = "" if state is taken else _reason(_rank(offers, state), _rank(offers, taken))
        waves: dict[int, list[int]] = {}
        for chosen in state.chosen:
            waves.setdefault(state.depth[chosen.occurrence], []).append(chosen.occurrence)
        yield Alternative(
            waves=tuple(tuple(wave) for _, wave in sorted(waves.items())),
            keys=state.keys,
            rows=sum(chosen.rows for chosen in state.chosen),
            unreduced=_rank(offers, state)[0],
            reason=reason,
        )


def _reason(rejected: Rank, taken: Rank) -> str:
    """Say what decided between two orders, as far as the numbers that are told show it."""
    if rejected[0] > taken[0]:
        more = rejected[0] - taken[0]
        return f"leaves {more} join{'s' if more > 1 else ''} unreduced"
    (_, weight, keys, trips), (_, least, fewest, shortest) = rejected, taken
    more_rows = round(weight - KEY * keys) > round(least - KEY * fewest)
    reasons = {
        "keys": round(keys) > round(fewest),
        "rows": more_rows,
        "round trips": trips > shortest,
    }
    found = [what for what, holds in reasons.items() if holds]
    return f"more {' and '.join(found)}" if found else "no better"
