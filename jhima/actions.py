"""Model text to browser actions: the ScaleCUA grammar, which our actor speaks too.

A reply is `<think>..</think><operation>..</operation><action>calls</action>`; each call is a Python call with
literal arguments. `parse` is total: any string gives a Turn, with warnings where it was lenient and one error
class where nothing could be read. Nothing is ever evaluated.
"""
from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import Iterator, Literal

Kind = Literal["click", "hover", "drag", "scroll", "type", "key", "wait", "goto", "back", "forward", "answer", "stop"]
Error = Literal["empty", "no_action", "bad_syntax", "unknown_action", "bad_point", "bad_key"]


@dataclass(frozen=True)
class Action:
    """One canonical action; which fields count depends on `kind`. Coordinates are CSS pixels of the viewport.

    click x, y, button, count; hover x, y; drag x, y (start; None: where the pointer is), to; scroll x, y (None: the
    centre), dx, dy (dy > 0 shows lower content); type text (replaces what the focused field holds; a final newline
    presses Enter); key keys, chord, times; wait seconds; goto text (a URL);
    answer text; stop status, text.
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
    keys: tuple[str, ...] = ()
    chord: bool = False
    times: int = 1
    seconds: float = 0.0
    status: Literal["success", "failure", ""] = ""


@dataclass(frozen=True)
class Turn:
    """What one reply asks for. `error` is None or why no action could be read."""
    actions: tuple[Action, ...] = ()
    thought: str = ""
    operation: str = ""
    error: Error | None = None
    warnings: tuple[str, ...] = ()


# ---- reading a reply ----

MAX_REPLY, MAX_CALL, MAX_ACTIONS = 20_000, 4_000, 5
# Call names with their positional parameters; the second line are aliases that models are known to write.
PARAMETERS = {
    "click": ("x", "y", "clicks", "button"), "doubleClick": ("x", "y", "button"), "rightClick": ("x", "y"),
    "moveTo": ("x", "y"), "dragTo": ("x", "y", "button"), "swipe": ("from_coord", "to_coord", "direction", "amount"),
    "scroll": ("clicks", "x", "y"), "press": ("keys", "presses"), "hotkey": (), "write": ("message",),
    "wait": ("seconds",), "open_url": ("url",), "go_backward": (), "go_forward": (), "response": ("answer",),
    "terminate": ("status", "info"),
}
ALIASES = {"answer": "response", "type": "write", "go_back": "go_backward", "back": "go_backward", "double_click": "doubleClick",
           "right_click": "rightClick", "navigate": "open_url", "goto": "open_url", "key": "press", "finish": "terminate"}
_CALL = re.compile(r"(?:pyautogui\.)?\b(" + "|".join([*PARAMETERS, *ALIASES]) + r")\s*\(")
_CALL_END = re.compile(r"\)\s*(?:#[^\n]*)?(?=$|\n|;|`|</action>)")

_KEYS = {"ctrl": "Control", "control": "Control", "ctl": "Control", "cmd": "Control", "command": "Control", "win": "Meta",
         "meta": "Meta", "super": "Meta", "alt": "Alt", "option": "Alt", "shift": "Shift", "enter": "Enter", "return": "Enter",
         "esc": "Escape", "escape": "Escape", "del": "Delete", "delete": "Delete", "backspace": "Backspace", "tab": "Tab",
         "space": "Space", "spacebar": "Space", "home": "Home", "end": "End", "insert": "Insert",
         "pageup": "PageUp", "pgup": "PageUp", "page_up": "PageUp", "pagedown": "PageDown", "pgdn": "PageDown",
         "page_down": "PageDown", **{f"f{n}": f"F{n}" for n in range(1, 13)},
         **{name: f"Arrow{way.title()}" for way in ("up", "down", "left", "right")
            for name in (way, f"arrow{way}", f"arrow_{way}", f"{way}_arrow")}}
MODIFIERS = ("Control", "Shift", "Alt", "Meta")


class _Bad(Exception):
    """Why one call gives no action; never leaves `parse`."""

    def __init__(self, error: Error, why: str) -> None:
        super().__init__(why)
        self.error: Error = error


def parse(reply: str, grid: tuple[int, int], viewport: tuple[int, int]) -> Turn:
    """A reply in the ScaleCUA grammar as a Turn. Never raises.

    grid: (width, height) of the resized image the model saw, in whose pixels it gives coordinates; viewport: (width,
    height) in CSS pixels. A call that cannot be read is skipped with a warning; the turn has an error only where no
    call at all could be read.

    >>> parse("<operation>\\nOpen menu\\n</operation>\\n<action>\\nclick(x=644, y=364)\\n</action>", (1288, 728), (1280, 720))
    Turn(actions=(Action(kind='click', x=640.0, y=360.0, to=None, button='left', count=1, dx=0.0, dy=0.0, text='', \
keys=(), chord=False, times=1, seconds=0.0, status=''),), thought='', operation='Open menu', error=None, warnings=())
    """
    reply = str(reply)[:MAX_REPLY]
    thought, operation, block = (_tag(reply, name) for name in ("think", "operation", "action"))
    warnings: list[str] = []
    if block is None:
        block = reply.rsplit("</operation>", 1)[-1]
        warnings.append("no <action> tag")
    turn = dict(thought=(thought or "").strip(), operation=" ".join((operation or "").split())[:300])
    if not reply.strip():
        return Turn(error="empty", **turn)
    actions: list[Action] = []
    errors: list[Error] = []
    for name, arguments in _calls(block):
        try:
            if len(actions) == MAX_ACTIONS:
                warnings.append(f"more than {MAX_ACTIONS} actions in a turn")
                break
            actions.append(_action(name, arguments, grid, viewport, warnings))
        except _Bad as bad:
            errors.append(bad.error)
            warnings.append(f"{name}: {bad}")
    if actions:
        return Turn(tuple(actions), warnings=tuple(warnings), **turn)
    unknown: Error = "unknown_action" if re.search(r"\w+\s*\(", block) else "no_action"
    return Turn(error=errors[0] if errors else unknown, warnings=tuple(warnings), **turn)


def _tag(reply: str, name: str) -> str | None:
    """What stands in <name>..</name>, or after an opening tag that is never closed; None without one."""
    start = reply.find(f"<{name}>")
    if start < 0:
        return None
    inside = reply[start + len(name) + 2:]
    ends = [at for tag in (f"</{name}>", "<operation>", "<action>") if (at := inside.find(tag)) >= 0]
    return inside[:min(ends)] if ends else inside


def _calls(block: str) -> Iterator[tuple[str, tuple[list, dict] | None]]:
    """The calls in a block with their literal arguments (None: unreadable), in order.

    Where a call ends is not known until its strings are: each closing parenthesis at the end of a line is tried,
    nearest first, until what lies before it is a Python call. A call that never is one (an unescaped quote) ends at
    the first of them, and its text is what stands between its outer quotes.
    """
    at = 0
    while (start := _CALL.search(block, at)) is not None:
        name = ALIASES.get(start[1], start[1])
        body = block[start.end():start.end() + MAX_CALL].split("</action>")[0]
        ends = [(m.start(), m.end()) for m in list(_CALL_END.finditer(body))[:20]]
        if not ends:                                                     # the closing parenthesis is missing
            ends = [(len(body.rstrip().rstrip("`").rstrip()), len(body))]
        read = next(((end, found) for end in ends if (found := _literals(body[:end[0]])) is not None), None)
        if read is None:
            following = _CALL.search(body, body.find("\n") + 1 or len(body))
            before = [end for end in ends if following is None or end[0] < following.start()]
            end = before[-1] if before else ends[0]
            read = end, _quoted(body[:end[0]]) if name in ("write", "response") else None
        (_, stop), arguments = read
        at = start.end() + stop
        yield name, arguments


def _literals(text: str) -> tuple[list, dict] | None:
    """Positional and keyword arguments of `f(text)` if all are literals; read by Python's parser, never run."""
    for attempt in (text, text.strip().replace("\n", "\\n")):        # a line break inside a string
        try:
            with warnings.catch_warnings(action="ignore"):           # of the escapes in a model's strings
                call = ast.parse(f"f({attempt})", mode="eval").body
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                return None
            return [ast.literal_eval(a) for a in call.args], {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _quoted(text: str) -> tuple[list, dict] | None:
    """The one string argument of a call whose quotes are not escaped: from its first quote to its last."""
    opening = re.match(r"\s*(?:\w+\s*=\s*)?(['\"])", text)
    closing = text.rfind(opening[1]) if opening else -1
    if opening is None or closing < opening.end() or text[closing + 1:].strip(" ,\n)`"):
        return None
    inner = text[opening.end():closing]
    return [re.sub(r"\\([nt'\"\\])", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), inner)], {}


