"""What flows from rollout to training and report, and how it lies on disk.

    RUN/rollouts/<batch>/<task>/group.json, first.png            a task's plans, and what the decomposer saw
    RUN/rollouts/<batch>/<task>/p<i>_e<j>/episode.json, step_*.png   episode j under plan i

A file appears whole or not at all, and an episode's JSON after its screenshots: a rollout that was killed is
finished by running it again, and no finished episode is played twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from jhima.actions import Action, Turn, action_fields
from jhima.run_directory import write_whole


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
    """One observation and the actor's turn on it. `note` is what the browser said of an action without effect;
    `plan` the decomposer's new plan from this observation, where it made one (--replan)."""

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
    """tau_ij. `reward` is None where the environment failed for good: then `failure` says how.

    `failures`: the kind of every attempt's failure, retried ones too. `thinking`: seconds of `seconds` that it waited
    for replies. `milestones`: which subtasks a judge saw completed (--milestone), None where none was asked or able.
    `urls`: where its sites were, for a task's URLs have placeholders.
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


@dataclass
class Group:
    """One task's K plans and their M episodes. `failures`: kinds of what failed before o_0 was seen."""

    task: Task
    first: bytes
    plans: list[Plan]
    episodes: list[list[Episode]]  # [K][M]
    failures: list[str] = field(default_factory=list)

    def rewards(self) -> Tensor:
        """R [K, M] in {0, 1}, NaN where the environment failed."""
        return _table(self.episodes, lambda e: e.reward)

    def progress(self) -> Tensor:
        """[K, M]: share of the plan's subtasks that the judge saw completed, NaN where it did not say."""
        return _table(
            self.episodes, lambda e: sum(e.milestones) / len(e.milestones) if e.milestones else None
        )


def _table(episodes: list[list[Episode]], value: Callable[[Episode], float | None]) -> Tensor:
    return torch.tensor(
        [[float("nan") if (v := value(e)) is None else float(v) for e in row] for row in episodes]
    )


def _dump(value: object) -> bytes:
    return json.dumps(
        value, separators=(",", ":")
    ).encode()  # ASCII: a lone surrogate in a page is no error


def save_plans(
    folder: Path, task: Task, first: bytes, plans: list[Plan], failures: Sequence[str] = ()
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "first.png", first)
    described = {
        "id": task.id,
        "sites": task.sites,
        "intent": task.intent,
        "template": task.template,
    }
    write_whole(
        folder / "group.json",
        _dump(
            {
                "task": described,
                "first": "first.png",
                "plans": [asdict(p) for p in plans],
                "failures": failures,
            }
        ),
    )


def load_plans(folder: Path) -> tuple[bytes, list[Plan], list[str]] | None:
    """A task's first screenshot, plans and failures before them, or None where they were not finished."""
    if not (folder / "group.json").exists():
        return None
    group = json.loads((folder / "group.json").read_text("utf-8"))
    return (
        (folder / "first.png").read_bytes(),
        [Plan(**plan) for plan in group["plans"]],
        group["failures"],
    )


def save_episode(folder: Path, e: Episode) -> None:
    place = folder / f"p{e.plan}_e{e.episode}"
    place.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, step in enumerate(e.steps):
        name = f"step_{number:02d}.png"
        write_whole(place / name, step.screenshot)
        row = {
            k: getattr(step, k)
            for k in ("width", "height", "url", "note", "reply", "prompt_ids", "ids", "logps")
        }
        rows.append(
            row
            | {
                "screenshot": name,
                "thought": step.turn.thought,
                "operation": step.turn.operation,
                "error": step.turn.error,
                "warnings": step.turn.warnings,
                "actions": [action_fields(a) for a in step.turn.actions],
                "plan": asdict(step.plan) if step.plan else None,
            }
        )
    fields = {
        k: getattr(e, k)
        for k in (
            "task_id",
            "plan",
            "episode",
            "reward",
            "failure",
            "answer",
            "final_url",
            "urls",
            "checks",
            "seconds",
            "retries",
            "failures",
            "thinking",
            "milestones",
        )
    }
    write_whole(place / "episode.json", _dump(fields | {"steps": rows}))


def load_episode(folder: Path, plan: int, episode: int) -> Episode | None:
    """A finished episode, or None. Raises ValueError naming the file where it cannot be read."""
    path = folder / f"p{plan}_e{episode}" / "episode.json"
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text("utf-8"))
        steps = []
        for row in fields.pop("steps"):
            actions = tuple(
                Action(**{k: tuple(v) if isinstance(v, list) else v for k, v in a.items()})
                for a in row.pop("actions")
            )
            turn = Turn(
                actions,
                row.pop("thought"),
                row.pop("operation"),
                row.pop("error"),
                tuple(row.pop("warnings")),
            )
            plan = row.pop("plan")
            steps.append(
                Step(
                    **row
                    | {
                        "screenshot": (path.parent / row["screenshot"]).read_bytes(),
                        "turn": turn,
                        "plan": Plan(**plan) if plan else None,
                    }
                )
            )
        return Episode(**fields, steps=steps)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: not an episode of this version ({error!r}); delete it to have it played again"
        ) from None


def load_group(folder: Path, task: Task, K: int, M: int) -> Group | None:
    """A task's finished group, or None where the rollout went on without it."""
    saved = load_plans(folder)
    if saved is None:
        return None
    first, plans, failures = saved
    episodes = [[load_episode(folder, i, j) for j in range(M)] for i in range(K)]
    return (
        Group(task, first, plans, episodes, failures)
        if all(e for row in episodes for e in row)
        else None
    )


@dataclass(frozen=True)
class Task:
    """One task, x in the paper's symbols. `intent` is all that the models are told of it.

    id: file name and task_id, e.g. "pocket-train-17"; fit for a file name.
    start_url: one page, or several with AND between them; the agent begins on the first and the others lie behind it.
    eval: WebArena's own object, checked; jhima/webarena/evaluators.py reads it.
    template: the name of the intent's template where the file has one.
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

        What is checked on a page was changed there, except on sites that keep no state. Against the labels of
        webarena-verified for the 647: 307 of the 312 that change something (the other 5 ask for what cannot be done:
        790, 794-797), and 13 that only look. What a rollout really sends is watched too (login.Guard).
        """
        return "program_html" in self.eval["eval_types"] and not set(self.sites) <= {
            "map",
            "wikipedia",
        }
