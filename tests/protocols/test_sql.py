"""Questions for a protocol in a client's session: over the wire, against real owners and a model."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import asyncpg
import psycopg
import psycopg.conninfo
import pytest
from modelserver import ModelServer, Reply, Script, asked, scripted, serving
from oar_bench.addresses import owner_url
from oar_proxy.protocols.named import PROTOCOLS as NAMED
from oar_proxy.settings import (
    PROTOCOLS,
    ApplicationSettings,
    DrafterSettings,
    HubSettings,
    Listen,
    OwnerSettings,
    QuestionSettings,
    Settings,
)
from waits import eventually, once

KEY = "recD078PnS3x2doBe"
ASK = "What is the amount of the funds that the Vice President received?"
READABLE = "version: 1\nmodel: {rows: allow}\n"
OPEN = READABLE + "key_disclosure:\n  - {column: member.member_id, to: [treasury], max_keys: 5}\n"
HIDDEN = "version: 1\n"


def owner_of(table, material):
    return next(o["owner"] for o in material["owners"] if f"table {table}\n" in o["schema"])


SCRIPTS = {
    "owner": lambda material: {
        "sql": "SELECT amount FROM income WHERE income_id = 'i1'"
        if "table income\n" in material["schema"]
        else ""
    },
    "planned": lambda material: {
        "queries": [
            {
                "owner": owner_of("income", material),
                "sql": "SELECT amount FROM income WHERE income_id = 'i1'",
            }
        ]
    },
}


@dataclass
class Clients:
    """A running proxy with two owners, and who connects to it."""

    refresh: Callable[[], bool]
    dsn: str
    hub: str
    model: ModelServer
    scripts: dict[str, Script]

    def connect(self, options=""):
        return psycopg.connect(self.dsn, autocommit=True, options=options)

    def materials(self, role):
        """What the model was sent in a role."""
        return [material for called, material in map(asked, self.model.received) if called == role]

    def roles(self):
        return {role for role, _ in map(asked, self.model.received)}

    def recorded(self, sql):
        with psycopg.connect(self.hub, autocommit=True) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def owner_urls(new_database, tmp_path_factory):
    directory = tmp_path_factory.mktemp("club")
    registry = sqlite3.connect(directory / "registry.sqlite")
    with registry:
        registry.execute(
            "CREATE TABLE member (member_id TEXT PRIMARY KEY, name TEXT, position TEXT)"
        )
        registry.execute("INSERT INTO member VALUES (?, 'Ada', 'Vice President')", (KEY,))
    registry.close()
    treasury = new_database("treasury")
    with psycopg.connect(treasury) as connection:
        connection.execute("CREATE TABLE income (income_id text, link_to_member text, amount int)")
        connection.execute("INSERT INTO income VALUES ('i1', %s, 50), ('i2', 'other', 7)", (KEY,))
    urls = {
        "registry": f"sqlite:///{directory}/registry.sqlite",
        "treasury": owner_url(treasury),
    }
    return directory, urls, treasury


@pytest.fixture(scope="module")
def proxied(owner_urls, new_database, running_proxy, well_behaved):
    """Make a running proxy: a context that gives its clients."""

    @contextmanager
    def make(drafter=None, questions=None, applications=None, **policies):
        directory, urls, _ = owner_urls
        owners = {}
        for name, url in urls.items():
            policy = directory / f"{name}-{len(list(directory.iterdir()))}.yaml"
            policy.write_text(policies.get(name, READABLE))
            owners[name] = OwnerSettings(url=url, schema=name, policy=policy)
        hub = new_database("hub")
        scripts = {**well_behaved, **SCRIPTS}
        with serving(scripted(scripts)) as model:
            settings = Settings(
                owners=owners,
                hub=HubSettings(dsn=hub),
                listen=Listen(port=0),
                drafter=drafter
                or DrafterSettings(
                    kind="litellm", model="openai/tiny", api_base=model.url, api_key="k"
                ),
                questions=questions or QuestionSettings(),
                applications=applications or {},
            )
            with running_proxy(settings) as (refresh, dsn):
                yield Clients(refresh, dsn, hub, model, scripts)

    return make


@pytest.fixture(scope="module")
def started(proxied):
    with proxied(registry=OPEN) as clients:
        yield clients


@pytest.fixture
def clients(started, well_behaved):
    """The proxy, its model behaving well and nothing received yet."""
    started.scripts.update({**well_behaved, **SCRIPTS})
    started.model.received.clear()
    started.model.arrived.clear()
    started.model.left.clear()
    return started


@pytest.fixture
def person(clients):
    """Connect, and make a protocol the session's."""
    with clients.connect() as connection:
        connection.execute("SET oar.protocol = 'relay'")
        yield connection


