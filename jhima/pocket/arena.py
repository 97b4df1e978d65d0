"""Where episodes happen: an arena leases each rollout a world.

An arena is an async context manager with `lease(task)`; the rest of the code knows nothing else about it, nor which
one it has: the pocket sites below, or WebArena's (replicas.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.request import Request

from jhima.browser.lease import Lease
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure, fetch
from jhima.webarena.sites import ACCOUNTS

ROOT = Path(__file__).resolve().parents[2]


class PocketArena:
    """The pocket sites in a process of their own, which ends with this one.

    full: ordinary pages at 1280x720, and longer lists in an order shuffled by `seed`; else small ones at 336x336.
    latency: seconds that every page takes. deadline: seconds for the server to start, or to make a world.
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
        """A fresh world, dropped on every way out, whatever the task. Raises EnvironmentFailure("site") where there is none to have."""
        async with self._lock:
            if self._server.returncode is not None:
                await (
                    self._start()
                )  # a dead server's worlds are gone; their episodes fail and are retried
        door = f"{self.urls['map']}/_pocket/worlds"
        made = asyncio.ensure_future(
            self._ask("POST", door, {"full": self.full, "seed": self.seed, "signed_in": True})
        )
        try:
            world = (await asyncio.shield(made))["world"]
            # A form filled in by a browser costs as much as four steps of an episode, and here teaches nothing.
            yield Lease(
                self.urls,
                {"X-Pocket-World": world},
                ACCOUNTS,
                self.viewport,
                signed_in=frozenset(ACCOUNTS),
            )
        finally:
            await asyncio.shield(
                self._drop(door, made)
            )  # a cancelled rollout's too, even while it is being made

    async def _drop(self, door: str, made: asyncio.Future) -> None:
        with suppress(EnvironmentFailure):  # never made, or gone with its server
            await self._ask("DELETE", f"{door}/{(await made)['world']}")

    async def _start(self) -> None:
        command = [sys.executable, "-m", "jhima.pocket", "serve", "--json", "--port", "0"]
        command += ["--latency", str(self.latency)] + ["--full"] * self.full
        # The server ends with its standard input, so it does not outlive this process.
        self._server = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            self.urls = json.loads(
                await asyncio.wait_for(self._server.stdout.readline(), self.deadline)
            )["urls"]
        except (TimeoutError, ValueError):
            await self._stop()
            raise EnvironmentFailure(
                "site", f"{' '.join(command[1:])}: no URLs in {self.deadline:g} s"
            ) from None

    async def _stop(self) -> None:
        self._server.stdin.close()
        try:
            await asyncio.wait_for(self._server.wait(), 5)
        except TimeoutError:
            self._server.kill()
            await self._server.wait()

    async def _ask(self, method: str, url: str, body: dict | None = None) -> dict:
        request = Request(
            url,
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        status, reply = await fetch(request, self.deadline)
        try:
            if status < 400:
                return json.loads(reply or b"{}")
        except ValueError:
            pass
        raise EnvironmentFailure("site", f"{method} {url}: HTTP {status}, {reply[:80]!r}")
