"""WebArena's sites as an arena: replicas from a sites.json, leased by what a task does to them.

    {"replicas": [{"urls": {"shopping": "http://10.0.0.1:7770", "shopping_admin": "http://10.0.0.1:7780/admin",
                            "reddit": "http://10.0.0.1:9999", "gitlab": "http://10.0.0.1:8023",
                            "map": "http://10.0.0.1:3000"},
                   "reset": ["./reset.sh", "10.0.0.1"]}]}

Optional in a replica, or beside "replicas" for all of them:
    reset          a command (a list; it runs without a shell and is done when it ends with 0), or an endpoint:
                   {"url": ..., "status": ..., "ready": ...} is GET url, then GET status until it answers with `ready`;
                   without "status" the reply to url means that it is done
    accounts       {"gitlab": ["user", "password"]}; WebArena's public ones are the default
    headers        sent with every request
    header_login   {"shopping": {"X-Name": "value"}}: headers that log in, so that no form is filled in
    health         {"gitlab": "GitLab"}: a text that the site's first page shows when it works

A task that changes a site has a replica to itself; others share one. A replica that was changed is reset before its
next lease, and so is every replica before its first: a run that was killed may have left anything. Its sites are asked
for status and content before each lease; one that fails is left alone for a while, reset, and asked again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request

from jhima.browser.lease import Lease, host_of
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure, fetch
from jhima.webarena.login import LOGIN_FORMS
from jhima.webarena.sites import ACCOUNTS, SITES

VIEWPORT = (1280, 720)
# What WebArena's first pages say of themselves; an error page or another server at the port does not.
HEALTH = {
    "shopping": "One Stop Market",
    "shopping_admin": "Magento",
    "reddit": "Postmill",
    "gitlab": "GitLab",
    "map": "OpenStreetMap",
    "wikipedia": "Wikipedia",
}


RESET, CHECK, PAUSE, PATIENCE = (
    1800.0,
    20.0,
    30.0,
    2400.0,
)  # seconds: see Replicas; a reset may take RESET


@dataclass(eq=False)
class Replica:
    """One set of sites. `reset` is argv, an endpoint's object, or None. The last four fields are its state."""

    urls: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    accounts: dict[str, tuple[str, str]] = field(repr=False)
    by_header: frozenset[str]
    health: dict[str, str]
    reset: list[str] | dict[str, str] | None
    readers: int = 0
    writer: bool = False
    dirty: bool = True
    resting: bool = False  # being reset, or left alone after a failed check


# ---- sites.json ----


