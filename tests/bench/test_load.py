"""Every fault of ``oar bench load``, on a smaller scale: who is concerned is told, nobody else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest
from oar_bench.load.faults import FAULTS, HUB_KILLED
from oar_bench.load.run import DESCRIPTORS
from oar_bench.load.shim import Shim
from oar_bench.load.watch import Sample, curve


@pytest.fixture(scope="module")
def result():
    command = ["bench", "load", "--idle", "20", "--busy", "6", "--think", "0",
               "--seconds", "3", "--patience", "2"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "oar_proxy.cli", *command],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_was_wrong_in_any_fault(result):
    assert result["faults"] == 0
    assert list(result["statements"]) == ["none", *FAULTS, "leaving"]
    took = result["statements"]
    assert all(took[name]["bystanders"]["answers"] for name in took.keys() - {HUB_KILLED})
    assert all(took[name]["concerned"]["answers"] for name in FAULTS if FAULTS[name].concerned)
    assert set(result["kinds"]) >= {"pass-through", "join", "cursor", "COPY", "question"}


def test_those_concerned_were_told_and_nobody_else(result):
    told = {
        name: {who: set(tally["errors"]) for who, tally in took.items()}
        for name, took in result["statements"].items()
    }
    assert told["an owner that hangs"]["concerned"] == {"57014"}
    assert told["an owner's connections reset"]["concerned"] == {"HV00N"}
    assert told["an owner that restarts"]["concerned"] <= {"HV00N"}
    assert told["a silent MariaDB"]["concerned"] == told["a slow model"]["concerned"] == set()
    assert told[HUB_KILLED].keys() == {"concerned"}
    assert told[HUB_KILLED]["concerned"]
    quiet = [who["bystanders"] for name, who in told.items() if name != HUB_KILLED]
    assert quiet == [set()] * (len(FAULTS) + 1)


def test_nothing_is_left_of_the_clients(result):
    memory = result["memory"]
    assert memory["idle"]["processes"] >= memory["start"]["processes"] + 15
    assert memory["end"]["descriptors"] <= memory["start"]["descriptors"] + DESCRIPTORS
    assert memory["end"]["proxy"] < memory["start"]["proxy"] + 200


def test_a_shim_falls_silent_and_breaks_off():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        with Shim(server.getsockname()).running() as shim:
            near = socket.create_connection(("127.0.0.1", shim.port))
            far, _ = server.accept()
            near.settimeout(10)
            near.sendall(b"one")
            assert far.recv(10) == b"one"
            shim.silence()
            time.sleep(0.1)
            far.sendall(b"two")
            near.settimeout(0.3)
            with pytest.raises(TimeoutError):
                near.recv(10)
            near.settimeout(10)
            shim.resume()
            assert near.recv(10) == b"two"
            shim.reset()
            with pytest.raises(ConnectionResetError):
                near.recv(10)
            near.close()
            far.close()


def test_the_curve_of_memory_leaves_out_the_first_tenth():
    samples = [Sample(float(at), 100.0 + max(at - 100, 0), 0, 0, 0, 0) for at in range(1001)]
    samples[:50] = [Sample(float(at), 5000, 0, 0, 0, 0) for at in range(50)]
    found = curve(samples)
    assert found["slope an hour"] == pytest.approx(3600)
    assert found["last"] - found["first"] == pytest.approx(810, abs=1)
