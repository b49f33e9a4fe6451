"""``oar bench ledger``: the command and how it prints what it measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish
from oar_bench.work import work_directory


def ledger_command(
    *,
    rounds: Annotated[int, typer.Option(min=5, help="Of each decision.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.2, help="Of each run of writers.")] = 5.0,
    clients: Annotated[int, typer.Option(min=2, help="At each process.")] = 8,
    json_only: JsonOption = False,
) -> None:
    """What gate and ledger cost a query, and how much proxies write on one ledger."""
    from oar_bench.ledger.measure import measure

    with work_directory() as directory:
        spent, written = measure(directory, rounds=rounds, seconds=seconds, clients=clients)
    times = Table(
        "keys", "gate, ms", "gate and ledger, ms", "decisions a second", title="one query"
    )
    for each in spent:
        times.add_row(
            f"{each.keys:,}",
            f"{each.gate:.3f}",
            f"{each.gate_and_ledger:.3f}",
            f"{each.decisions:,.0f}",
        )
    rates = Table(
        "processes", "clients at each", "ledger", "INSERT", "ratio", title="durable writes a second"
    )
    for rate in written:
        rates.add_row(
            str(rate.processes),
            str(rate.clients),
            f"{rate.ledger:,.0f}",
            f"{rate.inserts:,.0f}",
            f"{rate.ledger / rate.inserts:.2f}",
        )
    finish(
        times,
        {
            "one_query": [{**asdict(each), "decisions": each.decisions} for each in spent],
            "writes_a_second": [asdict(rate) for rate in written],
        },
        rates,
        json_only=json_only,
    )
