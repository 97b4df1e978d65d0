"""Logged-in sessions: a verified login for every rollout, and its repair when a site forgets it.

The public harnesses save cookies once, or never look whether the form let them in; an episode that
then plays on a login page scores 0 and looks like a wrong agent. Here a login that is not seen to
work is an EnvironmentFailure, and a session that a site ends is opened again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Request, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from jhima.actions import Action
from jhima.browser.lease import Lease, host_of, is_main
from jhima.browser.page_scripts import QUIET, SETTLED
from jhima.browser.session import Session
from jhima.failures import EnvironmentFailure, within

SIGN_OUT = re.compile(r"/(logout|sign_out)\b")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
# Posts that change nothing: a grid's filter in Magento's administration is kept as a bookmark;
# GitLab's previews and its own statistics.
READING = re.compile(r"/mui/bookmark/|/preview_markdown$|/(collect_events?|service_ping)\b")
RATIONED = "You cannot post more."  # says Postmill, with status 200, when it rations posts
FORM_QUIET = 3.0  # seconds that a login form's scripts may take
REFUSED = 30.0  # seconds before a form that refused an account is asked again
MOST_LOGINS, MOST_WAIT = 3, 120.0  # tries where a site asks to wait, and seconds each
RETRY_AFTER = 20.0  # seconds to wait where it does not say how long
STORE = "items => { for (const {name, value} of items) localStorage.setItem(name, value) }"
FORM_TARGET = "button => button.form ? button.form.action : ''"
MISNAMED = (
    "{0} leads from {2} to {1}, an address that sites.json does not name: set the site's base URL "
    "to the one in sites.json, or write the site's own there"
)
# What a page fetches for itself; a frame, or a page that a link leads to, is not needed.
PARTS = {"fetch", "xhr", "image", "script", "stylesheet", "font", "websocket"}


async def enter(session: Session, lease: Lease, sites: Iterable[str]) -> None:
    """Logs in to an episode's sites, and watches what their pages cannot fetch."""
    _watch_blocked(session, lease)
    for site in sites:
        if site not in lease.signed_in:
            await log_in(session, lease, site)


async def log_in(session: Session, lease: Lease, site: str) -> None:
    """Brings the session inside a site, in a page of its own, and checks that it is.

    The lease's shared session is used while it works. Where it does not, one episode logs in and
    the others wait: sites ration logins (GitLab lets ten a minute through), and a login may end an
    account's other sessions (Magento's administration). Raises EnvironmentFailure("login") unless
    the session is seen to be inside: an episode that begins on a login page says nothing about the
    agent.
    """
    if site not in lease.forms:
        return
    page, logins = await session.new_page(), lease.logins
    try:
        shared = logins.states.get(site)
        if shared or site in lease.by_header:
            await _take_over(session, page, lease.urls[site], shared or {})
            problem = await _why_outside(page, lease, site, session)
            if not problem:
                return
            if site in lease.by_header:
                raise EnvironmentFailure("login", problem)
        async with logins.locks[site]:
            newer = logins.states.get(site)
            if newer and newer is not shared:
                await _take_over(session, page, lease.urls[site], newer)
                if not await _why_outside(page, lease, site, session):
                    return
            logins.states[site] = await _log_in(session, page, lease, site)
    finally:
        with suppress(EnvironmentFailure):  # the session closes the whole context at its end
            await within(session.operation, page.close(), "closing the login page")


async def _log_in(session: Session, page: Page, lease: Lease, site: str) -> dict:
    """Logs in by the form; returns the cookies and the local storage that came of it."""
    refusal, until = lease.logins.refused.get(site, ("", 0.0))
    if time.monotonic() < until:  # not asked again at once: GitLab locks an account after ten
        raise EnvironmentFailure("login", refusal)
    before = await _cookies(session)
    if not await _why_outside(page, lease, site, session):
        if not before:
            problem = f"{page.url[:200]} is shown to all, so it is no sign of being inside {site}"
            raise EnvironmentFailure("login", problem)
    else:
        problem = await _submit(page, lease, site, session.navigation)
        problem = problem or await _why_outside(page, lease, site, session)
        if problem:
            if "HTTP 5" not in problem:  # a site that broke may let us in at the next try
                lease.logins.refused[site] = problem, time.monotonic() + REFUSED
            raise EnvironmentFailure("login", problem)
    await _share_cookies(session, lease.urls[site])
    state = await within(session.operation, session.context.storage_state(), "reading a session")
    new = [cookie for cookie in await _cookies(session) if cookie not in before]
    host = host_of(lease.urls[site])
    origins = [entry for entry in state["origins"] if host_of(entry["origin"]) == host]
    return {"cookies": new, "origins": origins}


async def _cookies(session: Session) -> list[dict]:
    return await within(session.operation, session.context.cookies(), "reading cookies")


