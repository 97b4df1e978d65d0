"""Several ranks give the run of one rank; shares are equal; a dead rank ends the job; it resumes.

Under the real launchers too:

    LAUNCHERS="torchrun deepspeed" python -m pytest tests/training/test_ranks.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from rl_faults import TASK, run_rank
from safetensors.torch import load_file
from samples import ROOT, free_port, make_samples, start_process

from jhima.training.ranks import balanced, tokens

FLAGS = (
    "--K 2 --M 2 --T 1 --plan-tokens 6 --action-tokens 6 --micro-batch 4 --lora-rank 4 "
    "--lora-alpha 8 --lr 1e-3 --sampler-batch 1 --tasks-per-batch 3 --epochs 2"
).split()


# ---- shares ----


def test_shares_are_equal_and_stay_at_home_where_they_can(policy):
    rng, samples = random.Random(0), make_samples(policy, 60)
    longest = max(map(tokens, samples))
    for world in (1, 2, 3, 8):
        for bias in (1.0, 0.3, 0.0):  # 0: one rank has played everything
            played = [[] for _ in range(world)]
            for s in samples:
                played[rng.randrange(world) if rng.random() < bias else 0].append(s)
            shares = balanced(played)
            loads = [sum(map(tokens, share)) for share in shares]
            assert sorted(map(id, samples)) == sorted(id(s) for share in shares for s in share)
            assert max(loads) - min(loads) <= longest
            assert all(share == sorted(share, key=tokens, reverse=True) for share in shares)
            fair = sum(loads) / world
            for own, share in zip(played, shares):
                kept = sum(tokens(s) for s in own if any(s is mine for mine in share))
                assert kept >= min(sum(map(tokens, own)), fair) - longest
    alike = [replace(samples[0]) for _ in range(8)]
    assert balanced([alike[:4], alike[4:]]) == [alike[:4], alike[4:]]
    assert balanced([[], []]) == [[], []]


# ---- the whole run ----


@pytest.fixture
def tasks(tmp_path):
    """Three tasks, of which two ranks have unequal shares."""
    path = tmp_path / "tasks.json"
    path.write_text(
        json.dumps(
            [
                {
                    "task_id": n,
                    "sites": list(TASK.sites),
                    "start_url": TASK.start_url,
                    "intent": f"{TASK.intent} {n}",
                    "eval": TASK.eval,
                    "require_login": False,
                    "intent_template_id": 0,
                }
                for n in range(3)
            ]
        )
    )
    return path


def flags(checkpoint, tasks, out) -> list[str]:
    paths = f"--decomposer {checkpoint} --actor {checkpoint} --tasks {tasks} --out {out}"
    return [*FLAGS, *paths.split()]


def start(checkpoint, tasks, out, world: int, outs=None) -> list:
    port = free_port()
    return [
        start_process(
            run_rank,
            flags(checkpoint, tasks, (outs or {}).get(rank, out)),
            rank,
            world,
            port,
            str(out) + f".{rank}.log",
        )
        for rank in range(world)
    ]


def join(processes, seconds: float = 150) -> list[int]:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def wait_for(condition, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(out) -> list[dict]:
    return [
        {
            k: v
            for k, v in json.loads(line).items()
            if not k.startswith(("seconds/", "tokens_per_second/", "memory/"))
        }
        for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


def replies(out) -> dict[str, list]:
    """Every episode of the first batch: what was sampled, and the reward."""
    found = {}
    for path in out.glob("rollouts/000000/*/*/episode.json"):
        e = json.loads(path.read_text())
        found[str(path.relative_to(out))] = [e["reward"], *(step["ids"] for step in e["steps"])]
    return found


def assert_same_run(a, b) -> None:
    assert replies(a) == replies(b) and len(replies(a)) == 12
    first, second = rows(a), rows(b)
    assert len(first) == 4 and any(row["actor/grad_norm"] > 0 for row in first)
    for x, y in zip(first, second, strict=True):
        assert x == pytest.approx(y, rel=1e-3, abs=1e-6)
    for role in ("decomposer", "actor"):
        one, two = (load_file(out / role / "adapter_model.safetensors") for out in (a, b))
        # 2 % of a step: Adam makes so much of rounding where a gradient is as small as its epsilon
        assert (
            one.keys() == two.keys()
            and max((one[name] - two[name]).abs().max() for name in one) < 2e-5
        )


def test_two_ranks_are_one_run_and_a_dead_rank_ends_it(checkpoint, tasks, tmp_path):
    """Two ranks equal one within rounding, though rank 1 was killed on the way.

    Rank 0, which may be in a collective or a rollout of its own, ends at once with a line that says
    so. No browser and no site outlives them.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    alone = start(checkpoint, tasks, one, 1)
    assert join(alone) == [0]
    ranks = start(checkpoint, tasks, two, 2)
    wait_for(lambda: len(list(two.glob("rollouts/000001/*/*/episode.json"))) >= 2)
    started = [p for rank in ranks for p in psutil.Process(rank.pid).children(recursive=True)]
    ranks[1].kill()
    began = time.monotonic()
    assert join(ranks) == [1, -signal.SIGKILL] and time.monotonic() - began < 5
    said = (tmp_path / "two.0.log").read_text()
    assert (
        f"rank 1 (process {ranks[1].pid} on " in said and "run the same command to resume" in said
    )
    done = json.loads((two / "state.json").read_text())
    assert done == {"batches": 1, "processes": 2}
    assert len(started) > 6 and psutil.wait_procs(started, 10)[1] == []
    assert join(start(checkpoint, tasks, two, 2)) == [0, 0]
    assert "has ended before" not in (tmp_path / "two.0.log").read_text().replace(said, "")
    assert_same_run(one, two)


