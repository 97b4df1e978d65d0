"""The one retry rule of the OpenAI client, over HTTP: what is waited out, and what is final."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest
from serving import Server

from jhima.models import openai_client
from jhima.models.openai_client import (
    Client,
    EndpointRefused,
    Reply,
    RequestRefused,
    Unreachable,
    UnusableReply,
    image_part,
    read_reply,
)

KEY = "sk-secret"
MESSAGES = [{"role": "user", "content": "Hello"}]


def completion(text: object, finish: str = "stop") -> dict:
    choice = {"finish_reason": finish, "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def error(words: str, code: str = "") -> dict:
    return {"error": {"message": words, "code": code}}


class Endpoint(Server):
    """Gives `replies` in turn, each (status, JSON or text) or (status, either, headers)."""

    def __init__(self, *replies: tuple) -> None:
        self.replies, self.bodies, self.keys = list(replies), [], []

    def answer(self, _method, path, headers, body):
        assert path == "/v1/chat/completions"
        self.bodies.append(json.loads(body))
        self.keys.append(headers["Authorization"])
        status, content, *more = self.replies.pop(0)
        text = content if isinstance(content, str) else json.dumps(content)
        return status, {"Content-Type": "application/json", **(more[0] if more else {})}, text

    def complete(self, attempts: int = 4, timeout: float = 10, **parameters: float) -> Reply:
        client = Client(f"{self.url}/v1", "m", attempts, timeout, key=KEY)
        return asyncio.run(client.complete(MESSAGES, **parameters))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(openai_client, "LONGEST_PAUSE", 0.01)


def test_a_request_and_its_reply():
    with Endpoint((200, completion("Hi", "length")), (200, completion(None))) as endpoint:
        reply = endpoint.complete(seed=2**31 + 7, temperature=0.5, repetition_penalty=1.05)
        assert reply == Reply("Hi", truncated=True, prompt_tokens=10, completion_tokens=5)
        assert endpoint.complete().text == ""
    parameters = {"seed": 7, "temperature": 0.5, "repetition_penalty": 1.05}
    assert endpoint.bodies[0] == {"model": "m", "messages": MESSAGES, **parameters}
    assert endpoint.bodies[1] == {"model": "m", "messages": MESSAGES}
    assert endpoint.keys[0] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_what_may_pass_is_waited_out(status):
    failure = (status, error("later"))
    with Endpoint(failure, failure, (200, completion("Hi"))) as endpoint:
        assert endpoint.complete(attempts=3).text == "Hi"
    with Endpoint(failure, failure) as endpoint:
        with pytest.raises(Unreachable, match=f"^HTTP {status}: later$") as raised:
            endpoint.complete(attempts=2)
    assert raised.value.attempts == 2


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (400, error("too long"), RequestRefused),
        (413, error("too long"), RequestRefused),
        (422, {"detail": "too long"}, RequestRefused),
        (401, error("no such key"), EndpointRefused),
        (402, error("no money"), EndpointRefused),
        (403, error("not you"), EndpointRefused),
        (404, error("no such model"), EndpointRefused),
        (429, error("no money", "insufficient_quota"), EndpointRefused),
    ],
)
def test_what_is_final_is_asked_once(status, body, kind):
    words = body["detail"] if "detail" in body else body["error"]["message"]
    with Endpoint((status, body)) as endpoint:
        with pytest.raises(kind, match=f"HTTP {status}: .*{words}") as raised:
            endpoint.complete()
    assert raised.value.attempts == 1


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "<html>a proxy's page</html>",
        "[" * 100_000,
        [1],
        "a string",
        {"choices": []},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": "Hi"}}], "usage": [3]},
        {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": "many"}},
    ],
)
def test_garbage_with_status_200_is_asked_for_again(garbage):
    with Endpoint((200, garbage), (200, completion("Hi"))) as endpoint:
        assert endpoint.complete().text == "Hi"
    with Endpoint((200, garbage)) as endpoint, pytest.raises(Unreachable, match="^not "):
        endpoint.complete(attempts=1)


def test_silence_and_absence_are_unreachable():
    class Silent(Endpoint):
        def answer(self, *request):
            time.sleep(0.5)
            return super().answer(*request)

    with Silent((200, completion("Hi")), (200, completion("Hi"))) as endpoint:
        with pytest.raises(Unreachable, match="^no reply in 0.1 s$"):
            endpoint.complete(attempts=2, timeout=0.1)
    with pytest.raises(Unreachable, match="^APIConnectionError: "):  # it has gone by now
        endpoint.complete(attempts=2)


def test_the_servers_words_are_bounded_and_without_the_key():
    words = f"Wrong key {KEY}\n" + "blah " * 1000
    for body in (error(words), words):
        with Endpoint((401, body)) as endpoint, pytest.raises(EndpointRefused) as raised:
            endpoint.complete()
        message = str(raised.value)
        assert message.startswith("HTTP 401: Wrong key *** blah") and len(message) <= 300


def test_pauses_follow_the_server_or_double(monkeypatch):
    monkeypatch.setattr(openai_client, "LONGEST_PAUSE", 60.0)
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(openai_client.asyncio, "sleep", sleep)
    asked = ["2.5", "600", "soon", "-1", "nan"]
    replies = [(429, error("later"), {"Retry-After": value}) for value in asked]
    with Endpoint(*replies, *[(500, "")] * 3, (200, completion("Hi"))) as endpoint:
        assert endpoint.complete(attempts=9).text == "Hi"
    assert pauses[:2] == [2.5, 60.0]
    doubled = [4, 8, 16, 32, 60, 60]
    for seconds, longest in zip(pauses[2:], doubled, strict=True):
        assert longest / 2 <= seconds <= longest


def test_a_caller_may_ask_again_for_a_reply_that_it_cannot_use():
    async def use_once(client: Client) -> str:
        reply = await client.complete_once(MESSAGES)
        if reply.text != "VERDICT":
            raise UnusableReply("no verdict")
        return reply.text

    replies = [(200, completion("hm")), (500, ""), (200, completion("VERDICT"))]
    with Endpoint(*replies, *replies[:1] * 2) as endpoint:
        client = Client(f"{endpoint.url}/v1", "m", 3, 10.0)
        assert asyncio.run(client.retry(lambda: use_once(client))) == "VERDICT"
        with pytest.raises(Unreachable, match="^no verdict$"):
            asyncio.run(client.retry(lambda: use_once(client), attempts=2))


def test_an_image_is_sent_as_what_it_is():
    for content, kind in ((b"\x89PNG..", "png"), (b"\xff\xd8\xff..", "jpeg")):
        url = image_part(content)["image_url"]["url"]
        assert url == f"data:image/{kind};base64," + base64.b64encode(content).decode()


def test_missing_token_counts_are_zero():
    body = completion("Hi") | {"usage": None}
    assert read_reply(body) == Reply("Hi")
    assert read_reply(completion("Hi") | {"usage": {"prompt_tokens": None}}) == Reply("Hi")
