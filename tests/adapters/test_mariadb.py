"""MariaDB owners beyond the conformance suite: where its comparisons are not PostgreSQL's."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
import uuid
from contextlib import aclosing

import psycopg
import pytest
import uvloop
from oar_adapters.authorized import Authorized
from oar_adapters.batches import BATCH_BYTES
from oar_adapters.interface import (
    And,
    Comparison,
    KeyFilter,
    Membership,
    Not,
    NullTest,
    Or,
    OwnerError,
    OwnerErrorKind,
    PatternMatch,
    Scan,
    SemiJoin,
)
from oar_adapters.mariadb import sql
from oar_adapters.mariadb.session import BATCH_ROWS, FIRST_ROWS
from oar_adapters.registry import open_adapter
from oar_adapters.testing.conformance.running import use
from psycopg import sql as pg
from waits import until

COLUMNS = {
    # name: (declaration, published type, type of the constants)
    "id": ("int NOT NULL PRIMARY KEY", "integer", "integer"),
    "ci": ("varchar(20) COLLATE utf8mb4_general_ci", "text", "text"),
    "pad": ("varchar(20) COLLATE utf8mb4_bin", "text", "text"),
    "exact": ("varchar(20) COLLATE utf8mb4_nopad_bin", "text", "text"),
    "fixed": ("char(5) COLLATE utf8mb4_unicode_ci", "text", "text"),
    "west": ("varchar(20) CHARACTER SET latin1", "text", "text"),
    "three": ("varchar(20) CHARACTER SET utf8mb3 COLLATE utf8mb3_unicode_ci", "text", "text"),
    "swell": ("varchar(20) COLLATE utf8mb4_german2_ci", "text", "text"),
    "cyr": ("varchar(20) CHARACTER SET cp1251", "text", "text"),
    "wide": ("varchar(20) CHARACTER SET ucs2", "text", "text"),
    "long_": ("longtext COLLATE utf8mb4_unicode_ci", "text", "text"),
    "kind": ("enum('b','a','É','1')", "text", "text"),
    "tags": ("set('b','a')", "text", "text"),
    "u": ("bigint unsigned", "numeric(20,0)", "numeric"),
    "tiny": ("tinyint unsigned", "smallint", "smallint"),
    "dec_": ("decimal(38,10)", "numeric(38,10)", "numeric"),
    "dbl": ("double(10,2)", "double precision", "double precision"),
    "yr": ("year", "smallint", "integer"),
    "d": ("date", "date", "date"),
    "dt": ("datetime(6)", "timestamp without time zone", "timestamp without time zone"),
    "whole": ("datetime", "timestamp without time zone", "timestamp without time zone"),
    "ts": ("timestamp(3) NULL", "timestamp with time zone", "timestamp with time zone"),
    "flag": ("bit(1)", "boolean", "boolean"),
    "bytes_": ("varbinary(20)", "bytea", "bytea"),
    "uu": ("uuid", "uuid", "uuid"),
}
WORDS = ("bob", "Bob", "BOB", "bob ", "bob  ", "böb", "é", "É", "", " ", "0", "0abc", "abc", "1", "a\\b",
         "a%b", "a_b", "it's", 'say "x"', "tab\t")  # fmt: skip
VALUES = {
    **dict.fromkeys(("ci", "exact", "pad", "west", "long_", "three", "wide"), WORDS),
    "fixed": ("bob", "Bob", "bö", "É", "", "0", "1", "a\\b", "a%b"),
    "swell": ("ß", "ss", "SS", "ä", "ae", "AE", "ae "),
    "cyr": ("Ж", "ж", "ж ", "е", "ё", "a", "№", ""),
    "kind": ("b", "a", "É", "1"),
    "tags": ("b", "a", "b,a", ""),
    "u": (0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    "tiny": (0, 1, 255),
    "dec_": ("0", "-1.5", "1.5", "9007199254740993.0000000001", "9007199254740993"),
    "dbl": ("0.1", "1.1", "-2.25", "99999999.99", "3"),
    "yr": (1970, 1999, 2000, 2024, 2069),
    "d": ("1999-12-31", "2024-02-29", "9999-12-31"),
    "dt": ("1999-12-31 23:59:59.999999", "2024-02-29 00:00:00", "2024-02-29 12:00:00.5"),
    "whole": ("1999-12-31 23:59:59", "2024-02-29 00:00:00", "2024-02-29 00:00:01"),
    "ts": ("1999-12-31 23:59:59.999+00", "2024-02-29 00:00:00+00", "2024-03-31 02:30:00.5+00"),
    "flag": ("f", "t"),
    "bytes_": ("\\x" + "61" * 20, "\\x", "\\x00", "\\x62", "\\x42", "\\x6200"),
    "uu": ("00000000-0000-0000-0000-000000000001", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
}
EXTRA = {
    # constants of another type, or past the column's range
    "u": [("0.5", "numeric"), ("-1", "bigint"), ("9007199254740992", "double precision"),
          ("18446744073709551616", "numeric"), ("9223372036854775807", "bigint")],
    "tiny": [("40000", "bigint"), ("0.5", "numeric"), ("-1", "smallint")],
    "dec_": [("9007199254740992", "double precision"), ("1.50", "numeric"), ("1", "integer"),
             ("1.50000000001", "numeric"), ("1.49999999999", "numeric")],
    "dbl": [("0.101", "double precision"), ("1.099", "double precision"), ("0.1", "numeric"), ("0.10000000000000001", "double precision"), ("3", "integer")],
    "yr": [("24", "integer"), ("69", "integer"), ("70", "integer"), ("0", "smallint")],
    "d": [("2024-02-29 00:00:00", "timestamp without time zone"), ("0001-01-01", "date"),
          ("2024-02-29 00:00:00.5", "timestamp without time zone")],
    "dt": [("2024-02-29", "date"), ("2024-02-29 12:00:00.500000", "timestamp without time zone")],
    "whole": [("2024-02-29 00:00:00.5", "timestamp without time zone"), ("2024-02-29", "date"),
              ("1999-12-31 23:59:59.999999", "timestamp without time zone")],
    "bytes_": [("\\x" + "61" * 21, "bytea"), ("\\x" + "61" * 19, "bytea")],
    "ts": [("2024-02-29 05:00:00+05", "timestamp with time zone"),
           ("2024-02-29 00:00:00.0004+00", "timestamp with time zone"),
           ("9999-12-31 00:00:00+00", "timestamp with time zone"),
           ("1900-01-01 00:00:00+00", "timestamp with time zone")],
    "ci": [("bob", "character varying"), ("😀", "text")],
    "west": [("ж", "text"), ("😀", "text")],
    "three": [("😀", "text"), ("😁", "text")],
    "cyr": [("é", "text"), ("?", "text"), ("😀", "text")],
    "fixed": [("bob ", "text"), ("bob ", "bpchar"), ("bobbob", "text")],
    "kind": [("2", "text"), ("B", "text"), ("", "text")],
    "tags": [("a,b", "text"), ("B", "text")],
    "uu": [("F47AC10B-58CC-4372-A567-0E02B2C3D479", "uuid")],
}  # fmt: skip
PATTERNS = ("b%", "B_b", "%\\\\b", "a\\%b", "a\\_b", "%b ", "bob", "é", "_", "", "%😀%", "it's")
TEXTS = [name for name, (_, type_, _) in COLUMNS.items() if type_ == "text"]


def _rows():
    longest = max(map(len, VALUES.values()))
    names = list(COLUMNS)[1:]
    rows = []
    for number in range(longest + 1):
        values = [VALUES[name][number] if number < len(VALUES[name]) else None for name in names]
        rows.append((number, *values))
    return rows


ROWS = _rows()


@pytest.fixture(scope="module")
def merged(hub_server):
    """The same rows in PostgreSQL, whose answer is the right one."""
    with psycopg.connect(hub_server.conninfo) as connection:
        columns = ", ".join(f"{name} {type_}" for name, (_, type_, _) in COLUMNS.items())
        connection.execute(f"CREATE TEMPORARY TABLE traps ({columns})")
        marks = ", ".join(["%s"] * len(COLUMNS))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO traps VALUES ({marks})", ROWS)
        yield connection


class Owner:
    def __init__(self, server):
        self.server = server
        self.database, self.url = server.new_database("traps")

    def run(self, *statements, rows=None):
        setting = "SET time_zone = '+00:00', sql_mode = 'NO_BACKSLASH_ESCAPES'"
        return self.server.run(setting, *statements, database=self.database, rows=rows)

    def use(self, function, **options):
        """Call a coroutine function with an adapter and what it publishes."""
        return use(self.url, function, options)

    def scan(self, table, *names, **query):
        """Scan a table's columns; the cells, a list a column."""
        options = query.pop("options", {})

        async def fetch(adapter, tables):
            asked = tuple(tables[table].column(name) for name in names)
            return await collect(adapter, Scan(tables[table], asked, **query))

        return self.use(fetch, **options)


