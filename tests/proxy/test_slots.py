"""Places at owners: all at once, in turn, and some left when an owner hangs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from oar_proxy import slots
from oar_proxy.slots import OwnerSlots


def of(**sizes):
    return OwnerSlots(
        {
            name: SimpleNamespace(capabilities=SimpleNamespace(snapshots=size))
            for name, size in sizes.items()
        }
    )


class Statements:
    """Statements by name; each holds its places until it is let go of."""

    def __init__(self, places):
        self.places = places
        self.running = []
        self.tasks = {}
        self.ends = {}

    async def begin(self, name, *owners):
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, owners))
        await settle()

    async def _hold(self, name, owners):
        async with self.places.hold(owners):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, *names):
        for name in names:
            self.ends[name].set()
        await settle()

    async def cancel(self, name):
        self.tasks[name].cancel()
        await settle()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def run(test):
    asyncio.run(asyncio.wait_for(test, 10))


def test_who_waits_for_one_owner_holds_no_place_at_another():
    async def test():
        all_ = Statements(of(a=1, b=1))
        await all_.begin("at b", "b")
        await all_.begin("at both", "a", "b")
        await all_.begin("at a", "a")
        assert all_.running == ["at b", "at a"]
        await all_.end("at b", "at a")
        assert all_.running == ["at both"]

    run(test())


def test_who_was_passed_over_comes_next(monkeypatch):
    monkeypatch.setattr(slots, "PASSED_OVER", 0.05)

    async def test():
        all_ = Statements(of(a=1, b=1, c=1))
        await all_.begin("at a", "a")
        await all_.begin("at b", "b")
        await all_.begin("at both", "a", "b")
        await asyncio.sleep(0.1)
        await all_.end("at a")
        await all_.begin("late at a", "a")
        await all_.begin("at c", "c")
        assert all_.running == ["at b", "at c"]
        await all_.end("at b")
        assert all_.running == ["at c", "at both"]
        await all_.end("at both")
        assert all_.running == ["at c", "late at a"]

    run(test())


@pytest.mark.parametrize("leaving", [("first",), ("second", "first"), ("first", "second")])
def test_who_leaves_keeps_no_place_and_no_turn(leaving):
    async def test():
        all_ = Statements(of(a=1))
        for name in ("first", "second", "third"):
            await all_.begin(name, "a")
        for name in leaving:
            await all_.cancel(name)
        assert all_.running == ["second" if len(leaving) == 1 else "third"]

    run(test())


def test_an_owner_that_hangs_leaves_places_at_the_others():
    async def test():
        all_ = Statements(of(good=8, hangs=8, other=8))
        for number in range(10):
            await all_.begin(f"hangs {number}", "good", "hangs")
        assert len(all_.running) == 6
        await all_.begin("alone", "good")
        await all_.begin("joins", "good", "other")
        assert all_.running[6:] == ["alone", "joins"]

    run(test())


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (100, 75)])
def test_how_many_may_share_two_owners(size, most):
    async def test():
        all_ = Statements(of(a=size, b=100))
        for number in range(size + 1):
            await all_.begin(number, "a", "b")
        assert len(all_.running) == most

    run(test())


def test_never_more_than_there_are_and_everybody_in_the_end():
    draw = random.Random(7)
    sizes = {"a": 1, "b": 2, "c": 4, "d": 8}

    async def test():
        places, held, done, exceeded = of(**sizes), Counter(), [], []

        async def statement(number):
            owners = draw.sample(list(sizes), draw.randint(1, 4))
            async with places.hold(owners):
                held.update(owners)
                exceeded.extend(owner for owner in owners if held[owner] > sizes[owner])
                try:
                    await asyncio.sleep(draw.uniform(0, 0.002))
                finally:
                    held.subtract(owners)
            done.append(number)

        tasks = [asyncio.create_task(statement(number)) for number in range(1000)]
        for task in draw.sample(tasks, 100):
            asyncio.get_running_loop().call_later(draw.uniform(0, 1), task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(done) >= 900
        assert exceeded == []
        assert places._held.total() == places._together.total() == 0
        assert not places._queue

    run(test())
