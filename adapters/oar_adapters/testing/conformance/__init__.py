"""The conformance suite: what every adapter has to do, as pytest tests to subclass.

An adapter's author writes a :class:`SampleOwner` (how to put the sample tables into a real owner,
and how to disturb it), a fixture ``owner`` that yields one, and a test class::

    @pytest.fixture(scope="module")
    def owner():
        with my_database() as database:
            yield MyOwner(database)

    class TestMyAdapter(AdapterConformance):
        cannot = frozenset({"text LIKE"})

Every test opens its own adapter through the registry, so the entry point is tested too, and
closes it. A predicate the adapter takes is compared with PostgreSQL's meaning on every row; what it
never does has to be named in ``cannot``, so that a lost ability is noticed as well. No test skips
itself.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import pytest

from oar_adapters.interface import Adapter, Capabilities
from oar_adapters.testing import cases, groups
from oar_adapters.testing.conformance.answers import Answering
from oar_adapters.testing.conformance.conduct import Conduct
from oar_adapters.testing.conformance.joins import Joining
from oar_adapters.testing.conformance.reading import Reading
from oar_adapters.testing.conformance.running import (
    STATEMENTS,
    WRONG_VALUES,
    SampleOwner,
    statement_of,
    table_of,
    with_adapter,
)
from oar_adapters.testing.samples import THINGS

__all__ = ["ABILITIES", "STATEMENTS", "WRONG_VALUES", "AdapterConformance", "SampleOwner"]

ABILITIES: Final[Mapping[str, Callable[[Capabilities], bool]]] = {
    "semi-join": lambda capabilities: capabilities.semi_joins,
    "composite keys": lambda capabilities: capabilities.composite_keys,
    "digests": lambda capabilities: bool(capabilities.digested_types),
    "first rows": lambda capabilities: capabilities.first_rows,
    "interleaving": lambda capabilities: capabilities.interleaves,
}
"""What an adapter says of itself, as ``cannot`` names it where it does not."""

_KEY_COLUMNS: Final = "nsmbdo"
_KEYS_TOGETHER: Final = (*itertools.combinations("nsmbdo", 2), ("n", "s", "b"), ("d", "m", "s"))
"""Columns of a sample table whose keys are looked up, alone and together."""


class Claims:
    """What the adapter says that it does not do."""

    cannot: ClassVar[Collection[str]] = frozenset()
    """What the adapter never does. Kinds of predicate (``text LIKE``, ``date <``; keys are ``IN``)
    as `oar_adapters.testing.cases` names them and of counted scans (``float by``, ``date max``) as
    `oar_adapters.testing.groups` does; names of `STATEMENTS` and `ABILITIES`; and `WRONG_VALUES`,
    where the owner's database keeps its types."""

    def test_does_everything_it_does_not_name(self, owner: SampleOwner) -> None:
        """So that an ability is neither lost nor untested without being noticed."""

        async def never_done(adapter: Adapter) -> set[str]:
            published = await adapter.schema()
            things = table_of(published, "things")
            done = {name: said(adapter.capabilities) for name, said in ABILITIES.items()}
            for name, predicate in cases.simple():
                done[name] = done.get(name, False) or adapter.supports(things, predicate)
            for name, by, partial in groups.CASES:
                can = adapter.counts(groups.scan(things, by, partial))
                done[name] = done.get(name, False) or can
            for name in STATEMENTS:
                done[name] = adapter.supports_statement(statement_of(published, name))
            return {name for name, ever in done.items() if not ever}

        assert with_adapter(owner, never_done) == set(self.cannot) - {WRONG_VALUES}


# Tests of the last base run first; those of how an adapter behaves change the owner.
class AdapterConformance(Conduct, Answering, Joining, Reading, Claims):
    """Subclass, set ``cannot``, and provide a fixture ``owner`` of at least the class's scope.

    A test of what an adapter cannot do is not collected, and that it cannot is itself tested.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        chosen = cls._parameters()
        for name, test in inspect.getmembers(AdapterConformance):
            if name.startswith("test_"):
                asked = [
                    chosen[each] for each in inspect.signature(test).parameters if each in chosen
                ]
                if getattr(test, "needs", frozenset()) & set(cls.cannot) or not all(asked):
                    setattr(cls, name, None)

    @classmethod
    def _parameters(cls) -> dict[str, list[Any]]:
        """What the adapter takes of the values of the tests' parameters."""

        def taken(columns: Sequence[str]) -> bool:
            return not {f"{THINGS.kind(column)} IN" for column in columns} & set(cls.cannot)

        return {
            "key_column": list(filter(taken, _KEY_COLUMNS)),
            "keys_together": list(filter(taken, _KEYS_TOGETHER)),
            "statement_name": [name for name in STATEMENTS if name not in cls.cannot],
        }

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test what the adapter takes of the values of its parameters."""
        for name, values in self._parameters().items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(
                    name, values, ids="-".join if name == "keys_together" else None
                )
