"""Tokens out of a policy: sampled in this process, or behind an OpenAI-compatible API.

LocalSampler runs the very Policy object that is being trained, so there is nothing to synchronise.
Episodes are coroutines that ask for a reply when they need one; whatever requests wait when the
model becomes free form the next batch. jhima/serving has the same from vLLM.
"""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, Protocol

import openai
import torch
from torch import Tensor
from transformers import DynamicCache

from jhima.policy import Policy
from jhima.prompts import Prompt


@dataclass
class SamplerOptions:
    """The options of train_rl.py and evaluate.py that say what samples replies."""

    sampler: Literal["local", "vllm"] = "local"
    """local: transformers, in this process; vllm: one engine per set of weights, for a GPU"""
    kv_gib: float = 12.0
    """vLLM: GiB for each engine's keys and values"""
    sampler_batch: int = 32
    """replies that the local sampler draws together; 1: no reply depends, even in its last bit, on
    what else is asked at that time"""


def check_sampler(options: SamplerOptions) -> None:
    """Raises ValueError where the options ask for what is not installed or cannot be."""
    if options.sampler == "vllm" and find_spec("vllm") is None:
        raise ValueError("--sampler vllm: vLLM is not installed; requirements.txt has it")
    if options.sampler_batch < 1:
        raise ValueError(f"--sampler-batch: expected at least 1, got {options.sampler_batch}")


class Sampler(Protocol):
    """What draws replies for one set of weights: local, vLLM's, or an API's."""

    tokens: int  # sampled so far

    async def sync(self) -> None:
        """Before a rollout: samples from the policy as it is now."""

    async def rest(self) -> None:
        """Before an update: gives back the memory that the update needs."""

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        """One reply; temperature 0 takes the likeliest token."""


@dataclass(frozen=True)
class Completion:
    """A sampled reply: its ids (with the end of the turn, unless cut at max_tokens), their log-probs at the
    temperature they were sampled with (temperature 0: at temperature 1), and its text."""

    prompt_ids: list[int]
    ids: list[int]
    logps: list[float]
    text: str
    truncated: bool


@dataclass(frozen=True)
class Request:
    """What LocalSampler.sample asks `generate` for: collapsed prompt ids, PNG, and how to draw."""

    prompt_ids: list[int]
    image: bytes
    max_tokens: int
    temperature: float
    seed: int


class LocalSampler:
    """Samples from a local policy, batching requests across episodes.

    A request's random numbers come from its own seed, so a reply does not depend on which others share its batch.
    """

    def __init__(self, policy: Policy, max_batch: int = 32) -> None:
        self.policy, self.max_batch = policy, max_batch
        self.tokens = 0  # sampled so far, for throughput
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._running: asyncio.Task | None = None

    async def sync(self) -> None:
        """Nothing to do before a rollout: it samples from the policy itself."""

    rest = sync  # nor before an update

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        """One reply to `prompt`; temperature 0 takes the likeliest token."""
        reply: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(
            (
                Request(
                    self.policy.prompt_ids(prompt), prompt.image, max_tokens, temperature, seed
                ),
                reply,
            )
        )
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._drain())
        return await reply

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let every coroutine that is ready ask first
            batch, self._waiting = self._waiting[: self.max_batch], self._waiting[self.max_batch :]
            batch = [(request, reply) for request, reply in batch if not reply.cancelled()]
            if not batch:
                continue
            try:
                completions = await asyncio.to_thread(
                    generate, self.policy, [request for request, _ in batch]
                )
            except Exception as error:  # a broken model breaks the run, not one episode
                for _, reply in batch:
                    if not reply.done():
                        reply.set_exception(error)
                raise
            for (_, reply), completion in zip(batch, completions):
                self.tokens += len(completion.ids)
                if not reply.done():
                    reply.set_result(completion)


