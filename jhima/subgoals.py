"""Subgoal analysis (section 4.6, figure 2): does success go with the share of a plan's subtasks that were completed?

    python -m jhima.subgoals runs/eval-sft runs/eval-rl --out figure-2.png

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
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau
from sklearn.metrics import roc_auc_score
from tqdm import tqdm

from .analysis import markdown_table, read_runs
from .episodes import load_episode
from .failures import EnvironmentFailure
from .figures import subgoal_figure, wilson
from .milestones import judged, request
from .records import MALFORMED, Array, EpisodeRecord, GroupRecord, read_args
from .rewards import Judge

VERDICTS = "subgoals.jsonl"
RESAMPLES = 1000
# Plans have two to five subtasks: finer bins would be empty. A share is in the first bin whose upper end it does not
# exceed.
BINS = (("none", 0.0), ("up to 1/3", 1 / 3), ("up to 2/3", 2 / 3), ("less than all", 1 - 1e-9), ("all", 1.0))


# ---------------------------------------------------------------- the judge's verdicts, asked for once

@dataclass(frozen=True)
class Verdicts:
    """What the judge said about one episode: of each subtask whether it was completed, and its whole reply.

    `request` is the hash of model and messages: an episode that was played anew is judged anew.
    """
    episode: str
    request: str
    completed: tuple[bool, ...]
    reply: str


def episode_key(e: EpisodeRecord) -> str:
    return "/".join(e.folder.parts[-3:])                        # batch/task/p0_e0


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
            found[row["episode"]] = Verdicts(str(row["episode"]), str(row["request"]),
                                             tuple(map(bool, row["completed"])), str(row["reply"]))
        except MALFORMED:
            pass
    return found


async def judge_run(judge: Judge, run: Path, groups: list[GroupRecord], concurrency: int) -> list[str]:
    """Brings RUN/subgoals.jsonl up to date; returns the problems of the episodes that got no verdict."""
    known, slots, problems = read_verdicts(run), asyncio.Semaphore(concurrency), []
    todo = [(g, e) for g in groups for e in g.episodes if subtasks_of(g, e)]
    path = Path(run) / VERDICTS
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as out, tqdm(total=len(todo), desc=f"judge {run.name}") as bar:
        if torn:
            out.write("\n")

        async def one(group: GroupRecord, e: EpisodeRecord) -> None:
            async with slots:
                try:
                    subtasks = subtasks_of(group, e)
                    messages = request(group.task.intent, subtasks, load_episode(e.folder.parent, e.plan, e.number))
                    asked = hashlib.sha256(json.dumps([judge.model, messages]).encode()).hexdigest()
                    key = episode_key(e)
                    if key not in known or known[key].request != asked:
                        completed, reply = await judged(judge, messages, len(subtasks))
                        out.write(json.dumps(asdict(Verdicts(key, asked, tuple(completed), reply))) + "\n")
                        out.flush()
                except (EnvironmentFailure, OSError, ValueError) as error:
                    problems.append(str(error))
                bar.update()

        async with asyncio.TaskGroup() as jobs:
            for group, e in todo:
                jobs.create_task(one(group, e))
    return problems


def subtasks_of(group: GroupRecord, e: EpisodeRecord) -> list[str]:
    """The plan that an episode followed; [] where it had none, or was not scored: then there is nothing to compare."""
    return group.plans[e.plan].subtasks if e.reward is not None and e.plan < len(group.plans) else []


# ---------------------------------------------------------------- completed share against success

@dataclass(frozen=True)
class Bin:
    """Episodes whose completed share lies in one bin; success with its 95 % Wilson interval, None for no episode."""
    label: str
    episodes: int
    success: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Progress:
    """Figure 2 of one run. auroc and tau are (value, low, high), None where every episode or every share is alike.

    share, success: of each judged episode, for the ROC curve. unjudged: scored episodes with a plan and no verdict.
    """
    episodes: int
    tasks: int
    unjudged: int
    auroc: tuple[float, float, float] | None
    tau: tuple[float, float, float] | None
    bins: tuple[Bin, ...]
    share: tuple[float, ...]
    success: tuple[int, ...]


def progress(groups: list[GroupRecord], verdicts: dict[str, Verdicts]) -> Progress:
    rows, unjudged = [], 0
    for group in groups:
        for e in group.episodes:
            if subtasks := subtasks_of(group, e):
                found = verdicts.get(episode_key(e))
                if found is None or len(found.completed) != len(subtasks):
                    unjudged += 1
                else:
                    rows.append((sum(found.completed) / len(subtasks), int(e.reward), group.task.id))
    share, success = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=int)
    tasks = np.array([row[2] for row in rows])
    return Progress(len(rows), len(set(tasks)), unjudged, with_interval(auroc, share, success, tasks),
                    with_interval(tau, share, success, tasks), bins(share, success), tuple(share.tolist()),
                    tuple(success.tolist()))


def auroc(share: Array, success: Array) -> float:
    """Chance that a success has the higher share of a success and a failure, ties counting half; both [n]."""
    return float(roc_auc_score(success, share)) if 0 < success.sum() < len(success) else math.nan


def tau(share: Array, success: Array) -> float:
    """Kendall's tau-b of share and success, both [n]; NaN where one of them is constant."""
    return float(kendalltau(share, success).statistic) if len(share) > 1 else math.nan


