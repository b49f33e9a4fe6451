"""Each statement that joins several owners, asked under random policies of theirs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
from oar_policies.names import split_name
from oar_policies.parse import parse_policy
from oar_proxy.catalog import Catalog
from psycopg import sql

from oar_bench.compare import Verdict
from oar_bench.fidelity import describe
from oar_bench.harness import ALLOW_ALL, Served, serve
from oar_bench.layout import Benchmark, BenchmarkError, Organisation
from oar_bench.policies.drawn import (
    PURPOSES,
    Column,
    Disclosed,
    Drawn,
    Values,
    View,
    draw,
    fault,
    in_groups,
    put_out,
    tables_read,
    views,
)
from oar_bench.reference import Reference, gold_statement, judge, open_reference
from oar_bench.result import Result, fetch

DECISIONS: Final = ("as allowed", "turned round", "fewer edges", "forced fan-out", "refused")
"""What policies made of a statement that relays keys where everything is allowed."""

REFUSALS: Final = ("42501", "54000")

_SOME: Final = 20
"""Values of a column that rows are filtered and masked by."""

_DIGESTED: Final = re.compile(r'oar_hmac\(\?, \w+\."((?:[^"]|"")+)"\)')
"""Columns that an SQLite owner compares with digests, in what it is asked."""

_RULE: Final = re.compile(r"(?:rule|limit) \S*?(\w+)(?:\[\d+\])?(?=[ :;]|$)")
"""The field of a policy, or of the proxy's limits, in an error's detail."""

_GIVER: Final = re.compile(r"(?:^|, )([a-z_][a-z0-9_]*): ")
"""The owners in what EXPLAIN says of where keys come from: ``owner: schema.table.column, …``."""

Edge = tuple[str, str]
"""The owners that keys come from and go to."""


@dataclass(slots=True)
class Decided:
    """Counts over statements, each under several policies.

    ``viewed`` are equal answers over tables with a row filter or a mask.
    ``against`` are disclosures that a policy forbids, and outputs of columns; ``refusals`` are by
    SQLSTATE, ``refused_by`` by the field of the rule or limit. ``faults`` have one line each.
    """

    statements: int = 0
    asked: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    refused_by: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    equal: int = 0
    viewed: int = 0
    disclosures: int = 0
    keys: int = 0
    against: int = 0
    faults: list[str] = field(default_factory=list)


async def measure(
    benchmark: Benchmark,
    organisations: Sequence[Organisation],
    *,
    policies: int,
    seed: int,
    limit: int | None,
    directory: Path,
) -> dict[str, Decided]:
    """Ask statements under so many draws of policies each: organisation → counts.

    Those are left out that the merged tables do not answer, and that relay nothing where everything
    is allowed. Raises what starting hub and reference raises.
    """
    found: dict[str, Decided] = {}
    async with (
        open_reference(directory / "reference") as reference,
        serve(organisations, directory) as served,
        served.connection() as connection,
    ):
        for organisation in organisations:
            try:
                await reference.load(organisation)
            except BenchmarkError:
                continue
            bed = _Bed(served, connection, reference, organisation.name)
            statements = list(_statements(benchmark, organisation))[:limit]
            found[organisation.name] = await bed.measure(statements, policies, seed)
    return found


def _statements(benchmark: Benchmark, organisation: Organisation) -> Iterator[tuple[str, str]]:
    for question in benchmark.questions:
        if question.org != organisation.name or (question.kappa or 2) < 2:
            continue
        statement = gold_statement(question)
        if statement is not None:
            yield question.id, statement


@dataclass(frozen=True, slots=True)
class _Asking:
    """A statement under one draw of policies; ``freely`` are its edges where all is allowed.

    ``views``: what they leave of the tables that it reads.
    """

    name: str
    statement: str
    policies: Mapping[str, Drawn]
    purpose: str | None
    freely: frozenset[Edge]
    want: Result
    views: Mapping[str, View]


@dataclass
class _Bed:
    served: Served
    connection: psycopg.AsyncConnection[Any]
    reference: Reference
    organisation: str
    decided: Decided = field(default_factory=Decided)
    viewed: bool = False
    """Whether less is published of some tables than their owners have."""

    async def measure(
        self, statements: Sequence[tuple[str, str]], policies: int, seed: int
    ) -> Decided:
        path = sql.SQL("SET search_path = {}, public").format(sql.Identifier(self.organisation))
        await self.connection.execute(path)
        columns = _columns(self.served.application.catalog, self.organisation)
        for name, statement in statements:
            await self._enforce(dict.fromkeys(columns, ALLOW_ALL))
            try:
                want = await self.reference.run(self.organisation, statement)
                freely = await self._edges(statement)
            except psycopg.Error:
                continue
            if not freely:
                continue
            self.decided.statements += 1
            tables = {table for held in columns.values() for table, _ in held}
            read = tables_read(statement) & tables
            values = await self._values(columns, read)
            for number in range(policies):
                random = Random(f"{seed}:{self.organisation}:{name}:{number}")  # noqa: S311
                drawn = draw(random, columns, values)
                asking = _Asking(
                    f"{name}:{number}",
                    statement,
                    drawn,
                    random.choice([None, *PURPOSES]),
                    freely,
                    want,
                    views(drawn, read),
                )
                await self._ask(asking)
        await self._enforce(dict.fromkeys(columns, ALLOW_ALL))
        return self.decided

    async def _ask(self, asking: _Asking) -> None:
        decided, name, statement = self.decided, asking.name, asking.statement
        texts = {owner: policy.text for owner, policy in asking.policies.items()}
        await self._enforce(texts, viewed=bool(asking.views))
        await self.connection.execute(
            "SELECT set_config('oar.purpose', %s, false)", [asking.purpose or ""]
        )
        decided.asked += 1
        before = await self._last_step()
        digested: frozenset[tuple[str, str]] = frozenset()
        try:
            edges = await self._edges(statement)
            digested = await self._digested(statement)
            got = await fetch(self.connection, statement)
        except psycopg.Error as error:
            state = error.sqlstate or "none"
            decided.decisions["refused"] += 1
            decided.refusals[state] += 1
            rule = _RULE.search(error.diag.message_detail or "")
            decided.refused_by[rule[1] if rule else "other"] += 1
            if state not in REFUSALS and state != await self._failure(asking):
                self._fault(name, describe(error))
        else:
            decided.decisions[_decision(asking.freely, edges)] += 1
            decided.answered += 1
            await self._judge(asking, got)
        for disclosed in await self._disclosed(before, digested):
            decided.disclosures += 1
            decided.keys += disclosed.keys
            against = fault(asking.policies, disclosed, asking.purpose)
            if against is not None:
                decided.against += 1
                self._fault(name, f"disclosed against the policy: {against}: {disclosed}")

    async def _judge(self, asking: _Asking, got: Result) -> None:
        """Compare an answer with the merged tables', of which policies may show less."""
        statement = in_groups(asking.policies, asking.statement)
        if statement is None:
            self.decided.against += 1
            self._fault(asking.name, "answered though it shows more than groups")
            return
        organisation = await self._seen(asking)
        want = asking.want
        if statement != asking.statement or organisation != self.organisation:
            try:
                want = await self.reference.run(organisation, statement)
            except psycopg.Error as error:
                self._fault(asking.name, f"answered, and PostgreSQL says: {error.sqlstate}")
                return
        comparison = await judge(self.reference, organisation, statement, got, want)
        if comparison.verdict is Verdict.DIFFERENT:
            self._fault(asking.name, comparison.why)
        else:
            self.decided.equal += 1
            self.decided.viewed += organisation != self.organisation
        origins = await self.reference.origins(self.organisation, asking.statement)
        column = put_out(asking.policies, origins)
        if column is not None:
            self.decided.against += 1
            self._fault(asking.name, f"put out against the policy: {column}")

    async def _seen(self, asking: _Asking) -> str:
        """Return the schema with what is left of the tables that a statement reads."""
        if not asking.views:
            return self.organisation
        name = f"{self.organisation} seen"
        await self.reference.new_schema(name)
        for table, view in asking.views.items():
            await self.reference.copy(self.organisation, name, table, view.condition, view.masks)
        return name

    async def _failure(self, asking: _Asking) -> str | None:
        """Return the SQLSTATE that the statement ends with over what is left of the tables."""
        try:
            await self.reference.run(await self._seen(asking), asking.statement)
        except psycopg.Error as error:
            return error.sqlstate
        return None

    async def _values(
        self, columns: Mapping[str, Sequence[Column]], read: frozenset[str]
    ) -> Values:
        """Return values of the columns of tables that a statement reads."""
        found: dict[Column, list[str]] = {}
        for table, column in sorted({c for held in columns.values() for c in held}):
            if table in read:
                some = await self.reference.values(self.organisation, table, column, _SOME)
                short = [v for v in some if v.isprintable() and len(v) <= _SOME and "\\" not in v]
                if short:
                    found[table, column] = short
        return found

    async def _digested(self, statement: str) -> frozenset[tuple[str, str]]:
        """Return owners and columns that digests are looked up in, by what owners are asked."""
        cursor = await self.connection.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode())
        ((document,),) = await cursor.fetchall()
        return frozenset(
            (step["Owner"], name.replace('""', '"').lower())
            for step in document[0]["Plan"]["Steps"]
            for name in _DIGESTED.findall(step["SQL"])
        )

    def _fault(self, name: str, why: str) -> None:
        self.decided.faults.append(f"{self.organisation} {name}: {why}")

    async def _enforce(self, texts: Mapping[str, str], *, viewed: bool = False) -> None:
        """Put policies in force; those of other organisations' owners stay open."""
        gate = self.served.application.owner_queries.access.gate
        owners = self.served.application.owner_queries.access.adapters
        gate.replace_policies(
            {
                owner: parse_policy(texts.get(owner, ALLOW_ALL), owner=owner, source=owner)
                for owner in owners
            }
        )
        if viewed or self.viewed:
            await self.served.application.refresh()
        self.viewed = viewed

    async def _edges(self, statement: str) -> frozenset[Edge]:
        cursor = await self.connection.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode())
        ((document,),) = await cursor.fetchall()
        return frozenset(
            (giver, step["Owner"])
            for step in document[0]["Plan"]["Steps"]
            for key in step.get("Keys", ())
            for giver in _GIVER.findall(key["From"])
            if giver != step["Owner"]
        )

    async def _last_step(self) -> int:
        async with self.served.admin.connection() as admin:
            cursor = await admin.execute("SELECT coalesce(max(step), 0) FROM oar.steps")
            ((step,),) = await cursor.fetchall()
            return int(step)

    async def _disclosed(
        self, before: int, digested: frozenset[tuple[str, str]]
    ) -> list[Disclosed]:
        async with self.served.admin.connection() as admin:
            cursor = await admin.execute(
                "SELECT from_owner, from_column, to_owner, to_column, keys FROM oar.disclosures"
                " WHERE step > %s",
                [before],
            )
            return [
                Disclosed(
                    giver,
                    _last_two(column),
                    receiver,
                    _last_two(received),
                    keys,
                    (receiver, _last_two(received)[1]) in digested,
                )
                for giver, column, receiver, received, keys in await cursor.fetchall()
            ]


def _decision(freely: frozenset[Edge], edges: frozenset[Edge]) -> str:
    if edges == freely:
        return "as allowed"
    if not edges:
        return "forced fan-out"
    turned = {(receiver, giver) for giver, receiver in edges - freely}
    return "turned round" if turned & freely else "fewer edges"


def _columns(catalog: Catalog, organisation: str) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for table in catalog.tables.values():
        if table.schema == organisation:
            for owner in table.owners:
                found.setdefault(owner, []).extend((table.name, c.name) for c in table.columns)
    return found


def _last_two(name: str) -> Column:
    *_, table, column = split_name(name)
    return table, column
