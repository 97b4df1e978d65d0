"""Our policy update against transformers + PEFT, as GRPO trainers run it: speed and gradients.

    python benchmarks/update.py           # one GPU, the 7B's shape with random weights: ~5 minutes
    python benchmarks/update.py --tiny    # the pocket base model, on anything

Both take the same samples (prompt, 1280x720 screenshot, response) through the same weights and the
same loss. Stock: the picture is processed and encoded again for every sample; gradient
checkpointing, fp32 adapters, logits of the response only. Ours: jhima.policy, features once per
screenshot, two passes as in an RL update. Precision is measured against the same model in fp32.
Prints, last, the ratio of this run; writes runs/benchmarks/update.json.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from peft.tuners.lora import LoraLayer
from PIL import Image, ImageDraw
from torch import Tensor
from tqdm import tqdm
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks import shape
from benchmarks.report import report
from benchmarks.shape import DEVICE
from jhima import cli, grpo
from jhima.coordinates import MAX_PIXELS, MERGE, MIN_PIXELS
from jhima.models.positions import expand
from jhima.models.vision import decode, image_key, patchify, vision_features
from jhima.policy import Policy, Sample
from jhima.training.packing import Example, Picture

TEMPERATURE, CONSTANT = 0.8, 100.0
Run = Callable[[list[Sample]], None]  # forward and backward over a micro-batch


@dataclass
class Args:
    tiny: bool = False
    """the pocket base model and 336x336 screenshots"""
    samples: int = 16
    """samples of our path"""
    stock_samples: int = 6
    """samples of the stock path"""


# ---- samples ----


def picture(seed: int, width: int, height: int) -> bytes:
    """A page-like picture as PNG: boxes and lines of small shapes."""
    rng, image = np.random.default_rng(seed), Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(300):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        w, h = int(rng.integers(2, 120)), int(rng.integers(2, 20))
        draw.rectangle([x, y, x + w, y + h], fill=tuple(rng.integers(0, 256, 3).tolist()))
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def make_samples(policy: Policy, count: int, tiny: bool) -> list[Sample]:
    """Random prompts and responses, the longest first; every third screenshot comes twice.

    For the 7B's shape about 1,000 and 64 tokens, with --tiny 30 and 12.
    """
    text, response, size = 1008, 64, (1280, 720)
    if tiny:
        text, response, size = 30, 12, (336, 336)
    rng = np.random.default_rng(0)
    words = [i for i in range(len(policy.tokenizer)) if not policy.forbidden[i]]
    samples = []
    for number in range(count):
        before = rng.choice(words, int(text * rng.uniform(0.8, 1.2))).tolist()
        prompt = [*before, policy.vision_start, policy.image_pad, policy.vision_end]
        reply = rng.choice(words, int(response * rng.uniform(0.5, 1.5))).tolist()
        image = picture(number - (number % 3 == 2), *size)
        samples.append(Sample(prompt, image, reply, 1.0 if number % 2 else -0.5))
    return sorted(samples, key=lambda s: len(s.prompt_ids) + len(s.response_ids), reverse=True)


def example(s: Sample) -> Example:
    """A sample as fine-tuning packs it; its screenshot is decoded anew, as a data worker does."""
    learn = [False] * len(s.prompt_ids) + [True] * len(s.response_ids)
    image = Picture(image_key(s.image), decode.__wrapped__(s.image))
    return Example(s.prompt_ids + s.response_ids, learn, [image])


# ---- the stock path ----


def stock_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)


def stock_inputs(
    processor: Qwen2VLImageProcessorPil, image_pad: int, png: bytes, prompt_ids: list[int]
) -> tuple[dict[str, Tensor], list[int]]:
    """(pixel_values and image_grid_thw of a screenshot, the prompt with expanded placeholder)."""
    image = processor(Image.open(io.BytesIO(png)).convert("RGB"), return_tensors="pt")
    tokens = int(image["image_grid_thw"].prod()) // MERGE**2
    return dict(image), expand(prompt_ids, image_pad, tokens)


@contextmanager
def stock_settings(policy: Policy):
    """transformers' and PEFT's own behaviour, for the time being."""
    _cast_adapter_inputs(policy, True)
    policy.base.gradient_checkpointing_enable({"use_reentrant": False})
    yield
    policy.base.gradient_checkpointing_disable()
    _cast_adapter_inputs(policy, False)


def _cast_adapter_inputs(policy: Policy, cast: bool) -> None:
    for module in policy.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = cast


def stock_logp(policy: Policy, processor: Qwen2VLImageProcessorPil, s: Sample) -> Tensor:
    """log pi of the response's tokens [n] by the model's own multimodal forward pass."""
    image, prompt = stock_inputs(processor, policy.image_pad, s.image, s.prompt_ids)
    ids = torch.tensor([prompt + s.response_ids], device=DEVICE)
    logits = policy.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=image["pixel_values"].to(DEVICE),
        image_grid_thw=image["image_grid_thw"].to(DEVICE),
        mm_token_type_ids=(ids == policy.image_pad).long(),
        logits_to_keep=len(s.response_ids) + 1,
        use_cache=False,
    ).logits[0, :-1]  # [n, V]
    allowed = logits.float().masked_fill(policy.forbidden, float("-inf"))
    logp = (allowed / TEMPERATURE).log_softmax(-1)  # [n, V]
    return logp.gather(-1, torch.tensor(s.response_ids, device=DEVICE)[:, None])[:, 0]


def loss_of(logp: Tensor, samples: list[Sample]) -> Tensor:
    advantages = []
    for s in samples:
        advantages += [s.advantage] * len(s.response_ids)
    advantage = torch.tensor(advantages, device=DEVICE)
    return grpo.policy_loss(logp, logp.detach(), advantage, CONSTANT)


# ---- measuring ----


def seconds(call: Callable[[], object], repeat: int = 5) -> float:
    """Seconds that a call takes, after one to warm up."""
    call()
    shape.synchronize()
    began = time.monotonic()
    for _ in range(repeat):
        call()
    shape.synchronize()
    return (time.monotonic() - began) / repeat


def timed(
    name: str, policy: Policy, samples: list[Sample], run: Run, micro: int = 1, passes: int = 1
) -> dict:
    """Speed and peak memory of `passes` passes over all samples, after a micro-batch to warm up."""
    parts = [samples[first : first + micro] for first in range(0, len(samples), micro)]
    began = time.monotonic()
    run(parts[-1])
    shape.synchronize()
    warm_up = time.monotonic() - began
    policy.feature_cache.clear()  # the first pass encodes the screenshots
    shape.reset_peak()
    began = time.monotonic()
    for part in tqdm(parts * passes, desc=name, unit="micro-batch", leave=False):
        run(part)
    shape.synchronize()
    per_sample = (time.monotonic() - began) / (passes * len(samples))
    policy.zero_grad(set_to_none=True)
    row = {
        "s/sample": round(per_sample, 4),
        "samples/s": round(1 / per_sample, 3),
        "warm-up s": round(warm_up, 1),
        **shape.peak_gib(),
    }
    print(f"{name}: {row}", flush=True)
    return row


def gradient(policy: Policy, samples: list[Sample], run: Run) -> Tensor:
    """The adapters' gradient over all samples as one vector [n] in fp32."""
    policy.zero_grad(set_to_none=True)
    for s in samples:
        run([s])
    flat = torch.cat([p.grad.float().flatten() for p in policy.parameters() if p.requires_grad])
    policy.zero_grad(set_to_none=True)
    return flat


