"""What EXPLAIN says: owners, SQL, keys, what stays for the hub, and what is not reduced and why."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import psycopg
import psycopg.conninfo
import pytest
import yaml

KEPT_WHOLE = {
    "SELECT a.id FROM shop.a LEFT JOIN shop.b ON a.k = b.k": ("a", "k: an outer join keeps its rows without a partner (R2)"),
    "SELECT a.id FROM shop.a FULL JOIN shop.b ON a.k = b.k": ("b", "k: a full join keeps its rows without a partner (R3)"),
    "SELECT id FROM shop.a WHERE NOT EXISTS (SELECT FROM shop.b WHERE b.k = a.k)": ("a", "k: the rows without a partner are the answer (R17)"),
    "SELECT a.id FROM shop.a JOIN (SELECT min(k + 0) k FROM shop.b GROUP BY s) q USING (k)": ("b", None),
    "SELECT a.id FROM shop.a JOIN (SELECT min(k) k FROM shop.b GROUP BY s) q USING (k)": (
        "a", "k: an owner's subquery computes one side: no key of a table (R22)"),
    "SELECT q.rank FROM shop.a JOIN (SELECT k, rank() OVER (ORDER BY w) FROM shop.b) q USING (k)": ("b", "k: a window function below the join sees all its rows (R25)"),
    "SELECT a.id FROM shop.a JOIN (SELECT k FROM shop.b ORDER BY w LIMIT 2) q USING (k)": ("b", "k: a LIMIT below the join sees all its rows (R27)"),
    "SELECT a.id FROM shop.a JOIN shop.b ON a.id = b.k::numeric": ("b", None),
}  # fmt: skip


def plan(client, statement, options="FORMAT json"):
    return client.execute(f"EXPLAIN ({options}) {statement}").fetchone()[0][0]["Plan"]


@pytest.mark.parametrize("statement", KEPT_WHOLE)
def test_a_reduction_that_is_not_made_names_its_rule(client, statement):
    table, reason = KEPT_WHOLE[statement]
    (step,) = [s for s in plan(client, statement)["Steps"] if f"shop.{table}" in s["Reads"].split()]
    assert "Keys" not in step
    assert step.get("Not Reduced", []) == ([reason] if reason else [])


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "DECLARE c CURSOR FOR {}",
        "CREATE TEMP TABLE t AS {}",
        "CREATE TEMP TABLE t (x, y) AS {}",
    ],
)
@pytest.mark.parametrize(
    "statement",
    ["SELECT a.v, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p'", "SELECT v, k FROM shop.a LIMIT 3"],
)  # fmt: skip
def test_what_is_made_of_a_select_reads_what_the_select_does(client, statement, around):
    explained = plan(client, around.format(statement), "FORMAT json, COSTS off")
    assert explained["Steps"] == plan(client, statement, "FORMAT json, COSTS off")["Steps"]
    assert not [note for note in explained.get("Notes", []) if "not analysed" in note]


def test_text_and_json_tell_the_same(client):
    statement = "SELECT a.v, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p' AND a.v ~ 'x'"
    document = plan(client, statement)
    lines = [line for (line,) in client.execute(f"EXPLAIN {statement}")]
    assert document["Owner Cover"] == 2
    assert document["Route"] == "relay"
    first, second = document["Steps"]
    assert (first["Owner"], first["Reads"]) == ("south", "shop.b")
    assert second["Kept For The Hub"] == ["v ~ 'x'::text"]
    (keys,) = second["Keys"]
    assert keys == {
        "From": "south: shop.b.k",
        "To": "north: a.k",
        "Rule": "south/key_disclosure[0]",
        "At Most": 1000,
        "Form": "plain",
        "Estimated Keys": 2,
    }
    chosen, *rejected = document["Orders"]
    assert chosen["Asks"] == [["south for shop.b"], ["north for shop.a"]]
    assert [order["Rejected"] for order in rejected] == ["leaves 1 join unreduced"]

    def told(order):
        return "keys={Keys} rows={Rows} round trips={Round Trips}".format_map(order)

    assert lines == [
        "Federated Query  (cost=200.00..200.09 rows=6 width=40)",
        "  Owner Cover: 2 (north, south)",
        "  Route: relay: no owner holds all tables: 2 are needed (north, south)",
        f"  Chosen Order: south for shop.b; then north for shop.a ({told(chosen)})",
        f"  Rejected Order: north for shop.a, south for shop.b ({told(rejected[0])}): "
        "leaves 1 join unreduced",
        "  Step 1: owner south reads shop.b",
        f"    SQL: {first['SQL']}",
        f"    Estimated: rows={first['Estimated Rows']}",
        "  Step 2: owner north reads shop.a",
        f"    SQL: {second['SQL']}",
        "    Keys: south: shop.b.k -> north: a.k (rule south/key_disclosure[0], at most 1000)",
        "    Kept for the hub: v ~ 'x'::text",
        f"    Estimated: rows={second['Estimated Rows']} keys=2",
        "  Hub: evaluates the statement over these rows",
    ]
    assert "$1" in second["SQL"]


def test_analyze_counts_rows_and_keys(client):
    statement = "SELECT a.v, b.w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p'"
    steps = plan(client, statement, "ANALYZE, FORMAT json")["Steps"]
    assert [(s["Actual Rows"], s.get("Actual Keys")) for s in steps] == [(2, None), (2, 2)]
    # A bigint takes eight bytes, a letter one, NULL none, and the length of each four.
    assert [s["Actual Bytes"] for s in steps] == [2 * (12 + 12 + 5), 12 + 5 + 12 + 4]
    lines = [line for (line,) in client.execute(f"EXPLAIN ANALYZE {statement}")]
    assert sum(line.startswith("    Actual: rows=2 ") for line in lines) == 2


def test_tools_that_draw_plans_find_nodes_of_postgresqls(client):
    def nodes(statement, options="FORMAT json"):
        return plan(client, statement, options)["Plans"]

    scan = {"Node Type": "Foreign Scan", "Parent Relationship": "Outer"}
    join = "SELECT x.v, b.w FROM shop.a AS x JOIN shop.b USING (k) WHERE b.s = 'p'"
    first, second = nodes(join)
    estimates = first.pop("Plan Rows"), second.pop("Plan Rows")
    assert all(rows >= 1 for rows in estimates)
    assert first == scan | {"Schema": "shop", "Relation Name": "b", "Alias": "b"}
    assert second == scan | {"Schema": "shop", "Relation Name": "a", "Alias": "x"}
    analyzed = nodes(join, "ANALYZE, FORMAT json")
    assert [(n["Actual Rows"], n["Actual Loops"]) for n in analyzed] == [(2, 1), (2, 1)]
    assert all(n["Actual Total Time"] > 0 for n in analyzed)
    assert nodes("SELECT count(*) FROM shop.a") == [scan | {"Relation Name": "shop.a"}]
    assert nodes("SELECT * FROM shop.a LIMIT 0") == []


def test_analyze_counts_the_keys_of_each_edge(client):
    statement = "SELECT a.id FROM shop.a JOIN shop.b USING (k, id) WHERE b.s = 'p'"
    steps = plan(client, statement, "ANALYZE, FORMAT json")["Steps"]
    (keys,) = [step["Keys"] for step in steps if step["Reads"] == "shop.a"]
    assert [(key["To"], key["Actual Keys"]) for key in keys] == [("north: (a.k, a.id)", 4)]
    assert keys[0]["From"] == "south: (shop.b.k, shop.b.id)"


def test_a_step_without_any_key_left_is_skipped(client):
    statement = "SELECT a.id FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'nobody'"
    lines = [line for (line,) in client.execute(f"EXPLAIN ANALYZE {statement}")]
    assert "    Skipped: no key was left" in lines
    (skipped,) = [
        s for s in plan(client, statement, "ANALYZE, FORMAT json")["Steps"] if "Skipped" in s
    ]
    assert (skipped["Reads"], skipped["Actual Rows"], skipped["Actual Keys"]) == ("shop.a", 0, 0)


@pytest.mark.parametrize("off", ["ANALYZE 0", "ANALYZE false", "ANALYZE OFF", "COSTS off"])
def test_analyze_can_be_switched_off(client, off):
    lines = [line for (line,) in client.execute(f"EXPLAIN ({off}) SELECT * FROM shop.a, shop.b")]
    assert not any("Actual" in line for line in lines)


def test_a_semi_join_inside_an_owner_is_shown(client):
    statement = (
        "SELECT d.name FROM shop.a JOIN shop.d ON d.id = a.k JOIN shop.b ON b.id = a.id"
        " WHERE b.s = 'p'"
    )
    (step,) = [s for s in plan(client, statement)["Steps"] if s["Reads"] == "shop.d"]
    assert step["Semi-Joins"] == [{"From": "north: shop.a.k", "To": "north: d.id"}]
    assert [key["To"] for key in step["Keys"]] == ["north: a.id"]
    lines = [line for (line,) in client.execute(f"EXPLAIN {statement}")]
    assert "    Semi-join inside the owner: north: shop.a.k -> north: d.id" in lines


def test_orders_are_told_of_only_where_there_is_a_choice(client):
    for statement in ("SELECT * FROM shop.a, shop.b", "SELECT count(*) FROM shop.a"):
        assert "Orders" not in plan(client, statement)


def test_a_whole_statement_shows_what_its_owner_gets(client):
    document = plan(client, "SELECT v, count(*) FROM shop.a GROUP BY v")
    (step,) = document["Steps"]
    assert (step["Owner"], step["Reads"]) == ("north", "the whole statement")
    assert document["Hub"] == "passes the owner's answer on"


def test_an_occurrence_that_cannot_matter_is_not_read(client):
    document = plan(
        client, "SELECT a.id FROM shop.a LEFT JOIN shop.d ON d.id = a.k JOIN shop.b ON true"
    )
    assert document["Not Read"] == ["shop.d"]


@pytest.mark.parametrize("table", ["a", "b", "c"])
def test_a_count_is_its_owners_and_no_row_leaves(client, table):
    document = plan(client, f"SELECT count(*) FROM shop.{table}", "ANALYZE, FORMAT json")
    (step,) = document["Steps"]
    assert (step["Reads"], step["Actual Rows"]) == ("the whole statement", 1)


def test_what_is_written_twice_and_not_read_is_listed_once(client):
    never = "EXISTS (SELECT FROM shop.b WHERE b.k = a.k AND false)"
    statement = f"SELECT {never} FROM shop.a JOIN shop.c USING (k) GROUP BY {never}"
    assert plan(client, statement)["Not Read"] == ["shop.b"]


JOIN = "SELECT * FROM {0}a JOIN {0}b USING (k) WHERE b.s <> 'q'"
JOINED = JOIN.format("shop.")

ACCEPTED = (
    "VERBOSE", "COSTS off", "TIMING off", "BUFFERS", "SUMMARY", "SETTINGS", "VERBOSE 0", "COSTS 1",
    "ANALYZE, WAL, BUFFERS, TIMING off, SUMMARY off", "ANALYZE, ANALYZE off", "FORMAT YAML",
    '"format" \'yaml\'', "FORMAT json, FORMAT text", "GENERIC_PLAN", "MEMORY",
    "ANALYZE, SERIALIZE binary",
)  # fmt: skip
REFUSED = (
    "WAL", "SERIALIZE", "bogus", "FORMAT bogus", "FORMAT 'JSON'", "FORMAT", "COSTS 3", "COSTS 1.5",
    "VERBOSE maybe", "ANALYZE, GENERIC_PLAN", "ANALYZE, SERIALIZE 7", "TIMING", "TIMING on",
)  # fmt: skip


@pytest.mark.parametrize("options", [*ACCEPTED, *REFUSED])
def test_options_are_taken_and_refused_as_by_the_hubs_postgresql(client, line, options):
    def outcome(connection, schema):
        try:
            connection.execute(f"EXPLAIN ({options}) {JOIN.format(schema)}")
        except psycopg.Error as error:
            return error.sqlstate, error.diag.message_primary
        return "taken"

    with psycopg.connect(line.merged, autocommit=True) as direct:
        assert outcome(client, "shop.") == outcome(direct, "")


def explained(client, options, statement=JOINED):
    return [line for (line,) in client.execute(f"EXPLAIN ({options}) {statement}")]


def test_what_options_leave_out(client):
    assert not any("rows=" in line for line in explained(client, "COSTS off"))
    ran = explained(client, "ANALYZE, TIMING off, SUMMARY off, COSTS off")
    assert sum(line.startswith("    Actual: rows=") for line in ran) == 2
    assert not any(" ms" in line or "Estimated" in line for line in ran)
    document = plan(client, "SELECT * FROM shop.a", "ANALYZE, COSTS off, TIMING off, FORMAT json")
    assert not {"Plan Rows", "Total Cost"} & {*document, *document["Plans"][0]}
    assert {"Actual Rows", "Actual Loops"} == {
        name for name in document["Plans"][0] if name.startswith("Actual")
    }


def test_what_options_add(client):
    client.execute("SET enable_mergejoin = off")
    *_, settings, planning = explained(client, "SETTINGS, SUMMARY")
    assert settings.startswith("Settings: ")
    assert "enable_mergejoin = 'off'" in settings
    assert re.fullmatch(r"Planning Time: \d+\.\d{3} ms", planning)
    *_, planning, execution = explained(client, "ANALYZE")
    assert planning.startswith("Planning Time: ")
    assert re.fullmatch(r"Execution Time: \d+\.\d{3} ms", execution)
    (document,) = client.execute(
        "EXPLAIN (ANALYZE, SETTINGS, FORMAT json) SELECT * FROM shop.a"
    ).fetchone()[0]
    assert [*document] == ["Plan", "Settings", "Planning Time", "Execution Time"]
    assert document["Settings"]["enable_mergejoin"] == "off"


def test_yaml_and_json_tell_the_same(client):
    (text,) = client.execute(f"EXPLAIN (FORMAT yaml) {JOINED}").fetchone()
    assert text.startswith("- Plan:\n    Node Type: Federated Query\n")
    assert yaml.safe_load(text) == [{"Plan": plan(client, JOINED)}]


def test_xml_is_postgresqls_or_refused_where_the_hub_cannot_read_it(client, line):
    statement = "EXPLAIN (FORMAT xml) SELECT * FROM shop.a, shop.b"
    with psycopg.connect(line.merged, autocommit=True) as direct:
        try:
            direct.execute("SELECT '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
                client.execute(statement)
            assert refused.value.diag.message_hint == "use TEXT, JSON or YAML"
            return
    cursor = client.execute(statement)
    assert cursor.description[0].type_code == 142
    root = ElementTree.fromstring(cursor.fetchone()[0])
    space = "{http://www.postgresql.org/2009/explain}"
    found = root.findall(f"{space}Query/{space}Plan/{space}Plans/{space}Plan/{space}Relation-Name")
    assert sorted(each.text for each in found) == ["a", "b"]


SIZED = {
    "SELECT * FROM shop.a": 6,
    "SELECT * FROM shop.a LIMIT 2": 2,
    "SELECT count(*) FROM shop.a": 1,
    "SELECT count(*) FROM shop.a JOIN shop.b USING (k)": 1,
    "SELECT * FROM shop.a JOIN shop.b USING (k)": 6,
    "SELECT * FROM shop.a, shop.b": 36,
    "SELECT * FROM shop.a UNION ALL SELECT * FROM shop.a": 12,
    "SELECT * FROM shop.d WHERE id = 2": 1,
    "SELECT * FROM shop.a LIMIT 0": 1,
}


@pytest.mark.parametrize("statement", SIZED)
def test_the_first_line_sizes_the_answer(client, statement):
    first = client.execute(f"EXPLAIN {statement}").fetchone()[0]
    found = re.fullmatch(
        r"Federated Query  \(cost=(\d+\.\d\d)\.\.(\d+\.\d\d) rows=(\d+) width=(\d+)\)", first
    )
    startup, total, rows, width = map(float, found.groups())
    assert startup < total
    assert rows == SIZED[statement]
    assert width > 0
    assert plan(client, statement)["Plan Rows"] == rows


def test_a_parameter_without_a_value_is_none(client):
    statement = "SELECT 1; SELECT * FROM shop.a WHERE id = $2 AND k = $1"
    with pytest.raises(psycopg.errors.UndefinedParameter) as failed:
        client.execute(statement)
    assert failed.value.diag.message_primary == "there is no parameter $2"
    assert failed.value.diag.statement_position == str(statement.index("$2") + 1)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="takes no parameters"):
        client.execute("EXPLAIN (GENERIC_PLAN) SELECT * FROM shop.a WHERE id = $1")
    client.execute(
        "PREPARE later AS SELECT v FROM shop.a WHERE id = $1; SELECT count(*) FROM shop.a"
    )
    assert client.execute("EXECUTE later (1)").fetchall() == [("x",)]


def test_postgres_fdw_plans_by_the_estimates(line, new_database):
    """Another database's postgres_fdw with ``use_remote_estimate``, which reads the first line."""
    to = psycopg.conninfo.conninfo_to_dict(line.dsn)
    server = ", ".join(f"{option} '{to[option]}'" for option in ("host", "port", "dbname"))
    with psycopg.connect(new_database("foreign"), autocommit=True) as other:
        other.execute(
            "CREATE EXTENSION postgres_fdw; CREATE SERVER oar FOREIGN DATA WRAPPER postgres_fdw"
            f" OPTIONS ({server}, use_remote_estimate 'true', fdw_startup_cost '0',"
            " fdw_tuple_cost '0'); CREATE USER MAPPING FOR CURRENT_USER SERVER oar"
            f" OPTIONS (user '{to['user']}', password '{to['password']}'); CREATE SCHEMA shop;"
            "IMPORT FOREIGN SCHEMA shop FROM SERVER oar INTO shop"
        )
        for statement, rows in (
            ("SELECT * FROM shop.a", 6),
            ("SELECT count(*) FROM shop.d", 1),
            ("SELECT * FROM shop.d WHERE id = 2", 1),
        ):
            (first,) = other.execute(f"EXPLAIN {statement}").fetchone()
            assert re.match(rf"Foreign Scan.*  \(cost=100\.00\.\.10\d\.\d\d rows={rows} ", first)
        joined = "SELECT a.id, w FROM shop.a JOIN shop.b USING (k) WHERE b.s = 'p' ORDER BY 1"
        with psycopg.connect(line.merged, autocommit=True) as direct:
            right = direct.execute(joined.replace("shop.", "")).fetchall()
        assert other.execute(joined).fetchall() == right
