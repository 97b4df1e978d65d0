"""Sequence packing: samples laid end to end in one sequence, none of which sees another.

Each sample has positions of its own. No padding is computed, and a pack's log-probs and gradients
are those of its samples alone (tests/training/test_packing.py). Data workers build packs (`pack`:
ids expanded, M-RoPE positions, targets); `PackedPolicy` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from jhima.coordinates import MERGE, PATCH
from jhima.models.positions import mrope_positions
from jhima.models.vision import FeatureCache, Features, block, patchify, vision_features
from jhima.policy import Policy


@dataclass(frozen=True)
class Picture:
    """A decoded image: a digest of its file, and pixels [H, W, 3] (uint8) on the model's grid."""

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
    """A conversation to learn from."""

    ids: list[int]  # collapsed: one placeholder per image
    learn: list[bool]  # which of the ids are targets
    pictures: list[Picture]

    def __len__(self) -> int:
        """Tokens, as the model reads them."""
        return len(self.ids) + sum(picture.tokens - 1 for picture in self.pictures)


@dataclass(frozen=True)
class Pack:
    """Examples as one sequence of L tokens with n targets."""

    ids: Tensor  # [L]
    positions: Tensor  # [3, L]
    lengths: list[int]  # of each example; they sum to L
    before: Tensor  # [n] index of the token before each target: its state predicts the target
    target: Tensor  # [n]
    pictures: list[Picture]


def pack(examples: list[Example], image_pad: int) -> Pack:
    """Lays examples end to end.

    Raises ValueError where an example has other numbers of placeholders and of images.
    """
    ids, positions, before = [], [], []
    lengths: list[int] = []
    pictures: list[Picture] = []
    for example in examples:
        placeholders = example.ids.count(image_pad)
        if placeholders != len(example.pictures):
            raise ValueError(f"{placeholders} placeholders for {len(example.pictures)} images")
        collapsed = torch.tensor(example.ids)
        repeat = torch.ones_like(collapsed)  # of each id in the expanded sequence
        sizes = [picture.tokens for picture in example.pictures]
        repeat[collapsed == image_pad] = torch.tensor(sizes, dtype=torch.long)
        expanded = collapsed.repeat_interleave(repeat)
        learned = torch.tensor(example.learn).repeat_interleave(repeat).nonzero()[:, 0]
        grids = [picture.grid for picture in example.pictures]
        ids.append(expanded)
        positions.append(mrope_positions(expanded, image_pad, grids))
        before.append(learned - 1 + sum(lengths))
        lengths.append(len(expanded))
        pictures += example.pictures
    all_ids, all_before = torch.cat(ids), torch.cat(before)
    return Pack(
        ids=all_ids,
        positions=torch.cat(positions, 1),
        lengths=lengths,
        before=all_before,
        target=all_ids[all_before + 1],
        pictures=pictures,
    )


# ---- attention inside each example ----


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    lengths: list[int],
    **_,
) -> tuple[Tensor, None]:
    """Causal attention of each of a pack's examples to itself, with transformers' signature.

    query [1, heads, L, d]; key and value [1, kv heads, L, d]; returns [1, L, heads, d]. In bf16 on
    a GPU it is one variable-length kernel, elsewhere one call per example.
    """
    groups = query.shape[1] // key.shape[1]  # torch 2.11's kernel has no grouped-query attention
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        ends = torch.tensor([0, *lengths], device=query.device).cumsum(0).int()
        longest = max(lengths)
        q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))  # [L, heads, d]
        out = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=(-1, 0))
        return out[None], None
    parts = []
    split = [t.split(lengths, 2) for t in (query, key, value)]
    for q, k, v in zip(*split):  # [1, heads, length, d]
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2), None


# Registered without a mask function: transformers builds no mask.
ALL_ATTENTION_FUNCTIONS.register("packed", packed_attention)


