"""The catalog as words: which tables and columns a stretch of a question may name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from oar_proxy.catalog import Catalog, PublishedColumn, PublishedTable
from oar_proxy.drafters.rules.words import likeness, parts, stem, stems_of, word_set


@dataclass(frozen=True, slots=True)
class ColumnMatch:
    """A column that some words may name, and how well they do (0 to 1)."""

    table: PublishedTable
    column: PublishedColumn
    score: float
    partial: bool = False
    """The words are only some of the name's: fine where nothing else is meant."""
    alone: bool = False
    """The words are the whole name, not one that needs its table to be understood."""


@dataclass(frozen=True, slots=True)
class TableMatch:
    """A table that some words may name."""

    table: PublishedTable
    score: float


@dataclass(frozen=True, slots=True)
class _Phrase:
    stems: tuple[str, ...]
    weight: float


_SPLIT: Final = re.compile(r"[^\W\d_]+|\d+", re.UNICODE)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PHRASE_ENDS: Final = re.compile(r"[,;:().—–]| - ")
GENERIC_TABLE_WORDS: Final = stems_of("data info list table tbl record detail reference ref the of")
_UNIT_WORDS: Final = stems_of(
    "million thousand usd eur rub percent pct kg cm km day hour minute second m par ppv "
    "дней день руб штук"
)
"""Words at the end of a column's name that say in what it is measured, not what it is."""
CODE_WORDS: Final = stems_of("id code no key num nr")
_JOINING_WORDS: Final = word_set("of the and or in на в и")

FULL: Final = 1.0
WITHOUT_UNIT: Final = 0.97
WITHOUT_TABLE: Final = 0.95
BY_COMMENT: Final = 0.96
WITHOUT_CODE: Final = 0.85
BY_HEAD: Final = 0.8
BY_ROLE: Final = 0.8
_REMEMBERED_WORDS: Final = 10_000
"""Words of questions whose likenesses are kept; a bound, so that questions cannot fill memory."""
PARTIAL: Final = 0.5


@lru_cache(maxsize=100_000)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of an identifier: ``pvz_city``, ``pvzCity`` → ``pvz``, ``city``."""
    words = _SPLIT.findall(_CAMEL.sub("_", name).lower())
    return tuple(part for word in words for part in parts(word)) or (name.lower(),)


def stems(words: Sequence[str]) -> tuple[str, ...]:
    """Return the stems of words, without those that only join others."""
    return tuple(stem(w) for w in words if w not in _JOINING_WORDS) or tuple(map(stem, words))


@lru_cache(maxsize=100_000)
def name_stems(name: str) -> tuple[str, ...]:
    """Return the stems of an identifier's words; at least one."""
    return stems(split_name(name))


@lru_cache(maxsize=100_000)
def core_stems(name: str) -> tuple[str, ...]:
    """Return the stems of a table's name without words like ``data`` that say nothing."""
    words = name_stems(name)
    return tuple(word for word in words if word not in GENERIC_TABLE_WORDS) or words


