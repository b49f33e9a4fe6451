"""Where the reading of a question stands: what was read, what comes next, what is said so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oar_proxy.drafters.rules.intent import Condition, Intent, Mention, Ordering, Shown, Unread
from oar_proxy.drafters.rules.tagging import Item

_LISTING: Final = frozenset(
    ("", "command", "sort", "and", "comma", "stop", "distinct", "of", "both")
)
"""What stands before a name that is to be shown."""

FILTERING: Final = frozenset(("with", "whose", "rel", "have"))
"""Kinds behind which conditions stand."""


class Reader:
    """A question on its way to an intent; the rules read from ``at`` and move it on.

    ``filtering``: conditions stand here, nothing to show. ``negated``, ``either_or``, ``limit`` and
    ``sorting`` were said and wait for what they belong to. ``subject`` is the entity named last,
    ``possessor`` the one that all columns that follow are of.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.at = 0
        self.intent = Intent()
        self.sentence = 0
        self.filtering = False
        self.negated = False
        self.either_or = False
        self.limit: int | None = None
        self.sorting = False
        self.subject: Mention | None = None
        self.possessor: Mention | None = None

    # --- looking around ---

    def peek(self, offset: int = 0) -> Item | None:
        index = self.at + offset
        return self.items[index] if 0 <= index < len(self.items) else None

    def kind(self, offset: int = 0) -> str:
        item = self.peek(offset)
        return item.kind if item is not None else ""

    def skip(self, offset: int, kinds: frozenset[str] | tuple[str, ...]) -> int:
        while self.kind(offset) in kinds:
            offset += 1
        return offset

    def name_from(self, offset: int) -> tuple[Mention | None, int]:
        """Read a column's mention, perhaps behind its table's: ``dog age``."""
        item = self.peek(offset)
        if item is None or item.kind != "name":
            return None, offset
        after = self.peek(offset + 1)
        if (
            item.tables
            and after is not None
            and after.kind == "name"
            and after.columns
            and any(c.table.key == item.tables[0].table.key for c in after.columns)
        ):
            owner = self.add_table(Mention(item))
            return Mention(after, owner), offset + 2
        return Mention(item), offset + 1

    # --- recording ---

    def add_table(self, mention: Mention) -> Mention:
        for shown in self.intent.shown:
            if shown.mention.owner is None and shown.sentence == self.sentence:
                shown.mention.owner = mention
                shown.mention.following = True
        self.intent.tables.append(mention)
        self.subject = mention
        return mention

    def show(self, shown: Shown) -> None:
        if shown.mention.owner is None and not shown.function and not shown.grouped:
            shown.mention.owner = self.possessor
        shown.sentence = self.sentence
        self.intent.shown.append(shown)

    def add_condition(self, condition: Condition) -> None:
        condition.negated = self.negated
        condition.or_before = self.either_or and bool(self.intent.conditions)
        condition.subject = self.subject
        if condition.mention is not None and condition.mention.owner is None:
            condition.mention.owner = self.subject
        self.negated = self.either_or = False
        self.intent.conditions.append(condition)

    def is_listed(self) -> bool:
        """Tell whether a name that stands here is one of those to be shown."""
        before = self.kind(-1)
        if before in ("be", "verb", "for", "prep", "by", "of"):
            return not self.intent.shown
        return before in _LISTING

    def rank(self, ordering: Ordering) -> None:
        ordering.limit = self.limit or 1
        self.limit = None
        if self.negated:
            raise Unread("it is not clear what is negated")
        self.intent.ordering.append(ordering)

    def has_function(self) -> bool:
        return any(shown.function for shown in self.intent.shown)

    def add_absent(self, target: Item) -> None:
        """Note that what is asked for has none of these."""
        self.subject = Mention(Item("name", target.text, tables=target.tables))
        self.intent.absent.append([self.subject])
        self.filtering = True
        self.negated = False
