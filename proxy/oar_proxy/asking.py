"""Questions that one of the paper's protocols answers, in the place of a client's statement.

Such an answer is rows that a model composed, and no query of published tables: it is put into the
statement as one value, and the hub does the rest. Its columns are those of a column definition
list; without one they are known when the answer is, so that the owners are asked before the
statement can be described.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from oar_proxy import explainforms
from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft
from oar_proxy.errors import (
    FeatureNotSupported,
    InvalidSetting,
    QueryCanceled,
    ResultTypeChanged,
)
from oar_proxy.federation import Execution, HubLink, Prepared, tell
from oar_proxy.ledger import COMPILED
from oar_proxy.modelrows import Binder, Value, columns_of, defined, put, require_table
from oar_proxy.question import Question
from oar_proxy.recognition import recognise
from oar_proxy.safesettings import require_safe
from oar_proxy.sessionstate import SessionState
from oar_proxy.settings import MAX_BUDGET, MIN_BUDGET, PROTOCOLS, Limits, QuestionSettings
from oar_proxy.sql.parsed import Call, Parsed
from oar_proxy.sql.text import Edit, quote_literal, splice

HELD_FOR: Final = 60.0
"""Seconds between the moment an answer was needed for its columns and a first execution that still
gives it; whoever prepares a statement for later gets an answer of then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what of the catalog may be used for it. ``budget`` is in tokens."""

    protocol: str
    question: Question
    catalog: Catalog
    budget: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of one width, and in words how they came about: without a value of any row."""

    rows: tuple[tuple[Value, ...], ...] = field(repr=False)
    account: str
    queries: tuple[str, ...] = ()


class Answering(Protocol):
    """What answers questions by a protocol."""

    async def answer(self, asked: Asked, progress: Callable[[str], None]) -> Answer:
        """Ask the owners, and say of each query when it is over.

        Raises ``OarError`` where there is no answer.
        """
        ...

    async def explain(self, asked: Asked, *, analyze: bool) -> dict[str, Any]:
        """Describe how a question would be answered, by EXPLAIN's keys; no owner is asked.

        With ``analyze`` the question is asked, and what was done is described, whatever its end.
        Raises ``OarError``.
        """
        ...


@dataclass(slots=True)
class _Held:
    """Answers that were needed for their columns: of what was asked, by question, and since when.

    They are given to nobody who asks for something else by then: as another role, say, with another
    purpose or budget, or of other tables.
    """

    asked: Sequence[Asked]
    answers: Mapping[str, Answer]
    at: float


@dataclass(slots=True)
class AskingStatement:
    """A statement with questions for a protocol, as it was when it was prepared."""

    parsed: Parsed
    protocol: str
    explained: explainforms.Options | None
    held: _Held | None = None


