"""From items to an intent: what to show, of what, where, by what, in which order.

The reader goes left to right and every item must find its place. What finds none raises
:class:`Unread`, and the drafter abstains: a word left out could have changed the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from oar_proxy.drafters.rules.intent import (
    Condition,
    Having,
    Intent,
    Mention,
    Ordering,
    Shown,
    Unread,
)
from oar_proxy.drafters.rules.names import BY_COMMENT, is_date, is_numeric, is_place
from oar_proxy.drafters.rules.tagging import Item, is_reference
from oar_proxy.drafters.rules.words import is_movement, stem

_COPULA: Final = frozenset(("be", "equal", "named", "verb"))
_GLUE: Final = frozenset(
    ("be", "do", "of", "for", "prep", "comma", "and", "verb", "have", "by", "rel", "with", "stop")
)
_LISTING: Final = frozenset(
    ("", "command", "sort", "and", "comma", "stop", "distinct", "of", "both")
)
"""What stands before a name that is to be shown."""
_IN_WHICH: Final = ("in which", "in what")
"""They ask for a set at a question's beginning; elsewhere they only join clauses."""
_FILTERING: Final = frozenset(("with", "whose", "rel", "have"))


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


def read(items: Sequence[Item]) -> Intent:
    """Read a question. Raises :class:`Unread`."""
    return _Reader(_without_its_name(items)).read()


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