async def collect(adapter, query):
    columns = [[] for _ in query.columns]
    async with adapter.snapshot(30) as snapshot:
        async for batch in snapshot.run(Authorized(query, ledger_entry=1)):
            for column, cells in zip(columns, batch.columns, strict=True):
                column.extend(cells)
    return columns


def numbers(cells):
    return sorted(int.from_bytes(cell, "big", signed=True) for cell in cells)


@pytest.fixture(scope="module")
def owner(mariadb_server):
    owner = Owner(mariadb_server)
    columns = ", ".join(f"{name} {declared}" for name, (declared, _, _) in COLUMNS.items())
    indexes = ", ".join(
        f"INDEX ({name}{'(10)' if name == 'long_' else ''})" for name in list(COLUMNS)[1:]
    )
    owner.run(f"CREATE TABLE traps ({columns}, {indexes}) CHARACTER SET utf8mb4")
    marks = ", ".join(["%s"] * len(COLUMNS))
    rows = [
        tuple(_stored(name, value) for name, value in zip(COLUMNS, row, strict=True))
        for row in ROWS
    ]
    owner.server.run(
        "SET time_zone = '+00:00'",
        f"INSERT INTO traps VALUES ({marks})",
        database=owner.database,
        rows=rows,
    )
    owner.run("ANALYZE TABLE traps")
    return owner


def _stored(name, value):
    if value is None:
        return None
    if name == "ts":
        return value.removesuffix("+00")
    if name == "flag":
        return int(value == "t")
    return bytes.fromhex(value[2:]) if name == "bytes_" else value


def test_publishes_types_that_hold_the_values(owner):
    async def types(_adapter, tables):
        return {column.name: column.type for column in tables["traps"].columns}

    assert owner.use(types) == {name: type_ for name, (_, type_, _) in COLUMNS.items()}


@pytest.mark.parametrize("name", list(COLUMNS))
def test_reads_each_value_as_postgresql_writes_it(owner, merged, name):
    ids, cells = owner.scan("traps", "id", name)
    with merged.cursor(binary=True) as cursor:
        due = cursor.execute(
            pg.SQL("SELECT id, {} FROM traps").format(pg.Identifier(name))
        ).pgresult
        expected = {due.get_value(i, 0): due.get_value(i, 1) for i in range(due.ntuples)}
    found = dict(zip(ids, cells, strict=True))
    if COLUMNS[name][1].startswith("numeric"):  # its display scale may differ
        read = psycopg.types.numeric.NumericBinaryLoader(0).load
        expected = {key: cell and read(cell) for key, cell in expected.items()}
        found = {key: cell and read(cell) for key, cell in found.items()}
    assert found == expected


def constants(name):
    _, _, type_ = COLUMNS[name]
    own = [(str(value), type_) for value in VALUES.get(name, range(5))]
    return own + EXTRA.get(name, [])


def predicates(name):
    for value, type_ in constants(name):
        for operator in ("=", "<>", "<", "<=", ">", ">="):
            yield Comparison(name, operator, value, type_)
        yield Membership(name, (value,), type_)
    own = [value for value, type_ in constants(name) if type_ == COLUMNS[name][2]]
    yield Membership(name, tuple(own[:3]), COLUMNS[name][2])
    yield Membership(name, tuple(own), COLUMNS[name][2])
    yield Membership(name, (), COLUMNS[name][2])
    yield NullTest(name, negated=False)
    yield NullTest(name, negated=True)
    if name in TEXTS:
        for pattern, negated in itertools.product(PATTERNS, (False, True)):
            yield PatternMatch(name, pattern, negated)


