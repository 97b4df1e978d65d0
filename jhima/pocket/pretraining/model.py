"""The pocket model: a Qwen2.5-VL with about three million parameters, and its tokenizer, from code.

It has the classes, chat format, image path and file format of Qwen2.5-VL-7B, so every line that
runs on eight GPUs also runs on two CPU cores. The tokenizer is a byte-level BPE trained on the text
of the pocket arena: its words, and every coordinate of its small viewport, become single tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from jhima.coordinates import MAX_PIXELS, MIN_PIXELS
from jhima.models.vision import MEAN, STD
from jhima.prompts import Prompts, save_prompts

VIEWPORT = 336  # px, width and height: 12 x 12 vision tokens

# fmt: off
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
# fmt: on

# What BPE may merge into one token: tags with the line breaks around them, a call up to its first
# argument, the name of a further argument, numbers, words, punctuation. A click is then four tokens
# and two numbers.
PIECES = (
    r"\n?</?[a-z]+>\n?(?:<[a-z]+>\n)?|\p{L}+\(\p{L}+='?|, \p{L}+='?|'\)"
    r"|\d{1,3}| ?\p{L}+| ?[^\s\p{L}\d]+|\s"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A tiny model needs no manual: it learns the format from its demonstrations, and each token of a
# prompt costs it time.
PROMPTS = Prompts(
    decomposer_system="",
    decomposer_user="Plan {task}",
    subtask_line="{number}. {title}",
    actor_system="",
    actor_user="Task {task}\nPlan\n{subtasks}\nDone\n{history}\nNext",
    actor_user_no_plan="Task {task}\nDone\n{history}\nNext",
    history_line="{operation}",
    no_history="None",
)


def train_tokenizer(corpus: Iterable[str], vocab_size: int = 2560) -> PreTrainedTokenizerFast:
    """Byte-level BPE on `corpus`; numbers of up to three digits and short words are one token."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    numbers = [f"{number}" for number in range(VIEWPORT + 1)] * 8
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        show_progress=False,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator([*corpus, *numbers], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL[1:2] + SPECIAL[3:],
        padding_side="right",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build(
    folder: Path | str,
    corpus: Iterable[str],
    hidden: int = 192,
    layers: int = 3,
    vision_hidden: int = 128,
    vision_layers: int = 4,
) -> int:
    """Writes an untrained pocket model to `folder`; returns its number of parameters."""
    folder = Path(folder)
    tokenizer = train_tokenizer(corpus)
    ids = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL)))
    head_dim = 32  # vLLM's CPU attention supports 32 and 64, not 16
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    # fmt: off
    text = dict(
        vocab_size=-(-len(tokenizer) // 64) * 64, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // head_dim,
        num_key_value_heads=max(1, hidden // head_dim // 2), max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"], rope_parameters=rope,
    )
    vision = dict(
        depth=vision_layers, hidden_size=vision_hidden, intermediate_size=3 * vision_hidden,
        num_heads=vision_hidden // head_dim, out_hidden_size=hidden, patch_size=14,
        spatial_merge_size=2, window_size=112, fullatt_block_indexes=[vision_layers - 1],
    )
    # fmt: on
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_prompts(PROMPTS, folder)
    _save_processor(folder)
    return sum(p.numel() for p in model.parameters())


def _save_processor(folder: Path) -> None:
    """The image processor's settings, for vLLM and for others who load it with AutoProcessor."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "image_mean": [round(float(mean), 8) for mean in MEAN],
        "image_std": [round(float(std), 8) for std in STD],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1), "utf-8")
