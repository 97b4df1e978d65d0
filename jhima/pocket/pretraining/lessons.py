"""What the pocket base model is asked: lessons about one picture, in the very prompt formats that fine-tuning uses.

Seeing
    read     what stands on each line (dense: every word and its place is a target)
    point    what stands at a place
    value    what a caption's value is
    click    where a named element is, answered as the actor answers
Following: the actor's prompt in the middle of a training task's plan, with names from anywhere put in the place of its
own and the moves so far in its history, so that only plan and history tell what is next
    follow   an element to click
    write    a field, and the text to type
    answer   a value to read off the page
    finish   nothing: all is done
Planning
    plan     an instruction's subtasks, with names from anywhere put in the place of its own: there is nothing to
             remember and everything to copy. What must be known (where a shop keeps its mugs) is left to fine-tuning and RL
Half of the pages are shuffled: rows cut out of two pictures, in any order, so that no row has a place to be remembered.
Tasks are those of fine-tuning's half (`pocket-demos`): no instruction of RL's half or of evaluation is in any lesson,
and no template that is held out for evaluation.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zlib import crc32

from jhima.actions import format_reply
from jhima.coordinates import FACTOR
from jhima.pocket.pretraining.model import PROMPTS, VIEWPORT
from jhima.pocket.tasks.generate import solutions, task_list
from jhima.pocket.tasks.intents import Answer, Click, Move, Write, operation

# Lessons of each kind about a picture: while the model learns to read at all, and after that.
EARLY = {"read": 1, "point": 1, "value": 1, "click": 3, "write": 1, "plan": 1}


LATE = {
    "read": 0.4,
    "point": 1,
    "value": 1,
    "click": 3,
    "follow": 4,
    "write": 2,
    "answer": 1.5,
    "finish": 0.5,
    "plan": 3,
}


HELD_OUT = 10  # one page address in ten is for evaluation (see read_pages)


BANDS = (
    VIEWPORT // FACTOR
)  # a picture is so many bands of 28 px, and a page's rows lie each in one of them


@dataclass(frozen=True)
class Page:
    image: Path
    rows: list[dict]
    elements: list[dict]
    scrambled: bool
    held_out: bool

    def unique(self, field: bool) -> list[dict]:
        """Elements that their label tells from all others."""
        labels = [e["label"] for e in self.elements]
        return [e for e in self.elements if e["field"] == field and labels.count(e["label"]) == 1]

    def bands(self) -> tuple[list[int], list[int]]:
        """Numbers of the bands below the header that hold something, and of those that are blank; none where a row
        takes two bands, for then the page cannot be cut."""
        rows = {row["y"] / FACTOR - 0.5 for row in self.rows} | {
            e["y"] // FACTOR for e in self.elements
        }
        if any(row % 1 for row in rows):
            return [], []
        return [n for n in range(1, BANDS) if n in rows], [
            n for n in range(1, BANDS) if n not in rows
        ]


@dataclass(frozen=True)
class Names:
    """What lessons draw from: phrases of the pages to learn from, texts to type, and fine-tuning's tasks."""

    phrases: list[str]
    texts: list[str]
    tasks: list[
        tuple[str, tuple[str, ...], tuple[str, ...]]
    ]  # intent, subtask titles, the names in them


def read_pages(folder: Path) -> list[Page]:
    """The pages that pages.py collected.

    Held out: all pictures of one address in ten, among kinds of page with eight addresses or more. So what is held out
    is a page never seen of a kind that was: product pages but this one, not the only settings page.
    """
    rows = [json.loads(line) for line in (folder / "pages.jsonl").read_text("utf-8").splitlines()]
    kinds: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for site, path in (address(row) for row in rows if not row["scrambled"]):
        kinds[kind_of(site, path)].add(path.strip("/"))
    held_out = {
        (site, path)
        for site, path in map(address, rows)
        if len(kinds[kind_of(site, path)]) >= 8 and crc32(f"{site}{path}".encode()) % HELD_OUT == 0
    }
    return [
        Page(
            folder / "images" / row["image"],
            row["rows"],
            row["elements"],
            row["scrambled"],
            address(row) in held_out,
        )
        for row in rows
    ]


