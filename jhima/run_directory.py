"""Files that a kill cannot leave half-written."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that appears whole or not at all: beside its place first, then renamed into it."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)


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
                raise ValueError(
                    f"{args.out} holds a run with --{name.replace('_', '-')} {before.get(name)}, not {now[name]}; "
                    f"give another --out, or delete it"
                )
    elif os.environ.get("RANK", "0") == "0":
        args.out.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"script": script, **now}, indent=1))
