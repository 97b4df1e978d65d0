"""Subgoal analysis (section 4.6, figure 2): does success go with the share of completed subtasks?

    python -m jhima.results.subgoals runs/eval-sft runs/eval-rl --out figure-2.png

A judge looks at every scored episode that had a plan, its actions and screenshots, and says of each
subtask whether it was completed. Its verdicts and reasons go to RUN/subgoals.jsonl, one line per
episode; running the same command again asks only what is missing. Then, for each run: the area
under the ROC curve of the completed share as a predictor of success, Kendall's tau-b between the
two (b: most pairs tie), and success by completed share. The intervals of the first two are
bootstraps over tasks, because the episodes of one task in several runs belong together. Prints
Markdown and writes RUN/subgoals.json.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm
from tyro.conf import Positional

from jhima import cli
from jhima.episodes import load_episode
from jhima.failures import EnvironmentFailure
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.results.figures import subgoal_figure
from jhima.results.progress import Bin, Progress, Verdicts, episode_key, progress, with_subtasks
from jhima.results.run_reader import MALFORMED, EpisodeRecord, GroupRecord
from jhima.results.success import NOTHING, markdown_table, read_runs
from jhima.run_directory import read_args
from jhima.webarena.judge import Judge
from jhima.webarena.milestones import judged, request

VERDICTS = "subgoals.jsonl"


# ---- the judge's verdicts, asked for once ----


def read_verdicts(run: Path) -> dict[str, Verdicts]:
    """By episode; the last line of an episode counts, and a line cut short by a kill does not."""
    try:
        lines = (Path(run) / VERDICTS).read_text("utf-8").splitlines()
    except OSError:
        return {}
    verdicts = {}
    for line in lines:
        try:
            row = json.loads(line)
            key, completed = str(row["episode"]), tuple(map(bool, row["completed"]))
            verdicts[key] = Verdicts(key, str(row["request"]), completed, str(row["reply"]))
        except MALFORMED:
            pass
    return verdicts


async def judge_run(
    judge: Judge, run: Path, groups: list[GroupRecord], concurrency: int
) -> list[str]:
    """Brings RUN/subgoals.jsonl up to date; returns the problems of episodes without a verdict."""
    known, slots, problems = read_verdicts(run), asyncio.Semaphore(concurrency), []
    episodes = with_subtasks(groups)
    path = Path(run) / VERDICTS
    torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    bar = tqdm(total=len(episodes), desc=f"judge {run.name}")
    with path.open("a", encoding="utf-8") as out, bar:
        if torn:
            out.write("\n")

        async def judge_one(group: GroupRecord, e: EpisodeRecord) -> None:
            try:
                async with slots:
                    verdicts = await judge_episode(judge, group, e, known.get(episode_key(e)))
                if verdicts:
                    out.write(json.dumps(asdict(verdicts)) + "\n")
                    out.flush()
            except (EnvironmentFailure, OSError, ValueError) as error:
                problems.append(str(error))
            bar.update()

        async with asyncio.TaskGroup() as jobs:
            for group, e in episodes:
                jobs.create_task(judge_one(group, e))
    return problems


async def judge_episode(
    judge: Judge, group: GroupRecord, e: EpisodeRecord, known: Verdicts | None
) -> Verdicts | None:
    """The judge's verdicts on one episode; None where `known` answers the very same question.

    Raises EnvironmentFailure("judge"), or ValueError for an episode that cannot be read.
    """
    subtasks = group.subtasks(e.plan)
    episode = load_episode(e.folder.parent, e.plan, e.number)
    messages = request(group.task.intent, subtasks, episode)
    question = hashlib.sha256(json.dumps([judge.model, messages]).encode()).hexdigest()
    if known and known.request == question:
        return None
    completed, reply = await judged(judge, messages, len(subtasks))
    return Verdicts(episode_key(e), question, tuple(completed), reply)


# ---- completed share against success ----


def markdown(results: dict[str, Progress]) -> str:
    titles = ["run", "episodes", "tasks", "not judged", "completed %", "AUROC", "Kendall's tau"]
    labels = [b.label for b in next(iter(results.values())).bins]
    overall, by_bin = [titles], [["success % where completed:", *labels]]
    for name, p in results.items():
        completed = f"{100 * np.mean(p.share):.1f}" if p.share else NOTHING
        counts = map(str, (p.episodes, p.tasks, p.unjudged))
        overall.append([name, *counts, completed, _with_interval(p.auroc), _with_interval(p.tau)])
        by_bin.append([name, *map(_success, p.bins)])
    return "\n".join([*markdown_table(overall), "", *markdown_table(by_bin)]) + "\n"


def _with_interval(value: tuple[float, float, float] | None) -> str:
    return NOTHING if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value)


def _success(b: Bin) -> str:
    if b.success is None:
        return NOTHING
    return f"{100 * b.success:.0f} ({100 * b.low:.0f} to {100 * b.high:.0f}), n {b.episodes}"


# ---- python -m jhima.results.subgoals ----


@dataclass
class Options:
    runs: Positional[tuple[Path, ...]]
    """run directories of evaluate.py or train_rl.py"""
    out: Path | None = None
    """the figure to write, a PNG; by default none"""
    judge_url: str | None = None
    """OpenAI-compatible endpoint; by default OpenAI's, for pocket tasks their own teacher"""
    judge_model: str = "gpt-5.2-codex"
    """the judge's name there; the default is the paper's"""
    concurrency: int = 8
    """requests in flight"""


def main() -> None:
    options, results = cli.parse(Options, __doc__), {}
    with cli.one_line_errors():
        for (name, groups), run in zip(read_runs(options.runs).items(), options.runs):
            results[name] = analyse(options, run, groups)
    print(markdown(results), end="")
    if options.out:
        subgoal_figure(results, options.out)


def analyse(options: Options, run: Path, groups: list[GroupRecord]) -> Progress:
    """Judges what was not judged yet, and writes RUN/subgoals.json.

    Raises ValueError where no verdict can be had.
    """
    if not with_subtasks(groups):
        raise ValueError(f"{run}: no scored episode has a plan, so there are no subtasks to judge")
    pocket = str(read_args(run).get("tasks", "")).startswith("pocket") and not options.judge_url
    with serve_teacher() if pocket else nullcontext(options.judge_url) as url:
        judge = Judge(url, MODEL if pocket else options.judge_model, None)
        problems = asyncio.run(judge_run(judge, run, groups, options.concurrency))
    result = progress(groups, read_verdicts(run))
    if not result.episodes:
        raise ValueError(f"{run}: the judge gave no verdict: {problems[0]}")
    if problems:
        message = f"{len(problems)} episodes got no verdict, the first: {problems[0]}"
        print(f"warning: {run}: {message}", file=sys.stderr)
    text = json.dumps(asdict(result), indent=1, allow_nan=False)
    (run / "subgoals.json").write_text(text, "utf-8")
    return result


if __name__ == "__main__":
    cli.run(main)
