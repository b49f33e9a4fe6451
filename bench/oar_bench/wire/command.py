"""``oar bench wire``: the command and how it prints what it found."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish, refuse
from oar_bench.work import work_directory


def wire_command(
    *,
    count: Annotated[int, typer.Option(min=0, help="Conversations without a socket.")] = 10_000,
    sockets: Annotated[int, typer.Option(min=0, help="Connections to a running proxy.")] = 200,
    seed: Annotated[int, typer.Option(help="What inputs are drawn from.")] = 1,
    only: Annotated[
        int | None, typer.Option(min=0, help="Only the conversation of this number.")
    ] = None,
    json_only: JsonOption = False,
) -> None:
    """Break recorded conversations; look for crashes, hangs, growth, and answers that depend."""
    from oar_bench.overhead.processes import OverheadError, proxy_process
    from oar_bench.wire.recording import record
    from oar_bench.wire.run import measure
    from oar_bench.wire.sockets import Siege, besiege

    numbers = range(count) if only is None else range(only, only + 1)
    began = time.monotonic()
    try:
        with work_directory() as directory:
            log = directory / "log"
            with proxy_process(directory, secrets.token_urlsafe(12), log=log) as proxy:
                recordings = record(proxy)
                siege = Siege()
                if only is None and sockets:
                    siege = besiege(proxy, recordings, seed=seed, count=sockets, log=log)
            besieged = time.monotonic()
            tally = measure(recordings, seed=seed, numbers=numbers)
    except OverheadError as error:
        refuse(str(error))
    faults = [*tally.faults, *siege.faults]
    result = {
        "seed": seed,
        "inputs": tally.inputs,
        "megabytes": round(tally.bytes / 1e6, 1),
        "ended": dict(sorted(tally.ended.items())),
        "startup_packets": dict(sorted(tally.packets.items())),
        "connections": dict(siege.connections),
        "bystander": siege.bystander,
        "files_before": siege.files_before,
        "files_after": siege.files_after,
        "faults": len(faults),
        "seconds": round(time.monotonic() - began, 1),
        "inputs_a_second": round(tally.inputs / max(time.monotonic() - besieged, 1e-9)),
    }
    table = Table("", "", title="what the wire protocol's code made of broken conversations")
    for name, value in result.items():
        table.add_row(name.replace("_", " "), str(value))
    finish(table, result, *faults, json_only=json_only, faults=bool(faults))
