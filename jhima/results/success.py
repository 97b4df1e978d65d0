"""Success by site with its uncertainty, runs compared, and both as tables (evaluate.py, --compare).

Two kinds of uncertainty, never mixed: the standard error over evaluation runs says how far a
repetition on the same tasks may differ; the bootstrap interval over tasks says how far other tasks
of the same kind may. Two runs on the same tasks are compared task by task: most of what makes tasks
differ cancels, so the interval of the difference is narrower than the two intervals suggest.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap

from jhima.results.run_reader import Array, EpisodeRecord, GroupRecord, read_groups

# ---- success by site ----


@dataclass(frozen=True)
class Success:
    """One column of the paper's Table 1. Shares are in [0, 1]; None where there is no value.

    mean        over tasks, of the mean over a task's scored episodes (of all runs)
    stderr      standard deviation over runs (n - 1) / sqrt(runs); None for a single run, and for
                the batches of a training run, which hold different tasks
    low, high   95 % percentile bootstrap over tasks, None for a single task; of width 0 where all
                tasks agree
    pass_at     pass@1, pass@2, ... up to the number of episodes per task
    unscored    episodes whose reward is null; they are part of `episodes` and of no mean
    not_played  tasks of a run without any episode: not begun, or their start page never opened
    """

    site: str
    mean: float | None
    stderr: float | None
    low: float | None
    high: float | None
    pass_at: tuple[float, ...]
    runs: int
    tasks: int
    episodes: int
    failed: int
    unscored: int
    not_played: int


@dataclass(frozen=True)
class SuccessTable:
    """`failures` counts unscored episodes by the kind of their environment failure."""

    sites: tuple[Success, ...]
    overall: Success
    failures: dict[str, int]
    unreadable: tuple[str, ...]

    @property
    def rows(self) -> tuple[Success, ...]:
        return *self.sites, self.overall


def success_table(groups: list[GroupRecord]) -> SuccessTable:
    """Success by site and over all tasks. Tasks on two sites get a row of their own.

    A batch directory is a run.
    """
    by_site = _grouped(groups, site_of)
    unscored = [e for e in _episodes(groups) if e.reward is None]
    failures = Counter(e.failure.split(":")[0] or "unknown" for e in unscored)
    return SuccessTable(
        sites=tuple(_success(site, by_site[site]) for site in sorted(by_site)),
        overall=_success("overall", groups),
        failures=dict(failures.most_common()),
        unreadable=tuple(chain.from_iterable(group.unreadable for group in groups)),
    )


def site_of(group: GroupRecord) -> str:
    return "+".join(group.task.sites) or "unknown"


def _grouped(
    groups: list[GroupRecord], key: Callable[[GroupRecord], str]
) -> dict[str, list[GroupRecord]]:
    by_key: dict[str, list[GroupRecord]] = {}
    for group in groups:
        by_key.setdefault(key(group), []).append(group)
    return by_key


def _episodes(groups: list[GroupRecord]) -> list[EpisodeRecord]:
    return list(chain.from_iterable(group.episodes for group in groups))


def _success(site: str, groups: list[GroupRecord]) -> Success:
    rewards = list(_scores(groups).values())
    mean, low, high = mean_and_interval(np.array([np.mean(R) for R in rewards]))
    per_run = []
    for run in _grouped(groups, lambda group: group.batch).values():
        if task_means := [np.mean(R) for R in _scores(run).values()]:
            per_run.append(np.mean(task_means))
    tasks = len({group.task.id for group in groups})
    stderr = None
    if len(per_run) > 1 and tasks < len(groups):  # a task in two runs: they repeat it
        stderr = float(np.std(per_run, ddof=1) / math.sqrt(len(per_run)))
    episodes = _episodes(groups)
    longest = max(map(len, rewards), default=0)
    return Success(
        site=site,
        mean=mean,
        stderr=stderr,
        low=low,
        high=high,
        pass_at=tuple(pass_at_k(rewards, k) for k in range(1, longest + 1)),
        runs=len(per_run),
        tasks=tasks,
        episodes=len(episodes),
        failed=sum(e.reward == 0 for e in episodes),
        unscored=sum(e.reward is None for e in episodes),
        not_played=sum(not group.episodes for group in groups),
    )


def _scores(groups: list[GroupRecord]) -> dict[str, list[float]]:
    """Task -> the rewards of its scored episodes, of all runs, for every task that has any."""
    scores: dict[str, list[float]] = {}
    for group in groups:
        if scored := [e.reward for e in group.episodes if e.reward is not None]:
            scores.setdefault(group.task.id, []).extend(scored)
    return scores


def pass_at_k(tasks: list[list[float]], k: int) -> float:
    """Chance that one of k episodes succeeds, averaged over the tasks that have at least k.

    1 - C(n - c, k) / C(n, k) for c successes of n, unbiased (Chen et al. 2021, "Evaluating Large
    Language Models Trained on Code", eq. 1).

    >>> pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0]], k=2)
    0.25
    """
    long_enough = [R for R in tasks if len(R) >= k]
    chances = [1 - math.comb(R.count(0), k) / math.comb(len(R), k) for R in long_enough]
    return float(np.mean(chances))


def mean_and_interval(values: Array) -> tuple[float | None, float | None, float | None]:
    """(mean, low, high) of values [tasks]; None where there are too few values for it."""
    if len(values) == 0:
        return None, None, None
    if len(values) == 1:
        return float(values[0]), None, None
    return float(values.mean()), *bootstrap_interval(values)


def bootstrap_interval(values: Array) -> tuple[float, float]:
    """95 % percentile interval of the mean of values [tasks], tasks drawn with replacement.

    The same at every call. A task's value is its mean over runs, so that runs are not mistaken for
    independent tasks.
    """
    rng = np.random.default_rng(0)
    result = bootstrap(
        (values,), np.mean, n_resamples=10_000, batch=1000, method="percentile", rng=rng
    )
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)


# ---- one run against another ----


@dataclass(frozen=True)
class Difference:
    """Success of a run minus that of another, over the tasks that both have scored.

    mean           over tasks, of the difference of the task's means
    low, high      95 % bootstrap of it over tasks, drawn in pairs
    better, worse  tasks with a higher and a lower mean; the others of `tasks` tie
    """

    site: str
    mean: float | None
    low: float | None
    high: float | None
    tasks: int
    better: int
    worse: int


def differences(run: list[GroupRecord], base: list[GroupRecord]) -> tuple[Difference, ...]:
    """`run` minus `base` for every site of either, then over all tasks."""
    run_sites, base_sites = _grouped(run, site_of), _grouped(base, site_of)
    rows = []
    for site in sorted(run_sites.keys() | base_sites.keys()):
        rows.append(_difference(site, run_sites.get(site, []), base_sites.get(site, [])))
    return (*rows, _difference("overall", run, base))


def _difference(site: str, run: list[GroupRecord], base: list[GroupRecord]) -> Difference:
    run_scores, base_scores = _scores(run), _scores(base)
    both = sorted(run_scores.keys() & base_scores.keys())
    pairs = np.array([np.mean(run_scores[t]) - np.mean(base_scores[t]) for t in both])  # [tasks]
    better, worse = int((pairs > 0).sum()), int((pairs < 0).sum())
    mean, low, high = mean_and_interval(pairs)
    return Difference(site, mean, low, high, tasks=len(pairs), better=better, worse=worse)


@dataclass(frozen=True)
class Comparison:
    """Tables by run name, and each further run's differences from the first."""

    tables: dict[str, SuccessTable]
    differences: dict[str, tuple[Difference, ...]]


