"""A join across two owners of a million rows each: the proxy, by hand, and postgres_fdw.

By hand is the least any federation can do: one statement at the first owner, one at the second
with the keys as an array, rows fetched and nothing evaluated. postgres_fdw runs the whole
statement, once as installed and once tuned.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings
from psycopg import sql

from oar_bench.harness import ALLOW_ALL
from oar_bench.overhead.processes import OverheadError, interleaved, milliseconds, proxy_process

Connection = psycopg.Connection[Any]

INNER: Final = (
    "SELECT d.city, count(*), avg(d.delay_days) FROM shop.orders o "
    "JOIN fleet.deliveries d ON d.order_id = o.order_id WHERE o.promo = '{promo}' GROUP BY d.city"
)
OUTER: Final = (
    "SELECT o.order_id, d.city, d.delay_days FROM shop.orders o "
    "LEFT JOIN fleet.deliveries d ON d.order_id = o.order_id WHERE o.promo = '{promo}'"
)
UNSELECTIVE: Final = (
    "SELECT d.city, count(*), sum(d.delay_days) FROM shop.orders o "
    "JOIN fleet.deliveries d ON d.order_id = o.order_id GROUP BY d.city"
)

TUNED: Final = "use_remote_estimate 'true', fetch_size '50000', async_capable 'true'"
"""What a careful administrator of postgres_fdw sets for such joins."""


@dataclass(frozen=True, slots=True)
class Case:
    """One statement; ``promo`` picks the orders, None for all. ``rounds`` are measured."""

    name: str
    statement: str
    promo: str | None
    rounds: int


CASES: Final = (
    Case("50 keys", INNER.format(promo="P50"), "P50", 11),
    Case("5,550 keys", INNER.format(promo="P5550"), "P5550", 7),
    Case("outer join, 150 keys", OUTER.format(promo="P150"), "P150", 11),
    Case("unselective GROUP BY", UNSELECTIVE, None, 3),
)

_ORDERS: Final = """
CREATE TABLE orders (order_id bigint PRIMARY KEY, promo text NOT NULL, amount integer NOT NULL);
INSERT INTO orders
SELECT i,
       CASE WHEN i % ({rows} / 50) = 7 THEN 'P50'
            WHEN i % ({rows} / 150) = 11 THEN 'P150'
            WHEN i % ({rows} / 5550) = 13 THEN 'P5550'
            ELSE 'G' || i % 100 END,
       i % 1000