def rows(connection, statement, *arguments, **options):
    return connection.execute(statement, *arguments, **options).fetchall()


def refused(connection, statement, *arguments, **options):
    """The error of a statement; the session goes on after it."""
    with pytest.raises(psycopg.Error) as failure:
        connection.execute(statement, *arguments, **options)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    return failure.value


# --- choosing -------------------------------------------------------------------------------


def test_the_names_of_the_setting_are_those_of_the_protocols():
    assert set(PROTOCOLS) == {"compiled", *NAMED}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_session_chooses_who_answers(clients, protocol):
    with clients.connect() as connection:
        connection.execute("SELECT set_config('oar.protocol', %s, false)", (protocol,))
        expected = [] if protocol == "relay+ without rows" else [(50,)]
        if expected:
            assert rows(connection, f"SELECT * FROM oar_ask('{ASK}')") == expected
        else:
            assert refused(connection, f"SELECT * FROM oar_ask('{ASK}')").sqlstate == "OA001"
        (ask,) = rows(
            connection,
            "SELECT protocol, kind, route, kappa, sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1",
        )
    route = {"oar": "relay", "oar+": "relay+", "compiled": "relay"}.get(protocol, protocol)
    kappa = 2 if protocol in ("compiled", "oar", "oar+") else None
    assert ask == (protocol, "question", route, kappa, "00000" if expected else "OA001")
    assert bool(clients.materials("receiver")) == (protocol != "compiled")


@pytest.mark.parametrize("protocol", ["fan-out", "relay"])
def test_a_question_counts_once_in_a_budget_and_ends_where_that_is_used_up(proxied, protocol):
    budget = ApplicationSettings(application_name="*", max_statements=1)
    proxy = proxied(applications={"tool": budget}, registry=OPEN)
    with proxy as clients, clients.connect() as connection:
        connection.execute(f"SET oar.protocol = '{protocol}'")
        assert rows(connection, f"SELECT * FROM oar_ask('{ASK}')") == [(50,)]
        spent = "SELECT application, statements FROM oar.applications"
        assert clients.recorded(spent) == [("tool", 1)]
        # No model is told, for it could compose an answer of what is missing.
        clients.model.received.clear()
        error = refused(connection, f"SELECT * FROM oar_ask('{ASK}')")
        assert (error.sqlstate, clients.materials("receiver")) == ("53400", [])
        assert clients.recorded(spent) == [("tool", 1)]


def test_the_default_is_known_to_show_and_reset(clients):
    with clients.connect() as connection:
        assert rows(connection, "SHOW oar.protocol") == [("compiled",)]
        assert rows(connection, "SHOW oar.budget") == [("2048",)]
        connection.execute("SET oar.protocol = 'relay+'")
        assert rows(connection, "SHOW oar.protocol") == [("relay+",)]
        connection.execute("RESET oar.protocol")
        assert rows(connection, "SHOW oar.protocol") == [("compiled",)]
        assert rows(connection, f"SELECT * FROM oar_ask('Please: {ASK}')") == [(50,)]
        assert clients.roles() == {"draft"}
        with connection.transaction():
            connection.execute("SET LOCAL oar.protocol = 'Relay'")
            rows(connection, f"SELECT * FROM oar_ask('{ASK}')")
        assert rows(connection, "SHOW oar.protocol") == [("compiled",)]
    assert clients.materials("planner")


def test_an_option_at_start_and_a_roles_own_default(clients):
    with clients.connect("-c oar.protocol=relay -c oar.budget=1024") as connection:
        assert rows(connection, f"SELECT * FROM oar_ask('{ASK}')") == [(50,)]
        name = connection.info.user
    first = clients.materials("planner")[0]
    assert first["remaining_tokens"] == 1024 - 256
    with psycopg.connect(clients.hub, autocommit=True) as hub:
        hub.execute(f"ALTER ROLE {name} SET oar.protocol = 'relay+'")
    try:
        with clients.connect() as connection:
            rows(connection, f"SELECT * FROM oar_ask('{ASK}')")
            assert rows(connection, "SHOW oar.protocol") == [("relay+",)]
        (ask,) = clients.recorded("SELECT protocol FROM oar.asks ORDER BY at DESC LIMIT 1")
        assert ask == ("relay+",)
    finally:
        with psycopg.connect(clients.hub, autocommit=True) as hub:
            hub.execute(f"ALTER ROLE {name} RESET oar.protocol")


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("protocol", "chain", "one of compiled, fan-out, relay, relay+, planned, "),
        ("budget", "511", "511 is outside the valid range for parameter \"oar.budget\" (512 .. 131072)"),
        ("budget", "200000", "(512 .. 131072)"),
        ("budget", "many", "a whole number"),
    ],
)  # fmt: skip
def test_a_value_that_means_nothing(person, setting, value, told):
    person.execute(f"SET oar.{setting} = '{value}'")
    for call in ("oar_ask", "oar_ask_json", "oar_explain"):
        error = refused(person, f"SELECT * FROM {call}('{ASK}')")
        assert error.sqlstate == "22023"
        assert told in str(error)
    assert rows(person, "SELECT count(*) FROM treasury.income") == [(2,)]


