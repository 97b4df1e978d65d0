"""Checkpoint folders as the hub has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from jhima.run_directory import write_whole

PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, whatever its shards."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def copy_sharded(source: Path, out: Path, shards: int = 3, add: dict | None = None) -> Path:
    """A copy of a checkpoint folder, its tensors (and those of `add`) in shards with an index."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = weights(source) | (add or {})
    names = sorted(tensors)
    placed = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        save_file(part, out / file, {"format": "pt"})
        placed |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": placed}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return out


def hub_folder(base: Path, out: Path, tied: bool, processor: str, file: str) -> Path:
    """The pocket base as Qwen/Qwen2.5-VL-*-Instruct's folders are.

    Old key layout (which the base has), several shards with an index, a tied head (3B) or one of
    its own (7B), the image processor under either file and class name.
    """
    base_head = weights(base)["model.embed_tokens.weight"]
    head = {} if tied else {"lm_head.weight": (base_head * 0.9).contiguous()}
    copy_sharded(base, out, add=head)
    config = json.loads((out / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = tied
    write_whole(out / "config.json", json.dumps(config))
    settings = json.loads((out / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = processor
    (out / "preprocessor_config.json").unlink()
    if file == "processor_config.json":
        kind = settings.pop("processor_class")
        video = settings | {"video_processor_type": "Qwen2VLVideoProcessor"}
        del video["image_processor_type"]
        # As transformers 5 writes it.
        settings = {"processor_class": kind, "image_processor": settings, "video_processor": video}
    (out / file).write_text(json.dumps(settings))
    return out
