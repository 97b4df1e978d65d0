"""evaluate.py killed and resumed, with a real browser and an untrained model; --compare; errors."""

import csv
import json
import shutil
import subprocess
import sys
import time

import pytest
from rl_faults import run_script
from run_dirs import command, evaluation
from samples import ROOT, start_process

import evaluate

RUNS, TASKS = 2, 3


@pytest.fixture
def tasks(tmp_path):
    """Three tasks; an agent that does nothing of use solves the first: it stays where it starts."""
    path = tmp_path / "tasks.json"
    path.write_text(
        json.dumps(
            [
                {
                    "sites": ["map"],
                    "task_id": number,
                    "start_url": "__MAP__",
                    "intent": f"Stay {number}",
                    "eval": {
                        "eval_types": ["url_match"],
                        "reference_answers": None,
                        "program_html": [],
                        "url_note": "GOLD in PRED",
                        "reference_url": "__MAP__/else" if number else "__MAP__",
                    },
                }
                for number in range(TASKS)
            ]
        )
    )
    return path


def arguments(checkpoint, tasks, out) -> list[str]:
    models = ["--decomposer", checkpoint, "--actor", checkpoint]
    lengths = ["--runs", RUNS, "--T", 1, "--plan-tokens", 4, "--action-tokens", 4]
    words = [*models, "--tasks", tasks, "--out", out, *lengths, "--concurrency", 2]
    return list(map(str, words))


def evaluated(words: list, capsys) -> str:
    command(evaluate.main, *words)
    return capsys.readouterr().out


def episodes(out) -> dict:
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns
        for path in out.glob("rollouts/*/*/*/episode.json")
    }


