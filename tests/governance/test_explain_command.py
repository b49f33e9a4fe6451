"""``oar policy explain``: edges, rules, limits, what is refused and what would allow it."""

CONFIG = ("--config", "oar.yaml")
JOIN = "SELECT city, code FROM deliveries JOIN promos USING (order_id)"

POLICY = """\
version: 1
limits: {max_rows: 9000}
key_disclosure:
- {column: deliveries.order_id, to: [marketing], purpose: [billing], max_keys: 50, min_keys: 5}
- {column: deliveries.order_id, to: [marketing], max_keys: 7, expires: 2027-12-31}
"""


def test_an_edge_with_its_rule_and_limits_and_what_is_denied(market):
    market.write("logistics", POLICY)
    told = market.json("policy", "explain", *CONFIG, "--purpose", "billing", JOIN)
    assert told["route"] == "relay"
    assert told["owners"]["logistics"]["rows"] == {
        "at_most": 9000,
        "rule": "logistics/limits.max_rows",
    }
    assert told["keys"] == [
        {
            "from": ["logistics.deliveries.order_id"],
            "to": "marketing.promos.order_id",
            "rule": "logistics/key_disclosure[0]",
            "form": "plain",
            "at_most": 50,
            "at_most_rule": "logistics/key_disclosure[0].max_keys",
            "at_least": 5,
            "at_least_rule": "logistics/key_disclosure[0].min_keys",
        }
    ]
    (denied,) = told["denied"]
    assert (denied["from"], denied["rule"]) == (
        ["marketing.promos.order_id"],
        "marketing/default deny",
    )
    assert denied["remedy"].startswith("owner marketing can allow it with the key_disclosure entry")
    assert told["rejected_orders"][0]["Rejected"]
    text = market.run("policy", "explain", *CONFIG, "--purpose", "billing", JOIN)
    assert "  at most 50 (logistics/key_disclosure[0].max_keys)\n  at least 5 " in text
    assert f"  {denied['remedy']}\n" in text


def test_who_asks_when_and_what_for(market):
    market.write("logistics", POLICY + "subjects: [staff]\n")
    staff = ("--role", "staff", "--role", "other")
    told = market.json("policy", "explain", *CONFIG, *staff, "--day", "2027-12-31", JOIN)
    assert [key["rule"] for key in told["keys"]] == ["logistics/key_disclosure[1]"]
    told = market.json("policy", "explain", *CONFIG, *staff, "--day", "2028-01-01", JOIN)
    assert (told["route"], told["keys"]) == ("fan-out", [])
    assert "logistics/key_disclosure[0].purpose" in [edge["rule"] for edge in told["denied"]]
    refused = market.json("policy", "explain", *CONFIG, JOIN, status=1)["refused"]
    assert (refused["sqlstate"], refused["detail"][:23]) == ("42501", "rule logistics/subjects")
    text = market.run("policy", "explain", *CONFIG, "--principal", "ann", JOIN, status=1)
    assert text.startswith(
        "Refused: permission denied for the tables of owner logistics [42501]\n  rule "
    )
    assert "Route: relay" in market.run(
        "policy", "explain", *CONFIG, "--principal", "staff", "--day", "2027-01-01", JOIN
    )


def test_nothing_published(market):
    assert market.run("policy", "explain", *CONFIG, "SELECT 1") == (
        "Route: none: it reads nothing that is published\n"
    )  # fmt: skip


def test_rules_about_rows_and_groups(market):
    market.write(
        "logistics",
        "version: 1\ntables: {deliveries: {row_filter: city <> 'x', min_group: {entity: order_id, size: 5}}}\n",
    )
    grouped = "SELECT city, count(*) FROM deliveries GROUP BY city"
    told = market.json("policy", "explain", *CONFIG, grouped)
    names = ["logistics/tables.deliveries.row_filter", "logistics/tables.deliveries.min_group"]
    assert told["rules"] == names
    assert told["groups_shown"] == [f"with at least 5 different order_id (rule {names[1]})"]
    text = market.run("policy", "explain", *CONFIG, grouped)
    assert f"Rule: {names[0]}\nRule: {names[1]}\n" in text
    assert f"Groups shown: with at least 5 different order_id (rule {names[1]})\n" in text
    refused = market.json("policy", "explain", *CONFIG, JOIN, status=1)["refused"]
    assert (refused["sqlstate"], refused["detail"][: len(names[1]) + 5]) == (
        "42501",
        f"rule {names[1]}",
    )
