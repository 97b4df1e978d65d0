"""Session, Browsers and PocketArena against a real Chromium, a small local site and the real pocket sites."""
import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from PIL import Image

from jhima.actions import Action
from jhima.arena import Lease, PocketArena
from jhima.browser import host_of
from jhima.chromium import Browsers, find_chromium
from jhima.failures import EnvironmentFailure
from jhima.login import log_in

GRID = """<style>body { margin: 0 } button { position: absolute; width: 24px; height: 24px; border: 0 }</style>
<body><script>hits = []; for (let i = 0; i < 196; i++) {
  const b = document.createElement('button');
  b.style.left = i % 14 * 24 + 'px'; b.style.top = Math.floor(i / 14) * 24 + 'px';
  b.onmousedown = e => hits.push([i, e.button, e.detail]); document.body.append(b); }</script>"""
FORM = """<form action=/got><input name=a autofocus><input name=b><button>ok</button></form><textarea></textarea>"""
LINKS = """<style>a, button, input { display: block; height: 30px; margin: 0 } body { margin: 0 }</style>
<a href=/slow target=_blank>tab</a><a href=http://{foreign}/x>foreign</a><a href=/away>redirect</a>
<a href=http://{foreign}/y target=_blank>foreign tab</a><a href=/file>file</a><input type=file>
<button onclick="alert('Delete it?'); document.title = 'deleted'">alert</button>
<a href=/silent>silent</a><a href=/500>500</a>
<button onclick="window.open('/pop')">pop</button>"""
LATE = """<style>body { margin: 0 } button { display: block; height: 30px }</style>
<button onclick="fetch('/slow').then(r => setTimeout(() => document.body.style.background = 'red', 40))">go</button>
<button onclick="setInterval(() => fetch('/late?' + Math.random()), 20)">poll</button>
<button onclick="while (true);">busy</button>"""
MOVES = """<div style="height: 4000px">tall</div>
<script>seen = []; for (const kind of ['mousedown', 'mousemove', 'mouseup'])
  addEventListener(kind, e => seen.push([e.type, e.clientX, e.clientY]))</script>"""
PAGES = {"/grid": GRID, "/form": FORM, "/links": LINKS, "/late": LATE, "/moves": MOVES,
         "/pop": "<button onclick='window.close()' style='height: 40px'>close</button>"}


class Site(ThreadingHTTPServer):
    """Serves PAGES and a few troublesome paths; `asked` are the paths that were asked for."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.foreign, self.asked = f"http://127.0.0.1:{self.server_port}", "example.com", []
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, _request, _address):
        pass                    # a browser that goes away in mid-request


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site, path = self.server, self.path.split("?")[0]
        site.asked.append(self.path)
        if path == "/silent":
            site.over.wait()
        if path == "/slow":
            time.sleep(0.3)
        self.send_response({"/500": 500, "/away": 302}.get(path, 200))
        if path == "/away":
            self.send_header("Location", f"http://{site.foreign}/z")
        if path == "/file":
            self.send_header("Content-Disposition", "attachment; filename=a.txt")
        self.send_header("Content-Type", "text/html")
        body = (f"<title>{path}</title>" + PAGES.get(path, path).replace("{foreign}", site.foreign)).encode()
        self.send_header("Content-Length", str(len(body) + (1000 if path == "/endless" else 0)))
        self.end_headers()
        self.wfile.write(body)
        if path == "/endless":
            site.over.wait()

    def log_message(self, *_args):
        pass


def children(pid: int) -> list[int]:
    """This process's descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    direct = [child for child, parent in parents.items() if parent == pid]
    return direct + [grandchild for child in direct for grandchild in children(child)]


def chromiums(flag: str = "") -> list[int]:
    """Pids of our Chromium processes whose command line has `flag`; "--remote-debugging-pipe" is the main one's."""
    found = []
    for pid in children(os.getpid()):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if "chrom" in line.split("\0")[0] and flag in line:
                found.append(pid)
    return found


def running(pids: list[int]) -> list[int]:
    """Those that still run (a zombie does not)."""
    def runs(pid):
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False
    return [pid for pid in pids if runs(pid)]


def at(session, x, y, **more):
    return session.perform(Action("click", x=x, y=y, **more))


def key(*keys, **more):
    return Action("key", keys=keys, **more)


@pytest.fixture(scope="module")
def site():
    site, other = Site(), Site()
    site.other, site.foreign = other, f"127.0.0.1:{other.server_port}"      # another local port is foreign too
    yield site
    for server in (site, other):
        server.over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def lease(site):
    return Lease({"shopping": site.url}, {"X-Pocket-World": "w1"}, {}, (336, 336))


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def browsers(loop):
    """Deadlines short enough for tests of failures, long enough for a busy machine."""
    browsers = Browsers(operation=6.0, navigation=2.0, cap=1.0)
    loop.run_until_complete(browsers.__aenter__())
    yield browsers
    loop.run_until_complete(browsers.__aexit__())


