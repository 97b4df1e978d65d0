"""Stage 2 (section 3.3): supervised fine-tuning of the decomposer (eq. 3) or the actor (eq. 4).

    deepspeed train_sft.py --role decomposer --data meta.json --annotations annotations.jsonl
    deepspeed train_sft.py --role actor      --data meta.json --annotations annotations.jsonl

Trains all parameters of the language model and of the projector behind the vision tower. The tower
itself stays frozen, as in ScaleCUA's released recipe, unless --tune-vision (the paper fine-tunes
all parameters). The loss is minus the mean log-likelihood of the replies' tokens over the global
batch, where eqs. 3 and 4 have a mean over examples; the learning rate follows a cosine with
warm-up. docs/beside_the_paper.md has the reasons. Samples are packed end to end, without padding.
Defaults are the paper's (section 4.3), for 8 GPUs: 2 samples x 4 accumulation steps x 8 = 64. The
actor also learns from grounding data and chats, where the meta file names them. Running the same
command again resumes from the last checkpoint: same samples, same numbers.

OUT gets the model, metrics.jsonl with one line per step (see docs/metrics.md), and sft.json, which
counts what was left out and why.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm

from jhima import cli
from jhima.data.scalecua import Annotation, DataSet, read_annotations, read_meta
from jhima.models.checkpoint_files import check_checkpoint
from jhima.policy import Policy, default_dtype, load_policy, save_policy
from jhima.run_directory import same_run, write_whole
from jhima.training import deepspeed_engine as ds
from jhima.training.checkpoints import commit, drop_metrics
from jhima.training.metrics import json_line
from jhima.training.packing import PackedPolicy
from jhima.training.sft_dataset import Batch, Batches, Supervision, make_batch
from jhima.training.watchdog import end, everywhere, leave

MAX_EVALUATED = 512  # held-back samples in one evaluation
CACHE_BYTES = 512 << 20  # of frozen vision features, for runs of several epochs


@dataclass
class Args:
    role: Literal["decomposer", "actor"]
    """the policy to fine-tune"""
    data: Path
    """ScaleCUA meta file that names the trajectories"""
    annotations: Path | None = None
    """annotate.py's output (needed unless --no-plan)"""
    no_plan: bool = False
    """an actor without subtasks in its prompt, for the ablations without decomposer"""
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """the model to start from"""
    out: Path | None = None
    """where the checkpoint goes (None: checkpoints/ROLE)"""
    epochs: int = 1
    """times through the samples"""
    lr: float = 1e-5
    """peak learning rate"""
    warmup: float = 0.03
    """share of steps that warm up"""
    clip: float = 1.0
    """gradient norm to clip at"""
    max_length: int = 30720
    """tokens of a pack; longer samples are left out whole and counted"""
    eval_share: float = 0.002
    """share of trajectories and of other samples that is held back for the evaluation loss"""
    deepspeed_config: Path = Path("ds_config.json")
    """micro-batch, accumulation and ZeRO-3 settings"""
    micro_batch: int | None = None
    """samples per pack, which is what a rank runs in one backward pass (None: the config's)"""
    accumulate: int | None = None
    """backward passes per step (None: the config's)"""
    zero: Literal[1, 2, 3] | None = None
    """ZeRO stage (None: the config's on GPUs, 1 on CPUs)"""
    tune_vision: bool = False
    """train the vision tower too"""
    workers: int | None = None
    """processes per rank that read, decode and tokenise (None: 2; 0 without a GPU)"""
    prompt: Path | None = None
    """JSON file of prompts that replace the checkpoint's own"""
    save_every: int = 500
    """steps between evaluations and checkpoints to resume from"""
    seed: int = 0
    """seed of the order of samples"""

    def __post_init__(self) -> None:
        self.out = self.out or Path("checkpoints") / self.role


