"""Figures: the learning curve, and intervals against another library's formula."""

import doctest
import io

import pytest
from PIL import Image
from run_dirs import write_metrics

from jhima.results import figures
from jhima.results.figures import learning_curve, read_metrics, wilson


def test_doctests():
    assert doctest.testmod(figures).failed == 0


def test_learning_curve_is_900_pixels_wide_with_and_without_what_may_be_missing(tmp_path):
    learning_curve(write_metrics(tmp_path / "metrics.jsonl", 30), tmp_path / "full.png")
    (tmp_path / "bare.jsonl").write_text(
        '{"batch": 0, "reward": 0.25}\n{"tasks": 0}\n{"batch": 1, "reward": NaN}\n'
        '{"batch": 2, "reward": null}\n{"bat'
    )
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
