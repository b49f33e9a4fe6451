"""What owners' policies do to a join, seen from a client, and what the ledger holds of it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import psycopg.conninfo
import pytest
import yaml
from oar_proxy.settings import Limits
from waits import eventually

JOIN = "SELECT a.id, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p' ORDER BY 1, 2"
ROWS = [(1, 100), (4, 100)]


def policy(*edges, limits=""):
    text = "version: 1\n"
    if limits:
        text += f"limits: {{{limits}}}\n"
    if edges:
        text += "key_disclosure:\n"
        text += "".join(f"  - {{column: {c}, to: [{t}], max_keys: {m}}}\n" for c, t, m in edges)
    return text


def plan(connection, statement=JOIN):
    document = connection.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0]
    return document[0]["Plan"]


def disclosures(connection):
    return connection.execute(
        "SELECT from_owner, from_column, to_owner, to_column, keys FROM oar.disclosures ORDER BY at"
    ).fetchall()


def test_keys_of_the_filtered_side_are_relayed(proxy):
    client = proxy({"south": policy(("b.k", "north", 10))})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == [("south", "shop.b.k", "north", "a.k", 2)]
    outcomes = "SELECT owner, sqlstate, rows, keys FROM oar.steps ORDER BY step"
    assert client.execute(outcomes).fetchall() == [
        ("south", "00000", 2, 0),
        ("north", "00000", 2, 2),
    ]
    described = plan(client)
    assert [step["Owner"] for step in described["Steps"]] == ["south", "north"]
    assert described["Route"] == "relay"


def route(connection):
    document = connection.execute(f"EXPLAIN (FORMAT json) {JOIN}").fetchone()[0]
    return document[0]["Plan"]["Route"]


def test_a_statement_asked_before_is_asked_under_what_holds_now(owners, new_hub, running_proxy):
    """A plan that is kept must not outlive the policy or the setting it was made under."""
    settings = owners.settings(new_hub(), {"south": policy(("b.k", "north", 10))})
    settings = settings.model_copy(update={"catalog_refresh": 0.2})
    with running_proxy(settings) as (_, dsn), psycopg.connect(dsn, autocommit=True) as client:
        client.prepare_threshold = 0
        for _ in range(3):
            assert client.execute(JOIN).fetchall() == ROWS
        assert len(disclosures(client)) == 3
        client.execute("SET oar.max_keys = 1")
        assert client.execute(JOIN).fetchall() == ROWS
        client.execute("RESET oar.max_keys")
        assert len(disclosures(client)) == 3
        settings.owners["south"].policy.write_text(policy())
        eventually(lambda: route(client) == "fan-out")
        assert client.execute(JOIN).fetchall() == ROWS
        assert len(disclosures(client)) == 3


def test_a_forbidden_direction_turns_the_relay_round(proxy):
    client = proxy({"north": policy(("a.k", "south", 10))})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == [("north", "shop.a.k", "south", "b.k", 4)]
    described = plan(client)
    assert [step["Owner"] for step in described["Steps"]] == ["north", "south"]
    assert described["Steps"][1]["Keys"][0]["Rule"] == "north/key_disclosure[0]"


def test_forbidden_both_ways_is_fan_out_and_exact(proxy):
    client = proxy({})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == []
    described = plan(client)
    assert described["Route"] == "fan-out"
    assert "no key may travel between them" in described["Reason"]
    denied = described["Steps"]
    assert all("Keys" not in step for step in denied)
    assert {d["Rule"] for step in denied for d in step["Denied"]} == {
        "north/default deny",
        "south/default deny",
    }
    assert client.execute("SELECT count(*) FROM oar.steps").fetchone() == (4,)


def test_forbidden_both_ways_over_the_cap_is_refused_by_name(proxy):
    client = proxy({"north": policy(limits="max_rows: 4"), "south": policy()})
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        client.execute(JOIN)
    said = refused.value.diag
    assert said.message_primary == (
        "owner north would send more than 4 rows of a: nothing is returned"
    )
    assert "north/limits.max_rows: 4 rows" in said.message_detail
    assert "shop.b.k to north.a.k" in said.message_detail
    assert "south/default deny" in said.message_detail
    assert "{column: b.k, to: [north], max_keys: N}" in said.message_hint
    outcome = client.execute("SELECT sqlstate, count(*) FROM oar.asks GROUP BY 1").fetchall()
    assert outcome == [("54000", 1)]


def test_the_cap_itself_may_be_reached(proxy):
    client = proxy({"north": policy(limits="max_rows: 6")})
    assert client.execute("SELECT count(*) FROM shop.a JOIN shop.b ON true").fetchone() == (36,)


def test_more_keys_than_allowed_leave_the_edge_out(proxy):
    client = proxy({"south": policy(("b.k", "north", 1))})
    more = JOIN.replace("b.s = 'p'", "b.s LIKE 'p%'")
    assert client.execute(more).fetchall() == ROWS
    assert disclosures(client) == []
    notes = [note for step in plan(client, more)["Steps"] for note in step.get("Notes", ())]
    assert notes == [
        "edge shop.b.k to north carries 2 keys, at most 1 by south/key_disclosure[0].max_keys: "
        "asked without them"
    ]


def test_more_keys_than_allowed_are_not_waited_for_where_they_are_foreseen(proxy):
    client = proxy({"south": policy(("b.k", "north", 1))})
    statement = "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = b.k"
    assert len(client.execute(statement).fetchall()) == 6
    described = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()[0][0]["Plan"]
    assert described["Route"] == "fan-out"
    (north,) = [step for step in described["Steps"] if step["Owner"] == "north"]
    assert north["Not Reduced"] == [
        "k: about 4 keys are expected, at most 1 may travel (south/key_disclosure[0].max_keys)"
    ]


def test_more_keys_than_allowed_are_counted_below_a_condition(proxy):
    client = proxy({"south": policy(("b.k", "north", 1))})
    assert client.execute(JOIN).fetchall() == ROWS
    described = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {JOIN}").fetchone()[0][0]["Plan"]
    (north,) = [step for step in described["Steps"] if step["Owner"] == "north"]
    assert north["Keys"]
    assert "Actual Keys" not in north
    assert any("at most 1" in note for note in north["Notes"])


def test_edges_that_are_too_many_together_are_left_out_one_by_one(proxy):
    allowed = policy(("b.k", "north", 10), ("b.id", "north", 10))
    client = proxy({"south": allowed, "north": policy(limits="max_keys_in: 3")})
    statement = (
        "SELECT a.id, b.w FROM shop.a JOIN shop.b ON a.k = b.k AND a.id = b.id WHERE b.s = 'p'"
    )
    assert client.execute(statement).fetchall() == [(1, 100)]
    assert [d[4] for d in disclosures(client)] == [2]


def test_a_step_is_on_the_ledger_with_its_rules_tables_and_time(proxy):
    client = proxy({"south": policy(("b.k", "north", 10))})
    for _ in range(2):
        client.execute(JOIN)
    # Two keys and the same, so another statement with other keys.
    client.execute(JOIN.replace("'p'", "'q'"))
    steps = client.execute(
        "SELECT owner, tables, rules, microseconds > 0 FROM oar.steps ORDER BY step LIMIT 2"
    ).fetchall()
    assert steps == [
        ("south", ["b"], ["proxy/limits.max_rows", "proxy/limits.max_keys"], True),
        (
            "north",
            ["a"],
            [
                *("proxy/limits.max_rows", "proxy/limits.max_keys"),
                *("south/key_disclosure[0]", "north/default permit"),
            ],
            True,
        ),
    ]
    digests = client.execute("SELECT key_digest FROM oar.disclosures ORDER BY step").fetchall()
    (first,), (second,), (other,) = digests
    assert first == second != other
    assert len(first) == len(other) == 64


def test_what_a_limit_refuses_is_on_the_ledger_with_it(proxy):
    client = proxy({"north": policy(limits="max_rows: 5"), "south": policy()})
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        client.execute("SELECT id FROM shop.a")
    asked = "SELECT sqlstate, refusal FROM oar.asks"
    ((state, refusal),) = client.execute(asked).fetchall()
    assert state == "54000"
    assert "north/limits.max_rows: 5 rows" in refusal


def test_what_no_plan_is_allowed_for_is_on_the_ledger(proxy):
    client = proxy({"north": "version: 1\nsubjects: [nobody_has_it]\n"})
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("SELECT id FROM shop.a")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("EXPLAIN SELECT id FROM shop.a")
    asked = "SELECT route, kappa, sqlstate, refusal FROM oar.asks"
    ((route_, kappa, state, refusal),) = client.execute(asked).fetchall()
    assert (route_, kappa, state) == ("refused", None, "42501")
    assert "north/subjects" in refusal


def test_an_empty_key_list_skips_the_owner_and_is_on_the_ledger(proxy):
    client = proxy({"south": policy(("b.k", "north", 10))})
    statement = JOIN.replace("'p'", "'nobody'")
    assert client.execute(statement).fetchall() == []
    assert disclosures(client) == [("south", "shop.b.k", "north", "a.k", 0)]
    assert plan(client, statement)["Steps"][1]["Skipped"] == "no key was left"


def test_every_holder_of_a_split_table_has_to_allow_its_keys(proxy):
    statement = "SELECT c.u, split.t FROM shop.c JOIN shop.split USING (k) WHERE split.t = 'n' ORDER BY 1, 2"
    one = proxy({"north": policy(("split.k", "west", 10))})
    assert one.execute(statement).fetchall() == [("m", "n")]
    assert disclosures(one) == []
    both = proxy({o: policy(("split.k", "west", 10)) for o in ("north", "south")})
    assert both.execute(statement).fetchall() == [("m", "n")]
    assert {(d[0], d[2]) for d in disclosures(both)} == {("north", "west"), ("south", "west")}


def test_a_denied_column_does_not_exist(proxy):
    client = proxy({"north": "version: 1\ntables: {a: {deny_columns: [v]}, d: {deny: true}}\n"})
    for statement, said in (
        ("SELECT v FROM shop.a", 'column "v" does not exist'),
        ("SELECT a.v FROM shop.a", "column a.v does not exist"),
        ("SELECT * FROM shop.d", 'relation "shop.d" does not exist'),
        ("SELECT * FROM shop.nothing", 'relation "shop.nothing" does not exist'),
    ):
        with pytest.raises(psycopg.Error) as failure:
            client.execute(statement)
        assert failure.value.diag.message_primary == said
    assert [c.name for c in client.execute("SELECT * FROM shop.a").description] == ["id", "k"]
    visible = client.execute("SELECT name FROM oar.columns WHERE table_name = 'a'").fetchall()
    assert visible == [("id",), ("k",)]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TEMP VIEW mine AS SELECT * FROM oar_internal.guard('shop', 'a') AS t(id int, v int)",
        "CREATE TEMP VIEW mine AS SELECT /* oar 1 */ 1 AS id, 2 AS v"
        " FROM oar_internal.guard('shop', 'a') AS t(id bigint, k bigint, v bigint)",
        "CREATE FUNCTION pg_temp.mine() RETURNS TABLE (id bigint, v bigint) LANGUAGE plpgsql"
        " SECURITY DEFINER AS $$ BEGIN RETURN QUERY SELECT t.id, t.v"
        " FROM oar_internal.guard('shop', 'a') AS t(id bigint, v bigint); END $$;"
        " CREATE TEMP VIEW mine AS SELECT * FROM pg_temp.mine()",
    ],
    ids=["columns", "number", "function"],
)
def test_a_guard_of_a_clients_own_making_opens_nothing(proxy, made):
    """Its function may be called by anybody: as another table it is no table."""
    client = proxy({"north": "version: 1\ntables: {a: {deny_columns: [v]}}\n"})
    client.execute(made.encode())
    for query in (
        "SELECT * FROM mine",
        "SELECT mine.v, b.w FROM mine, shop.b",
        "SELECT * FROM oar_internal.guard('shop', 'a') AS t(id bigint, v bigint)",
        "SELECT b.w FROM shop.b JOIN oar_internal.guard('shop', 'a') AS t(k bigint, v bigint) USING (k)",
        "CREATE TEMP TABLE kept AS SELECT v FROM mine",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute(query.encode())
    assert client.execute("SELECT owner FROM oar.steps WHERE owner = 'north'").fetchall() == []


def test_the_proxys_own_limits_bind(proxy, owners):
    client = proxy(dict.fromkeys(("north", "south"), owners.ALLOW), Limits(max_rows=3))
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        client.execute("SELECT a.id, b.id FROM shop.a, shop.b")
    assert "proxy/limits.max_rows: 3 rows" in refused.value.diag.message_detail
    client.execute("SET oar.max_keys = 1")
    assert all(
        "Keys" not in step
        for step in plan(client, "SELECT count(*) FROM shop.a WHERE id = 1")["Steps"]
    )


def test_a_client_sees_its_own_asks_only(proxy, owners):
    client = proxy(dict.fromkeys(("north", "south"), owners.ALLOW))
    client.execute(JOIN)
    assert client.execute("SELECT count(DISTINCT principal) FROM oar.asks").fetchone() == (1,)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute("SELECT * FROM oar_internal.entries")


def test_what_was_sent_is_on_the_ledger_when_the_proxy_is_killed(new_hub, owners, tmp_path):
    """The receiver's table is locked, so that the keys are under way when the proxy dies."""
    hub = new_hub()
    rules = tmp_path / "south.yaml"
    rules.write_text(policy(("b.k", "north", 10)))
    config = tmp_path / "oar.yaml"
    named = {name: {"url": url, "schema": "shop"} for name, url in owners.urls.items()}
    named["south"]["policy"] = str(rules)
    settings = {"listen": {"port": 0}, "hub": {"dsn": hub}, "owners": named, "log_format": "json"}
    config.write_text(yaml.safe_dump(settings))
    oar = Path(sys.executable).with_name("oar")
    process = subprocess.Popen(
        [oar, "serve", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        for line in process.stdout:
            if '"listening"' in line:
                port = yaml.safe_load(line)["port"]
                break
        name = f"client_{secrets.token_hex(4)}"
        subprocess.run(
            [oar, "user", "add", name, "--config", config, "--password-from", "OWN_PASSWORD"],
            check=True, capture_output=True, env={**os.environ, "OWN_PASSWORD": "secret"},
        )  # fmt: skip
        parts = psycopg.conninfo.conninfo_to_dict(hub)
        with psycopg.connect(owners.north) as locker:
            locker.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
            client = psycopg.connect(
                host="127.0.0.1", port=port, user=name, password="secret", dbname=parts["dbname"]
            )
            client.pgconn.send_query(JOIN.encode())
            client.pgconn.flush()
            with psycopg.connect(owners.north, autocommit=True) as watcher:
                waiting = (
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND query LIKE '%ANY%'"
                )
                eventually(lambda: watcher.execute(waiting).fetchone() != (0,))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
            client.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with psycopg.connect(hub) as connection:
        assert disclosures(connection) == [("south", "shop.b.k", "north", "a.k", 2)]
        steps = connection.execute("SELECT owner, sqlstate FROM oar.steps ORDER BY step").fetchall()
        assert steps == [("south", "00000"), ("north", None)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("oar.max_keys", "many"), ("oar.max_keys", "-1"), ("oar.progress", "maybe")],
)
def test_a_setting_that_means_nothing_is_an_error(client, setting, value):
    client.execute(f"SET {setting} = '{value}'")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        client.execute(JOIN)
    assert setting in refused.value.diag.message_primary
    client.execute(f"RESET {setting}")
    assert client.execute(JOIN).fetchall() == ROWS


def test_a_session_may_lower_the_number_of_keys(client):
    client.execute("SET oar.max_keys = 1")
    assert client.execute(JOIN).fetchall() == ROWS
    steps = plan(client)["Steps"]
    assert all("Actual Keys" not in step for step in steps)


def test_progress_is_told_in_notices(client):
    told = []
    client.add_notice_handler(lambda diagnosis: told.append(diagnosis.message_primary))
    client.execute(JOIN)
    assert told == []
    client.execute("SET oar.progress = on")
    client.execute(JOIN)
    assert told == [
        "route relay: no owner holds all tables: 2 are needed (north, south)",
        "asking owner south for b",
        "owner south sent 2 rows",
        "asking owner north for a with 2 keys",
        "owner north sent 2 rows",
    ]
    client.execute("SET client_min_messages = warning")
    client.execute(JOIN)
    assert len(told) == 5


def notes(connection, statement=JOIN):
    return [note for step in plan(connection, statement)["Steps"] for note in step.get("Notes", ())]


def test_a_purpose_of_the_session_opens_an_edge_and_closes_it_again(proxy):
    south = (
        "version: 1\nkey_disclosure:\n- {column: b.k, to: [north], purpose: [refunds, audits]}\n"
    )
    client = proxy({"south": south})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == []
    rules = {d["Rule"] for step in plan(client)["Steps"] for d in step.get("Denied", ())}
    assert "south/key_disclosure[0].purpose" in rules
    client.execute("SET oar.purpose = 'audits'")
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == [("south", "shop.b.k", "north", "a.k", 2)]
    client.execute("SET oar.purpose = 'Audits'")
    assert route(client) == "fan-out"
    with client.transaction():
        client.execute("SET LOCAL oar.purpose = 'refunds'")
        assert route(client) == "relay"
    assert route(client) == "fan-out"


def test_too_few_keys_stay_where_they_are(proxy):
    south = "version: 1\nkey_disclosure: [{column: b.k, to: [north], min_keys: 3}]\n"
    client = proxy({"south": south})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == []
    assert notes(client) == [
        "edge shop.b.k to north carries 2 keys, at least 3 by south/key_disclosure[0].min_keys: "
        "asked without them"
    ]
    more = JOIN.replace("b.s = 'p'", "b.w > 0")
    assert len(client.execute(more).fetchall()) == 5
    assert [keys for *_, keys in disclosures(client)] == [3]


def test_the_receiver_has_a_say(proxy):
    granted = policy(("b.k", "north", 10))
    refusing = "version: 1\naccept_keys: [{column: a.id, from: ['*']}]\n"
    client = proxy({"south": granted, "north": refusing})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == []
    assert {d["Rule"] for step in plan(client)["Steps"] for d in step.get("Denied", ())} == {
        "north/accept_keys",
        "north/default deny",
    }
    accepting = "version: 1\naccept_keys: [{column: a.k, from: [south]}]\n"
    client = proxy({"south": granted, "north": accepting})
    assert client.execute(JOIN).fetchall() == ROWS
    assert [keys for *_, keys in disclosures(client)] == [2]


def test_a_table_with_a_required_filter_is_read_with_one(proxy):
    client = proxy({"north": "version: 1\ntables: {a: {require_filter: [k, id]}}\n",
                    "south": policy(("b.k", "north", 10))})  # fmt: skip
    for statement in ("SELECT * FROM shop.a", "SELECT count(*) FROM shop.a WHERE v = 'x'",
                      "SELECT * FROM (SELECT k, count(*) FROM shop.a GROUP BY k) AS q",
                      "SELECT * FROM shop.a WHERE id > 1"):  # fmt: skip
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            client.execute(statement)
        assert "a of owner north is read with a filter only" in str(refused.value)
    assert client.execute("SELECT v FROM shop.a WHERE id = 2").fetchall() == [("y",)]
    found = "SELECT count(*) FROM shop.a WHERE id IN (1, 2)"
    assert client.execute(found).fetchone() == (2,)
    with client.cursor() as cursor:
        cursor.execute("SELECT v FROM shop.a WHERE id = %s", (2,))
        assert cursor.fetchall() == [("y",)]
    # The keys of a join are a filter too.
    assert client.execute(JOIN).fetchall() == ROWS


def test_a_table_of_several_owners_is_not_grouped_for_one_of_them(proxy):
    client = proxy({"north": "version: 1\ntables: {split: {min_group: {entity: k, size: 2}}}\n"})
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not all owners") as refused:
        client.execute("SELECT t, count(*) FROM shop.split GROUP BY t")
    assert "rule north/tables.split.min_group" in refused.value.diag.message_detail
    refused_by = client.execute("SELECT refusal FROM oar.asks ORDER BY at DESC LIMIT 1").fetchone()
    assert "north/tables.split.min_group" in refused_by[0]


def test_nobody_asks_an_owner_whose_policy_has_ended(proxy):
    client = proxy({"south": "version: 1\nexpires: 2020-12-31\n"})
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="its policy has ended") as error:
        client.execute("SELECT count(*) FROM shop.b")
    assert (
        error.value.diag.message_detail == "rule south/expires: the last day was 2020-12-31, in UTC"
    )
    assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
    client = proxy({"south": "version: 1\nexpires: 2999-12-31\n"})
    assert client.execute("SELECT count(*) FROM shop.b").fetchone() == (6,)


