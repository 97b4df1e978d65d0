"""Screenshots to vision features: Qwen2.5-VL's own weights, run in a batch.

The tower in transformers computes window indices and rotary angles for each image in Python and attends window by
window in a loop. Both depend on the image grid alone, and all screenshots of a run share one grid: here the tables
are cached per grid, and the windows of all images go through one attention call. Same numbers
(tests/test_policy.py), several times faster on small models.
"""
from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from .grid import FACTOR, MAX_PIXELS, MERGE, MIN_PIXELS, PATCH, smart_resize  # noqa: F401

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)   # CLIP's statistics, as the checkpoints expect
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


@lru_cache(maxsize=256)     # a picture's questions, passes and prefetched batches meet it again: 90 MB at 336x336
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


def patchify(pixels: Tensor) -> Tensor:
    """Pixels [B, H, W, 3] (uint8) as Qwen2.5-VL's patches [B, n, 1176], token by token. Equals Qwen2VLImageProcessor."""
    B, H, W, _ = pixels.shape
    mean, std = (torch.tensor(v, device=pixels.device) for v in (MEAN, STD))
    x = (pixels.float() / 255 - mean) / std                                 # [B, H, W, 3]
    x = x.view(B, H // FACTOR, MERGE, PATCH, W // FACTOR, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)                                   # [B, R/2, C/2, 2, 2, 3, 14, 14]
    x = x.unsqueeze(6).expand(*x.shape[:6], 2, PATCH, PATCH)                # a still image fills both frames
    return x.reshape(B, H * W // PATCH**2, -1)


@lru_cache(maxsize=16)
def _tables(grid: tuple[int, int], window: int, head_dim: int, device: torch.device) -> tuple[Tensor, ...]:
    """What depends on the grid alone.

    order [n]: patches sorted by window, the four of a token together; angle [n, head_dim]: rotary angles in that order;
    slots [n_windows, longest]: for each window its patches' positions in `order` (padded by repeating position 0);
    real [n_windows, longest]: which of them count.
    """
    rows, columns = grid
    n = rows * columns
    token = torch.arange(n) // MERGE**2                                     # patches come token by token
    token_row, token_col = token // (columns // MERGE), token % (columns // MERGE)
    row = token_row * MERGE + torch.arange(n) % MERGE**2 // MERGE
    col = token_col * MERGE + torch.arange(n) % MERGE
    across = math.ceil(columns / MERGE / window)                            # windows side by side
    in_window = token_row // window * across + token_col // window          # [n] window number of each patch
    order = torch.argsort(in_window, stable=True)
    sizes = torch.bincount(in_window)
    real = torch.arange(int(sizes.max())) < sizes[:, None]                  # [n_windows, longest]
    slots = torch.zeros(real.shape, dtype=torch.long)
    slots[real] = torch.arange(n)
    frequency = 10000.0 ** (-torch.arange(0, head_dim // 2, 2) / (head_dim // 2))
    angle = torch.cat([row[order, None] * frequency, col[order, None] * frequency], -1)   # [n, head_dim / 2]
    return tuple(t.to(device) for t in (order, torch.cat([angle, angle], -1), slots, real))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in float32, as upstream. x [B, n, heads, head_dim], cos and sin [n, 1, head_dim]."""
    half = x.float()
    left, right = half.chunk(2, -1)
    return (half * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def vision_features(tower: nn.Module, pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Features of B screenshots of one grid.

    tower: Qwen2_5_VisionTransformerPretrainedModel; pixels [B, n, 1176]; returns [B, n / 4, hidden size of the
    language model], tokens in reading order.
    """
    config, weight = tower.config, tower.patch_embed.proj.weight
    heads = config.num_heads
    head_dim = config.hidden_size // heads
    window = config.window_size // FACTOR                                   # tokens a side
    order, angle, slots, real = _tables(grid, window, head_dim, pixels.device)
    B, n = pixels.shape[:2]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    whole_windows = bool(real.all())

    x = F.linear(pixels.to(weight.dtype), weight.flatten(1))[:, order]      # [B, n, hidden]
    for number, layer in enumerate(tower.blocks):
        qkv = layer.attn.qkv(layer.norm1(x)).view(B, n, 3, heads, head_dim)
        q, k, v = qkv.unbind(2)                                             # [B, n, heads, head_dim]
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if number in config.fullatt_block_indexes:
            y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
        else:
            q, k, v = (t[:, slots].flatten(0, 1).transpose(1, 2) for t in (q, k, v))      # [B * windows, heads, longest, d]
            mask = None if whole_windows else real.repeat(B, 1)[:, None, None]            # [B * windows, 1, 1, longest]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            y = y.transpose(1, 2).unflatten(0, (B, -1))[:, real]                          # [B, n, heads, head_dim]
        x = x + layer.attn.proj(y.reshape(B, n, -1))
        x = x + layer.mlp(layer.norm2(x))
    merged = tower.merger(x.reshape(B * n, -1)).view(B, n // MERGE**2, -1)
    return merged[:, torch.argsort(order[::MERGE**2])]                       # back to reading order
