"""Recorded drafts: for benchmarks, for reviewed answers, and wherever no model may be called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import sqlglot
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from sqlglot.errors import SqlglotError

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Failure
from oar_proxy.question import Question, normalise


class ReplayDrafter:
    """Returns the SQL recorded for a question's text, and abstains on every other question."""

    name = "replay"

    def __init__(self, recorded: Mapping[str, str]) -> None:
        """Take question → PostgreSQL. Empty SQL is a recorded abstention."""
        self._recorded = {normalise(question): sql.strip() for question, sql in recorded.items()}

    @classmethod
    def from_file(cls, path: Path) -> ReplayDrafter:
        """Read JSON lines of ``question``, ``sql`` and, where it is not PostgreSQL, ``dialect``.

        Raises :class:`InvalidRecording` for a line that is not such an object, for SQL that its
        dialect cannot read, and for one question with two different drafts; ``OSError`` when
        the file cannot be read.
        """
        recorded: dict[str, str] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                entry = _Line.model_validate_json(line)
            except ValidationError as error:
                raise InvalidRecording(
                    f"{path.name}, line {number}: needs a question, sql and nothing else "
                    "but a dialect and an id"
                ) from error
            question = normalise(entry.question)
            try:
                sql = to_postgres(entry.sql, entry.dialect)
            except InvalidRecording as error:
                raise InvalidRecording(f"{path.name}, line {number}: {error}") from error
            if recorded.setdefault(question, sql) != sql:
                raise InvalidRecording(
                    f"{path.name}, line {number}: this question has another draft above"
                )
        return cls(recorded)

    async def propose(
        self,
        question: Question,
        catalog: Catalog,  # noqa: ARG002 - recorded drafts name their tables themselves
        failures: Sequence[Failure],  # noqa: ARG002 - a failure changes nothing
    ) -> Draft:
        """Return what was recorded."""
        sql = self._recorded.get(question.normalised)
        if sql is None:
            return Draft(None, self.name, "no draft is recorded for this question")
        if not sql:
            return Draft(None, self.name, "the recorded draft abstains")
        return Draft(sql, self.name)


class InvalidRecording(ValueError):
    """A recorded draft that cannot be used."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    question: Annotated[str, StringConstraints(min_length=1)]
    sql: str
    dialect: str = "postgres"
    id: str | int | None = None


def to_postgres(sql: str, dialect: str) -> str:
    """Return a recorded statement in PostgreSQL's dialect; PostgreSQL's own is not touched.

    Raises :class:`InvalidRecording` when it is not one statement of that dialect.
    """
    sql = sql.strip()
    if dialect in ("postgres", "postgresql") or not sql:
        return sql
    try:
        statements = sqlglot.transpile(sql, read=dialect, write="postgres", pretty=False)
    except (SqlglotError, ValueError) as error:
        raise InvalidRecording(f"the sql cannot be read as {json.dumps(dialect)}") from error
    if len(statements) != 1:
        raise InvalidRecording("the sql is not exactly one statement")
    return statements[0]
