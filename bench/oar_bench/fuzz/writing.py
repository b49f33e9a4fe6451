"""Statements that write a session's own table by what owners hold.

What is written is determined by the rows that are read: each row of the table is set to the same
values whichever of several rows it meets.
"""

from __future__ import annotations

from typing import Final

from oar_bench.fuzz.expressions import AND, Col, From
from oar_bench.fuzz.wide import WideWriter
from oar_bench.fuzz.world import POOLS, quote

WRITTEN: Final = "written"
"""The session's own table."""

_ROWS: Final = ", ".join(
    f"({quote(key)}, {number % 3}, {quote(POOLS['text'][number])})"
    for number, key in enumerate(POOLS["int"])
)
CREATE_WRITTEN: Final = (
    f"CREATE TEMP TABLE {WRITTEN} (k bigint, n numeric, t text)",
    f"INSERT INTO {WRITTEN} VALUES {_ROWS}, (NULL, 1, 'a'), (5, NULL, NULL)",
)

_KEYS: Final = ("int", "num")
_TARGET: Final = (Col("w.k", "int", True), Col("w.n", "num", True))


class WritingWriter(WideWriter):
    """Writes INSERT, UPDATE, DELETE and MERGE, also in a WITH."""

    def writing(self) -> str:
        """Write one."""
        kind = self.pick({"insert": 20, "update": 25, "delete": 20, "merge": 25, "with": 10})
        if kind == "insert":
            return self._insert()
        if kind == "merge":
            return self._merge()
        if kind == "update":
            return self._update() + self.random.choice(("", "", " RETURNING w.k, w.t"))
        if kind == "delete":
            return self._delete() + self.random.choice(("", "", " RETURNING w.*"))
        reader = self._base()
        key = self._of(reader.columns, _KEYS)
        on = "true" if key is None else f"{key.ref} = changed.k"
        change = self._delete() if self.chance(0.5) else self._update()
        return (
            f"WITH changed AS ({change} RETURNING w.k) SELECT count(*), count(DISTINCT changed.k) "
            f"FROM changed {self.random.choice(('JOIN', 'LEFT JOIN'))} {reader.sql} ON {on}"
        )

    def _insert(self) -> str:
        query = self.wide() if self.chance(0.4) else self._directed()
        source = self._renamed(query or self.query(2, [], None), self.alias("q"))
        value = self._of(source.columns, ("int", "text", "date", "bool"))
        written = "'read'" if value is None else f"{value.ref}::text"
        into = f"INSERT INTO {WRITTEN} (t) SELECT {written} FROM {source.sql}"
        return into + self.random.choice(("", "", " RETURNING t", " ON CONFLICT DO NOTHING"))

    def _update(self) -> str:
        form = self.pick({"from": 60, "subquery": 20, "assigned": 20})
        if form == "assigned":
            source = self._base()
            key = self._of(source.columns, _KEYS) or Col("7", "int", True)
            where = self._where_of(source, f"{key.ref} = w.k")
            found = f"(SELECT count(*), min({key.ref})::text FROM {source.sql}{where})"
            return f"UPDATE {WRITTEN} AS w SET (n, t) = {found}{self._own_where()}"
        change = f"UPDATE {WRITTEN} AS w SET t = 'hit', n = w.n + 1"
        if form == "subquery":
            return f"{change} WHERE {self._within()}"
        source, condition = self._met()
        return f"{change} FROM {source.sql} WHERE {condition}"

    def _delete(self) -> str:
        if self.chance(0.35):
            return f"DELETE FROM {WRITTEN} AS w WHERE {self._within()}"
        source, condition = self._met()
        return f"DELETE FROM {WRITTEN} AS w USING {source.sql} WHERE {condition}"

    def _merge(self) -> str:
        source = self._joined()
        key = self._of(source.columns, _KEYS) or Col("7", "int", True)
        where = self._where_of(source)
        name = self.alias("m")
        using = f"(SELECT DISTINCT {key.ref}::numeric AS c FROM {source.sql}{where}) AS {name}"
        whens = []
        if self.chance(0.8):
            own = f" AND {self._simple_condition(_TARGET)}" if self.chance(0.4) else ""
            does = self.random.choice(("UPDATE SET t = 'met'", "DELETE", "DO NOTHING"))
            whens.append(f"WHEN MATCHED{own} THEN {does}")
        if self.chance(0.6) or not whens:
            whens.append(f"WHEN NOT MATCHED THEN INSERT (n, t) VALUES ({name}.c, 'new')")
        if self.chance(0.4):
            does = self.random.choice(("UPDATE SET t = 'alone'", "DELETE"))
            whens.append(f"WHEN NOT MATCHED BY SOURCE THEN {does}")
        on = f"{name}.c = w.k" + self.random.choice(("", "", " AND w.n > 0"))
        return f"MERGE INTO {WRITTEN} AS w USING {using} ON {on} {' '.join(whens)}"

    def _joined(self) -> From:
        """One table, or two that are joined."""
        source = self._base()
        return self._join(source, 1, []) if self.chance(0.5) else source

    def _met(self) -> tuple[From, str]:
        """What rows of the table are met with, and the condition."""
        source = self._joined()
        key = self._of(source.columns, _KEYS)
        conditions = [*source.where]
        if key is not None and self.chance(0.9):
            conditions.append(f"{self.random.choice(_TARGET).ref} = {key.ref}")
        if not conditions or self.chance(0.6):
            conditions.append(self._simple_condition(source.columns))
        if self.chance(0.3):
            conditions.append(self._simple_condition(_TARGET))
        return source, AND.join(f"({each})" for each in conditions)

    def _within(self) -> str:
        """A condition with a query of owners' rows."""
        source = self._joined()
        key = self._of(source.columns, _KEYS) or Col("7", "int", True)
        negated = self.random.choice(("", "", "NOT "))
        if self.chance(0.5):
            where = self._where_of(source, f"{key.ref} = w.k")
            return f"{negated}EXISTS (SELECT 1 FROM {source.sql}{where})"
        return f"w.k {negated}IN (SELECT {key.ref} FROM {source.sql}{self._where_of(source)})"

    def _where_of(self, source: From, *conditions: str) -> str:
        held = [*source.where, *conditions]
        if self.chance(0.6):
            held.append(self._simple_condition(source.columns))
        return f" WHERE {AND.join(f'({each})' for each in held)}" if held else ""

    def _own_where(self) -> str:
        return f" WHERE {self._simple_condition(_TARGET)}" if self.chance(0.3) else ""
