"""Worlds whose owners hide, filter and mask: what they publish, and twins with other secrets.

Who may see what is decided here a second time, from the drawn rules alone. A twin differs from its
world in what nobody may learn: rows that a filter leaves out, hidden tables and columns, values
behind masks, and values of columns that may not be put out. Of the latter the order stays, and
where they stand between the constants that statements have, since those may be compared with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any, Final

from oar_policies.names import write_name

from oar_bench.fuzz.world import POOLS, Column, Row, Table, World, quote, random_world

_FILTERED: Final = frozenset(
    {
        *("bigint", "integer", "smallint", "numeric", "numeric(12,2)", "numeric(6,3)"),
        *("double precision", "text", "character varying", "character varying(20)"),
        *("date", "boolean", "uuid", "timestamp without time zone"),
    }
)
"""Types of columns that rows are filtered by."""

_SILENT: Final = frozenset({"bigint", "integer", "numeric", "text", "character varying", "date"})
"""Types of columns that may not be put out: there is room for values beyond all constants."""

_MASKS: Final = ("int", "num", "date")
"""Families whose values a mask may be; of all others it is NULL."""

_AS_TEXT: Final = ("text", "uuid", "stamp")


@dataclass(frozen=True, slots=True)
class Condition:
    """A row filter: a column compared with constants."""

    column: Column
    operator: str
    constants: tuple[str, ...]

    @property
    def sql(self) -> str:
        """The policy's text."""
        name = '"' + self.column.name.replace('"', '""') + '"'
        one, other = (quote(constant) for constant in self.constants)
        return {
            "IS NULL": f"{name} IS NULL",
            "IS NOT NULL": f"{name} IS NOT NULL",
            "IN": f"{name} IN ({one}, {other})",
            "NOT IN": f"{name} NOT IN ({one}, {other})",
            "<> OR NULL": f"{name} <> {one} OR {name} IS NULL",
            "NOT <": f"NOT ({name} < {one})",
        }.get(self.operator, f"{name} {self.operator} {one}")

    def holds(self, cell: str | None) -> bool:
        """Tell whether a row with this value is there."""
        if cell is None:
            return self.operator in ("IS NULL", "<> OR NULL")
        value, one, other = (_value(self.column.family, each) for each in (cell, *self.constants))
        holds: dict[str, bool] = {
            "IS NULL": False,
            "IS NOT NULL": True,
            "IN": value in (one, other),
            "NOT IN": value not in (one, other),
            "<> OR NULL": value != one,
            "NOT <": value >= one,
            "=": value == one,
            "<>": value != one,
            ">=": value >= one,
            "<": value < one,
        }
        return holds[self.operator]


def _value(family: str, text: str) -> Any:
    if family in _AS_TEXT:
        return text.encode()
    if family == "date":
        return date.fromisoformat(text)
    return text == "t" if family == "bool" else Decimal(text)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an owner says of a table. All of a table's owners say the same of its columns."""

    denied: bool = False
    condition: Condition | None = None
    required: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    masks: Mapping[str, str | None] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    unfiltering: tuple[str, ...] = ()

    @property
    def written(self) -> dict[str, Any]:
        """The entry of ``tables``, as YAML's values; empty where there is nothing to say."""
        if self.denied:
            return {"deny": True}
        columns: dict[str, dict[str, Any]] = {
            **{name: {"mask": value} for name, value in self.masks.items()},
            **{name: {"output": False} for name in self.silent},
            **{name: {"output": "aggregate_only", "functions": ["count"]} for name in self.counted},
            **{name: {"filter": False} for name in self.unfiltering},
        }
        entry = {
            "deny_columns": list(map(write_name, self.hidden)),
            "row_filter": self.condition and self.condition.sql,
            "require_filter": list(map(write_name, self.required)),
            "columns": {write_name(name): rule for name, rule in columns.items()},
        }
        return {name: value for name, value in entry.items() if value}


Rules = Mapping[tuple[str, str], Rule]
"""By table and owner."""


