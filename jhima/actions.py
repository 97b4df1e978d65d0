"""The canonical actions, and the ScaleCUA grammar in which our actor writes them.

A reply is `<think>..</think><operation>..</operation><action>calls</action>`; each call is a
Python call with literal arguments. `parse` is total: any string gives a Turn, with warnings where
it was lenient, and with one error class if nothing could be read. Nothing is ever evaluated.
The baselines' grammars are in jhima/baselines/dialects/, and so is the command that shows how a
reply is read:

    python -m jhima.baselines.dialects DIALECT [--viewport WxH] < reply.txt      # the turn as JSON
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from jhima import reply_reader as reader
from jhima.coordinates import Point, Size, smart_resize, to_grid
from jhima.reply_reader import Arguments, Call, Unreadable

# fmt: off
Kind = Literal[
    "click", "hover", "drag", "scroll", "type", "key", "select", "wait", "goto", "back", "forward",
    "answer", "stop", "ask",
]
# fmt: on


@dataclass(frozen=True)
class Action:
    """One canonical action. Coordinates are CSS pixels of the viewport. Fields by kind:

    click   x, y, button, count
    hover   x, y
    drag    x, y (the start; None: where the pointer is), to, button
    scroll  x, y (None: the centre), dx, dy (dy > 0 shows lower content)
    type    text, clear (replaces what the focused field holds), submit (then presses Enter)
    key     keys, how, times
    select  x, y, option (of a native select box)
    wait    seconds
    goto    text (a URL)
    answer  text
    stop    status, text
    ask     text (a question to the user; nobody plays the user, so it has no effect)

    target: what a grounding model must locate first; x and y are None until it has.
    """

    kind: Kind
    x: float | None = None
    y: float | None = None
    to: Point | None = None
    button: Literal["left", "right", "middle"] = "left"
    count: int = 1
    dx: float = 0.0
    dy: float = 0.0
    text: str = ""
    clear: bool = True
    submit: bool = False
    keys: tuple[str, ...] = ()
    how: Literal["sequence", "chord", "down", "up"] = "sequence"
    times: int = 1
    option: str = ""
    seconds: float = 0.0
    status: Literal["success", "failure", ""] = ""
    target: str = ""


def action_fields(action: Action) -> dict[str, object]:
    """The kind of an action and its fields that differ from their defaults: its form on disk.

    >>> action_fields(Action("click", 640.0, 360.0))
    {'kind': 'click', 'x': 640.0, 'y': 360.0}
    """
    default = asdict(Action(action.kind))
    changed = {name: value for name, value in asdict(action).items() if value != default[name]}
    return {"kind": action.kind} | changed


@dataclass(frozen=True)
class Turn:
    """What one reply asks for. `error` is None, or why no action could be read."""

    actions: tuple[Action, ...] = ()
    thought: str = ""
    operation: str = ""
    error: reader.Error | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    """An action language: parse(reply, viewport) gives a Turn and never raises.

    answer_ends: whether an answer alone ends the episode.
    """

    parse: Callable[[str, Size], Turn]
    answer_ends: bool = False


# ---- reading a reply ----

# fmt: off
# Folded names of the calls, with their parameters in order.
PARAMETERS = {
    "click": "x y clicks button", "doubleclick": "x y button", "rightclick": "x y", "moveto": "x y",
    "dragto": "x y button", "swipe": "fromcoord tocoord direction amount", "scroll": "clicks x y",
    "press": "keys presses", "hotkey": "", "keydown": "key", "keyup": "key", "write": "message",
    "selectoption": "x y value", "wait": "seconds", "openurl": "url", "gobackward": "",
    "goforward": "", "response": "answer", "terminate": "status info", "calluser": "message",
}
# Other names that models are known to write for them.
ALIASES = reader.by_spelling({
    "click": "leftclick", "moveto": "hover", "selectoption": "select", "write": "type typewrite",
    "press": "key", "openurl": "navigate goto", "gobackward": "goback back", "goforward": "forward",
    "response": "answer", "terminate": "finish",
})
# fmt: on
NAMES = PARAMETERS.keys() | ALIASES.keys()
PointReader = Callable[[object], Point]  # a point as a model spells it -> CSS pixels, or Unreadable


def read_scalecua(reply: str, viewport: Size) -> Turn:
    """`parse` for a model that saw the viewport at Qwen2.5-VL's own size."""
    return parse(reply, smart_resize(*viewport), viewport)


