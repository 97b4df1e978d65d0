"""Stage 2 (section 3.3): supervised fine-tuning of the decomposer (eq. 3) or the actor (eq. 4).

    deepspeed train_sft.py --role decomposer --data runs/demos/meta.json --annotations runs/annotations.jsonl
    deepspeed train_sft.py --role actor      --data runs/demos/meta.json --annotations runs/annotations.jsonl

Full parameters of the language model and of the projector behind the vision tower; the tower itself stays frozen, as
in ScaleCUA's released recipe, unless --tune-vision. Cosine schedule with warm-up, loss on the replies' tokens only:
minus their mean log-likelihood over the global batch. Samples are packed end to end, without padding. Defaults are the
paper's (section 4.3), for 8 GPUs: 2 samples x 4 accumulation steps x 8 = 64. The actor also learns from grounding data
and chats, where the meta file names them. Running the same command again resumes from the last checkpoint: same
samples, same numbers.

OUT gets the model, metrics.jsonl with a line a step (see docs/metrics.md), and sft.json, which counts what was left out and why.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from tqdm import tqdm

from jhima.data.scalecua import read_annotations, read_meta
from jhima.policy import check_checkpoint, default_dtype, load_policy, save_policy
from jhima.run_directory import same_run, write_whole
from jhima.training.deepspeed_engine import (
    all_sum,
    backward,
    full_state,
    init_distributed,
    make_engine,
    step,
)
from jhima.training.packing import Pack, PackedPolicy
from jhima.training.sft_dataset import Batch, Batches, Supervision, make_batch
from jhima.training.watchdog import leave

MAX_EVALUATED = 512  # held-back samples in one evaluation
CACHE_BYTES = 512 << 20  # of frozen vision features, for runs of several epochs


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--role", choices=("decomposer", "actor"), required=True)
    add("--data", type=Path, required=True, help="ScaleCUA meta file that names the trajectories")
    add("--annotations", type=Path, help="annotate.py's output (needed unless --no-plan)")
    add(
        "--no-plan",
        action="store_true",
        help="an actor without subtasks in its prompt, for the ablations without decomposer",
    )
    add(
        "--model",
        default="Qwen/Qwen2.5-VL-7B-Instruct",
        help="the model to start from (default: %(default)s)",
    )
    add("--out", type=Path, help="where the checkpoint goes (default: checkpoints/ROLE)")
    add("--epochs", type=int, default=1, help="(default: %(default)s)")
    add("--lr", type=float, default=1e-5, help="peak learning rate (default: %(default)s)")
    add(
        "--warmup",
        type=float,
        default=0.03,
        help="share of steps that warm up (default: %(default)s)",
    )
    add("--clip", type=float, default=1.0, help="gradient norm to clip at (default: %(default)s)")
    add(
        "--max-length",
        type=int,
        default=30720,
        help="tokens of a pack; longer samples are left out whole and counted (default: %(default)s)",
    )
    add(
        "--eval-share",
        type=float,
        default=0.002,
        help="share of trajectories and other samples that is held back for the evaluation loss (default: %(default)s)",
    )
    add(
        "--deepspeed-config",
        type=Path,
        default=Path("ds_config.json"),
        help="micro-batch, accumulation and ZeRO-3 settings (default: %(default)s)",
    )
    add(
        "--micro-batch",
        type=int,
        help="samples in a pack, a rank and backward pass (default: the config's)",
    )
    add("--accumulate", type=int, help="backward passes a step (default: the config's)")
    add(
        "--zero",
        type=int,
        choices=(1, 2, 3),
        help="ZeRO stage (default: the config's on GPUs, 1 on CPUs)",
    )
    add("--tune-vision", action="store_true", help="train the vision tower too")
    add(
        "--workers",
        type=int,
        help="processes a rank that read, decode and tokenise (default: 2; 0 without a GPU)",
    )
    add("--prompt", type=Path, help="JSON file of prompts over the checkpoint's own")
    add(
        "--save-every",
        type=int,
        default=500,
        help="steps between evaluations and checkpoints to resume from (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--local_rank", type=int, help=argparse.SUPPRESS)  # given by older DeepSpeed launchers
    return parser.parse_args()


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = parse_args()
    args.out = args.out or Path("checkpoints") / args.role
    try:
        check_checkpoint(
            args.model, "python -m jhima.pocket model" if "pocket" in args.model else ""
        )
        if args.annotations is None and not args.no_plan:
            raise ValueError(
                "--annotations is needed (or --no-plan, for an actor without subtasks)"
            )
        if args.no_plan and args.role == "decomposer":
            raise ValueError("--no-plan is for --role actor: a decomposer learns nothing but plans")
        if not 0 <= args.eval_share < 1:
            raise ValueError(
                f"--eval-share: expected a share from 0 to below 1, got {args.eval_share}"
            )
        data_sets = read_meta(args.data, steps_only=args.role == "decomposer")
        annotations = None if args.no_plan else read_annotations(args.annotations)
        config = json.loads(args.deepspeed_config.read_text("utf-8"))
        same_run(args, "train_sft.py", free={"save_every", "workers", "local_rank"})
    except (ValueError, OSError) as error:
        sys.exit(f"train_sft.py: {error}")
    if (args.out / "sft.json").exists():
        print(f"{args.out}: done already")
        return
    rank, world, device = init_distributed(args.out)
    config["train_micro_batch_size_per_gpu"] = micro = (
        args.micro_batch or config["train_micro_batch_size_per_gpu"]
    )
    config["gradient_accumulation_steps"] = accumulate = (
        args.accumulate or config["gradient_accumulation_steps"]
    )
    stage = args.zero or (config["zero_optimization"]["stage"] if device.type == "cuda" else 1)

    # ---- 2. Model and samples ----
    policy = load_policy(
        args.model, device, default_dtype(device), prompts=args.prompt, tune_vision=args.tune_vision
    )
    if device.type == "cuda":
        policy.base.gradient_checkpointing_enable()
    sources = policy, data_sets, annotations, args.role, args.eval_share
    samples, held_back = (
        Supervision(*sources, part, args.max_length) for part in ("train", "held back")
    )
    if not len(samples):
        sys.exit(f"train_sft.py: no sample is left of {args.data}: {in_words(samples.left_out)}")
    packed = PackedPolicy(policy, CACHE_BYTES if args.epochs > 1 else 0)
    engine = make_engine(packed, config, args.lr, stage, bf16=device.type == "cuda", clip=args.clip)
    per_step = micro * accumulate * world
    steps = len(Batches(len(samples), per_step, args.epochs, args.seed))
    folder = args.out / "resume"
    done, left_out = resume(engine, folder, per_step, len(samples))
    workers = args.workers if args.workers is not None else 2 if device.type == "cuda" else 0
    collate = partial(
        make_batch, image_pad=policy.image_pad, micro=micro, max_length=args.max_length
    )

    def load(part: Supervision, order: Batches) -> DataLoader:
        return DataLoader(
            part,
            batch_sampler=order,
            collate_fn=collate,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=leave_signals,
        )

    if rank == 0:
        print(
            f"{args.role}: {len(samples)} samples, {len(held_back)} held back; left out: {in_words(samples.left_out)}; "
            f"{steps} steps of {per_step}, ZeRO-{stage}, "
            f"{sum(getattr(p, 'ds_numel', p.numel()) for p in packed.parameters() if p.requires_grad):,} parameters to train",
            flush=True,
        )
        keep_metrics(args.out / "metrics.jsonl", done)

    # ---- 3. Training: Ctrl-C or SIGTERM ends it after the step, with a checkpoint ----
    stop: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, _: stop.append(number))
    packed.train()
    bar = tqdm(total=steps, initial=done, desc=f"sft {args.role}", unit="step", disable=rank != 0)
    batches = iter(
        load(samples, Batches(len(samples), per_step, args.epochs, args.seed, rank, world, done))
    )
    for number in range(done, steps):
        began = time.monotonic()
        batch = next(batches)
        lr = args.lr * schedule(number, steps, args.warmup)
        torch.manual_seed(
            args.seed * 1_000_003 + number
        )  # what is random in a step depends on nothing before it
        row = {"step": number, "lr": lr} | train_step(
            engine, packed, batch, policy.im_end, lr, bool(stop)
        )
        left_out += batch.left_out
        seconds = time.monotonic() - began
        row |= {"samples/s": row["samples"] / seconds, "tokens/s": row.pop("read") / seconds}
        last, stopped = number + 1 == steps, row.pop("stop")  # agreed on by all ranks
        if len(held_back) and ((number + 1) % args.save_every == 0 or last):
            shown = Batches(min(len(held_back), MAX_EVALUATED), per_step, 1, args.seed, rank, world)
            row |= evaluate(engine, packed, load(held_back, shown), policy.im_end)
        if rank == 0:
            with (args.out / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row) + "\n")
        bar.update()
        bar.set_postfix(loss=f"{row['loss']:.3f}")
        if ((number + 1) % args.save_every == 0 or stopped) and not last:
            save_resumable(engine, folder, number + 1, per_step, len(samples), left_out)
            if stopped:
                leave()
                sys.exit(
                    f"train_sft.py: stopped after step {number + 1} of {steps}; run the same command to go on"
                )
    bar.close()

    # ---- 4. The checkpoint: transformers and vLLM load it as it is ----
    state, left_out = full_state(policy, stage), everywhere(left_out)
    if rank == 0:
        save_policy(policy, args.out, state)
        summary = {
            "samples": len(samples),
            "held_back": len(held_back),
            "steps": steps,
            "left_out_before": samples.left_out,
            "left_out_when_read": left_out,
        }
        write_whole(args.out / "sft.json", json.dumps(summary, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{args.out}: done; left out when read: {in_words(left_out)}")
    leave()


def leave_signals(_: int) -> None:
    """For a data worker: a Ctrl-C is its parent's business, and its parent may terminate it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def in_words(counts: Counter) -> str:
    return (
        ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()) if count)
        or "nothing"
    )


