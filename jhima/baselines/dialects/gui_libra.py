"""GUI-Libra: `<thinking>..</thinking><answer>{JSON}</answer>`, one action a reply.

The 4B and 8B models give points in thousandths of the screenshot; the sentinel [-100, -100] or "none" means no point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from jhima.actions import Action, Turn, scroll, turn_of
from jhima.coordinates import Size, to_grid
from jhima.reply_reader import (
    MAX_REPLY,
    Bad,
    decode,
    fold,
    keys,
    literal,
    number,
    on_page,
    plain,
    typed,
)

GRID = (1000, 1000)


KINDS = {
    "click": "click",
    "tap": "click",
    "leftclick": "click",
    "longpress": "click",
    "select": "select",
    "write": "write",
    "type": "write",
    "input": "write",
    "keyboardpress": "key",
    "press": "key",
    "key": "key",
    "hotkey": "key",
    "scroll": "scroll",
    "swipe": "swipe",
    "wait": "wait",
    "navigateback": "back",
    "back": "back",
    "goback": "back",
    "navigate": "navigate",
    "goto": "navigate",
    "answer": "answer",
    "response": "answer",
    "terminate": "stop",
    "stop": "stop",
    "finish": "stop",
    "call": "ask",
    "calluser": "ask",
}


FIELDS = {
    "actiontype": "type",
    "type": "type",
    "action": "type",
    "actiondescription": "description",
    "description": "description",
    "actiontarget": "target",
    "value": "value",
    "text": "value",
    "point2d": "point",
    "point": "point",
    "coordinates": "point",
    "coordinate": "point",
    "coord": "point",
    "position": "point",
}


_KEY = re.compile(
    r"""['"]?\b(action_?(?:type|description|target)|value|point_2d|coordinates?|position)['"]?\s*:\s*""",
    re.I,
)


def parse(reply: str, viewport: Size) -> Turn:
    """A GUI-Libra reply as a Turn; never raises."""
    reply = plain(reply)[:MAX_REPLY]
    warnings: list[str] = []
    thought = re.search(r"<think(?:ing)?>(.*?)(?:</think(?:ing)?>|<answer>|$)", reply, re.DOTALL)
    block = (
        reply[reply.rfind("<answer>") + 8 :]
        if "<answer>" in reply
        else re.sub(r"(?s)^.*</think(?:ing)?>", "", reply)
    )
    if "<answer>" not in reply:
        warnings.append("no <answer> tag")
    block = block.split("</answer>")[0]
    said = _fields(block, warnings)
    kind = fold(said.get("type", ""))
    found = [(kind, ([], said))] if kind in KINDS else []
    place = on_page(GRID, viewport, warnings)
    turn = turn_of(
        found,
        lambda name, given: _actions(name, given[1], place, viewport, warnings),
        block,
        warnings,
        thought[1] if thought else "",
        plain(said.get("description") or said.get("target")),
    )
    if found or not block.strip():
        return turn
    error = "unknown_action" if kind else "bad_syntax" if "{" in block else "no_action"
    return Turn(error=error, thought=turn.thought, operation=turn.operation, warnings=turn.warnings)


def _fields(block: str, warnings: list[str]) -> dict[str, object]:
    """The reply's fields by their canonical names: strict JSON, else a lenient literal, else what stands between keys."""
    at = block.find("{")
    if at < 0:
        return {}
    found: object = None
    for read in (
        lambda: json.JSONDecoder(strict=False).raw_decode(block, at)[0],
        lambda: literal(block, at)[0],
    ):
        try:
            found = read()
            break
        except (ValueError, RecursionError, Bad):
            warnings.append("no strict JSON")
    if not isinstance(found, dict):
        marks = list(_KEY.finditer(block))[:20]
        ends = [m.start() for m in marks[1:]] + [len(block)]
        found = {m[1]: _loose(block[m.end() : end]) for m, end in zip(marks, ends)}
    if isinstance(found.get("action"), dict):
        found = found["action"]
    return {FIELDS[fold(k)]: v for k, v in found.items() if fold(k) in FIELDS}


def _loose(text: str) -> object:
    """A value whose quotes may not be escaped: `"O'Neil "Bob"", ` or a list, a number, None."""
    text = text.strip().rstrip("}").strip().rstrip(",").strip()
    if text[:1] in ("'", '"'):
        closing = text.rfind(text[0])
        return decode(text[1:closing] if closing > 0 else text[1:])
    try:
        return literal(text, 0)[0]
    except Bad:
        return text


def _actions(
    kind: str, said: dict, place: Callable, viewport: Size, warnings: list[str]
) -> list[Action]:
    if kind == "longpress":
        warnings.append("a long press is a click here")
    value = said.get("value")
    text = "" if plain(value).lower() == "none" else plain(value)
    point = said.get("point")
    at = None  # looked at only where it counts: an answer needs none
    if KINDS[kind] in ("click", "select", "write", "scroll", "swipe") and not _absent(point):
        at = place(point)
    match KINDS[kind]:
        case "click" | "select" if at is None:
            raise Bad("bad_point", "no point")
        case "click":
            return [Action("click", *at)]
        case "select":
            return [Action("select", *at, option=text)]
        case "write":
            words, submit = typed(text, doubled=False)
            click = [Action("click", *at)] if at else []
            return [*click, Action("type", text=words, clear=True, submit=submit)]
        case "key":
            names = keys(value)
            return [Action("key", keys=names, how="chord" if len(names) > 1 else "sequence")]
        case "scroll" | "swipe":
            return [
                scroll(
                    text or "down", 0.5, viewport, at or (None, None), finger=KINDS[kind] == "swipe"
                )
            ]
        case "wait":
            return [Action("wait", seconds=min(10.0, max(0.0, number(value if text else 3))))]
        case "navigate" if fold(text) not in ("back", "goback"):
            return [Action("goto", text=text)]
        case "back" | "navigate":
            return [Action("back")]
        case "answer":
            return [Action("answer", text=text), Action("stop", status="success")]
        case "ask":
            return [Action("ask", text=text)]
        case _:
            return [Action("stop", status="failure" if "fail" in text.lower() else "success")]


def _absent(point_2d: object) -> bool:
    """Whether point_2d says that there is no point: null, a word for it, or the sentinel."""
    text = re.sub(r"[\s()\[\]]", "", plain(point_2d)).lower()
    return text in ("none", "null", "", "-100,-100")


# ---- writing ----


def write(operation: str, actions: Sequence[Action], viewport: Size) -> str:
    """A reply that `parse` reads back: one action, or a click with the type or answer with the stop that belongs to it.

    Raises ValueError for an action that the dialect lacks.

    >>> write("Menu", [Action("click", 640, 360)], (1280, 720)).splitlines()[1]
    '{"action_description": "Menu", "action_type": "Click", "value": "None", "point_2d": [500, 500]}'
    """
    point, value = [-100, -100], "None"
    last = actions[-1]
    if (
        [a.kind for a in actions] == ["click", "type"]
        or last.kind in ("click", "select", "scroll")
        and last.x is not None
    ):
        point = list(to_grid((actions[0].x, actions[0].y), GRID, viewport))
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
            kind = "Scroll"
            value = (
                ("right" if last.dx > 0 else "left")
                if last.dx
                else ("down" if last.dy > 0 else "up")
            )
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
    said = {"action_description": operation, "action_type": kind, "value": value, "point_2d": point}
    text = json.dumps(said, ensure_ascii=False).replace(
        "</", r"<\/"
    )  # never the closing tag within
    return f"<answer>\n{text}\n</answer>"
