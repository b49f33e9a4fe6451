"""``oar policy test``: a file's own tests, planned by the compiler over a hub of their own."""

import json

import psycopg.conninfo
import pytest
from oar_bench.addresses import owner_url

CONFIG = ("--config", "oar.yaml")
JOIN = "SELECT city, code FROM deliveries JOIN promos USING (order_id)"
FORTH = "from: logistics.deliveries.order_id, to: marketing.promos.order_id"
BACK = "from: marketing.promos.order_id, to: logistics.deliveries.order_id"

POLICY = """\
version: 1
limits: {max_keys_in: 500}
tables: {deliveries: {deny_columns: [phone]}}
key_disclosure:
- {column: deliveries.order_id, to: [marketing], purpose: [billing], max_keys: 5000}
- {column: deliveries.order_id, to: [marketing], max_keys: 10, expires: 2027-12-31}
tests:
"""


def outcome(market, *tests, policy=POLICY):
    """Run tests; returns for each whether it passed, or what is wrong."""
    market.write(
        "logistics", policy + "".join(f"- {{name: t{n}, {t}}}\n" for n, t in enumerate(tests))
    )
    results = market.json("policy", "test", *CONFIG, status=None)
    assert market.status == (0 if all(result["passed"] for result in results) else 1)
    return ["; ".join(result["problems"]) or result["passed"] for result in results]


def test_tests_that_pass(market):
    assert outcome(
        market,
        f"edge: {{{FORTH}}}, as: {{day: 2027-12-31}}, expect: allow, rule: 'logistics/key_disclosure[1]'",
        f"edge: {{{FORTH}}}, as: {{day: 2028-01-01}}, expect: deny, rule: 'logistics/key_disclosure[0].purpose'",
        f"edge: {{{FORTH}}}, as: {{purpose: billing, day: 2028-01-01}}, expect: allow, rule: 'logistics/key_disclosure[0]'",
        f"edge: {{{BACK}}}, expect: deny, rule: marketing/default deny",
        f"sql: '{JOIN}', as: {{purpose: billing}}, expect: allow, route: relay, keys: [{{{FORTH}}}], rule: 'logistics/key_disclosure[0]'",
        f"sql: '{JOIN}', as: {{day: 2030-01-01}}, expect: allow, route: fan-out, keys: [], rule: 'logistics/key_disclosure[0].purpose'",
        "sql: SELECT phone FROM deliveries, expect: deny, sqlstate: '42703'",
        "sql: SELECT * FROM salaries, expect: deny, sqlstate: 42P01",
        "sql: 'SELECT city FROM deliveries', expect: allow, route: fan-out, keys: []",
        "sql: SELECT 1, expect: allow",
        "sql: SELEC 1, expect: deny, sqlstate: '42601'",
        "sql: DELETE FROM promos, expect: deny, sqlstate: '25006'",
    ) == [True] * 12  # fmt: skip


FAILING = [
    (f"edge: {{{BACK}}}, expect: allow", "denied: owner marketing does not disclose keys of"),
    (f"edge: {{{BACK}}}, expect: allow", "owner marketing can allow it with the key_disclosure entry"),
    (f"edge: {{{FORTH}}}, as: {{day: 2027-01-01}}, expect: deny", "allowed: permitted by"),
    (f"edge: {{{BACK}}}, expect: deny, rule: marketing/accept_keys", "rule marketing/default deny decides, and not"),
    ("edge: {from: marketing.promos.no_such, to: logistics.deliveries.order_id}, expect: deny", "no column marketing.promos.no_such"),
    ("edge: {from: nobody.promos.order_id, to: logistics.deliveries.order_id}, expect: deny", "no column nobody.promos.order_id"),
    (f"sql: '{JOIN}', expect: deny", "allowed: no owner holds all tables"),
    (f"sql: '{JOIN}', as: {{purpose: billing}}, expect: allow, route: fan-out", "route relay and not fan-out"),
    (f"sql: '{JOIN}', as: {{purpose: billing}}, expect: allow, keys: []", "keys travel that are not expected: logistics."),
    (f"sql: '{JOIN}', as: {{purpose: billing}}, expect: allow, keys: [{{{BACK}}}]", "no keys travel: marketing."),
    (f"sql: '{JOIN}', as: {{purpose: billing}}, expect: allow, rule: nobody/key_disclosure", "rule nobody/key_disclosure does not decide"),
    ("sql: SELECT phone FROM deliveries, expect: allow", 'denied: column "phone" does not exist'),
    ("sql: SELECT phone FROM deliveries, expect: deny, sqlstate: '42501'", "SQLSTATE 42703 and not 42501"),
    ("sql: SELECT 1, expect: allow, route: fan-out", "reads nothing that is published"),
    ("sql: SELECT 1, expect: deny", "allowed"),
    ("sql: SELECT 1; SELECT 2, expect: allow", "one statement at a time"),
    ("sql: INSERT INTO x SELECT city FROM deliveries, expect: allow", "a dry run takes a SELECT"),
    ("sql: SELECT * FROM oar_ask('how many'), expect: allow", "a dry run drafts no question"),
]  # fmt: skip


def test_a_test_that_fails_says_why(market):
    told = outcome(market, *(test for test, _ in FAILING))
    assert [
        (problem, text)
        for (_, problem), text in zip(FAILING, told, strict=True)
        if problem not in str(text)
    ] == []


