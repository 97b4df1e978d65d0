"""Table 2 on the pocket arena: what joint RL of both roles adds, and which part of it helps.

    python benchmarks/table_2.py --sft runs/demo                        # 4 rows x 3 seeds, in turn
    python benchmarks/table_2.py --sft runs/demo --jobs 4 --browsers 2  # with more cores

A row of the table is train_rl.py with the row's flags. evaluate.py then measures success on
pocket-eval (new instances of the training templates) with every --every-th batch's adapters, and on
pocket-new (templates that no demonstration and no RL task has) with the last ones. All rows start
from the fine-tuned models that `make demo` leaves in --sft; rows without a decomposer start from
its actor-no-plan, which `make ablation` trains. The same command resumes unfinished runs and skips
finished ones.

OUT gets a folder and a log per run, results.md (both tables, each row minus fine-tuning, subgoal
analysis, plans before and after, time), and curves.png, the success on held-out tasks by batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jhima import cli
from jhima.results.figures import INK, percent_axis, read_metrics
from jhima.results.run_reader import GroupRecord, read_groups
from jhima.results.success import compare, compare_markdown, success_table
from jhima.run_directory import write_whole
from jhima.training.checkpoints import batches_done

K, M, T = 3, 4, 10
COLOURS = ("#1f5fa8", "#b3541e", "#2c7a4b", "#7a4a9b")
ROWS = {  # folder: its flags of train_rl.py. The paper's Table 2, from the bottom up
    "joint": {"M": M},
    "actor": {"M": M, "train": "actor"},
    "flat-KM": {"M": K * M, "no_plan": True},
    "flat-M": {"M": M, "no_plan": True},
}
NAMES = {
    "joint": "joint",
    "actor": "without decomposer RL",
    "flat-KM": f"actor only, {K * M} episodes per task",
    "flat-M": f"actor only, {M} episodes per task",
}


@dataclass
class Args:
    sft: Path = Path("runs/demo")
    """folder with decomposer/, actor/ and actor-no-plan/"""
    out: Path = Path("runs/ablation")
    """folder for runs and results"""
    rows: list[Literal["joint", "actor", "flat-KM", "flat-M"]] = field(
        default_factory=lambda: list(ROWS)
    )
    """rows of the table"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """runs of each row"""
    batches: int = 12
    """rollout batches per run"""
    every: int = 4
    """batches between two evaluations; divides --batches"""
    tasks_per_batch: int = 8
    """tasks in a rollout batch"""
    lr: float = 5e-4
    """learning rate"""
    limit: int = 100
    """tasks per evaluation"""
    jobs: int = 1
    """runs at the same time"""
    concurrency: int = 12
    """browser contexts at once, per run"""
    browsers: int = 1
    """Chromium processes, per run"""

    @property
    def points(self) -> range:
        """The batches after which success is measured."""
        return range(0, self.batches + 1, self.every)


@dataclass(frozen=True)
class Run:
    """A row trained with a seed; or, without a seed, the fine-tuned models that rows start from."""

    row: str
    seed: int | None = None

    @property
    def name(self) -> str:
        return self.row if self.seed is None else f"{self.row}-{self.seed}"

    @property
    def start(self) -> str:
        """The name of the fine-tuned models that it starts from."""
        return "sft-no-plan" if self.row in ("flat-KM", "flat-M", "sft-no-plan") else "sft"


@dataclass(frozen=True)
class Command:
    script: str
    flags: dict[str, object]  # True: a flag without a value

    @property
    def words(self) -> list[str]:
        words = [sys.executable, self.script]
        for name, value in self.flags.items():
            words.append("--" + name.replace("_", "-"))
            if value is not True:
                words.append(str(value))
        return words

    def is_done(self) -> bool:
        out = self.flags["out"]
        if self.script == "train_rl.py":
            return batches_done(out) >= self.flags["limit_batches"]
        return (out / "results.json").exists()


def main() -> None:
    args = cli.parse(Args, __doc__)
    check(args)
    args.out.mkdir(parents=True, exist_ok=True)
    runs = [Run(start) for start in starts(args)]
    for seed in args.seeds:
        runs += [Run(row, seed) for row in args.rows]
    with ThreadPoolExecutor(args.jobs) as pool:
        successes = list(pool.map(lambda run: train_and_evaluate(args, run), runs))
    failed = [run.name for run, success in zip(runs, successes) if not success]
    if failed:
        sys.exit(
            f"table_2.py: failed: {', '.join(failed)}; "
            f"see the logs in {args.out}, and run the same command again"
        )
    text = results(args)
    curves(args, args.out / "curves.png")
    write_whole(args.out / "results.md", text)
    print(text)


def check(args: Args) -> None:
    if args.batches % args.every:
        sys.exit(
            f"table_2.py: --every {args.every}: expected a divisor of --batches, {args.batches}"
        )
    models = ["decomposer", "actor"]
    if "sft-no-plan" in starts(args):
        models.append("actor-no-plan")
    for model in models:
        folder = args.sft / model
        if not (folder / "config.json").exists():
            sys.exit(f"table_2.py: no checkpoint at {folder}; `make ablation` makes it")


def starts(args: Args) -> list[str]:
    """The fine-tuned models that the rows start from; those with plans are always measured."""
    needed = {Run(row).start for row in args.rows}
    return ["sft", "sft-no-plan"] if "sft-no-plan" in needed else ["sft"]


# ---- the runs ----


def commands(args: Args, run: Run) -> list[Command]:
    """What a run consists of: training, unless it has no seed, and evaluations."""
    if run.seed is None:
        return [
            evaluation(args, run, tasks="pocket-eval", out="eval-0"),
            evaluation(args, run, tasks="pocket-new", out="new"),
        ]
    checkpoints = args.out / run.name / "checkpoints"
    training = models(args, run) | ROWS[run.row]
    training |= {
        "tasks": "pocket-rl",
        "K": K,
        "lr": args.lr,
        "temperature": 1.2,
        "tasks_per_batch": args.tasks_per_batch,
        "limit_batches": args.batches,
        "micro_batch": 16,
        "seed": run.seed,
        "keep": args.batches + 1,
        "out": args.out / run.name,
    }
    last = {"adapters": checkpoints / f"{args.batches:06d}"}
    steps = [Command("train_rl.py", training), evaluation(args, run, "pocket-new", "new", last)]
    for batches in args.points[1:]:
        adapters = {"adapters": checkpoints / f"{batches:06d}"}
        steps.append(evaluation(args, run, "pocket-eval", f"eval-{batches}", adapters))
    return steps


def evaluation(
    args: Args, run: Run, tasks: str, out: str, adapters: dict[str, Path] | None = None
) -> Command:
    flags = models(args, run) | (adapters or {})
    flags |= {"tasks": tasks, "limit": args.limit, "runs": 1, "out": args.out / f"{run.name}-{out}"}
    if run.start == "sft-no-plan":
        flags["no_plan"] = True
    return Command("evaluate.py", flags)


def models(args: Args, run: Run) -> dict[str, object]:
    """The flags that training and evaluation share."""
    flags = {"actor": args.sft / "actor-no-plan"}
    if run.start == "sft":
        flags = {"actor": args.sft / "actor", "decomposer": args.sft / "decomposer"}
    budget = {"T": T, "plan_tokens": 64, "action_tokens": 48}
    return flags | budget | {"concurrency": args.concurrency, "browsers": args.browsers}


def train_and_evaluate(args: Args, run: Run) -> bool:
    """Runs the commands that are not done yet; returns whether all succeeded."""
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for command in commands(args, run):
        if command.is_done():
            continue
        began = time.monotonic()
        with (args.out / f"{run.name}.log").open("ab") as log:
            process = subprocess.run(
                command.words, check=False, stdout=log, stderr=log, cwd=ROOT, env=environment
            )
        outcome = "failed" if process.returncode else "done"
        seconds = time.monotonic() - began
        print(f"{run.name}: {command.script} {outcome} after {seconds:.0f} s", flush=True)
        if process.returncode:
            return False
    return True


# ---- results ----


def results(args: Args) -> str:
    lines = ["## Held-out tasks", "", *tables(args, "eval-0", f"eval-{args.batches}")]
    lines += ["## Held-out templates", "", *tables(args, "new", "new")]
    lines += ["## Reward by batch and seed", ""]
    seconds = []
    for row in args.rows:
        for seed in args.seeds:
            batches = batch_metrics(args, Run(row, seed))
            rewards = " ".join(f"{metrics['reward']:.2f}" for metrics in batches)
            lines.append(f"{NAMES[row]}, seed {seed}: {rewards}  ")
            seconds.append(sum(map(seconds_of, batches)))
    tasks = len(seconds) * args.batches * args.tasks_per_batch
    per_task = sum(seconds) / tasks
    lines += ["", f"The RL runs took {sum(seconds):.0f} s in total: {per_task:.1f} s per task.", ""]
    if "joint" in args.rows:
        lines += ["## Completed subtasks against success, before and after", "", subgoals(args)]
        lines += changed_plans(args)
    return "\n".join(lines)


def tables(args: Args, before: str, after: str) -> list[str]:
    """Success of the rows with plans and of those without, each minus its fine-tuned models.

    A row's seeds count as its runs. before, after: how the folders of the evaluations of
    fine-tuning and of RL end.
    """
    titles = {"sft": "fine-tuned, with plans", "sft-no-plan": "fine-tuned, without plans"}
    lines = []
    for start, title in titles.items():
        rows = [row for row in args.rows if Run(row).start == start]
        if not rows:
            continue
        runs = {title: read_groups(args.out / f"{start}-{before}")}
        for row in rows:
            groups: list[GroupRecord] = []
            for seed in args.seeds:
                evaluated = read_groups(args.out / f"{Run(row, seed).name}-{after}")
                groups += [replace(group, batch=f"seed {seed}") for group in evaluated]
            runs[NAMES[row]] = groups
        lines.append(compare_markdown(compare(runs)))
    return lines


def batch_metrics(args: Args, run: Run) -> list[dict]:
    """The metrics of each batch's first pass."""
    rows = read_metrics(args.out / run.name / "metrics.jsonl")
    return [row for row in rows if row["pass"] == 0 and row["batch"] < args.batches]