async def _take_over(session: Session, page: Page, url: str, state: dict) -> None:
    """Gives the session the cookies and the local storage of another one."""
    if state.get("cookies"):
        adding = session.context.add_cookies(state["cookies"])
        await within(session.operation, adding, "sharing a session's cookies")
    for entry in state.get("origins", ()):
        # On an empty page at the site's address: nothing of the site runs meanwhile.
        blank = entry["origin"] + "/"

        async def store(blank: str = blank, entry: dict = entry) -> None:
            await page.route(blank, lambda route: route.fulfill(body="", content_type="text/html"))
            await page.goto(blank)
            await page.evaluate(STORE, entry["localStorage"])
            await page.unroute(blank)

        await within(session.operation, store(), f"sharing the session of {url}")


async def _why_outside(page: Page, lease: Lease, site: str, session: Session) -> str:
    """Opens the site's page for those inside; what speaks against being there, "" if nothing."""
    user, _ = lease.accounts.get(site) or ("", "")
    form, base = lease.forms[site], lease.urls[site].rstrip("/")
    target = base + form.inside.format(user=quote(user))
    status = await _open(page, target, session.navigation)
    shown = page.url
    there = host_of(shown) == host_of(target) and urlsplit(shown).path.rstrip("/").startswith(
        urlsplit(target).path.rstrip("/")
    )
    if status >= 400:
        what = f"HTTP {status}"
    elif await login_shown(page, lease, session.operation) == site:
        what = "its login form"
    elif not there:
        what = f"another page than {target[:200]}"
    elif form.shows and not await within(
        session.operation, page.locator(form.shows).count(), f"looking for {form.shows}"
    ):
        what = f"nothing like {form.shows}"
    else:
        return ""
    return f"{site} shows {what} at {shown[:200]} to {user}"


async def _submit(page: Page, lease: Lease, site: str, seconds: float) -> str:
    """Fills the form in and sends it, again where the site asks to wait; returns what is wrong."""
    form, (user, password) = lease.forms[site], lease.accounts[site]
    url = lease.urls[site].rstrip("/") + form.path

    async def send() -> Response | None:
        button = await _find(page, form.button)
        await (await _find(page, form.user)).fill(user)
        await (await _find(page, form.password)).fill(password)
        target = await button.evaluate(FORM_TARGET)
        if isinstance(target, str) and host_of(target) and host_of(target) not in lease.reachable:
            raise EnvironmentFailure("login", MISNAMED.format(site, host_of(target), url))
        try:
            async with page.expect_navigation(timeout=seconds * 1000) as navigation:
                await button.click()
            return await navigation.value
        except PlaywrightTimeout:
            return None  # a script sent it and the page stays: the one for those inside tells

    for _ in range(MOST_LOGINS):
        status, wait = await _open(page, url, seconds), RETRY_AFTER
        if status < 400:
            fields = await within(seconds, (await _find(page, form.password)).count(), "a form")
            if not fields:
                return f"{site} has no login form at {page.url[:200]}"
            reply = await within(2 * seconds, send(), f"the login form of {site}")
            status = reply.status if reply else 200
            wait = _retry_after(reply) if reply else wait
        if status != 429:
            break
        await asyncio.sleep(wait)
    return f"{site} shows HTTP {status} at {page.url[:200]} to {user}" if status >= 400 else ""


def _retry_after(reply: Response) -> float:
    """Seconds that a site asks to wait before the next login, at most as long as is worth it."""
    asked = reply.headers.get("retry-after", "").strip()
    if asked.isdecimal():
        return min(float(asked), MOST_WAIT)
    with suppress(ValueError, TypeError):  # a date, or nothing that can be read
        left = parsedate_to_datetime(asked) - datetime.now(UTC)
        return min(max(left.total_seconds(), 0.0), MOST_WAIT)
    return RETRY_AFTER


async def _find(page: Page, what: str) -> Locator:
    """A part of a form: label=TEXT, button=TEXT, or a CSS selector; an exact label comes first."""
    kind, _, text = what.partition("=")
    if kind == "button":
        return page.get_by_role("button", name=text).first
    if kind != "label":
        return page.locator(what).first
    exact = page.get_by_label(text, exact=True)
    return (exact if await exact.count() else page.get_by_label(text)).first


async def _open(page: Page, url: str, seconds: float) -> int:
    led: list[str] = []
    page.on("requestfailed", lambda request: led.append(request.url) if is_main(request) else None)
    try:
        response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    except EnvironmentFailure as failure:
        if "ERR_PROXY" in failure.detail and led and host_of(led[-1]) != host_of(url):
            problem = MISNAMED.format("the site", host_of(led[-1]), url)
            raise EnvironmentFailure("login", problem) from None
        raise
    # Magento's form is not ready before its scripts are.
    settled = page.evaluate(SETTLED, [QUIET * 1000, FORM_QUIET * 1000, True])
    await within(seconds, settled, f"settling {url}")
    return response.status if response else 200


