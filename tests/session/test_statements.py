"""Statements of ours: their errors, notices and cancellation, and what they leave behind."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import asyncpg
import psycopg
import pytest
import structlog
from psycopg import errors
from psycopg.pq import TransactionStatus
from waits import eventually, once

ROWS = [(number, f"name {number}") for number in range(1, 6)]
ALL = "SELECT * FROM pub.orders ORDER BY id"


class ExtendedCursor(psycopg.Cursor):
    """psycopg uses the simple protocol where it can; this one prepares every statement."""

    def execute(self, query, params=None, **options):
        return super().execute(query, params, prepare=True, **options)


BOTH = pytest.mark.parametrize("cursor_class", [ExtendedCursor, psycopg.ClientCursor])
"""The extended and the simple protocol."""


@BOTH
@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("denied", errors.InsufficientPrivilege, "denied"),
        ("broken", errors.InternalError_, "internal error: the statement was not executed"),
        ("asks", errors.DivisionByZero, "division by zero"),
        ("swallows", errors.DivisionByZero, "division by zero"),
        ("hidden", errors.InsufficientPrivilege, "permission denied for view hidden"),
    ],
)
def test_an_error_reaches_the_client_and_the_transaction_fails(
    client, cursor_class, table, error, message
):
    cursor = cursor_class(client)
    statement = f"SELECT * FROM pub.{table}"
    with pytest.raises(error, match=message) as caught:
        cursor.execute(statement)
    assert "secret" not in str(caught.value)
    assert client.info.transaction_status == TransactionStatus.IDLE
    assert cursor.execute(ALL).fetchall() == ROWS
    cursor.execute("BEGIN")
    cursor.execute("SELECT 1")
    with pytest.raises(error, match=message):
        cursor.execute(statement)
    assert client.info.transaction_status == TransactionStatus.INERROR
    for another in (statement, "SELECT 1"):
        with pytest.raises(errors.InFailedSqlTransaction):
            cursor.execute(another)
    cursor.execute("ROLLBACK")
    assert client.info.transaction_status == TransactionStatus.IDLE


@BOTH
def test_an_error_tells_all_it_knows(client, cursor_class):
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        cursor_class(client).execute("SELECT * FROM pub.denied")
    diagnostic = caught.value.diag
    assert diagnostic.severity_nonlocalized == "ERROR"
    assert diagnostic.message_detail == "the owner's rule"
    assert diagnostic.message_hint == "ask them"
    assert diagnostic.statement_position == "15"


def test_positions_are_those_in_the_whole_query_string(client):
    cursor = psycopg.ClientCursor(client)
    for before, wrong, after in (
        ("SELECT * FROM ", "pub.denied", ""),
        ("SELECT ", "wrong", " FROM pg_class"),
        ("SELECT ", "wrong", " FROM pub.orders"),
        ("CREATE TEMP TABLE t (a ", "wrong", ")"),
    ):
        text = f"SELECT 'é'; {ALL}; {before}{wrong}{after}"
        with pytest.raises(psycopg.Error) as caught:
            cursor.execute(text)
        assert int(caught.value.diag.statement_position) == text.index(wrong) + 1


def test_a_shape_that_changed_is_refused(client):
    with pytest.raises(errors.FeatureNotSupported, match="must not change result type"):
        client.execute("SELECT * FROM pub.reshaped", prepare=True)
    assert client.execute("SELECT 1").fetchone() == (1,)


@BOTH
def test_the_guard_raises_when_nobody_stands_in_for_it(client, cursor_class):
    with pytest.raises(errors.FeatureNotSupported, match="guard executed"):
        cursor_class(client).execute("SELECT * FROM pub./**/orders WHERE id = 1")


@BOTH
def test_answers_come_in_the_encoding_that_the_client_has_set(client, cursor_class):
    cursor = cursor_class(client)
    for encoding in ("LATIN1", "WIN1251", "UTF8"):
        cursor.execute(f"SET client_encoding TO '{encoding}'")
        assert cursor.execute(ALL).fetchall() == ROWS


def test_encoding_changed_in_the_same_query_string(client):
    """The hub reports it when all of the string is done."""
    cursor = psycopg.ClientCursor(client).execute(f"SET client_encoding TO 'LATIN1'; {ALL}")
    assert cursor.nextset()
    assert cursor.fetchall() == ROWS


def test_notices_come_before_the_rows_and_only_when_asked_for(client, federation):
    notices = []
    client.add_notice_handler(
        lambda notice: notices.append(
            (notice.severity, notice.message_primary, notice.message_detail)
        )
    )
    client.execute(ALL)
    assert notices == []
    federation.notices = True
    for cursor in (ExtendedCursor(client), psycopg.ClientCursor(client)):
        assert cursor.execute(ALL).fetchall() == ROWS
    assert notices == [("NOTICE", "asking 1 owner", "of 1")] * 2


def test_parameters_reach_the_federation_with_the_types_the_hub_found(client, federation):
    rows = client.execute(
        "SELECT id FROM pub.orders WHERE id > %b AND name <> %s", (2, "name 4")
    ).fetchall()
    assert rows == [(3,), (5,)]
    (parameters,) = federation.parameters
    assert [(p.format, p.cell) for p in parameters] == [(1, b"\0\2"), (0, b"name 4")]
    assert [p.oid for p in parameters] == [21, 25]


def test_prepared_once_and_executed_often(client, federation):
    for least in range(6):
        rows = client.execute(
            "SELECT * FROM pub.orders WHERE id > %s ORDER BY id", (least,), prepare=True
        ).fetchall()
        assert rows == ROWS[least:]
    assert len(federation.events) == 12


def test_remembered_statements_are_bounded(client, door):
    for number in range(300):
        client.execute(f"SELECT {number} FROM pub.orders LIMIT 1", prepare=True)
        client.execute("DEALLOCATE ALL")
    (session,) = door.door._sessions
    assert len(session._guards._statements) <= 257


def test_pipeline_mode(client):
    with client.pipeline() as pipeline:
        first = client.execute("SELECT id FROM pub.orders WHERE id > %s", (3,))
        second = client.execute("SELECT 2")
        third = client.execute(ALL)
        pipeline.sync()
        fourth = client.execute("SELECT count(*) FROM pub.orders")
    assert first.fetchall() == [(4,), (5,)]
    assert second.fetchone() == (2,)
    assert third.fetchall() == ROWS
    assert fourth.fetchone() == (5,)


def test_pipeline_mode_with_an_error(client):
    def pipeline():
        with client.pipeline():
            for statement in ("SELECT 1", "SELECT * FROM pub.denied", ALL):
                client.execute(statement)

    with pytest.raises(errors.InsufficientPrivilege):
        pipeline()
    assert client.execute(ALL).fetchall() == ROWS


def test_server_side_cursor(client):
    with client.transaction(), client.cursor("named") as cursor:
        cursor.execute(ALL)
        cursor.itersize = 2
        assert list(cursor) == ROWS


def test_binary_results(client):
    assert client.cursor(binary=True).execute(ALL).fetchall() == ROWS


def test_copy_out_and_in(client):
    client.execute("CREATE TEMP TABLE mine (id int, name text)")
    rows = [(number, "é" * 50) for number in range(20_000)]
    with client.cursor().copy("COPY mine FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    with client.cursor().copy("COPY mine TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        assert list(copy.rows()) == rows
    with client.cursor().copy(f"COPY ({ALL}) TO STDOUT") as copy:
        assert [tuple(row) for row in copy.rows()] == [(str(i), n) for i, n in ROWS]


def test_a_failing_copy_leaves_the_connection_usable(client):
    client.execute("CREATE TEMP TABLE numbers (id int)")

    def copy_in(rows):
        with client.cursor().copy("COPY numbers FROM STDIN") as copy:
            for row in rows:
                copy.write(row)

    with pytest.raises(errors.BadCopyFileFormat):
        copy_in(["1\t2\n"] * 5000)
    with pytest.raises(ZeroDivisionError):
        copy_in(f"{1 / (2 - number)}\n" for number in range(5))
    assert client.execute(ALL).fetchall() == ROWS


def test_listen_and_notify(client, where):
    client.execute("LISTEN channel")
    with psycopg.connect(**where, autocommit=True) as other:
        other.execute("NOTIFY channel, 'payload'")
    (notified,) = client.notifies(timeout=20, stop_after=1)
    assert notified.payload == "payload"


@BOTH
def test_a_large_answer_and_a_large_parameter(client, cursor_class):
    cursor = cursor_class(client)
    assert cursor.execute("SELECT count(*), sum(id) FROM pub.wide").fetchone() == (
        1_500_000,
        4_500_000,
    )
    big = "x" * 3_000_000
    assert cursor.execute("SELECT length(%s) FROM pub.orders LIMIT 1", (big,)).fetchone() == (
        3_000_000,
    )


def test_cancel_in_the_middle_of_a_large_question(client, door, federation):
    def cancel():
        (session,) = door.door._sessions
        assert session._federated.activity.cancel()

    federation.interrupt = cancel
    with pytest.raises(errors.QueryCanceled):
        client.execute("SELECT * FROM pub.ample")
    assert client.execute("SELECT name FROM pub.orders WHERE id = 1").fetchone() == ("name 1",)


@BOTH
@pytest.mark.parametrize("in_transaction", [False, True])
def test_cancel_during_a_federated_statement(client, federation, cursor_class, in_transaction):
    cursor = cursor_class(client)
    if in_transaction:
        cursor.execute("BEGIN")

    def cancel():
        eventually(lambda: ("begun", "slow") in federation.events)
        client.cancel_safe()
        client.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(errors.QueryCanceled, match="due to user request"):
        cursor.execute("SELECT * FROM pub.slow")
    canceller.join()
    assert ("cancelled", "slow") in federation.events
    expected = TransactionStatus.INERROR if in_transaction else TransactionStatus.IDLE
    assert client.info.transaction_status == expected
    cursor.execute("ROLLBACK")
    assert cursor.execute(ALL).fetchall() == ROWS


@BOTH
def test_cancel_what_the_hub_executes(client, executes, cursor_class):
    under_way = partial(executes, client.info.backend_pid)
    for statement in ("SELECT pg_sleep(60)", "SELECT count(pg_sleep(id * 10)) FROM pub.orders"):
        with (
            once(under_way, client.cancel_safe),
            pytest.raises(errors.QueryCanceled, match="due to user request"),
        ):
            cursor_class(client).execute(statement)
        assert client.execute("SELECT 1").fetchone() == (1,)


@BOTH
def test_the_statement_after_waits_until_the_one_before_is_settled(
    client, federation, door, cursor_class
):
    federation.settles = True
    cursor = cursor_class(client)
    assert cursor.execute(ALL).fetchall() == ROWS  # answered although it is not settled
    assert federation.events[-1] == ("settling", "orders")
    after = threading.Thread(target=lambda: cursor.execute("SELECT 1"))
    after.start()
    after.join(0.3)
    assert after.is_alive()
    door.call(federation.release.set)
    after.join(20)
    assert cursor.fetchone() == (1,)
    assert federation.events[-1] == ("settled", "orders")


@BOTH
def test_a_statement_that_fails_at_the_hub_is_settled(client, federation, door, cursor_class):
    federation.settles = True
    door.call(federation.release.set)
    with pytest.raises(errors.DivisionByZero):
        cursor_class(client).execute("SELECT 1 / (id - id) FROM pub.orders")
    eventually(lambda: ("settled", "orders") in federation.events)
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_leaves_does_not_stop_the_settling(where, federation, door):
    federation.settles = True
    with psycopg.connect(**where, autocommit=True) as client:
        assert client.execute(ALL).fetchall() == ROWS
    door.call(federation.release.set)
    eventually(lambda: federation.events[-1] == ("settled", "orders"))


def test_a_cancel_that_comes_late_hits_nothing(client):
    for _ in range(20):
        client.execute("SELECT 1")
        client.cancel_safe()
        client.execute("SELECT 1")
        assert client.execute(ALL).fetchall() == ROWS


def test_a_cancel_with_a_wrong_key_does_nothing(client, raw, federation, door):
    other = threading.Thread(target=lambda: client.execute("SELECT * FROM pub.slow"))
    other.start()
    eventually(lambda: ("begun", "slow") in federation.events)
    door.run(_cancel(door.port, client.info.backend_pid, b"nope"))
    door.run(_cancel(door.port, 1, b"nope"))
    door.call(federation.release.set)
    other.join()
    assert ("cancelled", "slow") not in federation.events


async def _cancel(port, pid, secret):
    from oar_proxy.wire import startup

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(startup.encode_cancel(pid, secret))
    assert await reader.read() == b""
    writer.close()


def test_cancel_and_terminate_by_sql(client, executes, where):
    pid = client.info.backend_pid
    assert client.execute("SELECT pg_backend_pid()").fetchone() == (pid,)
    with psycopg.connect(**where, autocommit=True) as other:
        cancel = partial(other.execute, "SELECT pg_cancel_backend(%s)", (pid,))
        with once(partial(executes, pid), cancel), pytest.raises(errors.QueryCanceled):
            client.execute("SELECT pg_sleep(60)")
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        # 57P01, unless the statement meets the closed socket first: as at PostgreSQL itself.
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
        assert client.closed


def test_hub_lost_during_a_federated_statement(client, where, federation, door):
    def terminate():
        eventually(lambda: ("begun", "slow") in federation.events)
        with psycopg.connect(**where, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (client.info.backend_pid,))

    killer = threading.Thread(target=terminate)
    killer.start()
    with pytest.raises(errors.AdminShutdown):
        client.execute("SELECT * FROM pub.slow")
    killer.join()
    eventually(lambda: ("cancelled", "slow") in federation.events)


def test_a_client_that_leaves_cancels_its_statement(where, federation, raw, door):
    from oar_proxy.wire import messages

    raw.send(messages.encode_query(b"SELECT * FROM pub.slow"))
    eventually(lambda: ("begun", "slow") in federation.events)
    raw.close()
    eventually(lambda: ("cancelled", "slow") in federation.events)
    eventually(lambda: not door.door._sessions)


def test_a_client_that_leaves_stops_the_hub(raw, executes, client):
    from oar_proxy.wire import messages

    raw.send(messages.encode_query(b"SELECT pg_sleep(60)"))
    eventually(lambda: executes(raw.key))
    raw.close()
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    eventually(lambda: client.execute(gone, (raw.key,)).fetchone() == (0,))


@pytest.mark.parametrize("times", [1, 2000])
def test_what_is_sent_behind_a_slow_statement_waits_its_turn(raw, federation, door, times):
    from oar_proxy.wire import messages

    raw.send(messages.encode_query(b"SELECT * FROM pub.slow"))
    eventually(lambda: ("begun", "slow") in federation.events)
    later = messages.encode_query(b"SELECT '" + b"x" * 2000 + b"'") * times
    sender = threading.Thread(target=raw.send, args=(later,))
    sender.start()
    (session,) = door.door._sessions
    time.sleep(0.2)
    assert len(session.requests.pending) < 2 * 1024 * 1024
    door.call(federation.release.set)
    got = raw.until("Z", times + 1)
    sender.join()
    assert [code for code, _ in got].count("D") == 5 + times


def test_one_line_is_logged_without_the_text(client, federation):
    with structlog.testing.capture_logs() as lines:
        client.execute("SELECT * FROM pub.orders")
        with pytest.raises(errors.InsufficientPrivilege):
            psycopg.ClientCursor(client).execute("SELECT * FROM pub.denied")
        with pytest.raises(errors.InternalError_):
            client.execute("SELECT * FROM pub.broken")
        client.execute("SELECT 1")
    statements = [line for line in lines if line["event"] == "statement"]
    assert [line["sqlstate"] for line in statements] == ["00000", "42501", "XX000"]
    assert all(line["seconds"] >= 0 for line in statements)
    assert "SELECT" not in str(lines)
    assert "secret" not in str(lines)


class TestAsyncpg:
    @pytest.fixture
    def run(self, where, federation):
        settings = {**where, "database": where["dbname"]}
        del settings["dbname"]

        def run(work):
            async def connected():
                connection = await asyncpg.connect(**settings)
                try:
                    return await work(connection)
                finally:
                    await connection.close()

            return asyncio.run(connected())

        return run

    def test_fetch_with_parameters(self, run):
        async def work(connection):
            return [
                tuple(row)
                for _ in range(3)
                for row in await connection.fetch("SELECT * FROM pub.orders WHERE id = $1", 2)
            ]

        assert run(work) == [ROWS[1]] * 3

    def test_simple_query(self, run):
        async def work(connection):
            return await connection.execute(f"SELECT 1; {ALL}")

        assert run(work) == "SELECT 5"

    def test_cursor(self, run):
        async def work(connection):
            async with connection.transaction():
                return [tuple(row) async for row in connection.cursor(ALL, prefetch=2)]

        assert run(work) == ROWS

    def test_prepare_shows_the_shape_without_executing(self, run, federation):
        async def work(connection):
            statement = await connection.prepare("SELECT * FROM pub.orders WHERE id = $1")
            shape = [a.name for a in statement.get_attributes()]
            return shape, [p.name for p in statement.get_parameters()]

        assert run(work) == (["id", "name"], ["int4"])
        assert federation.events == []

    def test_preparing_begins_no_transaction(self, run):
        """It ends without a Sync; whatever is asked of the hub meanwhile leaves nothing open."""

        async def work(connection):
            statement = await connection.prepare(ALL)
            await connection.execute("SELECT 1")
            assert not connection.is_in_transaction()
            async with connection.transaction():
                assert connection.is_in_transaction()
                return len(await statement.fetch())

        assert run(work) == 5

    def test_errors_in_a_transaction(self, run):
        async def work(connection):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.fetch("SELECT * FROM pub.denied")
            return len(await connection.fetch(ALL))

        assert run(work) == 5

    def test_timeout_cancels(self, run, federation):
        async def work(connection):
            with pytest.raises(TimeoutError):
                await connection.fetch("SELECT * FROM pub.slow", timeout=0.3)
            return len(await connection.fetch(ALL))

        assert run(work) == 5
        assert ("cancelled", "slow") in federation.events

    def test_pool_reset(self, run):
        async def work(connection):
            await connection.fetch(ALL)
            await connection.reset()
            return len(await connection.fetch(ALL))

        assert run(work) == 5


def test_another_database_of_the_hub_s_server_is_not_looked_at(where, new_database):
    other = new_database("other")
    with psycopg.connect(other, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA pub")
        admin.execute("CREATE TABLE pub.orders AS SELECT 7 AS id")
        admin.execute(f"GRANT USAGE ON SCHEMA pub TO {where['user']}")
        admin.execute(f"GRANT SELECT ON pub.orders TO {where['user']}")
        database = admin.info.dbname
    with psycopg.connect(**where | {"dbname": database}, autocommit=True) as client:
        assert client.execute("SELECT * FROM pub.orders").fetchall() == [(7,)]
    with psycopg.connect(other, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {where['user']}")
