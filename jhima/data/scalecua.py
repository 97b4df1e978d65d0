"""GUI data on disk, in ScaleCUA's format: meta files, samples, trajectories and annotations.

A meta file (JSON) names data sets, {name: {root, annotation, conv_style, repeat_time, ...}}, or
lists other meta files. An annotation file has one sample per line: {image, width, height,
conversations}. In a data set of steps the human turn holds the task and the previous operations as
text, the gpt turn <think>, <operation> and <action> with coordinates as fractions of the image;
`jsonl_index.Lines` tells which steps are one trajectory. Other data sets hold grounding and chats.

A sample with an error that real data has raises `Broken` with a short reason, which the caller
counts; nothing is repaired by guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jhima.data.jsonl_index import Lines, read_json
from jhima.data.platforms import Style, read_style
from jhima.prompts import Subtask

MAX_IMAGES, MIN_SIDE = 9, 28  # ScaleCUA's loader rejects more, and smaller ones
MAX_CLICKS = 3  # a turn that clicks more often in one place is noise


class Broken(ValueError):
    """Why a sample cannot be learned from: a short reason, the same for all of its kind."""


@dataclass(frozen=True)
class DataSet:
    """One entry of a meta file.

    lines.left_out counts lines of steps that are `Broken`, and all lines of an unknown style.
    """

    name: str
    root: Path
    style: Style
    repeat: float
    lines: Lines

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Which of `count` samples an epoch holds: repeat_time, as ScaleCUA's loader reads it.

        Below 1: that share, in whole per cent, drawn with seed 42. Above: all of them, repeated,
        then the first ones.
        """
        every = np.arange(count)
        if self.repeat < 1:
            share = round(self.repeat * 100) * count // 100
            return np.sort(np.random.default_rng(42).choice(count, share, replace=False))
        whole = int(self.repeat)
        return np.concatenate([*[every] * whole, every[: int((self.repeat - whole) * count)]])


@dataclass(frozen=True)
class Row:
    """A sample as stored and checked: turns are (human, gpt), with an <image> tag per image."""

    images: list[str]  # paths below the data set's root
    system: str | None
    turns: list[tuple[str, str]]


@dataclass(frozen=True)
class DemoStep:
    """One step of a trajectory: o_t, h_t as text, and a_t."""

    image: str
    task: str
    history: list[str]  # operations; "" for an early one that the data no longer holds
    operation: str
    reply: str  # the gpt turn, with coordinates as fractions


@dataclass(frozen=True)
class Trajectory:
    """A demonstration: its key (data set / folder), platform, task x, and steps (o_t, a_t)."""

    key: str
    platform: str
    task: str
    root: Path
    steps: list[DemoStep]


@dataclass(frozen=True)
class Annotation:
    """A teacher's reading of a trajectory: ordered subtasks, and unnecessary actions (or None)."""

    trajectory: str
    subtasks: list[Subtask]
    unnecessary: str | None


# ---- meta files ----


def read_meta(path: Path | str, steps_only: bool = False) -> list[DataSet]:
    """The data sets of a meta file, indexed, in its order. Raises ValueError naming file and entry.

    steps_only: leave out those that hold no trajectories. One of an unknown style stays, without
    samples, to be counted.
    """
    path, data_sets = Path(path), []
    meta = read_json(path, "a meta file that names data sets")
    if isinstance(meta, list) and all(isinstance(other, str) for other in meta):
        for other in meta:
            data_sets += read_meta(path.parent / other, steps_only)
        return data_sets
    if not isinstance(meta, dict):
        raise ValueError(
            f"{path}: expected an object that names data sets, or a list of meta files"
        )
    for name, entry in meta.items():
        _check_entry(f"{path}: {name}", path.parent, entry)
        conv_style = str(entry.get("conv_style", ""))
        style, repeat = read_style(conv_style), float(entry.get("repeat_time", 1))
        if repeat == 0 or (steps_only and style.kind not in ("step", "unknown")):
            continue
        describe = _describe if style.kind == "step" else None
        lines = Lines(path.parent / entry["annotation"], describe)
        if style.kind == "unknown":  # whether its coordinates are to be rewritten, nobody knows
            lines.left_out[f"of unknown conv_style {conv_style[:60]!r}"] = len(lines)
        data_sets.append(DataSet(name, path.parent / entry["root"], style, repeat, lines))
    return data_sets


