"""Every rule on what may be left out, as statements whose rows are those of the merged tables.

The tables of cases beside this file are the specification. A case has the ``rule`` it belongs to
(and the public ``report`` it replays), the statement, and what its plan may use: ``edges`` are all
the key edges that are sound (column > column whose rows they reduce; those in parentheses are not
owed), ``where`` all conditions that owners are sent (PostgreSQL owners, in mariadb.yaml MariaDB's).
``plan: whole``: its one owner evaluates it; ``in_place`` is what differs where an owner answers a
subquery whole.
``plan: any``: the rows alone matter. ``among`` is for statements that leave open which rows they
give, ``numbers`` for owners that keep no scale; ``error`` is what the proxy refuses the statement
with; ``hub: icu`` is for a hub that has ICU's collations.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
import yaml
from oar_adapters.registry import schemes

HERE = Path(__file__).parent
GROUPS = ("joins", "subqueries", "sets", "keys", "types", "mariadb", "reports", "replayed")
KINDS = ("pg", "icu", "sqlite", "mariadb")
PLAIN = tuple(map("-".join, itertools.product(("pg", "sqlite", "mariadb"), repeat=2)))
ICU = ("icu-pg", "pg-icu")
RULES = tuple(f"R{number}" for number in range(1, 51))
REPORTS = (
    "pg_duckdb #1077", "trino #26257", "trino #25943", "datafusion #23103", "datafusion #23126",
    "datafusion #22964", "datafusion #17188", "spiceai #12403", "superset #36304",
    "oracle_fdw #613", "oracle_fdw #364", "duckdb-postgres #68", "trino #6671", "trino #6746",
    "trino PR #29952", "trino PR #30480", "presto #11606", "sqlglot #7964", "sqlglot PR #8278",
    "sqlglot DISTINCT ON", "iceberg #12458", "CALCITE-7074", "CALCITE-5952", "trino #13145",
    "trino #13109", "presto #7729", "spiceai PR #11598", "timescaledb #10398", "duckdb #6061",
    "datafusion #12942", "duckdb #24321", "head-to-head: text range",
    "head-to-head: first and last text", "head-to-head: merge join of text",
    "head-to-head: MariaDB", "head-to-head: integer division", "head-to-head: char against text",
    "head-to-head: NULL keys", "head-to-head: IN as a value",
)  # fmt: skip
TABLES = yaml.safe_load((HERE / "tables.yaml").read_text())
NOT_APPLICABLE = yaml.safe_load((HERE / "not_applicable.yaml").read_text())


def load(group):
    cases = yaml.safe_load((HERE / f"{group}.yaml").read_text())
    seen = Counter()
    for case in cases:
        name = case.get("report", case["rule"]).replace(" ", "_")
        seen[name] += 1
        case["group"] = group
        case["id"] = f"{group}-{name}.{seen[name]}"
    return cases


ALL = [case for group in GROUPS for case in load(group)]
CASES = [case for case in ALL if "hub" not in case]
COLLATED = [case for case in ALL if "hub" in case]
PLANNED = [case for case in CASES if "edges" in case or case.get("plan") == "whole"]
AT_MARIADB = [case for case in PLANNED if case["group"] == "mariadb"]
ELSEWHERE = [case for case in PLANNED if case["group"] != "mariadb"]


def reducible(case):
    return any(edge[0] != "(" for edge in case.get("edges", ()))


def joining(case):
    """What an order of reductions, or one inside an owner, could change."""
    return reducible(case) or (case.get("plan") == "any" and " JOIN " in case["sql"])


def structural(case):
    """What another planner could read otherwise."""
    return case["group"] in ("joins", "subqueries", "sets")


def textual(case):
    """What an owner that orders text otherwise could change."""
    return case["group"] in ("types", "mariadb", "reports")


def tables_of(case):
    return {word for word in re.findall(r"\w+", case["sql"]) if word in TABLES}


def kind_of(table, combination):
    left, right = combination.split("-")
    return right if TABLES[table]["owner"] == "right" else left


def missing(case, combination):
    """The reason for which an owner of the combination cannot hold a table of the statement."""
    for table in sorted(tables_of(case)):
        reason = TABLES[table].get("cannot", {}).get(kind_of(table, combination))
        if reason:
            return reason
    return None


def runs_on(case, combination):
    """Whether the combination's owners can hold every table of the statement."""
    at = {table: kind_of(table, combination) for table in tables_of(case)}
    about = all(kind in TABLES[table].get("only", (kind,)) for table, kind in at.items())
    return about and not missing(case, combination)


def on(cases, *combinations):
    """Run a test of each case on each of the combinations that can hold its tables."""
    kept = list(cases)
    return on_each(*((kept, combination) for combination in combinations))


def on_each(*groups):
    """Run a test of each group's cases on the group's combination."""
    return pytest.mark.parametrize(
        ("case", "combination"),
        [
            pytest.param(case, combination, id=f"{case['id']}-{combination}")
            for cases, combination in groups
            for case in cases
            if runs_on(case, combination)
        ],
    )


