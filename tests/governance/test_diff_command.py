"""``oar policy diff``: what a new version decides otherwise, and of what was disclosed."""

import secrets

import psycopg
from oar_proxy.settings import load

CONFIG = ("--config", "oar.yaml")
FORTH = {"from": "logistics.deliveries.order_id", "to": "marketing.promos.order_id"}
GRANT = "key_disclosure: [{column: deliveries.order_id, to: [marketing]%s}]\n"


def differences(market, old, new, *arguments):
    for name, text in (("old", old), ("new", new)):
        (market.directory / name).mkdir(exist_ok=True)
        (market.directory / name / "logistics.yaml").write_text(f"version: 1\n{text}")
    told = market.json("policy", "diff", "old", "new", *CONFIG, *arguments, status=None)
    assert market.status == (
        1 if any(told.get(n) for n in ("columns", "rules", "edges", "refused_now")) else 0
    )
    return told


def test_nothing_differs(market):
    told = differences(market, GRANT % "", "# the same\n" + GRANT % "")
    assert told == {"columns": [], "rules": [], "edges": []}
    assert market.run("policy", "diff", "old", "new", *CONFIG) == "nothing is decided otherwise\n"


def test_what_is_hidden_limits_and_rules_of_tables(market):
    told = differences(
        market,
        "limits: {max_rows: 5}\ntables: {deliveries: {require_filter: [city]}}\n",
        "subjects: [staff]\ntables: {deliveries: {deny_columns: [phone], row_filter: city = 'x',"
        " min_group: {entity: order_id, size: 5}}}\n",
    )
    assert told["columns"] == [{"column": "logistics.deliveries.phone", "now": "hidden"}]
    assert {it["rule"]: (it["old"], it["new"]) for it in told["rules"]} == {
        "logistics/limits.max_rows": (5, None),
        "logistics/subjects": (None, ["staff"]),
        "logistics/tables.deliveries.require_filter": ({"city": True}, None),
        "logistics/tables.deliveries.row_filter": (None, {"condition": "city = 'x'"}),
        "logistics/tables.deliveries.min_group": (None, {"entity": "order_id", "size": 5}),
    }
    assert "logistics.deliveries.phone: hidden now\n" in market.run(
        "policy", "diff", "old", "new", *CONFIG, status=1
    )


def test_edges_for_whom_and_from_when_on(market):
    (edge,) = differences(market, "", GRANT % ", max_keys: 9, min_keys: 2")["edges"]
    assert edge == FORTH | {
        "old": "denied",
        "new": "at most 9, at least 2",
        "purpose": "any",
        "day": "any",
    }
    (edge,) = differences(
        market, GRANT % ", max_keys: 9", GRANT % ", max_keys: 9, expires: 2999-12-31"
    )["edges"]
    assert (edge["old"], edge["new"], edge["day"]) == ("at most 9", "denied", "3000-01-01")
    (edge,) = differences(market, GRANT % ", purpose: [x, y]", GRANT % ", purpose: [x]")["edges"]
    assert (edge["purpose"], edge["new"]) == ("y", "denied")
    text = market.run("policy", "diff", "old", "new", *CONFIG, status=1)
    assert "order_id -> marketing.promos.order_id for purpose y: at most 100000 -> denied" in text


def test_what_was_disclosed_is_decided_again(market, new_database, running_proxy):
    hub = new_database("hub")
    market.configure(hub={"dsn": hub}, listen={"port": 0})
    market.write("logistics", "version: 1\n" + GRANT % "")
    market.fill("logistics", "INSERT INTO deliveries VALUES (1, 'x', NULL), (2, 'y', NULL)")
    with (
        running_proxy(load(market.directory / "oar.yaml")) as (_, dsn),
        psycopg.connect(hub, autocommit=True) as admin,
        psycopg.connect(dsn, autocommit=True) as client,
    ):
        role = f"asking_{secrets.token_hex(4)}"
        admin.execute(f"CREATE ROLE {role} ROLE {client.info.user}")
        client.execute("SELECT * FROM deliveries JOIN promos USING (order_id)").fetchall()
        admin.execute(f"DROP ROLE {role}")
    (market.directory / "ledger.jsonl").write_text(market.run("audit", "export", *CONFIG))
    ledgers = (("--replay", "hub"), ("--replay", "ledger.jsonl"))
    for ledger in ledgers:
        told = differences(market, GRANT % "", GRANT % ", max_keys: 1", *ledger)
        (refused,) = told["refused_now"]
        assert told["replayed"] == 1
        assert (refused["disclosures"], refused["keys"]) == (1, 2)
        assert refused["reason"] == "limit logistics/key_disclosure[0].max_keys"
        assert (
            differences(market, GRANT % "", GRANT % ", max_keys: 2", *ledger)["refused_now"] == []
        )
        (refused,) = differences(market, GRANT % "", "", *ledger)["refused_now"]
        assert refused["reason"] == "rule logistics/default deny"
        for subject, reasons in ((role, []), ("others", ["rule logistics/subjects"])):
            told = differences(market, "", f"subjects: [{subject}]\n{GRANT % ''}", *ledger)
            assert [it["reason"] for it in told["refused_now"]] == reasons
    (market.directory / "ledger.jsonl").write_text("{}\n")
    market.run("policy", "diff", "old", "new", *CONFIG, "--replay", "ledger.jsonl", status=2)
    assert "not the lines of a ledger" in market.said


def test_one_file_is_its_owner_s_by_name(market):
    (market.directory / "new").mkdir()
    (market.directory / "new" / "logistics.yaml").write_text("version: 1\n" + GRANT % "")
    told = market.json("policy", "diff", "logistics.yaml", "new/logistics.yaml", *CONFIG, status=1)
    assert [edge["new"] for edge in told["edges"]] == ["at most 100000"]
    market.run("policy", "diff", "logistics.yaml", "other.yaml", *CONFIG, status=2)
    assert market.said == "oar: other.yaml: there is no such file or directory\n"
    (market.directory / "other.yaml").write_text("version: 1\n")
    market.run("policy", "diff", "logistics.yaml", "other.yaml", *CONFIG, status=2)
    assert "other.yaml is no configured owner's file" in market.said


def test_a_directory_without_a_configured_owner_s_file(market):
    (market.directory / "new").mkdir()
    market.run("policy", "diff", ".", "new", *CONFIG)  # no policy, which says as much
    (market.directory / "new" / "logistic.yaml").write_text("version: 1\n" + GRANT % "")
    market.run("policy", "diff", ".", "new", *CONFIG, status=2)
    assert market.said.startswith(
        "oar: no file in new is a configured owner's, by its name\nhint: "
    )
    assert "logistics.yaml, marketing.yaml" in market.said
