"""Pictures of the arena and what they show: the data that teaches the pocket model to see.

Walkers go through the sites in a real browser. They click and type at random, preferring what was
clicked least so far, and keep every distinct screenshot with the text and box of each row and
element on it. Most pages also get a scrambled twin: the same layout with words from all over the
arena in every place. On real pages a label has its fixed place, so a model that remembers places
scores well without reading; on scrambled pages only reading helps.
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
from jhima.environment import Environment
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.pocket import SITES
from jhima.pocket.play.check import environment
from jhima.pocket.play.oracle import Element, elements
from jhima.pocket.pretraining.lessons import moves_of
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import Click, Write

# What a page says, top to bottom: each line of text with the middle of its box. Where the line is a
# caption and a value, the caption too.
ROWS = """() => [...document.querySelectorAll(
    'header .home, h1, .row:not(.columns):not(.options), .option')]
  .map(e => {
    const b = e.getBoundingClientRect(), line = t => t.trim().replace(/\\s+/g, ' ');
    const field = e.querySelector('input:not([type=hidden]):not([type=radio]), textarea');
    const value = field && field.type !== 'password' ? ' ' + field.value : '';
    return {text: line(e.innerText + value),
            caption: e.matches('.pair, .field') ? line(e.querySelector('span').innerText) : '',
            x: b.x + b.width / 2, y: b.y + b.height / 2};
  })
  .filter(r => r.text && r.y > 0 && r.y < innerHeight)"""

# Replaces every text of the page except the site's name, and the content of every text field, with
# words of the list. A word that does not fit in its row gives way to the next one. `unscramble()`
# restores the page.
SCRAMBLE = """words => {
  let next = 0;
  const undo = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.data.trim() && !node.parentElement.closest('header, textarea')) found.push(node);
  }
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
    """What the walkers share."""

    out: Path
    count: int  # pictures to collect
    env: Environment
    bar: tqdm
    known: set[str]  # names of the pictures collected
    texts: list[str]  # to type into fields
    words: set[str]  # to scramble pages with
    visits: Counter[str] = field(default_factory=Counter)  # SITE/LABEL -> clicks


async def collect(out: Path, count: int, concurrency: int, seed: int) -> None:
    """Adds pages to `out` until it holds `count`: images/HASH.png, and one line per picture in
    pages.jsonl."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    index = out / "pages.jsonl"
    index.touch()
    known = {json.loads(line)["image"] for line in index.read_text("utf-8").splitlines()}
    texts, words = set(), set()
    for solution in solutions().values():
        moves = moves_of(solution.plan)
        texts |= {move.text for move in moves if isinstance(move, Write)}
        words |= {move.label for move in moves if isinstance(move, (Click, Write))}
    rng = random.Random(f"{seed}/{len(known)}")
    async with environment(False, concurrency) as env:
        with tqdm(total=count, initial=len(known), desc="pages", unit="page") as bar:
            walk = Walk(out, count, env, bar, known, sorted(texts), words)
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(_keep_walking(walk, rng))


async def _keep_walking(walk: Walk, rng: random.Random) -> None:
    while len(walk.known) < walk.count:
        try:
            await _walk_site(walk, rng.choice(SITES), random.Random(rng.random()))
        except EnvironmentFailure as failure:
            walk.env.count(failure)


async def _walk_site(walk: Walk, site: str, rng: random.Random) -> None:
    """Takes up to forty random actions on a site and keeps each new page."""
    task = Task("walk", (site,), f"__{site.upper()}__", "", {})
    async with walk.env.start(task) as (_, session):
        for _ in range(40):
            rows = await keep_snapshot(session, walk)
            actions = choose_actions(await elements(session), session, rng, walk)
            if rows is not None:
                walk.words |= {row["text"] for row in rows if len(row["text"]) <= 20}
                if rng.random() < 0.6:
                    words = rng.sample(sorted(walk.words), min(200, len(walk.words)))
                    await session.page.evaluate(SCRAMBLE, words)
                    await keep_snapshot(session, walk, scrambled=True)
                    await session.page.evaluate("unscramble()")
            if len(walk.known) >= walk.count or not actions:
                return
            for action in actions:
                await session.perform(action)


async def keep_snapshot(session: Session, walk: Walk, scrambled: bool = False) -> list[dict] | None:
    """Saves the current page; returns its rows, or None if this picture is there already."""
    observation = await session.observe()
    name = hashlib.blake2b(observation.png, digest_size=10).hexdigest() + ".png"
    if name in walk.known:
        return None
    walk.known.add(name)
    rows = await session.page.evaluate(ROWS)
    rows.sort(key=lambda row: (round(row["y"]), row["x"]))
    boxes = []
    for element in await elements(session):
        x, y = element.centre
        if 0 < x < observation.width and 0 < y < observation.height:
            boxes.append(vars(element))
    (walk.out / "images" / name).write_bytes(observation.png)
    record = {
        "image": name,
        "url": observation.url,
        "title": await session.page.title(),
        "scrambled": scrambled,
        "rows": rows,
        "elements": boxes,
    }
    with (walk.out / "pages.jsonl").open("a", encoding="utf-8") as index:
        index.write(json.dumps(record, ensure_ascii=False) + "\n")
    walk.bar.update()
    return rows


def choose_actions(
    visible: list[Element], session: Session, rng: random.Random, walk: Walk
) -> list[Action]:
    """A walker's next actions, drawn at random; none if the page has no elements."""
    if not visible:
        return []
    site = session.page.url.split("/")[2]
    candidates = rng.sample(visible, min(3, len(visible)))
    element = min(candidates, key=lambda candidate: walk.visits[f"{site}/{candidate.label}"])
    walk.visits[f"{site}/{element.label}"] += 1
    x, y = element.centre
    if y >= session.height:
        return [Action("scroll", dy=0.5 * session.height)]
    if y < 0:
        return [Action("scroll", dy=-0.5 * session.height)]
    if element.field and rng.random() < 0.9:
        return [Action("click", x, y), Action("type", text=rng.choice(walk.texts))]
    if rng.random() < 0.05:
        return [Action("back")]
    return [Action("click", x, y)]
