"""The subgoal analysis: statistics against brute force, and the judge over HTTP, asked once."""

import doctest
import json
import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from PIL import Image
from run_dirs import command
from samples import screenshot

from jhima.actions import Action, Turn
from jhima.episodes import Episode, Plan, Step, Task, save_episode, save_plans
from jhima.models.openai_client import image_part
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import operation
from jhima.pocket.teacher import MODEL, answer, judge_subtask
from jhima.results import progress as statistics
from jhima.results import subgoals
from jhima.results.progress import auroc, bins, progress, tau, with_interval
from jhima.results.run_reader import read_groups
from jhima.results.subgoals import main, read_verdicts
from jhima.webarena import milestones
from jhima.webarena.judge import Judge


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 100)


def test_doctests():
    assert doctest.testmod(statistics).failed == doctest.testmod(milestones).failed == 0


# ---- statistics ----

SHARE = np.array([0, 0, 1 / 3, 1 / 3, 1 / 2, 2 / 3, 2 / 3, 0.8, 1, 1, 1, 0])
SUCCESS = np.array([0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1])


def test_auroc_and_tau_are_counts_of_pairs():
    won, lost = SHARE[SUCCESS == 1], SHARE[SUCCESS == 0]
    assert auroc(SHARE, SUCCESS) == pytest.approx(
        np.mean([(high > low) + (high == low) / 2 for high in won for low in lost])
    )
    pairs = [
        (np.sign(SHARE[i] - SHARE[j]), np.sign(SUCCESS[i] - SUCCESS[j]))
        for i, j in combinations(range(len(SHARE)), 2)
    ]
    untied = [sum(pair[side] != 0 for pair in pairs) for side in (0, 1)]
    assert tau(SHARE, SUCCESS) == pytest.approx(
        sum(a * b for a, b in pairs) / math.sqrt(untied[0] * untied[1])
    )


@pytest.mark.parametrize(
    "share, success, wanted_auroc, wanted_tau",
    [
        ([0, 0.5, 1], [1, 1, 1], None, None),
        ([0, 0.5, 1], [0, 0, 0], None, None),
        ([1, 1, 1, 1], [0, 1, 0, 1], 0.5, None),
        ([1], [1], None, None),
        ([0, 0, 1, 1], [0, 0, 1, 1], 1, 1),
        ([1, 1, 0, 0], [0, 0, 1, 1], 0, -1),
    ],
)
def test_what_does_not_exist_is_none(share, success, wanted_auroc, wanted_tau):
    share, success, tasks = (
        np.array(share, dtype=float),
        np.array(success),
        np.arange(len(share)).astype(str),
    )
    for statistic, wanted in ((auroc, wanted_auroc), (tau, wanted_tau)):
        found = with_interval(statistic, share, success, tasks)
        assert (found and found[0]) == (wanted if wanted is None else pytest.approx(wanted))
        assert found is None or found[1] <= found[0] <= found[2]


def test_intervals_draw_tasks_not_episodes():
    """Four runs of the same twelve tasks that agree hold no more tasks than one."""
    once = with_interval(auroc, SHARE, SUCCESS, np.arange(12).astype(str))
    four = with_interval(
        auroc, np.tile(SHARE, 4), np.tile(SUCCESS, 4), np.tile(np.arange(12).astype(str), 4)
    )
    assert four == pytest.approx(once)
    many = with_interval(auroc, np.tile(SHARE, 4), np.tile(SUCCESS, 4), np.arange(48).astype(str))
    assert many[2] - many[1] < 0.75 * (once[2] - once[1])


def test_bins_hold_every_episode_once():
    found = bins(SHARE, SUCCESS)
    assert [(b.label, b.episodes, b.success) for b in found] == [
        ("none", 3, pytest.approx(1 / 3)),
        ("up to 1/3", 2, 0.5),
        ("up to 2/3", 3, pytest.approx(1 / 3)),
        ("less than all", 1, 1),
        ("all", 3, pytest.approx(2 / 3)),
    ]
    assert all(b.low <= b.success <= b.high for b in found)
    for count in range(1, 11):
        shares = np.array([done / count for done in range(count + 1)])
        assert sum(b.episodes for b in bins(shares, np.ones(count + 1, dtype=int))) == count + 1
    assert bins(np.array([]), np.array([], dtype=int))[0].success is None


# ---- the pocket teacher as the judge ----


def test_the_oracles_own_moves_complete_its_subtasks_and_no_others_do():
    for intent, solution in solutions().items():
        said = [operation(move) for g in solution.plan for move in g.moves]
        assert all(
            judge_subtask(g.title, intent, ["Scroll down", *said, "Finish"])[0]
            for g in solution.plan
        ), intent
        last = solution.plan[-1]
        if said.count(said[-1]) == 1:
            done, reason = judge_subtask(f"{last.title}: {last.goal}.", intent, said[:-1])
            assert not done and reason.startswith(said[-1])
    assert judge_subtask("Sing a song", "Sing", ["Sing"]) == (False, "No plan has this subtask.")


