"""A planner without eyes for pixels, and the grounding models that find what it describes.

The planner writes a comment that describes the target, then one call; where the call carries a point, its numbers
are not used: the comment goes to a grounder. Two public forms are read: ScaleCUA's (a Python fence with both lines)
and MacOSArena's (one line of pyautogui, or WAIT, DONE, FAIL).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jhima.actions import Action, Turn, call_action, format_call, known, turn_of
from jhima.coordinates import Size
from jhima.reply_reader import MAX_REPLY, Arguments, Bad, calls, on_page, plain

GROUND = "\n<ground>"  # between a planner's reply and its grounder's, in the reply of the two


WORDS = {
    "DONE": Action("stop", status="success"),
    "FAIL": Action("stop", status="failure"),
    "WAIT": Action("wait", seconds=3.0),
}


_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n?(.*?)(?:```|$)", re.DOTALL)


def parse_plan(reply: str, viewport: Size) -> Turn:
    """A planner's reply as a Turn of one call, whose `target` says what is to be grounded; never raises."""
    reply = plain(reply)[:MAX_REPLY]
    warnings: list[str] = []
    fence = _FENCE.search(reply)
    block = (fence[1] if fence else reply).strip()
    if block.strip(".` \n") in WORDS:
        return Turn((WORDS[block.strip(".` \n")],))
    if fence is None:
        warnings.append("no code fence")
    found = list(calls(block, known, warnings))
    comments = [
        line.strip().lstrip("# ").strip()
        for line in block.splitlines()
        if line.strip().startswith("#")
    ]
    description = comments[0] if comments else ""
    if len(found) > 1:
        warnings.append("extra_actions: only the first is done")

    def act(name: str, arguments: Arguments) -> list[Action]:
        positional, given = arguments
        if name == "swipe":  # its points would be the planner's own pixels
            given = {k: v for k, v in given.items() if k not in ("fromcoord", "tocoord")}
        action = call_action(name, (positional, given), lambda _: (0.0, 0.0), viewport)
        if action.kind == "type":
            action = replace(action, clear=False)
        if action.x is None and action.to is None:
            return [action]
        target = description or plain(
            given.get("element", given.get("description", given.get("target")))
        )
        if not target:
            raise Bad("no_description", "a point, and no words for it")
        return [replace(action, x=None, y=None, to=None, target=target)]

    return turn_of(
        found[:1], act, block, warnings, reply[: fence.start()] if fence else "", description
    )


# ---- grounders ----

# x=.., y=.. in either order; else numbers in brackets or between tags, with a box's second corner after them.
_N = r"[+-]?[\d.]+"


_XY = re.compile(
    rf"\bx\s*=\s*({_N})\W{{1,9}}y\s*=\s*({_N})|\by\s*=\s*({_N})\W{{1,9}}x\s*=\s*({_N})", re.I
)


_GROUP = re.compile(
    rf"[(\[>]\s*((?:{_N}[\s,]+){{1,3}}{_N})\s*[)\]<](?:\s{{0,3}},?\s{{0,3}}[(\[]\s*({_N}[\s,]+{_N})\s*[)\]])?"
)


def parse_point(reply: str, grid: Size, viewport: Size, fractions: bool = False) -> Turn:
    """A grounder's reply as a Turn of hovers, one a point: a single target is the first. Never raises.

    fractions: two floats in [0, 1] are shares of the viewport (ScaleCUA's), else pixels like any other.
    """
    reply = plain(reply)[:MAX_REPLY]
    warnings: list[str] = []
    place = on_page(grid, viewport, warnings, fractions)
    text = re.sub(r"<\|?/?box_(?:start|end)\|?>", " ", reply)
    found: list[object] = [[m[1] or m[4], m[2] or m[3]] for m in _XY.finditer(text)]
    found = found or [f"{m[1]} {m[2] or ''}" for m in _GROUP.finditer(text)]
    if not found and re.fullmatch(r"[\s\d.,+-]+", text):
        found = [text]
    hovers, error = [], "empty" if not reply.strip() else "no_target"
    for value in found[:2]:
        try:
            hovers.append(Action("hover", *place(value)))
        except Bad as bad:
            error = bad.error
            warnings.append(str(bad))
    return Turn(tuple(hovers), error=None if hovers else error, warnings=tuple(warnings[:10]))


def parse_grounded(reply: str, grid: Size, viewport: Size, fractions: bool = False) -> Turn:
    """The reply of planner and grounder, joined by GROUND: the planner's turn with the grounder's point in it."""
    planned, _, grounded = plain(reply).partition(GROUND)
    turn = parse_plan(planned, viewport)
    if not turn.actions or not turn.actions[0].target:
        return turn
    pointer = parse_point(grounded, grid, viewport, fractions)
    warnings = turn.warnings + pointer.warnings
    if pointer.error:
        return replace(
            turn,
            actions=(),
            error="no_target" if pointer.error == "empty" else pointer.error,
            warnings=warnings,
        )
    action, at = turn.actions[0], pointer.actions[0]
    done = (
        replace(action, to=(at.x, at.y))
        if action.kind == "drag"
        else replace(action, x=at.x, y=at.y)
    )
    return replace(turn, actions=(done,), warnings=warnings)


def write_plan(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    """A planner's reply that `parse_plan` reads back; a point becomes its target. Raises ValueError."""
    (action,) = actions
    if action.target:
        action = (
            replace(action, to=(0.0, 0.0))
            if action.kind == "drag"
            else replace(action, x=0.0, y=0.0)
        )
    return (
        f"```python\n# {action.target or operation}\n{format_call(action, viewport, viewport)}\n```"
    )
