"""Pre-training of the pocket base model: learning to see the arena, once, on a GPU.

A tiny model cannot learn to see within minutes on a CPU. Neither did Qwen2.5-VL-7B in the paper's
fine-tuning, which started from a base; this makes one. lessons.py defines what is asked. Four
things keep the GPU busy: worker processes prepare the ids of whole batches ahead; all pictures are
decoded once and stay on the device; a picture passes the vision tower once per batch, whatever the
number of lessons about it; and because a step's kernels are shorter than their launches, the step
is recorded once for each shape of batch and then launched as a whole (a CUDA graph).
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
from jhima.pocket.pretraining import lessons
from jhima.pocket.pretraining.lessons import BANDS, Names, Page, read_pages
from jhima.pocket.pretraining.model import VIEWPORT
from jhima.policy import Policy, load_policy, save_policy
from jhima.prompts import Prompt
from jhima.sampler import Request, generate

GRID = (VIEWPORT // PATCH, VIEWPORT // PATCH)  # patches of a picture
TOKENS = (VIEWPORT // FACTOR) ** 2  # of a picture
SHUFFLED_SHARE = 0.5  # of a batch's pictures: put together from the rows of two
SCRAMBLED_SHARE = 0.4  # of the collected pictures that a batch takes
EARLY_SHARE = 0.35  # of all steps: reading before following


@dataclass(frozen=True)
class PretrainOptions:
    """The options of `python -m jhima.pocket pretrain`."""

    pages: Path  # what `pages` collected
    model: Path  # what `model` wrote
    out: Path
    steps: int
    batch: int  # pictures per step; each gets about ten lessons
    lr: float
    seed: int
    workers: int  # processes that prepare batches


@dataclass(frozen=True)
class Batch:
    """B lessons about P pictures, padded to L tokens, with n targets, the last of them padding."""

    bands: Tensor  # [P, BANDS] what each picture is made of: picture x BANDS + band
    picture: Tensor  # [B] the picture of each lesson, as a row of `bands`
    ids: Tensor  # [B, L]
    start: Tensor  # [B] where the picture's tokens begin
    predictor: Tensor  # [n] the state that predicts each target, as an index into B x L
    targets: Tensor  # [n]; -100 is padding

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.ids.shape, len(self.targets)


class Lessons:
    """Batch number -> Batch, the same in whatever process: a map-style dataset for DataLoader.

    size: pictures per batch. steps: batches of the whole run.
    """

    def __init__(
        self, policy: Policy, pages: list[Page], names: Names, size: int, steps: int, seed: int
    ) -> None:
        self.pages, self.names, self.size, self.steps, self.seed = pages, names, size, steps, seed
        everything = range(len(pages))
        real = [n for n, page in enumerate(pages) if not page.scrambled]
        scrambled = [n for n, page in enumerate(pages) if page.scrambled]
        self.real, self.scrambled = real or everything, scrambled or everything
        self.image_pad = policy.image_pad

        # Tokenising is most of the work, and the same texts come again and again.
        @lru_cache(1 << 16)
        def prompt_ids(user: str) -> list[int]:
            return expand(policy.prompt_ids(Prompt("", user, b"")), self.image_pad, TOKENS)

        self.prompt_ids = prompt_ids
        self.response_ids = lru_cache(1 << 16)(policy.response_ids)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, number: int) -> Batch:
        rng = random.Random(f"{self.seed}/{number}")
        early = number < EARLY_SHARE * self.steps
        bands: list[list[int]] = []
        rows: list[tuple[int, list[int], list[int]]] = []  # picture, prompt ids, response ids
        for picture in range(self.size):
            page, sources = self.picture(rng)
            bands.append(sources)
            for user, reply in lessons.lessons(page, self.names, rng, early):
                rows.append((picture, self.prompt_ids(user), self.response_ids(reply)))
        return self.padded(bands, rows)

    def padded(self, bands: list[list[int]], rows: list[tuple[int, list[int], list[int]]]) -> Batch:
        """Rounds B, L and n up, so that few shapes occur and few have to be recorded."""
        B = _round_up(len(rows), 64)
        L = _round_up(max(len(prompt + response) for _, prompt, response in rows), 64)
        n = _round_up(sum(len(response) for _, _, response in rows), 1024)
        batch = Batch(
            bands=torch.tensor(bands),
            picture=torch.zeros(B, dtype=torch.long),
            ids=torch.zeros(B, L, dtype=torch.long),
            start=torch.zeros(B, dtype=torch.long),
            predictor=torch.zeros(n, dtype=torch.long),
            targets=torch.full((n,), -100),
        )
        done = 0  # targets so far
        for b, (picture, prompt, response) in enumerate(rows):
            batch.picture[b], batch.start[b] = picture, prompt.index(self.image_pad)
            batch.ids[b, : len(prompt) + len(response)] = torch.tensor(prompt + response)
            part = slice(done, done + len(response))
            batch.predictor[part] = torch.arange(len(response)) + b * L + len(prompt) - 1
            batch.targets[part] = torch.tensor(response)
            done += len(response)
        return batch

    def picture(self, rng: random.Random) -> tuple[Page, list[int]]:
        """A page to ask about, and the bands of the collected pictures that it is made of."""
        one, other = self.draw(rng), self.draw(rng)
        if rng.random() < SHUFFLED_SHARE:
            mixture = lessons.shuffled((self.pages[one], self.pages[other]), rng)
            if mixture:
                page, sources = mixture
                return page, [(one, other)[which] * BANDS + band for which, band in sources]
        return self.pages[one], [one * BANDS + band for band in range(BANDS)]

    def draw(self, rng: random.Random) -> int:
        return rng.choice(self.scrambled if rng.random() < SCRAMBLED_SHARE else self.real)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def assemble(pixels: Tensor, bands: Tensor) -> Tensor:
    """Pictures [P, H, W, 3] made of the bands [P, BANDS] of the pictures [N, H, W, 3]."""
    cut = pixels.view(-1, FACTOR, *pixels.shape[2:])  # [N x BANDS, 28, W, 3]
    return cut[bands].view(-1, *pixels.shape[1:])


def positions(start: Tensor, L: int) -> Tensor:
    """mrope_positions [3, B, L] of sequences whose pictures begin at `start` [B], on its device."""
    side = VIEWPORT // FACTOR
    t = torch.arange(L, device=start.device) - start[:, None]  # [B, L]
    inside, after = (t >= 0) & (t < TOKENS), t >= TOKENS
    text = t + after * (side - TOKENS)
    grid = torch.stack([torch.zeros_like(t), t // side, t % side])  # [3, B, L]
    return torch.where(inside, grid, text) + start[:, None]


def log_probs(policy: Policy, pixels: Tensor, batch: Batch) -> Tensor:
    """Log-probs [n] of the targets, 0 for padding. pixels: [N, H, W, 3] uint8.

    Every shape follows from the batch's, and nothing waits for the GPU, so this can be recorded.
    Padding is on the right, where a causal model needs no mask.
    """
    language = policy.base.model.language_model
    patches = patchify(assemble(pixels, batch.bands))
    features = vision_features(policy.base.model.visual, patches, GRID)  # [P, T, H]
    embeds = language.embed_tokens(batch.ids)  # [B, L, H]
    index = batch.start[:, None] + torch.arange(TOKENS, device=batch.ids.device)  # [B, T]
    index = index[..., None].expand(-1, -1, embeds.shape[-1])  # [B, T, H]
    pictures = features.index_select(0, batch.picture).to(embeds.dtype)  # [B, T, H]
    hidden = language(
        inputs_embeds=embeds.scatter(1, index, pictures),
        position_ids=positions(batch.start, batch.ids.shape[1]),
        attention_mask={"full_attention": None},
        use_cache=False,
    ).last_hidden_state  # [B, L, H]
    logits = policy.logits(hidden.flatten(0, 1).index_select(0, batch.predictor))  # [n, V]
    return -F.cross_entropy(logits, batch.targets, reduction="none")


# ---- how well does it see? ----

Question = tuple[Page, str, str]  # page, user text, expected reply


@torch.no_grad()
def answers_right(policy: Policy, questions: list[Question], batch: int = 512) -> list[bool]:
    """Which questions the model answers greedily with the expected actions: the same texts, and
    clicks inside the element that the expected click hits."""
    right: list[bool] = []
    for first in range(0, len(questions), batch):
        part = questions[first : first + batch]
        requests = []
        for page, user, _ in part:
            png = page.image.read_bytes()
            requests.append(Request(policy.prompt_ids(Prompt("", user, png)), png, 64, 0.0, 0))
        for (page, _, expected), completion in zip(part, generate(policy, requests)):
            right.append(same_actions(page, expected, completion.text))
    return right


def same_actions(page: Page, expected: str, reply: str) -> bool:
    size = (VIEWPORT, VIEWPORT)
    wanted, actions = parse(expected, size, size).actions, parse(reply, size, size).actions
    return len(wanted) == len(actions) and all(
        same_action(page, *pair) for pair in zip(wanted, actions)
    )


def same_action(page: Page, expected: Action, action: Action) -> bool:
    if not expected.kind == action.kind == "click":
        return expected == action
    return any(_hits(expected, box) and _hits(action, box) for box in page.elements)


def _hits(click: Action, box: dict) -> bool:
    return 0 <= click.x - box["x"] < box["width"] and 0 <= click.y - box["y"] < box["height"]


def grounding(policy: Policy, pages: list[Page]) -> float:
    """Share of clicks that hit the named element, over all uniquely named elements of `pages`."""
    questions = []
    for page in pages:
        for element in page.unique(field=False) + page.unique(field=True):
            questions.append((page, *lessons.click_on(element)))
    return sum(answers_right(policy, questions)) / max(1, len(questions))


def following(policy: Policy, pages: list[Page], names: Names, seed: int) -> dict[str, float]:
    """Share of right replies to one lesson of each kind about each of `pages`."""
    shares = {}
    for kind in ("follow", "write", "answer", "finish"):
        rng = random.Random(f"{seed}/{kind}")
        questions = []
        for page in pages:
            if lesson := lessons.lesson(page, kind, names, rng):
                questions.append((page, *lesson))
        shares[kind] = sum(answers_right(policy, questions)) / max(1, len(questions))
    return shares


@dataclass(frozen=True)
class Exam:
    """The pages to measure grounding on."""

    held_out: list[Page]
    scrambled: list[Page]  # held out, too
    seen: list[Page]

    def grounding(self, policy: Policy, limit: int | None = None) -> dict[str, float]:
        """Grounding on the first `limit` pages of each kind."""
        return {
            "grounding": grounding(policy, self.held_out[:limit]),
            "grounding_seen": grounding(policy, self.seen[:limit]),
            "grounding_scrambled": grounding(policy, self.scrambled[:limit]),
        }


def make_exam(pages: list[Page], seed: int) -> Exam:
    held_out = [page for page in pages if page.held_out and not page.scrambled]
    scrambled = [page for page in pages if page.held_out and page.scrambled]
    seen = [page for page in pages if not page.held_out and not page.scrambled]
    random.Random(seed).shuffle(held_out)
    return Exam(held_out, scrambled, seen[:500])


# ---- training ----


@dataclass(frozen=True)
class Recording:
    """A recorded step: its batch's tensors are its inputs, and its loss appears in `loss`."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    loss: Tensor


