"""Statements over two owners of a million rows each: time, rows and keys moved, and memory.

All contestants answer in turn, each twice in its turn: a text it has not seen, then the same text
again. Turns are drawn anew for each round: one that follows a contestant which has read both tables
finds the processor's caches full of them, one that follows a contestant which asked for the same
rows does not. The answers of those that evaluate the statement are compared first.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from oar_bench.harness import ALLOW_ALL
from oar_bench.overhead import peers
from oar_bench.overhead.memory import Memory, Meter, NoProc
from oar_bench.overhead.owners import OWNERS, Connection, Owners, open_owners
from oar_bench.overhead.peers import Answer, Ask, Query
from oar_bench.overhead.processes import OverheadError, Proxy, milliseconds, proxy_process
from oar_bench.work import work_directory

AGGREGATE: Final = (
    "SELECT d.city, count(*) AS n{number}, avg(d.delay_days) FROM {deliveries} GROUP BY d.city"
)
INNER: Final = (
    "SELECT d.city, count(*) AS n{number}, avg(d.delay_days) FROM {orders} JOIN {deliveries} "
    "ON d.order_id = o.order_id{where} GROUP BY d.city"
)
OUTER: Final = (
    "SELECT o.order_id, d.city, d.delay_days AS n{number} FROM {orders} LEFT JOIN {deliveries} "
    "ON d.order_id = o.order_id{where}"
)
UNSELECTIVE: Final = (
    "SELECT d.city, count(*) AS n{number}, sum(d.delay_days) FROM {orders} JOIN {deliveries} "
    "ON d.order_id = o.order_id{where} GROUP BY d.city"
)

ASKED: Final = ("first", "again")
"""The two figures of each contestant: a text it has not seen, and the same text once more."""

LEAST_ROWS: Final = 100_000
"""Of fewer rows 5,550 keys are no selection."""

MEMORY: Final = "memory"

_DIGITS: Final = 9
"""Significant digits compared: averages are numeric here and double precision there."""

_LEDGER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Goal:
    """oar's time is to be at most ``most`` times the peer's."""

    peer: str
    most: float


@dataclass(frozen=True, slots=True)
class Case:
    """A query that is measured for some ``rounds``."""

    name: str
    query: Query
    rounds: int
    goal: Goal | None = None


CASES: Final = (
    Case("one owner's GROUP BY", Query(AGGREGATE), 5, Goal(peers.BY_HAND, 1.2)),
    Case("50 keys", Query(INNER, "o.promo = 'P50'"), 11, Goal(peers.BY_HAND, 5)),
    Case("5,550 keys", Query(INNER, "o.promo = 'P5550'"), 7, Goal(peers.BY_HAND, 1.5)),
    Case("outer join, 150 keys", Query(OUTER, "o.promo = 'P150'"), 11, Goal(peers.BY_HAND, 5)),
    # Of a range only the owner knows how few rows it holds.
    Case("1,000 keys, of a range", Query(INNER, "o.lot < 1000"), 5),
    Case("unselective GROUP BY", Query(UNSELECTIVE), 3, Goal(peers.TUNED, 1)),
)

_WARMING: Final = Query(INNER, "o.promo = 'P50'")
"""Opens a proxy's connections before its memory is measured."""

_BATCHES: Final = (1_000, 10_000, 100_000)
"""Orders of each batch, hence keys of the joins that show how time grows."""


def growing(rows: int) -> tuple[Case, ...]:
    """Return joins of ten times more keys each, up to all there are."""
    return (
        *(
            Case(f"{keys:,} keys", Query(INNER, f"o.batch = 'B{keys}'"), 3)
            for keys in _BATCHES
            if 2 * keys <= rows
        ),
        Case(f"{rows:,} keys", Query(INNER), 3),
    )


@dataclass(frozen=True, slots=True)
class Moved:
    """What the ledger has of one statement: rows and keys that left owners, queries sent."""

    rows: int
    keys: int
    queries: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One case: contestant → ``first`` and ``again`` → median milliseconds, and oar's costs."""

    case: Case
    ms: Mapping[str, Mapping[str, float]]
    moved: Moved
    memory: Memory | None

    def ratio(self, peer: str, asked: str) -> float | None:
        """Oar's time divided by a peer's; None where the peer was not measured."""
        figures = self.ms.get(peer)
        return None if figures is None else self.ms[peers.OAR][asked] / figures[asked]


@dataclass(slots=True)
class Measured:
    """All cases, and what could not be measured: its name → why."""

    figures: list[Figures] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def measure(directory: Path, *, rows: int, rounds: int | None = None) -> Measured:
    """Run all cases over owners of ``rows`` rows, each for ``rounds`` (its own otherwise).

    Raises :class:`~oar_bench.overhead.processes.OverheadError`, also when two contestants that
    evaluate the statement answer it differently.
    """
    if rows < LEAST_ROWS:
        raise OverheadError(
            f"the owners need {LEAST_ROWS:,} rows or more for 5,550 keys to be a selection"
        )
    measured = Measured()
    with ExitStack() as stack:
        owners = stack.enter_context(open_owners(directory, rows))
        proxy = stack.enter_context(_proxy(directory, owners))
        oar = stack.enter_context(proxy.connect())
        contestants = _contestants(stack, owners, proxy, oar, measured.skipped)
        numbers = count(1)
        for case in (*CASES, *growing(rows)):
            used = _used(contestants, case.query)
            _compare(case, used, next(numbers))
            ms = _time(case.query, used, rounds or case.rounds, numbers)
            moved = _moved(oar, case.query, next(numbers))
            memory = _memory(owners, case.query, measured.skipped)
            measured.figures.append(Figures(case, ms, moved, memory))
    return measured


