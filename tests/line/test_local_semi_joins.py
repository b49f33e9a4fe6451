"""Tables of one owner inside a wider join: they are joined there, and no key of theirs leaves."""

from __future__ import annotations

from collections import Counter

import pytest

TABLES = {
    "north": {
        "orders": ("id int primary key, code text COLLATE \"C\", region int",
                   [(1, "a", 1), (2, "b", 2), (3, "A", 2), (4, None, 3), (5, "c", None)]),
        "regions": ("id bigint primary key, name varchar(10)", [(1, "east"), (2, "west"), (3, "far")]),
        "lines": ("order_id bigint, item int, code text",
                  [(1, 1, "a"), (1, 2, "a"), (2, 1, "b"), (3, 1, "b"), (4, 2, None), (None, 1, "a"), (6, 9, "z")]),
    },
    "south": {
        "items": ("id bigint, maker bigint, name text", [(1, 1, "pen"), (2, 2, "ink"), (3, 1, "pad"), (None, 3, "x")]),
        "makers": ("id bigint, name text", [(1, "one"), (2, "two"), (2, "twin"), (4, None)]),
    },
}  # fmt: skip

DENY = "version: 1\n"
FEW_IN = "version: 1\nlimits: {max_keys_in: 1}\nkey_disclosure:\n  - {column: '*', to: ['*']}\n"

STATEMENTS = {
    "chain": "SELECT l.item, r.name, i.name FROM lines l JOIN orders o ON o.id = l.order_id"
    " JOIN regions r ON r.id = o.region JOIN items i ON i.id = l.item",
    "filtered far away": "SELECT r.name FROM lines l JOIN orders o ON o.id = l.order_id JOIN regions r"
    " ON r.id = o.region JOIN items i ON i.id = l.item JOIN makers m ON m.id = i.maker WHERE m.name = 'two'",
    "filtered here": "SELECT m.name FROM lines l JOIN orders o ON o.id = l.order_id JOIN regions r"
    " ON r.id = o.region JOIN items i ON i.id = l.item JOIN makers m ON m.id = i.maker WHERE r.name = 'west'",
    "two columns": "SELECT o.id, l.item, i.name FROM orders o JOIN lines l ON l.order_id = o.id"
    " AND l.code = o.code JOIN items i ON i.id = l.item",
    "ring": "SELECT o.id, m.name FROM orders o JOIN lines l ON l.order_id = o.id JOIN items i ON i.id = l.item"
    " JOIN makers m ON m.id = i.maker AND m.id = o.region",
    "ring in one owner": "SELECT o.id, i.name FROM orders o JOIN lines l ON l.order_id = o.id JOIN lines k"
    " ON k.code = l.code AND k.order_id = o.id JOIN items i ON i.id = l.item",
    "itself": "SELECT a.id, b.id, i.name FROM orders a JOIN orders b ON a.region = b.region"
    " JOIN items i ON i.id = b.id WHERE a.code = 'A'",
    "left": "SELECT o.id, l.item, i.name FROM orders o LEFT JOIN lines l ON l.order_id = o.id"
    " LEFT JOIN items i ON i.id = l.item WHERE o.code > 'a'",
    "left, filtered": "SELECT o.id, l.item, i.name FROM items i LEFT JOIN (orders o JOIN lines l"
    " ON l.order_id = o.id) ON i.id = l.item AND o.code = 'b'",
    "full": "SELECT o.id, l.item, i.name FROM orders o FULL JOIN lines l ON l.order_id = o.id"
    " JOIN items i ON i.id = l.item",
    "not exists": "SELECT i.name FROM items i WHERE NOT EXISTS (SELECT FROM lines l JOIN orders o"
    " ON o.id = l.order_id WHERE l.item = i.id AND o.code = 'b')",
    "exists in a list": "SELECT i.name, EXISTS (SELECT FROM lines l JOIN orders o ON o.id = l.order_id"
    " WHERE l.item = i.id AND o.region = 2) FROM items i",
    "aggregate below": "SELECT i.name, q.n FROM items i JOIN (SELECT l.item, count(*) AS n FROM lines l"
    " JOIN orders o ON o.id = l.order_id GROUP BY l.item) q ON q.item = i.id",
    "text of two collations": "SELECT o.id, l.order_id, i.name FROM orders o JOIN lines l ON l.code = o.code"
    " JOIN items i ON i.id = l.item WHERE o.region = 2",
    "union": "SELECT i.name FROM items i JOIN (SELECT order_id AS k FROM lines UNION ALL SELECT id FROM orders) q"
    " ON q.k = i.id JOIN orders o ON o.id = q.k",
    "limit": "SELECT o.id, i.name FROM orders o JOIN (SELECT * FROM lines ORDER BY order_id, item LIMIT 3) l"
    " ON l.order_id = o.id JOIN items i ON i.id = l.item",
}


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def places(request, two_owners):
    with two_owners(request, request.param, TABLES, text="TEXT COLLATE NOCASE") as made:
        yield made


def reads(step):
    return step["Reads"].removeprefix("shop.").partition(" ")[0]


