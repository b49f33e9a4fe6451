"""What counts as a difference between two runs of a script; the scripts are `make psql-scripts`."""

from __future__ import annotations

import pytest
from psql_scripts import difference, scheduled

LINES = [
    "SELECT relid, n FROM t;",
    " relid | n ",
    "-------+---",
    " 16384 | 1 ",
    "psql:t.sql:12: NOTICE:  it fired",
    "LINE 1: CREATE TABLE pg_temp_3.t (tid pg_catalo...",
]


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (3, " 24601 | 1 "),
        (2, "--------+---"),
        (4, "psql:t.sql:15: NOTICE:  it fired"),
        (5, "LINE 1: CREATE TABLE pg_temp_12.t (tid pg_catal..."),
    ],
)
def test_what_varies_from_run_to_run_is_no_difference(place, line):
    assert difference(LINES, [*LINES[:place], line, *LINES[place + 1 :]]) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (3, " 16384 | 2 "),
        (4, "psql:t.sql:12: NOTICE:  it did not"),
        (4, "psql:t.sql:15: ERROR:  it fired"),
        (1, " relid | m "),
    ],
)
def test_anything_else_is_one(place, line):
    changed = difference(LINES, [*LINES[:place], line, *LINES[place + 1 :]])
    headings, lines = changed[:2], changed[2:]
    assert headings == ["--- direct", "+++ other"]
    assert [each[0] for each in lines if each[0] in "+-"] == ["-", "+"]


def test_a_line_that_is_not_there_is_one():
    assert difference(LINES, LINES[:-1])


def test_scripts_run_in_the_order_of_their_schedule(tmp_path):
    (tmp_path / "parallel_schedule").write_text("# first\ntest: test_setup\n\ntest: int2 int4\n")
    assert scheduled(tmp_path) == ["test_setup", "int2", "int4"]
