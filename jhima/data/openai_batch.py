"""Annotation through OpenAI's Batch API: half the price, within a day.

Requests go up in parts. Which part is where follows from two things alone: a file of its trajectories, written before
it goes up (OUT.batches/PART.json), and the server's list of batches, which carry the part's name. So a run that is
killed anywhere and started again collects what it had sent and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from pathlib import Path

import openai
from tqdm import tqdm

from jhima.data.scalecua import Broken, DataSet, read_trajectory
from jhima.data.teacher import (
    Api,
    Output,
    Refused,
    Reply,
    load,
    output_row,
    pause,
    read_reply,
    request_body,
)
from jhima.run_directory import write_whole

PART_BYTES, PART_REQUESTS = 150 << 20, 10_000  # OpenAI takes 200 MB and 50,000


ENDED = ("completed", "failed", "expired", "cancelled")


Where = tuple[DataSet, int]  # a trajectory: its data set and number there


async def annotate_batches(
    client: openai.AsyncOpenAI,
    output: Output,
    every: dict[str, Where],
    todo: list[str],
    model: str,
    api: Api,
    at_once: int,
    poll: float,
) -> Counter:
    """Annotates `todo` (keys of `every`), with `at_once` batches under way. Returns what was left undone, by reason.

    A reply that cannot be read is asked for once more, in a later batch.
    """
    folder = output.path.with_name(output.path.name + ".batches")
    folder.mkdir(exist_ok=True)
    under_way = await _found(client, folder)  # part -> batch id
    waiting = {key for part in under_way for key in _keys(folder, part)}
    queue = [(key, 1) for key in todo if key not in waiting]
    left_out: Counter[str] = Counter()
    wanted = waiting.union(todo)
    with tqdm(total=len(wanted), desc="annotate (batches)", unit="trajectory") as bar:
        while queue or under_way:
            while queue and len(under_way) < at_once:
                part, queue = await asyncio.to_thread(
                    _write_part, folder, queue, every, model, api, left_out
                )
                if part is not None:
                    under_way[part] = await _send(client, folder, part, api)
            for part, batch_id in list(under_way.items()):
                batch = await _patiently(lambda: client.batches.retrieve(batch_id))
                if batch.status not in ENDED:
                    continue
                again = await _collect(client, output, folder, part, batch, every, api, left_out)
                queue += [(key, 2) for key in again]
                del under_way[part]
                bar.update(len(output.done & wanted) - bar.n)
                bar.set_postfix(
                    tokens=f"{sum(output.tokens):,}", failed=output.failed, batches=len(under_way)
                )
            if under_way:
                await asyncio.sleep(poll)
    return left_out


async def _patiently(call):
    """A call of the client, which tries again by itself, tried for some hours more: a batch may outlive an outage."""
    for attempt in range(200):
        try:
            return await call()
        except (
            openai.APIConnectionError,
            openai.InternalServerError,
            openai.RateLimitError,
        ) as error:
            if getattr(error, "code", None) == "insufficient_quota" or attempt == 199:
                raise Refused(str(error)) from None
            await asyncio.sleep(pause(attempt, getattr(error, "response", None)))
        except openai.APIStatusError as error:
            raise Refused(str(error)) from None


def _keys(folder: Path, part: str) -> dict[str, int]:
    """The trajectories of a part, each with how many times it has been asked for."""
    return json.loads((folder / f"{part}.json").read_text("utf-8"))


async def _found(client: openai.AsyncOpenAI, folder: Path) -> dict[str, str]:
    """The parts that went up before and have not been collected; a part that never arrived is forgotten."""
    parts = {path.stem for path in folder.glob("*.json")}
    found: dict[str, str] = {}
    if parts:

        async def listed():
            return [batch async for batch in client.batches.list(limit=100)]

        for batch in await _patiently(listed):
            part = (batch.metadata or {}).get("part")
            if part in parts:
                found[part] = batch.id
    for part in parts - found.keys():
        (folder / f"{part}.json").unlink()
    for stray in folder.glob("*.jsonl"):
        stray.unlink()
    return found


def _write_part(
    folder: Path,
    queue: list[tuple[str, int]],
    every: dict[str, Where],
    model: str,
    api: Api,
    left_out: Counter,
) -> tuple[str | None, list[tuple[str, int]]]:
    """Writes the requests of the next part; returns its name (None: nothing could be asked) and the rest of the queue."""
    part, size, asked, taken = uuid.uuid4().hex, 0, {}, 0
    with (folder / f"{part}.jsonl").open("w", encoding="ascii") as file:
        for key, time in queue:
            try:
                body = request_body(load(*every[key])[1], model, api)
            except (Broken, OSError) as error:
                left_out[str(error) if isinstance(error, Broken) else "image missing"] += 1
                taken += 1
                continue
            url = "/v1/chat/completions" if api == "chat" else "/v1/responses"
            line = json.dumps(
                {"custom_id": f"{len(asked)}", "method": "POST", "url": url, "body": body}
            )
            if asked and (size + len(line) > PART_BYTES or len(asked) == PART_REQUESTS):
                break
            file.write(line + "\n")
            asked[key], size, taken = time, size + len(line), taken + 1
    if not asked:
        (folder / f"{part}.jsonl").unlink()
        return None, queue[taken:]
    write_whole(folder / f"{part}.json", json.dumps(asked))
    return part, queue[taken:]


async def _send(client: openai.AsyncOpenAI, folder: Path, part: str, api: Api) -> str:
    path = folder / f"{part}.jsonl"
    # Two calls, and only the second makes a batch: repeated after a lost answer, it could make two of them, so the
    # list is asked first.
    uploaded = await _patiently(lambda: client.files.create(file=path, purpose="batch"))

    async def create() -> str:
        async for batch in client.batches.list(limit=100):
            if (batch.metadata or {}).get("part") == part:
                return batch.id
        made = await client.with_options(max_retries=0).batches.create(
            input_file_id=uploaded.id,
            endpoint="/v1/chat/completions" if api == "chat" else "/v1/responses",
            completion_window="24h",
            metadata={"part": part},
        )
        return made.id

    batch_id = await _patiently(create)
    path.unlink()
    return batch_id


async def _collect(
    client: openai.AsyncOpenAI,
    output: Output,
    folder: Path,
    part: str,
    batch,
    every: dict[str, Where],
    api: Api,
    left_out: Counter,
) -> list[str]:
    """Writes what a batch brought; returns the trajectories to ask for once more."""
    asked, again = _keys(folder, part), []
    names = list(asked)
    for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
        content = await _patiently(lambda: client.files.content(file_id))
        for line in content.text.splitlines():
            try:
                result = json.loads(line)
                key = names[int(result["custom_id"])]
                response = result.get("response") or {}
                if response.get("status_code") == 200:
                    reply = read_reply(response["body"], api)
                elif (status := response.get("status_code") or 500) in (
                    408,
                    409,
                    429,
                ) or status >= 500:
                    continue  # it may pass: left for the next run
                else:
                    reply = Reply(
                        "", error=f"HTTP {status}: {json.dumps(response.get('body'))[:500]}"
                    )
            except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                left_out["line of a batch that cannot be read"] += 1
                continue
            if key in output.done or key not in every:
                continue
            row = output_row(read_trajectory(*every[key]), reply, last=asked[key] > 1)
            if row is None:
                again.append(key)
            else:
                output.add(row)
    missing = [key for key in asked if key not in output.done and key not in again]
    if missing:
        left_out[f"no result in a batch that {batch.status}"] += len(missing)
    (folder / f"{part}.json").unlink()
    return again
