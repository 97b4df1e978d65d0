"""Every dialect's replies to canonical actions, with deviations that published readers lose."""

from __future__ import annotations

import doctest
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import dialect_writers
import pytest
from dialect_writers import WRITERS

import jhima.baselines.dialects.gui_libra
import jhima.baselines.dialects.planner
import jhima.baselines.dialects.uitars
import jhima.reply_reader
from jhima.actions import Action, Turn
from jhima.baselines.dialects import DIALECTS, PARSERS, planner

VIEWPORT = (1280, 720)


@pytest.mark.parametrize(
    "module",
    [
        jhima.reply_reader,
        jhima.coordinates,
        jhima.baselines.dialects.uitars,
        jhima.baselines.dialects.gui_libra,
        dialect_writers,
    ],
)
def test_worked_examples(module):
    tested = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tested.attempted and not tested.failed


def click(x, y, **more):
    return Action("click", x, y, **more)


def typing(text, **more):
    return Action("type", text=text, **{"clear": False} | more)


def key(*keys, how="sequence"):
    return Action("key", keys=keys, how=how)


def scroll(dy=0, dx=0, x=None, y=None):
    return Action("scroll", x, y, dx=dx, dy=dy)


OK, AGAIN = Action("stop", status="success"), Action("wait", seconds=3)
SAID = "It's \"Tom's Diner\", 4.5"
UITARS = [
    (
        "Thought: Open the search box.\nAction: "
        "click(start_box='<|box_start|>(644,364)<|box_end|>')",
        [click(640, 360)],
    ),
    ("Action: left_double(point='<point>161, 182.0</point>')", [click(160, 180, count=2)]),
    ('Thought: Sort.\nAction:click(start_box="[302, 81, 342, 101]")', [click(320, 90)]),
    (
        "Thought: Type it.\nAction: type(content='Kids' bikes (12\") l'été 東京\\n')",
        [typing("Kids' bikes (12\") l'été 東京", submit=True)],
    ),
    ("Thought: City.\nAction: type(content='London\\\\n')", [typing("London", submit=True)]),
    (
        "Thought: Fill.\nAction: "
        "click(start_box='(966,546)')\n\ntype(content='42')\n\nhotkey(key='enter')",
        [click(960, 540), typing("42"), key("Enter", how="chord")],
    ),
    (
        "Thought: Replace.\nAction: hotkey(key='ctrl+a')\ntype(content='new')",
        [key("Control", "a", how="chord"), typing("new")],
    ),
    (
        "Thought: Next column.\nAction: scroll(point='<point>644 364</point>', "
        "direction='right', amount=200",
        [scroll(dx=200, x=640, y=360)],
    ),
    (f"Thought: Done.\nAction: finished(content='{SAID}')", [Action("answer", text=SAID), OK]),
    ("Thought: Click it.\nAction: click(start_box='=')", "bad_point"),
    (
        "```\nThought: The Action: button is grey.\nAction: click(start_box='(644,364)')\n```",
        [click(640, 360)],
    ),
    ("Action: click(644, 364)", [click(640, 360)]),
    ("Action: type(content='a', start_box='(644,364)')", [click(640, 360), typing("a")]),
    ("click(start_box='(644,364)')", [click(640, 360)]),
    ("Action: type(content='first\nsecond')", [typing("first\nsecond")]),
    (
        "Action: wait()\nAction: hotkey(key='pagedown')",
        [Action("wait", seconds=5), key("PageDown", how="chord")],
    ),
    (
        "Action: press(key='shift')\n\nrelease(key='shift')",
        [key("Shift", how="down"), key("Shift", how="up")],
    ),
    ("Action: hotkey(key='hyper x')", "bad_key"),
    ("Action: fly(x=1)", "unknown_action"),
    ("Thought: Hm.", "no_action"),
    (" ", "empty"),
]
UITARS_72B = [
    ("Thought: 点击搜索框。\nAction: click(start_box='(500,500)')", [click(640, 360)]),
    (
        "Thought: Menu.\nAction: right_single(start_box='<|box_start|>(250,250)<|box_end|>')",
        [click(320, 180, button="right")],
    ),
    (
        "Reflection: The menu stayed shut.\nAction_Summary: Hover over it.\nAction: "
        "hover(start_box='(250,500)')",
        [Action("hover", 320, 360)],
    ),
    ("Thought: Tab.\nAction: click(start_box='(240,490)(260,510)')", [click(320, 360)]),
    (
        "Thought: Slide.\nAction: drag(start_box='(250,500)', end_box='(750,500)')",
        [Action("drag", 320, 360, to=(960, 360))],
    ),
    ("Thought: More.\nAction: scroll(direction='down')", [scroll(500)]),
    (
        "Thought: Echo.\nAction: type(content='Action: wait() # note')",
        [typing("Action: wait() # note")],
    ),
    ("Thought: Edge.\nAction: click(start_box='(1004,500)')", [click(1279, 360)]),
    ("Thought: Need a password.\nAction: call_user()", [Action("ask")]),
    ("Thought: 完成。\nAction：finished()", [OK]),
    (f"Action: click(start_box='({','.join(map(str, range(5000)))}", "bad_point"),
]
SCALECUA = [
    (
        "<think>\n..\n</think>\n<operation>\nClick the search "
        "field\n</operation>\n<action>\nclick(x=644, y=364)\n</action>",
        [click(640, 360)],
    ),
    ("<operation>Open menu</operation><action>click(x=0.5, y=0.25)</action>", [click(640, 180)]),
    (
        '<operation>Type it</operation><action>\nclick(x=161, y=182)\nwrite(message="it\'s here")',
        [click(160, 180), typing("it's here")],
    ),
    (
        "<operation>Post</operation>\n<action>\nwrite(message='He said \"go (now)\", it's "
        "fine\\n')\n</action>",
        [typing('He said "go (now)", it\'s fine', submit=True)],
    ),
    (
        '<operation>Note</operation>\n<action>\nwrite(message="line 1\nline 2")\n</action>',
        [typing("line 1\nline 2")],
    ),
    (
        "<operation>Scroll the list</operation>\n<action>\nswipe(from_coord=[644, 546], "
        "to_coord=[644, 364])\n</action>",
        [scroll(180, x=640, y=540)],
    ),
    (
        "<operation>Back to top</operation>\n<action>\nswipe(direction='down', "
        "amount=0.3)\n</action>",
        [scroll(-216)],
    ),
    (
        "<operation>Clear</operation>\n<action>\nhotkey('ctrl+a')\npress(keys=['Delete', "
        "'Enter'])\n</action>",
        [key("Control", "a", how="chord"), key("Delete", "Enter")],
    ),
    (
        "<operation>Report</operation>\n<action>\nresponse(answer='$1,299.00 (2 "
        "items)')\nterminate(status='success')\n</action>",
        [Action("answer", text="$1,299.00 (2 items)"), OK],
    ),
    ("<action>answer('The price is 42')</action>", [Action("answer", text="The price is 42")]),
    ("<action>click(644, 364)</action>", [click(640, 360)]),
    ('<action>{"name": "click", "arguments": {"x": 644, "y": 364}}</action>', [click(640, 360)]),
    ('<action>\n```python\nwrite(message="abc")\n```\n</action>', [typing("abc")]),
    ("<action>pyautogui.click(x=644, y=364)</action>", [click(640, 360)]),
    ('<action>type(text="abc"); press("enter")</action>', [typing("abc"), key("Enter")]),
    (
        "<action>hotkey(['cmd','a'])\nkeyDown('shift')\nkeyUp(key='shift')</action>",
        [key("Control", "a", how="chord"), key("Shift", how="down"), key("Shift", how="up")],
    ),
    (
        "<action># click(x=1, y=2) would miss\nselect_option(x=644, y=364, "
        "value='Newest')\ncall_user()</action>",
        [Action("select", 640, 360, option="Newest"), Action("ask")],
    ),
]
LIBRA = [
    (
        '<thinking>..</thinking>\n<answer>\n{"action_description": "Click Reports", '
        '"action_type": "Click", "value": "None", '
        '"point_2d": [500, 250]}\n</answer>',
        [click(640, 180)],
    ),
    (
        '<thinking>..</thinking>\n<answer>\n{"action_type": "Click", "action_description": '
        '"Tab", "value": "None", "point_2d": [250, 500]}',
        [click(320, 360)],
    ),
    (
        '<answer>{"action_description": "Name", "action_type": "Write", "value": "O\'Neil '
        '\\"Bob\\"", "point_2d": [500, 500]}</answer>',
        [click(640, 360), typing('O\'Neil "Bob"', clear=True)],
    ),
    (
        '<answer>{"action_description": "Type", "action_type": "Write", "value": "a\nb", '
        '"point_2d": [-100, -100]}</answer>',
        [typing("a\nb", clear=True)],
    ),
    (
        '<answer>{"action_description": "Down", "action_type": "Scroll", "value": "Down", '
        '"point_2d": [-100, -100]}</answer>',
        [scroll(360)],
    ),
    (
        '<answer>{"action_description": "All", "action_type": "KeyboardPress", "value": '
        '"Ctrl+A", "point_2d": "none"}</answer>',
        [key("Control", "a", how="chord")],
    ),
    (
        "<answer>{'action_description': 'Sort', 'action_type': 'Select', 'value': 'Newest', "
        "'point_2d': (250, 250)}</answer>",
        [Action("select", 320, 180, option="Newest")],
    ),
    (
        '<answer>{"action_description": "Reply", "action_type": "Answer", "value": "3", '
        '"point_2d": null}</answer>',
        [Action("answer", text="3"), OK],
    ),
    (
        '<answer>{"action_description": "Go back", "action_type": "navigate_back", "value": '
        'null, "point_2d": null}</answer>',
        [Action("back")],
    ),
    (
        '<answer>{"action_description": "Click", "action_type": "Click", "value": "None", '
        '"point_2d": [-100, -100]}</answer>',
        "bad_point",
    ),
    (
        '<answer>{"action_type": "Write", "value": "O\'Neil "Bob"", "point_2d": [500, '
        "500]}</answer>",
        [click(640, 360), typing('O\'Neil "Bob"', clear=True)],
    ),
    ('<answer>{"action_type": "Fly", "value": "x"}</answer>', "unknown_action"),
    ("I cannot.", "no_action"),
    ("<answer>{oops</answer>", "bad_syntax"),
]
PLANNER = [
    (
        "```python\n# Click the search button\nclick(x=10, y=20)\n```",
        [Action("click", target="Click the search button")],
    ),
    ('```python\n# Type the query\nwrite(message="shoes, size 9")\n```', [typing("shoes, size 9")]),
    ("Sure.\n```\n# Open cart\nclick(x=1, y=2,)\n```", [Action("click", target="Open cart")]),
    ("```python\n# Select all\nhotkey('ctrl', 'a')\n```", [key("Control", "a", how="chord")]),
    ("```python\n# Scroll down\nscroll(clicks=-5)\n```", [scroll(500)]),
    (
        '```python\n# Pick the suggestion\npress(keys=["down", "enter"])\n```',
        [key("ArrowDown", "Enter")],
    ),
    (
        '```python\n# Answer\nresponse(answer="Yes, 3 (see #12)")\n```',
        [Action("answer", text="Yes, 3 (see #12)")],
    ),
    ("```python\nclick(x=640, y=360)\n```", "no_description"),
    (
        "```python\n# Open menu\nclick(x=1, y=1)\n# Choose item\nclick(x=2, y=2)\n```",
        [Action("click", target="Open menu")],
    ),
    ("```DONE```", [OK]),
    ("```\nFAIL\n```", [Action("stop", status="failure")]),
    ("WAIT", [AGAIN]),
    (
        '```python\npyautogui.rightClick(element="the mug")\n```',
        [Action("click", button="right", target="the mug")],
    ),
]
POINTS = [
    ("(644,364)", [(640, 360)]),
    ("<|box_start|>(644,364)<|box_end|>", [(640, 360)]),
    ("Action: click(start_box='(644,364)')", [(640, 360)]),
    ("<point>644 364</point>", [(640, 360)]),
    ("There are none.", "no_target"),
    ("<action>\nclick(x=644, y=364)\n</action>", [(640, 360)]),
    ("click(y=364, x=644)", [(640, 360)]),
    ("[624, 344, 664, 384]", [(640, 360)]),
    ("<action>\nmoveTo(x=161, y=182)\ndragTo(x=322, y=91)\n</action>", [(160, 180), (320, 90)]),
    ("(9999, 2)", "bad_point"),
    ("", "empty"),
]
TABLE = [
    (dialect, *example)
    for dialect, examples in (
        ("uitars-1.5", UITARS),
        ("uitars-72b", UITARS_72B),
        ("scalecua", SCALECUA),
        ("gui-libra", LIBRA),
        ("planner", PLANNER),
        ("uitars-grounder", POINTS),
        ("scalecua-grounder", POINTS),
        ("uitars-grounder", [("x=0.5, y=0.5", [(0.5 * 1280 / 1288, 0.5 * 720 / 728)])]),
        ("scalecua-grounder", [("x=0.5, y=0.5", [(640, 360)])]),
    )
    for example in examples
]


