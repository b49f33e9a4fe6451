"""Random statements over a world's tables, of the shapes the rule table tells apart.

What a statement answers is always determined by its rows: LIMIT stands above an ORDER BY of every
output, DISTINCT ON and order-dependent windows sort by everything, and nothing is computed whose
value depends on the order of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from oar_bench.fuzz.expressions import Query
from oar_bench.fuzz.world import World
from oar_bench.fuzz.writing import WritingWriter

MODES: Final = (
    *("simple", "parameters", "prepared", "cursor", "execute", "copy", "table as", "writing"),
)
_MODE_WEIGHTS: Final = (42, 13, 12, 11, 6, 4, 4, 8)

_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Case:
    """A statement, how it is sent, and what is known of its answer.

    ``arguments`` are one list of parameters an execution. ``ordered``: rows come in this order.
    ``loose``: sums of floats may differ in their last digits. ``exact``: so may no number, not even
    in zeros behind the point. ``fallible``: rows may bring about errors, and which of them is met
    first is not determined.
    """

    sql: str
    mode: str
    tables: frozenset[str]
    arguments: tuple[tuple[str | None, ...], ...] = ((),)
    ordered: bool = False
    loose: bool = False
    exact: bool = False
    fallible: bool = False


def random_case(random: Random, world: World) -> Case:
    """Draw a statement over the world's tables."""
    (mode,) = random.choices(MODES, _MODE_WEIGHTS)
    if mode == "copy" and "extra_float_digits" in world.settings:
        mode = "simple"  # COPY is refused there: literals would lose digits
    parameters = mode in ("parameters", "prepared", "execute")
    while True:
        writer = _StatementWriter(random, world, parameters=parameters)
        sql, ordered = (writer.writing(), False) if mode == "writing" else writer.statement()
        if writer.tables:
            break
    sql, families = _renumbered(sql, writer.parameters)
    runs = 2 if mode in ("prepared", "execute") else 1
    arguments = tuple(tuple(map(writer.value, families)) for _ in range(runs))
    return Case(
        sql=sql,
        mode=mode,
        tables=frozenset(writer.tables),
        arguments=arguments,
        ordered=ordered,
        loose=writer.loose,
        exact=writer.exact,
    )


def _renumbered(sql: str, families: Sequence[str]) -> tuple[str, list[str]]:
    """Number the parameters from 1: some were drawn for a part that was not written after all."""
    used = sorted({int(number) for number in _PARAMETER.findall(sql)})
    places = {number: place for place, number in enumerate(used, start=1)}
    text = _PARAMETER.sub(lambda match: f"${places[int(match[1])]}", sql)
    return text, [families[number - 1] for number in used]


class _StatementWriter(WritingWriter):
    def statement(self) -> tuple[str, bool]:
        """Return a statement and whether its rows are in a determined order."""
        depth = self.random.choice((1, 2, 2, 3, 3))
        if self.chance(0.35):
            wide = self.wide()
            if wide is not None:
                return self._top(wide)
        if self.chance(0.45):
            directed = self._directed()
            if directed is not None:
                return self._top(directed)
        self.exact = False
        kind = self.pick({"select": 74, "set": 8, "with": 12, "values": 2, "recursive": 4})
        if kind == "with":
            return self._with(depth)
        if kind == "recursive":
            return self._recursive()
        if kind == "values":
            rows = ", ".join(f"({self.scalar([], 1, 'int')}, 'v{n}')" for n in range(2))
            return f"VALUES {rows}", False
        query = self._set_operation(depth, [], None) if kind == "set" else None
        return self._top(query or self._select(depth, [], None, top=True))

    def _top(self, query: Query) -> tuple[str, bool]:
        if query.ordered:
            return query.sql, True
        if not query.columns or not self.chance(0.35):
            return query.sql, False
        return f"{query.sql}{self._order(query, 0.5)}", True

    def _with(self, depth: int) -> tuple[str, bool]:
        parts = []
        for _ in range(self.random.choice((1, 1, 2))):
            query = self.query(max(depth - 1, 1), [], None)
            name = self._cte_name()
            how = self.random.choice(("", "", "", "MATERIALIZED ", "NOT MATERIALIZED "))
            parts.append(f"{name} AS {how}({query.sql})")
            self._ctes.append((name, query.columns))
        self._relations = max(self._relations, 3)
        main, ordered = self._top(self._select(depth, [], None, top=True))
        return f"WITH {', '.join(parts)} {main}", ordered

    def _recursive(self) -> tuple[str, bool]:
        start, step = self._base(), self._base()
        key = self._of(start.columns, ["int"])
        links = [c for c in step.columns if c.family == "int"]
        if key is None or len(links) < 2:
            return self._top(self._select(2, [], None, top=True))
        near, far = self.random.sample(links, 2)
        name = self.alias("r")
        where = self._where(start, [], 1)
        sql = (
            f"WITH RECURSIVE {name}(k) AS (SELECT {key.ref}::numeric FROM {start.sql}{where} "
            f"UNION SELECT {far.ref}::numeric FROM {step.sql} "
            f"JOIN {name} ON {near.ref} = {name}.k) SELECT k FROM {name}"
        )
        if self.chance(0.4):
            other = self._base()
            column = self._of(other.columns, ["int", "num"])
            if column is not None:
                sql = f"{sql} JOIN {other.sql} ON {column.ref} = {name}.k"
        return sql, False
