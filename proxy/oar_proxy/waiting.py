"""A hub's session that waits for what is asked elsewhere, and hears what it is told meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, Self

from oar_proxy.federation import HubRejected
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.hublink import HubChannel

_LONG: Final = 0.1
"""Seconds after which the hub's session waits for what is asked elsewhere. A round trip to begin
that, and two to end it, are a hundredth of that then; nobody presses a button sooner."""

_SOON: Final = 0.005
"""Seconds between two looks at a session that is at a question, where it is to hear something."""


class Waiting:
    """Has the session wait for ``work``. An asynchronous context manager, around that work.

    Not before the work has taken long, unless the session is about to be told something, and not
    while the work has a question for the session itself. ``rejected``: the session was told to
    stop, and so the work was cancelled.
    """

    def __init__(self, channel: HubChannel, sentinels: Sentinels, work: asyncio.Task[Any]) -> None:
        self.rejected: HubRejected | None = None
        self._channel = channel
        self._conversation = channel.conversation
        self._sentinels = sentinels
        self._work = work
        self._over = asyncio.Event()
        self._pause = _LONG
        self._hears = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(_LONG, self._begin)
        self._sentinels.sessions.add(self.hear)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sentinels.sessions.discard(self.hear)
        self._timer.cancel()
        self._over.set()
        if self._task is not None:
            # Until the hub is free again: what it was told meanwhile is for this statement.
            await asyncio.wait((self._task,))

    async def hear(self) -> None:
        """Return once the session hears what it is told, or cannot be made to any more."""
        self._pause = _SOON
        task = self._begin()
        hears = asyncio.create_task(self._hears.wait())
        try:
            await asyncio.wait((hears, task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hears.cancel()

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = asyncio.create_task(self._wait())
        return self._task

    async def _wait(self) -> None:
        while not self._over.is_set():
            if self._is_free:
                key = await self._sentinels.lock()
                if key is None:
                    return
                if self._over.is_set() or not self._is_free:
                    await self._sentinels.unlock(key)
                    continue
                try:
                    await self._channel.wait_at(
                        key, self._over, self._sentinels.unlock, self._hears
                    )
                except HubRejected as rejected:
                    self.rejected = rejected
                    self._work.cancel()
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), self._pause)

    @property
    def _is_free(self) -> bool:
        return self._conversation.idle and not self._conversation.skipping