def load_replicas(path: Path) -> list[Replica]:
    """Raises ValueError, one line that names file, place, what was expected and what was found (no password)."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    keys = ("urls", "reset", "accounts", "headers", "header_login", "health")
    _expect(
        isinstance(content, dict)
        and isinstance(content.get("replicas"), list)
        and content["replicas"],
        str(path),
        'an object with a non-empty list "replicas"',
    )
    shared = {key: value for key, value in content.items() if key != "replicas"}
    replicas = []
    for number, entry in enumerate(content["replicas"]):
        where = f"{path}: replica {number}"
        _expect(
            isinstance(entry, dict) and not (set(entry) | set(shared)) - set(keys),
            where,
            f"an object with some of {', '.join(keys)}",
        )
        replicas.append(_replica({**shared, **entry}, where))
    places = Counter(
        host_of(url) + urlsplit(url).path for replica in replicas for url in replica.urls.values()
    )
    twice = [place for place, count in places.items() if count > 1]
    _expect(
        not twice,
        str(path),
        f"each site's URL once, or its rollouts meet: {', '.join(twice)} is there again",
    )
    return replicas


def _replica(entry: dict, where: str) -> Replica:
    urls, logins, reset = entry.get("urls"), entry.get("header_login", {}), entry.get("reset")
    some = isinstance(urls, dict) and urls and set(urls) <= set(SITES)
    _expect(some, f"{where}: urls", f"some of {', '.join(SITES)}")
    for site, url in urls.items():
        _expect(
            isinstance(url, str) and host_of(url) and "@" not in url and not set(url) & set(" ?#|"),
            f"{where}: urls.{site}",
            "an http(s) URL without user, query and fragment",
        )
    _expect(
        isinstance(logins, dict) and set(logins) <= set(LOGIN_FORMS),
        f"{where}: header_login",
        f"headers for some of {', '.join(LOGIN_FORMS)}",
    )
    headers = _texts(entry.get("headers", {}), f"{where}: headers")
    for site in logins:
        headers |= _texts(logins[site], f"{where}: header_login.{site}")
    given = entry.get("accounts", {})
    _expect(
        isinstance(given, dict)
        and set(given) <= set(LOGIN_FORMS)
        and all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(text, str) and text for text in pair)
            for pair in given.values()
        ),
        f"{where}: accounts",
        f"[user, password] for some of {', '.join(LOGIN_FORMS)}",
    )
    health = _texts(entry.get("health", {}), f"{where}: health")
    if isinstance(reset, dict):
        _expect(
            "url" in reset
            and set(reset) <= {"url", "status", "ready"}
            and all(isinstance(value, str) for value in reset.values())
            and host_of(reset["url"])
            and ("status" in reset) == ("ready" in reset),
            f"{where}: reset",
            "url, or url, status and ready",
        )
    elif reset is not None:
        _expect(
            isinstance(reset, list)
            and reset
            and all(isinstance(word, str) and "\0" not in word for word in reset),
            f"{where}: reset",
            "a command as a list of texts, or an object with a url",
        )
    accounts = {
        site: (user, password)
        for site, (user, password) in {**ACCOUNTS, **given}.items()
        if site in urls
    }
    return Replica(
        {site: url.rstrip("/") for site, url in urls.items()},
        headers,
        accounts,
        frozenset(logins),
        {**HEALTH, **health},
        reset,
    )


def _texts(value: Any, where: str) -> dict[str, str]:
    _expect(
        isinstance(value, dict)
        and all(
            isinstance(text, str) and text.isprintable() for pair in value.items() for text in pair
        ),
        where,
        "an object of texts, each one line",
    )
    return dict(value)


def _expect(holds: object, where: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {expected}")


def check_sites(replicas: Sequence[Replica], tasks: Sequence[Task], concurrency: int) -> list[str]:
    """What these replicas do to the reward of these tasks, in plain words; [] where they do nothing.

    Raises ValueError where some task cannot be played at all.
    """
    for task in tasks:
        served = [r for r in replicas if set(task.sites) <= set(r.urls)]
        _expect(served, task.id, f"a replica with {', '.join(task.sites)}, found none")
        if {"shopping", "reddit"} <= set(task.sites):
            names = [
                [urlsplit(r.urls[site]).hostname for site in ("shopping", "reddit")] for r in served
            ]
            _expect(
                all(shop != forum for shop, forum in names),
                task.id,
                "shopping and reddit under different host names: both call their cookie PHPSESSID, and cookies know "
                "no port, so that on one host each logs the other out",
            )
    changing = sum(task.changes for task in tasks)
    warnings = []
    if changing and concurrency > 1 and len(replicas) == 1:
        warnings.append(
            f"1 replica for {changing} tasks that change a site: their episodes play one after another"
        )
    unreset = sum(r.reset is None for r in replicas)
    if changing and unreset:
        warnings.append(
            f"{unreset} of {len(replicas)} replicas have no reset, and {changing} tasks change a site: an episode finds "
            "what those before it left there (an order, a forked project), so it may get 1 for doing nothing, or 0 for "
            "doing right what can only be done once. Rewards of such tasks are then no measure of the agent"
        )
    return warnings


# ---- the arena ----


class Replicas:
    """Leases replicas: the arena of sites.json. An async context manager.

    `rank` of `world` processes uses every world-th replica of the file. `counts` says what happened to the replicas.
    Seconds: `pause` a replica that failed a check is left alone, `patience` a rollout waits while no replica gives a
    sign of life (it waits for its turn as long as that takes), `check` a site may take to answer.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        pause: float = PAUSE,
        patience: float = PATIENCE,
        check: float = CHECK,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if world > len(replicas):
            raise ValueError(
                f"expected a replica a process, got {len(replicas)} for {world}: two processes that share "
                "one do not know of each other's changes"
            )
        self.replicas, self.viewport = list(replicas[rank::world]), VIEWPORT
        self.pause, self.patience, self.check = pause, patience, check
        self.counts: Counter[str] = Counter()
        self._queue: deque[object] = deque()
        self._alive = time.monotonic()  # when a replica was last seen to work
        self._changed = asyncio.Condition()
        self._caring: set[asyncio.Task] = set()

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._caring:
            task.cancel()
        await asyncio.gather(*self._caring, return_exceptions=True)

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[Lease]:
        """A healthy replica for the task: alone if it changes a site, else with others that do not.

        Raises EnvironmentFailure("site") where no replica works for `patience` seconds.
        """
        replica = await self._take(task)
        lease = Lease(
            replica.urls, replica.headers, replica.accounts, self.viewport, replica.by_header
        )
        try:
            yield lease
        finally:
            self.counts["changed"] += bool(lease.changed)
            replica.dirty |= bool(lease.changed)
            self._hold(replica, task, -1)
            self._alive = time.monotonic()
            if replica.dirty and replica.reset:
                self._care(replica)  # at once, so that the next one waits less
            await asyncio.shield(self._tell())

    async def _take(self, task: Task) -> Replica:
        """First come, first served: a rollout that wants a replica alone is never starved by those that share."""
        ticket = object()
        self._queue.append(ticket)
        try:
            while True:
                try:
                    async with asyncio.timeout(self.patience) as patience:
                        return await self._wait(task, ticket)
                except TimeoutError:
                    if not patience.expired():
                        raise
                out = sum(r.resting for r in self.replicas)
                silent = time.monotonic() - self._alive >= self.patience
                if silent and not any(r.writer or r.readers for r in self.replicas):
                    raise EnvironmentFailure(
                        "site",
                        f"no replica for {task.id} in {self.patience:g} s: {out} of "
                        f"{len(self.replicas)} are being reset or do not work",
                    )
        finally:
            if ticket in self._queue:
                self._queue.remove(ticket)
            await asyncio.shield(self._tell())

    async def _wait(self, task: Task, ticket: object) -> Replica:
        while True:
            if ticket not in self._queue:
                self._queue.appendleft(
                    ticket
                )  # its replica failed the check: it is still the first
            async with self._changed:
                await self._changed.wait_for(lambda: self._queue[0] is ticket and self._free(task))
                replica = self._free(task)
                if replica.dirty and replica.reset:
                    self._care(replica)
                    continue
                self._hold(replica, task, 1)
                self._queue.popleft()  # the others need not wait for our check
                self._changed.notify_all()
            healthy = False
            try:
                healthy = await self._healthy(replica, task.sites)
            finally:
                if not healthy:
                    self._hold(replica, task, -1)
            if healthy:
                self._alive = time.monotonic()
                return replica
            self._care(replica)

    def _free(self, task: Task) -> Replica | None:
        """The replica to lease now: those that share crowd together, so that others stay free. One that a reader
        changed takes no new lease before its reset."""
        free = [
            r
            for r in self.replicas
            if set(task.sites) <= set(r.urls)
            and not r.resting
            and not r.writer
            and not (r.readers and (task.changes or r.dirty and r.reset))
        ]
        return max(free, key=lambda r: (not (r.dirty and r.reset), r.readers), default=None)

    def _hold(self, replica: Replica, task: Task, count: int) -> None:
        if task.changes:
            replica.writer = count > 0
        else:
            replica.readers += count

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ---- a replica that was changed, or does not work ----

    def _care(self, replica: Replica) -> None:
        """Takes the replica out until it is as new. Runs beside the rollouts, which go on elsewhere."""
        if not replica.resting:
            replica.resting = True
            task = asyncio.create_task(self._restore(replica))
            self._caring.add(task)
            task.add_done_callback(self._caring.discard)

    async def _restore(self, replica: Replica) -> None:
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not replica.readers and not replica.writer)
            while not (replica.reset and replica.dirty):
                await asyncio.sleep(self.pause)
                if await self._healthy(replica, replica.urls):
                    return  # it was down for a moment
                replica.dirty = True
            while not await self._reset(replica):
                await asyncio.sleep(self.pause)
            replica.dirty = False
        finally:
            replica.resting = False
            await self._tell()

    async def _reset(self, replica: Replica) -> bool:
        self.counts["resets"] += 1
        try:
            async with asyncio.timeout(RESET):
                await (
                    _run(replica.reset)
                    if isinstance(replica.reset, list)
                    else _call(replica.reset, self.check)
                )
                while not await self._healthy(replica, replica.urls):
                    await asyncio.sleep(self.pause / 10)
                return True
        except (OSError, EnvironmentFailure, TimeoutError) as error:  # TimeoutError is an OSError
            self.counts["failed resets"] += 1
            print(
                f"the reset of {_name(replica)} failed: {error or f'not done in {RESET:g} s'}",
                file=sys.stderr,
            )
            return False

    async def _healthy(self, replica: Replica, sites: Sequence[str] | dict) -> bool:
        """Whether each site answers with a good status and its own content."""

        async def problem(site: str) -> str:
            try:
                status, body = await fetch(
                    Request(replica.urls[site], headers=replica.headers), self.check
                )
            except EnvironmentFailure as failure:
                return f"{site}: {failure.detail}"
            if status >= 400:
                return f"{site}: HTTP {status}"
            there = replica.health[site].lower() in body.decode("utf-8", "replace").lower()
            return "" if there else f"{site}: its first page does not say {replica.health[site]!r}"

        problems = [told for told in await asyncio.gather(*map(problem, sites)) if told]
        self.counts["failed checks"] += bool(problems)
        if problems:
            print(f"{_name(replica)} is not healthy: {'; '.join(problems)}"[:400], file=sys.stderr)
        return not problems


def _name(replica: Replica) -> str:
    return f"the replica of {next(iter(replica.urls.values()))}"


async def _run(command: list[str]) -> None:
    """Runs a reset command to its end, or ends it with all that it started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if code:
        raise EnvironmentFailure("site", f"{command[0]} ended with {code}")


async def _call(endpoint: dict[str, str], seconds: float) -> None:
    status, _ = await fetch(Request(endpoint["url"]), seconds if "status" in endpoint else RESET)
    if status >= 400 and status != 418:  # 418: a reset is going on already
        raise EnvironmentFailure("site", f"{endpoint['url']}: HTTP {status}")
    ready = "status" not in endpoint
    while not ready:
        await asyncio.sleep(1)
        status, body = await fetch(Request(endpoint["status"]), seconds)
        ready = status == 200 and endpoint["ready"].encode() in body
