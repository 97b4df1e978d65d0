"""The oracle: solves a pocket task as a person would, with mouse and keyboard, from a plan.

To the rollout loop it is an actor like any other: it looks at the page, and replies in the actor's
grammar. To know where to click it reads the page's elements instead of pixels; it never changes
the page except through its replies.
"""

from __future__ import annotations

from dataclasses import dataclass

from jhima.actions import Action, format_call, format_reply
from jhima.browser.session import Observation, Session
from jhima.coordinates import smart_resize
from jhima.pocket.tasks.intents import Answer, Click, Move, Solution, Write, operation
from jhima.rollout import Act
from jhima.sampler import Completion

# All visible elements that carry a label, with the box to click. A field is named by its caption;
# anything else by the text it shows.
ELEMENTS = """() => {
  const elements = [];
  for (const e of document.querySelectorAll('a[href], button, label.option, label.field')) {
    const field = e.matches('label.field') ? e.querySelector('input, textarea') : null;
    const box = (field || e).getBoundingClientRect();
    if (!box.width || !box.height || getComputedStyle(e).visibility === 'hidden') continue;
    const words = (field ? e.querySelector('span') : e).innerText.trim().replace(/\\s+/g, ' ');
    elements.push({label: words, field: !!field, x: box.x, y: box.y,
                   width: box.width, height: box.height, main: !e.closest('header')});
  }
  return elements;
}"""


@dataclass(frozen=True)
class Element:
    """A labelled element of a page and its box in CSS pixels of the viewport."""

    label: str
    field: bool
    x: float
    y: float
    width: float
    height: float
    main: bool

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


class Lost(Exception):
    """The page does not show what the plan's next move needs: the template or the site is wrong."""


async def elements(session: Session) -> list[Element]:
    return [Element(**e) for e in await session.page.evaluate(ELEMENTS)]


def oracle(solution: Solution) -> Act:
    """An Act that replays a solution's plan and then stops."""
    moves: list[Move] = []
    for subtask in solution.plan:
        moves += subtask.moves
    done = 0

    async def act(observation: Observation, _operations: list[str], session: Session) -> Completion:
        nonlocal done
        size = (observation.width, observation.height)
        if done == len(moves):
            return _reply("Finish", [Action("stop", status="success")], size)
        move = moves[done]
        if isinstance(move, (Click, Write)):
            target = find(await elements(session), move)
            x, y = target.centre
            if not (0 <= x < observation.width and 0 <= y < observation.height):
                return _scroll(y, size)
        done += 1
        match move:
            case Click():
                actions = [Action("click", x, y)]
            case Write(_, text):
                actions = [Action("click", x, y), Action("type", text=text)]
            case Answer(text):
                actions = [Action("answer", text=text), Action("stop", status="success")]
        return _reply(operation(move), actions, size)

    return act


def _scroll(y: float, viewport: tuple[int, int]) -> Completion:
    """Half a page towards an element at `y` outside the viewport."""
    half = 0.5 * viewport[1]
    if y > 0:
        return _reply("Scroll down", [Action("scroll", dy=half)], viewport)
    return _reply("Scroll up", [Action("scroll", dy=-half)], viewport)


def find(visible: list[Element], move: Click | Write) -> Element:
    """The one element a move names; one in the page's body is preferred to one in its header.

    Raises Lost if there is none or more than one.
    """
    named = [e for e in visible if e.label == move.label and e.field == isinstance(move, Write)]
    named = [e for e in named if e.main] or named
    if len(named) != 1:
        shown = ", ".join(sorted({e.label for e in visible}))[:400]
        raise Lost(f"{len(named)} elements named {move.label!r}; the page shows: {shown}")
    return named[0]


async def idle(observation: Observation, _operations: list[str], _session: Session) -> Completion:
    """The do-nothing agent: says that it is done and has no answer."""
    size = (observation.width, observation.height)
    return _reply("Finish", [Action("stop", status="success")], size)


def _reply(operation: str, actions: list[Action], viewport: tuple[int, int]) -> Completion:
    calls = [format_call(action, smart_resize(*viewport), viewport) for action in actions]
    return Completion([], [], [], format_reply(operation, calls), False)
