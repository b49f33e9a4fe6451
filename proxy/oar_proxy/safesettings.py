"""Settings of a client's session under which rows of owners may be given to the hub."""

from __future__ import annotations

from typing import Final

from oar_proxy.errors import FeatureNotSupported
from oar_proxy.sessionstate import SessionState

_SAFE: Final = {
    "log_parameter_max_length_on_error": ("0", "the hub prints their rows"),
    "debug_print_plan": ("off", "the hub prints their rows"),
    "array_nulls": ("on", "off the hub reads NULL in their arrays as a text"),
}
"""Settings of which one value is safe, and what happens with another one. Rows of owners are
parameters at the hub, also those that no answer may show."""


def require_safe(state: SessionState) -> None:
    """Raise ``FeatureNotSupported`` where a setting of the session is not one to run under."""
    for name, (safe, otherwise) in _SAFE.items():
        if state.settings.get(name, safe) != safe:
            raise FeatureNotSupported(
                f"statement over owners' tables not run: with {name} {otherwise}",
                hint=f"SET {name} TO {safe}",
            )
