"""Making a failing case small, and printing it so that it can be run by hand.

The statement is cut at its parse tree, a clause, a condition or an operand at a time; then rows
are taken out of the tables at the owners and at the reference. A cut stays while the two answers
still differ. Nothing is cut that an order or a LIMIT needs to be determined.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from oar_bench.fuzz.bed import Batch, Bed, fill_reference, owner_script
from oar_bench.fuzz.owners import CI, MARIADB_MODE
from oar_bench.fuzz.reductions import NOTHING, Variation
from oar_bench.fuzz.run import Fault, Pair, determined, expected, open_pair
from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.trial import Answer, Failure, difference, hides_an_error
from oar_bench.fuzz.world import Row, Table, World

MAX_TRIES: Final = 600
"""Statements tried for one case: a few seconds."""

_FIRST: Final = {"icu": (CI,), "mariadb": (f"SET sql_mode = '{MARIADB_MODE}'",)}
"""What a kind of owner needs before its tables."""


async def shrink(bed: Bed, fault: Fault) -> Fault:
    """Return the smallest case found that still differs; the fault itself where none does."""
    async with bed.batch([fault.world]) as batch, open_pair(bed, batch) as pair:
        shrinker = _Shrinker(fault, batch, pair)
        await pair.enter(fault.world)
        if not await shrinker.differs(fault.case):
            return fault
        await shrinker.cut_statement()
        await shrinker.cut_rows()
        return shrinker.fault


class _Shrinker:
    def __init__(self, fault: Fault, batch: Batch, pair: Pair) -> None:
        self.fault = fault
        self.batch = batch
        self.pair = pair
        self.tries = MAX_TRIES

    async def differs(self, case: Case) -> bool:
        """Try a case; keep it where it differs."""
        self.tries -= 1
        want = await expected(self.pair.reference, case)
        if want is None:
            return False
        async for variation, got in self._answers(case):
            why = difference(case, got, want)
            if why is None or hides_an_error(got, want) or _both_fail(got, want):
                continue
            if not await determined(self.pair.reference, case, want):
                return False
            world = self.fault.world
            self.fault = Fault(world, case, why, tuple(got), tuple(want), variation)
            return True
        return False

    async def _answers(self, case: Case) -> AsyncIterator[tuple[Variation | None, list[Answer]]]:
        """Ask in the fault's way, or in all of its kind: another case has other reductions."""
        own = self.fault.variation
        if own is None or own.kind not in ("without", "only"):
            yield own, await self.pair.ask(case, own)
            return
        await self.pair.ask(case, NOTHING)
        for name in self.pair.reductions():
            variation = replace(own, what=name)
            yield variation, await self.pair.ask(case, variation)

    async def cut_statement(self) -> None:
        """Cut the statement down until no single cut leaves the difference."""
        plain = replace(self.fault.case, mode="simple", arguments=((),))
        if not any(self.fault.case.arguments):
            await self.differs(plain)
        cutting = True
        while cutting and self.tries > 0:
            cutting = False
            for sql in _cuts(self.fault.case.sql):
                if self.tries <= 0:
                    break
                if await self.differs(replace(self.fault.case, sql=sql)):
                    cutting = True
                    break
        named = [t.name for t in self.fault.world.tables if t.name not in self.fault.case.sql]
        self.fault = replace(self.fault, world=self.fault.world.without(named))

    async def cut_rows(self) -> None:
        """Take rows out, in halves and then one by one."""
        for table in self.fault.world.tables:
            for owner in table.held:
                size = max(1, len(table.held[owner]) // 2)
                while size and self.tries > 0:
                    size = await self._cut_rows_of(table.name, owner, size)

    async def _cut_rows_of(self, name: str, owner: str, size: int) -> int:
        """Take out each run of ``size`` rows that is not needed; return the next size."""
        place = 0
        while self.tries > 0:
            table = self.fault.world.table(name)
            rows = table.held[owner]
            if place >= len(rows):
                break
            if not await self._differs_with(table, owner, rows[:place] + rows[place + size :]):
                place += size
        return size // 2

    async def _differs_with(self, table: Table, owner: str, rows: tuple[Row, ...]) -> bool:
        before = self.fault
        smaller = replace(table, held={**table.held, owner: rows})
        await self._put(self._with(smaller), smaller, owner)
        if await self.differs(before.case):
            self.fault = replace(self.fault, world=self._with(smaller))
            return True
        await self._put(before.world, table, owner)
        return False

    def _with(self, table: Table) -> World:
        world = self.fault.world
        tables = tuple(table if t.name == table.name else t for t in world.tables)
        return replace(world, tables=tables)

    async def _put(self, world: World, table: Table, owner: str) -> None:
        await self.batch.replace_rows(world, table, owner, table.held[owner])
        await self.pair.reference.execute("RESET search_path")
        await fill_reference(self.pair.reference, world)
        await self.pair.enter(world)


def _both_fail(got: list[Answer], want: list[Answer]) -> bool:
    return isinstance(got[0], Failure) and isinstance(want[0], Failure)


def _cuts(sql: str) -> Iterator[str]:
    """Yield the statement with one thing less, the largest things first."""
    try:
        tree = sqlglot.parse_one(sql, read="postgres")
    except (SqlglotError, RecursionError):
        return
    for place, node in enumerate(tree.bfs()):
        for change in range(_changes(node)):
            copy = tree.copy()
            other = next(n for i, n in enumerate(copy.bfs()) if i == place)
            changed = _changed(other, change)
            if changed is None:
                continue
            result = changed if other is copy else copy
            try:
                yield result.sql(dialect="postgres")
            except SqlglotError:
                continue


def _changes(node: exp.Expr) -> int:
    if isinstance(node, exp.Select):
        return 4 + len(node.args.get("joins") or ()) + len(node.expressions)
    if isinstance(node, (exp.SetOperation, exp.And, exp.Or)):
        return 2
    return 1 if isinstance(node, (exp.Predicate, exp.Not, exp.Case, exp.Subquery)) else 0


def _changed(node: exp.Expr, change: int) -> exp.Expr | None:
    """Apply one change to a node in place, and return what stands there now."""
    if isinstance(node, exp.Select):
        return _less_of_select(node, change)
    if isinstance(node, (exp.SetOperation, exp.And, exp.Or)):
        return _replaced(node, node.right if change else node.left)
    if isinstance(node, exp.Subquery):
        inner = node.this
        if node.find_ancestor(exp.From, exp.Join) is None and isinstance(inner, exp.Query):
            return _replaced(node, exp.null())
        return None
    return _replaced(node, node.this if isinstance(node, exp.Not) else exp.true())


def _replaced(node: exp.Expr, other: exp.Expr) -> exp.Expr:
    if node.parent is None:
        return other.copy()
    node.replace(other.copy())
    return other


def _less_of_select(node: exp.Select, change: int) -> exp.Expr | None:
    # An order goes with the LIMIT it determines, and with DISTINCT ON.
    clauses = (("where",), ("having",), ("order", "limit", "offset", "distinct"), ("with_",))
    if change < len(clauses):
        if not any(node.args.get(name) for name in clauses[change]):
            return None
        for name in clauses[change]:
            node.set(name, None)
        return node
    lists = ("joins", "expressions")
    place = change - len(clauses)
    for name in lists:
        items = node.args.get(name) or []
        if place < len(items):
            if name == "expressions" and len(items) == 1:
                return None
            node.set(name, [item for i, item in enumerate(items) if i != place])
            return node
        place -= len(items)
    return None


def script(fault: Fault) -> str:
    """Write a fault as text: what each owner holds, the statement, and both answers."""
    world, lines = fault.world, []
    for owner, kind in world.owners.items():
        statements = owner_script(world, owner)
        if statements:
            lines.append(f"-- owner {owner} ({kind}), published in schema {world.name}")
            policy = world.policies.get(owner, "").splitlines()
            lines += [f"-- policy: {line}" for line in policy]
            lines += [f"{statement};" for statement in (*_FIRST.get(kind, ()), *statements)]
    lines.append(f"SET search_path = {world.name};")
    lines += [f"SET {name} = '{value}';" for name, value in world.settings.items()]
    if fault.variation is not None:
        setting = fault.variation.kind == "SET"
        lines.append(f"{fault.variation};" if setting else f"-- asked {fault.variation}")
    lines.append(f"-- sent as: {fault.case.mode}; differs: {fault.why}")
    lines.append(f"{fault.case.sql};")
    lines += [f"-- with parameters {given}" for given in fault.case.arguments if given]
    for name, answers in (("proxy", fault.got), ("reference", fault.want)):
        for answer in answers:
            lines += [f"-- {name}: {line}" for line in _spelled(answer)]
    return "\n".join(lines)


def _spelled(answer: Answer) -> list[str]:
    if isinstance(answer, Failure):
        return [f"error {answer.sqlstate}: {answer.text}"]
    return [f"{len(answer.rows)} rows", *(_row(row) for row in answer.rows[:20])]


def _row(row: tuple[bytes | None, ...]) -> str:
    return " | ".join("NULL" if cell is None else cell.decode() for cell in row)
