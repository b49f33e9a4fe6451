from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from oar_policies.model import ColumnPattern, Mask, OwnerLimits, Policy
from oar_policies.names import split_name, write_name
from oar_policies.parse import PolicyError, load_policies, load_policy, parse_policy
from oar_policies.reading import MAX_BYTES

FULL = """\
version: 1
model: {rows: allow}
limits: {max_rows: 5000, timeout: 2.5, max_keys_in: 0}
tables:
  promos: {deny: true}
  orders:
    deny_columns: [phone, '"E.Mail"']
  отзывы: {deny: false}
key_disclosure:
  - {column: orders.order_id, to: [logistics, finance], max_keys: 1000}
  - {column: deliveries.*, to: ["*"]}
  - {column: "*", to: [audit], max_keys: 1}
"""


def parse(text: str) -> Policy:
    return parse_policy(text, owner="marketing", source="marketing.yaml")


def test_every_field_is_read():
    policy = parse(FULL)
    assert (policy.owner, policy.source) == ("marketing", "marketing.yaml")
    assert policy.limits == OwnerLimits(max_rows=5000, timeout=2.5, max_keys_in=0)
    assert {name: rule.deny for name, rule in policy.tables.items()} == {
        "promos": True,
        "orders": False,
        "отзывы": False,
    }
    assert set(policy.tables["orders"].deny_columns) == {"phone", "E.Mail"}
    assert [(g.column, g.owners, g.max_keys) for g in policy.key_disclosure] == [
        (ColumnPattern("orders", "order_id"), frozenset({"logistics", "finance"}), 1000),
        (ColumnPattern("deliveries", None), None, None),
        (ColumnPattern(None, None), frozenset({"audit"}), 1),
    ]
    assert (policy.key_disclosure[1].mark.line, policy.key_disclosure[1].mark.column) == (11, 5)
    assert policy.rows_to_model is True


@pytest.mark.parametrize("text", ["version: 1", "version: 1\nmodel: {rows: deny}"])
def test_no_model_sees_a_row_unless_the_owner_says_so(text):
    assert parse(text).rows_to_model is False


def test_rules_about_columns_are_read():
    text = """
version: 1
tables:
  t:
    row_filter: "a > 1"
    min_group: {entity: '"E.F"', size: 5}
    columns:
      a: {mask: null}
      b: {mask: ''}
      c: {output: false}
      d: {output: aggregate_only, functions: [sum, avg], filter: false}
      '"E.F"': {filter: false}
"""
    rule = parse(text).tables["t"]
    assert rule.row_filter is not None
    assert rule.row_filter.condition == "a > 1"
    assert rule.masks == {"a": Mask(None), "b": Mask("")}
    assert {n: (r.output, r.functions, r.filter) for n, r in rule.columns.items()} == {
        "a": ("allowed", frozenset(), True),
        "b": ("allowed", frozenset(), True),
        "c": ("denied", frozenset(), True),
        "d": ("aggregate_only", frozenset({"sum", "avg"}), False),
        "E.F": ("allowed", frozenset(), False),
    }
    assert rule.columns["c"].mark.line == 10
    assert rule.min_group is not None
    assert (rule.min_group.entity, rule.min_group.size) == ("E.F", 5)
    assert (rule.min_group.mark.line, rule.min_group.mark.column) == (6, 25)


