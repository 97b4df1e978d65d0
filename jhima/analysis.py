"""What a run shows: its rollouts read back, success tables with their uncertainty, the learning curve.

    python -m jhima.analysis RUN [RUN...]       success by site, one Markdown row a run
    python -m jhima.analysis curve RUN out.png  success during training

Two kinds of uncertainty, never mixed: the standard error over evaluation runs says how far a repetition on the same
tasks may differ; the bootstrap interval over tasks says how far other tasks of the same kind may.
"""
from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

Array = NDArray[np.float64]
MALFORMED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)   # what reading may raise


# ---------------------------------------------------------------- rollouts read back (episodes.py wrote them)
# Lighter than episodes.py's own classes: no screenshot and no token, so that 10,000 episodes fit in memory, and one
# damaged file costs one episode, not the table.

@dataclass(frozen=True)
class Task:
    id: str
    sites: tuple[str, ...]
    intent: str
    template: str


@dataclass(frozen=True)
class Plan:
    """One decomposition d_i; `tokens` is its length as sampled."""
    text: str
    subtasks: tuple[str, ...]
    tokens: int


@dataclass(frozen=True)
class Check:
    kind: str
    what: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Episode:
    """tau_ij: `plan` is i, `number` is j, `length` counts steps. `reward` None is no sample; `failure` says why."""
    folder: Path
    plan: int
    number: int
    reward: float | None
    failure: str
    answer: str
    final_url: str
    seconds: float
    checks: tuple[Check, ...]
    length: int


@dataclass(frozen=True)
class Group:
    """The K plans and up to K x M episodes of one task in one batch (or one evaluation run).

    `unreadable` names the files that exist but could not be understood, each with the reason.
    """
    batch: str
    folder: Path
    task: Task
    plans: tuple[Plan, ...]
    episodes: tuple[Episode, ...]
    unreadable: tuple[str, ...]

    def rewards(self) -> Array:
        """R [K, M], NaN where an episode is missing or was no sample."""
        K = max([len(self.plans), *(e.plan + 1 for e in self.episodes)])
        M = max([0, *(e.number + 1 for e in self.episodes)])
        R = np.full((K, M), math.nan)
        for episode in self.episodes:
            if episode.reward is not None:
                R[episode.plan, episode.number] = episode.reward
        return R


def read_groups(run: Path) -> list[Group]:
    """Every group below RUN/rollouts in the order of batch and task; a run that is still going is fine.

    An episode without its episode.json is skipped (it has not ended); a file that cannot be understood is named in its
    group's `unreadable`. Raises FileNotFoundError when `run` is no run directory.
    """
    rollouts = Path(run) / "rollouts"
    if not rollouts.is_dir():
        raise FileNotFoundError(f"{rollouts}: no such folder; expected the output of train_rl.py or evaluate.py")
    return [_read_group(folder) for batch in _folders(rollouts) for folder in _folders(batch)]


def _read_group(folder: Path) -> Group:
    unreadable: list[str] = []
    task, plans = Task(id=folder.name, sites=(), intent="", template=""), ()
    try:
        task, plans = _parse_group(_read_object(folder / "group.json"))
    except FileNotFoundError:
        pass                                    # half-written: the plans are still being sampled
    except MALFORMED as error:
        unreadable.append(_complaint(folder / "group.json", error))
    episodes = []
    for path in _folders(folder):
        if not (match := re.fullmatch(r"p(\d{1,3})_e(\d{1,3})", path.name)):
            continue
        try:
            raw = _read_object(path / "episode.json")
            episodes.append(_parse_episode(raw, path, plan=int(match[1]), number=int(match[2])))
        except FileNotFoundError:
            pass
        except MALFORMED as error:
            unreadable.append(_complaint(path / "episode.json", error))
    return Group(folder.parent.name, folder, task, plans, tuple(episodes), tuple(unreadable))


def _parse_group(raw: dict) -> tuple[Task, tuple[Plan, ...]]:
    task = raw["task"]
    plans = tuple(Plan(_text(p, "text"), _texts(p, "subtasks"), len(p.get("ids", ()))) for p in raw["plans"])
    return Task(str(task["id"]), _texts(task, "sites"), _text(task, "intent"), str(task.get("template", ""))), plans


