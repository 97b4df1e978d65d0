"""A decomposer behind an OpenAI-compatible API: `--decomposer URL#MODEL`, where it is not trained."""
from __future__ import annotations

import base64
import os

import openai

from .prompts import Prompt
from .sampler import Completion


class ApiSampler:
    """Replies of a model behind an OpenAI-compatible endpoint; the key is OPENAI_API_KEY's, where it asks for one.

    There are no token ids to train on. Requests are retried with back-off by the client; one that keeps failing raises
    openai.OpenAIError, which ends the run: the same command goes on from there.
    """

    def __init__(self, url: str, model: str, attempts: int = 6, timeout: float = 120.0) -> None:
        self.client = openai.AsyncOpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none",
                                         timeout=timeout, max_retries=attempts - 1)
        self.model = model
        self.tokens = 0                              # sampled so far, for throughput

    async def sync(self) -> None:
        """Nothing to do before a rollout: this model is not trained."""

    rest = sync                                      # nor before an update

    async def sample(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Completion:
        image = "data:image/png;base64," + base64.b64encode(prompt.image).decode()
        reply = await self.client.chat.completions.create(
            model=self.model, temperature=temperature, max_tokens=max_tokens, seed=seed % 2**31, messages=[
                {"role": "system", "content": prompt.system},
                {"role": "user", "content": [{"type": "text", "text": prompt.user},
                                             {"type": "image_url", "image_url": {"url": image}}]}])
        self.tokens += reply.usage.completion_tokens if reply.usage else 0
        choice = reply.choices[0]
        return Completion([], [], [], choice.message.content or "", choice.finish_reason == "length")
