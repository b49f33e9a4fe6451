"""Owners of another version than the hub's: what whole statements compute is the same at both."""

from __future__ import annotations

import itertools
from random import Random

import psycopg
import pytest
from oar_adapters.interface import Column, Output, Statement, Table
from oar_adapters.postgres.whole import FUNCTIONS, speaks_alike

VALUES = {
    "smallint": ("1", "0", "-7", "32767", None),
    "integer": ("1", "0", "-3", "2147483647", "100", None),
    "bigint": ("1", "0", "-1", "9223372036854775807", "12", None),
    "numeric": ("1", "0.00", "-3.125", "123456789012345678901234567890.12345", "1e-20", "1e100",
                "NaN", "Infinity", "2.5", "3", "0.1000", None),
    "real": ("1", "-0", "NaN", "Infinity", "0.1", "2.5", None),
    "double precision": ("1", "-0", "NaN", "-Infinity", "1e300", "0.1", "-2.5", "9007199254740992"),
    "boolean": ("t", "f", None),
    "text": ("", "abc", "\u00e9", "e\u0301", "a b", "\u00df", "\\", " ab ", "aXbXc", "b", "day",
             "quarter", "week", "epoch", "\U0001f600", None),
    "bytea": ("\\x", "\\x00ff", "\\x61", None),
    "date": ("2024-02-29", "0001-01-01", "infinity", "4714-11-24 BC", "2020-12-31", None),
    "time without time zone": ("00:00:00", "24:00:00", "12:34:56.789", None),
    "timestamp without time zone": ("2024-02-29 12:34:56.789", "infinity", "0099-06-01 00:00 BC",
                                    "1969-12-31 23:59:59.999999", None),
    # Of these are differences of timestamps: days and seconds.
    "interval": ("-1 days", "35 days 25:00:00", "00:00:00.5", None),
}  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "%", "||", "=", "<", "~~")
MOST = 60
"""Combinations of values tried of each signature."""

SIGNATURES = """
SELECT proname::text, ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes::oid[]) AS t)
  FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
   AND proname = ANY (%s)
UNION
SELECT oprname::text, ARRAY[format_type(oprleft, NULL), format_type(oprright, NULL)]
  FROM pg_operator WHERE oprname = ANY (%s) AND oprleft <> 0
 ORDER BY 1, 2
"""


def literal(value, type_):
    return f"NULL::{type_}" if value is None else f"$v${value}$v$::{type_}"


def calls(connection):
    """Calls of every listed function and operator, each of constants."""
    random = Random(18)
    found = connection.execute(SIGNATURES, (list(FUNCTIONS), list(OPERATORS))).fetchall()
    for name, types in found:
        if not types or any(type_ not in VALUES for type_ in types):
            continue
        if name in OPERATORS and {"interval", "text"} & set(types) and name != "||":
            continue  # of two intervals only one is a column's, and the order of text is asked for
        combined = list(itertools.product(*(VALUES[type_] for type_ in types)))
        for values in random.sample(combined, min(MOST, len(combined))):
            listed = [literal(v, t) for v, t in zip(values, types, strict=True)]
            if name in OPERATORS:
                yield f"{listed[0]} {name} {listed[1]}"
            elif name not in ("repeat", "lpad", "rpad") or "2147483647" not in str(values):
                yield f'pg_catalog."{name}"({", ".join(listed)})'


def value(connection, expression):
    try:
        return connection.execute(f"SELECT ({expression})::text".encode()).fetchone()
    except psycopg.errors.Error as error:
        return error.sqlstate


def test_what_whole_statements_compute_is_the_same_at_both_versions(hub_server, icu_server):
    with (
        psycopg.connect(hub_server.conninfo, autocommit=True) as hub,
        psycopg.connect(icu_server, autocommit=True) as owner,
    ):
        told, apart = 0, []
        for expression in calls(hub):
            here, there = value(hub, expression), value(owner, expression)
            if isinstance(here, tuple) and isinstance(there, tuple):
                told += 1
                if here != there:
                    apart.append((expression, here, there))
    assert apart == []
    assert told > 3000


TABLE = Table(
    "t",
    (
        Column("id", "integer", "id"),
        Column("bin", "bytea", "bin"),
        Column("at", "timestamp without time zone", "at"),
    ),
    "t",
)


@pytest.mark.parametrize(
    ("text", "since_18"),
    [
        ("SELECT max(bin) FROM t", True),
        ("SELECT reverse(bin) FROM t", True),
        ("SELECT bin::int4 FROM t", True),
        ("SELECT min(q.x) FROM (SELECT * FROM t) AS q(i, x, a)", True),
        ("SELECT max(id) FROM t", False),
        ("SELECT count(bin), length(bin) FROM t GROUP BY bin", False),
        ("SELECT extract(week FROM at - '2020-01-01') FROM t", True),
        ("SELECT date_part('week', at - '2020-01-01') FROM t", True),
        ("SELECT extract(week FROM at) FROM t", False),
        ("SELECT extract(epoch FROM at - '2020-01-01') FROM t", False),
    ],
)
def test_an_older_owner_is_not_asked_for_what_came_later(text, since_18):
    statement = Statement(text, (TABLE,), (Output("c", "integer"),))
    assert speaks_alike(statement, {}, 18)
    assert speaks_alike(statement, {}, 17) is not since_18


@pytest.mark.parametrize(
    ("text", "since_16"),
    [
        ("SELECT count(*) FROM (SELECT id FROM t)", True),
        ("SELECT count(*) FROM ((SELECT id FROM t UNION SELECT 1))", True),
        ("SELECT 1 FROM t JOIN (SELECT id FROM t) ON true", True),
        ("SELECT 1 FROM t JOIN LATERAL (SELECT t.id) ON true", True),
        ("SELECT id FROM t WHERE id = 0x1F", True),
        ("SELECT id FROM t WHERE id = 0B11 OR id = 1_000", True),
        ("SELECT count(*) FROM (SELECT id FROM t) AS q", False),
        ("SELECT 1 FROM (t AS a JOIN t AS b ON true) JOIN LATERAL (SELECT 1) AS q ON true", False),
        ("SELECT (SELECT 1), id FROM t WHERE id IN (SELECT 2) AND EXISTS (SELECT 3)", False),
        ("WITH q AS (SELECT id FROM t) SELECT id FROM q UNION (SELECT 10)", False),
    ],
)
def test_an_older_owner_reads_the_grammar_of_its_version(text, since_16):
    statement = Statement(text, (TABLE,), (Output("c", "integer"),))
    assert speaks_alike(statement, {}, 15) is not since_16
    assert since_16 or speaks_alike(statement, {}, 16)
