"""Language models through litellm, any provider or a local server, and the drafter that asks one.

The only module that imports litellm, and only when a call is made: the import takes seconds.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import random
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydantic import BaseModel

from oar_proxy.catalog import Catalog
from oar_proxy.drafters import Draft, Failure
from oar_proxy.errors import DrafterUnavailable, NoValidDraft
from oar_proxy.prompt import Message, messages
from oar_proxy.question import Question
from oar_proxy.settings import DrafterSettings

ATTEMPTS: Final = 3
"""Calls for one draft: a provider's hiccup passes within two retries or not soon."""
FIRST_PAUSE: Final = 0.5
"""Seconds before the first retry; doubled each time, and at most :data:`LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 8.0
"""Seconds; a provider that asks for more (Retry-After) is unavailable to an interactive user."""


class UnusableReply(DrafterUnavailable):
    """The model replied, and the reply is cut off, empty or a refusal: asking again is no help."""


_CUT_OFF: Final = "the model's reply was cut off: drafter.max_output_tokens was reached"
_REFUSED: Final = "the model refused the question"
_EMPTY: Final = "the model's reply was empty"


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of one chat, and what it cost.

    ``fault`` says why the reply is of no use, None where it is; ``text`` is None where the model
    wrote nothing. Tokens are the provider's count. ``dollars`` is litellm's price, None where it
    knows none. ``seconds`` are of the clock, over all ``attempts`` and the pauses between them.
    """

    text: str | None = field(repr=False)
    fault: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float | None = None
    seconds: float = 0.0
    attempts: int = 1

    def usable(self) -> str:
        """Return the text. Raises :class:`UnusableReply` where it is of no use."""
        if self.fault is not None or self.text is None:
            raise UnusableReply(
                self.fault or _EMPTY,
                hint="raise drafter.max_output_tokens" if self.fault == _CUT_OFF else None,
            )
        return self.text


class Model(Protocol):
    """A language model as drafters and protocols use it."""

    @property
    def name(self) -> str:
        """Who it is: part of a cache's key."""
        ...

    async def reply(self, chat: Sequence[Message]) -> str:
        """Return the reply to a chat, which is asked for as a JSON object.

        Raises ``DrafterUnavailable`` when the model cannot be reached, and
        :class:`UnusableReply`, which is one, when it refuses or gives no complete reply.
        """
        ...

    async def count_tokens(self, text: str) -> int:
        """Count a text's tokens with one tokenizer, the same for every model."""
        ...


class ChatModel:
    """One configured model: messages in, the text of its reply out."""

    def __init__(self, settings: DrafterSettings, *, first_pause: float = FIRST_PAUSE) -> None:
        """``settings.model`` is litellm's name of the model, with its provider's prefix."""
        if not settings.model:
            raise ValueError("drafter kind litellm needs a model")
        self._model: Final = settings.model
        self._settings = settings
        self._first_pause = first_pause
        self._imported = asyncio.Lock()

    @property
    def name(self) -> str:
        """``litellm:<model>``."""
        return f"litellm:{self._model}"

    async def reply(self, chat: Sequence[Message]) -> str:
        """See :class:`Model`."""
        return (await self.complete(chat)).usable()

    async def complete(self, chat: Sequence[Message]) -> Completion:
        """Call the model, and again where a fault may pass. Raises ``DrafterUnavailable``."""
        litellm = await self._litellm()
        request = self._request(litellm, chat)
        pause = self._first_pause
        started = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asyncio.timeout(self._settings.timeout):
                    response = await litellm.acompletion(**request)
                return _completion(response, time.monotonic() - started, attempt)
            except _passing(litellm) as error:
                asked = _retry_after(error)
                if attempt == ATTEMPTS or asked > LONGEST_PAUSE:
                    raise self._unavailable(error) from None
            except litellm.exceptions.ContentPolicyViolationError:
                seconds = time.monotonic() - started
                return Completion(None, _REFUSED, seconds=seconds, attempts=attempt)
            except litellm.exceptions.openai.OpenAIError as error:  # the root of litellm's own
                raise self._unavailable(error) from None
            # Jitter, so that clients stopped by one rate limit do not return together.
            await asyncio.sleep(max(asked, pause * random.uniform(0.5, 1.0)))  # noqa: S311
            pause = min(pause * 2, LONGEST_PAUSE)
        raise AssertionError("unreachable")

    async def count_tokens(self, text: str) -> int:
        """Count a text's tokens with one tokenizer, the same for every model, without a network."""
        litellm = await self._litellm()
        return len(litellm.encode(model="", text=text))

    async def _litellm(self) -> Any:
        async with self._imported:
            return await asyncio.to_thread(_import_litellm)

    def _request(self, litellm: Any, chat: Sequence[Message]) -> dict[str, Any]:
        settings = self._settings
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(chat),
            "temperature": settings.temperature,
            "max_tokens": settings.max_output_tokens,
            "timeout": settings.timeout,
            "num_retries": 0,
            "max_retries": 0,
            # Some models accept a subset only; the prompt asks for the same thing in words.
            "drop_params": True,
        }
        if settings.api_base:
            request["api_base"] = settings.api_base
        if settings.api_key:
            request["api_key"] = settings.api_key.get_secret_value()
        supported = litellm.get_supported_openai_params(model=self._model) or ()
        if "response_format" in supported:
            request["response_format"] = {"type": "json_object"}
        return request

    def _unavailable(self, error: BaseException) -> DrafterUnavailable:
        """Say what kind of failure it was: a provider's own text may quote the prompt or a key."""
        kind = _failure_kind(error)
        return DrafterUnavailable(
            f"model {self._model} is unavailable: {kind}",
            hint="check drafter.model, drafter.api_base and drafter.api_key, or ask again later",
        )


