"""Stage 2 (section 3.3): supervised fine-tuning of the decomposer (eq. 3) or the actor (eq. 4).

    deepspeed train_sft.py --role decomposer --data runs/demos/meta.json --annotations runs/annotations.jsonl
    deepspeed train_sft.py --role actor      --data runs/demos/meta.json --annotations runs/annotations.jsonl

Full parameters, vision tower frozen as in ScaleCUA's released recipe, cosine schedule with warm-up, loss on the
reply's tokens only: minus their mean log-likelihood over the global batch. Defaults are the paper's (section 4.3), for
8 GPUs: 2 samples x 4 accumulation steps x 8 = 64. Running the same command again resumes from the last checkpoint.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from jhima.data import actor_samples, decomposer_sample, read_annotations, read_trajectories
from jhima.engine import all_sum, backward, full_state, init_distributed, make_engine, nothing, step
from jhima.policy import Policy, Sample, check_checkpoint, default_dtype, load_policy, save_policy


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--role", choices=("decomposer", "actor"), required=True)
    add("--data", type=Path, required=True, help="ScaleCUA meta file that names the trajectories")
    add("--annotations", type=Path, help="annotate.py's output (needed unless --no-plan)")
    add("--no-plan", action="store_true", help="an actor without subtasks in its prompt, for the ablations without decomposer")
    add("--model", default="Qwen/Qwen2.5-VL-7B-Instruct", help="the model to start from (default: %(default)s)")
    add("--out", type=Path, help="where the checkpoint goes (default: checkpoints/ROLE)")
    add("--epochs", type=int, default=1, help="(default: %(default)s)")
    add("--lr", type=float, default=1e-5, help="peak learning rate (default: %(default)s)")
    add("--warmup", type=float, default=0.03, help="share of steps that warm up (default: %(default)s)")
    add("--clip", type=float, default=1.0, help="gradient norm to clip at (default: %(default)s)")
    add("--max-length", type=int, default=30720, help="longer samples are left out and counted (default: %(default)s)")
    add("--deepspeed-config", type=Path, default=Path("ds_config.json"),
        help="micro-batch, accumulation and ZeRO-3 settings (default: %(default)s)")
    add("--micro-batch", type=int, help="samples a rank and backward pass (default: the config's)")
    add("--accumulate", type=int, help="backward passes a step (default: the config's)")
    add("--zero", type=int, choices=(1, 2, 3), help="ZeRO stage (default: the config's on GPUs, 1 on CPUs)")
    add("--tune-vision", action="store_true", help="train the vision tower too")
    add("--prompt", type=Path, help="JSON file of prompts over the checkpoint's own")
    add("--save-every", type=int, default=500, help="steps between checkpoints to resume from (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--local_rank", type=int, help=argparse.SUPPRESS)       # given by older DeepSpeed launchers
    return parser.parse_args()


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = parse_args()
    args.out = args.out or Path("checkpoints") / args.role
    try:
        check_checkpoint(args.model, "python -m jhima.pocket model" if "pocket" in args.model else "")
        if args.annotations is None and not args.no_plan:
            raise ValueError("--annotations is needed (or --no-plan, for an actor without subtasks)")
        trajectories = read_trajectories(args.data)
        annotations = read_annotations(args.annotations) if args.annotations else {}
        config = json.loads(args.deepspeed_config.read_text("utf-8"))
    except (ValueError, OSError) as error:
        sys.exit(f"train_sft.py: {error}")
    rank, world, device = init_distributed()
    config["train_micro_batch_size_per_gpu"] = micro = args.micro_batch or config["train_micro_batch_size_per_gpu"]
    config["gradient_accumulation_steps"] = accumulate = args.accumulate or config["gradient_accumulation_steps"]
    stage = args.zero or (config["zero_optimization"]["stage"] if device.type == "cuda" else 1)

    # ---- 2. Model and samples ----
    policy = load_policy(args.model, device, default_dtype(device), prompts=args.prompt, tune_vision=args.tune_vision,
                         checkpointing="on" if device.type == "cuda" else "off")
    policy.base.model.visual.requires_grad_(args.tune_vision)
    samples, left_out = build_samples(args, policy, trajectories, annotations)
    if not samples:
        sys.exit(f"train_sft.py: no sample is left of {len(trajectories)} trajectories: {left_out}")
    engine = make_engine(policy, config, args.lr, stage, bf16=device.type == "cuda", clip=args.clip)
    per_step = micro * accumulate * world
    steps = args.epochs * math.ceil(len(samples) / per_step)
    if rank == 0:
        print(f"{args.role}: {len(samples)} samples ({left_out}), {steps} steps of {per_step}, ZeRO-{stage}, "
              f"{sum(p.numel() for p in policy.parameters() if p.requires_grad):,} parameters to train", flush=True)

    # ---- 3. Training ----
    folder = args.out / "resume"
    done = resume(engine, folder)
    policy.train()
    args.out.mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=steps, initial=done, desc=f"sft {args.role}", unit="step", disable=rank != 0)
    for number in range(done, steps):
        began = time.monotonic()
        batch = batch_of(number, samples, per_step, args.seed)
        lr = args.lr * schedule(number, steps, args.warmup)
        loss, norm, tokens = train_step(engine, policy, batch, micro, rank, world, lr)
        row = {"step": number, "loss": loss, "lr": lr, "grad_norm": norm, "tokens": tokens,
               "samples/s": len(batch) / (time.monotonic() - began)}
        if rank == 0:
            with (args.out / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row) + "\n")
        bar.update()
        bar.set_postfix(loss=f"{loss:.3f}")
        if (number + 1) % args.save_every == 0 and number + 1 < steps:
            save_resumable(engine, folder, number + 1)
    bar.close()

    # ---- 4. The checkpoint: transformers, PEFT and vLLM load it as it is ----
    state = full_state(policy, stage)
    if rank == 0:
        save_policy(policy, args.out, state)
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{args.out}: done")
    dist.barrier()
    dist.destroy_process_group()


def build_samples(args: argparse.Namespace, policy: Policy, trajectories, annotations) -> tuple[list[Sample], str]:
    """All samples of the role, and in words what was left out."""
    samples: list[Sample] = []
    unannotated = 0
    for trajectory in tqdm(trajectories, desc="samples", unit="trajectory", disable=dist.get_rank() != 0):
        annotation = annotations.get(trajectory.key)
        if annotation is None and not (args.no_plan and args.role == "actor"):
            unannotated += 1
        elif args.role == "decomposer":
            samples.append(decomposer_sample(policy, trajectory, annotation))
        else:
            samples += actor_samples(policy, trajectory, None if args.no_plan else annotation)
    short = [s for s in samples if len(s.prompt_ids) + len(s.response_ids) <= args.max_length]
    return short, f"left out: {unannotated} trajectories without annotation, {len(samples) - len(short)} long samples"


def batch_of(number: int, samples: list[Sample], per_step: int, seed: int) -> list[Sample]:
    """The global batch of a step: each epoch goes through a fresh shuffle once."""
    per_epoch = math.ceil(len(samples) / per_step)
    order = list(range(len(samples)))
    random.Random(f"{seed}/{number // per_epoch}").shuffle(order)
    at = number % per_epoch * per_step
    return [samples[i] for i in order[at:at + per_step]]


def schedule(number: int, steps: int, warmup: float) -> float:
    """Cosine with linear warm-up, as a share of the peak.

    >>> [round(schedule(n, 100, 0.1), 3) for n in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    warm = max(1, round(warmup * steps))
    return (number + 1) / warm if number < warm else 0.5 * (1 + math.cos(math.pi * (number - warm) / max(1, steps - warm)))


def train_step(engine, policy: Policy, batch: list[Sample], micro: int, rank: int, world: int, lr: float):
    """Eqs. 3 and 4 on one global batch: returns (loss, gradient norm, tokens learned from).

    Every rank runs the same number of micro-batches, as ZeRO-3 demands; one without samples repeats one at weight 0.
    """
    tokens = sum(len(s.response_ids) for s in batch)                      # of all ranks: the one denominator
    mine = batch[rank::world]
    total = 0.0
    for at in range(0, math.ceil(len(batch) / world), micro):
        part = mine[at:at + micro]
        if part:
            loss = -engine(part).sum() / tokens
        else:
            loss = engine(batch[:1]).sum() * 0.0 + nothing(policy)
        total += loss.item()
        backward(engine, loss)
    norm = step(engine, lr)
    return all_sum(total)[0], norm, tokens


def save_resumable(engine, folder: Path, done: int) -> None:
    """Optimizer, weights and position. The file `latest`, written last by DeepSpeed, makes a checkpoint count."""
    engine.save_checkpoint(folder, tag=f"step{done}", client_state={"done": done}, exclude_frozen_parameters=True)
    if dist.get_rank() == 0:
        for old in folder.glob("step*"):
            if old.name != f"step{done}":
                shutil.rmtree(old)
    dist.barrier()


def resume(engine, folder: Path) -> int:
    """Steps that a checkpoint in `folder` already holds; 0 without one."""
    if not (folder / "latest").exists():
        return 0
    _, client = engine.load_checkpoint(folder, load_module_strict=False)
    return client["done"]


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1" if not torch.cuda.is_available() else "8")))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train_sft.py: stopped; run the same command to go on")
