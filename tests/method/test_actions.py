"""Replies to actions: composed examples of what models write, and any string at all."""

from __future__ import annotations

import doctest

import pytest

import jhima.actions
from jhima.actions import Action, format_call, format_reply, parse

GRID, VIEWPORT = (1288, 728), (1280, 720)


def test_worked_examples():
    assert doctest.testmod(jhima.actions).failed == 0


def click(x, y, **more):
    return Action("click", x, y, **more)


# Further deviations than those of the reference's table, which is in test_dialects.py.
EXAMPLES = [
    (
        "<action>\nwrite(message='it's')\nclick(x=322, y=182)\n</action>",
        [Action("type", text="it's"), click(320, 180)],
    ),
    (
        "<action>doubleClick(x=644, y=364)\nrightClick(x=644, y=364)</action>",
        [click(640, 360, count=2), click(640, 360, button="right")],
    ),
    ("<action>terminate(status='failure', info=None)</action>", [Action("stop", status="failure")]),
    ("<action>write(message='a\\n')</action>", [Action("type", text="a", submit=True)]),
    ("<action>wait()</action>", [Action("wait", seconds=3.0)]),
    ("<action>click(x=1290, y=364)</action>", [click(1279, 360)]),  # mapped, then clamped
    ("click(x=644, y=364)", [click(640, 360)]),  # no tags at all
]


@pytest.mark.parametrize("reply, actions", EXAMPLES)
def test_examples(reply, actions):
    turn = parse(reply, GRID, VIEWPORT)
    assert turn.error is None
    assert [a.kind for a in turn.actions] == [a.kind for a in actions]
    for got, want in zip(turn.actions, actions):
        for name, value in vars(want).items():
            assert getattr(got, name) == (
                pytest.approx(value, abs=0.01)
                if isinstance(value, float | int)
                and value is not None
                and not isinstance(value, bool)
                else value
            ), name


@pytest.mark.parametrize(
    "reply, error",
    [
        ("", "empty"),
        ("  \n ", "empty"),
        ("I cannot help.", "no_action"),
        ("<action>fly(x=1)</action>", "unknown_action"),
        ("<action>click(x=9999, y=2)</action>", "bad_point"),
        ("<action>click()</action>", "bad_point"),
        ("<action>click(x=float('nan'), y=1)</action>", "bad_syntax"),
        ("<action>press('a', presses='x')</action>", "bad_syntax"),
        ("<action>press('foo')</action>", "bad_key"),
        ("<action>write(message=__import__('os').getcwd())</action>", "bad_syntax"),
        ("<action>click(x=1e999, y=5)</action>", "bad_point"),
    ],
)
def test_errors_have_a_class(reply, error):
    turn = parse(reply, GRID, VIEWPORT)
    assert turn.error == error and turn.actions == ()


@pytest.mark.parametrize(
    "action",
    [
        click(640, 360),
        click(0, 0),
        click(1279, 719, count=2),
        click(5, 5, button="right"),
        click(640, 360, button="middle"),
        Action("hover", 100, 100),
        Action("drag", to=(320.0, 180.0)),
        Action("scroll", dy=360.0),
        Action("scroll", dx=-640.0),
        Action("scroll", 640.0, 360.0, dy=-180.0),
        Action("type", text='it\'s "quoted"\nand (long), é', submit=True),
        Action("type", text=""),
        Action("key", keys=("Control", "a"), how="chord"),
        Action("key", keys=("ArrowDown", "Enter")),
        Action("key", keys=("Tab",), times=3),
        Action("wait", seconds=2.5),
        Action("goto", text="http://127.0.0.1/a?b=c"),
        Action("back"),
        Action("forward"),
        Action("answer", text="12 'min'"),
        Action("stop", status="success"),
        Action("stop", status="failure", text="no"),
    ],
)
def test_what_we_write_we_read(action):
    turn = parse(format_reply("Do it", [format_call(action, GRID, VIEWPORT)]), GRID, VIEWPORT)
    assert turn.operation == "Do it" and turn.error is None and len(turn.actions) == 1
    got = turn.actions[0]
    for name in vars(action):
        want = getattr(action, name)
        if name in ("x", "y", "dx", "dy") and want is not None:
            assert (
                abs(getattr(got, name) - want) <= 0.51 * 1280 / 1288
                or name in ("dx", "dy")
                and abs(getattr(got, name) - want) < 7
            )
        elif name == "to" and want:
            assert all(abs(a - b) <= 0.51 for a, b in zip(got.to, want))
        else:
            assert getattr(got, name) == want, name
