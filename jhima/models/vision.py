"""Screenshots to vision features: Qwen2.5-VL's own weights, run in a batch.

The tower in transformers computes window indices and rotary angles for each image in Python and attends window by
window in a loop. Both depend on the image grid alone, and all screenshots of a run share one grid: here the tables
are cached per grid, and windows of one size go through one attention call: whole windows, and those cut off at the
right and lower edges. Nothing is padded, masked or gathered, and nothing waits for the GPU before the last layer is
under way. Same numbers (tests/method/test_policy.py), several times faster.
"""

from __future__ import annotations

import hashlib
import io
import math
from functools import cache, lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from jhima.coordinates import FACTOR, MERGE, PATCH, smart_resize


def image_key(image: bytes) -> bytes:
    """What a screenshot is known by: to the feature cache, and to vLLM's prefix cache."""
    return hashlib.blake2b(image, digest_size=16).digest()


MEAN = np.array(
    [0.48145466, 0.4578275, 0.40821073], np.float32
)  # CLIP's statistics, as the checkpoints expect


STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


@lru_cache(
    maxsize=256
)  # a picture's questions, passes and prefetched batches meet it again: 90 MB at 336x336
def decode(png: bytes) -> Tensor:
    """A screenshot as pixels [H, W, 3] (uint8), resized once to the model's grid.

    So Hugging Face and vLLM, whose own resize then has nothing left to do, see the same pixels. Raises
    PIL.UnidentifiedImageError for bytes that are no image.
    """
    image = Image.open(io.BytesIO(png)).convert("RGB")
    size = smart_resize(*image.size)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image))


@cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(MEAN).to(device), torch.from_numpy(STD).to(device)


def patchify(pixels: Tensor) -> Tensor:
    """Pixels [B, H, W, 3] (uint8) as Qwen2.5-VL's patches [B, n, 1176], token by token. Equals Qwen2VLImageProcessor."""
    B, H, W, _ = pixels.shape
    mean, std = _statistics(pixels.device)
    x = (pixels.float() / 255 - mean) / std  # [B, H, W, 3]
    x = x.view(B, H // FACTOR, MERGE, PATCH, W // FACTOR, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # [B, R/2, C/2, 2, 2, 3, 14, 14]
    x = x.unsqueeze(6).expand(*x.shape[:6], 2, PATCH, PATCH)  # a still image fills both frames
    return x.reshape(B, H * W // PATCH**2, -1)


@lru_cache(maxsize=16)
def _tables(grid: tuple[int, int], window: int, head_dim: int, device: torch.device) -> tuple:
    """What depends on the grid alone.

    order [n]: patches sorted by window, the four of a token together, larger windows first; back [n / 4]: the tokens'
    places in reading order; cos and sin [n, 1, head_dim]: rotary angles in that order; windows: ((how many, patches
    in each), ...), in that order, too.
    """
    rows, columns = grid
    n = rows * columns
    token = torch.arange(n) // MERGE**2  # patches come token by token
    token_row, token_col = token // (columns // MERGE), token % (columns // MERGE)
    row = token_row * MERGE + torch.arange(n) % MERGE**2 // MERGE
    col = token_col * MERGE + torch.arange(n) % MERGE
    across = math.ceil(columns / MERGE / window)  # windows side by side
    in_window = (
        token_row // window * across + token_col // window
    )  # [n] window number of each patch
    size = torch.bincount(in_window)  # [n_windows]
    order = torch.argsort(in_window - size[in_window] * len(size), stable=True)
    frequency = 10000.0 ** (-torch.arange(0, head_dim // 2, 2) / (head_dim // 2))
    angle = torch.cat([row[order, None] * frequency, col[order, None] * frequency], -1).repeat(
        1, 2
    )[:, None]
    windows = tuple((int((size == s).sum()), s) for s in sorted(set(size.tolist()), reverse=True))
    return *(
        t.to(device) for t in (order, torch.argsort(order[:: MERGE**2]), angle.cos(), angle.sin())
    ), windows


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in float32, as upstream. x [B, n, heads, head_dim], cos and sin [n, 1, head_dim]."""
    half = x.float()
    left, right = half.chunk(2, -1)
    return (half * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def block(
    layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor, windows: tuple[tuple[int, int], ...]
) -> Tensor:
    """One layer of the tower. x [B, n, hidden]; attention stays within each of `windows`, see _tables."""
    B, n, _ = x.shape
    q, k, v = (
        layer.attn.qkv(layer.norm1(x)).view(B, n, 3, layer.attn.num_heads, -1).unbind(2)
    )  # [B, n, heads, d]
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    sizes = [count * length for count, length in windows]
    parts = []
    for (count, length), *qkv in zip(windows, *(t.split(sizes, 1) for t in (q, k, v))):
        qkv = (
            t.unflatten(1, (count, length)).flatten(0, 1).transpose(1, 2) for t in qkv
        )  # [B * count, heads, length, d]
        parts.append(
            F.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(B, count * length, -1)
        )
    x = x + layer.attn.proj(torch.cat(parts, 1))
    return x + layer.mlp(layer.norm2(x))


def vision_features(tower: nn.Module, pixels: Tensor, grid: tuple[int, int], block=block) -> Tensor:
    """Features of B screenshots of one grid.

    tower: Qwen2_5_VisionTransformerPretrainedModel; pixels [B, n, 1176]; block: the function above, or it compiled.
    Returns [B, n / 4, hidden size of the language model], tokens in reading order.
    """
    config, weight = tower.config, tower.patch_embed.proj.weight
    order, back, cos, sin, windows = _tables(
        grid, config.window_size // FACTOR, config.hidden_size // config.num_heads, pixels.device
    )
    B, n, _ = pixels.shape
    x = F.linear(pixels.to(weight.dtype), weight.flatten(1))[:, order]  # [B, n, hidden]
    for number, layer in enumerate(tower.blocks):
        x = block(
            layer, x, cos, sin, ((1, n),) if number in config.fullatt_block_indexes else windows
        )
    return tower.merger(x.reshape(B * n, -1)).view(B, n // MERGE**2, -1)[:, back]