def in_postgresql(predicate):
    column = pg.Identifier(getattr(predicate, "column", ""))

    def typed(value):
        return pg.SQL("{}::{}").format(pg.Literal(value), pg.SQL(predicate.type))

    match predicate:
        case And(arguments=arguments) | Or(arguments=arguments):
            word = pg.SQL(" AND " if isinstance(predicate, And) else " OR ")
            return pg.SQL("({})").format(word.join(map(in_postgresql, arguments)))
        case Not(argument=argument):
            return pg.SQL("NOT ({})").format(in_postgresql(argument))
        case NullTest(negated=negated):
            return pg.SQL("{} IS {} NULL").format(column, pg.SQL("NOT" if negated else ""))
        case PatternMatch(pattern=pattern, negated=negated):
            word = pg.SQL("NOT LIKE" if negated else "LIKE")
            return pg.SQL("{} {} {}").format(column, word, pg.Literal(pattern))
        case Membership(values=()):
            return pg.SQL("false")
        case Membership(values=values):
            return pg.SQL("{} IN ({})").format(column, pg.SQL(", ").join(map(typed, values)))
        case Comparison(op=op, value=value):
            return pg.SQL("{} {} {}").format(column, pg.SQL(op), typed(value))


def differences(owner, merged, cases):
    """Compare what is kept with what PostgreSQL keeps; also says how many cases are taken."""
    merged.execute("SET TIME ZONE 'UTC'")

    async def compare(adapter, tables):
        table, wrong, taken = tables["traps"], [], 0
        async with adapter.snapshot(60) as snapshot:
            for predicate in cases:
                if not adapter.supports(table, predicate):
                    continue
                taken += 1
                query = Scan(table, (table.column("id"),), (predicate,))
                found = []
                async for batch in snapshot.run(Authorized(query, ledger_entry=1)):
                    found += batch.columns[0]
                text = pg.SQL("SELECT id FROM traps WHERE {}").format(in_postgresql(predicate))
                due = [row[0] for row in merged.execute(text)]
                if numbers(found) != sorted(due):
                    wrong.append((predicate, numbers(found), sorted(due), adapter.render(query)))
        return wrong, taken

    return owner.use(compare)


@pytest.mark.parametrize("name", list(COLUMNS))
def test_keeps_exactly_the_rows_of_postgresql(owner, merged, name):
    cases = itertools.chain.from_iterable((p, Not(p)) for p in predicates(name))
    wrong, taken = differences(owner, merged, cases)
    assert wrong == []
    assert taken > 20


def combined(count):
    chance = random.Random(20_260_301)
    leaves = list(itertools.chain.from_iterable(map(predicates, COLUMNS)))

    def pick(depth):
        choice = chance.randrange(4) if depth else 0
        if choice == 0:
            return chance.choice(leaves)
        arguments = tuple(pick(depth - 1) for _ in range(1 if choice == 1 else 2))
        return Not(*arguments) if choice == 1 else (And if choice == 2 else Or)(arguments)

    return [pick(3) for _ in range(count)]


def test_keeps_exactly_the_rows_of_combined_conditions(owner, merged):
    wrong, taken = differences(owner, merged, combined(1500))
    assert wrong == []
    assert taken > 1000


KEYS = {
    **dict.fromkeys(TEXTS, "text"),
    "u": "numeric",
    "tiny": "smallint",
    "dec_": "numeric",
    "dbl": "double precision",
    "yr": "integer",
    "d": "date",
    "dt": "timestamp without time zone",
    "whole": "timestamp without time zone",
    "ts": "timestamp with time zone",
    "flag": "boolean",
    "bytes_": "bytea",
    "uu": "uuid",
}


@pytest.mark.parametrize("name", list(KEYS))
@pytest.mark.parametrize("chunk", [1, 3, 10_000])
def test_finds_the_rows_of_keys_once_each(owner, merged, monkeypatch, name, chunk):
    """Case twins and padded twins are keys of their own, in one query or in several."""
    monkeypatch.setattr(sql, "CHUNK_KEYS", chunk)
    values = [value for value, type_ in constants(name) if type_ == COLUMNS[name][2]][::2]
    with merged.cursor(binary=True) as cursor:
        keys, due = [], []
        for value in dict.fromkeys(values):
            typed = pg.SQL("{}::{}").format(pg.Literal(value), pg.SQL(KEYS[name]))
            result = cursor.execute(pg.SQL("SELECT {}").format(typed)).pgresult
            keys.append(result.get_value(0, 0))
            text = pg.SQL("SELECT id FROM traps WHERE {} = {}")
            due += [row[0] for row in cursor.execute(text.format(pg.Identifier(name), typed))]
    (found,) = owner.scan("traps", "id", key_filters=(KeyFilter(name, KEYS[name], tuple(keys)),))
    assert numbers(found) == sorted(due)
    counted = KeyFilter(name, KEYS[name], tuple(keys))

    async def count(adapter, tables):
        async with adapter.snapshot(30) as snapshot:
            query = Scan(tables["traps"], (), key_filters=(counted,), limit=2)
            batches = snapshot.run(Authorized(query, ledger_entry=1))
            return sum([batch.rows async for batch in batches])

    assert owner.use(count) == min(2, len(due))


def test_publishes_how_many_values_indexes_and_statistics_know(owner):
    owner.run(
        "CREATE TABLE counted (id int PRIMARY KEY, k int, word varchar(9), free int, INDEX (k, free))",
        "INSERT INTO counted SELECT seq, seq MOD 20, IF(seq MOD 4 > 0, seq MOD 30, NULL), 1"
        " FROM seq_1_to_600",
        "ANALYZE TABLE counted",
    )

    def counts(tables):
        return {c.name: (c.distinct, c.null_fraction) for c in tables["counted"].columns}

    async def publish(_adapter, tables):
        return counts(tables)

    found = owner.use(publish)
    assert found["id"] == (600.0, None)
    # InnoDB guesses by some pages.
    assert 10 <= found["k"][0] <= 60
    assert found["word"] == found["free"] == (None, None)
    owner.run(
        "ANALYZE TABLE counted PERSISTENT FOR COLUMNS (k, word) INDEXES ()",
        f"GRANT SELECT ON mysql.column_stats TO {owner.database}@localhost",
    )
    found = owner.use(publish)
    assert found["word"] == (pytest.approx(30, abs=2), pytest.approx(0.25, abs=0.01))
    assert found["k"] == (pytest.approx(20, abs=1), 0.0)
    assert found["free"] == (None, None)


