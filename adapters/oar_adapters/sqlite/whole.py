"""Whole statements an SQLite owner answers: the few whose answer provably is PostgreSQL's. Pure.

Equality joins of tables, conditions of the kind a scan takes, grouping by plain columns, and
``count``, ``sum`` of integers, ``min`` and ``max``; no LIMIT (which of several rows it leaves
differs), no expression. The statement is not rewritten but written anew from what was understood,
so nothing else can pass.

A filter or an aggregate hides values of another type than the published one, so every column a
statement uses is first searched for them (:func:`Translated.checks`), in the same snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import sqlglot
from sqlglot import exp

from oar_adapters.interface import (
    Agreement,
    Column,
    Comparison,
    ComparisonOperator,
    Membership,
    NullTest,
    Output,
    PatternMatch,
    Statement,
    Table,
    base_type,
)
from oar_adapters.predicates import Leaf
from oar_adapters.sqlite import sql
from oar_adapters.sqltext import quoted

AGGREGATES: Final = frozenset({"count", "max", "min", "sum"})

USABLE: Final = frozenset(
    {"bigint", "double precision", "numeric", "text", "bytea", "boolean", "date"}
)
"""Types with one stored form a value: timestamps and times have several."""

_MIRRORED: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_OPERATORS: Final[dict[type[exp.Expr], ComparisonOperator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_CASTS: Final = {
    "SMALLINT": "smallint",
    "INT": "integer",
    "BIGINT": "bigint",
    "DECIMAL": "numeric",
    "DOUBLE PRECISION": "double precision",
    "TEXT": "text",
    "VARCHAR": "character varying",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "BYTEA": "bytea",
}


_Node = TypeVar("_Node", bound=exp.Expr)


class NotTaken(ValueError):
    """The statement is not one of those; the hub evaluates it."""


Checks = tuple[tuple[str, Table, tuple[Column, ...]], ...]
"""Searches for values of another type, which come first: one row of 0, 1 or NULL a column."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A statement in SQLite's dialect."""

    text: str
    checks: Checks


def translate(
    statement: Statement,
    settled: sql.Settled,
    enforced: Collection[tuple[str, str]],
    parameters: sql.Parameters,
) -> Translated:
    """Translate a statement. Raises :class:`NotTaken` where the answer might not be the same.

    ``enforced`` columns cannot hold a value of another type.
    """
    try:
        tree = sqlglot.parse_one(statement.sql, read="postgres")
    except sqlglot.errors.SqlglotError:
        raise NotTaken from None
    body = _Body(tuple(statement.tables), settled, parameters)
    text = body.write(tree, statement.outputs)
    if statement.limit is not None:
        text += f" LIMIT {statement.limit:d}"
    if statement.counted:
        text = f"SELECT count(*) FROM ({text})"
    return Translated(text, tuple(body.checks(enforced)))


@dataclass
class _Source:
    """One table in FROM: how it is called, and its columns by the names the statement uses."""

    alias: str
    table: Table
    columns: dict[str, Column]
    writer: sql.Writer
    settled: sql.Settled
    used: dict[str, Column] = field(default_factory=dict)

    def column(self, name: str) -> Column:
        column = self.columns[name]
        if column.type not in USABLE or column.equality is not Agreement.EXACT:
            raise NotTaken
        if (
            column.type == "text"
            and (self.table.source_name, column.source_name) not in self.settled
        ):
            # A view's column may bring a collation along.
            raise NotTaken
        self.used[column.source_name] = column
        return column


@dataclass(frozen=True)
class _Item:
    """One output: its SQL, its type, and the column it is, unless it is an aggregate."""

    text: str
    type: str
    ordered: bool
    column: tuple[str, str] | None = None
    alias: str | None = None


