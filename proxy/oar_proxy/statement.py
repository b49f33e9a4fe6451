"""From a statement's text to what of it is published: the first stage of the line.

Names are resolved by the client's own hub session (search path, temporary tables that shadow,
views), on the parse tree; a question becomes its draft; a view's body takes the view's place. What
comes out is one text with the places of every occurrence of a published table in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oar_proxy.catalog import Catalog, PublishedColumn, PublishedTable
from oar_proxy.drafters import Draft
from oar_proxy.errors import (
    FeatureNotSupported,
    InternalError,
    LimitExceeded,
    ReadOnly,
)
from oar_proxy.federation import HubReader
from oar_proxy.sessionstate import SESSION_STATE, SessionState
from oar_proxy.sql.parse import Call, Parsed, Relation, parse
from oar_proxy.sql.text import (
    Edit,
    SyntaxFault,
    built_in_type,
    quote_identifier,
    quote_literal,
    splice,
    without_comments,
)
from oar_proxy.sql.tree import grouped_selects, materializes, range_names, repeated_relations

MAX_VIEW_DEPTH: Final = 16
"""Views on views are expanded this deep; PostgreSQL itself refuses cycles."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a published table.

    Those in a subquery that is written twice share a ``number``: PostgreSQL has to see one
    expression, so they are planned, read and answered as one.
    ``columns`` are those the statement may use, in the table's order.
    """

    number: int
    table: PublishedTable
    relation: Relation
    columns: tuple[str, ...]

    @property
    def reference(self) -> str:
        """What the statement calls it."""
        return self.relation.reference

    def answered(self, rows: str) -> Edit:
        """Put a query for its rows in the place of its name."""
        names = map(quote_identifier, self.table.key)
        return self.relation.replace(rows, ".".join(names) if self.relation.as_value else None)


@dataclass(frozen=True, slots=True)
class OtherRelation:
    """A relation of the hub itself (a table, a temporary table …) beside published ones.

    ``collates_otherwise``: it has text that does not compare by its code points.
    """

    relation: Relation
    columns: tuple[tuple[str, str], ...]
    collates_otherwise: bool = False


@dataclass(frozen=True)
class FederatedStatement:
    """A statement of ours, ready to be planned. ``calls`` are left for the time of execution."""

    parsed: Parsed
    state: SessionState
    catalog: Catalog
    occurrences: tuple[Occurrence, ...]
    others: tuple[OtherRelation, ...]
    calls: tuple[Call, ...]
    seen_through: HubReader | None = field(repr=False, compare=False)
    """The link that ``state`` and the names were asked through; None in a plan for any session."""
    drafts: tuple[Draft, ...] = ()
    written: str = ""
    """The client's text: with comments, names of views and questions."""
    target: OtherRelation | None = None
    """What it writes to."""

    def with_text(self, text: str, tables: Mapping[str, PublishedTable]) -> FederatedStatement:
        """Say the same in another text, in which new names stand for ``tables``."""
        parsed = _parse_one(text)
        meant = {(o.relation.schema, o.relation.name): o.table for o in self.occurrences}
        meant |= {(None, name): table for name, table in tables.items()}
        others = {(o.relation.schema, o.relation.name): o for o in self.others}
        occurrences, rest = _sort_relations(parsed, meant, others)
        return replace(self, parsed=parsed, occurrences=occurrences, others=rest)

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """The distinct published tables, in the order of the text."""
        return tuple({o.table.key: o.table for o in self.occurrences}.values())

    @property
    def collates_otherwise(self) -> bool:
        """Tell whether text may be compared here other than by its code points (R45 to R47)."""
        held = (*self.others, *(() if self.target is None else (self.target,)))
        return any(other.collates_otherwise for other in held) or self.parsed.collates_otherwise

    def prefix_edits(self) -> list[Edit]:
        """Drop the schema from columns such as ``logistics.deliveries.city``: an alias has none."""
        ours = {(o.table.schema, o.table.name) for o in self.occurrences if not o.relation.alias}
        return [
            Edit(start, end, "")
            for schema, table, start, end in self.parsed.qualified
            if (schema, table) in ours
        ]


