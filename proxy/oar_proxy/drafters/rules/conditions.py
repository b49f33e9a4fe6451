"""Rules for what holds of what is shown: comparisons, values, and what there is none of.

Each reads from where the reader stands and tells whether it did.
"""

from __future__ import annotations

import re
from typing import Final

from oar_proxy.drafters.rules.intent import Condition, Having, Mention, Ordering, Unread
from oar_proxy.drafters.rules.names import BY_COMMENT, is_numeric, is_place
from oar_proxy.drafters.rules.reader import Reader
from oar_proxy.drafters.rules.tagging import Item
from oar_proxy.drafters.rules.words import is_movement, stem

_COPULA: Final = frozenset(("be", "equal", "named", "verb"))


def _is_year(item: Item) -> bool:
    return item.kind == "number" and len(item.value) == 4 and item.value.isdigit()


_DESCRIBING: Final = re.compile(r"(ish|ese|ian|can|ean|ench|utch|rman|eek|iss)$")
"""How English makes an adjective of a country: ``French authors`` are not called ``French``."""


def _describes(value: Item, entity: Item) -> bool:
    """Tell whether a value before an entity describes it, not names it: ``Danish books``."""
    if value.quoted or stem(entity.text) == stem("language"):
        return False
    plural = bool(entity.tables) and entity.text.lower().endswith("s")
    return plural or _DESCRIBING.search(value.text) is not None


def without(reader: Reader, item: Item) -> bool:
    """``without a dog``, ``with no age given``: what there is none of, or what does not hold."""
    if item.kind != "without":
        return False
    offset = reader.skip(1, ("distinct", "verb", "have"))
    target = reader.peek(offset)
    if target is None or target.kind != "name":
        raise Unread(f'it is not clear what "{item.text}" excludes')
    if not target.tables:
        reader.at += offset
        reader.negated = reader.filtering = True
        return True
    reader.at += offset + 1
    reader.add_absent(target)
    return True


def between_first(reader: Reader, item: Item) -> bool:
    """``between 1 and 4 cylinders``, ``between 1970 and 1980``."""
    if item.kind != "between":
        return False
    bounds = _bounds(reader, 1)
    if bounds is None:
        raise Unread("it is not clear what is between what")
    reader.at += 4
    unit = _unit_after(reader)
    reader.add_condition(Condition(unit, "between", *bounds, None if unit else "date"))
    return True


def comparison_first(reader: Reader, item: Item) -> bool:
    """``more than 4 cylinders``, ``before 1980``, ``older than 30``, ``above average age``."""
    if item.kind != "compare":
        return False
    operator, _, hint = item.value.partition(" ")
    operand = reader.peek(1)
    amount = reader.peek(2)
    if operand is not None and operand.kind == "name" and amount is not None:
        # "after the year 2008", "under age 30"
        if operand.tables or amount.kind != "number":
            raise Unread(f'it is not clear what "{item.text}" compares')
        reader.at += 3
        reader.add_condition(Condition(Mention(operand), operator, (amount.value,), True))
        return True
    if operand is None or operand.kind not in ("number", "value", "aggregate"):
        raise Unread(f'it is not clear what "{item.text}" compares')
    reader.at += 2
    if operand.kind == "aggregate":
        _above_aggregate(reader, operand, operator, hint)
    elif hint:
        values = (operand.value,)
        reader.add_condition(Condition(None, operator, values, operand.kind == "number", hint))
    else:
        _above_amount(reader, item, operand, operator)
    return True


def _above_aggregate(reader: Reader, operand: Item, operator: str, hint: str) -> None:
    named, end = reader.name_from(reader.skip(0, ("of",)))
    mention = named if named is not None and named.item.columns else None
    if mention is not None:
        reader.at += end
    elif not hint:
        raise Unread(f'it is not clear what "{operand.text}" is taken of')
    reader.add_condition(Condition(mention, operator, hint=hint or None, aggregate=operand.value))


def _above_amount(reader: Reader, item: Item, operand: Item, operator: str) -> None:
    unit = _unit_after(reader)
    mention = unit or _last_compared(reader)
    if mention is None:
        raise Unread(f'it is not clear what "{item.text}" compares')
    numeric = operand.kind == "number"
    if mention.item.columns:
        reader.add_condition(Condition(mention, operator, (operand.value,), numeric))
    elif numeric:
        reader.intent.tables.append(mention)
        reader.intent.having.append(Having(mention, operator, operand.value))
    else:
        raise Unread(f'it is not clear what "{item.text}" compares')


