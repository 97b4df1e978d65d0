"""Task files of WebArena and WebArena-Lite-v2, checked field by field before any browser starts.

A task file is a JSON list (or JSON lines) of WebArena's task objects. Two lists of other projects
have names and are looked for in data/ (or $JHIMA_DATA): `webarena-lite-v2`, the 154 evaluation
tasks, and `webarena-train`, the 647 of WebArena's 812 tasks that are not among WebArena-Lite's 165.
The pocket arena's lists have names too (jhima/environment.py). URLs keep the placeholders of the
file; `sites.fill` replaces them by the URLs of an arena's lease.
`python -m jhima.webarena FILE_OR_NAME` says what can be scored.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jhima.episodes import Task
from jhima.webarena.checks import (
    expect,
    expect_text,
    is_list,
    is_object,
    is_text,
    read_json,
)
from jhima.webarena.matching import OR, satisfies
from jhima.webarena.sites import AND, NAME, PLACEHOLDER, SITES, placeholders, told
from jhima.webarena.task_functions import parse_call

DATA = Path(os.environ.get("JHIMA_DATA", Path(__file__).resolve().parents[2] / "data"))

# name -> (file in data/, how to get it)
PUBLISHED = {
    "webarena-train": (
        "webarena.raw.json",
        "`pip install --no-deps webarena-verified==1.2.3` brings it and is found by itself; or "
        "save config_files/test.raw.json of github.com/web-arena-x/webarena there",
    ),
    "webarena-lite-v2": (
        "webarena_lite_v2.raw.json",
        "save test.raw.json there, from evaluation/WebArenaLiteV2 of github.com/OpenGVLab/ScaleCUA",
    ),
}

# The ids, among WebArena's 812, of WebArena-Lite's 165 evaluation tasks (Liu et al. 2024), which
# are never trained on.
_LITE_IDS = """
4 7 15 20 23 27 33 37 43 44 48 56 58 65 69 71 75 77 82 88 93 95 96 97 98 103 109 115 117 118
123 125 127 131 135 139 144 149 155 156 157 162 167 169 173 182 190 196 202 205 211 215 220
221 225 227 235 236 240 247 250 254 258 259 268 270 276 283 285 287 288 296 300 311 313 318
321 324 333 335 348 349 354 357 361 367 368 369 374 376 381 382 383 384 386 387 392 401 404
415 419 423 426 431 440 448 454 458 464 466 470 476 485 488 491 497 505 506 509 514 516 521
524 528 534 538 548 566 567 574 577 582 599 601 605 612 619 626 631 641 645 652 657 668 673
678 682 686 693 704 710 714 720 729 733 741 745 748 760 762 768 791 798 809 811
"""
LITE = frozenset(int(number) for number in _LITE_IDS.split())

EVAL_TYPES = ("string_match", "url_match", "program_html")
URL_RULES = ("EXACT", "GOLD in PRED")
RULES = ("exact_match", "must_include", "must_exclude", "fuzzy_match", "required_values")

# A placeholder or an http(s) host without user name, then a path. Hand-written paths have blanks.
_URL = re.compile(rf"(?:{PLACEHOLDER.pattern}|https?://[^\s/?#@\\]+)(?:[/?#][^\x00-\x1f\x7f]*)?")
_PLACEHOLDERS = ", ".join(f"__{site.upper()}__" for site in SITES)
_SCRIPT = "a script that starts with document. or [...document."


def needs_judge(task: Task) -> bool:
    """Whether a model has to compare texts: its evaluators read some fuzzy_match rule."""
    rules = []
    if "string_match" in task.eval["eval_types"]:
        rules.append(task.eval["reference_answers"])
    if "program_html" in task.eval["eval_types"]:
        rules += [target["required_contents"] for target in task.eval["program_html"]]
    return any("fuzzy_match" in rule for rule in rules)


def read_rows(name_or_path: str | Path) -> tuple[str, str, list]:
    """A label for messages, the prefix of the tasks' ids, and the raw task objects.

    Raises ValueError, one line that starts with the label.
    """
    name = str(name_or_path)
    path = _published(name) if name in PUBLISHED else Path(name)
    rows = read_json(path, name)
    expect(isinstance(rows, list) and rows, name, "a non-empty JSON list of tasks", rows)
    if name == "webarena-train":
        rows = [row for row in rows if not (isinstance(row, dict) and row.get("task_id") in LITE)]
        expected = "WebArena's 812 tasks, 647 of them for training"
        expect(len(rows) == 812 - len(LITE), f"{name}: {path}", expected, len(rows))
    if name in PUBLISHED:
        return name, name, rows
    # "some_tasks.raw.json" -> "some-tasks"
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.split(".")[0].lower()).strip("-")
    return name, slug or "task", rows


def _published(name: str) -> Path:
    file, instructions = PUBLISHED[name]
    path = DATA / file
    if not path.exists() and name == "webarena-train":
        package = importlib.util.find_spec("webarena_verified")  # found, but never imported
        if package and package.submodule_search_locations:
            folder = package.submodule_search_locations[0]
            path = Path(folder, "assets", "dataset", "test.raw.json")
    if not path.exists():
        raise ValueError(f"{name}: no {DATA / file}: {instructions}")
    return path


# ---- one task ----


def parse_task(row: Any, prefix: str, where: str) -> Task:
    """Checks one raw task; `where` starts every message. Raises ValueError."""
    expect(isinstance(row, dict), where, "an object", row)
    number, sites, template = row.get("task_id"), row.get("sites"), row.get("intent_template", "")
    _check_id(number, f"{where}: task_id")
    fits = is_list(sites, lambda site: isinstance(site, str) and NAME.fullmatch(site))
    expected = f"a non-empty list of {', '.join(SITES)} or names of your own"
    expect(fits, f"{where}: sites", expected, sites)
    expect_text(row.get("start_url"), f"{where}: start_url")
    for url in row["start_url"].split(AND):
        _check_url(url, f"{where}: start_url")
    expect_text(row.get("intent"), f"{where}: intent")
    expect_text(template, f"{where}: intent_template", empty=True)
    _check_eval(row.get("eval"), f"{where}: eval")
    targets = row["eval"].get("program_html") or ()
    urls = [target.get("url") for target in targets if isinstance(target, dict)]
    urls.append(row["eval"].get("reference_url"))
    for field, value in (("start_url", row["start_url"]), ("eval", urls)):
        unknown = placeholders(value) - set(SITES) - set(sites)
        expected = "placeholders of WebArena's sites or the task's own"
        expect(not unknown, f"{where}: {field}", expected, sorted(unknown))
    # Without a note WebArena compares loosely; WebArena-Lite, whose tasks name an old id, exactly.
    rule = "GOLD in PRED" if "intent_template_id" in row and "old_task_id" not in row else "EXACT"
    return Task(
        id=f"{prefix}-{number}",
        sites=tuple(sites),
        start_url=row["start_url"],
        intent=told(row["intent"], tuple(sites), row["start_url"]),
        eval=row["eval"] | {"url_note": row["eval"].get("url_note") or rule},
        template=template,
    )


def _check_id(value: Any, where: str) -> None:
    fits = type(value) is int and 0 <= value < 10**9
    if isinstance(value, str):
        fits = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value)
    expect(fits, where, "a number from 0, or a short name of letters, digits, - and _", value)


def _check_eval(entry: Any, where: str) -> None:
    """Keys that no evaluator reads (notes for people) are left alone."""
    expect(isinstance(entry, dict), where, "an object", entry)
    types = entry.get("eval_types")
    expected = f"a non-empty list of {', '.join(EVAL_TYPES)}"
    fits = is_list(types, lambda kind: kind in EVAL_TYPES)
    expect(fits, f"{where}.eval_types", expected, types)
    if "string_match" in types:
        _check_rules(entry.get("reference_answers"), f"{where}.reference_answers", page=False)
        expect_text(entry.get("string_note") or "", f"{where}.string_note", empty=True)
    if "url_match" in types:
        expect_text(entry.get("reference_url"), f"{where}.reference_url")
        for alternative in entry["reference_url"].split(OR):
            _check_url(alternative, f"{where}.reference_url")
        note = entry.get("url_note") or "EXACT"
        expect(note in URL_RULES, f"{where}.url_note", f"one of {', '.join(URL_RULES)}", note)
    if "program_html" in types:
        targets, place = entry.get("program_html"), f"{where}.program_html"
        fits = is_list(targets, lambda _target: True)
        expect(fits, place, "a non-empty list of targets", targets)
        for number, target in enumerate(targets):
            _check_target(target, f"{place}[{number}]")


def _check_target(target: Any, where: str) -> None:
    """A page to check: its URL, what to read on it, and what that must hold."""
    keys = ("url", "locator", "required_contents")
    expected = f"an object of {', '.join(keys)}, and prep_actions or not"
    fits = is_object(target, (*keys, "prep_actions")) and set(target) >= set(keys)
    expect(fits, where, expected, target)
    if target.get("prep_actions"):
        scripts = target["prep_actions"]
        expect(is_list(scripts, _is_script), f"{where}.prep_actions", _SCRIPT, scripts)
    url, locator = target["url"], target["locator"]
    expect_text(url, f"{where}.url")
    if url.startswith("func:"):
        _call(f"{where}.url", parse_call, url)
    elif url != "last":
        _check_url(url, f"{where}.url")
    expect_text(locator, f"{where}.locator", empty=True)
    if locator.startswith("func:"):
        _call(f"{where}.locator", parse_call, locator)
    elif locator.strip():
        expected = f"nothing, {_SCRIPT}, or func:"
        expect(_is_script(locator), f"{where}.locator", expected, locator)
    _check_rules(target["required_contents"], f"{where}.required_contents", page=True)


def _is_script(text: Any) -> bool:
    """Such a script runs inside the page, as upstream's does: it can reach nothing else."""
    return is_text(text) and text.startswith(("document.", "[...document."))


def _check_rules(rules: Any, where: str, page: bool) -> None:
    """What an answer, or a part of a page, must hold: rule name -> reference."""
    expected = f"a non-empty object with some of {', '.join(RULES)}"
    expect(is_object(rules, RULES) and rules, where, expected, rules)
    for rule, reference in rules.items():
        place = f"{where}.{rule}"
        if rule == "exact_match":
            # A field of a page may have to be empty, an answer never.
            expect_text(reference, place, empty=page)
            continue
        if is_text(reference):  # a bare text is a list of one
            reference = [reference]
        expect(is_list(reference, is_text), place, "a non-empty list of texts", reference)
        for alternative in OR.join(reference).split(OR):
            expect_text(alternative, place)
            if rule == "required_values":
                _call(place, satisfies, "0", alternative)


def _check_url(url: Any, where: str) -> None:
    expect_text(url, where)
    expected = f"an http(s) URL or a path after one of {_PLACEHOLDERS}"
    expect(_URL.fullmatch(url) and " |" not in url, where, expected, url)
    _call(where, lambda: urlsplit(url).port)


def _call(where: str, check: Callable[..., object], *arguments: str) -> None:
    """Calls a check that raises ValueError itself, and puts `where` before its message."""
    try:
        check(*arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
