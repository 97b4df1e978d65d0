"""The one client of models behind an OpenAI-compatible API: teacher, judge, baselines, sampler.

Every request goes through `Client.retry`, which waits out what may pass and tells final failures
apart. What a failure means for a run is for the callers to say.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, TypeVar

import openai

T = TypeVar("T")
Api = Literal["chat", "responses"]

LONGEST_PAUSE = 60.0  # seconds between two attempts
LONGEST_MESSAGE = 300  # characters of what a server says, in an error message
TRANSIENT = (408, 409, 425, 429)  # HTTP statuses that may pass, as 500 and above may
REFUSED = (400, 413, 422)  # HTTP statuses that are about this one request


# ---- failures ----


class ApiFailure(RuntimeError):
    """A request got no usable reply; `attempts` is how often it was sent."""

    def __init__(self, message: str, attempts: int) -> None:
        super().__init__(message)
        self.attempts = attempts


class RequestRefused(ApiFailure):
    """This request is refused for good (too long, content filter); others may be answered."""


class EndpointRefused(ApiFailure):
    """Every request will be refused: a wrong key, model or address, or no money left."""


class Unreachable(ApiFailure):
    """Each attempt failed in a way that may pass: rate limit, server error, time-out, garbage."""


class UnusableReply(Exception):
    """A reply that is worth asking for again. `Client.retry` does so when its call raises this."""


# ---- messages and replies ----


@dataclass(frozen=True)
class Reply:
    """A model's text, whether the token limit cut it off, and how many tokens were used."""

    text: str
    truncated: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


def image_part(image: bytes) -> dict:
    """A PNG or JPEG file as one part of a chat message's content."""
    kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
    url = f"data:image/{kind};base64," + base64.b64encode(image).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def request_body(model: str, messages: list[dict], api: Api) -> dict:
    """A request's JSON body. For the responses API the content of each message must be a list."""
    if api == "chat":
        return {"model": model, "messages": messages}
    turns = []
    for message in messages:
        content = [_responses_part(part) for part in message["content"]]
        turns.append({"role": message["role"], "content": content})
    return {"model": model, "input": turns}


def _responses_part(part: dict) -> dict:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"]}


def read_reply(body: object, api: Api = "chat") -> Reply:
    """The reply in a response's JSON. Raises UnusableReply for any other JSON, as of a proxy."""
    try:
        usage = body.get("usage") or {}
        if api == "chat":
            choice = body["choices"][0]
            text = choice["message"]["content"] or ""
            truncated = choice.get("finish_reason") == "length"
            names = ("prompt_tokens", "completion_tokens")
        else:
            text = "".join(_output_texts(body["output"]))
            truncated = body.get("status") == "incomplete"
            names = ("input_tokens", "output_tokens")
        tokens = [int(usage.get(name) or 0) for name in names]
        if not isinstance(text, str):
            raise TypeError("the text is no string")
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise UnusableReply(f"not a reply of the {api} API: {error!r}") from None
    return Reply(text, truncated, prompt_tokens=tokens[0], completion_tokens=tokens[1])


def _output_texts(output: list[dict]) -> list[str]:
    texts = []
    for item in output:
        if item["type"] == "message":
            texts += [part["text"] for part in item["content"] if part["type"] == "output_text"]
    return texts


# ---- the client ----


@dataclass
class Client:
    """One model at one endpoint (url None: OpenAI's own).

    A request is sent at most `attempts` times; each attempt may take `timeout` seconds as a whole.
    The key is `key` or the variable OPENAI_API_KEY; local servers ask for none.
    """

    url: str | None
    model: str
    attempts: int
    timeout: float
    key: str | None = field(default=None, repr=False)
    api: Api = "chat"

    def __post_init__(self) -> None:
        self.url = self.url or "https://api.openai.com/v1"
        self.key = self.key or os.environ.get("OPENAI_API_KEY") or "none"
        self.sdk = openai.AsyncOpenAI(
            base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=0
        )

    async def complete(
        self, messages: list[dict], seed: int | None = None, **parameters: float
    ) -> Reply:
        """A reply to chat messages. parameters: temperature, max_tokens and others of the API.

        Raises RequestRefused, EndpointRefused or Unreachable.
        """
        return await self.retry(lambda: self.complete_once(messages, seed, **parameters))

    async def complete_once(
        self, messages: list[dict], seed: int | None = None, **parameters: float
    ) -> Reply:
        """One attempt at a reply, for calls that `retry` makes."""
        if seed is not None:
            parameters["seed"] = seed % 2**31
        body = request_body(self.model, messages, self.api)
        endpoint = self.sdk.chat.completions if self.api == "chat" else self.sdk.responses
        async with asyncio.timeout(self.timeout):  # a server may drip bytes for hours
            # As extra_body, because some parameters (vLLM's repetition_penalty) are not the SDK's.
            response = await endpoint.with_raw_response.create(**body, extra_body=parameters)
        try:
            reply = json.loads(response.text)
        except (ValueError, RecursionError):
            raise UnusableReply(f"not JSON: {response.text!r}") from None
        return read_reply(reply, self.api)

    async def retry(self, call: Callable[[], Awaitable[T]], attempts: int | None = None) -> T:
        """What `call` returns; it is tried again, after a pause, while it fails as may pass.

        Raises RequestRefused or EndpointRefused at the first failure of that kind, Unreachable
        after the last attempt.
        """
        last = attempts or self.attempts
        for attempt in count(1):
            try:
                return await call()
            except (openai.OpenAIError, TimeoutError, UnusableReply) as error:
                kind = Unreachable
                if isinstance(error, openai.APIStatusError):
                    kind = failure_kind(error.status_code, error.code)
                if kind is not Unreachable or attempt == last:
                    raise kind(self._describe(error), attempt) from None
                seconds = pause(attempt, error)
            await asyncio.sleep(seconds)

    def _describe(self, error: Exception) -> str:
        """An error in one bounded line: the status and the server's words, without the key."""
        if isinstance(error, openai.APIStatusError):
            text = f"HTTP {error.status_code}: {_server_words(error)}"
        elif isinstance(error, (openai.APITimeoutError, TimeoutError)):
            text = f"no reply in {self.timeout:g} s"
        elif isinstance(error, UnusableReply):
            text = str(error)
        else:
            text = f"{type(error).__name__}: {error.__cause__ or error}"
        text = text.replace(self.key, "***")
        return " ".join(text.split())[:LONGEST_MESSAGE]


def failure_kind(status: int, code: str | None = None) -> type[ApiFailure]:
    """What an HTTP status (and OpenAI's error code) says of further attempts.

    >>> [failure_kind(status).__name__ for status in (400, 401, 429, 503)]
    ['RequestRefused', 'EndpointRefused', 'Unreachable', 'Unreachable']
    """
    if code == "insufficient_quota":
        return EndpointRefused
    if status >= 500 or status in TRANSIENT:
        return Unreachable
    return RequestRefused if status in REFUSED else EndpointRefused


def pause(attempt: int, error: Exception) -> float:
    """Seconds to wait after attempt 1, 2, ...: as the server asks, or 1, 2, 4, ... with jitter."""
    try:
        requested = float(error.response.headers["retry-after"])
    except (AttributeError, KeyError, ValueError):
        requested = -1.0
    if requested >= 0:
        return min(LONGEST_PAUSE, requested)
    return min(LONGEST_PAUSE, 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def _server_words(error: openai.APIStatusError) -> str:
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return message if isinstance(message, str) else error.response.text
