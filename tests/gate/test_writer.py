"""Commits that fail, or of which nobody can say whether they happened; chains that are lost."""

import asyncio
import json
import uuid

import psycopg
import pytest
from oar_proxy import writer
from oar_proxy.audit.verification import verify_hub
from oar_proxy.chain import Report
from oar_proxy.errors import LedgerUnavailable
from oar_proxy.ledger import Ask, Ledger, StepEntry, StepOutcome, digest
from waits import until


def ask() -> Ask:
    return Ask(uuid.uuid4(), "anna", digest("SELECT 1"), "sql", "relay", 2, "v")


STEP = StepEntry("logistics", digest("q"), 10, "proxy/limits.max_rows", 0, "none")


async def answer(book: Ledger) -> Ask:
    opened = ask()
    (number,) = await book.record(opened, [STEP])
    await book.finish_ask(opened, rows=1, finished=[StepOutcome(number, "00000", 1)])
    return opened


def verify(hub) -> Report:
    async def run():
        async with await psycopg.AsyncConnection.connect(
            hub.conninfo, autocommit=True
        ) as connection:
            return await verify_hub(connection)

    return asyncio.run(run())


def steps(hub, *asks: Ask) -> int:
    ids = [each.id for each in asks]
    ((count,),) = hub.execute("SELECT count(*) FROM oar.steps WHERE ask = ANY(%s)", ids)
    return count


@pytest.mark.parametrize("committed", [True, False], ids=["it happened", "it did not"])
@pytest.mark.parametrize("asked", ["before", "anew"])
def test_a_doubtful_commit_is_looked_up_before_anything_else_is_written(
    hub, monkeypatch, committed, asked
):
    """What waits for it is refused: it may be on the ledger, and was not sent."""
    opened = ask()
    insert = writer.insert

    async def fail(connection, entries, *, durable=True):
        if committed:
            await insert(connection, entries, durable=durable)
        raise psycopg.OperationalError("the connection was lost")

    async def work():
        async with Ledger(hub.conninfo) as book:
            if asked == "before":
                await book.record(opened, [STEP])
            with monkeypatch.context() as patch:
                patch.setattr(writer, "insert", fail)
                with pytest.raises(LedgerUnavailable):
                    await book.record(opened, [STEP])
            (number,) = await book.record(opened, [STEP])
            await book.finish_ask(opened, rows=1, finished=[StepOutcome(number, "00000", 1)])
            await answer(book)

    asyncio.run(work())
    assert steps(hub, opened) == 1 + committed + (asked == "before")
    assert hub.execute("SELECT count(*), max(rows) FROM oar.asks WHERE ask = %s", opened.id) == [
        (1, 1)
    ]
    ended = "SELECT sqlstate FROM oar.steps WHERE ask = %s ORDER BY step DESC LIMIT 1"
    assert hub.execute(ended, opened.id) == [("00000",)]
    assert verify(hub).faults == []


def test_a_commit_that_fails_takes_no_name_of_another_chain_along(hub, monkeypatch):
    async def fail(connection, entries, *, durable=True):
        raise psycopg.OperationalError("the connection was lost")

    async def work():
        async with Ledger(hub.conninfo) as book, Ledger(hub.conninfo) as other:
            await answer(other)
            await book.record(ask(), [STEP])
            with monkeypatch.context() as patch:
                patch.setattr(writer, "insert", fail)
                with pytest.raises(LedgerUnavailable):
                    await book.record(ask(), [STEP])
            last = other._writer.head
            await answer(book)
            return last

    monkeypatch.setattr(writer, "LINK_SECONDS", 0.0)
    last = asyncio.run(work())
    links = hub.execute("SELECT body FROM oar_internal.entries WHERE kind = 'link'")
    assert last.named() in [head for (body,) in links for head in json.loads(body)["heads"]]


def test_a_fault_in_looking_at_others_leaves_the_ledger_to_statements(hub, monkeypatch):
    asked = [ask(), ask()]
    looks = []

    async def fail(connection):
        looks.append(connection)
        raise RuntimeError

    async def work():
        async with Ledger(hub.conninfo) as book:
            monkeypatch.setattr(writer, "heads_of_all", fail)
            for each in asked:
                await book.record(each, [STEP])

    monkeypatch.setattr(writer, "LINK_SECONDS", 0.0)
    asyncio.run(work())
    assert steps(hub, *asked) == 2
    assert len(set(looks)) >= 2  # each on a connection of its own


def test_an_outcome_in_a_doubtful_commit_is_written_once(hub, monkeypatch):
    opened = ask()
    insert = writer.insert

    async def fail(connection, entries, *, durable=True):
        await insert(connection, entries, durable=durable)
        raise psycopg.OperationalError("the connection was lost")

    async def work():
        async with Ledger(hub.conninfo) as book:
            (number,) = await book.record(opened, [STEP])
            ended = StepOutcome(number, "00000", 1)
            with monkeypatch.context() as patch:
                patch.setattr(writer, "insert", fail)
                with pytest.raises(LedgerUnavailable):
                    await book.record(opened, [STEP], [ended])
            # As a pipeline does that was refused: what is not known to be written is said again.
            await book.finish_ask(opened, sqlstate="58030", rows=None, finished=[ended])

    asyncio.run(work())
    outcomes = "SELECT count(*) FROM oar_internal.entries WHERE ask = %s AND kind = 'step_outcome'"
    assert hub.execute(outcomes, opened.id) == [(1,)]
    assert verify(hub).faults == []