def _parse_episode(raw: dict, folder: Path, plan: int, number: int) -> Episode:
    reward, failure = raw["reward"], raw.get("failure")
    if reward not in (None, 0, 1):
        raise ValueError(f"reward is {reward!r}, expected 0, 1 or null")
    checks = tuple(Check(_text(c, "kind"), _text(c, "what"), bool(c["passed"]), _text(c, "reason"))
                   for c in raw.get("checks", ()))
    return Episode(folder, plan, number, None if reward is None else float(reward),
                   f"{failure['kind']}: {failure['detail']}" if failure else "", _text(raw, "answer"),
                   _text(raw, "final_url"), float(raw.get("seconds", 0)), checks, len(raw["steps"]))


def _text(raw: dict, key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str | None):
        raise TypeError(f"{key} is {type(value).__name__}, expected text")
    return value or ""


def _texts(raw: dict, key: str) -> tuple[str, ...]:
    values = raw.get(key, [])
    if not isinstance(values, list):
        raise TypeError(f"{key} is {type(values).__name__}, expected a list")
    return tuple(map(str, values))


def _read_object(path: Path) -> dict:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _complaint(path: Path, error: Exception) -> str:
    return f"{'/'.join(path.parts[-4:])}: {type(error).__name__}: {str(error)[:200]}"


def _folders(parent: Path) -> list[Path]:
    """Sub-folders with numbers in their names compared as numbers: run_2 before run_10."""
    def key(path: Path) -> list[int | str]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]
    return sorted((path for path in parent.iterdir() if path.is_dir()), key=key)


# ---------------------------------------------------------------- success by site

@dataclass(frozen=True)
class Success:
    """One column of the paper's Table 1. Shares are in [0, 1]; None where there is nothing to compute them from.

    mean    over runs, of the mean over tasks, of the mean over a task's scored episodes
    stderr  standard deviation over runs (n - 1) / sqrt(runs); None for a single run
    low, high   95 % percentile bootstrap over tasks, None for a single task; of width 0 where all tasks agree
    unscored    episodes whose reward is null; they are part of `episodes` and of no mean
    """
    site: str
    mean: float | None
    stderr: float | None
    low: float | None
    high: float | None
    runs: int
    tasks: int
    episodes: int
    unscored: int


@dataclass(frozen=True)
class SuccessTable:
    sites: tuple[Success, ...]
    overall: Success
    unreadable: tuple[str, ...]

    @property
    def rows(self) -> tuple[Success, ...]:
        return *self.sites, self.overall


def success_table(groups: list[Group]) -> SuccessTable:
    """Success by site and over all tasks; a batch directory is a run. Tasks on two sites get a row of their own."""
    by_site: dict[str, list[Group]] = {}
    for group in groups:
        by_site.setdefault("+".join(group.task.sites) or "unknown", []).append(group)
    return SuccessTable(sites=tuple(_success(site, by_site[site]) for site in sorted(by_site)),
                        overall=_success("overall", groups),
                        unreadable=tuple(line for group in groups for line in group.unreadable))


def _success(site: str, groups: list[Group]) -> Success:
    runs, tasks = sorted({g.batch for g in groups}), sorted({g.task.id for g in groups})
    values = np.full((len(runs), len(tasks)), math.nan)                          # [runs, tasks]
    for group in groups:
        scored = [e.reward for e in group.episodes if e.reward is not None]
        if scored:
            values[runs.index(group.batch), tasks.index(group.task.id)] = np.mean(scored)
    values = values[~np.isnan(values).all(axis=1)]                               # runs that scored anything
    episodes = [e for g in groups for e in g.episodes]
    counts = dict(runs=len(values), tasks=len(tasks), episodes=len(episodes),
                  unscored=sum(e.reward is None for e in episodes))
    if not len(values):
        return Success(site, None, None, None, None, **counts)
    per_run = np.nanmean(values, axis=1)                                         # [runs]
    stderr = float(per_run.std(ddof=1) / math.sqrt(len(per_run))) if len(per_run) > 1 else None
    low, high = bootstrap_interval(values) if len(tasks) > 1 else (None, None)
    return Success(site, float(per_run.mean()), stderr, low, high, **counts)


