"""Answers that come in chunks: one answer to the client, however they are asked for."""

from __future__ import annotations

import itertools
import threading
import time

import psycopg
import pytest
from oar_proxy.errors import LimitExceeded
from oar_proxy.federation import Copied
from oar_proxy.wire import messages
from psycopg import errors
from psycopg.pq import TransactionStatus
from waits import eventually

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
    federation.copied = COPIES[""]
    federation.passing = None
    return federation


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


def bound(portal, statement=STATEMENT):
    return (
        messages.encode_parse(b"", statement.encode()),
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


ORDINARY = "SELECT i AS id, 'name ' || i AS name FROM generate_series(0, 8) i"
"""The same rows, as the hub gives them by itself."""


def some_at_a_time(portal, statement, limits):
    executes = [messages.encode_execute(portal, limit) for limit in limits]
    return [*bound(portal, statement), *executes, messages.SYNC]


@pytest.mark.parametrize(
    "limits", [(4, 4, 4), (3, 3, 3, 3), (1, 1, 1, 1, 5), (9, 9), (10, 1), (2, 0, 0), (4, 4, 0)]
)
@pytest.mark.parametrize("portal", [b"", b"mine"])
def test_some_rows_at_a_time_are_those_of_one_portal(raw, connect_raw, directly, portal, limits):
    got = raw.ask(*some_at_a_time(portal, STATEMENT, limits))
    due = connect_raw(directly).ask(*some_at_a_time(portal, ORDINARY, limits))
    description = 2  # names the table where there is one
    assert got[description][0] == due[description][0] == "T"
    assert got[description + 1 :] == due[description + 1 :]


def begun(raw, portal=b"mine"):
    """Take two rows in a transaction that goes on."""
    raw.ask(messages.encode_query(b"BEGIN"))
    got = raw.ask(*some_at_a_time(portal, STATEMENT, (2,)))
    assert "".join(code for code, _ in got) == "12TDDsZ"


def two_more(raw, portal=b"mine"):
    got = raw.ask(messages.encode_execute(portal, 2), messages.SYNC)
    return "".join(code for code, _ in got)


def test_portals_take_turns(raw, federation):
    begun(raw)
    other = raw.ask(*some_at_a_time(b"other", STATEMENT, (5,)))
    assert "".join(code for code, _ in other) == "12TDDDDDsZ"
    assert raw.ask(messages.encode_query(b"SELECT 1"))[1] == ("D", b"\0\1\0\0\0\0011")
    assert two_more(raw) == two_more(raw, b"other") == "DDsZ"
    begins = [event for event in federation.events if event == ("begun", "passing")]
    assert len(begins) == 2


@pytest.mark.parametrize(
    "ending",
    [
        [messages.encode_query(b"COMMIT")],
        [messages.encode_query(b"ROLLBACK")],
        [messages.encode_close(b"P", b"mine"), messages.SYNC],
    ],
)
def test_an_owner_is_stopped_when_the_portal_ends(raw, federation, ending):
    begun(raw)
    assert federation.passing.closed == 0
    raw.ask(*ending)
    eventually(lambda: federation.passing.closed == 1)
    assert two_more(raw) == "EZ"


def test_portals_that_ended_leave_one_chunk_at_the_hub(raw):
    """However many there were in the transaction."""
    begun(raw)
    for _ in range(3):
        raw.ask(messages.encode_close(b"P", b"mine"), messages.SYNC)
        raw.ask(*some_at_a_time(b"mine", STATEMENT, (2,)))
    raw.ask(*some_at_a_time(b"other", STATEMENT, (2,)))
    held = raw.ask(messages.encode_query(b"SELECT count(*) FROM pg_cursors WHERE name ~ '^oar:'"))
    assert held[1] == ("D", b"\0\1\0\0\0\0012")
    assert two_more(raw) == two_more(raw, b"other") == "DDsZ"


def test_an_owner_is_stopped_when_the_client_leaves_a_portal(raw, federation, door):
    begun(raw)
    raw.close()
    eventually(lambda: federation.passing.closed == 1)
    eventually(lambda: not door.door._sessions)


def test_sql_takes_no_rows_from_a_portal_that_has_begun(raw):
    """It would get some of them only."""
    begun(raw)
    got = raw.ask(messages.encode_query(b"FETCH ALL FROM mine"))
    assert "".join(code for code, _ in got) == "EZ"
    assert messages.decode_fields(frame(got[0]))["C"] == b"0A000"


def frame(message):
    code, body = message
    return messages.HEADER.pack(ord(code), len(body) + 4) + body


def test_a_portal_that_failed_gives_nothing_more(raw, federation):
    """Not the rest, and not the answer anew: also after a rollback to a savepoint."""
    federation.chunks = [range(3), LimitExceeded("too much")]
    raw.ask(messages.encode_query(b"BEGIN"))
    raw.ask(*some_at_a_time(b"mine", STATEMENT, (2,)))
    raw.ask(messages.encode_query(b"SAVEPOINT s"))
    assert two_more(raw) == "DEZ"
    eventually(lambda: federation.passing.closed == 1)
    raw.ask(messages.encode_query(b"ROLLBACK TO s"))
    assert two_more(raw) == "EZ"


COPIES = {
    "": Copied(header=False, binary=False),
    "(FORMAT csv, HEADER)": Copied(header=True, binary=False),
    "(HEADER)": Copied(header=True, binary=False),
    "(FORMAT csv, FORCE_QUOTE *)": Copied(header=False, binary=False),
    "(FORMAT binary)": Copied(header=False, binary=True),
}


@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize("options", COPIES)
@pytest.mark.parametrize("sizes", [[3], [3, 1], [3, 1, 5], [3, 0, 5, 0], [0, 4], [0, 0]], ids=str)
def test_a_copy_in_chunks_is_one_copy(
    raw, federation, connect_raw, directly, options, sizes, extended
):
    ends = list(itertools.accumulate(sizes))
    federation.chunks = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    federation.copied = COPIES[options]
    ordinary = f"{ORDINARY} WHERE i < {sum(map(len, federation.chunks))}"

    def copy(query):
        statement = f"COPY ({query}) TO STDOUT {options}"
        if extended:
            return some_at_a_time(b"", statement, (2,))
        return [messages.encode_query(statement.encode())]

    assert raw.ask(*copy(STATEMENT)) == connect_raw(directly).ask(*copy(ordinary))
    assert federation.passing.taken == len(sizes)


def test_a_copy_that_fails_half_way_is_no_copy(client, federation):
    federation.chunks = [*CHUNKS[:2], LimitExceeded("too much")]
    with (
        pytest.raises(errors.ProgramLimitExceeded),
        client.cursor().copy(f"COPY ({STATEMENT}) TO STDOUT") as copy,
    ):
        list(copy)
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_what_the_hub_keeps_gets_it_whole(client, federation):
    with client.transaction():
        client.execute(f"DECLARE mine CURSOR FOR {STATEMENT}")
        assert client.execute("FETCH ALL FROM mine").fetchall() == ROWS
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
