"""``oar bench overhead``: its commands and how they print what they measured."""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish, refuse
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.overhead.join import Figures, Measured

overhead = typer.Typer(no_args_is_help=True, help="What the proxy costs, against its peers.")


@overhead.command("pass-through")
def pass_through_command(
    scale: Annotated[int, typer.Option(min=1, help="pgbench's: 100,000 rows each.")] = 20,
    seconds: Annotated[int, typer.Option(min=1, help="Of each pgbench run.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the median counts.")] = 3,
) -> None:
    """Statements that pass through, against pgbouncer before the same server."""
    from oar_bench.overhead import pass_through
    from oar_bench.overhead.processes import OverheadError

    try:
        with work_directory() as directory:
            found = pass_through.measure(directory, scale=scale, seconds=seconds, rounds=rounds)
    except OverheadError as error:
        refuse(str(error))
    table = Table("", *found.latency_ms, "oar / pgbouncer", title="pass-through")
    copy = f"COPY {found.copy_rows:,} rows, ms"
    result = {}
    for name, key, figures in (
        ("1 client, ms", "latency_ms", found.latency_ms),
        ("8 clients, tps", "throughput_tps", found.throughput_tps),
        (copy, "copy_ms", found.copy_ms),
    ):
        ratio = figures["oar"] / figures["pgbouncer"]
        table.add_row(name, *(f"{figure:,.3f}" for figure in figures.values()), f"{ratio:.2f}")
        result[key] = {n: round(v, 4) for n, v in figures.items()} | {"ratio": round(ratio, 3)}
    finish(table, {"rows_copied": found.copy_rows, **result})


@overhead.command("stages")
def stages_command(
    rows: Annotated[int, typer.Option(help="Of each owner's table.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the median counts.")] = 50,
    json_only: JsonOption = False,
) -> None:
    """What a federated statement adds to the hub's own time, stage by stage."""
    from oar_bench.overhead import stages
    from oar_bench.overhead.processes import OverheadError

    try:
        with work_directory() as directory:
            found = stages.measure(directory, rows=rows, rounds=rounds)
    except OverheadError as error:
        refuse(str(error))
    columns = (*stages.STAGES, stages.REST, stages.TOTAL)
    table = Table("ms", *columns, title="medians")
    for name, medians in found.items():
        table.add_row(name, *(f"{medians[column]:.2f}" for column in columns))
    rounded = {
        name: {column: round(medians[column], 3) for column in columns}
        for name, medians in found.items()
    }
    finish(table, {"rows": rows, "rounds": rounds, "ms": rounded}, json_only=json_only)


@overhead.command("volume")
def volume_command(
    gigabytes: Annotated[float, typer.Option(min=0.01, help="10⁹ bytes, of each statement.")] = 10,
    json_only: JsonOption = False,
) -> None:
    """Memory of the proxy and its hub while far more rows pass than that would hold."""
    from oar_bench.overhead import volume
    from oar_bench.overhead.processes import OverheadError

    try:
        with work_directory() as directory:
            found = volume.measure(directory, gigabytes=gigabytes)
    except OverheadError as error:
        refuse(str(error))
    columns = ("GB", "GB / s", "proxy, MiB", "at most", "hub, MiB", "at most")
    table = Table("", *columns, title=f"{gigabytes:g} GB each")
    for name, each in found.items():
        memory = (f"{mebibytes:,.0f}" for mebibytes in astuple(each.memory))
        rate = each.gigabytes / each.seconds
        table.add_row(name, f"{each.gigabytes:.2f}", f"{rate:.2f}", *memory)
    result = {
        name: {
            "gigabytes": round(each.gigabytes, 3),
            "seconds": round(each.seconds, 2),
            **{part: round(mebibytes, 1) for part, mebibytes in asdict(each.memory).items()},
        }
        for name, each in found.items()
    }
    finish(table, {"cases": result}, json_only=json_only)


@overhead.command("join")
def join_command(
    rows: Annotated[int, typer.Option(help="Of each owner's table.")] = 1_000_000,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of each statement; 3 to 11 otherwise.")
    ] = None,
    json_only: JsonOption = False,
) -> None:
    """Statements over two owners, against the same by hand, postgres_fdw and DuckDB."""
    from oar_bench.overhead import join
    from oar_bench.overhead.processes import OverheadError

    try:
        with work_directory() as directory:
            found = join.measure(directory, rows=rows, rounds=rounds)
    except OverheadError as error:
        refuse(str(error))
    cases = {figures.case.name: _join_result(figures) for figures in found.figures}
    left_out = (f"{what} is left out: {why}" for what, why in found.skipped.items())
    result = {"rows": rows, "cases": cases, "skipped": found.skipped}
    finish(_times(found, rows), result, _costs(found), *left_out, json_only=json_only)


def _times(found: Measured, rows: int) -> Table:
    from oar_bench.overhead import peers
    from oar_bench.overhead.join import ASKED

    shown = [name for name in peers.CONTESTANTS if name not in found.skipped]
    table = Table("", "asked", *shown, "ratio", title=f"two owners of {rows:,} rows each, ms")
    for figures in found.figures:
        goal = figures.case.goal
        peer = peers.BY_HAND if goal is None else goal.peer
        wanted = "" if goal is None else f" (≤ {goal.most:g})"
        for asked in ASKED:
            medians = [figures.ms.get(name) for name in shown]
            table.add_row(
                figures.case.name if asked == ASKED[0] else "",
                asked,
                *("-" if ms is None else f"{ms[asked]:,.1f}" for ms in medians),
                f"{_ratio(figures.ratio(peer, asked))} × {peer}{wanted}",
                end_section=asked == ASKED[-1],
            )
    return table


def _costs(found: Measured) -> Table:
    table = Table(
        "", "rows moved", "keys moved", "queries", "proxy, MiB", "at most", "hub, MiB", "at most"
    )
    for figures in found.figures:
        moved, memory = figures.moved, figures.memory
        peaks = ["-"] * 4
        if memory is not None:
            peaks = [f"{figure:,.0f}" for figure in astuple(memory)]
        table.add_row(
            figures.case.name, f"{moved.rows:,}", f"{moved.keys:,}", str(moved.queries), *peaks
        )
    return table


def _join_result(figures: Figures) -> dict[str, Any]:
    from oar_bench.overhead import peers
    from oar_bench.overhead.join import ASKED

    goal, memory = figures.case.goal, figures.memory
    ratios = {
        name: {asked: _rounded(figures.ratio(name, asked)) for asked in ASKED}
        for name in figures.ms
        if name != peers.OAR
    }
    return {
        "ms": {
            name: {asked: round(ms, 3) for asked, ms in medians.items()}
            for name, medians in figures.ms.items()
        },
        "ratio": ratios,
        "goal": None if goal is None else {"peer": goal.peer, "ratio": goal.most},
        "moved": asdict(figures.moved),
        "memory_mib": None
        if memory is None
        else {name: round(figure, 1) for name, figure in asdict(memory).items()},
    }


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
