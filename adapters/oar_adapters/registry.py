"""Adapters by URL scheme, found through the entry point group ``oar.adapters``.

Built-in adapters use the same door as anyone else's: the scheme is the entry point's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from oar_adapters.interface import Adapter, AdapterFactory

GROUP: Final = "oar.adapters"
"""The entry point group; an entry's name is a URL scheme, its object an ``AdapterFactory``."""


def schemes() -> tuple[str, ...]:
    """Return the URL schemes that some installed adapter serves, sorted."""
    return tuple(sorted(_entries()))


def open_adapter(url: str, options: Mapping[str, str] | None = None) -> Adapter:
    """Make the adapter an owner's URL names; the owner is not contacted yet.

    Raises ``ValueError`` for an unknown scheme, an unusable URL or an unknown option. Messages
    never quote the URL, since it can hold a password.
    """
    scheme, separator, _ = url.partition(":")
    entries = _entries()
    entry = entries.get(scheme.lower()) if separator else None
    if entry is None:
        # Only what is followed by :// is surely a scheme and not the start of a credential.
        shown = f" {scheme!r}" if separator and url[len(scheme) :].startswith("://") else ""
        raise ValueError(
            f"owner URL has no known scheme{shown}: installed adapters serve "
            f"{', '.join(schemes()) or 'none'}"
        )
    factory = cast("AdapterFactory", entry.load())
    return factory(url, dict(options or {}))


def _entries() -> dict[str, EntryPoint]:
    return {entry.name.lower(): entry for entry in entry_points(group=GROUP)}
