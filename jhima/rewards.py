"""Did it work: the terminal reward R in {0, 1}, by WebArena's three evaluators and an LLM judge.

`score` multiplies every rule of a task; the verdict keeps each rule with its reason. A site or browser that fails
raises EnvironmentFailure, and a judge that gives no verdict leaves the episode without a reward, to be had later
(evaluate.py --rescore): neither says anything about the agent, so neither is ever a 0.

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
9. A page to check that shows a login form is opened again after logging in.
Published numbers depend on 2 and 4: `published` (evaluate.py --published-rules) takes upstream's rules there. A list
of fuzzy_match is one reference, judged once, as in WebArena-Lite; WebArena judges its items one by one, which asks for
the same (the judge wants all of a reference) at more cost.
"""
from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import openai
from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from .compare import OR, has_text, has_words, published_url_match, same_answer, same_text, satisfies, url_match
from .failures import EnvironmentFailure
from .helpers import call_helper, within
from .login import log_in, login_shown
from .prompts import JUDGE_SYSTEM
from .tasks import Task, fill

if TYPE_CHECKING:
    from .arena import Lease
    from .browser import Session

T = TypeVar("T")
ANSWER, URL, PAGE = "string_match", "url_match", "program_html"
MAX_ANSWER = 10_000          # characters of an answer that are read
MAX_PAGE = 2_000_000         # characters of a page that are read
MAX_JUDGED = 8_000           # characters of a text that the judge is shown
PAUSE = 1.0                  # seconds before a site that failed is asked once more
QUIET = 3.0                  # seconds that a page opened for scoring may take to fall quiet; upstream sleeps as long


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


async def score(task: Task, lease: Lease, session: Session, answer: str, judge: Judge | None,
                published: bool = False) -> Verdict:
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
            checks += await _check(PAGE, _place(target), target["required_contents"], texts, nothing, ask)
    if others := [target for target in targets if target["url"] != "last"]:
        checks += await _check_pages(others, lease, session, last_url, ask)
    checks += await check_answer(task, lease.urls, answer, judge, published)
    return Verdict(tuple(checks))


def check_url(task: Task, urls: dict[str, str], url: str, published: bool) -> list[Check]:
    """url_match of an episode that ended at `url`, on the sites at `urls`; [] where the task has none."""
    if URL not in task.eval["eval_types"]:
        return []
    references = fill(task.eval["reference_url"], urls)
    passed = (published_url_match if published else url_match)(url, references, task.eval.get("url_note") or "EXACT")
    return [Check(URL, _short(references), passed, f"ended at {_short(url)}")]


async def check_answer(task: Task, urls: dict[str, str], answer: str, judge: Judge | None,
                       published: bool) -> list[Check]:
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
Ask = Callable[[str, "list[str] | str"], Awaitable["tuple[bool | None, str, dict[str, str] | None]"]]


async def _check(kind: str, place: str, rules: dict, texts: tuple[str, ...], nothing: str, ask: Ask,
                 has: Callable[[str, str], bool] = has_text) -> list[Check]:
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


async def _fuzzy(judge: Judge | None, question: str, note: str, text: str,
                 reference: list[str] | str) -> tuple[bool | None, str, dict[str, str] | None]:
    """A list is one reference, judged once; "N/A" asks whether the answer gives the note's reason for giving up."""
    expected = ", ".join(reference) if isinstance(reference, list) else reference
    if same_answer(text, expected):
        return True, "equal to the reference", None
    if not text.strip():
        return False, "found an empty text", None
    if expected == "N/A":
        expected = f"The task cannot be done. Reason: {note or 'none given'}"
    return await ask_judge(judge, {"question": question, "reference": expected, "answer": text[:MAX_JUDGED]})


async def ask_judge(judge: Judge | None, asked: dict[str, str]) -> tuple[bool | None, str, dict[str, str]]:
    """What the judge says of `asked` (question, reference and answer): the last three fields of a Check."""
    asked = {name: asked[name] for name in ("question", "reference", "answer")}
    try:
        if judge is None:
            raise EnvironmentFailure("judge", "no judge configured: give --judge-url")
        passed, reply = await judge.equivalent(**asked)
    except EnvironmentFailure as failure:
        return None, f"no verdict: {failure.detail}", asked | {"judge": judge.model if judge else "", "reply": ""}
    asked |= {"judge": judge.model, "reply": reply}
    return passed, f"judge on {_short(asked['answer'])!r}: {_short(reply)}", asked


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