@dataclass(frozen=True, slots=True)
class Recognised:
    """A statement, with what the hub parses in its place. ``statement`` None: nothing to ask."""

    guard_sql: str
    statement: FederatedStatement | None


DraftQuestion = Callable[[str, SessionState], Awaitable[Draft]]
"""Draft a question for this session; abstention and invalid drafts are raised."""


async def recognise(
    text: str, link: HubReader, catalog: Catalog, draft: DraftQuestion
) -> Recognised | None:
    """Decide whether one statement is ours; None when the hub alone can answer it.

    Raises ``OarError`` for statements that have no meaning across owners, :class:`HubRejected`.
    """
    parsed = _parse_one(without_comments(text))
    if not parsed.relations and not parsed.calls and not parsed.targets:
        return None
    drafts: list[Draft] = []
    if any(call.name == "oar_ask" for call in parsed.calls):
        parsed, drafts = await _draft_questions(parsed, await link.state(), draft)
    guarded = await _for_guards(parsed, link, catalog)
    try:
        return await _sorted_out(text, guarded, link, catalog, tuple(drafts))
    except SyntaxFault:
        # A query cannot stand where the name of a view or of a masked table does (TABLESAMPLE): the
        # hub says what it makes of that, and its guards stand behind it.
        return Recognised(guarded[0].text, None) if drafts else None


async def _sorted_out(
    text: str,
    guarded: tuple[Parsed, SessionState, _Resolved],
    link: HubReader,
    catalog: Catalog,
    drafts: tuple[Draft, ...],
) -> Recognised | None:
    guard_sql = guarded[0].text
    parsed, state, resolved, as_owner = await _expand_views(*guarded, link, catalog)
    occurrences, others = _sort_relations(parsed, *_meant(parsed, resolved, catalog))
    later = tuple(call for call in parsed.calls if call.name != "oar_ask")
    targets = [(t, found) for t in parsed.targets if (found := resolved.get((t.schema, t.name)))]
    for _, found in targets:
        if (found["schema"], found["name"]) in catalog.tables:
            raise ReadOnly(
                f'cannot write to "{found["schema"]}.{found["name"]}": '
                "its rows belong to another owner",
                hint="published tables are read-only; write to a temporary table instead",
            )
    if not occurrences and not later:
        return Recognised(guard_sql, None) if drafts else None
    if as_owner is not None:
        _refuse_other_policies(as_owner, guarded, parsed, resolved)
    _refuse_two_of_a_name(parsed, occurrences)
    _refuse_what_has_no_meaning(parsed, state, later)
    # The hub keeps these over the guards; using them later is recognised then.
    if parsed.kind == "PrepareStmt":
        return Recognised(guard_sql, None)
    if parsed.kind == "ViewStmt":
        return Recognised(guard_sql, None) if guard_sql != without_comments(text) else None
    if any(occurrence.table.masked for occurrence in occurrences):
        parsed = _with_masks(parsed, occurrences)
        occurrences, others = _sort_relations(parsed, *_meant(parsed, resolved, catalog))
        later = tuple(call for call in parsed.calls if call.name != "oar_ask")
    target = _other(*targets[0]) if len(targets) == 1 else None
    return Recognised(
        guard_sql,
        FederatedStatement(
            parsed, state, catalog, occurrences, others, later, link, drafts, text, target
        ),
    )


async def guard_text(text: str, link: HubReader, catalog: Catalog) -> str:
    """Return the text the hub can check in the place of one statement (see `Recognised`)."""
    parsed, _, _ = await _for_guards(_parse_one(text), link, catalog)
    return parsed.text


def guard_qualified(text: str, catalog: Catalog) -> str:
    """The same for a text whose names have their schemas, and so mean the same to every session."""
    parsed = _parse_one(text)
    resolved: _Resolved = {
        (r.schema, r.name): {"schema": r.schema, "name": r.name} for r in parsed.relations
    }
    return splice(text, _dependent_columns(parsed, resolved, catalog))


def _parse_one(text: str) -> Parsed:
    statements = parse(text)
    if len(statements) != 1:
        raise InternalError("a piece of a query string holds more than one statement")
    return statements[0]


