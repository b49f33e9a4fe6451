"""The paper's regular-expression parser, what it gets wrong included."""

from __future__ import annotations

import pytest
from oar_bench.paper.frozen import has_join, named_tables


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("", set()),
        ("no idea", set()),
        ("SELECT 1 FROM Song", {"song"}),
        ("select 1 from a inner join b on x left join c", {"a", "b", "c"}),
        ("SELECT 1 FROM a WHERE x IN (SELECT y FROM b)", {"a", "b"}),
        ("SELECT 1 FROM (SELECT 1 FROM b) AS t JOIN c ON true", {"b", "c"}),
        ('SELECT 1 FROM "My Song" JOIN `order` JOIN [Label]', {"my song", "order", "label"}),
        ('SELECT 1 FROM main.song JOIN "public" . "label" ON true', {"song", "label"}),
        ("SELECT 1\nFROM\n  a\nJOIN\tb ON true", {"a", "b"}),
        # Those it gets wrong, on which its figures in the paper rest.
        ("WITH w AS (SELECT 1 FROM a) SELECT 1 FROM w", {"a", "w"}),
        ("SELECT EXTRACT(YEAR FROM day) FROM a", {"a", "day"}),
        ("SELECT 1 FROM a, b", {"a"}),
        ("SELECT 'FROM x' FROM a", {"a", "x"}),
    ],
)
def test_names_that_follow_from_and_join(sql, tables):
    assert named_tables(sql) == tables


@pytest.mark.parametrize(
    ("sql", "found"),
    [("SELECT 1 FROM a left join b", True), ("SELECT 1 FROM a, b", False), ("joins", False)],
)
def test_the_word_join(sql, found):
    assert has_join(sql) is found
