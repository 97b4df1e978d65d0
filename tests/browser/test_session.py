"""What an agent does and sees in a real Chromium, on a small local site."""

import asyncio
import time
from io import BytesIO

import pytest
from browsing import at, key
from PIL import Image

from jhima.actions import Action
from jhima.browser.lease import host_of
from jhima.browser.page_scripts import QUIET, SETTLED

# ---- acting and seeing ----


def test_clicks_land_on_small_targets_up_to_their_edges(play):
    async def scenario(session):
        for dx, dy in ((12, 12), (0, 0), (23.9, 0), (0, 23.9), (23.9, 23.9)):
            await at(session, 5 * 24 + dx, 3 * 24 + dy)
        await at(session, 9999, -5)  # outside: the nearest edge
        await at(session, 12, 12, button="right")
        await at(session, 36, 12, count=2)
        assert await session.page.evaluate("hits") == [
            [47, 0, 1],
            [47, 0, 1],
            [47, 0, 1],
            [47, 0, 1],
            [47, 0, 1],
            [13, 0, 1],
            [0, 2, 1],
            [1, 0, 1],
            [1, 0, 2],
        ]
        seen = await session.observe()
        assert Image.open(BytesIO(seen.png)).size == (seen.width, seen.height) == (336, 336)
        assert seen.url.endswith("/grid")

    play(scenario, "/grid")


def test_typed_text_arrives_and_keys_edit_and_submit_it(play):
    async def scenario(session):
        assert await session.perform(Action("type", text="naïve & <b>")) == ""
        assert await session.page.input_value("[name=a]") == "naïve & <b>"
        await session.perform(key("Control", "a", how="chord"))
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
        await session.perform(Action("drag", to=(120, 130)))  # from where the pointer is
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
            await asyncio.sleep(0.3)  # a caret blinks every half second
        assert len(shots) == 1
        other = Image.open(BytesIO(await session.page.screenshot()))
        assert (
            Image.open(BytesIO(shots.pop())).convert("RGB").tobytes()
            == other.convert("RGB").tobytes()
        )

    play(scenario, "/form")


def test_history_begins_with_the_episode(play, site):
    async def scenario(session):
        await session.goto(site.url + "/form")  # as after a login on another page
        assert await session.perform(Action("back")) == "there is no page to go back to"
        await session.perform(
            Action("goto", text=f"{site.url}/got?x=1#y".replace("127.0.0.1", "localhost"))
        )
        assert session.page.url == f"{site.url}/got?x=1#y"
        await session.perform(Action("back"))
        assert session.page.url.endswith("/form")
        await session.perform(Action("forward"))
        assert session.page.url.endswith("#y")
        assert await session.perform(Action("forward")) == "there is no page to go forward to"
        began = time.monotonic()
        assert (
            await session.perform(Action("wait", seconds=0.5)) == ""
            and time.monotonic() - began > 0.5
        )
        assert (
            await session.perform(Action("answer", text="42"))
            == await session.perform(Action("stop"))
            == ""
        )

    play(scenario, "/grid")


def test_new_tabs_are_followed_until_they_close_and_scoring_pages_are_not(play):
    async def scenario(session):
        await at(session, 10, 10)
        assert session.page.url.endswith("/slow")  # after its 300 ms, not about:blank
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
        assert (
            await session.perform(Action("goto", text=session.page.url.replace("/links", "/file")))
            != ""
        )
        await at(session, 10, 160)
        assert session.page.url.endswith("/links") and (await session.observe()).png

    play(scenario, "/links")


# ---- hosts ----


def test_only_the_lease_s_hosts_are_reached(play, site):
    refused = f"not on the task's sites: {site.foreign}"
    before = len(site.other.asked)

    async def scenario(session):
        for y in (40, 70):  # a link, a redirect
            assert await at(session, 10, y) == refused
            assert session.page.url.endswith("/links")
        async with session.context.expect_page():  # a new tab, which a busy machine shows late
            assert await at(session, 10, 100) == refused
        await session.observe()
        assert session.page.url.endswith("/links") and len(session.context.pages) == 1
        assert refused in await session.perform(Action("goto", text=site.url + "/away"))
        for url in (
            f"http://{site.foreign}",
            "https://example.com/",
            "file:///etc/passwd",
            "javascript:1",
            "",
            "http://[",
            "chrome://crash",
            "view-source:" + site.url,
        ):
            assert "not on the task's sites" in await session.perform(Action("goto", text=url))
            assert session.page.url.endswith("/links")
        fetched = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')"
        assert await session.page.evaluate(fetched, f"http://{site.foreign}/data") == "refused"

    play(scenario, "/links")
    assert len(site.other.asked) == before


@pytest.mark.parametrize(
    "url, host",
    [
        ("http://localhost:7770/a", "127.0.0.1:7770"),
        ("HTTPS://Example.com", "example.com:443"),
        ("http://a:b@c/", "c:80"),
        ("javascript:alert(1)", ""),
        ("http://a:port/", ""),
        ("http://[", ""),
        ("", ""),
    ],
)
def test_host_of(url, host):
    assert host_of(url) == host


# ---- settling ----


def test_late_content_is_in_the_observation(play):
    async def scenario(session):
        await at(session, 10, 10)
        seen = await session.observe()
        assert Image.open(BytesIO(seen.png)).convert("RGB").getpixel((300, 300)) == (255, 0, 0)

    play(scenario, "/late")


def test_time_in_which_the_page_could_not_run_is_not_quiet_time(play):
    """What was due while a busy machine held the page up runs before the page counts as settled."""
    held_up = f"""given => {{
        let ran = false;
        const settled = ({SETTLED})(given), end = performance.now() + 200;
        setInterval(() => {{ ran = true; }}, 20);
        while (performance.now() < end);
        return settled.then(() => ran); }}"""

    async def scenario(session):
        assert await session.page.evaluate(held_up, [1000 * QUIET, 1000, True])

    play(scenario, "/late")


def test_a_page_that_never_falls_quiet_is_taken_as_it_is(play):
    async def scenario(session):
        began = time.monotonic()
        await at(session, 10, 40)
        assert 0.9 < time.monotonic() - began < 6.0  # a busy machine

    play(scenario, "/late")