def _action(name: str, arguments: tuple[list, dict] | None, grid: tuple[int, int], viewport: tuple[int, int],
            warnings: list[str]) -> Action:
    if arguments is None:
        raise _Bad("bad_syntax", "arguments are not literals")
    positional, given = arguments
    if name == "hotkey":
        keys = given.get("keys", positional[0] if len(positional) == 1 else positional)
        return Action("key", keys=_keys(keys), chord=True)
    given = dict(zip(PARAMETERS[name], positional)) | given

    def point(x: object, y: object) -> tuple[float, float]:
        return _point(x, y, grid, viewport, warnings)

    match name:
        case "click" | "doubleClick" | "rightClick":
            x, y = point(given.get("x"), given.get("y"))
            button = "right" if name == "rightClick" else given.get("button", "left")
            if button not in ("left", "right", "middle"):
                raise _Bad("bad_syntax", f"no such button: {str(button)[:20]}")
            count = 2 if name == "doubleClick" else min(3, max(1, int(_number(given.get("clicks", 1)))))
            return Action("click", x, y, button=button, count=count)
        case "moveTo":
            x, y = point(given.get("x"), given.get("y"))
            return Action("hover", x, y)
        case "dragTo":
            return Action("drag", to=point(given.get("x"), given.get("y")))
        case "swipe":
            return _swipe(given, point, viewport)
        case "scroll":
            at = point(given["x"], given["y"]) if given.get("x") is not None else (None, None)
            return Action("scroll", *at, dy=-100.0 * max(-50, min(50, _number(given.get("clicks", -5)))))
        case "press":
            return Action("key", keys=_keys(given.get("keys")), times=min(20, max(1, int(_number(given.get("presses", 1))))))
        case "write":
            text = given.get("message", given.get("text", given.get("content")))
            if text is None:
                raise _Bad("bad_syntax", "no message")
            return Action("type", text=str(text))
        case "wait":
            return Action("wait", seconds=min(10.0, max(0.0, _number(given.get("seconds", 3)))))
        case "open_url":
            return Action("goto", text=str(given.get("url", "")))
        case "go_backward" | "go_forward":
            return Action("back" if name == "go_backward" else "forward")
        case "response":
            return Action("answer", text=str(given.get("answer", given.get("message", ""))))
        case _:
            status = "success" if str(given.get("status", "success")).lower() == "success" else "failure"
            return Action("stop", status=status, text=str(given.get("info") or ""))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e6:   # NaN too
        raise _Bad("bad_syntax", f"not a number: {str(value)[:20]}")
    return float(value)


