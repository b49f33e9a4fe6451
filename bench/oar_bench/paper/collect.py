"""Protocols and routers' calls run with a model on a benchmark's questions, and saved.

Each organisation's owners are served by a proxy of their own, under their own names. What is saved
is described in docs/benchmarks.md, "Saved runs", and read by ``oar_bench.paper.runs``.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import psycopg
from oar_proxy.draft import DraftStage
from oar_proxy.drafters.model import ModelDrafter
from oar_proxy.errors import DrafterUnavailable, NoValidDraft, OarError
from oar_proxy.protocols import routing
from oar_proxy.protocols.attempt import Inquiry, OwnerQuery
from oar_proxy.protocols.contacts import Contacts, Referral, best_matching, everyone
from oar_proxy.protocols.named import PROTOCOLS, Run, answer
from oar_proxy.question import Question as Asked
from oar_proxy.settings import DrafterSettings, HubSettings, Listen, Settings

from oar_bench import harness
from oar_bench.ask import askable, result_rows
from oar_bench.layout import Benchmark, BenchmarkError, Organisation, Question
from oar_bench.paper.calls import Calls, Metered, MissingCall
from oar_bench.paper.journal import Journal
from oar_bench.paper.routers import ASK, DRAFT, FAN_OUT, RELAY, SELF
from oar_bench.paper.runs import BUDGET

COMPILED: Final = "compiled"
"""The proxy's own line: a draft that it checks, has repaired, and compiles."""

CALLS: Final = (DRAFT, SELF, ASK)
KINDS: Final = (*PROTOCOLS, COMPILED, *CALLS)
USUAL: Final = (FAN_OUT, RELAY, "relay+", *CALLS)
"""What the paper's tables are made of: routers pick among these runs."""

UNREACHABLE: Final = 10
"""Runs in a row that found no model: after these, no more are begun."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be collected. ``everyone``: contact all owners, whatever is published of them."""

    kinds: Sequence[str] = USUAL
    budgets: Sequence[int] = (BUDGET,)
    runs: int = 1
    organisations: Sequence[str] = ()
    limit: int | None = None
    everyone: bool = False
    parallel: int = 4


@dataclass(slots=True)
class Collected:
    """What a collection did.

    ``saved`` are new lines by kind, ``present`` counts those that were there, ``unfinished`` runs
    of which nothing was saved, by reason. ``dollars`` is the price of the saved, those in a
    replay included; None where no price is known.
    """

    saved: Counter[str]
    present: int = 0
    unfinished: Counter[str] = field(default_factory=Counter)
    dollars: float | None = None
    in_a_row: int = 0

    @property
    def gave_up(self) -> bool:
        """Whether the model was not there so often that nobody asks it any more."""
        return self.in_a_row >= UNREACHABLE


@dataclass(frozen=True, slots=True)
class _Job:
    """One line to be made."""

    question: Question
    kind: str
    run: int
    budget: int | None

    def key(self, model: str) -> tuple[str, str, str, int, int | None]:
        return (model, self.question.id, self.kind, self.run, self.budget)


async def collect(
    benchmarks: Sequence[Benchmark],
    wanted: Wanted,
    calls: Calls,
    out: Journal,
    directory: Path,
    *,
    report: Callable[[str], None],
) -> Collected:
    """Make and save the runs that ``out`` does not have yet; say where it is, a line at a time.

    Raises :class:`~oar_bench.layout.BenchmarkError` where no question fits, two have one id or
    ``out`` has runs with other contacts, and what starting a proxy raises.
    """
    jobs = _jobs(benchmarks, wanted)
    present = set()
    for record in out.records():
        present.add(_key(record))
        _require_contacts(record, everyone=wanted.everyone)
    collected = Collected(Counter(dict.fromkeys(wanted.kinds, 0)))
    for organisation, mine in jobs:
        missing = [job for job in mine if job.key(calls.model) not in present]
        collected.present += len(mine) - len(missing)
        if missing and not collected.gave_up:
            report(f"{organisation.name}: {len(missing)} of {len(mine)} runs to make")
            async with _site(organisation, directory, everyone=wanted.everyone) as site:
                await _work(missing, wanted.parallel, _Desk(site, calls, out, collected))
    return collected


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        kind = record["protocol"]
        budget = record.get("budget", BUDGET) if kind in PROTOCOLS else None
        return (record["model"], str(record["question"]), kind, record.get("run", 1), budget)
    except KeyError as error:
        raise BenchmarkError(f"not a file of saved runs: a line has no {error}") from error


