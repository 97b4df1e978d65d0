"""Browser processes and contexts: apart from one another, replaced, closed and reaped; and the
pocket arena's worlds.
"""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace
from urllib.request import Request, urlopen

import pytest
from browsing import chromiums, running

from benchmarks.memory import measure, tree
from jhima.actions import Action
from jhima.browser.chromium import Browsers, find_chromium
from jhima.failures import EnvironmentFailure
from jhima.pocket.arena import PocketArena
from jhima.webarena.login import log_in
from jhima.webarena.sites import LOGIN_FORMS

# ---- sessions and processes ----


def test_sessions_share_neither_cookies_nor_storage(loop, browsers, lease, site):
    async def scenario():
        async with browsers.session(lease) as one, browsers.session(lease) as two:
            for session in (one, two):
                await session.goto(site.url + "/form")
            await one.page.evaluate("document.cookie = 'a=1'; localStorage.b = 2")
            await two.page.reload()
            return await two.page.evaluate("[document.cookie, localStorage.length]")

    assert loop.run_until_complete(scenario()) == ["", 0]


def test_a_cancelled_session_is_closed(loop, browsers, lease, site):
    async def scenario():
        ready = asyncio.Event()

        async def episode():
            async with browsers.session(lease) as session:
                await session.goto(site.url + "/form")
                ready.set()
                await session.perform(Action("wait", seconds=10))

        task = asyncio.create_task(episode())
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [len(chromium.browser.contexts) for chromium in browsers._pool]

    assert loop.run_until_complete(scenario()) == [0]


def test_worn_browsers_are_replaced_and_no_process_stays(lease, site):
    async def scenario():
        before = set(chromiums())
        async with Browsers(recycle=1) as browsers:
            async with browsers.session(lease) as old:
                await old.goto(site.url + "/form")
                async with browsers.session(lease) as new:
                    await new.goto(site.url + "/form")
                    assert old.context.browser is not new.context.browser
                assert await old.perform(Action("type", text="still here")) == ""
            used = [pid for pid in chromiums() if pid not in before]
            assert used
        for _ in range(50):
            if not running(used):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"still running: {running(used)}")

    asyncio.run(scenario())


def test_memory_is_flat_over_many_episodes_and_no_process_is_left():
    """benchmarks/memory.py at a small size; the 1,000 episodes are its default."""
    before = set(tree(os.getpid()))
    samples = asyncio.run(measure(episodes=20, at_once=4, recycle=200))
    assert len(samples) == 20 and sum(samples[-5:]) < 1.15 * sum(samples[5:10])
    for _ in range(50):
        if set(tree(os.getpid())) <= before:
            return
        time.sleep(0.1)
    raise AssertionError(f"left over: {set(tree(os.getpid())) - before}")


def test_a_missing_browser_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/no/such/chromium")

    async def scenario():
        async with Browsers():
            pass

    with pytest.raises(
        RuntimeError, match="no Chromium at /no/such/chromium: set CHROMIUM=.*chromium$"
    ):
        asyncio.run(scenario())
    monkeypatch.setenv("CHROMIUM", "sh")
    assert find_chromium(None).endswith("/sh")


# ---- the pocket arena ----


def reply(url, world):
    with urlopen(Request(url, headers={"X-Pocket-World": world}), timeout=10) as response:
        return response.status


def test_leases_are_separate_worlds_and_are_dropped_on_every_way_out():
    async def scenario():
        async with PocketArena() as arena:

            async def held(ready):
                async with arena.lease() as lease:
                    ready.set_result(lease)
                    await asyncio.sleep(60)

            ready = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(held(ready))
            one = await ready
            async with arena.lease() as two:
                assert one.headers != two.headers and one.viewport == (336, 336)
                assert one.urls["shopping_admin"].endswith("/admin")
                assert reply(one.urls["map"], one.headers["X-Pocket-World"]) == 200
                task.cancel()
                await asyncio.wait([task])
                for _ in range(50):
                    with suppress(OSError):
                        health = urlopen(one.urls["map"] + "/_pocket/health", timeout=10).read()
                        if b'"worlds":1' in health.replace(b" ", b""):
                            break
                    await asyncio.sleep(0.05)
                else:
                    raise AssertionError(f"the cancelled lease's world is still there: {health}")
            arena._server.kill()
            await arena._server.wait()
            async with arena.lease() as three:  # a dead server is started again
                assert reply(three.urls["map"], three.headers["X-Pocket-World"]) == 200
            server = arena._server
        assert server.returncode is not None
        with pytest.raises(OSError):
            reply(three.urls["map"], "person")

    asyncio.run(scenario())


def test_log_in_works_on_each_site_and_a_failed_one_is_no_sample(loop, pocket, chromium):
    async def enter(site, account=None):
        async with pocket.lease() as lease:
            own = replace(lease, headers={})  # not a rollout's world, but the one a person browses
            async with chromium.session(own) as session:
                accounts = {site: account or lease.accounts[site]}
                await log_in(session, replace(own, accounts=accounts), site)
                await session.goto(lease.urls[site])
                assert not await session.page.locator("input[type=password]").count()
        # A rollout's world needs no form.
        async with pocket.lease() as lease, chromium.session(lease) as session:
            await session.goto(lease.urls[site] + LOGIN_FORMS[site].inside.format(user="me"))
            assert not await session.page.locator("input[type=password]").count()

    async def scenario():
        sites = ("shopping", "shopping_admin", "reddit", "gitlab")
        await asyncio.gather(*(enter(site) for site in sites))
        refused = "^login: gitlab shows HTTP 401 at .* to nobody"
        with pytest.raises(EnvironmentFailure, match=refused):
            await enter("gitlab", ("nobody", "wrong"))

    loop.run_until_complete(scenario())
