"""The line a statement travels: recognise, cover, route, plan, gate, run, answer, in this order.

`Pipeline` is what a session sees of it (:class:`oar_proxy.federation.Federation`). `prepare` ends
with the columns known and no owner touched; only `execute` touches owners.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_adapters.interface import Adapter

from oar_proxy import answer as answers
from oar_proxy import explain, explainforms
from oar_proxy.answer import OneOwnersAnswer
from oar_proxy.asking import Asking, AskingStatement
from oar_proxy.asks import Asks
from oar_proxy.catalog import Catalog
from oar_proxy.chunks import Give, in_chunks
from oar_proxy.compile import Compiler, meaning
from oar_proxy.draft import Draft, DraftStage
from oar_proxy.errors import (
    ConstantsChanged,
    FeatureNotSupported,
    InsufficientPrivilege,
    InternalError,
    InvalidSettingName,
    LimitExceeded,
    OarError,
    Unanswerable,
    UndefinedParameter,
)
from oar_proxy.federation import Execution, HubLink, Parameter, Piece, Prepared, tell
from oar_proxy.gate import Gate
from oar_proxy.hub.planner import Planner
from oar_proxy.ledger import Ledger
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
from oar_proxy.recognition import (
    DraftQuestion,
    Recognised,
    guard_text,
    recognise,
    require_plain_strings,
)
from oar_proxy.rows import Gathered
from oar_proxy.sessionstate import OWN, SessionState
from oar_proxy.settings import Limits
from oar_proxy.sql.parse import comment_question, parse, parse_one
from oar_proxy.sql.text import (
    Edit,
    SyntaxFault,
    quote_identifier,
    quote_literal,
    splice,
    without_comments,
)
from oar_proxy.sql.tree import ast, ends_transaction, fetched_cursor, needs_block
from oar_proxy.statement import FederatedStatement
from oar_proxy.suspects import Suspects

LEAVING_SECONDS: Final = 5.0
"""How long an owner may take to send what was asked of it last, where its snapshot is to stay."""


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
        self._gate = gate
        self.asks = Asks(adapters, gate, ledger, limits)
        self._planner = planner
        self.compiler = Compiler(adapters, gate, planner)
        self._drafts = drafts
        self.memory = Memory(limits)
        self._suspects = Suspects()
        # Not a method that calls another: every message of a client's is asked about.
        self.suspect = self._suspects.suspect
        """See `Federation.suspect`."""
        self.catalog = Catalog()
        self.asking: Asking | None = None
        """What answers questions by another protocol than a draft; None: nothing does."""

    def publish(self, catalog: Catalog, views: Sequence[str]) -> None:
        """Put another catalog in force; the hub's ``views`` may use published tables."""
        if catalog is not self.catalog:
            self.compiler.forget_plans()
        self._suspects.publish((*(table for _, table in catalog.tables), *views))
        self.catalog = catalog

    # --- what a session asks --------------------------------------------------------------------

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
                ends_transaction(s.node),
            )
            for s in statements
        )

    async def prepare(self, text: str, link: HubLink) -> Prepared | None:
        """See `Federation.prepare`."""
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
        if isinstance(node, ast.ViewStmt):
            self._suspects.add_view(node.view.relname)
        recognised = await self._recognise(text, link)
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
            return await self._execute_named(prepared, link, stack)
        if isinstance(statement, AskingStatement):
            return await self._execute_asking(statement, link, parameters, stack)
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

    async def _execute_asking(
        self,
        statement: AskingStatement,
        link: HubLink,
        parameters: Sequence[Parameter],
        stack: AsyncExitStack,
    ) -> Execution:
        """Execute a statement whose questions another protocol answers, unless people have."""
        assert self.asking is not None
        arguments = await client_arguments(link, parameters)
        values = {number: given.value for number, given in arguments.items()}
        execution = await self.asking.execute(statement, link, self.catalog, values)
        if execution is not None:
            return execution
        text = statement.parsed.text
        compiled = await self._recognise(text, link)
        if compiled is None or compiled.statement is None:
            raise InternalError("a statement lost its question")
        verified = Prepared(compiled.guard_sql, compiled.statement)
        return await self.execute(verified, link, parameters, stack)

    # --- questions ------------------------------------------------------------------------------

    async def _recognise(self, text: str, link: HubLink) -> Recognised | None:
        return await recognise(text, link, self.catalog, self._drafter(link))

    def _drafter(self, link: HubLink) -> DraftQuestion:
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
        recognised = await self._recognise(text, link)
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
        recognised = await self._recognise(text, link)
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
        recognised = await self._recognise(named.sql, link)
        if recognised is None or recognised.statement is None:
            return None
        return named, recognised.statement

    async def _execute_named(
        self, prepared: Prepared, link: HubLink, stack: AsyncExitStack
    ) -> Execution:
        """Execute what is prepared under the name now."""
        inner = await self._inlined(prepared.guard_sql, link)
        if inner is None:
            return Execution(prepared.guard_sql)
        await self._check_select(inner, link)
        return await self.execute(inner, link, (), stack)

    async def _inlined(self, text: str, link: HubLink) -> Prepared | None:
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
        inner = await self._recognise(carried, link)
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
        again = await self._recognise(prepared.guard_sql, link)
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
                await self.asks.refused(statement, error)
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
            answer = answers.one_owners_answer(plan, len(arguments), account)
            if answer is not None and answer.comes_in_chunks:
                return await self._passed_on(plan, answer, link, stack)
        started = time.monotonic()
        gathered, settle = await self.asks.run(plan, link, account)
        stack.callback(lambda: link.hold(settle()))
        if told is not None:
            took = time.monotonic() - started
            return self._explained(plan, replace(told, reports=gathered.reports, execution=took))
        if answer is not None:
            return answer.of(gathered.of(answer.number))
        if plan.withheld is not None:
            withheld = await answers.told_of_withheld(plan.withheld, gathered, link)
            tell(link, statement.state, withheld, detail=plan.withheld.by)
        return answers.answer(plan.statement, gathered, len(arguments), account)

    async def _passed_on(
        self, plan: Plan, answer: OneOwnersAnswer, link: HubLink, stack: AsyncExitStack
    ) -> Execution:
        """Answer what one owner answers: in chunks, if it has more rows than one."""

        async def ask(give: Give) -> Gathered:
            gathered, settle = await self.asks.run(plan, link, answer.account, give)
            link.hold(settle())
            return gathered

        # A moment that further statements are to read is not to end with this one.
        keeps = plan.statement.state.transaction is not None
        return await in_chunks(ask, answer, stack, LEAVING_SECONDS if keeps else 0.0)

    def _explained(self, plan: Plan, told: explain.Told) -> Execution:
        return explainforms.explanation(
            told.options.form,
            explain.lines(plan, self._adapters, told),
            [explain.explained(plan, self._adapters, told)],
        )
