"""Did it work: the terminal reward R in {0, 1}, by WebArena's three evaluators and an LLM judge.

`score` multiplies all rules of a task; the verdict keeps each rule with its reason. A site or
browser that fails raises EnvironmentFailure, and a judge that gives no verdict leaves the episode
without a reward until it is judged again (evaluate.py --rescore). Neither says anything about the
agent, so neither is ever a 0.

How it differs from WebArena-Lite-v2's own evaluators (each point is a test in
tests/webarena/test_evaluators.py):
1. must_exclude excludes; upstream's returns 1 when the text is present.
2. must_include on an answer looks for whole words and numbers, so "1" is not in "11" nor in "1.5",
   but "0" is "$0.00" and "148" is "$148.80" (a reference may cut a number short by less than 1 %).
   Parts of dates, times and versions are no numbers.
3. Answers lose outer blanks and one final full stop: " Yes." is "Yes".
4. URLs are compared by host, path and query; upstream compares raw text, where the order of a query
   decides and /issues/8 is found in /issues/80.
5. The agent's own page is read before anything else is opened; pages to check are opened beside it.
6. A page's text is searched both as a person sees it and as HTML; upstream searches escaped HTML
   only.
7. `func:` targets work (jhima/webarena/task_functions.py), and nothing from a task file runs as
   Python.
8. A judge's reply without a verdict is asked for again; upstream counts it as wrong.
9. A page to check that shows a login form is opened again after logging in.
As in ScaleCUA's harness, terminate's info is the answer where none was given, whatever its status.
Published numbers depend on 2 and 4: `published` (evaluate.py --published-rules) takes upstream's
rules there. A list of fuzzy_match is one reference, judged once, as in WebArena-Lite. WebArena
judges its items one by one, which asks for the same (the judge wants all of a reference) at more
cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from jhima.browser.lease import Lease
from jhima.browser.session import Session
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure, within
from jhima.webarena import matching
from jhima.webarena.checks import is_list
from jhima.webarena.judge import MAX_JUDGED, Judge, _short, ask_judge
from jhima.webarena.login import log_in, login_shown
from jhima.webarena.sites import fill
from jhima.webarena.task_functions import call_helper

ANSWER, URL, PAGE = "string_match", "url_match", "program_html"
MAX_ANSWER = 10_000  # characters of an answer that are read
MAX_PAGE = 2_000_000  # characters of a page that are read
PAUSE = 1.0  # seconds before a site that failed is asked once more
QUIET = 3.0  # seconds for a page opened for scoring to fall quiet; upstream sleeps as long


@dataclass(frozen=True)
class Check:
    """One evaluator rule: what it demanded, whether that held (None: undecided), and why.

    asked: what a judge was asked, as Judge.equivalent takes it, with the judge's name and its reply
    ("" if there was none).
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
        """R_ij: 0 if any check failed; otherwise None if any check is undecided; otherwise 1."""
        results = [check.passed for check in self.checks]
        if False in results:
            return 0
        return None if None in results else 1

    @property
    def failure(self) -> dict[str, str] | None:
        """Why there is no reward, as an episode stores it; None where there is one."""
        if self.reward is not None:
            return None
        undecided = [check.reason for check in self.checks if check.passed is None]
        return {"kind": "judge", "detail": undecided[0]}


async def score(
    task: Task,
    lease: Lease,
    session: Session,
    answer: str,
    judge: Judge | None,
    published: bool = False,
) -> Verdict:
    """Scores one finished episode on the page where it ended; `answer` "": the agent gave none.

    What reads the agent's page comes first (the URL, then "last" targets); other pages are opened
    in a page of their own. Every wait is bounded by `session.operation` seconds. Raises
    EnvironmentFailure; a failure is never a 0. `published`: must_include and URLs by upstream's
    rules.
    """
    last_url = session.page.url
    checks = check_url(task, lease.urls, last_url, published)
    if PAGE in task.eval["eval_types"]:
        pages = _Pages(task, lease, session, judge, last_url)
        targets = fill(task.eval["program_html"], lease.urls)
        for target in targets:
            if target["url"] == "last":
                checks += await pages.check(session.page, target)
        checks += await pages.check_others([t for t in targets if t["url"] != "last"])
    checks += await check_answer(task, lease.urls, answer, judge, published)
    return Verdict(tuple(checks))


