"""UI-TARS: `Thought: .. Action: call(..)`, coordinates in a box or point argument.

UI-TARS-1.5 names pixels of its resized image, UI-TARS-72B-DPO thousandths of the screenshot; the rest is one grammar.
Published readers lose replies to quotes, line breaks and box tokens; tests/baselines/test_dialects.py has one of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from jhima.actions import Action, Turn, scroll, turn_of
from jhima.coordinates import Size, to_grid
from jhima.reply_reader import (
    MAX_REPLY,
    Arguments,
    Bad,
    calls,
    fold,
    keys,
    number,
    on_page,
    plain,
    quote,
    typed,
)

STEP = 500.0  # CSS pixels a scroll moves, as the browser operator of UI-TARS-desktop does


POSITIONAL = {
    "click": ("startbox",),
    "leftdouble": ("startbox",),
    "rightsingle": ("startbox",),
    "hover": ("startbox",),
    "drag": ("startbox", "endbox"),
    "select": ("startbox", "endbox"),
    "scroll": ("startbox", "direction", "amount"),
    "hotkey": ("key",),
    "press": ("key",),
    "release": ("key",),
    "type": ("content", "startbox"),
    "wait": ("seconds",),
    "finished": ("content",),
    "errorenv": ("content",),
    "calluser": ("content",),
    "navigate": ("url",),
    "navigateback": (),
}


ALIASES = {
    "leftsingle": "click",
    "leftclick": "click",
    "doubleclick": "leftdouble",
    "rightclick": "rightsingle",
    "moveto": "hover",
    "swipe": "drag",
    "keydown": "press",
    "keyup": "release",
    "goto": "navigate",
    "openurl": "navigate",
    "goback": "navigateback",
    "pressback": "navigateback",
    "back": "navigateback",
}


_MARKER = re.compile(r"Action\s*[:：]\s*")


_FIRST = re.compile(r"(?:```\w*\s*|[-*\d.]+\s+)?(?:pyautogui\.)?([A-Za-z_]\w{0,30})\(")


def known(name: str) -> bool:
    return name in POSITIONAL or name in ALIASES


def parse(reply: str, grid: tuple[float, float], viewport: Size) -> Turn:
    """A UI-TARS reply as a Turn; never raises. grid: what its coordinates count, (1000, 1000) for the 72B model.

    Actions begin at the first `Action:` that a known call follows, so that a thought may speak of actions.
    """
    reply = plain(reply)[:MAX_REPLY]
    warnings: list[str] = []
    starts = [
        m
        for m in _MARKER.finditer(reply)
        if (call := _FIRST.match(reply, m.end())) and known(fold(call[1]))
    ]
    marker = starts[0] if starts else next(_MARKER.finditer(reply), None)
    if marker is None:
        warnings.append("no Action:")
    before, block = (reply[: marker.start()], reply[marker.end() :]) if marker else ("", reply)
    thought, *summary = re.split(r"Action_Summary\s*[:：]", before, maxsplit=1)
    thought = re.sub(r"^[\s`]*(?:Thought|Reflection)\s*[:：]\s*", "", thought)
    place = on_page(grid, viewport, warnings)
    return turn_of(
        calls(block, known, warnings),
        lambda name, given: _actions(name, given, place),
        block,
        warnings,
        thought,
        summary[0] if summary else "",
    )


def _actions(name: str, arguments: Arguments, place: Callable) -> list[Action]:
    name = ALIASES.get(name, name)
    positional, given = arguments
    if len(positional) >= 2 and all(
        isinstance(v, (int, float)) for v in positional[:2]
    ):  # click(640, 364)
        positional = [positional[:2], *positional[2:]]
    given = dict(zip(POSITIONAL[name], positional)) | given
    start = given.get("startbox", given.get("point", given.get("startpoint", given.get("box"))))
    if start is None and "x" in given and "y" in given:
        start = [given["x"], given["y"]]
    end = given.get("endbox", given.get("endpoint"))
    said = given.get("content", given.get("text"))
    key = given.get("key", given.get("keys"))
    if name == "select":
        name = "drag" if end is not None else "click"
    match name:
        case "click" | "leftdouble" | "rightsingle":
            return [
                Action(
                    "click",
                    *place(start),
                    count=2 if name == "leftdouble" else 1,
                    button="right" if name == "rightsingle" else "left",
                )
            ]
        case "hover":
            return [Action("hover", *place(start))]
        case "drag":
            return [Action("drag", *place(start), to=place(end))]
        case "scroll":
            at = place(start) if start is not None else (None, None)
            ways = scroll(str(given.get("direction", "down")), 1.0, (1, 1), at)
            amount = min(5000.0, abs(number(given.get("amount", STEP))))
            return [Action("scroll", *at, dx=ways.dx * amount, dy=ways.dy * amount)]
        case "hotkey":
            return [Action("key", keys=keys(key), how="chord")]
        case "press" | "release":
            return [Action("key", keys=keys(key), how="down" if name == "press" else "up")]
        case "type":
            if said is None:
                raise Bad("bad_syntax", "no content")
            text, submit = typed(said)
            first = [Action("click", *place(start))] if start is not None else []
            return [*first, Action("type", text=text, clear=False, submit=submit)]
        case "wait":
            return [
                Action(
                    "wait",
                    seconds=min(10.0, max(0.0, number(given.get("seconds", given.get("time", 5))))),
                )
            ]
        case "navigate":
            return [Action("goto", text=plain(given.get("url", said)))]
        case "navigateback":
            return [Action("back")]
        case "calluser":
            return [Action("ask", text=plain(said))]
        case "errorenv":
            return [Action("stop", status="failure", text=plain(said))]
        case _:
            answer = [Action("answer", text=plain(said))] if plain(said) else []
            return [*answer, Action("stop", status="success")]


# ---- writing ----


def write(
    operation: str, actions: Sequence[Action], grid: tuple[float, float], viewport: Size
) -> str:
    """A reply that `parse` reads back. Raises ValueError for an action that the dialect lacks.

    >>> write("Search.", [Action("click", 640, 360), Action("wait", seconds=5)], (1288, 728), (1280, 720))
    "Thought: Search.\\nAction: click(start_box='(644,364)')\\n\\nwait()"
    """
    calls, rest = [], list(actions)
    while rest:
        action = rest.pop(0)
        if action.kind == "answer" and rest and rest[0] == Action("stop", status="success"):
            rest.pop(0)
            calls.append(f"finished(content={quote(action.text)})")
        else:
            calls.append(_call(action, grid, viewport))
    return f"Thought: {operation}\nAction: " + "\n\n".join(calls)


def _call(action: Action, grid: tuple[float, float], viewport: Size) -> str:
    def box(x: float, y: float) -> str:
        return "'({},{})'".format(*to_grid((x, y), grid, viewport))

    match action.kind:
        case "click" if (action.button, action.count) in (("left", 1), ("left", 2), ("right", 1)):
            name = (
                "right_single"
                if action.button == "right"
                else "left_double"
                if action.count == 2
                else "click"
            )
            return f"{name}(start_box={box(action.x, action.y)})"
        case "hover":
            return f"hover(start_box={box(action.x, action.y)})"
        case "drag" if action.x is not None and action.button == "left":
            return f"drag(start_box={box(action.x, action.y)}, end_box={box(*action.to)})"
        case "scroll" if not (action.dx and action.dy):
            start = f"start_box={box(action.x, action.y)}, " if action.x is not None else ""
            way = (
                ("right" if action.dx > 0 else "left")
                if action.dx
                else ("down" if action.dy > 0 else "up")
            )
            amount = abs(action.dx or action.dy)
            return f"scroll({start}direction='{way}'{'' if amount == STEP else f', amount={amount:g}'})"
        case "type" if not action.clear:
            return f"type(content={quote(action.text + chr(10) * action.submit)})"
        case "key" if action.times == 1 and (action.how != "sequence" or len(action.keys) == 1):
            name = {"down": "press", "up": "release"}.get(action.how, "hotkey")
            return f"{name}(key={quote(' '.join(k.lower() if len(k) > 1 else k for k in action.keys))})"
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
