"""Questions in every place a statement may hold one, with recorded drafts over real owners."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import psycopg
import psycopg.conninfo
import pytest
from oar_proxy.settings import DrafterSettings

DRAFTS = {
    "pairs?": "SELECT a.id, b.w FROM a JOIN b USING (k) ORDER BY 1, 2 -- all of them",
    "how many?": "SELECT count(*) FROM a;",
    "it's split?": "SELECT t, count(*) AS n FROM split GROUP BY t",
    "по-русски?": "SELECT count(*) AS сколько FROM a WHERE v = 'Привет'",
    "no answer?": "",
    "wrong?": "SELECT nothing FROM a",
    "two?": "SELECT 1; SELECT 2",
    "a write?": "DELETE FROM a",
    "grouped?": "SELECT d.id, d.name, count(*) FROM d JOIN b ON b.k = d.id GROUP BY d.id",
}
PAIRS = [(1, 100), (1, 200), (4, 100), (4, 200), (5, 900), (6, None)]

FORMS = {
    "from": "SELECT * FROM oar_ask('pairs?')",
    "select": "SELECT oar_ask('pairs?')",
    "qualified": "SELECT * FROM public.oar_ask('pairs?')",
    "comment": "/* oar: pairs? */",
    "comment on lines": "/*\n  OAR:\n  pairs? */",
    "line comment": "-- oar: pairs?\n",
    "comment in an empty select": "SELECT /* oar: pairs? */",
    "alias": "SELECT q.* FROM oar_ask('pairs?') AS q",
    "renamed columns": "SELECT x, y FROM oar_ask('pairs?') AS q(x, y)",
    "cast": "SELECT * FROM oar_ask('pairs?'::text)",
    "by name": "SELECT * FROM oar_ask(question => 'pairs?')",
    "by name, as it was": "SELECT * FROM oar_ask(question := 'pairs?')",
    "dollar quotes": "SELECT * FROM oar_ask($$pairs?$$)",
    "subquery": "SELECT * FROM (SELECT oar_ask('pairs?')) q",
    "with": "WITH q AS (SELECT * FROM oar_ask('pairs?')) SELECT * FROM q ORDER BY 1, 2",
    "larger": "SELECT q.id, q.w FROM oar_ask('pairs?') q JOIN hub_table h ON h.id > 0 WHERE h.id = 1 ORDER BY 1, 2 LIMIT 10",
    "with a published table": "SELECT q.id, q.w FROM oar_ask('pairs?') q JOIN a ON a.id = q.id ORDER BY 1, 2",
    "lateral beside itself": "SELECT q.id, q.w FROM oar_ask('pairs?') q, oar_ask('how many?') n WHERE n.count = 6 ORDER BY 1, 2",
    "second of a batch": "SET oar.progress = off; SELECT * FROM oar_ask('pairs?')",
}  # fmt: skip


@pytest.fixture(scope="module")
def asked(owners, running_proxy, new_database, tmp_path_factory):
    recorded = tmp_path_factory.mktemp("drafts") / "drafts.jsonl"
    recorded.write_text(
        "".join(json.dumps({"question": q, "sql": s}) + "\n" for q, s in DRAFTS.items())
    )
    hub = new_database("hub")
    settings = owners.settings(hub, dict.fromkeys(owners.urls, owners.ALLOW)).model_copy(
        update={"drafter": DrafterSettings(kind="replay", file=recorded)}
    )
    with running_proxy(settings) as (_, dsn):
        with psycopg.connect(hub, autocommit=True) as connection:
            connection.execute("CREATE TABLE public.hub_table (id int)")
            connection.execute("INSERT INTO public.hub_table VALUES (1), (2)")
            connection.execute("GRANT SELECT ON public.hub_table TO oar_client")
        yield dsn, hub


@pytest.fixture
def person(asked):
    with psycopg.connect(asked[0], autocommit=True) as connection:
        yield connection


def last_rows(cursor):
    while cursor.nextset():
        pass
    return cursor.fetchall()


@pytest.mark.parametrize("form", FORMS)
def test_a_question_gives_the_rows_of_its_draft(person, form):
    assert last_rows(person.execute(FORMS[form])) == PAIRS


@pytest.mark.parametrize("form", [f for f in FORMS if ";" not in FORMS[f]])
def test_a_question_can_be_prepared(person, form):
    for _ in range(2):
        assert person.execute(FORMS[form], prepare=True).fetchall() == PAIRS


def test_a_question_travels_in_carriers(person):
    with person.cursor().copy("COPY (SELECT oar_ask('pairs?')) TO STDOUT") as copied:
        assert len(b"".join(copied).splitlines()) == 6
    person.execute("CREATE TEMP TABLE kept AS SELECT * FROM oar_ask('it''s split?')")
    assert person.execute("SELECT t, n FROM kept ORDER BY t").fetchall() == [("n", 2), ("s", 3)]
    person.execute("CREATE TEMP VIEW seen AS SELECT * FROM oar_ask('how many?')")
    assert person.execute("SELECT * FROM seen").fetchall() == [(6,)]
    with person.transaction(), person.cursor(name="c") as cursor:
        cursor.execute("SELECT * FROM oar_ask('pairs?')")
        assert cursor.fetchmany(2) == PAIRS[:2]
    plan = person.execute("EXPLAIN SELECT * FROM oar_ask('pairs?')").fetchall()
    assert plan[1] == ("  Draft (replay): " + DRAFTS["pairs?"],)


def test_names_of_the_draft_are_the_answers(person):
    cursor = person.execute("SELECT * FROM oar_ask('по-русски?')")
    assert [c.name for c in cursor.description] == ["сколько"]
    assert cursor.fetchall() == [(1,)]
    grouped = person.execute("SELECT * FROM oar_ask('grouped?') ORDER BY id").fetchall()
    assert grouped == [(10, "ten", 2), (50, "fifty", 1)]


def test_the_plan_of_a_call_is_that_of_its_draft(person):
    lines = person.execute("SELECT * FROM oar_explain('how many?')").fetchall()
    call = "SELECT * FROM oar_explain('SELECT * FROM oar_ask_json(''how many?'')')"
    told = person.execute(call).fetchall()
    assert told[1:3] == lines[1:3]
    assert any("shop.a" in line for (line,) in told)


@pytest.mark.parametrize(
    ("question", "sqlstate"),
    [
        ("no answer?", "OA001"),
        ("never recorded?", "OA001"),
        ("wrong?", "OA003"),
        ("two?", "OA003"),
        ("a write?", "OA003"),
    ],
)
def test_what_cannot_be_answered_is_an_error(person, question, sqlstate):
    for statement in (
        f"SELECT * FROM oar_ask('{question}')",
        f"SELECT * FROM oar_ask_json('{question}')",
        f"SELECT * FROM oar_explain('{question}')",
    ):
        with pytest.raises(psycopg.Error) as failure:
            person.execute(statement)
        assert failure.value.sqlstate == sqlstate
    assert person.execute("SELECT * FROM oar_ask('how many?')").fetchall() == [(6,)]


def test_a_question_needs_the_privileges_its_draft_needs(person, asked):
    with psycopg.connect(asked[1], autocommit=True) as hub:
        hub.execute("REVOKE SELECT ON shop.b FROM oar_client")
        try:
            for call in ("oar_ask", "oar_ask_json", "oar_explain"):
                with pytest.raises(psycopg.Error) as refused:
                    person.execute(f"SELECT * FROM {call}('pairs?')")
                assert refused.value.sqlstate in ("42501", "OA003"), call
        finally:
            hub.execute("GRANT SELECT ON shop.b TO oar_client")


def test_drivers_that_bind_the_question(asked):
    parts = psycopg.conninfo.conninfo_to_dict(asked[0])

    async def ask():
        connection = await asyncpg.connect(
            host=parts["host"],
            port=int(parts["port"]),
            user=parts["user"],
            password=parts["password"],
            database=parts["dbname"],
        )
        try:
            rows = await connection.fetch("SELECT * FROM oar_ask_json($1)", "pairs?")
            named = await connection.fetch("SELECT j FROM oar_ask_json($1) AS j", "how many?")
            sole = await connection.fetchval("SELECT oar_ask_json($1)", "how many?")
            plan = await connection.fetch("SELECT * FROM oar_explain($1)", "pairs?")
            statement = await connection.fetch("SELECT * FROM oar_explain($1)", "TABLE shop.a")
            with pytest.raises(asyncpg.FeatureNotSupportedError) as refused:
                await connection.fetch("SELECT * FROM oar_ask($1)", "pairs?")
            with pytest.raises(asyncpg.FeatureNotSupportedError):
                await connection.fetch("SELECT * FROM oar_ask_json($1)", None)
            return rows, named, sole, plan, statement, refused.value
        finally:
            await connection.close()

    rows, named, sole, plan, statement, refused = asyncio.run(ask())
    assert [json.loads(row["oar_ask_json"]) for row in rows] == [
        {"id": i, "w": w} for i, w in PAIRS
    ]
    assert [tuple(row) for row in named] == [('{"count": 6}',)]
    assert json.loads(sole) == {"count": 6}
    assert plan[0][0] == statement[0][0] == "Federated Query"
    assert "oar_ask_json($1)" in refused.hint


def test_explain_of_what_the_hub_answers_alone(person):
    plan = person.execute("SELECT * FROM oar_explain('SELECT * FROM hub_table')").fetchall()
    assert plan[0] == ("Hub Query",)


def test_an_answer_of_another_shape_is_refused_after_the_catalog_changed(
    owners, running_proxy, new_database
):
    with psycopg.connect(owners.west, autocommit=True) as west:
        west.execute("CREATE TABLE IF NOT EXISTS changing (id bigint, x text)")
        west.execute("INSERT INTO changing VALUES (1, 'one')")
        try:
            settings = owners.settings(new_database("hub"), {})
            with (
                running_proxy(settings) as (refresh, dsn),
                psycopg.connect(dsn, autocommit=True) as client,
            ):
                statement = "SELECT * FROM shop.changing"
                for _ in range(2):
                    assert client.execute(statement, prepare=True).fetchall() == [(1, "one")]
                west.execute("ALTER TABLE changing ADD COLUMN y int")
                assert refresh()
                with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan"):
                    client.execute(statement, prepare=True)
                assert client.execute("SELECT id, x, y FROM shop.changing").fetchall() == [
                    (1, "one", None)
                ]
                west.execute("DROP TABLE changing")
                assert refresh()
                with pytest.raises(psycopg.errors.UndefinedTable):
                    client.execute("SELECT id FROM shop.changing")
        finally:
            west.execute("DROP TABLE IF EXISTS changing")
