"""vLLM's replies against transformers' log-probs of them, on the pocket base model.

Skipped where vLLM is not installed.
"""

from __future__ import annotations

import asyncio

import pytest
import torch
from samples import ROOT, randomize, screenshot

from jhima.policy import Sample, load_policy
from jhima.prompts import Prompt

pytest.importorskip("vllm", reason="vLLM is not installed")
from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

BASE = ROOT / "jhima" / "pocket" / "base"
PROMPTS = [
    Prompt("", "Task go " * (1 + i % 5), screenshot(i % 3, 336, 336 if i % 2 else 364))
    for i in range(21)
]


async def sample_all(sampler, temperature: float, seeds: int = 0):
    return await asyncio.gather(
        *(sampler.sample(p, 24, temperature, seeds + i) for i, p in enumerate(PROMPTS))
    )


def gap(policy, replies, temperature: float) -> float:
    """The largest difference between the sampler's log-probs and the policy's own."""
    with torch.no_grad():
        logp = policy(
            [Sample(r.prompt_ids, p.image, r.ids) for r, p in zip(replies, PROMPTS)],
            temperature or 1.0,
        )
    return float((logp - torch.tensor([x for r in replies for x in r.logps])).abs().max())


@pytest.fixture(scope="module")
def results() -> dict:
    """What one engine replied to two policies of one base, with two adapters each."""

    async def go() -> dict:
        policies = [load_policy(BASE, "cpu", torch.float32, lora=(8, 16)).eval() for _ in range(2)]
        engine = start_engine(
            BASE,
            torch.device("cpu"),
            lora_rank=8,
            kv_bytes=64 << 20,
            max_tokens=1024,
            max_num_seqs=32,
            max_loras=2,
        )
        try:
            samplers = [VllmSampler(policy, engine) for policy in policies]
            found = {"policies": policies, "base": await sample_all(samplers[0], 0.5)}
            for version in (1, 2):
                for number, (policy, sampler) in enumerate(zip(policies, samplers)):
                    randomize(policy, 10 * version + number)
                    await sampler.sync()
                both = await asyncio.gather(
                    *(sample_all(sampler, 0.5) for sampler in samplers)
                )  # one mixed batch
                found[version] = [
                    (replies, gap(policy, replies, 0.5)) for policy, replies in zip(policies, both)
                ]
            found["again"] = await sample_all(samplers[0], 0.5)
            found["other seeds"] = await sample_all(samplers[0], 0.5, seeds=1000)
            found["greedy"] = await sample_all(samplers[0], 0.0)
            return found
        finally:
            stop_engine(engine)

    return asyncio.run(go())


def test_log_probs_equal_the_trainers_for_every_adapter(results):
    """At the sampling temperature, with a picture, for two adapters in one batch, and for the next
    version."""
    for version in (1, 2):
        for replies, difference in results[version]:
            assert difference < 1e-4
            assert sum(len(r.ids) for r in replies) > len(replies)


def test_the_adapter_is_served(results):
    """Each version's log-probs are far from the others': none was ignored, none is stale."""
    policy = results["policies"][0]  # holds version 2
    assert gap(policy, results[1][0][0], 0.5) > 0.1
    assert gap(policy, results["base"], 0.5) > 0.1
    with policy.model.disable_adapter():
        assert gap(policy, results["base"], 0.5) < 1e-4


def test_a_seed_fixes_a_reply(results):
    first, again = results[2][0][0], results["again"]
    assert (
        [r.ids for r in first] == [r.ids for r in again] != [r.ids for r in results["other seeds"]]
    )


def test_greedy_replies_are_the_likeliest_tokens(results):
    policy = results["policies"][0]
    assert gap(policy, results["greedy"], 0.0) < 1e-4
    for reply, prompt in list(zip(results["greedy"], PROMPTS))[:5]:
        with torch.no_grad():
            embeds, positions, mask = policy.embed(
                [reply.prompt_ids], [prompt.image], [reply.ids[:-1]]
            )
            hidden = policy.hidden(embeds, positions, use_cache=False)[0, -len(reply.ids) :]
        assert policy.logits(hidden).argmax(-1).tolist() == reply.ids


def test_no_forbidden_token_is_sampled(results):
    policy = results["policies"][0]
    replies = [r for version in (1, 2) for rs, _ in results[version] for r in rs]
    assert not any(policy.forbidden[i] for r in replies for i in r.ids)
    assert all(
        policy.im_end not in r.ids[:-1] and r.truncated == (r.ids[-1] != policy.im_end)
        for r in replies
    )
