"""ScaleCUA's format and what real data gets wrong: each documented irregularity is counted."""

from __future__ import annotations

import json
import os
import random
from collections import Counter

import numpy as np
import pytest
from samples import screenshot
from scalecua import demonstrations, sample, step, write_data, write_image

from jhima.coordinates import smart_resize
from jhima.data.scalecua import (
    Annotation,
    Broken,
    in_grammar,
    irregularities,
    read_meta,
    read_row,
    read_step,
    read_trajectory,
)
from jhima.data.stored_coordinates import boxes_in_place, boxes_to_json, to_pixels
from jhima.prompts import Prompts, Subtask
from jhima.training.packing import Example
from jhima.training.sft_dataset import Batches, Supervision

CLICK = "<action>\nclick(x=0.5, y=0.25)\n</action>"
OK = sample("a.png", "<image>\nClick OK", CLICK)

# What the reference documents, as samples of action grounding: (line, why it is left out or None).
GROUNDING = [
    (OK, None),
    (sample(["a.png"], "Click OK", CLICK), None),  # no tag: put in front
    (sample("a.png", "<image>\n<image>\nClick OK", CLICK), None),  # one image, two tags
    (sample(["a.png", "a.png"], "Compare", CLICK), None),  # two images, no tag
    (sample(["a.png", "a.png"], "<image> only one", CLICK), "image tags do not match images"),
    (sample([], "<image>\nno image", CLICK), "image tags do not match images"),
    (sample(["a.png"] * 10, "<image>" * 10, CLICK), "more than 9 images"),
    (sample("a.png", "<image>\nClick OK", "click(x=0.5, y=0.25)"), "no <action>"),
    (sample("a.png", "<image>\nClick OK", "<action>\n</action>"), "no <action>"),
    (
        sample("a.png", "<image>\nClick OK", "<action>\nclick(x=1.2, y=0.25)\n</action>"),
        "coordinate outside 0-1",
    ),
    (
        sample("a.png", "<image>\nClick OK", "<action>\nclick(x=0.5, y=0.5, clicks=40)\n</action>"),
        "more than 3 clicks at once",
    ),
    (
        sample("a.png", "<image>\nClick OK", "<action>\npress(keys='see you soon')\n</action>"),
        "text in press",
    ),
    (sample("a.png", "<image>\nClick OK", CLICK, width=20), "image side below 28"),
    (
        sample("thin.png", "<image>\nClick OK", CLICK),
        "image side below 28",
    ),  # whatever the line says
    (sample("long.png", "<image>\nClick OK", CLICK), "image too long for its width"),
    (sample("none.png", "<image>\nClick OK", CLICK), "image missing"),
    (sample("text.png", "<image>\nClick OK", CLICK), "image unreadable"),
    (sample("cut.png", "<image>\nClick OK", CLICK), "image unreadable"),
    (sample("../secret.png", "<image>\nClick OK", CLICK), "image outside its root"),
    (sample("/etc/hostname", "<image>\nClick OK", CLICK), "image outside its root"),
    (sample(5, "<image>\nClick OK", CLICK), "image is no path"),
    (OK | {"video": "a.mp4"}, "video"),
    (OK | {"conversations": OK["conversations"][:1]}, "turns not human and gpt in turn"),
    (OK | {"conversations": OK["conversations"][::-1]}, "turns not human and gpt in turn"),
    (OK | {"conversations": [{"from": "human"}]}, "conversations without text"),
    (OK | {"conversations": None}, "conversations without text"),
    (sample("a.png", "<image>\n" + "word " * 3000, CLICK), "longer than 1024 tokens"),
    ("{cut short", "no JSON"),
    ("[" * 100_000, "no JSON"),
    ("[1, 2]", "no JSON object"),
]
STEP = step("t/0.png", "Buy tea", [], "Click tea", "click(x=0.5, y=0.5)")


