"""What a plan, and a run of it, look like to a person (EXPLAIN, ``oar_explain``) or a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oar_adapters.interface import Adapter

from oar_proxy.decision import KeyEdge
from oar_proxy.drafters import Draft
from oar_proxy.errors import InsufficientPrivilege
from oar_proxy.estimate import Size
from oar_proxy.explainforms import Options
from oar_proxy.grouping import Withheld
from oar_proxy.hub import planreading
from oar_proxy.order import Alternative
from oar_proxy.plan import LocalSemiJoin, Plan, Step, keyless_scan
from oar_proxy.rows import StepReport
from oar_proxy.sql.text import quote_literal

_STARTUP_COST: Final = 100.0
"""Cost of a round trip to owners: postgres_fdw's default for one."""

_ROW_COST: Final = 0.01
"""Cost of a row that an owner sends, and of one of the answer: PostgreSQL's ``cpu_tuple_cost``."""


HUB_ALONE: Final = (
    "Hub Query",
    "  no published table is read: the hub answers alone",
)
"""The plan of what is not the proxy's."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is told beside the plan, and what of it is left out (see ``options``).

    ``reports`` are of a run; ``planning`` and ``execution`` are seconds.
    """

    options: Options = field(default_factory=Options)
    size: Size | None = None
    reports: Sequence[StepReport] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    planning: float = 0.0
    execution: float | None = None


def tells_of_groups(withheld: Withheld) -> InsufficientPrivilege:
    """Return the error of an EXPLAIN ANALYZE that would count rows behind groups."""
    return InsufficientPrivilege(
        "EXPLAIN ANALYZE would tell numbers of rows and keys, also of groups that are not shown",
        detail=withheld.by,
        hint="leave out ANALYZE",
    )


def lines(plan: Plan, adapters: Mapping[str, Adapter], told: Told = Told()) -> list[str]:
    """Describe a plan for a person."""
    described = _described(plan, adapters, told)
    return [*_format(described["Plan"]), *_ending(described)]


def explained(plan: Plan, adapters: Mapping[str, Adapter], told: Told) -> dict[str, Any]:
    """Describe a plan for a program, as EXPLAIN does one statement in its other forms.

    Besides, what owners are asked for as the nodes of a plan of PostgreSQL's: tools draw those.
    """
    described = _described(plan, adapters, told)
    described["Plan"]["Plans"] = _nodes(plan, told)
    return described


def _described(plan: Plan, adapters: Mapping[str, Adapter], told: Told) -> dict[str, Any]:
    described: dict[str, Any] = {"Plan": document(plan, adapters, told)}
    if told.settings:
        described["Settings"] = dict(told.settings)
    if told.options.summary:
        described["Planning Time"] = _milliseconds(told.planning)
        if told.execution is not None:
            described["Execution Time"] = _milliseconds(told.execution)
    return described


def _ending(described: Mapping[str, Any]) -> Iterator[str]:
    if "Settings" in described:
        listed = (f"{name} = {quote_literal(v)}" for name, v in described["Settings"].items())
        yield f"Settings: {', '.join(listed)}"
    for name in ("Planning Time", "Execution Time"):
        if name in described:
            yield f"{name}: {described[name]:.3f} ms"


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _costs(plan: Plan, size: Size) -> dict[str, float]:
    """Cost and size as EXPLAIN has them of a node."""
    moved = sum(step.estimate for step in plan.steps) if plan.whole is None else size.rows
    waves = len(plan.alternatives[0].waves) if plan.alternatives else int(bool(plan.owners))
    startup = _STARTUP_COST * waves
    return {
        "Startup Cost": round(startup, 2),
        "Total Cost": round(startup + _ROW_COST * (moved + size.rows), 2),
        "Plan Rows": round(size.rows),
        "Plan Width": size.width,
    }


def _nodes(plan: Plan, told: Told) -> list[dict[str, Any]]:
    reports = told.reports or ()
    if plan.whole is not None:
        tables = plan.statement.tables
        read = {"Relation Name": ", ".join(f"{table.schema}.{table.name}" for table in tables)}
        return [_node(read, told, next(iter(reports), None))]
    by_step = {report.step.number: report for report in reports if report.step is not None}
    nodes = []
    for step in plan.steps:
        occurrence = plan.statement.occurrences[step.occurrence - 1]
        read = {
            "Schema": occurrence.table.schema,
            "Relation Name": occurrence.table.name,
            "Alias": occurrence.reference,
        }
        nodes.append(_node(read, told, by_step.get(step.number), step.estimate))
    return nodes


