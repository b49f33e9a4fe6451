"""The offline drafter over questions nobody wrote: it answers or abstains, and stays inside."""

from __future__ import annotations

import asyncio

import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from oar_adapters.interface import Column, OwnerSchema, Table
from oar_proxy import catalog as catalogs
from oar_proxy.draft import Draft, Question
from oar_proxy.drafters.offline import LONGEST_QUESTION, OfflineDrafter
from oar_proxy.drafters.rules.words import VOCABULARY, tokenise
from sqlglot import exp

TYPES = ["integer", "text", "double precision", "date", "timestamp(3) with time zone", "boolean"]


def table(name: str, *columns: str) -> Table:
    return Table(
        name, tuple(Column(c, TYPES[n % len(TYPES)], c) for n, c in enumerate(columns)), name
    )


CATALOG = catalogs.build(
    [
        (
            "one",
            "one",
            OwnerSchema(
                (
                    table("dogs", "dog_id", "name", "weight", "birth_date", "owner_id", "of"),
                    table("Owner", "id", "first_name", "age", "since", "seen", "has_garden"),
                    table("2_data", "1", "_", "Größe", "select"),
                )
            ),
        ),
        ("two", "two", OwnerSchema((table("dogs", "dog_id", "city"), table("nothing")))),
    ]
)
WORDS = sorted(" ".join(phrase) for phrase in VOCABULARY)
NAMES = ["dogs", "dog", "owners", "name", "weight", "birth date", "age", "first name", "2", "data"]
VALUES = [
    '"Rex"',
    "'a''b'",
    "Bonn",
    "USA",
    "7",
    "1980",
    "-3.5",
    "1,000",
    "«Казань»",
    "city",
    "?",
    ",",
]
DRAFTER = OfflineDrafter()


def draft(text: str) -> Draft:
    return asyncio.run(DRAFTER.propose(Question(text, "anna"), CATALOG, ()))


def inside(sql: str) -> bool:
    """Tell whether a draft is one query over published tables and columns."""
    query = sqlglot.parse_one(sql, read="postgres")
    sources = {(source.db, source.name) for source in query.find_all(exp.Table)}
    read = [
        table
        for table in CATALOG.tables.values()
        if (table.schema, table.name) in sources or ("", table.name) in sources
    ]
    columns = {column.name for column in query.find_all(exp.Column)}
    return (
        isinstance(query, exp.Select)
        and len(read) == len(sources)
        and columns <= {column.name for table in read for column in table.columns}
    )


PIECES = st.sampled_from([*WORDS, *NAMES * 8, *VALUES * 5])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | PIECES.map(str.title) | PIECES.map(str.upper), max_size=12).map(" ".join))
def test_questions_of_its_own_words(text: str):
    answer = draft(text)
    assert (answer.sql is None) == (answer.reason is not None)
    assert answer.sql is None or inside(answer.sql)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_any_text_at_all(text: str):
    answer = draft(text)
    assert answer.sql is None or inside(answer.sql)


@given(st.text(max_size=80))
def test_tokens_lose_nothing_but_space_and_quotes(text: str):
    kept = {c for token in tokenise(text) for c in token.text}
    lost = {c for c in text if not c.isspace()} - kept
    assert lost <= set("\"'“”«»‘’,s_nt")


def test_a_very_long_question_is_not_read():
    answer = draft("dogs " * LONGEST_QUESTION)
    assert answer.sql is None
    assert "longer than" in (answer.reason or "")
