"""What the GPU benchmarks share: a model of Qwen2.5-VL-7B's shape, and a watch on the GPU.

The model has random weights, and nothing is downloaded: the configuration stands here, and the
tokenizer is the pocket model's, filled up to the 7B's vocabulary with entries that no text
produces. --tiny takes the pocket base model instead, so that every line also runs on a CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from jhima.policy import LORA_TARGETS, Policy, default_dtype
from jhima.prompts import Prompts, load_prompts, save_prompts

BASE = ROOT / "jhima" / "pocket" / "base"
DEVICE = torch.device("cpu")
if torch.cuda.is_available():
    DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
DEVICE_NAME = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
TOKENIZER_SIZE = 151_665  # Qwen2.5's; its embedding has 152,064 rows


def config_7b(special: dict[str, int]) -> Qwen2_5_VLConfig:
    """Qwen2.5-VL-7B-Instruct's config.json. special: the ids of special tokens."""
    # fmt: off
    text = dict(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152_064, max_position_embeddings=32_768,
        rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        eos_token_id=special["<|im_end|>"], pad_token_id=special["<|endoftext|>"],
        bos_token_id=None,
    )
    vision = dict(
        depth=32, hidden_size=1280, num_heads=16, intermediate_size=3420, out_hidden_size=3584,
        patch_size=14, window_size=112, fullatt_block_indexes=[7, 15, 23, 31], tokens_per_second=2,
    )
    # fmt: on
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=special["<|image_pad|>"],
        video_token_id=special["<|video_pad|>"],
        vision_start_token_id=special["<|vision_start|>"],
        vision_end_token_id=special["<|vision_end|>"],
    )


def write_shape(folder: Path) -> None:
    """Everything of a 7B-shaped checkpoint but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(BASE / "chat_template.jinja", folder)
    for name in ("generation", "preprocessor", "tokenizer"):
        shutil.copy(BASE / f"{name}_config.json", folder)
    tokenizer = json.loads((BASE / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"w{number}": number for number in range(len(vocabulary), TOKENIZER_SIZE)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    save_prompts(Prompts(), folder)
    config = config_7b({token["content"]: token["id"] for token in tokenizer["added_tokens"]})
    config.architectures, config.dtype = ["Qwen2_5_VLForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)


def random_model(folder: Path, seed: int = 0) -> Qwen2_5_VLForConditionalGeneration:
    """The model of a folder's config with random weights, made on the device in its precision."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    dtype = default_dtype(DEVICE)
    torch.set_default_dtype(dtype)
    config = Qwen2_5_VLConfig.from_pretrained(folder)
    try:
        with DEVICE:
            return Qwen2_5_VLForConditionalGeneration._from_config(
                config, attn_implementation="sdpa", dtype=dtype
            )
    finally:
        torch.set_default_dtype(before)


def lora(model, rank: int = 32, seed: int = 0):
    """`model` with a non-zero adapter in fp32 on its language model's linear layers."""
    torch.manual_seed(seed)  # of A; `randomize` draws B
    model.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, task_type="CAUSAL_LM")
    config.target_modules = LORA_TARGETS
    wrapped = get_peft_model(model, config)
    randomize(wrapped, seed)
    return wrapped


@torch.no_grad()
def randomize(model, seed: int) -> None:
    """A non-zero B in every adapter, about as large as training makes it."""
    noise = torch.Generator(device=DEVICE).manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.copy_(torch.randn(p.shape, generator=noise, device=p.device) * 0.005)


def make_policy(tiny: bool, folder: Path, model=None, rank: int | None = 32, **options) -> Policy:
    """A policy over `model`, or over a new one of the shape that `folder` describes.

    rank: of its adapter; None for no adapter. options: Policy's.
    """
    if model is None and tiny:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder, dtype=default_dtype(DEVICE), attn_implementation="sdpa"
        )
    elif model is None:
        model = random_model(folder)
    model = model.to(DEVICE)
    if rank:
        model = lora(model, rank)
    tokenizer, prompts = AutoTokenizer.from_pretrained(folder), load_prompts(folder)
    return Policy(model, tokenizer, prompts, **options).to(DEVICE)


# ---- time and memory ----


@dataclass
class Phase:
    """What a Watch saw of one part of a benchmark."""

    seconds: float = 0.0
    peak: float = 0.0  # GiB of the whole GPU in use, by all processes
    busy: float | None = None  # share of the time in which a kernel ran


class Watch:
    """Reads nvidia-smi ten times per second in a thread. Without a GPU it measures only seconds."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []  # time, share busy, GiB
        self._reader = None
        if DEVICE.type == "cuda":
            command = ["nvidia-smi", "-i", str(DEVICE.index), "-lms", "100"]
            command += ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
            self._reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._reader.stdout:
            busy, used = line.split(",")
            self._samples.append((time.monotonic(), float(busy) / 100, float(used) / 1024))

    @contextmanager
    def phase(self) -> Iterator[Phase]:
        phase, began = Phase(), time.monotonic()
        try:
            yield phase
        finally:
            synchronize()
            ended = time.monotonic()
            phase.seconds = ended - began
            samples = [sample for sample in self._samples if began <= sample[0] <= ended]
            if samples:
                _, busy, used = zip(*samples)
                phase.busy, phase.peak = sum(busy) / len(busy), max(used)

    def close(self) -> None:
        if self._reader:
            self._reader.kill()


def synchronize() -> None:
    """Waits until the GPU has done what it was given."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def reset_peak() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> dict[str, float]:
    """The most memory that tensors took since `reset_peak`; nothing on a CPU."""
    if DEVICE.type != "cuda":
        return {}
    return {"peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)}