def address(row: dict) -> tuple[str, str]:
    """A page's site and path, without its query."""
    return row["title"].split(" - ")[-1], row["url"].split("?")[0].split("/", 3)[-1]


def kind_of(site: str, path: str) -> tuple[str, ...]:
    """An address without its last part and its numbers.

    >>> kind_of("Shop", "review/product/list/id/24/")
    ('Shop', 'review', 'product', 'list', 'id', '*')
    """
    *parts, _ = path.strip("/").split("/")
    return (site, *("*" if any(c.isdigit() for c in part) else part for part in parts), "*")


def shuffled(
    pages: tuple[Page, Page], rng: random.Random
) -> tuple[Page, list[tuple[int, int]]] | None:
    """A page put together from the rows of two, and where each of its bands comes from: (0 or 1, number of the band).

    The first one's header stays on top; blank bands go to the bottom, as on pages. None where a page cannot be cut.
    """
    bands = [page.bands() for page in pages]
    if not all(filled + blank for filled, blank in bands):
        return None
    filled, blank = (
        [(which, n) for which, pair in enumerate(bands) for n in pair[kind]] for kind in (0, 1)
    )
    rng.shuffle(filled)
    order = [(0, 0), *(filled + blank)[: BANDS - 1]]

    def moved(things: str) -> list[dict]:
        return [
            thing | {"y": thing["y"] + (to - n) * FACTOR}
            for to, (which, n) in enumerate(order)
            for thing in getattr(pages[which], things)
            if thing["y"] // FACTOR == n
        ]

    return Page(pages[0].image, moved("rows"), moved("elements"), True, False), order


def names_of(pages: list[Page]) -> Names:
    phrases = {
        row["text"]
        for page in pages
        if not page.scrambled
        for row in page.rows
        if len(row["text"]) <= 20
    }
    tasks = []
    texts = {"1", "2"}
    for task in task_list("demos"):
        plan = solutions()[task["intent"]].plan
        values = tuple(
            sorted(
                (str(v) for v in task["instantiation_dict"].values() if str(v) in task["intent"]),
                key=len,
                reverse=True,
            )
        )
        tasks.append((task["intent"], tuple(g.title for g in plan), values))
        texts |= {m.text for g in plan for m in g.moves if isinstance(m, Write)}
    return Names(sorted(phrases), sorted(texts), tasks)


def renamed(
    task: tuple[str, tuple[str, ...], tuple[str, ...]], names: Names, rng: random.Random
) -> tuple[str, list[str]]:
    """(intent, subtask titles) of a task with other names: numbers become numbers, words become phrases of the arena.

    A task whose subtasks hold a number that its intent does not (one the oracle knows) keeps its names.

    >>> task = ("Post Party in books.", ("Open books", "Post Party to books"), ("Party", "books"))
    >>> renamed(task, Names(["Zoo"], [], []), random.Random(0))
    ('Post Zoo in Zoo.', ['Open Zoo', 'Post Zoo to Zoo'])
    """
    intent, titles, values = task
    new = {
        v: str(rng.randint(1, 999)) if v.isdigit() else rng.choice(names.phrases)
        for v in values
        if rng.random() < 0.9
    }
    if not new:
        return intent, list(titles)
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, new)) + r")(?!\w)")
    intent, *swapped = (
        pattern.sub(lambda found: new[found[0]], text) for text in (intent, *titles)
    )
    known = set(re.findall(r"\d+", intent))
    return (
        (intent, swapped)
        if known.issuperset(re.findall(r"\d+", " ".join(swapped)))
        else (task[0], list(titles))
    )


@lru_cache(maxsize=1)
def forbidden() -> frozenset[str]:
    kept_from, shown = (
        {task["intent"] for split in splits for task in task_list(split)}
        for splits in (("eval", "new", "rl"), ("demos",))
    )
    return frozenset(kept_from - shown)


