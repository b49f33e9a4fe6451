"""What a client sends, without a socket: what the hub gets of it, and what is the proxy's."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_proxy.errors import ProtocolViolation
from oar_proxy.wire import messages
from oar_proxy.wire.conversation import Conversation, Expected, Kind
from oar_proxy.wire.requests import (
    AUTHENTICATION_MESSAGE,
    READ_AHEAD,
    OwnExecute,
    OwnParse,
    OwnQuery,
    Requests,
)
from oar_proxy.wire.scram import Authentication

LARGEST = 100_000
SYNC, FLUSH, TERMINATE = messages.SYNC, messages.FLUSH, messages.TERMINATE


def frame(code, body=b""):
    return code + struct.pack("!I", len(body) + 4) + body


class Names:
    """Statements with ``ours`` in them, statement ``mine`` and portal ``mine`` may be ours."""

    def __init__(self):
        self.may_be_statement = {b"mine"}
        self.may_be_portal = {b"mine"}
        self.noted = []

    def suspect(self, text):
        return b"ours" in text

    def other_parse(self, name):
        self.noted.append(("parse", name))
        return Expected(Kind.PARSE)

    def bind(self, raw, portal, name):
        self.noted.append(("bind", portal, name))
        return Expected(Kind.BIND)

    def close(self, kind, name):
        self.noted.append(("close", kind, name))
        return Expected(Kind.CLOSE)


class Client:
    """A client that is let in. ``taken`` is what was handed over, ``awaited`` what is expected."""

    def __init__(self, authenticated=True, end_point=None):
        self.conversation = Conversation(
            on_authentication=lambda message: message,
            on_key=lambda message: None,
            on_copy_in=lambda: None,
            on_ready=lambda: None,
        )
        self.names = Names()
        self.authentication = Authentication(end_point)
        self.taken = []
        self.unsettled = set()
        self.requests = Requests(
            self.conversation,
            self.names,
            self.authentication,
            max_message=LARGEST,
            unsettled=self.unsettled,
            on_own=self.taken.append,
        )
        if authenticated:
            self.requests.authenticated()

    def send(self, *chunks):
        return b"".join(part for chunk in chunks for part in self.requests.receive(chunk))

    def resume(self):
        self.requests.running = False
        return b"".join(self.requests.resume())

    @property
    def awaited(self):
        return [expected.kind for expected in self.conversation._queue]


@pytest.fixture
def client():
    return Client()


def sized(code, length):
    return bytes([code]) + struct.pack("!I", length)


SMALL, LARGE = b"CDEHSXcf", b"QPBFd"


@pytest.mark.parametrize("authenticated", [False, True])
@pytest.mark.parametrize("code", range(256))
def test_what_a_client_may_send_is_a_table(code, authenticated):
    """Its type and its length: whatever is not in the table is the error, and ends it."""
    most = 0
    if not authenticated:
        most = AUTHENTICATION_MESSAGE if code == ord("p") else 0
    elif code in SMALL + LARGE:
        most = LARGEST if code in LARGE else 10_000
    for length in (0, 3, 4, 5, most, most + 1, 2**31, 2**32 - 1):
        client = Client(authenticated)
        client.send(sized(code, length))
        refused = client.requests.violation is not None
        assert refused is not (4 <= length <= most), (code, length)


def test_what_came_before_a_message_that_cannot_be_still_goes_to_the_hub(client):
    for chunked in (False, True):
        client = Client()
        good, bad = messages.encode_query(b"SELECT 1"), sized(ord("S"), 3)
        sent = client.send(good, bad, good) if chunked else client.send(good + bad + good)
        assert sent == good
        assert isinstance(client.requests.violation, ProtocolViolation)
        assert client.awaited == [Kind.QUERY]


REQUESTS = {
    "query": (messages.encode_query(b"SELECT 1"), [Kind.QUERY]),
    "query without an end": (frame(b"Q"), [Kind.QUERY]),
    "parse": (messages.encode_parse(b"", b"SELECT 1"), [Kind.PARSE]),
    "malformed parse": (frame(b"P", b"ours"), [Kind.PARSE]),
    "bind": (b"".join(messages.encode_bind(b"", b"")), [Kind.BIND]),
    "malformed bind": (frame(b"B"), [Kind.BIND]),
    "execute": (messages.encode_execute(b""), [Kind.EXECUTE]),
    "malformed execute": (frame(b"E", b"mine"), [Kind.EXECUTE]),
    "describe a statement": (messages.encode_describe(b"S", b""), [Kind.DESCRIBE_STATEMENT]),
    "describe a portal": (messages.encode_describe(b"P", b""), [Kind.DESCRIBE_PORTAL]),
    "describe nothing": (frame(b"D"), [Kind.DESCRIBE_PORTAL]),
    "close": (messages.encode_close(b"S", b"x"), [Kind.CLOSE]),
    "close nothing": (frame(b"C"), [Kind.CLOSE]),
    "function call": (frame(b"F", bytes(10)), [Kind.FUNCTION]),
    "sync": (SYNC, [Kind.SYNC]),
    "sync with a body": (frame(b"S", b"x"), [Kind.SYNC]),
    "flush": (FLUSH, []),
    "flush with a body": (frame(b"H", b"x"), [Kind.MALFORMED]),
    "rows": (frame(b"d", b"x" * 3000), []),
    "end of rows": (frame(b"c"), []),
    "rows refused": (frame(b"f", b"no\0"), []),
    "terminate": (TERMINATE, []),
}


@pytest.mark.parametrize("watching", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_what_passes_and_what_the_hub_owes_for_it(name, watching):
    raw, kinds = REQUESTS[name]
    whole = Client()
    if not watching:
        whole.names.may_be_statement, whole.names.may_be_portal = set(), set()
    assert whole.send(raw) == raw
    assert whole.awaited == kinds
    for at in range(1, len(raw)):
        cut = Client()
        assert cut.send(raw[:at], raw[at:]) == raw
        assert cut.awaited == kinds
        assert not cut.requests.pending
    one_by_one = Client()
    assert one_by_one.send(*(raw[at : at + 1] for at in range(len(raw)))) == raw
    assert one_by_one.awaited == kinds


STATES = ("idle", "watching", "discarding", "copying")


def client_that_is(state):
    client = Client()
    if state != "watching":
        client.names.may_be_statement, client.names.may_be_portal = set(), set()
    if state == "discarding":
        client.send(messages.encode_parse(b"", b"SELEC"))
        client.conversation.receive(messages.encode_fields(b"E", {"S": b"ERROR", "C": b"42601"}))
    if state == "copying":
        client.conversation.sent(Expected(Kind.EXECUTE))
        client.conversation.receive(frame(b"G", b"\0\0\0"))
    return client


@pytest.mark.parametrize("state", STATES)
@given(sent=st.lists(st.sampled_from(sorted(REQUESTS)), max_size=6), ended=st.booleans())
def test_together_messages_are_what_they_are_one_by_one(state, sent, ended):
    """Also what most drivers end a statement with."""
    if ended:
        sent += ["describe a portal", "execute", "sync"]
    raw = [REQUESTS[name][0] for name in sent]
    together, apart = client_that_is(state), client_that_is(state)
    assert together.send(b"".join(raw)) == apart.send(*raw)
    assert together.awaited == apart.awaited
    for note in ("open_pipeline", "implicit_block", "skipping", "copying"):
        assert getattr(together.conversation, note) == getattr(apart.conversation, note)


QUERY_OF_OURS = messages.encode_query(b"SELECT ours")
PARSE_OF_OURS = messages.encode_parse(b"s", b"SELECT ours")

TAKEN = {
    "query": (QUERY_OF_OURS, OwnQuery(QUERY_OF_OURS, b"SELECT ours")),
    "parse": (
        PARSE_OF_OURS,
        OwnParse(PARSE_OF_OURS, messages.decode_parse(PARSE_OF_OURS)),
    ),
    "execute": (
        messages.encode_execute(b"mine", 5),
        OwnExecute(messages.encode_execute(b"mine", 5), b"mine", 5),
    ),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_may_be_ours_is_handed_over_and_the_rest_waits(name, size):
    client = Client()
    raw, own = TAKEN[name]
    before, after = messages.encode_parse(b"", b"SELECT 1"), messages.encode_describe(b"P", b"")
    sent = before + raw + after + SYNC
    assert client.send(*(sent[at : at + size] for at in range(0, len(sent), size))) == before
    assert client.taken == [own]
    assert client.requests.running
    assert client.awaited == [Kind.PARSE]
    assert client.resume() == after + SYNC
    assert client.awaited == [Kind.PARSE, Kind.DESCRIBE_PORTAL, Kind.SYNC]


def test_an_execute_is_the_hubs_while_it_discards(client):
    client.send(messages.encode_parse(b"", b"SELEC"))
    client.conversation.receive(messages.encode_fields(b"E", {"S": b"ERROR", "C": b"42601"}))
    execute = messages.encode_execute(b"mine")
    assert client.send(execute) == execute
    assert client.taken == []


def test_names_that_may_be_ours_are_noted(client):
    sent = (
        messages.encode_parse(b"mine", b"SELECT 1")
        + b"".join(messages.encode_bind(b"p", b"mine"))
        + b"".join(messages.encode_bind(b"mine", b"s"))
        + b"".join(messages.encode_bind(b"p", b"s"))
        + messages.encode_close(b"P", b"mine")
    )
    assert client.send(sent) == sent
    assert client.names.noted == [
        ("parse", b"mine"),
        ("bind", b"p", b"mine"),
        ("bind", b"mine", b"s"),
        ("close", ord("P"), b"mine"),
    ]


def test_nothing_is_read_after_the_client_has_said_that_it_goes(client):
    assert client.send(TERMINATE + SYNC) == TERMINATE
    assert client.send(SYNC) == b""
    assert client.requests.terminated
    assert not client.requests.pending
    assert client.awaited == []


def test_a_cancellation_on_its_way_holds_everything_back(client):
    client.requests.holds = 1
    assert client.send(SYNC, TERMINATE) == b""
    client.requests.holds = 0
    assert client.resume() == SYNC + TERMINATE


def test_what_is_unsettled_holds_back_a_new_statement_alone(client):
    client.unsettled.add("a task")
    query = messages.encode_query(b"SELECT 1")
    assert client.send(SYNC + FLUSH + query + SYNC) == SYNC + FLUSH
    client.unsettled.clear()
    assert client.resume() == query + SYNC


def test_rows_of_a_copy_pass_a_batch_that_waits_for_them(client):
    client.send(QUERY_OF_OURS)
    client.conversation.sent(Expected(Kind.EXECUTE))
    rows, end = frame(b"d", b"1\n"), frame(b"c")
    assert client.send(rows) == b""
    client.conversation.receive(frame(b"G", b"\0\0\0"))
    assert b"".join(client.requests.resume()) == rows
    assert client.send(rows[:3]) == b""  # whole ones only: the batch may write in between
    assert client.send(rows[3:] + end + SYNC) == rows + end + FLUSH
    assert client.resume() == SYNC


@pytest.mark.parametrize("length", [3, LARGEST + 1])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_no_row_is_stepped_over_that_cannot_be(client, length, size):
    rows = messages.copy_data(b"row\n") * 5
    sent = rows + sized(ord("d"), length) + rows
    given = client.send(*(sent[at : at + size] for at in range(0, len(sent), size)))
    assert given == rows
    assert client.requests.violation.message == "invalid message length"


def test_what_stands_between_rows_is_seen(client):
    rows = messages.copy_data(b"row\n") * 5
    end = sized(ord("c"), 4)
    client.conversation.sent(Expected(Kind.QUERY))
    client.conversation.receive(sized(ord("G"), 7) + bytes(3))
    assert client.send(rows + end + messages.SYNC + rows) == rows + end + messages.SYNC + rows
    assert client.awaited == [Kind.QUERY, Kind.SYNC]


def test_rows_pass_without_waiting_for_their_end(client):
    row = frame(b"d", b"x" * 5000)
    assert client.send(row[:10]) == row[:10]
    assert client.requests.inside_message
    assert client.send(row[10:4000]) == row[10:4000]
    assert client.send(row[4000:] + SYNC) == row[4000:] + SYNC
    assert not client.requests.inside_message


def test_reading_ahead_is_bounded(client):
    client.send(QUERY_OF_OURS)
    query = messages.encode_query(b"x" * 1000)
    while not client.requests.enough:
        assert client.send(query) == b""
    assert len(client.requests.pending) <= READ_AHEAD + len(query)
    waiting = bytes(client.requests.pending)
    assert client.resume() == waiting
    assert not client.requests.enough


def test_the_rest_of_a_message_is_always_read(client):
    big = messages.encode_query(b"x" * (LARGEST - 10))
    client.send(big[:-1])
    assert not client.requests.enough
    assert client.send(big[-1:]) == big
