"""SQLite owners beyond the conformance suite: declarations, affinities, guards, statements."""

from __future__ import annotations

import hmac
import itertools
import random
import sqlite3
import struct
from contextlib import closing
from decimal import Decimal

import psycopg
import pytest
from oar_adapters.authorized import Authorized
from oar_adapters.batches import BATCH_BYTES
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
    Statement,
)
from oar_adapters.testing.conformance import running
from oar_adapters.testing.conformance.running import use
from psycopg.types.numeric import DecimalBinaryDumper

EXACT, SUPERSET, NONE = Agreement.EXACT, Agreement.SUPERSET, Agreement.NONE


def execute(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def run(path, function, **options):
    return use(f"sqlite:///{path}", function, options)


async def rows_of(adapter, query):
    async with adapter.snapshot(20) as snapshot:
        return await running.rows_of(snapshot, query)


def test_wide_rows_come_in_smaller_batches(tmp_path):
    path = tmp_path / "wide.sqlite"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
    execute(path, "CREATE TABLE wide (id INTEGER NOT NULL, v TEXT);"
            f"INSERT INTO wide {numbers} SELECT i, hex(zeroblob(10000)) FROM n")  # fmt: skip

    async def sizes(adapter, tables):
        query = Authorized(Scan(tables["wide"], tables["wide"].columns), 1)
        async with adapter.snapshot(20) as snapshot:
            return [batch.rows async for batch in snapshot.run(query)]

    first, *others = run(path, sizes)
    assert sum([first, *others]) == 1500
    assert max(others) * 20_000 <= BATCH_BYTES


async def found(adapter, table, *predicates, keys=()):
    query = Scan(table, table.columns[:1], predicates, keys)
    return sorted(row[0] for row in await rows_of(adapter, query))


async def published(_adapter, tables):
    return tables


# --- the schema ---------------------------------------------------------------------------------

DECLARED = """
CREATE TABLE declared (
    a INTEGER, b INT, c TINYINT(1), d UNSIGNED BIG INT, e VARCHAR(20), f CHARACTER(5), g TEXT,
    h CLOB, i BLOB, j, k REAL, l DOUBLE PRECISION, m FLOAT, n NUMERIC, o DECIMAL(10, 2), p BOOLEAN,
    q DATE, r DATETIME, s TIMESTAMP, t TIME, u JSON, v UUID, w STRING,
    x TEXT COLLATE NOCASE, y TEXT COLLATE RTRIM, z AS (a + 1) VIRTUAL);
CREATE TABLE rowid_key (id INTEGER PRIMARY KEY, v TEXT UNIQUE, w TEXT COLLATE NOCASE UNIQUE);
CREATE TABLE rowid_key_below (id INTEGER, v TEXT, PRIMARY KEY (id));
CREATE TABLE descending (id INTEGER PRIMARY KEY DESC);
CREATE TABLE text_key (id TEXT PRIMARY KEY);
CREATE TABLE int_key (id INT PRIMARY KEY);
CREATE TABLE full_key (id TEXT NOT NULL PRIMARY KEY);
CREATE TABLE strict_key (id TEXT PRIMARY KEY, v INTEGER) STRICT;
CREATE TABLE no_rowid (a TEXT, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE pair (a INTEGER, b INTEGER, c TEXT, UNIQUE (a, b));
CREATE UNIQUE INDEX some ON pair (a) WHERE b > 0;
CREATE UNIQUE INDEX folded ON pair (lower(c));
CREATE TABLE moments (at DATETIME UNIQUE, n INTEGER);
CREATE VIEW seen AS SELECT id, v FROM rowid_key;
CREATE TABLE "Mixed Case" ("Col Umn" INTEGER, "select" TEXT);
CREATE VIRTUAL TABLE docs USING fts5(body);
"""


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    path = tmp_path_factory.mktemp("declared") / "owner.sqlite"
    execute(path, DECLARED)
    return path


@pytest.fixture(scope="module")
def declared_tables(declared):
    return run(declared, published)


@pytest.mark.parametrize(
    ("column", "type_", "equality", "ordered"),
    [
        *((name, "bigint", EXACT, True) for name in "abcd"),
        *((name, "text", EXACT, True) for name in "efgh"),
        ("i", "bytea", EXACT, True),
        ("j", "text", EXACT, True),
        *((name, "double precision", EXACT, True) for name in "klm"),
        *((name, "numeric", EXACT, True) for name in "no"),
        ("p", "boolean", EXACT, True),
        ("q", "date", EXACT, True),
        *((name, "timestamp without time zone", EXACT, True) for name in "rs"),
        ("t", "time without time zone", EXACT, True),
        *((name, "text", EXACT, True) for name in "uvw"),
        *((name, "text", SUPERSET, True) for name in "xy"),
        ("z", "text", EXACT, True),
    ],
)
def test_publishes_a_declared_type(declared_tables, column, type_, equality, ordered):
    got = declared_tables["declared"].column(column)
    assert (got.type, got.equality, got.ordered) == (type_, equality, ordered)


@pytest.mark.parametrize(
    ("table", "primary", "unique", "not_null"),
    [
        ("rowid_key", ("id",), {("v",), ("w",)}, {"id"}),
        ("rowid_key_below", ("id",), set(), {"id"}),
        ("descending", (), {("id",)}, set()),
        ("text_key", (), {("id",)}, set()),
        ("int_key", (), {("id",)}, set()),
        ("full_key", ("id",), set(), {"id"}),
        ("strict_key", ("id",), set(), {"id"}),
        ("no_rowid", ("a", "b"), set(), {"a", "b"}),
        ("pair", (), {("a", "b")}, set()),
        ("moments", (), set(), set()),
        ("seen", (), set(), set()),
    ],
)
def test_publishes_only_what_sqlite_enforces(declared_tables, table, primary, unique, not_null):
    got = declared_tables[table]
    assert got.primary_key == primary
    assert set(got.unique_keys) == unique
    assert {column.name for column in got.columns if column.not_null} == not_null


def test_folds_names_unless_asked_to_keep_them(declared):
    folded = run(declared, published)
    assert folded["mixed case"].source_name == "Mixed Case"
    assert folded["mixed case"].column("col umn").source_name == "Col Umn"
    assert "docs" not in folded
    kept = run(declared, published, case="keep", tables="mixed*, PAIR")
    assert sorted(kept) == ["Mixed Case", "pair"]
    assert kept["Mixed Case"].columns[0].name == "Col Umn"


def test_what_nobody_can_ask_leaves_the_other_tables_published(tmp_path):
    path = tmp_path / "owner.sqlite"
    execute(path, "CREATE TABLE kept (id INTEGER); CREATE TABLE gone (x INTEGER);"
            "CREATE VIEW stale AS SELECT x FROM gone; CREATE VIEW fine AS SELECT id FROM kept;"
            "DROP TABLE gone")  # fmt: skip
    with closing(sqlite3.connect(path)) as connection:
        # Which only the owner's program can compute.
        connection.create_function("own", 1, abs, deterministic=True)
        connection.execute("CREATE TABLE computed (a INTEGER, b INTEGER AS (own(a)) VIRTUAL)")
        connection.execute("INSERT INTO computed VALUES (-1)")
        connection.commit()

    async def read(adapter, tables):
        computed = tables["computed"]
        rows = await rows_of(adapter, Scan(computed, computed.columns[:1]))
        with pytest.raises(OwnerError):
            await rows_of(adapter, Scan(computed, computed.columns))
        return sorted(tables), rows

    names, rows = run(path, read)
    assert names == ["computed", "fine", "kept"]
    assert len(rows) == 1


def test_publishes_the_types_the_owner_chose(declared):
    tables = run(declared, published, types="declared.u=numeric, Declared.B=boolean")
    assert tables["declared"].column("u").type == "numeric"
    assert tables["declared"].column("b").type == "boolean"


@pytest.mark.parametrize(("rows", "analyzed"), [(0, False), (70, False), (70, True)])
def test_estimates_rows(tmp_path, rows, analyzed):
    path = tmp_path / "owner.sqlite"
    execute(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); CREATE INDEX i ON t (v);")
    execute(path, "".join(f"INSERT INTO t VALUES ({n * 1000}, 'x');" for n in range(rows)))
    if analyzed:
        execute(path, "ANALYZE")
    assert run(path, published)["t"].row_estimate == max(1, rows)


def test_trusts_no_order_of_text_stored_as_utf_16(tmp_path):
    path = tmp_path / "owner.sqlite"
    execute(
        path, "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (s TEXT); INSERT INTO t VALUES ('é')"
    )

    async def look(adapter, tables):
        table = tables["t"]
        return (
            table.columns[0].ordered,
            adapter.capabilities.text_order,
            adapter.supports(table, Comparison("s", "<", "a", "text")),
            await found(adapter, table, Comparison("s", "=", "é", "text")),
        )

    assert run(path, look) == (False, False, False, ["é"])


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "value"),
    [
        ("INTEGER", "'abc'"),
        ("INTEGER", "1.5"),
        ("INTEGER", "x'01'"),
        ("REAL", "'abc'"),
        ("NUMERIC", "'abc'"),
        ("DECIMAL(5,2)", "9e999"),
        ("TEXT", "x'41'"),
        ("TEXT", "'a' || char(0) || 'b'"),
        ("TEXT", "CAST(x'ff' AS TEXT)"),
        ("BLOB", "'text'"),
        ("", "5"),
        ("BOOLEAN", "'true'"),
        ("BOOLEAN", "2"),
        ("DATE", "'2020-1-5'"),
        ("DATE", "'2020-02-30'"),
        ("DATE", "'2020-01-05 10:00:00'"),
        ("DATE", "20200105"),
        ("DATE", "'0000-01-01'"),
        ("DATETIME", "1577836800"),
        ("DATETIME", "'2020-01-01 10:00:00+02:00'"),
        ("DATETIME", "'2020-01-01 25:00:00'"),
        ("DATETIME", "'2020-01-01 24:00:00'"),
        ("TIME", "'24:00'"),
        ("TIME", "'10:00:00Z'"),
    ],
)
@pytest.mark.parametrize("filtered", [False, True])
def test_fails_on_a_value_that_is_not_of_the_published_type(tmp_path, declaration, value, filtered):
    path = tmp_path / "owner.sqlite"
    execute(path, f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declaration});")
    execute(path, f"INSERT INTO t VALUES (1, {value});")

    async def scan(adapter, tables):
        # A condition may not hide it either, where it might stand for a value that matches.
        conditions = (NullTest("v", negated=True),) if filtered else ()
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, Scan(tables["t"], tables["t"].columns, conditions))
        return caught.value

    error = run(path, scan)
    assert error.kind is OwnerErrorKind.WRONG_VALUE
    assert "2020" not in error.what
    assert "abc" not in error.what


