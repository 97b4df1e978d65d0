"""What to do: task files of WebArena and WebArena-Lite-v2, checked field by field before any browser starts.

    python -m jhima.environment FILE_OR_NAME     a table of sites and evaluators; exit code 1 if a task cannot be scored

A task file is a JSON list (or JSON lines) of WebArena's task objects. Some lists have names: `pocket`, the pocket
arena's training tasks, and its halves `pocket-demos` and `pocket-rl`; `pocket-eval`, new instances of their templates,
and `pocket-new`, templates that they have not; `webarena-lite-v2`, the 154 evaluation tasks; `webarena-train`, the 647 of
WebArena's 812 that are not among WebArena-Lite's 165. The last two are files of other projects, looked for in data/ (or $JHIMA_DATA). URLs stay as the file has them, with their placeholders;
an arena's lease says what to put there (`fill`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jhima.episodes import Task
from jhima.webarena.matching import OR, satisfies
from jhima.webarena.sites import AND, PLACEHOLDER, SITES
from jhima.webarena.task_functions import parse_call

DATA = Path(os.environ.get("JHIMA_DATA", Path(__file__).resolve().parents[2] / "data"))
# name -> (file in data/, how to get it)
PUBLISHED = {
    "webarena-train": (
        "webarena.raw.json",
        (
            "`pip install --no-deps webarena-verified==1.2.3` brings it and is found by itself; or save "
            "config_files/test.raw.json of github.com/web-arena-x/webarena there"
        ),
    ),
    "webarena-lite-v2": (
        "webarena_lite_v2.raw.json",
        (
            "save test.raw.json there, from evaluation/WebArenaLiteV2 of github.com/OpenGVLab/ScaleCUA"
        ),
    ),
}

# The ids, in WebArena's 812, of WebArena-Lite's 165 evaluation tasks (Liu et al. 2024): what is not trained on.
LITE = frozenset(
    map(
        int,
        """
    4 7 15 20 23 27 33 37 43 44 48 56 58 65 69 71 75 77 82 88 93 95 96 97 98 103 109 115 117 118 123 125 127 131 135
    139 144 149 155 156 157 162 167 169 173 182 190 196 202 205 211 215 220 221 225 227 235 236 240 247 250 254 258
    259 268 270 276 283 285 287 288 296 300 311 313 318 321 324 333 335 348 349 354 357 361 367 368 369 374 376 381
    382 383 384 386 387 392 401 404 415 419 423 426 431 440 448 454 458 464 466 470 476 485 488 491 497 505 506 509
    514 516 521 524 528 534 538 548 566 567 574 577 582 599 601 605 612 619 626 631 641 645 652 657 668 673 678 682
    686 693 704 710 714 720 729 733 741 745 748 760 762 768 791 798 809 811
    """.split(),
    )
)


EVAL_TYPES = ("string_match", "url_match", "program_html")


URL_RULES = ("EXACT", "GOLD in PRED")


RULES = ("exact_match", "must_include", "must_exclude", "fuzzy_match", "required_values")

# Bounds against a broken or hostile file: bytes, characters, list items. WebArena-Lite-v2 needs 137 kB, 457 and 12.
MAX_FILE, MAX_TEXT, MAX_ITEMS = 64_000_000, 5_000, 100
# A placeholder or an http(s) host without user name, then a path. Blanks occur in hand-written paths.
_URL = re.compile(rf"(?:{PLACEHOLDER.pattern}|https?://[^\s/?#@\\]+)(?:[/?#][^\x00-\x1f\x7f]*)?")


_SHOW = reprlib.Repr()  # of a bad value in a message: one line, bounded


_SHOW.maxstring = 80


_URL_EXPECTED = (
    f"an http(s) URL or a path after one of {', '.join(f'__{site.upper()}__' for site in SITES)}"
)


def needs_judge(task: Task) -> bool:
    """Whether a model has to compare texts: any fuzzy_match in the rules that its evaluators read."""
    rules = [task.eval["reference_answers"]] if "string_match" in task.eval["eval_types"] else []
    if "program_html" in task.eval["eval_types"]:
        rules += [target["required_contents"] for target in task.eval["program_html"]]
    return any("fuzzy_match" in rule for rule in rules)


def read_rows(name_or_path: str | Path) -> tuple[str, str, list]:
    """A label for messages, the prefix of the tasks' ids, and the raw task objects."""
    name = str(name_or_path)
    path = _published(name) if name in PUBLISHED else Path(name)
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(
                f"{name}: expected at most {MAX_FILE} bytes, got {path.stat().st_size}"
            )
        content = path.read_text("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{name}: no such file") from None
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}: expected UTF-8, got the byte {error.object[error.start]:#x}"
        ) from None
    rows = _json_lines(content, name) if path.suffix == ".jsonl" else _json(content, name)
    _expect(isinstance(rows, list) and rows, name, "a non-empty JSON list of tasks", rows)
    if name == "webarena-train":
        rows = [row for row in rows if not (isinstance(row, dict) and row.get("task_id") in LITE)]
        _expect(
            len(rows) == 812 - len(LITE),
            f"{name}: {path}",
            "WebArena's 812 tasks, 647 of them for training",
            len(rows),
        )
    # "webarena_lite_v2.raw.json" -> "webarena-lite-v2"
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.split(".")[0].lower()).strip("-") or "task"
    return name, name if name in PUBLISHED else slug, rows


