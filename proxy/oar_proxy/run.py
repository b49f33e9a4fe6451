"""Running a plan: each step as early as its keys allow, through the gate, in one snapshot an owner.

Never a subset (decision 5): a cap that is reached, an owner that fails or a deadline that passes
fails the statement. Everything in flight is cancelled then, and every snapshot closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg.errors
from oar_adapters.interface import (
    Adapter,
    Batch,
    KeyFilter,
    OwnerError,
    OwnerErrorKind,
    Packed,
    Partial,
    Query,
    Scan,
    Snapshot,
    base_type,
)

from oar_proxy import gate as gates
from oar_proxy.edges import UsedEdge
from oar_proxy.errors import (
    LimitExceeded,
    OarError,
    OwnerDataException,
    OwnerFault,
    OwnerSchemaChanged,
    OwnerUnreachable,
    OwnerWrongValue,
    QueryCanceled,
)
from oar_proxy.gate import Gate
from oar_proxy.keys import all_keys, distinct_keys, widened_keys
from oar_proxy.ledger import SUCCESS, Ask, StepOutcome
from oar_proxy.memory import Account
from oar_proxy.plan import Plan, Step, bound_scan, key_filter
from oar_proxy.sql.tree import most_rows

if TYPE_CHECKING:
    from oar_adapters.authorized import Authorized

_DATA_EXCEPTION: Final = "22"
"""The class of SQLSTATEs that are about values."""

WHOLE: Final = 0
"""The number of a whole statement's rows, where occurrences count from 1."""

CHUNK_ROWS: Final = 20_000
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""What of a whole statement's rows is held before they begin to pass through. An answer of no
more than that costs no further query."""


CHUNKS_HELD: Final = 12
"""Chunks that a small budget has to have room for: one waits while another one is sent and a third
one collected, and the text of a COPY takes up to three times twice what its rows do."""


@dataclass(slots=True)
class Rows:
    """Rows of one owner (or several), column by column, each column in the chunks that came.

    Of a counted scan they are groups: behind the columns that have ``names`` come the others of
    ``Scan.outputs``, and ``partials`` are the scan's (None: they are rows).
    """

    names: tuple[str, ...]
    columns: list[list[Packed]] = field(repr=False)
    count: int = 0
    size: int = 0
    """Bytes of all cells."""
    partials: tuple[Partial, ...] | None = None

    def add(self, batch: Batch, account: Account) -> None:
        """Put a batch behind the others. Raises what :meth:`Account.hold` does."""
        packed = [Packed.of(cells) for cells in batch.columns]
        size = sum(len(cells.elements) for cells in packed)
        account.hold(size)
        for column, cells in zip(self.columns, packed, strict=True):
            column.append(cells)
        self.count += batch.rows
        self.size += size

    def take(self) -> Rows:
        """Give away what was collected so far, and begin anew."""
        taken = replace(self)
        self.columns, self.count, self.size = [[] for _ in self.names], 0, 0
        return taken


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, for EXPLAIN ANALYZE.

    ``keys`` went along each of the step's edges; None: it was left out. ``size`` is that of the
    cells it brought, in bytes.
    """

    step: Step | None
    owner: str
    sql: str
    keys: tuple[int | None, ...]
    rows: int
    seconds: float
    notes: tuple[str, ...] = ()
    skipped: bool = False
    size: int = 0


@dataclass(slots=True)
class Gathered:
    """All rows that came back, by occurrence, each owner's apart."""

    rows: dict[int, list[Rows]] = field(default_factory=dict)
    reports: list[StepReport] = field(default_factory=list)

    def of(self, occurrence: int) -> Rows:
        """The rows of all holders of an occurrence together; none for one that was not read."""
        parts = self.rows.get(occurrence, [])
        if not parts:
            return Rows((), [])
        columns = [
            [c for part in parts for c in part.columns[i]] for i in range(len(parts[0].columns))
        ]
        count = sum(part.count for part in parts)
        return Rows(parts[0].names, columns, count, partials=parts[0].partials)


