"""What writers of statements over columns of every type share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from oar_adapters.interface import base_type

from oar_bench.fuzz.samples import sample
from oar_bench.fuzz.statements import Case
from oar_bench.fuzz.world import Table, World, quote

Form = Callable[[], str]
"""Writes a statement when it is chosen."""

_PLAINLY: Final = ("simple", "simple", "simple", "prepared", "cursor", "copy")
_WITH_PARAMETERS: Final = ("parameters", "prepared", "execute")


class TypedWriter:
    """Two tables, ``a`` and ``b``, mostly of two owners, and constants that may be parameters."""

    def __init__(self, random: Random, world: World, *, wild: bool) -> None:
        self.random = random
        self.wild = wild
        self.world = world
        self.first, self.second = random.sample(world.tables, 2)
        self._as_parameters = random.random() < 0.3
        self._given: list[str] = []

    def pick(self, *texts: str) -> str:
        return self.random.choice(texts)

    def join(self) -> str:
        return self.pick("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN")

    @property
    def of_a(self) -> str:
        return f"{self.first.name} AS a"

    @property
    def of_b(self) -> str:
        return f"{self.second.name} AS b"

    def constant(self, type_: str, value: str | None = None) -> str:
        """Write a constant of a type, or a parameter."""
        given = sample(self.random, type_, wild=self.wild) if value is None else value
        if self._as_parameters and self.random.random() < 0.7:
            self._given.append(given)
            return f"${len(self._given)}::{type_}"
        return f"{quote(given)}::{type_}"

    def written(self, forms: Mapping[str, Form], *, loose: bool = False) -> Case:
        """Choose a form; rows of those whose name begins with ``order`` come in an order."""
        name = self.random.choice(list(forms))
        sql = forms[name]()
        mode = self.random.choice(_WITH_PARAMETERS if self._given else _PLAINLY)
        if mode == "copy" and "extra_float_digits" in self.world.settings:
            mode = "simple"  # refused there: literals would lose digits
        return Case(
            sql=sql,
            mode=mode,
            tables=frozenset({table.name for table in (self.first, self.second)}),
            arguments=(tuple(self._given),) * (2 if mode in ("prepared", "execute") else 1),
            ordered=name.startswith("order"),
            loose=loose,
            fallible=True,
        )


def columns_of(table: Table, type_: str) -> list[str]:
    """Return the names of a table's columns of a type, whatever its modifier."""
    plain = base_type(type_)
    return [c.name for c in table.columns if c.name != "id" and base_type(c.type) == plain]
