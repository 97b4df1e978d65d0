"""What train_rl.py and evaluate.py share: a run directory that knows its arguments, and the environment to play in."""
from __future__ import annotations

import argparse
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import AsyncIterator

from .arena import PocketArena
from .chromium import Browsers
from .rewards import Judge
from .rollout import Environment


def same_run(args: argparse.Namespace, script: str, free: set[str]) -> None:
    """Writes the run's arguments to OUT/args.json, or checks that they are those it began with.

    free: arguments that a resumed run may have other values of. Raises ValueError naming the first that differs.
    """
    now = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    path = args.out / "args.json"
    if path.exists():
        before = json.loads(path.read_text("utf-8"))
        for name in sorted(now.keys() - free):
            if before.get(name) != now[name]:
                raise ValueError(f"{args.out} holds a run with --{name.replace('_', '-')} {before.get(name)}, not {now[name]}; "
                                 f"give another --out, or delete it")
    elif os.environ.get("RANK", "0") == "0":
        args.out.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"script": script, **now}, indent=1), "utf-8")
        part.replace(path)


@asynccontextmanager
async def environment(args: argparse.Namespace) -> AsyncIterator[Environment]:
    """The arena, browsers and judge that the arguments ask for. Pocket tasks are judged by the pocket teacher."""
    from .pocket.teacher import MODEL, serve_teacher

    with serve_teacher() as url:
        pocket = args.tasks.startswith("pocket") and not args.judge_url
        judge = Judge(url, MODEL, None) if pocket else Judge(args.judge_url, args.judge_model, None)
        async with PocketArena(full=args.full) as arena, Browsers(args.browsers) as browsers:
            yield Environment(arena, browsers, judge, concurrency=args.concurrency)
