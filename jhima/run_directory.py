"""A run directory: its arguments, and files that a kill cannot leave half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that appears whole or not at all: a file beside it, renamed at the end."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)


def read_args(run: Path) -> dict:
    """The arguments that a run began with, from RUN/args.json; {} if they cannot be read."""
    try:
        args = json.loads((Path(run) / "args.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return args if isinstance(args, dict) else {}


def write_args(run: Path, args: dict) -> None:
    write_whole(Path(run) / "args.json", json.dumps(args, indent=1))


def same_run(args: Any, script: str, free: set[str]) -> None:
    """Writes a run's arguments (a dataclass with `out`), or checks that they are as it began.

    free: arguments that may differ when a run is resumed. Raises ValueError naming the first that
    differs and may not.
    """
    now = {}
    for name, value in vars(args).items():
        now[name] = str(value) if isinstance(value, Path) else value
    if not (args.out / "args.json").exists():
        if os.environ.get("RANK", "0") == "0":
            args.out.mkdir(parents=True, exist_ok=True)
            write_args(args.out, {"script": script, **now})
        return
    before = read_args(args.out)
    for name in sorted(now.keys() - free):
        if before.get(name) != now[name]:
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{args.out} holds a run with {flag} {before.get(name)}, not {now[name]}; "
                f"give another --out, or delete it"
            )
