"""The oracle at work in a real browser: proof that every task can be solved, and the demonstrations for SFT."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
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


async def play_all(
    env: Environment, jobs: list[tuple[Task, Act]], bar: tqdm, done: Callable[[Task, Episode], None]
) -> None:
    """Plays one episode a job, all at once (the environment bounds how many run), handing each over as it ends."""

    async def one(task: Task, act: Act) -> None:
        done(task, await episode(env, task, 0, 0, lambda _attempt: act, STEPS))
        bar.update()

    async with asyncio.TaskGroup() as group:
        for task, act in jobs:
            group.create_task(one(task, act))


async def check(names: list[str], limit: int | None, full: bool, concurrency: int) -> int:
    """Prints, a site a line, how many tasks the oracle solves and how many the do-nothing agent does; returns the
    number of tasks that are wrong in either way, each named with the reason."""
    tasks = [task for name in names for task in load_tasks(name)][:limit]
    solved, idled, wrong = Counter(), Counter(), []

    def by_oracle(task: Task, e: Episode) -> None:
        solved[task.sites[0]] += e.reward == 1
        if e.reward != 1:
            reasons = e.failure or [c for c in e.checks if not c["passed"]]
            wrong.append(
                f"{task.id}: not solved: {task.intent!r}: {reasons}; did: {[s.turn.operation for s in e.steps]}"
            )

    def by_idler(task: Task, e: Episode) -> None:
        idled[task.sites[0]] += e.reward == 1
        if e.reward != 0:
            wrong.append(f"{task.id}: doing nothing gives {e.failure or e.reward}: {task.intent!r}")

    async with environment(full, concurrency) as env:
        with tqdm(total=2 * len(tasks), desc="check", unit="episode") as bar:
            await play_all(
                env, [(task, oracle(solutions()[task.intent])) for task in tasks], bar, by_oracle
            )
            await play_all(env, [(task, idle) for task in tasks], bar, by_idler)
    total = Counter(task.sites[0] for task in tasks)
    for site in total:
        print(
            f"{site:15} {total[site]:4} tasks   solved by the oracle {solved[site]:4}   by doing nothing {idled[site]:4}"
        )
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(tasks)} tasks, {len(wrong)} wrong")
    return len(wrong)


async def record(
    out: Path, names: list[str], limit: int | None, full: bool, concurrency: int
) -> None:
    """Writes the oracle's episodes of the named task lists to `out`: images/, steps.jsonl and meta.json.

    A run that was stopped goes on where it was: tasks whose last line is there are not played again.
    """
    tasks = [task for name in names for task in load_tasks(name)][:limit]
    out.mkdir(parents=True, exist_ok=True)
    steps = out / "steps.jsonl"
    recorded = _recorded(steps)
    todo = [task for task in tasks if task.id not in recorded]
    with steps.open("a", encoding="utf-8") as lines:

        def save(task: Task, e: Episode) -> None:
            if e.reward != 1:
                raise RuntimeError(
                    f"{task.id}: the oracle did not solve {task.intent!r}: {e.failure or e.checks}"
                )
            (out / "images" / task.id).mkdir(parents=True, exist_ok=True)
            rows, operations = [], []
            for number, step in enumerate(e.steps):
                image = f"{task.id}/{number:02d}.png"
                (out / "images" / image).write_bytes(step.screenshot)
                viewport = (step.width, step.height)
                calls = [
                    to_fractions(format_call(action, smart_resize(*viewport), viewport), *viewport)
                    for action in step.turn.actions
                ]
                rows.append(
                    write_step(
                        image,
                        *viewport,
                        task.intent,
                        operations,
                        format_reply(step.turn.operation, calls),
                    )
                )
                operations.append(describe(step.turn, viewport))
            lines.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            lines.flush()

        async with environment(full, concurrency) as env:
            with tqdm(total=len(todo), desc="demos", unit="episode") as bar:
                await play_all(
                    env, [(task, oracle(solutions()[task.intent])) for task in todo], bar, save
                )
    rows = sorted(
        steps.read_text("utf-8").splitlines(keepends=True),
        key=lambda line: json.loads(line)["image"],
    )
    steps.with_suffix(".part").write_text(
        "".join(rows), "utf-8"
    )  # in task order, not in the order they ended
    steps.with_suffix(".part").replace(steps)
    meta = {
        "pocket_web_navigation": {
            "root": "images",
            "annotation": "steps.jsonl",
            "data_augment": False,
            "repeat_time": 1,
            "conv_style": "internvl2_5_web_navigation_v1",
            "max_dynamic_patch": 12,
            "length": len(rows),
        }
    }
    (out / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")
    print(f"{out}/meta.json: {len(tasks)} trajectories, {len(rows)} steps")


def _recorded(steps: Path) -> set[str]:
    """Ids of the tasks whose trajectories `steps` holds to the end; what a killed run left unfinished is cut off."""
    if not steps.exists():
        return set()
    whole, ids = [], set()
    for line in steps.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            whole.append(line)
    for line in whole:
        row = json.loads(line)
        if "terminate(" in row["conversations"][1]["value"]:
            ids.add(row["image"].split("/")[0])
    steps.write_text(
        "".join(line for line in whole if json.loads(line)["image"].split("/")[0] in ids), "utf-8"
    )
    return ids
