"""What lint finds in owner files, each with its place and code, and what it leaves alone."""

from datetime import date

import pytest
from oar_policies.lint import CODES, Surroundings, lint
from oar_policies.parse import parse_policy

PUBLISHED = {
    "a": {
        "orders": {"id": "integer", "region": "text", "weight": "real"},
        "people": {"id": "uuid"},
        "rides": {"id": "real"},
    },
    "b": {"promos": {"order_id": "bigint", "code": "character varying(9)"}},
    "c": {"events": {"seen": "date"}, "rides": {"id": "real"}},
}
SCHEMAS = {"a": "shop", "b": "promos", "c": "shop"}
FAMILIES = {"integer": "n", "bigint": "n", "text": "t", "character varying(9)": "t", "uuid": "u"}


def looks_up(owner, source, target, form):
    same = FAMILIES.get(source, source) == FAMILIES.get(target, target)
    return source != "real" and same and (form == "plain" or owner == "b")


def findings(files, *, published=PUBLISHED, owners=("a", "b", "c"), max_keys=1000):
    policies = {
        name: parse_policy(f"version: 1\n{text}", owner=name, source=f"{name}.yaml")
        for name, text in {"a": "", "b": "", "c": "", **files}.items()
    }
    around = Surroundings(date(2027, 6, 1), owners, published, looks_up, max_keys, SCHEMAS)
    return lint(policies, around)


def grant(fields, owner="a", section="key_disclosure"):
    return {owner: f"{section}:\n- {{{fields}}}"}


def group(size, owner="a", entity="id"):
    return {owner: f"tables: {{rides: {{min_group: {{entity: {entity}, size: {size}}}}}}}"}


TO_B = "column: orders.id, to: [b]"

CASES = [
    ({"a": "tables: {order: {deny: true}}"}, "unknown-table", (2, 10), "by this owner (is orders meant?)"),
    ({"a": "tables: {orders: {deny_columns: [ids]}}"}, "unknown-column", (2, 34), "by this owner (is id meant?)"),
    ({"a": "tables: {orders: {require_filter: [none]}}"}, "unknown-column", (2, 36), "orders.none is not"),
    ({"a": "expires: 2027-05-31"}, "expired-policy", (2, 10), "nobody may ask since 2027-05-31"),
    ({"a": "tables: {orders: {min_group: {entity: nr, size: 5}}}"}, "unknown-column", (2, 39), "orders.nr is not"),
    (grant("column: orders.no, to: [b]"), "unknown-column", (3, 3), "orders.no is not published"),
    (grant("column: order.*, to: [b]"), "unknown-table", (3, 3), "order is not published"),
    (grant("column: orders.id, to: [b, z]"), "unknown-owner", (3, 3), "no owner z is configured"),
    (grant(f"{TO_B}, expires: 2027-05-31"), "expired-grant", (3, 3), "it expired on 2027-05-31"),
    (grant(f"{TO_B}, min_keys: 1001"), "min-keys-above-limit", (3, 3), "proxy/limits.max_keys lets 1000"),
    ({**grant(f"{TO_B}, min_keys: 6"), "b": "limits: {max_keys_in: 5}"},
     "min-keys-above-limit", (3, 3), "b/limits.max_keys_in lets 5 pass"),
    ({**grant(f"{TO_B}, min_keys: 6"), **grant("column: '*', from: [a], max_keys: 5", "b", "accept_keys")},
     "min-keys-above-limit", (3, 3), "b/accept_keys lets 5 pass"),
    ({"a": f"key_disclosure:\n- {{column: orders.*, to: ['*']}}\n- {{{TO_B}}}"},
     "unreachable-grant", (4, 3), "entry [0] above decides"),
    ({"a": f"key_disclosure:\n- {{{TO_B}, purpose: [x, y]}}\n- {{{TO_B}, purpose: [y], expires: 2030-01-01}}"},
     "unreachable-grant", (4, 3), "entry [0] above decides"),
    ({"a": f"tables: {{orders: {{deny_columns: [id]}}}}\nkey_disclosure:\n- {{{TO_B}}}"},
     "hidden-column", (4, 3), "this file hides what it is about"),
    ({"a": f"default: deny\nkey_disclosure:\n- {{{TO_B}}}"}, "hidden-column", (4, 3), "hides"),
    (grant("column: people.id, to: [b]"), "unusable-grant", (3, 3), "owner b publishes no column that takes"),
    (grant("column: orders.weight, to: [b]"), "unusable-grant", (3, 3), "owner b publishes no column"),
    ({**grant(TO_B), "b": "tables: {promos: {deny_columns: [order_id]}}"},
     "unusable-grant", (3, 3), "owner b publishes no column"),
    (grant("column: orders.id, to: [a]"), "unusable-grant", (3, 3), "go back to it without a grant"),
    (grant("column: people.*, to: ['*']"), "unusable-grant", (3, 3), "owner b publishes no column"),
    (grant("column: events.seen, to: [a]", "c"), "unusable-grant", (3, 3), "owner a publishes no column"),
    (grant("column: promos.order_id, to: [a], form: hmac", "b"), "unusable-grant", (3, 3), "owner a publishes no"),
    ({**grant(TO_B), "b": "limits: {max_keys_in: 0}"}, "one-sided-grant", (3, 3), "owner b accepts no such keys"),
    ({**grant(TO_B), **grant("column: promos.*, from: [c]", "b", "accept_keys")},
     "one-sided-grant", (3, 3), "owner b accepts no such keys of owner a"),
    ({**grant(f"{TO_B}, purpose: [x]"), **grant("column: promos.*, from: [a], purpose: [y]", "b", "accept_keys")},
     "one-sided-grant", (3, 3), "owner b accepts no such keys of owner a"),
    (grant("column: promos.order_id, from: [a]", "b", "accept_keys"),
     "one-sided-grant", (3, 3), "owner a discloses no such keys to owner b"),
    (grant("column: promos.order_id, from: ['*']", "b", "accept_keys"),
     "one-sided-grant", (3, 3), "owner a discloses no such keys to owner b"),
    ({**grant(TO_B), **grant("column: promos.code, from: [a]", "b", "accept_keys")},
     "unusable-grant", (3, 3), "owner a discloses no keys that this column takes"),
    (group(5), "ungrouped-rows", (2, 38), "owner c has rows of rides as well and does not show groups only"),
    ({**group(5), **group(5, "c", "name")}, "ungrouped-rows", (2, 38),
     "owner c has rows of rides as well and does not show groups of the same entity"),
    ({**group(5), **group(8, "c")}, "smaller-group", (2, 38), "its min_group.size 8 is what holds"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "code", "place", "message"), CASES, ids=lambda it: str(it)[:40])
