"""PostgreSQL owners beyond the conformance suite: catalogs, collations, statements, connections."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import signal
import struct
from collections import Counter
from dataclasses import replace
from functools import partial

import asyncpg
import psycopg
import pytest
from oar_adapters.authorized import Authorized
from oar_adapters.batches import BATCH_BYTES
from oar_adapters.encodings import CODECS, holds
from oar_adapters.interface import (
    Agreement,
    Comparison,
    KeyFilter,
    Membership,
    Not,
    NullTest,
    Output,
    OwnerError,
    OwnerErrorKind,
    PatternMatch,
    Scan,
    SemiJoin,
    SortKey,
    Statement,
)
from oar_adapters.postgres import sql
from oar_adapters.postgres.snapshot import (
    BATCH_ROWS,
    FIRST_COMPUTED_ROWS,
    FIRST_WIDE_ROWS,
)
from oar_adapters.registry import open_adapter
from oar_adapters.testing.conformance.running import use
from oar_bench.addresses import owner_url

EXACT, SUPERSET, NONE = Agreement.EXACT, Agreement.SUPERSET, Agreement.NONE

CATALOG = """
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(10, 2) NOT NULL CHECK (VALUE >= 0);
CREATE DOMAIN low_price AS price CHECK (VALUE < 100);
CREATE TYPE pair AS (a int, b text);

CREATE TABLE every_type (
    small smallint, whole integer, big bigint, r real, dbl double precision, num numeric,
    num2 numeric(10, 2), bool boolean, txt text, vc varchar(20), ch char(5), uid uuid, day date,
    clock time, zoned_clock timetz, stamp timestamp(3), zoned timestamptz, bin bytea,
    span interval, js json, jsb jsonb, net inet, bits bit(3), ints int[], texts varchar(9)[],
    ranged int4range, spot point, cash money, ident name, obj oid, letter "char", doc xml,
    feeling mood, feelings mood[], cheap low_price, both_ pair, folded citext, free bpchar,
    words tsvector, sought tsquery, steps jsonpath, place pg_lsn, objs oid[], moment xid8,
    named regclass);
COMMENT ON TABLE every_type IS 'all of them';
COMMENT ON COLUMN every_type.feeling IS 'how it is';

CREATE TABLE keyed (
    id int PRIMARY KEY, code text UNIQUE, a int, b int, c int, d int, e int, f int, lower_ text,
    mood mood UNIQUE, spot point, folded citext UNIQUE,
    UNIQUE (a, b), UNIQUE NULLS NOT DISTINCT (c), UNIQUE (d) DEFERRABLE,
    UNIQUE (f) INCLUDE (a));
