"""A lease: the world that one rollout has to itself, and which of its hosts a URL leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Request


@dataclass(frozen=True)
class Lease:
    """One rollout's world.

    urls: site -> base URL (the admin site's ends in /admin).
    headers: sent with every request of the browser and of the evaluators' REST helpers.
    accounts: site -> (user, password).
    viewport: (width, height) in CSS pixels.
    by_header: sites whose headers are their login.
    signed_in: sites where the arena has opened the session itself.
    changed: sites that the rollout may have changed so far.
    """

    urls: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    accounts: dict[str, tuple[str, str]] = field(repr=False)
    viewport: tuple[int, int]
    by_header: frozenset[str] = frozenset()
    signed_in: frozenset[str] = frozenset()
    changed: set[str] = field(default_factory=set)


def host_of(url: str) -> str:
    """host:port of an http(s) URL, "" for any other text. localhost counts as 127.0.0.1.

    Hosts are compared in this spelling only.

    >>> host_of("http://localhost:7770/a"), host_of("https://example.com")
    ('127.0.0.1:7770', 'example.com:443')
    >>> host_of("javascript:alert(1)")
    ''
    """
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return ""
    name = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return f"{name}:{port}"


def is_main(request: Request) -> bool:
    """Does this request load a tab's page, rather than a part of one?"""
    if not request.is_navigation_request():
        return False
    try:
        return request.frame.parent_frame is None
    except PlaywrightError:  # a new tab's first request comes before its tab
        return True
