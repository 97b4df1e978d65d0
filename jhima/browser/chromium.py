"""The Chromium processes that sessions share: found, started, replaced when dead or worn, reaped.

The headless shell is preferred: it draws the same pages without a browser's own windows, and did so
three times as fast when measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright

from jhima.browser.lease import Lease
from jhima.browser.session import Session
from jhima.browser.tabs import Deadlines
from jhima.failures import EnvironmentFailure, within

T = TypeVar("T")

# Ports that Chromium refuses because other protocols use them; the sites of WebArena-Lite-v2's own
# deployment have 6666 to 6671.
UNSAFE = (
    "1719,1720,1723,2049,3659,4045,4190,5060,5061,6000,6566,6665,6666,6667,6668,6669,6679,6697,"
    "10080"
)
# fmt: off
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # WebRTC would bypass the proxy
    f"--explicitly-allowed-ports={UNSAFE}",  # the context reaches its lease's hosts only
    "--disable-auto-reload",  # of an error page, while we leave it
    # These make pixels the same on every machine and in every run.
    "--disable-smooth-scrolling", "--font-render-hinting=none", "--disable-lcd-text",
]
# fmt: on

START = 30.0  # seconds for a driver or a browser process to start
NOWHERE = "http://127.0.0.1:9"  # the discard port: a proxy that refuses every connection


def find_chromium(driver: Playwright) -> str | None:
    """The browser to run; None stands for Playwright's own download.

    Raises RuntimeError where there is none.
    """
    names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
    if os.environ.get("CHROMIUM"):
        names = [os.environ["CHROMIUM"]]
    elif Path(driver.chromium.executable_path).exists():
        return None
    for name in names:
        if path := shutil.which(name):
            return path
    raise RuntimeError(
        f"no Chromium at {', '.join(names)}: set CHROMIUM=/path/to/it, run `playwright install "
        "chromium`, or install your distribution's chromium-headless-shell or chromium"
    )


@dataclass(eq=False)
class _Chromium:
    """A browser process with a driver of its own, whose death would otherwise end all browsers."""

    driver: Playwright
    browser: Browser
    open: int = 0  # contexts now
    served: int = 0  # contexts so far
    # Contexts open a few at a time: all at once, each would wait for all others, past its deadline.
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))


class Browsers:
    """`count` Chromium processes that share the sessions between them; an async context manager.

    A process that died or cannot close a context is replaced. So is one that has served `recycle`
    contexts, since browsers grow with use; it closes when its last session ends. `deadlines`: the
    fields of `tabs.Deadlines`, in seconds.
    """

    def __init__(self, count: int = 1, recycle: int = 200, **deadlines: float) -> None:
        self.count, self.recycle, self.deadlines = count, recycle, Deadlines(**deadlines)
        self._pool: list[_Chromium] = []
        self._lock = asyncio.Lock()
        self._cleaning: set[asyncio.Task] = set()

    async def __aenter__(self) -> Browsers:
        # Started at once, so that a missing browser is reported before anything else.
        self._pool.append(await self._launch())
        return self

    async def __aexit__(self, *_error: object) -> None:
        for chromium in list(self._pool):
            self._retire(chromium)
        while self._cleaning:
            await asyncio.wait(self._cleaning)

    @asynccontextmanager
    async def session(self, lease: Lease) -> AsyncIterator[Session]:
        """A context of its own for one episode, which reaches the lease's hosts only.

        It is closed on every way out. Requests are not routed through Python, which costs a round
        trip each and turns the cache off; instead the context has a proxy that nobody answers, and
        an exception from it for each of the lease's hosts.
        """
        width, height = lease.viewport
        hosts = lease.reachable
        hosts |= {host.replace("127.0.0.1:", "localhost:") for host in hosts}
        chromium, context = await self._take(), None
        try:
            async with chromium.opening:
                opening = chromium.browser.new_context(
                    viewport={"width": width, "height": height},
                    device_scale_factor=1,
                    locale="en-US",
                    extra_http_headers=lease.headers,
                    accept_downloads=False,
                    service_workers="block",
                    proxy={"server": NOWHERE, "bypass": ",".join(sorted(hosts))},
                )
                context = await self._within(opening, "opening a context")
                session = Session(context, lease, self.deadlines)
                await session.tabs.open()
            yield session
        finally:
            await asyncio.shield(self._clean(self._release(chromium, context)))

    async def _within(self, work: Awaitable[T], doing: str) -> T:
        return await within(self.deadlines.operation, work, doing)

    async def _take(self) -> _Chromium:
        """The least busy browser, after replacing those that are dead or worn."""
        async with self._lock:
            for chromium in list(self._pool):
                if not chromium.browser.is_connected() or chromium.served >= self.recycle:
                    self._retire(chromium)
            while len(self._pool) < self.count:
                self._pool.append(await self._launch())
            chromium = min(self._pool, key=lambda c: (c.open, c.served))
            chromium.open += 1
            chromium.served += 1
            return chromium

    async def _launch(self) -> _Chromium:
        driver = await within(START, async_playwright().start(), "starting Playwright")
        try:
            launch = driver.chromium.launch(executable_path=find_chromium(driver), args=FLAGS)
            return _Chromium(driver, await within(START, launch, "starting Chromium"))
        except BaseException:
            with suppress(EnvironmentFailure):
                await self._within(driver.stop(), "stopping Playwright")
            raise

    async def _release(self, chromium: _Chromium, context: BrowserContext | None) -> None:
        closed = False
        if context is not None:
            with suppress(EnvironmentFailure):
                await self._within(context.close(), "closing a context")
                closed = True
        chromium.open -= 1
        if not closed and chromium in self._pool:
            self._retire(chromium)
        elif chromium not in self._pool and not chromium.open:
            await self._close(chromium)

    def _retire(self, chromium: _Chromium) -> None:
        """No new session; the process ends with its last one."""
        self._pool.remove(chromium)
        if not chromium.open:
            self._clean(self._close(chromium))

    async def _close(self, chromium: _Chromium) -> None:
        # The driver kills what did not close.
        for close in (chromium.browser.close, chromium.driver.stop):
            with suppress(EnvironmentFailure):
                await self._within(close(), "closing a browser")

    def _clean(self, work: Coroutine) -> asyncio.Task:
        """Runs a clean-up to its end even if the one who asked for it is cancelled."""
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        return task


async def main() -> None:
    """python -m jhima.browser.chromium: which browser will run, or what to do if there is none."""
    async with async_playwright() as driver:
        try:
            print(find_chromium(driver) or driver.chromium.executable_path)
        except RuntimeError as error:
            sys.exit(f"python -m jhima.browser.chromium: {error}")


if __name__ == "__main__":
    asyncio.run(main())
