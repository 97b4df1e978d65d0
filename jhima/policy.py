"""A policy: Qwen2.5-VL (with or without LoRA) as a distribution over the tokens of a reply.

One place turns a Prompt into token ids, for SFT, RL and the samplers. `forward` computes the
log-probs of sampled tokens; training/packing.py does so for fine-tuning's packed samples, and
sampler.generate for tokens as they are drawn (tests hold the three equal).

A prompt has two forms: *collapsed*, with one <|image_pad|>, which is stored and is what vLLM
expects, and *expanded*, with one <|image_pad|> per vision token, which the model reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from jhima.coordinates import MERGE, PATCH
from jhima.models import checkpoint_files
from jhima.models.gpu import compile_layers, free_memory, why_uncompiled
from jhima.models.positions import context, expand, mrope_positions
from jhima.models.vision import (
    FeatureCache,
    Features,
    block,
    decode,
    image_key,
    patchify,
    vision_features,
)
from jhima.prompts import Prompt, Prompts, load_prompts, save_prompts
from jhima.run_directory import write_whole

# The language model's seven linear layers and nothing else: a bare suffix list would also match
# the vision tower, whose adapters vLLM silently ignores: sampling and training would differ.
LORA_TARGETS = (
    r".*language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
)

# Nothing in a layer is random.
_checkpoint = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@dataclass(frozen=True)
class Sample:
    """One reply to learn from: collapsed prompt ids, a PNG, and the reply's ids.

    For RL also the advantage that all its tokens share, the sampler's log-probs, and each token's
    weight in the loss: 1, unless --normalize-length or --replan changes it.
    """

    prompt_ids: list[int]
    image: bytes
    response_ids: list[int]
    advantage: float = 0.0
    logps: list[float] | None = None
    weight: float = 1.0


class Policy(nn.Module):
    """Qwen2.5-VL, possibly wrapped by PEFT, with its tokenizer and prompts.

    tune_vision: let gradients into the vision tower (full SFT only). cache_bytes: host memory for
    vision features; a 1288x728 screenshot of the 7B takes 8.6 MB. checkpointing: recompute each
    layer in the backward pass ("on"), keep its activations ("off"), or keep them if the GPU's free
    memory holds those of this micro-batch ("auto").
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        prompts: Prompts,
        tune_vision: bool = False,
        cache_bytes: int = 16 << 30,
        checkpointing: str = "off",
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.prompts = model, tokenizer, prompts
        self.tune_vision, self.checkpointing = tune_vision, checkpointing
        self.checkpoint = ""  # the folder or hub name that it was loaded from
        self.base_weights = ""  # digest of that checkpoint's weights
        self.unchanged_files: dict[str, bytes] = {}  # of that checkpoint, see UNCHANGED_FILES
        self._vision_block = block
        self._token_bytes: float | None = None
        for module in model.modules():  # see `hidden`
            if isinstance(module, LoraLayer):
                module.cast_input_dtype_enabled = False
        config = self.base.config
        self.image_pad = config.image_token_id
        self.context = context(config)  # tokens of prompt and reply
        marks = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
        ids = tokenizer.convert_tokens_to_ids(marks)
        self.im_start, self.im_end, self.vision_start, self.vision_end = ids
        # Ids that no reply may contain: rows beyond the tokenizer, and special tokens but the end
        # of the turn. A sampled <|image_pad|> would make the next forward pass fail. Sampling and
        # training mask the same ids.
        forbidden = torch.zeros(config.text_config.vocab_size, dtype=torch.bool)
        forbidden[len(tokenizer) :] = True
        forbidden[[i for i in tokenizer.all_special_ids if i < len(forbidden)]] = True
        forbidden[self.im_end] = False
        self.register_buffer("forbidden", forbidden, persistent=False)
        self.feature_cache = FeatureCache(cache_bytes)

    @property
    def base(self) -> Qwen2_5_VLForConditionalGeneration:
        return self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model

    @property
    def device(self) -> torch.device:
        return self.forbidden.device

    # ---- prompts to ids ----

    def text_ids(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a special token in it stays text."""
        # Half a character, which a reply may hold, has no UTF-8.
        text = text.encode("utf-8", "replace").decode()
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return encoded["input_ids"]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The collapsed ids of a prompt in Qwen2.5-VL's chat format, ready for the reply."""
        end = [self.im_end, *self.text_ids("\n")]
        ids = []
        if prompt.system:
            ids += [self.im_start, *self.text_ids("system\n" + prompt.system), *end]
        ids += [self.im_start, *self.text_ids("user\n" + prompt.user)]
        ids += [self.vision_start, self.image_pad, self.vision_end, *end]
        return [*ids, self.im_start, *self.text_ids("assistant\n")]

    def response_ids(self, text: str) -> list[int]:
        """The ids of a reply to learn from, with the end of the turn."""
        return [*self.text_ids(text), self.im_end]

    def text(self, response_ids: list[int]) -> str:
        return self.tokenizer.decode(
            [i for i in response_ids if i != self.im_end], skip_special_tokens=False
        )

    # ---- images ----

    def features(self, images: list[bytes]) -> list[Features]:
        """Vision features of each image, on the model's device."""
        return [
            Features(states.to(self.device, non_blocking=True), grid)
            for states, grid in self.encode(images)
        ]

    def encode(self, images: list[bytes]) -> list[Features]:
        """Vision features of each image.

        With a frozen tower each distinct screenshot is encoded once, without gradient, and kept in
        host memory: the sampler, both optimisation passes and every sample that shares it use the
        same features.
        """
        keys = [image_key(image) for image in images]
        known: dict[bytes, Features] = {}
        pixels: dict[bytes, Tensor] = {}  # of new images: [H, W, 3] each
        for key, image in zip(keys, images):
            cached = self.feature_cache.get(key)
            if cached is not None:
                known[key] = cached
            elif key not in pixels:
                pixels[key] = decode(image)
        for shape in {image.shape for image in pixels.values()}:
            same = [key for key in pixels if pixels[key].shape == shape]
            grid = (shape[0] // PATCH, shape[1] // PATCH)
            batch = torch.stack([pixels[key] for key in same])  # [B, H, W, 3]
            patches = patchify(batch.to(self.device, non_blocking=True))
            with torch.set_grad_enabled(self.tune_vision and torch.is_grad_enabled()):
                tower = self.base.model.visual
                states = vision_features(tower, patches, grid, self._vision_block)
            if not self.tune_vision:
                states = states.cpu()  # [B, n / 4, hidden]
            known |= {key: Features(image, grid) for key, image in zip(same, states)}
        if not self.tune_vision:
            for key, features in known.items():
                self.feature_cache.add(key, features)
        return [known[key] for key in keys]

    # ---- the model's inputs ----

    def embed(
        self,
        prompts: list[list[int]],
        images: list[bytes],
        responses: list[list[int]],
        pad: str = "right",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of prompt + response: embeddings [B, L, H], M-RoPE positions [3, B, L], mask [B, L].

        The mask stays in host memory. What goes to the GPU goes without waiting for it: a plain
        copy would let it finish the previous sample's backward pass, and then idle while Python
        prepares this one.
        """
        rows, positions, features = [], [], self.features(images)
        for prompt, (_, grid), response in zip(prompts, features, responses):
            tokens = grid[0] * grid[1] // MERGE**2
            rows.append(torch.tensor(expand(prompt, self.image_pad, tokens) + response))
            positions.append(mrope_positions(rows[-1], self.image_pad, [grid]))
        padded = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=pad)
        ids = padded(rows).to(self.device, non_blocking=True)  # [B, L]
        mask = padded([torch.ones_like(row) for row in rows])  # [B, L]
        position = padded([p.T for p in positions])  # [B, L, 3]
        embeds = self.base.model.language_model.embed_tokens(ids)  # [B, L, H]
        image = (ids == self.image_pad)[..., None]  # [B, L, 1]
        embeds = embeds.masked_scatter(image, torch.cat([f for f, _ in features]).to(embeds.dtype))
        return embeds, position.permute(2, 0, 1).to(self.device, non_blocking=True), mask

    # ---- the language model ----

    def hidden(
        self, embeds: Tensor, positions: Tensor, mask: Tensor | None = None, **cache
    ) -> Tensor:
        """The language model's last hidden states [B, L, H]. Without a mask: causal attention.

        Over a bf16 model the adapters stay in fp32, so that small updates are not lost, but their
        products are bf16 like the rest: autocast rounds the adapters' weights. PEFT's own way, to
        widen the activations to fp32, takes half as long again and twice the memory, and differs
        from vLLM, which serves rounded adapters.
        """
        model = self.base.model.language_model
        inputs = {"inputs_embeds": embeds, "position_ids": positions, "attention_mask": mask}
        is_bf16 = embeds.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16):
            return model(**inputs, **cache).last_hidden_state

    def why_uncompiled(self) -> str:
        """Why compiled layers would not pay; "" if they do."""
        return why_uncompiled(self.base.model.language_model)

    def compile(self) -> None:
        """Compiles the decoder layers: one graph for all; and the tower's: one per picture size."""
        compile_layers(self.base.model.language_model.layers)
        self._vision_block = torch.compile(block)

    def _choose_checkpointing(self, embeds: Tensor, positions: Tensor) -> None:
        """Sets whether the backward pass of this micro-batch [B, L, H] recomputes the layers."""
        recompute = self.checkpointing == "on"
        if self.checkpointing == "auto" and embeds.device.type == "cuda":
            if self._token_bytes is None:
                self._token_bytes = self._measure_token_bytes(embeds, positions)
            tokens = embeds.shape[0] * embeds.shape[1]
            recompute = 1.2 * self._token_bytes * tokens > free_memory()  # 0.2: the backward's own
        for layer in self.base.model.language_model.layers:
            layer.gradient_checkpointing = recompute
            layer._gradient_checkpointing_func = _checkpoint

    def _measure_token_bytes(self, embeds: Tensor, positions: Tensor) -> float:
        """Bytes of activations per token; they depend on kernels, compiler and adapter rank."""
        length = min(256, embeds.shape[1])
        before = torch.cuda.memory_allocated()
        kept = self.hidden(embeds[:1, :length], positions[:, :1, :length], use_cache=False)
        token_bytes = (torch.cuda.memory_allocated() - before) / length
        del kept  # until here it holds its activations
        return token_bytes

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [n, V] of hidden states [n, H]; forbidden ids have minus infinity."""
        return self.base.lm_head(hidden).float().masked_fill(self.forbidden, float("-inf"))

    # ---- log-probs: for RL and the tests; training/packing.py has the same for packed samples ----

    def forward(self, samples: list[Sample], temperature: float = 1.0, entropy: bool = False):
        """log pi(y_u | prompt, y_<u) of every response token of every sample, concatenated: [n].

        `temperature` divides the logits, as it did when the tokens were sampled. With `entropy`,
        returns also the distribution's entropy at each token [n], without gradient.
        """
        embeds, positions, mask = self.embed(
            [s.prompt_ids for s in samples],
            [s.image for s in samples],
            [s.response_ids for s in samples],
        )
        if torch.is_grad_enabled():
            self._choose_checkpointing(embeds, positions)
        # Padding lies to the right, where causal attention never looks from a real token: so no
        # mask is needed, and a faster kernel runs.
        hidden = self.hidden(embeds, positions, use_cache=False)  # [B, L, H]
        rows, columns, targets = [], [], []
        for b, (s, length) in enumerate(zip(samples, mask.sum(1).tolist())):
            n = len(s.response_ids)
            first = length - n - 1  # the state before a token predicts it
            rows += [b] * n
            columns += range(first, first + n)
            targets += s.response_ids
        row, column, target = torch.tensor([rows, columns, targets]).to(
            self.device, non_blocking=True
        )  # [n] each
        logp = (self.logits(hidden[row, column]) / temperature).log_softmax(-1)  # [n, V]
        chosen = logp.gather(-1, target[:, None])[:, 0]  # [n]
        if not entropy:
            return chosen
        with torch.no_grad():
            return chosen, -(logp.exp() * logp.masked_fill(self.forbidden, 0)).sum(-1)


# ---- loading and saving ----


def default_dtype(device: torch.device) -> torch.dtype:
    """bf16 on a GPU; fp32 on a CPU, where bf16 is 20 to 40 times slower without AVX-512."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_policy(
    checkpoint: str | Path,
    device: str | torch.device,
    dtype: torch.dtype,
    lora: tuple[int, int] | None = None,
    adapter: str | Path | None = None,
    prompts: str | Path | None = None,
    **options,
) -> Policy:
    """A policy from a checkpoint folder (or hub name).

    lora=(rank, alpha): a fresh adapter on the language model. adapter=DIR: a saved one, trainable
    if lora is given too. Raises ValueError, naming the folder, for one that holds no Qwen2.5-VL,
    and for an adapter of other weights.
    """
    checkpoint_files.check_checkpoint(checkpoint)
    if adapter is not None:
        checkpoint_files.check_adapter(adapter, checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="sdpa"
    )
    if adapter is not None:
        model.requires_grad_(False)
        model = PeftModel.from_pretrained(model, adapter, is_trainable=lora is not None)
    elif lora is not None:
        # No task type: AutoPeftModel would look for this model among those of text alone.
        config = LoraConfig(r=lora[0], lora_alpha=lora[1], target_modules=LORA_TARGETS)
        model = get_peft_model(model, config)
    policy = Policy(model, tokenizer, load_prompts(checkpoint, prompts), **options).to(device)
    policy.checkpoint = str(checkpoint)
    policy.base_weights = checkpoint_files.weights_digest(checkpoint)
    policy.unchanged_files = checkpoint_files.read_unchanged(checkpoint)
    return policy


def save_policy(policy: Policy, folder: str | Path, state: dict[str, Tensor] | None = None) -> None:
    """Writes a checkpoint (for LoRA: an adapter) that transformers, PEFT and vLLM load as it is."""
    policy.model.save_pretrained(folder, state_dict=state)
    if isinstance(policy.model, PeftModel):
        checkpoint_files.name_base(folder, policy.base_weights)
    else:
        policy.tokenizer.save_pretrained(folder)
        for name, content in policy.unchanged_files.items():
            write_whole(Path(folder) / name, content)
    save_prompts(policy.prompts, folder)
