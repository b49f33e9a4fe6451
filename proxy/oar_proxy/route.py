"""The route of a statement, decided from its owner cover before any row is read. Pure.

κ ≥ 2 is relay: owners in turn, the keys of one placed in the query to the next. Everything else
is fan-out: all owners at once. A policy can still turn a relay round or run a step without keys;
that is the plan's and the gate's matter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from oar_proxy.cover import Cover


class RouteKind(enum.Enum):
    """How the owners are asked."""

    RELAY = "relay"
    FAN_OUT = "fan-out"


@dataclass(frozen=True, slots=True)
class Route:
    """A decided route; ``reason`` is one line for people (it names no table)."""

    kind: RouteKind
    reason: str


def route(cover: Cover[Any]) -> Route:
    """Decide the route from κ; an undefined κ (a table that nobody holds) is fan-out."""
    kappa = cover.kappa
    if kappa is None:
        return Route(RouteKind.FAN_OUT, "the owner cover is undefined: a table has no holder")
    if kappa >= 2:
        names = ", ".join(cover.owners)
        return Route(RouteKind.RELAY, f"no owner holds all tables: {kappa} are needed ({names})")
    if kappa == 1:
        return Route(RouteKind.FAN_OUT, f"one owner holds every table ({cover.owners[0]})")
    return Route(RouteKind.FAN_OUT, "no published table is read")