FROM generate_series(1, {rows}) AS i;
CREATE INDEX ON orders (promo);
-- By default the sample holds one or two of the 50 rows, and a plan that rests on it is luck.
ALTER TABLE orders ALTER COLUMN promo SET STATISTICS 1000;
ANALYZE orders;
"""
_DELIVERIES: Final = """
CREATE TABLE deliveries (
    order_id bigint PRIMARY KEY, city text NOT NULL, delay_days integer NOT NULL
);
INSERT INTO deliveries SELECT i, 'city ' || (i / 7) % 40, i % 17
FROM generate_series({rows} / 10, {rows} + {rows} / 10) AS i;
ANALYZE deliveries;
"""
"""A tenth of the orders has no delivery, so that an outer join has something to extend."""


def measure(directory: Path, *, rows: int) -> dict[str, dict[str, float]]:
    """Run all cases over owners of ``rows`` rows: case → contestant → median milliseconds.

    Raises :class:`~oar_bench.overhead.processes.OverheadError`, also when two contestants that
    evaluate the statement answer it differently.
    """
    if rows < 100_000:
        raise OverheadError("the owners need 100,000 rows or more for 5,550 keys to be a selection")
    with ExitStack() as stack:
        owners = stack.enter_context(_owners(directory, rows))
        proxy = stack.enter_context(
            proxy_process(directory, secrets.token_urlsafe(12), _sections(owners, directory))
        )
        oar = stack.enter_context(proxy.connect())
        plain = stack.enter_context(owners.foreign("fdw", ""))
        tuned = stack.enter_context(owners.foreign("fdw_tuned", TUNED))
        shop = stack.enter_context(owners.connect("shop"))
        fleet = stack.enter_context(owners.connect("fleet"))
        by_hand = partial(_by_hand, shop, fleet)
        return {case.name: _measure(case, oar, plain, tuned, by_hand) for case in CASES}


class _Owners:
    """A server with a database for each of the two owners, and others that join them."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def connect(self, database: str) -> Connection:
        return psycopg.connect(self._conninfo, dbname=database, autocommit=True)

    def create(self, database: str) -> None:
        with self.connect("postgres") as connection:
            name = sql.Identifier(database)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))

    def url(self, database: str) -> str:
        """Return the owner's URL as the adapter reads it."""
        part = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        user, password = (quote(str(part[name]), safe="") for name in ("user", "password"))
        host = quote(str(part["host"]), safe="")
        return f"postgresql://{user}:{password}@/{database}?host={host}&port={part['port']}"

    @contextmanager
    def foreign(self, database: str, options: str) -> Iterator[Connection]:
        """Join both owners in a database of its own through postgres_fdw."""
        self.create(database)
        part = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        with self.connect(database) as connection:
            connection.execute("CREATE EXTENSION postgres_fdw")
            for owner in ("shop", "fleet"):
                more = f", {options}" if options else ""
                server = f"host '{part['host']}', port '{part['port']}', dbname '{owner}'{more}"
                login = f"user '{part['user']}', password '{part['password']}'"
                for statement in (
                    f"CREATE SERVER {owner} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({server})",
                    f"CREATE USER MAPPING FOR CURRENT_USER SERVER {owner} OPTIONS ({login})",
                    f"CREATE SCHEMA {owner}",
                    f"IMPORT FOREIGN SCHEMA public FROM SERVER {owner} INTO {owner}",
                ):
                    connection.execute(statement.encode())
            if options:
                connection.execute("ANALYZE shop.orders")
                connection.execute("ANALYZE fleet.deliveries")
            yield connection


@contextmanager
def _owners(directory: Path, rows: int) -> Iterator[_Owners]:
    server = EmbeddedServer(HubSettings(data_dir=directory / "owners"))
    try:
        owners = _Owners(server.start().conninfo)
        for database, script in (("shop", _ORDERS), ("fleet", _DELIVERIES)):
            owners.create(database)
            with owners.connect(database) as connection:
                connection.execute(script.format(rows=rows).encode())
        yield owners
    finally:
        server.stop()


def _sections(owners: _Owners, directory: Path) -> dict[str, Any]:
    policy = directory / "allow-all.yaml"
    policy.write_text(ALLOW_ALL)
    return {
        "owners": {
            name: {"url": owners.url(name), "policy": str(policy)} for name in ("shop", "fleet")
        },
        # The unselective join needs both tables whole.
        "limits": {"max_rows": 10_000_000, "max_bytes": 8 * 1024**3},
    }


def _by_hand(shop: Connection, fleet: Connection, promo: str) -> None:
    """Fetch the orders of a promo, then their deliveries."""
    orders = shop.execute("SELECT order_id FROM orders WHERE promo = %s", (promo,)).fetchall()
    fleet.execute(
        "SELECT order_id, city, delay_days FROM deliveries WHERE order_id = ANY(%s)",
        ([order for (order,) in orders],),
    ).fetchall()


def _measure(
    case: Case,
    oar: Connection,
    plain: Connection,
    tuned: Connection,
    by_hand: Callable[[str], None],
) -> dict[str, float]:
    evaluated = {"oar": oar, "postgres_fdw": plain, "postgres_fdw tuned": tuned}
    # The unmeasured first run warms connections and caches, and is where answers are compared.
    answers = {name: _answer(place, case.statement) for name, place in evaluated.items()}
    if any(answer != answers["oar"] for answer in answers.values()):
        raise OverheadError(f"{case.name}: the contestants' answers differ")
    contestants: dict[str, Callable[[], float]] = {
        name: partial(milliseconds, partial(_answer, place, case.statement))
        for name, place in evaluated.items()
    }
    if case.promo is not None:
        by_hand(case.promo)
        contestants["by hand"] = partial(milliseconds, partial(by_hand, case.promo))
    return interleaved(contestants, case.rounds)


def _answer(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    rows = connection.execute(statement.encode()).fetchall()
    return sorted(rows, key=repr)