@pytest.mark.parametrize("name", list(KEYS))
@pytest.mark.parametrize("chunk", [1, 10_000])
def test_finds_the_rows_of_composite_keys_once_each(owner, merged, monkeypatch, name, chunk):
    """A column that converts, folds or pads compares in a row as it does alone."""
    monkeypatch.setattr(sql, "CHUNK_KEYS", chunk)
    with merged.cursor(binary=True) as cursor:
        column, type_ = pg.Identifier(name), pg.SQL(KEYS[name])
        # Each value beside its own row's number, and beside another one's.
        text = pg.SQL(
            "SELECT DISTINCT t.{}::{}, o.id FROM traps t JOIN traps o ON o.id IN (t.id, (t.id * 7) % 11)"
            " WHERE t.{} IS NOT NULL"
        ).format(column, type_, column)
        result = cursor.execute(text).pgresult
        pairs = [(result.get_value(n, 0), result.get_value(n, 1)) for n in range(result.ntuples)]
        due = [
            row[0]
            for row in cursor.execute(
                pg.SQL(
                    "SELECT id FROM traps t WHERE EXISTS (SELECT FROM ({}) o(v, id) WHERE o.id = t.id AND o.v = t.{}::{})"
                ).format(text, column, type_)
            )
        ]
    ids = KeyFilter("id", "integer", tuple(id_ for _, id_ in pairs))
    keys = KeyFilter(name, KEYS[name], tuple(value for value, _ in pairs), (ids,))
    (found,) = owner.scan("traps", "id", key_filters=(keys,))
    assert numbers(found) == sorted(due)
    assert len(pairs) > len(due) > 0


SEMI_JOINED = {
    "text": TEXTS,
    "numeric": ["u", "dec_"],
    "integer": ["tiny", "yr", "id"],
    "date": ["d"],
    "boolean": ["flag"],
    "bytea": ["bytes_"],
    "uuid": ["uu"],
}


@pytest.mark.parametrize(
    ("name", "type_"), [(name, type_) for type_, names in SEMI_JOINED.items() for name in names]
)
def test_columns_of_any_collation_join_inside(owner, merged, name, type_):
    """What PostgreSQL takes for equal is found, each row once, whatever the two columns are."""
    others = SEMI_JOINED[type_]

    async def join(adapter, tables):
        table = tables["traps"]
        found = {}
        for other in others:
            for also in ((), (("id", "id"),), ((other, name),)):
                inside = SemiJoin(name, other, Scan(table, ()), also)
                query = Scan(table, (table.column("id"),), semi_joins=(inside,))
                (found[inside.pairs],) = await collect(adapter, query)
        return found

    for pairs, cells in owner.use(join).items():
        ids = numbers(cells)
        left, right = (", ".join(names) for names in zip(*pairs, strict=True))
        equal = f"SELECT id FROM traps WHERE ({left}) IN (SELECT {right} FROM traps)"
        assert {row[0] for row in merged.execute(equal)} <= set(ids), pairs
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("size", [10_000_000, 200])
@pytest.mark.parametrize("chunk", [1, 10_000])
def test_keys_inside_a_semi_join_never_repeat_a_row(owner, monkeypatch, chunk, size):
    """Several lists of keys stay one query; a list that is too long is left out, not its rows."""
    monkeypatch.setattr(sql, "CHUNK_KEYS", chunk)
    monkeypatch.setattr(sql, "KEYS_BYTES", size)
    keys = KeyFilter("ci", "text", tuple(f"{word}".encode() for word in WORDS))
    few = KeyFilter("ci", "text", tuple(f"{word}".encode() for word in WORDS[:5]))

    async def join(adapter, tables):
        table = tables["traps"]
        found = []
        for key_filters in ((), (few,), (keys,)):
            inner = Scan(table, (), key_filters=key_filters)
            # A flag has two values: each row has partners of many keys.
            query = Scan(
                table, (table.column("id"),), semi_joins=(SemiJoin("flag", "flag", inner),)
            )
            found.append(numbers((await collect(adapter, query))[0]))
            assert "bob" not in adapter.render(query)
        return found

    everything, some, all_ = owner.use(join)
    assert everything == some == all_ == [0, 1]


@pytest.mark.parametrize(
    ("name", "type_"), [("ci", "bigint"), ("u", "text"), ("d", "timestamp with time zone"),
                        ("dt", "timestamp with time zone"), ("ts", "date"), ("uu", "text"),
                        ("bytes_", "text"), ("flag", "integer"), ("u", "real")],
)  # fmt: skip
def test_takes_no_comparison_across_families(owner, name, type_):
    async def taken(adapter, tables):
        values = {"bigint": "0", "text": "0", "date": "2024-02-29", "integer": "0", "real": "0"}
        value = values.get(type_, "2024-02-29 00:00:00+00")
        asked = [Comparison(name, op, value, type_) for op in ("=", "<>", "<")]
        asked.append(Membership(name, (value,), type_))
        return [each for each in asked if adapter.supports(tables["traps"], each)]

    assert owner.use(taken) == []


def test_case_twins_are_distinct_values(owner):
    for name in ("ci", "pad", "fixed", "long_", "kind", "u"):
        (all_,) = owner.scan("traps", name)
        (once,) = owner.scan("traps", name, distinct=True)
        assert sorted(once, key=repr) == sorted(set(all_), key=repr)


def test_long_values_that_begin_alike_are_distinct(owner):
    """The server sorts strings by their first 1,024 bytes."""
    owner.run(
        "CREATE TABLE prefixed (v varchar(4000), t text, b blob)",
        "INSERT INTO prefixed SELECT concat(repeat('x', 3000), seq % 50),"
        " concat(repeat('x', 3000), seq % 50), concat(repeat('x', 3000), seq % 50)"
        " FROM seq_1_to_5000",
    )

    async def distinct(adapter, tables):
        table = tables["prefixed"]
        asked = [(column,) for column in table.columns] + [table.columns]
        return [len(set(await rows(adapter, table, columns))) for columns in asked]

    async def rows(adapter, table, columns):
        cells = await collect(adapter, Scan(table, columns, distinct=True))
        return list(zip(*cells, strict=True))

    assert owner.use(distinct) == [50] * 4


ODDITIES = """
CREATE TABLE odd (
  id int PRIMARY KEY, f float, bits bit(9), span time(2), six inet6, doc json, big longtext,
  spot point, zero int(5) zerofill, m mediumint unsigned, yes tinyint(1), blank binary(3)
) CHARACTER SET utf8mb4
"""


@pytest.fixture(scope="module")
def odd(owner):
    owner.run(
        ODDITIES,
        "INSERT INTO odd VALUES (1, 16777217, b'100000001', '-838:59:59.50', '::1', '{\"a\":1}',"
        " repeat('ж', 100000), point(1, 2), 42, 16777215, 1, x'62')",
    )
    return owner


