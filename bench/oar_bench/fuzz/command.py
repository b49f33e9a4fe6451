"""``oar bench fuzz``: the command and how it prints what it found."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from oar_bench.printing import CONSOLE
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.fuzz.run import Tally


def fuzz_command(
    *,
    seed: Annotated[int, typer.Option(help="What everything is drawn from.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="Statements.")] = 1000,
    schemas: Annotated[
        int | None, typer.Option(min=1, help="Schemas; by default one for 100 statements.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="As many statements as fit into these minutes, not --count."),
    ] = None,
    shrink_check: Annotated[
        bool,
        typer.Option("--shrink-check", help="Ask each statement again with other reductions."),
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Print how often each shape was drawn and reduced.")
    ] = False,
    examples: Annotated[
        int, typer.Option(min=0, help="Faults that are made small and printed.")
    ] = 5,
    json_only: Annotated[bool, typer.Option("--json", help="Print the last line only.")] = False,
) -> None:
    """Random statements over random owners, compared with the same SQL on merged tables."""
    from oar_bench.fuzz import measure
    from oar_bench.fuzz.shrink import script

    began = time.monotonic()
    with work_directory() as directory:
        tally = asyncio.run(
            measure.fuzz(
                seed=seed,
                count=count,
                schemas=schemas,
                minutes=minutes,
                directory=directory,
                shrink_check=shrink_check,
                examples=examples,
            )
        )
    result = measure.figures(tally) | {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    if not json_only:
        _print(tally, result, shapes=shapes)
        for fault in tally.examples:
            typer.echo(f"{script(fault)}\n")
    typer.echo(json.dumps(result))
    raise typer.Exit(1 if tally.faults else 0)


def _print(tally: Tally, result: dict[str, Any], *, shapes: bool) -> None:
    from oar_bench.fuzz.measure import SHOWN
    from oar_bench.fuzz.world import KINDS

    table = Table(*SHOWN, title="random statements, proxy against merged tables")
    table.add_row(*(str(result[name]) for name in SHOWN))
    CONSOLE.print(table)
    missing = [kind for kind in KINDS if kind not in tally.kinds]
    if missing:
        CONSOLE.print(f"not installed, so no owner was: {', '.join(missing)}")
    if not shapes:
        return
    shown = Table("shape", "statements", "reduced", "differences")
    for shape, (statements, reduced, differences) in sorted(
        result["shapes"].items(), key=lambda item: item[1][0]
    ):
        shown.add_row(shape, str(statements), str(reduced), str(differences))
    CONSOLE.print(shown)
