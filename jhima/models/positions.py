"""Qwen2.5-VL's positions: image placeholders expanded, and multimodal rotary positions (M-RoPE)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from jhima.coordinates import MERGE


def expand(prompt_ids: list[int], image_pad: int, tokens: int) -> list[int]:
    """Collapsed ids to expanded ones: the image placeholder repeated once a vision token.

    Raises ValueError unless there is exactly one placeholder (expanding twice is the classic silent bug).

    >>> expand([1, 9, 2], image_pad=9, tokens=3)
    [1, 9, 9, 9, 2]
    """
    if prompt_ids.count(image_pad) != 1:
        raise ValueError(
            f"expected one image placeholder in a collapsed prompt, found {prompt_ids.count(image_pad)}"
        )
    at = prompt_ids.index(image_pad)
    return prompt_ids[:at] + [image_pad] * tokens + prompt_ids[at + 1 :]


def mrope_positions(ids: Tensor, image_pad: int, grid: tuple[int, int]) -> Tensor:
    """Qwen2.5-VL's positions (time, row, column) [3, L] of one expanded sequence [L] with one image of `grid` patches.

    Text counts up in all three. The image's tokens share its starting time and count rows and columns from there;
    the text after it goes on from the largest of these.

    >>> mrope_positions(torch.tensor([5, 9, 9, 9, 9, 9, 9, 7]), image_pad=9, grid=(4, 6)).tolist()
    [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]
    """
    return _positions(int((ids == image_pad).nonzero()[0]), len(ids), grid)


@lru_cache(maxsize=4096)  # they depend on lengths alone, which come again and again
def _positions(start: int, length: int, grid: tuple[int, int]) -> Tensor:
    rows, columns = grid[0] // MERGE, grid[1] // MERGE
    after = start + rows * columns
    positions = torch.arange(length).repeat(3, 1)  # [3, L]
    positions[0, start:after] = start
    positions[1, start:after] = start + torch.arange(rows).repeat_interleave(columns)
    positions[2, start:after] = start + torch.arange(columns).repeat(rows)
    positions[:, after:] += max(rows, columns) - rows * columns
    return positions
