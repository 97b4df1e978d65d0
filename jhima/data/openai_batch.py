"""Annotation through OpenAI's Batch API: half the price, within a day.

Requests go up in parts. Two things alone say where each part is: a file of its trajectories,
written before it goes up (OUT.batches/PART.json), and the server's list of batches, which carry
the part's name. So a run that is killed anywhere and started again collects what it had sent, and
sends nothing twice. The file also says who sent the part, for a server lists the batches of one
account alone: another account's run refuses to start rather than forget what was paid for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from openai.types import Batch
from tqdm import tqdm

from jhima.data import teacher
from jhima.data.scalecua import Broken, read_trajectory
from jhima.data.teacher import AnnotationRun
from jhima.models import openai_client
from jhima.models.openai_client import (
    Refused,
    Reply,
    RequestRefused,
    UnusableReply,
    words_of,
)
from jhima.run_directory import write_whole

T = TypeVar("T")

PART_BYTES, PART_REQUESTS = 150 << 20, 10_000  # OpenAI takes 200 MB and 50,000
PATIENCE = 200  # attempts, some hours: a batch may outlive an outage
ENDED = ("completed", "failed", "expired", "cancelled")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


def _folder(run: AnnotationRun) -> Path:
    """Of the parts that were sent and not yet collected."""
    return run.output.path.with_name(run.output.path.name + ".batches")


def _times_asked(run: AnnotationRun, part: str) -> dict[str, int]:
    """The trajectories of a part, each with how many times it has been asked about."""
    return _read_part(run, part)["times"]


def _read_part(run: AnnotationRun, part: str) -> dict:
    path = _folder(run) / f"{part}.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        return {"sender": list(content["sender"]), "times": dict(content["times"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a part that annotate.py sent: {error!r}") from None


def _sender(run: AnnotationRun) -> list[str]:
    """The address, and a digest that tells the key from others."""
    key = hashlib.blake2b(run.client.key.encode(), digest_size=4).hexdigest()
    return [run.client.place, key]


async def _patiently(run: AnnotationRun, call: Callable[[], Awaitable[T]]) -> T:
    return await run.client.retry(call, PATIENCE)


async def _sent_parts(run: AnnotationRun) -> dict[str, str]:
    """The server's batches that carry the name of a part: part -> batch id."""
    parts = {}
    async for batch in run.client.sdk.batches.list(limit=100):
        if isinstance(batch.metadata, dict) and "part" in batch.metadata:
            parts[batch.metadata["part"]] = batch.id
    return parts


async def annotate_batches(run: AnnotationRun, todo: list[str], at_once: int, poll: float) -> None:
    """Annotates `todo` (keys of run.every), with at most `at_once` batches under way.

    A reply that cannot be read is asked for once more, in a later batch. `poll`: seconds between
    looks at the batches. Raises ApiFailure.
    """
    _folder(run).mkdir(exist_ok=True)
    under_way = await _uncollected(run)  # part -> batch id
    waiting: set[str] = set()
    for part in under_way:
        waiting.update(_times_asked(run, part))
    queue = deque((key, 1) for key in todo if key not in waiting)
    wanted = waiting.union(todo)
    with tqdm(total=len(wanted), desc="annotate (batches)", unit="trajectory") as bar:
        while queue or under_way:
            while queue and len(under_way) < at_once:
                part = await asyncio.to_thread(_write_part, run, queue)
                if part is not None:
                    under_way[part] = await _send(run, part)
            for part, batch_id in list(under_way.items()):
                batch = await _patiently(run, partial(run.client.sdk.batches.retrieve, batch_id))
                if batch.status not in ENDED:
                    continue
                queue.extend((key, 2) for key in await _collect(run, part, batch))
                del under_way[part]
                bar.update(len(run.output.done & wanted) - bar.n)
                tokens = f"{sum(run.output.tokens):,}"
                bar.set_postfix(tokens=tokens, failed=run.output.failed, batches=len(under_way))
            if under_way:
                await asyncio.sleep(poll)


async def _uncollected(run: AnnotationRun) -> dict[str, str]:
    """The parts that an earlier run sent: part -> batch id. One that never arrived is forgotten.

    Raises ValueError where another key or address sent one.
    """
    parts = {path.stem for path in _folder(run).glob("*.json")}
    sent = await _patiently(run, partial(_sent_parts, run)) if parts else {}
    for part in parts - sent.keys():
        sender = _read_part(run, part)["sender"]
        if sender != _sender(run):
            raise ValueError(
                f"{_folder(run)}: holds batches sent to {sender[0]}, perhaps with another key, "
                f"which {run.client.place} does not list: collect them with the same --base-url "
                "and key, or delete the folder to give them up"
            )
        (_folder(run) / f"{part}.json").unlink()
    for stray in _folder(run).glob("*.jsonl"):
        stray.unlink()
    return {part: batch_id for part, batch_id in sent.items() if part in parts}


