"""What the paper gives in its text only (Sections 5.2 and 6.2, Appendix C), as tables over runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oar_bench.paper.comparison import (
    ALL,
    BOUND,
    OAR,
    OURS,
    RELAY_PLUS,
    STRATA,
    retried,
)
from oar_bench.paper.figures import Column, Figure, Row, Table, estimated, figure
from oar_bench.paper.routers import FAN_OUT, RELAY
from oar_bench.paper.settings import Setting

HIDDEN: Final = "relay+ without rows"
SHOWN: Final = "relay+ without keys"
PLANNED: Final = "planned"
"""The protocols of the mechanism experiments: relay+'s planner without its key-passing instruction,
which learns only that its queries were executed, or sees the rows; and relay planned in advance."""


def strata(settings: Sequence[Setting]) -> Table:
    """Every way to answer, by stratum."""
    rows = []
    for setting in settings:
        for way, scored in setting.scored.items():
            accuracies = (setting.per_cent(way, stratum) for stratum in STRATA)
            others = (
                setting.per_cent(way, ALL, "f1"),
                setting.per_cent(way, ALL, "abstained"),
                setting.per_cent(way, ALL, "failed"),
            )
            figures = (Figure(len(scored)), *map(figure, (*accuracies, *others)))
            rows.append(Row(setting.name, figures, way))
    return Table(
        "strata",
        "every protocol and router, by reference cover",
        (
            Column("Qs", "count"),
            *(Column(name, "%", "Accuracy") for name in STRATA.values()),
            *(Column(name) for name in ("F1", "Abst.", "Stop.")),
        ),
        tuple(rows),
        part="way",
        note="retry: and relay where fan-out abstains or stops.",
    )


def cost(settings: Sequence[Setting]) -> Table:
    """What one question costs, and how many times fan-out and relay that is."""
    rows = []
    for setting in settings:
        peers = [setting.mean(FAN_OUT), setting.mean(RELAY)]
        for way in setting.scored:
            mean = setting.mean(way)
            if mean is None or way == BOUND:
                continue
            spent = (mean.calls, mean.tokens, mean.seconds, mean.dollars)
            times = (
                mean.dollars / peer.dollars
                if mean.dollars is not None and peer is not None and peer.dollars
                else None
                for peer in peers
            )
            rows.append(Row(setting.name, tuple(map(figure, (*spent, *times))), way))
    return Table(
        "cost",
        "what one question costs",
        (
            Column("calls", "calls"),
            Column("tokens", "tokens"),
            Column("seconds", "seconds"),
            Column("USD", "USD"),
            Column("fan-out's", "times", "USD, times"),
            Column("relay's", "times", "USD, times"),
        ),
        tuple(rows),
        part="way",
        note="A router's own call included. USD: where the price of every call is known.",
    )


def retry(settings: Sequence[Setting]) -> Table:
    """Going on to relay where fan-out abstained or stopped, alone and after the router."""
    pairs = (
        ("FO retry − OAR", retried(FAN_OUT), OAR),
        ("OAR retry − OAR", retried(OAR), OAR),
        ("Ours retry − ours", retried(OURS), OURS),
    )
    groups = ("", "single-owner", "two-owner", "unanswerable")
    columns = [Column(name, "points") for name, _, _ in pairs]
    columns += [Column("OAR retry − OAR", "points", STRATA[stratum]) for stratum in groups[1:]]
    rows = []
    for setting in settings:
        found = [setting.ahead(one, other) for _, one, other in pairs]
        found += [setting.ahead(retried(OAR), OAR, stratum) for stratum in groups[1:]]
        rows.append(Row(setting.name, tuple(map(estimated, found))))
    return Table(
        "retry",
        "a retry with relay where fan-out abstains or stops, in points",
        tuple(columns),
        tuple(rows),
        note="In brackets 95 % intervals.",
    )


def ablation(settings: Sequence[Setting]) -> Table:
    """What relay's advantage comes from: rows hidden or shown, keys asked for, planned ahead."""
    rows = []
    for setting in settings:
        for stratum in ("single-owner", "two-owner"):
            ahead = (
                setting.ahead(SHOWN, HIDDEN, stratum),
                setting.ahead(RELAY_PLUS, SHOWN, stratum),
                setting.ahead(RELAY, PLANNED, stratum),
                setting.ahead(FAN_OUT, PLANNED, stratum),
            )
            if any(ahead):
                accuracies = (
                    setting.per_cent(way, stratum) for way in (HIDDEN, SHOWN, RELAY_PLUS, PLANNED)
                )
                means = (setting.mean(way, stratum) for way in (HIDDEN, SHOWN))
                calls = (None if mean is None else mean.calls for mean in means)
                figures = (
                    *map(figure, accuracies),
                    *map(estimated, ahead),
                    *map(figure, calls),
                )
                rows.append(Row(setting.name, figures, STRATA[stratum]))
    return Table(
        "ablation",
        "what relay's advantage comes from",
        (
            Column("hidden", "%", "Accuracy"),
            Column("shown", "%", "Accuracy"),
            Column("+ keys", "%", "Accuracy"),
            Column("planned", "%", "Accuracy"),
            Column("shown − hidden", "points", "Differences"),
            Column("+ keys − shown", "points", "Differences"),
            Column("RL − planned", "points", "Differences"),
            Column("FO − planned", "points", "Differences"),
            Column("hidden", "calls", "Calls"),
            Column("shown", "calls", "Calls"),
        ),
        tuple(rows),
        part="stratum",
        note="hidden, shown: relay+'s planner without the key-passing instruction, the returned "
        "rows hidden or shown to it; + keys: with the instruction, which is relay+. In brackets "
        "95 % intervals.",
    )


def budgets(settings: Sequence[Setting]) -> Table:
    """The same runs under different budgets, side by side."""
    budgets_of: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        budgets_of.setdefault((setting.benchmark, setting.model), []).append(setting)
    rows = []
    for (benchmark, model), found in budgets_of.items():
        for setting in sorted(found, key=lambda one: one.budget):
            accuracies = (
                setting.per_cent(way, stratum)
                for stratum in ("single-owner", "two-owner")
                for way in (FAN_OUT, RELAY, OAR)
            )
            stopped = (setting.per_cent(way, ALL, "failed") for way in (FAN_OUT, RELAY))
            ahead = (
                setting.interaction(RELAY),
                setting.ahead(OAR, RELAY),
                setting.ahead(OAR, FAN_OUT),
            )
            figures = (*map(figure, (*accuracies, *stopped)), *map(estimated, ahead))
            rows.append(Row(f"{benchmark}, {model}", figures, f"{setting.budget:,}"))
    return Table(
        "budgets",
        "under different budgets",
        (
            *(
                Column(name, "%", STRATA[stratum])
                for stratum in ("single-owner", "two-owner")
                for name in ("FO", "RL", "OAR")
            ),
            *(Column(name, "%", "Stopped") for name in ("FO", "RL")),
            Column("Interaction", "points"),
            Column("OAR − RL", "points"),
            Column("OAR − FO", "points"),
        ),
        tuple(rows),
        part="B",
        note="Budget B in tokens of rows, queries and provenance. In brackets 95 % intervals.",
    )
