"""Did it work: the terminal reward R in {0, 1}, by WebArena-Lite-v2's three evaluators and an LLM judge.

`score` multiplies every rule of a task; the verdict keeps each rule with its reason. A site, browser or judge that
fails raises EnvironmentFailure: it says nothing about the agent, so it is never a 0.

How it differs from WebArena-Lite-v2's own evaluators (each point is a test in tests/test_rewards.py):
1. must_exclude excludes; upstream's returns 1 when the text is present.
2. must_include on an answer holds whole words and numbers, so "1" is not in "11" nor in "1.5", but "0" is "$0.00".
3. Answers lose outer blanks and one final full stop: " Yes." is "Yes".
4. URLs are compared by host, path and query; upstream compares raw text, where the order of a query decides and
   /issues/8 is found in /issues/80.
5. The agent's own page is read before anything else is opened; pages to check are opened beside it.
6. A page's text is searched both as a person sees it and as HTML; upstream searches escaped HTML only.
7. `func:` targets work (jhima/helpers.py), and nothing from a task file runs as Python.
8. A judge's reply without a verdict is asked for again; upstream counts it as wrong.
"""
from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import openai
from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from .failures import EnvironmentFailure
from .helpers import OR, call_helper, has_text, has_words, same_answer, same_text, satisfies, url_match, within
from .prompts import JUDGE_SYSTEM
from .tasks import Task, fill

if TYPE_CHECKING:
    from .arena import Lease
    from .browser import Session

MAX_ANSWER = 10_000          # characters of an answer that are read
MAX_PAGE = 2_000_000         # characters of a page that are read
MAX_JUDGED = 8_000           # characters of a text that the judge is shown
QUIET = 3.0                  # seconds that a page opened for scoring may take to fall quiet; upstream sleeps as long


@dataclass(frozen=True)
class Check:
    """One evaluator rule: what it demanded, whether that held, and what was found."""
    kind: str
    what: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """R_ij of one episode: 1 if every check passed."""
    reward: int
    checks: tuple[Check, ...]


async def score(task: Task, lease: Lease, session: Session, answer: str, judge: Judge | None) -> Verdict:
    """Scores one finished episode on the page where it ended; `answer` is "" where the agent gave none.

    What reads the agent's page comes first (the URL, then "last" targets); other pages are opened in a page of their
    own. Every wait is bounded by `session.operation` seconds. Raises EnvironmentFailure; never a 0 for a failure.
    """
    rules, last_url, seconds = fill(task.eval, lease.urls), session.page.url, session.operation
    ask = partial(_fuzzy, judge, task.intent, rules.get("string_note") or "")
    targets = rules["program_html"] if "program_html" in rules["eval_types"] else []
    checks: list[Check] = []
    if "url_match" in rules["eval_types"]:
        passed = url_match(last_url, rules["reference_url"], rules.get("url_note") or "EXACT")
        checks.append(Check("url_match", _short(rules["reference_url"]), passed, f"ended at {_short(last_url)}"))
    for target in targets:
        if target["url"] == "last":
            texts, nothing = await _read(session.page, target["locator"], lease, last_url, seconds)
            checks += await _check(PAGE, _place(target), target["required_contents"], texts, nothing, ask)
    if "string_match" in rules["eval_types"]:
        answers = (answer[:MAX_ANSWER],) if answer.strip() else ()
        checks += await _check(ANSWER, "answer", rules["reference_answers"], answers, "no answer", ask)
    others = [target for target in targets if target["url"] != "last"]
    if others:
        checks += await _check_pages(others, lease, session, last_url, ask)
    return Verdict(int(all(check.passed for check in checks)), tuple(checks))


# ---- rules on an answer or on a part of a page ----

ANSWER, PAGE = "string_match", "program_html"
Ask = Callable[[str, "list[str] | str"], Awaitable[tuple[bool, str]]]      # text, reference -> passed, reason


async def _check(kind: str, place: str, rules: dict, texts: tuple[str, ...], nothing: str, ask: Ask) -> list[Check]:
    """One check for each rule, and for each item of must_include, must_exclude and required_values.

    `texts` are views of one thing: what must be there may be in any, what must not be there is in none. They are ()
    where there is no such thing, for the reason `nothing`; then no rule holds, lest silence exclude everything.
    """
    same, has = (same_answer, has_words) if kind == ANSWER else (same_text, has_text)
    checks = []
    for rule, reference in rules.items():
        for item in [reference] if rule in ("exact_match", "fuzzy_match") else reference:
            passed, reason = False, f"found {_short(texts[0])!r}" if texts else nothing
            if texts and rule == "fuzzy_match":
                passed, reason = await ask(texts[0], item)
            elif texts:
                holds = {"exact_match": same, "required_values": satisfies}.get(rule, has)
                found = any(holds(text, option) for text in texts for option in item.split(OR))
                passed = found != (rule == "must_exclude")
            checks.append(Check(kind, f"{place}: {rule} {_short(item)}", passed, reason))
    return checks


async def _fuzzy(judge: Judge | None, question: str, note: str, text: str,
                 reference: list[str] | str) -> tuple[bool, str]:
    """A list is one reference, judged once; "N/A" asks whether the answer gives the note's reason for giving up."""
    expected = ", ".join(reference) if isinstance(reference, list) else reference
    if same_answer(text, expected):
        return True, "equal to the reference"
    if not text.strip():
        return False, "found an empty text"
    if judge is None:
        raise EnvironmentFailure("judge", "no judge configured: give --judge-url")
    if expected == "N/A":
        expected = f"The task cannot be done. Reason: {note or 'none given'}"
    passed, reply = await judge.equivalent(question, expected, text)
    return passed, f"judge on {_short(text)!r}: {_short(reply)}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else text[:120] + "..." + text[-37:]


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


