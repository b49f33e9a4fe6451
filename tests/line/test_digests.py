"""Keys that leave as digests match what the keys themselves match, between any two technologies."""

from __future__ import annotations

import itertools
import re
import sqlite3
from contextlib import ExitStack

import psycopg
import pytest
from oar_bench.addresses import owner_url
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings

KINDS = ("pg", "lite", "maria")
ROWS = [
    (1, 10, "KEY-Ann", "KEY-Bob"), (2, 20, "KEY-Bob", "KEY-Ann "), (3, -7, "KEY-ann", None), (4, None, None, "KEY-Bob"),
    (5, 2**63 - 1, "KEY-Zoë 😀", "k3"), (6, 10, "KEY-Ann ", ""), (7, -(2**63), "", "KEY-Ann "),
    (8, 0, "KEY-'\\\\", "key-bob"),
]  # fmt: skip
OWN = {"pg": ROWS[:6], "lite": ROWS[1:], "maria": [*ROWS[::2], *ROWS[1:4:2]]}
MORE = {
    "pg": "cents integer, id uuid",
    "lite": "cents integer",
    "maria": "cents smallint(5) unsigned zerofill, id uuid",
}
UUIDS = ["0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"]


def table(kind: str) -> str:
    return f"CREATE TABLE of_{kind} (n bigint, k bigint, s text, t varchar(20), day date, {MORE[kind]})"


def rows(kind: str) -> list[tuple]:
    ids = [(UUIDS[n % 2],) for n in range(9)] if kind != "lite" else [()] * 9
    return [
        (*row, f"2026-01-0{n % 3 + 1}", n % 3 * 10, *more)
        for n, (row, more) in enumerate(zip(OWN[kind], ids, strict=False))
    ]


@pytest.fixture(scope="module")
def places(mariadb_server, new_database, running_proxy, tmp_path_factory):
    """Proxies whose owners let all keys leave, in one form, and MariaDB's log of queries."""
    directory = tmp_path_factory.mktemp("digests")
    database = new_database("pg")
    with psycopg.connect(database) as connection:
        connection.execute(table("pg"))
        connection.cursor().executemany(
            f"INSERT INTO of_pg VALUES ({', '.join(['%s'] * 7)})", rows("pg")
        )
    with sqlite3.connect(directory / "lite.sqlite") as file:
        file.execute(table("lite"))
        file.executemany("INSERT INTO of_lite VALUES (?, ?, ?, ?, ?, ?)", rows("lite"))
    file.close()
    name, url = mariadb_server.new_database(
        "maria", options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    )
    mariadb_server.run(table("maria"), database=name)
    mariadb_server.run(
        f"INSERT INTO of_maria VALUES ({', '.join(['%s'] * 7)})", database=name, rows=rows("maria")
    )
    urls = {"pg": owner_url(database), "lite": f"sqlite:///{directory}/lite.sqlite", "maria": url}
    with ExitStack() as stack:

        def client(form: str, giver: str):
            owners = {}
            for kind in KINDS:
                policy = directory / f"{form}-{giver}-{kind}.yaml"
                grant = f"key_disclosure: [{{column: '*', to: ['*'], form: {form}}}]\n"
                policy.write_text("version: 1\n" + (grant if kind == giver else ""))
                owners[kind] = OwnerSettings(url=urls[kind], schema="shop", policy=policy)
            hub = HubSettings(dsn=new_database("hub"))
            _, dsn = stack.enter_context(
                running_proxy(Settings(owners=owners, hub=hub, listen=Listen(port=0)))
            )
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            connection.execute("SET search_path = shop")
            return connection

        yield (
            {(form, kind): client(form, kind) for form in ("plain", "hmac") for kind in KINDS},
            lambda text: mariadb_server.run(text, database="mysql"),
        )


PAIRS = list(itertools.permutations(KINDS, 2))
JOINS = ["g.k = r.k", "g.s = r.s", "g.t = r.t", "g.cents = r.cents", "g.s = r.t", "g.k = r.cents",
         "g.k = r.k AND g.s = r.s"]  # fmt: skip


@pytest.mark.parametrize(("giver", "receiver"), PAIRS)
@pytest.mark.parametrize("condition", [*JOINS, "g.id = r.id"])
def test_digests_find_what_keys_find(places, giver, receiver, condition):
    if "id = " in condition and "lite" in (giver, receiver):
        return  # SQLite has no such type
    clients, _ = places
    statement = (
        f"SELECT g.n, r.n FROM of_{giver} g JOIN of_{receiver} r ON {condition} WHERE g.n < 9"
    )
    found = {}
    for form in ("plain", "hmac"):
        client = clients[form, giver]
        found[form] = sorted(client.execute(statement).fetchall())
        (document,) = client.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()
        keys = [key for step in document[0]["Plan"]["Steps"] for key in step.get("Keys", ())]
        assert [key["Form"].split(", ")[0] for key in keys] == [form], document
    assert found["plain"] == found["hmac"]
    assert found["hmac"]


@pytest.mark.parametrize(("giver", "receiver"), PAIRS)
def test_keys_of_a_type_without_one_text_for_each_value_stay(places, giver, receiver):
    clients, _ = places
    statement = (
        f"SELECT g.n, r.n FROM of_{giver} g JOIN of_{receiver} r ON g.day = r.day WHERE g.n < 9"
    )
    client = clients["hmac", giver]
    plain = clients["plain", giver].execute(statement).fetchall()
    assert sorted(client.execute(statement).fetchall()) == sorted(plain)
    (document,) = client.execute(f"EXPLAIN (FORMAT json) {statement}").fetchone()
    steps = document[0]["Plan"]["Steps"]
    assert not any("Keys" in step for step in steps)
    denied = {each["Rule"] for step in steps for each in step.get("Denied", ())}
    assert f"{giver}/key_disclosure[0].form" in denied


def test_no_key_stands_in_what_a_database_logs(places):
    clients, maria = places
    maria("SET GLOBAL log_output = 'TABLE'")
    maria("SET GLOBAL general_log = 1")
    try:
        for form in ("plain", "hmac"):
            maria("TRUNCATE general_log")
            for giver in ("pg", "lite"):
                clients[form, giver].execute(
                    f"SELECT count(*) FROM of_{giver} g JOIN of_maria r ON g.s = r.s WHERE g.n < 9"
                )
            logged = maria("SELECT CAST(argument AS CHAR) FROM general_log")
            texts = [str(text) for (text,) in logged if "of_maria" in str(text)]
            assert len(texts) >= 2
            assert any("SHA2" in text for text in texts) is (form == "hmac")
            assert bool(re.search("KEY-", "\n".join(texts))) is (form == "plain")
    finally:
        maria("SET GLOBAL general_log = 0")


def test_what_is_shown_has_neither_digest_nor_secret(places):
    clients, _ = places
    for giver, receiver in PAIRS:
        statement = f"SELECT 1 FROM of_{giver} g JOIN of_{receiver} r ON g.s = r.s WHERE g.n < 9"
        plan = "\n".join(
            row[0] for row in clients["hmac", giver].execute(f"EXPLAIN ANALYZE {statement}")
        )
        assert not re.search("[0-9a-f]{32}", plan), plan
        assert re.search(r"sha256|oar_hmac|SHA2", plan), plan
