"""The composition root: the only place that picks implementations and ties the stages together."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg
import structlog
from oar_policies.model import Policy
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import PoolTimeout

from oar_proxy import ledger as ledgers
from oar_proxy.asking import Asking
from oar_proxy.budget import Budgets
from oar_proxy.catalog import Catalog
from oar_proxy.draft import DraftStage
from oar_proxy.drafters import Drafter
from oar_proxy.drafters.model import ChatModel, Model, ModelDrafter
from oar_proxy.drafters.offline import OfflineDrafter
from oar_proxy.errors import HubConnectionLost, LedgerUnavailable
from oar_proxy.gate import Gate
from oar_proxy.hub import inforce
from oar_proxy.hub.access import AdminPool, admin_pool, open_hub
from oar_proxy.hub.address import HubAddress, HubError
from oar_proxy.hub.defaults import set_defaults
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.sentinel import Sentinels
from oar_proxy.hub.users import may_read_verifiers, password_verifier
from oar_proxy.inspection import configured_policies, open_owner
from oar_proxy.ledger import Ledger
from oar_proxy.pipeline import Pipeline
from oar_proxy.protocols.answering import ProtocolAnswers
from oar_proxy.protocols.owners import OwnerQueries
from oar_proxy.refreshing import Refresher
from oar_proxy.server import FrontDoor, KeysOf
from oar_proxy.settings import (
    ConfigurationError,
    DrafterSettings,
    HubSettings,
    LedgerSettings,
    Listen,
    Settings,
    strangers,
)
from oar_proxy.tls import Certificate, open_certificate
from oar_proxy.verified.answers import configured_answers
from oar_proxy.wire.scram import Keys, decode_verifier

log = structlog.get_logger(__name__)

Progress = Callable[[str], None]

OWN_CONNECTIONS: Final = 40
"""To the hub, beside those of clients: at most 25 of the proxy's pools, 3 that PostgreSQL keeps
for superusers, and some of commands that are run meanwhile. As many to owners, about."""

GARBAGE_THRESHOLD: Final = 50_000
"""New objects between two looks for garbage in cycles (Python's own: 700). Measured on 1,000,000
rows of three columns that pass through: 1.8 s of the proxy's processor time, then 0.9 s."""


@dataclass(frozen=True)
class Hub:
    """The hub of a running application: where it is, and the proxy's own connections."""

    address: HubAddress
    admin: AdminPool

    @property
    def database(self) -> str:
        """The database clients connect to."""
        return self.address.database


@dataclass
class Application:
    """A proxy that accepts clients at ``host``:``port``."""

    host: str
    port: int
    hub: Hub
    pipeline: Pipeline
    refresher: Refresher = field(repr=False)
    owner_queries: OwnerQueries = field(repr=False)
    """What the paper's protocols ask owners through."""

    @property
    def catalog(self) -> Catalog:
        """What is published now."""
        return self.pipeline.catalog

    async def refresh(self) -> bool:
        """Look at the owners' schemas and policies now; returns whether the catalog changed."""
        return await self.refresher.refresh()

    async def serve_forever(self) -> None:
        """Wait for SIGTERM or SIGINT; leaving the application's block then stops gracefully."""
        # What was made by now stays; what follows are rows, thousands at a time and in no cycles.
        # Looking through all that for garbage took half the time that a large answer took.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        try:
            await stopped.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


@asynccontextmanager
async def open_application(
    settings: Settings, *, on_event: Progress | None = None
) -> AsyncIterator[Application]:
    """Start everything, bottom up, and stop it in the opposite order.

    Raises ``ConfigurationError`` and ``HubError``. An owner that cannot be reached is no error:
    its tables are published as soon as it can be.
    """
    report: Progress = on_event or (lambda _: None)
    for told in strangers():
        log.warning(told)
    policies = configured_policies(settings)
    answers = configured_answers(settings)
    certificate = open_certificate(settings.listen)
    model = _model(settings.drafter)
    drafter = _drafter(settings.drafter, model)
    async with AsyncExitStack() as stack:
        adapters = {name: open_owner(name, owner) for name, owner in settings.owners.items()}
        for adapter in adapters.values():
            stack.push_async_callback(adapter.close)
        report("starting the hub")
        hub = await stack.enter_async_context(_prepared_hub(settings, policies))
        address = hub.address
        planner = await stack.enter_async_context(Planner(address))
        ledger = await stack.enter_async_context(_ledger(address, settings.ledger))
        budgets = await stack.enter_async_context(Budgets(address.session, settings.applications))
        gate = Gate(policies, ledger, settings.limits, budgets=budgets)
        drafts = DraftStage(drafter, settings.drafter)
        pipeline = Pipeline(
            adapters=adapters,
            gate=gate,
            ledger=ledger,
            planner=planner,
            drafts=drafts,
            limits=settings.limits,
        )
        stack.push_async_callback(pipeline.asks.settle)
        owner_queries = await stack.enter_async_context(
            OwnerQueries(
                address,
                access=pipeline.asks.access,
                ledger=ledger,
                planner=planner,
                compiler=pipeline.compiler,
                memory=pipeline.memory,
                limits=settings.limits,
            )
        )
        answering = ProtocolAnswers(owner_queries, model)
        pipeline.asking = Asking(answering, settings.limits, settings.questions, drafts.is_verified)
        refresher = Refresher(
            settings,
            adapters,
            gate=gate,
            admin=hub.admin,
            planner=planner,
            pipeline=pipeline,
            drafts=drafts,
            answers=answers,
        )
        if not adapters:
            log.warning("no owner is configured: there is nothing to ask about")
        report("reading the owners' schemas")
        await refresher.refresh()
        listening = _listening(settings.listen, hub, pipeline, certificate)
        port = await stack.enter_async_context(listening)
        watching = asyncio.create_task(refresher.watch(), name="catalog refresh")
        stack.push_async_callback(_cancel, watching)
        log.info("listening", host=settings.listen.host, port=port, owners=len(adapters))
        yield Application(settings.listen.host, port, hub, pipeline, refresher, owner_queries)


@asynccontextmanager
async def _prepared_hub(settings: Settings, policies: Mapping[str, Policy]) -> AsyncIterator[Hub]:
    """Open the hub, and put into it what does not wait for owners."""
    async with open_hub(_sized(settings)) as address, admin_pool(address) as admin:
        async with admin.connection() as connection:
            await _check_room(connection, settings.listen)
            await ledgers.install(connection)
        await inforce.record(admin, inforce.proxy_name(settings.listen), policies)
        await set_defaults(
            admin,
            {
                "oar.protocol": settings.questions.protocol,
                "oar.budget": str(settings.questions.budget),
            },
        )
        yield Hub(address, admin)


@asynccontextmanager
async def _listening(
    listen: Listen, hub: Hub, pipeline: Pipeline, certificate: Certificate | None
) -> AsyncIterator[int]:
    """Let clients in for the length of the block, at the port that is given."""
    keys = await user_keys(hub.admin)
    if certificate is not None and keys is None:
        log.warning("no channel binding: the hub's role may not read its users' verifiers")
    async with Sentinels(hub.address) as sentinels:
        door = FrontDoor(
            listen,
            hub.address,
            pipeline,
            certificate=certificate,
            keys=keys,
            sentinels=sentinels,
        )
        port = await door.start()
        try:
            yield port
        finally:
            await door.stop()


async def user_keys(admin: AdminPool) -> KeysOf | None:
    """Return what looks up users' SCRAM keys, None where the proxy's role may not.

    It has connections of the proxy's own, which nothing that a client says can reach.
    """
    async with admin.connection() as connection:
        if not await may_read_verifiers(connection):
            return None

    async def keys_of(user: bytes) -> Keys | None:
        try:
            async with admin.connection() as connection:
                verifier = await password_verifier(connection, user.decode(errors="replace"))
        except (psycopg.Error, PoolTimeout):
            raise HubConnectionLost(
                "connection not made: the hub does not answer", hint="try again later"
            ) from None
        return decode_verifier(verifier)

    return keys_of


def _sized(settings: Settings) -> HubSettings:
    """Have the embedded hub allow what clients and the proxy need, where nothing else is said."""
    hub = settings.hub
    if hub.max_connections is not None:
        return hub
    most = settings.listen.max_clients + OWN_CONNECTIONS
    return hub.model_copy(update={"max_connections": most})


async def _check_room(connection: AsyncConnection[TupleRow], listen: Listen) -> None:
    """Warn where the hub, or the operating system, allows fewer connections than configured."""
    cursor = await connection.execute("SHOW max_connections")
    ((hub,),) = await cursor.fetchall()
    needed = listen.max_clients + OWN_CONNECTIONS
    if int(hub) < needed:
        log.warning(
            "the hub allows fewer connections than listen.max_clients needs",
            hub=int(hub),
            needed=needed,
        )
    most = 2 * needed + listen.max_unauthenticated
    files = _allow_files(most)
    if files < most:
        log.warning(
            "the operating system allows fewer open files than listen.max_clients needs",
            allowed=files,
            needed=most,
        )


def _allow_files(wanted: int) -> int:
    """Raise the process's own limit of open files as far as it may; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


@asynccontextmanager
async def _ledger(address: HubAddress, settings: LedgerSettings) -> AsyncIterator[Ledger]:
    async with AsyncExitStack() as stack:
        try:
            ledger = await stack.enter_async_context(Ledger(address.session, settings.file))
        except LedgerUnavailable as error:
            raise HubError(error.message, hint=error.hint) from error
        yield ledger


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _model(settings: DrafterSettings) -> Model | None:
    return ChatModel(settings) if settings.kind == "litellm" else None


def _drafter(settings: DrafterSettings, model: Model | None) -> Drafter:
    if model is not None:
        return ModelDrafter(model)
    if settings.kind == "replay":
        from oar_proxy.drafters.replay import InvalidRecording, ReplayDrafter

        assert settings.file is not None
        try:
            return ReplayDrafter.from_file(settings.file)
        except (InvalidRecording, OSError) as error:
            raise ConfigurationError(f"drafter.file: {error}") from error
    return OfflineDrafter()
