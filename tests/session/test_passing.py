"""Answers that come in chunks: one answer to the client, however they are asked for."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from oar_proxy.errors import LimitExceeded
from oar_proxy.wire import messages
from psycopg import errors
from psycopg.pq import TransactionStatus

STATEMENT = "SELECT id, name FROM pub.passing"
CHUNKS = [range(3), range(3, 4), range(4, 9)]
ROWS = [(number, f"name {number}") for number in range(9)]


class ExtendedCursor(psycopg.Cursor):
    """Prepares every statement."""

    def execute(self, query, params=None, **options):
        return super().execute(query, params, prepare=True, **options)


BOTH = pytest.mark.parametrize("cursor_class", [ExtendedCursor, psycopg.ClientCursor])
"""The extended and the simple protocol."""


@pytest.fixture(autouse=True)
def chunks(federation):
    federation.chunks = CHUNKS
    federation.passing = None
    return federation


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_chunks_are_one_answer(client, federation, cursor_class, count):
    federation.chunks = CHUNKS[:count]
    due = ROWS[: sum(map(len, federation.chunks))]
    cursor = cursor_class(client)
    for _ in range(2):
        cursor.execute(STATEMENT)
        assert cursor.fetchall() == due
        assert cursor.statusmessage == f"SELECT {len(due)}"
        assert federation.passing.taken == count
        assert federation.passing.closed == 1
    left = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'oar:%'"
    assert cursor_class(client).execute(left).fetchone() == (0,)


def test_parameters_and_binary_results(client):
    cursor = client.cursor(binary=True)
    cursor.execute(STATEMENT + " WHERE id <> %s", (4,))
    assert cursor.fetchall() == [row for row in ROWS if row[0] != 4]
    assert cursor.statusmessage == "SELECT 8"


@BOTH
def test_a_transaction_goes_on_after_it(client, cursor_class):
    cursor = cursor_class(client)
    cursor.execute("BEGIN")
    assert cursor.execute(STATEMENT).fetchall() == ROWS
    assert client.info.transaction_status == TransactionStatus.INTRANS
    assert cursor.execute(STATEMENT).fetchall() == ROWS
    cursor.execute("COMMIT")


def test_statements_around_it_in_one_query_string(client):
    cursor = psycopg.ClientCursor(client)
    cursor.execute(f"SELECT 1; {STATEMENT}; {STATEMENT}; SELECT 2")
    answers = [cursor.fetchall()]
    while cursor.nextset():
        answers.append(cursor.fetchall())
    assert answers == [[(1,)], ROWS, ROWS, [(2,)]]


def test_statements_around_it_in_one_pipeline(client):
    with client.pipeline():
        cursors = [client.execute(each) for each in ("SELECT 1", STATEMENT, STATEMENT, "SELECT 2")]
        answers = [cursor.fetchall() for cursor in cursors]
    assert answers == [[(1,)], ROWS, ROWS, [(2,)]]


def bound(portal):
    return (
        messages.encode_parse(b"", STATEMENT.encode()),
        b"".join(messages.encode_bind(portal, b"")),
        messages.encode_describe(b"P", portal),
    )


@pytest.mark.parametrize("portal", [b"", b"mine"])
def test_messages_are_those_of_one_portal(raw, portal):
    """Executed again, a portal that has given all its rows gives none."""
    execute = messages.encode_execute(portal)
    got = raw.ask(*bound(portal), execute, execute, messages.SYNC)
    assert "".join(code for code, _ in got) == "12T" + "D" * 9 + "CCZ"
    assert [body for code, body in got if code == "C"] == [b"SELECT 9\0", b"SELECT 0\0"]
    got = raw.ask(messages.encode_query(STATEMENT.encode()))
    assert "".join(code for code, _ in got) == "T" + "D" * 9 + "CZ"


def test_an_answer_is_over_before_the_client_syncs(raw):
    execute = messages.encode_execute(b"")
    got = raw.ask(*bound(b""), execute, messages.FLUSH, until="C")
    assert "".join(code for code, _ in got) == "12T" + "D" * 9 + "C"
    assert raw.ask(messages.SYNC) == [("Z", b"I")]


def test_a_client_that_takes_some_rows_a_time_gets_them_at_its_own_pace(raw, federation):
    some = [messages.encode_execute(b"", rows) for rows in (4, 4, 4)]
    got = raw.ask(*bound(b""), *some, messages.SYNC)
    assert "".join(code for code, _ in got) == "12TDDDDsDDDDsDCZ"
    assert federation.passing is None


def test_what_carries_it_elsewhere_gets_it_whole(client, federation):
    with client.cursor().copy(f"COPY ({STATEMENT}) TO STDOUT") as copy:
        assert len(b"".join(copy).splitlines()) == 9
    assert federation.passing is None


@BOTH
def test_an_error_between_chunks_ends_it_without_completion(client, federation, cursor_class):
    federation.chunks = [*CHUNKS[:2], LimitExceeded("too much", hint="less")]
    cursor = cursor_class(client)
    with pytest.raises(errors.ProgramLimitExceeded, match="too much"):
        cursor.execute(STATEMENT)
    assert federation.passing.closed == 1
    federation.chunks = CHUNKS
    assert cursor.execute(STATEMENT).fetchall() == ROWS
    cursor.execute("BEGIN")
    federation.chunks = [*CHUNKS[:2], LimitExceeded("too much")]
    with pytest.raises(errors.ProgramLimitExceeded):
        cursor.execute(STATEMENT)
    assert client.info.transaction_status == TransactionStatus.INERROR
    cursor.execute("ROLLBACK")


@BOTH
def test_an_error_of_the_hubs_in_a_chunk_ends_it(client, federation, cursor_class):
    cursor = cursor_class(client)
    with pytest.raises(errors.DivisionByZero):
        cursor.execute("SELECT 1 / (id - 5) FROM pub.passing")
    assert federation.passing.taken == 3
    assert federation.passing.closed == 1
    assert cursor.execute(STATEMENT).fetchall() == ROWS


@pytest.mark.parametrize("extended", [True, False])
def test_rows_come_while_the_owner_still_sends(raw, federation, door, extended):
    federation.chunks = [range(3), None, range(3, 9)]
    if extended:
        raw.send(*bound(b""), messages.encode_execute(b""), messages.SYNC)
    else:
        raw.send(messages.encode_query(STATEMENT.encode()))
    assert [code for code, _ in raw.until("D", 3)].count("D") == 3
    door.call(federation.release.set)
    assert [code for code, _ in raw.until("Z")] == ["D"] * 6 + ["C", "Z"]


@BOTH
def test_cancelling_between_chunks(client, federation, cursor_class):
    federation.chunks = [range(3), None, range(3, 9)]

    def cancel():
        eventually(lambda: federation.passing is not None)
        client.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    cursor = cursor_class(client)
    with pytest.raises(errors.QueryCanceled, match="user request"):
        cursor.execute(STATEMENT)
    canceller.join()
    assert federation.passing.closed == 1
    federation.chunks = CHUNKS
    assert cursor.execute(STATEMENT).fetchall() == ROWS


def test_a_client_that_leaves_between_chunks(raw, federation, door):
    federation.chunks = [range(3), None, range(3, 9)]
    raw.send(messages.encode_query(STATEMENT.encode()))
    raw.until("D", 3)
    raw.close()
    eventually(lambda: federation.passing.closed == 1)
    eventually(lambda: not door.door._sessions)


def test_a_hub_that_is_lost_between_chunks(raw, client, federation):
    federation.chunks = [range(3), None, range(3, 9)]
    raw.send(messages.encode_query(STATEMENT.encode()))
    raw.until("D", 3)
    client.execute("SELECT pg_terminate_backend(%s)", (raw.key,))
    assert raw.until("E")[-1][0] == "E"
    eventually(lambda: federation.passing.closed == 1)


def test_nothing_more_is_taken_while_the_client_does_not_read(raw, federation):
    """Sockets on the way hold some megabytes; a chunk here is one."""
    federation.chunks = [range(1000 * n, 1000 * n + 1000) for n in range(100)]
    statement = "SELECT id, repeat('x', 1000) FROM pub.passing"
    raw.send(messages.encode_query(statement.encode()))
    eventually(lambda: federation.passing is not None and federation.passing.taken > 1)
    taken = -1
    while taken != federation.passing.taken:
        taken = federation.passing.taken
        time.sleep(0.3)
    assert taken < 40
    got = raw.until("Z")
    assert [code for code, _ in got].count("D") == 100_000
    assert got[-2] == ("C", b"SELECT 100000\0")
