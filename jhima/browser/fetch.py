"""Requests past the browser, as the evaluators, resets and health checks make them."""

from __future__ import annotations

import asyncio
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from jhima.browser.lease import host_of
from jhima.failures import EnvironmentFailure

MAX_REPLY = 4_000_000  # bytes of one REST reply; an order or a product's reviews are a few kB


class _SameHost(HTTPRedirectHandler):
    """Follows redirects inside a host only: our requests carry tokens and login headers."""

    def redirect_request(self, request, file, code, message, headers, url):
        if host_of(url) != host_of(request.full_url):
            origin = "/".join(url.split("/", 3)[:3])[:200]
            raise ValueError(
                f"redirects to {origin}, which is not followed: if the site calls itself that, "
                "give it the address in sites.json as its base URL, or sites.json the site's own"
            )
        return super().redirect_request(request, file, code, message, headers, url)


# Past any proxy, as the browser reaches the sites.
_OPENER = build_opener(ProxyHandler({}), _SameHost)


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
