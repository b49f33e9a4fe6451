"""What is published, kept as owners, policies and reviewed answers are now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import psycopg
import structlog
from oar_adapters.interface import Adapter, OwnerError, OwnerSchema
from psycopg_pool import PoolTimeout

from oar_proxy.catalog import Catalog
from oar_proxy.draft import DraftStage
from oar_proxy.gate import Gate
from oar_proxy.hub import inforce
from oar_proxy.hub.access import AdminPool
from oar_proxy.hub.address import HubError
from oar_proxy.hub.planner import Planner
from oar_proxy.hub.publication import Published, publish, publishing
from oar_proxy.inspection import configured_policies
from oar_proxy.pipeline import Pipeline
from oar_proxy.publishing import publication
from oar_proxy.settings import ConfigurationError, Settings
from oar_proxy.verified.answers import VerifiedAnswers, configured_answers
from oar_proxy.verified.publication import publish_answers

log = structlog.get_logger(__name__)

VIEWS_REFRESH: Final = 5.0
"""Seconds between two looks at the hub's own views: until then the guard refuses a new one."""

SCHEMA_TIMEOUT: Final = 90.0
"""Seconds an owner has to say what it publishes: all others wait. Our adapters take 70 at most."""

_VIEWS: Final = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'v' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'oar')
"""


class Refresher:
    """Keeps the catalog, the policies and the verified answers what their owners say they are."""

    def __init__(
        self,
        settings: Settings,
        adapters: Mapping[str, Adapter],
        *,
        gate: Gate,
        admin: AdminPool,
        planner: Planner,
        pipeline: Pipeline,
        drafts: DraftStage,
        answers: VerifiedAnswers,
    ) -> None:
        self._settings = settings
        self._adapters = adapters
        self._gate = gate
        self._admin = admin
        self._planner = planner
        self._pipeline = pipeline
        self._drafts = drafts
        self._answers = answers
        self._known: dict[str, OwnerSchema] = {}
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Refresh for ever; a failure is logged, and what was in force stays in force."""
        period = self._settings.catalog_refresh
        next_refresh = time.monotonic() + period
        while True:
            await asyncio.sleep(min(period, VIEWS_REFRESH))
            try:
                if time.monotonic() < next_refresh:
                    self._pipeline.publish(self._pipeline.catalog, await self._views())
                    continue
                next_refresh = time.monotonic() + period
                await self.reload()
                await self.refresh()
            except (ConfigurationError, HubError, psycopg.Error, PoolTimeout) as error:
                log.error(
                    "refresh failed: the catalog in force stays",
                    reason=str(error),
                    hint=getattr(error, "hint", None),
                )
            except Exception as error:  # noqa: BLE001 - an adapter's: the next one may be better
                log.error("refresh failed: the catalog in force stays", reason=type(error).__name__)

    async def reload(self) -> None:
        """Put the policies in force that the files have now: all of them, or none.

        One that cannot be read is logged and told of in ``oar.policies``. Raises ``psycopg.Error``
        and ``PoolTimeout``.
        """
        proxy = inforce.proxy_name(self._settings.listen)
        try:
            policies = configured_policies(self._settings)
            # All files are read before any is put in force.
            answers = await asyncio.to_thread(configured_answers, self._settings)
        except ConfigurationError as error:
            log.error("policies not read: all of those in force stay", reason=str(error))
            await inforce.record_failure(self._admin, proxy, str(error))
            return
        self._answers = answers
        self._gate.replace_policies(policies)
        await inforce.record(self._admin, proxy, policies)

    async def refresh(self) -> bool:
        """Publish what the owners publish now. Raises ``HubError``, ``ConfigurationError``."""
        async with self._turn:
            return await self._refresh()

    async def _refresh(self) -> bool:
        owners = await self._owners()
        published = await publication(owners, self._adapters, self._gate, self._planner)
        for it in published.unpublished:
            log.error(
                "table not published: its policy cannot be read",
                owner=it.owner,
                table=it.table,
                line=it.mark.line,
                column=it.mark.column,
                reason=it.reason,
            )
        for unfit in published.unfit:
            _not_published(unfit.owner, unfit.table, unfit.reason, unfit.hint)
        self._gate.replace_filters(published.filters)
        answers = self._answers
        async with publishing(self._admin) as connection:
            held = await publish(connection, published.catalog, self._gate.hides)
            catalog = self._with_standing(held)
            faults = await publish_answers(connection, answers.entries, catalog)
        for refused in held.refused:
            _not_published(", ".join(refused.owners), refused.key[1], refused.reason, refused.hint)
        for dependent in held.outdated:
            log.warning(
                "it stands on what is hidden by now, and shows nothing",
                what=dependent,
                hint="drop it, and make it again over what is published",
            )
        for entry in answers.entries:
            if entry.name in faults:
                # Why is for its reviewers alone: it may name what is hidden by now.
                place = f"{entry.source}:{entry.sql_mark.line}:{entry.sql_mark.column}"
                log.warning("verified answer does not fit the catalog", name=entry.name, at=place)
        self._drafts.publish(answers, faults)
        self._pipeline.publish(catalog, await self._views())
        if held.changed:
            log.info("catalog published", version=catalog.version, tables=len(catalog.tables))
        return held.changed

    async def _owners(self) -> dict[str, tuple[str, OwnerSchema]]:
        """Read all owners: the schema each publishes into, and what it has, or had last."""
        async with asyncio.TaskGroup() as group:
            reading = {
                owner: group.create_task(self._read(owner, adapter))
                for owner, adapter in self._adapters.items()
            }
        for owner, task in reading.items():
            schema = task.result()
            if schema is not None:
                self._known[owner] = schema
        held_back = {self._schema(owner) for owner in self._adapters if owner not in self._known}
        for name in sorted(held_back):
            # Its tables may have rows at the owner that was never read: half is no answer.
            log.warning("schema not published until all its owners were read", schema=name)
        return {
            owner: (self._schema(owner), self._known[owner])
            for owner in self._adapters
            if self._schema(owner) not in held_back
        }

    def _with_standing(self, held: Published) -> Catalog:
        """Keep tables in force of which the hub still holds what they were."""
        standing = [refused.key for refused in held.refused if refused.stands]
        return held.catalog.more(self._pipeline.catalog, standing)

    def _schema(self, owner: str) -> str:
        return self._settings.owners[owner].published_schema or owner

    async def _views(self) -> list[str]:
        async with self._admin.connection() as connection:
            cursor = await connection.execute(_VIEWS)
            return [str(row[0]) for row in await cursor.fetchall()]

    async def _read(self, owner: str, adapter: Adapter) -> OwnerSchema | None:
        try:
            async with asyncio.timeout(SCHEMA_TIMEOUT):
                schema = await adapter.schema()
            unmatched = tuple(self._gate.unmatched(owner, schema))
        except OwnerError as error:
            log.warning("owner not read", owner=owner, reason=error.what)
            return None
        except TimeoutError:
            reason = f"no answer within {SCHEMA_TIMEOUT:.0f} seconds"
            log.warning("owner not read", owner=owner, reason=reason)
            return None
        except Exception as error:  # noqa: BLE001 - an adapter's fault must not stop the others
            log.error("owner not read", owner=owner, reason=type(error).__name__)
            return None
        for name in unmatched:
            log.warning("policy names nothing that the owner has", owner=owner, name=name)
        return schema


def _not_published(owner: str, table: str, reason: str, hint: str) -> None:
    log.error("table not published", owner=owner, table=table, reason=reason, hint=hint)
