"""What a federated statement adds to the hub's own time, stage by stage.

The proxy runs in this process, and its stages' functions are wrapped while it is measured: a proxy
that is not measured has no clock in it. One client asks one statement at a time, so stages follow
each other; what a stage calls of another one's is the other one's time. What is left is the rest:
frames, the client's and the hub's share, and the questions that the session asks the hub.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
from oar_proxy import answer, asks, pipeline, planning
from oar_proxy.compile import Compiler
from oar_proxy.draft import DraftStage
from oar_proxy.gate import Gate
from oar_proxy.ledger import Ledger
from oar_proxy.settings import DrafterSettings, HubSettings, Listen, OwnerSettings, Settings

from oar_bench.harness import ALLOW_ALL, USER, Served, run_proxy
from oar_bench.overhead.join import INNER
from oar_bench.overhead.owners import OWNERS, Connection, open_owners
from oar_bench.overhead.peers import Query
from oar_bench.overhead.processes import HOST

STAGES: Final = (
    "statement", "draft", "cover", "route", "plan", "gate", "ledger", "owners", "answer",
)  # fmt: skip
REST: Final = "rest"
TOTAL: Final = "total"

QUESTION: Final = "How many orders of promo P50 are there?"
_DRAFT: Final = "SELECT count(*) FROM shop.orders WHERE promo = 'P50'"

_WHOLE: Final = "SELECT count(*), sum(amount) FROM shop.orders WHERE promo = 'P50' AND lot <> -{}"
_JOIN: Final = Query(INNER, "o.promo = 'P50'")
_PREPARED: Final = (
    "SELECT o.order_id, d.city FROM shop.orders AS o JOIN fleet.deliveries AS d USING (order_id)"
    " WHERE o.promo = 'P50' AND d.delay_days < %s"
)

Ask = Callable[[Connection, int], object]
"""Asks once; the number makes texts different."""


@dataclass
class Clock:
    """Adds up what each stage takes, without what it calls of others'."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _running: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count what passes for this stage, and for the one it was called by afterwards."""
        self._turn()
        self._running.append(stage)
        try:
            yield
        finally:
            self._turn()
            self._running.remove(stage)

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def wraps(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, or a coroutine function, that is timed."""
        if asyncio.iscoroutinefunction(function):

            @wraps(function)
            async def timed(*arguments: Any, **named: Any) -> Any:
                with self.during(stage):
                    awaited: Awaitable[Any] = function(*arguments, **named)
                    return await awaited

            return timed

        @wraps(function)
        def timed_call(*arguments: Any, **named: Any) -> Any:
            with self.during(stage):
                return function(*arguments, **named)

        return timed_call


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of statement. ``again``: the text of the time before; else one not seen yet."""

    name: str
    ask: Ask
    again: bool = False


def _text(write: Callable[[int], str]) -> Ask:
    return lambda client, number: client.execute(write(number).encode()).fetchall()


CASES: Final = (
    Case("passes through", lambda client, _: client.execute("SELECT 1").fetchall(), again=True),
    Case("one owner, first", _text(_WHOLE.format)),
    Case("one owner, again", _text(_WHOLE.format), again=True),
    Case("join of two, first", _text(_JOIN.text)),
    Case("join of two, again", _text(_JOIN.text), again=True),
    Case(
        "join, prepared",
        lambda client, _: client.execute(_PREPARED, (5,), prepare=True).fetchall(),
        again=True,
    ),
    Case(
        "question, cached",
        lambda client, _: client.execute(f"SELECT * FROM oar_ask('{QUESTION}')").fetchall(),
        again=True,
    ),
)


def measure(directory: Path, *, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each stage, by case. Raises ``OverheadError``."""
    with ExitStack() as stack:
        owners = stack.enter_context(open_owners(directory, rows))
        policy = directory / "allow-all.yaml"
        policy.write_text(ALLOW_ALL)
        drafts = directory / "drafts.jsonl"
        drafts.write_text(json.dumps({"question": QUESTION, "sql": _DRAFT}))
        settings = Settings(
            owners={
                name: OwnerSettings.model_validate({"url": owners.url(name), "policy": policy})
                for name in OWNERS
            },
            hub=HubSettings(data_dir=directory / "hub"),
            listen=Listen(port=0),
            drafter=DrafterSettings(kind="replay", file=drafts),
            catalog_refresh=86_400,
            log_level="error",
        )
        return asyncio.run(_measure(settings, rounds))


async def _measure(settings: Settings, rounds: int) -> dict[str, dict[str, float]]:
    async with run_proxy(settings) as served:
        clock = Clock()
        with _timed(clock):
            return await asyncio.to_thread(_ask_all, served, clock, rounds)


@contextmanager
def _timed(clock: Clock) -> Iterator[None]:
    with ExitStack() as stack:
        for stage, owner, name in (
            ("statement", pipeline, "recognise"),
            ("draft", DraftStage, "draft"),
            ("cover", planning, "cover"),
            ("route", planning, "route"),
            ("plan", Compiler, "plan"),
            ("gate", Gate, "authorize"),
            ("ledger", Ledger, "open_ask"),
            ("ledger", Ledger, "record"),
            ("owners", asks, "run"),
            ("answer", answer, "answer"),
            ("answer", answer, "one_owners_answer"),
            ("answer", answer.OneOwnersAnswer, "of"),
        ):
            function = clock.wraps(stage, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, function))
        yield


def _ask_all(served: Served, clock: Clock, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    application = served.application
    with psycopg.connect(
        host=HOST,
        port=application.port,
        user=USER,
        password=served.password,
        dbname=application.hub.database,
        autocommit=True,
        # The driver would prepare by itself what is asked again and again.
        prepare_threshold=1_000_000,
    ) as client:
        numbers = count(1)
        for case in CASES:
            taken: defaultdict[str, list[float]] = defaultdict(list)
            number = next(numbers)
            case.ask(client, number)
            case.ask(client, number)
            for _ in range(rounds):
                number = number if case.again else next(numbers)
                for stage, milliseconds in _once(client, clock, case.ask, number).items():
                    taken[stage].append(milliseconds)
            found[case.name] = {stage: statistics.median(taken[stage]) for stage in taken}
    return found


def _once(client: Connection, clock: Clock, ask: Ask, number: int) -> Mapping[str, float]:
    clock.seconds.clear()
    began = time.perf_counter()
    ask(client, number)
    total = time.perf_counter() - began
    stages = {stage: 1000 * clock.seconds[stage] for stage in STAGES}
    return {**stages, REST: 1000 * total - sum(stages.values()), TOTAL: 1000 * total}