def test_digest_follows_the_text():
    assert parse("version: 1").digest == parse("version: 1").digest
    assert parse("version: 1").digest != parse("version: 1 ").digest


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("", 1, 1, "empty"),
        ("# nothing but a comment\n", 1, 1, "empty"),
        ("- version: 1", 1, 1, "a mapping is expected"),
        ("limits: {}", 1, 1, "version is missing"),
        ("version: 2", 1, 10, "only 1 is known"),
        ("version: '1'", 1, 10, "version: a whole number"),
        ("version: 1\nversion: 1", 2, 1, "'version' stands here twice"),
        (
            "version: 1\ntabels: {}",
            2,
            1,
            "unknown field 'tabels' (known: version, default, expires, subjects, limits",
        ),
        ("version: 1\nlimits: {rows: 5}", 2, 10, "limits: unknown field 'rows'"),
        ("version: 1\nlimits:", 2, 8, "limits: a mapping is expected"),
        ("version: 1\nlimits: {max_rows: 0}", 2, 20, "max_rows: a whole number of at least 1"),
        ("version: 1\nlimits: {max_rows: -1}", 2, 20, "max_rows"),
        ("version: 1\nlimits: {max_rows: 010}", 2, 20, "in plain digits"),
        ("version: 1\nlimits: {max_rows: 1:30}", 2, 20, "in plain digits"),
        ("version: 1\nlimits: {max_rows: 1_000}", 2, 20, "in plain digits"),
        ("version: 1\nlimits: {max_rows: 1e3}", 2, 20, "max_rows"),
        ("version: 1\nlimits: {max_rows: true}", 2, 20, "max_rows"),
        ("version: 1\nlimits: {max_rows: [1]}", 2, 20, "max_rows"),
        pytest.param("version: 1\nlimits: {max_rows: " + "9" * 5000 + "}", 2, 20, "max_", id="9s"),
        ("version: 1\nlimits: {timeout: 0}", 2, 19, "timeout: seconds"),
        ("version: 1\nlimits: {timeout: .inf}", 2, 19, "timeout: seconds"),
        ("version: 1\nlimits: {timeout: .nan}", 2, 19, "timeout: seconds"),
        ("version: 1\nlimits: {timeout: 5s}", 2, 19, "timeout: seconds"),
        ("version: 1\nlimits: {max_keys_in: -1}", 2, 23, "at least 0"),
        ("version: 1\nmodel: {rows: yes}", 2, 15, "YAML reads"),
        ("version: 1\nmodel: {rows: Allow}", 2, 15, "rows: allow or deny"),
        ("version: 1\nmodel: {rows: }", 2, 14, "rows"),
        ("version: 1\nmodel: {row: allow}", 2, 9, "unknown field 'row'"),
        ("version: 1\nmodel: {}", 2, 8, "model needs rows"),
        ("version: 1\nmodel: allow", 2, 8, "model: a mapping is expected"),
        ("version: 1\nmodel: {rows: allow}\nmodel: {rows: deny}", 3, 1, "stands here twice"),
        ("version: 1\nrows_to_model: true", 2, 1, "unknown field 'rows_to_model'"),
        ("version: 1\ntables: [promos]", 2, 9, "tables: a mapping is expected"),
        ("version: 1\ntables:\n  promos:", 3, 10, "a table: a mapping is expected"),
        ("version: 1\ntables:\n  promos: {}", 3, 11, "either deny, or rules"),
        (
            "version: 1\ntables:\n  t: {deny: true, deny_columns: [a]}",
            3,
            19,
            "either deny, or rules",
        ),
        ("version: 1\ntables:\n  t: {deny: 1}", 3, 13, "deny: true or false"),
        ("version: 1\ntables:\n  t: {deny: 'true'}", 3, 13, "deny: true or false"),
        ("version: 1\ntables:\n  t: {allow: true}", 3, 7, "a table: unknown field 'allow'"),
        ("version: 1\ntables:\n  t: {deny_columns: a}", 3, 21, "deny_columns: a list"),
        ("version: 1\ntables:\n  t: {deny_columns: [a, a]}", 3, 25, "'a' stands here twice"),
        ("version: 1\ntables:\n  t: {deny_columns: [on]}", 3, 22, "as a boolean: put it in"),
        ("version: 1\ntables:\n  t: {deny_columns: [~]}", 3, 22, "as nothing: put it in quotes"),
        ("version: 1\ntables:\n  2024: {deny: true}", 3, 3, "as a number: put it in quotes"),
        ("version: 1\ntables:\n  2024-01-01: {deny: true}", 3, 3, "text is expected"),
        ("version: 1\ntables:\n  Promos: {deny: true}", 3, 3, "lower case, as published"),
        ("version: 1\ntables:\n  ПРОМО: {deny: true}", 3, 3, "lower case, as published"),
        ("version: 1\ntables:\n  s.promos: {deny: true}", 3, 3, "without schema or table"),
        ("version: 1\ntables:\n  'pro mos': {deny: true}", 3, 3, "one dot"),
        ("version: 1\ntables:\n  '*': {deny: true}", 3, 3, "a name is written bare"),
        ("version: 1\ntables:\n  '': {deny: true}", 3, 3, "a name is written bare"),
        ("version: 1\ntables:\n  'a.': {deny: true}", 3, 3, "a name is written bare"),
        ("version: 1\ntables:\n  '\"a': {deny: true}", 3, 3, "a name is written bare"),
        ('version: 1\ntables:\n  "a\\u200b": {deny: true}', 3, 3, "printable"),
        ('version: 1\ntables:\n  "a\\uD800": {deny: true}', 3, 3, "printable"),
        (
            "version: 1\ntables:\n  t: {deny: true}\n  '\"t\"': {deny: false}",
            4,
            3,
            "table 't' stands here twice",
        ),
        ("version: 1\ntables:\n  t: {deny: true}\n  t: {deny: false}", 4, 3, "stands here twice"),
        ("version: 1\ntables:\n  <<: {t: {deny: true}}", 3, 3, "text is expected"),
        ("version: 1\nkey_disclosure: {}", 2, 17, "key_disclosure: a list is expected"),
        ("version: 1\nkey_disclosure:\n- a.b", 3, 3, "a mapping is expected"),
        ("version: 1\nkey_disclosure:\n- {to: [x]}", 3, 3, "needs column"),
        ("version: 1\nkey_disclosure:\n- {column: a.b}", 3, 3, "needs to"),
        ("version: 1\nkey_disclosure:\n- {column: a, to: [x]}", 3, 12, "write table.column"),
        ("version: 1\nkey_disclosure:\n- {column: s.a.b, to: [x]}", 3, 12, "write table.column"),
        ("version: 1\nkey_disclosure:\n- {column: s.a.*, to: [x]}", 3, 12, "write table.column"),
        (
            "version: 1\nkey_disclosure:\n- {column: '*.b', to: [x]}",
            3,
            12,
            "a name is written bare",
        ),
        ("version: 1\nkey_disclosure:\n- {column: 'a*', to: [x]}", 3, 12, "one dot"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: x}", 3, 21, "to: a list is expected"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: []}", 3, 21, "names no owner"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: [x, x]}", 3, 25, "stands here twice"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: [no]}", 3, 22, "as a boolean"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: ['x*']}", 3, 22, "owners' names"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: ['']}", 3, 22, "owners' names"),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: [[x]]}", 3, 22, "text is expected"),
        (
            "version: 1\nkey_disclosure:\n- {column: a.b, to: [x], max_keys: 0}",
            3,
            36,
            "at least 1",
        ),
        ("version: 1\nkey_disclosure:\n- {column: a.b, to: [x], from: y}", 3, 26, "'from'"),
        (
            "version: 1\nkey_disclosure:\n- {column: a.b, to: [x], form: psi}",
            3,
            32,
            "plain or hmac",
        ),
        ("version: 1\nlimits: &a {max_rows: 1}", 2, 9, "anchors and aliases"),
        ("version: 1\nlimits: *a", 2, 9, "anchors and aliases"),
        pytest.param("version: 1\nlimits: " + "[" * 100_000, 2, 16, "nested too", id="deep"),
        ("version: 1\nlimits: !!python/object/apply:os.getcwd []", 2, 9, "a mapping is expected"),
        ("version: 1\nlimits: !!set {a}", 2, 9, "a mapping is expected"),
        ("version: !!int '1'", 1, 10, "version: a whole number"),
        ("version: 1\n---\nversion: 1", 2, 1, "not YAML: but found another document"),
        ("version: 1\n\tlimits: {}", 2, 1, "not YAML"),
        ("version: 1\nlimits: {max_rows: 1", 2, 21, "not YAML"),
        ("version: 1\nlimits: \x00", 2, 9, "a character that is not allowed"),
        ("version: 1\nlimits: \ud800", 2, 9, "a character that is not allowed"),
        ('version: 1\nlimits: "\\UFFFFFFFF"', 2, 1, "out of range"),
        pytest.param("#" * (MAX_BYTES + 1), 1, 1, "larger than 131072 bytes", id="large"),
        ("version: 1\nexpires: soon", 2, 10, "a day is expected"),
        ("version: 1\ntables: {t: {min_group: 5}}", 2, 25, "a mapping is expected"),
        ("version: 1\ntables: {t: {min_group: {size: 5}}}", 2, 25, "min_group needs entity"),
        ("version: 1\ntables: {t: {min_group: {entity: a}}}", 2, 25, "min_group needs size"),
        ("version: 1\ntables: {t: {min_group: {entity: a, size: 1}}}", 2, 43, "at least 2"),
        ("version: 1\ntables: {t: {min_group: {entity: A, size: 2}}}", 2, 34, "lower case"),
        ("version: 1\ntables: {t: {min_group: {entity: a, rows: 2}}}", 2, 37, "(known: entity"),
        ("version: 1\ntables: {t: {deny: true, min_group: {}}}", 2, 26, "either deny, or"),
        (
            "version: 1\ntables: {t: {deny_columns: [a], min_group: {entity: a, size: 2}}}",
            2,
            53,
            "hidden or masked",
        ),
        (
            "version: 1\ntables: {t: {columns: {a: {mask: '0'}}, min_group: {entity: a, size: 2}}}",
            2,
            61,
            "hidden or masked",
        ),
        ("version: 1\ntables: {t: {row_filter: true}}", 2, 26, "put it in quotes"),
        ("version: 1\ntables: {t: {row_filter: ' '}}", 2, 26, "a condition is expected"),
        ("version: 1\ntables: {t: {row_filter: [a]}}", 2, 26, "text is expected"),
        ("version: 1\ntables: {t: {deny: true, row_filter: a}}", 2, 26, "either deny, or"),
        ("version: 1\ntables: {t: {columns: []}}", 2, 23, "a mapping is expected"),
        ("version: 1\ntables: {t: {columns: {c: {}}}}", 2, 27, "a column needs a rule"),
        ("version: 1\ntables: {t: {columns: {c: {mask: }}}}", 2, 33, "written out"),
        ("version: 1\ntables: {t: {columns: {c: {mask: 7}}}}", 2, 34, "put it in quotes"),
        ("version: 1\ntables: {t: {columns: {c: {x: 7}}}}", 2, 28, "(known: "),
        ("version: 1\ntables: {t: {columns: {C: {mask: null}}}}", 2, 24, "lower case"),
        (
            "version: 1\ntables: {t: {columns: {c: {mask: null}, '\"c\"': {mask: null}}}}",
            2,
            41,
            "stands here twice",
        ),
        (
            "version: 1\ntables: {t: {deny_columns: [c], columns: {c: {mask: null}}}}",
            2,
            43,
            "deny_columns as well",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {output: true}}}}",
            2,
            36,
            "output: false or aggregate_only",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {output: 'false'}}}}",
            2,
            36,
            "output: false or aggregate_only",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {output: no}}}}",
            2,
            36,
            "output: false or aggregate_only",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {output: [false]}}}}",
            2,
            36,
            "output: false or aggregate_only",
        ),
        ("version: 1\ntables: {t: {columns: {c: {output: aggregate_only}}}}", 2, 27, "go together"),
        (
            "version: 1\ntables: {t: {columns: {c: {output: false, functions: [sum]}}}}",
            2,
            27,
            "go together",
        ),
        ("version: 1\ntables: {t: {columns: {c: {functions: [sum]}}}}", 2, 27, "go together"),
        (
            "version: 1\ntables: {t: {columns: {c: {output: aggregate_only, functions: [array_agg]}}}}",
            2,
            64,
            "'array_agg' is none of avg, count",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {output: aggregate_only, functions: []}}}}",
            2,
            63,
            "names no aggregate",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {filter: true}}}}",
            2,
            36,
            "filter: false is expected",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {filter: 'no'}}}}",
            2,
            36,
            "true or false is expected",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {mask: null, output: false}}}}",
            2,
            27,
            "no other rule is needed",
        ),
        (
            "version: 1\ntables: {t: {columns: {c: {mask: 'x', filter: false}}}}",
            2,
            27,
            "no other rule is needed",
        ),
    ],
)
def test_error_says_where_and_what(text, line, column, part):
    with pytest.raises(PolicyError) as caught:
        parse(text)
    error = caught.value
    assert part in error.message
    assert (error.line, error.column) == (line, column)
    assert str(error) == f"marketing.yaml:{line}:{column}: {error.message}"
    assert "\n" not in str(error)
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    ("content", "line", "column", "part"),
    [
        (b"version: 1\n\xff", 2, 1, "not UTF-8"),
        ("version: 1 # é".encode() + b"\xc3", 1, 15, "not UTF-8"),
        pytest.param(b"#" * (MAX_BYTES + 1), 1, 1, "larger than", id="large"),
        ("version: 1".encode("utf-16"), 1, 1, "not UTF-8"),
    ],
)
def test_file_errors_say_where(tmp_path: Path, content, line, column, part):
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        load_policy(path, "marketing")
    assert part in caught.value.message
    assert (caught.value.source, caught.value.line, caught.value.column) == (
        str(path),
        line,
        column,
    )