def check(args: Args) -> None:
    """Raises ValueError, in one line, for arguments that cannot be."""
    made_by = "python -m jhima.pocket model" if "pocket" in args.model else ""
    check_checkpoint(args.model, made_by)
    if args.annotations is None and not args.no_plan:
        raise ValueError("--annotations is needed (or --no-plan, for an actor without subtasks)")
    if args.no_plan and args.role == "decomposer":
        raise ValueError("--no-plan is for --role actor: a decomposer learns nothing but plans")
    if not 0 <= args.eval_share < 1:
        raise ValueError(f"--eval-share: expected a share from 0 to below 1, got {args.eval_share}")


@dataclass
class Run:
    """What stages 2 to 4 share, on this rank."""

    args: Args
    policy: Policy
    stage: int  # of ZeRO
    packed: PackedPolicy
    engine: object  # DeepSpeed's, over `packed`
    samples: Supervision
    held_back: Supervision
    order: Batches  # of the samples
    micro: int  # samples per pack
    left_out: Counter[str] = field(default_factory=Counter)  # broken when read, by reason

    @property
    def folder(self) -> Path:
        """Of the checkpoint to resume from."""
        return self.args.out / "resume"


def main() -> None:
    # ---- 1. Arguments and data, checked before any model is loaded ----
    args = cli.parse(Args, __doc__)
    try:
        check(args)
        data_sets = read_meta(args.data, steps_only=args.role == "decomposer")
        annotations = None if args.no_plan else read_annotations(args.annotations)
        config = json.loads(args.deepspeed_config.read_text("utf-8"))
        same_run(args, "train_sft.py", free={"save_every", "workers"})
    except (ValueError, OSError) as error:
        sys.exit(f"train_sft.py: {error}")
    if (args.out / "sft.json").exists():
        print(f"{args.out}: done already")
        return
    rank, world, device = ds.init_distributed(args.out)

    # ---- 2. Model and samples: (x, o_0) -> d for eq. 3, (x, o_t, h_t, d) -> a_t for eq. 4 ----
    run = load(args, config, device, data_sets, annotations)
    done = resume(run)
    if rank == 0:
        trained = [p for p in run.packed.parameters() if p.requires_grad]
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in trained)  # whole, under ZeRO-3
        print(
            f"{args.role}: {len(run.samples)} samples, {len(run.held_back)} held back; "
            f"left out: {in_words(run.samples.left_out)}; {done + len(run.order)} steps of "
            f"{run.order.per_step}, ZeRO-{run.stage}, {parameters:,} parameters to train",
            flush=True,
        )
        drop_metrics(args.out / "metrics.jsonl", "step", done)

    # ---- 3. Training: Ctrl-C or SIGTERM ends it after the step, with a checkpoint ----
    train(run, done)

    # ---- 4. The model: transformers and vLLM load it as it is ----
    state, left_out = ds.full_state(run.policy, run.stage), total(run.left_out)
    if rank == 0:
        save_policy(run.policy, args.out, state)
        summary = {
            "samples": len(run.samples),
            "held_back": len(run.held_back),
            "steps": done + len(run.order),
            "left_out_before": run.samples.left_out,
            "left_out_when_read": left_out,
        }
        write_whole(args.out / "sft.json", json.dumps(summary, indent=1))
        shutil.rmtree(run.folder, ignore_errors=True)
        print(f"{args.out}: done; left out when read: {in_words(left_out)}")
    leave()


