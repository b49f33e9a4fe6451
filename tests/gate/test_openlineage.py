"""``oar audit export --openlineage``: the events of asks, judged by what the standard requires.

The schema is the part of OpenLineage 2-0-2, and of its facets, that these events are of.
"""

import json
import uuid
from datetime import datetime
from urllib.parse import urlsplit

import jsonschema
import pytest
from oar_proxy.audit.openlineage import events
from oar_proxy.chain import Chain
from oar_proxy.ledger import Ask, Disclosure, StepEntry, StepOutcome, digest

TEXT = {"type": "string"}
URI = {"type": "string", "format": "uri"}


def record(required, **properties):
    return {"type": "object", "properties": properties, "required": required}


def facets(**standard):
    """Any facet has who made it and by which schema; standard ones have more."""
    return {
        "type": "object",
        "properties": standard,
        "additionalProperties": record(["_producer", "_schemaURL"], _producer=URI, _schemaURL=URI),
    }


def facet(name, version, required, **properties):
    url = f"https://openlineage.io/spec/facets/{version}/{name}.json#/$defs/{name}"
    own = {"_producer": URI, "_schemaURL": {"const": url}}
    return record(["_producer", "_schemaURL", *required], **own, **properties)


def dataset(**sorts):
    return {
        **record(["namespace", "name"], namespace=TEXT, name=TEXT, **sorts),
        "additionalProperties": False,
    }


ERROR = facet(
    *("ErrorMessageRunFacet", "1-0-0", ["message", "programmingLanguage"]),
    message=TEXT,
    programmingLanguage=TEXT,
)
SOURCE = record(["namespace", "name", "field"], namespace=TEXT, name=TEXT, field=TEXT)
LINEAGE = facet(
    *("ColumnLineageDatasetFacet", "1-2-0", ["fields"]),
    fields={
        "type": "object",
        "additionalProperties": record(
            ["inputFields"], inputFields={"type": "array", "items": SOURCE}
        ),
    },
)
COUNTS = {name: {"type": "integer"} for name in ("rowCount", "size", "fileCount")}
STATISTICS = facet("OutputStatisticsOutputDatasetFacet", "1-0-2", [], **COUNTS)
EVENT = record(
    ["eventTime", "producer", "schemaURL", "run", "job"],
    eventType={"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
    eventTime={"type": "string", "format": "date-time"},
    producer=URI,
    schemaURL={"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
    run=record(["runId"], runId={"type": "string", "format": "uuid"}, facets=facets(errorMessage=ERROR)),
    job=record(["namespace", "name"], namespace=TEXT, name=TEXT, facets=facets()),
    inputs={"type": "array", "items": dataset(facets=facets(), inputFacets=facets())},
    outputs={
        "type": "array",
        "items": dataset(
            facets=facets(columnLineage=LINEAGE), outputFacets=facets(outputStatistics=STATISTICS)
        ),
    },
)  # fmt: skip

FORMATS = jsonschema.FormatChecker(["uuid"])


@FORMATS.checks("uri")
def is_uri(text):
    parts = urlsplit(text)
    return bool(parts.scheme and parts.path) and text.isascii() and " " not in text


@FORMATS.checks("date-time", raises=ValueError)
def is_moment(text):
    return datetime.fromisoformat(text).tzinfo is not None and "T" in text


def bodies(sqlstate, *, steps):
    """What is on the ledger of an ask that ended so; None: of one that has not ended."""
    ask = Ask(uuid.uuid4(), "анна", digest("SELECT 1"), "sql", "relay", 2, "v", purpose="rent")
    told = Disclosure(
        *("a", 'a."T.x".k', "b", "b.u.k", 3, "a/key_disclosure[0]", "none", digest("keys"))
    )
    query = StepEntry("b", digest("q"), 10, "proxy/limits.max_rows", 3, "none", (told,), (), ("u",))
    contents = [("ask", ask.body())]
    if steps:
        contents += [
            ("step", query.body(ask)),
            ("step_outcome", StepOutcome(2, "00000", 2, 120).body(ask)),
            ("step", query.body(ask)),
        ]
    if sqlstate is not None:
        ended = {"ask": str(ask.id), "sqlstate": sqlstate, "rows": None, "refusal": None}
        contents.append(("ask_outcome", ended))
    chain = Chain(uuid.uuid4())
    at = "2026-11-30T00:00:00.000000+00:00"
    return [json.loads(chain.append(kind, at, content).body) for kind, content in contents]


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize(
    ("sqlstate", "states"),
    [
        ("00000", ["START", "COMPLETE"]),
        ("57014", ["START", "ABORT"]),
        ("42501", ["START", "FAIL"]),
        (None, ["START"]),
    ],
)
def test_events_are_of_the_standard(sqlstate, states, steps):
    found = list(events(bodies(sqlstate, steps=steps)))
    assert [event["eventType"] for event in found] == states
    jsonschema.Draft202012Validator.check_schema(EVENT)
    judge = jsonschema.Draft202012Validator(EVENT, format_checker=FORMATS)
    assert [error.message for event in found for error in judge.iter_errors(event)] == []
    assert len({event["run"]["runId"] for event in found}) == 1
    assert [len(event["outputs"]) for event in found[1:]] == [int(steps)] * (len(states) - 1)
