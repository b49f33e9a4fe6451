"""What is published of what owners have: their policies hide, filter and mask it.

A proxy and the tools that plan without one publish the same, from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from oar_adapters.interface import Adapter, OwnerSchema, Table
from oar_policies.model import Mark

from oar_proxy import rowfilter
from oar_proxy.catalog import Catalog, CatalogConflict, TableName, build
from oar_proxy.decision import SentFilter
from oar_proxy.gate import Gate
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.publication import unfit_names
from oar_proxy.settings import ConfigurationError


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A table that is not published, since its policy's SQL, at a place, cannot be read."""

    owner: str
    table: str
    mark: Mark
    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A table that is not published, since PostgreSQL has none like it."""

    owner: str
    table: str
    reason: str


UNFIT_HINT: Final = "rename it at its owner, or hide what has that name (deny, deny_columns)"


@dataclass(frozen=True, slots=True)
class Publication:
    """A catalog, and the row filters by owner and table that go with it."""

    catalog: Catalog
    filters: Mapping[tuple[str, str], SentFilter]
    unpublished: Sequence[Unpublished]
    unfit: Sequence[Unfit]


@dataclass(frozen=True, slots=True)
class RulesRead:
    """What is sent of row filters, and what is read of masks, by owner and table."""

    filters: Mapping[tuple[str, str], SentFilter]
    masks: Mapping[tuple[str, str], Mapping[str, str | None]]
    unpublished: Sequence[Unpublished]


def unfit_tables(visible: Mapping[str, OwnerSchema]) -> Iterator[Unfit]:
    """Yield what policies leave of owners' tables and cannot be published for its names.

    It is one owner's affair, and keeps no other table from being published.
    """
    for owner, schema in visible.items():
        for table in schema.tables:
            reason = unfit_reason(table)
            if reason is not None:
                yield Unfit(owner, table.name, reason)


def unfit_reason(table: Table) -> str | None:
    """Say why the hub has no table of such names, None where it may."""
    return unfit_names(table.name, [column.name for column in table.columns])


async def read_rules(
    visible: Mapping[str, OwnerSchema],
    adapters: Mapping[str, Adapter],
    gate: Gate,
    planner: Planner,
) -> RulesRead:
    """Read the SQL in the policies of ``gate``, over what they leave of owners."""
    filters: dict[tuple[str, str], SentFilter] = {}
    masks: dict[tuple[str, str], Mapping[str, str | None]] = {}
    unpublished: list[Unpublished] = []
    for owner, schema in visible.items():
        for table, rule in gate.rules(owner, schema):
            if unfit_reason(table) is not None:
                continue  # whatever its rules are
            masks[owner, table.name] = {n: mask.value for n, mask in rule.masks.items()}
            try:
                values = masks[owner, table.name]
                masks[owner, table.name] = await rowfilter.read_masks(values, table, planner)
                if rule.row_filter is not None:
                    filters[owner, table.name] = await rowfilter.read_filter(
                        rule.row_filter.condition, table, adapters[owner], planner
                    )
            except rowfilter.Unreadable as error:
                mark = rule.mark if rule.row_filter is None else rule.row_filter.mark
                unpublished.append(Unpublished(owner, table.name, mark, str(error)))
    return RulesRead(filters, masks, unpublished)


async def publication(
    owners: Mapping[str, tuple[str, OwnerSchema]],
    adapters: Mapping[str, Adapter],
    gate: Gate,
    planner: Planner,
) -> Publication:
    """Make the catalog of ``owners``: under which schema each publishes, and all that it has.

    The policies are those of ``gate``, whose row filters are the caller's to replace. Raises
    ``ConfigurationError`` where owners do not agree about a table.
    """
    visible = {owner: gate.visible(owner, content) for owner, (_, content) in owners.items()}
    unfit = tuple(unfit_tables(visible))
    read = await read_rules(visible, adapters, gate, planner)
    # Other owners may hold rows of such a table as well: half of it is none.
    left_out = [(it.owner, it.table) for it in read.unpublished]
    left_out += [(it.owner, it.table) for it in unfit]
    hidden: set[TableName] = {(owners[owner][0], table) for owner, table in left_out}
    parts = [
        (owner, schema, tuple(t for t in visible[owner].tables if (schema, t.name) not in hidden))
        for owner, (schema, _) in owners.items()
    ]
    try:
        catalog = build(
            [(owner, name, OwnerSchema(tables)) for owner, name, tables in parts],
            read.masks,
            gate.groups(),
        )
    except CatalogConflict as conflict:
        raise ConfigurationError(str(conflict)) from conflict
    return Publication(catalog, read.filters, read.unpublished, unfit)
