"""Questions through ``oar_ask`` end to end, with recorded drafts or with the offline drafter.

A recorded draft is found by its question's text. The text gets the draft's id behind it, because
two organisations may ask the same question and two models answer it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from oar_proxy.errors import Unanswerable
from oar_proxy.settings import DrafterSettings

from oar_bench.compare import Verdict
from oar_bench.drafts import Draft, base_tables
from oar_bench.fidelity import Fault, describe
from oar_bench.harness import Client, Served, serve
from oar_bench.layout import Benchmark, Organisation, Question
from oar_bench.reference import Reference, judge, open_reference, to_postgres
from oar_bench.result import Result

Answer = Result | psycopg.Error
"""What a question came back with."""

Outcome = Literal["correct", "wrong", "abstained", "unscored"]

_BOOLEAN: Final = 16
"""The fixed number of the type in ``pg_type``."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_DIGITS: Final = 9
"""Significant digits kept of a number: SQLite and PostgreSQL print averages differently after."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it is sent; ``draft`` is None where the drafter works by itself.

    ``statement`` is the draft in PostgreSQL's dialect, None where it abstains or does not parse.
    """

    question: Question
    text: str
    draft: Draft | None = None
    statement: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A question, what the proxy answered, and what its draft gives on the merged tables.

    ``merged`` is None where there was nothing to run there.
    """

    asked: Asked
    answer: Answer
    merged: Answer | None


@dataclass(slots=True)
class Scores:
    """What became of the questions.

    ``compared`` drafts run on the merged tables, ``equal_to_merged`` of them give the same rows
    through the proxy. An abstention on an answerable question is ``abstained``, on an
    unanswerable one it is correct. ``rows_held`` are the rows of the tables the answered drafts
    read, once for each draft; ``rows_moved`` those that left their owners.
    """

    questions: int = 0
    compared: int = 0
    equal_to_merged: int = 0
    by_stratum: dict[str, Counter[Outcome]] = field(default_factory=dict)
    rows_moved: int = 0
    rows_held: int = 0
    keys_moved: int = 0
    faults: list[Fault] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        """Count the questions of all strata with one outcome."""
        return sum(counts[outcome] for counts in self.by_stratum.values())


async def replay(
    benchmark: Benchmark, drafts: Mapping[str, Mapping[str, Draft]], directory: Path
) -> dict[str, Scores]:
    """Ask every question that has rows, with each model's recorded draft of it: model → scores.

    Raises what starting the proxy raises, and :class:`~oar_bench.layout.BenchmarkError` for an
    organisation that cannot be merged.
    """
    asked = {model: list(_recorded(benchmark, model, drafts[model])) for model in drafts}
    file = directory / "drafts.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for one in chain.from_iterable(asked.values()):
            # A draft that its own dialect cannot read is sent as it is, for the hub to refuse.
            sql = one.statement or (one.draft.sql if one.draft else "")
            lines.write(json.dumps({"question": one.text, "sql": sql}) + "\n")
    organisations = _organisations(benchmark, chain.from_iterable(asked.values()))
    drafter = DrafterSettings(kind="replay", file=file)
    scores = {model: Scores() for model in drafts}
    async with (
        open_reference(directory / "reference") as reference,
        serve(organisations, directory, drafter) as served,
    ):
        for organisation in organisations:
            await reference.load(organisation)
        for model in drafts:
            await _ask_all(asked[model], served, scores[model], reference)
    return scores


async def offline(benchmark: Benchmark, directory: Path) -> Scores:
    """Ask every question that has rows of the offline drafter, one organisation at a time.

    A drafter sees all tables its principal sees: other organisations' would be in its way.
    """
    asked = [Asked(question, question.text or "") for question in askable(benchmark)]
    scores = Scores()
    for organisation in _organisations(benchmark, asked):
        mine = [one for one in asked if one.question.org == organisation.name]
        async with serve([organisation], directory, DrafterSettings(kind="offline")) as served:
            await _ask_all(mine, served, scores, None)
    return scores


def _recorded(benchmark: Benchmark, model: str, drafts: Mapping[str, Draft]) -> Iterable[Asked]:
    for question in askable(benchmark):
        draft = drafts.get(question.id)
        if draft is not None:
            sql = draft.sql if draft.dialect == "postgres" else to_postgres(draft.sql)
            yield Asked(question, f"{question.text} ({model} {question.id})", draft, sql or None)


def askable(benchmark: Benchmark) -> Iterable[Question]:
    """Return the questions in words whose organisation has the rows they need."""
    for question in benchmark.questions:
        organisation = benchmark.organisations.get(question.org)
        if question.text and question.rows_available and organisation and organisation.with_rows:
            yield question


def _organisations(benchmark: Benchmark, asked: Iterable[Asked]) -> list[Organisation]:
    names = dict.fromkeys(one.question.org for one in asked)
    return [benchmark.organisations[name] for name in names]


async def _ask_all(
    asked: Iterable[Asked], served: Served, scores: Scores, reference: Reference | None
) -> None:
    """Ask, score, and where there is a reference compare with the draft on the merged tables."""
    before = await _last_step(served)
    async with served.client() as client:
        for one in asked:
            answer = await _answer(client, one)
            scores.questions += 1
            stratum = one.question.stratum or "all"
            outcome = score(one.question, answer)
            scores.by_stratum.setdefault(stratum, Counter())[outcome] += 1
            merged = None
            if reference is not None:
                merged = await _compare_with_merged(one, answer, reference, scores)
            scores.answered.append(Answered(one, answer, merged))
    await _add_movement(served, before, scores)


async def _answer(client: Client, asked: Asked) -> Answer:
    literal = asked.text.replace("'", "''")
    try:
        return await client.run(asked.question.org, f"SELECT * FROM oar_ask('{literal}')")
    except psycopg.Error as error:
        return error


async def _compare_with_merged(
    asked: Asked, answer: Answer, reference: Reference, scores: Scores
) -> Answer | None:
    """Count a draft that runs on the merged tables, and what the proxy made of it.

    Returns what the draft gives there; None without a statement.
    """
    draft, statement, org = asked.draft, asked.statement, asked.question.org
    if draft is None or statement is None:
        return None
    try:
        want = await reference.run(org, statement)
    except psycopg.Error as error:
        return error
    scores.compared += 1
    if isinstance(answer, psycopg.Error):
        scores.faults.append(Fault(org, asked.question.id, describe(answer)))
        return want
    tables = base_tables(draft.sql, draft.dialect) or frozenset()
    scores.rows_held += await reference.count_rows(org, tables)
    comparison = await judge(reference, org, statement, answer, want)
    if comparison.verdict is Verdict.DIFFERENT:
        scores.faults.append(Fault(org, asked.question.id, comparison.why))
    else:
        scores.equal_to_merged += 1
    return want


def score(question: Question, answer: Answer) -> Outcome:
    """Tell whether an answer is the reference answer, as multisets of normalised rows."""
    abstained = is_abstention(answer)
    if question.unanswerable:
        return "correct" if abstained else "wrong"
    if question.rows is None:
        return "unscored"
    if isinstance(answer, psycopg.Error):
        return "abstained" if abstained else "wrong"
    return "correct" if normal_rows(result_rows(answer)) == normal_rows(question.rows) else "wrong"


def is_abstention(answer: Answer) -> bool:
    """Tell whether the drafter found no safe answer, as against a failure."""
    return isinstance(answer, psycopg.Error) and answer.sqlstate == Unanswerable.sqlstate


def result_rows(result: Result) -> Iterator[tuple[Any, ...]]:
    """Return a result's rows as values that :func:`normal_rows` takes."""
    for row in result.rows:
        yield tuple(
            None if cell is None else _value(cell.decode(), oid)
            for cell, oid in zip(row, result.oids, strict=True)
        )


