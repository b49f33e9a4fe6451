"""What is published of what owners have: their policies hide, filter and mask it.

A proxy and the tools that plan without one publish the same, from here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from oar_adapters.interface import Adapter, OwnerSchema, Table
from oar_policies.model import Mark

from oar_proxy import rowfilter
from oar_proxy.catalog import Catalog, TableName, build, shape
from oar_proxy.decision import SentFilter
from oar_proxy.gate import Gate
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.refusals import unfit_names


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A table that is not published, since its policy's SQL, at a place, cannot be read."""

    owner: str
    table: str
    mark: Mark
    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A table that is not published, since it cannot stand beside what else is, or at all."""

    owner: str
    table: str
    reason: str
    hint: str


_RENAME: Final = "rename it at its owner, or hide what has that name (deny, deny_columns)"
_ONE_OF_THEM: Final = "publish one of them, or each as what it is (options schemas, tables, case)"
_ALIKE: Final = (
    "make the columns alike, in one order, or hide those that differ (deny_columns); "
    "tables that are not one have schemas of their own (owners.<name>.schema)"
)

Owners = Mapping[str, tuple[str, OwnerSchema]]
"""By owner: the schema it publishes in, and what its policy leaves of what it has."""


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


def unfit_tables(owners: Owners) -> Iterator[Unfit]:
    """Yield what cannot be published of owners' tables, each with what is wrong with it.

    It is those owners' affair, and keeps no other table from being published.
    """
    holding: dict[TableName, list[tuple[str, Table]]] = defaultdict(list)
    for owner, (schema, content) in owners.items():
        times = Counter(table.name for table in content.tables)
        for table in {table.name: table for table in content.tables}.values():
            reason, hint = unfit_reason(table), _RENAME
            if times[table.name] > 1:
                reason, hint = "the owner has two tables of this name", _ONE_OF_THEM
            if reason is not None:
                yield Unfit(owner, table.name, reason, hint)
            else:
                holding[schema, table.name].append((owner, table))
    for (schema, name), (first, *others) in holding.items():
        for owner, table in others:
            if shape(table) != shape(first[1]):
                reason = f"in schema {schema}, owner {first[0]} has it with other columns"
                yield Unfit(owner, name, reason, _ALIKE)


def unfit_reason(table: Table) -> str | None:
    """Say why the hub has no table like it, None where it may."""
    return unfit_names(table.name, [column.name for column in table.columns])


def less(owners: Owners, hidden: Collection[TableName]) -> list[tuple[str, str, OwnerSchema]]:
    """Return what owners have without some tables, each in the schema it is published in."""
    return [
        (owner, schema, OwnerSchema(tuple(t for t in had.tables if (schema, t.name) not in hidden)))
        for owner, (schema, had) in owners.items()
    ]


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
            except Exception as error:  # noqa: BLE001 - an adapter's fault must not stop the others
                reason = f"the owner's adapter failed: {type(error).__name__}"
                unpublished.append(Unpublished(owner, table.name, rule.mark, reason))
    return RulesRead(filters, masks, unpublished)


async def publication(
    owners: Owners,
    adapters: Mapping[str, Adapter],
    gate: Gate,
    planner: Planner,
) -> Publication:
    """Make the catalog of ``owners``: under which schema each publishes, and all that it has.

    The policies are those of ``gate``, whose row filters are the caller's to replace.
    """
    left = {owner: (name, gate.visible(owner, had)) for owner, (name, had) in owners.items()}
    unfit = tuple(unfit_tables(left))
    visible = {owner: content for owner, (_, content) in left.items()}
    read = await read_rules(visible, adapters, gate, planner)
    # Other owners may hold rows of such a table as well: half of it is none.
    left_out = [(it.owner, it.table) for it in read.unpublished]
    left_out += [(it.owner, it.table) for it in unfit]
    parts = less(left, {(owners[owner][0], table) for owner, table in left_out})
    return Publication(
        build(parts, read.masks, gate.groups()), read.filters, read.unpublished, unfit
    )