def with_human(text: str) -> dict:
    return STEP | {"conversations": [{"from": "human", "value": text}, STEP["conversations"][1]]}


STEPS = [
    (STEP, None),
    (
        with_human("<image>\nWhat next?\n\nTask:\nBuy milk\n\nPrevious operations:\n"),
        None,
    ),  # eval's form
    (
        with_human('<image>\nTask: Buy jam\n\nPrevious operations:\nStep 16: "a"\nStep 17: "b\nc"'),
        None,
    ),  # a window
    (with_human("<image>\nBuy tea"), "no Task and Previous operations"),
    (
        with_human("<image>\nTask: Buy tea\n\nPrevious operations:\nclicked twice"),
        "history of unknown form",
    ),
    (
        with_human('<image>\nTask: Buy tea\n\nPrevious operations:\nStep 1: "a"\nStep 3: "b"'),
        "history of unknown form",
    ),
    (
        STEP | {"conversations": [STEP["conversations"][0], {"from": "gpt", "value": CLICK}]},
        "no <operation>",
    ),
    (STEP | {"image": ["t/0.png", "t/0.png"]}, "image tags do not match images"),
    (STEP | {"image": []}, "image tags do not match images"),
    ("", None),  # an empty line
]


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scalecua")
    path = write_data(
        folder,
        {
            "ground": [line for line, _ in GROUNDING],
            "steps": [line for line, _ in STEPS],
            "boxes": [
                sample(
                    "a.png",
                    "<image>\nFind <ref>OK</ref>",
                    "<ref>OK</ref><box>[[0, 0, 500, 1000]]</box>",
                ),
                sample("a.png", "<image>\nFind it", "<box>[[0, 0, 5000, 1000]]</box>"),
            ],
            "chat": [
                sample([], "Hello", "Hi", "How are you?", "Fine <|im_end|>"),
                sample("a.png", "<image>\nSay it", "x=0.5", width=None),
            ],
        },
        {
            "ground": "internvl2_5_web_grounding_v1",
            "boxes": "internvl_grounding",
            "chat": "internvl2_5",
        },
    )
    write_image(folder / "images/a.png")
    write_image(folder / "images/t/0.png")
    write_image(folder / "images/thin.png", width=20)
    write_image(folder / "images/long.png", width=28, height=28 * 201)
    (folder / "images/text.png").write_text("no image")
    (folder / "images/cut.png").write_bytes(screenshot(0)[:5000])
    write_image(folder / "secret.png")
    return path


def test_every_irregularity_is_counted_by_its_reason(meta, policy):
    samples = Supervision(policy, read_meta(meta), None, "actor", max_length=1024)
    found = [samples[i] for i in range(len(samples))]
    expected = Counter(why for _, why in GROUNDING if why) + Counter({"box outside 0-1000": 1})
    assert Counter(f for f in found if isinstance(f, str)) == expected
    assert +samples.left_out == Counter(why for _, why in STEPS if why)
    good = (
        sum(why is None for _, why in GROUNDING)
        + sum(why is None for line, why in STEPS if line)
        + 1
        + 2
    )
    assert sum(isinstance(f, Example) for f in found) == good
    assert not Supervision(policy, read_meta(meta), {}, "decomposer").left_out[
        "video"
    ]  # no grounding for a decomposer


def test_an_unknown_conv_style_is_counted_under_its_name(tmp_path, policy):
    """... for both roles, and is nobody's chat: its coordinates might have to be rewritten."""
    rows = {name: [sample([], "Hello", "Hi")] * 3 for name in ("known", "odd", "none", "off")}
    styles = {"known": "internvl2_5", "odd": "internvl2_5_mobile_os_genesis", "none": "", "off": ""}
    path = write_data(tmp_path, rows, styles)
    meta = json.loads(path.read_text())
    meta["off"]["repeat_time"] = 0
    del meta["none"]["conv_style"]
    path.write_text(json.dumps(meta))
    expected = {
        "of unknown conv_style 'internvl2_5_mobile_os_genesis'": 3,
        "of unknown conv_style ''": 3,
    }
    for role, count in (("actor", 3), ("decomposer", 0)):
        samples = Supervision(policy, read_meta(path, role == "decomposer"), None, role)
        assert samples.left_out == expected and len(samples) == count
    meta["odd"]["conv_style"] = "internvl2_5"  # the name is mended: no count of before is kept
    path.write_text(json.dumps(meta))
    assert len(Supervision(policy, read_meta(path), None, "actor")) == 6