def test_a_key_does_not_hide_an_infinity(tmp_path):
    """PostgreSQL's ``numeric`` has one, which equals it."""
    path = tmp_path / "owner.sqlite"
    execute(path, "CREATE TABLE t (v NUMERIC, x REAL); INSERT INTO t VALUES (9e999, 9e999);")
    dump = DecimalBinaryDumper(Decimal).dump
    infinite, none = (bytes(dump(Decimal(text))) for text in ("Infinity", "NaN"))

    async def scan(adapter, tables):
        def keyed(column, key):
            columns = (tables["t"].column(column),)
            return Scan(tables["t"], columns, key_filters=(KeyFilter(column, "numeric", (key,)),))

        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, keyed("v", infinite))
        doubles = await rows_of(adapter, keyed("x", infinite))
        no_numbers = [await rows_of(adapter, keyed(column, none)) for column in "vx"]
        return caught.value.kind, doubles, no_numbers

    assert run(path, scan) == (OwnerErrorKind.WRONG_VALUE, [(float("inf"),)], [[], []])


@pytest.mark.parametrize(
    ("declaration", "value", "condition"),
    [
        ("DATE", "'2020-1-5'", Comparison("v", "=", "2020-01-05", "date")),
        ("DATE", "'2020-01-05 00:00:00'", Membership("v", ("2020-01-05",), "date")),
        ("DATE", "20200105", Not(Comparison("v", "=", "2020-01-05", "date"))),
        ("BOOLEAN", "'true'", Comparison("v", "=", "t", "boolean")),
        ("BOOLEAN", "'t'", Not(Comparison("v", "=", "f", "boolean"))),
        ("", "5", Comparison("v", "=", "5", "text")),
    ],
)
def test_a_condition_does_not_hide_what_might_be_meant(tmp_path, declaration, value, condition):
    path = tmp_path / "owner.sqlite"
    execute(path, f"CREATE TABLE t (v {declaration}); INSERT INTO t VALUES ({value});")

    async def scan(adapter, tables):
        assert adapter.supports(tables["t"], condition)
        with pytest.raises(OwnerError) as caught:
            await found(adapter, tables["t"], condition)
        return caught.value.kind

    assert run(path, scan) is OwnerErrorKind.WRONG_VALUE


