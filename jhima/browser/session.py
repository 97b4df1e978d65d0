"""How agents see and act: real Chromium, driven through async Playwright with mouse and keyboard.

A `Session` is one episode's browser context; tabs.py follows its tabs and waits for them, and
chromium.py owns the processes. Every wait has a deadline. What is not the agent's doing (a dead
browser, a silent site, HTTP 5xx) is an EnvironmentFailure; an action without effect leaves a note.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from playwright.async_api import BrowserContext, Page

from jhima.actions import Action
from jhima.browser.lease import Lease, host_of
from jhima.browser.page_scripts import BANNER, SELECT_ALL
from jhima.browser.tabs import Deadlines, Tabs
from jhima.failures import EnvironmentFailure, within

LONGEST_TEXT, LONGEST_WAIT, MOST_PRESSES, MOST_TABS = 1000, 10.0, 50, 8
MOST_SCROLLED = 10_000.0  # CSS pixels

# A browser with windows carries these chords out itself; one without leaves them to us.
# fmt: off
SHORTCUTS = {
    "Alt+ArrowLeft": "back", "Control+[": "back",
    "Alt+ArrowRight": "forward", "Control+]": "forward",
    "Control+w": "close", "Control+F4": "close",
    "Control+Tab": "next", "Control+PageDown": "next",
    "Control+Shift+Tab": "previous", "Control+PageUp": "previous",
    "F5": "reload", "Control+r": "reload",
}
# fmt: on


@dataclass(frozen=True)
class Observation:
    """What an agent sees: the viewport as PNG, one pixel per CSS pixel, and the page's URL."""

    png: bytes
    url: str
    width: int
    height: int


