"""Every gold statement through the proxy, compared with the same statement on merged tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from oar_bench.compare import Verdict
from oar_bench.harness import Client, serve
from oar_bench.layout import Benchmark, BenchmarkError, Organisation, Question
from oar_bench.reference import Reference, gold_statement, judge, open_reference


@dataclass(frozen=True, slots=True)
class Fault:
    """A statement that was not answered as the merged tables answer it. ``why`` is one line."""

    organisation: str
    question: str
    why: str


@dataclass(slots=True)
class Tally:
    """Counts of one organisation. ``equal`` includes ``ties``: answers SQL leaves open."""

    statements: int = 0
    accepted: int = 0
    equal: int = 0
    ties: int = 0
    different: int = 0
    failed: int = 0
    faults: list[Fault] = field(default_factory=list)


async def measure(
    benchmark: Benchmark, organisations: Sequence[Organisation], limit: int | None, directory: Path
) -> dict[str, Tally]:
    """Run up to ``limit`` gold statements of each organisation: organisation → counts.

    An organisation that cannot be merged has a fault and no counts.

    Hub and reference live below ``directory``. Raises what starting them raises.
    """
    tallies = {}
    async with (
        open_reference(directory / "reference") as reference,
        serve(organisations, directory) as served,
        served.client() as client,
    ):
        for organisation in organisations:
            try:
                await reference.load(organisation)
            except BenchmarkError as error:
                why = Fault(organisation.name, "all", str(error))
                tallies[organisation.name] = Tally(faults=[why])
                continue
            asked = [q for q in benchmark.questions if q.org == organisation.name]
            tallies[organisation.name] = await _measure(reference, client, asked[:limit])
    return tallies


async def _measure(reference: Reference, client: Client, questions: Sequence[Question]) -> Tally:
    tally = Tally()
    for question in questions:
        statement = gold_statement(question)
        if question.gold_sql is None and question.gold_sql_postgres is None:
            continue
        tally.statements += 1
        if statement is not None:
            await _check(reference, client, question, statement, tally)
    return tally


async def _check(
    reference: Reference, client: Client, question: Question, statement: str, tally: Tally
) -> None:
    try:
        want = await reference.run(question.org, statement)
    except psycopg.Error:
        return
    tally.accepted += 1
    try:
        got = await client.run(question.org, statement)
    except psycopg.Error as error:
        tally.failed += 1
        tally.faults.append(Fault(question.org, question.id, describe(error)))
        return
    comparison = await judge(reference, question.org, statement, got, want)
    if comparison.verdict is Verdict.DIFFERENT:
        tally.different += 1
        tally.faults.append(Fault(question.org, question.id, comparison.why))
        return
    tally.equal += 1
    tally.ties += comparison.verdict is Verdict.EQUAL_WITH_TIES


def describe(error: psycopg.Error) -> str:
    """Return SQLSTATE and first line of a server's error, or of the client's own."""
    message = error.diag.message_primary or str(error)
    return f"{error.sqlstate or 'no SQLSTATE'}: {message.partition(chr(10))[0]}"