def bootstrap_interval(values: Array, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean over runs and tasks, tasks drawn with replacement.

    values [runs, tasks], NaN where a task was not scored. A drawn task brings its results of all runs, so that runs
    are not mistaken for independent tasks.
    """
    tasks = values.shape[1]
    drawn = np.random.default_rng(seed).multinomial(tasks, np.full(tasks, 1 / tasks), size=resamples)
    totals = drawn @ np.nan_to_num(values).T                                     # [resamples, runs]
    scored = drawn @ (~np.isnan(values)).T
    present = scored > 0                                                         # a run may score none of the drawn
    sums, counts = np.where(present, totals / np.maximum(scored, 1), 0.0).sum(axis=1), present.sum(axis=1)
    low, high = np.percentile(sums[counts > 0] / counts[counts > 0], [2.5, 97.5])
    return float(low), float(high)


def cells(table: SuccessTable) -> list[list[str]]:
    """The table as text, its header first; percent, with the standard error over runs and the interval over tasks."""
    header = ["site", "success %", "95 % over tasks", "tasks", "runs", "episodes", "unscored"]
    return [header] + [[row.site, percent(row),
                        NOTHING if row.low is None else f"{100 * row.low:.1f} to {100 * row.high:.1f}",
                        str(row.tasks), str(row.runs), str(row.episodes), str(row.unscored)] for row in table.rows]


def markdown(table: SuccessTable) -> str:
    """`cells` as Markdown, a row a site, followed by the files that could not be read."""
    header, *rows = (f"| {' | '.join(map(_cell, row))} |" for row in cells(table))
    return "\n".join([header, "|---|" + "---:|" * 6, *rows, *_unreadable_note(table)]) + "\n"


def csv_text(table: SuccessTable) -> str:
    """The rows of the table with every field of `Success` as a column; empty where there is no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(Success.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in table.rows)
    return out.getvalue()


def json_text(table: SuccessTable) -> str:
    return json.dumps(asdict(table), indent=1, allow_nan=False)


def compare_markdown(tables: dict[str, SuccessTable]) -> str:
    """One row a table, sites as columns as in the paper's Table 1; two tables get the row second minus first.

    Its standard error is sqrt(se_1^2 + se_2^2), the two sets of runs being independent. In percent (points).
    """
    sites = sorted({row.site for table in tables.values() for row in table.sites})
    lines = ["| success % | " + " | ".join(_cell(site) for site in sites) + " | overall | unscored |",
             "|---|" + "---:|" * (len(sites) + 2)]
    columns = []
    for name, table in tables.items():
        by_site = {row.site: row for row in table.sites}
        columns.append([by_site.get(site) for site in sites] + [table.overall])
        unscored = f"{table.overall.unscored} of {table.overall.episodes}"
        lines.append(f"| {_cell(name)} | " + " | ".join(percent(row) for row in columns[-1]) + f" | {unscored} |")
    if len(tables) == 2:
        cells = [_difference(before, after) for before, after in zip(*columns, strict=True)]
        lines.append("| difference | " + " | ".join(cells) + " |  |")
    return "\n".join(lines + [note for table in tables.values() for note in _unreadable_note(table)]) + "\n"


NOTHING = "\u2013"


def percent(row: Success | None) -> str:
    """'41.2 ± 1.3': the mean and, with two runs or more, its standard error over runs, in percent."""
    if row is None or row.mean is None:
        return NOTHING
    return f"{100 * row.mean:.1f}" + ("" if row.stderr is None else f" ± {100 * row.stderr:.1f}")


def _difference(before: Success | None, after: Success | None) -> str:
    if before is None or after is None or before.mean is None or after.mean is None:
        return NOTHING
    if before.stderr is None or after.stderr is None:
        return f"{100 * (after.mean - before.mean):+.1f}"
    return f"{100 * (after.mean - before.mean):+.1f} ± {100 * math.hypot(before.stderr, after.stderr):.1f}"


def _unreadable_note(table: SuccessTable) -> list[str]:
    if not table.unreadable:
        return []
    named = [f"- {_cell(line)}" for line in table.unreadable[:20]]
    return ["", f"{len(table.unreadable)} files could not be read and count nowhere above:", *named]


def _cell(text: str) -> str:
    """Text that cannot end a Markdown cell, a line, or open a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# ---------------------------------------------------------------- the learning curve

INK, SOFT, ACCENT, SECOND = "#1c2430", "#6b7684", "#1f5fa8", "#b3541e"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a running or killed job is left out."""
    rows = []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
    return rows


def wilson_interval(successes: Array, trials: Array, z: float = 1.96) -> tuple[Array, Array]:
    """95 % binomial interval of a share, valid near 0 and 1 as well.

    >>> low, high = wilson_interval(np.array([0.0]), np.array([10.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0], [0.278])
    """
    share, spread = successes / trials, z**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    half = np.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def learning_curve(metrics: Path, png: Path | BinaryIO) -> None:
    """Draw success during training against batch; `png` is a path or an open binary file. 900 pixels wide.

    Points: a batch's mean reward. Line: its trailing mean over a tenth of the run. Band: the binomial 95 % interval of
    that mean; episodes of one task resemble each other, so it is the least uncertainty one should assume. Lower panel,
    where logged: how far apart the plans of a task are, and the share of tasks that teach the decomposer nothing (plans
    tie) or teach nobody anything (every episode has the same reward).
    Raises ValueError when no row has a reward.
    """
    batches: dict[int, dict[str, Any]] = {}
    for row in read_metrics(metrics):
        if "batch" in row and not math.isnan(row.get("reward", math.nan)):
            batches.setdefault(row["batch"], row)       # later passes repeat the batch's reward
    if not batches:
        raise ValueError(f"{metrics}: no row has a batch and its reward yet")
    x, rows = np.array(list(batches), dtype=float), list(batches.values())
    column = {key: np.array([row.get(key, math.nan) for row in rows], dtype=float)
              for key in ("reward", "episodes", "episodes_lost", "plan_spread", "decomposer/no_signal",
                          "actor/all_0", "actor/all_1")}                                                # each [batches]
    lower = [(label, colour, values) for label, colour, values in (
        ("best minus worst plan", ACCENT, column["plan_spread"]),
        ("tasks whose plans tie", SECOND, column["decomposer/no_signal"]),
        ("tasks all 0 or all 1", SOFT, column["actor/all_0"] + column["actor/all_1"])) if not np.isnan(values).all()]

    figure = Figure(figsize=(9, 6.2 if lower else 4.2), dpi=100, layout="constrained")
    heights = [2, 1] if lower else [1]
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    window = max(1, min(len(x), max(3, round(len(x) / 10))))
    _draw_success(axes[0], x, column["reward"], column["episodes"] - column["episodes_lost"], window)
    for label, colour, values in lower:
        axes[1].plot(x, values, color=colour, linewidth=1.6, marker="o", markersize=2.5, label=label)
    for axis in axes:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e6e9ed", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(SOFT)
        axis.tick_params(colors=SOFT, labelsize=10, length=0)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=10, labelcolor=INK,
                    borderaxespad=0.2, handlelength=1.6)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("rollout batch", fontsize=11, color=INK)
    figure.savefig(png, format="png", facecolor="white")


