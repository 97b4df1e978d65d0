"""The real scripts on three tasks, stage after stage, until reward rises; then the same commands
again.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time

import pytest
from samples import ROOT, environ

INTENTS = (
    "Show me the page of the Zoo.",
    "Show me the page of the Bank.",
    "Save the Hotel to my places.",
)
TIMEOUT = 300
BOTH = ("--decomposer", "jhima/pocket/base", "--actor", "jhima/pocket/base")


def run(*command: object, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environ(),
        **more,
    )
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def sft(tmp_path_factory):
    """Demonstrations, annotations and both fine-tuned models of three map tasks; the actor is
    stopped early, unsure.
    """
    from jhima.pocket.tasks.generate import task_list
    from jhima.pocket.teacher import MODEL, serve_teacher

    out = tmp_path_factory.mktemp("pipeline")
    tasks = [t for split in ("train", "eval") for t in task_list(split) if t["intent"] in INTENTS]
    assert len(tasks) == 3
    (out / "tasks.json").write_text(json.dumps([t | {"task_id": i} for i, t in enumerate(tasks)]))
    run("-m", "jhima.pocket", "demos", "--tasks", out / "tasks.json", "--out", out / "demos")
    with serve_teacher() as url:
        run(
            "annotate.py",
            "--data",
            out / "demos/meta.json",
            "--out",
            out / "annotations.jsonl",
            "--base-url",
            url,
            "--model",
            MODEL,
        )
    for role, micro, epochs, lr in (("decomposer", 3, 20, 1e-3), ("actor", 5, 3, 1e-3)):
        run(
            "train_sft.py",
            "--role",
            role,
            "--data",
            out / "demos/meta.json",
            "--annotations",
            out / "annotations.jsonl",
            "--model",
            "jhima/pocket/base",
            "--out",
            out / role,
            "--micro-batch",
            micro,
            "--accumulate",
            1,
            "--epochs",
            epochs,
            "--lr",
            lr,
        )
    return out


def rl(out, *more: object, name: str = "rl") -> list:
    return [
        "train_rl.py",
        "--decomposer",
        out / "decomposer",
        "--actor",
        out / "actor",
        "--tasks",
        out / "tasks.json",
        "--out",
        out / name,
        "--K",
        2,
        "--M",
        5,
        "--T",
        5,
        "--tasks-per-batch",
        3,
        "--lr",
        5e-4,
        "--plan-tokens",
        48,
        "--action-tokens",
        48,
        "--micro-batch",
        8,
        *more,
    ]


def metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_annotations_hold_the_oracles_subtasks(sft):
    rows = [json.loads(line) for line in (sft / "annotations.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and not any(row["failed"] for row in rows)
    assert {len(row["subtasks"]) for row in rows} == {1, 2} and rows[0]["subtasks"][0][
        "title"
    ].startswith("Open")


def test_sft_learns(sft):
    for role in ("decomposer", "actor"):
        losses = [row["loss"] for row in metrics(sft / role)]
        third = len(losses) // 3  # of the actor's six steps: an epoch
        assert sum(losses[-third:]) < 0.3 * sum(losses[:third]), losses


@pytest.mark.parametrize("role", ["decomposer", "actor"])
def test_both_models_beat_their_untrained_selves_in_the_sampler(sft, role):
    """Likeliest replies to what was demonstrated: how many equal the demonstration's."""
    import torch

    from jhima.data.scalecua import read_annotations, read_meta, read_trajectory
    from jhima.data.stored_coordinates import to_pixels
    from jhima.policy import load_policy
    from jhima.prompts import read_plan
    from jhima.sampler import Request, generate

    (data_set,) = read_meta(sft / "demos/meta.json")
    annotations = read_annotations(sft / "annotations.jsonl")

    def right(checkpoint) -> int:
        policy = load_policy(checkpoint, "cpu", torch.float32).eval()
        requests, wanted = [], []
        for trajectory in (read_trajectory(data_set, number) for number in range(3)):
            plan = policy.prompts.plan_text(annotations[trajectory.key].subtasks)
            for step in trajectory.steps[:1] if role == "decomposer" else trajectory.steps:
                image = (trajectory.root / step.image).read_bytes()
                prompt = (
                    policy.prompts.decomposer(trajectory.task, image)
                    if role == "decomposer"
                    else policy.prompts.actor(trajectory.task, read_plan(plan), step.history, image)
                )
                requests.append(Request(policy.prompt_ids(prompt), image, 64, 0.0, 0))
                wanted.append(plan if role == "decomposer" else to_pixels(step.reply, 336, 336))
        return sum(
            completion.text == text for completion, text in zip(generate(policy, requests), wanted)
        )

    assert right(sft / role) > right("jhima/pocket/base")


