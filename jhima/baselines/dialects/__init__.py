"""Each system's action language: how its replies are read.

A parser takes a reply and the viewport (width, height) and returns a Turn, whatever the string is.
Replies of the same model family differ by coordinate space and by what their harness does around
them, so a dialect is a row of a table.
"""

from __future__ import annotations

from dataclasses import replace

from jhima.actions import OURS, Dialect, Turn, read_scalecua
from jhima.baselines.dialects import gui_libra, planner, uitars
from jhima.coordinates import Size, smart_resize

THOUSANDTHS = (1000, 1000)


def uitars_grid(viewport: Size) -> Size:
    """The size to which UI-TARS-1.5's processor resizes a screenshot."""
    return smart_resize(*viewport, min_pixels=78_400, max_pixels=12_845_056)


def scalecua_grid(viewport: Size) -> Size:
    return smart_resize(*viewport)


def scalecua(reply: str, viewport: Size) -> Turn:
    """As our actor's, except that `write` clears nothing, as in ScaleCUA's own environment."""
    turn = read_scalecua(reply, viewport)
    actions = [replace(a, clear=False) if a.kind == "type" else a for a in turn.actions]
    return replace(turn, actions=tuple(actions))


def uitars_15(reply: str, viewport: Size) -> Turn:
    return uitars.parse(reply, uitars_grid(viewport), viewport)


def uitars_72b(reply: str, viewport: Size) -> Turn:
    return uitars.parse(reply, THOUSANDTHS, viewport)


def uitars_point(reply: str, viewport: Size) -> Turn:
    return planner.parse_point(reply, uitars_grid(viewport), viewport)


def scalecua_point(reply: str, viewport: Size) -> Turn:
    return planner.parse_point(reply, scalecua_grid(viewport), viewport, fractions=True)


DIALECTS = {
    "jhima": OURS,
    "scalecua": Dialect(scalecua),
    "uitars-1.5": Dialect(uitars_15),
    "uitars-72b": Dialect(uitars_72b),
    "gui-libra": Dialect(gui_libra.parse, answer_ends=True),
    "planner": Dialect(planner.parse_plan),
}
# What the command and the tests read: the dialects, and a grounder's replies to a planner.
PARSERS = {name: dialect.parse for name, dialect in DIALECTS.items()}
PARSERS |= {"uitars-grounder": uitars_point, "scalecua-grounder": scalecua_point}
