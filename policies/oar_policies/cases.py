"""The ``tests`` of an owner file: what its author expects, for ``oar policy test`` to compare.

Nothing here decides anything: a proxy reads the section, so that a mistake in it is found at once,
and leaves it at that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal, TypeVar, cast

import yaml

from oar_policies.model import Mark, Subject
from oar_policies.names import split_name, write_name
from oar_policies.reading import Reading, start

ANYONE: Final = "anyone"
"""The principal of a test that names none."""

Route = Literal["relay", "fan-out"]

_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_ASKED: Final = "a test asks about either sql or an edge"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EdgeEnd:
    """A column of an owner, one end of a key edge."""

    owner: str
    table: str
    column: str

    @property
    def name(self) -> str:
        """Owner, table and column, spelt as a policy spells names."""
        return write_name(self.owner, self.table, self.column)


@dataclass(frozen=True, slots=True)
class Edge:
    """Keys of one column to be compared with another one."""

    sender: EdgeEnd
    receiver: EdgeEnd


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test expects; None: it does not say.

    ``keys`` are all edges along which keys travel. ``rule`` is among those that decided.
    """

    allow: bool
    route: Route | None = None
    keys: frozenset[Edge] | None = None
    rule: str | None = None
    sqlstate: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One test: a statement (``sql``) or an ``edge``, who asks on which day, and what is expected.

    ``day`` None is the day it is run, in UTC.
    """

    mark: Mark
    name: str
    sql: str | None
    edge: Edge | None
    subject: Subject
    day: date | None
    expected: Expected


def read_cases(reading: Reading, node: yaml.Node) -> tuple[Case, ...]:
    """Read the section. Raises :class:`~oar_policies.parse.PolicyError`."""
    cases = tuple(_case(reading, item) for item in reading.items(node, "tests"))
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise reading.error(case.mark, f"a test named {case.name} stands here twice")
        seen.add(case.name)
    return cases


def _case(reading: Reading, node: yaml.Node) -> Case:
    known = ("name", "sql", "edge", "as", "expect", "route", "keys", "rule", "sqlstate")
    fields = reading.fields(node, "a test", known)
    given = {name: value for name, (_, value) in fields.items()}
    if ("sql" in given) == ("edge" in given):
        raise reading.error(start(node), _ASKED)
    allow = reading.denies(reading.field(node, fields, "expect", "a test"), "expect", "allow")
    expected = Expected(
        allow=not allow,
        route=_optional(given, "route", lambda it: _route(reading, it)),
        keys=_optional(given, "keys", lambda it: _keys(reading, it)),
        rule=_optional(given, "rule", lambda it: _line(reading, it, "rule")),
        sqlstate=_optional(given, "sqlstate", lambda it: _sqlstate(reading, it)),
    )
    _require_sense(reading, given, expected)
    subject, day = _optional(given, "as", lambda it: _subject(reading, it)) or _nobody()
    return Case(
        mark=start(node),
        name=_line(reading, reading.field(node, fields, "name", "a test"), "name"),
        sql=_optional(given, "sql", lambda it: _sql(reading, it)),
        edge=_optional(given, "edge", lambda it: _edge(reading, it, "edge")),
        subject=subject,
        day=day,
        expected=expected,
    )


def _require_sense(reading: Reading, given: dict[str, yaml.Node], expected: Expected) -> None:
    """Refuse what could never be met, or would never be looked at."""
    about_sql: Collection[str] = ("route", "keys") if expected.allow else ()
    possible = {"allow": ("rule", *about_sql), "deny": ("rule", "sqlstate")}
    word = "allow" if expected.allow else "deny"
    for name in ("route", "keys", "sqlstate"):
        if name in given and (name not in possible[word] or "edge" in given):
            where = "of sql that is allowed" if name != "sqlstate" else "of sql that is denied"
            raise reading.error(start(given[name]), f"{name} is expected {where}")


def _optional(given: dict[str, yaml.Node], name: str, read: Callable[[yaml.Node], _T]) -> _T | None:
    return read(given[name]) if name in given else None


def _nobody() -> tuple[Subject, date | None]:
    return Subject(ANYONE, frozenset({ANYONE})), None


def _subject(reading: Reading, node: yaml.Node) -> tuple[Subject, date | None]:
    fields = reading.fields(node, "as", ("principal", "roles", "purpose", "day"))
    given = {name: value for name, (_, value) in fields.items()}
    principal = _optional(given, "principal", lambda it: _line(reading, it, "principal")) or ANYONE
    roles = _optional(given, "roles", lambda it: reading.names(it, "roles", "role"))
    purpose = _optional(given, "purpose", lambda it: _line(reading, it, "purpose"))
    day = _optional(given, "day", lambda it: reading.day(it, "day"))
    return Subject(principal, (roles or frozenset()) | {principal}, purpose), day


def _route(reading: Reading, node: yaml.Node) -> Route:
    word = reading.text(node, "route")
    if word not in ("relay", "fan-out"):
        raise reading.error(start(node), "route: relay or fan-out is expected")
    return cast("Route", word)


def _keys(reading: Reading, node: yaml.Node) -> frozenset[Edge]:
    return frozenset(_edge(reading, item, "keys") for item in reading.items(node, "keys"))


def _edge(reading: Reading, node: yaml.Node, what: str) -> Edge:
    fields = reading.fields(node, what, ("from", "to"))
    return Edge(
        _end(reading, reading.field(node, fields, "from", what), "from"),
        _end(reading, reading.field(node, fields, "to", what), "to"),
    )


def _end(reading: Reading, node: yaml.Node, what: str) -> EdgeEnd:
    text = reading.text(node, what)
    try:
        owner, table, column = split_name(text)
    except ValueError:
        raise reading.error(
            start(node), f"{what}: write owner.table.column, without a schema"
        ) from None
    return EdgeEnd(owner, table, column)


def _sqlstate(reading: Reading, node: yaml.Node) -> str:
    text = reading.text(node, "sqlstate")
    if not _SQLSTATE.fullmatch(text):
        raise reading.error(
            start(node), "sqlstate: five digits or capitals are expected, such as '42501'"
        )
    return text


def _line(reading: Reading, node: yaml.Node, what: str) -> str:
    text = reading.text(node, what)
    if not text or not text.isprintable():
        raise reading.error(start(node), f"{what}: one line of printable text is expected")
    return text


def _sql(reading: Reading, node: yaml.Node) -> str:
    text = reading.text(node, "sql")
    if not text.strip():
        raise reading.error(start(node), "sql: a statement is expected")
    return text
