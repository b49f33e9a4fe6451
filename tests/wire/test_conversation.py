from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oar_proxy.errors import OarError
from oar_proxy.wire.conversation import Conversation, Expected, HubConfused, Kind

PARSE, BIND, EXECUTE, SYNC, QUERY = (
    Kind.PARSE,
    Kind.BIND,
    Kind.EXECUTE,
    Kind.SYNC,
    Kind.QUERY,
)


class Talk:
    """A conversation, and what its hooks were called with."""

    def __init__(self):
        self.keys = []
        self.ready = 0
        self.copies = 0
        self.conversation = Conversation(
            on_authentication=lambda message: message,
            on_key=self.keys.append,
            on_copy_in=self._copy,
            on_ready=self._ready,
        )

    def _copy(self):
        self.copies += 1

    def _ready(self):
        self.ready += 1

    def send(self, *kinds):
        for kind in kinds:
            self.conversation.sent(kind if isinstance(kind, Expected) else Expected(kind))

    def receive(self, *chunks):
        given = b"".join(part for chunk in chunks for part in self.conversation.receive(chunk))
        if self.conversation.confusion is not None:
            raise self.conversation.confusion
        return given


class Ours(Expected):
    """A request of the proxy's own: nothing of it is for the client."""

    passes = False

    def __init__(self, kind, shown=None):
        super().__init__(kind)
        self.seen = []
        self.outcome = None
        self.shown = shown

    def message(self, code, message):
        self.seen.append(message)
        return

    def done(self, message):
        self.outcome = "done"

    def failed(self, response):
        self.outcome = "failed"
        return self.shown

    def skipped(self):
        self.outcome = "skipped"
        return self.shown


@pytest.fixture
def talk():
    return Talk()


def conversations(hub):
    """What is sent, and what the hub answers when all goes well."""
    rows = hub.columns(("id", 23)) + hub.row(b"1") + hub.row(None)
    return {
        "query": ([QUERY], rows + hub.done + hub.ready()),
        "empty query": ([QUERY], hub.message("I") + hub.ready()),
        "two results": ([QUERY], (rows + hub.done) * 2 + hub.ready("T")),
        "extended": (
            [PARSE, BIND, Kind.DESCRIBE_PORTAL, EXECUTE, SYNC],
            hub.parsed + hub.bound + rows + hub.done + hub.ready(),
        ),
        "suspended": ([EXECUTE, SYNC], hub.row(b"1") + hub.message("s") + hub.ready("T")),
        "statement": (
            [PARSE, Kind.DESCRIBE_STATEMENT, Kind.CLOSE, SYNC],
            hub.parsed
            + hub.message("t", b"\0\0")
            + hub.no_data
            + hub.notice
            + hub.closed
            + hub.ready(),
        ),
        "copy out": (
            [QUERY],
            hub.message("H", b"\0\0\0")
            + hub.message("d", b"1\n") * 50
            + hub.message("c")
            + hub.done
            + hub.ready(),
        ),
        "function call": ([Kind.FUNCTION], hub.message("V", b"\0\0\0\1x") + hub.ready()),
        "asynchronous": (
            [QUERY],
            hub.notice
            + hub.message("S", b"TimeZone\0UTC\0")
            + hub.message("A", b"\0\0\0\1channel\0payload\0")
            + hub.done
            + hub.ready(),
        ),
    }


