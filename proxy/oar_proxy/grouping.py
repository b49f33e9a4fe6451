"""Groups instead of rows: statements over tables of which a policy shows only large enough groups.

Such a statement has one grouping query, with all published tables in its FROM. It is given a
HAVING that leaves the groups with enough entities, so that all else (what is selected, sorted,
limited, and every query around it) is evaluated for those alone. What is evaluated for rows is on a
list (:mod:`oar_proxy.groupforms`).

How many groups are left out is itself told of a group, that of all their rows; where it is too
small, the notice says no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oar_proxy.decision import Decisions, Grouped
from oar_proxy.errors import InsufficientPrivilege
from oar_proxy.groupforms import Columns, GroupingQuery, Known, groups, require_scalars
from oar_proxy.hub.planreading import Reading, Unreduced
from oar_proxy.sql.clauses import clauses
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
    rules: dict[int, tuple[Occurrence, Grouped]] = {}
    for occurrence in statement.occurrences:
        holders = occurrence.table.holders
        found = (decisions.grouped(holder.owner, holder.table.name) for holder in holders)
        for rule in filter(None, found):
            if len(holders) > 1:
                raise _refuse(rule, "several owners hold rows of it")
            rules[occurrence.relation.start] = occurrence, rule
    if not rules:
        return statement, None
    reading = _Reading(statement, rules, literals)
    if statement.state.shadows_built_ins:
        raise reading.refuse("the search path looks into another schema before pg_catalog")
    try:
        return reading.rewritten()
    except RecursionError:
        raise reading.refuse("it is nested too deeply") from None


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


def _refuse(rule: Grouped, why: str) -> InsufficientPrivilege:
    return InsufficientPrivilege(
        f"of {rule.name} groups are shown, and no rows: {why}",
        detail=f"rule {rule.rule}: groups of at least {rule.size} different {rule.entity}",
        hint=_HINT,
    )


Path = tuple[tuple[Any, str], ...]
"""The nodes above one, from the top, each with the attribute that leads on."""


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

    def refuse(self, why: str) -> InsufficientPrivilege:
        return _refuse(next(rule for _, rule in self._rules.values()), why)

    def rewritten(self) -> tuple[FederatedStatement, Withheld]:
        extent = self._statement.parsed.query_extent
        if extent is None:
            raise self.refuse("it is read by a SELECT, a cursor, COPY or CREATE TABLE AS only")
        node = self._statement.parsed.node
        root = node if isinstance(node, ast.SelectStmt) else node.query
        paths: dict[int, Path] = {}
        for relation, path in _relations(root):
            place = self._published(relation.location)
            if place is not None and place in self._rules:
                paths[place] = path
        if paths.keys() != self._rules.keys():
            raise self.refuse("it stands where no rows are read")
        paths = dict(sorted(paths.items()))
        found = [self._grouping(path) for path in paths.values()]
        select, above = found[0]
        if any(each is not select for each, _ in found):
            raise self.refuse("more than one query reads it")
        self._require_passed_on(root, above)
        query = GroupingQuery(select, self._columns, self._literals, self.refuse)
        inside = {place: self._places(place, path, above, extent) for place, path in paths.items()}
        return self._written(query, select, paths, inside, nested=bool(above))

    def _published(self, position: int) -> int | None:
        """Return where the published table begins that is named at a position."""
        for occurrence in self._statement.occurrences:
            if occurrence.relation.start <= position < occurrence.relation.end:
                return occurrence.relation.start
        return None

    def _columns(self, position: int) -> Columns | None:
        for occurrence in self._statement.occurrences:
            if occurrence.relation.start <= position < occurrence.relation.end:
                columns = occurrence.table.columns
                return {column.name: Known(column.type, column.not_null) for column in columns}
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

    def _require_passed_on(self, root: Any, above: Path) -> None:
        """Check that the queries around pass the groups on, one by one and once."""
        for node, attribute in above:
            if isinstance(node, ast.SelectStmt) and attribute == "withClause":
                if node.withClause.recursive:
                    raise self.refuse("WITH RECURSIVE reads it")
            elif isinstance(node, ast.CommonTableExpr):
                used = [p for r, p in _relations(root) if _named(r, node.ctename)]
                if len(used) != 1:
                    raise self.refuse("what the grouping query gives is not read once")
                self._require_passing(used[0])
            elif not isinstance(node, ast.WithClause):
                self._require_passing(((node, attribute),))

    def _require_passing(self, path: Path) -> None:
        """Refuse queries that make one value of several groups: some would be missing."""
        for node, attribute in path:
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

    def _places(
        self, place: int, path: Path, above: Path, extent: tuple[int, int]
    ) -> list[tuple[int, int]]:
        """Return where the queries around a table stand, from the grouping one inwards."""
        around = [
            (start, end)
            for start, end in bracketed_queries(self._text)
            if start > extent[0] and start <= place < end
        ]
        places = [extent, *sorted(around)]
        if len(places) != _selects(path):
            raise self.refuse("its form is not known")
        return places[_selects(above) :]

    # --- what is written --------------------------------------------------------------------------

    def _written(
        self,
        query: GroupingQuery,
        select: Any,
        paths: Mapping[int, Path],
        inside: Mapping[int, Sequence[tuple[int, int]]],
        *,
        nested: bool,
    ) -> tuple[FederatedStatement, Withheld]:
        try:
            (at,) = {clauses(self._text, *places[0]) for places in inside.values()}
            carried = [
                e for place in paths for e in self._carried(place, paths[place], inside[place])
            ]
        except SyntaxFault:
            raise self.refuse("its form is not known") from None
        if not all(
            at.source <= o.relation.start < at.source_end for o in self._statement.occurrences
        ):
            raise self.refuse("another query reads published tables as well")
        entities = [self._entity(place, path, query, select) for place, path in paths.items()]
        rules = tuple(self._rules[place][1] for place in paths)
        # Of each column that is aggregated so many entities have a value, not just a row.
        those = ["", *(f" FILTER (WHERE {column} IS NOT NULL)" for column in query.contributing)]
        enough = " AND ".join(
            f"pg_catalog.count(DISTINCT {entity}){that} OPERATOR(pg_catalog.>=) {rule.size}"
            for entity, rule in zip(entities, rules, strict=True)
            for that in those
        )
        keys = query.keys(select)
        by = f"\nGROUP BY {', '.join(keys)}" if keys else ""
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

    def _carried(self, place: int, path: Path, places: Sequence[tuple[int, int]]) -> Iterator[Edit]:
        """Have the subqueries between a table and the grouping query give its entity as well.

        Each gives it by a name of its own: one that it had already could be another column's.
        """
        occurrence, rule = self._rules[place]
        reference, name = occurrence.reference, rule.entity
        around = zip(reversed(places[1:]), _subqueries(path), strict=False)
        for level, ((start, end), (subquery, alias)) in enumerate(around):
            if level and alias.colnames and _has_a_star(subquery):
                raise self.refuse("its columns are renamed in FROM")
            at = clauses(self._text, start, end).source
            comma = "," if subquery.targetList else ""
            column = f"{quote_identifier(reference)}.{quote_identifier(name)}"
            given = _given(place, level)
            yield Edit(at, at, f"{comma} {column} AS {quote_identifier(given)} ")
            reference, name = alias.aliasname, given

    def _entity(self, place: int, path: Path, query: GroupingQuery, select: Any) -> str:
        """Write the entity of a table as the grouping query calls it."""
        occurrence, rule = self._rules[place]
        reference, name = occurrence.reference, rule.entity
        above = [node for node, _ in path]
        inside = [n for n in above[above.index(select) :] if isinstance(n, ast.RangeSubselect)]
        if inside:
            reference, name = inside[0].alias.aliasname, _given(place, len(inside) - 1)
        if sum(source.name == reference for source in query.sources) != 1:
            raise self.refuse(f"two items of FROM are called {reference}")
        return f"{quote_identifier(reference)}.{quote_identifier(name)}"


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


def _given(place: int, level: int) -> str:
    """Return what an entity is called on its way out of the subqueries around its table."""
    return f"oar entity {place}.{level}"


def _named(relation: Any, cte: str) -> bool:
    return relation.schemaname is None and relation.relname == cte


def _selects(path: Path) -> int:
    return sum(isinstance(node, ast.SelectStmt) for node, _ in path)


def _subqueries(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the subqueries in FROM above a table, from the inside, each with its alias."""
    for node, _ in reversed(path):
        if isinstance(node, ast.RangeSubselect):
            yield node.subquery, node.alias


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
