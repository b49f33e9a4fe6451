"""Places for statements at owners: who waits for which, and who comes next.

Every owner has as many places as its adapter holds snapshots. A statement takes one at each of its
owners, all at once: two that each waited for what the other holds would wait for ever, and one that
held one owner's place while waiting for another's would keep everybody else from the first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from oar_adapters.interface import Adapter

PASSED_OVER: Final = 0.1
"""Seconds that others, whose places are free first, go before. From then on places are kept, or a
statement over many owners would never find all of them free."""

KEPT: Final = 4
"""One in so many of an owner's places is not for statements that all share one other owner: if that
one hangs, they all do, and this one goes on answering the others."""

_Pair = tuple[str, str]


@dataclass(eq=False, slots=True)
class _Waiting:
    owners: tuple[str, ...]
    since: float
    granted: asyncio.Future[None] = field(default_factory=asyncio.Future)

    @property
    def pairs(self) -> Iterable[_Pair]:
        return combinations(self.owners, 2)


class OwnerSlots:
    """The places at all owners."""

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        self._adapters = adapters
        self._held: Counter[str] = Counter()
        self._together: Counter[_Pair] = Counter()
        """Statements that hold a place at both owners."""
        self._queue: dict[_Waiting, None] = {}

    @asynccontextmanager
    async def hold(self, owners: Iterable[str]) -> AsyncIterator[None]:
        """Hold one place at each of some owners."""
        now = asyncio.get_running_loop().time()
        waiting = _Waiting(tuple(sorted(set(owners))), now)
        self._queue[waiting] = None
        self._grant()
        try:
            await waiting.granted
            yield
        finally:
            if waiting in self._queue:
                del self._queue[waiting]
            else:
                self._held.subtract(waiting.owners)
                self._together.subtract(waiting.pairs)
            self._grant()

    def _grant(self) -> None:
        """Let in who finds room, in the order they came, as far as nobody is passed over too long.

        For those who were, what is free is kept: for the first of them at each owner.
        """
        now = asyncio.get_running_loop().time()
        kept: set[str] = set()
        for waiting in tuple(self._queue):
            if waiting.granted.cancelled():
                continue  # it is about to leave
            if self._has_room(waiting, kept):
                del self._queue[waiting]
                self._held.update(waiting.owners)
                self._together.update(waiting.pairs)
                waiting.granted.set_result(None)
            elif now - waiting.since > PASSED_OVER and kept.isdisjoint(waiting.owners):
                kept.update(waiting.owners)

    def _has_room(self, waiting: _Waiting, kept: set[str]) -> bool:
        return all(
            self._held[owner] + (owner in kept) < self._size(owner) for owner in waiting.owners
        ) and all(self._together[pair] < self._most(pair) for pair in waiting.pairs)

    def _size(self, owner: str) -> int:
        return self._adapters[owner].capabilities.snapshots

    def _most(self, pair: _Pair) -> int:
        size = min(map(self._size, pair))
        return max(size - max(size // KEPT, 1), 1)
