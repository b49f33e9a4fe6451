"""Plots, read back from what was drawn: the artists' own figures, not pixels."""

from __future__ import annotations

import sys

import pytest
from oar_bench.layout import BenchmarkError
from oar_bench.paper.figures import Column, Figure, Row, Table
from oar_bench.paper.plots import draw, save

TABLE = Table(
    "9",
    "a table",
    (
        Column("Qs", "count"),
        Column("FO", "%", "Accuracy"),
        Column("RL", "%", "Accuracy"),
        Column("Diff.", "points"),
    ),
    (
        Row("m", (Figure(80), Figure(40), Figure(30), Figure(10, -5, 25)), "first"),
        Row("n", (Figure(9), None, Figure(50), Figure(-20, -30, -2.5))),
    ),
)
COUNTS = Table("counts", "nothing but counts", (Column("Qs", "count"),), (Row("m", (Figure(1),)),))


def drawn(panel):
    """Column → its points as (value, row, low, high), rounded to what floats can hold."""
    found = {}
    for container in panel.containers:
        line, _, (bars,) = container.lines
        ends = [segment[:, 0] for segment in bars.get_segments()]
        found[container.get_label()] = [
            tuple(round(float(part), 9) for part in (x, round(float(y)), *end))
            for x, y, end in zip(*line.get_data(), ends, strict=True)
        ]
    return found


def test_every_figure_but_the_counts_is_a_point_with_its_interval():
    accuracy, difference = draw(TABLE).axes
    assert drawn(accuracy) == {
        "FO": [(40, 0, 40, 40)],
        "RL": [(30, 0, 30, 30), (50, 1, 50, 50)],
    }
    assert drawn(difference) == {"Diff.": [(10, 0, -5, 25), (-20, 1, -30, -2.5)]}


def test_panels_say_what_they_show():
    drawing = draw(TABLE)
    accuracy, difference = drawing.axes
    assert drawing.get_suptitle() == "a table"
    assert (accuracy.get_title(), accuracy.get_xlabel()) == ("Accuracy", "%")
    assert difference.get_xlabel() == "Diff., points"
    assert [label.get_text() for label in accuracy.get_yticklabels()] == ["m: first", "n"]
    assert [label.get_text() for label in accuracy.get_legend().get_texts()] == ["FO", "RL"]
    assert difference.get_legend() is None
    # Rows run from the top, as in the text; a difference has a line at zero.
    assert accuracy.get_ylim() == (1.5, -0.5)
    assert [list(line.get_xdata()) for line in difference.lines if line.get_label() == "_zero"] == [
        [0, 0]
    ]


def test_points_of_one_row_do_not_hide_each_other():
    accuracy, _ = draw(TABLE).axes
    heights = [container.lines[0].get_ydata()[0] for container in accuracy.containers]
    assert len(set(heights)) == 2
    assert all(abs(height) < 0.5 for height in heights)


def test_panels_of_the_same_columns_have_one_legend():
    names = ("Single-owner", "Two-owner")
    table = Table("4", "t", tuple(Column(name, "%", group) for group in names for name in "ab"), (
        Row("m", (Figure(1), Figure(2), Figure(3), Figure(4))),
    ))  # fmt: skip
    assert [panel.get_legend() is not None for panel in draw(table).axes] == [False, True]


def test_a_directory_gets_one_file_a_table_that_has_something_to_draw(tmp_path):
    written = save([TABLE, COUNTS, Table("empty", "t", TABLE.columns, ())], tmp_path / "a" / "b")
    assert written == [tmp_path / "a" / "b" / "table-9.svg"]
    assert "<svg" in written[0].read_text()


@pytest.mark.parametrize(("name", "head"), [("t.png", b"\x89PNG"), ("t.svg", b"<?xml")])
def test_the_ending_says_what_a_file_is_and_the_same_table_is_the_same_file(tmp_path, name, head):
    save([TABLE, COUNTS], tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(head)
    save([TABLE], tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize(
    ("tables", "name", "why"),
    [
        ([TABLE, TABLE], "t.svg", "holds one table and there are 2: name a directory"),
        ([COUNTS], "t.svg", "there are 0"),
        ([TABLE], "t.gif", "plots are .svg or .png, or go to a directory"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, tables, name, why):
    with pytest.raises(BenchmarkError, match=why):
        save(tables, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    why = r"matplotlib.* is not installed \(the project's extra bench: pip install '.\[bench\]'\)"
    with pytest.raises(BenchmarkError, match=why):
        save([TABLE], tmp_path)
