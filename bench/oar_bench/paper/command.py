"""``oar bench paper``: the tables of "Fan Out or Relay?" recomputed from what is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from oar_bench.drafts import Draft, read_drafts
from oar_bench.layout import Benchmark, BenchmarkError, Question, find_benchmarks
from oar_bench.paper import comparison, routing
from oar_bench.paper.figures import flat, rounded, shown, write_csv
from oar_bench.paper.keys import KeyPassing
from oar_bench.paper.routers import KAPPA, KAPPA_FROZEN, RELAY
from oar_bench.paper.runs import read_runs
from oar_bench.paper.statistics import Estimate
from oar_bench.printing import CONSOLE, finish, refuse
from oar_bench.work import work_directory

if TYPE_CHECKING:
    from oar_bench.paper.answers import Replayed

paper = typer.Typer(no_args_is_help=True, help="The paper's tables, from saved drafts and runs.")

DataOption = Annotated[
    Path,
    typer.Option("--data", help="A benchmark's directory, or one that holds several.", exists=True),
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", help="Write the figures to this file too, as CSV.")
]
RUNS_HELP: Final = "A file of saved runs."
STRATA: Final = {
    "all": "accuracy",
    "single-owner": "one owner",
    "row-split": "row-split",
    "two-owner": "two",
    "three-or-more": "three +",
    "unanswerable": "unanswerable",
}

SHARES: Final = ("accuracy", "f1", "abstained", "failed")


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


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one model's saved runs on one benchmark show."""

    questions: Mapping[str, Question]
    scored: Mapping[str, comparison.Scored]
    contrasts: Mapping[str, Mapping[str, Estimate | None]]
    """Router κ → anything else → points by which the router is ahead."""
    interactions: Mapping[str, Estimate | None]
    passed: Mapping[str, KeyPassing]


@paper.command("runs")
def runs_command(
    data: DataOption,
    runs: Annotated[Path, typer.Option("--runs", help=RUNS_HELP, exists=True, dir_okay=False)],
    drafts: Annotated[
        Path | None,
        typer.Option(help="Drafts for runs without a saved draft.", exists=True, dir_okay=False),
    ] = None,
    csv_file: CsvOption = None,
) -> None:
    """Tables 3 to 6, 9, 11 and 12: protocols and routers over saved runs."""
    found: dict[str, _Setting] = {}
    try:
        saved = read_runs(runs)
        recorded = None if drafts is None else read_drafts(drafts)
        for benchmark in find_benchmarks(data):
            for model, of_model in saved.items():
                setting = _setting(benchmark, of_model, recorded)
                if setting is not None:
                    found[f"{benchmark.name}/{model}"] = setting
    except BenchmarkError as error:
        refuse(str(error))
    if not found:
        refuse(f"{runs}: no run answers a question of the data that has a reference answer")
    if csv_file is not None:
        write_csv(csv_file, [row for name, one in found.items() for row in _run_rows(name, one)])
    for name, one in found.items():
        CONSOLE.print(_accuracy_table(name, one))
        CONSOLE.print(_cost_table(name, one))
        CONSOLE.print(_contrast_table(name, one))
    finish(_key_table(found), {"models": {name: _run_json(one) for name, one in found.items()}})


def _setting(
    benchmark: Benchmark, runs: comparison.OfModel, drafts: Mapping[str, Draft] | None
) -> _Setting | None:
    cases = list(comparison.cases(benchmark, runs, drafts))
    scored = comparison.evaluate(cases)
    if not scored:
        return None
    questions = {case.question.id: case.question for case in cases}
    relays = [name for name in (RELAY, comparison.RELAY_PLUS) if name in scored]
    return _Setting(
        questions,
        scored,
        contrasts={
            router: {
                name: comparison.contrast(scored[router], other)
                for name, other in scored.items()
                if name != router
            }
            for router in (KAPPA_FROZEN, KAPPA)
            if router in scored
        },
        interactions={
            relay: comparison.ownership_interaction(scored, questions, relay) for relay in relays
        },
        passed={relay: comparison.key_passing(cases, relay) for relay in relays},
    )


