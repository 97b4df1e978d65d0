"""What a run logs, from made-up episodes with known answers; checkpoints; trackers."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from types import ModuleType

import pytest
import torch

from jhima.actions import Action, Turn
from jhima.episodes import Episode, Group, Plan, Step, Task
from jhima.policy import Sample
from jhima.training import checkpoints, metrics

TASK = Task("t", (), "", "", {})


def step(ids: int, kind: str | None = "click", note: str = "") -> Step:
    turn = Turn((Action(kind, 1, 1),) if kind else (), "", "", None if kind else "no action")
    return Step(b"", 1, 1, "", turn, note, "", [1], [2] * ids, [-1.0] * ids)


def group(rewards: list[list[int | None]], failures: list[str] = ()) -> Group:
    episodes = [
        [
            Episode(
                "t",
                i,
                j,
                [step(4), step(2, None, "missed"), step(3, "stop")] if r is not None else [],
                r,
                None if r is not None else {"kind": "site"},
                "",
                "",
                [],
                2.0,
                1 if r is None else 0,
                ["site", "site"] if r is None else [],
                0.5,
            )
            for j, r in enumerate(row)
        ]
        for i, row in enumerate(rewards)
    ]
    return Group(
        TASK,
        b"",
        [Plan("", ["a"], [1], [5] * 6, [-1.0] * 6) for _ in rewards],
        episodes,
        list(failures),
    )


def test_rollout_metrics_of_known_episodes():
    groups = [
        group([[1, 1], [0, 0]], ["browser"]),
        group([[0, 0], [0, None]]),
        group([[1, 0], [1, 0]]),
    ]
    row = metrics.rollout_metrics(groups, asked=4, plan_tokens=6, action_tokens=4)
    expected = {
        "tasks": 3,
        "tasks_lost": 1,
        "episodes": 12,
        "episodes_lost": 1,
        "reward": 4 / 11,
        "plan_best": 0.5,
        "plan_worst": 1 / 6,
        "plan_spread": 1 / 3,
        "actor/all_0": 3 / 6,
        "actor/all_1": 1 / 6,
        "decomposer/all_0": 1 / 3,
        "decomposer/all_1": 0.0,
        "decomposer/no_signal": 2 / 3,
        "steps": 3.0,
        "unfinished": 0.0,
        "actor/length": 3.0,
        "actor/at_budget": 1 / 3,
        "decomposer/length": 6.0,
        "decomposer/at_budget": 1.0,
        "parse_failures": 1 / 3,
        "no_effect": 1 / 3,
        "retries": 1,
        "failures/browser": 1,
        "failures/site": 2,
        "failures/login": 0,
        "failures/judge": 0,
        "failures/model": 0,
        "failures/deadline": 0,
        "seconds/episode": 2.0,
        "seconds/replies": 0.5,
    }
    assert row == pytest.approx(expected)
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize("rewards", [[[None, None], [None, None]], [[None, None], [1, 0]]])
def test_lost_plans_leave_no_nan(rewards):
    row = metrics.rollout_metrics([group(rewards)], 1, 6, 4)
    json.dumps(row, allow_nan=False)
    assert row.get("reward") == (None if rewards[1][0] is None else 0.5)


def test_tied_plans_carry_no_signal():
    """Three plans of 5/7 each, whose mean is not 5/7 in floats."""
    row = metrics.rollout_metrics([group([[1] * 5 + [0] * 2] * 3)], 1, 6, 4)
    assert row["decomposer/no_signal"] == 1.0


@pytest.mark.parametrize("old", [(4, 2, 1, 1), (1, 1, 1, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize("new", [(1, 1, 1, 5), (2, 3, 2, 1), (1, 1, 1, 1)])
def test_approx_kl_is_the_divergence_from_the_policy_that_sampled(old, new):
    """Tokens in the old policy's exact shares: the estimate's mean is KL(old || new) itself."""
    p, q = (torch.tensor(shares, dtype=torch.float64) / sum(shares) for shares in (old, new))
    tokens = torch.repeat_interleave(torch.arange(4), torch.tensor(old))
    sample = Sample([1], b"", tokens.tolist(), 1.0, p.log()[tokens].tolist())
    sums = metrics.TokenSums(torch.device("cpu"), 0.2, None)
    zero = torch.zeros(())
    sums.add([sample], q.log()[tokens], p.log()[tokens], zero, zero)
    kl = sums.sums[metrics.TokenSums.NAMES.index("approx_kl")] / len(tokens)
    assert kl.item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-12)


def test_a_tracker_is_imported_only_when_asked_for(tmp_path, monkeypatch):
    args = Namespace(out=tmp_path / "run", lr=1e-5)
    metrics.tracker(None, args)(0, {"reward": 1.0})
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(
        ValueError, match="--track wandb: wandb is not installed; pip install wandb"
    ):
        metrics.tracker("wandb", args)
    seen = []
    stand_in = ModuleType("wandb")
    stand_in.init = lambda **settings: Namespace(
        log=lambda row, step: seen.append((settings["id"], step, row))
    )
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    metrics.write(tmp_path, [{"step": 3, "reward": 0.5}], metrics.tracker("wandb", args))
    assert seen == [("run", 3, {"step": 3, "reward": 0.5})]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 3, "reward": 0.5}\n'


def test_state_of_another_kind_is_one_clear_line(tmp_path):
    assert checkpoints.batches_done(tmp_path) == 0
    for text, message in (
        ("{", "not the state of a run"),
        ('{"batches": 3}', "not the state of a run"),
        ('{"batches": 3, "processes": 8}', "holds a run on 8 processes"),
    ):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            checkpoints.batches_done(tmp_path)
