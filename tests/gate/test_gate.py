import asyncio
import dataclasses
import re
import uuid
from collections import Counter

import psycopg
import pytest
from oar_adapters.authorized import Authorized
from oar_adapters.interface import (
    And,
    Column,
    Comparison,
    Derived,
    KeyFilter,
    Membership,
    Not,
    NullTest,
    Or,
    Output,
    OwnerSchema,
    Partial,
    PatternMatch,
    Scan,
    SemiJoin,
    SortKey,
    Statement,
    Table,
)
from oar_policies.model import Subject, default_policy
from oar_policies.parse import parse_policy
from oar_proxy import catalog
from oar_proxy.decision import Decisions, KeyEdge, KeyOrigin, SentFilter
from oar_proxy.errors import (
    InsufficientPrivilege,
    InternalError,
    LedgerUnavailable,
    LimitExceeded,
)
from oar_proxy.gate import BoundEdge, Gate, Step
from oar_proxy.ledger import Ask, Ledger, StepEntry, digest
from oar_proxy.settings import Limits
from oar_proxy.visible import UNKNOWN_ROWS

LIMITS = Limits(max_rows=1000, max_keys=100, statement_timeout=30)
CAP = 1001

POLICIES = {
    "marketing": """\
version: 1
limits: {max_rows: 50, timeout: 5}
key_disclosure:
  - {column: promos.order_id, to: [logistics, finance], max_keys: 10}
  - {column: clients.id, to: ["*"]}
""",
    "logistics": """\
version: 1
limits: {max_rows: 5000, timeout: 500, max_keys_in: 20}
tables:
  deliveries: {deny_columns: [phone]}
  salaries: {deny: true}
key_disclosure:
  - {column: deliveries.*, to: [marketing]}
""",
    "finance": "version: 1",
}


class Recorded(Ledger):
    """Keeps entries in memory, for refusals that must not reach a ledger."""

    def __init__(self) -> None:
        self.entries: list[StepEntry] = []
        self.seen: dict[tuple, set[bytes]] = {}
        self.spent: Counter[tuple] = Counter()

    async def record(self, ask, entries, finished=()) -> list[int]:
        first = len(self.entries) + 1
        self.entries += entries
        return list(range(first, len(self.entries) + 1))

    async def spend(self, principal, owner, day, leaving, most) -> bool:
        place = (principal, owner, day)
        seen = self.seen.get(place, set()) | leaving.known
        spent = self.spent[place] + leaving.more
        if len(seen) + spent > most:
            return False
        self.seen[place], self.spent[place] = seen, spent
        return True


def make_gate(ledger: Ledger | None = None, **policies: str) -> Gate:
    texts = {**POLICIES, **policies}
    return Gate(
        {owner: parse_policy(t, owner=owner, source=f"{owner}.yaml") for owner, t in texts.items()},
        ledger or Recorded(),
        LIMITS,
    )


def decisions(gate: Gate, purpose: str | None = None) -> Decisions:
    return gate.decisions(Subject("anna", purpose=purpose))


def column(name: str) -> Column:
    return Column(name, "text", name)


DELIVERIES = Table(
    "deliveries",
    (column("order_id"), column("city"), column("phone")),
    source_name="Deliveries",
    primary_key=("order_id",),
    unique_keys=(("city", "order_id"), ("phone",)),
)
SALARIES = Table("salaries", (column("id"),), source_name="salaries")


def origin(owner: str, table: str = "promos", name: str = "order_id") -> KeyOrigin:
    return KeyOrigin(owner, owner, table, name)


def edge(*origins: KeyOrigin, receiver: str = "logistics", name: str = "order_id") -> KeyEdge:
    return KeyEdge(origins, receiver, "deliveries", name)


PROMO_EDGE = edge(origin("marketing"))
ASK = Ask(uuid.UUID(int=1), "anna", digest("q"), "sql", "relay", 2, "v")


def scan(*, keys: int | None = None, limit: int | None = CAP, **changes) -> Scan:
    filters = (
        ()
        if keys is None
        else (KeyFilter("order_id", "text", tuple(b"%d" % n for n in range(keys))),)
    )
    query = Scan(DELIVERIES, (column("order_id"),), key_filters=filters, limit=limit)
    return dataclasses.replace(query, **changes)


def beside(source: Scan | SemiJoin) -> SemiJoin:
    """A semi-join with a scan, or with one that is reduced by another."""
    inner = source if isinstance(source, Scan) else scan(semi_joins=(source,))
    return SemiJoin("order_id", "order_id", inner)


def pairs(count: int, other: str = "city") -> KeyFilter:
    """Keys of two columns, the second one of which has a single value."""
    also = KeyFilter(other, "text", (b"one",) * count)
    return KeyFilter("order_id", "text", tuple(b"%d" % n for n in range(count)), (also,))


def keyed(count: int, *edges: KeyEdge, owner: str = "logistics") -> Step:
    edges = edges or (PROMO_EDGE,)
    return Step(owner, scan(keys=count), "SELECT …", tuple(bound(e, count) for e in edges))


def bound(edge: KeyEdge, count: int) -> BoundEdge:
    return BoundEdge(edge, count, (count,) * len(edge.origins))


def authorize(gate: Gate, *steps: Step) -> list[Authorized]:
    return asyncio.run(gate.authorize(ASK, steps))


# --- what planning asks ---


