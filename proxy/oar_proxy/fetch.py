"""Fetching rows from their owner: through the gate, within its cap, kept or passing through.

Whatever becomes of a query goes on the ledger.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from oar_adapters.interface import Adapter, Batch, OwnerError, Query, Scan, Snapshot

from oar_proxy import gate as gates
from oar_proxy.budget import COUNTED_AT_ONCE
from oar_proxy.decision import Checked, Decisions, Grouped, Limit
from oar_proxy.errors import LimitExceeded, OarError, OwnerFault, QueryCanceled
from oar_proxy.gate import Gate
from oar_proxy.ledger import SUCCESS, Ask, StepOutcome
from oar_proxy.memory import Account
from oar_proxy.plan import Step
from oar_proxy.rows import Rows, StepReport
from oar_proxy.slots import OwnerSlots
from oar_proxy.snapshots import Snapshots, owner_fault

if TYPE_CHECKING:
    from oar_adapters.authorized import Authorized

COUNTED_OF_GROUPS: Final = 1_000
"""Rows that a budget counts at a time, and at least, where a policy shows groups and no rows: what
is left of a budget is no way to count those of one group."""

CHUNK_ROWS: Final = 20_000
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""What of a whole statement's rows is held before they begin to pass through. An answer of no
more than that costs no further query."""

CHUNKS_HELD: Final = 12
"""Chunks that a small budget has to have room for: one waits while another one is sent and a third
one collected, and the text of a COPY takes up to three times twice what its rows do."""


@dataclass(frozen=True, slots=True)
class Sending:
    """One authorised query on its way.

    ``step`` None: the whole statement, which gives ``most`` rows, or any number when that is None.
    """

    owner: str
    query: Authorized
    rendered: str
    rows: Rows
    checked: Checked
    step: Step | None = None
    keys: tuple[int | None, ...] = ()
    notes: tuple[str, ...] = ()
    most: int | None = None


@dataclass(frozen=True, slots=True)
class OwnerAccess:
    """What every statement asks owners through. One for the proxy."""

    adapters: Mapping[str, Adapter]
    gate: Gate
    slots: OwnerSlots


@dataclass(frozen=True, slots=True)
class OpenAsk:
    """An ask under way: its ``entry`` on the ledger.

    ``finished`` are outcomes of its steps that are not on the ledger yet. ``progress`` is told
    what happens, in a line each.
    """

    entry: Ask
    finished: list[StepOutcome] = field(default_factory=list)
    progress: Callable[[str], None] = lambda _: None


