"""Task files: every field is checked when it is read, in one line that names file, task and
field.
"""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jhima.webarena.task_files
from jhima.environment import load_tasks
from jhima.webarena.sites import AND, fill
from jhima.webarena.task_files import LITE, needs_judge
from jhima.webarena.task_functions import parse_call

ROOT = Path(__file__).parents[2]
URLS = {
    "shopping": "http://h:1",
    "shopping_admin": "http://h:2/admin/",
    "reddit": "http://h:3",
    "gitlab": "http://h:4",
    "map": "http://h:5",
}

TASK = {
    "task_id": 3,
    "sites": ["shopping"],
    "start_url": "__SHOPPING__",
    "intent": "Buy a mug",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"must_include": ["5 |OR| five"]},
        "reference_url": "__SHOPPING__/a |OR| __SHOPPING__/b?c=d e",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "func:shopping_get_latest_order_url()",
                "locator": "document.body.innerText",
                "required_contents": {"exact_match": "", "required_values": [">= 3"]},
            }
        ],
    },
}


def write(tmp_path: Path, *tasks: dict) -> Path:
    path = tmp_path / "some_tasks.raw.json"
    path.write_text(json.dumps(tasks))
    return path


def changed(place: str, value: object) -> dict:
    """TASK with one field replaced; `place` is a path such as eval.program_html.0.url."""
    task = copy.deepcopy(TASK)
    *way, last = place.split(".")
    holder = task
    for key in way:
        holder = holder[int(key) if key.isdigit() else key]
    holder[last] = value
    return task


def test_a_task_as_loaded(tmp_path):
    (task,) = load_tasks(write(tmp_path, TASK | {"intent_template": "shop.buy", "old_task_id": 7}))
    assert (task.id, task.sites, task.start_url, task.intent, task.template) == (
        "some-tasks-3",
        ("shopping",),
        "__SHOPPING__",
        "Buy a mug",
        "shop.buy",
    )
    assert task.eval == TASK["eval"]
    assert not needs_judge(task)


def test_json_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(TASK | {"task_id": n}) + "\n\n" for n in (1, "two")))
    assert [task.id for task in load_tasks(path)] == ["t-1", "t-two"]
    path.write_text(json.dumps(TASK) + "\n{")
    with pytest.raises(ValueError, match=r"t\.jsonl: line 2: not JSON"):
        load_tasks(path)


def test_fill_leaves_other_text_alone():
    assert fill("__SHOPPING_ADMIN__/../x.html", URLS) == "http://h:2/admin/../x.html"
    assert fill({"a": ["__SHOPPING__", 1, None]}, URLS) == {"a": ["http://h:1", 1, None]}
    assert fill("__last_url__ __PAGE__", URLS) == "__last_url__ __PAGE__"
    with pytest.raises(ValueError, match="no URL for map: this arena serves shopping"):
        fill("__MAP__/x", {"shopping": "http://h"})


