"""The baselines of the paper's table 1, each as its makers run it: prompt, history, images, coordinates, sampling.

An agent is a function from a task, the steps so far and the current screenshot to chat messages, and a dialect that
reads the reply. The rollout loop, the browser and the scoring are those of our own agents. Where public harnesses
disagree, the choice is WebArena-Lite-v2's, and what deviates from it is said here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from jhima.actions import Action, Dialect, Turn
from jhima.baselines.chat import ApiChat, screenshot_part
from jhima.baselines.dialects import DIALECTS, planner, uitars_grid
from jhima.baselines.prompts import (
    LIBRA_SYSTEM,
    LIBRA_USER,
    PLANNER_SYSTEM,
    PLANNER_USER,
    SCALECUA_GROUND,
    SCALECUA_SYSTEM,
    SCALECUA_USER,
    UITARS_GROUND,
    UITARS_SYSTEM,
    UITARS_USER,
)
from jhima.browser.session import Observation, Session
from jhima.coordinates import Size, smart_resize
from jhima.prompts import fill_slots
from jhima.rollout import Act
from jhima.sampler import Completion

WINDOW = 15  # past operations that a text history shows


IMAGES = 5  # screenshots that UI-TARS sees, the current one among them


UITARS_72B_PIXELS = (
    2_116_800  # its client scales larger screenshots down; its coordinates do not depend on it
)


@dataclass(frozen=True)
class Past:
    """A step taken: what was seen, and the reply to it."""

    png: bytes
    reply: str


Messages = Callable[
    [str, list[Past], list[str], Observation], list[dict]
]  # task, past, operations, seen


@dataclass(frozen=True)
class Agent:
    """How a system is asked and read. sampling: what its makers use, greedy where they are."""

    messages: Messages
    dialect: Dialect
    sampling: dict[str, float]


def _system(text: str) -> dict:
    return {"role": "system", "content": text}


def _user(*parts: dict | str) -> dict:
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": part} if isinstance(part, str) else part for part in parts
        ],
    }


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


# ---- UI-TARS: a conversation, with its own replies and the last five screenshots ----


def uitars(start: str, end: str, point: str, grid: Callable[[Size], Size]) -> Messages:
    def messages(
        task: str, past: list[Past], _operations: list[str], seen: Observation
    ) -> list[dict]:
        size = grid((seen.width, seen.height))
        said = [
            _system(UITARS_SYSTEM),
            _user(fill_slots(UITARS_USER, start=start, end=end, point=point, task=task)),
        ]
        for number, step in enumerate(past):
            if number > len(past) - IMAGES:
                said.append(_user(screenshot_part(step.png, size)))
            said.append({"role": "assistant", "content": rewrap(step.reply)})
        return [*said, _user(screenshot_part(seen.png, size))]

    return messages


def rewrap(reply: str) -> str:
    """A past reply's points in box tokens, as the models were trained to read their own.

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


# ---- ScaleCUA and GUI-Libra: one turn, one screenshot, a text history renumbered from 1 ----


def scalecua(task: str, _past: list[Past], operations: list[str], seen: Observation) -> list[dict]:
    history = "\n".join(
        f"Step {k}: {_line(operation)}" for k, operation in enumerate(operations[-WINDOW:], 1)
    )
    return [
        _system(SCALECUA_SYSTEM),
        _user(
            screenshot_part(seen.png, smart_resize(seen.width, seen.height)),
            fill_slots(SCALECUA_USER, task=task, history=history),
        ),
    ]


def gui_libra(task: str, _past: list[Past], operations: list[str], seen: Observation) -> list[dict]:
    history = "\n".join(
        f"Step {k}\n Action: {_line(operation)}"
        for k, operation in enumerate(operations[-WINDOW:], 1)
    )
    return [
        _system(LIBRA_SYSTEM),
        _user(
            screenshot_part(seen.png, None),
            fill_slots(
                LIBRA_USER, size=f"{seen.width}x{seen.height}", task=task, history=history or "None"
            ),
        ),
    ]


# ---- a planner: the public one resends every screenshot and none of its own words; ours shows what it did ----


def plan(task: str, _past: list[Past], operations: list[str], seen: Observation) -> list[dict]:
    history = "\n".join(
        f"Step {k}: {_line(operation)}" for k, operation in enumerate(operations[-WINDOW:], 1)
    )
    return [
        _system(fill_slots(PLANNER_SYSTEM, task=task)),
        _user(screenshot_part(seen.png, None), fill_slots(PLANNER_USER, history=history or "None")),
    ]


