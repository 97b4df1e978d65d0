"""Requests past the browser, as the evaluators, resets and health checks make them."""

from __future__ import annotations

import asyncio
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from jhima.failures import EnvironmentFailure

MAX_REPLY = 4_000_000  # bytes of one REST reply; an order or a product's reviews are a few kB


_OPENER = build_opener(ProxyHandler({}))  # past any proxy, as the browser reaches the sites


async def fetch(request: Request, seconds: float) -> tuple[int, bytes]:
    """The HTTP status and body that a site answers, bounded in size and time.

    Raises EnvironmentFailure where it does not answer.
    """
    url = request.full_url
    try:
        return await asyncio.wait_for(asyncio.to_thread(_read, request, seconds), seconds + 1)
    except TimeoutError:
        raise EnvironmentFailure("deadline", f"{url}: no reply in {seconds:g} s") from None
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError
        raise EnvironmentFailure("site", f"{url}: {error}") from None


def _read(request: Request, seconds: float) -> tuple[int, bytes]:
    """Status and body. A site that sends a byte now and then must not hold a thread for ever."""
    end, body = time.monotonic() + seconds, b""
    try:
        reply = _OPENER.open(request, timeout=seconds)
    except HTTPError as error:
        reply = error  # a reply too: its status says what it means
    with reply:
        while chunk := reply.read1(65536):
            body += chunk
            if len(body) > MAX_REPLY:
                raise ValueError(f"a reply of more than {MAX_REPLY} bytes")
            if time.monotonic() > end:
                raise TimeoutError
        return reply.status, body