HOSTILE = [
    ("task_id", -1, "task_id: expected"),
    ("task_id", True, "task_id: expected"),
    ("task_id", "../x", "task_id: "),
    ("sites", [], "sites: expected a non-empty list of shopping, "),
    ("sites", ["Home page"], r"got \['Home page'\]"),
    ("sites", [{}], "sites: expected"),
    ("sites", "shopping", "sites: expected"),
    (
        "start_url",
        "javascript:alert(1)",
        r"start_url: expected an http\(s\) URL or a path after one of __SHOPPING__",
    ),
    ("start_url", "file:///etc/passwd", "start_url: expected"),
    ("start_url", "__HOMEPAGE__/x", "start_url: expected"),
    ("start_url", "__SHOPPING__.evil.example/", "start_url: expected"),
    ("start_url", "http://h:123456/", "url: Port"),
    ("start_url", "http://user@evil.example/", "start_url: expected"),
    ("start_url", "http://h/\n", "url: expected"),
    ("start_url", "__MAP__ |AND| about:blank", "start_url: expected"),
    ("start_url", None, "start_url: expected"),
    ("intent", "", "intent: expected a non-empty text"),
    ("intent", "x" * 6000, "at most 5000 characters"),
    ("intent", "\ud800", "intent: expected"),
    ("intent_template", 3, "intent_template: expected a text"),
    ("eval", [], "eval: expected an object"),
    (
        "eval.eval_types",
        [],
        "eval.eval_types: expected a non-empty list of string_match, url_match, program_html",
    ),
    ("eval.eval_types", ["page_image_query"], r"eval_types: .* got \['page_image_query'\]"),
    (
        "eval.reference_answers",
        None,
        "reference_answers: expected a non-empty object with some of exact_match",
    ),
    ("eval.reference_answers", {"one_of": ["x"]}, "reference_answers: expected"),
    (
        "eval.reference_answers",
        {"must_include": 5},
        "must_include: expected a non-empty list of texts",
    ),
    ("eval.reference_answers", {"must_include": [""]}, "must_include: expected a non-empty text"),
    ("eval.reference_answers", {"must_include": ["x"] * 101}, "must_include: expected"),
    ("eval.reference_answers", {"exact_match": ""}, "exact_match: expected a non-empty text"),
    (
        "eval.reference_answers",
        {"fuzzy_match": {}},
        "fuzzy_match: expected a non-empty list of texts",
    ),
    (
        "eval.reference_answers",
        {"required_values": ["> x"]},
        "required_values: expected an inequality such as",
    ),
    ("eval.reference_url", "", "reference_url: expected"),
    ("eval.reference_url", "/a", "reference_url: expected"),
    ("eval.url_note", "contains", "url_note: expected one of EXACT, GOLD in PRED, got 'contains'"),
    ("eval.program_html", [], "program_html: expected a non-empty list of targets"),
    (
        "eval.program_html",
        [{"url": "last"}],
        r"program_html\[0\]: expected an object of url, locator, ",
    ),
    ("eval.program_html.0.url", "about:blank", r"program_html\[0\].url: expected"),
    (
        "eval.program_html.0.url",
        "func:__import__('os').system('x')",
        r"\.url: expected one function call",
    ),
    (
        "eval.program_html.0.locator",
        "window.open()",
        r"\.locator: expected nothing, a script that starts with",
    ),
    (
        "eval.program_html.0.locator",
        "func:open('x')",
        r"\.locator: expected a function of jhima/webarena/task_functions.py, ",
    ),
    ("eval.program_html.0.required_contents", {}, r"required_contents: expected"),
    (
        "eval.program_html.0.prep_actions",
        ["fetch('/x')"],
        r"prep_actions: expected a script that starts with document",
    ),
]


@pytest.mark.parametrize("place, value, message", HOSTILE)
def test_a_hostile_field_is_one_clear_line(tmp_path, place, value, message):
    with pytest.raises(ValueError, match=message) as error:
        load_tasks(write(tmp_path, TASK | {"task_id": 0}, changed(place, value)))
    assert str(error.value).startswith(f"{tmp_path}/some_tasks.raw.json: task 1: ")
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not JSON"),
        (b"{}", "expected a non-empty JSON list"),
        (b"[]", "non-empty"),
        (b"[" * 100_000, "not JSON"),
        ('["\u4e2d"]'.encode("gbk"), "expected UTF-8"),
        (b"[3]", "task 0: expected an object, got 3"),
        (json.dumps([TASK, TASK]).encode(), "task_id: expected each one once, got f-3 again"),
    ],
)
def test_a_hostile_file_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "f.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_tasks(path)
    assert "\n" not in str(error.value)


def test_the_pocket_lists_go_through_the_same_checks():
    train, evaluation = load_tasks("pocket"), load_tasks("pocket-eval")
    assert train[0].id.startswith("pocket-train-") and evaluation[0].id.startswith("pocket-eval-")
    assert not {task.intent for task in train} & {task.intent for task in evaluation}
    assert all(task.template for task in train)
    assert load_tasks("pocket-demos") + load_tasks("pocket-rl") == train


def test_names_that_are_no_file(tmp_path):
    with pytest.raises(
        ValueError,
        match="no such file; the names are pocket, pocket-demos, pocket-rl, pocket-eval, "
        "pocket-new, "
        "webarena-train, webarena-lite-v2",
    ):
        load_tasks(tmp_path / "none.json")
    with pytest.raises(ValueError, match="cannot be read"):
        load_tasks(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "func:",
        "func:reddit_get_post_url",
        "func:reddit_get_post_url()",
        "func:reddit_get_post_url(1)",
        "func:reddit_get_post_url(__page__)",
        "func:reddit_get_post_url('a', 'b')",
        "func:reddit_get_post_url(url='a')",
        "func:reddit_get_post_url(*['a'])",
        "func:reddit_get_post_url('a' + 'b')",
        "func:reddit_get_post_url(f'{1}')",
        "func:reddit_get_post_url(open('x').read())",
        "func:gitlab_get_project_memeber_role('__page__', 'x')",
        "func:x.reddit_get_post_url('a')",
        "func:reddit_get_post_url('a'); 1",
        "func:" + "(" * 300,
        "func:\0",
    ],
)
def test_only_a_plain_call_of_a_known_helper_is_read(text):
    with pytest.raises(ValueError, match="expected"):
        parse_call(text)


