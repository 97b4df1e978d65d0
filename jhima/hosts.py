"""Which host a URL leads to, in the one spelling that leases are compared in."""
from __future__ import annotations

from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Request


def host_of(url: str) -> str:
    """host:port of an http(s) URL, "" for any other text. localhost counts as 127.0.0.1.

    >>> host_of("http://localhost:7770/a"), host_of("https://example.com"), host_of("javascript:alert(1)")
    ('127.0.0.1:7770', 'example.com:443', '')
    """
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return ""
    return f"{'127.0.0.1' if parts.hostname == 'localhost' else parts.hostname}:{port}"


def is_main(request: Request) -> bool:
    """Does this request load a tab's page, rather than a part of one?"""
    if not request.is_navigation_request():
        return False
    try:
        return request.frame.parent_frame is None
    except PlaywrightError:         # a new tab's first request comes before its tab
        return True