def test_denied_tables_and_columns_are_hidden_with_the_keys_that_name_them():
    schema = OwnerSchema((DELIVERIES, SALARIES))
    shown = make_gate().visible("logistics", schema)
    assert [table.name for table in shown.tables] == ["deliveries"]
    (table,) = shown.tables
    assert [c.name for c in table.columns] == ["order_id", "city"]
    assert (table.primary_key, table.unique_keys) == (("order_id",), (("city", "order_id"),))
    assert make_gate().visible("finance", schema) == schema


def test_a_primary_key_with_a_denied_column_is_hidden_and_so_is_a_table_without_columns():
    gate = make_gate(
        logistics="version: 1\ntables: {deliveries: {deny_columns: [order_id]},"
        " salaries: {deny_columns: [id]}}"
    )
    (table,) = gate.visible("logistics", OwnerSchema((DELIVERIES, SALARIES))).tables
    assert (table.name, table.primary_key, table.unique_keys) == ("deliveries", (), (("phone",),))


def test_names_in_a_policy_that_the_owner_does_not_have_are_listed():
    gate = make_gate(
        logistics="version: 1\ntables:\n  salary: {deny: true}\n"
        "  deliveries: {deny_columns: [phone, fone]}"
    )
    found = gate.unmatched("logistics", OwnerSchema((DELIVERIES, SALARIES)))
    assert [(u.name, u.mark.line) for u in found] == [("salary", 3), ("deliveries.fone", 4)]


@pytest.mark.parametrize(
    ("key_edge", "permitted", "rule", "max_keys", "limit_rule"),
    [
        # The lowest of what the source, the receiver and the proxy allow.
        (
            PROMO_EDGE,
            True,
            "marketing/key_disclosure[0]",
            10,
            "marketing/key_disclosure[0].max_keys",
        ),
        (
            edge(origin("marketing", "clients", "id")),
            True,
            "marketing/key_disclosure[1]",
            20,
            "logistics/limits.max_keys_in",
        ),
        (
            edge(origin("marketing", "clients", "id"), receiver="finance"),
            True,
            "marketing/key_disclosure[1]",
            100,
            "proxy/limits.max_keys",
        ),
        # Denied unless granted, to that receiver and of that column.
        (edge(origin("finance")), False, "finance/default deny", 0, "finance/default deny"),
        (
            edge(origin("marketing", "promos", "code")),
            False,
            "marketing/default deny",
            0,
            "marketing/default deny",
        ),
        (
            edge(origin("logistics", "deliveries"), receiver="finance"),
            False,
            "logistics/default deny",
            0,
            "logistics/default deny",
        ),
        # A hidden column is not opened by a grant, and not named.
        (
            edge(origin("logistics", "deliveries", "phone"), receiver="marketing"),
            False,
            "logistics/tables",
            0,
            "logistics/tables",
        ),
        # Keys go home freely, as far as they are its own.
        (edge(origin("logistics")), True, "own keys", 20, "logistics/limits.max_keys_in"),
        (
            edge(origin("logistics"), origin("marketing")),
            True,
            "marketing/key_disclosure[0]",
            10,
            "marketing/key_disclosure[0].max_keys",
        ),
        # Every holder of a row-split source has to permit.
        (
            edge(origin("marketing"), origin("finance")),
            False,
            "finance/default deny",
            0,
            "finance/default deny",
        ),
        (
            edge(origin("logistics"), origin("finance")),
            False,
            "finance/default deny",
            0,
            "finance/default deny",
        ),
    ],
)
def test_edges(key_edge, permitted, rule, max_keys, limit_rule):
    verdict = decisions(make_gate()).edge(key_edge)
    assert (verdict.permitted, verdict.rule, verdict.max_keys, verdict.limit_rule) == (
        permitted,
        rule,
        max_keys,
        limit_rule,
    )
    assert "\n" not in verdict.reason
    assert verdict.reason


def test_a_receiver_that_accepts_no_keys_leaves_room_for_none():
    gate = make_gate(logistics="version: 1\nlimits: {max_keys_in: 0}")
    assert decisions(gate).edge(PROMO_EDGE).max_keys == 0
    with pytest.raises(LimitExceeded, match="1, at most 0"):
        authorize(gate, keyed(1))


@pytest.mark.parametrize(
    ("owner", "cap", "timeout"),
    [
        ("marketing", (50, "marketing/limits.max_rows"), 5),
        ("logistics", (1000, "proxy/limits.max_rows"), 30),
        ("finance", (1000, "proxy/limits.max_rows"), 30),
    ],
)
def test_an_owner_can_only_tighten_the_proxys_limits(owner, cap, timeout):
    gate = make_gate()
    limit = decisions(gate).row_cap(owner)
    assert (limit.number, limit.rule) == cap
    assert decisions(gate).timeout(owner) == timeout


# --- what running asks ---


def test_a_wave_is_recorded_and_returned_sealed_in_order():
    book = Recorded()
    plain = Step("finance", scan(), "SELECT plain")
    relayed = keyed(10)
    sealed = authorize(make_gate(book), plain, relayed)
    assert sealed == [Authorized(plain.query, 1), Authorized(relayed.query, 2)]
    first, second = book.entries
    assert (first.owner, first.keys, first.disclosures) == ("finance", 0, ())
    assert first.sql_digest == digest("SELECT plain")
    assert (second.owner, second.row_cap, second.row_cap_rule, second.keys) == (
        "logistics",
        1000,
        "proxy/limits.max_rows",
        10,
    )
    assert second.policy == parse_policy(POLICIES["logistics"], owner="l", source="s").digest
    (told,) = second.disclosures
    assert dataclasses.astuple(told) == (
        "marketing",
        "marketing.promos.order_id",
        "logistics",
        "deliveries.order_id",
        10,
        "marketing/key_disclosure[0]",
        parse_policy(POLICIES["marketing"], owner="m", source="s").digest,
        None,  # the keys' digest is made by a ledger that has the hub's key
    )


