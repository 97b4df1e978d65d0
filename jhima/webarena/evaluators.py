"""Did it work: the terminal reward R in {0, 1}, by WebArena's three evaluators and an LLM judge.

`score` multiplies every rule of a task; the verdict keeps each rule with its reason. A site or browser that fails
raises EnvironmentFailure, and a judge that gives no verdict leaves the episode without a reward, to be had later
(evaluate.py --rescore): neither says anything about the agent, so neither is ever a 0.

How it differs from WebArena-Lite-v2's own evaluators (each point is a test in tests/webarena/test_evaluators.py):
1. must_exclude excludes; upstream's returns 1 when the text is present.
2. must_include on an answer holds whole words and numbers, so "1" is not in "11" nor in "1.5", but "0" is "$0.00".
3. Answers lose outer blanks and one final full stop: " Yes." is "Yes".
4. URLs are compared by host, path and query; upstream compares raw text, where the order of a query decides and
   /issues/8 is found in /issues/80.
5. The agent's own page is read before anything else is opened; pages to check are opened beside it.
6. A page's text is searched both as a person sees it and as HTML; upstream searches escaped HTML only.
7. `func:` targets work (jhima/webarena/task_functions.py), and nothing from a task file runs as Python.
8. A judge's reply without a verdict is asked for again; upstream counts it as wrong.
9. A page to check that shows a login form is opened again after logging in.
Published numbers depend on 2 and 4: `published` (evaluate.py --published-rules) takes upstream's rules there. A list
of fuzzy_match is one reference, judged once, as in WebArena-Lite; WebArena judges its items one by one, which asks for
the same (the judge wants all of a reference) at more cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from jhima.browser.lease import Lease
from jhima.browser.session import Session
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure, within
from jhima.webarena.judge import MAX_JUDGED, Judge, _short, ask_judge
from jhima.webarena.login import log_in, login_shown
from jhima.webarena.matching import (
    OR,
    has_text,
    has_words,
    published_url_match,
    same_answer,
    same_text,
    satisfies,
    url_match,
)
from jhima.webarena.sites import fill
from jhima.webarena.task_functions import call_helper

ANSWER, URL, PAGE = "string_match", "url_match", "program_html"


MAX_ANSWER = 10_000  # characters of an answer that are read


MAX_PAGE = 2_000_000  # characters of a page that are read


PAUSE = 1.0  # seconds before a site that failed is asked once more


QUIET = (
    3.0  # seconds that a page opened for scoring may take to fall quiet; upstream sleeps as long
)


@dataclass(frozen=True)
class Check:
    """One evaluator rule: what it demanded, whether that held (None: the judge did not say), and what was found.

    asked: what a judge was asked, as Judge.equivalent takes it, with the judge's name and its reply ("" for none).
    """

    kind: str
    what: str
    passed: bool | None
    reason: str
    asked: dict[str, str] | None = None


@dataclass(frozen=True)
class Verdict:
    """What the checks of one episode come to."""

    checks: tuple[Check, ...]

    @property
    def reward(self) -> int | None:
        """R_ij, the product of the checks: None where one has no verdict, but a 0 whatever a judge may yet say."""
        passed = [check.passed for check in self.checks]
        return 0 if False in passed else None if None in passed else 1

    @property
    def failure(self) -> dict[str, str] | None:
        """Why there is no reward, as an episode stores it; None where there is one."""
        silent = [check.reason for check in self.checks if check.passed is None]
        return {"kind": "judge", "detail": silent[0]} if self.reward is None else None


async def score(
    task: Task,
    lease: Lease,
    session: Session,
    answer: str,
    judge: Judge | None,
    published: bool = False,
) -> Verdict:
    """Scores one finished episode on the page where it ended; `answer` is "" where the agent gave none.

    What reads the agent's page comes first (the URL, then "last" targets); other pages are opened in a page of their
    own. Every wait is bounded by `session.operation` seconds. Raises EnvironmentFailure; never a 0 for a failure.
    `published`: must_include and URLs by upstream's rules.
    """
    last_url, seconds, ask = session.page.url, session.operation, _asker(task, judge)
    checks = check_url(task, lease.urls, last_url, published)
    targets = fill(task.eval["program_html"], lease.urls) if PAGE in task.eval["eval_types"] else []
    for target in targets:
        if target["url"] == "last":
            texts, nothing = await _read(session.page, target, lease, last_url, seconds)
            checks += await _check(
                PAGE, _place(target), target["required_contents"], texts, nothing, ask
            )
    if others := [target for target in targets if target["url"] != "last"]:
        checks += await _check_pages(others, lease, session, last_url, ask)
    checks += await check_answer(task, lease.urls, answer, judge, published)
    return Verdict(tuple(checks))


def check_url(task: Task, urls: dict[str, str], url: str, published: bool) -> list[Check]:
    """url_match of an episode that ended at `url`, on the sites at `urls`; [] where the task has none."""
    if URL not in task.eval["eval_types"]:
        return []
    references = fill(task.eval["reference_url"], urls)
    passed = (published_url_match if published else url_match)(
        url, references, task.eval.get("url_note") or "EXACT"
    )
    return [Check(URL, _short(references), passed, f"ended at {_short(url)}")]


async def check_answer(
    task: Task, urls: dict[str, str], answer: str, judge: Judge | None, published: bool
) -> list[Check]:
    """string_match of an episode's answer; [] where the task has none."""
    if ANSWER not in task.eval["eval_types"]:
        return []
    rules = fill(task.eval["reference_answers"], urls)
    answers = (answer[:MAX_ANSWER],) if answer.strip() else ()
    has = has_text if published else has_words
    return await _check(ANSWER, "answer", rules, answers, "no answer", _asker(task, judge), has)