def load(
    args: Args,
    config: dict,
    device: torch.device,
    data_sets: list[DataSet],
    annotations: dict[str, Annotation] | None,
) -> Run:
    gpu = device.type == "cuda"
    micro = args.micro_batch or config["train_micro_batch_size_per_gpu"]
    accumulate = args.accumulate or config["gradient_accumulation_steps"]
    stage = args.zero or (config["zero_optimization"]["stage"] if gpu else 1)
    options = {"prompts": args.prompt, "tune_vision": args.tune_vision}
    policy = load_policy(args.model, device, default_dtype(device), **options)
    if gpu:
        policy.base.gradient_checkpointing_enable()
    source = policy, data_sets, annotations, args.role, args.eval_share
    samples = Supervision(*source, part="train", max_length=args.max_length)
    held_back = Supervision(*source, part="held back", max_length=args.max_length)
    if not len(samples):
        sys.exit(f"train_sft.py: no sample is left of {args.data}: {in_words(samples.left_out)}")
    packed = PackedPolicy(policy, CACHE_BYTES if args.epochs > 1 else 0)
    engine = ds.make_engine(
        packed,
        args.deepspeed_config,
        args.lr,
        stage,
        bf16=gpu,
        clip=args.clip,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=accumulate,
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    order = Batches(len(samples), micro * accumulate * world, args.epochs, args.seed, rank, world)
    return Run(
        args=args,
        policy=policy,
        stage=stage,
        packed=packed,
        engine=engine,
        samples=samples,
        held_back=held_back,
        order=order,
        micro=micro,
    )


def train(run: Run, done: int) -> None:
    args, rank = run.args, dist.get_rank()
    signals: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, _: signals.append(number))
    run.packed.train()
    steps = done + len(run.order)
    bar = tqdm(total=steps, initial=done, desc=f"sft {args.role}", unit="step", disable=rank != 0)
    batches = iter(loader(run, run.samples, run.order))
    skipped = 0  # steps in a row whose gradients were not finite
    for number in range(done, steps):
        began = time.monotonic()
        batch = next(batches)
        run.left_out += batch.left_out
        lr = args.lr * schedule(number, steps, args.warmup)
        # What is random in a step depends on nothing before it.
        torch.manual_seed(args.seed * 1_000_003 + number)
        row = {"step": number, "lr": lr} | train_step(run.engine, run.packed, batch, lr)
        seconds = time.monotonic() - began
        row |= {"samples/s": row["samples"] / seconds, "tokens/s": row.pop("read") / seconds}
        last, due = number + 1 == steps, (number + 1) % args.save_every == 0
        if len(run.held_back) and (due or last):
            row |= evaluate(run)
        if rank == 0:
            with (args.out / "metrics.jsonl").open("a") as metrics:
                metrics.write(json_line(row))
        bar.update()
        bar.set_postfix(loss=f"{row['loss']:.3f}")
        skipped = (skipped + 1) * row["skipped"]
        if skipped >= min(ds.MOST_SKIPPED, steps):
            bar.close()
            end(f"step {number}: gradients of the {args.role} not finite, {skipped} steps in a row")
        [stopped] = ds.all_sum(bool(signals))  # on any rank
        if (due or stopped) and not last:
            save_resumable(run, number + 1)
            if stopped:
                leave()
                sys.exit(
                    f"train_sft.py: stopped after step {number + 1} of {steps}; "
                    "run the same command to go on"
                )
    bar.close()


# ---- one step ----


def train_step(engine, packed: PackedPolicy, batch: Batch, lr: float) -> dict:
    """Eqs. 3 and 4: one update by -sum log pi(y_u | prompt, y_<u) / n, over a global batch.

    The sum is over the n tokens of all replies on all ranks; `batch` is this rank's share. Returns
    the step's metrics, and as "read" the tokens that the model read.
    """
    counts = batch.tokens, batch.samples, batch.read, batch.left_out.total()
    tokens, samples, read, left_out = map(int, ds.all_sum(*counts))
    row = {"samples": samples, "tokens": tokens, "read": read, "left_out": left_out}
    if not tokens:  # every sample is broken
        return row | {"loss": 0.0, "accuracy": 0.0, "grad_norm": 0.0, "skipped": 0}
    loss_sum = right = 0.0
    for pack_loss, hits in losses(engine, packed, batch):
        loss = pack_loss / tokens
        loss_sum += loss.item()
        right += hits
        ds.backward(engine, loss)
    grad_norm = ds.step(engine, lr)
    loss_sum, right = ds.all_sum(loss_sum, right)
    row |= {"loss": loss_sum, "accuracy": right / tokens, "grad_norm": grad_norm}
    return row | {"skipped": int(math.isnan(grad_norm))}


