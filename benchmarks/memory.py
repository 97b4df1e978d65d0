"""Is memory flat? Many short episodes on the pocket arena, through one pool of browsers.

    python benchmarks/memory.py [--episodes 1000]

Measures the resident memory of this process and all its descendants (shared pages counted once: PSS) twenty
times, prints its growth from the first fifth of the episodes to the last one, and counts the processes left over
when everything is closed. Writes runs/benchmarks/memory.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from jhima.actions import Action
from jhima.browser.chromium import Browsers
from jhima.pocket.arena import PocketArena


def tree(pid: int) -> list[int]:
    """A process and its descendants that still run (a zombie does not)."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def megabytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


async def measure(episodes: int, at_once: int, recycle: int) -> list[float]:
    """Megabytes, twenty times on the way. An episode: a page, a click, a scroll, two screenshots each, in a world of its own."""
    samples: list[float] = []
    async with PocketArena() as arena, Browsers(recycle=recycle) as browsers:
        places = asyncio.Queue()
        for number in range(episodes):
            places.put_nowait(number)

        async def player(bar: tqdm) -> None:
            while not places.empty():
                number = places.get_nowait()
                async with arena.lease() as lease, browsers.session(lease) as session:
                    await session.goto(list(lease.urls.values())[number % len(lease.urls)])
                    for action in (
                        Action("scroll", dy=168),
                        Action("click", 100, 20 + number * 28 % 300),
                    ):
                        await session.observe()
                        await session.perform(action)
                bar.update()
                if (number + 1) % max(1, episodes // 20) == 0:
                    samples.append(megabytes(tree(os.getpid())))

        with tqdm(total=episodes, unit="episode") as bar:
            await asyncio.gather(*(player(bar) for _ in range(at_once)))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument(
        "--recycle",
        type=int,
        default=200,
        help="contexts that a browser serves (default: %(default)s)",
    )
    args = parser.parse_args()
    samples = asyncio.run(measure(args.episodes, args.at_once, args.recycle))
    time.sleep(1.0)
    left = tree(os.getpid())[1:]
    fifth = max(1, len(samples) // 5)
    first, last = (statistics.mean(part) for part in (samples[:fifth], samples[-fifth:]))
    result = {
        "episodes": args.episodes,
        "MB": [round(s) for s in samples],
        "first fifth": round(first),
        "last fifth": round(last),
        "growth %": round(100 * (last / first - 1), 1),
        "processes left": len(left),
    }
    out = Path("runs/benchmarks")
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
