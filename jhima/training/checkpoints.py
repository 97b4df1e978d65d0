"""Checkpoints of an RL run: what a killed run needs to go on as if nothing had happened.

    RUN/state.json                              batches done; replaced last and at once, it makes a checkpoint count
    RUN/checkpoints/<batches>/<roles>/engine    DeepSpeed's: adapter and optimizer, a shard a rank
    RUN/checkpoints/<batches>/<roles>/adapter   the adapter as PEFT and vLLM load it

No state of any random generator is among it, because none outlives a batch: every draw, a token's or a shuffle's, is
seeded by its place in the run (rollout.seed_of), and a batch's number says what the data cursor is.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from jhima.policy import Policy, save_policy
from jhima.run_directory import write_whole


@dataclass
class Learner:
    """One set of weights: its policy, the roles that it plays, and its engine (None where it is never updated)."""

    policy: Policy
    roles: tuple[str, ...]
    engine: object | None

    @property
    def name(self) -> str:
        return "-".join(self.roles)


def batches_done(out: Path) -> int:
    """How many batches the run in `out` has finished. Raises ValueError where this process group cannot go on with it:
    each rank's share of the optimizer lies in a file of its own."""
    path = out / "state.json"
    if not path.exists():
        return 0
    try:
        state = json.loads(path.read_text("utf-8"))
        done, processes = int(state["batches"]), int(state["processes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the state of a run of this version ({error!r})") from None
    if processes != int(os.environ.get("WORLD_SIZE", "1")):
        raise ValueError(
            f"{out} holds a run on {processes} processes; go on with as many, or give another --out"
        )
    return done


def save_resumable(out: Path, learners: list[Learner], done: int, keep: int) -> None:
    """Adapters and optimizers after `done` batches; of older checkpoints the last `keep` - 1 stay."""
    place = out / "checkpoints" / f"{done:06d}"
    for learner in trained(learners):
        learner.engine.save_checkpoint(
            place / learner.name, tag="engine", exclude_frozen_parameters=True
        )
        if dist.get_rank() == 0:
            save_policy(learner.policy, place / learner.name / "adapter")
    dist.barrier()  # every rank's shard is on disk before the checkpoint counts
    if dist.get_rank() == 0:
        write_whole(
            out / "state.json", json.dumps({"batches": done, "processes": dist.get_world_size()})
        )
        for old in sorted((out / "checkpoints").iterdir())[:-keep]:
            shutil.rmtree(old)
    dist.barrier()


def load_resumable(out: Path, learners: list[Learner], done: int) -> None:
    """Loads the checkpoint after `done` batches. Lines of metrics of a batch that did not get as far as its checkpoint
    are dropped: it is updated again, from the episodes that it left."""
    for learner in trained(learners) if done else []:
        learner.engine.load_checkpoint(
            out / "checkpoints" / f"{done:06d}" / learner.name,
            tag="engine",
            load_module_strict=False,
        )
    metrics = out / "metrics.jsonl"
    if dist.get_rank() == 0 and metrics.exists():
        lines = [
            line
            for line in metrics.read_text("utf-8").splitlines(keepends=True)
            if line.endswith("\n")
        ]
        write_whole(metrics, "".join(line for line in lines if json.loads(line)["batch"] < done))


def trained(learners: list[Learner]) -> list[Learner]:
    return [learner for learner in learners if learner.engine is not None]
