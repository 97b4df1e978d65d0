"""The baselines end to end on pocket tasks.

An OpenAI-compatible server replays composed replies.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
from dialect_writers import WRITERS
from PIL import Image
from samples import ROOT, screenshot
from stubs import CHAT, Site, reply

import evaluate
from jhima.actions import Action, parse
from jhima.baselines.agents import (
    AGENTS,
    GROUNDERS,
    Baseline,
    Past,
    failing,
    planner_grounder,
    rewrap,
)
from jhima.baselines.chat import ApiChat
from jhima.baselines.dialects import DIALECTS
from jhima.browser.chromium import Browsers
from jhima.browser.session import Observation
from jhima.coordinates import smart_resize, to_grid
from jhima.environment import Environment, load_tasks
from jhima.failures import EnvironmentFailure
from jhima.models.openai_client import ApiFailure
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import oracle
from jhima.pocket.tasks.generate import solutions
from jhima.rollout import episode

SIZE, GRID = (336, 336), smart_resize(336, 336)


@contextmanager
def endpoint(answer):
    """The URL of an OpenAI-compatible server that replies `answer(request body)`.

    That is a text, or an HTTP status with the words of an error.
    """

    def said(body: bytes) -> tuple[int, dict]:
        found = answer(json.loads(body))
        if isinstance(found, str):
            return reply(found)
        status, words = found
        return status, {"error": {"message": words}} if status != 200 else {"detail": words}

    with Site({CHAT: said}) as site:
        yield f"{site.url}/v1"


def texts(body: dict) -> str:
    return "\n".join(
        m["content"] if isinstance(m["content"], str) else part.get("text", "")
        for m in body["messages"]
        for part in ([{}] if isinstance(m["content"], str) else m["content"])
    )


def images(messages: list[dict]) -> list[tuple[int, int]]:
    return [
        Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].split(",")[1]))).size
        for m in messages
        if not isinstance(m["content"], str)
        for part in m["content"]
        if part["type"] == "image_url"
    ]


# ---- what each agent sends ----

SEEN = Observation(screenshot(0, 640, 360), "http://a/", 640, 360)
PAST = [
    Past(screenshot(n, 640, 360), f"Thought: {n}.\nAction: click(start_box='({n}, 5)')")
    for n in range(7)
]
OPERATIONS = [f"do {n}" for n in range(20)]


def test_uitars_sees_five_images_and_all_its_replies_with_their_points_in_box_tokens():
    for name, size in (("uitars-1.5", (644, 364)), ("uitars-72b", (640, 360))):
        messages = AGENTS[name].messages("Buy {point} <tea>", PAST, OPERATIONS, SEEN)
        assert images(messages) == [size] * 5
        replies = [m["content"] for m in messages if m["role"] == "assistant"]
        assert (
            replies == [rewrap(step.reply) for step in PAST]
            and "'<|box_start|>(6,5)<|box_end|>'" in replies[6]
        )
        assert (
            "Buy {point} <tea>" in texts({"messages": messages[:2]})
            and messages[-1]["role"] == "user"
        )
        assert [m["role"][0] for m in messages] == list("su" + "aaa" + "uaua" + "uaua" + "u")


@pytest.mark.parametrize(
    "name, size, line",
    [
        ("scalecua", (644, 364), "Step 1: do 5\n"),
        ("gui-libra", (640, 360), "Step 1\n Action: do 5\n"),
    ],
)
def test_the_others_see_one_image_and_fifteen_operations_numbered_from_one(name, size, line):
    messages = AGENTS[name].messages("Buy tea", PAST, OPERATIONS, SEEN)
    said = texts({"messages": messages})
    assert (
        images(messages) == [size]
        and line in said
        and "do 4" not in said
        and "Step 15" in said
        and "Buy tea" in said
    )
    assert [m["role"] for m in messages] == ["system", "user"]


# ---- end to end ----


@pytest.fixture(scope="module")
def env(loop):
    """One arena and one browser for all agents."""
    arena, browsers = PocketArena(), Browsers()
    loop.run_until_complete(arena.__aenter__())
    loop.run_until_complete(browsers.__aenter__())
    yield Environment(arena, browsers)
    loop.run_until_complete(browsers.__aexit__())
    loop.run_until_complete(arena.__aexit__())


@pytest.fixture(scope="module")
def played(loop, env):
    """One short task per site, with the oracle's [(operation, actions)] per step, at 336x336."""
    tasks, lengths = {}, {}
    for task in load_tasks("pocket"):
        plan = solutions()[task.intent].plan
        length = sum(len(subtask.moves) for subtask in plan)
        if (
            len(task.sites) == 1
            and (task.sites[0] not in tasks or length < lengths[task.sites[0]])
            and length >= 2
        ):
            tasks[task.sites[0]], lengths[task.sites[0]] = task, length

    async def solve():
        return await asyncio.gather(
            *(
                episode(env, t, 0, 0, lambda _, t=t: oracle(solutions()[t.intent]), 15)
                for t in tasks.values()
            )
        )

    done = loop.run_until_complete(solve())
    assert len(tasks) == 5 and all(e.reward == 1 for e in done)
    return [
        (task, [(s.turn.operation, list(s.turn.actions)) for s in e.steps])
        for task, e in zip(tasks.values(), done)
    ]


