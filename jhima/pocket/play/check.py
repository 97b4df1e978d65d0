"""The oracle at work in a real browser: proof that every task can be solved, and SFT's demos."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tqdm import tqdm

from jhima.actions import format_call, format_reply
from jhima.browser.chromium import Browsers
from jhima.coordinates import smart_resize
from jhima.data.scalecua import write_step
from jhima.data.stored_coordinates import to_fractions
from jhima.environment import Environment, load_tasks
from jhima.episodes import Episode, Task
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import idle, oracle
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.rollout import Act, describe, episode
from jhima.webarena.judge import Judge

STEPS = 30  # more than any oracle needs


@asynccontextmanager
async def environment(full: bool, concurrency: int) -> AsyncIterator[Environment]:
    """The pocket arena with its own judge, ready for episodes."""
    with serve_teacher() as url:
        async with PocketArena(full=full) as arena, Browsers() as browsers:
            yield Environment(arena, browsers, Judge(url, MODEL, None), concurrency=concurrency)


def load_all(names: Sequence[str], limit: int | None) -> list[Task]:
    """The first `limit` tasks of the named lists together."""
    tasks: list[Task] = []
    for name in names:
        tasks += load_tasks(name)
    return tasks[:limit]


def with_oracle(tasks: list[Task]) -> list[tuple[Task, Act]]:
    return [(task, oracle(solutions()[task.intent])) for task in tasks]


async def play_all(
    env: Environment, jobs: list[tuple[Task, Act]], bar: tqdm, done: Callable[[Task, Episode], None]
) -> None:
    """Plays one episode per job, and hands each to `done` as it ends.

    All are started at once; the environment bounds how many run.
    """

    async def play(task: Task, act: Act) -> None:
        done(task, await episode(env, task, 0, 0, lambda _attempt: act, STEPS))
        bar.update()

    async with asyncio.TaskGroup() as group:
        for task, act in jobs:
            group.create_task(play(task, act))


async def check(names: Sequence[str], limit: int | None, full: bool, concurrency: int) -> int:
    """Counts how many tasks the oracle solves, and how many the do-nothing agent.

    Prints one line per site, and one per wrong task with the reason: a task is wrong if the oracle
    fails or the do-nothing agent succeeds. Returns the number of wrong ones.
    """
    tasks = load_all(names, limit)
    solved, idled, wrong = Counter(), Counter(), []

    def by_oracle(task: Task, e: Episode) -> None:
        solved[task.sites[0]] += e.reward == 1
        if e.reward != 1:
            reasons = e.failure or [check for check in e.checks if not check["passed"]]
            operations = [step.turn.operation for step in e.steps]
            wrong.append(f"{task.id}: not solved: {task.intent!r}: {reasons}; did: {operations}")

    def by_idler(task: Task, e: Episode) -> None:
        idled[task.sites[0]] += e.reward == 1
        if e.reward != 0:
            wrong.append(f"{task.id}: doing nothing gives {e.failure or e.reward}: {task.intent!r}")

    async with environment(full, concurrency) as env:
        with tqdm(total=2 * len(tasks), desc="check", unit="episode") as bar:
            await play_all(env, with_oracle(tasks), bar, by_oracle)
            await play_all(env, [(task, idle) for task in tasks], bar, by_idler)
    for site, count in Counter(task.sites[0] for task in tasks).items():
        results = f"solved by the oracle {solved[site]:4}   by doing nothing {idled[site]:4}"
        print(f"{site:15} {count:4} tasks   {results}")
    for line in wrong:
        print(line)
    print(f"{len(tasks)} tasks, {len(wrong)} wrong")
    return len(wrong)


async def record(
    out: Path, names: Sequence[str], limit: int | None, full: bool, concurrency: int
) -> None:
    """Writes the oracle's episodes of the named task lists to `out`: images/, steps.jsonl and
    meta.json.

    A run that was stopped goes on where it was: tasks whose last step is there are not played
    again. Raises RuntimeError if the oracle does not solve a task.
    """
    tasks = load_all(names, limit)
    out.mkdir(parents=True, exist_ok=True)
    steps = out / "steps.jsonl"
    recorded = _recorded(steps)
    todo = [task for task in tasks if task.id not in recorded]
    with steps.open("a", encoding="utf-8") as file:

        def save(task: Task, e: Episode) -> None:
            if e.reward != 1:
                reasons = e.failure or e.checks
                raise RuntimeError(
                    f"{task.id}: the oracle did not solve {task.intent!r}: {reasons}"
                )
            rows = _save_steps(out / "images", task, e)
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            file.flush()

        async with environment(full, concurrency) as env:
            with tqdm(total=len(todo), desc="demos", unit="episode") as bar:
                await play_all(env, with_oracle(todo), bar, save)
    # In task order, not in the order in which the episodes ended.
    lines = steps.read_text("utf-8").splitlines(keepends=True)
    lines.sort(key=lambda line: json.loads(line)["image"])
    steps.with_suffix(".part").write_text("".join(lines), "utf-8")
    steps.with_suffix(".part").replace(steps)
    meta = {
        "pocket_web_navigation": {
            "root": "images",
            "annotation": "steps.jsonl",
            "data_augment": False,
            "repeat_time": 1,
            "conv_style": "internvl2_5_web_navigation_v1",
            "max_dynamic_patch": 12,
            "length": len(lines),
        }
    }
    (out / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")
    print(f"{out}/meta.json: {len(tasks)} trajectories, {len(lines)} steps")


def _save_steps(images: Path, task: Task, e: Episode) -> list[dict]:
    """Writes an episode's screenshots; returns its steps as ScaleCUA stores them."""
    (images / task.id).mkdir(parents=True, exist_ok=True)
    rows, operations = [], []
    for number, step in enumerate(e.steps):
        image = f"{task.id}/{number:02d}.png"
        (images / image).write_bytes(step.screenshot)
        viewport = (step.width, step.height)
        grid = smart_resize(*viewport)
        calls = [format_call(action, grid, viewport) for action in step.turn.actions]
        reply = format_reply(step.turn.operation, [to_fractions(c, *viewport) for c in calls])
        rows.append(write_step(image, *viewport, task.intent, operations, reply))
        operations.append(describe(step.turn, viewport))
    return rows


def _recorded(steps: Path) -> set[str]:
    """Ids of the tasks whose whole trajectories `steps` holds.

    What a killed run left unfinished is cut off.
    """
    if not steps.exists():
        return set()
    ids, rows = set(), []  # rows: (task id, line)
    for line in steps.read_text("utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        row = json.loads(line)
        task_id = row["image"].split("/")[0]
        rows.append((task_id, line))
        if "terminate(" in row["conversations"][1]["value"]:
            ids.add(task_id)
    steps.write_text("".join(line for task_id, line in rows if task_id in ids), "utf-8")
    return ids
