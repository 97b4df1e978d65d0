"""Tables against closed forms, half-written and damaged runs, and the learning curve."""
import csv
import doctest
import io
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jhima import analysis
from jhima.analysis import (
    bootstrap_interval,
    compare_markdown,
    csv_text,
    json_text,
    learning_curve,
    main,
    markdown,
    read_groups,
    read_metrics,
    success_table,
    wilson_interval,
)
from jhima.episodes import Episode, Plan, save_episode, save_plans
from jhima.tasks import Task


def write_run(run: Path, rewards: dict[tuple[str, str, str], list[list[int | None]]]) -> Path:
    """A run in which (batch, site, task id) got these rewards [K][M], None where the environment failed."""
    for (batch, site, name), R in rewards.items():
        folder = run / "rollouts" / batch / name
        plans = [Plan(f"1. Plan {i}", [f"Plan {i}"], ids=[1, 2, 3]) for i in range(len(R))]
        save_plans(folder, Task(name, tuple(site.split("+")), "", f"Do {name}", {}), b"", plans)
        for i, row in enumerate(R):
            for j, reward in enumerate(row):
                failure = {"kind": "site", "detail": "no answer"} if reward is None else None
                save_episode(folder, Episode(name, i, j, [], reward, failure, "", "", [], 1.0, 0))
    return run


def evaluation(run: Path, results: dict[str, list[int | None]]) -> Path:
    """results: for 'site/task', the reward in each evaluation run."""
    return write_run(run, {(f"run_{r}", name.split("/")[0], name.replace("/", "-")): [[reward]]
                           for name, row in results.items() for r, reward in enumerate(row)})


def test_doctests():
    assert doctest.testmod(analysis).failed == 0


def test_means_and_standard_errors_are_the_closed_forms(tmp_path):
    table = success_table(read_groups(evaluation(tmp_path, {
        "map/a": [1, 1, 0, 1], "map/b": [0, 1, 0, 0], "gitlab/c": [1, 0, 1, 1]})))
    gitlab, places = table.sites
    assert [row.site for row in table.rows] == ["gitlab", "map", "overall"]
    assert (gitlab.mean, places.mean) == (0.75, 0.5)
    # map, by run: 1/2, 1, 0, 1/2, so the variance is (1/4 + 1/4) / 3, and the standard error its root over sqrt(4)
    assert places.stderr == pytest.approx(math.sqrt(Fraction(1, 6)) / 2)
    by_run = [Fraction(2, 3), Fraction(2, 3), Fraction(1, 3), Fraction(2, 3)]
    mean = sum(by_run) / 4
    assert table.overall.mean == pytest.approx(float(mean))
    assert table.overall.stderr == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in by_run) / 3 / 4))
    assert (table.overall.runs, table.overall.tasks, table.overall.episodes) == (4, 3, 12)


def test_an_unscored_episode_counts_in_no_mean_and_is_shown(tmp_path):
    table = success_table(read_groups(evaluation(tmp_path, {
        "map/a": [1, None], "map/b": [0, 1], "reddit/c": [None, None]})))
    reddit = table.sites[1]
    assert (reddit.mean, reddit.stderr, reddit.low, reddit.runs, reddit.unscored) == (None, None, None, 0, 2)
    assert table.overall.mean == pytest.approx((0.5 + 1.0) / 2)      # run 0: a and b; run 1: b alone
    assert table.overall.unscored == 3
    assert "| reddit | – | – | 1 | 0 | 2 | 2 |" in markdown(table)
    assert "3 of 6" in compare_markdown({"x": table})


def test_a_single_run_has_no_standard_error_but_an_interval(tmp_path):
    row = success_table(read_groups(evaluation(tmp_path, {f"map/{i}": [i % 2] for i in range(40)}))).overall
    assert (row.mean, row.stderr) == (0.5, None)
    # The bootstrap's own standard deviation of a share of n tasks is sqrt(p (1 - p) / n).
    half = 1.96 * math.sqrt(0.25 / 40)
    assert (row.low, row.high) == (pytest.approx(0.5 - half, abs=0.03), pytest.approx(0.5 + half, abs=0.03))


def test_all_success(tmp_path):
    row = success_table(read_groups(evaluation(tmp_path, {"map/a": [1, 1], "map/b": [1, 1]}))).overall
    assert (row.mean, row.stderr, row.low, row.high) == (1.0, 0.0, 1.0, 1.0)


def test_the_bootstrap_repeats_itself_and_draws_tasks_not_episodes():
    values = np.array([[1.0, 0, 1, 1, 0, 0, 1, 0]])
    assert bootstrap_interval(values) == bootstrap_interval(values)
    # Four identical runs hold no more tasks than one: the interval must not shrink.
    assert bootstrap_interval(np.repeat(values, 4, axis=0)) == pytest.approx(bootstrap_interval(values))


