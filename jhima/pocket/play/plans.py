"""Does the plan matter? One actor, the same tasks, three plans: the oracle's, none, and another task's.

Joint training can only help where a better plan makes success likelier, so this is measured, on tasks that take many
moves. A wrong plan is the oracle's for another task of the same site.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import torch
from scipy.stats import bootstrap
from tqdm import tqdm

from jhima.environment import load_tasks
from jhima.episodes import Episode, Plan, Task
from jhima.pocket.play.check import environment
from jhima.pocket.tasks.generate import solutions
from jhima.policy import default_dtype, load_policy
from jhima.rollout import Agents, Sampling, actor_policy, episode
from jhima.sampler import LocalSampler

KINDS = ("oracle", "empty", "wrong")


def moves(task: Task) -> int:
    """How many moves the oracle's plan of a task has."""
    return sum(len(g.moves) for g in solutions()[task.intent].plan)


def plans_of(tasks: list[Task], rng: random.Random) -> list[dict[str, list[str]]]:
    """The three plans of each task."""
    titles = {task.id: [g.title for g in solutions()[task.intent].plan] for task in tasks}
    found = []
    for task in tasks:
        others = [
            titles[t.id] for t in tasks if t.sites == task.sites and titles[t.id] != titles[task.id]
        ]
        found.append(
            {"oracle": titles[task.id], "empty": [], "wrong": rng.choice(others) if others else []}
        )
    return found


async def compare(
    actor: Path,
    adapter: Path | None,
    names: list[str],
    shortest: int,
    limit: int | None,
    full: bool,
    concurrency: int,
    T: int,
    tokens: int,
    seed: int,
) -> None:
    """Plays every task of at least `shortest` moves once under each plan at temperature 0; prints success and the
    difference that the oracle's plan makes, with 95 % bootstrap intervals over tasks (paired)."""
    tasks = [task for name in names for task in load_tasks(name) if moves(task) >= shortest][:limit]
    if not tasks:
        raise ValueError(f"no task of {', '.join(names)} takes {shortest} moves or more")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(actor, device, default_dtype(device), adapter=adapter).eval()
    agents = Agents(None, LocalSampler(policy), policy.prompts, policy.prompts)
    how = Sampling(temperature=0.0, action_tokens=tokens, seed=seed)
    won = {kind: np.full(len(tasks), np.nan) for kind in KINDS}

    async with environment(full, concurrency) as env:
        with tqdm(total=len(KINDS) * len(tasks), desc="plans", unit="episode") as bar:

            async def one(at: int, kind: str, titles: list[str]) -> None:
                plan = Plan("", titles)
                e: Episode = await episode(
                    env,
                    tasks[at],
                    0,
                    0,
                    lambda n: actor_policy(agents, tasks[at], plan, how, 0, 0, n),
                    T,
                )
                won[kind][at] = np.nan if e.reward is None else e.reward
                bar.update()

            async with asyncio.TaskGroup() as group:
                for at, plans in enumerate(plans_of(tasks, random.Random(seed))):
                    for kind, titles in plans.items():
                        group.create_task(one(at, kind, titles))

    print(f"{len(tasks)} tasks of {shortest} moves or more; success in % with 95 % intervals")
    for kind in KINDS:
        print(f"  {kind + ' plan':22} {interval(won[kind])}")
    for kind in KINDS[1:]:
        print(f"  {'oracle - ' + kind:22} {interval(won['oracle'] - won[kind])}")


def interval(values: np.ndarray) -> str:
    """Mean of the values that are there, as "12.5 [8.0, 17.0]", in percent."""
    known = values[~np.isnan(values)]
    if len(known) < 2 or np.ptp(known) == 0:
        return f"{100 * known.mean():.1f}" if len(known) else "none was scored"
    found = bootstrap(
        (known,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return f"{100 * known.mean():.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
