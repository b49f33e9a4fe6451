"""Rules for what a question shows: names, counts and other aggregates, each for what.

Each reads from where the reader stands and tells whether it did.
"""

from __future__ import annotations

from oar_proxy.drafters.rules import conditions
from oar_proxy.drafters.rules.intent import Mention, Ordering, Shown, Unread
from oar_proxy.drafters.rules.names import is_numeric
from oar_proxy.drafters.rules.reader import FILTERING, Reader
from oar_proxy.drafters.rules.tagging import Item, is_reference


def ask(reader: Reader, item: Item) -> bool:
    """``where``, ``when``, ``how old``: what a column of the entity that follows says."""
    if item.kind != "ask":
        return False
    if reader.kind(-1) not in ("", "stop", "command", "and"):
        raise Unread(f'no meaning found for "{item.text}"')
    offset = 1
    while reader.kind(offset) not in ("", "stop"):
        following = reader.peek(offset)
        if following is not None and following.kind == "name" and following.tables:
            reader.show(Shown(Mention(following), hint=item.value))
            reader.at += 1
            return True
        offset += 1
    column = next((i for i in reader.items[reader.at :] if i.kind == "name"), None)
    if column is not None:
        reader.show(Shown(Mention(column), hint=item.value))
        reader.at += 1
        return True
    raise Unread(f'it is not clear what "{item.text}" asks about')


def count(reader: Reader, item: Item) -> bool:
    """``how many dogs``, ``the number of different ages``."""
    if item.kind not in ("how many", "number of"):
        return False
    offset = reader.skip(1, ("of", "distinct", "verb", "number of"))
    distinct = any(reader.kind(n) == "distinct" for n in range(1, offset))
    target = reader.peek(offset)
    if target is None or target.kind != "name":
        raise Unread("it is not clear what is counted")
    if target.tables and any(
        m.table.key != target.tables[0].table.key and not target.whole_column
        for m in target.columns
    ):
        raise Unread(f'"{target.text}" may be rows or values')
    if not target.tables and all(is_numeric(m.column) for m in target.columns):
        if not is_reference(target):
            raise Unread(f'"{target.text}" may be counted or is a number itself')
        distinct = True  # "orders", where tables have an order_id: as many as there are ids
    reader.at += offset + 1
    mention = Mention(target)
    if target.tables:
        reader.add_table(mention)
    reader.show(Shown(mention, "count", distinct))
    while distinct and reader.kind() in ("and", "comma") and reader.kind(1) == "name":
        following = reader.peek(1)
        if following is None or following.tables or reader.kind(2) in ("compare", "value", "be"):
            break
        reader.show(Shown(Mention(following), "count", True))
        reader.at += 2
    return True


def aggregate(reader: Reader, item: Item) -> bool:
    """``the average and maximum age``."""
    if item.kind != "aggregate":
        return False
    functions = [item.value]
    offset = 1
    while True:
        gap = reader.skip(offset, ("and", "comma"))
        following = reader.peek(gap)
        if gap > offset and following is not None and following.kind == "aggregate":
            functions.append(following.value)
            offset = gap + 1
        else:
            break
    offset = reader.skip(offset, ("of", "distinct", "be"))
    mention, end = reader.name_from(offset)
    if mention is None or not mention.item.columns:
        raise Unread(f'it is not clear what "{item.text}" is taken of')
    superlative = len(functions) == 1 and item.value in ("max", "min")
    if superlative and reader.intent.shown and reader.kind(-1) in FILTERING:
        reader.at += end  # "which model has the minimum weight"
        reader.rank(Ordering(mention, "desc" if item.value == "max" else "asc"))
        return True
    reader.at += end
    for function in functions:
        reader.show(Shown(mention, function))
    return True


def common(reader: Reader, item: Item) -> bool:
    """``the most common nationality``."""
    if item.kind != "common":
        return False
    mention, end = reader.name_from(1)
    if mention is None and reader.intent.shown and reader.kind(-1) in ("be", "rel"):
        reader.at += 1  # "the nationality that is most common"
        reader.rank(Ordering(None, item.value, counted=True))
        return True
    if mention is None:
        raise Unread(f'it is not clear what is "{item.text}"')
    reader.at += end
    if reader.intent.shown:
        raise Unread(f'it is not clear what "{item.text}" counts')
    reader.show(Shown(mention))
    reader.rank(Ordering(None, item.value, counted=True))
    return True


