"""The owner cover of a statement: the smallest set of owners that together hold its tables.

Its size κ decides the route before any row is read (``route``). A table whose rows are split
between owners is held by each of them: one is enough to cover it, as the definition of κ in the
paper has it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Final, Generic, TypeVar

TableT = TypeVar("TableT", bound=Hashable)

MAX_COMBINATIONS: Final = 100_000
"""Owner sets tried before the greedy cover is taken: about 0.1 s. Only tables with several holders
are searched over, so 17 owners that split every table of a statement still get the exact answer.
"""


@dataclass(frozen=True, slots=True)
class Cover(Generic[TableT]):
    """Which owners a statement needs at least.

    ``kappa`` is their number, None where a table has no holder. ``owners`` are in the order the
    holders came in, ``tables`` in the order of the statement. ``exact`` is false where the search
    was cut short: ``kappa`` is then an upper bound, and at least 2.
    """

    kappa: int | None
    owners: tuple[str, ...]
    tables: tuple[TableT, ...]
    exact: bool = True


def cover(tables: Iterable[TableT], holders: Mapping[TableT, Sequence[str]]) -> Cover[TableT]:
    """Find the smallest set of owners that together hold ``tables``.

    Of several smallest sets, the one whose owners come first in ``holders`` is returned. No tables
    need no owner (κ = 0); a table without a holder leaves κ undefined.
    """
    wanted = tuple(dict.fromkeys(tables))
    if any(not holders.get(table) for table in wanted):
        return Cover(None, (), wanted)
    order = tuple(dict.fromkeys(owner for table in wanted for owner in holders[table]))
    forced = {holders[table][0] for table in wanted if len(set(holders[table])) == 1}
    rest = [frozenset(holders[table]) for table in wanted if forced.isdisjoint(holders[table])]
    candidates = tuple(owner for owner in order if any(owner in held for held in rest))
    chosen, exact = _smallest_hitting_set(candidates, rest)
    owners = tuple(owner for owner in order if owner in forced or owner in chosen)
    return Cover(len(owners), owners, wanted, exact)


def _smallest_hitting_set(
    candidates: Sequence[str], sets: Collection[frozenset[str]]
) -> tuple[frozenset[str], bool]:
    """Return the fewest candidates that meet every set, and whether they are surely the fewest.

    All sets of one owner are always tried, so a cut search cannot turn κ = 1 into κ ≥ 2: the
    route does not depend on :data:`MAX_COMBINATIONS`.
    """
    budget = MAX_COMBINATIONS
    for size in range(len(candidates) + 1):
        for combination in islice(combinations(candidates, size), budget):
            chosen = frozenset(combination)
            if all(not chosen.isdisjoint(held) for held in sets):
                return chosen, True
        budget -= comb(len(candidates), size)
        if budget <= 0:
            break
    return _greedy(candidates, sets), False


def _greedy(candidates: Sequence[str], sets: Collection[frozenset[str]]) -> frozenset[str]:
    """Take the owner that meets most of what is left, until nothing is left."""
    left = list(sets)
    chosen: set[str] = set()
    while left:
        best = max(candidates, key=lambda owner: sum(owner in held for held in left))
        chosen.add(best)
        left = [held for held in left if best not in held]
    return frozenset(chosen)
