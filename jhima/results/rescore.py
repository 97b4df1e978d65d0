"""Scores the episodes of a run again, as far as that needs no browser (evaluate.py --rescore RUN).

An episode holds its answer, where it ended, what its judge was asked and what that replied. So string_match and
url_match are worked out anew from the task as its file has it today, and the judge is asked anew about parts of pages;
what else was checked on a page keeps its verdict. Replies are kept in RUN/judge.jsonl: to ask the same judge the same
again costs nothing.
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
from jhima.webarena.evaluators import (
    ANSWER,
    PAGE,
    URL,
    Check,
    Verdict,
    check_answer,
    check_url,
)
from jhima.webarena.judge import Judge, ask_judge

TOGETHER = 16  # questions at once


async def rescore(
    run: Path, tasks: Sequence[Task], judge: Judge, published: bool
) -> dict[str, int]:
    """Rewrites the episodes whose verdict changes; returns counts.

    episodes: those that had been scored. changed: those with another reward. unscored: those without one. kept: those
    with a verdict that could not be had anew. unreadable: files that are no episodes, left as they are.
    """
    counts = dict.fromkeys(("episodes", "changed", "unscored", "kept", "unreadable"), 0)
    by_id, slots = {task.id: task for task in tasks}, asyncio.Semaphore(TOGETHER)
    paths = sorted(run.glob("rollouts/*/*/p*_e*/episode.json"))

    async def one(path: Path) -> None:
        async with slots:
            try:
                episode = json.loads(path.read_text("utf-8"))
                before, was = [Check(**check) for check in episode["checks"]], episode["reward"]
                task = by_id.get(path.parents[1].name)
                verdict = Verdict(tuple(await _again(task, episode, before, judge, published)))
            except MALFORMED:
                counts["unreadable"] += 1
                return
        if not before:  # the environment failed, and there was nothing to score
            return
        counts["episodes"] += 1
        counts["changed"] += verdict.reward != was
        counts["unscored"] += verdict.reward is None
        counts["kept"] += any(check is old for check in verdict.checks for old in before)
        after = episode | {
            "reward": verdict.reward,
            "failure": verdict.failure,
            "checks": list(map(vars, verdict.checks)),
        }
        if after != episode:
            write_whole(path, json.dumps(after, separators=(",", ":")))

    for job in tqdm(
        asyncio.as_completed(map(one, paths)), total=len(paths), desc="rescore", unit="episode"
    ):
        await job
    return counts


async def _again(
    task: Task | None, episode: dict, before: list[Check], judge: Judge, published: bool
) -> list[Check]:
    """An episode's checks as they are now, in the order of `rewards.score`; those kept are the same objects."""
    now = {kind: [check for check in before if check.kind == kind] for kind in (URL, PAGE, ANSWER)}
    now[PAGE] = [await _judged(check, judge) for check in now[PAGE]]
    # A task that its file has lost, or checks in another way, says nothing about this episode.
    if task and set(task.eval["eval_types"]) == {check.kind for check in before}:
        urls = episode.get("urls", {})
        with suppress(ValueError):  # URLs of sites that the episode does not know of
            now[URL] = check_url(task, urls, episode["final_url"], published)
        with suppress(ValueError):
            now[ANSWER] = await check_answer(task, urls, episode["answer"], judge, published)
    # A judge that is silent now takes no verdict back.
    told = {_question(check): check for check in before if check.passed is not None}
    return [
        told.get(_question(check), check) if check.passed is None else check
        for kind in now
        for check in now[kind]
    ]


async def _judged(check: Check, judge: Judge) -> Check:
    return (
        Check(check.kind, check.what, *await ask_judge(judge, check.asked))
        if check.asked
        else check
    )


def _question(check: Check) -> tuple[str, ...]:
    asked = check.asked or {}
    return (
        check.kind,
        check.what,
        *(asked.get(name, "") for name in ("question", "reference", "answer")),
    )