ON_THE_WEB = """\
You plan for an agent that works in a web browser. Given its task and a screenshot of the page \
it starts on, list the subtasks that lead to success.
- A subtask is one step a person would name: it ends in a new page or a visible change of the page.
- Join small actions that belong together; leave out scrolling and hovering.
- Give at most five subtasks in order, each on a line of its own, numbered, as `title: goal`."""


def test_the_decomposers_prompt_names_the_platform(tmp_path, policy, monkeypatch):
    """As the actor's does; the web's is, byte for byte, the one that it plays with."""
    monkeypatch.setattr(policy, "prompts", Prompts())
    kinds = {
        "web_navigation": "in a web browser",
        "mind2web_navigation": "in a web browser",
        "windows_planning_cot": "on Windows",
        "mac_navigation": "on macOS",
        "ubuntu_navigation": "on Linux",
        "android_planning_cot": "on Android",
        "mobile_navigation": "on a phone",
        "desktop_navigation": "on a desktop computer",
    }
    rows = {name: [step("a.png", "Do it", [], "Click", "click(x=0.5, y=0.5)")] for name in kinds}
    write_image(tmp_path / "images/a.png")
    meta = write_data(tmp_path, rows, {name: f"internvl2_5_{name}_v1" for name in kinds})
    annotations = {
        f"{name}/.": Annotation(f"{name}/.", [Subtask("Open it")], None) for name in kinds
    }
    samples = Supervision(policy, read_meta(meta, True), annotations, "decomposer")
    assert len(samples) == len(kinds)
    played = Prompts().decomposer("Do it", b"")
    assert played.system == ON_THE_WEB
    for example, (name, place) in zip(samples, kinds.items()):
        text = policy.tokenizer.decode(example.ids)
        assert f"works {place}." in text and "{" not in text
        web = "web_navigation" in name or "mind2web" in name
        assert ("page" in text) == web and ("screen it starts on" in text) != web
        assert text.startswith(policy.tokenizer.decode(policy.prompt_ids(played))) == web


def test_labels_cover_the_replies_and_nothing_else(meta, policy):
    """Against ChatML written by hand: learned is each assistant's text and the end of its turn."""
    samples = Supervision(policy, read_meta(meta), None, "actor")
    decode = policy.tokenizer.decode
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    seen = {}
    for example in (samples[i] for i in range(len(samples))):
        if isinstance(example, Example):
            text = decode(example.ids)
            learned = "".join(
                decode([i]) if keep else "\0" for i, keep in zip(example.ids, example.learn)
            )
            parts = [part for part in learned.split("\0") if part]
            assert parts == [
                reply.split("<|im_start|>")[0].removesuffix("\n")
                for reply in text.split("assistant\n")[1:]
            ], text
            assert example.ids.count(policy.image_pad) == len(example.pictures)
            seen[text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]] = (text, parts)
    assert seen[image + "\nClick OK"][1] == ["<action>\nclick(x=42, y=14)\n</action><|im_end|>"]
    # What looks like a special token in the data stays text: six tokens or more, not one.
    chat, replies = seen["Hello"]
    assert replies == ["Hi<|im_end|>", "Fine <|im_end|><|im_end|>"] and chat.startswith(
        "<|im_start|>system\nYou are a helpful"
    )
    assert seen[image + "\nSay it"][1] == ["x=0.5<|im_end|>"]  # no grounding: nothing rewritten
    box = '```json\n[\n{"bbox_2d": [0, 0, 42, 56], "label": "OK"}\n]\n```<|im_end|>'
    assert seen[image + "\nFind OK"][1] == [box]
    assert any(
        parts[0].endswith("click(x=42, y=28)\n</action><|im_end|>") for _, parts in seen.values()
    )
    assert any("\na\nb c\n" in user for user in seen)  # the window of a history


