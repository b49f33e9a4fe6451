"""Settings of a session that change what its statements mean, for owners as for the hub."""

from __future__ import annotations

from collections import Counter

import pytest

CASES = {
    "transform_null_equals = on": [
        "SELECT id FROM a WHERE k = NULL",
        "SELECT a.id, b.id FROM a LEFT JOIN b ON b.k = a.k WHERE b.k = NULL",
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.k = NULL",
        "SELECT c.id, q.n FROM c, (SELECT count(*) n FROM a WHERE k = NULL) q",
    ],
    "array_nulls = off": [
        "SELECT id FROM a WHERE v = ANY ('{NULL,x}'::text[])",
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.v IS NULL OR a.v = ANY ('{NULL,x}'::text[])",
    ],
    "timezone_abbreviations = 'India'": [
        "SELECT a.id FROM a JOIN b ON b.id = a.id WHERE a.id < 3 AND "
        "timestamptz '2026-01-01 00:00 IST' < timestamptz '2025-12-31 20:00 UTC'",
        "SELECT count(*) FROM a WHERE timestamptz '2026-01-01 00:00 IST' < "
        "timestamptz '2025-12-31 20:00 UTC'",
    ],
}


@pytest.mark.parametrize(
    ("setting", "statement"), [(s, each) for s, statements in CASES.items() for each in statements]
)
def test_a_setting_holds_for_owners_as_for_the_hub(client, merged, setting, statement):
    answers = []
    for connection in (client, merged):
        connection.execute(f"SET {setting}")
        try:
            rows = connection.execute(statement).fetchall()
        finally:
            connection.execute(f"RESET {setting.split()[0]}")
        answers.append(Counter(map(repr, rows)))
    assert answers[0] == answers[1]


def test_a_plan_does_not_outlive_the_collation_it_was_made_for(client):
    """A temporary table may come back under its name with text that compares otherwise."""
    statement = "EXPLAIN (FORMAT json) SELECT a.id FROM a JOIN b USING (k) JOIN h ON h.v = a.v"
    notes = []
    for collation in ("", "COLLATE pg_unicode_fast"):
        client.execute(f"CREATE TEMP TABLE h (v text {collation})")
        notes.append(client.execute(statement).fetchone()[0][0]["Plan"].get("Notes", []))
        client.execute("DROP TABLE h")
    assert notes == [[], ["read unreduced: it has text with a collation of its own"]]
