"""The exception that means "this episode says nothing about the agent", and waits that raise it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from http.client import HTTPException
from typing import Literal, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import TimeoutError as PlaywrightTimeout

T = TypeVar("T")
MAX_REPLY = 4_000_000  # bytes of one REST reply; an order or a product's reviews are a few kB
_OPENER = build_opener(ProxyHandler({}))  # past any proxy, as the browser reaches the sites

Kind = Literal["browser", "site", "login", "judge", "deadline"]


class EnvironmentFailure(Exception):
    """A broken browser, site, login or judge, or a deadline: no sample, never reward 0.

    The rollout retries the episode; if it fails again, it leaves its group's mean (grpo.py).
    """

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail


async def within(seconds: float, work: Awaitable[T], doing: str) -> T:
    """Awaits browser `work` for at most `seconds`.

    Whatever the browser raises becomes an EnvironmentFailure.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except (TimeoutError, PlaywrightTimeout):
        raise EnvironmentFailure("deadline", f"{doing}: not done in {seconds:g} s") from None
    except PlaywrightError as error:
        # "net::" is Chromium's own prefix for network errors.
        kind = "site" if "net::" in error.message else "browser"
        raise EnvironmentFailure(kind, f"{doing}: {error.message.splitlines()[0][:200]}") from None


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
