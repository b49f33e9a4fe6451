"""Each client does each task through the proxy as it does at a PostgreSQL: the output is the table."""

from __future__ import annotations

import psycopg
import pytest
from clients import CLIENTS, HUB, PROXY, NotBuilt, open_place, run_both

HOLDS = {"errors": ("22012", "division by zero"), "cancel": ("57014", "HY008", "timeout", "cancel")}
"""What the result of a task has in it, one of these: two sides may agree on a wrong one."""


@pytest.fixture(scope="session")
def place():
    with open_place() as place:
        yield place


@pytest.fixture(scope="session")
def outcomes(place, tmp_path_factory):
    """Run a client both ways, once; returns way → task → result."""
    directory = tmp_path_factory.mktemp("built")
    known = {}

    def of(client):
        if client.name not in known:
            try:
                known[client.name] = run_both(client, place, directory)
            except NotBuilt as error:  # npm, say, without a network
                known[client.name] = error
        if isinstance(known[client.name], NotBuilt):
            pytest.skip(str(known[client.name]))
        return known[client.name]

    return of


@pytest.mark.parametrize(
    ("client", "task"),
    [
        pytest.param(client, task, id=f"{client.name}: {task}")
        for client in CLIENTS
        for task in client.tasks
    ],
)
def test_a_task_goes_as_at_the_hub(client, task, outcomes):
    missing = client.missing()
    if missing:
        pytest.skip(f"this machine has no {', '.join(missing)}")
    results = outcomes(client)
    expected = results[HUB][task]
    assert not expected.startswith("!"), "the reference fails"
    assert len(expected) > 3
    assert any(held in expected for held in HOLDS.get(task, ("",)))
    assert results[PROXY][task] == expected


def test_what_they_asked_went_to_the_owners(place, outcomes):
    outcomes(next(client for client in CLIENTS if client.name == "psycopg"))
    with psycopg.connect(place.hub, autocommit=True) as hub:
        rows = hub.execute(
            "SELECT kappa, count(*) FROM oar.asks WHERE principal = 'anna' AND sqlstate = '00000'"
            " GROUP BY kappa ORDER BY kappa"
        ).fetchall()
    assert [kappa for kappa, _ in rows] == [1, 2]
