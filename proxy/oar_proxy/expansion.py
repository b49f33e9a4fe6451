"""From groups an owner counted back to rows: the same aggregates, over values that are made up.

Pure: SQL text over what :class:`oar_adapters.interface.Partial` tells of a column in each group. As
many values as were counted, the minimum and the maximum among them, the others the mean of what
then is left of the sum, in whole units of the column's last digit; the rest NULL. A mean lies
between minimum and maximum, so every value is one the column's type has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from oar_adapters.interface import Partial, base_type

from oar_proxy.sql.text import built_in_type
from oar_proxy.uses import CONSTANTS

_MODIFIED = re.compile(r"numeric\(\d+,(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one column in the rows of a group, made of ``partial``'s outputs.

    Those are columns of a relation, named by :attr:`inputs`; ``prefix`` tells them from others'.
    """

    partial: Partial
    prefix: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names for the partial's outputs, in their order."""
        told = (f for f in ("sum", "min", "max") if f in self.partial.functions)
        return tuple(f"{self.prefix}_{name}" for name in ("count", *told))

    def once(self, group: str) -> tuple[tuple[str, str], ...]:
        """What is computed once a group, over alias ``group``: names and expressions.

        All values there are, of the column's own type, so that a row has only to pick one.
        """
        type_, scale = built_in_type(self.partial.column.type), self._scale
        extremes = self._extremes
        named = [(f"{self.prefix}_{e}_", f"{group}.{self.prefix}_{e}::{type_}") for e in extremes]
        if "sum" not in self.partial.functions:
            return tuple(named)
        left = " - ".join(f"{group}.{self.prefix}_{name}" for name in ("sum", *extremes))
        units = f"({left}) * {_power(scale)}" if scale else left
        number = f"{group}.{self.prefix}_count - {len(extremes)}"
        number = f"NULLIF(GREATEST({number}, 0), 0)::pg_catalog.numeric"
        each, more = (f"pg_catalog.{f}({units}, {number})" for f in ("div", "mod"))
        further = f"{each} + pg_catalog.sign({more})"
        if scale:
            each, further = (f"({e}) * {_power(-scale)}" for e in (each, further))
        # A sum that is not a number is shared evenly.
        most = f"COALESCE(NULLIF(pg_catalog.abs({more}), 'NaN'), 0)::bigint"
        return (
            *named,
            (f"{self.prefix}_each", f"({each})::{type_}"),
            (f"{self.prefix}_next", f"({further})::{type_}"),
            (f"{self.prefix}_more", f"{len(extremes)} + {most}"),
        )

    def value(self, row: str) -> str:
        """The value in row number ``i`` (from 1) of its group, over alias ``row``."""
        name, type_ = f"{row}.{self.prefix}", self.partial.column.type
        values = [f"{name}_{e}_" for e in self._extremes]
        if "sum" in self.partial.functions:
            values.append(f"{name}_each")
        if not values:
            values.append(f"{CONSTANTS[base_type(type_)]}::{built_in_type(type_)}")
        *placed, other = values
        cases = [f"WHEN {row}.i > {name}_count THEN NULL"]
        cases += [f"WHEN {row}.i = {i} THEN {e}" for i, e in enumerate(placed, start=1)]
        if "sum" in self.partial.functions:
            cases.append(f"WHEN {row}.i <= {name}_more THEN {name}_next")
        return f"CASE {' '.join(cases)} ELSE {other} END"

    @property
    def single(self) -> str:
        """The input that is enough where each group is one row."""
        return self.inputs[-1]

    def only(self, group: str) -> str:
        """The value where each group is one row, over alias ``group``."""
        type_ = self.partial.column.type
        if self.partial.functions:
            return f"{group}.{self.single}::{built_in_type(type_)}"
        constant = CONSTANTS[base_type(type_)]
        return f"(CASE WHEN {group}.{self.single} > 0 THEN {constant} END)::{built_in_type(type_)}"

    @property
    def _extremes(self) -> Sequence[str]:
        return [f for f in ("min", "max") if f in self.partial.functions]

    @property
    def _scale(self) -> int:
        modified = _MODIFIED.fullmatch(self.partial.column.type)
        return int(modified[1]) if modified else 0


def _power(scale: int) -> str:
    """Ten to a power, as a constant."""
    return f"1e{scale}::pg_catalog.numeric"
