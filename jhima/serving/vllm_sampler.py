"""Tokens out of vLLM: continuous batching, with the trainer's adapters and vision features.

How it differs from giving vLLM a prompt and a picture:
1. Tokens in, tokens out. A prompt goes in as ids with one image placeholder; the expanded ids that
   vLLM reports must equal ours, else training would learn from another prompt than was sampled
   from.
2. vLLM never sees a picture, and loads no tower. The tower is frozen, so policy.encode computes
   each distinct screenshot's features once, in a thread of its own, for sampling and for both
   optimisation passes. vLLM's own image processing blocks its event loop for about 0.14 s per
   1288x728 picture.
3. An adapter goes in as files, under a name and an id that are never used again: vLLM keys its
   prefix cache by them, and would use the old keys and values for a new version under an old name,
   without any error.
4. Log-probs are those of the distribution that was sampled from: after the temperature, without the
   forbidden ids.

Written against vLLM 0.24 to 0.32; it uses only what both offer publicly. Needs vLLM installed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save
from transformers import AutoConfig
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from jhima.coordinates import MERGE
from jhima.models.gpu import free_memory
from jhima.models.positions import MAX_CONTEXT, context, expand, room
from jhima.models.vision import Features, decode, image_key
from jhima.policy import Policy
from jhima.prompts import Prompt
from jhima.sampler import Completion, lost
from jhima.serving import reaper
from jhima.serving.checks import EngineFailure, served_rank

_numbers = itertools.count(1)  # of adapters and requests, in all engines of this process

# An update by compiled layers without checkpointing takes 11 GiB beside 7B's weights (H200, 2,268
# tokens). With less memory free, the backward pass would recompute the layers.
UPDATE_ROOM = 14 << 30


def start_engine(checkpoint: str | Path, device: torch.device, *settings, **options) -> AsyncLLM:
    """A vLLM engine in a process of its own on `device`; the other arguments are `_launch`'s.

    Blocks until it is ready: seconds on a CPU, 1 to 2 minutes for 7B on a GPU. Call stop_engine at
    the end.
    """
    with _environment(device):
        return _launch(checkpoint, device, *settings, **options)


def _launch(
    checkpoint: str | Path,
    device: torch.device,
    lora_rank: int,
    kv_bytes: int,
    max_tokens: int = MAX_CONTEXT,
    **options,
) -> AsyncLLM:
    """start_engine within `_environment`, which cannot be entered in two threads.

    kv_bytes: memory for keys and values, the only part of vLLM's memory that is a choice. Beside it
    lie the weights (7B in bf16 without its tower: 14 GiB) and 2 to 3 GiB of graphs and activations.
    A token of the 7B takes 56 KiB. max_tokens: of prompt and reply, limited to the model's own
    maximum. options: replace the engine arguments below.
    """
    max_tokens = min(max_tokens, context(AutoConfig.from_pretrained(checkpoint)))
    arguments = dict(
        model=str(checkpoint),
        max_model_len=max_tokens,
        max_num_seqs=128,
        max_num_batched_tokens=max(4096, max_tokens),
        kv_cache_memory_bytes=kv_bytes,
        enable_prefix_caching=True,
        enable_lora=True,
        max_lora_rank=served_rank(lora_rank),
        limit_mm_per_prompt={"image": 0, "video": 0},
        enable_mm_embeds=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    if device.type == "cuda":
        arguments |= {"dtype": "bfloat16", "enable_sleep_mode": True}
        # Not a budget: the share of memory that must be free at the start; kv_bytes is the budget.
        arguments["gpu_memory_utilization"] = 0.05
    else:
        # vLLM's CPU build cannot seed a request whose prompt is processed in chunks.
        arguments |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**(arguments | options)))


def stop_engine(engine: AsyncLLM) -> None:
    engine.shutdown()
    engine.shutdown = lambda: None  # vLLM calls it again while the interpreter ends, and fails


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """Engines started within get this rank's GPU alone, no compiler on a CPU, and no script.

    A spawned process first imports its parent's main module, with all that training needs and an
    engine does not. This takes seconds, and vLLM's CPU build fails where Flask is imported.
    """
    variables = {"TORCHDYNAMO_DISABLE": "1"}
    if device.type == "cuda":
        gpus = map(str, range(torch.cuda.device_count()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(gpus)).split(",")
        variables = {"CUDA_VISIBLE_DEVICES": visible[device.index or 0]}
    reaper.start()
    main = vars(sys.modules["__main__"])
    # Taken out, not set to None: `inspect` takes a module whose file is None for a built-in one.
    script = main.pop("__file__", None)
    try:
        with _replaced(os.environ, variables), _replaced(main, {"__spec__": None}):
            yield
    finally:
        if script is not None:
            main["__file__"] = script


@contextmanager
def _replaced(mapping: MutableMapping, values: dict) -> Iterator[None]:
    before = {name: mapping[name] for name in values if name in mapping}
    mapping.update(values)
    try:
        yield
    finally:
        for name in values:
            mapping.pop(name, None)
        mapping.update(before)


class VllmSampler:
    """Samples from `engine` with a policy's adapter.

    Call `sync` after every update; until the first call the base model answers. Two samplers may
    share an engine where two roles share a base.
    """

    def __init__(self, policy: Policy, engine: AsyncLLM) -> None:
        self.policy, self.engine = policy, engine
        self.tokens = 0  # sampled so far, for throughput
        self.adapter: LoRARequest | None = None
        self._files: tuple[tempfile.TemporaryDirectory, BinaryIO] | None = None  # the adapter's
        # One picture at a time: they come from many episodes, unevenly.
        self._tower = ThreadPoolExecutor(1)
        # A bias of -100 is e^-100 of the probability: nothing, in fp32. (With a logits processor of
        # our own, vLLM would fall back on its older model runner.)
        forbidden = policy.forbidden.nonzero()[:, 0].tolist()
        self._bias = dict.fromkeys(forbidden, -100.0)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except EngineDeadError:
            raise EngineFailure(f"the vLLM engine of {self.policy.checkpoint} has died") from None

    async def rest(self) -> None:
        """Before an update: makes room for it where the GPU has too little memory.

        Moves the engine's weights to host memory and drops its keys and values. No request may be
        running. Two 7B engines on one H200 take 14 s to rest and 1 s to wake, under 2 % of a batch
        of 8 tasks: sharing their frozen weights with the trainers could save no more than that.
        """
        if self.policy.device.type == "cuda" and free_memory() < UPDATE_ROOM:
            with self._alive():
                await self.engine.sleep(1)

    async def sync(self) -> None:
        """Before a rollout: wakes the engine and gives it the policy's current adapter, if any."""
        with self._alive():
            if await self.engine.is_sleeping():
                torch.cuda.empty_cache()  # what the update used
                await self.engine.wake_up()
            if isinstance(self.policy.model, PeftModel):
                await self._send()

    async def _send(self) -> None:
        """Gives the engine the policy's adapter as files: links to memory that ends with us.

        A file would stay behind when this process is killed, and /dev/shm is 64 MB in a container
        where an adapter of the 7B has 308 MiB.
        """
        files = tempfile.TemporaryDirectory(prefix="adapter-", dir=reaper.start())
        folder = Path(files.name)
        try:
            self.policy.model.peft_config["default"].save_pretrained(folder)
            weights = open(os.memfd_create(folder.name), "wb")
            weights.write(save(get_peft_model_state_dict(self.policy.model)))
            weights.flush()
            link = f"/proc/{os.getpid()}/fd/{weights.fileno()}"
            (folder / "adapter_model.safetensors").symlink_to(link)
        except OSError as error:
            raise EngineFailure(f"no room for an adapter: {error}") from None
        await self.load(folder)
        # The previous adapter's are freed here; vLLM may still re-read the current one's.
        self._files = files, weights

    async def load(self, adapter: str | Path) -> None:
        """Gives the engine a saved adapter. Raises RuntimeError where vLLM refuses it."""
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
        # Pictures are decoded in parallel, ahead of the tower's turn.
        pixels = await asyncio.to_thread(decode, prompt.image)
        max_tokens = min(max_tokens, room(ids, pixels, self.engine.model_config.max_model_len))
        if max_tokens < 1:
            return lost(ids)
        states, grid = await self._features(prompt.image)
        image = {"image_embeds": states, "image_grid_thw": torch.tensor([[1, *grid]])}
        request = {
            "prompt_token_ids": ids,
            "multi_modal_uuids": {"image": [image_key(prompt.image).hex()]},
            "multi_modal_data": {"image": image},
        }
        parameters = SamplingParams(
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
        name = f"request-{next(_numbers)}"
        replies = self.engine.generate(request, parameters, name, lora_request=self.adapter)
        with self._alive():
            async for last in replies:  # with FINAL_ONLY there is one
                output = last
        expected = expand(ids, policy.image_pad, grid[0] * grid[1] // MERGE**2)
        if list(output.prompt_token_ids) != expected:
            raise RuntimeError(
                "vLLM sampled from another prompt: "
                f"{len(output.prompt_token_ids)} tokens, not our {len(expected)}"
            )
        [reply] = output.outputs
        tokens = list(reply.token_ids)
        logps = [
            likely[token].logprob for token, likely in zip(tokens, reply.logprobs, strict=True)
        ]
        self.tokens += len(tokens)
        return Completion(ids, tokens, logps, policy.text(tokens), tokens[-1] != policy.im_end)

    async def _features(self, image: bytes) -> Features:
        """The screenshot's features in host memory."""
        loop = asyncio.get_running_loop()
        [features] = await loop.run_in_executor(self._tower, self.policy.encode, [image])
        return features


def with_engines(
    policies: list[Policy], kv_gib: float, stack: ExitStack | AsyncExitStack
) -> list[VllmSampler]:
    """A sampler for each policy, on an engine of its own. The engines end with `stack`.

    Raises EngineFailure where one does not start.

    They start, and stop, at the same time, in threads: each takes seconds even for a small model.
    An engine joins the event loop that first asks it.
    """
    print(f"waiting for {len(policies)} vLLM engines (1 to 2 minutes for 7B)", file=sys.stderr)
    with _environment(policies[0].device), ThreadPoolExecutor(len(policies)) as pool:
        starts = [pool.submit(_engine_of, policy, kv_gib) for policy in policies]
    # Before a failed start raises: the others must end, too.
    stack.callback(_stop_engines, [start.result() for start in starts if not start.exception()])
    for policy, start in zip(policies, starts):
        if error := start.exception():
            reason = str(error).splitlines() or [repr(error)]
            raise EngineFailure(
                f"the vLLM engine of {policy.checkpoint} did not start: {reason[0]}"
            ) from None
    return [VllmSampler(policy, start.result()) for policy, start in zip(policies, starts)]


def _stop_engines(engines: list[AsyncLLM]) -> None:
    with ThreadPoolExecutor(max(1, len(engines))) as pool:
        list(pool.map(stop_engine, engines))


def _engine_of(policy: Policy, kv_gib: float) -> AsyncLLM:
    rank = policy.model.peft_config["default"].r if isinstance(policy.model, PeftModel) else 8
    return _launch(policy.checkpoint, policy.device, rank, int(kv_gib * 2**30))