@dataclass(frozen=True, slots=True)
class Governed:
    """A world with policies, what is published of it, and its twin; whether something is masked."""

    world: World
    published: World
    twin: World
    masked: bool

    def told_of_twin(self, text: str) -> str:
        """Write a text about the world as one about its twin."""
        return text.replace(f'"{self.world.name}"', f'"{self.twin.name}"')


def governed_world(random: Random, name: str, kinds: Collection[str]) -> Governed:
    """Draw a world of which something is published."""
    while True:
        world = random_world(random, name, kinds)
        rules = _draw_rules(random, world)
        keys = random.choice([{}, _keys(), _keys(random.choice([3, 1000])), _keys()])
        policies = {owner: _policy(owner, rules, keys) for owner in world.owners}
        world = _with_silent_values(replace(world, policies=policies), rules, twin=False)
        published = _published(world, rules)
        if published.tables:
            other = _with_silent_values(_with_other_secrets(random, world, rules), rules, twin=True)
            masked = any(rule.masks for rule in rules.values())
            return Governed(world, published, _renamed(other, f"{name}_twin"), masked)


def _keys(most: int | None = None) -> dict[str, Any]:
    limit = {} if most is None else {"max_keys": most}
    return {"key_disclosure": [{"column": "*", "to": ["*"], **limit}]}


def _policy(owner: str, rules: Rules, keys: Mapping[str, Any]) -> str:
    tables = {
        write_name(table): rule.written
        for (table, holder), rule in rules.items()
        if holder == owner and rule.written
    }
    return json.dumps({"version": 1, **keys, **({"tables": tables} if tables else {})})


def _draw_rules(random: Random, world: World) -> Rules:
    return {
        (table.name, owner): replace(
            rule,
            denied=random.random() < 0.07,
            condition=_condition(random, table, rule) if random.random() < 0.4 else None,
            required=_required(random, table, rule) if random.random() < 0.02 else (),
        )
        for table in world.tables
        for rule in [_of_columns(random, table)]
        for owner in table.held
    }


def _of_columns(random: Random, table: Table) -> Rule:
    """Draw what is said of a table's columns, of each at most one thing."""
    left = [c for c in table.columns if c.name not in (*table.primary_key, "id")]
    random.shuffle(left)

    def take(often: float, *, quiet: bool = False) -> tuple[Column, ...]:
        able = [c for c in left if c.type in _SILENT and c.tame and not c.folds] if quiet else left
        if len(left) < 2 or not able or random.random() > often:
            return ()
        taken = able[0]
        left.remove(taken)
        return (taken,)

    masked = take(0.3)
    masks = {
        column.name: random.choice(
            [None, random.choice(POOLS[column.family]) if column.family in _MASKS else None]
        )
        for column in masked
    }
    hidden, silent, counted, unfiltering = (
        tuple(column.name for column in taken)
        for taken in (take(0.2), take(0.18, quiet=True), take(0.15, quiet=True), take(0.04))
    )
    return Rule(hidden=hidden, masks=masks, silent=silent, counted=counted, unfiltering=unfiltering)


def _open(table: Table, rule: Rule) -> list[Column]:
    """Columns that rows may be filtered by."""
    closed = (*rule.hidden, *rule.silent, *rule.counted)
    return [
        column
        for column in table.columns
        if column.name not in closed
        and column.type in _FILTERED
        and (column.tame or column.family == "int")
    ]


def _condition(random: Random, table: Table, rule: Rule) -> Condition | None:
    able = _open(table, rule)
    if not able:
        return None
    column = random.choice(able)
    if column.family == "bool":
        return Condition(column, random.choice(["=", "<>"]), ("t", "t"))
    operators = ["=", "<>", "IN", "NOT IN"]
    if column.family != "uuid":
        operators += [">=", "<", "NOT <"]
    if not column.not_null:  # else it is always or never so
        operators += ["IS NULL", "IS NOT NULL", "<> OR NULL"]
    pool = POOLS[column.family]
    return Condition(column, random.choice(operators), (random.choice(pool), random.choice(pool)))


def _required(random: Random, table: Table, rule: Rule) -> tuple[str, ...]:
    able = _open(table, rule)
    return (random.choice(able).name,) if able else ()


# --- rows ---------------------------------------------------------------------------------------


