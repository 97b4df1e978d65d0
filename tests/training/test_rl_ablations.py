"""train_rl.py's ablations and extensions end to end on the pocket arena; a soak with faults.

The soak test plays 2 batches. A long run:

    SOAK_BATCHES=200 python -m pytest tests/training/test_rl_ablations.py -k soak
"""

from __future__ import annotations

import asyncio
import os
import random
from statistics import median

import pytest
import torch
from rl_faults import TASK, arguments, inject, reward_some, train

from jhima.browser.chromium import Browsers
from jhima.environment import Environment
from jhima.episodes import load_group
from jhima.pocket.arena import PocketArena
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.training.metrics import KINDS
from jhima.webarena.judge import Judge

BOTH = {"decomposer", "actor"}
# Flags, and the roles that each batch updates.
ABLATIONS = {
    "joint": ([], [BOTH]),
    "without decomposer RL": (["--train", "actor"], [{"actor"}]),
    "without actor RL": (["--train", "decomposer"], [{"decomposer"}]),
    "alternating": (["--alternate", 1, "--epochs", 3], [{"decomposer"}, {"actor"}, {"decomposer"}]),
    "without decomposer": (["--no-plan"], [{"actor"}]),
    "one set of weights": (["--shared"], [BOTH]),
    "API decomposer": (["--train", "actor", "--decomposer", "URL"], [{"actor"}]),
    "replanning": (["--replan", 1], [BOTH]),
    "milestones": (["--milestone", 0.5], [BOTH]),
    "standard GRPO": (
        ["--normalize-std", "--normalize-length", "--beta", 0.01, "--eps-high", 0.28, "--tis", 2],
        [BOTH],
    ),
}


def test_every_ablation_runs_end_to_end(monkeypatch, checkpoint, tmp_path):
    reward_some(monkeypatch)

    async def go() -> dict:
        results = {}
        with serve_teacher() as url:
            async with PocketArena() as arena, Browsers() as browsers:
                env = Environment(arena, browsers, Judge(url, MODEL, None))
                for name, (flags, _) in ABLATIONS.items():
                    flags = [f"{url}#{MODEL}" if flag == "URL" else flag for flag in flags]
                    args = arguments(
                        monkeypatch, checkpoint, tmp_path / name.replace(" ", "-"), *flags
                    )
                    learners, rows = await train(monkeypatch, env, args, [TASK])
                    results[name] = (
                        args,
                        learners,
                        rows,
                        load_group(args.out / "rollouts/000000/map-0", TASK, args.K, args.M),
                    )
        return results

    results = asyncio.run(go())
    for name, (args, learners, rows, _) in results.items():
        expected = ABLATIONS[name][1]
        assert [(row["batch"], row["pass"]) for row in rows] == [
            (b, p) for b in range(len(expected)) for p in range(2)
        ], name
        for row in rows:
            assert {role for role in BOTH if f"{role}/loss" in row} == expected[row["batch"]], name
            assert all(row[f"{role}/grad_norm"] > 0 for role in expected[row["batch"]]), (name, row)
        for learner in learners:  # what is trained moved: PEFT starts every B at exactly zero
            moved = any(
                p.abs().max() > 0 for n, p in learner.policy.named_parameters() if "lora_B" in n
            )
            assert moved == bool(set(learner.roles) & set().union(*expected)), (name, learner.roles)
        assert (
            row["episodes"] == args.K * args.M
            and row["episodes_lost"] == 0
            and row["reward"] == pytest.approx(2 / 3 if name == "without decomposer" else 1 / 2)
        )
    plans = {name: result[3].plans for name, result in results.items()}
    steps = {
        name: [s for row in result[3].episodes for e in row for s in e.steps]
        for name, result in results.items()
    }
    assert len(plans["without decomposer"]) == 1 and not plans["without decomposer"][0].subtasks
    assert all(
        plan.subtasks and plan.subtasks[0].startswith("Open") and not plan.ids
        for plan in plans["API decomposer"]
    )
    assert len(results["one set of weights"][1]) == 1
    second = [s for row in results["replanning"][3].episodes for e in row for s in e.steps[1:]]
    assert second and all(s.plan and s.plan.ids for s in second)
    assert not any(s.plan for name, rows in steps.items() if name != "replanning" for s in rows)
    assert (
        0 <= results["milestones"][2][0]["milestones"] <= 1
        and "milestones" not in results["joint"][2][0]
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--alternate", 2, "--train", "actor"], "--alternate switches between both roles"),
        (["--K", 1], "--K 1: a plan learns by comparison"),
        (["--M", 1], "--M 1: an episode learns by comparison"),
        (
            ["--replan", 2, "--milestone", 1],
            "--milestone judges the plan that an episode began with",
        ),
        (["--no-plan", "--shared"], "--no-plan has no decomposer"),
        (["--temperature", 0], "--temperature: expected more than 0"),
        (["--decomposer", "http://localhost/v1#model"], "an API decomposer needs --train actor"),
    ],
)
def test_flags_that_contradict_each_other(monkeypatch, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message):
        arguments(monkeypatch, "jhima/pocket/base", tmp_path / "out", *flags)


def test_soak(monkeypatch, checkpoint, tmp_path):
    """Browser kills, stalled sites, HTTP 500, garbled replies and judge failures at random.

    The run ends by itself, each fault is classified, none is a zero, and the rest still teaches.
    """
    batches = int(os.environ.get("SOAK_BATCHES", 2))
    reward_some(monkeypatch)
    injected = inject(monkeypatch, random.Random(0), period=9)

    async def go():
        async with (
            PocketArena(deadline=10) as arena,
            Browsers(operation=3, navigation=3) as browsers,
        ):
            env = Environment(arena, browsers, episode_deadline=30)
            args = arguments(
                monkeypatch, checkpoint, tmp_path / "soak", "--epochs", batches, "--keep", 1
            )
            return args, *(
                await asyncio.wait_for(train(monkeypatch, env, args, [TASK]), 60 + 20 * batches)
            )

    args, learners, rows = asyncio.run(go())
    rows = [row for row in rows if row["pass"] == 0]
    assert len(rows) == batches and all(row["tasks"] + row["tasks_lost"] == 1 for row in rows)
    groups = [
        g
        for b in range(batches)
        if (g := load_group(args.out / f"rollouts/{b:06d}/map-0", TASK, 2, 3))
    ]
    for e in (e for g in groups for row in g.episodes for e in row):
        assert (e.reward is None) == (e.failure is not None) and set(e.failures) <= set(KINDS)
        assert (
            e.reward is not None or len(e.failures) == 2
        )  # every attempt was used before it was lost
    failures = sum(row.get(f"failures/{kind}", 0) for row in rows for kind in KINDS)
    assert 0 < failures and sum(injected.values()) > 0
    assert all(torch.isfinite(p).all() for learner in learners for p in learner.policy.parameters())
    assert any(p.abs().max() > 0 for n, p in learners[1].policy.named_parameters() if "lora_B" in n)
    used = [row["memory/host"] for row in rows]
    print(
        f"{batches} batches; injected {injected}; failures {failures}, "
        f"lost episodes {sum(r.get('episodes_lost', 0) for r in rows)}, "
        f"lost tasks {sum(r['tasks_lost'] for r in rows)}; "
        f"memory GiB {used[0]:.3f} first, {max(used):.3f} most, {used[-1]:.3f} last"
    )
    if batches >= 40:
        assert median(used[-10:]) < median(used[10:20]) + 0.1
