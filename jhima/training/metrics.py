"""What an RL run logs: one JSON line per optimisation step in RUN/metrics.jsonl.

docs/metrics.md has the glossary.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from jhima import grpo
from jhima.episodes import Episode, Group
from jhima.policy import Sample
from jhima.training.deepspeed_engine import all_sum

KINDS = ("browser", "site", "login", "judge", "model", "deadline")  # of failures


def rollout_metrics(groups: list[Group], asked: int, plan_tokens: int, action_tokens: int) -> dict:
    """Metrics of a batch's episodes, from disk alone: a resumed run logs the same ones.

    asked: tasks in the batch; a task whose start page never opened has no group. plan_tokens and
    action_tokens: the token budgets. What has no value, such as the mean of nothing, is left out.
    """
    if not groups:
        return {"tasks": 0, "tasks_lost": asked}
    episodes, plans, steps = [], [], []
    failures: Counter[str] = Counter()
    for group in groups:
        plans += [plan for plan in group.plans if plan.ids]
        failures.update(group.failures)
        for row in group.episodes:
            episodes += row
    for episode in episodes:
        steps += episode.steps
        failures.update(episode.failures)
    plans += [s.plan for s in steps if s.plan]
    played = [e for e in episodes if e.reward is not None]
    progress = torch.stack([g.progress() for g in groups])  # [B, K, M]
    metrics = {
        "tasks": len(groups),
        "tasks_lost": asked - len(groups),
        "episodes": len(episodes),
        "episodes_lost": len(episodes) - len(played),
        **_signal(torch.stack([g.rewards() for g in groups])),
        "steps": average([len(e.steps) for e in played]),
        "unfinished": average([not _finished(e) for e in played]),
        "actor/length": average([len(s.ids) for s in steps]),
        "actor/at_budget": average([len(s.ids) >= action_tokens for s in steps]),
        "decomposer/length": average([len(p.ids) for p in plans]),
        "decomposer/at_budget": average([len(p.ids) >= plan_tokens for p in plans]),
        "parse_failures": average([s.turn.error is not None for s in steps]),
        "no_effect": average([bool(s.note) for s in steps]),
        "retries": sum(e.retries for e in episodes),
        **{f"failures/{kind}": failures[kind] for kind in KINDS},
        "milestones": known(progress.nanmean()),
        "seconds/episode": average([e.seconds for e in played]),
        "seconds/replies": average([e.thinking for e in played]),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _signal(R: Tensor) -> dict[str, float | None]:
    """How much the rewards R [B, K, M] can teach each role."""
    S = grpo.plan_scores(R)  # [B, K]
    scored = ~S.isnan().all(-1)  # [B] any plan of the task
    best, worst = S.nan_to_num(-1.0).amax(-1)[scored], S.nan_to_num(2.0).amin(-1)[scored]
    no_signal = grpo.decomposer_advantages(S).abs().amax(-1) == 0  # [B]
    return {
        "reward": known(R.nanmean()),
        "plan_best": known(best.mean()),
        "plan_worst": known(worst.mean()),
        "plan_spread": known((best - worst).mean()),
        "actor/all_0": share(R, 0),
        "actor/all_1": share(R, 1),
        "decomposer/all_0": share(S, 0),
        "decomposer/all_1": share(S, 1),
        "decomposer/no_signal": known(no_signal.float().mean()),
    }


def share(x: Tensor, value: int) -> float | None:
    """The share of groups (the last dimension of x) in which every known entry is `value`.

    Among the groups with any known entry; unknown ones are NaN.
    """
    unknown = x.isnan()
    uniform = ((x == value) | unknown).all(-1)
    return known(uniform[~unknown.all(-1)].float().mean())


def known(x: Tensor) -> float | None:
    """A scalar tensor as a number; None for NaN, as the mean of nothing is."""
    return None if x.isnan() else float(x)


def average(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _finished(episode: Episode) -> bool:
    return any(action.kind in ("answer", "stop") for action in episode.steps[-1].turn.actions)


class TokenSums:
    """What one role's tokens say in one optimisation step.

    The sums stay on the device, so that no micro-batch waits for them.
    """

    NAMES = ("loss", "tokens", "clip_low", "clip_high", "approx_kl", "entropy", "sampler_gap")

    def __init__(self, device: torch.device, eps: float, eps_high: float | None) -> None:
        self.low, self.high = 1 - eps, 1 + (eps_high or eps)  # clipping, as in grpo.policy_loss
        self.sums = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)
        self.gap_max = torch.zeros((), device=device)

    def add(self, part: list[Sample], logp: Tensor, old: Tensor, entropy: Tensor, loss: Tensor):
        """Adds a micro-batch: its loss, and of its tokens logp, old logp and entropy [n]."""
        advantages, sampler_logps = [], []
        for sample in part:
            advantages += [sample.advantage] * len(sample.response_ids)
            sampler_logps += sample.logps
        A = torch.tensor(advantages, device=logp.device)  # [n]
        gap = (old - torch.tensor(sampler_logps, device=logp.device)).abs()  # [n]
        r = grpo.token_ratio(logp, old)  # [n]
        # The only tokens whose gradient clipping removes:
        low, high = (r < self.low) & (A < 0), (r > self.high) & (A > 0)
        kl = grpo.k3(old, logp).sum()  # the tokens are samples of the old policy
        sums = (loss, logp.numel(), low.sum(), high.sum(), kl, entropy.sum(), gap.sum())
        for i, value in enumerate(sums):
            self.sums[i] += value
        self.gap_max = torch.maximum(self.gap_max, gap.max())

    def over_ranks(self) -> dict[str, float]:
        """The step's metrics over all ranks: loss, number of tokens, and means per token."""
        total = dict(zip(self.NAMES, all_sum(*self.sums.tolist())))
        n = max(1.0, total["tokens"])
        return {
            "loss": total["loss"],
            "tokens": int(total["tokens"]),
            **{name: total[name] / n for name in self.NAMES[2:]},
            "sampler_gap_max": all_sum(float(self.gap_max), op=dist.ReduceOp.MAX)[0],
        }


