"""What the proxy wants to know of a client's hub session: who logged in, and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from oar_adapters.interface import Cell
from oar_policies.model import Subject

from oar_proxy.errors import InvalidSetting

MEANING: Final = (
    "TimeZone",
    "timezone_abbreviations",
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "transform_null_equals",
    "search_path",
)
"""Settings that change what a parser and a planner make of a literal, a name or an operator."""

READING: Final = (
    "TimeZone",
    "timezone_abbreviations",
    "DateStyle",
    "IntervalStyle",
    "transform_null_equals",
    "search_path",
)
"""Of those, what PostgreSQL reads constants by when it parses a statement, and not again."""

_SETTINGS: Final = (
    *(name for name in MEANING if name != "search_path"),
    "application_name",
    "statement_timeout",
    "client_min_messages",
    "array_nulls",
    "standard_conforming_strings",
    "log_parameter_max_length_on_error",
    "debug_print_plan",
    "enable_nestloop",
    "oar.progress",
    "oar.max_keys",
    "oar.reduction",
    "oar.protocol",
    "oar.budget",
    "oar.purpose",
)
"""Settings of the session that change what a statement means, or how it is run."""

OWN: Final = tuple(name for name in _SETTINGS if name.startswith("oar."))
"""The settings that are the proxy's."""

SESSION_STATE: Final = f"oar_internal.session_state('{{{','.join(_SETTINGS)}}}')"
"""An expression of SQL for the state; it has no parameter, and can be asked along with others."""

BUILT_INS_ONLY: Final = "SET search_path = public, and write the schemas of tables"
"""What to do about `SessionState.foreign_names`."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "us": 1e-6}

_BOOLEANS: Final = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("", "off", "false", "no", "0"), False),
}


@dataclass(frozen=True, slots=True)
class SessionState:
    """The client's hub session as it is now. ``principal`` is the role that logged in.

    ``roles`` are those it is a member of; PostgreSQL's own are left out.
    """

    principal: str
    settings: Mapping[str, str]
    roles: frozenset[str] = frozenset()
    transaction: str | None = None
    """When the transaction began, where all its statements read one moment: no other of the session
    began then."""
    open_schemas: tuple[str, ...] = ()
    """Schemas of the search path in which others than an administrator may make functions."""

    @property
    def subject(self) -> Subject:
        """Who asks and what for, as policies see it."""
        return Subject(self.principal, self.roles, self.settings.get("oar.purpose") or None)

    def of(self, subject: Subject) -> SessionState:
        """Return the state of a session that is the same but for who has it."""
        return replace(
            self,
            principal=subject.principal,
            roles=subject.roles,
            settings={**self.settings, "oar.purpose": subject.purpose or ""},
        )

    @property
    def reads_its_dates(self) -> bool:
        """Tell whether the session reads the dates that it prints.

        PostgreSQL's and SQL's style have the year last also where it is read first.
        """
        style, _, order = self.settings.get("DateStyle", "ISO, MDY").partition(",")
        return style.upper() in ("ISO", "GERMAN") or order.strip().upper() != "YMD"

    @classmethod
    def read(cls, cell: Cell) -> Self:
        """Read what `SESSION_STATE` gave, as text."""
        assert cell is not None
        # It comes in the client's encoding; whoever needs that to be UTF-8 says so.
        answer = json.loads(cell.decode(errors="replace"))
        settings = {n: value for n, value in answer["settings"].items() if value is not None}
        # These schemas, and not the setting: ``"$user"`` is another one to the planner.
        settings["search_path"] = ", ".join(answer["search_path"])
        return cls(
            answer["principal"],
            settings,
            frozenset(answer["roles"]),
            answer["transaction"],
            tuple(answer["open_schemas"]),
        )

    @property
    def reading(self) -> dict[str, str]:
        """The settings that constants are read by."""
        return {name: self.settings[name] for name in READING if name in self.settings}

    @property
    def application(self) -> str:
        """What the client calls itself now."""
        return self.settings.get("application_name", "")

    @property
    def foreign_names(self) -> str | None:
        """Why ``=`` or ``count`` may be what somebody made of them; None: they are PostgreSQL's.

        Where PostgreSQL's own schema is looked into first, an operator or a function of another one
        is taken all the same if it is for exactly these types, such as ``varchar = varchar``.
        """
        if "pg_catalog" in self.settings.get("search_path", ""):
            return "the search path looks into another schema before pg_catalog"
        if self.open_schemas:
            return (
                f"schema {self.open_schemas[0]} of the search path may have functions and "
                "operators of others than the hub's administrator"
            )
        return None

    @property
    def nested_loops(self) -> bool:
        """Tell whether the session lets the hub plan nested loops."""
        return self.settings.get("enable_nestloop") == "on"

    def timeout(self, most: float) -> float:
        """Return the session's ``statement_timeout`` in seconds; ``most`` without a shorter one."""
        match = re.fullmatch(r"(\d+)([a-z]*)", self.settings.get("statement_timeout", "0"))
        seconds = int(match[1]) * _UNITS.get(match[2] or "ms", 0.001) if match else 0.0
        return min(most, seconds) if seconds else most

    def enabled(self, name: str) -> bool:
        """Tell whether a boolean ``oar.…`` setting is on. Raises ``InvalidSetting``."""
        value = self.settings.get(name, "").lower()
        if value not in _BOOLEANS:
            raise InvalidSetting(
                f'invalid value for parameter "{name}": a boolean is needed',
                hint=f"SET {name} = on, or off",
            )
        return _BOOLEANS[value]

    def one_of(self, name: str, values: Sequence[str]) -> str:
        """Return an ``oar.…`` setting that is one of some words, the first unless set.

        Raises as `enabled`.
        """
        value = self.settings.get(name, "").lower() or values[0]
        if value not in values:
            raise InvalidSetting(
                f'invalid value for parameter "{name}": one of {", ".join(values)} is needed',
                hint=f"SET {name} = '{values[0]}', or RESET {name}",
            )
        return value

    def count(self, name: str) -> int | None:
        """Return a number an ``oar.…`` setting holds, None when unset. Raises as `enabled`."""
        value = self.settings.get(name, "")
        if not value:
            return None
        if not value.isascii() or not value.isdigit():
            raise InvalidSetting(
                f'invalid value for parameter "{name}": a whole number from 0 is needed',
                hint=f"SET {name} = 1000, or RESET {name}",
            )
        return int(value)