def _last_compared(reader: Reader) -> Mention | None:
    if reader.intent.conditions and reader.kind(-3) in ("and", "or", "comma"):
        return reader.intent.conditions[-1].mention
    return None


def value_first(reader: Reader, item: Item) -> bool:
    """``the Alton airport``, ``in Aberdeen``."""
    if item.kind == "value":
        if item.inflected:
            raise Unread(f'put "{item.text}" in quotes, exactly as it is stored')
        following = reader.peek(1)
        before = reader.peek(-1)
        if before is not None and before.value == "place":
            entity = following is not None and following.kind == "name" and following.tables
            if not entity:
                reader.at += 1
                reader.add_condition(Condition(None, "=", _values(reader, item), False, "place"))
                return True
        if following is not None and following.kind == "name":
            if _describes(item, following):
                raise Unread(f'"{item.text}" may be spelled otherwise where it is stored')
            if following.text[0].isupper() and item.text[0].isupper():
                raise Unread(f'it is not clear where the value "{item.text}" ends')
            reader.at += 2
            mention = Mention(following)
            if following.tables:
                reader.add_table(mention)
                reader.add_condition(Condition(mention, "label", (item.value,)))
            elif is_place(following.columns[0].column):
                raise Unread(f'"{item.text}" may be spelled otherwise where it is stored')
            elif not reader.intent.shown:
                raise Unread(f'it is not clear whether "{following.text}" is asked for')
            else:
                reader.add_condition(Condition(mention, "=", (item.value,)))
            return True
    return False


def number_first(reader: Reader, item: Item) -> bool:
    """``2 or more songs``, ``4 cylinders``, ``in 1980``."""
    if item.kind != "number":
        return False
    if reader.kind(1) in ("or more", "or less"):
        operator = ">=" if reader.kind(1) == "or more" else "<="
        reader.at += 2
        _above_amount(reader, item, item, operator)
        return True
    following = reader.peek(1)
    if following is not None and following.kind == "name":
        mention = _counted_column(reader, following)
        if mention is not None:
            reader.add_condition(Condition(mention, "=", (item.value,), True))
            return True
    if reader.kind(-1) in ("prep", "distinct") and _is_year(item):
        reader.at += 1
        reader.add_condition(Condition(None, "=", (item.value,), True, "date"))
        return True
    return False


def _counted_column(reader: Reader, following: Item) -> Mention | None:
    """Read the column behind a number, as in ``with 4 cylinders``."""
    if following.tables or not all(is_numeric(m.column) for m in following.columns):
        return None
    reader.at += 2
    return Mention(following)


def named_value(reader: Reader, item: Item) -> bool:
    """``student named Ann Lee``: the value is what the last entity is called."""
    if item.kind != "named":
        return False
    value = reader.peek(1)
    if value is None or value.kind not in ("value", "unknown"):
        raise Unread(f'it is not clear what is "{item.text}"')
    if value.inflected:
        raise Unread(f'put "{value.text}" in quotes, exactly as it is stored')
    if reader.subject is None:
        raise Unread(f'it is not clear what is "{item.text}"')
    reader.at += 2
    reader.add_condition(Condition(reader.subject, "label", _values(reader, value)))
    return True


def compared(reader: Reader, item: Item) -> bool:
    """Read a name with its comparison: ``age is over 30``, ``city 'Bonn'``."""
    between = _COPULA | {"not", "of", "either", "do", "have", "rel"}
    if not reader.is_listed() and not item.tables and is_movement(item.text):
        between |= {"prep", "by"}  # "departing from 'APG'"
    offset = reader.skip(1, between)
    said = {reader.kind(n) for n in range(1, offset)}
    negated = "not" in said
    if reader.kind(offset - 1) == "of" and reader.kind(offset) not in ("value", "number"):
        return False
    operand = reader.peek(offset)
    if operand is None:
        return False
    if operand.kind == "like":
        return _like(reader, item, operand, offset, negated)
    last = reader.kind(offset + 1) in ("", "stop", "comma")
    if operand.kind == "most" and "be" in said and item.columns and last and not negated:
        reader.at += offset + 1  # "whose price is the highest"
        reader.rank(Ordering(Mention(item, reader.subject), operand.value))
        return True
    if operand.kind == "compare" and item.columns:
        if item.tables or said & {"have", "rel", "do"}:
            return False
        return _ranged(reader, item, operand, offset, negated)
    if operand.kind == "between" and item.columns:
        bounds = _bounds(reader, offset + 1)
        if bounds is None:
            return False
        reader.at += offset + 4
        reader.negated ^= negated
        reader.add_condition(Condition(Mention(item), "between", *bounds))
        return True
    return _equated(reader, item, offset, said)


