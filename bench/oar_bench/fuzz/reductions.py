"""Asking again with other reductions: by settings, and with single ones left out or left alone.

An answer depends on none of them, so whatever differs is a fault of one that another hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from oar_proxy.compile import WHOLE_STATEMENT, Permit

SETTINGS: Final = ("oar.max_keys = 0", "oar.max_keys = 2", "oar.reduction = full")
"""Settings under which a statement is asked again: without keys, with few, with all there are."""

MAX_VARIATIONS: Final = 4
"""Ways in which one statement is asked again, besides without any reduction."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How a statement is asked again. ``kind``: ``SET``, ``without``, ``only``, ``nothing``."""

    kind: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.what}".strip()

    def permits(self, reduction: str) -> bool:
        """Tell whether a reduction may be made."""
        if self.kind == "without":
            return reduction not in (self.what, WHOLE_STATEMENT)
        if self.kind == "only":
            return reduction == self.what
        return self.kind == "SET"


BY_SETTING: Final = tuple(Variation("SET", setting) for setting in SETTINGS)
NOTHING: Final = Variation("nothing")
"""No reduction is made, and each is asked for: their names are then known."""


class Permits:
    """Which reductions a proxy may make, for each user; and which it has asked for."""

    def __init__(self) -> None:
        self._varied: dict[str, Variation] = {}
        self._asked: dict[str, dict[str, None]] = {}

    def __call__(self, principal: str) -> Permit | None:
        """See ``oar_proxy.compile.Compiler.permits``."""
        variation = self._varied.get(principal)
        return None if variation is None else partial(self._permit, principal, variation)

    def _permit(self, principal: str, variation: Variation, reduction: str) -> bool:
        self._asked[principal][reduction] = None
        return variation.permits(reduction)

    def vary(self, principal: str, variation: Variation) -> None:
        """Put a variation in force for a user."""
        self._asked[principal] = {}
        self._varied[principal] = variation

    def end(self, principal: str) -> None:
        """Let a user have all reductions again."""
        self._varied.pop(principal, None)

    def asked(self, principal: str) -> tuple[str, ...]:
        """Names of what was asked for under the last variation, but for whole statements."""
        return tuple(name for name in self._asked.get(principal, ()) if name != WHOLE_STATEMENT)
