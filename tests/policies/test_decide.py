from datetime import date

import pytest
from oar_policies.decide import (
    column_visible,
    decide_acceptance,
    decide_column,
    decide_edge,
    decide_rows_to_model,
    decide_subject,
    table_visible,
    unmatched,
)
from oar_policies.model import Subject, default_policy
from oar_policies.parse import parse_policy

ANNA = Subject("anna")
TODAY = date(2026, 5, 9)

POLICY = parse_policy(
    """\
version: 1
limits: {max_keys_in: 10}
tables:
  salaries: {deny: true}
  deliveries: {deny_columns: [phone]}
  '"Odd.Name"': {deny_columns: ['"A b"']}
  open: {deny: false}
key_disclosure:
  - {column: deliveries.order_id, to: [marketing], max_keys: 5}
  - {column: deliveries.*, to: [marketing, finance], max_keys: 50}
  - {column: salaries.*, to: ["*"]}
  - {column: "*", to: [audit]}
  - {column: routes.id, to: ["*"], max_keys: 7}
""",
    owner="logistics",
    source="logistics.yaml",
)


@pytest.mark.parametrize(
    ("table", "column", "permit", "rule"),
    [
        ("deliveries", "order_id", True, "logistics/default permit"),
        ("deliveries", "phone", False, "logistics/tables.deliveries.deny_columns"),
        ("deliveries", "Phone", True, "logistics/default permit"),
        ("salaries", "amount", False, "logistics/tables.salaries.deny"),
        ("Odd.Name", "A b", False, 'logistics/tables."Odd.Name".deny_columns'),
        ("Odd.Name", "a b", True, "logistics/default permit"),
        ("open", "x", True, "logistics/default permit"),
        ("never named", "x", True, "logistics/default permit"),
    ],
)
def test_columns(table, column, permit, rule):
    decision = decide_column(POLICY, table, column)
    assert (decision.permit, decision.rule) == (permit, rule)
    assert column_visible(POLICY, table, column) is permit


@pytest.mark.parametrize(
    ("table", "visible"),
    [("salaries", False), ("deliveries", True), ("open", True), ("never named", True)],
)
def test_tables(table, visible):
    assert table_visible(POLICY, table) is visible


@pytest.mark.parametrize(
    ("table", "column", "receiver", "permit", "rule", "max_keys"),
    [
        # The first match decides, whatever a later one would grant.
        ("deliveries", "order_id", "marketing", True, "key_disclosure[0]", 5),
        ("deliveries", "order_id", "finance", True, "key_disclosure[1]", 50),
        ("deliveries", "city", "marketing", True, "key_disclosure[1]", 50),
        ("deliveries", "city", "audit", True, "key_disclosure[3]", None),
        ("routes", "id", "audit", True, "key_disclosure[3]", None),
        ("routes", "id", "marketing", True, "key_disclosure[4]", 7),
        # Deny is the default, and wins over any grant.
        ("routes", "city", "marketing", False, "default deny", None),
        ("deliveries", "order_id", "Marketing", False, "default deny", None),
        ("Deliveries", "order_id", "marketing", False, "default deny", None),
        ("deliveries", "phone", "marketing", False, "tables.deliveries.deny_columns", None),
        ("salaries", "id", "audit", False, "tables.salaries.deny", None),
    ],
)
def test_edges(table, column, receiver, permit, rule, max_keys):
    decision = decide_edge(
        POLICY, table=table, column=column, receiver=receiver, subject=ANNA, today=TODAY
    )
    assert (decision.permit, decision.rule, decision.max_keys) == (
        permit,
        f"logistics/{rule}",
        max_keys,
    )


def test_without_a_file_everything_is_readable_and_no_key_leaves():
    policy = default_policy("logistics")
    assert table_visible(policy, "salaries")
    assert column_visible(policy, "deliveries", "phone")
    edge = decide_edge(
        policy,
        table="deliveries",
        column="order_id",
        receiver="marketing",
        subject=ANNA,
        today=TODAY,
    )
    assert (edge.permit, edge.rule) == (False, "logistics/default deny")
    assert policy.limits.max_keys_in is None
    shown = decide_rows_to_model(policy)
    assert (shown.permit, shown.rule) == (False, "logistics/default deny")