def test_defaults_of_the_configuration(proxied):
    with proxied(questions=QuestionSettings(protocol="fan-out", budget=4096)) as clients:
        with clients.connect() as connection:
            assert rows(connection, f"SELECT * FROM oar_ask('{ASK}')") == [(50,)]
            assert rows(connection, "SHOW oar.protocol") == [("fan-out",)]
            plan = rows(connection, f"SELECT * FROM oar_explain('{ASK}')")
            assert ("  Budget: 4096",) in plan
        assert clients.materials("owner")


def test_a_protocol_needs_a_model(proxied):
    with proxied(drafter=DrafterSettings()) as clients, clients.connect() as connection:
        connection.execute("SET oar.protocol = 'relay'")
        for call in ("oar_ask", "oar_ask_json", "oar_explain"):
            error = refused(connection, f"SELECT * FROM {call}('{ASK}')")
            assert error.sqlstate == "OA004"
            assert "drafter.kind" in error.diag.message_hint


# --- the result -----------------------------------------------------------------------------


FORMS = {
    "from": f"SELECT * FROM oar_ask('{ASK}')",
    "select": f"SELECT oar_ask('{ASK}')",
    "qualified": f"SELECT * FROM public.oar_ask('{ASK}')",
    "comment": f"/* oar: {ASK} */",
    "alias": f"SELECT q.column1 FROM oar_ask('{ASK}') AS q",
    "renamed": f"SELECT amount FROM oar_ask('{ASK}') AS q(amount)",
    "named": f"SELECT q.amount FROM oar_ask('{ASK}') AS q(amount bigint)",
    "with": f"WITH q AS (SELECT * FROM oar_ask('{ASK}')) SELECT * FROM q WHERE column1 > 0",
    "sorted": f"SELECT column1 FROM oar_ask('{ASK}') ORDER BY column1 LIMIT 3",
    "two": f"SELECT p.column1 FROM oar_ask('{ASK}') p JOIN oar_ask('{ASK}') q USING (column1)",
    "with the hub's": f"SELECT column1 FROM oar_ask('{ASK}') q, pg_catalog.generate_series(1, 1)",
    "subquery": f"SELECT (SELECT max(column1) FROM oar_ask('{ASK}'))",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_question_stands_where_a_table_does(person, form):
    for _ in range(2):
        assert rows(person, FORMS[form]) == [(50,)]
        assert rows(person, FORMS[form], prepare=True) == [(50,)]


def test_one_question_of_a_statement_is_asked_once(clients, person):
    rows(person, FORMS["two"])
    assert len(clients.materials("receiver")) == 1


def test_an_answer_travels_in_carriers(person):
    with person.cursor().copy(f"COPY (SELECT * FROM oar_ask('{ASK}')) TO STDOUT") as copied:
        assert b"".join(copied) == b"50\n"
    person.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM oar_ask('{ASK}')")
    joined = "SELECT i.income_id FROM treasury.income i JOIN kept ON amount = column1"
    assert rows(person, joined) == [("i1",)]
    person.execute(f"INSERT INTO kept SELECT * FROM oar_ask('{ASK}') AS q(amount int)")
    assert rows(person, "SELECT count(*) FROM kept") == [(2,)]
    with person.transaction(), person.cursor(name="c") as cursor:
        cursor.execute(f"SELECT * FROM oar_ask('{ASK}')")
        assert cursor.fetchall() == [(50,)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([["a", 1, 0.5, True, None]], [("text", "a"), ("bigint", "1"), ("numeric", "0.5"), ("boolean", "true"), ("text", None)]),
        ([[1, "it's \\ \"x\""], [None, None]], [("bigint", "1"), ("text", "it's \\ \"x\"")]),
        ([[1, 1], ["b", True]], [("text", "1"), ("text", "1")]),
        ([[10**20], [2.5]], [("numeric", "100000000000000000000")]),
        ([[10**20], [None]], [("numeric", "100000000000000000000")]),
        ([[0.1], [3]], [("numeric", "0.1")]),
    ],
)  # fmt: skip
def test_types_are_those_of_the_values(clients, person, answer, expected):
    clients.scripts["receiver"] = lambda _: {"unanswerable": False, "answer_rows": answer}
    names = [f"column{n}" for n in range(1, len(expected) + 1)]
    listed = ", ".join(f"pg_typeof({n})::text, {n}::text" for n in names)
    for options in ({}, {"prepare": True}):
        found = rows(person, f"SELECT {listed} FROM oar_ask('{ASK}')", **options)
        assert len(found) == len(answer)
        assert list(zip(found[0][::2], found[0][1::2], strict=True)) == expected