def replies(name: str, steps: list) -> tuple[list[str], dict[str, str]]:
    """The oracle's steps in a dialect's own words, one reply per turn.

    Also a grounder's reply to each target.
    """
    write, out, points = WRITERS["planner" if name == "planner-grounder" else name], [], {}
    for operation, actions in steps:
        actions = [
            part
            for a in actions
            for part in (
                [Action("key", keys=("Control", "a"), how="chord"), replace(a, clear=False)]
                if a.kind == "type" and name != "gui-libra"
                else [a]
            )
        ]
        if name != "planner-grounder":
            out.append(write(operation, actions, SIZE))
            continue
        for action in actions:
            if action.kind == "click":
                points[operation] = "({},{})".format(*to_grid((action.x, action.y), GRID, SIZE))
                action = Action("click", target=operation)
            out.append(write(operation, [action], SIZE))
    return out, points


@pytest.mark.parametrize("name", [*AGENTS, "planner-grounder"])
def test_each_agent_solves_a_task_of_each_site_in_its_own_words(name, played, loop, env):
    scripts = {task.intent: replies(name, steps) for task, steps in played}
    asked, kept = Counter(), []

    def answer(body):
        said = texts(body)
        kept.append(body)
        if body["model"] == "grounder":
            return next(
                point
                for _, points in scripts.values()
                for target, point in points.items()
                if said.endswith(target)
            )
        task = next(intent for intent in sorted(scripts, key=len, reverse=True) if intent in said)
        asked[task] += 1
        return scripts[task][0][min(asked[task], len(scripts[task][0])) - 1]

    async def scenario(url):
        model = ApiChat(url, "model")
        baseline = (
            Baseline(AGENTS[name], model)
            if name in AGENTS
            else Baseline(
                planner_grounder(GROUNDERS["scalecua"]),
                model,
                ("scalecua", ApiChat(url, "grounder")),
            )
        )
        return await asyncio.gather(
            *(
                episode(
                    env,
                    task,
                    0,
                    0,
                    lambda _, task=task: baseline.act(task.intent, lambda *place: 7),
                    30,
                    baseline.agent.dialect,
                )
                for task, _ in played
            )
        )

    with endpoint(answer) as url:
        episodes = loop.run_until_complete(scenario(url))
    for (task, _), e in zip(played, episodes):
        assert e.reward == 1, (name, task.intent, [(s.turn, s.note) for s in e.steps])
        assert all(s.turn.error is None for s in e.steps)
    assert all(body["temperature"] == 0 and body["seed"] == 7 for body in kept)
    assert any(body.get("repetition_penalty") == 1.05 for body in kept) == (name == "gui-libra")


# ---- replies that cannot be read, models that do not answer ----


def test_an_unreadable_reply_is_drawn_again_or_ends_the_episode():
    temperatures = []

    def answer(body):
        temperatures.append(body["temperature"])
        return "Action: wait()" if len(temperatures) == 3 else "Hm."

    async def ask(url, retries):
        act = Baseline(AGENTS["uitars-1.5"], ApiChat(url, "m")).act(
            "Buy tea", lambda *_: 1, retries
        )
        return (await act(SEEN, [], None)).text

    with endpoint(answer) as url:
        assert asyncio.run(ask(url, 3)) == "Action: wait()" and temperatures == [0.0, 1.0, 1.0]
        assert asyncio.run(ask(url, 0)) == "Hm."
    turn = failing(DIALECTS["scalecua"]).parse("Hm.", SIZE)
    assert turn.error == "no_action" and [a.status for a in turn.actions] == ["failure"]
    assert (
        failing(DIALECTS["scalecua"]).parse("<action>wait()</action>", SIZE).actions[0].kind
        == "wait"
    )