CREATE UNIQUE INDEX partial ON keyed (e) WHERE e > 0;
CREATE UNIQUE INDEX expression ON keyed (lower(lower_));
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE VIEW seen AS SELECT id, code FROM keyed;
CREATE MATERIALIZED VIEW kept AS SELECT id, code FROM keyed;
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE abroad (id int NOT NULL) SERVER files OPTIONS (filename '/dev/null');
CREATE TABLE secret (id int);
REVOKE ALL ON secret FROM PUBLIC, {reader};
CREATE TABLE half (id int, open text, hidden text);
REVOKE ALL ON half FROM PUBLIC, {reader};
GRANT SELECT (id, open) ON half TO {reader};
CREATE TABLE "Odd ""name"" t" ("Col umn" int, "select" text);
CREATE SCHEMA other;
CREATE TABLE other.elsewhere (id int);
CREATE TABLE other.keyed (id int);
GRANT USAGE ON SCHEMA other TO {reader};
GRANT SELECT ON ALL TABLES IN SCHEMA other TO {reader};
"""


def run(function):
    return asyncio.run(function())


async def rows_of(adapter, query):
    async with adapter.snapshot(10) as snapshot:
        batches = [batch async for batch in snapshot.run(Authorized(query, 1))]
    return [row for batch in batches for row in zip(*batch.columns, strict=True)]


@pytest.fixture(scope="module")
def catalog_owner(postgres_owner):
    conninfo, url = postgres_owner
    reader = url.split("//")[1].split(":")[0]
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(CATALOG.format(reader=reader))
        connection.execute(
            "INSERT INTO keyed (id, c) SELECT g, g FROM generate_series(1, 500) AS g"
        )
        connection.execute("ANALYZE keyed")
    return url


def published(url, **options):
    async def read(_adapter, tables):
        return tables

    return use(url, read, options)


@pytest.fixture(scope="module")
def tables(catalog_owner):
    return published(catalog_owner)


def test_publishes_what_the_role_may_read_and_no_partition(tables):
    assert sorted(tables) == sorted(
        ["every_type", "keyed", "deferred", "parent", "child", "parted", "seen", "kept", "abroad",
         "half", 'Odd "name" t']
    )  # fmt: skip
    assert [c.name for c in tables["half"].columns] == ["id", "open"]
    assert [c.source_name for c in tables['Odd "name" t'].columns] == ["Col umn", "select"]


@pytest.mark.parametrize(
    ("column", "type_", "equality", "ordered"),
    [
        ("small", "smallint", EXACT, True),
        ("whole", "integer", EXACT, True),
        ("big", "bigint", EXACT, True),
        ("r", "real", EXACT, True),
        ("dbl", "double precision", EXACT, True),
        ("num", "numeric", EXACT, True),
        ("num2", "numeric(10,2)", EXACT, True),
        ("bool", "boolean", EXACT, True),
        ("txt", "text", EXACT, True),
        ("vc", "character varying(20)", EXACT, True),
        ("ch", "character(5)", EXACT, True),
        ("free", "bpchar", EXACT, True),
        ("uid", "uuid", EXACT, True),
        ("day", "date", EXACT, True),
        ("clock", "time without time zone", EXACT, True),
        ("zoned_clock", "time with time zone", EXACT, True),
        ("stamp", "timestamp(3) without time zone", EXACT, True),
        ("zoned", "timestamp with time zone", EXACT, True),
        ("bin", "bytea", EXACT, True),
        ("span", "interval", EXACT, True),
        ("js", "json", NONE, False),
        ("jsb", "jsonb", EXACT, False),
        ("net", "inet", EXACT, True),
        ("bits", "bit(3)", EXACT, True),
        ("ints", "integer[]", NONE, False),
        ("texts", "character varying(9)[]", NONE, False),
        ("ranged", "int4range", NONE, False),
        ("spot", "point", NONE, False),
        ("cash", "text", NONE, False),
        ("ident", "text", NONE, False),
        ("obj", "oid", NONE, False),
        ("letter", "text", NONE, False),
        ("doc", "text", NONE, False),
        ("feeling", "text", EXACT, True),
        ("feelings", "text", NONE, False),
        ("cheap", "numeric(10,2)", EXACT, True),
        ("both_", "text", NONE, False),
        ("folded", "text", EXACT, True),
        ("words", "tsvector", NONE, False),
        ("sought", "tsquery", NONE, False),
        ("steps", "jsonpath", NONE, False),
        ("place", "pg_lsn", NONE, False),
        ("objs", "oid[]", NONE, False),
        ("moment", "xid8", NONE, False),
        ("named", "text", NONE, False),
    ],
)
def test_publishes_a_column_as_what_the_hub_has(tables, column, type_, equality, ordered):
    found = tables["every_type"].column(column)
    assert (found.type, found.equality, found.ordered) == (type_, equality, ordered)


def test_passes_comments_and_row_estimates_on(tables):
    assert tables["every_type"].comment == "all of them"
    assert tables["every_type"].column("feeling").comment == "how it is"
    assert tables["keyed"].row_estimate == 500
    assert tables["seen"].row_estimate == 1000


@pytest.mark.parametrize(
    ("table", "primary", "unique", "not_null"),
    [
        (
            "keyed",
            ("id",),
            {("code",), ("a", "b"), ("c",), ("f",), ("mood",), ("folded",)},
            {"id"},
        ),
        ("deferred", (), set(), {"id"}),
        ("parent", (), set(), set()),  # its children have their own keys, or none
        ("parted", ("id",), set(), {"id"}),
        ("seen", (), set(), set()),
        ("kept", (), set(), set()),
        ("abroad", (), set(), set()),  # a foreign table enforces nothing
    ],
)
def test_publishes_only_what_is_enforced_over_all_rows(tables, table, primary, unique, not_null):
    found = tables[table]
    assert found.primary_key == primary
    assert set(found.unique_keys) == unique
    assert {c.name for c in found.columns if c.not_null} == not_null


def test_publishes_other_schemas_and_only_the_tables_asked_for(catalog_owner):
    found = published(catalog_owner, schemas="public, other", tables="else*,half")
    assert {(t.source_schema, t.name) for t in found.values()} == {
        ("other", "elsewhere"),
        ("public", "half"),
    }


def test_publishes_two_tables_of_one_name_as_what_they_are(catalog_owner):
    """Whoever publishes them leaves both out."""

    async def tables():
        adapter = open_adapter(catalog_owner, {"schemas": "public,other"})
        try:
            return (await adapter.schema()).tables
        finally:
            await adapter.close()

    twice = Counter(table.name for table in asyncio.run(tables()))
    assert [name for name, times in twice.items() if times > 1] == ["keyed"]


# --- values that compare differently in one engine than in two ----------------------------------

TEXTS = """
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE EXTENSION citext;
CREATE TABLE texts (id int PRIMARY KEY, plain text, ci text COLLATE any_case, folded citext,
                    fixed char(5), vary varchar(5), swedish text COLLATE "sv-x-icu");