def compare(runs: dict[str, list[GroupRecord]]) -> Comparison:
    if not runs:
        raise ValueError("--compare: expected at least one run")
    base, *others = runs
    return Comparison(
        {name: success_table(groups) for name, groups in runs.items()},
        {name: differences(runs[name], runs[base]) for name in others},
    )


def read_runs(paths: list[Path]) -> dict[str, list[GroupRecord]]:
    """The groups of each run by its folder's name, or by its path where two names are equal."""
    names = [Path(path).resolve().name for path in paths]
    labels = names if len(set(names)) == len(names) else list(map(str, paths))
    return {label: read_groups(path) for label, path in zip(labels, paths)}


# ---- as Markdown, CSV and JSON ----

NOTHING = "\u2013"
COUNTS = ("tasks", "runs", "episodes", "failed", "unscored", "not_played")


def write_results(run: Path) -> None:
    """Prints a run's success table and writes it as RUN/results.md, .csv and .json."""
    groups = read_groups(run)
    table = success_table(groups)
    text = f"{markdown(table)}\n{unreadable_replies(groups)}\n"
    texts = {"md": text, "csv": csv_text({run.name: table}), "json": json_text(table)}
    _write(run, "results", texts)


def write_comparison(comparison: Comparison, out: Path | None) -> None:
    """Prints a comparison, and writes it as OUT/comparison.md, .csv and .json, given an OUT."""
    rows = csv_text(comparison.tables)
    texts = {"md": compare_markdown(comparison), "csv": rows, "json": json_text(comparison)}
    _write(out, "comparison", texts)


def _write(out: Path | None, name: str, texts: dict[str, str]) -> None:
    print(texts["md"], end="")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            (out / f"{name}.{ending}").write_text(text, "utf-8")


def cells(table: SuccessTable) -> list[list[str]]:
    """The table as text, header first: percent, standard error over runs, interval over tasks."""
    lines = [["site", "success %", "95 % over tasks", *_titles(COUNTS)]]
    for row in table.rows:
        lines.append([row.site, percent(row), _interval(row), *_counts(row, COUNTS)])
    pass_at = table.overall.pass_at
    if pass_at and pass_at[-1] != pass_at[0]:  # else the episodes of each task agree
        column = [f"pass@{len(pass_at)}"]
        for row in table.rows:
            complete = len(row.pass_at) == len(pass_at)
            column.append(_points(row.pass_at[-1]) if complete else NOTHING)
        for line, cell in zip(lines, column):
            line.insert(3, cell)
    return lines


