"""Rules for what comes first: superlatives, numbers of them, and orders.

Each reads from where the reader stands and tells whether it did.
"""

from __future__ import annotations

from oar_proxy.drafters.rules.intent import Mention, Ordering, Shown, Unread
from oar_proxy.drafters.rules.names import is_date, is_numeric
from oar_proxy.drafters.rules.reader import FILTERING, Reader
from oar_proxy.drafters.rules.tagging import Item


def most(reader: Reader, item: Item) -> bool:
    """``the most loans``, ``top 3``: what is ranked, by how many there are or by itself."""
    if item.kind == "number" and reader.kind(1) in ("most", "extreme"):
        reader.limit = int(item.value) if item.value.isdigit() else None
        reader.at += 1
        return reader.limit is not None
    if item.kind != "most":
        return False
    offset = 1
    number = reader.peek(offset)
    if number is not None and number.kind == "number" and number.value.isdigit():
        reader.limit = int(number.value)
        offset += 1
    if reader.kind(offset) in ("most", "extreme"):
        reader.at += offset
        return True
    if reader.limit is not None and _top(reader, offset):
        return True
    offset = reader.skip(offset, ("of", "distinct"))
    counted = reader.kind(offset) == "number of"
    offset = reader.skip(offset, ("number of", "of", "distinct"))
    mention, end = reader.name_from(offset)
    if mention is None:
        raise Unread(f'it is not clear what "{item.text}" ranks')
    measured = any(
        not m.partial and (is_numeric(m.column) or is_date(m.column)) for m in mention.item.columns
    )
    counting = counted or not mention.item.columns or (mention.item.tables and not measured)
    asked = bool(reader.intent.shown) or reader.kind(-1) in FILTERING | {"by", "prep", "be"}
    reader.at += end
    if counting:
        if not mention.item.tables:
            raise Unread(f'it is not clear what "{item.text}" counts')
        reader.intent.tables.append(mention)
        reader.rank(Ordering(mention, item.value, counted=True))
    elif asked or reader.limit is not None or reader.kind() == "name":
        if not asked and reader.kind() != "name":
            reader.show(Shown(mention))
        if mention.owner is None:
            mention.owner = reader.subject
        reader.rank(Ordering(mention, item.value))
    else:
        reader.show(Shown(mention, "max" if item.value == "desc" else "min"))
    return True


def _top(reader: Reader, offset: int) -> bool:
    """Read ``3 cities`` of ``top 3 cities with the most deliveries``: the ranking follows."""
    mention, end = reader.name_from(offset)
    ranked = reader.kind(reader.skip(end, tuple(FILTERING | {"by"}))) in ("most", "extreme")
    if mention is None or not ranked:
        return False
    reader.show(Shown(mention))
    reader.at += end
    return True


def extreme(reader: Reader, item: Item) -> bool:
    """``the 3 oldest dogs``, ``the youngest age``."""
    if item.kind != "extreme":
        return False
    direction, _, hint = item.value.partition(" ")
    offset = 1
    number = reader.peek(offset)
    if number is not None and number.kind == "number" and number.value.isdigit():
        reader.limit = int(number.value)
        offset += 1
    offset = reader.skip(offset, ("verb",))
    mention, end = reader.name_from(offset)
    if mention is None:
        raise Unread(f'it is not clear what is "{item.text}"')
    reader.at += end
    if mention.item.tables and not (mention.item.columns and hint == "date" and end == 1):
        reader.add_table(mention)
        if not reader.intent.shown:
            reader.show(Shown(mention))
        reader.rank(Ordering(mention, direction, hint=hint))
    elif reader.intent.shown:
        reader.rank(Ordering(mention, direction, hint=hint))
    else:
        reader.show(Shown(mention, "max" if direction == "desc" else "min"))
    return True


def order(reader: Reader, item: Item) -> bool:
    """``sorted by age and name, descending``, ``in alphabetical order``."""
    sorting = reader.sorting and item.kind == "by"
    if item.kind not in ("order", "direction", "alphabet") and not sorting:
        return False
    reader.sorting = False
    direction = item.value or None
    offset = 1
    alphabetic = item.kind == "alphabet"
    while reader.kind(offset) in ("order", "direction", "of", "by", "alphabet"):
        following = reader.peek(offset)
        if following is not None and following.value in ("asc", "desc"):
            direction = following.value
            alphabetic |= following.kind == "alphabet"
        offset += 1
    counted = reader.kind(offset) == "number of"
    offset = reader.skip(offset, ("number of", "distinct"))
    mentions: list[Mention] = []
    mention, end = reader.name_from(offset)
    while mention is not None:
        if mention.owner is None and not counted:
            mention.owner = reader.subject
        mentions.append(mention)
        offset = end
        gap = reader.skip(offset, ("and", "comma"))
        if gap == offset or counted:
            break
        mention, end = reader.name_from(gap)
    trailing = reader.skip(offset, ("comma", "from", "prep"))
    following = reader.peek(trailing)
    if mentions and following is not None and following.kind in ("direction", "alphabet"):
        direction = following.value
        offset = trailing + 1
    reader.at += offset
    if not mentions and item.kind in ("order", "by") and not (alphabetic or counted):
        raise Unread(f'it is not clear what "{item.text}" sorts by')
    if counted and mentions:
        reader.intent.tables.extend(mentions)
    if not mentions:
        reader.intent.ordering.append(Ordering(None, direction, counted=counted))
    reader.intent.ordering.extend(Ordering(m, direction, counted=counted) for m in mentions)
    return True
