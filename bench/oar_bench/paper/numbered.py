"""The paper's tables over saved runs, one function each, named by their numbers.

Columns are the paper's; those it does not have (our parser's routes, the compiled line where it
was run) stand at the right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from oar_bench.paper import comparison, keys
from oar_bench.paper.comparison import (
    ALL,
    COMPILED,
    OAR,
    OAR_PLUS,
    OURS,
    OURS_PLUS,
    RELAY_PLUS,
    STRATA,
    among,
    per_cent,
)
from oar_bench.paper.figures import ABOVE, HIGHEST, Column, Figure, Row, Table, estimated, figure
from oar_bench.paper.routers import (
    ASK,
    DIFFICULTY,
    FAN_OUT,
    ORACLE,
    RELAY,
    ROUTERS,
    SELF,
    Case,
)
from oar_bench.paper.routing import outcomes_of, precision_recall
from oar_bench.paper.runs import Run
from oar_bench.paper.scoring import Share
from oar_bench.paper.settings import Setting
from oar_bench.routing import gold_kappa, gold_tables

Ways = Sequence[tuple[str, str]]
"""Columns: heading and way to answer."""

_SHORT: Final = "FO: fan-out, RL: relay, RL+: relay+. Ours: OAR with our parser. Com.: compiled."
_INTERVALS: Final = "In brackets 95 % intervals."
_BOTH: Final[Ways] = (("FO", FAN_OUT), ("RL", RELAY))
_OURS: Final[Ways] = (("Ours", OURS), ("Com.", COMPILED))
_PLUS: Final[Ways] = (*_BOTH, ("RL+", RELAY_PLUS), ("OAR", OAR), ("OAR+", OAR_PLUS), *_OURS)

_FEW_ROWS: Final = 20
"""Relay limits each query to so many rows; Table 10 splits the questions there."""


def table_2(settings: Sequence[Setting]) -> Table:
    """Ownership with the query shape held fixed: two tables, at one owner or at two."""
    rows = []
    for setting in settings:
        one, two = _two_tables(setting)
        ahead = comparison.interaction_of(setting.scores(RELAY), setting.scores(FAN_OUT), one, two)
        figures = (*_among(setting, one), *_among(setting, two), estimated(ahead))
        rows.append(Row(setting.name, figures))
    return Table(
        "2",
        "accuracy on questions whose reference SQL joins exactly two tables, by their owners",
        (
            *_among_columns("One owner"),
            *_among_columns("Two owners"),
            Column("Diff.", "points"),
        ),
        tuple(rows),
        note=f"{_SHORT} Diff.: fan-out's lead with one owner minus its lead with two. {_INTERVALS}",
    )


def _two_tables(setting: Setting) -> tuple[list[str], list[str]]:
    """Return the questions whose reference reads two tables: of one owner, and of two."""
    found: dict[int | None, list[str]] = {1: [], 2: []}
    holders = setting.holders
    for key, question in setting.questions.items():
        tables = None if question.unanswerable else gold_tables(question)
        if tables is not None and len(tables) == 2:
            found.setdefault(gold_kappa(question, holders[key]), []).append(key)
    return found[1], found[2]


def _among(setting: Setting, asked: Sequence[str]) -> list[Figure | None]:
    """Return how many questions these are, and fan-out's and relay's accuracy on them."""
    accuracies = (per_cent(among(setting.scores(way), asked)) for _, way in _BOTH)
    return [Figure(len(asked)), *map(figure, accuracies)]


def _among_columns(group: str) -> tuple[Column, ...]:
    return (Column("Qs", "count", group), *(Column(name, "%", group) for name, _ in _BOTH))


def table_3(settings: Sequence[Setting]) -> Table:
    """Accuracy of the fixed protocols and the routers."""
    groups: Mapping[str, Ways] = {
        "Fixed protocols": (("Fan-out", FAN_OUT), ("Relay", RELAY), ("Relay+", RELAY_PLUS)),
        "Other routers": (("Self", SELF), ("Ask", ASK), ("Difficulty", DIFFICULTY)),
        "Ownership routing": (("OAR", OAR), ("OAR+", OAR_PLUS)),
        "with our parser": (("OAR", OURS), ("OAR+", OURS_PLUS)),
        "": (("Compiled", COMPILED),),
    }
    ways = [way for inside in groups.values() for _, way in inside]
    rows = []
    for setting in settings:
        best = setting.best_fixed()
        above = {
            way
            for way in (OAR, OURS)
            if (ahead := setting.ahead(way, best)) is not None and ahead.low > 0
        }
        found = [figure(setting.per_cent(way)) for way in ways]
        marked = [
            one and replace(one, marks=one.marks + ABOVE) if way in above else one
            for way, one in zip(ways, _highest(found), strict=True)
        ]
        rows.append(Row(setting.name, tuple(marked)))
    return Table(
        "3",
        "accuracy of the fixed protocols and the routers",
        tuple(Column(name, "%", group) for group, inside in groups.items() for name, _ in inside),
        tuple(rows),
        note=f"{HIGHEST} highest of the row. {ABOVE} the 95 % interval against the best fixed "
        "protocol lies above zero.",
    )


def _highest(figures: Sequence[Figure | None]) -> list[Figure | None]:
    """Mark the highest figures, of one digit as they are shown."""
    shown = [None if one is None else round(one.value, 1) for one in figures]
    top = max((value for value in shown if value is not None), default=None)
    return [
        replace(one, marks=one.marks + HIGHEST) if one is not None and value == top else one
        for one, value in zip(figures, shown, strict=True)
    ]


def table_4(settings: Sequence[Setting]) -> Table:
    """Accuracy by reference owner cover."""
    strata = ("single-owner", "row-split", "two-owner", "unanswerable")
    return Table(
        "4",
        "accuracy by reference owner cover",
        *_by_stratum(settings, strata, (*_BOTH, ("OAR", OAR), *_OURS)),
        note=_SHORT,
    )


def table_5(settings: Sequence[Setting]) -> Table:
    """Accuracy by reference owner cover, relay+ and OAR+ included."""
    return Table(
        "5",
        "accuracy by reference owner cover, relay+ and OAR+ included",
        *_by_stratum(settings, ("single-owner", "two-owner", "three-or-more"), _PLUS),
        note=_SHORT,
    )


def _by_stratum(
    settings: Sequence[Setting], strata: Sequence[str], ways: Ways, share: Share = "accuracy"
) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    columns = [Column(name, "%", STRATA[stratum]) for stratum in strata for name, _ in ways]
    rows = [
        Row(
            setting.name,
            tuple(
                figure(setting.per_cent(way, stratum, share))
                for stratum in strata
                for _, way in ways
            ),
        )
        for setting in settings
    ]
    return tuple(columns), tuple(rows)


def table_6(settings: Sequence[Setting]) -> Table:
    """Interaction between protocol and ownership."""
    ways = {"Relay": RELAY, "Relay+": RELAY_PLUS}
    return Table(
        "6",
        "interaction between protocol and ownership, in points",
        tuple(Column(name, "points") for name in ways),
        tuple(
            Row(setting.name, tuple(estimated(setting.interaction(way)) for way in ways.values()))
            for setting in settings
        ),
        note="The advantage over fan-out on two-owner questions minus that on single-owner ones. "
        + _INTERVALS,
    )


def table_7(settings: Sequence[Setting]) -> Table:
    """Outcomes on two-owner questions."""
    kinds = {FAN_OUT: ("Correct", "Abst.", "Wrong", "Stop."),
             RELAY: ("Correct", "Abst.", "Key", "No key", "Stop.")}  # fmt: skip
    rows = []
    for setting in settings:
        figures: list[Figure | None] = []
        for protocol, outcomes in kinds.items():
            found = Counter(
                _outcome(case, run, by_key=protocol == RELAY)
                for case in setting.cases
                if (run := case.runs.get(protocol)) is not None
                and (run.number, case.question.stratum) == (1, "two-owner")
            )
            total = found.total()
            figures += [
                Figure(100 * found[outcome] / total) if total else None for outcome in outcomes
            ]
        rows.append(Row(setting.name, tuple(figures)))
    return Table(
        "7",
        "outcomes on two-owner questions, first run",
        tuple(
            Column(outcome, "%", name)
            for name, outcomes in zip(("Fan-out", "Relay"), kinds.values(), strict=True)
            for outcome in outcomes
        ),
        tuple(rows),
        note="Abst.: declared unanswerable, or no rows. Wrong: wrong rows; of relay with a key "
        "passed and without. Stop.: the run ended early.",
    )


def _outcome(case: Case, run: Run, *, by_key: bool) -> str:
    if run.outcome == "stopped" or run.outcome is None:
        return "Stop."
    if keys.is_correct(case.question, run):
        return "Correct"
    if not run.rows:
        return "Abst."
    if not by_key:
        return "Wrong"
    return "Key" if keys.passes_key(run, case.question.text or "") else "No key"


def table_9(settings: Sequence[Setting]) -> Table:
    """Key passing in relay runs on two-owner questions."""
    rows = []
    for setting in settings:
        for protocol in (RELAY, RELAY_PLUS):
            passed = keys.measure(
                (case.question, case.runs[protocol])
                for case in setting.cases
                if protocol in case.runs
            )
            if passed.runs:
                shares = (
                    passed.keyed_share,
                    passed.keyed_accuracy,
                    passed.unkeyed_accuracy,
                    passed.share,
                )
                rows.append(
                    Row(setting.name, (Figure(passed.runs), *map(figure, shares)), protocol)
                )
    return Table(
        "9",
        "key passing on two-owner questions",
        (
            Column("Runs", "count"),
            Column("Key"),
            Column("key", "%", "Accuracy"),
            Column("no key", "%", "Accuracy"),
            Column("Share"),
        ),
        tuple(rows),
        part="protocol",
        note="Key: runs in which a later query has a literal that another owner returned earlier. "
        "Share: correct runs that passed a key.",
    )


def table_10(settings: Sequence[Setting]) -> Table:
    """Single-owner accuracy by the number of rows in the reference answer."""
    rows = []
    for setting in settings:
        few: list[str] = []
        many: list[str] = []
        for key in setting.of_stratum("single-owner"):
            answer = setting.questions[key].rows
            if answer is not None:
                (few if len(answer) <= _FEW_ROWS else many).append(key)
        rows.append(Row(setting.name, (*_among(setting, few), *_among(setting, many))))
    return Table(
        "10",
        "single-owner accuracy by the rows of the reference answer",
        (
            *_among_columns(f"At most {_FEW_ROWS} rows"),
            *_among_columns(f"More than {_FEW_ROWS}"),
        ),
        tuple(rows),
        note=_SHORT,
    )


def table_11(settings: Sequence[Setting]) -> Table:
    """Paired differences between the router and the fixed protocols."""
    best = "best"
    pairs = (
        ("OAR − FO", OAR, FAN_OUT),
        ("OAR − RL", OAR, RELAY),
        ("OAR − best", OAR, best),
        ("OAR+ − RL+", OAR_PLUS, RELAY_PLUS),
        ("OAR+ − OAR", OAR_PLUS, OAR),
        ("Ours − OAR", OURS, OAR),
        ("Ours − best", OURS, best),
        ("Com. − OAR", COMPILED, OAR),
        ("Com. − best", COMPILED, best),
    )
    rows = []
    for setting in settings:
        fixed = setting.best_fixed()
        found = (setting.ahead(one, fixed if other == best else other) for _, one, other in pairs)
        rows.append(Row(setting.name, tuple(map(estimated, found))))
    return Table(
        "11",
        "paired differences in points",
        tuple(Column(name, "points") for name, _, _ in pairs),
        tuple(rows),
        note=f"{_SHORT} Best: the most accurate fixed protocol of the setting. {_INTERVALS}",
    )


def table_12(settings: Sequence[Setting]) -> Table:
    """Row-level F1."""
    strata, ways = ("single-owner", "two-owner", ALL), (*_BOTH, ("OAR", OAR), *_OURS)
    columns, rows = _by_stratum(settings, strata, ways, "f1")
    return Table(
        "12",
        "row-level F1",
        columns,
        tuple(
            replace(
                row,
                figures=(*row.figures[: -len(ways)], *_highest(row.figures[-len(ways) :])),
            )
            for row in rows
        ),
        note=f"{_SHORT} {HIGHEST} highest of the row over all questions.",
    )


def table_13(settings: Sequence[Setting]) -> Table:
    """How the draft routes."""
    parsers = (
        ("", OAR, "tables, paper's parser"),
        (" (our parser)", OURS, "tables"),
    )
    columns = []
    for of, _, _ in parsers:
        columns += [Column("Prec.", "%", f"Draft{of}"), Column("Rec.", "%", f"Draft{of}")]
        names = ("Oracle", "OAR", "Table", "JOIN") if not of else ("OAR", "Table")
        columns += [Column(name, "%", f"Accuracy{of}") for name in names]
    rows = []
    for setting in settings:
        figures: list[Figure | None] = []
        for of, router, tables in parsers:
            figures += map(figure, precision_recall(outcomes_of(setting.cases, ROUTERS[router])))
            ways = (ORACLE, router, tables, "JOIN") if not of else (router, tables)
            figures += [figure(setting.per_cent(way)) for way in ways]
        rows.append(Row(setting.name, tuple(figures)))
    return Table(
        "13",
        "how the draft routes",
        tuple(columns),
        tuple(rows),
        note="Precision and recall of the draft's κ ≥ 2 against the reference's. Oracle routes by "
        "the reference cover, Table and JOIN by the draft's table count and the word JOIN.",
    )


def table_14(settings: Sequence[Setting]) -> Table:
    """OAR with drafts of other models."""
    rows = []
    for setting in settings:
        best = setting.best_fixed()
        if best is None:
            continue
        for drafter, drafts in setting.drafters.items():
            cases = [replace(case, draft=drafts.get(case.question.id)) for case in setting.cases]
            figures: list[Figure | None] = [
                figure(setting.per_cent(best)),
                figure(setting.per_cent(OAR)),
            ]
            for router in (OAR, OURS):
                scored = comparison.evaluate_router(cases, router)
                figures += [
                    figure(per_cent(scored)),
                    estimated(comparison.contrast(scored, setting.scores(best))),
                    figure(precision_recall(outcomes_of(cases, ROUTERS[router]))[1]),
                ]
            rows.append(Row(setting.name, tuple(figures), drafter))
    groups = ("Other drafts", "Other drafts, our parser")
    return Table(
        "14",
        "OAR with the drafts of another model",
        (
            Column("Best"),
            Column("OAR"),
            *(
                column
                for group in groups
                for column in (
                    Column("OAR", "%", group),
                    Column("Δ", "points", group),
                    Column("Rec.", "%", group),
                )
            ),
        ),
        tuple(rows),
        part="drafts of",
        note="Best: the most accurate fixed protocol. Δ: with the other drafts minus Best. Rec.: "
        f"the multi-owner questions that the drafts find. {_INTERVALS}",
    )
