"""The teacher's side of stage 1: requests, replies, and the file that annotations are appended to.

A request is one user message with the appendix prompt and its screenshots. A request that is
refused for its length or content is recorded as failed, one that is refused for another reason of
its own is left for another run; jhima/models/openai_client.py tells the failures apart.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from jhima.data.platforms import PLATFORMS
from jhima.data.scalecua import Broken, DataSet, Trajectory, irregularities, read_trajectory
from jhima.data.teacher_prompts import annotation_parts, read_annotation
from jhima.models.openai_client import (
    ABOUT_THIS_REQUEST,
    Client,
    EndpointRefused,
    Reply,
    RequestRefused,
    image_part,
)

OUTPUT_TOKENS = 700  # of a reply, for the estimate: 300 written, the rest thought


# ---- requests ----


def load(data_set: DataSet, number: int) -> tuple[Trajectory, list[str | bytes]]:
    """A trajectory, and its request as interleaved texts and screenshots. Raises Broken."""
    trajectory = read_trajectory(data_set, number)
    try:
        images = [(trajectory.root / step.image).read_bytes() for step in trajectory.steps]
    except OSError:
        raise Broken("image missing") from None
    operations = [step.operation for step in trajectory.steps]
    steps = list(zip(operations, [*images[1:], b""]))
    return trajectory, annotation_parts(trajectory.task, images[0], steps)


def request_messages(parts: list[str | bytes]) -> list[dict]:
    """The chat messages that ask for one annotation."""
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            content.append(image_part(part))
    return [{"role": "user", "content": content}]


def estimate_tokens(trajectory: Trajectory, parts: list[str | bytes]) -> int:
    """About how many tokens a request takes in.

    4 characters of text per token; one token per 32-px patch of an image, at most 1,536.
    """
    total = sum(len(part) for part in parts if isinstance(part, str)) // 4
    for step in trajectory.steps:
        with Image.open(trajectory.root / step.image) as image:
            width, height = image.size
        total += min(1536, math.ceil(width / 32) * math.ceil(height / 32))
    return total


# ---- replies ----


def annotation_row(trajectory: Trajectory, reply: Reply) -> dict:
    """A trajectory's line of output. Raises ValueError for a reply that is not in the format."""
    analysis, subtasks, unnecessary = read_annotation(reply.text)
    return _row(trajectory, reply, failed=False) | {
        "analysis": analysis,
        "subtasks": [vars(subtask) for subtask in subtasks],
        "unnecessary": unnecessary,
    }


def failed_row(trajectory: Trajectory, reply: Reply, error: object) -> dict:
    """The line of a trajectory that got no annotation, and will not be asked about again."""
    return _row(trajectory, reply, failed=True) | {"error": str(error)}


def _row(trajectory: Trajectory, reply: Reply, failed: bool) -> dict:
    return {
        "trajectory": trajectory.key,
        "platform": PLATFORMS[trajectory.platform],
        "task": trajectory.task,
        "analysis": "",
        "subtasks": [],
        "unnecessary": None,
        "odd": irregularities(trajectory),
        "tokens": [reply.prompt_tokens, reply.completion_tokens],
        "reply": reply.text,
        "failed": failed,
    }


async def annotate(client: Client, data_set: DataSet, number: int) -> dict:
    """One trajectory's line of output. A reply that cannot be read is asked for once more.

    Raises Broken, or EndpointRefused or Unreachable of the client.
    """
    trajectory, parts = await asyncio.to_thread(load, data_set, number)
    messages = await asyncio.to_thread(request_messages, parts)
    tokens_in = tokens_out = 0
    for last in (False, True):
        try:
            reply = await client.complete(messages)
        except RequestRefused as refusal:
            return failed_row(trajectory, Reply("", False, tokens_in, tokens_out), refusal)
        except EndpointRefused as refusal:
            about_this_request = refusal.status in ABOUT_THIS_REQUEST
            if about_this_request and await client.answers(messages):
                raise Broken(str(refusal)) from None
            raise
        tokens_in += reply.prompt_tokens
        tokens_out += reply.completion_tokens
        reply = Reply(reply.text, reply.truncated, tokens_in, tokens_out)
        try:
            return annotation_row(trajectory, reply)
        except ValueError as error:
            if last:
                return failed_row(trajectory, reply, error)


# ---- the output ----


class Output:
    """A JSON-lines file that only grows, written by one process at a time.

    Opening it removes a line that a kill cut short. `done` holds the keys of the trajectories in
    it, `tokens` what they took in and gave out. Raises ValueError for a file that holds anything
    else, which is left as it is, or that another process is writing.
    """

    START = b'{"trajectory": "'  # of every line

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        self.tokens = [0, 0]
        self.failed = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: expected a file to append to")
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{path}: another annotate.py is writing it") from None
        self._file.seek(0)
        whole = 0  # bytes of complete lines
        for line in self._file:
            cut_short = not line.endswith(b"\n")
            try:
                if line[: len(self.START)] != self.START[: len(line)]:
                    raise ValueError("not a line of ours")
                if not cut_short:
                    self._count(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ValueError(
                    f"{path}: holds lines that annotate.py did not write; give another --out"
                ) from None
            whole += len(line) * (not cut_short)
        self._file.truncate(whole)

    def _count(self, row: dict) -> None:
        self.done.add(row["trajectory"])
        self.failed += bool(row["failed"])
        self.tokens = [total + used for total, used in zip(self.tokens, row.get("tokens", (0, 0)))]

    def add(self, row: dict) -> None:
        """Appends a line, unless its trajectory has one. Raises OSError, as on a full disk."""
        if row["trajectory"] in self.done:
            return
        line = json.dumps(row).encode() + b"\n"  # ASCII: a reply may hold surrogates
        # Without a buffer: what could not be written now must not be tried again later.
        if os.write(self._file.fileno(), line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._count(row)

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())


@dataclass
class AnnotationRun:
    """The teacher, every trajectory by its key, and where their annotations go."""

    client: Client
    output: Output
    every: dict[str, tuple[DataSet, int]]
    left_out: Counter[str] = field(default_factory=Counter)  # what was left undone, by reason
