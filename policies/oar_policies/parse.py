"""An owner's policy, read from YAML field by field, with line and column in every error.

A file that is not a whole policy is an error, so that a truncated file never opens what it used to
hide. How YAML is read: :mod:`oar_policies.reading`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

import yaml

from oar_policies.cases import read_cases
from oar_policies.model import (
    ColumnPattern,
    ColumnRule,
    Form,
    KeyAcceptance,
    KeyDisclosure,
    LastDay,
    Mark,
    Mask,
    MinGroup,
    OwnerLimits,
    Policy,
    RowFilter,
    TableRule,
    default_policy,
)
from oar_policies.reading import Fields, FileError, Reading, quote, start

_NO_COLUMNS: Final[Mapping[str, Mark]] = MappingProxyType({})


AGGREGATES: Final = frozenset(
    {
        "avg",
        "count",
        "max",
        "min",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)
"""PostgreSQL's aggregates that a policy may let out of a column: each makes one number of many, or
picks one value. Those that list values (``array_agg``) are not among them."""


SMALLEST_GROUP: Final = 2
"""A group of one is the entity itself: a ``min_group`` that asks for no more asks for nothing."""


class PolicyError(FileError):
    """A policy that cannot be used."""


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
    return parse_policy(_Reading(source).load(path), owner=owner, source=source)


def parse_policy(text: str, *, owner: str, source: str) -> Policy:
    """Read a policy. ``source`` names the text in errors. Raises :class:`PolicyError` only."""
    reading = _Reading(source)
    root = reading.compose(text)
    return reading.policy(root, owner, hashlib.sha256(text.encode()).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class _Reading(Reading):
    """One text on its way to a policy."""

    fault: ClassVar[type[FileError]] = PolicyError
    kind: ClassVar[str] = "a policy"

    def policy(self, root: yaml.Node, owner: str, digest: str) -> Policy:
        known = (
            "version",
            "default",
            "expires",
            "subjects",
            "limits",
            "tables",
            "key_disclosure",
            "accept_keys",
            "model",
            "tests",
        )
        fields = self.versioned(root, known)
        default, expires, subjects, limits, tables, grants, accepted, model, tests = map(
            fields.get, known[1:]
        )
        return Policy(
            owner=owner,
            source=self.source,
            digest=digest,
            default_deny=default is not None and self.denies(default[1], "default", "permit"),
            expires=LastDay(start(expires[1]), self.day(expires[1], "expires"))
            if expires
            else None,
            subjects=self.names(subjects[1], "subjects", "role") if subjects else None,
            limits=self.limits(limits[1]) if limits else OwnerLimits(),
            tables=self.tables(tables[1]) if tables else MappingProxyType({}),
            key_disclosure=self.grants(grants[1]) if grants else (),
            accept_keys=self.acceptances(accepted[1]) if accepted else None,
            rows_to_model=self.model(model[1]) if model else False,
            tests=read_cases(self, tests[1]) if tests else (),
        )

    def limits(self, node: yaml.Node) -> OwnerLimits:
        known = (
            "max_rows",
            "max_bytes",
            "timeout",
            "max_queries",
            "max_keys_in",
            "max_keys_per_day",
        )
        fields = self.fields(node, "limits", known)
        rows, size, timeout, queries, keys, daily = map(fields.get, known)
        return OwnerLimits(
            max_rows=self.whole(rows[1], "max_rows", 1) if rows else None,
            max_bytes=self.whole(size[1], "max_bytes", 1) if size else None,
            timeout=self.seconds(timeout[1], "timeout") if timeout else None,
            max_queries=self.whole(queries[1], "max_queries", 1) if queries else None,
            max_keys_in=self.whole(keys[1], "max_keys_in", 0) if keys else None,
            max_keys_per_day=self.whole(daily[1], "max_keys_per_day", 1) if daily else None,
        )

    def model(self, node: yaml.Node) -> bool:
        """Tell whether a model may read rows."""
        fields = self.fields(node, "model", ("rows",))
        if "rows" not in fields:
            raise self.error(start(node), "model needs rows")
        return not self.denies(fields["rows"][1], "rows", "allow")

    def tables(self, node: yaml.Node) -> Mapping[str, TableRule]:
        rules: dict[str, TableRule] = {}
        for key, value in self.fields(node, "tables", None).values():
            name = self.name(key, "a table")
            if name in rules:
                raise self.error(start(key), f"table {quote(name)} stands here twice")
            rules[name] = self.table(key, value)
        return MappingProxyType(rules)

    def table(self, key: yaml.ScalarNode, node: yaml.Node) -> TableRule:
        known = ("deny", "deny_columns", "require_filter", "row_filter", "columns", "min_group")
        fields = self.fields(node, "a table", known)
        if not fields or ("deny" in fields and len(fields) > 1):
            raise self.error(
                start(
                    node if not fields else next(f for n, (f, _) in fields.items() if n != "deny")
                ),
                "a table has either deny, or rules about its rows and columns",
            )
        if "deny" in fields:
            return TableRule(start(key), deny=self.boolean(fields["deny"][1], "deny"))
        hidden, required, rows, ruled, groups = map(fields.get, known[1:])
        denied = self.columns(hidden[1], "deny_columns") if hidden else _NO_COLUMNS
        rule = TableRule(
            start(key),
            deny_columns=denied,
            require_filter=self.required(required[1]) if required else _NO_COLUMNS,
            row_filter=self.row_filter(rows[1]) if rows else None,
            columns=self.column_rules(ruled[1], denied) if ruled else MappingProxyType({}),
            min_group=self.min_group(groups[1]) if groups else None,
        )
        if rule.min_group is not None and rule.min_group.entity in {*denied, *rule.masks}:
            raise self.error(
                rule.min_group.mark,
                "min_group: its entity is hidden or masked, and could not be counted; "
                "with output: false it can",
            )
        return rule

    def min_group(self, node: yaml.Node) -> MinGroup:
        fields = self.fields(node, "min_group", ("entity", "size"))
        entity = self.field(node, fields, "entity", "min_group")
        size = self.field(node, fields, "size", "min_group")
        return MinGroup(
            start(entity), self.name(entity, "a column"), self.whole(size, "size", SMALLEST_GROUP)
        )

    def row_filter(self, node: yaml.Node) -> RowFilter:
        condition = self.text(node, "row_filter")
        if not condition.strip():
            raise self.error(start(node), "row_filter: a condition is expected")
        return RowFilter(start(node), condition)

    def column_rules(self, node: yaml.Node, denied: Collection[str]) -> Mapping[str, ColumnRule]:
        rules: dict[str, ColumnRule] = {}
        for key, value in self.fields(node, "columns", None).values():
            name = self.name(key, "a column")
            if name in rules:
                raise self.error(start(key), f"column {quote(name)} stands here twice")
            if name in denied:
                raise self.error(start(key), f"column {quote(name)} is in deny_columns as well")
            rules[name] = self.column_rule(key, value)
        return MappingProxyType(rules)

    def column_rule(self, key: yaml.ScalarNode, node: yaml.Node) -> ColumnRule:
        known = ("mask", "output", "functions", "filter")
        fields = self.fields(node, "a column", known)
        if not fields:
            raise self.error(start(node), "a column needs a rule")
        mask, output, functions, filters = map(fields.get, known)
        if mask is not None and len(fields) > 1:
            raise self.error(start(node), "a masked column is a constant: no other rule is needed")
        if (functions is not None) != (output is not None and self.aggregates(output[1])):
            raise self.error(start(node), "output: aggregate_only and functions go together")
        if filters is not None and self.boolean(filters[1], "filter"):
            raise self.error(start(filters[1]), "filter: false is expected, or no filter")
        return ColumnRule(
            start(key),
            mask=self.mask(mask[1]) if mask else None,
            output="allowed" if not output else "aggregate_only" if functions else "denied",
            functions=self.aggregate_names(functions[1]) if functions else frozenset(),
            filter=filters is None,
        )

    def aggregates(self, node: yaml.Node) -> bool:
        """Read ``output``; tell whether aggregates may be put out."""
        if isinstance(node, yaml.ScalarNode):
            if node.value == "aggregate_only":
                return True
            if node.value in ("false", "False", "FALSE") and not node.style:
                return False
        raise self.error(start(node), "output: false or aggregate_only is expected")

    def aggregate_names(self, node: yaml.Node) -> frozenset[str]:
        names = self.names(node, "functions", "aggregate")
        for item in self.items(node, "functions"):
            name = self.text(item, "functions")
            if name not in AGGREGATES:
                listed = ", ".join(sorted(AGGREGATES))
                raise self.error(start(item), f"functions: {quote(name)} is none of {listed}")
        return names

    def mask(self, node: yaml.Node) -> Mask:
        if not self.null(node):
            return Mask(self.text(node, "mask"))
        if not node.value:
            raise self.error(start(node), "mask: null has to be written out")
        return Mask(None)

    def required(self, node: yaml.Node) -> Mapping[str, Mark]:
        columns = self.columns(node, "require_filter")
        if not columns:
            raise self.error(start(node), "require_filter names no column: leave it out")
        return columns

    def columns(self, node: yaml.Node, what: str) -> Mapping[str, Mark]:
        columns: dict[str, Mark] = {}
        for item in self.items(node, what):
            name = self.name(item, "a column")
            if name in columns:
                raise self.error(start(item), f"column {quote(name)} stands here twice")
            columns[name] = start(item)
        return MappingProxyType(columns)

    def grants(self, node: yaml.Node) -> tuple[KeyDisclosure, ...]:
        return tuple(self.grant(item) for item in self.items(node, "key_disclosure"))

    def grant(self, node: yaml.Node) -> KeyDisclosure:
        known = ("column", "to", "purpose", "min_keys", "max_keys", "form", "expires")
        fields = self.fields(node, "a key_disclosure entry", known)
        least, most = self.numbers(fields, "min_keys", "max_keys")
        if least is not None and most is not None and least > most:
            raise self.error(start(fields["min_keys"][1]), "min_keys is more than max_keys")
        return KeyDisclosure(
            mark=start(node),
            column=self.pattern(self.field(node, fields, "column", "a key_disclosure entry")),
            owners=self.owners(self.field(node, fields, "to", "a key_disclosure entry"), "to"),
            max_keys=most,
            min_keys=least,
            form=self.form(fields["form"][1]) if "form" in fields else "plain",
            purposes=self.purposes(fields),
            expires=self.expiry(fields),
        )

    def form(self, node: yaml.Node) -> Form:
        match self.text(node, "form"):
            case "plain":
                return "plain"
            case "hmac":
                return "hmac"
        raise self.error(start(node), "form: plain or hmac is expected")

    def acceptances(self, node: yaml.Node) -> tuple[KeyAcceptance, ...]:
        return tuple(self.acceptance(item) for item in self.items(node, "accept_keys"))

    def acceptance(self, node: yaml.Node) -> KeyAcceptance:
        known = ("column", "from", "purpose", "max_keys", "expires")
        fields = self.fields(node, "an accept_keys entry", known)
        (most,) = self.numbers(fields, "max_keys")
        return KeyAcceptance(
            mark=start(node),
            column=self.pattern(self.field(node, fields, "column", "an accept_keys entry")),
            owners=self.owners(self.field(node, fields, "from", "an accept_keys entry"), "from"),
            max_keys=most,
            purposes=self.purposes(fields),
            expires=self.expiry(fields),
        )

    def numbers(self, fields: Fields, *names: str) -> list[int | None]:
        return [self.whole(fields[n][1], n, 1) if n in fields else None for n in names]

    def purposes(self, fields: Fields) -> frozenset[str] | None:
        return (
            self.names(fields["purpose"][1], "purpose", "purpose") if "purpose" in fields else None
        )

    def expiry(self, fields: Fields) -> date | None:
        return self.day(fields["expires"][1], "expires") if "expires" in fields else None

    def pattern(self, node: yaml.Node) -> ColumnPattern:
        text = self.text(node, "column")
        if text == "*":
            return ColumnPattern(None, None)
        any_column = text.endswith(".*")
        parts = self.split(node, text.removesuffix(".*"))
        if len(parts) != (1 if any_column else 2):
            raise self.error(
                start(node), "column: write table.column, table.* or *, without a schema"
            )
        return ColumnPattern(parts[0], None if any_column else parts[1])

    def owners(self, node: yaml.Node, what: str) -> frozenset[str] | None:
        """Read names of owners; None for a star, which is any owner."""
        names = self.names(node, what, "owner", star=True)
        return None if "*" in names else names
