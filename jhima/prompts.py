"""The prompts of the two roles, and a plan read from the decomposer's reply.

A checkpoint folder carries the prompts that it was fine-tuned with as prompts.json, as it carries
its tokenizer; a folder without one gets the defaults below, and `--prompt FILE` overrides both.
Slots are {task}, {subtasks} and {history}, and in the decomposer's system text {place} and {page};
what fills them is never read for slots or special tokens again. The prompts of the teacher, the
judge and the baselines stand beside what uses them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

MAX_SUBTASKS = 10  # read from a plan; the teacher writes five at most
HISTORY_WINDOW = 15  # past operations shown, as ScaleCUA trains

WEB = ("in a web browser", "page")  # {place} and {page} where the agent plays

DECOMPOSER = """\
You plan for an agent that works {place}. Given its task and a screenshot of the {page} \
it starts on, list the subtasks that lead to success.
- A subtask is one step a person would name: it ends in a new {page} or a visible change of the \
{page}.
- Join small actions that belong together; leave out scrolling and hovering.
- Give at most five subtasks in order, each on a line of its own, numbered, as `title: goal`."""

ACTOR = """\
You are an autonomous agent that completes tasks in a web browser by looking at screenshots.

## Action space
click(x, y, clicks=1, button='left'), doubleClick(x, y), rightClick(x, y), moveTo(x, y), \
dragTo(x, y)
swipe(from_coord=[x, y], to_coord=[x, y], direction='up', amount=0.5): 'up' shows what is \
further down
write(message): replaces the text of the focused field; a final newline submits
press(keys, presses=1), hotkey('ctrl', 'c'), wait(seconds=3)
open_url(url), go_backward(), go_forward()
response(answer): gives the answer that the task asks for and ends the episode
terminate(status='success' or 'failure', info=''): ends the episode

Coordinates are pixels of the screenshot.

## Output format
<operation>
the next step in a few words
</operation>
<action>
one call, or several on lines of their own
</action>"""

ACTOR_TASK = """\
Task: {task}

Subtasks:
{subtasks}

Previous operations:
{history}

Follow the subtasks, look at the screenshot, and give the next action."""

ACTOR_TASK_NO_PLAN = """\
Task: {task}

Previous operations:
{history}

Look at the screenshot and give the next action."""


@dataclass(frozen=True)
class Subtask:
    """g_l, one subtask: a short title, and the goal that tells when it is done (may be empty)."""

    title: str
    goal: str = ""


@dataclass(frozen=True)
class Prompt:
    """One request to a Qwen2.5-VL: system text, user text, then the screenshot (PNG bytes).

    First what is fixed, then what grows, last what changes: so a prefix cache serves every step
    of an episode.
    """

    system: str
    user: str
    image: bytes


@dataclass(frozen=True)
class Prompts:
    """All texts of the two roles; prompts.json and --prompt files have these fields."""

    decomposer_system: str = DECOMPOSER
    decomposer_user: str = "Task: {task}\nFirst screenshot:"
    decomposer_user_again: str = (
        "Task: {task}\nDone so far:\n{history}\nScreenshot now, list what is left to do:"
    )
    subtask_line: str = "{number}. {title}: {goal}"
    actor_system: str = ACTOR
    actor_user: str = ACTOR_TASK
    actor_user_no_plan: str = ACTOR_TASK_NO_PLAN
    history_line: str = "Step {number}: {operation}"
    no_history: str = "None"

    def decomposer(
        self,
        task: str,
        screenshot: bytes,
        operations: list[str] | None = None,
        where: tuple[str, str] = WEB,
    ) -> Prompt:
        """The condition (x, o_0) of eq. 1; with operations, of a new plan in mid-episode.

        where: what fills {place} and {page}; training data is not from the web alone.
        """
        system = fill_slots(self.decomposer_system, place=where[0], page=where[1])
        user = fill_slots(self.decomposer_user, task=task)
        if operations:
            history = self._history(operations)
            user = fill_slots(self.decomposer_user_again, task=task, history=history)
        return Prompt(system, user, screenshot)

    def actor(
        self, task: str, subtasks: list[str] | None, operations: list[str], screenshot: bytes
    ) -> Prompt:
        """The condition (x, o_t, h_t, d) of eq. 2; subtasks None: the no-plan ablation's."""
        history = self._history(operations)
        if subtasks is None:
            user = fill_slots(self.actor_user_no_plan, task=task, history=history)
        else:
            plan = "\n".join(f"{number}. {g}" for number, g in enumerate(subtasks, 1))
            user = fill_slots(self.actor_user, task=task, subtasks=plan, history=history)
        return Prompt(self.actor_system, user, screenshot)

    def _history(self, operations: list[str]) -> str:
        lines = []
        for number, operation in list(enumerate(operations, 1))[-HISTORY_WINDOW:]:
            values = {"number": str(number), "operation": one_line(operation)}
            lines.append(fill_slots(self.history_line, **values))
        return "\n".join(lines) or self.no_history

    def plan_text(self, subtasks: list[Subtask]) -> str:
        """The decomposer's target text for a teacher's subtasks."""
        lines = []
        for number, g in enumerate(subtasks, 1):
            values = {"title": one_line(g.title), "goal": one_line(g.goal)}
            lines.append(fill_slots(self.subtask_line, number=str(number), **values))
        return "\n".join(lines)


