"""The canonical actions, and the ScaleCUA grammar, which our actor speaks too; other dialects are in baselines/dialects/.

A reply is `<think>..</think><operation>..</operation><action>calls</action>`; each call is a Python call with
literal arguments. `parse` is total: any string gives a Turn, with warnings where it was lenient and one error
class where nothing could be read. Nothing is ever evaluated.

    python -m jhima.baselines.dialects DIALECT [--viewport WxH] < reply.txt      # the turn as JSON
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from jhima.coordinates import Size, smart_resize, to_grid
from jhima.reply_reader import (
    MAX_CALLS,
    MAX_REPLY,
    Arguments,
    Bad,
    Error,
    calls,
    fold,
    keys,
    literal,
    number,
    on_page,
    plain,
    quote,
    typed,
)

Kind = Literal[
    "click",
    "hover",
    "drag",
    "scroll",
    "type",
    "key",
    "select",
    "wait",
    "goto",
    "back",
    "forward",
    "answer",
    "stop",
    "ask",
]


@dataclass(frozen=True)
class Action:
    """One canonical action; which fields count depends on `kind`. Coordinates are CSS pixels of the viewport.

    click x, y, button, count; hover x, y; drag x, y (start; None: where the pointer is), to, button; scroll x, y
    (None: the centre), dx, dy (dy > 0 shows lower content); type text, clear (replaces what the focused field holds),
    submit (then Enter); key keys, how, times; select x, y, option (of a native select box); wait seconds; goto text
    (a URL); answer text; stop status, text; ask text (a question to the user, whom nobody plays: no effect).
    target: what a grounding model must find first; x and y are None until it has.
    """

    kind: Kind
    x: float | None = None
    y: float | None = None
    to: tuple[float, float] | None = None
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
    """What one reply asks for. `error` is None or why no action could be read."""

    actions: tuple[Action, ...] = ()
    thought: str = ""
    operation: str = ""
    error: Error | None = None
    warnings: tuple[str, ...] = ()


# ---- reading a reply ----

# Folded call names with their positional parameters; then the aliases that models are known to write.
PARAMETERS = {
    "click": ("x", "y", "clicks", "button"),
    "doubleclick": ("x", "y", "button"),
    "rightclick": ("x", "y"),
    "moveto": ("x", "y"),
    "dragto": ("x", "y", "button"),
    "swipe": ("fromcoord", "tocoord", "direction", "amount"),
    "scroll": ("clicks", "x", "y"),
    "press": ("keys", "presses"),
    "hotkey": (),
    "keydown": ("key",),
    "keyup": ("key",),
    "write": ("message",),
    "selectoption": ("x", "y", "value"),
    "wait": ("seconds",),
    "openurl": ("url",),
    "gobackward": (),
    "goforward": (),
    "response": ("answer",),
    "terminate": ("status", "info"),
    "calluser": ("message",),
}


ALIASES = {
    "answer": "response",
    "type": "write",
    "typewrite": "write",
    "goback": "gobackward",
    "back": "gobackward",
    "forward": "goforward",
    "navigate": "openurl",
    "goto": "openurl",
    "key": "press",
    "finish": "terminate",
    "leftclick": "click",
    "hover": "moveto",
    "select": "selectoption",
}


def parse(reply: str, grid: Size, viewport: Size) -> Turn:
    """A reply in the ScaleCUA grammar as a Turn. Never raises.

    grid: (width, height) of the resized image the model saw, in whose pixels it gives coordinates; viewport: (width,
    height) in CSS pixels. A call that cannot be read is skipped with a warning; the turn has an error only where no
    call at all could be read. `write` replaces what the field holds, which is our actor's convention.

    >>> reply = "<operation>\\nOpen menu\\n</operation>\\n<action>\\nclick(x=644, y=364)\\n</action>"
    >>> turn = parse(reply, (1288, 728), (1280, 720))
    >>> turn.operation, turn.actions[0].x, turn.actions[0].y
    ('Open menu', 640.0, 360.0)
    """
    reply = plain(reply)[:MAX_REPLY]
    thought, operation, block = (_tag(reply, name) for name in ("think", "operation", "action"))
    warnings: list[str] = []
    if block is None:
        block = reply.rsplit("</operation>", 1)[-1]
        warnings.append("no <action> tag")
    place = on_page(grid, viewport, warnings, fractions=True)
    found = _json_calls(block) or calls(block, known, warnings)
    return turn_of(
        found,
        lambda name, given: [call_action(name, given, place, viewport)],
        block,
        warnings,
        thought or "",
        operation or "",
    )


def turn_of(
    found: Iterable[tuple[str, Arguments | Bad]],
    act: Callable[[str, Arguments], list[Action]],
    block: str,
    warnings: list[str],
    thought: str = "",
    operation: str = "",
) -> Turn:
    """A Turn of the calls that `act` can make actions of; of the first error where it can of none."""
    actions: list[Action] = []
    errors: list[Error] = []
    for number_, (name, given) in enumerate(found):
        if number_ == MAX_CALLS:
            warnings.append(f"more than {MAX_CALLS} calls in a turn")
            break
        try:
            if isinstance(given, Bad):
                raise given
            actions += act(name, given)
        except Bad as bad:
            errors.append(bad.error)
            warnings.append(f"{name}: {bad}")
    said = dict(thought=thought.strip(), operation=" ".join(operation.split())[:300])
    if actions:
        return Turn(tuple(actions), warnings=tuple(warnings), **said)
    unknown: Error = (
        "unknown_action" if re.search(r"\w\(", block) else "no_action" if block.strip() else "empty"
    )
    return Turn(error=errors[0] if errors else unknown, warnings=tuple(warnings), **said)


def known(name: str) -> bool:
    return name in PARAMETERS or name in ALIASES


def _tag(reply: str, name: str) -> str | None:
    """What stands in <name>..</name>, or after an opening tag that is never closed; None without one."""
    start = reply.find(f"<{name}>")
    if start < 0:
        return None
    inside = reply[start + len(name) + 2 :]
    ends = [
        at for tag in (f"</{name}>", "<operation>", "<action>") if (at := inside.find(tag)) >= 0
    ]
    return inside[: min(ends)] if ends else inside


def _json_calls(block: str) -> list[tuple[str, Arguments]]:
    """Calls written as {"name": .., "arguments": {..}}, one or a list of them, as tool-calling models write them."""
    text = re.sub(r"^\s*(?:```\w*\s*)?", "", block)
    if text[:1] not in ("{", "["):
        return []
    try:
        value = literal(text, 0)[0]
    except Bad:
        return []
    found = []
    for call in value if isinstance(value, list) else [value]:
        if isinstance(call, dict) and known(name := fold(call.get("name", call.get("action", "")))):
            given = call.get(
                "arguments", {k: v for k, v in call.items() if k not in ("name", "action")}
            )
            found.append(
                (
                    name,
                    ([], {fold(k): v for k, v in given.items()} if isinstance(given, dict) else {}),
                )
            )
    return found


def call_action(
    name: str, arguments: Arguments, place: Callable[[object], tuple[float, float]], viewport: Size
) -> Action:
    """The action of one call. Raises Bad."""
    name = ALIASES.get(name, name)
    positional, given = arguments
    if name == "hotkey":
        given_keys = given.get(
            "keys", given.get("key", positional[0] if len(positional) == 1 else positional)
        )
        return Action("key", keys=keys(given_keys), how="chord")
    given = dict(zip(PARAMETERS[name], positional)) | given

    def spot() -> tuple[float, float]:
        x, y = given.get("x", given.get("point", given.get("coordinate"))), given.get("y")
        return place(x if isinstance(x, (list, str)) and y is None else [x, y])

    def count(key: str, most: int, default: int = 1) -> int:
        return min(most, max(1, int(number(given.get(key, default)))))

    match name:
        case "click" | "doubleclick" | "rightclick":
            button = "right" if name == "rightclick" else given.get("button", "left")
            if button not in ("left", "right", "middle"):
                raise Bad("bad_syntax", f"no such button: {str(button)[:20]}")
            return Action(
                "click",
                *spot(),
                button=button,
                count=2 if name == "doubleclick" else count("clicks", 3),
            )
        case "moveto":
            return Action("hover", *spot())
        case "dragto":
            return Action("drag", to=spot())
        case "selectoption":
            return Action("select", *spot(), option=plain(given.get("value", given.get("option"))))
        case "swipe":
            return _swipe(given, place, viewport)
        case "scroll":
            at = spot() if given.get("x") is not None else (None, None)
            return Action(
                "scroll", *at, dy=-100.0 * max(-50, min(50, number(given.get("clicks", -5))))
            )
        case "press":
            return Action(
                "key", keys=keys(given.get("keys", given.get("key"))), times=count("presses", 20)
            )
        case "keydown" | "keyup":
            return Action(
                "key",
                keys=keys(given.get("key", given.get("keys"))),
                how="down" if name == "keydown" else "up",
            )
        case "write":
            text = given.get("message", given.get("text", given.get("content")))
            if text is None:
                raise Bad("bad_syntax", "no message")
            text, submit = typed(text)
            return Action("type", text=text, submit=submit)
        case "wait":
            return Action("wait", seconds=min(10.0, max(0.0, number(given.get("seconds", 3)))))
        case "openurl":
            return Action("goto", text=plain(given.get("url")))
        case "gobackward" | "goforward":
            return Action("back" if name == "gobackward" else "forward")
        case "response":
            return Action("answer", text=plain(given.get("answer", given.get("message"))))
        case "calluser":
            return Action("ask", text=plain(given.get("message")))
        case _:
            status = (
                "success" if str(given.get("status", "success")).lower() == "success" else "failure"
            )
            return Action("stop", status=status, text=plain(given.get("info")))


def _swipe(given: dict, place: Callable[[object], tuple[float, float]], viewport: Size) -> Action:
    """A finger's swipe: up shows what is further down. With two points the page moves by their distance."""
    start = place(given["fromcoord"]) if given.get("fromcoord") else (None, None)
    if given.get("fromcoord") and given.get("tocoord"):
        to = place(given["tocoord"])
        return Action("scroll", *start, dx=start[0] - to[0], dy=start[1] - to[1])
    amount = min(1.0, max(0.0, number(given.get("amount", 0.5))))
    return scroll(str(given.get("direction", "up")), amount, viewport, start, finger=True)