def test_rows_reach_a_model_where_the_owner_says_so():
    gate = make_gate(finance="version: 1\nmodel: {rows: allow}")
    assert gate.rows_to_model("finance").permit
    assert not gate.rows_to_model("marketing").permit


def test_no_steps_leave_no_trace():
    book = Recorded()
    assert authorize(make_gate(book)) == []
    assert book.entries == []


def test_own_keys_are_counted_but_disclose_nothing():
    book = Recorded()
    authorize(make_gate(book), keyed(20, edge(origin("logistics", "deliveries"))))
    assert [(e.keys, e.disclosures) for e in book.entries] == [(20, ())]


def test_each_other_holder_of_a_split_source_is_a_disclosure_of_its_own():
    book = Recorded()
    finance = "version: 1\nkey_disclosure: [{column: promos.order_id, to: [logistics]}]"
    split = edge(origin("marketing"), origin("finance"), origin("logistics"))
    authorize(make_gate(book, finance=finance), keyed(5, split))
    (entry,) = book.entries
    assert [(d.from_owner, d.keys, d.rule) for d in entry.disclosures] == [
        ("marketing", 5, "marketing/key_disclosure[0]"),
        ("finance", 5, "finance/key_disclosure[0]"),
    ]


def predicate(name: str) -> Comparison:
    return Comparison(name, "=", "1", "text")


def test_a_grant_bounds_each_edge_and_a_receiver_the_whole_query():
    """Two lists of ten keys each pass a grant of ten, and fill the receiver's twenty."""
    two = (PROMO_EDGE, edge(origin("marketing"), name="city"))
    query = scan(
        key_filters=tuple(
            KeyFilter(name, "text", tuple(b"%d" % n for n in range(10)))
            for name in ("order_id", "city")
        )
    )
    book = Recorded()
    authorize(make_gate(book), Step("logistics", query, "…", tuple(bound(e, 10) for e in two)))
    assert [(e.keys, len(e.disclosures)) for e in book.entries] == [(20, 2)]
    with pytest.raises(LimitExceeded, match="21, at most 20"):
        authorize(
            make_gate(),
            Step(
                "logistics",
                query,
                "…",
                (*(bound(e, 10) for e in two), bound(edge(origin("logistics"), name="city"), 1)),
            ),
        )


REFUSALS = [
    (
        keyed(3, edge(origin("finance"))),
        InsufficientPrivilege,
        "join keys of finance.promos.order_id may not leave for owner logistics: "
        "the policy of owner finance denies it",
        "rule finance/default deny; 3 keys would be compared with deliveries.order_id",
        "owner finance can allow it with the key_disclosure entry "
        "{column: promos.order_id, to: [logistics], max_keys: 3}",
    ),
    (
        keyed(11),
        LimitExceeded,
        "too many join keys of marketing.promos.order_id for owner logistics: 11, at most 10",
        "limit marketing/key_disclosure[0].max_keys counts the keys of one query",
        "select fewer rows of what is joined, or have owner marketing raise "
        "marketing/key_disclosure[0].max_keys to 11",
    ),
    (
        keyed(21, edge(origin("marketing", "clients", "id"))),
        LimitExceeded,
        "too many join keys for owner logistics: 21, at most 20",
        "limit logistics/limits.max_keys_in counts the keys of one query",
        "select fewer rows of what is joined, or have logistics/limits.max_keys_in raised to 21",
    ),
    (
        keyed(101, edge(origin("marketing", "clients", "id"), receiver="finance"), owner="finance"),
        LimitExceeded,
        "too many join keys for owner finance: 101, at most 100",
        "limit proxy/limits.max_keys counts the keys of one query",
        "select fewer rows of what is joined, or have proxy/limits.max_keys raised to 101",
    ),
]


@pytest.mark.parametrize(("step", "error", "message", "detail", "hint"), REFUSALS)
def test_a_refusal_names_the_edge_the_rule_and_the_smallest_change(
    step, error, message, detail, hint
):
    book = Recorded()
    with pytest.raises(error) as caught:
        authorize(make_gate(book), Step("finance", scan(), "…"), step)
    refused = caught.value
    assert (refused.message, refused.detail, refused.hint) == (message, detail, hint)
    assert book.entries == []


def test_the_change_a_refusal_proposes_is_enough():
    step, *_, hint = REFUSALS[0]
    grant = hint.removeprefix("owner finance can allow it with the key_disclosure entry ")
    gate = make_gate(finance=f"version: 1\nkey_disclosure:\n  - {grant}\n")
    assert len(authorize(gate, step)) == 1


