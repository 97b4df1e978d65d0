"""The report in a real browser, from disk, with a run whose every text tries to become markup."""

import doctest
import json
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import sync_playwright
from run_dirs import TURNS, command, save_task, write_metrics

from jhima.browser.chromium import find_chromium
from jhima.results import report_views
from jhima.results.report import main, write_folder, write_report
from jhima.results.report_views import AS_IS, in_full
from jhima.results.run_reader import read_groups
from jhima.results.storyboard import _notes
from jhima.results.success import success_table

HOSTILE = (
    '</script><script>window.hit=1</script><img src=x onerror="window.hit=1"> <!-- ]]> {0} %s '
    "\u202e\ud800"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("work") / "joint"
    (run / "rollouts").mkdir(parents=True)
    (run / "args.json").write_text(
        json.dumps({"script": "train_rl.py", "K": 3, "M": 7, "lr": 1e-5, "note": HOSTILE})
    )
    write_metrics(run / "metrics.jsonl", 24)
    intent = "What is the price of the cheapest kettle that holds more than one litre?"
    save_task(
        run,
        "0000",
        "pocket-3",
        "shopping",
        intent,
        [[1, 0, 0, 1, None, 0, 1], [0] * 7, [1] * 6 + [0]],
    )
    save_task(
        run,
        "0001",
        "pocket-4",
        "gitlab",
        "Open an issue titled 'Kettle' in the newest project",
        [[0, 0], [1, 1], [0, 1]],
    )
    save_task(run, "0001", "pocket-9", "reddit", "", [[1]])
    place = run / "rollouts" / "0001" / "pocket-9"
    group = json.loads((place / "group.json").read_text())
    group["task"]["intent"] = HOSTILE
    group["plans"] = [{"text": HOSTILE, "subtasks": [HOSTILE], "ids": []}]
    (place / "group.json").write_text(json.dumps(group))
    episode = json.loads((place / "p0_e0" / "episode.json").read_text())
    episode |= {
        "answer": HOSTILE,
        "final_url": "javascript:" + HOSTILE,
        "checks": [{"kind": HOSTILE, "what": HOSTILE, "passed": True, "reason": HOSTILE}],
    }
    for step in episode["steps"]:
        step |= {key: HOSTILE for key in ("url", "reply", "thought", "operation", "note", "error")}
        step |= {"warnings": [HOSTILE], "actions": [{"kind": HOSTILE, "text": HOSTILE}]}
    (place / "p0_e0" / "episode.json").write_text(json.dumps(episode))
    rows = [
        {
            "episode": "0000/pocket-3/p0_e0",
            "request": "",
            "completed": [True, True, False],
            "reply": "1. The list is open.",
        },
        {"episode": "0001/pocket-9/p0_e0", "request": "", "completed": [True], "reply": HOSTILE},
    ]
    (run / "subgoals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture(scope="module")
def report(run) -> Path:
    assert write_report(run, run / "report.html") == ""
    return run / "report.html"


@pytest.fixture(scope="module")
def open_page():
    """Opens a report from disk.

    In the end no page may have logged an error, run a hostile script or made a request.
    """
    trouble: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright),
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
            ],
        )

        def open_page(path: Path):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.on("console", lambda message: trouble.append(f"console: {message.text}"))
            page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
            page.on(
                "request",
                lambda request: (
                    trouble.append(request.url)
                    if not request.url.startswith((path.parent.as_uri() + "/", "data:"))
                    else None
                ),
            )
            page.goto(path.as_uri())
            return page

        yield open_page
        assert not any(
            page.evaluate("window.hit") for context in browser.contexts for page in context.pages
        )
        browser.close()
    assert trouble == []


def test_doctests():
    assert doctest.testmod(report_views).failed == 0


def test_overview_lists_everything(report, open_page):
    page = open_page(report)
    assert page.title() == "joint"
    assert page.locator(".success-table tbody tr").count() == 4
    assert page.locator("nav .item").count() == 4
    for image, width in zip(
        page.locator(".curve img").all(), (900, 1000), strict=True
    ):  # learning curve, figure 2
        image.evaluate("image => image.decode()")
        assert image.evaluate("image => image.naturalWidth") == width


