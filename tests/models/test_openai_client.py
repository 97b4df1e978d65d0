"""The OpenAI client over HTTP: what is waited out, what is final, and what it learns from servers.

The refusals are worded as OpenAI, Azure, vLLM, SGLang, llama.cpp, Mistral, Gemini, LiteLLM and
OpenRouter word theirs.
"""

from __future__ import annotations

import asyncio
import base64
import doctest
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

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
        self.replies, self.bodies, self.keys, self.paths = list(replies), [], [], []

    def answer(self, _method, path, headers, body):
        self.paths.append(path)
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
    assert doctest.testmod(openai_client).failed == 0
    with Endpoint((200, completion("Hi", "length")), (200, completion(None))) as endpoint:
        reply = endpoint.complete(seed=2**31 + 7, temperature=0.5, repetition_penalty=1.05)
        assert reply == Reply("Hi", truncated=True, prompt_tokens=10, completion_tokens=5)
        assert endpoint.complete().text == ""
    parameters = {"seed": 7, "temperature": 0.5, "repetition_penalty": 1.05}
    assert endpoint.bodies[0] == {"model": "m", "messages": MESSAGES, **parameters}
    assert endpoint.bodies[1] == {"model": "m", "messages": MESSAGES}
    assert endpoint.keys[0] == f"Bearer {KEY}" and set(endpoint.paths) == {"/v1/chat/completions"}


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
        (413, error("too much"), RequestRefused),
        (400, error("no vision"), EndpointRefused),
        (422, {"detail": "no vision"}, EndpointRefused),
        (401, error("no such key"), EndpointRefused),
        (402, error("no money"), EndpointRefused),
        (403, error("not you"), EndpointRefused),
        (404, error("no such model"), EndpointRefused),
        (400, error("Unknown model"), EndpointRefused),
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
        {"choices": None},
        {"choices": [{"message": {"content": [{"text": "Hi"}]}}]},
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


@pytest.mark.parametrize("usage", [None, [3], {"prompt_tokens": None}, {"prompt_tokens": "many"}])
def test_missing_token_counts_are_zero(usage):
    """A reply that was paid for is not asked for again because its bill cannot be read."""
    assert read_reply(completion("Hi") | {"usage": usage}) == Reply("Hi")


