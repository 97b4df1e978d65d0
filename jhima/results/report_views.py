"""What the report shows of a run, as plain values for its page: texts cut to a length, numbers that JSON has, images.

Nothing here is HTML: report.js makes text nodes of the texts, and only `Images` makes addresses.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from jhima.actions import Action
from jhima.episodes import Step, load_episode
from jhima.grpo import actor_advantages, decomposer_advantages, plan_scores
from jhima.results.figures import learning_curve, subgoal_figure
from jhima.results.run_reader import MALFORMED, EpisodeRecord, GroupRecord, read_args
from jhima.results.subgoals import Verdicts, episode_key, progress
from jhima.results.success import cells, success_table

TEXT = (
    4_000  # characters of one text kept; replies have a token limit, page URLs and notes have none
)


AS_IS = (
    64_000  # bytes; a larger screenshot is embedded as JPEG, a fifth of the size and still legible
)


LONGEST_SIDE = 1280  # pixels


class Images:
    """Where a page's images are: inside it as data: URIs, or in a folder beside it as files.

    Identical images are stored once: all episodes of a task begin with the same screenshot. `sources` gives the
    address of each by its key.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.sources = folder, {}

    def add(self, content: bytes, kind: str, key: str = "") -> str:
        """The key of an image in a format that Pillow calls `kind` ("png" or "jpeg"); by default a hash of `content`."""
        key = key or _hash(content)
        if self.folder is None:
            self.sources[key] = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
        else:
            (self.folder / f"{key}.{kind}").write_bytes(content)
            self.sources[key] = f"{self.folder.name}/{key}.{kind}"
        return key

    def screenshot(self, content: bytes) -> str | None:
        """The key of a screenshot, made smaller if it is large; None where the bytes are no PNG or JPEG."""
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


def run_view(
    run: Path,
    groups: list[GroupRecord],
    chosen: set[Path],
    verdicts: dict[str, Verdicts],
    images: Images,
    figures: bool = True,
) -> dict[str, Any]:
    """A page of `groups`; of the episodes in `chosen` with steps and screenshots. `figures`: of the whole run."""
    args, table = read_args(run), success_table(groups)
    views = [
        _group_view(group, chosen, verdicts, images, bool(args.get("normalize_std")))
        for group in tqdm(groups, desc="report", unit="task", disable=None)
    ]
    counts = {
        name: getattr(table.overall, name)
        for name in ("tasks", "runs", "episodes", "unscored", "not_played")
    }
    return {
        "run": clip(run.resolve().name),
        "args": [[clip(key), clip(args[key])] for key in args],
        "success": cells(table),
        "counts": counts,
        "unreadable": [clip(line) for line in table.unreadable],
        "curve": _curve(run / "metrics.jsonl", images) if figures else None,
        "subgoals": _subgoals(run, groups, verdicts, images) if figures else None,
        "groups": views,
        "images": images.sources,
    }


