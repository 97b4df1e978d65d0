"""Each system's action language: how its replies are read, and how the same actions are written in it.

A parser takes a reply and the viewport (width, height) and returns a Turn, whatever the string. Replies of the same
model family differ by coordinate space and by what their harness does around them, so a dialect is a row of a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace

from jhima.actions import (
    OURS,
    Action,
    Dialect,
    Turn,
    read_scalecua,
    write_scalecua,
)
from jhima.baselines.dialects import gui_libra, planner, uitars
from jhima.coordinates import Size, smart_resize

THOUSAND = (1000, 1000)


def uitars_grid(viewport: Size) -> Size:
    return smart_resize(*viewport, min_pixels=78_400, max_pixels=12_845_056)


def _scalecua(reply: str, viewport: Size) -> Turn:
    """As our actor's, but `write` types at the caret and clears nothing, as in ScaleCUA's own environment."""
    turn = read_scalecua(reply, viewport)
    return replace(
        turn,
        actions=tuple(replace(a, clear=False) if a.kind == "type" else a for a in turn.actions),
    )


DIALECTS = {
    "jhima": OURS,
    "scalecua": Dialect(_scalecua, write_scalecua),
    "uitars-1.5": Dialect(
        lambda reply, size: uitars.parse(reply, uitars_grid(size), size),
        lambda operation, actions, size: uitars.write(operation, actions, uitars_grid(size), size),
    ),
    "uitars-72b": Dialect(
        lambda reply, size: uitars.parse(reply, THOUSAND, size),
        lambda operation, actions, size: uitars.write(operation, actions, THOUSAND, size),
    ),
    "gui-libra": Dialect(gui_libra.parse, gui_libra.write, answer_ends=True),
    "planner": Dialect(planner.parse_plan, planner.write_plan),
}


GROUNDERS: dict[str, Callable[[str, Size], Turn]] = {
    "uitars": lambda reply, size: planner.parse_point(reply, uitars_grid(size), size),
    "scalecua": lambda reply, size: planner.parse_point(
        reply, smart_resize(*size), size, fractions=True
    ),
}


PARSERS = {name: d.parse for name, d in DIALECTS.items()} | {
    f"{name}-grounder": g for name, g in GROUNDERS.items()
}


FIELDS = {
    "click": ("x", "y", "button", "count"),
    "hover": ("x", "y"),
    "scroll": ("x", "y", "dx", "dy"),
    "type": ("text", "clear", "submit"),
    "key": ("keys", "how", "times"),
    "select": ("x", "y", "option"),
    "wait": ("seconds",),
    "back": (),
    "forward": (),
    "answer": ("text",),
    "stop": ("status", "text"),
    "ask": ("text",),
}


def action_fields(action: Action) -> dict[str, object]:
    """An action as a JSON object: its kind and the fields that count."""
    if action.kind == "drag":
        x1, y1 = action.to or (None, None)
        fields = {"x0": action.x, "y0": action.y, "x1": x1, "y1": y1, "button": action.button}
    elif action.kind == "goto":
        fields = {"url": action.text}
    else:
        fields = {name: getattr(action, name) for name in FIELDS[action.kind]}
    return {"kind": action.kind} | fields | ({"target": action.target} if action.target else {})


def turn_fields(turn: Turn) -> dict[str, object]:
    return {
        "actions": [action_fields(a) for a in turn.actions],
        "thought": turn.thought,
        "summary": turn.operation,
        "error": turn.error,
        "warnings": list(turn.warnings),
    }


def _size(text: str) -> Size:
    width, _, height = text.partition("x")
    if not (
        width.isdecimal()
        and height.isdecimal()
        and 1 <= int(width) <= 20_000
        and 1 <= int(height) <= 20_000
    ):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT in pixels, got {text!r}")
    if max(int(width), int(height)) > 200 * min(int(width), int(height)):
        raise argparse.ArgumentTypeError(f"{text}: aspect ratio above 200")
    return int(width), int(height)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.baselines.dialects",
        description="Reads a model's reply from standard "
        "input and prints the actions in it as JSON, in CSS pixels of the viewport.",
    )
    parser.add_argument("dialect", choices=PARSERS, metavar="DIALECT", help=", ".join(PARSERS))
    parser.add_argument(
        "--viewport", type=_size, default=(1280, 720), metavar="WxH", help="(default: 1280x720)"
    )
    args = parser.parse_args()
    reply = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    print(
        json.dumps(
            turn_fields(PARSERS[args.dialect](reply, args.viewport)), ensure_ascii=False, indent=1
        )
    )
