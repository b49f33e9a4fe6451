"""A statement that is stopped, however and whatever it waits for: told once, nothing left behind."""

from __future__ import annotations

import asyncio

import modelserver
import psycopg
import pytest
from oar_proxy.settings import DrafterSettings
from waits import blocked, until

JOIN = "SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p' ORDER BY 1, 2"
ROWS = [(1, 100), (4, 100)]


class TestBySql:
    """pg_cancel_backend and pg_terminate_backend from another session of the same user."""

    async def stopped(self, line, owners, function, prepare=None, *, settled=1.2, bound=False):
        """Stop a join that waits for north; return what it failed with, and its connection."""
        connection = await psycopg.AsyncConnection.connect(line.dsn, autocommit=True)
        other = await psycopg.AsyncConnection.connect(line.dsn, autocommit=True)
        if prepare is not None:
            await connection.execute(prepare)
        pid = connection.info.backend_pid
        asking = asyncio.create_task(connection.execute(JOIN))
        await until(lambda: blocked(owners.north) == 1)
        await asyncio.sleep(settled)
        if bound:
            found = await other.execute(f"SELECT {function}(%s)", (pid,))
        else:
            found = await other.execute(f"SELECT {function}({pid})")
        assert await found.fetchone() == (True,)
        with pytest.raises(psycopg.Error) as caught:
            async with asyncio.timeout(30):
                await asking
        await until(lambda: blocked(owners.north) == 0)
        await other.close()
        return caught.value, connection

    @pytest.fixture
    def locked(self, owners):
        with psycopg.connect(owners.north) as locker:
            locker.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
            yield locker

    @pytest.mark.parametrize(
        ("setting", "settled"), [(None, 1.2), ("SET lock_timeout = '100ms'", 1.2), (None, 0.4)]
    )
    def test_cancelled(self, line, owners, locked, setting, settled):
        async def cancel():
            error, connection = await self.stopped(
                line, owners, "pg_cancel_backend", setting, settled=settled
            )
            assert isinstance(error, psycopg.errors.QueryCanceled)
            assert error.diag.message_primary == "canceling statement due to user request"
            assert error.diag.context is None  # of what the proxy had the session do
            locked.rollback()
            answer = await connection.execute(JOIN)
            assert await answer.fetchall() == ROWS
            await connection.close()

        asyncio.run(cancel())

    @pytest.mark.parametrize("bound", [False, True])
    def test_cancelled_at_once(self, line, owners, locked, bound):
        """What comes before the statement has taken long finds its session waiting all the same."""

        async def cancel():
            for _ in range(5):
                error, connection = await self.stopped(
                    line, owners, "pg_cancel_backend", settled=0, bound=bound
                )
                assert isinstance(error, psycopg.errors.QueryCanceled)
                await connection.close()

        asyncio.run(cancel())

    def test_cancelled_in_a_transaction(self, line, owners, locked):
        async def cancel():
            error, connection = await self.stopped(line, owners, "pg_cancel_backend", "BEGIN")
            assert isinstance(error, psycopg.errors.QueryCanceled)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                await connection.execute("SELECT 1")
            await connection.execute("ROLLBACK")
            locked.rollback()
            await connection.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
            answer = await connection.execute(JOIN)
            assert await answer.fetchall() == ROWS
            await connection.close()

        asyncio.run(cancel())

    def test_terminated(self, line, owners, locked):
        async def terminate():
            error, connection = await self.stopped(line, owners, "pg_terminate_backend")
            assert isinstance(error, psycopg.errors.AdminShutdown)
            assert connection.closed
            locked.rollback()

        asyncio.run(terminate())

    def test_what_takes_long_and_is_not_stopped_is_answered(self, line, owners, locked):
        """With the session's own timeouts, notices, and no lock left in the hub."""

        async def wait():
            connection = await psycopg.AsyncConnection.connect(line.dsn, autocommit=True)
            told = []
            connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
            await connection.execute("SET oar.progress = on; SET lock_timeout = '100ms'")
            await connection.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
            asking = asyncio.create_task(connection.execute(JOIN))
            await until(lambda: blocked(owners.north) == 1)
            await until(lambda: any("asking owner north" in message for message in told))
            await asyncio.sleep(0.5)
            locked.rollback()
            assert await (await asking).fetchall() == ROWS
            await connection.execute("COMMIT")
            await connection.close()

        asyncio.run(wait())
        with psycopg.connect(line.hub, autocommit=True) as hub:
            held = (
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE locktype = 'advisory' AND application_name = 'oar sentinel'"
            )
            assert hub.execute(held).fetchone() == (0,)


# litellm's own, of a field of its settings.
@pytest.mark.filterwarnings("ignore::UserWarning:pydantic")
@pytest.mark.parametrize("how", ["cancel", "pg_cancel_backend", "statement_timeout", "disconnect"])
def test_the_model_is_left_alone_when_nobody_waits_any_more(owners, new_hub, running_proxy, how):
    async def give_up(dsn, model):
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        if how == "statement_timeout":
            # Until the model is asked, also where its library is loaded for it on a busy machine.
            await connection.execute("SET statement_timeout = '5s'")
        asking = asyncio.create_task(connection.execute("SELECT * FROM oar_ask('how many?')"))
        await until(model.arrived.is_set)
        await asyncio.sleep(1)
        if how == "disconnect":
            asking.cancel()
            await connection.close()
        else:
            if how == "cancel":
                await connection.cancel_safe()
            if how == "pg_cancel_backend":
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
                    await other.execute(f"SELECT pg_cancel_backend({connection.info.backend_pid})")
            with pytest.raises(psycopg.errors.QueryCanceled):
                async with asyncio.timeout(30):
                    await asking
        await until(model.left.is_set)
        if how != "disconnect":
            answer = await connection.execute("SELECT 1")
            assert await answer.fetchall() == [(1,)]
            await connection.close()

    with modelserver.serving(lambda _: modelserver.Reply({}, hold=True)) as model:
        drafter = DrafterSettings.model_validate(
            {"kind": "litellm", "model": "openai/x", "api_base": model.url, "api_key": "x"}
        )
        policies = dict.fromkeys(owners.urls, owners.ALLOW)
        settings = owners.settings(new_hub(), policies).model_copy(update={"drafter": drafter})
        with running_proxy(settings) as (_, dsn):
            asyncio.run(give_up(dsn, model))
