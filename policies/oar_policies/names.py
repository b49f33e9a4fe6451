"""How a policy writes the names of tables and columns.

As in SQL: a bare name is in lower case and holds no dot; any other name stands in double quotes,
with a quote inside doubled. A bare name with an upper-case letter is an error and not folded: a
``deny`` that silently names nothing would leave a table open.
"""

from __future__ import annotations

import re

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".*\s]+)')


def split_name(text: str) -> tuple[str, ...]:
    """Split ``a."B.c"`` into ``("a", "B.c")``. Raises ``ValueError`` with a one-line reason."""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(
                "a name is written bare (lower case, no dot, space, quote or star) or in double "
                "quotes"
            )
        quoted, bare = match.groups()
        if bare is not None and bare != bare.lower():
            raise ValueError(
                "a bare name is in lower case, as published: double quotes keep upper case"
            )
        part = bare if bare is not None else quoted.replace('""', '"')
        if not part.isprintable():
            raise ValueError("a name holds printable characters only")
        parts.append(part)
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise ValueError("the parts of a name are separated by one dot")
        position += 1


def write_name(*parts: str) -> str:
    """Join parts with dots, quoting where a policy would have to: inverse of `split_name`."""
    return ".".join(map(_write_part, parts))


def _write_part(part: str) -> str:
    match = _PART.fullmatch(part)
    if match is not None and match[2] == part == part.lower():
        return part
    return '"' + part.replace('"', '""') + '"'
