"""Subgoal analysis (section 4.6, figure 2): does success go with the share of a plan's subtasks that were completed?

    python -m jhima.results.subgoals runs/eval-sft runs/eval-rl --out figure-2.png

A judge looks at every scored episode that had a plan, its actions and screenshots, and says of each subtask whether it
was completed. Its verdicts and reasons go to RUN/subgoals.jsonl, a line an episode; running the same command again asks
only what is missing. Then, for each run: the area under the ROC curve of the completed share as a predictor of success,
Kendall's tau-b between the two (b: most pairs tie), and success by completed share. Intervals of the first two are
bootstraps over tasks, whose episodes of several runs belong together. Prints Markdown and writes RUN/subgoals.json.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from jhima.episodes import load_episode
from jhima.failures import EnvironmentFailure
from jhima.results.figures import subgoal_figure
from jhima.results.progress import (
    BINS,
    Bin,
    Progress,
    Verdicts,
    episode_key,
    progress,
    subtasks_of,
)
from jhima.results.run_reader import (
    MALFORMED,
    EpisodeRecord,
    GroupRecord,
    read_args,
)
from jhima.results.success import markdown_table, read_runs
from jhima.webarena.judge import Judge
from jhima.webarena.milestones import judged, request

VERDICTS = "subgoals.jsonl"


# ---------------------------------------------------------------- the judge's verdicts, asked for once


def read_verdicts(run: Path) -> dict[str, Verdicts]:
    """By episode; the last line of an episode counts, and a line cut short by a kill does not."""
    try:
        lines = (Path(run) / VERDICTS).read_text("utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            row = json.loads(line)
            found[row["episode"]] = Verdicts(
                str(row["episode"]),
                str(row["request"]),
                tuple(map(bool, row["completed"])),
                str(row["reply"]),
            )
        except MALFORMED:
            pass
    return found


async def judge_run(
    judge: Judge, run: Path, groups: list[GroupRecord], concurrency: int
) -> list[str]:
    """Brings RUN/subgoals.jsonl up to date; returns the problems of the episodes that got no verdict."""
    known, slots, problems = read_verdicts(run), asyncio.Semaphore(concurrency), []
    todo = [(g, e) for g in groups for e in g.episodes if subtasks_of(g, e)]
    path = Path(run) / VERDICTS
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with (
        path.open("a", encoding="utf-8") as out,
        tqdm(total=len(todo), desc=f"judge {run.name}") as bar,
    ):
        if torn:
            out.write("\n")

        async def one(group: GroupRecord, e: EpisodeRecord) -> None:
            async with slots:
                try:
                    subtasks = subtasks_of(group, e)
                    messages = request(
                        group.task.intent, subtasks, load_episode(e.folder.parent, e.plan, e.number)
                    )
                    asked = hashlib.sha256(json.dumps([judge.model, messages]).encode()).hexdigest()
                    key = episode_key(e)
                    if key not in known or known[key].request != asked:
                        completed, reply = await judged(judge, messages, len(subtasks))
                        out.write(
                            json.dumps(asdict(Verdicts(key, asked, tuple(completed), reply))) + "\n"
                        )
                        out.flush()
                except (EnvironmentFailure, OSError, ValueError) as error:
                    problems.append(str(error))
                bar.update()

        async with asyncio.TaskGroup() as jobs:
            for group, e in todo:
                jobs.create_task(one(group, e))
    return problems


# ---------------------------------------------------------------- completed share against success


def markdown(results: dict[str, Progress]) -> str:
    def number(value: tuple[float, float, float] | None) -> str:
        return "\u2013" if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value)

    def percent(b: Bin) -> str:
        if b.success is None:
            return "\u2013"
        return f"{100 * b.success:.0f} ({100 * b.low:.0f} to {100 * b.high:.0f}), n {b.episodes}"

    head = [["run", "episodes", "tasks", "not judged", "completed %", "AUROC", "Kendall's tau"]]
    head += [
        [
            name,
            str(p.episodes),
            str(p.tasks),
            str(p.unjudged),
            f"{100 * np.mean(p.share):.1f}" if p.share else "\u2013",
            number(p.auroc),
            number(p.tau),
        ]
        for name, p in results.items()
    ]
    by_bin = [["success % where completed:", *(label for label, _ in BINS)]]
    by_bin += [[name, *map(percent, p.bins)] for name, p in results.items()]
    return "\n".join([*markdown_table(head), "", *markdown_table(by_bin)]) + "\n"


# ---------------------------------------------------------------- python -m jhima.results.subgoals


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.results.subgoals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="output of evaluate.py or train_rl.py"
    )
    parser.add_argument("--out", type=Path, help="the figure, a PNG (default: none)")
    parser.add_argument(
        "--judge-url",
        help="OpenAI-compatible endpoint (default: OpenAI's; pocket: its own teacher)",
    )
    parser.add_argument(
        "--judge-model", default="gpt-5.2-codex", help="(default: %(default)s, as in the paper)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=8, help="requests in flight (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        runs = read_runs(args.runs)
        results = {}
        for (name, groups), run in zip(runs.items(), args.runs):
            results[name] = analyse(args, run, groups)
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.results.subgoals: {error}")
    except KeyboardInterrupt:
        sys.exit("jhima.results.subgoals: stopped; run the same command to go on")
    print(markdown(results), end="")
    if args.out:
        subgoal_figure(results, args.out)


def analyse(args: argparse.Namespace, run: Path, groups: list[GroupRecord]) -> Progress:
    """Judges what was not judged yet, and writes RUN/subgoals.json. Raises ValueError where no verdict can be had."""
    from jhima.pocket.teacher import MODEL, serve_teacher

    if not any(subtasks_of(g, e) for g in groups for e in g.episodes):
        raise ValueError(f"{run}: no scored episode has a plan, so there are no subtasks to judge")
    pocket = str(read_args(run).get("tasks", "")).startswith("pocket") and not args.judge_url
    with serve_teacher() if pocket else nullcontext(args.judge_url) as url:
        judge = Judge(url, MODEL if pocket else args.judge_model, None)
        problems = asyncio.run(judge_run(judge, run, groups, args.concurrency))
    result = progress(groups, read_verdicts(run))
    if problems:
        print(
            f"jhima.results.subgoals: {run}: {len(problems)} episodes got no verdict, the first: {problems[0]}",
            file=sys.stderr,
        )
    if not result.episodes:
        raise ValueError(f"{run}: the judge gave no verdict: {problems[0]}")
    (run / "subgoals.json").write_text(
        json.dumps(asdict(result), indent=1, allow_nan=False), "utf-8"
    )
    return result


if __name__ == "__main__":
    main()
