"""How much faster packed fine-tuning is than the Hugging Face Trainer, on the same samples through the same weights.

    python benchmarks/sft.py              # one GPU, Qwen2.5-VL-7B's shape with random weights
    python benchmarks/sft.py --tiny       # the pocket base model, on anything

Samples are half grounding (short) and half steps (with a history), a screenshot each. Trainer: a micro-batch padded to
its longest sample, pictures processed by the data workers. Ours: packs, as train_sft.py runs them. All parameters but
the vision tower's learn, in both ways, with gradient checkpointing on a GPU; the optimizer is SGD at learning rate 0, so
that one GPU holds it and both ways read the same weights. Their losses are compared. Prints, last, the ratio of this
run; writes runs/benchmarks/sft.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from shape import BASE, DEVICE, make_policy, report, write_shape
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from update import (
    Qwen2VLImageProcessorPil,
    example,
    picture,
    stock_inputs,
    stock_processor,
    synchronize,
)

from jhima.policy import Policy, Sample
from jhima.training.packing import Pack, PackedPolicy, pack


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="the pocket base model and 336x336 screenshots")
    add(
        "--micro-batch",
        type=int,
        default=8,
        help="samples in a forward pass (default: %(default)s)",
    )
    add("--batches", type=int, default=4, help="micro-batches in a step (default: %(default)s)")
    add(
        "--steps",
        type=int,
        default=4,
        help="timed steps of each way; the median counts (default: %(default)s)",
    )
    return parser.parse_args()


def make_samples(policy: Policy, count: int, tiny: bool) -> list[Sample]:
    """Prompts of 10 or some 200 tokens (7B shape: 100 or some 1,000), replies of 10 to 60."""
    rng = random.Random(0)
    words = [i for i in range(len(policy.tokenizer)) if not policy.forbidden[i]]
    short, long, size = (10, 200, (336, 336)) if tiny else (100, 1000, (1280, 720))
    samples = []
    for number in range(count):
        text = rng.choices(words, k=short if number % 2 else int(long * rng.uniform(0.5, 1.5)))
        reply = rng.choices(words, k=rng.randint(10, 60))
        samples.append(
            Sample(
                [*text, policy.vision_start, policy.image_pad, policy.vision_end],
                picture(number, *size),
                reply,
            )
        )
    rng.shuffle(samples)
    return samples


# ---- the stock path ----


def padded(
    part: list[Sample], processor: Qwen2VLImageProcessorPil, image_pad: int
) -> dict[str, torch.Tensor]:
    """What the model's own forward takes: ids [B, L], labels with -100 where nothing is learned, pixels of all images."""
    images, prompts = zip(
        *(stock_inputs(processor, image_pad, s.image, s.prompt_ids) for s in part)
    )
    pad = partial(pad_sequence, batch_first=True)
    ids = pad([torch.tensor(p + s.response_ids) for p, s in zip(prompts, part)])
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == image_pad).long(),
        "attention_mask": pad(
            [
                torch.ones(len(p) + len(s.response_ids), dtype=torch.long)
                for p, s in zip(prompts, part)
            ]
        ),
        "labels": pad(
            [torch.tensor([-100] * len(p) + s.response_ids) for p, s in zip(prompts, part)],
            padding_value=-100,
        ),
        "pixel_values": torch.cat([i["pixel_values"] for i in images]),
        "image_grid_thw": torch.cat([i["image_grid_thw"] for i in images]),
    }


class Clock(TrainerCallback):
    """When each step ended, and its loss."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, *_arguments: object, **_more: object) -> None:
        synchronize()
        self.ends.append(time.monotonic())

    def on_log(self, _args, _state, _control, logs: dict, **_more: object) -> None:
        self.losses += [logs["loss"]] if "loss" in logs else []


def token_loss(outputs, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
    """The mean over a step's tokens; the model's own is a mean of its micro-batches' means, however many tokens they have."""
    logits, labels = (
        outputs.logits[:, :-1].flatten(0, 1),
        labels[:, 1:].flatten(),
    )  # [B * (L - 1), V]
    return (
        F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=-100)
        / num_items_in_batch
    )