class PackedPolicy(nn.Module):
    """The parts of a policy that train on packs: language model, head, the tower's projector.

    A frozen tower is no submodule, so that ZeRO-3 leaves it whole on every rank: ranks meet new
    images at different times, and a partitioned tower would make each of them wait for the others.
    cache_bytes: memory for a frozen tower's output on images that come again. An image is encoded
    on its own, so that the numbers do not depend on the images beside it in a batch: a resumed run
    gives the same ones.
    """

    def __init__(self, policy: Policy, cache_bytes: int = 0) -> None:
        super().__init__()
        visual = policy.base.model.visual
        visual.requires_grad_(policy.tune_vision)
        visual.merger.requires_grad_(True)
        self.decoder = policy.base.model.language_model
        self.decoder.config._attn_implementation = "packed"
        self.head = policy.base.lm_head
        self.projector = visual.merger
        self.tune_vision, self.block = policy.tune_vision, block
        if policy.tune_vision:
            self.patches, self.blocks = visual.patch_embed, visual.blocks
            # The 7B tower's activations for one screenshot of 1288x728 are 14 GB.
            self.block = partial(checkpoint, block, use_reentrant=False)
        # The tower without its projector: vision_features then returns a token's four patches side
        # by side.
        self.tower = SimpleNamespace(
            config=visual.config,
            patch_embed=visual.patch_embed,
            blocks=visual.blocks,
            merger=nn.Identity(),
        )
        self.image_pad, self.width = policy.image_pad, visual.config.hidden_size
        # What a rank runs that has no pack left: the end of a turn, twice.
        self.blank = pack([Example([policy.im_end] * 2, [False, True], [])], policy.image_pad)
        self.register_buffer("forbidden", policy.forbidden, persistent=False)
        self.feature_cache = FeatureCache(cache_bytes)

    def forward(self, pack: Pack, tower_calls: int = 0) -> tuple[Tensor, Tensor]:
        """log pi of each of a pack's targets [n], and whether it was the likeliest token [n].

        tower_calls: with a trained tower, how often every rank must run it at least: ZeRO-3 gathers
        its parameters each time.
        """
        device = self.forbidden.device
        ids = pack.ids.to(device)
        embeds = self.decoder.embed_tokens(ids)  # [L, H]
        states = [self.encode(picture) for picture in pack.pictures]
        if self.tune_vision:
            blank = Picture(b"", torch.zeros(2 * PATCH, 2 * PATCH, 3, dtype=torch.uint8))
            while len(states) < tower_calls:
                states.append(self.encode(blank))
        if not states:
            # The projector still runs, at weight zero: every rank must gather the same parameters.
            states = [torch.zeros(1, MERGE**2 * self.width, device=device)]
        patches = torch.cat(states).to(embeds.dtype).view(-1, self.width)
        features = self.projector(patches)  # [tokens, H]
        image = (ids == self.image_pad).nonzero()[:, 0]  # [tokens of the pack's images]
        used, unused = features[: len(image)], features[len(image) :]
        embeds = embeds.index_put((image,), used.to(embeds.dtype)) + unused.sum() * 0.0
        hidden = self.decoder(
            inputs_embeds=embeds[None],
            position_ids=pack.positions[:, None].to(device),
            use_cache=False,
            lengths=pack.lengths,
        ).last_hidden_state[0]  # [L, H]
        logits = self.head(hidden[pack.before.to(device)]).float()  # [n, V]
        logits = logits.masked_fill(self.forbidden, float("-inf"))
        target = pack.target.to(device)
        logp = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
        return logp, logits.argmax(-1) == target

    def encode(self, picture: Picture) -> Tensor:
        """The tower's output for one image [tokens, 4 * its hidden size]."""
        cached = self.feature_cache.get(picture.key)
        if cached is not None:
            return cached.states
        with torch.set_grad_enabled(self.tune_vision and torch.is_grad_enabled()):
            patches = patchify(picture.pixels[None].to(self.forbidden.device))
            states = vision_features(self.tower, patches, picture.grid, self.block)[0]
        if not self.tune_vision:
            self.feature_cache.add(picture.key, Features(states, picture.grid))
        return states