class Step:
    """One optimisation step on a batch; returns its loss, on the device.

    On a GPU, the first two batches of a shape run launch by launch, and the third is recorded. From
    then on a batch is copied over the recorded one, and the recording is launched.
    """

    def __init__(self, policy: Policy, pixels: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.policy, self.pixels, self.optimizer = policy, pixels, optimizer
        self.batches: Counter[tuple[int, int, int]] = Counter()  # by shape
        self.recordings: dict[tuple[int, int, int], Recording] = {}

    def __call__(self, batch: Batch) -> Tensor:
        self.batches[batch.shape] += 1
        if self.pixels.device.type != "cuda" or self.batches[batch.shape] < 3:
            return self.run(batch)
        if batch.shape not in self.recordings:
            self.recordings[batch.shape] = self.record(batch)
        recording = self.recordings[batch.shape]
        for old, new in zip(vars(recording.batch).values(), vars(batch).values()):
            old.copy_(new)
        recording.graph.replay()
        return recording.loss

    def record(self, batch: Batch) -> Recording:
        graph = torch.cuda.CUDAGraph()
        pool = next((other.graph.pool() for other in self.recordings.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            loss = self.run(batch)
        return Recording(graph, batch, loss)

    def run(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        device = batch.ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = -log_probs(self.policy, self.pixels, batch).sum() / (batch.targets >= 0).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def rate(done: int, steps: int, lr: float) -> float:
    """Learning rate: rises over the first 1 % of the steps, stays level, and falls to zero over the
    last 40 %."""
    part = done / steps
    return lr * min(1.0, part / 0.01 + 1e-3, (1 - part) / 0.4)


def pretrain(options: PretrainOptions) -> None:
    """Trains the model on the pages and writes it in bf16, with its accuracy in result.json.

    Resumes from resume.pt, saved about six times per run: a step's batch depends only on its
    number.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    steps, out = options.steps, options.out
    out.mkdir(parents=True, exist_ok=True)

    policy = load_policy(options.model, device, torch.float32, tune_vision=True).train()
    pages = read_pages(options.pages)
    training = [page for page in pages if not page.held_out]
    names = lessons.names_of(training)
    exam = make_exam(pages, options.seed)
    with ThreadPoolExecutor() as pool:
        pictures = list(pool.map(lambda page: decode(page.image.read_bytes()), training))
    pixels = torch.stack(pictures).to(device)  # [N, H, W, 3]
    if gpu:
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be recorded
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        lr=torch.tensor(options.lr, device=device),
        betas=(0.9, 0.98),
        weight_decay=0.01,
        fused=gpu,
        capturable=gpu,
    )
    step = Step(policy, pixels, optimizer)
    done, spent = resume(out, policy, optimizer)
    held_out = len(pages) - len(training)
    print(f"{len(training)} pictures to learn, {held_out} held out", flush=True)
    print(f"{done} of {steps} steps done", flush=True)
    batches = DataLoader(
        Lessons(policy, training, names, options.batch, steps, options.seed),
        batch_size=None,
        sampler=range(done, steps),
        num_workers=options.workers,
        prefetch_factor=8 if options.workers else None,
    )
    began, last, samples = time.monotonic() - spent, time.monotonic(), 0
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"].fill_(rate(done, steps, options.lr))
        loss = step(batch.to(device))
        done, samples = done + 1, samples + len(batch.picture)
        if done % 100:
            continue
        row = {"step": done, "minutes": (time.monotonic() - began) / 60, "loss": loss.item()}
        row["samples/s"] = samples / (time.monotonic() - last)
        if done % max(100, steps // 600 * 100) == 0:
            policy.eval()
            row |= exam.grounding(policy, 60)
            row |= following(policy, exam.held_out[:60], names, options.seed)
            policy.train()
            save_resumable(out, policy, optimizer, done, time.monotonic() - began)
        print(json.dumps(row), flush=True)
        with (out / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(row) + "\n")
        last, samples = time.monotonic(), 0
    policy.eval()
    result = {
        "steps": done,
        "minutes": (time.monotonic() - began) / 60,
        "pages": len(training),
        "held_out_pages": len(exam.held_out),
        **exam.grounding(policy),
        "following": following(policy, exam.held_out, names, options.seed),
    }
    print(json.dumps(result), flush=True)
    (out / "result.json").write_text(json.dumps(result, indent=1), "utf-8")
    policy.model.to(torch.bfloat16)
    save_policy(policy, out)


def resume(out: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """(steps done, seconds spent) of an earlier run, whose weights it loads; (0, 0) without one."""
    if not (out / "resume.pt").exists():
        return 0, 0.0
    state = torch.load(out / "resume.pt", map_location=policy.device, weights_only=True)
    policy.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["done"], state["spent"]


def save_resumable(
    out: Path, policy: Policy, optimizer: torch.optim.Optimizer, done: int, spent: float
) -> None:
    state = {"model": policy.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"done": done, "spent": spent}, out / "resume.part")
    (out / "resume.part").replace(out / "resume.pt")
