"""The one client of models behind an OpenAI-compatible API: teacher, judge, baselines, sampler.

It speaks /chat/completions and /responses, and learns from a server's refusals which of them, and
which parameters, a model takes. Every request goes through `Client.retry`, which waits out what may
pass and tells final failures apart. What a failure means for a run is for the callers to say.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, TypeVar
from urllib.parse import unquote, urlsplit

import openai
from PIL import Image

T = TypeVar("T")
Api = Literal["chat", "responses"]

OPENAI = "https://api.openai.com/v1"
LONGEST_PAUSE = 60.0  # seconds between two attempts
PATIENCE = 600.0  # seconds that a server may ask for in all, on top of the attempts
LONGEST_MESSAGE = 300  # characters of what a server says, in an error message
SECRET = 6  # a key or password of at least so many characters is cut out of what servers say
TRANSIENT = (408, 409, 425, 429)  # HTTP statuses that may pass, as 500 and above may
ABOUT_THIS_REQUEST = (400, 413, 422)  # HTTP statuses that may be about one request

# The words of OpenAI, Azure, vLLM, SGLang, llama.cpp, Mistral, Gemini and others for a request
# that is too long, and for one whose content a filter stopped.
TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|too long|longer than|reduce (the|your) (length|prompt)|"
    r"max(imum)?[ _](model|prompt|input|sequence)[ _]len|above_max_length|input length|"
    r"too many tokens|tokens? (limit|count)|number of (input )?tokens|"
    r"(entity|content|request) too large|too large for model",
    re.IGNORECASE,
)
CONTENT = re.compile(
    r"content[ _](filter|management|polic|moderation)|invalid_prompt|usage polic|moderation|"
    r"flagged|inappropriate|prohibited[ _]content|ResponsibleAI|data_inspection|"
    r"safety[ _](polic|syst)",
    re.IGNORECASE,
)
# ... and for a model that the other API serves.
OTHER_API = re.compile(
    r"v1/responses|responses api|chat/completions|chat completions api|not a chat model|"
    r"unsupported_api|OperationNotSupported|operation does not work",
    re.IGNORECASE,
)


# ---- failures ----


class ApiFailure(RuntimeError):
    """A request got no usable reply; `attempts` is how often it was sent, `status` HTTP's."""

    def __init__(self, message: str, attempts: int, status: int = 0) -> None:
        super().__init__(message)
        self.attempts, self.status = attempts, status


class RequestRefused(ApiFailure):
    """This request is refused for good, for its length or content; others may be answered."""


class EndpointRefused(ApiFailure):
    """Every request will be refused: a wrong key, model, address or setup, or no money left."""


class Unreachable(ApiFailure):
    """Each attempt failed in a way that may pass: rate limit, server error, time-out, garbage."""


class UnusableReply(Exception):
    """A reply that is worth asking for again. `Client.retry` does so when its call raises this."""


class Refused(Exception):
    """An error that a server reports, as an HTTP status or inside a reply of status 200.

    body: its JSON or text. wait: seconds after which the server wants to be asked again.
    """

    def __init__(self, status: int, body: object, wait: float | None = None) -> None:
        self.status, self.wait, self.words = status, wait, words_of(body)
        error = body[0] if isinstance(body, list) and body else body
        error = error.get("error") or error if isinstance(error, dict) else None
        fields = error if isinstance(error, dict) else {}
        self.code, self.parameter = (str(fields.get(name) or "") for name in ("code", "param"))
        self.said = f"{self.code} {fields.get('type')} {self.words}"
        super().__init__(f"HTTP {status}: {self.words}")

    def kind(self) -> type[ApiFailure]:
        """What the refusal says of further attempts.

        >>> [Refused(status, "").kind().__name__ for status in (400, 413, 401, 429, 503)]
        ['EndpointRefused', 'RequestRefused', 'EndpointRefused', 'Unreachable', 'Unreachable']
        >>> Refused(400, "This model's maximum context length is 8192 tokens").kind().__name__
        'RequestRefused'
        """
        if "insufficient_quota" in self.said:
            return EndpointRefused
        too_long = self.status in ABOUT_THIS_REQUEST and TOO_LONG.search(self.said)
        filtered = self.status in (400, 403, 422) and CONTENT.search(self.said)
        # 429: more tokens than a minute allows, so no waiting helps.
        if too_long or filtered or self.status == 413 or "Request too large" in self.said:
            return RequestRefused
        passing = self.status >= 500 or self.status in TRANSIENT
        return Unreachable if passing else EndpointRefused

    def blames(self, parameter: str) -> bool:
        """Whether this request was refused because of a parameter."""
        if self.status not in ABOUT_THIS_REQUEST:
            return False
        named = re.search(rf"\b{re.escape(parameter)}\b", self.words)
        return parameter == self.parameter or named is not None


