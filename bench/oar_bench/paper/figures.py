"""How the paper's figures are printed and written: one digit for people, four for programs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oar_bench.paper.statistics import Estimate


def shown(estimate: Estimate | None, *, sign: bool = False) -> str:
    """Return ``value [low, high]`` with one digit, as the paper prints it."""
    if estimate is None:
        return "-"
    form = "+.1f" if sign else ".1f"
    return f"{estimate.value:{form}} [{estimate.low:.1f}, {estimate.high:.1f}]"


def flat(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return an estimate as three columns."""
    values = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    names = (name, f"{name}_low", f"{name}_high")
    return dict(zip(names, map(rounded, values), strict=True))


def rounded(value: Any) -> Any:
    """Round every float in a JSON value to four digits."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows of one shape, with a line of names; nothing but an empty file without rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
