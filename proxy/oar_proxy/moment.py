"""The moment that statements read: a snapshot at each owner, for one of them or a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final

import structlog
from oar_adapters.interface import Snapshot

from oar_proxy.errors import ObjectInUse, SnapshotTooOld
from oar_proxy.slots import OwnerSlots

_log: Final[Any] = structlog.get_logger()


class Moment:
    """One snapshot at each of some owners, and a place there, until what it is entered on closes.

    ``seconds`` are how long it may last at most, from now on.
    """

    def __init__(self, stack: AsyncExitStack, seconds: float) -> None:
        self._stack = stack
        self._until = _now() + seconds
        self._locks: dict[str, asyncio.Lock] = {}
        self._open: dict[str, tuple[Snapshot, float]] = {}
        self._users: dict[str, object] = {}
        self._places: set[str] = set()
        self._resting: set[str] = set()
        self._lost: dict[str, str] = {}
        self._failed: dict[object, str] = {}
        self._over = False

    @property
    def seconds(self) -> float:
        """How long it lasts yet."""
        return max(self._until - _now(), 0.0)

    async def reserve(self, slots: OwnerSlots, owners: Collection[str]) -> None:
        """Hold a place at each owner where it has none yet. Raises ``SnapshotTooOld``."""
        if new := set(owners) - self._places:
            await self._stack.enter_async_context(slots.hold(new))
            self._places |= new
            self._require_open(new)

    def require(self, owners: Iterable[str], user: object) -> None:
        """Raise where an owner's snapshot is gone, or gives rows to another than ``user``."""
        self._require_open(owners)
        for owner in owners:
            if self._users.get(owner, user) is not user:
                raise ObjectInUse(
                    f"owner {owner} is still sending rows of another statement of this transaction",
                    hint="fetch them to the end, or close them; READ COMMITTED needs neither",
                )

    def _require_open(self, owners: Iterable[str]) -> None:
        for owner in owners:
            ended = owner in self._open and _now() >= self._open[owner][1]
            if self._over or owner in self._lost or ended:
                raise SnapshotTooOld(
                    f"the snapshot of owner {owner} that this transaction reads is gone",
                    detail=self._lost.get(owner, "it ended with the time that it may take"),
                    hint="ROLLBACK and begin again; READ COMMITTED keeps no snapshots",
                )

    @asynccontextmanager
    async def use(
        self,
        owner: str,
        user: object,
        open_: Callable[[], AbstractAsyncContextManager[Snapshot]],
        seconds: float,
    ) -> AsyncIterator[Snapshot]:
        """Take a turn at an owner's snapshot, which is opened for so many ``seconds`` if need be.

        What fails in a turn takes the snapshot with it: its owner may have ended the transaction.
        """
        async with self._locks.setdefault(owner, asyncio.Lock()):
            if owner not in self._open:
                self._require_open([owner])
                until = _now() + seconds
                snapshot = await self._stack.enter_async_context(open_())
                self._open[owner] = snapshot, until
            self._users[owner] = user
            try:
                yield self._open[owner][0]
            except BaseException as fault:
                if owner not in self._resting:
                    self._lost[owner] = self._why(owner, user, fault)
                raise
            finally:
                self._resting.discard(owner)
                del self._users[owner]

    def _why(self, owner: str, user: object, fault: BaseException) -> str:
        if not isinstance(fault, asyncio.CancelledError):
            self._failed[user] = owner
            return f"a statement failed at owner {owner}"
        # What a statement still reads elsewhere is broken off when it fails at one owner.
        if user in self._failed:
            return f"it was being read when the statement failed at owner {self._failed[user]}"
        return "a statement that read it was cancelled"

    @contextmanager
    def rest(self, owner: str) -> Iterator[None]:
        """Ask nothing of the owner for a while of a turn: what fails then fails elsewhere."""
        self._resting.add(owner)
        yield
        self._resting.discard(owner)

    async def close(self) -> None:
        """Let go of all owners, as soon as nobody takes rows of any. It may be called again."""
        self._over = True
        async with AsyncExitStack() as turns:
            for lock in tuple(self._locks.values()):
                await turns.enter_async_context(lock)
            await self._stack.aclose()


class TransactionMoment:
    """The moment that a session's transaction reads, where PostgreSQL promises it one for all.

    That is at REPEATABLE READ and SERIALIZABLE: every statement sees the rows that the first one
    saw. At READ COMMITTED each has a moment of its own, and nothing is kept.
    """

    def __init__(self) -> None:
        self._transaction: str | None = None
        self._moment: Moment | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, transaction: str, seconds: float) -> Moment:
        """Return the moment of a transaction, which may last ``seconds`` when it begins now."""
        if self._moment is None or transaction != self._transaction:
            self.end()  # of another one, which ended in the same query string
            self._transaction = transaction
            self._moment = Moment(AsyncExitStack(), seconds)
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(seconds, self._close, self._moment)
        return self._moment

    def end(self) -> None:
        """Let go of the owners: the session's transaction has ended."""
        if self._moment is not None and self._expiry is not None:
            self._expiry.cancel()
            self._close(self._moment)
            self._moment = self._expiry = None

    def _close(self, moment: Moment) -> None:
        ending = asyncio.create_task(moment.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ended)

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        error = None if ending.cancelled() else ending.exception()
        if error is not None:
            # Every statement has its rows; and its text may quote them.
            _log.warning("snapshot not closed", error=type(error).__name__)

    async def finished(self) -> None:
        """Let go of the owners, and wait until none is held."""
        self.end()
        if self._ending:
            await asyncio.wait(self._ending)


def _now() -> float:
    return asyncio.get_running_loop().time()
