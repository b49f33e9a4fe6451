"""Files of owners and of their governance teams: YAML, with line and column in every error.

A text is read twice: once as a stream of events, where size, depth, anchors and aliases are bounded
before anything is built, then as nodes, whose marks place every later error. Nothing is constructed
from tags, and no default stands in for a field that cannot be understood.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import ClassVar, Final, Protocol

import yaml

from oar_policies.model import Mark
from oar_policies.names import split_name

MAX_BYTES: Final = 128 * 1024
"""Some five thousand grants: beyond what a person reviews, and read in about a second."""
_MAX_DEPTH: Final = 8
"""The deepest field (``tables`` → table → ``deny_columns`` → name) is four levels down."""
_MAX_DIGITS: Final = 18
"""Every whole number fits PostgreSQL's bigint."""
_SHOWN: Final = 40
"""Characters of the file's own text that an error quotes."""

_WHOLE = re.compile(r"0|[1-9][0-9]*")
"""Plain decimal only: YAML 1.1 would read 010 as eight and 1:30 as ninety."""
_SECONDS = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TAG = "tag:yaml.org,2002:"
_KINDS: Final = {"bool": "a boolean", "int": "a number", "float": "a number", "null": "nothing"}

Fields = dict[str, tuple[yaml.ScalarNode, yaml.Node]]
"""The fields of a mapping by name: each key's node, and its value's."""


class _YamlMark(Protocol):
    """What PyYAML's two kinds of marks share; both count from 0."""

    line: int
    column: int


