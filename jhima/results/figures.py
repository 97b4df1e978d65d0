"""Figures of a run: success during training, and subgoal completion against success (figure 2)."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.metrics import roc_curve

from jhima.results.progress import Progress, wilson
from jhima.results.run_reader import Array

INK, SOFT, ACCENT, SECOND = "#1c2430", "#6b7684", "#1f5fa8", "#b3541e"


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


def learning_curve(metrics: Path, png: Path | BinaryIO) -> None:
    """Draw success during training against batch; `png` is a path or an open binary file. 900 pixels wide.

    Points: a batch's mean reward. Line: its trailing mean over a tenth of the run. Band: the binomial 95 % interval of
    that mean; episodes of one task resemble each other, so it is the least uncertainty one should assume. Lower panel,
    where logged: how far apart the plans of a task are, the share of tasks that teach the decomposer nothing (plans tie),
    and the share of plans that teach the actor nothing (every episode has the same reward).
    Raises ValueError when no row has a reward.
    """
    batches: dict[int, dict[str, Any]] = {}
    for row in read_metrics(metrics):
        reward = row.get("reward")  # null, or in old files NaN: no episode of the batch was scored
        if "batch" in row and reward is not None and not math.isnan(reward):
            batches.setdefault(row["batch"], row)  # later passes repeat the batch's reward
    if not batches:
        raise ValueError(f"{metrics}: no row has a batch and its reward yet")
    x, rows = np.array(list(batches), dtype=float), list(batches.values())
    column = {
        key: np.array([row.get(key, math.nan) for row in rows], dtype=float)
        for key in (
            "reward",
            "episodes",
            "episodes_lost",
            "plan_spread",
            "decomposer/no_signal",
            "actor/all_0",
            "actor/all_1",
        )
    }  # each [batches]
    lower = [
        (label, colour, values)
        for label, colour, values in (
            ("best minus worst plan", ACCENT, column["plan_spread"]),
            ("tasks whose plans tie", SECOND, column["decomposer/no_signal"]),
            ("plans all 0 or all 1", SOFT, column["actor/all_0"] + column["actor/all_1"]),
        )
        if not np.isnan(values).all()
    ]

    figure = Figure(figsize=(9, 6.2 if lower else 4.2), dpi=100, layout="constrained")
    heights = [2, 1] if lower else [1]
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    window = max(1, min(len(x), max(3, round(len(x) / 10))))
    _draw_success(
        axes[0], x, column["reward"], column["episodes"] - column["episodes_lost"], window
    )
    for label, colour, values in lower:
        axes[1].plot(
            x, values, color=colour, linewidth=1.6, marker="o", markersize=2.5, label=label
        )
    for axis in axes:
        axis.set_ylim(bottom=0)
        plain(axis)
        axis.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=3,
            frameon=False,
            fontsize=10,
            labelcolor=INK,
            borderaxespad=0.2,
            handlelength=1.6,
        )
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("rollout batch", fontsize=11, color=INK)
    figure.savefig(png, format="png", facecolor="white")


def _draw_success(axis: Axes, x: Array, reward: Array, scored: Array, window: int) -> None:
    """All [batches]; `scored` counts the episodes behind a batch's mean reward, NaN where it was not logged."""
    counted = (scored > 0).all()
    weight = scored if counted else np.ones_like(reward)
    last = np.ones(window)  # sums over each batch and those before it
    successes, trials = (
        np.convolve(values, last)[: len(x)] for values in (reward * weight, weight)
    )
    if counted:
        bounds = [wilson(round(k), round(n)) for k, n in zip(successes, trials)]
        axis.fill_between(
            x, *zip(*bounds), color=ACCENT, alpha=0.14, linewidth=0, label="95 % binomial"
        )
    axis.scatter(
        x, reward, s=16, color=ACCENT, alpha=0.45, linewidths=0, label="success in a batch"
    )
    axis.plot(x, successes / trials, color=ACCENT, linewidth=2.2, label=f"mean of {window} batches")
    axis.set_ylabel("success during training", fontsize=11, color=INK)


def plain(axis: Axes) -> None:
    """A vertical axis in percent, thin horizontal lines, no frame."""
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(SOFT)
    axis.tick_params(colors=SOFT, labelsize=10, length=0)


def subgoal_figure(results: dict[str, Progress], png: Path | BinaryIO) -> None:
    """Figure 2, 1000 pixels wide, a colour a run. 2a: the ROC curve of the completed share of a plan's subtasks as a
    predictor of success. 2b: success by completed share, with 95 % Wilson intervals and the episodes behind each point.
    """
    figure = Figure(figsize=(10, 4.6), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = [ACCENT, SECOND, "#2f8f5d", "#7b4fa3", SOFT]
    left.plot([0, 1], [0, 1], color="#c3cad2", linewidth=1, linestyle=(0, (4, 4)))
    for number, (name, found) in enumerate(results.items()):
        colour, shift = colours[number % len(colours)], 0.12 * (number - (len(results) - 1) / 2)
        # A name is text, not a formula: matplotlib sets what stands between two dollars as mathematics.
        label = name.replace("$", r"\$")
        if found.auroc:
            false, true, _ = roc_curve(found.success, found.share)
            left.plot(
                false,
                true,
                color=colour,
                linewidth=2,
                marker="o",
                markersize=4,
                label=f"{label}: AUROC {found.auroc[0]:.3f}",
            )
        else:
            left.plot([], [], color=colour, label=f"{label}: no AUROC, all episodes alike")
        points = [(i, b) for i, b in enumerate(found.bins) if b.episodes]
        x, y = [i + shift for i, _ in points], [b.success for _, b in points]
        right.errorbar(
            x,
            y,
            [[b.success - b.low for _, b in points], [b.high - b.success for _, b in points]],
            color=colour,
            linewidth=1.4,
            marker="o",
            markersize=6,
            capsize=3,
            label=label + (f": \u03c4 = {found.tau[0]:.3f}" if found.tau else ""),
        )
        for place, (_, b) in zip(x, points):
            right.annotate(
                str(b.episodes),
                (place, b.high),
                (0, 3),
                textcoords="offset points",
                fontsize=8,
                color=colour,
                ha="center",
            )
    for axis in (left, right):
        plain(axis)
        axis.set_ylim(-0.02, 1.08)
    left.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    left.set(xlabel="failures counted as success", ylabel="successes found")
    left.legend(loc="lower right", frameon=False, fontsize=10, labelcolor=INK)
    right.set_xticks(range(len(found.bins)), [b.label for b in found.bins])
    right.set(xlabel="share of subtasks completed", ylabel="success")
    right.legend(loc="upper left", frameon=False, fontsize=10, labelcolor=INK)
    for axis, title in ((left, "a"), (right, "b")):
        axis.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK)
    figure.savefig(png, format="png", facecolor="white")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.results.figures", description="Draws a training run's learning curve."
    )
    parser.add_argument("run", type=Path, help="the run directory of train_rl.py")
    parser.add_argument("png", type=Path, help="the picture to write")
    args = parser.parse_args(argv)
    try:
        learning_curve(args.run / "metrics.jsonl", args.png)
    except (OSError, ValueError) as error:
        sys.exit(f"figures: {error}")


if __name__ == "__main__":
    main()
