"""Asking for joins under each ``oar.reduction``, and adding up what left the owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import psycopg

from oar_bench.fidelity import describe
from oar_bench.fuzz.bed import Bed, enter, open_bed
from oar_bench.fuzz.world import World
from oar_bench.harness import Client, serve
from oar_bench.layout import Benchmark, Organisation, fold
from oar_bench.reduction.joins import AcyclicJoin, Columns, NotAcyclic, Occurrence, read_join
from oar_bench.reduction.shapes import OWNER_KINDS, SHAPES, random_join
from oar_bench.reference import Reference, gold_statement, open_reference

Mode = Literal["full", "forward"]

MODES: Final[tuple[Mode, ...]] = ("full", "forward")

GOAL: Final = 1.0
"""Rows sent for each row that takes part, under ``full``: what the reduction promises."""

JOINS_A_BATCH: Final = 20
"""Joins one application serves: a start is then a small part of a batch's time."""

_SECONDS: Final = 120.0

_KEYS: Final = "keys of "
"""Before what a step reads, where it asks for keys only."""

_GROUPS: Final = ("counts of ", "partial aggregates of ")
"""The same, where it asks for groups of rows."""


@dataclass(slots=True)
class Moved:
    """What left the owners under one mode.

    ``rows`` are rows of tables, ``taking_part`` the least of them that could be sent, where no
    others are read than were; ``groups`` what was sent of tables of which no row was, for groups
    of them were enough; ``key_values`` what was sent where only keys were asked for; ``keys`` were
    put into queries to other owners.
    """

    rows: int = 0
    taking_part: int = 0
    groups: int = 0
    key_values: int = 0
    keys: int = 0
    queries: int = 0
    exact: int = 0
    """Statements for which no row was sent that does not take part."""

    def add(self, other: Moved) -> None:
        """Add another's counts."""
        self.rows += other.rows
        self.taking_part += other.taking_part
        self.groups += other.groups
        self.key_values += other.key_values
        self.keys += other.keys
        self.queries += other.queries
        self.exact += other.exact


@dataclass(slots=True)
class Line:
    """Counts of one family of joins.

    ``rings`` are statements the proxy did not reduce in full, by its own account.
    """

    statements: int = 0
    rows_held: int = 0
    rings: int = 0
    moved: dict[Mode, Moved] = field(default_factory=lambda: {mode: Moved() for mode in MODES})

    def ratio(self, mode: Mode) -> float | None:
        """Rows sent for each row that takes part; None where none does but some were sent."""
        return ratio(self.moved[mode].rows, self.moved[mode].taking_part)

    def add(self, other: Line) -> None:
        """Add another line's counts."""
        self.statements += other.statements
        self.rows_held += other.rows_held
        self.rings += other.rings
        for mode in MODES:
            self.moved[mode].add(other.moved[mode])


@dataclass(frozen=True, slots=True)
class Excess:
    """A statement for which ``full`` sent more rows than take part."""

    line: str
    question: str
    sent: int
    taking_part: int
    why: str


@dataclass(slots=True)
class Measured:
    """Lines by name, what was not exact, and why statements of a benchmark were left out.

    ``owner_kinds`` are those of the random joins' owners.
    """

    lines: dict[str, Line] = field(default_factory=dict)
    excesses: list[Excess] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    owner_kinds: list[str] = field(default_factory=list)

    def line(self, name: str) -> Line:
        """Return the line of this name, new where there is none."""
        return self.lines.setdefault(name, Line())

    def add(self, other: Measured) -> None:
        """Add what was measured elsewhere."""
        for name, line in other.lines.items():
            self.line(name).add(line)
        self.excesses += other.excesses
        self.left_out += other.left_out
        self.failures += other.failures


def ratio(sent: int, taking_part: int) -> float | None:
    """Divide; nothing sent where nothing takes part is exact, something is beyond measure."""
    if taking_part:
        return sent / taking_part
    return None if sent else GOAL


