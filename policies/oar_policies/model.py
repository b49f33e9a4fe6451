"""What an owner's policy says, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a policy file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """What the owner puts up with. ``None``: only the proxy's own limit holds."""

    max_rows: int | None = None
    """Rows one query may return; one more and the statement fails."""
    timeout: float | None = None
    """Seconds."""
    max_keys_in: int | None = None
    """Join keys one query may carry to this owner, whosever they are; 0 accepts none."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """What of one table stays hidden: all of it, or the columns named."""

    mark: Mark
    deny: bool = False
    deny_columns: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ColumnPattern:
    """A column, all columns of a table (``column`` is None), or all columns (both are None)."""

    table: str | None
    column: str | None

    def matches(self, table: str, column: str) -> bool:
        """Tell whether it covers that column; names are compared exactly."""
        return self.table in (None, table) and self.column in (None, column)


@dataclass(frozen=True, slots=True)
class KeyDisclosure:
    """Values of ``column`` may leave as join keys for the owners ``to`` (None: for any owner)."""

    mark: Mark
    column: ColumnPattern
    to: frozenset[str] | None
    max_keys: int | None = None
    """Keys one query may carry; None: only the other limits hold."""

    def matches(self, table: str, column: str, receiver: str) -> bool:
        """Tell whether it covers keys of that column for that receiver."""
        return self.column.matches(table, column) and (self.to is None or receiver in self.to)


@dataclass(frozen=True, slots=True)
class Policy:
    """One owner's policy.

    ``digest`` identifies the file's text (the first 16 hex digits of its SHA-256), so that a
    recorded decision can be traced to what was in force; it is ``none`` without a file.
    """

    owner: str
    source: str
    digest: str
    limits: OwnerLimits = OwnerLimits()
    tables: Mapping[str, TableRule] = field(default_factory=lambda: MappingProxyType({}))
    key_disclosure: tuple[KeyDisclosure, ...] = ()
    rows_to_model: bool = False
    """Rows of this owner may stand in a prompt of a language model."""


def default_policy(owner: str) -> Policy:
    """Return what holds for an owner without a file: tables readable, no key, no row to a model."""
    return Policy(owner=owner, source="no policy file", digest="none")
