"""Reading a benchmark's directory: organisations, questions, recorded drafts.

A benchmark is ``orgs/<org>/catalog.json`` with one SQLite file an owner, ``questions.jsonl``, and
``drafts*.jsonl`` or ``drafts/<model>.jsonl``; an optional ``schemas.json`` names the tables of
organisations whose rows are not there. Whatever a directory leaves out is simply not measured.
"""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold(name: str) -> str:
    """Return a name as unquoted SQL has it: ASCII in lower case, as PostgreSQL and SQLite fold."""
    return name.translate(_LOWER)


class BenchmarkError(ValueError):
    """A directory or file is not of the benchmarks' layout. One line, naming the file."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner: its SQLite file (None where there are no rows) and its tables' names.

    ``description`` is public; ``referral`` is what it says when asked, about whom to ask.
    """

    name: str
    file: Path | None
    tables: tuple[str, ...]
    description: str = ""
    referral: str = ""


@dataclass(frozen=True, slots=True)
class Organisation:
    """A set of owners. Same-named tables of two owners are one table, split between them.

    ``asker`` is the owner who asks the questions; None where nobody in particular does.
    """

    name: str
    owners: tuple[Owner, ...]
    asker: str | None = None

    @property
    def with_rows(self) -> tuple[Owner, ...]:
        """The owners that hold a table and whose file is there."""
        return tuple(owner for owner in self.owners if owner.tables and owner.file is not None)

    @property
    def holders(self) -> dict[str, tuple[str, ...]]:
        """Folded table name → the owners that hold (some of) its rows."""
        held: dict[str, list[str]] = {}
        for owner in self.owners:
            for table in owner.tables:
                held.setdefault(fold(table), []).append(owner.name)
        return {table: tuple(dict.fromkeys(owners)) for table, owners in held.items()}


@dataclass(frozen=True, slots=True)
class Question:
    """One line of ``questions.jsonl``; everything but ``id`` and ``org`` may be missing.

    ``rows`` are the reference answer, ``rows_available`` is false where the organisation's files
    lack rows the question needs.
    """

    id: str
    org: str
    text: str | None = None
    gold_sql: str | None = None
    gold_sql_postgres: str | None = None
    rows: tuple[tuple[Any, ...], ...] | None = None
    kappa: int | None = None
    stratum: str | None = None
    difficulty: str | None = None
    unanswerable: bool = False
    rows_available: bool = True


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. ``organisations`` are all whose tables are known, ``drafts`` files by model.

    The model of a drafts file is the file's stem; that of a plain ``drafts.jsonl`` the benchmark.
    """

    name: str
    organisations: Mapping[str, Organisation]
    questions: tuple[Question, ...]
    drafts: Mapping[str, Path]

    def with_rows(self, named: Collection[str] | None = None) -> list[Organisation]:
        """Return the organisations whose owners hold rows; of those ``named``, if any are."""
        found = [each for each in self.organisations.values() if each.with_rows]
        return [each for each in found if not named or each.name in named]


def find_benchmarks(directory: Path) -> tuple[Benchmark, ...]:
    """Read the benchmark at ``directory``, or all that stand directly under it.

    Raises :class:`BenchmarkError` when there is none, or a file is not of the layout.
    """
    roots = [directory] if _is_benchmark(directory) else _benchmarks_under(directory)
    if not roots:
        raise BenchmarkError(f"{directory}: no benchmark here: neither orgs nor questions.jsonl")
    return tuple(_read_benchmark(root) for root in roots)


def _is_benchmark(directory: Path) -> bool:
    return (directory / "questions.jsonl").is_file() or (directory / "orgs").is_dir()


def _benchmarks_under(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in sorted(directory.iterdir()) if path.is_dir() and _is_benchmark(path)]


def _read_benchmark(root: Path) -> Benchmark:
    name = root.resolve().name
    organisations = {org.name: org for org in _from_schemas(root / "schemas.json")}
    organisations |= {org.name: org for org in _from_catalogs(root / "orgs")}
    questions = tuple(_questions(root / "questions.jsonl"))
    drafts = {
        name if path.stem == "drafts" else path.stem: path
        for path in (*sorted(root.glob("drafts*.jsonl")), *sorted(root.glob("drafts/*.jsonl")))
    }
    return Benchmark(name, organisations, questions, drafts)


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise BenchmarkError(f"{path}: not JSON: line {error.lineno}") from error


def _from_schemas(path: Path) -> Iterator[Organisation]:
    """Organisations of ``schemas.json``: tables only."""
    if not path.is_file():
        return
    for name, content in _load(path).items():
        try:
            owners = [(owner, tuple(tables)) for owner, tables in content["owners"].items()]
        except (AttributeError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{path}: organisation {name} has no owners") from error
        yield Organisation(name, tuple(Owner(owner, None, tables) for owner, tables in owners))


def _from_catalogs(orgs: Path) -> Iterator[Organisation]:
    """Organisations with files, in the order of their names."""
    for path in sorted(orgs.glob("*/catalog.json")):
        content = _load(path)
        try:
            owners = tuple(_owner(path.parent, entry) for entry in content["owners"])
            asker = content.get("asking_user")
        except (AttributeError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{path}: not a catalog of owners and their tables") from error
        if asker is not None and asker not in {owner.name for owner in owners}:
            raise BenchmarkError(f"{path}: the asking user {asker} is none of the owners")
        yield Organisation(path.parent.name, owners, asker)


def _owner(folder: Path, entry: Mapping[str, Any]) -> Owner:
    name = entry["owner"]
    return Owner(
        name,
        _owner_file(folder, name),
        tuple(entry["tables"]),
        entry.get("description") or "",
        entry.get("referral") or "",
    )


def _owner_file(folder: Path, owner: str) -> Path | None:
    file = folder / f"{owner}.sqlite"
    return file.resolve() if file.is_file() else None


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a JSONL file of objects, skipping blank lines: ``(line number, object)``.

    Raises :class:`BenchmarkError` for a line that is not an object.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise BenchmarkError(f"{path} line {number}: not JSON") from error
            if not isinstance(record, dict):
                raise BenchmarkError(f"{path} line {number}: not an object")
            yield number, record


def _questions(path: Path) -> Iterator[Question]:
    if not path.is_file():
        return
    for number, record in read_lines(path):
        if "org" not in record:
            raise BenchmarkError(f"{path} line {number}: names no org")
        yield Question(
            id=str(record.get("id", number)),
            org=str(record["org"]),
            text=record.get("question"),
            gold_sql=record.get("gold_sql"),
            gold_sql_postgres=record.get("gold_sql_postgres"),
            rows=_rows(record.get("rows")),
            kappa=record.get("kappa"),
            stratum=record.get("stratum"),
            difficulty=record.get("difficulty"),
            unanswerable=bool(record.get("unanswerable", False)),
            rows_available=bool(record.get("rows_available", True)),
        )


def _rows(rows: Sequence[Sequence[Any]] | None) -> tuple[tuple[Any, ...], ...] | None:
    return None if rows is None else tuple(tuple(row) for row in rows)
