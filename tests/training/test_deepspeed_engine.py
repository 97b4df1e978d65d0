"""One update, however it is split over micro-batches and DeepSpeed processes.

One of the processes may have no sample.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

import deepspeed
import pytest
import torch
from samples import ROOT, make_samples

import train_rl
from jhima import grpo
from jhima.policy import load_policy
from jhima.training import deepspeed_engine


def one_shot(checkpoint, passes: int = 2) -> tuple[dict, list[float]]:
    """The same update by plain autograd and AdamW: one backward pass over all samples.

    Those with advantage zero are among them.
    """
    torch.manual_seed(0)
    policy = load_policy(checkpoint, "cpu", torch.float32, lora=(4, 8))
    trainable = [p for p in policy.parameters() if p.requires_grad]
    with torch.no_grad():
        for p in trainable:
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05)
    samples = make_samples(policy, 10)
    advantage = torch.tensor([s.advantage for s in samples for _ in s.response_ids])
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, weight_decay=0.0)
    old, norms = None, []
    for _ in range(passes):
        logp = policy(samples, 0.8)
        old = logp.detach() if old is None else old
        optimizer.zero_grad()
        grpo.policy_loss(logp, old, advantage, 100.0).backward()
        norms.append(torch.cat([p.grad.flatten() for p in trainable]).norm().item())
        optimizer.step()
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}, norms


@pytest.mark.parametrize(
    "processes, micro, deal",
    [(1, 3, "balanced"), (2, 1, "balanced"), (2, 4, "all on the last rank")],
)
def test_any_split_gives_the_one_shot_update(checkpoint, tmp_path, processes, micro, deal):
    out = tmp_path / "result.pt"
    command = f"torch.distributed.run --standalone --nproc-per-node {processes}".split()
    worker = ROOT / "tests/helpers/rl_worker.py"
    subprocess.run(
        [sys.executable, "-m", *command, worker, checkpoint, out, str(micro), deal],
        check=True,
        timeout=240,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    result = torch.load(out)
    state, norms = one_shot(checkpoint)
    for name, expected in state.items():
        # Adam divides by the size of a gradient, so this asks for each of its elements to about one
        # part in a thousand.
        assert (result["state"][name] - expected).abs().max() < 1e-6, name
    first, second = result["rows"]
    clipped = [first[f"actor/{name}"] for name in ("clip_low", "clip_high", "approx_kl")]
    assert clipped == [0, 0, 0]  # ratios are exactly 1
    assert second["actor/approx_kl"] > 0
    assert [first["actor/grad_norm"], second["actor/grad_norm"]] == pytest.approx(norms, rel=1e-4)


def test_skipping_zero_advantages_leaves_the_gradient(checkpoint):
    policy = load_policy(checkpoint, "cpu", torch.float32, lora=(4, 8))
    trainable = [p for p in policy.parameters() if p.requires_grad]
    samples = make_samples(policy, 9)
    kept = train_rl.useful(samples, beta=0.0)
    assert 0 < len(kept) < len(samples) and train_rl.useful(samples, beta=0.1) == samples
    gradients = []
    for part in (samples, kept):
        logp = policy(part, 0.8)
        advantage = torch.tensor([s.advantage for s in part for _ in s.response_ids])
        gradients.append(
            torch.autograd.grad(grpo.policy_loss(logp, logp.detach(), advantage, 50.0), trainable)
        )
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(*gradients)) and any(
        g.abs().max() > 1e-4 for g in gradients[0]
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_that_is_not_finite_is_told_and_leaves_the_weights(stage, bf16, bad):
    """By real DeepSpeed, in every ZeRO stage; the next step is taken again."""
    deepspeed_engine.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, dtype=torch.bfloat16 if bf16 else torch.float32)
    config = ROOT / "ds_config.json"
    engine = deepspeed_engine.make_engine(model, config, 1e-2, stage=stage, bf16=bf16)
    x = torch.ones(1, 4, dtype=model.bias.dtype)
    norms, biases = [], []
    for factor in (1.0, bad, bad, 1.0):
        deepspeed_engine.backward(engine, (engine(x) * factor).sum())
        norms.append(deepspeed_engine.step(engine, 1e-2))
        with deepspeed.zero.GatheredParameters([model.bias]):
            biases.append(model.bias.detach().clone())
    assert [math.isfinite(norm) for norm in norms] == [True, False, False, True]
    assert torch.equal(biases[0], biases[2]) and not torch.equal(biases[2], biases[3])
    assert all(bias.isfinite().all() for bias in biases)
