"""Select boxes, dialogs, tabs, late content and small targets: what a page's parts need from
eyes and hands.
"""

from io import BytesIO

import pytest
from browsing import PAGES, at, key
from PIL import Image

from jhima.actions import Action
from jhima.baselines.dialects import DIALECTS

OPTIONS = "".join(
    f"<option value=v{n}{' disabled' * (n == 3)}>Option {n}</option>" for n in range(100)
)
PAGES[
    "/select"
] = f"""<style>* {{ font: 16px monospace }} body {{ margin: 0 }} select {{ display: block; \
width: 150px; height: 24px }} div {{ height: 288px }}</style>
<select id=top><optgroup label=Even><option value=2>Two<option value=4>Four</optgroup><option \
value=1 selected>One</select><div></div><select id=low>{OPTIONS}</select>
<script>seen = []; for (const kind of ['input', 'change', 'click']) addEventListener(kind, e => \
seen.push([kind, e.target.id, e.isTrusted]))</script>"""
PAGES["/search"] = """<input autofocus style="display: block"><p></p><script>
  let waiting; const field = document.querySelector('input');
  field.oninput = () => { clearTimeout(waiting); waiting = setTimeout(async () => {
    await fetch('/slow'); document.querySelector('p').textContent = 'results for ' + \
field.value; }, 300); };</script>"""
PAGES["/say"] = """<button style="display: block; height: 30px" onclick="alert('Only 3 left'); \
confirm('Sure?')">go</button>"""
PAGES["/tabs"] = (
    "<style>a { display: block; height: 30px }</style><body style='margin: 0'><a href=/form "
    "target=_blank>one</a><a href=/late target=_blank>two</a>"
)


def picture(seen) -> Image.Image:
    return Image.open(BytesIO(seen.png)).convert("RGB")


def test_a_native_select_box_opens_in_the_page_and_its_options_are_clicked(play):
    async def scenario(session):
        shut = picture(await session.observe())
        await at(session, 50, 12)
        opened = picture(await session.observe())
        assert opened.crop((0, 24, 150, 100)).tobytes() != shut.crop((0, 24, 150, 100)).tobytes()
        await at(session, 50, 24 + 30 + 12)  # below the group's name: Two
        assert await session.page.input_value("#top") == "2"
        assert await session.page.evaluate("seen.filter(([kind]) => kind !== 'click')") == [
            ["input", "top", False],
            ["change", "top", False],
        ]
        after = picture(await session.observe())
        assert after.crop((0, 30, 336, 300)).tobytes() == shut.crop((0, 30, 336, 300)).tobytes()
        await at(session, 50, 12)
        await session.perform(key("Escape"))  # shut again, unchanged
        await at(session, 50, 12)
        await at(session, 300, 200)
        assert (
            picture(await session.observe()).crop((0, 30, 336, 300)).tobytes()
            == after.crop((0, 30, 336, 300)).tobytes()
        )
        assert await session.page.input_value("#top") == "2"
        await at(session, 50, 12)
        await session.perform(key("Escape"))
        await session.perform(key("ArrowDown"))  # the keyboard does what it did
        assert await session.page.input_value("#top") == "4"

    play(scenario, "/select")


def test_long_lists_open_upwards_and_scroll_under_the_pointer(play):
    async def scenario(session):
        await at(session, 50, 320)
        await session.perform(Action("scroll", 50, 200, dy=10_000))
        assert await session.page.evaluate("scrollY") == 0
        await at(session, 50, 296)  # the last row
        assert await session.page.input_value("#low") == "v99"

    play(scenario, "/select")


def test_select_chooses_by_label_or_value_and_clicks_elsewhere(play):
    async def scenario(session):
        for option, value in (("Option 42", "v42"), ("v7", "v7"), (" option 99", "v99")):
            assert await session.perform(Action("select", 50, 320, option=option)) == ""
            assert await session.page.input_value("#low") == value
        assert "no option 'Option 100'" in await session.perform(
            Action("select", 50, 320, option="Option 100")
        )
        assert "no option 'Option 3'" in await session.perform(
            Action("select", 50, 320, option="Option 3")
        )  # disabled
        assert await session.page.input_value("#low") == "v99"
        await session.perform(Action("select", 50, 200, option="Option 1"))
        assert (await session.page.evaluate("seen.at(-1)"))[0] == "click"

    play(scenario, "/select")


def test_what_a_dialog_said_shows_in_the_next_observation_only(play):
    async def scenario(session):
        before = picture(await session.observe())
        note = await at(session, 10, 10)
        assert note == "the page asked 'Only 3 left': accepted; the page asked 'Sure?': accepted"
        shown, after = picture(await session.observe()), picture(await session.observe())
        assert shown.crop((0, 260, 336, 336)).tobytes() != before.crop((0, 260, 336, 336)).tobytes()
        assert after.crop((0, 100, 336, 336)).tobytes() == before.crop((0, 100, 336, 336)).tobytes()

    play(scenario, "/say")