def test_a_content_in_parts_is_read_without_the_thoughts():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thought, {"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]
    assert read_reply(completion(parts)).text == "Hi there"
    said = {"type": "message", "content": [{"type": "output_text", "text": "Hi \ud800"}]}
    body = {"error": None, "output": [{"type": "reasoning", "summary": []}, said]}
    assert read_reply(body, "responses").text == "Hi ?"  # half a character would fail a request


# ---- refusals, in servers' own words ----

VLLM_LONG = (
    "The decoder prompt (length 6404) is longer than the maximum model length of 4096. Make sure "
    "that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens. For "
    "image inputs, the number of image tokens depends on the number of images."
)
THIS_REQUEST = [
    (400, error("Your input exceeds the window.", "context_length_exceeded")),
    (400, {"object": "error", "message": VLLM_LONG, "code": 400}),
    (400, error("This model's maximum context length is 8192 tokens. However, you requested 9000")),
    (400, error("'max_tokens' is too large: 9. This model's maximum context length is 8 tokens")),
    (400, error("The input (9 tokens) is longer than the model's context length (8 tokens).")),
    (400, error("the request exceeds the available context size. try increasing it")),
    (400, error("prompt is too long: 9 tokens > 8 maximum")),
    (400, error("Prompt contains 9 tokens, too large for model with 8 maximum context length")),
    (400, [{"error": {"message": "The input token count (9) exceeds the maximum, 8"}}]),
    (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    (429, error("Request too large for m on tokens per min (TPM): Limit 8, Requested 9.")),
    (400, error("The response was filtered due to the prompt triggering Azure OpenAI's content "
                "management policy.", "content_filter")),
    (400, error("Invalid prompt: your prompt was flagged as potentially violating our usage "
                "policy.", "invalid_prompt")),
    (403, error("m requires moderation, and your input was flagged for violence")),
    (400, error("Input data may contain inappropriate content.", "data_inspection_failed")),
]  # fmt: skip
THIS_SETUP = [
    (400, {"object": "error", "message": "At most 1 image(s) may be provided in one request."}),
    (400, {"object": "error", "message": "m is not a multimodal model", "code": 400}),
    (400, error("Invalid content type. image_url is only supported by certain models.")),
    (
        404,
        error("The model `m` does not exist or you do not have access to it.", "model_not_found"),
    ),
    (400, {"detail": "Invalid model name passed in model=m"}),
    (422, {"detail": [{"loc": ["body", "messages", 0, "content"], "msg": "should be a string"}]}),
    (403, error("Your access was terminated due to violation of our policies.")),
    (403, "<html>you are blocked</html>"),
]


@pytest.mark.parametrize("status, body", THIS_REQUEST)
def test_length_and_content_are_about_one_request(status, body):
    with Endpoint((status, body)) as endpoint, pytest.raises(RequestRefused, match="^HTTP 4.*: "):
        endpoint.complete(max_tokens=9)


@pytest.mark.parametrize("status, body", THIS_SETUP)
def test_other_refusals_are_about_the_setup(status, body):
    with Endpoint((status, body)) as endpoint, pytest.raises(EndpointRefused) as raised:
        endpoint.complete(max_tokens=9)
    said = json.dumps(body)
    assert all(word in said for word in str(raised.value).split()[-2:])  # the server's own words


def test_an_error_inside_status_200_is_an_error():
    busy = {
        "error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "busy"}}
    }
    with Endpoint((200, busy), (200, completion("Hi"))) as endpoint:
        assert endpoint.complete().text == "Hi"
    with Endpoint((200, busy)) as endpoint, pytest.raises(Unreachable, match="429: .* busy$"):
        endpoint.complete(attempts=1)
    with Endpoint((200, {"error": {"message": "no money", "code": 402}})) as endpoint:
        with pytest.raises(EndpointRefused, match="no money"):
            endpoint.complete()


# ---- what it learns ----


def picky(known: dict[str, str], said: dict) -> type[Endpoint]:
    """A server that refuses each parameter of `known` with its own words."""

    class Picky(Endpoint):
        def answer(self, method, path, headers, body):
            for name, words in known.items():
                if name in json.loads(body):
                    self.replies.insert(0, (422 if words.startswith("{") else 400, words))
                    break
            else:
                self.replies.insert(0, (200, said))
            return super().answer(method, path, headers, body)

    return Picky


GPT_5 = {
    "max_tokens": error(
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead.",
        "unsupported_parameter",
    ),
    "temperature": error(
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
        "value is supported."
    ),
    "repetition_penalty": error("Unrecognized request argument supplied: repetition_penalty"),
}
MISTRAL = {
    "seed": {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
    "max_completion_tokens": {"message": {"detail": [{"loc": ["max_completion_tokens"]}]}},
}
SILENT = {"seed": {"error": {"message": "no", "param": "seed"}}}


@pytest.mark.parametrize(
    "refuses, taken",
    [
        (GPT_5, {"max_completion_tokens": 9, "seed": 7}),
        (MISTRAL, {"max_tokens": 9, "temperature": 0, "repetition_penalty": 2}),
        (SILENT, {"max_tokens": 9, "temperature": 0, "repetition_penalty": 2}),
    ],
)
def test_parameters_that_a_server_refuses_are_left_out_from_then_on(refuses, taken, capsys):
    known = {name: json.dumps(body) for name, body in refuses.items()}
    with picky(known, completion("Hi"))() as endpoint:
        client = Client(f"{endpoint.url}/v1", "m", 1, 10)
        parameters = {"max_tokens": 9, "temperature": 0, "repetition_penalty": 2}

        async def ask():
            asked = [client.complete(MESSAGES, 7, **parameters) for _ in range(4)]
            return await asyncio.gather(*asked), await client.complete(MESSAGES, 7, **parameters)

        asyncio.run(ask())
        assert endpoint.bodies[-1] == {"model": "m", "messages": MESSAGES, **taken}
        assert len(endpoint.bodies) <= 4 * 4 + 5
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == len(refuses.keys() - {"max_completion_tokens"})
    assert all(f"note: m at {endpoint.url}/v1 is asked with" in note for note in notes)


def spoken(text: str) -> dict:
    return {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}


@pytest.mark.parametrize(
    "refusal",
    [
        (404, error("This model is only supported in v1/responses and not in "
                    "v1/chat/completions.")),
        (404, error("This is not a chat model and thus not supported in the v1/chat/completions "
                    "endpoint. Did you mean to use v1/completions?")),
        (400, error("The chatCompletion operation does not work with the specified model, m.",
                    "OperationNotSupported")),
        (400, error("model m is not accessible via the /chat/completions endpoint")),
        (404, {"detail": "Not Found"}),
        (404, "404 page not found"),
    ],
)  # fmt: skip
def test_a_model_of_the_other_api_is_asked_there(refusal):
    unknown = (400, error("Unknown parameter: 'seed'.") | {"param": "seed"})
    with Endpoint(refusal, unknown, (200, spoken("Hi"))) as endpoint:
        image = [{"type": "text", "text": "Look"}, image_part(b"\x89PNG")]
        client = Client(f"{endpoint.url}/v1", "m", 1, 10)
        messages = [*MESSAGES, {"role": "user", "content": image}]
        assert asyncio.run(client.complete(messages, 7, max_tokens=99)).text == "Hi"
    assert endpoint.paths == ["/v1/chat/completions", "/v1/responses", "/v1/responses"]
    asked = endpoint.bodies[-1]
    assert (
        asked["max_output_tokens"] == 99
        and "seed" not in asked
        and asked["input"][0] == MESSAGES[0]
    )
    assert [part["type"] for part in asked["input"][1]["content"]] == ["input_text", "input_image"]


def test_a_wrong_address_is_reported_in_the_first_words():
    with Endpoint((404, "nothing here"), (404, "nor here")) as endpoint:
        with pytest.raises(EndpointRefused, match="^HTTP 404: nothing here$"):
            endpoint.complete()
    for url in ("localhost:8000/v1", "http://", "ftp://host/v1", "http://host:port/v1"):
        with pytest.raises(ValueError, match="expected the URL of an API"):
            Client(url, "m", 1, 10)


# ---- patience ----


def test_a_server_that_says_when_to_come_back_is_waited_for(monkeypatch):
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(openai_client, "LONGEST_PAUSE", 60.0)
    monkeypatch.setattr(openai_client.asyncio, "sleep", sleep)
    busy = (429, error("slow down"), {"Retry-After": "12"})
    with Endpoint(*[busy] * 20, (200, completion("Hi"))) as endpoint:
        assert endpoint.complete(attempts=1).text == "Hi" and pauses == [12.0] * 20
    with Endpoint(*[busy] * 60) as endpoint, pytest.raises(Unreachable, match="slow down"):
        endpoint.complete(attempts=2)
    assert len(endpoint.bodies) == 52  # ten minutes of it
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    later = (503, "", {"Retry-After": date})
    with Endpoint(later, (200, completion("Hi"))) as endpoint:
        assert endpoint.complete(attempts=1).text == "Hi" and 20 < pauses[-1] <= 30
    at_once = (429, error("now"), {"Retry-After": "0"})
    with Endpoint(*[at_once] * 3) as endpoint, pytest.raises(Unreachable, match="now"):
        endpoint.complete(attempts=3)


# ---- secrets ----


def test_secrets_that_a_server_echoes_are_cut_out():
    with Endpoint((200, completion(f"You sent {KEY}"))) as endpoint:
        assert endpoint.complete().text == "You sent ***"
    with Endpoint((400, error("user:p%40ssword, p@ssword"))) as endpoint:
        url = endpoint.url.replace("http://", "http://user:p%40ssword@") + "/v1"
        client = Client(url, "m", 1, 10, key=KEY)
        assert client.place == f"{endpoint.url}/v1" and "ssword" not in repr(client.place)
        with pytest.raises(EndpointRefused, match="^HTTP 400: user:\\*\\*\\*, \\*\\*\\*$"):
            asyncio.run(client.complete(MESSAGES))
    with pytest.raises(ValueError) as raised:
        Client("http://user:password@host:port", "m", 1, 10)
    assert "password" not in str(raised.value)


def test_a_key_has_no_line_break_and_openai_needs_one(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with Endpoint((200, completion("Hi"))) as endpoint:
        assert asyncio.run(Client(f"{endpoint.url}/v1", "m", 1, 10).complete(MESSAGES)).text == "Hi"
        assert endpoint.keys == [f"Bearer {KEY}"]
    with pytest.raises(ValueError, match="the API key for http"):
        Client(None, "m", 1, 10, key="sk-\u2013")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(EndpointRefused, match="^no OPENAI_API_KEY"):
        asyncio.run(Client(None, "m", 1, 10).complete(MESSAGES))
