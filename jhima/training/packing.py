"""Sequence packing: samples laid end to end in one sequence, each with its own positions, none seeing another.

No padding is computed, and a pack's log-probs and gradients are those of its samples alone (tests/training/test_packing.py).
Data workers build packs (`pack`: pixels decoded, ids expanded, M-RoPE positions, targets); `PackedPolicy` runs them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from jhima.coordinates import MERGE, PATCH
from jhima.models.vision import patchify, vision_features
from jhima.policy import Policy


@dataclass(frozen=True)
class Picture:
    """A decoded image: pixels [H, W, 3] (uint8) on the model's grid, and a digest of its file."""

    key: bytes
    pixels: Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.pixels.shape[0] // PATCH, self.pixels.shape[1] // PATCH

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1] // MERGE**2


@dataclass(frozen=True)
class Example:
    """A conversation to learn from: collapsed ids (one placeholder an image), which of them to learn, its images."""

    ids: list[int]
    learn: list[bool]
    pictures: list[Picture]

    def __len__(self) -> int:
        """Tokens, as the model reads them."""
        return len(self.ids) + sum(p.tokens - 1 for p in self.pictures)


@dataclass(frozen=True)
class Pack:
    """Examples as one sequence of L tokens with n targets. The state at `at[i]` predicts `target[i]`."""

    ids: Tensor  # [L]
    positions: Tensor  # [3, L]
    lengths: list[int]  # of each example; they sum to L
    at: Tensor  # [n]
    target: Tensor  # [n]
    pictures: list[Picture]


def pack(examples: list[Example], image_pad: int) -> Pack:
    """Lays examples end to end. Raises ValueError where placeholders and images of one do not match."""
    ids, positions, lengths, at = [], [], [], []
    for example in examples:
        if example.ids.count(image_pad) != len(example.pictures):
            raise ValueError(
                f"{example.ids.count(image_pad)} placeholders for {len(example.pictures)} images"
            )
        pictures = iter(example.pictures)
        repeat = torch.tensor([next(pictures).tokens if i == image_pad else 1 for i in example.ids])
        expanded = torch.tensor(example.ids).repeat_interleave(repeat)
        learned = torch.tensor(example.learn).repeat_interleave(repeat).nonzero()[:, 0]
        at.append(learned - 1 + sum(lengths))
        ids.append(expanded)
        positions.append(mrope_positions(expanded, image_pad, [p.grid for p in example.pictures]))
        lengths.append(len(expanded))
    whole, place = torch.cat(ids), torch.cat(at)
    return Pack(
        whole,
        torch.cat(positions, 1),
        lengths,
        place,
        whole[place + 1],
        [p for example in examples for p in example.pictures],
    )


def mrope_positions(ids: Tensor, image_pad: int, grids: list[tuple[int, int]]) -> Tensor:
    """Qwen2.5-VL's positions (time, row, column) [3, L] of one expanded sequence [L] with images of `grids` patches.

    As policy.mrope_positions, for any number of images: text counts up in all three, an image's tokens share its
    starting time and count rows and columns from there, and what follows goes on from the largest of these.

    >>> mrope_positions(torch.tensor([9, 5, 9, 9, 7]), image_pad=9, grids=[(2, 2), (2, 4)]).tolist()
    [[0, 1, 2, 2, 4], [0, 1, 2, 2, 4], [0, 1, 2, 3, 4]]
    """
    parts, at, position = [], 0, 0
    places = (ids == image_pad).nonzero()[:, 0].tolist()
    seen = 0
    for rows, columns in grids:
        rows, columns = rows // MERGE, columns // MERGE
        text = places[seen] - at
        parts.append(torch.arange(position, position + text).repeat(3, 1))
        position += text
        row, column = (
            torch.arange(rows).repeat_interleave(columns),
            torch.arange(columns).repeat(rows),
        )
        parts.append(position + torch.stack([torch.zeros_like(row), row, column]))
        position += max(rows, columns)
        at, seen = places[seen] + rows * columns, seen + rows * columns
    parts.append(torch.arange(position, position + len(ids) - at).repeat(3, 1))
    return torch.cat(parts, 1)


