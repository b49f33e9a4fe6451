"""One reviewed answer: a YAML file, checked field by field, with line and column in every error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from oar_policies.model import Mark
from oar_policies.reading import Fields, FileError, Reading, quote, start

from oar_proxy.drafters import Review
from oar_proxy.sql.parse import parse, parse_one
from oar_proxy.sql.parsed import Parsed
from oar_proxy.sql.text import SyntaxFault, quote_literal, splice
from oar_proxy.sql.tree import only_reads
from oar_proxy.verified.form import Form, read_form

TYPES: Final[Mapping[str, str]] = {
    "text": "text",
    "boolean": "bool",
    "integer": "int4",
    "bigint": "int8",
    "numeric": "numeric",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "uuid": "uuid",
}
"""Types of parameters, and their names in ``pg_catalog``: those that keep a value as it is, or
refuse it (``varchar(3)`` would cut it short)."""

MAX_PARAMETERS: Final = 16
MAX_PHRASINGS: Final = 100
"""More than a person words one question in; the file's size bounds them as well."""
_NAME_BYTES: Final = 63
"""PostgreSQL's NAMEDATALEN - 1."""

_ENTRY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PARAMETER_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OTHER_BREAKS: Final = re.compile("[\r\x85\u2028\u2029]")
_CATALOG: Final = re.compile(r"[0-9a-f]{16}")


class EntryError(FileError):
    """A verified answer that cannot be used."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that the question carries. ``type`` is one of :data:`TYPES`."""

    name: str
    type: str

    def literal(self, value: str | None) -> str:
        """Write a value as a literal of the type, whatever stands in it; None is NULL."""
        written = "NULL" if value is None else quote_literal(value)
        return f"({written}::pg_catalog.{TYPES[self.type]})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A question, how else it may be worded, and the SQL that answers it.

    ``name`` is the file's, without ``.yaml``. ``sql`` is one SELECT over published names, all with
    their schema, with ``$1`` for the first parameter. ``catalog`` is the version of the catalog
    that it was reviewed under.
    """

    name: str
    source: str
    question: str
    phrasings: tuple[str, ...]
    sql: str = field(repr=False)
    parameters: tuple[Parameter, ...]
    reviewer: str
    reviewed: date
    catalog: str
    view: str | None
    forms: tuple[tuple[Form, Mark], ...] = field(repr=False)
    sql_mark: Mark = field(repr=False)
    view_mark: Mark = field(repr=False)

    @property
    def review(self) -> Review:
        """Who vouches for it."""
        return Review(self.name, self.reviewer, self.reviewed)

    @property
    def parsed(self) -> Parsed:
        """The SQL's tree."""
        return parse_one(self.sql)

    def statement(self, values: Mapping[int, str]) -> str:
        """Return the SQL with a typed literal for each parameter, NULL where it has no value."""
        given = {
            number: parameter.literal(values.get(number))
            for number, parameter in enumerate(self.parameters, start=1)
        }
        return splice(self.sql, self.parsed.given(given))


def load_entry(path: Path) -> Entry:
    """Read one file (UTF-8). Raises :class:`EntryError`."""
    source = str(path)
    return parse_entry(_Reading(source).load(path), name=path.stem, source=source)


def parse_entry(text: str, *, name: str, source: str) -> Entry:
    """Read an entry. ``source`` names the text in errors. Raises :class:`EntryError` only."""
    reading = _Reading(source)
    if _ENTRY_NAME.fullmatch(name) is None:
        raise reading.error(
            Mark(1, 1),
            "the file's name is the answer's: lower-case letters, digits, _ and -, then .yaml",
        )
    return reading.entry(reading.compose(text), name)


