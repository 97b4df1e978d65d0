"""Where the benchmarks leave their numbers."""

from __future__ import annotations

import json
from pathlib import Path

OUT = Path("runs/benchmarks")


def report(name: str, result: dict) -> None:
    """Writes runs/benchmarks/NAME.json and prints it."""
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (OUT / f"{name}.json").write_text(text)
    print(text)
