"""dbt: its catalog query, previews of models, and tests over sources of two owners."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import CITY, COUNT, DATABASE, DAYS, FAILS, JOIN, SERVER, SLOW, interrupt, main

project = tempfile.TemporaryDirectory(prefix="oar-dbt-")
root = Path(project.name)
(root / "models").mkdir()
(root / "dbt_project.yml").write_text("name: clients\nprofile: clients\n")
output = {"type": "postgres", "schema": "public", "dbname": DATABASE, "threads": 2} | SERVER
(root / "profiles.yml").write_text(
    json.dumps({"clients": {"target": "it", "outputs": {"it": output}}})
)
delivered = {"name": "order_id", "data_tests": ["not_null", {"relationships": {
    "arguments": {"to": "source('shop', 'orders')", "field": "order_id"}}}]}  # fmt: skip
(root / "models" / "sources.yml").write_text(json.dumps({"version": 2, "sources": [
    {"name": "shop", "tables": [{"name": "orders", "columns": [{"name": "order_id", "data_tests": ["unique"]}]}]},
    {"name": "fleet", "tables": [{"name": "deliveries", "columns": [delivered]}]},
]}))  # fmt: skip
(root / "models" / "late.sql").write_text(
    "{{ config(materialized='ephemeral') }} SELECT o.city, count(*) AS late FROM {{ source('shop', 'orders') }} o"
    " JOIN {{ source('fleet', 'deliveries') }} d USING (order_id) WHERE d.delay_days > 95 GROUP BY o.city"
)


def command(*arguments):
    tell = ("--quiet", "--no-use-colors", "--no-send-anonymous-usage-stats")
    return [str(Path(sys.executable).parent / "dbt"), *tell, *arguments]


def dbt(*arguments, fails=False):
    """Run a command; returns what it says."""
    process = subprocess.run(
        command(*arguments), cwd=root, capture_output=True, text=True, check=False, timeout=200
    )
    if bool(process.returncode) != fails:
        raise RuntimeError(
            f"dbt ended with {process.returncode}: {process.stdout} {process.stderr}"
        )
    return process.stdout


def show(statement, **options):
    return dbt("show", "--output", "json", "--limit", "-1", "--inline", statement, **options)


def connect():
    dbt("debug", "--connection")
    return show(COUNT)


def introspect():
    dbt("docs", "generate")
    catalog = json.loads((root / "target" / "catalog.json").read_text())
    return [
        (source["metadata"]["schema"], source["metadata"]["name"], source["metadata"]["type"],
         [(column["name"], column["type"]) for column in source["columns"].values()])
        for _, source in sorted(catalog["sources"].items())
    ]  # fmt: skip


def parameters():
    written = JOIN.replace("$1", f"'{CITY}'").replace("$2", str(DAYS))
    return show(written), show("SELECT * FROM {{ ref('late') }} ORDER BY city")


def big():
    dbt("test")
    results = json.loads((root / "target" / "run_results.json").read_text())["results"]
    return sorted((each["unique_id"], each["status"], each["failures"]) for each in results)


def errors():
    told = show(FAILS, fails=True)
    assert "division by zero" in told, told
    return "division by zero", show(COUNT)


def cancel():
    asked = command("show", "--inline", SLOW)
    with subprocess.Popen(
        asked, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        interrupt(process)
        told, _ = process.communicate(timeout=50)
    assert "cancel" in told.lower() or "terminat" in told.lower(), told
    return "cancelled", show(COUNT)


main(
    connect=connect,
    introspect=introspect,
    parameters=parameters,
    big=big,
    errors=errors,
    cancel=cancel,
)