@pytest.mark.parametrize(
    "query",
    [
        scan(columns=(column("phone"),)),
        scan(predicates=(predicate("phone"),)),
        scan(predicates=(Membership("phone", ("1",), "text"),)),
        scan(predicates=(NullTest("phone", True),)),
        scan(predicates=(PatternMatch("phone", "1%", False),)),
        scan(predicates=(And((predicate("city"), Or((Not(predicate("phone")),)))),)),
        scan(key_filters=(KeyFilter("phone", "text", ()),)),
        scan(key_filters=(pairs(0, "phone"),)),
        scan(table=SALARIES, columns=()),
        scan(semi_joins=(SemiJoin("phone", "order_id", scan()),)),
        scan(semi_joins=(SemiJoin("order_id", "phone", scan()),)),
        scan(semi_joins=(SemiJoin("order_id", "order_id", scan(), (("phone", "city"),)),)),
        scan(semi_joins=(SemiJoin("order_id", "order_id", scan(), (("city", "phone"),)),)),
        scan(semi_joins=(SemiJoin("order_id", "id", scan(table=SALARIES, columns=())),)),
        scan(semi_joins=(beside(beside(scan(predicates=(predicate("phone"),)))),)),
        scan(semi_joins=(beside(scan(key_filters=(KeyFilter("phone", "text", ()),))),)),
        Statement("SELECT 1", (SALARIES,), (Output("x", "integer"),), limit=CAP),
        Statement("SELECT 1", (DELIVERIES,), (Output("x", "integer"),), limit=CAP),
    ],
)
def test_whatever_touches_a_hidden_name_is_refused_without_naming_it(query):
    book = Recorded()
    with pytest.raises(InsufficientPrivilege) as caught:
        authorize(make_gate(book), Step("logistics", query, "…"))
    refused = caught.value
    text = f"{refused.message} {refused.detail} {refused.hint}"
    assert "logistics" in text
    assert not any(name in text for name in ("phone", "salaries", "deliveries"))
    assert book.entries == []


def test_a_hidden_key_column_is_refused_without_naming_it():
    gate = make_gate(marketing="version: 1\ntables: {promos: {deny: true}}")
    with pytest.raises(InsufficientPrivilege) as caught:
        authorize(gate, keyed(1))
    assert "promos" not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"


def test_conditions_may_nest_deeper_than_python_recurses():
    nested = predicate("phone")
    for _ in range(5000):
        nested = Not(nested)
    with pytest.raises(InsufficientPrivilege):
        authorize(make_gate(), Step("logistics", scan(predicates=(nested,)), "…"))


@pytest.mark.parametrize(
    ("step", "part"),
    [
        (Step("logistics", scan(keys=3), "…"), "carries keys no edge declares"),
        (Step("logistics", scan(keys=3), "…", (bound(PROMO_EDGE, 2),)), "carries keys no edge"),
        (Step("logistics", scan(semi_joins=(beside(scan(keys=3)),)), "…"), "carries keys no edge"),
        (
            Step("logistics", scan(key_filters=(pairs(3),)), "…", (bound(PROMO_EDGE, 3),)),
            "carries keys no edge declares",
        ),
        (
            Step(
                "logistics",
                scan(key_filters=(pairs(3),)),
                "…",
                (bound(PROMO_EDGE, 3), bound(edge(origin("marketing"), name="city"), 2)),
            ),
            "carries keys no edge declares",
        ),
        (
            Step(
                "logistics",
                scan(keys=3, semi_joins=(beside(scan(keys=3)),)),
                "…",
                (bound(PROMO_EDGE, 3),),
            ),
            "carries keys no edge declares",
        ),
        (
            Step(
                "logistics", scan(keys=3), "…", (bound(edge(origin("marketing"), name="city"), 3),)
            ),
            "carries keys no edge declares",
        ),
        (
            Step(
                "logistics",
                scan(key_filters=scan(keys=3).key_filters * 2),
                "…",
                (bound(PROMO_EDGE, 3),),
            ),
            "carries keys no edge declares",
        ),
        (
            Step("logistics", scan(keys=3), "…", (BoundEdge(PROMO_EDGE, 3, ()),)),
            "counts its keys for other",
        ),
        (Step("logistics", scan(keys=0), "…", (bound(PROMO_EDGE, -1),)), "counts its keys"),
        (
            Step("logistics", scan(keys=3), "…", (BoundEdge(PROMO_EDGE, 3, (2,)),)),
            "no origin holds",
        ),
        (
            Step(
                "logistics", scan(keys=3), "…", (bound(edge(origin("x"), receiver="finance"), 3),)
            ),
            "to another owner than it goes to",
        ),
        (Step("logistics", scan(keys=3), "…", (bound(edge(), 3),)), "without an origin"),
        (Step("logistics", scan(limit=None), "…"), "not bounded by its row cap"),
        (Step("marketing", scan(limit=52), "…"), "not bounded by its row cap"),
        (Step("unheard of", scan(), "…"), "no policy is loaded for owner unheard of"),
        (keyed(1, edge(origin("unheard of"))), "no policy is loaded for owner unheard of"),
    ],
)
def test_a_step_that_is_not_what_it_says_is_refused(step, part):
    book = Recorded()
    with pytest.raises(InternalError, match=part):
        authorize(make_gate(book), step)
    assert book.entries == []


def test_replaced_policies_hold_from_the_next_wave_on():
    gate = make_gate()
    assert len(authorize(gate, keyed(10))) == 1
    policies = {owner: default_policy(owner) for owner in POLICIES}
    gate.replace_policies(policies)
    with pytest.raises(InsufficientPrivilege):
        authorize(gate, keyed(10))
    # What a caller does to its own mapping afterwards changes nothing.
    policies["marketing"] = parse_policy(POLICIES["marketing"], owner="marketing", source="s")
    assert not decisions(gate).edge(PROMO_EDGE).permitted


