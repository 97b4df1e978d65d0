"""Checkpoints as the hub has them, and adapters that know the weights they were trained on."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hub import PROCESSORS, copy_sharded, hub_folder, weights
from peft import AutoPeftModel
from safetensors.torch import load_file, save_file
from samples import ROOT, make_samples, randomize
from transformers import AutoImageProcessor

from jhima import grpo
from jhima.models.checkpoint_files import check_adapter, check_checkpoint, weights_digest
from jhima.models.vision import decode
from jhima.policy import Policy, load_policy, save_policy
from jhima.training.packing import Example, PackedPolicy, Picture, pack

BASE = ROOT / "jhima" / "pocket" / "base"
FILES = ("preprocessor_config.json", "processor_config.json")


def fine_tuning_step(policy: Policy) -> None:
    """One step of eq. 4 over a packed sample, all weights but the tower's."""
    packed = PackedPolicy(policy)
    before, after = make_samples(policy, 1)[0].prompt_ids, policy.response_ids("Open it")
    picture = Picture(b"", decode(make_samples(policy, 1)[0].image))
    example = Example(before + after, [False] * len(before) + [True] * len(after), [picture])
    optimizer = torch.optim.AdamW([p for p in packed.parameters() if p.requires_grad], lr=1e-2)
    logp, _ = packed(pack([example], policy.image_pad))
    (-logp.mean()).backward()
    optimizer.step()
    policy.base.model.language_model.config._attn_implementation = "sdpa"


def rl_step(policy: Policy) -> None:
    """One step of eqs. 7 and 10, of the adapter."""
    samples = make_samples(policy, 3)
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)
    logp = policy(samples, 0.8)
    advantages = [s.advantage for s in samples for _ in s.response_ids]
    grpo.policy_loss(logp, logp.detach(), torch.tensor(advantages), 10.0).backward()
    optimizer.step()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file, processor", list(zip(FILES, PROCESSORS)))
def test_a_hub_folder_loads_trains_saves_and_loads_again(tmp_path, tied, file, processor):
    hub = hub_folder(BASE, tmp_path / "hub", tied, processor, file)
    check_checkpoint(hub)
    policy = load_policy(hub, "cpu", torch.float32)
    assert len(policy.tokenizer) < policy.base.config.text_config.vocab_size
    assert policy.forbidden[len(policy.tokenizer) :].all()

    loaded = policy.base.state_dict()
    originals = weights(hub)
    for name, tensor in originals.items():
        ours = "model." + name if name.startswith("visual.") else name
        if ours.startswith("model.") and not ours.startswith("model.visual."):
            ours = "model.language_model." + ours.removeprefix("model.")
        assert torch.equal(loaded[ours], tensor.float()), name
    head, embedding = policy.base.lm_head.weight, policy.base.get_input_embeddings().weight
    assert (head.data_ptr() == embedding.data_ptr()) == tied
    assert len(loaded) == len(originals) + tied  # nothing was made up

    fine_tuning_step(policy)
    samples = make_samples(policy, 3)
    with torch.no_grad():
        expected = policy(samples)
    save_policy(policy, tmp_path / "tuned")
    check_checkpoint(tmp_path / "tuned")
    assert weights(tmp_path / "tuned").keys() == originals.keys()  # the hub's layout again
    assert (tmp_path / "tuned" / file).read_bytes() == (hub / file).read_bytes()
    assert AutoImageProcessor.from_pretrained(tmp_path / "tuned").patch_size == 14

    again = load_policy(tmp_path / "tuned", "cpu", torch.float32, lora=(4, 8))
    assert not torch.equal(again.base.get_input_embeddings().weight, loaded_embedding(hub))
    with torch.no_grad():
        assert torch.allclose(again(samples), expected, atol=1e-5)
    rl_step(again)
    with torch.no_grad():
        changed = again(samples)
    assert not torch.allclose(changed, expected, atol=1e-4)
    save_policy(again, tmp_path / "adapter")
    served = load_policy(tmp_path / "tuned", "cpu", torch.float32, adapter=tmp_path / "adapter")
    with torch.no_grad():
        assert torch.allclose(served(samples), changed, atol=1e-6)


def loaded_embedding(hub) -> torch.Tensor:
    return weights(hub)["model.embed_tokens.weight"].float()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter of the base, not zero."""
    folder = tmp_path_factory.mktemp("adapters") / "actor"
    policy = load_policy(BASE, "cpu", torch.float32, lora=(4, 8))
    randomize(policy, 3)
    save_policy(policy, folder)
    return folder


def test_peft_loads_an_adapter_by_itself(adapter):
    ours = load_policy(BASE, "cpu", torch.float32, adapter=adapter)
    model = AutoPeftModel.from_pretrained(adapter, dtype=torch.float32)
    assert type(model.get_base_model()).__name__ == "Qwen2_5_VLForConditionalGeneration"
    theirs = Policy(model, ours.tokenizer, ours.prompts)
    samples = make_samples(ours, 3)
    with torch.no_grad():
        assert torch.allclose(theirs(samples), ours(samples), atol=1e-6)
        plain = load_policy(BASE, "cpu", torch.float32)(samples)
    assert not torch.allclose(ours(samples), plain, atol=1e-2)


def test_an_adapter_knows_its_base_wherever_that_lies(adapter, tmp_path, capsys):
    moved = copy_sharded(BASE, tmp_path / "elsewhere")
    assert weights_digest(moved) == weights_digest(BASE)
    load_policy(moved, "cpu", torch.float32, adapter=adapter)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_an_adapter_of_other_weights_is_refused_in_one_line(adapter, tmp_path, changed):
    other = tmp_path / "other"
    shutil.copytree(BASE, other)
    tensors = load_file(other / "model.safetensors")
    tensors[changed] = tensors[changed] * 1.01
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError) as refused:
        load_policy(other, "cpu", torch.float32, adapter=adapter)
    line = str(refused.value)
    assert all(str(name) in line for name in (adapter, BASE, other)) and "\n" not in line


def test_an_adapter_that_does_not_say_loads_with_a_warning(adapter, tmp_path, capsys):
    old = tmp_path / "old"
    shutil.copytree(adapter, old)
    config = json.loads((old / "adapter_config.json").read_text())
    config |= {"auto_mapping": None, "task_type": "CAUSAL_LM"}
    (old / "adapter_config.json").write_text(json.dumps(config))
    samples = make_samples(load_policy(BASE, "cpu", torch.float32), 2)
    with torch.no_grad():
        ours = load_policy(BASE, "cpu", torch.float32, adapter=adapter)(samples)
        again = load_policy(BASE, "cpu", torch.float32, adapter=old)(samples)
    assert torch.equal(again, ours)
    printed = capsys.readouterr().err.splitlines()
    [warning] = [line for line in printed if line.startswith("warning")]
    assert f"{old} was trained on '{BASE}'" in warning


@pytest.mark.parametrize(
    "name, content",
    [("adapter_config.json", "{"), ("adapter_config.json", "[]"), ("adapter_config.json", None)],
)
def test_a_broken_adapter_gives_one_line(adapter, tmp_path, name, content):
    broken = tmp_path / "broken"
    shutil.copytree(adapter, broken)
    (broken / name).unlink()
    if content is not None:
        (broken / name).write_text(content)
    with pytest.raises(ValueError, match=r"adapter_config.json: expected a PEFT adapter") as error:
        check_adapter(broken, BASE)
    assert "\n" not in str(error.value)


def test_a_weights_file_cut_short_gives_one_line(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(BASE, broken)
    content = (BASE / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="expected safetensors") as error:
        weights_digest(broken)
    assert "\n" not in str(error.value)