@pytest.fixture
def play(loop, browsers, lease, site):
    """Runs `scenario(session)` in a fresh session that shows `path`."""
    def play(scenario, path="", viewport=(336, 336)):
        async def one():
            async with browsers.session(replace(lease, viewport=viewport)) as session:
                if path:
                    await session.goto(site.url + path)
                return await scenario(session)
        return loop.run_until_complete(one())
    return play


# ---- acting and seeing ----

def test_clicks_land_on_small_targets_up_to_their_edges(play):
    async def scenario(session):
        for dx, dy in ((12, 12), (0, 0), (23.9, 0), (0, 23.9), (23.9, 23.9)):
            await at(session, 5 * 24 + dx, 3 * 24 + dy)
        await at(session, 9999, -5)                                          # outside: the nearest edge
        await at(session, 12, 12, button="right")
        await at(session, 36, 12, count=2)
        assert await session.page.evaluate("hits") == [
            [47, 0, 1], [47, 0, 1], [47, 0, 1], [47, 0, 1], [47, 0, 1], [13, 0, 1], [0, 2, 1], [1, 0, 1], [1, 0, 2]]
        seen = await session.observe()
        assert Image.open(BytesIO(seen.png)).size == (seen.width, seen.height) == (336, 336)
        assert seen.url.endswith("/grid")
    play(scenario, "/grid")


def test_typed_text_arrives_and_keys_edit_and_submit_it(play):
    async def scenario(session):
        assert await session.perform(Action("type", text="naïve & <b>")) == ""
        assert await session.page.input_value("[name=a]") == "naïve & <b>"
        await session.perform(key("Control", "a", chord=True))
        await session.perform(Action("type", text="red"))
        await session.perform(key("Tab"))
        await session.perform(Action("type", text="blu"))
        await session.perform(key("Backspace", "Backspace"))
        await session.perform(key("x", times=3))
        assert await session.perform(key("NoSuchKey")) == "no such key: NoSuchKey"
        await session.perform(Action("type", text="\n"))
        assert session.page.url.endswith("/got?a=red&b=bxxx")
    play(scenario, "/form")


def test_too_long_a_text_is_cut_with_a_note(play):
    async def scenario(session):
        assert "first 1000 characters" in await session.perform(Action("type", text="a" * 1100))
        assert await session.page.input_value("[name=a]") == "a" * 1000
    play(scenario, "/form")


def test_scroll_hover_and_drag_are_mouse_events(play):
    async def scenario(session):
        await session.perform(Action("scroll", dy=150))
        assert await session.page.evaluate("scrollY") == 150
        await session.perform(Action("scroll", x=10, y=10, dy=-100))
        assert await session.page.evaluate("scrollY") == 50
        await session.perform(Action("hover", x=20, y=30))
        await session.page.evaluate("seen.length = 0")
        await session.perform(Action("drag", to=(120, 130)))                # from where the pointer is
        seen = await session.page.evaluate("seen")
        assert ["mousedown", 20, 30] in seen and seen[-1] == ["mouseup", 120, 130]
        assert sum(kind == "mousemove" for kind, *_ in seen) >= 10
        await session.perform(Action("drag", x=1, y=2, to=(float("nan"), 1e9)))
        assert (await session.page.evaluate("seen"))[-1] == ["mouseup", 0, 335]
    play(scenario, "/moves")


def test_nothing_moves_on_its_own_between_two_screenshots(play):
    async def scenario(session):
        await session.perform(Action("type", text="caret"))
        shots = set()
        for _ in range(5):
            shots.add((await session.observe()).png)
            await asyncio.sleep(0.3)                    # a caret blinks every half second
        assert len(shots) == 1
        other = Image.open(BytesIO(await session.page.screenshot()))
        assert Image.open(BytesIO(shots.pop())).convert("RGB").tobytes() == other.convert("RGB").tobytes()
    play(scenario, "/form")


def test_history_begins_with_the_episode(play, site):
    async def scenario(session):
        await session.goto(site.url + "/form")          # as after a login on another page
        assert await session.perform(Action("back")) == "there is no page to go back to"
        await session.perform(Action("goto", text=f"{site.url}/got?x=1#y".replace("127.0.0.1", "localhost")))
        assert session.page.url == f"{site.url}/got?x=1#y"
        await session.perform(Action("back"))
        assert session.page.url.endswith("/form")
        await session.perform(Action("forward"))
        assert session.page.url.endswith("#y")
        assert await session.perform(Action("forward")) == "there is no page to go forward to"
        began = time.monotonic()
        assert await session.perform(Action("wait", seconds=0.5)) == "" and time.monotonic() - began > 0.5
        assert await session.perform(Action("answer", text="42")) == await session.perform(Action("stop")) == ""
    play(scenario, "/grid")


def test_new_tabs_are_followed_until_they_close_and_scoring_pages_are_not(play):
    async def scenario(session):
        await at(session, 10, 10)
        assert session.page.url.endswith("/slow")       # after its 300 ms, not about:blank
        await session.perform(Action("goto", text=session.page.url.replace("/slow", "/links")))
        await at(session, 10, 280)
        assert session.page.url.endswith("/pop")
        await at(session, 10, 20)
        assert session.page.url.endswith("/links")
        before = session.page
        page = await session.new_page()
        await page.goto(before.url.replace("/links", "/form"))
        assert session.page is before
    play(scenario, "/links")


