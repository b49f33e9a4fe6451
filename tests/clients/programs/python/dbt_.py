"""dbt: its catalog query, previews of models, and tests over sources of two owners."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import CITY, COUNT, DATABASE, DAYS, FAILS, JOIN, SERVER, SLOW, interrupt, main
from dbt.cli.main import dbtRunner

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


TELL = ("--quiet", "--no-use-colors", "--no-send-anonymous-usage-stats")


def dbt(*arguments, fails=False):
    """Run a command in this process, as loading dbt takes seconds; returns what it says."""
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()) as told:
        done = dbtRunner().invoke([*TELL, *arguments])
    if done.success == fails:
        raise RuntimeError(f"dbt {arguments[0]}: {done.exception or told.getvalue()}")
    return told.getvalue()


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
    asked = [str(Path(sys.executable).parent / "dbt"), *TELL, "show", "--inline", SLOW]
    with subprocess.Popen(
        asked, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        interrupt(process)
        told, _ = process.communicate(timeout=200)
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
