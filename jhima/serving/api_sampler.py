"""Replies out of a model behind an OpenAI-compatible API, which is not trained."""

from __future__ import annotations

from jhima.models.openai_client import Client, image_part
from jhima.prompts import Prompt
from jhima.sampler import Completion


class ApiSampler:
    """Replies of a model behind an OpenAI-compatible endpoint; there are no token ids to train on.

    A request that finally fails raises ApiFailure and ends the run, which the same command resumes.
    """

    def __init__(self, url: str, model: str, attempts: int = 6, timeout: float = 120.0) -> None:
        self.client = Client(url, model, attempts, timeout)
        self.tokens = 0  # sampled so far, for throughput

    async def sync(self) -> None:
        """Nothing to do before a rollout: this model is not trained."""

    rest = sync  # nor before an update

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        content = [{"type": "text", "text": prompt.user}, image_part(prompt.image)]
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": content},
        ]
        reply = await self.client.complete(
            messages, seed, max_tokens=max_tokens, temperature=temperature
        )
        self.tokens += reply.completion_tokens
        return Completion([], [], [], reply.text, reply.truncated)
