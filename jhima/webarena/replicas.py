"""WebArena's sites as an arena: replicas from a sites.json, leased by what a task does to them.

    {"replicas": [{"urls": {"shopping": "http://10.0.0.1:7770",
                            "shopping_admin": "http://10.0.0.1:7780/admin",
                            "reddit": "http://10.0.0.1:9999", "gitlab": "http://10.0.0.1:8023",
                            "map": "http://10.0.0.1:3000"},
                   "reset": ["./reset.sh", "10.0.0.1"]}]}

Optional in a replica, or beside "replicas" for all of them:
    reset          a command (a list, run without a shell; it is done when it exits with 0), or an
                   endpoint: {"url": ..., "status": ..., "ready": ...} means GET url, then GET
                   status until the reply contains `ready`; without "status" it is done when url
                   replies
    accounts       {"gitlab": ["user", "password"]}; the default is WebArena's public accounts
    headers        sent with every request
    header_login   {"shopping": {"X-Name": "value"}}: headers that log in instead of a form
    health         {"gitlab": "GitLab"}: a text that the site's first page shows when it works

A task that changes a site has a replica to itself; other tasks share one. A replica that was
changed is reset before its next lease, and every replica is reset before its first, because a run
that was killed may have left anything behind. Before each lease the sites' status and content are
checked. A replica that fails the check is left alone for a while, reset, and checked again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request

from jhima.browser.fetch import fetch
from jhima.browser.lease import Lease, host_of
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.checks import expect, is_list, is_object, is_text, read_json
from jhima.webarena.login import LOGIN_FORMS
from jhima.webarena.sites import ACCOUNTS, SITES

VIEWPORT = (1280, 720)
RESET = 1800.0  # seconds that a reset may take

# What WebArena's first pages say; an error page, or another server at the port, does not say it.
# fmt: off
HEALTH = {
    "shopping": "One Stop Market", "shopping_admin": "Magento", "reddit": "Postmill",
    "gitlab": "GitLab", "map": "OpenStreetMap", "wikipedia": "Wikipedia",
}
# fmt: on


@dataclass(eq=False)
class Replica:
    """One set of sites. `reset` is argv, an endpoint's object, or None.

    Its state: how many episodes that only read hold it (`readers`), whether one that changes a site
    does (`writer`), whether a site was changed (`dirty`), and whether the replica is being reset or
    left alone after a failed check (`resting`).
    """

    urls: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    accounts: dict[str, tuple[str, str]] = field(repr=False)
    by_header: frozenset[str]
    health: dict[str, str]
    reset: list[str] | dict[str, str] | None
    readers: int = 0
    writer: bool = False
    dirty: bool = True
    resting: bool = False

    def __str__(self) -> str:
        return f"the replica of {next(iter(self.urls.values()))}"

    @property
    def needs_reset(self) -> bool:
        return self.dirty and self.reset is not None

    @property
    def leased(self) -> bool:
        return self.writer or self.readers > 0

    def serves(self, task: Task) -> bool:
        return set(task.sites) <= set(self.urls)

    def admits(self, task: Task) -> bool:
        """Whether the task may have a lease now; what a reader has changed has no new reader."""
        if not self.serves(task) or self.resting or self.writer:
            return False
        return not self.readers or not (task.changes or self.needs_reset)

    def hold(self, task: Task, change: int) -> None:
        """A lease for the task begins (1) or ends (-1)."""
        if task.changes:
            self.writer = change > 0
        else:
            self.readers += change


# ---- sites.json ----


def load_replicas(path: Path) -> list[Replica]:
    """Raises ValueError: one line with file, place and what was expected there, but no password."""
    content = read_json(path, str(path))
    expected = 'an object with a non-empty list "replicas"'
    expect(isinstance(content, dict), str(path), expected)
    entries = content.pop("replicas", None)
    expect(isinstance(entries, list) and entries, str(path), expected)
    keys = ("urls", "reset", "accounts", "headers", "header_login", "health")
    replicas = []
    for number, entry in enumerate(entries):
        where = f"{path}: replica {number}"
        fits = is_object(entry, keys) and is_object(content, keys)
        expect(fits, where, f"an object with some of {', '.join(keys)}")
        replicas.append(_replica({**content, **entry}, where))
    addresses: Counter[str] = Counter()
    for replica in replicas:
        addresses.update(host_of(url) + urlsplit(url).path for url in replica.urls.values())
    shared = ", ".join(address for address, count in addresses.items() if count > 1)
    expected = f"each site's URL once, or its rollouts meet: {shared} is there again"
    expect(not shared, str(path), expected)
    return replicas


def _replica(entry: dict, where: str) -> Replica:
    urls, reset = entry.get("urls"), entry.get("reset")
    fits = is_object(urls, SITES) and urls
    expect(fits, f"{where}: urls", f"some of {', '.join(SITES)}")
    for site, url in urls.items():
        fits = isinstance(url, str) and host_of(url) and not set(url) & set("@ ?#|")
        expect(fits, f"{where}: urls.{site}", "an http(s) URL without user, query and fragment")
    headers = _one_line_texts(entry.get("headers", {}), f"{where}: headers")
    logins, accounts, forms = entry.get("header_login", {}), entry.get("accounts", {}), LOGIN_FORMS
    fits = is_object(logins, forms)
    expect(fits, f"{where}: header_login", f"headers for some of {', '.join(forms)}")
    for site, login in logins.items():
        headers |= _one_line_texts(login, f"{where}: header_login.{site}")
    fits = is_object(accounts, forms) and all(map(_is_account, accounts.values()))
    expect(fits, f"{where}: accounts", f"[user, password] for some of {', '.join(forms)}")
    if isinstance(reset, dict):
        fits = set(reset) in ({"url"}, {"url", "status", "ready"})
        fits = fits and all(map(is_text, reset.values())) and host_of(reset["url"])
        expect(fits, f"{where}: reset", "url, or url, status and ready")
    elif reset is not None:
        fits = is_list(reset, _is_argument)
        expected = "a command as a list of texts, or an object with a url"
        expect(fits, f"{where}: reset", expected)
    accounts = ACCOUNTS | accounts
    return Replica(
        urls={site: url.rstrip("/") for site, url in urls.items()},
        headers=headers,
        accounts={site: tuple(pair) for site, pair in accounts.items() if site in urls},
        by_header=frozenset(logins),
        health=HEALTH | _one_line_texts(entry.get("health", {}), f"{where}: health"),
        reset=reset,
    )


def _is_account(pair: Any) -> bool:
    return is_list(pair, lambda text: is_text(text) and text) and len(pair) == 2


def _is_argument(word: Any) -> bool:
    return isinstance(word, str) and "\0" not in word


def _one_line_texts(value: Any, where: str) -> dict[str, str]:
    """Names and values of headers, say: a line break in one would forge another."""
    fits = isinstance(value, dict)
    if fits:
        fits = all(isinstance(text, str) and text.isprintable() for text in value.values())
    expect(fits and "".join(value).isprintable(), where, "an object of texts, each one line")
    return dict(value)


def check_sites(replicas: Sequence[Replica], tasks: Sequence[Task], concurrency: int) -> list[str]:
    """Warnings about what these replicas do to the reward of these tasks, in plain words.

    Raises ValueError where some task cannot be played at all.
    """
    for task in tasks:
        serving = [replica for replica in replicas if replica.serves(task)]
        expect(serving, task.id, f"a replica with {', '.join(task.sites)}, found none")
        if {"shopping", "reddit"} <= set(task.sites):
            for replica in serving:
                shop, forum = replica.urls["shopping"], replica.urls["reddit"]
                expect(
                    urlsplit(shop).hostname != urlsplit(forum).hostname,
                    task.id,
                    "shopping and reddit under different host names: both call their cookie "
                    "PHPSESSID, and cookies know no port, so that on one host each logs the other "
                    "out",
                )
    changing = sum(task.changes for task in tasks)
    if not changing:
        return []
    warnings = []
    if concurrency > 1 and len(replicas) == 1:
        warnings.append(
            f"1 replica for {changing} tasks that change a site: their episodes play one after "
            "another"
        )
    without_reset = sum(replica.reset is None for replica in replicas)
    if without_reset:
        warnings.append(
            f"{without_reset} of {len(replicas)} replicas have no reset, and {changing} tasks "
            "change a site: an episode finds what earlier ones left there (an order, a forked "
            "project), so it may get 1 for doing nothing, or 0 for doing right what can only be "
            "done once. Rewards of such tasks are then no measure of the agent"
        )
    return warnings


# ---- the arena ----


class Replicas:
    """Leases replicas: the arena of sites.json. An async context manager.

    Process `rank` of `world` uses every world-th replica of the file. `counts` counts changes,
    resets, failed resets and failed checks. Seconds: `pause` is how long a replica that failed a
    check is left alone, `patience` how long a rollout waits while no replica gives a sign of life
    (for its turn it waits as long as that takes), `check` how long a site may take to answer.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        pause: float = 30.0,
        patience: float = 2400.0,
        check: float = 20.0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if world > len(replicas):
            raise ValueError(
                f"expected one replica per process, got {len(replicas)} for {world}: two processes "
                "that share one do not know of each other's changes"
            )
        self.replicas = list(replicas[rank::world])
        self.pause, self.patience, self.check = pause, patience, check
        self.counts: Counter[str] = Counter()
        self._queue: deque[object] = deque()  # one ticket per rollout that waits for a lease
        self._last_sign_of_life = time.monotonic()
        self._changed = asyncio.Condition()
        self._restorations: set[asyncio.Task] = set()

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for restoration in self._restorations:
            restoration.cancel()
        await asyncio.gather(*self._restorations, return_exceptions=True)

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[Lease]:
        """A healthy replica for the task: alone if it changes a site, else shared with readers.

        Raises EnvironmentFailure("site") where no replica works for `patience` seconds.
        """
        replica = await self._wait_in_line(task)
        lease = Lease(
            urls=replica.urls,
            headers=replica.headers,
            accounts=replica.accounts,
            viewport=VIEWPORT,
            by_header=replica.by_header,
        )
        try:
            yield lease
        finally:
            if lease.changed:
                self.counts["changed"] += 1
                replica.dirty = True
            replica.hold(task, -1)
            self._last_sign_of_life = time.monotonic()
            if replica.needs_reset:
                self._start_restoring(replica)  # at once, so that the next rollout waits less
            await asyncio.shield(self._notify())

    async def _wait_in_line(self, task: Task) -> Replica:
        """First come, first served, lest readers starve a rollout that wants a replica alone."""
        ticket = object()
        self._queue.append(ticket)
        try:
            while True:
                try:
                    async with asyncio.timeout(self.patience) as patience:
                        return await self._acquire(task, ticket)
                except TimeoutError:
                    if not patience.expired():
                        raise
                self._check_signs_of_life(task)
        finally:
            if ticket in self._queue:
                self._queue.remove(ticket)
            await asyncio.shield(self._notify())

    def _check_signs_of_life(self, task: Task) -> None:
        silence = time.monotonic() - self._last_sign_of_life
        if silence < self.patience or any(replica.leased for replica in self.replicas):
            return
        resting = sum(replica.resting for replica in self.replicas)
        raise EnvironmentFailure(
            "site",
            f"no replica for {task.id} in {self.patience:g} s: {resting} of "
            f"{len(self.replicas)} are being reset or do not work",
        )

    async def _acquire(self, task: Task, ticket: object) -> Replica:
        while True:
            if ticket not in self._queue:
                self._queue.appendleft(ticket)  # its replica failed the check: still the first
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._queue[0] is ticket and self._best(task) is not None
                )
                replica = self._best(task)
                if replica.needs_reset:
                    self._start_restoring(replica)
                    continue
                replica.hold(task, 1)
                self._queue.popleft()  # the others need not wait for our check
                self._changed.notify_all()
            healthy = False
            try:
                healthy = await self._is_healthy(replica, task.sites)
            finally:
                if not healthy:
                    replica.hold(task, -1)
            if healthy:
                self._last_sign_of_life = time.monotonic()
                return replica
            self._start_restoring(replica)

    def _best(self, task: Task) -> Replica | None:
        """The replica to lease now, if any: readers crowd together, so that others stay free."""
        free = [replica for replica in self.replicas if replica.admits(task)]
        return max(free, key=lambda r: (not r.needs_reset, r.readers), default=None)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ---- a replica that was changed, or does not work ----

    def _start_restoring(self, replica: Replica) -> None:
        """Takes the replica out until it is as new. Rollouts go on elsewhere meanwhile."""
        if not replica.resting:
            replica.resting = True
            restoration = asyncio.create_task(self._restore(replica))
            self._restorations.add(restoration)
            restoration.add_done_callback(self._restorations.discard)

    async def _restore(self, replica: Replica) -> None:
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not replica.leased)
            while not replica.needs_reset:
                await asyncio.sleep(self.pause)
                if await self._is_healthy(replica, replica.urls):
                    return  # it was down for a moment
                replica.dirty = True
            while not await self._reset(replica):
                await asyncio.sleep(self.pause)
            replica.dirty = False
        finally:
            replica.resting = False
            await self._notify()

    async def _reset(self, replica: Replica) -> bool:
        self.counts["resets"] += 1
        try:
            async with asyncio.timeout(RESET):
                if isinstance(replica.reset, list):
                    await _run(replica.reset)
                else:
                    await _call(replica.reset, self.check)
                while not await self._is_healthy(replica, replica.urls):
                    await asyncio.sleep(self.pause / 10)
                return True
        except (OSError, EnvironmentFailure, TimeoutError) as error:  # TimeoutError is an OSError
            self.counts["failed resets"] += 1
            problem = error or f"not done in {RESET:g} s"
            print(f"the reset of {replica} failed: {problem}", file=sys.stderr)
            return False

    async def _is_healthy(self, replica: Replica, sites: Iterable[str]) -> bool:
        """Whether each site answers with a good status and its own content."""
        answers = [_problem(replica, site, self.check) for site in sites]
        problems = [problem for problem in await asyncio.gather(*answers) if problem]
        if problems:
            self.counts["failed checks"] += 1
            print(f"{replica} is not healthy: {'; '.join(problems)}"[:400], file=sys.stderr)
        return not problems


async def _problem(replica: Replica, site: str, seconds: float) -> str:
    """What is wrong with a site's first page; "" if nothing is."""
    try:
        status, body = await fetch(Request(replica.urls[site], headers=replica.headers), seconds)
    except EnvironmentFailure as failure:
        return f"{site}: {failure.detail}"
    if status >= 400:
        return f"{site}: HTTP {status}"
    if replica.health[site].lower() not in body.decode("utf-8", "replace").lower():
        return f"{site}: its first page does not say {replica.health[site]!r}"
    return ""


async def _run(command: list[str]) -> None:
    """Runs a reset command to its end; if cancelled, kills it with all that it started."""
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
    """Asks an endpoint for a reset, and waits until it is ready."""
    asynchronous = "status" in endpoint
    status, _ = await fetch(Request(endpoint["url"]), seconds if asynchronous else RESET)
    if status >= 400 and status != 418:  # 418: a reset is going on already
        raise EnvironmentFailure("site", f"{endpoint['url']}: HTTP {status}")
    ready = not asynchronous
    while not ready:
        await asyncio.sleep(1)
        status, body = await fetch(Request(endpoint["status"]), seconds)
        ready = status == 200 and endpoint["ready"].encode() in body
