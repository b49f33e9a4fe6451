"""Broken conversations by the number, and what must hold of every one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from oar_bench.wire.core import Broken, converse, read_startup
from oar_bench.wire.mutation import Input, cut, draw, mutated
from oar_bench.wire.recording import CLIENT, Recordings, within

LONGEST: Final = 10.0
"""Seconds after which an input is taken to go on for ever; they take less than a millisecond."""

MOST_FAULTS: Final = 10
"""Inputs that are shown before the run ends."""


@dataclass
class Tally:
    """What was tried and found. ``faults`` are lines for people; none means that all held."""

    inputs: int = 0
    bytes: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """By SQLSTATE, and ``on`` for conversations that go on."""
    packets: Counter[str] = field(default_factory=Counter)
    """What startup packets were read as, or refused with."""
    faults: list[str] = field(default_factory=list)


def measure(recordings: Recordings, *, seed: int, numbers: range) -> Tally:
    """Try the inputs of these numbers."""
    tally = Tally()
    for number in numbers:
        given = draw(recordings, seed, number)
        tally.inputs += 1
        tally.bytes += sum(len(data) for _, data in given.steps)
        try:
            with within(LONGEST, "the conversation"):
                _try(recordings, given, tally)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is looked for
            tally.faults.append(_told(given, number, seed, error))
            if len(tally.faults) == MOST_FAULTS:
                return tally
    return tally


def _try(recordings: Recordings, given: Input, tally: Tally) -> None:
    whole = [(data,) for _, data in given.steps]
    pieces = [cut(data, given.chunks) for _, data in given.steps]
    kind = {"from_startup": given.from_startup, "bound": given.bound}
    outcome = converse(given.steps, whole, **kind)
    again = converse(given.steps, pieces, **kind)
    for name in ("end", "to_hub", "to_client", "state"):
        one, other = getattr(outcome, name), getattr(again, name)
        if one != other:
            raise Broken(f"cut in pieces, {name} is another: {other!r} and not {one!r}")
    tally.ended[outcome.end[:5] or "on"] += 1
    packet = given.chunks.choice(recordings.startups)[0][1]
    tally.packets[read_startup(mutated(packet, given.chunks))] += 1


def _told(given: Input, number: int, seed: int, error: Exception) -> str:
    """Say what went wrong with which input, and how to have it again."""
    lines = [f"input {number}: {type(error).__name__}: {error}"]
    lines += [f"  {'client' if side == CLIENT else 'hub'} {data!r}" for side, data in given.steps]
    again = f"oar bench wire --seed {seed} --only {number}"
    return "\n".join([*lines, f"  again: {again}"])
