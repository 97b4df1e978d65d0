"""Packing against transformers' own forward: positions, log-probs, gradients.

No sample sees another.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from samples import screenshot

from jhima.models.positions import mrope_positions
from jhima.models.vision import decode, patchify
from jhima.policy import load_policy
from jhima.training.packing import (
    Example,
    PackedPolicy,
    Picture,
    pack,
    packed_attention,
)

SIZES = [(84, 56), (56, 56), (140, 84), (112, 168)]


def picture(seed: int) -> Picture:
    data = screenshot(seed, *SIZES[seed % 4])
    return Picture(hashlib.blake2b(data).digest(), decode(data))


def examples(policy, count: int = 6) -> list[Example]:
    """Conversations with 0, 1 or 2 images and one or two replies, of different lengths."""
    rng, found = np.random.default_rng(3), []
    for i in range(count):
        ids, learn = [], []
        for turn in range(1 + i % 2):
            human = policy.text_ids("Open the Zoo " * int(rng.integers(1, 9)))
            images = (
                [policy.vision_start, policy.image_pad, policy.vision_end] * (i % 3)
                if turn == 0
                else []
            )
            reply = policy.response_ids("Click Zoo " * int(rng.integers(1, 6)))
            ids += images + human + reply
            learn += [False] * len(images + human) + [True] * len(reply)
        found.append(Example(ids, learn, [picture(i + k) for k in range(i % 3)]))
    return found


def stock(policy, example: Example) -> torch.Tensor:
    """log-probs of an example's learned tokens by transformers' own forward, unpacked."""
    ids = pack([example], policy.image_pad).ids[None]
    learned = torch.tensor(
        [keep for i, keep in zip(example.ids, example.learn) if i != policy.image_pad]
    )
    more = {}
    if example.pictures:
        more = {
            "pixel_values": torch.cat([patchify(p.pixels[None])[0] for p in example.pictures]),
            "image_grid_thw": torch.tensor([[1, *p.grid] for p in example.pictures]),
        }
    image = ids == policy.image_pad
    logits = policy.base(
        input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=image.int(), **more
    ).logits
    keep = torch.zeros_like(ids, dtype=torch.bool)
    keep[~image] = learned
    at = keep[0].nonzero()[:, 0]
    logp = logits[0, at - 1].masked_fill(policy.forbidden, float("-inf")).log_softmax(-1)
    return logp.gather(-1, ids[0, at][:, None])[:, 0]


@pytest.mark.parametrize(
    "tune_vision, checkpointing", [(False, False), (True, False), (False, True)]
)
def test_packed_equals_unpacked(checkpoint, tune_vision, checkpointing):
    """Loss and gradients of 6 samples in one pack, against one forward each of the stock model."""
    policy = load_policy(checkpoint, "cpu", torch.float32, tune_vision=tune_vision)
    parts = examples(policy)
    expected = torch.cat([stock(policy, example) for example in parts])
    packed = PackedPolicy(
        policy, cache_bytes=1 << 30
    )  # from here on its attention is the packed one
    if checkpointing:
        policy.base.gradient_checkpointing_enable()
        packed.train()
    trained = [(name, p) for name, p in policy.base.named_parameters() if p.requires_grad]
    names = " ".join(name for name, _ in trained)
    assert "visual.merger" in names and ("visual.blocks" in names) == tune_vision
    gradients = torch.autograd.grad(expected.mean(), [p for _, p in trained], allow_unused=True)
    for _ in range(2):  # the second time from the cache
        found, hit = packed(pack(parts, policy.image_pad), tower_calls=9)
        assert (found - expected).abs().max() < 1e-5 and hit.shape == found.shape
        again = torch.autograd.grad(found.mean(), [p for _, p in trained], allow_unused=True)
        for (name, _), a, b in zip(trained, again, gradients):
            assert (a - b).abs().max() < 1e-5 * max(1, b.abs().max()), name
    assert bool(packed.feature_cache) != tune_vision


@pytest.mark.parametrize(
    "device, dtype, tolerance",
    [
        ("cpu", torch.float32, 1e-5),
        pytest.param(
            "cuda",
            torch.bfloat16,
            1e-2,
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)
def test_attention_equals_the_formula(device, dtype, tolerance):
    """Both kernels and their gradients against softmax(q k' / sqrt(d) + mask) v written out.

    6 heads of queries share 2 of keys and values.
    """
    rng, lengths, d = torch.Generator().manual_seed(0), [30, 1, 47], 64
    shapes = [(1, 6, 78, d), (1, 2, 78, d), (1, 2, 78, d)]
    weight = torch.randn(1, 78, 6, d, generator=rng)
    q, k, v = inputs = [
        torch.randn(s, generator=rng).to(dtype).float().requires_grad_() for s in shapes
    ]  # rounded alike
    example = torch.arange(3).repeat_interleave(torch.tensor(lengths))
    seen = (example[:, None] == example) & torch.ones(78, 78, dtype=torch.bool).tril()
    scores = (q @ k.repeat_interleave(3, 1).mT / d**0.5).masked_fill(~seen, float("-inf"))
    expected = (scores.softmax(-1) @ v.repeat_interleave(3, 1)).transpose(1, 2)
    ours = [t.detach().to(device, dtype).requires_grad_() for t in inputs]
    found, _ = packed_attention(None, *ours, None, d**-0.5, lengths)
    for a, b in zip(
        [found, *torch.autograd.grad(found, ours, weight.to(found))],
        [expected, *torch.autograd.grad(expected, inputs, weight)],
    ):
        assert float(((a.cpu().float() - b).norm() / b.norm()).detach()) < tolerance


def test_no_sample_sees_another(checkpoint):
    """Changing one sample changes its own log-probs and nobody else's, to the last bit."""
    policy = load_policy(checkpoint, "cpu", torch.float32)
    packed, parts = PackedPolicy(policy), examples(policy)
    counts = [sum(e.learn) for e in parts]
    with torch.no_grad():
        before = packed(pack(parts, policy.image_pad))[0].split(counts)
        first = policy.text_ids("Bank")[0]
        parts[2] = Example(
            [*parts[2].ids[:-9], first, *parts[2].ids[-8:]],
            parts[2].learn,
            [picture(9), picture(10)],
        )
        after = packed(pack(parts, policy.image_pad))[0].split(counts)
    assert [bool((a == b).all()) for a, b in zip(before, after)] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("images", [0, 1, 2, 3, 9])
def test_positions_equal_transformers(policy, images):
    rng = np.random.default_rng(images)
    pad, ids, grids = policy.image_pad, [1, 2], []
    for _ in range(images):
        grids.append((2 * int(rng.integers(1, 9)), 2 * int(rng.integers(1, 9))))
        ids += [pad] * (grids[-1][0] * grids[-1][1] // 4) + [5] * int(rng.integers(1, 20))
    ids = torch.tensor(ids)
    theirs, _ = policy.base.model.get_rope_index(
        ids[None],
        mm_token_type_ids=(ids == pad)[None].int(),
        image_grid_thw=torch.tensor([[1, *g] for g in grids]) if grids else None,
    )
    assert torch.equal(mrope_positions(ids, pad, grids), theirs[:, 0])


def test_a_placeholder_without_its_image_is_an_error(policy):
    with pytest.raises(ValueError, match="2 placeholders for 1 images"):
        pack([Example([policy.image_pad] * 2, [False] * 2, [picture(0)])], policy.image_pad)
