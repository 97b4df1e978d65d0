"""What the report shows of a run, as values that JSON has: texts cut to a length, numbers, images.

Nothing here is HTML: report.js makes text nodes of the texts, and only `Images` makes addresses.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from jhima.actions import Action, action_fields
from jhima.episodes import Step, load_episode
from jhima.grpo import actor_advantages, decomposer_advantages, plan_scores
from jhima.results.figures import learning_curve, subgoal_figure
from jhima.results.progress import Verdicts, episode_key, progress
from jhima.results.run_reader import MALFORMED, EpisodeRecord, GroupRecord
from jhima.results.success import cells, success_table
from jhima.run_directory import read_args

TEXT = 4_000  # characters shown of one text: replies have a token limit, URLs and notes have none
AS_IS = 64_000  # bytes; a larger screenshot becomes a JPEG, a fifth of the size and still legible
LONGEST_SIDE = 1280  # pixels
ABSENT = "The steps of this episode are not in this page; --limit and --batch choose which are."


@dataclass
class Images:
    """Where a page's images are: inside it as data: URIs, or in a folder beside it as files.

    Identical images are stored once: all episodes of a task begin with the same screenshot.
    `sources`: key -> address.
    """

    folder: Path | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, content: bytes, kind: str, key: str) -> str:
        """Stores an image of a `kind` that Pillow names, "png" or "jpeg"; returns its key."""
        if self.folder is None:
            self.sources[key] = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
        else:
            (self.folder / f"{key}.{kind}").write_bytes(content)
            self.sources[key] = f"{self.folder.name}/{key}.{kind}"
        return key

    def figure(self, png: io.BytesIO) -> str:
        return self.add(png.getvalue(), "png", _hash(png.getvalue()))

    def screenshot(self, content: bytes) -> str | None:
        """The key of a screenshot, made smaller if it is large; None if it is no PNG or JPEG."""
        key = _hash(content)
        if key in self.sources:
            return key  # before it is made smaller again, which takes 20 ms
        try:
            with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
                if len(content) <= AS_IS:
                    return self.add(content, image.format.lower(), key)
                image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
                smaller = io.BytesIO()
                image.convert("RGB").save(smaller, "JPEG", quality=80)
        except (OSError, ValueError, Image.DecompressionBombError):
            return None
        return self.add(smaller.getvalue(), "jpeg", key)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class Page:
    """What all views of a page share. chosen: folders of the episodes to show with their steps."""

    chosen: set[Path]
    verdicts: dict[str, Verdicts]
    images: Images
    normalize_std: bool  # how the run computed its advantages


def run_view(
    run: Path,
    groups: list[GroupRecord],
    chosen: set[Path],
    verdicts: dict[str, Verdicts],
    images: Images,
    figures: bool = True,
) -> dict[str, Any]:
    """A page of `groups`, with steps and screenshots for the episodes in `chosen`.

    figures: whether the page has those of the whole run.
    """
    args, table = read_args(run), success_table(groups)
    page = Page(chosen, verdicts, images, bool(args.get("normalize_std")))
    bar = tqdm(groups, desc="report", unit="task", disable=None)
    counts = ("tasks", "runs", "episodes", "unscored", "not_played")
    view = {
        "run": run.resolve().name,
        "args": [[name, _as_text(value)] for name, value in args.items()],
        "success": cells(table),
        "counts": {name: getattr(table.overall, name) for name in counts},
        "unreadable": table.unreadable,
        "curve": _curve(run / "metrics.jsonl", images) if figures else None,
        "subgoals": _subgoals(run, groups, verdicts, images) if figures else None,
        "groups": [_group_view(group, page) for group in bar],
    }
    return shown(view) | {"images": images.sources}


def in_full(groups: list[GroupRecord], limit: int) -> set[Path]:
    """Folders of at most `limit` episodes to show with their steps: whole tasks, spread evenly.

    Evenly from the first task to the last, so that the start and the end of a training run are both
    there. A task that does not fit gets its first episodes under every plan.
    """
    total = sum(len(group.episodes) for group in groups)
    fitting = len(groups) if total <= limit else max(1, limit * len(groups) // total)
    chosen: list[Path] = []
    for index in np.linspace(0, len(groups) - 1, fitting).round().astype(int):
        episodes = sorted(groups[index].episodes, key=lambda e: (e.number, e.plan))
        chosen += [e.folder for e in episodes]
    return set(chosen[:limit])


def _group_view(group: GroupRecord, page: Page) -> dict[str, Any]:
    R = torch.from_numpy(group.rewards())  # [K, M], NaN: no reward
    advantages = actor_advantages(R, page.normalize_std).where(~R.isnan(), math.nan)  # [K, M]
    rows: list[list[dict | None]] = [[None] * R.shape[1] for _ in range(R.shape[0])]
    for e in group.episodes:
        rows[e.plan][e.number] = _episode_view(e, advantages[e.plan, e.number].item(), page)
    first = None
    if not group.episodes or any(e.folder in page.chosen for e in group.episodes):
        path = group.folder / "first.png"
        first = page.images.screenshot(path.read_bytes() if path.is_file() else b"")
    return {
        "batch": group.batch,
        "id": group.task.id,
        "sites": group.task.sites,
        "intent": group.task.intent,
        "template": group.task.template,
        "plans": _plan_views(group, R, page.normalize_std),
        "rows": rows,
        "first": first,
    }


def _plan_views(group: GroupRecord, R: Tensor, normalize_std: bool) -> list[dict[str, Any]]:
    """R [K, M]; K may exceed the number of plans that could be read."""
    scores = plan_scores(R)  # [K]
    advantages = decomposer_advantages(scores, normalize_std).where(~scores.isnan(), math.nan)
    views = []
    for score, advantage in zip(scores.tolist(), advantages.tolist()):
        unread = {"text": "", "subtasks": [], "tokens": 0}
        views.append({"score": score, "advantage": advantage, **unread})
    for view, plan in zip(views, group.plans):
        view |= {"text": plan.text, "subtasks": plan.subtasks[:50], "tokens": len(plan.ids)}
    return views


def _episode_view(e: EpisodeRecord, advantage: float, page: Page) -> dict[str, Any]:
    """`steps` is null where they are not shown, and `absent` says why.

    After the steps comes what the last one led to, with `end` set.
    """
    steps, absent, judged = None, ABSENT, None
    if e.folder in page.chosen:
        try:
            episode = load_episode(e.folder.parent, e.plan, e.number)
            steps = [_step_view(step, page.images) for step in episode.steps]
            if episode.last and steps:
                steps.append(_end_view(steps[-1], page.images.screenshot(episode.last)))
        except MALFORMED as error:
            absent = f"The steps cannot be read: {error}"
    if verdicts := page.verdicts.get(episode_key(e)):
        judged = {"completed": verdicts.completed[:50], "reply": verdicts.reply}
    return {
        "reward": e.reward,
        "advantage": advantage,
        "failure": e.failure,
        "answer": e.answer,
        "url": e.final_url,
        "seconds": e.seconds,
        "length": e.length,
        "checks": list(map(vars, e.checks)),
        "subtasks": judged,
        "steps": steps,
        "absent": absent,
    }


def _step_view(step: Step, images: Images) -> dict[str, Any]:
    turn = step.turn
    return {
        "image": images.screenshot(step.screenshot),
        "width": step.width,
        "height": step.height,
        "url": step.url,
        "reply": step.reply,
        "note": step.note,
        "tokens": len(step.ids),
        "thought": turn.thought,
        "operation": turn.operation,
        "error": turn.error or "",
        "plan": step.plan.subtasks[:50] if step.plan else [],
        "warnings": turn.warnings[:20],
        "actions": [_action_view(action) for action in turn.actions[:20]],
    }


def _end_view(step: dict[str, Any], image: str | None) -> dict[str, Any]:
    size = {name: step[name] for name in ("width", "height")}
    return {"end": True, "image": image, "actions": [], **size}


def _action_view(action: Action) -> dict[str, Any]:
    """The action as text, and where to draw it: x, y and the point `to` in CSS pixels, or null."""
    fields = action_fields(action)
    kind = fields.pop("kind")
    arguments = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    points = {name: getattr(action, name) for name in ("x", "y", "dx", "dy", "to", "count")}
    return {"kind": kind, "text": f"{kind}({arguments})", **points}


# ---- figures and values ----


def _curve(metrics: Path, images: Images) -> str | None:
    png = io.BytesIO()
    try:
        learning_curve(metrics, png)
    except (FileNotFoundError, ValueError):
        return None  # an evaluation has no metrics; or no batch has ended yet
    return images.figure(png)


def _subgoals(
    run: Path, groups: list[GroupRecord], verdicts: dict[str, Verdicts], images: Images
) -> str | None:
    result = progress(groups, verdicts)
    if not result.episodes:
        return None  # no judge was asked
    png = io.BytesIO()
    subgoal_figure({run.resolve().name: result}, png)
    return images.figure(png)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown(value: Any) -> Any:
    """A value as the page has it: texts cut to a length, numbers finite or null, lists for tuples.

    >>> shown({"advantages": (0.123456, float("nan"))})
    {'advantages': [0.1235, None]}
    """
    if isinstance(value, str) and len(value) > TEXT:
        return f"{value[:TEXT]} [{len(value) - TEXT:,} more characters]"
    if isinstance(value, float):  # JSON has no NaN
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return list(map(shown, value))
    if isinstance(value, dict):
        return {shown(key): shown(item) for key, item in value.items()}
    return value