@pytest.mark.parametrize("reduction", ["forward", "full"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_equal_those_of_the_merged_tables(places, name, reduction):
    client, merged = places
    due = Counter(merged.execute(STATEMENTS[name]).fetchall())
    for policies in ({}, {"north": DENY}, {"south": DENY}, {"north": DENY, "south": DENY}):
        connection = client(**policies)
        connection.execute(f"SET oar.reduction = '{reduction}'")
        assert Counter(connection.execute(STATEMENTS[name]).fetchall()) == due, policies


@pytest.mark.parametrize("reduction", ["forward", "full"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_no_key_goes_back_to_its_owner(places, name, reduction, steps):
    """But for a table that several arms of a set operation reduce together, or a subquery does.

    Evaluated once more for a semi-join, the first rows of it may be others.
    """
    client = places[0]()
    client.execute(f"SET oar.reduction = '{reduction}'")
    found = steps(client, STATEMENTS[name])
    if not any("subquery" in step["Reads"] for step in found):
        rules = [(k["Rule"], "," in k["From"]) for step in found for k in step.get("Keys", ())]
        assert ("own keys", False) not in rules


def test_keys_go_to_the_table_they_join_however_deep_it_stands(places, steps):
    client = places[0]()
    sent = {reads(step): step for step in steps(client, STATEMENTS["filtered far away"])}
    assert sent["makers"].get("Keys", []) == []
    assert "Keys" not in sent["items"]
    assert "IN (SELECT" in sent["items"]["SQL"]
    for table in ("lines", "orders", "regions"):
        (key,) = sent[table]["Keys"]
        assert (key["From"], key["To"]) == ("south: shop.items.id", "north: lines.item")
        assert sent[table]["Actual Keys"] == 1
    assert [sent[table]["Actual Rows"] for table in ("items", "lines", "orders", "regions")] == [
        1,
        2,
        2,
        2,
    ]


def test_steps_of_one_owner_do_not_wait_for_each_other(places):
    """No round trip between them: what the last step needs is there when the first one starts."""
    client = places[0]()
    client.execute("SET oar.progress = on; SET client_min_messages = notice")
    told = []
    client.add_notice_handler(lambda notice: told.append(notice.message_primary))
    client.execute(STATEMENTS["filtered here"])
    client.execute("RESET oar.progress")
    asked = [n for n, message in enumerate(told) if message.startswith("asking owner north")]
    answered = [n for n, message in enumerate(told) if message.startswith("owner north sent")]
    assert len(asked) == 3
    assert max(asked) < min(answered)


def test_keys_inside_are_on_the_ledger(places):
    client = places[0]()
    client.execute(STATEMENTS["filtered far away"])
    disclosed = client.execute(
        "SELECT from_column, to_column, keys FROM oar.disclosures WHERE ask = "
        "(SELECT ask FROM oar.steps ORDER BY step DESC LIMIT 1)"
    ).fetchall()
    assert disclosed == [("shop.items.id", "lines.item", 1)] * 3
    carried = client.execute(
        "SELECT owner, sum(keys) FROM oar.steps WHERE ask = "
        "(SELECT ask FROM oar.steps ORDER BY step DESC LIMIT 1) GROUP BY owner ORDER BY owner"
    ).fetchall()
    assert carried == [("north", 3), ("south", 0)]


def test_too_many_keys_inside_are_left_out(places, steps):
    client, merged = places
    statement = STATEMENTS["filtered far away"].replace("'two'", "'one'")
    due = Counter(merged.execute(statement).fetchall())
    for policies, keys in (({}, 2), ({"north": FEW_IN}, 0)):
        connection = client(**policies)
        assert Counter(connection.execute(statement).fetchall()) == due
        sent = [step for step in steps(connection, statement) if step["Owner"] == "north"]
        assert [step.get("Actual Keys", 0) for step in sent] == [keys] * 3


def test_an_owner_that_denies_its_keys_still_joins_its_own_tables(places, steps):
    connection = places[0](north=DENY, south=DENY)
    sent = {reads(step): step for step in steps(connection, STATEMENTS["filtered here"])}
    assert not any("Keys" in step for step in sent.values())
    assert [sent[table]["Actual Rows"] for table in ("regions", "orders", "lines")] == [1, 2, 2]


@pytest.mark.parametrize("name", ["chain", "filtered far away", "filtered here", "itself", "left"])
def test_in_full_no_row_leaves_that_joins_with_nothing(places, name, steps):
    client = places[0]()
    client.execute("SET oar.reduction = 'full'")
    found = steps(client, STATEMENTS[name])
    forward = places[0]()
    forward.execute("SET oar.reduction = 'forward'")
    sent = Counter()
    for step in found:
        if not step["Reads"].startswith("keys of"):
            sent[reads(step)] += step["Actual Rows"]
    others = Counter()
    for step in steps(forward, STATEMENTS[name]):
        others[reads(step)] += step["Actual Rows"]
    assert sent <= others
    north = [step for step in found if step["Owner"] == "north"]
    assert not any(step["Reads"].startswith("keys of") for step in north[1:])