def test_columns_that_are_named_have_their_types(clients, person):
    answer = [["a", 1, None], ["b", "2", 3.0]]
    clients.scripts["receiver"] = lambda _: {"unanswerable": False, "answer_rows": answer}
    statement = f"SELECT * FROM oar_ask('{ASK}') AS q(\"a b\" text, n int, x float8) WHERE n > 0"
    cursor = person.execute(statement)
    assert [column.name for column in cursor.description] == ["a b", "n", "x"]
    assert cursor.fetchall() == [("a", 1, None), ("b", 2, 3.0)]
    few = refused(person, f"SELECT * FROM oar_ask('{ASK}') AS q(a text)")
    assert (few.sqlstate, few.diag.message_primary) == (
        "0A000",
        "the answer has 3 columns, and 1 are named",
    )
    assert (
        refused(person, f"SELECT * FROM oar_ask('{ASK}') AS q(a int, b int, c int)").sqlstate
        == "22P02"
    )


def test_an_answer_of_no_row_is_one(clients, person):
    clients.scripts["receiver"] = lambda _: {"unanswerable": False, "answer_rows": []}
    notices = []
    person.add_notice_handler(
        lambda notice: notices.append((notice.message_primary, notice.message_detail))
    )
    cursor = person.execute(f"SELECT * FROM oar_ask('{ASK}')")
    assert [column.name for column in cursor.description] == ["column1"]
    assert cursor.fetchall() == []
    assert rows(person, f"SELECT * FROM oar_ask('{ASK}') AS q(a int)") == []
    assert rows(person, f"SELECT * FROM oar_ask_json('{ASK}')") == []
    assert "rows=0" in notices[0][0]


def test_a_notice_tells_how_the_answer_came_about(clients, person):
    notices = []
    person.add_notice_handler(
        lambda notice: notices.append((notice.message_primary, notice.message_detail))
    )
    rows(person, f"SELECT * FROM oar_ask('{ASK}')")
    assert notices == [
        (
            "answered by relay, composed by a model: rows=1 results=2 calls=4",
            "query 1, owner registry: rows=1\nquery 2, owner treasury: rows=1",
        )
    ]
    person.execute("SET client_min_messages = warning")
    rows(person, f"SELECT * FROM oar_ask('{ASK}')")
    assert len(notices) == 1


def test_progress_tells_of_each_query_when_it_is_over(person):
    notices = []
    person.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    person.execute("SET oar.progress = on")
    rows(person, f"SELECT * FROM oar_ask('{ASK}')")
    assert notices == [
        "query 1, owner registry: rows=1",
        "query 2, owner treasury: rows=1",
        "answered by relay, composed by a model: rows=1 results=2 calls=4",
    ]


# --- the extended protocol ------------------------------------------------------------------


def test_a_prepared_question_is_asked_again(clients, person):
    statement = f"SELECT * FROM oar_ask('{ASK}')"
    amounts = iter([1, 2, "three"])
    clients.scripts["receiver"] = lambda _: {
        "unanswerable": False,
        "answer_rows": [[next(amounts)]],
    }
    assert rows(person, statement, prepare=True) == [(1,)]
    assert rows(person, statement, prepare=True) == [(2,)]
    changed = refused(person, statement, prepare=True)
    assert (changed.sqlstate, changed.diag.message_primary) == (
        "0A000",
        "cached plan must not change result type",
    )


def test_a_prepared_question_follows_no_other_protocol(clients, person):
    statement = f"SELECT * FROM oar_ask_json('{ASK}')"
    for first, second in (("relay", "compiled"), ("compiled", "relay")):
        with clients.connect() as connection:
            connection.execute(f"SET oar.protocol = '{first}'")
            rows(connection, statement, prepare=True)
            connection.execute(f"SET oar.protocol = '{second}'")
            error = refused(connection, statement, prepare=True)
            assert (error.sqlstate, error.diag.message_hint) == (
                "0A000",
                "prepare the statement again",
            )


