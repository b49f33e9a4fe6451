"""Clients that do not speak UTF-8: what they ask, what they get, and what stays as they set it."""

from __future__ import annotations

import os
import select
import subprocess
from random import Random

import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.hub.binaries import find_binaries

NAMES = ["Jürgen", "Élise", "Мария", "日本語", "Łucja", "Anna", "naïve", "10 €", None, "Ж"]
TABLES = {
    "north": {
        "people": (
            'id bigint, name text, "größe" bigint',
            [(n, name, 150 + n) for n, name in enumerate(NAMES)],
        ),
        "many": ("id bigint, name text", [(n, f"Bürger {n}") for n in range(30_000)]),
    },
    "south": {"orders": ("person text, amount bigint", [(n, len(n or "")) for n in NAMES])},
}

# What of the names each encoding has, and how psql and drivers get it.
ENCODINGS = {
    "LATIN1": "Jürgen",
    "WIN1252": "10 €",
    "LATIN2": "Łucja",
    "KOI8R": "Мария",
    "WIN1251": "Мария",
    "SJIS": "日本語",
    "EUC_JP": "日本語",
    "GBK": "日本語",
    "BIG5": "日本語",
    "GB18030": "日本語",
}


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def shop(request, two_owners):
    with two_owners(request, request.param, TABLES) as (client, merged):
        yield reached(client()), merged


@pytest.fixture
def connect(shop):
    opened = []

    def connecting(encoding, cursor=psycopg.Cursor, **options):
        connection = psycopg.connect(
            shop[0], client_encoding=encoding, autocommit=True, cursor_factory=cursor, **options
        )
        opened.append(connection)
        connection.execute("SET search_path = shop")
        return connection

    yield connecting
    for connection in opened:
        connection.close()


CURSORS = pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor])


@CURSORS
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_statements_mean_what_they_say_in_any_encoding(connect, shop, encoding, cursor):
    client, name = connect(encoding, cursor), ENCODINGS[encoding]
    for query, parameters in [
        (f"SELECT id, name FROM people WHERE name = '{name}'", None),
        ("SELECT id, name FROM people WHERE name = %s", (name,)),
        (f"SELECT id, '{name}' AS \"{name}\" FROM people WHERE name <> '{name}' ORDER BY 1", None),
        ("SELECT p.name, o.amount FROM people p JOIN orders o ON o.person = p.name"
         " WHERE p.name = %s", (name,)),
        ("SELECT count(*) FROM people p JOIN orders o ON o.person = p.name AND p.name <> %s",
         (name,)),
        (f"SELECT max(name) FILTER (WHERE name = '{name}'), count(*) FROM people", None),
        ("SELECT id FROM people WHERE name = ANY (%s) ORDER BY 1", ([name, "Anna", None],)),
        (f"SELECT ascii(name), length(name) FROM people WHERE name LIKE '%{name[1:]}'"
         if parameters_free(name) else "SELECT 1", None),
    ]:  # fmt: skip
        cursor = client.execute(query.encode(client.info.encoding), parameters)
        there = shop[1].execute(query.encode(), parameters)
        assert cursor.fetchall() == there.fetchall(), query
        assert [c.name for c in cursor.description] == [c.name for c in there.description]
    assert client.execute("SHOW client_encoding").fetchone() == (encoding,)
    assert client.info.parameter_status("client_encoding") == encoding


def parameters_free(name):
    return "%" not in name


@CURSORS
def test_only_what_is_put_out_has_to_be_in_the_clients_encoding(connect, cursor):
    client = connect("LATIN1", cursor)
    assert client.execute("SELECT count(*) FROM people WHERE name > 'A'").fetchone() == (8,)
    with pytest.raises(psycopg.errors.UntranslatableCharacter) as failure:
        client.execute("SELECT name FROM people")
    assert 'has no equivalent in encoding "LATIN1"' in str(failure.value)
    assert client.execute("SELECT name FROM people WHERE id = 0").fetchone() == ("Jürgen",)


