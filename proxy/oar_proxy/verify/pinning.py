"""Writing reviewed answers down, and trying them against what is published now."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from oar_proxy import client
from oar_proxy.catalog import Catalog
from oar_proxy.check import examine
from oar_proxy.commandline import OUT_OF_REACH, Refused, fail
from oar_proxy.hub.access import admin_pool, join_hub
from oar_proxy.hub.publication import publish, publishing
from oar_proxy.settings import ConfigurationError, Settings
from oar_proxy.settings import load as load_settings
from oar_proxy.sql.parse import parse
from oar_proxy.sql.text import Edit, SyntaxFault, quote_identifier, splice
from oar_proxy.verified.answers import VerifiedAnswers, configured_answers
from oar_proxy.verified.entry import Entry, EntryError, Parameter, parse_entry, write_entry
from oar_proxy.verified.publication import SCHEMA, publish_answers

_NAME_LENGTH: Final = 63


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be pinned. ``parameters`` are names and types; ``name`` None: find one."""

    question: str
    phrasings: tuple[str, ...]
    sql: str
    parameters: tuple[tuple[str, str], ...]
    view: str | None
    reviewer: str
    name: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What is published now, and by name why some entries do not fit it."""

    catalog: Catalog
    faults: Mapping[str, str]


def load(config: Path) -> tuple[Settings, VerifiedAnswers]:
    """Read the configuration and the answers it names. Raises ``ConfigurationError``."""
    settings = load_settings(config)
    if settings.verified is None:
        raise ConfigurationError(
            "no directory of verified answers is configured", hint="set verified to one"
        )
    return settings, configured_answers(settings)


async def trial(settings: Settings, answers: VerifiedAnswers) -> Trial:
    """Try entries in the hub, over what the owners publish now; nothing of that stays there.

    No owner is asked for a row. Raises ``HubError``.
    """
    return await _trial(settings, answers, await _published(settings))


async def pin(config: Path, request: Request) -> Entry:
    """Write an entry that fits. Raises ``ConfigurationError``, ``Refused`` and ``HubError``."""
    settings, answers = load(config)
    assert settings.verified is not None
    name = request.name or request.view or _slug(request.question)
    path = settings.verified / f"{name}.yaml"
    if path.exists():
        raise Refused(
            f'there is a verified answer "{name}" already',
            "give another --name, or remove it first: oar verify remove",
        )
    catalog = await _published(settings)
    text = write_entry(
        question=request.question,
        phrasings=request.phrasings,
        sql=_qualified(request.sql, catalog),
        parameters=[Parameter(*parameter) for parameter in request.parameters],
        reviewer=request.reviewer,
        reviewed=datetime.now(UTC).date(),
        catalog=catalog.version,
        view=request.view,
    )
    try:
        entry = parse_entry(text, name=name, source=str(path))
        together = VerifiedAnswers((*answers.entries, entry))
    except EntryError as error:
        raise ConfigurationError(f"not added: {error.message}") from error
    fault = (await _trial(settings, together, catalog)).faults.get(name)
    if fault is not None:
        raise Refused(f"not added: it does not fit what is published: {fault}")
    _write(path, text)
    return entry


def unpin(config: Path, name: str) -> None:
    """Delete an entry's file, also one that cannot be read. Raises as :func:`pin`."""
    directory = load_settings(config).verified
    for path in () if directory is None else directory.glob("*.yaml"):
        if path.stem == name:
            path.unlink()
            return
    raise Refused(f'there is no verified answer "{name}"', "oar verify list shows them")


def running_draft(question: str, dsn: str | None, config: Path) -> str:
    """Have a running proxy draft a question, and return the SQL.

    Raises ``NotConnected``, ``StatementFailed`` and ``Refused``.
    """
    with client.connect(client.address(dsn, config)) as connection:
        connection.execute("SET oar.protocol = 'compiled'")
        explained = client.query(
            connection, "EXPLAIN (FORMAT JSON) SELECT * FROM oar_ask(%s)", (question,)
        )
    plan = explained.rows[0][0][0]["Plan"]
    drafts = plan.get("Drafts", ())
    if len(drafts) != 1 or "Verified Answer" in drafts[0]:
        raise Refused(
            "the proxy has no draft for this question",
            "write the SELECT yourself: --sql",
        )
    return str(drafts[0]["SQL"])


def place(entry: Entry) -> str:
    """Return where an entry's SQL stands."""
    return f"{entry.source}:{entry.sql_mark.line}:{entry.sql_mark.column}"


def as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry for programs."""
    return {
        "name": entry.name,
        "file": entry.source,
        "question": entry.question,
        "phrasings": list(entry.phrasings),
        "parameters": [{"name": p.name, "type": p.type} for p in entry.parameters],
        "sql": entry.sql,
        "view": None if entry.view is None else f"{SCHEMA}.{entry.view}",
        "reviewer": entry.reviewer,
        "reviewed": entry.reviewed.isoformat(),
        "catalog": entry.catalog,
    }


def trial_as_json(answers: VerifiedAnswers, trial: Trial) -> dict[str, Any]:
    """Return a trial for programs."""
    return {
        "catalog": trial.catalog.version,
        "answers": [
            {
                "name": entry.name,
                "file": entry.source,
                "line": entry.sql_mark.line,
                "column": entry.sql_mark.column,
                "fits": entry.name not in trial.faults,
                "fault": trial.faults.get(entry.name),
                "reviewed_under": entry.catalog,
            }
            for entry in answers.entries
        ],
    }


async def _published(settings: Settings) -> Catalog:
    report = await examine(settings)
    if not report.complete:
        fail("what the owners publish is not known", "oar check says why", OUT_OF_REACH)
    return report.catalog


async def _trial(settings: Settings, answers: VerifiedAnswers, catalog: Catalog) -> Trial:
    async with (
        join_hub(settings.hub) as address,
        admin_pool(address, size=1) as pool,
        publishing(pool, keep=False) as connection,
    ):
        held = (await publish(connection, catalog)).catalog
        return Trial(held, await publish_answers(connection, answers.entries, held))


def _qualified(sql: str, catalog: Catalog) -> str:
    """Put the schema before each bare name that one published table has."""
    try:
        statements = parse(sql)
    except SyntaxFault:
        return sql  # reading the entry says where the fault is
    if len(statements) != 1:
        return sql
    text = statements[0].text
    edits: list[Edit] = []
    for relation in statements[0].relations:
        schemas = [schema for schema, name in catalog.tables if name == relation.name]
        written = text[relation.start : relation.end]
        bare = relation.name in (written, written.lower()) or written == quote_identifier(
            relation.name
        )
        if relation.schema is None and bare and len(schemas) == 1:
            schema = quote_identifier(schemas[0]) if _needs_quotes(schemas[0]) else schemas[0]
            edits.append(Edit(relation.start, relation.start, f"{schema}."))
    return splice(text, edits)


def _needs_quotes(name: str) -> bool:
    return re.fullmatch(r"[a-z_][a-z0-9_]*", name) is None


def _slug(question: str) -> str:
    """Make a name of a question's words."""
    plain = unicodedata.normalize("NFKD", question).encode("ascii", "ignore").decode().lower()
    name = "-".join(re.findall(r"[a-z0-9]+", plain))[:_NAME_LENGTH].rstrip("-")
    if not name:
        raise ConfigurationError("no name can be made of this question", hint="give it a --name")
    return name


def _write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, and replaces none."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    try:
        os.link(unfinished, path)
    finally:
        unfinished.unlink()
