"""GUI data on disk, in ScaleCUA's format: meta files, samples, trajectories, and a teacher's annotations of these.

A meta file (JSON) names data sets: {name: {root, annotation, conv_style, repeat_time, ...}}, or lists other meta files.
An annotation file has one sample a line: {image, width, height, conversations}. In a data set of steps the human turn
holds the task and the previous operations as text, the gpt turn <think>, <operation> and <action> with coordinates as
fractions of the image; `index.Lines` tells which steps are one trajectory. Other data sets hold grounding and chats.

What real data gets wrong is `Broken` with a short reason, for the caller to count; nothing is repaired by guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jhima.data.jsonl_index import Lines
from jhima.data.platforms import Style, read_style
from jhima.prompts import Subtask

MAX_IMAGES, MIN_SIDE = 9, 28  # ScaleCUA's loader rejects more, and smaller ones


MAX_CLICKS = 3  # a turn that clicks more often in one place is noise


class Broken(ValueError):
    """Why a sample cannot be learned from: a short reason, the same for all samples of its kind."""


@dataclass(frozen=True)
class DataSet:
    """One entry of a meta file. Lines of steps that are `Broken` are counted in lines.left_out."""

    name: str
    root: Path
    style: Style
    repeat: float
    lines: Lines

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Which of `count` samples an epoch holds: repeat_time, as ScaleCUA's loader reads it.

        Below 1: that share, in whole per cent, drawn with seed 42. Above: all, over and over, then the first ones.
        """
        every = np.arange(count)
        if self.repeat < 1:
            kept = round(self.repeat * 100) * count // 100
            return np.sort(np.random.default_rng(42).choice(count, kept, replace=False))
        whole = int(self.repeat)
        return np.concatenate([*[every] * whole, every[: int((self.repeat - whole) * count)]])


@dataclass(frozen=True)
class Row:
    """A sample as stored and checked: turns are (human, gpt), with an <image> tag for each image."""

    images: list[str]  # paths below the data set's root
    system: str | None
    turns: list[tuple[str, str]]


@dataclass(frozen=True)
class DemoStep:
    """One step of a trajectory: o_t, h_t as text, and a_t."""

    image: str
    task: str
    history: list[str]  # operations; "" where the data does not hold an early one any more
    operation: str
    reply: str  # the gpt turn, with coordinates as fractions


@dataclass(frozen=True)
class Trajectory:
    """A demonstration: its key (data set / folder), platform, task x, and steps (o_t, a_t)."""

    key: str
    platform: str
    task: str
    root: Path
    steps: list[DemoStep] = field(default_factory=list)


@dataclass(frozen=True)
class Annotation:
    """A teacher's reading of a trajectory: ordered subtasks, and the actions it found unnecessary (None: none)."""

    trajectory: str
    subtasks: list[Subtask]
    unnecessary: str | None


# ---- meta files ----