def _node(
    read: Mapping[str, str], told: Told, report: StepReport | None, rows: float | None = None
) -> dict[str, Any]:
    node: dict[str, Any] = {"Node Type": "Foreign Scan", "Parent Relationship": "Outer", **read}
    if told.options.costs and rows is not None:
        node["Plan Rows"] = round(rows)
    if report is not None:
        if told.options.timing:
            node["Actual Startup Time"] = 0.0
            node["Actual Total Time"] = _milliseconds(report.seconds)
        node["Actual Rows"] = report.rows
        node["Actual Loops"] = 1
    return node


def document(plan: Plan, adapters: Mapping[str, Adapter], told: Told = Told()) -> dict[str, Any]:
    """The plan as plain values; keys follow EXPLAIN's spelling."""
    reports = told.reports or ()
    described: dict[str, Any] = {"Node Type": "Federated Query"}
    if told.options.costs and told.size is not None:
        described |= _costs(plan, told.size)
    drafts = plan.statement.drafts
    if drafts:
        described["Drafts"] = [_draft(draft) for draft in drafts]
    described["Owner Cover"] = plan.cover.kappa
    described["Owners"] = list(plan.cover.owners)
    described["Route"] = plan.route.kind.value
    described["Reason"] = plan.route.reason
    if plan.whole is not None and plan.whole_query is not None:
        step: dict[str, Any] = {
            "Owner": plan.whole.owner,
            "Reads": "the whole statement",
            "SQL": adapters[plan.whole.owner].render(plan.whole_query),
        }
        _add_report(step, told, next(iter(reports), None))
        described["Steps"] = [step]
        described["Hub"] = "passes the owner's answer on"
        return described
    by_step = {report.step.number: report for report in reports if report.step is not None}
    if len(plan.alternatives) > 1:
        described["Orders"] = [_order(plan, each, told) for each in plan.alternatives]
    described["Steps"] = [
        _step(plan, step, adapters, told, by_step.get(step.number)) for step in plan.steps
    ]
    if plan.unread:
        described["Not Read"] = [_published(plan, number) for number in plan.unread]
    if plan.withheld is not None:
        described["Groups Shown"] = [f"with at least {plan.withheld.least} ({plan.withheld.by})"]
    if plan.notes:
        described["Notes"] = list(plan.notes)
    described["Hub"] = "evaluates the statement over these rows"
    return described


def _draft(draft: Draft) -> dict[str, Any]:
    described: dict[str, Any] = {"Drafter": draft.drafter, "SQL": draft.sql}
    if draft.review is not None:
        review = draft.review
        described["Verified Answer"] = review.name
        described["Reviewed"] = f"by {review.reviewer} on {review.reviewed}"
    return described


def _step(
    plan: Plan,
    step: Step,
    adapters: Mapping[str, Adapter],
    told: Told,
    report: StepReport | None,
) -> dict[str, Any]:
    step = step if report is None or report.step is None else report.step
    described: dict[str, Any] = {
        "Owner": step.owner,
        "Reads": _reads(plan, step),
        "SQL": report.sql if report else adapters[step.owner].render(keyless_scan(step)),
    }
    if told.options.costs:
        described["Estimated Rows"] = round(step.estimate)
    if step.rules:
        described["Rules"] = list(step.rules)
    if step.all_edges:
        described["Keys"] = [
            {
                "From": _origins(*(column.edge for column in used.columns)),
                "To": _receiver(*(column.edge for column in used.columns)),
                "Rule": ", ".join(dict.fromkeys(each.verdict.rule for each in used.columns)),
                "Form": ", ".join(dict.fromkeys(each.verdict.form for each in used.columns)),
                "At Most": used.limit.max_keys,
            }
            | (
                {"Estimated Keys": round(used.keys) * len(used.columns)}
                if told.options.costs
                else {}
            )
            for used in step.all_edges
        ]
    semi_joins = [_semi_join(plan, step, *each) for each in _semi_joins(step)]
    if semi_joins:
        described["Semi-Joins"] = semi_joins
    if step.merging:
        described["Only Filtered By"] = [_published(plan, leaf.number) for leaf, _ in step.merging]
    if step.looked_up:
        described["Looked Up Among"] = [_published(plan, leaf.number) for leaf in step.looked_up]
    if step.denied:
        described["Denied"] = [
            {"From": _origins(edge), "To": _receiver(edge), "Rule": verdict.rule}
            for edge, verdict in step.denied
        ]
    if step.kept:
        described["Kept For The Hub"] = [_plain(text, step) for text in step.kept]
    if step.unreduced:
        described["Not Reduced"] = list(step.unreduced)
    _add_report(described, told, report)
    return described


