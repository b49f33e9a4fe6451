"""An adversary with an ordinary connection: what is decided, and what owners received meanwhile."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

import psycopg
import pytest
from attacks import MISSING_COLUMN, MISSING_TABLE, Attack, attacks

ATTACKS = list(attacks())
PROTOCOLS = ("simple", "extended")

HIDDEN = re.compile(r"(?:MAIL|SSN|PAY|OUTSIDE|SOLO|ILL)-\d+")
"""Values that no answer, error or notice may hold."""

NAMES = {
    "payroll": MISSING_TABLE,
    "PAYROLL": MISSING_TABLE.upper(),
    "p\\0061yroll": MISSING_TABLE,
    "ssn": MISSING_COLUMN,
    "s\\0073n": MISSING_COLUMN,
}


@dataclass
class Outcome:
    """How a session's last statement ended, and everything that it was told."""

    sqlstate: str = "00000"
    rows: list | None = None
    said: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        return "\n".join([*self.said, repr(self.rows)])


def run(dsn: str, statements, protocol: str) -> Outcome:
    outcome = Outcome()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.add_notice_handler(
            lambda d: outcome.said.append(
                f"{d.message_primary} {d.message_detail} {d.message_hint}"
            )
        )
        for statement in statements:
            outcome.rows = None
            try:
                outcome.rows = answered(connection, statement, protocol)
            except psycopg.Error as error:
                said = error.diag
                outcome.sqlstate = error.sqlstate or "none"
                outcome.said.append(
                    f"{said.message_primary} | {said.message_detail} | {said.message_hint}"
                    f" | {said.statement_position}"
                )
    return outcome


def answered(connection, statement: str, protocol: str) -> list | None:
    with connection.cursor() as cursor:
        if "STDOUT" in statement or "STDIN" in statement:
            with cursor.copy(statement) as copied:
                return [bytes(piece) for piece in copied] if "STDOUT" in statement else None
        cursor.execute(statement, prepare=protocol == "extended", binary=False)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture(scope="session")
def outcomes(world):
    """Run every attack in each protocol, in a session of its own."""
    return {
        (attack.name, protocol): run(world.dsn, attack.statements, protocol)
        for attack in ATTACKS
        for protocol in PROTOCOLS
        if protocol == "simple" or ";" not in attack.statements[-1]
    }


def test_there_are_enough_attacks():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_each_ends_as_a_reviewer_expects(attack: Attack, protocol: str, outcomes, world):
    outcome = outcomes.get((attack.name, protocol))
    if outcome is None:
        return  # several statements in one string are a matter of the simple protocol alone
    match attack.expect:
        case "as missing":
            statements = [renamed(statement) for statement in attack.statements]
            assert statements != list(attack.statements)
            missing = run(world.dsn, statements, protocol)
            assert renamed(outcome.told) == renamed(missing.told)
            assert outcome.sqlstate == missing.sqlstate
        case "no rows":
            assert (outcome.sqlstate, outcome.rows) == ("00000", [])
        case "any rows":
            assert (outcome.sqlstate, bool(outcome.rows)) == ("00000", True)
        case "refused":
            assert outcome.sqlstate not in ("00000", "none", "XX000"), outcome.told
        case "nothing":
            assert outcome.sqlstate != "XX000"
        case str() as sqlstate:
            assert outcome.sqlstate == sqlstate, outcome.told
        case rows:
            assert (outcome.sqlstate, outcome.rows) == ("00000", rows), outcome.told
    known = set(HIDDEN.findall(attack.name))
    assert set(HIDDEN.findall(outcome.told)) <= known


def renamed(text: str) -> str:
    for name, other in NAMES.items():
        text = text.replace(name, other)
    return text


# --- from outside: what the owners themselves logged -------------------------------------------------


@pytest.fixture(scope="session")
def received(outcomes, world):
    assert outcomes
    found = world.received()
    assert {query.owner for query in found} == {"hr", "shop"}
    return [query for query in found if "pg_catalog.pg_" not in query.text]


