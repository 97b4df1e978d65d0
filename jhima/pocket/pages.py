"""Pictures of the arena with what they show: the data that teaches the pocket model to see.

A walker goes through the sites in a real browser, clicking and typing at random with a taste for what it has seen
least, and keeps every distinct screenshot with the text and box of each row and element on it.
"""
from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from ..actions import Action
from ..browser import Session
from ..failures import EnvironmentFailure
from ..rollout import Environment
from ..tasks import Task
from . import SITES
from .check import environment
from .generate import solutions
from .intents import Write
from .oracle import Element, elements

# What a page says, top to bottom: each line of text with the middle of its box.
ROWS = """() => [...document.querySelectorAll('header .home, h1, .row:not(.columns):not(.options), .option')]
  .map(e => { const b = e.getBoundingClientRect();
              const field = e.querySelector('input:not([type=hidden]):not([type=radio]), textarea');
              return {text: (e.innerText + (field && field.type !== 'password' ? ' ' + field.value : '')).trim().replace(/\\s+/g, ' '),
                      x: b.x + b.width / 2, y: b.y + b.height / 2}; })
  .filter(r => r.text && r.y > 0 && r.y < innerHeight)"""


async def collect(out: Path, count: int, concurrency: int, seed: int) -> None:
    """Adds pages to `out` until it holds `count`: images/<hash>.png, and a line each in pages.jsonl."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    path = out / "pages.jsonl"
    known = {json.loads(line)["image"] for line in path.read_text("utf-8").splitlines()} if path.exists() else set()
    words = sorted({move.text for s in solutions().values() for g in s.plan for move in g.moves if isinstance(move, Write)})
    visits: Counter[str] = Counter()
    rng = random.Random(f"{seed}/{len(known)}")

    with path.open("a", encoding="utf-8") as lines, tqdm(total=count, initial=len(known), desc="pages", unit="page") as bar:
        async def walk(env: Environment, site: str, walk_seed: float) -> None:
            choose = random.Random(walk_seed)
            async with env.start(Task("walk", (site,), f"__{site.upper()}__", "", {})) as (_, session):
                for _ in range(40):
                    found = await snapshot(session, out, known)
                    if found:
                        lines.write(json.dumps(found, ensure_ascii=False) + "\n")
                        lines.flush()
                        bar.update()
                    if len(known) >= count or not await wander(session, choose, visits, words):
                        return

        async with environment(False, concurrency) as env:
            async def keep_walking() -> None:
                while len(known) < count:
                    try:
                        await walk(env, rng.choice(SITES), rng.random())
                    except EnvironmentFailure as failure:
                        env.count(failure)
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(keep_walking())


async def snapshot(session: Session, out: Path, known: set[str]) -> dict | None:
    """The current page as a line of pages.jsonl, or None if the same picture is there already."""
    seen = await session.observe()
    name = hashlib.blake2b(seen.png, digest_size=10).hexdigest() + ".png"
    if name in known:
        return None
    known.add(name)
    rows = sorted(await session.page.evaluate(ROWS), key=lambda row: (round(row["y"]), row["x"]))
    marks = [vars(e) for e in await elements(session) if 0 < e.centre[0] < seen.width and 0 < e.centre[1] < seen.height]
    (out / "images" / name).write_bytes(seen.png)
    return {"image": name, "url": seen.url, "title": await session.page.title(), "rows": rows, "elements": marks}


async def wander(session: Session, choose: random.Random, visits: Counter[str], words: list[str]) -> bool:
    """One random action; returns False where there is nothing to do."""
    visible = await elements(session)
    if not visible:
        return False
    site = session.page.url.split("/")[2]
    e: Element = min(choose.sample(visible, min(3, len(visible))), key=lambda e: visits[f"{site}/{e.label}"])
    visits[f"{site}/{e.label}"] += 1
    x, y = e.centre
    height = session.page.viewport_size["height"]
    if not 0 <= y < height:
        await session.perform(Action("scroll", dy=0.5 * height * (1 if y > 0 else -1)))
    elif e.field and choose.random() < 0.9:
        await session.perform(Action("click", x, y))
        await session.perform(Action("type", text=choose.choice(words)))
    elif choose.random() < 0.05:
        await session.perform(Action("back"))
    else:
        await session.perform(Action("click", x, y))
    return True
