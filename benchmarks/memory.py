"""Is memory flat? Many short episodes on the pocket arena, through one pool of browsers.

    python benchmarks/memory.py [--episodes 1000]

Measures the resident memory of this process and all its descendants twenty times (shared pages
count once: PSS), and prints its growth from the first fifth of the episodes to the last. Counts the
processes that are left over when everything is closed. Writes runs/benchmarks/memory.json.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from benchmarks.report import report
from jhima import cli
from jhima.actions import Action
from jhima.browser.chromium import Browsers
from jhima.pocket.arena import PocketArena


@dataclass
class Args:
    episodes: int = 1000
    """episodes to play"""
    at_once: int = 4
    """of them"""
    recycle: int = 200
    """contexts that a browser serves"""


def tree(pid: int) -> list[int]:
    """A process and its descendants that still run (a zombie does not)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    processes = [pid]
    for process in processes:  # it grows on the way
        processes += [child for child, parent in parents.items() if parent == process]
    return processes


def megabytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


async def measure(episodes: int, at_once: int, recycle: int) -> list[float]:
    """Megabytes, measured twenty times.

    An episode is a page, two screenshots, a scroll and a click, in a world of its own.
    """
    samples: list[float] = []
    numbers = iter(range(episodes))  # shared by all players
    async with PocketArena() as arena, Browsers(recycle=recycle) as browsers:

        async def player(bar: tqdm) -> None:
            for number in numbers:
                click = Action("click", 100, 20 + number * 28 % 300)
                async with arena.lease() as lease, browsers.session(lease) as session:
                    urls = list(lease.urls.values())
                    await session.goto(urls[number % len(urls)])
                    for action in (Action("scroll", dy=168), click):
                        await session.observe()
                        await session.perform(action)
                bar.update()
                if (number + 1) % max(1, episodes // 20) == 0:
                    samples.append(megabytes(tree(os.getpid())))

        with tqdm(total=episodes, unit="episode") as bar:
            await asyncio.gather(*[player(bar) for _ in range(at_once)])
    return samples


def main() -> None:
    args = cli.parse(Args, __doc__)
    samples = asyncio.run(measure(args.episodes, args.at_once, args.recycle))
    time.sleep(1.0)
    left_over = tree(os.getpid())[1:]
    fifth = max(1, len(samples) // 5)
    first, last = statistics.mean(samples[:fifth]), statistics.mean(samples[-fifth:])
    result = {
        "episodes": args.episodes,
        "MB": [round(sample) for sample in samples],
        "first fifth": round(first),
        "last fifth": round(last),
        "growth %": round(100 * (last / first - 1), 1),
        "processes left": len(left_over),
    }
    report("memory", result)


if __name__ == "__main__":
    main()