OURS = Dialect(read_scalecua, answer_ends=True)


def parse(reply: str, grid: Size, viewport: Size) -> Turn:
    """A reply in the ScaleCUA grammar as a Turn. Never raises.

    grid: (width, height) of the resized image that the model saw, in whose pixels it gives
    coordinates; viewport: (width, height) in CSS pixels. A call that cannot be read is skipped
    with a warning; the turn has an error only if no call at all could be read. `write` replaces
    what the field holds, which is our actor's convention.

    >>> reply = "<operation>Open menu</operation><action>click(x=644, y=364)</action>"
    >>> turn = parse(reply, (1288, 728), (1280, 720))
    >>> turn.operation, turn.actions[0].x, turn.actions[0].y
    ('Open menu', 640.0, 360.0)
    """
    reply = reader.as_text(reply)[: reader.MAX_REPLY]
    warnings: list[str] = []
    block = _inside(reply, "action")
    if block is None:
        block = reply.rsplit("</operation>", 1)[-1]
        warnings.append("no <action> tag")
    draft = Turn(thought=_inside(reply, "think") or "", operation=_inside(reply, "operation") or "")
    read_point = partial(reader.page_point, grid, viewport, warnings, fractions=True)
    calls = _json_calls(block) or reader.calls(block, NAMES, warnings)

    def read_actions(name: str, arguments: Arguments) -> list[Action]:
        return [call_action(name, arguments, read_point, viewport)]

    return turn_of_calls(draft, block, warnings, calls, read_actions)


ReadActions = Callable[[str, Arguments], list[Action]]  # one call's actions; raises Unreadable


def turn_of_calls(
    draft: Turn, block: str, warnings: list[str], calls: Iterable[Call], read_actions: ReadActions
) -> Turn:
    """The turn whose thought and operation are draft's, with the actions of the calls in `block`.

    An unreadable call becomes a warning. If no call gives an action, the turn has the first error.
    """
    actions: list[Action] = []
    errors: list[reader.Error] = []
    for count, (name, arguments) in enumerate(calls):
        if count == reader.MAX_CALLS:
            warnings.append(f"more than {reader.MAX_CALLS} calls in a turn")
            break
        try:
            if isinstance(arguments, Unreadable):
                raise arguments
            actions += read_actions(name, arguments)
        except Unreadable as unreadable:
            errors.append(unreadable.error)
            warnings.append(f"{name}: {unreadable}")
    error = None
    if not actions:
        error = errors[0] if errors else _error_without_calls(block)
    operation = " ".join(draft.operation.split())[:300]
    return Turn(tuple(actions), draft.thought.strip(), operation, error, tuple(warnings))


def _error_without_calls(block: str) -> reader.Error:
    if re.search(r"\w\(", block):
        return "unknown_action"
    return "no_action" if block.strip() else "empty"


def _inside(reply: str, tag: str) -> str | None:
    """The text in <tag>..</tag>, or after an opening tag that is never closed; None without one."""
    _, opening, inside = reply.partition(f"<{tag}>")
    if not opening:
        return None
    closings = (f"</{tag}>", "<operation>", "<action>")
    ends = [inside.find(closing) for closing in closings if closing in inside]
    return inside[: min(ends, default=None)]


def _json_calls(block: str) -> list[Call]:
    """Calls as tool-calling models write them: {"name": .., "arguments": {..}}, or a list."""
    text = re.sub(r"^\s*(?:```\w*\s*)?", "", block)
    if text[:1] not in ("{", "["):
        return []
    try:
        value, _ = reader.literal(text, 0)
    except Unreadable:
        return []
    calls = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict):
            continue
        name = reader.fold(call.get("name", call.get("action", "")))
        if name in NAMES:
            named = call.get("arguments", call)
            items = named.items() if isinstance(named, dict) else ()
            calls.append((name, Arguments([], {reader.fold(key): value for key, value in items})))
    return calls


