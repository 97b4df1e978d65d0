"""The pocket arena: tasks and splits, worlds that share nothing, the oracle and the idle agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter

import pytest
from samples import ROOT

from jhima.data.teacher_prompts import read_annotation
from jhima.pocket import SITES
from jhima.pocket.sites.app import WORLD_HEADER, make_app
from jhima.pocket.sites.world import World
from jhima.pocket.tasks.generate import solutions, task_list, templates
from jhima.pocket.tasks.intents import Answer
from jhima.pocket.teacher import annotate, equivalent


def test_templates_and_splits():
    kinds = templates()
    assert all(Counter(t.site for t in kinds)[site] >= 8 for site in SITES) and len(kinds) >= 40
    train, evaluation, new = (task_list(split) for split in ("train", "eval", "new"))
    assert len(train) >= 400 and len(evaluation) >= 200 and len(new) >= 100
    assert len({t["intent"] for t in train + evaluation + new}) == len(train) + len(
        evaluation
    ) + len(new)  # no instance twice
    known, evaluated, held_out = (
        {t["intent_template"] for t in split} for split in (train, evaluation, new)
    )
    assert evaluated == known and not held_out & known and len(held_out) >= 10
    assert task_list("train") == train  # seeded


def test_every_kind_of_evaluator_occurs():
    tasks = task_list("train") + task_list("eval") + task_list("new")
    assert {"+".join(t["eval"]["eval_types"]) for t in tasks} == {
        "string_match",
        "url_match",
        "program_html",
        "url_match+program_html",
        "string_match+url_match",
    }
    assert {rule for t in tasks for rule in t["eval"]["reference_answers"] or {}} == {
        "exact_match",
        "must_include",
        "must_exclude",
        "fuzzy_match",
    }
    targets = [h for t in tasks for h in t["eval"]["program_html"]]
    assert any(h["url"] == "last" for h in targets) and any(
        h["url"].startswith("func:") for h in targets
    )
    assert any(h["locator"].startswith("func:") for h in targets)


def test_plans_are_short_and_tasks_take_two_to_twelve_actions():
    for intent, solution in solutions().items():
        moves = [move for g in solution.plan for move in g.moves]
        actions = len(moves) + (
            not isinstance(moves[-1], Answer)
        )  # the final stop is an action of its own
        assert 1 <= len(solution.plan) <= 5 and 2 <= actions <= 12, intent
        assert all(g.title and g.goal and g.moves for g in solution.plan), intent


def test_a_task_file_is_what_the_command_prints():
    printed = subprocess.run(
        [sys.executable, "-m", "jhima.pocket", "tasks", "eval"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert json.loads(printed.stdout) == task_list("eval")


def test_the_teacher_writes_the_format_that_annotate_reads():
    for solution in list(solutions().values())[::20]:
        analysis, subtasks, unnecessary = read_annotation(
            annotate(solution, ["Click A", "Click B"])
        )
        assert (
            [g.title for g in subtasks] == [g.title for g in solution.plan]
            and analysis
            and unnecessary is None
        )
        _, brief, _ = read_annotation(annotate(solution, [], brief=True))
        assert len(brief) == len(subtasks) and all(
            long.title.startswith(short.title) for short, long in zip(brief, subtasks)
        )
    assert read_annotation(annotate(solution, ["Click A", "Click A"]))[2] == "Click A"


@pytest.mark.parametrize(
    "reference, said, same",
    [
        ("24 min", "It takes 24 min", True),
        ("24 min", "24", False),
        ("24 min", "24 min or 25 min", False),
        ("24 min", "", False),
        ("Emma Lopez", "lopez, emma", True),
        ("$1,200", "$1200", True),
        ("No, it is open", "it is open, no", True),
        ("", "x", False),
    ],
)
def test_the_judge_compares_words_and_numbers(reference, said, same):
    assert equivalent(reference, said) is same


def every_object(value: object, seen: dict[int, object]) -> dict[int, object]:
    """All mutable objects reachable from `value`, by identity."""
    if isinstance(value, dict | list | set) or hasattr(value, "__dict__"):
        if (
            id(value) not in seen
            and not isinstance(value, type)
            and type(value).__module__ != "_thread"
        ):
            seen[id(value)] = value
            inner = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list | set)
                else vars(value).values()
            )
            for item in inner:
                every_object(item, seen)
    return seen


def test_two_worlds_share_no_object():
    a, b = World(), World()
    for state in ("store", "forum", "forge", "atlas", "sessions"):
        mine, theirs = (every_object(getattr(world, state), {}) for world in (a, b))
        shared = [value for key, value in mine.items() if key in theirs and value]
        assert not shared, f"{state}: {shared[:3]}"


def test_requests_see_their_own_world():
    client = make_app().test_client()
    worlds = [client.post("/map/_pocket/worlds").get_json()["world"] for _ in range(2)]
    first, second = ({WORLD_HEADER: name} for name in worlds)
    at = {"environ_overrides": {"pocket.site": "map"}}
    assert client.post("/map/save", data={"place": "Zoo"}, headers=first, **at).status_code == 303
    assert b"Zoo" in client.get("/map/saved", headers=first, **at).data
    assert b"Zoo" not in client.get("/map/saved", headers=second, **at).data
    assert client.delete(f"/map/_pocket/worlds/{worlds[0]}").status_code == 204
    assert (
        client.get("/map/saved", headers=first, **at).status_code == 410
    )  # gone, not somebody else's
    assert client.delete("/map/_pocket/worlds/person").status_code == 404


def test_full_worlds_have_longer_lists_in_another_order():
    small, full = World(), World(full=True, seed=1)
    assert len(full.atlas.places) > len(small.atlas.places)
    names = list(full.atlas.places)
    assert (
        sorted(full.listing(names, "page")) == sorted(names)
        and full.listing(names, "page") != names
    )
    assert (
        full.listing(names, "page")
        == full.listing(names, "page")
        != World(full=True, seed=2).listing(names, "page")
    )


def test_what_is_typed_into_a_site_stays_text():
    client = make_app().test_client()
    at = {"environ_overrides": {"pocket.site": "map"}}
    evil = "<script>alert(1)</script>"
    client.post("/map/note/Zoo", data={"note": evil}, **at)
    shown = client.get(f"/map/place/Zoo?done={evil}", **at).data.decode()
    assert evil not in shown and shown.count("&lt;script&gt;") == 2


def test_the_oracle_solves_and_doing_nothing_does_not(tmp_path, capsys):
    """Real Chromium, real logins and evaluators: one task of each site and kind of evaluator."""
    from jhima.pocket.play.check import check

    chosen = {}
    for task in task_list("eval"):
        chosen.setdefault((task["sites"][0], "+".join(task["eval"]["eval_types"])), task)
    assert {site for site, _ in chosen} == set(SITES) and len(chosen) >= 15
    path = tmp_path / "sample.json"
    path.write_text(json.dumps([task | {"task_id": i} for i, task in enumerate(chosen.values())]))
    assert asyncio.run(check([str(path)], None, full=False, concurrency=6)) == 0
    assert f"{len(chosen)} tasks, 0 wrong" in capsys.readouterr().out
