"""The pocket base model's lessons: questions about one picture, in fine-tuning's prompt formats.

Seeing
    read     what each line says (dense: every word and its position is a target)
    point    what is written at a point
    value    the value next to a caption
    click    where a named element is, answered as the actor answers
Following: the actor's prompt in the middle of a training task's plan. Names from all over the arena
replace the task's own, and the history lists the moves so far, so that only the plan and the
history tell which move comes next.
    follow   an element to click
    write    a field, and the text to type
    answer   a value to read off the page
    finish   nothing: all is done
Planning
    plan     an instruction's subtasks, also with replaced names: nothing can be remembered, and
             everything must be copied. What has to be known (where a shop keeps its mugs) is left
             to fine-tuning and RL
Half of the pages are shuffled: rows cut out of two pictures, in any order, so that the model cannot
remember where a row stands. Tasks come from fine-tuning's half (`pocket-demos`): no lesson holds an
instruction of RL's half or of evaluation, or a template that is held out for evaluation.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from zlib import crc32

from jhima import prompts
from jhima.actions import format_reply
from jhima.coordinates import FACTOR
from jhima.pocket.pretraining.model import PROMPTS, VIEWPORT
from jhima.pocket.tasks.generate import solutions, task_list
from jhima.pocket.tasks.intents import Answer, Click, Move, Subtask, Write, operation

# fmt: off
# Lessons of each kind per picture: while the model learns to read at all, and after that.
EARLY = {"read": 1, "point": 1, "value": 1, "click": 3, "write": 1, "plan": 1}
LATE = {"read": 0.4, "point": 1, "value": 1, "click": 3, "follow": 4, "write": 2, "answer": 1.5,
        "finish": 0.5, "plan": 3}
# fmt: on

HELD_OUT = 10  # one page address in ten is for evaluation (see read_pages)
BANDS = VIEWPORT // FACTOR  # a picture has this many bands of 28 px; each row of a page fills one


@dataclass(frozen=True)
class Page:
    """One picture that pages.py collected, and what it shows. Positions are in px."""

    image: Path
    rows: list[dict]  # text, caption, and x, y: the middle of the row
    elements: list[dict]  # label, field, and x, y, width, height of the box to click
    scrambled: bool
    held_out: bool

    def unique(self, field: bool) -> list[dict]:
        """The fields, or all other elements, whose label no other element has."""
        labels = [e["label"] for e in self.elements]
        return [e for e in self.elements if e["field"] == field and labels.count(e["label"]) == 1]

    def bands(self) -> tuple[list[int], list[int]]:
        """The filled and the blank bands below the header.

        Both are empty if a row takes up two bands, because such a page cannot be cut.
        """
        filled = {row["y"] / FACTOR - 0.5 for row in self.rows}
        filled |= {e["y"] // FACTOR for e in self.elements}
        if any(band % 1 for band in filled):
            return [], []
        below = range(1, BANDS)
        return [band for band in below if band in filled], [b for b in below if b not in filled]


@dataclass(frozen=True)
class NamedTask:
    """A fine-tuning task, and the names in its instruction that a lesson replaces."""

    intent: str
    titles: list[str]  # of its subtasks
    names: list[str]  # the longest first


@dataclass(frozen=True)
class Names:
    """What lessons draw from."""

    phrases: list[str]  # short rows of the training pages
    texts: list[str]  # what fine-tuning's tasks type
    tasks: list[NamedTask]


def read_pages(folder: Path) -> list[Page]:
    """The pages that pages.py collected.

    All pictures of one address in ten are held out, among kinds of page with at least eight
    addresses. So a held-out page is new, but its kind is known: one of many product pages, never
    the only settings page.
    """
    lines = (folder / "pages.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    addresses = [address(record) for record in records]
    kinds: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for record, (site, path) in zip(records, addresses):
        if not record["scrambled"]:
            kinds[kind_of(site, path)].add(path.strip("/"))
    pages = []
    for record, (site, path) in zip(records, addresses):
        common = len(kinds[kind_of(site, path)]) >= 8
        held_out = common and crc32(f"{site}{path}".encode()) % HELD_OUT == 0
        image, rows, elements = record["image"], record["rows"], record["elements"]
        pages.append(Page(folder / "images" / image, rows, elements, record["scrambled"], held_out))
    return pages


def address(record: dict) -> tuple[str, str]:
    """A page's site and path, without its query."""
    return record["title"].split(" - ")[-1], record["url"].split("?")[0].split("/", 3)[-1]


