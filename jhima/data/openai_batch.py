"""Annotation through OpenAI's Batch API: half the price, within a day.

Requests go up in parts. Two things alone say where each part is: a file of its trajectories,
written before it goes up (OUT.batches/PART.json), and the server's list of batches, which carry
the part's name. So a run that is killed anywhere and started again collects what it had sent, and
sends nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
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
from jhima.models.openai_client import Reply, Unreachable, UnusableReply
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
    return json.loads((_folder(run) / f"{part}.json").read_text("utf-8"))


async def _patiently(run: AnnotationRun, call: Callable[[], Awaitable[T]]) -> T:
    return await run.client.retry(call, PATIENCE)


async def _sent_parts(run: AnnotationRun) -> dict[str, str]:
    """The server's batches that carry the name of a part: part -> batch id."""
    parts = {}
    async for batch in run.client.sdk.batches.list(limit=100):
        part = (batch.metadata or {}).get("part")
        if part is not None:
            parts[part] = batch.id
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
    """The parts that an earlier run sent: part -> batch id. One that never arrived is forgotten."""
    parts = {path.stem for path in _folder(run).glob("*.json")}
    sent = await _patiently(run, partial(_sent_parts, run)) if parts else {}
    for part in parts - sent.keys():
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
    write_whole(_folder(run) / f"{part}.json", json.dumps(times))
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
    keys = list(times)
    for file_id in (batch.output_file_id, batch.error_file_id):
        if not file_id:
            continue
        file = await _patiently(run, partial(run.client.sdk.files.content, file_id))
        for line in file.content.splitlines():
            try:
                result = json.loads(line)
                key = keys[int(result["custom_id"])]
                reply, refusal = _read_response(result.get("response") or {}, run.client.api)
            except (ValueError, LookupError, TypeError, AttributeError, UnusableReply):
                run.left_out["line of a batch that cannot be read"] += 1
                continue
            if reply is None or key in run.output.done or key not in run.every:
                continue
            trajectory = read_trajectory(*run.every[key])
            try:
                row = teacher.annotation_row(trajectory, reply)
            except ValueError as error:
                if times[key] == 1 and not refusal:
                    again.append(key)
                    continue
                row = teacher.failed_row(trajectory, reply, refusal or error)
            run.output.add(row)
    missing = times.keys() - run.output.done - set(again)
    if missing:
        run.left_out[f"no result in a batch that {batch.status}"] += len(missing)
    (_folder(run) / f"{part}.json").unlink()
    return again


def _read_response(response: dict, api: str) -> tuple[Reply | None, str]:
    """One response of a batch as (reply, why the request was refused).

    (None, "") for a failure that may pass: its trajectory is left for the next run.
    """
    status = response.get("status_code") or 500
    if status == 200:
        return openai_client.read_reply(response["body"], api), ""
    if openai_client.failure_kind(status) is Unreachable:
        return None, ""
    return Reply(""), f"HTTP {status}: {json.dumps(response.get('body'))[:500]}"
