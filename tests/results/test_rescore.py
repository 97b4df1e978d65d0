"""evaluate.py --rescore by its command line: a late judge, other rules, a mended task file."""

import json

import pytest
from run_dirs import command
from stubs import CHAT, URLS, Site, html, reply, score_answer, string

import evaluate
from jhima.actions import Turn
from jhima.environment import load_tasks
from jhima.episodes import Episode, Plan, Step, load_episode, save_episode, save_plans
from jhima.webarena.evaluators import Check
from jhima.webarena.task_files import parse_task

ASKED = {
    "question": "Do it",
    "reference": "a refund",
    "answer": "It broke",
    "judge": "j",
    "reply": "",
}
# What there is to score, where its episode ended, what it answered.
PLAYED = [
    (string(must_include=["x"], fuzzy_match=["right"]), "", "x yes right"),
    (string(must_include=["1"]), "", "11"),
    (
        {
            "eval_types": ["url_match"],
            "reference_url": "__SHOPPING__/a?b=1&c=2",
            "url_note": "EXACT",
        },
        "/a?c=2&b=1",
        "",
    ),
    (
        {
            "eval_types": ["url_match"],
            "reference_url": "__GITLAB__/issues/8",
            "url_note": "GOLD in PRED",
        },
        "/issues/80",
        "",
    ),
    (html(("last", "", {"must_include": ["x"]})), "", ""),
    (html(("last", "", {"fuzzy_match": ["a refund"]})), "", ""),
]


@pytest.fixture
def run(tmp_path):
    """A run whose judge was silent: six tasks with one episode each, and one that broke."""
    rows = [
        {
            "task_id": n,
            "sites": ["shopping"],
            "start_url": "__SHOPPING__",
            "intent": "Do it",
            "eval": entry,
        }
        for n, (entry, *_) in enumerate(PLAYED)
    ]
    (tmp_path / "t.json").write_text(json.dumps([*rows, rows[0] | {"task_id": 6}]))
    run = tmp_path / "run"
    for number, (row, (entry, end, answer)) in enumerate(zip(rows, PLAYED)):
        url = URLS["gitlab" if "/issues" in end else "shopping"] + end
        if "program_html" in entry["eval_types"]:
            checks = [
                Check(
                    "program_html",
                    "the page at last",
                    None if number == 5 else True,
                    "",
                    ASKED if number == 5 else None,
                )
            ]
            reward = None if number == 5 else 1
        else:
            verdict = score_answer(parse_task(row, "t", "t").eval, answer, url=url)
            checks, reward = verdict.checks, verdict.reward
        save(run, f"t-{number}", reward, url, answer, checks)
    save(run, "t-6", None, "", "", [], {"kind": "site", "detail": "HTTP 500"})
    (run / "args.json").write_text(
        json.dumps(
            {
                "script": "evaluate.py",
                "tasks": str(tmp_path / "t.json"),
                "judge_url": None,
                "judge_model": "j",
                "published_rules": False,
                "T": 15,
            }
        )
    )
    return run


def save(run, name, reward, url, answer, checks, failure=None):
    (task,) = (task for task in load_tasks(run.parent / "t.json") if task.id == name)
    folder = run / "rollouts" / "run_0" / name
    save_plans(folder, task, b"", [Plan("", [])])
    if reward is None and not failure:
        failure = {"kind": "judge", "detail": "no verdict"}
    steps = [Step(b"png", 336, 336, url, Turn((), "", "", "no_action"), "", "hm")]
    save_episode(
        folder,
        Episode(
            name,
            0,
            0,
            steps,
            reward,
            failure,
            answer,
            url,
            [vars(c) for c in checks],
            1.0,
            0,
            urls=URLS,
        ),
    )


def rewards(run) -> list:
    return [load_episode(run / "rollouts" / "run_0" / f"t-{n}", 0, 0).reward for n in range(7)]


@pytest.fixture
def rescored(run, monkeypatch, capsys):
    """Runs the command; returns what it printed of its counts, after a look at the tables."""
    monkeypatch.setattr(evaluate, "load_policy", None)

    def rescored(*more: object) -> str:
        command(evaluate.main, "--rescore", run, *more)
        line, table = capsys.readouterr().out.split("\n", 1)
        assert (run / "results.md").read_text() == table
        return line.removeprefix(f"{run}: ")

    return rescored


@pytest.fixture
def silent():
    """A judge that refuses at once, whose key is wrong."""
    with Site({CHAT: (401, {})}) as judge:
        yield f"{judge.url}/v1"


def says(body: bytes) -> tuple:
    asked = json.loads(json.loads(body)["messages"][1]["content"])
    correct = "right" in asked["answer"] or asked["reference"] == "a refund"
    return reply(f"VERDICT: {'correct' if correct else 'incorrect'}")


