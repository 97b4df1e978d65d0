"""Figures of a run: its learning curve, and subgoal completion against success (figure 2).

    python -m jhima.results.figures RUN out.png      the learning curve of a run of train_rl.py

Figure 2 is drawn by `python -m jhima.results.subgoals`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.metrics import roc_curve
from tyro.conf import Positional

from jhima import cli
from jhima.results.progress import BINS, Progress, wilson
from jhima.results.run_reader import Array

INK, SOFT, ACCENT, SECOND = "#1c2430", "#6b7684", "#1f5fa8", "#b3541e"
COLOURS = (ACCENT, SECOND, "#2f8f5d", "#7b4fa3", SOFT)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a running or killed job is left out.

    Raises ValueError naming the line for any other that is no JSON object.
    """
    rows = []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
            rows.append(row)
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from error
    return rows


# ---- success during training ----


def learning_curve(metrics: Path, png: Path | BinaryIO) -> None:
    """Draws success during training by batch, 900 pixels wide, to a path or an open binary file.

    Points: the mean reward of each batch. Line: its trailing mean over a tenth of the run. Band:
    the binomial 95 % interval of that mean; the episodes of a task resemble each other, so this is
    the least uncertainty to assume. Lower panel, where logged: how far apart a task's plans are,
    the share of tasks that teach the decomposer nothing (plans tie), and the share of plans that
    teach the actor nothing (all of their episodes have the same reward).
    Raises ValueError when no row has a reward.
    """
    rows = _first_rows(metrics)

    def column(key: str) -> Array:
        return np.array([row.get(key, math.nan) for row in rows], dtype=float)  # [batches]

    batches = column("batch")
    lower = [
        ("best minus worst plan", ACCENT, column("plan_spread")),
        ("tasks whose plans tie", SECOND, column("decomposer/no_signal")),
        ("plans all 0 or all 1", SOFT, column("actor/all_0") + column("actor/all_1")),
    ]
    lower = [line for line in lower if not np.isnan(line[2]).all()]

    height, ratios = (6.2, [2, 1]) if lower else (4.2, [1])
    figure = Figure(figsize=(9, height), dpi=100, layout="constrained")
    axes = figure.subplots(len(ratios), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    _draw_success(axes[0], batches, column("reward"), column("episodes") - column("episodes_lost"))
    for label, colour, values in lower:
        style = {"linewidth": 1.6, "marker": "o", "markersize": 2.5}
        axes[1].plot(batches, values, color=colour, label=label, **style)
    for axis in axes:
        axis.set_ylim(bottom=0)
        percent_axis(axis)
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "ncols": 3}
        axis.legend(**place, frameon=False, fontsize=10, labelcolor=INK, handlelength=1.6)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("rollout batch", fontsize=11, color=INK)
    figure.savefig(png, format="png", facecolor="white")


def _first_rows(metrics: Path) -> list[dict[str, Any]]:
    """Each batch's first row that has a reward: the later passes repeat it."""
    batches: dict[int, dict[str, Any]] = {}
    for row in read_metrics(metrics):
        reward = row.get("reward")  # null, or in old files NaN: no episode of the batch was scored
        if "batch" in row and reward is not None and not math.isnan(reward):
            batches.setdefault(row["batch"], row)
    if not batches:
        raise ValueError(f"{metrics}: no row has a batch and its reward yet")
    return list(batches.values())


def _draw_success(axis: Axes, batches: Array, reward: Array, scored: Array) -> None:
    """All [batches]; `scored` counts the episodes behind each mean, NaN where it was not logged."""
    count = len(batches)
    window = max(1, min(count, max(3, round(count / 10))))
    logged = (scored > 0).all()
    weight = scored if logged else np.ones_like(reward)
    successes = np.convolve(reward * weight, np.ones(window))[:count]  # sums over the window
    trials = np.convolve(weight, np.ones(window))[:count]
    if logged:
        bounds = [wilson(round(k), round(n)) for k, n in zip(successes, trials)]
        band = {"color": ACCENT, "alpha": 0.14, "linewidth": 0, "label": "95 % binomial"}
        axis.fill_between(batches, *zip(*bounds), **band)
    dots = {"s": 16, "alpha": 0.45, "linewidths": 0, "label": "success in a batch"}
    axis.scatter(batches, reward, color=ACCENT, **dots)
    mean, label = successes / trials, f"mean of {window} batches"
    axis.plot(batches, mean, color=ACCENT, linewidth=2.2, label=label)
    axis.set_ylabel("success during training", fontsize=11, color=INK)


