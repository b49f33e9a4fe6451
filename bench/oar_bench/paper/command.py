"""``oar bench paper``: the tables of "Fan Out or Relay?" recomputed from what is saved."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from oar_bench.layout import BenchmarkError, find_benchmarks
from oar_bench.paper import routing
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN
from oar_bench.paper.statistics import Estimate
from oar_bench.printing import CONSOLE, finish, refuse

paper = typer.Typer(no_args_is_help=True, help="The paper's tables, from saved drafts and runs.")

DataOption = Annotated[
    Path,
    typer.Option("--data", help="A benchmark's directory, or one that holds several.", exists=True),
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", help="Write the figures to this file too, as CSV.")
]


@paper.command("routing")
def routing_command(data: DataOption, csv_file: CsvOption = None) -> None:
    """Table 13: how drafts route, by the paper's parser and by ours, with 95 % intervals."""
    found: dict[str, routing.DraftRouting] = {}
    try:
        for benchmark in find_benchmarks(data):
            for model, measured in routing.measure(benchmark).items():
                found[f"{benchmark.name}/{model}"] = measured
    except BenchmarkError as error:
        refuse(str(error))
    rows = [row for model, measured in found.items() for row in _signal_rows(model, measured)]
    if csv_file is not None:
        write_csv(csv_file, rows)
    table = Table(
        "drafts", "router", "relayed", "precision %", "recall %", title="relay against κ ≥ 2"
    )
    for model, measured in found.items():
        for name, signal in measured.signals.items():
            cells = (str(signal.relayed), shown(signal.precision), shown(signal.recall))
            table.add_row(f"{model} ({measured.questions})", name, *cells)
        gain = (shown(measured.more_precision, sign=True), shown(measured.more_recall, sign=True))
        table.add_row(model, "κ: ours - paper's, points", "", *gain, end_section=True)
    CONSOLE.print(table)
    finish(_misses(found), {"models": {model: _json(one) for model, one in found.items()}})


def _misses(found: dict[str, routing.DraftRouting]) -> Table:
    table = Table(
        *("drafts", "multi-owner", "parser", "missed: unread", "unlisted", "fewer owners"),
        "recovered by ours",
    )
    for model, one in found.items():
        for name in (KAPPA_FROZEN, KAPPA):
            missed = one.missed[name]
            counts = (str(missed.get(why, 0)) for why in ("unread", "unlisted", "fewer"))
            last = str(one.recovered) if name == KAPPA else ""
            table.add_row(model, str(one.multi_owner), name, *counts, last)
    return table


def _signal_rows(model: str, measured: routing.DraftRouting) -> list[dict[str, Any]]:
    return [
        {
            "drafts": model,
            "router": name,
            "questions": measured.questions,
            "multi_owner": measured.multi_owner,
            "relayed": signal.relayed,
            "agree": signal.agree,
            **flat("precision", signal.precision),
            **flat("recall", signal.recall),
        }
        for name, signal in measured.signals.items()
    ]


def _json(measured: routing.DraftRouting) -> dict[str, Any]:
    result: dict[str, Any] = rounded(asdict(measured))
    return result


def shown(estimate: Estimate | None, *, sign: bool = False) -> str:
    """Return ``value [low, high]`` with one digit, as the paper prints it."""
    if estimate is None:
        return "-"
    form = "+.1f" if sign else ".1f"
    return f"{estimate.value:{form}} [{estimate.low:.1f}, {estimate.high:.1f}]"


def flat(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return an estimate as three columns."""
    values = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    names = (name, f"{name}_low", f"{name}_high")
    return dict(zip(names, map(rounded, values), strict=True))


def rounded(value: Any) -> Any:
    """Round every float in a JSON value to two digits."""
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows of one shape, with a line of names; nothing but an empty file without rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