class ModelDrafter:
    """Drafts with one model."""

    def __init__(self, model: Model) -> None:
        """``model`` writes the drafts."""
        self._model = model

    @property
    def name(self) -> str:
        """The model's: ``litellm:<model>``."""
        return self._model.name

    async def propose(
        self, question: Question, catalog: Catalog, failures: Sequence[Failure]
    ) -> Draft:
        """Ask the model.

        Raises what :meth:`Model.reply` does, and ``NoValidDraft`` when the reply is not the
        JSON object asked for.
        """
        reply = await self._model.reply(messages(question.normalised, catalog, failures))
        answer = parse_reply(reply)
        if not answer.sql.strip():
            return Draft(None, self.name, _shown(answer.reason))
        return Draft(answer.sql.strip(), self.name)


class Answer(BaseModel):
    """The object the prompt asks for."""

    sql: str
    reason: str = ""


_FENCED: Final = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


def unfenced(reply: str) -> str:
    """Return a reply without the one Markdown fence that may stand around all of it."""
    text = reply.strip()
    fenced = _FENCED.match(text)
    return fenced.group(1) if fenced else text


def parse_reply(reply: str) -> Answer:
    """Read a model's reply: one JSON object, alone or in one Markdown fence, nothing else.

    Raises ``NoValidDraft``. Searching prose for something like SQL would sooner or later find
    the wrong thing.
    """
    try:
        return Answer.model_validate(json.loads(unfenced(reply)))
    except (ValueError, RecursionError):  # of JSON's as of the form's
        raise NoValidDraft(
            "no valid draft: the model's reply is not the JSON object it was asked for",
            hint="ask again, or configure a model that follows instructions",
        ) from None


def _completion(response: Any, seconds: float, attempts: int) -> Completion:
    choice = response.choices[0]
    text = choice.message.content
    if not isinstance(text, str) or not text.strip():
        text = None
    usage = getattr(response, "usage", None)
    return Completion(
        text,
        _fault(choice, text),
        getattr(usage, "prompt_tokens", None) or 0,
        getattr(usage, "completion_tokens", None) or 0,
        # Nothing is no price: models that litellm has none for may be listed with that.
        response._hidden_params.get("response_cost") or None,
        seconds,
        attempts,
    )


def _fault(choice: Any, text: str | None) -> str | None:
    if choice.finish_reason == "length":
        return _CUT_OFF
    if choice.finish_reason == "content_filter" or getattr(choice.message, "refusal", None):
        return _REFUSED
    return None if text is not None else _EMPTY


def _import_litellm() -> Any:
    # Without this the import fetches a price list over the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # Its log lines can quote a prompt, and the question is in that; errors reach us as exceptions.
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It prepares calls in a thread: one that is cancelled meanwhile is prepared, and never made.
    warnings.filterwarnings(
        "ignore", r"coroutine '.*\.acompletion' was never awaited", RuntimeWarning
    )
    return litellm


def _passing(litellm: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions that may pass by themselves."""
    exceptions = litellm.exceptions
    return (
        TimeoutError,
        exceptions.RateLimitError,
        exceptions.InternalServerError,
        exceptions.ServiceUnavailableError,
        exceptions.BadGatewayError,
        exceptions.APIConnectionError,
        exceptions.Timeout,
    )


def _retry_after(error: BaseException) -> float:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:  # an HTTP date: the own pause will do
        return 0.0


def _failure_kind(error: BaseException) -> str:
    if isinstance(error, TimeoutError) or type(error).__name__ == "Timeout":
        return "no reply in time"
    # litellm gives the failure of a connection a status that nobody answered with.
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "APIConnectionError":
            return "no connection"
        cause = cause.__cause__ or cause.__context__
    status = getattr(error, "status_code", None)
    return (
        f"it answered with HTTP status {status}" if isinstance(status, int) else "its call failed"
    )


def _shown(reason: str) -> str:
    """Return a model's reason for abstaining on one line of bounded length."""
    text = " ".join(reason.split())
    return text[:300] if text else "the model finds no answer in what is published"