def schedule(number: int, steps: int, warmup: float) -> float:
    """Cosine with linear warm-up, as a share of the peak.

    >>> [round(schedule(n, 100, 0.1), 3) for n in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    warm = max(1, round(warmup * steps))
    return (
        (number + 1) / warm
        if number < warm
        else 0.5 * (1 + math.cos(math.pi * (number - warm) / max(1, steps - warm)))
    )


def train_step(
    engine, packed: PackedPolicy, batch: Batch, im_end: int, lr: float, stop: bool
) -> dict:
    """Eqs. 3 and 4 on one global batch, of which `batch` is this rank's share. Returns what metrics.jsonl says of it,
    and whether any rank was asked to stop.

    Every rank runs the same number of packs, as ZeRO-3 demands; one that has fewer repeats a blank one at weight 0.
    """
    tokens, samples, read, broken, stopped = all_sum(
        batch.tokens, batch.samples, batch.read, batch.left_out.total(), stop
    )
    row = {
        "samples": int(samples),
        "tokens": int(tokens),
        "read": read,
        "left_out": int(broken),
        "stop": stopped > 0,
    }
    if not tokens:  # all broken
        return row | {"loss": 0.0, "accuracy": 0.0, "grad_norm": 0.0}
    total = right = 0.0
    for pack, weight, calls in in_step(packed, batch, im_end):
        logp, hit = engine(pack, calls)
        loss = -logp.sum() * weight / tokens  # tokens of all ranks: the one denominator
        total, right = total + loss.item(), right + hit.sum().item() * weight
        backward(engine, loss)
    norm = step(engine, lr)
    loss, right = all_sum(total, right)
    return row | {"loss": loss, "accuracy": right / tokens, "grad_norm": norm}


@torch.no_grad()
def evaluate(engine, packed: PackedPolicy, batches: DataLoader, im_end: int) -> dict:
    """Loss and accuracy a token on what was held back."""
    total = right = tokens = 0.0
    for batch in batches:
        tokens += batch.tokens
        for pack, weight, calls in in_step(packed, batch, im_end):
            logp, hit = engine(pack, calls)
            total, right = total - logp.sum().item() * weight, right + hit.sum().item() * weight
    total, right, tokens = all_sum(total, right, tokens)
    return {
        "eval_loss": total / max(tokens, 1),
        "eval_accuracy": right / max(tokens, 1),
        "eval_tokens": int(tokens),
    }


def in_step(packed: PackedPolicy, batch: Batch, im_end: int):
    """(pack, weight, tower calls) of this rank, as many as on the rank that has the most."""
    most = torch.tensor([len(batch.packs), max((len(p.pictures) for p in batch.packs), default=0)])
    most = most.cuda() if dist.get_backend() == "nccl" else most
    dist.all_reduce(most, dist.ReduceOp.MAX)
    count, calls = most.tolist()
    end = torch.tensor([im_end])
    blank = Pack(end.repeat(2), torch.arange(2).repeat(3, 1), [2], torch.tensor([0]), end, [])
    for pack in batch.packs + [blank] * (count - len(batch.packs)):
        yield pack, float(pack is not blank), max(calls, 1) if packed.tune_vision else 0


def save_resumable(
    engine, folder: Path, done: int, per_step: int, count: int, left_out: Counter
) -> None:
    """Optimizer, weights and position. The file `latest`, which appears last and whole, makes a checkpoint count."""
    state = {"done": done, "per_step": per_step, "count": count, "left_out": everywhere(left_out)}
    engine.save_checkpoint(
        folder,
        tag=f"step{done}",
        client_state=state,
        save_latest=False,
        exclude_frozen_parameters=True,
    )
    dist.barrier()
    if dist.get_rank() == 0:
        write_whole(folder / "latest", f"step{done}")
        for old in folder.glob("step*"):
            if old.name != f"step{done}":
                shutil.rmtree(old)
    dist.barrier()


def resume(engine, folder: Path, per_step: int, count: int) -> tuple[int, Counter]:
    """(steps that a checkpoint in `folder` holds, what this rank's count of broken samples starts from)."""
    if not (folder / "latest").exists():
        return 0, Counter()
    _, client = engine.load_checkpoint(folder, load_module_strict=False)
    if (client["per_step"], client["count"]) != (per_step, count):
        sys.exit(
            f"train_sft.py: {folder} was made with {client['per_step']} samples a step of {client['count']}, not "
            f"{per_step} of {count}: the number of processes or the data has changed"
        )
    return client["done"], Counter(client["left_out"]) if dist.get_rank() == 0 else Counter()


def everywhere(counts: Counter) -> Counter:
    """Counts summed over the ranks."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, dict(counts))
    return sum(map(Counter, found), Counter())


def keep_metrics(path: Path, done: int) -> None:
    """Takes off the lines of steps that are about to be run again."""
    if path.exists():
        rows = [
            line
            for line in path.read_text("utf-8").splitlines(keepends=True)
            if line.endswith("\n") and json.loads(line)["step"] < done
        ]
        write_whole(path, "".join(rows))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(
        int(os.environ.get("OMP_NUM_THREADS", "1" if not torch.cuda.is_available() else "8"))
    )
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train_sft.py: stopped; run the same command to go on")
