"""Success tables and comparisons against closed forms, brute force and scipy's distributions."""

import csv
import doctest
import io
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from run_dirs import command, evaluation, write_metrics, write_run
from scipy.stats import binom

import evaluate
from jhima.episodes import Task
from jhima.results import figures
from jhima.results import success as analysis
from jhima.results.run_reader import read_groups, write_planned
from jhima.results.success import (
    bootstrap_interval,
    compare,
    compare_markdown,
    csv_text,
    differences,
    json_text,
    markdown,
    pass_at_k,
    success_table,
)


def test_doctests():
    assert doctest.testmod(analysis).failed == 0


def test_means_and_standard_errors_are_the_closed_forms(tmp_path):
    table = success_table(
        read_groups(
            evaluation(
                tmp_path, {"map/a": [1, 1, 0, 1], "map/b": [0, 1, 0, 0], "gitlab/c": [1, 0, 1, 1]}
            )
        )
    )
    gitlab, places = table.sites
    assert [row.site for row in table.rows] == ["gitlab", "map", "overall"]
    assert (gitlab.mean, places.mean) == (0.75, 0.5)
    # map, by run: 1/2, 1, 0, 1/2, so the variance is (1/4 + 1/4) / 3, and the standard error its
    # root over sqrt(4)
    assert places.stderr == pytest.approx(math.sqrt(Fraction(1, 6)) / 2)
    by_run = [Fraction(2, 3), Fraction(2, 3), Fraction(1, 3), Fraction(2, 3)]
    mean = sum(by_run) / 4
    assert table.overall.mean == pytest.approx(float(mean))
    assert table.overall.stderr == pytest.approx(
        math.sqrt(sum((x - mean) ** 2 for x in by_run) / 3 / 4)
    )
    assert (table.overall.runs, table.overall.tasks, table.overall.episodes) == (4, 3, 12)


def test_an_unscored_episode_counts_in_no_mean_and_is_shown(tmp_path):
    table = success_table(
        read_groups(
            evaluation(tmp_path, {"map/a": [1, None], "map/b": [0, 1], "reddit/c": [None, None]})
        )
    )
    reddit = table.sites[1]
    assert (reddit.mean, reddit.stderr, reddit.low, reddit.runs, reddit.unscored) == (
        None,
        None,
        None,
        0,
        2,
    )
    assert table.overall.mean == pytest.approx((1 + 0.5) / 2)  # a: its one scored run; b: both
    assert (table.overall.unscored, table.overall.failed, table.failures) == (3, 1, {"site": 3})
    assert "| reddit | – | – | – | 1 | 0 | 2 | 0 | 2 | 0 |" in markdown(table)
    assert "unscored, in no mean: site 3." in markdown(table)
    assert "x: unscored, in no mean: site 3." in compare_markdown(
        compare({"x": read_groups(tmp_path)})
    )


def test_a_task_that_never_began_is_shown(tmp_path):
    evaluation(tmp_path, {"map/a": [1, 0]})
    write_planned(tmp_path, 2, [Task(name, ("map",), "", "", {}) for name in ("map-a", "map-b")])
    row = success_table(read_groups(tmp_path)).overall
    assert (row.mean, row.tasks, row.episodes, row.not_played) == (0.5, 2, 2, 2)


def test_pass_at_k_is_the_share_of_draws_with_a_success():
    tasks = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [1, 0, 1]]
    for k in range(1, 5):
        shares = [
            np.mean([max(drawn) for drawn in itertools.combinations(R, k)])
            for R in tasks
            if len(R) >= k
        ]
        assert pass_at_k(tasks, k) == pytest.approx(np.mean(shares))


def test_pass_at_k_is_a_column_only_where_runs_differ(tmp_path):
    same = markdown(
        success_table(read_groups(evaluation(tmp_path / "a", {"map/a": [1, 1], "map/b": [0, 0]})))
    )
    differ = markdown(
        success_table(read_groups(evaluation(tmp_path / "b", {"map/a": [1, 0], "map/b": [0, 0]})))
    )
    assert "pass@" not in same
    assert (
        "pass@2" in differ
        and "| overall | 25.0 ± 25.0 | 0.0 to 50.0 | 50.0 | 2 | 2 | 4 | 3 | 0 | 0 |" in differ
    )


def test_a_single_run_has_no_standard_error_but_an_interval(tmp_path):
    row = success_table(
        read_groups(evaluation(tmp_path, {f"map/{i}": [i % 2] for i in range(40)}))
    ).overall
    assert (row.mean, row.stderr) == (0.5, None)
    # The bootstrap's own standard deviation of a share of n tasks is sqrt(p (1 - p) / n).
    half = 1.96 * math.sqrt(0.25 / 40)
    assert (row.low, row.high) == (
        pytest.approx(0.5 - half, abs=0.03),
        pytest.approx(0.5 + half, abs=0.03),
    )


def test_batches_of_a_training_run_are_no_repetitions(tmp_path):
    table = success_table(
        read_groups(
            write_run(
                tmp_path,
                {("0000", "map", "a"): [[1, 0], [1, 1]], ("0001", "map", "b"): [[0, 0], [0, 1]]},
            )
        )
    )
    assert (table.overall.mean, table.overall.stderr, table.overall.runs) == (0.5, None, 2)
    assert table.overall.pass_at == pytest.approx([0.5, (1 + 0.5) / 2, 1 - 0.25 / 2, 1])