def same(got: Action, want: Action, tolerance: float = 0.01) -> None:
    for name, value in vars(want).items():
        here = getattr(got, name)
        if (
            isinstance(value, tuple)
            and name == "to"
            or isinstance(value, (int, float))
            and not isinstance(value, bool)
        ):
            assert here == pytest.approx(value, abs=tolerance), name
        else:
            assert here == value, name


@pytest.mark.parametrize(
    "dialect, reply, expected", TABLE, ids=[f"{d}-{n}" for n, (d, *_) in enumerate(TABLE)]
)
def test_examples(dialect, reply, expected):
    turn = PARSERS[dialect](reply, VIEWPORT)
    if isinstance(expected, str):
        assert (turn.error, turn.actions) == (expected, ())
        return
    assert turn.error is None, turn
    wanted = [Action("hover", *a) if isinstance(a, tuple) else a for a in expected]
    assert [a.kind for a in turn.actions] == [a.kind for a in wanted], turn
    for got, want in zip(turn.actions, wanted):
        same(got, want)


def test_thoughts_summaries_and_warnings():
    turn = PARSERS["uitars-72b"](UITARS_72B[2][0], VIEWPORT)
    assert (turn.thought, turn.operation) == ("The menu stayed shut.", "Hover over it.")
    assert any("clamped" in w for w in PARSERS["uitars-72b"](UITARS_72B[7][0], VIEWPORT).warnings)
    assert any(
        "suspicious_point" in w
        for w in PARSERS["uitars-grounder"]("x=0.5, y=0.5", VIEWPORT).warnings
    )
    assert any("extra_actions" in w for w in PARSERS["planner"](PLANNER[8][0], VIEWPORT).warnings)
    assert PARSERS["scalecua"](SCALECUA[0][0], VIEWPORT).operation == "Click the search field"
    assert PARSERS["gui-libra"](LIBRA[0][0], VIEWPORT).operation == "Click Reports"