def test_a_killed_evaluation_resumes_with_nothing_repeated(
    checkpoint, tasks, tmp_path, monkeypatch, capsys
):
    """... and the table of one that was not killed."""
    out, whole = tmp_path / "killed", tmp_path / "whole"
    killed = subprocess.Popen(
        [sys.executable, "evaluate.py", *arguments(checkpoint, tasks, out)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(episodes(out)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    before = episodes(out)
    assert 2 <= len(before) < RUNS * TASKS
    plans = {path: path.stat().st_mtime_ns for path in out.glob("rollouts/*/*/group.json")}

    table = evaluated(arguments(checkpoint, tasks, out), capsys)
    after = episodes(out)
    assert len(after) == RUNS * TASKS and before.items() <= after.items()
    assert all(path.stat().st_mtime_ns == when for path, when in plans.items())
    assert evaluated(arguments(checkpoint, tasks, whole), capsys) == table
    assert "| overall | 33.3 ± 0.0 | 0.0 to 100.0 | 3 | 2 | 6 | 4 | 0 | 0 |" in table
    assert (out / "results.json").read_text() == (whole / "results.json").read_text()


def test_comparison_of_finished_runs_needs_no_model(tmp_path, monkeypatch, capsys):
    for name, reward in (("sft", 0), ("rl", 1)):
        evaluation(tmp_path / name, {"map/a": [reward, reward], "map/b": [0, 1]})
    monkeypatch.setattr(evaluate, "load_policy", None)
    runs = [str(tmp_path / name) for name in ("sft", "rl")]
    shown = evaluated(["--compare", *runs, "--out", str(tmp_path / "both")], capsys)
    assert "| rl | +50.0 (+0.0 to +100.0) | +50.0 (+0.0 to +100.0) | 2 | 1 | 0 |" in shown
    assert (tmp_path / "both" / "comparison.md").read_text() == shown
    assert (
        json.loads((tmp_path / "both" / "comparison.json").read_text())["differences"]["rl"][-1][
            "mean"
        ]
        == 0.5
    )
    rows = list(csv.DictReader((tmp_path / "both" / "comparison.csv").open()))
    assert [(row["run"], row["site"], row["mean"]) for row in rows] == [
        ("sft", "map", "0.25"),
        ("sft", "overall", "0.25"),
        ("rl", "map", "0.75"),
        ("rl", "overall", "0.75"),
    ]
    with pytest.raises(SystemExit, match="evaluate.py: .*no such folder"):
        evaluated(["--compare", tmp_path / "sft", tmp_path / "nowhere"], capsys)


@pytest.mark.parametrize("more", [["--runs", "0"], ["--limit", "0"]])
def test_nothing_to_play_is_an_error(more, checkpoint, tasks, tmp_path, capsys):
    with pytest.raises(SystemExit, match="at least (one run of one task|1, got 0)"):
        evaluated([*arguments(checkpoint, tasks, tmp_path / "x"), *more], capsys)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--agent", "scalecua", "--agent-model", "m"], "--agent-url"),
        (
            ["--agent", "planner-grounder", "--agent-model", "gpt-4o", "--grounder-model", "m"],
            "--grounder-url",
        ),
        (["--agent", "other"], "invalid choice 'other'"),
        (["--unparseable", "retry:4"], "invalid choice 'retry:4'"),
    ],
)
def test_a_mistake_is_one_line(words, message, tmp_path):
    with pytest.raises(SystemExit, match=message) as ended:
        command(evaluate.main, *words, "--out", tmp_path / "out")
    assert str(ended.value).startswith("evaluate.py: ") and "\n" not in str(ended.value)
    assert not (tmp_path / "out").exists()


def test_adapters_of_a_run_and_of_its_checkpoints(tmp_path):
    roles = ("decomposer", "actor")
    for place in ("actor", "decomposer", "checkpoints/000004/actor/adapter", "only/actor"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "adapter_config.json").write_text("{}")
    assert evaluate.adapters_in(tmp_path, roles) == {role: tmp_path / role for role in roles}
    assert evaluate.adapters_in(tmp_path / "checkpoints/000004", roles) == {
        "actor": tmp_path / "checkpoints/000004/actor/adapter"
    }
    assert evaluate.adapters_in(tmp_path / "only", roles) == {"actor": tmp_path / "only/actor"}
    with pytest.raises(ValueError, match="holds no adapters"):
        evaluate.adapters_in(tmp_path / "checkpoints", roles)


def test_one_adapter_plays_both_roles_after_shared_rl(
    checkpoint, tasks, tmp_path, monkeypatch, capsys
):
    """Of the finished run and of its checkpoint, over --actor's weights, which are loaded once.

    Put on other weights, it is refused in one line before any model is loaded.
    """
    out, base = tmp_path / "rl", ROOT / "jhima" / "pocket" / "base"
    flags = f"--shared --actor {checkpoint} --tasks {tasks} --out {out} --tasks-per-batch 1"
    small = "--K 2 --M 2 --T 1 --plan-tokens 4 --action-tokens 4 --lora-rank 4 --limit-batches 1"
    trained = start_process(run_script, f"{flags} {small}".split())
    trained.join(200)
    assert trained.exitcode == 0

    loaded, load = [], evaluate.load_policy
    monkeypatch.setattr(
        evaluate,
        "load_policy",
        lambda source, *rest, **more: (
            loaded.append((source, more["adapter"])) or load(source, *rest, **more)
        ),
    )
    checkpoint_folder = out / "checkpoints" / "000001"
    for number, (folder, own) in enumerate(
        [(out, out / "actor"), (checkpoint_folder, checkpoint_folder / "decomposer-actor/adapter")]
    ):
        words = arguments(checkpoint, tasks, tmp_path / f"eval{number}")
        words[words.index("--decomposer") + 1] = str(base)
        shown = evaluated([*words, "--adapters", folder, "--limit", 1, "--runs", 1], capsys)
        assert shown.startswith(f"{folder}: one set of weights, that of --actor, plays both roles")
        assert loaded.pop() == (str(checkpoint), own) and not loaded

    alone = tmp_path / "alone"
    shutil.copytree(out / "actor", alone / "decomposer")
    words = [*arguments(base, tasks, tmp_path / "x"), "--adapters", alone]
    with pytest.raises(SystemExit, match="an adapter for the weights of") as refused:
        evaluated(words, capsys)
    assert str(refused.value).startswith("evaluate.py: ") and "\n" not in str(refused.value)
    assert not loaded
