"""Coordinates in stored replies: ScaleCUA's fractions, and the 0-1000 grid of its box data, to the model's pixels.

Pixels are those of the resized image (`smart_resize`). Rounding is Python's: to the nearest, halves to even.
"""

from __future__ import annotations

import json
import re

from jhima.coordinates import smart_resize

# In a call: strings are skipped whole, so that typed text which looks like a coordinate stays as it is.
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
    """A stored reply with its coordinates in pixels of the resized image, as the model is to write them.

    In calls every x, y and [x, y] pair is one, so 0, 1 and 1.0 are rewritten too. (ScaleCUA's loader, whose pattern
    asks for a leading "0." or ".", leaves them, and so teaches x=1.0, the right edge, as a pixel at the left one.) In
    thoughts and operations only what looks like a fraction is, as there. Raises ValueError for a coordinate beyond
    0-1: it is in some other unit.

    >>> to_pixels("click(x=0.5, y=.25)\\nswipe(from_coord=[0.5, 0.75], amount=0.5)", 1280, 720)
    'click(x=644, y=182)\\nswipe(from_coord=[644, 546], amount=0.5)'
    >>> to_pixels("At [0.5, 0.5]: 1 of 2.<action>click(x=1.0, y=0)\\nwrite(message='x=0.5')</action>", 280, 280)
    "At [140, 140]: 1 of 2.<action>click(x=280, y=0)\\nwrite(message='x=0.5')</action>"
    """
    w, h = smart_resize(width, height)
    calls = _ACTION.search(reply)
    if calls is None:
        return _loose(reply, w, h)
    return (
        _loose(reply[: calls.start()], w, h)
        + _IN_CALL.sub(lambda m: _in_call(m, w, h), calls[1])
        + _loose(reply[calls.end() :], w, h)
    )


def _in_call(m: re.Match[str], w: int, h: int) -> str:
    if m["string"]:
        return m["string"]
    if m["axis"]:
        return f"{m['axis']}{m['equals']}{_scale(m['value'], w if m['axis'] == 'x' else h)}"
    return f"[{_scale(m['px'], w)}, {_scale(m['py'], h)}]"


def _scale(value: str, span: int) -> int:
    fraction = float(value)
    if not 0 <= fraction <= 1:
        raise ValueError(f"coordinate {value} is no fraction of the image")
    return round(fraction * span)


def _loose(text: str, w: int, h: int) -> str:
    text = re.sub(
        r"\b(x|y)=(0?\.\d+)",
        lambda m: f"{m[1]}={round(float(m[2]) * (w if m[1] == 'x' else h))}",
        text,
    )
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
    call = re.sub(
        r"\b(x|y)=(\d+)\b", lambda m: f"{m[1]}={int(m[2]) / (w if m[1] == 'x' else h):.4f}", call
    )
    return re.sub(
        r"\[(\d+), (\d+)\]", lambda m: f"[{int(m[1]) / w:.4f}, {int(m[2]) / h:.4f}]", call
    )


def boxes_to_json(reply: str, width: int, height: int) -> str:
    """A gpt turn of box or point data as Qwen2.5-VL writes them: a JSON list in pixels of the resized image.

    Without a <ref> there is no label, and the numbers are rescaled where they stand. Raises ValueError for a box that
    is no list of two or four numbers from 0 to 1000.

    >>> print(boxes_to_json("<ref>OK</ref><box>[[0, 250, 500, 1000]]</box>", 280, 280))
    ```json
    [
    {"bbox_2d": [0, 70, 140, 280], "label": "OK"}
    ]
    ```
    >>> boxes_to_json("It is <point>[[500, 500]]</point>.", 280, 280)
    'It is [[140, 140]].'
    """
    found = _REFERRED.findall(reply)
    if not found:
        return boxes_in_place(reply, width, height)
    items = [
        json.dumps(
            {"bbox_2d" if kind == "box" else "point_2d": shape, "label": label.strip()},
            ensure_ascii=False,
        )
        for label, kind, shapes in found
        for shape in _rescaled(shapes, kind, width, height)
    ]
    return "```json\n[\n" + ",\n".join(items) + "\n]\n```"


def boxes_in_place(text: str, width: int, height: int) -> str:
    """A turn with the numbers of its boxes and points in pixels of the resized image; the tags go, labels stay."""
    text = _BOX.sub(lambda m: json.dumps(_rescaled(m[2], m[1], width, height)), text)
    return re.sub(r"</?ref>", "", text)


def _rescaled(shapes: str, kind: str, width: int, height: int) -> list[list[int]]:
    w, h = smart_resize(width, height)
    try:
        values = json.loads(shapes)
    except ValueError:
        values = None
    if isinstance(values, list) and values and not isinstance(values[0], list):
        values = [values]  # one shape without the outer brackets
    if (
        not isinstance(values, list)
        or not values
        or not all(
            isinstance(v, list)
            and len(v) == (4 if kind == "box" else 2)
            and all(isinstance(n, (int, float)) and 0 <= n <= 1000 for n in v)
            for v in values
        )
    ):
        raise ValueError(f"<{kind}> {shapes[:40]} is no list of numbers from 0 to 1000")
    return [[round(n / 1000 * (w, h)[i % 2]) for i, n in enumerate(v)] for v in values]
