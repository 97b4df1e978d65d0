"""Pre-training of the pocket base model: learning to see the arena, once, on a GPU.

A tiny model cannot learn to see in minutes on a CPU, as Qwen2.5-VL-7B did not in the paper's fine-tuning: it gets a
base. lessons.py says what is asked. Four things keep the GPU busy: worker processes make the ids of whole batches
ahead; all pictures lie on the device, decoded once; a picture goes through the vision tower once a batch, whatever the
number of lessons about it; and a step, whose kernels are shorter than their launches, is recorded once for each shape
of batch and then launched as a whole (a CUDA graph).
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from jhima.actions import Action, parse
from jhima.coordinates import FACTOR, PATCH
from jhima.models.positions import expand
from jhima.models.vision import decode, patchify, vision_features
from jhima.pocket.pretraining.lessons import (
    BANDS,
    Names,
    Page,
    click_on,
    lesson,
    lessons,
    names_of,
    read_pages,
    shuffled,
)
from jhima.pocket.pretraining.model import VIEWPORT
from jhima.policy import Policy, load_policy, save_policy
from jhima.prompts import Prompt
from jhima.sampler import Request, generate

GRID = (VIEWPORT // PATCH, VIEWPORT // PATCH)  # patches of a picture


TOKENS = (VIEWPORT // FACTOR) ** 2


SHUFFLED_SHARE = 0.5  # of a batch's pictures: put together from the rows of two


SCRAMBLED_SHARE = 0.4  # of the pictures collected that it takes


EARLY_SHARE = 0.35  # of all steps: reading before following


STEP = (64, 64, 1024)  # B, L and n are rounded up to these: few shapes, few recordings


@dataclass(frozen=True)
class Batch:
    """B lessons about P pictures, padded to L tokens; n tokens are to be learnt, the last of them as padding, not."""

    bands: Tensor  # [P, BANDS] what each picture is made of: picture x BANDS + band
    owner: Tensor  # [B] whose lesson it is, as a row of `bands`
    ids: Tensor  # [B, L]
    start: Tensor  # [B] where the picture's tokens begin
    where: Tensor  # [n] the state that predicts each target, as a position in B x L
    targets: Tensor  # [n]; -100 where there is nothing to learn

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.ids.shape, len(self.targets)


class Lessons:
    """Batch number -> Batch, the same whatever process makes it: a map-style dataset for DataLoader."""

    def __init__(
        self, policy: Policy, pages: list[Page], names: Names, size: int, steps: int, seed: int
    ) -> None:
        self.pages, self.names, self.size, self.steps, self.seed = pages, names, size, steps, seed
        self.kinds = [
            [n for n, page in enumerate(pages) if page.scrambled == scrambled] or range(len(pages))
            for scrambled in (False, True)
        ]
        self.image_pad = policy.image_pad
        # Tokenising is most of the work, and the same texts come again and again.
        self.prompt = lru_cache(1 << 16)(
            lambda user: expand(policy.prompt_ids(Prompt("", user, b"")), self.image_pad, TOKENS)
        )
        self.reply = lru_cache(1 << 16)(policy.response_ids)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, number: int) -> Batch:
        rng = random.Random(f"{self.seed}/{number}")
        bands: list[list[int]] = []
        rows: list[
            tuple[int, list[int], list[int]]
        ] = []  # which picture, its prompt ids, its reply ids
        for at in range(self.size):
            page, made_of = self.picture(rng)
            bands.append(made_of)
            for user, text in lessons(page, self.names, rng, number < EARLY_SHARE * self.steps):
                rows.append((at, self.prompt(user), self.reply(text)))
        B, L, n = (
            -(-size // step) * step
            for size, step in zip(
                (
                    len(rows),
                    max(len(prompt + reply) for _, prompt, reply in rows),
                    sum(len(reply) for *_, reply in rows),
                ),
                STEP,
            )
        )
        owner, ids, start = (
            torch.zeros(B, dtype=torch.long),
            torch.zeros(B, L, dtype=torch.long),
            torch.zeros(B, dtype=torch.long),
        )
        where, targets = torch.zeros(n, dtype=torch.long), torch.full((n,), -100)
        u = 0
        for b, (at, prompt, reply) in enumerate(rows):
            owner[b], start[b] = at, prompt.index(self.image_pad)
            ids[b, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
            where[u : u + len(reply)] = torch.arange(len(reply)) + b * L + len(prompt) - 1
            targets[u : u + len(reply)] = torch.tensor(reply)
            u += len(reply)
        return Batch(torch.tensor(bands), owner, ids, start, where, targets)

    def picture(self, rng: random.Random) -> tuple[Page, list[int]]:
        """A page to ask about, and the bands of the collected pictures that it is made of."""
        one, other = (rng.choice(self.kinds[rng.random() < SCRAMBLED_SHARE]) for _ in range(2))
        if rng.random() < SHUFFLED_SHARE and (
            made := shuffled((self.pages[one], self.pages[other]), rng)
        ):
            return made[0], [(one, other)[which] * BANDS + n for which, n in made[1]]
        return self.pages[one], [one * BANDS + n for n in range(BANDS)]


def assemble(pixels: Tensor, bands: Tensor) -> Tensor:
    """Pictures [P, H, W, 3] out of bands [P, BANDS] of the pictures [N, H, W, 3]."""
    cut = pixels.view(-1, FACTOR, *pixels.shape[2:])  # [N x BANDS, 28, W, 3]
    return cut[bands].view(-1, *pixels.shape[1:])


def positions(start: Tensor, L: int) -> Tensor:
    """policy.mrope_positions of B sequences whose pictures begin at `start` [B]: [3, B, L], computed on the device."""
    side = VIEWPORT // FACTOR
    t = torch.arange(L, device=start.device) - start[:, None]  # [B, L]
    inside, after = (t >= 0) & (t < TOKENS), t >= TOKENS
    counted = t + after * (side - TOKENS)
    grid = torch.stack([torch.zeros_like(t), t // side, t % side])  # [3, B, L]
    return torch.where(inside, grid, counted) + start[:, None]


def log_probs(policy: Policy, pixels: Tensor, batch: Batch) -> Tensor:
    """Log-probs [n] of the targets, 0 where there is none; pixels [N, H, W, 3] (uint8).

    Every shape follows from the batch's, and nothing waits for the GPU: so it can be recorded. Padding is on the right,
    where a causal model needs no mask.
    """
    language = policy.base.model.language_model
    features = vision_features(
        policy.base.model.visual, patchify(assemble(pixels, batch.bands)), GRID
    )  # [P, T, H]
    embeds = language.embed_tokens(batch.ids)  # [B, L, H]
    place = (batch.start[:, None] + torch.arange(TOKENS, device=batch.ids.device))[
        ..., None
    ].expand(-1, -1, embeds.shape[-1])
    embeds = embeds.scatter(1, place, features.index_select(0, batch.owner).to(embeds.dtype))
    hidden = language(
        inputs_embeds=embeds,
        position_ids=positions(batch.start, batch.ids.shape[1]),
        attention_mask={"full_attention": None},
        use_cache=False,
    ).last_hidden_state  # [B, L, H]
    logits = policy.logits(hidden.flatten(0, 1).index_select(0, batch.where))  # [n, V]
    return -F.cross_entropy(logits, batch.targets, reduction="none")


@torch.no_grad()
def answered(policy: Policy, asked: list[tuple[Page, str, str]], batch: int = 512) -> list[bool]:
    """Which of these (page, user text, right reply) the model answers greedily with the same actions: the same texts, and
    clicks inside the element that the right click hits."""
    right: list[bool] = []
    for at in range(0, len(asked), batch):
        part = asked[at : at + batch]
        pictures = [page.image.read_bytes() for page, _, _ in part]
        requests = [
            Request(policy.prompt_ids(Prompt("", user, png)), png, 64, 0.0, 0)
            for (_, user, _), png in zip(part, pictures)
        ]
        for (page, _, reply), said in zip(part, generate(policy, requests)):
            wanted, found = (
                parse(text, (VIEWPORT, VIEWPORT), (VIEWPORT, VIEWPORT)).actions
                for text in (reply, said.text)
            )
            right.append(
                len(wanted) == len(found) and all(same(page, *pair) for pair in zip(wanted, found))
            )
    return right


def same(page: Page, wanted: Action, found: Action) -> bool:
    if wanted.kind == found.kind == "click":
        return any(
            all(
                0 <= a.x - e["x"] < e["width"] and 0 <= a.y - e["y"] < e["height"]
                for a in (wanted, found)
            )
            for e in page.elements
        )
    return wanted == found


def grounding(policy: Policy, pages: list[Page]) -> float:
    """Share of clicks inside the named element, over every uniquely named element of `pages`."""
    right = answered(
        policy,
        [(page, *click_on(e)) for page in pages for e in [*page.unique(False), *page.unique(True)]],
    )
    return sum(right) / max(1, len(right))


def following(policy: Policy, pages: list[Page], names: Names, seed: int) -> dict[str, float]:
    """Share of right replies to a lesson of each kind about each of `pages`."""
    shares = {}
    for kind in ("follow", "write", "answer", "finish"):
        rng = random.Random(f"{seed}/{kind}")
        found = [(page, *pair) for page in pages if (pair := lesson(page, kind, names, rng))]
        right = answered(policy, found)
        shares[kind] = sum(right) / max(1, len(right))
    return shares


class Step:
    """One optimisation step on a batch; returns its loss, on the device.

    On a GPU a shape's first two batches run launch by launch, the third is recorded, and from then on its recording is
    launched on the batch copied into its place.
    """

    def __init__(self, policy: Policy, pixels: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.policy, self.pixels, self.optimizer = policy, pixels, optimizer
        self.met: Counter[tuple[int, int, int]] = Counter()
        self.recorded: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        self.met[batch.shape] += 1
        if self.pixels.device.type != "cuda" or self.met[batch.shape] < 3:
            return self.run(batch)
        if batch.shape not in self.recorded:
            graph = torch.cuda.CUDAGraph()
            pool = next((other.pool() for other, *_ in self.recorded.values()), None)
            with torch.cuda.graph(graph, pool=pool):
                loss = self.run(batch)
            self.recorded[batch.shape] = graph, batch, loss
        graph, place, loss = self.recorded[batch.shape]
        for old, new in zip(vars(place).values(), vars(batch).values()):
            old.copy_(new)
        graph.replay()
        return loss

    def run(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        with torch.autocast(
            batch.ids.device.type, torch.bfloat16, enabled=batch.ids.device.type == "cuda"
        ):
            loss = -log_probs(self.policy, self.pixels, batch).sum() / (batch.targets >= 0).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def rate(done: int, steps: int, lr: float) -> float:
    """Learning rate: up over the first 1 % of the steps, level, then down to zero over the last 40 %."""
    part = done / steps
    return lr * min(1.0, part / 0.01 + 1e-3, (1 - part) / 0.4)


def pretrain(
    folder: Path, model: Path, out: Path, steps: int, size: int, lr: float, seed: int, workers: int
) -> None:
    """Trains `model` on the pages of `folder` and writes it to `out` in bf16, with its grounding accuracy.

    Resumes from out/resume.pt, saved six times a run: a step's batch depends on its number alone.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(model, device, torch.float32, tune_vision=True).train()
    pages = read_pages(folder)
    seen = [p for p in pages if not p.held_out]
    held_out, scrambled = (
        [p for p in pages if p.held_out and p.scrambled == kind] for kind in (False, True)
    )
    names = names_of(seen)
    random.Random(seed).shuffle(held_out)
    real = [p for p in seen if not p.scrambled]
    with ThreadPoolExecutor() as pool:
        pixels = torch.stack(list(pool.map(lambda page: decode(page.image.read_bytes()), seen))).to(
            device
        )  # [N, H, W, 3]
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be recorded
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        lr=torch.tensor(lr, device=device),
        betas=(0.9, 0.98),
        weight_decay=0.01,
        fused=gpu,
        capturable=gpu,
    )
    step = Step(policy, pixels, optimizer)
    done, spent = 0, 0.0
    out.mkdir(parents=True, exist_ok=True)
    if (out / "resume.pt").exists():
        state = torch.load(out / "resume.pt", map_location=device, weights_only=True)
        policy.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, spent = state["done"], state["spent"]
    print(
        f"{len(seen)} pictures to learn, {len(held_out) + len(scrambled)} held out; {done} of {steps} steps done",
        flush=True,
    )
    batches = DataLoader(
        Lessons(policy, seen, names, size, steps, seed),
        batch_size=None,
        sampler=range(done, steps),
        num_workers=workers,
        prefetch_factor=8 if workers else None,
    )
    began, last, samples = time.monotonic() - spent, time.monotonic(), 0
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"].fill_(rate(done, steps, lr))
        loss = step(batch.to(device))
        done, samples = done + 1, samples + len(batch.owner)
        if done % 100 == 0:
            row = {
                "step": done,
                "minutes": (time.monotonic() - began) / 60,
                "loss": loss.item(),
                "samples/s": samples / (time.monotonic() - last),
            }
            if done % max(100, steps // 600 * 100) == 0:
                policy.eval()
                row |= {
                    "grounding": grounding(policy, held_out[:60]),
                    "grounding_seen": grounding(policy, real[:60]),
                    "grounding_scrambled": grounding(policy, scrambled[:60]),
                }
                row |= following(policy, held_out[:60], names, seed)
                policy.train()
                _save(
                    {
                        "model": policy.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "done": done,
                        "spent": time.monotonic() - began,
                    },
                    out / "resume.pt",
                )
            print(json.dumps(row), flush=True)
            with (out / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row) + "\n")
            last, samples = time.monotonic(), 0
    policy.eval()
    result = {
        "steps": done,
        "minutes": (time.monotonic() - began) / 60,
        "pages": len(seen),
        "held_out_pages": len(held_out),
        "grounding": grounding(policy, held_out),
        "grounding_seen": grounding(policy, real[:500]),
        "grounding_scrambled": grounding(policy, scrambled),
        "following": following(policy, held_out, names, seed),
    }
    print(json.dumps(result), flush=True)
    (out / "result.json").write_text(json.dumps(result, indent=1), "utf-8")
    policy.model.to(torch.bfloat16)
    save_policy(policy, out)


def _save(state: dict, path: Path) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)
