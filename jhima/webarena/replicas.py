"""Sites as an arena: replicas from a sites.json, leased by what a task does to them.

    {"replicas": [{"urls": {"shopping": "http://10.0.0.1:7770",
                            "shopping_admin": "http://10.0.0.1:7780/admin",
                            "reddit": "http://10.0.0.1:9999", "gitlab": "http://10.0.0.1:8023",
                            "map": "http://10.0.0.1:3000"},
                   "reset": ["./reset.sh", "10.0.0.1"]}]}

Optional in a replica, or beside "replicas" for all of them:
    sites          {"notes": {...}}: any site's own settings, over WebArena's for its six; the keys
                   are the fields of `sites.Site`, and "login" is an object of `LoginForm`'s or null
    reset          a command (a list, run without a shell; it is done when it exits with 0), or an
                   endpoint: {"url": ..., "status": ..., "ready": ...} means GET url, then GET
                   status until the reply contains `ready`; without "status" it is done when url
                   replies. A command finds the names of the changed sites in $CHANGED_SITES. A
                   site's own "reset" is done in its place, where that site was changed
    headers        sent with every request
    viewport       [width, height] of the browser, 1280 x 720 unless given
Short forms for a field of several sites at once:
    urls           {"notes": "http://10.0.0.1:9000"}
    accounts       {"gitlab": ["user", "password"]}; the default is WebArena's public accounts
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
import random
import re
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request

from jhima.browser.fetch import fetch
from jhima.browser.lease import Lease, LoginForm, Logins, host_of
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.checks import expect, is_list, is_object, is_text, read_json
from jhima.webarena.sites import (
    DEFAULTS,
    LOGIN_FORMS,
    NAME,
    SITES,
    Reset,
    Site,
    homepage,
    needed,
)

RESET = 1800.0  # seconds that a reset may take
FORMS = ", ".join(LOGIN_FORMS)


@dataclass(eq=False)
class Replica:
    """One set of sites. `reset` is argv, an endpoint's object, or None.

    Its state: how many episodes that only read hold it (`readers`), whether one that changes a site
    does (`writer`), which sites were changed (`dirty`), and whether the replica is being reset or
    left alone after a failed check (`resting`).
    """

    sites: dict[str, Site] = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    accounts: dict[str, tuple[str, str]] = field(repr=False)
    reset: Reset | None
    viewport: tuple[int, int] = (1280, 720)
    readers: int = 0
    writer: bool = False
    dirty: set[str] = field(default_factory=set)
    resting: bool = False
    logins: Logins = field(default_factory=Logins)

    def __post_init__(self) -> None:
        self.dirty |= self.sites.keys()

    def __str__(self) -> str:
        return f"the replica of {next(iter(self.urls.values()))}"

    @property
    def urls(self) -> dict[str, str]:
        return {name: site.url for name, site in self.sites.items()}

    @property
    def by_header(self) -> frozenset[str]:
        return frozenset(name for name, site in self.sites.items() if site.headers is not None)

    @property
    def needs_reset(self) -> bool:
        return bool(self.to_reset())

    def to_reset(self) -> set[str]:
        """The changed sites that can be reset."""
        return {name for name in self.dirty if self.reset or self.sites[name].reset}

    def changed_by(self, task: Task) -> bool:
        """Whether doing the task changes a site, and none of its sites is said to stay as it is."""
        return task.changes and any(self.sites[name].changes for name in task.sites)

    def lease(self, task: Task) -> Lease:
        forms = {name: site.login for name, site in self.sites.items() if site.login}
        hosts = chain.from_iterable(site.hosts for site in self.sites.values())
        return Lease(
            urls=self.urls,
            headers=self.headers,
            accounts=self.accounts,
            viewport=self.viewport,
            hosts=tuple(hosts),
            forms=forms,
            logins=self.logins,
            by_header=self.by_header,
            homepage=homepage(task, self.urls),
        )

    @property
    def leased(self) -> bool:
        return self.writer or self.readers > 0

    def serves(self, task: Task) -> bool:
        return needed(task) <= self.sites.keys()

    def admits(self, task: Task) -> bool:
        """Whether the task may have a lease now; what a reader has changed has no new reader."""
        if not self.serves(task) or self.resting or self.writer:
            return False
        return not self.readers or not (self.changed_by(task) or self.needs_reset)

    def hold(self, task: Task, change: int) -> None:
        """A lease for the task begins (1) or ends (-1)."""
        if self.changed_by(task):
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
    keys = ("urls", "sites", "reset", "accounts", "headers", "header_login", "health", "viewport")
    replicas = []
    for number, entry in enumerate(entries):
        where = f"{path}: replica {number}"
        fits = is_object(entry, keys) and is_object(content, keys)
        expect(fits, where, f"an object with some of {', '.join(keys)}")
        shared, own = content.get("sites", {}), entry.get("sites", {})
        fits = isinstance(shared, dict) and isinstance(own, dict)
        fits = fits and all(isinstance(v, dict) for v in (*shared.values(), *own.values()))
        expect(fits, f"{where}: sites", "an object of sites, each an object")
        sites = {name: shared.get(name, {}) | own.get(name, {}) for name in shared | own}
        replicas.append(_replica({**content, **entry, "sites": sites}, where))
    addresses: Counter[str] = Counter()
    for replica in replicas:
        addresses.update(host_of(url) + urlsplit(url).path for url in replica.urls.values())
    shared = ", ".join(address for address, count in addresses.items() if count > 1)
    expected = f"each site's URL once, or its rollouts meet: {shared} is there again"
    expect(not shared, str(path), expected)
    return replicas


def _replica(entry: dict, where: str) -> Replica:
    urls, settings, reset = entry.get("urls", {}), entry["sites"], entry.get("reset")
    fits = isinstance(urls, dict)
    expect(fits, f"{where}: urls", f"some of {', '.join(SITES)}, or names of your own")
    addresses = {name: values["url"] for name, values in settings.items() if "url" in values} | urls
    fits = addresses and all(NAME.fullmatch(name) for name in addresses)
    expected = f"some of {', '.join(SITES)}, or names of your own in small letters, digits and _"
    expect(fits, f"{where}: urls", expected)
    for name, url in addresses.items():
        fits = isinstance(url, str) and host_of(url) and not set(url) & set("@ ?#|")
        expect(fits, f"{where}: urls.{name}", "an http(s) URL without user, query and fragment")
    headers = _one_line_texts(entry.get("headers", {}), f"{where}: headers")
    logins, accounts = entry.get("header_login", {}), entry.get("accounts", {})
    fits = is_object(logins, LOGIN_FORMS)
    expect(fits, f"{where}: header_login", f"headers for some of {FORMS}")
    fits = is_object(accounts, LOGIN_FORMS) and all(map(_is_account, accounts.values()))
    expect(fits, f"{where}: accounts", f"[user, password] for some of {FORMS}")
    health = _one_line_texts(entry.get("health", {}), f"{where}: health")
    sites = {}
    for name, url in addresses.items():
        short = {"account": accounts, "headers": logins, "health": health}
        given = {key: values[name] for key, values in short.items() if name in values}
        place = f"{where}: sites.{name}"
        sites[name] = _site(name, settings.get(name, {}) | given | {"url": url}, place)
        headers |= sites[name].headers or {}
    known = {name: site.account for name, site in sites.items() if site.account}
    if "shopping_admin" in accounts:  # the shop's REST helpers use it, with or without that site
        known["shopping_admin"] = tuple(accounts["shopping_admin"])
    size = entry.get("viewport", [1280, 720])
    fits = is_list(size, lambda side: type(side) is int and 100 <= side <= 4000) and len(size) == 2
    expect(fits, f"{where}: viewport", "[width, height], each from 100 to 4000", size)
    _check_reset(reset, f"{where}: reset")
    return Replica(sites, headers, known, reset, tuple(size))


def _site(name: str, values: dict, where: str) -> Site:
    """One site's settings, checked, over WebArena's own where it has one of its names."""
    keys = [f.name for f in fields(Site)]
    expect(is_object(values, keys), where, f"an object with some of {', '.join(keys)}")
    site, login = DEFAULTS.get(name, Site()), values.get("login")
    if login is not None:
        parts = [f.name for f in fields(LoginForm)]
        fits = is_object(login, parts) and all(map(is_text, login.values()))
        expect(fits, f"{where}.login", f"null, or an object of texts with some of {parts}")
        fits = login.get("inside") or login.get("shows") or name in LOGIN_FORMS
        expect(fits, f"{where}.login", '"inside" or "shows": a page or a part of it that proves it')
        login = replace(site.login or LoginForm(), **login)
        for key in ("path", "inside"):
            fits = not getattr(login, key) or getattr(login, key).startswith("/")
            expect(fits, f"{where}.login.{key}", "a path that starts with /")
        fits = not re.search(r"[{}]", login.inside.replace("{user}", ""))
        expect(fits, f"{where}.login.inside", "no braces but {user}")
    account = values.get("account", site.account)
    fits = account is None or _is_account(list(account) if account == site.account else account)
    expect(fits, f"{where}: account", "[user, password]")
    by_form = login if "login" in values else site.login
    expect(not by_form or account, f"{where}.account", "[user, password] for its login form")
    headers, hosts = values.get("headers"), values.get("hosts", [])
    if headers is not None:
        headers = _one_line_texts(headers, f"{where}.headers")
    fits = hosts == [] or is_list(hosts, lambda url: is_text(url) and host_of(url))
    expect(fits, f"{where}.hosts", 'a list of http(s) addresses, such as "http://tiles:8080"')
    fits = isinstance(values.get("changes", True), bool)
    expect(fits, f"{where}.changes", "true or false")
    health = _one_line_texts({"": values.get("health", site.health)}, f"{where}.health")[""]
    _check_reset(values.get("reset"), f"{where}.reset")
    return Site(
        url=values["url"].rstrip("/"),
        login=by_form,
        account=account and tuple(account),
        headers=headers,
        health=health,
        hosts=tuple(hosts),
        changes=values.get("changes", site.changes),
        reset=values.get("reset"),
    )


def _check_reset(reset: Any, where: str) -> None:
    if isinstance(reset, dict):
        fits = set(reset) in ({"url"}, {"url", "status", "ready"})
        fits = fits and all(map(is_text, reset.values())) and host_of(reset["url"])
        expect(fits, where, "url, or url, status and ready")
    elif reset is not None:
        expected = "a command as a list of texts, or an object with a url"
        expect(is_list(reset, _is_argument), where, expected)


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


def unplayable(replicas: Sequence[Replica], task: Task) -> str:
    """Why a task cannot be played on any of these replicas; "" where it can."""
    serving = [replica for replica in replicas if replica.serves(task)]
    if not serving:
        return f"expected a replica with {', '.join(sorted(needed(task)))}, found none"
    if not {"shopping", "reddit"} <= set(task.sites):
        return ""
    for replica in serving:
        hosts = [urlsplit(replica.urls[site]).hostname for site in ("shopping", "reddit")]
        if hosts[0] != hosts[1]:
            return ""
    return (
        "expected shopping and reddit under different host names: both call their cookie "
        "PHPSESSID, and cookies know no port, so that on one host each logs the other out"
    )


def changed_somewhere(replicas: Sequence[Replica], task: Task) -> bool:
    return any(replica.serves(task) and replica.changed_by(task) for replica in replicas)


def check_sites(replicas: Sequence[Replica], tasks: Sequence[Task], concurrency: int) -> list[str]:
    """Warnings about what these replicas do to the reward of these tasks, in plain words.

    Raises ValueError where some task cannot be played at all.
    """
    for task in tasks:
        problem = unplayable(replicas, task)
        expect(not problem, task.id, problem.removeprefix("expected "))
    changing = sum(changed_somewhere(replicas, task) for task in tasks)
    if not changing:
        return []
    warnings = []
    if concurrency > 1 and len(replicas) == 1:
        warnings.append(
            f"1 replica for {changing} tasks that change a site: their episodes play one after "
            "another"
        )
    without_reset = sum(not replica.to_reset() for replica in replicas)
    if without_reset:
        warnings.append(
            f"{without_reset} of {len(replicas)} replicas have no reset, and {changing} tasks "
            "change a site: an episode finds what earlier ones left there (an order, a forked "
            "project), so it may get 1 for doing nothing, or 0 for doing right what can only be "
            "done once. Rewards of such tasks are then no measure of the agent"
        )
    return warnings


def _neediest(missing: list[set[str]], hands: list[list[Replica]], names: Collection[str]) -> int:
    """The process that lacks most of these sites, among equals the one with fewest replicas."""
    return min(range(len(hands)), key=lambda n: (-len(missing[n] & set(names)), len(hands[n])))


def deal(replicas: Sequence[Replica], world: int) -> list[list[Replica]]:
    """Each process's replicas, so that each process has each site, for each plays any task.

    Raises ValueError where no such way is found: its tasks would wait for a site in vain.
    """
    sites = set().union(*(replica.sites for replica in replicas))
    order = sorted(replicas, key=lambda replica: -len(replica.sites))
    shuffle = random.Random(0).shuffle  # the same in every process
    for _ in range(1000):
        hands: list[list[Replica]] = [[] for _ in range(world)]
        missing = [set(sites) for _ in range(world)]
        for replica in order:  # to the one who lacks most of its sites
            names = replica.sites.keys()
            number = _neediest(missing, hands, names)
            hands[number].append(replica)
            missing[number] -= names
        if not any(missing):
            return hands
        shuffle(order)
    counts = Counter(chain.from_iterable(replica.sites for replica in replicas))
    told = ", ".join(f"{site} {count}" for site, count in counts.items())
    raise ValueError(
        f"found no way to deal these replicas to {world} processes so that each has each site "
        f"(there are {told}): every process plays every kind of task"
    )


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
        self.replicas = deal(replicas, world)[rank]
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
        lease = replica.lease(task)
        try:
            yield lease
        finally:
            if lease.changed:
                self.counts["changed"] += 1
                replica.dirty |= lease.changed
            for host, count in lease.blocked.items():
                self.counts[f"requests blocked to {host} (sites.json: hosts)"] += count
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
                replica.dirty |= replica.sites.keys()
            while not await self.reset(replica):
                await asyncio.sleep(self.pause)
        finally:
            replica.resting = False
            await self._notify()

    async def reset(self, replica: Replica) -> bool:
        """Makes the changed sites of a replica as new; whether that worked."""
        self.counts["resets"] += 1
        try:
            async with asyncio.timeout(RESET):
                names = replica.to_reset()
                for name in sorted(names):
                    if replica.sites[name].reset:
                        await self._do(replica.sites[name].reset, {name})
                rest = {name for name in names if not replica.sites[name].reset}
                if rest:
                    await self._do(replica.reset, rest)
                replica.dirty -= names
                for name in names:
                    replica.logins.states.pop(name, None)
                while not await self._is_healthy(replica, replica.urls):
                    await asyncio.sleep(self.pause / 10)
                return True
        except (OSError, EnvironmentFailure, TimeoutError) as error:  # TimeoutError is an OSError
            self.counts["failed resets"] += 1
            problem = error or f"not done in {RESET:g} s"
            print(f"the reset of {replica} failed: {problem}", file=sys.stderr)
            return False

    async def _do(self, reset: Reset, names: set[str]) -> None:
        if isinstance(reset, list):
            await _run(reset, names)
        else:
            await _call(reset, self.check)

    async def _is_healthy(self, replica: Replica, sites: Iterable[str]) -> bool:
        """Whether each site answers with a good status and its own content."""
        answers = [problem_of(replica, site, self.check) for site in sites]
        problems = [problem for problem in await asyncio.gather(*answers) if problem]
        if problems:
            self.counts["failed checks"] += 1
            print(f"{replica} is not healthy: {'; '.join(problems)}"[:400], file=sys.stderr)
        return not problems


async def problem_of(replica: Replica, site: str, seconds: float) -> str:
    """What is wrong with a site's first page; "" if nothing is."""
    try:
        status, body = await fetch(Request(replica.urls[site], headers=replica.headers), seconds)
    except EnvironmentFailure as failure:
        return f"{site}: {failure.detail}"
    if status >= 400:
        return f"{site}: HTTP {status}"
    health = replica.sites[site].health
    if health.lower() not in body.decode("utf-8", "replace").lower():
        return f"{site}: its first page does not say {health!r}"
    return ""


async def _run(command: list[str], changed: set[str]) -> None:
    """Runs a reset command to its end; if cancelled, kills it with all that it started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"CHANGED_SITES": " ".join(sorted(changed))},
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