class Names:
    """An index of one catalog's names and comments: built once, asked for every stretch."""

    def __init__(self, catalog: Catalog) -> None:
        self.tables = tuple(catalog.tables[key] for key in sorted(catalog.tables))
        self._table_phrases = [(t, self._phrases_of_table(t)) for t in self.tables]
        self._column_phrases = [
            (t, c, self._phrases_of_column(t, c), _role_phrases(t, c))
            for t in self.tables
            for c in t.columns
        ]
        self._tables_by_stem = _by_stem([phrases for _, phrases in self._table_phrases])
        self._columns_by_stem = _by_stem(
            [[*phrases, *roles] for _, _, phrases, roles in self._column_phrases]
        )
        self._like: dict[str, tuple[list[int], list[int]]] = {}

    def match_tables(self, words: Sequence[str]) -> tuple[TableMatch, ...]:
        """Return the tables that words name, best first; words are stems."""
        found = []
        for number in self._candidates(words)[0]:
            table, phrases = self._table_phrases[number]
            score = max((_whole(words, phrase) for phrase in phrases), default=0.0)
            if score:
                found.append(TableMatch(table, score))
        return tuple(sorted(found, key=lambda match: (-match.score, match.table.key)))

    def match_columns(self, words: Sequence[str]) -> tuple[ColumnMatch, ...]:
        """Return the columns that words name, best first; words are stems."""
        found = []
        for number in self._candidates(words)[1]:
            table, column, phrases, roles = self._column_phrases[number]
            said = [(_whole(words, phrase), phrase.weight) for phrase in (*phrases, *roles)]
            score, weight = max(said, default=(0.0, 0.0))
            if score:
                alone = weight > WITHOUT_TABLE
                found.append(ColumnMatch(table, column, score, alone=alone))
                continue
            score = PARTIAL * max((_part(words, phrase) for phrase in phrases), default=0.0)
            if score:
                found.append(ColumnMatch(table, column, score, partial=True))
        return tuple(sorted(found, key=lambda m: (-m.score, m.table.key, m.column.name)))

    def _candidates(self, words: Sequence[str]) -> tuple[Iterable[int], Iterable[int]]:
        """Return the numbers of tables and columns with a word like every word, or all as one."""
        found = [self._like_word(word) for word in words]
        tables = set.intersection(*(set(one) for one, _ in found))
        columns = set.intersection(*(set(one) for _, one in found))
        if len(words) > 1:
            joined = self._like_word("".join(words))
            tables.update(joined[0])
            columns.update(joined[1])
        return tables, columns

    def _like_word(self, word: str) -> tuple[list[int], list[int]]:
        if word not in self._like:
            if len(self._like) >= _REMEMBERED_WORDS:
                self._like.clear()
            self._like[word] = (
                _numbers_like(word, self._tables_by_stem),
                _numbers_like(word, self._columns_by_stem),
            )
        return self._like[word]

    @staticmethod
    def _phrases_of_table(table: PublishedTable) -> list[_Phrase]:
        words = name_stems(table.name)
        core = core_stems(table.name)
        phrases = [_Phrase(words, FULL), _Phrase(core, FULL)]
        if len(core) > 1:
            phrases.extend(_Phrase(core[start:], BY_HEAD) for start in range(1, len(core)))
        phrases.extend(_Phrase(words, BY_COMMENT) for words in _comment_phrases(table.comment))
        return phrases

    @staticmethod
    def _phrases_of_column(table: PublishedTable, column: PublishedColumn) -> list[_Phrase]:
        words = name_stems(column.name)
        core = core_stems(table.name)
        phrases = [_Phrase(words, FULL)]
        if len(words) > 1 and words[-1] in _UNIT_WORDS:
            phrases.append(_Phrase(words[:-1], WITHOUT_UNIT))
        if words[-2:] == (stem("yes"), stem("no")):
            phrases.append(_Phrase(words[:-2], WITHOUT_UNIT))
        for prefix in (core, core[-1:]):
            if len(words) > len(prefix) and _same(words[: len(prefix)], prefix):
                phrases.append(_Phrase(words[len(prefix) :], WITHOUT_TABLE))
        if len(words) > 1 and words[-1] in CODE_WORDS:
            phrases.append(_Phrase(words[:-1], WITHOUT_CODE))
        phrases.extend(_Phrase(words, BY_COMMENT) for words in _comment_phrases(column.comment))
        return phrases


def _by_stem(names: Sequence[Sequence[_Phrase]]) -> dict[str, set[int]]:
    """Return which names have a stem, or are it when written as one word."""
    index: dict[str, set[int]] = {}
    for number, phrases in enumerate(names):
        for phrase in phrases:
            for word in (*phrase.stems, "".join(phrase.stems)):
                index.setdefault(word, set()).add(number)
    return index


def _numbers_like(word: str, index: Mapping[str, set[int]]) -> list[int]:
    numbers: set[int] = set()
    for other, own in index.items():
        if likeness(word, other):
            numbers |= own
    return sorted(numbers)


def _role_phrases(table: PublishedTable, column: PublishedColumn) -> list[_Phrase]:
    """Return what a column is called for its part in the table: its name, its id."""
    core = core_stems(table.name)
    phrases = []
    for part, word in ((label_of(table), "name"), ((key_of(table),), "id")):
        if len(part) == 1 and part[0] is column:
            phrases += [_Phrase((*core, stem(word)), BY_ROLE), _Phrase((stem(word),), BY_ROLE)]
    return phrases


def _comment_phrases(comment: str | None) -> list[tuple[str, ...]]:
    """Return the phrases of a comment: what it says up to each comma, dash or bracket."""
    if not comment:
        return []
    parts = (stems(_SPLIT.findall(part.lower())) for part in _PHRASE_ENDS.split(comment))
    return [part for part in parts if 0 < len(part) <= 5]


def _same(words: Sequence[str], others: Sequence[str]) -> bool:
    return len(words) == len(others) and all(
        likeness(a, b) for a, b in zip(words, others, strict=True)
    )


def _whole(words: Sequence[str], phrase: _Phrase) -> float:
    """Return how well words say a whole phrase, in any order; 0 when they do not."""
    if len(words) != len(phrase.stems):
        return phrase.weight if "".join(words) == "".join(phrase.stems) else 0.0
    return phrase.weight * _matched(words, phrase.stems)