def _point(x: object, y: object, grid: tuple[int, int], viewport: tuple[int, int], warnings: list[str]) -> tuple[float, float]:
    """Model coordinates to CSS pixels: pixels of the resized image, or fractions where both are floats in [0, 1]
    (training data of 0-1 floats leaks). Mapped first, then clamped: the grid may be larger than the page."""
    try:
        px, py = _number(x), _number(y)
    except _Bad as bad:
        raise _Bad("bad_point", str(bad)) from None
    fractions = isinstance(x, float) and isinstance(y, float) and 0 <= x <= 1 and 0 <= y <= 1
    scale = (1.0, 1.0) if fractions else grid
    mapped = []
    for value, span, side in ((px, scale[0], viewport[0]), (py, scale[1], viewport[1])):
        css = value / span * side
        inside = min(max(css, 0.0), side - 1.0)
        if abs(css - inside) > 0.02 * side:
            raise _Bad("bad_point", f"({str(x)[:20]}, {str(y)[:20]}) lies outside the screenshot")
        mapped.append(inside)
    if fractions:
        warnings.append("coordinates as fractions")
    return mapped[0], mapped[1]


def _swipe(given: dict, point, viewport: tuple[int, int]) -> Action:
    """A finger's swipe: up shows what is further down. With two points the page moves by their distance."""
    ends = [given.get(k) for k in ("from_coord", "to_coord")]
    for end in ends:
        if end is not None and not (isinstance(end, (list, tuple)) and len(end) == 2):
            raise _Bad("bad_point", "from_coord and to_coord are [x, y]")
    start = point(*ends[0]) if ends[0] else (None, None)
    if ends[0] and ends[1]:
        to = point(*ends[1])
        return Action("scroll", *start, dx=start[0] - to[0], dy=start[1] - to[1])
    amount = min(1.0, max(0.0, _number(given.get("amount", 0.5))))
    ways = {"up": (0, 1), "down": (0, -1), "left": (1, 0), "right": (-1, 0)}
    direction = str(given.get("direction", "up")).lower()
    if direction not in ways:
        raise _Bad("bad_syntax", f"no such direction: {direction[:20]}")
    return Action("scroll", *start, dx=ways[direction][0] * amount * viewport[0], dy=ways[direction][1] * amount * viewport[1])