class _Body:
    def __init__(
        self, tables: tuple[Table, ...], settled: sql.Settled, parameters: sql.Parameters
    ) -> None:
        self._tables = tables
        self._settled = settled
        self._parameters = parameters
        self._sources: dict[str, _Source] = {}

    def write(self, tree: exp.Expr, outputs: Sequence[Output]) -> str:
        select = _node(
            tree, exp.Select, "expressions", "from_", "joins", "where", "group", "order", "distinct"
        )
        distinct = select.args.get("distinct")
        if distinct is not None:
            _node(distinct, exp.Distinct)
        source = _node(select.args.get("from_"), exp.From, "this")
        parts = [f"FROM {self._source(source.this)}"]
        parts += [self._join(join) for join in select.args.get("joins") or ()]
        items = [self._item(item) for item in select.expressions]
        self._match(items, outputs)
        where = select.args.get("where")
        if where is not None:
            parts.append(f"WHERE {self._condition(_node(where, exp.Where, 'this').this)}")
        parts += self._group(select.args.get("group"), items)
        parts += self._order(select.args.get("order"), items)
        listed = ", ".join(
            f"{item.text} AS {quoted(output.name)}"
            for item, output in zip(items, outputs, strict=True)
        )
        return " ".join([f"SELECT {'DISTINCT ' if distinct else ''}{listed}", *parts])

    def checks(
        self, enforced: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, Table, tuple[Column, ...]]]:
        """Write one search for values of another type a table."""
        by_table: dict[str, tuple[Table, dict[str, Column]]] = {}
        for source in self._sources.values():
            _, columns = by_table.setdefault(source.table.source_name, (source.table, {}))
            columns.update(source.used)
        for name, (table, columns) in by_table.items():
            doubtful = tuple(c for n, c in columns.items() if (name, n) not in enforced)
            if doubtful:
                tests = ", ".join(f"max({sql.strange(column)})" for column in doubtful)
                yield f"SELECT {tests} FROM main.{quoted(name)} AS {sql.ALIAS}", table, doubtful

    # --- FROM ---------------------------------------------------------------------------------

    def _source(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Subquery):
            _node(node, exp.Subquery, "this", "alias")
            inner = _node(node.this, exp.Select, "expressions", "from_")
            inside = _node(inner.args.get("from_"), exp.From, "this").this
            named = _node(inside, exp.Table, "this", "alias")
            if named.args.get("alias"):
                raise NotTaken
            table = self._table(named)
            own = _columns(table)
            columns = dict(_renamed(item, own) for item in inner.expressions)
            return self._add(node.alias_or_name, table, columns)
        named = _node(node, exp.Table, "this", "alias")
        table = self._table(named)
        return self._add(_alias(named), table, _columns(table))

    def _table(self, node: exp.Table) -> Table:
        name = _name(node.this)
        for table in self._tables:
            if table.source_name.lower() == name.lower():
                return table
        raise NotTaken

    def _add(self, alias: str, table: Table, columns: dict[str, Column]) -> str:
        key = alias.lower()
        if not alias or key in self._sources:
            raise NotTaken
        writer = sql.Writer(table, self._settled, self._parameters, alias=quoted(alias))
        self._sources[key] = _Source(alias, table, columns, writer, self._settled)
        return f"main.{quoted(table.source_name)} AS {quoted(alias)}"

    def _join(self, node: exp.Expr) -> str:
        join = _node(node, exp.Join, "this", "side", "kind", "on")
        side, kind = join.side.upper(), join.kind.upper()
        left = (side, kind) in (("LEFT", ""), ("LEFT", "OUTER"))
        if not left and (side, kind) not in (("", ""), ("", "INNER"), ("", "CROSS")):
            raise NotTaken
        text = self._source(join.this)
        on = join.args.get("on")
        if on is None:
            if left:
                raise NotTaken
            return f"JOIN {text}"
        equalities = [self._equality(part) for part in _conjuncts(on)]
        return f"{'LEFT JOIN' if left else 'JOIN'} {text} ON {' AND '.join(equalities)}"

    def _equality(self, node: exp.Expr) -> str:
        pair = _node(node, exp.EQ, "this", "expression")
        left, right = self._column(pair.this), self._column(pair.expression)
        types = {left[1].type, right[1].type}
        if len(types) > 1 and not types <= {"bigint", "numeric"}:
            raise NotTaken
        return f"{self._spell(*left)} = {self._spell(*right)}"

    # --- columns and items --------------------------------------------------------------------

    def _column(self, node: exp.Expr) -> tuple[_Source, Column]:
        column = _node(node, exp.Column, "this", "table")
        name = _name(column.this).lower()
        qualifier = column.args.get("table")
        if qualifier is not None:
            source = self._sources.get(_name(qualifier).lower())
            found = [source] if source is not None and name in source.columns else []
        else:
            found = [s for s in self._sources.values() if name in s.columns]
        if len(found) != 1:
            raise NotTaken
        return found[0], found[0].column(name)

    @staticmethod
    def _spell(source: _Source, column: Column) -> str:
        return f"{quoted(source.alias)}.{quoted(column.source_name)}"

    def _item(self, node: exp.Expr) -> _Item:
        if isinstance(node, exp.Alias):
            _node(node, exp.Alias, "this", "alias")
            return replace(self._item(node.this), alias=_name(node.args["alias"]).lower())
        if isinstance(node, exp.Column):
            source, column = self._column(node)
            key = (source.alias.lower(), column.source_name)
            return _Item(self._spell(source, column), column.type, column.ordered, key)
        if isinstance(node, exp.Count):
            return self._count(node)
        if isinstance(node, exp.Sum):
            source, column = self._column(_node(node, exp.Sum, "this").this)
            if column.type != "bigint":
                raise NotTaken
            return _Item(f"sum({self._spell(source, column)})", "numeric", ordered=True)
        if isinstance(node, exp.Min | exp.Max):
            source, column = self._column(_node(node, type(node), "this").this)
            if not column.ordered or column.type in ("boolean", "bytea"):
                raise NotTaken
            word = "min" if isinstance(node, exp.Min) else "max"
            return _Item(f"{word}({self._spell(source, column)})", column.type, ordered=True)
        raise NotTaken

    def _count(self, node: exp.Count) -> _Item:
        _node(node, exp.Count, "this", "big_int")
        argument = node.this
        if isinstance(argument, exp.Star):
            _node(argument, exp.Star)
            return _Item("count(*)", "bigint", ordered=True)
        word = ""
        if isinstance(argument, exp.Distinct):
            _node(argument, exp.Distinct, "expressions")
            if len(argument.expressions) != 1:
                raise NotTaken
            word, argument = "DISTINCT ", argument.expressions[0]
        return _Item(f"count({word}{self._spell(*self._column(argument))})", "bigint", ordered=True)

    @staticmethod
    def _match(items: Sequence[_Item], outputs: Sequence[Output]) -> None:
        if not items or [item.type for item in items] != [
            base_type(output.type) for output in outputs
        ]:
            raise NotTaken

    # --- GROUP BY and ORDER BY ----------------------------------------------------------------

    def _group(self, node: exp.Expr | None, items: Sequence[_Item]) -> list[str]:
        keys: list[str] = []
        grouped = set()
        if node is not None:
            for part in _node(node, exp.Group, "expressions").expressions:
                key, text = self._group_key(part, items)
                grouped.add(key)
                keys.append(text)
        plain = {item.column for item in items if item.column is not None}
        aggregated = any(item.column is None for item in items)
        if (keys or aggregated) and not plain <= grouped:
            raise NotTaken
        return [f"GROUP BY {', '.join(keys)}"] if keys else []

    def _group_key(self, node: exp.Expr, items: Sequence[_Item]) -> tuple[tuple[str, str], str]:
        if isinstance(node, exp.Literal):
            item = _numbered(node, items)
            if item.column is None:
                raise NotTaken
            return item.column, item.text
        source, column = self._column(node)
        return (source.alias.lower(), column.source_name), self._spell(source, column)

    def _order(self, node: exp.Expr | None, items: Sequence[_Item]) -> list[str]:
        if node is None:
            return []
        parts = []
        for part in _node(node, exp.Order, "expressions").expressions:
            ordered = _node(part, exp.Ordered, "this", "desc", "nulls_first")
            item = self._ordered_item(ordered.this, items)
            if not item.ordered:
                raise NotTaken
            direction = "DESC" if ordered.args.get("desc") else "ASC"
            nulls = "FIRST" if ordered.args.get("nulls_first") else "LAST"
            parts.append(f"{items.index(item) + 1} {direction} NULLS {nulls}")
        return [f"ORDER BY {', '.join(parts)}"]

    def _ordered_item(self, node: exp.Expr, items: Sequence[_Item]) -> _Item:
        if isinstance(node, exp.Literal):
            return _numbered(node, items)
        if isinstance(node, exp.Column) and not node.args.get("table"):
            named = [item for item in items if item.alias == _name(node.this).lower()]
            if named:
                return named[0] if len(named) == 1 else _refuse()
        text = self._item(node).text
        return next((item for item in items if item.text == text), None) or _refuse()

    # --- WHERE --------------------------------------------------------------------------------

    def _condition(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Paren):
            return self._condition(_node(node, exp.Paren, "this").this)
        if isinstance(node, exp.And | exp.Or):
            _node(node, type(node), "this", "expression")
            word = "AND" if isinstance(node, exp.And) else "OR"
            return f"({self._condition(node.this)} {word} {self._condition(node.expression)})"
        if isinstance(node, exp.Not):
            return f"(NOT {self._condition(_node(node, exp.Not, 'this').this)})"
        if isinstance(node, exp.Between):
            return self._between(node)
        source, leaf = self._leaf(node)
        if sql.agrees(_as_named(source), leaf) is not Agreement.EXACT:
            raise NotTaken
        return source.writer.condition(replace(leaf, column=source.columns[leaf.column].name))

    def _between(self, node: exp.Between) -> str:
        _node(node, exp.Between, "this", "low", "high")
        low = exp.GTE(this=node.this, expression=node.args["low"])
        high = exp.LTE(this=node.this, expression=node.args["high"])
        return f"({self._condition(low)} AND {self._condition(high)})"

    def _leaf(self, node: exp.Expr) -> tuple[_Source, Leaf]:
        if isinstance(node, exp.Column):
            source, column = self._column(node)
            return source, Comparison(_key(source, column), "=", "t", "boolean")
        if isinstance(node, exp.Is):
            _node(node, exp.Is, "this", "expression")
            source, column = self._column(node.this)
            _node(node.expression, exp.Null)
            return source, NullTest(_key(source, column), negated=False)
        if isinstance(node, exp.In):
            _node(node, exp.In, "this", "expressions")
            source, column = self._column(node.this)
            values = [_constant(value, column) for value in node.expressions]
            types = {type_ for _, type_ in values}
            if len(types) != 1:
                raise NotTaken
            texts = tuple(text for text, _ in values)
            return source, Membership(_key(source, column), texts, types.pop())
        if isinstance(node, exp.Like):
            _node(node, exp.Like, "this", "expression")
            source, column = self._column(node.this)
            pattern = _node(node.expression, exp.Literal, "this", "is_string")
            if not pattern.is_string:
                raise NotTaken
            return source, PatternMatch(_key(source, column), pattern.this, negated=False)
        return self._comparison(node)

    def _comparison(self, node: exp.Expr) -> tuple[_Source, Leaf]:
        operator = _OPERATORS.get(type(node))
        if operator is None:
            raise NotTaken
        _node(node, type(node), "this", "expression")
        left, right = node.this, node.expression
        if not isinstance(left, exp.Column):
            left, right, operator = right, left, _MIRRORED[operator]
        source, column = self._column(left)
        text, type_ = _constant(right, column)
        return source, Comparison(_key(source, column), operator, text, type_)


