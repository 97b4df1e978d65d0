"""Table 1's baselines as their makers run them: prompt, history, images, coordinates, sampling.

An agent is a function from a task, the steps so far and the current screenshot to chat messages,
and a dialect that reads the reply. The rollout loop, the browser and the scoring are those of our
own agents. Where public harnesses disagree, the choice is WebArena-Lite-v2's; deviations from it
are noted here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from jhima.actions import Action, Dialect, Turn
from jhima.baselines import dialects, prompts
from jhima.baselines.chat import ApiChat, screenshot_part
from jhima.baselines.dialects import planner
from jhima.browser.session import Observation, Session
from jhima.coordinates import Size
from jhima.prompts import fill_slots
from jhima.rollout import Act
from jhima.sampler import Completion

WINDOW = 15  # past operations that a text history shows
IMAGES = 5  # screenshots that UI-TARS sees, the current one among them
# UI-TARS-72B's client scales larger screenshots down; its coordinates do not depend on it.
UITARS_72B_PIXELS = 2_116_800


@dataclass(frozen=True)
class Past:
    """A step taken: the screenshot before it, and the reply to it."""

    png: bytes
    reply: str


# (task, past steps, operations so far, what is on the screen) -> chat messages
Messages = Callable[[str, list[Past], list[str], Observation], list[dict]]


@dataclass(frozen=True)
class Agent:
    """How a system is prompted and read. sampling: what its makers use, greedy if they are."""

    messages: Messages
    dialect: Dialect
    sampling: dict[str, float]


def _system(text: str) -> dict:
    return {"role": "system", "content": text}


def _user(*parts: dict | str) -> dict:
    content = []
    for part in parts:
        content.append({"type": "text", "text": part} if isinstance(part, str) else part)
    return {"role": "user", "content": content}


def _history(operations: list[str], template: str = "Step {}: {}") -> str:
    """The last operations, one line each, renumbered from 1."""
    lines = [" ".join(operation.split())[:300] for operation in operations[-WINDOW:]]
    return "\n".join(template.format(number, line) for number, line in enumerate(lines, 1))


# ---- UI-TARS: a conversation, with its own replies and the last five screenshots ----


@dataclass(frozen=True)
class UITars:
    """A UI-TARS model's interface: how its calls spell points, and the size it sees."""

    start: str
    end: str
    point: str
    grid: Callable[[Size], Size]

    def messages(
        self, task: str, past: list[Past], _operations: list[str], observation: Observation
    ) -> list[dict]:
        size = self.grid((observation.width, observation.height))
        names = {"start": self.start, "end": self.end, "point": self.point}
        instruction = fill_slots(prompts.UITARS_USER, task=task, **names)
        messages = [_system(prompts.UITARS_SYSTEM), _user(instruction)]
        for number, step in enumerate(past):
            if number > len(past) - IMAGES:
                messages.append(_user(screenshot_part(step.png, size)))
            messages.append({"role": "assistant", "content": rewrap(step.reply)})
        return [*messages, _user(screenshot_part(observation.png, size))]


def rewrap(reply: str) -> str:
    """A past reply with its points in box tokens, as the models were trained to read their own.

    >>> rewrap("Action: click(start_box='(12, 34)')")
    "Action: click(start_box='<|box_start|>(12,34)<|box_end|>')"
    """
    return re.sub(
        r"((?:box|point)\s*=\s*['\"])\((\d+)\s*,\s*(\d+)\)(['\"])",
        r"\1<|box_start|>(\2,\3)<|box_end|>\4",
        reply,
    )


def _downscaled(size: Size) -> Size:
    scale = min(1.0, (UITARS_72B_PIXELS / (size[0] * size[1])) ** 0.5)
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


UITARS_15 = UITars("point", "end_point", "<point>x y</point>", dialects.uitars_grid)
UITARS_72B = UITars("start_box", "end_box", "<|box_start|>(x,y)<|box_end|>", _downscaled)


# ---- the others: one turn with one screenshot and a text history ----


def scalecua(
    task: str, _past: list[Past], operations: list[str], observation: Observation
) -> list[dict]:
    grid = dialects.scalecua_grid((observation.width, observation.height))
    text = fill_slots(prompts.SCALECUA_USER, task=task, history=_history(operations))
    image = screenshot_part(observation.png, grid)
    return [_system(prompts.SCALECUA_SYSTEM), _user(image, text)]


def gui_libra(
    task: str, _past: list[Past], operations: list[str], observation: Observation
) -> list[dict]:
    history = _history(operations, "Step {}\n Action: {}") or "None"
    size = f"{observation.width}x{observation.height}"
    text = fill_slots(prompts.LIBRA_USER, size=size, task=task, history=history)
    return [_system(prompts.LIBRA_SYSTEM), _user(screenshot_part(observation.png, None), text)]