def _refuse_what_has_no_meaning(parsed: Parsed, state: SessionState, later: Sequence[Call]) -> None:
    if parsed.locks_rows:
        raise FeatureNotSupported(
            "cannot lock rows of a published table: they stay with their owner",
            hint="leave out FOR UPDATE or FOR SHARE",
        )
    if materializes(parsed.node):
        raise FeatureNotSupported(
            "cannot keep a published table in a materialized view: its rows stay with their owner",
            hint="use CREATE TEMPORARY TABLE … AS for this session, or a temporary view",
        )
    require_plain_strings(parsed, state)
    for call in later:
        if call.place == "elsewhere":
            raise FeatureNotSupported(
                f"{call.name} cannot be called here",
                hint=f"use it in FROM: SELECT … FROM {call.name}('…') AS q",
            )


def require_plain_strings(parsed: Parsed, state: SessionState) -> None:
    """Raise ``FeatureNotSupported`` where the hub would read strings otherwise than the proxy."""
    if state.settings.get("standard_conforming_strings") == "off" and "\\" in parsed.text:
        raise FeatureNotSupported(
            "backslashes in a statement over published tables need standard_conforming_strings",
            hint="SET standard_conforming_strings = on, or write E'…' strings",
        )


def _refuse_two_of_a_name(parsed: Parsed, occurrences: Sequence[Occurrence]) -> None:
    """Refuse ``shop.d.x`` where something else is called ``d``: without schema it may mean that.

    See `FederatedStatement.prefix_edits`.
    """
    own = {
        (o.table.schema, o.table.name): {
            p.relation.start for p in occurrences if p.table.key == o.table.key
        }
        for o in occurrences
        if not o.relation.alias
    }
    qualified = {(schema, table) for schema, table, _, _ in parsed.qualified} & own.keys()
    if not qualified:
        return
    ends = {o.relation.start: o.relation.end for o in occurrences}
    for name, position in range_names(parsed.node):
        for schema, table in qualified:
            places = own[schema, table]
            ours = position is not None and any(p <= position < ends[p] for p in places)
            if name == table and not ours:
                raise FeatureNotSupported(
                    f'"{schema}.{table}" is named with its schema, and "{table}" is another one',
                    hint=f"give {schema}.{table} an alias that is used for nothing else",
                )


# --- questions ------------------------------------------------------------------------------


async def _draft_questions(
    parsed: Parsed, state: SessionState, draft: DraftQuestion
) -> tuple[Parsed, list[Draft]]:
    edits: list[Edit] = []
    drafts: list[Draft] = []
    for call in parsed.calls:
        if call.name != "oar_ask":
            continue
        if call.place == "elsewhere":
            raise FeatureNotSupported(
                "oar_ask gives rows, so it belongs in FROM",
                hint="write SELECT … FROM oar_ask('…') AS q, without a column definition list",
                position=call.start + 1,
            )
        if call.argument is None:
            raise FeatureNotSupported(
                "oar_ask needs its question as a string literal: "
                "its columns have to be known before any parameter is",
                hint="use oar_ask_json($1) to pass the question as a parameter",
                position=call.start + 1,
            )
        answer = await draft(call.argument, state)
        assert answer.sql is not None
        drafts.append(answer)
        edits.append(derived_call(call, answer.sql))
    return _parse_one(splice(parsed.text, edits)), drafts


def derived_call(call: Call, sql: str) -> Edit:
    """Put a query in the place of a call, in FROM or as all there is to select."""
    # A line break ends a comment that may close the query.
    query = f"(\n{sql.rstrip().rstrip(';')}\n)"
    if call.place == "select":
        return Edit(call.start, call.end, f"* FROM {query} AS {quote_identifier(call.name)}")
    name = "" if call.alias else f" AS {quote_identifier(call.name)}"
    return Edit(call.start, call.end, query + name)


# --- names ----------------------------------------------------------------------------------


_Name = tuple[str | None, str]
_Resolved = dict[_Name, dict[str, Any]]


async def _for_guards(
    parsed: Parsed, link: HubReader, catalog: Catalog
) -> tuple[Parsed, SessionState, _Resolved]:
    state, resolved = await _look(link, _names(parsed), catalog)
    edits = _dependent_columns(parsed, resolved, catalog)
    if edits:
        parsed = _parse_one(splice(parsed.text, edits))
    return parsed, state, resolved


