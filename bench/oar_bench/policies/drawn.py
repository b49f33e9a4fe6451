"""Random policies: drawn as plain values, written as the files that owners would write.

What may leave is decided here a second time and from the drawn values alone, so that what the proxy
discloses is not checked against its own decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import sqlglot
from oar_policies.names import write_name
from sqlglot import exp

AGGREGATES: Final = ("avg", "count", "max", "min", "sum")
PURPOSES: Final = ("audits", "refunds")
ENDED: Final = "2020-12-31"

Column = tuple[str, str]
"""Table and column."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``key_disclosure`` or of ``accept_keys``. ``column`` None is any."""

    column: Column | None
    owners: tuple[str, ...]
    more: Mapping[str, Any] = field(default_factory=dict)

    def written(self, side: str) -> dict[str, Any]:
        """Return the entry as YAML's values; ``side`` is ``to`` or ``from``."""
        named = "*" if self.column is None else write_name(*self.column)
        return {"column": named, side: list(self.owners), **self.more}

    def holds(self, column: Column, owner: str, purpose: str | None) -> bool:
        """Tell whether it opens an edge of that column, with that owner on the other side."""
        return (
            self.column in (None, column)
            and ("*" in self.owners or owner in self.owners)
            and self.more.get("expires") != ENDED
            and ("purpose" not in self.more or purpose in self.more["purpose"])
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """One owner's policy."""

    limits: Mapping[str, int]
    disclosed: tuple[Rule, ...]
    accepted: tuple[Rule, ...] | None
    silent: frozenset[Column] = frozenset()
    """Columns with ``output: false``."""
    aggregated: Mapping[Column, tuple[str, ...]] = field(default_factory=dict)
    """Columns with ``output: aggregate_only``, with the functions."""
    unfiltering: frozenset[Column] = frozenset()
    """Columns with ``filter: false``."""
    grouped: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Tables with ``min_group``: entity and size."""
    filtered: Mapping[str, str] = field(default_factory=dict)
    """Tables with ``row_filter``."""
    masked: Mapping[Column, str | None] = field(default_factory=dict)
    """Columns with ``mask``, None for ``null``."""

    @property
    def text(self) -> str:
        """The policy file; JSON is YAML."""
        policy: dict[str, Any] = {
            "version": 1,
            "limits": dict(self.limits),
            "key_disclosure": [rule.written("to") for rule in self.disclosed],
        }
        if self.accepted is not None:
            policy["accept_keys"] = [rule.written("from") for rule in self.accepted]
        tables: dict[str, Any] = {}
        rules: list[tuple[Column, dict[str, Any]]] = [
            *((column, {"output": False}) for column in sorted(self.silent)),
            *((column, {"filter": False}) for column in sorted(self.unfiltering)),
            *((column, {"mask": value}) for column, value in self.masked.items()),
            *(
                (column, {"output": "aggregate_only", "functions": list(functions)})
                for column, functions in self.aggregated.items()
            ),
        ]
        for (table, column), rule in rules:
            ruled = tables.setdefault(write_name(table), {}).setdefault("columns", {})
            ruled.setdefault(write_name(column), {}).update(rule)
        for table, (entity, size) in self.grouped.items():
            group = {"entity": write_name(entity), "size": size}
            tables.setdefault(write_name(table), {})["min_group"] = group
        for table, condition in self.filtered.items():
            tables.setdefault(write_name(table), {})["row_filter"] = condition
        return json.dumps({**policy, "tables": tables} if tables else policy)


@dataclass(frozen=True, slots=True)
class Disclosed:
    """What the ledger says was disclosed by one query."""

    owner: str
    column: Column
    receiver: str
    receiver_column: Column
    keys: int
    digested: bool = False
    """Whether the receiver was asked to compare digests."""


Values = Mapping[Column, Sequence[str]]
"""Some values of each column, as PostgreSQL writes them."""


def draw(
    random: Random, owners: Mapping[str, Sequence[Column]], values: Values
) -> dict[str, Drawn]:
    """Draw a policy for each owner, of which these columns are published.

    Rows are filtered and masked by ``values``, in tables that have some.
    """
    drawn = {owner: _policy(random, owner, owners) for owner in owners}
    filtered = {c[0]: _condition(random, c[1], values[c]) for c in _some(random, list(values), 0.2)}
    ruled = {
        *(c for each in drawn.values() for c in (*each.silent, *each.unfiltering)),
        *(c for each in drawn.values() for c in each.aggregated),
        *((table, rule[0]) for each in drawn.values() for table, rule in each.grouped.items()),
    }
    masked = {
        column: random.choice([None, random.choice(values[column])])
        for column in _some(random, [c for c in values if c not in ruled], 0.2)
    }
    # Owners that hold rows of one table agree about those: whose a row is, the merged tables do
    # not say.
    return {
        owner: replace(
            each,
            filtered={
                t: c for t, c in filtered.items() if t in {name for name, _ in owners[owner]}
            },
            masked={c: value for c, value in masked.items() if c in owners[owner]},
        )
        for owner, each in drawn.items()
    }


def _condition(random: Random, column: str, values: Sequence[str]) -> str:
    name = '"' + column.replace('"', '""') + '"'
    one, other = ("'" + random.choice(values).replace("'", "''") + "'" for _ in range(2))
    return random.choice(
        [
            f"{name} = {one}",
            f"{name} <> {one}",
            f"{name} IN ({one}, {other})",
            f"{name} >= {one}",
            f"NOT ({name} < {one})",
            f"{name} <> {one} OR {name} IS NULL",
        ]
    )


def fault(policies: Mapping[str, Drawn], disclosed: Disclosed, purpose: str | None) -> str | None:
    """Say how a disclosure is against the policies, None where it is not."""
    giving, taking = policies[disclosed.owner], policies[disclosed.receiver]
    grant = _first(giving.disclosed, disclosed.column, disclosed.receiver, purpose)
    if grant is None:
        return "no grant"
    if grant.more.get("form") == "hmac" and disclosed.keys and not disclosed.digested:
        return "in clear"
    if disclosed.keys > grant.more.get("max_keys", disclosed.keys):
        return "more than max_keys"
    if 0 < disclosed.keys < grant.more.get("min_keys", 0):
        return "fewer than min_keys"
    if disclosed.keys > taking.limits.get("max_keys_in", disclosed.keys):
        return "more than max_keys_in"
    if taking.accepted is None:
        return None
    accepted = _first(taking.accepted, disclosed.receiver_column, disclosed.owner, purpose)
    if accepted is None:
        return "not accepted"
    if disclosed.keys > accepted.more.get("max_keys", disclosed.keys):
        return "more than accepted"
    return None


def _first(rules: Iterable[Rule], column: Column, owner: str, purpose: str | None) -> Rule | None:
    return next((rule for rule in rules if rule.holds(column, owner, purpose)), None)


def _policy(random: Random, owner: str, owners: Mapping[str, Sequence[Column]]) -> Drawn:
    others = [name for name in owners if name != owner]
    limits: dict[str, int] = {}
    if random.random() < 0.2:
        limits["max_rows"] = random.choice([5, 30, 200])
    if random.random() < 0.15:
        limits["max_keys_in"] = random.choice([0, 2, 20])
    if random.random() < 0.1:
        limits["max_queries"] = random.choice([1, 3])
    disclosed = [_rule(random, owners[owner], others, disclosing=True) for _ in range(_few(random))]
    accepted: tuple[Rule, ...] | None = None
    if random.random() < 0.3:
        taken = [
            _rule(random, owners[owner], others, disclosing=False) for _ in range(_few(random))
        ]
        accepted = tuple(taken)
    columns = owners[owner]
    silent = _some(random, columns, 0.1)
    unfiltering = _some(random, columns, 0.05)
    by = _some(random, columns, 0.08)
    grouped = {table: (entity, random.choice([2, 5])) for table, entity in by}
    often = [c for c in columns if c not in silent]
    aggregated = {
        column: tuple(sorted(random.sample(AGGREGATES, 3)))
        for column in sorted(_some(random, often, 0.1))
    }
    return Drawn(limits, tuple(disclosed), accepted, silent, aggregated, unfiltering, grouped)


def _some(random: Random, columns: Sequence[Column], often: float) -> frozenset[Column]:
    """Draw a column, or none."""
    return frozenset({random.choice(columns)} if columns and random.random() < often else ())


def put_out(policies: Mapping[str, Drawn], origins: Iterable[Column]) -> Column | None:
    """Return an output that is a column as it is which a policy keeps from being put out."""
    each = (frozenset({*policy.silent, *policy.aggregated}) for policy in policies.values())
    silent = frozenset[Column]().union(*each)
    return next((column for column in origins if column in silent), None)


@dataclass(frozen=True, slots=True)
class View:
    """What is left of a table: rows by a condition, constants in the place of columns."""

    condition: str | None
    masks: Mapping[str, str | None]


def views(policies: Mapping[str, Drawn], tables: Iterable[str]) -> dict[str, View]:
    """Return what the policies leave of these tables; nothing where that is all of them."""
    filtered = {t: c for each in policies.values() for t, c in each.filtered.items()}
    masked = {c: value for each in policies.values() for c, value in each.masked.items()}
    found = {
        table: View(
            filtered.get(table), {name: value for (t, name), value in masked.items() if t == table}
        )
        for table in tables
    }
    return found if any(view.condition or view.masks for view in found.values()) else {}


def tables_read(statement: str) -> frozenset[str]:
    """Return the names of tables in a statement, in lower case."""
    tree = sqlglot.parse_one(statement, read="postgres")
    return frozenset(table.name.lower() for table in tree.find_all(exp.Table))


def in_groups(policies: Mapping[str, Drawn], statement: str) -> str | None:
    """Return the statement with those groups only that the policies show.

    None where it is not one query that groups, with all tables of which groups are shown in its
    FROM.
    """
    grouped = {name: rule for drawn in policies.values() for name, rule in drawn.grouped.items()}
    tree = sqlglot.parse_one(statement, read="postgres")
    read = [table for table in tree.find_all(exp.Table) if table.name.lower() in grouped]
    if not read:
        return statement
    if not isinstance(tree, exp.Select):
        return None
    joins = [join.this for join in tree.args.get("joins") or ()]
    first = tree.find(exp.From)
    direct = [*joins, *([first.this] if first is not None else [])]
    if not all(any(table is each for each in direct) for table in read):
        return None
    aggregates = any(each.find(exp.AggFunc) for each in tree.expressions)
    if not (tree.args.get("group") or aggregates):
        if not tree.args.get("distinct"):
            return None
        tree = tree.group_by(*(each.copy() for each in tree.expressions))
    for table in read:
        entity, size = grouped[table.name.lower()]
        column = exp.column(exp.to_identifier(entity, quoted=True), table=table.alias_or_name)
        counted = exp.Count(this=exp.Distinct(expressions=[column]))
        tree = tree.having(exp.GTE(this=counted, expression=exp.Literal.number(size)))
    return tree.sql(dialect="postgres")


def _few(random: Random) -> int:
    return random.choice([0, 1, 1, 2, 4])


def _rule(
    random: Random, columns: Sequence[Column], others: Sequence[str], *, disclosing: bool
) -> Rule:
    column = random.choice(columns) if columns and random.random() < 0.4 else None
    owners = ("*",) if not others or random.random() < 0.6 else (random.choice(others),)
    more: dict[str, Any] = {}
    if random.random() < 0.3:
        more["max_keys"] = random.choice([2, 10, 100])
    if random.random() < 0.15:
        more["purpose"] = [random.choice(PURPOSES)]
    if random.random() < 0.1:
        more["expires"] = random.choice([ENDED, "2999-12-31"])
    if disclosing and random.random() < 0.15:
        more["min_keys"] = min(random.choice([2, 5]), more.get("max_keys", 5))
    if disclosing and random.random() < 0.05:
        more["form"] = "hmac"
    return Rule(column, owners, more)
