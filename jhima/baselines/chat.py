"""Chat models by name: an OpenAI-compatible URL, or a checkpoint folder or hub name run here.

Messages are OpenAI's: a role, and text or a list of text and image parts. One class each, with the same `reply`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
from pathlib import Path
from typing import Protocol

import openai
from PIL import Image

from jhima.coordinates import Size


class ModelFailure(RuntimeError):
    """The model does not answer: the run cannot go on."""


class Chat(Protocol):
    async def reply(self, messages: list[dict], sampling: dict[str, float], seed: int) -> str:
        """The model's text. sampling: temperature, max_tokens, and perhaps top_p, frequency_penalty,
        repetition_penalty. Raises ModelFailure."""


def image_part(png: bytes, size: Size | None) -> dict:
    """A screenshot as a message part, resized once to the grid in whose pixels the model will point (None: as it is).

    So the serving side, whose own limits may be others, has nothing left to resize.
    """
    if size is not None:
        with Image.open(io.BytesIO(png)) as image:
            if image.size != size:
                resized = io.BytesIO()
                image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(
                    resized, "PNG", compress_level=1
                )
                png = resized.getvalue()
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()},
    }


class ApiChat:
    """A model behind an OpenAI-compatible endpoint; the key is OPENAI_API_KEY's, where it asks for one.

    The client waits out rate limits and server errors. A request that the endpoint refuses for good (too long, content
    filter) has an empty reply, which is the agent's doing; a wrong key or address ends the run.
    """

    def __init__(
        self, url: str | None, model: str, attempts: int = 10, timeout: float = 300.0
    ) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=timeout,
            max_retries=attempts - 1,
        )
        self.url, self.model = url or "https://api.openai.com/v1", model

    async def reply(self, messages: list[dict], sampling: dict[str, float], seed: int) -> str:
        extra = {
            k: v for k, v in sampling.items() if k == "repetition_penalty"
        }  # vLLM's, not OpenAI's
        known = {k: v for k, v in sampling.items() if k not in extra}
        try:
            done = await self.client.chat.completions.create(
                model=self.model,
                messages=messages,
                seed=seed % 2**31,
                extra_body=extra or None,
                **known,
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError):
            return ""
        except openai.OpenAIError as error:
            raise ModelFailure(
                f"{self.model} at {self.url}: {' '.join(str(error).split())[:200]}"
            ) from None
        choices = getattr(done, "choices", None)  # a proxy's error page is a string
        if not choices:
            raise ModelFailure(f"{self.model} at {self.url}: the reply is no chat completion")
        return choices[0].message.content or ""


class LocalChat:
    """A vision-language checkpoint of the Qwen family, run by transformers one request at a time.

    For a look at a model without a server; a server batches, and is many times faster. frequency_penalty has no
    counterpart here and is left out. Raises ValueError for a folder or hub name that holds none.
    """

    def __init__(self, name: str) -> None:
        import torch
        from transformers import (
            AutoImageProcessor,
            AutoModelForImageTextToText,
            AutoTokenizer,
        )

        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(name)
            self.images = AutoImageProcessor.from_pretrained(name)
            self.model = (
                AutoModelForImageTextToText.from_pretrained(
                    name, dtype=torch.bfloat16 if device == "cuda" else torch.float32
                )
                .to(device)
                .eval()
            )
        except (OSError, ValueError) as error:
            why = str(error).splitlines()[0][:200]
            raise ValueError(
                f"{name}: expected a checkpoint of a vision-language model, got {why}"
            ) from None
        self._one = asyncio.Lock()

    async def reply(self, messages: list[dict], sampling: dict[str, float], seed: int) -> str:
        async with self._one:
            return await asyncio.to_thread(self._generate, messages, sampling, seed)

    def _generate(self, messages: list[dict], sampling: dict[str, float], seed: int) -> str:
        import torch

        parts = [
            part for m in messages if not isinstance(m["content"], str) for part in m["content"]
        ]
        pictures = [
            Image.open(
                io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2]))
            ).convert("RGB")
            for part in parts
            if part["type"] == "image_url"
        ]
        turns = [
            {
                "role": m["role"],
                "content": m["content"]
                if isinstance(m["content"], str)
                else [
                    part if part["type"] == "text" else {"type": "image"} for part in m["content"]
                ],
            }
            for m in messages
        ]
        # The chat template writes one placeholder an image, the model wants one a token of it. What the task says is
        # never read for special tokens by the model's maker, so a page that spells one may confuse it, as upstream.
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        seen = self.images(images=pictures, return_tensors="pt")
        tokens = [int(grid.prod()) // self.images.merge_size**2 for grid in seen["image_grid_thw"]]
        pieces = text.split("<|image_pad|>")
        text = pieces[0] + "".join(
            "<|image_pad|>" * n + piece for n, piece in zip(tokens, pieces[1:])
        )
        given = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        kinds = (given["input_ids"] == self.model.config.image_token_id).int()
        drawn = (
            dict(
                do_sample=True,
                temperature=sampling["temperature"],
                top_p=sampling.get("top_p", 1.0),
            )
            if sampling["temperature"]
            else dict(do_sample=False)
        )
        torch.manual_seed(seed)
        with torch.no_grad():
            device = self.model.device
            ids = self.model.generate(
                **given.to(device),
                **seen.to(device),
                mm_token_type_ids=kinds.to(device),
                max_new_tokens=sampling["max_tokens"],
                repetition_penalty=sampling.get("repetition_penalty", 1.0),
                **drawn,
            )
        return self.tokenizer.decode(
            ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True
        )


def load_chat(model: str, url: str | None) -> ApiChat | LocalChat:
    """A model at an endpoint, or one to run here: a folder or a hub name. Raises ValueError."""
    if url or model.startswith("gpt-"):
        return ApiChat(url, model)
    if model.startswith((".", "/")) and not Path(model, "config.json").is_file():
        raise ValueError(
            f"{model}: holds no config.json; expected a checkpoint folder, a hub name, or --agent-url"
        )
    return LocalChat(model)
