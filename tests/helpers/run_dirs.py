"""Run directories made up for tests of tables, figures and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image, ImageDraw

from jhima.actions import Action, Turn
from jhima.episodes import Episode, Plan, Step, Task, save_episode, save_plans


def command(main: Callable[[], None], *words: object) -> None:
    """Runs the main() of a command with these words as its command line."""
    name = Path(sys.modules[main.__module__].__file__).name
    with patch.object(sys, "argv", [name, *map(str, words)]):
        main()


def write_run(run: Path, rewards: dict[tuple[str, str, str], list[list[int | None]]]) -> Path:
    """A run with these rewards [K][M] by (batch, site, task id); None: the environment failed."""
    for (batch, site, name), R in rewards.items():
        folder = run / "rollouts" / batch / name
        plans = [Plan(f"1. Plan {i}", [f"Plan {i}"], ids=[1, 2, 3]) for i in range(len(R))]
        save_plans(folder, Task(name, tuple(site.split("+")), "", f"Do {name}", {}), b"", plans)
        for i, row in enumerate(R):
            for j, reward in enumerate(row):
                failure = {"kind": "site", "detail": "no answer"} if reward is None else None
                save_episode(folder, Episode(name, i, j, [], reward, failure, "", "", [], 1.0, 0))
    return run


def evaluation(run: Path, results: dict[str, list[int | None]]) -> Path:
    """results: for 'site/task', the reward in each evaluation run."""
    return write_run(
        run,
        {
            (f"run_{r}", name.split("/")[0], name.replace("/", "-")): [[reward]]
            for name, row in results.items()
            for r, reward in enumerate(row)
        },
    )


def write_metrics(path: Path, batches: int, seed: int = 0) -> Path:
    chance, lines = np.random.default_rng(seed), []
    for batch in range(batches):
        reward = chance.binomial(84, 0.1 + 0.5 * batch / batches) / 84
        for step in range(2):
            lines.append(
                json.dumps(
                    {
                        "batch": batch,
                        "pass": step,
                        "reward": reward,
                        "episodes": 84,
                        "episodes_lost": 0,
                        "plan_spread": 0.2 + 0.1 * chance.random(),
                        "decomposer/no_signal": 0.5 * (1 - batch / batches),
                        "actor/all_0": 0.4 * (1 - batch / batches),
                        "actor/all_1": 0.3 * batch / batches,
                    }
                )
            )
    path.write_text("\n".join(lines) + "\n")
    return path


TURNS = (
    Turn((Action("click", 168.0, 70.0),), "The kettle is listed second.", "Click 'Kettle'"),
    Turn((Action("scroll", dy=400.0),), "The price is further down.", "Scroll down"),
    Turn((Action("drag", 60.0, 250.0, to=(250.0, 180.0)),), "", "Drag the slider"),
    Turn(
        (Action("click", 60.0, 120.0, count=2), Action("type", text="kettle")),
        "",
        "Replace the search text",
    ),
    Turn(
        (Action("hover", 280.0, 40.0),),
        "",
        "Point at the account menu",
        None,
        ("point was clamped",),
    ),
    Turn((), "", "", "bad_syntax"),
    Turn((Action("answer", text="$24.90"),), "The price is shown.", "Answer with the price"),
)


def screen(title: str, size: tuple[int, int] = (336, 336)) -> bytes:
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, size[0], 44), fill="#31507a")
    draw.text((14, 14), title, fill="#ffffff", font_size=15)
    for row in range(4):
        draw.rounded_rectangle(
            (14, 58 + 66 * row, size[0] - 14, 114 + 66 * row), 6, fill="#f1f4f8", outline="#c8d1dc"
        )
        draw.text((28, 76 + 66 * row), f"Item {row}: kettle, 1.5 l", fill="#24303f", font_size=14)
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def save_task(
    run: Path, batch: str, name: str, site: str, intent: str, R: list[list[int | None]]
) -> None:
    folder = run / "rollouts" / batch / name
    plans = [
        Plan(
            f"1. Open the catalogue ({i})",
            [f"Open the catalogue, way {i}", "Find the kettle", "Read its price"],
            ids=[7] * 31,
        )
        for i in range(len(R))
    ]
    save_plans(folder, Task(name, (site,), "", intent, {}, "price_of"), screen("Catalogue"), plans)
    for i, row in enumerate(R):
        for j, reward in enumerate(row):
            turns = TURNS if reward else TURNS[: 3 + j % 4]
            steps = [
                Step(
                    screen("Catalogue" if t == 0 else f"Step {t}"),
                    336,
                    336,
                    f"http://127.0.0.1:7770/{site}/{t}",
                    turn,
                    "" if t else "the page took 0.2 s",
                    f"<think>{turn.thought}</think>",
                    ids=[5] * 40,
                )
                for t, turn in enumerate(turns)
            ]
            failure = {"kind": "browser", "detail": "the page crashed"} if reward is None else None
            check = {
                "kind": "string_match",
                "what": "must_include 24.90",
                "passed": bool(reward),
                "reason": "found" if reward else "the answer is empty",
            }
            save_episode(
                folder,
                Episode(
                    name,
                    i,
                    j,
                    steps,
                    reward,
                    failure,
                    "$24.90" if reward else "",
                    f"http://127.0.0.1:7770/{site}",
                    [] if failure else [check],
                    4.2,
                    0,
                    last=steps[-1].screenshot,
                ),
            )
