"""Relay: owners one after another, each query written by a planner that sees the rows so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from oar_proxy.hub.session import Size
from oar_proxy.protocols import prompts
from oar_proxy.protocols.attempt import Attempt, OwnerQuery, Stopped, Verdict, schemas

SIZE: Final = Size(rows=20, size=1_600)

PROVENANCE: Final = 256
"""Tokens of the budget that relay keeps for the SQL of its results."""

OVER_BUDGET: Final = "its result does not fit the remaining budget"
AGAIN: Final = "this owner was sent the same query before"


@dataclass(frozen=True, slots=True)
class Relay:
    """Relay, and with ``as_produced`` Relay+: SQL is charged with its result, none is reserved.

    ``pass_keys``: the planner is told to pass join keys. ``show_rows``: it sees the rows, not only
    that queries were executed; the receiver does in any case. ``planned``: all queries are written
    before any row returns.
    """

    name: str = "relay"
    as_produced: bool = False
    pass_keys: bool = True
    show_rows: bool = True
    planned: bool = False

    async def run(self, attempt: Attempt) -> Verdict:
        """See :class:`~oar_proxy.protocols.attempt.Strategy`."""
        told = _Told(attempt, self)
        if self.planned:
            material = self._material(attempt, told)
            plan = await attempt.consult("planner", prompts.PLANNED, material, prompts.Plan)
            for query in plan.queries:
                await told.add(query)
        else:
            await self._step_by_step(attempt, told)
        results = [q for q in told.kept if q.executed and not q.truncated]
        if not results:
            return Verdict(None)
        received: dict[str, Any] = {"results": [q.entry(sql=self.as_produced) for q in results]}
        if not self.as_produced:
            received["provenance"] = _provenance(results)
        return await attempt.compose(received)

    async def _step_by_step(self, attempt: Attempt, told: _Told) -> None:
        system = prompts.planner(pass_keys=self.pass_keys)
        for _ in range(prompts.MAX_QUERIES):
            material = self._material(attempt, told)
            query = await attempt.consult("planner", system, material, prompts.NextQuery)
            if not query.sql.strip():
                return
            await told.add(query)

    def _material(self, attempt: Attempt, told: _Told) -> dict[str, Any]:
        contacts = attempt.inquiry.contacts
        return {
            "owners": schemas(attempt.inquiry.catalog, contacts.reachable),
            "referrals": contacts.messages,
            "earlier": [q.entry(sql=True, rows=self.show_rows) for q in told.kept],
            "remaining_queries": prompts.MAX_QUERIES - len(attempt.queries),
            "remaining_tokens": told.budget - attempt.tokens,
        }


class _Told:
    """The results so far, as they are charged."""

    def __init__(self, attempt: Attempt, relay: Relay) -> None:
        self._attempt = attempt
        self._as_produced = relay.as_produced
        self._shown = relay.show_rows and not relay.planned
        budget = attempt.inquiry.budget
        self.budget = budget if relay.as_produced else budget - PROVENANCE
        self.kept: list[OwnerQuery] = []

    async def add(self, query: prompts.NextQuery) -> None:
        """Ask an owner and charge what came. Raises :class:`Stopped` when nothing fits any more."""
        done = await self._ask(query)
        if not await self._fits(done):
            done = OwnerQuery(done.number, done.owner, done.sql, OVER_BUDGET, keys=done.keys)
            self._attempt.queries[done.number - 1] = done
            if not await self._fits(done):
                raise Stopped("the budget is used up")
        self.kept.append(done)
        executed = [q for q in self.kept if q.executed]
        if not self._as_produced:
            written = prompts.written(_provenance(executed))
            if await self._attempt.model.count_tokens(written) > PROVENANCE:
                raise Stopped(f"the SQL of the results takes more than {PROVENANCE} tokens")

    async def _ask(self, query: prompts.NextQuery) -> OwnerQuery:
        attempt = self._attempt
        known = query.owner in attempt.inquiry.contacts.reachable
        if not known or not attempt.publishes(query.owner):
            return attempt.note(query.owner[:64], "there is no owner of that name")
        if any((q.owner, q.sql) == (query.owner, query.sql) for q in attempt.queries):
            return attempt.note(query.owner, AGAIN)
        return await attempt.query(query.owner, query.sql, SIZE, shown=self._shown)

    async def _fits(self, done: OwnerQuery) -> bool:
        entries = [q.entry(sql=self._as_produced) for q in (*self.kept, done)]
        return await self._attempt.fits(entries, self.budget)


def _provenance(results: list[OwnerQuery]) -> list[dict[str, Any]]:
    return [{"query": q.number, "sql": q.sql} for q in results]
