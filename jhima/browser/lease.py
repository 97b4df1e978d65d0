"""A lease: the world that one rollout has to itself, and which of its hosts a URL leads to."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Request


@dataclass(frozen=True)
class LoginForm:
    """How to log in to a site, and how to see that it worked.

    path: where the form is; "" if every address shows it. user, password, button: a CSS selector,
    or label=TEXT for a field, button=TEXT for a button. inside: a page (with {user}) that only
    those who are logged in get to see; shows: a CSS selector that it then has ("": any).
    """

    path: str = ""
    user: str = "input[type=text]"
    password: str = "input[type=password]"
    button: str = "button"
    inside: str = ""
    shows: str = ""


@dataclass(eq=False)
class Logins:
    """The sessions that all episodes on one set of sites share.

    states: site -> cookies and local storage of its session. locks: site -> who logs in; the others
    wait for that session. refused: site -> the form's refusal and when it may be asked again.
    """

    states: dict[str, dict] = field(default_factory=dict, repr=False)
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    refused: dict[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lease:
    """One rollout's world.

    urls: site -> base URL (the admin site's ends in /admin).
    headers: sent with every request of the browser and of the evaluators' REST helpers.
    accounts: site -> (user, password).
    viewport: (width, height) in CSS pixels.
    hosts: further addresses that the sites' pages fetch from.
    forms: site -> its login form; a site without one is not logged in to.
    logins: sessions shared with other leases.
    by_header: sites whose headers are their login.
    signed_in: sites where the arena has opened the session itself.
    changed: sites that the rollout may have changed so far.
    blocked: host -> requests of the sites' pages that went there and were cut off.
    broken: HTTP statuses below 500 that are the site's failure; 429: it rations its visitors.
    homepage: a page that links to the sites, for a task that has to find them; "": none.
    """

    urls: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    accounts: dict[str, tuple[str, str]] = field(repr=False)
    viewport: tuple[int, int]
    hosts: tuple[str, ...] = ()
    forms: dict[str, LoginForm] = field(default_factory=dict)
    logins: Logins = field(default_factory=Logins)
    by_header: frozenset[str] = frozenset()
    signed_in: frozenset[str] = frozenset()
    changed: set[str] = field(default_factory=set)
    blocked: Counter[str] = field(default_factory=Counter)
    broken: tuple[int, ...] = (429,)
    homepage: str = ""

    @property
    def reachable(self) -> set[str]:
        """HOST:PORT of the sites, and of what their pages fetch from."""
        return {host_of(url) for url in (*self.urls.values(), *self.hosts)}


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
