"""Pre-training of the pocket base model: learning to see the arena, once, on a GPU.

A tiny model cannot learn to see in minutes on a CPU, as Qwen2.5-VL-7B did not in the paper's fine-tuning: it gets a
base. Every sample is a question about one picture, in the very prompt format that SFT uses:
    read     what stands on each line (dense: every word and its place is a target)
    click    where a named element is, answered as the actor answers
    write    the same for a field, with a word to type
    point    what stands at a place
    value    what a caption's value is
Pictures of one batch go through the vision tower once, whatever the number of questions about them.
"""
from __future__ import annotations

import json
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator
from zlib import crc32

import torch

from ..actions import format_reply, parse
from ..policy import Policy, Sample, load_policy, save_policy
from ..prompts import Prompt
from ..sampler import Request, generate
from ..vision import decode
from .model import PROMPTS, VIEWPORT

KINDS = {"read": 1, "click": 3, "write": 1, "point": 1, "value": 1}     # questions of each kind about a picture
HELD_OUT = 10                                                           # one page address in ten is for evaluation


@dataclass(frozen=True)
class Page:
    png: bytes
    rows: list[dict]
    elements: list[dict]
    held_out: bool


def read_pages(folder: Path) -> list[Page]:
    """The pages that pages.py collected. Held out: all pictures of one address in ten (query and state aside)."""
    pages = []
    for line in (folder / "pages.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        address = row["url"].split("?")[0].split(":", 2)[-1]
        held_out = crc32((row["title"].split(" - ")[-1] + address.split("/", 1)[-1]).encode()) % HELD_OUT == 0
        pages.append(Page((folder / "images" / row["image"]).read_bytes(), row["rows"], row["elements"], held_out))
    return pages


def question(page: Page, kind: str, rng: random.Random, words: list[str]) -> tuple[str, str] | None:
    """(user text, reply) of one question about a page; None where the page has nothing to ask about."""
    buttons = [e for e in page.elements if not e["field"] and sum(o["label"] == e["label"] for o in page.elements) == 1]
    fields = [e for e in page.elements if e["field"]]
    if kind == "read" and page.rows:
        return "Read", "\n".join(f"{round(row['y'])} {row['text']}" for row in page.rows)
    if kind == "point" and page.rows:
        row = rng.choice(page.rows)
        return f"Read {round(row['x'])} {round(row['y'])}", row["text"]
    if kind == "value":
        pairs = [row["text"] for row in page.rows if len(row["text"].split()) >= 2]
        if pairs:
            caption, value = rng.choice(pairs).split(" ", 1)
            return f"Read {caption}", value
    if (kind == "click" and buttons) or (kind == "write" and fields):
        e = rng.choice(buttons if kind == "click" else fields)
        x, y = round(e["x"] + e["width"] / 2), round(e["y"] + e["height"] / 2)
        operation, calls = f"Click {e['label']}", [f"click(x={x}, y={y})"]
        if kind == "write":
            word = rng.choice(words)
            operation, calls = f"Write {word} in {e['label']}", [f"click(x={x}, y={y})", f"write(message={word!r})"]
        return PROMPTS.actor(operation, [operation], [], b"").user, format_reply(operation, calls)
    return None


def questions(policy: Policy, page: Page, rng: random.Random, words: list[str]) -> list[Sample]:
    found = [question(page, kind, rng, words) for kind, count in KINDS.items() for _ in range(count)]
    return [Sample(policy.prompt_ids(Prompt("", user, page.png)), page.png, policy.response_ids(reply))
            for user, reply in filter(None, found)]


@torch.no_grad()
def grounding(policy: Policy, pages: list[Page], batch: int = 256) -> float:
    """Share of clicks inside the named element, over every uniquely named element of `pages` (greedy)."""
    asked = [(page, e) for page in pages for e in page.elements if sum(o["label"] == e["label"] for o in page.elements) == 1]
    hits = 0
    for at in range(0, len(asked), batch):
        part = asked[at:at + batch]
        requests = []
        for page, e in part:
            operation = f"Click {e['label']}"
            prompt = PROMPTS.actor(operation, [operation], [], page.png)
            requests.append(Request(policy.prompt_ids(Prompt("", prompt.user, page.png)), page.png, 40, 0.0, 0))
        for (_, e), reply in zip(part, generate(policy, requests)):
            clicks = [a for a in parse(reply.text, (VIEWPORT, VIEWPORT), (VIEWPORT, VIEWPORT)).actions if a.kind == "click"]
            hits += bool(clicks) and 0 <= clicks[0].x - e["x"] < e["width"] and 0 <= clicks[0].y - e["y"] < e["height"]
    return hits / max(1, len(asked))


def batches(policy: Policy, pages: list[Page], size: int, words: list[str], seed: int) -> Iterator[list[Sample]]:
    """Endless batches of all questions about `size` pages, prepared ahead by threads: text made ids, pictures decoded."""
    ready: queue.Queue[list[Sample]] = queue.Queue(4)
    rng = random.Random(seed)

    def prepare() -> None:
        with ThreadPoolExecutor(4) as pool:
            while True:
                chosen = rng.choices(pages, k=size)
                list(pool.map(lambda page: decode(page.png), chosen))        # fills decode's cache
                ready.put([s for page in chosen for s in questions(policy, page, rng, words)])

    threading.Thread(target=prepare, daemon=True).start()
    while True:
        yield ready.get()


def pretrain(folder: Path, model: Path, out: Path, minutes: float, size: int, lr: float, seed: int) -> None:
    """Trains `model` on the pages of `folder` for `minutes` and writes it to `out` in bf16, with its grounding accuracy.

    Resumes from out/resume.pt: half-hours add up. The learning rate warms up over 1 % and falls to zero over the
    last 30 % of the time asked for, the time of earlier runs included.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(model, device, torch.float32, tune_vision=True).train()
    policy.text_ids = lru_cache(maxsize=None)(policy.text_ids)      # the same few thousand texts come again and again
    pages = read_pages(folder)
    seen, held_out = [p for p in pages if not p.held_out], [p for p in pages if p.held_out]
    words = sorted({word for page in seen for row in page.rows for word in row["text"].split() if word.isalpha()})
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    done, spent = 0, 0.0
    if (out / "resume.pt").exists():
        state = torch.load(out / "resume.pt", map_location=device, weights_only=True)
        policy.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, spent = state["done"], state["spent"]
    out.mkdir(parents=True, exist_ok=True)
    print(f"{len(seen)} pages to learn, {len(held_out)} held out; {spent / 60:.1f} of {minutes:g} minutes done", flush=True)
    began, last = time.monotonic() - spent, time.monotonic()
    for samples in batches(policy, seen, size, words, seed + done):
        part = (time.monotonic() - began) / (60 * minutes)
        if part >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, part / 0.01 + 1e-3, (1 - part) / 0.3)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = -policy(samples).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % 100 == 0:
            policy.eval()
            row = {"step": done, "minutes": (time.monotonic() - began) / 60, "loss": loss.item(),
                   "samples/s": 100 * len(samples) / (time.monotonic() - last)}
            if done % 1000 == 0:
                row |= {"grounding": grounding(policy, held_out[:100]), "grounding_seen": grounding(policy, seen[:100])}
                torch.save({"model": policy.state_dict(), "optimizer": optimizer.state_dict(), "done": done,
                            "spent": time.monotonic() - began}, out / "resume.pt")
            policy.train()
            print(json.dumps(row), flush=True)
            with (out / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row) + "\n")
            last = time.monotonic()
    policy.eval()
    result = {"steps": done, "minutes": (time.monotonic() - began) / 60, "pages": len(seen), "held_out_pages": len(held_out),
              "grounding": grounding(policy, held_out), "grounding_seen": grounding(policy, seen[:500])}
    print(json.dumps(result), flush=True)
    (out / "result.json").write_text(json.dumps(result, indent=1), "utf-8")
    policy.model.to(torch.bfloat16)
    save_policy(policy, out)