@pytest.mark.parametrize("reward", [0, 1])
def test_all_alike(tmp_path, reward):
    row = success_table(
        read_groups(evaluation(tmp_path, {"map/a": [reward] * 2, "map/b": [reward] * 2}))
    ).overall
    assert (row.mean, row.stderr, row.low, row.high) == (reward, 0.0, reward, reward)


def test_the_bootstrap_of_zeros_and_ones_is_the_binomial_distribution():
    values = np.array([1.0] * 57 + [0.0] * 97)  # 154 tasks, 37 %
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    wanted = binom.ppf([0.025, 0.975], 154, 57 / 154) / 154
    assert np.abs(np.array([low, high]) - wanted).max() <= 1.01 / 154


def test_nothing_at_all_is_a_table_too(tmp_path):
    (tmp_path / "rollouts").mkdir()
    table = success_table(read_groups(tmp_path))
    assert table.sites == () and table.overall.mean is None
    assert "| overall | – |" in markdown(table)


def test_comparison_is_paired_and_copes_with_a_site_that_one_side_lacks(tmp_path):
    runs = {
        "before": read_groups(
            evaluation(tmp_path / "a", {"map/a": [0, 0], "map/b": [0, 1], "reddit/c": [1, 1]})
        ),
        "after": read_groups(
            evaluation(tmp_path / "b", {"map/a": [1, 1], "map/b": [0, 1], "gitlab/d": [None, 0]})
        ),
    }
    lines = compare_markdown(compare(runs)).splitlines()
    assert lines[:4] == [
        "| success % | gitlab | map | reddit | overall | 95 % over tasks | episodes | failed "
        "| unscored | not played |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| before | – | 25.0 ± 25.0 | 100.0 ± 0.0 | 50.0 ± 16.7 | 0.0 to 100.0 | 6 | 3 | 0 | 0 |",
        "| after | 0.0 | 75.0 ± 25.0 | – | 50.0 ± 8.3 | 0.0 to 100.0 | 6 | 2 | 1 | 0 |",
    ]
    assert lines[5:8] == [
        "| minus before | gitlab | map | reddit | overall | tasks in both | better | worse |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        "| after | – | +50.0 (+0.0 to +100.0) | – | +50.0 (+0.0 to +100.0) | 2 | 1 | 0 |",
    ]
    three = compare({**runs, "again": runs["before"]})
    assert three.differences["again"][-1].mean == 0 and three.differences["again"][-1].tasks == 3
    assert json.loads(json_text(three))["differences"]["after"][-1]["better"] == 1


def test_a_difference_stands_below_its_own_site(tmp_path):
    """... where a third run has a site that the first two lack."""
    base = read_groups(evaluation(tmp_path / "a", {"map/a": [0]}))
    run = read_groups(evaluation(tmp_path / "b", {"map/a": [1]}))
    other = read_groups(evaluation(tmp_path / "c", {"gitlab/d": [1]}))
    lines = compare_markdown(compare({"base": base, "run": run, "other": other})).splitlines()
    assert lines[6].startswith("| minus base | gitlab | map | overall |")
    assert lines[8].startswith("| run | – | +100.0 | +100.0 |")
    assert lines[9].startswith("| other | – | – | – |")


def test_pairing_tells_a_difference_of_four_points_on_154_tasks(tmp_path):
    """40 % against 44 %: unpaired intervals overlap widely; six tasks gained, none lost, do not."""
    results = {f"map/{i}": [int(i < 62)] for i in range(154)}
    base = read_groups(evaluation(tmp_path / "a", results))
    run = read_groups(
        evaluation(tmp_path / "b", results | {f"map/{i}": [1] for i in range(62, 68)})
    )
    found = differences(run, base)[-1]
    assert found.mean == pytest.approx(6 / 154) and (found.better, found.worse, found.tasks) == (
        6,
        0,
        154,
    )
    wanted = binom.ppf([0.025, 0.975], 154, 6 / 154) / 154
    assert np.abs(np.array([found.low, found.high]) - wanted).max() <= 1.01 / 154 and found.low > 0
    one, two = (success_table(groups).overall for groups in (base, run))
    assert one.high > two.mean and two.low < one.mean
    assert differences(run, base) == differences(list(reversed(run)), base)


def test_csv_and_json_hold_every_number(tmp_path):
    table = success_table(
        read_groups(evaluation(tmp_path, {"map/a": [1, 0], "a|b<i>/b": [1, None]}))
    )
    rows = list(csv.DictReader(io.StringIO(csv_text({"x": table}))))
    assert [float(row["mean"]) for row in rows] == [1.0, 0.5, table.overall.mean]
    assert rows[0]["stderr"] == "" and rows[0]["unscored"] == "1" and rows[1]["pass_at"] == "0.5 1"
    assert json.loads(json_text(table))["overall"]["mean"] == table.overall.mean
    assert "| a\\|b&lt;i> |" in markdown(table)


def test_compare_command_line(tmp_path, capsys):
    before = evaluation(tmp_path / "before", {"map/a": [0]})
    after = evaluation(tmp_path / "after", {"map/a": [1]})
    command(evaluate.main, "--compare", before, after)
    assert "| after | +100.0 | +100.0 | 1 | 1 | 0 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such folder"):
        command(evaluate.main, "--compare", tmp_path / "missing")
    with pytest.raises(SystemExit, match="at least one run"):
        command(evaluate.main, "--compare")


def test_curve_command_line(tmp_path):
    write_metrics(tmp_path / "metrics.jsonl", 3)
    command(figures.main, tmp_path, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="No such file"):
        command(figures.main, tmp_path / "missing", tmp_path / "curve.png")
