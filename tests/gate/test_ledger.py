import asyncio
import datetime
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest
import structlog
from oar_policies.model import Subject
from oar_proxy import writer
from oar_proxy.chain import Entry, Named, Report, Verification
from oar_proxy.errors import LedgerUnavailable
from oar_proxy.ledger import Ask, Disclosure, Leaving, Ledger, StepEntry, StepOutcome, digest


def ask(principal: str = "anna") -> Ask:
    return Ask(uuid.uuid4(), principal, digest("SELECT 1"), "sql", "relay", 2, "0123456789abcdef")


def step(owner: str = "logistics", *disclosures: Disclosure) -> StepEntry:
    return StepEntry(
        owner=owner,
        sql_digest=digest(f"SELECT … at {owner}"),
        row_cap=1000,
        row_cap_rule="proxy/limits.max_rows",
        keys=sum(d.keys for d in disclosures),
        policy="none",
        disclosures=disclosures,
    )


def disclosure(keys: int = 3) -> Disclosure:
    return Disclosure(
        from_owner="marketing",
        from_column="marketing.promos.order_id",
        to_owner="logistics",
        to_column="deliveries.order_id",
        keys=keys,
        rule="marketing/key_disclosure[0]",
        policy="fedcba9876543210",
    )


def verify(hub) -> Report:
    rows = hub.execute("SELECT writer, number, body, hash FROM oar_internal.entries ORDER BY 1, 2")
    entries = [Entry(*row) for row in rows]
    named = Named()
    for entry in entries:
        named.read(entry)
    verification = Verification(named)
    for entry in entries:
        verification.take(entry)
    return verification.report()


def write(conninfo, work: Callable[[Ledger], Awaitable]):
    async def main():
        async with Ledger(conninfo) as book:
            return await work(book)

    return asyncio.run(main())


def test_a_wave_is_written_in_order_with_its_ask_and_disclosures(hub):
    opened = ask()

    async def work(book: Ledger):
        first = await book.record(opened, [step("marketing"), step("finance")])
        second = await book.record(opened, [step("logistics", disclosure(3), disclosure(4))])
        return first, second

    (marketing, finance), (logistics,) = write(hub.conninfo, work)
    assert marketing < finance < logistics
    assert hub.execute(
        "SELECT principal, statement, kind, route, kappa, catalog_version, sqlstate, rows"
        " FROM oar.asks WHERE ask = %s",
        opened.id,
    ) == [("anna", digest("SELECT 1"), "sql", "relay", 2, "0123456789abcdef", None, None)]
    assert hub.execute(
        "SELECT owner, sql_digest, row_cap, row_cap_rule, keys, policy, sqlstate, rows"
        " FROM oar.steps WHERE ask = %s ORDER BY step",
        opened.id,
    ) == [
        (owner, digest(f"SELECT … at {owner}"), 1000, "proxy/limits.max_rows", keys, *rest)
        for owner, keys in [("marketing", 0), ("finance", 0), ("logistics", 7)]
        for rest in [("none", None, None)]
    ]
    assert hub.execute(
        "SELECT principal, from_owner, from_column, to_owner, to_column, keys, rule,"
        " sql_digest, policy FROM oar.disclosures WHERE ask = %s ORDER BY keys",
        opened.id,
    ) == [
        (
            *("anna", "marketing", "marketing.promos.order_id", "logistics"),
            *("deliveries.order_id", keys, "marketing/key_disclosure[0]"),
            *(digest("SELECT … at logistics"), "fedcba9876543210"),
        )
        for keys in (3, 4)
    ]


def test_waves_of_one_ask_may_be_written_at_once(hub):
    opened = ask()

    async def work(book: Ledger):
        waves = await asyncio.gather(*(book.record(opened, [step(), step()]) for _ in range(8)))
        return [number for wave in waves for number in wave]

    numbers = write(hub.conninfo, work)
    assert len(set(numbers)) == 16
    assert hub.execute("SELECT count(*) FROM oar.asks WHERE ask = %s", opened.id) == [(1,)]


def test_an_ask_that_sent_nothing_is_recorded_when_it_ends(hub):
    async def work(book: Ledger):
        opened = await book.open_ask(
            Subject("anna"),
            digest("q"),
            kind="question",
            route="abstain",
            kappa=None,
            catalog_version="v",
        )
        assert hub.execute("SELECT 1 FROM oar.asks WHERE ask = %s", opened.id) == []
        await book.finish_ask(opened, sqlstate="42501", rows=None)
        return opened

    opened = write(hub.conninfo, work)
    assert hub.execute(
        "SELECT kind, route, kappa, sqlstate, rows, finished_at >= at FROM oar.asks WHERE ask = %s",
        opened.id,
    ) == [("question", "abstain", None, "42501", None, True)]