def _keys(given: object) -> tuple[str, ...]:
    """Playwright's names of the keys in "ctrl+a", "ctrl a", ["ctrl", "a"]; modifiers first."""
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)) or not parts or len(parts) > 10:
        raise _Bad("bad_key", f"no keys in {str(given)[:40]!r}")
    names: list[str] = []
    for part in parts:
        part = str(part)
        single = part if len(part) == 1 else part.strip()
        for name in [single] if len(single) == 1 or single.lower() in _KEYS else re.split(r"[+\s-]+", single):
            key = _KEYS.get(name.lower(), name if len(name) == 1 and name.isprintable() else None)
            if key is None:
                raise _Bad("bad_key", f"no such key: {name[:20]!r}")
            names.append(key)
    held = [k for k in MODIFIERS if k in names]
    letters = [k.lower() if held and "Shift" not in held and len(k) == 1 else k for k in names if k not in held]
    return tuple(held + letters)


# ---- writing a reply ----

def format_call(action: Action, grid: tuple[int, int], viewport: tuple[int, int]) -> str:
    """The ScaleCUA call for an action; `parse` reads it back. Coordinates in whole pixels of the resized image.

    >>> format_call(Action("click", 640, 360), (1288, 728), (1280, 720))
    'click(x=644, y=364)'
    """
    def at(x: float, y: float) -> tuple[int, int]:
        return round(x / viewport[0] * grid[0]), round(y / viewport[1] * grid[1])

    match action.kind:
        case "click":
            x, y = at(action.x, action.y)
            name = "rightClick" if action.button == "right" else "click"
            extra = f", clicks={action.count}" if action.count > 1 else ""
            return f"{name}(x={x}, y={y}{extra})" if action.button != "middle" else f"click(x={x}, y={y}{extra}, button='middle')"
        case "hover" | "drag":
            x, y = at(*(action.to or (action.x, action.y)))
            return f"{'moveTo' if action.kind == 'hover' else 'dragTo'}(x={x}, y={y})"
        case "scroll":
            way, share = (("up" if action.dy > 0 else "down", abs(action.dy) / viewport[1]) if action.dy
                          else ("left" if action.dx > 0 else "right", abs(action.dx) / viewport[0]))
            start = f"from_coord={list(at(action.x, action.y))}, " if action.x is not None else ""
            return f"swipe({start}direction='{way}', amount={round(share, 2)})"
        case "type":
            return f"write(message={action.text!r})"
        case "key":
            if action.chord:
                return f"hotkey({', '.join(repr(k) for k in action.keys)})"
            keys = repr(action.keys[0]) if len(action.keys) == 1 else repr(list(action.keys))
            return f"press(keys={keys}{f', presses={action.times}' if action.times > 1 else ''})"
        case "wait":
            return f"wait(seconds={action.seconds:g})"
        case "goto":
            return f"open_url(url={action.text!r})"
        case "back" | "forward":
            return "go_backward()" if action.kind == "back" else "go_forward()"
        case "answer":
            return f"response(answer={action.text!r})"
        case _:
            info = f", info={action.text!r}" if action.text else ""
            return f"terminate(status='{action.status}'{info})"


def format_reply(operation: str, calls: list[str], thought: str = "") -> str:
    """A whole reply: operation and calls in their tags, with a thought before them where there is one."""
    think = f"<think>\n{thought}\n</think>\n" if thought else ""
    return f"{think}<operation>\n{operation}\n</operation>\n<action>\n" + "\n".join(calls) + "\n</action>"
