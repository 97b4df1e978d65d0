"""Stage 1 (section 3.2): a teacher model turns GUI trajectories into ordered subtasks.

    python annotate.py --data runs/demos/meta.json --out runs/annotations.jsonl \\
        --base-url http://127.0.0.1:8399/v1 --model pocket-teacher

Every trajectory's task, first screenshot and actions with the screenshots that followed go to the teacher; its reply
is read strictly, and becomes one line of the output: {trajectory, task, analysis, subtasks, unnecessary, reply,
failed}. A reply that cannot be read is asked for once more, then recorded as failed with its text. The output only
ever grows; running the same command again annotates what is missing.
"""
from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from pathlib import Path

import openai
from tqdm import tqdm

from jhima.data import Trajectory, read_trajectories
from jhima.prompts import annotation_parts, read_annotation


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="ScaleCUA meta file that names the trajectories")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--base-url", help="OpenAI-compatible endpoint (default: OpenAI's)")
    parser.add_argument("--model", default="gpt-5.2-codex", help="the teacher (default: %(default)s, as in the paper)")
    parser.add_argument("--limit", type=int, help="annotate at most N trajectories")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight (default: %(default)s)")
    parser.add_argument("--retries", type=int, default=6, help="tries of a request that fails for a time (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        trajectories = read_trajectories(args.data)
        done = finished(args.out)
    except ValueError as error:
        sys.exit(f"annotate.py: {error}")
    todo = [t for t in trajectories if t.key not in done][:args.limit]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        failed = asyncio.run(annotate_all(args, todo))
    except KeyboardInterrupt:
        sys.exit("annotate.py: stopped; run the same command to go on")
    print(f"{args.out}: {len(done) + len(todo)} of {len(trajectories)} trajectories, {failed} failed now")


def finished(out: Path) -> set[str]:
    """Keys of the trajectories that `out` already holds; a line cut short by a kill is taken off its end."""
    if not out.exists():
        return set()
    text = out.read_bytes()
    whole = text[:text.rfind(b"\n") + 1]
    if whole != text:
        out.write_bytes(whole)
    try:
        return {json.loads(line)["trajectory"] for line in whole.splitlines()}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{out}: holds lines that annotate.py did not write; give another --out") from None


async def annotate_all(args: argparse.Namespace, todo: list[Trajectory]) -> int:
    key = os.environ.get("OPENAI_API_KEY") or ("none" if args.base_url else "")
    if todo and not key:
        sys.exit("annotate.py: no OPENAI_API_KEY in the environment (a local teacher needs --base-url)")
    # The client's own retries: exponential back-off on 408, 409, 429, 5xx and lost connections.
    client = openai.AsyncOpenAI(base_url=args.base_url, api_key=key, max_retries=args.retries, timeout=300)
    slots, tokens, failed = asyncio.Semaphore(args.concurrency), 0, 0
    with args.out.open("a", encoding="utf-8") as out, tqdm(total=len(todo), desc="annotate", unit="trajectory") as bar:
        async def one(trajectory: Trajectory) -> None:
            nonlocal tokens, failed
            async with slots:
                row, used = await annotate(client, args.model, trajectory)
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()
            tokens, failed = tokens + used, failed + row["failed"]
            bar.set_postfix(tokens=tokens, failed=failed)
            bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for trajectory in todo:
                    group.create_task(one(trajectory))
        except* openai.OpenAIError as errors:
            error = errors.exceptions[0]
            sys.exit(f"annotate.py: the teacher {args.model} cannot be asked: {error}; run the same command to go on")
    return failed


async def annotate(client: openai.AsyncOpenAI, model: str, trajectory: Trajectory) -> tuple[dict, int]:
    """One trajectory's line of output, and the tokens it took."""
    images = [step.image.read_bytes() for step in trajectory.steps]
    steps = [(step.operation, after) for step, after in zip(trajectory.steps, [*images[1:], b""])]
    content = [_part(part) for part in annotation_parts(trajectory.task, images[0], steps)]
    row = {"trajectory": trajectory.key, "task": trajectory.task, "analysis": "", "subtasks": [], "unnecessary": None}
    tokens = 0
    for _ in range(2):
        completion = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
        reply = completion.choices[0].message.content or ""
        tokens += completion.usage.total_tokens if completion.usage else 0
        try:
            analysis, subtasks, unnecessary = read_annotation(reply)
        except ValueError:
            continue
        return row | {"analysis": analysis, "subtasks": [vars(g) for g in subtasks], "unnecessary": unnecessary,
                      "reply": reply, "failed": False}, tokens
    return row | {"reply": reply, "failed": True}, tokens


def _part(part: str | bytes) -> dict:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = "data:image/png;base64," + base64.b64encode(part).decode()
    return {"type": "image_url", "image_url": {"url": url}}


if __name__ == "__main__":
    main()