async def login_shown(page: Page, lease: Lease, seconds: float) -> str | None:
    """The site whose login form `page` shows, or None."""
    path = urlsplit(page.url).path
    for site, form in lease.forms.items():
        if site not in lease.urls or host_of(page.url) != host_of(lease.urls[site]):
            continue
        base = urlsplit(lease.urls[site]).path.rstrip("/")
        where = re.escape(base + form.path.rstrip("/"))
        if form.path and re.match(where + r"(/|$)", path):
            return site
        if not form.path and path.startswith(base):
            fields = page.locator("input[type=password]").count()
            if await within(seconds, fields, f"looking for the login form of {site}"):
                return site
    return None


async def _share_cookies(session: Session, url: str) -> None:
    """Copies cookies between localhost and 127.0.0.1: they are one host, and sites mix them."""
    twins = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}
    cookies = await within(session.operation, session.context.cookies(url), "reading cookies")
    shared = [cookie for cookie in cookies if cookie["domain"] in twins]
    copies = [cookie | {"domain": twins[cookie["domain"]]} for cookie in shared]
    if copies:
        await within(session.operation, session.context.add_cookies(copies), "copying cookies")


def _watch_blocked(session: Session, lease: Lease) -> None:
    """Counts in `lease.blocked` what the sites' pages fetch and sites.json does not let them."""
    hosts = lease.reachable

    def on_failure(request: Request) -> None:
        host = host_of(request.url)
        if request.resource_type in PARTS and host and host not in hosts:
            lease.blocked[host] += 1

    session.context.on("requestfailed", on_failure)


class Guard:
    """Watches one rollout's requests.

    It sees where the agent signed out by itself and which page was asked for last, and adds to
    `lease.changed` the sites that got a request that may have changed them.
    """

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session, self.lease = session, lease
        self._signed_out: set[str] = set()
        self._last_page = ("GET", "")  # the method and URL of its request, before any redirect
        session.context.on("request", self._on_request)

    def _on_request(self, request: Request) -> None:
        site = _site_of(request.url, self.lease)
        if site is None:
            return
        if request.redirected_from is None and is_main(request):
            self._last_page = (request.method, request.url)
        if SIGN_OUT.search(urlsplit(request.url).path):
            self._signed_out.add(site)
            self.lease.logins.states.pop(site, None)  # the site ends it for all who share it
        elif request.method in CHANGING and not _only_reads(request):
            self.lease.changed.add(site)

    async def repair(self) -> bool:
        """If a site ended the session, logs in again and opens the page that was asked for.

        Returns whether it did. An agent that signed itself out stays outside: that was its action.
        Raises EnvironmentFailure where the site does not let the session in again, lost a form that
        was being sent, or rations posts.
        """
        page, (method, url) = self.session.page, self._last_page
        site = await login_shown(page, self.lease, self.session.operation)
        path = self.lease.forms[site].path.rstrip("/") if site else ""
        asked_for_form = path and path in url
        if site is None or site in self._signed_out or asked_for_form:
            await self._check_rations(page)
            return False
        changed = set(self.lease.changed)
        await log_in(self.session, self.lease, site)
        self.lease.changed.intersection_update(changed)  # to log in is no change
        if method != "GET":
            problem = f"{site} ended the session while a form was sent to {url[:200]}"
            raise EnvironmentFailure("login", problem)
        await self.session.perform(Action("goto", text=url))
        if await login_shown(page, self.lease, self.session.operation) == site:
            raise EnvironmentFailure("login", f"{site} shows its login form again at {url[:200]}")
        return True

    async def _check_rations(self, page: Page) -> None:
        if host_of(page.url) != host_of(self.lease.urls.get("reddit", "")):
            return
        errors = page.locator(".form-error-list", has_text=RATIONED).count()
        if await within(self.session.operation, errors, "looking for errors in a form"):
            problem = f"reddit rations posts at {page.url[:200]}: turn its limit off"
            raise EnvironmentFailure("site", problem)


def _site_of(url: str, lease: Lease) -> str | None:
    """The site that a URL lies in.

    Where two sites share a host (shop and administration) it is the one with the longer path.
    """
    sites = []
    for site, base in lease.urls.items():
        same_host = host_of(base) == host_of(url)
        if same_host and urlsplit(url).path.startswith(urlsplit(base).path):
            sites.append(site)
    return max(sites, key=lambda site: len(lease.urls[site]), default=None)


def _only_reads(request: Request) -> bool:
    """GitLab and Magento read by POST, too: a GraphQL query is no change, a mutation is."""
    path = urlsplit(request.url).path
    if READING.search(path):
        return True
    if not path.endswith("/graphql"):
        return False
    try:
        return "mutation" not in (request.post_data or "")
    except (PlaywrightError, UnicodeDecodeError):
        return False
