"""What a run does with keys: R32 to R36, and what it may hide of errors: R38."""

from __future__ import annotations

import psycopg
import pytest

LAST = "(SELECT ask FROM oar.asks ORDER BY at DESC LIMIT 1)"


@pytest.fixture(params=["pg-sqlite", "mariadb-pg", "pg-mariadb"])
def client(request, combinations):
    """The third owner is of the left one's kind."""
    return combinations(request.param).client


def disclosed(client):
    """The keys of the last statement: from, to, how many."""
    return client.execute(
        f"SELECT from_column, to_column, keys FROM oar.disclosures WHERE ask = {LAST} ORDER BY 1"
    ).fetchall()


@pytest.mark.parametrize(
    ("rule", "sql", "expected"),
    [
        ("R1", "a JOIN b ON a.k = b.k WHERE b.s = 'q'", [("shop.b.k", "a.k", 2)]),
        ("R2", "a LEFT JOIN b ON a.k = b.k WHERE a.v = 'x'", [("shop.a.k", "b.k", 2)]),
        ("R32", "a JOIN b ON a.k = b.k WHERE b.s = 'nobody'", [("shop.b.k", "a.k", 0)]),
        ("R33", "a JOIN b ON a.k = b.k WHERE b.id = 4", [("shop.b.k", "a.k", 0)]),
        ("R36", "a JOIN b ON a.k = b.k WHERE b.id < 3", [("shop.b.k", "a.k", 1)]),
        ("R41", "small_l l JOIN int_r r ON l.k = r.k WHERE r.id = 2", [("shop.int_r.k", "small_l.k", 1)]),
    ],
)  # fmt: skip
def test_keys_are_distinct_without_null_and_on_the_ledger(client, rule, sql, expected):
    client.execute(f"SELECT count(*) FROM {sql}")
    assert disclosed(client) == expected, rule


def test_r32_an_owner_no_key_is_left_for_is_skipped_and_audited(client):
    sql = "SELECT count(*) FROM a JOIN b ON a.k = b.k WHERE b.s = 'nobody'"
    explained = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone()[0]
    assert explained[0]["Plan"]["Steps"][1]["Skipped"] == "no key was left"
    audited = client.execute(f"SELECT owner, rows FROM oar.steps WHERE ask = {LAST} ORDER BY step")
    assert audited.fetchall() == [("right", 0), ("left", 0)]


@pytest.mark.parametrize("left", ["pg", "sqlite", "mariadb"])
@pytest.mark.parametrize("right", ["pg", "sqlite", "mariadb"])
def test_r34_more_keys_than_parameters_reach_an_owner_whole(combinations, left, right):
    client = combinations(f"{left}-{right}").client
    counted = client.execute(
        "SELECT count(*), count(r.id) FROM many_l l LEFT JOIN many_r r ON l.k = r.k WHERE l.id < 66000"
    ).fetchone()
    assert counted == (65_999, 32_999)
    assert disclosed(client) == [("shop.many_l.k", "many_r.k", 65_999)]


def test_r34_keys_beyond_a_message_of_mariadbs_reach_it_whole(combinations, mariadb_server):
    ((usual,),) = mariadb_server.run("SELECT @@GLOBAL.max_allowed_packet")
    mariadb_server.run("SET GLOBAL max_allowed_packet = 131072")
    try:
        # Nobody else asks these owners, so their connections are new.
        client = combinations("pg-mariadb", "rightward").client
        counted = client.execute(
            "SELECT count(*), count(r.id) FROM many_l l JOIN many_r r ON l.k = r.k WHERE l.id < 66000"
        ).fetchone()
    finally:
        mariadb_server.run(f"SET GLOBAL max_allowed_packet = {usual}")
    assert counted == (32_999, 32_999)
    assert disclosed(client) == [("shop.many_l.k", "many_r.k", 65_999)]


def test_r35_when_each_owner_was_asked_is_told(client):
    client.execute("SELECT count(*) FROM a JOIN b ON a.k = b.k")
    asked = client.execute(
        f"SELECT owner, at <= finished_at FROM oar.steps WHERE ask = {LAST} ORDER BY 1"
    ).fetchall()
    assert asked == [("left", True), ("right", True)]


def test_r36_rows_of_an_owner_are_never_made_distinct(client):
    sql = "SELECT b.k FROM a JOIN b USING (k) WHERE a.id = 1"
    explained = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone()[0]
    steps = explained[0]["Plan"]["Steps"]
    assert [(s["Owner"], s["Actual Rows"]) for s in steps] == [("left", 1), ("right", 2)]


def test_r38_a_reduction_may_hide_an_error_and_makes_none(combinations):
    """Rows nobody joins are not read, so what they would fail with is not seen."""
    place = combinations("pg-sqlite")
    hiding = "SELECT a.id FROM a JOIN b USING (k) WHERE a.v = 'nobody' AND 1 / (b.w - 900) >= 0"
    assert place.client.execute(hiding).fetchall() == []
    failing = "SELECT a.id FROM a JOIN b USING (k) WHERE a.v = 'y' AND 1 / (b.w - 900) >= 0"
    for connection in (place.client, place.merged):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(failing)
    guarded = failing.replace(
        "1 / (b.w - 900)", "CASE WHEN b.w = 900 THEN 0 ELSE 1 / (b.w - 900) END"
    )
    assert place.client.execute(guarded).fetchall() == place.merged.execute(guarded).fetchall()