def _write_part(run: AnnotationRun, queue: deque[tuple[str, int]]) -> str | None:
    """Takes the next part off the queue and writes its requests; None if nothing can be asked."""
    part, size = uuid.uuid4().hex, 0
    times: dict[str, int] = {}
    path, client = _folder(run) / f"{part}.jsonl", run.client
    with path.open("w", encoding="ascii") as file:
        while queue and len(times) < PART_REQUESTS:
            key, time = queue[0]
            try:
                _, parts = teacher.load(*run.every[key])
            except Broken as reason:
                run.left_out[str(reason)] += 1
                queue.popleft()
                continue
            body = openai_client.request_body(
                client.model, teacher.request_messages(parts), client.api
            )
            request = {"custom_id": str(len(times)), "method": "POST", "url": PATHS[client.api]}
            line = json.dumps(request | {"body": body}) + "\n"
            if times and size + len(line) > PART_BYTES:
                break
            file.write(line)
            size += len(line)
            times[key] = time
            queue.popleft()
    if not times:
        path.unlink()
        return None
    sent = {"sender": _sender(run), "times": times}
    write_whole(_folder(run) / f"{part}.json", json.dumps(sent))
    return part


async def _send(run: AnnotationRun, part: str) -> str:
    """Uploads a part and starts its batch; returns the batch's id."""
    path, sdk = _folder(run) / f"{part}.jsonl", run.client.sdk
    uploaded = await _patiently(run, lambda: sdk.files.create(file=path, purpose="batch"))

    async def create() -> str:
        # Tried again after a lost answer, this could make two batches, so it looks first.
        batch_id = (await _sent_parts(run)).get(part)
        if batch_id is not None:
            return batch_id
        batch = await sdk.batches.create(
            input_file_id=uploaded.id,
            endpoint=PATHS[run.client.api],
            completion_window="24h",
            metadata={"part": part},
        )
        return batch.id

    batch_id = await _patiently(run, create)
    path.unlink()
    return batch_id


async def _collect(run: AnnotationRun, part: str, batch: Batch) -> list[str]:
    """Writes what a batch brought; returns the trajectories to ask about once more."""
    times, again = _times_asked(run, part), []
    keys = {str(number): key for number, key in enumerate(times)}  # by custom_id
    errors = batch.to_dict().get("errors")
    reasons = Counter([words_of(errors)] if errors else [])  # why there is no result
    for file_id in (batch.output_file_id, batch.error_file_id):
        if not file_id:
            continue
        file = await _patiently(run, partial(run.client.sdk.files.content, file_id))
        for line in file.content.splitlines():  # of bytes, where no other character ends a line
            try:
                result = json.loads(line)
                key = keys[result["custom_id"]]
                reply, refusal = _read_result(run, result)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                run.left_out["line of a batch that cannot be read"] += 1
                continue
            if reply is None:
                reasons[refusal] += 1
            elif key not in run.output.done and key in run.every:
                again += _write_row(run, key, reply, refusal, may_ask_again=times[key] == 1)
    missing = times.keys() - run.output.done - set(again)
    if missing:
        why = "".join(f": {run.client.one_line(words)}" for words, _ in reasons.most_common(1))
        run.left_out[f"no result in a batch that {batch.status}{why}"] += len(missing)
    (_folder(run) / f"{part}.json").unlink()
    return again


def _read_result(run: AnnotationRun, result: dict) -> tuple[Reply | None, str]:
    """One line of a batch's results as (reply, why the request was refused).

    No reply: a failure that may pass or is not about this request, whose trajectory is left for
    the next run.
    """
    response = result.get("response") or {}
    body, status = response.get("body"), response.get("status_code") or 0
    try:
        if status != 200:
            raise Refused(status, body or result.get("error"))
        return run.client.read(body, "responses" if "output" in body else "chat"), ""
    except Refused as refusal:
        final = refusal.kind() is RequestRefused
        return Reply("") if final else None, run.client.one_line(str(refusal))
    except UnusableReply as reason:
        return None, str(reason)


def _write_row(
    run: AnnotationRun, key: str, reply: Reply, refusal: str, may_ask_again: bool
) -> list[str]:
    """Writes a trajectory's line of output; returns its key if it is to be asked about again."""
    try:
        trajectory = read_trajectory(*run.every[key])
    except Broken as reason:  # its data has changed
        run.left_out[str(reason)] += 1
        return []
    try:
        row = teacher.annotation_row(trajectory, reply)
    except ValueError as error:
        if may_ask_again and not refusal:
            return [key]
        row = teacher.failed_row(trajectory, reply, refusal or error)
    run.output.add(row)
    return []