def test_click_and_keys_walk_through_tasks_episodes_and_steps(report, open_page):
    page = open_page(report)
    page.keyboard.press("j")
    assert "cheapest kettle" in page.locator("main h2").inner_text()
    assert page.locator(".grid tbody tr").count() == 3 and page.locator("button.cell").count() == 21
    # Plan 0: rewards 1 0 0 1 - 0 1, so S_0 = 3/6, A^A_00 = +0.50; S = 3/6, 0, 6/7, mean 0.452
    assert page.locator(".grid .score").all_inner_texts() == [
        "0.50",
        "+0.05",
        "0.00",
        "\u22120.45",
        "0.86",
        "+0.40",
    ]
    assert page.locator("button.cell").nth(0).inner_text().split() == ["1", "+0.50"]
    assert page.locator("button.cell").nth(4).inner_text().split() == ["\u2013"]
    assert page.locator(".judged tbody tr").all_inner_texts() == [
        "1\tOpen the catalogue, way 0\tyes",
        "2\tFind the kettle\tyes",
        "3\tRead its price\tno",
    ]
    assert page.locator(".episode > pre").inner_text() == "1. The list is open."
    page.locator("button.cell").nth(4).click()
    assert "browser: the page crashed" in page.locator(".episode .facts").first.inner_text()
    page.locator("button.cell").nth(20).click()
    assert page.locator(".episode h3").inner_text().startswith("Plan 2, episode 6")
    page.keyboard.press("ArrowUp")
    assert page.locator(".episode h3").inner_text().startswith("Plan 2, episode 5")
    assert page.locator(".frame").count() == len(TURNS) + 1
    for turn in TURNS[1:]:
        page.keyboard.press("ArrowRight")
        step = page.locator(".step.current")
        assert step.locator(".operation").inner_text() == (turn.operation or "(no operation given)")
        drawn = [a for a in turn.actions if a.kind in ("click", "drag", "scroll", "hover")]
        assert step.locator("path.mark").count() == len(drawn)
    assert "answer(text='$24.90')" in step.inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".step.current").inner_text() == "After the last step"
    assert page.locator(".step.current img").evaluate("i => i.naturalWidth") == 336
    page.keyboard.press("ArrowRight")  # the end: stays
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert (
        page.url.endswith("#0.2.5.5") and "bad_syntax" in page.locator(".step.current").inner_text()
    )
    copy = open_page(report)  # the address leads back to the step
    copy.evaluate("location.hash = '#0.2.5.5'")
    copy.wait_for_selector(".step.current >> text=bad_syntax")
    page.keyboard.press("j")
    assert "Open an issue" in page.locator("main h2").inner_text()
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert page.locator("main h2").inner_text() == "Overview"
    page.locator("nav input").fill("gitlab")
    assert page.locator("nav .list .item:visible").count() == 1


def test_a_click_is_marked_where_it_fell(report, open_page):
    page = open_page(report)
    page.keyboard.press("j")
    shot, mark = (
        page.locator(f".step.current {name}").first.bounding_box()
        for name in (".shot", "path.mark")
    )
    assert mark["x"] + mark["width"] / 2 == pytest.approx(
        shot["x"] + shot["width"] * 168 / 336, abs=2
    )
    assert mark["y"] + mark["height"] / 2 == pytest.approx(
        shot["y"] + shot["height"] * 70 / 336, abs=2
    )


def test_hostile_text_is_shown_as_text(report, open_page):
    page = open_page(report)
    for _ in range(3):
        page.keyboard.press("j")
    page.locator("button.cell").click()
    page.locator(".step.current summary").click()
    wanted = HOSTILE.split("\ud800")[0]
    for selector in (
        "nav",
        "main h2",
        ".grid tbody .plan",
        ".episode > .facts",
        ".checks",
        ".judged",
        ".episode > pre",
        ".step.current .facts",
        ".step.current pre",
    ):
        assert wanted in page.locator(selector).first.text_content(), selector
    assert page.locator("script").count() == 2 and page.locator("img[src='x']").count() == 0
    assert page.evaluate("window.hit") is None


def test_a_folder_holds_a_page_a_batch_with_all_episodes(run, open_page, tmp_path):
    write_folder(run, tmp_path / "pages")
    images = {path.name for path in (tmp_path / "pages" / "images").iterdir()}
    assert len(images) == len(TURNS) + 2  # as in the one page, with the two figures
    page = open_page(tmp_path / "pages" / "index.html")
    assert page.locator("nav a.item").count() == 2 and "data:image" not in page.content()
    page.keyboard.press("j")  # the keys lead to a batch as to a task
    page.wait_for_url("**/batch-0000.html")
    page.keyboard.press("j")
    assert (
        page.locator("button.cell").count() == 21 and page.locator("button.cell.brief").count() == 0
    )
    image = page.locator(".step.current img")
    image.evaluate("image => image.decode()")
    assert image.evaluate("image => image.naturalWidth") == 336
    page.locator("nav a.item").click()
    page.wait_for_url("**/index.html")


