"""Asks the judge about episodes that it gave no verdict on; no browser, no model is needed.

    python -m jhima.rescore runs/eval --judge-model gpt-5.2-codex     episodes without a reward
    python -m jhima.rescore runs/eval --all --judge-model other       every judged check, e.g. by another judge

An episode holds what its judge was asked and what it replied. All other rules are functions of the page where the
episode ended, and were settled there. Replies are kept in RUN/judge.jsonl, so that a second time costs nothing.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tqdm import tqdm

from .records import MALFORMED
from .rewards import Judge, ask_judge, reward_of
from .runs import judge_for

TOGETHER = 16                                # questions at once


async def rescore(run: Path, judge: Judge, every: bool) -> dict[str, int]:
    """Rewrites the episodes of a run whose verdict changes; returns counts. An unreadable file is left as it is."""
    counts = dict.fromkeys(("episodes", "asked", "scored", "unscored", "unreadable"), 0)
    slots = asyncio.Semaphore(TOGETHER)
    paths = sorted(run.glob("rollouts/*/*/p*_e*/episode.json"))

    async def one(path: Path) -> None:
        async with slots:
            try:
                episode = json.loads(path.read_text("utf-8"))
                checks = [c for c in episode["checks"] if c.get("asked") and (every or c["passed"] is None)]
                unscored = episode["reward"] is None
            except MALFORMED:
                counts["unreadable"] += 1
                return
            counts["episodes"] += 1
            if not checks:
                return
            for check in checks:
                counts["asked"] += 1
                passed, reason, asked = await ask_judge(judge, check["asked"])
                if passed is not None:                          # a judge that is silent now takes nothing back
                    check |= {"passed": passed, "reason": reason, "asked": asked}
            episode["reward"] = reward_of(check["passed"] for check in episode["checks"])
            if episode["reward"] is not None:
                episode["failure"] = None
            counts["scored"] += unscored and episode["reward"] is not None
            counts["unscored"] += episode["reward"] is None
            part = path.with_suffix(".part")
            part.write_text(json.dumps(episode, separators=(",", ":")), "utf-8")
            part.replace(path)

    for job in tqdm(asyncio.as_completed(map(one, paths)), total=len(paths), desc="rescore", unit="episode"):
        await job
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory of evaluate.py or train_rl.py")
    parser.add_argument("--all", action="store_true", help="ask again about checks that have a verdict, too")
    parser.add_argument("--judge-url", help="OpenAI-compatible endpoint (default: the run's)")
    parser.add_argument("--judge-model", help="(default: the run's)")
    args = parser.parse_args()
    try:
        before = json.loads((args.run / "args.json").read_text("utf-8"))
        tasks, url, model = (before[name] for name in ("tasks", "judge_url", "judge_model"))
    except MALFORMED as error:
        sys.exit(f"{args.run}: expected a run directory of evaluate.py or train_rl.py, with its args.json: {error!r}")
    with judge_for(tasks, args.judge_url or url, args.judge_model or model, args.run) as judge:
        counts = asyncio.run(rescore(args.run, judge, args.all))
    print(f"{args.run}: {counts['episodes']} episodes, {counts['asked']} questions asked, {counts['scored']} scored that "
          f"had no reward, {counts['unscored']} still without, {counts['unreadable']} unreadable")


if __name__ == "__main__":
    main()
