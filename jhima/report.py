"""One self-contained HTML page of a run: every task's K plans x M episodes, with rewards, advantages and screenshots.

    python -m jhima.report RUN [--out FILE.html] [--batch B ...] [--limit N]

The page opens from disk and requests nothing. All that a page or a model wrote travels as JSON, is shown as text only
(report.js never builds markup from a string), and the Content-Security-Policy runs this file's one script and no other.
"""
from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from .actions import Action
from .analysis import cells, success_table
from .episodes import Step, load_episode
from .figures import learning_curve
from .grpo import actor_advantages, decomposer_advantages, plan_scores
from .records import MALFORMED, EpisodeRecord, GroupRecord, read_args, read_groups

EPISODES_IN_FULL = 63           # three tasks at K=3, M=7: tens of MB at 1280x720
TEXT = 4_000                    # characters of one text kept; replies have a token limit, page URLs and notes have none
AS_IS = 64_000                  # bytes; a larger screenshot is embedded as JPEG, a fifth of the size and still legible
LONGEST_SIDE = 1280             # pixels

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rollouts</title>
<style>{style}</style>
</head>
<body>
<nav id="side" aria-label="Tasks"></nav>
<main id="main"></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(run: Path, out: Path, batches: list[str] | None = None, limit: int = EPISODES_IN_FULL) -> str:
    """Write the page of `run` to `out`; returns the sentence that says what was left out ('' when all is there).

    batches: names of the batch directories to show, all when None; leading zeros may be left out.
    Raises FileNotFoundError for a folder that is no run, ValueError for a batch that does not exist.
    """
    groups = read_groups(run)
    if batches:
        known = {group.batch for group in groups}
        wanted = {name for name in known if name in batches or (name.lstrip("0") or "0") in batches}
        if len(wanted) < len(set(batches)):
            raise ValueError(f"--batch {' '.join(batches)}: {run} has {', '.join(sorted(known)) or 'no batch'}")
        groups = [group for group in groups if group.batch in wanted]
    data = _run_view(Path(run), groups, limit)
    here = Path(__file__)
    style = here.with_suffix(".css").read_text(encoding="utf-8")
    script = here.with_suffix(".js").read_text(encoding="utf-8")
    # "<" cannot occur in the data, so nothing in it can end its element; ASCII only, so lone surrogates do no harm.
    safe_json = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = PAGE.format(style=style, script=script, style_hash=_csp_hash(style), script_hash=_csp_hash(script),
                       data=safe_json)
    Path(out).write_text(page, encoding="utf-8", newline="\n")
    return data["omitted"]


def _csp_hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


# ---------------------------------------------------------------- what the page shows, as plain values

def _run_view(run: Path, groups: list[GroupRecord], limit: int) -> dict[str, Any]:
    args = read_args(run)
    images: dict[str, str] = {}
    table = success_table(groups)
    chosen = in_full(groups, limit)
    views = [_group_view(group, chosen, images, bool(args.get("normalize_std")))
             for group in tqdm(groups, desc="report", unit="task", disable=None)]
    total = table.overall.episodes
    omitted = "" if len(chosen) == total else (
        f"{len(chosen)} of {total} episodes are here with their steps and screenshots; of the others only reward, "
        "answer and verdict. --limit and --batch choose which.")
    return {"run": _clip(run.resolve().name), "args": [[_clip(key), _clip(args[key])] for key in args],
            "success": cells(table), "counts": {key: getattr(table.overall, key) for key in ("tasks", "episodes", "unscored")}, "curve": _curve(run / "metrics.jsonl", images), "omitted": omitted,
            "unreadable": [_clip(line) for line in table.unreadable], "groups": views, "images": images}


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
        chosen += [e.folder for e in sorted(groups[index].episodes, key=lambda e: (e.number, e.plan))]
    return set(chosen[:limit])


def _group_view(group: GroupRecord, chosen: set[Path], images: dict[str, str], normalize_std: bool) -> dict[str, Any]:
    R = torch.from_numpy(group.rewards())                                         # [K, M], NaN: no sample
    scores = plan_scores(R)                                                       # [K]
    plan_advantages = decomposer_advantages(scores, normalize_std).where(~scores.isnan(), math.nan)        # [K]
    advantages = actor_advantages(R, normalize_std).where(~R.isnan(), math.nan)                            # [K, M]
    rows: list[list[dict | None]] = [[None] * R.shape[1] for _ in range(R.shape[0])]
    for e in group.episodes:
        rows[e.plan][e.number] = _episode_view(e, _number(advantages[e.plan, e.number]), e.folder in chosen, images)
    plans = []
    for i in range(R.shape[0]):
        plan = group.plans[i] if i < len(group.plans) else None
        plans.append({"text": _clip(plan.text) if plan else "", "tokens": len(plan.ids) if plan else 0,
                      "subtasks": [_clip(subtask) for subtask in plan.subtasks[:50]] if plan else [],
                      "score": _number(scores[i]), "advantage": _number(plan_advantages[i])})
    task, shown = group.task, not group.episodes or any(e.folder in chosen for e in group.episodes)
    return {"batch": group.batch, "id": _clip(task.id), "sites": [_clip(site) for site in task.sites],
            "intent": _clip(task.intent), "template": _clip(task.template), "plans": plans, "rows": rows,
            "first": _embed(_read_bytes(group.folder / "first.png"), images) if shown else None}


