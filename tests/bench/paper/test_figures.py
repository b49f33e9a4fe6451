"""A table's text and its tidy records."""

from __future__ import annotations

import csv

import pytest
from oar_bench.paper.figures import Column, Figure, Row, Table, records, text, write_csv

TABLE = Table(
    "3",
    "of all that a column may hold",
    (
        Column("Qs", "count"),
        Column("FO", "%", "Accuracy of protocols"),
        Column("RL", "%", "Accuracy of protocols"),
        Column("Diff.", "points"),
        Column("USD", "USD"),
    ),
    (
        Row(
            "bird, m", (Figure(80), Figure(12.345, marks="*"), None, Figure(0.04), Figure(0.00012))
        ),
        Row("b", (Figure(9), Figure(100), Figure(2 / 3), Figure(-1.25, -2.04, 0.0), None)),
    ),
    note="* highest.",
)


def test_text_has_groups_above_their_columns_and_intervals_in_brackets():
    assert (
        text(TABLE)
        == """\
Table 3: of all that a column may hold
               Accuracy of protocols
setting   Qs      FO              RL              Diff.      USD
bird, m   80   12.3*               –               +0.0  0.00012
b          9   100.0             0.7   -1.2 [-2.0, 0.0]        –
* highest."""
    )


def test_text_names_the_parts_of_a_setting_and_no_group_where_there_is_none():
    table = Table("cost", "of one question", (Column("calls", "calls"),), part="way", rows=(
        Row("m", (Figure(4),), "fan-out"), Row("m", (Figure(10.25),), "relay"),
    ))  # fmt: skip
    assert (
        text(table)
        == """\
of one question
setting  way       calls
m        fan-out     4.0
m        relay      10.2"""
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-0.04, "+0.0"),
        (0.04, "+0.0"),
        (61.25 + 1e-13, "+61.2"),
        (61.2501, "+61.3"),
        (-2.06, "-2.1"),
    ],
)
def test_a_half_is_rounded_as_in_the_records_and_zero_has_one_sign(value, shown):
    table = Table("t", "t", (Column("d", "points"),), (Row("m", (Figure(value),)),))
    assert text(table).splitlines()[-1].split() == ["m", shown]


def test_records_are_of_four_digits_and_leave_out_what_is_missing():
    assert [(r.setting, r.group, r.column, r.value, r.low, r.high, r.marks) for r in records([TABLE])] == [
        ("bird, m", "", "Qs", 80, None, None, ""),
        ("bird, m", "Accuracy of protocols", "FO", 12.345, None, None, "*"),
        ("bird, m", "", "Diff.", 0.04, None, None, ""),
        ("bird, m", "", "USD", 0.00012, None, None, ""),
        ("b", "", "Qs", 9, None, None, ""),
        ("b", "Accuracy of protocols", "FO", 100, None, None, ""),
        ("b", "Accuracy of protocols", "RL", 0.6667, None, None, ""),
        ("b", "", "Diff.", -1.25, -2.04, 0.0, ""),
    ]  # fmt: skip


def test_csv_has_one_line_a_figure_of_every_table(tmp_path):
    file = tmp_path / "figures.csv"
    write_csv(file, [TABLE, TABLE])
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 16
    assert rows[7] == {
        "table": "3", "setting": "b", "part": "", "group": "", "column": "Diff.",
        "unit": "points", "value": "-1.25", "low": "-2.04", "high": "0.0", "marks": "",
    }  # fmt: skip
    write_csv(file, [])
    assert file.read_text().splitlines() == [
        "table,setting,part,group,column,unit,value,low,high,marks"
    ]


def test_a_row_of_another_shape_is_no_row_of_the_table():
    table = Table("t", "t", (Column("a"), Column("b")), (Row("m", (Figure(1),)),))
    with pytest.raises(ValueError, match="shorter"):
        text(table)
