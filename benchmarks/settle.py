"""Settling by event against fixed waits, on the same pages; and the ways to a screenshot.

    python benchmarks/settle.py [--episodes 8] [--latency 0.3]

The oracle plays the same pocket tasks three times: as the rollout does, and with a fixed sleep of 1 s and of 3 s in
the place of every wait. Prints steps/s and, last, the ratios of this run; writes runs/benchmarks/settle.json.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image
from tqdm import tqdm

from jhima.browser.chromium import Browsers
from jhima.browser.tabs import Tabs
from jhima.environment import Environment, load_tasks
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import oracle
from jhima.pocket.tasks.generate import solutions
from jhima.rollout import episode


def sleeping(seconds: float):
    """A settle that only sleeps, as harnesses with fixed waits do."""

    async def settle(_tabs: Tabs, acted: bool = True) -> int:
        if acted:
            await asyncio.sleep(seconds)
        return 200

    return settle


async def play(episodes: int, latency: float, name: str) -> dict[str, float]:
    """The steps and seconds of all episodes together, played at once; login and start-up are not counted."""
    tasks = [
        task
        for task in load_tasks("pocket")
        if "fuzzy_match" not in json.dumps(vars(task), default=str)
    ][:episodes]
    steps = seconds = solved = 0.0
    async with PocketArena(full=True, latency=latency) as arena, Browsers() as browsers:
        env = Environment(arena, browsers)
        with tqdm(total=episodes, desc=name, unit="episode") as bar:

            async def one(task):
                nonlocal steps, seconds, solved
                act = oracle(solutions()[task.intent])
                began: list[float] = []

                async def timed(*seen):
                    began.append(time.monotonic())
                    return await act(*seen)

                done = await episode(env, task, 0, 0, lambda _: timed, T=30)
                # From the first request for an action to the last one: every step but the last.
                steps, seconds, solved = (
                    steps + len(began) - 1,
                    seconds + began[-1] - began[0],
                    solved + (done.reward == 1),
                )
                bar.update()

            for task in tasks:
                await one(task)
    return {"steps/s": steps / seconds, "solved": solved}


async def screenshots(count: int = 30) -> dict[str, dict[str, object]]:
    """Milliseconds (median) and bytes of each way to a picture of one 1280x720 page, and whether it has its pixels."""
    async with (
        PocketArena(full=True) as arena,
        Browsers() as browsers,
        arena.lease(load_tasks("pocket")[0]) as lease,
    ):
        async with browsers.session(lease) as session:
            await session.goto(lease.urls["shopping"])
            exact = Image.open(io.BytesIO(await session.page.screenshot())).convert("RGB").tobytes()

            async def command(**options):
                import base64

                return base64.b64decode(
                    (await session.tabs.command("Page.captureScreenshot", **options))["data"]
                )

            ways = {
                "playwright png": lambda: session.page.screenshot(),
                "cdp png": lambda: command(format="png"),
                "cdp png, for speed": lambda: command(format="png", optimizeForSpeed=True),
                "cdp webp 100": lambda: command(format="webp", quality=100),
                "cdp jpeg 100": lambda: command(format="jpeg", quality=100),
            }
            result = {}
            for name, way in ways.items():
                times = []
                for _ in range(count):
                    began = time.perf_counter()
                    picture = await way()
                    times.append(1000 * (time.perf_counter() - began))
                same = Image.open(io.BytesIO(picture)).convert("RGB").tobytes() == exact
                result[name] = {
                    "ms": round(statistics.median(times), 1),
                    "kB": len(picture) // 1024,
                    "exact": same,
                }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--episodes", type=int, default=8, help="one after another (default: %(default)s)"
    )
    parser.add_argument(
        "--latency",
        type=float,
        default=0.3,
        help="seconds that every page takes (default: %(default)s)",
    )
    args = parser.parse_args()
    result: dict[str, object] = {"screenshots": asyncio.run(screenshots())}
    by_event = Tabs.settle
    for name, settle in (("by event", by_event), ("1 s", sleeping(1.0)), ("3 s", sleeping(3.0))):
        Tabs.settle = settle
        result[name] = asyncio.run(play(args.episodes, args.latency, name))
    out = Path("runs/benchmarks")
    out.mkdir(parents=True, exist_ok=True)
    (out / "settle.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    for name in ("1 s", "3 s"):
        print(
            f"ratio to fixed waits of {name}: {result['by event']['steps/s'] / result[name]['steps/s']:.1f}"
        )


if __name__ == "__main__":
    main()