# ---- attention inside each example ----


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    lengths: list[int],
    dropout: float = 0.0,
    **_,
) -> tuple[Tensor, None]:
    """Causal attention of each of a pack's examples on itself, as transformers calls it.

    query [1, heads, L, d]; key, value [1, kv heads, L, d]; returns [1, L, heads, d]. In bf16 on a GPU one
    variable-length kernel, elsewhere a call an example.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (
        t.repeat_interleave(groups, 1) for t in (key, value)
    )  # [1, heads, L, d]; torch 2.11's kernel has no GQA
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        ends = torch.tensor([0, *lengths], device=query.device).cumsum(0).int()
        q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))  # [L, heads, d]
        return varlen_attn(
            q, k, v, ends, ends, max(lengths), max(lengths), scale=scaling, window_size=(-1, 0)
        )[None], None
    parts = [
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
        for q, k, v in zip(*(t.split(lengths, 2) for t in (query, key, value)))
    ]
    return torch.cat(parts, 2).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(
    "packed", packed_attention
)  # without a mask function: transformers builds no mask


class PackedPolicy(nn.Module):
    """A policy's parts that train on packs: language model, head and the projector behind the vision tower.

    A frozen tower is no submodule, so that ZeRO-3 leaves it whole on every rank: ranks meet new images at different
    times, and a partitioned tower would have each of them wait for the others. Its output is kept for images that come
    again (cache_bytes). An image is encoded on its own, so that the numbers do not depend on what it meets in a batch:
    a run that is resumed gives the same ones.
    """

    def __init__(self, policy: Policy, cache_bytes: int = 0) -> None:
        super().__init__()
        visual, self.tune_vision = policy.base.model.visual, policy.tune_vision
        visual.requires_grad_(policy.tune_vision)
        visual.merger.requires_grad_(True)
        self.decoder, self.head, self.projector = (
            policy.base.model.language_model,
            policy.base.lm_head,
            visual.merger,
        )
        self.decoder.config._attn_implementation = "packed"
        if policy.tune_vision:
            self.patches, self.blocks = visual.patch_embed, visual.blocks
        # vision_features with nothing behind the tower: a token's four patches side by side
        self.tower = SimpleNamespace(
            config=visual.config,
            patch_embed=visual.patch_embed,
            blocks=visual.blocks,
            merger=nn.Identity(),
        )
        self.image_pad, self.width = policy.image_pad, visual.config.hidden_size
        self.register_buffer("forbidden", policy.forbidden, persistent=False)
        self._cache: OrderedDict[bytes, Tensor] = OrderedDict()
        self._cache_left = cache_bytes

    def forward(self, pack: Pack, tower_calls: int = 0) -> tuple[Tensor, Tensor]:
        """log pi of each of a pack's targets [n], and whether it was the likeliest token [n].

        tower_calls: with a trained tower, how often every rank is to run it at least (ZeRO-3 gathers it each time).
        """
        device = self.forbidden.device
        ids = pack.ids.to(device)
        embeds = self.decoder.embed_tokens(ids)  # [L, H]
        states = [self.encode(picture) for picture in pack.pictures]
        blank = Picture(b"", torch.zeros(2 * PATCH, 2 * PATCH, 3, dtype=torch.uint8))
        unused = (
            [self.encode(blank) for _ in range(tower_calls - len(states))]
            if self.tune_vision
            else []
        )
        # Without an image the projector still runs, at weight zero: every rank must gather the same parameters.
        states = torch.cat(
            [*states, *unused] or [torch.zeros(1, MERGE**2 * self.width, device=device)]
        )
        features = self.projector(states.to(embeds.dtype).view(-1, self.width))  # [tokens, H]
        image = (ids == self.image_pad).nonzero()[:, 0]  # [tokens of images]
        embeds = (
            embeds.index_put((image,), features[: len(image)].to(embeds.dtype))
            + features[len(image) :].sum() * 0.0
        )
        hidden = self.decoder(
            inputs_embeds=embeds[None],
            position_ids=pack.positions[:, None].to(device),
            use_cache=False,
            lengths=pack.lengths,
        ).last_hidden_state[0]  # [L, H]
        logits = (
            self.head(hidden[pack.at.to(device)]).float().masked_fill(self.forbidden, float("-inf"))
        )
        target = pack.target.to(device)
        return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0], logits.argmax(-1) == target

    def encode(self, picture: Picture) -> Tensor:
        """The tower's output for one image [tokens, 4 * its hidden size]."""
        if picture.key in self._cache:
            return self._cache[picture.key]
        with torch.set_grad_enabled(self.tune_vision and torch.is_grad_enabled()):
            patches = patchify(picture.pixels[None].to(self.forbidden.device))
            states = vision_features(self.tower, patches, picture.grid)[0]
        if not self.tune_vision and states.nbytes <= self._cache_left:
            self._cache[picture.key] = states
            self._cache_left -= states.nbytes
        return states