def test_missing_file_is_a_policy_error(tmp_path: Path):
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load_policy(tmp_path / "absent.yaml", "marketing")


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    assert load_policy(path, "marketing").limits.max_rows == 5000


def test_owner_without_a_file_gets_the_default_and_one_broken_file_fails_all(tmp_path: Path):
    good, broken = tmp_path / "good.yaml", tmp_path / "broken.yaml"
    good.write_text(FULL, encoding="utf-8")
    broken.write_text("version: 1\nlimits: {", encoding="utf-8")
    policies = load_policies({"marketing": good, "logistics": None})
    assert policies["marketing"].limits.max_rows == 5000
    assert (policies["logistics"].digest, policies["logistics"].key_disclosure) == ("none", ())
    with pytest.raises(PolicyError, match=r"broken\.yaml:2:"):
        load_policies({"marketing": good, "logistics": broken})


@given(st.lists(st.text(min_size=1).filter(str.isprintable), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_names_survive_being_written_and_read(parts):
    assert split_name(write_name(*parts)) == tuple(parts)


# --- fuzzing: a policy or a PolicyError, and nothing else ---


def outcome(text: str) -> None:
    try:
        policy = parse(text)
    except PolicyError as caught:
        error = caught
    else:
        assert isinstance(policy, Policy)
        # What was accepted is what an independent reader of the same text sees.
        plain = yaml.safe_load(text)
        assert plain["version"] == 1
        assert len(policy.tables) == len(plain.get("tables", {}))
        assert len(policy.key_disclosure) == len(plain.get("key_disclosure", []))
        return
    assert min(error.line, error.column) >= 1
    assert "\n" not in str(error)


PIECES = st.sampled_from(
    [
        *("version: 1\n", "limits:", "tables:", "key_disclosure:", "column:", "to:", "max_keys:"),
        *(
            "deny:",
            "deny_columns:",
            "max_rows:",
            "timeout:",
            " ",
            "  ",
            "\n",
            "\n  ",
            "- ",
            "[",
            "]",
        ),
        *(
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "1",
            "true",
            "a.b",
            "t",
            "*",
            "'*'",
            "&a",
            "*a",
            "<<",
            "!!",
            "!!str",
        ),
        *("|", ">", "%YAML 1.1\n", "%YAML 999999999999.1\n", "---\n", "...\n", "#", '"', "'", "?"),
        *('"\\U0011FFFF"', '"\\x00"', "\t", "\r", "\u2028", "\ufeff", "1:30", "0x1F", "2024-01-01"),
        *("!<tag:yaml.org,2002:map>", "!%F0%9F", "!!binary", "~", "=", ".nan"),
    ]
)


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_policy_or_a_policy_error(text):
    outcome(text)


@given(st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=500, deadline=None)
def test_any_yaml_like_text_is_a_policy_or_a_policy_error(text):
    outcome(text)


@given(st.integers(0, len(FULL)), st.integers(0, 12), PIECES | st.text(max_size=3))
@settings(max_examples=500, deadline=None)
def test_any_edit_of_a_policy_is_a_policy_or_a_policy_error(start, cut, insertion):
    outcome(FULL[:start] + insertion + FULL[start + cut :])