def test_an_owner_may_let_a_model_read_its_rows():
    policy = parse_policy("version: 1\nmodel: {rows: allow}", owner="lab", source="lab.yaml")
    shown = decide_rows_to_model(policy)
    assert (shown.permit, shown.rule) == (True, "lab/model.rows")


def test_names_that_match_nothing_published_are_listed_with_their_place():
    found = unmatched(POLICY, {"deliveries": ["order_id", "phone"], "open": [], "routes": ["no"]})
    assert [(u.name, u.mark.line) for u in found] == [
        ("salaries", 4),
        ('"Odd.Name"', 6),
        ('"Odd.Name"."A b"', 6),
        ("salaries", 11),
        ("routes.id", 13),
    ]


CONDITIONS = parse_policy(
    """\
version: 1
default: deny
subjects: [analysts, boris]
tables:
  deliveries: {deny_columns: []}
key_disclosure:
  - {column: deliveries.order_id, to: [marketing], expires: 2026-05-08}
  - {column: deliveries.order_id, to: [marketing], purpose: [refunds, audits], min_keys: 10}
  - {column: deliveries.city, to: [marketing], expires: 2026-05-09}
accept_keys:
  - {column: deliveries.order_id, from: [marketing], max_keys: 4}
  - {column: deliveries.city, from: ["*"], purpose: [audits]}
""",
    owner="logistics",
    source="logistics.yaml",
)


@pytest.mark.parametrize(
    ("column", "purpose", "permit", "rule", "condition"),
    [
        # One that has ended, or is for another purpose, leaves it to the next.
        ("order_id", "refunds", True, "[1]", None),
        ("order_id", None, False, "[0].expires", "expires"),
        ("order_id", "marketing", False, "[0].expires", "expires"),
        # The last day is one of those on which it holds.
        ("city", None, True, "[2]", None),
    ],
)
def test_a_grant_holds_under_its_conditions(column, purpose, permit, rule, condition):
    decision = decide_edge(
        CONDITIONS,
        table="deliveries",
        column=column,
        receiver="marketing",
        subject=Subject("anna", purpose=purpose),
        today=TODAY,
    )
    assert decision.permit is permit
    assert (decision.rule, decision.condition) == (f"logistics/key_disclosure{rule}", condition)
    assert decision.min_keys == (10 if rule == "[1]" else None)


@pytest.mark.parametrize(
    ("column", "sender", "purpose", "permit", "rule"),
    [
        ("order_id", "marketing", None, True, "accept_keys[0]"),
        ("order_id", "finance", None, False, "accept_keys"),
        ("city", "finance", "audits", True, "accept_keys[1]"),
        ("city", "finance", None, False, "accept_keys[1].purpose"),
    ],
)
def test_a_receiver_decides_what_it_takes(column, sender, purpose, permit, rule):
    decision = decide_acceptance(
        CONDITIONS,
        table="deliveries",
        column=column,
        sender=sender,
        subject=Subject("anna", purpose=purpose),
        today=TODAY,
    )
    assert (decision.permit, decision.rule) == (permit, f"logistics/{rule}")
    without = decide_acceptance(
        POLICY, table="deliveries", column=column, sender=sender, subject=ANNA, today=TODAY
    )
    assert without.permit


@pytest.mark.parametrize(
    ("subject", "permit"),
    [
        (Subject("anna"), False),
        (Subject("boris"), True),
        (Subject("anna", frozenset({"anna", "analysts"})), True),
        (Subject("Boris"), False),
    ],
)
def test_subjects_are_principals_and_roles(subject, permit):
    decision = decide_subject(CONDITIONS, subject, TODAY)
    assert (decision.permit, decision.rule) == (permit, "logistics/subjects")
    assert decide_subject(POLICY, subject, TODAY).permit


def test_nobody_asks_once_a_policy_has_ended():
    policy = parse_policy("version: 1\nexpires: 2026-05-09", owner="o", source="s")
    assert decide_subject(policy, ANNA, TODAY).permit
    decision = decide_subject(policy, ANNA, date(2026, 5, 10))
    assert (decision.permit, decision.rule) == (False, "o/expires")
    assert policy.conditional


def test_by_default_deny_only_what_has_a_rule_is_published():
    assert table_visible(CONDITIONS, "deliveries")
    assert not table_visible(CONDITIONS, "salaries")


def test_only_conditions_make_decisions_depend_on_who_asks():
    assert CONDITIONS.conditional
    assert not POLICY.conditional
