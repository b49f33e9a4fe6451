"""A session at the hub of the proxy's own, in which queries are read and answered for others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from oar_adapters.interface import Cell
from oar_policies.model import Subject
from psycopg import AsyncConnection, AsyncRawCursor, AsyncRawServerCursor, sql
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format
from psycopg.rows import TupleRow

from oar_proxy.federation import Execution, Parameter
from oar_proxy.sessionstate import SESSION_STATE, SessionState
from oar_proxy.sql.parsed import Parsed
from oar_proxy.sql.tree import function_names

Scalar = str | int | float | bool | None

_STABLE: Final = (
    "age array_agg concat concat_ws date_part date_trunc extract format json_agg json_build_array "
    "json_build_object jsonb_agg jsonb_build_array jsonb_build_object now overlaps timezone "
    "to_char to_date to_json to_jsonb to_number to_timestamp"
)
"""Functions that depend on a setting such as the time zone, and touch nothing."""

_UNSAFE_FUNCTIONS: Final = """
SELECT name FROM pg_catalog.unnest($1::pg_catalog.text[]) AS name
WHERE name <> ALL ($2::pg_catalog.text[]) AND NOT coalesce((
  SELECT pg_catalog.bool_or(p.provolatile = 'i') AND pg_catalog.bool_and(p.provolatile <> 'v')
  FROM pg_catalog.pg_proc p
  WHERE p.proname = name AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace),
  name = ANY ($3::pg_catalog.text[]))
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a result is taken: ``rows``, and ``size`` bytes of their JSON text."""

    rows: int
    size: int


def prepare(connection: AsyncConnection[TupleRow]) -> None:
    """Let a connection send parameters that are encoded already."""
    connection.adapters.register_dumper(_Sent, _SentDumper)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A parameter that is encoded already."""

    oid: int
    format: int
    cell: bytes = field(repr=False)


class _SentDumper(Dumper):
    format = Format.BINARY

    def get_key(self, obj: _Sent, format: PyFormat) -> Any:  # noqa: ARG002 - psycopg's names
        return (self.cls, obj.oid, obj.format)

    def upgrade(self, obj: _Sent, format: PyFormat) -> Dumper:  # noqa: ARG002
        dumper = type(self)(self.cls)
        dumper.oid = obj.oid
        dumper.format = Format(obj.format)
        return dumper

    def dump(self, obj: _Sent) -> bytes:
        return obj.cell


class HubSession:
    """A :class:`~oar_proxy.federation.HubReader` over a connection of the proxy's own.

    :func:`prepare` has seen that connection. The state is that of a session of ``subject``, who
    asks through it.
    """

    def __init__(self, connection: AsyncConnection[TupleRow], subject: Subject) -> None:
        self._connection = connection
        self._subject = subject
        self._state: SessionState | None = None

    async def enter(self, schemas: Sequence[str]) -> None:
        """Have names without a schema mean the owner's tables."""
        path = sql.SQL(", ").join(map(sql.Identifier, schemas))
        await self._connection.execute(sql.SQL("SET LOCAL search_path = {}").format(path))

    async def unsafe_functions(self, parsed: Parsed) -> str:
        """Name the functions in a query that are not known to have no effect."""
        called, attributes = function_names(parsed.node)
        names = sorted(called | attributes)
        if not names:
            return ""
        # What is no function's name, and stands as (x).f, is a field.
        cursor = await AsyncRawCursor(self._connection).execute(
            _UNSAFE_FUNCTIONS, (names, _STABLE.split(), sorted(attributes - called))
        )
        return ", ".join(str(row[0]) for row in await cursor.fetchall())

    async def query(
        self, text: str, parameters: Sequence[Parameter] = ()
    ) -> list[tuple[Cell, ...]]:
        sent = [_sent(parameter) for parameter in parameters]
        cursor = await AsyncRawCursor(self._connection).execute(text.encode(), sent)
        result = cursor.pgresult
        assert result is not None
        return [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    async def rows(
        self, execution: Execution, size: Size
    ) -> tuple[tuple[str, ...], tuple[tuple[Scalar, ...], ...], bool]:
        """Return the names of the columns, the first rows as JSON has them, whether more follow.

        Rows are fetched one by one, since a model's expressions can make each as long as it likes.
        """
        kept: list[tuple[Scalar, ...]] = []
        taken = len("[]")
        sent = [_sent(parameter) for parameter in execution.parameters]
        async with AsyncRawServerCursor(self._connection, "answer") as cursor:
            cursor.itersize = 1
            await cursor.execute(execution.sql.encode(), sent)
            columns = tuple(column.name for column in cursor.description or ())
            async for row in cursor:
                scalars = tuple(map(_scalar, row))
                taken += len(json.dumps(scalars, ensure_ascii=False).encode()) + len(", ")
                if len(kept) == size.rows or taken > size.size:
                    return columns, tuple(kept), True
                kept.append(scalars)
        return columns, tuple(kept), False

    async def state(self) -> SessionState:
        if self._state is None:
            ((cell,),) = await self.query(f"SELECT {SESSION_STATE}")
            return self.learn(cell)
        return self._state

    def learn(self, cell: Cell) -> SessionState:
        self._state = SessionState.read(cell).of(self._subject)
        return self._state


def _sent(parameter: Parameter) -> _Sent | None:
    cell = parameter.cell
    if cell is None:
        return None
    encoded = cell if isinstance(cell, bytes) else b"".join(cell.take())
    return _Sent(parameter.oid, parameter.format, encoded)


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