def test_an_answer_is_not_held_for_long(clients, monkeypatch):
    async def ask():
        connection = await connected(clients)
        try:
            prepared = await connection.prepare(f"SELECT * FROM oar_ask('{ASK}')")
            told = [a.name for a in prepared.get_attributes()]
            asked = len(clients.materials("receiver"))
            first = await prepared.fetch()
            then = len(clients.materials("receiver"))
            monkeypatch.setattr("oar_proxy.asking.HELD_FOR", -1.0)
            other = await connection.prepare(f"SELECT * FROM oar_ask('{ASK}') WHERE column1 = 50")
            second = await other.fetch()
            return told, asked, first, then, second, len(clients.materials("receiver"))
        finally:
            await connection.close()

    told, asked, first, then, second, at_last = asyncio.run(ask())
    assert told == ["column1"]
    assert (asked, then, at_last) == (1, 1, 3)
    assert [tuple(r) for r in (*first, *second)] == [(50,), (50,)]


@pytest.mark.parametrize(
    "change", ["SET oar.budget = 512", "SET oar.purpose = 'audit'", "SET ROLE reader"]
)
def test_an_answer_is_held_for_what_was_asked_and_nothing_else(clients, change):
    async def ask():
        connection = await connected(clients)
        try:
            prepared = await connection.prepare(f"SELECT * FROM oar_ask('{ASK}')")
            await connection.execute(change)
            return [tuple(row) for row in await prepared.fetch()]
        finally:
            await connection.close()

    with psycopg.connect(clients.hub, autocommit=True) as hub:
        user = psycopg.conninfo.conninfo_to_dict(clients.dsn)["user"]
        hub.execute("CREATE ROLE reader")
        hub.execute("GRANT USAGE ON SCHEMA registry, treasury TO reader")
        hub.execute("GRANT SELECT ON registry.member, treasury.income TO reader")
        hub.execute("GRANT EXECUTE ON FUNCTION public.oar_ask(text) TO reader")
        hub.execute(f"GRANT reader TO {user}")
        try:
            if change.endswith("reader"):
                hub.execute("REVOKE SELECT ON treasury.income FROM reader")
                with pytest.raises(asyncpg.PostgresError):
                    asyncio.run(ask())
                last = clients.materials("planner")[-1]
                assert [o["owner"] for o in last["owners"]] == ["registry"]
            else:
                assert asyncio.run(ask()) == [(50,)]
                assert len(clients.materials("receiver")) == 2
        finally:
            hub.execute("DROP OWNED BY reader")
            hub.execute("DROP ROLE reader")


def test_a_prepared_question_is_asked_of_what_is_published_now(clients, person, owner_urls):
    _, _, treasury = owner_urls
    statement = f"SELECT * FROM oar_ask_json('{ASK}')"
    with psycopg.connect(treasury, autocommit=True) as owner:
        owner.execute("ALTER TABLE income ADD COLUMN withdrawn int")
        try:
            assert clients.refresh()
            rows(person, statement, prepare=True)
            assert "withdrawn" in json.dumps(clients.materials("planner"))
        finally:
            owner.execute("ALTER TABLE income DROP COLUMN withdrawn")
            clients.refresh()
    clients.model.received.clear()
    rows(person, statement, prepare=True)
    assert clients.materials("planner")
    assert "withdrawn" not in json.dumps(clients.materials("planner"))


async def connected(clients, **settings):
    parts = psycopg.conninfo.conninfo_to_dict(clients.dsn)
    return await asyncpg.connect(
        host=parts["host"],
        port=int(parts["port"]),
        user=parts["user"],
        password=parts["password"],
        database=parts["dbname"],
        server_settings={"oar.protocol": "relay", **settings},
    )


def test_questions_in_a_pipeline(clients, person):
    with person.pipeline():
        first = person.execute(f"SELECT * FROM oar_ask('{ASK}')")
        between = person.execute("SELECT count(*) FROM treasury.income")
        last = person.execute("SELECT * FROM oar_ask(%s) AS q(a int)", (ASK,))
        found = [first.fetchall(), between.fetchall(), last.fetchall()]
    assert found == [[(50,)], [(2,)], [(50,)]]
    assert len(clients.materials("receiver")) == 2


