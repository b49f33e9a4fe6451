"""Frames of statements over real owners, compared with what PostgreSQL sends of the merged tables.

The same bytes to both: what carries a published table, and how it is asked for, make no difference.
"""

from __future__ import annotations

import random
import struct

import psycopg
import pytest
from frames import (
    FLUSH,
    SYNC,
    Raw,
    binary,
    bind,
    bind_formats,
    close,
    comparable,
    describe,
    execute,
    frame,
    parse,
    play,
    query,
    run,
    text,
)
from oar_proxy.wire.messages import encode_parse

JOIN = "SELECT a.id, b.w, a.v FROM a JOIN b USING (k) ORDER BY 1, 2"
WHERE = "SELECT a.id, b.w FROM a JOIN b USING (k) WHERE b.w > $1 OR a.v = $2 ORDER BY 1, 2"
FAILS = "SELECT 100 / (b.w - 100) FROM a JOIN b USING (k) ORDER BY a.id, b.w"

SEQUENCES = {
    # --- query strings
    "alone": [query(JOIN)],
    **{
        f"{where} of three, {what}": [
            query("CREATE TEMP TABLE tt (id bigint, w bigint)"),
            query("; ".join([*before, statement, *after])),
            query("SELECT count(*) FROM tt"),
        ]
        for what, statement in (
            ("a join", JOIN),
            ("a join that fails", FAILS),
            ("an insert", "INSERT INTO tt SELECT a.id, b.w FROM a JOIN b USING (k)"),
            ("a copy", f"COPY ({JOIN}) TO STDOUT"),
            ("an unknown column", "SELECT nonesuch FROM a"),
            ("a cursor", f"DECLARE c CURSOR WITH HOLD FOR {JOIN}"),
        )
        for where, before, after in (
            ("first", [], ["INSERT INTO tt VALUES (1, 1)", "SELECT 3"]),
            ("second", ["INSERT INTO tt VALUES (1, 1)"], ["SELECT 3"]),
            ("last", ["INSERT INTO tt VALUES (1, 1)", "SELECT 2"], []),
        )
    },
    "begin and a join at once": [query(f"BEGIN;{JOIN}"), query(JOIN), query("COMMIT")],
    "a transaction that may not write": [
        query(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {JOIN}"),
        query(f"DECLARE c NO SCROLL CURSOR FOR {JOIN}; FETCH 3 FROM c; CLOSE c"),
        query("CREATE TABLE nope (a int)"),
        query(JOIN),
        query("ROLLBACK"),
    ],
    "savepoints": [
        query(f"BEGIN; SAVEPOINT s; {FAILS}"),
        query(JOIN),
        query(f"ROLLBACK TO s; {JOIN}; RELEASE s; COMMIT"),
    ],
    # --- cursors, as tools declare them
    "a cursor as postgres_fdw declares it": [
        query("START TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
        query(f"DECLARE c1 CURSOR FOR\n{JOIN}"),
        query("FETCH 4 FROM c1"),
        query("FETCH 100 FROM c1"),
        query("MOVE BACKWARD ALL IN c1"),
        query("CLOSE c1"),
        query("COMMIT TRANSACTION"),
    ],
    "a cursor as psqlODBC declares it": [
        query(f'BEGIN;declare "SQL_CUR0x7f" cursor with hold for {JOIN};fetch 4 in "SQL_CUR0x7f"'),
        query('fetch 100 in "SQL_CUR0x7f"'),
        query("COMMIT"),
        query('fetch backward 1 in "SQL_CUR0x7f";close "SQL_CUR0x7f"'),
    ],
    "a binary cursor": [
        query(f"BEGIN; DECLARE c BINARY CURSOR FOR {JOIN}; FETCH 2 FROM c"),
        query(f"FETCH 2 FROM c; {JOIN}"),
        run("FETCH 1 FROM c") + SYNC,
        run("FETCH 1 FROM c", results=[0, 1, 0]) + SYNC,
        query("ROLLBACK"),
    ],
    "a cursor outside a transaction": [
        query(f"DECLARE c CURSOR FOR {JOIN}"),
        run(f"DECLARE c CURSOR FOR {JOIN}") + SYNC,
        run("SELECT 1") + run(f"DECLARE c CURSOR FOR {JOIN}") + run("FETCH 1 FROM c") + SYNC,
        query("FETCH 1 FROM c"),
    ],
    "a cursor with parameters": [
        query("BEGIN"),
        parse(f"DECLARE c SCROLL CURSOR FOR {WHERE}") + describe(b"S")
        + bind(values=[text(150), text("y")]) + describe(b"P") + execute() + SYNC,
        query("FETCH LAST FROM c; FETCH ABSOLUTE 1 FROM c; FETCH RELATIVE 0 FROM c"),
        query("COMMIT"),
    ],
    # --- prepared by SQL and by the protocol
    "prepared by SQL": [
        query(f"PREPARE s AS {JOIN}; EXECUTE s; DEALLOCATE s; EXECUTE s"),
        query(f"PREPARE s (bigint, text) AS {WHERE}"),
        query("EXECUTE s (150, 'y'); SELECT 1; EXECUTE s (1000, 'none')"),
        run("EXECUTE s (150, 'y')", results=[1]) + SYNC,
        parse("EXECUTE s (150, 'y')", b"e") + describe(b"S", b"e") + SYNC,
        bind(b"", b"e") + execute() + bind(b"", b"e", results=[1, 0]) + execute() + SYNC,
        query("EXECUTE s (1)"),
        query("EXECUTE s ('x', 'y')"),
        query("DEALLOCATE ALL"),
    ],
    "prepared with comments": [
        query(f"/* a */ PREPARE s (bigint, text) AS /* b */ {WHERE.replace('WHERE', '-- c' + chr(10) + 'WHERE /* d */')}"),
        query("/* e */ EXECUTE s (150, /* f */ 'y') -- g"),
        parse(f"/* h */ {WHERE}", b"w") + SYNC,
        query("EXECUTE w (150, 'y')"),
        bind(b"", b"w", [text(150), text("y")]) + execute() + SYNC,
        query("DEALLOCATE ALL"),
    ],
    "prepared by the protocol, executed by SQL": [
        parse(JOIN, b"s") + parse(WHERE, b"w") + SYNC,
        query("EXECUTE s"),
        query("SELECT 1; EXECUTE w (150, 'y')"),
        query("DEALLOCATE s"),
        query("EXECUTE s"),
        bind(b"", b"w", [text(150), text("y")]) + execute() + SYNC,
        bind(b"", b"s") + SYNC,
    ],
    # --- the extended protocol
    "described before it is bound": [
        (parse(WHERE, b"s") + describe(b"S", b"s") + FLUSH, "T", 1),
        bind(b"", b"s", [binary(150, 20), text("y")], [1]) + describe(b"P") + execute() + SYNC,
        (describe(b"S", b"s") + FLUSH, "T", 1),
        bind(b"", b"s", [text(0), text("y")], [0, 1]) + execute() + SYNC,
        close(b"S", b"s") + SYNC,
    ],
    **{
        f"formats {given} and {results}": [
            parse(WHERE, oids=[20, 25])
            + bind_formats(given, [struct.pack("!q", 150) if (given * 2)[:1] == [1] else b"150", b"y"], results)
            + describe(b"P") + execute() + SYNC
        ]
        for given in ([], [0], [1], [1, 0], [0, 1])
        for results in ([], [1], [1, 0])
    },
    "two suspended in turn": [
        query("BEGIN"),
        (parse(JOIN) + bind(b"p") + execute(b"p", 2) + FLUSH, "s", 1),
        (parse(WHERE) + bind(b"q", values=[text(0), text("")]) + execute(b"q", 1) + FLUSH, "s", 1),
        (execute(b"p", 2) + execute(b"q", 2) + FLUSH, "s", 2),
        execute(b"p") + execute(b"q") + SYNC,
        execute(b"p", 1) + SYNC,
        query("COMMIT"),
    ],
    "suspended, one owner's rows": [
        query("BEGIN"),
        parse("SELECT id, v FROM a ORDER BY id") + bind(b"p", results=[1]) + execute(b"p", 4) + SYNC,
        execute(b"p", 4) + SYNC,
        execute(b"p", 4) + SYNC,
        query("COMMIT"),
    ],
    "a pipeline with an error in it": [
        run(JOIN) + run(FAILS) + run(JOIN) + run("SELECT 1") + SYNC,
        (run(JOIN) + SYNC + run("SELECT 1/0") + SYNC + run(JOIN) + SYNC, "Z", 3),
        run(JOIN) + SYNC,
    ],
    "one implicit transaction": [
        query("CREATE TEMP TABLE tt (id bigint)"),
        run("INSERT INTO tt SELECT a.id FROM a JOIN b USING (k)") + run(FAILS) + SYNC,
        run("INSERT INTO tt SELECT a.id FROM a JOIN b USING (k) ORDER BY a.id RETURNING id") + run(JOIN) + SYNC,
        query("SELECT count(*) FROM tt"),
    ],
    "a query while skipping": [(run(FAILS) + query(JOIN) + SYNC, "Z", 1), query(JOIN)],
    # --- what is made of it
    "tables made of it": [
        query(f"CREATE TEMP TABLE tt AS {JOIN}; SELECT * FROM tt ORDER BY 1, 2"),
        query("SELECT id, v INTO TEMP uu FROM a; SELECT count(*), count(v) FROM uu"),
        run("CREATE TEMP TABLE vv AS SELECT * FROM a WITH NO DATA") + SYNC,
        query("SELECT tt.id, b.s FROM tt JOIN b USING (w) ORDER BY 1, 2"),
    ],
    "views made of it": [
        query(f"CREATE TEMP VIEW vv AS {JOIN}"),
        query("SELECT count(*) FROM vv; SELECT * FROM vv LIMIT 2"),
        parse("SELECT w FROM vv WHERE id = $1") + describe(b"S") + bind(values=[text(1)]) + execute() + SYNC,
    ],
    # --- COPY
    "copied out": [
        query(f"COPY ({JOIN}) TO STDOUT"),
        query(f"COPY ({JOIN}) TO STDOUT (FORMAT csv, HEADER, NULL '-')"),
        query(f"COPY ({JOIN}) TO STDOUT (FORMAT binary)"),
        run(f"COPY ({JOIN}) TO STDOUT (FORMAT binary)") + run("SELECT 1") + SYNC,
        query(f"COPY ({FAILS}) TO STDOUT"),
        query("COPY (SELECT * FROM a ORDER BY id) TO STDOUT"),
    ],
    "copied in, and joined": [
        query("CREATE TEMP TABLE tt (k bigint)"),
        (query("COPY tt FROM STDIN"), "G", 1),
        (frame(b"d", b"10\n5") + frame(b"d", b"0\n\\N\n") + frame(b"c"), "Z", 1),
        query("SELECT tt.k, a.id FROM tt JOIN a USING (k) ORDER BY 1, 2"),
        (run("COPY tt FROM STDIN") + FLUSH, "G", 1),
        (frame(b"d", b"x\n") + frame(b"c") + SYNC, "Z", 1),
        query("SELECT tt.k, a.id FROM tt JOIN a USING (k) ORDER BY 1, 2"),
    ],
    # --- what pools and drivers send around it
    "resets of pools": [
        parse(JOIN, b"s") + SYNC,
        query("SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *;"),
        bind(b"", b"s") + execute() + SYNC,
        run("DEALLOCATE ALL") + SYNC,
        bind(b"", b"s") + execute() + SYNC,
        run(JOIN) + SYNC,
    ],
    "a transaction by prepared statements": [
        parse("BEGIN", b"begin") + parse("COMMIT", b"commit") + parse(JOIN, b"s") + SYNC,
        bind(b"", b"begin") + execute() + bind(b"", b"s") + execute() + SYNC,
        bind(b"", b"s") + describe(b"P") + execute() + SYNC,
        bind(b"", b"commit") + execute() + SYNC,
    ],
    "settings that change what is read": [
        query(f"SET DateStyle TO 'German'; SET extra_float_digits TO 0; {JOIN}; RESET DateStyle; RESET extra_float_digits"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def talk(line):
    """Connect to the proxy and to the merged tables, which have the same names there."""
    opened = []

    def make():
        sides = []
        for dsn, path in ((line.dsn, "shop"), (line.merged, "public")):
            raw = Raw(**psycopg.conninfo.conninfo_to_dict(dsn))
            raw.ask(query(f"SET search_path TO {path}"))
            opened.append(raw)
            sides.append(raw)
        return sides

    yield make
    for raw in opened:
        raw.close()


def statuses(got):
    """Leave out the search path, whose schemas have other names."""
    return [m for m in got if not (m[0] == "S" and m[1].startswith(b"search_path"))]


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_client_sees_what_postgresql_sends_of_the_merged_tables(talk, name):
    proxy, merged = talk()
    due = statuses(play(merged, SEQUENCES[name], b""))
    assert statuses(play(proxy, SEQUENCES[name], b"")) == due
    assert ("Z", b"I") in due
    for raw in (proxy, merged):
        raw.close()


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT * FROM oar_ask('Сколько?')",
        "SELECT * FROM oar_explain('Сколько?')",
        "/* oar: Сколько? */",
        "SELECT count(*) FROM a WHERE id::text <> 'Привет'",
        "SELECT 'Привет'",
    ],
)
@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_another_encoding_changes_nothing_but_the_bytes(talk, asked, extended):
    proxy, _ = talk()
    codecs = {"UTF8": "utf-8", "WIN1251": "cp1251"}

    def said(encoding):
        proxy.ask(query(f"SET client_encoding = '{encoding}'"))
        text = asked.encode(codecs[encoding])
        sent = encode_parse(b"", text) + bind() + describe(b"P") + execute() + SYNC
        return [
            # Behind the number of columns and the bytes that the first has.
            (code, body[6 if code == "D" else 0 :].decode(codecs[encoding], "replace")[:60])
            for code, body in proxy.ask(sent if extended else frame(b"Q", text + b"\0"))
            if code not in "TS" and not (code == "N" and b"milliseconds" in body)
        ]

    there = said("UTF8")
    assert said("WIN1251") == there
    assert there[-1][0] == "Z"
    proxy.close()


def test_names_that_are_not_ascii_are_refused_where_the_encoding_is_not_utf8(talk):
    proxy, _ = talk()
    name, text = "ж".encode("cp1251"), b"SELECT count(*) FROM a"
    proxy.ask(query("SET client_encoding = 'WIN1251'"))
    for asked in (
        encode_parse(name, text) + SYNC,
        encode_parse(b"s", text) + bind(name, b"s") + execute(name) + SYNC,
    ):
        got = [comparable(*m) for m in proxy.ask(asked)]
        (error,) = [fields for code, fields in got if code == "E"]
        assert error["C"] == b"0A000"
        assert b"is not ASCII" in error["M"]
    plain = encode_parse(name, b"SELECT 1") + bind(name, name) + execute(name) + SYNC
    assert not any(code == "E" for code, _ in proxy.ask(plain))
    proxy.close()


def test_bytes_that_are_no_text_of_the_clients_encoding_are_refused(talk):
    proxy, _ = talk()
    text = "SELECT * FROM oar_ask('Сколько?')".encode("cp1251")
    assert any(code == "E" for code, _ in proxy.ask(frame(b"Q", text + b"\0")))
    proxy.ask(query("SET client_encoding = 'EUC_JP'"))
    for asked in (frame(b"Q", text + b"\0"), encode_parse(b"", text) + bind() + execute() + SYNC):
        got = [comparable(*m) for m in proxy.ask(asked)]
        (error,) = [fields for code, fields in got if code == "E"]
        assert error["C"] == b"22021"
        assert got[-1] == ("Z", b"I")
        assert ("Z", b"I") in proxy.ask(query("SELECT count(*) FROM a"))
    proxy.close()


@pytest.mark.parametrize("seed", range(2))
def test_one_after_another_in_one_session(talk, seed):
    proxy, merged = talk()
    names = list(SEQUENCES)
    random.Random(seed).shuffle(names)
    cleared = [query("ROLLBACK"), query("DEALLOCATE ALL; CLOSE ALL; DISCARD TEMP")]
    for at, name in enumerate(names):
        due = statuses(play(merged, SEQUENCES[name] + cleared, b""))
        got = statuses(play(proxy, SEQUENCES[name] + cleared, b""))
        assert got == due, f"{name}, behind {names[max(at - 3, 0) : at]}"
