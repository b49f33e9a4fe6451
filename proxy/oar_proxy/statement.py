"""A statement of ours, as the stages behind recognition read it.

One text with the places of every occurrence of a published table in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from oar_proxy.catalog import Catalog, PublishedColumn, PublishedTable
from oar_proxy.drafters import Draft
from oar_proxy.federation import HubReader
from oar_proxy.sessionstate import SessionState
from oar_proxy.sql.parse import parse_one
from oar_proxy.sql.parsed import Call, Parsed, Relation
from oar_proxy.sql.text import Edit, quote_identifier
from oar_proxy.sql.tree import repeated_relations

Name = tuple[str | None, str]
"""What a relation is called in FROM: a schema, if it is named with one, and a name."""


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
        parsed = parse_one(text)
        meant = {(o.relation.schema, o.relation.name): o.table for o in self.occurrences}
        meant |= {(None, name): table for name, table in tables.items()}
        others = {(o.relation.schema, o.relation.name): o for o in self.others}
        occurrences, rest = sort_relations(parsed, meant, others)
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
        return prefix_edits(self.parsed, self.occurrences)


def prefix_edits(parsed: Parsed, occurrences: Iterable[Occurrence]) -> list[Edit]:
    """Do so for some of a statement's tables only."""
    ours = {(o.table.schema, o.table.name) for o in occurrences if not o.relation.alias}
    return [
        Edit(start, end, "")
        for schema, table, start, end in parsed.qualified
        if (schema, table) in ours
    ]


def sort_relations(
    parsed: Parsed,
    tables: Mapping[Name, PublishedTable],
    others: Mapping[Name, OtherRelation],
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
        used = tuple(c.name for c in used_columns(named, table, parsed) if c.mask is None)
        number = len(occurrences) + 1
        for position, first in repeated.items():
            if relation.start <= position < relation.end:
                number = shared.setdefault(first, number)
        occurrences.append(Occurrence(number, table.read(only=relation.only), named, used))
    return tuple(occurrences), tuple(rest)


def used_columns(
    relation: Relation, table: PublishedTable, parsed: Parsed
) -> list[PublishedColumn]:
    """Return the columns of a table that a statement may use under one of its names, in order."""
    return [column for column in table.columns if parsed.may_use(relation, column.name)]


def _with_rows(relation: Relation, table: PublishedTable, parsed: Parsed) -> Relation:
    """Note where ``t`` or ``t.f``, a function of it, is a whole row: no column has that name."""
    reference = relation.reference
    used = {name for qualifier, name in parsed.attributes if qualifier == reference}
    used |= {reference} & parsed.bare
    if used <= {column.name for column in table.columns}:
        return relation
    return replace(relation, whole=True, as_value=True)