def check_url(task: Task, urls: dict[str, str], url: str, published: bool) -> list[Check]:
    """url_match of an episode that ended at `url`; [] if the task has none."""
    if URL not in task.eval["eval_types"]:
        return []
    references = fill(task.eval["reference_url"], urls)
    match = matching.published_url_match if published else matching.url_match
    passed = match(url, references, task.eval.get("url_note") or "EXACT")
    return [Check(URL, _short(references), passed, f"ended at {_short(url)}")]


async def check_answer(
    task: Task, urls: dict[str, str], answer: str, judge: Judge | None, published: bool
) -> list[Check]:
    """string_match of an episode's answer; [] if the task has none."""
    if ANSWER not in task.eval["eval_types"]:
        return []
    subject = Subject(ANSWER, "answer", (), "no answer")
    if answer.strip():
        subject = Subject(ANSWER, "answer", (answer[:MAX_ANSWER],))
    same, includes = matching.same_answer, matching.has_words
    if published:
        same, includes = matching.published_same_answer, matching.published_has_text
    rules = fill(task.eval["reference_answers"], urls)
    return await _check_rules(subject, rules, same, includes, task, judge)


# ---- rules on an answer or on a part of a page ----


@dataclass(frozen=True)
class Subject:
    """What rules are checked on: an answer, or a part of a page.

    `texts` are views of one thing: what must be there may be in any of them, what must not be there
    must be in none. They are () where there is no such thing, for the reason `nothing`; then no
    rule holds, lest silence pass every must_exclude.
    """

    kind: str
    name: str
    texts: tuple[str, ...]
    nothing: str = ""


Match = Callable[[str, str], bool]  # of a text and a reference


async def _check_rules(
    subject: Subject, rules: dict, same: Match, includes: Match, task: Task, judge: Judge | None
) -> list[Check]:
    """One check per rule, and per item of must_include, must_exclude and required_values."""
    checks = []
    for rule, reference in rules.items():
        single = isinstance(reference, str) or rule == "fuzzy_match"
        items = [reference] if single else reference
        for item in items:
            what = f"{subject.name}: {rule} {_short(item)}"
            if not subject.texts:
                checks.append(Check(subject.kind, what, False, subject.nothing))
                continue
            text = subject.texts[0]
            if rule == "fuzzy_match":
                verdict = await _fuzzy(judge, task, text, item)
                checks.append(Check(subject.kind, what, *verdict))
                continue
            matches = {"exact_match": same, "required_values": matching.satisfies}
            present = _any_match(matches.get(rule, includes), subject.texts, item)
            passed = present != (rule == "must_exclude")
            checks.append(Check(subject.kind, what, passed, f"found {_short(text)!r}"))
    return checks


def _any_match(match: Match, texts: tuple[str, ...], item: str) -> bool:
    for text in texts:
        if any(match(text, option) for option in item.split(matching.OR)):
            return True
    return False


async def _fuzzy(
    judge: Judge | None, task: Task, text: str, reference: list[str] | str
) -> tuple[bool | None, str, dict[str, str] | None]:
    """The last three fields of a Check.

    A list is one reference, judged once. "N/A" asks whether the answer gives the reason for
    giving up that the task notes.
    """
    expected = ", ".join(reference) if isinstance(reference, list) else reference
    if matching.same_answer(text, expected):
        return True, "equal to the reference", None
    if not text.strip():
        return False, "found an empty text", None
    if expected == "N/A":
        reason = task.eval.get("string_note") or "none given"
        expected = f"The task cannot be done. Reason: {reason}"
    texts = {"question": task.intent, "reference": expected, "answer": text[:MAX_JUDGED]}
    return await ask_judge(judge, texts)


# ---- pages ----

# The locator is the task file's script; it runs in the page alone. What it throws is an answer ("no
# such element"), so an exception from Playwright means a broken browser (or a script with a syntax
# error, which it then quotes).
_LOCATE = """() => {
    const find = () => %s
    ;
    try {
        const result = find();
        if (result === null || result === undefined) return [null, "nothing found"];
        return [String(result).slice(0, %d), ""];
    } catch (error) { return [null, "nothing found: " + String(error).slice(0, 200)]; }
}"""

_WHOLE_PAGE = """limit => [document.body?.innerText ?? '', document.documentElement.outerHTML]
    .map(text => text.slice(0, limit))"""


