"""The pocket arena's tasks: every instance of every template, split once and for all by a seed.

Training and evaluation share no instance. Held-out templates have a list of their own.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import chain

from jhima.pocket.tasks import (
    gitlab_tasks,
    map_tasks,
    reddit_tasks,
    shopping_admin_tasks,
    shopping_tasks,
)
from jhima.pocket.tasks.intents import Solution, Template

SEED = 0
EVAL_SHARE = 0.2  # of the instances of each template that training uses


def templates() -> list[Template]:
    """All templates of the five modules, in the order in which they are defined."""
    modules = (shopping_tasks, shopping_admin_tasks, reddit_tasks, gitlab_tasks, map_tasks)
    values = chain.from_iterable(vars(module).values() for module in modules)
    return [value for value in values if isinstance(value, Template)]


@lru_cache(maxsize=1)
def solutions() -> dict[str, Solution]:
    """What the oracle knows: intent -> solution."""
    by_intent = {}
    for template in templates():
        by_intent.update(template.instance(value) for value in template.values)
    return by_intent


def task_list(split: str) -> list[dict]:
    """The tasks of a split in WebArena-Lite-v2's schema, with intent_template and
    instantiation_dict as in WebArena. The order mixes the sites: any prefix is a fair sample.

    "train"; "eval": new instances of train's templates; "new": all instances of the held-out
    templates. "demos" and "rl" are the halves of "train": as in the paper, RL practises on tasks
    that fine-tuning has not shown.
    """
    if split in ("demos", "rl"):
        tasks = task_list("train")
        half = len(tasks) // 2
        return tasks[:half] if split == "demos" else tasks[half:]
    rng = random.Random(SEED)
    instances: list[tuple[Template, dict]] = []
    for template in templates():
        values = list(template.values)
        rng.shuffle(values)
        eval_count = max(1, round(EVAL_SHARE * len(values)))
        if template.held_out:
            parts = {"new": values}
        else:
            parts = {"train": values[eval_count:], "eval": values[:eval_count]}
        instances += [(template, value) for value in parts.get(split, [])]
    rng.shuffle(instances)
    return [_task(number, *instance) for number, instance in enumerate(instances)]


def _task(number: int, template: Template, value: dict) -> dict:
    intent, solution = template.instance(value)
    return {
        "sites": [template.site],
        "task_id": number,
        "storage_state": None if template.site == "map" else f"./.auth/{template.site}_state.json",
        "start_url": template.start,
        "intent": intent,
        "intent_template": template.name,
        "instantiation_dict": value,
        "eval": solution.eval,
    }
