"""What the benchmark commands share: their options, and how they print and end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from oar_bench.layout import Benchmark, BenchmarkError, find_benchmarks

CONSOLE: Final = Console(width=120)

DataOption = Annotated[
    Path,
    typer.Option("--data", help="A benchmark's directory, or one that holds several.", exists=True),
]
DraftsOption = Annotated[
    Path | None,
    typer.Option(
        help="One drafts file; all of the benchmark's otherwise.", exists=True, dir_okay=False
    ),
]
OrgOption = Annotated[
    list[str] | None, typer.Option("--org", help="Only this organisation; may be given again.")
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, help="Only this many questions or statements of each organisation."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the last line only.")]


def benchmarks(data: Path) -> tuple[Benchmark, ...]:
    """Read the benchmarks of ``--data``; ends with status 2 where there is none."""
    try:
        return find_benchmarks(data)
    except BenchmarkError as error:
        refuse(str(error))


def refuse(why: str) -> NoReturn:
    """Say why a command cannot run, and end with status 2."""
    typer.echo(f"oar bench: {why}", err=True)
    raise typer.Exit(2)


def finish(
    table: Table | str,
    result: Mapping[str, Any],
    *further: Table | str,
    json_only: bool = False,
    faults: bool = False,
) -> NoReturn:
    """Print tables and lines for people, then the result for programs on the last line.

    Ends with status 1 where there are ``faults``.
    """
    if not json_only:
        for shown in (table, *further):
            if isinstance(shown, str):
                typer.echo(shown)
            else:
                CONSOLE.print(shown)
    typer.echo(json.dumps(result))
    raise typer.Exit(1 if faults else 0)