def distances(gradients: dict[str, Tensor], exact: Tensor) -> dict[str, float]:
    """|a - b| / |b| of each gradient a, where b is the exact one."""
    rows = {}
    for name, value in gradients.items():
        rows[name] = float(f"{float((value - exact).norm() / exact.norm()):.2e}")
    return rows


def moved(policy: Policy, samples: list[Sample], run: Run, lr: float = 1e-5) -> float:
    """The share of the adapters' entries that one AdamW step at the paper's rate changes at all."""
    for s in samples:
        run([s])
    trainable = [p for p in policy.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trainable]
    touched = sum(int((p.grad != 0).sum()) for p in trainable)
    torch.optim.AdamW(trainable, lr=lr, weight_decay=0.0).step()
    changed = sum(int((p != b).sum()) for p, b in zip(trainable, before))
    with torch.no_grad():
        for p, b in zip(trainable, before):
            p.copy_(b)
    policy.zero_grad(set_to_none=True)
    return round(changed / touched, 4)


def vision_seconds(policy: Policy, image: bytes) -> dict[str, float]:
    """What one screenshot costs, in seconds per image."""
    processor, tower = stock_processor(), policy.base.model.visual
    height, width, _ = decode(image).shape
    rows, columns = height // 14, width // 14
    pixels = patchify(decode(image)[None].to(DEVICE))  # [1, n, 1176]
    four = pixels.expand(4, -1, -1)
    grid = torch.tensor([[1, rows, columns]], device=DEVICE)

    def process() -> object:
        return processor(Image.open(io.BytesIO(image)).convert("RGB"), return_tensors="pt")

    with torch.no_grad():
        return {
            "stock processing (CPU)": seconds(process),
            "stock tower": seconds(lambda: tower(pixels[0], grid_thw=grid)),
            "our decoding (CPU)": seconds(lambda: decode.__wrapped__(image)),
            "our tower": seconds(lambda: vision_features(tower, pixels, (rows, columns))),
            "our tower, 4 at once": seconds(lambda: vision_features(tower, four, (rows, columns)))
            / 4,
        }


