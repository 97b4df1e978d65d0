"""A run killed at random points equals an uninterrupted one bit for bit, and repeats no episode.

The test kills once. The long check:

    KILLS=20 python -m pytest tests/training/test_rl_resume.py
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path

from rl_faults import TASK, run_not_finite, run_script
from samples import start_process

KILLS = int(os.environ.get("KILLS", 1))
BATCHES = 2 + KILLS * 3 // 4


def start(checkpoint, out, tasks, target=run_script, *more: object):
    # One reply at a time: which replies share a larger batch depends on timing, and would reach a
    # reply's last bit.
    flags = (
        "--K 2 --M 3 --T 2 --plan-tokens 6 --action-tokens 6 --micro-batch 4 --lora-rank 4 "
        "--lora-alpha 8 --lr 1e-3 --sampler-batch 1 --keep 99 --tasks-per-batch 1 "
        f"--epochs {BATCHES} --decomposer {checkpoint} --actor {checkpoint} "
        f"--tasks {tasks} --out {out}"
    ).split()
    return start_process(target, flags, *more)


def task_file(folder) -> Path:
    task = {
        "task_id": 0,
        "sites": list(TASK.sites),
        "start_url": TASK.start_url,
        "intent": TASK.intent,
        "eval": TASK.eval,
        "require_login": False,
        "intent_template_id": 0,
    }
    (folder / "tasks.json").write_text(json.dumps([task]))
    return folder / "tasks.json"


def files(out) -> int:
    return sum(len(names) for _, _, names in os.walk(out))


def rows(out) -> list[dict]:
    """The metrics apart from timings and memory."""
    return [
        {
            k: v
            for k, v in json.loads(line).items()
            if not k.startswith(("seconds/", "tokens_per_second/", "memory/"))
        }
        for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


def test_killed_runs_equal_the_uninterrupted_one(checkpoint, tmp_path):
    tasks = task_file(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = start(checkpoint, whole, tasks)
    reference.join(200)
    assert reference.exitcode == 0
    total, rng, played, left = files(whole), random.Random(0), {}, KILLS
    while True:
        process = start(checkpoint, killed, tasks)
        if not left:
            break
        left -= 1
        # Somewhere in the run, by the files that it writes; up to half a second later, because an
        # update writes none.
        goal = files(killed) + rng.randint(1, max(2, total // (KILLS + 1)))
        patience = rng.random() / 2
        while files(killed) < goal and process.is_alive():
            time.sleep(0.005)
        time.sleep(patience)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it was not done yet
        for path, when in played.items():
            assert path.stat().st_mtime_ns == when, path  # not played again
        played |= {
            path: path.stat().st_mtime_ns for path in killed.glob("rollouts/*/*/*/episode.json")
        }
    process.join(200)
    assert process.exitcode == 0
    assert all(path.stat().st_mtime_ns == when for path, when in played.items())
    assert rows(killed) == rows(whole) and len(rows(whole)) == 2 * BATCHES
    for role in ("decomposer", "actor"):
        name = f"{role}/adapter_model.safetensors"
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert any(row["actor/grad_norm"] > 0 for row in rows(whole))


def test_gradients_that_are_never_finite_end_the_run_in_one_line(checkpoint, tmp_path):
    """The two steps of the first batch are skipped; so are those of the second, its last."""
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(checkpoint, out, task_file(tmp_path), run_not_finite, str(log))
    process.join(200)
    assert process.exitcode == 1 and not (out / "actor").exists()
    printed = log.read_text()
    line = r"train_rl.py: batch 1: gradients of the \w+ not finite, \d steps in a row"
    assert re.fullmatch(line, printed.splitlines()[-1]) and "Traceback" not in printed
    assert printed.count("layers run uncompiled: there is no GPU") == 1
    found = rows(out)
    assert [row["actor/skipped"] for row in found] == [1] * len(found)
    assert "NaN" not in (out / "metrics.jsonl").read_text()