def plan(
    task: str, _past: list[Past], operations: list[str], observation: Observation
) -> list[dict]:
    """Unlike the public planner, which resends every screenshot and none of its own words, this
    one sees what it did."""
    text = fill_slots(prompts.PLANNER_USER, history=_history(operations) or "None")
    image = screenshot_part(observation.png, None)
    return [_system(fill_slots(prompts.PLANNER_SYSTEM, task=task)), _user(image, text)]


GREEDY = {"temperature": 0.0, "max_tokens": 2048}
UITARS_SAMPLING = {"temperature": 0.0, "top_p": 0.9, "max_tokens": 500, "frequency_penalty": 1.0}
LIBRA_SAMPLING = GREEDY | {"top_p": 1.0, "repetition_penalty": 1.05}
DIALECTS = dialects.DIALECTS
AGENTS = {
    "scalecua": Agent(scalecua, DIALECTS["scalecua"], GREEDY),
    "uitars-1.5": Agent(UITARS_15.messages, DIALECTS["uitars-1.5"], UITARS_SAMPLING),
    "uitars-72b": Agent(UITARS_72B.messages, DIALECTS["uitars-72b"], UITARS_SAMPLING),
    "gui-libra": Agent(gui_libra, DIALECTS["gui-libra"], LIBRA_SAMPLING),
}


# ---- grounders ----


@dataclass(frozen=True)
class Grounder:
    """The second model of planner-grounder, queried afresh for each target, greedily.

    prompt: its system prompt; target: its user's words, with a slot for the description.
    """

    grid: Callable[[Size], Size]
    locate: Callable[[str, Size], Turn]
    prompt: str
    target: str

    def messages(self, target: str, image: dict) -> list[dict]:
        return [_system(self.prompt), _user(image, fill_slots(self.target, target=target))]


GROUNDERS = {
    "uitars": Grounder(
        grid=dialects.uitars_grid,
        locate=dialects.uitars_point,
        prompt=prompts.UITARS_SYSTEM,
        target=prompts.UITARS_GROUND,
    ),
    "scalecua": Grounder(
        grid=dialects.scalecua_grid,
        locate=dialects.scalecua_point,
        prompt=prompts.SCALECUA_GROUND,
        target="{target}",
    ),
}


def planner_grounder(grounder: Grounder) -> Agent:
    parse = partial(planner.parse_grounded, locate=grounder.locate)
    return Agent(plan, replace(DIALECTS["planner"], parse=parse), GREEDY)


# ---- in the loop ----


@dataclass
class Baseline:
    """A baseline ready to play. grounder: its name in GROUNDERS and its model, for a planner."""

    agent: Agent
    model: ApiChat
    grounder: tuple[str, ApiChat] | None = None

    def act(self, task: str, seed: Callable[[int, int], int], retries: int = 0) -> Act:
        """The Act of one episode. Raises as `ApiChat.reply` does.

        seed(step, attempt) gives the seed of a reply. An unreadable reply is sampled again up to
        `retries` times at temperature 1, which costs no step.
        """
        past: list[Past] = []

        async def act(
            observation: Observation, operations: list[str], _session: Session
        ) -> Completion:
            prepare = self.agent.messages
            messages = await asyncio.to_thread(prepare, task, past, operations, observation)
            sampling = self.agent.sampling
            for attempt in range(retries + 1):
                draw = seed(len(past), attempt)
                text = await self._reply(messages, sampling, observation, draw)
                turn = self.agent.dialect.parse(text, (observation.width, observation.height))
                if turn.error is None:
                    break
                sampling = sampling | {"temperature": 1.0}
            past.append(Past(observation.png, text))
            return Completion([], [], [], text, False)

        return act

    async def _reply(
        self, messages: list[dict], sampling: dict[str, float], observation: Observation, seed: int
    ) -> str:
        """The model's reply; a planner's with its grounder's after it if there is a target."""
        text = await self.model.reply(messages, sampling, seed)
        if self.grounder is None:
            return text
        text = text.replace(planner.GROUND, "\n")  # only a grounder's reply follows this mark
        size = (observation.width, observation.height)
        actions = planner.parse_plan(text, size).actions
        if not actions or not actions[0].target:
            return text
        name, model = self.grounder
        grounder = GROUNDERS[name]
        image = await asyncio.to_thread(screenshot_part, observation.png, grounder.grid(size))
        point = await model.reply(grounder.messages(actions[0].target, image), GREEDY, seed)
        return text + planner.GROUND + point


def failing(dialect: Dialect) -> Dialect:
    """The dialect in which an unreadable reply ends the episode (--unparseable fail).

    The turn keeps its error class.
    """

    def parse(reply: str, viewport: Size) -> Turn:
        turn = dialect.parse(reply, viewport)
        if turn.error is None:
            return turn
        return replace(turn, actions=(Action("stop", status="failure"),))

    return replace(dialect, parse=parse)
