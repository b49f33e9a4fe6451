"""What stands between two peers and can fall silent, or break what passes.

A thread of its own, so that neither peer's event loop has to run for the other's bytes to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CHUNK: Final = 256 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing sends RST."""


class Shim:
    """A TCP port before a server. ``port`` is where to connect."""

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shim")
        self._open = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._held = 0
        self.port = 0

    def silence(self) -> None:
        """Pass nothing on from now on, and close nothing: a peer that hangs."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def resume(self) -> None:
        """Pass on again, also what has waited."""
        self._loop.call_soon_threadsafe(self._open.set)

    def reset(self) -> None:
        """Break off all connections with RST; new ones pass."""
        asyncio.run_coroutine_threadsafe(self._reset(), self._loop).result(10)

    @property
    def held(self) -> int:
        """How many connections have something that waits to be passed on, or wait themselves."""
        return self._held

    async def _reset(self) -> None:
        for writer in list(self._writers):
            connection = writer.get_extra_info("socket")
            if connection.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self._open.set()

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset()
        if self._passing:
            await asyncio.wait(self._passing, timeout=5)
        await asyncio.sleep(0)

    async def _wait(self) -> None:
        self._held += 1
        try:
            await self._open.wait()
        finally:
            self._held -= 1

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._wait()
            await self._connect(reader, writer)
        finally:
            self._writers.remove(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._target, Path):
                further = await asyncio.open_unix_connection(self._target, limit=_CHUNK)
            else:
                further = await asyncio.open_connection(*self._target, limit=_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        pair = (reader, further[1]), (further[0], writer)
        self._writers.add(further[1])
        tasks = {asyncio.create_task(self._pass(*each)) for each in pair}
        self._passing |= tasks
        try:
            await asyncio.wait(tasks)
        finally:
            self._passing -= tasks
            self._writers.remove(further[1])

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(_CHUNK):
                await self._wait()
                writer.write(part)
                await writer.drain()
        except OSError:
            pass  # the other direction ends, too
        finally:
            writer.close()

    @contextmanager
    def running(self) -> Iterator[Shim]:
        """Listen for the length of the block."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