@pytest.mark.parametrize(
    ("name", "type_", "cell"),
    [
        ("f", "real", struct.pack("!f", 16777216)),
        ("bits", "bit(9)", b"100000001"),
        ("span", "interval", b"-838:59:59.5"),
        ("six", "text", b"::1"),
        ("doc", "text", b'{"a":1}'),
        ("big", "text", "ж".encode() * 100_000),
        ("zero", "bigint", struct.pack("!q", 42)),
        ("m", "integer", struct.pack("!i", 16777215)),
        ("yes", "smallint", struct.pack("!h", 1)),
        ("blank", "bytea", b"b\0\0"),
    ],
)
def test_reads_the_odder_types(odd, name, type_, cell):
    async def published(_adapter, tables):
        return tables["odd"].column(name).type

    assert odd.use(published) == type_
    assert odd.scan("odd", name) == [[cell]]


def test_reads_a_float_to_its_last_bit(owner):
    values = [0.1, 1 / 3, 3.4028234663852886e38, 1e-45, 16777216.0, -0.7]
    owner.run("CREATE TABLE floats (id int PRIMARY KEY, f float)")
    owner.run("INSERT INTO floats VALUES (%s, %s)", rows=list(enumerate(values)))
    ids, cells = owner.scan("floats", "id", "f")
    due = {number: struct.pack("!f", value) for number, value in enumerate(values)}
    found = zip(ids, cells, strict=True)
    assert {int.from_bytes(number, "big"): cell for number, cell in found} == due


def test_reads_the_columns_of_a_view_that_are_computed(owner):
    owner.run(
        "CREATE VIEW computed AS SELECT count(*) AS n, sum(tiny) AS s, avg(dec_) AS a, 1 / 3 AS q,"
        " 1e0 / 3 AS x, NULL AS nothing, 'x' AS w, concat('a', max(id)) AS c, 1 = 1 AS yes,"
        " TIMESTAMP'2024-02-29 01:02:03' AS at, CAST(at_ AS date) AS day, json_object('a', 1) AS j,"
        " CAST('b' AS binary) AS o, DATE_FORMAT(at_, '%Y') AS y FROM traps,"
        " (SELECT TIMESTAMP'2024-02-29 01:02:03' AS at_) AS m GROUP BY at_"
    )

    async def read(adapter, tables):
        table = tables["computed"]
        columns = await collect(adapter, Scan(table, table.columns))
        return {c.name: (c.type, cells) for c, cells in zip(table.columns, columns, strict=True)}

    found = owner.use(read)
    assert found["n"] == ("bigint", [struct.pack("!q", len(ROWS))])
    assert found["x"] == ("double precision", [struct.pack("!d", 1 / 3)])
    assert found["nothing"][1] == [None]
    assert [found[name][1] for name in ("w", "y", "j")] == [[b"x"], [b"2024"], [b'{"a": 1}']]
    assert found["o"] == ("bytea", [b"b"])
    assert (found["at"][0], found["day"][0]) == ("timestamp without time zone", "date")
    assert found["q"][0].startswith("numeric(")


def test_what_the_server_warns_of_reaches_no_log(mariadb_server, caplog):
    """Its warnings quote values, and the driver logs them."""
    warned = Owner(mariadb_server)
    warned.run(
        "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(30)) ENGINE=InnoDB",
        "INSERT INTO people VALUES (1, 'SECRET-NAME')",
        "CREATE VIEW counted AS SELECT id, CAST(name AS SIGNED) AS n FROM people",
        "CREATE TABLE gone (id INT) ENGINE=InnoDB",
        "CREATE VIEW stale AS SELECT id AS secret_column FROM gone",
        "DROP TABLE gone",
    )
    with caplog.at_level("WARNING"):
        assert numbers(warned.scan("counted", "n")[0]) == [0]
    assert [record.message for record in caplog.records] == []


def test_a_view_whose_definer_is_gone_is_no_failure_to_connect(mariadb_server):
    owner = Owner(mariadb_server)
    owner.run(
        "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB",
        "CREATE DEFINER=nobody@nowhere SQL SECURITY DEFINER VIEW v AS SELECT id FROM t",
    )
    assert owner.scan("t", "id") == [[]]
    with pytest.raises(OwnerError) as caught:
        owner.scan("v", "id")
    assert caught.value.kind is OwnerErrorKind.REFUSED


def test_reads_tables_with_versions_as_they_are_now(owner):
    owner.run(
        "CREATE TABLE versioned (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
        "INSERT INTO versioned VALUES (1)",
        "SET GLOBAL system_versioning_asof = '2001-01-01 00:00:00'",
    )
    try:
        (found,) = owner.scan("versioned", "id")
    finally:
        owner.run("SET GLOBAL system_versioning_asof = DEFAULT")
    assert numbers(found) == [1]


def test_leaves_out_what_no_type_of_postgresql_holds(odd):
    async def names(_adapter, tables):
        return [column.name for column in tables["odd"].columns]

    assert "spot" not in odd.use(names)


WRONG = [
    ("z1", "d date NOT NULL", "'0000-00-00'"),
    ("z2", "d date", "'2024-02-00'"),
    ("z3", "d datetime NOT NULL", "'0000-00-00 00:00:00'"),
    ("z4", "d timestamp NOT NULL", "0"),
    ("z5", "d varchar(9)", "concat('a', char(0))"),
]


@pytest.mark.parametrize(("table", "column", "value"), WRONG)
def test_fails_on_a_value_postgresql_has_no_place_for(owner, table, column, value):
    owner.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, {column})",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"INSERT INTO {table} VALUES (1, {value})",
    )
    with pytest.raises(OwnerError) as caught:
        owner.scan(table, "id", "d")
    assert caught.value.kind is OwnerErrorKind.WRONG_VALUE
    assert f'table "{table}" column "d"' in caught.value.what
    # It is no NULL either, whatever `IS NULL` says here.
    assert owner.scan(table, "id", predicates=(NullTest("d", negated=False),)) == [[]]


def test_numbers_that_are_no_boolean(owner, monkeypatch):
    owner.run(
        "CREATE TABLE flags (id int PRIMARY KEY, yes boolean)",
        "INSERT INTO flags VALUES (1, 0), (2, 1), (3, NULL), (4, 2)",
    )
    options = {"tinyint1": "boolean"}
    true, false = (Comparison("yes", "=", value, "boolean") for value in "tf")
    asked = {
        (true,): [2, 4],
        (Not(true),): [1, 4],
        (false, true): [4],
        (Or((false, And((true,)))),): [1, 2, 4],
    }
    for given, due in asked.items():
        (found,) = owner.scan("flags", "id", predicates=given, options=options)
        assert numbers(found) == due
    monkeypatch.setattr(sql, "CHUNK_KEYS", 1)
    ids = KeyFilter("id", "integer", tuple(struct.pack("!i", n) for n in (1, 2, 3)))
    keys = KeyFilter("yes", "boolean", (b"\0", b"\0", b"\1"), (ids,))
    (found,) = owner.scan("flags", "id", key_filters=(keys,), options=options)
    assert numbers(found) == [1, 4]
    with pytest.raises(OwnerError) as caught:
        owner.scan("flags", "yes", predicates=(true,), options=options)
    assert caught.value.kind is OwnerErrorKind.WRONG_VALUE
    (found,) = owner.scan("flags", "yes")
    assert [cell and int.from_bytes(cell, "big") for cell in found] == [0, 1, None, 2]