def seconds_of(row: dict) -> float:
    """A batch's rollout and updates; each of its rows has the time of all passes."""
    return sum(
        value
        for key, value in row.items()
        if key == "seconds/rollout" or key.startswith("seconds/update_")
    )


def before_and_after(args: Args) -> list[Path]:
    """The evaluations of the fine-tuned models, and of joint RL from the first seed."""
    run = Run("joint", args.seeds[0])
    return [args.out / "sft-eval-0", args.out / f"{run.name}-eval-{args.batches}"]


def subgoals(args: Args) -> str:
    words = [sys.executable, "-m", "jhima.results.subgoals", *map(str, before_and_after(args))]
    words += ["--out", str(args.out / "subgoals.png")]
    process = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return process.stdout if process.returncode == 0 else "The judge gave no verdicts.\n"


def changed_plans(args: Args) -> list[str]:
    """Three tasks whose plans joint RL changed, those first that it solved."""
    before, after = [planned(folder) for folder in before_and_after(args)]
    changed = []
    for task, old in before.items():
        new = after.get(task)
        if new and old.plans[0].subtasks != new.plans[0].subtasks:
            gain = (new.episodes[0].reward or 0) - (old.episodes[0].reward or 0)
            changed.append((gain, old, new))
    changed.sort(key=lambda change: -change[0])
    lines = ["", "## Plans before and after joint RL", ""]
    for _, old, new in changed[:3]:
        lines += [f"**{old.task.intent}**", ""]
        lines += [plan_line("before", old), plan_line("after", new), ""]
    return lines + [f"{len(changed)} of {len(before)} plans changed."]


