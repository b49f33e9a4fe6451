"""What owners' rows may take of the proxy's memory: one budget for all statements, a part for each.

Counted are the rows themselves, as they wait to be sent to the hub and until the hub's connection
has taken them. What is over the budget is refused before it is held, never swapped or killed.
"""

from __future__ import annotations

from oar_proxy.errors import LimitExceeded, OutOfMemory
from oar_proxy.settings import Limits


class Memory:
    """The budget of the proxy. ``used`` are the bytes that statements hold now."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.used = 0


class Account:
    """What one statement holds of it. Whoever opened it closes it, on every path."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    @property
    def most(self) -> int:
        """Bytes this statement may hold."""
        limits = self._memory.limits
        return min(limits.max_bytes, limits.max_total_bytes)

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes more could be held now."""
        limits, used = self._memory.limits, self._memory.used
        return self._held + size <= limits.max_bytes and used + size <= limits.max_total_bytes

    def hold(self, size: int) -> None:
        """Take so many bytes more.

        Raises :class:`~oar_proxy.errors.LimitExceeded` for what no statement may hold, and
        :class:`~oar_proxy.errors.OutOfMemory` for what the others leave no room for.
        """
        limits = self._memory.limits
        if self._held + size > limits.max_bytes:
            raise LimitExceeded(
                f"the statement needs more than {limits.max_bytes} bytes of owners' rows at once",
                detail="limit proxy/limits.max_bytes; nothing partial is returned",
                hint="select fewer rows or columns, or have the limit raised",
            )
        if self._memory.used + size > limits.max_total_bytes:
            raise OutOfMemory(
                "no memory left for owners' rows: all statements together would hold more than "
                f"{limits.max_total_bytes} bytes",
                detail="limit proxy/limits.max_total_bytes; nothing partial is returned",
                hint="try again when other statements have ended, or have the limit raised",
            )
        self._held += size
        self._memory.used += size

    def free(self, size: int) -> None:
        """Give back so many bytes of what is held; nothing once it is closed."""
        size = min(size, self._held)
        self._held -= size
        self._memory.used -= size

    def close(self) -> None:
        """Give back all that is held."""
        self.free(self._held)