@pytest.mark.parametrize(
    "reply, width, height, expected",
    [
        ("click(x=0.5, y=0.5)", 1280, 720, "click(x=644, y=364)"),  # grid 1288 x 728
        (
            "click(x=0.3674, y=0.9192)",
            1440,
            3120,
            "click(x=360, y=1956)",
        ),  # grid 980 x 2128: 2,109,744 px at most
        ("click(x=.5, y=0.0001)", 336, 336, "click(x=168, y=0)"),
        ("click(x=1.0, y=1)", 336, 336, "click(x=336, y=336)"),
        ("click(x=0, y=0.0)", 336, 336, "click(x=0, y=0)"),
        ("dragTo(x = 0.25, y = 0.75)", 280, 280, "dragTo(x = 70, y = 210)"),
        (
            "swipe(from_coord=[0.5, 1.0], to_coord=[0.5,0.25], amount=0.5)",
            280,
            280,
            "swipe(from_coord=[140, 280], to_coord=[140, 70], amount=0.5)",
        ),
        (
            "write(message='x=0.5 [0.1, 0.2]')\nclick(x=0.5, y=0.5, clicks=1)",
            280,
            280,
            "write(message='x=0.5 [0.1, 0.2]')\nclick(x=140, y=140, clicks=1)",
        ),
        ("click(x=1e-05, y=5e-1)", 280, 280, "click(x=0, y=140)"),
        ("press(keys='a')\nwait(seconds=0.5)", 280, 280, "press(keys='a')\nwait(seconds=0.5)"),
    ],
)
def test_coordinates_by_hand(reply, width, height, expected):
    think = "<think>\n1.0 of x=1, at [0.5, 0.5]\n</think>\n"
    w, h = smart_resize(width, height)
    pixels = to_pixels(f"{think}<action>\n{reply}\n</action>", width, height)
    thought = f"1.0 of x=1, at [{round(w / 2)}, {round(h / 2)}]"
    assert pixels == f"<think>\n{thought}\n</think>\n<action>\n{expected}\n</action>"


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "<ref>A</ref><box>[[0, 500, 1000, 1000], [1, 2, 3, 4]]</box>",
            '```json\n[\n{"bbox_2d": [0, 140, 560, 280], "label": "A"},\n'
            '{"bbox_2d": [1, 1, 2, 1], "label": "A"}\n]\n```',
        ),
        (
            "<ref>A</ref> <point>[500, 500]</point>",
            '```json\n[\n{"point_2d": [280, 140], "label": "A"}\n]\n```',
        ),
        ("<box>[[0, 0, 250, 250]]</box> and more", "[[0, 0, 140, 70]] and more"),
        ("no box at all", "no box at all"),
    ],
)
def test_boxes_by_hand(text, expected):
    assert boxes_to_json(text, 560, 280) == expected


@pytest.mark.parametrize(
    "shape",
    [
        "<box>[[0, 0, 1001, 5]]</box>",
        "<box>[[0, 0]]</box>",
        "<point>[[1, 2, 3, 4]]</point>",
        "<box>[]</box>",
        "<box>['a']</box>",
        "<box>[[NaN, 0, 1, 1]]</box>",
        "<box>[[true, 0, 1, []]]</box>",
    ],
)
def test_a_box_of_anything_else_is_an_error(shape):
    with pytest.raises(ValueError):
        boxes_in_place(shape, 280, 280)


