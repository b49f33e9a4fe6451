"""``oar bench policies``: the command and how it prints what it found."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Final

import typer
from rich.table import Table

from oar_bench.printing import (
    DataOption,
    JsonOption,
    LimitOption,
    OrgOption,
    benchmarks,
    finish,
    refuse,
)
from oar_bench.work import work_directory

_COUNTS: Final = (
    "statements",
    "asked",
    "answered",
    "equal",
    "viewed",
    "disclosures",
    "keys",
    "against",
)


def policies_command(
    *,
    data: DataOption,
    policies: Annotated[int, typer.Option(min=1, help="Draws of policies a statement.")] = 5,
    seed: Annotated[int, typer.Option(help="What the policies are drawn from.")] = 1,
    org: OrgOption = None,
    limit: LimitOption = None,
    json_only: JsonOption = False,
) -> None:
    """Statements over several owners under random policies: what is decided, and is it kept."""
    from oar_bench.policies.measure import DECISIONS, Decided, measure

    began = time.monotonic()
    found: dict[str, Decided] = {}
    with work_directory() as directory:
        for benchmark in benchmarks(data):
            chosen = benchmark.with_rows(org)
            if chosen:
                found |= asyncio.run(
                    measure(
                        benchmark,
                        chosen,
                        policies=policies,
                        seed=seed,
                        limit=limit,
                        directory=directory,
                    )
                )
    if not found:
        refuse("no organisation with rows is named so")
    table = Table(
        "organisation", "statements", "asked", *DECISIONS, "equal", "viewed", "disclosures",
        "against",
        title="statements over several owners, under random policies",
    )  # fmt: skip
    for name, decided in found.items():
        table.add_row(
            name,
            str(decided.statements),
            str(decided.asked),
            *(str(decided.decisions[each]) for each in DECISIONS),
            f"{decided.equal} of {decided.answered}",
            str(decided.viewed),
            str(decided.disclosures),
            str(decided.against),
        )
    decisions = sum((decided.decisions for decided in found.values()), Counter[str]())
    result = {
        "seed": seed,
        **{name: sum(getattr(decided, name) for decided in found.values()) for name in _COUNTS},
        "decisions": {name: decisions[name] for name in DECISIONS},
        "refusals": dict(sum((decided.refusals for decided in found.values()), Counter[str]())),
        "refused_by": dict(sum((decided.refused_by for decided in found.values()), Counter[str]())),
        "seconds": round(time.monotonic() - began, 1),
    }
    faults = [fault for decided in found.values() for fault in decided.faults]
    finish(table, result, *faults[:50], json_only=json_only, faults=bool(faults))
