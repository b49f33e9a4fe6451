"""The line a statement travels: recognise, cover, route, plan, gate, run, answer, in this order.

`Pipeline` is what a session sees of it (:class:`oar_proxy.federation.Federation`). `prepare` ends
with the columns known and no owner touched; only `execute` touches owners.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import structlog
from oar_adapters.interface import Adapter

from oar_proxy import answer as answers
from oar_proxy import explain, explainforms
from oar_proxy.answer import OneOwnersAnswer
from oar_proxy.asking import Asking, AskingStatement
from oar_proxy.catalog import Catalog
from oar_proxy.compile import Compiler, meaning
from oar_proxy.draft import Draft, DraftStage
from oar_proxy.errors import (
    ConstantsChanged,
    FeatureNotSupported,
    InsufficientPrivilege,
    InternalError,
    InvalidSettingName,
    LedgerUnavailable,
    LimitExceeded,
    OarError,
    QueryCanceled,
    Unanswerable,
    UndefinedParameter,
    refusal_of,
)
from oar_proxy.federation import Copied, Execution, HubLink, Parameter, Piece, Prepared, tell
from oar_proxy.gate import Gate
from oar_proxy.hub.planner import Planner
from oar_proxy.ledger import SUCCESS, Ask, Kind, Ledger, StepOutcome, digest
from oar_proxy.memory import Account, Memory
from oar_proxy.plan import Plan
from oar_proxy.prepared import (
    Argument,
    NamedQuery,
    client_arguments,
    executed,
    inlined,
    named_query,
    reading_note,
)
from oar_proxy.question import Question
from oar_proxy.recognition import guard_text, recognise, require_plain_strings
from oar_proxy.rows import Gathered, Rows
from oar_proxy.run import run
from oar_proxy.sessionstate import OWN, SessionState
from oar_proxy.settings import Limits
from oar_proxy.slots import OwnerSlots
from oar_proxy.sql.parse import comment_question, parse, parse_one
from oar_proxy.sql.text import (
    Edit,
    SyntaxFault,
    quote_identifier,
    quote_literal,
    splice,
    without_comments,
)
from oar_proxy.sql.tree import ast, fetched_cursor, needs_block
from oar_proxy.statement import FederatedStatement
from oar_proxy.stream import Closed, Stream

_WORDS: Final = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*")
_ALWAYS_OURS: Final = frozenset(
    {b"oar_ask", b"oar_ask_json", b"oar_explain", b"execute", b"pg_cancel_backend"}
)

_SETS: Final = re.compile(rb"\bset\s+(?:session\s+|local\s+)?oar\s*\.")
"""How what sets a setting of the proxy's begins: the hub takes any name."""

LEAVING_SECONDS: Final = 5.0
"""How long an owner may take to send what was asked of it last, where its snapshot is to stay."""

