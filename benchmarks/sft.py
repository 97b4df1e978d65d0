"""How much faster packed fine-tuning is than the Hugging Face Trainer, on the same samples.

    python benchmarks/sft.py           # one GPU, Qwen2.5-VL-7B's shape with random weights
    python benchmarks/sft.py --tiny    # the pocket base model, on anything

Samples are half grounding (short) and half steps (with a history), with one screenshot each.
Trainer: a micro-batch is padded to its longest sample, and data workers process the pictures. Ours:
packs, as train_sft.py runs them. In both, all parameters except the vision tower's learn (with
--tune-vision all: the quotient of two runs' tokens/s is what that costs), with gradient
checkpointing on a GPU. The optimizer is SGD at learning rate 0, so that one GPU holds it and both
see the same weights, and the losses are compared. Prints, last, the ratio of this run; writes
runs/benchmarks/sft.json.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks import shape, update
from benchmarks.report import report
from benchmarks.shape import DEVICE
from jhima import cli
from jhima.policy import Policy, Sample
from jhima.training.packing import Pack, PackedPolicy, pack

WORKERS = 4 if DEVICE.type == "cuda" else 0
Measured = tuple[list[float], float]  # seconds of each step but the first; the loss per token


@dataclass
class Args:
    tiny: bool = False
    """the pocket base model and 336x336 screenshots"""
    micro_batch: int = 8
    """samples per forward pass"""
    batches: int = 4
    """micro-batches per step"""
    tune_vision: bool = False
    """the tower learns, too"""
    steps: int = 4
    """timed steps of each way; the median counts"""


def make_samples(policy: Policy, count: int, tiny: bool) -> list[Sample]:
    """Prompts of 100 or about 1,000 tokens (tiny: 10 or about 200), replies of 10 to 60."""
    short, long, size = 100, 1000, (1280, 720)
    if tiny:
        short, long, size = 10, 200, (336, 336)
    rng = random.Random(0)
    words = [i for i in range(len(policy.tokenizer)) if not policy.forbidden[i]]
    image = [policy.vision_start, policy.image_pad, policy.vision_end]
    samples = []
    for number in range(count):
        length = short if number % 2 else int(long * rng.uniform(0.5, 1.5))
        text = rng.choices(words, k=length)
        reply = rng.choices(words, k=rng.randint(10, 60))
        samples.append(Sample(text + image, update.picture(number, *size), reply))
    rng.shuffle(samples)
    return samples


# ---- the stock path ----


def padded(
    part: list[Sample], processor: update.Qwen2VLImageProcessorPil, image_pad: int
) -> dict[str, torch.Tensor]:
    """What the model's own forward takes: ids [B, L], labels with -100 where nothing is learned,
    pixels of all images."""
    ids, masks, labels, images = [], [], [], []
    for s in part:
        image, prompt = update.stock_inputs(processor, image_pad, s.image, s.prompt_ids)
        images.append(image)
        ids.append(torch.tensor(prompt + s.response_ids))
        masks.append(torch.ones(len(ids[-1]), dtype=torch.long))
        labels.append(torch.tensor([-100] * len(prompt) + s.response_ids))
    pad = partial(pad_sequence, batch_first=True)
    input_ids = pad(ids)
    return {
        "input_ids": input_ids,
        "mm_token_type_ids": (input_ids == image_pad).long(),
        "attention_mask": pad(masks),
        "labels": pad(labels, padding_value=-100),
        "pixel_values": torch.cat([image["pixel_values"] for image in images]),
        "image_grid_thw": torch.cat([image["image_grid_thw"] for image in images]),
    }


class Clock(TrainerCallback):
    """When each step ended, and its loss."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, *_arguments: object, **_more: object) -> None:
        shape.synchronize()
        self.ends.append(time.monotonic())

    def on_log(self, _args, _state, _control, logs: dict, **_more: object) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def token_loss(outputs, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
    """The mean over a step's tokens.

    The model's own loss is the mean over micro-batches of their means, whatever their tokens.
    """
    logits = outputs.logits[:, :-1].flatten(0, 1).float()  # [B * (L - 1), V]
    targets = labels[:, 1:].flatten()
    return F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


def stock(policy: Policy, samples: list[Sample], args: Args, scratch: str) -> Measured:
    """By transformers' Trainer."""
    clock, processor = Clock(), update.stock_processor()
    # fmt: off
    options = TrainingArguments(
        scratch, per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.batches, max_steps=args.steps + 1, learning_rate=0.0,
        optim="sgd", max_grad_norm=0.0, gradient_checkpointing=DEVICE.type == "cuda",
        gradient_checkpointing_kwargs={"use_reentrant": False}, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, dataloader_num_workers=WORKERS,
        dataloader_persistent_workers=WORKERS > 0, remove_unused_columns=False,
        use_cpu=DEVICE.type == "cpu",
    )
    # fmt: on
    trainer = Trainer(
        policy.base,
        options,
        partial(padded, processor=processor, image_pad=policy.image_pad),
        samples,
        callbacks=[clock],
        compute_loss_func=token_loss,
    )
    trainer.train()
    return [end - start for start, end in pairwise(clock.ends)], clock.losses[-1]


# ---- ours ----


def packed(part: list[Sample], image_pad: int) -> Pack:
    return pack([update.example(s) for s in part], image_pad)


def ours(policy: Policy, samples: list[Sample], args: Args, _scratch: str) -> Measured:
    """By PackedPolicy."""
    if DEVICE.type == "cuda":
        policy.base.gradient_checkpointing_enable()
    model = PackedPolicy(policy).train()
    model.forbidden.zero_()  # the Trainer knows no mask, and the losses are to be the same
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    loader = DataLoader(
        samples,
        args.micro_batch,
        collate_fn=partial(packed, image_pad=policy.image_pad),
        num_workers=WORKERS,
        persistent_workers=WORKERS > 0,
    )
    tokens = sum(len(s.response_ids) for s in samples)
    step_seconds, loss = [], 0.0
    for _ in range(args.steps + 1):
        began, loss = time.monotonic(), 0.0
        for part in loader:
            share = -model(part)[0].sum() / tokens
            share.backward()
            loss += share.item()
        optimizer.step()
        optimizer.zero_grad()
        shape.synchronize()
        step_seconds.append(time.monotonic() - began)
    return step_seconds[1:], loss


def main() -> None:
    args = cli.parse(Args, __doc__)
    with tempfile.TemporaryDirectory() as scratch:
        folder = shape.BASE
        if not args.tiny:
            folder = Path(scratch) / "shape"
            shape.write_shape(folder)
        policy = shape.make_policy(args.tiny, folder, rank=None).train()
        policy.tune_vision = args.tune_vision
        policy.base.model.visual.requires_grad_(args.tune_vision)
        policy.base.model.visual.merger.requires_grad_(True)
        size = args.micro_batch
        samples = make_samples(policy, size * args.batches, args.tiny)
        read = computed = 0
        for first in range(0, len(samples), size):
            lengths = packed(samples[first : first + size], policy.image_pad).lengths
            read += sum(lengths)
            computed += max(lengths) * len(lengths)
        result: dict = {
            "device": shape.DEVICE_NAME,
            "tokens per step": read,
            "padding, share of what the Trainer computes": round(1 - read / computed, 3),
        }
        losses = {}
        for name, way in (("trainer", stock), ("ours", ours)):
            shape.reset_peak()
            step_seconds, losses[name] = way(policy, samples, args, scratch)
            result[name] = {
                "tokens/s": round(read / statistics.median(step_seconds)),
                "s per step": [round(seconds, 3) for seconds in step_seconds],
                **shape.peak_gib(),
            }
    difference = abs(losses["ours"] / losses["trainer"] - 1)
    ours_per_s, stock_per_s = result["ours"]["tokens/s"], result["trainer"]["tokens/s"]
    result["losses' relative difference"] = float(f"{difference:.1e}")
    result["ratio"] = round(ours_per_s / stock_per_s, 2)
    report("sft", result)
    print(
        f"fine-tuning, tokens/s: {ours_per_s} against the Trainer's {stock_per_s}, "
        f"ratio {result['ratio']}"
    )


if __name__ == "__main__":
    main()
