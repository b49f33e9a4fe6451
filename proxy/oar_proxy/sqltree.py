"""PostgreSQL's own parse tree, and edits of the text it was read from.

The only module that uses pglast (libpg_query: PostgreSQL's parser). It finds what matters in a
statement (relations, calls of ours, parameters, names of columns) with the place where each stands;
rewriting is then splicing text, so that everything else reaches the hub as the client wrote it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import pglast
from pglast import ast as ast  # noqa: PLC0414 - re-exported: nobody else imports pglast
from pglast import enums as enums  # noqa: PLC0414
from pglast.parser import ParseError, Token, scan

CallName = Literal["oar_ask", "oar_ask_json", "oar_explain"]
_CALLS: dict[str, CallName] = {
    "oar_ask": "oar_ask",
    "oar_ask_json": "oar_ask_json",
    "oar_explain": "oar_explain",
}
_CALL_SCHEMAS = (None, "public", "oar")
_COMMENT_QUESTION = re.compile(
    r"/\*\s*oar:\s*(?P<block>.*?)\s*\*/|--\s*oar:\s*(?P<line>[^\n]*?)\s*(?:\n|$)",
    re.DOTALL | re.IGNORECASE,
)


MAX_REMEMBERED: Final = 16_384
"""Characters of a text whose tree is kept: 512 of them are a few megabytes."""


class SyntaxFault(ValueError):
    """The text is not PostgreSQL's SQL, or too deep to read; the hub's own error is shown."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]``."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A name in FROM (or as a join or USING source) that no CTE of the statement explains.

    ``start``/``end`` delimit the name in the text, with what has to go together with it. ``whole``:
    every column may be used. ``command``: it stands in ``TABLE name``.
    """

    schema: str | None
    name: str
    alias: str | None
    start: int
    end: int
    whole: bool
    command: bool = False

    def replace(self, query: str) -> Edit:
        """Put a derived table in the place of the name."""
        lead = "SELECT * FROM " if self.command else ""
        name = "" if self.alias is not None else f" AS {quote_identifier(self.name)}"
        return Edit(self.start, self.end, f"{lead}(\n{query}\n){name}")

    @property
    def reference(self) -> str:
        """What the statement calls it."""
        return self.alias or self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of our functions. ``argument`` is the literal, ``parameter`` its number."""

    name: CallName
    argument: str | None
    parameter: int | None
    start: int
    end: int
    place: Literal["from", "select", "elsewhere"]
    alias: str | None = None


@dataclass(frozen=True)
class Parsed:
    """One statement and what it refers to."""

    text: str
    node: Any = field(repr=False)
    relations: tuple[Relation, ...] = ()
    targets: tuple[Relation, ...] = ()
    """Relations the statement would write to."""
    calls: tuple[Call, ...] = ()
    parameters: tuple[tuple[int, int, int], ...] = ()
    """(number, start, end) of each ``$n``."""
    column_names: frozenset[str] = frozenset()
    attributes: frozenset[tuple[str, str]] = frozenset()
    """Qualifier and name of each column: where no column has the name, ``t.f`` is ``f(t)``."""
    qualified: tuple[tuple[str, str, int, int], ...] = ()
    """(schema, table, start, end) of each schema before a column: ``public.`` in ``public.t.a``."""
    locks_rows: bool = False

    @property
    def kind(self) -> str:
        """The node's name, such as ``SelectStmt``."""
        return type(self.node).__name__

    @cached_property
    def query_extent(self) -> tuple[int, int] | None:
        """Where the SELECT of the statement stands, None when it has no single one to point at."""
        return _query_extent(self)

    @cached_property
    def collates_otherwise(self) -> bool:
        """Whether some COLLATE in it may compare text other than by its code points."""
        return _collates_otherwise(self.node)


def parse(text: str) -> tuple[Parsed, ...]:
    """Parse a query string. Raises :class:`SyntaxFault`.

    Each statement has its own text, without the semicolon. The stages parse one text several
    times over, and clients send the same ones again: short texts are remembered.
    """
    return _parse_again(text) if len(text) <= MAX_REMEMBERED else _parse(text)


def _parse(text: str) -> tuple[Parsed, ...]:
    if "\0" in text:
        raise SyntaxFault("a NUL character ends a text of PostgreSQL's")
    try:
        return _read(text)
    except ParseError as error:
        raise SyntaxFault(str(error)) from error
    except RecursionError as error:
        # Thousands of nested operators: the hub may take them, and its guards stand behind it.
        raise SyntaxFault("nested too deeply") from error


def _read(text: str) -> tuple[Parsed, ...]:
    statements = pglast.parse_sql(text)
    if len(statements) == 1 and ";" not in text:
        return (_describe(text, statements[0].stmt),)
    parsed = []
    for raw in statements:
        start = raw.stmt_location
        piece = text[start : start + raw.stmt_len] if raw.stmt_len else text[start:]
        parsed.append(_describe(piece, pglast.parse_sql(piece)[0].stmt))
    return tuple(parsed)


