"""Tokens out of a policy, sampled in this process.

LocalSampler runs the very Policy object that is being trained, so there is nothing to synchronise.
Episodes are coroutines that ask for a reply when they need one; whatever requests wait when the
model becomes free form the next batch. jhima/serving has the same from vLLM and from an API.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from jhima.episodes import Plan
from jhima.models.positions import room
from jhima.models.vision import decode
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
    """A sampled reply.

    ids: with the end of the turn, unless it was cut at max_tokens. logps: at the temperature that
    they were sampled with (temperature 0: at temperature 1). new_plan: the plan that the reply
    follows, if it was made just before it (--replan).
    """

    prompt_ids: list[int]
    ids: list[int]
    logps: list[float]
    text: str
    truncated: bool
    new_plan: Plan | None = None


def lost(prompt_ids: list[int]) -> Completion:
    """What a prompt that does not fit gets: no reply, so a step that does nothing."""
    return Completion(prompt_ids, [], [], "", True)


@dataclass(frozen=True)
class Request:
    """One reply that `generate` is to draw: collapsed prompt ids, PNG, budget, and randomness."""

    prompt_ids: list[int]
    image: bytes
    max_tokens: int
    temperature: float
    seed: int


class LocalSampler:
    """Samples from a local policy, batching requests across episodes.

    A request's random numbers come from its own seed, so a reply does not depend on which others
    share its batch.
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
        ids = self.policy.prompt_ids(prompt)
        max_tokens = min(max_tokens, room(ids, decode(prompt.image), self.policy.context))
        if max_tokens < 1:
            return lost(ids)
        request = Request(ids, prompt.image, max_tokens, temperature, seed)
        reply: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, reply))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._drain())
        return await reply

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # lets every coroutine that is ready ask first
            batch, self._waiting = self._waiting[: self.max_batch], self._waiting[self.max_batch :]
            batch = [(request, reply) for request, reply in batch if not reply.cancelled()]
            if not batch:
                continue
            requests = [request for request, _ in batch]
            try:
                completions = await asyncio.to_thread(generate, self.policy, requests)
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
def generate(policy: Policy, requests: list[Request]) -> list[Completion]:
    """Samples a reply to each request, all together, with a key-value cache.

    Gumbel-max: argmax(logits / T + noise) is a draw from softmax(logits / T), and the noise of a
    row comes from the row's own generator.
    """
    model = policy.base.model.language_model
    prompts, images = [r.prompt_ids for r in requests], [r.image for r in requests]
    nothing = [[] for _ in requests]  # of the replies, so far
    embeds, positions, mask = policy.embed(prompts, images, nothing, pad="left")
    mask = mask.to(policy.device)
    generators = [torch.Generator().manual_seed(r.seed) for r in requests]
    temperatures = [r.temperature for r in requests]
    divisors = torch.tensor([T or 1.0 for T in temperatures], device=policy.device)[:, None]
    ids: list[list[int]] = [[] for _ in requests]
    logps: list[list[float]] = [[] for _ in requests]
    unfinished = set(range(len(requests)))
    cache, position = DynamicCache(config=model.config), positions.amax((0, 2))  # [B]
    while True:
        hidden = policy.hidden(embeds, positions, mask, past_key_values=cache, use_cache=True)
        logits = policy.logits(hidden[:, -1]) / divisors  # [B, V]
        token = _choose(logits, generators, temperatures)  # [B]
        logp = logits.log_softmax(-1).gather(-1, token[:, None])[:, 0].tolist()
        for row, y in enumerate(token.tolist()):
            if row in unfinished:
                ids[row].append(y)
                logps[row].append(logp[row])
                if y == policy.im_end or len(ids[row]) == requests[row].max_tokens:
                    unfinished.discard(row)
        if not unfinished:
            break
        position = position + 1
        embeds = model.embed_tokens(token[:, None])  # [B, 1, H]
        positions = position.expand(3, -1)[..., None]  # [3, B, 1]
        mask = torch.cat([mask, mask.new_ones(len(requests), 1)], 1)
    completions = []
    for prompt, reply, sampled in zip(prompts, ids, logps):
        truncated = reply[-1] != policy.im_end
        completions.append(Completion(prompt, reply, sampled, policy.text(reply), truncated))
    return completions


def _choose(logits: Tensor, generators: list[torch.Generator], temperatures: list[float]) -> Tensor:
    """One token per row [B] of logits [B, V], already divided by the temperature.

    A draw, or the likeliest token where the temperature is 0.
    """
    gumbel = torch.zeros(logits.shape)
    for row, (generator, temperature) in enumerate(zip(generators, temperatures)):
        if temperature:
            gumbel[row] = -(-torch.rand(logits.shape[1], generator=generator).log()).log()
    return (logits + gumbel.to(logits.device)).argmax(-1)