def test_only_subjects_ask_an_owner(proxy):
    client = proxy({"south": "version: 1\nsubjects: [oar_auditor]\n"})
    assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
    for statement in ("SELECT count(*) FROM shop.b", JOIN, f"EXPLAIN {JOIN}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            client.execute(statement)
        assert "permission denied for the tables of owner south" in str(refused.value)
    sent = client.execute("SELECT DISTINCT owner FROM oar.steps").fetchall()
    assert sent == [("north",)]


def test_bytes_and_queries_have_limits_of_the_owner(proxy):
    client = proxy({"north": policy(limits="max_bytes: 20")})
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        client.execute("SELECT * FROM shop.a")
    assert "more than 20 bytes" in str(refused.value)
    assert "north/limits.max_bytes" in refused.value.diag.message_detail
    client = proxy({"north": policy(limits="max_queries: 1")})
    assert client.execute("SELECT count(*) FROM shop.a").fetchone() == (6,)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many queries"):
        client.execute("SELECT * FROM shop.a JOIN shop.d ON a.k = d.id JOIN shop.b USING (k)"
                       " JOIN shop.c ON c.k = b.k JOIN shop.a AS again ON again.k = c.k")  # fmt: skip


HASHED = "version: 1\nkey_disclosure: [{column: b.k, to: [north], form: hmac}]\n"


def test_keys_travel_as_digests_of_which_each_statement_has_its_own(proxy):
    client = proxy({"south": HASHED})
    assert client.execute(JOIN).fetchall() == ROWS
    assert disclosures(client) == [("south", "shop.b.k", "north", "a.k", 2)]
    described = plan(client)
    (edge,) = described["Steps"][1]["Keys"]
    assert (edge["Form"], edge["Rule"]) == ("hmac", "south/key_disclosure[0]")
    assert "sha256" in described["Steps"][1]["SQL"]
    every = "SELECT a.id, b.id FROM shop.a JOIN shop.b USING (k) ORDER BY 1, 2"
    assert client.execute(every).fetchall() == [(1, 1), (1, 2), (4, 1), (4, 2), (5, 5), (6, 6)]


def test_a_principal_has_so_many_keys_of_an_owner_a_day(proxy):
    south = "version: 1\nlimits: {max_keys_per_day: 3}\n"
    south += "key_disclosure: [{column: b.k, to: [north]}]\n"
    client = proxy({"south": south})
    for _ in range(3):
        assert client.execute(JOIN).fetchall() == ROWS  # the same two keys each time
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        client.execute("SELECT count(*) FROM shop.a JOIN shop.b USING (k)")
    assert "too many join keys of owner south for one day: " in str(refused.value)
    assert "south/limits.max_keys_per_day" in refused.value.diag.message_detail
    # What carries no key of it is not counted.
    assert client.execute("SELECT count(*) FROM shop.b").fetchone() == (6,)
    assert [keys for *_, keys in disclosures(client)] == [2, 2, 2]