def _asker(task: Task, judge: Judge | None) -> Ask:
    return partial(_fuzzy, judge, task.intent, task.eval.get("string_note") or "")


# ---- rules on an answer or on a part of a page ----

# text, reference -> passed, reason, asked: the last three fields of a Check
Ask = Callable[
    [str, "list[str] | str"], Awaitable["tuple[bool | None, str, dict[str, str] | None]"]
]


async def _check(
    kind: str,
    place: str,
    rules: dict,
    texts: tuple[str, ...],
    nothing: str,
    ask: Ask,
    has: Callable[[str, str], bool] = has_text,
) -> list[Check]:
    """One check for each rule, and for each item of must_include, must_exclude and required_values.

    `texts` are views of one thing: what must be there may be in any, what must not be there is in none. They are ()
    where there is no such thing, for the reason `nothing`; then no rule holds, lest silence exclude everything.
    """
    same = same_answer if kind == ANSWER else same_text
    checks = []
    for rule, reference in rules.items():
        for item in [reference] if rule in ("exact_match", "fuzzy_match") else reference:
            passed, reason, asked = False, f"found {_short(texts[0])!r}" if texts else nothing, None
            if texts and rule == "fuzzy_match":
                passed, reason, asked = await ask(texts[0], item)
            elif texts:
                holds = {"exact_match": same, "required_values": satisfies}.get(rule, has)
                found = any(holds(text, option) for text in texts for option in item.split(OR))
                passed = found != (rule == "must_exclude")
            checks.append(Check(kind, f"{place}: {rule} {_short(item)}", passed, reason, asked))
    return checks


async def _fuzzy(
    judge: Judge | None, question: str, note: str, text: str, reference: list[str] | str
) -> tuple[bool | None, str, dict[str, str] | None]:
    """A list is one reference, judged once; "N/A" asks whether the answer gives the note's reason for giving up."""
    expected = ", ".join(reference) if isinstance(reference, list) else reference
    if same_answer(text, expected):
        return True, "equal to the reference", None
    if not text.strip():
        return False, "found an empty text", None
    if expected == "N/A":
        expected = f"The task cannot be done. Reason: {note or 'none given'}"
    return await ask_judge(
        judge, {"question": question, "reference": expected, "answer": text[:MAX_JUDGED]}
    )


# ---- pages ----