def read_meta(path: Path | str, steps_only: bool = False) -> list[DataSet]:
    """The data sets of a meta file, indexed, in its order. Raises ValueError naming file and entry.

    steps_only: leave out those that hold no trajectories.
    """
    path = Path(path)
    value = _read_json(path)
    if isinstance(value, list) and all(isinstance(other, str) for other in value):
        return [
            data_set for other in value for data_set in read_meta(path.parent / other, steps_only)
        ]
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected an object that names data sets, or a list of meta files"
        )
    found = []
    for name, entry in value.items():
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(k), str) for k in ("root", "annotation")
        ):
            raise ValueError(f"{path}: {name}: expected an object with root and annotation")
        if any(entry[k].startswith("s3://") for k in ("root", "annotation")):
            raise ValueError(
                f"{path}: {name}: s3:// is not read; download the data and give its folder"
            )
        repeat = entry.get("repeat_time", 1)
        if (
            isinstance(repeat, bool)
            or not isinstance(repeat, (int, float))
            or not 0 <= repeat < 1000
        ):
            raise ValueError(
                f"{path}: {name}: repeat_time: expected a number from 0, got {str(repeat)[:20]!r}"
            )
        style = read_style(str(entry.get("conv_style", "")))
        if not (path.parent / entry["root"]).is_dir():
            raise ValueError(f"{path}: {name}: root: no such folder: {path.parent / entry['root']}")
        if repeat == 0 or (steps_only and style.kind != "step"):
            continue
        lines = Lines(path.parent / entry["annotation"], _place if style.kind == "step" else None)
        found.append(DataSet(name, path.parent / entry["root"], style, float(repeat), lines))
    return found


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError:
        raise ValueError(
            f"{path}: no such file; expected a meta file that names data sets"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None


def _place(line: bytes) -> tuple[str, str, int] | str:
    """For index.Lines: where a step belongs, or the reason why it does not."""
    try:
        step = read_step(read_row(line))
    except Broken as reason:
        return str(reason)
    return Path(step.image).parent.as_posix(), step.task, len(step.history)


# ---- samples ----


def read_row(line: bytes) -> Row:
    """A line of an annotation file, checked and put in order. Raises Broken."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise Broken("no JSON") from None
    if not isinstance(row, dict):
        raise Broken("no JSON object")
    if row.get("video"):
        raise Broken("video")
    images = row.get("image") or []
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not all(isinstance(i, str) and i for i in images):
        raise Broken("image is no path")
    if len(images) > MAX_IMAGES:
        raise Broken(f"more than {MAX_IMAGES} images")
    if any(i.startswith("/") or ".." in Path(i).parts for i in images):
        raise Broken("image outside its root")
    sizes = row.get("image_wh") if isinstance(row.get("image_wh"), list) else []
    sides = [
        row.get("width"),
        row.get("height"),
        *(s for size in sizes if isinstance(size, list) for s in size),
    ]
    if images and any(isinstance(side, (int, float)) and side < MIN_SIDE for side in sides):
        raise Broken(f"image side below {MIN_SIDE}")
    system, turns = _turns(row.get("conversations"))
    return Row(images, system, _tagged(turns, len(images)))


def _turns(conversations: object) -> tuple[str | None, list[tuple[str, str]]]:
    """A conversation as (system, pairs of human and gpt)."""
    if not isinstance(conversations, list) or not all(
        isinstance(t, dict) and isinstance(t.get("value"), str) and t["value"].strip()
        for t in conversations
    ):
        raise Broken("conversations without text")
    system = (
        conversations[0]["value"]
        if conversations and conversations[0].get("from") == "system"
        else None
    )
    said = conversations[1:] if system is not None else conversations
    if (
        not said
        or len(said) % 2
        or any(t.get("from") != ("human", "gpt")[i % 2] for i, t in enumerate(said))
    ):
        raise Broken("turns not human and gpt in turn")
    if (
        system is not None and "InternVL" in system
    ):  # another model's name: ScaleCUA ignores these, too
        system = None
    return system, [(h["value"], g["value"]) for h, g in zip(said[::2], said[1::2])]


def _tagged(turns: list[tuple[str, str]], images: int) -> list[tuple[str, str]]:
    """Turns with as many <image> tags as images: where they have none, or one image several, tags go in front."""
    tags = sum(human.count("<image>") for human, _ in turns)
    if tags == images:
        return turns
    if tags and images != 1:
        raise Broken("image tags do not match images")
    (first, reply), *rest = [
        (human.replace("<image>\n", "").replace("<image>", ""), gpt) for human, gpt in turns
    ]
    return [("<image>\n" * images + first, reply), *rest]


_TASK = re.compile(r"Task:[ \t]*\n?(.*?)\n\s*Previous operations:[ \t]*\n?(.*)", re.DOTALL)


_OPERATION = re.compile(r"<operation>\s*(.*?)\s*</operation>", re.DOTALL)


_ACTION = re.compile(r"<action>\s*\S.*?</action>", re.DOTALL)


def read_step(row: Row) -> DemoStep:
    """The step of a trajectory that a sample is. Raises Broken.

    The goal may stand beside "Task:" or below it; the history is None, nothing, or lines `Step k: "operation"`, of
    which early ones may be missing.
    """
    if len(row.images) != 1 or len(row.turns) != 1:
        raise Broken("step without its one image and reply")
    reply, found = row.turns[0][1], _TASK.search(row.turns[0][0])
    if found is None or not found[1].strip():
        raise Broken("no Task and Previous operations")
    operation = _OPERATION.search(reply)
    if operation is None or not operation[1]:
        raise Broken("no <operation>")
    history: list[str] = []
    if found[2].strip() not in ("", "None"):
        before, *listed = re.split(r"^Step (\d{1,4}):[ \t]*", found[2], flags=re.MULTILINE)
        numbers = [int(n) for n in listed[::2]]
        if (
            before.strip()
            or not numbers
            or numbers != list(range(numbers[0], numbers[-1] + 1))
            or not numbers[0]
        ):
            raise Broken("history of unknown form")
        known = [re.sub(r'^"(.*)"$', r"\1", text.strip(), flags=re.DOTALL) for text in listed[1::2]]
        history = [""] * (numbers[0] - 1) + known
    return DemoStep(row.images[0], found[1].strip(), history, operation[1], reply)


def write_step(
    image: str, width: int, height: int, task: str, operations: list[str], reply: str
) -> dict:
    """One step as ScaleCUA stores it (the exact inverse of what `read_step` reads)."""
    history = (
        "\n".join(f'Step {k}: "{operation}"' for k, operation in enumerate(operations, 1)) or "None"
    )
    ask = f"<image>\nWhat is the next move?\n\nTask: {task}\n\nPrevious operations:\n{history}"
    return {
        "image": image,
        "width": width,
        "height": height,
        "conversations": [{"from": "human", "value": ask}, {"from": "gpt", "value": reply}],
    }


def in_grammar(reply: str) -> str:
    """An action turn with the spellings that released data is known to stray into put back into the grammar.

    Raises Broken for one without <action>, or whose call no spelling explains.

    >>> in_grammar("<action>\\nhotkey(keys='ctrl+s')\\nkey('enter')\\nterminate(status='fail', info=None)\\n</action>")
    "<action>\\nhotkey('ctrl', 's')\\npress(keys='enter')\\nterminate(status='failure')\\n</action>"
    """
    block = _ACTION.search(reply)
    if block is None:
        raise Broken("no <action>")
    calls = re.sub(
        r"^([ \t]*)hotkey\(keys=(['\"])([^'\"\n]+)\2\)",
        lambda m: (
            f"{m[1]}hotkey("
            + ", ".join(repr(k.strip()) for k in m[3].split("+") if k.strip())
            + ")"
        ),
        block[0],
        flags=re.MULTILINE,
    )
    calls = re.sub(r"^([ \t]*)key\((?:keys?=)?", r"\1press(keys=", calls, flags=re.MULTILINE)
    calls = re.sub(
        r"^([ \t]*terminate\(status=['\"])fail(['\"])", r"\1failure\2", calls, flags=re.MULTILINE
    )
    calls = re.sub(r"^([ \t]*terminate\(.*?), info=None\)", r"\1)", calls, flags=re.MULTILINE)
    clicks = re.search(r"^[ \t]*click\(.*\bclicks=(\d+)", calls, re.MULTILINE)
    if clicks and int(clicks[1]) > MAX_CLICKS:
        raise Broken(f"more than {MAX_CLICKS} clicks at once")
    pressed = re.search(r"^[ \t]*press\((?:keys=)?(['\"])(.*?)\1", calls, re.MULTILINE)
    if pressed and re.search(r"\w\s+\w|\w{14}", pressed[2]):
        raise Broken("text in press")
    return reply[: block.start()] + calls + reply[block.end() :]


# ---- trajectories ----


def trajectory_keys(data_set: DataSet) -> list[str]:
    """A key for each trajectory of a data set, by its number there."""
    return [f"{data_set.name}/{key}" for key in data_set.lines.keys]


def read_trajectory(data_set: DataSet, number: int) -> Trajectory:
    """A trajectory with its steps in order. Raises Broken where its first step, and so o_0, is not in the data."""
    steps = [read_step(read_row(data_set.lines[i])) for i in data_set.lines.steps(number)]
    if steps[0].history:
        raise Broken("trajectory without its first step")
    key = f"{data_set.name}/{data_set.lines.keys[number]}"
    return Trajectory(key, data_set.style.platform, steps[0].task, data_set.root, steps)


def irregularities(trajectory: Trajectory) -> list[str]:
    """What is odd about a trajectory that is used all the same."""
    steps, found = trajectory.steps, []
    if [len(s.history) for s in steps] != list(range(len(steps))):
        found.append("steps missing")
    if not re.search(r"\b(terminate|response|answer)\(", steps[-1].reply):
        found.append("no end")
    if any(re.search(r"\b(terminate|response|answer)\(", s.reply) for s in steps[:-1]):
        found.append("goes on after its end")
    return found


def read_annotations(path: Path | str) -> dict[str, Annotation]:
    """annotate.py's output, by trajectory key; failed annotations are left out."""
    found = {}
    for place, row in read_lines(Path(path)):
        try:
            if row["subtasks"]:
                subtasks = [Subtask(g["title"], g["goal"]) for g in row["subtasks"]]
                found[row["trajectory"]] = Annotation(
                    row["trajectory"], subtasks, row["unnecessary"]
                )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{place}: expected a line of annotate.py (trajectory, subtasks, unnecessary): "
                f"{error!r}"
            ) from None
    return found


def read_lines(path: Path) -> Iterator[tuple[str, dict]]:
    """(file:line, object) of each line of a JSONL file. Raises ValueError naming file and line."""
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
