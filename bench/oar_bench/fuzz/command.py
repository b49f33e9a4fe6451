"""``oar bench fuzz``: the command and how it prints what it found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish
from oar_bench.work import work_directory


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
    catalog: Annotated[
        bool,
        typer.Option(
            "--catalog", help="Call what PostgreSQL's catalog has, over columns of every type."
        ),
    ] = False,
    governed: Annotated[
        bool,
        typer.Option(
            "--governed",
            help="Under policies that hide, filter and mask: over what they publish, and twins "
            "with other secrets. --count statements.",
        ),
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Print how often each shape was drawn and reduced.")
    ] = False,
    examples: Annotated[
        int, typer.Option(min=0, help="Faults that are made small and printed.")
    ] = 5,
    json_only: JsonOption = False,
) -> None:
    """Random statements over random owners, compared with the same SQL on merged tables."""
    from oar_bench.fuzz import measure
    from oar_bench.fuzz.shrink import script
    from oar_bench.fuzz.world import KINDS

    began = time.monotonic()
    if governed:
        _governed(seed, count, json_only=json_only)
        return
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
                catalog=catalog,
            )
        )
    result = measure.figures(tally) | {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    table = Table(*measure.SHOWN, title="random statements, proxy against merged tables")
    table.add_row(*(str(result[name]) for name in measure.SHOWN))
    further: list[Table | str] = []
    missing = [kind for kind in KINDS if kind not in tally.kinds]
    if missing:
        further.append(f"not installed, so no owner was: {', '.join(missing)}")
    if shapes:
        further.append(_shapes(result["shapes"]))
    further += (f"{script(fault)}\n" for fault in tally.examples)
    finish(table, result, *further, json_only=json_only, faults=bool(tally.faults))


def _governed(seed: int, count: int, *, json_only: bool) -> None:
    from oar_bench.fuzz.twins import COUNTED, fuzz_twins

    began = time.monotonic()
    with work_directory() as directory:
        told = asyncio.run(fuzz_twins(seed=seed, count=count, directory=directory))
    result = {name: told.counts[name] for name in COUNTED} | {
        "owner_kinds": list(told.kinds),
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    table = Table(*COUNTED, title="random statements under policies, beside twins")
    table.add_row(*(str(result[name]) for name in COUNTED))
    finish(table, result, *told.faults[:20], json_only=json_only, faults=bool(told.faults))


def _shapes(found: Mapping[str, Sequence[int]]) -> Table:
    shown = Table("shape", "statements", "reduced", "differences")
    for shape, (statements, reduced, differences) in sorted(
        found.items(), key=lambda item: item[1][0]
    ):
        shown.add_row(shape, str(statements), str(reduced), str(differences))
    return shown
