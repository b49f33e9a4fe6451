"""What a reviewed question may be worded like: words that stay, and parameters between them.

A question is read as words between spaces; what stands in quotes is one word. Question marks at its
end do not count. Case does, and so does all other punctuation: both tell one value from another.
Spaces in quotes count as well. So a form fits a question in one way at most,
and of two forms it can be told whether a question fits both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from oar_proxy.question import QUOTES
from oar_proxy.question import words as question_words

MAX_LENGTH: Final = 4096
"""Characters of a question that may be a reviewed one, the values it carries included."""
MAX_WORDS: Final = 200
"""Of a form."""

_END_MARKS: Final = "?？؟"
_PARAMETER: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")

HeldT = TypeVar("HeldT")


@dataclass(frozen=True, slots=True)
class Form:
    """The words of a question; a number stands for the parameter of that number, from 1."""

    words: tuple[str | int, ...]


def words(question: str) -> tuple[str, ...]:
    """Split a question into its words, without the marks at its end."""
    end = len(question)
    while end and (question[end - 1].isspace() or question[end - 1] in _END_MARKS):
        end -= 1
    return tuple(question_words(question[:end]))


def read_form(text: str, parameters: Sequence[str]) -> Form:
    """Read a question with each of ``parameters`` in braces in it, once.

    Raises ``ValueError`` with a one-line reason.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a question has at most {MAX_LENGTH} characters")
    numbers = {name: number for number, name in enumerate(parameters, start=1)}
    read: list[str | int] = []
    for word in words(text):
        match = _PARAMETER.fullmatch(word)
        if match is None:
            if "{" in word or "}" in word:
                raise ValueError("a parameter stands by itself between spaces, such as {code}")
            read.append(word)
            continue
        number = numbers.pop(match[1], None)
        if number is None:
            again = match[1] in parameters
            raise ValueError(
                f"{{{match[1]}}} stands here twice" if again else f"{{{match[1]}}} is no parameter"
            )
        read.append(number)
    if numbers:
        raise ValueError(f"{{{next(iter(numbers))}}} is missing")
    if all(isinstance(word, int) for word in read):
        raise ValueError("a question has words of its own")
    if len(read) > MAX_WORDS:
        raise ValueError(f"a question has at most {MAX_WORDS} words")
    return Form(tuple(read))


@dataclass(slots=True)
class _Node(Generic[HeldT]):
    """What may follow some words; the key None is any word, that is, a parameter."""

    next: dict[str | None, _Node[HeldT]] = field(default_factory=dict)
    held: tuple[Form, HeldT] | None = None


class Forms(Generic[HeldT]):
    """Forms, no two of which fit one question, and what each stands for."""

    def __init__(self) -> None:
        self._root: _Node[HeldT] = _Node()

    def add(self, form: Form, held: HeldT) -> HeldT | None:
        """Add a form, or return what another stands for that a question can fit as well."""
        wanted = tuple(None if isinstance(word, int) else word for word in form.words)
        other = next(_fitting(self._root, wanted), None)
        if other is not None:
            return other[1]
        node = self._root
        for word in wanted:
            node = node.next.setdefault(word, _Node())
        node.held = (form, held)
        return None

    def find(self, question: str) -> tuple[HeldT, Mapping[int, str]] | None:
        """Return what a question's form stands for, and the values of its parameters."""
        if len(question) > MAX_LENGTH:
            return None
        asked = words(question)
        found = next(_fitting(self._root, asked), None)
        if found is None:
            return None
        form, held = found
        values = {
            number: _value(word)
            for number, word in zip(form.words, asked, strict=True)
            if isinstance(number, int)
        }
        return held, values


def _fitting(
    node: _Node[HeldT], wanted: Sequence[str | None], at: int = 0
) -> Iterator[tuple[Form, HeldT]]:
    """Yield what fits the words from ``at`` on; None among them fits any."""
    if at == len(wanted):
        if node.held is not None:
            yield node.held
        return
    word = wanted[at]
    followed = node.next.items() if word is None else ((w, node.next.get(w)) for w in (word, None))
    for _, following in followed:
        if following is not None:
            yield from _fitting(following, wanted, at + 1)


def _value(word: str) -> str:
    """Return a word without the quotes around it."""
    closing = QUOTES.get(word[0])
    return word[1:-1] if closing is not None and len(word) > 1 and word[-1] == closing else word
