"""Table 2 on the pocket arena: what joint RL of both roles adds, and which part of it.

    python benchmarks/table_2.py --sft runs/demo                        # 4 rows x 3 seeds, one after another
    python benchmarks/table_2.py --sft runs/demo --jobs 4 --browsers 2  # on a machine with cores to spare

A row is train_rl.py with the row's flags, then evaluate.py on pocket-eval (new instances of the training templates)
with every --every-th batch's adapters, and on pocket-new (templates that no demonstration and no RL task has) with the
last ones. Rows share the two fine-tuned models that `make demo` leaves in --sft; those without a decomposer start from
actor-no-plan there (`make ablation` trains it). Every run is resumed by the same command, and finished ones are read, not
run again. OUT gets a folder and a log a run, results.md (both tables, each row minus fine-tuning, subgoal analysis, plans
before and after, time) and curves.png: held-out success by batch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jhima.results.figures import INK, percent_axis, read_metrics
from jhima.results.run_reader import read_groups
from jhima.results.success import compare, compare_markdown, success_table
from jhima.run_directory import write_whole
from jhima.training.checkpoints import batches_done

K, M, T = 3, 4, 10
TOKENS = ["--plan-tokens", 64, "--action-tokens", 48]
ROWS = {  # folder: (name in the table, flags of train_rl.py); the paper's Table 2, from the bottom up
    "joint": ("joint", ["--M", M]),
    "actor": ("without decomposer RL", ["--M", M, "--train", "actor"]),
    "flat-KM": (f"actor only, {K * M} episodes a task", ["--M", K * M, "--no-plan"]),
    "flat-M": (f"actor only, {M} episodes a task", ["--M", M, "--no-plan"]),
}
COLOURS = ("#1f5fa8", "#b3541e", "#2c7a4b", "#7a4a9b")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--sft",
        type=Path,
        default=Path("runs/demo"),
        help="folder with decomposer/, actor/ and actor-no-plan/ (default: %(default)s)",
    )
    add("--out", type=Path, default=Path("runs/ablation"), help="(default: %(default)s)")
    add("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="(default: all)")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    add("--batches", type=int, default=12, help="rollout batches of a run (default: %(default)s)")
    add(
        "--every",
        type=int,
        default=4,
        help="batches between two evaluations; divides --batches (default: %(default)s)",
    )
    add("--tasks-per-batch", type=int, default=8, help="(default: %(default)s)")
    add("--lr", type=float, default=5e-4, help="(default: %(default)s)")
    add("--limit", type=int, default=100, help="tasks of an evaluation (default: %(default)s)")
    add("--jobs", type=int, default=1, help="runs at the same time (default: %(default)s)")
    add(
        "--concurrency",
        type=int,
        default=12,
        help="browser contexts at once, a run (default: %(default)s)",
    )
    add("--browsers", type=int, default=1, help="Chromium processes, a run (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.batches % args.every:
        sys.exit(
            f"table_2.py: --every {args.every}: expected a divisor of --batches, {args.batches}"
        )
    starts = ["sft", *["sft-no-plan"] * any(start_of(row) == "sft-no-plan" for row in args.rows)]
    for name in ("decomposer", "actor", *["actor-no-plan"] * ("sft-no-plan" in starts)):
        if not (args.sft / name / "config.json").exists():
            sys.exit(f"table_2.py: no checkpoint at {args.sft / name}; `make ablation` makes it")
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [(start, None) for start in starts] + [
        (row, seed) for seed in args.seeds for row in args.rows
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = [name for name in pool.map(lambda run: play(args, *run), runs) if name]
    if failed:
        sys.exit(
            f"table_2.py: failed: {', '.join(failed)}; see the logs in {args.out}, and run the same command again"
        )
    text = results(args)
    curves(args, args.out / "curves.png")
    write_whole(args.out / "results.md", text)
    print(text)


def name_of(row: str, seed: int | None) -> str:
    return row if seed is None else f"{row}-{seed}"


def start_of(row: str) -> str:
    """The fine-tuned models that a row begins with; a start is its own."""
    return "sft-no-plan" if "flat" in row or row == "sft-no-plan" else "sft"


def commands(args: argparse.Namespace, row: str, seed: int | None) -> list[list]:
    """What one run consists of: training, unless seed is None, and evaluations."""
    name = name_of(row, seed)
    flat = start_of(row) == "sft-no-plan"
    models = ["--actor", args.sft / ("actor-no-plan" if flat else "actor")]
    models += [] if flat else ["--decomposer", args.sft / "decomposer"]
    browsers = ["--concurrency", args.concurrency, "--browsers", args.browsers, "--T", T, *TOKENS]

    def test(tasks: str, adapters: list, out: str) -> list:
        return [
            "evaluate.py",
            *models,
            *["--no-plan"] * flat,
            "--tasks",
            tasks,
            "--limit",
            args.limit,
            "--runs",
            1,
            *browsers,
            *adapters,
            "--out",
            args.out / out,
        ]

    if seed is None:
        return [test("pocket-eval", [], f"{name}-eval-0"), test("pocket-new", [], f"{name}-new")]
    train = [
        "train_rl.py",
        *models,
        "--tasks",
        "pocket-rl",
        "--K",
        K,
        *ROWS[row][1],
        "--lr",
        args.lr,
        "--temperature",
        1.2,
        "--tasks-per-batch",
        args.tasks_per_batch,
        "--limit-batches",
        args.batches,
        "--micro-batch",
        16,
        "--seed",
        seed,
        "--keep",
        args.batches + 1,
        *browsers,
        "--out",
        args.out / name,
    ]
    adapters = {
        n: ["--adapters", args.out / name / "checkpoints" / f"{n:06d}"] for n in points(args)[1:]
    }
    return [
        train,
        test("pocket-new", adapters[args.batches], f"{name}-new"),
        *(test("pocket-eval", found, f"{name}-eval-{n}") for n, found in adapters.items()),
    ]


def points(args: argparse.Namespace) -> range:
    """The batches after which success is measured."""
    return range(0, args.batches + 1, args.every)


def play(args: argparse.Namespace, row: str, seed: int | None) -> str | None:
    """Trains (unless seed is None) and evaluates one run; returns its name if that fails."""
    name = name_of(row, seed)
    for command in commands(args, row, seed):
        if finished(command, args.batches):
            continue
        began = time.monotonic()
        with (args.out / f"{name}.log").open("ab") as log:
            done = subprocess.run(
                [sys.executable, *map(str, command)],
                check=False,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
            )
        print(
            f"{name}: {command[0]} {'failed' if done.returncode else 'done'} after {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if done.returncode:
            return name
    return None


def finished(command: list, batches: int) -> bool:
    out = command[-1]
    return (
        batches_done(out) >= batches
        if command[0] == "train_rl.py"
        else (out / "results.json").exists()
    )


def table(args: argparse.Namespace, before: str, after: str) -> str:
    """Success of every row, those with plans and those without, each minus what it started from; a row's seeds are its runs.

    before, after: how the evaluations' folders end, of fine-tuning and of RL.
    """
    text = []
    for start, name in (
        ("sft", "fine-tuned, with plans"),
        ("sft-no-plan", "fine-tuned, without plans"),
    ):
        rows = [row for row in args.rows if start_of(row) == start]
        if not rows:
            continue
        found = {name: read_groups(args.out / f"{start}-{before}")}
        for row in rows:
            found[ROWS[row][0]] = [
                replace(group, batch=f"seed {seed}")
                for seed in args.seeds
                for group in read_groups(args.out / f"{name_of(row, seed)}-{after}")
            ]
        text.append(compare_markdown(compare(found)))
    return "\n".join(text)


def results(args: argparse.Namespace) -> str:
    lines = [
        "## Held-out tasks",
        "",
        table(args, "eval-0", f"eval-{args.batches}"),
        "## Held-out templates",
        "",
        table(args, "new", "new"),
        "## Reward by batch and seed",
        "",
    ]
    spent = []
    for row in args.rows:
        for seed in args.seeds:
            rows = [
                r
                for r in read_metrics(args.out / name_of(row, seed) / "metrics.jsonl")
                if r["pass"] == 0 and r["batch"] < args.batches
            ]
            lines.append(
                f"{ROWS[row][0]}, seed {seed}: "
                + " ".join(f"{r['reward']:.2f}" for r in rows)
                + "  "
            )
            spent.append(
                sum(
                    value
                    for r in rows
                    for key, value in r.items()  # both passes' updates stand in each of their rows
                    if key == "seconds/rollout" or key.startswith("seconds/update_")
                )
            )
    tasks = len(spent) * args.batches * args.tasks_per_batch
    lines += [
        "",
        f"The RL runs took {sum(spent):.0f} s, added up: {sum(spent) / tasks:.1f} s a task.",
        "",
    ]
    if "joint" in args.rows:
        lines += [
            "## Completed subtasks against success, before and after",
            "",
            subgoals(args),
            *plans(args),
        ]
    return "\n".join(lines)


def before_after(args: argparse.Namespace) -> list[Path]:
    return [
        args.out / "sft-eval-0",
        args.out / f"{name_of('joint', args.seeds[0])}-eval-{args.batches}",
    ]


def subgoals(args: argparse.Namespace) -> str:
    folders = before_after(args)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jhima.results.subgoals",
            *map(str, folders),
            "--out",
            str(args.out / "subgoals.png"),
        ],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    return done.stdout if done.returncode == 0 else "The judge gave no verdicts.\n"


def plans(args: argparse.Namespace) -> list[str]:
    """The plans of three tasks that joint RL changed, those first that it solved."""
    before, after = (
        {g.task.id: g for g in read_groups(folder) if g.plans and g.episodes}
        for folder in before_after(args)
    )
    changed = [
        (g, after[key])
        for key, g in before.items()
        if key in after and g.plans[0].subtasks != after[key].plans[0].subtasks
    ]
    changed.sort(
        key=lambda pair: (pair[0].episodes[0].reward or 0) - (pair[1].episodes[0].reward or 0)
    )
    lines = ["", "## Plans before and after joint RL", ""]
    for old, new in changed[:3]:
        lines += [
            f"**{old.task.intent}**",
            "",
            *(
                f"- {when} (reward {g.episodes[0].reward}): " + "; ".join(g.plans[0].subtasks)
                for when, g in (("before", old), ("after", new))
            ),
            "",
        ]
    return lines + [f"{len(changed)} of {len(before)} plans changed."]


def curves(args: argparse.Namespace, png: Path) -> None:
    """Success on the held-out tasks by rollout batch, a line a row: the seeds' mean; the band is their range."""
    matplotlib.use("Agg")

    def success(run: str, batches: int) -> float:
        return success_table(read_groups(args.out / f"{run}-eval-{batches}")).overall.mean

    figure = Figure(figsize=(9, 4.6), dpi=100, layout="constrained")
    axis = figure.subplots()
    for row, colour in zip(args.rows, COLOURS):
        start = success(start_of(row), 0)
        y = np.array(
            [
                [start, *(success(name_of(row, seed), n) for n in points(args)[1:])]
                for seed in args.seeds
            ]
        )  # [seeds, points]
        axis.plot(
            points(args),
            y.mean(0),
            color=colour,
            linewidth=2,
            marker="o",
            markersize=4,
            label=ROWS[row][0],
        )
        axis.fill_between(points(args), y.min(0), y.max(0), color=colour, alpha=0.13, linewidth=0)
    percent_axis(axis)
    axis.set_xticks(points(args))
    axis.set_xlabel("rollout batches of RL", fontsize=11, color=INK)
    axis.set_ylabel("success on held-out tasks", fontsize=11, color=INK)
    axis.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=10, labelcolor=INK
    )
    figure.savefig(png, facecolor="white")


if __name__ == "__main__":
    main()
