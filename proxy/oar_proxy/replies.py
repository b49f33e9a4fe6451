"""What the hub's replies mean for a statement of ours, and what of them reaches the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.federation import Chunks, Copied, Parameter
from oar_proxy.hublink import SUCCEEDED
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Expected, HubConfused, Kind

_COMMAND_COMPLETE: Final = ord("C")
_PORTAL_SUSPENDED: Final = ord("s")

ABORTED_TRANSACTION: Final = "25P02"
"""Of what is discarded as well: a settled request yields it then."""


def awaited() -> asyncio.Future[str]:
    """Return what a request is settled with that is about to be sent."""
    return asyncio.get_running_loop().create_future()


class Settling(Expected):
    """A request whose outcome is awaited, as the SQLSTATE it ended with."""

    __slots__ = ("_logs", "_settled", "_shift")

    def __init__(
        self,
        kind: Kind,
        *,
        shift: int | None = None,
        settled: asyncio.Future[str] | None = None,
        logs: bool = False,
    ) -> None:
        """Take ``shift``, which moves an error's position from our text to the client's.

        None: there is no correspondence, the position is dropped. ``logs``: the client gets what
        the hub logs of its statement, in which there is nothing of ours.
        """
        super().__init__(kind)
        self._shift = shift
        self._settled = settled
        self._logs = logs

    def done(self, message: bytes) -> None:  # noqa: ARG002
        self._settle(SUCCEEDED)

    def notice(self, notice: bytes) -> bytes | None:
        # What the hub logs of a statement can hold its parameters: rows that no answer may show.
        if messages.is_log(notice) and not self._logs:
            return None
        return super().notice(messages.without_parameters(notice))

    def failed(self, response: bytes) -> bytes | None:
        self._settle(messages.sqlstate(response))
        return messages.without_parameters(messages.with_position(response, self._shift))

    def skipped(self) -> bytes | None:
        self._settle(ABORTED_TRANSACTION)
        return None

    def _settle(self, outcome: str) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(outcome)


class Step(Settling):
    """A request of ours on the client's behalf: errors reach the client, completion does not.

    ``shows`` are the messages the client does get. ``rows`` and ``parameters`` are the
    RowDescription and ParameterDescription of the answer. ``note`` is called when it succeeds.
    """

    __slots__ = ("_note", "_shows", "parameters", "rows")
    passes = False

    def __init__(
        self,
        kind: Kind,
        *,
        shows: bytes = b"",
        shift: int | None = None,
        settled: asyncio.Future[str] | None = None,
        logs: bool = False,
        note: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(kind, shift=shift, settled=settled, logs=logs)
        self._note = note
        self._shows = shows
        self.rows: bytes | None = None
        self.parameters: bytes | None = None

    def message(self, code: int, message: bytes) -> bytes | None:
        match chr(code):
            case "T":
                self.rows = message
            case "t":
                self.parameters = message
        return message if code in self._shows else None

    def done(self, message: bytes) -> None:
        if self._note is not None:
            self._note()
        super().done(message)


class Noted(Expected):
    """A request of the client's whose success has to be remembered."""

    __slots__ = ("_note", "_shift")

    def __init__(self, kind: Kind, note: Callable[[], None], *, shift: int | None = 0) -> None:
        """Take ``shift``: see `Settling`."""
        super().__init__(kind)
        self._note = note
        self._shift = shift

    def done(self, message: bytes) -> None:  # noqa: ARG002
        self._note()

    def failed(self, response: bytes) -> bytes | None:
        return messages.with_position(response, self._shift)


class Failure(Expected):
    """The failing statement that puts the hub where the client will believe it to be."""

    __slots__ = ("_response",)
    passes = False

    def __init__(self, response: bytes) -> None:
        super().__init__(Kind.PARSE)
        self._response = response

    def done(self, message: bytes) -> None:  # noqa: ARG002
        raise HubConfused("the hub accepted a statement that cannot be valid")

    def failed(self, response: bytes) -> bytes | None:
        if messages.sqlstate(response) == ABORTED_TRANSACTION:
            return response
        return self._response

    def skipped(self) -> bytes | None:
        return self._response


