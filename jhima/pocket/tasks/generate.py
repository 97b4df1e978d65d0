"""The pocket arena's tasks: every instance of every template, split once and for all by a seed.

Training and evaluation share no instance; templates marked held_out have a list of their own.
"""

from __future__ import annotations

import random
from functools import lru_cache

from jhima.pocket.tasks import (
    gitlab_tasks,
    map_tasks,
    reddit_tasks,
    shopping_admin_tasks,
    shopping_tasks,
)
from jhima.pocket.tasks.intents import Solution, Template

SEED = 0


EVAL_SHARE = 0.2  # of each template that training sees


def templates() -> list[Template]:
    modules = (shopping_tasks, shopping_admin_tasks, reddit_tasks, gitlab_tasks, map_tasks)
    return [template for module in modules for template in module.TEMPLATES]


@lru_cache(maxsize=1)
def solutions() -> dict[str, Solution]:
    """The oracle's knowledge: intent -> solution."""
    return {intent: solution for t in templates() for intent, solution in map(t.instance, t.values)}


def task_list(split: str) -> list[dict]:
    """The tasks of a split as dicts in WebArena-Lite-v2's schema, with WebArena's intent_template and
    instantiation_dict. The order mixes sites, so that any prefix is a fair sample.

    "train"; "eval", new instances of its templates; "new", all instances of templates that are held out. "demos" and "rl"
    are the halves of "train": as in the paper, RL practises on tasks that fine-tuning has not shown.
    """
    if split in ("demos", "rl"):
        tasks = task_list("train")
        return tasks[: len(tasks) // 2] if split == "demos" else tasks[len(tasks) // 2 :]
    rng = random.Random(SEED)
    chosen: list[tuple[Template, dict]] = []
    for t in templates():
        values = list(t.values)
        rng.shuffle(values)
        held = max(1, round(EVAL_SHARE * len(values)))
        of_split = (
            {"train": values[held:], "eval": values[:held]} if not t.held_out else {"new": values}
        )
        chosen += [(t, value) for value in of_split.get(split, [])]
    rng.shuffle(chosen)
    return [_task(number, t, value) for number, (t, value) in enumerate(chosen)]


def _task(number: int, t: Template, value: dict) -> dict:
    intent, solution = t.instance(value)
    return {
        "sites": [t.site],
        "task_id": number,
        "storage_state": None if t.site == "map" else f"./.auth/{t.site}_state.json",
        "start_url": t.start,
        "intent": intent,
        "intent_template": t.name,
        "instantiation_dict": value,
        "eval": solution.eval,
    }
