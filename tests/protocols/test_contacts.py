from __future__ import annotations

import pytest
from oar_proxy.protocols.contacts import Contacts, Referral, best_matching, bm25, everyone

PEOPLE = {
    "ann": "Ann keeps the salaries of employees.",
    "ben": "Ben knows about buildings and rooms.",
    "cem": "Cem keeps employees and their departments; employees ask him.",
    "dot": "Dot keeps parking lots.",
    "eve": "Eve keeps the salaries of departments",
}


def test_bm25_is_the_formula_of_the_paper():
    # Two documents of 2 and 4 words, average 3; "salary" in one of them, once.
    scores = bm25("Which salary?", {"a": "salary table", "b": "rooms floors doors keys"})
    rarity = 0.6931471805599453  # ln(1 + (2 - 1 + 0.5) / (1 + 0.5))
    assert scores["a"] == pytest.approx(rarity * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)))
    assert scores["b"] == 0.0


def test_stop_words_and_case_do_not_count():
    assert bm25("what is the OF a", PEOPLE) == dict.fromkeys(PEOPLE, 0.0)
    assert bm25("SALARIES", PEOPLE) == bm25("the salaries of what", PEOPLE)


def test_the_asker_and_the_three_best_others_are_contacted():
    contacts = best_matching("salaries of employees by department", PEOPLE, asker="dot")
    assert contacts == Contacts(("dot", "ann", "cem", "eve"), asker="dot")


def test_of_equals_the_first_is_contacted_first():
    assert best_matching("nothing fits", PEOPLE, top=2).initial == ("ann", "ben")


def test_at_most_two_owners_are_added_by_referral():
    referrals = {
        "ann": [Referral("ask Cem", "cem"), Referral("ask Eve", "eve")],
        "eve": [Referral("again Cem", "cem"), Referral("nobody", "zoe"), Referral("Ben", "ben")],
        "cem": [Referral("Dot", "dot")],
    }
    contacts = best_matching("salaries", PEOPLE, top=2, referrals=referrals)
    assert contacts.initial == ("ann", "eve")
    assert contacts.referred == ("cem", "ben")
    assert contacts.messages == ("ask Cem", "Ben")
    assert contacts.reachable == ("ann", "eve", "cem", "ben")


def test_everyone_is_contacted_in_order():
    assert everyone(["b", "a"]) == Contacts(("b", "a"))