@pytest.mark.parametrize(
    "reply, expected",
    [
        ("hotkey(keys='ctrl+s')", "hotkey('ctrl', 's')"),
        ("key('enter')", "press(keys='enter')"),
        ("key(keys='a')", "press(keys='a')"),
        ("terminate(status='fail')", "terminate(status='failure')"),
        ("terminate(status='success', info=None)", "terminate(status='success')"),
        ("write(message='key(x)')", None),
        ("click(x=0.1, y=0.2, clicks=2)", None),
        ("click(x=0.1, y=0.2)\nwrite(message='terminate(status=\\'fail\\')')", None),
    ],
)
def test_spellings_of_released_data(reply, expected):
    """Put back into the grammar; None: what looks like one but is none stays."""
    assert (
        in_grammar(f"key('x')<action>\n{reply}\n</action>")
        == f"key('x')<action>\n{expected or reply}\n</action>"
    )


def test_reading_any_line_gives_a_row_or_a_reason():
    """Random surgery on good lines: whatever comes of it is read or Broken, nothing else."""
    rng = random.Random(0)
    junk = [None, 0, -1.5, "", "x", [], [[]], {}, {"from": "gpt"}, True, "<image>", float("nan")]
    lines = [json.dumps(row).encode() for row, _ in GROUNDING + STEPS if isinstance(row, dict)]
    read = 0
    for _ in range(3000):
        row = json.loads(rng.choice(lines))
        target = rng.choice([row, *[t for t in row["conversations"] or [] if isinstance(t, dict)]])
        target[
            rng.choice(["image", "width", "image_wh", "conversations", "from", "value", "video"])
        ] = rng.choice(junk)
        try:
            read_step(read_row(json.dumps(row).encode()))
            read += 1
        except Broken as reason:
            assert len(str(reason)) < 60
    assert read


def test_trajectories_are_found_wherever_their_steps_stand(tmp_path):
    rows = [
        step(f"app/{k}.png", task, [f"do {i}" for i in range(k)], f"do {k}", "wait(seconds=1)")
        for task in ("one", "two")
        for k in range(4)
    ]
    rows += [
        step("late/5.png", "three", ["a", "b"], "c", "response(answer='1')"),
        step("late/6.png", "three", ["a", "b", "c"], "d", "wait()"),
    ]
    random.Random(1).shuffle(rows)
    rows += [
        step("app/9.png", "one", [], "do 0", "wait(seconds=1)")
    ]  # played again: another trajectory
    (data_set,) = read_meta(write_data(tmp_path, {"s": rows}))
    found = {}
    for number, key in enumerate(data_set.lines.keys):
        try:
            found.setdefault(read_trajectory(data_set, number).task, []).append(
                read_trajectory(data_set, number)
            )
        except Broken as reason:
            assert key == "late" and "first step" in str(reason)
    assert sorted(len(t.steps) for t in found["one"]) == [1, 4] and [
        len(t.steps) for t in found["two"]
    ] == [4]
    assert [s.operation for s in found["two"][0].steps] == ["do 0", "do 1", "do 2", "do 3"]
    assert len({t.key for ts in found.values() for t in ts}) == 3 and irregularities(
        found["two"][0]
    ) == ["no end"]


def test_index_is_kept_and_made_again(tmp_path):
    path = demonstrations(tmp_path, 3)
    first = read_meta(path)[0].lines
    lines = tmp_path / "demos.jsonl"
    assert [first[i] for i in range(len(first))] == lines.read_bytes().splitlines(keepends=True)
    kept = tmp_path / "demos.jsonl.index.npz"
    when = kept.stat().st_mtime_ns
    assert (
        np.array_equal(read_meta(path)[0].lines.starts, first.starts)
        and kept.stat().st_mtime_ns == when
    )
    lines.write_bytes(
        b"\n\r\n" + lines.read_bytes().replace(b"\n", b"\r\n\n") + json.dumps(STEP).encode()
    )
    changed = read_meta(path)[0].lines
    assert (
        len(changed) == 10
        and json.loads(changed[9]) == STEP
        and changed.keys == ["t0", "t1", "t2", "t"]
    )
    for damage in (b"", kept.read_bytes()[:200], b"PK" + os.urandom(50)):
        kept.write_bytes(damage)
        assert len(read_meta(path)[0].lines) == 10
    kept.unlink()
    kept.mkdir()  # cannot be written: no matter
    assert len(read_meta(path)[0].lines) == 10


