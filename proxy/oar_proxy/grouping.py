"""Groups instead of rows: statements over tables of which a policy shows only large enough groups.

Such a statement has one grouping query, with all published tables in its FROM. It is given a
HAVING that leaves the groups with enough entities, so that all else (what is selected, sorted,
limited, and every query around it) is evaluated for those alone. What is evaluated for rows is on a
list (:mod:`oar_proxy.groupforms`).

How many groups are left out is itself told of a group, that of all their rows; where it is too
small, the notice says no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_proxy.decision import Decisions, Grouped
from oar_proxy.errors import InsufficientPrivilege, InternalError
from oar_proxy.groupforms import (
    GroupingQuery,
    Published,
    groups,
    repeatable,
    require_scalars,
)
from oar_proxy.hub.planreading import Reading, Unreduced
from oar_proxy.rowforms import Known
from oar_proxy.sessionstate import BUILT_INS_ONLY
from oar_proxy.sql.clauses import clauses
from oar_proxy.sql.ctes import inline_one
from oar_proxy.sql.text import Edit, SyntaxFault, bracketed_queries, quote_identifier, splice
from oar_proxy.sql.tree import ast, enums
from oar_proxy.statement import FederatedStatement, Occurrence

_IN_FROM: Final = frozenset({"fromClause", "larg", "rarg", "subquery"})
_COMBINED: Final = "a query around the grouping one joins or combines what it gives"
_HINT: Final = (
    "write SELECT keys, aggregates FROM … WHERE … GROUP BY keys: keys and the arguments of "
    "count, sum, avg are columns as they are, and WHERE and ON compare columns with constants "
    "or with each other"
)


@dataclass(frozen=True, slots=True)
class Withheld:
    """What of a statement is not shown.

    ``query`` gives over the statement's own rows how many groups that is, and for each of ``rules``
    how many entities they have together.
    """

    rules: tuple[Grouped, ...]
    query: FederatedStatement

    @property
    def by(self) -> str:
        """The rules, for the detail of a message."""
        return f"rule {', '.join(dict.fromkeys(rule.rule for rule in self.rules))}"

    @property
    def least(self) -> str:
        """What a group has to have to be shown."""
        rules = dict.fromkeys((rule.size, rule.entity) for rule in self.rules)
        return " and ".join(f"{size} different {entity}" for size, entity in rules)

    def told(self, groups: int, entities: Sequence[int]) -> str:
        """Return the notice."""
        if all(count >= rule.size for count, rule in zip(entities, self.rules, strict=True)):
            return f"groups without at least {self.least} are not shown: {groups}"
        return (
            f"groups without at least {self.least} are not shown: none, or some that "
            "have not so many together"
        )


def shown(
    statement: FederatedStatement, decisions: Decisions, literals: Mapping[int, str]
) -> tuple[FederatedStatement, Withheld | None]:
    """Return the statement with the groups only that may be shown, and what is withheld.

    ``literals`` are the client's parameters. Raises :class:`InsufficientPrivilege` where it may
    show more than groups.
    """
    if not _rules(statement, decisions):
        return statement, None
    statement = _without_ctes(statement)
    rules = _rules(statement, decisions)
    if not rules:
        return statement, None  # what read it is read by nothing
    reading = _Reading(statement, rules, literals)
    foreign = statement.state.foreign_names
    if foreign is not None:
        raise reading.refuse(foreign, hint=BUILT_INS_ONLY)
    try:
        return reading.rewritten()
    except RecursionError:
        raise reading.refuse("it is nested too deeply") from None


def _rules(
    statement: FederatedStatement, decisions: Decisions
) -> dict[int, tuple[Occurrence, Grouped]]:
    """Return the tables of which groups are shown, by where they stand."""
    rules: dict[int, tuple[Occurrence, Grouped]] = {}
    for occurrence in statement.occurrences:
        holders = occurrence.table.holders
        found = [decisions.grouped(holder.owner, holder.table.name) for holder in holders]
        each = [rule for rule in found if rule is not None]
        if not each:
            continue
        if len(each) < len(found) or len({rule.entity for rule in each}) > 1:
            # Groups of all rows could be read off for what the others' are not in.
            raise _refuse(
                each[0],
                "not all owners of its rows show groups of the same entity",
                hint="have all of its owners write min_group, for the same entity",
            )
        strictest = max(each, key=lambda rule: rule.size)
        names = ", ".join(rule.rule for rule in each)
        rules[occurrence.relation.start] = occurrence, replace(strictest, rule=names)
    return rules


def _without_ctes(statement: FederatedStatement) -> FederatedStatement:
    """Put what WITH names where it is read, as far as that is possible."""
    parsed = statement.parsed
    while (text := inline_one(parsed.text, parsed.node, repeatable)) is not None:
        statement = statement.with_text(text, {})
        parsed = statement.parsed
    return statement


def unrelayed(reading: Reading, statement: FederatedStatement, decisions: Decisions) -> Reading:
    """Have no table reduced by the rows of one of which groups are shown.

    How many rows it sends then, whether they are more than a limit lets pass, and which of its keys
    are counted for a day, would tell of single rows.
    """
    grouped = {
        occurrence.number: rule.rule
        for occurrence in statement.occurrences
        for holder in occurrence.table.holders
        if (rule := decisions.grouped(holder.owner, holder.table.name)) is not None
    }
    dropped = {
        edge: grouped[source.occurrence]
        for edge in reading.edges
        for source in edge.sources
        if source.occurrence in grouped
    }
    why = "what it is joined with is shown in groups only (rule {})"
    return replace(
        reading,
        edges=tuple(edge for edge in reading.edges if edge not in dropped),
        together=tuple(tuple(e for e in group if e not in dropped) for group in reading.together),
        unreduced=(
            *reading.unreduced,
            *(Unreduced(edge.target, why.format(rule)) for edge, rule in dropped.items()),
        ),
    )


def _refuse(rule: Grouped, why: str, hint: str = _HINT) -> InsufficientPrivilege:
    return InsufficientPrivilege(
        f"of {rule.name} groups are shown, and no rows: {why}",
        detail=f"rule {rule.rule}: groups of at least {rule.size} different {rule.entity}",
        hint=hint,
    )


Path = tuple[tuple[Any, str], ...]
"""The nodes above one, from the top, each with the attribute that leads on."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A query around a table: what FROM calls it, and where it stands in the text."""

    select: Any
    alias: Any
    start: int
    end: int


