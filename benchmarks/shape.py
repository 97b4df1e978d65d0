"""What the benchmarks share: a model of Qwen2.5-VL-7B's shape with random weights, and a watch on the GPU.

No download: the configuration is in the code, the tokenizer is the pocket model's with entries that no text produces
added up to the 7B's vocabulary. --tiny takes the pocket base model instead, so that every line also runs on a CPU.
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
OUT = Path("runs/benchmarks")
DEVICE = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if torch.cuda.is_available()
    else torch.device("cpu")
)
TOKENIZER_SIZE = 151_665  # Qwen2.5's; its embedding has 152,064 rows


def config_7b(special: dict[str, int]) -> Qwen2_5_VLConfig:
    """Qwen2.5-VL-7B-Instruct's config.json, with the given ids of special tokens."""
    text = dict(
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18944,
        vocab_size=152_064,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        eos_token_id=special["<|im_end|>"],
        pad_token_id=special["<|endoftext|>"],
        bos_token_id=None,
    )
    vision = dict(
        depth=32,
        hidden_size=1280,
        num_heads=16,
        intermediate_size=3420,
        out_hidden_size=3584,
        patch_size=14,
        window_size=112,
        fullatt_block_indexes=[7, 15, 23, 31],
        tokens_per_second=2,
    )
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
    for name in (
        "chat_template.jinja",
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer_config.json",
    ):
        shutil.copy(BASE / name, folder)
    tokenizer = json.loads((BASE / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"w{number}": number for number in range(len(vocabulary), TOKENIZER_SIZE)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    save_prompts(Prompts(), folder)
    special = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    config = config_7b(special)
    config.architectures, config.dtype = ["Qwen2_5_VLForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)


def random_model(folder: Path, seed: int = 0) -> Qwen2_5_VLForConditionalGeneration:
    """The model of a folder's config with random weights, made on the device in its own precision."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default_dtype(DEVICE))
    try:
        with DEVICE:
            return Qwen2_5_VLForConditionalGeneration._from_config(
                Qwen2_5_VLConfig.from_pretrained(folder),
                attn_implementation="sdpa",
                dtype=default_dtype(DEVICE),
            )
    finally:
        torch.set_default_dtype(before)


def lora(model, rank: int = 32, seed: int = 0):
    """`model` with a non-zero adapter in fp32 on its language model's linear layers."""
    torch.manual_seed(seed)  # of A; `randomize` draws B
    model.requires_grad_(False)
    wrapped = get_peft_model(
        model,
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS, task_type="CAUSAL_LM"),
    )
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
    """A policy with an adapter (rank None: without) over `model`, or over a new one of the shape that `folder` describes."""
    if model is None:
        model = (
            Qwen2_5_VLForConditionalGeneration.from_pretrained(
                folder, dtype=default_dtype(DEVICE), attn_implementation="sdpa"
            )
            if tiny
            else random_model(folder)
        ).to(DEVICE)
    return Policy(
        lora(model, rank) if rank else model,
        AutoTokenizer.from_pretrained(folder),
        load_prompts(folder),
        **options,
    ).to(DEVICE)


# ---- time and memory ----


@dataclass
class Phase:
    """seconds on the clock; peak: GiB of the whole GPU in use, by all processes; busy: share of time a kernel ran."""

    seconds: float = 0.0
    peak: float = 0.0
    busy: float | None = None


class Watch:
    """Reads nvidia-smi ten times a second in a thread of its own. Without a GPU it knows the seconds only."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []  # time, share busy, GiB
        self._reader = None
        if DEVICE.type == "cuda":
            query = [
                "nvidia-smi",
                "-i",
                str(DEVICE.index),
                "--query-gpu=utilization.gpu,memory.used",
                "--format=csv,noheader,nounits",
                "-lms",
                "100",
            ]
            self._reader = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._reader.stdout:
            busy, used = line.split(",")
            self._samples.append((time.monotonic(), float(busy) / 100, float(used) / 1024))

    @contextmanager
    def phase(self) -> Iterator[Phase]:
        found, began = Phase(), time.monotonic()
        try:
            yield found
        finally:
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            ended = time.monotonic()
            found.seconds = ended - began
            if seen := [s for s in self._samples if began <= s[0] <= ended]:
                found.busy, found.peak = (
                    sum(s[1] for s in seen) / len(seen),
                    max(s[2] for s in seen),
                )

    def close(self) -> None:
        if self._reader:
            self._reader.kill()


def report(name: str, result: dict) -> None:
    """Writes runs/benchmarks/NAME.json and prints it."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