def test_a_fault_is_found_with_its_place(files, code, place, message):
    found = [f for f in findings(files) if f.code == code]
    assert message in " ".join(f.message for f in found)
    assert place in [(f.mark.line, f.mark.column) for f in found]
    assert {f.severity for f in found} == {CODES[code]}


def test_every_code_but_of_what_cannot_be_read_is_among_the_cases():
    assert {case[1] for case in CASES} == CODES.keys() - {"invalid", "unreadable-rule"}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"a": "tables: {orders: {deny_columns: [weight], require_filter: [id]}}"},
        grant(f"{TO_B}, min_keys: 5, max_keys: 5, expires: 2027-06-01"),
        grant(f"{TO_B}, form: hmac"),
        {"a": "tables: {orders: {min_group: {entity: id, size: 5}}}"},
        {**group(5), **group(5, "c")},
        {**group(5), "c": "tables: {rides: {deny: true}}"},
        {**group(5), "c": "default: deny"},
        grant("column: '*', to: ['*']"),
        {**grant(TO_B), **grant("column: promos.order_id, from: ['*']", "b", "accept_keys")},
        {
            **grant(f"{TO_B}, purpose: [x]"),
            **grant("column: promos.order_id, from: [a], purpose: [y, x]", "b", "accept_keys"),
        },
        # The special before the general, and one that lasts longer than the other.
        {"a": f"key_disclosure:\n- {{{TO_B}, max_keys: 3}}\n- {{column: '*', to: ['*']}}"},
        {"a": f"key_disclosure:\n- {{{TO_B}, expires: 2028-01-01}}\n- {{{TO_B}, max_keys: 3}}"},
        {"a": f"key_disclosure:\n- {{{TO_B}, purpose: [x]}}\n- {{{TO_B}, max_keys: 3}}"},
    ],
    ids=str,
)
def test_what_means_what_it_says_is_left_alone(files):
    assert findings(files) == []


def test_what_is_not_known_is_not_held_against_a_file():
    files = {**grant("column: orders.no, to: [z]"), "b": "tables: {nothing: {deny: true}}"}
    assert findings(files, published={}, owners=None) == []
    assert findings(grant("column: people.id, to: [b]"), published={"a": PUBLISHED["a"]}) == []


def test_findings_stand_in_the_order_of_the_files():
    found = findings({
        "a": f"key_disclosure:\n- {{{TO_B}, expires: 2020-01-01}}\ntables: {{nothing: {{deny: true}}}}",
        "b": "tables: {nope: {deny: true}}",
    })  # fmt: skip
    assert [str(f).partition(": ")[0] for f in found] == [
        "a.yaml:3:3",
        "a.yaml:4:10",
        "b.yaml:2:10",
    ]
    assert str(found[0]) == "a.yaml:3:3: warning: it expired on 2020-01-01 [expired-grant]"