@dataclass
class Fetcher:
    """What one statement fetches, one query at a time or several.

    With ``give``, rows that are more than a chunk are given away; ``passing``: some were, or are
    about to be.
    """

    access: OwnerAccess
    ask: OpenAsk
    account: Account
    snapshots: Snapshots
    give: Callable[[Rows], Awaitable[None]] | None = None
    passing: bool = False
    broken_off: bool = False

    @property
    def decisions(self) -> Decisions:
        """What the policies say now: another one may be in force than when it was planned."""
        return self.access.gate.decisions(self.ask.entry.subject)

    async def admit(self, wave: Sequence[gates.Step]) -> None:
        """Have the statement counted before anything reaches an owner. Raises as `Gate.admit`."""
        await self.access.gate.admit(self.ask.entry, wave)

    async def authorize(self, wave: Sequence[gates.Step]) -> list[Authorized]:
        """Pass the gate; what finished meanwhile goes on the ledger in the same write.

        Raises what :meth:`Gate.authorize` does.
        """
        if not wave:
            return []
        finished = tuple(self.ask.finished)
        authorized = await self.access.gate.authorize(self.ask.entry, wave, finished)
        del self.ask.finished[: len(finished)]
        return authorized

    def skip(self, owner: str, query: Authorized) -> None:
        """Note that a query need not be sent, for there is no key that could match."""
        self.ask.finished.append(StepOutcome(query.ledger_entry, SUCCESS, 0))
        self.ask.progress(f"owner {owner} is not asked: no key is left")

    async def fetch(self, sending: Sending) -> StepReport:
        """Put the rows of a query behind those of ``sending.rows``. Raises ``OarError``."""
        started = time.perf_counter()  # the loop's own clock may tick in milliseconds
        self.ask.progress(_asking(sending))
        received = await self._noted(sending.query, self._receive(sending))
        if self.broken_off:
            sending = await self._begin_again(sending)
            received = await self._noted(sending.query, self._receive(sending))
        self.ask.progress(f"owner {sending.owner} sent {received} rows")
        return StepReport(
            sending.step,
            sending.owner,
            sending.rendered,
            sending.keys,
            received,
            time.perf_counter() - started,
            sending.notes,
            size=sending.rows.size,
        )

    async def _noted(self, query: Authorized, rows: Coroutine[Any, Any, int]) -> int:
        """Await the rows of a query, and note for the ledger how that ended."""
        started = time.perf_counter_ns()

        def note(sqlstate: str, rows: int | None) -> None:
            microseconds = (time.perf_counter_ns() - started) // 1000
            outcome = StepOutcome(query.ledger_entry, sqlstate, rows, microseconds)
            self.ask.finished.append(outcome)

        try:
            received = await rows
        except OarError as error:
            note(error.sqlstate, None)
            raise
        except asyncio.CancelledError:
            note(QueryCanceled.sqlstate, None)
            raise
        note(SUCCESS, received)
        return received

    async def _receive(self, sending: Sending) -> int:
        cap, most = self.decisions.row_cap(sending.owner), self.decisions.byte_cap(sending.owner)
        rows = sending.rows
        received = size = counted = 0
        budget = self.access.gate.budget(self.ask.entry)
        rules = itertools.chain.from_iterable(sending.checked.values())
        grouped = any(isinstance(rule, Grouped) for rule in rules)

        async def count(at_once: int = 1) -> None:
            nonlocal counted
            due = _in_lumps(received) if grouped else received
            if budget is not None and due - counted >= at_once:
                counted, more = due, due - counted
                await budget.received(more)

        try:
            async with self.snapshots.use(sending.owner) as snapshot:
                async for batch in snapshot.run(sending.query):
                    await count(COUNTED_AT_ONCE)
                    if self.give is not None and self._is_chunk(rows):
                        await count()
                        if not self.passing and not self._interleaves(sending.owner):
                            self.broken_off = True
                            return received
                        await self._pass(sending, snapshot, self.give)
                    _require_whole(batch, sending)
                    received += batch.rows
                    if received > cap.number:
                        raise _too_many_rows(sending, cap)
                    size += rows.add(batch, self.account)
                    if most is not None and size > most.number:
                        raise _too_much(sending, f"{most.number} bytes", most.rule)
        except OwnerError as error:
            raise owner_fault(sending.owner, error) from error
        await count()
        return received

    # --- rows that pass through -----------------------------------------------------------------

    def _is_chunk(self, rows: Rows) -> bool:
        most = min(CHUNK_BYTES, self.account.most // CHUNKS_HELD)
        return rows.count >= CHUNK_ROWS or rows.size >= most

    def _interleaves(self, owner: str) -> bool:
        return self.access.adapters[owner].capabilities.interleaves

    async def _pass(
        self, sending: Sending, snapshot: Snapshot, give: Callable[[Rows], Awaitable[None]]
    ) -> None:
        """Give away the rows that are held, once it is known that none will have to be refused."""
        if not self.passing:
            await self._require_within_cap(sending, snapshot)
            self.passing = True
        with self.snapshots.rest(sending.owner):
            await give(sending.rows.take())

    async def _begin_again(self, sending: Sending) -> Sending:
        """Have an owner that cannot count while it sends count now, and send from the first row."""
        self.account.free(sending.rows.take().size)
        async with self.snapshots.use(sending.owner) as snapshot:
            await self._require_within_cap(sending, snapshot)
        self.passing = True
        again = gates.Step(
            sending.owner, sending.query.query, sending.rendered, checked=sending.checked
        )
        (permit,) = await self.authorize([again])
        return replace(sending, query=permit)

    async def _require_within_cap(self, sending: Sending, snapshot: Snapshot) -> None:
        """Have the owner count, in the same snapshot: a refusal has to come before the first row.

        A statement need not give as many rows twice (rows that tie, sums of floating-point
        numbers), so the cap is watched while they pass as well.
        """
        query = sending.query.query
        cap = self.decisions.row_cap(sending.owner)
        if isinstance(query, Scan):
            counting: Query = replace(query, columns=(), limit=cap.number + 1)
        else:
            if sending.most is not None and sending.most <= cap.number:
                return
            counting = replace(query, limit=cap.number + 1, counted=True)
        rendered = self.access.adapters[sending.owner].render(counting)
        step = gates.Step(sending.owner, counting, rendered, checked=sending.checked)
        (permit,) = await self.authorize([step])
        self.ask.progress(
            f"asking owner {sending.owner} how many rows that is: they pass as they come"
        )
        if await self._noted(permit, self._counted(sending.owner, snapshot, permit)) > cap.number:
            raise _too_many_rows(sending, cap)

    async def _counted(self, owner: str, snapshot: Snapshot, query: Authorized) -> int:
        try:
            return sum([batch.rows async for batch in snapshot.run(query)])
        except OwnerError as error:
            raise owner_fault(owner, error) from error


def _require_whole(batch: Batch, sending: Sending) -> None:
    """Refuse columns of different lengths: the hub would fill the shorter ones up with NULLs."""
    if [len(cells) for cells in batch.columns] != [batch.rows] * len(sending.rows.columns):
        raise OwnerFault(
            f"owner {sending.owner} sent columns that do not make rows",
            hint=f"report it to whoever wrote the adapter of {sending.owner}",
        )


def _in_lumps(rows: int) -> int:
    return max(-(-rows // COUNTED_OF_GROUPS), 1) * COUNTED_OF_GROUPS


def _too_many_rows(sending: Sending, cap: Limit) -> LimitExceeded:
    return _too_much(sending, f"{cap.number} rows", cap.rule)


def _too_much(sending: Sending, most: str, rule: str) -> LimitExceeded:
    step = sending.step
    table = "" if step is None else f" of {step.scan.table.name}"
    reasons = [f"limit {rule}: {most}"]
    hint = "narrow the statement with a condition on that owner's table"
    for edge, verdict in step.denied if step is not None else ():
        origins = ", ".join(f"{o.schema}.{o.table}.{o.column}" for o in edge.origins)
        reasons.append(
            f"edge {origins} to {edge.receiver}.{edge.receiver_table}.{edge.receiver_column} "
            f"would reduce it, and rule {verdict.rule} denies it"
        )
        hint = f"{verdict.remedy}; or {hint}"
    reasons.extend(sending.notes)
    return LimitExceeded(
        f"owner {sending.owner} would send more than {most}{table}: nothing is returned",
        detail="; ".join(reasons),
        hint=hint,
    )


def _asking(sending: Sending) -> str:
    if sending.step is None:
        return f"asking owner {sending.owner} for the whole statement"
    counts = [count for count in sending.keys if count is not None]
    carried = f" with {sum(counts)} keys" if counts else ""
    what = "keys of " if sending.step.stage == "keys" else ""
    return f"asking owner {sending.owner} for {what}{sending.step.scan.table.name}{carried}"
