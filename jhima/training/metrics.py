"""What an RL run logs: one JSON line an optimisation step in RUN/metrics.jsonl. docs/metrics.md has the glossary."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from jhima import grpo
from jhima.episodes import Group
from jhima.policy import Sample
from jhima.training.deepspeed_engine import all_sum

KINDS = ("browser", "site", "login", "judge", "deadline")


def rollout_metrics(groups: list[Group], asked: int, plan_tokens: int, action_tokens: int) -> dict:
    """What a batch's episodes say, read from disk alone: a resumed run logs what an uninterrupted one does.

    asked: tasks in the batch; of those whose start page never opened there is no group.
    """
    if not groups:
        return {"tasks": 0, "tasks_lost": asked}
    R = torch.stack([g.rewards() for g in groups])  # [B, K, M]
    S = grpo.plan_scores(R)  # [B, K]
    episodes = [e for g in groups for row in g.episodes for e in row]
    played = [e for e in episodes if e.reward is not None]
    steps = [s for e in episodes for s in e.steps]
    plans = [p for g in groups for p in g.plans if p.ids] + [s.plan for s in steps if s.plan]
    failed = Counter(kind for g in groups for kind in g.failures) + Counter(
        kind for e in episodes for kind in e.failures
    )
    best, worst = S.nan_to_num(-1.0).amax(-1), S.nan_to_num(2.0).amin(-1)  # [B]
    known = ~S.isnan().all(-1)  # [B]
    progress = torch.stack([g.progress() for g in groups])  # [B, K, M]
    row = {
        "tasks": len(groups),
        "tasks_lost": asked - len(groups),
        "episodes": len(episodes),
        "episodes_lost": len(episodes) - len(played),
        "reward": number(R.nanmean()),
        "plan_best": mean(best[known]),
        "plan_worst": mean(worst[known]),
        "plan_spread": mean((best - worst)[known]),
        "actor/all_0": share(R == 0, ~R.isnan()),
        "actor/all_1": share(R == 1, ~R.isnan()),
        "decomposer/all_0": share(S == 0, ~S.isnan()),
        "decomposer/all_1": share(S == 1, ~S.isnan()),
        "decomposer/no_signal": mean((grpo.decomposer_advantages(S).abs().amax(-1) == 0).float()),
        "steps": ratio(sum(len(e.steps) for e in played), len(played)),
        "unfinished": ratio(
            sum(
                not any(a.kind in ("answer", "stop") for a in e.steps[-1].turn.actions)
                for e in played
            ),
            len(played),
        ),
        "actor/length": ratio(sum(len(s.ids) for s in steps), len(steps)),
        "actor/at_budget": ratio(sum(len(s.ids) >= action_tokens for s in steps), len(steps)),
        "decomposer/length": ratio(sum(len(p.ids) for p in plans), len(plans)),
        "decomposer/at_budget": ratio(sum(len(p.ids) >= plan_tokens for p in plans), len(plans)),
        "parse_failures": ratio(sum(s.turn.error is not None for s in steps), len(steps)),
        "no_effect": ratio(sum(bool(s.note) for s in steps), len(steps)),
        "retries": sum(e.retries for e in episodes),
        **{f"failures/{kind}": failed[kind] for kind in KINDS},
        "milestones": number(progress.nanmean()),
        "seconds/episode": ratio(sum(e.seconds for e in played), len(played)),
        "seconds/replies": ratio(sum(e.thinking for e in played), len(played)),
    }
    return {name: value for name, value in row.items() if value is not None}  # None: of nothing


def share(flags: Tensor, known: Tensor) -> float:
    """Share of the last dimension's groups, among those with anything known, in which every known entry is flagged."""
    some = known.any(-1)
    return mean((flags | ~known).all(-1)[some].float())


def mean(x: Tensor) -> float | None:
    return float(x.mean()) if x.numel() else None


def number(x: Tensor) -> float | None:
    return None if x.isnan() else float(x)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class TokenSums:
    """What one role's tokens say in one optimisation step: sums on the device, so that no micro-batch waits for them."""

    NAMES = ("loss", "tokens", "clip_low", "clip_high", "approx_kl", "entropy", "sampler_gap")

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)
        self.gap_max = torch.zeros((), device=device)

    def add(
        self,
        part: list[Sample],
        logp: Tensor,
        old: Tensor,
        entropy: Tensor,
        loss: Tensor,
        eps: float,
        eps_high: float | None,
    ) -> None:
        """logp, old, entropy [n]: of the samples' tokens; loss: of the micro-batch."""
        advantage = torch.tensor(
            [s.advantage for s in part for _ in s.response_ids], device=logp.device
        )  # [n]
        sampled = torch.tensor([p for s in part for p in s.logps], device=logp.device)  # [n]
        r, gap = grpo.token_ratio(logp, old), (old - sampled).abs()
        low = (r < 1 - eps) & (advantage < 0)  # the only tokens whose gradient
        high = (r > 1 + (eps_high or eps)) & (advantage > 0)  # clipping removes
        self.sums += torch.stack(
            [
                torch.as_tensor(x, dtype=torch.float64, device=logp.device)
                for x in (
                    loss,
                    logp.numel(),
                    low.sum(),
                    high.sum(),
                    grpo.k3(logp, old).sum(),
                    entropy.sum(),
                    gap.sum(),
                )
            ]
        )
        self.gap_max = torch.maximum(self.gap_max, gap.max())

    def over_ranks(self) -> dict[str, float]:
        """The step's metrics over all ranks: loss as it is, tokens a count, the others means over tokens."""
        total = dict(zip(self.NAMES, all_sum(*self.sums.tolist())))
        n = max(1.0, total["tokens"])
        means = {name: total[name] / n for name in self.NAMES[2:]}
        return {
            "loss": total["loss"],
            "tokens": int(total["tokens"]),
            **means,
            "sampler_gap_max": all_sum(float(self.gap_max), op=dist.ReduceOp.MAX)[0],
        }


def memory() -> dict[str, float]:
    """GiB: this process's resident memory, and the GPU's peak since the last call."""
    now = {"memory/host": psutil.Process().memory_info().rss / 2**30}
    if torch.cuda.is_available():
        now["memory/gpu_peak"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return now


# ---- where the lines go ----


def write(out: Path, rows: list[dict], track: Callable[[int, dict], None]) -> None:
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.writelines(json.dumps(row) + "\n" for row in rows)
    for row in rows:
        track(row["step"], row)


def tracker(name: str | None, args: argparse.Namespace) -> Callable[[int, dict], None]:
    """track(step, metrics) for TensorBoard or Weights & Biases; the package is imported only when asked for.

    Raises ValueError where it is not installed. A resumed run goes on in the same curve.
    """
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(str(args.out / "tensorboard"))
            return lambda step, row: (
                [board.add_scalar(k, v, step) for k, v in row.items()],
                board.flush(),
            )
        if name == "wandb":
            import wandb

            run = wandb.init(
                project="jhima-webrl",
                id=args.out.name,
                resume="allow",
                dir=args.out,
                config={k: str(v) for k, v in vars(args).items()},
            )
            return lambda step, row: run.log(row, step=step)
    except ImportError as error:
        raise ValueError(
            f"--track {name}: {error.name} is not installed; pip install {name}"
        ) from None
    return lambda step, row: None
