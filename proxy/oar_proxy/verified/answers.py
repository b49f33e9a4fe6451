"""All reviewed answers that are in force, and which of them a question asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from oar_policies.model import Mark

from oar_proxy.settings import ConfigurationError, Settings
from oar_proxy.verified.entry import Entry, EntryError, Parameter, load_entry
from oar_proxy.verified.form import Forms

MAX_ENTRIES: Final = 1000
"""Files of one directory: some two seconds to read, off the event loop."""


@dataclass(frozen=True, slots=True)
class Match:
    """The entry that a question asks for, with the values it carries, by parameter."""

    entry: Entry
    values: Mapping[int, str] = field(repr=False)

    @property
    def literals(self) -> tuple[tuple[Parameter, str], ...]:
        """Each parameter with its value as a typed literal; whether it fits is the hub's to say."""
        return tuple(
            (parameter, parameter.literal(self.values[number]))
            for number, parameter in enumerate(self.entry.parameters, start=1)
        )

    @property
    def sql(self) -> str:
        """The statement that answers the question."""
        return self.entry.statement(self.values)


class VerifiedAnswers:
    """Entries, none of which can be asked for by a question that asks for another."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        """Raises :class:`EntryError` where two entries fit one question, or publish one view."""
        self.entries = tuple(entries)
        self._forms: Forms[tuple[Entry, Mark]] = Forms()
        views: dict[str, Entry] = {}
        for entry in self.entries:
            for form, mark in entry.forms:
                other = self._forms.add(form, (entry, mark))
                if other is not None:
                    where = f"{other[0].source}:{other[1].line}:{other[1].column}"
                    raise _error(entry, mark, f"a question could be this one and that of {where}")
            if entry.view is not None:
                first = views.setdefault(entry.view, entry)
                if first is not entry:
                    raise _error(
                        entry, entry.view_mark, f"view: {first.source} publishes it as well"
                    )

    def match(self, question: str) -> Match | None:
        """Return the entry that a question asks for, None where it asks for none."""
        found = self._forms.find(question)
        if found is None:
            return None
        (entry, _), values = found
        return Match(entry, values)


def configured_answers(settings: Settings) -> VerifiedAnswers:
    """Read the answers that the configuration names. Raises ``ConfigurationError``."""
    try:
        return load_answers(settings.verified)
    except EntryError as error:
        raise ConfigurationError(str(error)) from error


def load_answers(directory: Path | None) -> VerifiedAnswers:
    """Read every ``.yaml`` file of a directory. Raises :class:`EntryError`.

    None is no directory, and no entry. A file ``.yml`` is an error: it would be passed over.
    """
    if directory is None:
        return VerifiedAnswers()
    try:
        paths = sorted(directory.iterdir())
    except OSError as error:
        raise EntryError(f"cannot be read: {error.strerror}", str(directory), 1, 1) from error
    for path in paths:
        if path.suffix == ".yml":
            raise EntryError("verified answers are read from .yaml files only", str(path), 1, 1)
    files = [path for path in paths if path.suffix == ".yaml"]
    if len(files) > MAX_ENTRIES:
        raise EntryError(f"more than {MAX_ENTRIES} verified answers", str(directory), 1, 1)
    return VerifiedAnswers(map(load_entry, files))


def _error(entry: Entry, mark: Mark, message: str) -> EntryError:
    return EntryError(message, entry.source, mark.line, mark.column)