def test_no_owner_received_a_value_of_another_but_keys_that_it_may(received):
    for query in received:
        # A digest may have any digits.
        everything = re.sub(r"\\x[0-9a-f]{64}", "", query.text + query.parameters)
        if query.owner == "hr":
            assert not re.search(r"(?:CUST|BUYER|BUY|NOTE)-\d", everything), query
        else:
            assert not re.search(
                r"(?:EMP|MAIL|SSN|PAY|OUTSIDE|BADGE|SOLO|ILL|HOLD|IBAN)-\d|9050\d\d", everything
            ), query


def test_keys_left_within_the_policies(received):
    lists = {"hr": [], "shop": []}
    for query in received:
        numbers = [int(number) for number in re.findall(r"\b50\d\d\b", query.parameters)]
        if numbers:
            lists[query.owner].append(numbers)
    # From hr: two to ten of those that its row filter leaves; from shop: five at most.
    assert lists["shop"], "no key left at all: the suite would say nothing"
    assert all(2 <= len(keys) <= 10 and max(keys) <= 5030 for keys in lists["shop"])
    assert lists["hr"]
    assert all(len(keys) <= 5 for keys in lists["hr"])


def test_keys_that_leave_as_digests_only_left_so(received):
    digested = [q for q in received if q.owner == "shop" and '"members"' in q.text]
    assert any("sha256(" in query.text for query in digested), "no digest left: nothing is shown"


def test_keys_left_for_their_purpose_only(received, world):
    assert received
    with psycopg.connect(world.hub, autocommit=True) as hub:
        found = hub.execute(
            "SELECT d.from_owner, d.from_column, d.to_owner, d.to_column, a.purpose, count(*),"
            " min(d.keys), max(d.keys) FROM oar.disclosures d JOIN oar.asks a USING (ask)"
            " WHERE d.keys > 0 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 5"
        ).fetchall()
    for giver, column, receiver, target, purpose, _, least, most in found:
        if column == "hr.accounts.holder":
            assert (receiver, target) == ("shop", "members.handle")
        elif giver == "hr":
            assert (column, receiver, purpose) == ("hr.employees.id", "shop", "payroll")
            assert target == "orders.employee_id"
            assert 2 <= least <= most <= 10
        else:
            assert (giver, column, receiver) == ("shop", "shop.orders.employee_id", "hr")
            assert most <= 5
    assert {giver for giver, *_ in found} == {"hr", "shop"}


def test_what_is_hidden_or_masked_is_not_even_named_to_its_owner(received):
    for query in received:
        assert not re.search(r'"(?:payroll|ssn)"', query.text), query
        assert query.owner != "hr" or '"email"' not in query.text, query


def test_an_owner_whose_groups_are_shown_was_asked_for_no_statement_of_its_own(received):
    read = [q for q in received if '"visits"' in q.text]
    assert read
    for query in read:
        assert not re.search(r"HAVING|JOIN|\bOVER\b|array_agg|max\(|min\(", query.text), query


def test_every_read_of_filtered_rows_is_filtered(received):
    read = [q for q in received if q.owner == "hr" and '"employees"' in q.text]
    assert read
    assert all("\"region\"::text = 'EU'::text" in query.text for query in read), read


def test_owners_were_only_read(received, world):
    words = "INSERT|UPDATE|DELETE|MERGE|TRUNCATE|DROP|ALTER|CREATE|GRANT|COPY|DO|CALL|LOCK|COMMENT"
    for query in received:
        assert not re.match(rf"\s*(?:WITH\b.*\b)?(?:{words})\b", query.text), query
        assert not re.search(
            r"pg_sleep|pg_read_|lo_import|pg_notify|advisory|terminate", query.text
        )
    assert world.held() == world.before


def test_every_query_is_on_the_ledger(received, world):
    with psycopg.connect(world.hub, autocommit=True) as hub:
        digests = hub.execute("SELECT owner, sql_digest FROM oar.steps").fetchall()

    recorded = set(digests)
    for query in received:
        if query.text.startswith(("SELECT", "WITH")) and '"public"' in query.text:
            assert (query.owner, hashlib.sha256(query.text.encode()).hexdigest()) in recorded, query
