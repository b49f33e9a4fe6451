"""Model calls, each made once and saved, so that runs can be made again without a model.

A call is known by the digest of the model, the chat, the parameters and the number of the run it
belongs to: whoever asks the same again gets what was replied, a draft and OAR's draft included.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakValueDictionary

from oar_proxy.drafters.model import ChatModel, Completion
from oar_proxy.prompt import Message
from oar_proxy.settings import DrafterSettings

from oar_bench.layout import BenchmarkError
from oar_bench.paper.journal import Journal

_SAVED = ("fault", "tokens_in", "tokens_out", "dollars", "seconds", "attempts")


class MissingCall(Exception):
    """A call that is not among the saved ones, where no model may be called."""

    def __init__(self) -> None:
        super().__init__("a call that this run needs was not saved")


class Calls:
    """The calls of one model; ``made`` counts those that were not saved before."""

    def __init__(self, settings: DrafterSettings, journal: Journal, *, offline: bool) -> None:
        """Raises :class:`~oar_bench.layout.BenchmarkError` for lines that are no calls."""
        self._settings = settings
        self._model = ChatModel(settings)
        self._journal = journal
        self._offline = offline
        self._saved = dict(map(_completion, journal.records()))
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.made = 0

    @property
    def model(self) -> str:
        """The model, as litellm names it."""
        return self._settings.model or ""

    async def complete(self, chat: Sequence[Message], run: int) -> Completion:
        """Return what the model replied, or replies now.

        Raises ``DrafterUnavailable``, and :class:`MissingCall` where it may not be called.
        """
        asked = {
            "model": self.model,
            "chat": list(chat),
            "temperature": self._settings.temperature,
            "max_output_tokens": self._settings.max_output_tokens,
            "run": run,
        }
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        # Two runs that need the same call at once pay for one.
        async with self._asking.setdefault(digest, asyncio.Lock()):
            saved = self._saved.get(digest)
            if saved is not None:
                return saved
            if self._offline:
                raise MissingCall
            completion = await self._model.complete(chat)
            self.made += 1
            spent = {name: value for name, value in asdict(completion).items() if name in _SAVED}
            self._journal.append({"digest": digest, **asked, "reply": completion.text, **spent})
            self._saved[digest] = completion
            return completion

    async def count_tokens(self, text: str) -> int:
        """See :class:`~oar_proxy.drafters.model.Model`."""
        return await self._model.count_tokens(text)


class Metered:
    """A model for one run, which notes what its calls cost whoever paid for them."""

    def __init__(self, calls: Calls, run: int) -> None:
        """``run`` is the run's number: runs of other numbers have calls of their own."""
        self._calls = calls
        self._run = run
        self.spent: list[Completion] = []

    @property
    def name(self) -> str:
        """The model's."""
        return self._calls.model

    async def reply(self, chat: Sequence[Message]) -> str:
        """See :class:`~oar_proxy.drafters.model.Model`."""
        completion = await self._calls.complete(chat, self._run)
        self.spent.append(completion)
        return completion.usable()

    async def count_tokens(self, text: str) -> int:
        """See :class:`~oar_proxy.drafters.model.Model`."""
        return await self._calls.count_tokens(text)


def _completion(record: dict[str, Any]) -> tuple[str, Completion]:
    try:
        return record["digest"], Completion(
            record["reply"], **{name: record[name] for name in _SAVED}
        )
    except KeyError as error:
        raise BenchmarkError(f"not a file of saved calls: a line has no {error}") from error