def run_cli(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "jhima.webarena", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_the_command_names_what_cannot_be_scored(tmp_path):
    path = write(
        tmp_path,
        TASK,
        changed("task_id", 4) | {"eval": {"eval_types": ["page_image_query"]}},
        {"task_id": 9},
    )
    done = run_cli(path)
    assert done.returncode == 1
    assert "3 tasks, 1 can be scored (0 need the LLM judge, 1 change a site's state)" in done.stdout
    assert [line.split(": expected")[0] for line in done.stderr.splitlines()] == [
        f"{path}: task 1: eval.eval_types",
        f"{path}: task 2: sites",
    ]


def test_what_changes_a_site_and_how_loosely_urls_match_without_a_note(tmp_path):
    page, url = (
        [{"url": "last", "locator": "", "required_contents": {"must_include": ["x"]}}],
        "__GITLAB__/a",
    )
    rows = [
        {
            "sites": ["map"],
            "eval": {"eval_types": ["program_html"], "program_html": page},
        },  # keeps no state
        {
            "sites": ["map", "reddit"],
            "eval": {"eval_types": ["program_html"], "program_html": page},
        },
        {
            "sites": ["gitlab"],
            "eval": {"eval_types": ["url_match"], "reference_url": url},
            "intent_template_id": 1,
        },
        {
            "sites": ["gitlab"],
            "eval": {"eval_types": ["url_match"], "reference_url": url},
            "old_task_id": 1,
            "intent_template_id": 1,
        },
        {"sites": ["gitlab"], "eval": {"eval_types": ["url_match"], "reference_url": url}},
    ]
    rows = [
        {"task_id": n, "start_url": "__MAP__ |AND| __GITLAB__", "intent": "x", **row}
        for n, row in enumerate(rows)
    ]
    tasks = load_tasks(write(tmp_path, *rows))
    assert [task.changes for task in tasks] == [False, True, False, False, False]
    assert [task.eval["url_note"] for task in tasks[2:]] == [
        "GOLD in PRED",
        "EXACT",
        "EXACT",
    ]  # WebArena, Lite, ours
    assert fill(tasks[0].start_url, URLS).split(AND) == ["http://h:5", "http://h:4"]


def test_published_lists_say_where_to_get_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(jhima.webarena.task_files, "DATA", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        ValueError,
        match=r"^webarena-train: no .*webarena\.raw\.json: `pip install --no-deps webarena-ver",
    ):
        load_tasks("webarena-train")
    with pytest.raises(
        ValueError,
        match=r"^webarena-lite-v2: no .*webarena_lite_v2\.raw\.json: save test\.raw\.json "
        r".*ScaleCUA",
    ):
        load_tasks("webarena-lite-v2")
    rows = [TASK | {"task_id": n} for n in range(812)]
    (tmp_path / "webarena.raw.json").write_text(json.dumps(rows))
    tasks = load_tasks("webarena-train")
    assert len(tasks) == 647 and not {int(task.id.rpartition("-")[2]) for task in tasks} & LITE
    (tmp_path / "webarena.raw.json").write_text(json.dumps(rows[1:]))
    with pytest.raises(
        ValueError,
        match="webarena.raw.json: expected WebArena's 812 tasks, 647 of them for training, got 646",
    ):
        load_tasks("webarena-train")


def test_webarenas_tasks_are_found_in_the_package(tmp_path, monkeypatch):
    """webarena-verified carries the file; it is never imported."""
    package = tmp_path / "webarena_verified"
    (package / "assets" / "dataset").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "assets" / "dataset" / "test.raw.json").write_text(
        json.dumps([TASK | {"task_id": n} for n in range(812)])
    )
    monkeypatch.setattr(jhima.webarena.task_files, "DATA", tmp_path / "none")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(load_tasks("webarena-train")) == 647


def published(name: str) -> list:
    try:
        return load_tasks(name)
    except ValueError as error:
        pytest.skip(str(error))


def test_all_of_webarena_lite_v2_can_be_scored():
    tasks = published("webarena-lite-v2")
    assert len(tasks) == 154 and tasks[3].id == "webarena-lite-v2-3"
    assert sum(map(needs_judge, tasks)) == 43 and sum(task.changes for task in tasks) == 57
    for task in tasks:
        assert "__S" not in json.dumps(fill([task.start_url, task.eval], URLS))


def test_all_of_webarenas_training_tasks_can_be_scored():
    tasks = published("webarena-train")
    assert len(tasks) == 647 and sum(task.changes for task in tasks) == 320
    assert sum("wikipedia" in task.sites for task in tasks) == 19