def stock(
    policy: Policy, samples: list[Sample], args: argparse.Namespace, scratch: str, workers: int
) -> tuple[list[float], float]:
    """(seconds of each step but the first, the loss a token) by transformers' Trainer."""
    clock, processor = Clock(), stock_processor()
    options = TrainingArguments(
        scratch,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.batches,
        max_steps=args.steps + 1,
        learning_rate=0.0,
        optim="sgd",
        max_grad_norm=0.0,
        gradient_checkpointing=DEVICE.type == "cuda",
        logging_steps=1,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0,
        remove_unused_columns=False,
        use_cpu=DEVICE.type == "cpu",
    )
    Trainer(
        policy.base,
        options,
        partial(padded, processor=processor, image_pad=policy.image_pad),
        samples,
        callbacks=[clock],
        compute_loss_func=token_loss,
    ).train()
    return [b - a for a, b in zip(clock.ends, clock.ends[1:])], clock.losses[-1]


# ---- ours ----


def packed(part: list[Sample], image_pad: int) -> Pack:
    return pack([example(s) for s in part], image_pad)


def ours(
    policy: Policy, samples: list[Sample], args: argparse.Namespace, workers: int
) -> tuple[list[float], float]:
    """(seconds of each step but the first, the loss a token) by PackedPolicy."""
    if DEVICE.type == "cuda":
        policy.base.gradient_checkpointing_enable()
    model = PackedPolicy(policy).train()
    model.forbidden.zero_()  # the Trainer knows no mask, and the losses are to be the same
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    loader = DataLoader(
        samples,
        args.micro_batch,
        collate_fn=partial(packed, image_pad=policy.image_pad),
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    tokens, taken, loss = sum(len(s.response_ids) for s in samples), [], 0.0
    for _ in range(args.steps + 1):
        began, loss = time.monotonic(), 0.0
        for part in loader:
            share = -model(part)[0].sum() / tokens
            share.backward()
            loss += share.item()
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        taken.append(time.monotonic() - began)
    return taken[1:], loss


def main() -> None:
    args = parse_args()
    workers = 4 if DEVICE.type == "cuda" else 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = BASE if args.tiny else Path(scratch) / "shape"
        if not args.tiny:
            write_shape(folder)
        policy = make_policy(args.tiny, folder, rank=None).train()
        policy.base.model.visual.requires_grad_(False)
        policy.base.model.visual.merger.requires_grad_(True)
        samples = make_samples(policy, args.micro_batch * args.batches, args.tiny)
        parts = [
            samples[at : at + args.micro_batch] for at in range(0, len(samples), args.micro_batch)
        ]
        lengths = [packed(part, policy.image_pad).lengths for part in parts]
        read, computed = sum(map(sum, lengths)), sum(max(part) * len(part) for part in lengths)
        result: dict = {
            "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
            "tokens a step": read,
            "padding, share of what the Trainer computes": round(1 - read / computed, 3),
        }
        losses = {}
        for name, way in (("trainer", partial(stock, scratch=scratch)), ("ours", ours)):
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            took, losses[name] = way(policy, samples, args, workers=workers)
            result[name] = {
                "tokens/s": round(read / statistics.median(took)),
                "s a step": [round(s, 3) for s in took],
            }
            if DEVICE.type == "cuda":
                result[name]["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    result["losses' relative difference"] = float(
        f"{abs(losses['ours'] / losses['trainer'] - 1):.1e}"
    )
    result["ratio"] = round(result["ours"]["tokens/s"] / result["trainer"]["tokens/s"], 2)
    report("sft", result)
    print(
        f"fine-tuning, tokens/s: {result['ours']['tokens/s']} against the Trainer's {result['trainer']['tokens/s']}, ratio {result['ratio']}"
    )


if __name__ == "__main__":
    main()
