"""How much faster packed training is than padded training, on the same samples in one run.

    python benchmarks/packing.py

Forward and backward of the pocket model over micro-batches of mixed samples: grounding (short) and steps with a
history (long), as in the actor's data. Both ways learn the same tokens; the check at the end says how far apart their
losses are.
"""
from __future__ import annotations

import argparse
import io
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
from jhima.packing import Example, PackedPolicy, Picture, pack  # noqa: E402
from jhima.policy import Policy, Sample, default_dtype, image_key, load_policy  # noqa: E402
from jhima.prompts import Prompt  # noqa: E402
from jhima.vision import decode  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="jhima/pocket/base", help="(default: %(default)s)")
    add("--micro-batch", type=int, default=8, help="samples in a forward pass (default: %(default)s)")
    add("--batches", type=int, default=4, help="micro-batches in a round (default: %(default)s)")
    add("--rounds", type=int, default=3, help="timed rounds of each way, in turn; the median counts (default: %(default)s)")
    add("--grounding", type=float, default=0.5, help="share of short samples (default: %(default)s)")
    return parser.parse_args()


def make_samples(policy: Policy, count: int, grounding: float) -> list[Sample]:
    rng, found = random.Random(0), []
    for number in range(count):
        side = 168 if rng.random() < grounding else 336
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "PNG")
        text = "Click the Zoo" if side == 168 else "Click the Zoo\n" * rng.randint(1, 60)
        reply = policy.response_ids("Click Zoo " * rng.randint(2, 8))
        found.append(Sample(policy.prompt_ids(Prompt("", text, b"")), data.getvalue(), reply))
    return found


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    padded = load_policy(args.model, device, default_dtype(torch.device(device)))
    packed = PackedPolicy(load_policy(args.model, device, default_dtype(torch.device(device))), cache_bytes=1 << 30)
    padded.base.model.visual.requires_grad_(False)
    packed.projector.requires_grad_(False)                     # both train the same parameters
    samples = make_samples(padded, args.micro_batch * args.batches, args.grounding)
    batches = [samples[at:at + args.micro_batch] for at in range(0, len(samples), args.micro_batch)]
    packs = [pack([Example(s.prompt_ids + s.response_ids, [False] * len(s.prompt_ids) + [True] * len(s.response_ids),
                           [Picture(image_key(s.image), decode(s.image))]) for s in batch], padded.image_pad)
             for batch in batches]

    def once(model: torch.nn.Module, parts: list, read) -> tuple[float, float]:
        """(seconds, summed loss) of a round."""
        model.zero_grad(set_to_none=True)
        began, total = time.perf_counter(), 0.0
        for part in parts:
            loss = -read(model(part)).sum()
            loss.backward()
            total += loss.item()
        return time.perf_counter() - began, total

    ways = {"padded": (padded, batches, lambda out: out), "packed": (packed, packs, lambda out: out[0])}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for number in range(args.rounds + 1):                      # the first round warms up and fills the feature caches
        for name, way in ways.items():
            took, losses[name] = once(*way)
            if number:
                seconds[name].append(took)
    tokens = sum(sum(p.lengths) for p in packs)
    computed = sum(max(p.lengths) * len(p.lengths) for p in packs)
    for name, found in seconds.items():
        print(f"{name}: {statistics.median(found):.2f} s a round, {tokens / statistics.median(found):,.0f} tokens/s")
    print(f"packed is {statistics.median(seconds['padded']) / statistics.median(seconds['packed']):.2f} times as fast; "
          f"{1 - tokens / computed:.0%} of what the padded way computes is padding")
    print(f"losses differ by {abs(losses['padded'] / losses['packed'] - 1):.1e}")


if __name__ == "__main__":
    main()