def test_an_outcome_is_an_entry_of_its_own_and_written_once(hub):
    opened = ask()

    async def work(book: Ledger):
        answered, unknown = await book.record(opened, [step(), step()])
        ended = StepOutcome(answered, "00000", 12, 345)
        (more,) = await book.record(opened, [step("finance")], [ended])
        await book.finish_ask(opened, rows=5, finished=[ended])
        return answered, unknown, more

    write(hub.conninfo, work)
    assert hub.execute(
        "SELECT owner, sqlstate, rows, microseconds FROM oar.steps WHERE ask = %s ORDER BY step",
        opened.id,
    ) == [
        ("logistics", "00000", 12, 345),
        ("logistics", None, None, None),
        ("finance", None, None, None),
    ]
    assert hub.execute("SELECT sqlstate, rows FROM oar.asks WHERE ask = %s", opened.id) == [
        ("00000", 5)
    ]


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {} SET at = now()",
        "UPDATE {} SET body = body WHERE false",
        "DELETE FROM {} WHERE number = 1",
        "TRUNCATE {} CASCADE",
    ],
)
def test_nothing_written_can_be_changed_even_by_the_proxy_itself(hub, change, role):
    write(hub.conninfo, lambda book: book.record(ask(), [step()]))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        hub.execute(
            f"SET session_replication_role = {role}; " + change.format("oar_internal.entries")
        )


def test_each_principal_sees_its_own_asks_and_an_auditor_all(hub):
    anna, boris, auditor = hub.user(), hub.user(), hub.user("oar_auditor")
    asks = {name: ask(name) for name in (anna, boris)}

    async def work(book: Ledger):
        for opened in asks.values():
            await book.record(opened, [step("logistics", disclosure())])

    write(hub.conninfo, work)
    for view in ("asks", "steps", "disclosures"):
        query = f"SELECT principal FROM oar.{view} WHERE principal = ANY(%s) ORDER BY 1"
        both = ([anna, boris],)
        with hub.as_user(anna) as connection:
            assert connection.execute(query, both).fetchall() == [(anna,)]
        with hub.as_user(boris) as connection:
            assert connection.execute(query, both).fetchall() == [(boris,)]
        with hub.as_user(auditor) as connection:
            assert connection.execute(query, both).fetchall() == sorted([(anna,), (boris,)])