def _part(words: Sequence[str], phrase: _Phrase) -> float:
    """Return how well words say some of a phrase's words."""
    if len(words) >= len(phrase.stems):
        return 0.0
    return phrase.weight * _matched(words, phrase.stems) * (1 + len(words) / len(phrase.stems)) / 2


def _matched(words: Sequence[str], phrase: Sequence[str]) -> float:
    """Return the least likeness of each word to a phrase word of its own."""
    left = list(phrase)
    score = 1.0
    for word in words:
        best = max(left, key=lambda other: likeness(word, other), default=None)
        if best is None or not likeness(word, best):
            return 0.0
        score = min(score, likeness(word, best))
        left.remove(best)
    return score


# --- what a column is -------------------------------------------------------------------------

_NUMERIC: Final = ("smallint", "integer", "bigint", "real", "double precision", "numeric")
_DATES: Final = ("date", "timestamp")
_PLACES: Final = stems_of(
    "city country state location hometown nationality citizenship district region county "
    "town province город страна регион"
)
_MOMENT_WORDS: Final = stems_of("date year дата год")
_KINDS_OF_NAME: Final = stems_of("full display short common official summary")
_DATE_WORDS: Final = stems_of("date day time year on дата год")


def is_numeric(column: PublishedColumn) -> bool:
    """Tell whether the hub compares and adds the column's values as numbers."""
    return column.type.startswith(_NUMERIC)


def is_text(column: PublishedColumn) -> bool:
    """Tell whether the hub has the column as character data."""
    return column.type.startswith(("text", "character"))


def is_place(column: PublishedColumn) -> bool:
    """Tell whether a column says where something is or comes from."""
    return is_text(column) and _has(column, _PLACES)


def is_date(column: PublishedColumn) -> bool:
    """Tell whether a column says when."""
    if is_numeric(column):  # "delay_days" is an amount, "year" and "date" are moments
        return _has(column, _MOMENT_WORDS)
    return column.type.startswith(_DATES) or (is_text(column) and _has(column, _DATE_WORDS))


def is_year(column: PublishedColumn) -> bool:
    """Tell whether a column is a year's number."""
    return is_numeric(column) and _has(column, frozenset({stem("year"), stem("год")}))


def has_word(column: PublishedColumn, word: str) -> bool:
    """Tell whether a column's name or comment has a word like this one."""
    return any(
        likeness(stem(word), own)
        for own in (
            *name_stems(column.name),
            *(w for phrase in _comment_phrases(column.comment) for w in phrase),
        )
    )


def _has(column: PublishedColumn, words: frozenset[str]) -> bool:
    own = set(name_stems(column.name))
    for phrase in _comment_phrases(column.comment):
        own.update(phrase)
    return bool(own & words)


def key_of(table: PublishedTable) -> PublishedColumn | None:
    """Return the one column that identifies a row: declared, or evident from its name."""
    if len(table.primary_key) == 1:
        return table.column(table.primary_key[0])
    for column in table.columns:
        words = name_stems(column.name)
        if words in ((stem("id"),), (stem("code"),)):
            return column
    core = name_stems(table.name)
    for column in table.columns:
        words = name_stems(column.name)
        if words[-1] in CODE_WORDS and words[:-1] and _ends(core, words[:-1]):
            return column
    first = table.columns[0] if table.columns else None
    if (
        first is not None
        and name_stems(first.name)[-1] in CODE_WORDS
        and len([c for c in table.columns if name_stems(c.name)[-1] in CODE_WORDS]) == 1
    ):
        return first
    return None


def _ends(words: Sequence[str], tail: Sequence[str]) -> bool:
    return _same(words[-len(tail) :], tail) or _same(words[: len(tail)], tail)


def label_of(table: PublishedTable) -> tuple[PublishedColumn, ...]:
    """Return the columns a person would call a row by; none when that is not evident."""
    core = core_stems(table.name)
    wanted = (
        (stem("name"),),
        (*core, stem("name")),
        (core[-1], stem("name")),
        (stem("title"),),
        (*core, stem("title")),
        (core[-1], stem("title")),
        core,
    )
    for words in wanted:
        for column in table.columns:
            if _same(name_stems(column.name), words) and is_text(column):
                return (column,)
    named = [c for c in table.columns if name_stems(c.name)[-1:] == (stem("name"),)]
    if len(named) != 1:
        return ()
    words = name_stems(named[0].name)[:-1]
    return (named[0],) if set(words) <= _KINDS_OF_NAME | set(core) else ()
