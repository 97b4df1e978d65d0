"""Replies out of a model behind an OpenAI-compatible API, which is not trained."""

from __future__ import annotations

from jhima.failures import EnvironmentFailure
from jhima.models.openai_client import (
    ApiFailure,
    Client,
    Reply,
    RequestRefused,
    Unreachable,
    image_part,
)
from jhima.models.replies import without_thoughts
from jhima.prompts import Prompt
from jhima.sampler import Completion


async def agents_reply(
    client: Client, messages: list[dict], seed: int, **parameters: float
) -> Reply:
    """A reply that plays an episode; an empty one where the request is too long or filtered.

    That is the agent's doing. A request that keeps failing while the server answers others is
    nobody's: EnvironmentFailure("model"). Every other failure is an ApiFailure, which names the
    model and ends the run; the same command resumes it.
    """
    try:
        return await client.complete(messages, seed, **parameters)
    except RequestRefused as refusal:
        client.note("refused a request, which counts as an empty reply", str(refusal))
        return Reply("")
    except ApiFailure as failure:
        message = f"{client.model} at {client.place}: {failure}"
        if isinstance(failure, Unreachable) and await client.answers(messages, **parameters):
            client.note("left a request unanswered, which is scored nowhere", str(failure))
            raise EnvironmentFailure("model", message) from None
        raise type(failure)(message, failure.attempts, failure.status) from None


class ApiSampler:
    """Replies of a model behind an OpenAI-compatible endpoint; there are no token ids to train on.

    Raises what `agents_reply` raises, and ValueError for what is no URL.
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
        parameters = {"max_tokens": max_tokens, "temperature": temperature}
        reply = await agents_reply(self.client, messages, seed, **parameters)
        self.tokens += reply.completion_tokens
        return Completion([], [], [], without_thoughts(reply.text), reply.truncated)
