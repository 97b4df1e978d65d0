"""What a model says in the end, behind its thoughts, its quotations and its Markdown."""

from __future__ import annotations

import re

# The tags between which models think aloud.
_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """A reply without what stands in <think> tags.

    The opening tag may be missing (a chat template may hold it), and the closing one too (the
    reply was cut off).

    >>> without_thoughts("Is it 1? No.</think>It is <think>1 or</think>2.")
    'It is 2.'
    """
    said, depth, start = [], 0, 0
    for tag in _THOUGHT.finditer(text):
        if depth == 0 and not tag[1]:
            said.append(text[start : tag.start()])
        if tag[1] and depth == 0:
            said = []
        depth = max(0, depth - 1) if tag[1] else 1
        start = tag.end()
    if depth == 0:
        said.append(text[start:])
    return "".join(said).strip()