def test_keeps_timestamps_written_otherwise_for_the_hub_to_judge(tmp_path):
    path = tmp_path / "owner.sqlite"
    execute(
        path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME);"
        "INSERT INTO t VALUES (1, '2020-01-05 10:00:00'), (2, '2020-01-05T10:00:00'),"
        " (3, '2020-01-05 10:00'), (4, '2020-01-05'), (5, '2020-01-05 10:00:00.000'),"
        " (6, '2021-01-01 00:00:00'), (7, NULL)",
    )
    ten = Comparison("at", "=", "2020-01-05 10:00:00", "timestamp without time zone")

    async def scan(adapter, tables):
        table = tables["t"]
        assert adapter.supports(table, ten)
        return await found(adapter, table, ten), await rows_of(
            adapter, Scan(table, table.columns[1:])
        )

    kept, values = run(path, scan)
    assert kept == [1, 2, 3, 4, 5]
    assert len(set(values)) == 4


def test_publishes_a_stored_double_as_the_decimal_that_was_meant(tmp_path):
    path = tmp_path / "owner.sqlite"
    texts = ["0.1", "19.99", "1e20", "-2.50", "9007199254740993", "123456789.123456789"]
    execute(
        path,
        "CREATE TABLE t (v DECIMAL(20, 9));"
        + "".join(f"INSERT INTO t VALUES ({t});" for t in texts),
    )

    async def scan(adapter, tables):
        return [
            str(row[0]) for row in await rows_of(adapter, Scan(tables["t"], tables["t"].columns))
        ]

    assert run(path, scan) == [
        "0.1", "19.99", "100000000000000000000", "-2.5", "9007199254740993", "123456789.12345679",
    ]  # fmt: skip


# --- affinities and collations ------------------------------------------------------------------

TRAPS = """
CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, x REAL, s TEXT, c TEXT COLLATE NOCASE,
                u, w STRING, m NUMERIC);
INSERT INTO t VALUES (1, 1, 0.1, '1', 'Bob', '1', 'a', 0.1), (2, 12.0, 3, '01', 'bob', '01', '5x', 3),
    (3, 9007199254740993, 9007199254740992.0, ' 1', 'BOB ', ' 1', 'b', 9007199254740993),
    (4, 9223372036854775807, 9e18, 'b', 'a', 'b', 'c', 9223372036854775807),
    (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE INDEX i_n ON t (n);
CREATE INDEX i_s ON t (s);
CREATE VIEW v AS SELECT id, c AS c, s AS s FROM t;
CREATE VIEW mixed AS SELECT id, n AS n FROM t UNION ALL SELECT 100 + id, '7' FROM t WHERE id = 1;
"""


@pytest.fixture(scope="module")
def traps(tmp_path_factory):
    path = tmp_path_factory.mktemp("traps") / "owner.sqlite"
    execute(path, TRAPS)
    return path


