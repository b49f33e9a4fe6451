"""Verified answers over real owners and the wire: asked, published as views, and refused."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import psycopg
import pytest
from oar_proxy.settings import DrafterSettings
from waits import eventually

HEAD = "version: 1\nreviewer: Anna\nreviewed: 2026-11-30\ncatalog: 0123456789abcdef\n"
PAIRS = """\
question: Which pairs are there?
phrasings: [pairs]
sql: SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) ORDER BY 1, 2
view: pairs
"""
BY_KIND = """\
question: How many of kind {kind} are above {least}?
phrasings: ["above {least} of {kind}"]
sql: SELECT count(*) AS n FROM shop.b WHERE s = $1 AND w > $2
parameters:
  - {name: kind, type: text}
  - {name: least, type: integer}
"""
GROUPED = """\
question: How often is each named?
sql: SELECT d.id, d.name, count(*) AS n FROM shop.d JOIN shop.b ON b.k = d.id GROUP BY d.id
view: named
"""
KEPT = """\
question: Is {value} kept?
sql: SELECT v FROM (SELECT $1 AS v) AS x WHERE EXISTS (SELECT FROM shop.a)
parameters:
  - {name: value, type: text}
"""
FILES = {"pairs": PAIRS, "by_kind": BY_KIND, "grouped": GROUPED, "kept": KEPT}
ROWS = [(1, 100), (1, 200), (4, 100), (4, 200), (5, 900), (6, None)]


@pytest.fixture(scope="module")
def serve(owners, running_proxy, new_database, tmp_path_factory):
    @contextmanager
    def serving(files, policies=None, **drafter):
        directory = tmp_path_factory.mktemp("verified")
        for name, content in files.items():
            (directory / f"{name}.yaml").write_text(HEAD + content)
        hub = new_database("hub")
        settings = owners.settings(
            hub, policies or dict.fromkeys(owners.urls, owners.ALLOW)
        ).model_copy(update={"verified": directory, "catalog_refresh": 0.2, **drafter})
        with (
            running_proxy(settings) as (refresh, dsn),
            psycopg.connect(dsn, autocommit=True) as person,
        ):
            yield person, directory, hub, refresh

    return serving


@pytest.fixture(scope="module")
def served(serve):
    with serve(FILES) as proxy:
        yield proxy


@pytest.fixture
def person(served):
    connection = served[0]
    yield connection
    connection.execute("RESET ALL; DISCARD TEMP")


@contextmanager
def notices(connection):
    """Collect what the client is told."""
    told = []

    def take(notice):
        told.append((notice.message_primary, notice.message_detail))

    connection.add_notice_handler(take)
    try:
        yield told
    finally:
        connection.remove_notice_handler(take)


def asking(connection, question):
    with psycopg.ClientCursor(connection) as cursor, pytest.raises(psycopg.Error) as refused:
        cursor.execute("SELECT * FROM oar_ask(%s)", (question,))
    return refused.value


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        ("Which pairs are there?", ROWS),
        ("  Which  pairs are\nthere ??", ROWS),
        ("Which pairs are there", ROWS),
        ("pairs", ROWS),
        ("How many of kind p are above 100?", [(1,)]),
        ("How many of kind 'p' are above '99'?", [(2,)]),
        ("How many of kind «p» are above 300?", [(0,)]),
        ("above 99 of p", [(2,)]),
        ("How many of kind ' or 1=1 --' are above 0?", [(0,)]),
        ("How many of kind x'||s||' are above 0?", [(0,)]),
        (r"How many of kind \'p are above 0?", [(0,)]),
        ("Is  'a  b\u00a0c '\n kept \t??", [("a  b\u00a0c ",)]),
    ],
)
def test_a_verified_question_is_answered_by_its_sql(person, question, rows):
    with psycopg.ClientCursor(person) as cursor:
        assert cursor.execute("SELECT * FROM oar_ask(%s)", (question,)).fetchall() == rows
    answers = person.execute("SELECT * FROM oar_ask_json(%s)", (question,)).fetchall()
    assert [set(answer.values()) for (answer,) in answers] == [set(row) for row in rows]


@pytest.mark.parametrize(
    "question",
    [
        "which pairs are there?",
        "Which pairs are there!",
        "How many of kind P are above 100 or so?",
        "How many of kind p q are above 100?",
    ],
)
def test_what_was_verified_is_the_question_with_its_case_and_punctuation(served, question):
    refused = asking(served[0], question)
    assert refused.sqlstate == "OA001"


@pytest.mark.parametrize("value", ["many", "1.5", "99999999999", "''", "1)--", "NULL"])
def test_a_value_of_another_type_reaches_no_owner(person, value):
    before = person.execute("SELECT count(*) FROM oar.steps").fetchone()
    refused = asking(person, f"How many of kind p are above {value}?")
    assert refused.sqlstate == "22P02"
    assert refused.diag.message_primary == (
        'parameter least of verified answer "by_kind" is of type integer, and the question has '
        "another value there"
    )
    assert person.execute("SELECT count(*) FROM oar.steps").fetchone() == before


def test_it_says_that_it_was_verified_and_by_whom(served):
    person = served[0]
    with notices(person) as told:
        person.execute("SELECT * FROM oar_ask('pairs')")
    assert set(told) == {
        (
            'verified answer "pairs", reviewed by Anna on 2026-11-30',
            "SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) ORDER BY 1, 2",
        )
    }
    asked = "SELECT kind, verified FROM oar.asks ORDER BY at DESC LIMIT 1"
    assert person.execute(asked).fetchone() == ("verified", ["pairs"])
    person.execute("SELECT * FROM oar_ask_json('above 99 of p')")
    assert person.execute(asked).fetchone() == ("verified", ["by_kind"])
    lines = [line for (line,) in person.execute("SELECT * FROM oar_explain('pairs')")]
    assert lines[1].startswith("  Verified Answer (pairs, reviewed by Anna on 2026-11-30): SELECT")
    ((document,),) = person.execute(
        "EXPLAIN (FORMAT json) SELECT * FROM oar_ask('above 99 of p')"
    ).fetchall()
    (draft,) = document[0]["Plan"]["Drafts"]
    assert draft == {
        "Drafter": "verified",
        "SQL": "SELECT count(*) AS n FROM shop.b WHERE s = ('p'::pg_catalog.text)"
        " AND w > ('99'::pg_catalog.int4)",
        "Verified Answer": "by_kind",
        "Reviewed": "by Anna on 2026-11-30",
    }


def test_nothing_of_the_session_changes_what_it_reads(person):
    person.execute("CREATE TEMP TABLE a (id int, k int); CREATE TEMP TABLE text (x int)")
    person.execute("SET search_path = pg_temp, shop")
    assert person.execute("SELECT * FROM oar_ask('pairs')").fetchall() == ROWS
    assert person.execute("SELECT * FROM public.oar_ask('above 99 of p')").fetchall() == [(2,)]
    assert person.execute("SELECT * FROM verified.pairs").fetchall() == ROWS


@pytest.mark.parametrize("protocol", ["relay", "fan-out", "planned", "oar+"])
def test_no_protocol_is_asked_for_it(person, protocol):
    person.execute(f"SET oar.protocol = '{protocol}'")
    assert person.execute("SELECT * FROM oar_ask('pairs')").fetchall() == ROWS
    assert person.execute("SELECT * FROM oar_ask('above 99 of p')").fetchall() == [(2,)]
    answers = person.execute("SELECT * FROM oar_ask_json(%s)", ("above 99 of p",)).fetchall()
    assert answers == [({"n": 2},)]
    (line,) = person.execute("SELECT * FROM oar_explain('pairs') LIMIT 1").fetchone()
    assert line == "Federated Query"
    for statement in (
        "SELECT * FROM oar_ask_json('pairs') p, oar_ask_json('something else') q",
        "SELECT * FROM oar_ask_json(%s) p, oar_ask_json('something else') q",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="in one statement"):
            person.execute(statement, ("pairs",) if "%s" in statement else None)


def test_it_is_published_as_a_view(served):
    person = served[0]
    listed = person.execute(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class AS c"
        " WHERE c.relnamespace = 'verified'::regnamespace ORDER BY 1"
    ).fetchall()
    assert listed == [
        ("named", "How often is each named?"),
        ("pairs", "Which pairs are there?"),
    ]
    columns = person.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'verified' ORDER BY table_name, ordinal_position"
    ).fetchall()
    assert columns == [("id", "bigint"), ("name", "text"), ("n", "bigint"), ("id", "bigint"), ("w", "bigint")]  # fmt: skip
    assert person.execute("TABLE verified.pairs").fetchall() == ROWS
    filtered = "SELECT w FROM verified.pairs WHERE id = 1 ORDER BY w"
    assert person.execute(filtered).fetchall() == [(100,), (200,)]
    named = person.execute("SELECT * FROM verified.named ORDER BY id").fetchall()
    assert named == [(10, "ten", 2), (50, "fifty", 1)]
    with person.cursor().copy("COPY (SELECT * FROM verified.pairs) TO STDOUT") as copied:
        assert len(b"".join(copied).splitlines()) == len(ROWS)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        person.execute("DROP VIEW verified.pairs")


def view_oids(hub):
    rows = hub.execute(
        "SELECT relname, oid FROM pg_class WHERE relnamespace = 'verified'::regnamespace"
    )
    return dict(rows.fetchall())


def test_views_are_made_anew_only_where_they_would_be_others(serve, owners):
    with (
        serve({"pairs": PAIRS, "grouped": GROUPED}) as (person, directory, dsn, refresh),
        psycopg.connect(dsn, autocommit=True) as hub,
        psycopg.connect(owners.north, autocommit=True) as owner,
    ):
        before = view_oids(hub)
        # What an administrator made on one holds nothing up.
        hub.execute("CREATE VIEW public.on_pairs AS SELECT w FROM verified.pairs")
        hub.execute("GRANT SELECT ON public.on_pairs TO oar_client")
        owner.execute("CREATE TABLE later (id int)")
        try:
            refresh()
            assert person.execute("SELECT count(*) FROM shop.later").fetchone() == (0,)
            assert view_oids(hub) == before
            assert person.execute("SELECT count(*) FROM public.on_pairs").fetchone() == (6,)
        finally:
            owner.execute("DROP TABLE later")
        # Nor does it where the view has to be another: that one answer does not fit.
        changed = (HEAD + PAIRS).replace("a.id, b.w", "a.id, b.w + 0 AS w")
        (directory / "pairs.yaml").write_text(changed)
        eventually(lambda: error_of(person, "SELECT * FROM oar_ask('pairs')") == "OA006")
        assert person.execute("SELECT count(*) FROM oar_ask('How often is each named?')")
        assert view_oids(hub) == before
        hub.execute("DROP VIEW public.on_pairs")
        eventually(lambda: error_of(person, "SELECT * FROM oar_ask('pairs')") is None)
        assert view_oids(hub)["pairs"] != before["pairs"]
        # Another version made this one, by another text.
        before = view_oids(hub)
        hub.execute(
            "UPDATE oar_internal.verified SET content = content - 'made' WHERE name = 'grouped'"
        )
        refresh()
        after = view_oids(hub)
        assert after["pairs"] == before["pairs"]
        assert after["named"] != before["named"]
        named = person.execute("SELECT * FROM verified.named ORDER BY id").fetchall()
        assert named == [(10, "ten", 2), (50, "fifty", 1)]


def test_a_schema_of_their_name_that_is_another_ones_holds_nothing_up(serve):
    with serve({"kept": KEPT}) as (person, directory, dsn, refresh):
        with psycopg.connect(dsn, autocommit=True) as hub:
            hub.execute("CREATE SCHEMA verified")
        (directory / "pairs.yaml").write_text(HEAD + PAIRS)
        eventually(lambda: error_of(person, "SELECT * FROM oar_ask('pairs')") == "OA006")
        refresh()
        assert person.execute("SELECT * FROM oar_ask('Is x kept?')").fetchall() == [("x",)]


def error_of(connection, statement):
    try:
        # Prepared, it would keep the answer it was prepared with.
        connection.execute(statement, prepare=False)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_clients_can_list_them(person):
    listed = person.execute(
        "SELECT name, question, phrasings, parameters, view, reviewer, reviewed::text, fits"
        " FROM oar.verified ORDER BY name"
    ).fetchall()
    assert listed[:2] == [
        ("by_kind", "How many of kind {kind} are above {least}?", ["above {least} of {kind}"], ["kind text", "least integer"], None, "Anna", "2026-11-30", True),
        ("grouped", "How often is each named?", [], [], "verified.named", "Anna", "2026-11-30", True),
    ]  # fmt: skip


def test_policies_hold_for_it(serve, owners):
    deny = "version: 1\nsubjects: [nobody_in_particular]\n"
    policies = dict.fromkeys(owners.urls, owners.ALLOW) | {"south": deny}
    with serve(FILES, policies) as (person, *_):
        for statement in (
            "SELECT * FROM oar_ask('pairs')",
            "SELECT * FROM oar_ask('above 99 of p')",
            "SELECT * FROM verified.pairs",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                person.execute(statement)
        assert person.execute("SELECT count(*) FROM oar.steps").fetchone() == (0,)
    with serve(FILES, {"north": "version: 1"}) as (person, *_):
        assert person.execute("SELECT * FROM verified.pairs").fetchall() == ROWS
        assert person.execute("SELECT count(*) FROM oar.disclosures").fetchone() == (0,)


def test_what_does_not_fit_is_refused_and_withheld(serve):
    with serve(FILES) as (person, directory, *_):
        assert person.execute("SELECT * FROM oar_ask('pairs')").fetchall() == ROWS
        pairs = directory / "pairs.yaml"
        pairs.write_text(HEAD + PAIRS.replace("b.w", "b.gone"))
        fits = "SELECT fits FROM oar.verified WHERE name = 'pairs'"
        # The proxy's own state follows the hub's in a moment.
        assert eventually(lambda: person.execute(fits).fetchone() == (False,))
        assert eventually(lambda: answers(person, "SELECT * FROM oar_ask('pairs')") is None)
        refused = asking(person, "pairs")
        assert refused.sqlstate == "OA006"
        assert refused.diag.message_hint == "its reviewers find out why with: oar verify check"
        assert "gone" not in str(refused)
        with pytest.raises(psycopg.errors.UndefinedTable):
            person.execute("SELECT * FROM verified.pairs")
        assert person.execute("SELECT count(*) FROM verified.named").fetchone() == (2,)
        pairs.write_text(HEAD + PAIRS)
        assert eventually(lambda: person.execute(fits).fetchone() == (True,))
        assert eventually(lambda: answers(person, "SELECT * FROM verified.pairs") == ROWS)


def test_a_table_that_changes_takes_its_view_along(serve, owners):
    entry = (
        "question: What moves?\nsql: SELECT m.id, m.x FROM shop.moving AS m ORDER BY 1\n"
        "view: moves\n"
    )
    recorded = json.dumps({"question": "What moves?", "sql": "SELECT 1"}) + "\n"
    with psycopg.connect(owners.west, autocommit=True) as west:
        west.execute("CREATE TABLE moving (id bigint, x text)")
        west.execute("INSERT INTO moving VALUES (1, 'one')")
        try:
            replay = owners.directory / "moving.jsonl"
            replay.write_text(recorded)
            drafter = DrafterSettings(kind="replay", file=replay)
            with serve({"moves": entry}, drafter=drafter) as (person, _, _, refresh):
                assert person.execute("SELECT * FROM oar_ask('What moves?')").fetchall() == [
                    (1, "one")
                ]
                west.execute("ALTER TABLE moving ADD COLUMN y int")
                refresh()
                assert person.execute("TABLE verified.moves").fetchall() == [(1, "one")]
                west.execute("ALTER TABLE moving DROP COLUMN x")
                refresh()
                assert asking(person, "What moves?").sqlstate == "OA006"
                with pytest.raises(psycopg.errors.UndefinedTable):
                    person.execute("TABLE verified.moves")
                west.execute("ALTER TABLE moving ADD COLUMN x text DEFAULT 'new'")
                refresh()
                assert person.execute("TABLE verified.moves").fetchall() == [(1, "new")]
                assert person.execute("SELECT * FROM oar_ask('What moves?')").fetchall() == [
                    (1, "new")
                ]
                west.execute("DROP TABLE moving")
                refresh()
                assert asking(person, "What moves?").sqlstate == "OA006"
                assert person.execute("SELECT fits FROM oar.verified").fetchall() == [(False,)]
        finally:
            west.execute("DROP TABLE IF EXISTS moving")


def test_a_broken_file_leaves_all_answers_in_force(serve):
    with serve(FILES) as (person, directory, *_):
        (directory / "new.yaml").write_text(HEAD + "question: new\nsql: SELECT 1 AS one\n")
        ask = "SELECT * FROM oar_ask('new')"
        assert eventually(lambda: answers(person, ask) == [(1,)])
        (directory / "pairs.yaml").unlink()
        (directory / "other.yaml").write_text("version: 1\nquestion:")
        time.sleep(1)
        assert person.execute("SELECT * FROM oar_ask('pairs')").fetchall() == ROWS
        (directory / "other.yaml").unlink()
        # The view goes a moment before the question does.
        assert eventually(lambda: answers(person, "TABLE verified.pairs") is None)
        assert eventually(lambda: answers(person, "SELECT * FROM oar_ask('pairs')") is None)
        assert asking(person, "pairs").sqlstate == "OA001"


def answers(connection, statement):
    try:
        return connection.execute(statement).fetchall()
    except psycopg.Error:
        return None


def test_what_a_policy_hides_later_is_not_named(serve, owners):
    with serve(FILES, dict.fromkeys(owners.urls, owners.ALLOW)) as (person, *_):
        policy = max(
            owners.directory.glob("south-*.yaml"), key=lambda path: path.stat().st_mtime_ns
        )
        policy.write_text(owners.ALLOW + "tables:\n  b: {deny_columns: [w]}\n")
        fits = "SELECT name FROM oar.verified WHERE NOT fits ORDER BY name"
        hidden = [("by_kind",), ("pairs",)]
        assert eventually(lambda: person.execute(fits).fetchall() == hidden)
        assert eventually(lambda: answers(person, "SELECT * FROM oar_ask('pairs')") is None)
        for question in ("pairs", "above 99 of p"):
            refused = asking(person, question)
            assert refused.sqlstate == "OA006"
            said = refused.diag
            told = (said.message_primary, said.message_detail, said.message_hint)
            assert not any("w" in text.split() or "column" in text for text in told)
        assert person.execute("SELECT count(*) FROM verified.named").fetchone() == (2,)


def test_an_administrators_view_on_what_is_hidden_later_holds_nothing_up(serve, owners):
    with (
        serve(FILES) as (person, _, dsn, refresh),
        psycopg.connect(dsn, autocommit=True) as hub,
    ):
        hub.execute("CREATE VIEW public.standing AS SELECT k FROM shop.b")
        hub.execute("GRANT SELECT ON public.standing TO oar_client")
        refresh()
        assert person.execute("SELECT count(*) FROM public.standing").fetchone() == (6,)
        policy = max(
            owners.directory.glob("south-*.yaml"), key=lambda path: path.stat().st_mtime_ns
        )
        policy.write_text(owners.ALLOW + "tables:\n  b: {deny_columns: [w]}\n")
        listed = "SELECT name FROM oar.columns WHERE table_name = 'b' ORDER BY name"
        assert eventually(lambda: ("w",) not in person.execute(listed).fetchall())
        assert eventually(lambda: error_of(person, "TABLE public.standing") == "42501")
        assert person.execute("SELECT count(k) FROM shop.b").fetchone() == (5,)
        assert error_of(person, "SELECT w FROM shop.b") == "42703"
        # The answer that still fits reads the table as it is now.
        assert person.execute("SELECT count(*) FROM verified.named").fetchone() == (2,)
        assert error_of(person, "TABLE verified.pairs") == "42P01"
        policy.write_text(owners.ALLOW)
        assert eventually(lambda: answers(person, "TABLE verified.pairs") == ROWS)
        assert error_of(person, "TABLE public.standing") == "42501"
        hub.execute("DROP VIEW public.standing")
        withdrawn = "SELECT count(*) FROM pg_class WHERE relname LIKE 'withdrawn%'"
        assert eventually(lambda: person.execute(withdrawn).fetchone() == (0,))


def test_an_administrators_schema_is_not_taken(serve):
    with serve({"grouped": GROUPED.replace("view: named\n", "")}) as (person, directory, hub, _):
        with psycopg.connect(hub, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA verified")
        (directory / "pairs.yaml").write_text(HEAD + PAIRS)
        time.sleep(1)
        assert answers(person, "TABLE verified.pairs") is None
        with psycopg.connect(hub, autocommit=True) as admin:
            admin.execute("DROP SCHEMA verified")
        assert eventually(lambda: answers(person, "TABLE verified.pairs") == ROWS)
