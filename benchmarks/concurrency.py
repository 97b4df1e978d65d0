"""Is concurrency real? Episodes at once against the same episodes in turn, in real Chromium.

    python benchmarks/concurrency.py [--episodes 21] [--latency 0.3]

The oracle plays, so no model's speed matters. Prints steps/s of both and, last, their ratio in this
run; writes runs/benchmarks/concurrency.json.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import report
from jhima import cli
from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.episodes import Episode, Task
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import oracle
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.results.episode_bar import EpisodeBar
from jhima.rollout import episode
from jhima.webarena.judge import Judge


@dataclass
class Args:
    episodes: int = 21
    """episodes of each measurement"""
    latency: float = 0.3
    """seconds that every page takes"""


async def measure(episodes: int, at_once: int, latency: float) -> tuple[float, int]:
    """(steps per second, episodes solved)."""
    tasks = load_tasks("pocket")[:episodes]
    with serve_teacher() as url, EpisodeBar(f"{at_once} at once", episodes) as bar:
        async with PocketArena(latency=latency) as arena, Browsers() as browsers:
            env = Environment(arena, browsers, Judge(url, MODEL, None), concurrency=at_once)

            async def play(task: Task) -> Episode:
                solution = solutions()[task.intent]
                played = await episode(env, task, 0, 0, lambda _: oracle(solution), T=15)
                bar.finished(played)
                return played

            began = time.monotonic()
            played = await asyncio.gather(*map(play, tasks))
            seconds = time.monotonic() - began
    steps = sum(len(one.steps) for one in played)
    return steps / seconds, sum(one.reward == 1 for one in played)


def main() -> None:
    args = cli.parse(Args, __doc__)
    in_turn, solved_in_turn = asyncio.run(measure(args.episodes, 1, args.latency))
    at_once, solved_at_once = asyncio.run(measure(args.episodes, args.episodes, args.latency))
    ratio = round(at_once / in_turn, 2)
    result = {
        "episodes": args.episodes,
        "latency": args.latency,
        "solved": [solved_in_turn, solved_at_once],
        "steps/s one after another": round(in_turn, 2),
        "steps/s at once": round(at_once, 2),
        "ratio": ratio,
    }
    report("concurrency", result)
    print(f"ratio: {ratio}")


if __name__ == "__main__":
    main()
