"""From tokens to items: each stretch of the question is a name, a value, a function, or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from oar_proxy.drafters.rules.names import (
    BY_COMMENT,
    CODE_WORDS,
    WITHOUT_CODE,
    ColumnMatch,
    Names,
    TableMatch,
    label_of,
    name_stems,
)
from oar_proxy.drafters.rules.words import (
    LONGEST_PHRASE,
    VOCABULARY,
    Token,
    is_cyrillic,
    number_word,
    stem,
    word_set,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A stretch of the question with what it may mean.

    ``kind`` is ``name`` (with ``columns`` and ``tables``), ``value``, ``number``, ``stop``,
    ``comma``, ``unknown``, or a kind of the vocabulary.
    """

    kind: str
    text: str
    value: str = ""
    columns: tuple[ColumnMatch, ...] = ()
    tables: tuple[TableMatch, ...] = ()
    quoted: bool = False
    inflected: bool = False
    """A value that the question's language may have inflected: not safe to compare with."""

    @property
    def whole_column(self) -> bool:
        """Some column's whole name is said."""
        return any(not match.partial for match in self.columns)


_LONGEST_NAME: Final = 6
_INNER: Final = word_set("of the a its their his her for")
_BREAKS: Final = word_set("and or in from with that who whose to is are for at on into than")
_YIELDING: Final = word_set("noise verb command have do prep extreme of")
"""Kinds of vocabulary that give way to a name said in full by one word."""
_SEPARATORS: Final = frozenset((",", "and", "и"))


def is_reference(item: Item) -> bool:
    """Tell whether a name only says what keys refer to: ``orders``, where there is an order_id."""
    return bool(item.columns) and all(
        name_stems(match.column.name)[-1] in CODE_WORDS and match.score <= WITHOUT_CODE
        for match in item.columns
    )


def tag(tokens: Sequence[Token], names: Names) -> tuple[Item, ...]:
    """Read tokens left to right, the longest and surest meaning first."""
    items: list[Item] = []
    position = 0
    while position < len(tokens):
        found, used = _tag_at(tokens, position, names, items)
        items.extend(found)
        position += used
    return tuple(item for item in items if item.kind != "noise")


def _tag_at(
    tokens: Sequence[Token], start: int, names: Names, before: Sequence[Item]
) -> tuple[list[Item], int]:
    token = tokens[start]
    if token.kind == "quoted":
        return [Item("value", token.text, token.text, quoted=True)], 1
    if token.kind == "number":
        return [Item("number", token.text, token.text)], 1
    if token.kind == "mark":
        return _mark(token), 1
    if shared := _shared_head(tokens, start, names):
        return shared
    name, width = _name_at(tokens, start, names)
    phrase, length = _phrase_at(tokens, start)
    aggregated = bool(before) and before[-1].kind == "aggregate"
    if name is not None and (
        _name_wins(name, width, phrase, length) or (aggregated and name.whole_column)
    ):
        return [name], width
    if token.lower in ("one", "single") and not (before and before[-1].kind in ("compare", "most")):
        return [Item("noise", token.text)], 1
    if (digits := number_word(token.text)) is not None:
        return [Item("number", token.text, digits)], 1
    if phrase is not None:
        return [phrase], length
    if token.capital:
        return _capitals(tokens, start, names)
    if name is not None:
        return [name], width
    return [Item("unknown", token.text, token.text)], 1


def _mark(token: Token) -> list[Item]:
    if token.text in ",/":
        return [Item("comma", token.text)]
    if token.text in ".?!;":
        return [Item("stop", token.text)]
    if token.text in "<>=":
        sense = {"<": ("compare", "<"), ">": ("compare", ">"), "=": ("equal", "")}[token.text]
        return [Item(sense[0], token.text, sense[1])]
    if token.text in ":()[]-–—\"'":
        return [Item("noise", token.text)]
    return [Item("unknown", token.text, token.text)]


def _phrase_at(tokens: Sequence[Token], start: int) -> tuple[Item | None, int]:
    words: list[str] = []
    for token in tokens[start : start + LONGEST_PHRASE]:
        if token.kind != "word":
            break
        words.append(token.lower)
    for length in range(len(words), 0, -1):
        sense = VOCABULARY.get(tuple(words[:length]))
        alternative = words[length : length + 1] == ["than"] and words[0] == "or"
        if sense is not None and not (alternative and length > 1):
            text = " ".join(token.text for token in tokens[start : start + length])
            return Item(sense.kind, text, sense.value), length
    return None, 0


