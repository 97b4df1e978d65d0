"""How completed subtasks and success go together (figure 2): AUROC, Kendall's tau-b, bins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, kendalltau
from sklearn.metrics import roc_auc_score

from jhima.results.run_reader import Array, EpisodeRecord, GroupRecord

RESAMPLES = 1000

# Plans have two to five subtasks: finer bins would be empty. A share is in the first bin whose
# upper end it does not exceed.
# fmt: off
BINS = (("none", 0.0), ("up to 1/3", 1 / 3), ("up to 2/3", 2 / 3), ("less than all", 1 - 1e-9),
        ("all", 1.0))
# fmt: on


@dataclass(frozen=True)
class Verdicts:
    """Which subtasks of one episode the judge saw completed, and its whole reply.

    `request` is the hash of model and messages: an episode that is played again is judged again.
    """

    episode: str
    request: str
    completed: tuple[bool, ...]
    reply: str


def episode_key(e: EpisodeRecord) -> str:
    return "/".join(e.folder.parts[-3:])  # batch/task/p0_e0


@dataclass(frozen=True)
class Bin:
    """Episodes whose completed share lies in one bin; their success and its 95 % Wilson interval.

    Without episodes the last three are None.
    """

    label: str
    episodes: int
    success: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Progress:
    """Figure 2 of one run.

    unjudged        scored episodes with a plan and without a verdict
    auroc, tau      (value, low, high); None where all episodes or all shares are alike
    share, success  of each judged episode, for the ROC curve
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
    rows, unjudged = [], 0  # (completed share, reward, task) of each judged episode
    for group, e in with_subtasks(groups):
        subtasks, verdict = group.subtasks(e.plan), verdicts.get(episode_key(e))
        if verdict is None or len(verdict.completed) != len(subtasks):
            unjudged += 1
        else:
            rows.append((sum(verdict.completed) / len(subtasks), int(e.reward), group.task.id))
    share = np.array([row[0] for row in rows])
    success = np.array([row[1] for row in rows], dtype=int)
    tasks = np.array([row[2] for row in rows])
    return Progress(
        episodes=len(rows),
        tasks=len(set(tasks)),
        unjudged=unjudged,
        auroc=with_interval(auroc, share, success, tasks),
        tau=with_interval(tau, share, success, tasks),
        bins=bins(share, success),
        share=tuple(share.tolist()),
        success=tuple(success.tolist()),
    )


def with_subtasks(groups: list[GroupRecord]) -> list[tuple[GroupRecord, EpisodeRecord]]:
    """The scored episodes that followed subtasks, each with its group."""
    episodes = []
    for group in groups:
        scored = [e for e in group.episodes if e.reward is not None]
        episodes += [(group, e) for e in scored if group.subtasks(e.plan)]
    return episodes


def auroc(share: Array, success: Array) -> float:
    """Chance that, of a success and a failure, the success has the higher share; ties count half.

    Both [n]. NaN where all episodes succeed or all fail.
    """
    if not 0 < success.sum() < len(success):
        return math.nan
    return float(roc_auc_score(success, share))


def tau(share: Array, success: Array) -> float:
    """Kendall's tau-b of share and success, both [n]; NaN where one of them is constant."""
    return float(kendalltau(share, success).statistic) if len(share) > 1 else math.nan


def with_interval(
    statistic: Callable[[Array, Array], float], share: Array, success: Array, tasks: Array
) -> tuple[float, float, float] | None:
    """(value, low, high): the value with its 95 % interval by a bootstrap over tasks.

    share, success, tasks: [n]. A task is drawn with all of its episodes. Draws in which the
    statistic does not exist (every episode a failure) are left out. None where the value itself
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
    which = np.searchsorted([upper for _, upper in BINS], share, side="left")  # [n]
    result = []
    for number, (label, _) in enumerate(BINS):
        inside = success[which == number]
        mean_and_interval = None, None, None
        if len(inside):
            mean_and_interval = inside.mean().item(), *wilson(int(inside.sum()), len(inside))
        result.append(Bin(label, len(inside), *mean_and_interval))
    return tuple(result)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % binomial interval of a share, valid near 0 and 1 as well.

    >>> "%.3f to %.3f" % wilson(0, 10)
    '0.000 to 0.278'
    """
    interval = binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