def words_of(body: object, depth: int = 5) -> str:
    """The words in an error's body, in any of the shapes that servers give it."""
    if isinstance(body, str):
        return re.sub(r"<[^<>]*>", " ", body[:5000])  # a proxy's page
    if isinstance(body, list) and depth:
        return "; ".join(words_of(part, depth - 1) for part in body[:3])
    if isinstance(body, dict) and depth:
        parts = []
        if isinstance(body.get("loc"), list):  # FastAPI: which part of the request is wrong
            parts.append(".".join(map(str, body["loc"])) + ":")
        for name in ("error", "message", "detail", "msg", "data"):
            if body.get(name):
                parts.append(words_of(body[name], depth - 1))
                break
        if isinstance(body.get("metadata"), dict):  # OpenRouter: the provider's own words
            parts.append(str(body["metadata"].get("raw") or ""))
        if parts:
            return " ".join(parts)
    return repr(body)[:LONGEST_MESSAGE]


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
    """A request's JSON body, from chat messages whose content is a text or a list of parts."""
    turns = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            content = _encodable(content)
        else:
            content = [_part(part, api) for part in content]
        turns.append({"role": message["role"], "content": content})
    return {"model": model, "messages" if api == "chat" else "input": turns}


def _part(part: dict, api: Api) -> dict:
    if part["type"] == "text":
        return {"type": "text" if api == "chat" else "input_text", "text": _encodable(part["text"])}
    if api == "chat":
        return part
    return {"type": "input_image", "image_url": part["image_url"]["url"]}


def _encodable(text: str) -> str:
    """Half a character (a page or a reply can hold one) has no UTF-8 and would fail a request."""
    return text.encode("utf-8", "replace").decode()


def blank(messages: list[dict]) -> list[dict]:
    """Messages of the same shape with a word for each text and a dot for each image."""
    dot = io.BytesIO()
    Image.new("RGB", (64, 64)).save(dot, "PNG")
    parts = {"text": {"type": "text", "text": "Hi"}, "image_url": image_part(dot.getvalue())}
    turns = []
    for message in messages:
        content = "Hi"
        if not isinstance(message["content"], str):
            content = [parts[part["type"]] for part in message["content"]]
        turns.append({"role": message["role"], "content": content})
    return turns


def read_reply(body: object, api: Api = "chat") -> Reply:
    """The reply in a response's JSON.

    Raises Refused where it reports an error, UnusableReply for any other JSON, as of a proxy.
    """
    try:
        if body.get("error"):  # as OpenRouter and a failed response of OpenAI do
            code = body["error"].get("code") if isinstance(body["error"], dict) else None
            raise Refused(code if isinstance(code, int) and code >= 400 else 500, body)
        usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
        if api == "chat":
            choice = body["choices"][0]
            message = choice["message"]
            text = _text(message["content"] or message.get("refusal") or "")
            truncated = choice.get("finish_reason") == "length"
            names = ("prompt_tokens", "completion_tokens")
        else:
            spoken = [item for item in body["output"] if item["type"] == "message"]
            text = "".join(_text(item["content"]) for item in spoken)
            truncated = body.get("status") == "incomplete"
            names = ("input_tokens", "output_tokens")
    except (AttributeError, LookupError, TypeError) as error:
        raise UnusableReply(f"not a reply of the {api} API: {error!r}") from None
    counts = [usage.get(name) for name in names]
    tokens = [count if isinstance(count, int) else 0 for count in counts]
    return Reply(text, truncated, prompt_tokens=tokens[0], completion_tokens=tokens[1])


def _text(content: object) -> str:
    """A content's text, whole or in parts; parts of other kinds are thoughts, or refusals."""
    if isinstance(content, list):
        spoken = [part for part in content if part["type"] in ("text", "output_text")]
        content = "".join(part["text"] for part in spoken)
    if not isinstance(content, str):
        raise TypeError("the text is no string")
    return _encodable(content)


