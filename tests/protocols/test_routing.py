"""The calls that choose a protocol before any owner is asked."""

from __future__ import annotations

import json

import pytest
from oar_proxy.errors import DrafterUnavailable
from oar_proxy.protocols import routing
from oar_proxy.protocols.contacts import Contacts

KEY = "recD078PnS3x2doBe"


def choose(club, reply, contacts=None):
    inquiry = club.inquiry(contacts=contacts)
    return club.consult(lambda model: routing.choose(inquiry, model), self=lambda _: reply)


def name_owners(club, reply):
    inquiry = club.inquiry()
    return club.consult(lambda model: routing.name_owners(inquiry, model), ask=lambda _: reply)


@pytest.mark.parametrize("protocol", ["fan-out", "relay"])
def test_the_model_chooses_a_protocol(club, protocol):
    assert choose(club, {"protocol": protocol})[0] == protocol


@pytest.mark.parametrize("owners", [[], ["registry"], ["registry", "treasury"], ["nobody"]])
def test_the_model_names_owners(club, owners):
    assert name_owners(club, {"owners": owners})[0] == tuple(owners)


@pytest.mark.parametrize(
    "content",
    [
        {"protocol": "gossip"},
        {"protocol": "relay", "why": "keys"},
        {"owners": "registry"},
        {"owners": [1]},
        "relay",
        "",
    ],
)
def test_a_reply_that_does_not_say_is_no_choice(club, content):
    assert choose(club, content)[0] is None
    assert name_owners(club, content)[0] is None


def test_a_model_that_cannot_be_reached_is_no_reply(club, reply):
    with pytest.raises(DrafterUnavailable, match="status 401"):
        choose(club, reply(status=401))


def test_it_sees_the_schemas_of_those_that_can_be_reached_and_no_row(club):
    before = club.recorded("SELECT count(*) FROM oar.asks")
    _, server = choose(club, {"protocol": "relay"}, Contacts(("registry",), ("library",)))
    (material,) = server.materials("self")
    assert set(material) == {"question", "owners"}
    assert [owner["owner"] for owner in material["owners"]] == ["registry", "library"]
    assert "table member\n" in material["owners"][0]["schema"]
    assert KEY not in json.dumps([request for *_, request in server.received])
    assert club.recorded("SELECT count(*) FROM oar.asks") == before  # no owner is asked