def memory() -> dict[str, float]:
    """GiB: this process's resident memory, and the GPU's peak since the last call."""
    gib = {"memory/host": psutil.Process().memory_info().rss / 2**30}
    if torch.cuda.is_available():
        gib["memory/gpu_peak"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return gib


# ---- where the lines go ----

Track = Callable[[int, dict], None]  # track(step, metrics)


def json_line(row: dict) -> str:
    """A row of metrics as one line. What is not finite is null: JSON knows no NaN."""
    finite = dict(row)
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            finite[name] = None
    return json.dumps(finite, allow_nan=False) + "\n"


def write(out: Path, rows: list[dict], track: Track) -> None:
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.writelines(map(json_line, rows))
    for row in rows:
        track(row["step"], row)


def tracker(name: str | None, args) -> Track:
    """Sends metrics to TensorBoard or Weights & Biases too; imports the package only when asked to.

    args: the run's options, of which `out` names the run. A resumed run continues the same curve.
    Raises ValueError where the package is not installed.
    """
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            return _tensorboard(SummaryWriter(str(args.out / "tensorboard")))
        if name == "wandb":
            import wandb

            run = wandb.init(
                project="jhima-webrl",
                id=args.out.name,
                resume="allow",
                dir=args.out,
                config={option: str(value) for option, value in vars(args).items()},
            )
            return lambda step, row: run.log(row, step=step)
    except ImportError as error:
        raise ValueError(
            f"--track {name}: {error.name} is not installed; pip install {name}"
        ) from None
    return lambda step, row: None


def _tensorboard(board) -> Track:
    def track(step: int, row: dict) -> None:
        for name, value in row.items():
            board.add_scalar(name, value, step)
        board.flush()

    return track
