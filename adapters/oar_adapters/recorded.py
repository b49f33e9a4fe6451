"""Owners as a catalog file tells of them: what they publish and evaluate, and never a row.

A plan over such owners is the plan over the owners themselves when the file was written, but that
nobody asks an owner's server whether it takes a statement whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from oar_adapters.interface import (
    Capabilities,
    OwnerError,
    OwnerErrorKind,
    OwnerSchema,
    Predicate,
    Query,
    Scan,
    Snapshot,
    Statement,
    Table,
)
from oar_adapters.postgres import PostgresAdapter

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One owner: the ``schema`` its tables are published in, what it evaluates, all its tables."""

    schema: str
    capabilities: Capabilities
    tables: tuple[Table, ...]

    @property
    def content(self) -> OwnerSchema:
        """Its tables, as an adapter tells of them."""
        return OwnerSchema(self.tables)


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    owners: dict[str, Recorded]


class InvalidCatalog(ValueError):
    """A text that is no catalog file; the message says why, in one line."""


_FILE: Final = TypeAdapter(_File)


def write(owners: Mapping[str, Recorded]) -> dict[str, Any]:
    """Return a catalog file's content as JSON's plain values, the same for the same owners."""
    content: dict[str, Any] = _FILE.dump_python(_File(VERSION, dict(owners)), mode="json")
    for owner in content["owners"].values():
        for value in owner["capabilities"].values():
            if isinstance(value, list):
                value.sort()  # they are sets
    return content


def read(text: str | bytes) -> dict[str, Recorded]:
    """Read a catalog file's text. Raises :class:`InvalidCatalog`."""
    try:
        file = _FILE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "top level"
        raise InvalidCatalog(f"{place}: {first['msg'].lower()}") from None
    if file.version != VERSION:
        raise InvalidCatalog(f"version: only {VERSION} is known")
    return file.owners


class RecordedAdapter:
    """One owner of a catalog file. See :class:`~oar_adapters.interface.Adapter`.

    Conditions are judged by what its columns say of themselves, and written in PostgreSQL's SQL.
    """

    def __init__(self, owner: Recorded) -> None:
        self._owner = owner
        # It is never connected: what is asked of it depends on the tables alone.
        self._postgres = PostgresAdapter(
            "postgresql:///", schemas=(), tables=(), pool_size=1, connect_timeout=1.0
        )

    @property
    def capabilities(self) -> Capabilities:
        """What the owner said of itself."""
        return self._owner.capabilities

    async def schema(self) -> OwnerSchema:
        """Return what is recorded."""
        return self._owner.content

    def supports(self, table: Table, predicate: Predicate) -> bool:
        """Tell what the columns' agreement with PostgreSQL says."""
        return self._postgres.supports(table, predicate)

    def supports_statement(self, statement: Statement) -> bool:  # noqa: ARG002 - not known here
        """Tell whether statements go whole at all."""
        return self.capabilities.statements

    def counts(self, query: Scan) -> bool:
        """Tell whether a PostgreSQL owner would count so."""
        return self._postgres.counts(query)

    def render(self, query: Query) -> str:
        """Write a query as for a PostgreSQL owner."""
        return self._postgres.render(query)

    def snapshot(
        self,
        timeout: float,  # noqa: ARG002 - there are no rows, however long one waits
    ) -> AbstractAsyncContextManager[Snapshot]:
        """Raise :class:`OwnerError`: there are no rows."""
        raise OwnerError(OwnerErrorKind.UNREACHABLE, "a catalog file has no rows")

    async def close(self) -> None:
        """Release nothing."""
