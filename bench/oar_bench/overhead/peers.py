"""What the proxy's joins are measured against: by hand, postgres_fdw and DuckDB.

By hand is the least any federation can do: one statement at the first owner, one at the second
with the keys as an array, rows fetched and nothing evaluated. By hand at a hub also feeds those
rows to a PostgreSQL as arrays and evaluates the statement there. By hand and recorded also reads
each owner in one snapshot, and has written down durably what it sends before it sends it: the least
that a federation which promises those can do. postgres_fdw and DuckDB run the whole statement.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from oar_bench.overhead.owners import OWNERS, Connection, Owners

Answer = list[tuple[Any, ...]]

OAR: Final = "oar"
BY_HAND: Final = "by hand"
AT_HUB: Final = "by hand at a hub"
RECORDED: Final = "by hand, recorded"
TUNED: Final = "postgres_fdw tuned"
PLAIN: Final = "postgres_fdw"
DUCKDB: Final = "DuckDB"

CONTESTANTS: Final = (OAR, BY_HAND, AT_HUB, RECORDED, TUNED, PLAIN, DUCKDB)
"""All there are, in the order they are shown."""

FEEDING: Final = (AT_HUB, RECORDED)
"""Those that feed rows to a hub as arrays."""

TUNED_OPTIONS: Final = "use_remote_estimate 'true', fetch_size '10000'"
"""What a careful administrator of postgres_fdw sets for such joins."""

_SCANNER: Final = "duckdb_extension_postgres_scanner"


@dataclass(frozen=True, slots=True)
class Query:
    """A statement over the two owners' tables, or over one of them.

    ``template`` has ``{orders}`` and ``{deliveries}`` where the tables and their aliases stand,
    ``{where}`` for the condition on orders, ``where``, and ``{number}`` in the name of an output:
    another number makes it another statement. Without ``{orders}`` it is one owner's.
    """

    template: str
    where: str = ""

    @property
    def joins(self) -> bool:
        """Whether it needs both owners."""
        return "{orders}" in self.template

    @property
    def condition(self) -> str:
        """The WHERE clause, with a space before it; empty where every order is meant."""
        return f" WHERE {self.where}" if self.where else ""

    def text(self, number: int) -> str:
        """Return the statement over published names."""
        return self._written("shop.orders AS o", "fleet.deliveries AS d", number)

    def text_at_owner(self, number: int) -> str:
        """Return the one owner's statement as it is sent to that owner directly."""
        return self._written("", "deliveries AS d", number)

    def text_at_hub(self, number: int) -> str:
        """Return the statement over four arrays: orders, and the columns of deliveries."""
        orders = "unnest(%s::bigint[]) AS o(order_id)"
        arrays = "%s::bigint[], %s::text[], %s::integer[]"
        deliveries = f"unnest({arrays}) AS d(order_id, city, delay_days)"
        return self.template.format(orders=orders, deliveries=deliveries, where="", number=number)

    def _written(self, orders: str, deliveries: str, number: int) -> str:
        return self.template.format(
            orders=orders, deliveries=deliveries, where=self.condition, number=number
        )


Ask = Callable[[Query, int], Answer | None]
"""Answers a query under the text of this number; None where rows are fetched and not evaluated."""


class Unavailable(Exception):
    """A peer that is not installed. One line that says how to install it."""


def sends_whole(connection: Connection) -> Ask:
    """A connection that answers whole statements: the proxy's, or one to foreign tables."""

    def ask(query: Query, number: int) -> Answer:
        return connection.execute(query.text(number).encode()).fetchall()

    return ask


def by_hand(shop: Connection, fleet: Connection) -> Ask:
    """Send each owner its statement, and evaluate nothing."""

    def ask(query: Query, number: int) -> Answer | None:
        if not query.joins:
            return fleet.execute(query.text_at_owner(number).encode()).fetchall()
        _fetch(shop, fleet, query, number)
        return None

    return ask


def by_hand_at_hub(shop: Connection, fleet: Connection, hub: Connection) -> Ask:
    """Fetch by hand, then evaluate the statement at a hub over arrays of what came."""

    def ask(query: Query, number: int) -> Answer:
        return _evaluate(hub, query, number, *_fetch(shop, fleet, query, number))

    return ask


def by_hand_recorded(shop: Connection, fleet: Connection, hub: Connection) -> Ask:
    """Fetch by hand in snapshots, each query on disk at the hub before it goes; then evaluate."""
    hub.execute("CREATE TABLE recorded (at timestamptz DEFAULT now(), query text, keys bigint[])")

    def record(query: str, keys: list[int]) -> None:
        hub.execute("INSERT INTO recorded (query, keys) VALUES (%s, %s)", (query, keys))

    def ask(query: Query, number: int) -> Answer:
        with _snapshot(shop), _snapshot(fleet):
            rows = _fetch(shop, fleet, query, number, record)
            return _evaluate(hub, query, number, *rows)

    return ask


@contextmanager
def _snapshot(owner: Connection) -> Iterator[None]:
    owner.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        owner.execute("COMMIT")


def _evaluate(
    hub: Connection, query: Query, number: int, orders: Answer, deliveries: Answer
) -> Answer:
    columns = [list(column) for column in zip(*deliveries, strict=True)] or [[], [], []]
    keys = [order for (order,) in orders]
    return hub.execute(query.text_at_hub(number).encode(), (keys, *columns)).fetchall()


def _fetch(
    shop: Connection,
    fleet: Connection,
    query: Query,
    number: int,
    record: Callable[[str, list[int]], None] | None = None,
) -> tuple[Answer, Answer]:
    """Fetch the orders, then their deliveries; all deliveries where all orders are meant."""
    first = f"SELECT o.order_id AS n{number} FROM orders AS o{query.condition}"
    if record is not None:
        record(first, [])
    orders = shop.execute(first.encode()).fetchall()
    second = f"SELECT order_id, city, delay_days AS n{number} FROM deliveries"
    keys = [key for (key,) in orders] if query.where else []
    if query.where:
        second += " WHERE order_id = ANY(%s)"
    if record is not None:
        record(second, keys)
    return orders, fleet.execute(second.encode(), (keys,) if query.where else None).fetchall()


@contextmanager
def duckdb(owners: Owners) -> Iterator[Ask]:
    """Join both owners in a DuckDB of this process, through its postgres extension.

    Nothing is downloaded. Raises :class:`Unavailable` without the packages of extra ``bench``.
    """
    try:
        engine = importlib.import_module("duckdb")
        place = files(_SCANNER) / "extensions" / f"v{engine.__version__}"
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed (the project's extra bench: pip install '.[bench]')"
        ) from error
    extension = place / "postgres_scanner.duckdb_extension"
    if not extension.is_file():
        raise Unavailable(f"{_SCANNER} is not of DuckDB's version {engine.__version__}")
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with engine.connect(config=offline) as connection:
        connection.execute(f"LOAD {_literal(str(extension))}")
        for owner in OWNERS:
            where = _literal(owners.conninfo(owner))
            connection.execute(f"ATTACH {where} AS {owner} (TYPE postgres, READ_ONLY)")

        def ask(query: Query, number: int) -> Answer:
            rows: Answer = connection.execute(query.text(number)).fetchall()
            return rows

        yield ask


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
