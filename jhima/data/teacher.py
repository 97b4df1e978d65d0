"""The teacher's side of stage 1: requests, replies, patience, and the file that annotations are appended to.

A request is one user message with the appendix prompt and its screenshots. What passes (a rate limit, a server error,
a time-out, a body cut short) is waited out with growing pauses; a request that the server refuses for good is recorded
as failed; what no request can survive (a wrong key, no money left) is `Refused` and ends the run.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import math
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import openai
from PIL import Image

from jhima.data.platforms import PLATFORMS
from jhima.data.scalecua import DataSet, Trajectory, irregularities, read_trajectory
from jhima.data.teacher_prompts import annotation_parts, read_annotation

Api = Literal["chat", "responses"]


LONGEST_PAUSE = 60.0  # seconds between two tries


OUTPUT_TOKENS = 700  # of a reply, for the estimate: 300 written, the rest thought


class Refused(RuntimeError):
    """The endpoint will refuse every request: the run cannot go on."""


class Unreachable(RuntimeError):
    """One request failed for a time, as often as it was tried."""


@dataclass(frozen=True)
class Reply:
    """A teacher's text (or why there is none for good), and the tokens it took in and gave out."""

    text: str
    error: str = ""
    tokens: tuple[int, int] = (0, 0)


# ---- requests ----


def load(data_set: DataSet, number: int) -> tuple[Trajectory, list[str | bytes]]:
    """A trajectory, and its request as interleaved texts and screenshots. Raises Broken, or OSError for an image."""
    trajectory = read_trajectory(data_set, number)
    images = [(trajectory.root / step.image).read_bytes() for step in trajectory.steps]
    steps = [(step.operation, after) for step, after in zip(trajectory.steps, [*images[1:], b""])]
    return trajectory, annotation_parts(trajectory.task, images[0], steps)


def request_body(parts: list[str | bytes], model: str, api: Api) -> dict:
    """The JSON body that asks for one annotation."""
    text, image = ("text", "image_url") if api == "chat" else ("input_text", "input_image")
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": text, "text": part})
            continue
        kind = "jpeg" if part.startswith(b"\xff\xd8") else "png"
        url = f"data:image/{kind};base64," + base64.b64encode(part).decode()
        content.append({"type": image, "image_url": {"url": url} if api == "chat" else url})
    message = [{"role": "user", "content": content}]
    return (
        {"model": model, "messages": message}
        if api == "chat"
        else {"model": model, "input": message}
    )


def estimate_tokens(trajectory: Trajectory, parts: list[str | bytes]) -> int:
    """About how many tokens a request takes in: 4 characters each, and for images 32-px patches, at most 1,536."""
    total = sum(len(part) for part in parts if isinstance(part, str)) // 4
    for step in trajectory.steps:
        with Image.open(trajectory.root / step.image) as image:
            total += min(1536, math.prod(math.ceil(side / 32) for side in image.size))
    return total


# ---- replies ----


def read_reply(body: object, api: Api) -> Reply:
    """The reply in a response's JSON. Raises ValueError for JSON of another kind: a proxy's page, a body cut short."""
    try:
        usage = body.get("usage") or {}
        if api == "chat":
            text = body["choices"][0]["message"]["content"] or ""
            tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        else:
            text = "".join(
                part["text"]
                for item in body["output"]
                if item["type"] == "message"
                for part in item["content"]
                if part["type"] == "output_text"
            )
            tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        if not isinstance(text, str):
            raise TypeError("text is no string")
        return Reply(text, tokens=(int(tokens[0]), int(tokens[1])))
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no reply of the {api} API: {error!r}") from None