def normal_rows(rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    """Return rows as a multiset in which equal numbers are equal whatever their type."""
    return Counter(tuple(_normal(value) for value in row) for row in rows)


def _value(text: str, oid: int) -> Any:
    return text == "t" if oid == _BOOLEAN else text


def _normal(value: Any) -> Any:
    """Bring a number to the same value whatever its type, text that is a plain number included.

    Booleans become SQLite's 1 and 0.
    """
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return value
    if not isinstance(value, (str, bool, int, float)):
        return value
    number = float(value)
    return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else str(number)


async def _last_step(served: Served) -> int:
    async with served.admin.connection() as connection:
        found = await connection.execute("SELECT coalesce(max(step), 0) FROM oar.steps")
        row = await found.fetchone()
    return int(row[0]) if row else 0


async def _add_movement(served: Served, after: int, scores: Scores) -> None:
    """Add up what the ledger says left the owners since step ``after``."""
    async with served.admin.connection() as connection:
        found = await connection.execute(
            "SELECT (SELECT coalesce(sum(rows), 0) FROM oar.steps WHERE step > %(after)s), "
            "(SELECT coalesce(sum(keys), 0) FROM oar.disclosures WHERE step > %(after)s)",
            {"after": after},
        )
        row = await found.fetchone()
    if row is not None:
        scores.rows_moved += int(row[0])
        scores.keys_moved += int(row[1])
