"""Where pocket episodes play: an arena leases a world to each rollout.

An arena is an async context manager with `lease(task)`. The rest of the code knows nothing else
about it, nor which one it has: the pocket sites below, or WebArena's (jhima/webarena/replicas.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.request import Request

from jhima.browser.fetch import fetch
from jhima.browser.lease import Lease
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.sites import ACCOUNTS, LOGIN_FORMS

# The pocket forum has no page of a user's account, but lets nobody in without a login.
FORMS = LOGIN_FORMS | {"reddit": replace(LOGIN_FORMS["reddit"], inside="/")}
ROOT = Path(__file__).resolve().parents[2]


class PocketArena:
    """The pocket sites in a process of their own, which ends with this one.

    full: ordinary pages at 1280x720, and longer lists in an order shuffled by `seed`; else small
    pages at 336x336. latency: seconds that every page takes longer. deadline: seconds for the
    server to start, or to make a world.
    """

    def __init__(
        self, full: bool = False, latency: float = 0.0, seed: int = 0, deadline: float = 30.0
    ) -> None:
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
    async def lease(self, _task: Task | None = None) -> AsyncIterator[Lease]:
        """A fresh world for any task, dropped however the lease ends.

        Raises EnvironmentFailure("site") if no world can be made.
        """
        async with self._lock:
            if self._server.returncode is not None:
                # The worlds of a dead server are gone; their episodes fail and are retried.
                await self._start()
        door = f"{self.urls['map']}/_pocket/worlds"
        # Logged in already: filling in a form costs as much as four steps, and teaches nothing.
        settings = {"full": self.full, "seed": self.seed, "signed_in": True}
        creation = asyncio.ensure_future(self._ask("POST", door, settings))
        try:
            world = (await asyncio.shield(creation))["world"]
            yield Lease(
                self.urls,
                {"X-Pocket-World": world},
                ACCOUNTS,
                self.viewport,
                forms=FORMS,
                signed_in=frozenset(ACCOUNTS),
                broken=(410, 429),  # 410: its world is gone
            )
        finally:
            # Shielded: a rollout cancelled while its world is being made drops it too.
            await asyncio.shield(self._drop(door, creation))

    async def _drop(self, door: str, creation: asyncio.Future) -> None:
        with suppress(EnvironmentFailure):  # never made, or gone with its server
            await self._ask("DELETE", f"{door}/{(await creation)['world']}")

    async def _start(self) -> None:
        command = [sys.executable, "-m", "jhima.pocket", "serve", "--json", "--port", "0"]
        command += ["--latency", str(self.latency)] + ["--full"] * self.full
        # The server ends with its standard input, so it does not outlive this process.
        self._server = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            line = await asyncio.wait_for(self._server.stdout.readline(), self.deadline)
            self.urls = json.loads(line)["urls"]
        except (TimeoutError, ValueError):
            await self._stop()
            detail = f"{' '.join(command[1:])}: no URLs in {self.deadline:g} s"
            raise EnvironmentFailure("site", detail) from None

    async def _stop(self) -> None:
        self._server.stdin.close()
        try:
            await asyncio.wait_for(self._server.wait(), 5)
        except TimeoutError:
            self._server.kill()
            await self._server.wait()

    async def _ask(self, method: str, url: str, body: dict | None = None) -> dict:
        data, headers = json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        request = Request(url, data, headers, method=method)
        status, reply = await fetch(request, self.deadline)
        try:
            if status < 400:
                return json.loads(reply or b"{}")
        except ValueError:
            pass
        raise EnvironmentFailure("site", f"{method} {url}: HTTP {status}, {reply[:80]!r}")
