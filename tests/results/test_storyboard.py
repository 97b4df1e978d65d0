"""The paper's qualitative figures: what is on them, read back from their pixels."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw
from run_dirs import command, save_task

from jhima.actions import Action
from jhima.results.storyboard import MARK, Frame, Note, _font, _write, main, storyboard

MAGENTA = tuple(int(MARK[i : i + 2], 16) for i in (1, 3, 5))


def white(size: tuple[int, int] = (336, 336)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "white").save(out, "PNG")
    return out.getvalue()


def marked(sheet: Image.Image) -> np.ndarray:
    """[n, 2], the x and y of every pixel in the colour of a mark."""
    y, x = np.nonzero((np.asarray(sheet) == MAGENTA).all(axis=-1))
    return np.stack([x, y], axis=-1)


def test_a_click_is_marked_where_it_fell():
    click = Frame(white(), "1. Click", (Action("click", 84.0, 252.0),), (336, 336))
    found = marked(storyboard([Note("Task", ("x",))], [click]))
    blank = np.asarray(storyboard([Note("Task", ("x",))], [Frame(white(), "1. Click")]))
    shot = np.argwhere((blank == (0xC3, 0xCA, 0xD2)).all(axis=-1))  # the screenshot's outline
    (top, left), (bottom, right) = shot.min(axis=0), shot.max(axis=0)
    x, y = found.mean(axis=0)
    assert (x - left) / (right - left) == pytest.approx(0.25, abs=0.01)
    assert (y - top) / (bottom - top) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    "action, seen",
    [
        (Action("drag", 10.0, 10.0, to=(300.0, 300.0)), True),
        (Action("scroll", dy=300.0), True),
        (Action("hover", 9.0, 9.0), True),
        (Action("scroll"), False),
        (Action("type", text="x"), False),
        (Action("click"), False),
        (Action("answer", text="x"), False),
    ],
)
def test_only_what_has_a_place_is_marked(action, seen):
    assert bool(len(marked(storyboard([], [Frame(white(), "", (action,), (336, 336))])))) == seen


def test_text_stays_in_its_column():
    canvas = Image.new("RGB", (400, 900), "white")
    hostile = "a word " * 20 + "http://" + "x" * 200 + "\x00\u202e\ud800 end"
    bottom = _write(ImageDraw.Draw(canvas), hostile, (0, 0), 300, 16, "black")
    dark = np.argwhere(np.asarray(canvas.convert("L")) < 128)
    assert dark[:, 1].max() < 300 and 100 < bottom < 900 and dark[:, 0].max() < bottom
    assert _font(16) is _font(16)


def test_command_line_draws_an_episode_and_a_plan(tmp_path):
    save_task(tmp_path, "run_0", "pocket-3", "shopping", "What does the kettle cost?", [[0]])
    task = tmp_path / "rollouts" / "run_0" / "pocket-3"
    command(main, "episode", task / "p0_e0", tmp_path / "episode.png")
    episode = Image.open(tmp_path / "episode.png")
    assert episode.width == 1400 and len(marked(episode)) > 100
    command(main, "plan", task, tmp_path / "plan.png")
    assert Image.open(tmp_path / "plan.png").height > 600
    for wrong, message in (
        (task / "p0_e7", "a finished episode"),
        (tmp_path / "no" / "p0_e0", "No such file"),
    ):
        with pytest.raises(SystemExit, match=message):
            command(main, "episode", wrong, tmp_path / "x.png")
    with pytest.raises(SystemExit, match="with a plan 3"):
        command(main, "plan", task, tmp_path / "x.png", "--plan", 3)