# ---- the client ----


@dataclass
class Client:
    """One model at one endpoint (url None: OpenAI's own).

    A request is sent at most `attempts` times; each attempt may take `timeout` seconds as a whole.
    The key is `key` or the variable OPENAI_API_KEY; local servers ask for none. api: which to try
    first. Raises ValueError for what is no URL or cannot be a key.
    """

    url: str | None
    model: str
    attempts: int
    timeout: float
    key: str | None = field(default=None, repr=False)
    api: Api = "chat"

    def __post_init__(self) -> None:
        self.url = (self.url or OPENAI).rstrip("/")
        self.key = (self.key or os.environ.get("OPENAI_API_KEY") or "none").strip()
        self.place, self.secrets = _without_secrets(self.url)
        if not (self.key.isascii() and self.key.isprintable()):
            raise ValueError(f"the API key for {self.place}: expected printable ASCII characters")
        if self.key != "none":
            self.secrets.append(self.key)
        self.sdk = openai.AsyncOpenAI(
            base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=0
        )
        self._spelling: dict[str, str] = {}  # of parameters, as learned; "" for those left out
        self._other_api: Refused | None = None  # why the other API was tried
        self._lessons: list[tuple[str, str]] = []
        self._noted: set[str] = set()

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
        """One attempt at a reply, for calls that `retry` makes.

        A refusal that teaches how this server wants to be asked is no attempt.
        """
        if seed is not None:
            parameters["seed"] = seed % 2**31
        while True:
            known = len(self._lessons)
            try:
                reply = await self._send(messages, self._spelled(parameters))
            except Refused as refusal:
                # Others may have learned meanwhile what this request did not know.
                if known == len(self._lessons) and not self._learn(refusal, parameters):
                    raise
                continue
            self._say_lessons()
            return reply

    async def _send(self, messages: list[dict], parameters: dict[str, float]) -> Reply:
        api, endpoint = self.api, self.sdk.responses
        if api == "chat":
            endpoint = self.sdk.chat.completions
        body = request_body(self.model, messages, api)
        try:
            async with asyncio.timeout(self.timeout):  # a server may drip bytes for hours
                # As extra_body, because vLLM's parameters (repetition_penalty) are not the SDK's.
                response = await endpoint.with_raw_response.create(**body, extra_body=parameters)
        except openai.APIStatusError as error:
            raise as_refused(error) from None
        try:
            content = json.loads(response.text)
        except (ValueError, RecursionError):
            raise UnusableReply(f"not JSON: {response.text[:LONGEST_MESSAGE]!r}") from None
        return self.read(content, api)

    def read(self, body: object, api: Api) -> Reply:
        """The reply in a response's JSON, without secrets that the server echoes."""
        reply = read_reply(body, api)
        return replace(reply, text=self.masked(reply.text))

    def masked(self, text: str) -> str:
        for secret in self.secrets:
            if len(secret) >= SECRET:
                text = text.replace(secret, "***")
        return text

    def one_line(self, text: str) -> str:
        """What a server said, as an error message holds it."""
        return " ".join(self.masked(text).split())[:LONGEST_MESSAGE]

    def _spelled(self, parameters: dict[str, float]) -> dict[str, float]:
        spelled = {}
        for name, value in parameters.items():
            if self.api == "responses" and name == "max_tokens":
                name = self._spelling.get(name, "max_output_tokens")
            else:
                name = self._spelling.get(name, name)
            if name:
                spelled[name] = value
        return spelled

    def _learn(self, refusal: Refused, parameters: dict[str, float]) -> bool:
        """Whether a refusal teaches how to ask: by the other API, or with other parameters."""
        if refusal.kind() is not EndpointRefused:
            return False
        for name, value in parameters.items():
            sent = next(iter(self._spelled({name: value})), None)
            if sent and refusal.blames(sent):
                renamed = name == sent == "max_tokens"
                self._spelling[name] = "max_completion_tokens" if renamed else ""
                how = self._spelling[name] if renamed else f"no {sent}"
                self._lessons.append((f"is asked with {how}", refusal.words))
                return True
        nowhere = refusal.status in (404, 405) and not re.search(r"\bmodel", refusal.said)
        if self._other_api is None and (nowhere or OTHER_API.search(refusal.said)):
            self._other_api, self._spelling = refusal, {}
            self.api = "chat" if self.api == "responses" else "responses"
            self._lessons.append((f"is asked by the {self.api} API", refusal.words))
            return True
        if nowhere and self._other_api is not None:
            raise self._other_api  # neither is there: the first address is the one that was meant
        return False

    def _say_lessons(self) -> None:
        """Tells once, when a reply shows that it works, how the model is asked."""
        for lesson in self._lessons:
            self.note(*lesson)

    def note(self, what: str, words: str) -> None:
        """Says once on stderr what this model's user should know, with the server's words."""
        if what not in self._noted:
            line = self.one_line(f"{what}: {words}")
            print(f"note: {self.model} at {self.place} {line}", file=sys.stderr)
        self._noted.add(what)

    async def answers(self, messages: list[dict], **parameters: float) -> bool:
        """Whether a blank request of this shape is answered now.

        If it is, a request that failed has only itself to blame.
        """
        try:
            await self.complete_once(blank(messages), **parameters)
        except (openai.OpenAIError, TimeoutError, UnusableReply, Refused):
            return False
        return True

    async def retry(self, call: Callable[[], Awaitable[T]], attempts: int | None = None) -> T:
        """What `call` returns; it is tried again, after a pause, while it fails as may pass.

        A server that says when to come back is waited for, up to PATIENCE, without counting that
        as an attempt. Raises RequestRefused or EndpointRefused at the first failure of that kind,
        Unreachable after the last attempt.
        """
        if self.url == OPENAI and self.key == "none":
            raise EndpointRefused("no OPENAI_API_KEY in the environment", 0)
        last, sent, failed, waited = attempts or self.attempts, 0, 0, 0.0
        while True:
            sent += 1
            try:
                return await call()
            except openai.APIStatusError as error:  # of the SDK's other calls
                failure: Exception = as_refused(error)
            except (openai.OpenAIError, TimeoutError, UnusableReply, Refused) as error:
                failure = error
            kind, seconds, status = Unreachable, None, 0
            if isinstance(failure, Refused):
                kind, seconds, status = failure.kind(), failure.wait, failure.status
            asked_to_wait = seconds is not None and waited + seconds <= PATIENCE
            failed += not asked_to_wait
            if kind is not Unreachable or failed >= last:
                raise kind(self._describe(failure), sent, status) from None
            if seconds is None:
                seconds = 2.0 ** min(sent - 1, 10) * random.uniform(0.5, 1.0)
            seconds = min(LONGEST_PAUSE, seconds)
            waited += max(1.0, seconds)
            await asyncio.sleep(seconds)

    def _describe(self, error: Exception) -> str:
        """An error in one bounded line: the status and the server's words, without secrets."""
        if isinstance(error, (openai.APITimeoutError, TimeoutError)):
            text = f"no reply in {self.timeout:g} s"
        elif isinstance(error, openai.OpenAIError):
            text = f"{type(error).__name__}: {error.__cause__ or error}"
        else:
            text = str(error)
        return self.one_line(text)


def as_refused(error: openai.APIStatusError) -> Refused:
    """The SDK's exception, read by us."""
    try:
        body = json.loads(error.response.text)
    except (ValueError, RecursionError):
        body = error.response.text
    return Refused(error.status_code, body, _retry_after(error.response.headers))


def _retry_after(headers: dict[str, str]) -> float | None:
    """The seconds after which a server wants to be asked again, None if it does not say."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(seconds, LONGEST_PAUSE) if seconds > 0 else None


def _without_secrets(url: str) -> tuple[str, list[str]]:
    """A URL for error messages, and the user's name and password that it held.

    Raises ValueError for anything but an http or https URL.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        host, valid = "", False
    if not valid:
        shown = url.rpartition("@")[2][:LONGEST_MESSAGE]
        raise ValueError(f"{shown!r}: expected the URL of an API, http://... or https://...")
    secrets = []
    if parts.password:
        login = unquote(f"{parts.username}:{parts.password}").encode()
        secrets = [parts.password, unquote(parts.password), base64.b64encode(login).decode()]
    return f"{parts.scheme}://{host}{parts.path}", secrets
