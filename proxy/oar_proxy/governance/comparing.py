"""``oar policy diff``: what two versions of the files decide otherwise, also of past keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
from oar_adapters.interface import Column, Table
from oar_policies.decide import column_visible
from oar_policies.model import Policy, Subject, default_policy
from oar_policies.names import split_name, write_name
from oar_policies.parse import PolicyError, load_policy

from oar_proxy.chain import Entry
from oar_proxy.commandline import counted
from oar_proxy.decision import Decisions, EdgeVerdict, KeyEdge, KeyOrigin
from oar_proxy.gate import Gate, utc_today
from oar_proxy.governance.dryrun import Owners, open_owners
from oar_proxy.hub.access import admin_pool, join_hub
from oar_proxy.inspection import configured_policies
from oar_proxy.ledger import Ledger
from oar_proxy.predicate import relayable
from oar_proxy.settings import ConfigurationError, Settings, load

HUB: Final = "hub"
"""What stands for the ledger in the hub, in the place of a file."""

_DISCLOSED: Final = """
SELECT a.principal, a.purpose, a.roles, d.at, d.from_owner, d.from_column, d.to_owner, d.to_column,
       d.keys
FROM oar.disclosures AS d JOIN oar.asks AS a USING (ask)
"""

Policies = Mapping[str, Policy]


@dataclass(frozen=True, slots=True)
class Disclosed:
    """Keys that left, as the ledger has it.

    ``roles`` None: those of who asked are not on it, as they were not at first, or the ask is gone.
    """

    principal: str
    purpose: str | None
    roles: Sequence[str] | None
    at: datetime
    from_owner: str
    from_column: str
    to_owner: str
    to_column: str
    keys: int


async def compare(
    config: Path, catalog: Path | None, versions: tuple[Path, Path], ledgers: Sequence[str]
) -> dict[str, Any]:
    """Compare two versions, as JSON's plain values.

    Raises ``ConfigurationError``, ``OwnerError`` and ``HubError``.
    """
    settings = load(config)
    before, after = (_version(settings, path) for path in versions)
    async with open_owners(settings, catalog) as owners:
        comparison = _Comparison(settings, owners, before, after)
        told: dict[str, Any] = {
            "columns": list(comparison.columns()),
            "rules": list(comparison.rules()),
            "edges": list(comparison.edges()),
        }
        if ledgers:
            disclosed = [each for ledger in ledgers for each in await _read(settings, ledger)]
            told["replayed"] = len(disclosed)
            told["refused_now"] = list(comparison.replay(disclosed))
    return told


def differs(told: Mapping[str, Any]) -> bool:
    """Tell whether anything is decided otherwise."""
    return any(told.get(name) for name in ("columns", "rules", "edges", "refused_now"))


def _version(settings: Settings, path: Path) -> Policies:
    """Read a directory of files named as the configured ones, or one file of that name."""
    named = {name: owner.policy for name, owner in settings.owners.items() if owner.policy}
    try:
        if path.is_dir():
            files = {owner: path / file.name for owner, file in named.items()}
            found = {o: load_policy(file, o) for o, file in files.items() if file.exists()}
            if not found and any(path.glob("*.y*ml")):
                raise ConfigurationError(
                    f"no file in {path} is a configured owner's, by its name",
                    hint=f"they are called {', '.join(file.name for file in files.values())}",
                )
            return {owner: found.get(owner, default_policy(owner)) for owner in settings.owners}
        of = [owner for owner, file in named.items() if path.name in (file.name, f"{owner}.yaml")]
        if not path.exists():
            raise ConfigurationError(f"{path}: there is no such file or directory")
        if len(of) != 1:
            raise ConfigurationError(f"{path} is no configured owner's file, by its name")
        return {**configured_policies(settings), of[0]: load_policy(path, of[0])}
    except PolicyError as error:
        raise ConfigurationError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Comparison:
    settings: Settings
    owners: Owners
    before: Policies
    after: Policies

    def columns(self) -> Iterator[dict[str, Any]]:
        """Yield the columns that one version publishes and the other hides."""
        for owner, table, column in self._everything():
            seen = [
                column_visible(policies[owner], table.name, column.name)
                for policies in (self.before, self.after)
            ]
            if seen[0] != seen[1]:
                name = write_name(owner, table.name, column.name)
                yield {"column": name, "now": "published" if seen[1] else "hidden"}

    def rules(self) -> Iterator[dict[str, Any]]:
        """Yield the limits, subjects and rules of tables that differ."""
        for owner in self.before:
            old, new = (_settled(policies[owner]) for policies in (self.before, self.after))
            for name in sorted(old.keys() | new.keys()):
                if old.get(name) != new.get(name):
                    yield {"rule": f"{owner}/{name}", "old": old.get(name), "new": new.get(name)}

    def edges(self) -> Iterator[dict[str, Any]]:
        """Yield the edges between key-like columns that differ: for whom, from which day on."""
        purposes, days = self._purposes(), self._days()
        deciding = {
            (purpose, day): tuple(
                self._decisions(version, purpose, day) for version in (self.before, self.after)
            )
            for purpose in purposes
            for day in days
        }
        for edge, (sender, receiver) in self._key_like():
            outcomes = {
                condition: (self._told(old, edge), self._told(new, edge))
                for condition, (old, new) in deciding.items()
            }
            for purpose, day, (was, now) in _gathered(outcomes, purposes, days):
                told = {"from": sender, "to": receiver, "old": was, "new": now}
                yield {**told, "purpose": purpose, "day": day}

    def replay(self, disclosed: Sequence[Disclosed]) -> Iterator[dict[str, Any]]:
        """Yield the recorded disclosures that the new version would refuse, counted."""
        refused: Counter[tuple[str, str, str, str]] = Counter()
        keys: Counter[tuple[str, str, str, str]] = Counter()
        for each in disclosed:
            reason = self._refused(each)
            if reason is not None:
                group = (each.from_column, each.to_owner, each.to_column, reason)
                refused[group] += 1
                keys[group] += each.keys
        for group, count in sorted(refused.items()):
            column, owner, compared, reason = group
            told = {"from": column, "to": f"{owner}.{compared}", "reason": reason}
            yield {**told, "disclosures": count, "keys": keys[group]}

    def _refused(self, each: Disclosed) -> str | None:
        if not {each.from_owner, each.to_owner} <= self.after.keys():
            return "its owner is configured no more"
        schema, table, column = split_name(each.from_column)
        origin = KeyOrigin(each.from_owner, schema, table, column)
        edge = KeyEdge((origin,), each.to_owner, *split_name(each.to_column))
        roles = frozenset(each.roles or ())
        subject = Subject(each.principal, roles | {each.principal}, each.purpose)
        gate = Gate(
            self.after, Ledger(""), self.settings.limits, today=each.at.astimezone(UTC).date
        )
        decisions = gate.decisions(subject)
        if each.roles is not None:
            for owner in (each.from_owner, each.to_owner):
                asks = decisions.asks(owner)
                if not asks.permit:
                    return f"rule {asks.rule}"
        verdict = decisions.edge(edge)
        if not verdict.permitted:
            return f"rule {verdict.rule}"
        if each.keys > verdict.max_keys:
            return f"limit {verdict.limit_rule}"
        return f"limit {verdict.least_rule}" if 0 < each.keys < verdict.min_keys else None

    def _decisions(self, policies: Policies, purpose: str | None, day: date) -> Decisions:
        gate = Gate(policies, Ledger(""), self.settings.limits, today=lambda: day)
        return gate.decisions(Subject("anyone", frozenset({"anyone"}), purpose))

    def _told(self, decisions: Decisions, edge: KeyEdge) -> str:
        receiver = decisions.policy(edge.receiver)
        if not column_visible(receiver, edge.receiver_table, edge.receiver_column):
            return "denied"
        return _spelled(decisions.edge(edge))

    def _purposes(self) -> list[str | None]:
        grants = [g for v in (self.before, self.after) for p in v.values() for g in _grants(p)]
        return [None, *sorted({purpose for g in grants for purpose in g.purposes or ()})]

    def _days(self) -> list[date]:
        """Return today, and the first day after each that a grant ends on."""
        grants = [g for v in (self.before, self.after) for p in v.values() for g in _grants(p)]
        ends = {g.expires + timedelta(days=1) for g in grants if g.expires and g.expires < date.max}
        return [utc_today(), *sorted(day for day in ends if day > utc_today())]

    def _everything(self) -> Iterator[tuple[str, Table, Column]]:
        for owner, (_, content) in self.owners.catalog.items():
            for table in content.tables:
                for column in table.columns:
                    yield owner, table, column

    def _key_like(self) -> Iterator[tuple[KeyEdge, tuple[str, str]]]:
        """Yield the edges of columns of one name, or of which one is of a key."""
        columns = list(self._everything())
        for sender, source, sent in columns:
            for receiver, target, compared in columns:
                alike = (
                    sent.name == compared.name or _keyed(source, sent) or _keyed(target, compared)
                )
                if sender == receiver or not alike or not relayable(sent.type, compared.type):
                    continue
                schema, _ = self.owners.catalog[sender]
                origin = KeyOrigin(sender, schema, source.name, sent.name)
                names = (
                    write_name(sender, source.name, sent.name),
                    write_name(receiver, target.name, compared.name),
                )
                yield KeyEdge((origin,), receiver, target.name, compared.name), names


_Outcome = tuple[str, str]


def _gathered(
    outcomes: Mapping[tuple[str | None, date], _Outcome],
    purposes: Sequence[str | None],
    days: Sequence[date],
) -> Iterator[tuple[str | None, str, _Outcome]]:
    """Yield the outcomes that differ, once for all purposes or days where they are the same."""
    same = len(set(outcomes.values())) == 1
    for purpose in purposes[:1] if same else purposes:
        alike = len({outcomes[purpose, day] for day in days}) == 1
        for day in days[:1] if alike else days:
            outcome = outcomes[purpose, day]
            if outcome[0] != outcome[1]:
                yield (
                    "any" if same else purpose,
                    "any" if alike else day.isoformat(),
                    outcome,
                )


def _grants(policy: Policy) -> Sequence[Any]:
    return (*policy.key_disclosure, *(policy.accept_keys or ()))


def _keyed(table: Table, column: Column) -> bool:
    return any(column.name in key for key in (table.primary_key, *table.unique_keys))


def _spelled(verdict: EdgeVerdict) -> str:
    if not verdict.permitted:
        return "denied"
    least = f", at least {verdict.min_keys}" if verdict.min_keys else ""
    form = "" if verdict.form == "plain" else f", as {verdict.form}"
    return f"at most {verdict.max_keys}{least}{form}"


def _settled(policy: Policy) -> dict[str, Any]:
    """Return what a policy says besides edges and what is hidden, by the name of its field."""
    told: dict[str, Any] = {f"limits.{n}": v for n, v in asdict(policy.limits).items()}
    told["expires"] = None if policy.expires is None else policy.expires.day.isoformat()
    told["subjects"] = None if policy.subjects is None else sorted(policy.subjects)
    told["model.rows"] = "allow" if policy.rows_to_model else "deny"
    for table, rule in policy.tables.items():
        for name in rule.__slots__:
            if name not in ("mark", "deny", "deny_columns"):
                value = _without_marks(getattr(rule, name))
                if value:
                    told[f"tables.{write_name(table)}.{name}"] = value
    return told


def _without_marks(value: Any) -> Any:
    """Return a rule as JSON's plain values, wherever it stands in its file."""
    if isinstance(value, Mapping):
        return {name: _without_marks(inner) for name, inner in value.items()}
    if hasattr(value, "__slots__") and hasattr(value, "__dataclass_fields__"):
        fields = value.__dataclass_fields__
        if fields.keys() == {"line", "column"}:
            return True
        return {n: _without_marks(getattr(value, n)) for n in fields if n != "mark"}
    if isinstance(value, frozenset | tuple | list):
        return sorted(map(str, value)) if isinstance(value, frozenset) else list(value)
    return value