async def _read(page: Page, target: dict, lease: Lease, last_url: str, seconds: float) -> tuple[tuple[str, ...], str]:
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
                if url != shown or target.get("prep_actions"):
                    await _visit(page, url, lease, session)
                    shown = url
                texts, nothing = await _read(page, target, lease, last_url, seconds)
            else:       # no such thing on the site, or the agent ended on an error page of the browser
                texts, nothing = (), f"no page to open: {_short(url)!r}"
            checks += await _check(PAGE, _place(target), target["required_contents"], texts, nothing, ask)
    finally:
        with suppress(EnvironmentFailure):       # the session closes the whole context right after
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


# ---- the LLM judge ----


class Judge:
    """An OpenAI-compatible chat model that gives verdicts: whether two texts mean the same, or what `ask` reads.

    base_url None is OpenAI's own. `attempts` requests of at most `timeout` seconds, with back-off from `pause` seconds
    that doubles. `cache` is a file of JSON lines that keeps every verdict by model and question: asked again, the
    judge says the same, at no cost.
    """

    def __init__(self, base_url: str | None, model: str, api_key: str | None, attempts: int = 4, timeout: float = 60,
                 pause: float = 1.0, cache: Path | None = None) -> None:
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"      # local servers ask for none
        self.client = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=0)
        self.model, self.attempts, self.timeout, self.pause, self.cache = model, attempts, timeout, pause, cache
        self._replies = _read_cache(cache) if cache else {}

    async def equivalent(self, question: str, reference: str, answer: str) -> tuple[bool, str]:
        """Whether `answer` says what `reference` says, with the judge's reply. Raises EnvironmentFailure("judge")."""
        # JSON quotes the texts, so an answer cannot close its own field and speak as the user. Half a character
        # (a page can hold one) has no UTF-8 and would fail every request.
        texts = {"question": question, "reference": reference, "answer": answer}
        user = json.dumps({name: text[:MAX_JUDGED].encode("utf-8", "replace").decode() for name, text in texts.items()},
                          ensure_ascii=False)
        messages = [{"role": "system", "content": JUDGE_SYSTEM}, {"role": "user", "content": user}]
        key = hashlib.sha256(json.dumps([self.model, messages]).encode()).hexdigest()
        if key in self._replies:
            return read_verdict(self._replies[key]), self._replies[key]
        verdict, reply = await self.ask(messages, read_verdict)
        self._keep(key, reply)
        return verdict, reply

    async def ask(self, messages: list[dict], read: Callable[[str], T | None]) -> tuple[T, str]:
        """What `read` finds in the judge's reply, and that reply; one in which it finds None is asked for again.

        Raises EnvironmentFailure("judge").
        """
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
                verdict = read(reply) if ended else None
                if verdict is not None:
                    return verdict, reply
                problem = f"a reply without a verdict: {_short(reply)!r}"
        raise EnvironmentFailure("judge", f"{self.model}, attempt {attempt + 1}: {problem}")

    def _keep(self, key: str, reply: str) -> None:
        self._replies[key] = reply
        if self.cache:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("ab") as lines:                         # one short write a line: ranks may share it
                lines.write(json.dumps({"key": key, "reply": reply}).encode() + b"\n")


def _read_cache(path: Path) -> dict[str, str]:
    """A line that a kill cut short, or that is no verdict, is asked for again."""
    replies = {}
    for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            row = json.loads(line)
            if read_verdict(row["reply"]) is not None:
                replies[row["key"]] = row["reply"]
    return replies


def read_verdict(reply: str) -> bool | None:
    """The verdict on the last line of a judge's reply; None if that line is none, or another line contradicts it.

    Inside a line the judge may quote an answer that spells a verdict itself.

    >>> read_verdict('The answer says "VERDICT: correct", not the price.\\nVERDICT: incorrect')
    False
    """
    lines = [re.fullmatch(r"VERDICT: (correct|incorrect)", line.strip(" *`.")) for line in reply.strip().splitlines()]
    verdicts = {line[1] for line in lines if line}
    return verdicts == {"correct"} if lines and lines[-1] and len(verdicts) == 1 else None
