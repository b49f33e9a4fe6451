"""What a statement's one owner evaluates, and what is left to the hub."""

from __future__ import annotations

import pytest

LOCALE = "a pattern's classes of characters follow the locale"
STATEMENTS = {
    "SELECT substring(v from 2 for 1) FROM a": None,
    "SELECT substring(v, 1), substr(v, id::int) FROM a": None,
    "SELECT substring(v, length(v) - 1), substring(v, position('x' in v)) FROM a": None,
    "SELECT substring(v, id::int4, 2) FROM a": None,
    r"SELECT substring(v from '\w+') FROM a": LOCALE,
    "SELECT substring(v from v) FROM a": LOCALE,
    "SELECT substring(v, '(?i)x' || v) FROM a": LOCALE,
    "SELECT id FROM a WHERE substring(v from '[[:alpha:]]+') = 'x'": LOCALE,
    "SELECT count(*) FROM (SELECT id FROM a)": None,
    "SELECT id FROM a WHERE id = 0x2": None,
    "SELECT id::pg_catalog.int4 FROM a": None,
    "SELECT id / 2.0 FROM a WHERE power(id, 2) > 3": "function power is evaluated by the hub",
}


@pytest.mark.parametrize(("statement", "kept"), STATEMENTS.items())
def test_a_statement_goes_whole_where_its_owner_gives_the_same(client, statement, kept):
    (document,) = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()
    plan = document[0]["Plan"]
    (step,) = plan["Steps"]
    assert (step["Reads"] == "the whole statement") is (kept is None)
    if kept is not None:
        assert any(kept in note for note in plan["Notes"])


def test_a_type_of_the_clients_own_is_no_built_in_one(client):
    client.execute("CREATE DOMAIN pg_temp.text AS int CHECK (VALUE > 0)")
    statement = "SELECT id::pg_temp.text FROM a ORDER BY 1 LIMIT 1"
    assert client.execute(statement).fetchone() == (1,)
    client.execute("DROP DOMAIN pg_temp.text")
