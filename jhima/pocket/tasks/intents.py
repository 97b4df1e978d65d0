"""Intent templates: what a task asks, how it is judged, and how a person would solve it.

A template is a function of its parameters that returns a Solution. From it come the task file
(in WebArena-Lite-v2's schema), the oracle's demonstrations, the teacher's subtasks, and the check
that a task can be solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Click:
    """Click the link, button, option or field that shows `label`."""

    label: str


@dataclass(frozen=True)
class Write:
    """Click the field named `label` and type `text`, which replaces what the field held."""

    label: str
    text: str


@dataclass(frozen=True)
class Answer:
    """Give the answer that the task asks for."""

    text: str


Move = Click | Write | Answer


def operation(move: Move) -> str:
    """A move in words: the oracle says it so, and an actor trained on the oracle learns to."""
    match move:
        case Click(label):
            return f"Click {label}"
        case Write(label, text):
            return f"Write {text} in {label}"
        case Answer(text):
            return f"Answer {text}"


@dataclass(frozen=True)
class Subtask:
    """One line of the oracle's plan: a short title, its goal, and the moves that reach the goal."""

    title: str
    goal: str
    moves: tuple[Move, ...]

    @property
    def brief(self) -> str:
        """The title without the details, for an actor that knows the site.

        >>> Subtask("Open Mug: Kitchen, Mug", "The page of the Mug is shown", ()).brief
        'Open Mug'
        """
        return self.title.split(": ")[0]


@dataclass(frozen=True)
class Solution:
    """The oracle's plan and the task's `eval` (WebArena's schema; see `string`, `url` and `html`).

    The final `terminate` of an episode is not part of the plan: the oracle adds it.
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


def template(site: str, intent: str, values: list[dict], held_out: bool = False):
    """A decorator that makes a Template of a solve function, which takes the intent's parameters.

    For example: @template("map", "Where is the {place}?", [{"place": "Zoo"}, ...]).
    """

    def decorate(solve: Callable[..., Solution]) -> Template:
        return Template(
            name=f"{site}.{solve.__name__}",
            site=site,
            intent=intent,
            values=tuple(values),
            solve=solve,
            start=f"__{site.upper()}__",
            held_out=held_out,
        )

    return decorate


def one_each(parameter: str, values: Iterable) -> list[dict]:
    """The instances of a template with one parameter.

    >>> one_each("place", ["Zoo", "Cafe"])
    [{'place': 'Zoo'}, {'place': 'Cafe'}]
    """
    return [{parameter: value} for value in values]


# ---- plans ----


def solution(*plan: Subtask, eval: dict) -> Solution:
    return Solution(plan, eval)


def step(title: str, goal: str, *moves: Move | str) -> Subtask:
    """One line of a plan; a plain string among the moves is the label to click.

    A plan is for an actor that does not know the site. So a title that does not name every label
    and text of the moves is followed by all of them, in order.

    >>> step("Open Mug", "The page of the Mug is shown", "Kitchen", "Mug").title
    'Open Mug: Kitchen, Mug'
    """
    whole = [Click(move) if isinstance(move, str) else move for move in moves]
    details = []
    for move in whole:
        if isinstance(move, Click):
            details.append(move.label)
        elif isinstance(move, Write):
            details.append(f"{move.text} in {move.label}")
    if not all(detail in title for detail in details):
        title = f"{title}: {', '.join(details)}"
    return Subtask(title, goal, tuple(whole))


def answer(what: str, value: str) -> Subtask:
    return step(f"Answer with the {what}", f"The {what} is given", Answer(value))


def search(field: str, text: str) -> Subtask:
    moves = ("Search", Write(field, text), "Find")
    return step(f"Search for {text}", "The results are shown", *moves)


# ---- `eval` entries, in WebArena-Lite-v2's schema ----


def _eval(
    types: list[str],
    answers: dict | None = None,
    url: str = "",
    exact: bool = False,
    targets: tuple[dict, ...] = (),
) -> dict:
    entry = {
        "eval_types": types,
        "reference_answers": answers,
        "reference_url": url,
        "program_html": list(targets),
    }
    if url and not exact:
        entry["url_note"] = "GOLD in PRED"
    return entry


def string(**answers: object) -> dict:
    """string_match: exact_match=str, must_include=[...], must_exclude=[...], fuzzy_match=[...]."""
    return _eval(["string_match"], answers)


def url(reference: str, exact: bool = False) -> dict:
    """url_match; the rule is GOLD in PRED unless exact."""
    return _eval(["url_match"], url=reference, exact=exact)


def target(url: str, locator: str = "", **contents: object) -> dict:
    """One program_html target: on the page `url`, what the locator yields must hold the contents.

    The contents are exact_match=str, must_include=[...] or must_exclude=[...].
    """
    return {"url": url, "locator": locator, "required_contents": contents}


def html(*targets: dict) -> dict:
    return _eval(["program_html"], targets=targets)


def url_and_html(reference: str, *targets: dict) -> dict:
    return _eval(["url_match", "program_html"], url=reference, targets=targets)


def string_and_url(reference: str, **answers: object) -> dict:
    return _eval(["string_match", "url_match"], answers, reference)
