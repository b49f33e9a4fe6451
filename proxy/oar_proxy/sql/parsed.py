"""What a parsed statement refers to, and where: relations, calls of ours, parameters, columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from oar_proxy.sql.text import Edit, query_extent, quote_identifier
from oar_proxy.sql.tree import ast, collates_otherwise

CallName = Literal["oar_ask", "oar_ask_json", "oar_explain"]
CallPlace = Literal["from", "select", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A name in FROM (or as a join or USING source) that no CTE of the statement explains.

    ``start``/``end`` delimit the name in the text, with what has to go together with it. ``whole``:
    every column may be used. ``command``: it stands in ``TABLE name``. ``as_value``: a row of it
    may be used as one value (``SELECT t``). ``only``: without what inherits from it (``ONLY t``).
    """

    schema: str | None
    name: str
    alias: str | None
    start: int
    end: int
    whole: bool
    command: bool = False
    as_value: bool = False
    only: bool = False

    def replace(self, query: str, row_type: str | None = None) -> Edit:
        """Put a derived table in the place of the name, with rows of a composite type if given."""
        lead = "SELECT * FROM " if self.command else ""
        name = "" if self.alias is not None else f" AS {quote_identifier(self.name)}"
        rows = f"(\n{query}\n)"
        if row_type is not None:
            # A derived table's row is a record; one that a function returns keeps its type.
            rows = f"pg_catalog.unnest(ARRAY(SELECT ROW(r.*)::{row_type} FROM {rows} AS r))"
        return Edit(self.start, self.end, f"{lead}{rows}{name}")

    @property
    def reference(self) -> str:
        """What the statement calls it."""
        return self.alias or self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of our functions. ``argument`` is the literal, ``parameter`` its number.

    ``columns`` are the names in its column definition list; such a call stands ``elsewhere``.
    """

    name: CallName
    argument: str | None
    parameter: int | None
    start: int
    end: int
    place: CallPlace
    alias: str | None = None
    columns: tuple[str, ...] = ()

    def replace(self, query: str) -> Edit:
        """Put a query in the place of the call, in FROM or as all there is to select."""
        # A line break ends a comment that may close the query.
        rows = f"(\n{query.rstrip().rstrip(';')}\n)"
        if self.place == "select":
            return Edit(self.start, self.end, f"* FROM {rows} AS {quote_identifier(self.name)}")
        name = "" if self.alias else f" AS {quote_identifier(self.name)}"
        return Edit(self.start, self.end, rows + name)


@dataclass(frozen=True)
class Parsed:
    """One statement and what it refers to."""

    text: str
    node: Any = field(repr=False)
    at: int = 0
    """Where it begins in the query string."""
    relations: tuple[Relation, ...] = ()
    targets: tuple[Relation, ...] = ()
    """Relations the statement would write to."""
    calls: tuple[Call, ...] = ()
    parameters: tuple[tuple[int, int, int], ...] = ()
    """(number, start, end) of each ``$n``."""
    nameless: tuple[tuple[int, int], ...] = ()
    """(number, end) of what is selected and is a ``$n``, without a name of its own."""
    merged: frozenset[str] = frozenset()
    """Names after USING, and of fields of rows: columns of any relation."""
    attributes: frozenset[tuple[str, str]] = frozenset()
    """Qualifier and name of each column: where no column has the name, ``t.f`` is ``f(t)``. A star
    that makes one value of a row (``count((t.*))``) stands for a name."""
    bare: frozenset[str] = frozenset()
    """Names of columns without a qualifier: where no column has the name, it is a whole row."""
    qualified: tuple[tuple[str, str, int, int], ...] = ()
    """(schema, table, start, end) of each schema before a column: ``public.`` in ``public.t.a``."""
    locked: frozenset[int] = frozenset()
    """Where relations are named of which FOR UPDATE, or the like, may lock rows."""

    @property
    def kind(self) -> str:
        """The node's name, such as ``SelectStmt``."""
        return type(self.node).__name__

    def may_use(self, relation: Relation, column: str) -> bool:
        """Tell whether a column of that name may be used under a relation's name here."""
        return (
            relation.whole
            or column in self.bare
            or column in self.merged
            or (relation.reference, column) in self.attributes
        )

    @property
    def unbound(self) -> tuple[int, int] | None:
        """Number and place of its first ``$n``, unless that is given by an EXECUTE."""
        if not self.parameters or isinstance(self.node, ast.PrepareStmt):
            return None
        number, start, _ = min(self.parameters, key=lambda parameter: parameter[1])
        return number, start

    def given(self, values: Mapping[int, str]) -> list[Edit]:
        """Put values, as typed literals, in the place of the parameters that they are for.

        PostgreSQL names a column that is such a literal after its type, and one that is a parameter
        ``?column?``: what it was called before it is called then, too.
        """
        return [
            *(Edit(start, end, values[n]) for n, start, end in self.parameters if n in values),
            *(Edit(end, end, ' AS "?column?"') for n, end in self.nameless if n in values),
        ]

    @cached_property
    def query_extent(self) -> tuple[int, int] | None:
        """Where the SELECT of the statement stands, None when it has no single one to point at."""
        return query_extent(self.node, self.text)

    @property
    def query(self) -> Any:
        """The SELECT that stands there."""
        node = self.node
        while not isinstance(node, ast.SelectStmt):
            node = node.query
        return node

    @cached_property
    def collates_otherwise(self) -> bool:
        """Whether some COLLATE in it may compare text other than by its code points."""
        return collates_otherwise(self.node)
