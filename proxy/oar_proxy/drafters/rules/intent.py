"""What a question says, before its names are settled on tables and columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from oar_proxy.drafters.rules.tagging import Item


class Unread(Exception):
    """A part of the question has no place. The message is safe to show."""


@dataclass(slots=True)
class Mention:
    """A name in the question, with the table mention it seems to belong to."""

    item: Item
    owner: Mention | None = None
    following: bool = False
    """The owner is named after it, as in ``name of the dog``."""


@dataclass(slots=True)
class Shown:
    """One thing to show: a column, an entity's label, an aggregate, or a count."""

    mention: Mention
    function: str | None = None
    distinct: bool = False
    grouped: bool = False
    """It was said with ``each``."""
    hint: str | None = None
    """What ``where``, ``when`` or ``how old`` asks of the entity."""
    sentence: int = 0


@dataclass(slots=True)
class Condition:
    """``mention operator value``. ``hint`` names a column by what it measures, in ``mention``."""

    mention: Mention | None
    operator: str
    values: tuple[str, ...] = ()
    numeric: bool = False
    hint: str | None = None
    negated: bool = False
    aggregate: str | None = None
    or_before: bool = False
    subject: Mention | None = None
    """The entity the condition is about, as far as the order of words tells."""


@dataclass(slots=True)
class Having:
    """The number of rows of an entity that each shown thing has."""

    counted: Mention
    operator: str
    value: str


@dataclass(slots=True)
class Ordering:
    """``mention`` or, when ``counted``, the number of its rows; ``limit`` for superlatives."""

    mention: Mention | None
    direction: str | None = None
    hint: str | None = None
    counted: bool = False
    limit: int | None = None


@dataclass(slots=True)
class Intent:
    """All a question says."""

    shown: list[Shown] = field(default_factory=list)
    tables: list[Mention] = field(default_factory=list)
    existing: list[Mention] = field(default_factory=list)
    absent: list[list[Mention]] = field(default_factory=list)
    """What there must be none of: an entity, and the entities it is with (``no loan of books``)."""
    conditions: list[Condition] = field(default_factory=list)
    having: list[Having] = field(default_factory=list)
    ordering: list[Ordering] = field(default_factory=list)
    repeated: list[Mention] = field(default_factory=list)
    """Names that are said again or say how tables belong together; they add nothing else."""
    distinct: bool = False