def percent_axis(axis: Axes) -> None:
    """A vertical axis in percent, thin horizontal lines, no frame."""
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(SOFT)
    axis.tick_params(colors=SOFT, labelsize=10, length=0)


# ---- figure 2 ----


def subgoal_figure(results: dict[str, Progress], png: Path | BinaryIO) -> None:
    """Figure 2, 1000 pixels wide, one colour per run.

    2a: the ROC curve of the completed share of a plan's subtasks as a predictor of success.
    2b: success by completed share, with 95 % Wilson intervals and the episodes behind each point.
    """
    figure = Figure(figsize=(10, 4.6), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="#c3cad2", linewidth=1, linestyle=(0, (4, 4)))
    for number, (name, progress) in enumerate(results.items()):
        colour = COLOURS[number % len(COLOURS)]
        # A name is text, not a formula: matplotlib typesets what stands between two dollar signs.
        label = name.replace("$", r"\$")
        _draw_roc(left, progress, label, colour)
        _draw_bins(right, progress, label, colour, 0.12 * (number - (len(results) - 1) / 2))
    for axis, title in ((left, "a"), (right, "b")):
        percent_axis(axis)
        axis.set_ylim(-0.02, 1.08)
        axis.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK)
    left.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    left.set(xlabel="failures counted as success", ylabel="successes found")
    left.legend(loc="lower right", frameon=False, fontsize=10, labelcolor=INK)
    right.set_xticks(range(len(BINS)), [label for label, _ in BINS])
    right.set(xlabel="share of subtasks completed", ylabel="success")
    right.legend(loc="upper left", frameon=False, fontsize=10, labelcolor=INK)
    figure.savefig(png, format="png", facecolor="white")


def _draw_roc(axis: Axes, progress: Progress, label: str, colour: str) -> None:
    if progress.auroc is None:
        axis.plot([], [], color=colour, label=f"{label}: no AUROC, all episodes alike")
        return
    false, true, _ = roc_curve(progress.success, progress.share)
    label = f"{label}: AUROC {progress.auroc[0]:.3f}"
    axis.plot(false, true, color=colour, linewidth=2, marker="o", markersize=4, label=label)


def _draw_bins(axis: Axes, progress: Progress, label: str, colour: str, shift: float) -> None:
    """`shift` moves the run's points sideways, so that those of several runs stand side by side."""
    if progress.tau:
        label += f": \u03c4 = {progress.tau[0]:.3f}"
    points = [(i + shift, b) for i, b in enumerate(progress.bins) if b.episodes]
    x, success = [x for x, _ in points], [b.success for _, b in points]
    below = [b.success - b.low for _, b in points]
    above = [b.high - b.success for _, b in points]
    style = {"linewidth": 1.4, "marker": "o", "markersize": 6, "capsize": 3}
    axis.errorbar(x, success, [below, above], color=colour, label=label, **style)
    for x, b in points:
        style = {"textcoords": "offset points", "fontsize": 8, "ha": "center"}
        axis.annotate(str(b.episodes), (x, b.high), (0, 3), color=colour, **style)


# ---- python -m jhima.results.figures ----


@dataclass
class Options:
    run: Positional[Path]
    """the run directory of train_rl.py"""
    png: Positional[Path]
    """the picture to write"""


def main() -> None:
    options = cli.parse(Options, __doc__)
    with cli.one_line_errors():
        learning_curve(options.run / "metrics.jsonl", options.png)


if __name__ == "__main__":
    cli.run(main)