@pytest.mark.parametrize(
    ("condition", "due"),
    [
        (Comparison("n", "=", "1", "bigint"), [1]),
        (Comparison("n", "=", "12", "numeric"), [2]),
        (Comparison("n", ">", "12.5", "numeric"), [3, 4]),
        (Comparison("n", "=", "9007199254740993", "bigint"), [3]),
        (Comparison("n", "=", "9007199254740992", "double precision"), [3]),
        (Comparison("n", ">=", "9223372036854775807", "bigint"), [4]),
        (Comparison("n", ">", "-9223372036854775808", "bigint"), [1, 2, 3, 4]),
        (Comparison("x", "=", "0.1", "double precision"), [1]),
        (Comparison("x", "=", "0.1", "numeric"), [1]),
        (Comparison("x", "=", "3", "integer"), [2]),
        (Comparison("x", "<", "Infinity", "double precision"), [1, 2, 3, 4]),
        (Comparison("m", "=", "0.10", "numeric"), [1]),
        (Comparison("m", "=", "9007199254740993", "numeric"), [3]),
        (Comparison("m", ">", "9007199254740992", "numeric"), [3, 4]),
        (Comparison("s", "=", "1", "text"), [1]),
        (Comparison("s", "=", "1  ", "character(3)"), [1]),
        (Comparison("s", "<", "1", "text"), [2, 3]),
        (Comparison("c", "=", "bob", "text"), [1, 2]),
        (Comparison("c", "<", "a", "text"), [1, 3]),
        (PatternMatch("c", "b%", negated=False), [2]),
        (PatternMatch("c", "b%", negated=True), [1, 3, 4]),
        (Comparison("w", ">", "6", "text"), [1, 3, 4]),
        (Membership("n", ("1", "12"), "integer"), [1, 2]),
    ],
)
def test_compares_as_postgresql_does(traps, condition, due):
    async def scan(adapter, tables):
        assert adapter.supports(tables["t"], condition)
        return await found(adapter, tables["t"], condition)

    assert run(traps, scan) == due


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("t", Comparison("n", "=", "1", "text")),
        ("t", Comparison("n", "<", "1e30", "numeric")),
        ("t", Comparison("n", "=", "NaN", "double precision")),
        ("t", Comparison("x", "<", "NaN", "double precision")),
        ("t", Comparison("x", "=", "0.1", "real")),
        ("t", Comparison("x", "<", "1e400", "numeric")),
        ("t", Comparison("m", "<", "0.10000000000000000001", "numeric")),
        ("t", Comparison("n", "=", "1_000", "integer")),
        ("t", Comparison("n", "=", "٣", "integer")),
        ("t", Comparison("c", "<>", "bob", "text")),
        ("t", Not(Comparison("c", "=", "bob", "text"))),
        ("t", PatternMatch("s", "a\\", negated=False)),
        ("t", PatternMatch("s", "%a%a%a%a%a%a%a%a%", negated=False)),
        ("t", PatternMatch("n", "1%", negated=False)),
    ],
)
def test_takes_no_condition_that_could_lose_a_row(traps, table, condition):
    async def ask(adapter, tables):
        return adapter.supports(tables[table], condition)

    assert run(traps, ask) is False


def test_compares_columns_of_views_without_their_collation(traps):
    async def scan(adapter, tables):
        return (
            await found(adapter, tables["v"], Comparison("c", "=", "bob", "text")),
            await found(adapter, tables["v"], Not(Comparison("c", "=", "bob", "text"))),
        )

    assert run(traps, scan) == ([2], [1, 3, 4])


def test_sends_each_different_value_whatever_the_collation(tmp_path):
    execute(
        tmp_path / "owner.sqlite",
        """
        CREATE TABLE t (c TEXT COLLATE NOCASE, r VARCHAR(9) COLLATE RTRIM, w STRING COLLATE NOCASE);
        INSERT INTO t VALUES ('a', 'a', 'a'), ('A', 'a ', 'A'), ('a', 'a', 'a');
        CREATE VIEW v AS SELECT * FROM t;
        """,
    )

    async def distinct(adapter, tables):
        return [
            set(await rows_of(adapter, Scan(table, (column,), distinct=True)))
            for table in tables.values()
            for column in table.columns
        ]

    assert (
        run(tmp_path / "owner.sqlite", distinct)
        == [
            {("a",), ("A",)},
            {("a",), ("a ",)},
            {("a",), ("A",)},
        ]
        * 2
    )


def test_does_not_lose_a_views_value_of_another_kind(traps):
    async def scan(adapter, tables):
        with pytest.raises(OwnerError) as caught:
            await rows_of(
                adapter,
                Scan(
                    tables["mixed"], tables["mixed"].columns, (Comparison("n", "=", "7", "bigint"),)
                ),
            )
        return caught.value.kind

    assert run(traps, scan) is OwnerErrorKind.WRONG_VALUE


def test_a_digest_does_not_lose_a_value_of_another_kind_and_binds_no_key(traps):
    secret = bytes(range(32))
    digest = hmac.digest(secret, b"12", "sha256")

    async def scan(adapter, tables):
        keys = (KeyFilter("n", "bigint", (digest,), hmac=secret),)
        mixed = Scan(tables["mixed"], tables["mixed"].columns, key_filters=keys)
        assert adapter.written(mixed).bound == [secret.hex(), f'["{digest.hex()}"]']
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, mixed)
        return caught.value.kind

    assert run(traps, scan) is OwnerErrorKind.WRONG_VALUE


@pytest.mark.parametrize(
    ("column", "type_", "keys", "due"),
    [
        (
            "n",
            "bigint",
            [struct.pack("!q", 9007199254740993), struct.pack("!q", 2**63 - 1)],
            [3, 4],
        ),
        ("n", "smallint", [struct.pack("!h", 12)], [2]),
        ("n", "double precision", [struct.pack("!d", 9007199254740992.0)], [3]),
        ("x", "double precision", [struct.pack("!d", 0.1), struct.pack("!d", 3.0)], [1, 2]),
        ("x", "real", [struct.pack("!f", 3.0), struct.pack("!f", 0.1)], [2]),
        ("s", "text", [b"1", b"b"], [1, 4]),
        ("s", "character", [b"1    "], [1]),
        ("c", "text", [b"bob"], [1, 2]),
        ("s", "text", ['"quoted" \\ \u2028 \U0001f600'.encode()], []),
    ],
)
def test_finds_keys_by_value(traps, column, type_, keys, due):
    async def scan(adapter, tables):
        assert adapter.supports(tables["t"], Membership(column, (), type_))
        return await found(adapter, tables["t"], keys=(KeyFilter(column, type_, tuple(keys)),))

    assert run(traps, scan) == due

    async def scan_rows(adapter, tables):
        """Each key beside the number of every row: what a row finds, it finds with its own."""
        table = tables["t"]
        ids = [row[0] for row in await rows_of(adapter, Scan(table, table.columns[:1]))]
        product = list(itertools.product(keys, ids))
        beside = KeyFilter("id", "bigint", tuple(struct.pack("!q", id_) for _, id_ in product))
        rows = KeyFilter(column, type_, tuple(key for key, _ in product), (beside,))
        others = KeyFilter("id", "bigint", tuple(struct.pack("!q", -id_) for _, id_ in product))
        nothing = KeyFilter(column, type_, rows.keys, (others,))
        assert set(await found(adapter, table, keys=(nothing,))) <= kept
        return await found(adapter, table, keys=(rows,))

    async def kept_anyway(adapter, tables):
        return set(await found(adapter, tables["t"], keys=(KeyFilter(column, type_, ()),)))

    kept = run(traps, kept_anyway)
    assert run(traps, scan_rows) == due


