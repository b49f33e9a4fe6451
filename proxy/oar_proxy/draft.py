"""The draft stage: a question becomes SQL over the catalog the principal may see.

A verified answer comes first: what people have reviewed, nobody drafts again. Then the cache, then
the drafter, then the hub's check, then up to ``repairs`` more attempts that see the hub's message
and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Drafter, Failure
from oar_proxy.errors import InvalidTextRepresentation, NoValidDraft, VerifiedAnswerOutdated
from oar_proxy.prompt import PROMPT_VERSION
from oar_proxy.question import Question
from oar_proxy.settings import DrafterSettings
from oar_proxy.verified.answers import Match, VerifiedAnswers

__all__ = ["Check", "Draft", "DraftStage", "Drafter", "Failure", "Question"]

Check = Callable[[str], Awaitable[str | None]]
"""Asks the hub whether it accepts a statement: its error message, or None when it does."""

_NOT_READING: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Into)
"""What makes a query write: PostgreSQL allows them under WITH, and SELECT has INTO."""

_READING: Final = re.compile(r"[\s(]*(?:SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)
"""How a query begins. Looked at first because sqlglot logs the text of what it does not know."""

_Key = tuple[str, str, str, str]
_FlightKey = tuple[_Key, tuple[Failure, ...]]


class DraftStage:
    """Drafts questions with one drafter. One for the whole proxy: the cache is shared."""

    def __init__(self, drafter: Drafter, settings: DrafterSettings) -> None:
        self._drafter = drafter
        self._repairs: Final = settings.repairs
        self._cache = _Cache(settings.cache_entries)
        self._flights: dict[_FlightKey, _Flight] = {}
        self._verified = VerifiedAnswers()
        self._outdated: Collection[str] = ()

    def publish(self, verified: VerifiedAnswers, outdated: Collection[str] = ()) -> None:
        """Put verified answers in force. Those named in ``outdated`` fit the catalog no more."""
        self._verified = verified
        self._outdated = frozenset(outdated)

    def is_verified(self, question: str) -> bool:
        """Tell whether people have answered a question, so that no model is to be asked."""
        return self._verified.match(question) is not None

    async def draft(self, question: Question, catalog: Catalog, check: Check) -> Draft:
        """Return a draft the hub accepts, or one that abstains (``sql`` is None).

        ``check`` is the asking session's own: two sessions share a proposal, never a verdict.
        Raises ``NoValidDraft`` when the last repair does not fit either, and
        ``DrafterUnavailable`` from the drafter. Neither is cached. For a question that has a
        verified answer raises ``VerifiedAnswerOutdated`` and ``InvalidTextRepresentation`` instead.
        """
        match = self._verified.match(question.text)
        if match is not None:
            return await self._reviewed(match, check)
        key = (question.normalised, catalog.version, self._drafter.name, PROMPT_VERSION)
        if (hit := self._cache.get(key)) is not None:
            return replace(hit, cached=True)
        draft = await self._accepted(key, question, catalog, check)
        self._cache.put(key, draft)
        return draft

    async def _reviewed(self, match: Match, check: Check) -> Draft:
        name = match.entry.name
        for parameter, literal in match.literals:
            if await check(f"SELECT {literal}") is not None:
                raise InvalidTextRepresentation(
                    f'parameter {parameter.name} of verified answer "{name}" is of type '
                    f"{parameter.type}, and the question has another value there",
                    hint="put a value with spaces or a question mark in quotes",
                )
        sql = match.sql
        # The hub's message may name what is hidden by now; `oar verify check` shows it.
        if name in self._outdated or await check(sql) is not None:
            raise VerifiedAnswerOutdated(
                f'verified answer "{name}" does not fit what is published any more',
                detail="nothing else is drafted for a question that was reviewed",
                hint="its reviewers find out why with: oar verify check",
            )
        return Draft(sql, "verified", review=match.entry.review)

    async def _accepted(
        self, key: _Key, question: Question, catalog: Catalog, check: Check
    ) -> Draft:
        failures: tuple[Failure, ...] = ()
        for repairs in range(self._repairs + 1):
            proposal = await self._propose(key, question, catalog, failures)
            if proposal.sql is None:
                return replace(proposal, repairs=repairs)
            sql = proposal.sql.strip().rstrip("; \n")
            if any(sql == failure.sql for failure in failures):
                break  # a drafter that repeats itself has nothing better
            error = _not_one_query(sql) or await check(sql)
            if error is None:
                return replace(proposal, sql=sql, repairs=repairs)
            failures = (*failures, Failure(sql, error))
        raise NoValidDraft(
            f"no valid draft after {len(failures)} of {self._repairs + 1} attempts: "
            f"{_one_line(failures[-1].error)}",
            hint="ask in other words, or write the SQL yourself",
        )

    async def _propose(
        self, key: _Key, question: Question, catalog: Catalog, failures: tuple[Failure, ...]
    ) -> Draft:
        """Call the drafter once for everyone who waits for the same proposal."""
        flight_key = (key, failures)
        flight = self._flights.get(flight_key)
        if flight is None:
            flight = _Flight(self._start(flight_key, question, catalog, failures))
            self._flights[flight_key] = flight
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                # Nobody waits any more: free the key at once, so that a later question does
                # not join a call that is being cancelled.
                if self._flights.get(flight_key) is flight:
                    del self._flights[flight_key]
                flight.task.cancel()

    def _start(
        self,
        flight_key: _FlightKey,
        question: Question,
        catalog: Catalog,
        failures: Sequence[Failure],
    ) -> asyncio.Task[Draft]:
        task = asyncio.create_task(self._drafter.propose(question, catalog, failures))

        def landed(done: asyncio.Task[Draft]) -> None:
            flight = self._flights.get(flight_key)
            if flight is not None and flight.task is done:
                del self._flights[flight_key]
            if not done.cancelled():
                done.exception()  # every waiter may be gone: the error is nobody's then

        task.add_done_callback(landed)
        return task


@dataclass(slots=True)
class _Flight:
    """A drafter's call in progress and how many wait for it."""

    task: asyncio.Task[Draft]
    waiters: int = 0


class _Cache:
    """The last ``entries`` drafts by use."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._drafts: OrderedDict[_Key, Draft] = OrderedDict()

    def get(self, key: _Key) -> Draft | None:
        draft = self._drafts.get(key)
        if draft is not None:
            self._drafts.move_to_end(key)
        return draft

    def put(self, key: _Key, draft: Draft) -> None:
        self._drafts[key] = draft
        self._drafts.move_to_end(key)
        while len(self._drafts) > self._entries:
            self._drafts.popitem(last=False)


def _not_one_query(sql: str) -> str | None:
    """Refuse everything but one query before the hub sees it: a model may write anything."""
    if not _READING.match(sql):
        return "the draft is not a SELECT statement"
    try:
        statements = sqlglot.parse(sql, read="postgres")
    except SqlglotError:
        return "the draft is not a SELECT statement that can be read"
    if len(statements) != 1:
        return "the draft is not exactly one statement"
    statement = statements[0]
    if not isinstance(statement, exp.Query) or statement.find(*_NOT_READING) is not None:
        return "the draft is not a SELECT statement"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())
