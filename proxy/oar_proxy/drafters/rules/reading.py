"""From items to an intent: what to show, of what, where, by what, in which order.

The reader goes left to right and every item must find its place. What finds none raises
:class:`Unread`, and the drafter abstains: a word left out could have changed the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from oar_proxy.drafters.rules import conditions, ranking, showing
from oar_proxy.drafters.rules.intent import Intent, Unread
from oar_proxy.drafters.rules.reader import FILTERING, Reader
from oar_proxy.drafters.rules.tagging import Item

_GLUE: Final = frozenset(
    ("be", "do", "of", "for", "prep", "comma", "and", "verb", "have", "by", "rel", "with", "stop")
)
_IN_WHICH: Final = ("in which", "in what")
"""They ask for a set at a question's beginning; elsewhere they only join clauses."""


def read(items: Sequence[Item]) -> Intent:
    """Read a question. Raises :class:`Unread`."""
    reader = Reader(_without_its_name(items))
    while reader.at < len(reader.items):
        item = reader.items[reader.at]
        if not any(rule(reader, item) for rule in _RULES):
            raise Unread(f'no meaning found for "{item.text}"')
    if reader.negated:
        raise Unread("it is not clear what is negated")
    if reader.limit is not None:
        raise Unread("it is not clear what the number limits")
    _settle_sentences(reader.intent)
    _settle_entities(reader.intent)
    return reader.intent


def _without_its_name(items: Sequence[Item]) -> list[Item]:
    """Read ``the state whose name contains`` as ``the state contains``: a state is its name."""
    kept: list[Item] = []
    position = 0
    while position < len(items):
        kept.append(items[position])
        position += 1
        is_column = kept[-1].kind == "name" and not kept[-1].tables
        following = [item.kind for item in items[position : position + 3]]
        if is_column and following[:2] == ["whose", "name"] and following[2:] != ["value"]:
            position += 2 if items[position + 1].text.lower() in ("name", "names") else 0
    return kept


def _flag(reader: Reader, item: Item) -> bool:
    if item.kind == "not":
        reader.negated = True
    elif item.kind == "distinct":
        reader.intent.distinct |= item.text.lower() not in _IN_WHICH or reader.at == 0
    elif item.kind == "sort":
        reader.sorting = True
        reader.filtering = False
    elif item.kind == "or":
        reader.either_or = True
    elif item.kind == "either":
        pass
    elif item.kind == "both":
        following = reader.peek(1)
        if reader.filtering or following is None or not following.columns or following.tables:
            raise Unread('it is not clear what "both" goes with')
    elif item.kind == "whose":
        reader.filtering = True
    else:
        return False
    reader.at += 1
    return True


def _glue(reader: Reader, item: Item) -> bool:
    if item.kind == "command":
        reader.at += 1
        reader.filtering = False
        return True
    if item.kind not in _GLUE:
        return False
    if item.kind == "stop" and reader.at + 1 < len(reader.items):
        reader.sentence += 1
        reader.filtering = False
    if item.kind in FILTERING and (reader.intent.shown or reader.intent.tables):
        reader.filtering = True
    reader.at += 1
    return True


def _settle_entities(intent: Intent) -> None:
    """Take what is counted for each as an entity, where it could be a column as well."""
    for shown in intent.shown if intent.having else ():
        both = shown.mention.item.tables and shown.mention.item.columns
        if both and not shown.function and shown.mention not in intent.tables:
            intent.tables.insert(0, shown.mention)


def _settle_sentences(intent: Intent) -> None:
    """Let a last sentence that lists columns say what to show, if it does."""
    last = max((shown.sentence for shown in intent.shown), default=0)
    if last == 0:
        return
    later = [shown for shown in intent.shown if shown.sentence == last]
    for shown in intent.shown:
        entity = shown.mention.item.tables and not shown.grouped and shown.sentence < last
        if entity and shown.mention not in intent.tables:
            intent.tables.insert(0, shown.mention)
    grouped = [s for s in intent.shown if s.sentence < last and s.grouped]
    earlier = [s for s in intent.shown if s.sentence < last and not s.grouped]
    if any(s.function for s in earlier) and not any(s.function for s in later):
        intent.shown = [*earlier, *grouped, *later]
        return
    intent.shown = [*later, *(s for s in grouped if any(x.function for x in later))]


_RULES: Final[tuple[Callable[[Reader, Item], bool], ...]] = (
    showing.ask,
    showing.count,
    showing.aggregate,
    showing.common,
    ranking.most,
    ranking.extreme,
    showing.each,
    ranking.order,
    conditions.without,
    conditions.between_first,
    conditions.comparison_first,
    conditions.value_first,
    conditions.number_first,
    conditions.named_value,
    showing.name,
    _flag,
    _glue,
)
"""In this order: the first that reads has it."""