# --- random joins ----------------------------------------------------------------------------


async def measure_shapes(directory: Path, *, seed: int, count: int, rows: int) -> Measured:
    """Measure ``count`` random joins of each shape, tables of up to ``rows`` rows.

    Raises what starting the servers raises, and ``psycopg.Error`` for a statement that fails.
    """
    found = Measured()
    async with open_bed(directory, OWNER_KINDS) as bed:
        found.owner_kinds = [kind for kind in OWNER_KINDS if kind in bed.kinds]
        drawn: list[tuple[str, World, str]] = []
        for shape in SHAPES:
            for number in range(count):
                random = Random(f"{seed}/{shape.name}/{number}")  # noqa: S311 - repeatable
                name = f"join_{len(drawn)}"
                drawn.append(
                    (shape.name, *random_join(random, shape, name, rows, found.owner_kinds))
                )
        for first in range(0, len(drawn), JOINS_A_BATCH):
            await _measure_batch(bed, drawn[first : first + JOINS_A_BATCH], found)
    return found


async def _measure_batch(
    bed: Bed, drawn: Sequence[tuple[str, World, str]], found: Measured
) -> None:
    async with (
        bed.batch([world for _, world, _ in drawn]) as batch,
        batch.served.connection() as client,
        bed.reference() as reference,
    ):
        for shape, world, statement in drawn:
            columns = {t.name: [(c.name, c.type) for c in t.columns] for t in world.tables}
            join = read_join(statement, columns)
            held = {t.name: len(t.rows) for t in world.tables}
            await enter(reference, world, _SECONDS)
            cursor = await reference.execute(join.counting.encode())
            row = await cursor.fetchone()
            assert row is not None
            await enter(client, world, _SECONDS)
            asked = _Asked(shape, world.name, world.name, join, row, held)
            await _measure(found, client, asked)


# --- a benchmark's statements ----------------------------------------------------------------


async def measure_gold(benchmark: Benchmark, directory: Path) -> Measured:
    """Measure the gold statements that are acyclic joins of several owners' tables.

    Raises what starting the servers raises, and :class:`~oar_bench.layout.BenchmarkError`.
    """
    found = Measured()
    organisations = [o for o in benchmark.organisations.values() if o.with_rows]
    async with (
        open_reference(directory / "reference") as reference,
        serve(organisations, directory) as served,
        served.connection() as connection,
    ):
        client = Client(connection)
        for organisation in organisations:
            await reference.load(organisation)
            columns = await _columns(reference, organisation.name)
            for question in benchmark.questions:
                statement = gold_statement(question)
                if question.org != organisation.name or statement is None:
                    continue
                try:
                    join = _of_several_owners(read_join(statement, columns), organisation)
                    counts, held = await _counted(reference, organisation.name, join)
                except NotAcyclic as error:
                    found.left_out[str(error)] += 1
                    continue
                await client.run(organisation.name, "SELECT 1")
                name = f"{benchmark.name}{', composite keys' if join.composite else ''}"
                asked = _Asked(name, question.id, organisation.name, join, counts, held)
                await _measure(found, connection, asked)
    return found


def _of_several_owners(join: AcyclicJoin, organisation: Organisation) -> AcyclicJoin:
    holders = organisation.holders
    if len({owner for o in join.occurrences for owner in holders[o.table]}) < 2:
        raise NotAcyclic("one owner holds all its tables")
    return join


async def _columns(reference: Reference, organisation: str) -> Columns:
    listed = await reference.run(
        organisation,
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position",
    )
    columns: dict[str, list[tuple[str, str]]] = {}
    for row in listed.rows:
        table, column, type_ = (cell.decode() for cell in row if cell is not None)
        columns.setdefault(table, []).append((column, type_))
    return columns


