"""What a checkpoint folder holds: is it a Qwen2.5-VL, and what training does not change of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from transformers.utils import cached_file


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
