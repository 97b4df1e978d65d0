"""What flows from rollout to training and report, and how it lies on disk.

    RUN/rollouts/<batch>/<task>/group.json, first.png       a task's plans, and o_0 that they saw
    RUN/rollouts/<batch>/<task>/p<i>_e<j>/episode.json, step_*.png       episode j under plan i
    RUN/rollouts/<batch>/<task>/p<i>_e<j>/last.png       o_T, what its last action led to

A file appears whole or not at all, and an episode's JSON after its screenshots: a rollout that was
killed is finished by running it again, and no finished episode is played twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from jhima.actions import Action, Turn, action_fields
from jhima.run_directory import write_whole


@dataclass(frozen=True)
class Task:
    """One task, x in the paper's symbols. `intent` is all that the models are told of it.

    id: file name and task_id, e.g. "pocket-train-17"; fit for a file name.
    start_url: one page, or several with AND between them: the agent begins on the first.
    eval: WebArena's own object, checked; jhima/webarena/evaluators.py reads it.
    template: the name of the intent's template, if the file has one.
    """

    id: str
    sites: tuple[str, ...]
    start_url: str
    intent: str
    eval: dict
    template: str = ""

    @property
    def changes(self) -> bool:
        """Whether doing the task changes a site's state, so that it needs a replica to itself.

        What is checked on a page was changed there, except on sites that keep no state. Against
        the labels of webarena-verified for the 647 training tasks: 307 of the 312 that change
        something (the other 5 ask for what cannot be done: 790, 794-797), and 13 that only look.
        What a rollout really sends is watched too (webarena/login.py, Guard).
        """
        checks_pages = "program_html" in self.eval["eval_types"]
        return checks_pages and not set(self.sites) <= {"map", "wikipedia"}


@dataclass(frozen=True)
class Plan:
    """d_i: the decomposer's reply and the subtasks read from it."""

    text: str
    subtasks: list[str]
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One observation and the actor's turn on it.

    note: what the browser reported of actions without effect. plan: the decomposer's new plan from
    this observation, if it made one (--replan).
    """

    screenshot: bytes
    width: int
    height: int
    url: str
    turn: Turn
    note: str
    reply: str
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    plan: Plan | None = None


@dataclass(frozen=True)
class Episode:
    """tau_ij. `reward` is None where the environment failed for good; `failure` then says how.

    failures: the kind of every attempt's failure, retried ones too. thinking: how many of
    `seconds` it waited for replies. milestones: which subtasks a judge saw completed (--milestone),
    None without a verdict. urls: where its sites were, for a task's URLs have placeholders. last:
    o_T, the screenshot after the last action; empty where the environment failed before it.
    """

    task_id: str
    plan: int
    episode: int
    steps: list[Step]
    reward: int | None
    failure: dict | None
    answer: str
    final_url: str
    checks: list[dict]
    seconds: float
    retries: int
    failures: list[str] = field(default_factory=list)
    thinking: float = 0.0
    milestones: list[bool] | None = None
    urls: dict[str, str] = field(default_factory=dict)
    last: bytes = b""


@dataclass
class Group:
    """One task's K plans and their M episodes. failures: kinds of failures before o_0 was seen."""

    task: Task
    first: bytes
    plans: list[Plan]
    episodes: list[list[Episode]]  # [K][M]
    failures: list[str] = field(default_factory=list)

    def rewards(self) -> Tensor:
        """R [K, M] in {0, 1}, NaN where the environment failed."""
        return self._table(lambda e: e.reward)

    def progress(self) -> Tensor:
        """[K, M]: share of the plan's subtasks that the judge saw completed; NaN: no verdict."""
        return self._table(share_completed)

    def _table(self, value: Callable[[Episode], float | None]) -> Tensor:
        """[K, M] of a number per episode, NaN where it is None."""
        rows = []
        for episodes in self.episodes:
            values = [value(e) for e in episodes]
            rows.append([float("nan") if v is None else float(v) for v in values])
        return torch.tensor(rows)


