"""``oar bench load`` and ``oar bench soak``: the commands, and how they print what they found."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from oar_bench.printing import JsonOption, finish, refuse
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.load.run import Outcome, Plan
    from oar_bench.load.traffic import Figures, Tally

_PARTS = (0.5, 0.99, 1)

IdleOption = Annotated[int, typer.Option("--idle", min=0, help="Clients that connect and wait.")]
BusyOption = Annotated[
    int, typer.Option("--busy", min=2, help="Clients that ask; a tenth share an owner with faults.")
]
ThinkOption = Annotated[
    float, typer.Option("--think", min=0, help="Seconds between a busy client's statements.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="What statements are drawn from.")]


def load_command(
    *,
    idle: IdleOption = 1000,
    busy: BusyOption = 200,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Without a fault, before the first one.")
    ] = 30,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="Only this one; may be given again.")
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="Seconds that others are kept waiting.")
    ] = 6,
    think: ThinkOption = 2,
    seed: SeedOption = 1,
    json_only: JsonOption = False,
) -> None:
    """Faults under load: what those concerned are told, and that nobody else notices."""
    from oar_bench.load.faults import FAULTS
    from oar_bench.load.run import Plan

    unknown = set(fault or ()) - FAULTS.keys()
    if unknown:
        refuse(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    plan = Plan(idle, busy, seconds, seed, tuple(fault or FAULTS), patience, think)
    outcome, result = _measure(plan)
    finish(
        _statements(outcome),
        result,
        _kinds_table(outcome),
        _memory(outcome),
        *outcome.notes,
        *outcome.faults,
        json_only=json_only,
        faults=bool(outcome.faults),
    )


def soak_command(
    *,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="How long.")] = 10,
    idle: IdleOption = 100,
    busy: BusyOption = 50,
    think: ThinkOption = 0,
    seed: SeedOption = 1,
    json_only: JsonOption = False,
) -> None:
    """Work without a fault for a while: memory at the beginning and at the end, no error."""
    from oar_bench.load.run import Plan
    from oar_bench.load.watch import curve

    outcome, result = _measure(Plan(idle, busy, minutes * 60, seed, think=think))
    grown = curve(outcome.samples)
    result["memory"] |= grown
    table = Table("", *grown, title="the proxy's memory, after a tenth of the time and at the end")
    table.add_row("MiB", *(f"{value:,.1f}" for value in grown.values()))
    finish(
        _statements(outcome),
        result,
        _kinds_table(outcome),
        _memory(outcome),
        table,
        *outcome.notes,
        *outcome.faults,
        json_only=json_only,
        faults=bool(outcome.faults),
    )


def _measure(plan: Plan) -> tuple[Outcome, dict[str, Any]]:
    from oar_proxy.hub.address import HubError

    from oar_bench.fuzz.servers import ServerError
    from oar_bench.load.run import measure
    from oar_bench.overhead.processes import OverheadError

    began = time.monotonic()
    try:
        with work_directory() as directory:
            outcome = measure(directory, plan, _tell)
    except (OverheadError, HubError, ServerError) as error:
        refuse(str(error))
    return outcome, {
        "idle": plan.idle,
        "busy": plan.busy,
        "think": plan.think,
        "seed": plan.seed,
        "seconds": round(time.monotonic() - began, 1),
        "statements": {
            name: {
                who: {
                    "answers": len(figures.seconds),
                    "errors": dict(figures.errors),
                    "median_ms": round(figures.percentile(0.5), 1),
                    "p99_ms": round(figures.percentile(0.99), 1),
                }
                for who, figures in _who(name, tally)
            }
            for name, tally in outcome.tallies.items()
        },
        "kinds": {
            kind: [round(figures.percentile(part), 1) for part in _PARTS]
            for kind, figures in _kinds(outcome)
        },
        "memory": {name: asdict(sample) for name, sample in outcome.looks.items()},
        "refused_seconds": round(outcome.refused_seconds, 3),
        "notes": outcome.notes,
        "faults": len(outcome.faults),
    }


def _tell(what: str) -> None:
    """Say what is being done: it takes minutes."""
    typer.echo(what, err=True)


def _statements(outcome: Outcome) -> Table:
    table = Table("fault", "who", "answers", "errors", "median, ms", "p99, ms", "longest, ms")
    for name, tally in outcome.tallies.items():
        for who, figures in _who(name, tally):
            errors = ", ".join(f"{state}: {count}" for state, count in figures.errors.items())
            times = (f"{figures.percentile(part):,.0f}" for part in _PARTS)
            table.add_row(name, who, f"{len(figures.seconds):,}", errors or "0", *times)
    return table


def _who(name: str, tally: Tally) -> list[tuple[str, Figures]]:
    """Return what became of the statements that a fault concerns, and of those of bystanders."""
    from oar_bench.load.faults import FAULTS
    from oar_bench.load.traffic import KINDS

    concerned = FAULTS[name].concerned if name in FAULTS else frozenset()
    both = {"concerned": concerned, "bystanders": KINDS.keys() - concerned}
    return [(who, tally.of(kinds)) for who, kinds in both.items() if kinds]


def _kinds(outcome: Outcome) -> list[tuple[str, Figures]]:
    """Return the kinds of statements that were asked while nothing happened."""
    tally = outcome.tallies["none"]
    return [(kind, tally.of([kind])) for kind in sorted(tally.seconds)]


def _kinds_table(outcome: Outcome) -> Table:
    table = Table("while nothing happens", "answers", "median, ms", "p99, ms", "longest, ms")
    for kind, figures in _kinds(outcome):
        times = (f"{figures.percentile(part):,.0f}" for part in _PARTS)
        table.add_row(kind, f"{len(figures.seconds):,}", *times)
    return table


def _memory(outcome: Outcome) -> Table:
    table = Table("", "proxy, MiB", "hub, MiB", "descriptors", "threads", "hub's processes")
    for name, sample in outcome.looks.items():
        table.add_row(
            name,
            f"{sample.proxy:,.0f}",
            f"{sample.hub:,.0f}",
            str(sample.descriptors),
            str(sample.threads),
            str(sample.processes),
        )
    return table
