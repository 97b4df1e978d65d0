"""Tokens out of vLLM: continuous batching, with the trainer's adapters and the trainer's vision features.

How it differs from handing vLLM a prompt and a picture:
1. Tokens in, tokens out. A prompt goes in as ids with one image placeholder; the expanded ids that vLLM reports must
   equal ours, else training would learn from another prompt than was sampled from.
2. vLLM never sees a picture. The tower is frozen, so policy.encode computes each distinct screenshot's features once,
   in a thread of its own, for sampling and for both optimisation passes. vLLM's own image processing holds up its
   event loop for about 0.14 s a 1288x728 picture, and it loads no tower here.
3. An adapter goes in as files under a name and an id that never come again: vLLM keys its prefix cache by them, and a
   new version under an old name gets the old one's keys and values without any error.
4. Log-probs are those of the distribution that was sampled from: after the temperature, without the forbidden ids.

Written against vLLM 0.24 to 0.32; only what both offer publicly is used. Install it to use this file.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoConfig
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from jhima.coordinates import MERGE
from jhima.models.positions import expand
from jhima.models.vision import decode, image_key
from jhima.policy import Policy, free_memory
from jhima.prompts import Prompt
from jhima.sampler import Completion
from jhima.serving import reaper

_numbers = itertools.count(1)  # of adapters and requests, in all engines of this process


_FAST_FILES = (
    "/dev/shm" if os.path.isdir("/dev/shm") else None
)  # adapters are read once: no need for a disk
# An update by compiled layers without checkpointing takes 11 GiB beside 7B's weights (H200, 2,268 tokens): with less
# free, the layers would be computed twice.
UPDATE_ROOM = 14 << 30


def start_engine(
    checkpoint: str | Path,
    device: torch.device,
    lora_rank: int,
    kv_bytes: int,
    max_tokens: int = 8192,
    max_batch: int = 128,
    adapters: int = 1,
    **options,
) -> AsyncLLM:
    """A vLLM engine in a process of its own on `device`. Blocks until it is ready: seconds on a CPU, 1 to 2 minutes
    for 7B on a GPU. Call it inside the event loop that will use it, and stop_engine at the end.

    kv_bytes: memory for keys and values, the only part of vLLM's memory that is a choice: beside it lie the weights
    (7B in bf16 without its tower: 14 GiB) and 2 to 3 GiB of graphs and activations. A token of the 7B takes 56 KiB.
    max_tokens: prompt and reply, at most what the model was made for. adapters: how many serve at once, 2 where both
    roles share a base. options: over the engine arguments below.
    """
    gpu = device.type == "cuda"
    max_tokens = min(
        max_tokens, AutoConfig.from_pretrained(checkpoint).get_text_config().max_position_embeddings
    )
    arguments = dict(
        model=str(checkpoint),
        dtype="bfloat16" if gpu else "float32",
        max_model_len=max_tokens,
        max_num_seqs=max_batch,
        max_num_batched_tokens=max(4096, max_tokens),
        kv_cache_memory_bytes=kv_bytes,
        enable_prefix_caching=True,
        enable_lora=True,
        max_lora_rank=max(8, lora_rank),
        max_loras=adapters,
        enable_sleep_mode=gpu,
        limit_mm_per_prompt={"image": 0, "video": 0},
        enable_mm_embeds=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    if gpu:
        # Not a budget: the share of memory that must be free at the start. kv_bytes decides the rest.
        arguments |= {"gpu_memory_utilization": 0.05}
    else:
        # vLLM's CPU build cannot seed a request whose prompt is processed in chunks.
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
    reaper.start()
    with _environment(device):
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**(arguments | options)))


def stop_engine(engine: AsyncLLM) -> None:
    engine.shutdown()
    engine.shutdown = lambda: None  # vLLM calls it again while the interpreter ends, and fails


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """What the engine's process starts with: this rank's GPU alone, no compiler on a CPU, and not our script.

    A spawned process imports its parent's main module first: all that training needs and an engine does not, for
    seconds, and vLLM's CPU build fails where Flask is among it.
    """
    ours = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn"
    }  # a fork would copy this process's threads half-way
    if device.type == "cuda":
        visible = os.environ.get(
            "CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))
        ).split(",")
        ours["CUDA_VISIBLE_DEVICES"] = visible[device.index or 0]
    else:
        ours["TORCHDYNAMO_DISABLE"] = "1"
    main = sys.modules["__main__"]
    before, script = (
        {name: os.environ.get(name) for name in ours},
        {k: vars(main).pop(k, None) for k in ("__file__", "__spec__")},
    )
    os.environ |= ours
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update({k: v for k, v in script.items() if v is not None})
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


class VllmSampler:
    """Samples from `engine` with a policy's adapter. `sync` after every update; until then the base model answers.

    Two samplers may share an engine where two roles share a base.
    """

    def __init__(self, policy: Policy, engine: AsyncLLM) -> None:
        self.policy, self.engine = policy, engine
        self.tokens = 0  # sampled so far, for throughput
        self.adapter: LoRARequest | None = None
        self._files: tempfile.TemporaryDirectory | None = None
        self._tower = ThreadPoolExecutor(
            1
        )  # one picture at a time: they come from many episodes, unevenly
        # A bias of -100 is e^-100 of the probability: nothing, in fp32. (A logits processor of our own would make vLLM
        # fall back on its older model runner.)
        self._bias = {i: -100.0 for i in policy.forbidden.nonzero()[:, 0].tolist()}

    async def rest(self) -> None:
        """Before an update: where the GPU has too little memory for it, moves the engine's weights to host memory and
        drops its keys and values. No request may be running.

        Of a batch of 8 tasks on one H200, two 7B engines take 14 s to rest and 1 s to wake, under 2 %: all the time that
        sharing their frozen weights with the trainers could save.
        """
        if self.policy.device.type == "cuda" and free_memory() < UPDATE_ROOM:
            await self.engine.sleep(1)

    async def sync(self) -> None:
        """Before a rollout: wakes the engine, and gives it the policy's adapter as it is now, if it has one."""
        if await self.engine.is_sleeping():
            torch.cuda.empty_cache()  # what the update used
            await self.engine.wake_up()
        if not isinstance(self.policy.model, PeftModel):
            return
        files = tempfile.TemporaryDirectory(prefix="adapter-", dir=_FAST_FILES)
        self.policy.model.save_pretrained(files.name)
        await self.load(files.name)
        self._files = files  # the last one's go; vLLM may read the present ones again

    async def load(self, adapter: str | Path) -> None:
        """Gives the engine a saved adapter."""
        if self.adapter:
            await self.engine.remove_lora(self.adapter.lora_int_id)
        number = next(_numbers)
        self.adapter = LoRARequest(
            lora_name=f"adapter-{number}", lora_int_id=number, lora_path=str(adapter)
        )
        if not await self.engine.add_lora(self.adapter):
            raise RuntimeError(f"vLLM did not take the adapter in {adapter}")

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        """One reply to `prompt`; temperature 0 takes the likeliest token."""
        policy = self.policy
        ids = policy.prompt_ids(prompt)
        features, grid = await self._features(prompt.image)
        request = {
            "prompt_token_ids": ids,
            "multi_modal_uuids": {"image": [image_key(prompt.image).hex()]},
            "multi_modal_data": {
                "image": {"image_embeds": features, "image_grid_thw": torch.tensor([[1, *grid]])}
            },
        }
        how = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            logprobs=0,
            logit_bias=self._bias,
            stop_token_ids=[policy.im_end],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in self.engine.generate(
            request, how, f"request-{next(_numbers)}", lora_request=self.adapter
        ):
            pass
        expected = expand(ids, policy.image_pad, grid[0] * grid[1] // MERGE**2)
        if list(output.prompt_token_ids) != expected:
            raise RuntimeError(
                f"vLLM sampled from another prompt: {len(output.prompt_token_ids)} tokens, not our {len(expected)}"
            )
        reply = list(output.outputs[0].token_ids)
        logps = [
            at[token].logprob for token, at in zip(reply, output.outputs[0].logprobs, strict=True)
        ]
        self.tokens += len(reply)
        return Completion(ids, reply, logps, policy.text(reply), reply[-1] != policy.im_end)

    async def _features(self, image: bytes) -> tuple[Tensor, tuple[int, int]]:
        """The screenshot's features in host memory. Pictures are decoded in parallel, ahead of the tower's turn."""
        await asyncio.to_thread(decode, image)
        return (
            await asyncio.get_running_loop().run_in_executor(
                self._tower, self.policy.encode, [image]
            )
        )[0]


def with_engine(policy: Policy, kv_gib: float, stack: ExitStack | AsyncExitStack) -> VllmSampler:
    """A policy's sampler on an engine of its own, which ends with `stack`."""
    rank = policy.model.peft_config["default"].r if isinstance(policy.model, PeftModel) else 8
    engine = start_engine(policy.checkpoint, policy.device, rank, int(kv_gib * 2**30))
    stack.callback(stop_engine, engine)
    return VllmSampler(policy, engine)