class Asking:
    """Statements with questions for a protocol. One for the proxy; it remembers nothing."""

    def __init__(
        self,
        answering: Answering,
        limits: Limits,
        defaults: QuestionSettings,
        is_verified: Callable[[str], bool],
    ) -> None:
        """``is_verified`` tells which questions need no model, and so none of this."""
        self._is_verified = is_verified
        self._answering = answering
        self._limits = limits
        self._defaults = defaults

    def protocol(self, state: SessionState) -> str:
        """Return the session's ``oar.protocol``. Raises ``InvalidSetting``."""
        default = self._defaults.protocol
        return state.one_of("oar.protocol", (default, *(p for p in PROTOCOLS if p != default)))

    def require_compiled(self, state: SessionState) -> None:
        """Raise where a statement that was prepared for a draft meets another protocol."""
        if self.protocol(state) != COMPILED:
            raise ResultTypeChanged(_OTHER_PROTOCOL)

    async def prepare(self, parsed: Parsed, link: HubLink, catalog: Catalog) -> Prepared | None:
        """Prepare a statement that asks a protocol; None for every other.

        Owners are asked where the columns of an answer are not known otherwise. Raises
        ``OarError`` and ``HubRejected``.
        """
        calls = _questions(parsed)
        if not calls:
            return None
        state = await link.state()
        protocol = self.protocol(state)
        if protocol == COMPILED or self._all_verified([call.argument for call in calls]):
            return None
        _refuse_what_is_kept(parsed)
        for call in parsed.calls:
            _refuse_misplaced(call, protocol)
        explained = explainforms.options(parsed.node)
        if explained is not None and explained.form == "xml":
            raise FeatureNotSupported(
                f"EXPLAIN of questions answered by {protocol} has no format XML",
                hint="use TEXT, JSON or YAML",
            )
        await _require_hubs_alone(parsed, link, catalog, protocol)
        statement = AskingStatement(parsed, protocol, explained)
        unnamed = [call for call in calls if call.name == "oar_ask" and not call.columns]
        if not unnamed:
            return Prepared(parsed.text, statement)
        extent = parsed.query_extent
        if parsed.parameters or (explained is not None and extent is None):
            raise FeatureNotSupported(
                f"this statement needs the columns of an answer by {protocol} named",
                hint=_NAME_COLUMNS,
            )
        if explained is not None and extent is not None:
            return Prepared(splice(parsed.text, [Edit(*extent, "SELECT 1")]), statement)
        questions = [call.argument for call in calls if call.argument is not None]
        asked = await self._asked(protocol, questions, link, state, catalog)
        given = await self._answers(asked, link, state)
        statement.held = _Held(asked, given, asyncio.get_running_loop().time())
        guarded = [
            call.replace(f"SELECT * FROM public.oar_ask('') AS r({defined(columns)})")
            for call in unnamed
            if call.argument is not None
            for columns in [columns_of(given[call.argument].rows)]
        ]
        return Prepared(splice(parsed.text, guarded), statement)

    async def execute(
        self,
        statement: AskingStatement,
        link: HubLink,
        catalog: Catalog,
        arguments: Mapping[int, str | None],
    ) -> Execution | None:
        """Answer the questions, or give the answers held; return what the hub executes.

        ``catalog`` is today's, ``arguments`` are the client's parameters; None where they turn out
        to be questions with verified answers. Raises ``OarError`` and ``HubRejected``.
        """
        state = await link.state()
        if self.protocol(state) != statement.protocol:
            raise ResultTypeChanged(_OTHER_PROTOCOL)
        parsed = statement.parsed
        calls = _questions(parsed)
        questions = [_question(call, arguments) for call in calls]
        if self._all_verified(questions):
            return None
        asked = await self._asked(statement.protocol, questions, link, state, catalog)
        if statement.explained is not None:
            explained = statement.explained
            await explained.settings(link)
            documents = await self._explained(asked, state, analyze=explained.analyze)
            plans = [{"Plan": document} for document in documents]
            return explainforms.explanation(explained.form, _lines(documents), plans)
        held, statement.held = statement.held, None
        now = asyncio.get_running_loop().time()
        if held is not None and held.asked == asked and now - held.at <= HELD_FOR:
            given = held.answers
        else:
            given = await self._answers(asked, link, state)
        binder = Binder(len(arguments) + 1, written=parsed.kind == "CopyStmt")
        edits = [
            put(call, given[question].rows, binder.bind)
            for call, question in zip(calls, questions, strict=True)
        ]
        sql = splice(parsed.text, edits)
        return Execution(sql, tuple(binder.parameters), bool(arguments))

    async def lines(self, parsed: Parsed, link: HubLink, catalog: Catalog) -> list[str] | None:
        """Explain a statement that asks a protocol, as `oar_explain` does; None for every other."""
        if not _questions(parsed):
            return None
        state = await link.state()
        protocol = self.protocol(state)
        if protocol == COMPILED or self._all_verified([c.argument for c in _questions(parsed)]):
            return None
        for call in parsed.calls:
            _refuse_misplaced(call, protocol)
        await _require_hubs_alone(parsed, link, catalog, protocol)
        questions = [_question(call, {}) for call in _questions(parsed)]
        asked = await self._asked(protocol, questions, link, state, catalog)
        return _lines(await self._explained(asked, state, analyze=False))

    def _all_verified(self, questions: Sequence[str | None]) -> bool:
        """Tell whether people have answered all questions of a statement; some alone is refused.

        A question that is not known yet (None) counts as one that nobody has answered.
        """
        verified = [question is not None and self._is_verified(question) for question in questions]
        if any(verified) and not all(verified):
            raise FeatureNotSupported(
                "a verified answer and one by another protocol cannot stand in one statement",
                hint="ask them in statements of their own, or SET oar.protocol = 'compiled'",
            )
        return all(verified)

    # --- asking ---------------------------------------------------------------------------------

    async def _answers(
        self, questions: Sequence[Asked], link: HubLink, state: SessionState
    ) -> dict[str, Answer]:
        given: dict[str, Answer] = {}
        reports = state.enabled("oar.progress")

        def progress(message: str) -> None:
            if reports:
                tell(link, state, message)

        async with self._limited(questions, state):
            for asked in questions:
                answer = await self._answering.answer(asked, progress)
                require_table(answer.rows)
                given[asked.question.text] = answer
                tell(link, state, answer.account, detail="\n".join(answer.queries) or None)
        return given

    async def _explained(
        self, questions: Sequence[Asked], state: SessionState, *, analyze: bool
    ) -> list[dict[str, Any]]:
        async with self._limited(questions, state):
            return [
                {"Node Type": "Protocol Query"}
                | await self._answering.explain(asked, analyze=analyze)
                for asked in questions
            ]

    async def _asked(
        self,
        protocol: str,
        questions: Sequence[str],
        link: HubLink,
        state: SessionState,
        catalog: Catalog,
    ) -> list[Asked]:
        require_safe(state)
        budget = self._budget(state)
        readable = await _readable(link, catalog)
        by = [
            Question(question, state.principal, state.settings, state.roles)
            for question in dict.fromkeys(questions)
        ]
        return [Asked(protocol, question, readable, budget) for question in by]

    def _limited(self, questions: Sequence[Asked], state: SessionState) -> _Limit:
        (protocol,) = {asked.protocol for asked in questions}
        return _Limit(state.timeout(self._limits.statement_timeout), protocol)

    def _budget(self, state: SessionState) -> int:
        budget = state.count("oar.budget")
        if budget is None:
            return self._defaults.budget
        if not MIN_BUDGET <= budget <= MAX_BUDGET:
            raise InvalidSetting(
                f'{budget} is outside the valid range for parameter "oar.budget" '
                f"({MIN_BUDGET} .. {MAX_BUDGET})",
                hint=f"SET oar.budget = {self._defaults.budget}, or RESET oar.budget",
            )
        return budget