class _Reading:
    """One statement over tables of which groups are shown, with their rules by place."""

    def __init__(
        self,
        statement: FederatedStatement,
        rules: Mapping[int, tuple[Occurrence, Grouped]],
        literals: Mapping[int, str],
    ) -> None:
        self._statement = statement
        self._text = statement.parsed.text
        self._rules = rules
        self._literals = literals
        self._given: dict[int, tuple[Any, list[str]]] = {}

    def refuse(self, why: str, hint: str = _HINT) -> InsufficientPrivilege:
        return _refuse(next(rule for _, rule in self._rules.values()), why, hint)

    def rewritten(self) -> tuple[FederatedStatement, Withheld]:
        extent = self._statement.parsed.query_extent
        if extent is None:
            raise self.refuse("it is read by a SELECT, a cursor, COPY or CREATE TABLE AS only")
        paths = {
            place: path
            for relation, path in _relations(self._statement.parsed.query)
            if (place := self._published(relation.location)) is not None
        }
        ruled = sorted(paths.keys() & self._rules.keys())
        if len(ruled) < len(self._rules):
            raise self.refuse("it stands where no rows are read")
        found = [self._grouping(paths[place]) for place in ruled]
        select, above = found[0]
        if any(each is not select for each, _ in found):
            raise self.refuse("more than one query reads it")
        self._require_passed_on(above)
        query = GroupingQuery(select, self._table, self._literals, self.refuse)
        inside = {
            place: self._levels(place, path, above, extent)
            for place, path in paths.items()
            if any(node is select for node, _ in path)
        }
        try:
            return self._written(query, select, inside, nested=bool(above))
        except SyntaxFault:
            raise self.refuse("its form is not known") from None

    def _published(self, position: int) -> int | None:
        """Return where the published table begins that is named at a position."""
        for occurrence in self._statement.occurrences:
            if occurrence.relation.start <= position < occurrence.relation.end:
                return occurrence.relation.start
        return None

    def _table(self, position: int) -> Published | None:
        for occurrence in self._statement.occurrences:
            if occurrence.relation.start <= position < occurrence.relation.end:
                table = occurrence.table
                columns = {c.name: Known(c.type, c.not_null) for c in table.columns}
                return Published(columns, (table.primary_key, *table.unique_keys))
        return None

    # --- where the grouping query is --------------------------------------------------------------

    def _grouping(self, path: Path) -> tuple[Any, Path]:
        """Return the innermost query above a table that groups, and what is above that."""
        for index in range(len(path) - 1, -1, -1):
            node, _ = path[index]
            if isinstance(node, ast.SelectStmt) and groups(node):
                if any(attribute not in _IN_FROM for _, attribute in path[index:]):
                    raise self.refuse("it stands in a query that may pick rows by it")
                return node, path[:index]
        raise self.refuse("the statement does not group")

    def _require_passed_on(self, above: Path) -> None:
        """Refuse queries that make one value of several groups: some would be missing."""
        for node, attribute in above:
            if isinstance(node, ast.RangeSubselect):
                continue
            if not isinstance(node, ast.SelectStmt) or attribute != "fromClause":
                raise self.refuse(_COMBINED)
            if node.op != enums.SetOperation.SETOP_NONE or len(node.fromClause) != 1:
                raise self.refuse(_COMBINED)
            if node.groupClause or node.havingClause or node.windowClause:
                raise self.refuse("a query around makes one value of several groups")
            for part in ("targetList", "whereClause", "sortClause", "limitCount", "limitOffset"):
                require_scalars(getattr(node, part), self.refuse)

    def _levels(self, place: int, path: Path, above: Path, extent: tuple[int, int]) -> list[_Level]:
        """Return the queries around a table, from the inside up to the grouping one."""
        around = [
            (start, end)
            for start, end in bracketed_queries(self._text)
            if start > extent[0] and start <= place < end
        ]
        places = [extent, *sorted(around)]
        selects = [index for index, (node, _) in enumerate(path) if _is_select(node)]
        if len(places) != len(selects):
            raise self.refuse("its form is not known")
        levels = []
        for (start, end), index in zip(places, selects, strict=True):
            outside = path[index - 1][0] if index else None
            alias = outside.alias if isinstance(outside, ast.RangeSubselect) else None
            levels.append(_Level(path[index][0], alias, start, end))
        return levels[sum(_is_select(node) for node, _ in above) :][::-1]

    # --- what is written --------------------------------------------------------------------------

    def _written(
        self,
        query: GroupingQuery,
        select: Any,
        inside: Mapping[int, Sequence[_Level]],
        *,
        nested: bool,
    ) -> tuple[FederatedStatement, Withheld]:
        (around,) = {(levels[-1].start, levels[-1].end) for levels in inside.values()}
        at = clauses(self._text, *around)
        if not all(
            at.source <= o.relation.start < at.source_end for o in self._statement.occurrences
        ):
            raise self.refuse("another query reads published tables as well")
        rules = tuple(rule for _, (_, rule) in sorted(self._rules.items()))
        entities = [
            self._passed(query, inside[place], each.reference, rule.entity, f"entity {place}")
            for place, (each, rule) in sorted(self._rules.items())
        ]
        # Of each column that is aggregated so many entities have a value, not just a row.
        contributing = list(query.contributing)
        for number, each in enumerate(query.matched):
            levels = _outwards(each.select, inside.values())
            name = f"match {number}"
            contributing.append(self._passed(query, levels, each.source, each.column, name))
        those = ["", *(f" FILTER (WHERE {column} IS NOT NULL)" for column in contributing)]
        enough = " AND ".join(
            f"pg_catalog.count(DISTINCT {entity}){that} OPERATOR(pg_catalog.>=) {rule.size}"
            for entity, rule in zip(entities, rules, strict=True)
            for that in dict.fromkeys(those)
        )
        keys = query.keys(select)
        by = f"\nGROUP BY {', '.join(keys)}" if keys else ""
        carried = [
            Edit(place, place, f"{',' if inner.targetList else ''} {', '.join(given)} ")
            for place, (inner, given) in self._given.items()
        ]
        edits = list(carried)
        if at.having is None:
            added = "" if select.groupClause else by
            edits.append(Edit(at.grouped_end, at.grouped_end, f"{added}\nHAVING {enough}\n"))
        else:
            # The author's own condition is evaluated for groups that are shown only.
            start, end = at.having
            edits.append(Edit(start, start, f" CASE WHEN {enough} THEN (\n"))
            edits.append(Edit(end, end, "\n) ELSE false END\n"))
        if nested and select.limitCount is None and select.limitOffset is None:
            # Else conditions of a query around could be evaluated for rows.
            edits.append(Edit(at.end, at.end, "\nOFFSET 0\n"))
        statement = self._statement.with_text(splice(self._text, edits), {})
        source = self._slice(at.source, at.source_end, carried)
        counted = _counting(source, entities, by, enough)
        return statement, Withheld(rules, self._statement.with_text(counted, {}))

    def _slice(self, start: int, end: int, edits: Sequence[Edit]) -> str:
        """Return a part of the text, with the client's parameters written into it."""
        edits = [
            *(edit for edit in edits if start <= edit.start <= end),
            *(
                Edit(first, last, self._literals[number])
                for number, first, last in self._statement.parsed.parameters
                if start <= first < end and number in self._literals
            ),
        ]
        shifted = [Edit(e.start - start, e.end - start, e.replacement) for e in edits]
        return splice(self._text[start:end], shifted)

    def _passed(
        self, query: GroupingQuery, levels: Sequence[_Level], source: str, column: str, name: str
    ) -> str:
        """Have the queries between a table and the grouping one give a column, too.

        Returns it as the grouping query writes it. Each gives it by a name of its own: one that it
        had already could be another column's.
        """
        for number, level in enumerate(levels[:-1]):
            if level.alias is None:
                raise self.refuse("it stands in a query that may pick rows by it")
            if number and level.alias.colnames and _has_a_star(level.select):
                raise self.refuse("its columns are renamed in FROM")
            written = f"{quote_identifier(source)}.{quote_identifier(column)}"
            source, column = level.alias.aliasname, f"oar {name}.{number}"
            at = clauses(self._text, level.start, level.end).source
            _, given = self._given.setdefault(at, (level.select, []))
            given.append(f"{written} AS {quote_identifier(column)}")
        if sum(each.name == source for each in query.sources) != 1:
            raise self.refuse(f"two items of FROM are called {source}")
        return f"{quote_identifier(source)}.{quote_identifier(column)}"