async def _counted(
    reference: Reference, organisation: str, join: AcyclicJoin
) -> tuple[tuple[int, ...], dict[str, int]]:
    try:
        await reference.run(organisation, join.statement)
        answer = await reference.run(organisation, join.counting)
    except psycopg.Error as error:
        raise NotAcyclic("the reference does not run it") from error
    held = {o.table: await reference.count_rows(organisation, [o.table]) for o in join.occurrences}
    return tuple(int(cell or 0) for cell in answer.rows[0]), held


# --- one statement ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """A join with what the reference counted: rows taking part, and rows held by table."""

    line: str
    question: str
    schema: str
    join: AcyclicJoin
    counts: Sequence[int]
    held: Mapping[str, int]

    def read_by(self, steps: Sequence[Mapping[str, Any]]) -> dict[Occurrence, int]:
        """Rows taking part by occurrence, of those that the steps read.

        What the hub's planner proves useless is not read, and cannot take part. Of what is read in
        groups no row leaves.
        """
        read = {step["Reads"] for step in steps}
        counted = zip(self.join.occurrences, self.counts, strict=True)
        return {o: rows for o, rows in counted if _shown(self.schema, o) in read}


async def _measure(found: Measured, client: psycopg.AsyncConnection[Any], asked: _Asked) -> None:
    """Ask for the statement under each mode and add up."""
    line = Line(statements=1)
    kept = False
    for mode in MODES:
        await client.execute(f"SET oar.reduction = '{mode}'".encode())
        try:
            plan = await _run(client, asked.join.statement)
        except psycopg.Error as error:
            found.failures.append(f"{asked.line} {asked.question}: {describe(error)}")
            return
        steps = plan["Steps"]
        taking = asked.read_by(steps)
        line.rows_held = sum(asked.held[o.table] for o in asked.join.occurrences)
        moved = _moved(steps)
        moved.taking_part = sum(taking.values())
        moved.exact = int(moved.rows == moved.taking_part)
        line.moved[mode] = moved
        kept = kept or any("Kept For The Hub" in step for step in steps)
        if moved.rows < moved.taking_part:
            why = "fewer rows were sent than take part"
            found.failures.append(f"{asked.line} {asked.question}: {why}")
            return
        if mode == "full":
            line.rings = int(any("in full" in note for note in plan.get("Notes", ())))
            if not moved.exact:
                found.excesses.append(_excess(asked, plan, moved.rows, moved.taking_part))
    name = f"{asked.line}, filters kept for the hub" if kept else asked.line
    found.line(name).add(line)


async def _run(client: psycopg.AsyncConnection[Any], statement: str) -> dict[str, Any]:
    cursor = await client.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}".encode())
    row = await cursor.fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def _shown(schema: str, occurrence: Occurrence) -> str:
    """The occurrence as EXPLAIN names it."""
    name = f"{schema}.{occurrence.table}"
    return name if occurrence.alias == fold(occurrence.table) else f"{name} {occurrence.alias}"


def _moved(steps: Sequence[Mapping[str, Any]]) -> Moved:
    moved = Moved()
    for step in steps:
        if step["Reads"].startswith(_KEYS):
            moved.key_values += step["Actual Rows"]
        elif step["Reads"].startswith(_GROUPS):
            moved.groups += step["Actual Rows"]
        else:
            moved.rows += step["Actual Rows"]
        moved.keys += step.get("Actual Keys", 0)
        moved.queries += "Skipped" not in step
    return moved


def _excess(asked: _Asked, plan: Mapping[str, Any], sent: int, taking_part: int) -> Excess:
    """Say what stood in the way, as far as the proxy itself or the statement tells."""
    said = list(plan.get("Notes", ()))
    for step in plan["Steps"]:
        said += step.get("Notes", ())
        said += (f"kept for the hub: {text}" for text in step.get("Kept For The Hub", ()))
        said += (f"not reduced on {text}" for text in step.get("Not Reduced", ()))
    why = "; ".join(dict.fromkeys(said)) or "no reason given"
    return Excess(asked.line, asked.question, sent, taking_part, why)