def test_a_host_without_the_shared_folder_is_told(checkpoint, tasks, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    ranks = start(checkpoint, tasks, here, 2, {1: there})
    assert join(ranks) == [1, 1]
    assert "is another folder on " in (tmp_path / "here.0.log").read_text()
    assert not (here / "rollouts").exists()


def test_what_a_killed_process_left_is_killed():
    """vLLM's engine would keep its GPU memory. This test has `sleep` in its place."""
    code = (
        "import subprocess, sys, time; from jhima.serving import reaper; "
        "print(subprocess.Popen(['sleep', '300']).pid, flush=True); "
        "reaper.start(); time.sleep(300)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(process.stdout.readline()))
    wait_for(
        lambda: any(
            "jhima.serving.reaper" in p.cmdline() for p in psutil.Process(process.pid).children()
        )
    )
    reaper = next(p for p in psutil.Process(process.pid).children() if p != child)
    wait_for(
        lambda: reaper.status() == psutil.STATUS_SLEEPING and reaper.cpu_times().user > 0.03
    )  # it waits, having looked
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert psutil.wait_procs([child, reaper], 10)[1] == []


@pytest.mark.parametrize("launcher", os.environ.get("LAUNCHERS", "").split())
def test_killed_under_a_launcher(launcher, tmp_path):
    """The command that users type, on the pocket base model: the job ends soon; then it resumes."""
    out = tmp_path / "run"
    launchers = {
        "torchrun": "torchrun --nproc-per-node 2",
        "deepspeed": "deepspeed --num_gpus 2",
    }
    models = "--decomposer jhima/pocket/base --actor jhima/pocket/base"
    more = f"{models} --limit-batches 2 --out {out}".split()
    command = [*launchers[launcher].split(), "train_rl.py", *FLAGS, *more]
    with open(tmp_path / "log", "w") as log:
        job = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=os.environ | {"MASTER_PORT": str(free_port())},
        )
        wait_for(lambda: list(out.glob("rollouts/000001/*/*/episode.json")))
        victim = next(
            p.pid
            for p in psutil.Process(job.pid).children(recursive=True)
            if "train_rl.py" in p.cmdline() and p.environ().get("RANK") == "1"
        )
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        assert job.wait(60) != 0
    print(f"{launcher}: ended after {time.monotonic() - began:.1f} s")
    assert "rank 1 (process" in (tmp_path / "log").read_text()
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        timeout=200,
        env=os.environ | {"MASTER_PORT": str(free_port())},
    )
    assert len(rows(out)) == 4 and (out / "actor/adapter_model.safetensors").exists()
