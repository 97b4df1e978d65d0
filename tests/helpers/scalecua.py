"""Data in ScaleCUA's format, made for tests."""

from __future__ import annotations

import json
from pathlib import Path

from samples import screenshot

from jhima.data.scalecua import write_step


def write_image(path: Path, seed: int = 0, width: int = 84, height: int = 56) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(screenshot(seed, width, height))


def step(
    image: str,
    task: str,
    before: list[str],
    operation: str,
    call: str,
    width: int = 84,
    height: int = 56,
) -> dict:
    reply = f"<operation>\n{operation}\n</operation>\n<action>\n{call}\n</action>"
    return write_step(image, width, height, task, before, reply)


def sample(image, *texts: str, **more) -> dict:
    """A conversation of human and gpt in turn."""
    turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
    return {"image": image, "conversations": turns, "width": 84, "height": 56} | more


def write_data(
    folder: Path, rows: dict[str, list], styles: dict[str, str] | None = None, **more
) -> Path:
    """A meta file with one data set for each entry of `rows`; returns its path."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    meta = {}
    for name, lines in rows.items():
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in text))
        style = (styles or {}).get(name, "internvl2_5_web_navigation_v1")
        meta[name] = {
            "root": "images",
            "annotation": f"{name}.jsonl",
            "conv_style": style,
            "repeat_time": 1,
            "length": len(lines),
        } | more
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def demonstrations(folder: Path, trajectories: int, steps: int = 3) -> Path:
    """A meta file of web trajectories t0, t1, ...; step k clicks "word k"."""
    rows = []
    for t in range(trajectories):
        for k in range(steps):
            image = f"t{t}/{k:02d}.png"
            write_image(folder / "images" / image, seed=100 * t + k)
            call = (
                f"click(x=0.{t + 1}5, y=0.{k + 1}25)"
                if k + 1 < steps
                else "terminate(status='success')"
            )
            rows.append(
                step(
                    image,
                    f"Open page {t}",
                    [f"Click word {i}" for i in range(k)],
                    f"Click word {k}",
                    call,
                )
            )
    return write_data(folder, {"demos": rows})
