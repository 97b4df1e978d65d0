"""GUI trajectories on disk: ScaleCUA's format, and the samples that SFT makes of them.

A meta file (JSON) names data sets: {name: {root, annotation, conv_style, repeat_time, length, ...}}. An annotation
file has one *step* a line: {image, width, height, conversations: [human, gpt]}. The human turn holds the task and the
previous operations as text, the gpt turn <think>, <operation> and <action> with coordinates as fractions of the
image. Steps whose images lie in one folder and whose tasks agree are one trajectory.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

from .policy import Policy, Sample
from .prompts import Subtask, read_plan
from .vision import smart_resize


@dataclass(frozen=True)
class DemoStep:
    image: Path
    width: int
    height: int
    operation: str
    reply: str                      # the gpt turn, with coordinates as fractions


@dataclass(frozen=True)
class Trajectory:
    """A demonstration: its key (data set / folder), task x, and steps (o_t, a_t)."""
    key: str
    task: str
    steps: list[DemoStep] = field(default_factory=list)


@dataclass(frozen=True)
class Annotation:
    """A teacher's reading of a trajectory: ordered subtasks, and the actions it found unnecessary (None: none)."""
    trajectory: str
    subtasks: list[Subtask]
    unnecessary: str | None


_TASK = re.compile(r"Task:[ \t]*\n?(.*?)\n\s*Previous operations:", re.DOTALL)
_OPERATION = re.compile(r"<operation>\s*(.*?)\s*</operation>", re.DOTALL)


def write_step(image: str, width: int, height: int, task: str, operations: list[str], reply: str) -> dict:
    """One step as ScaleCUA stores it (the exact inverse of what `read_trajectories` reads)."""
    history = "\n".join(f'Step {k}: "{operation}"' for k, operation in enumerate(operations, 1)) or "None"
    ask = f"<image>\nWhat is the next move?\n\nTask: {task}\n\nPrevious operations:\n{history}"
    return {"image": image, "width": width, "height": height,
            "conversations": [{"from": "human", "value": ask}, {"from": "gpt", "value": reply}]}


def read_trajectories(meta: Path | str) -> list[Trajectory]:
    """All trajectories that a meta file names, in file order.

    Raises ValueError naming file and line for a line that is no trajectory step.
    """
    meta = Path(meta)
    trajectories: dict[str, Trajectory] = {}
    for name, data_set in _read_json(meta).items():
        root, lines = (meta.parent / data_set[k] for k in ("root", "annotation"))
        for place, row in _read_lines(lines):
            try:
                human, gpt = (turn["value"] for turn in row["conversations"] if turn["from"] in ("human", "gpt"))
                task, operation = _TASK.search(human)[1].strip(), _OPERATION.search(gpt)[1]
                step = DemoStep(root / row["image"], int(row["width"]), int(row["height"]), operation, gpt)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{place}: expected a trajectory step with image, width, height and two conversations "
                                 f"(human with Task and Previous operations, gpt with <operation>): {error!r}") from None
            key = f"{name}/{Path(row['image']).parent.as_posix()}"
            trajectories.setdefault(key, Trajectory(key, task)).steps.append(step)
    return list(trajectories.values())


def read_annotations(path: Path | str) -> dict[str, Annotation]:
    """annotate.py's output, by trajectory key; failed annotations are left out."""
    found = {}
    for place, row in _read_lines(Path(path)):
        try:
            if row["subtasks"]:
                subtasks = [Subtask(g["title"], g["goal"]) for g in row["subtasks"]]
                found[row["trajectory"]] = Annotation(row["trajectory"], subtasks, row["unnecessary"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place}: expected a line of annotate.py (trajectory, subtasks, unnecessary): {error!r}") from None
    return found


def to_pixels(reply: str, width: int, height: int) -> str:
    """A stored reply with its coordinates in pixels of the resized image, as the model is to write them.

    Only fractions with a decimal point change, as in ScaleCUA's loader: x=0.5, y=0.25, and pairs [0.5, 0.25].

    >>> to_pixels("click(x=0.5, y=0.25)\\nswipe(from_coord=[0.5, 0.75], amount=0.5)", 1280, 720)
    'click(x=644, y=182)\\nswipe(from_coord=[644, 546], amount=0.5)'
    """
    w, h = smart_resize(width, height)
    reply = re.sub(r"\b(x|y)=(0?\.\d+)", lambda m: f"{m[1]}={round(float(m[2]) * (w if m[1] == 'x' else h))}", reply)
    return re.sub(r"\[(0?\.\d+), ?(0?\.\d+)\]", lambda m: f"[{round(float(m[1]) * w)}, {round(float(m[2]) * h)}]", reply)


def to_fractions(call: str, width: int, height: int) -> str:
    """The inverse for one call: whole pixels of the resized image as fractions of four decimals.

    >>> to_fractions("click(x=644, y=182)", 1280, 720)
    'click(x=0.5000, y=0.2500)'
    """
    w, h = smart_resize(width, height)
    call = re.sub(r"\b(x|y)=(\d+)\b", lambda m: f"{m[1]}={int(m[2]) / (w if m[1] == 'x' else h):.4f}", call)
    return re.sub(r"\[(\d+), (\d+)\]", lambda m: f"[{int(m[1]) / w:.4f}, {int(m[2]) / h:.4f}]", call)


def decomposer_sample(policy: Policy, trajectory: Trajectory, annotation: Annotation) -> Sample:
    """Eq. 3's pair: (x, o_0) -> the teacher's d."""
    first = trajectory.steps[0].image.read_bytes()
    return Sample(policy.prompt_ids(policy.prompts.decomposer(trajectory.task, first)), first,
                  policy.response_ids(policy.prompts.plan_text(annotation.subtasks)))


def actor_samples(policy: Policy, trajectory: Trajectory, annotation: Annotation | None) -> Iterator[Sample]:
    """Eq. 4's pairs: (x, o_t, h_t, d) -> a_t, one a step. Without an annotation: the actor without subtasks."""
    plan = read_plan(policy.prompts.plan_text(annotation.subtasks)) if annotation else None
    operations: list[str] = []
    for step in trajectory.steps:
        image = step.image.read_bytes()
        prompt = policy.prompts.actor(trajectory.task, plan, operations, image)
        yield Sample(policy.prompt_ids(prompt), image, policy.response_ids(to_pixels(step.reply, step.width, step.height)))
        operations.append(step.operation)


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; expected a meta file that names data sets") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None
    for name, data_set in value.items() if isinstance(value, dict) else [(str(value)[:40], None)]:
        if not isinstance(data_set, dict) or not all(isinstance(data_set.get(k), str) for k in ("root", "annotation")):
            raise ValueError(f"{path}: {name}: expected an object with root and annotation")
    return value


def _read_lines(path: Path) -> Iterator[tuple[str, dict]]:
    """(file:line, object) of each line of a JSONL file."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: expected a JSON object: {error}") from None
                yield f"{path}:{number}", row
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; expected JSON lines") from None
