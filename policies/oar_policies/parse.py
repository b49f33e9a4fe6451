"""An owner's YAML, checked field by field, with line and column in every error.

The text is read twice: once as a stream of events, where size, depth, anchors and aliases are
bounded before anything is built, then as nodes, whose marks place every later error. Nothing is
constructed from tags, and no default stands in for a field that cannot be understood: a file that
is not a whole policy is an error, so that a truncated file never opens what it used to hide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import yaml

from oar_policies.model import (
    ColumnPattern,
    KeyAcceptance,
    KeyDisclosure,
    Mark,
    OwnerLimits,
    Policy,
    TableRule,
    default_policy,
)
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

_NO_COLUMNS: Final[Mapping[str, Mark]] = MappingProxyType({})

_Fields = dict[str, tuple[yaml.ScalarNode, yaml.Node]]


class _YamlMark(Protocol):
    """What PyYAML's two kinds of marks share; both count from 0."""

    line: int
    column: int


class PolicyError(Exception):
    """A policy that cannot be used. ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, source: str, line: int, column: int) -> None:
        super().__init__(f"{source}:{line}:{column}: {message}")
        self.message = message
        self.source = source
        self.line = line
        self.column = column


def load_policies(files: Mapping[str, Path | None]) -> dict[str, Policy]:
    """Read every owner's file; an owner without one gets `default_policy`.

    Raises :class:`PolicyError` for the first file that cannot be used, so that what is in force
    is replaced as a whole or not at all.
    """
    return {
        owner: default_policy(owner) if path is None else load_policy(path, owner)
        for owner, path in files.items()
    }


def load_policy(path: Path, owner: str) -> Policy:
    """Read one owner's policy file (UTF-8). Raises :class:`PolicyError`."""
    source = str(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}", source, 1, 1) from error
    if len(content) > MAX_BYTES:
        raise PolicyError(f"larger than {MAX_BYTES} bytes", source, 1, 1)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise PolicyError("not UTF-8", source, *_place(before)) from error
    return parse_policy(text, owner=owner, source=source)


