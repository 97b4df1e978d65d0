"""Pages and browsers that misbehave: each ends in time, is classed right, and leaves the next
session clean.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from browsing import PAGES, Site, at, chromiums, running

from jhima.actions import Action
from jhima.browser.chromium import Browsers
from jhima.failures import EnvironmentFailure

# ---- failures: within their deadlines, as EnvironmentFailure, and the next session works ----


def fails(play, scenario, path, kind):
    began = time.monotonic()
    with pytest.raises(EnvironmentFailure) as failure:
        play(scenario, path)
    assert failure.value.kind == kind, failure.value
    assert time.monotonic() - began < 20.0  # deadlines of 2 and 6 s, on a busy machine
    play(healthy, "/grid")


async def healthy(session):
    await at(session, 12, 12)
    assert await session.page.evaluate("hits") == [[0, 0, 1]]


def nothing(_session):
    raise AssertionError("the page should not have opened")


@pytest.mark.parametrize(
    "path, kind", [("/silent", "deadline"), ("/endless", "deadline"), ("/500", "site")]
)
def test_a_start_page_that_does_not_come(play, path, kind):
    fails(play, nothing, path, kind)


@pytest.mark.parametrize("y, kind", [(220, "deadline"), (250, "site")])
def test_a_site_that_stops_answering_or_breaks(play, y, kind):
    fails(play, lambda session: at(session, 10, y), "/links", kind)


def test_a_site_that_is_gone(play, loop, browsers, lease):
    with Site() as gone:
        url = gone.url
        gone.shutdown()

    async def scenario():
        async with browsers.session(replace(lease, urls={"map": url})) as session:
            await session.goto(url)

    with pytest.raises(EnvironmentFailure, match="site: .*ERR_CONNECTION_REFUSED"):
        loop.run_until_complete(scenario())


def test_a_busy_page(play):
    fails(play, lambda session: at(session, 10, 70), "/late", "deadline")


def test_a_renderer_crash(play):
    async def scenario(session):
        with suppress(Exception):
            await asyncio.wait_for(session.page.goto("chrome://crash"), 2)
        await session.observe()

    fails(play, scenario, "/grid", "browser")


def test_a_browser_killed_in_mid_session(play):
    async def scenario(session):
        console = await session.context.browser.new_browser_cdp_session()
        processes = (await console.send("SystemInfo.getProcessInfo"))["processInfo"]
        (pid,) = (process["id"] for process in processes if process["type"] == "browser")
        os.kill(pid, signal.SIGKILL)
        await at(session, 10, 10)
        await session.observe()

    fails(play, scenario, "/grid", "browser")


# ---- hostile pages: a button runs a script ----

BIG = "min-height: 0; display: block; width: 200px; height: 30px; margin: 0"
HOSTILE = {
    "alerts": "for (;;) alert('again')",
    "loop": "location = '/loop'",
    "foreign": "location = 'http://{foreign}/x'",
    "form": "document.forms[0].submit()",
    "refresh": "document.head.innerHTML = '<meta http-equiv=refresh "
    'content="0;url=http://{foreign}/r">\'',
    "frame": "document.body.append(Object.assign(document.createElement('iframe'), {src: "
    "'http://{foreign}/f'}))",
    "tabs": "for (let i = 0; i < 12; i++) window.open('/pop')",
    "print": "print()",
    "ask": "navigator.geolocation.getCurrentPosition(() => 0, e => document.title = 'denied'); "
    "Notification.requestPermission(); "
    "navigator.clipboard.readText().catch(() => 0); "
    "navigator.mediaDevices?.getUserMedia({video: true}).catch(() => 0)",
    "leave": "onbeforeunload = e => { e.preventDefault(); return 'stay'; }; location = '/form'",
    "stream": "document.body.append(Object.assign(new Image(), {src: '/endless'}))",
    "socket": "new EventSource('/endless'); new WebSocket('ws://' + location.host + "
    "'/endless'); fetch('/endless')",
    "animate": "setInterval(() => document.body.style.background = '#' + "
    "Math.random().toString(16).slice(2, 8), 5); (function f() { setTimeout(f, 30) })()",
    "download": "location = '/file'",
    "spawn": "for (let i = 0; i < 30; i++) document.body.append(document.createElement('iframe'))",
    "prompt": "document.title = prompt('Who?', 'nobody') + confirm('Sure?')",
}


def hostile(script: str) -> str:
    escaped = script.replace("&", "&amp;").replace('"', "&quot;")
    return (
        f'<body style="margin: 0"><button style="{BIG}" onclick="{escaped}">go</button>'
        f"<form action=http://{{foreign}}/p></form>"
    )


PAGES |= {f"/hostile-{name}": hostile(script) for name, script in HOSTILE.items()}
PAGES["/tall"] = (
    "<body style='margin: 0'><div style='height: 200000px; background: linear-gradient(white, "
    "red)'></div><a href=/form>end</a>"
)


@pytest.mark.parametrize("name, kind", [("alerts", "deadline"), ("loop", "site")])
def test_a_page_that_takes_the_renderer(play, name, kind):
    async def scenario(session):
        await at(session, 10, 10)
        await session.observe()

    fails(play, scenario, f"/hostile-{name}", kind)


@pytest.mark.parametrize(
    "name, url, note",
    [
        ("foreign", "/hostile-foreign", "not on the task's sites"),
        ("form", "/hostile-form", "not on the task's sites"),
        ("refresh", "/hostile-refresh", "not on the task's sites"),
        ("frame", "/hostile-frame", None),
        ("print", "/hostile-print", ""),
        ("ask", "/hostile-ask", ""),
        ("leave", "/form", ""),
        ("stream", "/hostile-stream", ""),
        ("socket", "/hostile-socket", ""),
        ("animate", "/hostile-animate", ""),
        ("download", "/hostile-download", "downloads are not allowed"),
        ("spawn", "/hostile-spawn", ""),
        (
            "prompt",
            "/hostile-prompt",
            "the page asked 'Who?': accepted; the page asked 'Sure?': accepted",
        ),
    ],
)
def test_a_page_that_means_mischief_is_left_or_kept_in_time(play, site, name, url, note):
    async def scenario(session):
        began = time.monotonic()
        said = await at(session, 10, 10)
        seen = await session.observe()
        assert time.monotonic() - began < 8 and seen.url == site.url + url
        assert note is None or said.startswith(note) and bool(said) == bool(note), said
        if name in ("ask", "prompt"):
            assert await session.page.title() == {"ask": "denied", "prompt": "nobodytrue"}[name]

    before = len(site.other.asked)
    play(scenario, f"/hostile-{name}")
    assert len(site.other.asked) == before


def test_a_page_that_opens_tabs_without_end(play):
    async def scenario(session):
        await at(session, 10, 10)
        assert 1 < len(session.context.pages) <= 9
        assert (
            session.page.url.endswith("/pop")
            and await session.perform(Action("back")) == "closed the tab"
        )

    play(scenario, "/hostile-tabs")
    play(healthy, "/grid")


def test_a_page_of_200_000_pixels(play):
    async def scenario(session):
        top = (await session.observe()).png
        await session.perform(Action("key", keys=("End",)))
        assert await session.page.evaluate("scrollY") > 199_000
        assert (await session.observe()).png != top
        await at(session, 10, 330)
        assert session.page.url.endswith("/form")

    play(scenario, "/tall")


def test_a_step_has_a_deadline_of_its_own(loop, lease, site):
    async def scenario():
        async with Browsers(step=1.0) as browsers, browsers.session(lease) as session:
            await session.goto(site.url + "/form")
            with pytest.raises(
                EnvironmentFailure, match="deadline: the action wait: not done in 1 s"
            ):
                await session.perform(Action("wait", seconds=5))
            assert await session.perform(Action("type", text="on")) == ""

    loop.run_until_complete(scenario())


def test_a_browser_that_stands_still_is_replaced_and_reaped(lease, site):
    async def scenario():
        before = set(chromiums())
        async with Browsers(operation=1.0, navigation=1.0) as browsers:
            with pytest.raises(EnvironmentFailure):
                async with browsers.session(lease) as session:
                    await session.goto(site.url + "/form")
                    stopped = [pid for pid in chromiums() if pid not in before]
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
                    await session.perform(Action("type", text="a"))
            async with browsers.session(lease) as session:
                await session.goto(site.url + "/form")
                assert await session.perform(Action("type", text="a")) == ""
        for _ in range(60):
            if not running(stopped):
                return
            await asyncio.sleep(0.1)
        for pid in running(stopped):
            os.kill(pid, signal.SIGKILL)
        raise AssertionError("stopped processes stayed")

    asyncio.run(scenario())
