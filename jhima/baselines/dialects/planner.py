"""A planner that cannot read coordinates, and the grounding models that find what it describes.

The planner writes a comment that describes the target, then one call; if the call carries a point,
its numbers are not used: the comment goes to a grounder. Two public forms are read: ScaleCUA's (a
Python fence with both lines) and MacOSArena's (one line of pyautogui, or WAIT, DONE, FAIL).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jhima import reply_reader as reader
from jhima.actions import NAMES, Action, Turn, call_action, turn_of_calls
from jhima.coordinates import Size
from jhima.reply_reader import Arguments, Unreadable

GROUND = "\n<ground>"  # joins a planner's reply and its grounder's into one reply
WORDS = {
    "DONE": Action("stop", status="success"),
    "FAIL": Action("stop", status="failure"),
    "WAIT": Action("wait", seconds=3.0),
}
_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n?(.*?)(?:```|$)", re.DOTALL)


def parse_plan(reply: str, viewport: Size) -> Turn:
    """A planner's reply as a Turn of one action, whose `target` is to be grounded; never raises."""
    reply = reader.as_text(reply)[: reader.MAX_REPLY]
    warnings: list[str] = []
    thought, block = "", reply.strip()
    if fence := _FENCE.search(reply):
        thought, block = reply[: fence.start()], fence[1].strip()
    word = block.strip(".` \n")
    if word in WORDS:
        return Turn((WORDS[word],))
    if fence is None:
        warnings.append("no code fence")
    calls = list(reader.calls(block, NAMES, warnings))
    if len(calls) > 1:
        warnings.append("extra_actions: only the first is done")
    lines = (line.strip() for line in block.splitlines())
    comment = next((line for line in lines if line.startswith("#")), "")
    draft = Turn(thought=thought, operation=comment.lstrip("# ").strip())
    read_actions = partial(_described_action, draft.operation, viewport)
    return turn_of_calls(draft, block, warnings, calls[:1], read_actions)


def _described_action(
    description: str, viewport: Size, name: str, arguments: Arguments
) -> list[Action]:
    """A call's action, with a description in place of its point. Raises Unreadable."""
    if name == "swipe":  # its points would be the planner's own pixels
        points = ("fromcoord", "tocoord")
        named = {key: value for key, value in arguments.named.items() if key not in points}
        arguments = replace(arguments, named=named)
    action = call_action(name, arguments, lambda point: (0.0, 0.0), viewport)
    if action.kind == "type":
        action = replace(action, clear=False)
    if action.x is None and action.to is None:
        return [action]
    target = description or arguments.get("element", "description", "target")
    if not reader.as_text(target):
        raise Unreadable("no_description", "a point, and no words for it")
    return [replace(action, x=None, y=None, to=None, target=reader.as_text(target))]


# ---- grounders ----

# x=.., y=.. in either order; else numbers in brackets or between tags, perhaps with a box's second
# corner after them.
_N = r"[+-]?[\d.]+"
_XY = re.compile(
    rf"\bx\s*=\s*({_N})\W{{1,9}}y\s*=\s*({_N})|\by\s*=\s*({_N})\W{{1,9}}x\s*=\s*({_N})", re.I
)
_GROUP = re.compile(
    rf"[(\[>]\s*((?:{_N}[\s,]+){{1,3}}{_N})\s*[)\]<]"
    rf"(?:\s{{0,3}},?\s{{0,3}}[(\[]\s*({_N}[\s,]+{_N})\s*[)\]])?"
)


def parse_point(reply: str, grid: Size, viewport: Size, fractions: bool = False) -> Turn:
    """A grounder's reply as a Turn of at most two hovers, one per point. Never raises.

    A single target is the first one, a drag has two. fractions: two floats in [0, 1] are shares of
    the viewport (ScaleCUA's), else pixels like any others.
    """
    reply = reader.as_text(reply)[: reader.MAX_REPLY]
    warnings: list[str] = []
    text = re.sub(r"<\|?/?box_(?:start|end)\|?>", " ", reply)
    points: list[object] = [[m[1] or m[4], m[2] or m[3]] for m in _XY.finditer(text)]
    points = points or [f"{m[1]} {m[2] or ''}" for m in _GROUP.finditer(text)]
    if not points and re.fullmatch(r"[\s\d.,+-]+", text):
        points = [text]
    hovers, error = [], "no_target" if reply.strip() else "empty"
    for value in points[:2]:
        try:
            point = reader.page_point(grid, viewport, warnings, value, fractions)
            hovers.append(Action("hover", *point))
        except Unreadable as unreadable:
            error = unreadable.error
            warnings.append(str(unreadable))
    return Turn(tuple(hovers), error=None if hovers else error, warnings=tuple(warnings[:10]))


def parse_grounded(reply: str, viewport: Size, locate: Callable[[str, Size], Turn]) -> Turn:
    """The reply of planner and grounder, joined by GROUND: the planner's turn with a point in it.

    locate: the grounder's own parser, `parse_point` on its grid.
    """
    planned, _, grounded = reader.as_text(reply).partition(GROUND)
    turn = parse_plan(planned, viewport)
    if not turn.actions or not turn.actions[0].target:
        return turn
    hover = locate(grounded, viewport)
    warnings = turn.warnings + hover.warnings
    if hover.error:
        error = "no_target" if hover.error == "empty" else hover.error
        return replace(turn, actions=(), error=error, warnings=warnings)
    action, x, y = turn.actions[0], hover.actions[0].x, hover.actions[0].y
    if action.kind == "drag":
        action = replace(action, to=(x, y))
    else:
        action = replace(action, x=x, y=y)
    return replace(turn, actions=(action,), warnings=warnings)
