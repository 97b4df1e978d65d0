"""Checkpoints of a run: what a killed run needs to continue as if nothing had happened.

    RUN/state.json                              batches done; written last and at once: it makes
                                                the checkpoint count
    RUN/checkpoints/<batches>/<roles>/engine    DeepSpeed's: adapter and optimizer, a shard per rank
    RUN/checkpoints/<batches>/<roles>/adapter   the adapter, as PEFT and vLLM load it

No random generator's state is stored, because none outlives a batch: every draw, of a token or of a
shuffle, is seeded by its place in the run (rollout.seed_of), and the number of batches done tells
which tasks come next.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from jhima.policy import Policy, save_policy
from jhima.run_directory import write_whole
from jhima.training import deepspeed_engine
from jhima.training.watchdog import end


@dataclass
class Learner:
    """One set of weights, and the roles that it plays."""

    policy: Policy
    roles: tuple[str, ...]
    engine: object | None  # DeepSpeed's; None where the weights are never updated
    skipped: int = 0  # steps in a row until now whose gradient was not finite

    @property
    def name(self) -> str:
        return "-".join(self.roles)


def trained(learners: list[Learner]) -> list[Learner]:
    return [learner for learner in learners if learner.engine is not None]


def step(learner: Learner, lr: float) -> dict[str, float]:
    """One update of a learner; returns the step's metrics."""
    norm = deepspeed_engine.step(learner.engine, lr)
    skipped = math.isnan(norm)
    learner.skipped = (learner.skipped + 1) * skipped
    return {"grad_norm": norm, "skipped": int(skipped)}


def end_if_stuck(learners: list[Learner], batch: int, steps: int) -> None:
    """Ends the run, before a checkpoint, where a model's last steps were all skipped.

    steps: those of the whole run. Call it on every rank.
    """
    for learner in learners:
        if learner.skipped >= min(deepspeed_engine.MOST_SKIPPED, steps):
            count = f"{learner.skipped} steps in a row"
            end(f"batch {batch}: gradients of the {learner.name} not finite, {count}")


def batches_done(out: Path) -> int:
    """How many batches the run in `out` has finished.

    Raises ValueError where this number of processes cannot continue it: each rank's share of the
    optimizer is a file of its own.
    """
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
            f"{out} holds a run on {processes} processes; "
            "continue it with as many, or give another --out"
        )
    return done


def save_resumable(out: Path, learners: list[Learner], done: int, keep: int) -> None:
    """Adapters and optimizers after `done` batches; keeps the last `keep` checkpoints."""
    folder = out / "checkpoints" / f"{done:06d}"
    for learner in trained(learners):
        learner.engine.save_checkpoint(
            folder / learner.name, tag="engine", exclude_frozen_parameters=True
        )
        if dist.get_rank() == 0:
            save_policy(learner.policy, folder / learner.name / "adapter")
    state = {"batches": done, "processes": dist.get_world_size()}
    commit(out / "state.json", json.dumps(state), sorted(folder.parent.iterdir())[:-keep])


def commit(path: Path, content: str, old: Iterable[Path]) -> None:
    """Makes a checkpoint count: writes `path`, which names it, and deletes `old` checkpoints."""
    dist.barrier()  # every rank's shard is on disk
    if dist.get_rank() == 0:
        write_whole(path, content)
        for folder in old:
            shutil.rmtree(folder)
    dist.barrier()


def load_resumable(out: Path, learners: list[Learner], done: int) -> None:
    """Loads the checkpoint after `done` batches.

    A batch that was interrupted before its checkpoint is updated again from the episodes that it
    left, so its lines of metrics are dropped.
    """
    if done:
        folder = out / "checkpoints" / f"{done:06d}"
        for learner in trained(learners):
            learner.engine.load_checkpoint(
                folder / learner.name, tag="engine", load_module_strict=False
            )
    if dist.get_rank() == 0:
        drop_metrics(out / "metrics.jsonl", "batch", done)


def drop_metrics(path: Path, unit: str, done: int) -> None:
    """Drops the lines of steps or batches (`unit`) that are about to be run again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        whole = line.endswith("\n")  # a kill may have cut the last line short
        if whole and json.loads(line)[unit] < done:
            kept.append(line)
    write_whole(path, "".join(kept))