def test_joint_rl_raises_the_reward_and_resumes(sft):
    """Seven batches of 30 episodes in a real browser. The run is killed once on the way and goes
    on where it was.
    """
    command = [sys.executable, *map(str, rl(sft, "--epochs", 7))]
    killed = subprocess.Popen(
        command, cwd=ROOT, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while (
        len(list((sft / "rl/rollouts").glob("000001/*/*/episode.json"))) < 5
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    killed.kill()  # in the middle of the second batch's rollout
    killed.wait()
    finished = {
        path: path.stat().st_mtime_ns for path in (sft / "rl/rollouts").glob("*/*/*/episode.json")
    }
    assert len(finished) >= 35 and len(metrics(sft / "rl")) == 2

    run(*rl(sft, "--epochs", 7))
    rows = metrics(sft / "rl")
    assert [(row["batch"], row["pass"]) for row in rows] == [
        (b, p) for b in range(7) for p in range(2)
    ]
    assert all(
        path.stat().st_mtime_ns == when for path, when in finished.items()
    )  # no episode played twice
    rewards = [row["reward"] for row in rows if row["pass"] == 0]
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.1, rewards
    assert max(row["actor/sampler_gap"] for row in rows) < 1e-4  # trained on what was sampled
    assert all(
        row["actor/clip_low"] == row["actor/clip_high"] == 0 for row in rows if row["pass"] == 0
    )
    again = run(*rl(sft, "--epochs", 7))
    assert "resuming at batch 7" in again.stdout and metrics(sft / "rl") == rows


def test_evaluation_report_and_table(sft):
    command = [
        "evaluate.py",
        "--decomposer",
        sft / "decomposer",
        "--actor",
        sft / "actor",
        "--adapters",
        sft / "rl",
        "--tasks",
        sft / "tasks.json",
        "--out",
        sft / "eval",
        "--runs",
        2,
        "--T",
        5,
        "--plan-tokens",
        48,
        "--action-tokens",
        48,
    ]
    first = run(*command)
    assert "| map |" in first.stdout and (sft / "eval/results.json").exists()
    played = {
        path: path.stat().st_mtime_ns for path in (sft / "eval").glob("rollouts/*/*/*/episode.json")
    }
    assert len(played) == 6 and run(*command).stdout == first.stdout
    assert all(path.stat().st_mtime_ns == when for path, when in played.items())
    run("-m", "jhima.results.report", sft / "rl", "--out", sft / "report.html")
    assert all(intent in (sft / "report.html").read_text() for intent in INTENTS)
    run("-m", "jhima.results.figures", sft / "rl", sft / "curve.png")
    assert (sft / "curve.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    "command, message",
    [
        (["train_rl.py", "--actor", "nowhere"], "checkpoints/decomposer: no such checkpoint"),
        (
            [
                "train_rl.py",
                "--decomposer",
                "jhima/pocket/base",
                "--actor",
                "jhima/pocket/base",
                "--K",
                0,
            ],
            "--K: expected at least 1, got 0",
        ),
        (
            [
                "train_rl.py",
                "--decomposer",
                "jhima/pocket/base",
                "--actor",
                "jhima/pocket/base",
                "--tasks",
                "no.json",
            ],
            "no.json",
        ),
        (
            [
                "train_sft.py",
                "--role",
                "actor",
                "--data",
                "no.json",
                "--no-plan",
                "--model",
                "jhima/pocket/base",
            ],
            "no.json: no such file",
        ),
        (
            [
                "train_sft.py",
                "--role",
                "actor",
                "--data",
                "README.md",
                "--model",
                "jhima/pocket/base",
            ],
            "--annotations is needed",
        ),
        (["evaluate.py", "--actor", "jhima"], "evaluate.py: "),
        (["evaluate.py", *BOTH, "--limit", -1], "--limit: expected at least 1, got -1"),
        (["evaluate.py", *BOTH, "--concurrency", 0], "--concurrency: expected at least 1, got 0"),
        (["evaluate.py", *BOTH, "--temperature", "nan"], "--temperature: expected a finite"),
        (["train_rl.py", *BOTH, "--limit-batches", -1], "--limit-batches: expected at least 1"),
        (["train_rl.py", *BOTH, "--action-tokens", 0], "--action-tokens: expected at least 1"),
        (["train_rl.py", *BOTH, "--lr", "inf"], "--lr: expected more than 0, got inf"),
        (["annotate.py", "--data", "README.md", "--limit", -1], "--limit: expected at least 1"),
        (["annotate.py", "--data", "README.md", "--out", "x.jsonl"], "README.md: expected JSON"),
    ],
)
def test_bad_input_gives_one_clear_line(command, message, tmp_path, monkeypatch):
    """Before any model loads: the scripts' own main(), in this process."""
    out = [] if "--out" in command else ["--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", list(map(str, [*command, *out])))
    monkeypatch.setattr("jhima.policy.Qwen2_5_VLForConditionalGeneration", None)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command[0].removesuffix(".py")).main()
    assert (
        str(ended.value).startswith(f"{command[0]}: ")
        and message in str(ended.value)
        and "\n" not in str(ended.value)
    )


@pytest.mark.parametrize("script", ["annotate", "train_sft", "train_rl", "evaluate"])
def test_help_reads_well(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(script).main()
    shown = capsys.readouterr().out
    assert (
        "usage:" in shown
        and "default" in shown
        and all(len(line) <= 130 for line in shown.splitlines())
    )


def test_every_script_parses():
    """No other test imports some of the benchmarks."""
    paths = [
        path
        for pattern in ("*.py", "jhima/**/*.py", "benchmarks/*.py")
        for path in ROOT.glob(pattern)
    ]
    assert len(paths) > 80
    for path in paths:
        compile(path.read_text("utf-8"), str(path), "exec")
