"""Waiting until a page settles against fixed waits, and the ways to take a screenshot.

    python benchmarks/settle.py [--episodes 8] [--latency 0.3]

The oracle plays the same pocket tasks three times: as the rollout does, and with a fixed sleep of
1 s and of 3 s instead of every wait. Prints steps/s and, last, the ratios of this run; writes
runs/benchmarks/settle.json.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image

from benchmarks.report import report
from jhima import cli
from jhima.browser.chromium import Browsers
from jhima.browser.tabs import Tabs
from jhima.environment import Environment, load_tasks
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import oracle
from jhima.pocket.tasks.generate import solutions
from jhima.results.episode_bar import EpisodeBar
from jhima.rollout import episode
from jhima.sampler import Completion


@dataclass
class Args:
    episodes: int = 8
    """one after another"""
    latency: float = 0.3
    """seconds that every page takes"""


def sleeping(seconds: float):
    """A Tabs.settle that only sleeps, as harnesses with fixed waits do."""

    async def settle(_tabs: Tabs, acted: bool = True, returns: int = 0) -> int:
        if acted:
            await asyncio.sleep(seconds)
        return 200

    return settle


async def play(episodes: int, latency: float, name: str) -> dict[str, float]:
    """Steps per second over all episodes, and how many were solved.

    Login and start-up do not count: the time runs from an episode's first request for an action to
    its last one, which is every step but the last.
    """
    tasks = load_tasks("pocket")
    no_judge = [task for task in tasks if "fuzzy_match" not in json.dumps(task.eval)][:episodes]
    steps = seconds = solved = 0.0
    async with PocketArena(full=True, latency=latency) as arena, Browsers() as browsers:
        env = Environment(arena, browsers)
        with EpisodeBar(name, episodes) as bar:
            for task in no_judge:
                act = oracle(solutions()[task.intent])
                requests: list[float] = []

                async def timed(*observed, act=act, requests=requests) -> Completion:
                    requests.append(time.monotonic())
                    return await act(*observed)

                played = await episode(env, task, 0, 0, lambda _, timed=timed: timed, T=30)
                steps += len(requests) - 1
                seconds += requests[-1] - requests[0]
                solved += played.reward == 1
                bar.finished(played)
    return {"steps/s": steps / seconds, "solved": solved}


async def screenshots(count: int = 30) -> dict[str, dict[str, object]]:
    """Of each way to take a 1280x720 screenshot: its milliseconds (median) and size, and whether
    its pixels are exact."""
    task = load_tasks("pocket")[0]
    async with (
        PocketArena(full=True) as arena,
        Browsers() as browsers,
        arena.lease(task) as lease,
        browsers.session(lease) as session,
    ):
        await session.goto(lease.urls["shopping"])
        exact = pixels(await session.page.screenshot())

        async def by_playwright() -> bytes:
            return await session.page.screenshot()

        def by_cdp(**options):
            async def take() -> bytes:
                shot = await session.tabs.command("Page.captureScreenshot", **options)
                return base64.b64decode(shot["data"])

            return take

        ways = {
            "playwright png": by_playwright,
            "cdp png": by_cdp(format="png"),
            "cdp png, for speed": by_cdp(format="png", optimizeForSpeed=True),
            "cdp webp 100": by_cdp(format="webp", quality=100),
            "cdp jpeg 100": by_cdp(format="jpeg", quality=100),
        }
        result = {}
        for name, take in ways.items():
            times = []
            for _ in range(count):
                began = time.perf_counter()
                picture = await take()
                times.append(1000 * (time.perf_counter() - began))
            result[name] = {
                "ms": round(statistics.median(times), 1),
                "kB": len(picture) // 1024,
                "exact": pixels(picture) == exact,
            }
    return result


def pixels(picture: bytes) -> bytes:
    return Image.open(io.BytesIO(picture)).convert("RGB").tobytes()


def main() -> None:
    args = cli.parse(Args, __doc__)
    result: dict[str, dict] = {"screenshots": asyncio.run(screenshots())}
    by_event = Tabs.settle
    for name, settle in (("by event", by_event), ("1 s", sleeping(1.0)), ("3 s", sleeping(3.0))):
        Tabs.settle = settle
        result[name] = asyncio.run(play(args.episodes, args.latency, name))
    report("settle", result)
    for name in ("1 s", "3 s"):
        ratio = result["by event"]["steps/s"] / result[name]["steps/s"]
        print(f"ratio to fixed waits of {name}: {ratio:.1f}")


if __name__ == "__main__":
    main()
