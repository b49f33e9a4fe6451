"""Many rows of several owners: the hub does not compare each with each."""

from __future__ import annotations

import psycopg
import pytest

ROWS = 400
"""Of each table: their pairs are more than a nested loop is good for."""

COLUMNS = "id bigint, k bigint, day date"
JOIN = "FROM {0}p JOIN {0}q ON q.k = p.k AND q.id = p.id WHERE p.k >= 5 AND p.k < 9"
FEW = "FROM {0}p JOIN {0}r USING (id)"

PLANNED = """
CREATE FUNCTION pg_temp.planned() RETURNS text IMMUTABLE LANGUAGE plpgsql
AS 'BEGIN RETURN current_setting(''enable_nestloop''); END'
"""
"""Computed when a statement is planned, whatever is set when it is executed."""

WAYS = {
    "simple": ("{0}",),
    "block": ("BEGIN", "{0}", "SHOW enable_nestloop", "COMMIT"),
    "cursor": ("BEGIN", "DECLARE c CURSOR FOR {0}", "SHOW enable_nestloop", "FETCH ALL FROM c"),
    "table": ("CREATE TEMP TABLE made AS {0}", "TABLE made", "DROP TABLE made"),
}


@pytest.fixture(scope="module")
def pair(two_owners, request):
    rows = [(n, n % 20, f"2024-01-{1 + n % 28:02}") for n in range(ROWS)]
    tables = {
        "north": {"p": (COLUMNS, rows)},
        "south": {"q": (COLUMNS, rows), "r": (COLUMNS, rows[:3])},
    }
    with two_owners(request, "postgres", tables) as (client, merged):
        connection = client()
        connection.execute(PLANNED)
        yield connection, merged


@pytest.fixture
def session(pair):
    connection, _ = pair
    yield connection
    connection.rollback()
    connection.execute("RESET enable_nestloop")


def setting(connection):
    return connection.execute("SHOW enable_nestloop").fetchone()[0]


def asked(connection, way, query):
    """Run the statements of a way and return the rows that each gives."""
    given = []
    for statement in WAYS[way]:
        cursor = connection.execute(statement.format(query))
        if cursor.description:
            given.append(cursor.fetchall())
    connection.rollback()
    return given


@pytest.mark.parametrize("way", WAYS)
def test_they_are_not_joined_in_nested_loops(session, way):
    query = f"SELECT DISTINCT pg_temp.planned() {JOIN.format('shop.')}"
    given = asked(session, way, query)
    assert [("off",)] in given
    assert given.count([("on",)]) == (way in ("block", "cursor"))
    assert setting(session) == "on"


@pytest.mark.parametrize("prepare", [False, True])
def test_parameters_are_bound_in_the_same_way(session, prepare):
    query = f"SELECT pg_temp.planned(), count(*) {JOIN.format('shop.')} AND p.id > %s"
    for least in (-1, 100):
        (found,) = session.execute(query, (least,), prepare=prepare).fetchall()
        assert found == ("off", sum(n > least and 5 <= n % 20 < 9 for n in range(ROWS)))
    assert setting(session) == "on"


def test_what_a_statement_reads_is_the_sessions(session):
    query = f"SELECT DISTINCT current_setting('enable_nestloop') {JOIN.format('shop.')}"
    assert session.execute(query).fetchall() == [("on",)]


def test_few_rows_are_joined_as_the_hub_likes(session):
    query = f"SELECT DISTINCT pg_temp.planned() {FEW.format('shop.')}"
    assert session.execute(query).fetchall() == [("on",)]


def test_what_the_client_has_set_stays_set(session):
    session.execute("SET enable_nestloop = off")
    for way in WAYS:
        asked(session, way, f"SELECT count(*) {JOIN.format('shop.')}")
        assert setting(session) == "off"
    session.execute("SET enable_nestloop = on")
    session.execute("BEGIN")
    session.execute("SET LOCAL enable_nestloop = off")
    session.execute(f"SELECT count(*) {JOIN.format('shop.')}")
    assert setting(session) == "off"
    session.execute("COMMIT")
    assert setting(session) == "on"


@pytest.mark.parametrize("start", ["", "BEGIN", "BEGIN; SAVEPOINT s"])
def test_a_statement_that_fails_leaves_it_as_it_was(session, start):
    session.execute(start or "SELECT")
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.execute(f"SELECT p.id / (q.k - q.k) {JOIN.format('shop.')}")
    if "SAVEPOINT" in start:
        session.execute("ROLLBACK TO s")
    else:
        session.rollback()
    assert setting(session) == "on"
    query = f"SELECT DISTINCT pg_temp.planned() {FEW.format('shop.')}"
    assert session.execute(query).fetchall() == [("on",)]


@pytest.mark.parametrize("way", WAYS)
def test_the_rows_are_those_of_the_merged_tables(pair, session, way):
    _, merged = pair
    for select in ("SELECT p.id, q.day", "SELECT count(*), max(q.day)"):
        found = asked(session, way, f"{select} {JOIN.format('shop.')}")
        wanted = asked(merged, way, f"{select} {JOIN.format('')}")
        assert [sorted(rows) for rows in found] == [sorted(rows) for rows in wanted]