def test_a_planner_s_point_is_its_grounder_s_and_never_its_own():
    def grounded(reply, point=None):
        if point is not None:
            reply += planner.GROUND + point
        return planner.parse_grounded(reply, VIEWPORT, PARSERS["scalecua-grounder"])

    for reply, x_y in ((PLANNER[0][0], (640, 360)), (PLANNER[12][0], (640, 360))):
        turn = grounded(reply, "(644,364)")
        assert (turn.actions[0].x, turn.actions[0].y) == x_y
    assert grounded(PLANNER[0][0], "There are none.").error == "no_target"
    assert grounded(PLANNER[0][0]).error == "no_target"
    assert grounded(PLANNER[1][0]).actions == (typing("shoes, size 9"),)


def test_the_command_prints_a_turn_as_json():
    def ask(*arguments, reply=b""):
        return subprocess.run(
            [sys.executable, "-m", "jhima.baselines.dialects", *arguments],
            input=reply,
            capture_output=True,
            cwd=Path(__file__).parents[2],
        )

    done = ask("uitars-1.5", "--viewport", "640x360", reply=UITARS[7][0].encode())
    assert json.loads(done.stdout) == {
        "actions": [
            {
                "kind": "scroll",
                "x": pytest.approx(640 * 644 / 644 - 0, abs=1),
                "y": pytest.approx(360, abs=1),
                "dx": 200.0,
                "dy": 0.0,
            }
        ],
        "thought": "Next column.",
        "summary": "",
        "error": None,
        "warnings": [],
    }
    assert json.loads(ask("gui-libra", reply=b"\xff\x00").stdout)["error"] == "no_action"
    bad = ask("scalecua", "--viewport", "1280")
    assert bad.returncode == 2 and b"expected WIDTHxHEIGHT" in bad.stderr


