"""Intent templates: what a task asks, how it is judged, and how a person would solve it.

A template is a function of its parameters that returns a Solution. From it come the task file (WebArena-Lite-v2's
schema), the oracle's demonstrations, the teacher's subtasks and the check that a task can be solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Click:
    """Click the link, button, option or field that shows `label`."""

    label: str


@dataclass(frozen=True)
class Write:
    """Click the field named `label` and type `text` (replacing what it held)."""

    label: str
    text: str


@dataclass(frozen=True)
class Press:
    """Press one key, e.g. "enter"."""

    key: str


@dataclass(frozen=True)
class Answer:
    """Give the answer that the task asks for."""

    text: str


Move = Click | Write | Press | Answer


def operation(move: Move) -> str:
    """A move in words, as the oracle says it and an actor trained on its trajectories learns to."""
    match move:
        case Click(label):
            return f"Click {label}"
        case Write(label, text):
            return f"Write {text} in {label}"
        case Press(key):
            return f"Press {key}"
        case Answer(text):
            return f"Answer {text}"


@dataclass(frozen=True)
class Subtask:
    """One line of the oracle's plan: a short title, the goal it reaches, and the moves that reach it."""

    title: str
    goal: str
    moves: tuple[Move, ...]

    @property
    def brief(self) -> str:
        """The title without what it takes, for an actor that knows the site.

        >>> Subtask("Open Mug: Kitchen, Mug", "The page of the Mug is shown", ()).brief
        'Open Mug'
        """
        return self.title.split(": ")[0]


@dataclass(frozen=True)
class Solution:
    """The oracle's plan and the task's `eval` (WebArena's schema, see `string`, `url` and `html` below).

    The episode's final `terminate` is added by the oracle, not written in the plan.
    """

    plan: tuple[Subtask, ...]
    eval: dict


@dataclass(frozen=True)
class Template:
    """An intent with its instances. `held_out` templates are for evaluation only."""

    name: str
    site: str
    intent: str
    values: tuple[dict, ...]
    solve: Callable[..., Solution]
    start: str
    held_out: bool

    def instance(self, value: dict) -> tuple[str, Solution]:
        return self.intent.format(**value), self.solve(**value)


def template(site: str, intent: str, values: list[dict], start: str = "", held_out: bool = False):
    """Turns a solve function into a Template: @template("map", "Where is {place}?", [{"place": "Zoo"}, ...])."""

    def make(solve: Callable[..., Solution]) -> Template:
        return Template(
            f"{site}.{solve.__name__}",
            site,
            intent,
            tuple(values),
            solve,
            start or f"__{site.upper()}__",
            held_out,
        )

    return make


def step(title: str, goal: str, *moves: Move) -> Subtask:
    """One line of a plan. A title that does not name all it takes is followed by what it takes, in order: a plan is
    for an actor that does not know the site.

    >>> step("Open Mug", "The page of the Mug is shown", Click("Kitchen"), Click("Mug")).title
    'Open Mug: Kitchen, Mug'
    """
    parts = [
        f"{move.text} in {move.label}" if isinstance(move, Write) else move.label
        for move in moves
        if isinstance(move, (Click, Write))
    ]
    return Subtask(
        title if all(part in title for part in parts) else f"{title}: {', '.join(parts)}",
        goal,
        moves,
    )


# ---- `eval` entries, in WebArena-Lite-v2's schema ----


def _eval(
    types: list[str],
    answers: dict | None = None,
    url: str = "",
    note: str | None = None,
    targets: list[dict] | None = None,
) -> dict:
    entry = {
        "eval_types": types,
        "reference_answers": answers,
        "reference_url": url,
        "program_html": targets or [],
    }
    return entry | ({"url_note": note} if note else {})


def string(**answers: object) -> dict:
    """string_match: exact_match=str, must_include=[...], must_exclude=[...], fuzzy_match=[...]."""
    return _eval(["string_match"], answers)


def url(reference: str, exact: bool = False) -> dict:
    """url_match; the rule is GOLD in PRED unless exact."""
    return _eval(["url_match"], None, reference, None if exact else "GOLD in PRED")


def target(url: str, locator: str = "", **contents: object) -> dict:
    """One program_html target: contents is exact_match=str, must_include=[...], ... of what the locator finds."""
    return {"url": url, "locator": locator, "required_contents": contents}


def html(*targets: dict) -> dict:
    return _eval(["program_html"], targets=list(targets))


def url_and_html(reference: str, *targets: dict) -> dict:
    return _eval(["url_match", "program_html"], None, reference, "GOLD in PRED", list(targets))


def string_and_url(reference: str, **answers: object) -> dict:
    return _eval(["string_match", "url_match"], answers, reference, "GOLD in PRED")