@CURSORS
def test_errors_come_in_the_clients_encoding(connect, cursor):
    client = connect("WIN1252", cursor)
    for query, state, said in [
        ("SELECT größer FROM people", "42703", 'column "größer" does not exist'),
        ("SELECT * FROM shop.größe", "42P01", 'relation "shop.größe" does not exist'),
        ("SELECT name FROM people WHERE id = 'ü'", "22P02", '"ü"'),
        ("SELECT * FROM people WHERE name = 'ü' FOR UPDATE", "0A000", ""),
        ("UPDATE people SET name = 'ü'", None, ""),
    ]:
        with pytest.raises(psycopg.Error) as failure:
            client.execute(query.encode("cp1252"))
        assert said in failure.value.diag.message_primary
        assert state is None or failure.value.sqlstate == state, query
    with pytest.raises(psycopg.Error) as failure:
        client.execute("SELECT 'ü', größer FROM people".encode("cp1252"))
    assert failure.value.diag.statement_position == "13"


def test_a_text_that_is_none_in_the_clients_encoding_is_refused(connect):
    client = connect("EUC_JP")
    with pytest.raises(psycopg.errors.CharacterNotInRepertoire, match="EUC_JP"):
        client.execute(b"SELECT * FROM people WHERE name = '\xff\xff'")
    assert client.execute("SELECT count(*) FROM people").fetchone() == (10,)


@CURSORS
def test_the_encoding_is_what_the_client_has_set(connect, cursor):
    client = connect("UTF8", cursor)
    query = "SELECT name FROM people WHERE name = 'Jürgen'"

    def asked(encoding):
        assert client.execute(query.encode(encoding)).fetchall() == [("Jürgen",)]

    asked("utf-8")
    client.execute("SET client_encoding = 'LATIN1'")
    asked("latin-1")
    with client.transaction():
        client.execute("SET LOCAL client_encoding = 'WIN1250'")
        asked("cp1250")
        assert client.execute("SHOW client_encoding").fetchone() == ("WIN1250",)
        asked("cp1250")
    assert client.execute("SHOW client_encoding").fetchone() == ("LATIN1",)
    asked("latin-1")
    with client.transaction():
        with client.transaction():
            client.execute("SET client_encoding = 'WIN1250'")
            asked("cp1250")
            raise psycopg.Rollback
        asked("latin-1")
        client.execute("SET client_encoding = 'UTF8'")
        asked("utf-8")
        raise psycopg.Rollback
    asked("latin-1")
    client.execute("BEGIN")
    client.execute("SET client_encoding = 'UTF8'")
    asked("utf-8")
    client.execute("COMMIT")
    asked("utf-8")
    client.execute("SET client_encoding = 'LATIN1'")
    for end, after in (("ROLLBACK", "LATIN1"), ("COMMIT", "WIN1250")):
        client.execute("BEGIN")
        client.execute("SET client_encoding = 'WIN1250'")
        asked("cp1250")
        client.execute(end)
        assert client.execute("SHOW client_encoding").fetchone() == (after,)
    client.execute("SET client_encoding = 'LATIN1'")
    client.execute("BEGIN")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        client.execute("SELECT größer FROM people".encode("latin-1"))
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        client.execute(query.encode("latin-1"))
    client.execute("ROLLBACK")
    asked("latin-1")
    client.execute("RESET client_encoding")
    asked("utf-8")


def test_a_transaction_begins_where_the_client_begins_it(connect):
    """What the proxy asks the hub meanwhile is in no transaction of the client's."""
    client = connect("LATIN1", psycopg.ClientCursor)
    for query in ("SELECT 'ü'", "SELECT name FROM people WHERE name = 'ü'", "SELECT 'ü' AS people"):
        client.execute(query.encode("latin-1"))
        client.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert client.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
        client.execute("COMMIT")
    client.execute(
        "BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 'ü'; COMMIT".encode(
            "latin-1"
        )
    )
    batch = (
        "BEGIN; SET TRANSACTION READ ONLY; SELECT name FROM people WHERE name = 'Jürgen'; COMMIT"
    )
    cursor = client.execute(batch.encode("latin-1"))
    while cursor.description is None:
        cursor.nextset()
    assert cursor.fetchall() == [("Jürgen",)]