@torch.no_grad()
def evaluate(run: Run) -> dict:
    """Loss and accuracy per token on the samples that were held back."""
    part = evaluated(run.held_back, run.args.seed)
    loss = right = tokens = 0.0
    for batch in loader(run, part, replace(run.order, count=len(part), epochs=1, start=0)):
        tokens += batch.tokens
        for pack_loss, hits in losses(run.engine, run.packed, batch):
            loss += pack_loss.item()
            right += hits
    loss, right, tokens = ds.all_sum(loss, right, tokens)
    return {
        "eval_loss": loss / max(tokens, 1),
        "eval_accuracy": right / max(tokens, 1),
        "eval_tokens": int(tokens),
    }


def evaluated(held_back: Dataset, seed: int) -> Subset:
    """What every evaluation of a run is on: of many samples the same few, drawn from all of them.

    They lie data set by data set, so the first ones would be those of the first data set alone.
    """
    shown = min(len(held_back), MAX_EVALUATED)
    return Subset(held_back, random.Random(seed).sample(range(len(held_back)), shown))


def losses(engine, packed: PackedPolicy, batch: Batch) -> Iterator[tuple[Tensor, float]]:
    """Of each pack: -sum log pi of its targets, and how many of them were the likeliest token.

    ZeRO-3 demands that every rank runs the same number of packs: a rank that has fewer than others
    repeats a blank one at weight 0.
    """
    pictures = max((len(pack.pictures) for pack in batch.packs), default=0)
    count, calls = map(int, ds.all_sum(len(batch.packs), pictures, op=dist.ReduceOp.MAX))
    calls = max(calls, 1) if packed.tune_vision else 0
    for number in range(count):
        real = number < len(batch.packs)
        pack = batch.packs[number] if real else packed.blank
        logp, hit = engine(pack, calls)  # [targets] each
        yield -logp.sum() * float(real), hit.sum().item() * float(real)


def schedule(number: int, steps: int, warmup: float) -> float:
    """Cosine with linear warm-up, as a share of the peak.

    >>> [round(schedule(n, 100, 0.1), 3) for n in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    warm = max(1, round(warmup * steps))
    if number < warm:
        return (number + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (number - warm) / max(1, steps - warm)))


# ---- data ----


def loader(run: Run, part: Dataset, order: Batches) -> DataLoader:
    workers = run.args.workers
    if workers is None:
        workers = 2 if torch.cuda.is_available() else 0
    sizes = {"micro": run.micro, "max_length": run.args.max_length}
    return DataLoader(
        part,
        batch_sampler=order,
        collate_fn=partial(make_batch, image_pad=run.policy.image_pad, **sizes),
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=leave_signals,
    )


def leave_signals(_: int) -> None:
    """For a data worker: Ctrl-C is for its parent, which ends its workers by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def total(counts: Counter) -> Counter:
    """Counts summed over the ranks."""
    return sum(everywhere(counts), Counter())


def in_words(counts: Counter) -> str:
    reasons = [f"{count} {reason}" for reason, count in sorted(counts.items()) if count]
    return ", ".join(reasons) or "nothing"


# ---- resuming ----


def save_resumable(run: Run, done: int) -> None:
    """Optimizer, weights and position after `done` steps; the file `latest` names them."""
    tag = f"step{done}"
    old = [path for path in run.folder.glob("step*") if path.name != tag]
    state = {
        "done": done,
        "per_step": run.order.per_step,
        "count": run.order.count,
        "left_out": total(run.left_out),
    }
    run.engine.save_checkpoint(
        run.folder, tag, state, save_latest=False, exclude_frozen_parameters=True
    )
    commit(run.folder / "latest", tag, old)


def resume(run: Run) -> int:
    """Loads the last checkpoint, if there is one; returns the steps done."""
    if not (run.folder / "latest").exists():
        return 0
    _, state = run.engine.load_checkpoint(run.folder, load_module_strict=False)
    order = run.order
    if (state["per_step"], state["count"]) != (order.per_step, order.count):
        sys.exit(
            f"train_sft.py: {run.folder} was made with {state['per_step']} samples per step of "
            f"{state['count']}, not {order.per_step} of {order.count}: "
            "the number of processes or the data has changed"
        )
    if dist.get_rank() == 0:  # the count is over all ranks
        run.left_out = Counter(state["left_out"])
    order.start = state["done"]
    return order.start


if __name__ == "__main__":
    cli.run(main)