def _published(name: str) -> Path:
    file, how = PUBLISHED[name]
    path = DATA / file
    package = (
        importlib.util.find_spec("webarena_verified") if name == "webarena-train" else None
    )  # never imported
    if not path.exists() and package and package.submodule_search_locations:
        path = Path(package.submodule_search_locations[0], "assets", "dataset", "test.raw.json")
    if not path.exists():
        raise ValueError(f"{name}: no {DATA / file}: {how}")
    return path


def _json_lines(content: str, label: str) -> list:
    lines = enumerate(content.split("\n"), 1)
    return [_json(line, f"{label}: line {number}") for number, line in lines if line.strip()]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


# ---- one task ----


def parse_task(row: Any, prefix: str, where: str) -> Task:
    """Checks one raw task; `where` starts every message. Raises ValueError."""
    _expect(isinstance(row, dict), where, "an object", row)
    number, sites, template = row.get("task_id"), row.get("sites"), row.get("intent_template", "")
    _expect(
        type(number) is int
        and 0 <= number < 10**9
        or isinstance(number, str)
        and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", number),
        f"{where}: task_id",
        "a number from 0, or a short name of letters, digits, - and _",
        number,
    )
    _list(
        sites,
        f"{where}: sites",
        f"a non-empty list of {', '.join(SITES)}",
        lambda site: site in SITES,
    )
    _text(row.get("start_url"), f"{where}: start_url")
    for url in row["start_url"].split(AND):
        _url(url, f"{where}: start_url")
    _text(row.get("intent"), f"{where}: intent")
    _text(template, f"{where}: intent_template", empty=True)
    _check_eval(row.get("eval"), f"{where}: eval")
    # Without a note WebArena compares loosely, WebArena-Lite (whose tasks name their old id) exactly.
    rule = "GOLD in PRED" if "intent_template_id" in row and "old_task_id" not in row else "EXACT"
    evaluators = row["eval"] | {"url_note": row["eval"].get("url_note") or rule}
    return Task(
        f"{prefix}-{number}", tuple(sites), row["start_url"], row["intent"], evaluators, template
    )