def _names(parsed: Parsed) -> tuple[tuple[str | None, str], ...]:
    return tuple(dict.fromkeys((r.schema, r.name) for r in (*parsed.relations, *parsed.targets)))


def _dependent_columns(parsed: Parsed, resolved: _Resolved, catalog: Catalog) -> list[Edit]:
    """Group by what a grouped primary key determines, too.

    PostgreSQL accepts ``SELECT t.name … GROUP BY t.id`` only where ``t`` is a table with that key;
    the guard is a view. The groups stay the same, also where an outer join makes the key NULL.
    """
    edits: list[Edit] = []
    for grouped, positions in grouped_selects(parsed.node):
        # By position: a CTE may bear the name of a table.
        for relation in parsed.relations:
            if not any(relation.start <= position < relation.end for position in positions):
                continue
            alias = relation.reference
            found = resolved.get((relation.schema, relation.name))
            table = catalog.tables.get((found["schema"], found["name"])) if found else None
            if table is None or not table.primary_key:
                continue
            own = {
                column: position
                for qualifier, column, position in grouped
                if qualifier == alias or (qualifier is None and column in table.primary_key)
            }
            if not own.keys() >= set(table.primary_key):
                continue
            added = [
                f"{quote_identifier(alias)}.{quote_identifier(column.name)}, "
                for column in table.columns
                if column.name not in own and (relation.whole or column.name in parsed.column_names)
            ]
            if added:
                place = own[table.primary_key[0]]
                edits.append(Edit(place, place, "".join(added)))
    return edits


async def _expand_views(
    parsed: Parsed,
    state: SessionState,
    resolved: _Resolved,
    link: HubReader,
    catalog: Catalog,
) -> tuple[Parsed, SessionState, _Resolved, str | None]:
    """Put the queries of views in their place; tell a view that reads as somebody else, if any."""
    as_owner: str | None = None
    for _ in range(MAX_VIEW_DEPTH):
        edits: list[Edit] = []
        for relation in parsed.relations:
            found = resolved.get((relation.schema, relation.name))
            if found is None or found["described"] is None:
                continue
            if definition := found["described"]["definition"]:
                edits.append(relation.replace(definition.rstrip().rstrip(";")))
                as_owner = relation.name if found["described"]["as_owner"] else as_owner
        expandable = parsed.kind not in ("PrepareStmt", "ViewStmt")
        if not edits or not expandable:
            return parsed, state, resolved, as_owner
        parsed = _parse_one(splice(parsed.text, edits))
        state, resolved = await _look(link, _names(parsed), catalog)
    raise LimitExceeded(f"views are nested more than {MAX_VIEW_DEPTH} deep")


def _refuse_other_policies(
    view: str,
    before: tuple[Parsed, SessionState, _Resolved],
    parsed: Parsed,
    resolved: _Resolved,
) -> None:
    """Refuse tables of a view under a row security policy: the view's owner sees other rows."""

    def secured(parsed: Parsed, resolved: _Resolved) -> Counter[tuple[str, str]]:
        found = (resolved.get((r.schema, r.name)) for r in parsed.relations)
        return Counter(
            (each["schema"], each["name"])
            for each in found
            if each is not None and each["described"] and each["described"]["row_security"]
        )

    for _, table in secured(parsed, resolved) - secured(before[0], before[2]):
        raise FeatureNotSupported(
            f'view "{view}" reads "{table}" as its owner, under other row security policies than '
            "yours, which cannot be done beside published tables",
            hint=f"read {table} by its name, or have the view made WITH (security_invoker)",
        )


def _with_masks(parsed: Parsed, occurrences: Sequence[Occurrence]) -> Parsed:
    """Read constants in the place of masked columns, as a view does: SQL then makes it right."""
    masked = [o for o in occurrences if o.table.masked]
    edits = [o.relation.replace(_masking(o, parsed)) for o in masked]
    unnamed = {(o.table.schema, o.table.name) for o in masked if not o.relation.alias}
    edits += [
        Edit(start, end, "")
        for schema, table, start, end in parsed.qualified
        if (schema, table) in unnamed
    ]
    return _parse_one(splice(parsed.text, edits))


