"""The pocket base model: what its lessons may hold, batches against the policy, the collector."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from jhima.actions import parse
from jhima.models.positions import mrope_positions
from jhima.models.vision import decode
from jhima.pocket.pretraining.lessons import (
    EARLY,
    LATE,
    Page,
    lesson,
    lessons,
    names_of,
    read_pages,
    shuffled,
)
from jhima.pocket.pretraining.pages import collect
from jhima.pocket.pretraining.pretrain import (
    GRID,
    TOKENS,
    Batch,
    Lessons,
    Step,
    answers_right,
    assemble,
    log_probs,
    positions,
    rate,
)
from jhima.pocket.tasks.generate import task_list
from jhima.policy import Sample, load_policy
from jhima.prompts import Prompt, read_plan
from jhima.sampler import Completion


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("pages")
    asyncio.run(collect(out, 24, concurrency=2, seed=0))
    return out


@pytest.fixture(scope="module")
def pages(folder):
    return read_pages(folder)


def test_the_collector_keeps_pictures_with_what_they_show_and_goes_on(folder, pages):
    rows = [json.loads(line) for line in (folder / "pages.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) >= 24 and len({row["image"] for row in rows}) == len(rows)
    assert any(row["scrambled"] for row in rows) and any(not row["scrambled"] for row in rows)
    for page in pages:
        assert Image.open(page.image).size == (336, 336)
        assert page.rows and all(0 < row["x"] < 336 and 0 < row["y"] < 336 for row in page.rows)
        assert all(row["text"].startswith(row["caption"]) for row in page.rows)
    before = (folder / "pages.jsonl").read_text("utf-8")
    asyncio.run(collect(folder, 26, concurrency=1, seed=0))
    assert (folder / "pages.jsonl").read_text("utf-8").startswith(before)


def test_no_lesson_holds_what_rl_or_evaluation_asks(pages):
    """Lessons come from fine-tuning's half of the training tasks; none is an evaluation task."""
    names, rng = names_of(pages), random.Random(0)
    kept_back = task_list("eval") + task_list("new") + task_list("rl")
    shown = {task["intent"] for task in task_list("demos")}
    evaluation = {task["intent"] for task in kept_back} - shown
    asked = [lesson(pages[0], "plan", names, rng) for _ in range(2000)]
    assert not {user.removeprefix("Plan ") for user, _ in filter(None, asked)} & evaluation
    asked = [lesson(pages[0], "finish", names, rng) for _ in range(2000)]
    assert not {user.splitlines()[0].removeprefix("Task ") for user, _ in asked} & evaluation
    assert not evaluation & {task.intent for task in names.tasks}


def test_plans_are_copied_from_their_instruction(pages):
    names, rng = names_of(pages), random.Random(1)
    intents = {task.intent for task in names.tasks}
    asked = [lesson(pages[0], "plan", names, rng) for _ in range(500)]
    for user, reply in filter(None, asked):
        numbers = set(re.findall(r"\d+", " ".join(read_plan(reply))))
        assert numbers <= set(re.findall(r"\d+", user)) or user[5:] in intents


@pytest.mark.parametrize("kind", ["click", "follow", "write"])
def test_a_click_lesson_hits_the_element_that_it_names(pages, kind):
    names, rng = names_of(pages), random.Random(2)
    asked = 0
    for page in pages:
        if found := lesson(page, kind, names, rng):
            turn = parse(found[1], (336, 336), (336, 336))
            label = (
                turn.operation.removeprefix("Click ")
                if kind != "write"
                else turn.operation.split(" in ")[-1]
            )
            x, y = turn.actions[0].x, turn.actions[0].y
            inside = [
                e
                for e in page.elements
                if e["x"] <= x < e["x"] + e["width"] and e["y"] <= y < e["y"] + e["height"]
            ]
            assert label in [e["label"] for e in inside]
            asked += 1
    assert asked >= 3


def test_a_batch_is_made_from_its_number_and_scored_as_the_policy_scores_it(pages, checkpoint):
    policy = load_policy(checkpoint, torch.device("cpu"), torch.float32, tune_vision=True).eval()
    names = names_of(pages)
    data = Lessons(policy, pages, names, size=2, steps=10, seed=0)
    batch, again = data[7], Lessons(policy, pages, names, size=2, steps=10, seed=0)[7]
    assert all(torch.equal(a, b) for a, b in zip(vars(batch).values(), vars(again).values()))
    pixels = torch.stack([decode(page.image.read_bytes()) for page in pages])
    with torch.no_grad():
        found = log_probs(policy, pixels, batch)

        rng = random.Random("0/7")  # the oracle: the same lessons, one sample at a time
        samples = []
        for _ in range(2):
            page, bands = data.picture(rng)
            png = io.BytesIO()
            Image.fromarray(assemble(pixels, torch.tensor([bands]))[0].numpy()).save(png, "PNG")
            samples += [
                Sample(
                    policy.prompt_ids(Prompt("", user, b"")),
                    png.getvalue(),
                    policy.response_ids(reply),
                )
                for user, reply in lessons(page, names, rng, early=False)
            ]
        expected = torch.cat([policy([sample]) for sample in samples])
    assert (found[len(expected) :] == 0).all() and (batch.targets[len(expected) :] == -100).all()
    torch.testing.assert_close(found[: len(expected)], expected, atol=2e-5, rtol=0)