def with_interval(statistic: Callable[[Array, Array], float], share: Array, success: Array,
                  tasks: Array) -> tuple[float, float, float] | None:
    """(value, low, high), the 95 % interval by a bootstrap that draws tasks with all their episodes; all [n].

    Draws in which the statistic does not exist (every episode a failure) are left out. None where the value itself
    does not exist.
    """
    value = statistic(share, success)
    if math.isnan(value):
        return None
    members = [np.flatnonzero(tasks == task) for task in np.unique(tasks)]
    rng, values = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        values.append(statistic(share[drawn], success[drawn]))
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return value, float(low), float(high)


def bins(share: Array, success: Array) -> tuple[Bin, ...]:
    which = np.searchsorted([upper for _, upper in BINS], share, side="left")          # [n]
    found = []
    for number, (label, _) in enumerate(BINS):
        inside = success[which == number]
        bounds = wilson(int(inside.sum()), len(inside)) if len(inside) else (None, None)
        found.append(Bin(label, len(inside), float(inside.mean()) if len(inside) else None, *bounds))
    return tuple(found)


def markdown(results: dict[str, Progress]) -> str:
    def number(value: tuple[float, float, float] | None) -> str:
        return "\u2013" if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value)

    def percent(b: Bin) -> str:
        if b.success is None:
            return "\u2013"
        return f"{100 * b.success:.0f} ({100 * b.low:.0f} to {100 * b.high:.0f}), n {b.episodes}"

    head = [["run", "episodes", "tasks", "not judged", "completed %", "AUROC", "Kendall's tau"]]
    head += [[name, str(p.episodes), str(p.tasks), str(p.unjudged),
              f"{100 * np.mean(p.share):.1f}" if p.share else "\u2013", number(p.auroc), number(p.tau)]
             for name, p in results.items()]
    by_bin = [["success % where completed:", *(label for label, _ in BINS)]]
    by_bin += [[name, *map(percent, p.bins)] for name, p in results.items()]
    return "\n".join([*markdown_table(head), "", *markdown_table(by_bin)]) + "\n"


# ---------------------------------------------------------------- python -m jhima.subgoals

def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m jhima.subgoals", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output of evaluate.py or train_rl.py")
    parser.add_argument("--out", type=Path, help="the figure, a PNG (default: none)")
    parser.add_argument("--judge-url", help="OpenAI-compatible endpoint (default: OpenAI's; pocket: its own teacher)")
    parser.add_argument("--judge-model", default="gpt-5.2-codex", help="(default: %(default)s, as in the paper)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        runs = read_runs(args.runs)
        results = {}
        for (name, groups), run in zip(runs.items(), args.runs):
            results[name] = analyse(args, run, groups)
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.subgoals: {error}")
    except KeyboardInterrupt:
        sys.exit("jhima.subgoals: stopped; run the same command to go on")
    print(markdown(results), end="")
    if args.out:
        subgoal_figure(results, args.out)


def analyse(args: argparse.Namespace, run: Path, groups: list[GroupRecord]) -> Progress:
    """Judges what was not judged yet, and writes RUN/subgoals.json. Raises ValueError where no verdict can be had."""
    from .pocket.teacher import MODEL, serve_teacher

    if not any(subtasks_of(g, e) for g in groups for e in g.episodes):
        raise ValueError(f"{run}: no scored episode has a plan, so there are no subtasks to judge")
    pocket = str(read_args(run).get("tasks", "")).startswith("pocket") and not args.judge_url
    with serve_teacher() if pocket else nullcontext(args.judge_url) as url:
        judge = Judge(url, MODEL if pocket else args.judge_model, None)
        problems = asyncio.run(judge_run(judge, run, groups, args.concurrency))
    result = progress(groups, read_verdicts(run))
    if problems:
        print(f"jhima.subgoals: {run}: {len(problems)} episodes got no verdict, the first: {problems[0]}",
              file=sys.stderr)
    if not result.episodes:
        raise ValueError(f"{run}: the judge gave no verdict: {problems[0]}")
    (run / "subgoals.json").write_text(json.dumps(asdict(result), indent=1, allow_nan=False), "utf-8")
    return result


if __name__ == "__main__":
    main()
