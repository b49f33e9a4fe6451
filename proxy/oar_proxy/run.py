"""Running a plan: each step as early as its keys allow, through the gate, in one snapshot an owner.

Never a subset (decision 5): a cap that is reached, an owner that fails or a deadline that passes
fails the statement. Everything in flight is cancelled then, and every snapshot closed.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from oar_adapters.interface import Adapter, KeyFilter, Scan, base_type

from oar_proxy import gate as gates
from oar_proxy import matching
from oar_proxy.edges import UsedEdge
from oar_proxy.errors import OarError, QueryCanceled
from oar_proxy.fetch import Fetcher, OpenAsk, OwnerAccess, Sending
from oar_proxy.keys import all_keys, distinct_keys, widened_keys
from oar_proxy.leaves import Leaf
from oar_proxy.memory import Account
from oar_proxy.moment import Moment
from oar_proxy.plan import Plan, Step, bound_scan, key_filter
from oar_proxy.rows import WHOLE, Gathered, Rows, StepReport
from oar_proxy.snapshots import Snapshots
from oar_proxy.sql.tree import most_rows


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a statement may take, and what it reads.

    ``seconds`` is for all of it. ``account`` has the memory of its rows. ``moment`` has the
    snapshots and places at owners that it takes; who made that closes it, on every path.
    """

    seconds: float
    account: Account
    moment: Moment


async def run(
    plan: Plan,
    ask: OpenAsk,
    access: OwnerAccess,
    allowance: Allowance,
    *,
    give: Callable[[Rows], Awaitable[None]] | None = None,
    written: Sequence[gates.BoundEdge] = (),
) -> Gathered:
    """Ask the owners. Raises ``OarError``, with outcomes left in ``ask.finished`` then as well.

    With ``give``, which is for a plan of one query, rows that are more than a chunk are given away
    in chunks, as they come; what is returned is the last chunk then. It returns when there is room
    for more.

    ``written`` are keys that the statement itself has as constants, where it asks one owner only:
    each of its queries counts as carrying them.
    """
    seconds = allowance.seconds
    decisions = access.gate.decisions(ask.entry.subject)
    snapshots = Snapshots(allowance.moment, access.adapters, decisions, seconds)
    fetcher = Fetcher(access, ask, allowance.account, snapshots, give)
    runner = _Runner(plan, access.adapters, snapshots, fetcher, tuple(written))
    try:
        async with asyncio.timeout(seconds):
            await snapshots.reserve(access.slots, plan.owners)
            return await runner.run()
    except TimeoutError as error:
        what = "its rows did not all pass" if fetcher.passing else "the owners did not answer"
        raise QueryCanceled(
            f"canceling statement: {what} within {seconds:g} s",
            detail="limit: statement_timeout of the session or of the proxy",
            hint="ask for less, or raise statement_timeout",
        ) from error