def _name_at(tokens: Sequence[Token], start: int, names: Names) -> tuple[Item | None, int]:
    """Return the longest name said in full from here, else the longest said in part."""
    part: tuple[Item | None, int] = (None, 0)
    for width in range(min(_LONGEST_NAME, len(tokens) - start), 0, -1):
        span = tokens[start : start + width]
        if any(t.kind not in ("word", "number") for t in span) or span[-1].lower in _INNER:
            continue
        if span[0].lower in _INNER or any(t.lower in _BREAKS for t in span[:-1]):
            continue
        item = _named(span, names)
        if item is None or not _in_order(span, item, names):
            continue
        if item.whole_column or item.tables:
            return item, width
        inner = any(token.lower in _INNER for token in span)
        functional = any((token.lower,) in VOCABULARY for token in span)
        if part[0] is None and not inner and not (functional and width > 1):
            part = (item, width)
    return part


def _named(span: Sequence[Token], names: Names) -> Item | None:
    words = [stem(token.text) for token in span if token.lower not in _INNER]
    if not words:
        return None
    columns = names.match_columns(words)
    tables = names.match_tables(words)
    if not columns and not tables:
        return None
    if tables and tables[0].score >= BY_COMMENT:
        # "flights" means the table, although flight_number begins with the same word
        least = tables[0].score if label_of(tables[0].table) else WITHOUT_CODE
        columns = tuple(match for match in columns if match.score >= least)
    if tables and any(match.score > tables[0].score and not match.partial for match in columns):
        tables = ()
    if span[0].lower == "number" and len(span) > len(words):
        # "number of flights" counts, unless a column is called number_of_… itself
        columns = tuple(m for m in columns if m.column.name.lower().startswith("num"))
    if not columns and not tables:
        return None
    return Item("name", " ".join(t.text for t in span), columns=columns, tables=tables)


def _in_order(span: Sequence[Token], item: Item, names: Names) -> bool:
    """Tell whether ``year of birth`` may be one name.

    It may be when a column is called ``year_of_birth`` or ``birth_year``; not when what stands
    behind ``of`` is a table, whose column is meant then, or the other way round.
    """
    last = next((n for n in range(len(span) - 1, -1, -1) if span[n].lower == "of"), None)
    if last is None or any("_of_" in match.column.name.lower() for match in item.columns):
        return True
    if span[0].lower == "number":
        return bool(item.columns)
    turned = [t for t in (*span[last + 1 :], *span[:last]) if t.lower not in _INNER]
    joined = stem("".join(stem(t.text) for t in turned))
    said = {stem("".join(name_stems(m.column.name))) for m in item.columns if not m.partial}
    after = _named(span[last + 1 :], names)
    if after is not None and after.tables and after.tables[0].score >= BY_COMMENT:
        return False
    return joined in said or any(m.column.comment for m in item.columns)


def _name_wins(name: Item, width: int, phrase: Item | None, length: int) -> bool:
    """Decide between a name and a phrase of the vocabulary that begin at the same word."""
    full = name.whole_column or bool(name.tables)
    if phrase is None:
        return full
    if not full:
        return False
    if width > 1:
        return width >= length
    scores = [*(m.score for m in name.columns), *(m.score for m in name.tables)]
    participle = name.text.lower().endswith(("ed", "ing"))
    return (
        length == 1 and phrase.kind in _YIELDING and not participle and max(scores) >= WITHOUT_CODE
    )


def _shared_head(
    tokens: Sequence[Token], start: int, names: Names
) -> tuple[list[Item], int] | None:
    """Read ``first, middle, and last name`` as three names that share their last word."""
    words: list[Token] = []
    position = start
    while position < len(tokens) and tokens[position].kind in ("word", "number"):
        words.append(tokens[position])
        position += 1
        gap = position
        while position < len(tokens) and tokens[position].lower in _SEPARATORS:
            position += 1
        if gap == position:
            break
    if len(words) < 2 or position >= len(tokens) or tokens[position].kind != "word":
        return None
    head = tokens[position]
    items: list[Item] = []
    for word in words:
        item = _named((word, head), names)
        if item is None or not any(m.score >= WITHOUT_CODE for m in item.columns):
            return None
        if _in_full(word, names):
            return None  # each word is a name by itself: "city and state name"
        items.extend((replace(item, tables=()), Item("and", "and")))
    return items[:-1], position + 1 - start


def _in_full(word: Token, names: Names) -> bool:
    item = _named((word,), names)
    return item is not None and item.whole_column


def _capitals(tokens: Sequence[Token], start: int, names: Names) -> tuple[list[Item], int]:
    """Read a run of capitalised words that name nothing published as one value."""
    end = start + 1
    while (
        end < len(tokens) and tokens[end].capital and _named(tokens[end : end + 1], names) is None
    ):
        end += 1
    words = [token.text for token in tokens[start:end]]
    text = " ".join(words)
    inflected = any(
        is_cyrillic(word) and not (word.isupper() or any(map(str.isdigit, word))) for word in words
    ) and any(is_cyrillic(t.text) for t in tokens if t.kind == "word" and not t.capital)
    return [Item("value", text, text, inflected=inflected)], end - start
