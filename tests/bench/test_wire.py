"""Broken conversations; ``make wire-fuzz`` is the same with a million of them."""

from __future__ import annotations

import json

import pytest
from oar_bench.cli import app
from oar_bench.overhead.processes import proxy_process
from oar_bench.wire import run
from oar_bench.wire.core import NOTICE, converse, with_channel_binding
from oar_bench.wire.mutation import draw
from oar_bench.wire.recording import CLIENT, HUB, record
from oar_bench.wire.sockets import besiege
from oar_bench.work import work_directory
from oar_proxy.wire import requests
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def proxy():
    with work_directory() as directory:
        log = directory / "log"
        with proxy_process(directory, "secret", log=log) as proxy:
            yield proxy, log


@pytest.fixture(scope="module")
def recordings(proxy):
    return record(proxy[0])


def test_what_was_recorded_passes_as_it_is(recordings):
    """Both ways, every byte: what is not so with broken ones is for that they are broken."""
    conversations = [(steps, False) for steps in recordings.exchanges]
    conversations += [(steps[1:], True) for steps in recordings.startups]
    assert len(conversations) > 60
    for steps, from_startup in conversations:
        outcome = converse(
            steps, [(data,) for _, data in steps], from_startup=from_startup, bound=False
        )
        assert outcome.end == ""
        sent = {side: b"".join(d for s, d in steps if s == side) for side in (CLIENT, HUB)}
        assert outcome.to_hub == sent[CLIENT]
        assert outcome.to_client.replace(NOTICE, b"") == sent[HUB].replace(NOTICE, b"")


def test_a_login_with_channel_binding_gets_in(recordings):
    steps = with_channel_binding(recordings.startups[0])[1:]
    whole = [(data,) for _, data in steps]
    outcome = converse(steps, whole, from_startup=True, bound=True)
    assert outcome.end == ""
    assert b"SCRAM-SHA-256-PLUS" in outcome.to_client
    assert b"SCRAM-SHA-256\0" in outcome.to_hub
    assert b"PLUS" not in outcome.to_hub


def test_broken_ones_end_as_they_may_however_they_are_cut(recordings):
    tally = run.measure(recordings, seed=2, numbers=range(10_000))
    assert tally.faults == []
    assert tally.inputs == 10_000
    # It says something only if they break, and if some go on.
    assert set(tally.ended) >= {"on", "08P01", "XX000"}
    assert min(tally.ended["on"], tally.ended["08P01"], tally.ended["XX000"]) > 1000
    assert set(tally.packets) >= {"StartupMessage", "08P01", "0A000"}


def test_an_input_is_the_same_each_time(recordings):
    for number in range(200):
        assert draw(recordings, 5, number).steps == draw(recordings, 5, number).steps
    assert len({draw(recordings, 5, number).steps for number in range(200)}) > 150


def test_what_breaks_is_shown_with_the_way_to_have_it_again(recordings, monkeypatch):
    def describe(self, raw):
        of_statement = raw[5] == ord("S")  # no look at whether there is such a byte
        described = requests._DESCRIBE_STATEMENT if of_statement else requests._DESCRIBE_PORTAL
        self._conversation.sent(described)
        return raw

    monkeypatch.setitem(requests._LOOK, ord("D"), describe)
    tally = run.measure(recordings, seed=2, numbers=range(20_000))
    assert len(tally.faults) == run.MOST_FAULTS
    first = next(fault for fault in tally.faults if "IndexError" in fault)
    number = int(first.partition(" ")[2].partition(":")[0])
    assert f"again: oar bench wire --seed 2 --only {number}" in first
    again = run.measure(recordings, seed=2, numbers=range(number, number + 1))
    assert again.faults == [first]


def test_over_real_connections_others_are_not_disturbed(proxy, recordings):
    running, log = proxy
    siege = besiege(running, recordings, seed=2, count=100, log=log)
    assert siege.faults == []
    assert min(siege.connections["before"], siege.connections["after"]) > 30
    assert siege.bystander > 10
    assert siege.files_after <= siege.files_before


def test_the_command_has_one_input_again():
    result = CliRunner().invoke(app, ["wire", "--only", "7", "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["inputs"], found["connections"], found["faults"]) == (1, {}, 0)