NAMES = (
    "query",
    "empty query",
    "two results",
    "extended",
    "suspended",
    "statement",
    "copy out",
    "function call",
    "asynchronous",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_everything_for_the_client_arrives_however_it_is_cut(talk, hub, name, size):
    sent, answer = conversations(hub)[name]
    talk.send(*sent)
    chunks = [answer[i : i + size] for i in range(0, len(answer), size)]
    assert talk.receive(*chunks) == answer
    assert talk.conversation.idle
    assert talk.ready == 1


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_what_is_ours_is_taken_out_however_it_is_cut(talk, hub, size):
    ours = [Ours(PARSE), Ours(BIND), Ours(EXECUTE)]
    talk.send(PARSE, *ours, BIND, EXECUTE, SYNC)
    mine = hub.notice + hub.parsed + hub.bound + hub.row(b"secret") + hub.done
    answer = hub.parsed + mine + hub.bound + hub.row(b"1") + hub.done + hub.ready()
    given = talk.receive(*(answer[i : i + size] for i in range(0, len(answer), size)))
    assert given == hub.parsed + hub.bound + hub.row(b"1") + hub.done + hub.ready()
    assert [entry.outcome for entry in ours] == ["done"] * 3
    assert ours[2].seen == [hub.row(b"secret"), hub.done]


def test_a_chunk_of_rows_leaves_as_the_same_object(talk, hub):
    talk.send(QUERY)
    chunk = hub.row(b"1") * 1000
    (given,) = talk.conversation.receive(chunk)
    assert given is chunk
    (given,) = talk.conversation.receive(part := hub.row(b"x" * 500)[:100])
    assert given is part


def test_an_error_discards_up_to_the_sync(talk, hub):
    talk.send(PARSE, BIND, EXECUTE, QUERY, SYNC, PARSE, SYNC)
    assert talk.receive(hub.parsed, hub.error(), hub.ready()) == (
        hub.parsed + hub.error() + hub.ready()
    )
    assert not talk.conversation.idle
    assert talk.receive(hub.parsed, hub.ready()) == hub.parsed + hub.ready()
    assert talk.conversation.idle


def test_after_an_error_everything_is_skipped_until_a_sync_is_sent(talk, hub):
    talk.send(PARSE)
    talk.receive(hub.error())
    assert talk.conversation.skipping
    late = Ours(PARSE)
    talk.send(late, QUERY, Kind.FUNCTION)
    assert late.outcome == "skipped"
    assert talk.conversation.idle
    talk.send(SYNC)
    assert not talk.conversation.skipping
    assert talk.receive(hub.ready()) == hub.ready()


def test_an_error_in_a_query_or_sync_leaves_its_ready_for_query_awaited(talk, hub):
    for kind in (QUERY, SYNC, Kind.FUNCTION):
        talk.send(kind)
        assert talk.receive(hub.error()) == hub.error()
        assert not talk.conversation.skipping
        assert talk.receive(hub.ready("E")) == hub.ready("E")
        assert talk.conversation.status == ord("E")


def test_an_error_of_ours_is_withheld(talk, hub):
    ours = Ours(PARSE)
    talk.send(ours, BIND, SYNC)
    assert talk.receive(hub.error("42P01")) == b""
    assert ours.outcome == "failed"
    assert talk.conversation.withheld == hub.error("42P01")
    assert talk.receive(hub.ready()) == hub.ready()


def test_what_stands_in_for_a_withheld_error_is_given(talk, hub):
    talk.send(Ours(PARSE), Ours(PARSE, shown=b"instead"), SYNC)
    assert talk.receive(hub.error()) == b"instead"
    assert talk.conversation.withheld is None


def test_an_error_the_client_got_needs_nothing_in_its_stead(talk, hub):
    talk.send(PARSE, Ours(PARSE, shown=b"instead"), SYNC)
    assert talk.receive(hub.error()) == hub.error()


def test_a_fatal_error_is_for_the_client_whoever_is_asking(talk, hub):
    talk.send(Ours(PARSE))
    fatal = hub.error("57P01", "FATAL")
    assert talk.receive(fatal) == fatal
    assert talk.conversation.fatal


class Chunk(Expected):
    """Rows pass, that they are over does not."""

    def message(self, code, message):
        if code != ord("C"):
            return message
        self.last = message
        return None


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_the_end_of_an_answer_that_passes_can_be_kept(talk, hub, size):
    chunk = Chunk(EXECUTE)
    talk.send(BIND, chunk, EXECUTE, SYNC)
    rows = hub.row(b"1") + hub.row(None)
    sent = hub.bound + rows + hub.done + rows + hub.done + hub.ready()
    parts = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert talk.receive(*parts) == hub.bound + rows + rows + hub.done + hub.ready()
    assert chunk.last == hub.done


def test_interjections_wait_for_what_was_sent_before(talk, hub):
    assert talk.conversation.interject(b"now") == b"now"
    talk.send(QUERY)
    assert talk.conversation.interject(b"later") == b""
    assert talk.conversation.interject(b", too") == b""
    assert talk.receive(hub.row(b"1") + hub.done) == hub.row(b"1") + hub.done
    assert talk.receive(hub.ready()) == hub.ready() + b"later, too"
    assert talk.conversation.idle


def test_interjections_between_two_requests(talk, hub):
    talk.send(PARSE)
    talk.conversation.interject(b"between")
    talk.send(BIND, SYNC)
    answer = hub.parsed + hub.bound + hub.ready()
    assert talk.receive(answer) == hub.parsed + b"between" + hub.bound + hub.ready()


class TestCopyIn:
    def test_a_sync_sent_before_the_rows_is_ignored(self, talk, hub):
        talk.send(PARSE, BIND, EXECUTE, SYNC)
        talk.receive(hub.parsed + hub.bound + hub.copy_in)
        assert talk.conversation.copying
        assert talk.copies == 1
        talk.send(SYNC)  # ignored as well
        talk.conversation.sent_copy_end()
        talk.send(SYNC)
        assert talk.receive(hub.done + hub.ready()) == hub.done + hub.ready()
        assert talk.conversation.idle

    def test_rows_sent_before_the_hub_asked_for_them(self, talk, hub):
        talk.send(PARSE, BIND, EXECUTE, SYNC)
        talk.conversation.sent_copy_end()
        talk.send(SYNC)
        talk.receive(hub.parsed + hub.bound + hub.copy_in)
        assert not talk.conversation.copying
        talk.receive(hub.done + hub.ready())
        assert talk.conversation.idle

    def test_rows_the_hub_refuses(self, talk, hub):
        talk.send(PARSE, BIND, EXECUTE, SYNC)
        talk.receive(hub.parsed + hub.bound + hub.copy_in)
        talk.receive(hub.error("22P04"))
        assert talk.conversation.skipping
        talk.conversation.sent_copy_end()
        talk.send(SYNC)
        assert talk.receive(hub.ready()) == hub.ready()
        assert talk.conversation.idle

    def test_simple_protocol(self, talk, hub):
        talk.send(QUERY)
        talk.receive(hub.copy_in)
        talk.conversation.sent_copy_end()
        talk.receive(hub.done + hub.ready())
        assert talk.conversation.idle

    def test_simple_protocol_refused(self, talk, hub):
        talk.send(QUERY)
        talk.receive(hub.copy_in)
        talk.receive(hub.error())
        talk.conversation.sent_copy_end()
        talk.receive(hub.ready())
        assert talk.conversation.idle
        talk.send(QUERY)
        talk.receive(hub.done + hub.ready())
        assert talk.conversation.idle


MOVES = {
    Kind.STARTUP: "RKvZ",
    PARSE: "1",
    BIND: "2",
    Kind.CLOSE: "3",
    Kind.DESCRIBE_STATEMENT: "tTn",
    Kind.DESCRIBE_PORTAL: "Tn",
    EXECUTE: "DCIsGHdc",
    SYNC: "Z",
    QUERY: "TDCIGHdcZ",
    Kind.FUNCTION: "VZ",
    Kind.MALFORMED: "",
}
"""What may answer a request: the message flow chapter, 54.2."""

BODIES = {"Z": b"I", "R": b"\0\0\0\0", "K": b"\0\0\0\1abcd"}


@pytest.mark.parametrize("sent", MOVES, ids=str)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_move_that_is_not_in_the_table_is_the_error(hub, sent, size):
    """At any time there may come errors, notices, settings that changed, and notifications."""
    for code in map(chr, range(256)):
        if code == "E":
            continue
        talk = Talk()
        talk.send(sent)
        answer = hub.message("x", BODIES.get(code, b""))
        answer = bytes([ord(code)]) + answer[1:]
        parts = [answer[at : at + size] for at in range(0, len(answer), size)]
        if code in MOVES[sent] + "NSA":
            assert talk.receive(*parts) == answer
        else:
            with pytest.raises(HubConfused):
                talk.receive(*parts)


def test_every_kind_of_request_is_in_the_table():
    assert set(MOVES) == set(Kind) - {Kind.COPY_END, Kind.INTERJECTION}


@pytest.mark.parametrize("size", [1, 64 * 1024])
@pytest.mark.parametrize("length", [0, 3, 30_001, 2**31, 2**32 - 1])
def test_a_length_that_cannot_be_is_the_error(talk, hub, length, size):
    """What came before it is still given, and nothing that comes behind it."""
    talk.send(QUERY)
    sent = hub.row(b"1") + b"C" + length.to_bytes(4, "big") + bytes(1000) + hub.ready()
    given = b""
    for at in range(0, len(sent), size):
        given += b"".join(talk.conversation.receive(sent[at : at + size]))
    assert isinstance(talk.conversation.confusion, HubConfused)
    assert given == hub.row(b"1")


def test_the_client_has_a_whole_message_before_what_cannot_be(talk, hub):
    """Else it could not be told."""
    talk.send(QUERY)
    row = hub.row(bytes(1000))
    assert talk.receive(row[:100]) == row[:100]
    assert talk.conversation.receive(row[100:] + hub.bound) == [row[100:]]
    assert isinstance(talk.conversation.confusion, HubConfused)
    assert not talk.conversation.inside_message


def test_ready_for_query_has_a_status(hub):
    for answer in (hub.message("Z"), hub.message("Z", b"II")):
        for kind in (SYNC, QUERY):
            talk = Talk()
            talk.send(kind)
            with pytest.raises(HubConfused):
                talk.receive(answer)
        with pytest.raises(HubConfused):
            Talk().receive(answer)


@pytest.mark.parametrize("code", "RSTtDdVENA")
def test_messages_of_unknown_size_may_be_long(talk, hub, code):
    """A statement can have 65,535 parameters, and an error can quote it."""
    talk.send(Ours(PARSE))
    assert talk.receive(hub.message(code, bytes(100_000))[:90_000]) == b""


def test_a_message_that_began_has_to_end(talk, hub):
    talk.send(QUERY)
    row = hub.row(bytes(1000))
    assert talk.receive(row + row[:100]) == row + row[:100]
    assert talk.conversation.inside_message
    assert talk.receive(row[100:]) == row[100:]
    assert not talk.conversation.inside_message


def test_an_error_alone_answers_a_malformed_message(talk, hub):
    talk.send(Kind.MALFORMED, PARSE, SYNC)
    assert talk.receive(hub.error("08P01"), hub.ready()) == hub.error("08P01") + hub.ready()
    assert talk.conversation.idle


def test_the_cancellation_key_is_learnt_and_passed_on(talk, hub):
    talk.send(Kind.STARTUP)
    key = hub.message("K", b"\0\0\0\7secret")
    answer = hub.message("R", b"\0\0\0\0") + key + hub.ready()
    assert talk.receive(answer) == answer
    assert talk.keys == [key]


def test_abandoned_requests_are_skipped(talk):
    ours = Ours(PARSE)
    talk.send(QUERY, ours)
    talk.conversation.abandon()
    assert ours.outcome == "skipped"
    assert talk.conversation.idle


@given(
    sent=st.lists(st.sampled_from([PARSE, BIND, EXECUTE, SYNC, QUERY]), max_size=6),
    ours=st.booleans(),
    chunks=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=40),
            st.builds(
                lambda code, length, body: bytes([code, 0, 0, 0, length]) + body,
                st.sampled_from(b"123CDEGHIKNRSTVZcdnst"),
                st.integers(0, 12),
                st.binary(max_size=9),
            ),
        ),
        max_size=8,
    ),
)
def test_any_bytes_pass_wait_or_are_refused(sent, ours, chunks):
    talk = Talk()
    talk.send(*(Ours(kind) if ours else kind for kind in sent))
    try:
        given_back = talk.receive(*chunks)
    except OarError:
        return
    assert len(given_back) <= sum(map(len, chunks))
