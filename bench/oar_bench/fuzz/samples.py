"""Worlds with a column of each type that owners publish, and values of those types.

Rows are joined on ``id``. In a tame world values are ones that most functions take, no two of a
column are equal without being the same, and the last row is all NULL. In a wild one they are the
ends and the odd ones of each type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from random import Random
from typing import Final

from oar_adapters.interface import base_type

from oar_bench.fuzz.world import SETTINGS, Column, Row, Table, World

SAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "smallint": ("1", "2", "3", "-7"),
    "integer": ("1", "2", "3", "-4"),
    "bigint": ("1", "2", "3", "40"),
    "numeric": ("1.5", "2", "0.25", "-3.125"),
    "numeric(8,3)": ("1.000", "2.500", "0.125", "-30.000"),
    "numeric(3,-2)": ("100", "-9900"),
    "real": ("1", "0.5", "2.25", "-3"),
    "double precision": ("1", "0.5", "2.25", "-3"),
    "boolean": ("t", "f"),
    "text": ("abc", "Bob", "\u00e9t\u00e9", "10", "a b"),
    "character varying": ("b", "B", "\u043a\u043b", "2"),
    "character varying(12)": ("abc", "Abd", "x_y", "7"),
    "character(5)": ("ab", "AB", "c d", "1"),
    "bpchar": ("ab", "c d"),
    "bytea": ("\\x61", "\\x00ff", "\\x6162", "\\x"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
             "01890a5d-ac96-774b-bcce-b302099a8057"),
    "date": ("2024-01-01", "2024-02-29", "1999-12-31", "2024-07-15"),
    "time without time zone": ("00:00:00", "12:30:00.25", "23:59:59"),
    "time(2) without time zone": ("01:02:03.25", "12:30:00"),
    "time with time zone": ("00:00:00+00", "12:30:00.25+03", "23:59:59-05"),
    "timestamp without time zone": ("2024-01-01 00:00:00", "2024-07-15 12:30:00.25",
                                    "2023-12-31 23:59:59"),
    "timestamp(3) without time zone": ("2024-01-01 00:00:00.125", "2024-07-15 12:30:00"),
    "timestamp with time zone": ("2024-01-01 00:00:00+00", "2024-07-15 12:30:00.25+00",
                                 "2023-12-31 23:30:00+00"),
    "interval": ("00:00:00", "02:30:00", "2 days", "1 mon", "-1 years -2 days"),
    "interval hour to second(2)": ("01:00:00", "00:00:00.25"),
    "json": ('{"a": 1, "b": [1, "x"]}', "[1, 2, null]", '"s"', "3"),
    "jsonb": ('{"a": 1, "b": [1, "x"]}', "[1, 2, null]", '"s"', "3"),
    "jsonpath": ('$."a"', "$[*]", '$."b"[0]'),
    "inet": ("10.0.0.1", "10.0.0.0/8", "::1", "192.168.1.5/24"),
    "cidr": ("10.0.0.0/8", "192.168.1.0/24", "::1/128"),
    "macaddr": ("08:00:2b:01:02:03", "00:00:00:00:00:01"),
    "macaddr8": ("08:00:2b:01:02:03:04:05", "00:00:00:ff:fe:00:00:01"),
    "bit(4)": ("0101", "1111", "0000"),
    "bit varying": ("01", "1", "110011"),
    "oid": ("1", "2", "16384"),
    "pg_lsn": ("0/0", "16/B374D848"),
    "xid8": ("5", "6"),
    "point": ("(0,0)", "(1,2)", "(-1.5,3)"),
    "lseg": ("[(0,0),(1,1)]", "[(1,2),(3,-4)]"),
    "line": ("{1,2,3}", "{0,-1,0}"),
    "box": ("(1,1),(0,0)", "(3,4),(1,2)"),
    "path": ("((0,0),(1,1),(2,0))", "[(0,0),(3,4)]"),
    "polygon": ("((0,0),(1,1),(2,0))", "((0,0),(0,4),(4,4),(4,0))"),
    "circle": ("<(0,0),1>", "<(1,2),3>"),
    "tsvector": ("'a':1 'cat':3", "'fat':2A 'rat':4"),
    "tsquery": ("'cat'", "'fat' & 'rat'", "'a' | !'b'"),
    "int4range": ("[1,5)", "[3,9)", "empty", "(,2)"),
    "int8range": ("[1,5)", "[3,9)", "empty"),
    "numrange": ("[1.5,5]", "(2,9)", "empty"),
    "daterange": ("[2024-01-01,2024-03-01)", "[2023-01-01,)"),
    "tsrange": ('["2024-01-01 00:00:00","2024-03-01 00:00:00")', '(,"2024-02-01 12:00:00"]'),
    "tstzrange": ('["2024-01-01 00:00:00+00","2024-03-01 00:00:00+00")',
                  '(,"2024-07-01 12:00:00+00"]'),
    "int4multirange": ("{[1,3),[7,9)}", "{}", "{[2,20)}"),
    "int8multirange": ("{[1,5)}",),
    "nummultirange": ("{[1.5,3],(7,9)}", "{}"),
    "datemultirange": ("{[2024-01-01,2024-03-01)}", "{}"),
    "tsmultirange": ('{["2024-01-01 00:00:00","2024-03-01 00:00:00")}',),
    "tstzmultirange": ('{["2024-01-01 00:00:00+00","2024-03-01 00:00:00+00")}',),
    "integer[]": ("{1,2,3}", "{}", "{NULL,5}", "{{1,2},{3,4}}"),
    "bigint[]": ("{1,2}", "{3}"),
    "real[]": ("{1,0.5}",),
    "double precision[]": ("{1,0.5}", "{}"),
    "numeric[]": ("{1.5,2}", "{0.25}"),
    "boolean[]": ("{t,f}", "{NULL}"),
    "text[]": ("{a,b}", "{}", '{"x y",NULL,B}'),
    "character(3)[]": ('{"ab ",c}',),
    "bytea[]": ('{"\\\\x00"}',),
    "date[]": ("{2024-01-01,2024-02-29}", "{}"),
    "timestamp with time zone[]": ('{"2024-01-01 00:00:00+00"}', "{}"),
    "interval[]": ("{02:30:00}",),
    "jsonb[]": ('{"{\\"a\\": 1}",3}', "{}"),
}  # fmt: skip
"""Some values of each type that PostgreSQL owners publish as it is, in the text form of ISO."""

WILD: Final[Mapping[str, tuple[str, ...]]] = {
    "smallint": ("32767", "-32768", "0"),
    "integer": ("2147483647", "-2147483648", "0"),
    "bigint": ("9223372036854775807", "-9223372036854775808", "9007199254740993", "0"),
    "numeric": ("NaN", "Infinity", "-Infinity", "1.50", "0.00", "9007199254740993", "1e30", "2.0"),
    "numeric(8,3)": ("0", "99999.999", "NaN"),
    "real": ("NaN", "Infinity", "-0", "0", "16777216", "0.1", "1e30"),
    "double precision": ("NaN", "-Infinity", "-0", "0", "9007199254740993", "0.1", "1e300"),
    "text": ("", " ", "ab ", "ab", "AB", "e\u0301", "\u00e9", "it's", "b\\s", "a\tb\nc",
             "\U0001f600", "\u0391\u03a3", "\u00df", "ss", "NULL", "{a,b}", "(1)", '"q"', "1.0"),
    "character varying": ("", "ab ", "ab", "AB", "\u00e9", "1"),
    "character varying(12)": ("ab ", "ab", "\U0001f600"),
    "character(5)": ("", "\u00e9", "\U0001f600", "a\tb", "it's", "\\"),
    "bpchar": ("ab ", "AB", " ", ""),
    "bytea": ("\\x00", "\\x5c", "\\xff00ff"),
    "uuid": ("ffffffff-ffff-ffff-ffff-ffffffffffff",),
    "date": ("infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01"),
    "time without time zone": ("24:00:00", "23:59:59.999999"),
    "time with time zone": ("12:00:00+00", "13:00:00+01", "24:00:00-15:59", "12:00:00+15:59:59"),
    "timestamp without time zone": ("infinity", "-infinity", "4714-11-24 00:00:00 BC",
                                    "294276-12-31 23:59:59.999999", "2024-01-01 00:00:00.125"),
    "timestamp with time zone": ("infinity", "-infinity", "4714-11-24 00:00:00+00 BC",
                                 "2024-03-31 02:30:00+01"),
    "interval": ("30 days", "720:00:00", "-1 days +24:00:00", "1 year -12 mons",
                 "178000000 years"),
    "jsonb": ("null", "1", "1.0", '"a"', '{"b": 1, "a": 1}', "[]", "{}", '"\\u00e9"'),
    "inet": ("10.0.0.1/32", "10.0.0.1/8", "0.0.0.0/0", "::/0", "255.255.255.255"),
    "cidr": ("0.0.0.0/0", "10.0.0.1/32"),
    "macaddr": ("ff:ff:ff:ff:ff:ff",),
    "macaddr8": ("ff:ff:ff:ff:ff:ff:ff:ff",),
    "bit(4)": ("0001",),
    "bit varying": ("", "0", "00", "0001"),
    "oid": ("4294967295", "0"),
    "pg_lsn": ("FFFFFFFF/FFFFFFFF",),
    "xid8": ("18446744073709551615",),
    "int4range": ("(,)", "[1,1]", "(0,2)"),
    "numrange": ("[1.0,2.0)", "[1.00,2.00)", "(,)"),
    "daterange": ("(,)", "[infinity,)", "[-infinity,2024-01-01]"),
    "int4multirange": ("{(,)}",),
    "tsvector": ("", "'a'", "'it''s'"),
    "integer[]": ("{1}", "{NULL}", "[0:1]={1,2}", "{{1}}"),
    "real[]": ("{0.1,NaN,-0}",),
    "numeric[]": ("{1.0}", "{1.00}", "{NaN}"),
    "text[]": ('{"",NULL,"NULL","a,b","\\"","\\\\"}', "{AB}", "{ab}"),
    "interval[]": ("{1 mon,30 days}",),
}  # fmt: skip
"""Further values: ends, special ones, and ones that are equal or look alike without being both."""

ORDERED: Final = frozenset(SAMPLES) - {"json", "jsonpath", "point", "line", "lseg", "box", "path",
                                       "polygon", "circle"}  # fmt: skip
"""Types whose values compare with each other, by all that they are."""

PLAIN: Final = (
    "bigint", "integer", "smallint", "numeric(8,3)", "double precision", "boolean", "text", "date",
    "timestamp without time zone",
)  # fmt: skip
"""Types of MariaDB's tables."""

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "sqlite": ("bigint", "numeric", "double precision", "boolean", "text", "date"),
    "mariadb": PLAIN,
}
_FAMILIES: Final = {"boolean": "bool"}
ROWS: Final = 6

