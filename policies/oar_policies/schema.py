"""A JSON Schema of the owner file, for editors: its structure, as `parse` reads it.

What needs more than structure stays the parser's: names that nothing publishes, a ``min_keys``
above its ``max_keys``, days that no calendar has. Tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from oar_policies.parse import AGGREGATES, SMALLEST_GROUP

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_MOST: Final = 10**18 - 1
_PART: Final = r'("([^"]|"")+"|[^".*\sA-Z]+)'
_PRINTABLE: Final = r"^[^\u0000-\u001f\u007f]+$"

_Schema = dict[str, Any]


def schema() -> _Schema:
    """Return the schema as JSON's plain values."""
    return {
        "$schema": DRAFT,
        "title": "An owner's policy for oar",
        **_mapping(
            {
                "version": {"const": 1, "description": "The form the file is written in."},
                "default": _described(
                    {"enum": ["permit", "deny"]},
                    "Whether a table that has no entry in tables is published.",
                ),
                "expires": _described(_day(), "The last day this owner may be asked, in UTC."),
                "subjects": _described(_names(), "Roles that may ask this owner anything."),
                "limits": _limits(),
                "tables": _described(
                    {
                        "type": "object",
                        "propertyNames": {"pattern": f"^{_PART}$"},
                        "additionalProperties": _table(),
                    },
                    "What is hidden, and how a table may be asked for.",
                ),
                "key_disclosure": _described(
                    {"type": "array", "items": _grant("to", sends=True)},
                    "What may leave this owner as join keys. The first that matches decides.",
                ),
                "accept_keys": _described(
                    {"type": "array", "items": _grant("from", sends=False)},
                    "What may be sent to this owner as join keys.",
                ),
                "model": _described(
                    _mapping({"rows": {"enum": ["allow", "deny"]}}, required=("rows",)),
                    "Whether rows of this owner may stand in a prompt of a language model.",
                ),
                "tests": _described(
                    {"type": "array", "items": _test()},
                    "What is expected of this policy, for oar policy test.",
                ),
            },
            required=("version",),
        ),
    }


def _described(content: _Schema, text: str) -> _Schema:
    return {**content, "description": text}


def _mapping(properties: _Schema, required: tuple[str, ...] = ()) -> _Schema:
    content: _Schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return {**content, "required": list(required)} if required else content


def _whole(minimum: int) -> _Schema:
    return {"type": "integer", "minimum": minimum, "maximum": _MOST}


def _names(*, star: bool = False) -> _Schema:
    pattern = r"^(\*|[^*\u0000-\u001f\u007f]+)$" if star else r"^[^*\u0000-\u001f\u007f]+$"
    item = {"type": "string", "pattern": pattern}
    return {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}


def _day() -> _Schema:
    return {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}


def _line() -> _Schema:
    return {"type": "string", "pattern": _PRINTABLE}


def _limits() -> _Schema:
    return _described(
        _mapping(
            {
                "max_rows": _described(_whole(1), "Rows one query may return."),
                "max_bytes": _described(_whole(1), "Bytes of cells one query may return."),
                "max_queries": _described(_whole(1), "Queries one statement may send."),
                "max_keys_per_day": _described(
                    _whole(1),
                    "Different keys of this owner that may leave for a principal on a day.",
                ),
                "timeout": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "description": "Seconds a query may run.",
                },
                "max_keys_in": _described(_whole(0), "Join keys one query may carry here."),
            }
        ),
        "What this owner puts up with.",
    )


def _columns(least: int) -> _Schema:
    item = {"type": "string", "pattern": f"^{_PART}$"}
    return {"type": "array", "items": item, "minItems": least, "uniqueItems": True}


