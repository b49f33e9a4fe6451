"""Many clients at once, few places at the owners, and clients that give up."""

from __future__ import annotations

import asyncio
import gc
import time

import psycopg
import pytest
from oar_proxy.session import Session
from waits import blocked, until

JOIN = "SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p' ORDER BY 1, 2"
TURNED = "SELECT b.id, a.v FROM shop.b JOIN shop.a USING (k) WHERE a.v = 'x' ORDER BY 1, 2"


async def ask(dsn, statement, times):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        return [await (await connection.execute(statement)).fetchall() for _ in range(times)]


def test_statements_that_want_the_same_owners_do_not_wait_for_each_other_for_ever(line):
    """North has eight places and south four: each statement wants both, in either order."""

    async def all_at_once():
        statements = [JOIN, TURNED] * 15
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(line.dsn, s, 3)) for s in statements]
        return [task.result() for task in tasks]

    answers = asyncio.run(all_at_once())
    assert answers[0::2] == [[[(1, 100), (4, 100)]] * 3] * 15
    assert answers[1::2] == [[[(1, "x"), (2, "x")]] * 3] * 15


@pytest.mark.parametrize("how", ["cancel", "statement_timeout", "disconnect"])
def test_an_owner_is_left_alone_when_nobody_waits_any_more(line, owners, how):
    async def give_up():
        connection = await psycopg.AsyncConnection.connect(line.dsn, autocommit=True)
        if how == "statement_timeout":
            await connection.execute("SET statement_timeout = '3s'")
        asking = asyncio.create_task(connection.execute(JOIN))
        await until(lambda: blocked(owners.north) == 1)
        if how == "cancel":
            await connection.cancel_safe()
        if how == "disconnect":
            asking.cancel()
            await connection.close()
        else:
            with pytest.raises(psycopg.errors.QueryCanceled):
                await asking
            await connection.execute("RESET statement_timeout")
            await connection.execute("SELECT 1")
        await until(lambda: blocked(owners.north) == 0)
        await connection.close()

    with psycopg.connect(owners.north) as locker:
        locker.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        asyncio.run(give_up())
    with psycopg.connect(line.hub, autocommit=True) as hub:
        outcome = hub.execute(
            "SELECT a.sqlstate, s.sqlstate FROM oar.asks a JOIN oar.steps s USING (ask) "
            "WHERE s.owner = 'north' ORDER BY a.at DESC, s.step DESC LIMIT 1"
        ).fetchone()
    assert outcome == ("57014", "57014")


def test_an_owners_time_does_not_pass_while_another_one_is_waited_for(
    owners, new_database, running_proxy
):
    """The snapshot of an owner that is asked later may be opened early, unless it ends early."""
    short = f"{owners.ALLOW}limits: {{timeout: 2}}\n"
    policies = dict.fromkeys(owners.urls, owners.ALLOW) | {"west": short}
    statement = "SELECT a.id, c.u FROM shop.a JOIN shop.c USING (k) WHERE a.v = 'x'"

    async def wait_longer(dsn, locker):
        asking = asyncio.create_task(ask(dsn, statement, 1))
        await until(lambda: blocked(owners.north) == 1)
        await asyncio.sleep(2.5)
        locker.rollback()
        return await asking

    settings = owners.settings(new_database("hub"), policies)
    with running_proxy(settings) as (_, dsn), psycopg.connect(owners.north) as locker:
        locker.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        assert asyncio.run(wait_longer(dsn, locker)) == [[(1, "m")]]


def test_what_a_session_asked_does_not_keep_it(line):
    """Plans are remembered; a client that has left is not."""

    def sessions():
        gc.collect()
        return sum(isinstance(each, Session) for each in gc.get_objects())

    def left():
        for _ in range(200):
            if not sessions():
                return True
            time.sleep(0.05)
        return False

    assert left(), "of the tests before"
    with psycopg.connect(line.dsn, autocommit=True) as client:
        client.execute("SELECT a.id AS kept FROM shop.a JOIN shop.b USING (k)").fetchall()
        assert sessions() == 1
    assert left()