def test_what_is_prepared_is_kept_in_the_hubs_own_encoding(connect):
    client = connect("LATIN1", psycopg.ClientCursor)

    def run(text, encoding):
        cursor = client.execute(text.encode(encoding))
        return cursor.fetchall() if cursor.description else None

    run("PREPARE p(text) AS SELECT name, 'ü' FROM people WHERE name = $1", "latin-1")
    assert run("EXECUTE p('Jürgen')", "latin-1") == [("Jürgen", "ü")]
    assert run("SELECT 'ü', statement LIKE '%''ü''%' FROM pg_prepared_statements", "latin-1") == [
        ("ü", True)
    ]
    run("SET client_encoding = 'UTF8'", "utf-8")
    assert run("EXECUTE p('Jürgen')", "utf-8") == [("Jürgen", "ü")]
    run("SET client_encoding = 'WIN1252'", "utf-8")
    run("BEGIN; DECLARE c CURSOR FOR SELECT name FROM people WHERE name = 'Élise'", "cp1252")
    assert run("FETCH ALL FROM c", "cp1252") == [("Élise",)]
    run("COMMIT", "cp1252")
    run("CREATE TEMP TABLE kept AS SELECT name FROM people WHERE name LIKE 'Jü%'", "cp1252")
    run("INSERT INTO kept SELECT name FROM people WHERE name = 'Élise'", "cp1252")
    assert run("SELECT name FROM kept ORDER BY 1", "cp1252") == [("Jürgen",), ("Élise",)]
    assert run("SELECT id FROM people WHERE name IN (TABLE kept) ORDER BY 1", "cp1252") == [
        (0,),
        (1,),
    ]


def test_prepared_by_the_protocol_and_asked_again_in_another_encoding(connect):
    client = connect("LATIN1")
    query = "SELECT id, name FROM people WHERE name = %s AND name <> 'ü'"
    for encoding in ("LATIN1", "WIN1252", "UTF8", "LATIN1"):
        client.execute(f"SET client_encoding = '{encoding}'")
        for _ in range(3):
            cursor = client.execute(query.encode(client.info.encoding), ("Jürgen",), prepare=True)
            assert cursor.fetchall() == [(0, "Jürgen")]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_parameters_and_rows_in_both_formats(connect, binary):
    client = connect("WIN1252")
    sign = "%b" if binary else "%t"
    cursor = client.cursor(binary=binary)
    cursor.execute(
        f"SELECT name, {sign}::text, {sign}::bytea, {sign}::float8, {sign}::text[] FROM people"
        f" WHERE name = {sign}",
        ("ü€", b"\xff\x00\xfc", 0.1, ["ü", None], "Jürgen"),
    )
    assert cursor.fetchall() == [("Jürgen", "ü€", b"\xff\x00\xfc", 0.1, ["ü", None])]


def test_a_pipeline(connect):
    client = connect("LATIN1")
    with client.pipeline():
        first = client.execute("SELECT 'ü'")
        second = client.execute("SELECT name FROM people WHERE name = %s", ("Jürgen",))
        third = client.execute("SELECT 'ä'")
        fourth = client.execute("SELECT count(*) FROM people WHERE name > %s", ("Ä",))
    found = [cursor.fetchall() for cursor in (first, second, third, fourth)]
    assert found == [[("ü",)], [("Jürgen",)], [("ä",)], [(5,)]]
    with client.pipeline() as pipeline:
        client.execute("SELECT größer FROM people")
        client.execute("SELECT name FROM people WHERE name = 'ü'")
        with pytest.raises(psycopg.errors.UndefinedColumn, match="größer"):
            pipeline.sync()
    assert client.execute("SELECT name FROM people WHERE id = 0").fetchall() == [("Jürgen",)]


@CURSORS
def test_large_answers_pass(connect, cursor):
    client = connect("LATIN1", cursor)
    rows = client.execute("SELECT id, name FROM many WHERE name <> 'ü'").fetchall()
    assert sorted(rows) == TABLES["north"]["many"][1]
    with client.cursor().copy("COPY (SELECT name FROM many WHERE name <> 'ü') TO STDOUT") as copy:
        assert sum(bytes(line).startswith("Bürger ".encode("latin-1")) for line in copy) == 30_000