@pytest.mark.parametrize(
    "repeat, expected",
    [(0, []), (1, [0, 1, 2, 3]), (2.5, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]), (0.004, []), (0.5, 2)],
)
def test_repeat_time(tmp_path, repeat, expected):
    found = read_meta(write_data(tmp_path, {"s": [STEP] * 4}, repeat_time=repeat))
    numbers = found[0].numbers(4).tolist() if found else []
    assert numbers == expected or (len(numbers) == expected and numbers == sorted(set(numbers)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"root": 5}, "expected an object with root and annotation"),
        ({"root": "nowhere"}, "root: no such folder"),
        ({"annotation": "nowhere.jsonl"}, "no such file"),
        ({"repeat_time": "two"}, "repeat_time: expected a number"),
        ({"annotation": "s3://b/a.jsonl"}, "s3:// is not read"),
    ],
)
def test_bad_meta_files_name_the_culprit(tmp_path, change, message):
    path = write_data(tmp_path, {"s": [STEP]}, **change)
    with pytest.raises(ValueError, match=message) as error:
        read_meta(path)
    assert str(tmp_path) in str(error.value)


def test_lists_of_meta_files_and_json_lists(tmp_path):
    path = write_data(tmp_path, {"s": [STEP, STEP]}, annotation="s.json")
    (tmp_path / "s.json").write_text(json.dumps([STEP, STEP]))
    (tmp_path / "all.json").write_text(json.dumps([path.name, path.name]))
    assert [len(d.lines) for d in read_meta(tmp_path / "all.json")] == [2, 2]


def test_held_back_trajectories_are_never_trained_on(tmp_path, policy):
    path = demonstrations(tmp_path, 10)
    plans = {
        f"demos/t{t}": Annotation(f"demos/t{t}", [Subtask("Open", "it is open")], None)
        for t in range(9)
    }
    for role, each in (("decomposer", 1), ("actor", 3)):
        train, held = (
            Supervision(policy, read_meta(path), plans, role, 0.3, part)
            for part in ("train", "held back")
        )
        places = [{s.line[i] // 3 for i in range(len(s))} for s in (train, held)]
        assert (
            not places[0] & places[1]
            and places[0] | places[1] == set(range(9))
            and len(places[1]) in (2, 3)
        )
        assert len(train) + len(held) == 9 * each
        assert (
            train.left_out["trajectory without annotation"]
            + held.left_out["trajectory without annotation"]
            == 1
        )
    text = policy.tokenizer.decode(train[0].ids)
    assert (
        policy.prompts.actor_user.format(task="Open page 0", subtasks="1. Open", history="None")
        in text
    )


def test_resume_in_mid_epoch_sees_each_sample_once():
    whole = list(Batches(100, 8, epochs=3, seed=1))
    assert len(whole) == 39 and all(
        sorted(sum(whole[e * 13 : e * 13 + 13], [])) == list(range(100)) for e in range(3)
    )
    assert whole[:13] != whole[13:26]
    assert [list(Batches(100, 8, 3, 1, start=s)) for s in (0, 5, 13, 38, 39)] == [
        whole[s:] for s in (0, 5, 13, 38, 39)
    ]
    ranks = [list(Batches(100, 8, 3, 1, rank, 3, start=20)) for rank in range(3)]
    assert [sorted(sum(shares, [])) for shares in zip(*ranks)] == [
        sorted(step) for step in whole[20:]
    ]
