"""The ledger after kills at random instants; ``make kill-test`` is the same with 500."""

import json
import subprocess
import sys

from oar_bench.kills.world import OwnerLog
from oar_proxy.ledger import digest


def test_every_query_an_owner_received_has_its_entry():
    done = subprocess.run(
        [sys.executable, "-m", "oar_proxy.cli", "bench", "kills", "--count", "20", "--seed", "4"],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sum(result["kills"].values()) == 20
    assert set(result["kills"]) == {"proxy", "ledger", "hub"}
    # Something was asked, and killed, or the run says nothing.
    assert result["statements"] > 0
    assert result["steps"] >= result["queries"] >= 2 * result["statements"]
    assert sum(result["refused"].values()) > 0


def test_the_owners_log_is_read_as_it_grows(tmp_path):
    path = tmp_path / "queries.json"
    query = 'SELECT "id" FROM "public"."t" WHERE "id" = $1'
    lines = [
        json.dumps({"message": message})
        for message in (
            f"execute __asyncpg_stmt_1__: {query}",
            f"execute fetch from __asyncpg_portal_1__: {query}",
            f"statement: {query}",
            "execute x: SELECT 1",
            "statement: SELECT 'oar kills mark 1'",
            "a line without a statement",
        )
    ]
    path.write_text("\n".join(lines)[:-9])
    log = OwnerLog(path)
    log.read()
    assert (dict(log.queries), log.marks) == ({digest(query): 2}, {"SELECT 'oar kills mark 1'"})
    path.write_text("\n".join(lines) + f"\n{lines[0]}\n")
    log.read()
    assert dict(log.queries) == {digest(query): 3}