def test_what_the_judge_did_not_say_is_asked_later_and_kept(run, rescored):
    assert rewards(run) == [None, 0, 1, 0, 1, None, None]
    with Site({CHAT: says}) as judge:
        url = f"{judge.url}/v1"
        assert rescored("--judge-url", url) == (
            "6 episodes scored again: 2 changed, 0 without a reward, 1 with a verdict kept (it "
            "takes a browser or a judge), 0 unreadable"
        )
        assert rewards(run) == [1, 0, 1, 0, 1, 1, None] and len(judge.seen) == 2
        results = json.loads((run / "results.json").read_text())
        assert results["overall"]["mean"] == 4 / 6 and results["overall"]["unscored"] == 1
        assert "100.0 % of 7" in (run / "results.md").read_text()  # replies without an action
        written = {
            path: path.stat().st_mtime_ns for path in run.glob("rollouts/*/*/*/episode.json")
        }
        assert "0 changed" in rescored() and len(judge.seen) == 2  # free, and nothing is written
        assert written == {path: path.stat().st_mtime_ns for path in written}
        judge.pages[CHAT] = (401, {})
        line = rescored("--judge-model", "other")  # asked, and silent
        assert (
            "0 changed, 0 without a reward, 3 with a verdict kept" in line and len(judge.seen) == 4
        )
    assert rewards(run) == [1, 0, 1, 0, 1, 1, None]
    assert (
        json.loads((run / "args.json").read_text())["judge_model"] == "other"
    )  # what it would go on with


def test_published_rules_and_ours_are_had_from_the_same_episodes(run, rescored, silent):
    assert "3 changed, 2 without a reward" in rescored("--published-rules", "--judge-url", silent)
    assert rewards(run) == [None, 1, 0, 1, 1, None, None]  # 1 in 11, query order, /issues/80
    assert json.loads((run / "args.json").read_text())["published_rules"] is True
    assert "0 changed" in rescored()  # the run's own are the default
    assert "3 changed" in rescored("--no-published-rules") and rewards(run) == [
        None,
        0,
        1,
        0,
        1,
        None,
        None,
    ]


def test_a_mended_task_file_is_what_counts_but_pages_keep_their_verdict(run, rescored, silent):
    rows = json.loads((run.parent / "t.json").read_text())
    rows[1]["eval"]["reference_answers"] = {"must_include": ["11"]}
    rows[3]["eval"]["reference_url"] = "__GITLAB__/issues/80"
    rows[4]["eval"]["program_html"][0]["required_contents"] = {"must_include": ["y"]}
    rows[2]["eval"] = string(must_include=["x"])  # asks for what the episode was never asked
    (run.parent / "t.json").write_text(json.dumps(rows[:5] + rows[6:]))
    (run / "rollouts" / "run_0" / "t-0" / "p0_e0" / "episode.json").write_text("{")
    assert rescored("--judge-url", silent) == (
        "5 episodes scored again: 2 changed, 1 without a reward, 2 with a verdict kept (it takes "
        "a browser or a judge), 1 unreadable"
    )
    (run / "rollouts" / "run_0" / "t-0" / "p0_e0" / "episode.json").unlink()
    assert [
        load_episode(run / "rollouts" / "run_0" / f"t-{n}", 0, 0).reward for n in range(1, 7)
    ] == [1, 1, 1, 1, None, None]


def test_an_episode_without_the_urls_of_its_sites_keeps_what_was_said_of_them(
    run, rescored, silent
):
    path = run / "rollouts" / "run_0" / "t-3" / "p0_e0" / "episode.json"
    path.write_text(
        json.dumps(
            {key: value for key, value in json.loads(path.read_text()).items() if key != "urls"}
        )
    )
    line = rescored("--published-rules", "--judge-url", silent)
    assert "2 changed, 2 without a reward, 2 with a verdict kept" in line and rewards(run)[3] == 0


@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            lambda run: (run / "args.json").unlink(),
            "run: expected a run directory of evaluate.py or train_rl.py",
        ),
        (
            lambda run: (run / "args.json").write_text('{"tasks": "pocket"}'),
            "run: expected a run directory",
        ),
        (lambda run: (run / "rollouts").rename(run / "other"), "run: expected a run directory"),
        (lambda run: (run.parent / "t.json").unlink(), "t.json: no such file"),
    ],
)
def test_what_cannot_be_rescored_is_one_clear_line(run, rescored, spoil, message):
    spoil(run)
    with pytest.raises(SystemExit, match=message) as error:
        rescored()
    assert str(error.value).startswith("evaluate.py: ") and "\n" not in str(error.value)