def call_action(name: str, arguments: Arguments, read_point: PointReader, viewport: Size) -> Action:
    """The action of one call. Raises Unreadable."""
    name = ALIASES.get(name, name)
    arguments = arguments.bind(PARAMETERS[name])
    match name:
        case "click" | "doubleclick" | "rightclick":
            return _click(name, arguments, read_point)
        case "moveto":
            return Action("hover", *_xy(arguments, read_point))
        case "dragto":
            return Action("drag", to=_xy(arguments, read_point))
        case "selectoption":
            option = reader.as_text(arguments.get("value", "option"))
            return Action("select", *_xy(arguments, read_point), option=option)
        case "swipe":
            return _swipe(arguments, read_point, viewport)
        case "scroll":
            start = (None, None)
            if arguments.get("x") is not None:
                start = _xy(arguments, read_point)
            clicks = reader.number_within(-50, 50, arguments.get("clicks", default=-5))
            return Action("scroll", *start, dy=-100.0 * clicks)
        case "press":
            return Action("key", keys=_keys(arguments), times=_count(arguments, "presses", 20))
        case "hotkey":
            keys = arguments.positional
            if len(keys) == 1:
                keys = keys[0]
            return Action("key", keys=_keys(arguments, default=keys), how="chord")
        case "keydown" | "keyup":
            keys = reader.keys(arguments.get("key", "keys"))
            return Action("key", keys=keys, how=name.removeprefix("key"))
        case "write":
            message = arguments.get("message", "text", "content")
            if message is None:
                raise Unreadable("bad_syntax", "no message")
            text, submit = reader.split_submit(message)
            return Action("type", text=text, submit=submit)
        case "wait":
            return wait(arguments.get("seconds", default=3))
        case "openurl":
            return Action("goto", text=reader.as_text(arguments.get("url")))
        case "gobackward" | "goforward":
            return Action({"gobackward": "back", "goforward": "forward"}[name])
        case "response":
            return Action("answer", text=reader.as_text(arguments.get("answer", "message")))
        case "calluser":
            return Action("ask", text=reader.as_text(arguments.get("message")))
        case _:
            failed = str(arguments.get("status", default="success")).lower() != "success"
            status = "failure" if failed else "success"
            return Action("stop", status=status, text=reader.as_text(arguments.get("info")))


def _xy(arguments: Arguments, read_point: PointReader) -> Point:
    """A call's point: x and y, or one argument that spells both."""
    x, y = arguments.get("x", "point", "coordinate"), arguments.get("y")
    if isinstance(x, (list, str)) and y is None:
        return read_point(x)
    return read_point([x, y])


def _keys(arguments: Arguments, default: object = None) -> tuple[str, ...]:
    return reader.keys(arguments.get("keys", "key", default=default))


def _count(arguments: Arguments, name: str, most: int) -> int:
    return int(reader.number_within(1, most, arguments.get(name, default=1)))


def _click(name: str, arguments: Arguments, read_point: PointReader) -> Action:
    button = "right" if name == "rightclick" else arguments.get("button", default="left")
    if button not in ("left", "right", "middle"):
        raise Unreadable("bad_syntax", f"no such button: {str(button)[:20]}")
    point = _xy(arguments, read_point)
    count = 2 if name == "doubleclick" else _count(arguments, "clicks", 3)
    return Action("click", *point, button=button, count=count)


def _swipe(arguments: Arguments, read_point: PointReader, viewport: Size) -> Action:
    """A finger's swipe: "up" shows what is further down. Between two points, by their distance."""
    start, end = arguments.get("fromcoord"), arguments.get("tocoord")
    if start and end:
        (x0, y0), (x1, y1) = read_point(start), read_point(end)
        return Action("scroll", x0, y0, dx=x0 - x1, dy=y0 - y1)
    start = read_point(start) if start else (None, None)
    share = reader.number_within(0.0, 1.0, arguments.get("amount", default=0.5))
    direction = str(arguments.get("direction", default="up"))
    return scroll(direction, (-share * viewport[0], -share * viewport[1]), start)