def test_drivers_that_bind_the_question(clients):
    async def ask():
        connection = await connected(clients)
        try:
            as_json = await connection.fetchval("SELECT * FROM oar_ask_json($1)", ASK)
            named = await connection.fetch(
                "SELECT * FROM oar_ask($1) AS q(amount int) WHERE amount > $2", ASK, 10
            )
            plan = await connection.fetch("SELECT * FROM oar_explain($1)", ASK)
            with pytest.raises(asyncpg.FeatureNotSupportedError) as unnamed:
                await connection.fetch("SELECT * FROM oar_ask($1)", ASK)
            with pytest.raises(asyncpg.FeatureNotSupportedError):
                await connection.fetch("SELECT * FROM oar_ask_json($1)", None)
            return as_json, named, plan, unnamed.value
        finally:
            await connection.close()

    as_json, named, plan, unnamed = asyncio.run(ask())
    assert json.loads(as_json) == {"column1": 50}
    assert [dict(row) for row in named] == [{"amount": 50}]
    assert plan[0][0] == "Protocol Query"
    assert "name them" in unnamed.hint


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        f"SELECT * FROM oar_ask('{ASK}') q JOIN treasury.income i ON i.amount = q.column1",
        f"SELECT * FROM treasury.income WHERE amount IN (SELECT column1 FROM oar_ask('{ASK}'))",
        f"SELECT *, oar_ask('{ASK}') FROM pg_catalog.pg_class",
        f"PREPARE p AS SELECT * FROM oar_ask('{ASK}') AS q(a int)",
        f"CREATE TEMP VIEW v AS SELECT * FROM oar_ask('{ASK}')",
        f"SELECT * FROM oar_ask('{ASK}'), oar_explain('{ASK}')",
        f"SELECT * FROM ROWS FROM (oar_ask('{ASK}') AS (a int))",
        f"SELECT * FROM oar_ask_json('{ASK}') AS q(a int)",
        f"EXPLAIN (FORMAT XML) SELECT * FROM oar_ask('{ASK}')",
        "SELECT * FROM oar_ask(NULL)",
    ],
)
def test_what_has_no_meaning_is_refused_before_anyone_is_asked(clients, person, statement):
    for options in ({}, {"prepare": True}):
        error = refused(person, statement, **options)
        assert error.sqlstate == "0A000"
        assert error.diag.message_hint
    assert clients.model.received == []


def test_an_answer_is_not_written_to_an_owner(clients, person):
    statement = f"INSERT INTO treasury.income SELECT 'x', 'y', column1 FROM oar_ask('{ASK}')"
    assert refused(person, statement).sqlstate == "25006"
    assert clients.model.received == []


def test_sql_is_compiled_whatever_the_protocol(clients, person):
    joined = "SELECT amount FROM treasury.income JOIN registry.member ON link_to_member = member_id"
    assert rows(person, joined) == [(50,)]
    assert clients.model.received == []
    assert clients.recorded("SELECT protocol, kind FROM oar.asks ORDER BY at DESC LIMIT 1") == [
        ("compiled", "sql")
    ]


@pytest.mark.parametrize("protocol", ["fan-out", "relay", "planned", "oar"])
def test_no_rows_of_an_owner_that_allows_none(proxied, protocol):
    with (
        proxied(registry=HIDDEN, treasury=HIDDEN) as clients,
        clients.connect() as connection,
    ):
        connection.execute(f"SET oar.protocol = '{protocol}'")
        error = refused(connection, f"SELECT * FROM oar_ask('{ASK}')")
        assert error.sqlstate == "42501"
        assert error.diag.message_detail == "; ".join(
            f"owner {o} does not let a model read its rows: rule {o}/default deny"
            for o in ("registry", "treasury")
        )
        assert error.diag.message_hint.startswith(
            "owner registry, treasury can allow it with model: {rows: allow}"
        )
        assert clients.model.received == []
        assert clients.recorded("SELECT protocol, sqlstate, refusal FROM oar.asks") == [
            (protocol, "42501", error.diag.message_detail)
        ]
        assert clients.recorded("SELECT count(*) FROM oar.steps") == [(0,)]
        plan = rows(connection, f"EXPLAIN SELECT * FROM oar_ask('{ASK}')")
        assert any("Not Readable: owner treasury does not let" in line for (line,) in plan)


def test_an_owner_that_allows_none_is_named_where_the_answer_is_missing(proxied):
    with proxied(registry=OPEN, treasury=HIDDEN) as clients, clients.connect() as connection:
        connection.execute("SET oar.protocol = 'relay'")
        error = refused(connection, f"SELECT * FROM oar_ask('{ASK}')")
        assert error.sqlstate == "OA001"
        assert error.diag.message_detail == (
            "query 2, owner treasury: owner treasury does not let a model read its rows: "
            "rule treasury/default deny"
        )
        assert error.diag.message_hint == ("owner treasury can allow it with model: {rows: allow}")


def test_a_key_that_may_not_leave(proxied):
    with proxied() as clients, clients.connect() as connection:
        connection.execute("SET oar.protocol = 'relay'")
        error = refused(connection, f"SELECT * FROM oar_ask('{ASK}')")
        assert error.sqlstate == "OA001"
        assert "join keys of registry.member.member_id may not leave" in error.diag.message_detail
        assert KEY not in str(error)