async def ask(
    client: openai.AsyncOpenAI, body: dict, api: Api, tries: int, timeout: float
) -> Reply:
    """One reply. Raises Unreachable after `tries` failures that may pass, Refused for one that will not."""
    create = (
        client.chat.completions.with_raw_response.create
        if api == "chat"
        else client.responses.with_raw_response.create
    )
    failure: Exception | None = None
    for attempt in range(tries):
        try:
            async with asyncio.timeout(
                timeout
            ):  # of the whole exchange: a server may drip bytes for hours
                response = await create(**body)
                return read_reply(json.loads(response.text), api)
        except (
            openai.AuthenticationError,
            openai.PermissionDeniedError,
            openai.NotFoundError,
        ) as error:
            raise Refused(str(error)) from None
        except openai.RateLimitError as error:
            if error.code == "insufficient_quota":
                raise Refused(str(error)) from None
            failure = error
        except (
            openai.APIConnectionError,
            openai.InternalServerError,
            openai.ConflictError,
            TimeoutError,
            ValueError,
        ) as error:
            failure = error  # ValueError: not the JSON of a reply
        except openai.APIStatusError as error:
            if error.status_code != 408:
                return Reply("", error=f"HTTP {error.status_code}: {str(error)[:500]}")
            failure = error
        if attempt + 1 < tries:
            await asyncio.sleep(pause(attempt, getattr(failure, "response", None)))
    raise Unreachable(f"{type(failure).__name__}: {str(failure)[:200]}")


def pause(attempt: int, response: object = None) -> float:
    """Seconds to wait after failure number `attempt`: 1, 2, 4, ... with jitter, or what the server asks for."""
    try:
        asked = float(response.headers["retry-after"])
        if 0 <= asked <= LONGEST_PAUSE:
            return asked
    except (AttributeError, KeyError, ValueError):
        pass
    return min(LONGEST_PAUSE, 2.0**attempt) * random.uniform(0.5, 1.0)


def output_row(trajectory: Trajectory, reply: Reply, last: bool) -> dict | None:
    """A trajectory's line of output; None for a reply that cannot be read and is not the last one to be asked for."""
    row = {
        "trajectory": trajectory.key,
        "platform": PLATFORMS[trajectory.platform],
        "task": trajectory.task,
        "analysis": "",
        "subtasks": [],
        "unnecessary": None,
        "odd": irregularities(trajectory),
        "tokens": list(reply.tokens),
    }
    try:
        analysis, subtasks, unnecessary = read_annotation(reply.text)
    except ValueError as error:
        if not (last or reply.error):
            return None
        return row | {"reply": reply.text, "failed": True, "error": reply.error or str(error)}
    return row | {
        "analysis": analysis,
        "subtasks": [vars(g) for g in subtasks],
        "unnecessary": unnecessary,
        "reply": reply.text,
        "failed": False,
    }


async def annotate(
    client: openai.AsyncOpenAI,
    data_set: DataSet,
    number: int,
    model: str,
    api: Api,
    tries: int,
    timeout: float,
) -> dict:
    """One trajectory's line of output. A reply that cannot be read is asked for once more."""
    trajectory, parts = await asyncio.to_thread(load, data_set, number)
    body = await asyncio.to_thread(request_body, parts, model, api)
    first = await ask(client, body, api, tries, timeout)
    row = output_row(trajectory, first, last=False)
    if row is None:
        second = await ask(client, body, api, tries, timeout)
        tokens = (first.tokens[0] + second.tokens[0], first.tokens[1] + second.tokens[1])
        row = output_row(trajectory, Reply(second.text, second.error, tokens), last=True)
    return row


# ---- the output ----


class Output:
    """A JSON-lines file that only grows, by one process at a time.

    Opening it takes off a line that a kill cut short. `done` holds the trajectories it has, `tokens` what they took.
    Raises ValueError for a file that holds anything else, or that another process is writing.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.done, self.tokens, self.failed = path, set(), [0, 0], 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{path}: another annotate.py is writing it") from None
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                self._count(row)
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{path}: holds lines that annotate.py did not write; give another --out"
                ) from None
            whole += len(line)
        self._file.truncate(whole)

    def _count(self, row: dict) -> None:
        self.done.add(row["trajectory"])
        self.failed += bool(row["failed"])
        self.tokens = [total + used for total, used in zip(self.tokens, row.get("tokens", (0, 0)))]

    def add(self, row: dict) -> None:
        """Appends a line, once a trajectory."""
        if row["trajectory"] not in self.done:
            self._file.write(
                json.dumps(row).encode() + b"\n"
            )  # ASCII: a reply may hold lone surrogates
            self._file.flush()
            self._count(row)

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