def main() -> None:
    args = cli.parse(Args, __doc__)
    gpu = DEVICE.type == "cuda"
    result: dict = {"device": shape.DEVICE_NAME}
    with tempfile.TemporaryDirectory() as scratch:
        folder = shape.BASE
        if not args.tiny:
            folder = Path(scratch)
            shape.write_shape(folder)
        policy = shape.make_policy(args.tiny, folder).train()
    processor = stock_processor()
    samples = make_samples(policy, args.samples, args.tiny)
    stock_part = samples[len(samples) // 2 :][: args.stock_samples]
    few = samples[:: max(1, len(samples) // 4)][:4]

    def stock(part: list[Sample]) -> None:
        logp = torch.cat([stock_logp(policy, processor, s) for s in part])
        loss_of(logp, part).backward()

    def ours(part: list[Sample]) -> None:
        loss_of(policy(part, TEMPERATURE), part).backward()

    # ---- 1. Vision: what one screenshot costs ----
    result["vision, s per image"] = vision_seconds(policy, samples[0].image)
    print(result["vision, s per image"], flush=True)

    # ---- 2. Speed and memory; gradients of a few samples on the side ----
    speed, gradients = result.setdefault("update", {}), {}

    def measure(name: str, with_gradient: bool = True, micro: int = 1) -> None:
        speed[name] = timed(name, policy, samples, ours, micro, passes=2)
        if with_gradient:
            gradients[name] = gradient(policy, few, ours)

    with stock_settings(policy):
        speed["stock"] = timed("stock", policy, stock_part, stock)
        gradients["stock"] = gradient(policy, few, stock)
    fastest = "ours, eager"
    measure("ours, eager")
    measure("ours, eager, 2 at once", with_gradient=False, micro=2)
    if gpu:
        fastest = "ours, compiled"
        policy.compile()
        policy.checkpointing = "on"
        measure("ours, compiled, checkpointing", with_gradient=False)
        policy.checkpointing = "auto"
        measure("ours, compiled")
        result["activations, MB per token"] = round(policy._token_bytes / 2**20, 2)
    result["entries that a step at lr 1e-5 moves"] = {"fp32 adapters": moved(policy, few, ours)}

    # ---- 3. Adapters in bf16: faster still, but do they learn? ----
    if gpu:
        exact = {p: p.detach().clone() for p in policy.parameters() if p.requires_grad}
        for p in exact:
            p.data = p.data.bfloat16()
        torch.compiler.reset()  # the graphs read fp32 adapters, and do not notice
        measure("bf16 adapters, compiled")
        share = moved(policy, few, ours)
        result["entries that a step at lr 1e-5 moves"]["bf16 adapters"] = share
        for p, value in exact.items():
            p.data = value

    # ---- 4. Gradients against the same model in fp32 ----
    if gpu:
        gradients = {name: value.cpu() for name, value in gradients.items()}
        policy.float()
        policy.feature_cache.clear()
        policy.checkpointing = "on"
        with torch.compiler.set_stance("force_eager"):
            exact_gradient = gradient(policy, few, ours).cpu()
        result["gradient, relative distance from fp32"] = distances(gradients, exact_gradient)
    result["gradient, relative distance from stock"] = distances(gradients, gradients["stock"])

    ours_per_s, stock_per_s = speed[fastest]["samples/s"], speed["stock"]["samples/s"]
    result["ratio"] = round(ours_per_s / stock_per_s, 2)
    report("update", result)
    print(f"update, samples/s: {ours_per_s} against {stock_per_s}, ratio {result['ratio']}")


if __name__ == "__main__":
    main()