def _draw_success(axis: Axes, x: Array, reward: Array, scored: Array, window: int) -> None:
    """All [batches]; `scored` counts the episodes behind a batch's mean reward, NaN where it was not logged."""
    counted = (scored > 0).all()
    weight = scored if counted else np.ones_like(reward)
    last = np.ones(window)                                              # sums over each batch and those before it
    successes, trials = (np.convolve(values, last)[:len(x)] for values in (reward * weight, weight))
    if counted:
        low, high = wilson_interval(successes, trials)
        axis.fill_between(x, low, high, color=ACCENT, alpha=0.14, linewidth=0, label="95 % binomial")
    axis.scatter(x, reward, s=16, color=ACCENT, alpha=0.45, linewidths=0, label="success in a batch")
    axis.plot(x, successes / trials, color=ACCENT, linewidth=2.2, label=f"mean of {window} batches")
    axis.set_ylabel("success during training", fontsize=11, color=INK)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m jhima.analysis", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="RUN", help="run directories, or: curve RUN out.png")
    arguments = parser.parse_args(argv).arguments
    try:
        if arguments[0] == "curve":
            if len(arguments) != 3:
                parser.error("expected: curve RUN out.png")
            learning_curve(Path(arguments[1]) / "metrics.jsonl", Path(arguments[2]))
        else:
            names = [Path(run).resolve().name for run in arguments]
            labels = names if len(set(names)) == len(names) else arguments      # same folder name twice: the paths
            print(compare_markdown({label: success_table(read_groups(Path(run)))
                                    for label, run in zip(labels, arguments, strict=True)}), end="")
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.analysis: {error}")


if __name__ == "__main__":
    main()
