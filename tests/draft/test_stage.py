"""The draft stage: cache, single flight, check, repairs, abstention."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from oar_adapters.interface import Column, OwnerSchema, Table
from oar_proxy import catalog as catalogs
from oar_proxy.catalog import Catalog
from oar_proxy.draft import Draft, DraftStage, Failure, Question
from oar_proxy.errors import DrafterUnavailable, NoValidDraft
from oar_proxy.settings import DrafterSettings


def make_catalog(*columns: str) -> Catalog:
    table = Table("orders", tuple(Column(c, "integer", c) for c in columns), "orders")
    return catalogs.build([("sales", "sales", OwnerSchema((table,)))])


CATALOG = make_catalog("id")
QUESTION = Question("How many orders?", "anna")


@dataclass
class Scripted:
    """Gives the scripted replies in order and keeps what it was asked."""

    replies: list[str | Exception | None]
    name: str = "scripted"
    asked: list[tuple[str, tuple[Failure, ...]]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    cancelled: int = 0

    async def propose(
        self, question: Question, catalog: Catalog, failures: Sequence[Failure]
    ) -> Draft:
        self.asked.append((question.text, tuple(failures)))
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(reply, Exception):
            raise reply
        return Draft(reply, self.name, None if reply else "no such table")


async def accept(sql: str) -> str | None:
    return None


async def reject(sql: str) -> str | None:
    return f'column "x" does not exist in {sql}'


def stage(drafter: Scripted, **settings: int) -> DraftStage:
    return DraftStage(drafter, DrafterSettings(**settings))


def ask(drafter: Scripted, question: Question = QUESTION, check=accept, **settings: int) -> Draft:
    return asyncio.run(stage(drafter, **settings).draft(question, CATALOG, check))


def test_accepted_draft_is_returned_without_its_semicolon():
    assert ask(Scripted(["SELECT 1;"])) == Draft("SELECT 1", "scripted")


def test_abstention_is_an_answer_with_its_reason_and_is_not_checked():
    draft = ask(Scripted([None]), check=reject)
    assert (draft.sql, draft.reason) == (None, "no such table")


def test_repair_sees_the_earlier_attempts_and_the_hubs_message():
    drafter = Scripted(["SELECT x", "SELECT y", "SELECT z"])

    async def check(sql: str) -> str | None:
        return None if sql == "SELECT z" else f"no {sql[-1]}"

    draft = ask(drafter, check=check)
    assert (draft.sql, draft.repairs) == ("SELECT z", 2)
    assert drafter.asked[-1][1] == (Failure("SELECT x", "no x"), Failure("SELECT y", "no y"))


@pytest.mark.parametrize(("repairs", "calls"), [(0, 1), (1, 2), (2, 3)])
def test_repairs_are_bounded(repairs: int, calls: int):
    drafter = Scripted([f"SELECT {n}" for n in range(9)])
    with pytest.raises(NoValidDraft, match='column "x" does not exist') as caught:
        ask(drafter, check=reject, repairs=repairs)
    assert len(drafter.asked) == calls
    assert "\n" not in caught.value.message


def test_a_drafter_that_repeats_itself_is_not_asked_to_the_end():
    drafter = Scripted(["SELECT x"])
    with pytest.raises(NoValidDraft):
        ask(drafter, check=reject)
    assert len(drafter.asked) == 2


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE orders",
        "SELECT 1; SELECT 2",
        "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
        "SELECT * INTO copy FROM orders",
        "COPY orders TO STDOUT",
        "SET ROLE postgres",
        "EXPLAIN SELECT 1",
        "SELECT FROM WHERE (",
    ],
)
def test_what_is_not_one_query_never_reaches_the_hub(sql: str):
    seen: list[str] = []

    async def check(text: str) -> str | None:
        seen.append(text)
        return None

    with pytest.raises(NoValidDraft):
        ask(Scripted([sql]), check=check)
    assert seen == []


def test_the_second_ask_comes_from_the_cache_however_it_is_spaced():
    async def run() -> None:
        drafter = Scripted(["SELECT 1"])
        subject = stage(drafter)
        first = await subject.draft(QUESTION, CATALOG, accept)
        again = await subject.draft(Question(" How  many\norders?", "boris"), CATALOG, accept)
        assert (first.cached, again.cached, again.sql) == (False, True, "SELECT 1")
        assert len(drafter.asked) == 1

    asyncio.run(run())


def test_abstentions_are_cached_and_errors_are_not():
    async def run() -> None:
        drafter = Scripted([DrafterUnavailable("away"), None])
        subject = stage(drafter)
        with pytest.raises(DrafterUnavailable):
            await subject.draft(QUESTION, CATALOG, accept)
        assert not (await subject.draft(QUESTION, CATALOG, accept)).cached
        assert (await subject.draft(QUESTION, CATALOG, accept)).cached

    asyncio.run(run())


@pytest.mark.parametrize(
    ("question", "catalog"),
    [
        (Question("how many orders?", "anna"), CATALOG),
        (QUESTION, make_catalog("id", "price")),
    ],
)
def test_another_question_or_catalog_is_another_draft(question: Question, catalog: Catalog):
    async def run() -> None:
        drafter = Scripted(["SELECT 1"])
        subject = stage(drafter)
        await subject.draft(QUESTION, CATALOG, accept)
        assert not (await subject.draft(question, catalog, accept)).cached

    asyncio.run(run())


@pytest.mark.parametrize(("entries", "calls"), [(0, 4), (1, 4), (2, 2)])
def test_the_cache_keeps_the_last_used(entries: int, calls: int):
    async def run() -> None:
        drafter = Scripted(["SELECT 1"])
        subject = stage(drafter, cache_entries=entries)
        for text in ("a", "b", "a", "b"):
            await subject.draft(Question(text, "anna"), CATALOG, accept)
        assert len(drafter.asked) == calls

    asyncio.run(run())


def test_identical_questions_at_once_share_one_call_but_not_the_check():
    async def run() -> None:
        drafter = Scripted(["SELECT 1"], gate=asyncio.Event())
        subject = stage(drafter)
        checked: list[str] = []

        async def check(sql: str) -> str | None:
            checked.append(sql)
            return None

        asks = [asyncio.create_task(subject.draft(QUESTION, CATALOG, check)) for _ in range(5)]
        await asyncio.sleep(0)
        drafter.gate.set()
        assert {draft.sql for draft in await asyncio.gather(*asks)} == {"SELECT 1"}
        assert len(drafter.asked) == 1
        assert len(checked) == 5

    asyncio.run(run())


def test_one_waiters_cancellation_leaves_the_others_alone():
    async def run() -> None:
        drafter = Scripted(["SELECT 1"], gate=asyncio.Event())
        subject = stage(drafter)
        first, second = (
            asyncio.create_task(subject.draft(QUESTION, CATALOG, accept)) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        drafter.gate.set()
        assert (await second).sql == "SELECT 1"
        assert drafter.cancelled == 0

    asyncio.run(run())


def test_the_call_is_cancelled_when_nobody_waits_and_the_next_ask_starts_afresh():
    async def run() -> None:
        drafter = Scripted(["SELECT 1"], gate=asyncio.Event())
        subject = stage(drafter)
        asks = [asyncio.create_task(subject.draft(QUESTION, CATALOG, accept)) for _ in range(2)]
        await asyncio.sleep(0)
        for task in asks:
            task.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        drafter.gate.set()
        assert (await subject.draft(QUESTION, CATALOG, accept)).sql == "SELECT 1"
        assert (drafter.cancelled, len(drafter.asked)) == (1, 2)

    asyncio.run(run())


def test_every_waiter_gets_the_drafters_error():
    async def run() -> None:
        drafter = Scripted([DrafterUnavailable("away")], gate=asyncio.Event())
        subject = stage(drafter)
        asks = [asyncio.create_task(subject.draft(QUESTION, CATALOG, accept)) for _ in range(3)]
        await asyncio.sleep(0)
        drafter.gate.set()
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DrafterUnavailable] * 3

    asyncio.run(run())


def test_a_questions_text_is_not_in_its_repr():
    assert "orders" not in repr(QUESTION)
