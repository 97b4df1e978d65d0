"""How agents see and act: real Chromium, driven through async Playwright with mouse and keyboard events.

A `Session` is one episode's browser context; chromium.py owns the processes. Every wait has a deadline. What is not
the agent's doing (a dead browser, a silent site, HTTP 5xx) is an EnvironmentFailure; an action that could not do
anything is a short note.

Instead of sleeping, `settle` waits until nothing happens any more: one script in the page watches its DOM, one
counter its requests. Instead of routing requests through Python, which costs a round trip each and turns the cache
off, the context has a proxy that nobody answers, and an exception for each of the lease's hosts.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from playwright.async_api import BrowserContext, CDPSession, Dialog, Page, Request
from playwright.async_api import Error as PlaywrightError

from jhima.actions import Action
from jhima.browser.lease import Lease, host_of, is_main
from jhima.browser.page_scripts import (
    BANNER,
    QUIET,
    SELECT_ALL,
    SELECT_BOX,
    SETTLED,
    WATCH,
)
from jhima.failures import EnvironmentFailure, within

ENDLESS = {
    "eventsource",
    "websocket",
    "media",
    "ping",
}  # requests that may last as long as their page


LONGEST_TEXT, LONGEST_WAIT, MOST_PRESSES, MOST_NOTES, MOST_TABS = 1000, 10.0, 50, 5, 8
# What these chords do is a browser's own doing; one without windows leaves it to us.
SHORTCUTS = {
    "Alt+ArrowLeft": "back",
    "Alt+ArrowRight": "forward",
    "Control+[": "back",
    "Control+]": "forward",
    "Control+w": "close",
    "Control+F4": "close",
    "Control+Tab": "next",
    "Control+PageDown": "next",
    "Control+Shift+Tab": "previous",
    "Control+PageUp": "previous",
    "F5": "reload",
    "Control+r": "reload",
}


@dataclass(frozen=True)
class Observation:
    """What an agent sees: the viewport as PNG, width x height pixels (one a CSS pixel), and the page's URL."""

    png: bytes
    url: str
    width: int
    height: int


