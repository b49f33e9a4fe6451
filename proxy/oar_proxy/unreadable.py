"""Rules that cannot be read and tables that a hub cannot have, found with one that is started."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from oar_adapters.postgres.sql import publishable
from oar_adapters.recorded import RecordedAdapter
from oar_policies.lint import Finding

from oar_proxy.catalog import Catalog
from oar_proxy.gate import Gate
from oar_proxy.hub.access import admin_pool, open_hub
from oar_proxy.hub.address import HubAddress
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.publication import publish, publishing
from oar_proxy.hub.refusals import RefusedTable
from oar_proxy.inspection import Inspected
from oar_proxy.ledger import Ledger
from oar_proxy.publishing import read_rules
from oar_proxy.settings import HubSettings, Settings


class ScratchHub:
    """A hub that is started when it is first needed, and gone at the end of the block."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._opened: tuple[HubAddress, Planner] | None = None

    async def __aenter__(self) -> ScratchHub:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def opened(self) -> tuple[HubAddress, Planner]:
        """Start it, if it is not yet. Raises ``HubError``."""
        if self._opened is None:
            self._opened = await self._stack.enter_async_context(scratch_hub())
        return self._opened


async def unreadable(
    owners: Sequence[Inspected], settings: Settings, scratch: ScratchHub
) -> list[Finding]:
    """Read the SQL in the policies of owners; say of each table why it would not be published.

    A hub is needed where there is any. Raises ``HubError`` where it cannot be started.
    """
    known = {o.name: (o.policy, o.recorded) for o in owners if o.policy and o.recorded}
    # Only the part of the gate that hides is used: nothing is asked.
    gate = Gate({name: policy for name, (policy, _) in known.items()}, Ledger(""), settings.limits)
    visible = {name: gate.visible(name, had.content) for name, (_, had) in known.items()}
    if not any(True for name, schema in visible.items() for _ in gate.rules(name, schema)):
        return []
    adapters = {name: RecordedAdapter(had) for name, (_, had) in known.items()}
    _, planner = await scratch.opened()
    read = await read_rules(visible, adapters, gate, planner)
    return [
        Finding(
            "unreadable-rule",
            it.owner,
            known[it.owner][0].source,
            it.mark,
            f"table {it.table} is not published: {it.reason}",
        )
        for it in read.unpublished
    ]


async def refused_tables(catalog: Catalog, scratch: ScratchHub) -> tuple[RefusedTable, ...]:
    """Return the tables of a catalog that a hub would refuse.

    A hub is needed where a column has a type that no adapter of oar's own publishes. Raises
    ``HubError`` where it cannot be started.
    """
    if all(publishable(column.type) for t in catalog.tables.values() for column in t.columns):
        return ()
    address, _ = await scratch.opened()
    async with (
        admin_pool(address, size=1) as pool,
        publishing(pool, keep=False) as connection,
    ):
        return (await publish(connection, catalog)).refused


@asynccontextmanager
async def scratch_hub() -> AsyncIterator[tuple[HubAddress, Planner]]:
    """Start a hub that is gone at the end of the block, with its planner. Raises ``HubError``."""
    with _directory() as directory:
        async with (
            open_hub(HubSettings(data_dir=directory / "hub")) as address,
            Planner(address) as planner,
        ):
            yield address, planner


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="oar-policy-") as name:
        directory = Path(name)
        # As root, the hub runs as another OS user, which has to get to its files.
        directory.chmod(0o711)
        yield directory
