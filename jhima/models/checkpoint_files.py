"""What a checkpoint folder holds: is it a Qwen2.5-VL, which weights, what training leaves alone.

Also which weights an adapter was trained on.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from functools import cache
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.utils import cached_file

from jhima.run_directory import write_whole


def check_checkpoint(checkpoint: str | Path, made_by: str = "") -> None:
    """Raises ValueError, in one line, for a missing checkpoint folder or another kind of model.

    made_by: the command that makes it. Without one, a name like "org/model" that is no folder is
    left to the hub.
    """
    folder = Path(checkpoint)
    if not made_by and not folder.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(checkpoint)):
        return
    hint = f"; make it with: {made_by}" if made_by else ""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{checkpoint}: no such checkpoint (no config.json){hint}")
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except ValueError as error:
        raise ValueError(f"{checkpoint}/config.json: expected JSON, got {error}{hint}") from None
    if kind != "qwen2_5_vl":
        raise ValueError(
            f"{checkpoint}: expected a Qwen2.5-VL (model_type qwen2_5_vl), got {kind!r}{hint}"
        )
    if not any((folder / name).is_file() for name in IMAGE_PROCESSOR_FILES):
        raise ValueError(
            f"{checkpoint}: no preprocessor_config.json, without which vLLM does not start; "
            f"copy it from the model that this one was fine-tuned from{hint}"
        )


# An image processor's settings are in the first or, from transformers 5, in the second.
IMAGE_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


# What training does not change, apart from the tokenizer: transformers and vLLM need the first two.
UNCHANGED_FILES = (
    *IMAGE_PROCESSOR_FILES,
    "video_preprocessor_config.json",
    "generation_config.json",
    "chat_template.json",
)


def read_unchanged(checkpoint: str | Path) -> dict[str, bytes]:
    """The contents of those of UNCHANGED_FILES that a checkpoint folder (or hub name) has.

    Read when the model is loaded: when it is saved, days later, the hub may not answer.
    """
    contents = {}
    for name in UNCHANGED_FILES:
        path = cached_file(checkpoint, name, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            contents[name] = Path(path).read_bytes()
    return contents


# ---- adapters ----


def weights_digest(checkpoint: str | Path) -> str:
    """A digest of a checkpoint folder's (or hub name's) weights; "" where none is in safetensors.

    Of every tensor's name, shape, and two rows: a few MB of a 7B. It stays the same when the
    folder is moved or its shards are cut anew. Raises ValueError for a file that cannot be read.
    """
    contents: dict[str, bytes] = {}
    for name in _weight_files(checkpoint):
        path = cached_file(checkpoint, name, _raise_exceptions_for_missing_entries=False)
        if path is None:
            return ""
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():
                    contents[key] = _sampled(file.get_slice(key))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: expected safetensors, got {error}") from None
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(contents):
        digest.update(key.encode() + contents[key])
    return digest.hexdigest()


def _weight_files(checkpoint: str | Path) -> list[str]:
    index_name = "model.safetensors.index.json"
    index = cached_file(checkpoint, index_name, _raise_exceptions_for_missing_entries=False)
    if index is None:
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(Path(index).read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: expected a weight_map of file names, got {error!r}") from None


def _sampled(tensor) -> bytes:
    """The shape of a tensor in a safetensors file, and its first and middle row (or number)."""
    shape = tensor.get_shape()
    if not shape:
        return b"scalar"
    rows = [tensor[at : at + 1].float().numpy().tobytes() for at in (0, shape[0] // 2)]
    return repr(shape).encode() + b"".join(rows)


def name_base(adapter: str | Path, digest: str) -> None:
    """Writes into an adapter's adapter_config.json which weights it was trained on.

    Under `auto_mapping`, where PEFT looks up the base's class and takes any other entry: it warns
    of a field of its own that it does not know.
    """
    path = Path(adapter) / "adapter_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["auto_mapping"] = (config.get("auto_mapping") or {}) | {"base_weights": digest}
    write_whole(path, json.dumps(config, indent=2))


@cache  # a script checks before anything is loaded, load_policy whenever: one warning is enough
def check_adapter(adapter: str | Path, checkpoint: str | Path) -> None:
    """Raises ValueError, in one line, for an adapter that was trained on other weights.

    Warns where it does not say which: adapters of other programs, and older ones.
    """
    path = Path(adapter) / "adapter_config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        base = config.get("base_model_name_or_path")
        expected = (config.get("auto_mapping") or {}).get("base_weights")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: expected a PEFT adapter's settings, got {error}") from None
    given = weights_digest(checkpoint)
    if not (expected and given):
        print(
            f"warning: {adapter} was trained on {base!r} and does not say which weights these "
            f"were; it is put on {checkpoint}",
            file=sys.stderr,
        )
    elif expected != given:
        raise ValueError(
            f"{adapter}: an adapter for the weights of {base!r} ({expected[:8]}), "
            f"not for those of {checkpoint} ({given[:8]})"
        )
