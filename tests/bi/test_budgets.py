"""What an application may ask in an hour, counted over all proxies of a hub."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import psycopg
import psycopg.conninfo
import pytest
import yaml
from oar_bench.overhead.processes import free_port
from oar_proxy.settings import ApplicationSettings, ConfigurationError, load

PREVIEW = "SELECT id FROM sales.orders ORDER BY id LIMIT 10"
JOIN = (
    "SELECT o.id, c.name FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id"
    " ORDER BY 1"
)


@pytest.fixture
def budgeted(shop, new_database, running_proxy):
    """Make proxies on one hub with these budgets; gives functions to connect, and to look."""
    with ExitStack() as stack:
        hub = new_database("hub")

        @contextmanager
        def connect(dsn, application):
            with psycopg.connect(dsn, autocommit=True, application_name=application) as it:
                yield it

        def make(proxies=1, policies=None, **applications):
            settings = shop.settings(
                hub,
                policies=policies,
                applications={n: ApplicationSettings(**a) for n, a in applications.items()},
            )
            dsns = [stack.enter_context(running_proxy(settings))[1] for _ in range(proxies)]
            return lambda application, proxy=0: stack.enter_context(
                connect(dsns[proxy], application)
            )

        looking = stack.enter_context(psycopg.connect(hub, autocommit=True))
        make.spent = lambda: looking.execute(
            "SELECT application, statements, rows FROM oar.applications ORDER BY 1"
        ).fetchall()
        make.hub, make.dsn = looking, hub
        yield make


def refusal(connection, statement):
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as refused:
        connection.execute(statement).fetchall()
    return refused.value.diag


def test_statements_are_counted_and_one_more_is_refused(budgeted, shop):
    connect = budgeted(tool={"application_name": "Metabase*", "max_statements": 2})
    metabase = connect("Metabase v0.56 [3f2a]")
    for _ in range(2):
        assert len(metabase.execute(PREVIEW).fetchall()) == 10
    asked = len(shop.asked())
    said = refusal(metabase, PREVIEW)
    assert said.sqlstate == "53400"
    assert said.message_primary == (
        'application "Metabase v0.56 [3f2a]" has used up its statements of this hour: 2'
    )
    assert said.message_detail.startswith("limit proxy/applications.tool.max_statements counts")
    (free,) = budgeted.hub.execute(
        "SELECT to_char(hour + interval '1 hour', 'YYYY-MM-DD HH24:MI') FROM oar.applications"
    ).fetchone()
    assert said.message_hint == (
        f"free again at {free} UTC; the administrator of the proxy can raise it"
    )
    assert len(shop.asked()) == asked
    assert budgeted.spent() == [("tool", 2, 0)]


def test_an_hour_later_it_is_free_again(budgeted):
    metabase = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    metabase.execute(PREVIEW)
    refusal(metabase, PREVIEW)
    budgeted.hub.execute(
        "UPDATE oar_internal.application_hours SET hour = hour - interval '1 hour'"
    )
    assert len(metabase.execute(PREVIEW).fetchall()) == 10


def test_rows_that_owners_send_are_counted(budgeted):
    metabase = budgeted(tool={"application_name": "*", "max_rows": 60})("anything")
    assert len(metabase.execute("SELECT * FROM sales.orders").fetchall()) == 40
    # What has come is counted, also when it is too much and nobody gets it.
    said = refusal(metabase, "SELECT * FROM sales.orders")
    assert said.message_primary.endswith("has used up its rows of this hour: 60")
    assert "applications.tool.max_rows counts rows that owners send" in said.message_detail
    assert budgeted.spent() == [("tool", 2, 80)]
    refusal(metabase, PREVIEW)
    assert budgeted.spent() == [("tool", 2, 80)]


def test_what_is_left_of_a_budget_is_no_way_to_count_the_rows_of_one_group(budgeted):
    grouped = "version: 1\ntables: {orders: {min_group: {entity: customer_id, size: 2}}}\n"
    budget = {"application_name": "m", "max_rows": 5000}
    metabase = budgeted(policies={"sales": grouped}, tool=budget)("m")
    for number, wanted in enumerate(("id = 1", "id = -1", "id < 20"), start=1):
        metabase.execute(f"SELECT count(*) FROM sales.orders WHERE {wanted}")
        assert budgeted.spent() == [("tool", number, number * 1000)]


def test_large_answers_end_where_the_budget_does(budgeted, shop):
    """No row is given away uncounted, also while rows pass through in chunks."""
    metabase = budgeted(tool={"application_name": "m", "max_rows": 30_000})("m")
    large = "SELECT o.id FROM sales.orders o, sales.orders p, sales.orders q"
    got = []
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        got.extend(metabase.cursor().stream(large))
    assert len(got) <= 30_000
    ((_, statements, rows),) = budgeted.spent()
    assert (statements, rows > 30_000) == (1, True)


def test_budgets_are_of_all_proxies_together(budgeted):
    connect = budgeted(2, tool={"application_name": "m", "max_statements": 20})
    clients = [connect("m", n % 2) for n in range(6)]
    outcomes: list[str] = []

    def ask(client):
        for _ in range(6):
            try:
                client.execute(PREVIEW).fetchall()
                outcomes.append("answered")
            except psycopg.errors.ConfigurationLimitExceeded:
                outcomes.append("refused")

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count("answered"), outcomes.count("refused")) == (20, 16)
    assert budgeted.spent() == [("tool", 20, 0)]


def test_a_proxy_that_is_killed_forgets_nothing(budgeted, shop, tmp_path):
    limits = {"application_name": "m", "max_statements": 3}
    survivor = budgeted(tool=limits)("m")
    survivor.execute(PREVIEW)
    port = free_port()
    configuration = tmp_path / "oar.yaml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "listen": {"port": port},
                "hub": {"dsn": budgeted.dsn},
                "owners": {name: {"url": url} for name, url in shop.urls.items()},
                "applications": {"tool": limits},
            }
        )
    )
    command = [sys.executable, "-m", "oar_proxy.cli", "serve", "--config", configuration]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as proxy:
        try:
            deadline = time.monotonic() + 60
            while b"listening" not in (tmp_path / "log").read_bytes():
                assert proxy.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            words = psycopg.conninfo.conninfo_to_dict(survivor.info.dsn)
            with psycopg.connect(
                host="127.0.0.1", port=port, user=words["user"], password="secret",
                dbname=words["dbname"], application_name="m", autocommit=True,
            ) as other:  # fmt: skip
                other.execute(PREVIEW)
                other.execute(PREVIEW)
                proxy.kill()
        finally:
            proxy.kill()
    refusal(survivor, PREVIEW)


def test_the_name_a_session_has_now_counts(budgeted):
    connect = budgeted(
        metabase={"application_name": "metabase*", "max_statements": 1},
        others={"application_name": "", "max_statements": 1},
    )
    client = connect("psql")
    for _ in range(3):
        client.execute(PREVIEW)
    client.execute("SET application_name = 'METABASE 7'")
    client.execute(PREVIEW)
    refusal(client, PREVIEW)
    client.execute("SET application_name = ''")
    client.execute(PREVIEW)
    assert 'application ""' in refusal(client, PREVIEW).message_primary
    with client.transaction():
        client.execute("SET LOCAL application_name = 'psql'")
        client.execute(PREVIEW)
    client.execute("RESET application_name")
    client.execute(PREVIEW)
    assert budgeted.spent() == [("metabase", 1, 0), ("others", 1, 0)]


def test_the_first_pattern_that_matches_counts(budgeted):
    connect = budgeted(
        first={"application_name": "Graf?na*", "max_statements": 5},
        rest={"application_name": "*", "max_statements": 5},
    )
    connect("grafana").execute(PREVIEW)
    connect("excel").execute(PREVIEW)
    assert budgeted.spent() == [("first", 1, 0), ("rest", 1, 0)]


def test_a_join_and_a_question_are_a_statement_each(budgeted):
    metabase = budgeted(tool={"application_name": "m", "max_statements": 3})("m")
    metabase.execute(JOIN)
    metabase.execute("SELECT * FROM oar_ask('How many orders are there?')")
    metabase.execute(f"EXPLAIN ANALYZE {JOIN}")
    refusal(metabase, JOIN)
    assert budgeted.spent() == [("tool", 3, 0)]


def test_what_asks_no_owner_costs_nothing(budgeted):
    metabase = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    metabase.execute(PREVIEW)
    for free in (
        "SELECT 1",
        "SELECT * FROM sales.orders LIMIT 0",
        "SELECT * FROM (SELECT * FROM sales.orders) AS q WHERE 1 = 0",
        f"EXPLAIN {JOIN}",
        "SELECT table_name FROM information_schema.tables",
    ):
        metabase.execute(free)
    with metabase.transaction():
        metabase.execute("DECLARE c CURSOR FOR SELECT * FROM sales.orders WHERE false")
        metabase.execute("FETCH 0 FROM c")
    assert budgeted.spent() == [("tool", 1, 0)]


def test_policies_decide_first_and_what_they_deny_is_not_counted(budgeted):
    closed = "version: 1\ntables:\n  orders: {require_filter: [status]}\n"
    connect = budgeted(
        policies={"sales": closed}, tool={"application_name": "m", "max_statements": 1}
    )
    metabase = connect("m")
    for _ in range(2):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            metabase.execute("SELECT id FROM sales.orders")
    assert budgeted.spent() == []
    metabase.execute("SELECT id FROM sales.orders WHERE status = 'new'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        metabase.execute("SELECT id FROM sales.orders")
    refusal(metabase, "SELECT id FROM sales.orders WHERE status = 'new'")


def test_a_refusal_is_on_the_ledger_with_its_limit(budgeted):
    metabase = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    metabase.execute(PREVIEW)
    refusal(metabase, JOIN)
    told = metabase.execute(
        "SELECT sqlstate, refusal, (SELECT count(*) FROM oar.steps s WHERE s.ask = a.ask)"
        " FROM oar.asks a ORDER BY at DESC LIMIT 1"
    ).fetchone()
    assert told[0] == "53400"
    assert told[1].startswith("limit proxy/applications.tool.max_statements")
    assert told[2] == 0


def test_no_owner_is_touched_for_what_is_refused(budgeted, shop):
    """Not even by a transaction that is opened ahead of its query."""
    metabase = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    metabase.execute(JOIN)
    assert shop.begun()
    before = shop.begun()
    refusal(metabase, JOIN)
    refusal(metabase, PREVIEW)
    assert shop.begun() == before


def test_a_transaction_of_the_client_s_fails_as_by_any_error(budgeted):
    metabase = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    metabase.execute(PREVIEW)
    metabase.execute("BEGIN")
    refusal(metabase, PREVIEW)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        metabase.execute("SELECT 1")
    metabase.execute("ROLLBACK")


def test_clients_may_not_read_nor_change_the_counts(budgeted):
    client = budgeted(tool={"application_name": "m", "max_statements": 1})("m")
    for statement in (
        "SELECT * FROM oar.applications",
        "DELETE FROM oar_internal.application_hours",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute(statement)


def test_nothing_is_counted_where_nothing_is_configured(client, tool):
    client.execute(PREVIEW)
    with psycopg.connect(tool[1], autocommit=True) as hub:
        assert hub.execute("SELECT * FROM oar.applications").fetchall() == []


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("{application_name: x}", "an application needs max_statements or max_rows"),
        ("{application_name: x, max_statements: 0}", "greater than or equal to 1"),
        ("{max_statements: 1}", "application_name: field required"),
    ],
)
def test_a_budget_that_limits_nothing_is_refused(entry, fault, tmp_path):
    path = tmp_path / "oar.yaml"
    path.write_text(f"applications:\n  tool: {entry}\n")
    with pytest.raises(ConfigurationError, match=fault):
        load(path)
