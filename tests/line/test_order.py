"""Which order is taken, of several that are all sound, and what is said of the others."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from oar_adapters.interface import (
    Agreement,
    And,
    Column,
    Comparison,
    Membership,
    Not,
    NullTest,
    Or,
    PatternMatch,
    Table,
)
from oar_bench.addresses import owner_url
from oar_proxy.catalog import Holder, PublishedTable
from oar_proxy.estimate import VALUES, Estimates, occurring, selectivity
from oar_proxy.hub.planreading import KeyEdge, Origin
from oar_proxy.offer import Offers
from oar_proxy.order import SHOWN, order
from oar_proxy.settings import HubSettings, Listen, OwnerSettings, Settings


def table(rows, **columns):
    made = tuple(
        Column(name, "bigint", name, equality=Agreement.EXACT, distinct=distinct, null_fraction=0.0)
        for name, distinct in columns.items()
    )
    return Table("t", made, "t", row_estimate=rows)


class Edges:
    """What policies and adapters say, as a table: ``most`` keys along an edge, what is local."""

    def __init__(self, most, local, unsettled):
        self.most, self.beside, self.unsettled = most, local, unsettled

    def local(self, edge):
        return frozenset((edge.sources[0].occurrence, edge.target.occurrence)) in self.beside

    def most_keys(self, edge):
        pair = (edge.sources[0].occurrence, edge.target.occurrence)
        return self.most.get(pair, 1_000_000)

    def limit_rule(self, edge):
        return f"limit of {edge.target.column}"

    def settled(self, number):
        return number not in self.unsettled

    def discloses(self, edge):
        return not self.local(edge)


def both(left, right):
    one, other = (Origin(int(text[1]), text[3:]) for text in (left, right))
    return [KeyEdge((one,), other), KeyEdge((other,), one)]


def one_way(left, right):
    return both(left, right)[:1]


def ordered(tables, edges, *, left=None, most=None, local=(), unsettled=(), full=False):
    """Order occurrences 1, 2, … of these tables; ``left`` are the rows that conditions leave."""
    occurrences = {
        number: SimpleNamespace(
            table=PublishedTable("s", f"t{number}", (), (Holder(f"o{number}", each),), "")
        )
        for number, each in enumerate(tables, start=1)
    }
    estimates = Estimates(
        occurrences, {n: [(o.table.holders[0], ())] for n, o in occurrences.items()}
    )
    estimates.rows.update(left or {})
    offers = Offers(Edges(most or {}, local, unsettled), edges, estimates, set(left or {}))
    return order(offers, list(occurrences), reduce_fully=full)


def arrows(found):
    return {
        f"{each.edge.sources[0].occurrence}>{each.edge.target.occurrence}"
        for chosen in found.chosen
        for each in chosen.relayed()
    }


def numbers(found):
    return [chosen.occurrence for chosen in found.chosen]


BIG = table(1_000_000, k=1_000_000, j=1000)

CASES = {
    "the filtered side is asked first": (
        ([BIG, BIG], both("t1.k", "t2.k")), {"left": {2: 10}}, {"2>1"},
    ),
    "the side with fewer values tells them": (
        ([table(1000, k=1000), table(5000, k=20)], both("t1.k", "t2.k")), {}, {"2>1"},
    ),
    "a few keys more are worth many rows less": (
        ([table(1_000_000, k=1_000_000), table(5000, k=900)], both("t1.k", "t2.k")),
        {"left": {1: 1000}}, {"1>2"},
    ),
    "one way only: no key for less rows than keys": (
        ([table(5000, k=5000), table(100, k=100)], one_way("t1.k", "t2.k")), {}, set(),
    ),
    "a star is reduced by what it finds few rows of, and reduces the rest": (
        ([table(1_000_000, a=100_000, b=1000), table(100_000, a=100_000), table(1000, b=1000)],
         both("t1.a", "t2.a") + both("t1.b", "t3.b")), {"left": {2: 1}}, {"2>1", "1>3"},
    ),
    "a star is reduced by all of its filtered points": (
        ([table(1_000_000, k=1000, j=1000), table(1000, k=1000), table(1000, j=1000)],
         both("t1.k", "t2.k") + both("t1.j", "t3.j")), {"left": {2: 50, 3: 50}}, {"2>1", "3>1"},
    ),
    "keys of one value go along one chain": (
        ([table(100_000, k=100_000), table(10_000, k=10_000), BIG],
         both("t1.k", "t2.k") + both("t2.k", "t3.k") + both("t1.k", "t3.k")),
        {"left": {1: 10}}, {"1>2", "2>3"},
    ),
    "a forbidden direction turns round": (
        ([BIG, table(100, k=100)], both("t1.k", "t2.k")),
        {"left": {1: 10_000}, "most": {(2, 1): 0}}, {"1>2"},
    ),
    "more keys than may travel do not": (
        ([BIG, table(5000, k=5000)], both("t1.k", "t2.k")), {"most": {(2, 1): 100, (1, 2): 0}}, set(),
    ),
    "no key travels where the owner joins": (
        ([BIG, table(100, k=100)], both("t1.k", "t2.k")), {"local": [frozenset((1, 2))]}, set(),
    ),
    "keys reach what stands behind a table of the same owner": (
        ([BIG, table(1_000_000, k=1_000_000, a=1000), table(1000, a=1000)],
         both("t1.k", "t2.k") + both("t2.a", "t3.a")),
        {"left": {3: 5}, "local": [frozenset((1, 2))]}, {"3>2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_keys_travel(name):
    arguments, options, due = CASES[name]
    assert arrows(ordered(*arguments, **options)) == due


@pytest.mark.parametrize("name", CASES)
def test_the_order_taken_is_no_worse_than_those_rejected(name):
    arguments, options, _ = CASES[name]
    found = ordered(*arguments, **options)
    taken, *rejected = found.alternatives
    assert taken.reason == ""
    assert len(rejected) < SHOWN
    for other in rejected:
        assert other.reason
        assert sorted(n for wave in other.waves for n in wave) == sorted(numbers(found))
        weight = 10 * taken.keys + taken.rows
        assert (taken.unreduced, weight) <= (other.unreduced, 10 * other.keys + other.rows)


def test_an_alternative_says_what_decided_against_it():
    found = ordered([table(1000, k=1000), table(5000, k=20)], both("t1.k", "t2.k"))
    assert [(a.waves, round(a.keys), round(a.rows), a.reason) for a in found.alternatives] == [
        (((2,), (1,)), 20, 5020, ""),
        (((1,), (2,)), 1000, 6000, "more keys and rows"),
        (((2, 1),), 0, 6000, "leaves 1 join unreduced"),
    ]


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        ({(1, 2): 50}, "about 5000 keys are expected, at most 50 may travel (limit of k)"),
        ({}, "about 5000 keys are not worth its about 100 rows"),
    ],
)
def test_a_reduction_that_is_not_worth_it_says_so(most, reason):
    found = ordered([table(5000, k=5000), table(100, k=100)], one_way("t1.k", "t2.k"), most=most)
    assert found.left_out == ((Origin(2, "k"), reason),)


def test_occurrences_that_nothing_connects_are_asked_at_once():
    found = ordered([BIG, BIG, BIG], both("t1.k", "t3.k"), left={1: 10})
    assert found.alternatives[0].waves == ((1, 2), (3,))


@pytest.mark.parametrize("length", [7, 12, 40])
def test_a_wide_statement_is_ordered_too(length):
    """Beyond six occurrences not every order is looked at."""
    edges = [KeyEdge((Origin(n, "k"),), Origin(n + 1, "j")) for n in range(1, length)]
    edges += [KeyEdge((Origin(n + 1, "j"),), Origin(n, "k")) for n in range(1, length)]
    found = ordered([BIG] * length, edges, left={length: 1})
    assert sorted(numbers(found)) == list(range(1, length + 1))
    assert numbers(found)[0] == length
    assert len(arrows(found)) == length - 1


def test_full_asks_for_keys_on_the_way_up_and_rows_on_the_way_down():
    found = ordered([BIG, table(100, k=100)], both("t1.k", "t2.k"), full=True)
    assert [(c.occurrence, c.stage) for c in found.chosen] == [
        (2, "keys"),
        (1, "rows"),
        (2, "rows"),
    ]


def test_full_falls_back_where_joins_form_a_ring():
    edges = both("t1.k", "t2.k") + both("t2.j", "t3.j") + both("t3.k", "t1.j")
    found = ordered([BIG, BIG, BIG], edges, left={1: 5}, full=True)
    assert found.notes == ("not reduced in full: its joins form a ring",)
    assert numbers(found)[0] == 1


def test_full_asks_nothing_twice_that_may_give_other_rows():
    found = ordered([BIG, BIG], both("t1.k", "t2.k"), left={1: 5}, unsettled=(2,), full=True)
    assert found.notes == ("not reduced in full: asked twice, a subquery may give other rows",)
    assert [chosen.stage for chosen in found.chosen] == ["rows", "rows"]


# --- estimates ----------------------------------------------------------------------------------

PEOPLE = Table(
    "people",
    (
        Column("id", "bigint", "id", not_null=True),
        Column("town", "text", "town", distinct=50.0, null_fraction=0.2),
        Column("age", "bigint", "age"),
    ),
    "people",
    primary_key=("id",),
    row_estimate=10_000.0,
)
AGE = Comparison("age", ">", "18", "bigint")


@pytest.mark.parametrize(
    ("predicate", "share"),
    [
        (Comparison("id", "=", "7", "bigint"), 1 / 10_000),
        (Comparison("town", "=", "x", "text"), 0.8 / 50),
        (Comparison("town", "<>", "x", "text"), 0.8 * 49 / 50),
        (Membership("town", ("x", "y", "z"), "text"), 0.8 * 3 / 50),
        (Membership("town", tuple(map(str, range(500))), "text"), 0.8),
        (NullTest("town", negated=False), 0.2),
        (NullTest("town", negated=True), 0.8),
        (NullTest("id", negated=False), 0.0),
        (Comparison("age", "=", "7", "bigint"), 0.995 / VALUES),
        (AGE, 0.995 / 3),
        (PatternMatch("town", "x%", negated=False), 0.08),
        (PatternMatch("town", "x%", negated=True), 0.72),
        (And((AGE, NullTest("town", negated=False))), 0.2 * 0.995 / 3),
        (Or((NullTest("town", negated=False), NullTest("town", negated=True))), 1 - 0.2 * 0.8),
        (Not(NullTest("town", negated=False)), 0.8),
        (And(()), 1.0),
    ],
)
def test_a_condition_keeps_a_share_of_the_rows(predicate, share):
    assert selectivity(predicate, PEOPLE) == pytest.approx(share)


@pytest.mark.parametrize(
    ("values", "rows", "due"), [(10, 1000, 10), (10, 1, 1), (1000, 10, 10), (1000, 500, 500), (100, 50, 40)]
)  # fmt: skip
def test_some_rows_have_some_of_the_values(values, rows, due):
    assert occurring(values, 1000, rows) == pytest.approx(due, rel=0.05)


# --- a whole proxy ------------------------------------------------------------------------------

ALLOW = "version: 1\nkey_disclosure:\n  - {column: '*', to: ['*'], max_keys: 50000}\n"
ORDERS = "(id bigint primary key, customer bigint, item bigint, state text)"
FILL = (
    "INSERT INTO orders SELECT n, n % 1999, n % 53, 's' || n % 101"
    " FROM generate_series(1, 20000) n",
    "INSERT INTO customers SELECT n, 'c' || n, CASE WHEN n % 200 = 0 THEN 'gold' END"
    " FROM generate_series(0, 3999) n",
    "INSERT INTO items SELECT n, 'k' || n % 50 FROM generate_series(0, 99) n",
)
STATEMENTS = {
    # Who is asked, at the same time or one after another, and how far estimates may be off.
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer WHERE c.grade = 'gold'": (
        ["crm", "shop"], 1.5,
    ),
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer WHERE o.state = 's7'": (
        ["shop", "crm"], 2.0,
    ),
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer JOIN items i ON i.id = o.item"
    " WHERE c.grade = 'gold' AND i.kind = 'k7'": (["crm, stock", "shop"], 3.0),
    "SELECT o.id FROM orders o JOIN items i ON i.id = o.item JOIN customers c ON c.id = o.customer"
    " WHERE o.id = 77": (["shop", "crm, stock"], 1.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(new_database, running_proxy, tmp_path_factory):
    """Three PostgreSQL owners whose tables are analysed."""
    directory = tmp_path_factory.mktemp("shop")
    definitions = {
        "shop": f"CREATE TABLE orders {ORDERS}",
        "crm": "CREATE TABLE customers (id bigint primary key, name text, grade text)",
        "stock": "CREATE TABLE items (id bigint primary key, kind text)",
    }
    owners = {}
    for (name, definition), fill in zip(definitions.items(), FILL, strict=True):
        dsn = new_database(name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(definition)
            connection.execute(fill)
            connection.execute("ANALYZE")
        policy = directory / f"{name}.yaml"
        policy.write_text(ALLOW)
        owners[name] = OwnerSettings(url=owner_url(dsn), schema="shop", policy=policy)
    hub = HubSettings(dsn=new_database("hub"))
    with (
        running_proxy(Settings(owners=owners, hub=hub, listen=Listen(port=0))) as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("SET search_path = shop")
        yield connection


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statistics_decide(shop, statement):
    owners, factor = STATEMENTS[statement]
    explained = shop.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0]
    plan = explained[0]["Plan"]
    waves = [sorted(asked.split()[0] for asked in wave) for wave in plan["Orders"][0]["Asks"]]
    assert [", ".join(wave) for wave in waves] == owners
    for step in plan["Steps"]:
        rows, expected = step["Actual Rows"], step["Estimated Rows"]
        assert rows / factor - 1 <= expected <= rows * factor + 1
        if "Keys" in step:
            keys, expected = step["Actual Keys"], sum(k["Estimated Keys"] for k in step["Keys"])
            assert keys / factor - 1 <= expected <= keys * factor + 1


@pytest.mark.parametrize(("below", "keys"), [(40, 39), (4000, 0)])
def test_keys_below_a_range_are_counted_before_they_are_held_back(shop, below, keys):
    """Only the owner knows how many rows a range leaves: a limit is no reason not to look."""
    statement = (
        "SELECT i.kind, count(*) FROM shop.orders o JOIN shop.items i ON i.id = o.item "
        f"WHERE o.id < {below} GROUP BY i.kind"
    )
    shop.execute("SET oar.max_keys = 50")
    explained = shop.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement}").fetchone()[0]
    shop.execute("RESET oar.max_keys")
    (step,) = [s for s in explained[0]["Plan"]["Steps"] if "shop.items" in s["Reads"]]
    assert step["Keys"]
    assert step.get("Actual Keys", 0) == keys
    assert bool(step.get("Notes")) == (not keys)
