"""Qualitative figures like the paper's 3 to 6, as PNG: a task, its subtasks, and screenshots with the actions marked.

    python -m jhima.results.storyboard annotation DATA/meta.json ANNOTATIONS.jsonl KEY out.png    a teacher's annotation (3, 4)
    python -m jhima.results.storyboard plan RUN/rollouts/run_0/TASK out.png                       a decomposer's plan (5)
    python -m jhima.results.storyboard episode RUN/rollouts/run_0/TASK/p0_e0 out.png              an episode (6)

KEY is the "trajectory" of a line of ANNOTATIONS.jsonl. An episode's subtasks are ticked where
`python -m jhima.results.subgoals` has asked a judge.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from jhima.actions import Action, parse
from jhima.data.scalecua import (
    read_annotations,
    read_meta,
    read_trajectory,
    trajectory_keys,
)
from jhima.data.stored_coordinates import to_pixels
from jhima.episodes import load_episode, load_plans
from jhima.results.run_reader import EpisodeRecord, GroupRecord, read_group
from jhima.results.subgoals import episode_key, read_verdicts

WIDTH, TEXT_WIDTH, GAP = (
    1400,
    400,
    28,
)  # pixels: the figure, its left column, the space between things


INK, SOFT, GOOD, BAD, MARK = "#1b2430", "#5d6978", "#17693f", "#9d3328", "#d6006e"


MAX_TEXT = 600  # characters of one text; a page's URL or a reply may be endless


@dataclass(frozen=True)
class Frame:
    """A screenshot (PNG or JPEG bytes), what was done on it (places in pixels of `size`), and the words below it."""

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
    """Notes on the left, frames in reading order on the right: one large frame, rows of three, or (from ten on) of five."""
    columns = 1 if len(frames) < 2 else 3 if len(frames) < 10 else 5
    room = WIDTH - TEXT_WIDTH - 3 * GAP
    width = min((room - (columns - 1) * GAP) // columns, 640)
    cells = [_cell(frame, width) for frame in frames]
    left = _column(notes)
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    right = sum(heights) + GAP * max(0, len(rows) - 1)
    sheet = Image.new("RGB", (WIDTH, max(left.height, right) + 2 * GAP), "white")
    sheet.paste(left, (GAP, GAP))
    y = GAP
    for row, height in zip(rows, heights):
        for number, cell in enumerate(row):
            sheet.paste(cell, (TEXT_WIDTH + 2 * GAP + number * (width + GAP), y))
        y += height + GAP
    return sheet


def _column(notes: list[Note]) -> Image.Image:
    canvas = Image.new("RGB", (TEXT_WIDTH, 4000), "white")
    draw, y = ImageDraw.Draw(canvas), 0
    for note in notes:
        y = _write(draw, note.heading, (0, y), TEXT_WIDTH, 15, SOFT) + 2
        for line in note.lines:
            y = _write(draw, line, (0, y), TEXT_WIDTH, 19, note.colour) + 4
        y += 18
    return canvas.crop((0, 0, TEXT_WIDTH, min(y, 4000)))


def _cell(frame: Frame, width: int) -> Image.Image:
    try:
        with Image.open(io.BytesIO(frame.image), formats=["PNG", "JPEG"]) as image:
            shot = image.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        shot = Image.new("RGB", (width, width // 2), "#eef1f4")
    scale = width / shot.width
    shot = shot.resize((width, max(1, round(shot.height * scale))))
    draw = ImageDraw.Draw(shot)
    across, down = (
        (shot.width / frame.size[0], shot.height / frame.size[1]) if frame.size else (1, 1)
    )
    for action in frame.actions:
        _mark(draw, action, shot.width, shot.height, across, down)
    draw.rectangle((0, 0, shot.width - 1, shot.height - 1), outline="#c3cad2")
    cell = Image.new("RGB", (width, shot.height + 400), "white")
    cell.paste(shot, (0, 0))
    bottom = _write(ImageDraw.Draw(cell), frame.caption, (0, shot.height + 6), width, 15, INK)
    return cell.crop((0, 0, width, min(bottom, cell.height)))


def _mark(
    draw: ImageDraw.ImageDraw, action: Action, width: int, height: int, across: float, down: float
) -> None:
    """Where an action fell: a ring for a click, an arrow for a drag and for a scroll (the way the page moves on)."""
    x = width / 2 if action.x is None else action.x * across
    y = height / 2 if action.y is None else action.y * down
    r = width / 32
    if action.kind in ("click", "hover") and action.x is not None:
        for colour, line, beyond in (("white", 7, 2), (MARK, 3, 0)):
            draw.ellipse(
                (x - r - beyond, y - r - beyond, x + r + beyond, y + r + beyond),
                outline=colour,
                width=line,
            )
    elif action.kind == "drag" and action.to:
        _arrow(draw, (x, y), (action.to[0] * across, action.to[1] * down), r)
    elif action.kind == "scroll" and (length := math.hypot(action.dx or 0, action.dy or 0)):
        _arrow(
            draw,
            (x, y),
            (x + 4 * r * (action.dx or 0) / length, y + 4 * r * (action.dy or 0) / length),
            r,
        )


def _arrow(
    draw: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float], head: float
) -> None:
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    wings = [
        (end[0] - head * math.cos(angle + turn), end[1] - head * math.sin(angle + turn))
        for turn in (0.5, -0.5)
    ]
    for colour, line in (("white", 7), (MARK, 3)):
        draw.line((start, end), fill=colour, width=line)
        for wing in wings:
            draw.line((end, wing), fill=colour, width=line)


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)  # comes with matplotlib


def _write(
    draw: ImageDraw.ImageDraw, text: str, at: tuple[int, int], width: int, size: int, colour: str
) -> int:
    """Writes text in lines of at most `width` pixels; returns the y below it."""
    font, (x, y), line = _font(size), at, ""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."
    lines = []
    for word in text.split():
        while font.getlength(word) > width and len(word) > 1:  # a URL: broken where the line ends
            keep = next(
                n
                for n in range(len(word) - 1, 0, -1)
                if n == 1 or font.getlength(word[:n]) <= width
            )
            lines, line, word = [*lines, *([line] if line else []), word[:keep]], "", word[keep:]
        if line and font.getlength(f"{line} {word}") > width:
            lines, line = [*lines, line], word
        else:
            line = f"{line} {word}".strip()
    for line in [*lines, line]:
        draw.text((x, y), line, fill=colour, font=font)
        y += round(1.35 * size)
    return y


# ---------------------------------------------------------------- what to draw


def of_annotation(meta: Path, annotations: Path, key: str) -> Image.Image:
    """Figures 3 and 4: a recorded trajectory, and the subtasks and unnecessary actions that the teacher found in it."""
    annotated = read_annotations(annotations)
    if key not in annotated:
        raise ValueError(
            f"{key}: not in {annotations}, whose keys are like {', '.join(list(annotated)[:3]) or 'none'}"
        )
    places = {
        name: (data_set, number)
        for data_set in read_meta(meta, steps_only=True)
        for number, name in enumerate(trajectory_keys(data_set))
    }
    if key not in places:
        raise ValueError(f"{key}: not in {meta}")
    trajectory, found = read_trajectory(*places[key]), annotated[key]
    subtasks = tuple(f"{n}. {g.title}: {g.goal}" for n, g in enumerate(found.subtasks, 1))
    frames = [
        _demo_frame(trajectory.root / step.image, f"{n}. {step.operation}", step.reply)
        for n, step in enumerate(trajectory.steps, 1)
    ]
    unnecessary = Note(
        "Unnecessary actions", (found.unnecessary or "none",), BAD if found.unnecessary else INK
    )
    notes = [
        Note("Task", (trajectory.task,)),
        Note("Subtasks by the teacher", subtasks),
        unnecessary,
    ]
    return storyboard(notes, frames)


def _demo_frame(path: Path, caption: str, reply: str) -> Frame:
    content = path.read_bytes()
    with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
        size = image.size
    return Frame(content, caption, parse(to_pixels(reply, *size), size, size).actions, size)


def of_plan(folder: Path, plan: int) -> Image.Image:
    """Figure 5: what the decomposer saw and what it wrote."""
    group, saved = read_group(folder), load_plans(folder)
    if saved is None or plan >= len(group.plans):
        raise ValueError(
            f"{folder}: expected the folder of a task with a plan {plan} (RUN/rollouts/<batch>/<task>)"
        )
    subtasks = tuple(f"{n}. {g}" for n, g in enumerate(group.plans[plan].subtasks, 1))
    return storyboard(
        [Note("Task", (group.task.intent,)), Note("Subtasks by the decomposer", subtasks)],
        [Frame(saved[0], "The page that the task starts on")],
    )


def of_episode(folder: Path) -> Image.Image:
    """Figure 6: an episode, step by step, and how it was judged."""
    group = read_group(folder.parent)
    record = next((e for e in group.episodes if e.folder == folder), None)
    if record is None:
        raise ValueError(
            f"{folder}: expected the folder of a finished episode (RUN/rollouts/<batch>/<task>/p0_e0)"
        )
    steps = load_episode(folder.parent, record.plan, record.number).steps
    frames = [
        Frame(
            s.screenshot,
            f"{n}. {s.turn.operation or s.turn.error or s.reply}",
            s.turn.actions,
            (s.width, s.height),
        )
        for n, s in enumerate(steps, 1)
    ]
    return storyboard(_notes(group, record), frames)


def _notes(group: GroupRecord, e: EpisodeRecord) -> list[Note]:
    found = read_verdicts(e.folder.parents[3]).get(episode_key(e))
    subtasks = group.plans[e.plan].subtasks if e.plan < len(group.plans) else []
    ticks = ["\u2713 " if done else "\u2717 " for done in found.completed] if found else []
    lines = tuple(
        f"{n}. {ticks[n - 1] if n <= len(ticks) else ''}{g}" for n, g in enumerate(subtasks, 1)
    )
    notes = [Note("Task", (group.task.intent,))]
    if lines:
        notes.append(
            Note("Subtasks" + (", completed or not as a judge saw it" if ticks else ""), lines)
        )
    if e.answer:
        notes.append(Note("Answer", (e.answer,)))
    said = {None: "no sample: " + e.failure, 1: "success", 0: "failure"}[e.reward]
    checks = (
        tuple(f"{c.what}: {c.reason}" for c in e.checks if c.passed is False)
        if e.reward == 0
        else ()
    )
    return [*notes, Note(f"After {e.length} steps", (said, *checks), GOOD if e.reward else BAD)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.results.storyboard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    annotation, plan, episode = (
        kinds.add_parser(name, help=text)
        for name, text in (
            ("annotation", "figures 3 and 4"),
            ("plan", "figure 5"),
            ("episode", "figure 6"),
        )
    )
    annotation.add_argument("data", type=Path, help="ScaleCUA meta file")
    annotation.add_argument("annotations", type=Path, help="what annotate.py wrote")
    annotation.add_argument("key", help="the trajectory")
    plan.add_argument("folder", type=Path, help="of a task: RUN/rollouts/<batch>/<task>")
    plan.add_argument(
        "--plan", type=int, default=0, help="which of its plans (default: %(default)s)"
    )
    episode.add_argument(
        "folder", type=Path, help="of an episode: RUN/rollouts/<batch>/<task>/p0_e0"
    )
    for kind in (annotation, plan, episode):
        kind.add_argument("out", type=Path, help="the PNG to write")
    args = parser.parse_args(argv)
    try:
        if args.kind == "annotation":
            sheet = of_annotation(args.data, args.annotations, args.key)
        else:
            sheet = (
                of_plan(args.folder, args.plan) if args.kind == "plan" else of_episode(args.folder)
            )
        sheet.save(args.out, "PNG")
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.results.storyboard: {error}")


if __name__ == "__main__":
    main()