def test_no_table_that_the_principal_may_not_read(clients):
    with psycopg.connect(clients.hub, autocommit=True) as hub:
        hub.execute("REVOKE SELECT ON treasury.income FROM oar_client")
        try:
            with clients.connect("-c oar.protocol=relay") as connection:
                statement = f"SELECT * FROM oar_ask('{ASK}')"
                clients.scripts["planner"] = lambda m: {
                    "owner": "treasury",
                    "sql": "SELECT 1",
                }
                assert refused(connection, statement).sqlstate in ("OA001", "OA005")
            for material in clients.materials("planner"):
                assert [o["owner"] for o in material["owners"]] == ["registry"]
            hub.execute("REVOKE SELECT ON registry.member FROM oar_client")
            with clients.connect("-c oar.protocol=relay") as connection:
                assert refused(connection, statement).sqlstate == "OA001"
        finally:
            hub.execute("GRANT SELECT ON treasury.income, registry.member TO oar_client")
    assert clients.materials("receiver") == []


# --- models that fail -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "sqlstate", "told"),
    [
        ({"content": "Sure!"}, "OA005", "the reply is not the JSON object it was asked for"),
        ({"content": "{", "finish": "length"}, "OA005", "was cut off"),
        ({"content": "", "refusal": "no"}, "OA005", "the model refused the question"),
        ({"status": 401}, "OA004", "model openai/tiny is unavailable"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"prepare": True}])
def test_a_run_that_stops_is_an_error_without_a_row(
    clients, person, fault, sqlstate, told, options
):
    clients.scripts["receiver"] = lambda _: Reply(**fault)
    error = refused(person, f"SELECT * FROM oar_ask('{ASK}')", **options)
    assert error.sqlstate == sqlstate
    assert told in error.diag.message_primary
    assert KEY not in str(error)
    assert clients.recorded("SELECT sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1") == [
        (sqlstate,)
    ]


@pytest.mark.parametrize("answer", [[[1], [1, 2]], [[]], [["a\x00b"]], [["\ud800"]]])
def test_rows_that_are_no_table_are_no_answer(clients, person, answer):
    clients.scripts["receiver"] = lambda _: {"unanswerable": False, "answer_rows": answer}
    assert refused(person, f"SELECT * FROM oar_ask('{ASK}')").sqlstate == "OA005"


def test_an_error_ends_the_transaction(clients, person):
    composes = clients.scripts["receiver"]
    clients.scripts["receiver"] = lambda _: {"unanswerable": True, "answer_rows": []}
    person.execute("BEGIN READ ONLY")
    with pytest.raises(psycopg.Error) as abstained:
        person.execute(f"SELECT * FROM oar_ask('{ASK}')")
    assert abstained.value.sqlstate == "OA001"
    asked = len(clients.model.received)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        person.execute(f"SELECT * FROM oar_ask('{ASK}')")
    person.execute("ROLLBACK")
    assert len(clients.model.received) == asked
    clients.scripts["receiver"] = composes
    person.execute("BEGIN READ ONLY")
    assert rows(person, f"SELECT * FROM oar_ask('{ASK}')") == [(50,)]
    person.execute("COMMIT")


@pytest.mark.parametrize("options", [{}, {"prepare": True}])
def test_a_cancel_request_reaches_the_model(clients, person, options):
    clients.scripts["planner"] = lambda _: Reply(hold=True)
    arrived = clients.model.arrived
    canceller = threading.Thread(target=lambda: (arrived.wait(20), person.cancel_safe()))
    canceller.start()
    error = refused_at_once(person, f"SELECT * FROM oar_ask('{ASK}')", options)
    canceller.join()
    assert isinstance(error, psycopg.errors.QueryCanceled)
    assert clients.model.left.wait(20)
    assert rows(person, "SELECT 1") == [(1,)]
    assert clients.recorded("SELECT sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1") == [
        ("57014",)
    ]


def refused_at_once(connection, statement, options):
    with pytest.raises(psycopg.Error) as failure:
        connection.execute(statement, **options)
    return failure.value


SLOW = "SELECT count(*) FROM income, generate_series(1, 1000000000)"


ASKS_SLOW = {"owner": "treasury", "sql": SLOW}


@pytest.mark.parametrize("reply", [Reply(hold=True), ASKS_SLOW])
def test_statement_timeout_counts_for_the_model_and_the_owners(clients, person, reply):
    clients.scripts["planner"] = lambda _: reply
    person.execute("SET statement_timeout = '300ms'")
    error = refused(person, f"SELECT * FROM oar_ask('{ASK}')")
    assert error.sqlstate == "57014"
    told = ["canceling statement: relay did not end within 0.3 s"]
    if reply == ASKS_SLOW:  # the hub has a clock of its own, and may look first
        told.append("canceling statement due to statement timeout")
    assert error.diag.message_primary in told
    assert clients.recorded("SELECT sqlstate FROM oar.asks ORDER BY at DESC LIMIT 1") == [
        ("57014",)
    ]