# --- the ledger -----------------------------------------------------------------------------


async def _read(settings: Settings, ledger: str) -> list[Disclosed]:
    """Read disclosures from the hub, or from a file of entries."""
    if ledger != HUB:
        return list(_of_file(Path(ledger)))
    async with (
        join_hub(settings.hub) as address,
        admin_pool(address, size=1) as pool,
        pool.connection() as connection,
    ):
        try:
            cursor = await connection.execute(_DISCLOSED)
        except psycopg.errors.UndefinedTable:
            raise ConfigurationError("the hub has no ledger: no proxy has used it yet") from None
        return [Disclosed(*row) for row in await cursor.fetchall()]


def _of_file(path: Path) -> Iterator[Disclosed]:
    asks: dict[str, tuple[str, str | None, list[str] | None]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        bodies = [json.loads(Entry.of_line(line).body) for line in lines]
        for body in bodies:
            if body["kind"] == "ask":
                asks[body["ask"]] = (body["principal"], body.get("purpose"), body.get("roles"))
        for body in bodies:
            for each in body.get("disclosures", ()):
                # An ask whose entry was pruned or lies in another file is nobody's.
                asked = asks.get(body["ask"], ("", None, None))
                at = datetime.fromisoformat(body["at"])
                names = ("from_owner", "from_column", "to_owner", "to_column", "keys")
                yield Disclosed(*asked, at, *(each[name] for name in names))
    except OSError as error:
        raise ConfigurationError(f"ledger file {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"ledger file {path}: not the lines of a ledger") from None


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Write a comparison for people."""
    for it in told["columns"]:
        yield f"{it['column']}: {it['now']} now"
    for it in told["rules"]:
        old, new = (json.dumps(it[name], ensure_ascii=False) for name in ("old", "new"))
        yield f"{it['rule']}: {old} -> {new}"
    for it in told["edges"]:
        purpose = "" if it["purpose"] == "any" else f" for purpose {it['purpose'] or 'none'}"
        day = "" if it["day"] == "any" else f" on {it['day']}"
        yield f"keys {it['from']} -> {it['to']}{purpose}{day}: {it['old']} -> {it['new']}"
    if "replayed" in told:
        yield f"{counted(told['replayed'], 'disclosure')} replayed"
        for it in told["refused_now"]:
            yield (
                f"refused now: {it['disclosures']} disclosures of {it['keys']} keys"
                f" {it['from']} -> {it['to']}: {it['reason']}"
            )
    if not differs(told):
        yield "nothing is decided otherwise"
