"""Which tables and columns the names of a question mean.

A name settles on the table it stands next to, then on the question's first entity, then on any
table mentioned, then on the one column of the catalog it names in full. Where two are equally
good :class:`Unread` is raised instead of choosing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oar_proxy.catalog import PublishedColumn, PublishedTable, TableName
from oar_proxy.drafters.rules.intent import Intent, Mention, Unread
from oar_proxy.drafters.rules.joins import Joins
from oar_proxy.drafters.rules.names import (
    ColumnMatch,
    Names,
    has_word,
    is_date,
    is_place,
    is_text,
    is_year,
    key_of,
    label_of,
)

Found = tuple[PublishedTable, PublishedColumn]


class Resolver:
    """The names of one question over one catalog."""

    def __init__(self, intent: Intent, names: Names, joins: Joins) -> None:
        self._intent = intent
        self._names = names
        self._joins = joins
        self.home: list[PublishedTable] = []
        """Tables the question mentions, in its order; when none, those its columns need."""
        for mention in intent.tables:
            table = self.table(mention)
            if table not in self.home:
                self.home.append(table)
        if not self.home:
            self.home.extend(self._tables_of_columns())

    def table(self, mention: Mention) -> PublishedTable:
        """Settle a mention on one table. Raises :class:`Unread`."""
        matches = mention.item.tables
        if not matches:
            raise Unread(f'"{mention.item.text}" is no table')
        best = [m.table for m in matches if m.score == matches[0].score]
        if len(best) > 1:
            raise Unread(f'"{mention.item.text}" may be any of {listed(t.name for t in best)}')
        return best[0]

    def column(self, mention: Mention) -> Found:
        """Settle a mention on one column; an entity's is its label. Raises :class:`Unread`."""
        matches = mention.item.columns
        if not matches:
            return self.label(self.table(mention))
        nearest = self._nearest(mention)
        owners = nearest[0] if mention.owner is not None else None
        for tables in nearest:
            keys = {table.key for table in tables}
            inside = [match for match in matches if match.table.key in keys]
            if mention.following and tables is not owners:
                # "descriptions for templates" are not some other table's descriptions
                inside = [match for match in inside if match.alone]
            if inside:
                return _one(mention, _best(inside))
        outside = [match for match in matches if match.alone]
        if not outside:
            raise Unread(
                f'no column for "{mention.item.text}" in {listed(t.name for t in self.home)}'
            )
        return _one(mention, _best(outside))

    def shown(self, mention: Mention) -> Found:
        """Settle a mention that is to be shown, where one word may be an entity or a column."""
        if not (mention.item.tables and mention.item.columns):
            return self.column(mention)
        table = self.table(mention)
        others = {t.key for t in self.home if t.key != table.key}
        inside = [
            match
            for match in mention.item.columns
            if not match.partial and match.table.key in others and not self._refers(match, table)
        ]
        return _one(mention, _best(inside)) if inside else self.label(table)

    def _refers(self, match: ColumnMatch, table: PublishedTable) -> bool:
        """Tell whether a column only points to a table: people want the name, not the key."""
        return any(
            edge.column_of(match.table.key) is match.column
            for edge in self._joins.between(match.table.key, table.key)
        )

    def label(self, table: PublishedTable) -> Found:
        """Return the column a person would call a row of a table by. Raises :class:`Unread`."""
        labels = label_of(table)
        if len(labels) != 1:
            raise Unread(f"it is not clear which column of {table.name} to show")
        return table, labels[0]

    def named(self, table: PublishedTable, values: Sequence[str]) -> list[tuple[Found, str | None]]:
        """Return the columns that a table's row ``named`` so is compared by.

        Each with its part of the value where a full name is kept in two columns, else None.
        """
        key = key_of(table)
        code = all(len(value) <= 4 and value.isupper() for value in values)
        if code and key is not None and is_text(key):
            return [((table, key), None)]
        if label_of(table):
            return [(self.label(table), None)]
        parts = [c for part in ("first_name", "last_name") for c in table.columns if c.name == part]
        words = [value.split() for value in values]
        if len(parts) == 2 and len(words) == 1 and len(words[0]) == 2:
            return [((table, c), word) for c, word in zip(parts, words[0], strict=True)]
        raise Unread(f"it is not clear which column of {table.name} is its name")

    def place(self, tables: Sequence[PublishedTable]) -> Found:
        """Return the one column that says where. Raises :class:`Unread`."""
        found = [(t, c) for t in tables for c in t.columns if is_place(c)]
        return _only(found, "place")

    def hinted(self, hint: str, tables: Sequence[PublishedTable], number: bool = False) -> Found:
        """Return the one column that measures what a word like ``older`` compares.

        ``number``: a year is compared, not a date. Raises :class:`Unread`.
        """
        columns = [(t, c) for t in tables for c in t.columns]
        if hint == "place":
            return self.place(tables)
        if hint != "date":
            measured = [f for f in columns if has_word(f[1], hint)]
            if not measured:
                near = [t for t in self._names.tables if self._beside(t, tables)]
                measured = [(t, c) for t in near for c in t.columns if has_word(c, hint)]
            return _only(measured, hint)
        years = [f for f in columns if is_year(f[1])]
        if number and years:
            return _only(years, "year")
        dates = [f for f in columns if is_date(f[1])]
        if number and any(is_text(column) for _, column in dates):
            raise Unread("a year cannot be compared with dates that are kept as text")
        return _only(dates, "date")

    def _beside(self, table: PublishedTable, tables: Sequence[PublishedTable]) -> bool:
        return any(self._joins.between(table.key, other.key) for other in tables)

    def _nearest(self, mention: Mention) -> list[list[PublishedTable]]:
        near = [[self.table(mention.owner)]] if mention.owner is not None else []
        return [*near, self.home[:1], self.home]

    def _tables_of_columns(self) -> list[PublishedTable]:
        """Find the one table that has every column mentioned, or each column's only table."""
        mentions = self._column_mentions()
        scores: dict[TableName, float] = {}
        for table in self._names.tables:
            fits = [_fit(mention, table) for mention in mentions]
            if fits and all(fits):
                scores[table.key] = sum(fits)
        best = (
            [t for t in self._names.tables if scores.get(t.key, 0) == max(scores.values())]
            if scores
            else []
        )
        if len(best) == 1:
            return best
        if best:
            raise Unread(
                f"{listed(m.item.text for m in mentions)} may be of any of "
                f"{listed(t.name for t in best)}"
            )
        tables = [
            _one(
                mention,
                _best([m for m in mention.item.columns if not m.partial] or mention.item.columns),
            )[0]
            for mention in mentions
            if mention not in self._intent.repeated and mention.item.columns
        ]
        if not tables:
            raise Unread("the question names no table")
        return list({table.key: table for table in tables}.values())

    def _column_mentions(self) -> list[Mention]:
        intent = self._intent
        return [
            *(shown.mention for shown in intent.shown),
            *(c.mention for c in intent.conditions if c.mention is not None),
            *(o.mention for o in intent.ordering if o.mention is not None and not o.counted),
            *intent.repeated,
        ]


def listed(names: Iterable[str]) -> str:
    """Return names once each, with commas."""
    return ", ".join(dict.fromkeys(names))


def _fit(mention: Mention, table: PublishedTable) -> float:
    whole = mention.item.whole_column
    scores = [
        m.score
        for m in mention.item.columns
        if m.table.key == table.key and not (whole and m.partial)
    ]
    scores += [m.score for m in mention.item.tables if m.table.key == table.key]
    return max(scores, default=0.0)


def _best(matches: Sequence[ColumnMatch]) -> list[ColumnMatch]:
    top = max(match.score for match in matches)
    return [match for match in matches if match.score >= top - 1e-9]


def _one(mention: Mention, matches: Sequence[ColumnMatch]) -> Found:
    if len(matches) > 1:
        names = listed(f"{m.table.name}.{m.column.name}" for m in matches)
        raise Unread(f'"{mention.item.text}" may be any of {names}')
    return matches[0].table, matches[0].column


def _only(found: Sequence[Found], what: str) -> Found:
    if not found:
        raise Unread(f"no column says the {what}")
    if len(found) > 1:
        raise Unread(f"the {what} may be any of {listed(column.name for _, column in found)}")
    return found[0]