def kind_of(site: str, path: str) -> tuple[str, ...]:
    """A page's site and path, with `*` for the last part and for parts that hold a number.

    >>> kind_of("Shop", "review/product/list/id/24/")
    ('Shop', 'review', 'product', 'list', 'id', '*')
    """
    parts = path.strip("/").split("/")[:-1]
    return (site, *[re.sub(r".*\d.*", "*", part) for part in parts], "*")


def shuffled(
    pages: tuple[Page, Page], rng: random.Random
) -> tuple[Page, list[tuple[int, int]]] | None:
    """A page made of two pages' rows, and the source of each of its bands: (0 or 1, band there).

    The first page's header stays on top; blank bands go to the bottom, as on real pages. None if
    one of the pages cannot be cut.
    """
    (filled_0, blank_0), (filled_1, blank_1) = pages[0].bands(), pages[1].bands()
    if not filled_0 + blank_0 or not filled_1 + blank_1:
        return None
    filled = [(0, band) for band in filled_0] + [(1, band) for band in filled_1]
    blank = [(0, band) for band in blank_0] + [(1, band) for band in blank_1]
    rng.shuffle(filled)
    sources = [(0, 0), *(filled + blank)[: BANDS - 1]]
    rows, elements = [], []
    for target, (which, band) in enumerate(sources):
        shift = (target - band) * FACTOR
        rows += _shifted(pages[which].rows, band, shift)
        elements += _shifted(pages[which].elements, band, shift)
    return Page(pages[0].image, rows, elements, True, False), sources


def _shifted(boxes: list[dict], band: int, shift: int) -> list[dict]:
    return [box | {"y": box["y"] + shift} for box in boxes if box["y"] // FACTOR == band]


def names_of(pages: list[Page]) -> Names:
    """The phrases of these pages, and the tasks and texts of fine-tuning."""
    phrases: set[str] = set()
    for page in pages:
        if not page.scrambled:
            phrases |= {row["text"] for row in page.rows if len(row["text"]) <= 20}
    tasks, texts = [], {"1", "2"}
    for task in task_list("demos"):
        intent = task["intent"]
        plan = solutions()[intent].plan
        values = [str(value) for value in task["instantiation_dict"].values()]
        names = sorted([value for value in values if value in intent], key=len, reverse=True)
        tasks.append(NamedTask(intent, [subtask.title for subtask in plan], names))
        texts |= {move.text for move in moves_of(plan) if isinstance(move, Write)}
    return Names(sorted(phrases), sorted(texts), tasks)


def moves_of(plan: Iterable[Subtask]) -> list[Move]:
    """All moves of a plan in order."""
    return list(chain.from_iterable(subtask.moves for subtask in plan))


def renamed(task: NamedTask, names: Names, rng: random.Random) -> tuple[str, list[str]]:
    """(intent, subtask titles) of a task with new names: numbers for numbers, phrases for words.

    A task keeps its names if its subtasks hold a number that its intent lacks, which only the
    oracle can know.

    >>> task = NamedTask("Post Party in books.", ["Open books", "Post Party to books"],
    ...                  ["Party", "books"])
    >>> renamed(task, Names(["Zoo"], [], []), random.Random(0))
    ('Post Zoo in Zoo.', ['Open Zoo', 'Post Zoo to Zoo'])
    """
    new_names = {}
    for name in task.names:
        if rng.random() >= 0.9:
            continue
        if name.isdigit():
            new_names[name] = str(rng.randint(1, 999))
        else:
            new_names[name] = rng.choice(names.phrases)
    intent = _replace(task.intent, new_names)
    titles = [_replace(title, new_names) for title in task.titles]
    if set(re.findall(r"\d+", " ".join(titles))) <= set(re.findall(r"\d+", intent)):
        return intent, titles
    return task.intent, task.titles


def _replace(text: str, new_names: dict[str, str]) -> str:
    """Replaces whole words. Longer names go first, because they may contain shorter ones."""
    if not new_names:
        return text
    longest_first = sorted(new_names, key=len, reverse=True)
    pattern = r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)"
    return re.sub(pattern, lambda match: new_names[match[0]], text)


@lru_cache(maxsize=1)
def forbidden() -> frozenset[str]:
    """The instructions of RL and of evaluation, except those that fine-tuning has as well."""
    hidden = task_list("eval") + task_list("new") + task_list("rl")
    shown = {task["intent"] for task in task_list("demos")}
    return frozenset({task["intent"] for task in hidden} - shown)