# ---- any string ----

PIECES = [
    "Thought: ",
    "Action:",
    "Action：",
    "Action: click(",
    "click(start_box='(",
    "click(x=7, y=9)",
    "press('enter')",
    "type(content='",
    "finished(content='",
    "scroll(direction='down')",
    "hotkey(key='ctrl",
    "<think>",
    "</think>",
    "<thinking>",
    "<answer>",
    "</answer>",
    "<operation>",
    "<action>",
    "</action>",
    '{"action_type": "Click", ',
    '{"action_type": "Scroll", "value": "up"}',
    '{"action_type": "Answer", ',
    '"value": "',
    '"point_2d": [',
    "<point>",
    "</point>",
    "<|box_start|>",
    "```",
    "```python\n",
    "# what\n",
    "DONE",
    "write(message='",
    "swipe(",
    "from_coord=",
    "response(",
    "terminate(",
    "(644,364)",
    "[1, 2, 3, 4]",
    "x=",
    "y=12",
    "644",
    ", ",
    "\n",
    "'",
    '"',
    ")",
    "(",
    "[",
    "]",
    "{",
    "}",
    "\\n",
    "\\",
    ";",
    "é東",
    "\ud83d",
    "0.5",
    "-",
    "+",
    "keys=",
    "`",
    "None",
    "lambda: 0",
    "\x00",
    "**",
    "=",
    "1e999",
    "True",
    " ",
    ":",
    "9" * 30,
    "\\ud800",
    "\\u00e9",
]


