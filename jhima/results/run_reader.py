"""A run directory read back (episodes.py wrote it), for tables, figures and the report.

Lighter than the reading in episodes.py: no screenshot and no step, so that 10,000 episodes fit in
memory. And tolerant: a damaged file costs one episode, not the table.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jhima.episodes import Plan, Task
from jhima.run_directory import write_whole
from jhima.webarena.evaluators import Check

Array = NDArray[np.float64]

# What reading a damaged file may raise.
MALFORMED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

# What an evaluation is to play: {"runs": R, "tasks": [one description per task, ...]}.
PLANNED = "tasks.json"


@dataclass(frozen=True)
class EpisodeRecord:
    """tau_ij: `plan` is i, `number` is j. `reward` is None where there is none; `failure` says why.

    errors: for each step why its reply could not be read, "" where it could.
    """

    folder: Path
    plan: int
    number: int
    reward: float | None
    failure: str
    answer: str
    final_url: str
    seconds: float
    checks: tuple[Check, ...]
    errors: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(self.errors)


@dataclass(frozen=True)
class GroupRecord:
    """The K plans and up to K x M episodes of one task in one batch (or one evaluation run).

    `task` has only what group.json describes: no start page, no evaluators. `plans` have text,
    subtasks and ids. `unreadable` names the files that could not be understood, with the reasons.
    """

    batch: str
    folder: Path
    task: Task
    plans: tuple[Plan, ...] = ()
    episodes: tuple[EpisodeRecord, ...] = ()
    unreadable: tuple[str, ...] = ()

    def rewards(self) -> Array:
        """R [K, M], NaN where an episode is missing or has no reward."""
        K = max([len(self.plans), *(e.plan + 1 for e in self.episodes)])
        M = max([0, *(e.number + 1 for e in self.episodes)])
        R = np.full((K, M), math.nan)
        for episode in self.episodes:
            if episode.reward is not None:
                R[episode.plan, episode.number] = episode.reward
        return R

    def subtasks(self, plan: int) -> list[str]:
        """The subtasks of plan i; [] where it has none or could not be read."""
        return self.plans[plan].subtasks if plan < len(self.plans) else []


def write_planned(run: Path, runs: int, tasks: list[Task]) -> None:
    """Writes what an evaluation is to play: its table then shows tasks that it could not begin."""
    described = []
    for task in tasks:
        keys = ("id", "sites", "intent", "template")
        described.append({key: getattr(task, key) for key in keys})
    write_whole(Path(run) / PLANNED, json.dumps({"runs": runs, "tasks": described}))


def read_groups(run: Path) -> list[GroupRecord]:
    """Every group below RUN/rollouts in the order of batch and task; the run may still be going.

    An episode without its episode.json is skipped, for it has not ended; a file that cannot be
    understood is named in its group's `unreadable`. What an evaluation planned and has not begun is
    a group without plans and episodes. Raises FileNotFoundError when `run` is no run directory.
    """
    rollouts = Path(run) / "rollouts"
    if not rollouts.is_dir():
        raise FileNotFoundError(
            f"{rollouts}: no such folder; expected the output of train_rl.py or evaluate.py"
        )
    groups = {}
    for batch in _folders(rollouts):
        groups |= {folder: read_group(folder) for folder in _folders(batch)}
    for batch, task in _planned(Path(run)):
        folder = rollouts / batch / task.id
        group = groups.setdefault(folder, GroupRecord(batch, folder, task))
        # Without a group.json the planned description is all that is known of the task; episodes
        # that ended count all the same.
        if not (group.plans or group.unreadable):
            groups[folder] = replace(group, task=task)
    return sorted(groups.values(), key=lambda g: (_natural(g.batch), _natural(g.folder.name)))


def _planned(run: Path) -> list[tuple[str, Task]]:
    """(batch, task) of everything that an evaluation is to play; [] for a training run."""
    try:
        planned = _read_object(run / PLANNED)
        runs = range(min(planned["runs"], 1000))
        tasks = [_parse_task(raw) for raw in planned["tasks"]]
    except MALFORMED:
        return []
    named = [task for task in tasks if re.fullmatch(r"[\w-]+", task.id)]  # fit for a file name
    return [(f"run_{number}", task) for number, task in product(runs, named)]


def read_group(folder: Path) -> GroupRecord:
    """One task's group, without plans and episodes where it has none yet.

    Raises FileNotFoundError where there is no such folder.
    """
    unreadable: list[str] = []
    task, plans, episodes = Task(folder.name, (), "", "", {}), (), []
    path = folder / "group.json"
    try:
        raw = _read_object(path)
        task = _parse_task(raw["task"])
        plans = tuple(map(_parse_plan, raw["plans"]))
    except FileNotFoundError:
        pass  # half-written: the plans are still being sampled
    except MALFORMED as error:
        unreadable.append(_complaint(path, error))
    for path in _folders(folder):
        if not (match := re.fullmatch(r"p(\d{1,3})_e(\d{1,3})", path.name)):
            continue
        try:
            raw = _read_object(path / "episode.json")
            episodes.append(_parse_episode(raw, path, plan=int(match[1]), number=int(match[2])))
        except FileNotFoundError:
            pass  # still being played
        except MALFORMED as error:
            unreadable.append(_complaint(path / "episode.json", error))
    return GroupRecord(folder.parent.name, folder, task, plans, tuple(episodes), tuple(unreadable))


def _complaint(path: Path, error: Exception) -> str:
    return f"{'/'.join(path.parts[-4:])}: {type(error).__name__}: {str(error)[:200]}"


def _parse_plan(raw: dict) -> Plan:
    subtasks = list(_texts(raw, "subtasks"))
    return Plan(_text(raw, "text"), subtasks, ids=list(raw.get("ids", ())))


def _parse_task(raw: dict) -> Task:
    intent, template = _text(raw, "intent"), str(raw.get("template", ""))
    return Task(str(raw["id"]), _texts(raw, "sites"), "", intent, {}, template)


def _parse_episode(raw: dict, folder: Path, plan: int, number: int) -> EpisodeRecord:
    reward, failure, why = raw["reward"], raw.get("failure"), ""
    if reward not in (None, 0, 1):
        raise ValueError(f"reward is {reward!r}, expected 0, 1 or null")
    if failure:
        why = f"{failure['kind']}: {failure['detail']}"
    elif reward is None:
        why = "judge: no verdict"
    return EpisodeRecord(
        folder=folder,
        plan=plan,
        number=number,
        reward=None if reward is None else float(reward),
        failure=why,
        answer=_text(raw, "answer"),
        final_url=_text(raw, "final_url"),
        seconds=float(raw.get("seconds", 0)),
        checks=tuple(map(_parse_check, raw.get("checks", ()))),
        errors=tuple(_text(step, "error") for step in raw["steps"]),
    )


def _parse_check(raw: dict) -> Check:
    passed = None if raw["passed"] is None else bool(raw["passed"])
    return Check(_text(raw, "kind"), _text(raw, "what"), passed, _text(raw, "reason"))


def _text(raw: dict, key: str) -> str:
    return _value(raw, key, str)


def _texts(raw: dict, key: str) -> tuple[str, ...]:
    return tuple(map(str, _value(raw, key, list)))


def _value(raw: dict, key: str, kind: type) -> Any:
    """The value of that kind; an empty one where it is null or missing."""
    value = raw.get(key)
    if not isinstance(value, kind | None):
        raise TypeError(f"{key} is {type(value).__name__}, expected {kind.__name__}")
    return value or kind()


def _read_object(path: Path) -> dict:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _folders(parent: Path) -> list[Path]:
    folders = [path for path in parent.iterdir() if path.is_dir()]
    return sorted(folders, key=lambda path: _natural(path.name))


def _natural(name: str) -> list[int | str]:
    """Numbers in a name compared as numbers: run_2 before run_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
