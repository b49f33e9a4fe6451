"""The section ``tests`` of an owner file is read whole, or refused with its place."""

from datetime import date

import pytest
from oar_policies.cases import ANYONE, Edge, EdgeEnd
from oar_policies.model import Subject
from oar_policies.parse import PolicyError, parse_policy

FULL = """\
version: 1
tests:
  - name: marketing may look orders up
    edge: {from: logistics.deliveries.order_id, to: marketing.promos."Order"}
    as: {principal: ann, roles: [analysts], purpose: billing, day: 2027-01-31}
    expect: allow
    rule: logistics/key_disclosure[0]
  - name: order numbers go one way
    sql: |
      SELECT * FROM deliveries JOIN promos USING (order_id)
    expect: allow
    route: relay
    keys: [{from: logistics.deliveries.order_id, to: marketing.promos.order_id}]
  - {name: hidden, sql: SELECT * FROM salaries, expect: deny, sqlstate: 42P01}
"""


def parse(text):
    return parse_policy(text, owner="logistics", source="logistics.yaml")


def case(fields):
    return f"version: 1\ntests:\n  - {{{fields}}}\n"


def test_every_field_is_read():
    edge, sql, hidden = parse(FULL).tests
    sender = EdgeEnd("logistics", "deliveries", "order_id")
    assert (edge.mark.line, edge.mark.column, edge.name) == (3, 5, "marketing may look orders up")
    assert edge.edge == Edge(sender, EdgeEnd("marketing", "promos", "Order"))
    assert edge.subject == Subject("ann", frozenset({"ann", "analysts"}), "billing")
    assert edge.day == date(2027, 1, 31)
    assert edge.expected.rule == "logistics/key_disclosure[0]"
    assert sql.sql == "SELECT * FROM deliveries JOIN promos USING (order_id)\n"
    assert (sql.expected.allow, sql.expected.route) == (True, "relay")
    assert sql.expected.keys == {Edge(sender, EdgeEnd("marketing", "promos", "order_id"))}
    assert (sql.subject, sql.day) == (Subject(ANYONE, frozenset({ANYONE})), None)
    assert (hidden.expected.allow, hidden.expected.sqlstate) == (False, "42P01")


def test_no_decision_depends_on_them():
    assert not parse(FULL).conditional
    assert parse("version: 1\ntests: []\n").tests == ()


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ("name: x, expect: allow", (3, 5), "a test asks about either sql or an edge"),
        ("name: x, sql: SELECT 1", (3, 5), "a test needs expect"),
        ("sql: SELECT 1, expect: allow", (3, 5), "a test needs name"),
        ("name: x, sql: SELECT 1, expect: maybe", (3, 38), "expect: allow or deny is expected"),
        ("name: x, sql: '  ', expect: deny", (3, 20), "sql: a statement is expected"),
        ("name: '', sql: SELECT 1, expect: deny", (3, 12), "name: one line of printable text"),
        ("name: x, sql: S, expect: deny, route: relay", (3, 44), "route is expected of sql that is allowed"),
        ("name: x, sql: S, expect: allow, sqlstate: 42P01", (3, 48), "sqlstate is expected of sql that is denied"),
        ("name: x, sql: S, expect: deny, sqlstate: 42501", (3, 47), "put it in quotes"),
        ("name: x, sql: S, expect: deny, sqlstate: nope", (3, 47), "five digits or capitals"),
        ("name: x, sql: S, expect: allow, route: whole", (3, 45), "route: relay or fan-out is expected"),
        ("name: x, expect: allow, edge: {from: a.b, to: a.b.c}", (3, 43), "write owner.table.column"),
        ("name: x, expect: allow, edge: {from: a.b.c}", (3, 36), "edge needs to"),
        ("name: x, expect: allow, edge: {from: a.b.c, to: a.b.c}, keys: []", (3, 68), "keys is expected of sql"),
        ("name: x, sql: S, expect: allow, as: {day: 2027-02-30}", (3, 48), "day: a day is expected"),
        ("name: x, sql: S, expect: allow, as: {who: ann}", (3, 43), "unknown field 'who'"),
        ("name: x, sql: S, expect: allow, no: 1", (3, 38), "YAML reads 'no' as a boolean"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place(fields, place, message):
    with pytest.raises(PolicyError) as caught:
        parse(case(fields))
    assert (caught.value.line, caught.value.column) == place
    assert message in caught.value.message


def test_two_tests_of_one_name():
    text = case("name: x, sql: S, expect: deny") + "  - {name: x, sql: T, expect: deny}\n"
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.message) == (4, "a test named x stands here twice")