def strings(count: int):
    rng = random.Random(0)
    for _ in range(count):
        yield "".join(
            rng.choice(PIECES) if rng.random() < 0.97 else chr(rng.randrange(0x110000))
            for _ in range(rng.randrange(30))
        )


@pytest.mark.parametrize("dialect", PARSERS)
def test_any_string_gives_a_turn(dialect, count=3_000):
    kinds, errors = set(), set()
    for reply in strings(count):
        turn = PARSERS[dialect](reply, VIEWPORT)
        assert isinstance(turn, Turn) and (turn.actions == ()) == (turn.error is not None)
        assert len(turn.actions) <= 10 and len(turn.warnings) <= 40
        json.dumps([turn.thought, turn.operation, turn.warnings], ensure_ascii=False).encode()
        errors.add(turn.error)
        for action in turn.actions:
            kinds.add(action.kind)
            json.dumps(vars(action), ensure_ascii=False).encode()
            for x, y in [(action.x, action.y), *([action.to] if action.to else [])]:
                assert x is None or (0 <= x <= 1279 and 0 <= y <= 719)
    assert len(kinds) >= (1 if "grounder" in dialect else 2) and len(errors) >= 3


@pytest.mark.parametrize("dialect", PARSERS)
def test_no_string_takes_long(dialect):
    hostile = [
        piece * (20_000 // len(piece))
        for piece in [
            *PIECES,
            "a",
            "click(",
            ")#",
            "[[",
            "{'a':",
            "(1,2) ",
            "1,a=",
            ") \n",
            "x =",
            "(1 ",
        ]
    ]
    hostile += [
        "<action>click(" + "(" * 20_000,
        "Action: type(content='" + "a'b\n" * 5_000,
        '<answer>{"value": ' + "[" * 10_000,
        "(1,2)" + " " * 19_000,
    ]
    for reply in hostile:
        began = time.process_time()
        PARSERS[dialect](reply, VIEWPORT)
        assert time.process_time() - began < 1.0, reply[:30]


# ---- what we write we read ----

ALPHABET = list("ab ,.;:'\"\\()[]{}=#+-_/<>`é東🙂\n\t\r\x00") + [
    "click(x=1, y=2)",
    "\nwait()",
    "Action: ",
    "')",
    '")',
    "\\n",
    "```",
    "</answer>",
    "</action>",
]


def a_text(rng):
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(12)))
    while text.endswith(("\n", "\\n", "\r")):  # these mean Enter
        text = text[:-2]
    return text