def planned(folder: Path) -> dict[str, GroupRecord]:
    groups = read_groups(folder)
    return {group.task.id: group for group in groups if group.plans and group.episodes}


def plan_line(when: str, group: GroupRecord) -> str:
    subtasks = "; ".join(group.plans[0].subtasks)
    return f"- {when} (reward {group.episodes[0].reward}): {subtasks}"


def curves(args: Args, png: Path) -> None:
    """Success on held-out tasks by batch, one line per row: the seeds' mean, in their range."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(9, 4.6), dpi=100, layout="constrained")
    axis = figure.subplots()
    for row, colour in zip(args.rows, COLOURS):
        y = np.array([success_by_batch(args, Run(row, seed)) for seed in args.seeds])
        low, mean, high = y.min(0), y.mean(0), y.max(0)  # over the seeds: [points]
        style = {"linewidth": 2, "marker": "o", "markersize": 4, "label": NAMES[row]}
        axis.plot(args.points, mean, color=colour, **style)
        axis.fill_between(args.points, low, high, color=colour, alpha=0.13, linewidth=0)
    percent_axis(axis)
    axis.set_xticks(args.points)
    axis.set_xlabel("rollout batches of RL", fontsize=11, color=INK)
    axis.set_ylabel("success on held-out tasks", fontsize=11, color=INK)
    legend = {"ncols": 2, "frameon": False, "fontsize": 10, "labelcolor": INK}
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), **legend)
    figure.savefig(png, facecolor="white")


def success_by_batch(args: Args, run: Run) -> list[float]:
    names = [f"{run.start}-eval-0"]
    names += [f"{run.name}-eval-{batches}" for batches in args.points[1:]]
    return [success_table(read_groups(args.out / name)).overall.mean for name in names]


if __name__ == "__main__":
    main()