@dataclass
class _Pages:
    """program_html of one episode, which ended at `last_url`."""

    task: Task
    lease: Lease
    session: Session
    judge: Judge | None
    last_url: str

    async def check_others(self, targets: list[dict]) -> list[Check]:
        """Checks targets that name a URL, in one page beside the agent's.

        Neighbours with one URL share a visit.
        """
        if not targets:
            return []
        checks, shown = [], ""
        page = await self._within(self.session.new_page(), "opening a page to score on")
        try:
            for target in targets:
                url = target["url"]
                if url.startswith("func:"):
                    url = await self._call(url, self.session.page)
                if not url.startswith(("http://", "https://")):
                    # No such thing on the site, or the agent ended on an error page of the browser.
                    problem = f"no page to open: {_short(url)!r}"
                    checks += await self._check_texts(target, (), problem)
                    continue
                if url != shown or target.get("prep_actions"):
                    await _visit(page, url, self.lease, self.session)
                    shown = url
                checks += await self.check(page, target)
        finally:
            with suppress(EnvironmentFailure):  # the session closes the whole context right after
                await self._within(page.close(), "closing the page to score on")
        return checks

    async def check(self, page: Page, target: dict) -> list[Check]:
        """Checks what a target's locator finds on `page`; a blank one finds its text and its HTML.

        prep_actions are scripts that open what the locator looks into; as upstream, one that throws
        is no failure.
        """
        locator = target["locator"]
        for script in target.get("prep_actions") or ():
            preparing = page.evaluate(_LOCATE % (script, 0))
            await self._within(preparing, "preparing a page to be read")
        if not locator.strip():
            reading = page.evaluate(_WHOLE_PAGE, MAX_PAGE)
            texts = await self._within(reading, "reading the page")
            if not is_list(texts, lambda text: isinstance(text, str)):  # a page can override map
                return await self._check_texts(target, (), "the page handed out no text")
            return await self._check_texts(target, tuple(texts))
        if locator.startswith("func:"):
            text = await self._call(locator, page) or None
            nothing = "the helper found nothing"
        else:
            reading = page.evaluate(_LOCATE % (locator, MAX_PAGE))
            found = await self._within(reading, "reading a part of the page")
            text, nothing = found if isinstance(found, list) and len(found) == 2 else (None, "")
            if not isinstance(text, str):
                text, nothing = None, str(nothing)[:220] or "the page handed out no text"
        texts = () if text is None else (text,)
        return await self._check_texts(target, texts, nothing)

    async def _check_texts(
        self, target: dict, texts: tuple[str, ...], nothing: str = ""
    ) -> list[Check]:
        name = f"{_short(target['locator'] or 'the page')} at {_short(target['url'])}"
        subject = Subject(PAGE, name, texts, nothing)
        same, includes = matching.same_text, matching.has_text
        rules = target["required_contents"]
        return await _check_rules(subject, rules, same, includes, self.task, self.judge)

    async def _call(self, text: str, page: Page) -> str:
        return await call_helper(text, self.lease, page, self.last_url, self.session.operation)

    async def _within(self, work, doing: str):
        return await within(self.session.operation, work, doing)


async def _visit(page: Page, url: str, lease: Lease, session: Session) -> None:
    """Opens a page to check; once more where the site hiccups or its session has ended."""
    for again in (True, False):
        status = await _open(page, url, session.operation)
        site = await login_shown(page, lease, session.operation)
        broken = status >= 500 or status in lease.broken
        if not broken and site not in lease.accounts:
            return
        if again and site in lease.accounts:
            await log_in(session, lease, site)
        elif again:
            await asyncio.sleep(PAUSE)
    if site:
        raise EnvironmentFailure("login", f"{url}: shows the login form of {site}")
    raise EnvironmentFailure("site", f"{url}: HTTP {status}")


async def _open(page: Page, url: str, seconds: float) -> int:
    response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    await within(seconds, _fall_quiet(page, min(QUIET, seconds / 2)), f"settling {url}")
    return response.status if response else 200


async def _fall_quiet(page: Page, seconds: float) -> None:
    """Scripts fill in much of the admin pages; a page that polls for ever is read as it is."""
    with suppress(PlaywrightTimeout):
        await page.wait_for_load_state("networkidle", timeout=seconds * 1000)
