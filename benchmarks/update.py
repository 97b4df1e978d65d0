"""How much faster is our policy update than transformers + PEFT as GRPO trainers run it, and are its gradients the same?

    python benchmarks/update.py              # one GPU, Qwen2.5-VL-7B's shape with random weights: about 5 minutes
    python benchmarks/update.py --tiny       # the pocket base model, on anything

Both take the same samples (prompt, 1280x720 screenshot, response) through the same weights and the same loss. Stock:
picture processed and encoded in line for every sample, gradient checkpointing, fp32 adapters, logits of the response
only. Ours: jhima.policy, features once a screenshot, two passes as in an RL update. Precision is measured against the
same model in fp32. Prints, last, the ratios of this run; writes runs/benchmarks/update.json.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from peft.tuners.lora import LoraLayer
from PIL import Image, ImageDraw
from shape import BASE, DEVICE, make_policy, report, write_shape
from torch import Tensor
from tqdm import tqdm
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from jhima import grpo
from jhima.coordinates import MAX_PIXELS, MERGE, MIN_PIXELS
from jhima.models.positions import expand
from jhima.models.vision import decode, image_key, patchify, vision_features
from jhima.policy import Policy, Sample
from jhima.training.packing import Example, Picture

TEMPERATURE, CONSTANT = 0.8, 100.0


def picture(seed: int, width: int, height: int) -> bytes:
    """A page-like picture as PNG: boxes and lines of small shapes."""
    rng, image = np.random.default_rng(seed), Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(300):
        x, y, w, h = (
            rng.integers(0, width),
            rng.integers(0, height),
            rng.integers(2, 120),
            rng.integers(2, 20),
        )
        draw.rectangle(
            [int(x), int(y), int(x + w), int(y + h)],
            fill=tuple(int(c) for c in rng.integers(0, 256, 3)),
        )
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def make_samples(
    policy: Policy, count: int, text: int, response: int, size: tuple[int, int]
) -> list[Sample]:
    """Random prompts of about `text` tokens and responses of about `response`; every third screenshot comes twice."""
    rng = np.random.default_rng(0)
    words = [i for i in range(len(policy.tokenizer)) if not policy.forbidden[i]]
    samples = []
    for number in range(count):
        before = rng.choice(words, int(text * rng.uniform(0.8, 1.2))).tolist()
        prompt = [*before, policy.vision_start, policy.image_pad, policy.vision_end]
        samples.append(
            Sample(
                prompt,
                picture(number - (number % 3 == 2), *size),
                rng.choice(words, int(response * rng.uniform(0.5, 1.5))).tolist(),
                1.0 if number % 2 else -0.5,
            )
        )
    return sorted(samples, key=lambda s: len(s.prompt_ids) + len(s.response_ids), reverse=True)


def example(s: Sample) -> Example:
    """A sample as fine-tuning packs it; its screenshot is decoded anew, as a data worker does."""
    return Example(
        s.prompt_ids + s.response_ids,
        [False] * len(s.prompt_ids) + [True] * len(s.response_ids),
        [Picture(image_key(s.image), decode.__wrapped__(s.image))],
    )


# ---- the stock path ----


def stock_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)


def stock_inputs(
    processor: Qwen2VLImageProcessorPil, image_pad: int, png: bytes, prompt_ids: list[int]
) -> tuple[dict[str, Tensor], list[int]]:
    """(pixel_values and image_grid_thw of a screenshot, the prompt with its placeholder expanded)."""
    image = processor(Image.open(io.BytesIO(png)).convert("RGB"), return_tensors="pt")
    return dict(image), expand(
        prompt_ids, image_pad, int(image["image_grid_thw"].prod()) // MERGE**2
    )


@contextmanager
def stock_settings(policy: Policy, checkpointing: bool = True):
    """transformers' and PEFT's own behaviour, for the time being."""

    def adapters(cast: bool) -> None:
        for module in policy.modules():
            if isinstance(module, LoraLayer):
                module.cast_input_dtype_enabled = cast

    adapters(True)
    if checkpointing:
        policy.base.gradient_checkpointing_enable({"use_reentrant": False})
    yield
    policy.base.gradient_checkpointing_disable()
    adapters(False)


def stock_logp(policy: Policy, processor: Qwen2VLImageProcessorPil, s: Sample) -> Tensor:
    """log pi of the response's tokens [n] by the model's own multimodal forward pass."""
    image, prompt = stock_inputs(processor, policy.image_pad, s.image, s.prompt_ids)
    ids = torch.tensor([prompt + s.response_ids], device=DEVICE)
    n = len(s.response_ids)
    logits = policy.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=image["pixel_values"].to(DEVICE),
        image_grid_thw=image["image_grid_thw"].to(DEVICE),
        mm_token_type_ids=(ids == policy.image_pad).long(),
        logits_to_keep=n + 1,
        use_cache=False,
    ).logits[0, :-1]  # [n, V]
    logp = (logits.float().masked_fill(policy.forbidden, float("-inf")) / TEMPERATURE).log_softmax(
        -1
    )
    return logp.gather(-1, torch.tensor(s.response_ids, device=DEVICE)[:, None])[:, 0]


def loss_of(logp: Tensor, samples: list[Sample]) -> Tensor:
    advantage = torch.tensor([s.advantage for s in samples for _ in s.response_ids], device=DEVICE)
    return grpo.policy_loss(logp, logp.detach(), advantage, CONSTANT)


# ---- measuring ----


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(call, repeat: int = 5) -> float:
    """Seconds a call takes, after one to warm up."""
    call()
    synchronize()
    began = time.monotonic()
    for _ in range(repeat):
        call()
    synchronize()
    return (time.monotonic() - began) / repeat


def timed(
    name: str, policy: Policy, samples: list[Sample], run, micro: int = 1, passes: int = 1
) -> dict:
    """Speed and peak memory of `passes` times forward and backward over all samples, after one micro-batch to warm up."""
    parts = [samples[at : at + micro] for at in range(0, len(samples), micro)]
    began = time.monotonic()
    run(parts[-1])
    synchronize()
    warm_up = time.monotonic() - began
    policy.feature_cache.clear()  # the first pass encodes the screenshots
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    for part in tqdm(parts * passes, desc=name, unit="micro-batch", leave=False):
        run(part)
    synchronize()
    took = (time.monotonic() - began) / (passes * len(samples))
    policy.zero_grad(set_to_none=True)
    row = {
        "s/sample": round(took, 4),
        "samples/s": round(1 / took, 3),
        "warm-up s": round(warm_up, 1),
    }
    if DEVICE.type == "cuda":
        row["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    print(f"{name}: {row}", flush=True)
    return row


def gradient(policy: Policy, samples: list[Sample], run) -> Tensor:
    """The adapters' gradient over all samples as one vector [n] in fp32."""
    policy.zero_grad(set_to_none=True)
    for s in samples:
        run([s])
    flat = torch.cat([p.grad.float().flatten() for p in policy.parameters() if p.requires_grad])
    policy.zero_grad(set_to_none=True)
    return flat


