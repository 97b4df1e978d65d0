"""Scores the episodes of a run again, as far as that needs no browser (evaluate.py --rescore RUN).

An episode's file has its answer, its final URL, and the questions to its judge with the replies. So
string_match and url_match are scored again by the task as its file has it today, and the judge is
asked again about parts of pages; what else was checked on a page keeps its verdict. Replies are
kept in RUN/judge.jsonl: asking the same judge the same question again costs nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from jhima.episodes import Task
from jhima.results.run_reader import MALFORMED
from jhima.run_directory import write_whole
from jhima.webarena import evaluators
from jhima.webarena.evaluators import Check, Verdict
from jhima.webarena.judge import Judge, ask_judge

CONCURRENCY = 16  # episodes at once, each with its questions to the judge


async def rescore(
    run: Path, tasks: Sequence[Task], judge: Judge, published: bool
) -> dict[str, int]:
    """Rewrites the episodes whose verdict changes; returns counts of episodes.

    episodes: those that have checks. changed: with another reward. unscored: without a reward.
    kept: with a verdict that could not be renewed. unreadable: damaged files, left as they are.
    """
    counts = dict.fromkeys(("episodes", "changed", "unscored", "kept", "unreadable"), 0)
    by_id, slots = {task.id: task for task in tasks}, asyncio.Semaphore(CONCURRENCY)
    paths = sorted(run.glob("rollouts/*/*/p*_e*/episode.json"))

    async def rescore_one(path: Path) -> dict[str, int]:
        async with slots:
            return await rescore_episode(path, by_id.get(path.parents[1].name), judge, published)

    jobs = asyncio.as_completed(map(rescore_one, paths))
    for job in tqdm(jobs, total=len(paths), desc="rescore", unit="episode"):
        for name, count in (await job).items():
            counts[name] += count
    return counts


async def rescore_episode(
    path: Path, task: Task | None, judge: Judge, published: bool
) -> dict[str, int]:
    """Rewrites one episode.json if its verdict changes; returns what it adds to the counts."""
    try:
        episode = json.loads(path.read_text("utf-8"))
        before, reward = [Check(**check) for check in episode["checks"]], episode["reward"]
        verdict = Verdict(tuple(await _checks_now(task, episode, before, judge, published)))
    except MALFORMED:
        return {"unreadable": 1}
    if not before:  # the environment failed, and there was nothing to score
        return {}
    checks = list(map(vars, verdict.checks))
    after = episode | {"reward": verdict.reward, "failure": verdict.failure, "checks": checks}
    if after != episode:
        write_whole(path, json.dumps(after, separators=(",", ":")))
    kept = set(map(id, before)) & set(map(id, verdict.checks))
    return {
        "episodes": 1,
        "changed": verdict.reward != reward,
        "unscored": verdict.reward is None,
        "kept": bool(kept),
    }


async def _checks_now(
    task: Task | None, episode: dict, before: list[Check], judge: Judge, published: bool
) -> list[Check]:
    """An episode's checks as they are now, in the order of evaluators.score.

    Those that are kept are the same objects as in `before`.
    """
    of_url = [check for check in before if check.kind == evaluators.URL]
    of_page = [check for check in before if check.kind == evaluators.PAGE]
    of_answer = [check for check in before if check.kind == evaluators.ANSWER]
    of_page = [await _judged_again(check, judge) for check in of_page]
    # A task that its file has lost, or checks in another way, says nothing about this episode.
    if task and set(task.eval["eval_types"]) == {check.kind for check in before}:
        urls = episode.get("urls", {})
        with suppress(ValueError):  # URLs of sites that the episode does not know of
            of_url = evaluators.check_url(task, urls, episode["final_url"], published)
        with suppress(ValueError):
            answer = episode["answer"]
            of_answer = await evaluators.check_answer(task, urls, answer, judge, published)
    verdicts = {_question(check): check for check in before if check.passed is not None}
    checks = []
    for check in (*of_url, *of_page, *of_answer):
        if check.passed is None:  # a judge that is silent now takes no verdict back
            check = verdicts.get(_question(check), check)
        checks.append(check)
    return checks


async def _judged_again(check: Check, judge: Judge) -> Check:
    if not check.asked:
        return check
    return Check(check.kind, check.what, *await ask_judge(judge, check.asked))


def _question(check: Check) -> tuple[str, ...]:
    """What tells a check from the others of its episode, the judge's question included."""
    asked = check.asked or {}
    texts = [asked.get(name, "") for name in ("question", "reference", "answer")]
    return check.kind, check.what, *texts
