"""What stands at the hub in the place of a client's statement, and what goes there instead of it.

It has one name, which no client uses, for a statement and a portal; a number tells each from those
before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from oar_proxy.federation import Execution, Parameter, Prepared, given
from oar_proxy.hublink import SUCCEEDED, HubChannel
from oar_proxy.replies import Answer, Step, awaited
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Expected, Kind

_GIVEN: Final = b"SELECT $1 FROM pg_catalog.generate_series(1, 1000)"
"""A portal that gives its parameter whenever the hub looks at it while it plans."""


class StandIns:
    """What one session sends the hub in its client's name.

    ``name`` is that of a statement and a portal, of which there is one each at a time.
    """

    def __init__(self, channel: HubChannel) -> None:
        self._channel = channel
        self._conversation = channel.conversation
        self.name = channel.statement_name
        self._numbers = count(1)
        self._given = 0
        self._nested_loops = True

    def next_portal(self) -> bytes:
        """Return the name of a portal that stays while others are executed."""
        return b"%s:%d" % (self.name, next(self._numbers))

    def guard_text(self, prepared: Prepared, place: int) -> tuple[bytes, int | None]:
        """Return a guard's text, and by how much its places differ from those at the client."""
        number = f"/* oar {next(self._numbers)} */ "
        shift = place - len(number) if prepared.in_place else None
        return f"{number}{prepared.guard_sql}".encode(), shift

    async def speak(self, text: bytes) -> None:
        """Have the hub read a text of ours as what it is; one in ASCII is that in any encoding."""
        if text.isascii():
            self._channel.speak_as_client()
        else:
            await self._channel.speak_utf8()

    def pass_through(self, raw: bytes) -> None:
        """Give the hub a query that turned out not to be ours, in the state it expects."""
        self.end_questions()
        self._channel.request(Expected(Kind.QUERY), raw)

    def end_questions(self) -> None:
        """End the implicit transaction of the proxy's own questions, and of nothing else.

        What the client sends next is then in one of its own: `BEGIN ISOLATION LEVEL …` and VACUUM
        must be the first in theirs, and a Query commits what no Execute stands before.
        """
        self._channel.speak_as_client()
        if self._conversation.open_pipeline:
            self._channel.request(Step(Kind.SYNC), messages.SYNC)

    def begin_block(self) -> None:
        """Make an implicit transaction block, as the hub does for a string of several statements.

        In a pipeline it begins with the first Execute, so one stands before the first statement:
        of something that needs no snapshot, behind which no isolation level could be set.
        """
        self.close()
        self._channel.request(
            Step(Kind.PARSE), messages.encode_parse(self.name, b"SHOW is_superuser")
        )
        self._channel.request(Step(Kind.BIND), *messages.encode_bind(self.name, self.name))
        self._channel.request(Step(Kind.EXECUTE), messages.encode_execute(self.name))

    async def in_step(self) -> bool:
        """Tell whether the hub has accepted everything sent so far."""
        settled = awaited()
        self._channel.request(
            Step(Kind.CLOSE, settled=settled), messages.encode_close(b"S", self.name)
        )
        self._channel.flush()
        return await settled == SUCCEEDED

    async def bind(
        self,
        portal: bytes,
        execution: Execution,
        sent: Sequence[Parameter],
        result_formats: Sequence[int],
    ) -> None:
        """Bind an execution to a portal, with the parameters ``sent`` by the client in front."""
        await self._channel.speak_utf8()
        if not execution.nested_loops:
            self._channel.set_local("enable_nestloop", "off")
        for number, parameter in enumerate(execution.given):
            await self._bind_given(number, parameter)
        parameters = [*sent, *execution.parameters]
        bind = messages.encode_bind(portal, self.name, parameters, result_formats)
        oids = [parameter.oid for parameter in parameters]
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", portal))
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"S", self.name))
        self._channel.request(
            Step(Kind.PARSE), messages.encode_parse(self.name, execution.sql.encode(), oids)
        )
        await self._channel.request_large(Step(Kind.BIND, shows=b"N"), bind)
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"S", self.name))
        self._nested_loops = execution.nested_loops
        if not execution.is_utility:
            self._plan_as_client()
        self._channel.speak_as_client()

    async def _bind_given(self, number: int, parameter: Parameter) -> None:
        portal = given(number).encode()
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", portal))
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"S", self.name))
        self._channel.request(
            Step(Kind.PARSE), messages.encode_parse(self.name, _GIVEN, (parameter.oid,))
        )
        bind = messages.encode_bind(portal, self.name, (parameter,))
        await self._channel.request_large(Step(Kind.BIND), bind)
        self._given = max(self._given, number + 1)

    def release(self) -> None:
        """Close what was given to what has been executed, and plan again as the session does."""
        for number in range(self._given):
            portal = given(number).encode()
            self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", portal))
        self._given = 0
        self._plan_as_client()

    def _plan_as_client(self) -> None:
        if not self._nested_loops:
            self._channel.set_local("enable_nestloop", "on")
        self._nested_loops = True

    def execute(
        self, ended: Callable[[str], None] | None, shift: int | None, *, logs: bool = False
    ) -> asyncio.Future[str]:
        """Describe and execute the portal for the client; return what yields how that ends.

        ``ended`` is told as well. For ``shift`` and ``logs`` see `oar_proxy.replies.Settling`.
        """
        settled = awaited()
        describe = messages.encode_describe(b"P", self.name)
        self._channel.request(
            Step(Kind.DESCRIBE_PORTAL, shows=b"TN", shift=shift, logs=logs), describe
        )
        answer = Answer(ended, shift=shift, settled=settled, logs=logs)
        self._channel.request(answer, messages.encode_execute(self.name))
        return settled

    def close(self) -> None:
        """Close statement and portal: none is left of those before, whether they failed or not."""
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"P", self.name))
        self._channel.request(Step(Kind.CLOSE), messages.encode_close(b"S", self.name))