def fill_slots(template: str, **values: str) -> str:
    """Fills the slots of `template` in one pass: a value that looks like a slot stays text."""
    return re.sub(r"\{(\w+)\}", lambda slot: values.get(slot[1], slot[0]), template)


def one_line(text: str) -> str:
    """Text with its white space folded, at most 300 characters."""
    return " ".join(text.split())[:300]


def read_plan(text: str) -> list[str]:
    """d = (g_1, ..., g_L): the subtasks in a decomposer's reply.

    Numbered or bulleted lines count; where there are none, every non-empty line does. At most ten,
    each at most 300 characters; an empty reply gives an empty list.

    >>> read_plan("Plan:\\n1. Open Mugs: the list is shown\\n2) **Sort by price**")
    ['Open Mugs: the list is shown', 'Sort by price']
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    items = [re.match(r"(?:\d{1,2}[.):]|[-*•])\s+(.*\S)", line) for line in lines]
    subtasks = [item[1] for item in items if item] or lines
    return [re.sub(r"^\*\*(.*?)\*\*", r"\1", g)[:300] for g in subtasks[:MAX_SUBTASKS]]


def load_prompts(checkpoint: Path | str | None, override: Path | str | None = None) -> Prompts:
    """The prompts of a checkpoint folder, under those of an `--prompt` file.

    Both are JSON objects with any of the fields. Raises ValueError, naming file and field, for
    anything else.
    """
    values: dict[str, str] = {}
    if checkpoint and (Path(checkpoint) / "prompts.json").exists():
        values |= _read_prompts(Path(checkpoint) / "prompts.json")
    if override:
        values |= _read_prompts(Path(override))
    return Prompts(**values)


def _read_prompts(path: Path) -> dict[str, str]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a JSON object of prompts, got {error}") from None
    if not isinstance(values, dict):
        values = {str(values)[:40]: None}
    names = sorted(f.name for f in fields(Prompts))
    for name, value in values.items():
        if name not in names or not isinstance(value, str):
            expected = f"expected text under some of: {', '.join(names)}"
            raise ValueError(f"{path}: {name!r} is no prompt; {expected}")
    return values


def save_prompts(prompts: Prompts, checkpoint: Path | str) -> None:
    text = json.dumps(asdict(prompts), indent=1, ensure_ascii=False)
    (Path(checkpoint) / "prompts.json").write_text(text, "utf-8")
