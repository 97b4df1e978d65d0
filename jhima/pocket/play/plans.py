"""Does the plan matter? One actor, the same tasks, three plans: the oracle's, none, another task's.

Joint training can only help where a better plan makes success likelier. So this is measured, on
tasks that take many moves. A wrong plan is the oracle's for another task of the same site.
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
from jhima.episodes import Plan, Task
from jhima.pocket.play.check import environment
from jhima.pocket.tasks.generate import solutions
from jhima.policy import default_dtype, load_policy
from jhima.rollout import Agents, Sampling, actor_policy, episode
from jhima.sampler import LocalSampler

KINDS = ("oracle", "empty", "wrong")


def moves(task: Task) -> int:
    """How many moves the oracle's plan of a task has."""
    return sum(len(subtask.moves) for subtask in solutions()[task.intent].plan)


def oracle_titles(task: Task) -> list[str]:
    return [subtask.title for subtask in solutions()[task.intent].plan]


def plans_of(tasks: list[Task], rng: random.Random) -> list[dict[str, list[str]]]:
    """The three plans of each task."""
    plans = []
    for task in tasks:
        titles = oracle_titles(task)
        same_site = [oracle_titles(other) for other in tasks if other.sites == task.sites]
        others = [other for other in same_site if other != titles]
        wrong = rng.choice(others) if others else []
        plans.append({"oracle": titles, "empty": [], "wrong": wrong})
    return plans


async def compare(
    *,
    actor: Path,
    adapter: Path | None,
    tasks: tuple[str, ...],
    shortest: int,
    limit: int | None,
    full: bool,
    T: int,
    tokens: int,
    concurrency: int,
    seed: int,
) -> None:
    """Plays every task of at least `shortest` moves once under each plan, at temperature 0.

    Prints success, and the difference that the oracle's plan makes, with 95 % bootstrap intervals
    over tasks (paired). Raises ValueError if no task takes so many moves.
    """
    played: list[Task] = []
    for name in tasks:
        played += [task for task in load_tasks(name) if moves(task) >= shortest]
    played = played[:limit]
    if not played:
        raise ValueError(f"no task of {', '.join(tasks)} takes {shortest} moves or more")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(actor, device, default_dtype(device), adapter=adapter).eval()
    agents = Agents(None, LocalSampler(policy), policy.prompts, policy.prompts)
    sampling = Sampling(temperature=0.0, action_tokens=tokens, seed=seed)
    rewards = {kind: np.full(len(played), np.nan) for kind in KINDS}

    async with environment(full, concurrency) as env:
        with tqdm(total=len(KINDS) * len(played), desc="plans", unit="episode") as bar:

            async def play(index: int, kind: str, titles: list[str]) -> None:
                task, plan = played[index], Plan("", titles)

                def act(attempt: int):
                    return actor_policy(agents, task, plan, sampling, 0, 0, attempt)

                reward = (await episode(env, task, 0, 0, act, T)).reward
                rewards[kind][index] = np.nan if reward is None else reward
                bar.update()

            async with asyncio.TaskGroup() as group:
                for index, plans in enumerate(plans_of(played, random.Random(seed))):
                    for kind, titles in plans.items():
                        group.create_task(play(index, kind, titles))

    print(f"{len(played)} tasks of {shortest} moves or more; success in % with 95 % intervals")
    for kind in KINDS:
        print(f"  {kind + ' plan':22} {interval(rewards[kind])}")
    for kind in KINDS[1:]:
        print(f"  {'oracle - ' + kind:22} {interval(rewards['oracle'] - rewards[kind])}")


def interval(values: np.ndarray) -> str:
    """Mean and interval of the values that are not nan, as "12.5 [8.0, 17.0]", in percent."""
    known = values[~np.isnan(values)]
    if not len(known):
        return "none was scored"
    mean = f"{100 * known.mean():.1f}"
    if len(known) < 2 or np.ptp(known) == 0:
        return mean
    rng = np.random.default_rng(0)
    bounds = bootstrap((known,), np.mean, method="percentile", rng=rng).confidence_interval
    return f"{mean} [{100 * bounds.low:.1f}, {100 * bounds.high:.1f}]"