# --- who asks, what for, and with how many keys ---


def asked_by(**subject) -> Ask:
    return dataclasses.replace(ASK, **subject)


def test_an_owner_may_say_who_asks():
    gate = make_gate(finance="version: 1\nsubjects: [controllers]")
    step = Step("finance", scan(), "SELECT …")
    with pytest.raises(InsufficientPrivilege, match="for the tables of owner finance") as refused:
        asyncio.run(gate.authorize(ASK, [step]))
    assert "finance/subjects" in (refused.value.detail or "")
    member = asked_by(roles=frozenset({"anna", "controllers"}))
    assert len(asyncio.run(gate.authorize(member, [step]))) == 1


@pytest.mark.parametrize(
    ("grant", "remedy"),
    [
        ("purpose: [refunds]", "SET oar.purpose to one of those that marketing/key_disclosure[0]"),
        ("expires: 2020-02-29", "owner marketing can extend marketing/key_disclosure[0].expires"),
    ],
)
def test_a_refusal_for_a_condition_says_which(grant, remedy):
    gate = make_gate(marketing=f"version: 1\nkey_disclosure: [{{column: '*', to: ['*'], {grant}}}]")
    verdict = decisions(gate).edge(PROMO_EDGE)
    assert not verdict.permitted
    assert verdict.remedy.startswith(remedy)
    with pytest.raises(InsufficientPrivilege) as refused:
        authorize(gate, keyed(3))
    assert (refused.value.hint or "").startswith(remedy)


def test_a_purpose_opens_what_is_granted_for_it():
    gate = make_gate(
        marketing="version: 1\nkey_disclosure: [{column: '*', to: ['*'], purpose: [refunds]}]"
    )
    assert not decisions(gate, "audits").edge(PROMO_EDGE).permitted
    assert decisions(gate, "refunds").edge(PROMO_EDGE).permitted
    asyncio.run(gate.authorize(asked_by(purpose="refunds"), [keyed(3)]))
    assert gate.distinguishes(decisions(gate, "a")) != gate.distinguishes(decisions(gate, "b"))
    assert make_gate().distinguishes(decisions(gate, "a")) is not None
    assert gate.distinguishes(decisions(make_gate(), "a")) is None


def test_a_receiver_that_names_what_it_takes_takes_nothing_else():
    gate = make_gate(
        logistics="version: 1\naccept_keys: [{column: deliveries.city, from: ['*'], max_keys: 2}]"
    )
    verdict = decisions(gate).edge(PROMO_EDGE)
    assert (verdict.permitted, verdict.rule) == (False, "logistics/accept_keys")
    assert "{column: deliveries.order_id, from: [marketing], max_keys: N}" in verdict.remedy
    to_city = edge(origin("marketing"), name="city")
    taken = decisions(gate).edge(to_city)
    assert (taken.permitted, taken.max_keys) == (True, 2)
    assert (taken.rule, taken.limit_rule) == (
        "marketing/key_disclosure[0]",
        "logistics/accept_keys[0].max_keys",
    )
    with pytest.raises(InsufficientPrivilege, match="the policy of owner logistics denies it"):
        authorize(gate, keyed(2))


@pytest.mark.parametrize(("keys", "passes"), [(0, True), (1, False), (2, False), (3, True)])
def test_nobody_is_looked_up_alone(keys, passes):
    gate = make_gate(
        marketing="version: 1\nkey_disclosure: [{column: '*', to: ['*'], min_keys: 3}]"
    )
    verdict = decisions(gate).edge(PROMO_EDGE)
    assert (verdict.min_keys, verdict.least_rule) == (3, "marketing/key_disclosure[0].min_keys")
    if passes:
        assert len(authorize(gate, keyed(keys))) == 1
        return
    with pytest.raises(InsufficientPrivilege, match=f"{keys}, at least 3") as refused:
        authorize(gate, keyed(keys))
    assert "marketing/key_disclosure[0].min_keys" in (refused.value.detail or "")


def test_queries_of_one_statement_are_counted_over_its_waves():
    gate = make_gate(finance="version: 1\nlimits: {max_queries: 2}")
    step = Step("finance", scan(), "SELECT …")
    ask = asked_by(sent=Counter())
    for _ in range(2):
        asyncio.run(gate.authorize(ask, [step]))
    with pytest.raises(LimitExceeded, match="too many queries for owner finance: at most 2"):
        asyncio.run(gate.authorize(ask, [step]))
    assert len(asyncio.run(gate.authorize(asked_by(sent=Counter()), [step, step]))) == 2


def test_keys_of_a_day_are_counted_by_principal():
    gate = make_gate(
        marketing="version: 1\nlimits: {max_keys_per_day: 5}\n"
        "key_disclosure: [{column: '*', to: ['*']}]"
    )
    authorize(gate, keyed(2), keyed(3))
    authorize(gate, keyed(3))  # which left before
    with pytest.raises(LimitExceeded, match="of owner marketing for one day") as refused:
        authorize(gate, keyed(6))
    assert "marketing/limits.max_keys_per_day" in (refused.value.detail or "")
    authorize(gate, keyed(5))
    authorize(gate, keyed(0))
    # The same to another owner is another disclosure, and keys in SQL are not known one by one.
    to_finance = dataclasses.replace(PROMO_EDGE, receiver="finance")
    for step in (
        keyed(1, to_finance, owner="finance"),
        Step("finance", dataclasses.replace(WHOLE, limit=CAP), "", (bound(to_finance, 1),)),
    ):
        with pytest.raises(LimitExceeded, match="for one day"):
            authorize(gate, step)
    asyncio.run(gate.authorize(asked_by(principal="boris"), [keyed(5)]))