# The locator is the task file's script; it runs in the page alone. What it throws is an answer ("no such element"),
# so an exception from Playwright means a broken browser (or a script with a syntax error, which it then quotes).
_LOCATE = """() => {
    const find = () => %s
    ;
    try {
        const found = find();
        return found === null || found === undefined ? [null, "nothing found"] : [String(found).slice(0, %d), ""];
    } catch (error) { return [null, "nothing found: " + String(error).slice(0, 200)]; }
}"""


_WHOLE_PAGE = """limit => [document.body?.innerText ?? '', document.documentElement.outerHTML]
    .map(text => text.slice(0, limit))"""


def _place(target: dict) -> str:
    return f"{_short(target['locator'] or 'the page')} at {_short(target['url'])}"


async def _read(
    page: Page, target: dict, lease: Lease, last_url: str, seconds: float
) -> tuple[tuple[str, ...], str]:
    """What a target's locator finds on `page`: its text (for a blank one, the page's text and HTML), or () and why not.

    prep_actions are scripts that open what the locator looks into; one that fails is no failure, as upstream.
    """
    locator = target["locator"]
    for script in target.get("prep_actions") or ():
        await within(seconds, page.evaluate(_LOCATE % (script, 0)), "preparing a page to be read")
    if locator.startswith("func:"):
        found = await call_helper(locator, lease, page, last_url, seconds)
        return ((found,), "") if found else ((), "the helper found nothing")
    if not locator.strip():
        return tuple(
            await within(seconds, page.evaluate(_WHOLE_PAGE, MAX_PAGE), "reading the page")
        ), ""
    found, nothing = await within(
        seconds, page.evaluate(_LOCATE % (locator, MAX_PAGE)), "reading a part of the page"
    )
    return ((), nothing) if found is None else ((found,), "")


async def _check_pages(
    targets: list[dict], lease: Lease, session: Session, last_url: str, ask: Ask
) -> list[Check]:
    """Checks targets that name a URL, in one page beside the agent's; neighbours with one URL share a visit."""
    checks, shown, seconds = [], "", session.operation
    page = await within(seconds, session.new_page(), "opening a page to score on")
    try:
        for target in targets:
            url = target["url"]
            if url.startswith("func:"):
                url = await call_helper(url, lease, session.page, last_url, seconds)
            if url.startswith(("http://", "https://")):
                if url != shown or target.get("prep_actions"):
                    await _visit(page, url, lease, session)
                    shown = url
                texts, nothing = await _read(page, target, lease, last_url, seconds)
            else:  # no such thing on the site, or the agent ended on an error page of the browser
                texts, nothing = (), f"no page to open: {_short(url)!r}"
            checks += await _check(
                PAGE, _place(target), target["required_contents"], texts, nothing, ask
            )
    finally:
        with suppress(EnvironmentFailure):  # the session closes the whole context right after
            await within(seconds, page.close(), "closing the page to score on")
    return checks


async def _visit(page: Page, url: str, lease: Lease, session: Session) -> None:
    """Opens a page to check; once more where the site hiccups or its session has ended."""
    for again in (True, False):
        status = await _open(page, url, session.operation)
        site = await login_shown(page, lease, session.operation)
        # 410: a pocket world that is gone; 429: a site that rations its visitors. Neither is the agent's doing.
        if status < 500 and status not in (410, 429) and site not in lease.accounts:
            return
        if again and site in lease.accounts:
            await log_in(session, lease, site)
        elif again:
            await asyncio.sleep(PAUSE)
    problem = f"shows the login form of {site}" if site else f"HTTP {status}"
    raise EnvironmentFailure("login" if site else "site", f"{url}: {problem}")


async def _open(page: Page, url: str, seconds: float) -> int:
    response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    await within(seconds, _fall_quiet(page, min(QUIET, seconds / 2)), f"settling {url}")
    return response.status if response else 200


async def _fall_quiet(page: Page, seconds: float) -> None:
    """Scripts fill in much of WebArena's admin pages; a page that polls for ever is read as it stands."""
    with suppress(PlaywrightTimeout):
        await page.wait_for_load_state("networkidle", timeout=seconds * 1000)