def scroll(direction: str, distance: Point, start: tuple = (None, None)) -> Action:
    """A scroll toward what lies in `direction`, by distance[0] sideways or distance[1] vertically.

    With negative distances it moves as a finger does. Raises Unreadable.
    """
    unit_vectors = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}
    if direction.strip().lower() not in unit_vectors:
        raise Unreadable("bad_syntax", f"no such direction: {direction[:20]}")
    x, y = unit_vectors[direction.strip().lower()]
    return Action("scroll", *start, dx=x * distance[0] + 0.0, dy=y * distance[1] + 0.0)  # no -0.0


def wait(seconds: object) -> Action:
    """A wait of at most ten seconds, however long the model asks for. Raises Unreadable."""
    return Action("wait", seconds=reader.number_within(0.0, 10.0, seconds))


# ---- writing a reply ----


def format_call(action: Action, grid: Size, viewport: Size) -> str:
    """The ScaleCUA call for an action, in whole pixels of the resized image; `parse` reads it back.

    >>> format_call(Action("click", 640, 360), (1288, 728), (1280, 720))
    'click(x=644, y=364)'
    """
    x, y = action.to or (action.x, action.y)
    point = {}
    if x is not None:
        point = dict(zip("xy", to_grid((x, y), grid, viewport)))
    match action.kind:
        case "click" if action.button == "right" and action.count == 1:
            return _written("rightClick", **point)
        case "click":
            button, clicks = _unless("left", action.button), _unless(1, action.count)
            return _written("click", **point, clicks=clicks, button=button)
        case "hover":
            return _written("moveTo", **point)
        case "drag":
            return _written("dragTo", **point)
        case "scroll":
            return _format_scroll(action, grid, viewport)
        case "type":
            return _written("write", message=action.text + "\n" * action.submit)
        case "key" if action.how == "chord":
            return f"hotkey({', '.join(map(_literal, action.keys))})"
        case "key":
            keys = action.keys[0] if len(action.keys) == 1 else action.keys
            if action.how == "sequence":
                return _written("press", keys=keys, presses=_unless(1, action.times))
            return _written(f"key{action.how.title()}", key=keys)
        case "select":
            return _written("select_option", **point, value=action.option)
        case "wait":
            return f"wait(seconds={action.seconds:g})"
        case "goto":
            return _written("open_url", url=action.text)
        case "back":
            return "go_backward()"
        case "forward":
            return "go_forward()"
        case "answer":
            return _written("response", answer=action.text)
        case "ask":
            return _written("call_user", message=_unless("", action.text))
        case _:
            return _written("terminate", status=action.status, info=_unless("", action.text))


def _unless(default: object, value: object) -> object:
    """None, which `_written` leaves out, for a default."""
    return None if value == default else value


def _written(name: str, **arguments: object) -> str:
    """A call with the arguments that are not None."""
    written = [f"{key}={_literal(value)}" for key, value in arguments.items() if value is not None]
    return f"{name}({', '.join(written)})"


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return reader.quote(value)
    return str(value)


def _format_scroll(action: Action, grid: Size, viewport: Size) -> str:
    """Along one axis by a share of the viewport; along both, by the distance of two points."""
    start = None if action.x is None else (action.x, action.y)
    if action.dx and action.dy:
        x, y = start or (viewport[0] / 2, viewport[1] / 2)
        end = (x - action.dx, y - action.dy)
        start, end = (to_grid(point, grid, viewport) for point in ((x, y), end))
        return _written("swipe", from_coord=start, to_coord=end)
    if action.dy:
        share = action.dy / viewport[1]
        direction = "up" if share > 0 else "down"
    else:
        share = action.dx / viewport[0]
        direction = "left" if share > 0 else "right"
    start = start and to_grid(start, grid, viewport)
    return _written("swipe", from_coord=start, direction=direction, amount=round(abs(share), 2))


def format_reply(operation: str, calls: list[str], thought: str = "") -> str:
    """A whole reply: a thought, if there is one, then operation and calls, each in their tags."""
    think = f"<think>\n{thought}\n</think>\n" if thought else ""
    action = "\n".join(calls)
    return f"{think}<operation>\n{operation}\n</operation>\n<action>\n{action}\n</action>"