async def _read(page: Page, locator: str, lease: Lease, last_url: str, seconds: float) -> tuple[tuple[str, ...], str]:
    """What `locator` finds on `page`: its text (for a blank one, the page's text and HTML), or () and why not."""
    if locator.startswith("func:"):
        found = await call_helper(locator, lease, page, last_url, seconds)
        return ((found,), "") if found else ((), "the helper found nothing")
    if not locator.strip():
        return tuple(await within(seconds, page.evaluate(_WHOLE_PAGE, MAX_PAGE), "reading the page")), ""
    found, nothing = await within(seconds, page.evaluate(_LOCATE % (locator, MAX_PAGE)), "reading a part of the page")
    return ((), nothing) if found is None else ((found,), "")


async def _check_pages(targets: list[dict], lease: Lease, session: Session, last_url: str, ask: Ask) -> list[Check]:
    """Checks targets that name a URL, in one page beside the agent's; neighbours with one URL share a visit."""
    checks, shown, seconds = [], "", session.operation
    page = await within(seconds, session.new_page(), "opening a page to score on")
    try:
        for target in targets:
            url = target["url"]
            if url.startswith("func:"):
                url = await call_helper(url, lease, session.page, last_url, seconds)
            if url.startswith(("http://", "https://")):
                if url != shown:
                    await _visit(page, url, seconds)
                    shown = url
                texts, nothing = await _read(page, target["locator"], lease, last_url, seconds)
            else:       # no such thing on the site, or the agent ended on an error page of the browser
                texts, nothing = (), f"no page to open: {_short(url)!r}"
            checks += await _check(PAGE, _place(target), target["required_contents"], texts, nothing, ask)
    finally:
        with suppress(EnvironmentFailure):       # the session closes the whole context right after
            await within(seconds, page.close(), "closing the page to score on")
    return checks


async def _visit(page: Page, url: str, seconds: float) -> None:
    response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    # 410: a pocket world that is gone; 429: a site that rations its visitors. Neither is the agent's doing.
    if response is not None and (response.status >= 500 or response.status in (410, 429)):
        raise EnvironmentFailure("site", f"{url}: HTTP {response.status}")
    await within(seconds, _fall_quiet(page, min(QUIET, seconds / 2)), f"settling {url}")


async def _fall_quiet(page: Page, seconds: float) -> None:
    """Scripts fill in much of WebArena's admin pages; a page that polls for ever is read as it stands."""
    with suppress(PlaywrightTimeout):
        await page.wait_for_load_state("networkidle", timeout=seconds * 1000)


# ---- the LLM judge ----


class Judge:
    """An OpenAI-compatible chat model that says whether two texts mean the same.

    base_url None is OpenAI's own. `attempts` requests of at most `timeout` seconds, with back-off from `pause` seconds
    that doubles.
    """

    def __init__(self, base_url: str | None, model: str, api_key: str | None, attempts: int = 4, timeout: float = 60,
                 pause: float = 1.0) -> None:
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"      # local servers ask for none
        self.client = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=0)
        self.model, self.attempts, self.timeout, self.pause = model, attempts, timeout, pause

    async def equivalent(self, question: str, reference: str, answer: str) -> tuple[bool, str]:
        """Whether `answer` says what `reference` says, with the judge's reply. Raises EnvironmentFailure("judge")."""
        # JSON quotes the texts, so an answer cannot close its own field and speak as the user. Half a character
        # (a page can hold one) has no UTF-8 and would fail every request.
        texts = {"question": question, "reference": reference, "answer": answer}
        user = json.dumps({name: text[:MAX_JUDGED].encode("utf-8", "replace").decode() for name, text in texts.items()},
                          ensure_ascii=False)
        messages = [{"role": "system", "content": JUDGE_SYSTEM}, {"role": "user", "content": user}]
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
            try:
                choice = (await asyncio.wait_for(self.client.chat.completions.create(
                    model=self.model, messages=messages, temperature=0, max_tokens=1024), self.timeout)).choices[0]
                reply, ended = choice.message.content or "", choice.finish_reason != "length"
            except openai.APIStatusError as error:
                problem = f"HTTP {error.status_code}"
                if error.status_code < 500 and error.status_code not in (408, 409, 425, 429):
                    break                                                # a wrong key or model does not heal
            except TimeoutError:
                problem = f"no reply in {self.timeout:g} s"
            # What is no chat completion at all surfaces in the client as one of the last four.
            except (openai.OpenAIError, ValueError, AttributeError, TypeError, IndexError) as error:
                problem = f"{type(error).__name__}: {_short(error)}"
            else:
                verdict = read_verdict(reply) if ended else None
                if verdict is not None:
                    return verdict, reply
                problem = f"a reply without a verdict: {_short(reply)!r}"
        raise EnvironmentFailure("judge", f"{self.model}, attempt {attempt + 1}: {problem}")


def read_verdict(reply: str) -> bool | None:
    """The verdict on the last line of a judge's reply; None if that line is none.

    Only the last line counts: above it the judge may quote an answer that spells a verdict itself.

    >>> read_verdict('The answer says "VERDICT: correct", not the price.\\nVERDICT: incorrect')
    False
    """
    lines = reply.strip().splitlines()
    found = re.fullmatch(r"VERDICT: (correct|incorrect)", lines[-1].strip(" *`.")) if lines else None
    return found[1] == "correct" if found else None
