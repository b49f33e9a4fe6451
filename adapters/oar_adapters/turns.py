"""Waiting for one of an owner's connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oar_adapters.interface import OwnerError, OwnerErrorKind


@asynccontextmanager
async def turn(free: asyncio.Semaphore, seconds: float) -> AsyncIterator[None]:
    """Hold one of the places of ``free``.

    Raises :class:`OwnerError` (timeout) where there is none within so many seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            await free.acquire()
    except TimeoutError:
        raise OwnerError(
            OwnerErrorKind.TIMEOUT, "opening a snapshot: all connections are taken"
        ) from None
    try:
        yield
    finally:
        free.release()
