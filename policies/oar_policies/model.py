"""What an owner's policy says, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from oar_policies.names import write_name

if TYPE_CHECKING:
    from oar_policies.cases import Case


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a policy file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Subject:
    """Who asks, and what for. ``roles`` are all that the principal is a member of, itself too."""

    principal: str
    roles: frozenset[str] = frozenset()
    purpose: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """What the owner puts up with. ``None``: only the proxy's own limit holds."""

    max_rows: int | None = None
    """Rows one query may return; one more and the statement fails."""
    max_bytes: int | None = None
    """Bytes of the cells one query may return; more and the statement fails."""
    max_queries: int | None = None
    """Queries one statement or question may send to this owner."""
    max_keys_per_day: int | None = None
    """Different keys of this owner that may leave for one principal on one day in UTC."""
    timeout: float | None = None
    """Seconds."""
    max_keys_in: int | None = None
    """Join keys one query may carry to this owner, whosever they are; 0 accepts none."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition in SQL over a table's own columns: other rows of it are not there."""

    mark: Mark
    condition: str


@dataclass(frozen=True, slots=True)
class Mask:
    """What everybody reads in the place of a column: a constant, None for NULL."""

    value: str | None


Output = Literal["allowed", "denied", "aggregate_only"]


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """How one column may be used."""

    mark: Mark
    mask: Mask | None = None
    output: Output = "allowed"
    """Whether it may stand in an answer; else it may still filter and join."""
    functions: frozenset[str] = frozenset()
    """The aggregates of it that may stand in an answer where ``output`` is ``aggregate_only``."""
    filter: bool = True
    """Whether it may select, join, sort or otherwise pick rows."""


@dataclass(frozen=True, slots=True)
class MinGroup:
    """What is shown of a table is groups of its rows, each with so many different entities.

    ``entity`` is the column that tells them apart.
    """

    mark: Mark
    entity: str
    size: int

    @property
    def least(self) -> str:
        """What a group has to have to be shown, in words."""
        return f"{self.size} different {write_name(self.entity)}"


@dataclass(frozen=True, slots=True)
class TableRule:
    """What of one table stays hidden, all of it or the columns named; and how it may be asked for.

    ``require_filter``: each query compares one of these columns with values of its own, or with
    join keys.
    """

    mark: Mark
    deny: bool = False
    deny_columns: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))
    require_filter: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))
    row_filter: RowFilter | None = None
    columns: Mapping[str, ColumnRule] = field(default_factory=lambda: MappingProxyType({}))
    min_group: MinGroup | None = None

    @property
    def masks(self) -> dict[str, Mask]:
        """The columns of which a constant is read, and the constant."""
        return {n: rule.mask for n, rule in self.columns.items() if rule.mask is not None}


@dataclass(frozen=True, slots=True)
class ColumnPattern:
    """A column, all columns of a table (``column`` is None), or all columns (both are None)."""

    table: str | None
    column: str | None

    def matches(self, table: str, column: str) -> bool:
        """Tell whether it covers that column; names are compared exactly."""
        return self.table in (None, table) and self.column in (None, column)


Form = Literal["plain", "hmac"]
"""How keys travel: as they are, or as digests under a key that is drawn for each statement."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What both sides of a key edge write: a column, owners on the other side, conditions.

    ``owners`` None: any. ``purposes`` None: any, also none; else the subject has to say one of
    them. ``expires`` is the last day it holds, in UTC.
    """

    mark: Mark
    column: ColumnPattern
    owners: frozenset[str] | None
    max_keys: int | None = None
    """Keys one query may carry; None: only the other limits hold."""
    purposes: frozenset[str] | None = None
    expires: date | None = None

    def matches(self, table: str, column: str, owner: str) -> bool:
        """Tell whether it is about keys of, or for, that column and that owner."""
        return self.column.matches(table, column) and (self.owners is None or owner in self.owners)


@dataclass(frozen=True, slots=True)
class KeyDisclosure(Grant):
    """Values of ``column`` may leave as join keys for the ``owners``."""

    min_keys: int | None = None
    """Fewer keys than so many do not leave: nobody is to be looked up alone."""
    form: Form = "plain"
    """``hmac``: they leave as keyed digests only."""


@dataclass(frozen=True, slots=True)
class KeyAcceptance(Grant):
    """Join keys of the ``owners`` may be compared with ``column``."""


@dataclass(frozen=True, slots=True)
class LastDay:
    """The last day, in UTC, on which something holds."""

    mark: Mark
    day: date


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
    default_deny: bool = False
    """Only tables that have a rule are published."""
    subjects: frozenset[str] | None = None
    """Roles that may ask this owner; None: all."""
    expires: LastDay | None = None
    """After it this owner may not be asked at all; None: that does not end."""
    tables: Mapping[str, TableRule] = field(default_factory=lambda: MappingProxyType({}))
    key_disclosure: tuple[KeyDisclosure, ...] = ()
    accept_keys: tuple[KeyAcceptance, ...] | None = None
    """Keys it takes; None: whatever others may send."""
    rows_to_model: bool = False
    """Rows of this owner may stand in a prompt of a language model."""
    tests: tuple[Case, ...] = ()
    """What the file's author expects of it: no decision depends on them."""

    @property
    def conditional(self) -> bool:
        """Whether decisions depend on who asks, what for, or on which day."""
        grants = (*self.key_disclosure, *(self.accept_keys or ()))
        ends = self.expires is not None or any(g.expires for g in grants)
        return ends or self.subjects is not None or any(g.purposes for g in grants)


def default_policy(owner: str) -> Policy:
    """Return what holds for an owner without a file: tables readable, no key, no row to a model."""
    return Policy(owner=owner, source="no policy file", digest="none")
