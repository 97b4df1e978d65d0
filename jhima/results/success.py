"""What a run shows as numbers: success by site with its uncertainty, and runs compared.

    python -m jhima.results.success RUN [RUN...]        success by site, a row a run; differences against the first
    python -m jhima.results.figures RUN out.png   success during training

Two kinds of uncertainty, never mixed: the standard error over evaluation runs says how far a repetition on the same
tasks may differ; the bootstrap interval over tasks says how far other tasks of the same kind may. Two runs on the same
tasks are compared task by task: most of what makes tasks differ cancels, so the interval of the difference is narrower
than the two intervals suggest.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap

from jhima.results.run_reader import Array, GroupRecord, read_groups

# ---------------------------------------------------------------- success by site


@dataclass(frozen=True)
class Success:
    """One column of the paper's Table 1. Shares are in [0, 1]; None where there is nothing to compute them from.

    mean    over tasks, of the mean over a task's scored episodes (of all runs)
    stderr  standard deviation over runs (n - 1) / sqrt(runs); None for a single run, and for the batches of a
            training run, which hold different tasks
    low, high   95 % percentile bootstrap over tasks, None for a single task; of width 0 where all tasks agree
    pass_at     pass@1, pass@2, ... up to the episodes that a task has
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
    """Success by site and over all tasks; a batch directory is a run. Tasks on two sites get a row of their own."""
    by_site = _by_site(groups)
    failures = Counter(
        e.failure.split(":")[0] or "unknown" for g in groups for e in g.episodes if e.reward is None
    )
    return SuccessTable(
        sites=tuple(_success(site, by_site[site]) for site in sorted(by_site)),
        overall=_success("overall", groups),
        failures=dict(failures.most_common()),
        unreadable=tuple(line for group in groups for line in group.unreadable),
    )


def _by_site(groups: list[GroupRecord]) -> dict[str, list[GroupRecord]]:
    by_site: dict[str, list[GroupRecord]] = {}
    for group in groups:
        by_site.setdefault("+".join(group.task.sites) or "unknown", []).append(group)
    return by_site


def _success(site: str, groups: list[GroupRecord]) -> Success:
    episodes = [e for g in groups for e in g.episodes]
    by_task, by_run = _scores(groups), {}
    for group in groups:
        by_run.setdefault(group.batch, []).extend(_scores([group]).values())
    per_run = np.array(
        [np.mean([np.mean(R) for R in tasks]) for tasks in by_run.values() if tasks]
    )  # [runs]
    repeated = len({g.task.id for g in groups}) < len(groups)  # a task in two runs: they repeat it
    means = np.array([np.mean(R) for R in by_task.values()])  # [tasks that were scored]
    low, high = bootstrap_interval(means) if len(means) > 1 else (None, None)
    most = max(map(len, by_task.values()), default=0)
    return Success(
        site,
        float(means.mean()) if len(means) else None,
        float(per_run.std(ddof=1) / math.sqrt(len(per_run)))
        if repeated and len(per_run) > 1
        else None,
        low,
        high,
        tuple(pass_at_k(list(by_task.values()), k) for k in range(1, most + 1)),
        runs=len(per_run),
        tasks=len({g.task.id for g in groups}),
        episodes=len(episodes),
        failed=sum(e.reward == 0 for e in episodes),
        unscored=sum(e.reward is None for e in episodes),
        not_played=sum(not g.episodes for g in groups),
    )


def _scores(groups: list[GroupRecord]) -> dict[str, list[float]]:
    """The rewards of a task's scored episodes, of all runs, for every task that has any."""
    scores: dict[str, list[float]] = {}
    for group in groups:
        if scored := [e.reward for e in group.episodes if e.reward is not None]:
            scores.setdefault(group.task.id, []).extend(scored)
    return scores


def pass_at_k(tasks: list[list[float]], k: int) -> float:
    """Chance that one of k episodes succeeds, averaged over the tasks that have at least k.

    1 - C(n - c, k) / C(n, k) for c successes of n, unbiased (Chen et al. 2021, "Evaluating Large Language Models
    Trained on Code", eq. 1).

    >>> pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0]], k=2)
    0.25
    """
    return float(
        np.mean([1 - math.comb(R.count(0), k) / math.comb(len(R), k) for R in tasks if len(R) >= k])
    )


