"""Actions written as replies of each dialect, which its parser reads back: only tests need this."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jhima.actions import Action, format_call, format_reply
from jhima.baselines.dialects import THOUSANDTHS, gui_libra, uitars, uitars_grid
from jhima.coordinates import Point, Size, smart_resize, to_grid
from jhima.reply_reader import quote


def direction(action: Action) -> str:
    """The direction of a scroll along one axis."""
    if action.dx:
        return "right" if action.dx > 0 else "left"
    return "down" if action.dy > 0 else "up"


def write_scalecua(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    grid = smart_resize(*viewport)
    return format_reply(operation, [format_call(action, grid, viewport) for action in actions])


def write_uitars(grid: Point, operation: str, actions: Sequence[Action], viewport: Size) -> str:
    """A UI-TARS reply. Raises ValueError for an action that the dialect lacks.

    >>> actions = [Action("click", 640, 360), Action("wait", seconds=5)]
    >>> write_uitars((1288, 728), "Search.", actions, (1280, 720))
    "Thought: Search.\\nAction: click(start_box='(644,364)')\\n\\nwait()"
    """
    calls, rest = [], list(actions)
    while rest:
        action = rest.pop(0)
        if action.kind == "answer" and rest and rest[0] == Action("stop", status="success"):
            rest.pop(0)
            calls.append(f"finished(content={quote(action.text)})")
        else:
            calls.append(uitars_call(action, grid, viewport))
    return f"Thought: {operation}\nAction: " + "\n\n".join(calls)


def uitars_call(action: Action, grid: Point, viewport: Size) -> str:
    def box(x: float, y: float) -> str:
        return "'({},{})'".format(*to_grid((x, y), grid, viewport))

    match action.kind:
        case "click" if (action.button, action.count) in (("left", 1), ("left", 2), ("right", 1)):
            name = "left_double" if action.count == 2 else "click"
            if action.button == "right":
                name = "right_single"
            return f"{name}(start_box={box(action.x, action.y)})"
        case "hover":
            return f"hover(start_box={box(action.x, action.y)})"
        case "drag" if action.x is not None and action.button == "left":
            return f"drag(start_box={box(action.x, action.y)}, end_box={box(*action.to)})"
        case "scroll" if not (action.dx and action.dy):
            start = f"start_box={box(action.x, action.y)}, " if action.x is not None else ""
            distance = abs(action.dx or action.dy)
            amount = "" if distance == uitars.STEP else f", amount={distance:g}"
            return f"scroll({start}direction='{direction(action)}'{amount})"
        case "type" if not action.clear:
            return f"type(content={quote(action.text + chr(10) * action.submit)})"
        case "key" if action.times == 1 and (action.how != "sequence" or len(action.keys) == 1):
            name = {"down": "press", "up": "release"}.get(action.how, "hotkey")
            keys = [key.lower() if len(key) > 1 else key for key in action.keys]
            return f"{name}(key={quote(' '.join(keys))})"
        case "wait":
            return "wait()" if action.seconds == 5 else f"wait(seconds={action.seconds:g})"
        case "goto":
            return f"navigate(url={quote(action.text)})"
        case "back":
            return "navigate_back()"
        case "ask":
            return f"call_user(content={quote(action.text)})" if action.text else "call_user()"
        case "stop":
            return (
                "finished()"
                if action.status == "success"
                else f"error_env(content={quote(action.text)})"
            )
        case _:
            raise ValueError(f"UI-TARS has no call for {action}")


def write_gui_libra(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    """A GUI-Libra reply: one action, or a click with the type or answer with the stop that
    belongs to it. Raises ValueError for an action that the dialect lacks.

    >>> reply = write_gui_libra("Menu", [Action("click", 640, 360)], (1280, 720))
    >>> print(reply.splitlines()[1])
    {"action_description": "Menu", "action_type": "Click", "value": "None", "point_2d": [500, 500]}
    """
    point, value = [-100, -100], "None"
    last = actions[-1]
    if (
        [a.kind for a in actions] == ["click", "type"]
        or last.kind in ("click", "select", "scroll")
        and last.x is not None
    ):
        point = list(to_grid((actions[0].x, actions[0].y), gui_libra.GRID, viewport))
    match [a.kind for a in actions]:
        case ["click"] if (last.button, last.count) == ("left", 1):
            kind = "Click"
        case ["select"]:
            kind, value = "Select", last.option
        case ["type"] | ["click", "type"] if last.clear:
            kind, value = "Write", last.text + "\n" * last.submit
        case ["key"] if last.times == 1 and last.how == (
            "chord" if len(last.keys) > 1 else "sequence"
        ):
            kind, value = "KeyboardPress", "+".join(last.keys)
        case ["scroll"] if not last.dx or not last.dy:
            kind, value = "Scroll", direction(last)
        case ["wait"]:
            kind, value = "Wait", f"{last.seconds:g}"
        case ["back"]:
            kind = "NavigateBack"
        case ["goto"]:
            kind, value = "Navigate", last.text
        case ["answer", "stop"] if last.status == "success":
            kind, value = "Answer", actions[0].text
        case ["ask"]:
            kind, value = "CallUser", last.text or "None"
        case ["stop"]:
            kind, value = "Terminate", last.status
        case _:
            raise ValueError(f"GUI-Libra has no reply for {actions}")
    fields = {
        "action_description": operation,
        "action_type": kind,
        "value": value,
        "point_2d": point,
    }
    # Never the closing tag within the JSON.
    text = json.dumps(fields, ensure_ascii=False).replace("</", r"<\/")
    return f"<answer>\n{text}\n</answer>"


def write_plan(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    """A planner's reply to one action, whose point becomes its target. Raises ValueError."""
    (action,) = actions
    if action.target and action.kind == "drag":
        action = replace(action, to=(0.0, 0.0))
    elif action.target:
        action = replace(action, x=0.0, y=0.0)
    call = format_call(action, viewport, viewport)
    return f"```python\n# {action.target or operation}\n{call}\n```"


def write_uitars_15(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    return write_uitars(uitars_grid(viewport), operation, actions, viewport)


# write(operation, actions, viewport) of each dialect; raises ValueError for what it cannot say.
WRITERS = {
    "jhima": write_scalecua,
    "scalecua": write_scalecua,
    "uitars-1.5": write_uitars_15,
    "uitars-72b": partial(write_uitars, THOUSANDTHS),
    "gui-libra": write_gui_libra,
    "planner": write_plan,
}