MAX_SESSION_VIEWS: Final = 10_000
"""Names of views seen, over all sessions. Forgetting one costs an error of the guard, no answer."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Through:
    """Nothing to ask: the hub executes the text it parsed."""


@dataclass(frozen=True, slots=True)
class _ByName:
    """``EXECUTE name (…)``: what the name means is looked up when it is executed."""


class Pipeline:
    """Everything behind the front door. One for the proxy; sessions share it."""

    def __init__(
        self,
        *,
        adapters: Mapping[str, Adapter],
        gate: Gate,
        ledger: Ledger,
        planner: Planner,
        drafts: DraftStage,
        limits: Limits,
    ) -> None:
        self._adapters = adapters
        self.slots = OwnerSlots(adapters)
        self._gate = gate
        self._ledger = ledger
        self._planner = planner
        self.compiler = Compiler(adapters, gate, planner)
        self._drafts = drafts
        self._limits = limits
        self.memory = Memory(limits)
        self._settling: set[asyncio.Task[None]] = set()
        self._views: set[bytes] = set()
        self._words: frozenset[bytes] = _ALWAYS_OURS
        self._all_suspect = False
        self.catalog = Catalog()
        self.asking: Asking | None = None
        """What answers questions by another protocol than a draft; None: nothing does."""

    def publish(self, catalog: Catalog, views: Sequence[str]) -> None:
        """Put another catalog in force; the hub's ``views`` may use published tables."""
        words: set[bytes] = set(_ALWAYS_OURS)
        wordless = False
        for name in (*(table for _, table in catalog.tables), *views):
            found = _WORDS.findall(name.encode())
            words.update(word.lower() for word in found[:1])
            wordless = wordless or not found
        if catalog is not self.catalog:
            self.compiler.forget_plans()
        self._words = frozenset(words)
        # A name without a letter, such as "2024", is no word of the text: then all are suspect.
        self._all_suspect = wordless
        self.catalog = catalog

    # --- what a session asks --------------------------------------------------------------------

    def suspect(self, text: bytes) -> bool:
        """See `Federation.suspect`: a published name, one of ours, an escape that may hide one."""
        lowered = text.lower()
        if self._all_suspect or b"oar:" in lowered or b"u&" in lowered:
            return True
        words = _WORDS.findall(lowered)
        if not (self._words.isdisjoint(words) and self._views.isdisjoint(words)):
            return True
        return b"oar" in words and _SETS.search(lowered) is not None

    def split(self, text: str) -> Sequence[Piece] | None:
        """See `Federation.split`."""
        question = comment_question(text)
        if question is not None:
            return (Piece(f"SELECT * FROM oar_ask({quote_literal(question)})", 0, True),)
        try:
            statements = parse(text)
        except SyntaxFault:
            return None
        return tuple(
            Piece(
                s.text,
                s.at,
                self.suspect(s.text.encode()),
                fetched_cursor(s.node),
                s.unbound,
            )
            for s in statements
        )

    async def prepare(
        self, text: str, link: HubLink, parameter_oids: Sequence[int] = ()
    ) -> Prepared | None:
        """See `Federation.prepare`. Parameter types matter to the hub alone."""
        del parameter_oids
        question = comment_question(text)
        if question is not None:
            text = f"SELECT * FROM oar_ask({quote_literal(question)})"
        try:
            parsed = parse(text)
        except SyntaxFault:
            return None
        if len(parsed) != 1:
            return None
        node = parsed[0].node
        if self.asking is not None and parsed[0].calls:
            asking = await self.asking.prepare(parsed[0], link, self.catalog)
            if asking is not None:
                return replace(asking, in_block=needs_block(node))
        by_name = executed(node)
        if by_name is not None:
            ours = await self._named(by_name, link)
            return None if ours is None else Prepared(text, _ByName())
        if isinstance(node, ast.VariableSetStmt):
            if (node.name or "").startswith("oar.") and node.name not in OWN:
                raise InvalidSettingName(node.name, OWN)
            return None
        if isinstance(node, ast.ViewStmt) and len(self._views) < MAX_SESSION_VIEWS:
            self._views.update(w.lower() for w in _WORDS.findall(node.view.relname.encode())[:1])
        recognised = await recognise(text, link, self.catalog, self._drafter(link))
        if recognised is None:
            return None
        explained = explainforms.options(node)
        if explained is not None and explained.generic and parsed[0].parameters:
            raise FeatureNotSupported(
                "EXPLAIN (GENERIC_PLAN) over published tables takes no parameters",
                hint="PREPARE the statement, and EXPLAIN EXECUTE it with values",
            )
        in_place = recognised.guard_sql == without_comments(text) and question is None
        return Prepared(
            recognised.guard_sql,
            recognised.statement or _Through(),
            in_place=in_place,
            in_block=needs_block(node),
            note=reading_note((await link.state()).reading),
        )

    async def execute(
        self,
        prepared: Prepared,
        link: HubLink,
        parameters: Sequence[Parameter],
        stack: AsyncExitStack,
    ) -> Execution:
        """See `Federation.execute`."""
        statement = prepared.statement
        if (
            not isinstance(statement, FederatedStatement)
            or statement.calls
            or statement.parsed.kind != "SelectStmt"
        ):
            await link.accepted()
        if isinstance(statement, _ByName):
            inner = await self._inline_execute(prepared.guard_sql, link)
            if inner is None:
                return Execution(prepared.guard_sql)
            await self._check_select(inner, link)
            return await self.execute(inner, link, (), stack)
        if isinstance(statement, AskingStatement):
            assert self.asking is not None
            values = await client_arguments(link, parameters)
            execution = await self.asking.execute(
                statement,
                link,
                self.catalog,
                {number: given.value for number, given in values.items()},
            )
            if execution is not None:
                return execution
            compiled = await recognise(
                statement.parsed.text, link, self.catalog, self._drafter(link)
            )
            if compiled is None or compiled.statement is None:
                raise InternalError("a statement lost its question")
            return await self.execute(
                Prepared(compiled.guard_sql, compiled.statement), link, parameters, stack
            )
        if not isinstance(statement, FederatedStatement):
            return Execution(prepared.guard_sql + prepared.note, (), bool(parameters))
        refreshed = await self._refresh(prepared, statement, link)
        if refreshed is None:
            return Execution(prepared.guard_sql, (), bool(parameters))
        arguments = await client_arguments(link, parameters)
        if refreshed.parsed is statement.parsed:
            types = [arguments[number].type for number in sorted(arguments)]
            await self._require_same_constants(refreshed, statement.state.reading, types)
        statement = refreshed
        if statement.parsed.kind != "SelectStmt":
            await self._check_privileges(prepared.guard_sql, statement, link, parameters)
        if statement.calls:
            resolved = await self._resolve_calls(statement, link, arguments)
            if isinstance(resolved, Execution):
                return replace(resolved, client_parameters=bool(parameters))
            statement = resolved
        return await self._answer(statement, link, arguments, stack)

    # --- questions ------------------------------------------------------------------------------

    def _drafter(self, link: HubLink) -> Any:
        async def draft(text: str, state: SessionState) -> Draft:
            if self.asking is not None and not self._drafts.is_verified(text):
                self.asking.require_compiled(state)
            question = Question(text, state.principal, state.settings, state.roles)
            settings = meaning(state)
            decisions = self._gate.decisions(question.subject)
            closed = [owner for owner in self._adapters if not decisions.asks(owner).permit]

            async def check(sql: str) -> str | None:
                try:
                    guarded = await guard_text(sql, link, self.catalog)
                except SyntaxFault as fault:
                    return str(fault)
                return await self._planner.check(guarded, settings)

            drafted = await self._drafts.draft(question, self.catalog.without(closed), check)
            if drafted.sql is None:
                raise Unanswerable(
                    "the question cannot be answered from the published tables"
                    + (f": {drafted.reason}" if drafted.reason else ""),
                    hint="SELECT * FROM oar.columns lists what is published",
                )
            review = drafted.review
            if review is not None:
                told = f'verified answer "{review.name}", reviewed by {review.reviewer}'
                tell(link, state, f"{told} on {review.reviewed}", detail=drafted.sql)
            elif drafted.drafter == "offline":
                tell(
                    link,
                    state,
                    "drafted by the offline drafter: no language model is configured",
                    detail=drafted.sql,
                )
            return drafted

        return draft

    async def _resolve_calls(
        self, statement: FederatedStatement, link: HubLink, arguments: Mapping[int, Argument]
    ) -> FederatedStatement | Execution:
        """Put the drafts of ``oar_ask_json`` and the plans of ``oar_explain`` in place."""
        draft = self._drafter(link)
        edits: list[Edit] = []
        drafts = list(statement.drafts)
        for call in statement.calls:
            argument = call.argument
            if argument is None and call.parameter is not None:
                given = arguments.get(call.parameter)
                argument = given.value if given is not None else None
            if argument is None:
                raise FeatureNotSupported(
                    f"{call.name} needs its argument as a literal or a parameter that is not NULL",
                    hint=f"write SELECT * FROM {call.name}('…')",
                )
            if call.name == "oar_ask_json":
                drafted = await draft(argument, statement.state)
                drafts.append(drafted)
                name = quote_identifier(call.alias or call.name)
                body = f"SELECT pg_catalog.to_jsonb(q) AS {name} FROM (\n{drafted.sql}\n) AS q"
            else:
                body = explainforms.explanation_query(await self._explain_text(argument, link))
            edits.append(call.replace(body))
        text = splice(statement.parsed.text, edits)
        recognised = await recognise(text, link, self.catalog, draft)
        if recognised is None or recognised.statement is None:
            return Execution(text)
        await self._check_select(Prepared(recognised.guard_sql, recognised.statement), link)
        return replace(recognised.statement, drafts=tuple(drafts))

    async def _explain_text(self, text: str, link: HubLink) -> Sequence[str]:
        """The plan of a statement or a question; no owner is asked."""
        try:
            statements = parse(text)
        except SyntaxFault:
            statements = ()
        if not statements:
            text = f"SELECT * FROM oar_ask({quote_literal(text)})"
            statements = parse(text)
        if len(statements) > 1:
            raise FeatureNotSupported(
                "oar_explain takes one statement, or a question", hint="explain each by itself"
            )
        (parsed,) = statements
        if parsed.unbound is not None:
            raise UndefinedParameter(parsed.unbound[0])
        if self.asking is not None:
            lines = await self.asking.lines(parsed, link, self.catalog)
            if lines is not None:
                return lines
        recognised = await recognise(text, link, self.catalog, self._drafter(link))
        statement = None if recognised is None else recognised.statement
        if recognised is None or statement is None:
            await link.check(text)
            return explain.HUB_ALONE
        await self._check_select(Prepared(recognised.guard_sql, statement), link)
        if statement.calls:
            resolved = await self._resolve_calls(statement, link, {})
            if isinstance(resolved, Execution):
                return explain.HUB_ALONE
            statement = resolved
        plan = await self.compiler.plan(statement, {})
        return explain.lines(plan, self._adapters)

    # --- SQL-level EXECUTE --------------------------------------------------------------------

    async def _named(
        self, node: Any, link: HubLink
    ) -> tuple[NamedQuery, FederatedStatement] | None:
        """What is prepared under a name, if it is ours."""
        named = await named_query(node.name, link)
        if named is None:
            return None
        recognised = await recognise(named.sql, link, self.catalog, self._drafter(link))
        if recognised is None or recognised.statement is None:
            return None
        return named, recognised.statement

    async def _inline_execute(self, text: str, link: HubLink) -> Prepared | None:
        """Put what is prepared under the name now, with its arguments, in the place of EXECUTE."""
        carrier = parse_one(text).node
        node = executed(carrier)
        found = await self._named(node, link)
        if found is None:
            return None
        named, statement = found
        makes_a_table = isinstance(carrier, ast.CreateTableAsStmt)
        if makes_a_table and statement.parsed.kind != "SelectStmt":
            return None  # the hub says so
        if named.reading is not None:
            await self._require_same_constants(statement, named.reading, named.types)
        carried = await inlined(text, node, named, link)
        inner = await recognise(carried, link, self.catalog, self._drafter(link))
        if inner is None or inner.statement is None:
            raise InternalError("a prepared statement lost its published tables")
        return Prepared(inner.guard_sql, inner.statement)

    # --- one statement --------------------------------------------------------------------------

    async def _refresh(
        self, prepared: Prepared, statement: FederatedStatement, link: HubLink
    ) -> FederatedStatement | None:
        """Read the statement as it would be read now; None when it is the hub's alone now.

        As in PostgreSQL, another search path makes a prepared statement mean other tables. That
        the answer still has the columns it was described with is the session's to check.
        """
        if statement.seen_through is link:
            return statement
        state = await link.state()
        path = state.settings.get("search_path")
        same_catalog = statement.catalog.version == self.catalog.version
        if same_catalog and statement.state.settings.get("search_path") == path:
            require_plain_strings(statement.parsed, state)
            return replace(statement, state=state)
        again = await recognise(prepared.guard_sql, link, self.catalog, self._drafter(link))
        if again is None or again.statement is None:
            return None
        return replace(again.statement, drafts=statement.drafts, written=statement.written)

    async def _require_same_constants(
        self, statement: FederatedStatement, then: Mapping[str, str], types: Sequence[str]
    ) -> None:
        """Raise ``ConstantsChanged`` where PostgreSQL would go by what constants meant ``then``.

        ``types`` are those of the parameters.
        """
        now = statement.state.reading
        changed = {name: value for name, value in then.items() if now.get(name) != value}
        # It parses anew for another search path; what calls give is written when it is executed.
        if not changed or "search_path" in changed or statement.calls:
            return
        if not await self.compiler.reads_alike(statement, changed, types):
            raise ConstantsChanged(changed)

    async def _check_select(self, prepared: Prepared, link: HubLink) -> None:
        """Have the hub check the privileges of a SELECT whose guard it never had in hand."""
        if parse_one(prepared.guard_sql).kind == "SelectStmt":
            await link.check(prepared.guard_sql)

    async def _check_privileges(
        self,
        guard_sql: str,
        statement: FederatedStatement,
        link: HubLink,
        parameters: Sequence[Parameter],
    ) -> None:
        """Have the hub check privileges: for a utility statement it does when it is too late."""
        guard = parse_one(guard_sql)
        if guard.query_extent is not None:
            start, end = guard.query_extent
            await link.check(guard.text[start:end], [p.oid for p in parameters])
            return
        for occurrence in statement.occurrences:
            columns = ", ".join(quote_identifier(name) for name in occurrence.columns) or "1"
            schema, name = map(quote_identifier, occurrence.table.key)
            await link.check(f"SELECT {columns} FROM {schema}.{name}")

    async def _answer(
        self,
        statement: FederatedStatement,
        link: HubLink,
        arguments: Mapping[int, Argument],
        stack: AsyncExitStack,
    ) -> Execution:
        account = Account(self.memory)
        stack.callback(account.close)
        explained = explainforms.options(statement.parsed.node)
        literals = {number: argument.literal for number, argument in arguments.items()}
        settings = {} if explained is None else await explained.settings(link)
        started = time.monotonic()
        try:
            plan = await self.compiler.plan(statement, literals)
        except OarError as error:
            await link.accepted()  # or that is what is wrong with it
            refused = isinstance(error, InsufficientPrivilege | LimitExceeded)
            if refused and (explained is None or explained.analyze):
                ask = await self._open(statement, "refused", None)
                await self._close(ask, error.sqlstate, (), error.detail)
            raise
        await link.accepted()
        told = None
        if explained is not None:
            planned = time.monotonic()
            if explained.form == "xml" and not await self._planner.has_xml():
                raise FeatureNotSupported(
                    "EXPLAIN has no format XML here: the hub's PostgreSQL is built without it",
                    hint="use TEXT, JSON or YAML",
                )
            size = await self.compiler.answer_size(plan, literals)
            told = explain.Told(explained, size, settings=settings, planning=planned - started)
            if not explained.analyze:
                return self._explained(plan, told)
            if plan.withheld is not None:
                raise explain.tells_of_groups(plan.withheld)
        answer: OneOwnersAnswer | None = None
        if told is None:
            answer = answers.one_owners_answer(plan, len(arguments), link, account)
            if answer is not None and answer.comes_in_chunks:
                return await self._passed_on(plan, answer, link, stack)
        started = time.monotonic()
        gathered, settle = await self._run(plan, link, account)
        stack.callback(lambda: link.hold(settle()))
        if told is not None:
            took = time.monotonic() - started
            return self._explained(plan, replace(told, reports=gathered.reports, execution=took))
        if answer is not None:
            return await answer.of(gathered.of(answer.number))
        if plan.withheld is not None:
            withheld = await answers.told_of_withheld(plan.withheld, gathered, link)
            tell(link, statement.state, withheld, detail=plan.withheld.by)
        return await answers.answer(plan.statement, gathered, len(arguments), link, account)

    async def _passed_on(
        self, plan: Plan, answer: OneOwnersAnswer, link: HubLink, stack: AsyncExitStack
    ) -> Execution:
        """Answer what one owner answers: in chunks, if it has more rows than one."""

        async def ask(give: Callable[[Rows], Awaitable[None]]) -> Gathered:
            async def give_on(rows: Rows) -> None:
                try:
                    await give(rows)
                except Closed:
                    raise QueryCanceled("canceling statement: no further row is wanted") from None

            gathered, settle = await self._run(plan, link, answer.account, give_on)
            link.hold(settle())
            return gathered

        stream = Stream(ask)
        # A moment that further statements are to read is not to end with this one.
        keeps = plan.statement.state.transaction is not None
        stack.push_async_callback(stream.close, LEAVING_SECONDS if keeps else 0.0)
        rest = _Rest(stream, answer)
        first = await stream.next()
        if first is None:
            return await rest.last()
        return replace(await answer.of(first), more=rest)

    def _explained(self, plan: Plan, told: explain.Told) -> Execution:
        return explainforms.explanation(
            told.options.form,
            explain.lines(plan, self._adapters, told),
            [explain.explained(plan, self._adapters, told)],
        )

    async def _run(
        self,
        plan: Plan,
        link: HubLink,
        account: Account,
        give: Callable[[Rows], Awaitable[None]] | None = None,
    ) -> _Ran:
        """Ask the owners.

        What is returned besides is to be called, on every path: it starts to let go of the owners
        and to write the outcome, in a task that never fails. Best when the hub has been sent all
        it needs, for then both work at once.
        """
        state = plan.statement.state
        # Numbers of rows and keys are not for whoever may see groups only.
        progress = state.enabled("oar.progress") and plan.withheld is None

        def report(message: str) -> None:
            if progress:
                tell(link, state, message)

        report(f"route {plan.route.kind.value}: {plan.route.reason}")
        most = self._limits.statement_timeout
        moment = link.moment(state, most)
        ask = await self._open(plan.statement, plan.route.kind.value, plan.cover.kappa)
        started = time.monotonic()
        sqlstate = SUCCESS
        finished: list[StepOutcome] = []
        try:
            async with AsyncExitStack() as held:
                gathered = await run(
                    plan,
                    ask,
                    slots=self.slots,
                    adapters=self._adapters,
                    gate=self._gate,
                    account=account,
                    seconds=state.timeout(most),
                    progress=report,
                    finished=finished,
                    held=held,
                    moment=moment,
                    give=give,
                )
                open_still = held.pop_all()
        except (Exception, asyncio.CancelledError) as error:
            # One write more before leaving: that it was cancelled is an outcome like any other.
            sqlstate = _sqlstate(error)
            await self._close(ask, sqlstate, finished, refusal_of(error))
            raise
        finally:
            log.info(
                "statement",
                ask=str(ask.id),
                principal=state.principal,
                kind=ask.kind,
                route=plan.route.kind.value,
                kappa=plan.cover.kappa,
                steps=len(plan.steps) or 1,
                sqlstate=sqlstate,
                milliseconds=round((time.monotonic() - started) * 1000, 1),
            )
        return gathered, partial(self._start_settling, open_still, ask, finished)

    def _start_settling(
        self, held: AsyncExitStack, ask: Ask, finished: Sequence[StepOutcome]
    ) -> _Settling:
        """Let go of the owners, and write the outcome of an ask that has all its rows.

        Returns the task of the latter alone: no statement reads what is still held there.
        """
        self._start(self._let_go(held, ask))
        return self._start(self._close(ask, SUCCESS, finished))

    def _start(self, work: Coroutine[Any, Any, None]) -> _Settling:
        settling = asyncio.create_task(work)
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        return settling

    async def settle(self) -> None:
        """Wait until nothing that was asked holds anything at an owner, or lacks its outcome."""
        if self._settling:
            await asyncio.wait(self._settling)

    async def _let_go(self, held: AsyncExitStack, ask: Ask) -> None:
        try:
            await held.aclose()
        except Exception as error:  # noqa: BLE001 - whatever it was, the rows are there
            # And its text may quote them.
            log.warning("snapshot not closed", ask=str(ask.id), error=type(error).__name__)

    async def _open(self, statement: FederatedStatement, route: str, kappa: int | None) -> Ask:
        return await self._ledger.open_ask(
            statement.state.subject,
            digest(statement.written),
            kind=_kind(statement.drafts),
            route=route,
            kappa=kappa,
            catalog_version=statement.catalog.version,
            verified=tuple(d.review.name for d in statement.drafts if d.review is not None),
            application=statement.state.application,
        )

    async def _close(
        self,
        ask: Ask,
        sqlstate: str,
        finished: Sequence[StepOutcome],
        refusal: str | None = None,
    ) -> None:
        try:
            await self._ledger.finish_ask(
                ask, sqlstate=sqlstate, rows=None, finished=finished, refusal=refusal
            )
        except LedgerUnavailable:
            # What was sent is recorded; only the outcome is not, and reads as unknown.
            log.warning("ledger outcome not written", ask=str(ask.id))


def _kind(drafts: Sequence[Draft]) -> Kind:
    if not drafts:
        return "sql"
    return "verified" if all(draft.review is not None for draft in drafts) else "question"


def _sqlstate(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return QueryCanceled.sqlstate
    return error.sqlstate if isinstance(error, OarError) else InternalError.sqlstate


_Settling = asyncio.Task[None]
_Ran = tuple[Gathered, Callable[[], _Settling]]
"""Rows of owners, and what lets go of them and writes the outcome."""


@dataclass(slots=True)
class _Rest:
    """The chunks behind the first. See :class:`oar_proxy.federation.Chunks`."""

    stream: Stream[Rows, Gathered]
    answer: OneOwnersAnswer
    over: bool = False

    @property
    def copied(self) -> Copied | None:
        return self.answer.copied

    async def next(self) -> Execution | None:
        if self.over:
            return None
        rows = await self.stream.next()
        return await self.last() if rows is None else await self.answer.of(rows)

    async def last(self) -> Execution:
        """Make the chunk of what is left, once nothing more comes."""
        self.over = True
        return await self.answer.of(self.stream.result.of(self.answer.number))