def bootstrap_interval(values: Array) -> tuple[float, float]:
    """95 % percentile interval of the mean of values [tasks], tasks drawn with replacement; the same at every call.

    A task's value is its mean over runs, so that runs are not mistaken for independent tasks.
    """
    found = bootstrap(
        (values,),
        np.mean,
        n_resamples=10_000,
        batch=1000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


# ---------------------------------------------------------------- one run against another


@dataclass(frozen=True)
class Difference:
    """Success of a run minus that of another, over the tasks that both have scored.

    mean    over tasks, of the difference of the task's means; low, high: 95 % bootstrap over tasks, drawn in pairs
    better, worse   tasks with a higher and a lower mean; the others of `tasks` tie
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
    sites = sorted(_by_site(run).keys() | _by_site(base).keys())
    pairs = [(site, *(_by_site(groups).get(site, []) for groups in (run, base))) for site in sites]
    return tuple(_difference(*pair) for pair in [*pairs, ("overall", run, base)])


def _difference(site: str, run: list[GroupRecord], base: list[GroupRecord]) -> Difference:
    ours, theirs = _scores(run), _scores(base)
    both = sorted(ours.keys() & theirs.keys())
    paired = np.array([np.mean(ours[task]) - np.mean(theirs[task]) for task in both])  # [tasks]
    low, high = bootstrap_interval(paired) if len(paired) > 1 else (None, None)
    return Difference(
        site,
        float(paired.mean()) if len(paired) else None,
        low,
        high,
        len(paired),
        int((paired > 0).sum()),
        int((paired < 0).sum()),
    )


@dataclass(frozen=True)
class Comparison:
    """Tables by run name, and each further run's differences from the first."""

    tables: dict[str, SuccessTable]
    differences: dict[str, tuple[Difference, ...]]


def compare(runs: dict[str, list[GroupRecord]]) -> Comparison:
    base, *others = runs
    return Comparison(
        {name: success_table(groups) for name, groups in runs.items()},
        {name: differences(runs[name], runs[base]) for name in others},
    )


def read_runs(paths: list[Path]) -> dict[str, list[GroupRecord]]:
    """The groups of each run under its folder's name, or under its path where two names are equal."""
    names = [Path(path).resolve().name for path in paths]
    labels = names if len(set(names)) == len(names) else list(map(str, paths))
    return {label: read_groups(path) for label, path in zip(labels, paths)}


# ---------------------------------------------------------------- as Markdown, CSV and JSON

NOTHING = "\u2013"


def cells(table: SuccessTable) -> list[list[str]]:
    """The table as text, its header first; percent, with the standard error over runs and the interval over tasks."""
    rows = table.rows
    # pass@k says something only where the episodes of a task differ.
    k = len(table.overall.pass_at)
    several = k > 1 and table.overall.pass_at[-1] != table.overall.pass_at[0]
    header = [
        "site",
        "success %",
        "95 % over tasks",
        *([f"pass@{k}"] if several else []),
        "tasks",
        "runs",
        "episodes",
        "failed",
        "unscored",
        "not played",
    ]
    return [header] + [
        [
            row.site,
            percent(row),
            _interval(row.low, row.high),
            *(
                [f"{100 * row.pass_at[-1]:.1f}" if len(row.pass_at) == k else NOTHING]
                if several
                else []
            ),
            *map(
                str, (row.tasks, row.runs, row.episodes, row.failed, row.unscored, row.not_played)
            ),
        ]
        for row in rows
    ]


def markdown(table: SuccessTable) -> str:
    """`cells` as Markdown, a row a site, followed by what is missing from it."""
    return "\n".join([*markdown_table(cells(table)), *_notes(table)]) + "\n"


def csv_text(tables: dict[str, SuccessTable]) -> str:
    """A row a run and site with every field of `Success` as a column; empty where there is no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["run", *Success.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    for name, table in tables.items():
        for row in table.rows:
            writer.writerow(
                {
                    "run": name,
                    **asdict(row),
                    "pass_at": " ".join(f"{share:.6g}" for share in row.pass_at),
                }
            )
    return out.getvalue()


def json_text(result: SuccessTable | Comparison) -> str:
    return json.dumps(asdict(result), indent=1, allow_nan=False)


def compare_markdown(comparison: Comparison) -> str:
    """One row a run, sites as columns as in the paper's Table 1; below, each run minus the first, in points."""
    tables = comparison.tables
    sites = sorted({row.site for table in tables.values() for row in table.sites})
    rows = [
        [
            "success %",
            *sites,
            "overall",
            "95 % over tasks",
            "episodes",
            "failed",
            "unscored",
            "not played",
        ]
    ]
    for name, table in tables.items():
        by_site, whole = {row.site: row for row in table.sites}, table.overall
        rows.append(
            [
                name,
                *(percent(by_site.get(site)) for site in sites),
                percent(whole),
                _interval(whole.low, whole.high),
                *map(str, (whole.episodes, whole.failed, whole.unscored, whole.not_played)),
            ]
        )
    lines = markdown_table(rows)
    if comparison.differences:
        minus = [
            [f"minus {next(iter(tables))}", *sites, "overall", "tasks in both", "better", "worse"]
        ]
        for name, found in comparison.differences.items():
            minus.append(
                [
                    name,
                    *map(_points, found),
                    *map(str, (found[-1].tasks, found[-1].better, found[-1].worse)),
                ]
            )
        lines += [
            "",
            *markdown_table(minus),
            "",
            "Points, task by task; in brackets the 95 % bootstrap interval over tasks.",
        ]
    for name, table in tables.items():
        lines += _notes(table, f"{name}: ")
    return "\n".join(lines) + "\n"


def percent(row: Success | None) -> str:
    """'41.2 ± 1.3': the mean and, with two runs or more, its standard error over runs, in percent."""
    if row is None or row.mean is None:
        return NOTHING
    return f"{100 * row.mean:.1f}" + ("" if row.stderr is None else f" ± {100 * row.stderr:.1f}")


def _points(found: Difference) -> str:
    if found.mean is None:
        return NOTHING
    interval = "" if found.low is None else f" ({_signed(found.low)} to {_signed(found.high)})"
    return _signed(found.mean) + interval


def _signed(share: float) -> str:
    """A share as points with a sign, and never "-0.0".

    >>> _signed(0.0712), _signed(-0.0004)
    ('+7.1', '+0.0')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def _interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


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
        lines += [
            "",
            _cell(
                f"{prefix}{len(table.unreadable)} files could not be read and count nowhere above:"
            ),
            *(f"- {_cell(line)}" for line in table.unreadable[:20]),
        ]
    return lines


def _cell(text: str) -> str:
    """Text that cannot end a Markdown cell, a line, or open a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