def parse_policy(text: str, *, owner: str, source: str) -> Policy:
    """Read a policy. ``source`` names the text in errors. Raises :class:`PolicyError` only."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise PolicyError(f"larger than {MAX_BYTES} bytes", source, 1, 1)
    reading = _Reading(source)
    root = reading.compose(text)
    return reading.policy(root, owner, hashlib.sha256(text.encode()).hexdigest()[:16])


def _place(before: str) -> tuple[int, int]:
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", before)
    return len(lines), len(lines[-1]) + 1


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One text on its way to a policy; knows what to call it in errors."""

    source: str

    # --- from text to nodes ---

    def compose(self, text: str) -> yaml.Node:
        last = Mark(1, 1)
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
            place = Mark(*_place(text[: error.position]))
            raise self.error(place, "not YAML: a character that is not allowed") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = " ".join((error.problem or "cannot be read").split())
            raise self.error(_mark(mark) if mark else last, f"not YAML: {reason}") from error
        except (ValueError, OverflowError) as error:
            # PyYAML passes escapes such as "\UFFFFFFFF" to chr() unchecked.
            raise self.error(last, "not YAML: a number or escape out of range") from error
        if root is None:
            raise self.error(Mark(1, 1), "empty: a policy begins with 'version: 1'")
        return root

    def error(self, mark: Mark, message: str) -> PolicyError:
        return PolicyError(message, self.source, mark.line, mark.column)

    # --- the fields ---

    def policy(self, root: yaml.Node, owner: str, digest: str) -> Policy:
        known = (
            "version",
            "default",
            "subjects",
            "limits",
            "tables",
            "key_disclosure",
            "accept_keys",
            "model",
        )
        fields = self.fields(root, "a policy", known)
        if "version" not in fields:
            raise self.error(_start(root), "version is missing: a policy begins with 'version: 1'")
        if self.whole(fields["version"][1], "version", 0) != 1:
            raise self.error(_start(fields["version"][1]), "version: only 1 is known")
        default, subjects, limits, tables, grants, accepted, model = map(fields.get, known[1:])
        return Policy(
            owner=owner,
            source=self.source,
            digest=digest,
            default_deny=default is not None and self.denies(default[1], "default", "permit"),
            subjects=self.names(subjects[1], "subjects", "role") if subjects else None,
            limits=self.limits(limits[1]) if limits else OwnerLimits(),
            tables=self.tables(tables[1]) if tables else MappingProxyType({}),
            key_disclosure=self.grants(grants[1]) if grants else (),
            accept_keys=self.acceptances(accepted[1]) if accepted else None,
            rows_to_model=self.model(model[1]) if model else False,
        )

    def limits(self, node: yaml.Node) -> OwnerLimits:
        known = ("max_rows", "max_bytes", "timeout", "max_queries", "max_keys_in")
        fields = self.fields(node, "limits", known)
        rows, size, timeout, queries, keys = map(fields.get, known)
        return OwnerLimits(
            max_rows=self.whole(rows[1], "max_rows", 1) if rows else None,
            max_bytes=self.whole(size[1], "max_bytes", 1) if size else None,
            timeout=self.seconds(timeout[1], "timeout") if timeout else None,
            max_queries=self.whole(queries[1], "max_queries", 1) if queries else None,
            max_keys_in=self.whole(keys[1], "max_keys_in", 0) if keys else None,
        )

    def model(self, node: yaml.Node) -> bool:
        """Tell whether a model may read rows."""
        fields = self.fields(node, "model", ("rows",))
        if "rows" not in fields:
            raise self.error(_start(node), "model needs rows")
        return not self.denies(fields["rows"][1], "rows", "allow")

    def denies(self, node: yaml.Node, what: str, other: str) -> bool:
        """Read ``deny``, or the word for its opposite."""
        word = self.text(node, what)
        if word not in (other, "deny"):
            raise self.error(_start(node), f"{what}: {other} or deny is expected")
        return word == "deny"

    def tables(self, node: yaml.Node) -> Mapping[str, TableRule]:
        rules: dict[str, TableRule] = {}
        for key, value in self.fields(node, "tables", None).values():
            name = self.name(key, "a table")
            if name in rules:
                raise self.error(_start(key), f"table {_quote(name)} stands here twice")
            rules[name] = self.table(key, value)
        return MappingProxyType(rules)

    def table(self, key: yaml.ScalarNode, node: yaml.Node) -> TableRule:
        fields = self.fields(node, "a table", ("deny", "deny_columns", "require_filter"))
        if not fields or ("deny" in fields and len(fields) > 1):
            raise self.error(
                _start(
                    node if not fields else next(f for n, (f, _) in fields.items() if n != "deny")
                ),
                "a table has either deny, or deny_columns and require_filter",
            )
        if "deny" in fields:
            return TableRule(_start(key), deny=self.boolean(fields["deny"][1], "deny"))
        hidden, required = map(fields.get, ("deny_columns", "require_filter"))
        return TableRule(
            _start(key),
            deny_columns=self.columns(hidden[1], "deny_columns") if hidden else _NO_COLUMNS,
            require_filter=self.required(required[1]) if required else _NO_COLUMNS,
        )

    def required(self, node: yaml.Node) -> Mapping[str, Mark]:
        columns = self.columns(node, "require_filter")
        if not columns:
            raise self.error(_start(node), "require_filter names no column: leave it out")
        return columns

    def columns(self, node: yaml.Node, what: str) -> Mapping[str, Mark]:
        columns: dict[str, Mark] = {}
        for item in self.items(node, what):
            name = self.name(item, "a column")
            if name in columns:
                raise self.error(_start(item), f"column {_quote(name)} stands here twice")
            columns[name] = _start(item)
        return MappingProxyType(columns)

    def grants(self, node: yaml.Node) -> tuple[KeyDisclosure, ...]:
        return tuple(self.grant(item) for item in self.items(node, "key_disclosure"))

    def grant(self, node: yaml.Node) -> KeyDisclosure:
        known = ("column", "to", "purpose", "min_keys", "max_keys", "expires")
        fields = self.fields(node, "a key_disclosure entry", known)
        least, most = self.numbers(fields, "min_keys", "max_keys")
        if least is not None and most is not None and least > most:
            raise self.error(_start(fields["min_keys"][1]), "min_keys is more than max_keys")
        return KeyDisclosure(
            mark=_start(node),
            column=self.pattern(self.field(node, fields, "column", "a key_disclosure entry")),
            owners=self.owners(self.field(node, fields, "to", "a key_disclosure entry"), "to"),
            max_keys=most,
            min_keys=least,
            purposes=self.purposes(fields),
            expires=self.expiry(fields),
        )

    def acceptances(self, node: yaml.Node) -> tuple[KeyAcceptance, ...]:
        return tuple(self.acceptance(item) for item in self.items(node, "accept_keys"))

    def acceptance(self, node: yaml.Node) -> KeyAcceptance:
        known = ("column", "from", "purpose", "max_keys", "expires")
        fields = self.fields(node, "an accept_keys entry", known)
        (most,) = self.numbers(fields, "max_keys")
        return KeyAcceptance(
            mark=_start(node),
            column=self.pattern(self.field(node, fields, "column", "an accept_keys entry")),
            owners=self.owners(self.field(node, fields, "from", "an accept_keys entry"), "from"),
            max_keys=most,
            purposes=self.purposes(fields),
            expires=self.expiry(fields),
        )

    def field(self, node: yaml.Node, fields: _Fields, name: str, what: str) -> yaml.Node:
        if name not in fields:
            raise self.error(_start(node), f"{what} needs {name}")
        return fields[name][1]

    def numbers(self, fields: _Fields, *names: str) -> list[int | None]:
        return [self.whole(fields[n][1], n, 1) if n in fields else None for n in names]

    def purposes(self, fields: _Fields) -> frozenset[str] | None:
        return (
            self.names(fields["purpose"][1], "purpose", "purpose") if "purpose" in fields else None
        )

    def expiry(self, fields: _Fields) -> date | None:
        if "expires" not in fields:
            return None
        node = fields["expires"][1]
        try:
            # YAML reads a bare day as a timestamp; in quotes it is text.
            if isinstance(node, yaml.ScalarNode) and _DAY.fullmatch(node.value):
                return date.fromisoformat(node.value)
        except ValueError:
            pass
        raise self.error(_start(node), "expires: a day is expected, such as 2027-12-31")

    def pattern(self, node: yaml.Node) -> ColumnPattern:
        text = self.text(node, "column")
        if text == "*":
            return ColumnPattern(None, None)
        any_column = text.endswith(".*")
        parts = self.split(node, text.removesuffix(".*"))
        if len(parts) != (1 if any_column else 2):
            raise self.error(
                _start(node), "column: write table.column, table.* or *, without a schema"
            )
        return ColumnPattern(parts[0], None if any_column else parts[1])

    def owners(self, node: yaml.Node, what: str) -> frozenset[str] | None:
        """Read names of owners; None for a star, which is any owner."""
        names = self.names(node, what, "owner", star=True)
        return None if "*" in names else names

    def names(self, node: yaml.Node, what: str, kind: str, *, star: bool = False) -> frozenset[str]:
        """Read a list of names, each once and at least one. ``star``: it may be one of them."""
        names: set[str] = set()
        for item in self.items(node, what):
            name = self.text(item, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}")
            if name in names:
                raise self.error(_start(item), f"{kind} {_quote(name)} stands here twice")
            if not name or not name.isprintable() or ("*" in name and not (star and name == "*")):
                any_of_them = f", or * for any {kind}" if star else ""
                raise self.error(_start(item), f"{what}: write {kind}s' names{any_of_them}")
            names.add(name)
        if not names:
            raise self.error(_start(node), f"{what} names no {kind}: leave it out")
        return frozenset(names)

    # --- shapes ---

    def fields(self, node: yaml.Node, what: str, allowed: Collection[str] | None) -> _Fields:
        """Read a mapping with text keys, each once; ``allowed`` None takes any key."""
        if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
            raise self.error(_start(node), f"{what}: a mapping is expected")
        found: _Fields = {}
        for key, value in node.value:
            name = self.text(key, "a field")
            if allowed is not None and name not in allowed:
                known = ", ".join(allowed)
                raise self.error(
                    _start(key), f"{what}: unknown field {_quote(name)} (known: {known})"
                )
            if name in found:
                raise self.error(_start(key), f"{what}: {_quote(name)} stands here twice")
            found[name] = (key, value)
        return found

    def items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode) or node.tag != _TAG + "seq":
            raise self.error(_start(node), f"{what}: a list is expected")
        return list(node.value)

    def name(self, node: yaml.Node, what: str) -> str:
        parts = self.split(node, self.text(node, what))
        if len(parts) != 1:
            raise self.error(
                _start(node),
                f"{what} is one name, without schema or table: quote a name that holds a dot",
            )
        return parts[0]

    def split(self, node: yaml.Node, text: str) -> tuple[str, ...]:
        try:
            return split_name(text)
        except ValueError as error:
            raise self.error(_start(node), f"{_quote(text)}: {error}") from error

    def text(self, node: yaml.Node, what: str) -> str:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _TAG + "str":
                return str(node.value)
            kind = _KINDS.get(node.tag.removeprefix(_TAG))
            if kind is not None:
                raise self.error(
                    _start(node),
                    f"{what}: YAML reads {_quote(node.value)} as {kind}: put it in quotes",
                )
        raise self.error(_start(node), f"{what}: text is expected")

    def boolean(self, node: yaml.Node, what: str) -> bool:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "bool":
            return str(node.value).lower() in ("true", "yes", "on")
        raise self.error(_start(node), f"{what}: true or false is expected")

    def whole(self, node: yaml.Node, what: str, minimum: int) -> int:
        value = self.plain(node, _WHOLE)
        if value is None or int(value) < minimum:
            raise self.error(
                _start(node),
                f"{what}: a whole number of at least {minimum} is expected, in plain digits",
            )
        return int(value)

    def seconds(self, node: yaml.Node, what: str) -> float:
        value = self.plain(node, _SECONDS)
        if value is None or float(value) <= 0:
            raise self.error(
                _start(node), f"{what}: seconds, more than 0, in plain digits are expected"
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


def _step(event: yaml.Event) -> int:
    if isinstance(event, yaml.CollectionStartEvent):
        return 1
    return -1 if isinstance(event, yaml.CollectionEndEvent) else 0


def _mark(mark: _YamlMark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _start(node: yaml.Node) -> Mark:
    return _mark(node.start_mark)
