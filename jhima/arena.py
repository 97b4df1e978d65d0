"""Where episodes happen: an arena leases each rollout a world of its own, and `log_in` opens its doors.

An arena is an async context manager with `lease()`; the rest of the code knows nothing else about it, nor which
one it has.
"""
from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import AsyncIterator, Callable
from urllib.request import ProxyHandler, Request, build_opener

from playwright.async_api import Locator, Page

from .browser import Session
from .failures import EnvironmentFailure
from .helpers import within
from .pocket.world import ACCOUNTS

ROOT = Path(__file__).resolve().parent.parent
_OPENER = build_opener(ProxyHandler({}))        # the sites are on this machine, whatever proxy the environment names


@dataclass(frozen=True)
class Lease:
    """One rollout's world.

    urls: site -> base URL (the admin site's ends in /admin). headers: sent with every request of the browser and of
    the evaluators' REST helpers. accounts: site -> (user, password). viewport: (width, height) in CSS pixels.
    """
    urls: dict[str, str]
    headers: dict[str, str]
    accounts: dict[str, tuple[str, str]]
    viewport: tuple[int, int]


class PocketArena:
    """The pocket sites in a process of their own, which ends with this one.

    full: ordinary pages at 1280x720, and longer lists in an order shuffled by `seed`; else small ones at 336x336.
    latency: seconds that every page takes. deadline: seconds for the server to start, or to make a world.
    """

    def __init__(self, full: bool = False, latency: float = 0.0, seed: int = 0, deadline: float = 30.0) -> None:
        self.full, self.latency, self.seed, self.deadline = full, latency, seed, deadline
        self.viewport = (1280, 720) if full else (336, 336)
        self.urls: dict[str, str] = {}
        self._server: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> PocketArena:
        await self._start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stop()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """A fresh world, dropped on every way out. Raises EnvironmentFailure("site") where there is none to have."""
        async with self._lock:
            if self._server.returncode is not None:
                await self._start()             # a dead server's worlds are gone; their episodes fail and are retried
        door = f"{self.urls['map']}/_pocket/worlds"
        made = asyncio.ensure_future(self._ask("POST", door, {"full": self.full, "seed": self.seed}))
        try:
            world = (await asyncio.shield(made))["world"]
            yield Lease(self.urls, {"X-Pocket-World": world}, ACCOUNTS, self.viewport)
        finally:
            await asyncio.shield(self._drop(door, made))    # a cancelled rollout's too, even while it is being made

    async def _drop(self, door: str, made: asyncio.Future) -> None:
        with suppress(EnvironmentFailure):                  # never made, or gone with its server
            await self._ask("DELETE", f"{door}/{(await made)['world']}")

    async def _start(self) -> None:
        command = [sys.executable, "-m", "jhima.pocket", "serve", "--json", "--port", "0"]
        command += ["--latency", str(self.latency)] + ["--full"] * self.full
        # The server ends with its standard input, so it does not outlive this process.
        self._server = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        try:
            self.urls = json.loads(await asyncio.wait_for(self._server.stdout.readline(), self.deadline))["urls"]
        except (TimeoutError, ValueError):
            await self._stop()
            raise EnvironmentFailure("site", f"{' '.join(command[1:])}: no URLs in {self.deadline:g} s") from None

    async def _stop(self) -> None:
        self._server.stdin.close()
        try:
            await asyncio.wait_for(self._server.wait(), 5)
        except TimeoutError:
            self._server.kill()
            await self._server.wait()

    async def _ask(self, method: str, url: str, body: dict | None = None) -> dict:
        def send() -> bytes:
            request = Request(url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}, method=method)
            with _OPENER.open(request, timeout=self.deadline) as reply:
                return reply.read()
        try:
            return json.loads(await asyncio.to_thread(send) or b"{}")
        except (OSError, HTTPException, ValueError) as error:       # HTTPError and time-outs are OSErrors
            raise EnvironmentFailure("site", f"{method} {url}: {error}") from None


@dataclass(frozen=True)
class LoginForm:
    """Where a site's login form is, and how to find its user field, password field and button on the page."""
    path: str
    find: Callable[[Page], tuple[Locator, Locator, Locator]]


# Names as on WebArena's sites; the pocket sites have the same. The map knows no users.
LOGIN_FORMS = {
    "shopping": LoginForm("/customer/account/login/", lambda page: (
        page.get_by_label("Email", exact=True), page.get_by_label("Password", exact=True),
        page.get_by_role("button", name="Sign In"))),
    "shopping_admin": LoginForm("", lambda page: (
        page.get_by_placeholder("user name"), page.get_by_placeholder("password"),
        page.get_by_role("button", name="Sign in"))),
    "reddit": LoginForm("/login", lambda page: (
        page.get_by_label("Username"), page.get_by_label("Password"), page.get_by_role("button", name="Log in"))),
    "gitlab": LoginForm("/users/sign_in", lambda page: (
        page.get_by_test_id("username-field"), page.get_by_test_id("password-field"),
        page.get_by_test_id("sign-in-button"))),
}


async def log_in(session: Session, lease: Lease, site: str) -> None:
    """Fills in and submits the site's login form in the browser, and makes sure that it let the account in.

    Raises EnvironmentFailure("login") where it did not: an episode that begins on a login page tells nothing.
    """
    form, (user, password) = LOGIN_FORMS[site], lease.accounts[site]
    await session.goto(lease.urls[site] + form.path)
    user_field, password_field, button = form.find(session.page)

    async def submit() -> None:
        await user_field.fill(user)
        await password_field.fill(password)
        await button.click()

    await within(session.navigation, submit(), f"the login form of {site}")
    give_up = time.monotonic() + session.operation
    while True:
        status = await session.settle()
        left = not await within(session.operation, password_field.count(), f"checking the login to {site}")
        if left and status < 400:
            return
        if status >= 400 or time.monotonic() > give_up:     # a form that a script checks first goes a little later
            raise EnvironmentFailure("login", f"{site} shows HTTP {status} at {session.page.url[:200]} to {user}")