def _counting(source: str, entities: Sequence[str], by: str, enough: str) -> str:
    """Write the query that counts what is withheld, over the rows of a statement."""
    listed = ", ".join(
        f"pg_catalog.array_agg(DISTINCT {entity}) AS e{number}"
        for number, entity in enumerate(entities)
    )
    counts = ", ".join(
        f"(SELECT pg_catalog.count(DISTINCT u.x) FROM g, LATERAL pg_catalog.unnest(g.e{number})"
        " AS u(x))"
        for number, _ in enumerate(entities)
    )
    return (
        f"WITH g AS MATERIALIZED (SELECT {listed} {source}{by}\nHAVING NOT ({enough}))\n"
        f"SELECT (SELECT pg_catalog.count(*) FROM g), {counts}"
    )


def _is_select(node: Any) -> bool:
    return isinstance(node, ast.SelectStmt)


def _outwards(select: Any, inside: Iterable[Sequence[_Level]]) -> Sequence[_Level]:
    """Return the queries from one up to the grouping one; tables stand in each."""
    for levels in inside:
        for number, level in enumerate(levels):
            if level.select is select:
                return levels[number:]
    raise InternalError("a query without tables joins some")


def _has_a_star(select: Any) -> bool:
    values = [target.val for target in select.targetList or ()]
    return any(
        isinstance(v, ast.ColumnRef) and isinstance(v.fields[-1], ast.A_Star) for v in values
    )


def _relations(root: Any) -> Iterator[tuple[Any, Path]]:
    """Yield every relation below a node, with what is above it."""
    waiting: list[tuple[Any, Path]] = [(root, ())]
    while waiting:
        node, path = waiting.pop()
        if isinstance(node, ast.RangeVar):
            yield node, path
            continue
        for attribute in node if isinstance(node, ast.Node) else ():
            below = getattr(node, attribute)
            flat: list[Any] = [below]
            while flat:
                each = flat.pop()
                if isinstance(each, tuple):
                    flat.extend(each)
                elif isinstance(each, ast.Node):
                    waiting.append((each, (*path, (node, attribute))))
