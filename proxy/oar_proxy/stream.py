"""What one task makes and another takes, piece by piece, with one piece waiting in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Closed(Exception):
    """No further piece is wanted."""


class Stream(Generic[Piece, Result]):
    """Work in a task of its own that gives away pieces and ends with a result.

    ``make`` is given a function that hands over a piece; it returns once the piece before that
    has been taken, so that whoever makes pieces is at most one ahead. It raises :class:`Closed`
    when none is wanted any more.
    """

    def __init__(
        self, make: Callable[[Callable[[Piece], Awaitable[None]]], Coroutine[Any, Any, Result]]
    ) -> None:
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)
        self._closed = False
        self._task = asyncio.create_task(self._run(make(self._give)))

    async def next(self) -> Piece | None:
        """Return the next piece, None after the last. Raises what ended the work early."""
        piece = None if self._task.done() and self._pieces.empty() else await self._pieces.get()
        if piece is None:
            await self._task
        else:
            self._room.release()
        return piece

    @property
    def result(self) -> Result:
        """What the work ended with, once there is no further piece."""
        return self._task.result()

    async def close(self, patience: float = 0.0) -> None:
        """Stop the work, unless it is over, and wait until it has stopped.

        For ``patience`` seconds it may come to where it would give away another piece, so that it
        is stopped there and not in the middle of one.
        """
        self._closed = True
        self._room.release()
        if patience:
            await asyncio.wait((self._task,), timeout=patience)
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # nobody else hears of it, and asyncio would complain

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await work
        finally:
            self._pieces.put_nowait(None)

    async def _give(self, piece: Piece) -> None:
        await self._room.acquire()
        if self._closed:
            raise Closed
        self._pieces.put_nowait(piece)
