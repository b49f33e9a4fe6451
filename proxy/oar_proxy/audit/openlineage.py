"""Asks as OpenLineage run events: what was read of whom, and which keys went where. Pure.

The form is that of OpenLineage 2-0-2. A run is an ask; its job is the statement's digest, so that
the same statement is the same job. Datasets are owners' published tables, and for each column that
keys were sent to, the keys there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version as installed
from typing import Any, Final

from oar_proxy.chain import Body
from oar_proxy.errors import QueryCanceled
from oar_proxy.ledger import SUCCESS

_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_OWN: Final = "urn:oar:openlineage:"
_NAME_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')

Event = dict[str, Any]


def events(bodies: Sequence[Body]) -> Iterator[Event]:
    """Yield the events of one ask from its entries' bodies: its start and, if known, its end.

    An ask without an entry of its own yields none: retention has deleted it.
    """
    producer = f"urn:oar:{installed('oar')}"
    ask = next((body for body in bodies if body["kind"] == "ask"), None)
    if ask is None:
        return
    yield _event(producer, ask, ask["at"], "START", None)
    outcome = next((body for body in bodies if body["kind"] == "ask_outcome"), None)
    if outcome is None:
        return
    sqlstate = outcome["sqlstate"]
    state = {SUCCESS: "COMPLETE", QueryCanceled.sqlstate: "ABORT"}.get(sqlstate, "FAIL")
    steps = [body for body in bodies if body["kind"] == "step"]
    ended = {body["step"]: body for body in bodies if body["kind"] == "step_outcome"}
    yield {
        **_event(producer, ask, outcome["at"], state, sqlstate),
        "inputs": _inputs(producer, steps, ended),
        "outputs": _outputs(producer, steps),
    }


def _event(producer: str, ask: Body, at: str, state: str, sqlstate: str | None) -> Event:
    facets = {
        "oar_ask": {
            **_facet(producer, f"{_OWN}ask:1"),
            "principal": ask["principal"],
            "purpose": ask.get("purpose"),
            "roles": ask.get("roles"),
            "asked": ask["asked"],
            "route": ask["route"],
            "ownerCover": ask["kappa"],
            "catalogVersion": ask["catalog_version"],
            "statement": ask["statement"],
            "sqlstate": sqlstate,
        }
    }
    if sqlstate not in (None, SUCCESS):
        facets["errorMessage"] = {
            **_facet(producer, _standard("ErrorMessageRunFacet", "1-0-0")),
            "message": f"SQLSTATE {sqlstate}",
            "programmingLanguage": "SQL",
        }
    return {
        "eventType": state,
        "eventTime": at,
        "producer": producer,
        "schemaURL": _SCHEMA,
        "run": {"runId": ask["ask"], "facets": facets},
        "job": {"namespace": "oar", "name": f"{ask['asked']}/{ask['statement']}"},
        "inputs": [],
        "outputs": [],
    }


def _inputs(producer: str, steps: Sequence[Body], ended: dict[int, Body]) -> list[Event]:
    queries: dict[tuple[str, str], list[Event]] = {}
    for step in steps:
        outcome = ended.get(step["number"], {})
        query = {
            "sqlDigest": step["sql_digest"],
            "tables": step.get("tables", []),
            "rows": outcome.get("rows"),
            "microseconds": outcome.get("microseconds"),
            "sqlstate": outcome.get("sqlstate"),
            "keys": step["keys"],
            "rowCap": step["row_cap"],
            "rowCapRule": step["row_cap_rule"],
            "rules": step.get("rules", []),
            "policy": step["policy"],
        }
        for table in step.get("tables", []):
            queries.setdefault((step["owner"], table), []).append(query)
    return [
        {
            "namespace": _namespace(owner),
            "name": table,
            "inputFacets": {
                "oar_queries": {**_facet(producer, f"{_OWN}queries:1"), "queries": carried}
            },
        }
        for (owner, table), carried in queries.items()
    ]


def _outputs(producer: str, steps: Sequence[Body]) -> list[Event]:
    told: dict[tuple[str, str], list[Body]] = {}
    for step in steps:
        for disclosure in step["disclosures"]:
            target = disclosure["to_owner"], disclosure["to_column"]
            told.setdefault(target, []).append(disclosure)
    return [
        {
            "namespace": _namespace(owner),
            "name": f"keys for {column}",
            "facets": {
                "columnLineage": {
                    **_facet(producer, _standard("ColumnLineageDatasetFacet", "1-2-0")),
                    "fields": {_parts(column)[-1]: {"inputFields": _sources(disclosures)}},
                },
            },
            "outputFacets": {
                "outputStatistics": {
                    **_facet(producer, _standard("OutputStatisticsOutputDatasetFacet", "1-0-2")),
                    "rowCount": sum(disclosure["keys"] for disclosure in disclosures),
                },
                "oar_disclosures": {
                    **_facet(producer, f"{_OWN}disclosures:1"),
                    "disclosures": [
                        {
                            "fromOwner": disclosure["from_owner"],
                            "fromColumn": disclosure["from_column"],
                            "keys": disclosure["keys"],
                            "keyDigest": disclosure.get("key_digest"),
                            "rule": disclosure["rule"],
                            "policy": disclosure["policy"],
                        }
                        for disclosure in disclosures
                    ],
                },
            },
        }
        for (owner, column), disclosures in told.items()
    ]


def _sources(disclosures: Sequence[Body]) -> list[Event]:
    fields = {}
    for disclosure in disclosures:
        *_, table, column = _parts(disclosure["from_column"])
        source = {
            "namespace": _namespace(disclosure["from_owner"]),
            "name": table,
            "field": column,
        }
        fields[tuple(source.values())] = source
    return list(fields.values())


def _standard(name: str, version: str) -> str:
    return f"https://openlineage.io/spec/facets/{version}/{name}.json#/$defs/{name}"


def _facet(producer: str, schema: str) -> Event:
    return {"_producer": producer, "_schemaURL": schema}


def _namespace(owner: str) -> str:
    return f"oar://{owner}"


def _parts(name: str) -> list[str]:
    """Part a name that is spelt as policies spell it, at its dots."""
    return [bare or quoted.replace('""', '"') for quoted, bare in _NAME_PART.findall(name)]
