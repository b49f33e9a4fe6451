"""What an owner's policy leaves of its tables for everybody to see, statistics included."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from oar_adapters.interface import OwnerSchema, Table
from oar_policies.decide import column_visible, table_visible
from oar_policies.model import Policy

UNKNOWN_ROWS: Final = 1000.0
"""The estimate of a table whose statistics are not used."""


def visible_part(policy: Policy, schema: OwnerSchema) -> OwnerSchema:
    """Return a schema without what its owner's policy hides.

    A key that mentions a hidden column goes with it, and so does a table with no column left.
    """
    tables = (
        _visible_columns(policy, table)
        for table in schema.tables
        if table_visible(policy, table.name)
    )
    return OwnerSchema(tuple(table for table in tables if table.columns))


def _visible_columns(policy: Policy, table: Table) -> Table:
    """What is published. Statistics of what is filtered or masked would tell of what is not.

    So would those of a table of which groups are shown, of few rows: that one has a value, say.
    """
    rule = policy.tables.get(table.name)
    masked = {} if rule is None else rule.masks
    unseen = rule is not None and (rule.row_filter is not None or rule.min_group is not None)
    columns = tuple(
        replace(c, distinct=None, null_fraction=None, not_null=c.not_null and c.name not in masked)
        if unseen or c.name in masked
        else c
        for c in table.columns
        if column_visible(policy, table.name, c.name)
    )
    names = {column.name for column in columns} - masked.keys()
    return replace(
        table,
        columns=columns,
        row_estimate=UNKNOWN_ROWS if unseen else table.row_estimate,
        primary_key=table.primary_key if names.issuperset(table.primary_key) else (),
        unique_keys=tuple(key for key in table.unique_keys if names.issuperset(key)),
    )