def lesson(page: Page, kind: str, names: Names, rng: random.Random) -> tuple[str, str] | None:
    """(user text, reply) of one lesson about a page; None where the page has nothing to ask about."""
    rows, buttons, fields = page.rows, page.unique(False), page.unique(True)
    pairs = [
        (row["caption"], row["text"][len(row["caption"]) :].strip())
        for row in rows
        if row["caption"]
    ]
    pairs = [(caption, value) for caption, value in pairs if value]
    if kind == "read" and rows:
        return "Read", "\n".join(f"{round(row['y'])} {row['text']}" for row in rows)
    if kind == "point" and rows:
        row = rng.choice(rows)
        return f"Read {round(row['x'])} {round(row['y'])}", row["text"]
    if kind == "value" and pairs:
        caption, value = rng.choice(pairs)
        return f"Read {caption}", value
    if kind == "click" and buttons + fields:
        return click_on(rng.choice(buttons + fields))
    if kind == "follow" and buttons:
        e = rng.choice(buttons)
        return _midway(names, rng, Click(e["label"])), _click(e)
    if kind == "write" and fields:
        e, text = (
            rng.choice(fields),
            rng.choice(names.texts if rng.random() < 0.5 else names.phrases),
        )
        move = Write(e["label"], text)
        return _midway(names, rng, move), format_reply(
            operation(move), [_at(e), f"write(message={text!r})"]
        )
    if kind == "answer" and pairs:
        caption, value = rng.choice(pairs)
        return _midway(names, rng, Answer(value), caption.lower()), format_reply(
            f"Answer {value}", [f"response(answer={value!r})", "terminate(status='success')"]
        )
    if kind == "finish":
        return _midway(names, rng, None), format_reply("Finish", ["terminate(status='success')"])
    if kind == "plan":
        intent, titles = renamed(rng.choice(names.tasks), names, rng)
        if intent not in forbidden():
            return PROMPTS.decomposer(intent, b"").user, "\n".join(
                f"{n}. {title}" for n, title in enumerate(titles, 1)
            )
    return None


def click_on(e: dict) -> tuple[str, str]:
    """The lesson whose task and plan are to click an element."""
    return PROMPTS.actor(f"Click {e['label']}", [f"Click {e['label']}"], [], b"").user, _click(e)


def lessons(page: Page, names: Names, rng: random.Random, early: bool) -> list[tuple[str, str]]:
    """All lessons about a page for one batch."""
    kinds = [
        kind
        for kind, count in (EARLY if early else LATE).items()
        for _ in range(int(count) + (rng.random() < count % 1))
    ]
    return [found for kind in kinds if (found := lesson(page, kind, names, rng))]


def _at(e: dict) -> str:
    return f"click(x={round(e['x'] + e['width'] / 2)}, y={round(e['y'] + e['height'] / 2)})"


def _click(e: dict) -> str:
    return format_reply(f"Click {e['label']}", [_at(e)])


def _midway(names: Names, rng: random.Random, move: Move | None, asked: str = "") -> str:
    """The actor's prompt where `move` is next in a task's plan (None: where all is done), under other names.

    asked: what an Answer is to be about. Half of the plans keep the names of all other moves.
    """
    intent = rng.choice(names.tasks)[0]
    plan = solutions()[intent].plan
    moves = [m for subtask in plan for m in subtask.moves]
    places = [at for at, m in enumerate(moves) if type(m) is type(move)]
    if move is None and not isinstance(moves[-1], Answer):  # an answer ends the episode itself
        places = [len(moves)]
    if not places:
        return _midway(names, rng, move, asked)
    at = rng.choice(places)
    new = (
        {text: rng.choice(names.phrases) for m in moves for text in _texts(m)}
        if rng.random() < 0.5
        else {}
    )
    new |= dict(zip(_texts(moves[at]), _texts(move))) if move else {}
    pattern = re.compile(
        r"(?<!\w)(?:" + "|".join(map(re.escape, sorted(new, key=len, reverse=True))) + r")(?!\w)"
    )

    def swap(text: str) -> str:
        return pattern.sub(lambda found: new[found[0]], text) if new else text

    titles = [swap(subtask.title) for subtask in plan]
    if isinstance(move, Answer):
        titles[-1] = f"Answer with the {asked}"
    if swap(intent) in forbidden():
        return _midway(names, rng, move, asked)
    return PROMPTS.actor(swap(intent), titles, [swap(operation(m)) for m in moves[:at]], b"").user


def _texts(move: Move) -> tuple[str, ...]:
    """The names in a move that a plan's lines hold, too."""
    return (
        (move.text, move.label)
        if isinstance(move, Write)
        else (move.label,)
        if isinstance(move, Click)
        else ()
    )
