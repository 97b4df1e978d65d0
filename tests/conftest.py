"""Shared fixtures: one thread per process, an untrained pocket model, browsers, the pocket
arena.
"""

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
from playwright.async_api import async_playwright
from stubs import Session, Site, lease_of

from jhima.browser.chromium import Browsers, find_chromium
from jhima.episodes import Task
from jhima.pocket.arena import PocketArena
from jhima.webarena.evaluators import score
from jhima.webarena.judge import Judge

torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def chromium(loop):
    """One Chromium process for all files: a context is what each episode has to itself."""
    browsers = Browsers()
    loop.run_until_complete(browsers.__aenter__())
    yield browsers
    loop.run_until_complete(browsers.__aexit__())


@pytest.fixture(scope="session")
def pocket(loop):
    """One pocket arena for all files: a world is what each episode has to itself."""
    arena = PocketArena()
    loop.run_until_complete(arena.__aenter__())
    yield arena
    loop.run_until_complete(arena.__aexit__())


@pytest.fixture(scope="session")
def browser(loop):
    async def start():
        playwright = await async_playwright().start()
        args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        return playwright, await playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=args
        )

    async def stop():
        await browser.close()
        await playwright.stop()

    playwright, browser = loop.run_until_complete(start())
    yield browser
    loop.run_until_complete(stop())


@pytest.fixture
def world(loop, browser, monkeypatch):
    """A site, and the scoring of an episode that ended on its path `end`."""
    monkeypatch.setattr("jhima.webarena.evaluators.PAUSE", 0.05)

    async def scored(entry: dict, end: str, answer: str, judge: Judge | None, operation: float):
        context = await browser.new_context()
        try:
            page = await context.new_page()
            await page.goto(site.url + end)
            session = Session(context, page, operation)
            task = Task("t-1", ("shopping",), "__SHOPPING__", "Do it", entry)
            verdict = await score(task, lease_of(site), session, answer, judge)
            # The agent's page alone is left, as it was.
            assert page.url == site.url + end and len(context.pages) == 1
            return verdict
        finally:
            await context.close()

    def run(
        entry: dict,
        end: str = "/",
        answer: str = "",
        judge: Judge | None = None,
        operation: float = 8.0,
    ):
        return loop.run_until_complete(scored(entry, end, answer, judge, operation))

    with Site({"/": "<p>home</p>"}) as site:
        site.score = run
        yield site