def markdown(table: SuccessTable) -> str:
    """`cells` as Markdown, one row per site, followed by what is missing from it."""
    return "\n".join([*markdown_table(cells(table)), *_notes(table)]) + "\n"


def csv_text(tables: dict[str, SuccessTable]) -> str:
    """One row per run and site, with every field of `Success`; empty where there is no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["run", *Success.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    for name, table in tables.items():
        for row in table.rows:
            pass_at = " ".join(f"{share:.6g}" for share in row.pass_at)
            writer.writerow({"run": name, **asdict(row), "pass_at": pass_at})
    return out.getvalue()


def json_text(result: SuccessTable | Comparison) -> str:
    return json.dumps(asdict(result), indent=1, allow_nan=False)


def compare_markdown(comparison: Comparison) -> str:
    """One row per run, sites as columns as in Table 1; then each run minus the first."""
    tables = comparison.tables
    sites: set[str] = set()
    for table in tables.values():
        sites |= {row.site for row in table.sites}
    columns = [*sorted(sites), "overall"]
    rows = [["success %", *columns, "95 % over tasks", *_titles(COUNTS[2:])]]
    for name, table in tables.items():
        shares = {row.site: percent(row) for row in table.rows}
        counts = _counts(table.overall, COUNTS[2:])
        rows.append([name, *_in_order(shares, columns), _interval(table.overall), *counts])
    lines = markdown_table(rows)
    if comparison.differences:
        rows = [[f"minus {next(iter(tables))}", *columns, "tasks in both", "better", "worse"]]
        for name, by_site in comparison.differences.items():
            shares = {row.site: _signed_interval(row) for row in by_site}
            counts = _counts(by_site[-1], ("tasks", "better", "worse"))
            rows.append([name, *_in_order(shares, columns), *counts])
        note = "Points, task by task; in brackets the 95 % bootstrap interval over tasks."
        lines += ["", *markdown_table(rows), "", note]
    for name, table in tables.items():
        lines += _notes(table, f"{name}: ")
    return "\n".join(lines) + "\n"


def unreadable_replies(groups: list[GroupRecord]) -> str:
    """Which share of the replies had no readable action, by site, and why."""
    errors: dict[str, list[str]] = {}
    for group in groups:
        for e in group.episodes:
            errors.setdefault(", ".join(group.task.sites), []).extend(e.errors)
    replies = list(chain.from_iterable(errors.values()))
    sites = ", ".join(f"{site} {_share_of_errors(errors[site])}" for site in sorted(errors))
    classes = Counter(filter(None, replies)).most_common()
    why = ", ".join(f"{name} {count}" for name, count in classes) or "none"
    return (
        f"Replies without a readable action: {_share_of_errors(replies)} of {len(replies)} "
        f"({sites}); classes: {why}."
    )


def _share_of_errors(errors: list[str]) -> str:
    return f"{_points(sum(map(bool, errors)) / max(1, len(errors)))} %"


def percent(row: Success) -> str:
    """The mean in percent and, with two runs or more, its standard error: '41.2 ± 1.3'."""
    if row.mean is None:
        return NOTHING
    return _points(row.mean) + ("" if row.stderr is None else f" ± {_points(row.stderr)}")


def _interval(row: Success) -> str:
    return NOTHING if row.low is None else f"{_points(row.low)} to {_points(row.high)}"


def _signed_interval(row: Difference) -> str:
    if row.mean is None:
        return NOTHING
    interval = "" if row.low is None else f" ({_signed(row.low)} to {_signed(row.high)})"
    return _signed(row.mean) + interval


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(share: float) -> str:
    """A share as points with a sign, and never "-0.0".

    >>> _signed(0.0712), _signed(-0.0004)
    ('+7.1', '+0.0')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def _titles(names: tuple[str, ...]) -> list[str]:
    return [name.replace("_", " ") for name in names]


def _counts(row: Success | Difference, names: tuple[str, ...]) -> list[str]:
    return [str(getattr(row, name)) for name in names]


def _in_order(shares: dict[str, str], columns: list[str]) -> list[str]:
    return [shares.get(column, NOTHING) for column in columns]


def markdown_table(rows: list[list[str]]) -> list[str]:
    header, *body = (f"| {' | '.join(map(_cell, row))} |" for row in rows)
    return [header, "|---|" + "---:|" * (len(rows[0]) - 1), *body]


def _notes(table: SuccessTable, prefix: str = "") -> list[str]:
    """Why episodes are unscored, and the files that could not be read."""
    lines = []
    if table.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in table.failures.items())
        lines += ["", _cell(f"{prefix}unscored, in no mean: {kinds}.")]
    if table.unreadable:
        count = len(table.unreadable)
        lines += ["", _cell(f"{prefix}{count} files could not be read and count nowhere above:")]
        lines += [f"- {_cell(line)}" for line in table.unreadable[:20]]
    return lines


def _cell(text: str) -> str:
    """Text that cannot end a Markdown cell, a line, or open a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
