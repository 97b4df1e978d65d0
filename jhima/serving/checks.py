"""What is checked before a model loads: that the sampler can be had, and takes what is asked of it.

vLLM would say so minutes later. Its limits stand here because importing it takes seconds.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from transformers import AutoConfig

from jhima.coordinates import FACTOR, MAX_PIXELS
from jhima.models.positions import context
from jhima.sampler import SamplerOptions

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the sizes that vLLM has kernels for
TEMPERATURES = (0.01, 2.0)  # but for 0; vLLM refuses higher ones, and raises lower ones in silence


class EngineFailure(Exception):
    """A vLLM engine did not start, has died, or got no adapter; the same command resumes."""


def served_rank(rank: int) -> int:
    """The smallest size of vLLM's that holds adapters of this rank.

    Raises ValueError if there is none.

    >>> served_rank(4), served_rank(24), served_rank(32)
    (8, 32, 32)
    """
    for size in RANKS:
        if rank <= size:
            return size
    raise ValueError(f"--lora-rank {rank}: vLLM serves adapters of rank {RANKS[-1]} at most")


def check_sampler(
    options: SamplerOptions,
    temperature: float,
    checkpoint: str,
    lora_rank: int | None = None,
) -> None:
    """Raises ValueError where the options ask for what is not installed or cannot be.

    options: with plan_tokens and action_tokens. checkpoint: what is sampled from.
    """
    config = AutoConfig.from_pretrained(checkpoint)
    if options.sampler_batch < 1:
        raise ValueError(f"--sampler-batch: expected at least 1, got {options.sampler_batch}")
    if lora_rank is not None and lora_rank < 1:
        raise ValueError(f"--lora-rank: expected at least 1, got {lora_rank}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"--temperature: expected a finite number from 0 on, got {temperature}")
    for name in ("plan_tokens", "action_tokens"):
        _check_length(name, getattr(options, name), context(config))
    if options.sampler != "vllm":
        return
    if find_spec("vllm") is None:
        raise ValueError("--sampler vllm: vLLM is not installed; requirements.txt has it")
    served_rank(lora_rank or 1)
    low, high = TEMPERATURES
    if temperature and not low <= temperature <= high:
        raise ValueError(f"--temperature: vLLM takes 0 or {low:g} to {high:g}, got {temperature:g}")
    if not options.kv_gib >= _kv_gib(config):  # NaN too
        raise ValueError(
            f"--kv-gib {options.kv_gib:g}: keys and values of one longest prompt of {checkpoint} "
            f"take {_kv_gib(config):.2g} GiB"
        )


def _check_length(name: str, tokens: int, context: int) -> None:
    """A reply must have room beside the largest picture; what text takes is known only later."""
    flag = "--" + name.replace("_", "-")
    if tokens < 1:
        raise ValueError(f"{flag}: expected at least 1, got {tokens}")
    picture = MAX_PIXELS // FACTOR**2
    if picture + tokens >= context:
        raise ValueError(
            f"{flag} {tokens}: beside a picture of up to {picture} tokens there is no room for a "
            f"prompt in the model's {context}"
        )


def _kv_gib(config) -> float:
    """GiB of keys and values of as many tokens as vLLM must be able to hold."""
    text = config.get_text_config()
    width = text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    size = 2 if torch.cuda.is_available() else 4  # bytes of a number: bf16 or fp32
    return 2 * text.num_hidden_layers * width * size * context(config) / 2**30