def write_entry(
    *,
    question: str,
    phrasings: Sequence[str],
    sql: str,
    parameters: Sequence[Parameter],
    reviewer: str,
    reviewed: date,
    catalog: str,
    view: str | None,
) -> str:
    """Write what `parse_entry` reads."""
    content: dict[str, Any] = {"version": 1, "question": question}
    if phrasings:
        content["phrasings"] = list(phrasings)
    if parameters:
        content["parameters"] = [{"name": p.name, "type": p.type} for p in parameters]
    content |= {"sql": _Block(sql), "reviewer": reviewer, "reviewed": reviewed, "catalog": catalog}
    if view is not None:
        content["view"] = view
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Block(str):
    """Text that is written on lines of its own."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    pass


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Written as they are, they would be read as other line breaks.
    style = "|" if isinstance(text, _Block) else None
    style = '"' if _OTHER_BREAKS.search(text) else style
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)
_Dumper.add_representer(_Block, _represent)


@dataclass(frozen=True, slots=True)
class _Reading(Reading):
    """One text on its way to an entry."""

    fault: ClassVar[type[FileError]] = EntryError
    kind: ClassVar[str] = "a verified answer"

    def entry(self, root: yaml.Node, name: str) -> Entry:
        known = ("version", "question", "phrasings", "sql", "parameters")
        fields = self.versioned(root, (*known, "reviewer", "reviewed", "catalog", "view"))
        question, sql, reviewer, reviewed, catalog = (
            self.field(root, fields, required, self.kind)
            for required in ("question", "sql", "reviewer", "reviewed", "catalog")
        )
        parameters = self.parameters(fields)
        worded = [question, *self.phrasings(fields)]
        return Entry(
            name=name,
            source=self.source,
            question=self.text(question, "question"),
            phrasings=tuple(self.text(node, "a phrasing") for node in worded[1:]),
            sql=self.query(sql, parameters),
            parameters=parameters,
            reviewer=self.line(reviewer, "reviewer"),
            reviewed=self.day(reviewed, "reviewed"),
            catalog=self.version_of_catalog(catalog),
            view=self.view(fields, parameters),
            forms=tuple((self.form(node, parameters), start(node)) for node in worded),
            sql_mark=start(sql),
            view_mark=start(fields["view"][1]) if "view" in fields else start(root),
        )

    def phrasings(self, fields: Fields) -> list[yaml.Node]:
        if "phrasings" not in fields:
            return []
        items = self.items(fields["phrasings"][1], "phrasings")
        if len(items) > MAX_PHRASINGS:
            raise self.error(start(items[MAX_PHRASINGS]), f"more than {MAX_PHRASINGS} phrasings")
        return items

    def form(self, node: yaml.Node, parameters: Sequence[Parameter]) -> Form:
        try:
            return read_form(self.text(node, "a question"), [p.name for p in parameters])
        except ValueError as error:
            raise self.error(start(node), str(error)) from error

    def parameters(self, fields: Fields) -> tuple[Parameter, ...]:
        if "parameters" not in fields:
            return ()
        found: dict[str, Parameter] = {}
        for item in self.items(fields["parameters"][1], "parameters"):
            said = self.fields(item, "a parameter", ("name", "type"))
            name_node = self.field(item, said, "name", "a parameter")
            name = self.text(name_node, "name")
            if _PARAMETER_NAME.fullmatch(name) is None:
                raise self.error(
                    start(name_node), "a parameter's name is lower-case letters, digits and _"
                )
            if name in found:
                raise self.error(start(name_node), f"parameter {quote(name)} stands here twice")
            type_node = self.field(item, said, "type", "a parameter")
            kind = self.text(type_node, "type")
            if kind not in TYPES:
                raise self.error(start(type_node), f"type: one of {', '.join(TYPES)} is expected")
            found[name] = Parameter(name, kind)
            if len(found) > MAX_PARAMETERS:
                raise self.error(start(item), f"more than {MAX_PARAMETERS} parameters")
        return tuple(found.values())

    def query(self, node: yaml.Node, parameters: Sequence[Parameter]) -> str:
        """Read one SELECT that means the same to whoever asks."""
        try:
            statements = parse(self.text(node, "sql"))
        except SyntaxFault as error:
            raise self.error(start(node), f"sql: {_one_line(str(error))}") from error
        reason = (
            "exactly one statement is expected"
            if len(statements) != 1
            else refusal(statements[0], len(parameters))
        )
        if reason is not None:
            raise self.error(start(node), f"sql: {reason}")
        return statements[0].text

    def version_of_catalog(self, node: yaml.Node) -> str:
        version = self.text(node, "catalog")
        if _CATALOG.fullmatch(version) is None:
            raise self.error(start(node), "catalog: a catalog's version has 16 hexadecimal digits")
        return version

    def view(self, fields: Fields, parameters: Sequence[Parameter]) -> str | None:
        if "view" not in fields:
            return None
        node = fields["view"][1]
        name = self.name(node, "a view")
        if parameters:
            raise self.error(start(node), "view: a view takes no parameters")
        if len(name.encode()) > _NAME_BYTES:
            raise self.error(start(node), f"view: a name has at most {_NAME_BYTES} bytes")
        return name

    def line(self, node: yaml.Node, what: str) -> str:
        text = self.text(node, what)
        if not text.strip() or not text.isprintable():
            raise self.error(start(node), f"{what}: one line of printable text is expected")
        return text


def refusal(parsed: Parsed, parameters: int) -> str | None:
    """Say why a statement cannot be a reviewed answer, None where it can."""
    if not only_reads(parsed.node):
        return "a SELECT that writes nothing is expected"
    if parsed.locked:
        return "rows of a published table cannot be locked"
    if parsed.calls:
        return f"{parsed.calls[0].name} cannot be asked by a reviewed answer"
    bare = next((r.name for r in parsed.relations if r.schema is None), None)
    if bare is not None:
        return f"write {quote(bare)} with its schema: without, it depends on who asks what it names"
    used = {number for number, _, _ in parsed.parameters}
    for number in sorted(used):
        if not 1 <= number <= parameters:
            return f"${number} is no parameter: {parameters} are declared"
    for number in range(1, parameters + 1):
        if number not in used:
            return f"${number} is declared and not used"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())