class FileError(Exception):
    """A file that cannot be used. ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, source: str, line: int, column: int) -> None:
        super().__init__(f"{source}:{line}:{column}: {message}")
        self.message = message
        self.source = source
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Reading:
    """One text on its way to what it says; ``source`` is what errors call it.

    Every method raises ``fault``. A subclass reads the fields of its kind of file.
    """

    fault: ClassVar[type[FileError]]
    kind: ClassVar[str]
    """What errors call such a file, with its article."""

    source: str

    # --- from a file to nodes ---

    def load(self, path: Path) -> str:
        """Read a file's text (UTF-8)."""
        first = Mark(1, 1)
        try:
            with path.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise self.error(first, f"cannot be read: {error.strerror}") from error
        if len(content) > MAX_BYTES:
            raise self.error(first, f"larger than {MAX_BYTES} bytes")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = content[: error.start].decode("utf-8")
            raise self.error(_place(before), "not UTF-8") from error

    def compose(self, text: str) -> yaml.Node:
        """Build the nodes of a text."""
        last = Mark(1, 1)
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise self.error(last, f"larger than {MAX_BYTES} bytes")
        depth = 0
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                last = _mark(event.start_mark) if event.start_mark else last
                depth += _step(event)
                if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                    raise self.error(last, "anchors and aliases are not allowed: write it out")
                if depth > _MAX_DEPTH:
                    raise self.error(last, "nested too deeply")
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            place = _place(text[: error.position])
            raise self.error(place, "not YAML: a character that is not allowed") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = " ".join((error.problem or "cannot be read").split())
            raise self.error(_mark(mark) if mark else last, f"not YAML: {reason}") from error
        except (ValueError, OverflowError) as error:
            # PyYAML passes escapes such as "\UFFFFFFFF" to chr() unchecked.
            raise self.error(last, "not YAML: a number or escape out of range") from error
        if root is None:
            raise self.error(Mark(1, 1), f"empty: {self.kind} begins with 'version: 1'")
        return root

    def versioned(self, root: yaml.Node, known: Collection[str]) -> Fields:
        """Read the fields of a whole file, one of which is its ``version``, which is 1."""
        fields = self.fields(root, self.kind, known)
        if "version" not in fields:
            raise self.error(
                start(root), f"version is missing: {self.kind} begins with 'version: 1'"
            )
        if self.whole(fields["version"][1], "version", 0) != 1:
            raise self.error(start(fields["version"][1]), "version: only 1 is known")
        return fields

    def error(self, mark: Mark, message: str) -> FileError:
        """Make the error about a place."""
        return self.fault(message, self.source, mark.line, mark.column)

    # --- shapes ---

    def fields(self, node: yaml.Node, what: str, allowed: Collection[str] | None) -> Fields:
        """Read a mapping with text keys, each once; ``allowed`` None takes any key."""
        if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
            raise self.error(start(node), f"{what}: a mapping is expected")
        found: Fields = {}
        for key, value in node.value:
            name = self.text(key, "a field")
            if allowed is not None and name not in allowed:
                known = ", ".join(allowed)
                raise self.error(
                    start(key), f"{what}: unknown field {quote(name)} (known: {known})"
                )
            if name in found:
                raise self.error(start(key), f"{what}: {quote(name)} stands here twice")
            found[name] = (key, value)
        return found

    def field(self, node: yaml.Node, fields: Fields, name: str, what: str) -> yaml.Node:
        """Return the node of a field that has to be there."""
        if name not in fields:
            raise self.error(start(node), f"{what} needs {name}")
        return fields[name][1]

    def items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        """Read a list."""
        if not isinstance(node, yaml.SequenceNode) or node.tag != _TAG + "seq":
            raise self.error(start(node), f"{what}: a list is expected")
        return list(node.value)

    def names(self, node: yaml.Node, what: str, kind: str, *, star: bool = False) -> frozenset[str]:
        """Read a list of names, each once and at least one. ``star``: it may be one of them."""
        names: set[str] = set()
        for item in self.items(node, what):
            name = self.text(item, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}")
            if name in names:
                raise self.error(start(item), f"{kind} {quote(name)} stands here twice")
            if not name or not name.isprintable() or ("*" in name and not (star and name == "*")):
                any_of_them = f", or * for any {kind}" if star else ""
                raise self.error(start(item), f"{what}: write {kind}s' names{any_of_them}")
            names.add(name)
        if not names:
            raise self.error(start(node), f"{what} names no {kind}: leave it out")
        return frozenset(names)

    def name(self, node: yaml.Node, what: str) -> str:
        """Read one name, of a table or a column."""
        parts = self.split(node, self.text(node, what))
        if len(parts) != 1:
            raise self.error(
                start(node),
                f"{what} is one name, without schema or table: quote a name that holds a dot",
            )
        return parts[0]

    def split(self, node: yaml.Node, text: str) -> tuple[str, ...]:
        """Split the names in ``text``, which stands at ``node``."""
        try:
            return split_name(text)
        except ValueError as error:
            raise self.error(start(node), f"{quote(text)}: {error}") from error

    def text(self, node: yaml.Node, what: str) -> str:
        """Read text: what YAML takes for something else has to be quoted."""
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _TAG + "str":
                return str(node.value)
            kind = _KINDS.get(node.tag.removeprefix(_TAG))
            if kind is not None:
                raise self.error(
                    start(node),
                    f"{what}: YAML reads {quote(node.value)} as {kind}: put it in quotes",
                )
        raise self.error(start(node), f"{what}: text is expected")

    def null(self, node: yaml.Node) -> bool:
        """Tell whether there is nothing: ``null``, or no text at all."""
        return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"

    def boolean(self, node: yaml.Node, what: str) -> bool:
        """Read one of YAML's words for a boolean."""
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "bool":
            return str(node.value).lower() in ("true", "yes", "on")
        raise self.error(start(node), f"{what}: true or false is expected")

    def denies(self, node: yaml.Node, what: str, other: str) -> bool:
        """Read ``deny``, or the word for its opposite."""
        word = self.text(node, what)
        if word not in (other, "deny"):
            raise self.error(start(node), f"{what}: {other} or deny is expected")
        return word == "deny"

    def whole(self, node: yaml.Node, what: str, minimum: int) -> int:
        """Read a whole number."""
        value = self.plain(node, _WHOLE)
        if value is None or int(value) < minimum:
            raise self.error(
                start(node),
                f"{what}: a whole number of at least {minimum} is expected, in plain digits",
            )
        return int(value)

    def seconds(self, node: yaml.Node, what: str) -> float:
        """Read a number of seconds, which may have a fraction."""
        value = self.plain(node, _SECONDS)
        if value is None or float(value) <= 0:
            raise self.error(
                start(node), f"{what}: seconds, more than 0, in plain digits are expected"
            )
        return float(value)

    def plain(self, node: yaml.Node, pattern: re.Pattern[str]) -> str | None:
        """Return the digits of an unquoted number, None for anything else."""
        if not isinstance(node, yaml.ScalarNode) or node.style is not None:
            return None
        value = str(node.value)
        if node.tag not in (_TAG + "int", _TAG + "float") or len(value) > _MAX_DIGITS:
            return None
        return value if pattern.fullmatch(value) else None

    def day(self, node: yaml.Node, what: str) -> date:
        """Read a day of the calendar."""
        try:
            # YAML reads a bare day as a timestamp; in quotes it is text.
            if isinstance(node, yaml.ScalarNode) and _DAY.fullmatch(node.value):
                return date.fromisoformat(node.value)
        except ValueError:
            pass
        raise self.error(start(node), f"{what}: a day is expected, such as 2027-12-31")


def start(node: yaml.Node) -> Mark:
    """Return where a node begins."""
    return _mark(node.start_mark)


def quote(text: str) -> str:
    """Quote a file's own text for an error."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _place(before: str) -> Mark:
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", before)
    return Mark(len(lines), len(lines[-1]) + 1)


def _step(event: yaml.Event) -> int:
    if isinstance(event, yaml.CollectionStartEvent):
        return 1
    return -1 if isinstance(event, yaml.CollectionEndEvent) else 0


def _mark(mark: _YamlMark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)
