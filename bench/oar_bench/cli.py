"""``oar bench``: the benchmark commands. Each prints a table and, last, one line of JSON."""

from __future__ import annotations

import asyncio
import enum
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from oar_bench import routing
from oar_bench.drafts import read_drafts
from oar_bench.fuzz.command import fuzz_command
from oar_bench.kills.command import kills_command
from oar_bench.layout import BenchmarkError
from oar_bench.ledger.command import ledger_command
from oar_bench.load.command import load_command, soak_command
from oar_bench.overhead.command import overhead
from oar_bench.paper.command import paper
from oar_bench.policies.command import policies_command
from oar_bench.printing import (
    DataOption,
    DraftsOption,
    JsonOption,
    LimitOption,
    OrgOption,
    benchmarks,
    finish,
    refuse,
)
from oar_bench.reduction.command import reduction_command
from oar_bench.wire.command import wire_command
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench import ask
    from oar_bench.fidelity import Fault

FIDELITY_COUNTS: Final = ("statements", "accepted", "equal", "ties", "different", "failed")
OUTCOMES: Final[tuple[ask.Outcome, ...]] = ("correct", "wrong", "abstained", "unscored")

app = typer.Typer(
    name="bench", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
app.add_typer(overhead, name="overhead")
app.add_typer(paper, name="paper")
app.command("reduction")(reduction_command)
app.command("fuzz")(fuzz_command)
app.command("kills")(kills_command)
app.command("ledger")(ledger_command)
app.command("load")(load_command)
app.command("soak")(soak_command)
app.command("policies")(policies_command)
app.command("wire")(wire_command)


@app.callback()
def bench() -> None:
    """Measure routing, fidelity, answers, reduction and overhead; recompute the paper's tables."""
    # Whoever stops a run wants its servers stopped too, as Ctrl-C does; which a script's shell has
    # the programs ignore that it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@app.command("route")
def route_command(data: DataOption) -> None:
    """Precision and recall of the route that recorded drafts take (relay or fan-out)."""
    results: dict[str, routing.Routing] = {}
    for benchmark in benchmarks(data):
        for model, counts in routing.measure(benchmark).items():
            results[f"{benchmark.name}/{model}" if model in results else model] = counts
    table = Table(
        "model", "questions", "precision", "recall", title="draft κ ≥ 2 against gold κ ≥ 2"
    )
    for model, counts in sorted(results.items(), key=lambda item: -(item[1].recall or 0)):
        table.add_row(
            model, str(counts.questions), _figure(counts.precision), _figure(counts.recall)
        )
    finish(
        table,
        {
            "models": {
                model: {"precision": counts.precision, "recall": counts.recall}
                for model, counts in results.items()
            }
        },
    )


@app.command("fidelity")
def fidelity_command(
    data: DataOption,
    org: OrgOption = None,
    limit: LimitOption = None,
    json_only: JsonOption = False,
) -> None:
    """Gold SQL through a proxy over the owners, compared with the same SQL on merged tables."""
    from oar_bench import fidelity

    tallies: list[tuple[str, fidelity.Tally]] = []
    with work_directory() as directory:
        for benchmark in benchmarks(data):
            chosen = benchmark.with_rows(org)
            if chosen:
                measured = asyncio.run(fidelity.measure(benchmark, chosen, limit, directory))
                tallies += measured.items()
    if org and not tallies:
        refuse(f"no organisation with rows is named {' or '.join(org)}")
    result = {name: sum(getattr(tally, name) for _, tally in tallies) for name in FIDELITY_COUNTS}
    table = Table("organisation", *FIDELITY_COUNTS, title="gold SQL, proxy against merged tables")
    for name, tally in tallies:
        table.add_row(name, *(str(getattr(tally, count)) for count in FIDELITY_COUNTS))
    faults = _faults(fault for _, tally in tallies for fault in tally.faults)
    finish(table, result, *faults, json_only=json_only, faults=bool(faults))


class DrafterKind(enum.StrEnum):
    """Who drafts the questions of ``ask``."""

    replay = "replay"
    offline = "offline"


@app.command("ask")
def ask_command(
    data: DataOption,
    drafter: Annotated[
        DrafterKind, typer.Option(help="Recorded drafts, or the built-in rules.")
    ] = DrafterKind.replay,
    drafts: DraftsOption = None,
) -> None:
    """Questions end to end, scored against the reference answers and the merged tables."""
    from oar_bench import ask

    runs: dict[str, ask.Scores] = {}
    with work_directory() as directory:
        for benchmark in benchmarks(data):
            if drafter is DrafterKind.offline:
                runs[benchmark.name] = asyncio.run(ask.offline(benchmark, directory))
                continue
            files = benchmark.drafts if drafts is None else {drafts.stem: drafts}
            recorded = {model: read_drafts(path) for model, path in files.items()}
            try:
                scores = asyncio.run(ask.replay(benchmark, recorded, directory))
            except BenchmarkError as error:
                refuse(str(error))
            runs |= {model: score for model, score in scores.items() if score.questions}
    faults = _faults(fault for scores in runs.values() for fault in scores.faults)
    result = _ask_result(list(runs.values()), drafter)
    finish(_scores(runs), result, _movement(runs), *faults, faults=bool(faults))


def _scores(runs: Mapping[str, ask.Scores]) -> Table:
    table = Table("drafts", "stratum", "questions", *OUTCOMES, "accuracy %")
    for name, scores in runs.items():
        total: Counter[ask.Outcome] = Counter()
        for stratum, counts in sorted(scores.by_stratum.items()):
            table.add_row(name, stratum, *_score_cells(counts))
            total += counts
        table.add_row(name, "all", *_score_cells(total), end_section=True)
    return table


def _movement(runs: Mapping[str, ask.Scores]) -> Table:
    movement = Table(
        "drafts", "run on merged", "equal", "rows moved", "rows held", "%", "keys moved"
    )
    for name, scores in runs.items():
        share = f"{100 * scores.rows_moved / scores.rows_held:.1f}" if scores.rows_held else "-"
        movement.add_row(
            name,
            str(scores.compared),
            str(scores.equal_to_merged),
            str(scores.rows_moved),
            str(scores.rows_held),
            share,
            str(scores.keys_moved),
        )
    return movement


def _score_cells(counts: Counter[ask.Outcome]) -> list[str]:
    scored = counts.total() - counts["unscored"]
    accuracy = f"{100 * counts['correct'] / scored:.1f}" if scored else "-"
    return [str(counts.total()), *(str(counts[outcome]) for outcome in OUTCOMES), accuracy]


def _ask_result(runs: Sequence[ask.Scores], drafter: DrafterKind) -> dict[str, Any]:
    """Add up all runs. Without recorded drafts there is nothing to run on the merged tables."""
    replayed = drafter is DrafterKind.replay
    by_stratum: dict[str, Counter[ask.Outcome]] = {}
    for scores in runs:
        for stratum, counts in scores.by_stratum.items():
            by_stratum.setdefault(stratum, Counter()).update(counts)
    return {
        "questions": sum(scores.questions for scores in runs),
        "merged_accepted": sum(scores.compared for scores in runs) if replayed else None,
        "equal_to_merged": sum(scores.equal_to_merged for scores in runs) if replayed else None,
        **{outcome: sum(scores.count(outcome) for scores in runs) for outcome in OUTCOMES},
        "by_stratum": {
            stratum: {
                "questions": counts.total(),
                **{outcome: counts[outcome] for outcome in OUTCOMES},
            }
            for stratum, counts in sorted(by_stratum.items())
        },
        "rows_moved": sum(scores.rows_moved for scores in runs),
        "rows_held": sum(scores.rows_held for scores in runs) if replayed else None,
        "keys_moved": sum(scores.keys_moved for scores in runs),
    }


def _faults(faults: Iterable[Fault]) -> list[str]:
    return [f"{fault.organisation} {fault.question}: {fault.why}" for fault in faults]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