FILTERED = "version: 1\ntables: {deliveries: {require_filter: [order_id, city]}}"


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, False),
        ({"predicates": (Comparison("order_id", "=", "1", "text"),)}, True),
        ({"predicates": (Membership("city", ("x", "y"), "text"),)}, True),
        ({"predicates": (And((NullTest("phone", False), Comparison("city", "=", "x", "text"))),)},
         True),
        ({"predicates": (Comparison("order_id", ">", "1", "text"),)}, False),
        ({"predicates": (Not(Comparison("order_id", "=", "1", "text")),)}, False),
        ({"predicates": (Or((Comparison("order_id", "=", "1", "text"),
                             NullTest("phone", False))),)}, False),
        ({"predicates": (Comparison("phone", "=", "1", "text"),)}, False),
        ({"predicates": (NullTest("order_id", False),)}, False),
        ({"predicates": (PatternMatch("city", "%", False),)}, False),
    ],
)  # fmt: skip
def test_a_table_may_ask_for_a_filter(changes, passes):
    gate = make_gate(logistics=FILTERED)
    step = Step("logistics", scan(**changes), "SELECT …")
    if passes:
        assert len(authorize(gate, step)) == 1
        return
    with pytest.raises(InsufficientPrivilege, match="is read with a filter only") as refused:
        authorize(gate, step)
    assert "logistics/tables.deliveries.require_filter" in (refused.value.detail or "")


def test_join_keys_are_a_filter_and_a_statement_of_ones_own_is_none():
    gate = make_gate(logistics=FILTERED)
    assert len(authorize(gate, keyed(2))) == 1
    outputs = (Output("order_id", "text"),)
    whole = Statement("SELECT …", (DELIVERIES,), outputs, CAP)
    assert decisions(gate).scans_only("logistics", ["deliveries"]) is not None
    assert decisions(gate).scans_only("logistics", ["routes"]) is None
    with pytest.raises(InsufficientPrivilege, match="is read with a filter only"):
        authorize(gate, Step("logistics", whole, "SELECT …"))
    with pytest.raises(InsufficientPrivilege, match="is read with a filter only"):
        authorize(gate, Step("logistics", scan(keys=None, semi_joins=(beside(scan()),)), "SELECT"))


DIGESTS = "version: 1\nkey_disclosure: [{column: '*', to: ['*'], form: hmac}]"


def with_digests(step: Step) -> Step:
    filters = tuple(dataclasses.replace(f, hmac=bytes(32)) for f in step.query.key_filters)
    return dataclasses.replace(step, query=dataclasses.replace(step.query, key_filters=filters))


def test_keys_that_may_leave_as_digests_do_not_leave_in_clear():
    gate = make_gate(marketing=DIGESTS)
    assert decisions(gate).edge(PROMO_EDGE).form == "hmac"
    assert decisions(make_gate()).edge(PROMO_EDGE).form == "plain"
    assert len(authorize(gate, with_digests(keyed(2)))) == 1
    assert len(authorize(gate, keyed(0))) == 1
    written = Step("logistics", scan(), "SELECT … IN (1, 2)", (bound(PROMO_EDGE, 2),))
    twice = scan(
        key_filters=(*with_digests(keyed(2)).query.key_filters, *keyed(2).query.key_filters)
    )
    beside_them = Step("logistics", twice, "SELECT …", (bound(PROMO_EDGE, 4),))
    for step in (keyed(2), written, beside_them):
        with pytest.raises(InsufficientPrivilege, match="as digests only") as refused:
            authorize(gate, step)
        assert "marketing/key_disclosure[0].form: hmac" in (refused.value.detail or "")


# --- with the real ledger ---


class CrashesAfterCommit(Ledger):
    async def record(self, ask, entries, finished=()) -> list[int]:
        await super().record(ask, entries, finished)
        raise ConnectionAbortedError("the proxy died here")


def with_ledger(hub, kind: type[Ledger], ask: Ask, *steps: Step) -> list[Authorized]:
    async def main() -> list[Authorized]:
        async with kind(hub.conninfo) as book:
            return await make_gate(book).authorize(ask, steps)

    return asyncio.run(main())


def fresh_ask() -> Ask:
    return dataclasses.replace(ASK, id=uuid.uuid4())


DISCLOSED = "SELECT step, from_owner, to_owner, keys FROM oar.disclosures WHERE ask = %s"


def test_the_entry_number_of_a_sealed_query_is_its_row_on_the_ledger(hub):
    ask = fresh_ask()
    (sealed,) = with_ledger(hub, Ledger, ask, keyed(10))
    assert hub.execute(
        "SELECT kind, body::json->'disclosures'->0->>'from_owner' FROM oar_internal.entries"
        " WHERE ask = %s AND number = %s",
        *(ask.id, sealed.ledger_entry),
    ) == [("step", "marketing")]


def test_the_ledger_holds_the_disclosure_before_the_query_is_handed_out(hub):
    ask = fresh_ask()
    with pytest.raises(ConnectionAbortedError):
        with_ledger(hub, CrashesAfterCommit, ask, keyed(10))
    ((step, *told),) = hub.execute(DISCLOSED, ask.id)
    assert told == ["marketing", "logistics", 10]
    assert hub.execute("SELECT sqlstate FROM oar.steps WHERE step = %s", step) == [(None,)]


