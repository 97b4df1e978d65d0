"""Is concurrency real? 21 episodes at once against the same episodes one after another, in real Chromium.

    python benchmarks/concurrency.py [--episodes 21] [--latency 0.3]

The oracle plays, so no model's speed is in it. Prints steps/s of both and, last, their ratio in this run; writes
runs/benchmarks/concurrency.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import oracle
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.rollout import episode
from jhima.webarena.judge import Judge


async def measure(episodes: int, at_once: int, latency: float) -> tuple[float, int]:
    """(steps a second, episodes solved)."""
    tasks = load_tasks("pocket")[:episodes]
    with serve_teacher() as url:
        async with PocketArena(latency=latency) as arena, Browsers() as browsers:
            env = Environment(arena, browsers, Judge(url, MODEL, None), concurrency=at_once)
            with tqdm(total=episodes, desc=f"{at_once} at once", unit="episode") as bar:

                async def one(task):
                    done = await episode(
                        env, task, 0, 0, lambda _: oracle(solutions()[task.intent]), T=15
                    )
                    bar.update()
                    return done

                began = time.monotonic()
                done = await asyncio.gather(*map(one, tasks))
                seconds = time.monotonic() - began
    return sum(len(e.steps) for e in done) / seconds, sum(e.reward == 1 for e in done)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=21, help="(default: %(default)s)")
    parser.add_argument(
        "--latency",
        type=float,
        default=0.3,
        help="seconds that every page takes (default: %(default)s)",
    )
    args = parser.parse_args()
    serial, solved_serial = asyncio.run(measure(args.episodes, 1, args.latency))
    together, solved = asyncio.run(measure(args.episodes, args.episodes, args.latency))
    result = {
        "episodes": args.episodes,
        "latency": args.latency,
        "solved": [solved_serial, solved],
        "steps/s one after another": round(serial, 2),
        "steps/s at once": round(together, 2),
        "ratio": round(together / serial, 2),
    }
    out = Path("runs/benchmarks")
    out.mkdir(parents=True, exist_ok=True)
    (out / "concurrency.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))
    print(f"ratio: {result['ratio']}")


if __name__ == "__main__":
    main()
