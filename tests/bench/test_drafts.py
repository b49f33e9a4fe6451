"""Which tables a recorded draft reads."""

from __future__ import annotations

import pytest
from oar_bench.drafts import base_tables, read_drafts

CTE_OF_ITS_OWN_NAME = "WITH t AS (SELECT * FROM t) SELECT * FROM t"


@pytest.mark.parametrize(
    ("sql", "dialect", "tables"),
    [
        ("SELECT 1", "postgres", set()),
        ("SELECT * FROM a, b JOIN c ON true", "postgres", {"a", "b", "c"}),
        ('SELECT * FROM "Order" o', "postgres", {"order"}),
        ("SELECT * FROM `Order` JOIN [lapTimes] USING (id)", "sqlite", {"order", "laptimes"}),
        ("SELECT * FROM public.Races", "postgres", {"races"}),
        ("WITH x AS (SELECT * FROM a) SELECT * FROM X", "postgres", {"a"}),
        ("WITH x AS (SELECT 1), y AS (SELECT * FROM x) SELECT * FROM y", "postgres", set()),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT * FROM a) TABLE x", "postgres", {"y", "a"}),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT * FROM a) SELECT * FROM x", "sqlite", {"a"}),
        # A CTE does not hide a table outside its scope, nor behind a schema name.
        ("SELECT FROM (WITH a AS (SELECT FROM b) SELECT FROM a) q, a", "postgres", {"a", "b"}),
        ("WITH a AS (SELECT * FROM b) SELECT * FROM public.a", "postgres", {"a", "b"}),
        (CTE_OF_ITS_OWN_NAME, "postgres", {"t"}),
        ("WITH RECURSIVE t AS (SELECT 1 UNION SELECT * FROM t) SELECT * FROM t", "postgres", set()),
        ("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x IN (SELECT x FROM c))",
         "postgres", {"a", "b", "c"}),
        ("SELECT (SELECT max(x) FROM b) FROM a UNION SELECT x FROM c", "postgres", {"a", "b", "c"}),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b) l, generate_series(1, 2)", "postgres",
         {"a", "b"}),
        ("SELECT x FROM a; SELECT x FROM b", "sqlite", {"a", "b"}),
        ("", "postgres", None),
        ("I cannot answer this question.", "postgres", None),
        ("SELECT FROM WHERE", "postgres", None),
        ("SELECT (1 FROM a", "sqlite", None),
    ],
)  # fmt: skip
def test_base_tables(sql, dialect, tables):
    found = base_tables(sql, dialect)
    assert found == (None if tables is None else frozenset(tables))


def test_read_drafts(tmp_path):
    path = tmp_path / "drafts.jsonl"
    path.write_text(
        '{"id": 7, "sql": "SELECT 1", "dialect": "sqlite"}\n\n{"id": "q", "sql": null}\n'
    )
    drafts = read_drafts(path)
    assert [(d.question, d.sql, d.dialect) for d in drafts.values()] == [
        ("7", "SELECT 1", "sqlite"),
        ("q", "", "postgres"),
    ]


def test_read_drafts_names_the_line_that_is_none(tmp_path):
    path = tmp_path / "drafts.jsonl"
    path.write_text('{"id": 7, "sql": ""}\n{"sql": ""}\n')
    with pytest.raises(ValueError, match=r"drafts\.jsonl line 2"):
        read_drafts(path)
