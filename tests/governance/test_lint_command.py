"""``oar policy schema`` and ``lint``, ``oar catalog --format json``."""

import json

import jsonschema
import pytest
import yaml
from oar_adapters import recorded

CONFIG = ("--config", "oar.yaml")


def test_the_schema_judges_a_file(market):
    schema = json.loads(market.run("policy", "schema"))
    judge = jsonschema.Draft202012Validator(schema)
    assert judge.is_valid(yaml.safe_load((market.directory / "logistics.yaml").read_text()))
    assert not judge.is_valid({"version": 1, "table": {}})


def test_the_schema_as_an_outline(market):
    lines = market.run("policy", "schema", "--format", "text").splitlines()
    assert "key_disclosure[].column: table.column, table.* or *." in lines


def test_a_configuration_without_fault(market):
    assert market.json("policy", "lint", *CONFIG) == {"findings": [], "not_compared": {}}


def test_findings_have_place_code_and_severity(market):
    market.write("logistics", "version: 1\ntables: {delivery: {deny: true}}\n")
    market.write("marketing", "version: 2\n")
    found = market.json("policy", "lint", *CONFIG, status=1)["findings"]
    assert [(f["file"].rpartition("/")[2], f["line"], f["column"], f["code"]) for f in found] == [
        ("marketing.yaml", 1, 10, "invalid"),
        ("logistics.yaml", 2, 10, "unknown-table"),
    ]
    text = market.run("policy", "lint", *CONFIG, status=1)
    assert (
        "logistics.yaml:2:10: error: delivery is not published by this owner (is deliveries meant?) [unknown-table]"
        in text
    )
    assert market.said == "oar: 2 findings\n"


UNREADABLE = """\
version: 1
tables:
  deliveries:
    row_filter: "length(city) > 3"
"""


def test_a_row_filter_that_cannot_be_read_is_found(market):
    market.write("logistics", UNREADABLE)
    (found,) = market.json("policy", "lint", *CONFIG, status=1)["findings"]
    assert market.said == "oar: 1 finding\n"
    assert (found["code"], found["line"]) == ("unreadable-rule", 4)
    assert found["message"].startswith("table deliveries is not published: ")
    assert "[unreadable-rule]" in market.run("check", *CONFIG, status=1)


def test_a_row_filter_that_can_be_read_is_none(market):
    market.write("logistics", UNREADABLE.replace("length(city) > 3", "city = 'Riga'"))
    assert market.json("policy", "lint", *CONFIG)["findings"] == []


def test_warnings_fail_when_asked_to(market):
    grant = "version: 1\nkey_disclosure: [{column: deliveries.order_id, to: [marketing], expires: 2020-01-01}]\n"
    market.write("logistics", grant)
    assert "[expired-grant]" in market.run("policy", "lint", *CONFIG)
    assert "[expired-grant]" in market.run("policy", "lint", *CONFIG, "--strict", status=1)


def test_files_alone_are_held_against_each_other(market):
    market.write(
        "logistics", "version: 1\nkey_disclosure: [{column: deliveries.no, to: [marketing]}]\n"
    )
    market.write("marketing", "version: 1\naccept_keys: []\n")
    files = ("logistics.yaml", "marketing.yaml")
    assert "[one-sided-grant]" in market.run("policy", "lint", *files)
    (market.directory / "catalog.json").write_text(
        market.run("catalog", *CONFIG, "--format", "json")
    )
    found = market.json("policy", "lint", *files, "--catalog", "catalog.json", status=1)["findings"]
    assert [f["code"] for f in found] == ["unknown-column"]


def test_an_owner_out_of_reach_is_told_of(market):
    (market.directory / "marketing.db").unlink()
    told = market.json("policy", "lint", *CONFIG)
    assert told["findings"] == []
    assert list(told["not_compared"]) == ["marketing"]


def test_a_catalog_file_says_all_that_owners_have(market):
    market.write("logistics", "version: 1\ntables: {deliveries: {deny_columns: [phone]}}\n")
    text = market.run("catalog", *CONFIG, "--format", "json")
    owners = recorded.read(text)
    assert [column.name for column in owners["logistics"].tables[0].columns] == [
        "order_id",
        "city",
        "phone",
    ]
    assert recorded.write(owners) == json.loads(text)
    assert "phone" not in market.run("catalog", *CONFIG)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("{", "invalid json"),
        ('{"version": 2, "owners": {}}', "version: only 1 is known"),
        ('{"version": 1, "owners": {"a": {}}}', "owners.a.schema: field required"),
    ],
)
def test_a_catalog_file_that_is_none(market, content, message):
    if content is not None:
        (market.directory / "catalog.json").write_text(content)
    market.run("policy", "lint", *CONFIG, "--catalog", "catalog.json", status=2)
    assert market.said.startswith("oar: catalog file catalog.json: ")
    assert message in market.said


def test_neither_files_nor_configuration(market):
    market.run("policy", "lint", status=2)
    market.run("policy", "lint", "a/logistics.yaml", "b/logistics.yaml", status=1)


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ({"url": "nonsense://host/x"}, "owners.odd: owner URL has no known scheme 'nonsense': "),
        ({"url": "sqlite:///x", "options": {"nope": "1"}}, "owners.odd: unknown option nope: "),
    ],
)
def test_an_owner_that_no_adapter_takes(market, owner, message):
    owners = json.loads((market.directory / "oar.yaml").read_text())["owners"]
    market.configure(owners=owners | {"odd": owner})
    market.run("policy", "lint", *CONFIG, status=2)
    assert market.said.startswith(f"oar: {message}")
    # It is what a check looks for.
    told = market.run("check", *CONFIG, status=1)
    assert message.replace("owners.odd", "owner odd") in told


def test_an_owner_that_is_not_reached_is_passed_over(market):
    owners = json.loads((market.directory / "oar.yaml").read_text())["owners"]
    market.configure(owners=owners | {"gone": {"url": f"sqlite:///{market.directory}/gone.db"}})
    assert market.json("policy", "lint", *CONFIG)["not_compared"].keys() == {"gone"}


def test_files_beside_a_configuration(market):
    market.run("policy", "lint", "logistics.yaml", *CONFIG, status=2)
    assert "files or --config, not both" in market.said
    market.run("policy", "lint", "logistics.yaml")


def test_two_files_of_one_owner(market):
    market.run("policy", "lint", "logistics.yaml", "./logistics.yaml", status=2)
    assert "two files are of owner logistics" in market.said


def test_check_names_what_postgresql_has_no_name_for(market):
    long = "адрес_пункта_выдачи_заказов_покупателя"
    market.fill("marketing", f'CREATE TABLE places (id INTEGER, "{long}" TEXT)')
    told = market.run("check", *CONFIG, status=1)
    assert f'owner marketing: table places is not published: name "{long}" is' in told
    # What else there is is printed all the same.
    listed = market.run("catalog", *CONFIG, status=1)
    assert "logistics.deliveries" in listed
    assert "places" not in listed
    assert "oar: owner marketing: table places is not published" in market.said
    hidden = f"version: 1\ntables: {{places: {{deny_columns: [{long}]}}}}\n"
    market.write("marketing", hidden)
    market.run("check", *CONFIG)
    assert "places" in market.run("catalog", *CONFIG)