class Session:
    """One episode's browser context with its tabs; the newest open tab is the current `page`.

    Seconds: `operation` bounds one operation, `navigation` the loading of a page, `cap` the wait for it to settle, and
    `step` a whole observation or action. Every method raises EnvironmentFailure for what is not the agent's doing.
    """

    def __init__(
        self,
        context: BrowserContext,
        lease: Lease,
        operation: float,
        navigation: float,
        cap: float,
        step: float,
    ) -> None:
        self.context, self.operation, self.navigation, self.cap, self.step = (
            context,
            operation,
            navigation,
            cap,
            step,
        )
        self.width, self.height = lease.viewport
        self._origins = {
            host_of(url): "{0.scheme}://{0.netloc}".format(urlsplit(url))
            for url in lease.urls.values()
        }
        self._tabs: list[Page] = []
        self._consoles: dict[Page, CDPSession] = {}
        self._kept: dict[Page, str] = {}  # the last URL of the task's hosts that a tab settled on
        self._pointer = (self.width / 2, self.height / 2)
        self._pending: set[Request] = set()
        self._idle = asyncio.Event()
        self._events = 0  # requests begun and ended so far
        self._notes: list[str] = []  # on the action in progress
        self._said: list[str] = []  # by dialogs since the last observation, which will show it
        context.set_default_timeout(operation * 1000)
        context.set_default_navigation_timeout(navigation * 1000)
        context.on("request", self._began)
        context.on("requestfinished", self._ended)
        context.on("requestfailed", self._failed)
        context.on("dialog", self._accept)

    @property
    def page(self) -> Page:
        return self._tabs[-1]

    async def open(self) -> None:
        """Opens the first tab; for `Browsers.session`."""
        await self._do(
            self.context.add_init_script(WATCH + ";" + SELECT_BOX), "preparing the context"
        )
        self._follow(await self.new_page())

    async def new_page(self) -> Page:
        """A page beside the agent's tabs, for scoring: same cookies, never the current page."""
        return await self._do(self.context.new_page(), "opening a page")

    async def goto(self, url: str, *behind: str) -> None:
        """Opens an episode's page; what the tab showed before is forgotten, so the agent cannot go back to it.

        A task that begins with several pages has the others behind the first: `back` leads to them, for agents have no
        action that changes tabs.
        """
        for number, place in enumerate((*reversed(behind), url)):
            await self._load(self.page.goto(place, wait_until="commit"), f"opening {place}")
            await self.settle()
            if number == 0:
                await self._command("Page.resetNavigationHistory")

    async def observe(self) -> Observation:
        """What the settled page looks like; dialogs since the last observation, which closed at once, in a banner."""
        return await within(self.step, self._observe(), "an observation")

    async def _observe(self) -> Observation:
        await self.settle(acted=False)
        said, self._said = self._said, []
        if said:
            await self._do(
                self.page.evaluate(BANNER, "\n".join(said)), "showing what a dialog said"
            )
        # The fastest way to a page's exact pixels: benchmarks/settle.py measures the others.
        shot = await self._command("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        if said:
            await self._do(self.page.evaluate(BANNER, ""), "showing what a dialog said")
        return Observation(base64.b64decode(shot["data"]), self.page.url, self.width, self.height)

    async def settle(self, acted: bool = True, returns: int = 0) -> int:
        """Waits until page, requests and DOM are quiet; returns the page's HTTP status (0: unknown).

        A page that never falls quiet is taken as it is after `cap` seconds; one that is still being loaded has until the
        `navigation` deadline. A page of a foreign host is left again, with a note; `returns` counts how often.
        """
        clock, began = time.monotonic, time.monotonic()
        while True:
            page, events = self.page, self._events
            status = await self._look(acted, max(0.0, began + self.cap - clock()))
            if page is self.page and events == self._events and not self._pending:
                break
            loading = next((r for r in self._pending if is_main(r)), None)
            left = began + (self.navigation if loading else self.cap) - clock()
            if left <= 0 and loading:
                raise EnvironmentFailure(
                    "deadline", f"{loading.url[:200]}: not loaded in {self.navigation:g} s"
                )
            if left <= 0:
                self._pending.clear()  # what outlasts one wait is not waited for again
                break
            if self._pending:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), left)
        if self._failed_to_load():
            await self._turn_back(returns)
            return await self.settle(returns=returns + 1)
        if status >= 500 or status in (
            410,
            429,
        ):  # 410: the world is gone; 429: the site rations its visitors
            raise EnvironmentFailure("site", f"{self.page.url[:200]}: HTTP {status}")
        if host_of(self.page.url) in self._origins:
            self._kept[self.page] = self.page.url
        return status

    async def perform(self, action: Action) -> str:
        """Carries out one action and lets the page settle; returns "" or notes on what was special or why not.

        Points outside the viewport are moved to its edge.
        """
        self._notes = []
        if action.kind in ("answer", "stop", "ask"):
            return "nobody answers" if action.kind == "ask" else ""
        await within(self.step, self._perform(action), f"the action {action.kind}")
        return "; ".join(self._notes)

    async def _perform(self, action: Action) -> None:
        if self._failed_to_load():  # a new tab for a foreign host may come late
            await self.settle()
        page = self.page
        try:
            await self._act(action)
        except EnvironmentFailure:
            if page is self.page:  # else the action closed its tab, which interrupted it
                raise
        await self.settle()
        while len(self._tabs) > MOST_TABS:  # a page that opens tabs without end
            await self._close(self._tabs[1])

    # ---- actions ----

    async def _act(self, action: Action) -> None:
        mouse, keyboard = self.page.mouse, self.page.keyboard
        match action.kind:
            case "click":
                count = min(max(action.count, 1), 3)
                click = mouse.click(
                    *self._point(action.x, action.y), button=action.button, click_count=count
                )
                await self._do(click, "a click")
            case "hover":
                await self._do(mouse.move(*self._point(action.x, action.y)), "a move of the mouse")
            case "drag":
                await self._do(self._drag(action), "a drag")
            case "scroll":
                at = (self.width / 2, self.height / 2) if action.x is None else (action.x, action.y)
                await self._do(mouse.move(*self._point(*at)), "a move of the mouse")
                dx, dy = (min(max(-10_000.0, d), 10_000.0) for d in (action.dx, action.dy))
                await self._do(mouse.wheel(dx, dy), "a scroll")
            case "type":
                if action.clear:  # as a person would who clicks into a field to fill it anew
                    await self._do(self.page.evaluate(SELECT_ALL), "selecting a field's text")
                    if not action.text:
                        await self._do(keyboard.press("Delete"), "a key")
                for i in range(
                    0, min(len(action.text), LONGEST_TEXT), 100
                ):  # each part has its own deadline
                    await self._do(
                        keyboard.type(action.text[i : min(i + 100, LONGEST_TEXT)]), "typing"
                    )
                if len(action.text) > LONGEST_TEXT:
                    self._note(f"only the first {LONGEST_TEXT} characters were typed")
                if action.submit:
                    await self._do(keyboard.press("Enter"), "a key")
            case "select":
                await self._select(action)
            case "key":
                await self._press(action)
            case "wait":
                await asyncio.sleep(min(max(0.0, action.seconds), LONGEST_WAIT))
            case "goto":
                await self._visit(action.text)
            case "back" | "forward":
                await self._go(action.kind)

    def _point(self, x: float | None, y: float | None) -> tuple[float, float]:
        """Where the pointer goes: the pixel that (x, y) lies in, inside the viewport, or where the pointer is."""
        if x is not None and y is not None:  # Chromium would round 23.9 up, onto the next pixel
            self._pointer = (
                int(min(max(0.0, x), self.width - 1)),
                int(min(max(0.0, y), self.height - 1)),
            )
        return self._pointer

    async def _drag(self, action: Action) -> None:
        mouse = self.page.mouse
        await mouse.move(*self._point(action.x, action.y))
        await mouse.down(button=action.button)
        await mouse.move(
            *self._point(*(action.to or (None, None))), steps=12
        )  # pages watch for moves on the way
        await mouse.up(button=action.button)

    async def _press(self, action: Action) -> None:
        chord = "+".join(action.keys)
        if action.how in ("chord", "sequence") and chord in SHORTCUTS:
            return await self._go(SHORTCUTS[chord])
        keyboard = self.page.keyboard
        press = {"down": keyboard.down, "up": keyboard.up}.get(action.how, keyboard.press)
        for key in ([chord] if action.how == "chord" else action.keys) * min(
            max(action.times, 1), MOST_PRESSES
        ):
            try:
                await self._do(press(key), "a key")
            except EnvironmentFailure as failure:
                if "Unknown key" not in failure.detail:
                    raise
                if len(key) > 1:
                    return self._note(f"no such key: {key[:40]}")
                await self._do(
                    keyboard.insert_text(key), "a key"
                )  # é has no key on an American keyboard

    async def _select(self, action: Action) -> None:
        """Opens the select box at a point and clicks the option with this label or value; anything else is clicked."""
        await self._do(
            self.page.evaluate("window.__options?.shut()"), "a select box"
        )  # a click would only shut it
        await self._do(self.page.mouse.click(*self._point(action.x, action.y)), "a click")
        find = self.page.evaluate("text => window.__options?.find(text) ?? null", action.option)
        if place := await self._do(find, "a select box"):
            await self._do(self.page.mouse.click(*place), "a click")
        elif place is not None:
            await self._do(self.page.keyboard.press("Escape"), "a key")
            self._note(f"the box has no option {action.option[:80]!r} to choose")

    async def _go(self, way: str) -> None:
        """Where a browser's own buttons lead: back, forward, reload; close, next, previous tab.

        Back from where a tab began closes it, for it leads to the page that opened it.
        """
        if way == "reload":
            await self._load(self.page.reload(wait_until="commit"), "loading the page again")
        elif way in ("next", "previous") and len(self._tabs) > 1:
            turn = 1 if way == "previous" else -1
            self._tabs = self._tabs[-turn:] + self._tabs[:-turn]
        elif way in ("back", "forward") and await self._turn(way):
            return
        elif way in ("back", "close") and len(self._tabs) > 1:
            self._note("closed the tab")
            await self._close(self.page)
        elif way in ("back", "forward"):
            self._note(f"there is no page to go {way} to")
        else:
            self._note("there is no other tab")

    async def _visit(self, text: str) -> None:
        """Opens a URL that the agent wrote, its origin spelled as in the lease, whose cookies it needs."""
        url = text.strip() if "://" in text else f"http://{text.strip()}"
        origin = self._origins.get(host_of(url))
        if origin is None:
            return self._note(f"not on the task's sites: {text[:80]}")
        parts = urlsplit(url)
        target = origin + urlunsplit(("", "", parts.path or "/", parts.query, parts.fragment))
        try:
            await self._load(self.page.goto(target, wait_until="commit"), f"opening {target[:200]}")
        except EnvironmentFailure as failure:
            # Redirected to a foreign host, which is noted, or answered without a page.
            if not any(word in failure.detail for word in ("ERR_PROXY", "ERR_ABORTED", "Download")):
                raise

    async def _turn(self, way: str) -> bool:
        """One page back or forward in the tab's history; never to the blank page where a tab begins."""
        history = await self._command("Page.getNavigationHistory")
        wanted = history["currentIndex"] + (1 if way == "forward" else -1)
        if (
            not 0 <= wanted < len(history["entries"])
            or history["entries"][wanted]["url"] == "about:blank"
        ):
            return False
        turn = self.page.go_forward if way == "forward" else self.page.go_back
        await self._load(turn(wait_until="commit"), f"going {way}")
        return True

    def _failed_to_load(self) -> bool:
        return self.page.url.startswith("chrome-error:")

    async def _turn_back(self, returns: int) -> None:
        """Leaves the error page of a foreign host for the page before, or closes the tab that opened with it.

        Back in the history that page is as it was left; it is loaded anew where that leads away again, and where the
        redirect took its place in the history.
        """
        page, history = self.page, await self._command("Page.getNavigationHistory")
        now, entries = history["currentIndex"], history["entries"]
        url = entries[now]["url"]  # page.url has the error page's own
        if host_of(url) in self._origins or returns > 3:
            raise EnvironmentFailure("site", f"{url[:200]}: did not load")
        kept = self._kept.get(page)
        if kept is None and len(self._tabs) > 1:
            await self._close(page)
        elif kept is None or not returns and now and entries[now - 1]["url"] == kept:
            await self._turn("back")
        else:
            await self._load(page.goto(kept, wait_until="commit"), f"opening {kept[:200]}")

    async def _close(self, page: Page) -> None:
        await self._do(page.close(), "closing a tab")
        self._closed(page)

    # ---- waiting ----

    async def _do(self, work: Coroutine, doing: str):
        return await within(self.operation, work, doing)

    async def _load(self, work: Coroutine, doing: str):
        return await within(self.navigation, work, doing)

    async def _look(self, acted: bool, left: float) -> int:
        page = self.page
        try:
            look = page.evaluate(SETTLED, [QUIET * 1000, left * 1000, acted])
            return await within(
                self.operation + left, look, "settling"
            )  # a busy page never answers
        except EnvironmentFailure as failure:
            if page is self.page and "context was destroyed" not in failure.detail:
                raise
            self._events += 1  # a new page or tab came: look at that
            return 0

    async def _command(self, method: str, **params: object) -> dict:
        """A command of the DevTools protocol on the current page; refused for an instant while it changes process."""
        give_up = time.monotonic() + self.operation
        while True:
            page = self.page
            try:
                if page not in self._consoles:
                    self._consoles[page] = await self._do(
                        self.context.new_cdp_session(page), "attaching to a tab"
                    )
                return await self._do(self._consoles[page].send(method, params), method)
            except EnvironmentFailure as failure:
                if "Not attached" not in failure.detail or time.monotonic() > give_up:
                    raise
            await asyncio.sleep(0.02)

    # ---- what the browser tells ----

    def _note(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < MOST_NOTES:
            self._notes.append(text)

    def _follow(self, page: Page) -> None:
        self._tabs.append(page)
        page.on("popup", self._follow)
        page.on("close", self._closed)
        page.on("download", lambda _download: self._note("downloads are not allowed"))

    def _closed(self, page: Page) -> None:
        if len(self._tabs) > 1 and page in self._tabs:
            self._tabs.remove(page)
            self._pending.clear()  # its requests may never be reported as ended
            self._idle.set()

    def _began(self, request: Request) -> None:
        if request.resource_type not in ENDLESS:
            self._pending.add(request)
            self._events += 1
            self._idle.clear()

    def _ended(self, request: Request) -> None:
        if request in self._pending:
            self._pending.remove(request)
            self._events += 1
            if not self._pending:
                self._idle.set()

    def _failed(self, request: Request) -> None:
        if is_main(request) and (host := host_of(request.url)) not in self._origins:
            self._note(f"not on the task's sites: {host or request.url[:80]}")
        self._ended(request)

    async def _accept(self, dialog: Dialog) -> None:
        if dialog.type != "beforeunload":  # it asks whether to leave, in words of the browser's own
            self._note(f"the page asked {dialog.message[:200]!r}: accepted")
            if len(self._said) < MOST_NOTES:
                self._said.append(f"The page said: {dialog.message[:200]} (accepted)")
        with suppress(PlaywrightError, TimeoutError):  # a dead page fails in what waits for it
            await asyncio.wait_for(dialog.accept(dialog.default_value), self.operation)