def _semi_joins(reduced: Step | LocalSemiJoin) -> Iterator[tuple[str, LocalSemiJoin]]:
    """Yield what reduces rows inside their owner, with the table that it reduces."""
    for semi_join in reduced.semi_joins:
        yield reduced.scan.table.name, semi_join
        yield from _semi_joins(semi_join)


def _semi_join(plan: Plan, step: Step, table: str, semi_join: LocalSemiJoin) -> dict[str, str]:
    source = plan.statement.occurrences[semi_join.source.occurrence - 1].table
    pairs = ((semi_join.column, semi_join.source.column), *semi_join.also)
    return {
        "From": f"{step.owner}: "
        + _row([f"{source.schema}.{source.name}.{name}" for _, name in pairs]),
        "To": f"{step.owner}: " + _row([f"{table}.{column}" for column, _ in pairs]),
    }


def _reads(plan: Plan, step: Step) -> str:
    name, scan = _published(plan, step.occurrence), step.scan
    if step.stage == "keys":
        return f"keys of {name}"
    if not scan.counted:
        return name
    by = ", ".join(column.name for column in scan.columns)
    what = "partial aggregates" if scan.partials else "counts"
    return f"{what} of {name}" + (f" by {by}" if by else "")


def _row(columns: Sequence[str]) -> str:
    """Write columns; those that are compared at once stand in brackets."""
    return columns[0] if len(columns) == 1 else f"({', '.join(columns)})"


def _add_report(described: dict[str, Any], told: Told, report: StepReport | None) -> None:
    if report is None:
        return
    described["Actual Rows"] = report.rows
    described["Actual Bytes"] = report.size
    carried = [count for count in report.keys if count is not None]
    if carried:
        described["Actual Keys"] = sum(carried)
    for key, count in zip(described.get("Keys", ()), report.keys, strict=True):
        if count is not None:
            key["Actual Keys"] = count
    if told.options.timing:
        described["Actual Milliseconds"] = _milliseconds(report.seconds)
    if report.skipped:
        described["Skipped"] = "no key was left"
    if report.notes:
        described["Notes"] = list(report.notes)


def _order(plan: Plan, alternative: Alternative, told: Told) -> dict[str, Any]:
    """Describe one order; each of its waves is a list of what is asked for at the same time."""
    described: dict[str, Any] = {
        "Asks": [[_asked(plan, number) for number in wave] for wave in alternative.waves]
    }
    if told.options.costs:
        described["Keys"] = round(alternative.keys)
        described["Rows"] = round(alternative.rows)
    described["Round Trips"] = len(alternative.waves)
    if alternative.reason:
        described["Rejected"] = alternative.reason
    return described


def _asked(plan: Plan, number: int) -> str:
    owners = plan.statement.occurrences[number - 1].table.owners
    return f"{' and '.join(owners)} for {_published(plan, number)}"


def _published(plan: Plan, number: int) -> str:
    occurrence = plan.statement.occurrences[number - 1]
    if occurrence.table.holders[0].table.derived is not None:
        return occurrence.table.name
    name = f"{occurrence.table.schema}.{occurrence.table.name}"
    return (
        name if occurrence.reference == occurrence.table.name else f"{name} {occurrence.reference}"
    )


def _plain(text: str, step: Step) -> str:
    return text.replace(f'"{planreading.marker(step.occurrence)}".', "")