def test_dialogs_are_accepted_and_told(play):
    async def scenario(session):
        assert "Delete it?" in await at(session, 10, 190)
        assert await session.page.title() == "deleted"
    play(scenario, "/links")


def test_downloads_are_denied_and_file_choosers_ignored(play):
    async def scenario(session):
        assert await at(session, 10, 130) == "downloads are not allowed"
        assert await session.perform(Action("goto", text=session.page.url.replace("/links", "/file"))) != ""
        await at(session, 10, 160)
        assert session.page.url.endswith("/links") and (await session.observe()).png
    play(scenario, "/links")


# ---- hosts ----

def test_only_the_lease_s_hosts_are_reached(play, site):
    refused = f"not on the task's sites: {site.foreign}"
    before = len(site.other.asked)

    async def scenario(session):
        for y in (40, 70):                              # a link, a redirect
            assert await at(session, 10, y) == refused
            assert session.page.url.endswith("/links")
        async with session.context.expect_page():       # a new tab, which a busy machine shows late
            assert await at(session, 10, 100) == refused
        await session.observe()
        assert session.page.url.endswith("/links") and len(session.context.pages) == 1
        assert refused in await session.perform(Action("goto", text=site.url + "/away"))
        for url in (f"http://{site.foreign}", "https://example.com/", "file:///etc/passwd", "javascript:1", "",
                    "http://[", "chrome://crash", "view-source:" + site.url):
            assert "not on the task's sites" in await session.perform(Action("goto", text=url))
            assert session.page.url.endswith("/links")
        fetched = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')"
        assert await session.page.evaluate(fetched, f"http://{site.foreign}/data") == "refused"
    play(scenario, "/links")
    assert len(site.other.asked) == before


@pytest.mark.parametrize("url, host", [
    ("http://localhost:7770/a", "127.0.0.1:7770"), ("HTTPS://Example.com", "example.com:443"),
    ("http://a:b@c/", "c:80"), ("javascript:alert(1)", ""), ("http://a:port/", ""), ("http://[", ""), ("", "")])
def test_host_of(url, host):
    assert host_of(url) == host


# ---- settling ----

def test_late_content_is_in_the_observation(play):
    async def scenario(session):
        await at(session, 10, 10)
        seen = await session.observe()
        assert Image.open(BytesIO(seen.png)).convert("RGB").getpixel((300, 300)) == (255, 0, 0)
    play(scenario, "/late")


def test_a_page_that_never_falls_quiet_is_taken_as_it_is(play):
    async def scenario(session):
        began = time.monotonic()
        await at(session, 10, 40)
        assert 0.9 < time.monotonic() - began < 3.0
    play(scenario, "/late")


# ---- failures: within their deadlines, as EnvironmentFailure, and the next session works ----

def fails(play, scenario, path, kind):
    began = time.monotonic()
    with pytest.raises(EnvironmentFailure) as failure:
        play(scenario, path)
    assert failure.value.kind == kind, failure.value
    assert time.monotonic() - began < 20.0       # deadlines of 2 and 6 s, on a busy machine

    async def healthy(session):
        await at(session, 12, 12)
        assert await session.page.evaluate("hits") == [[0, 0, 1]]
    play(healthy, "/grid")


def nothing(_session):
    raise AssertionError("the page should not have opened")


@pytest.mark.parametrize("path, kind", [("/silent", "deadline"), ("/endless", "deadline"), ("/500", "site")])
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
        os.kill(chromiums("--remote-debugging-pipe")[0], signal.SIGKILL)
        await at(session, 10, 10)
        await session.observe()
    fails(play, scenario, "/grid", "browser")


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


def test_a_missing_browser_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/no/such/chromium")

    async def scenario():
        async with Browsers():
            pass
    with pytest.raises(RuntimeError, match="no Chromium at /no/such/chromium: set CHROMIUM=.*chromium$"):
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
            async with arena.lease() as three:              # a dead server is started again
                assert reply(three.urls["map"], three.headers["X-Pocket-World"]) == 200
            server = arena._server
        assert server.returncode is not None
        with pytest.raises(OSError):
            reply(three.urls["map"], "person")
    asyncio.run(scenario())


def test_log_in_works_on_each_site_and_a_failed_one_is_no_sample():
    async def enter(arena, browsers, site, account=None):
        async with arena.lease() as lease, browsers.session(lease) as session:
            await log_in(session, replace(lease, accounts={site: account or lease.accounts[site]}), site)
            await session.goto(lease.urls[site])
            assert not await session.page.locator("input[type=password]").count()

    async def scenario():
        async with PocketArena() as arena, Browsers() as browsers:
            sites = ("shopping", "shopping_admin", "reddit", "gitlab")
            await asyncio.gather(*(enter(arena, browsers, site) for site in sites))
            with pytest.raises(EnvironmentFailure, match="^login: gitlab shows HTTP 401 at .* to nobody"):
                await enter(arena, browsers, "gitlab", ("nobody", "wrong"))
    asyncio.run(scenario())
