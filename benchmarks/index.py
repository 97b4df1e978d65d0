"""What 2.5 million samples cost to open: time, memory, random access, and a resume in mid-epoch.

    python benchmarks/index.py

Writes a synthetic ScaleCUA-format set (the paper's number of lines, 2,535,552; a third of them steps of trajectories,
the rest grounding) to a temporary folder, about 1.5 GB, and measures in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lines", type=int, default=2_535_552, help="samples in the set (default: %(default)s)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to write it (default: a temporary folder, removed at the end)",
    )
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write(folder: Path, lines: int) -> Path:
    from jhima.data.scalecua import write_step

    (folder / "images").mkdir(parents=True, exist_ok=True)
    steps = lines // 3
    with (folder / "steps.jsonl").open("w") as file:
        for i in range(steps):
            trajectory, k = divmod(i, 10)
            done = [f"Click the button number {n} in the list" for n in range(k)]
            reply = (
                f"<operation>\nClick the button number {k} in the list\n</operation>\n"
                f"<action>\nclick(x=0.5, y=0.{k + 1})\n</action>"
            )
            row = write_step(
                f"t{trajectory}/{k}.png",
                1280,
                720,
                f"Do task {trajectory} on the site",
                done,
                reply,
            )
            file.write(json.dumps(row) + "\n")
    with (folder / "grounding.jsonl").open("w") as file:
        for i in range(lines - steps):
            text = (
                f"<image>\nClick on element {i}, which is in the middle of the page"
                + " and wide" * (i % 30)
            )
            turns = [
                {"from": "human", "value": text},
                {"from": "gpt", "value": f"<action>\nclick(x=0.{i % 9 + 1}, y=0.5)\n</action>"},
            ]
            file.write(
                json.dumps(
                    {"image": f"g/{i}.png", "width": 1280, "height": 720, "conversations": turns}
                )
                + "\n"
            )
    style = {"steps": "internvl2_5_web_navigation_v1", "grounding": "internvl2_5_web_grounding_v1"}
    meta = {
        n: {"root": "images", "annotation": f"{n}.jsonl", "conv_style": s, "repeat_time": 1}
        for n, s in style.items()
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def resident() -> float:
    """MB of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(meta: Path) -> None:
    from jhima.data.scalecua import read_meta
    from jhima.training.sft_dataset import Batches, Supervision

    before, began = resident(), time.perf_counter()
    samples = Supervision(None, read_meta(meta), None, "actor", held_back=0.002)
    print(
        f"  opened {len(samples):,} samples in {time.perf_counter() - began:.1f} s; memory {before:.0f} -> {resident():.0f} MB "
        f"(peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB)"
    )
    began, order = time.perf_counter(), Batches(len(samples), 64, epochs=1, seed=0)
    first = [n for n, _ in zip(order, range(1000))]
    for number in (number for batch in first[:200] for number in batch):
        json.loads(samples.data_sets[samples.source[number]].lines[int(samples.line[number])])
    print(
        f"  12,800 samples read in shuffled order: {12_800 / (time.perf_counter() - began):,.0f} a second"
    )
    began = time.perf_counter()
    seen = bytearray(len(samples))
    for batches in (first, Batches(len(samples), 64, epochs=1, seed=0, start=1000)):
        for batch in batches:
            for number in batch:
                seen[number] += 1
    print(
        f"  stopped after step 1,000 and resumed: each of {len(samples):,} samples seen once: {set(seen) == {1}} "
        f"({time.perf_counter() - began:.1f} s)",
        flush=True,
    )


def main() -> None:
    args = parse_args()
    if args.measure:
        return measure(args.measure)
    with tempfile.TemporaryDirectory() as temporary:
        meta = write(args.folder or Path(temporary), args.lines)
        size = sum(path.stat().st_size for path in meta.parent.glob("*.jsonl"))
        for what in (
            "first opening (one pass over the files)",
            "every later opening (the index is kept)",
        ):
            print(f"{what}, {size / 1e9:.1f} GB:", flush=True)
            subprocess.run([sys.executable, __file__, "--measure", str(meta)], check=True)


if __name__ == "__main__":
    main()