@dataclass
class _Runner:
    plan: Plan
    adapters: Mapping[str, Adapter]
    snapshots: Snapshots
    fetcher: Fetcher
    written: tuple[gates.BoundEdge, ...] = ()
    secret: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)
    """What keys are digested under that may not leave in clear: no other statement's."""
    gathered: Gathered = field(default_factory=Gathered)
    rows: dict[int, Rows] = field(default_factory=dict)
    asked: dict[int, Step] = field(default_factory=dict)

    async def run(self) -> Gathered:
        try:
            if self.plan.whole is not None:
                await self._run_whole()
            else:
                await self._run_steps()
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures
        return self.gathered

    async def _fetch(self, sending: Sending) -> None:
        self.gathered.reports.append(await self.fetcher.fetch(sending))

    # --- whole statements -----------------------------------------------------------------------

    async def _run_whole(self) -> None:
        whole, query = self.plan.whole, self.plan.whole_query
        assert whole is not None
        assert query is not None
        rendered = self.adapters[whole.owner].render(query)
        step = gates.Step(whole.owner, query, rendered, self.written, self.plan.checked)
        await self.fetcher.admit([step])
        async with asyncio.TaskGroup() as group:
            group.create_task(self.snapshots.warm(whole.owner))
            (authorized,) = await self.fetcher.authorize([step])
        names = tuple(output.name for output in query.outputs)
        rows = Rows(names, [[] for _ in names])
        self.gathered.rows[WHOLE] = [rows]
        most = most_rows(self.plan.statement.parsed.node)
        checked = self.plan.checked
        await self._fetch(Sending(whole.owner, authorized, rendered, rows, checked, most=most))

    # --- steps --------------------------------------------------------------------------------

    async def _run_steps(self) -> None:
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
                    later = {s.owner for s in waiting if self.snapshots.lasts(s.owner)}
                    for owner in later - warming.keys():
                        warming[owner] = group.create_task(self.snapshots.warm(owner))
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    ended = [running.pop(task) for task in done]
                    unfinished.subtract((step.occurrence, step.stage) for step in ended)
            for task in warming.values():
                task.cancel()  # of an owner that need not be asked after all
        for step in self.plan.steps:
            asked = self.asked[step.number]
            for leaf, _ in asked.merging:
                self._join_with_one(self.rows[step.number], leaf)
            for leaf in asked.looked_up:
                await self._look_up(asked, leaf)
        for step in self.plan.steps:
            if step.stage == "rows":
                self.gathered.rows.setdefault(step.occurrence, []).append(self.rows[step.number])

    async def _start(
        self, group: asyncio.TaskGroup, ready: Sequence[Step]
    ) -> tuple[dict[asyncio.Task[None], Step], list[Step]]:
        """Authorise a wave and send it. Steps with no key at all are skipped."""
        bound = [self._bind(step) for step in ready]
        wave: list[gates.Step] = []
        for step, query, edges, _ in bound:
            self.asked[step.number] = step
            names = tuple(column.name for column in query.columns)
            partials = query.partials if query.counted else None
            self.rows[step.number] = Rows(names, [[] for _ in query.outputs], partials=partials)
            rendered = self.adapters[step.owner].render(query)
            carried = (*itertools.chain.from_iterable(edges), *self.written)
            wave.append(gates.Step(step.owner, query, rendered, carried, self.plan.checked))
        await self.fetcher.admit(wave)
        for gated in wave:
            if not _pointless(gated):
                group.create_task(self.snapshots.warm(gated.owner))
        authorized = await self.fetcher.authorize(wave)
        started: dict[asyncio.Task[None], Step] = {}
        skipped: list[Step] = []
        for (step, _, edges, notes), gated, permit in zip(bound, wave, authorized, strict=True):
            keys = tuple(sum(each.keys for each in edge) if edge else None for edge in edges)
            if _pointless(gated):
                # R32: no key can match, so no row can matter; the step is on the ledger.
                self.fetcher.skip(step.owner, permit)
                self.gathered.reports.append(
                    StepReport(step, step.owner, gated.rendered, keys, 0, 0.0, notes, True)
                )
                skipped.append(step)
                continue
            sending = self._fetch(
                Sending(
                    step.owner,
                    permit,
                    gated.rendered,
                    self.rows[step.number],
                    gated.checked,
                    step,
                    keys,
                    notes,
                )
            )
            started[group.create_task(sending)] = step
        return started, skipped

    def _bind(
        self, step: Step
    ) -> tuple[Step, Scan, tuple[tuple[gates.BoundEdge, ...], ...], tuple[str, ...]]:
        """Collect the keys of each edge, column by column, and tell what is asked with them.

        An edge with more keys than allowed is left out. Of a composite one each column is tried by
        itself first: it may have fewer different values.
        """
        edges: list[tuple[gates.BoundEdge, ...]] = []
        carried: dict[UsedEdge, int] = {}
        notes: list[str] = []
        budget = self.fetcher.decisions.keys_in(step.owner).number

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
            least = max((column.verdict for column in columns), key=lambda each: each.min_keys)
            if 0 < count < least.min_keys:
                notes.append(
                    f"{_spell(used)} carries {count} keys, at least {least.min_keys} by "
                    f"{least.least_rule}: asked without them"
                )
                return
            budget -= count * len(columns)
            carried[used] = count
            yield (
                key_filter(columns, keys, self.secret),
                tuple(gates.BoundEdge(column.edge, count, from_each) for column in columns),
            )

        def bind(used: UsedEdge) -> list[KeyFilter]:
            found = list(bound(used))
            edges.append(tuple(edge for _, carried in found for edge in carried))
            return [filter_ for filter_, _ in found]

        query = bound_scan(step, bind)
        if not all(self._tells_all(leaf, carried.get(used)) for leaf, used in step.merging):
            assert step.apart is not None
            return self._bind(replace(step, scan=step.apart, merging=()))
        return step, query, tuple(edges), tuple(notes)

    def _tells_all(self, leaf: Leaf, keys: int | None) -> bool:
        """Tell whether rows that find one of so many keys (None: none travelled) are kept, once."""
        held = self._rows_of(leaf.number)
        once = keys == sum(rows.count for rows in held) and all(rows.once for rows in held)
        return once if leaf.joined else keys is not None

    def _rows_of(self, occurrence: int) -> list[Rows]:
        steps = (s for s in self.plan.steps if (s.occurrence, s.stage) == (occurrence, "rows"))
        return [self.rows[step.number] for step in steps]

    def _join_with_one(self, rows: Rows, leaf: Leaf) -> None:
        """Join rows that were counted without regard to a leaf's keys with one of its rows.

        They get its key, whichever they had, and the others of the leaf have done their work.
        """
        pairs = sorted(leaf.pairs)
        kept = self._keep_one(leaf, [name for name, _ in pairs])
        for name, column in pairs:
            key = [] if kept is None else kept.columns[kept.names.index(name)]
            rows.insert(column, key, self.fetcher.account)

    def _keep_one(self, leaf: Leaf, names: Sequence[str]) -> Rows | None:
        """Let go of all rows of a leaf but the first whose columns of those names are not NULL."""
        kept = None
        for held in self._rows_of(leaf.number):
            place = held.first_with(names) if kept is None else None
            held.keep_only(place, self.fetcher.account)
            kept = kept if place is None else held
        return kept

    async def _look_up(self, step: Step, leaf: Leaf) -> None:
        """Look many rows up among a leaf's keys, so that the hub joins them with one row of it."""
        rows, leaves = self.rows[step.number], self._rows_of(leaf.number)
        ((name, column),) = leaf.pairs
        count = rows.count + sum(held.count for held in leaves)
        once = leaf.joined
        if count < matching.WORTHWHILE or (once and not all(held.once for held in leaves)):
            return
        room = count * matching.WORKSPACE
        if not self.fetcher.account.has_room(room):
            return
        place = rows.names.index(column)
        width = matching.WIDTHS[step.scan.columns[place].type]
        cells = rows.columns[place]
        keys = [chunk for held in leaves for chunk in held.columns[held.names.index(name)]]
        self.fetcher.account.hold(room)
        marked = await asyncio.to_thread(matching.marked, cells, keys, width, once=once)
        self.fetcher.account.free(room)
        if marked is not None:
            rows.columns[place] = [marked]
            self._keep_one(leaf, [name])

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
                rows, scan = self.rows[step.number], self.asked[step.number].scan
                indexes = [rows.names.index(source.column) for source in sources]
                held = distinct_keys([rows.columns[index] for index in indexes])
                types = (base_type(scan.columns[index].type) for index in indexes)
                found.append(
                    [
                        widened_keys(cells, type_, column.type)
                        for cells, type_, column in zip(held, types, columns, strict=True)
                    ]
                )
        return all_keys(found), tuple(len(each[0]) for each in found)


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
