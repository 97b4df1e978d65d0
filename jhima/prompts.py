"""Every prompt, in one place.

A checkpoint folder carries the prompts that it was fine-tuned with as prompts.json, as it carries its tokenizer;
a folder without one gets the defaults below, and `--prompt FILE` overrides both. Slots are {task}, {subtasks} and
{history}; what fills them is never read for slots or special tokens again.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

MAX_SUBTASKS = 10  # read from a plan; the teacher writes five at most


HISTORY_WINDOW = 15  # past operations shown, as ScaleCUA trains


@dataclass(frozen=True)
class Subtask:
    """g_l, one subtask: a short title, and the goal that tells when it is done (may be empty)."""

    title: str
    goal: str = ""


@dataclass(frozen=True)
class Prompt:
    """One request to a Qwen2.5-VL: system text, user text, then the screenshot (PNG bytes).

    The order fixed, growing, volatile lets a prefix cache serve every step of an episode.
    """

    system: str
    user: str
    image: bytes


@dataclass(frozen=True)
class Prompts:
    decomposer_system: str = (
        "You plan for an agent that works in a web browser. Given its task and a screenshot of the page it starts on, "
        "list the subtasks that lead to success.\n"
        "- A subtask is one step a person would name: it ends in a new page or a visible change of the page.\n"
        "- Join small actions that belong together; leave out scrolling and hovering.\n"
        "- Give at most five subtasks in order, each on a line of its own, numbered, as `title: goal`."
    )
    decomposer_user: str = "Task: {task}\nFirst screenshot:"
    decomposer_user_again: str = (
        "Task: {task}\nDone so far:\n{history}\nScreenshot now, list what is left to do:"
    )
    subtask_line: str = "{number}. {title}: {goal}"
    actor_system: str = (
        "You are an autonomous agent that completes tasks in a web browser by looking at screenshots.\n\n"
        "## Action space\n"
        "click(x, y, clicks=1, button='left'), doubleClick(x, y), rightClick(x, y), moveTo(x, y), dragTo(x, y)\n"
        "swipe(from_coord=[x, y], to_coord=[x, y], direction='up', amount=0.5): 'up' shows what is further down\n"
        "write(message): replaces the text of the focused field; a final newline submits\n"
        "press(keys, presses=1), hotkey('ctrl', 'c'), wait(seconds=3)\n"
        "open_url(url), go_backward(), go_forward()\n"
        "response(answer): gives the answer that the task asks for and ends the episode\n"
        "terminate(status='success' or 'failure', info=''): ends the episode\n\n"
        "Coordinates are pixels of the screenshot.\n\n"
        "## Output format\n"
        "<operation>\nthe next step in a few words\n</operation>\n"
        "<action>\none call, or several on lines of their own\n</action>"
    )
    actor_user: str = (
        "Task: {task}\n\nSubtasks:\n{subtasks}\n\nPrevious operations:\n{history}\n\n"
        "Follow the subtasks, look at the screenshot, and give the next action."
    )
    actor_user_no_plan: str = (
        "Task: {task}\n\nPrevious operations:\n{history}\n\n"
        "Look at the screenshot and give the next action."
    )
    history_line: str = "Step {number}: {operation}"
    no_history: str = "None"

    def decomposer(
        self, task: str, screenshot: bytes, operations: list[str] | None = None
    ) -> Prompt:
        """The condition (x, o_0) of eq. 1; with operations (--replan), the one of a new plan in mid-episode."""
        if not operations:
            return Prompt(
                self.decomposer_system, fill_slots(self.decomposer_user, task=task), screenshot
            )
        user = fill_slots(self.decomposer_user_again, task=task, history=self._history(operations))
        return Prompt(self.decomposer_system, user, screenshot)

    def actor(
        self, task: str, subtasks: list[str] | None, operations: list[str], screenshot: bytes
    ) -> Prompt:
        """The condition (x, o_t, h_t, d) of eq. 2. `subtasks` None: the actor of the no-plan ablation."""
        history = self._history(operations)
        if subtasks is None:
            return Prompt(
                self.actor_system,
                fill_slots(self.actor_user_no_plan, task=task, history=history),
                screenshot,
            )
        plan = "\n".join(f"{number}. {g}" for number, g in enumerate(subtasks, 1))
        return Prompt(
            self.actor_system,
            fill_slots(self.actor_user, task=task, subtasks=plan, history=history),
            screenshot,
        )

    def _history(self, operations: list[str]) -> str:
        first = max(0, len(operations) - HISTORY_WINDOW)
        return (
            "\n".join(
                fill_slots(self.history_line, number=str(first + k + 1), operation=_line(operation))
                for k, operation in enumerate(operations[first:])
            )
            or self.no_history
        )

    def plan_text(self, subtasks: list[Subtask]) -> str:
        """The decomposer's target text for a teacher's subtasks."""
        return "\n".join(
            fill_slots(
                self.subtask_line, number=str(number), title=_line(g.title), goal=_line(g.goal)
            )
            for number, g in enumerate(subtasks, 1)
        )


def fill_slots(template: str, **values: str) -> str:
    """Fills the slots of `template` in one pass, so that a value that looks like a slot stays text."""
    return re.sub(r"\{(\w+)\}", lambda slot: values.get(slot[1], slot[0]), template)


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def read_plan(text: str) -> list[str]:
    """d = (g_1, ..., g_L): the subtasks in a decomposer's reply.

    Numbered or bulleted lines count; where there are none, every non-empty line does. At most ten, each at most 300
    characters; an empty reply gives an empty list.

    >>> read_plan("Plan:\\n1. Open Mugs: the list is shown\\n2) **Sort by price**")
    ['Open Mugs: the list is shown', 'Sort by price']
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    listed = [m[1] for line in lines if (m := re.match(r"(?:\d{1,2}[.):]|[-*•])\s+(.*\S)", line))]
    return [re.sub(r"^\*\*(.*?)\*\*", r"\1", g)[:300] for g in (listed or lines)[:MAX_SUBTASKS]]


def load_prompts(checkpoint: Path | str | None, override: Path | str | None = None) -> Prompts:
    """The prompts of a checkpoint folder, with those of an `--prompt` file over them (JSON, any subset of fields).

    Raises ValueError naming file and field for anything else.
    """
    values: dict[str, str] = {}
    known = {f.name for f in fields(Prompts)}
    for path in (
        Path(checkpoint) / "prompts.json" if checkpoint else None,
        Path(override) if override else None,
    ):
        if path is None or not (path.exists() or path == Path(override or "")):
            continue
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: expected a JSON object of prompts, got {error}") from None
        for name, value in found.items() if isinstance(found, dict) else [(str(found)[:40], None)]:
            if name not in known or not isinstance(value, str):
                raise ValueError(
                    f"{path}: {name!r} is no prompt; expected text under some of: {', '.join(sorted(known))}"
                )
            values[name] = value
    return Prompts(**values)


def save_prompts(prompts: Prompts, checkpoint: Path | str) -> None:
    (Path(checkpoint) / "prompts.json").write_text(
        json.dumps(asdict(prompts), indent=1, ensure_ascii=False), "utf-8"
    )
