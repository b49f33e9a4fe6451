"""Reading an owner's options.

Every fault is a ``ValueError`` that names the option, and not its value: that can be a credential
in the wrong place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Options = Mapping[str, str]


def check(options: Options, known: Collection[str], owner: str) -> None:
    """Refuse an option that is not known to ``owner``, "a PostgreSQL owner"."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(unknown)}: {owner} takes {', '.join(sorted(known))}"
        )


def names(options: Options, name: str, default: str = "") -> tuple[str, ...]:
    """Read a comma list."""
    return tuple(part for each in options.get(name, default).split(",") if (part := each.strip()))


def choice(options: Options, name: str, default: str, other: str) -> str:
    """Read one of two words."""
    value = options.get(name, default)
    if value not in (default, other):
        raise ValueError(f"option {name} is neither {default} nor {other}")
    return value


def number(options: Options, name: str, default: str, low: float, high: float) -> float:
    """Read a number within bounds."""
    try:
        value = float(options.get(name, default))
    except ValueError:
        raise ValueError(f"option {name} is not a number") from None
    if not low <= value <= high:
        raise ValueError(f"option {name} is not between {low:g} and {high:g}")
    return value


def integer(options: Options, name: str, default: str, low: int, high: int) -> int:
    """Read a whole number within bounds."""
    value = options.get(name, default)
    if not (value.isdecimal() and low <= int(value) <= high):
        raise ValueError(f"option {name} is not a whole number between {low} and {high}")
    return int(value)
