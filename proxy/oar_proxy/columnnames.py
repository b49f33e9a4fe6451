"""What the names in a query mean: the columns that each is made of, however they are renamed.

Pure, and without regard to rows. Where it is not clear which of several columns a name is, it is
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oar_proxy.sql.tree import ast


@dataclass(frozen=True, slots=True)
class Base:
    """A column of one relation in the statement, by where that is named, or an aggregate of it."""

    place: int
    name: str
    aggregated: bool = False


Bases = frozenset[Base]
NONE: Final[Bases] = frozenset()


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a relation or query, and what it is made of; ``name`` None: it may be any.

    ``several``: it stands for columns whose number is not known.
    """

    name: str | None
    bases: Bases
    several: bool = False


Outputs = list[Output]


@dataclass(frozen=True, slots=True)
class Item:
    """What FROM names."""

    name: str | None
    outputs: tuple[Output, ...]

    @property
    def bases(self) -> Bases:
        """What the whole row is made of."""
        return all_of(self.outputs)

    def find(self, column: str) -> Bases | None:
        """What its column of that name may be made of, None where it has none."""
        found = [output.bases for output in self.outputs if output.name in (None, column)]
        return NONE.union(*found) if found else None


@dataclass(frozen=True, slots=True)
class Scope:
    """The names a query sees. ``open``: columns of the query around it may be compared inside."""

    items: tuple[Item, ...] = ()
    parent: Scope | None = None
    open: bool = False
    ctes: Mapping[str, tuple[Output, ...]] = field(default_factory=dict)

    def cte(self, name: str) -> tuple[Output, ...] | None:
        """Return the columns of a CTE."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.ctes:
                return scope.ctes[name]
            scope = scope.parent
        return None

    def resolve(self, node: Any) -> Reference | None:
        """Tell what a ColumnRef means; None where that cannot be told."""
        names = [part.sval for part in node.fields if isinstance(part, ast.String)]
        starred = len(names) < len(node.fields)
        if not names:
            return Reference(NONE.union(*(item.bases for item in self.items)), False, False)
        if len(names) == 1 and not starred:
            return self.find(names[0])
        found = self.named(names[-1 if starred else -2])
        if found is None:
            return None
        item, far = found
        bases = None if starred else item.find(names[-1])
        # Where there is no such column, t.f is a function of the whole row.
        return Reference(item.bases if bases is None else bases, bases is not None, far)

    def find(self, name: str) -> Reference | None:
        """Look a name up from the inside: a column or, where no query has one, a whole row."""
        scope: Scope | None = self
        far, bare, found_far, found = False, True, False, False
        maybe: Bases = NONE
        while scope is not None:
            columns = [bases for i in scope.items if (bases := i.find(name)) is not None]
            known = any(o.name == name for item in scope.items for o in item.outputs)
            rows = [] if known else [i.bases for i in scope.items if i.name == name]
            if columns or rows:
                maybe = maybe.union(*columns, *rows)
                found, found_far, bare = True, found_far or far, bare and not rows
            if known:
                break
            far = far or not scope.open
            scope = scope.parent
        return Reference(maybe, bare, found_far) if found else None

    def named(self, name: str) -> tuple[Item, bool] | None:
        """Return what FROM calls so, and whether that is too far out."""
        scope: Scope | None = self
        far = False
        while scope is not None:
            found = [item for item in scope.items if item.name == name]
            if found:
                outputs = tuple(output for item in found for output in item.outputs)
                return Item(name, outputs), far
            far = far or not scope.open
            scope = scope.parent
        return None


@dataclass(frozen=True, slots=True)
class Reference:
    """What a name means. ``bare``: one column, and not a whole row. ``far``: from too far out."""

    bases: Bases
    bare: bool
    far: bool


def all_of(outputs: Iterable[Output]) -> Bases:
    """What some columns are made of together."""
    return NONE.union(*(output.bases for output in outputs))


def unknown(place: int) -> Output:
    """The columns of something whose columns are not known."""
    return Output(None, frozenset({Base(place, "*")}), True)


def renamed(outputs: Sequence[Output], names: Any) -> tuple[Output, ...]:
    """Rename the first columns."""
    given = [name.sval for name in names or ()]
    if given and any(output.several for output in outputs):
        return (Output(None, all_of(outputs), True),)
    named = [replace(o, name=name) for o, name in zip(outputs, given, strict=False)]
    return (*named, *outputs[len(named) :])
