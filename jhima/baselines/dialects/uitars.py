"""UI-TARS: `Thought: .. Action: call(..)`, coordinates in a box or point argument.

UI-TARS-1.5 names pixels of its resized image, UI-TARS-72B-DPO thousandths of the screenshot; the
rest is one grammar. Published readers lose replies to quotes, line breaks and box tokens;
tests/baselines/test_dialects.py has one example of each.
"""

from __future__ import annotations

import re
from functools import partial

from jhima import reply_reader as reader
from jhima.actions import Action, PointReader, Turn, scroll, turn_of_calls, wait
from jhima.coordinates import Point, Size
from jhima.reply_reader import Arguments, Unreadable

STEP = 500.0  # CSS pixels that a scroll moves, as in the browser operator of UI-TARS-desktop
# fmt: off
# Folded names of the calls, with their parameters in order; then other names for them.
PARAMETERS = {
    "click": "startbox", "leftdouble": "startbox", "rightsingle": "startbox", "hover": "startbox",
    "drag": "startbox endbox", "select": "startbox endbox", "scroll": "startbox direction amount",
    "hotkey": "key", "press": "key", "release": "key", "type": "content startbox",
    "wait": "seconds", "finished": "content", "errorenv": "content", "calluser": "content",
    "navigate": "url", "navigateback": "",
}
ALIASES = reader.by_spelling({
    "click": "leftsingle leftclick", "leftdouble": "doubleclick", "rightsingle": "rightclick",
    "hover": "moveto", "drag": "swipe", "press": "keydown", "release": "keyup",
    "navigate": "goto openurl", "navigateback": "goback pressback back",
})
# fmt: on
NAMES = PARAMETERS.keys() | ALIASES.keys()
_MARKER = re.compile(r"Action\s*[:：]\s*")
_FIRST_CALL = re.compile(r"(?:```\w*\s*|[-*\d.]+\s+)?(?:pyautogui\.)?([A-Za-z_]\w{0,30})\(")


def parse(reply: str, grid: Point, viewport: Size) -> Turn:
    """A UI-TARS reply as a Turn; never raises.

    grid: (width, height) that coordinates are relative to, (1000, 1000) for the 72B model.

    >>> parse("Thought: Go.\\nAction: click(start_box='(500,500)')", (1000, 1000), (1280, 720))
    Turn(actions=(Action(kind='click', x=640.0, y=360.0, ...
    """
    reply = reader.as_text(reply)[: reader.MAX_REPLY]
    warnings: list[str] = []
    before, block = _split(reply, warnings)
    thought, *summary = re.split(r"Action_Summary\s*[:：]", before, maxsplit=1)
    thought = re.sub(r"^[\s`]*(?:Thought|Reflection)\s*[:：]\s*", "", thought)
    draft = Turn(thought=thought, operation="".join(summary))
    calls = reader.calls(block, NAMES, warnings)
    read_point = partial(reader.page_point, grid, viewport, warnings)
    return turn_of_calls(draft, block, warnings, calls, partial(_actions, read_point))


def _split(reply: str, warnings: list[str]) -> tuple[str, str]:
    """What stands before the actions, and the actions.

    They begin at the first `Action:` that a known call follows, so that a thought may speak of
    actions; or at the first one at all.
    """
    markers = list(_MARKER.finditer(reply))
    if not markers:
        warnings.append("no Action:")
        return "", reply
    for marker in markers:
        call = _FIRST_CALL.match(reply, marker.end())
        if call and reader.fold(call[1]) in NAMES:
            return reply[: marker.start()], reply[marker.end() :]
    return reply[: markers[0].start()], reply[markers[0].end() :]


def _actions(read_point: PointReader, name: str, arguments: Arguments) -> list[Action]:
    """The actions of one call. Raises Unreadable."""
    name = ALIASES.get(name, name)
    arguments = _join_coordinates(arguments).bind(PARAMETERS[name])
    start = arguments.get("startbox", "point", "startpoint", "box")
    if start is None and "x" in arguments.named and "y" in arguments.named:
        start = [arguments.named["x"], arguments.named["y"]]
    end = arguments.get("endbox", "endpoint")
    content = arguments.get("content", "text")
    text = reader.as_text(content)
    if name == "select":
        name = "click" if end is None else "drag"
    match name:
        case "click":
            return [Action("click", *read_point(start))]
        case "leftdouble":
            return [Action("click", *read_point(start), count=2)]
        case "rightsingle":
            return [Action("click", *read_point(start), button="right")]
        case "hover":
            return [Action("hover", *read_point(start))]
        case "drag":
            return [Action("drag", *read_point(start), to=read_point(end))]
        case "scroll":
            return [_scroll(start, arguments, read_point)]
        case "hotkey" | "press" | "release":
            keys = reader.keys(arguments.get("key", "keys"))
            how = {"hotkey": "chord", "press": "down", "release": "up"}[name]
            return [Action("key", keys=keys, how=how)]
        case "type":
            if content is None:
                raise Unreadable("bad_syntax", "no content")
            text, submit = reader.split_submit(content)
            focus = [] if start is None else [Action("click", *read_point(start))]
            return [*focus, Action("type", text=text, clear=False, submit=submit)]
        case "wait":
            return [wait(arguments.get("seconds", "time", default=5))]
        case "navigate":
            return [Action("goto", text=reader.as_text(arguments.get("url", default=content)))]
        case "navigateback":
            return [Action("back")]
        case "calluser":
            return [Action("ask", text=text)]
        case "errorenv":
            return [Action("stop", status="failure", text=text)]
        case _:
            answer = [Action("answer", text=text)] if text else []
            return [*answer, Action("stop", status="success")]


def _join_coordinates(arguments: Arguments) -> Arguments:
    """Two leading numbers, as in click(644, 364), as one point."""
    first, rest = arguments.positional[:2], arguments.positional[2:]
    if len(first) == 2 and all(isinstance(value, (int, float)) for value in first):
        return Arguments([first, *rest], arguments.named)
    return arguments


def _scroll(start: object, arguments: Arguments, read_point: PointReader) -> Action:
    point = (None, None) if start is None else read_point(start)
    amount = reader.number_within(-5000.0, 5000.0, arguments.get("amount", default=STEP))
    direction = str(arguments.get("direction", default="down"))
    return scroll(direction, (abs(amount), abs(amount)), point)