def test_limit_keeps_the_page_small_and_says_so(run, open_page, tmp_path):
    omitted = write_report(run, tmp_path / "small.html", limit=2)
    assert omitted.startswith("2 of 28 episodes")
    assert (tmp_path / "small.html").stat().st_size < 400_000
    page = open_page(tmp_path / "small.html")
    assert omitted in page.locator(".notice").inner_text()
    page.keyboard.press("j")
    assert page.locator("button.cell.brief").count() == 19
    page.locator("button.cell").nth(20).click()
    assert "not in this page" in page.locator(".episode .notice").inner_text()
    page.keyboard.press("ArrowRight")


def test_limit_spreads_over_the_run(run):
    group = read_groups(run)[1]  # six episodes
    groups = [
        replace(
            group,
            episodes=tuple(replace(e, folder=Path(str(n)) / e.folder.name) for e in group.episodes),
        )
        for n in range(30)
    ]
    assert in_full(groups, 0) == set() and len(in_full(groups, 180)) == 180
    chosen = in_full(groups, 20)
    assert len(chosen) == 18 and {path.parent.name for path in chosen} == {"0", "14", "29"}
    assert {path.name for path in in_full(groups, 3)} == {"p0_e0", "p1_e0", "p2_e0"}


def test_a_large_screenshot_becomes_a_small_one_and_a_broken_one_none(run, open_page, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run / "rollouts" / "0001" / "pocket-4", copy / "rollouts" / "0001" / "pocket-4")
    place = copy / "rollouts" / "0001" / "pocket-4"
    noise = BytesIO()
    Image.effect_noise((1600, 900), 90).save(noise, "PNG")
    assert len(noise.getvalue()) > AS_IS
    (place / "p0_e0" / "step_00.png").write_bytes(noise.getvalue())
    (place / "p0_e0" / "step_01.png").write_bytes(b"<svg onload=alert(1)>")
    (place / "p0_e1" / "step_00.png").unlink()
    write_report(copy, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.keyboard.press("j")
    image = page.locator(".step.current img")
    assert (
        image.get_attribute("src").startswith("data:image/jpeg")
        and image.evaluate("i => i.naturalWidth") == 1280
    )
    assert page.locator(".frame").nth(1).inner_text().startswith("no screenshot")
    page.keyboard.press("ArrowDown")
    assert "cannot be read" in page.locator(".episode .notice").inner_text()


def test_a_check_without_a_verdict_is_no_failed_one(open_page, tmp_path):
    """... in a run read back, its table, its report and its storyboard."""
    save_task(tmp_path, "run_0", "t", "map", "Find it", [[0, None]])
    for place, reward, verdicts in (("p0_e0", 0, [None, False]), ("p0_e1", None, [None, True])):
        path = tmp_path / "rollouts" / "run_0" / "t" / place / "episode.json"
        checks = [
            {"kind": "string_match", "what": f"fuzzy {passed}", "passed": passed, "reason": "said"}
            for passed in verdicts
        ]
        path.write_text(
            json.dumps(
                json.loads(path.read_text()) | {"reward": reward, "failure": None, "checks": checks}
            )
        )
    (group,) = read_groups(tmp_path)
    assert [[check.passed for check in e.checks] for e in group.episodes] == [
        [None, False],
        [None, True],
    ]
    assert [e.failure for e in group.episodes] == ["", "judge: no verdict"]
    table = success_table([group])
    assert (table.overall.failed, table.overall.unscored, table.failures) == (1, 1, {"judge": 1})
    assert _notes(group, group.episodes[0])[-1].lines == ("failure", "fuzzy False: said")
    write_report(tmp_path, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.keyboard.press("j")
    assert page.locator(".episode .checks tbody tr td:nth-child(3)").all_inner_texts() == [
        "not known",
        "no",
    ]


def test_command_line(run, tmp_path, capsys):
    command(main, run, "--out", tmp_path / "one.html", "--batch", 1, "--limit", 99)
    assert "MB" in capsys.readouterr().out
    assert '"batch":"0000"' not in (tmp_path / "one.html").read_text()
    with pytest.raises(SystemExit, match="0000, 0001"):
        command(main, run, "--batch", 7)
    with pytest.raises(SystemExit, match="no such folder"):
        command(main, tmp_path)


def test_same_screenshots_are_embedded_once(report):
    data = report.read_text().split('id="data">')[1].split("</script>")[0]
    assert len(json.loads(data)["images"]) == len(TURNS) + 2  # 'Catalogue', six more, two figures
    assert "<" not in data and TURNS[0].operation in data
