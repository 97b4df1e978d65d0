"""On a GPU: memory that is free, and compiled layers where they pay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORTH = 500_000_000  # parameters: a small model's took 77 s to compile for 0.5 s of work


def why_uncompiled(language_model: nn.Module) -> str:
    """Why compiled layers would not pay for this model where it is; "" if they do."""
    if next(language_model.parameters()).device.type != "cuda":
        return "there is no GPU"
    size = sum(p.numel() for p in language_model.parameters())
    if size <= WORTH:
        return f"at {size / 1e6:,.0f} million parameters compiling takes longer than it saves"
    return ""


def compile_layers(layers: nn.ModuleList) -> None:
    """Compiles the decoder layers in place: one graph for all.

    The graph is for one sample at a time, which keeps a GPU busy where compiling pays at all;
    several at once run uncompiled. A compiled layer must keep its parameters' dtypes: torch does
    not notice that they change, and reads beyond them. cuDNN's attention is switched off because
    it plans anew for each length.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    for layer in layers:
        layer.forward = _compiled_for_one(layer.forward)


def _compiled_for_one(forward):
    """A decoder layer's forward, compiled for training on one sample: hidden [1, L, H].

    With a key-value cache (sampling) it runs as it is: the graph knows no cache.
    """
    compiled = torch.compile(forward, dynamic=True)

    def either(hidden: Tensor, *args, **kwargs):
        if len(hidden) == 1 and kwargs.get("past_key_values") is None:
            return compiled(hidden, *args, **kwargs)
        return forward(hidden, *args, **kwargs)

    return either


def free_memory() -> int:
    """Bytes of its GPU that this process can still have: unused ones, and those torch has kept."""
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + kept