def distance(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|."""
    return float(f"{float((a - b).norm() / b.norm()):.2e}")


def moved(policy: Policy, samples: list[Sample], run, lr: float = 1e-5) -> float:
    """The share of the adapters' entries that one AdamW step at the paper's learning rate changes at all."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="the pocket base model and 336x336 screenshots"
    )
    parser.add_argument("--samples", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument(
        "--stock-samples",
        type=int,
        default=6,
        help="samples of the stock path (default: %(default)s)",
    )
    args = parser.parse_args()
    result: dict = {"device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"}

    with tempfile.TemporaryDirectory() as scratch:
        folder = BASE if args.tiny else Path(scratch)
        if not args.tiny:
            write_shape(folder)
        policy = make_policy(args.tiny, folder).train()
    processor = stock_processor()
    samples = make_samples(
        policy, args.samples, *((30, 12, (336, 336)) if args.tiny else (1008, 64, (1280, 720)))
    )
    stock_part, few = (
        samples[len(samples) // 2 :][: args.stock_samples],
        samples[:: max(1, len(samples) // 4)][:4],
    )

    def stock(part: list[Sample]) -> None:
        loss_of(torch.cat([stock_logp(policy, processor, s) for s in part]), part).backward()

    def ours(part: list[Sample]) -> None:
        loss_of(policy(part, TEMPERATURE), part).backward()

    # ---- 1. Vision: what one screenshot costs ----
    image = samples[0].image
    pixels = patchify(decode(image)[None].to(DEVICE))  # [1, n, 1176]
    rows, columns = (side // 14 for side in decode(image).shape[:2])
    tower, grid = policy.base.model.visual, torch.tensor([[1, rows, columns]], device=DEVICE)
    with torch.no_grad():
        result["vision, s an image"] = {
            "stock processing (CPU)": seconds(
                lambda: processor(Image.open(io.BytesIO(image)).convert("RGB"), return_tensors="pt")
            ),
            "stock tower": seconds(lambda: tower(pixels[0], grid_thw=grid)),
            "our decoding (CPU)": seconds(lambda: decode.__wrapped__(image)),
            "our tower": seconds(lambda: vision_features(tower, pixels, (rows, columns))),
            "our tower, 4 at once": seconds(
                lambda: vision_features(tower, pixels.expand(4, -1, -1), (rows, columns))
            )
            / 4,
        }
    print(result["vision, s an image"], flush=True)

    # ---- 2. Speed and memory; gradients of a few samples on the side ----
    speed, grads = result.setdefault("update", {}), {}
    with stock_settings(policy):
        speed["stock"] = timed("stock", policy, stock_part, stock)
        grads["stock"] = gradient(policy, few, stock)
    speed["ours, eager"] = timed("ours, eager", policy, samples, ours, passes=2)
    grads["ours, eager"] = gradient(policy, few, ours)
    speed["ours, eager, 2 at once"] = timed(
        "ours, eager, 2 at once", policy, samples, ours, micro=2, passes=2
    )
    if DEVICE.type == "cuda":
        policy.compile()
        policy.checkpointing = "on"
        speed["ours, compiled, checkpointing"] = timed(
            "ours, compiled, checkpointing", policy, samples, ours, passes=2
        )
        policy.checkpointing = "auto"
        speed["ours, compiled"] = timed("ours, compiled", policy, samples, ours, passes=2)
        grads["ours, compiled"] = gradient(policy, few, ours)
        result["activations, MB a token"] = round(policy._token_bytes / 2**20, 2)
    precise = {"fp32 adapters": moved(policy, few, ours)}

    # ---- 3. Adapters in bf16: faster still, but do they learn? ----
    if DEVICE.type == "cuda":
        exact = {p: p.detach().clone() for p in policy.parameters() if p.requires_grad}
        for p in exact:
            p.data = p.data.bfloat16()
        torch.compiler.reset()  # the graphs read fp32 adapters, and do not notice
        speed["bf16 adapters, compiled"] = timed(
            "bf16 adapters, compiled", policy, samples, ours, passes=2
        )
        grads["bf16 adapters, compiled"] = gradient(policy, few, ours)
        precise["bf16 adapters"] = moved(policy, few, ours)
        for p, value in exact.items():
            p.data = value
    result["entries that a step at lr 1e-5 moves"] = precise

    # ---- 4. Gradients against the same model in fp32 ----
    if DEVICE.type == "cuda":
        grads = {name: g.cpu() for name, g in grads.items()}
        policy.float()
        policy.feature_cache.clear()
        policy.checkpointing = "on"
        with torch.compiler.set_stance("force_eager"):
            truth = gradient(policy, few, ours).cpu()
        result["gradient, relative distance from fp32"] = {
            name: distance(g, truth) for name, g in grads.items()
        }
    result["gradient, relative distance from stock"] = {
        name: distance(g, grads["stock"]) for name, g in grads.items()
    }

    fastest = speed["ours, compiled" if DEVICE.type == "cuda" else "ours, eager"]
    result["ratio"] = round(fastest["samples/s"] / speed["stock"]["samples/s"], 2)
    report("update", result)
    print(
        f"update, samples/s: {fastest['samples/s']} against {speed['stock']['samples/s']}, ratio {result['ratio']}"
    )


if __name__ == "__main__":
    main()
