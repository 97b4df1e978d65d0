"""Made-up pictures, adapters and samples, and processes of their own."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from jhima.coordinates import PATCH
from jhima.models.positions import expand
from jhima.models.vision import decode, patchify
from jhima.policy import Sample

ROOT = Path(__file__).resolve().parents[2]


def start_process(target, *args: object) -> multiprocessing.Process:
    """target(*args) in a process of its own, from a server that has imported the scripts already.

    Not forked from this process: a child has none of its threads (autograd's, a browser's), and
    would wait for them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["annotate", "train_sft", "rl_faults"])
    process = context.Process(target=target, args=args)
    process.start()
    return process


def environ() -> dict[str, str]:
    """What children see: a test may have turned this process into a rank, and left a launcher's
    variables.
    """
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("MASTER_") and k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def screenshot(seed: int, width: int = 336, height: int = 336) -> bytes:
    """A random picture as PNG bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def randomize(policy, seed: int) -> None:
    """Gives a policy a non-zero adapter."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad:
                p.copy_(torch.randn(p.shape, generator=noise) * 0.05)


def make_samples(policy, count: int) -> list:
    """Samples of different lengths with advantages of both signs, some of them zero."""
    from jhima.prompts import Prompt

    rng = np.random.default_rng(count)
    samples = []
    for i in range(count):
        prompt = Prompt(
            "", "Task " + "go to the page " * int(rng.integers(1, 6)), screenshot(i % 3)
        )
        response = policy.response_ids("Click Zoo " * int(rng.integers(1, 5)))
        samples.append(
            Sample(
                policy.prompt_ids(prompt),
                prompt.image,
                response,
                float([0.75, -0.25, 0.0][i % 3]),
                [-1.0] * len(response),
            )
        )
    return samples


def patches(image: bytes):
    """Patches [n, 1176] and grid of one screenshot."""
    pixels = decode(image)
    return patchify(pixels[None])[0], (pixels.shape[0] // PATCH, pixels.shape[1] // PATCH)


def stock_logp(policy, s: Sample) -> torch.Tensor:
    """The response's log-probs by transformers' own multimodal forward pass."""
    pixels, grid = patches(s.image)
    ids = torch.tensor(
        [expand(s.prompt_ids, policy.image_pad, grid[0] * grid[1] // 4) + s.response_ids]
    )
    logits = (
        policy.base(
            input_ids=ids,
            pixel_values=pixels,
            image_grid_thw=torch.tensor([[1, *grid]]),
            mm_token_type_ids=(ids == policy.image_pad).long(),
        )
        .logits[0]
        .float()
    )
    n = len(s.response_ids)
    logp = logits.masked_fill(policy.forbidden, float("-inf")).log_softmax(-1)[-n - 1 : -1]
    return logp.gather(-1, torch.tensor(s.response_ids)[:, None])[:, 0]
