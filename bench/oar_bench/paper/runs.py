"""Saved runs: one line a run of a protocol, or of a router's own call, on one question.

The format is described in docs/benchmarks.md, "Saved runs". Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from oar_bench.drafts import Dialect, Draft
from oar_bench.layout import BenchmarkError, read_lines

Outcome = Literal["answered", "abstained", "stopped"]

BUDGET: Final = 2048
"""The paper's budget in tokens, that of a protocol's run which names none."""

NO_BUDGET: Final = frozenset({"draft", "self", "ask", "compiled"})
"""Routers' calls and the compiled line, which take nothing of a budget: one run serves all."""

_OUTCOMES: Final = ("answered", "abstained", "stopped")


@dataclass(frozen=True, slots=True)
class Step:
    """One query that was sent to an owner, and the rows it returned."""

    owner: str
    sql: str
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One saved run.

    ``rows`` is the answer; None unless the outcome is ``answered``. A run that ends early, with a
    reply that cannot be parsed or at a limit, has ``stopped``. ``draft``, ``choice`` and ``owners``
    are replies to a router's call, which has no answer of its own. ``budget`` is in tokens, None
    for what has none; ``seconds`` are those of the model's calls, ``dollars`` None where their
    price is not known.
    """

    question: str
    protocol: str
    model: str
    number: int
    budget: int | None = None
    outcome: Outcome | None = None
    rows: tuple[tuple[Any, ...], ...] | None = None
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    dollars: float | None = None
    steps: tuple[Step, ...] = ()
    draft: Draft | None = None
    choice: str | None = None
    owners: tuple[str, ...] | None = None


OfModel = Mapping[tuple[str, int], Mapping[str, Run]]
"""(Question, run number) → protocol → run."""

SavedRuns = Mapping[tuple[str, int], OfModel]
"""(Model, budget) → its runs. What has no budget is there under each that its question has."""


def read_runs(path: Path) -> SavedRuns:
    """Read a file of saved runs.

    Raises :class:`~oar_bench.layout.BenchmarkError` for a line that is not one, or that is there
    twice, ``OSError`` for an unreadable file.
    """
    runs: dict[tuple[str, str, int, str, int | None], Run] = {}
    for number, record in read_lines(path):
        try:
            run = _run(record)
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{path} line {number}: not a saved run: {error}") from error
        key = (run.model, run.question, run.number, run.protocol, run.budget)
        if runs.setdefault(key, run) is not run:
            raise BenchmarkError(f"{path} line {number}: this run is there twice")
    budgets: dict[tuple[str, str], set[int]] = {}
    for run in runs.values():
        budgets.setdefault((run.model, run.question), set()).update(filter(None, [run.budget]))
    saved: dict[tuple[str, int], dict[tuple[str, int], dict[str, Run]]] = {}
    for run in runs.values():
        shared = budgets[run.model, run.question] or {BUDGET}
        for budget in sorted(shared) if run.budget is None else [run.budget]:
            of_model = saved.setdefault((run.model, budget), {})
            of_model.setdefault((run.question, run.number), {})[run.protocol] = run
    return saved


def _run(record: Mapping[str, Any]) -> Run:
    outcome, rows = record.get("outcome"), record.get("rows")
    if outcome is not None and outcome not in _OUTCOMES:
        raise ValueError(f"outcome is none of {', '.join(_OUTCOMES)}")
    if (outcome == "answered") != (rows is not None):
        raise ValueError("rows belong to the outcome answered, and to no other")
    question, owners = str(record["question"]), record.get("owners")
    protocol = str(record["protocol"])
    choice = record.get("choice")
    if choice not in (None, "fan-out", "relay"):
        raise ValueError("choice is neither fan-out nor relay")
    return Run(
        question=question,
        protocol=protocol,
        model=str(record["model"]),
        number=int(record.get("run", 1)),
        budget=_budget(protocol, record.get("budget")),
        outcome=outcome,
        rows=None if rows is None else _rows(rows),
        calls=int(record.get("calls", 0)),
        tokens=int(record.get("tokens", 0)),
        seconds=float(record.get("seconds", 0)),
        dollars=None if (dollars := record.get("dollars")) is None else float(dollars),
        steps=tuple(
            Step(str(step["owner"]), str(step["sql"]), _rows(step.get("rows") or ()))
            for step in record.get("steps", ())
        ),
        draft=_draft(question, record),
        choice=choice,
        owners=None if owners is None else tuple(map(str, owners)),
    )


def _budget(protocol: str, budget: Any) -> int | None:
    if protocol in NO_BUDGET:
        return None
    return BUDGET if budget is None else int(budget)


def _draft(question: str, record: Mapping[str, Any]) -> Draft | None:
    if "draft" not in record:
        return None
    dialect: Dialect = record.get("dialect", "sqlite")
    if dialect not in ("sqlite", "postgres"):
        raise ValueError("dialect is neither sqlite nor postgres")
    return Draft(question, record["draft"] or "", dialect)


def _rows(rows: Any) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)