def _require_contacts(record: Mapping[str, Any], *, everyone: bool) -> None:
    """Refuse to go on with runs that contacted others: they would count as the same setting."""
    if record["protocol"] != COMPILED and bool(record.get("everyone")) != everyone:
        made = "without" if everyone else "with"
        raise BenchmarkError(f"the file has runs made {made} --everyone: collect into another one")


def _jobs(benchmarks: Sequence[Benchmark], wanted: Wanted) -> list[tuple[Organisation, list[_Job]]]:
    found: list[tuple[Organisation, list[_Job]]] = []
    known: Counter[str] = Counter()
    for benchmark in benchmarks:
        by_organisation: dict[str, list[Question]] = {}
        for question in askable(benchmark):
            scored = question.unanswerable or question.rows is not None
            if scored and (not wanted.organisations or question.org in wanted.organisations):
                by_organisation.setdefault(question.org, []).append(question)
        for name, questions in by_organisation.items():
            chosen = questions[: wanted.limit]
            known.update(question.id for question in chosen)
            found.append((benchmark.organisations[name], list(_of(chosen, wanted))))
    if not found:
        where = f" of {' or '.join(wanted.organisations)}" if wanted.organisations else ""
        raise BenchmarkError(f"no question{where} can be scored and has the rows it needs")
    twice = [question for question, count in known.items() if count > 1]
    if twice:
        raise BenchmarkError(f"two questions have the id {twice[0]}: collect them into two files")
    return found


def _of(questions: Sequence[Question], wanted: Wanted) -> Iterator[_Job]:
    for question, run, kind in product(questions, range(1, wanted.runs + 1), wanted.kinds):
        for budget in wanted.budgets if kind in PROTOCOLS else (None,):
            yield _Job(question, kind, run, budget)


# --- an organisation that is served ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Site:
    """An organisation's proxy. ``names`` are its owners' there, by those of the benchmark."""

    organisation: Organisation
    names: Mapping[str, str]
    served: harness.Served
    everyone: bool

    def contacts(self, question: str) -> Contacts:
        """Contact by description where somebody asks, as on PeopleJoin; all owners elsewhere."""
        organisation, names = self.organisation, self.names
        if organisation.asker is None or self.everyone:
            return everyone([names[owner.name] for owner in organisation.with_rows])
        return best_matching(
            question,
            {names[owner.name]: owner.description for owner in organisation.owners},
            asker=names[organisation.asker],
            referrals={
                names[o.name]: tuple(self._referrals(o.referral)) for o in organisation.owners
            },
        )

    def _referrals(self, text: str) -> Iterator[Referral]:
        """Read messages, one a line, each about the first owner it names."""
        for line in text.splitlines():
            words = (word.strip(".,:;") for word in line.split())
            named = next((word for word in words if word in self.names), None)
            if named is not None:
                yield Referral(line, self.names[named])

    def steps(self, queries: Sequence[OwnerQuery]) -> list[dict[str, Any]]:
        """What was asked of owners, under the benchmark's names."""
        own = {name: owner for owner, name in self.names.items()}
        return [
            {
                "owner": own.get(query.owner, query.owner),
                "sql": query.sql,
                "status": query.status,
                "rows": query.rows,
                "truncated": query.truncated,
                "keys": {own.get(owner, owner): count for owner, count in query.keys},
            }
            for query in queries
        ]


@asynccontextmanager
async def _site(
    organisation: Organisation, directory: Path, *, everyone: bool
) -> AsyncIterator[_Site]:
    names: dict[str, str] = {}
    for owner in organisation.owners:
        names[owner.name] = harness.owner_name(owner.name, names.values())
    policy = directory / "allow-models.yaml"
    policy.write_text(harness.ALLOW_MODELS)
    settings = Settings(
        owners={
            names[owner.name]: harness.owner_setting(organisation, owner, policy)
            for owner in organisation.with_rows
        },
        hub=HubSettings(data_dir=directory / "hub"),
        listen=Listen(port=0),
        log_level="error",
    )
    async with harness.run_proxy(settings) as served:
        yield _Site(organisation, names, served, everyone)


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Desk:
    """Where jobs are done and what they made goes."""

    site: _Site
    calls: Calls
    out: Journal
    collected: Collected

    async def do(self, job: _Job) -> None:
        """Make one run and save it, or note why there is none."""
        model = Metered(self.calls, job.run)
        collected = self.collected
        try:
            made = await _make(job, self.site, model)
        except DrafterUnavailable as error:
            collected.in_a_row += 1
            collected.unfinished[error.message] += 1
            return
        except (OarError, MissingCall) as error:
            collected.unfinished[str(error)] += 1
            return
        collected.in_a_row = 0
        spent = _spent(model)
        head = _head(job, self.calls.model, everyone=self.site.everyone)
        self.out.append({**head, **made, **spent})
        collected.saved[job.kind] += 1
        if spent["dollars"] is not None:
            collected.dollars = (collected.dollars or 0.0) + spent["dollars"]


