"""Asking the hub's planner, and checking drafts."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from oar_proxy.errors import HubConnectionLost
from oar_proxy.hub.planner import PLAN_SHAPE, Planner, PlanningFailed


@pytest.fixture(scope="module")
def names(publish_now, catalog, table):
    wanted = catalog([
        (("owner", "shop"), [
            table("t", ("id", "integer", True), ("name", "text"),
                  ("at", "timestamp with time zone"), primary_key=("id",)),
            table("u", ("id", "integer"), ("t_id", "integer")),
        ]),
    ])  # fmt: skip
    publish_now(wanted)
    return {name: f"oar_plan.{t.planning_name}" for (_, name), t in wanted.tables.items()}


def ask(hub, work):
    async def run():
        async with Planner(hub, size=2) as planner:
            return await work(planner)

    return asyncio.run(run())


def explain(hub, statement, settings=None):
    return ask(hub, lambda planner: planner.explain(statement, settings))


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM {t} AS t JOIN {u} AS u ON u.t_id = t.id", {"Hash Join", "Seq Scan"}),
        ("SELECT * FROM {t} AS t WHERE id = 5", {"Seq Scan"}),
        ("SELECT * FROM {t} AS t WHERE EXISTS (SELECT FROM {u} WHERE t_id = t.id)", {"Hash Join"}),
        ("SELECT count(DISTINCT name) FROM {t} GROUP BY id ORDER BY id", {"Sort", "Aggregate"}),
    ],
)
def test_plans_have_the_shape_that_is_read(hub, names, statement, expected):
    (answer,) = explain(hub, statement.format(**names))
    kinds = {node["Node Type"] for node in nodes(answer["Plan"])}
    assert expected <= kinds
    assert not kinds & {"Nested Loop", "Merge Join", "Index Scan", "Bitmap Heap Scan", "Memoize"}


def test_a_join_of_many_tables_is_planned(hub, names):
    """Comparing all orders of them would take more than a planning connection is given."""
    tables = ", ".join(f"{names['u']} AS u{n}" for n in range(30))
    equal = " AND ".join(f"u{n}.id = u0.t_id" for n in range(1, 30))
    (answer,) = explain(hub, f"SELECT FROM {tables} WHERE {equal}")
    scans = [node for node in nodes(answer["Plan"]) if node["Node Type"] == "Seq Scan"]
    assert len(scans) == 30
    assert explain(hub, f"SELECT FROM {tables} WHERE {equal}") == [answer]


def test_connections_that_the_hub_has_ended_are_not_used(hub, admin, names):
    """Its server may have restarted since: nobody is told of what nobody asked then."""
    theirs = "application_name = 'oar planner' AND datname = current_database()"

    async def work(planner):
        for _ in range(2):
            await asyncio.gather(*(planner.explain("SELECT 1") for _ in range(4)))
            assert await planner.check("SELECT 1") is None
            admin.execute(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {theirs}"
            )
        return await asyncio.gather(*(planner.explain("SELECT 1") for _ in range(4)))

    assert len(ask(hub, work)) == 4


def test_the_planner_reasons_from_declared_keys(hub, names):
    (answer,) = explain(
        hub, "SELECT u.id FROM {u} AS u LEFT JOIN {t} AS t ON t.id = u.t_id".format(**names)
    )
    assert answer["Plan"]["Node Type"] == "Seq Scan"  # at most one t for a u: not needed


def test_session_settings_bear_on_the_plan_and_do_not_stay(hub, names):
    statement = "SELECT 1 FROM {t} WHERE at > '01/02/2024 00:00'::timestamptz".format(**names)

    async def work(planner):
        filters = []
        for settings in (
            {"TimeZone": "UTC", "DateStyle": "ISO, MDY"},
            {"TimeZone": "UTC", "DateStyle": "ISO, DMY"},
            {"TimeZone": "Asia/Tokyo", "DateStyle": "ISO, DMY"},
            {"TimeZone": "UTC", "DateStyle": "ISO, MDY", "search_path": 'a, "b\'c"'},
            # What is printed goes to owners: in ISO's style, whatever the session prints.
            {"TimeZone": "UTC", "DateStyle": "German, DMY"},
            {"TimeZone": "UTC", "DateStyle": "SQL, MDY"},
            {},
        ):
            (answer,) = await planner.explain(statement, settings)
            filters.append(answer["Plan"]["Filter"].split("'")[1])
        return filters

    async def with_one_connection():
        async with Planner(hub, size=1) as planner:
            return await work(planner)

    first, second, third, fourth, german, sql, last = asyncio.run(with_one_connection())
    assert (first, second) == ("2024-01-02 00:00:00+00", "2024-02-01 00:00:00+00")
    assert third == "2024-02-01 00:00:00+09"
    assert fourth == first
    assert (german, sql) == (second, first)
    with psycopg.connect(hub.conninfo) as connection:
        (default,) = connection.execute("SELECT '01/02/2024 00:00'::timestamptz::text").fetchone()
    assert last == default


@pytest.mark.parametrize(
    ("statement", "sqlstate", "position"),
    [
        ("SELECT 1 FROM oar_plan.missing", "42P01", 15),
        ("SELECT nope FROM {t}", "42703", 8),
        ("SELEC 1", "42601", 1),
        ("SELECT 1; SELECT 2", "42P11", None),
        ("SELECT 1 / 0", "22012", None),
        ("TABLE oar_internal.published", "42501", None),
        ("SELECT * FROM shop.t", "42501", 15),
        ("SELECT 'я', nope FROM {t}", "42703", 13),
    ],
)
def test_a_statement_that_does_not_plan_says_why(hub, names, statement, sqlstate, position):
    with pytest.raises(PlanningFailed) as caught:
        explain(hub, statement.format(**names))
    assert caught.value.sqlstate == sqlstate
    assert caught.value.position == position
    assert caught.value.message


def test_nothing_can_be_executed(hub, names):
    """Neither by a second statement nor by the role: planning connections only plan."""
    for statement in ("SELECT 1; CREATE TABLE public.made ()", "ANALYZE SELECT 1"):
        with pytest.raises(PlanningFailed):
            explain(hub, statement)
    with pytest.raises(ValueError, match="not a session setting"):
        explain(hub, "SELECT 1", {"Role": "oar_admin"})
    with pytest.raises(PlanningFailed) as caught:
        explain(hub, "SELECT 1", {"log_min_messages": "debug5"})
    assert caught.value.sqlstate == "42501"


BECOMING = {
    "set_config": "PERFORM set_config('role', 'none', false)",
    "RESET": "EXECUTE 'RESET ROLE'",
    "SET ROLE": "EXECUTE format('SET ROLE %I', session_user)",
    "SESSION AUTHORIZATION": "EXECUTE 'RESET SESSION AUTHORIZATION'",
}


@pytest.mark.parametrize("how", BECOMING.values(), ids=BECOMING)
def test_a_function_that_is_evaluated_meanwhile_becomes_nobody_and_leaves_nothing(hub, names, how):
    """Who may make functions in a schema that the planner sees can have it evaluate them."""
    with psycopg.connect(hub.conninfo, autocommit=True) as admin:
        admin.execute("DROP SCHEMA IF EXISTS made CASCADE; CREATE SCHEMA made")
        admin.execute("GRANT USAGE ON SCHEMA made TO PUBLIC")
        # What is not immutable is evaluated for what is said to be.
        admin.execute(
            "CREATE FUNCTION made.moved() RETURNS text LANGUAGE plpgsql AS $$BEGIN"
            " PERFORM set_config('enable_hashjoin', 'off', false);"
            " PERFORM set_config('search_path', 'made', false);"
            f" BEGIN {how}; EXCEPTION WHEN OTHERS THEN NULL; END;"
            " RETURN current_user; END$$"
        )
        admin.execute(
            "CREATE FUNCTION made.who() RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$BEGIN"
            " RETURN made.moved(); END$$"
        )

    async def work():
        async with Planner(hub, size=1) as planner:
            (said,) = await planner.explain("SELECT made.who()")
            (joined,) = await planner.explain(
                "SELECT FROM {t} AS t JOIN {u} AS u ON u.t_id = t.id".format(**names)
            )
            checked = await planner.check("SELECT made.who()::int FROM shop.t")
            return said["Plan"]["Output"], joined["Plan"], checked

    output, joined, checked = asyncio.run(work())
    assert output == ["'oar_planner'::text"]
    assert joined["Node Type"] == "Hash Join"
    assert checked == 'invalid input syntax for type integer: "oar_checker"'


def test_a_failed_setting_leaves_no_half_set_connection(hub, names):
    async def work():
        async with Planner(hub, size=1) as planner:
            with pytest.raises(PlanningFailed):
                await planner.explain("SELECT 1", {"TimeZone": "Nowhere/At_All"})
            (answer,) = await planner.explain("SELECT now()", {"TimeZone": "UTC"})
            return answer["Plan"]["Node Type"]

    assert asyncio.run(work()) == "Result"


def test_any_row_plans_as_an_opaque_source(hub, names):
    (answer,) = explain(
        hub,
        "SELECT * FROM oar_internal.any_row() AS r(id integer) JOIN {t} AS t USING (id)"
        " WHERE r.id > 3".format(**names),
    )
    kinds = {node["Node Type"] for node in nodes(answer["Plan"])}
    assert kinds >= {"Hash Join", "Function Scan"}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM shop.t JOIN shop.u ON t_id = t.id", None),
        ("SELECT * FROM t", None),
        ("SELECT nam FROM shop.t", 'column "nam" does not exist: Perhaps you meant'),
        ("SELECT * FROM shop.x", 'relation "shop.x" does not exist'),
        ("SELECT name, count(*) FROM shop.t", "must appear in the GROUP BY clause"),
        ("DELETE FROM shop.t", "cannot delete from view"),
        ("DROP TABLE x", "syntax error"),
    ],
)
def test_a_draft_is_checked_as_a_client_would_run_it(hub, names, statement, message):
    found = ask(hub, lambda planner: planner.check(statement, {"search_path": "shop"}))
    assert (found is None) if message is None else (message in found)


def test_a_check_that_the_hub_cannot_do_finds_no_fault_in_the_draft(hub, names):
    with psycopg.connect(hub.conninfo) as other:
        other.execute("LOCK TABLE shop.t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(HubConnectionLost, match="lock timeout"):
            ask(hub, lambda planner: planner.check("TABLE shop.t", {"lock_timeout": "50ms"}))


def test_settings_a_server_lacks_are_left_out(hub, names):
    async def work(planner):
        async with planner._plans.connection() as connection:
            cursor = await connection.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(PLAN_SHAPE),)
            )
            return dict(await cursor.fetchall())

    found = ask(hub, work)
    assert found == {name: PLAN_SHAPE[name] for name in found}
    assert len(found) >= len(PLAN_SHAPE) - 3  # PostgreSQL 15 lacks three, 18 none