def _accuracy_table(name: str, setting: _Setting) -> Table:
    table = Table("", "questions", *STRATA.values(), title=f"{name}: by reference cover, in %")
    for way, scored in setting.scored.items():
        groups = comparison.by_stratum(scored, setting.questions)
        found = (groups.get(stratum) for stratum in STRATA)
        cells = ("-" if group is None else f"{100 * group[1].accuracy:.1f}" for group in found)
        table.add_row(way, str(len(scored)), *cells)
    return table


def _cost_table(name: str, setting: _Setting) -> Table:
    table = Table("", "F1 %", "abstained %", "stopped %", "calls", "tokens", "seconds")
    table.title = f"{name}: costs of one question"
    for way, scored in setting.scored.items():
        mean = comparison.by_stratum(scored, setting.questions)["all"][1]
        shares = (100 * share for share in (mean.f1, mean.abstained, mean.failed))
        costs = (mean.calls, mean.tokens, mean.seconds)
        table.add_row(way, *(f"{figure:.1f}" for figure in (*shares, *costs)))
    return table


def _contrast_table(name: str, setting: _Setting) -> Table:
    table = Table("", *(f"{router}: ahead by" for router in setting.contrasts))
    table.title = f"{name}: points of accuracy, on the questions both answered"
    for way in setting.scored:
        cells = [shown(of.get(way), sign=True) for of in setting.contrasts.values()]
        table.add_row(way, *cells)
    return table


def _key_table(found: Mapping[str, _Setting]) -> Table:
    table = Table(
        *("", "protocol", "interaction, points", "two-owner runs", "key %"),
        *("accuracy %: key", "no key", "share %"),
    )
    for name, setting in found.items():
        for protocol, passed in setting.passed.items():
            table.add_row(
                name,
                protocol,
                shown(setting.interactions[protocol], sign=True),
                str(passed.runs),
                *(
                    "-" if part is None else f"{part:.1f}"
                    for part in (
                        passed.keyed_share,
                        passed.keyed_accuracy,
                        passed.unkeyed_accuracy,
                        passed.share,
                    )
                ),
            )
    return table


def _run_rows(name: str, setting: _Setting) -> list[dict[str, Any]]:
    return [
        {"model": name, "way": way, **row}
        for way, scored in setting.scored.items()
        for row in _stratum_rows(scored, setting.questions)
    ]


def _stratum_rows(
    scored: comparison.Scored, questions: Mapping[str, Question]
) -> Iterator[dict[str, Any]]:
    for stratum, (count, mean) in comparison.by_stratum(scored, questions).items():
        yield {
            "stratum": stratum,
            "questions": count,
            **{share: round(100 * getattr(mean, share), 4) for share in SHARES},
            **{cost: round(getattr(mean, cost), 4) for cost in ("calls", "tokens", "seconds")},
        }


def _run_json(setting: _Setting) -> dict[str, Any]:
    result: dict[str, Any] = rounded(
        {
            "scores": {
                way: list(_stratum_rows(scored, setting.questions))
                for way, scored in setting.scored.items()
            },
            "contrasts": {
                router: {way: _estimate(one) for way, one in of.items()}
                for router, of in setting.contrasts.items()
            },
            "interaction": {relay: _estimate(one) for relay, one in setting.interactions.items()},
            "key_passing": {
                relay: {
                    **asdict(passed),
                    "key_per_cent": passed.keyed_share,
                    "accuracy_with_key": passed.keyed_accuracy,
                    "accuracy_without": passed.unkeyed_accuracy,
                    "share_of_correct": passed.share,
                }
                for relay, passed in setting.passed.items()
            },
        }
    )
    return result


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else asdict(estimate)


@dataclass(frozen=True, slots=True)
class _Answers:
    """One model's drafts on one benchmark, and what its saved runs reach on the same questions."""

    replayed: Replayed
    questions: Mapping[str, Question]
    routed: Mapping[str, comparison.Scored]