def test_there_is_a_way_back_from_a_new_tab_and_between_tabs(play):
    async def scenario(session):
        await at(session, 10, 10)
        assert session.page.url.endswith("/form")
        assert await session.perform(Action("back")) == "closed the tab"
        assert session.page.url.endswith("/tabs") and len(session.context.pages) == 1
        await at(session, 10, 10)
        for chord, page in (
            (("Control", "Tab"), "/tabs"),
            (("Control", "Tab"), "/form"),
            (("Control", "Shift", "Tab"), "/tabs"),
        ):
            await session.perform(key(*chord, how="chord"))
            assert session.page.url.endswith(page), chord
        await at(session, 10, 40)
        assert session.page.url.endswith("/late")
        assert await session.perform(key("Control", "w", how="chord")) == "closed the tab"
        await session.perform(
            Action(
                "goto", text=session.page.url.replace("/tabs", "/grid").replace("/form", "/grid")
            )
        )
        await session.perform(key("Alt", "ArrowLeft", how="chord"))
        assert not session.page.url.endswith("/grid")
        await session.perform(key("F5"))
        assert await session.perform(Action("ask", text="Which?")) == "nobody answers"

    play(scenario, "/tabs")


def test_text_is_replaced_or_typed_at_the_caret_and_keys_are_held(play):
    async def scenario(session):
        for action, value in (
            (Action("type", text="abc"), "abc"),
            (Action("type", text="d", clear=False), "abcd"),
            (Action("type", text="x"), "x"),
            (Action("type", text=""), ""),
            (key("é", "a"), "éa"),
            (key("Shift", how="down"), "éa"),
            (key("ArrowLeft"), "éa"),
            (key("Shift", how="up"), "éa"),
            (Action("type", text="Z", clear=False), "éZ"),
        ):
            assert await session.perform(action) == ""
            assert await session.page.input_value("[name=a]") == value
        await session.perform(Action("type", text="done", submit=True))
        assert session.page.url.endswith("/got?a=done&b=")

    play(scenario, "/form")


def test_a_field_that_searches_while_one_types_is_read_when_it_has_found(play):
    async def scenario(session):
        await session.perform(Action("type", text="mugs"))
        await session.observe()
        assert await session.page.inner_text("p") == "results for mugs"

    play(scenario, "/search")


# ---- small targets ----

WALL = """<style>body { margin: 0; overflow: hidden }</style><script>hits = [];
addEventListener('mousedown', e => hits.push([Math.floor(e.clientX / 24), Math.floor(e.clientY / \
24)]))</script>"""
PAGES["/wall"] = WALL
GRIDS = {
    "scalecua": {(1280, 720): (1288, 728), (336, 336): (336, 336), (1920, 1080): (1932, 1092)},
    "uitars-1.5": {(1280, 720): (1288, 728), (336, 336): (336, 336), (1920, 1080): (1932, 1092)},
    "uitars-72b": {},
    "gui-libra": {},
}
SAY = {
    "scalecua": "<action>click(x={}, y={})</action>",
    "uitars-1.5": "Action: click(start_box='({},{})')",
    "uitars-72b": "Action: click(start_box='({},{})')",
    "gui-libra": '<answer>{{"action_type": "Click", "value": "None", "point_2d": [{}, '
    "{}]}}</answer>",
}


@pytest.mark.parametrize("viewport", [(1280, 720), (336, 336), (1920, 1080)])
def test_every_dialect_hits_the_24_pixel_target_it_means_up_to_its_edges(play, viewport):
    """The first, the middle and the last column and row of the model's grid inside each target,
    by exact fractions.
    """
    columns, rows = viewport[0] // 24, viewport[1] // 24
    wanted, actions = [], []
    for dialect, grids in GRIDS.items():
        grid = grids.get(viewport, (1000, 1000))
        for cell in ((0, 0), (columns - 1, rows - 1), (columns // 2, rows // 3), (7, 5)):
            inside = [
                [n for n in range(g + 1) if index * 24 * g <= n * side < (index + 1) * 24 * g]
                for index, g, side in zip(cell, grid, viewport)
            ]
            for pick in (0, -1, 1):
                named = [cells[pick if pick < 1 else len(cells) // 2] for cells in inside]
                actions += DIALECTS[dialect].parse(SAY[dialect].format(*named), viewport).actions
                wanted.append(list(cell))

    async def scenario(session):
        for action in actions:
            await session.act(action)  # without settling, which is not what is tested
        assert await session.page.evaluate("hits") == wanted

    play(scenario, "/wall", viewport)
