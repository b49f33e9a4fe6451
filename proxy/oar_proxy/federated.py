"""Statements that are ours, inside one session: what is parsed, bound and executed in their place.

The hub holds a *guard* under the client's own statement and portal names, so that Describe,
parameter errors, formats, Close and the end of transactions are the hub's business. Only the
first Execute of such a portal is ours: it asks the federation and replaces the portal by one that
evaluates the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from oar_proxy.activity import Activity, LogLine
from oar_proxy.errors import (
    FeatureNotSupported,
    NoActiveTransaction,
    ResultTypeChanged,
    UndefinedParameter,
)
from oar_proxy.federation import (
    Execution,
    Federation,
    HubRejected,
    Parameter,
    Piece,
    Prepared,
)
from oar_proxy.guards import Guards, Portal, Statement, columns
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.hublink import SUCCEEDED, TEXT_OID, HubChannel, SessionLink
from oar_proxy.replies import Answer, Flow, Step, awaited
from oar_proxy.safesettings import require_safe
from oar_proxy.standins import StandIns
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Expected, Kind
from oar_proxy.wire.messages import Parse
from oar_proxy.wire.requests import OwnExecute

_IS_BINARY: Final = (
    "SELECT FROM pg_catalog.pg_cursors c WHERE c.name OPERATOR(pg_catalog.=) $1 AND c.is_binary"
)

_TELLS: Final = b"pg_cancel_backend"
"""What tells a session something that it misses where the hub leaves it idle."""


class Federated:
    """The federated statements of one session, whose names are ``guards``.

    The coroutines run one at a time; while one runs, the session holds back what the client sends
    next.
    """

    def __init__(
        self,
        federation: Federation,
        channel: HubChannel,
        guards: Guards,
        *,
        sentinels: Sentinels | None,
    ) -> None:
        self._federation = federation
        self._channel = channel
        self._conversation = channel.conversation
        self._guards = guards
        self.activity = Activity(channel, sentinels)
        self._ours = StandIns(channel)

    # --- the extended protocol ----------------------------------------------------------------

    async def parse(self, raw: bytes, parse: Parse) -> None:
        """Parse a statement that may be ours."""
        text = await self._text("parse", parse.query)
        if text is None:
            return
        pieces = self._federation.split(text) or ()
        piece = pieces[0] if len(pieces) == 1 else None
        place = 0 if piece is None else piece.at
        if _TELLS in parse.query.lower():
            await self.activity.others_hear()
        async with self.activity.statement("parse", place):
            prepared = None
            in_pipeline = self._conversation.open_pipeline
            if not parse.name:
                self._close_unnamed()
            if piece is not None and piece.suspect:
                link = SessionLink(self._channel, piece.text, place)
                prepared = await self.activity.ask(self._federation.prepare(piece.text, link))
                await self._guards.prune(link)
            if not in_pipeline:
                self._ours.end_questions()
            if prepared is None:
                self._channel.speak_as_client()
                self._channel.request(self._guards.other_parse(parse.name), raw)
            else:
                await self._guard(parse, prepared, place)

    async def _guard(self, parse: Parse, prepared: Prepared, place: int) -> None:
        self._require_plain(parse.name)
        described = Step(Kind.DESCRIBE_STATEMENT)
        guard, shift = self._ours.guard_text(prepared, place)
        if parse.name:  # by which EXECUTE may find it
            guard += prepared.note.encode()
        await self._ours.speak(guard)
        self._channel.request(
            self._guards.parse(parse.name, Statement(prepared, guard, described), shift),
            messages.encode_parse(parse.name, guard, parse.oids),
        )
        self._channel.speak_as_client()
        self._channel.request(described, messages.encode_describe(b"S", parse.name))

    async def execute(self, own: OwnExecute) -> None:
        """Execute a portal that may be ours."""
        name = own.portal
        async with self.activity.statement("extended") as log_line, AsyncExitStack() as stack:
            self._require_plain(name)
            link = SessionLink(self._channel)
            portal = self._guards.portal(name, await link.portal_statement(name))
            if portal is None:
                self._channel.speak_as_client()
                self._channel.request(Expected(Kind.EXECUTE), own.raw)
                return
            await self._begin(link)
            try:
                await self._run(own, portal, link, stack, log_line)
            except BaseException:
                self._guards.forget_portal(name)
                raise

    async def _run(
        self,
        own: OwnExecute,
        portal: Portal,
        link: SessionLink,
        stack: AsyncExitStack,
        log_line: LogLine,
    ) -> None:
        """Begin with the answer of a portal, or go on with it."""
        name = own.portal
        flow = portal.flow
        if flow is None:
            parameters = await link.in_utf8(portal.parameters())
            prepared = portal.statement.prepared
            self._require_block(prepared)
            execution = await self.activity.ask(
                self._federation.execute(prepared, link, parameters, stack)
            )
            sent = parameters if execution.client_parameters else []
            if execution.more is None:
                self._guards.replace_portal(name)
                if await self._bound(name, execution, sent, portal, log_line):
                    self.activity.go()
                    self._channel.request(Answer(log_line.write), own.raw)
                    self._ours.release()
                return
            ours = self._guards.take_left() or self._ours.next_portal()
            flow = Flow(execution.more, ours, sent, portal.bind.result_formats)
            if not await self._bound(ours, execution, sent, portal, log_line):
                self._guards.forget_portal(name)
                return
            portal.flow = flow
        else:
            stack.push_async_exit(flow.stack)
        limit = own.rows if portal.statement.gives_rows else 0
        if not await self._pass_on(flow, limit, log_line):
            self._guards.forget_portal(name)
        elif not flow.over:
            flow.stack = stack.pop_all()

    async def _bound(
        self,
        name: bytes,
        execution: Execution,
        sent: Sequence[Parameter],
        portal: Portal,
        log_line: LogLine,
    ) -> bool:
        """Bind what evaluates the answer, or its first chunk, to a portal; False: it failed."""
        await self._ours.bind(name, execution, sent, portal.bind.result_formats)
        settled = awaited()
        described = Step(Kind.DESCRIBE_PORTAL, settled=settled)
        self._channel.request(described, messages.encode_describe(b"P", name))
        self._channel.flush()
        if (outcome := await settled) != SUCCEEDED:
            log_line.write(outcome)
            return False
        if columns(described) != portal.statement.columns:
            raise ResultTypeChanged()
        return True

    async def _pass_on(self, flow: Flow, limit: int, log_line: LogLine) -> bool:
        """Give the client the rows of the chunk that is bound, and then of further ones.

        Until there are ``limit`` rows, or the last has been given when that is 0; False: it failed.
        The next chunk is bound when the hub has been read to the end of the one before. It is not
        read while the client does not read, and then nothing more is taken from the owner.
        A CancelRequest is ours all the while: between two chunks the hub would not hear it.
        """
        rows = 0
        while not flow.over:
            settled = awaited()
            executed = flow.execution(settled, rows)
            left = limit - rows if limit else 0
            self._channel.request(executed, messages.encode_execute(flow.portal, left))
            self._channel.flush()
            outcome = await self.activity.ask(_outcome(settled))
            if outcome != SUCCEEDED or executed.suspended:
                log_line.write(outcome)
                return outcome == SUCCEEDED
            rows += executed.rows
            flow.command = flow.command or executed.command
            execution = await self.activity.ask(flow.chunks.next())
            if execution is None:
                flow.over = True
                self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", flow.portal))
                self._ours.release()
            else:
                await self._ours.bind(flow.portal, execution, flow.sent, flow.result_formats)
        self._channel.tell(flow.completion(rows))
        log_line.write(SUCCEEDED)
        return True

    # --- the simple protocol ------------------------------------------------------------------

    async def query(self, raw: bytes, query: bytes) -> None:
        """Run a query string that may hold a statement of ours.

        A string that does is run as one pipeline, which is what the hub makes of a query string
        too: one implicit transaction, ended by the first error or at the end.
        """
        known = self._is_known(query)
        if not known and self._conversation.open_pipeline and not await self._ours.in_step():
            return  # as below
        text = await self._text("simple", query)
        if text is None:
            self._channel.request(Expected(Kind.SYNC), messages.SYNC)
            return
        pieces = self._federation.split(text) or ()
        if _TELLS in query.lower():
            await self.activity.others_hear()
        if not any(piece.suspect for piece in pieces):
            self._ours.pass_through(raw)
            return
        if self._conversation.open_pipeline and not await self._ours.in_step():
            return  # an earlier message failed: the hub discards the query, and so do we
        in_block = self._conversation.implicit_block
        succeeded = await self._pieces(raw, pieces)
        if succeeded is None:
            return
        if succeeded and in_block and len(pieces) == 1:
            # Such a query does not end the implicit transaction that it stands in; an empty one
            # answers ReadyForQuery and leaves it open as well.
            self._channel.request(Step(Kind.QUERY, shows=b"Z"), messages.encode_query(b""))
        else:
            self._channel.request(Expected(Kind.SYNC), messages.SYNC)

    async def _pieces(self, raw: bytes, pieces: Sequence[Piece]) -> bool | None:
        """Run statement after statement until one fails; return whether all succeeded.

        None: the hub has got all it needs, the end of the transaction included.
        """
        in_block = self._conversation.implicit_block
        alone = len(pieces) == 1 and not in_block
        begins = len(pieces) > 1 and self._conversation.status == ord("I")
        for piece in pieces:
            succeeded: bool | None = False
            async with self.activity.statement("simple", piece.at) as log_line:
                link = SessionLink(self._channel, piece.text, piece.at)
                prepared = None
                if piece.suspect:
                    prepared = await self.activity.ask(self._federation.prepare(piece.text, link))
                if prepared is None and alone:
                    self._ours.pass_through(raw)
                    return None
                if piece.parameter is not None:
                    number, at = piece.parameter
                    raise UndefinedParameter(number, at + 1)
                if piece is pieces[0]:
                    self._close_unnamed()  # a Query destroys the unnamed statement and portal
                    self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", b""))
                if begins:
                    self._ours.begin_block()
                begins = piece.ends
                if prepared is None:
                    succeeded = await self._plain_piece(piece, link)
                else:
                    if len(pieces) == 1:
                        self._require_block(prepared)
                    last = piece is pieces[-1] and not in_block
                    succeeded = await self._own_piece(prepared, link, log_line, last=last)
            if not succeeded:
                return succeeded
        return True

    def _require_block(self, prepared: Prepared) -> None:
        """Raise ``NoActiveTransaction`` as the hub would without the proxy's questions."""
        begun = self._conversation.status != ord("I") or self._conversation.implicit_block
        if prepared.in_block and not begun:
            raise NoActiveTransaction("DECLARE CURSOR can only be used in transaction blocks")

    async def _plain_piece(self, piece: Piece, link: SessionLink) -> bool:
        """Run a statement of the hub's in a batch."""
        formats: tuple[int, ...] = ()
        if piece.fetches is not None:
            cursor = Parameter(TEXT_OID, 0, piece.fetches.encode())
            # Only a Query gives the rows of a binary cursor as they are without being asked to.
            formats = (1,) if await link.query(_IS_BINARY, (cursor,)) else ()
        self.activity.go()
        shift = link.shift
        self._ours.close()
        text = piece.text.encode()
        parse = messages.encode_parse(self._ours.name, text)
        bind = messages.encode_bind(self._ours.name, self._ours.name, (), formats)
        await self._ours.speak(text)
        self._channel.request(Step(Kind.PARSE, shows=b"N", shift=shift, logs=True), parse)
        self._channel.speak_as_client()
        self._channel.request(Step(Kind.BIND, shows=b"N", shift=shift, logs=True), *bind)
        settled = self._ours.execute(None, shift, logs=True)
        self._channel.flush()
        if await settled != SUCCEEDED:
            return False
        # Only now: a hub that reads the rows of a COPY takes no other message.
        self._ours.close()
        return True

    async def _own_piece(
        self, prepared: Prepared, link: SessionLink, log_line: LogLine, *, last: bool
    ) -> bool | None:
        """Run a statement of ours in a batch; for ``None`` see :meth:`_pieces`."""
        parsed, bound = awaited(), awaited()
        link.guard = bound
        guard, shift = self._ours.guard_text(prepared, link.shift)
        self._ours.close()
        await self._ours.speak(guard)
        self._channel.request(
            Step(Kind.PARSE, shift=shift, settled=parsed),
            messages.encode_parse(self._ours.name, guard),
        )
        self._channel.request(
            Step(Kind.BIND, settled=bound),
            *messages.encode_bind(self._ours.name, self._ours.name),
        )
        self._channel.flush()
        async with AsyncExitStack() as stack:
            # While the hub looks at the guard, a plan can be made.
            try:
                await self._begin(link)
                execution = await self.activity.ask(
                    self._federation.execute(prepared, link, (), stack)
                )
            except HubRejected:
                for step in (parsed, bound):  # the first that failed: the other one is discarded
                    if step.done() and step.result() != SUCCEEDED:
                        log_line.write(step.result())
                raise
            await self._ours.bind(self._ours.name, execution, (), ())
            if execution.more is not None:
                describe = messages.encode_describe(b"P", self._ours.name)
                self._channel.request(Step(Kind.DESCRIBE_PORTAL, shows=b"TN"), describe)
                return await self._pass_on(
                    Flow(execution.more, self._ours.name, (), ()), 0, log_line
                )
            self.activity.go()
            settled = self._ours.execute(log_line.write, None)
            self._ours.close()
            self._ours.release()
            if last:
                # Along with the rest: the client sees no answer before this is answered as well.
                self._channel.request(Expected(Kind.SYNC), messages.SYNC)
            self._channel.flush()
            # The hub has its work; what is to be closed is closed meanwhile.
            await stack.aclose()
            succeeded = await settled == SUCCEEDED
            return None if last else succeeded

    def _close_unnamed(self) -> None:
        """Destroy the unnamed statement: Parse and Query do even when they fail."""
        note = partial(self._guards.forget, b"")
        self._channel.request(Step(Kind.CLOSE, note=note), messages.encode_close(b"S", b""))

    # --- common ---------------------------------------------------------------------------------

    async def _begin(self, link: SessionLink) -> None:
        """Raise where the session is not one to run a statement in.

        One that reads the same moment as those before asks owners when these have left them.
        """
        state = await link.state()
        require_safe(state)
        if state.transaction is not None:
            await self.activity.ask(self._guards.stopped())

    def _require_plain(self, name: bytes) -> None:
        if not self._is_known(name):
            raise FeatureNotSupported(
                "statement over owners' tables not run: the name it is prepared under is not ASCII",
                hint="choose another name, or SET client_encoding TO 'UTF8'",
            )

    def _is_known(self, text: bytes) -> bool:
        """Tell whether a text of the client's is in UTF-8, if it is anything."""
        return text.isascii() or self._conversation.speaks_utf8

    async def _text(self, protocol: str, query: bytes) -> str | None:
        """Read what the client sent; None: it cannot be read, and the client has been told.

        The hub reads what is in an encoding of the client's. Empty: the hub has to judge it.
        """
        if self._is_known(query):
            try:
                return query.decode()
            except UnicodeDecodeError:
                return ""
        text = None
        alone = not self._conversation.open_pipeline
        async with self.activity.statement(protocol):
            text = await SessionLink(self._channel).decoded(query)
            if alone:
                self._ours.end_questions()
            else:
                self._channel.speak_as_client()
        return text


async def _outcome(settled: asyncio.Future[str]) -> str:
    return await settled
