"""The tabs of one episode's browser context: which one is current, and when its page is quiet.

Instead of sleeping, `settle` waits until nothing happens any more: a script in the page watches its
DOM, and a counter its requests. Foreign hosts are out of reach (chromium.py); a page that leads to
one is left again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, CDPSession, Dialog, Page, Request
from playwright.async_api import Error as PlaywrightError

from jhima.browser.lease import Lease, host_of, is_main
from jhima.browser.page_scripts import QUIET, SELECT_BOX, SETTLED, WATCH
from jhima.failures import EnvironmentFailure, within

# Requests that may last as long as their page.
ENDLESS = {"eventsource", "websocket", "media", "ping"}
MOST_NOTES = 5
MOST_RETURNS = 3  # how often one wait leaves pages of foreign hosts

T = TypeVar("T")


@dataclass(frozen=True)
class Deadlines:
    """Seconds for one operation of the browser, for a page to load, for it to fall quiet, and for a
    whole observation or action."""

    operation: float = 15.0
    navigation: float = 30.0
    quiet: float = 5.0
    step: float = 90.0


class Tabs:
    """The open tabs; the newest is the current `page`. Methods raise EnvironmentFailure.

    notes: what was special during the current action. messages: what dialogs said since the last
    observation. origins: host -> scheme and host as the lease spells them.
    """

    def __init__(self, context: BrowserContext, lease: Lease, deadlines: Deadlines) -> None:
        self.context, self.deadlines = context, deadlines
        self.broken, self.origins = lease.broken, {}
        for url in lease.urls.values():
            parts = urlsplit(url)
            self.origins[host_of(url)] = f"{parts.scheme}://{parts.netloc}"
        self.pages: list[Page] = []
        self.notes: list[str] = []
        self.messages: list[str] = []
        self._consoles: dict[Page, CDPSession] = {}
        self._last_urls: dict[Page, str] = {}  # where each tab last settled on the task's hosts
        self._pending: set[Request] = set()
        self._idle = asyncio.Event()  # set when no request is pending any more
        self._events = 0  # requests begun and ended so far
        context.set_default_timeout(deadlines.operation * 1000)
        context.set_default_navigation_timeout(deadlines.navigation * 1000)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_request_end)
        context.on("requestfailed", self._on_request_failure)
        context.on("dialog", self._on_dialog)

    @property
    def page(self) -> Page:
        return self.pages[-1]

    @property
    def failed_to_load(self) -> bool:
        return self.page.url.startswith("chrome-error:")

    async def open(self) -> None:
        """Opens the first tab."""
        scripts = self.context.add_init_script(WATCH + ";" + SELECT_BOX)
        await self.run(scripts, "preparing the context")
        self._on_tab(await self.new_page())

    async def new_page(self) -> Page:
        """A page beside the tabs: same cookies, never the current page."""
        return await self.run(self.context.new_page(), "opening a page")

    async def run(self, work: Awaitable[T], doing: str) -> T:
        return await within(self.deadlines.operation, work, doing)

    async def load(self, work: Awaitable[T], doing: str) -> T:
        return await within(self.deadlines.navigation, work, doing)

    async def command(self, method: str, **params: object) -> dict:
        """A command of the DevTools protocol on the current page.

        It is sent again while the page changes its process, for an instant in which it is refused.
        """
        give_up = time.monotonic() + self.deadlines.operation
        while True:
            page = self.page
            try:
                if page not in self._consoles:
                    console = self.context.new_cdp_session(page)
                    self._consoles[page] = await self.run(console, "attaching to a tab")
                return await self.run(self._consoles[page].send(method, params), method)
            except EnvironmentFailure as failure:
                if "Not attached" not in failure.detail or time.monotonic() > give_up:
                    raise
            await asyncio.sleep(0.02)

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    # ---- moving ----

    async def turn(self, direction: str) -> bool:
        """One page "back" or "forward" in the tab's history, if there is one.

        The blank page where a tab begins does not count.
        """
        history = await self.command("Page.getNavigationHistory")
        index = history["currentIndex"] + (1 if direction == "forward" else -1)
        if not 0 <= index < len(history["entries"]):
            return False
        if history["entries"][index]["url"] == "about:blank":
            return False
        turn = self.page.go_forward if direction == "forward" else self.page.go_back
        await self.load(turn(wait_until="commit"), f"going {direction}")
        return True

    async def close(self, page: Page) -> None:
        await self.run(page.close(), "closing a tab")
        self._on_close(page)

    async def _leave_foreign_host(self, returns: int) -> None:
        """Leaves the error page of a foreign host for the page before it, or closes its new tab.

        Back in the history the page before is as it was left. It is loaded anew where that leads
        away again, and where the redirect took its place in the history.
        """
        page, history = self.page, await self.command("Page.getNavigationHistory")
        index, entries = history["currentIndex"], history["entries"]
        url = entries[index]["url"]  # page.url is the error page's own
        if host_of(url) in self.origins or returns > MOST_RETURNS:
            raise EnvironmentFailure("site", f"{url[:200]}: did not load")
        last_url = self._last_urls.get(page)
        if last_url is None and len(self.pages) > 1:
            await self.close(page)
        elif last_url is None or (not returns and index and entries[index - 1]["url"] == last_url):
            await self.turn("back")
        else:
            await self.load(page.goto(last_url, wait_until="commit"), f"opening {last_url[:200]}")

    # ---- waiting ----

    async def settle(self, acted: bool = True, returns: int = 0) -> int:
        """Waits until requests and DOM are quiet; returns the page's HTTP status (0: unknown).

        After the `quiet` deadline a restless page is taken as it is; a page that is still being
        loaded has until the `navigation` deadline. A page of a foreign host is left again, with a
        note; `returns` counts how often. `acted`: what was just done may still have consequences.
        """
        status = await self._wait_for_quiet(acted)
        if self.failed_to_load:
            await self._leave_foreign_host(returns)
            return await self.settle(returns=returns + 1)
        if status >= 500 or status in self.broken:
            raise EnvironmentFailure("site", f"{self.page.url[:200]}: HTTP {status}")
        if host_of(self.page.url) in self.origins:
            self._last_urls[self.page] = self.page.url
        return status

    async def _wait_for_quiet(self, acted: bool) -> int:
        begun = time.monotonic()
        while True:
            page, events = self.page, self._events
            left = begun + self.deadlines.quiet - time.monotonic()
            status = await self._look(acted, max(0.0, left))
            if page is self.page and events == self._events and not self._pending:
                return status
            loading = next((request for request in self._pending if is_main(request)), None)
            limit = self.deadlines.navigation if loading else self.deadlines.quiet
            left = begun + limit - time.monotonic()
            if left <= 0 and loading:
                raise EnvironmentFailure(
                    "deadline", f"{loading.url[:200]}: not loaded in {limit:g} s"
                )
            if left <= 0:
                self._pending.clear()  # what outlasts one wait is not waited for again
                return status
            if self._pending:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), left)

    async def _look(self, acted: bool, seconds: float) -> int:
        page = self.page
        look = page.evaluate(SETTLED, [QUIET * 1000, seconds * 1000, acted])
        try:
            # With a deadline, for a busy page never answers.
            return await within(self.deadlines.operation + seconds, look, "settling")
        except EnvironmentFailure as failure:
            if page is self.page and "context was destroyed" not in failure.detail:
                raise
            self._events += 1  # a new page or tab came: look at that
            return 0

    # ---- the browser's events ----

    def _on_tab(self, page: Page) -> None:
        self.pages.append(page)
        page.on("popup", self._on_tab)
        page.on("close", self._on_close)
        page.on("download", lambda _download: self.note("downloads are not allowed"))

    def _on_close(self, page: Page) -> None:
        if len(self.pages) > 1 and page in self.pages:
            self.pages.remove(page)
            self._pending.clear()  # its requests may never be reported as ended
            self._idle.set()

    def _on_request(self, request: Request) -> None:
        if request.resource_type not in ENDLESS:
            self._pending.add(request)
            self._events += 1
            self._idle.clear()

    def _on_request_end(self, request: Request) -> None:
        if request in self._pending:
            self._pending.remove(request)
            self._events += 1
            if not self._pending:
                self._idle.set()

    def _on_request_failure(self, request: Request) -> None:
        host = host_of(request.url)
        if is_main(request) and host not in self.origins:
            self.note(f"not on the task's sites: {host or request.url[:80]}")
        self._on_request_end(request)

    async def _on_dialog(self, dialog: Dialog) -> None:
        if dialog.type != "beforeunload":  # which asks whether to leave, in the browser's own words
            self.note(f"the page asked {dialog.message[:200]!r}: accepted")
            if len(self.messages) < MOST_NOTES:
                self.messages.append(f"The page said: {dialog.message[:200]} (accepted)")
        with suppress(PlaywrightError, TimeoutError):  # a dead page fails in what waits for it
            accepting = dialog.accept(dialog.default_value)
            await asyncio.wait_for(accepting, self.deadlines.operation)
