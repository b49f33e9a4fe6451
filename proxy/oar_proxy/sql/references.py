"""Finding in a parse tree what the statement refers to, and in its tokens where that stands."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from pglast.parser import Token, scan

from oar_proxy.sql.parsed import Call, CallName, CallPlace, Parsed, Relation
from oar_proxy.sql.tree import ast, children, direct_relations, enums, locked_relations

_ARGUMENTS: Final[dict[CallName, str]] = {
    "oar_ask": "question",
    "oar_ask_json": "question",
    "oar_explain": "statement",
}
"""Our functions, and what each calls its argument."""

_CALL_SCHEMAS: Final = (None, "public", "oar")

_CHANGES: Final = (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt, ast.MergeStmt)
_WITH: Final = (ast.SelectStmt, *_CHANGES)


@dataclass
class _Reader:
    tokens: list[Token]
    relations: list[tuple[Any, bool]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    parameters: list[tuple[int, int, int]] = field(default_factory=list)
    nameless: list[tuple[int, int]] = field(default_factory=list)
    merged: set[str] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    attributes: set[tuple[str, str]] = field(default_factory=set)
    starred: set[int] = field(default_factory=set)
    qualified: list[tuple[str, str, int, int]] = field(default_factory=list)
    everything: bool = False
    locked: set[int] = field(default_factory=set)

    def token_at(self, position: int) -> int:
        return bisect_left(self.tokens, position, key=attrgetter("start"))

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
                    self.starred.update(map(id, direct_relations(node.fromClause)))
                else:
                    self.references.add(value.fields[-2].sval)
                    self.prefix(value)
            elif value is sole and sole is not None:
                self.call(sole, "select", None, ctes)
            else:
                self.target(target, ctes)
        self.locked.update(locked_relations(node))
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
                self.attributes.add((fields[-2].sval, "*"))
            return
        if len(fields) == 1:
            self.bare.add(fields[0].sval)
        else:
            self.attributes.add((fields[-2].sval, fields[-1].sval))

    def prefix(self, node: Any) -> None:
        """Remember where a column is qualified by schema: an alias has none."""
        if len(node.fields) == 3:
            token = self.token_at(node.location)
            start, end = self.tokens[token].start, self.tokens[token + 2].start
            self.qualified.append((node.fields[0].sval, node.fields[1].sval, start, end))

    def several(self, node: Any, ctes: frozenset[str]) -> None:
        """Visit the source of ``SET (a, b) = …`` once: the tree has it for each column."""
        if node.colno == 1:
            self.visit(node.source, ctes)

    def indirection(self, node: Any, ctes: frozenset[str]) -> None:
        self.merged.update(
            part.sval for part in node.indirection or () if isinstance(part, ast.String)
        )
        self.visit(node.arg, ctes)
        self.visit(node.indirection, ctes)

    def join(self, node: Any, ctes: frozenset[str]) -> None:
        if node.isNatural or node.alias is not None:
            # The alias may be used as a row, or with a star.
            self.starred.update(map(id, direct_relations((node,))))
        self.merged.update(name.sval for name in node.usingClause or ())
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
                columns = tuple(column.colname for column in node.coldeflist or ())
                self.call(function, "from" if plain else "elsewhere", alias, ctes, columns)
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
        place: CallPlace,
        alias: str | None,
        ctes: frozenset[str],
        columns: tuple[str, ...] = (),
    ) -> None:
        name = _call_name(node)
        assert name is not None
        literal, parameter = None, None
        if len(node.args or ()) == 1:
            argument = node.args[0]
            if isinstance(argument, ast.NamedArgExpr) and argument.name == _ARGUMENTS[name]:
                argument = argument.arg
            while isinstance(argument, ast.TypeCast):
                argument = argument.arg
            if isinstance(argument, ast.A_Const) and isinstance(argument.val, ast.String):
                literal = argument.val.sval
            elif isinstance(argument, ast.ParamRef):
                parameter = argument.number
        start, end = self.call_extent(node.location)
        self.calls.append(Call(name, literal, parameter, start, end, place, alias, columns))
        self.visit(node.args, ctes)

    def parameter(self, node: Any, ctes: frozenset[str]) -> None:
        del ctes
        token = self.tokens[self.token_at(node.location)]
        self.parameters.append((node.number, token.start, token.end + 1))

    def target(self, node: Any, ctes: frozenset[str]) -> None:
        parameter = node.val
        while isinstance(parameter, ast.CollateClause) or _is_subscripted(parameter):
            parameter = parameter.arg
        if node.name is None and isinstance(parameter, ast.ParamRef):
            self.nameless.append((parameter.number, self.target_end(node.location)))
        for child in children(node):
            self.visit(child, ctes)

    def target_end(self, position: int) -> int:
        """Return where something that is selected ends, which has no word but COLLATE in it."""
        index = self.token_at(position)
        depth = 0
        for token in self.tokens[index:]:
            depth += token.name in _OPENING
            depth -= token.name in _CLOSING
            closed = depth < 0 or (depth == 0 and token.name in _BEHIND_A_TARGET)
            if closed or token.name == "ASCII_59":
                break
            index += 1
        return int(self.tokens[index - 1].end) + 1

    def into(self, node: Any, ctes: frozenset[str]) -> None:
        """The relation of SELECT INTO or CREATE TABLE AS is new, not read."""

    def relation(self, node: Any, renamed: bool) -> Relation:
        start, end = self.name_extent(node.location)
        before = self.token_at(start) - 1
        command = before >= 0 and self.tokens[before].name == "TABLE"
        if command:
            start = self.tokens[before].start
        alias = node.alias.aliasname if node.alias else None
        reference = alias or node.relname
        whole = (
            self.everything
            or renamed
            or id(node) in self.starred
            or reference in self.references
            or reference in self.bare
        )
        # Under names of its own, a column of the table's name does not hide the row.
        as_value = renamed and reference in self.bare
        return Relation(
            schema=node.schemaname,
            name=node.relname,
            alias=alias,
            start=start,
            end=end,
            whole=whole,
            command=command,
            as_value=as_value,
            only=not node.inh,
        )


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
    ast.MultiAssignRef: _Reader.several,
    ast.JoinExpr: _Reader.join,
    ast.RangeFunction: _Reader.range_function,
    ast.FuncCall: _Reader.function,
    ast.ParamRef: _Reader.parameter,
    ast.ResTarget: _Reader.target,
    ast.IntoClause: _Reader.into,
}

_CARRIERS = (
    ast.SelectStmt,
    *_CHANGES,
    ast.CopyStmt,
    ast.DeclareCursorStmt,
    ast.CreateTableAsStmt,
    ast.ExplainStmt,
    ast.PrepareStmt,
    ast.ExecuteStmt,
    ast.ViewStmt,
)
"""Statement forms that can hold a query; the hub judges every other form by itself."""


def describe(text: str, node: Any, at: int) -> Parsed:
    """Describe one statement: its text, its tree, and where it begins in the query string."""
    if not isinstance(node, _CARRIERS):
        return Parsed(text, node, at)
    reader = _Reader(list(scan(text)))
    if isinstance(node, (ast.CopyStmt, ast.ViewStmt)):
        reader.visit(node.query, frozenset())
    else:
        reader.visit(node, frozenset())
    return Parsed(
        text=text,
        node=node,
        at=at,
        relations=tuple(reader.relation(rel, renamed) for rel, renamed in reader.relations),
        targets=tuple(reader.relation(rel, False) for rel in reader.targets),
        calls=tuple(reader.calls),
        parameters=tuple(reader.parameters),
        nameless=tuple(reader.nameless),
        merged=frozenset(reader.merged),
        attributes=frozenset(reader.attributes),
        bare=frozenset(reader.bare),
        qualified=tuple(reader.qualified),
        locked=frozenset(reader.locked),
    )


_OPENING: Final = ("ASCII_40", "ASCII_91")
_CLOSING: Final = ("ASCII_41", "ASCII_93")
_BEHIND_A_TARGET: Final = frozenset(
    {
        "ASCII_44",
        "INTO",
        "FROM",
        "WHERE",
        "GROUP_P",
        "HAVING",
        "WINDOW",
        "UNION",
        "INTERSECT",
        "EXCEPT",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "FETCH",
        "FOR",
        "ON",
    }
)


def _is_subscripted(node: Any) -> bool:
    """Tell whether it is ``x[1]``: fields would give it a name."""
    return isinstance(node, ast.A_Indirection) and not any(
        isinstance(part, ast.String) for part in node.indirection
    )


def _call_name(node: Any) -> CallName | None:
    parts = [part.sval for part in node.funcname]
    schema = parts[-2] if len(parts) > 1 else None
    if schema not in _CALL_SCHEMAS:
        return None
    return next((name for name in _ARGUMENTS if name == parts[-1]), None)


def _sole_call(node: Any) -> Any | None:
    """The call in ``SELECT oar_ask('…')`` where nothing else is selected from anywhere."""
    targets: Any = node.targetList or ()
    if len(targets) != 1 or node.fromClause or node.whereClause or node.groupClause:
        return None
    target = targets[0]
    if target.name is None and isinstance(target.val, ast.FuncCall) and _call_name(target.val):
        return target.val
    return None