def _check_eval(entry: Any, where: str) -> None:
    """Keys that no evaluator reads (notes for people) are left alone."""
    _expect(isinstance(entry, dict), where, "an object", entry)
    types = entry.get("eval_types")
    _list(
        types,
        f"{where}.eval_types",
        f"a non-empty list of {', '.join(EVAL_TYPES)}",
        lambda kind: kind in EVAL_TYPES,
    )
    if "string_match" in types:
        _check_rules(entry.get("reference_answers"), f"{where}.reference_answers", page=False)
        _text(entry.get("string_note") or "", f"{where}.string_note", empty=True)
    if "url_match" in types:
        _text(entry.get("reference_url"), f"{where}.reference_url")
        for alternative in entry["reference_url"].split(OR):
            _url(alternative, f"{where}.reference_url")
        note = entry.get("url_note") or "EXACT"
        _expect(note in URL_RULES, f"{where}.url_note", f"one of {', '.join(URL_RULES)}", note)
    if "program_html" in types:
        targets = entry.get("program_html")
        _list(targets, f"{where}.program_html", "a non-empty list of targets", lambda target: True)
        for number, target in enumerate(targets):
            _check_target(target, f"{where}.program_html[{number}]")


def _check_target(target: Any, where: str) -> None:
    keys = ("url", "locator", "required_contents")
    _expect(
        isinstance(target, dict) and set(target) - {"prep_actions"} == set(keys),
        where,
        f"an object of {', '.join(keys)}, and prep_actions or not",
        target,
    )
    if target.get("prep_actions"):
        _list(target["prep_actions"], f"{where}.prep_actions", _SCRIPT, _is_script)
    url, locator = target["url"], target["locator"]
    _text(url, f"{where}.url")
    if url.startswith("func:"):
        _located(f"{where}.url", parse_call, url)
    elif url != "last":
        _url(url, f"{where}.url")
    _text(locator, f"{where}.locator", empty=True)
    if locator.startswith("func:"):
        _located(f"{where}.locator", parse_call, locator)
    else:
        _expect(
            not locator.strip() or _is_script(locator),
            f"{where}.locator",
            f"nothing, {_SCRIPT}, or func:",
            locator,
        )
    _check_rules(target["required_contents"], f"{where}.required_contents", page=True)


_SCRIPT = "a script that starts with document. or [...document."


def _is_script(text: Any) -> bool:
    """Such a script runs inside the page, as upstream's does; what it could reach is that page."""
    return (
        isinstance(text, str)
        and len(text) <= MAX_TEXT
        and text.startswith(("document.", "[...document."))
    )


def _check_rules(rules: Any, where: str, page: bool) -> None:
    """What an answer, or a part of a page, must hold: rule name -> reference."""
    _expect(
        isinstance(rules, dict) and rules and all(rule in RULES for rule in rules),
        where,
        f"a non-empty object with some of {', '.join(RULES)}",
        rules,
    )
    for rule, reference in rules.items():
        place = f"{where}.{rule}"
        if rule == "exact_match" or rule == "fuzzy_match" and reference == "N/A":
            _text(
                reference, place, empty=page
            )  # a page's field may have to be empty, an answer never is
            continue
        _list(reference, place, "a non-empty list of texts", lambda item: isinstance(item, str))
        for alternative in OR.join(reference).split(OR):
            _text(alternative, place)
            if rule == "required_values":
                _located(place, satisfies, "0", alternative)


def _located(where: str, check: Callable, *arguments: str) -> None:
    """Puts `where` before the message of a check that raises ValueError."""
    try:
        check(*arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _url(url: Any, where: str) -> None:
    _text(url, where)
    _expect(_URL.fullmatch(url) and " |" not in url, where, _URL_EXPECTED, url)
    _located(where, lambda text: urlsplit(text).port, url)


def _text(value: Any, where: str, empty: bool = False) -> None:
    _expect(
        isinstance(value, str)
        and len(value) <= MAX_TEXT
        and (empty or value.strip())
        and not re.search(r"[\ud800-\udfff]", value),
        where,  # half a character, which JSON can spell
        f"{'a' if empty else 'a non-empty'} text of at most {MAX_TEXT} characters",
        value,
    )


def _list(value: Any, where: str, expected: str, fits: Callable[[Any], bool]) -> None:
    _expect(
        isinstance(value, list) and 0 < len(value) <= MAX_ITEMS and all(map(fits, value)),
        where,
        expected,
        value,
    )


def _expect(holds: object, where: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {expected}, got {_SHOW.repr(value)}")
