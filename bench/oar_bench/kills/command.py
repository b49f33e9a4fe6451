"""``oar bench kills``: the command and how it prints what it found."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish, refuse
from oar_bench.work import work_directory


def kills_command(
    *,
    count: Annotated[int, typer.Option(min=1, help="Kills.")] = 20,
    seed: Annotated[int, typer.Option(help="What instants and victims are drawn from.")] = 1,
    json_only: JsonOption = False,
) -> None:
    """Kill proxies and hubs at random instants; compare owners' query logs with the ledger."""
    from oar_bench.kills.run import measure
    from oar_bench.kills.world import KillsError
    from oar_bench.overhead.processes import OverheadError

    began = time.monotonic()
    try:
        with work_directory() as directory:
            outcome = measure(directory, count=count, seed=seed)
    except (KillsError, OverheadError) as error:
        refuse(str(error))
    result = {
        "seed": seed,
        "kills": dict(outcome.kills),
        "statements": outcome.statements,
        "queries": outcome.queries,
        "steps": outcome.steps,
        "recorded_and_not_sent": outcome.unsent,
        "entries": outcome.entries,
        "writers": outcome.writers,
        "refused": dict(outcome.refused),
        "faults": len(outcome.faults),
        "seconds": round(time.monotonic() - began, 1),
    }
    table = Table("", "", title="what the owners received, and the ledger")
    for name, value in result.items():
        table.add_row(name.replace("_", " "), str(value))
    finish(table, result, *outcome.faults, json_only=json_only, faults=bool(outcome.faults))
