"""Two updates of train_rl.update on fixed samples; rank 0 saves the adapter.

test_deepspeed_engine.py runs it under torchrun.

rl_worker.py CHECKPOINT OUT MICRO_BATCH DEAL      DEAL: balanced, or all samples on the last rank
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from samples import ROOT, make_samples

import train_rl
from jhima.policy import load_policy
from jhima.training.checkpoints import Learner
from jhima.training.deepspeed_engine import init_distributed, make_engine

checkpoint, out, micro, deal = sys.argv[1:]
rank, world, device = init_distributed()
torch.manual_seed(0)
policy = load_policy(checkpoint, device, torch.float32, lora=(4, 8))
with torch.no_grad():  # the same non-zero adapter on every rank
    for p in policy.parameters():
        if p.requires_grad:
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05)
engine = make_engine(policy, ROOT / "ds_config.json", 1e-3, stage=1, bf16=False, clip=1e9)
samples = train_rl.useful(make_samples(policy, 10), beta=0.0)
if deal == "balanced":
    share = train_rl.balanced([samples[r::world] for r in range(world)])[rank]
else:
    share = samples if rank == world - 1 else []
args = train_rl.Args(micro_batch=int(micro), passes=2, temperature=0.8, lr=1e-3)
learner = Learner(policy, ("actor",), engine)
rows = train_rl.update(learner, {"actor": share}, {"actor": 100.0}, args)
if rank == 0:
    state = {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}
    torch.save({"state": state, "rows": rows}, Path(out))
