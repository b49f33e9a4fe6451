"""Plots of the tables: a point a figure, with its interval, one panel a group of columns.

Drawn by matplotlib (extra ``bench``) without a screen and without its global state; the same table
gives the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oar_bench.layout import BenchmarkError
from oar_bench.paper.figures import Column, Table, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

KINDS: Final = (".svg", ".png")

_SPREAD: Final = 0.5
"""The part of a row's height over which its points are spread, so that none hides another."""


def save(tables: Sequence[Table], path: Path) -> list[Path]:
    """Draw every table that has something to draw, and return the files written.

    ``path`` is a directory, made where it is not there, for ``table-NAME.svg`` each; or, for one
    table, a file whose ending says whether it is SVG or PNG. Raises
    :class:`~oar_bench.layout.BenchmarkError` for several tables in one file, another ending, or
    without matplotlib.
    """
    drawn = [table for table in tables if _panels(table) and table.rows]
    if path.suffix in KINDS:
        if len(drawn) != 1:
            raise BenchmarkError(
                f"{path}: a file holds one table and there are {len(drawn)}: "
                "name a directory, or choose one with --table"
            )
        files = [path]
    elif path.suffix:
        raise BenchmarkError(f"{path}: plots are {' or '.join(KINDS)}, or go to a directory")
    else:
        path.mkdir(parents=True, exist_ok=True)
        files = [path / f"table-{table.name}{KINDS[0]}" for table in drawn]
    for table, file in zip(drawn, files, strict=True):
        _write(draw(table), file)
    return files


def draw(table: Table) -> Drawing:
    """Draw a table; counts are left out, which say how much was measured and not what.

    A panel's lines are its columns in order, the rows run from the top. Raises
    :class:`~oar_bench.layout.BenchmarkError` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise BenchmarkError(
            f"{error.name} is not installed (the project's extra bench: pip install '.[bench]')"
        ) from error
    panels = _panels(table)
    drawing = Drawing(
        figsize=(4.5 + 3 * len(panels), 1.8 + 0.3 * len(table.rows)), layout="constrained"
    )
    drawing.suptitle(table.title)
    axes = drawing.subplots(1, len(panels), sharey=True, squeeze=False)[0]

    def names(number: int) -> list[str]:
        places = panels[number][2] if number < len(panels) else ()
        return [table.columns[place].name for place in places]

    for number, ((group, unit, places), panel) in enumerate(zip(panels, axes, strict=True)):
        for rank, place in enumerate(places):
            _points(panel, table, place, _SPREAD * (rank - (len(places) - 1) / 2) / len(places))
        panel.set_title(group)
        panel.set_xlabel(_axis(unit, [table.columns[place] for place in places]))
        panel.grid(axis="x", alpha=0.3)
        if unit == "points":
            panel.axvline(0, color="black", linewidth=0.8, label="_zero")
        # Neighbours of the same columns have one legend. It stands beside: it hides no point.
        if len(places) > 1 and names(number) != names(number + 1):
            panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes[0].set_yticks(
        range(len(table.rows)),
        [": ".join(filter(None, (row.setting, row.part))) for row in table.rows],
    )
    axes[0].set_ylim(len(table.rows) - 0.5, -0.5)
    return drawing


def _panels(table: Table) -> list[tuple[str, Unit, list[int]]]:
    """Return the group, the unit and the columns of each panel."""
    panels: dict[tuple[str, Unit], list[int]] = {}
    for place, column in enumerate(table.columns):
        if column.unit != "count":
            panels.setdefault((column.group, column.unit), []).append(place)
    return [(group, unit, places) for (group, unit), places in panels.items()]


def _points(panel: Axes, table: Table, place: int, shift: float) -> None:
    found = [
        (number + shift, one)
        for number, row in enumerate(table.rows)
        if (one := row.figures[place]) is not None
    ]
    # What has no interval has one of no length.
    below = [0.0 if one.low is None else one.value - one.low for _, one in found]
    above = [0.0 if one.high is None else one.high - one.value for _, one in found]
    panel.errorbar(
        [one.value for _, one in found],
        [height for height, _ in found],
        xerr=(below, above),
        linestyle="none",
        marker="o",
        markersize=4,
        capsize=2,
        label=table.columns[place].name,
    )


def _axis(unit: Unit, columns: Sequence[Column]) -> str:
    return f"{columns[0].name}, {unit}" if len(columns) == 1 else unit


def _write(drawing: Drawing, file: Path) -> None:
    from matplotlib import rc_context

    # Neither a date nor random ids: the same figures are the same file.
    metadata: dict[str, Any] = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": file.name, "svg.fonttype": "none"}):
        drawing.savefig(file, metadata=metadata, dpi=150)