@pytest.mark.parametrize(
    ("charset", "bytes_"),
    [("ascii", "E9"), ("cp1251", "98"), ("greek", "AE"), ("tis620", "DB"), ("big5", "A3C0")],
)
def test_bytes_that_are_no_character_of_unicode(owner, charset, bytes_):
    """The server sends a question mark in their place."""
    table = f"bytes_in_{charset}"
    owner.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, w varchar(9) CHARACTER SET {charset}, INDEX (w))",
        f"INSERT INTO {table} VALUES (1, 'a'), (2, 'a?'), (4, NULL), (5, '?')",
        f"INSERT IGNORE INTO {table} VALUES (3, x'61{bytes_}')",
    )
    asked = {
        Comparison("w", "=", "a", "text"): [1],
        NullTest("w", negated=False): [4],
        Or((Comparison("w", "=", "a", "text"), NullTest("w", negated=False))): [1, 4],
        # What may be the value of another row is decided when that is read.
        Not(Comparison("w", "=", "a", "text")): [2, 3, 5],
        Comparison("w", "<>", "a?", "text"): [1, 3, 5],
        Comparison("w", "<", "a", "text"): [3, 5],
        PatternMatch("w", "b%", negated=False): [3],
        PatternMatch("w", "a?", negated=True): [1, 3, 5],
    }
    for predicate, due in asked.items():
        (found,) = owner.scan(table, "id", predicates=(predicate,))
        assert numbers(found) == due
    readable = KeyFilter("id", "integer", tuple(struct.pack("!i", n) for n in (1, 2, 4, 5)))
    (found,) = owner.scan(table, "w", key_filters=(readable,))
    assert sorted(found, key=str) == [None, b"?", b"a", b"a?"]
    by_text = KeyFilter("w", "text", (b"a", b"?"))
    (found,) = owner.scan(table, "w", key_filters=(by_text,))
    assert sorted(found) == [b"?", b"a"]
    for query in (
        {},
        {"distinct": True},
        {"predicates": (PatternMatch("w", "a_", negated=False),)},
    ):
        with pytest.raises(OwnerError) as caught:
            owner.scan(table, "w", **query)
        assert caught.value.kind is OwnerErrorKind.WRONG_VALUE


def test_keys_nulls_comments_and_estimates(owner):
    owner.run(
        "CREATE TABLE Keyed (a varchar(9) COLLATE utf8mb4_general_ci NOT NULL, b int NOT NULL,"
        " C int COMMENT 'may be missing', d text, PRIMARY KEY (a, b), UNIQUE (c), UNIQUE (d(3)),"
        " INDEX (b)) CHARACTER SET utf8mb4 COMMENT 'a table'",
        "INSERT INTO Keyed VALUES ('x', 1, NULL, NULL), ('y', 1, NULL, 'abc')",
        "CREATE VIEW seen AS SELECT a, c AS maybe FROM Keyed",
        "CREATE TABLE own_engine (i int PRIMARY KEY) ENGINE=MyISAM",
        "CREATE SEQUENCE counter",
    )

    async def tables(_adapter, tables):
        return tables

    published = owner.use(tables)
    keyed = published["keyed"]
    assert (keyed.primary_key, set(keyed.unique_keys)) == (("a", "b"), {("c",), ("d",)})
    assert [c.not_null for c in keyed.columns] == [True, True, False, False]
    assert (keyed.comment, keyed.column("c").comment) == ("a table", "may be missing")
    assert keyed.row_estimate >= 1
    seen = published["seen"]
    assert (seen.primary_key, seen.comment, seen.column("a").not_null) == ((), None, False)
    assert not {"own_engine", "counter"} & published.keys()
    assert "own_engine" in owner.use(tables, engines="MyISAM")
    kept = owner.use(tables, case="keep", tables="key*")
    assert [t.name for t in kept.values()] == ["Keyed"]
    assert kept["Keyed"].column("C").source_name == "C"


def test_names_that_differ_in_case_only(mariadb_server):
    owner = Owner(mariadb_server)
    owner.run("CREATE TABLE twin (i int)", "CREATE TABLE TWIN (i int)")

    async def tables(adapter, _tables):
        return sorted((t.name, t.source_name) for t in (await adapter.schema()).tables)

    # Whoever publishes two of one name leaves both out.
    assert owner.use(tables) == [("twin", "TWIN"), ("twin", "twin")]
    assert owner.use(tables, case="keep") == [("TWIN", "TWIN"), ("twin", "twin")]


def test_names_are_quoted(owner):
    owner.run('CREATE TABLE `we"ird ``%s` (`a"b` int PRIMARY KEY, `%d` int)')
    owner.run('INSERT INTO `we"ird ``%%s` VALUES (%s, 7)', rows=[(1,)])
    found = owner.scan(
        'we"ird `%s', 'a"b', "%d", predicates=(Comparison("%d", "=", "7", "integer"),)
    )
    assert list(map(numbers, found)) == [[1], [7]]


def test_publishes_what_the_login_may_read(mariadb_server):
    owner = Owner(mariadb_server)
    owner.run("CREATE TABLE part (a int, secret int)", "CREATE TABLE hidden (a int)")
    mariadb_server.run(
        f"CREATE USER less_{owner.database}@localhost IDENTIFIED BY 'x'",
        f"GRANT SELECT (a) ON {owner.database}.part TO less_{owner.database}@localhost",
    )
    owner.url = mariadb_server.url(f"less_{owner.database}", "x", owner.database)

    async def columns(_adapter, tables):
        return {name: [c.name for c in table.columns] for name, table in tables.items()}

    assert owner.use(columns) == {"part": ["a"]}


