"""The real scripts on three tasks, stage after stage, until reward rises; then the same commands again."""
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import ROOT

INTENTS = ("Show me the page of the Zoo.", "Show me the page of the Bank.", "Save the Hotel to my places.")
TIMEOUT = 300


def run(*command: object, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, **more)
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def sft(tmp_path_factory, checkpoint):
    """Demonstrations, annotations and both fine-tuned models of three map tasks."""
    from jhima.pocket.generate import task_list
    from jhima.pocket.teacher import MODEL, serve_teacher

    out = tmp_path_factory.mktemp("pipeline")
    tasks = [t for split in ("train", "eval") for t in task_list(split) if t["intent"] in INTENTS]
    assert len(tasks) == 3
    (out / "tasks.json").write_text(json.dumps([t | {"task_id": i} for i, t in enumerate(tasks)]))
    run("-m", "jhima.pocket", "demos", "--tasks", out / "tasks.json", "--out", out / "demos")
    with serve_teacher() as url:
        run("annotate.py", "--data", out / "demos/meta.json", "--out", out / "annotations.jsonl", "--base-url", url, "--model", MODEL)
    for role, micro, epochs, lr in (("decomposer", 1, 60, 3e-3), ("actor", 4, 100, 5e-3)):
        run("train_sft.py", "--role", role, "--data", out / "demos/meta.json", "--annotations", out / "annotations.jsonl",
            "--model", checkpoint, "--out", out / role, "--micro-batch", micro, "--accumulate", 1, "--epochs", epochs,
            "--lr", lr)
    return out


def rl(out, *more: object, name: str = "rl") -> list:
    return ["train_rl.py", "--decomposer", out / "decomposer", "--actor", out / "actor", "--tasks", out / "tasks.json",
            "--out", out / name, "--K", 2, "--M", 4, "--T", 5, "--tasks-per-batch", 3, "--lr", 3e-3, "--plan-tokens", 48,
            "--action-tokens", 48, "--micro-batch", 8, *more]


def metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_annotations_hold_the_oracles_subtasks(sft):
    rows = [json.loads(line) for line in (sft / "annotations.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and not any(row["failed"] for row in rows)
    assert {len(row["subtasks"]) for row in rows} == {1, 2} and rows[0]["subtasks"][0]["title"].startswith("Open")


def test_sft_learns(sft):
    for role in ("decomposer", "actor"):
        losses = [row["loss"] for row in metrics(sft / role)]
        assert losses[-1] < 0.2 * losses[0]


def test_joint_rl_raises_the_reward(sft):
    """Ten batches of 24 episodes in a real browser; the reward of the last three is well above that of the first three."""
    run(*rl(sft, "--epochs", 10))
    rewards = [row["reward"] for row in metrics(sft / "rl") if row["pass"] == 0]
    assert len(rewards) == 10
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.15, rewards