@torch.no_grad()
@torch.compiler.set_stance(
    "force_eager"
)  # the trainer's graphs know no cache and would be compiled anew
def generate(policy: Policy, requests: list[Request]) -> list[Completion]:
    """Samples a reply to each request, all together, with a key-value cache.

    Gumbel-max: argmax(logits / T + noise) is a draw from softmax(logits / T), and the noise of a row comes from the
    row's own generator.
    """
    model = policy.base.model.language_model
    embeds, positions, mask = policy.embed(
        [r.prompt_ids for r in requests],
        [r.image for r in requests],
        [[] for _ in requests],
        pad="left",
    )
    mask = mask.to(policy.device)
    noise = [torch.Generator().manual_seed(r.seed) for r in requests]
    warm = torch.tensor([r.temperature or 1.0 for r in requests], device=policy.device)[
        :, None
    ]  # [B, 1]
    ids: list[list[int]] = [[] for _ in requests]
    logps: list[list[float]] = [[] for _ in requests]
    open_rows = set(range(len(requests)))
    cache, position = DynamicCache(config=model.config), positions.amax((0, 2))  # [B]
    while True:
        hidden = policy.hidden(embeds, positions, mask, past_key_values=cache, use_cache=True)[
            :, -1
        ]  # [B, H]
        logits = policy.logits(hidden) / warm  # [B, V]
        token = _choose(logits, noise, [r.temperature for r in requests])  # [B]
        logp = logits.log_softmax(-1).gather(-1, token[:, None])[:, 0].tolist()
        for row, y in enumerate(token.tolist()):
            if row in open_rows:
                ids[row].append(y)
                logps[row].append(logp[row])
                if y == policy.im_end or len(ids[row]) == requests[row].max_tokens:
                    open_rows.discard(row)
        if not open_rows:
            break
        position = position + 1
        embeds = model.embed_tokens(token[:, None])  # [B, 1, H]
        positions = position.expand(3, -1)[..., None]  # [3, B, 1]
        mask = torch.cat([mask, mask.new_ones(len(requests), 1)], 1)
    return [
        Completion(r.prompt_ids, y, p, policy.text(y), y[-1] != policy.im_end)
        for r, y, p in zip(requests, ids, logps)
    ]


def _choose(logits: Tensor, noise: list[torch.Generator], temperatures: list[float]) -> Tensor:
    """One token a row: a draw, or the likeliest where the temperature is 0. logits [B, V] (already divided); [B]."""
    gumbel = torch.zeros(logits.shape)
    for row, (generator, temperature) in enumerate(zip(noise, temperatures)):
        if temperature:
            gumbel[row] = -(-torch.rand(logits.shape[1], generator=generator).log()).log()
    return (logits + gumbel.to(logits.device)).argmax(-1)


class ApiSampler:
    """Replies of a model behind an OpenAI-compatible endpoint; the key is OPENAI_API_KEY's, where it asks for one.

    There are no token ids to train on. Requests are retried with back-off by the client; one that keeps failing raises
    openai.OpenAIError, which ends the run: the same command goes on from there.
    """

    def __init__(self, url: str, model: str, attempts: int = 6, timeout: float = 120.0) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=timeout,
            max_retries=attempts - 1,
        )
        self.model = model
        self.tokens = 0  # sampled so far, for throughput

    async def sync(self) -> None:
        """Nothing to do before a rollout: this model is not trained."""

    rest = sync  # nor before an update

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        image = "data:image/png;base64," + base64.b64encode(prompt.image).decode()
        reply = await self.client.chat.completions.create(
            model=self.model,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed % 2**31,
            messages=[
                {"role": "system", "content": prompt.system},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": prompt.user},
                        {"type": "image_url", "image_url": {"url": image}},
                    ],
                },
            ],
        )
        self.tokens += reply.usage.completion_tokens if reply.usage else 0
        choice = reply.choices[0]
        return Completion(
            [], [], [], choice.message.content or "", choice.finish_reason == "length"
        )
