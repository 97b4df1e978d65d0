"""Reads a model's reply from standard input; prints its actions as JSON, in CSS pixels."""

from __future__ import annotations

import argparse
import json
import sys

from jhima.actions import Action, Turn
from jhima.baselines.dialects import PARSERS
from jhima.coordinates import Size

# fmt: off
# The fields that count for each kind, whether or not they have their default values.
FIELDS = {
    "click": "x y button count", "hover": "x y", "scroll": "x y dx dy", "type": "text clear submit",
    "key": "keys how times", "select": "x y option", "wait": "seconds", "back": "", "forward": "",
    "answer": "text", "stop": "status text", "ask": "text",
}
# fmt: on


def action_object(action: Action) -> dict[str, object]:
    """An action as a JSON object: its kind and the fields that count."""
    if action.kind == "drag":
        x1, y1 = action.to or (None, None)
        fields = {"x0": action.x, "y0": action.y, "x1": x1, "y1": y1, "button": action.button}
    elif action.kind == "goto":
        fields = {"url": action.text}
    else:
        fields = {name: getattr(action, name) for name in FIELDS[action.kind].split()}
    if action.target:
        fields["target"] = action.target
    return {"kind": action.kind} | fields


def turn_object(turn: Turn) -> dict[str, object]:
    return {
        "actions": [action_object(action) for action in turn.actions],
        "thought": turn.thought,
        "summary": turn.operation,
        "error": turn.error,
        "warnings": list(turn.warnings),
    }


def size(text: str) -> Size:
    """(width, height) of "1280x720". Raises ArgumentTypeError."""
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdecimal() and 1 <= int(side) <= 20_000 for side in sides):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT in pixels, got {text!r}")
    width, height = map(int, sides)
    if max(width, height) > 200 * min(width, height):
        raise argparse.ArgumentTypeError(f"{text}: aspect ratio above 200")
    return width, height


def main() -> None:
    parser = argparse.ArgumentParser("python -m jhima.baselines.dialects", description=__doc__)
    parser.add_argument("dialect", choices=PARSERS, metavar="DIALECT", help=", ".join(PARSERS))
    help_text = "of the screenshot in CSS pixels (default: 1280x720)"
    parser.add_argument("--viewport", type=size, default=(1280, 720), metavar="WxH", help=help_text)
    args = parser.parse_args()
    reply = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    turn = PARSERS[args.dialect](reply, args.viewport)
    print(json.dumps(turn_object(turn), ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
