"""``oar bench overhead``: its commands and how they print what they measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from oar_bench.printing import finish, refuse
from oar_bench.work import work_directory

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


@overhead.command("join")
def join_command(
    rows: Annotated[int, typer.Option(help="Of each owner's table.")] = 1_000_000,
) -> None:
    """A join across two owners, against two statements by hand and postgres_fdw."""
    from oar_bench.overhead import join
    from oar_bench.overhead.processes import OverheadError

    try:
        with work_directory() as directory:
            found = join.measure(directory, rows=rows)
    except OverheadError as error:
        refuse(str(error))
    peers = ("by hand", "postgres_fdw tuned", "postgres_fdw")
    titles = (*(f"{peer}, ms" for peer in peers), *(f"oar / {peer}" for peer in peers))
    table = Table("", "oar, ms", *titles, title=f"join of {rows:,} × {rows:,} rows")
    result: dict[str, Any] = {}
    for case, figures in found.items():
        ratios = {peer: figures["oar"] / figures[peer] for peer in peers if peer in figures}
        cells = [f"{figures[peer]:,.1f}" if peer in figures else "-" for peer in peers]
        cells += [f"{ratios[peer]:.2f}" if peer in ratios else "-" for peer in peers]
        table.add_row(case, f"{figures['oar']:,.1f}", *cells)
        result[case] = {
            "ms": {name: round(figure, 3) for name, figure in figures.items()},
            "ratio": {peer: round(ratio, 3) for peer, ratio in ratios.items()},
        }
    finish(table, {"rows": rows, "cases": result})
