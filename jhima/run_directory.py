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


def read_args(run: Path) -> dict:
    """The arguments that a run began with, from RUN/args.json; {} where there are none to be read."""
    try:
        args = json.loads((Path(run) / "args.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return args if isinstance(args, dict) else {}


def write_args(run: Path, args: dict) -> None:
    write_whole(Path(run) / "args.json", json.dumps(args, indent=1))


def same_run(args: argparse.Namespace, script: str, free: set[str]) -> None:
    """Writes the run's arguments to OUT/args.json, or checks that they are those it began with.

    free: arguments that a resumed run may have other values of. Raises ValueError naming the first that differs.
    """
    now = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    path = args.out / "args.json"
    if path.exists():
        before = read_args(args.out)
        for name in sorted(now.keys() - free):
            if before.get(name) != now[name]:
                raise ValueError(
                    f"{args.out} holds a run with --{name.replace('_', '-')} {before.get(name)}, not {now[name]}; "
                    f"give another --out, or delete it"
                )
    elif os.environ.get("RANK", "0") == "0":
        args.out.mkdir(parents=True, exist_ok=True)
        write_args(args.out, {"script": script, **now})
