"""From a statement to its plan: what the hub's planner says of it, and what goes to an owner whole.

No owner is asked here, and no row is read: the planner looks at empty tables.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from oar_adapters.interface import Adapter, Capabilities, Output, Statement

from oar_proxy import columnuse, grouping
from oar_proxy.catalog import PublishedTable
from oar_proxy.decision import Decisions
from oar_proxy.errors import FeatureNotSupported, InsufficientPrivilege
from oar_proxy.estimate import Size, answer_size
from oar_proxy.gate import Gate
from oar_proxy.hub import planreading
from oar_proxy.hub.planner import Planner, PlanningFailed
from oar_proxy.hub.planreading import Origin, Reading
from oar_proxy.plan import Plan
from oar_proxy.planning import (
    cover_of,
    expected_rows,
    make_plan,
    subquery_columns,
    whole_plan,
)
from oar_proxy.pushdown import Whole, whole_statement
from oar_proxy.sessionstate import MEANING, SessionState
from oar_proxy.sql.reads import reading_select
from oar_proxy.sql.text import Edit, quote_identifier, splice
from oar_proxy.sql.tree import (
    compares_constants,
    row_by_row,
    rowless_relations,
    selects_columns,
)
from oar_proxy.statement import FederatedStatement
from oar_proxy.units import Unit, as_table, units, with_tables

MAX_PLANS: Final = 128
"""Plans kept, until owners are looked at again: what their adapters say may change then."""

MAX_REMEMBERED: Final = 512
"""Planner's answers kept: planning tables hold no row, so they last as long as the catalog."""

WHOLE_STATEMENT: Final = "whole statement"

Permit = Callable[[str], bool]
"""Given a reduction's name: whether the reduction may be made."""

LONGEST_REMEMBERED: Final = 65_536
"""Characters of the texts an answer is remembered for: a tree takes a hundred times their size."""

Settings = Mapping[str, str]
_T = TypeVar("_T")


LARGE_ROWS: Final = 50_000
"""Rows of a table that come faster in blocks of it than as the answer of a statement. Measured on
200,000 rows of five columns: 0.29 s, and 1.4 s."""


def _reads_large_table(statement: FederatedStatement) -> bool:
    """Tell whether the rows of a large table, or some of them, are all that is asked for."""
    (table, *others) = statement.tables
    columns = {column.name for column in table.columns}
    node = statement.parsed.node
    return (
        not others
        and table.row_estimate >= LARGE_ROWS
        and row_by_row(node, columns)
        and selects_columns(node)
    )