def _refuse() -> _Item:
    raise NotTaken


def _node(node: object, kind: type[_Node], *arguments: str) -> _Node:
    """Return a node that is of a kind and has no other arguments than these."""
    if type(node) is not kind:
        raise NotTaken
    present = {name for name, value in node.args.items() if value not in (None, False, [], "")}
    if not present <= set(arguments):
        raise NotTaken
    return node


def _name(node: object) -> str:
    """Return the name an identifier means in PostgreSQL: folded unless it was quoted."""
    identifier = _node(node, exp.Identifier, "this", "quoted")
    name = str(identifier.this)
    return name if identifier.args.get("quoted") else name.lower()


def _alias(node: exp.Expr) -> str:
    alias = node.args.get("alias")
    if alias is None:
        return _name(node.this)
    return _name(_node(alias, exp.TableAlias, "this").this)


def _columns(table: Table) -> dict[str, Column]:
    return {column.source_name.lower(): column for column in table.columns}


def _renamed(item: exp.Expr, own: dict[str, Column]) -> tuple[str, Column]:
    """Read ``"source" AS "name"`` in the proxy's derived table."""
    if isinstance(item, exp.Alias):
        _node(item, exp.Alias, "this", "alias")
        name, item = _name(item.args["alias"]).lower(), item.this
    else:
        name = ""
    source = _name(_node(item, exp.Column, "this").this).lower()
    if source not in own:
        raise NotTaken
    return name or source, own[source]


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.Paren):
        yield from _conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _numbered(node: exp.Literal, items: Sequence[_Item]) -> _Item:
    if node.is_string or not node.this.isdecimal() or not 1 <= int(node.this) <= len(items):
        raise NotTaken
    return items[int(node.this) - 1]


def _constant(node: exp.Expr, column: Column) -> tuple[str, str]:
    """Read a constant and its type; a string is of the type it is compared with."""
    if isinstance(node, exp.Cast):
        _node(node, exp.Cast, "this", "to")
        type_ = _CASTS.get(node.to.sql(dialect="postgres").upper())
        inner, plain = _constant(node.this, column)
        if type_ is None or (plain != type_ and not _is_string(node.this)):
            raise NotTaken
        return inner, type_
    if isinstance(node, exp.Boolean):
        return ("t" if node.this else "f"), "boolean"
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", _node(node, exp.Neg, "this").this
    literal = _node(node, exp.Literal, "this", "is_string")
    text = str(literal.this)
    if literal.args.get("is_string"):
        if sign:
            raise NotTaken
        return text, column.type
    return sign + text, "bigint" if text.isdecimal() else "numeric"


def _is_string(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.is_string


def _key(source: _Source, column: Column) -> str:
    return next(name for name, other in source.columns.items() if other is column)


def _as_named(source: _Source) -> Table:
    """The table with its columns under the names the statement uses."""
    columns = tuple(replace(column, name=name) for name, column in source.columns.items())
    return replace(source.table, columns=columns)
