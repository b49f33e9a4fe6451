"""``oar bench reduction``: the command and how it prints what it measured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from oar_bench.layout import BenchmarkError, find_benchmarks
from oar_bench.printing import CONSOLE, refuse
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
    json_only: Annotated[bool, typer.Option("--json", help="Print the last line only.")] = False,
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
    if not json_only:
        _print(found)
    typer.echo(json.dumps(_result(found) | {"seed": seed, "rows": rows}))
    raise typer.Exit(1 if found.failures else 0)


def _print(found: Measured) -> None:
    from oar_bench.reduction.measure import GOAL, MODES

    table = Table(
        "joins",
        *("statements", "rows held", "take part", "reduction", "rows", "ratio", "keys", "queries"),
        title=f"rows sent for each that takes part; goal of full: {GOAL:.1f}",
    )
    for name, line in found.lines.items():
        named = (name, str(line.statements), f"{line.rows_held:,}", f"{line.taking_part:,}")
        for mode in MODES:
            moved, ratio = line.moved[mode], line.ratio(mode)
            table.add_row(
                *named,
                mode,
                f"{moved.rows:,}",
                "-" if ratio is None else f"{ratio:.3f}",
                f"{moved.keys:,}",
                f"{moved.queries:,}",
                end_section=mode == MODES[-1],
            )
            named = ("", "", "", "")
    CONSOLE.print(table)
    for excess in found.excesses[:_EXAMPLES]:
        CONSOLE.print(
            f"{excess.line} {excess.question}: {excess.sent:,} rows for {excess.taking_part:,}: "
            f"{excess.why}",
            markup=False,
        )
    if len(found.excesses) > _EXAMPLES:
        CONSOLE.print(f"and {len(found.excesses) - _EXAMPLES} more that were not exact")
    for why, number in found.left_out.most_common():
        CONSOLE.print(f"{number} gold statements left out: {why}", markup=False)
    for failure in found.failures:
        CONSOLE.print(failure, markup=False)


def _result(found: Measured) -> dict[str, Any]:
    from oar_bench.reduction.measure import MODES

    lines = {}
    for name, line in found.lines.items():
        modes: dict[str, Any] = {}
        for mode in MODES:
            moved, ratio = line.moved[mode], line.ratio(mode)
            modes[mode] = {
                "ratio": None if ratio is None else round(ratio, 4),
                "rows": moved.rows,
                "key_values": moved.key_values,
                "keys": moved.keys,
                "queries": moved.queries,
                "exact": moved.exact,
            }
        lines[name] = {
            "statements": line.statements,
            "rows_held": line.rows_held,
            "taking_part": line.taking_part,
            "rings": line.rings,
            **modes,
        }
    return {
        "joins": lines,
        "owner_kinds": found.owner_kinds,
        "left_out": dict(found.left_out),
        "failures": len(found.failures),
    }
