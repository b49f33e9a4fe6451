"""``oar bench ledger``: that what it counts was written, and by how many."""

import psycopg
from oar_bench.ledger.measure import KEYS, WRITERS, measure
from oar_bench.work import work_directory
from oar_proxy.hub.server import EmbeddedServer
from oar_proxy.settings import HubSettings


def test_gate_and_writers_are_measured():
    with work_directory() as directory:
        spent, written = measure(directory, rounds=5, seconds=0.2, clients=2)
        server = EmbeddedServer(HubSettings(data_dir=directory / "hub"))
        try:
            with psycopg.connect(server.start().conninfo) as connection:
                kinds = dict(
                    connection.execute(
                        "SELECT kind, count(*) FROM oar_internal.entries GROUP BY kind"
                    ).fetchall()
                )
                inserted = connection.execute("SELECT count(*) FROM public.peer").fetchone()[0]
        finally:
            server.stop()
    assert [each.keys for each in spent] == list(KEYS)
    assert all(each.gate > 0 for each in spent)
    runs = [(processes, clients) for processes in WRITERS for clients in (1, 2)]
    assert [(each.processes, each.clients) for each in written] == runs
    # One more of each writer, before they begin together, and those of the gate.
    begun = sum(processes for processes, _ in runs)
    counted = round(sum(each.ledger for each in written) * 0.2)
    assert kinds["ask_outcome"] == kinds["step_outcome"] == counted + begun
    assert kinds["step"] == kinds["ask_outcome"] + 5 * len(KEYS)
    assert kinds["open"] == kinds["close"] == begun + 1
    assert inserted == round(sum(each.inserts for each in written) * 0.2) + begun
