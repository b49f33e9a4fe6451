"""The owner cover and the route that follows from it."""

from __future__ import annotations

import pytest
from oar_proxy import cover as cover_module
from oar_proxy.cover import Cover, cover
from oar_proxy.route import RouteKind, route

HOLDERS = {
    "orders": ("shop",),
    "customers": ("shop",),
    "promos": ("ads",),
    "trips": ("fleet",),
    "song": ("cassie", "valarie"),
    "album": ("valarie", "ads"),
    "concert": ("cassie", "fleet"),
}


@pytest.mark.parametrize(
    ("tables", "kappa", "owners"),
    [
        ((), 0, ()),
        (("orders",), 1, ("shop",)),
        (("orders", "customers", "orders"), 1, ("shop",)),
        (("orders", "promos"), 2, ("shop", "ads")),
        (("promos", "orders", "trips"), 3, ("ads", "shop", "fleet")),
        (("song",), 1, ("cassie",)),
        (("song", "album"), 1, ("valarie",)),
        (("song", "concert"), 1, ("cassie",)),
        (("song", "album", "concert"), 2, ("cassie", "valarie")),
        (("album", "promos"), 1, ("ads",)),
        (("song", "album", "promos"), 2, ("cassie", "ads")),
        (("orders", "nowhere"), None, ()),
    ],
)
def test_smallest_set_of_owners(tables, kappa, owners):
    found = cover(tables, HOLDERS)
    assert (found.kappa, found.owners) == (kappa, owners)
    assert found.tables == tuple(dict.fromkeys(tables))
    assert found.exact


def test_cover_is_exact_where_greedy_is_not():
    # Greedy takes "wide" (4 of 6) and then needs two more; two owners hold everything.
    holders = {
        "a": ("wide", "left"),
        "b": ("wide", "left"),
        "c": ("left", "third"),
        "d": ("wide", "right"),
        "e": ("wide", "right"),
        "f": ("right", "fourth"),
    }
    assert cover(holders, holders).owners == ("left", "right")


def test_cut_search_never_changes_the_route(monkeypatch):
    monkeypatch.setattr(cover_module, "MAX_COMBINATIONS", 1)
    split = {"a": ("x", "y"), "b": ("y", "z")}
    assert cover(split, split).kappa == 1
    ring = {"a": ("w", "x"), "b": ("x", "y"), "c": ("y", "z"), "d": ("z", "w")}
    found = cover(ring, ring)
    assert found.kappa is not None
    assert found.kappa >= 2
    assert not found.exact
    assert all(set(found.owners) & set(owners) for owners in ring.values())


@pytest.mark.parametrize(
    ("kappa", "owners", "kind", "reason"),
    [
        (None, (), RouteKind.FAN_OUT, "a table has no holder"),
        (0, (), RouteKind.FAN_OUT, "no published table is read"),
        (1, ("shop",), RouteKind.FAN_OUT, "one owner holds every table (shop)"),
        (2, ("shop", "ads"), RouteKind.RELAY, "2 are needed (shop, ads)"),
        (3, ("a", "b", "c"), RouteKind.RELAY, "3 are needed (a, b, c)"),
    ],
)
def test_route(kappa, owners, kind, reason):
    decided = route(Cover(kappa, owners, ()))
    assert decided.kind is kind
    assert reason in decided.reason