def test_without_a_ledger_nothing_is_handed_out(hub):
    ask = fresh_ask()
    with psycopg.connect(hub.conninfo) as blocker:
        blocker.execute("ALTER TABLE oar_internal.entries RENAME TO moved")
        blocker.commit()
        try:
            with pytest.raises(LedgerUnavailable):
                with_ledger(hub, Ledger, ask, keyed(10))
        finally:
            blocker.execute("ALTER TABLE oar_internal.moved RENAME TO entries")
            blocker.commit()
    assert hub.execute("SELECT 1 FROM oar.asks WHERE ask = %s", ask.id) == []


def test_what_is_refused_is_not_on_the_ledger_as_sent(hub):
    ask = fresh_ask()
    with pytest.raises(InsufficientPrivilege):
        with_ledger(hub, Ledger, ask, Step("finance", scan(), "…"), REFUSALS[0][0])
    assert hub.execute("SELECT 1 FROM oar.steps WHERE ask = %s", ask.id) == []


# --- row filters and masks ---


OPEN_CITY = Comparison("city", "=", "Rome", "text")
VIEWED = """\
version: 1
tables:
  deliveries:
    row_filter: city = 'Rome'
    columns: {city: {mask: '-'}, phone: {mask: null}}
"""


def viewed(
    text: str = VIEWED,
    sent: SentFilter | None = SentFilter("city = 'Rome'", OPEN_CITY),  # noqa: B008 - frozen
) -> Gate:
    gate = make_gate(finance=text)
    gate.replace_filters({} if sent is None else {("finance", "deliveries"): sent})
    return gate


def filtered(**changes) -> Scan:
    return scan(predicates=(OPEN_CITY,), **changes)


def reduced_by(source: Scan, column: str = "order_id", source_column: str = "order_id") -> Scan:
    return filtered(semi_joins=(SemiJoin(column, source_column, source),))


CITY, PHONE = column("city"), column("phone")
WHOLE = Statement("SELECT …", (DELIVERIES,), (Output("n", "text"),), CAP)
A_SUBQUERY = dataclasses.replace(
    DELIVERIES,
    name="a subquery of deliveries",
    derived=Derived("SELECT …", (DELIVERIES,), (("order_id", "deliveries", "order_id"),)),
)


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(filtered(), id="filtered"),
        pytest.param(filtered(columns=()), id="counted rows"),
        pytest.param(reduced_by(filtered()), id="filtered on both sides"),
        pytest.param(
            scan(predicates=(NullTest("order_id", True), OPEN_CITY)), id="further conditions"
        ),
        pytest.param(Scan(SALARIES, SALARIES.columns, limit=CAP), id="another table"),
    ],
)
def test_a_scan_that_is_filtered_and_touches_nothing_masked_may_leave(query):
    assert authorize(viewed(), Step("finance", query, "SELECT …"))


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(scan(), id="no filter"),
        pytest.param(scan(columns=()), id="only their number"),
        pytest.param(scan(predicates=(Not(OPEN_CITY),)), id="the others"),
        pytest.param(scan(predicates=(Or((OPEN_CITY, NullTest("order_id", False))),)), id="or"),
        pytest.param(scan(predicates=(Comparison("city", "=", "rome", "text"),)), id="another"),
        pytest.param(scan(predicates=(Comparison("city", "<>", "Rome", "text"),)), id="operator"),
        pytest.param(scan(predicates=(Membership("city", ("Rome", "Oslo"), "text"),)), id="more"),
        pytest.param(scan(predicates=(PatternMatch("city", "%", False),)), id="pattern"),
        pytest.param(scan(keys=0), id="keys"),
        pytest.param(WHOLE, id="text"),
        pytest.param(Scan(A_SUBQUERY, (column("order_id"),), limit=CAP), id="text of a subquery"),
        pytest.param(reduced_by(scan()), id="unfiltered inside"),
        pytest.param(
            filtered(semi_joins=(beside(filtered(semi_joins=(beside(scan()),))),)), id="deep inside"
        ),
        pytest.param(reduced_by(Scan(A_SUBQUERY, ())), id="text inside"),
        pytest.param(filtered(columns=(PHONE,)), id="masked"),
        pytest.param(filtered(columns=(column("order_id"), CITY)), id="masked beside another"),
        pytest.param(
            scan(predicates=(OPEN_CITY, NullTest("phone", True))),
            id="a condition on what is masked",
        ),
        pytest.param(
            scan(predicates=(OPEN_CITY, Not(Or((Membership("phone", ("1",), "text"),))))),
            id="deep in a condition",
        ),
        pytest.param(
            scan(predicates=(OPEN_CITY, Comparison("city", ">", "A", "text"))),
            id="another condition on the filter's column",
        ),
        pytest.param(filtered(counted=True, partials=(Partial(PHONE),)), id="aggregate"),
        pytest.param(filtered(counted=True, columns=(CITY,)), id="groups"),
        pytest.param(filtered(order=(SortKey("phone", True, False),)), id="order"),
        pytest.param(filtered(key_filters=(KeyFilter("phone", "text", ()),)), id="key list"),
        pytest.param(reduced_by(filtered(), "phone"), id="joined inside"),
        pytest.param(reduced_by(filtered(), "order_id", "city"), id="joined inside with"),
        pytest.param(reduced_by(filtered(columns=(PHONE,))), id="read inside"),
    ],
)
def test_a_query_that_reads_more_than_the_owner_shows_does_not_leave(query):
    book = Recorded()
    gate = viewed()
    gate._ledger = book
    with pytest.raises(InsufficientPrivilege) as refused:
        authorize(gate, Step("finance", query, "SELECT …"))
    assert re.fullmatch(
        r"rule finance/tables\.deliveries\.(row_filter|columns\.(city|phone)\.mask)",
        refused.value.detail,
    )
    assert book.entries == []


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(None, id="not read yet"),
        pytest.param(SentFilter("city = 'Oslo'", OPEN_CITY), id="read from another policy"),
        pytest.param(SentFilter("city = 'Rome'", None), id="not the owner's to evaluate"),
    ],
)
def test_a_row_filter_that_cannot_be_sent_closes_its_table(sent):
    gate = viewed(sent=sent)
    for query in (filtered(), scan(), WHOLE):
        with pytest.raises(InsufficientPrivilege) as refused:
            authorize(gate, Step("finance", query, "SELECT …"))
        assert refused.value.detail == "rule finance/tables.deliveries.row_filter"