def _published(world: World, rules: Rules) -> World:
    """Return what is left of a world for everybody."""
    tables = []
    for table in world.tables:
        said = {owner: rules[table.name, owner] for owner in table.held}
        seen = {owner: rule for owner, rule in said.items() if not rule.denied}
        if not seen:
            continue
        one = next(iter(seen.values()))
        columns = [column for column in table.columns if column.name not in one.hidden]
        held = {
            owner: tuple(
                tuple(one.masks.get(c.name, row[table.columns.index(c)]) for c in columns)
                for row in table.held[owner]
                if _is_there(table, rule, row)
            )
            for owner, rule in seen.items()
        }
        kept = tuple(replace(c, not_null=c.not_null and c.name not in one.masks) for c in columns)
        tables.append(replace(table, columns=kept, held=held))
    return replace(world, tables=tuple(tables))


def _is_there(table: Table, rule: Rule, row: Row) -> bool:
    condition = rule.condition
    return condition is None or condition.holds(row[table.columns.index(condition.column)])


def _with_silent_values(world: World, rules: Rules, *, twin: bool) -> World:
    """Give columns that may not be put out values beyond all constants."""

    def row_of(table: Table, rule: Rule, number: int, row: Row) -> Row:
        quiet = (*rule.silent, *rule.counted)
        return tuple(
            _silent_value(column.family, number * 7 % 11, twin=twin)
            if column.name in quiet and cell is not None
            else cell
            for column, cell in zip(table.columns, row, strict=True)
        )

    return _with_rows(world, rules, row_of)


def _silent_value(family: str, number: int, *, twin: bool) -> str:
    number = 3 * number + 500 if twin else number
    if family == "date":
        return f"2{900 + number // 300}-{1 + number % 300 // 25:02}-{1 + number % 25:02}"
    return f"zzsecret{number:04}" if family == "text" else str(7_000_000 + number)


def _with_other_secrets(random: Random, world: World, rules: Rules) -> World:
    """Change what nobody may see."""

    def row_of(table: Table, rule: Rule, _: int, row: Row) -> Row:
        gone = rule.denied or not _is_there(table, rule, row)
        kept = {*table.primary_key, "id"}
        if rule.condition is not None:
            kept.add(rule.condition.column.name)
        return tuple(
            _other(random, column, cell)
            if column.name not in kept and (gone or column.name in (*rule.hidden, *rule.masks))
            else cell
            for column, cell in zip(table.columns, row, strict=True)
        )

    changed = _with_rows(world, rules, row_of)
    return replace(
        changed,
        tables=tuple(
            replace(
                table,
                held={
                    owner: _fewer(random, table, rules[table.name, owner], rows)
                    for owner, rows in table.held.items()
                },
            )
            for table in changed.tables
        ),
    )


def _fewer(random: Random, table: Table, rule: Rule, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Leave out some rows that a filter leaves out, or all of a hidden table."""
    if rule.denied:
        return ()
    return tuple(row for row in rows if _is_there(table, rule, row) or random.random() < 0.5)


def _other(random: Random, column: Column, cell: str | None) -> str | None:
    if column.type not in _FILTERED:
        return cell
    if not column.not_null and random.random() < 0.2:
        return None
    return random.choice(POOLS[column.family])


def _with_rows(world: World, rules: Rules, row_of: Callable[[Table, Rule, int, Row], Row]) -> World:
    return replace(
        world,
        tables=tuple(
            replace(
                table,
                held={
                    owner: tuple(
                        row_of(table, rules[table.name, owner], number, row)
                        for number, row in enumerate(rows)
                    )
                    for owner, rows in table.held.items()
                },
            )
            for table in world.tables
        ),
    )


def _renamed(world: World, name: str) -> World:
    """Call a world and its owners otherwise: both are served by one proxy."""
    owners = {owner: owner.replace(world.name, name) for owner in world.owners}
    return replace(
        world,
        name=name,
        owners={owners[owner]: kind for owner, kind in world.owners.items()},
        tables=tuple(
            replace(table, held={owners[owner]: rows for owner, rows in table.held.items()})
            for table in world.tables
        ),
        policies={owners[owner]: text for owner, text in world.policies.items()},
    )
