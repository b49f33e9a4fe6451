"""``oar bench reduction``: the command and how it prints what it measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from oar_bench.layout import BenchmarkError, find_benchmarks
from oar_bench.printing import JsonOption, finish, refuse
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.reduction.measure import Measured

_EXAMPLES: Final = 10


def reduction_command(
    data: Annotated[
        Path | None,
        typer.Option(help="Also the acyclic gold statements of a benchmark.", exists=True),
    ] = None,
    seed: Annotated[int, typer.Option(help="What the random joins are drawn from.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="Random joins of each shape.")] = 40,
    rows: Annotated[int, typer.Option(min=20, help="Of the largest random table.")] = 400,
    json_only: JsonOption = False,
) -> None:
    """Rows sent for each row that takes part in acyclic joins, reduced in full and forward."""
    from oar_bench.reduction import measure

    with work_directory() as directory:
        found = asyncio.run(measure.measure_shapes(directory, seed=seed, count=count, rows=rows))
    try:
        for benchmark in () if data is None else find_benchmarks(data):
            with work_directory() as directory:
                found.add(asyncio.run(measure.measure_gold(benchmark, directory)))
    except BenchmarkError as error:
        refuse(str(error))
    result = _result(found) | {"seed": seed, "rows": rows}
    lines = _lines(found)
    finish(_table(found), result, *lines, json_only=json_only, faults=bool(found.failures))


def _table(found: Measured) -> Table:
    from oar_bench.reduction.measure import GOAL, MODES

    table = Table(
        "joins",
        *("statements", "rows held", "reduction", "take part", "rows", "ratio", "keys", "queries"),
        title=f"rows sent for each that takes part; goal of full: {GOAL:.1f}",
    )
    for name, line in found.lines.items():
        named = (name, str(line.statements), f"{line.rows_held:,}")
        for mode in MODES:
            moved, ratio = line.moved[mode], line.ratio(mode)
            table.add_row(
                *named,
                mode,
                f"{moved.taking_part:,}",
                f"{moved.rows:,}",
                "-" if ratio is None else f"{ratio:.3f}",
                f"{moved.keys:,}",
                f"{moved.queries:,}",
                end_section=mode == MODES[-1],
            )
            named = ("", "", "")
    return table


def _lines(found: Measured) -> Iterator[str]:
    for excess in found.excesses[:_EXAMPLES]:
        yield (
            f"{excess.line} {excess.question}: {excess.sent:,} rows for {excess.taking_part:,}: "
            f"{excess.why}"
        )
    if len(found.excesses) > _EXAMPLES:
        yield f"and {len(found.excesses) - _EXAMPLES} more that were not exact"
    for why, number in found.left_out.most_common():
        yield f"{number} gold statements left out: {why}"
    yield from found.failures


def _result(found: Measured) -> dict[str, Any]:
    from oar_bench.reduction.measure import MODES

    lines = {}
    for name, line in found.lines.items():
        modes: dict[str, Any] = {}
        for mode in MODES:
            moved, ratio = line.moved[mode], line.ratio(mode)
            modes[mode] = {
                "ratio": None if ratio is None else round(ratio, 4),
                "taking_part": moved.taking_part,
                "rows": moved.rows,
                "groups": moved.groups,
                "key_values": moved.key_values,
                "keys": moved.keys,
                "queries": moved.queries,
                "exact": moved.exact,
            }
        lines[name] = {
            "statements": line.statements,
            "rows_held": line.rows_held,
            "rings": line.rings,
            **modes,
        }
    return {
        "joins": lines,
        "owner_kinds": found.owner_kinds,
        "left_out": dict(found.left_out),
        "failures": len(found.failures),
    }