COUNTED = """
CREATE TABLE few (n INTEGER, word TEXT, none TEXT, data BLOB);
INSERT INTO few VALUES (1, 'a', NULL, x'00'), (1, 'b', NULL, x'00'), (2, NULL, NULL, x'01');
CREATE TABLE many (id INTEGER PRIMARY KEY, kind TEXT, code INTEGER);
WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s LIMIT 10000)
    INSERT INTO many SELECT n, 'k' || (n % 20), n * 7 FROM s;
CREATE VIEW seen AS SELECT * FROM few;
CREATE TABLE indexed (k INTEGER, v TEXT);
CREATE INDEX by_k ON indexed (k);
WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s LIMIT 3000)
    INSERT INTO indexed SELECT n % 300, 'secret' FROM s;
ANALYZE indexed;
"""


def test_publishes_how_many_values_there_are_and_none_of_them(tmp_path):
    execute(tmp_path / "owner.sqlite", COUNTED)
    tables = run(tmp_path / "owner.sqlite", published)
    counted = {
        f"{table.name}.{column.name}": (column.distinct, column.null_fraction)
        for table in tables.values()
        for column in table.columns
    }
    third = pytest.approx(1 / 3)
    assert counted == {
        "few.n": (2.0, 0.0),
        "few.word": (2.0, third),
        "few.none": (None, 1.0),
        "few.data": (None, None),
        "many.id": (10_000.0, 0.0),
        "many.kind": (20.0, 0.0),
        "many.code": (10_000.0, 0.0),
        "seen.n": (None, None),
        "seen.word": (None, None),
        "seen.none": (None, None),
        "seen.data": (None, None),
        "indexed.k": (300.0, 0.0),
        "indexed.v": (1.0, 0.0),
    }
    assert "secret" not in repr(tables)


BESIDE = """
CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, any_, s TEXT, c TEXT COLLATE NOCASE,
                r VARCHAR(9) COLLATE RTRIM, w STRING, m DECIMAL(20, 2), d DATE, e DATE COLLATE NOCASE,
                f BOOLEAN, o BLOB);
INSERT INTO t VALUES
    (1, 1, '1', '1', 'Bob', 'bob ', 'bob', 1, '2024-02-29', '2024-02-29', 0, x'31'),
    (2, 2, 'bob', 'Bob', 'bob', 'bob', '2x', 2.5, '2023-01-01', '2023-01-02', 1, x'00'),
    (3, 9007199254740993, 'BOB ', 'bob ', 'x', '1', '1x', 1234567890123456800, NULL, '2023-01-01', NULL, x''),
    (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '1999-12-31', NULL, 1, NULL),
    (5, 1234567890123456800, 'z', 'Z', 'z', 'z', 'z', 1e18, '2024-02-28', '1999-12-31', 0, x'3120');
CREATE VIEW v AS SELECT id, +n AS n, +s AS s, +c AS c, +o AS o, d AS d, f AS f,
    CASE WHEN id = 3 THEN 1234567890123456768.0 ELSE +m END AS m FROM t;
CREATE TABLE moments (id INTEGER PRIMARY KEY, x DATETIME, y TIMESTAMP, z TIME, zz TIME);
INSERT INTO moments VALUES
    (1, '2024-02-29 10:00:00', '2024-02-29T10:00', '10:00', '10:00:00.0'),
    (2, '2024-02-29', '2024-02-29 00:00:00', '23:59:59.5', '23:59:59.50'),
    (3, '0001-01-01T00:00', '0001-01-01 00:00:00.000', '00:00', '00:00:00'),
    (4, '9999-12-31 23:59:59.999999', '9999-12-31T23:59:59.999999', NULL, '23:59'),
    (5, NULL, '2024-02-29 10:00:00.000000', '23:59:00', NULL);
CREATE TABLE bad (d DATE);
INSERT INTO bad VALUES ('2024-02-29'), ('2024-2-29');
"""
BESIDE_TYPES = "v.n=bigint,v.s=text,v.c=text,v.o=bytea,v.m=numeric,v.d=date,v.f=boolean,t.any_=text"


def test_columns_of_any_affinity_and_collation_join_inside(tmp_path):
    """What PostgreSQL takes for equal is found, whatever the declarations of the two columns."""
    execute(tmp_path / "owner.sqlite", BESIDE)

    async def join(adapter, tables):
        names = ("t", "v", "moments")
        places = [(tables[name], c) for name in names for c in tables[name].columns[1:]]
        values = {}
        for table, column in places:
            query = Scan(table, (table.columns[0], column))
            values[table.name, column.name] = await rows_of(adapter, query)
        lost, compared = [], 0
        for (table, column), (other, source) in itertools.product(places, places):
            if column.type != source.type:
                continue
            rows = values[table.name, column.name]
            others = values[other.name, source.name]
            keys = {value for _, value in others} - {None}
            due = {id_ for id_, value in rows if value in keys}
            pairs = {id_ for id_, value in rows if value is not None and (id_, value) in others}
            for also, these in (((), due), ((("id", "id"),), pairs)):
                inside = SemiJoin(column.name, source.name, Scan(other, ()), also)
                query = Scan(table, table.columns[:1], semi_joins=(inside,))
                ids = sorted(row[0] for row in await rows_of(adapter, query))
                assert len(ids) == len(set(ids))
                compared += len(these)
                if not these <= set(ids):
                    lost.append((table.name, column.name, other.name, source.name, these, ids))
        assert compared > 100
        return lost

    assert run(tmp_path / "owner.sqlite", join, types=BESIDE_TYPES) == []