def an_action(rng) -> Action:
    x, y = rng.randrange(VIEWPORT[0]), rng.randrange(VIEWPORT[1])
    text, clear = a_text(rng), rng.random() < 0.5
    return rng.choice(
        [
            lambda: click(
                x, y, button=rng.choice(["left", "right", "middle"]), count=rng.randint(1, 3)
            ),
            lambda: Action("hover", x, y),
            lambda: Action("drag", rng.choice([None, x]), None, to=(y, x / 2)),
            lambda: scroll(rng.choice([360, -720, 500])),
            lambda: scroll(0, rng.choice([640, -1280, 500]), x, y),
            lambda: typing(text, clear=clear, submit=rng.random() < 0.5),
            lambda: key("Control", rng.choice("az+"), how="chord"),
            lambda: key("ArrowDown", "Enter"),
            lambda: key("Shift", how=rng.choice(["up", "down"])),
            lambda: Action("key", keys=("Tab",), times=rng.randint(1, 20)),
            lambda: Action("select", x, y, option=text or "a"),
            lambda: Action("wait", seconds=rng.choice([0, 2.5, 5, 10])),
            lambda: Action("goto", text=text),
            lambda: Action("back"),
            lambda: Action("forward"),
            lambda: Action("answer", text=text),
            lambda: Action("ask", text=text),
            lambda: Action("stop", status=rng.choice(["success", "failure"]), text=text),
            lambda: Action(
                "click",
                target=" ".join(a_text(rng).split()).replace("```", "").strip("# ") or "the mug",
            ),
        ]
    )()


def fix(action: Action) -> Action:
    """A drag needs both coordinates of its start or none."""
    return (
        Action("drag", action.x, 100 if action.x is not None else None, to=action.to)
        if action.kind == "drag"
        else action
    )


WORDS = {
    "scalecua": {"select", "ask", "forward", "goto"},
    "jhima": {"type"},
    "uitars-1.5": {"drag", "back", "ask"},
    "uitars-72b": {"drag", "goto"},
    "gui-libra": {"select", "type", "back"},
    "planner": {"click", "answer", "type"},
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_we_write_we_read(dialect, count=2_000):
    """Random actions; those that a dialect cannot express raise ValueError.

    Points are rounded to the grid, by at most a pixel.
    """
    rng, read = random.Random(1), set()
    for _ in range(count):
        action = fix(an_action(rng))
        if lacking(dialect, action):
            continue
        try:
            reply = WRITERS[dialect]("Do it", [action], VIEWPORT)
        except ValueError:
            continue
        turn = DIALECTS[dialect].parse(reply, VIEWPORT)
        assert turn.error is None and len(turn.actions) == 1, (action, reply, turn)
        same(turn.actions[0], action, tolerance=7.5 if action.kind == "scroll" else 0.75)
        read.add(action.kind)
    assert WORDS[dialect] <= read, read


def lacking(dialect: str, action: Action) -> bool:
    """Whether the dialect cannot express the action, and reads another one back by design."""
    if bool(action.target) != (
        dialect == "planner" and action.kind in ("click", "hover", "drag", "select")
    ):
        return True
    if dialect in ("jhima", "scalecua", "planner"):
        return (
            action.kind == "type"
            and action.clear != (dialect == "jhima")
            or action.kind == "drag"
            and action.x is not None
            or action.kind == "scroll"
            and dialect == "planner"
            and action.x is not None
        )
    if (
        dialect == "gui-libra"
    ):  # half a viewport a scroll, no texts at its stops, "None" for no value
        return (
            action.kind == "scroll"
            and (action.dx, action.dy) not in ((0, 360), (640, 0))
            or action.kind == "stop"
            and bool(action.text)
            or action.kind == "goto"
            and action.text.lower() in ("", "none", "back")
        )
    return (
        action.kind in ("stop",)
        and action.status == "success"
        and bool(action.text)
        or action.kind == "key"
        and action.how == "sequence"
    )
