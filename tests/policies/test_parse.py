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


MARK = "»"

WRONG_FILES = [
    ("»", "empty"),
    ("»# nothing but a comment\n", "empty"),
    ("»- version: 1", "a mapping is expected"),
    ("»limits: {}", "version is missing"),
    ("version: »2", "only 1 is known"),
    ("version: »'1'", "version: a whole number"),
    ("version: »!!int '1'", "version: a whole number"),
    pytest.param("version: 1\nlimits: {max_rows: »" + "9" * 5000 + "}", "max_", id="9s"),
    pytest.param("version: 1\nlimits: [[[[[[[»" + "[" * 100_000, "nested too", id="deep"),
    pytest.param("»" + "#" * (MAX_BYTES + 1), "larger than 131072 bytes", id="large"),
]
"""Texts that are no policy, with a mark where the error is, and a part of what it says."""

WRONG_FIELDS = [
    ("»version: 1", "'version' stands here twice"),
    ("»tabels: {}", "unknown field 'tabels' (known: version, default, expires, subjects, limits"),
    ("limits: {»rows: 5}", "limits: unknown field 'rows'"),
    ("limits:»", "limits: a mapping is expected"),
    ("limits: {max_rows: »0}", "max_rows: a whole number of at least 1"),
    ("limits: {max_rows: »-1}", "max_rows"),
    ("limits: {max_rows: »010}", "in plain digits"),
    ("limits: {max_rows: »1:30}", "in plain digits"),
    ("limits: {max_rows: »1_000}", "in plain digits"),
    ("limits: {max_rows: »1e3}", "max_rows"),
    ("limits: {max_rows: »true}", "max_rows"),
    ("limits: {max_rows: »[1]}", "max_rows"),
    ("limits: {timeout: »0}", "timeout: seconds"),
    ("limits: {timeout: ».inf}", "timeout: seconds"),
    ("limits: {timeout: ».nan}", "timeout: seconds"),
    ("limits: {timeout: »5s}", "timeout: seconds"),
    ("limits: {max_keys_in: »-1}", "at least 0"),
    ("model: {rows: »yes}", "YAML reads"),
    ("model: {rows: »Allow}", "rows: allow or deny"),
    ("model: {rows:» }", "rows"),
    ("model: {»row: allow}", "unknown field 'row'"),
    ("model: »{}", "model needs rows"),
    ("model: »allow", "model: a mapping is expected"),
    ("model: {rows: allow}\n»model: {rows: deny}", "stands here twice"),
    ("»rows_to_model: true", "unknown field 'rows_to_model'"),
    ("tables: »[promos]", "tables: a mapping is expected"),
    ("tables:\n  promos:»", "a table: a mapping is expected"),
    ("tables:\n  promos: »{}", "either deny, or rules"),
    ("tables:\n  t: {deny: true, »deny_columns: [a]}", "either deny, or rules"),
    ("tables:\n  t: {deny: »1}", "deny: true or false"),
    ("tables:\n  t: {deny: »'true'}", "deny: true or false"),
    ("tables:\n  t: {»allow: true}", "a table: unknown field 'allow'"),
    ("tables:\n  t: {deny_columns: »a}", "deny_columns: a list"),
    ("tables:\n  t: {deny_columns: [a, »a]}", "'a' stands here twice"),
    ("tables:\n  t: {deny_columns: [»on]}", "as a boolean: put it in"),
    ("tables:\n  t: {deny_columns: [»~]}", "as nothing: put it in quotes"),
    ("tables:\n  »2024: {deny: true}", "as a number: put it in quotes"),
    ("tables:\n  »2024-01-01: {deny: true}", "text is expected"),
    ("tables:\n  »Promos: {deny: true}", "lower case, as published"),
    ("tables:\n  »ПРОМО: {deny: true}", "lower case, as published"),
    ("tables:\n  »s.promos: {deny: true}", "without schema or table"),
    ("tables:\n  »'pro mos': {deny: true}", "one dot"),
    ("tables:\n  »'*': {deny: true}", "a name is written bare"),
    ("tables:\n  »'': {deny: true}", "a name is written bare"),
    ("tables:\n  »'a.': {deny: true}", "a name is written bare"),
    ("tables:\n  »'\"a': {deny: true}", "a name is written bare"),
    ('tables:\n  »"a\\u200b": {deny: true}', "printable"),
    ('tables:\n  »"a\\uD800": {deny: true}', "printable"),
    ("tables:\n  t: {deny: true}\n  »'\"t\"': {deny: false}", "table 't' stands here twice"),
    ("tables:\n  t: {deny: true}\n  »t: {deny: false}", "stands here twice"),
    ("tables:\n  »<<: {t: {deny: true}}", "text is expected"),
    ("key_disclosure: »{}", "key_disclosure: a list is expected"),
    ("key_disclosure:\n- »a.b", "a mapping is expected"),
    ("key_disclosure:\n- »{to: [x]}", "needs column"),
    ("key_disclosure:\n- »{column: a.b}", "needs to"),
    ("key_disclosure:\n- {column: »a, to: [x]}", "write table.column"),
    ("key_disclosure:\n- {column: »s.a.b, to: [x]}", "write table.column"),
    ("key_disclosure:\n- {column: »s.a.*, to: [x]}", "write table.column"),
    ("key_disclosure:\n- {column: »'*.b', to: [x]}", "a name is written bare"),
    ("key_disclosure:\n- {column: »'a*', to: [x]}", "one dot"),
    ("key_disclosure:\n- {column: a.b, to: »x}", "to: a list is expected"),
    ("key_disclosure:\n- {column: a.b, to: »[]}", "names no owner"),
    ("key_disclosure:\n- {column: a.b, to: [x, »x]}", "stands here twice"),
    ("key_disclosure:\n- {column: a.b, to: [»no]}", "as a boolean"),
    ("key_disclosure:\n- {column: a.b, to: [»'x*']}", "owners' names"),
    ("key_disclosure:\n- {column: a.b, to: [»'']}", "owners' names"),
    ("key_disclosure:\n- {column: a.b, to: [»[x]]}", "text is expected"),
    ("key_disclosure:\n- {column: a.b, to: [x], max_keys: »0}", "at least 1"),
    ("key_disclosure:\n- {column: a.b, to: [x], »from: y}", "'from'"),
    ("key_disclosure:\n- {column: a.b, to: [x], form: »psi}", "plain or hmac"),
    ("limits: »&a {max_rows: 1}", "anchors and aliases"),
    ("limits: »*a", "anchors and aliases"),
    ("limits: »!!python/object/apply:os.getcwd []", "a mapping is expected"),
    ("limits: »!!set {a}", "a mapping is expected"),
    ("»---\nversion: 1", "not YAML: but found another document"),
    ("»\tlimits: {}", "not YAML"),
    ("limits: {max_rows: 1»", "not YAML"),
    ("limits: »\x00", "a character that is not allowed"),
    ("limits: »\ud800", "a character that is not allowed"),
    ('»limits: "\\UFFFFFFFF"', "out of range"),
    ("expires: »soon", "a day is expected"),
    ("tables: {t: {min_group: »5}}", "a mapping is expected"),
    ("tables: {t: {min_group: »{size: 5}}}", "min_group needs entity"),
    ("tables: {t: {min_group: »{entity: a}}}", "min_group needs size"),
    ("tables: {t: {min_group: {entity: a, size: »1}}}", "at least 2"),
    ("tables: {t: {min_group: {entity: »A, size: 2}}}", "lower case"),
    ("tables: {t: {min_group: {entity: a, »rows: 2}}}", "(known: entity"),
    ("tables: {t: {deny: true, »min_group: {}}}", "either deny, or"),
    ("tables: {t: {deny_columns: [a], min_group: {entity: »a, size: 2}}}", "hidden or masked"),
    (
        "tables: {t: {columns: {a: {mask: '0'}}, min_group: {entity: »a, size: 2}}}",
        "hidden or masked",
    ),
    ("tables: {t: {row_filter: »true}}", "put it in quotes"),
    ("tables: {t: {row_filter: »' '}}", "a condition is expected"),
    ("tables: {t: {row_filter: »[a]}}", "text is expected"),
    ("tables: {t: {deny: true, »row_filter: a}}", "either deny, or"),
    ("tables: {t: {columns: »[]}}", "a mapping is expected"),
    ("tables: {t: {columns: {c: »{}}}}", "a column needs a rule"),
    ("tables: {t: {columns: {c: {mask:» }}}}", "written out"),
    ("tables: {t: {columns: {c: {mask: »7}}}}", "put it in quotes"),
    ("tables: {t: {columns: {c: {»x: 7}}}}", "(known: "),
    ("tables: {t: {columns: {»C: {mask: null}}}}", "lower case"),
    ("tables: {t: {columns: {c: {mask: null}, »'\"c\"': {mask: null}}}}", "stands here twice"),
    ("tables: {t: {deny_columns: [c], columns: {»c: {mask: null}}}}", "deny_columns as well"),
    ("tables: {t: {columns: {c: {output: »true}}}}", "output: false or aggregate_only"),
    ("tables: {t: {columns: {c: {output: »'false'}}}}", "output: false or aggregate_only"),
    ("tables: {t: {columns: {c: {output: »no}}}}", "output: false or aggregate_only"),
    ("tables: {t: {columns: {c: {output: »[false]}}}}", "output: false or aggregate_only"),
    ("tables: {t: {columns: {c: »{output: aggregate_only}}}}", "go together"),
    ("tables: {t: {columns: {c: »{output: false, functions: [sum]}}}}", "go together"),
    ("tables: {t: {columns: {c: »{functions: [sum]}}}}", "go together"),
    (
        "tables: {t: {columns: {c: {output: aggregate_only, functions: [»array_agg]}}}}",
        "'array_agg' is none of",
    ),
    ("tables: {t: {columns: {c: {output: aggregate_only, functions: »[]}}}}", "names no aggregate"),
    ("tables: {t: {columns: {c: {filter: »true}}}}", "filter: false is expected"),
    ("tables: {t: {columns: {c: {filter: »'no'}}}}", "true or false is expected"),
    ("tables: {t: {columns: {c: »{mask: null, output: false}}}}", "no other rule is needed"),
    ("tables: {t: {columns: {c: »{mask: 'x', filter: false}}}}", "no other rule is needed"),
]
"""The same of what stands after the version."""


@pytest.mark.parametrize(
    ("marked", "part"),
    [*WRONG_FILES, *((f"version: 1\n{fields}", part) for fields, part in WRONG_FIELDS)],
)
def test_error_says_where_and_what(marked, part):
    before, _, after = marked.partition(MARK)
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(PolicyError) as caught:
        parse(before + after)
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