def scroll(
    direction: str, amount: float, viewport: Size, at: tuple = (None, None), finger: bool = False
) -> Action:
    """A scroll by `amount` viewports toward what lies in `direction`, or as a finger moves; raises Bad."""
    ways = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}
    if direction.strip().lower() not in ways:
        raise Bad("bad_syntax", f"no such direction: {direction[:20]}")
    right, down = ways[direction.strip().lower()]
    sign = -amount if finger else amount
    return Action(
        "scroll", *at, dx=sign * right * viewport[0] + 0.0, dy=sign * down * viewport[1] + 0.0
    )


# ---- writing a reply ----


def format_call(action: Action, grid: Size, viewport: Size) -> str:
    """The ScaleCUA call for an action; `parse` reads it back. Coordinates in whole pixels of the resized image.

    >>> format_call(Action("click", 640, 360), (1288, 728), (1280, 720))
    'click(x=644, y=364)'
    """

    def at(x: float, y: float) -> str:
        return "x={}, y={}".format(*to_grid((x, y), grid, viewport))

    match action.kind:
        case "click":
            name = "rightClick" if action.button == "right" and action.count == 1 else "click"
            extra = f", clicks={action.count}" if action.count > 1 else ""
            button = (
                f", button='{action.button}'" if action.button != "left" and name == "click" else ""
            )
            return f"{name}({at(action.x, action.y)}{extra}{button})"
        case "hover" | "drag":
            return f"{'moveTo' if action.kind == 'hover' else 'dragTo'}({at(*(action.to or (action.x, action.y)))})"
        case "scroll":
            return _format_scroll(action, grid, viewport)
        case "type":
            return f"write(message={quote(action.text + chr(10) * action.submit)})"
        case "key" if action.how == "chord":
            return f"hotkey({', '.join(quote(k) for k in action.keys)})"
        case "key":
            names = (
                quote(action.keys[0])
                if len(action.keys) == 1
                else "[" + ", ".join(map(quote, action.keys)) + "]"
            )
            if action.how != "sequence":
                return f"{'keyDown' if action.how == 'down' else 'keyUp'}(key={names})"
            return f"press(keys={names}{f', presses={action.times}' if action.times > 1 else ''})"
        case "select":
            return f"select_option({at(action.x, action.y)}, value={quote(action.option)})"
        case "wait":
            return f"wait(seconds={action.seconds:g})"
        case "goto":
            return f"open_url(url={quote(action.text)})"
        case "back" | "forward":
            return "go_backward()" if action.kind == "back" else "go_forward()"
        case "answer":
            return f"response(answer={quote(action.text)})"
        case "ask":
            return f"call_user(message={quote(action.text)})" if action.text else "call_user()"
        case _:
            return f"terminate(status='{action.status}'{f', info={quote(action.text)}' if action.text else ''})"


