"""Shared fixtures: one thread a process, an untrained pocket model, and made-up samples."""
from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import sys
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
import pytest
import torch
from PIL import Image

from stubs import browser, world

torch.set_num_threads(1)
__all__ = ["browser", "world"]      # fixtures for all files


def start_process(target, *args: object) -> multiprocessing.Process:
    """target(*args) in a process of its own, from a server that has imported the scripts already.

    Not forked from this process: its threads (autograd's, a browser's) are not in a child, which would wait for them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["annotate", "train_sft", "rl_faults"])
    process = context.Process(target=target, args=args)
    process.start()
    return process


@pytest.fixture(scope="session")
def loop():
    """Where the tests' browsers live, whatever their scope."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """An untrained pocket model with its whole tokenizer."""
    from jhima.pocket.corpus import corpus
    from jhima.pocket.model import build
    folder = tmp_path_factory.mktemp("checkpoints") / "pocket"
    build(folder, corpus(), hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    return folder


@pytest.fixture(scope="session")
def policy(checkpoint):
    from jhima.policy import load_policy
    return load_policy(checkpoint, "cpu", torch.float32).eval()


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
    from jhima.policy import Sample
    from jhima.prompts import Prompt
    rng = np.random.default_rng(count)
    samples = []
    for i in range(count):
        prompt = Prompt("", "Task " + "go to the page " * int(rng.integers(1, 6)), screenshot(i % 3))
        response = policy.response_ids("Click Zoo " * int(rng.integers(1, 5)))
        samples.append(Sample(policy.prompt_ids(prompt), prompt.image, response, float([0.75, -0.25, 0.0][i % 3]),
                              [-1.0] * len(response)))
    return samples