class _Reader:
    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self._at = 0
        self._intent = Intent()
        self._sentence = 0
        self._filtering = False
        self._distinct = False
        self._negated = False
        self._or = False
        self._limit: int | None = None
        self._sorting = False
        self._subject: Mention | None = None
        self._possessor: Mention | None = None
        self._rules: tuple[Callable[[Item], bool], ...] = (
            self._ask,
            self._count,
            self._aggregate,
            self._common,
            self._most,
            self._extreme,
            self._each,
            self._order,
            self._without,
            self._between_first,
            self._comparison_first,
            self._value_first,
            self._number_first,
            self._named_value,
            self._name,
            self._flag,
            self._glue,
        )

    def read(self) -> Intent:
        while self._at < len(self._items):
            item = self._items[self._at]
            if not any(rule(item) for rule in self._rules):
                raise Unread(f'no meaning found for "{item.text}"')
        if self._negated:
            raise Unread("it is not clear what is negated")
        if self._limit is not None:
            raise Unread("it is not clear what the number limits")
        self._settle_sentences()
        self._settle_entities()
        return self._intent

    # --- looking around ---

    def _peek(self, offset: int = 0) -> Item | None:
        index = self._at + offset
        return self._items[index] if 0 <= index < len(self._items) else None

    def _kind(self, offset: int = 0) -> str:
        item = self._peek(offset)
        return item.kind if item is not None else ""

    def _skip(self, offset: int, kinds: frozenset[str] | tuple[str, ...]) -> int:
        while self._kind(offset) in kinds:
            offset += 1
        return offset

    def _name_from(self, offset: int) -> tuple[Mention | None, int]:
        """Read a column's mention, perhaps behind its table's: ``dog age``."""
        item = self._peek(offset)
        if item is None or item.kind != "name":
            return None, offset
        after = self._peek(offset + 1)
        if (
            item.tables
            and after is not None
            and after.kind == "name"
            and after.columns
            and any(c.table.key == item.tables[0].table.key for c in after.columns)
        ):
            owner = self._add_table(Mention(item))
            return Mention(after, owner), offset + 2
        return Mention(item), offset + 1

    # --- recording ---

    def _add_table(self, mention: Mention) -> Mention:
        for shown in self._intent.shown:
            if shown.mention.owner is None and shown.sentence == self._sentence:
                shown.mention.owner = mention
                shown.mention.following = True
        self._intent.tables.append(mention)
        self._subject = mention
        return mention

    def _show(self, shown: Shown) -> None:
        if shown.mention.owner is None and not shown.function and not shown.grouped:
            shown.mention.owner = self._possessor
        shown.sentence = self._sentence
        self._intent.shown.append(shown)

    def _condition(self, condition: Condition) -> None:
        condition.negated = self._negated
        condition.or_before = self._or and bool(self._intent.conditions)
        condition.subject = self._subject
        if condition.mention is not None and condition.mention.owner is None:
            condition.mention.owner = self._subject
        self._negated = self._or = False
        self._intent.conditions.append(condition)

    def _listed(self) -> bool:
        """Tell whether a name that stands here is one of those to be shown."""
        before = self._kind(-1)
        if before in ("be", "verb", "for", "prep", "by", "of"):
            return not self._intent.shown
        return before in _LISTING

    # --- rules: each reads from here and tells whether it did ---

    def _ask(self, item: Item) -> bool:
        """``where``, ``when``, ``how old``: what a column of the entity that follows says."""
        if item.kind != "ask":
            return False
        if self._kind(-1) not in ("", "stop", "command", "and"):
            raise Unread(f'no meaning found for "{item.text}"')
        offset = 1
        while self._kind(offset) not in ("", "stop"):
            following = self._peek(offset)
            if following is not None and following.kind == "name" and following.tables:
                self._show(Shown(Mention(following), hint=item.value))
                self._at += 1
                return True
            offset += 1
        column = next((i for i in self._items[self._at :] if i.kind == "name"), None)
        if column is not None:
            self._show(Shown(Mention(column), hint=item.value))
            self._at += 1
            return True
        raise Unread(f'it is not clear what "{item.text}" asks about')

    def _count(self, item: Item) -> bool:
        if item.kind not in ("how many", "number of"):
            return False
        offset = self._skip(1, ("of", "distinct", "verb", "number of"))
        distinct = any(self._kind(n) == "distinct" for n in range(1, offset))
        target = self._peek(offset)
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
        self._at += offset + 1
        mention = Mention(target)
        if target.tables:
            self._add_table(mention)
        self._show(Shown(mention, "count", distinct))
        while distinct and self._kind() in ("and", "comma") and self._kind(1) == "name":
            following = self._peek(1)
            if following is None or following.tables or self._kind(2) in ("compare", "value", "be"):
                break
            self._show(Shown(Mention(following), "count", True))
            self._at += 2
        return True

    def _aggregate(self, item: Item) -> bool:
        if item.kind != "aggregate":
            return False
        functions = [item.value]
        offset = 1
        while True:
            gap = self._skip(offset, ("and", "comma"))
            following = self._peek(gap)
            if gap > offset and following is not None and following.kind == "aggregate":
                functions.append(following.value)
                offset = gap + 1
            else:
                break
        offset = self._skip(offset, ("of", "distinct", "be"))
        mention, end = self._name_from(offset)
        if mention is None or not mention.item.columns:
            raise Unread(f'it is not clear what "{item.text}" is taken of')
        superlative = len(functions) == 1 and item.value in ("max", "min")
        if superlative and self._intent.shown and self._kind(-1) in _FILTERING:
            self._at += end  # "which model has the minimum weight"
            self._rank(Ordering(mention, "desc" if item.value == "max" else "asc"))
            return True
        self._at += end
        for function in functions:
            self._show(Shown(mention, function))
        return True

    def _common(self, item: Item) -> bool:
        if item.kind != "common":
            return False
        mention, end = self._name_from(1)
        if mention is None and self._intent.shown and self._kind(-1) in ("be", "rel"):
            self._at += 1  # "the nationality that is most common"
            self._rank(Ordering(None, item.value, counted=True))
            return True
        if mention is None:
            raise Unread(f'it is not clear what is "{item.text}"')
        self._at += end
        if self._intent.shown:
            raise Unread(f'it is not clear what "{item.text}" counts')
        self._show(Shown(mention))
        self._rank(Ordering(None, item.value, counted=True))
        return True

    def _most(self, item: Item) -> bool:
        if item.kind == "number" and self._kind(1) in ("most", "extreme"):
            self._limit = int(item.value) if item.value.isdigit() else None
            self._at += 1
            return self._limit is not None
        if item.kind != "most":
            return False
        offset = 1
        number = self._peek(offset)
        if number is not None and number.kind == "number" and number.value.isdigit():
            self._limit = int(number.value)
            offset += 1
        if self._kind(offset) in ("most", "extreme"):
            self._at += offset
            return True
        if self._limit is not None and self._top(offset):
            return True
        offset = self._skip(offset, ("of", "distinct"))
        counted = self._kind(offset) == "number of"
        offset = self._skip(offset, ("number of", "of", "distinct"))
        mention, end = self._name_from(offset)
        if mention is None:
            raise Unread(f'it is not clear what "{item.text}" ranks')
        measured = any(
            not m.partial and (is_numeric(m.column) or is_date(m.column))
            for m in mention.item.columns
        )
        counting = counted or not mention.item.columns or (mention.item.tables and not measured)
        asked = bool(self._intent.shown) or self._kind(-1) in _FILTERING | {"by", "prep", "be"}
        self._at += end
        if counting:
            if not mention.item.tables:
                raise Unread(f'it is not clear what "{item.text}" counts')
            self._intent.tables.append(mention)
            self._rank(Ordering(mention, item.value, counted=True))
        elif asked or self._limit is not None or self._kind() == "name":
            if not asked and self._kind() != "name":
                self._show(Shown(mention))
            if mention.owner is None:
                mention.owner = self._subject
            self._rank(Ordering(mention, item.value))
        else:
            self._show(Shown(mention, "max" if item.value == "desc" else "min"))
        return True

    def _top(self, offset: int) -> bool:
        """Read ``3 cities`` of ``top 3 cities with the most deliveries``: the ranking follows."""
        mention, end = self._name_from(offset)
        ranked = self._kind(self._skip(end, tuple(_FILTERING | {"by"}))) in ("most", "extreme")
        if mention is None or not ranked:
            return False
        self._show(Shown(mention))
        self._at += end
        return True

    def _extreme(self, item: Item) -> bool:
        if item.kind != "extreme":
            return False
        direction, _, hint = item.value.partition(" ")
        offset = 1
        number = self._peek(offset)
        if number is not None and number.kind == "number" and number.value.isdigit():
            self._limit = int(number.value)
            offset += 1
        offset = self._skip(offset, ("verb",))
        mention, end = self._name_from(offset)
        if mention is None:
            raise Unread(f'it is not clear what is "{item.text}"')
        self._at += end
        if mention.item.tables and not (mention.item.columns and hint == "date" and end == 1):
            self._add_table(mention)
            if not self._intent.shown:
                self._show(Shown(mention))
            self._rank(Ordering(mention, direction, hint=hint))
        elif self._intent.shown:
            self._rank(Ordering(mention, direction, hint=hint))
        else:
            self._show(Shown(mention, "max" if direction == "desc" else "min"))
        return True

    def _rank(self, ordering: Ordering) -> None:
        ordering.limit = self._limit or 1
        self._limit = None
        if self._negated:
            raise Unread("it is not clear what is negated")
        self._intent.ordering.append(ordering)

    def _each(self, item: Item) -> bool:
        grouping = item.kind == "each"
        if item.kind == "by" and self._kind(1) == "name" and self._has_function():
            grouping = True
        if item.kind == "for" and self._kind(1) == "distinct" and self._has_function():
            grouping = True
        if not grouping:
            return False
        offset = self._skip(1, ("distinct", "of", "number of"))
        mention, end = self._name_from(offset)
        if mention is None:
            if self._kind(offset) in ("", "stop", "comma") and self._intent.shown:
                self._at += offset  # "the number of dogs of each": of what was shown before
                return True
            raise Unread(f'it is not clear what "{item.text}" goes with')
        self._at += end
        self._possess(item, mention)
        if self._filtering and not self._has_function():
            raise Unread(f'no meaning found for "{item.text}"')
        self._show(Shown(mention, grouped=True))
        return True

    def _possess(self, item: Item, mention: Mention) -> None:
        """Settle whose the columns around ``each`` are."""
        entity = mention.item
        if entity.tables:
            key = entity.tables[0].table.key
            before = [
                shown
                for shown in self._intent.shown
                if item.text.lower().startswith("of")
                and shown.sentence == self._sentence
                and not shown.function
                and any(m.table.key == key for m in shown.mention.item.columns)
            ]
            listing = self._kind() == "comma" and self._kind(1) == "command"
            if before or listing:
                mention.item = Item("name", entity.text, tables=entity.tables)
            if listing:
                self._possessor = mention
        if mention.item.tables and not mention.item.columns:
            self._add_table(mention)
        elif mention.owner is None:
            mention.owner = self._subject

    def _has_function(self) -> bool:
        return any(shown.function for shown in self._intent.shown)

    def _order(self, item: Item) -> bool:
        sorting = self._sorting and item.kind == "by"
        if item.kind not in ("order", "direction", "alphabet") and not sorting:
            return False
        self._sorting = False
        direction = item.value or None
        offset = 1
        alphabetic = item.kind == "alphabet"
        while self._kind(offset) in ("order", "direction", "of", "by", "alphabet"):
            following = self._peek(offset)
            if following is not None and following.value in ("asc", "desc"):
                direction = following.value
                alphabetic |= following.kind == "alphabet"
            offset += 1
        counted = self._kind(offset) == "number of"
        offset = self._skip(offset, ("number of", "distinct"))
        mentions: list[Mention] = []
        mention, end = self._name_from(offset)
        while mention is not None:
            if mention.owner is None and not counted:
                mention.owner = self._subject
            mentions.append(mention)
            offset = end
            gap = self._skip(offset, ("and", "comma"))
            if gap == offset or counted:
                break
            mention, end = self._name_from(gap)
        trailing = self._skip(offset, ("comma", "from", "prep"))
        following = self._peek(trailing)
        if mentions and following is not None and following.kind in ("direction", "alphabet"):
            direction = following.value
            offset = trailing + 1
        self._at += offset
        if not mentions and item.kind in ("order", "by") and not (alphabetic or counted):
            raise Unread(f'it is not clear what "{item.text}" sorts by')
        if counted and mentions:
            self._intent.tables.extend(mentions)
        if not mentions:
            self._intent.ordering.append(Ordering(None, direction, counted=counted))
        self._intent.ordering.extend(Ordering(m, direction, counted=counted) for m in mentions)
        return True

    def _without(self, item: Item) -> bool:
        if item.kind != "without":
            return False
        offset = self._skip(1, ("distinct", "verb", "have"))
        target = self._peek(offset)
        if target is None or target.kind != "name":
            raise Unread(f'it is not clear what "{item.text}" excludes')
        if not target.tables:
            self._at += offset
            self._negated = self._filtering = True
            return True
        self._at += offset + 1
        self._absent(target)
        return True

    def _absent(self, target: Item) -> None:
        """Note that what is asked for has none of these."""
        self._subject = Mention(Item("name", target.text, tables=target.tables))
        self._intent.absent.append([self._subject])
        self._filtering = True
        self._negated = False

    def _between_first(self, item: Item) -> bool:
        """``between 1 and 4 cylinders``, ``between 1970 and 1980``."""
        if item.kind != "between":
            return False
        bounds = self._bounds(1)
        if bounds is None:
            raise Unread("it is not clear what is between what")
        self._at += 4
        unit = self._unit_after()
        self._condition(Condition(unit, "between", *bounds, None if unit else "date"))
        return True

    def _bounds(self, offset: int) -> tuple[tuple[str, str], bool] | None:
        """Read ``1 and 4``: the values, and whether they are numbers."""
        low, joint, high = (self._peek(offset + n) for n in range(3))
        if low is None or high is None or joint is None or joint.kind != "and":
            return None
        if {low.kind, high.kind} - {"number", "value"}:
            return None
        return (low.value, high.value), low.kind == high.kind == "number"

    def _comparison_first(self, item: Item) -> bool:
        """``more than 4 cylinders``, ``before 1980``, ``older than 30``, ``above average age``."""
        if item.kind != "compare":
            return False
        operator, _, hint = item.value.partition(" ")
        operand = self._peek(1)
        amount = self._peek(2)
        if operand is not None and operand.kind == "name" and amount is not None:
            # "after the year 2008", "under age 30"
            if operand.tables or amount.kind != "number":
                raise Unread(f'it is not clear what "{item.text}" compares')
            self._at += 3
            self._condition(Condition(Mention(operand), operator, (amount.value,), True))
            return True
        if operand is None or operand.kind not in ("number", "value", "aggregate"):
            raise Unread(f'it is not clear what "{item.text}" compares')
        self._at += 2
        if operand.kind == "aggregate":
            self._above_aggregate(operand, operator, hint)
        elif hint:
            values = (operand.value,)
            self._condition(Condition(None, operator, values, operand.kind == "number", hint))
        else:
            self._above_amount(item, operand, operator)
        return True

    def _above_aggregate(self, operand: Item, operator: str, hint: str) -> None:
        named, end = self._name_from(self._skip(0, ("of",)))
        mention = named if named is not None and named.item.columns else None
        if mention is not None:
            self._at += end
        elif not hint:
            raise Unread(f'it is not clear what "{operand.text}" is taken of')
        self._condition(Condition(mention, operator, hint=hint or None, aggregate=operand.value))

    def _above_amount(self, item: Item, operand: Item, operator: str) -> None:
        unit = self._unit_after()
        mention = unit or self._last_compared()
        if mention is None:
            raise Unread(f'it is not clear what "{item.text}" compares')
        numeric = operand.kind == "number"
        if mention.item.columns:
            self._condition(Condition(mention, operator, (operand.value,), numeric))
        elif numeric:
            self._intent.tables.append(mention)
            self._intent.having.append(Having(mention, operator, operand.value))
        else:
            raise Unread(f'it is not clear what "{item.text}" compares')

    def _unit_after(self) -> Mention | None:
        """Read the name behind a number: ``4 cylinders``."""
        item = self._peek(self._skip(0, ("distinct",)))
        if item is None or item.kind != "name":
            return None
        numeric = [m for m in item.columns if is_numeric(m.column) and m.score >= BY_COMMENT]
        if not item.tables and not any(is_numeric(m.column) for m in item.columns):
            raise Unread(f'"{item.text}" is no number')
        if item.tables and not numeric:
            self._at += self._skip(0, ("distinct",)) + 1
            return Mention(Item("name", item.text, tables=item.tables))
        mention, end = self._name_from(0)
        if mention is not None:
            self._at += end
        return mention

    def _last_compared(self) -> Mention | None:
        if self._intent.conditions and self._kind(-3) in ("and", "or", "comma"):
            return self._intent.conditions[-1].mention
        return None

    def _value_first(self, item: Item) -> bool:
        """``the Alton airport``, ``in Aberdeen``."""
        if item.kind == "value":
            if item.inflected:
                raise Unread(f'put "{item.text}" in quotes, exactly as it is stored')
            following = self._peek(1)
            before = self._peek(-1)
            if before is not None and before.value == "place":
                entity = following is not None and following.kind == "name" and following.tables
                if not entity:
                    self._at += 1
                    self._condition(Condition(None, "=", self._values(item), False, "place"))
                    return True
            if following is not None and following.kind == "name":
                if _describes(item, following):
                    raise Unread(f'"{item.text}" may be spelled otherwise where it is stored')
                if following.text[0].isupper() and item.text[0].isupper():
                    raise Unread(f'it is not clear where the value "{item.text}" ends')
                self._at += 2
                mention = Mention(following)
                if following.tables:
                    self._add_table(mention)
                    self._condition(Condition(mention, "label", (item.value,)))
                elif is_place(following.columns[0].column):
                    raise Unread(f'"{item.text}" may be spelled otherwise where it is stored')
                elif not self._intent.shown:
                    raise Unread(f'it is not clear whether "{following.text}" is asked for')
                else:
                    self._condition(Condition(mention, "=", (item.value,)))
                return True
        return False

    def _number_first(self, item: Item) -> bool:
        """``2 or more songs``, ``4 cylinders``, ``in 1980``."""
        if item.kind != "number":
            return False
        if self._kind(1) in ("or more", "or less"):
            operator = ">=" if self._kind(1) == "or more" else "<="
            self._at += 2
            self._above_amount(item, item, operator)
            return True
        following = self._peek(1)
        if following is not None and following.kind == "name":
            mention = self._counted_column(following)
            if mention is not None:
                self._condition(Condition(mention, "=", (item.value,), True))
                return True
        if self._kind(-1) in ("prep", "distinct") and _is_year(item):
            self._at += 1
            self._condition(Condition(None, "=", (item.value,), True, "date"))
            return True
        return False

    def _counted_column(self, following: Item) -> Mention | None:
        """Read the column behind a number, as in ``with 4 cylinders``."""
        if following.tables or not all(is_numeric(m.column) for m in following.columns):
            return None
        self._at += 2
        return Mention(following)

    def _values(self, first: Item) -> tuple[str, ...]:
        """Read the values that follow a first one: ``'a' or 'b'``."""
        values = [first.value]
        while self._kind() in ("or", "comma") and self._kind(1) == first.kind:
            following = self._peek(1)
            assert following is not None
            values.append(following.value)
            self._at += 2
        return tuple(values)

    def _named_value(self, item: Item) -> bool:
        """``student named Ann Lee``: the value is what the last entity is called."""
        if item.kind != "named":
            return False
        value = self._peek(1)
        if value is None or value.kind not in ("value", "unknown"):
            raise Unread(f'it is not clear what is "{item.text}"')
        if value.inflected:
            raise Unread(f'put "{value.text}" in quotes, exactly as it is stored')
        if self._subject is None:
            raise Unread(f'it is not clear what is "{item.text}"')
        self._at += 2
        self._condition(Condition(self._subject, "label", self._values(value)))
        return True

    def _name(self, item: Item) -> bool:
        if item.kind != "name":
            return False
        if self._compared(item):
            return True
        if item.tables and self._negated:
            if not self._intent.tables:
                raise Unread("it is not clear what is negated")
            self._at += 1
            self._absent(item)
            return True
        if item.tables and self._beside_absent():
            self._at += 1
            self._subject = Mention(Item("name", item.text, tables=item.tables))
            self._intent.absent[-1].append(self._subject)
            return True
        mention, end = self._name_from(0)
        assert mention is not None
        if end == 2:
            return self._table_and_column(item, mention.item)
        listed = self._listed()
        previous = self._peek(-1)
        self._at += 1
        if item.tables and (self._filtering or not item.columns or not listed):
            joined = self._kind(-2) in ("and", "comma") and bool(self._intent.shown)
            self._add_table(mention)
            if self._filtering:
                self._intent.existing.append(mention)
            elif not self._intent.shown or joined:
                self._show(Shown(mention))
            return True
        if self._negated:
            raise Unread("it is not clear what is negated")
        if previous is not None and previous.kind == "name" and previous.tables:
            mention.owner = self._subject
        if self._filtering or not listed:
            self._intent.repeated.append(mention)
            return True
        self._show(Shown(mention))
        return True

    def _table_and_column(self, table: Item, column: Item) -> bool:
        """Read ``cartoon titles``, and ``cartoon directed by 'Ann'``, where cartoons are shown."""
        listed = self._listed()
        shown = len(self._intent.shown)
        self._at += 1
        if self._compared(column):
            if not shown:
                self._intent.shown.insert(0, Shown(Mention(table), sentence=self._sentence))
            return True
        participle = column.text.lower().endswith(("ed", "ing")) and not column.whole_column
        if not listed or self._filtering or participle:
            return self._name(column)
        self._at += 1
        self._show(Shown(Mention(column, self._subject)))
        return True

    def _beside_absent(self) -> bool:
        """Tell whether an entity named here is part of what is absent."""
        absent = self._intent.absent
        return bool(absent) and self._filtering and any(m is self._subject for m in absent[-1])

    def _compared(self, item: Item) -> bool:
        """Read a name with its comparison: ``age is over 30``, ``city 'Bonn'``."""
        between = _COPULA | {"not", "of", "either", "do", "have", "rel"}
        if not self._listed() and not item.tables and is_movement(item.text):
            between |= {"prep", "by"}  # "departing from 'APG'"
        offset = self._skip(1, between)
        said = {self._kind(n) for n in range(1, offset)}
        negated = "not" in said
        if self._kind(offset - 1) == "of" and self._kind(offset) not in ("value", "number"):
            return False
        operand = self._peek(offset)
        if operand is None:
            return False
        if operand.kind == "like":
            return self._like(item, operand, offset, negated)
        last = self._kind(offset + 1) in ("", "stop", "comma")
        if operand.kind == "most" and "be" in said and item.columns and last and not negated:
            self._at += offset + 1  # "whose price is the highest"
            self._rank(Ordering(Mention(item, self._subject), operand.value))
            return True
        if operand.kind == "compare" and item.columns:
            if item.tables or said & {"have", "rel", "do"}:
                return False
            return self._ranged(item, operand, offset, negated)
        if operand.kind == "between" and item.columns:
            bounds = self._bounds(offset + 1)
            if bounds is None:
                return False
            self._at += offset + 4
            self._negated ^= negated
            self._condition(Condition(Mention(item), "between", *bounds))
            return True
        return self._equated(item, offset, said)

    def _equated(self, item: Item, offset: int, said: set[str]) -> bool:
        """Read a name and the value it equals, or an entity and what it is called."""
        operand = self._peek(offset)
        assert operand is not None
        if operand.kind not in ("value", "number"):
            return False
        if operand.kind == "number" and (
            not item.columns or self._kind(offset + 1) in ("most", "extreme")
        ):
            return False
        following = self._peek(offset + 1)
        if "of" in said and following is not None and following.tables and not operand.quoted:
            return False  # "the names of Alton airports": the value goes with what follows
        if operand.inflected:
            raise Unread(f'put "{operand.text}" in quotes, exactly as it is stored')
        self._at += offset + 1
        self._negated ^= "not" in said
        mention = Mention(item)
        values = self._values(operand)
        if item.tables and operand.kind == "value" and not (item.columns and "be" in said):
            if said - {"named", "be", "of"}:
                raise Unread(f'it is not clear what is "{operand.text}"')
            if item.text.lower().endswith(("ed", "ing")):
                raise Unread(f'it is not clear what is "{operand.text}"')
            self._add_table(mention)
            self._condition(Condition(mention, "label", values))
            return True
        self._condition(Condition(mention, "=", values, operand.kind == "number"))
        return True

    def _like(self, item: Item, operand: Item, offset: int, negated: bool) -> bool:
        offset += 1
        while self._kind(offset) in ("like", "noise"):
            offset += 1
        value = self._peek(offset)
        if value is None or value.kind not in ("value", "unknown", "number"):
            raise Unread(f'it is not clear what "{operand.text}" looks for')
        self._at += offset + 1
        self._negated ^= negated
        mention = Mention(item)
        kind = "like" if item.columns else "label like"
        self._condition(Condition(mention, kind, (operand.value.replace("s", value.value, 1),)))
        return True

    def _ranged(self, item: Item, operand: Item, offset: int, negated: bool) -> bool:
        value = self._peek(offset + 1)
        operator = operand.value.partition(" ")[0]
        if value is None:
            return False
        if value.kind == "aggregate":
            self._at += offset + 2
            following = self._peek()
            if following is not None and following.kind == "name" and following.columns:
                if following.columns[0].column.name == item.columns[0].column.name:
                    self._at += 1
                else:
                    raise Unread("it is not clear what is compared")
            self._negated ^= negated
            self._condition(Condition(Mention(item), operator, aggregate=value.value))
            return True
        if value.kind not in ("number", "value"):
            return False
        self._at += offset + 2
        self._negated ^= negated
        self._condition(Condition(Mention(item), operator, (value.value,), value.kind == "number"))
        return True

    def _flag(self, item: Item) -> bool:
        if item.kind == "not":
            self._negated = True
        elif item.kind == "distinct":
            self._intent.distinct |= item.text.lower() not in _IN_WHICH or self._at == 0
        elif item.kind == "sort":
            self._sorting = True
            self._filtering = False
        elif item.kind == "or":
            self._or = True
        elif item.kind == "either":
            pass
        elif item.kind == "both":
            following = self._peek(1)
            if self._filtering or following is None or not following.columns or following.tables:
                raise Unread('it is not clear what "both" goes with')
        elif item.kind == "whose":
            self._filtering = True
        else:
            return False
        self._at += 1
        return True

    def _glue(self, item: Item) -> bool:
        if item.kind == "command":
            self._at += 1
            self._filtering = False
            return True
        if item.kind not in _GLUE:
            return False
        if item.kind == "stop" and self._at + 1 < len(self._items):
            self._sentence += 1
            self._filtering = False
        if item.kind in _FILTERING and (self._intent.shown or self._intent.tables):
            self._filtering = True
        self._at += 1
        return True

    def _settle_entities(self) -> None:
        """Take what is counted for each as an entity, where it could be a column as well."""
        for shown in self._intent.shown if self._intent.having else ():
            both = shown.mention.item.tables and shown.mention.item.columns
            if both and not shown.function and shown.mention not in self._intent.tables:
                self._intent.tables.insert(0, shown.mention)

    def _settle_sentences(self) -> None:
        """Let a last sentence that lists columns say what to show, if it does."""
        last = max((shown.sentence for shown in self._intent.shown), default=0)
        if last == 0:
            return
        later = [shown for shown in self._intent.shown if shown.sentence == last]
        for shown in self._intent.shown:
            entity = shown.mention.item.tables and not shown.grouped and shown.sentence < last
            if entity and shown.mention not in self._intent.tables:
                self._intent.tables.insert(0, shown.mention)
        grouped = [s for s in self._intent.shown if s.sentence < last and s.grouped]
        earlier = [s for s in self._intent.shown if s.sentence < last and not s.grouped]
        if any(s.function for s in earlier) and not any(s.function for s in later):
            self._intent.shown = [*earlier, *grouped, *later]
            return
        self._intent.shown = [*later, *(s for s in grouped if any(x.function for x in later))]
