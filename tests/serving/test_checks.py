"""What a sampler cannot do is said in one line, before a model is loaded or vLLM is imported."""

from __future__ import annotations

import doctest
from dataclasses import dataclass

import pytest

from jhima.sampler import SamplerOptions
from jhima.serving import checks
from jhima.serving.checks import check_sampler, served_rank

FITS = {"sampler": "vllm", "kv_gib": 0.1, "temperature": 0.8, "lora_rank": 32}


@dataclass
class Options(SamplerOptions):
    plan_tokens: int = 512
    action_tokens: int = 256


def check(checkpoint, temperature: float, lora_rank: int | None, **options) -> None:
    check_sampler(Options(**options), temperature, str(checkpoint), lora_rank)


def test_worked_examples():
    assert doctest.testmod(checks).failed == 0


@pytest.mark.parametrize("rank, served", [(1, 8), (8, 8), (9, 16), (129, 256), (512, 512)])
def test_any_rank_is_served_by_the_next_size(rank, served):
    assert served_rank(rank) == served


@pytest.mark.parametrize(
    "change, message",
    [
        ({"lora_rank": 513}, "--lora-rank 513: vLLM serves adapters of rank 512 at most"),
        ({"lora_rank": 0}, "--lora-rank: expected at least 1, got 0"),
        ({"temperature": 2.5}, "--temperature: vLLM takes 0 or 0.01 to 2, got 2.5"),
        ({"temperature": 0.001}, "--temperature: vLLM takes 0 or 0.01 to 2, got 0.001"),
        ({"temperature": float("nan")}, "--temperature: expected a finite number"),
        ({"temperature": -1.0}, "--temperature: expected a finite number"),
        ({"kv_gib": 0.001}, "--kv-gib 0.001: keys and values of one longest prompt"),
        ({"kv_gib": float("nan")}, "--kv-gib nan: "),
        ({"plan_tokens": 8000}, "--plan-tokens 8000: beside a picture of up to 2691 tokens"),
        ({"action_tokens": 0}, "--action-tokens: expected at least 1, got 0"),
        ({"sampler_batch": 0}, "--sampler-batch: expected at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_one_line(checkpoint, monkeypatch, change, message):
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    with pytest.raises(ValueError) as refused:
        check(checkpoint, **(FITS | change))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_what_fits_passes(checkpoint, monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    for change in ({}, {"temperature": 0.0}, {"temperature": 2.0}, {"lora_rank": 24}):
        check(checkpoint, **(FITS | change))
    # The local sampler has no such limits.
    check(checkpoint, **(FITS | {"sampler": "local", "temperature": 9.0, "lora_rank": 600}))


def test_vllm_that_is_not_installed_is_said(checkpoint, monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="vLLM is not installed"):
        check(checkpoint, **FITS)
