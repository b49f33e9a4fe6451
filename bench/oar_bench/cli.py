"""``oar bench``: the benchmark commands. Each prints a table and, last, one line of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oar_bench import routing
from oar_bench.layout import Benchmark, BenchmarkError, find_benchmarks

app = typer.Typer(name="bench", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure routing, fidelity, answers and overhead."""


DataOption = Annotated[
    Path,
    typer.Option("--data", help="A benchmark's directory, or one that holds several.", exists=True),
]


@app.command("route")
def route_command(data: DataOption) -> None:
    """Precision and recall of the route that recorded drafts take (relay or fan-out)."""
    results: dict[str, routing.Routing] = {}
    for benchmark in _benchmarks(data):
        for model, counts in routing.measure(benchmark).items():
            results[f"{benchmark.name}/{model}" if model in results else model] = counts
    table = Table(
        "model", "questions", "precision", "recall", title="draft κ ≥ 2 against gold κ ≥ 2"
    )
    for model, counts in sorted(results.items(), key=lambda item: -(item[1].recall or 0)):
        table.add_row(
            model, str(counts.questions), _figure(counts.precision), _figure(counts.recall)
        )
    _finish(
        table,
        {
            "models": {
                model: {"precision": counts.precision, "recall": counts.recall}
                for model, counts in results.items()
            }
        },
    )


def _benchmarks(data: Path) -> tuple[Benchmark, ...]:
    try:
        return find_benchmarks(data)
    except BenchmarkError as error:
        typer.echo(f"oar bench: {error}", err=True)
        raise typer.Exit(2) from error


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _finish(table: Table, result: dict[str, Any]) -> None:
    """Print the table for people, then the result for programs, on the last line."""
    Console(width=120).print(table)
    typer.echo(json.dumps(result))
