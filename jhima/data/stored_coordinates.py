"""From the coordinates in stored replies to the model's pixels.

Stored are ScaleCUA's fractions of the image, and the 0-1000 grid of its box data. Pixels are those
of the resized image (`smart_resize`). Rounding is Python's: to the nearest, halves to even.
"""

from __future__ import annotations

import json
import re

from jhima.coordinates import Size, smart_resize

# In a call, strings are skipped whole, so that typed text that looks like a coordinate is kept.
_STRING = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_IN_CALL = re.compile(
    rf"(?P<string>{_STRING})|\b(?P<axis>[xy])(?P<equals>\s*=\s*)(?P<value>{_NUMBER})|"
    rf"\[\s*(?P<px>{_NUMBER})\s*,\s*(?P<py>{_NUMBER})\s*\]"
)
_ACTION = re.compile(r"(?<=<action>)(.*?)(?=</action>)", re.DOTALL)
_BOX = re.compile(r"<(box|point)>\s*(\[.*?\])\s*</\1>", re.DOTALL)
_REFERRED = re.compile(r"<ref>(.*?)</ref>\s*<(box|point)>\s*(\[.*?\])\s*</\2>", re.DOTALL)


def to_pixels(reply: str, width: int, height: int) -> str:
    """A stored reply with its coordinates in pixels of the resized image, as the model writes them.

    In calls every x, y and [x, y] pair is a coordinate, so 0, 1 and 1.0 are rewritten too.
    (ScaleCUA's loader leaves these, because its pattern asks for a leading "0." or "."; it so
    teaches x=1.0, the right edge, as a pixel at the left one.) In thoughts and operations only
    what looks like a fraction is rewritten, as upstream. Raises ValueError for a coordinate
    outside 0-1, which is in some other unit.

    >>> to_pixels("click(x=0.5, y=.25)\\nswipe(from_coord=[0.5, 0.75], amount=0.5)", 1280, 720)
    'click(x=644, y=182)\\nswipe(from_coord=[644, 546], amount=0.5)'
    >>> to_pixels("At [0.5, 0.5]: 1.<action>click(x=1.0, y=0)\\nwrite('x=0.5')</action>", 280, 280)
    "At [140, 140]: 1.<action>click(x=280, y=0)\\nwrite('x=0.5')</action>"
    """
    size = smart_resize(width, height)
    calls = _ACTION.search(reply)
    if calls is None:
        return _loose(reply, size)
    before, after = reply[: calls.start()], reply[calls.end() :]
    return _loose(before, size) + _in_calls(calls[1], size) + _loose(after, size)


def _in_calls(calls: str, size: Size) -> str:
    w, h = size

    def pixels(m: re.Match[str]) -> str:
        if m["string"]:
            return m["string"]
        if m["axis"]:
            return f"{m['axis']}{m['equals']}{_scale(m['value'], w if m['axis'] == 'x' else h)}"
        return f"[{_scale(m['px'], w)}, {_scale(m['py'], h)}]"

    return _IN_CALL.sub(pixels, calls)


def _scale(value: str, span: int) -> int:
    fraction = float(value)
    if not 0 <= fraction <= 1:
        raise ValueError(f"coordinate {value} is no fraction of the image")
    return round(fraction * span)


def _loose(text: str, size: Size) -> str:
    """Text that is no call: only what has a leading "0." or "." is a fraction."""
    w, h = size
    text = re.sub(r"\bx=(0?\.\d+)", lambda m: f"x={round(float(m[1]) * w)}", text)
    text = re.sub(r"\by=(0?\.\d+)", lambda m: f"y={round(float(m[1]) * h)}", text)
    return re.sub(
        r"\[(0?\.\d+), ?(0?\.\d+)\]",
        lambda m: f"[{round(float(m[1]) * w)}, {round(float(m[2]) * h)}]",
        text,
    )


def to_fractions(call: str, width: int, height: int) -> str:
    """The inverse for one call: whole pixels of the resized image as fractions of four decimals.

    >>> to_fractions("click(x=644, y=182)", 1280, 720)
    'click(x=0.5000, y=0.2500)'
    """
    w, h = smart_resize(width, height)
    call = re.sub(r"\bx=(\d+)\b", lambda m: f"x={int(m[1]) / w:.4f}", call)
    call = re.sub(r"\by=(\d+)\b", lambda m: f"y={int(m[1]) / h:.4f}", call)
    return re.sub(
        r"\[(\d+), (\d+)\]", lambda m: f"[{int(m[1]) / w:.4f}, {int(m[2]) / h:.4f}]", call
    )


def boxes_to_json(reply: str, width: int, height: int) -> str:
    """A gpt turn of box or point data as Qwen2.5-VL writes it: a JSON list, in resized pixels.

    Without a <ref> there is no label, and the numbers are rescaled where they stand. Raises
    ValueError for a box that is no list of two or four numbers from 0 to 1000.

    >>> print(boxes_to_json("<ref>OK</ref><box>[[0, 250, 500, 1000]]</box>", 280, 280))
    ```json
    [
    {"bbox_2d": [0, 70, 140, 280], "label": "OK"}
    ]
    ```
    >>> boxes_to_json("It is <point>[[500, 500]]</point>.", 280, 280)
    'It is [[140, 140]].'
    """
    items = []
    for label, kind, shapes in _REFERRED.findall(reply):
        name = "bbox_2d" if kind == "box" else "point_2d"
        for shape in _rescaled(shapes, kind, smart_resize(width, height)):
            items.append(json.dumps({name: shape, "label": label.strip()}, ensure_ascii=False))
    if not items:
        return boxes_in_place(reply, width, height)
    return "```json\n[\n" + ",\n".join(items) + "\n]\n```"


def boxes_in_place(text: str, width: int, height: int) -> str:
    """A turn with the numbers of its boxes and points in resized pixels, and without their tags."""

    def pixels(m: re.Match[str]) -> str:
        return json.dumps(_rescaled(m[2], m[1], smart_resize(width, height)))

    text = _BOX.sub(pixels, text)
    return re.sub(r"</?ref>", "", text)


def _rescaled(shapes: str, kind: str, size: Size) -> list[list[int]]:
    """Boxes [x, y, x, y] or points [x, y] on a 0-1000 grid, as JSON, in pixels of an image."""
    try:
        values = json.loads(shapes)
    except ValueError:
        values = []
    if values and not isinstance(values[0], list):
        values = [values]  # one shape without the outer brackets
    count = 4 if kind == "box" else 2
    if not values or not all(_is_shape(shape, count) for shape in values):
        raise ValueError(f"<{kind}> {shapes[:40]} is no list of numbers from 0 to 1000")
    spans = (*size, *size)
    rescaled = []
    for shape in values:
        rescaled.append([round(n / 1000 * span) for n, span in zip(shape, spans)])
    return rescaled


def _is_shape(shape: object, count: int) -> bool:
    if not isinstance(shape, list) or len(shape) != count:
        return False
    return all(isinstance(n, (int, float)) and 0 <= n <= 1000 for n in shape)