def test_a_reader_cannot_look_past_the_views(hub):
    anna = hub.user()
    other = ask("someone else")
    write(hub.conninfo, lambda book: book.record(other, [step()]))
    with hub.as_user(anna) as connection:
        for table in ("entries", "ledger_key"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT 1 FROM oar_internal.{table}")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            connection.execute("INSERT INTO oar.asks (ask) VALUES (gen_random_uuid())")
        # A function of the reader's own runs after the views' condition, not before it.
        connection.execute(
            "CREATE FUNCTION pg_temp.peek(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
            " $$BEGIN RAISE EXCEPTION 'saw %', $1; END$$"
        )
        assert (
            connection.execute("SELECT 1 FROM oar.asks WHERE pg_temp.peek(principal)").fetchall()
            == []
        )


def test_an_entry_survives_a_crash_right_after_it_was_written(hub):
    """Even where the hub does not wait for its disk by default; and the chain goes on."""
    hub.execute("ALTER SYSTEM SET synchronous_commit = off")
    hub.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    hub.execute("SELECT pg_reload_conf()")
    before, after = ask(), ask()

    async def work(book: Ledger):
        await book.record(before, [step("a", disclosure())])
        # Not waited for, so the crash takes it: it is written again with the next entry.
        await book.finish_ask(before, rows=3)
        await asyncio.to_thread(crash, hub)
        with pytest.raises(LedgerUnavailable):
            await book.record(after, [step("b")])
        await book.record(after, [step("b")])

    try:
        write(hub.conninfo, work)
        assert hub.execute("SELECT rows FROM oar.asks WHERE ask = %s", before.id) == [(3,)]
        owners = "SELECT owner FROM oar.steps WHERE ask = %s"
        assert hub.execute(owners, before.id) == [("a",)]
        assert hub.execute(owners, after.id) == [("b",)]
        assert verify(hub).faults == []
    finally:
        hub.execute("ALTER SYSTEM RESET ALL")
        hub.execute("SELECT pg_reload_conf()")


def crash(hub) -> None:
    postmaster = int((hub.directory / "pgdata" / "postmaster.pid").read_text().splitlines()[0])
    os.kill(postmaster, signal.SIGQUIT)
    while Path(f"/proc/{postmaster}").exists():
        time.sleep(0.05)
    hub.server.stop()
    hub.server.start()


def test_a_hub_that_does_not_write_makes_the_ledger_unavailable(hub):
    opened = ask()

    async def work(book: Ledger):
        end_connections(hub)
        hub.execute("ALTER DATABASE oar SET default_transaction_read_only = on")
        with pytest.raises(LedgerUnavailable):
            await book.record(ask(), [step()])  # finds its connection gone
        with pytest.raises(LedgerUnavailable) as caught:
            await book.record(ask(), [step()])
        # Whoever has the answer already keeps it.
        with structlog.testing.capture_logs() as logged:
            await book.finish_ask(opened)
        told = [line["ask"] for line in logged if line["event"] == "ledger outcome not written"]
        assert told == [str(opened.id)]
        reset(hub)
        assert await book.record(ask(), [step()])
        return caught.value

    try:
        refused = write(hub.conninfo, work)
    finally:
        reset(hub)
    assert refused.sqlstate == "58030"
    assert "nothing of this step was sent" in refused.message


def end_connections(hub) -> None:
    """End the ledgers' connections, and wait until they are."""
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {}"
    while hub.execute(ended.format("application_name LIKE 'oar ledger%'")) != [(0,)]:
        time.sleep(0.02)


def reset(hub) -> None:
    with psycopg.connect(hub.conninfo, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER DATABASE oar RESET default_transaction_read_only")


def test_a_hub_that_is_gone_makes_the_ledger_unavailable():
    with pytest.raises(LedgerUnavailable):
        write("host=/nonexistent", lambda book: book.record(ask(), [step()]))
    with pytest.raises(LedgerUnavailable):
        asyncio.run(Ledger("host=/nonexistent").record(ask(), [step()]))


def test_a_ledger_that_hangs_makes_it_unavailable(hub, monkeypatch):
    async def work(book: Ledger):
        monkeypatch.setattr(writer, "TIMEOUT", 0.5)
        with psycopg.connect(hub.conninfo) as blocker:
            blocker.execute("LOCK TABLE oar_internal.entries")
            with pytest.raises(LedgerUnavailable):
                await book.record(ask(), [step()])
        monkeypatch.undo()
        assert await book.record(ask(), [step()])

    write(hub.conninfo, work)
    assert verify(hub).faults == []


def test_the_keys_of_a_day_are_counted_for_all_proxies_together(hub):
    day = datetime.date(2026, 5, 9)
    later = day + datetime.timedelta(1)

    def of(first: int, last: int, more: int = 0) -> Leaving:
        return Leaving({b"%d" % n for n in range(first, last)}, more)

    async def work(one: Ledger) -> list[bool]:
        async with Ledger(hub.conninfo) as other:
            turns = zip((one, other) * 5, range(10), strict=True)
            spent = await asyncio.gather(
                *(book.spend("anna", "north", day, of(3 * n, 3 * n + 3), 20) for book, n in turns)
            )
            again = [await one.spend("anna", "north", day, of(0, 3), 20) for _ in range(3)]
            rest = [
                await one.spend("anna", "north", day, of(100, 102), 20),
                await other.spend("anna", "north", day, of(100, 103), 20),
                await other.spend("anna", "north", day, of(100, 101), 20),
                await other.spend("anna", "north", day, of(0, 0, 1), 20),
                await one.spend("anna", "south", day, of(0, 10, 11), 20),
                await one.spend("anna", "south", day, of(0, 10, 10), 20),
                await one.spend("boris", "north", day, of(0, 20), 20),
                await one.spend("anna", "north", later, of(0, 20), 20),
            ]
            assert spent.count(True) == 6
            return [*again, *rest]

    # Which six of the ten were in time is not known: those again are free, or one too many.
    *_, a, b, c, d, e, f, g, h = write(hub.conninfo, work)
    assert [a, b, c, d, e, f, g, h] == [True, False, True, False, False, True, True, True]


def test_keys_of_a_day_are_kept_as_digests_until_it_is_over(hub):
    first = datetime.date(2031, 1, 1)

    async def work(book: Ledger) -> None:
        for day in range(3):
            keys = Leaving({b"secret-1", b"secret-2"})
            await book.spend("cleo", "north", first + datetime.timedelta(day), keys, 5)

    write(hub.conninfo, work)
    held = hub.execute("SELECT day, digest FROM oar_internal.keys_seen WHERE principal = 'cleo'")
    assert {day.day for day, _ in held} == {2, 3}
    assert {len(digest) for _, digest in held} == {16}
    assert not any(b"secret" in bytes(digest) for _, digest in held)
    user = hub.user()
    with hub.as_user(user) as client, pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("SELECT * FROM oar_internal.keys_seen")