def each(reader: Reader, item: Item) -> bool:
    """``for each city``, ``by city``: what an aggregate is taken for."""
    grouping = item.kind == "each"
    if item.kind == "by" and reader.kind(1) == "name" and reader.has_function():
        grouping = True
    if item.kind == "for" and reader.kind(1) == "distinct" and reader.has_function():
        grouping = True
    if not grouping:
        return False
    offset = reader.skip(1, ("distinct", "of", "number of"))
    mention, end = reader.name_from(offset)
    if mention is None:
        if reader.kind(offset) in ("", "stop", "comma") and reader.intent.shown:
            reader.at += offset  # "the number of dogs of each": of what was shown before
            return True
        raise Unread(f'it is not clear what "{item.text}" goes with')
    reader.at += end
    _possess(reader, item, mention)
    if reader.filtering and not reader.has_function():
        raise Unread(f'no meaning found for "{item.text}"')
    reader.show(Shown(mention, grouped=True))
    return True


def _possess(reader: Reader, item: Item, mention: Mention) -> None:
    """Settle whose the columns around ``each`` are."""
    entity = mention.item
    if entity.tables:
        key = entity.tables[0].table.key
        before = [
            shown
            for shown in reader.intent.shown
            if item.text.lower().startswith("of")
            and shown.sentence == reader.sentence
            and not shown.function
            and any(m.table.key == key for m in shown.mention.item.columns)
        ]
        listing = reader.kind() == "comma" and reader.kind(1) == "command"
        if before or listing:
            mention.item = Item("name", entity.text, tables=entity.tables)
        if listing:
            reader.possessor = mention
    if mention.item.tables and not mention.item.columns:
        reader.add_table(mention)
    elif mention.owner is None:
        mention.owner = reader.subject


def name(reader: Reader, item: Item) -> bool:
    """``dogs``, ``the age of a dog``: something to show, or something that was said before."""
    if item.kind != "name":
        return False
    if conditions.compared(reader, item):
        return True
    if item.tables and reader.negated:
        if not reader.intent.tables:
            raise Unread("it is not clear what is negated")
        reader.at += 1
        reader.add_absent(item)
        return True
    if item.tables and _beside_absent(reader):
        reader.at += 1
        reader.subject = Mention(Item("name", item.text, tables=item.tables))
        reader.intent.absent[-1].append(reader.subject)
        return True
    mention, end = reader.name_from(0)
    assert mention is not None
    if end == 2:
        return _table_and_column(reader, item, mention.item)
    listed = reader.is_listed()
    previous = reader.peek(-1)
    reader.at += 1
    if item.tables and (reader.filtering or not item.columns or not listed):
        joined = reader.kind(-2) in ("and", "comma") and bool(reader.intent.shown)
        reader.add_table(mention)
        if reader.filtering:
            reader.intent.existing.append(mention)
        elif not reader.intent.shown or joined:
            reader.show(Shown(mention))
        return True
    if reader.negated:
        raise Unread("it is not clear what is negated")
    if previous is not None and previous.kind == "name" and previous.tables:
        mention.owner = reader.subject
    if reader.filtering or not listed:
        reader.intent.repeated.append(mention)
        return True
    reader.show(Shown(mention))
    return True


def _table_and_column(reader: Reader, table: Item, column: Item) -> bool:
    """Read ``cartoon titles``, and ``cartoon directed by 'Ann'``, where cartoons are shown."""
    listed = reader.is_listed()
    shown = len(reader.intent.shown)
    reader.at += 1
    if conditions.compared(reader, column):
        if not shown:
            reader.intent.shown.insert(0, Shown(Mention(table), sentence=reader.sentence))
        return True
    participle = column.text.lower().endswith(("ed", "ing")) and not column.whole_column
    if not listed or reader.filtering or participle:
        return name(reader, column)
    reader.at += 1
    reader.show(Shown(Mention(column, reader.subject)))
    return True


def _beside_absent(reader: Reader) -> bool:
    """Tell whether an entity named here is part of what is absent."""
    absent = reader.intent.absent
    return bool(absent) and reader.filtering and any(m is reader.subject for m in absent[-1])