def _episode_view(e: EpisodeRecord, advantage: float | None, full: bool, images: dict[str, str]) -> dict[str, Any]:
    """`steps` is null where they are not shown, and `absent` says why."""
    steps, absent = None, "The steps of this episode are not in this page; --limit and --batch choose which are."
    if full:
        try:
            episode = load_episode(e.folder.parent, e.plan, e.number)
            steps = [_step_view(step, images) for step in episode.steps]
        except MALFORMED as error:
            absent = f"The steps cannot be read: {error}"
    return {"reward": e.reward, "advantage": advantage, "failure": _clip(e.failure), "answer": _clip(e.answer),
            "url": _clip(e.final_url), "seconds": _number(e.seconds), "length": e.length,
            "checks": [{"kind": _clip(check.kind), "what": _clip(check.what), "passed": check.passed,
                        "reason": _clip(check.reason)} for check in e.checks],
            "steps": steps, "absent": _clip(absent)}


def _step_view(step: Step, images: dict[str, str]) -> dict[str, Any]:
    turn = step.turn
    return {"image": _embed(step.screenshot, images), "width": _number(step.width), "height": _number(step.height),
            "url": _clip(step.url), "reply": _clip(step.reply), "note": _clip(step.note), "tokens": len(step.ids),
            "thought": _clip(turn.thought), "operation": _clip(turn.operation), "error": _clip(turn.error or ""),
            "warnings": [_clip(warning) for warning in turn.warnings[:20]],
            "actions": [_action_view(action) for action in turn.actions[:20]]}


def _action_view(action: Action) -> dict[str, Any]:
    """The action as text, and where to draw it: x, y and the point `to` in CSS pixels, or null."""
    default = Action(action.kind)
    said = [f"{name}={value!r}" for name, value in vars(action).items() if value != getattr(default, name)]
    return {"kind": action.kind, "text": _clip(f"{action.kind}({', '.join(said)})"),
            "to": [_number(value) for value in action.to] if action.to else None,
            **{name: _number(getattr(action, name)) for name in ("x", "y", "dx", "dy", "count")}}


# ---------------------------------------------------------------- values made safe to embed

def _clip(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]} [{len(text) - TEXT:,} more characters]"


def _number(value: Any) -> float | None:
    """A finite number, or None: JSON has no NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return round(number, 4) if math.isfinite(number) else None


def _curve(metrics: Path, images: dict[str, str]) -> str | None:
    if not metrics.is_file():
        return None                                     # an evaluation has none
    png = io.BytesIO()
    try:
        learning_curve(metrics, png)
    except ValueError:
        return None                                     # no batch has ended yet
    return _store(png.getvalue(), "png", images)


def _read_bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _embed(content: bytes, images: dict[str, str]) -> str | None:
    """The key under which a screenshot is in `images`; None where the bytes are no PNG or JPEG."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
            if len(content) <= AS_IS:
                return _store(content, image.format.lower(), images)
            image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            smaller = io.BytesIO()
            image.convert("RGB").save(smaller, "JPEG", quality=80)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return _store(smaller.getvalue(), "jpeg", images)


def _store(content: bytes, kind: str, images: dict[str, str]) -> str:
    """Identical screenshots are stored once: all episodes of a task begin with the same one."""
    key = hashlib.sha256(content).hexdigest()[:16]
    images.setdefault(key, f"data:image/{kind};base64,{base64.b64encode(content).decode()}")
    return key


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m jhima.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of train_rl.py or evaluate.py")
    parser.add_argument("--out", type=Path, help="the page to write (default: RUN/report.html)")
    parser.add_argument("--batch", nargs="+", metavar="B", help="only these batches, or evaluation runs")
    parser.add_argument("--limit", type=int, default=EPISODES_IN_FULL,
                        help="episodes with their steps and screenshots (default: %(default)s)")
    options = parser.parse_args(argv)
    out = options.out or options.run / "report.html"
    try:
        omitted = write_report(options.run, out, options.batch, options.limit)
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.report: {error}")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB", omitted, sep="\n" if omitted else "")


if __name__ == "__main__":
    main()
