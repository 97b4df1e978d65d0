"""What 2.5 million samples cost to open: time, memory, random access, and a resume in mid-epoch.

    python benchmarks/index.py

Writes a synthetic data set in ScaleCUA's format to a temporary folder, about 1.5 GB: the paper's
number of lines, 2,535,552, of which a third are steps of trajectories and the rest grounding.
Measures in a fresh process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jhima import cli
from jhima.data.scalecua import read_meta, write_step
from jhima.training.sft_dataset import Batches, Supervision


@dataclass
class Args:
    lines: int = 2_535_552
    """samples in the data set"""
    folder: Path | None = None
    """where to write it (None: a temporary folder, removed at the end)"""
    measure: Path | None = None
    """measure this data set's meta.json instead of writing one"""


def write(folder: Path, lines: int) -> Path:
    """Writes the data set; returns its meta.json."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    steps = lines // 3
    with (folder / "steps.jsonl").open("w") as file:
        for i in range(steps):
            file.write(json.dumps(step(*divmod(i, 10))) + "\n")
    with (folder / "grounding.jsonl").open("w") as file:
        for i in range(lines - steps):
            file.write(json.dumps(grounding(i)) + "\n")
    style = {"steps": "internvl2_5_web_navigation_v1", "grounding": "internvl2_5_web_grounding_v1"}
    meta = {}
    for name in style:
        meta[name] = {"root": "images", "annotation": f"{name}.jsonl", "repeat_time": 1}
        meta[name]["conv_style"] = style[name]
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def step(trajectory: int, k: int) -> dict:
    operation = "Click the button number {} in the list"
    history = [operation.format(n) for n in range(k)]
    call = f"click(x=0.5, y=0.{k + 1})"
    reply = f"<operation>\n{operation.format(k)}\n</operation>\n<action>\n{call}\n</action>"
    task = f"Do task {trajectory} on the site"
    return write_step(f"t{trajectory}/{k}.png", 1280, 720, task, history, reply)


def grounding(i: int) -> dict:
    text = f"<image>\nClick on element {i}, which is in the middle of the page"
    call = f"<action>\nclick(x=0.{i % 9 + 1}, y=0.5)\n</action>"
    turns = [
        {"from": "human", "value": text + " and wide" * (i % 30)},
        {"from": "gpt", "value": call},
    ]
    return {"image": f"g/{i}.png", "width": 1280, "height": 720, "conversations": turns}


def resident() -> float:
    """MB of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(meta: Path) -> None:
    before, began = resident(), time.perf_counter()
    samples = Supervision(None, read_meta(meta), None, "actor", held_back=0.002)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"  opened {len(samples):,} samples in {seconds:.1f} s; "
        f"memory {before:.0f} -> {resident():.0f} MB (peak {peak:.0f} MB)"
    )

    began, order = time.perf_counter(), Batches(len(samples), 64, epochs=1, seed=0)
    first = list(islice(order, 1000))
    for number in chain.from_iterable(first[:200]):
        data_set = samples.data_sets[samples.source[number]]
        json.loads(data_set.lines[int(samples.line[number])])
    seconds = time.perf_counter() - began
    print(f"  12,800 samples read in shuffled order: {12_800 / seconds:,.0f} per second")

    began = time.perf_counter()
    rest = Batches(len(samples), 64, epochs=1, seed=0, start=1000)
    times_seen = bytearray(len(samples))
    for batch in chain(first, rest):
        for number in batch:
            times_seen[number] += 1
    once, seconds = set(times_seen) == {1}, time.perf_counter() - began
    print(
        f"  stopped after step 1,000 and resumed: each of {len(samples):,} samples seen once: "
        f"{once} ({seconds:.1f} s)",
        flush=True,
    )


def main() -> None:
    args = cli.parse(Args, __doc__)
    if args.measure:
        return measure(args.measure)
    with tempfile.TemporaryDirectory() as temporary:
        meta = write(args.folder or Path(temporary), args.lines)
        gigabytes = sum(path.stat().st_size for path in meta.parent.glob("*.jsonl")) / 1e9
        openings = (
            "first opening (one pass over the files)",
            "every later opening (the index is kept)",
        )
        for opening in openings:
            print(f"{opening}, {gigabytes:.1f} GB:", flush=True)
            subprocess.run([sys.executable, __file__, "--measure", str(meta)], check=True)


if __name__ == "__main__":
    main()