_parse_again = functools.lru_cache(maxsize=512)(_parse)


def comment_question(text: str) -> str | None:
    """Return the question of a string that says nothing but ``/* oar: question */``.

    An empty target list (``SELECT /* oar: … */``) says nothing either.
    """
    match = _COMMENT_QUESTION.search(text)
    if match is None:
        return None
    try:
        statements = pglast.parse_sql(text)
    except (ParseError, RecursionError):
        return None
    if len(statements) > 1:
        return None
    if statements:
        node = statements[0].stmt
        if not isinstance(node, ast.SelectStmt) or _selects_anything(node):
            return None
    question = match["block"] if match["block"] is not None else match["line"]
    return str(question)


def splice(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap."""
    parts: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda e: e.start):
        if edit.start < position:
            raise ValueError("edits overlap")
        parts.append(text[position : edit.start])
        parts.append(edit.replacement)
        position = edit.end
    parts.append(text[position:])
    return "".join(parts)


def quote_identifier(name: str) -> str:
    """Quote a name, always."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """Quote a string, whatever ``standard_conforming_strings`` says."""
    quoted = "'" + value.replace("'", "''") + "'"
    return quoted if "\\" not in value else " E" + quoted.replace("\\", "\\\\")


def conjuncts(expression: str) -> list[str]:
    """Split the text of a condition, as EXPLAIN prints it, at its top-level ANDs."""
    tokens = list(scan(expression))
    first, last = 0, len(tokens) - 1
    while first < last and _wraps(tokens, first, last):
        first, last = first + 1, last - 1
    parts: list[str] = []
    depth = 0
    start = tokens[first].start
    for token in tokens[first : last + 1]:
        if token.name == "ASCII_40":
            depth += 1
        elif token.name == "ASCII_41":
            depth -= 1
        elif token.name == "AND" and depth == 0:
            parts.append(expression[start : token.start].strip())
            start = token.end + 1
    parts.append(expression[start : tokens[last].end + 1].strip())
    return parts


def parse_expression(text: str) -> Any | None:
    """Parse one expression as EXPLAIN prints it; None where that is not SQL (``(SubPlan 1)``)."""
    try:
        statement = pglast.parse_sql(f"SELECT {text}")[0].stmt
    except (ParseError, RecursionError):
        return None
    if len(statement.targetList or ()) != 1 or statement.fromClause:
        return None
    return statement.targetList[0].val


def _wraps(tokens: Sequence[Token], first: int, last: int) -> bool:
    if tokens[first].name != "ASCII_40" or tokens[last].name != "ASCII_41":
        return False
    depth = 0
    for index in range(first, last + 1):
        if tokens[index].name == "ASCII_40":
            depth += 1
        elif tokens[index].name == "ASCII_41":
            depth -= 1
            if depth == 0:
                return index == last
    return False


def without_comments(text: str) -> str:
    """Return a query string without its comments. Raises :class:`SyntaxFault`."""
    return splice(
        text, [Edit(t.start, t.end + 1, " ") for t in _tokens(text) if t.name in _COMMENTS]
    )


def identifiers(text: str) -> Iterator[str]:
    """Yield the names in a text that are no keywords, as PostgreSQL reads them."""
    for token in _tokens(text):
        if token.name == "IDENT":
            written = text[token.start : token.end + 1]
            quoted = written.startswith('"')
            yield written[1:-1].replace('""', '"') if quoted else written.lower()


_COMMENTS: Final = frozenset({"SQL_COMMENT", "C_COMMENT"})


def _tokens(text: str) -> Sequence[Token]:
    try:
        return list(scan(text))
    except ParseError as error:
        raise SyntaxFault(str(error)) from error


def function_names(root: Any) -> tuple[set[str], set[str]]:
    """Return what a query calls as ``f(x)``, and what it may call as ``(x).f`` if not a field.

    Functions are named by their last name; with a schema, by both.
    """
    called: set[str] = set()
    attributes: set[str] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FuncCall):
            parts = [part.sval for part in node.funcname]
            called.add(".".join(parts[1:] if parts[0] == "pg_catalog" else parts))
        elif isinstance(node, ast.A_Indirection):
            attributes.update(p.sval for p in node.indirection if isinstance(p, ast.String))
        waiting.extend(children(node))
    return called, attributes


# --- reading the tree -------------------------------------------------------------------------


_SOURCES = (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt, ast.MergeStmt)
_WITH = (ast.SelectStmt, *_SOURCES)


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below a node or a tuple of nodes."""
    if isinstance(node, tuple):
        yield from node
    elif isinstance(node, ast.Node):
        for name in node:
            yield getattr(node, name)


@dataclass
class _Reader:
    text: str
    tokens: list[Token]
    relations: list[tuple[Any, bool]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    parameters: list[tuple[int, int, int]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    attributes: set[tuple[str, str]] = field(default_factory=set)
    starred: set[int] = field(default_factory=set)
    qualified: list[tuple[str, str, int, int]] = field(default_factory=list)
    everything: bool = False
    locks_rows: bool = False

    def token_at(self, position: int) -> int:
        low, high = 0, len(self.tokens)
        while low < high:
            middle = (low + high) // 2
            if self.tokens[middle].start < position:
                low = middle + 1
            else:
                high = middle
        return low

    def name_extent(self, position: int) -> tuple[int, int]:
        """Delimit a possibly qualified name, with the ONLY or ``*`` around it."""
        first = last = self.token_at(position)
        while (
            last + 2 < len(self.tokens)
            and self.tokens[last + 1].name == "ASCII_46"
            and self.tokens[last + 1].start < self.tokens[last + 2].start
        ):
            last += 2
        if last + 1 < len(self.tokens) and self.tokens[last + 1].name == "ASCII_42":
            last += 1
        if first and self.tokens[first - 1].name == "ONLY":
            first -= 1
        elif (
            first > 1
            and self.tokens[first - 1].name == "ASCII_40"
            and self.tokens[first - 2].name == "ONLY"
        ):
            first, last = first - 2, last + 1
        return self.tokens[first].start, self.tokens[last].end + 1

    def call_extent(self, position: int) -> tuple[int, int]:
        index = self.token_at(position)
        start = self.tokens[index].start
        depth = 0
        while True:
            name = self.tokens[index].name
            if name == "ASCII_40":
                depth += 1
            elif name == "ASCII_41":
                depth -= 1
                if depth == 0:
                    return start, self.tokens[index].end + 1
            index += 1

    def visit(self, node: Any, ctes: frozenset[str]) -> None:
        if node is None or isinstance(node, (str, int, bool, float)):
            return
        if isinstance(node, tuple):
            for item in node:
                self.visit(item, ctes)
            return
        if not isinstance(node, ast.Node):
            return
        if isinstance(node, _WITH):
            ctes = self._with(node.withClause, ctes)
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            handler(self, node, ctes)
            return
        for child in children(node):
            self.visit(child, ctes)

    def _with(self, clause: Any, ctes: frozenset[str]) -> frozenset[str]:
        if clause is None:
            return ctes
        if clause.recursive:
            ctes = ctes | {cte.ctename for cte in clause.ctes}
        for cte in clause.ctes:
            self.visit(cte.ctequery, ctes)
            ctes = ctes | {cte.ctename}
        return ctes

    def select(self, node: Any, ctes: frozenset[str]) -> None:
        self._select(node, ctes, exists=False)

    def _select(self, node: Any, ctes: frozenset[str], *, exists: bool) -> None:
        sole = _sole_call(node)
        for target in node.targetList or ():
            value = target.val
            if isinstance(value, ast.ColumnRef) and isinstance(value.fields[-1], ast.A_Star):
                if exists:
                    continue
                if len(value.fields) == 1:
                    self.starred.update(map(id, _direct_relations(node.fromClause)))
                else:
                    self.references.add(value.fields[-2].sval)
                    self.prefix(value)
            elif value is sole and sole is not None:
                self.call(sole, "select", None, ctes)
            else:
                self.visit(value, ctes)
        if node.lockingClause:
            self.locks_rows = True
        for name in node:
            if name not in ("targetList", "withClause", "lockingClause"):
                self.visit(getattr(node, name), ctes)

    def sublink(self, node: Any, ctes: frozenset[str]) -> None:
        self.visit(node.testexpr, ctes)
        inner = node.subselect
        exists = node.subLinkType == enums.SubLinkType.EXISTS_SUBLINK
        if exists and isinstance(inner, ast.SelectStmt):
            self._select(inner, self._with(inner.withClause, ctes), exists=True)
        else:
            self.visit(inner, ctes)

    def change(self, node: Any, ctes: frozenset[str]) -> None:
        self.targets.append(node.relation)
        for name in node:
            if name not in ("relation", "withClause"):
                self.visit(getattr(node, name), ctes)

    def range_variable(self, node: Any, ctes: frozenset[str]) -> None:
        if node.schemaname is None and node.relname in ctes:
            return
        self.relations.append((node, node.alias is not None and bool(node.alias.colnames)))

    def column(self, node: Any, ctes: frozenset[str]) -> None:
        del ctes
        fields = node.fields
        self.prefix(node)
        if isinstance(fields[-1], ast.A_Star):
            # A star outside a target list: RETURNING *, count((t.*)), a row constructor.
            if len(fields) == 1:
                self.everything = True
            else:
                self.references.add(fields[-2].sval)
            return
        self.names.update(part.sval for part in fields)
        if len(fields) == 1:
            self.references.add(fields[0].sval)
        else:
            self.attributes.add((fields[-2].sval, fields[-1].sval))

    def prefix(self, node: Any) -> None:
        """Remember where a column is qualified by schema: an alias has none."""
        if len(node.fields) == 3:
            token = self.token_at(node.location)
            start, end = self.tokens[token].start, self.tokens[token + 2].start
            self.qualified.append((node.fields[0].sval, node.fields[1].sval, start, end))

    def indirection(self, node: Any, ctes: frozenset[str]) -> None:
        self.names.update(
            part.sval for part in node.indirection or () if isinstance(part, ast.String)
        )
        self.visit(node.arg, ctes)
        self.visit(node.indirection, ctes)

    def join(self, node: Any, ctes: frozenset[str]) -> None:
        if node.isNatural or node.alias is not None:
            # The alias may be used as a row, or with a star.
            self.starred.update(map(id, _direct_relations((node,))))
        self.names.update(name.sval for name in node.usingClause or ())
        self.visit(node.larg, ctes)
        self.visit(node.rarg, ctes)
        self.visit(node.quals, ctes)

    def range_function(self, node: Any, ctes: frozenset[str]) -> None:
        functions: Any = node.functions or ()
        if len(functions) == 1:
            function = functions[0][0]
            plain = not (node.is_rowsfrom or node.ordinality or node.coldeflist)
            if isinstance(function, ast.FuncCall) and _call_name(function) is not None:
                alias = node.alias.aliasname if node.alias else None
                self.call(function, "from" if plain else "elsewhere", alias, ctes)
                return
        for child in children(node):
            self.visit(child, ctes)

    def function(self, node: Any, ctes: frozenset[str]) -> None:
        if _call_name(node) is not None:
            self.call(node, "elsewhere", None, ctes)
            return
        for child in children(node):
            self.visit(child, ctes)

    def call(
        self,
        node: Any,
        place: Literal["from", "select", "elsewhere"],
        alias: str | None,
        ctes: frozenset[str],
    ) -> None:
        name = _call_name(node)
        assert name is not None
        literal, parameter = None, None
        if len(node.args or ()) == 1:
            argument = node.args[0]
            while isinstance(argument, ast.TypeCast):
                argument = argument.arg
            if isinstance(argument, ast.A_Const) and isinstance(argument.val, ast.String):
                literal = argument.val.sval
            elif isinstance(argument, ast.ParamRef):
                parameter = argument.number
        start, end = self.call_extent(node.location)
        self.calls.append(Call(name, literal, parameter, start, end, place, alias))
        self.visit(node.args, ctes)

    def parameter(self, node: Any, ctes: frozenset[str]) -> None:
        del ctes
        token = self.tokens[self.token_at(node.location)]
        self.parameters.append((node.number, token.start, token.end + 1))

    def into(self, node: Any, ctes: frozenset[str]) -> None:
        """The relation of SELECT INTO or CREATE TABLE AS is new, not read."""

    def relation(self, node: Any, renamed: bool) -> Relation:
        start, end = self.name_extent(node.location)
        before = self.token_at(start) - 1
        command = before >= 0 and self.tokens[before].name == "TABLE"
        if command:
            start = self.tokens[before].start
        alias = node.alias.aliasname if node.alias else None
        whole = (
            self.everything
            or renamed
            or id(node) in self.starred
            or (alias or node.relname) in self.references
        )
        return Relation(node.schemaname, node.relname, alias, start, end, whole, command)


_HANDLERS: dict[type, Any] = {
    ast.SelectStmt: _Reader.select,
    ast.SubLink: _Reader.sublink,
    ast.InsertStmt: _Reader.change,
    ast.UpdateStmt: _Reader.change,
    ast.DeleteStmt: _Reader.change,
    ast.MergeStmt: _Reader.change,
    ast.RangeVar: _Reader.range_variable,
    ast.ColumnRef: _Reader.column,
    ast.A_Indirection: _Reader.indirection,
    ast.JoinExpr: _Reader.join,
    ast.RangeFunction: _Reader.range_function,
    ast.FuncCall: _Reader.function,
    ast.ParamRef: _Reader.parameter,
    ast.IntoClause: _Reader.into,
}

_CARRIERS = (
    ast.SelectStmt,
    *_SOURCES,
    ast.CopyStmt,
    ast.DeclareCursorStmt,
    ast.CreateTableAsStmt,
    ast.ExplainStmt,
    ast.PrepareStmt,
    ast.ExecuteStmt,
    ast.ViewStmt,
)
"""Statement forms that can hold a query; the hub judges every other form by itself."""


def _describe(text: str, node: Any) -> Parsed:
    if not isinstance(node, _CARRIERS):
        return Parsed(text, node)
    reader = _Reader(text, list(scan(text)))
    if isinstance(node, (ast.CopyStmt, ast.ViewStmt)):
        reader.visit(node.query, frozenset())
    else:
        reader.visit(node, frozenset())
    return Parsed(
        text=text,
        node=node,
        relations=tuple(reader.relation(rel, renamed) for rel, renamed in reader.relations),
        targets=tuple(reader.relation(rel, False) for rel in reader.targets),
        calls=tuple(reader.calls),
        parameters=tuple(reader.parameters),
        column_names=frozenset(reader.names),
        attributes=frozenset(reader.attributes),
        qualified=tuple(reader.qualified),
        locks_rows=reader.locks_rows,
    )


def _call_name(node: Any) -> CallName | None:
    parts = [part.sval for part in node.funcname]
    schema = parts[-2] if len(parts) > 1 else None
    if schema not in _CALL_SCHEMAS:
        return None
    return _CALLS.get(parts[-1])


def _selects_anything(node: Any) -> bool:
    return any(
        getattr(node, name)
        for name in ("targetList", "fromClause", "whereClause", "valuesLists", "larg", "withClause")
    )


def _sole_call(node: Any) -> Any | None:
    """The call in ``SELECT oar_ask('…')`` where nothing else is selected from anywhere."""
    targets: Any = node.targetList or ()
    if len(targets) != 1 or node.fromClause or node.whereClause or node.groupClause:
        return None
    target = targets[0]
    if target.name is None and isinstance(target.val, ast.FuncCall) and _call_name(target.val):
        return target.val
    return None


def _direct_relations(items: Iterable[Any] | None) -> Iterator[Any]:
    for item in items or ():
        if isinstance(item, ast.RangeVar):
            yield item
        elif isinstance(item, ast.JoinExpr):
            yield from _direct_relations((item.larg, item.rarg))


def grouped_selects(
    root: Any,
) -> Iterator[tuple[list[tuple[str | None, str, int]], list[int]]]:
    """Yield what each ``GROUP BY a, t.b`` groups by, and where its FROM names relations.

    Grouping columns are (qualifier, name, position). Grouping sets are left out: a key does not
    determine its row in them.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(children(node))
        if not isinstance(node, ast.SelectStmt) or not node.groupClause:
            continue
        if any(isinstance(item, ast.GroupingSet) for item in node.groupClause):
            continue
        columns: list[tuple[str | None, str, int]] = []
        for item in node.groupClause:
            if isinstance(item, ast.ColumnRef) and isinstance(item.fields[-1], ast.String):
                qualifier = item.fields[-2].sval if len(item.fields) > 1 else None
                columns.append((qualifier, item.fields[-1].sval, item.location))
        yield columns, [r.location for r in _direct_relations(node.fromClause)]


_BYTEWISE: Final = frozenset({"default", "C", "POSIX", "ucs_basic", "pg_c_utf8"})


def _collates_otherwise(root: Any) -> bool:
    """Tell whether some COLLATE below a node may compare text other than by its code points."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.CollateClause):
            names = [part.sval for part in node.collname]
            if names[:-1] not in ([], ["pg_catalog"]) or names[-1] not in _BYTEWISE:
                return True
        waiting.extend(children(node))
    return False


_PLACES: Final = ("location", "stmt_location", "stmt_len", "list_start", "list_end",
                  "rexpr_list_start", "rexpr_list_end")  # fmt: skip
"""Attributes of nodes that say where they are written, and nothing of what they mean."""

_SAME_EXPRESSIONS: Final = ("groupClause", "distinctClause", "sortClause")
_EXPRESSIONS: Final = (*_SAME_EXPRESSIONS, "targetList", "havingClause", "windowClause")


def repeated_relations(root: Any) -> dict[int, int]:
    """Map relations in a subquery that is written again to those where it is written first.

    PostgreSQL takes two expressions of one SELECT for the same, as GROUP BY, DISTINCT ON and ORDER
    BY need it, when they are written alike. Positions to positions.
    """
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(children(node))
        if not isinstance(node, ast.SelectStmt):
            continue
        if not any(list(_subqueries_in(getattr(node, name))) for name in _SAME_EXPRESSIONS):
            continue
        written = [
            (list(relation_positions(subquery)), subquery)
            for name in _EXPRESSIONS
            for subquery in _subqueries_in(getattr(node, name))
        ]
        first: dict[Any, list[int]] = {}
        for positions, subquery in sorted(written, key=lambda pair: pair[0]):
            known = first.setdefault(_meaning(subquery), positions)
            if known is not positions:
                found.update(zip(positions, known, strict=True))
    return found


def _subqueries_in(node: Any) -> Iterator[Any]:
    """The outermost subqueries of an expression."""
    if isinstance(node, ast.SubLink):
        yield node
        return
    for child in children(node):
        yield from _subqueries_in(child)


def _meaning(node: Any) -> Any:
    """A node without its places: equal for two that are written alike."""
    if isinstance(node, tuple):
        return tuple(map(_meaning, node))
    if isinstance(node, ast.Node):
        named = ((name, _meaning(getattr(node, name))) for name in node if name not in _PLACES)
        return (type(node).__name__, *named)
    return node


def relation_positions(node: Any) -> Iterator[int]:
    """Yield where each relation below a node is named."""
    if isinstance(node, ast.RangeVar):
        yield node.location
        return
    for child in children(node):
        yield from relation_positions(child)


def range_names(root: Any) -> Iterator[tuple[str, int | None]]:
    """Yield every name that FROM gives its items, and where a relation that goes by its own is."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Alias):
            yield node.aliasname, None
        elif isinstance(node, ast.RangeVar) and node.alias is None:
            yield node.relname, node.location
        waiting.extend(children(node))


def subqueries(root: Any) -> Iterator[tuple[str, Any, tuple[str, ...] | None]]:
    """Yield alias, query and output columns of each subquery in FROM and each use of a CTE.

    The columns are None where the names alone do not tell them (a star, an unnamed expression).
    """
    ctes: dict[str, list[Any]] = {}
    used: list[Any] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.CommonTableExpr):
            ctes.setdefault(node.ctename, []).append(node)
        elif isinstance(node, ast.RangeVar) and node.schemaname is None:
            used.append(node)
        elif isinstance(node, ast.RangeSubselect) and node.alias is not None:
            renamed = tuple(name.sval for name in node.alias.colnames or ())
            yield node.alias.aliasname, node.subquery, _renamed(node.subquery, renamed)
        waiting.extend(children(node))
    for reference in used:
        for cte in ctes.get(reference.relname, ()):
            alias = reference.alias.aliasname if reference.alias else reference.relname
            renamed = tuple(name.sval for name in cte.aliascolnames or ())
            if reference.alias is not None and reference.alias.colnames:
                yield alias, cte.ctequery, None
            else:
                yield alias, cte.ctequery, _renamed(cte.ctequery, renamed)


def _renamed(query: Any, names: tuple[str, ...]) -> tuple[str, ...] | None:
    columns = _output_columns(query)
    return None if columns is None else names + columns[len(names) :]


def _output_columns(query: Any) -> tuple[str, ...] | None:
    while isinstance(query, ast.SelectStmt) and query.larg is not None:
        query = query.larg
    if not isinstance(query, ast.SelectStmt):
        return None
    names: list[str] = []
    for target in query.targetList or ():
        value = target.val
        if target.name is not None:
            names.append(target.name)
        elif isinstance(value, ast.ColumnRef) and isinstance(value.fields[-1], ast.String):
            names.append(value.fields[-1].sval)
        elif isinstance(value, ast.FuncCall):
            names.append(value.funcname[-1].sval)
        else:
            return None
    return tuple(names)


def bracketed_queries(text: str) -> Iterator[tuple[int, int]]:
    """Yield where subqueries stand, from behind their ``(`` up to their ``)``, outer ones first.

    Arms of set operations are left out: the other arms have a say in the types of theirs.
    """
    tokens = list(scan(text))
    for index in range(1, len(tokens) - 1):
        if tokens[index].name != "ASCII_40" or tokens[index + 1].name not in ("SELECT", "WITH"):
            continue
        closing = _closing(tokens, index)
        before = {tokens[index - 1].name}
        if before <= {"ALL", "DISTINCT"} and index > 1:
            before.add(tokens[index - 2].name)
        after = tokens[closing + 1].name if closing + 1 < len(tokens) else ""
        if not before & _SET_OPERATIONS and after not in (*_SET_OPERATIONS, *_BEHIND_AN_ARM):
            yield tokens[index].end + 1, tokens[closing].start


_SET_OPERATIONS: Final = frozenset({"UNION", "INTERSECT", "EXCEPT"})
_BEHIND_AN_ARM: Final = ("ORDER", "LIMIT", "OFFSET", "FETCH", "FOR")


def calls_plainly(node: Any, functions: Collection[str]) -> bool:
    """Tell whether an expression calls one of some functions, outside of subqueries and OVER."""
    if isinstance(node, ast.SubLink):
        return False
    if isinstance(node, ast.FuncCall) and node.over is None and node.funcname[-1].sval in functions:
        return True
    return any(calls_plainly(child, functions) for child in children(node))


def picks(node: Any) -> bool:
    """Tell whether a query may give other rows when it is asked again: which of several, or how.

    LIMIT and OFFSET, DISTINCT ON and window functions follow an order that rows may tie in.
    """
    if isinstance(node, ast.FuncCall) and node.over is not None:
        return True
    if isinstance(node, ast.SelectStmt):
        on = any(expression is not None for expression in node.distinctClause or ())
        if node.limitCount is not None or node.limitOffset is not None or on:
            return True
    return any(picks(child) for child in children(node))


def preview_rows(node: Any, columns: Collection[str]) -> int | None:
    """How many rows of its one table answer ``SELECT a, b FROM t LIMIT n OFFSET m``: n + m.

    ``columns`` are the table's. None where a condition, an order, an aggregate or anything else
    looks at more of them.
    """
    query = node if isinstance(node, ast.SelectStmt) else getattr(node, "query", None)
    if not isinstance(query, ast.SelectStmt):
        return None
    counted = enums.LimitOption.LIMIT_OPTION_COUNT
    count = _integer(query.limitCount) if query.limitOption == counted else None
    offset = skipped_rows(query)
    if count is None or offset is None:
        return None
    outer = query
    while _reads_as_is(query):
        source = query.fromClause[0]
        if isinstance(source, ast.RangeVar):
            return None if _calls_an_attribute(outer, columns) else count + offset
        query = source.subquery
        if query.limitCount is not None or query.limitOffset is not None:
            return None
    return None


_ROW_BY_ROW: Final = frozenset(
    {
        "SelectStmt", "ResTarget", "RangeVar", "RangeSubselect", "Alias", "ColumnRef", "A_Star",
        "String", "A_Const", "Integer", "Float", "Boolean", "BitString", "A_Expr", "BoolExpr",
        "NullTest", "BooleanTest", "CaseExpr", "CaseWhen", "CoalesceExpr", "MinMaxExpr", "TypeCast",
        "TypeName", "CollateClause", "A_ArrayExpr", "RowExpr", "ParamRef",
    }
)  # fmt: skip
"""Nodes whose value depends on one row. A function may be an aggregate, and is not among them; nor
is ``(x).f``, which may be ``f(x)``."""

_MORE_THAN_A_ROW: Final = (
    "distinctClause",
    "groupClause",
    "havingClause",
    "windowClause",
    "valuesLists",
    "sortClause",
    "limitCount",
    "limitOffset",
    "lockingClause",
    "withClause",
    "larg",
)


def row_by_row(node: Any, columns: Collection[str]) -> bool:
    """Tell whether each row of one table gives its own part of a SELECT's answer, or none.

    Then the answer for all rows is the answers for some of them, one after another. ``columns``
    are the table's.
    """
    query = getattr(node, "query", node)
    waiting: list[Any] = [query]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, ast.Node):
            if type(node).__name__ not in _ROW_BY_ROW:
                return False
            if isinstance(node, ast.SelectStmt) and (
                any(getattr(node, name) for name in _MORE_THAN_A_ROW)
                or len(node.fromClause or ()) != 1
            ):
                return False
            waiting.extend(children(node))
    return not _calls_an_attribute(query, columns)


def _calls_an_attribute(query: Any, columns: Collection[str]) -> bool:
    """Tell whether a SELECT over one table, or over such a SELECT, may call a function as ``t.f``.

    Where ``t`` has no column ``f``, that is ``f(t)``, and may be an aggregate.
    """
    chain = [query]
    while isinstance(chain[-1].fromClause[0], ast.RangeSubselect):
        chain.append(chain[-1].fromClause[0].subquery)
    known = set(columns)
    for select in reversed(chain):
        alias = select.fromClause[0].alias
        if alias is not None and alias.colnames:
            known = {name.sval for name in alias.colnames}
        waiting = [select.targetList, select.whereClause]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.A_Indirection):
                return True
            if isinstance(node, ast.ColumnRef) and len(node.fields) > 1:
                last = node.fields[-1]
                if isinstance(last, ast.String) and last.sval not in known:
                    return True
            waiting.extend(children(node))
        known = _output_names(select, known)
    return False


def _output_names(select: Any, known: set[str]) -> set[str]:
    """The columns of a SELECT, as far as its text names them; ``known`` are those it reads."""
    names: set[str] = set()
    for target in select.targetList or ():
        if target.name is not None:
            names.add(target.name)
        elif isinstance(target.val, ast.ColumnRef):
            last = target.val.fields[-1]
            names.update(known if isinstance(last, ast.A_Star) else (last.sval,))
    return names


def most_rows(query: Any) -> int | None:
    """Return the number a SELECT, or the one in a carrier, ends with as its LIMIT; None: none."""
    query = getattr(query, "query", query)
    counted = enums.LimitOption.LIMIT_OPTION_COUNT
    return _integer(query.limitCount) if query.limitOption == counted else None


def option_word(argument: Any) -> str | None:
    """An option's value in lower case; ``ANALYZE 0`` and ``ANALYZE false`` are written too."""
    if isinstance(argument, ast.String):
        return str(argument.sval).lower()
    return str(argument.ival) if isinstance(argument, ast.Integer) else None


def skipped_rows(query: Any) -> int | None:
    """Return the number of its OFFSET, 0 without one; None when it is not a plain number."""
    return 0 if query.limitOffset is None else _integer(query.limitOffset)


def _integer(node: Any) -> int | None:
    if isinstance(node, ast.A_Const) and isinstance(node.val, ast.Integer):
        return int(node.val.ival)
    return None


def _reads_as_is(query: Any) -> bool:
    others = (
        "distinctClause",
        "whereClause",
        "groupClause",
        "havingClause",
        "windowClause",
        "valuesLists",
        "sortClause",
        "withClause",
        "larg",
        "intoClause",
    )
    if any(getattr(query, name) for name in others) or len(query.fromClause or ()) != 1:
        return False
    if not isinstance(query.fromClause[0], (ast.RangeVar, ast.RangeSubselect)):
        return False
    waiting = list(query.targetList or ())
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FuncCall, ast.SubLink)):
            return False
        waiting.extend(children(node))
    return True


# --- where the query of a carrier stands ---------------------------------------------------------


def _query_extent(parsed: Parsed) -> tuple[int, int] | None:
    node, text = parsed.node, parsed.text
    tokens = list(scan(text))
    if not tokens:
        return None
    end = tokens[-1].end + 1
    if isinstance(node, ast.SelectStmt):
        return None if node.intoClause else (tokens[0].start, end)
    if isinstance(node, ast.ExplainStmt) and isinstance(node.query, ast.SelectStmt):
        index = _after_explain_options(tokens)
        return tokens[index].start, end
    if isinstance(node, ast.DeclareCursorStmt):
        index = next(i for i, token in enumerate(tokens) if token.name == "FOR")
        return tokens[index + 1].start, end
    if isinstance(node, ast.CopyStmt):
        first = next(i for i, token in enumerate(tokens) if token.name == "ASCII_40")
        last = _closing(tokens, first)
        return tokens[first + 1].start, tokens[last].start
    if isinstance(node, ast.CreateTableAsStmt) and isinstance(node.query, ast.SelectStmt):
        return _create_as_extent(tokens, end)
    return None


def argument_list(text: str) -> list[str]:
    """The texts of the arguments of ``EXECUTE name (…)``, wherever it stands in a statement."""
    tokens = list(scan(text))
    name = next(i for i, token in enumerate(tokens) if token.name == "EXECUTE") + 1
    opening = name + 1
    closing = _closing(tokens, opening)
    arguments: list[str] = []
    depth = 0
    start = tokens[opening].end + 1
    for token in tokens[opening : closing + 1]:
        if token.name in ("ASCII_40", "ASCII_91"):
            depth += 1
        elif token.name in ("ASCII_41", "ASCII_93"):
            depth -= 1
        if (token.name == "ASCII_44" and depth == 1) or (token.name == "ASCII_41" and depth == 0):
            arguments.append(text[start : token.start].strip())
            start = token.end + 1
    return arguments


def execute_extent(text: str) -> tuple[int, int]:
    """Where ``EXECUTE name (…)`` stands."""
    tokens = list(scan(text))
    first = next(i for i, token in enumerate(tokens) if token.name == "EXECUTE")
    last = first + 1
    if last + 1 < len(tokens) and tokens[last + 1].name == "ASCII_40":
        last = _closing(tokens, last + 1)
    return tokens[first].start, tokens[last].end + 1


def prepared_query(text: str) -> str:
    """The query of ``PREPARE name (types) AS query``."""
    tokens = list(scan(text))
    depth = 0
    for index, token in enumerate(tokens):
        if token.name == "ASCII_40":
            depth += 1
        elif token.name == "ASCII_41":
            depth -= 1
        elif token.name == "AS" and depth == 0:
            return text[tokens[index + 1].start : tokens[-1].end + 1].rstrip(";")
    raise SyntaxFault("PREPARE without AS")


def _after_explain_options(tokens: Sequence[Token]) -> int:
    index = 1
    if tokens[index].name == "ASCII_40" and tokens[index + 1].name not in (
        "SELECT",
        "WITH",
        "VALUES",
        "TABLE",
        "ASCII_40",
    ):
        return _closing(tokens, index) + 1
    while tokens[index].name in ("ANALYZE", "VERBOSE"):
        index += 1
    return index


def _create_as_extent(tokens: Sequence[Token], end: int) -> tuple[int, int] | None:
    depth = 0
    for index, token in enumerate(tokens):
        if token.name == "ASCII_40":
            depth += 1
        elif token.name == "ASCII_41":
            depth -= 1
        elif token.name == "AS" and depth == 0:
            words = [t.name for t in tokens[-3:]]
            if words[-1] == "DATA_P":
                back = 3 if words[-2] == "NO" else 2
                end = tokens[-back].start
            return tokens[index + 1].start, end
    return None


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].name == "ASCII_40":
            depth += 1
        elif tokens[index].name == "ASCII_41":
            depth -= 1
            if depth == 0:
                return index
    raise SyntaxFault("unbalanced parentheses")
