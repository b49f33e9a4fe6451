"""What a session does for its client: one statement at a time, cancelled, logged and reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Final, TypeVar

import structlog

from oar_proxy.errors import InternalError, OarError, QueryCanceled
from oar_proxy.federation import HubRejected
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.hublink import HubChannel
from oar_proxy.log import raised_at
from oar_proxy.replies import ABORTED_TRANSACTION, Chunk, Failure
from oar_proxy.waiting import Waiting
from oar_proxy.wire import messages

T = TypeVar("T")

_FAILING: Final = b"SELECT $0"
"""Fails in parse analysis on every hub ("there is no parameter $0"): after the check for an
aborted transaction, whose own error has to win, and without needing any object."""

_log = structlog.get_logger("oar.statement")


class LogLine:
    """One canonical line a federated statement: how long it took and how it ended, no text."""

    def __init__(self, protocol: str, pid: int) -> None:
        self._protocol = protocol
        self._pid = pid
        self._begun = time.monotonic()
        self._written = False

    def write(self, sqlstate: str) -> None:
        if self._written:
            return
        self._written = True
        _log.info(
            "statement",
            protocol=self._protocol,
            pid=self._pid,
            seconds=round(time.monotonic() - self._begun, 6),
            sqlstate=sqlstate,
        )


class Activity:
    """What runs for a session's client. ``pid`` is what the client knows the session by.

    With ``sentinels`` the hub's session waits for what takes long, and hears what it is told by
    ``pg_cancel_backend`` meanwhile.
    """

    def __init__(self, channel: HubChannel, sentinels: Sentinels | None) -> None:
        self._channel = channel
        self._sentinels = sentinels
        self._conversation = channel.conversation
        self._asking = False
        self._inner: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.pid = 0

    def cancel(self) -> bool:
        """Cancel what the federation is doing for the client. False: it is doing nothing."""
        head = self._conversation.head
        others = head is not None and head.passes and not isinstance(head, Chunk)
        if not self._asking or others:
            return False
        self._cancelled = True
        if self._inner is not None:
            self._inner.cancel()
        return True

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the federation; a CancelRequest meanwhile becomes :class:`QueryCanceled`."""
        self._inner = asyncio.create_task(work)
        if self._cancelled:
            self._inner.cancel()
        waiting = None
        if self._sentinels is not None:
            waiting = Waiting(self._channel, self._sentinels, self._inner)
        try:
            async with waiting or nullcontext():
                answer: T = await self._inner
        except asyncio.CancelledError:
            if waiting is not None and waiting.rejected is not None:
                raise waiting.rejected from None
            if not self._cancelled:
                raise
            raise _cancelled() from None
        finally:
            self._inner = None
        if self._conversation.withheld is not None:
            raise HubRejected(b"")
        return answer

    async def others_hear(self) -> None:
        """Return once the other sessions' statements hear what is about to be told them."""
        if self._sentinels is not None:
            await self._sentinels.all_hear()

    def go(self) -> None:
        """From here on the hub works for the client: a CancelRequest is for the hub."""
        if self._cancelled:
            raise _cancelled()
        self._asking = False

    def statement(self, protocol: str, shift: int = 0) -> _Reported:
        """Work for one statement: whatever it raises is what the client is told.

        Positions in errors are moved by ``shift``. The work gets the statement's log line.
        """
        return _Reported(self, protocol, shift)

    def begin(self, protocol: str) -> LogLine:
        """Start work for the client that a CancelRequest may end."""
        self._asking, self._cancelled = True, False
        return LogLine(protocol, self.pid)

    def end(self) -> None:
        """The work is over, however it ended."""
        self._asking = self._cancelled = False

    def report(self, error: OarError | HubRejected, shift: int) -> str:
        """Let the client know an error and the hub's transaction fail; return its SQLSTATE."""
        withheld, self._conversation.withheld = self._conversation.withheld, None
        if isinstance(error, HubRejected):
            response = error.response or withheld
            if response is None:
                return ABORTED_TRANSACTION
            self._channel.tell(response)
            return messages.sqlstate(response)
        encoding = self._conversation.client_encoding
        response = messages.error_response(error, shift=shift, encoding=encoding)
        if withheld is not None:
            self._channel.tell(response)
        else:
            self._channel.request(
                Failure(response), messages.encode_parse(self._channel.statement_name, _FAILING)
            )
            self._channel.flush()
        return error.sqlstate


class _Reported:
    """Work of one statement: whatever it raises is what the client is told."""

    def __init__(self, activity: Activity, protocol: str, shift: int) -> None:
        self._activity = activity
        self._protocol = protocol
        self._shift = shift

    async def __aenter__(self) -> LogLine:
        self._line = self._activity.begin(self._protocol)
        return self._line

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any
    ) -> bool:
        self._activity.end()
        if error is None or not isinstance(error, Exception):
            return False
        told: OarError | HubRejected
        if isinstance(error, OarError | HubRejected):
            told = error
        else:
            told = InternalError(
                "internal error: the statement was not executed",
                hint="the proxy's log says where it happened",
            )
        # The client first: it waits, and whatever the log does must not keep it waiting.
        sqlstate = self._activity.report(told, self._shift)
        if told is not error:
            _log.error("internal error", error=type(error).__name__, where=raised_at(error))
        self._line.write(sqlstate)
        return True


def _cancelled() -> QueryCanceled:
    return QueryCanceled("canceling statement due to user request")