def _equated(reader: Reader, item: Item, offset: int, said: set[str]) -> bool:
    """Read a name and the value it equals, or an entity and what it is called."""
    operand = reader.peek(offset)
    assert operand is not None
    if operand.kind not in ("value", "number"):
        return False
    if operand.kind == "number" and (
        not item.columns or reader.kind(offset + 1) in ("most", "extreme")
    ):
        return False
    following = reader.peek(offset + 1)
    if "of" in said and following is not None and following.tables and not operand.quoted:
        return False  # "the names of Alton airports": the value goes with what follows
    if operand.inflected:
        raise Unread(f'put "{operand.text}" in quotes, exactly as it is stored')
    reader.at += offset + 1
    reader.negated ^= "not" in said
    mention = Mention(item)
    values = _values(reader, operand)
    if item.tables and operand.kind == "value" and not (item.columns and "be" in said):
        if said - {"named", "be", "of"}:
            raise Unread(f'it is not clear what is "{operand.text}"')
        if item.text.lower().endswith(("ed", "ing")):
            raise Unread(f'it is not clear what is "{operand.text}"')
        reader.add_table(mention)
        reader.add_condition(Condition(mention, "label", values))
        return True
    reader.add_condition(Condition(mention, "=", values, operand.kind == "number"))
    return True


def _like(reader: Reader, item: Item, operand: Item, offset: int, negated: bool) -> bool:
    offset += 1
    while reader.kind(offset) in ("like", "noise"):
        offset += 1
    value = reader.peek(offset)
    if value is None or value.kind not in ("value", "unknown", "number"):
        raise Unread(f'it is not clear what "{operand.text}" looks for')
    reader.at += offset + 1
    reader.negated ^= negated
    mention = Mention(item)
    kind = "like" if item.columns else "label like"
    reader.add_condition(Condition(mention, kind, (operand.value.replace("s", value.value, 1),)))
    return True


def _ranged(reader: Reader, item: Item, operand: Item, offset: int, negated: bool) -> bool:
    value = reader.peek(offset + 1)
    operator = operand.value.partition(" ")[0]
    if value is None:
        return False
    if value.kind == "aggregate":
        reader.at += offset + 2
        following = reader.peek()
        if following is not None and following.kind == "name" and following.columns:
            if following.columns[0].column.name == item.columns[0].column.name:
                reader.at += 1
            else:
                raise Unread("it is not clear what is compared")
        reader.negated ^= negated
        reader.add_condition(Condition(Mention(item), operator, aggregate=value.value))
        return True
    if value.kind not in ("number", "value"):
        return False
    reader.at += offset + 2
    reader.negated ^= negated
    reader.add_condition(Condition(Mention(item), operator, (value.value,), value.kind == "number"))
    return True


def _values(reader: Reader, first: Item) -> tuple[str, ...]:
    """Read the values that follow a first one: ``'a' or 'b'``."""
    values = [first.value]
    while reader.kind() in ("or", "comma") and reader.kind(1) == first.kind:
        following = reader.peek(1)
        assert following is not None
        values.append(following.value)
        reader.at += 2
    return tuple(values)


def _bounds(reader: Reader, offset: int) -> tuple[tuple[str, str], bool] | None:
    """Read ``1 and 4``: the values, and whether they are numbers."""
    low, joint, high = (reader.peek(offset + n) for n in range(3))
    if low is None or high is None or joint is None or joint.kind != "and":
        return None
    if {low.kind, high.kind} - {"number", "value"}:
        return None
    return (low.value, high.value), low.kind == high.kind == "number"


def _unit_after(reader: Reader) -> Mention | None:
    """Read the name behind a number: ``4 cylinders``."""
    item = reader.peek(reader.skip(0, ("distinct",)))
    if item is None or item.kind != "name":
        return None
    numeric = [m for m in item.columns if is_numeric(m.column) and m.score >= BY_COMMENT]
    if not item.tables and not any(is_numeric(m.column) for m in item.columns):
        raise Unread(f'"{item.text}" is no number')
    if item.tables and not numeric:
        reader.at += reader.skip(0, ("distinct",)) + 1
        return Mention(Item("name", item.text, tables=item.tables))
    mention, end = reader.name_from(0)
    if mention is not None:
        reader.at += end
    return mention