INSERT INTO texts SELECT n, v, v, v, v, v, v FROM unnest(
    ARRAY['Bob', 'bob', 'BOB', 'a', 'B', 'ab', 'ab ', 'é', 'z', 'å', '', NULL]
) WITH ORDINALITY AS u (v, n);
CREATE INDEX ON texts (plain);
"""


@pytest.fixture(scope="module")
def texts(icu_owner):
    conninfo, url = icu_owner
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(TEXTS)
        yield url, connection


CONDITIONS = [
    Comparison(column, op, value, type_)
    for column in ("plain", "ci", "folded", "vary", "swedish", "fixed")
    for op in ("=", "<>", "<", "<=", ">", ">=")
    for value in ("Bob", "a", "B", "ab", "ab ", "z", "é")
    for type_ in ("text", "character(5)", "character varying(2)")
]
CONDITIONS += [Not(condition) for condition in CONDITIONS]
CONDITIONS += [
    Membership(column, ("bob", "ab ", "é"), "text") for column in ("plain", "ci", "fixed")
]
CONDITIONS += [
    PatternMatch(column, pattern, negated)
    for column in ("plain", "ci", "folded", "fixed", "vary")
    for pattern in ("b%", "_b", "ab%", "%b ")
    for negated in (False, True)
]


def test_compares_text_as_the_hub_does_whatever_its_collation(texts):
    url, connection = texts
    # The hub's own text: published types, bytes in order.
    connection.execute(
        'CREATE TEMP TABLE hub AS SELECT id, plain, ci::text COLLATE "C" AS ci,'
        ' folded::text COLLATE "C" AS folded, fixed, vary, swedish FROM texts'
    )
    for column in ("plain", "fixed", "vary", "swedish"):
        connection.execute(f'ALTER TABLE hub ALTER "{column}" TYPE {_type(column)} COLLATE "C"')

    async def compare(adapter, tables):
        table = tables["texts"]
        taken = [c for c in CONDITIONS if adapter.supports(table, c)]
        wrong = []
        for condition in taken:
            found = {
                row[0]
                for row in await rows_of(adapter, Scan(table, table.columns[:1], (condition,)))
            }
            text = sql.condition(table, condition).replace("::text COLLATE", " COLLATE")
            due = connection.execute(f"SELECT id FROM hub WHERE {text}").fetchall()
            if not {struct.pack("!i", row[0]) for row in due} <= found:
                wrong.append(condition)
        return wrong, taken, table

    wrong, taken, table = use(url, compare)
    assert wrong == []
    assert table.column("ci").equality is SUPERSET
    assert table.column("folded").equality is EXACT
    assert Comparison("ci", "=", "Bob", "text") in taken
    assert Comparison("ci", "<>", "Bob", "text") not in taken
    assert Not(Comparison("ci", "=", "Bob", "text")) not in taken
    assert Comparison("ci", "<", "B", "text") in taken


def _type(column):
    return {"fixed": "char(5)", "vary": "varchar(5)"}.get(column, "text")


@pytest.mark.parametrize(
    ("column", "type_", "key", "due"),
    [
        ("fixed", "character", "ab   ", {6, 7}),
        ("fixed", "character", "ab", {6, 7}),
        ("fixed", "text", "ab", {6, 7}),
        ("fixed", "text", "ab ", set()),
        ("vary", "text", "ab ", {7}),
        ("vary", "character varying", "ab", {6}),
        ("plain", "text", "Bob", {1}),
        ("folded", "text", "Bob", {1}),
        ("ci", "text", "Bob", {1, 2, 3}),
    ],
)
def test_compares_text_keys_in_their_type(texts, column, type_, key, due):
    url, _ = texts

    async def find(adapter, tables):
        table = tables["texts"]
        keys = KeyFilter(column, type_, (key.encode(),))
        found = await rows_of(adapter, Scan(table, table.columns[:1], key_filters=(keys,)))
        return {struct.unpack("!i", row[0])[0] for row in found}

    assert use(url, find) == due


def test_knows_that_the_owner_orders_text_otherwise(texts, catalog_owner):
    async def order(url):
        adapter = open_adapter(url, {})
        before = adapter.capabilities.statements
        await adapter.schema()
        await adapter.close()
        return before, adapter.capabilities.text_order

    assert asyncio.run(order(texts[0])) == (False, False)
    assert asyncio.run(order(catalog_owner)) == (False, True)


# --- types in text format, keys of other widths -------------------------------------------------


def test_uses_an_index_for_keys_of_another_width(catalog_owner, postgres_owner):
    table = published(catalog_owner)["keyed"]
    keys = KeyFilter("id", "bigint", (struct.pack("!q", 7),))
    text = sql.scan(Scan(table, table.columns[:1], key_filters=(keys,)))
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN " + text.replace("$1", "'{7,8}'")).fetchall()
    assert "Index Cond: (id = ANY" in str(plan)


def test_publishes_what_analyze_counted_and_no_value(catalog_owner, postgres_owner):
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("CREATE TABLE counted (n int, word text, empty_ text, new text)")
        connection.execute("GRANT SELECT ON counted TO PUBLIC")
        connection.execute(
            "INSERT INTO counted SELECT g % 10, CASE WHEN g % 4 > 0 THEN 'secret ' || g END"
            " FROM generate_series(1, 1000) AS g"
        )
        connection.execute("ANALYZE counted (n, word, empty_)")
        connection.execute("INSERT INTO parted SELECT g, 'v' || g % 5 FROM generate_series(0, 9) g")
        connection.execute("ANALYZE parted")
    found = published(catalog_owner)
    assert [(c.name, c.distinct, c.null_fraction) for c in found["counted"].columns] == [
        ("n", 10.0, 0.0),
        ("word", 750.0, 0.25),
        ("empty_", None, 1.0),
        ("new", None, None),
    ]
    assert [(c.distinct, c.null_fraction) for c in found["parted"].columns] == [(10, 0), (5, 0)]
    assert all(c.distinct is None for c in found["seen"].columns)
    assert "secret" not in repr(found)


def test_uses_an_index_of_several_columns_for_composite_keys(
    catalog_owner, collated, postgres_owner
):
    plain = KeyFilter("plain", "text", (b"ok",))
    keys = KeyFilter(
        "id", "bigint", (struct.pack("!q", 7),), (plain, replace(plain, column="bytes_"))
    )
    text = sql.scan(Scan(collated, collated.columns[:1], key_filters=(keys,)))
    with psycopg.connect(postgres_owner[0]) as connection:
        connection.execute("CREATE INDEX ON collated (bytes_, plain, id)")
        connection.execute("ALTER TABLE collated DROP CONSTRAINT collated_pkey")
        connection.execute("SET search_path = pg_catalog; SET enable_seqscan = off")
        connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
        given = text.replace("$1", "'{7}'").replace("$2", "'{ok}'").replace("$3", "'{ok}'")
        plan = str(connection.execute("EXPLAIN " + given).fetchall())
        connection.rollback()
    (condition,) = re.findall(r"Index Cond: ([^']*)", plan)
    assert [name in condition for name in ("(bytes_ = ", "(plain = ", "(id = ")] == [True] * 3


COLLATED = """
CREATE TABLE collated (id int PRIMARY KEY, plain text, bytes_ text COLLATE "C",
    posix varchar(9) COLLATE "POSIX", folded citext, mood mood);
INSERT INTO collated VALUES (1, 'ok', 'OK', 'sad', 'ok', 'sad'), (2, 'sad', 'ok', 'Ok', 'Sad', 'ok'),
    (3, 'OK', NULL, 'ok', NULL, NULL)
