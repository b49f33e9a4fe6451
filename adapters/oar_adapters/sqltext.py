"""What the SQL that owners are sent is made of in each dialect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oar_adapters.interface import And, Not, Or, Predicate
from oar_adapters.predicates import Leaf


def quoted(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def string(value: str) -> str:
    """Write a string where a backslash is a character as any other."""
    return "'" + value.replace("'", "''") + "'"


def row(values: Sequence[str]) -> str:
    """Write values that are compared together."""
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


def where(conditions: Sequence[str]) -> str:
    """Write a WHERE clause of conditions that all have to hold; nothing where there are none."""
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def condition(predicate: Predicate, leaf: Callable[[Leaf], str], *, true: str, false: str) -> str:
    """Write a predicate; ``true`` and ``false`` are the dialect's, for AND and OR of nothing."""

    def joined(arguments: Sequence[Predicate], word: str, empty: str) -> str:
        parts = [condition(each, leaf, true=true, false=false) for each in arguments]
        return f"({word.join(parts)})" if parts else empty

    match predicate:
        case And(arguments=arguments):
            return joined(arguments, " AND ", true)
        case Or(arguments=arguments):
            return joined(arguments, " OR ", false)
        case Not(argument=argument):
            return f"(NOT {condition(argument, leaf, true=true, false=false)})"
        case _:
            return leaf(predicate)


def pads_of(key: bytes) -> tuple[bytes, bytes]:
    """Return the outer and the inner pad of a key, as long as a block of SHA-256."""
    block = key.ljust(64, b"\0")
    return bytes(byte ^ 0x5C for byte in block), bytes(byte ^ 0x36 for byte in block)