class Answer(Settling):
    """The execution the client waits for. ``ended`` is told how it ended, by SQLSTATE."""

    __slots__ = ("_ended",)

    def __init__(
        self,
        ended: Callable[[str], None] | None,
        *,
        shift: int | None = None,
        settled: asyncio.Future[str] | None = None,
        logs: bool = False,
    ) -> None:
        super().__init__(Kind.EXECUTE, shift=shift, settled=settled, logs=logs)
        self._ended = ended

    def _settle(self, outcome: str) -> None:
        super()._settle(outcome)
        if self._ended is not None:
            self._ended(outcome)


class Chunk(Settling):
    """The execution of one chunk of an answer: the client gets its rows, not that it is over.

    ``rows`` are those of a chunk that is, and ``command`` is what the hub calls it; ``suspended``
    one that has given as many rows as were asked for.
    """

    __slots__ = ("command", "rows", "suspended")

    def __init__(self, settled: asyncio.Future[str]) -> None:
        super().__init__(Kind.EXECUTE, settled=settled)
        self.command = b""
        self.rows = 0
        self.suspended = False

    def message(self, code: int, message: bytes) -> bytes | None:
        if code == _PORTAL_SUSPENDED:
            self.suspended = True
        if code != _COMMAND_COMPLETE:
            return message
        self.command, _, rows = messages.decode_command_complete(message).rpartition(b" ")
        if not rows.isdigit():
            raise HubConfused("the hub completed a statement with rows as one without")
        self.rows = int(rows)
        return None


class CopiedChunk(Chunk):
    """A chunk that is a COPY of its own, and for the client a stretch of the one it asked for.

    ``first``: nothing was sent before it; ``begins``: no row was.
    """

    __slots__ = ("_begins", "_binary", "_first", "_header_due")

    def __init__(
        self, settled: asyncio.Future[str], copied: Copied, *, first: bool, begins: bool
    ) -> None:
        super().__init__(settled)
        self._binary = copied.binary
        self._first = first
        self._begins = begins
        self._header_due = copied.binary or (copied.header and not first)
        self.plain = b"" if self._header_due else b"d"

    def message(self, code: int, message: bytes) -> bytes | None:
        match chr(code):
            case "H":
                return message if self._first else None
            case "c":
                return None
            case "d":
                return self._binary_row(message) if self._binary else self._line(message)
        return super().message(code, message)

    def _line(self, message: bytes) -> bytes | None:
        """Leave out the line of names, behind which rows need no look."""
        self.plain = b"d"
        return None if self._header_due else message

    def _binary_row(self, message: bytes) -> bytes | None:
        """Leave out the trailer, and the header unless it stands before the very first row.

        The header comes with what follows it: a row, or the trailer where there is none.
        """
        row = message[messages.HEADER.size :]
        if self._header_due:
            self._header_due = False
            row = messages.after_copy_header(row)
            message = message if self._begins else messages.copy_data(row)
        return None if row == messages.COPY_TRAILER else message


@dataclass(slots=True)
class Flow:
    """An answer that comes in chunks, on its way: one of them is bound to ``portal`` at the hub.

    ``stack`` has what is to be closed with it while it waits for the client's next Execute.
    """

    chunks: Chunks
    portal: bytes
    sent: Sequence[Parameter] = field(repr=False)
    result_formats: Sequence[int]
    command: bytes = b""
    over: bool = False
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def execution(self, settled: asyncio.Future[str], rows: int) -> Chunk:
        """What gives the client the rows of the chunk that is bound, behind so many others."""
        copied = self.chunks.copied
        if copied is None:
            return Chunk(settled)
        return CopiedChunk(settled, copied, first=not self.command, begins=not rows)

    def completion(self, rows: int) -> bytes:
        """What tells the client that it is over."""
        copied = self.chunks.copied
        ending = b"" if copied is None else messages.COPY_DONE
        if copied is not None and copied.binary:
            header = b"" if rows else messages.COPY_HEADER
            ending = messages.copy_data(header + messages.COPY_TRAILER) + ending
        return ending + messages.command_complete(b"%s %d" % (self.command, rows))