def test_what_is_filtered_or_masked_has_no_statistics_and_no_keys_of_masked_columns():
    known = tuple(dataclasses.replace(c, distinct=7.0, not_null=True) for c in DELIVERIES.columns)
    table = dataclasses.replace(DELIVERIES, columns=known, row_estimate=5.0)
    (shown,) = viewed().visible("finance", OwnerSchema((table,))).tables
    assert [c.distinct for c in shown.columns] == [None] * 3
    assert [c.not_null for c in shown.columns] == [True, False, False]
    assert (shown.primary_key, shown.unique_keys) == (("order_id",), ())
    assert shown.row_estimate == UNKNOWN_ROWS
    masked = "version: 1\ntables: {deliveries: {columns: {city: {mask: '-'}}}}\n"
    (shown,) = viewed(masked).visible("finance", OwnerSchema((table,))).tables
    assert [c.distinct for c in shown.columns] == [7.0, None, 7.0]
    assert shown.row_estimate == 5.0


# --- rules about columns ---


RULED = "version: 1\ntables: {deliveries: {columns: {city: {output: false}}}}\n"
GROUPED = "version: 1\ntables: {deliveries: {min_group: {entity: order_id, size: 5}}}\n"


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(scan(), id="scan"),
        pytest.param(Scan(SALARIES, (), semi_joins=(beside(scan()),)), id="inside"),
        pytest.param(WHOLE, id="text"),
        pytest.param(Scan(A_SUBQUERY, (column("order_id"),), limit=CAP), id="subquery"),
    ],
)
def test_a_query_of_a_statement_that_was_not_checked_against_the_rules_does_not_leave(query):
    gate = make_gate(finance=RULED)
    restrictions = decisions(gate).restrictions("finance", "deliveries")
    query = dataclasses.replace(query, limit=CAP)
    for checked in (
        {},
        {("finance", "deliveries"): ()},
        {("logistics", "deliveries"): restrictions},
    ):
        with pytest.raises(InsufficientPrivilege) as refused:
            authorize(gate, Step("finance", query, "SELECT …", checked=checked))
        assert refused.value.detail == "rule finance/tables.deliveries.columns.city.output"
    checked = {("finance", "deliveries"): restrictions}
    assert authorize(gate, Step("finance", query, "SELECT …", checked=checked))


def test_a_table_of_groups_says_so_in_its_comment():
    gate = make_gate(finance=GROUPED)
    table = dataclasses.replace(scan().table, comment="who is where")
    holds = OwnerSchema((table,))

    def comment(*owners):
        visible = [(owner, "shop", gate.visible(owner, holds)) for owner in owners]
        return catalog.build(visible, groups=gate.groups()).tables["shop", "deliveries"].comment

    shown = "who is where (groups of at least {} different order_id are shown, and no rows)"
    assert comment("finance") == shown.format(5)
    assert comment("logistics") == "who is where"
    # Of several owners of the rows the strictest is enforced.
    gate = make_gate(finance=GROUPED, logistics=GROUPED.replace("5", "7"))
    assert comment("finance", "logistics") == comment("logistics", "finance") == shown.format(7)
    for other in ("version: 1\n", GROUPED.replace("order_id", "city")):
        gate = make_gate(finance=GROUPED, logistics=other)
        assert comment("logistics", "finance") == (
            "who is where (no rows and no groups are shown: its owners do not all show the same)"
        )


def test_an_owner_whose_groups_are_counted_gets_scans_of_statements_that_were_checked():
    gate = make_gate(finance=GROUPED)
    rule = "rule finance/tables.deliveries.min_group"
    checked = {("finance", "deliveries"): decisions(gate).use("finance", "deliveries")}
    assert authorize(gate, Step("finance", scan(), "SELECT …", checked=checked))
    with pytest.raises(InsufficientPrivilege, match="was not checked") as refused:
        authorize(gate, Step("finance", scan(), "SELECT …"))
    assert refused.value.detail == rule
    for query in (WHOLE, Scan(A_SUBQUERY, (column("order_id"),), limit=CAP)):
        bounded = dataclasses.replace(query, limit=CAP)
        with pytest.raises(InsufficientPrivilege, match="reads more of table") as refused:
            authorize(gate, Step("finance", bounded, "SELECT …", checked=checked))
        assert refused.value.detail == rule
