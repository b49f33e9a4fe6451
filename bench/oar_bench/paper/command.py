"""``oar bench paper``: the tables of "Fan Out or Relay?" recomputed from what is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from oar_bench.drafts import read_drafts
from oar_bench.layout import BenchmarkError
from oar_bench.paper import appendix, comparison, numbered, plots, routing
from oar_bench.paper.collect_command import collect_command
from oar_bench.paper.figures import Table, records, text, write_csv
from oar_bench.paper.runs import BUDGET, read_runs
from oar_bench.paper.settings import Setting, settings
from oar_bench.printing import DataOption, DraftsOption, benchmarks, finish, refuse
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.paper import answers, bounds

paper = typer.Typer(no_args_is_help=True, help="The paper's tables, from saved drafts and runs.")
paper.command("collect")(collect_command)

TABLES: Final[Mapping[str, Callable[[Sequence[Setting]], Table]]] = {
    "2": numbered.table_2,
    "3": numbered.table_3,
    "4": numbered.table_4,
    "5": numbered.table_5,
    "6": numbered.table_6,
    "7": numbered.table_7,
    "9": numbered.table_9,
    "10": numbered.table_10,
    "11": numbered.table_11,
    "12": numbered.table_12,
    "13": numbered.table_13,
    "14": numbered.table_14,
    "strata": appendix.strata,
    "cost": appendix.cost,
    "retry": appendix.retry,
    "ablation": appendix.ablation,
    "budgets": appendix.budgets,
}
"""The tables over saved runs, as ``--table`` calls them."""

RunsFile = typer.Option("--runs", help="A file of saved runs.", exists=True, dir_okay=False)
CsvOption = Annotated[
    Path | None,
    typer.Option("--csv", dir_okay=False, help="Write every figure to this file too, as CSV."),
]
PlotsOption = Annotated[
    Path | None,
    typer.Option(
        "--plots", help="Draw the tables too: into this directory, or one into a .svg or .png file."
    ),
]


@paper.command("tables")
def tables_command(
    *,
    data: DataOption,
    runs: Annotated[Path, RunsFile],
    drafts: Annotated[
        Path | None,
        typer.Option(help="Drafts for runs without a saved draft.", exists=True, dir_okay=False),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this table, of {', '.join(TABLES)}; may be given again."),
    ] = None,
    csv_file: CsvOption = None,
    plots_path: PlotsOption = None,
) -> None:
    """Tables 2 to 7 and 9 to 14, costs, budgets and ablations, over saved runs."""
    chosen = table or list(TABLES)
    unknown = [name for name in chosen if name not in TABLES]
    if unknown:
        refuse(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    try:
        saved = read_runs(runs)
        recorded = None if drafts is None else read_drafts(drafts)
        found = list(settings(benchmarks(data), saved, recorded))
    except BenchmarkError as error:
        refuse(str(error))
    if not found:
        refuse(f"{runs}: no run answers a question of the data that has a reference answer")
    _output([TABLES[name](found) for name in chosen], csv_file, plots_path)


@paper.command("routing")
def routing_command(
    data: DataOption, csv_file: CsvOption = None, plots_path: PlotsOption = None
) -> None:
    """Table 13 of drafts alone: how they route, by the paper's parser and by ours."""
    found: dict[str, routing.DraftRouting] = {}
    try:
        for benchmark in benchmarks(data):
            for model, measured in routing.measure(benchmark).items():
                found[f"{benchmark.name}, {model}"] = measured
    except BenchmarkError as error:
        refuse(str(error))
    _output([routing.routing_table(found), routing.misses_table(found)], csv_file, plots_path)


@paper.command("answers")
def answers_command(
    *,
    data: DataOption,
    drafts: DraftsOption = None,
    runs: Annotated[Path | None, RunsFile] = None,
    csv_file: CsvOption = None,
    plots_path: PlotsOption = None,
) -> None:
    """Compiled drafts against the same on merged tables, and against the bounds of routers."""
    from oar_bench.paper import answers, bounds

    replayed: list[answers.Replayed] = []
    bounded: list[tuple[answers.Replayed, bounds.Bounds]] = []
    try:
        saved = {} if runs is None else read_runs(runs)
        with work_directory() as directory:
            for benchmark in benchmarks(data):
                files = benchmark.drafts if drafts is None else {drafts.stem: drafts}
                recorded = {model: read_drafts(path) for model, path in files.items()}
                measured = asyncio.run(answers.measure(benchmark, recorded, directory))
                for model, one in measured.items():
                    of_model = saved.get((model, BUDGET), {})
                    cases = comparison.cases(benchmark, of_model, recorded[model])
                    routed = comparison.evaluate(cases)
                    replayed.append(one)
                    bounded.append((one, bounds.bounds(benchmark, one, routed)))
    except BenchmarkError as error:
        refuse(str(error))
    found = [answers.answers_table(replayed), answers.equality_table(replayed)]
    found += [bounds.bounds_table(bounded), bounds.ahead_table(bounded)]
    _output(found, csv_file, plots_path)


def _output(tables: Sequence[Table], csv_file: Path | None, plots_path: Path | None) -> NoReturn:
    """Write figures and plots, then print the tables and, last, the figures as one line of JSON."""
    try:
        if csv_file is not None:
            write_csv(csv_file, tables)
        if plots_path is not None:
            plots.save(tables, plots_path)
    except (BenchmarkError, OSError) as error:
        refuse(str(error))
    first, *further = (f"{text(table)}\n" for table in tables)
    finish(first, {"figures": [asdict(record) for record in records(tables)]}, *further)
