"""A baseline's chat model behind an OpenAI-compatible endpoint, and screenshots as it sees them."""

from __future__ import annotations

import io

from PIL import Image

from jhima.coordinates import Size
from jhima.models.openai_client import Client, image_part
from jhima.serving.api_sampler import agents_reply


def screenshot_part(png: bytes, size: Size | None) -> dict:
    """A screenshot as a part of a message, resized to `size` (None: sent as it is).

    `size` is the grid in whose pixels the model will point. Resizing here, once, leaves nothing to
    resize for the server, whose own limits may differ.
    """
    if size is None:
        return image_part(png)
    with Image.open(io.BytesIO(png)) as image:
        if image.size == size:
            return image_part(png)
        resized = io.BytesIO()
        view = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        view.save(resized, "PNG", compress_level=1)
    return image_part(resized.getvalue())


class ApiChat:
    """A model behind an OpenAI-compatible endpoint; without a URL, one of OpenAI's gpt- models.

    Raises ValueError for another model without a URL.
    """

    def __init__(
        self, url: str | None, model: str, attempts: int = 10, timeout: float = 300.0
    ) -> None:
        if not url and not model.startswith("gpt-"):
            raise ValueError(
                f"{model}: expected the URL of its endpoint (--agent-url or --grounder-url), "
                "or the name of an OpenAI model (gpt-...)"
            )
        self.client = Client(url, model, attempts, timeout)

    async def reply(self, messages: list[dict], sampling: dict[str, float], seed: int) -> str:
        """The model's text. sampling: temperature, max_tokens and others of the API.

        Raises what `agents_reply` raises.
        """
        return (await agents_reply(self.client, messages, seed, **sampling)).text
