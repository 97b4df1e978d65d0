"""A run directory read back (episodes.py wrote it), for tables, figures and the report.

Lighter than episodes.py's own reading: no screenshot and no step, so that 10,000 episodes fit in memory, and tolerant:
one damaged file costs one episode, not the table.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jhima.episodes import Plan, Task
from jhima.run_directory import write_whole
from jhima.webarena.evaluators import Check

Array = NDArray[np.float64]


MALFORMED = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)  # what reading may raise


PLANNED = "tasks.json"  # what an evaluation set out to play: {"runs": R, "tasks": [a Task's description, ...]}


@dataclass(frozen=True)
class EpisodeRecord:
    """tau_ij: `plan` is i, `number` is j. `reward` None is no sample; `failure` says why.

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

    Of `task` only what group.json describes: no start page, no evaluators. Of `plans` text, subtasks and ids.
    `unreadable` names the files that exist but could not be understood, each with the reason.
    """

    batch: str
    folder: Path
    task: Task
    plans: tuple[Plan, ...] = ()
    episodes: tuple[EpisodeRecord, ...] = ()
    unreadable: tuple[str, ...] = ()

    def rewards(self) -> Array:
        """R [K, M], NaN where an episode is missing or was no sample."""
        K = max([len(self.plans), *(e.plan + 1 for e in self.episodes)])
        M = max([0, *(e.number + 1 for e in self.episodes)])
        R = np.full((K, M), math.nan)
        for episode in self.episodes:
            if episode.reward is not None:
                R[episode.plan, episode.number] = episode.reward
        return R


def write_planned(run: Path, runs: int, tasks: list[Task]) -> None:
    """Says what an evaluation sets out to play, so that a task whose start page never opened is missed."""
    described = [
        {"id": t.id, "sites": t.sites, "intent": t.intent, "template": t.template} for t in tasks
    ]
    write_whole(Path(run) / PLANNED, json.dumps({"runs": runs, "tasks": described}))


def read_groups(run: Path) -> list[GroupRecord]:
    """Every group below RUN/rollouts in the order of batch and task; a run that is still going is fine.

    An episode without its episode.json is skipped (it has not ended); a file that cannot be understood is named in its
    group's `unreadable`. What an evaluation planned and has not begun is a group without plans and episodes. Raises
    FileNotFoundError when `run` is no run directory.
    """
    rollouts = Path(run) / "rollouts"
    if not rollouts.is_dir():
        raise FileNotFoundError(
            f"{rollouts}: no such folder; expected the output of train_rl.py or evaluate.py"
        )
    groups = {
        folder: read_group(folder) for batch in _folders(rollouts) for folder in _folders(batch)
    }
    for batch, task in _planned(Path(run)):
        folder = rollouts / batch / task.id
        # A task that never came to group.json has its description here alone.
        if folder not in groups or not (groups[folder].plans or groups[folder].unreadable):
            groups[folder] = GroupRecord(batch, folder, task)
    return sorted(
        groups.values(), key=lambda group: (_natural(group.batch), _natural(group.folder.name))
    )


def _planned(run: Path) -> list[tuple[str, Task]]:
    try:
        planned = _read_object(run / PLANNED)
        tasks = [_parse_task(raw) for raw in planned["tasks"]]
        return [
            (f"run_{number}", task)
            for number in range(min(planned["runs"], 1000))
            for task in tasks
            if re.fullmatch(r"[\w-]+", task.id)
        ]  # an id that is a file name
    except MALFORMED:
        return []  # a training run has none


def read_group(folder: Path) -> GroupRecord:
    """One task's group, without plans and episodes where it has none yet. Raises FileNotFoundError for no folder."""
    unreadable: list[str] = []
    task, plans = Task(folder.name, (), "", "", {}), ()
    try:
        raw = _read_object(folder / "group.json")
        task = _parse_task(raw["task"])
        plans = tuple(
            Plan(_text(p, "text"), list(_texts(p, "subtasks")), ids=list(p.get("ids", ())))
            for p in raw["plans"]
        )
    except FileNotFoundError:
        pass  # half-written: the plans are still being sampled
    except MALFORMED as error:
        unreadable.append(_complaint(folder / "group.json", error))
    episodes = []
    for path in _folders(folder):
        if not (match := re.fullmatch(r"p(\d{1,3})_e(\d{1,3})", path.name)):
            continue
        try:
            raw = _read_object(path / "episode.json")
            episodes.append(_parse_episode(raw, path, plan=int(match[1]), number=int(match[2])))
        except FileNotFoundError:
            pass
        except MALFORMED as error:
            unreadable.append(_complaint(path / "episode.json", error))
    return GroupRecord(folder.parent.name, folder, task, plans, tuple(episodes), tuple(unreadable))


def _parse_task(raw: dict) -> Task:
    return Task(
        str(raw["id"]),
        _texts(raw, "sites"),
        "",
        _text(raw, "intent"),
        {},
        str(raw.get("template", "")),
    )


def _parse_episode(raw: dict, folder: Path, plan: int, number: int) -> EpisodeRecord:
    reward, failure = raw["reward"], raw.get("failure")
    if reward not in (None, 0, 1):
        raise ValueError(f"reward is {reward!r}, expected 0, 1 or null")
    checks = tuple(
        Check(
            _text(c, "kind"),
            _text(c, "what"),
            None if c["passed"] is None else bool(c["passed"]),
            _text(c, "reason"),
        )
        for c in raw.get("checks", ())
    )
    if failure:
        why = f"{failure['kind']}: {failure['detail']}"
    else:
        why = "judge: no verdict" if reward is None else ""
    return EpisodeRecord(
        folder,
        plan,
        number,
        None if reward is None else float(reward),
        why,
        _text(raw, "answer"),
        _text(raw, "final_url"),
        float(raw.get("seconds", 0)),
        checks,
        tuple(_text(step, "error") for step in raw["steps"]),
    )


def _text(raw: dict, key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str | None):
        raise TypeError(f"{key} is {type(value).__name__}, expected text")
    return value or ""


def _texts(raw: dict, key: str) -> tuple[str, ...]:
    values = raw.get(key, [])
    if not isinstance(values, list):
        raise TypeError(f"{key} is {type(values).__name__}, expected a list")
    return tuple(map(str, values))


def _read_object(path: Path) -> dict:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _complaint(path: Path, error: Exception) -> str:
    return f"{'/'.join(path.parts[-4:])}: {type(error).__name__}: {str(error)[:200]}"


def _folders(parent: Path) -> list[Path]:
    return sorted(
        (path for path in parent.iterdir() if path.is_dir()), key=lambda path: _natural(path.name)
    )


def _natural(name: str) -> list[int | str]:
    """Numbers in a name compared as numbers: run_2 before run_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def read_args(run: Path) -> dict:
    """The arguments a run began with; {} where there are none to be read."""
    try:
        return _read_object(Path(run) / "args.json")
    except MALFORMED:
        return {}
