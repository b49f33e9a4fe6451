"""What tools ask of columns alone is answered without an owner: nothing of it depends on rows."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import psycopg.conninfo
import pytest

PROBES = {
    "limit 0": "SELECT * FROM sales.orders LIMIT 0",
    "false": "SELECT * FROM sales.orders WHERE false",
    "one is nought": "SELECT * FROM sales.orders WHERE 1 = 0",
    "nought is one": "SELECT o.* FROM sales.orders AS o WHERE 0 = 1",
    "two owners": "SELECT * FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id LIMIT 0",
    "two owners, false": "SELECT o.id, c.name FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id WHERE 1 = 0",
    "wrapped": "SELECT * FROM (SELECT id, amount FROM sales.orders WHERE status = 'new') AS virtual_table LIMIT 0",
    "wrapped, two owners": "SELECT * FROM (SELECT o.id, c.city FROM sales.orders o JOIN crm.customers c ON c.id = o.customer_id) AS virtual_table LIMIT 0",
    "wrapped, false": 'SELECT "q".* FROM (SELECT * FROM sales.orders) "q" WHERE 1 <> 1',
    "grouped": "SELECT status, count(*) FROM sales.orders WHERE false GROUP BY status",
    "grouped, limit 0": "SELECT status, sum(amount) FROM sales.orders GROUP BY 1 ORDER BY 2 DESC LIMIT 0",
    "fetch first 0": "SELECT * FROM sales.orders FETCH FIRST 0 ROWS ONLY",
    "union": "SELECT id FROM sales.orders WHERE false UNION ALL SELECT id FROM crm.customers WHERE false",
    "with": "WITH q AS (SELECT * FROM sales.orders) SELECT * FROM q LIMIT 0",
    "outer": "SELECT * FROM sales.orders o LEFT JOIN crm.customers c ON c.id = o.customer_id WHERE false",
    "other letters": "SELECT 'сто' AS \"столбец\", o.* FROM sales.orders AS o LIMIT 0",
    "question": "SELECT * FROM oar_ask('How many orders are there?') LIMIT 0",
}
CONSTANT = {
    "exists": ("SELECT EXISTS (SELECT 1 FROM sales.orders WHERE false)", [(False,)]),
    "count": ("SELECT count(*) FROM sales.orders WHERE false", [(0,)]),
    "sum": ("SELECT sum(amount), max(placed_at) FROM sales.orders WHERE 1 = 0", [(None, None)]),
    "one side only": ("SELECT c.name FROM crm.customers c LEFT JOIN sales.orders o ON o.customer_id = c.id AND 1 = 0 WHERE false", []),
    "scalar": ("SELECT (SELECT id FROM crm.customers LIMIT 0) AS id", [(None,)]),
}  # fmt: skip


@pytest.fixture
def nobody_asked(shop, tool):
    """Check that nothing was written about a query to an owner, nor read by one."""
    with psycopg.connect(tool[1], autocommit=True) as hub:

        def queries():
            steps = hub.execute(
                "SELECT count(*) FROM oar_internal.entries WHERE kind = 'step'"
            ).fetchone()
            return steps, shop.asked()

        before = queries()
        yield
        assert queries() == before


def words(dsn):
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    return {"host": given["host"], "port": int(given["port"]), "user": given["user"],
            "password": given["password"], "database": given["dbname"]}  # fmt: skip


def described(connection, statement):
    cursor = connection.execute(statement)
    return [(c.name, c.type_code) for c in cursor.description], cursor.fetchall()


@pytest.mark.parametrize("name", [n for n in PROBES if n != "question"])
def test_columns_are_told_without_an_owner(name, client, merged, nobody_asked):
    statement = PROBES[name]
    assert described(client, statement) == described(merged, statement)


def test_columns_of_a_question_are_told_without_an_owner(client, nobody_asked):
    columns, rows = described(client, PROBES["question"])
    assert ([name for name, _ in columns], rows) == (["count"], [])


@pytest.mark.parametrize("name", CONSTANT)
def test_what_no_row_can_change_is_answered_without_an_owner(name, client, nobody_asked):
    statement, right = CONSTANT[name]
    assert client.execute(statement).fetchall() == right


@pytest.mark.parametrize("name", PROBES)
def test_a_statement_is_described_without_an_owner(name, tool, nobody_asked):
    async def columns():
        connection = await asyncpg.connect(**words(tool[0]))
        try:
            prepared = await connection.prepare(PROBES[name].replace(" LIMIT 0", ""))
            return [a.name for a in prepared.get_attributes()]
        finally:
            await connection.close()

    assert asyncio.run(columns())


def test_a_cursor_that_gives_nothing_asks_nobody(client, nobody_asked):
    with client.transaction():
        client.execute("DECLARE probe CURSOR FOR SELECT * FROM sales.orders WHERE false")
        cursor = client.execute("FETCH 0 FROM probe")
        assert [c.name for c in cursor.description][:2] == ["id", "customer_id"]
        assert client.execute("FETCH ALL FROM probe").fetchall() == []


def test_a_table_made_without_data_asks_nobody(client, nobody_asked):
    client.execute("CREATE TEMP TABLE empty AS SELECT * FROM sales.orders WITH NO DATA")
    assert client.execute("SELECT count(*) FROM empty").fetchall() == [(0,)]


def test_a_limit_of_nought_below_reads_what_stands_beside_it(client, merged):
    statement = (
        "SELECT c.id, (SELECT o.id FROM sales.orders o LIMIT 0) FROM crm.customers c"
        " WHERE 1 = 1 ORDER BY 1"
    )
    assert client.execute(statement).fetchall() == merged.execute(statement).fetchall()


def test_an_offset_is_computed_also_where_nothing_is_wanted(client, merged):
    statement = "SELECT 1 FROM crm.customers LIMIT 0 OFFSET (SELECT -max(id) FROM sales.orders)"
    for connection in (client, merged):
        with pytest.raises(psycopg.errors.InvalidRowCountInResultOffsetClause):
            connection.execute(statement)


def test_the_owner_s_log_tells_what_it_is_asked(client, shop):
    before = len(shop.asked())
    client.execute("SELECT max(placed_at) FROM sales.orders")
    assert len(shop.asked()) > before


@pytest.mark.parametrize("end", ["LIMIT 0", "LIMIT 2", "WHERE 1 = 0"])
def test_what_a_statement_writes_is_written_whatever_it_shows(end, client):
    client.execute("CREATE TEMP TABLE IF NOT EXISTS kept (id bigint)")
    client.execute("TRUNCATE kept")
    insert = "INSERT INTO kept SELECT q.id FROM (SELECT id FROM crm.customers) AS q RETURNING id"
    client.execute(f"WITH written AS ({insert}) SELECT 1 {end}")
    counted = "SELECT (SELECT count(*) FROM kept) = count(*), count(*) > 0 FROM crm.customers"
    assert client.execute(counted).fetchall() == [(True, True)]
