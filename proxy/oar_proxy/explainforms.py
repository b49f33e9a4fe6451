"""What an EXPLAIN asks for, and the forms that its answer can be written in."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

import yaml

from oar_proxy.errors import FeatureNotSupported
from oar_proxy.federation import Execution, HubReader, Parameter
from oar_proxy.sql.text import quote_identifier, quote_literal
from oar_proxy.sql.tree import ast, only_reads, option_word

_TEXT, _JSON, _XML, _JSONB = 25, 114, 142, 3802

_OFF: Final = frozenset({"off", "false", "0"})

_XML_NAMESPACE: Final = "http://www.postgresql.org/2009/explain"


@dataclass(frozen=True, slots=True)
class Options:
    """What an EXPLAIN asks for. ``written`` are its options, for the hub to judge."""

    analyze: bool = False
    form: str = "text"
    costs: bool = True
    timing: bool = True
    summary: bool = False
    generic: bool = False
    written: str = ""

    async def settings(self, link: HubReader) -> Mapping[str, Any]:
        """Return the session's settings that bear on plans, if they are asked for.

        Which options there are, and which go together, is for the hub's version to say: it is
        given them. Raises ``HubRejected``.
        """
        if not self.written:
            return {}
        ((cell,),) = await link.query(f"EXPLAIN ({self.written}, FORMAT json) SELECT 1")
        told: Mapping[str, Any] = json.loads(cell or "[{}]")[0].get("Settings", {})
        return told


def options(node: Any) -> Options | None:
    """Return the options of an EXPLAIN, None for another statement.

    Raises ``FeatureNotSupported`` for what is not done for published tables.
    """
    if not isinstance(node, ast.ExplainStmt):
        return None
    given = {option.defname: option_word(option.arg) for option in node.options or ()}
    on = {name for name, value in given.items() if value not in _OFF}
    if "analyze" in on and not only_reads(node.query):
        # PostgreSQL carries the statement out as well; this one would only tell of it.
        raise FeatureNotSupported(
            "EXPLAIN ANALYZE over published tables takes a SELECT only",
            hint="leave out ANALYZE, or explain the SELECT by itself",
        )
    return Options(
        analyze="analyze" in on,
        form=given.get("format") or "text",
        costs="costs" in on or "costs" not in given,
        timing="timing" in on or "timing" not in given,
        summary="summary" in on or ("analyze" in on and "summary" not in given),
        generic="generic_plan" in on,
        written=", ".join(_written(option) for option in node.options or ()),
    )


def _written(option: Any) -> str:
    name, argument = quote_identifier(option.defname), option.arg
    match argument:
        case ast.String():
            return f"{name} {quote_literal(argument.sval)}"
        case ast.Integer():
            return f"{name} {argument.ival}"
        case ast.Float():
            return f"{name} {argument.fval}"
    return name


def explanation(
    form: str, lines: Sequence[str], documents: Sequence[Mapping[str, Any]]
) -> Execution:
    """Answer an EXPLAIN with ``lines``, or with ``documents`` in the form that was asked for."""
    match form:
        case "json":
            return _document("json", _JSON, json.dumps(documents, ensure_ascii=False))
        case "yaml":
            text = yaml.safe_dump(
                list(documents), sort_keys=False, allow_unicode=True, width=sys.maxsize
            )
            return _document("text", _TEXT, text.rstrip("\n"))
        case "xml":
            return _document("xml", _XML, _xml(documents))
    listed = Parameter(_JSONB, 0, json.dumps(lines, ensure_ascii=False).encode())
    rows = 'pg_catalog.jsonb_array_elements_text($1::pg_catalog.jsonb) AS r("QUERY PLAN")'
    return Execution(f'SELECT r."QUERY PLAN" FROM {rows}', (listed,), False)


def explanation_query(lines: Sequence[str]) -> str:
    """The lines of a plan as a derived table, for a call of ``oar_explain``."""
    listed = ", ".join(quote_literal(line) for line in lines)
    return (
        f'SELECT r."QUERY PLAN" FROM pg_catalog.unnest(ARRAY[{listed}]::pg_catalog.text[]) '
        'AS r("QUERY PLAN")'
    )


def _document(kind: str, oid: int, text: str) -> Execution:
    sql = f'SELECT $1::pg_catalog.{kind} AS "QUERY PLAN"'
    return Execution(sql, (Parameter(oid, 0, text.encode()),), False)


def _xml(documents: Sequence[Mapping[str, Any]]) -> str:
    root = ElementTree.Element("explain", xmlns=_XML_NAMESPACE)
    for document in documents:
        _fill(ElementTree.SubElement(root, "Query"), document)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")


def _fill(element: ElementTree.Element, value: Any) -> None:
    """Write a value as PostgreSQL does: keys are elements, an entry of a list is an Item.

    An entry of ``Plans`` is a Plan.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _fill(ElementTree.SubElement(element, re.sub(r"[^A-Za-z0-9_.-]", "-", key)), inner)
    elif isinstance(value, list):
        for inner in value:
            entry = "Plan" if element.tag == "Plans" else "Item"
            _fill(ElementTree.SubElement(element, entry), inner)
    else:
        element.text = str(value).lower() if isinstance(value, bool) else str(value)