def test_a_semi_join_keeps_values_of_another_form(tmp_path):
    """A date of another form may mean a day: no reduction hides it, and its fetch fails (R43)."""
    execute(tmp_path / "owner.sqlite", BESIDE)

    async def read(adapter, tables):
        bad = tables["bad"]
        nothing = Scan(tables["t"], (), (Comparison("id", "=", "4", "bigint"),))
        inside = SemiJoin("d", "e", nothing)
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, Scan(bad, (bad.column("d"),), semi_joins=(inside,)))
        return caught.value.kind

    assert run(tmp_path / "owner.sqlite", read) is OwnerErrorKind.WRONG_VALUE


@pytest.mark.parametrize(("column", "type_"), [("s", "integer"), ("n", "text"), ("n", "date")])
def test_refuses_keys_it_cannot_compare(traps, column, type_):
    async def scan(adapter, tables):
        assert not adapter.supports(tables["t"], Membership(column, (), type_))
        with pytest.raises(OwnerError) as caught:
            await found(adapter, tables["t"], keys=(KeyFilter(column, type_, (b"\0\0\0\1",)),))
        return caught.value.kind

    assert run(traps, scan) is OwnerErrorKind.REFUSED


def test_uses_indexes_for_keys_and_conditions(traps):
    async def plans(adapter, tables):
        table = tables["t"]
        queries = [
            Scan(table, table.columns[:1], (Comparison("n", "=", "1", "bigint"),)),
            Scan(table, table.columns[:1], (Comparison("s", ">", "a", "text"),)),
            Scan(table, table.columns[:1], key_filters=(KeyFilter("n", "bigint", ()),)),
            Scan(table, table.columns[:1], key_filters=(KeyFilter("s", "text", ()),)),
            Scan(table, table.columns[:1], key_filters=(KeyFilter("id", "bigint", ()),)),
        ]
        return [adapter.render(query) for query in queries]

    connection = sqlite3.connect(traps)
    for text in run(traps, plans):
        steps = connection.execute(
            f"EXPLAIN QUERY PLAN {text}", ["[]"] * text.count("?")
        ).fetchall()
        assert "SEARCH t USING" in steps[0][3], (text, steps)
    connection.close()


# --- the file -----------------------------------------------------------------------------------


def test_answers_for_the_file_that_took_the_place_of_another(tmp_path):
    path = tmp_path / "owner.sqlite"
    execute(path, "CREATE TABLE t (v INTEGER); INSERT INTO t VALUES (1)")

    async def scan(adapter, tables):
        first = await found(adapter, tables["t"])
        execute(tmp_path / "new.sqlite", "CREATE TABLE t (v INTEGER); INSERT INTO t VALUES (2)")
        (tmp_path / "new.sqlite").rename(path)
        return first, await found(adapter, tables["t"])

    assert run(path, scan) == ([1], [2])


def test_says_that_a_file_is_no_database(tmp_path):
    path = tmp_path / "owner.sqlite"
    path.write_text("conformance" * 1000)
    with pytest.raises(OwnerError, match="not a database"):
        run(path, published)


def test_creates_no_file(tmp_path):
    with pytest.raises(OwnerError, match="cannot be opened"):
        run(tmp_path / "nosuch.sqlite", published)
    assert list(tmp_path.iterdir()) == []


# --- whole statements ---------------------------------------------------------------------------

