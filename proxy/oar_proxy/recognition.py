"""From a statement's text to what of it is published: the first stage of the line.

Names are resolved by the client's own hub session (search path, temporary tables that shadow,
views), on the parse tree; a question becomes its draft; a view's body takes the view's place. What
comes out is one text with the places of every occurrence of a published table in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oar_proxy.catalog import Catalog, PublishedColumn, PublishedTable
from oar_proxy.drafters import Draft
from oar_proxy.errors import (
    FeatureNotSupported,
    LimitExceeded,
    ReadOnly,
)
from oar_proxy.federation import HubReader
from oar_proxy.sessionstate import SESSION_STATE, SessionState
from oar_proxy.sql.parse import parse_one
from oar_proxy.sql.parsed import Call, Parsed, Relation
from oar_proxy.sql.text import (
    Edit,
    SyntaxFault,
    built_in_type,
    quote_identifier,
    quote_literal,
    splice,
    without_comments,
)
from oar_proxy.sql.tree import grouped_selects, materializes, range_names
from oar_proxy.statement import (
    FederatedStatement,
    Name,
    Occurrence,
    OtherRelation,
    prefix_edits,
    sort_relations,
    used_columns,
)

MAX_VIEW_DEPTH: Final = 16
"""Views on views are expanded this deep; PostgreSQL itself refuses cycles."""


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
    parsed = parse_one(without_comments(text))
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
    occurrences, others = sort_relations(parsed, *_meant(parsed, resolved, catalog))
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
    _refuse_locks(parsed, occurrences)
    _refuse_what_has_no_meaning(parsed, state, later)
    # The hub keeps these over the guards; using them later is recognised then.
    if parsed.kind == "PrepareStmt":
        return Recognised(guard_sql, None)
    if parsed.kind == "ViewStmt":
        return Recognised(guard_sql, None) if guard_sql != without_comments(text) else None
    if any(occurrence.table.masked for occurrence in occurrences):
        parsed = _with_masks(parsed, occurrences)
        occurrences, others = sort_relations(parsed, *_meant(parsed, resolved, catalog))
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
    parsed, _, _ = await _for_guards(parse_one(text), link, catalog)
    return parsed.text


def guard_qualified(text: str, catalog: Catalog) -> str:
    """The same for a text whose names have their schemas, and so mean the same to every session."""
    parsed = parse_one(text)
    resolved: _Resolved = {
        (r.schema, r.name): {"schema": r.schema, "name": r.name} for r in parsed.relations
    }
    return splice(text, _dependent_columns(parsed, resolved, catalog))


def _refuse_locks(parsed: Parsed, occurrences: Sequence[Occurrence]) -> None:
    for occurrence in occurrences:
        if any(occurrence.relation.start <= p < occurrence.relation.end for p in parsed.locked):
            raise FeatureNotSupported(
                f'cannot lock rows of a published table ("{occurrence.reference}"): '
                "they stay with their owner",
                hint="leave out FOR UPDATE or FOR SHARE, or name in it what is not an owner's:"
                " FOR UPDATE OF …",
            )


def _refuse_what_has_no_meaning(parsed: Parsed, state: SessionState, later: Sequence[Call]) -> None:
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

    See `prefix_edits`.
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
        edits.append(call.replace(answer.sql))
    return parse_one(splice(parsed.text, edits)), drafts


# --- names ----------------------------------------------------------------------------------


_Resolved = dict[Name, dict[str, Any]]


async def _for_guards(
    parsed: Parsed, link: HubReader, catalog: Catalog
) -> tuple[Parsed, SessionState, _Resolved]:
    state, resolved = await _look(link, _names(parsed), catalog)
    edits = _dependent_columns(parsed, resolved, catalog)
    if edits:
        parsed = parse_one(splice(parsed.text, edits))
    return parsed, state, resolved


def _names(parsed: Parsed) -> tuple[tuple[str | None, str], ...]:
    return tuple(dict.fromkeys((r.schema, r.name) for r in (*parsed.relations, *parsed.targets)))


_WITHOUT_EQUALITY: Final = frozenset(
    {"box", "circle", "json", "jsonpath", "line", "lseg", "path", "point", "polygon"}
)
"""Types that cannot be grouped by."""


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
                if column.name not in own
                and parsed.may_use(relation, column.name)
                and column.type.removesuffix("[]") not in _WITHOUT_EQUALITY
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
        parsed = parse_one(splice(parsed.text, edits))
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
    edits += prefix_edits(parsed, masked)
    return parse_one(splice(parsed.text, edits))


def _masking(occurrence: Occurrence, parsed: Parsed) -> str:
    used = used_columns(occurrence.relation, occurrence.table, parsed)
    listed = [_read(column) for column in used]
    name = (occurrence.relation.schema, occurrence.relation.name)
    spelled = ".".join(quote_identifier(part) for part in name if part is not None)
    only = "ONLY " if occurrence.relation.only else ""
    return f"SELECT {', '.join(listed)} FROM {only}{spelled}"


def _read(column: PublishedColumn) -> str:
    name = quote_identifier(column.name)
    if column.mask is None:
        return name
    value = column.mask.value
    constant = "NULL" if value is None else quote_literal(value)
    return f"CAST({constant} AS {built_in_type(column.type)}) AS {name}"


async def _look(
    link: HubReader, names: Sequence[Name], catalog: Catalog
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


def _meant(
    parsed: Parsed, resolved: _Resolved, catalog: Catalog
) -> tuple[dict[Name, PublishedTable], dict[Name, OtherRelation]]:
    """What the session found under the names in FROM."""
    tables: dict[Name, PublishedTable] = {}
    others: dict[Name, OtherRelation] = {}
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