def test_the_session_is_ours_whatever_the_servers_settings(owner):
    """The server of these tests has a time zone, an SQL mode and a character set of its own."""

    async def settings(adapter, _tables):
        async with adapter.snapshot(30) as snapshot:
            return await snapshot._session.rows(
                "SELECT @@sql_mode, @@time_zone, @@tx_read_only, @@tx_isolation, @@local_infile,"
                " @@character_set_client, @@character_set_results, @@max_statement_time"
            )

    ((mode, zone, read_only, isolation, _, client, results, limit),) = owner.use(settings)
    assert {"ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "STRICT_ALL_TABLES"} <= set(mode.split(","))
    assert "PAD_CHAR_TO_FULL_LENGTH" not in mode
    assert (zone, read_only, isolation) == ("+00:00", "1", "REPEATABLE-READ")
    assert (client, results) == ("utf8mb4", "utf8mb4")
    assert 29 < float(limit) <= 30


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO traps (id) VALUES (999)",
        "UPDATE traps SET ci = 'x'",
        "DELETE FROM traps",
        "DROP TABLE traps",
        "SELECT 1; DELETE FROM traps",
        "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE traps",
    ],
)
def test_the_session_writes_nothing_and_runs_one_statement(owner, text):
    async def attack(adapter, _tables):
        async with adapter.snapshot(30) as snapshot:
            await snapshot._session.rows(text)

    with pytest.raises(OwnerError) as caught:
        owner.use(attack)
    assert caught.value.kind is OwnerErrorKind.REFUSED
    assert owner.run("SELECT count(*) FROM traps") == ((len(ROWS),),)


@pytest.fixture(scope="module")
def many(owner):
    owner.run(
        "CREATE TABLE many (id int PRIMARY KEY, filler char(200)) CHARACTER SET utf8mb4",
        "INSERT INTO many SELECT seq, repeat('x', 200) FROM seq_1_to_200000",
    )
    return owner


def test_an_answer_left_half_way_keeps_the_snapshot(many):
    async def leave(adapter, tables):
        table, found = tables["many"], []
        query = Authorized(Scan(table, table.columns), ledger_entry=1)
        count = Authorized(Scan(table, ()), ledger_entry=2)
        async with adapter.snapshot(60) as snapshot:
            for _ in range(3):
                async with aclosing(snapshot.run(query)) as batches:
                    async for batch in batches:
                        found.append(batch.rows)
                        break
                # Left to the garbage collector.
                async for batch in snapshot.run(query):
                    found.append(batch.rows)
                    break
                await asyncio.to_thread(many.run, "DELETE FROM many ORDER BY id LIMIT 1")
                found += [batch.rows async for batch in snapshot.run(count)]
        return found

    assert many.use(leave) == [FIRST_ROWS, FIRST_ROWS, 200_000] * 3


def test_a_slow_reader_neither_fails_nor_has_it_all_in_memory(many):
    """The server's own patience with this test's reader is two seconds."""

    async def read(adapter, tables):
        table, rows, held = tables["many"], 0, 0
        async with adapter.snapshot(60) as snapshot:
            async for batch in snapshot.run(Authorized(Scan(table, table.columns), ledger_entry=1)):
                if not rows:
                    await asyncio.sleep(3)
                    held = len(snapshot._session._connection._proto.buffer)
                rows += batch.rows
        return rows, held

    rows, held = many.use(read)
    assert rows > 199_000
    assert held < 5_000_000