SHOP = """
CREATE TABLE shops (id INTEGER PRIMARY KEY, town TEXT, "Open" BOOLEAN, since DATE, area REAL);
CREATE TABLE sales (id INTEGER PRIMARY KEY, shop INTEGER, qty INTEGER, price DECIMAL(8,2), note TEXT,
                    folded TEXT COLLATE NOCASE, at DATETIME);
"""
SHOP_POSTGRES = """
CREATE TEMP TABLE shops (id bigint PRIMARY KEY, town text, "Open" boolean, since date,
                         area double precision);
CREATE TEMP TABLE sales (id bigint PRIMARY KEY, shop bigint, qty bigint, price numeric, note text,
                         folded text, at timestamp);
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory, hub_server):
    """The same random rows in a file and in a PostgreSQL with the published types."""
    path = tmp_path_factory.mktemp("shop") / "owner.sqlite"
    execute(path, SHOP)
    chance = random.Random(7)
    towns = ["Ärhus", "a", "B", "b", "", "Zürich", "z", None]
    shops = [
        (n, chance.choice(towns), chance.choice([True, False, None]),
         chance.choice(["2020-02-29", "1999-12-31", None]), chance.choice([0.1, 2.5, -1.0, None]))
        for n in range(1, 15)
    ]  # fmt: skip
    sales = [
        (n, chance.choice([None, *range(1, 20)]), chance.choice([None, 0, 1, 5, -3, 10**12]),
         chance.choice([None, 1, 1.5, 19.99, 0.1]), chance.choice([None, "x", "X", "x%", "é", "y_"]),
         "F", "2020-01-01 00:00:00")
        for n in range(1, 120)
    ]  # fmt: skip
    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO shops VALUES (?, ?, ?, ?, ?)", shops)
    connection.executemany("INSERT INTO sales VALUES (?, ?, ?, ?, ?, ?, ?)", sales)
    connection.commit()
    connection.close()
    with psycopg.connect(hub_server.conninfo, autocommit=True) as reference:
        reference.execute(SHOP_POSTGRES)
        with reference.cursor() as cursor:
            cursor.executemany("INSERT INTO shops VALUES (%s, %s, %s, %s, %s)", shops)
            cursor.executemany("INSERT INTO sales VALUES (%s, %s, %s, %s, %s, %s, %s)", sales)
        yield path, reference


JOINED = 'FROM "sales" AS s {kind} JOIN "shops" AS p ON s.shop = p.id'
TAKEN = [
    "SELECT count(*) FROM sales",
    "SELECT count(*), count(qty), count(DISTINCT note), sum(qty), min(note), max(note) FROM sales",
    "SELECT sum(qty), min(qty), max(price), min(price) FROM sales WHERE id < 0",
    "SELECT note, count(*) FROM sales GROUP BY note ORDER BY 2 DESC, 1",
    "SELECT note AS n, sum(qty) AS total FROM sales GROUP BY 1 ORDER BY total, n DESC",
    "SELECT s.qty, s.note FROM sales AS s WHERE s.note LIKE 'x%' ORDER BY s.note, s.qty NULLS FIRST",
    "SELECT DISTINCT note FROM sales",
    f"SELECT p.town, count(*), sum(s.qty) {JOINED.format(kind='')} GROUP BY p.town",
    f"SELECT p.town, p.since, count(s.id) {JOINED.format(kind='LEFT')} GROUP BY p.since, p.town",
    f"SELECT s.id, p.town {JOINED.format(kind='LEFT')} WHERE p.town IS NULL OR p.\"Open\"",
    f"SELECT s.id, p.area {JOINED.format(kind='')} WHERE NOT (p.area < 2.5) AND p.since > '2000-01-01'",
    "SELECT s.id FROM sales s, shops p WHERE s.qty BETWEEN 0 AND 5 AND p.id IN (1, 2)",
    "SELECT max(since), min(area) FROM shops WHERE since <> '2020-02-29'::date",
    "SELECT id FROM sales WHERE 1.5 <= price AND price NOT IN (19.99)",
    "SELECT x.t, count(*) FROM (SELECT \"town\" AS t, \"id\" FROM \"shops\") AS x GROUP BY x.t",
    "SELECT id FROM shops WHERE town < 'b' OR town >= 'z'",
    "SELECT count(*) FROM sales /* why */ -- not",
]  # fmt: skip
REFUSED = [
    "SELECT * FROM sales",
    "SELECT qty + 1 FROM sales",
    "SELECT qty / 2 FROM sales",
    "SELECT avg(qty) FROM sales",
    "SELECT sum(price) FROM sales",
    "SELECT sum(qty) FILTER (WHERE qty > 0) FROM sales",
    "SELECT sum(qty) OVER () FROM sales",
    "SELECT lower(note) FROM sales",
    "SELECT note FROM sales LIMIT 1",
    "SELECT note FROM sales OFFSET 1",
    "SELECT note, count(*) FROM sales GROUP BY note HAVING count(*) > 1",
    "SELECT id, note, count(*) FROM sales GROUP BY id",
    "SELECT DISTINCT ON (note) note, id FROM sales",
    "SELECT folded FROM sales",
    "SELECT at FROM sales",
    "SELECT note FROM sales WHERE note ILIKE 'x'",
    "SELECT note FROM sales WHERE note LIKE 'x' ESCAPE '!'",
    "SELECT note FROM sales WHERE qty = shop",
    "SELECT note FROM sales WHERE qty IS TRUE",
    "SELECT note FROM sales WHERE qty BETWEEN SYMMETRIC 5 AND 0",
    "SELECT note FROM sales WHERE qty IN (SELECT id FROM shops)",
    "SELECT note FROM sales WHERE note = NULL",
    "SELECT note FROM sales WHERE note = E'x'",
    "SELECT note FROM sales WHERE note = 'xyz'::varchar(1)",
    "SELECT note FROM sales WHERE price = 0.1::real",
    "SELECT note FROM sales WHERE price < 0.10000000000000000001",
    "SELECT s.id FROM sales s FULL JOIN shops p ON s.shop = p.id",
    "SELECT s.id FROM sales s RIGHT JOIN shops p ON s.shop = p.id",
    "SELECT s.id FROM sales s JOIN shops p USING (id)",
    "SELECT s.id FROM sales s NATURAL JOIN shops p",
    "SELECT s.id FROM sales s JOIN shops p ON s.shop < p.id",
    "SELECT s.id FROM sales s JOIN shops p ON s.qty = p.area",
    "SELECT s.id FROM sales s JOIN LATERAL (SELECT 1 FROM shops) x ON s.id = s.id",
    "SELECT id FROM sales UNION SELECT id FROM shops",
    "WITH x AS (SELECT id FROM sales) SELECT id FROM x",
    "SELECT id FROM sqlite_master",
    "SELECT id FROM sales TABLESAMPLE SYSTEM (10)",
    "SELECT id FROM sales FOR UPDATE",
    "SELECT id FROM other.sales",
    "SELECT 1",
    "SELECT nosuch FROM sales",
    "DELETE FROM sales",
    "SELECT id FROM sales; SELECT id FROM sales",
]  # fmt: skip


def described(reference, text):
    """The statement with the types PostgreSQL gives its answer."""
    with reference.cursor() as cursor:
        cursor.execute(text)
        types = [
            reference.execute("SELECT format_type(%s, NULL)", (column.type_code,)).fetchone()[0]
            for column in cursor.description
        ]
        rows = cursor.fetchall()
    return tuple(Output(f"c{n}", type_) for n, type_ in enumerate(types)), rows


@pytest.mark.parametrize("text", TAKEN)
def test_answers_a_whole_statement_as_postgresql_does(shop, text):
    path, reference = shop
    outputs, due = described(reference, text)

    async def ask(adapter, tables):
        statement = Statement(text, tuple(tables.values()), outputs, limit=10_000)
        assert adapter.supports_statement(statement)
        assert "LIMIT 10000" in adapter.render(statement)
        return await rows_of(adapter, statement)

    answer = run(path, ask)
    if "ORDER BY" not in text:
        answer, due = sorted(answer, key=repr), sorted(due, key=repr)
    assert [tuple(map(str, row)) for row in answer] == [tuple(map(str, row)) for row in due]


@pytest.mark.parametrize("text", REFUSED)
def test_takes_no_statement_it_does_not_fully_understand(shop, text):
    async def ask(adapter, tables):
        verdicts = []
        for type_ in ("bigint", "text", "numeric", "double precision"):
            outputs = tuple(Output("c", type_) for _ in range(text.split("FROM")[0].count(",") + 1))
            statement = Statement(text, tuple(tables.values()), outputs)
            verdicts.append(adapter.supports_statement(statement))
            with pytest.raises(OwnerError):
                await rows_of(adapter, statement)
        return verdicts

    assert not any(run(shop[0], ask))


def test_answers_random_statements_as_postgresql_does(shop):
    path, reference = shop
    chance = random.Random(11)
    texts = [random_statement(chance) for _ in range(300)]

    async def compare(adapter, tables):
        taken, wrong = 0, []
        for text in texts:
            outputs, due = described(reference, text)
            statement = Statement(text, tuple(tables.values()), outputs)
            if not adapter.supports_statement(statement):
                continue
            taken += 1
            answer = await rows_of(adapter, statement)
            if sorted(map(repr, strings(answer))) != sorted(map(repr, strings(due))):
                wrong.append(text)
        return taken, wrong

    taken, wrong = run(path, compare)
    assert wrong == []
    assert taken > 250


def strings(rows):
    return [tuple(None if value is None else str(value) for value in row) for row in rows]


def random_statement(chance):
    condition = chance.choice(
        ["s.qty > 0", "s.qty = 5", "s.note = 'x'", "s.note <> 'X'", "s.note LIKE '%_'", "s.price < 2",
         "p.town >= 'a'", 'p."Open"', "p.since = '2020-02-29'", "p.area <= 2.5", "s.shop IS NULL",
         "p.id IS NOT NULL", "s.note IN ('x', 'é')", "s.price BETWEEN 0.1 AND 1.5"]
    )  # fmt: skip
    other = chance.choice(["p.town IS NULL", "s.qty < 10", "s.note > 'a'", "p.area = 0.1"])
    where = chance.choice(
        ["", f"WHERE {condition}", f"WHERE NOT ({condition} OR {other})",
         f"WHERE {condition} AND {other}", f"WHERE NOT ({condition}) OR {other}"]
    )  # fmt: skip
    keys = chance.sample(["p.town", "s.note", "p.since", 'p."Open"', "s.qty"], chance.randint(0, 2))
    measures = chance.sample(
        ["count(*)", "count(s.qty)", "sum(s.qty)", "min(p.town)", "max(s.price)",
         "count(DISTINCT s.shop)", "max(p.since)"],
        chance.randint(1, 3),
    )  # fmt: skip
    group = f"GROUP BY {', '.join(keys)}" if keys else ""
    kind = chance.choice(["", "LEFT"])
    return f"SELECT {', '.join(keys + measures)} {JOINED.format(kind=kind)} {where} {group}"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE sales SET qty = 'many' WHERE id = 1", "SELECT sum(qty) FROM sales"),
        ("UPDATE sales SET qty = 1.5 WHERE id = 1", "SELECT count(*) FROM sales WHERE qty = 1"),
        ("UPDATE sales SET note = x'00' WHERE id = 1", "SELECT count(DISTINCT note) FROM sales"),
        (
            "UPDATE shops SET since = '2020-2-9'",
            "SELECT count(*) FROM shops WHERE since > '2020-01-01'",
        ),
        ("UPDATE shops SET since = '2020-02-30'", "SELECT count(since) FROM shops"),
        ('UPDATE shops SET "Open" = 2', 'SELECT count(*) FROM shops WHERE NOT "Open"'),
        ("UPDATE sales SET price = 9e999", "SELECT count(*) FROM sales WHERE price > 100"),
        ("UPDATE sales SET price = -9e999", "SELECT count(price) FROM sales"),
        (
            "UPDATE shops SET town = 'a' || char(0) || 'b'",
            "SELECT count(*) FROM shops WHERE town LIKE '_'",
        ),
        (
            "CREATE TABLE exact (v TEXT) STRICT; INSERT INTO exact VALUES (char(0))",
            "SELECT count(DISTINCT v) FROM exact",
        ),
    ],
)
def test_an_aggregate_hides_no_value_of_another_type(tmp_path, change, text):
    path = tmp_path / "owner.sqlite"
    execute(
        path, SHOP + "INSERT INTO sales (id) VALUES (1), (2); INSERT INTO shops (id) VALUES (1);"
    )
    execute(path, change)

    async def ask(adapter, tables):
        type_ = "numeric" if "sum" in text else "bigint"
        statement = Statement(text, tuple(tables.values()), (Output("c", type_),))
        assert adapter.supports_statement(statement)
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, statement)
        return caught.value

    error = run(path, ask)
    assert error.kind is OwnerErrorKind.WRONG_VALUE
    assert error.what.startswith('table "')


def test_a_sum_that_sqlite_cannot_hold_fails(tmp_path):
    path = tmp_path / "owner.sqlite"
    execute(path, "CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (9223372036854775807), (1)")

    async def ask(adapter, tables):
        statement = Statement(
            "SELECT sum(n) FROM t", tuple(tables.values()), (Output("c", "numeric"),)
        )
        with pytest.raises(OwnerError) as caught:
            await rows_of(adapter, statement)
        return caught.value.kind

    assert run(path, ask) is OwnerErrorKind.REFUSED