async def _work(jobs: Sequence[_Job], parallel: int, desk: _Desk) -> None:
    waiting = iter(jobs)

    async def worker() -> None:
        for job in waiting:
            if desk.collected.gave_up:
                return
            await desk.do(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _make(job: _Job, site: _Site, model: Metered) -> dict[str, Any]:
    text = job.question.text or ""
    asked = Asked(text, harness.USER)
    if job.kind == COMPILED:
        return await _compiled(asked, site, model)
    catalog = site.served.application.catalog
    contacts = site.contacts(text)
    if job.budget is None:
        return await _ROUTING[job.kind](Inquiry(asked, catalog, contacts), model)
    inquiry = Inquiry(asked, catalog, contacts, job.budget)
    run = await answer(job.kind, inquiry, model, site.served.application.owner_queries)
    return {**_outcome(run), "steps": site.steps(run.queries)}


def _outcome(run: Run) -> dict[str, Any]:
    made: dict[str, Any] = {"outcome": run.outcome}
    if run.rows is not None:
        made["rows"] = run.rows
    if run.reason is not None:
        made["reason"] = run.reason
    if run.routing is not None:
        made |= {"route": run.strategy, "kappa": run.routing.cover.kappa}
    return {**made, "budget_used": run.tokens}


async def _draft(inquiry: Inquiry, model: Metered) -> dict[str, Any]:
    drafted = await routing.draft(inquiry, model)
    return {"draft": drafted.draft or "", "dialect": "postgres"}


async def _self(inquiry: Inquiry, model: Metered) -> dict[str, Any]:
    choice = await routing.choose(inquiry, model)
    return {} if choice is None else {"choice": choice}


async def _ask(inquiry: Inquiry, model: Metered) -> dict[str, Any]:
    owners = await routing.name_owners(inquiry, model)
    return {} if owners is None else {"owners": owners}


_ROUTING: Final[Mapping[str, Callable[[Inquiry, Metered], Awaitable[dict[str, Any]]]]] = {
    DRAFT: _draft,
    SELF: _self,
    ASK: _ask,
}


async def _compiled(question: Asked, site: _Site, model: Metered) -> dict[str, Any]:
    """Draft as ``oar_ask`` does, over all owners, and send the draft through the front door."""
    schema = site.organisation.name
    async with site.served.client() as client:
        stage = DraftStage(ModelDrafter(model), DrafterSettings(cache_entries=0))

        async def check(sql: str) -> str | None:
            try:
                await client.check(schema, sql)
            except psycopg.Error as error:
                return error.diag.message_primary or type(error).__name__
            return None

        try:
            draft = await stage.draft(question, site.served.application.catalog, check)
            if draft.sql is None:
                return {"outcome": "abstained"}
            result = await client.run(schema, draft.sql)
        except NoValidDraft:
            return {"outcome": "stopped", "reason": "no draft that the hub accepts"}
        except psycopg.Error as error:
            # Not the message: it can quote a row.
            return {"outcome": "stopped", "reason": f"SQLSTATE {error.sqlstate}"}
    return {"outcome": "answered", "rows": list(result_rows(result))}


def _head(job: _Job, model: str, *, everyone: bool) -> dict[str, Any]:
    head: dict[str, Any] = {
        "question": job.question.id,
        "protocol": job.kind,
        "model": model,
        "run": job.run,
    }
    if job.budget is not None:
        head["budget"] = job.budget
    if everyone and job.kind != COMPILED:
        head["everyone"] = True
    return head


def _spent(model: Metered) -> dict[str, Any]:
    """Add up calls, in a way that does not depend on their order."""
    spent = model.spent
    prices = [completion.dollars for completion in spent if completion.dollars is not None]
    return {
        "calls": len(spent),
        "tokens": sum(one.tokens_in + one.tokens_out for one in spent),
        "tokens_in": sum(one.tokens_in for one in spent),
        "tokens_out": sum(one.tokens_out for one in spent),
        "seconds": round(math.fsum(one.seconds for one in spent), 3),
        "dollars": math.fsum(prices) if len(prices) == len(spent) else None,
    }
