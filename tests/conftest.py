"""Shared fixtures: one thread per process, an untrained pocket model, a browser."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
}

import pytest
import torch
from stubs import browser, world

torch.set_num_threads(1)
__all__ = ["browser", "world"]  # fixtures for all files


@pytest.fixture(scope="session")
def loop():
    """Where the tests' browsers live, whatever their scope."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """An untrained pocket model with its whole tokenizer."""
    from jhima.pocket.pretraining.corpus import corpus
    from jhima.pocket.pretraining.model import build

    folder = tmp_path_factory.mktemp("checkpoints") / "pocket"
    build(folder, corpus(), hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    return folder


@pytest.fixture(scope="session")
def policy(checkpoint):
    from jhima.policy import load_policy

    return load_policy(checkpoint, "cpu", torch.float32).eval()
