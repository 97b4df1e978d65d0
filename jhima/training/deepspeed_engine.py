"""DeepSpeed, reduced to what both training scripts need.

The caller owns gradient accumulation: `backward` only adds gradients, `step` reduces them over the
ranks and updates. The caller's loss is this rank's share of one global sum over a constant, so it
is multiplied by the number of ranks (DeepSpeed averages over them) and by nothing else: how samples
are split over micro-batches and ranks does not matter.
"""

from __future__ import annotations

import json
import math
import os
from datetime import timedelta
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from jhima.policy import Policy
from jhima.training.ranks import check_shared
from jhima.training.watchdog import watch

# A run ends after so many skipped steps in a row (see `step`): its model does not recover.
MOST_SKIPPED = 3

# What a launcher would set. Port 0: any that is free.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
ALONE |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def init_distributed(out: Path | None = None) -> tuple[int, int, torch.device]:
    """Joins the process group; returns (rank, world size, device).

    A process that was started without a launcher is the only rank. out: the run's folder; the run
    ends with one line where a host does not see it. A rank that dies before it calls watchdog.leave
    takes the others with it.
    """
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        backend, device = "nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL asks which GPU this rank has
    else:
        backend, device = "gloo", torch.device("cpu")
        # Without this, DeepSpeed compiles a shared-memory all-reduce for a minute before it starts.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # A rank that has played its episodes waits for the slowest one, whose sites may need a reset
    # first. The timeout can be long because the watchdog, not NCCL, detects dead ranks.
    deepspeed.init_distributed(backend, verbose=False, timeout=timedelta(hours=12))
    watch()
    if out is not None:
        check_shared(out)
    return dist.get_rank(), dist.get_world_size(), device


def make_engine(
    policy: nn.Module,
    config: Path,
    lr: float,
    stage: int,
    bf16: bool,
    clip: float = 1.0,
    **settings,
):
    """A DeepSpeed engine over a policy's trainable parameters, with AdamW without weight decay.

    config: a file like ds_config.json. The ZeRO stage, bf16, gradient clipping and any `settings`
    given here replace the file's. A LoRA run has bf16=False: the adapters stay in fp32, so that
    small updates are not lost, over a base that stays in bf16.
    """
    merged = json.loads(config.read_text("utf-8")) | settings
    merged["zero_optimization"]["stage"] = stage
    merged |= {
        "bf16": {"enabled": bf16},
        "gradient_clipping": clip,
        "steps_per_print": 1 << 30,
        "zero_allow_untested_optimizer": True,
    }
    trainable = [p for p in policy.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=policy,
        model_parameters=trainable,
        optimizer=torch.optim.AdamW(trainable, lr=lr, weight_decay=0.0),
        config=merged,
    )
    return engine


def backward(engine, loss: Tensor) -> None:
    """Adds the gradient of this rank's share of the global loss."""
    engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)


def step(engine, lr: float) -> float:
    """One update with the gradients that all ranks have added; returns their norm before clipping.

    NaN where they are not finite: DeepSpeed skips such an update without a word. Every rank must
    have called `backward` at least once (see `nothing`).
    """
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    engine.step()
    if not engine.was_step_applied():
        return math.nan
    return float(engine.get_global_grad_norm() or 0.0)


def nothing(policy: nn.Module) -> Tensor:
    """A zero loss that reaches every trainable parameter: that of a rank without samples."""
    return sum(p.sum() for p in policy.parameters() if p.requires_grad) * 0.0


def all_sum(*values: float, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> list[float]:
    """Each value summed over the ranks (op=dist.ReduceOp.MAX: its largest)."""
    total = torch.tensor(values, dtype=torch.float64)
    if dist.get_backend() == "nccl":
        total = total.cuda()
    dist.all_reduce(total, op)
    return total.tolist()


def full_state(policy: Policy, stage: int) -> dict[str, Tensor] | None:
    """The trained model's state dict for save_pretrained; call it on every rank.

    Under ZeRO-3 it is gathered from all ranks, and only rank 0 gets it. None below stage 3, where
    each rank already holds the parameters whole.
    """
    if stage < 3:
        return None
    state = {}
    for name, parameter in policy.model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if dist.get_rank() == 0:
                state[name] = parameter.detach().cpu().clone()
    return state