"""


@pytest.fixture(scope="module")
def collated(catalog_owner, postgres_owner):
    reader = catalog_owner.split("//")[1].split(":")[0]
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute(COLLATED)
        connection.execute(f"GRANT SELECT ON collated TO {reader}")
    return published(catalog_owner)["collated"]


def test_text_columns_of_any_collation_join_inside(catalog_owner, collated):
    names, table = ("plain", "bytes_", "posix", "folded", "mood"), collated

    async def join(adapter, _tables):
        texts = {}
        for name in names:
            rows = await rows_of(adapter, Scan(table, (table.column("id"), table.column(name))))
            texts[name] = dict(rows)
        for left, right in itertools.product(names, names):
            inside = SemiJoin(left, right, Scan(table, ()))
            query = Scan(table, (table.column("id"),), semi_joins=(inside,))
            found = [row[0] for row in await rows_of(adapter, query)]
            keys = set(texts[right].values()) - {None}
            due = [id_ for id_, text in texts[left].items() if text in keys]
            assert sorted(found) == sorted(due), (left, right)
            both = SemiJoin(left, right, Scan(table, ()), (("id", "id"), (right, left)))
            query = Scan(table, (table.column("id"),), semi_joins=(both,))
            found = [row[0] for row in await rows_of(adapter, query)]
            alike = [n for n, text in texts[left].items() if text and text == texts[right][n]]
            assert sorted(found) == sorted(alike), (left, right)
            # What stands beside each other somewhere, and each text beside one of another row.
            known = [n for n in sorted(texts[left]) if texts[left][n] and texts[right][n]]
            rows = {(texts[left][n], texts[right][m]) for n, m in itertools.pairwise(known)}
            rows |= {(texts[left][n], texts[right][n]) for n in known[:1]}
            beside = KeyFilter(right, "text", tuple(text for _, text in rows))
            keys = KeyFilter(left, "text", tuple(text for text, _ in rows), (beside,))
            query = Scan(table, (table.column("id"),), key_filters=(keys,))
            found = [row[0] for row in await rows_of(adapter, query)]
            due = [n for n in sorted(texts[left]) if (texts[left][n], texts[right][n]) in rows]
            assert sorted(found) == due, (left, right)

    use(catalog_owner, join)


def test_a_column_that_is_gone_is_not_taken_from_the_scan_outside(catalog_owner, postgres_owner):
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("CREATE TABLE lost (id int, a int)")
        reader = postgres_owner[1].split("//")[1].split(":")[0]
        connection.execute(f"GRANT SELECT ON lost TO {reader}")

    async def join(adapter, tables):
        with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
            connection.execute("ALTER TABLE lost DROP COLUMN a")
        inner = Scan(tables["lost"], (), (Comparison("a", "=", "1", "integer"),))
        query = Scan(tables["keyed"], tables["keyed"].columns[:1],
                     semi_joins=(SemiJoin("id", "id", inner),))  # fmt: skip
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, query)
        return caught.value.kind

    assert use(catalog_owner, join) is OwnerErrorKind.SCHEMA_CHANGED


def test_uses_indexes_for_a_semi_join(catalog_owner, collated, postgres_owner):
    table = published(catalog_owner)["keyed"]
    keys = KeyFilter("id", "integer", (struct.pack("!i", 7),))
    inside = SemiJoin("code", "bytes_", Scan(collated, (), key_filters=(keys,)))
    text = sql.scan(Scan(table, table.columns[:1], semi_joins=(inside,)))
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off")
        plan = connection.execute("EXPLAIN " + text.replace("$1", "'{7,8}'")).fetchall()
    assert "Index Cond: (id = ANY" in str(plan)
    assert "Index Cond: (code = " in str(plan)


@pytest.mark.parametrize(
    ("column", "type_", "keys", "due"),
    [
        ("whole", "bigint", [struct.pack("!q", 40000), struct.pack("!q", 2**40)], 1),
        ("small", "integer", [struct.pack("!i", 1), struct.pack("!i", 40000)], 1),
        ("span", "interval", [b"30 days"], 1),
        ("net", "inet", [b"10.0.0.1"], 1),
        ("jsb", "jsonb", [b'{"a": 1.0}'], 1),
        ("bits", "bit(3)", [b"101", b"1010"], 1),
        ("feeling", "text", [b"ok", b"nosuch"], 1),
        ("stamp", "timestamp without time zone", [struct.pack("!q", 123_000)], 1),
    ],
)
def test_finds_keys_of_every_format(catalog_owner, postgres_owner, column, type_, keys, due):
    values = {
        "whole": "40000", "small": "1", "span": "'1 mon'", "net": "'10.0.0.1'",
        "jsb": "'{\"a\": 1}'", "bits": "'101'", "feeling": "'ok'", "cheap": "1",
        "stamp": "'2000-01-01 00:00:00.123'",
    }  # fmt: skip
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("TRUNCATE every_type")
        connection.execute(
            f"INSERT INTO every_type ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        )

    async def find(adapter, tables):
        table = tables["every_type"]
        query = Scan(table, table.columns, key_filters=(KeyFilter(column, type_, tuple(keys)),))
        return await rows_of(adapter, query)

    assert len(use(catalog_owner, find)) == due


SORTED_OTHERWISE = {
    "interval": ("2 days", "10 days", "1 mon"),
    "inet": ("9.0.0.1", "10.0.0.1", "::1"),
    "cidr": ("9.0.0.0/8", "10.0.0.0/8"),
    "timetz": ("09:00:00+00", "10:00:00+03"),
    "bit varying": ("1", "01"),
    "bpchar": ("a", "B"),
    "text": ("a", "B"),
}
"""Values of types with an order, most of which their texts have another one than."""


@pytest.mark.parametrize("type_", SORTED_OTHERWISE)
@pytest.mark.parametrize("descending", [False, True])
def test_first_rows_are_those_of_the_type_and_not_of_its_text(postgres_owner, type_, descending):
    conninfo, url = postgres_owner
    listed = ", ".join(f"('{value}')" for value in SORTED_OTHERWISE[type_])
    collate = 'COLLATE "C"' if type_ in ("text", "bpchar") else ""
    direction = "DESC" if descending else ""

    async def scan(adapter, tables):
        table = tables["sorted_otherwise"]
        key = SortKey("v", descending, nulls_first=False)
        return await rows_of(adapter, Scan(table, table.columns, limit=1, order=(key,)))

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE sorted_otherwise (v {type_})")
        try:
            connection.execute(f"INSERT INTO sorted_otherwise VALUES {listed}")
            connection.execute("GRANT SELECT ON sorted_otherwise TO PUBLIC")
            ((due,),) = connection.execute(
                f"SELECT v::text FROM sorted_otherwise AS t ORDER BY t.v {collate} {direction} LIMIT 1"
            )
            ((cell,),) = use(url, scan)
        finally:
            connection.execute("DROP TABLE sorted_otherwise")
    assert cell.decode() == due


@pytest.fixture(scope="module")
def latin(hub_server):
    """A database of Latin letters, and how an adapter reaches it."""
    name = f"latin_{secrets.token_hex(4)}"
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc"
            " TEMPLATE template0"
        )
    conninfo = psycopg.conninfo.make_conninfo(hub_server.conninfo, dbname=name)
    with psycopg.connect(conninfo, autocommit=True, client_encoding="utf8") as connection:
        connection.execute("CREATE TABLE words (id int, v text, w text)")
        connection.execute("INSERT INTO words VALUES (1, 'x', 'y'), (2, 'é', 'ÿ'), (3, NULL, 'é')")
    yield owner_url(conninfo)
    with psycopg.connect(hub_server.conninfo, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("keys", "also", "due"),
    [
        (["x", "é", "Привет", "日本", "😀"], None, [1, 2]),
        (["Привет"], None, []),
        (["é", "x", "é"], ["ÿ", "Ж", "я"], [2]),
    ],
)
def test_keys_that_the_owner_has_no_characters_for_find_nothing(latin, keys, also, due):
    def filter_of(column, values):
        return KeyFilter(column, "text", tuple(value.encode() for value in values))

    async def find(adapter, tables):
        table = tables["words"]
        looked_up = filter_of("v", keys)
        if also is not None:
            looked_up = replace(looked_up, also=(filter_of("w", also),))
        query = Scan(table, (table.column("id"),), key_filters=(looked_up,))
        return [int.from_bytes(cell, "big") for (cell,) in await rows_of(adapter, query)]

    assert sorted(use(latin, find)) == due


@pytest.mark.parametrize("text", ["x", "é", "Ж"])
def test_constants_that_the_owner_has_no_characters_for_stay_here(latin, text):
    async def ask(adapter, tables):
        table = tables["words"]
        statement = Statement(
            f"SELECT v || '{text}' FROM public.words", (table,), (Output("c", "text"),)
        )
        return [
            adapter.supports(table, Comparison("v", "=", text, "text")),
            adapter.supports(table, Comparison("v", "<>", text, "text")),
            adapter.supports(table, Membership("v", ("x", text), "text")),
            adapter.supports_statement(statement),
        ]

    assert use(latin, ask) == [text != "Ж"] * 4


@pytest.mark.parametrize("encoding", CODECS)
def test_an_encoding_has_the_characters_that_postgresql_says(postgres_owner, encoding):
    query = "SELECT convert_from(%s, %s)"
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        held = set()
        for byte in range(1, 256):
            try:
                (character,) = connection.execute(query, (bytes([byte]), encoding)).fetchone()
            except psycopg.errors.UntranslatableCharacter:
                continue
            held.add(character)
    assert len(held) > 200
    assert all(holds(character, encoding) for character in held)
    others = set(map(chr, range(1, 0xD800))) - held
    assert not any(holds(character, encoding) for character in others if not character.isascii())
    assert holds("é", "EUC_JP") is None


def test_tests_a_composite_for_null_as_the_text_it_is_published_as(catalog_owner, postgres_owner):
    with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
        connection.execute("TRUNCATE every_type")
        connection.execute("INSERT INTO every_type (cheap, both_) VALUES (1, ROW(NULL, NULL))")

    async def find(adapter, tables):
        table = tables["every_type"]
        query = Scan(table, (table.column("both_"),), (NullTest("both_", negated=True),))
        return await rows_of(adapter, query)

    assert use(catalog_owner, find) == [(b"(,)",)]


# --- whole statements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('SELECT whole FROM every_type', True),
        ("SELECT whole FROM every_type WHERE txt LIKE 'a%'", True),
        ("SELECT whole FROM every_type WHERE txt ILIKE 'a%'", False),
        ("SELECT whole FROM every_type WHERE txt ~ 'a'", False),
        ("SELECT count(*) FROM every_type", True),
        ("SELECT count(*) FROM every_type WHERE day > current_date", False),
        ("SELECT folded FROM every_type", False),
        ("SELECT feeling FROM every_type", False),
        ("SELECT * FROM every_type", False),
        ("SELECT e FROM every_type AS e", False),
        ("SELECT 1 FROM every_type NATURAL JOIN keyed", False),
        ("SELECT max(zoned) FROM every_type", True),
        ("SELECT zoned::date FROM every_type", False),
        ("SELECT count(*) FROM every_type WHERE zoned > '2020-01-01'", False),
        ("SELECT date_trunc('month', stamp) FROM every_type", True),
        ("SELECT date_trunc('month', day) FROM every_type", False),
        ("SELECT date_trunc('month', stamp::date) FROM every_type", False),
        ("SELECT pg_catalog.date_trunc('month', day) FROM every_type", False),
        ("SELECT pg_catalog.\"min\"(bin) FROM every_type", False),
        ("SELECT random() FROM every_type", False),
        ("DELETE FROM every_type", False),
        ("SELECT 1; SELECT 2", False),
        ("SELEC", False),
    ],
)  # fmt: skip
def test_takes_a_statement_only_if_it_means_the_same(catalog_owner, text, taken):
    async def ask(adapter, tables):
        used = tuple(t for t in tables.values() if t.name in ("every_type", "keyed"))
        return adapter.supports_statement(Statement(text, used, (Output("c", "integer"),)))

    assert use(catalog_owner, ask) is taken


def test_keeps_the_order_and_the_types_of_a_statement(catalog_owner):
    async def ask(adapter, tables):
        keyed = tables["keyed"]
        statement = Statement(
            'SELECT "id" % 7, count(*), sum("id"), max("id")::text FROM "public"."keyed"'
            " GROUP BY 1 ORDER BY 3 DESC, 1 -- no more",
            (keyed,),
            (Output("a", "smallint"), Output("b", "bigint"), Output("c", "numeric(20,3)"),
             Output("d", "character varying")),
            limit=3,
        )  # fmt: skip
        assert adapter.supports_statement(statement)
        return await rows_of(adapter, statement)

    found = use(catalog_owner, ask)
    sums = {r: sum(n for n in range(1, 501) if n % 7 == r) for r in range(7)}
    order = sorted(range(7), key=lambda r: (-sums[r], r))[:3]
    assert [struct.unpack("!h", row[0])[0] for row in found] == order
    assert [row[3] for row in found] == [
        str(max(n for n in range(1, 501) if n % 7 == r)).encode() for r in order
    ]


def test_wide_rows_come_in_smaller_batches(catalog_owner):
    async def ask(adapter, _tables):
        text = "SELECT repeat('x', 10000), NULL::int4 FROM generate_series(1, 7000)"
        statement = Statement(text, (), (Output("wide", "text"), Output("none", "integer")))
        async with adapter.snapshot(20) as snapshot:
            batches = snapshot.run(Authorized(statement, ledger_entry=1))
            return [batch.rows async for batch in batches]

    first, *others = use(catalog_owner, ask)
    assert first == FIRST_COMPUTED_ROWS
    assert sum(others) == 7000 - FIRST_COMPUTED_ROWS
    assert max(others) <= BATCH_BYTES / 10_000


def test_few_rows_of_a_table_with_wide_ones_are_held_at_once(postgres_owner):
    """Neither before their width is known, nor because few keys find them, nor in few blocks."""
    conninfo, url = postgres_owner
    keys = tuple(struct.pack("!i", key) for key in range(1, 501))

    async def ask(adapter, tables):
        table = tables["documents"]
        found = Scan(table, table.columns, (), (KeyFilter("id", "integer", keys),))
        counts = []
        async with adapter.snapshot(20) as snapshot:
            for query in (
                Scan(table, table.columns),
                found,
                Scan(tables["all_documents"], table.columns),
                Scan(table, table.columns[:1]),
            ):
                counts.append([b.rows async for b in snapshot.run(Authorized(query, 1))])
        return counts

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE documents (id int, doc text)")
        connection.execute("ALTER TABLE documents ALTER doc SET STORAGE EXTERNAL")
        connection.execute(
            "INSERT INTO documents SELECT i, CASE WHEN i <= 500 THEN repeat('x', 100000) END"
            " FROM generate_series(1, 20000) AS i"
        )
        connection.execute("CREATE VIEW all_documents AS TABLE documents")
        connection.execute("ANALYZE documents; GRANT SELECT ON documents, all_documents TO PUBLIC")
        try:
            all_, found, viewed, numbers = use(url, ask)
        finally:
            connection.execute("DROP TABLE documents CASCADE")
    assert (sum(all_), sum(found), sum(viewed), sum(numbers)) == (20_000, 500, 20_000, 20_000)
    for counts in (all_, found, viewed):
        assert counts[0] == FIRST_WIDE_ROWS
        assert counts[1] <= BATCH_BYTES / 100_000
    assert numbers[0] > BATCH_ROWS, "what is not wide comes in blocks"


def test_workers_share_a_query_with_few_groups(postgres_owner):
    """Fetched some rows at a time, as everything else is, a query gets none."""
    conninfo, url = postgres_owner

    async def ask(adapter, tables):
        table = tables["scanned"]
        number = Output("n", "integer")
        processes = Statement(
            'SELECT "g", min(public.process("id")), max(public.process("id"))'
            ' FROM "public"."scanned" GROUP BY "g"',
            (table,),
            (number, number, number),
            limit=1000,
        )
        leader = Statement("SELECT pg_backend_pid()", (), (number,))
        # PostgreSQL takes this for a thousand rows.
        many = Statement(
            'SELECT "id" FROM "public"."scanned" WHERE length("pad") = 60', (table,), (number,)
        )
        rows = []
        async with adapter.snapshot(20) as snapshot:
            for query in (processes, leader):
                batches = [batch async for batch in snapshot.run(Authorized(query, 1))]
                rows.append([row for batch in batches for row in zip(*batch.columns, strict=True)])
            counts = [batch.rows async for batch in snapshot.run(Authorized(many, 1))]
        return *rows, counts

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION process(int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS"
            " 'BEGIN RETURN pg_catalog.pg_backend_pid(); END'"
        )
        connection.execute(
            "CREATE TABLE scanned AS SELECT i AS id, i % 7 AS g, repeat('x', 60) AS pad"
            " FROM generate_series(1, 200000) AS i"
        )
        connection.execute("ANALYZE scanned; GRANT SELECT ON scanned TO PUBLIC")
        try:
            groups, ((leader,),), counts = use(url, ask)
        finally:
            connection.execute("DROP TABLE scanned; DROP FUNCTION process")
    assert len(groups) == 7
    assert {process for _, *both in groups for process in both} - {leader}
    assert sum(counts) == 200_000
    assert max(counts) <= BATCH_ROWS


@pytest.mark.parametrize(
    ("pool_size", "limit", "more"),
    [
        (4, "", 1),
        (1, "", 0),
        # Another statement would be left none.
        (2, "", 0),
        (4, "REVOKE EXECUTE ON FUNCTION pg_export_snapshot() FROM PUBLIC", 0),
        (4, "ALTER ROLE {reader} CONNECTION LIMIT 1", 0),
    ],
)
def test_two_connections_share_a_large_table_and_see_one_moment(
    postgres_owner, pool_size, limit, more
):
    conninfo, url = postgres_owner
    reader = re.search(r"//(\w+):", url)[1]
    idle = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oar'"
        " AND datname = current_database() AND state = 'idle'"
    )

    async def ask(writer, pool_size):
        adapter = open_adapter(url, {"pool_size": str(pool_size)})
        table = next(t for t in (await adapter.schema()).tables if t.name == "shared")
        scan = Scan(table, (table.column("id"),))
        before = writer.execute(idle).fetchone()[0]
        async with adapter.snapshot(20) as snapshot:
            writer.execute("UPDATE shared SET id = -id; INSERT INTO shared VALUES (0, 'new')")
            left_half_way = snapshot.run(Authorized(scan, 1))
            await anext(left_half_way)
            found = [b async for b in snapshot.run(Authorized(scan, 1))]
            (count,) = [b.rows async for b in snapshot.run(Authorized(Scan(table, ()), 1))]
        connections = writer.execute(idle).fetchone()[0] - before
        await adapter.close()
        cells = [cell for batch in found for cell in batch.columns[0]]
        return count, [struct.unpack("!i", cell)[0] for cell in cells], connections

    with psycopg.connect(conninfo, autocommit=True) as writer:
        writer.execute("CREATE TABLE shared (id int, pad text)")
        writer.execute(
            "INSERT INTO shared SELECT i, repeat('x', 60) FROM generate_series(1, 100000) AS i"
        )
        writer.execute("ANALYZE shared; GRANT SELECT ON shared TO PUBLIC")
        writer.execute(limit.format(reader=reader))
        try:
            count, found, connections = run(partial(ask, writer, pool_size))
        finally:
            writer.execute("DROP TABLE shared")
            writer.execute(f"ALTER ROLE {reader} CONNECTION LIMIT -1")
            writer.execute("GRANT EXECUTE ON FUNCTION pg_export_snapshot() TO PUBLIC")
    assert (count, connections) == (100_000, more)
    assert found == list(range(1, 100_001))


@pytest.mark.parametrize("each", [1, 50])
def test_rows_of_many_keys_come_whole_however_many_each_finds(postgres_owner, each):
    conninfo, url = postgres_owner
    keys = tuple(struct.pack("!i", key) for key in range(1, 401))

    async def ask(adapter, tables):
        table = tables["found"]
        scan = Scan(table, table.columns, (), (KeyFilter("k", "integer", keys),), limit=100_000)
        found = await rows_of(adapter, scan)
        few = await rows_of(adapter, replace(scan, limit=7))
        return found, few

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE found (k int, note text)")
        connection.execute(
            "INSERT INTO found SELECT k, CASE WHEN k %% 3 > 0 THEN 'n' || k END"
            " FROM generate_series(1, 900) AS k, generate_series(1, %s)",
            [each],
        )
        connection.execute("GRANT SELECT ON found TO PUBLIC")
        try:
            found, few = use(url, ask)
        finally:
            connection.execute("DROP TABLE found")
    due = Counter(
        (key, f"n{number}".encode() if number % 3 else None)
        for number, key in enumerate(keys, start=1)
        for _ in range(each)
    )
    assert Counter(found) == due
    assert len(few) == 7


# --- connections --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("oracle://u:p4ss@h/d", {}, "'oracle'.*postgresql.*sqlite"),
        ("p4ss", {}, "no known scheme"),
        ("user:p4ss@host", {}, "no known scheme"),
        ("postgresql:host", {}, "postgresql://user@host"),
        ("postgresql://u:p4ss@h/d", {"pool_size": "p4ss"}, "pool_size"),
        ("postgresql://u:p4ss@h/d", {"pool_size": "0"}, "pool_size"),
        ("postgresql://u:p4ss@h/d", {"pool_size": "1.5"}, "pool_size is not a whole number"),
        ("postgresql://u:p4ss@h/d", {"pools": "p4ss"}, "pools"),
        ("sqlite://relative.sqlite", {}, "sqlite:////absolute"),
        ("sqlite:////a", {"case": "p4ss"}, "case"),
        ("sqlite:////a", {"types": "a=integer"}, r"table\.column=type"),
        ("sqlite:////a", {"types": "a.b=p4ss"}, "double precision"),
        ("sqlite:////a", {"pool_size": "many"}, "pool_size"),
    ],
)
def test_refuses_urls_and_options_without_quoting_a_credential(url, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_adapter(url, options)
    assert "p4ss" not in str(caught.value)


def test_says_that_a_password_is_wrong_without_saying_it(catalog_owner):
    async def ask():
        wrong = catalog_owner.replace("@/", "wrong@/")
        adapter = open_adapter(wrong, {})
        with pytest.raises(OwnerError) as caught:
            await adapter.schema()
        await adapter.close()
        return caught.value

    error = run(ask)
    assert error.kind is OwnerErrorKind.UNREACHABLE
    assert error.sqlstate == "28P01"
    assert "wrong" not in str(error)


def test_gives_up_waiting_for_a_connection_at_the_deadline(catalog_owner):
    async def ask(adapter, _tables):
        async with adapter.snapshot(10):
            with pytest.raises(OwnerError) as caught:
                async with adapter.snapshot(0.2):
                    pass
        return caught.value.kind

    assert use(catalog_owner, ask, {"pool_size": "1"}) is OwnerErrorKind.TIMEOUT


async def hang_up(adapter, query, connection, noticed_after):
    async with adapter.snapshot(10) as snapshot:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'oar' AND datname = current_database()"
        )
        await asyncio.sleep(noticed_after)
        with pytest.raises(OwnerError) as caught:
            await anext(aiter(snapshot.run(query)))
    return caught.value


@pytest.mark.parametrize("noticed_after", [0, 0.3], ids=["while asking", "before"])
def test_recovers_when_the_owner_hangs_up(catalog_owner, postgres_owner, noticed_after):
    async def ask(adapter, tables):
        table = tables["keyed"]
        query = Authorized(Scan(table, table.columns[:1]), 1)
        with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
            error = await hang_up(adapter, query, connection, noticed_after)
        found = await rows_of(adapter, query.query)
        return error.kind, len(found)

    assert use(catalog_owner, ask, {"pool_size": "1"}) == (OwnerErrorKind.UNREACHABLE, 500)


def test_a_connection_that_is_still_busy_at_the_end_is_hung_up(catalog_owner, monkeypatch):
    """asyncpg says so in an error of its own, which is nothing that the statement did."""
    execute = asyncpg.Connection.execute

    async def busy(connection, query, *arguments, **options):
        if query == "ROLLBACK":
            raise asyncpg.InternalClientError("another operation (2) is in progress")
        return await execute(connection, query, *arguments, **options)

    async def ask(adapter, tables):
        table = tables["keyed"]
        query = Authorized(Scan(table, table.columns[:1]), 1)
        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.Connection, "execute", busy)
            async with adapter.snapshot(10):
                pass
        return len(await rows_of(adapter, query.query))

    assert use(catalog_owner, ask, {"pool_size": "1"}) == 500


def test_an_owner_that_hangs_keeps_nobody_who_has_given_up(
    catalog_owner, postgres_owner, monkeypatch
):
    monkeypatch.setattr("oar_adapters.postgres.session.ROLLBACK_SECONDS", 600)

    async def ask(adapter, tables):
        query = Scan(tables["keyed"], tables["keyed"].columns[:1])
        await rows_of(adapter, query)
        with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
            (pid,) = connection.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE application_name = 'oar' AND datname = current_database()"
            ).fetchone()
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(rows_of(adapter, query), 0.5)
                return len(await rows_of(adapter, query))
        finally:
            os.kill(pid, signal.SIGCONT)

    assert use(catalog_owner, ask, {"pool_size": "1"}) == 500


def test_leaves_nothing_behind_in_a_connection(catalog_owner):
    async def ask(adapter, _tables):
        change = Statement(
            "SELECT set_config('search_path', 'public', false)"
            " || set_config('default_transaction_read_only', 'off', false)"
            " || set_config('application_name', 'x', false)", (), (Output("c", "text"),)
        )  # fmt: skip
        await rows_of(adapter, change)
        look = Statement(
            "SELECT current_setting('search_path') || ' '"
            " || current_setting('default_transaction_read_only') || ' '"
            " || current_setting('application_name') || ' ' || current_setting('TimeZone')",
            (), (Output("c", "text"),),
        )  # fmt: skip
        return await rows_of(adapter, look)

    assert use(catalog_owner, ask, {"pool_size": "1"}) == [(b"pg_catalog on oar UTC",)]


@pytest.mark.parametrize("keys", [0, 400])
@pytest.mark.parametrize("noticed", [True, False])
def test_an_altered_column_is_another_query_on_every_connection(
    catalog_owner, postgres_owner, keys, noticed
):
    """Also where nobody has ``noticed`` it before it is published as what it is now.

    What a connection prepared for the column as it was must not answer for what it is now."""
    keys = tuple(struct.pack("!i", key) for key in range(keys))
    looked_up = (KeyFilter("id", "integer", keys),) if keys else ()

    async def ask():
        adapter = open_adapter(catalog_owner, {"pool_size": "2"})

        async def published():
            tables = (await adapter.schema()).tables
            table = next(t for t in tables if t.name == "turning")
            return Scan(table, table.columns[:1], (), looked_up)

        async def both(query):
            async with adapter.snapshot(10) as one, adapter.snapshot(10) as other:
                for snapshot in (one, other):
                    batches = [b async for b in snapshot.run(Authorized(query, 1))]
                    yield [tuple(column) for batch in batches for column in batch.columns]

        with psycopg.connect(postgres_owner[0], autocommit=True) as connection:
            connection.execute("CREATE TABLE turning AS SELECT 7::int8 AS n, 1 AS id")
            connection.execute("GRANT SELECT ON turning TO PUBLIC")
            try:
                before = await published()
                first = [found async for found in both(before)]
                connection.execute("ALTER TABLE turning ALTER n TYPE float8")
                if noticed:
                    with pytest.raises(OwnerError) as caught:
                        await rows_of(adapter, before)
                    assert caught.value.kind is OwnerErrorKind.SCHEMA_CHANGED
                second = [found async for found in both(await published())]
            finally:
                connection.execute("DROP TABLE turning")
        await adapter.close()
        return first, second

    first, second = run(ask)
    assert first == [[(struct.pack("!q", 7),)]] * 2
    assert second == [[(struct.pack("!d", 7),)]] * 2


def test_an_index_finds_all_there_is(postgres_owner):
    """Whatever the owner's database is set to, as views at the owner may use such an index."""
    conninfo, url = postgres_owner
    reader = re.search(r"//(\w+):", url)[1]

    async def ask(adapter, tables):
        return len(await rows_of(adapter, Scan(tables["of_seven"], tables["of_seven"].columns)))

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE lists (a int[])")
        connection.execute("INSERT INTO lists SELECT ARRAY[7, i] FROM generate_series(1, 20000) i")
        connection.execute(
            "CREATE INDEX ON lists USING gin (a); ANALYZE lists;"
            " CREATE VIEW of_seven AS SELECT a FROM lists WHERE a @> ARRAY[7];"
            " GRANT SELECT ON of_seven TO PUBLIC"
        )
        settings = {"gin_fuzzy_search_limit": 10, "enable_seqscan": "off"}
        for name, value in settings.items():
            connection.execute(f"ALTER ROLE {reader} SET {name} = {value}")
        try:
            count = use(url, ask)
        finally:
            connection.execute(f"ALTER ROLE {reader} RESET ALL; DROP TABLE lists CASCADE")
    assert count == 20_000