class _Limit:
    """The time a question may take, its model's calls included."""

    def __init__(self, seconds: float, protocol: str) -> None:
        self._seconds = seconds
        self._protocol = protocol
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError as error:
            raise QueryCanceled(
                f"canceling statement: {self._protocol} did not end within {self._seconds:g} s",
                detail="limit: statement_timeout of the session or of the proxy",
                hint="ask for less, or raise statement_timeout",
            ) from error


# --- what of a statement is allowed -------------------------------------------------------------


_OTHER_PROTOCOL: Final = "oar.protocol is another than when the statement was prepared"
_NAME_COLUMNS: Final = "name them: SELECT … FROM oar_ask('…') AS q(name text, amount numeric)"


def _questions(parsed: Parsed) -> list[Call]:
    return [call for call in parsed.calls if call.name != "oar_explain"]


def _question(call: Call, arguments: Mapping[int, str | None]) -> str:
    question = call.argument
    if question is None and call.parameter is not None:
        question = arguments.get(call.parameter)
    if question is None:
        raise FeatureNotSupported(
            f"{call.name} needs its question as a literal or a parameter that is not NULL",
            hint=f"write SELECT * FROM {call.name}('…')",
            position=call.start + 1,
        )
    return question


def _refuse_what_is_kept(parsed: Parsed) -> None:
    if parsed.kind in ("PrepareStmt", "ViewStmt"):
        kept = "PREPARE" if parsed.kind == "PrepareStmt" else "a view"
        raise FeatureNotSupported(
            f"{kept} cannot keep a question for another protocol than compiled",
            hint="use it in a SELECT, or keep its answer: CREATE TEMP TABLE … AS SELECT …",
        )