def _proxy(directory: Path, owners: Owners) -> AbstractContextManager[Proxy]:
    policy = directory / "allow-all.yaml"
    policy.write_text(ALLOW_ALL)
    sections = {
        "owners": {name: {"url": owners.url(name), "policy": str(policy)} for name in OWNERS},
        # The unselective join needs both tables whole.
        "limits": {"max_rows": 10_000_000, "max_bytes": 8 * 1024**3},
    }
    return proxy_process(directory, secrets.token_urlsafe(12), sections)


def _contestants(
    stack: ExitStack,
    owners: Owners,
    proxy: Proxy,
    oar: Connection,
    skipped: dict[str, str],
) -> dict[str, Ask]:
    """Open every contestant; those that are not installed are in ``skipped``."""
    shop, fleet = (stack.enter_context(owners.connect(owner)) for owner in OWNERS)
    hub = stack.enter_context(_database_at(proxy.hub.conninfo, "by_hand"))
    tuned = stack.enter_context(owners.foreign("fdw_tuned", peers.TUNED_OPTIONS))
    plain = stack.enter_context(owners.foreign("fdw", ""))
    contestants = {
        peers.OAR: peers.sends_whole(oar),
        peers.BY_HAND: peers.by_hand(shop, fleet),
        peers.AT_HUB: peers.by_hand_at_hub(shop, fleet, hub),
        peers.RECORDED: peers.by_hand_recorded(shop, fleet, hub),
        peers.TUNED: peers.sends_whole(tuned),
        peers.PLAIN: peers.sends_whole(plain),
    }
    try:
        contestants[peers.DUCKDB] = stack.enter_context(peers.duckdb(owners))
    except peers.Unavailable as error:
        skipped[peers.DUCKDB] = str(error)
    return contestants


def _database_at(conninfo: str, database: str) -> Connection:
    """Make a database at the hub's server that the proxy knows nothing of, and connect."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    return psycopg.connect(make_conninfo(conninfo, dbname=database), autocommit=True)


def _used(contestants: Mapping[str, Ask], query: Query) -> dict[str, Ask]:
    """Leave out the hub by hand where the owner evaluates, or whole tables would be arrays."""
    fed = query.joins and query.where
    return {name: ask for name, ask in contestants.items() if fed or name not in peers.FEEDING}


def _compare(case: Case, contestants: Mapping[str, Ask], number: int) -> None:
    """Ask everyone once, unmeasured: that warms connections and caches too."""
    answers = {name: ask(case.query, number) for name, ask in contestants.items()}
    want = same(answers[peers.OAR] or [])
    for name, answer in answers.items():
        if answer is not None and same(answer) != want:
            raise OverheadError(f"{case.name}: the answers of oar and {name} differ")


def same(answer: Answer) -> list[tuple[Any, ...]]:
    """Bring an answer to what two engines have in common: order aside, numbers as floats."""
    return sorted((tuple(map(_plain, row)) for row in answer), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, int | float | Decimal):
        return float(f"{value:.{_DIGITS}g}")
    return value


def _time(
    query: Query, contestants: Mapping[str, Ask], rounds: int, numbers: Iterator[int]
) -> dict[str, dict[str, float]]:
    """Measure all in turn, so that whatever else the machine does meets all of them.

    None is always behind the same other one.
    """
    draws = Random(query.template)  # noqa: S311 - the same turns in every run
    taken: dict[str, dict[str, list[float]]] = {
        name: {asked: [] for asked in ASKED} for name in contestants
    }
    for _ in range(rounds):
        for name in draws.sample(list(contestants), len(contestants)):
            ask, number = contestants[name], next(numbers)
            for asked in ASKED:
                taken[name][asked].append(milliseconds(partial(ask, query, number)))
    return {
        name: {asked: statistics.median(values) for asked, values in figures.items()}
        for name, figures in taken.items()
    }


def _memory(owners: Owners, query: Query, skipped: dict[str, str]) -> Memory | None:
    """Ask a proxy and a hub of their own, which no earlier statement has made grow."""
    if MEMORY in skipped:
        return None
    with (
        work_directory() as directory,
        _proxy(directory, owners) as proxy,
        proxy.connect() as connection,
    ):
        oar = peers.sends_whole(connection)
        oar(_WARMING, 0)
        try:
            return Meter(proxy).measure(lambda: oar(query, 1))
        except NoProc as error:
            skipped[MEMORY] = str(error)
            return None


# --- what moved ------------------------------------------------------------------------------


def _moved(oar: Connection, query: Query, number: int) -> Moved:
    """Ask once more and read the client's own ledger."""
    before = _ledger(oar, "SELECT coalesce(max(step), 0) FROM oar.steps")[0]
    oar.execute(query.text(number).encode()).fetchall()
    deadline = time.monotonic() + _LEDGER_SECONDS
    while time.monotonic() < deadline:
        # Outcomes are written after the answer.
        rows, keys, queries, open_ = _ledger(
            oar,
            "SELECT coalesce(sum(rows), 0)::bigint, coalesce(sum(keys), 0)::bigint, count(*), "
            f"count(*) FILTER (WHERE rows IS NULL) FROM oar.steps WHERE step > {before}",
        )
        if queries and not open_:
            return Moved(rows, keys, queries)
        time.sleep(0.01)
    raise OverheadError(f"the ledger has no outcome after {_LEDGER_SECONDS:g} s")


def _ledger(oar: Connection, statement: str) -> Sequence[int]:
    row: Sequence[int] | None = oar.execute(statement.encode()).fetchone()
    if row is None:
        raise OverheadError("the ledger gave no row")
    return row
