"""The tables a recorded draft reads, taken from its text alone, and the files drafts come in.

Names of common table expressions are resolved by scope: a CTE hides a table of the same name only
where the CTE is visible. The published names of the benchmarks are compared without case, as
SQLite does and as drafts that quote or do not quote them expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from oar_bench.layout import BenchmarkError, fold, read_lines

Dialect = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a model wrote for one question. ``sql`` is empty where it wrote nothing."""

    question: str
    sql: str
    dialect: Dialect


def read_drafts(path: Path) -> dict[str, Draft]:
    """Read a drafts file: question id → draft. A line that names no dialect is PostgreSQL's.

    Raises :class:`~oar_bench.layout.BenchmarkError` for a line that is not a draft, ``OSError``
    for an unreadable file.
    """
    drafts = {}
    for number, record in read_lines(path):
        dialect = record.get("dialect", "postgres")
        if "id" not in record or dialect not in ("sqlite", "postgres"):
            raise BenchmarkError(
                f"{path} line {number}: not a draft with an id and a known dialect"
            )
        draft = Draft(str(record["id"]), record.get("sql") or "", dialect)
        drafts[draft.question] = draft
    return drafts


def base_tables(sql: str, dialect: Dialect) -> frozenset[str] | None:
    """Return the folded names of the stored tables a draft reads; None where it does not parse.

    A draft of several statements reads the tables of all of them; an empty one is no draft.
    """
    try:
        statements = [tree for tree in sqlglot.parse(sql, read=dialect) if tree is not None]
    except (SqlglotError, RecursionError):
        return None
    if not statements or any(isinstance(tree, exp.Command) for tree in statements):
        return None
    return frozenset(name for tree in statements for name in _tables(tree, frozenset(), dialect))


def _tables(node: exp.Expr, visible: frozenset[str], dialect: Dialect) -> Iterator[str]:
    """Walk a tree; ``visible`` are the CTE names in scope at ``node``."""
    with_ = node.args.get("with_")
    if isinstance(with_, exp.With):
        inside, visible = _scopes(with_, visible, dialect)
        for cte, scope in zip(with_.expressions, inside, strict=True):
            yield from _tables(cte.this, scope, dialect)
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        name = fold(node.name)
        if node.args.get("db") is not None or name not in visible:
            yield name
    for child in node.iter_expressions():
        if child is not with_:
            yield from _tables(child, visible, dialect)


def _scopes(
    with_: exp.With, visible: frozenset[str], dialect: Dialect
) -> tuple[list[frozenset[str]], frozenset[str]]:
    """Return what each CTE's own query sees, and what the statement under the WITH sees.

    PostgreSQL shows a CTE the ones before it, and under RECURSIVE all of them; SQLite ignores the
    keyword and always shows all of them.
    """
    names = [fold(cte.alias) for cte in with_.expressions]
    after = visible | frozenset(names)
    if dialect == "sqlite" or with_.args.get("recursive"):
        return [after] * len(names), after
    return [visible | frozenset(names[:place]) for place in range(len(names))], after