def _check_entry(name: str, folder: Path, entry: object) -> None:
    """Raises ValueError for an entry of a meta file that names no readable data set."""
    if not isinstance(entry, dict):
        entry = {}
    for key in ("root", "annotation"):
        value = entry.get(key)
        if not isinstance(value, str):
            raise ValueError(f"{name}: expected an object with root and annotation")
        if value.startswith("s3://"):
            raise ValueError(f"{name}: s3:// is not read; download the data and give its folder")
    repeat = entry.get("repeat_time", 1)
    is_number = isinstance(repeat, (int, float)) and not isinstance(repeat, bool)
    if not is_number or not 0 <= repeat < 1000:
        got = str(repeat)[:20]
        raise ValueError(f"{name}: repeat_time: expected a number from 0 to 1000, got {got!r}")
    root = folder / entry["root"]
    if not root.is_dir():
        raise ValueError(f"{name}: root: no such folder: {root}")


def _describe(line: bytes) -> tuple[str, str, int] | str:
    """For jsonl_index.Lines: where a step belongs, or the reason why it is none."""
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
    images = _images(row.get("image") or [])
    for side in _sides(row) if images else ():
        if isinstance(side, (int, float)) and side < MIN_SIDE:
            raise Broken(f"image side below {MIN_SIDE}")
    system, turns = _turns(row.get("conversations"))
    return Row(images, system, _tagged(turns, len(images)))


def _images(images: object) -> list[str]:
    if isinstance(images, str):
        images = [images]
    if not isinstance(images, list) or not all(isinstance(path, str) and path for path in images):
        raise Broken("image is no path")
    if len(images) > MAX_IMAGES:
        raise Broken(f"more than {MAX_IMAGES} images")
    if any(path.startswith("/") or ".." in Path(path).parts for path in images):
        raise Broken("image outside its root")
    return images


def _sides(row: dict) -> list[object]:
    """What a row gives as the sides of its images."""
    sides = [row.get("width"), row.get("height")]
    sizes = row.get("image_wh")
    if isinstance(sizes, list):
        for size in sizes:
            sides += size if isinstance(size, list) else []
    return sides