def _masking(occurrence: Occurrence, parsed: Parsed) -> str:
    used = _used(occurrence.relation, occurrence.table, parsed)
    listed = [_read(column) for column in used]
    name = (occurrence.relation.schema, occurrence.relation.name)
    spelled = ".".join(quote_identifier(part) for part in name if part is not None)
    return f"SELECT {', '.join(listed)} FROM {spelled}"


def _read(column: PublishedColumn) -> str:
    name = quote_identifier(column.name)
    if column.mask is None:
        return name
    value = column.mask.value
    constant = "NULL" if value is None else quote_literal(value)
    return f"CAST({constant} AS {built_in_type(column.type)}) AS {name}"


async def _look(
    link: HubReader, names: Sequence[_Name], catalog: Catalog
) -> tuple[SessionState, _Resolved]:
    """Ask the client's session what names mean there, and for its settings, in one round trip."""
    if not names:
        return await link.state(), {}
    published = [
        (schema, name)
        for qualifier, name in names
        for schema in ((qualifier,) if qualifier is not None else catalog.schemas)
        if (schema, name) in catalog.tables
    ]
    listed = (
        [".".join(quote_identifier(part) for part in name if part is not None) for name in names],
        [schema for schema, _ in published],
        [name for _, name in published],
    )
    named = f"oar_internal.named({', '.join(map(_text_array, listed))})"
    ((state, found),) = await link.query(f"SELECT {SESSION_STATE}, {named}")
    resolved = {} if found is None else {names[i["number"] - 1]: i for i in json.loads(found)}
    return link.learn(state), resolved


def _text_array(values: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(quote_literal, values))}]::pg_catalog.text[]"


def _sort_relations(
    parsed: Parsed,
    tables: Mapping[_Name, PublishedTable],
    others: Mapping[_Name, OtherRelation],
) -> tuple[tuple[Occurrence, ...], tuple[OtherRelation, ...]]:
    """Tell published relations from those of the hub, of which ``others`` are known."""
    occurrences: list[Occurrence] = []
    rest: list[OtherRelation] = []
    repeated = repeated_relations(parsed.node)
    repeated |= {first: first for first in repeated.values()}
    shared: dict[int, int] = {}
    for relation in parsed.relations:
        name = (relation.schema, relation.name)
        table = tables.get(name)
        if table is None:
            known = others.get(name) or OtherRelation(relation, ())
            rest.append(replace(known, relation=relation))
            continue
        named = _with_rows(relation, table, parsed)
        used = tuple(c.name for c in _used(named, table, parsed) if c.mask is None)
        number = len(occurrences) + 1
        for position, first in repeated.items():
            if relation.start <= position < relation.end:
                number = shared.setdefault(first, number)
        occurrences.append(Occurrence(number, table, named, used))
    return tuple(occurrences), tuple(rest)


def _used(relation: Relation, table: PublishedTable, parsed: Parsed) -> list[PublishedColumn]:
    return [c for c in table.columns if relation.whole or c.name in parsed.column_names]


def _meant(
    parsed: Parsed, resolved: _Resolved, catalog: Catalog
) -> tuple[dict[_Name, PublishedTable], dict[_Name, OtherRelation]]:
    """What the session found under the names in FROM."""
    tables: dict[_Name, PublishedTable] = {}
    others: dict[_Name, OtherRelation] = {}
    for relation in parsed.relations:
        name = (relation.schema, relation.name)
        found = resolved.get(name)
        if found is None:
            continue
        table = catalog.tables.get((found["schema"], found["name"]))
        if table is not None:
            tables[name] = table
        else:
            others[name] = _other(relation, found)
    return tables, others


def _other(relation: Relation, found: Mapping[str, Any]) -> OtherRelation:
    described = found["described"]
    columns = tuple((column, kind) for column, kind in described["columns"] or ())
    return OtherRelation(relation, columns, described["collates"])


def _with_rows(relation: Relation, table: PublishedTable, parsed: Parsed) -> Relation:
    """Note where ``t`` or ``t.f``, a function of it, is a whole row: no column has that name."""
    reference = relation.reference
    used = {name for qualifier, name in parsed.attributes if qualifier == reference}
    used |= {reference} & parsed.bare
    if used <= {column.name for column in table.columns}:
        return relation
    return replace(relation, whole=True, as_value=True)
