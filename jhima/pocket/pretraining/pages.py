"""Pictures of the arena with what they show: the data that teaches the pocket model to see.

A walker goes through the sites in a real browser, clicking and typing at random with a taste for what it has seen
least, and keeps every distinct screenshot with the text and box of each row and element on it. Of each page it also
keeps a scrambled twin: the same layout with words from anywhere in the arena in every place. On real pages a label has
its place, and a model that remembers places scores well without reading; on scrambled ones only reading helps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from jhima.actions import Action
from jhima.browser.session import Session
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.pocket import SITES
from jhima.pocket.play.check import environment
from jhima.pocket.play.oracle import Element, elements
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import Click, Write

# What a page says, top to bottom: each line of text with the middle of its box; where it is a caption and a value, the
# caption too.
ROWS = """() => [...document.querySelectorAll('header .home, h1, .row:not(.columns):not(.options), .option')]
  .map(e => { const b = e.getBoundingClientRect(), line = t => t.trim().replace(/\\s+/g, ' ');
              const field = e.querySelector('input:not([type=hidden]):not([type=radio]), textarea');
              return {text: line(e.innerText + (field && field.type !== 'password' ? ' ' + field.value : '')),
                      caption: e.matches('.pair, .field') ? line(e.querySelector('span').innerText) : '',
                      x: b.x + b.width / 2, y: b.y + b.height / 2}; })
  .filter(r => r.text && r.y > 0 && r.y < innerHeight)"""

# Puts words of the list in place of every text of the page but the site's name, and in every text field; a word that
# a row has no room for gives way to the next. `unscramble()` puts all back.
SCRAMBLE = """words => {
  let next = 0;
  const undo = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode())
    if (texts.currentNode.data.trim() && !texts.currentNode.parentElement.closest('header, textarea')) found.push(texts.currentNode);
  for (const node of found) {
    const row = node.parentElement.closest('.row, .option, h1') || document.body, text = node.data;
    undo.push(() => { node.data = text; });
    for (let tries = 0; tries < 8; tries++) {
      node.data = words[next++ % words.length];
      if (row.scrollWidth <= row.clientWidth) break;
    }
  }
  for (const e of document.querySelectorAll('input[type=text], textarea')) {
    const value = e.value;
    undo.push(() => { e.value = value; });
    e.value = words[next++ % words.length].slice(0, 12);
  }
  window.unscramble = () => undo.forEach(f => f());
  document.querySelector('h1')?.style.setProperty('--hue', next * 105 % 360);
}"""


@dataclass
class Walk:
    """What the walkers share: where pictures go, which are known, how often each label was clicked, and all words."""

    out: Path
    known: set[str]
    typed: list[str]
    visits: Counter[str] = field(default_factory=Counter)
    words: set[str] = field(default_factory=set)


async def collect(out: Path, count: int, concurrency: int, seed: int) -> None:
    """Adds pages to `out` until it holds `count`: images/<hash>.png, and a line each in pages.jsonl."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    path = out / "pages.jsonl"
    known = (
        {json.loads(line)["image"] for line in path.read_text("utf-8").splitlines()}
        if path.exists()
        else set()
    )
    moves = [move for s in solutions().values() for g in s.plan for move in g.moves]
    walk = Walk(
        out,
        known,
        sorted({m.text for m in moves if isinstance(m, Write)}),
        words={m.label for m in moves if isinstance(m, (Click, Write))},
    )
    rng = random.Random(f"{seed}/{len(known)}")

    with (
        path.open("a", encoding="utf-8") as lines,
        tqdm(total=count, initial=len(known), desc="pages", unit="page") as bar,
    ):

        def keep(found: dict | None) -> None:
            if found:
                lines.write(json.dumps(found, ensure_ascii=False) + "\n")
                lines.flush()
                bar.update()

        async def go(site: str, choose: random.Random) -> None:
            async with env.start(Task("walk", (site,), f"__{site.upper()}__", "", {})) as (
                _,
                session,
            ):
                for _ in range(40):
                    page = await snapshot(session, walk)
                    keep(page)
                    action = choose_action(await elements(session), session, choose, walk)
                    if page:
                        walk.words |= {
                            row["text"] for row in page["rows"] if len(row["text"]) <= 20
                        }
                        if choose.random() < 0.6:
                            await session.page.evaluate(
                                SCRAMBLE,
                                choose.sample(sorted(walk.words), min(200, len(walk.words))),
                            )
                            keep(await snapshot(session, walk, scrambled=True))
                            await session.page.evaluate("unscramble()")
                    if len(known) >= count or not action:
                        return
                    for step in action:
                        await session.perform(step)

        async with environment(False, concurrency) as env:

            async def keep_walking() -> None:
                while len(known) < count:
                    try:
                        await go(rng.choice(SITES), random.Random(rng.random()))
                    except EnvironmentFailure as failure:
                        env.count(failure)

            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(keep_walking())


async def snapshot(session: Session, walk: Walk, scrambled: bool = False) -> dict | None:
    """The current page as a line of pages.jsonl, or None if the same picture is there already."""
    seen = await session.observe()
    name = hashlib.blake2b(seen.png, digest_size=10).hexdigest() + ".png"
    if name in walk.known:
        return None
    walk.known.add(name)
    rows = sorted(await session.page.evaluate(ROWS), key=lambda row: (round(row["y"]), row["x"]))
    marks = [
        vars(e)
        for e in await elements(session)
        if 0 < e.centre[0] < seen.width and 0 < e.centre[1] < seen.height
    ]
    (walk.out / "images" / name).write_bytes(seen.png)
    return {
        "image": name,
        "url": seen.url,
        "title": await session.page.title(),
        "scrambled": scrambled,
        "rows": rows,
        "elements": marks,
    }


def choose_action(
    visible: list[Element], session: Session, choose: random.Random, walk: Walk
) -> list[Action]:
    """What a walker does next, by chance; nothing where a page has no elements."""
    if not visible:
        return []
    site = session.page.url.split("/")[2]
    e = min(
        choose.sample(visible, min(3, len(visible))), key=lambda e: walk.visits[f"{site}/{e.label}"]
    )
    walk.visits[f"{site}/{e.label}"] += 1
    x, y = e.centre
    if not 0 <= y < session.height:
        return [Action("scroll", dy=0.5 * session.height * (1 if y > 0 else -1))]
    if e.field and choose.random() < 0.9:
        return [Action("click", x, y), Action("type", text=choose.choice(walk.typed))]
    return [Action("back")] if choose.random() < 0.05 else [Action("click", x, y)]