def _turns(conversations: object) -> tuple[str | None, list[tuple[str, str]]]:
    """A conversation as (system, pairs of human and gpt)."""
    if not isinstance(conversations, list) or not all(map(_has_text, conversations)):
        raise Broken("conversations without text")
    texts = [turn["value"] for turn in conversations]
    senders = [turn.get("from") for turn in conversations]
    system = None
    if senders[:1] == ["system"]:
        system, texts, senders = texts[0], texts[1:], senders[1:]
        if "InternVL" in system:  # another model's name: ScaleCUA ignores these, too
            system = None
    if not senders or senders != ["human", "gpt"] * (len(senders) // 2):
        raise Broken("turns not human and gpt in turn")
    return system, list(zip(texts[::2], texts[1::2]))


def _has_text(turn: object) -> bool:
    value = turn.get("value") if isinstance(turn, dict) else None
    return isinstance(value, str) and bool(value.strip())


def _tagged(turns: list[tuple[str, str]], images: int) -> list[tuple[str, str]]:
    """Turns with as many <image> tags as images.

    Where they have no tag, or one image has several, tags go in front.
    """
    tags = sum(human.count("<image>") for human, _ in turns)
    if tags == images:
        return turns
    if tags and images != 1:
        raise Broken("image tags do not match images")
    untagged = []
    for human, gpt in turns:
        untagged.append((human.replace("<image>\n", "").replace("<image>", ""), gpt))
    (human, gpt), *rest = untagged
    return [("<image>\n" * images + human, gpt), *rest]


_TASK = re.compile(r"Task:[ \t]*\n?(.*?)\n\s*Previous operations:[ \t]*\n?(.*)", re.DOTALL)
_OPERATION = re.compile(r"<operation>\s*(.*?)\s*</operation>", re.DOTALL)
_ACTION = re.compile(r"<action>\s*\S.*?</action>", re.DOTALL)
_END = re.compile(r"\b(terminate|response|answer)\(")


def read_step(row: Row) -> DemoStep:
    """The step of a trajectory that a sample is. Raises Broken.

    The task stands beside "Task:" or below it.
    """
    if len(row.images) != 1 or len(row.turns) != 1:
        raise Broken("step without its one image and reply")
    human, reply = row.turns[0]
    match = _TASK.search(human)
    if match is None or not match[1].strip():
        raise Broken("no Task and Previous operations")
    operation = _OPERATION.search(reply)
    if operation is None or not operation[1]:
        raise Broken("no <operation>")
    return DemoStep(
        image=row.images[0],
        task=match[1].strip(),
        history=_history(match[2]),
        operation=operation[1],
        reply=reply,
    )


def _history(text: str) -> list[str]:
    """Operations in "None", nothing, or lines `Step k: "operation"` (early ones may be missing)."""
    if text.strip() in ("", "None"):
        return []
    before, *listed = re.split(r"^Step (\d{1,4}):[ \t]*", text, flags=re.MULTILINE)
    numbers = [int(n) for n in listed[::2]]
    first = numbers[0] if numbers else 0
    if before.strip() or not first or numbers != list(range(first, first + len(numbers))):
        raise Broken("history of unknown form")
    history = [""] * (first - 1)
    for operation in listed[1::2]:
        history.append(re.sub(r'^"(.*)"$', r"\1", operation.strip(), flags=re.DOTALL))
    return history


def write_step(
    image: str, width: int, height: int, task: str, operations: list[str], reply: str
) -> dict:
    """One step as ScaleCUA stores it (the exact inverse of what `read_step` reads)."""
    listed = [f'Step {k}: "{operation}"' for k, operation in enumerate(operations, 1)]
    history = "\n".join(listed) or "None"
    human = f"<image>\nWhat is the next move?\n\nTask: {task}\n\nPrevious operations:\n{history}"
    return {
        "image": image,
        "width": width,
        "height": height,
        "conversations": [{"from": "human", "value": human}, {"from": "gpt", "value": reply}],
    }


def in_grammar(reply: str) -> str:
    """An action turn whose known misspellings in released data are put back into the grammar.

    Raises Broken for one without <action>, or whose call no spelling explains.

    >>> in_grammar("<action>\\nkey('a')\\nterminate(status='fail', info=None)\\n</action>")
    "<action>\\npress(keys='a')\\nterminate(status='failure')\\n</action>"
    """
    block = _ACTION.search(reply)
    if block is None:
        raise Broken("no <action>")
    calls = block[0]
    for pattern, replacement in _SPELLINGS:
        calls = re.sub(pattern, replacement, calls, flags=re.MULTILINE)
    clicks = re.search(r"^[ \t]*click\(.*\bclicks=(\d+)", calls, re.MULTILINE)
    if clicks and int(clicks[1]) > MAX_CLICKS:
        raise Broken(f"more than {MAX_CLICKS} clicks at once")
    pressed = re.search(r"^[ \t]*press\((?:keys=)?(['\"])(.*?)\1", calls, re.MULTILINE)
    if pressed and re.search(r"\w\s+\w|\w{14}", pressed[2]):
        raise Broken("text in press")
    return reply[: block.start()] + calls + reply[block.end() :]


def _hotkey(match: re.Match[str]) -> str:
    keys = [key.strip() for key in match[3].split("+")]
    return f"{match[1]}hotkey({', '.join(repr(key) for key in keys if key)})"


_SPELLINGS = (
    (r"^([ \t]*)hotkey\(keys=(['\"])([^'\"\n]+)\2\)", _hotkey),
    (r"^([ \t]*)key\((?:keys?=)?", r"\1press(keys="),
    (r"^([ \t]*terminate\(status=['\"])fail(['\"])", r"\1failure\2"),
    (r"^([ \t]*terminate\(.*?), info=None\)", r"\1)"),
)


# ---- trajectories ----


def trajectory_keys(data_set: DataSet) -> list[str]:
    """A key for each trajectory of a data set, by its number there."""
    return [f"{data_set.name}/{key}" for key in data_set.lines.keys]


def locate_trajectories(data_sets: list[DataSet]) -> dict[str, tuple[DataSet, int]]:
    """Every trajectory's data set and number there, by its key."""
    located = {}
    for data_set in data_sets:
        for number, key in enumerate(trajectory_keys(data_set)):
            located[key] = data_set, number
    return located


def read_trajectory(data_set: DataSet, number: int) -> Trajectory:
    """A trajectory with its steps in order. Raises Broken if the first, with o_0, is missing."""
    steps = [read_step(read_row(data_set.lines[i])) for i in data_set.lines.steps(number)]
    if steps[0].history:
        raise Broken("trajectory without its first step")
    return Trajectory(
        key=trajectory_keys(data_set)[number],
        platform=data_set.style.platform,
        task=steps[0].task,
        root=data_set.root,
        steps=steps,
    )


def irregularities(trajectory: Trajectory) -> list[str]:
    """What is odd about a trajectory that is used all the same."""
    oddities = []
    if any(len(step.history) != number for number, step in enumerate(trajectory.steps)):
        oddities.append("steps missing")
    *before, last = [bool(_END.search(step.reply)) for step in trajectory.steps]
    if not last:
        oddities.append("no end")
    if any(before):
        oddities.append("goes on after its end")
    return oddities


def read_annotations(path: Path | str) -> dict[str, Annotation]:
    """annotate.py's output, by trajectory key; failed annotations are left out."""
    annotations = {}
    for position, row in read_lines(Path(path)):
        try:
            subtasks = [
                Subtask(subtask["title"], subtask["goal"]) for subtask in row["subtasks"] or []
            ]
            if subtasks:
                key = row["trajectory"]
                annotations[key] = Annotation(key, subtasks, row["unnecessary"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{position}: expected a line of annotate.py (trajectory, subtasks, unnecessary): "
                f"{error!r}"
            ) from None
    return annotations


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