def test_an_operation_that_changed_nothing_completes_nothing():
    intent, solution = next((i, s) for i, s in solutions().items() if len(s.plan) > 1)
    said = [operation(move) for g in solution.plan for move in g.moves]
    asked = {
        "task": intent,
        "subtasks": [g.title for g in solution.plan],
        "steps": [{"operation": o} for o in said],
    }
    pictures = [str(n) for n in range(len(said) + 1)]
    assert "not done" not in answer(json.dumps(asked), pictures)
    assert "SUBTASK 1: done" not in answer(json.dumps(asked), ["same"] * len(pictures))
    # The last one, too, unless it is the answer, which changes no page.
    asked["subtasks"] = asked["subtasks"][-1:]
    assert "SUBTASK 1: not done" in answer(json.dumps(asked), [*pictures[:-1], pictures[-2]])
    asked["steps"][-1]["actions"] = [{"kind": "answer", "text": "42"}]
    assert "SUBTASK 1: done" in answer(json.dumps(asked), [*pictures[:-1], pictures[-2]])


def test_the_judge_sees_what_the_last_action_led_to():
    step = Step(b"before", 1, 1, "", Turn((), "", "Click"), "", "reply")
    episode = Episode("t", 0, 0, [step, step], 0, None, "", "", [], 1.0, 0, last=b"after")
    *pictures, text = milestones.request("Task", ["Open it"], episode)[1]["content"]
    assert pictures == [image_part(png) for png in (b"before", b"before", b"after")]
    assert len(json.loads(text["text"])["steps"]) == 2
    earlier = milestones.request("Task", ["Open it"], replace(episode, last=b""))[1]["content"]
    assert earlier[:-1] == pictures[:-1]


# ---- from a run to the figure ----


def play(
    run, name: str, intent: str, subtasks: list[str], operations: list[str], reward: int | None
) -> None:
    click = (Action("click", 5.0, 5.0),)
    steps = [
        Step(screenshot(n), 336, 336, "http://127.0.0.1/", Turn(click, "", said), "", "reply")
        for n, said in enumerate(operations)
    ]
    folder = run / "rollouts" / "run_0" / name
    save_plans(folder, Task(name, ("map",), "", intent, {}), screenshot(0), [Plan("", subtasks)])
    failure = {"kind": "site", "detail": ""} if reward is None else None
    save_episode(folder, Episode(name, 0, 0, steps, reward, failure, "", "", [], 1.0, 0))


@pytest.fixture
def run(tmp_path):
    """Six tasks, with all of the oracle's moves or those of its first subtask.

    One is not scored; of the others some succeed and some fail.
    """
    chosen = [(i, s) for i, s in solutions().items() if len(s.plan) > 1][:6]
    for n, (intent, solution) in enumerate(chosen):
        said = [operation(move) for g in solution.plan for move in g.moves]
        first = len(solution.plan[0].moves)
        play(
            tmp_path / "run",
            f"t{n}",
            intent,
            [g.title for g in solution.plan],
            said if n % 2 else said[:first],
            (None if n == 5 else int(n % 2 and n != 1)),
        )
    (tmp_path / "run" / "args.json").write_text(json.dumps({"tasks": "pocket-eval"}))
    return tmp_path / "run"


def test_judging_is_done_once_and_a_torn_line_costs_one_episode(run, capsys, monkeypatch):
    command(main, run, "--out", run / "figure.png")
    shown = capsys.readouterr().out
    assert "| run | 5 | 5 | 0 |" in shown and Image.open(run / "figure.png").width == 1000
    verdicts = run / "subgoals.jsonl"
    rows = [json.loads(line) for line in verdicts.read_text().splitlines()]
    assert len(rows) == 5 and all(row["completed"][0] for row in rows)
    found = progress(read_groups(run), read_verdicts(run))
    assert found.auroc[0] == pytest.approx(1 - 0.5 / 4) and found.success == (0, 0, 0, 1, 0)
    written = json.loads((run / "subgoals.json").read_text())
    assert written["tau"][0] == pytest.approx(tau(np.array(found.share), np.array(found.success)))

    # Now a judge that does not answer: nothing is asked again, and the same table comes out.
    monkeypatch.setattr(subgoals, "Judge", partial(Judge, attempts=1))
    silent = [run, "--judge-url", "http://127.0.0.1:9/v1", "--judge-model", MODEL]
    command(main, *silent)
    assert capsys.readouterr().out == shown
    verdicts.write_text(verdicts.read_text()[:-20])
    command(main, *silent)
    shown_now = capsys.readouterr()
    assert "| run | 4 | 4 | 1 |" in shown_now.out and "1 episodes got no verdict" in shown_now.err
    command(main, run)  # the judge is back
    assert capsys.readouterr().out == shown
    assert len(read_verdicts(run)) == 5


def test_errors_are_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(subgoals, "Judge", partial(Judge, attempts=1))
    with pytest.raises(SystemExit, match="gave no verdict: judge: ") as ended:
        command(main, run, "--judge-url", "http://127.0.0.1:9/v1")
    assert "\n" not in str(ended.value)
    play(tmp_path / "bare", "t", "x", [], ["Click"], 1)
    with pytest.raises(SystemExit, match="no scored episode has a plan"):
        command(main, tmp_path / "bare")
    with pytest.raises(SystemExit, match="no such folder"):
        command(main, tmp_path / "nowhere")


def test_an_episode_played_anew_is_judged_anew(run, capsys):
    command(main, run)
    intent, solution = [(i, s) for i, s in solutions().items() if len(s.plan) > 1][0]
    play(run, "t0", intent, [g.title for g in solution.plan], ["Finish"], 0)
    command(main, run)
    assert not any(read_verdicts(run)["run_0/t0/p0_e0"].completed)