def lesson(page: Page, kind: str, names: Names, rng: random.Random) -> tuple[str, str] | None:
    """(user text, reply) of one lesson about a page; None if the page has nothing to ask about."""
    buttons, fields, pairs = page.unique(field=False), page.unique(field=True), _pairs(page)
    match kind:
        case "read" if page.rows:
            lines = [f"{round(row['y'])} {row['text']}" for row in page.rows]
            return "Read", "\n".join(lines)
        case "point" if page.rows:
            row = rng.choice(page.rows)
            return f"Read {round(row['x'])} {round(row['y'])}", row["text"]
        case "value" if pairs:
            caption, value = rng.choice(pairs)
            return f"Read {caption}", value
        case "click" if buttons + fields:
            return click_on(rng.choice(buttons + fields))
        case "follow" if buttons:
            button = rng.choice(buttons)
            return _midway(names, rng, Click(button["label"])), _click(button)
        case "write" if fields:
            field = rng.choice(fields)
            text = rng.choice(names.texts if rng.random() < 0.5 else names.phrases)
            move = Write(field["label"], text)
            calls = [_click_call(field), f"write(message={text!r})"]
            return _midway(names, rng, move), format_reply(operation(move), calls)
        case "answer" if pairs:
            caption, value = rng.choice(pairs)
            calls = [f"response(answer={value!r})", "terminate(status='success')"]
            user = _midway(names, rng, Answer(value), caption.lower())
            return user, format_reply(f"Answer {value}", calls)
        case "finish":
            user = _midway(names, rng, None)
            return user, format_reply("Finish", ["terminate(status='success')"])
        case "plan":
            intent, titles = renamed(rng.choice(names.tasks), names, rng)
            if intent not in forbidden():
                return PROMPTS.decomposer(intent, b"").user, plan_text(titles)
    return None


def _pairs(page: Page) -> list[tuple[str, str]]:
    """The page's captions, each with the value next to it."""
    pairs = []
    for row in page.rows:
        value = row["text"][len(row["caption"]) :].strip()
        if row["caption"] and value:
            pairs.append((row["caption"], value))
    return pairs


def plan_text(titles: Iterable[str]) -> str:
    """The decomposer's reply with these subtasks."""
    return PROMPTS.plan_text([prompts.Subtask(title) for title in titles])


def click_on(element: dict) -> tuple[str, str]:
    """The lesson whose task and plan are to click an element."""
    task = f"Click {element['label']}"
    return PROMPTS.actor(task, [task], [], b"").user, _click(element)


def lessons(page: Page, names: Names, rng: random.Random, early: bool) -> list[tuple[str, str]]:
    """All lessons about a page for one batch. A count of 1.5 means one lesson or two, by chance."""
    kinds = []
    for kind, count in (EARLY if early else LATE).items():
        kinds += [kind] * (int(count) + (rng.random() < count % 1))
    candidates = [lesson(page, kind, names, rng) for kind in kinds]
    return [candidate for candidate in candidates if candidate]


def _click_call(box: dict) -> str:
    x, y = round(box["x"] + box["width"] / 2), round(box["y"] + box["height"] / 2)
    return f"click(x={x}, y={y})"


def _click(element: dict) -> str:
    return format_reply(f"Click {element['label']}", [_click_call(element)])


def _midway(names: Names, rng: random.Random, move: Move | None, topic: str = "") -> str:
    """The actor's prompt where `move` is next in a task's plan (None: where all is done).

    The move's own names are in the plan and the task; the other moves keep their names in half of
    the prompts, and have random ones in the rest. topic: what an Answer is about.
    """
    task = rng.choice(names.tasks)
    moves = moves_of(solutions()[task.intent].plan)
    positions = [i for i, planned in enumerate(moves) if type(planned) is type(move)]
    if move is None and not isinstance(moves[-1], Answer):  # an answer ends the episode itself
        positions = [len(moves)]
    if not positions:
        return _midway(names, rng, move, topic)
    position = rng.choice(positions)
    new_names = {}
    if rng.random() < 0.5:
        for text in chain.from_iterable(map(_names_in, moves)):
            new_names[text] = rng.choice(names.phrases)
    if move is not None:
        new_names |= zip(_names_in(moves[position]), _names_in(move))
    intent = _replace(task.intent, new_names)
    if intent in forbidden():
        return _midway(names, rng, move, topic)
    titles = [_replace(title, new_names) for title in task.titles]
    if isinstance(move, Answer):
        titles[-1] = f"Answer with the {topic}"
    history = [_replace(operation(earlier), new_names) for earlier in moves[:position]]
    return PROMPTS.actor(intent, titles, history, b"").user


def _names_in(move: Move) -> tuple[str, ...]:
    """The names in a move that a plan's lines hold, too."""
    match move:
        case Write(label, text):
            return text, label
        case Click(label):
            return (label,)
    return ()