def share_completed(e: Episode) -> float | None:
    return sum(e.milestones) / len(e.milestones) if e.milestones else None


# ---- on disk ----


def save_plans(
    folder: Path, task: Task, first: bytes, plans: list[Plan], failures: Sequence[str] = ()
) -> None:
    """Writes a task's plans, with what a reader needs to know of the task."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "first.png", first)
    group = {
        "task": {name: getattr(task, name) for name in ("id", "sites", "intent", "template")},
        "first": "first.png",
        "plans": [asdict(plan) for plan in plans],
        "failures": failures,
    }
    write_whole(folder / "group.json", _dump(group))


def load_plans(folder: Path) -> tuple[bytes, list[Plan], list[str]] | None:
    """A task's first screenshot, plans and earlier failures; None where they were not finished."""
    if not (folder / "group.json").exists():
        return None
    group = json.loads((folder / "group.json").read_text("utf-8"))
    plans = [Plan(**plan) for plan in group["plans"]]
    return (folder / "first.png").read_bytes(), plans, group["failures"]


def save_episode(folder: Path, e: Episode) -> None:
    """Writes an episode's screenshots, then its JSON, which makes it count."""
    episode_folder = folder / f"p{e.plan}_e{e.episode}"
    episode_folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, step in enumerate(e.steps):
        name = f"step_{number:02d}.png"
        write_whole(episode_folder / name, step.screenshot)
        row = _fields_of(step) | _fields_of(step.turn)
        row["screenshot"] = name
        row["actions"] = [action_fields(action) for action in step.turn.actions]
        row["plan"] = asdict(step.plan) if step.plan else None
        del row["turn"]
        rows.append(row)
    last = "last.png" if e.last else ""
    if last:
        write_whole(episode_folder / last, e.last)
    content = _fields_of(e) | {"steps": rows, "last": last}
    write_whole(episode_folder / "episode.json", _dump(content))


def load_episode(folder: Path, plan: int, episode: int) -> Episode | None:
    """A finished episode, or None. Raises ValueError naming the file if it cannot be read."""
    path = folder / f"p{plan}_e{episode}" / "episode.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        content["steps"] = [_read_step(row, path.parent) for row in content["steps"]]
        if last := content.pop("last", ""):  # earlier versions kept none
            content["last"] = (path.parent / last).read_bytes()
        return Episode(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: not an episode of this version ({error!r}); delete it to have it played again"
        ) from None


def _read_step(row: dict, folder: Path) -> Step:
    turn = Turn(
        actions=tuple(_read_action(action) for action in row.pop("actions")),
        thought=row.pop("thought"),
        operation=row.pop("operation"),
        error=row.pop("error"),
        warnings=tuple(row.pop("warnings")),
    )
    plan = row.pop("plan")
    screenshot = (folder / row.pop("screenshot")).read_bytes()
    return Step(screenshot=screenshot, turn=turn, plan=plan and Plan(**plan), **row)


def _read_action(values: dict) -> Action:
    """An action, whose lists (keys, points) are tuples."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Action(**values | lists)


def load_group(folder: Path, task: Task, K: int, M: int) -> Group | None:
    """A task's finished group, or None where the rollout went on without it."""
    saved = load_plans(folder)
    if saved is None:
        return None
    first, plans, failures = saved
    rows = []
    for i in range(K):
        episodes = [load_episode(folder, i, j) for j in range(M)]
        if None in episodes:
            return None
        rows.append(episodes)
    return Group(task, first, plans, rows, failures)


def _fields_of(value: object) -> dict:
    """A dataclass's own fields, as they are."""
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _dump(value: object) -> bytes:
    """Compact JSON in ASCII, in which half a character (a page may hold one) is no error."""
    return json.dumps(value, separators=(",", ":")).encode()
