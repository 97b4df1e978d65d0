"""vLLM's replies against transformers' log-probs of them, on the pocket base model.

Skipped where vLLM is not installed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import get_args

import psutil
import pytest
import torch
from hub import hub_folder
from samples import ROOT, randomize, screenshot

from jhima.policy import Sample, load_policy
from jhima.prompts import Prompt

pytest.importorskip("vllm", reason="vLLM is not installed")
from vllm.config.lora import MaxLoRARanks

from jhima.serving.checks import RANKS, EngineFailure
from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

BASE = ROOT / "jhima" / "pocket" / "base"
PROMPTS = [
    Prompt("", "Task go " * (1 + i % 5), screenshot(i % 3, 336, 336 if i % 2 else 364))
    for i in range(21)
]


LONG = (900, 1010, 1023, 1024, 1500)  # tokens of prompts; the engine's context has 1024


def prompt_of(policy, tokens: int) -> Prompt:
    """A prompt of exactly so many expanded tokens."""
    image = screenshot(0)
    word = policy.tokenizer.decode([len(policy.tokenizer) // 2])
    for count in range(tokens):
        prompt = Prompt("", word * count, image)
        if len(policy.prompt_ids(prompt)) - 1 + 144 == tokens:
            return prompt
    raise AssertionError(tokens)


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
def results(tmp_path_factory) -> dict:
    """What one engine replied to two policies of one base, with two adapters each.

    The base is a folder as the hub has them; the adapters' rank is none that vLLM has kernels for.
    """
    folder = tmp_path_factory.mktemp("hub") / "model"
    base = hub_folder(BASE, folder, False, "Qwen2VLImageProcessorFast", "processor_config.json")

    async def go() -> dict:
        policies = [load_policy(base, "cpu", torch.float32, lora=(24, 48)).eval() for _ in range(2)]
        engine = start_engine(
            base,
            torch.device("cpu"),
            lora_rank=24,
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
            found["long"] = await asyncio.gather(
                *(samplers[0].sample(prompt_of(policies[0], n), 24, 0.5, 0) for n in LONG)
            )
            for child in psutil.Process().children(recursive=True):
                if "EngineCore" in "".join(child.cmdline()):
                    child.kill()
            with pytest.raises(EngineFailure) as died:
                await sample_all(samplers[0], 0.5)
            found["died"] = str(died.value), str(base)
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


def test_a_prompt_beyond_the_context_gets_no_reply_and_no_error(results):
    """One below leaves as many tokens as there is room for."""
    for tokens, reply in zip(LONG, results["long"]):
        assert len(reply.ids) <= 1024 - tokens or not reply.ids
        assert bool(reply.ids) == (tokens < 1024)
    assert results["long"][-1].truncated and results["long"][-1].text == ""


def test_an_engine_that_died_gives_one_line_that_names_its_model(results):
    line, base = results["died"]
    assert base in line and "\n" not in line


def test_the_sizes_of_adapters_are_vllms():
    assert set(RANKS) == set(get_args(MaxLoRARanks)) - {1}


SERVED = """
import asyncio, os, signal, sys, torch
from types import SimpleNamespace
from jhima.policy import load_policy
from jhima.serving.vllm_sampler import VllmSampler

async def taken(request):
    read = "import sys; from safetensors.torch import load_file; load_file(sys.argv[1])"
    file = request.lora_path + "/adapter_model.safetensors"
    reader = await asyncio.create_subprocess_exec(sys.executable, "-c", read, file)
    return await reader.wait() == 0

async def no(*_): return False

engine = SimpleNamespace(add_lora=taken, is_sleeping=no, remove_lora=no)
policy = load_policy(sys.argv[1], "cpu", torch.float32, lora=(8, 16))
sampler = VllmSampler(policy, engine)
for _ in range(2):
    asyncio.run(sampler.sync())
print("served", flush=True)
if sys.argv[2] == "_exit":
    os._exit(3)
os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "_exit"])
def test_an_adapter_is_gone_with_its_process(end, tmp_path):
    """Its files are in no shared memory, and what is on the disk is deleted."""
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(BASE), end],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "served\n" and done.returncode != 0, done.stderr[-2000:]
    left = {name for name in set(os.listdir("/dev/shm")) - before if "adapter" in name}
    deadline = time.monotonic() + 10
    while list(tmp_path.glob("jhima-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left and not list(tmp_path.glob("jhima-*"))


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