GREEDY = {"temperature": 0.0, "max_tokens": 2048}


UITARS_SAMPLING = {"temperature": 0.0, "top_p": 0.9, "max_tokens": 500, "frequency_penalty": 1.0}


AGENTS = {
    "scalecua": Agent(scalecua, DIALECTS["scalecua"], GREEDY),
    "uitars-1.5": Agent(
        uitars("point", "end_point", "<point>x y</point>", uitars_grid),
        DIALECTS["uitars-1.5"],
        UITARS_SAMPLING,
    ),
    "uitars-72b": Agent(
        uitars("start_box", "end_box", "<|box_start|>(x,y)<|box_end|>", _downscaled),
        DIALECTS["uitars-72b"],
        UITARS_SAMPLING,
    ),
    "gui-libra": Agent(
        gui_libra, DIALECTS["gui-libra"], GREEDY | {"top_p": 1.0, "repetition_penalty": 1.05}
    ),
}


# ---- grounders ----


@dataclass(frozen=True)
class Grounder:
    """The second model of planner-grounder: asked anew for each target, greedy."""

    grid: Callable[[Size], Size]
    fractions: bool
    messages: Callable[[str, dict], list[dict]]  # target, image


GROUNDERS = {
    "uitars": Grounder(
        uitars_grid,
        False,
        lambda target, image: [
            _system(UITARS_SYSTEM),
            _user(image, fill_slots(UITARS_GROUND, target=target)),
        ],
    ),
    "scalecua": Grounder(
        lambda size: smart_resize(*size),
        True,
        lambda target, image: [_system(SCALECUA_GROUND), _user(image, target)],
    ),
}


def planner_grounder(grounder: Grounder) -> Agent:
    def parse(reply: str, viewport: Size) -> Turn:
        return planner.parse_grounded(reply, grounder.grid(viewport), viewport, grounder.fractions)

    return Agent(plan, replace(DIALECTS["planner"], parse=parse), GREEDY)


# ---- in the loop ----


@dataclass
class Baseline:
    """A baseline ready to play. grounder: its name in GROUNDERS and its model, for a planner."""

    agent: Agent
    model: ApiChat
    grounder: tuple[str, ApiChat] | None = None

    def act(self, task: str, seed: Callable[[int, int], int], retries: int = 0) -> Act:
        """The Act of one episode. seed(step, try) draws; an unreadable reply is drawn again `retries` times at
        temperature 1, which costs no step."""
        past: list[Past] = []

        async def act(seen: Observation, operations: list[str], _session: Session) -> Completion:
            messages = await asyncio.to_thread(self.agent.messages, task, past, operations, seen)
            for again in range(retries + 1):
                sampling = self.agent.sampling | ({"temperature": 1.0} if again else {})
                text = await self._reply(messages, sampling, seen, seed(len(past), again))
                if self.agent.dialect.parse(text, (seen.width, seen.height)).error is None:
                    break
            past.append(Past(seen.png, text))
            return Completion([], [], [], text, False)

        return act

    async def _reply(
        self, messages: list[dict], sampling: dict[str, float], seen: Observation, seed: int
    ) -> str:
        text = await self.model.reply(messages, sampling, seed)
        if self.grounder is None:
            return text
        text = text.replace(planner.GROUND, "\n")  # only the grounder's word follows this mark
        actions = planner.parse_plan(text, (seen.width, seen.height)).actions
        if not actions or not actions[0].target:
            return text
        name, model = self.grounder
        image = await asyncio.to_thread(
            screenshot_part, seen.png, GROUNDERS[name].grid((seen.width, seen.height))
        )
        point = await model.reply(GROUNDERS[name].messages(actions[0].target, image), GREEDY, seed)
        return text + planner.GROUND + point


def failing(dialect: Dialect) -> Dialect:
    """The dialect where an unreadable reply ends the episode (--unparseable fail); its error class is kept."""

    def parse(reply: str, viewport: Size) -> Turn:
        turn = dialect.parse(reply, viewport)
        return replace(turn, actions=(Action("stop", status="failure"),)) if turn.error else turn

    return replace(dialect, parse=parse)