def _format_scroll(action: Action, grid: Size, viewport: Size) -> str:
    """In one direction by a share of the viewport; along both, the distance between two points."""
    start = list(to_grid((action.x, action.y), grid, viewport)) if action.x is not None else None
    if action.dx and action.dy:
        begin = (action.x, action.y) if start else (viewport[0] / 2, viewport[1] / 2)
        ends = [
            list(to_grid(p, grid, viewport))
            for p in (begin, (begin[0] - action.dx, begin[1] - action.dy))
        ]
        return f"swipe(from_coord={ends[0]}, to_coord={ends[1]})"
    way, share = (
        ("up" if action.dy > 0 else "down", abs(action.dy) / viewport[1])
        if action.dy
        else ("left" if action.dx > 0 else "right", abs(action.dx) / viewport[0])
    )
    return f"swipe({f'from_coord={start}, ' if start else ''}direction='{way}', amount={round(share, 2)})"


def format_reply(operation: str, calls: list[str], thought: str = "") -> str:
    """A whole reply: operation and calls in their tags, with a thought before them where there is one."""
    think = f"<think>\n{thought}\n</think>\n" if thought else ""
    return (
        f"{think}<operation>\n{operation}\n</operation>\n<action>\n"
        + "\n".join(calls)
        + "\n</action>"
    )


@dataclass(frozen=True)
class Dialect:
    """parse(reply, viewport) -> Turn; write(operation, actions, viewport) -> a reply that parse reads back (raises
    ValueError for actions that the dialect lacks). answer_ends: whether an answer alone ends the episode."""

    parse: Callable[[str, Size], Turn]
    write: Callable[[str, Sequence[Action], Size], str]
    answer_ends: bool = False


def read_scalecua(reply: str, viewport: Size) -> Turn:
    return parse(reply, smart_resize(*viewport), viewport)


def write_scalecua(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    return format_reply(
        operation, [format_call(a, smart_resize(*viewport), viewport) for a in actions]
    )


OURS = Dialect(read_scalecua, write_scalecua, answer_ends=True)