@pytest.mark.parametrize(("width", "due"), [(0, BATCH_ROWS), (10_000, BATCH_BYTES // 10_000)])
def test_wide_rows_come_in_smaller_batches(many, width, due):
    many.run(
        f"CREATE OR REPLACE VIEW wide AS SELECT repeat('x', {width}) AS w FROM many WHERE id > 190000"
    )

    async def read(adapter, tables):
        table = tables["wide"]
        async with adapter.snapshot(60) as snapshot:
            batches = snapshot.run(Authorized(Scan(table, table.columns), ledger_entry=1))
            return [batch.rows async for batch in batches]

    first, *others = many.use(read)
    assert first + sum(others) == 10_000
    assert (first, others[0]) == (FIRST_ROWS, due)


def test_streams_and_stops_in_the_event_loop_of_the_proxy(many):
    async def read():
        adapter = open_adapter(many.url, {})
        try:
            table = next(t for t in (await adapter.schema()).tables if t.name == "many")
            query = Authorized(Scan(table, table.columns), ledger_entry=1)
            rows = []
            async with adapter.snapshot(60) as snapshot:
                async with aclosing(snapshot.run(query)) as batches:
                    async for _ in batches:
                        break
                async for batch in snapshot.run(query):
                    rows.append(batch.rows)
                    await asyncio.sleep(0)
            return sum(rows)
        finally:
            await adapter.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read()) > 199_000


def test_a_cancelled_reader_does_not_leave_its_query_behind(many):
    async def cancel(adapter, tables):
        table = tables["many"]

        async def read():
            async with adapter.snapshot(60) as snapshot:
                async for _ in snapshot.run(Authorized(Scan(table, table.columns), ledger_entry=1)):
                    await asyncio.sleep(60)

        task = asyncio.create_task(read())
        await until(lambda: running(many))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not running(many))

    many.use(cancel)


def running(owner):
    return owner.run(
        "SELECT count(*) FROM information_schema.processlist"
        f" WHERE user = '{owner.database}' AND command <> 'Sleep'"
    )[0][0]


def test_an_idle_connection_the_server_has_closed_is_replaced(owner):
    async def lose(adapter, tables):
        query = Scan(tables["traps"], (tables["traps"].column("id"),))
        before = await collect(adapter, query)
        threads = await asyncio.to_thread(
            owner.run,
            f"SELECT id FROM information_schema.processlist WHERE user = '{owner.database}'",
        )
        assert threads
        for (thread,) in threads:
            await asyncio.to_thread(owner.run, f"KILL {thread}")
        return before == await collect(adapter, query)

    assert owner.use(lose)


def test_an_answer_that_breaks_off_is_no_answer(many):
    async def lose(adapter, tables):
        table = tables["many"]
        async with adapter.snapshot(60) as snapshot:
            async for _ in snapshot.run(Authorized(Scan(table, table.columns), ledger_entry=1)):
                await asyncio.to_thread(many.run, f"KILL QUERY {snapshot._session._thread}")

    with pytest.raises(OwnerError, match="stopped") as caught:
        many.use(lose)
    assert caught.value.kind is OwnerErrorKind.UNREACHABLE


def test_a_table_changed_inside_a_snapshot_is_noticed(owner):
    owner.run("CREATE TABLE moving (id int PRIMARY KEY, v int)", "INSERT INTO moving VALUES (1, 2)")

    async def change(adapter, tables):
        async with adapter.snapshot(30) as snapshot:
            await asyncio.to_thread(owner.run, "ALTER TABLE moving MODIFY v varchar(9)")
            query = Scan(tables["moving"], tables["moving"].columns)
            return [batch async for batch in snapshot.run(Authorized(query, ledger_entry=1))]

    async def change_before(adapter, tables):
        await asyncio.to_thread(owner.run, "ALTER TABLE moving MODIFY v varbinary(9)")
        return await collect(adapter, Scan(tables["moving"], tables["moving"].columns))

    for function in (change, change_before):
        with pytest.raises(OwnerError) as caught:
            owner.use(function)
        assert caught.value.kind is OwnerErrorKind.SCHEMA_CHANGED


@pytest.mark.parametrize(
    ("charset", "word"), [("utf8mb4 COLLATE utf8mb4_unicode_ci", "Слово"), ("ascii", "word")]
)
def test_conditions_on_text_use_an_index(many, charset, word):
    many.run(
        f"CREATE TABLE words_{word} (id int PRIMARY KEY, w varchar(40), INDEX (w))"
        f" CHARACTER SET {charset}",
        f"INSERT INTO words_{word} SELECT seq, concat('{word} ', seq) FROM seq_1_to_20000",
        f"ANALYZE TABLE words_{word}",
    )

    async def plans(adapter, tables):
        table = tables[f"words_{word}"]
        predicate = Comparison("w", "=", f"{word} 7", "text")
        keys = KeyFilter("w", "text", tuple(f"{word} {n}".encode() for n in range(2000)))
        single = Scan(table, table.columns, (predicate,))
        listed = Scan(table, table.columns, key_filters=(keys,))
        found = []
        for query in (single, listed):
            (conditions,) = sql.key_conditions(query, adapter._traits, adapter._dialect)
            text = sql.scan(query, adapter._traits, adapter._dialect, conditions, None)
            async with adapter.snapshot(30) as snapshot:
                ((plan, *_),) = [
                    (row[3], row[5]) for row in await snapshot._session.rows(f"EXPLAIN {text}")
                ]
            found.append(plan)
        return found

    assert many.use(plans) in (["ref", "range"], ["range", "range"])


@pytest.mark.parametrize(
    ("url", "options", "fault"),
    [
        ("mariadb://u@h/", {}, "has the form"),
        ("mariadb://u@h/a/b", {}, "has the form"),
        ("mariadb://h/db", {}, "has the form"),
        ("mariadb://u@/db", {}, "has the form"),
        ("mariadb://u@h/db?socket=/s", {}, "has the form"),
        ("mariadb://u@h:x/db", {}, "has the form"),
        ("mariadb://u:secret@h/db?charset=latin1", {}, "parameter"),
        ("mariadb://u@h/db?ssl-mode=maybe", {}, "ssl-mode is none"),
        ("mariadb://u@h/db?ssl-ca=/x", {}, "no ssl-mode"),
        ("mariadb://u@/db?socket=/s&ssl-mode=required", {}, "socket"),
        ("mariadb://u@h/db?ssl-mode=verify_ca&ssl-ca=/nosuch", {}, "cannot be read"),
        ("mysql://u@h/db", {"case": "UPPER"}, "case"),
        ("mysql://u@h/db", {"tinyint1": "yes"}, "tinyint1"),
        ("mysql://u@h/db", {"pool_size": "0"}, "pool_size"),
        ("mysql://u@h/db", {"connect_timeout": "soon"}, "connect_timeout"),
    ],
)
def test_refuses_a_url_or_option_it_cannot_use(url, options, fault):
    with pytest.raises(ValueError, match=fault) as caught:
        open_adapter(url, options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "works"),
    [
        ("ssl-mode=required", True),
        ("ssl-mode=verify_ca&ssl-ca={ca}", True),
        ("ssl-mode=VERIFY-IDENTITY&ssl-ca={ca}", True),
        ("ssl-mode=verify_ca", False),
        ("ssl-mode=verify_identity", False),
        ("ssl-mode=disabled", False),
    ],
)
def test_speaks_tls_with_a_server_it_trusts(mariadb_server, parameters, works):
    database, _ = mariadb_server.new_database("tls")
    mariadb_server.run(
        f"CREATE USER {database}@'%' IDENTIFIED BY 'x' REQUIRE SSL",
        f"GRANT SELECT ON {database}.* TO {database}@'%'",
        f"DROP USER {database}@localhost",
    )
    where = f"127.0.0.1:{mariadb_server.port}"
    url = f"mysql://{database}:x@{where}/{database}?{parameters.format(ca=mariadb_server.certificate)}"

    async def cipher():
        adapter = open_adapter(url, {})
        try:
            async with adapter.snapshot(30) as snapshot:
                return await snapshot._session.rows("SHOW STATUS LIKE 'Ssl_cipher'")
        finally:
            await adapter.close()

    if works:
        ((_, found),) = asyncio.run(cipher())
        assert found
    else:
        with pytest.raises(OwnerError) as caught:
            asyncio.run(cipher())
        assert caught.value.kind in (OwnerErrorKind.UNREACHABLE, OwnerErrorKind.REFUSED)


@pytest.mark.parametrize("mode", ["required", "verify_ca", "verify_identity"])
def test_never_falls_back_to_a_connection_in_the_clear(mode):
    """A server that offers no TLS is not spoken to, and is sent no password."""
    heard, done = [], asyncio.Event()

    async def serve(reader, writer):
        # Protocol 10, capabilities without CLIENT_SSL.
        greeting = (
            b"\x0a10.11.0-MariaDB\0" + b"\1\0\0\0" + b"saltsalt\0" + b"\xff\xf7" + b"\x2d"
            b"\2\0" + b"\xff\x81" + b"\x15" + b"\0" * 10 + b"saltsaltsalt\0"
            b"mysql_native_password\0"
        )
        writer.write(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
        heard.append(await reader.read(4096))
        heard.append(await reader.read(4096))
        writer.close()
        await writer.wait_closed()
        done.set()

    async def run():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"mariadb://alice:secret@127.0.0.1:{port}/db?ssl-mode={mode}"
            adapter = open_adapter(url, {"connect_timeout": "2"})
            try:
                with pytest.raises(OwnerError) as caught:
                    await adapter.schema()
            finally:
                await adapter.close()
            async with asyncio.timeout(10):
                await done.wait()
            return caught.value

    error = asyncio.run(run())
    assert error.kind in (OwnerErrorKind.UNREACHABLE, OwnerErrorKind.TIMEOUT)
    assert b"alice" not in b"".join(heard)


def test_uuid_constants_are_read_in_any_case():
    assert uuid.UUID(EXTRA["uu"][0][0]) == uuid.UUID(VALUES["uu"][1])