def meaning(state: SessionState) -> dict[str, str]:
    """Return the session's settings that bear on what a text means."""
    return {name: state.settings[name] for name in MEANING if name in state.settings}


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What of a session bears on its plans, besides the statement."""

    meaning: Settings
    max_keys: int | None
    full: bool
    permit: Permit | None
    decisions: Decisions

    def scans_only(self, whole: Whole) -> str | None:
        return self.decisions.scans_only(whole.owner, (table.name for table in whole.tables))

    def permitted(self, reduction: str) -> bool:
        return self.permit is None or self.permit(reduction)


_Key = tuple[object, ...]


class _Last(Generic[_T]):
    """The answers that were asked for last, at most so many, and to no text that is very long."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[_Key, _T] = OrderedDict()

    async def of(self, key: _Key, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer to a key, asking for it if need be. What it raises is not kept."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        answer = await ask()
        if sum(len(part) for part in key if isinstance(part, str)) <= LONGEST_REMEMBERED:
            self._known[key] = answer
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return answer


class Compiler:
    """Makes plans. One for the proxy."""

    def __init__(self, adapters: Mapping[str, Adapter], gate: Gate, planner: Planner) -> None:
        self._adapters = adapters
        self._gate = gate
        self._planner = planner
        self._readings = _Last[Reading](MAX_REMEMBERED)
        self._described = _Last[tuple[Output, ...] | None](MAX_REMEMBERED)
        self._traced = _Last[tuple[Origin | None, ...]](MAX_REMEMBERED)
        self._alike = _Last[bool](MAX_REMEMBERED)
        self._plans = _Last[Plan](MAX_PLANS)
        self.permits: Callable[[str], Permit | None] = _everything
        """Given a principal, what is asked before each reduction, if anything is. No answer depends
        on what it says: that is what is checked with it."""

    def forget_plans(self) -> None:
        """Plan anew from now on: another catalog is published, adapters may say other things."""
        self._plans = _Last[Plan](MAX_PLANS)

    async def plan(self, statement: FederatedStatement, literals: Mapping[int, str]) -> Plan:
        """Plan a statement, unless that was done under the same catalog, policies and settings.

        ``literals`` stand for its parameters by number.
        """
        planning = _planning_text(statement, statement.parsed.given(literals))
        wishes = _Wishes(
            meaning(statement.state),
            statement.state.count("oar.max_keys"),
            statement.state.one_of("oar.reduction", ("forward", "full")) == "full",
            self.permits(statement.state.principal),
            self._gate.decisions(statement.state.subject),
        )
        if planning is None or wishes.permit is not None:
            return await self._fresh_plan(statement, literals, wishes)
        # The planning text says what each name means and each parameter is.
        key = (
            statement.catalog.version,
            self._gate.version,
            self._gate.distinguishes(wishes.decisions),
            statement.parsed.text,
            planning,
            statement.collates_otherwise,
            wishes.max_keys,
            wishes.full,
            statement.state.open_schemas,
            *wishes.meaning.items(),
        )
        # Whoever asked first is not remembered with it: a session would never end.
        nobodys = replace(statement, seen_through=None)
        # Another catalog may be published meanwhile: what is planned now is for the one before.
        plan = await self._plans.of(key, partial(self._fresh_plan, nobodys, literals, wishes))
        compiled = replace(
            plan.statement,
            state=statement.state,
            drafts=statement.drafts,
            seen_through=statement.seen_through,
            written=statement.written,
        )
        return replace(plan, statement=compiled)

    async def _fresh_plan(
        self, statement: FederatedStatement, literals: Mapping[int, str], wishes: _Wishes
    ) -> Plan:
        owners = dict.fromkeys(owner for table in statement.tables for owner in table.owners)
        wishes.decisions.require_asks(owners)
        try:
            checked = columnuse.check(statement, wishes.decisions)
            shown, withheld = grouping.shown(statement, wishes.decisions, literals)
        except InsufficientPrivilege:
            # Tools ask so for columns alone, and may have them.
            if not await self._needs_no_row(statement, literals, wishes.meaning):
                raise
            return self._rowless_plan(statement, wishes)
        statement = shown
        edits = statement.parsed.given(literals)
        if await self._needs_no_row(statement, literals, wishes.meaning):
            plan = self._rowless_plan(statement, wishes)
            return replace(plan, checked=checked, withheld=withheld)
        capabilities = {owner: self._adapters[owner].capabilities for owner in owners}
        whole = await self._whole_plan(statement, capabilities, edits, wishes)
        notes: list[str] = []
        if isinstance(whole, Plan):
            whole = replace(whole, checked=checked)
            if not _reads_large_table(statement):
                return whole
            notes.append("not sent whole: a large table's rows come faster in blocks")
        elif cover_of(statement).kappa == 1:
            notes.append(whole)
        if withheld is None:  # its own query counts over the same rows
            statement = await self._with_units(statement, capabilities, edits, wishes)
        reading = await self._reading(statement, literals, wishes.meaning, notes)
        if reading is not None and withheld is not None:
            reading = grouping.unrelayed(reading, statement, wishes.decisions)
        if reading is not None and wishes.permit is not None:
            reading = reading.only(wishes.permit)
        plan = make_plan(
            statement,
            reading,
            adapters=self._adapters,
            decisions=wishes.decisions,
            notes=notes,
            max_keys=wishes.max_keys,
            full=wishes.full,
            permit=wishes.permit,
        )
        if isinstance(whole, Plan) and any(step.kept for step in plan.steps):
            return whole  # of the rows that the hub would leave out, none is sent
        return replace(plan, checked=checked, withheld=withheld)

    async def answer_size(self, plan: Plan, literals: Mapping[int, str]) -> Size:
        """About how large the answer of a plan is: for an EXPLAIN, which alone wants to know."""
        statement = plan.statement
        planning = _planning_text(statement, statement.parsed.given(literals))
        try:
            if planning is None:
                raise PlanningFailed("0A000", "this statement form is not analysed")
            explained = await self._planner.explain(planning, meaning(statement.state))
        except PlanningFailed:
            return Size(max((step.estimate for step in plan.steps), default=1.0), 0)
        rows = expected_rows(
            statement,
            planreading.read(explained, subquery_columns(statement)),
            adapters=self._adapters,
            decisions=self._gate.decisions(statement.state.subject),
        )
        return answer_size(explained, rows)

    async def reads_alike(
        self, statement: FederatedStatement, then: Settings, types: Sequence[str]
    ) -> bool:
        """Tell whether the constants of a statement mean what they meant under other settings.

        ``types`` are those of its parameters.
        """
        typed = {n: f"(${n}::{kind})" for n, kind in enumerate(types, start=1)}
        planning = _planning_text(statement, statement.parsed.given(typed))
        # What is written is read as the columns it is written to.
        if planning is None or statement.parsed.query_extent is None:
            return False
        now = meaning(statement.state)
        asked = (planning, types, {**now, **then}, now)
        key = (statement.catalog.version, planning, *then.items(), *now.items())
        try:
            return await self._alike.of(key, partial(self._planner.reads_alike, *asked))
        except PlanningFailed:
            return False

    # --- what the planner says ------------------------------------------------------------------

    def _rowless_plan(self, statement: FederatedStatement, wishes: _Wishes) -> Plan:
        """Plan what no owner is asked for."""
        return make_plan(
            statement, Reading({}, ()), adapters=self._adapters, decisions=wishes.decisions
        )

    async def _needs_no_row(
        self, statement: FederatedStatement, literals: Mapping[int, str], settings: Settings
    ) -> bool:
        """Tell whether the answer is the same whatever the rows: tools ask so for columns alone."""
        node = statement.parsed.node
        rowless = set(rowless_relations(node))
        needed = {
            occurrence.number
            for occurrence in statement.occurrences
            if not any(occurrence.relation.start <= p < occurrence.relation.end for p in rowless)
        }
        if not needed or not compares_constants(node):
            return not needed
        reading = await self._reading(statement, literals, settings, [])
        return reading is not None and needed.isdisjoint(reading.scans)

    async def _reading(
        self,
        statement: FederatedStatement,
        literals: Mapping[int, str],
        settings: Settings,
        notes: list[str],
    ) -> Reading | None:
        """What of each table is needed; None, and a note that says why, where that is not known."""
        if statement.collates_otherwise:
            # EXPLAIN prints no COLLATE of a column: its conditions would read as the owners' own.
            notes.append("read unreduced: it has text with a collation of its own")
            return None
        planning = _planning_text(statement, statement.parsed.given(literals))
        if planning is None:
            notes.append("read unreduced: this statement form is not analysed")
            return None

        async def read() -> Reading:
            explained = await self._planner.explain(planning, settings)
            return planreading.read(explained, subquery_columns(statement))

        try:
            return await self._readings.of(_key(statement, planning, settings), read)
        except PlanningFailed as failure:
            notes.append(f"read unreduced: the planner reports {failure.sqlstate}")
            return None

    async def _outputs(
        self,
        statement: FederatedStatement,
        edits: Sequence[Edit],
        extent: tuple[int, int],
        settings: Settings,
    ) -> tuple[Output, ...] | None:
        """Name and type of each output of a query of the statement, if the planner takes it."""
        planning = _planning_text(statement, edits, extent)
        if planning is None:
            return None

        async def describe() -> tuple[Output, ...] | None:
            described = await self._planner.describe(planning, settings)
            if described is None:
                return None
            return tuple(Output(name, kind) for name, kind in described)

        try:
            return await self._described.of(_key(statement, planning, settings), describe)
        except PlanningFailed:
            return None

    async def _output_origins(
        self,
        statement: FederatedStatement,
        edits: Sequence[Edit],
        extent: tuple[int, int],
        settings: Settings,
    ) -> tuple[Origin | None, ...]:
        """The column each output of a query of the statement is, None for another value.

        Behind them come those of what only an ORDER BY needs. Raises :class:`PlanningFailed`.
        """
        planning = _planning_text(statement, edits, extent)
        assert planning is not None  # its outputs are known

        async def trace() -> tuple[Origin | None, ...]:
            explained = await self._planner.explain(planning, settings)
            return planreading.outputs(explained, subquery_columns(statement))

        return await self._traced.of(_key(statement, planning, settings), trace)

    async def origins(
        self, statement: FederatedStatement
    ) -> tuple[tuple[str, str, str] | None, ...]:
        """Schema, table and column each output of a SELECT is, None for another value.

        Raises :class:`FeatureNotSupported` where the planner does not say.
        """
        extent = statement.parsed.query_extent
        settings = meaning(statement.state)
        outputs = None
        if extent is not None:
            outputs = await self._outputs(statement, (), extent, settings)
        if extent is None or outputs is None:
            raise FeatureNotSupported("the types of what is selected are not known to the planner")
        try:
            found = await self._output_origins(statement, (), extent, settings)
        except PlanningFailed as failure:
            raise FeatureNotSupported(f"the planner reports {failure.sqlstate}") from failure
        tables = {occurrence.number: occurrence.table for occurrence in statement.occurrences}
        return tuple(
            None if origin is None else tables[origin.occurrence].origin(origin.column)
            for origin in found[: len(outputs)]
        )

    # --- what goes whole ------------------------------------------------------------------------

    async def _whole_plan(
        self,
        statement: FederatedStatement,
        capabilities: Mapping[str, Capabilities],
        edits: Sequence[Edit],
        wishes: _Wishes,
    ) -> Plan | str:
        """Have the one owner of all tables answer the statement, or say why it does not."""
        whole = whole_statement(statement, capabilities, edits)
        if isinstance(whole, str):
            return f"not sent whole: {whole}"
        rule = wishes.scans_only(whole)
        if rule is not None:
            return f"not sent whole: rule {rule} is about scans"
        if not wishes.permitted(WHOLE_STATEMENT):
            return "not sent whole: it is left out"
        query = await self._whole_query(statement, whole, edits, wishes)
        if query is None:
            return "the owner's answer to the whole statement might differ from the hub's"
        return whole_plan(statement, whole, query)

    async def _whole_query(
        self,
        statement: FederatedStatement,
        whole: Whole,
        edits: Sequence[Edit],
        wishes: _Wishes,
    ) -> Statement | None:
        """The query with the types its answer has to have, if its owner can give them."""
        outputs = await self._outputs(statement, edits, (whole.start, whole.end), wishes.meaning)
        if outputs is None:
            return None
        cap = wishes.decisions.row_cap(whole.owner).number
        query = Statement(whole.sql, whole.tables, outputs, cap + 1)
        return query if self._adapters[whole.owner].supports_statement(query) else None

    async def _with_units(
        self,
        statement: FederatedStatement,
        capabilities: Mapping[str, Capabilities],
        edits: Sequence[Edit],
        wishes: _Wishes,
    ) -> FederatedStatement:
        """Put tables in the place of the subqueries that one owner answers by itself."""
        if statement.collates_otherwise:
            return statement
        found: list[tuple[Unit, PublishedTable]] = []
        end = 0
        for unit in units(statement, capabilities, edits):
            if unit.whole.start < end:
                continue  # inside of one that goes whole
            if wishes.scans_only(unit.whole) or not wishes.permitted(f"subquery {unit.text}"):
                continue
            query = await self._whole_query(statement, unit.whole, edits, wishes)
            if query is None:
                continue
            extent = (unit.whole.start, unit.whole.end)
            try:
                origins = await self._output_origins(statement, edits, extent, wishes.meaning)
            except PlanningFailed:
                continue
            origins = origins[: len(query.outputs)]
            table = as_table(unit, query, origins, capabilities[unit.whole.owner])
            if table is not None:
                found.append((unit, table))
                end = unit.whole.end
        return with_tables(statement, found) if found else statement


def _everything(_principal: str) -> None:
    """Let every reduction be made."""


def _key(statement: FederatedStatement, planning: str, settings: Settings) -> _Key:
    """What the planner's answer about a text depends on."""
    return (statement.catalog.version, planning, *settings.items())


def _planning_text(
    statement: FederatedStatement,
    parameters: Sequence[Edit],
    extent: tuple[int, int] | None = None,
) -> str | None:
    """The query of a statement, or one in it, over planning tables and opaque row sources."""
    extent = extent or statement.parsed.query_extent
    reads = extent is None
    start, end = extent or (0, len(statement.parsed.text))
    edits = [*parameters, *statement.prefix_edits()]
    for occurrence in statement.occurrences:
        alias = quote_identifier(planreading.marker(occurrence.number))
        edits.append(occurrence.relation.replace(_planning_source(occurrence.table, alias)))
    for other in statement.others:
        if not other.columns:
            return None
        edits.append(other.relation.replace(_any_row(other.columns)))
    inside = [
        Edit(e.start - start, e.end - start, e.replacement)
        for e in edits
        if start <= e.start and e.end <= end
    ]
    text = splice(statement.parsed.text[start:end], inside)
    if not reads:
        return text
    target = () if statement.target is None else statement.target.columns
    select = reading_select(text, target, _any_row)
    names = {quote_identifier(planreading.marker(o.number)) for o in statement.occurrences}
    # A table that is not in it would pass for one whose rows do not matter.
    return select if select is not None and all(name in select for name in names) else None


def _any_row(columns: Sequence[tuple[str, str]]) -> str:
    listed = ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns)
    return f"SELECT * FROM oar_internal.any_row() AS r({listed})"


def _planning_source(table: PublishedTable, alias: str) -> str:
    if table.holders[0].table.derived is None:
        return f"SELECT * FROM oar_plan.{quote_identifier(table.planning_name)} AS {alias}"
    listed = ", ".join(f"{quote_identifier(c.name)} {c.type}" for c in table.columns)
    return f"SELECT * FROM oar_internal.any_table() AS {alias}({listed})"