def asked_once(url: str) -> str:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    chat = ApiChat(url, "m", attempts=1)
    return asyncio.run(chat.reply(messages, {"temperature": 0, "max_tokens": 5}, 0))


@pytest.mark.parametrize("words", ["This model's maximum context length is 8", "content filter"])
def test_a_request_that_is_too_long_or_filtered_is_an_empty_reply_and_said(words, capsys):
    with endpoint(lambda body: (400, words)) as url:
        assert asked_once(url) == ""
    assert (
        f"m at {url} refused a request, which counts as an empty reply" in capsys.readouterr().err
    )


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 200])
def test_a_server_that_answers_nothing_ends_the_run(status):
    with endpoint(lambda body: (status, "At most 1 image(s) may be provided")) as url:
        with pytest.raises(
            ApiFailure, match=f"^m at {url}: (HTTP {status}: At most 1|not a reply)"
        ):
            asked_once(url)


@pytest.mark.parametrize("odd", [(500, "crashed"), (200, "no reply")])
def test_an_odd_reply_to_one_request_leaves_its_episode_unscored(odd):
    """The server answers a blank request of the same shape, so it works."""
    with endpoint(lambda body: "Hi" if texts(body) == "Hi" else odd) as url:
        with pytest.raises(EnvironmentFailure, match=f"^model: m at {url}: "):
            asked_once(url)


def test_a_model_needs_an_endpoint_unless_it_is_openais():
    assert ApiChat(None, "gpt-4o").client.url.startswith("https://api.openai.com/")
    for name in ("./checkpoint", "Qwen/Qwen2.5-VL-7B-Instruct"):
        with pytest.raises(ValueError, match=f"^{name}: expected the URL .*--agent-url"):
            ApiChat(None, name)


def test_evaluate_plays_a_baseline_and_tells_its_unreadable_replies(tmp_path, monkeypatch, capsys):
    path = tmp_path / "tasks.json"
    path.write_text(
        json.dumps(
            [
                {
                    "sites": ["map"],
                    "task_id": n,
                    "start_url": "__MAP__",
                    "intent": f"Stay {n}",
                    "eval": {
                        "eval_types": ["url_match"],
                        "reference_answers": None,
                        "reference_url": "__MAP__" + n * "/else",
                        "program_html": [],
                        "url_note": "GOLD in PRED",
                    },
                }
                for n in range(2)
            ]
        )
    )
    asked = Counter()

    def answer(body):
        asked[texts(body)] += 1
        return (
            "Thought: Hm."
            if "Stay 1" in texts(body) and len(body["messages"]) == 3
            else "Action: finished()"
        )

    with endpoint(answer) as url:
        monkeypatch.setattr(
            "sys.argv",
            [
                "evaluate.py",
                "--agent",
                "uitars-72b",
                "--agent-model",
                "m",
                "--agent-url",
                url,
                "--tasks",
                str(path),
                "--out",
                str(tmp_path / "out"),
                "--runs",
                "1",
                "--T",
                "3",
            ],
        )
        monkeypatch.chdir(ROOT)
        evaluate.main()
    printed = capsys.readouterr().out
    assert (
        "Replies without a readable action: 33.3 % of 3 (map 33.3 %); classes: no_action 1."
        in printed
        and "50.0" in printed
    )
    assert printed.strip() == (tmp_path / "out" / "results.md").read_text().strip()


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--agent", "scalecua"], "needs --agent-model"),
        (["--agent", "planner-grounder", "--agent-model", "gpt-4o"], "needs --grounder-model"),
    ],
)
def test_what_is_missing_is_said_in_one_line(argv, said, monkeypatch):
    monkeypatch.setattr("sys.argv", ["evaluate.py", *argv])
    with pytest.raises(SystemExit, match=f"^evaluate.py: .*{said}"):
        evaluate.main()


def test_our_own_reply_reads_alike_through_the_loop_s_dialect():
    reply = "<action>write(message='a')\nresponse(answer='b')</action>"
    assert DIALECTS["jhima"].parse(reply, SIZE) == parse(reply, GRID, SIZE)
    assert [
        DIALECTS[name].answer_ends for name in ("jhima", "gui-libra", "scalecua", "uitars-1.5")
    ] == [True, True, False, False]