# --- rows --------------------------------------------------------------------------------------


@on(CASES, *PLAIN)
def test_rows_are_those_of_the_merged_tables(case, combination, combinations):
    check(case, combinations(combination))


@on(filter(textual, CASES), *ICU)
def test_rows_are_the_same_where_owners_order_text_otherwise(case, combination, combinations):
    check(case, combinations(combination))


@on([*filter(structural, PLANNED), *COLLATED], "pg-pg")
def test_rows_are_the_same_at_an_older_hub_with_collations(case, combination, combinations):
    check(case, combinations(combination, hub="icu"))


@on(filter(joining, CASES), "pg-sqlite", "mariadb-mariadb")
def test_rows_are_the_same_reduced_in_full(case, combination, combinations):
    place = combinations(combination)
    check(case, place, **{"oar.reduction": "full"})


@pytest.mark.parametrize("allowed", ["rightward", "leftward"])
@on(filter(structural, filter(reducible, PLANNED)), "pg-sqlite", "mariadb-pg")
def test_rows_are_the_same_where_keys_may_go_one_way(case, combination, allowed, combinations):
    """What the planner would not choose is tried too: the only direction that is left."""
    check(case, combinations(combination, allowed))


def check(case, place, **settings):
    wanted = run(place.merged, case["sql"], case.get("set", {}))
    got = run(place.client, case["sql"], case.get("set", {}) | settings)
    if "error" in case:
        assert got == case["error"]
    elif isinstance(wanted, str) or isinstance(got, str):
        assert got == wanted
    else:
        assert got[0] == wanted[0]
        compare(case, place, rows(case, got[1]), rows(case, wanted[1]))


def compare(case, place, got, wanted):
    if "among" in case:
        _, possible = run(place.merged, case["among"], {})
        assert len(got) == len(wanted)
        assert not Counter(got) - Counter(rows(case, possible))
    elif case.get("ordered"):
        assert got == wanted
    else:
        assert Counter(got) == Counter(wanted)


def run(connection, sql, settings):
    """Columns and rows, or the SQLSTATE."""
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", [name, value])
    try:
        cursor = connection.execute(sql)
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        for name in settings:
            connection.execute(f"RESET {name}")
    # Cells as PostgreSQL writes them: nothing is lost to a client's own types.
    result = cursor.pgresult
    cells = [
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]
    return [(c.name, c.type_code) for c in cursor.description], cells


def rows(case, cells):
    if not case.get("numbers"):
        return cells
    return [tuple(None if c is None else number(c) for c in row) for row in cells]


def number(cell):
    value = Decimal(cell.decode())
    return str(value.normalize()) if value.is_finite() else str(value)


# --- plans --------------------------------------------------------------------------------------


@on_each((ELSEWHERE, "pg-pg"), (AT_MARIADB, "mariadb-mariadb"))
def test_owners_are_sent_what_the_rule_allows_and_no_more(case, combination, combinations):
    """Under a policy that denies every edge the plan lists all that are sound."""
    steps = explain(combinations(combination, "none").client, case)
    if case.get("plan") == "whole":
        assert [step["Reads"] for step in steps] == ["the whole statement"]
    else:
        check_plan(case, steps)


@on(COLLATED, "pg-pg")
def test_a_collation_of_the_hubs_own_reduces_nothing(case, combination, combinations):
    check_plan(case, explain(combinations(combination, "none", "icu").client, case))


@on([case for case in PLANNED if "in_place" in case], "sqlite-sqlite")
def test_no_key_passes_into_a_subquery_that_its_owner_does_not_answer(
    case, combination, combinations
):
    steps = explain(combinations(combination, "none").client, case)
    sound, owed = expected_edges(case, steps)
    assert owed <= edges(steps, "Denied", "Keys") <= sound
    assert not any("subquery" in step["Reads"] for step in steps)


def check_plan(case, steps):
    case = as_planned(case, steps)
    sound, owed = expected_edges(case, steps)
    assert owed <= edges(steps, "Denied", "Keys") <= sound
    columns = {edge.rpartition(".")[2] for edge in sound}
    where = {name: without_nulls(text, columns) for name, text in case.get("where", {}).items()}
    assert conditions(steps, columns) == {name: text for name, text in where.items() if text}


@on_each(
    (filter(reducible, ELSEWHERE), "pg-pg"),
    (filter(reducible, AT_MARIADB), "mariadb-mariadb"),
    (filter(structural, filter(reducible, ELSEWHERE)), "pg-mariadb"),
)
def test_keys_travel_by_an_edge_of_the_rules(case, combination, combinations):
    """Being right is not bought by never reducing."""
    steps = explain(combinations(combination).client, case, **{"oar.reduction": "full"})
    sound, _ = expected_edges(as_planned(case, steps), steps)
    used = edges(steps, "Keys", "Semi-Joins")
    # Reducing in full leaves keys of several tables together to the ordinary order.
    assert used or any(", " in edge for edge in case["edges"])
    assert used <= sound