def test_a_shuffled_page_says_where_its_rows_are(pages):
    """Every row and element has moved with its pixels, and rows of both pages are there: only
    their order is new."""
    rng, mixed, whole = random.Random(4), 0, [page for page in pages if page.bands()[0]]
    for one, other in zip(whole, whole[1:]):
        page, order = shuffled((one, other), rng)
        pixels = torch.stack([decode(p.image.read_bytes()) for p in (one, other)])
        picture = assemble(pixels, torch.tensor([[which * 12 + n for which, n in order]]))[0]
        for things in ("rows", "elements"):
            for thing in getattr(page, things):
                to = int(thing["y"] // 28)
                homes = [
                    (which, int(old["y"] // 28))
                    for which, p in enumerate((one, other))
                    for old in getattr(p, things)
                    if thing == old | {"y": thing["y"]}
                ]
                assert order[to] in homes
                which, n = order[to]
                assert torch.equal(
                    picture[to * 28 : (to + 1) * 28], pixels[which, n * 28 : (n + 1) * 28]
                )
        held = [
            sum(len([row for row in p.rows if row["y"] // 28 == n]) for n in p.bands()[0])
            for p in (one, other)
        ]
        assert len(set(order)) == 12 and len(page.rows) >= min(11, sum(held))
        mixed += len({which for which, _ in order[1:]}) == 2
    assert mixed > len(whole) / 2
    tall = Page(
        pages[0].image, [{"text": "Two lines", "caption": "", "x": 168, "y": 84}], [], False, False
    )
    assert shuffled((tall, pages[0]), rng) is None


def test_positions_of_a_batch_are_the_policys():
    for start in (0, 3, 17):
        ids = torch.full((TOKENS + 40,), 5)
        ids[start : start + TOKENS] = 9
        assert torch.equal(
            positions(torch.tensor([start]), len(ids))[:, 0], mrope_positions(ids, 9, [GRID])
        )


def test_a_step_learns_whatever_the_shape_and_padding_changes_nothing(pages, checkpoint):
    """Recorded steps need padded batches: padding changes neither the loss nor the weights."""
    after = []
    for pad in (0, 2):
        policy = load_policy(
            checkpoint, torch.device("cpu"), torch.float32, tune_vision=True
        ).train()
        batch = Lessons(policy, pages, names_of(pages), size=1, steps=10, seed=0)[3]
        B, L = batch.ids.shape
        predictor = batch.predictor // L * (L + pad) + batch.predictor % L
        wider = Batch(
            batch.bands,
            F.pad(batch.picture, (0, pad)),
            F.pad(batch.ids, (0, pad, 0, pad)),
            F.pad(batch.start, (0, pad)),
            F.pad(predictor, (0, pad)),
            F.pad(batch.targets, (0, pad), value=-100),
        )
        assert wider.shape == (B + pad, L + pad, len(batch.targets) + pad)
        pixels = torch.stack([decode(page.image.read_bytes()) for page in pages])
        step = Step(policy, pixels, torch.optim.SGD(policy.parameters(), lr=0.1))
        losses = [step(wider).item() for _ in range(3)]
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
        after.append((losses, torch.cat([p.detach().flatten() for p in policy.parameters()])))
    assert after[0][0] == pytest.approx(after[1][0], abs=1e-5)
    torch.testing.assert_close(after[0][1], after[1][1], atol=1e-5, rtol=0)


def test_lessons_and_learning_rate():
    assert set(EARLY) < set(LATE)
    assert (
        rate(0, 1000, 1.0) < 0.01
        and rate(500, 1000, 1.0) == 1.0
        and rate(800, 1000, 1.0) == pytest.approx(0.5)
    )


def test_an_answer_is_right_with_the_same_actions_inside_the_same_elements(
    pages, checkpoint, monkeypatch
):
    """The wording of its operation does not matter. One pixel beyond the element is wrong, and so
    is one more word."""
    policy, names, rng = (
        load_policy(checkpoint, torch.device("cpu"), torch.float32),
        names_of(pages),
        random.Random(3),
    )
    asked = [
        (page, *pair)
        for page in pages
        for kind in ("follow", "write", "answer", "finish")
        if (pair := lesson(page, kind, names, rng))
    ]
    said: list[str] = []
    monkeypatch.setattr(
        "jhima.pocket.pretraining.pretrain.generate",
        lambda _, requests: [Completion([], [], [], said.pop(0), False) for _ in requests],
    )

    def share(change) -> float:
        said[:] = [change(page, reply) for page, _, reply in asked]
        return sum(answers_right(policy, asked, batch=7)) / len(asked)

    def corner(beyond: int):
        def moved(page: Page, reply: str) -> str:
            def at(found: re.Match) -> str:
                x, y = int(found[1]), int(found[2])
                e = next(
                    e
                    for e in page.elements
                    if 0 <= x - e["x"] < e["width"] and 0 <= y - e["y"] < e["height"]
                )
                return f"click(x={ceil(e['x'])}, y={ceil(e['y'] + e['height']) - 1 + beyond})"

            return re.sub(r"click\(x=(\d+), y=(\d+)\)", at, reply)

        return moved

    clicks = sum("click(" in reply for _, _, reply in asked) / len(asked)
    assert len(asked) > 50 and 0.4 < clicks < 1
    assert (
        share(lambda _, reply: reply)
        == share(lambda _, reply: reply.replace("<operation>", "<operation>Now "))
        == 1
    )
    assert share(corner(0)) == 1 and share(corner(1)) == pytest.approx(1 - clicks)
    assert share(lambda _, reply: reply.replace("')", " x')")) == pytest.approx(
        sum("')" not in reply for _, _, reply in asked) / len(asked)
    )
    assert share(lambda _page, _reply: "") == 0