def test_rewards_of_a_group_keep_their_place(tmp_path):
    group, = read_groups(write_run(tmp_path, {("0000", "map", "a"): [[1, None, 0], [0, 0, 1]]}))
    np.testing.assert_array_equal(group.rewards(), [[1, math.nan, 0], [0, 0, 1]])
    assert [plan.tokens for plan in group.plans] == [3, 3]
    assert group.episodes[1].failure == "site: no answer"


def test_a_half_written_and_damaged_run_is_read_as_far_as_it_goes(tmp_path):
    write_run(tmp_path, {("run_2", "map", "a"): [[1, 1, 0, 1]], ("run_10", "map", "b"): [[1]]})
    group = tmp_path / "rollouts" / "run_2" / "a"
    (group / "p0_e0" / "episode.json").unlink()                                 # still being played
    (group / "p0_e1" / "episode.json").write_text('{"reward": 1, "st')          # cut short
    (group / "p0_e2" / "episode.json").write_text('{"reward": 7, "steps": []}')
    (tmp_path / "rollouts" / "run_10" / "b" / "group.json").write_text("[]")
    (tmp_path / "rollouts" / "run_10" / "c").mkdir()
    groups = read_groups(tmp_path)
    assert [g.batch for g in groups] == ["run_2", "run_10", "run_10"]
    assert [e.number for e in groups[0].episodes] == [3]
    assert [e.reward for e in groups[1].episodes] == [1.0] and groups[1].task.sites == ()
    table = success_table(groups)
    assert len(table.unreadable) == 3 and any("reward is 7" in line for line in table.unreadable)
    text = markdown(table)
    assert "3 files could not be read" in text and "run_2/a/p0_e1/episode.json" in text
    with pytest.raises(FileNotFoundError, match="expected the output of"):
        read_groups(tmp_path / "nowhere")


def test_nothing_at_all_is_a_table_too(tmp_path):
    (tmp_path / "rollouts").mkdir()
    table = success_table(read_groups(tmp_path))
    assert table.sites == () and table.overall.mean is None
    assert "| overall | – |" in markdown(table)


def test_comparison_has_a_difference_and_copes_with_a_site_that_one_side_lacks(tmp_path):
    before = success_table(read_groups(evaluation(tmp_path / "a", {
        "map/a": [0, 0], "map/b": [0, 1], "reddit/c": [1, 1]})))
    after = success_table(read_groups(evaluation(tmp_path / "b", {"map/a": [1, 1], "map/b": [0, 1]})))
    assert compare_markdown({"before": before, "after": after}).splitlines() == [
        "| success % | map | reddit | overall | unscored |",
        "|---|---:|---:|---:|---:|",
        "| before | 25.0 ± 25.0 | 100.0 ± 0.0 | 50.0 ± 16.7 | 0 of 6 |",
        "| after | 75.0 ± 25.0 | – | 75.0 ± 25.0 | 0 of 4 |",
        "| difference | +50.0 ± 35.4 | – | +25.0 ± 30.0 |  |"]
    assert "difference" not in compare_markdown({"a": before, "b": after, "c": after})


def test_csv_and_json_hold_every_number(tmp_path):
    table = success_table(read_groups(evaluation(tmp_path, {"map/a": [1, 0], "a|b<i>/b": [1, None]})))
    rows = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert [float(row["mean"]) for row in rows] == [1.0, 0.5, table.overall.mean]
    assert rows[0]["stderr"] == "" and rows[0]["unscored"] == "1"
    assert json.loads(json_text(table))["overall"]["mean"] == table.overall.mean
    assert "| a\\|b&lt;i> |" in markdown(table)


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
        '{"batch": 0, "reward": 0.25}\n{"tasks": 0}\n{"batch": 1, "reward": NaN}\n{"bat')
    bare = io.BytesIO()
    learning_curve(tmp_path / "bare.jsonl", bare)
    full, bare = Image.open(tmp_path / "full.png"), Image.open(bare)
    assert full.width == bare.width == 900 and full.height > bare.height


def test_metrics_errors_name_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"batch": 0}\n{"bat\n{"batch": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)
    path.write_text('{"batch": 0}\n')
    with pytest.raises(ValueError, match="no row has"):
        learning_curve(path, tmp_path / "out.png")


def test_wilson_interval_holds_the_share_and_stays_in_bounds():
    low, high = wilson_interval(np.array([0.0, 5, 10]), np.array([10.0, 10, 10]))
    assert (low <= [0, 0.5, 1]).all() and (high >= [0, 0.5, 1]).all() and low[0] == 0 and high[2] == 1
    np.testing.assert_allclose(low, 1 - high[::-1], atol=1e-12)


def test_command_line(tmp_path, capsys):
    before = evaluation(tmp_path / "before", {"map/a": [0]})
    after = evaluation(tmp_path / "after", {"map/a": [1]})
    main([str(before), str(after)])
    assert "| difference | +100.0 | +100.0 |  |" in capsys.readouterr().out
    write_metrics(before / "metrics.jsonl", 3)
    main(["curve", str(before), str(tmp_path / "curve.png")])
    assert (tmp_path / "curve.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="no such folder"):
        main([str(tmp_path / "missing")])
