"""``oar bench paper collect``: protocols and routers' calls run with a model, and saved."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from oar_bench.layout import BenchmarkError
from oar_bench.paper.runs import BUDGET
from oar_bench.printing import (
    DataOption,
    LimitOption,
    OrgOption,
    benchmarks,
    finish,
    refuse,
)
from oar_bench.work import work_directory

KEY_VARIABLE: Final = "OAR_DRAFTER__API_KEY"
"""Where the proxy's own setting ``drafter.api_key`` comes from, too."""

EVERY: Final = "all"


def collect_command(
    *,
    data: DataOption,
    model: Annotated[str, typer.Option(help="litellm's name of the model.")],
    out: Annotated[Path, typer.Option(help="The file of saved runs; it is added to.")],
    calls: Annotated[
        Path | None,
        typer.Option(help="The file of saved calls; beside --out otherwise. It has rows in it."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The base URL of an OpenAI-compatible server.")
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="A protocol, draft, self, ask or all; may be given again."),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Tokens of results; 2048 otherwise. May be given again."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each question.")] = 1,
    org: OrgOption = None,
    limit: LimitOption = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Contact all owners, described or not.")
    ] = False,
    parallel: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 4,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one model call.")] = 60.0,
    offline: Annotated[
        bool, typer.Option("--offline", help="Call no model: only what was saved is replied.")
    ] = False,
) -> None:
    """Run the paper's protocols and the routers' own calls with a model, and save the runs."""
    from oar_proxy.settings import DrafterSettings

    from oar_bench.paper import collect
    from oar_bench.paper.calls import Calls
    from oar_bench.paper.journal import open_journal

    kinds = tuple(dict.fromkeys(protocol or collect.USUAL))
    if EVERY in kinds:
        kinds = collect.KINDS
    unknown = [kind for kind in kinds if kind not in collect.KINDS]
    if unknown:
        refuse(f"no protocol {unknown[0]}: there are {', '.join(collect.KINDS)}, and {EVERY}")
    # Without a key of its own a server gets none: a provider's is not for whoever is at the URL.
    key = os.environ.get(KEY_VARIABLE) or (None if url is None else "none")
    settings = DrafterSettings.model_validate(
        {"kind": "litellm", "model": model, "api_base": url, "api_key": key, "timeout": timeout}
    )
    wanted = collect.Wanted(
        kinds,
        tuple(dict.fromkeys(budget or (BUDGET,))),
        runs,
        tuple(org or ()),
        limit,
        everyone,
        parallel,
    )
    try:
        with (
            open_journal(out) as journal,
            open_journal(calls or out.with_suffix(".calls.jsonl")) as calls_journal,
            work_directory() as directory,
        ):
            saved = Calls(settings, calls_journal, offline=offline)
            collected = asyncio.run(
                collect.collect(benchmarks(data), wanted, saved, journal, directory, report=_report)
            )
    except (BenchmarkError, OSError) as error:
        refuse(str(error))
    table = Table("protocol", "runs saved", title=f"{model}: {saved.made} calls made")
    for kind in kinds:
        table.add_row(kind, str(collected.saved[kind]))
    for reason, count in collected.unfinished.items():
        typer.echo(f"oar bench: {count} runs not saved: {reason}", err=True)
    finish(
        table,
        {
            "saved": dict(collected.saved),
            "present": collected.present,
            "unfinished": dict(collected.unfinished),
            "gave_up": collected.gave_up,
            "calls": saved.made,
            "dollars": collected.dollars,
        },
        faults=bool(collected.unfinished),
    )


def _report(line: str) -> None:
    typer.echo(line, err=True)
