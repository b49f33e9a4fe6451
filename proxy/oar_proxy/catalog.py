"""The published catalog: every owner's visible tables under the names clients use.

Pure values. `build` merges what owners publish with what their policies hide; `hub.publication`
writes the result into the hub.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from oar_adapters.interface import Column, OwnerSchema, Table
from oar_policies.model import MinGroup

TableName = tuple[str, str]
"""Schema and name of a published table, as the hub spells them."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in the text format of its column's type, None for NULL."""

    value: str | None


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """One column as clients see it; ``type`` is the hub's ``format_type`` name.

    ``mask`` is what is read in its place.
    """

    name: str
    type: str
    not_null: bool
    comment: str | None
    mask: Constant | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """An owner of (some of) a table's rows, with the table as that owner publishes it."""

    owner: str
    table: Table


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table clients see. More than one holder: its rows are split between them."""

    schema: str
    name: str
    columns: tuple[PublishedColumn, ...]
    holders: tuple[Holder, ...]
    planning_name: str
    primary_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    comment: str | None = None

    @property
    def key(self) -> TableName:
        """Schema and name."""
        return (self.schema, self.name)

    @property
    def owners(self) -> tuple[str, ...]:
        """The holders' names, in the order of the configuration."""
        return tuple(holder.owner for holder in self.holders)

    @property
    def row_estimate(self) -> float:
        """Rows over all holders, from their statistics; no table is thought to have none."""
        return max(1.0, sum(holder.table.row_estimate for holder in self.holders))

    def origin(self, column: str) -> tuple[str, str, str] | None:
        """Return schema, table and column whose values a column's are; None where they are new."""
        derived = self.holders[0].table.derived
        if derived is None:
            return (self.schema, self.name, column)
        return next(((self.schema, t, c) for o, t, c in derived.origins if o == column), None)

    @property
    def masked(self) -> bool:
        """Tell whether a constant is read in the place of some column."""
        return any(column.mask is not None for column in self.columns)

    def read(self, *, only: bool) -> PublishedTable:
        """Return the table as a statement names it: ``only`` without what inherits from it."""
        if all(holder.table.only == only for holder in self.holders):
            return self
        holders = (replace(h, table=replace(h.table, only=only)) for h in self.holders)
        return replace(self, holders=tuple(holders))

    def column(self, name: str) -> PublishedColumn:
        """Return the column of that name. Raises ``KeyError``."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True)
class Catalog:
    """All published tables at one moment. ``version`` changes when anything published does."""

    tables: Mapping[TableName, PublishedTable] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """A digest of names, types, keys, comments and holders (not of row estimates)."""
        digest = hashlib.sha256()
        for key in sorted(self.tables):
            table = self.tables[key]
            digest.update(
                repr(
                    (
                        key,
                        table.columns,
                        table.owners,
                        table.primary_key,
                        table.unique_keys,
                        table.comment,
                    )
                ).encode()
            )
        return digest.hexdigest()[:16]

    @cached_property
    def schemas(self) -> tuple[str, ...]:
        """Published schemas in the order of the configuration."""
        return tuple(dict.fromkeys(schema for schema, _ in self.tables))

    def held_by(self, owners: Collection[str]) -> Catalog:
        """Return what some owners hold, of a split table their own rows."""
        tables: dict[TableName, PublishedTable] = {}
        for key, table in self.tables.items():
            holders = tuple(holder for holder in table.holders if holder.owner in owners)
            if holders:
                tables[key] = replace(table, holders=holders)
        return Catalog(tables)

    def less(self, tables: Collection[TableName]) -> Catalog:
        """Return all but some tables."""
        return (
            Catalog({k: t for k, t in self.tables.items() if k not in tables}) if tables else self
        )

    def more(self, other: Catalog, tables: Collection[TableName]) -> Catalog:
        """Return these tables, and some of another catalog, as far as it has them."""
        added = {key: other.tables[key] for key in tables if key in other.tables}
        return Catalog({**self.tables, **added}) if added else self

    def without(self, owners: Collection[str]) -> Catalog:
        """Return the tables of which none of some owners holds a row."""
        if not owners:
            return self
        kept = {k: t for k, t in self.tables.items() if set(t.owners).isdisjoint(owners)}
        return Catalog(kept)


class CatalogConflict(ValueError):
    """Two owners publish one table with different columns."""


Masks = Mapping[tuple[str, str], Mapping[str, str | None]]
"""By owner and table: columns, each with the constant that is read in its place, None for NULL."""

Groups = Mapping[tuple[str, str], MinGroup]
"""By owner and table: which groups are shown of it, where rows are not."""


def shape(table: Table) -> list[tuple[str, str]]:
    """Return what owners that hold rows of one table have to agree about."""
    return [(column.name, column.type) for column in table.columns]


def build(
    published: Sequence[tuple[str, str, OwnerSchema]],
    masks: Masks | None = None,
    groups: Groups | None = None,
) -> Catalog:
    """Merge owners' schemas: ``(owner, schema name, what it publishes and policy leaves visible)``.

    Two owners that publish the same table into the same schema split its rows. A key each of
    them enforces is not a key over their union, so a split table keeps none (design decision 3).
    Raises :class:`CatalogConflict` when their columns differ.
    """
    holders: dict[TableName, list[Holder]] = {}
    for owner, schema, content in published:
        for table in content.tables:
            holders.setdefault((schema, table.name), []).append(Holder(owner, table))
    tables: dict[TableName, PublishedTable] = {}
    for (schema, name), parts in holders.items():
        first = parts[0].table
        for part in parts[1:]:
            if shape(part.table) != shape(first):
                raise CatalogConflict(
                    f"table {schema}.{name} of owner {part.owner}: "
                    f"columns differ from those of owner {parts[0].owner}"
                )
        split = len(parts) > 1
        merged = PublishedTable(
            schema=schema,
            name=name,
            columns=tuple(
                PublishedColumn(
                    column.name,
                    column.type,
                    all(part.table.columns[i].not_null for part in parts),
                    next((c for p in parts if (c := p.table.columns[i].comment)), None),
                    _mask(column, parts, masks or {}),
                )
                for i, column in enumerate(first.columns)
            ),
            holders=tuple(parts),
            planning_name="",
            primary_key=() if split else first.primary_key,
            unique_keys=() if split else first.unique_keys,
            comment=_comment(parts, groups or {}),
        )
        tables[(schema, name)] = replace(merged, planning_name=_planning_name(merged))
    return Catalog(tables)


def _mask(column: Column, parts: Sequence[Holder], masks: Masks) -> Constant | None:
    """Return what is read in the place of a column of whose holders one masks it."""
    of_each = (masks.get((part.owner, part.table.name), {}) for part in parts)
    values = {masked[column.name] for masked in of_each if column.name in masked}
    if not values:
        return None
    return Constant(values.pop() if len(values) == 1 else None)


def _comment(parts: Sequence[Holder], groups: Groups) -> str | None:
    """The owners' comment, with what of the rows is shown: for whoever writes statements."""
    comment = next((part.table.comment for part in parts if part.table.comment), None)
    rules = [groups.get((part.owner, part.table.name)) for part in parts]
    each = [rule for rule in rules if rule is not None]
    if not each:
        return comment
    if len(each) < len(parts) or len({rule.entity for rule in each}) > 1:
        shown = "no rows and no groups are shown: its owners do not all show the same"
    else:
        largest = max(each, key=lambda rule: rule.size)
        shown = f"groups of at least {largest.least} are shown, and no rows"
    return shown if comment is None else f"{comment} ({shown})"


def _planning_name(table: PublishedTable) -> str:
    """Name the planning table after what it declares.

    Whoever still holds an older catalog then finds no table under the old name, instead of
    another one's columns and keys.
    """
    columns = [(column.name, column.type, column.not_null) for column in table.columns]
    declared = repr((table.key, columns, table.primary_key, table.unique_keys))
    return "t" + hashlib.sha256(declared.encode()).hexdigest()[:16]
