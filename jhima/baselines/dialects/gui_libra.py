"""GUI-Libra: `<thinking>..</thinking><answer>{JSON}</answer>`, one action per reply.

The 4B and 8B models give points in thousandths of the screenshot; the sentinel [-100, -100] or
"none" means no point.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

from jhima import reply_reader as reader
from jhima.actions import Action, PointReader, Turn, scroll, turn_of_calls, wait
from jhima.coordinates import Point, Size
from jhima.reply_reader import Arguments, Unreadable

GRID = (1000, 1000)
# fmt: off
# Action types and JSON keys, with their folded spellings.
KINDS = reader.by_spelling({
    "click": "click tap leftclick longpress", "select": "select", "write": "write type input",
    "key": "keyboardpress press key hotkey", "scroll": "scroll", "swipe": "swipe", "wait": "wait",
    "back": "navigateback back goback", "navigate": "navigate goto", "answer": "answer response",
    "stop": "terminate stop finish", "ask": "call calluser",
})
FIELDS = reader.by_spelling({
    "type": "actiontype type action", "description": "actiondescription description",
    "target": "actiontarget", "value": "value text",
    "point": "point2d point coordinates coordinate coord position",
})
# fmt: on
_KEY = re.compile(
    r"""['"]?\b(action_?(?:type|description|target)|value|point_2d|coordinates?|position)['"]?"""
    r"\s*:\s*",
    re.I,
)


def parse(reply: str, viewport: Size) -> Turn:
    """A GUI-Libra reply as a Turn; never raises.

    >>> reply = '<answer>{"action_type": "Click", "point_2d": [500, 500]}</answer>'
    >>> parse(reply, (1280, 720))
    Turn(actions=(Action(kind='click', x=640.0, y=360.0, ...
    """
    reply = reader.as_text(reply)[: reader.MAX_REPLY]
    warnings: list[str] = []
    thought = re.search(r"<think(?:ing)?>(.*?)(?:</think(?:ing)?>|<answer>|$)", reply, re.DOTALL)
    _, tag, block = reply.rpartition("<answer>")
    if not tag:
        block = re.sub(r"(?s)^.*</think(?:ing)?>", "", reply)
        warnings.append("no <answer> tag")
    block = block.split("</answer>")[0]
    fields = _fields(block, warnings)
    kind = reader.fold(fields.get("type", ""))
    calls = [(kind, Arguments([], fields))] if kind in KINDS else []
    operation = reader.as_text(fields.get("description") or fields.get("target"))
    draft = Turn(thought=thought[1] if thought else "", operation=operation)
    read_point = partial(reader.page_point, GRID, viewport, warnings)
    read_actions = partial(_actions, read_point, viewport, warnings)
    turn = turn_of_calls(draft, block, warnings, calls, read_actions)
    if calls or not block.strip():
        return turn
    return replace(turn, error=_error_without_kind(block, kind))


def _error_without_kind(block: str, kind: str) -> reader.Error:
    if kind:
        return "unknown_action"
    return "bad_syntax" if "{" in block else "no_action"


def _fields(block: str, warnings: list[str]) -> dict[str, object]:
    """The reply's fields by the names in FIELDS.

    Strict JSON if it is any, else a lenient literal, else the texts between known keys.
    """
    start = block.find("{")
    if start < 0:
        return {}
    value = _read_object(block, start, warnings)
    if not isinstance(value, dict):
        marks = list(_KEY.finditer(block))[:20]
        ends = [mark.start() for mark in marks[1:]] + [len(block)]
        value = {mark[1]: _loose(block[mark.end() : end]) for mark, end in zip(marks, ends)}
    if isinstance(value.get("action"), dict):
        value = value["action"]
    folded = [(reader.fold(key), item) for key, item in value.items()]
    return {FIELDS[key]: item for key, item in folded if key in FIELDS}


def _read_object(block: str, start: int, warnings: list[str]) -> object:
    for decode in (json.JSONDecoder(strict=False).raw_decode, reader.literal):
        try:
            return decode(block, start)[0]
        except (ValueError, RecursionError, Unreadable):
            warnings.append("no strict JSON")
    return None


def _loose(text: str) -> object:
    """A value whose quotes may not be escaped: `"O'Neil "Bob"", ` or a list, a number, None."""
    text = text.strip().rstrip("}").strip().rstrip(",").strip()
    if text[:1] in ("'", '"'):
        return reader.unquote(text)
    try:
        return reader.literal(text, 0)[0]
    except Unreadable:
        return text


def _actions(
    read_point: PointReader, viewport: Size, warnings: list[str], kind: str, arguments: Arguments
) -> list[Action]:
    """The actions of one reply. Raises Unreadable."""
    if kind == "longpress":
        warnings.append("a long press is a click here")
    kind, value = KINDS[kind], arguments.get("value")
    text = reader.as_text(value)
    if text.lower() == "none":
        text = ""
    point = None  # read only for the kinds that use one
    if kind in ("click", "select", "write", "scroll", "swipe"):
        point = _point(arguments.get("point"), read_point)
    match kind:
        case "click" | "select" if point is None:
            raise Unreadable("bad_point", "no point")
        case "click":
            return [Action("click", *point)]
        case "select":
            return [Action("select", *point, option=text)]
        case "write":
            text, submit = reader.split_submit(text, escaped=False)
            focus = [Action("click", *point)] if point else []
            return [*focus, Action("type", text=text, clear=True, submit=submit)]
        case "key":
            keys = reader.keys(value)
            return [Action("key", keys=keys, how="chord" if len(keys) > 1 else "sequence")]
        case "scroll" | "swipe":
            share = 0.5 if kind == "scroll" else -0.5
            distance = (share * viewport[0], share * viewport[1])
            return [scroll(text or "down", distance, point or (None, None))]
        case "wait":
            return [wait(value if text else 3)]
        case "navigate" if reader.fold(text) not in ("back", "goback"):
            return [Action("goto", text=text)]
        case "back" | "navigate":
            return [Action("back")]
        case "answer":
            return [Action("answer", text=text), Action("stop", status="success")]
        case "ask":
            return [Action("ask", text=text)]
        case _:
            return [Action("stop", status="failure" if "fail" in text.lower() else "success")]


def _point(point_2d: object, read_point: PointReader) -> Point | None:
    """The point, or None for null, a word for it, or the sentinel. Raises Unreadable."""
    text = re.sub(r"[\s()\[\]]", "", reader.as_text(point_2d)).lower()
    if text in ("none", "null", "", "-100,-100"):
        return None
    return read_point(point_2d)
