"""What a client reads is what PostgreSQL would have sent: the same frames to both, compared.

Through the proxy the statements read ``pub.orders``, which is federated; directly at the hub they
read an ordinary table with the same rows.
"""

from __future__ import annotations

import struct

import pytest
from oar_proxy.federation import Parameter
from oar_proxy.wire import messages as m

SYNC, FLUSH = m.SYNC, m.FLUSH

PI = 1610
"""Number of the function pi()."""


def frame(code, body):
    return code + struct.pack("!I", len(body) + 4) + body


def parse(text, name=b"", oids=()):
    return m.encode_parse(name, text.encode(), oids)


def bind(portal=b"", statement=b"", values=(), results=()):
    return b"".join(m.encode_bind(portal, statement, values, results))


def execute(portal=b"", rows=0):
    return m.encode_execute(portal, rows)


def describe(kind, name=b""):
    return m.encode_describe(kind, name)


def query(text):
    return m.encode_query(text.encode())


def run(text, *values, results=()):
    return parse(text) + bind(values=values, results=results) + execute()


def binary(number):
    return Parameter(23, 1, struct.pack("!i", number))


def text(value):
    return Parameter(0, 0, str(value).encode())


ALL = "SELECT * FROM {t} ORDER BY id"
SOME = "SELECT * FROM {t} WHERE id > $1 ORDER BY id"

