"""Screenshots to vision features: Qwen2.5-VL's own weights, run in a batch.

The tower in transformers computes window indices and rotary angles for each image in Python and
attends to its windows one by one in a loop. Both depend on the image's grid alone, and all
screenshots of a run share one grid. Here the tables are cached per grid, and all windows of one
size go through one attention call: the whole windows, and those cut off at the right and lower
edges. Nothing is padded, masked or gathered, and nothing waits for the GPU until the last layer
is under way. The numbers are the same (tests/method/test_policy.py), several times faster.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections import OrderedDict
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from jhima.coordinates import FACTOR, MERGE, PATCH, smart_resize

# CLIP's statistics, as the checkpoints expect.
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


class Features(NamedTuple):
    """Vision features of one image."""

    states: Tensor  # [tokens, width]
    grid: tuple[int, int]  # rows and columns of patches


class FeatureCache:
    """Features of images that may come again, by `image_key`. When full, the oldest are dropped."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of states to hold at most."""
        self.limit = limit
        self.size = 0
        self._features: OrderedDict[bytes, Features] = OrderedDict()

    def __len__(self) -> int:
        return len(self._features)

    def get(self, key: bytes) -> Features | None:
        return self._features.get(key)

    def add(self, key: bytes, features: Features) -> None:
        if key in self._features or features.states.nbytes > self.limit:
            return
        states = features.states.clone()  # a view would keep its whole batch alive
        self._features[key] = Features(states, features.grid)
        self.size += states.nbytes
        while self.size > self.limit:
            _, oldest = self._features.popitem(last=False)
            self.size -= oldest.states.nbytes

    def clear(self) -> None:
        self._features.clear()
        self.size = 0


def image_key(image: bytes) -> bytes:
    """The digest that identifies a screenshot in the feature cache and in vLLM's prefix cache."""
    return hashlib.blake2b(image, digest_size=16).digest()


# A picture is decoded again for each question about it, by other passes and by prefetched batches:
# at 336x336, 256 pictures take 90 MB.
@lru_cache(maxsize=256)
def decode(png: bytes) -> Tensor:
    """A screenshot as pixels [H, W, 3] (uint8), resized once to the model's grid.

    So Hugging Face and vLLM, whose own resize then has nothing left to do, see the same pixels.
    Raises PIL.UnidentifiedImageError for bytes that are no image.
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
    """Pixels [B, H, W, 3] (uint8) as Qwen2.5-VL's patches [B, n, 1176], token by token.

    Equals Qwen2VLImageProcessor.
    """
    B, H, W, _ = pixels.shape
    mean, std = _statistics(pixels.device)
    x = (pixels.float() / 255 - mean) / std  # [B, H, W, 3]
    x = x.view(B, H // FACTOR, MERGE, PATCH, W // FACTOR, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # [B, R/2, C/2, 2, 2, 3, 14, 14]
    x = x.unsqueeze(6).expand(*x.shape[:6], 2, PATCH, PATCH)  # a still image fills both frames
    return x.reshape(B, H * W // PATCH**2, -1)


class _Tables(NamedTuple):
    """What depends on an image's grid alone: the order in which the tower computes n patches.

    Patches are sorted by window, larger windows first; the four of a token stay together.
    """

    order: Tensor  # [n] patches in that order
    back: Tensor  # [n / 4] where each token, in reading order, stands in that order
    cos: Tensor  # [n, 1, head_dim] rotary angles, in that order
    sin: Tensor
    windows: tuple[tuple[int, int], ...]  # (number of windows, patches in each), in that order


@lru_cache(maxsize=16)
def _tables(grid: tuple[int, int], window: int, head_dim: int, device: torch.device) -> _Tables:
    rows, columns = grid
    n = rows * columns
    token = torch.arange(n) // MERGE**2  # patches come token by token
    token_row, token_col = token // (columns // MERGE), token % (columns // MERGE)
    row = token_row * MERGE + torch.arange(n) % MERGE**2 // MERGE
    col = token_col * MERGE + torch.arange(n) % MERGE
    across = math.ceil(columns / MERGE / window)  # windows side by side
    window_of = token_row // window * across + token_col // window  # [n]
    size = torch.bincount(window_of)  # [windows]
    order = torch.argsort(window_of - size[window_of] * len(size), stable=True)
    back = torch.argsort(order[:: MERGE**2])
    frequency = 10000.0 ** (-torch.arange(0, head_dim // 2, 2) / (head_dim // 2))
    angle = torch.cat([row[order, None] * frequency, col[order, None] * frequency], -1)
    angle = angle.repeat(1, 2)[:, None]  # [n, 1, head_dim]
    sizes = sorted(set(size.tolist()), reverse=True)
    windows = tuple((int((size == s).sum()), s) for s in sizes)
    tensors = [t.to(device) for t in (order, back, angle.cos(), angle.sin())]
    return _Tables(*tensors, windows)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in float32, as upstream.

    x [B, n, heads, head_dim]; cos and sin [n, 1, head_dim].
    """
    half = x.float()
    left, right = half.chunk(2, -1)
    return (half * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def block(
    layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor, windows: tuple[tuple[int, int], ...]
) -> Tensor:
    """One layer of the tower. x [B, n, hidden]; attention stays within each window, see _Tables."""
    B, n, _ = x.shape
    qkv = layer.attn.qkv(layer.norm1(x)).view(B, n, 3, layer.attn.num_heads, -1)
    q, k, v = qkv.unbind(2)  # [B, n, heads, d]
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    attended = []
    start = 0
    for count, length in windows:
        end = start + count * length
        q_, k_, v_ = (_by_window(t[:, start:end], count, length) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q_, k_, v_)  # [B * count, heads, length, d]
        attended.append(out.transpose(1, 2).reshape(B, count * length, -1))
        start = end
    x = x + layer.attn.proj(torch.cat(attended, 1))
    return x + layer.mlp(layer.norm2(x))


def _by_window(x: Tensor, count: int, length: int) -> Tensor:
    """[B, count * length, heads, d] as [B * count, heads, length, d]."""
    return x.unflatten(1, (count, length)).flatten(0, 1).transpose(1, 2)


def vision_features(tower: nn.Module, pixels: Tensor, grid: tuple[int, int], block=block) -> Tensor:
    """Features of B screenshots of one grid.

    tower: Qwen2_5_VisionTransformerPretrainedModel. pixels: [B, n, 1176]. block: the function
    above, or a compiled one. Returns [B, n / 4, hidden size of the language model], tokens in
    reading order.
    """
    config, weight = tower.config, tower.patch_embed.proj.weight
    window, head_dim = config.window_size // FACTOR, config.hidden_size // config.num_heads
    tables = _tables(grid, window, head_dim, pixels.device)
    B, n, _ = pixels.shape
    x = F.linear(pixels.to(weight.dtype), weight.flatten(1))[:, tables.order]  # [B, n, hidden]
    for number, layer in enumerate(tower.blocks):
        windows = tables.windows
        if number in config.fullatt_block_indexes:
            windows = ((1, n),)
        x = block(layer, x, tables.cos, tables.sin, windows)
    return tower.merger(x.reshape(B * n, -1)).view(B, n // MERGE**2, -1)[:, tables.back]