class Session:
    """One episode's browser context.

    Every method raises EnvironmentFailure for what is not the agent's doing.
    """

    def __init__(self, context: BrowserContext, lease: Lease, deadlines: Deadlines) -> None:
        self.context, self.tabs = context, Tabs(context, lease, deadlines)
        self.operation, self.navigation = deadlines.operation, deadlines.navigation
        self.step = deadlines.step
        self.width, self.height = lease.viewport
        self.homepage = lease.homepage
        self._pointer = (self.width / 2, self.height / 2)

    @property
    def page(self) -> Page:
        """The page of the newest open tab."""
        return self.tabs.page

    async def new_page(self) -> Page:
        """A page beside the agent's tabs, for scoring: same cookies, never the current page."""
        return await self.tabs.new_page()

    async def goto(self, url: str, *behind: str) -> None:
        """Opens an episode's page. The agent cannot go back to what the tab showed before.

        A task that begins with several pages has the others behind the first: `back` leads to them,
        for agents have no action that changes tabs.
        """
        for number, page_url in enumerate((*reversed(behind), url)):
            opening = self.page.goto(page_url, wait_until="commit")
            await self.tabs.load(opening, f"opening {page_url}")
            await self.tabs.settle()
            if number == 0:
                await self.tabs.command("Page.resetNavigationHistory")

    async def observe(self) -> Observation:
        """What the settled page looks like.

        Dialogs since the last observation, which closed at once, show in a banner.
        """
        return await within(self.step, self._observe(), "an observation")

    async def _observe(self) -> Observation:
        await self.tabs.settle(acted=False)
        messages, self.tabs.messages = self.tabs.messages, []
        if messages:
            await self._show_banner("\n".join(messages))
        # The fastest way to a page's exact pixels: benchmarks/settle.py measures the others.
        shot = await self.tabs.command(
            "Page.captureScreenshot", format="png", optimizeForSpeed=True
        )
        if messages:
            await self._show_banner("")
        png = base64.b64decode(shot["data"])
        return Observation(png, self.page.url, self.width, self.height)

    async def _show_banner(self, text: str) -> None:
        await self._run(self.page.evaluate(BANNER, text), "showing what a dialog said")

    async def perform(self, action: Action) -> str:
        """Carries out one action and lets the page settle.

        Returns notes on what was special, or on why there was no effect; "" if nothing was. Points
        outside the viewport are moved to its edge.
        """
        self.tabs.notes = []
        if action.kind == "ask":
            return "nobody answers"
        if action.kind not in ("answer", "stop"):
            await within(self.step, self._perform(action), f"the action {action.kind}")
        return "; ".join(self.tabs.notes)

    async def _perform(self, action: Action) -> None:
        if self.tabs.failed_to_load:  # a new tab for a foreign host may come late
            await self.tabs.settle()
        page = self.page
        try:
            await self.act(action)
        except EnvironmentFailure:
            if page is self.page:  # else the action closed its tab, which interrupted it
                raise
        await self.tabs.settle()
        while len(self.tabs.pages) > MOST_TABS:  # a page that opens tabs without end
            await self.tabs.close(self.tabs.pages[1])

    async def act(self, action: Action) -> None:
        """Carries out one action, without waiting for what it leads to."""
        mouse = self.page.mouse
        match action.kind:
            case "click":
                await self._click(action.x, action.y, action.button, min(max(action.count, 1), 3))
            case "hover":
                await self._hover(action.x, action.y)
            case "drag":
                await self._run(self._drag(action), "a drag")
            case "scroll":
                if action.x is None:
                    await self._hover(self.width / 2, self.height / 2)
                else:
                    await self._hover(action.x, action.y)
                dx, dy = _clamped(action.dx), _clamped(action.dy)
                await self._run(mouse.wheel(dx, dy), "a scroll")
            case "type":
                await self._type(action)
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

    async def _run(self, work, doing: str):
        return await self.tabs.run(work, doing)

    # ---- mouse ----

    def _point(self, x: float | None, y: float | None) -> tuple[float, float]:
        """Moves the pointer to the pixel with (x, y), inside the viewport; None: it stays."""
        if x is not None and y is not None:  # Chromium would round 23.9 up, onto the next pixel
            column = int(min(max(0.0, x), self.width - 1))
            row = int(min(max(0.0, y), self.height - 1))
            self._pointer = (column, row)
        return self._pointer

    async def _click(self, x: float, y: float, button: str = "left", count: int = 1) -> None:
        x, y = self._point(x, y)
        await self._run(self.page.mouse.click(x, y, button=button, click_count=count), "a click")

    async def _hover(self, x: float, y: float) -> None:
        await self._run(self.page.mouse.move(*self._point(x, y)), "a move of the mouse")

    async def _drag(self, action: Action) -> None:
        mouse = self.page.mouse
        await mouse.move(*self._point(action.x, action.y))
        await mouse.down(button=action.button)
        target = self._point(*(action.to or (None, None)))
        await mouse.move(*target, steps=12)  # pages watch for moves on the way
        await mouse.up(button=action.button)

    async def _select(self, action: Action) -> None:
        """Opens the select box at a point and clicks the option with this label or value.

        Anything else at the point is clicked.
        """
        # A click on an open box would only shut it.
        await self._run(self.page.evaluate("window.__options?.shut()"), "a select box")
        await self._click(action.x, action.y)
        find = "text => window.__options?.find(text) ?? null"
        point = await self._run(self.page.evaluate(find, action.option), "a select box")
        if point:
            await self._run(self.page.mouse.click(*point), "a click")
        elif point is not None:
            await self._run(self.page.keyboard.press("Escape"), "a key")
            self.tabs.note(f"the box has no option {action.option[:80]!r} to choose")

    # ---- keyboard ----

    async def _type(self, action: Action) -> None:
        keyboard = self.page.keyboard
        if action.clear:  # as a person would who clicks into a field to fill it anew
            await self._run(self.page.evaluate(SELECT_ALL), "selecting a field's text")
            if not action.text:
                await self._run(keyboard.press("Delete"), "a key")
        text = action.text[:LONGEST_TEXT]
        for start in range(0, len(text), 100):  # each part has its own deadline
            await self._run(keyboard.type(text[start : start + 100]), "typing")
        if len(action.text) > LONGEST_TEXT:
            self.tabs.note(f"only the first {LONGEST_TEXT} characters were typed")
        if action.submit:
            await self._run(keyboard.press("Enter"), "a key")

    async def _press(self, action: Action) -> None:
        keyboard, chord = self.page.keyboard, "+".join(action.keys)
        if action.how in ("chord", "sequence") and chord in SHORTCUTS:
            return await self._go(SHORTCUTS[chord])
        press = {"down": keyboard.down, "up": keyboard.up}.get(action.how, keyboard.press)
        keys = [chord] if action.how == "chord" else action.keys
        for key in keys * min(max(action.times, 1), MOST_PRESSES):
            try:
                await self._run(press(key), "a key")
            except EnvironmentFailure as failure:
                if "Unknown key" not in failure.detail:
                    raise
                if len(key) > 1:
                    return self.tabs.note(f"no such key: {key[:40]}")
                # é has no key on an American keyboard
                await self._run(keyboard.insert_text(key), "a key")

    # ---- the browser's own buttons ----

    async def _go(self, button: str) -> None:
        """back, forward, reload; close, next, previous tab.

        Back from where a tab began closes it, for it leads to the page that opened it.
        """
        tabs = self.tabs
        if button == "reload":
            await tabs.load(self.page.reload(wait_until="commit"), "loading the page again")
        elif button == "next" and len(tabs.pages) > 1:
            tabs.pages = tabs.pages[1:] + tabs.pages[:1]
        elif button == "previous" and len(tabs.pages) > 1:
            tabs.pages = tabs.pages[-1:] + tabs.pages[:-1]
        elif button in ("back", "forward") and await tabs.turn(button):
            return
        elif button in ("back", "close") and len(tabs.pages) > 1:
            tabs.note("closed the tab")
            await tabs.close(self.page)
        elif button in ("back", "forward"):
            tabs.note(f"there is no page to go {button} to")
        else:
            tabs.note("there is no other tab")

    async def _visit(self, text: str) -> None:
        """Opens a URL that the agent wrote, its origin spelled as in the lease for the cookies."""
        url = text.strip() if "://" in text else f"http://{text.strip()}"
        if self.homepage and host_of(url) == "homepage.com:80":
            return await self.tabs.load(self.page.goto(self.homepage), "opening the list of sites")
        origin = self.tabs.origins.get(host_of(url))
        if origin is None:
            return self.tabs.note(f"not on the task's sites: {text[:80]}")
        parts = urlsplit(url)
        target = origin + urlunsplit(("", "", parts.path or "/", parts.query, parts.fragment))
        opening = self.page.goto(target, wait_until="commit")
        try:
            await self.tabs.load(opening, f"opening {target[:200]}")
        except EnvironmentFailure as failure:
            # Redirected to a foreign host, which is noted, or answered without a page.
            expected = ("ERR_PROXY", "ERR_ABORTED", "Download")
            if not any(word in failure.detail for word in expected):
                raise


def _clamped(pixels: float) -> float:
    return min(max(-MOST_SCROLLED, pixels), MOST_SCROLLED)