def explain(client, case, **settings):
    """The steps of a plan; no owner is asked."""
    settings = case.get("set", {}) | settings
    for name, value in settings.items():
        client.execute("SELECT set_config(%s, %s, false)", [name, value])
    plan = client.execute(f"EXPLAIN (FORMAT json) {case['sql']}").fetchone()[0][0]["Plan"]
    for name in settings:
        client.execute(f"RESET {name}")
    return plan["Steps"]


def named(step):
    """A step's table, and what the statement calls it."""
    table, _, reference = re.sub(r"^(keys of )?shop\.", "", step["Reads"]).partition(" ")
    return table, reference or table


def as_planned(case, steps):
    """What is expected where an owner answers a subquery in its place."""
    in_place = any(step["Reads"].startswith("a subquery") for step in steps)
    return case | case.get("in_place", {}) if in_place else case


def expected_edges(case, steps):
    """All sound edges, and those of them that have to be found, by their tables' names."""
    tables = {reference: table for table, reference in map(named, steps)}

    def spelled(edge):
        return re.sub(r"(\w+)\.", lambda m: f"{tables.get(m[1], m[1])}.", edge.strip("()"))

    owed = {spelled(edge) for edge in case["edges"] if edge[0] != "("}
    return {spelled(edge) for edge in case["edges"]}, owed


def edges(steps, *kinds):
    found = set()
    for step in steps:
        for edge in (edge for kind in kinds for edge in step.get(kind, ())):
            sources = re.findall(r"shop\.(\w+\.\w+)", edge["From"])
            targets = re.findall(r"\w+\.\w+", edge["To"])
            # What is compared at once is an edge for each column.
            for place, target in enumerate(targets):
                found.add(f"{', '.join(sources[place :: len(targets)])} > {target}")
    return found


_KEYS = re.compile(r"ANY \(\$|IN \(\?\)|unnest\(\$")


_NOT_NULL = re.compile(r"(?:t\.)?(\w+) IS NOT NULL|\(NOT t\.(\w+) <=> NULL\)")


def conditions(steps, columns):
    """What each scan is sent besides keys, without quotes and casts, and without NULL tests."""
    found = {}
    for step in steps:
        match = re.search(r" WHERE (.*?)(?: GROUP BY [0-9, ]+)? LIMIT \d+", step["SQL"])
        plain = re.sub(r"::[a-z]+(?: [a-z]+)*", "", match[1].replace('"', "")) if match else ""
        if sent := without_nulls(plain, columns):
            found[named(step)[1]] = sent
    return found


def without_nulls(where, columns):
    """Leave out keys, and that columns which keys may reach are not NULL: such rows join nothing."""
    parts = [part for part in where.split(" AND ") if part and not _KEYS.search(part)]
    tests = [_NOT_NULL.fullmatch(part) for part in parts]
    told = [test is not None and (test[1] or test[2]) in columns for test in tests]
    return " AND ".join(part for part, leave in zip(parts, told, strict=True) if not leave)


# --- the specification itself -------------------------------------------------------------------


def test_every_rule_and_every_report_has_a_case(capsys):
    rules = Counter(case["rule"] for case in ALL)
    reports = Counter(case["report"] for case in ALL if "report" in case)
    absent = Counter(name for names in NOT_APPLICABLE.values() for name in names)
    left_out = [(c, x) for c in CASES for x in (*PLAIN, *ICU) if missing(c, x)]
    with capsys.disabled():
        print("\n" + ", ".join(f"{rule} {rules[rule]}" for rule in RULES))
        print(
            f"{len(ALL)} cases, {len(reports)} reports, {absent.total()} not applicable yet; "
            f"{len(PLAIN) + len(ICU)} combinations, which cannot hold the tables of "
            f"{len(left_out)} pairs of case and combination"
        )
    assert sorted(rules) == sorted(RULES)
    assert [name for name in REPORTS if not reports[name] and not absent[name]] == []
    found_since = {case["report"] for case in ALL if case["group"] == "replayed"}
    assert set(reports) - found_since <= set(REPORTS)


def test_every_case_runs_somewhere():
    assert [c["id"] for c in ALL if not any(runs_on(c, x) for x in (*PLAIN, *ICU))] == []


def test_what_a_kind_of_owner_cannot_hold_has_a_reason():
    """And only what it says it cannot hold is left out."""
    for name, table in TABLES.items():
        assert set(table.get("cannot", {})) <= set(KINDS), name
        assert set(table.get("only", ())) <= set(KINDS), name
        assert all(isinstance(reason, str) for reason in table.get("cannot", {}).values()), name
    assert [t for t in TABLES if not any(t in tables_of(case) for case in ALL)] == []


def test_what_is_not_applicable_is_about_kinds_of_owner_without_a_combination():
    """When a kind gets one, its rows become cases."""
    assert sum(map(len, NOT_APPLICABLE.values())) == 6
    kinds = {kind for name in (*PLAIN, *ICU) for kind in name.split("-")}
    assert not kinds & set(NOT_APPLICABLE)
    assert set(schemes()) <= {"postgres", "postgresql", "sqlite", "mysql", "mariadb"}
