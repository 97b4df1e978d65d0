"""The Chromium processes that sessions share: found, started, replaced when they die or wear out, reaped.

The headless shell is preferred: it draws the same pages without a browser's own windows, three times faster here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright

from jhima.browser.lease import Lease, host_of
from jhima.browser.session import Session
from jhima.failures import EnvironmentFailure, within

# Ports that Chromium takes for other protocols' and refuses; WebArena-Lite-v2's own sites stand on 6666 to 6671.
UNSAFE = "1719,1720,1723,2049,3659,4045,4190,5060,5061,6000,6566,6665,6666,6667,6668,6669,6679,6697,10080"
# The last three make pixels the same on every machine and every run.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # WebRTC would go past the proxy
    f"--explicitly-allowed-ports={UNSAFE}",  # the context reaches its lease's hosts only
    "--disable-auto-reload",  # of an error page, while we leave it
    "--disable-smooth-scrolling",
    "--font-render-hinting=none",
    "--disable-lcd-text",
]


START = 30.0  # seconds for a driver or a browser process to start


NOWHERE = "http://127.0.0.1:9"  # the discard port: a proxy that refuses every connection


def find_chromium(driver: Playwright) -> str | None:
    """The browser to run; None stands for Playwright's own download. Raises RuntimeError where there is none."""
    wanted = os.environ.get("CHROMIUM")
    if not wanted and Path(driver.chromium.executable_path).exists():
        return None
    names = (
        [wanted]
        if wanted
        else ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
    )
    for name in names:
        if path := shutil.which(name):
            return path
    raise RuntimeError(
        f"no Chromium at {', '.join(names)}: set CHROMIUM=/path/to/it, run `playwright install chromium`, "
        f"or install your distribution's chromium-headless-shell or chromium"
    )


@dataclass(eq=False)
class _Chromium:
    """A browser process with a driver of its own: a driver is one thread, and its death would be everybody's."""

    driver: Playwright
    browser: Browser
    open: int = 0  # contexts now
    served: int = 0  # contexts so far
    # Contexts open a few at a time: all at once, each would wait for all others and miss its deadline.
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))


class Browsers:
    """`count` Chromium processes that share the sessions between them; an async context manager.

    A process that died or cannot close a context is replaced; so is one that has served `recycle` contexts, since
    browsers grow with use: it closes when its last session ends. Deadlines in seconds, as in `Session`.
    """

    def __init__(
        self,
        count: int = 1,
        operation: float = 15.0,
        navigation: float = 30.0,
        cap: float = 5.0,
        step: float = 90.0,
        recycle: int = 200,
    ) -> None:
        self.count, self.operation, self.navigation, self.cap = count, operation, navigation, cap
        self.step, self.recycle = step, recycle
        self._pool: list[_Chromium] = []
        self._lock = asyncio.Lock()
        self._cleaning: set[asyncio.Task] = set()

    async def __aenter__(self) -> Browsers:
        self._pool.append(
            await self._launch()
        )  # so that a missing browser is told before anything else
        return self

    async def __aexit__(self, *_error: object) -> None:
        for chromium in list(self._pool):
            self._retire(chromium)
        while self._cleaning:
            await asyncio.wait(self._cleaning)

    @asynccontextmanager
    async def session(self, lease: Lease) -> AsyncIterator[Session]:
        """A context of its own for one episode; it reaches the lease's hosts only and is closed on every way out."""
        width, height = lease.viewport
        hosts = {host_of(url) for url in lease.urls.values()}
        hosts |= {host.replace("127.0.0.1:", "localhost:") for host in hosts}
        chromium, context = await self._take(), None
        try:
            async with chromium.opening:
                context = await within(
                    self.operation,
                    chromium.browser.new_context(
                        viewport={"width": width, "height": height},
                        device_scale_factor=1,
                        locale="en-US",
                        extra_http_headers=lease.headers,
                        accept_downloads=False,
                        service_workers="block",
                        proxy={"server": NOWHERE, "bypass": ",".join(sorted(hosts))},
                    ),
                    "opening a context",
                )
                session = Session(
                    context, lease, self.operation, self.navigation, self.cap, self.step
                )
                await session.open()
            yield session
        finally:
            await asyncio.shield(self._clean(self._release(chromium, context)))

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
                await within(self.operation, driver.stop(), "stopping Playwright")
            raise

    async def _release(self, chromium: _Chromium, context: BrowserContext | None) -> None:
        closed = False
        if context is not None:
            with suppress(EnvironmentFailure):
                await within(self.operation, context.close(), "closing a context")
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
        for work in (
            chromium.browser.close,
            chromium.driver.stop,
        ):  # the driver kills what did not close
            with suppress(EnvironmentFailure):
                await within(self.operation, work(), "closing a browser")

    def _clean(self, work: Coroutine) -> asyncio.Task:
        """Runs a clean-up to its end even if the one who asked for it is cancelled."""
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        return task


async def main() -> None:
    """python -m jhima.browser.chromium: says which browser will run, or what to do where there is none."""
    async with async_playwright() as driver:
        try:
            print(find_chromium(driver) or driver.chromium.executable_path)
        except RuntimeError as error:
            sys.exit(f"python -m jhima.browser.chromium: {error}")


if __name__ == "__main__":
    asyncio.run(main())
