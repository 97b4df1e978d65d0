"""Figures: the learning curve, and intervals against another library's formula."""
import doctest
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jhima import figures
from jhima.figures import learning_curve, read_metrics, wilson


def test_doctests():
    assert doctest.testmod(figures).failed == 0


def write_metrics(path: Path, batches: int, seed: int = 0) -> Path:
    chance, lines = np.random.default_rng(seed), []
    for batch in range(batches):
        reward = chance.binomial(84, 0.1 + 0.5 * batch / batches) / 84
        for step in range(2):
            lines.append(json.dumps({
                "batch": batch, "pass": step, "reward": reward, "episodes": 84, "episodes_lost": 0,
                "plan_spread": 0.2 + 0.1 * chance.random(), "decomposer/no_signal": 0.5 * (1 - batch / batches),
                "actor/all_0": 0.4 * (1 - batch / batches), "actor/all_1": 0.3 * batch / batches}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_learning_curve_is_900_pixels_wide_with_and_without_what_may_be_missing(tmp_path):
    learning_curve(write_metrics(tmp_path / "metrics.jsonl", 30), tmp_path / "full.png")
    (tmp_path / "bare.jsonl").write_text(
        '{"batch": 0, "reward": 0.25}\n{"tasks": 0}\n{"batch": 1, "reward": NaN}\n{"batch": 2, "reward": null}\n{"bat')
    bare = io.BytesIO()
    learning_curve(tmp_path / "bare.jsonl", bare)
    full, bare = Image.open(tmp_path / "full.png"), Image.open(bare)
    assert full.width == bare.width == 900 and full.height > bare.height


def test_metrics_errors_name_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"batch": 0}\n{"bat\n{"batch": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)
    path.write_text('{"batch": 0}\n5\n{}\n')
    with pytest.raises(ValueError, match="line 2: not a JSON object"):
        read_metrics(path)
    path.write_text('{"batch": 0}\n')
    with pytest.raises(ValueError, match="no row has"):
        learning_curve(path, tmp_path / "out.png")


def test_wilson_interval_is_the_closed_form():
    for k, n in ((0, 10), (5, 10), (10, 10), (3, 7)):
        p, z = k / n, 1.959964
        middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
        wanted = ((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n))
        assert wilson(k, n) == pytest.approx(wanted, abs=1e-6)
