"""Sessions that are logged in: a verified login for every rollout, and what happens when a site forgets it.

The public harnesses save cookies once, or never look whether the form let them in; an episode that then plays on a
login page scores 0 and looks like a wrong agent. Here a login that cannot be seen to work is an EnvironmentFailure,
and a session that a site ends is opened again.
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
    """Where a site's login form is, how to find its user field, password field and button, and a page (`inside`, with
    {user}) that only a visitor who is logged in is shown instead of the form."""

    path: str
    find: Callable[[Page], tuple[Locator, Locator, Locator]]
    inside: str


# Names and pages as on WebArena's sites; the pocket sites have the same. Map and Wikipedia know no users. Magento's
# administration has no page for its form, but shows it at every address.
LOGIN_FORMS = {
    "shopping": LoginForm(
        "/customer/account/login",
        lambda page: (
            page.get_by_label("Email", exact=True),
            page.get_by_label("Password", exact=True),
            page.get_by_role("button", name="Sign In"),
        ),
        "/wishlist/",
    ),
    "shopping_admin": LoginForm(
        "",
        lambda page: (
            page.get_by_placeholder("user name"),
            page.get_by_placeholder("password"),
            page.get_by_role("button", name="Sign in"),
        ),
        "",
    ),
    "reddit": LoginForm(
        "/login",
        lambda page: (
            page.get_by_label("Username"),
            page.get_by_label("Password"),
            page.get_by_role("button", name="Log in"),
        ),
        "/user/{user}/account",
    ),
    "gitlab": LoginForm(
        "/users/sign_in",
        lambda page: (
            page.get_by_test_id("username-field"),
            page.get_by_test_id("password-field"),
            page.get_by_test_id("sign-in-button"),
        ),
        "/-/profile",
    ),
}


SIGN_OUT = re.compile(r"/(logout|sign_out)\b")


CHANGING = ("POST", "PUT", "PATCH", "DELETE")


RATIONED = (
    "You cannot post more."  # Postmill's words, on a page with status 200, when it rations posts
)


FORM_QUIET = 3.0  # seconds that a login form's scripts may take


async def log_in(session: Session, lease: Lease, site: str) -> None:
    """Logs the session in to a site, in a page of its own, and sees that it worked.

    Where the site logs in by the lease's headers there is no form to fill. Raises EnvironmentFailure("login") for
    anything but a session that is seen to be inside: an episode that begins on a login page tells nothing.
    """
    user, _ = lease.accounts[site]
    page = await session.new_page()
    try:
        status = (
            200 if site in lease.by_header else await _submit(page, lease, site, session.navigation)
        )
        if status < 400:
            inside = lease.urls[site].rstrip("/") + LOGIN_FORMS[site].inside.format(user=user)
            status = await _open(page, inside, session.navigation)
        # 404: a pocket site that has no such page, but did not send us to its form either.
        if (
            status >= 400
            and status != 404
            or await login_shown(page, lease, session.operation) == site
        ):
            raise EnvironmentFailure(
                "login", f"{site} shows HTTP {status} at {page.url[:200]} to {user}"
            )
        await _share_cookies(session, lease.urls[site])
    finally:
        with suppress(EnvironmentFailure):  # the session closes the whole context at its end
            await within(session.operation, page.close(), "closing the login page")


async def _submit(page: Page, lease: Lease, site: str, seconds: float) -> int:
    """Fills the form in and sends it; returns the HTTP status of what comes then."""
    form, (user, password) = LOGIN_FORMS[site], lease.accounts[site]
    status = await _open(
        page, lease.urls[site].rstrip("/") + form.path + "/" * (site == "shopping"), seconds
    )
    user_field, password_field, button = form.find(page)
    if status >= 400 or await login_shown(page, lease, seconds) != site:
        return status  # broken, or logged in already

    async def send() -> int:
        await user_field.fill(user)
        await password_field.fill(password)
        async with page.expect_navigation(timeout=seconds * 1000) as coming:
            await button.click()
        response = await coming.value
        return response.status if response else 200

    return await within(seconds, send(), f"the login form of {site}")


async def _open(page: Page, url: str, seconds: float) -> int:
    response = await within(seconds, page.goto(url, timeout=seconds * 1000), f"opening {url}")
    # Magento's form is not ready before its scripts are.
    await within(
        seconds, page.evaluate(SETTLED, [QUIET * 1000, FORM_QUIET * 1000, True]), f"settling {url}"
    )
    return response.status if response else 200


async def login_shown(page: Page, lease: Lease, seconds: float) -> str | None:
    """The site whose login form `page` shows, or None."""
    for site, form in LOGIN_FORMS.items():
        base = urlsplit(lease.urls.get(site, ""))
        if not base.netloc or host_of(page.url) != host_of(lease.urls[site]):
            continue
        path = urlsplit(page.url).path
        if form.path and re.match(re.escape(base.path.rstrip("/") + form.path) + r"(/|$)", path):
            return site
        if not form.path and path.startswith(base.path):
            password = form.find(page)[1]
            if await within(seconds, password.count(), f"looking for the login form of {site}"):
                return site
    return None


async def _share_cookies(session: Session, url: str) -> None:
    """Gives 127.0.0.1 the cookies of localhost and the other way round: they are one host, and sites mix them."""
    twin = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}
    cookies = await within(session.operation, session.context.cookies(url), "reading cookies")
    copies = [
        cookie | {"domain": twin[cookie["domain"]]}
        for cookie in cookies
        if cookie["domain"] in twin
    ]
    if copies:
        await within(session.operation, session.context.add_cookies(copies), "copying cookies")


class Guard:
    """Watches one rollout's requests: what it may have changed, where it signed out by itself, what it asked for last.

    From then on `lease.changed` holds the sites that got more than a question.
    """

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session, self.lease = session, lease
        self._signed_out: set[str] = set()
        self._wanted = ("GET", "")  # the last page that was asked for, before any redirect
        session.context.on("request", self._saw)

    def _saw(self, request: Request) -> None:
        site = _site_of(request.url, self.lease)
        if site is None:
            return
        if request.redirected_from is None and is_main(request):
            self._wanted = (request.method, request.url)
        if SIGN_OUT.search(urlsplit(request.url).path):
            self._signed_out.add(site)
        elif request.method in CHANGING and not _is_question(request):
            self.lease.changed.add(site)

    async def repair(self) -> bool:
        """Logs in again, and opens the page that was asked for, if a site ended the session; returns whether it did.

        An agent that signed itself out stays outside: that was its action. Raises EnvironmentFailure where the site
        does not let the session in again, lost a form that was being sent, or rations posts.
        """
        page, (method, url) = self.session.page, self._wanted
        site = await login_shown(page, self.lease, self.session.operation)
        form = LOGIN_FORMS[site].path if site else ""
        if (
            site is None or site in self._signed_out or form and form in url
        ):  # asked for the form itself
            await self._check_rations(page)
            return False
        changed = set(self.lease.changed)
        await log_in(self.session, self.lease, site)
        self.lease.changed.intersection_update(changed)
        if method != "GET":
            raise EnvironmentFailure(
                "login", f"{site} ended the session while a form was sent to {url[:200]}"
            )
        await self.session.perform(Action("goto", text=url))
        if await login_shown(page, self.lease, self.session.operation) == site:
            raise EnvironmentFailure("login", f"{site} shows its login form again at {url[:200]}")
        return True

    async def _check_rations(self, page: Page) -> None:
        if host_of(page.url) != host_of(self.lease.urls.get("reddit", "")):
            return
        told = page.locator(".form-error-list", has_text=RATIONED)
        if await within(self.session.operation, told.count(), "looking for errors in a form"):
            raise EnvironmentFailure(
                "site", f"reddit rations posts at {page.url[:200]}: turn its limit off"
            )


def _site_of(url: str, lease: Lease) -> str | None:
    """The site that a URL lies in; where two share a host (shop and administration) the one with the longer path."""

    def holds(base: str) -> bool:
        return host_of(base) == host_of(url) and urlsplit(url).path.startswith(urlsplit(base).path)

    sites = [site for site, base in lease.urls.items() if holds(base)]
    return max(sites, key=lambda site: len(lease.urls[site]), default=None)


def _is_question(request: Request) -> bool:
    """GitLab and Magento read by POST, too: a GraphQL query is no change, a mutation is."""
    try:
        return urlsplit(request.url).path.endswith("/graphql") and "mutation" not in (
            request.post_data or ""
        )
    except (PlaywrightError, UnicodeDecodeError):
        return False
