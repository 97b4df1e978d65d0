"""Replies to actions: composed examples of what models write, and any string at all."""
from __future__ import annotations

import doctest
import random

import pytest

import jhima.actions
from jhima.actions import Action, Turn, format_call, format_reply, parse

GRID, VIEWPORT = (1288, 728), (1280, 720)


def test_worked_examples():
    assert doctest.testmod(jhima.actions).failed == 0


def click(x, y, **more):
    return Action("click", x, y, **more)


EXAMPLES = [
    ("<think>\n..\n</think>\n<operation>\nClick the field\n</operation>\n<action>\nclick(x=644, y=364)\n</action>", [click(640, 360)]),
    ("<operation>Menu</operation><action>click(x=0.5, y=0.25)</action>", [click(640, 180)]),
    ("<operation>Type it</operation><action>\nclick(x=161, y=182)\nwrite(message=\"it's here\")",
     [click(160, 180), Action("type", text="it's here")]),
    ("<action>\nwrite(message='He said \"go (now)\", it's fine\\n')\n</action>", [Action("type", text='He said "go (now)", it\'s fine\n')]),
    ("<action>\nwrite(message=\"line 1\nline 2\")\n</action>", [Action("type", text="line 1\nline 2")]),
    ("<action>\nswipe(from_coord=[644, 546], to_coord=[644, 364])\n</action>", [Action("scroll", 640, 540, dy=180)]),
    ("<action>\nswipe(direction='down', amount=0.3)\n</action>", [Action("scroll", dy=-216)]),
    ("<action>\nhotkey('ctrl+a')\npress(keys=['Delete', 'Enter'])\n</action>",
     [Action("key", keys=("Control", "a"), chord=True), Action("key", keys=("Delete", "Enter"))]),
    ("<action>\nresponse(answer='$1,299.00 (2 items)')\nterminate(status='success')\n</action>",
     [Action("answer", text="$1,299.00 (2 items)"), Action("stop", status="success")]),
    ("<action>answer('The price is 42')</action>", [Action("answer", text="The price is 42")]),
    ("<action>click(644, 364)</action>", [click(640, 360)]),
    ("<action>\n```python\nwrite(message=\"abc\")\n```\n</action>", [Action("type", text="abc")]),
    ("<action>pyautogui.click(x=644, y=364)</action>", [click(640, 360)]),
    ("<action>type(text=\"abc\"); press(\"enter\")</action>", [Action("type", text="abc"), Action("key", keys=("Enter",))]),
    ("<action>\nwrite(message='it's')\nclick(x=322, y=182)\n</action>", [Action("type", text="it's"), click(320, 180)]),
    ("<action>doubleClick(x=644, y=364)\nrightClick(x=644, y=364)</action>",
     [click(640, 360, count=2), click(640, 360, button="right")]),
    ("<action>terminate(status='failure', info=None)</action>", [Action("stop", status="failure")]),
    ("<action>wait()</action>", [Action("wait", seconds=3.0)]),
    ("<action>click(x=1290, y=364)</action>", [click(1279, 360)]),          # mapped, then clamped
    ("click(x=644, y=364)", [click(640, 360)]),                             # no tags at all
]


@pytest.mark.parametrize("reply, actions", EXAMPLES)
def test_examples(reply, actions):
    turn = parse(reply, GRID, VIEWPORT)
    assert turn.error is None
    assert [a.kind for a in turn.actions] == [a.kind for a in actions]
    for got, want in zip(turn.actions, actions):
        for name, value in vars(want).items():
            assert getattr(got, name) == (pytest.approx(value, abs=0.01) if isinstance(value, float | int) and value is not None
                                          and not isinstance(value, bool) else value), name


@pytest.mark.parametrize("reply, error", [
    ("", "empty"), ("  \n ", "empty"), ("I cannot help.", "no_action"), ("<action>fly(x=1)</action>", "unknown_action"),
    ("<action>click(x=9999, y=2)</action>", "bad_point"), ("<action>click()</action>", "bad_point"),
    ("<action>click(x=float('nan'), y=1)</action>", "bad_syntax"), ("<action>press('foo')</action>", "bad_key"),
    ("<action>write(message=__import__('os').getcwd())</action>", "bad_syntax"), ("<action>click(x=1e999, y=5)</action>", "bad_point"),
])
def test_errors_have_a_class(reply, error):
    turn = parse(reply, GRID, VIEWPORT)
    assert turn.error == error and turn.actions == ()


PIECES = ["click(x=7, y=9)", "press('enter')", "<think>", "</think>", "<operation>", "</operation>", "<action>", "</action>", "click(", "write(message='", "')", "x=", "y=12",
          "644", ", ", "\n", "'", '"', ")", "(", "[", "]", "swipe(", "from_coord=", "response(", "terminate(", "{", "}", "\\n", "\\", "#",
          ";", "é東", "0.5", "-", "press(keys=", "hotkey(", "`", "None", "lambda: 0", "\x00", "**", "*", "=", "1e999", "True", " "]


def test_any_string_gives_a_turn():
    rng = random.Random(0)
    kinds = set()
    for _ in range(20_000):
        reply = "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))
        turn = parse(reply, GRID, VIEWPORT)
        assert isinstance(turn, Turn) and (turn.actions == ()) == (turn.error is not None)
        for action in turn.actions:
            kinds.add(action.kind)
            assert action.x is None or (0 <= action.x <= 1279 and 0 <= action.y <= 719)
    assert {"click", "type", "key", "scroll", "answer", "stop"} <= kinds


@pytest.mark.parametrize("reply", ["<action>" + "(" * 20_000, "<action>click(" * 2_000, "<action>write('" + "a" * 100_000,
                                   "<action>write(message=" + "[" * 3_000 + "]" * 3_000 + ")", "<action>" + "write('a')b\n" * 2_000])
def test_long_replies_end_quickly(reply):
    import time
    began = time.monotonic()
    parse(reply, GRID, VIEWPORT)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("action", [
    click(640, 360), click(0, 0), click(1279, 719, count=2), click(5, 5, button="right"), click(640, 360, button="middle"),
    Action("hover", 100, 100), Action("drag", to=(320.0, 180.0)), Action("scroll", dy=360.0), Action("scroll", dx=-640.0),
    Action("scroll", 640.0, 360.0, dy=-180.0), Action("type", text="it's \"quoted\"\nand (long), é"), Action("type", text=""),
    Action("key", keys=("Control", "a"), chord=True), Action("key", keys=("ArrowDown", "Enter")), Action("key", keys=("Tab",), times=3),
    Action("wait", seconds=2.5), Action("goto", text="http://127.0.0.1/a?b=c"), Action("back"), Action("forward"),
    Action("answer", text="12 'min'"), Action("stop", status="success"), Action("stop", status="failure", text="no"),
])
def test_what_we_write_we_read(action):
    turn = parse(format_reply("Do it", [format_call(action, GRID, VIEWPORT)]), GRID, VIEWPORT)
    assert turn.operation == "Do it" and turn.error is None and len(turn.actions) == 1
    got = turn.actions[0]
    for name in vars(action):
        want = getattr(action, name)
        if name in ("x", "y", "dx", "dy") and want is not None:
            assert abs(getattr(got, name) - want) <= 0.51 * 1280 / 1288 or name in ("dx", "dy") and abs(getattr(got, name) - want) < 7
        elif name == "to" and want:
            assert all(abs(a - b) <= 0.51 for a, b in zip(got.to, want))
        else:
            assert getattr(got, name) == want, name
