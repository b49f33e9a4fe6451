"""An answer in chunks: the hub gets the first rows while the owner sends further ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from oar_proxy.answer import OneOwnersAnswer
from oar_proxy.errors import QueryCanceled
from oar_proxy.federation import Copied, Execution
from oar_proxy.rows import Gathered, Rows
from oar_proxy.stream import Closed, Stream

Give = Callable[[Rows], Awaitable[None]]


async def in_chunks(
    ask: Callable[[Give], Coroutine[Any, Any, Gathered]],
    answer: OneOwnersAnswer,
    stack: AsyncExitStack,
    patience: float,
) -> Execution:
    """Answer what one owner answers: in chunks, if it has more rows than one.

    ``ask`` asks the owner, gives away each chunk and returns the last. It is stopped when ``stack``
    is closed, after ``patience`` seconds in which it may come to the end of a chunk.
    """

    async def work(give: Give) -> Gathered:
        async def give_on(rows: Rows) -> None:
            try:
                await give(rows)
            except Closed:
                raise QueryCanceled("canceling statement: no further row is wanted") from None

        return await ask(give_on)

    stream = Stream(work)
    stack.push_async_callback(stream.close, patience)
    rest = _Rest(stream, answer)
    first = await stream.next()
    if first is None:
        return await rest.last()
    return replace(answer.of(first), more=rest)


@dataclass(slots=True)
class _Rest:
    """The chunks behind the first. See :class:`oar_proxy.federation.Chunks`."""

    stream: Stream[Rows, Gathered]
    answer: OneOwnersAnswer
    over: bool = False

    @property
    def copied(self) -> Copied | None:
        return self.answer.copied

    async def next(self) -> Execution | None:
        if self.over:
            return None
        rows = await self.stream.next()
        return await self.last() if rows is None else self.answer.of(rows)

    async def last(self) -> Execution:
        """Make the chunk of what is left, once nothing more comes."""
        self.over = True
        return self.answer.of(self.stream.result.of(self.answer.number))