def test_questions_in_another_encoding(connect):
    client = connect("LATIN1", psycopg.ClientCursor)
    count = "How many people with the name Jürgen are there?"
    for query in (f"SELECT * FROM public.oar_ask('{count}')", f"/* oar: {count} */"):
        assert client.execute(query.encode("latin-1")).fetchall() == [(1,)]
    client = connect("LATIN1")
    assert client.execute("SELECT * FROM public.oar_ask_json(%s)", (count,)).fetchone()[0]
    with pytest.raises(psycopg.Error) as failure:
        client.execute("SELECT * FROM public.oar_ask('Wie groß ist der Mond?')")
    assert failure.value.sqlstate.startswith("OA")


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "SJIS"])
def test_psql(shop, encoding):
    dsn, _ = shop
    codec = {"LATIN1": "latin-1", "WIN1252": "cp1252", "SJIS": "cp932"}[encoding]
    name = ENCODINGS[encoding]
    text = f"""SET search_path = shop;
SELECT id, name FROM people WHERE name = '{name}';
\\set n '{name}'
SELECT amount FROM orders WHERE person = :'n';
BEGIN; SELECT name, '{name}' FROM people WHERE name = '{name}'; COMMIT;
SELECT nothing, '{name}' FROM people;
\\copy (SELECT name FROM people WHERE name = '{name}') TO STDOUT
\\encoding
"""
    done = subprocess.run(
        [find_binaries().directory / "psql", "-XAt", "-v", "VERBOSITY=terse", dsn],
        input=text.encode(codec), capture_output=True, check=False,
        env={**os.environ, "PGCLIENTENCODING": encoding},
    )  # fmt: skip
    place = NAMES.index(name)
    assert done.stdout.decode(codec).splitlines() == [
        *("SET", f"{place}|{name}", str(len(name)), "BEGIN", f"{name}|{name}", "COMMIT"),
        *(name, encoding),
    ]
    assert done.stderr.decode(codec).splitlines() == [
        'ERROR:  column "nothing" does not exist at character 8'
    ]


WORDS = {"LATIN1": "Jürgen", "WIN1250": "Jürgen", "WIN1252": "Élise", "UTF8": "Мария"}
CODECS = {"LATIN1": "latin-1", "WIN1250": "cp1250", "WIN1252": "cp1252", "UTF8": "utf-8"}


def steps(random, encoding):
    """Statements of ours, of the hub's alone, and such as change the encoding or a transaction."""
    word = WORDS[encoding]
    return random.choice([
        f"SELECT id, name FROM people WHERE name = '{word}'",
        f"SELECT '{word}' AS \"{word}\"",
        f"SELECT count(*), '{word}' FROM people p JOIN orders o ON o.person = p.name",
        f"SELECT {word} FROM people",
        f"SELECT '{word}'; SELECT name FROM people WHERE name = '{word}'",
        f"SELECT name FROM people WHERE name = '{word}'; SELECT '{word}'; SELECT {word}",
        f"DEALLOCATE ALL; PREPARE p AS SELECT name FROM people WHERE name = '{word}'",
        "EXECUTE p",
        f"SELECT name FROM people WHERE id = '{word}'",
        "SELECT name FROM people ORDER BY id",
        "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s",
        *(f"SET client_encoding = '{name}'" for name in CODECS),
        *(f"SET LOCAL client_encoding = '{name}'" for name in CODECS),
        "RESET client_encoding",
        *(f"SET client_encoding = '{name}'; SELECT '{word}'; SELECT name FROM people WHERE"
          f" name = '{word}'; SELECT '{word}'" for name in CODECS),
        *(f"SELECT count(*) FROM people; SET LOCAL client_encoding = '{name}'; SELECT name FROM"
          f" people WHERE name = '{word}'; COMMIT; SELECT id FROM people WHERE name = '{word}'"
          for name in CODECS),
        f"RESET client_encoding; SELECT name FROM people WHERE name = '{word}'",
    ])  # fmt: skip


def outcome(connection, text, encoding, *, prepare):
    """Rows, names of columns and SQLSTATE of each statement of a text, and the encoding after it."""
    kind = psycopg.Cursor if prepare else psycopg.ClientCursor
    said = []
    try:
        cursor = kind(connection).execute(text.encode(CODECS[encoding]), prepare=prepare or None)
        while True:
            if cursor.description:
                rows = cursor.fetchall()
                said.append(([c.name for c in cursor.description], sorted(map(str, rows))))
            if not cursor.nextset():
                break
    except psycopg.Error as error:
        said.append((error.sqlstate, error.diag.message_primary, error.diag.statement_position))
    return said, connection.info.parameter_status("client_encoding")


