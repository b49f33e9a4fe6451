"""From recorded conversations to broken ones: an input is drawn from a seed and its number."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from oar_proxy.wire.messages import HEADER

from oar_bench.wire.core import with_channel_binding
from oar_bench.wire.recording import CLIENT, HUB, Recordings, Step, frames

MOST_EXCHANGES: Final = 3
MOST_MUTATIONS: Final = 4

_STEPS_OF_A_LOGIN: Final = 6
"""Of one that got in: a startup packet and SCRAM."""

_TYPES: Final = b"QPBDECSHXFdcfp" + b"RKZ123TtDnCsIGHWVvNEAS" + b"\0\x16\xff"

_LENGTHS: Final = (0, 1, 3, 4, 5, 6, 255, 10_000, 10_001, 30_001, 65_536, 2**30, 2**31, 2**32 - 1)


@dataclass(frozen=True)
class Input:
    """A conversation, from its first byte or from where the hub has let the client in."""

    steps: tuple[Step, ...] = field(repr=False)
    from_startup: bool
    bound: bool
    """The client is under TLS, so channel binding is offered."""
    chunks: random.Random = field(repr=False)
    """How it is cut is drawn from this."""


def draw(recordings: Recordings, seed: int, number: int) -> Input:
    """Return the input of that number: the same each time."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    from_startup = chance.random() < 0.2
    steps: list[Step] = []
    if from_startup:
        startup = chance.choice(recordings.startups)
        if len(startup) == _STEPS_OF_A_LOGIN and chance.random() < 0.3:
            startup = with_channel_binding(startup)
        steps += startup
        steps = steps[1:] if chance.random() < 0.9 else steps  # mostly behind the startup packet
    if not from_startup or chance.random() < 0.3:
        for _ in range(chance.randint(1, MOST_EXCHANGES)):
            steps += chance.choice(recordings.exchanges)
    for _ in range(chance.randint(0, MOST_MUTATIONS)):
        mutate = chance.choices(_MUTATIONS, _WEIGHTS)[0]
        mutate(steps, chance, recordings)
    return Input(
        tuple(step for step in steps if step[1]), from_startup, chance.random() < 0.5, chance
    )


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that are like these: for packets that stand alone."""
    steps = [(CLIENT, data)]
    for _ in range(chance.randint(0, MOST_MUTATIONS)):
        chance.choice((_flip, _truncate, _insert, _lie))(steps, chance, _NOTHING)
    return steps[0][1]


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """Cut bytes at random places; sometimes between all of them."""
    if len(data) < 200 and chance.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(1, 6)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


_Mutation = Callable[[list[Step], random.Random, Recordings], None]


def _pick(steps: list[Step], chance: random.Random) -> int:
    return chance.randrange(len(steps))


def _flip(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    """Turn some bits."""
    at = _pick(steps, chance)
    side, data = steps[at]
    turned = bytearray(data)
    for _bit in range(chance.choice((1, 1, 2, 8))):
        if turned:
            turned[chance.randrange(len(turned))] ^= 1 << chance.randrange(8)
    steps[at] = side, bytes(turned)


def _truncate(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    at = _pick(steps, chance)
    side, data = steps[at]
    steps[at] = side, data[: chance.randrange(len(data) + 1)]


def _insert(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    at = _pick(steps, chance)
    side, data = steps[at]
    place = chance.randrange(len(data) + 1)
    steps[at] = side, data[:place] + chance.randbytes(chance.randint(1, 12)) + data[place:]


def _lie(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    """Have a message say another length than it has."""

    def lie(message: bytes) -> bytes:
        length = chance.choice((*_LENGTHS, len(message), len(message) + 1, len(message) - 2))
        return message[:1] + (length % 2**32).to_bytes(4, "big") + message[5:]

    _at_one(steps, chance, lie)


def _retype(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    _at_one(steps, chance, lambda message: bytes([chance.choice(_TYPES)]) + message[1:])


def _repeat_message(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    _at_one(steps, chance, lambda message: message * chance.choice((2, 2, 3, 20)))


def _drop_message(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    _at_one(steps, chance, lambda _message: b"")


def _at_one(steps: list[Step], chance: random.Random, change: Callable[[bytes], bytes]) -> None:
    at = _pick(steps, chance)
    side, data = steps[at]
    parts = frames(data)
    if parts:
        place = chance.randrange(len(parts))
        if len(parts[place]) >= HEADER.size:
            parts[place] = change(parts[place])
    steps[at] = side, b"".join(parts)


def _shuffle_messages(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    at = _pick(steps, chance)
    side, data = steps[at]
    parts = frames(data)
    chance.shuffle(parts)
    steps[at] = side, b"".join(parts)


def _swap(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    one, other = _pick(steps, chance), _pick(steps, chance)
    steps[one], steps[other] = steps[other], steps[one]


def _repeat(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    at = _pick(steps, chance)
    steps.insert(at, steps[at])


def _drop(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    steps[_pick(steps, chance)] = CLIENT, b""


def _turn(steps: list[Step], chance: random.Random, _: Recordings) -> None:
    """Have the other side say it."""
    at = _pick(steps, chance)
    side, data = steps[at]
    steps[at] = HUB if side == CLIENT else CLIENT, data


def _splice(steps: list[Step], chance: random.Random, recordings: Recordings) -> None:
    """Go on as another conversation does, in the middle of a message or between two."""
    at = _pick(steps, chance)
    side, data = steps[at]
    _, other = chance.choice(chance.choice(recordings.exchanges))
    if chance.random() < 0.5:
        mine, theirs = frames(data), frames(other)
        kept = mine[: chance.randrange(len(mine) + 1)]
        steps[at] = side, b"".join(kept + theirs[chance.randrange(len(theirs) + 1) :])
    else:
        kept_bytes = data[: chance.randrange(len(data) + 1)]
        steps[at] = side, kept_bytes + other[chance.randrange(len(other) + 1) :]


_MUTATIONS: Final[Sequence[_Mutation]] = (
    _flip,
    _truncate,
    _insert,
    _lie,
    _retype,
    _repeat_message,
    _drop_message,
    _shuffle_messages,
    _swap,
    _repeat,
    _drop,
    _turn,
    _splice,
)
_WEIGHTS: Final = (3, 1, 1, 3, 3, 2, 2, 2, 1, 1, 1, 1, 3)

_NOTHING: Final = Recordings((), ())