_SETTINGS: Final[tuple[Mapping[str, str], ...]] = (
    *({}, {}, {}),
    *SETTINGS,
    {"IntervalStyle": "iso_8601"},
    {"IntervalStyle": "sql_standard", "TimeZone": "America/New_York"},
    {"DateStyle": "Postgres, DMY"},
    {"DateStyle": "ISO, YMD"},
    {"extra_float_digits": "3"},
    {"bytea_output": "escape"},
    {"transform_null_equals": "on"},
    {"quote_all_identifiers": "on"},
    {"default_text_search_config": "pg_catalog.english"},
    {"extra_float_digits": "-3"},
)
"""What a session may have set that changes what a function gives or a literal means."""


def column_name(type_: str) -> str:
    """Return the name of a type's column."""
    return "c_" + re.sub(r"\W+", "_", type_.replace("[]", " array")).strip("_")


def sample(random: Random, type_: str, *, wild: bool) -> str:
    """Draw a value of a type. Raises ``StopIteration`` where there is none."""
    name = type_ if type_ in SAMPLES else next(t for t in SAMPLES if base_type(t) == type_)
    return random.choice((*SAMPLES[name], *(WILD.get(name, ()) if wild else ())))


def typed_world(random: Random, name: str, kinds: Collection[str], *, wild: bool) -> World:
    """Return a world with a table at an owner of each of the kinds; where wild, some have two."""
    owners = {f"{name}_{kind}": kind for kind in kinds}
    tables = []
    for owner, kind in owners.items():
        names = [f"every_{kind}"]
        if wild and kind not in _TYPES:
            names.append(f"other_{kind}")
        tables += [_table(random, each, owner, kind, wild=wild) for each in names]
    return World(name, owners, tuple(tables), random.choice(_SETTINGS))


def _table(random: Random, name: str, owner: str, kind: str, *, wild: bool) -> Table:
    types = _TYPES.get(kind, tuple(SAMPLES))
    # Numbers and times that only PostgreSQL holds as they are stay with it.
    wild = wild and kind not in _TYPES
    columns = [Column("id", "bigint", "int", not_null=True)]
    columns += [Column(column_name(t), t, _FAMILIES.get(t, t)) for t in types]
    count = random.choice((3, 8, 14)) if wild else ROWS
    nulls = 0.12 if wild else 0.0
    rows: list[Row] = []
    few = {type_: [sample(random, type_, wild=wild) for _ in range(8)] for type_ in types}
    for number in range(1, count + 1):
        cells = [None if random.random() < nulls else random.choice(few[t]) for t in types]
        last = number == count and not wild
        rows.append((str(number), *([None] * len(types) if last else cells)))
    return Table(name, tuple(columns), ("id",), {owner: tuple(rows)})
