"""The schema for editors and the parser say the same of a file's structure."""

import json
import re

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oar_policies.parse import PolicyError, parse_policy
from oar_policies.schema import schema

SCHEMA = jsonschema.Draft202012Validator(schema())

BEYOND_STRUCTURE = (
    "min_keys is more than max_keys",
    "stands here twice",  # of names that are spelt in two ways, tests of one name
    "is in deny_columns as well",
    "such as 2027-12-31",  # a day that no calendar has
)


def read(text):
    return parse_policy(text, owner="o", source="s")


def fault(document):
    try:
        # Every JSON document is YAML.
        read(json.dumps(document))
    except PolicyError as error:
        return error.message
    return None


def agree(document):
    refused = fault(document)
    allowed = SCHEMA.is_valid(document)
    if refused is not None and any(reason in refused for reason in BEYOND_STRUCTURE):
        return
    assert allowed == (refused is None), refused


words = st.sampled_from(
    ["a", "b", "a.b", "a.b.c", "a.*", "*", "", "A", '"A"', '"A".b', '"a.b"', "a b", "a..b", "2027-12-31",
     "2027-1-1", "allow", "deny", "permit", "relay", "fan-out", "42501", "4250", "SELECT 1", " "]
)  # fmt: skip
scalars = words | st.integers(-1, 3) | st.booleans() | st.none() | st.sampled_from([0.5, 10**19])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=3,
)


def mostly(strategy):
    """A value as it should be, and now and then any other."""
    return st.one_of(strategy, strategy, strategy, strategy, anything)


def mapping(required=None, **optional):
    """Fields as they should be, some left out, some with other values, now and then another one."""
    required = required or {}
    known = st.fixed_dictionaries(
        {name: mostly(value) for name, value in required.items()},
        optional={name: mostly(value) for name, value in optional.items()},
    )
    return st.one_of(
        known,
        known,
        known.map(lambda content: dict(list(content.items())[1:])),
        known.map(lambda content: {**content, "other": 1}),
    )


numbers = st.integers(1, 3)
names = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2)
columns = st.lists(st.sampled_from(["a", '"B"', "c"]), max_size=2)
days = st.sampled_from(["2027-12-31", "2024-02-29"])
ends = st.sampled_from(["a.b.c", 'a."B".c', '"a.x".b.c'])
edges = mapping({"from": ends, "to": ends})
conditions = {"purpose": names, "expires": days, "max_keys": numbers}
patterns = st.sampled_from(["a.b", "a.*", "*", '"A"."b.c"'])
tests = mapping(
    {"name": st.sampled_from(["x", "y"]), "expect": st.sampled_from(["allow", "deny"])},
    sql=st.just("SELECT 1"),
    edge=edges,
    **{"as": mapping(None, principal=st.just("p"), roles=names, purpose=st.just("q"), day=days)},
    rule=st.just("o/key_disclosure[0]"),
    route=st.sampled_from(["relay", "fan-out"]),
    keys=st.lists(edges, max_size=1),
    sqlstate=st.just("42501"),
)
documents = mapping(
    {"version": st.just(1)},
    default=st.sampled_from(["permit", "deny"]),
    expires=conditions["expires"],
    subjects=names,
    limits=mapping(
        None,
        max_rows=numbers,
        max_bytes=numbers,
        max_queries=numbers,
        timeout=st.sampled_from([1, 2.5]),
        max_keys_in=st.integers(0, 2),
    ),
    tables=st.dictionaries(
        st.sampled_from(["a", '"B"', "c"]),
        st.one_of(
            mapping(None, deny=st.booleans()),
            mapping(
                None,
                deny_columns=columns,
                require_filter=columns,
                row_filter=st.sampled_from(["a = 1", " "]),
                min_group=mapping(
                    None, entity=st.sampled_from(["e", '"B"', "E"]), size=st.integers(1, 3)
                ),
                columns=st.dictionaries(
                    st.sampled_from(["a", '"B"', "d"]),
                    mapping(
                        None,
                        mask=st.sampled_from(["x", "", None]),
                        output=st.sampled_from([False, "aggregate_only"]),
                        functions=st.sampled_from([["sum"], ["sum", "avg"], ["array_agg"]]),
                        filter=st.just(False),
                    ),
                    max_size=1,
                ),
            ),
        ),
        max_size=2,
    ),
    key_disclosure=st.lists(
        mapping(
            {"column": patterns, "to": names}, min_keys=numbers, form=st.just("hmac"), **conditions
        ),
        max_size=2,
    ),
    accept_keys=st.lists(mapping({"column": patterns, "from": names}, **conditions), max_size=2),
    model=mapping({"rows": st.sampled_from(["allow", "deny"])}),
    tests=st.lists(tests, max_size=2),
)


def test_it_is_a_schema_of_its_draft():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@settings(max_examples=1500, deadline=None)
@given(documents)
@example({"version": 1, "tables": {"a": {}}})
@example({"version": 1, "tables": {"a": {"deny": True, "deny_columns": []}}})
@example({"version": 1, "limits": {"max_rows": 10**19}})
@example({"version": True})
@example({"version": 1, "tests": [{"name": "x", "expect": "deny", "sql": "SELECT 1", "keys": []}]})
@example(
    {"version": 1, "tests": [{"name": "x", "expect": "allow", "sql": "S", "sqlstate": "42501"}]}
)
def test_schema_and_parser_agree(document):
    agree(document)


GRANT = {"column": "a.b", "to": ["o"]}
FROM = {"column": "a.b", "from": ["o"]}
EDGE = {"from": "a.b.c", "to": "a.b.c"}
CASE = {"name": "x", "expect": "allow", "edge": EDGE}
PLACES = [
    ("", lambda it: {"version": 1, **it}),
    ("limits", lambda it: {"version": 1, "limits": it}),
    ("tables", lambda it: {"version": 1, "tables": {"t": it}}),
    ("tables columns", lambda it: {"version": 1, "tables": {"t": {"columns": {"c": it}}}}),
    ("key_disclosure", lambda it: {"version": 1, "key_disclosure": [{**GRANT, **it}]}),
    ("accept_keys", lambda it: {"version": 1, "accept_keys": [{**FROM, **it}]}),
    ("model", lambda it: {"version": 1, "model": it}),
    ("tests", lambda it: {"version": 1, "tests": [{**CASE, **it}]}),
    ("tests as", lambda it: {"version": 1, "tests": [{**CASE, "as": it}]}),
    ("tests edge", lambda it: {"version": 1, "tests": [{**CASE, "edge": {**EDGE, **it}}]}),
]


def described(node):
    """Yield the names of all fields of the schema."""
    if isinstance(node, dict):
        yield from node.get("properties", ())
        for inner in node.values():
            yield from described(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from described(inner)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0] or "top")
def test_the_schema_has_every_field_of_the_parser(place):
    (known,) = re.findall(r"\(known: (.*)\)", fault(place[1]({"no such field": 1})))
    assert set(known.split(", ")) <= set(described(schema()))
