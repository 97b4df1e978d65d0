"""Run directories read back: half-written, damaged, and with tasks that never began."""

import json
import math

import numpy as np
import pytest
from run_dirs import evaluation, write_run

from jhima.episodes import Task
from jhima.results.run_reader import PLANNED, read_groups, write_planned
from jhima.run_directory import read_args


def test_rewards_of_a_group_keep_their_place(tmp_path):
    (group,) = read_groups(write_run(tmp_path, {("0000", "map", "a"): [[1, None, 0], [0, 0, 1]]}))
    np.testing.assert_array_equal(group.rewards(), [[1, math.nan, 0], [0, 0, 1]])
    assert [plan.ids for plan in group.plans] == [[1, 2, 3]] * 2
    assert group.episodes[1].failure == "site: no answer"


def test_a_half_written_and_damaged_run_is_read_as_far_as_it_goes(tmp_path):
    write_run(tmp_path, {("run_2", "map", "a"): [[1, 1, 0, 1]], ("run_10", "map", "b"): [[1]]})
    group = tmp_path / "rollouts" / "run_2" / "a"
    (group / "p0_e0" / "episode.json").unlink()  # still being played
    (group / "p0_e1" / "episode.json").write_text('{"reward": 1, "st')  # cut short
    (group / "p0_e2" / "episode.json").write_text('{"reward": 7, "steps": []}')
    (tmp_path / "rollouts" / "run_10" / "b" / "group.json").write_text("[]")
    (tmp_path / "rollouts" / "run_10" / "c").mkdir()
    groups = read_groups(tmp_path)
    assert [g.batch for g in groups] == ["run_2", "run_10", "run_10"]
    assert [e.number for e in groups[0].episodes] == [3]
    assert [e.reward for e in groups[1].episodes] == [1.0] and groups[1].task.sites == ()
    complaints = [line for group in groups for line in group.unreadable]
    assert len(complaints) == 3 and any("reward is 7" in line for line in complaints)
    assert any("run_2/a/p0_e1/episode.json" in line for line in complaints)
    with pytest.raises(FileNotFoundError, match="expected the output of"):
        read_groups(tmp_path / "nowhere")


def test_what_was_planned_and_never_began_is_a_group_without_episodes(tmp_path):
    write_run(tmp_path, {("run_0", "map", "a"): [[1]]})
    tasks = [Task(name, ("map",), "", f"Do {name}", {}) for name in ("a", "b")]
    (tmp_path / "rollouts" / "run_1" / "b").mkdir(parents=True)  # begun: no plan yet
    write_planned(tmp_path, 2, tasks)
    groups = read_groups(tmp_path)
    assert [(g.batch, g.task.id, len(g.episodes)) for g in groups] == [
        ("run_0", "a", 1),
        ("run_0", "b", 0),
        ("run_1", "a", 0),
        ("run_1", "b", 0),
    ]
    assert all(g.task.sites == ("map",) for g in groups)
    for damage in (
        "{",
        "[]",
        '{"runs": "2", "tasks": []}',
        '{"runs": 2, "tasks": [{"id": "../../x"}]}',
    ):
        (tmp_path / PLANNED).write_text(damage)
        assert len(read_groups(tmp_path)) == 2


def test_arguments_are_read_or_empty(tmp_path):
    assert read_args(tmp_path) == {}
    (tmp_path / "args.json").write_text("[1]")
    assert read_args(tmp_path) == {}
    (tmp_path / "args.json").write_text(json.dumps({"K": 3}))
    assert read_args(tmp_path) == {"K": 3}


@pytest.mark.parametrize("group", ["without plans", "missing"])
def test_a_finished_episode_counts_whatever_became_of_its_plans(tmp_path, group):
    run = evaluation(tmp_path, {"map/a": [1]})
    write_planned(run, 1, [Task("map-a", ("map",), "", "Do it", {})])
    path = run / "rollouts/run_0/map-a/group.json"
    if group == "missing":
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"plans": []}))
    (record,) = read_groups(run)
    assert [e.reward for e in record.episodes] == [1.0] and record.task.sites == ("map",)
