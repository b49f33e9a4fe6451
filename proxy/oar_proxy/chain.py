"""The ledger's chains: what an entry's hash covers, and what is wrong with entries. Pure.

Each running proxy is one writer, and each writer's entries are a chain: the hash of an entry is the
SHA-256 of the hash before it and of the entry's body. Entries of kind ``open`` and ``link`` name
the last entries of the other writers, so the chains hold each other: to cut one off, or to write it
anew, one would have to change the others as well. An entry of kind ``checkpoint`` stands for
entries that retention has deleted.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Body = dict[str, Any]
"""What an entry says. Numbers are whole ones, so that its canonical form is the same everywhere."""

NOTHING: Final = bytes(32)
"""The hash before a writer's first entry."""

NAMING: Final = ("open", "link", "checkpoint")
"""Kinds of entries that name other entries by their hash."""

MOST_FAULTS: Final = 100
"""Faults that are listed; one cut can make a fault of every entry behind it."""


def canonical(body: Body) -> str:
    """Return the one JSON text of a body: keys in order, no space, text as it is."""
    return json.dumps(
        body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def linked(previous: bytes, body: str) -> bytes:
    """Return the hash of an entry from the hash before it and its canonical body."""
    return hashlib.sha256(previous + body.encode()).digest()


@dataclass(frozen=True, slots=True)
class Head:
    """One entry as others name it: its writer, its number there, its hash."""

    writer: uuid.UUID
    number: int
    hash: bytes

    def named(self) -> Body:
        """Return how a body says it."""
        return {"writer": str(self.writer), "number": self.number, "hash": self.hash.hex()}

    @staticmethod
    def read(named: Mapping[str, Any]) -> Head:
        """Read what :meth:`named` wrote. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
        number = named["number"]
        if type(number) is not int:
            raise ValueError("an entry's number is a whole number")
        return Head(uuid.UUID(named["writer"]), number, bytes.fromhex(named["hash"]))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it is stored. ``number`` counts a writer's entries from 1."""

    writer: uuid.UUID
    number: int
    body: str
    hash: bytes

    @property
    def head(self) -> Head:
        """The entry as others name it."""
        return Head(self.writer, self.number, self.hash)

    def line(self) -> str:
        """Return the entry as a line of JSON, without the line's end."""
        return f'{{"hash":"{self.hash.hex()}","body":{self.body}}}'

    @staticmethod
    def of_line(line: str) -> Entry:
        """Read a line, with its end or without.

        Raises ``ValueError`` when it is none of :meth:`line`, to the character.
        """
        try:
            read = json.loads(line)
            body = read["body"]
            entry = Entry(
                uuid.UUID(body["writer"]),
                int(body["number"]),
                canonical(body),
                bytes.fromhex(read["hash"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the line is no entry") from error
        # JSON lets a line say a thing twice, or more than the hash covers.
        if entry.line() != line.removesuffix("\n"):
            raise ValueError("the line is not as an entry is written")
        return entry


class Chain:
    """One writer's chain while it grows."""

    def __init__(self, writer: uuid.UUID) -> None:
        self.writer = writer
        self.number = 0
        self.hash = NOTHING

    @property
    def head(self) -> Head:
        """The last entry; number 0 before there is one."""
        return Head(self.writer, self.number, self.hash)

    def append(self, kind: str, at: str, content: Body) -> Entry:
        """Make the next entry. ``at`` is ISO 8601, UTC, with microseconds."""
        self.number += 1
        text = canonical(
            {**content, "writer": str(self.writer), "number": self.number, "kind": kind, "at": at}
        )
        self.hash = linked(self.hash, text)
        return Entry(self.writer, self.number, text, self.hash)

    def back_to(self, head: Head) -> None:
        """Forget the entries behind ``head``, none of which was kept."""
        self.number, self.hash = head.number, head.hash


# --- verifying ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where: ``number`` is the first entry of the writer that it is seen at."""

    writer: uuid.UUID
    number: int
    kind: str
    text: str


@dataclass
class Report:
    """What verifying found. ``heads`` are the last entries of the writers, to compare with later.

    ``faults`` are at most :data:`MOST_FAULTS`; ``found`` counts all. ``open`` are the writers whose
    last entry does not close their chain: they run, were killed, or entries were cut off behind it.
    """

    entries: int = 0
    faults: list[Fault] = field(default_factory=list)
    found: int = 0
    heads: dict[uuid.UUID, Head] = field(default_factory=dict)
    open: list[uuid.UUID] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.found

    def fault(self, writer: uuid.UUID, number: int, kind: str, text: str) -> None:
        """Note a fault."""
        self.found += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(writer, number, kind, text))


@dataclass
class Named:
    """What entries say of other entries: which hash, and who says so.

    ``pruned`` are the last entries that retention deleted, by writer. ``wholly`` says that all
    writers are there to be seen: the hub's ledger has all, a file only those of one proxy, of which
    ``in_file`` are known to be.
    """

    hashes: dict[tuple[uuid.UUID, int], list[tuple[bytes, str]]] = field(default_factory=dict)
    last: dict[uuid.UUID, tuple[int, str]] = field(default_factory=dict)
    pruned: dict[uuid.UUID, Head] = field(default_factory=dict)
    wholly: bool = True
    in_file: set[uuid.UUID] = field(default_factory=set)

    def add(self, head: Head, by: str) -> None:
        """Take in that an entry exists, with its hash."""
        said = self.hashes.setdefault((head.writer, head.number), [])
        if not any(hash_ == head.hash for hash_, _ in said):
            said.append((head.hash, by))
        number, _ = self.last.get(head.writer, (0, ""))
        if head.number > number:
            self.last[head.writer] = head.number, by

    def read(self, entry: Entry) -> None:
        """Take in what an entry names, if it names any. What cannot be read names nothing."""
        try:
            body = json.loads(entry.body)
            kind, by = body["kind"], f"entry {entry.number} of writer {entry.writer}"
            if kind not in NAMING:
                return
            for named in body.get("heads", ()):
                self.add(Head.read(named), by)
            if (before := (body.get("file") or {}).get("last")) is not None:
                head = Head.read(before)
                self.add(head, by)
                self.in_file.add(head.writer)
            for named in body.get("pruned", ()):
                head = Head.read(named)
                known = self.pruned.get(head.writer)
                if known is None or head.number > known.number:
                    self.pruned[head.writer] = head
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return  # verifying says that it was changed


class Verification:
    """Checks entries, which come writer by writer or mixed, each writer's as they are stored."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._chains: dict[uuid.UUID, _Checked] = {}
        self._report = Report()

    def take(self, entry: Entry, stored_wrongly: str | None = None) -> None:
        """Check the next entry. ``stored_wrongly`` is what is wrong with how it is stored."""
        report = self._report
        report.entries += 1
        chain = self._chains.get(entry.writer)
        if chain is None:
            chain = self._chains[entry.writer] = _Checked(entry.writer, self._named)
        for kind, text in chain.take(entry):
            report.fault(entry.writer, entry.number, kind, text)
        if stored_wrongly:
            report.fault(entry.writer, entry.number, "changed", stored_wrongly)

    def fault(self, writer: uuid.UUID, number: int, kind: str, text: str) -> None:
        """Note what else is wrong."""
        self._report.fault(writer, number, kind, text)

    def report(self) -> Report:
        """Return what is wrong, once all entries were taken."""
        for writer, chain in self._chains.items():
            self._report.heads[writer] = Head(writer, chain.number, chain.hash)
            if not chain.closed:
                self._report.open.append(writer)
        for writer, number, text in _missing_ends(self._chains, self._named):
            self._report.fault(writer, number, "cut off", text)
        return self._report


class _Checked:
    """One writer's chain as far as it has been checked."""

    def __init__(self, writer: uuid.UUID, named: Named) -> None:
        self._named = named
        self._pruned = named.pruned.get(writer)
        self._writer = writer
        self._begun = False
        self.number = 0
        self.hash = NOTHING
        self.closed = False
        """Whether nothing more is to come, as far as the entries themselves say."""
        # What is taken over from former tables nobody closes.
        self._taken_over = False

    def take(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Check the next entry; yields kinds and texts of what is wrong."""
        place = f"entry {entry.number}"
        if not self._begun:
            self._begin(entry)
        if entry.number <= self.number:
            yield "reordered", f"{place} stands behind entry {self.number}"
            return
        if entry.number > self.number + 1:
            first, last = self.number + 1, entry.number - 1
            which = f"entry {first} is" if first == last else f"entries {first} to {last} are"
            yield "removed", f"{which} missing before {place}"
            previous = None
        else:
            previous = self.hash
        yield from self._content(entry, previous)
        for hash_, by in self._named.hashes.get((entry.writer, entry.number), ()):
            if hash_ != entry.hash:
                yield "rewritten", f"{place} is not the one that {by} names"
        self.number, self.hash = entry.number, entry.hash

    def _begin(self, entry: Entry) -> None:
        """Begin where retention has left off, when the first entry is the one behind that."""
        self._begun = True
        if self._pruned is not None and entry.number == self._pruned.number + 1:
            self.number, self.hash = self._pruned.number, self._pruned.hash

    def _content(self, entry: Entry, previous: bytes | None) -> Iterator[tuple[str, str]]:
        try:
            body = json.loads(entry.body)
            place = (body["writer"], body["number"])
            self._taken_over = self._taken_over or body["kind"] == "before"
            self.closed = self._taken_over or body["kind"] == "close"
        except (KeyError, TypeError, ValueError, RecursionError):
            yield "changed", "the body is not one that a writer writes"
            return
        if place != (str(entry.writer), entry.number):
            yield "reordered", f"this is entry {place[1]} of writer {place[0]}, put here"
        elif previous is not None and linked(previous, entry.body) != entry.hash:
            yield "changed", "its hash is not that of its body and of the entry before it"
        elif (entry.number == 1) != (body.get("kind") in ("open", "before")):
            yield "inserted", "a writer's first entry, and no other, opens its chain"


def _missing_ends(
    chains: Mapping[uuid.UUID, _Checked], named: Named
) -> Iterator[tuple[uuid.UUID, int, str]]:
    for writer, (number, by) in named.last.items():
        chain = chains.get(writer)
        if chain is None and not (named.wholly or writer in named.in_file):
            continue
        pruned = named.pruned.get(writer)
        end = max(chain.number if chain else 0, pruned.number if pruned else 0)
        if end < number:
            yield writer, end + 1, f"entries {end + 1} to {number} are missing: {by} names the last"