class OwnerSlots:
    """Places for statements at owners, as many as an owner's adapter holds snapshots.

    A statement takes its places at all its owners before it opens a snapshot, in the order of
    their names: two statements that each wait for what the other holds would wait for ever.
    """

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        self._adapters = adapters
        self._places: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def hold(self, owners: Iterable[str]) -> AsyncIterator[None]:
        """Hold one place at each of some owners."""
        async with AsyncExitStack() as stack:
            for owner in sorted(set(owners)):
                if owner not in self._places:
                    size = self._adapters[owner].capabilities.snapshots
                    self._places[owner] = asyncio.Semaphore(size)
                await stack.enter_async_context(self._places[owner])
            yield


async def run(
    plan: Plan,
    ask: Ask,
    *,
    slots: OwnerSlots,
    adapters: Mapping[str, Adapter],
    gate: Gate,
    account: Account,
    seconds: float,
    progress: Callable[[str], None],
    finished: list[StepOutcome],
    held: AsyncExitStack,
    give: Callable[[Rows], Awaitable[None]] | None = None,
    written: Sequence[gates.BoundEdge] = (),
) -> Gathered:
    """Ask the owners; ``seconds`` is for all of it. Raises ``OarError``.

    ``written`` are keys that the statement itself has as constants, where it asks one owner only:
    each of its queries counts as carrying them.

    Snapshots and places at owners are entered on ``held``, which the caller closes, on every path.
    Outcomes of steps that are not on the ledger yet are left in ``finished``, also on failure.
    With ``give``, which is for a plan of one query, rows that are more than a chunk are given away
    in chunks, as they come; what is returned is the last chunk then. It returns when there is room
    for more.
    """
    runner = _Runner(
        plan, slots, adapters, gate, ask, account, seconds, progress, finished, held, give,
        tuple(written),
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            return await runner.run()
    except TimeoutError as error:
        what = "its rows did not all pass" if runner.passing else "the owners did not answer"
        raise QueryCanceled(
            f"canceling statement: {what} within {seconds:g} s",
            detail="limit: statement_timeout of the session or of the proxy",
            hint="ask for less, or raise statement_timeout",
        ) from error


@dataclass
class _Runner:
    plan: Plan
    slots: OwnerSlots
    adapters: Mapping[str, Adapter]
    gate: Gate
    ask: Ask
    account: Account
    seconds: float
    progress: Callable[[str], None]
    finished: list[StepOutcome]
    held: AsyncExitStack
    give: Callable[[Rows], Awaitable[None]] | None = None
    written: tuple[gates.BoundEdge, ...] = ()
    passing: bool = False
    broken_off: bool = False
    gathered: Gathered = field(default_factory=Gathered)
    rows: dict[int, Rows] = field(default_factory=dict)

    async def run(self) -> Gathered:
        try:
            await self.held.enter_async_context(self.slots.hold(self._owners()))
            self.sessions = _Sessions(self.held, self.adapters, self.gate, self.seconds)
            if self.plan.whole is not None:
                await self._run_whole()
            else:
                await self._run_steps()
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures
        return self.gathered

    def _owners(self) -> set[str]:
        if self.plan.whole is not None:
            return {self.plan.whole.owner}
        return {step.owner for step in self.plan.steps}

    async def _authorize(self, wave: Sequence[gates.Step]) -> list[Authorized]:
        """Pass the gate; what finished meanwhile goes on the ledger in the same write."""
        if not wave:
            return []
        finished = tuple(self.finished)
        authorized = await self.gate.authorize(self.ask, wave, finished)
        del self.finished[: len(finished)]
        return authorized

    # --- whole statements -----------------------------------------------------------------------

    async def _run_whole(self) -> None:
        whole, query = self.plan.whole, self.plan.whole_query
        assert whole is not None
        assert query is not None
        rendered = self.adapters[whole.owner].render(query)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sessions.warm(whole.owner))
            step = gates.Step(whole.owner, query, rendered, self.written)
            (authorized,) = await self._authorize([step])
        names = tuple(output.name for output in query.outputs)
        rows = Rows(names, [[] for _ in names])
        self.gathered.rows[WHOLE] = [rows]
        await self._send(_Sending(whole.owner, authorized, rendered, rows))

    # --- steps --------------------------------------------------------------------------------

    async def _run_steps(self) -> None:
        for step in self.plan.steps:
            scan = step.scan
            names = tuple(c.name for c in scan.columns)
            partials = scan.partials if scan.counted else None
            self.rows[step.number] = Rows(names, [[] for _ in scan.outputs], partials=partials)
            if step.stage == "rows":
                self.gathered.rows.setdefault(step.occurrence, []).append(self.rows[step.number])
        waiting = list(self.plan.steps)
        unfinished = Counter((step.occurrence, step.stage) for step in waiting)
        running: dict[asyncio.Task[None], Step] = {}
        warming: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while waiting or running:
                ready = [s for s in waiting if not any(unfinished[o] for o in s.sources)]
                waiting = [s for s in waiting if s not in ready]
                started, skipped = await self._start(group, ready)
                running.update(started)
                unfinished.subtract((step.occurrence, step.stage) for step in skipped)
                if running and not skipped:
                    # The owners of later steps open theirs while the keys are on their way.
                    for owner in {step.owner for step in waiting} - warming.keys():
                        warming[owner] = group.create_task(self.sessions.warm(owner))
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    ended = [running.pop(task) for task in done]
                    unfinished.subtract((step.occurrence, step.stage) for step in ended)
            for task in warming.values():
                task.cancel()  # of an owner that need not be asked after all

    async def _start(
        self, group: asyncio.TaskGroup, ready: Sequence[Step]
    ) -> tuple[dict[asyncio.Task[None], Step], list[Step]]:
        """Authorise a wave and send it. Steps with no key at all are skipped."""
        bound = [(step, *self._bind(step)) for step in ready]
        wave: list[gates.Step] = []
        for step, query, edges, _ in bound:
            rendered = self.adapters[step.owner].render(query)
            carried = (*itertools.chain.from_iterable(edges), *self.written)
            wave.append(gates.Step(step.owner, query, rendered, carried))
        for gated in wave:
            if not _pointless(gated):
                group.create_task(self.sessions.warm(gated.owner))
        authorized = await self._authorize(wave)
        started: dict[asyncio.Task[None], Step] = {}
        skipped: list[Step] = []
        for (step, _, edges, notes), gated, permit in zip(bound, wave, authorized, strict=True):
            keys = tuple(sum(each.keys for each in edge) if edge else None for edge in edges)
            if _pointless(gated):
                # R32: no key can match, so no row can matter; the step is on the ledger.
                self.finished.append(StepOutcome(permit.ledger_entry, SUCCESS, 0))
                self.gathered.reports.append(
                    StepReport(step, step.owner, gated.rendered, keys, 0, 0.0, notes, True)
                )
                self.progress(f"owner {step.owner} is not asked: no key is left")
                skipped.append(step)
                continue
            sending = self._send(
                _Sending(
                    step.owner, permit, gated.rendered, self.rows[step.number], step, keys, notes
                )
            )
            started[group.create_task(sending)] = step
        return started, skipped

    def _bind(
        self, step: Step
    ) -> tuple[Scan, tuple[tuple[gates.BoundEdge, ...], ...], tuple[str, ...]]:
        """Collect the keys of each edge, column by column.

        An edge with more keys than allowed is left out. Of a composite one each column is tried by
        itself first: it may have fewer different values.
        """
        edges: list[tuple[gates.BoundEdge, ...]] = []
        notes: list[str] = []
        budget = self.gate.keys_in(step.owner)

        def bound(used: UsedEdge) -> Iterator[tuple[KeyFilter, tuple[gates.BoundEdge, ...]]]:
            nonlocal budget
            columns, limit = used.columns, used.limit
            keys, from_each = self._keys(columns)
            count = len(keys[0])
            most = min(limit.max_keys, budget // len(columns))
            if count > most:
                instead = "each column by itself" if used.also else "asked without them"
                notes.append(
                    f"{_spell(used)} carries {count} keys, at most {most} by "
                    f"{limit.limit_rule}: {instead}"
                )
                for column in columns if used.also else ():
                    yield from bound(column)
                return
            budget -= count * len(columns)
            yield (
                key_filter(columns, keys),
                tuple(gates.BoundEdge(column.edge, count, from_each) for column in columns),
            )

        def bind(used: UsedEdge) -> list[KeyFilter]:
            found = list(bound(used))
            edges.append(tuple(edge for _, carried in found for edge in carried))
            return [filter_ for filter_, _ in found]

        return bound_scan(step, bind), tuple(edges), tuple(notes)

    def _keys(
        self, columns: Sequence[UsedEdge]
    ) -> tuple[Sequence[tuple[bytes, ...]], tuple[int, ...]]:
        """The distinct keys without NULL (R1, R36), and how many each origin holds of them.

        A tuple for each column, in the type it is compared in (R41); those at one place are of one
        row.
        """
        stage = columns[0].stage
        found: list[Sequence[tuple[bytes, ...]]] = []
        for sources in zip(*(column.sources for column in columns), strict=True):
            for step in self.plan.steps:
                if (step.occurrence, step.stage) != (sources[0].occurrence, stage):
                    continue
                rows = self.rows[step.number]
                indexes = [rows.names.index(source.column) for source in sources]
                held = distinct_keys([rows.columns[index] for index in indexes])
                types = (base_type(step.scan.columns[index].type) for index in indexes)
                found.append(
                    [
                        widened_keys(cells, type_, column.type)
                        for cells, type_, column in zip(held, types, columns, strict=True)
                    ]
                )
        return all_keys(found), tuple(len(each[0]) for each in found)

    # --- one query ----------------------------------------------------------------------------

    async def _send(self, sending: _Sending) -> None:
        started = time.perf_counter()  # the loop's own clock may tick in milliseconds
        self.progress(_asking(sending))
        received = await self._noted(sending.query, self._receive(sending))
        if self.broken_off:
            sending = await self._begin_again(sending)
            received = await self._noted(sending.query, self._receive(sending))
        self.gathered.reports.append(
            StepReport(
                sending.step,
                sending.owner,
                sending.rendered,
                sending.keys,
                received,
                time.perf_counter() - started,
                sending.notes,
                size=sending.rows.size,
            )
        )
        self.progress(f"owner {sending.owner} sent {received} rows")

    async def _noted(self, query: Authorized, rows: Coroutine[Any, Any, int]) -> int:
        """Await the rows of a query, and note for the ledger how that ended."""
        try:
            received = await rows
        except OarError as error:
            self.finished.append(StepOutcome(query.ledger_entry, error.sqlstate, None))
            raise
        except asyncio.CancelledError:
            self.finished.append(StepOutcome(query.ledger_entry, QueryCanceled.sqlstate, None))
            raise
        self.finished.append(StepOutcome(query.ledger_entry, SUCCESS, received))
        return received

    async def _receive(self, sending: _Sending) -> int:
        cap, rule = self.gate.row_cap(sending.owner)
        rows = sending.rows
        received = 0
        try:
            async with self.sessions.use(sending.owner) as snapshot:
                async for batch in snapshot.run(sending.query):
                    if self.give is not None and self._is_chunk(rows):
                        if not self.passing and not self._interleaves(sending.owner):
                            self.broken_off = True
                            return received
                        await self._pass(sending, snapshot, self.give)
                    received += batch.rows
                    if received > cap:
                        raise _too_many_rows(sending, cap, rule)
                    rows.add(batch, self.account)
        except OwnerError as error:
            raise owner_fault(sending.owner, error) from error
        return received

    # --- rows that pass through -----------------------------------------------------------------

    def _is_chunk(self, rows: Rows) -> bool:
        most = min(CHUNK_BYTES, self.account.most // CHUNKS_HELD)
        return rows.count >= CHUNK_ROWS or rows.size >= most

    def _interleaves(self, owner: str) -> bool:
        return self.adapters[owner].capabilities.interleaves

    async def _pass(
        self, sending: _Sending, snapshot: Snapshot, give: Callable[[Rows], Awaitable[None]]
    ) -> None:
        """Give away the rows that are held, once it is known that none will have to be refused."""
        if not self.passing:
            await self._require_within_cap(sending, snapshot)
            self.passing = True
        await give(sending.rows.take())

    async def _begin_again(self, sending: _Sending) -> _Sending:
        """Have an owner that cannot count while it sends count now, and send from the first row."""
        self.account.free(sending.rows.take().size)
        async with self.sessions.use(sending.owner) as snapshot:
            await self._require_within_cap(sending, snapshot)
        self.passing = True
        again = gates.Step(sending.owner, sending.query.query, sending.rendered)
        (permit,) = await self._authorize([again])
        return replace(sending, query=permit)

    async def _require_within_cap(self, sending: _Sending, snapshot: Snapshot) -> None:
        """Have the owner count, in the same snapshot: a refusal has to come before the first row.

        A statement need not give as many rows twice (rows that tie, sums of floating-point
        numbers), so the cap is watched while they pass as well.
        """
        query = sending.query.query
        cap, rule = self.gate.row_cap(sending.owner)
        if isinstance(query, Scan):
            counting: Query = replace(query, columns=(), limit=cap + 1)
        else:
            most = most_rows(self.plan.statement.parsed.node)
            if most is not None and most <= cap:
                return
            counting = replace(query, limit=cap + 1, counted=True)
        rendered = self.adapters[sending.owner].render(counting)
        (permit,) = await self._authorize([gates.Step(sending.owner, counting, rendered)])
        self.progress(f"asking owner {sending.owner} how many rows that is: they pass as they come")
        if await self._noted(permit, self._counted(sending.owner, snapshot, permit)) > cap:
            raise _too_many_rows(sending, cap, rule)

    async def _counted(self, owner: str, snapshot: Snapshot, query: Authorized) -> int:
        try:
            return sum([batch.rows async for batch in snapshot.run(query)])
        except OwnerError as error:
            raise owner_fault(owner, error) from error


@dataclass(frozen=True, slots=True)
class _Sending:
    """One authorised query on its way. ``step`` None: the whole statement."""

    owner: str
    query: Authorized
    rendered: str
    rows: Rows
    step: Step | None = None
    keys: tuple[int | None, ...] = ()
    notes: tuple[str, ...] = ()


def _too_many_rows(sending: _Sending, cap: int, rule: str) -> LimitExceeded:
    step = sending.step
    table = "" if step is None else f" of {step.scan.table.name}"
    reasons = [f"limit {rule}: {cap} rows"]
    hint = "narrow the statement with a condition on that owner's table"
    for edge, verdict in step.denied if step is not None else ():
        origins = ", ".join(f"{o.schema}.{o.table}.{o.column}" for o in edge.origins)
        reasons.append(
            f"edge {origins} to {edge.receiver}.{edge.receiver_table}.{edge.receiver_column} "
            f"would reduce it, and rule {verdict.rule} denies it"
        )
        grantor = edge.origins[0]
        hint = (
            f"owner {grantor.owner} can allow it with the key_disclosure entry "
            f"{{column: {grantor.table}.{grantor.column}, to: [{edge.receiver}], max_keys: N}}; "
            f"or {hint}"
        )
    reasons.extend(sending.notes)
    return LimitExceeded(
        f"owner {sending.owner} would send more than {cap} rows{table}: nothing is returned",
        detail="; ".join(reasons),
        hint=hint,
    )


class _Sessions:
    """One snapshot an owner for the statement, opened when needed, used by one step a time."""

    def __init__(
        self, stack: AsyncExitStack, adapters: Mapping[str, Adapter], gate: Gate, timeout: float
    ) -> None:
        self._stack = stack
        self._adapters = adapters
        self._gate = gate
        self._timeout = timeout
        self._locks: dict[str, asyncio.Lock] = {}
        self._open: dict[str, Snapshot] = {}

    async def warm(self, owner: str) -> None:
        """Open the snapshot while the ledger is being written; a failure shows at first use."""
        with contextlib.suppress(OwnerError):
            async with self.use(owner):
                pass

    def use(self, owner: str) -> _Turn:
        return _Turn(self, owner, self._locks.setdefault(owner, asyncio.Lock()))

    async def snapshot(self, owner: str) -> Snapshot:
        if owner not in self._open:
            timeout = min(self._timeout, self._gate.timeout(owner))
            self._open[owner] = await self._stack.enter_async_context(
                self._adapters[owner].snapshot(timeout)
            )
        return self._open[owner]


@dataclass
class _Turn:
    sessions: _Sessions
    owner: str
    lock: asyncio.Lock

    async def __aenter__(self) -> Snapshot:
        await self.lock.acquire()
        try:
            return await self.sessions.snapshot(self.owner)
        except BaseException:
            self.lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.lock.release()


def owner_fault(owner: str, error: OwnerError) -> OarError:
    """Translate what an adapter reports; the owner's own words never pass."""
    state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
    if error.kind is OwnerErrorKind.UNREACHABLE:
        return OwnerUnreachable(
            f"owner {owner} cannot be reached",
            hint=f"try again later, or ask those who run {owner}",
        )
    if error.kind is OwnerErrorKind.TIMEOUT:
        return QueryCanceled(
            f"canceling statement: owner {owner} did not answer in time",
            detail=f"limit: timeout of owner {owner} or of the statement",
            hint="ask for less, or raise statement_timeout",
        )
    if error.kind is OwnerErrorKind.WRONG_VALUE:
        return OwnerWrongValue(f"owner {owner}: {error.what}")
    if error.kind is OwnerErrorKind.SCHEMA_CHANGED:
        return OwnerSchemaChanged(
            f"owner {owner} changed its schema: {error.what}",
            hint="retry: the catalog follows shortly",
        )
    if error.sqlstate is not None and error.sqlstate.startswith(_DATA_EXCEPTION):
        return OwnerDataException(f"{_condition(error.sqlstate)} at owner {owner}", error.sqlstate)
    return OwnerFault(f"owner {owner} refused a query{state}")


def _condition(sqlstate: str) -> str:
    """The name of a SQLSTATE in words: its owner's own message may quote a value."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "data exception"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to report: an error of ours before anything it brought about."""
    plain: list[BaseException] = []
    waiting: list[BaseException] = [failures]
    while waiting:
        failure = waiting.pop()
        if isinstance(failure, BaseExceptionGroup):
            waiting.extend(failure.exceptions)
        else:
            plain.append(failure)
    return next((f for f in plain if isinstance(f, OarError)), plain[0])


def _pointless(step: gates.Step) -> bool:
    """No key can match: whatever the owner holds, none of its rows is needed."""
    return any(edge.keys == 0 for edge in step.edges)


def _spell(used: UsedEdge) -> str:
    edges = (column.edge for column in used.columns)
    origins = ", ".join(f"{o.schema}.{o.table}.{o.column}" for e in edges for o in e.origins)
    return f"edge {origins} to {used.edge.receiver}"


def _asking(sending: _Sending) -> str:
    if sending.step is None:
        return f"asking owner {sending.owner} for the whole statement"
    counts = [count for count in sending.keys if count is not None]
    carried = f" with {sum(counts)} keys" if counts else ""
    what = "keys of " if sending.step.stage == "keys" else ""
    return f"asking owner {sending.owner} for {what}{sending.step.scan.table.name}{carried}"
