"""Qwen2.5-VL's positions: image placeholders expanded, and multimodal rotary positions (M-RoPE)."""

from __future__ import annotations

import torch
from torch import Tensor

from jhima.coordinates import FACTOR, MERGE

MAX_CONTEXT = 8192  # whatever the model: a vLLM engine reserves memory for it


def expand(prompt_ids: list[int], image_pad: int, tokens: int) -> list[int]:
    """Collapsed ids to expanded ones: the image placeholder repeated once per vision token.

    Raises ValueError unless there is exactly one placeholder: expanding twice is the classic
    silent bug.

    >>> expand([1, 9, 2], image_pad=9, tokens=3)
    [1, 9, 9, 9, 2]
    """
    count = prompt_ids.count(image_pad)
    if count != 1:
        raise ValueError(f"expected one image placeholder in a collapsed prompt, found {count}")
    start = prompt_ids.index(image_pad)
    return prompt_ids[:start] + [image_pad] * tokens + prompt_ids[start + 1 :]


def context(config) -> int:
    """Tokens of prompt and reply that a model (its transformers config) can have, at most."""
    return min(MAX_CONTEXT, config.get_text_config().max_position_embeddings)


def room(prompt_ids: list[int], pixels: Tensor, context: int) -> int:
    """Tokens that a reply to a collapsed prompt with a picture [H, W, 3] can have, at most."""
    height, width, _ = pixels.shape
    return context - (len(prompt_ids) - 1 + width * height // FACTOR**2)


def mrope_positions(ids: Tensor, image_pad: int, grids: list[tuple[int, int]]) -> Tensor:
    """Qwen2.5-VL's positions (time, row, column) [3, L] of one expanded sequence [L].

    grids: (rows, columns) of patches of each image in the sequence. Text counts up in all three.
    An image's tokens share its starting time and count rows and columns from there; the text after
    it continues from the largest of these.

    >>> mrope_positions(torch.tensor([9, 5, 9, 9, 7]), image_pad=9, grids=[(2, 2), (2, 4)]).tolist()
    [[0, 1, 2, 2, 4], [0, 1, 2, 2, 4], [0, 1, 2, 3, 4]]
    """
    images = (ids == image_pad).nonzero()[:, 0].tolist()  # indices of all image tokens
    parts: list[Tensor] = []
    done = 0  # ids that have a position
    position = 0  # the next one
    for rows, columns in grids:
        rows, columns = rows // MERGE, columns // MERGE
        text = images[0] - done
        parts.append(torch.arange(position, position + text).repeat(3, 1))
        position += text
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        parts.append(position + torch.stack([torch.zeros_like(row), row, column]))
        position += max(rows, columns)
        done += text + rows * columns
        images = images[rows * columns :]
    parts.append(torch.arange(position, position + len(ids) - done).repeat(3, 1))
    return torch.cat(parts, 1)
