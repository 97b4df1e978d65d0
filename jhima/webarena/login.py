"""Logged-in sessions: a verified login for every rollout, and its repair when a site forgets it.

The public harnesses save cookies once, or never look whether the form let them in; an episode that
then plays on a login page scores 0 and looks like a wrong agent. Here a login that is not seen to
work is an EnvironmentFailure, and a session that a site ends is opened again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Request

from jhima.actions import Action
from jhima.browser.lease import Lease, host_of, is_main
from jhima.browser.page_scripts import QUIET, SETTLED
from jhima.browser.session import Session
from jhima.failures import EnvironmentFailure, within


@dataclass(frozen=True)
class LoginForm:
    """How to log in to a site, and how to see that it worked.

    path: where the form is; "" if every address shows it. user, password, button: find these parts
    on a page. inside: a page (with {user}) that shows the form to all who are not logged in.
    """

    path: str
    user: Callable[[Page], Locator]
    password: Callable[[Page], Locator]
    button: Callable[[Page], Locator]
    inside: str


# Names and pages as on WebArena's sites; the pocket sites have the same. Map and Wikipedia know no
# users. Magento's administration has no page for its form, but shows it at every address.
LOGIN_FORMS = {
    "shopping": LoginForm(
        path="/customer/account/login",
        user=lambda page: page.get_by_label("Email", exact=True),
        password=lambda page: page.get_by_label("Password", exact=True),
        button=lambda page: page.get_by_role("button", name="Sign In"),
        inside="/wishlist/",
    ),
    "shopping_admin": LoginForm(
        path="",
        user=lambda page: page.get_by_placeholder("user name"),
        password=lambda page: page.get_by_placeholder("password"),
        button=lambda page: page.get_by_role("button", name="Sign in"),
        inside="",
    ),
    "reddit": LoginForm(
        path="/login",
        user=lambda page: page.get_by_label("Username"),
        password=lambda page: page.get_by_label("Password"),
        button=lambda page: page.get_by_role("button", name="Log in"),
        inside="/user/{user}/account",
    ),
    "gitlab": LoginForm(
        path="/users/sign_in",
        user=lambda page: page.get_by_test_id("username-field"),
        password=lambda page: page.get_by_test_id("password-field"),
        button=lambda page: page.get_by_test_id("sign-in-button"),
        inside="/-/profile",
    ),
}

SIGN_OUT = re.compile(r"/(logout|sign_out)\b")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
RATIONED = "You cannot post more."  # says Postmill, with status 200, when it rations posts
FORM_QUIET = 3.0  # seconds that a login form's scripts may take


async def log_in(session: Session, lease: Lease, site: str) -> None:
    """Logs the session in to a site, in a page of its own, and checks that it worked.

    Where the site logs in by the lease's headers there is no form to fill. Raises
    EnvironmentFailure("login") unless the session is seen to be inside: an episode that begins on a
    login page says nothing about the agent.
    """
    user, _ = lease.accounts[site]
    page = await session.new_page()
    try:
        status = 200
        if site not in lease.by_header:
            status = await _submit(page, lease, site, session.navigation)
        if status < 400:
            inside = lease.urls[site].rstrip("/") + LOGIN_FORMS[site].inside.format(user=user)
            status = await _open(page, inside, session.navigation)
        # 404: a pocket site that has no such page, but did not send us to its form either.
        refused = status >= 400 and status != 404
        if refused or await login_shown(page, lease, session.operation) == site:
            problem = f"{site} shows HTTP {status} at {page.url[:200]} to {user}"
            raise EnvironmentFailure("login", problem)
        await _share_cookies(session, lease.urls[site])
    finally:
        with suppress(EnvironmentFailure):  # the session closes the whole context at its end
            await within(session.operation, page.close(), "closing the login page")


async def _submit(page: Page, lease: Lease, site: str, seconds: float) -> int:
    """Fills the form in and sends it; returns the HTTP status of the page that follows."""
    form, (user, password) = LOGIN_FORMS[site], lease.accounts[site]
    url = lease.urls[site].rstrip("/") + form.path
    if site == "shopping":
        url += "/"
    status = await _open(page, url, seconds)
    if status >= 400 or await login_shown(page, lease, seconds) != site:
        return status  # broken, or logged in already

    async def send() -> int:
        await form.user(page).fill(user)
        await form.password(page).fill(password)
        async with page.expect_navigation(timeout=seconds * 1000) as navigation:
            await form.button(page).click()
        response = await navigation.value
        return response.status if response else 200

    return await within(seconds, send(), f"the login form of {site}")


async def _open(page: Page, url: str, seconds: float) -> int:
    response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    # Magento's form is not ready before its scripts are.
    settled = page.evaluate(SETTLED, [QUIET * 1000, FORM_QUIET * 1000, True])
    await within(seconds, settled, f"settling {url}")
    return response.status if response else 200


async def login_shown(page: Page, lease: Lease, seconds: float) -> str | None:
    """The site whose login form `page` shows, or None."""
    path = urlsplit(page.url).path
    for site, form in LOGIN_FORMS.items():
        base = urlsplit(lease.urls.get(site, ""))
        if not base.netloc or host_of(page.url) != host_of(lease.urls[site]):
            continue
        if form.path and re.match(re.escape(base.path.rstrip("/") + form.path) + r"(/|$)", path):
            return site
        if not form.path and path.startswith(base.path):
            fields = form.password(page).count()
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
        asked_for_form = site and LOGIN_FORMS[site].path and LOGIN_FORMS[site].path in url
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
    if not urlsplit(request.url).path.endswith("/graphql"):
        return False
    try:
        return "mutation" not in (request.post_data or "")
    except (PlaywrightError, UnicodeDecodeError):
        return False