@pytest.mark.parametrize("seed", range(12))
def test_a_session_goes_on_as_one_of_postgresql_does(shop, seed):
    """Whatever is asked in whatever order, against the same tables in one database."""
    random = Random(seed)
    dsn, merged = shop
    with (
        psycopg.connect(dsn, autocommit=True, client_encoding="LATIN1") as ours,
        psycopg.connect(reached(merged), autocommit=True, client_encoding="LATIN1") as theirs,
    ):
        ours.execute("SET search_path = shop")
        for _ in range(120):
            encoding = ours.info.parameter_status("client_encoding")
            text = steps(random, encoding)
            prepare = ";" not in text and random.random() < 0.5
            got = outcome(ours, text, encoding, prepare=prepare)
            assert got == outcome(theirs, text, encoding, prepare=prepare), (text, encoding)
            assert ours.info.transaction_status == theirs.info.transaction_status, text


STRINGS = [
    "SET client_encoding = 'LATIN1'; SELECT name FROM people WHERE name = 'Jürgen'",
    "SET client_encoding = 'LATIN1'; SELECT 'Jürgen'; SELECT count(*) FROM people",
    "SET NAMES 'LATIN1'; SELECT id FROM people WHERE name = 'Jürgen'; SELECT 'ü'",
    "SELECT count(*) FROM people; SET client_encoding = 'LATIN1'; SELECT id, name FROM people WHERE id = 0",
    "SELECT set_config('client_encoding', 'WIN1252', false); SELECT name FROM people WHERE name = 'Élise'",
    "SET client_encoding = 'LATIN1'; SELECT name FROM people WHERE name = 'Мария'",
    "SET client_encoding = 'LATIN1'; RESET client_encoding; SELECT name FROM people WHERE name = 'Мария'",
    "BEGIN; SET LOCAL client_encoding = 'LATIN1'; SELECT name FROM people WHERE id = 0; ROLLBACK; SELECT 'ü'",
]  # fmt: skip


def next_result(connection):
    """Wait without holding the interpreter, in which the proxy runs."""
    while connection.flush() or connection.is_busy():
        assert select.select([connection.socket], [], [], 60)[0]
        connection.consume_input()
    return connection.get_result()


def replies(dsn, send):
    """Rows, as they came, and SQLSTATE of what is sent over a connection in UTF-8."""
    with psycopg.connect(dsn, autocommit=True, client_encoding="UTF8") as connection:
        connection.execute("SET search_path = shop, public")
        told = []
        for result in send(connection.pgconn):
            rows = range(result.ntuples)
            cells = [[result.get_value(n, m) for m in range(result.nfields)] for n in rows]
            told.append((result.error_field(psycopg.pq.DiagnosticField.SQLSTATE), cells))
        return told, connection.pgconn.parameter_status(b"client_encoding")


@pytest.mark.parametrize("text", STRINGS)
def test_an_encoding_that_is_set_in_the_same_query_string(shop, text):
    def send(connection):
        connection.send_query(text.encode())
        while (result := next_result(connection)) is not None:
            yield result

    assert replies(shop[0], send) == replies(reached(shop[1]), send)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT id, name FROM people WHERE name = 'Jürgen'", None),
        ("SELECT id, name FROM people WHERE name = $1", "Jürgen"),
        ("SELECT name FROM people WHERE id = $1", "0"),
        ("SELECT 'ü', $1::text", "ü"),
    ],
)
def test_an_encoding_that_is_set_in_the_same_pipeline(shop, query, value):
    """What comes behind it is read in it, whatever the client has been told."""

    def send(encoding):
        def run(connection):
            connection.enter_pipeline_mode()
            connection.send_query_params(b"SET client_encoding = 'LATIN1'", None)
            values = None if value is None else [value.encode(encoding)]
            connection.send_query_params(query.encode(encoding), values)
            connection.pipeline_sync()
            ended = psycopg.pq.ExecStatus.PIPELINE_SYNC
            while (result := next_result(connection)) is None or result.status != ended:
                if result is not None:
                    yield result
            connection.exit_pipeline_mode()

        return run

    for encoding in ("utf-8", "latin-1"):
        assert replies(shop[0], send(encoding)) == replies(reached(shop[1]), send(encoding))


def reached(connection):
    at = connection.info
    return psycopg.conninfo.make_conninfo(
        **{"host": at.host, "port": at.port, "dbname": at.dbname},
        **{"user": at.user, "password": at.password},
    )
