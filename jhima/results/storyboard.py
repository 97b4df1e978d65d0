"""Qualitative figures like the paper's 3 to 6, as PNG: a task, its subtasks, marked screenshots.

    python -m jhima.results.storyboard annotation DATA/meta.json ANNOTATIONS.jsonl KEY out.png
    python -m jhima.results.storyboard plan RUN/rollouts/run_0/TASK out.png
    python -m jhima.results.storyboard episode RUN/rollouts/run_0/TASK/p0_e0 out.png

They draw a teacher's annotation (figures 3 and 4), a decomposer's plan (5) and an episode (6). KEY
is the "trajectory" of a line of ANNOTATIONS.jsonl. An episode's subtasks are ticked where a judge
was asked about them (`python -m jhima.results.subgoals`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from tyro.conf import Positional

from jhima import cli
from jhima.actions import Action, parse
from jhima.data import scalecua
from jhima.data.stored_coordinates import to_pixels
from jhima.episodes import load_episode, load_plans
from jhima.results.progress import episode_key
from jhima.results.run_reader import EpisodeRecord, GroupRecord, read_group
from jhima.results.subgoals import read_verdicts

# Pixels: the figure, its left column, the space between things.
WIDTH, TEXT_WIDTH, GAP = 1400, 400, 28
HIGHEST = 4000  # pixels: what of the left column is shown

INK, SOFT, GOOD, BAD, MARK = "#1b2430", "#5d6978", "#17693f", "#9d3328", "#d6006e"

MAX_TEXT = 600  # characters of one text; a page's URL or a reply may be endless


@dataclass(frozen=True)
class Frame:
    """A screenshot (PNG or JPEG bytes) with a caption and the actions to mark on it.

    The actions' points are in pixels of `size`.
    """

    image: bytes
    caption: str
    actions: tuple[Action, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Note:
    """A heading in the left column and the lines under it; `colour` of the lines."""

    heading: str
    lines: tuple[str, ...]
    colour: str = INK


def storyboard(notes: list[Note], frames: list[Frame]) -> Image.Image:
    """Notes on the left, frames on the right in reading order.

    One frame is large; up to nine stand in rows of three, more in rows of five.
    """
    columns = 1
    if len(frames) > 1:
        columns = 3 if len(frames) < 10 else 5
    room = WIDTH - TEXT_WIDTH - 3 * GAP
    width = min((room - (columns - 1) * GAP) // columns, 640)
    cells = [_cell(frame, width) for frame in frames]
    left, right, height = _column(notes), TEXT_WIDTH + 2 * GAP, 0
    corners = []  # of the cells, below one another
    for start in range(0, len(cells), columns):
        row = cells[start : start + columns]
        corners += [(right + number * (width + GAP), height) for number in range(len(row))]
        height += max(cell.height for cell in row) + GAP
    sheet = Image.new("RGB", (WIDTH, max(left.height + GAP, height) + GAP), "white")
    sheet.paste(left, (GAP, GAP))
    for cell, (x, y) in zip(cells, corners):
        sheet.paste(cell, (x, GAP + y))
    return sheet


def _column(notes: list[Note]) -> Image.Image:
    canvas = Image.new("RGB", (TEXT_WIDTH, HIGHEST), "white")
    draw, y = ImageDraw.Draw(canvas), 0
    for note in notes:
        y = _write(draw, note.heading, (0, y), TEXT_WIDTH, 15, SOFT) + 2
        for line in note.lines:
            y = _write(draw, line, (0, y), TEXT_WIDTH, 19, note.colour) + 4
        y += 18
    return canvas.crop((0, 0, TEXT_WIDTH, min(y, HIGHEST)))


def _cell(frame: Frame, width: int) -> Image.Image:
    try:
        with Image.open(io.BytesIO(frame.image), formats=["PNG", "JPEG"]) as image:
            shot = image.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        shot = Image.new("RGB", (width, width // 2), "#eef1f4")
    shot = shot.resize((width, max(1, round(shot.height * (width / shot.width)))))
    draw = ImageDraw.Draw(shot)
    if frame.size:
        scale = shot.width / frame.size[0], shot.height / frame.size[1]
        for action in frame.actions:
            _mark(draw, action, shot.size, scale)
    draw.rectangle((0, 0, shot.width - 1, shot.height - 1), outline="#c3cad2")
    cell = Image.new("RGB", (width, shot.height + 400), "white")
    cell.paste(shot, (0, 0))
    bottom = _write(ImageDraw.Draw(cell), frame.caption, (0, shot.height + 6), width, 15, INK)
    return cell.crop((0, 0, width, min(bottom, cell.height)))


def _mark(
    draw: ImageDraw.ImageDraw, action: Action, size: tuple[int, int], scale: tuple[float, float]
) -> None:
    """Marks where an action fell: a ring for a click, an arrow for a drag and for a scroll.

    The arrow of a scroll shows which way the page moves on. size: of the screenshot as drawn;
    scale: its pixels per pixel of the action's points, in x and y.
    """
    x = size[0] / 2 if action.x is None else action.x * scale[0]
    y = size[1] / 2 if action.y is None else action.y * scale[1]
    radius = size[0] / 32
    length = math.hypot(action.dx or 0, action.dy or 0)
    if action.kind in ("click", "hover") and action.x is not None:
        for colour, line, r in (("white", 7, radius + 2), (MARK, 3, radius)):
            draw.ellipse((x - r, y - r, x + r, y + r), outline=colour, width=line)
    elif action.kind == "drag" and action.to:
        _arrow(draw, (x, y), (action.to[0] * scale[0], action.to[1] * scale[1]), radius)
    elif action.kind == "scroll" and length:
        right, down = (action.dx or 0) / length, (action.dy or 0) / length
        _arrow(draw, (x, y), (x + 4 * radius * right, y + 4 * radius * down), radius)


def _arrow(
    draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float], head: float
) -> None:
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    lines = [(start, end)]
    for turn in (0.5, -0.5):
        wing = end[0] - head * math.cos(angle + turn), end[1] - head * math.sin(angle + turn)
        lines.append((end, wing))
    for colour, width in (("white", 7), (MARK, 3)):
        for line in lines:
            draw.line(line, fill=colour, width=width)


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)  # comes with matplotlib


def _write(
    draw: ImageDraw.ImageDraw, text: str, top: tuple[int, int], width: int, size: int, colour: str
) -> int:
    """Writes text in lines of at most `width` pixels; returns the y below it."""
    font, (x, y) = _font(size), top
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + " ..."
    for line in _lines(text, font, width):
        draw.text((x, y), line, fill=colour, font=font)
        y += round(1.35 * size)
    return y


def _lines(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The text's words in lines of at most `width` pixels; a longer word, a URL, is broken."""
    lines, line = [], ""
    for word in text.split():
        while font.getlength(word) > width and len(word) > 1:
            keep = len(word) - 1
            while keep > 1 and font.getlength(word[:keep]) > width:
                keep -= 1
            lines += [part for part in (line, word[:keep]) if part]
            line, word = "", word[keep:]
        if line and font.getlength(f"{line} {word}") > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def _numbered(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{number}. {text}" for number, text in enumerate(texts, 1))


# ---- what to draw ----


def of_annotation(meta: Path, annotations: Path, key: str) -> Image.Image:
    """Figures 3 and 4: a recorded trajectory, its subtasks and unnecessary actions by a teacher."""
    annotated = scalecua.read_annotations(annotations)
    located = scalecua.locate_trajectories(scalecua.read_meta(meta, steps_only=True))
    for file, keys in ((annotations, annotated), (meta, located)):
        if key not in keys:
            examples = ", ".join(list(keys)[:3]) or "none"
            raise ValueError(f"{key}: not in {file}, whose keys are like {examples}")
    annotation, trajectory = annotated[key], scalecua.read_trajectory(*located[key])
    frames = []
    for number, step in enumerate(trajectory.steps, 1):
        content = (trajectory.root / step.image).read_bytes()
        with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
            size = image.size
        actions = parse(to_pixels(step.reply, *size), size, size).actions
        frames.append(Frame(content, f"{number}. {step.operation}", actions, size))
    subtasks = [f"{subtask.title}: {subtask.goal}" for subtask in annotation.subtasks]
    unnecessary, colour = annotation.unnecessary, BAD if annotation.unnecessary else INK
    notes = [
        Note("Task", (trajectory.task,)),
        Note("Subtasks by the teacher", _numbered(subtasks)),
        Note("Unnecessary actions", (unnecessary or "none",), colour),
    ]
    return storyboard(notes, frames)


def of_plan(folder: Path, plan: int) -> Image.Image:
    """Figure 5: what the decomposer saw and what it wrote."""
    group, saved = read_group(folder), load_plans(folder)
    if saved is None or plan >= len(group.plans):
        raise ValueError(f"{folder}: expected RUN/rollouts/BATCH/TASK with a plan {plan}")
    subtasks = Note("Subtasks by the decomposer", _numbered(group.subtasks(plan)))
    start_page = Frame(saved[0], "The page that the task starts on")
    return storyboard([Note("Task", (group.task.intent,)), subtasks], [start_page])


def of_episode(folder: Path) -> Image.Image:
    """Figure 6: an episode, step by step, and how it was judged."""
    group = read_group(folder.parent)
    records = [e for e in group.episodes if e.folder == folder]
    if not records:
        raise ValueError(
            f"{folder}: expected a finished episode, RUN/rollouts/<batch>/<task>/p0_e0"
        )
    record, frames = records[0], []
    episode = load_episode(folder.parent, record.plan, record.number)
    for number, step in enumerate(episode.steps, 1):
        caption = f"{number}. {step.turn.operation or step.turn.error or step.reply}"
        size = step.width, step.height
        frames.append(Frame(step.screenshot, caption, step.turn.actions, size))
    if episode.last and episode.last != episode.steps[-1].screenshot:
        frames.append(Frame(episode.last, "After the last step"))
    return storyboard(_notes(group, record), frames)


def _notes(group: GroupRecord, e: EpisodeRecord) -> list[Note]:
    notes = [Note("Task", (group.task.intent,))]
    subtasks, heading = group.subtasks(e.plan), "Subtasks"
    if verdicts := read_verdicts(e.folder.parents[3]).get(episode_key(e)):
        heading = "Subtasks, completed or not as a judge saw it"
        marks = {True: "\u2713", False: "\u2717"}
        judged = [f"{marks[done]} {text}" for done, text in zip(verdicts.completed, subtasks)]
        subtasks = judged + subtasks[len(judged) :]
    if subtasks:
        notes.append(Note(heading, _numbered(subtasks)))
    if e.answer:
        notes.append(Note("Answer", (e.answer,)))
    result = {None: f"no reward: {e.failure}", 1: "success", 0: "failure"}[e.reward]
    failed = [check for check in e.checks if check.passed is False and e.reward == 0]
    reasons = [f"{check.what}: {check.reason}" for check in failed]
    colour = GOOD if e.reward else BAD
    return [*notes, Note(f"After {e.length} steps", (result, *reasons), colour)]


# ---- python -m jhima.results.storyboard ----


@dataclass
class Annotation:
    """figures 3 and 4"""

    meta: Positional[Path]
    """ScaleCUA meta file"""
    annotations: Positional[Path]
    """the output of annotate.py"""
    key: Positional[str]
    """the trajectory"""
    out: Positional[Path]
    """the PNG to write"""


@dataclass
class Plan:
    """figure 5"""

    folder: Positional[Path]
    """of a task: RUN/rollouts/BATCH/TASK"""
    out: Positional[Path]
    """the PNG to write"""
    plan: int = 0
    """which of the task's plans"""


@dataclass
class Episode:
    """figure 6"""

    folder: Positional[Path]
    """of an episode: RUN/rollouts/BATCH/TASK/p0_e0"""
    out: Positional[Path]
    """the PNG to write"""


def main() -> None:
    options = cli.parse(Annotation | Plan | Episode, __doc__)
    with cli.one_line_errors():
        match options:
            case Annotation():
                sheet = of_annotation(options.meta, options.annotations, options.key)
            case Plan():
                sheet = of_plan(options.folder, options.plan)
            case Episode():
                sheet = of_episode(options.folder)
        sheet.save(options.out, "PNG")


if __name__ == "__main__":
    cli.run(main)