def _table() -> _Schema:
    parts = _mapping(
        {
            "deny_columns": _columns(0),
            "require_filter": _columns(1),
            "row_filter": {"type": "string", "pattern": r"\S"},
            "columns": {
                "type": "object",
                "propertyNames": {"pattern": f"^{_PART}$"},
                "additionalProperties": _column(),
            },
            "min_group": _described(
                _mapping(
                    {
                        "entity": {"type": "string", "pattern": f"^{_PART}$"},
                        "size": _whole(SMALLEST_GROUP),
                    },
                    required=("entity", "size"),
                ),
                "Groups of rows with fewer different entities are not shown.",
            ),
        }
    )
    whole = _mapping({"deny": {"type": "boolean"}}, required=("deny",))
    return {"oneOf": [whole, {**parts, "minProperties": 1}]}


def _column() -> _Schema:
    never = {"const": False}
    listed = {"enum": sorted(AGGREGATES)}
    functions = {"type": "array", "items": listed, "minItems": 1, "uniqueItems": True}
    some: _Schema = {"output": {"const": "aggregate_only"}, "functions": functions}
    masked = _described({"type": ["string", "null"]}, "What everybody reads in its place.")
    return {
        "oneOf": [
            _mapping({"mask": masked}, required=("mask",)),
            _mapping({"output": never, "filter": never}, required=("output",)),
            _mapping({**some, "filter": never}, required=tuple(some)),
            _mapping({"filter": never}, required=("filter",)),
        ]
    }


def _grant(others: str, *, sends: bool) -> _Schema:
    of_sender: _Schema = {
        "min_keys": _described(_whole(1), "Fewer keys than that do not leave."),
        "form": _described({"enum": ["plain", "hmac"]}, "How keys leave."),
    }
    return _mapping(
        {
            "column": {
                "type": "string",
                "pattern": rf"^(\*|{_PART}\.\*|{_PART}\.{_PART})$",
                "description": "table.column, table.* or *.",
            },
            others: _described(_names(star=True), "Names of owners, or *."),
            "purpose": _described(_names(), "Holds where the session says one of these."),
            "expires": _described(_day(), "The last day it holds, in UTC."),
            **(of_sender if sends else {}),
            "max_keys": _described(_whole(1), "Keys one query may carry."),
        },
        required=("column", others),
    )


def _edge() -> _Schema:
    end = {
        "type": "string",
        "pattern": rf"^{_PART}\.{_PART}\.{_PART}$",
        "description": "owner.table.column.",
    }
    return _mapping({"from": end, "to": end}, required=("from", "to"))


def _test() -> _Schema:
    of_sql: _Schema = {
        "route": {"enum": ["relay", "fan-out"]},
        "keys": _described(
            {"type": "array", "items": _edge()}, "All edges along which keys travel."
        ),
        "sqlstate": {"type": "string", "pattern": "^[0-9A-Z]{5}$"},
    }
    subject = {"principal": _line(), "roles": _names(), "purpose": _line(), "day": _day()}
    return {
        **_mapping(
            {
                "name": _line(),
                "sql": {"type": "string", "pattern": r"\S"},
                "edge": _edge(),
                "as": _described(_mapping(subject), "Who asks, what for, on which day."),
                "expect": {"enum": ["allow", "deny"]},
                "rule": _described(_line(), "The rule that decides."),
                **of_sql,
            },
            required=("name", "expect"),
        ),
        # What is expected of a statement that is allowed, of one that is denied, of an edge.
        "oneOf": [
            _case({"expect": {"const": "allow"}}, asks="sql", without=("edge", "sqlstate")),
            _case({"expect": {"const": "deny"}}, asks="sql", without=("edge", "route", "keys")),
            _case({}, asks="edge", without=("sql", *of_sql)),
        ],
    }


def _case(properties: _Schema, *, asks: str, without: tuple[str, ...]) -> _Schema:
    return {
        "properties": {**properties, **dict.fromkeys(without, False)},
        "required": [asks],
    }


def outline(node: _Schema, path: str = "") -> Iterator[str]:
    """Yield a line for each field that is described: its path, and what it is about."""
    for name, inner in node.get("properties", {}).items():
        if not isinstance(inner, dict):
            continue
        if "description" in inner:
            yield f"{path}{name}: {inner['description']}"
        yield from outline(inner, f"{path}{name}.")
        yield from outline(inner.get("items", {}), f"{path}{name}[].")