@paper.command("answers")
def answers_command(
    data: DataOption,
    drafts: Annotated[
        Path | None,
        typer.Option(help="One drafts file; all of the benchmark's otherwise.", exists=True),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help=RUNS_HELP, exists=True, dir_okay=False)
    ] = None,
    csv_file: CsvOption = None,
) -> None:
    """Compiled drafts against the same on merged tables, and against the bounds of saved runs."""
    from oar_bench.paper import answers

    found: dict[str, _Answers] = {}
    try:
        saved = {} if runs is None else read_runs(runs)
        with work_directory() as directory:
            for benchmark in find_benchmarks(data):
                files = benchmark.drafts if drafts is None else {drafts.stem: drafts}
                recorded = {model: read_drafts(path) for model, path in files.items()}
                replayed = asyncio.run(answers.measure(benchmark, recorded, directory))
                questions = {question.id: question for question in benchmark.questions}
                for model, one in replayed.items():
                    cases = comparison.cases(benchmark, saved.get(model, {}), recorded[model])
                    routed = comparison.evaluate(list(cases))
                    found[f"{benchmark.name}/{model}"] = _Answers(one, questions, routed)
    except BenchmarkError as error:
        refuse(str(error))
    by_drafts = {name: list(_answer_rows(name, one)) for name, one in found.items()}
    rows = [row for of_drafts in by_drafts.values() for row in of_drafts]
    if csv_file is not None:
        write_csv(csv_file, rows)
    for name, of_drafts in by_drafts.items():
        CONSOLE.print(_answer_table(name, of_drafts))
    bounds = {name: _bounds(one) for name, one in found.items()}
    finish(_bound_table(bounds), {"answers": rows, "ahead_of_routers": bounds})


def _answer_rows(name: str, found: _Answers) -> Iterator[dict[str, Any]]:
    ways = (found.replayed.compiled, found.replayed.centralized)
    for stratum, (count, mean) in comparison.by_stratum(ways[0], found.questions).items():
        inside = [
            {
                key: one
                for key, one in way.items()
                if stratum in ("all", found.questions[key].stratum or comparison.UNKNOWN)
            }
            for way in ways
        ]
        central = comparison.by_stratum(inside[1], found.questions)["all"][1]
        yield {
            "drafts": name,
            "stratum": stratum,
            "questions": count,
            **{
                f"{way}_{share}": round(100 * getattr(score, share), 4)
                for way, score in (("compiled", mean), ("centralized", central))
                for share in SHARES
            },
            **flat("ahead", comparison.contrast(*inside)),
        }


def _answer_table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(
        *("stratum", "questions", *SHARES, "compiled ahead, points"),
        title=f"{name}: compiled drafts / the same drafts on merged tables, in %",
    )
    for row in rows:
        table.add_row(
            row["stratum"],
            str(row["questions"]),
            *(
                f"{row[f'compiled_{share}']:.1f} / {row[f'centralized_{share}']:.1f}"
                for share in SHARES
            ),
            f"{row['ahead']:+.1f} [{row['ahead_low']:.1f}, {row['ahead_high']:.1f}]",
        )
    return table


def _bounds(found: _Answers) -> dict[str, Any]:
    """Points by which compiled drafts are ahead of each protocol, router and bound."""
    compiled = found.replayed.compiled
    return {
        way: {
            "questions": len(compiled.keys() & scored.keys()),
            "ahead": rounded(_estimate(comparison.contrast(compiled, scored))),
        }
        for way, scored in found.routed.items()
    }


def _bound_table(bounds: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("drafts", "saved runs", "questions in both", "compiled ahead, points")
    for name, ways in bounds.items():
        if not ways:
            table.add_row(name, "none of this model: no router's bound", "0", "-")
        for way, one in ways.items():
            ahead = one["ahead"]
            shown_ahead = "-" if ahead is None else shown(Estimate(**ahead), sign=True)
            table.add_row(name, way, str(one["questions"]), shown_ahead)
    return table