def _origins(*edges: KeyEdge) -> str:
    """Write where keys come from, which are of one edge or of several columns of the same rows."""
    held = zip(*(edge.origins for edge in edges), strict=True)
    return ", ".join(
        f"{row[0].owner}: " + _row([f"{o.schema}.{o.table}.{o.column}" for o in row])
        for row in held
    )


def _receiver(*edges: KeyEdge) -> str:
    columns = [f"{edge.receiver_table}.{edge.receiver_column}" for edge in edges]
    return f"{edges[0].receiver}: {_row(columns)}"


def _drafted(draft: Mapping[str, str]) -> str:
    if "Verified Answer" in draft:
        return f"Verified Answer ({draft['Verified Answer']}, reviewed {draft['Reviewed']})"
    return f"Draft ({draft['Drafter']})"


def _format(described: Mapping[str, Any]) -> list[str]:
    costs = "  (cost={Startup Cost:.2f}..{Total Cost:.2f} rows={Plan Rows} width={Plan Width})"
    out = ["Federated Query" + (costs.format_map(described) if "Plan Rows" in described else "")]
    for draft in described.get("Drafts", ()):
        out.append(f"  {_drafted(draft)}: {_one_line(draft['SQL'])}")
    owners = ", ".join(described["Owners"])
    out.append(f"  Owner Cover: {described['Owner Cover']} ({owners})")
    out.append(f"  Route: {described['Route']}: {described['Reason']}")
    for order in described.get("Orders", ()):
        asked = "; then ".join(", ".join(wave) for wave in order["Asks"])
        told = f"round trips={order['Round Trips']}"
        if "Rows" in order:
            told = f"keys={order['Keys']} rows={order['Rows']} {told}"
        if "Rejected" in order:
            out.append(f"  Rejected Order: {asked} ({told}): {order['Rejected']}")
        else:
            out.append(f"  Chosen Order: {asked} ({told})")
    for number, step in enumerate(described["Steps"], start=1):
        out.extend(_format_step(number, step))
    out.extend(f"  Not read: {name}" for name in described.get("Not Read", ()))
    out.extend(f"  Groups shown: {text}" for text in described.get("Groups Shown", ()))
    out.extend(f"  Note: {note}" for note in described.get("Notes", ()))
    out.append(f"  Hub: {described['Hub']}")
    return out


def _format_step(number: int, step: Mapping[str, Any]) -> Iterator[str]:
    yield f"  Step {number}: owner {step['Owner']} reads {step['Reads']}"
    yield f"    SQL: {_one_line(step['SQL'])}"
    yield from (f"    Rule: {rule}" for rule in step.get("Rules", ()))
    for key in step.get("Keys", ()):
        rule = f"rule {key['Rule']}, at most {key['At Most']}"
        yield f"    Keys: {key['From']} -> {key['To']} ({rule})"
    for edge in step.get("Semi-Joins", ()):
        yield f"    Semi-join inside the owner: {edge['From']} -> {edge['To']}"
    for name in step.get("Only Filtered By", ()):
        yield f"    Only filtered by {name}"
    for name in step.get("Looked Up Among", ()):
        yield f"    Looked up among keys of {name}, where rows are many"
    for key in step.get("Denied", ()):
        yield f"    Denied: {key['From']} -> {key['To']} (rule {key['Rule']})"
    yield from (f"    Not reduced on {reason}" for reason in step.get("Not Reduced", ()))
    yield from (f"    Kept for the hub: {text}" for text in step.get("Kept For The Hub", ()))
    if "Estimated Rows" in step:
        keys = sum(key["Estimated Keys"] for key in step.get("Keys", ()))
        told = f" keys={keys}" if "Keys" in step else ""
        yield f"    Estimated: rows={step['Estimated Rows']}{told}"
    if "Actual Rows" in step:
        told = f" keys={step['Actual Keys']}" if "Actual Keys" in step else ""
        told += f" bytes={step['Actual Bytes']}"
        if "Actual Milliseconds" in step:
            told += f" time={step['Actual Milliseconds']:.3f} ms"
        yield f"    Actual: rows={step['Actual Rows']}{told}"
    if "Skipped" in step:
        yield f"    Skipped: {step['Skipped']}"
    yield from (f"    Note: {note}" for note in step.get("Notes", ()))


def _one_line(sql: str) -> str:
    return " ".join(sql.split())