@pytest.mark.parametrize("where", ["owner", "hub"])
def test_a_cancelled_question_stops_what_was_sent(clients, person, owner_urls, where):
    sql = SLOW if where == "hub" else "SELECT amount FROM income"
    clients.scripts["planner"] = lambda _: {"owner": "treasury", "sql": sql}
    waits = (
        "AND application_name = 'oar protocols'"
        if where == "hub"
        else "AND wait_event = 'relation'"
    )
    running = f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' {waits}"
    with (
        psycopg.connect(owner_urls[2]) as locked,
        psycopg.connect(clients.hub, autocommit=True) as server,
    ):
        if where == "owner":
            locked.execute("LOCK TABLE income IN ACCESS EXCLUSIVE MODE")

        def active():
            return server.execute(running).fetchone()[0]

        with once(active, person.cancel_safe):
            error = refused_at_once(person, f"SELECT * FROM oar_ask('{ASK}')", {})
        assert isinstance(error, psycopg.errors.QueryCanceled)
        assert rows(person, "SELECT 1") == [(1,)]
        assert eventually(lambda: not active())


# --- explaining -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["fan-out", "relay", "oar"])
@pytest.mark.parametrize(
    "form",
    [
        "EXPLAIN SELECT * FROM oar_ask('{}')",
        "EXPLAIN CREATE TEMP TABLE t AS SELECT * FROM oar_ask('{}')",
        "SELECT * FROM oar_explain('{}')",
    ],
)
def test_explain_asks_no_owner(clients, person, protocol, form):
    person.execute(f"SET oar.protocol = '{protocol}'")
    before = clients.recorded("SELECT count(*) FROM oar.steps")
    plan = [line for (line,) in rows(person, form.format(ASK))]
    assert plan[:5] == [
        "Protocol Query",
        f"  Protocol: {protocol}",
        "  Model: litellm:openai/tiny",
        "  Budget: 2048",
        "  Contacts: registry, treasury",
    ]
    drafted = [line for line in plan if line.startswith("  Draft: WITH vice AS")]
    assert bool(drafted) == (protocol == "oar")
    if protocol == "oar":
        assert "  Owner Cover: 2" in plan
        assert "  Route: relay" in plan
    assert clients.recorded("SELECT count(*) FROM oar.steps") == before
    assert clients.roles() == ({"draft"} if drafted else set())


def test_explain_analyze_tells_what_was_done(clients, person):
    plan = [line for (line,) in rows(person, f"EXPLAIN ANALYZE SELECT * FROM oar_ask('{ASK}')")]
    assert "  Query 2: owner treasury" in plan
    assert f"    SQL: SELECT amount FROM income WHERE link_to_member = '{KEY}' LIMIT 5" in plan
    assert "    Keys: 1 of owner registry" in plan
    assert "  Outcome: answered" in plan
    ((document,),) = rows(
        person, f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM oar_ask('{ASK}') AS q(a int)"
    )
    assert [q["Actual Rows"] for q in document[0]["Plan"]["Queries"]] == [1, 1]
    clients.scripts["receiver"] = lambda _: {"unanswerable": True, "answer_rows": []}
    plan = [line for (line,) in rows(person, f"EXPLAIN ANALYZE SELECT * FROM oar_ask('{ASK}')")]
    assert "  Outcome: abstained" in plan


def test_explain_of_what_carries_an_answer(clients, person):
    statement = f"CREATE TEMP TABLE t AS SELECT * FROM oar_ask('{ASK}') AS q(a int)"
    assert rows(person, f"EXPLAIN {statement}")[0] == ("Protocol Query",)
    assert refused(person, f"EXPLAIN ANALYZE {statement}").sqlstate == "0A000"
    assert clients.model.received == []


def test_a_draft_of_no_use_goes_to_fan_out(clients, person):
    clients.scripts["draft"] = lambda _: Reply("Sure!")
    person.execute("SET oar.protocol = 'oar'")
    plan = [line for (line,) in rows(person, f"SELECT * FROM oar_explain('{ASK}')")]
    assert "  Draft: none that can be used" in plan
    assert "  Route: fan-out" in plan
    assert rows(person, f"SELECT * FROM oar_ask('{ASK}')") == [(50,)]


def test_explain_of_a_statement_is_that_of_the_line(person):
    plan = rows(person, "SELECT * FROM oar_explain('SELECT * FROM treasury.income')")
    assert plan[0] == ("Federated Query",)