def in_full(groups: list[GroupRecord], limit: int) -> set[Path]:
    """Folders of at most `limit` episodes to show in full: whole tasks, spread evenly from the first to the last.

    Evenly, so that the start and the end of a training run are both there. A task that does not fit gets its first
    episodes under every plan.
    """
    total = sum(len(group.episodes) for group in groups)
    if total <= limit:
        return {episode.folder for group in groups for episode in group.episodes}
    fitting = max(1, limit * len(groups) // total)
    chosen: list[Path] = []
    for index in np.linspace(0, len(groups) - 1, fitting).round().astype(int):
        chosen += [
            e.folder for e in sorted(groups[index].episodes, key=lambda e: (e.number, e.plan))
        ]
    return set(chosen[:limit])


def _group_view(
    group: GroupRecord,
    chosen: set[Path],
    verdicts: dict[str, Verdicts],
    images: Images,
    normalize_std: bool,
) -> dict[str, Any]:
    R = torch.from_numpy(group.rewards())  # [K, M], NaN: no sample
    scores = plan_scores(R)  # [K]
    plan_advantages = decomposer_advantages(scores, normalize_std).where(
        ~scores.isnan(), math.nan
    )  # [K]
    advantages = actor_advantages(R, normalize_std).where(~R.isnan(), math.nan)  # [K, M]
    rows: list[list[dict | None]] = [[None] * R.shape[1] for _ in range(R.shape[0])]
    for e in group.episodes:
        rows[e.plan][e.number] = _episode_view(
            e,
            number(advantages[e.plan, e.number]),
            e.folder in chosen,
            verdicts.get(episode_key(e)),
            images,
        )
    plans = []
    for i in range(R.shape[0]):
        plan = group.plans[i] if i < len(group.plans) else None
        plans.append(
            {
                "text": clip(plan.text) if plan else "",
                "tokens": len(plan.ids) if plan else 0,
                "subtasks": [clip(subtask) for subtask in plan.subtasks[:50]] if plan else [],
                "score": number(scores[i]),
                "advantage": number(plan_advantages[i]),
            }
        )
    task, shown = group.task, not group.episodes or any(e.folder in chosen for e in group.episodes)
    return {
        "batch": group.batch,
        "id": clip(task.id),
        "sites": [clip(site) for site in task.sites],
        "intent": clip(task.intent),
        "template": clip(task.template),
        "plans": plans,
        "rows": rows,
        "first": images.screenshot(_read_bytes(group.folder / "first.png")) if shown else None,
    }


def _episode_view(
    e: EpisodeRecord, advantage: float | None, full: bool, found: Verdicts | None, images: Images
) -> dict[str, Any]:
    """`steps` is null where they are not shown, and `absent` says why."""
    steps, absent = (
        None,
        "The steps of this episode are not in this page; --limit and --batch choose which are.",
    )
    if full:
        try:
            episode = load_episode(e.folder.parent, e.plan, e.number)
            steps = [_step_view(step, images) for step in episode.steps]
        except MALFORMED as error:
            absent = f"The steps cannot be read: {error}"
    return {
        "reward": e.reward,
        "advantage": advantage,
        "failure": clip(e.failure),
        "answer": clip(e.answer),
        "url": clip(e.final_url),
        "seconds": number(e.seconds),
        "length": e.length,
        "checks": [
            {
                "kind": clip(check.kind),
                "what": clip(check.what),
                "passed": check.passed,
                "reason": clip(check.reason),
            }
            for check in e.checks
        ],
        "subtasks": {"completed": list(found.completed[:50]), "reply": clip(found.reply)}
        if found
        else None,
        "steps": steps,
        "absent": clip(absent),
    }


def _step_view(step: Step, images: Images) -> dict[str, Any]:
    turn = step.turn
    return {
        "image": images.screenshot(step.screenshot),
        "width": number(step.width),
        "height": number(step.height),
        "url": clip(step.url),
        "reply": clip(step.reply),
        "note": clip(step.note),
        "tokens": len(step.ids),
        "thought": clip(turn.thought),
        "operation": clip(turn.operation),
        "error": clip(turn.error or ""),
        "plan": [clip(subtask) for subtask in step.plan.subtasks[:50]] if step.plan else [],
        "warnings": [clip(warning) for warning in turn.warnings[:20]],
        "actions": [_action_view(action) for action in turn.actions[:20]],
    }


def _action_view(action: Action) -> dict[str, Any]:
    """The action as text, and where to draw it: x, y and the point `to` in CSS pixels, or null."""
    default = Action(action.kind)
    said = [
        f"{name}={value!r}"
        for name, value in vars(action).items()
        if value != getattr(default, name)
    ]
    return {
        "kind": action.kind,
        "text": clip(f"{action.kind}({', '.join(said)})"),
        "to": [number(value) for value in action.to] if action.to else None,
        **{name: number(getattr(action, name)) for name in ("x", "y", "dx", "dy", "count")},
    }


# ---------------------------------------------------------------- figures and values


def _curve(metrics: Path, images: Images) -> str | None:
    if not metrics.is_file():
        return None  # an evaluation has none
    png = io.BytesIO()
    try:
        learning_curve(metrics, png)
    except ValueError:
        return None  # no batch has ended yet
    return images.add(png.getvalue(), "png")


def _subgoals(
    run: Path, groups: list[GroupRecord], verdicts: dict[str, Verdicts], images: Images
) -> str | None:
    found = progress(groups, verdicts)
    if not found.episodes:
        return None  # nobody was asked
    png = io.BytesIO()
    subgoal_figure({run.resolve().name: found}, png)
    return images.add(png.getvalue(), "png")


def _read_bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def clip(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]} [{len(text) - TEXT:,} more characters]"


def number(value: Any) -> float | None:
    """A finite number, or None: JSON has no NaN."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return round(found, 4) if math.isfinite(found) else None