def _refuse_misplaced(call: Call, protocol: str) -> None:
    if call.name == "oar_explain":
        raise FeatureNotSupported(
            f"oar_explain cannot stand in a statement with a question for {protocol}",
            hint="ask and explain in statements of their own",
            position=call.start + 1,
        )
    if call.place == "elsewhere" and not (call.name == "oar_ask" and call.columns):
        raise FeatureNotSupported(
            f"{call.name} gives rows, so it belongs in FROM",
            hint=f"write SELECT … FROM {call.name}('…') AS q",
            position=call.start + 1,
        )
    if call.name == "oar_ask" and call.argument is None and not call.columns:
        raise FeatureNotSupported(
            "oar_ask needs its question as a string literal, or its columns named",
            hint=f"{_NAME_COLUMNS}, or use oar_ask_json($1)",
            position=call.start + 1,
        )


async def _require_hubs_alone(
    parsed: Parsed, link: HubLink, catalog: Catalog, protocol: str
) -> None:
    """Refuse published tables beside an answer.

    Its values are rows of owners, and would go into the other owners' queries as constants that no
    policy has decided about.
    """
    edits = [put(call, (), lambda _: "'[]'::pg_catalog.jsonb") for call in _questions(parsed)]
    recognised = await recognise(splice(parsed.text, edits), link, catalog, _no_draft)
    if recognised is not None:
        raise FeatureNotSupported(
            f"an answer by {protocol} and a published table cannot stand in one statement",
            hint="keep the answer and join that: CREATE TEMP TABLE answer AS SELECT * FROM "
            "oar_ask('…')",
        )


async def _no_draft(_text: str, _state: SessionState) -> Draft:
    raise FeatureNotSupported("a question cannot be asked in this place")


async def _readable(link: HubLink, catalog: Catalog) -> Catalog:
    """Return what the session's current role may read: more no model is told of on its behalf."""
    if not catalog.tables:
        return catalog
    schemas = ", ".join(quote_literal(schema) for schema, _ in catalog.tables)
    names = ", ".join(quote_literal(name) for _, name in catalog.tables)
    rows = await link.query(
        "SELECT n.nspname, c.relname"
        f" FROM ROWS FROM (pg_catalog.unnest(ARRAY[{schemas}]::pg_catalog.text[]),"
        f" pg_catalog.unnest(ARRAY[{names}]::pg_catalog.text[])) AS k(schema, name)"
        " JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema"
        " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name"
        " WHERE pg_catalog.has_schema_privilege(n.oid, 'USAGE')"
        " AND pg_catalog.has_table_privilege(c.oid, 'SELECT')"
    )
    found = {(s.decode(), n.decode()) for s, n in rows if s is not None and n is not None}
    return Catalog({key: table for key, table in catalog.tables.items() if key in found})


# --- explaining -----------------------------------------------------------------------------------


def _lines(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    return [line for document in documents for line in _format(document)]


def _format(document: Mapping[str, Any]) -> list[str]:
    """Write a document of plain values: one line a key, and one each for an object in a list."""
    lines = [str(document["Node Type"])]
    for key, value in document.items():
        if key == "Node Type":
            continue
        if not isinstance(value, list):
            lines.append(f"  {key}: {_one_line(value)}")
            continue
        for item in value:
            if isinstance(item, Mapping):
                (first, told), *rest = item.items()
                lines.append(f"  {first} {told}")
                lines.extend(f"    {name}: {_one_line(each)}" for name, each in rest)
            else:
                lines.append(f"  {key}: {_one_line(item)}")
    return lines


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