def test_the_gate_reviews_what_would_be_sent(market):
    policy = "version: 1\nsubjects: [staff]\ntables: {deliveries: {require_filter: [city]}}\nlimits: {max_queries: 1}\ntests:\n"
    assert outcome(
        market,
        "sql: SELECT * FROM deliveries, as: {roles: [staff]}, expect: deny, sqlstate: '42501', rule: logistics/tables.deliveries.require_filter",
        "sql: SELECT * FROM deliveries, as: {principal: staff}, expect: deny, rule: logistics/tables.deliveries.require_filter",
        "sql: SELECT * FROM deliveries WHERE city = 'x', expect: deny, rule: logistics/subjects",
        "sql: SELECT * FROM deliveries WHERE city = 'x', as: {roles: [staff]}, expect: allow",
        "sql: SELECT * FROM deliveries a JOIN deliveries b USING (city) WHERE city = 'x', as: {roles: [staff]}, expect: deny, sqlstate: '54000'",
        policy=policy,
    ) == [True] * 5  # fmt: skip


def test_what_is_ruled_about_columns_rows_and_groups_is_decided_as_a_proxy_does(market):
    policy = (
        "version: 1\ntables: {deliveries: {min_group: {entity: order_id, size: 5}, row_filter: city <> 'x',"
        " columns: {phone: {output: false}}}}\ntests:\n"
    )
    assert outcome(
        market,
        "sql: SELECT city FROM deliveries, expect: deny, sqlstate: '42501', rule: logistics/tables.deliveries.min_group",
        "sql: 'SELECT city, count(*) FROM deliveries GROUP BY city', expect: allow, rule: logistics/tables.deliveries.min_group",
        "sql: SELECT count(*) FROM deliveries WHERE phone = '1', expect: allow, rule: logistics/tables.deliveries.row_filter",
        "sql: SELECT count(phone) FROM deliveries, expect: deny, rule: logistics/tables.deliveries.columns.phone.output",
        policy=policy,
    ) == [True] * 4  # fmt: skip


def test_text_has_place_and_counts(market):
    market.write("logistics", f"{POLICY}- {{name: back, edge: {{{BACK}}}, expect: allow}}\n")
    lines = market.run("policy", "test", *CONFIG, status=1).splitlines()
    assert lines[0].endswith("logistics.yaml:8:3: FAIL: back")
    assert lines[1].startswith("    denied: ")
    assert lines[2] == "0 passed, 1 failed"
    assert market.said == "oar: 1 of 1 tests failed\n"


def test_no_test_is_no_success(market):
    market.run("policy", "test", *CONFIG, status=1)
    assert market.said.startswith("oar: no policy file has a test\nhint: ")


def test_what_it_cannot_work_with(market):
    market.write("marketing", "version: 1\ntests: [{name: x}]\n")
    market.run("policy", "test", *CONFIG, status=2)
    assert "marketing.yaml:2:9: a test asks about either sql or an edge" in market.said
    market.write("marketing", "version: 1\n")
    (market.directory / "marketing.db").unlink()
    market.run("policy", "test", *CONFIG, status=3)
    assert market.said.startswith("oar: owner marketing: ")
    (market.directory / "catalog.json").write_text('{"version": 1, "owners": {}}')
    market.run("policy", "test", *CONFIG, "--catalog", "catalog.json", status=2)
    assert "it has no owner logistics" in market.said


STATEMENTS = (
    JOIN,
    f"{JOIN} WHERE city = 'x' AND code LIKE 'a%'",
    "SELECT count(*) FROM deliveries",
    "SELECT city, count(*) FROM deliveries JOIN promos USING (order_id) GROUP BY city",
    "SELECT * FROM promos WHERE order_id IN (SELECT order_id FROM deliveries WHERE city = 'x')",
    "SELECT city FROM deliveries LEFT JOIN (SELECT order_id, max(code) c FROM promos GROUP BY 1) p USING (order_id)",
)


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "mariadb"])
def test_a_catalog_file_plans_as_its_owners_do(market, kind, request, new_database):
    """The same edges, routes and rules, whichever technology it was written from."""
    config = json.loads((market.directory / "oar.yaml").read_text())
    if kind == "postgres":
        dsn = new_database("logistics")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE deliveries (order_id int PRIMARY KEY, city text, phone text)"
            )
        config["owners"]["logistics"]["url"] = owner_url(dsn)
    elif kind == "mariadb":
        server = request.getfixturevalue("mariadb_server")
        database, url = server.new_database("logistics")
        server.run(
            "CREATE TABLE deliveries (order_id int PRIMARY KEY, city varchar(20), phone varchar(20))",
            database=database,
        )
        config["owners"]["logistics"]["url"] = url
    (market.directory / "oar.yaml").write_text(json.dumps(config))
    market.write("logistics", POLICY + "".join(
        f"- {{name: t{n}, sql: \"{sql}\", as: {{purpose: billing}}, expect: allow, route: relay, keys: [{{{BACK}}}], rule: nobody}}\n"
        for n, sql in enumerate(STATEMENTS)
    ))  # fmt: skip
    (market.directory / "catalog.json").write_text(
        market.run("catalog", *CONFIG, "--format", "json")
    )
    live = market.json("policy", "test", *CONFIG, status=1)
    assert market.json("policy", "test", *CONFIG, "--catalog", "catalog.json", status=1) == live
    assert len({str(result["problems"]) for result in live}) > 2