SEQUENCES = {
    "simple": [query(ALL)],
    "simple, empty": [query(""), query(";"), query("-- {t}")],
    "simple, comment with a published name": [query("SELECT 1 /* {t} */")],
    "simple, second of a batch": [query("SELECT 1; " + ALL)],
    "simple, first of a batch": [query(ALL + "; SELECT 2; SELECT 3")],
    "simple, twice in a batch": [query(f"{ALL}; {ALL}")],
    "simple, begin and statement at once": [
        query("BEGIN; " + ALL),
        query(ALL),
        query("COMMIT"),
    ],
    "simple, whole transaction at once": [query(f"BEGIN; {ALL}; COMMIT; SELECT 1")],
    "simple, a statement of the batch fails": [query(f"SELECT 1; {ALL}; SELECT 1/0; SELECT 2")],
    "simple, fails before ours": [query(f"SELECT 1/0; {ALL}"), query("SELECT 1")],
    "simple, ours fails at the hub": [query("SELECT 10 / (id - 1) FROM {t} ORDER BY id")],
    "simple, in a failed transaction": [
        query("BEGIN"),
        query("SELECT 1/0"),
        query(ALL),
        query("ROLLBACK; " + ALL),
    ],
    "simple, rolled back in the batch": [query(f"BEGIN; {ALL}; ROLLBACK; {ALL}")],
    "simple, syntax error": [query(f"{ALL}; SELECT FROM WHERE /* SYNTAX */")],
    "simple, isolation level set behind": [
        query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " + ALL),
        query(ALL),
        query("ROLLBACK"),
    ],
    "simple, isolation level with a published name": [
        query("BEGIN"),
        query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE -- {t}"),
        query("ROLLBACK"),
    ],
    "simple, cursor": [
        query(f"BEGIN; DECLARE c CURSOR FOR {ALL}; FETCH 2 FROM c; FETCH 2 FROM c; COMMIT")
    ],
    "simple, explain is not ours": [query("SELECT count(*) FROM {t}")],
    "simple destroys the unnamed statement": [
        parse("SELECT 7") + SYNC,
        query(ALL),
        bind() + execute() + SYNC,
    ],
    "extended": [run(ALL) + SYNC],
    "extended, described": [
        parse(SOME) + describe(b"S") + bind(values=[text(2)]) + describe(b"P") + execute() + SYNC
    ],
    "extended, flushed": [
        (parse(SOME, b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        (bind(b"", b"s", [text(4)]) + execute() + FLUSH, "C", 1),
        SYNC,
    ],
    "extended, binary parameter and results": [
        parse("SELECT id, name FROM {t} WHERE id > $1", oids=[23])
        + bind(values=[binary(3)], results=[1])
        + execute()
        + SYNC
    ],
    "extended, one format for two parameters": [
        parse("SELECT id FROM {t} WHERE id > $1 AND id < $2 ORDER BY 1", oids=[23, 23])
        + frame(
            b"B",
            b"\0\0" + struct.pack("!HHHIiIiH", 1, 1, 2, 4, 1, 4, 4, 0),
        )
        + execute()
        + SYNC
    ],
    "extended, NULL parameter": [
        parse(SOME) + bind(values=[Parameter(0, 0, None)]) + execute() + SYNC
    ],
    "extended, wrong parameter": [
        parse(SOME) + bind(values=[text("x")]) + execute() + SYNC,
        query("SELECT 1"),
    ],
    "extended, missing parameter": [parse(SOME) + bind() + execute() + SYNC],
    "extended, unknown column": [run("SELECT nonesuch FROM {t}") + SYNC],
    "extended, two in a pipeline": [run(ALL) + run(SOME, text(3)) + run("SELECT 1") + SYNC],
    "extended, pipeline with syncs": [(run(ALL) + SYNC + run("SELECT 1") + SYNC, "Z", 2)],
    "extended, error before ours": [run("SELECT 1/0") + run(ALL) + SYNC, run(ALL) + SYNC],
    "extended, parse error before ours": [parse("SELEC") + run(ALL) + SYNC],
    "extended, error behind ours": [run(ALL) + run("SELECT 1/0") + run(ALL) + SYNC],
    "extended, ours fails": [
        run("SELECT 10 / (id - 1) FROM {t}") + run("SELECT 1") + SYNC,
        run("SELECT 1") + SYNC,
    ],
    "extended, in a transaction": [
        query("BEGIN"),
        run(ALL) + SYNC,
        run("SELECT 10 / (id - 1) FROM {t}") + SYNC,
        run(ALL) + SYNC,
        query("ROLLBACK"),
        run(ALL) + SYNC,
    ],
    "extended, query while skipping": [
        parse("SELEC") + query(ALL) + query("SELECT 2") + SYNC,
        query(ALL),
    ],
    "extended, query inside a pipeline": [run("SELECT 1") + query(ALL), run(ALL) + SYNC],
    # What is executed without a Sync leaves a transaction open, what is only parsed does not.
    "extended, query behind what is parsed only": [
        (parse("SELECT 7", b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        query(ALL),
        query("CREATE TEMP TABLE tt (a int)"),
        query("SELECT 1/0"),
        query(ALL),
        (bind(b"", b"s") + execute() + FLUSH, "C", 1),
        SYNC,
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
    ],
    "extended, queries behind what is executed": [
        (run("SELECT 1") + FLUSH, "C", 1),
        query("CREATE TEMP TABLE tt (a int)"),
        query(ALL),
        query("SELECT 1/0"),
        query("SELECT 'tt'::regclass"),
        query(ALL),
        query("CREATE TEMP TABLE tt (a int)"),
        query("SELECT 1/0"),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
        SYNC,
    ],
    "extended, batch behind what is executed": [
        (run("SELECT 1") + FLUSH, "C", 1),
        query(f"CREATE TEMP TABLE tt (a int); {ALL}"),
        query(ALL),
        query("SELECT 1/0"),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
        SYNC,
    ],
    "simple, what the hub logs of others in the batch": [
        query("SET client_min_messages TO debug1"),
        query(f"CREATE TEMP TABLE tt (a serial); {ALL}"),
        query("DROP TABLE tt; RESET client_min_messages"),
    ],
    "extended, named statement twice": [
        parse(SOME, b"s") + bind(b"", b"s", [text(4)]) + execute() + SYNC,
        bind(b"", b"s", [text(3)]) + execute() + SYNC,
        parse(ALL, b"s") + SYNC,
        bind(b"", b"s", [text(2)]) + execute() + SYNC,
    ],
    "extended, name of ours taken by another": [
        parse(ALL, b"s") + SYNC,
        m.encode_close(b"S", b"s") + parse("SELECT 5", b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, name of another taken by ours": [
        parse("SELECT 5", b"s") + SYNC,
        m.encode_close(b"S", b"s") + parse(ALL, b"s") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, unnamed ours then unnamed other": [
        run(ALL) + SYNC,
        parse("SELECT 5") + SYNC,
        bind() + execute() + SYNC,
    ],
    "extended, unnamed other fails to parse": [
        run(ALL) + SYNC,
        parse("SELEC") + SYNC,
        bind() + execute() + SYNC,
    ],
    "extended, deallocated and prepared again by SQL": [
        parse(ALL, b"s") + SYNC,
        query("DEALLOCATE s"),
        query("PREPARE s AS SELECT 6"),
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, deallocated in the same pipeline": [
        parse(ALL, b"s") + run("DEALLOCATE ALL") + bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, discarded": [
        parse(ALL, b"s") + SYNC,
        query("DISCARD ALL"),
        bind(b"", b"s") + execute() + SYNC,
    ],
    "extended, portal closed and declared again by SQL": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + SYNC,
        query("CLOSE p"),
        query("DECLARE p CURSOR FOR SELECT 8"),
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "extended, portal kept by a savepoint": [
        query("BEGIN"),
        parse(SOME, b"s") + bind(b"p", b"s", [text(4)]) + SYNC,
        query("SAVEPOINT one"),
        bind(b"p", b"s", [text(1)]) + SYNC,
        query("ROLLBACK TO one"),
        execute(b"p") + SYNC,
        query("ROLLBACK"),
    ],
    "extended, portal gone with its transaction": [
        parse(ALL) + bind() + SYNC,
        execute() + SYNC,
    ],
    "extended, portal gone with COMMIT in the pipeline": [
        query("BEGIN"),
        parse(ALL) + bind(b"p") + run("COMMIT") + execute(b"p") + SYNC,
    ],
    "extended, portal closed": [
        parse(ALL) + bind(b"p") + m.encode_close(b"P", b"p") + execute(b"p") + SYNC
    ],
    "extended, executed twice": [parse(ALL) + bind() + execute() + execute() + SYNC],
    "extended, suspended and resumed": [
        query("BEGIN"),
        (parse(ALL) + bind(b"p") + execute(b"p", 2) + FLUSH, "s", 1),
        (run("SELECT 1") + FLUSH, "C", 1),
        (execute(b"p", 2) + FLUSH, "s", 1),
        execute(b"p", 2) + SYNC,
        query("COMMIT"),
    ],
    "extended, several statements in one string": [run(f"SELECT 1; {ALL}") + SYNC],
    "extended, empty": [run("") + SYNC, run("-- {t}") + SYNC],
    "extended, close of what never was": [m.encode_close(b"S", b"none") + SYNC],
    "extended, malformed bind": [
        parse(ALL) + frame(b"B", b"\0\0\0\7") + execute() + SYNC,
        query("SELECT 1"),
    ],
    "extended, malformed describe": [frame(b"D", b"Xp\0") + SYNC],
    "copy in a batch": [
        (query(f"CREATE TEMP TABLE tt (a int); {ALL}; COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"d", b"1\n2\n") + frame(b"c", b""),
        query("SELECT count(*) FROM tt; DROP TABLE tt"),
    ],
    "copy in a batch, refused by the hub in the middle of a row": [
        (query(f"CREATE TEMP TABLE tt (a int); COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"d", b"x\n") + frame(b"d", b"1\n" * 1_500_000) + frame(b"c", b""),
        query("SELECT 1"),
    ],
    "copy in a batch, refused by the client": [
        (query(f"CREATE TEMP TABLE tt (a int); COPY tt FROM STDIN; {ALL}"), "G", 1),
        frame(b"f", b"no\0"),
    ],
    "function call": [frame(b"F", struct.pack("!IHHH", PI, 0, 0, 0))],
}


def messages(data):
    """Cut bytes into messages: code and body."""
    while data:
        length = int.from_bytes(data[1:5], "big") + 1
        yield data[:1], data[5:length]
        data = data[length:]


def with_table(data, table):
    """Put the table's name where its placeholder is, and correct the lengths."""
    return b"".join(frame(code, body.replace(b"{t}", table)) for code, body in messages(data))


def comparable(code, body):
    """Leave out what differs for a good reason: table numbers, positions of source code."""
    if code == "T":
        return code, m.decode_row_description(frame(b"T", body))
    if code == "E":
        fields = m.decode_fields(frame(b"E", body))
        return code, {k: v for k, v in fields.items() if k in "SVCMDH"}
    return code, body


def play(raw, steps, table):
    """Send each step and read up to the answer's end: by default one Z for each Sync, or Query."""
    got = []
    for step in steps:
        data, until, times = step if isinstance(step, tuple) else (step, "Z", 0)
        sent = [code for code, _ in messages(data)]
        times = times or sent.count(b"S") or 1
        got += [comparable(*m) for m in raw.ask(with_table(data, table), until=until, times=times)]
    return got


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_client_sees_what_postgresql_sends(name, raw, connect_raw, directly, federation):
    expected = play(connect_raw(directly), SEQUENCES[name], b"public.orders")
    assert play(raw, SEQUENCES[name], b"pub.orders") == expected
    assert ("Z", b"I") in expected


@pytest.mark.parametrize("name", SEQUENCES)
def test_cut_anywhere(name, raw, connect_raw, directly, federation):
    """Messages that come in pieces mean the same."""
    expected = play(connect_raw(directly), SEQUENCES[name], b"public.orders")

    def send_slowly(*parts):
        for part in parts:
            size = 3 if len(part) < 100_000 else 100_000
            for at in range(0, len(part), size):
                raw.socket.sendall(part[at : at + size])

    raw.send = send_slowly
    assert play(raw, SEQUENCES[name], b"pub.orders") == expected
