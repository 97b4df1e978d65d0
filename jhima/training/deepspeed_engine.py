"""DeepSpeed, reduced to what both training scripts need.

The caller owns gradient accumulation: `backward` only adds gradients, `step` reduces them over the ranks and updates.
A loss arrives as this rank's share of one global sum over a constant, so it is scaled by the number of ranks (DeepSpeed
averages over them) and by nothing else: how samples are split over micro-batches and ranks does not matter.
"""

from __future__ import annotations

import json
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


def init_distributed(out: Path | None = None) -> tuple[int, int, torch.device]:
    """(rank, world size, device). Started without a launcher, the process is a world of its own.

    out: the run's folder; the run ends with a line where a host does not see it. A rank that ends before ranks.leave
    takes the others with it.
    """
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
    ):
        os.environ.setdefault(name, value)
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = str(free_port())
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before NCCL looks which one this rank has
    else:
        # Gradients of a CPU run go through gloo; DeepSpeed would first compile a shared-memory all-reduce for a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # A rank whose episodes are done waits for the slowest rank's, whose sites may need a reset first; deaths are
    # `watch`'s to notice, so that this can be long.
    deepspeed.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo",
        verbose=False,
        timeout=timedelta(hours=12),
    )
    watch()
    if out is not None:
        check_shared(out)
    return dist.get_rank(), dist.get_world_size(), device


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_engine(
    policy: Policy, config: Path | dict, lr: float, stage: int, bf16: bool, clip: float = 1.0
):
    """A DeepSpeed engine over a policy's trainable parameters, with AdamW without weight decay.

    config: ds_config.json, of which the ZeRO stage, bf16 and gradient clipping are set here. A LoRA run has no bf16
    block: the adapters stay in fp32, so small updates are not lost, over a base that stays in bf16.
    """
    config = (
        json.loads(Path(config).read_text("utf-8")) if isinstance(config, Path) else dict(config)
    )
    zero = {
        k: v
        for k, v in config["zero_optimization"].items()
        if stage == 3 or not k.startswith("stage3")
    }
    config |= {
        "zero_optimization": zero | {"stage": stage},
        "bf16": {"enabled": bf16},
        "gradient_clipping": clip,
    }
    config["train_batch_size"] = (
        config["train_micro_batch_size_per_gpu"]
        * config["gradient_accumulation_steps"]
        * dist.get_world_size()
    )
    trainable = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=lr, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(
        model=policy,
        model_parameters=trainable,
        optimizer=optimizer,
        config=config | {"steps_per_print": 1 << 30, "zero_allow_untested_optimizer": True},
    )
    return engine


def backward(engine, loss: Tensor) -> None:
    """Adds the gradient of this rank's share of the global loss."""
    engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)


def step(engine, lr: float) -> float:
    """One update with the gradients that all ranks have added; returns their global norm before clipping.

    Every rank must have called `backward` at least once (see `nothing`).
    """
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    engine.step()
    norm = engine.get_global_grad_norm()
    return float(norm) if norm is not None else 0.0


def nothing(policy: nn.Module) -> Tensor:
    """A zero loss that reaches every trainable parameter: the contribution of a rank without samples."""
    return sum(p.sum() for p in policy.parameters() if p.requires_grad) * 0.0


def all_sum(*values: float, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> list[float]:
    """Each value summed over the ranks (op=dist.ReduceOp.MAX: its largest)."""
    total = torch.tensor(values, dtype=torch.float64)
    if dist.get_backend() == "nccl":
        total = total.cuda()
    dist.all_reduce(total, op)
    return total.tolist()


def full_state(policy: Policy, stage: int) -> dict[str, Tensor] | None:
    """The trained model's state dict for save_pretrained, gathered from all ranks under ZeRO-3 (call it on every rank).

    None below stage 3, where each rank already holds the parameters whole.
    """
    if stage < 3:
        return None
    state = {}
    for name, parameter in policy.model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if dist.get_rank() == 0:
                state[name] = parameter.detach().cpu().clone()
    return state
