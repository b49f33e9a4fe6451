"""Files of verified answers: every field, and a place for every fault."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oar_proxy.sql.parse import parse
from oar_proxy.verified.answers import VerifiedAnswers, load_answers
from oar_proxy.verified.entry import TYPES, EntryError, Parameter, parse_entry, write_entry

FULL = """\
version: 1
question: How many {kind} since {day}?
phrasings:
  - "{kind} since {day}"
parameters:
  - {name: kind, type: text}
  - {name: day, type: date}
sql: |
  SELECT count(*) FROM shop.orders -- all of them
  WHERE kind = $1 AND day >= $2 AND kind <> '$2';
reviewer: Anna
reviewed: 2026-11-30
catalog: "0123456789012345"
"""
HEAD = "version: 1\nquestion: q\nreviewer: A\nreviewed: 2026-11-30\ncatalog: 0123456789abcdef\n"


def read(text, name="orders"):
    return parse_entry(text, name=name, source=f"{name}.yaml")


def test_every_field_is_read():
    entry = read(FULL)
    assert (entry.name, entry.source, entry.reviewer) == ("orders", "orders.yaml", "Anna")
    assert (entry.question, entry.phrasings) == (
        "How many {kind} since {day}?",
        ("{kind} since {day}",),
    )
    assert entry.parameters == (Parameter("kind", "text"), Parameter("day", "date"))
    assert (entry.reviewed, entry.catalog, entry.view) == (
        date(2026, 11, 30),
        "0123456789012345",
        None,
    )
    assert (entry.sql_mark.line, entry.sql_mark.column) == (8, 6)


def test_values_are_literals_of_their_types_and_texts_in_the_sql_stay():
    bound = read(FULL).statement({1: "it's \\ $2 -- ", 2: "2024-01-01"})
    assert bound == (
        "SELECT count(*) FROM shop.orders -- all of them\n"
        "  WHERE kind = ( E'it''s \\\\ $2 -- '::pg_catalog.text)"
        " AND day >= ('2024-01-01'::pg_catalog.date) AND kind <> '$2'"
    ).replace("\n  ", "\n")
    assert "(NULL::pg_catalog.text)" in read(FULL).statement({})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.sampled_from(list(TYPES)))
@settings(max_examples=300, deadline=None)
def test_no_value_leaves_its_literal(value, kind):
    text = HEAD + f"parameters: [{{name: x, type: {kind}}}]\nsql: SELECT $1, 'b'\n"
    statement = read(text.replace("question: q", "question: q {x}")).statement({1: value})
    (parsed,) = parse(statement)
    first, second = (target.val for target in parsed.node.targetList)
    assert first.arg.val.sval == value
    assert second.val.sval == "b"
    assert (parsed.calls, parsed.relations) == ((), ())


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("", 1, 1, "empty: a verified answer begins with 'version: 1'"),
        ("version: 2\n" + HEAD[11:], 1, 10, "only 1 is known"),
        ("question: q", 1, 1, "version is missing"),
        (HEAD, 1, 1, "needs sql"),
        (HEAD + "sql: SELECT 1\nauthor: B", 7, 1, "unknown field 'author'"),
        (HEAD + "sql: SELECT 1; SELECT 2", 6, 6, "exactly one statement"),
        (HEAD + "sql: ''", 6, 6, "exactly one statement"),
        (HEAD + "sql: SELEC 1", 6, 6, "sql: syntax error"),
        (HEAD + "sql: 5", 6, 6, "put it in quotes"),
        (HEAD + "sql: DELETE FROM shop.a", 6, 6, "a SELECT that writes nothing"),
        (HEAD + "sql: SELECT 1 INTO b", 6, 6, "a SELECT that writes nothing"),
        (HEAD + "sql: SELECT 1 INTO b UNION SELECT 2", 6, 6, "a SELECT that writes nothing"),
        (HEAD + "sql: WITH d AS (DELETE FROM s.a RETURNING 1) TABLE d", 6, 6, "writes nothing"),
        (HEAD + "sql: SELECT 1 FROM s.a FOR UPDATE", 6, 6, "cannot be locked"),
        (HEAD + "sql: SELECT * FROM oar_ask('q')", 6, 6, "oar_ask cannot be asked"),
        (HEAD + "sql: SELECT 1 FROM orders", 6, 6, "write 'orders' with its schema"),
        (HEAD + "sql: SELECT $1", 6, 6, "$1 is no parameter: 0 are declared"),
        (HEAD + "sql: SELECT 1\nphrasings: q", 7, 12, "a list is expected"),
        (HEAD + "sql: SELECT 1\nphrasings: ['{x} y']", 7, 13, "{x} is no parameter"),
        (HEAD + "sql: SELECT 1\nphrasings: ['a{x}']", 7, 13, "stands by itself"),
        (HEAD + "sql: SELECT 1\nphrasings: ['?']", 7, 13, "words of its own"),
        (HEAD + "sql: SELECT 1\nphrasings: [" + "a," * 101 + "]", 7, 213, "more than 100"),
        (HEAD + f"sql: SELECT 1\nphrasings: ['{'a ' * 201}']", 7, 13, "at most 200 words"),
        (HEAD + f"sql: SELECT 1\nphrasings: ['{'a' * 4097}']", 7, 13, "at most 4096 char"),
        (HEAD + "sql: SELECT $1\nparameters: [{name: x, type: text}]", 2, 11, "{x} is missing"),
        (HEAD + "sql: SELECT 1\nparameters: [{name: X, type: text}]", 7, 21, "lower-case"),
        (HEAD + "sql: SELECT 1\nparameters: [{name: x}]", 7, 14, "needs type"),
        (HEAD + "sql: SELECT 1\nparameters: [{name: x, type: money}]", 7, 30, "type: one of text"),
        (HEAD + "sql: SELECT 1\nview: a.b", 7, 7, "one name"),
        (HEAD + "sql: SELECT 1\nview: " + "v" * 64, 7, 7, "at most 63 bytes"),
        (FULL + "view: v", 14, 7, "a view takes no parameters"),
        (FULL.replace("{kind} since {day}\"", "{kind} since {kind}\""), 4, 5, "{kind} stands here twice"),
        (FULL.replace("= $1", "= 'x'"), 8, 6, "$1 is declared and not used"),
        (FULL.replace("name: day", "name: kind"), 7, 12, "stands here twice"),
        (FULL.replace("Anna", '"\\t"'), 11, 11, "one line of printable text"),
        (FULL.replace("2026-11-30", "yesterday"), 12, 11, "a day is expected"),
        (FULL.replace("2026-11-30", "2026-11-31"), 12, 11, "a day is expected"),
        (FULL.replace('"0123456789012345"', "1234567890123456"), 13, 10, "put it in quotes"),
        (FULL.replace("0123456789012345", "v7"), 13, 10, "16 hexadecimal digits"),
    ],
)  # fmt: skip
def test_every_fault_has_its_place(text, line, column, part):
    with pytest.raises(EntryError) as caught:
        read(text)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert part in caught.value.message


@pytest.mark.parametrize("name", ["Orders", "a b", "", ".x", "ж", "a" * 64, "-a"])
def test_a_name_is_fit_for_a_ledger(name):
    with pytest.raises(EntryError, match="the file's name is the answer's"):
        read(FULL, name)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


@given(TEXTS, st.lists(TEXTS, max_size=2), TEXTS, TEXTS)
@example("0\x85", ["\u2028'"], "0", "")
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read_again(question, phrasings, reviewer, comment):
    sql = f"SELECT {'x'.join(comment.split()).encode().hex()!r} AS a"
    text = write_entry(
        question=question,
        phrasings=phrasings,
        sql=sql,
        parameters=(),
        reviewer=reviewer,
        reviewed=date(2026, 1, 2),
        catalog="1234567890123456",
        view=None,
    )
    try:
        entry = read(text)
    except EntryError:
        return
    assert (entry.question, list(entry.phrasings)) == (question, phrasings)
    assert (entry.sql, entry.reviewer, entry.reviewed) == (sql, reviewer, date(2026, 1, 2))


PIECES = st.sampled_from(
    ["version: 1\n", "question: ", "sql: ", "SELECT ", "$1", "$99999999999", "'", '"', "{", "}",
     "{x}", "[", "]", "- ", "\n", "  ", ":", "?", "parameters:\n", "name: x\n", "type: text\n",
     "view: v\n", "reviewed: 2026-01-01\n", "&a", "*a", "!!str", "|", "\0", "\\", ";", "--", "/*",
     "FROM a", "((((", "é", "\U0001f600", "1e999"]
)  # fmt: skip


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_entry_or_an_error(text):
    outcome(text)


@given(st.integers(0, len(FULL)), st.integers(0, 12), st.lists(PIECES, max_size=4).map("".join))
@settings(max_examples=600, deadline=None)
def test_any_edit_of_an_entry_is_an_entry_or_an_error(start, cut, insertion):
    outcome(FULL[:start] + insertion + FULL[start + cut :])


def outcome(text):
    found = entry_or_error(text)
    if isinstance(found, EntryError):
        assert found.line >= 1
        assert found.column >= 1
        assert "\n" not in found.message
        return
    VerifiedAnswers([found]).match(found.question)
    (parsed,) = parse(found.statement({}))
    assert not parsed.targets
    assert not parsed.parameters


def entry_or_error(text):
    try:
        return read(text)
    except EntryError as error:
        return error


def write(directory: Path, **files: str) -> None:
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(content)


def test_a_directory_is_read_whole_or_not_at_all(tmp_path):
    write(tmp_path, b=FULL, a=HEAD + "sql: SELECT 1")
    (tmp_path / "README.md").write_text("not an answer")
    (tmp_path / ".a.yaml.1").write_text("not yet one")
    assert [entry.name for entry in load_answers(tmp_path).entries] == ["a", "b"]
    assert load_answers(None).entries == ()
    write(tmp_path, c="version: 1")
    with pytest.raises(EntryError, match=r"c\.yaml:1:1: a verified answer needs question"):
        load_answers(tmp_path)


@pytest.mark.parametrize(
    ("file", "said"),
    [("x.yml", "from .yaml files only"), ("X.yaml", "the file's name is the answer's")],
)
def test_no_file_is_passed_over_for_its_name(tmp_path, file, said):
    (tmp_path / file).write_text(HEAD + "sql: SELECT 1")
    with pytest.raises(EntryError, match=said):
        load_answers(tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("how many", "how many?", False),
        ("how many", "How many", True),
        ("how many", "how  many", False),
        ("how {x}", "how many", False),
        ("how {x}", "{x} many", False),
        ("how {x} now", "how many", True),
        ("how {x} now", "how {x} then", True),
        ("of {x} in {y}", "of {x}", True),
        ("of 'a b'", "of {x}", False),
        ("of a b", "of {x}", True),
    ],
)
def test_no_question_is_that_of_two_answers(tmp_path, first, second, together):
    def entry(question):
        names = [name for name in ("x", "y") if f"{{{name}}}" in question]
        declared = ", ".join(f"{{name: {name}, type: text}}" for name in names)
        columns = ", ".join(f"${n}" for n in range(1, len(names) + 1)) or "1"
        said = question.replace("'", "''")
        text = HEAD.replace("question: q", f"question: '{said}'")
        return text + f"sql: SELECT {columns}\n" + (f"parameters: [{declared}]\n" if names else "")

    write(tmp_path, a=entry(first), b=entry(second))
    if together:
        assert len(load_answers(tmp_path).entries) == 2
    else:
        with pytest.raises(EntryError, match=r"b\.yaml:2:11: .* that of .*a\.yaml:2:11"):
            load_answers(tmp_path)


def test_a_view_is_that_of_one_answer(tmp_path):
    write(tmp_path, a=HEAD + "sql: SELECT 1\nview: v")
    write(tmp_path, b=HEAD.replace(": q", ": r") + "sql: SELECT 1\nview: v")
    with pytest.raises(EntryError, match=r"b\.yaml:7:7: view: .*a\.yaml publishes it"):
        load_answers(tmp_path)


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ("How many new since 2024-01-01?", {1: "new", 2: "2024-01-01"}),
        ("How many  'very new'\nsince “2024 01”", {1: "very new", 2: "2024 01"}),
        ("How many \"a 'b' c?\" since ''??", {1: "a 'b' c?", 2: ""}),
        ("How many 'a  b\n' since  2024 ? ", {1: "a  b\n", 2: "2024"}),
        ("«x» since '", {1: "x", 2: "'"}),
        ("it's since 'a'b", {1: "it's", 2: "'a'b"}),
        ("How many e\u0301 since \u00a0y", {1: "é", 2: "y"}),
        ("How many new since", None),
        ("How many new Since 2024?", None),
        ("How many very new since 2024?", None),
        ("How many new since 2024 please?", None),
        ("", None),
        ("x " * 5000, None),
    ],
)
def test_values_of_a_question(question, values):
    match = VerifiedAnswers([read(FULL)]).match(question)
    assert (None if match is None else dict(match.values)) == values