def test_an_old_connection_cannot_write_behind_the_back_of_a_new_one(hub):
    """The one that hangs is ended before its successor looks what is there."""

    async def work():
        async with Ledger(hub.conninfo) as book:
            await answer(book)
            with psycopg.connect(hub.conninfo) as blocker:
                blocker.execute("LOCK TABLE oar_internal.entries IN EXCLUSIVE MODE")
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(writer, "TIMEOUT", 0.5)
                    with pytest.raises(LedgerUnavailable):
                        await answer(book)
            await answer(book)

    asyncio.run(work())
    assert verify(hub).faults == []


WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name LIKE 'oar ledger%' AND wait_event_type = 'Lock'"
)


def test_a_statement_that_was_given_up_is_not_written(hub):
    given_up = ask()

    async def work():
        async with Ledger(hub.conninfo) as book:
            with psycopg.connect(hub.conninfo) as blocker:
                blocker.execute("LOCK TABLE oar_internal.entries IN EXCLUSIVE MODE")
                first = asyncio.create_task(answer(book))
                await until(lambda: hub.execute(WAITING) == [(1,)])
                second = asyncio.create_task(book.record(given_up, [STEP]))
                await asyncio.sleep(0.1)
                second.cancel()
                await asyncio.wait([second])
            return await first

    written = asyncio.run(work())
    assert (steps(hub, written), steps(hub, given_up)) == (1, 0)
    assert verify(hub).faults == []


def test_statements_that_wait_share_a_commit(hub, monkeypatch):
    batches: list[int] = []
    insert = writer.insert

    async def counted(connection, entries, *, durable=True):
        batches.append(len(entries))
        await insert(connection, entries, durable=durable)

    monkeypatch.setattr(writer, "insert", counted)

    async def work():
        async with Ledger(hub.conninfo) as book:
            batches.clear()
            await asyncio.gather(*(book.record(ask(), [STEP]) for _ in range(300)))
            return list(batches)

    # The first alone or with all that came at once, no more than fit, and the rest.
    told = asyncio.run(work())
    assert sum(told) == 600
    assert len(told) <= 3
    assert max(told) == 2 * writer.MOST_AT_ONCE


def test_a_fault_of_one_statement_leaves_the_ledger_to_the_others(hub):
    async def work():
        async with Ledger(hub.conninfo) as book:
            broken = Ask(uuid.uuid4(), "an\ud800na", digest("q"), "sql", "relay", 2, "v")
            with pytest.raises(LedgerUnavailable):
                await book.record(broken, [STEP])
            await answer(book)

    asyncio.run(work())
    assert verify(hub).faults == []


# --- a hub that does not have what it had ----------------------------------------------------------


def tamper(hub, statement: str, *parameters: object) -> None:
    with psycopg.connect(hub.conninfo) as connection:
        connection.execute("ALTER TABLE oar_internal.entries DISABLE TRIGGER ALL")
        connection.execute(statement, parameters)
        connection.execute("ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER append_only")
        connection.execute("ALTER TABLE oar_internal.entries ENABLE ALWAYS TRIGGER kept")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("DELETE FROM oar_internal.entries WHERE ask = %s", "cut off"),
        ("UPDATE oar_internal.entries SET hash = sha256('') WHERE ask = %s", "changed"),
        (
            "INSERT INTO oar_internal.entries (writer, number, at, kind, body, hash)"
            " SELECT writer, max(number) + 1, now(), 'ask', '{}', sha256('') "
            "FROM oar_internal.entries WHERE writer ="
            " (SELECT writer FROM oar_internal.entries WHERE ask = %s LIMIT 1) GROUP BY writer",
            "changed",
        ),
    ],
    ids=["lost", "changed", "another's"],
)
def test_a_proxy_whose_chain_is_not_as_it_wrote_it_begins_another(own_hub, change, kind):
    """As after a hub was restored from an older state; and the loss stays to be seen."""

    async def work():
        async with Ledger(own_hub.conninfo) as book:
            former = await answer(book)
            tamper(own_hub, change, former.id)
            under_way = ask()
            own_hub.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'oar ledger%'"
            )
            with pytest.raises(LedgerUnavailable):
                await book.record(under_way, [STEP])
            later = await answer(book)
            # It is told from one that has ended by its own name, not by that of the lost chain.
            running = await asyncio.to_thread(verify, own_hub)
            return former, later, running.open

    former, after, unclosed = asyncio.run(work())
    writers = "SELECT DISTINCT writer FROM oar_internal.entries WHERE ask = %s"
    ((writer_after,),) = own_hub.execute(writers, after.id)
    assert (writer_after,) not in own_hub.execute(writers, former.id)
    assert writer_after not in unclosed
    assert kind in {fault.kind for fault in verify(own_hub).faults}


def test_a_client_that_takes_a_writers_name_is_not_in_its_way(own_hub):
    """It is there to be seen, in pg_stat_activity."""

    async def work():
        async with Ledger(own_hub.conninfo) as book:
            await answer(book)
            ((name,),) = own_hub.execute(
                "SELECT application_name FROM pg_stat_activity"
                " WHERE application_name LIKE 'oar ledger%' AND datname = current_database()"
            )
            user = own_hub.user()
            with own_hub.as_user(user) as client:
                client.execute("SELECT set_config('application_name', %s, false)", (name,))
                own_hub.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = %s AND usename <> %s",
                    *(name, user),
                )
                with pytest.raises(LedgerUnavailable):
                    await answer(book)
                async with asyncio.timeout(5):
                    await answer(book)
                # It runs, whatever a client calls itself and has taken.
                assert (await asyncio.to_thread(verify, own_hub)).open == []
                assert client.execute("SELECT 1").fetchone() == (1,)

    asyncio.run(work())
    assert verify(own_hub).faults == []
