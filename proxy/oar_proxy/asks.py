"""Asks of owners: each opened on the ledger, run, and its outcome written, on every path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog
from oar_adapters.interface import Adapter

from oar_proxy.drafters import Draft
from oar_proxy.errors import OarError, refusal_of, sqlstate_of
from oar_proxy.federation import HubLink, tell
from oar_proxy.fetch import OpenAsk, OwnerAccess
from oar_proxy.gate import Gate
from oar_proxy.ledger import SUCCESS, Ask, Kind, Ledger, digest
from oar_proxy.memory import Account
from oar_proxy.moment import Moment
from oar_proxy.plan import Plan
from oar_proxy.rows import Gathered, Rows
from oar_proxy.run import Allowance, run
from oar_proxy.settings import Limits
from oar_proxy.slots import OwnerSlots
from oar_proxy.statement import FederatedStatement

log = structlog.get_logger(__name__)

Settle = Callable[[], asyncio.Task[None]]
"""Lets go of the owners and writes the outcome, in a task that never fails."""


class Asks:
    """What is asked of owners for statements. One for the proxy."""

    def __init__(
        self, adapters: Mapping[str, Adapter], gate: Gate, ledger: Ledger, limits: Limits
    ) -> None:
        self.access = OwnerAccess(adapters, gate, OwnerSlots(adapters))
        self._ledger = ledger
        self._limits = limits
        self._settling: set[asyncio.Task[None]] = set()

    async def run(
        self,
        plan: Plan,
        link: HubLink,
        account: Account,
        give: Callable[[Rows], Awaitable[None]] | None = None,
    ) -> tuple[Gathered, Settle]:
        """Ask the owners; with ``give``, rows are given away in chunks as `run.run` says.

        What is returned besides is to be called, on every path. Best when the hub has been sent all
        it needs, for then both work at once.
        """
        state = plan.statement.state
        # Numbers of rows and keys are not for whoever may see groups only.
        progress = state.enabled("oar.progress") and plan.withheld is None

        def report(message: str) -> None:
            if progress:
                tell(link, state, message)

        report(f"route {plan.route.kind.value}: {plan.route.reason}")
        most = self._limits.statement_timeout
        seconds, transactions = state.timeout(most), link.moment(state, most)
        ask = await self._open(plan.statement, plan.route.kind.value, plan.cover.kappa)
        opened = OpenAsk(ask, progress=report)
        started = time.monotonic()
        sqlstate = SUCCESS
        try:
            async with AsyncExitStack() as held:
                allowance = Allowance(seconds, account, transactions or Moment(held, seconds))
                gathered = await run(plan, opened, self.access, allowance, give=give)
                open_still = held.pop_all()
        except (Exception, asyncio.CancelledError) as error:
            # One write more before leaving: that it was cancelled is an outcome like any other.
            sqlstate = sqlstate_of(error)
            await self._ledger.finish_ask(
                ask, sqlstate=sqlstate, finished=opened.finished, refusal=refusal_of(error)
            )
            raise
        finally:
            log.info(
                "statement",
                ask=str(ask.id),
                principal=state.principal,
                kind=ask.kind,
                route=plan.route.kind.value,
                kappa=plan.cover.kappa,
                steps=len(plan.steps) or 1,
                sqlstate=sqlstate,
                milliseconds=round((time.monotonic() - started) * 1000, 1),
            )
        return gathered, partial(self._start_settling, open_still, opened)

    async def refused(self, statement: FederatedStatement, error: OarError) -> None:
        """Record a statement for which nothing was asked, because of a policy or a limit."""
        ask = await self._open(statement, "refused", None)
        await self._ledger.finish_ask(ask, sqlstate=error.sqlstate, refusal=error.detail)

    async def settle(self) -> None:
        """Wait until nothing that was asked holds anything at an owner, or lacks its outcome."""
        if self._settling:
            await asyncio.wait(self._settling)

    def _start_settling(self, held: AsyncExitStack, opened: OpenAsk) -> asyncio.Task[None]:
        """Let go of the owners, and write the outcome of an ask that has all its rows.

        Returns the task of the latter alone: no statement reads what is still held there.
        """
        self._start(self._let_go(held, opened.entry))
        return self._start(self._ledger.finish_ask(opened.entry, finished=opened.finished))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        settling = asyncio.create_task(work)
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        return settling

    async def _let_go(self, held: AsyncExitStack, ask: Ask) -> None:
        try:
            await held.aclose()
        except Exception as error:  # noqa: BLE001 - whatever it was, the rows are there
            # And its text may quote them.
            log.warning("snapshot not closed", ask=str(ask.id), error=type(error).__name__)

    async def _open(self, statement: FederatedStatement, route: str, kappa: int | None) -> Ask:
        return await self._ledger.open_ask(
            statement.state.subject,
            digest(statement.written),
            kind=_kind(statement.drafts),
            route=route,
            kappa=kappa,
            catalog_version=statement.catalog.version,
            verified=tuple(d.review.name for d in statement.drafts if d.review is not None),
            application=statement.state.application,
        )


def _kind(drafts: Sequence[Draft]) -> Kind:
    if not drafts:
        return "sql"
    return "verified" if all(draft.review is not None for draft in drafts) else "question"
