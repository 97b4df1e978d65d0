"""WebArena's sites: names, public accounts, and the placeholders of their URLs in task files."""

from __future__ import annotations

import re
from typing import Any

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")

# WebArena's public default accounts. The pocket sites have the same: one login code serves both.
ACCOUNTS = {
    "shopping": ("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": ("admin", "admin1234"),
    "reddit": ("MarvelsGrantMan136", "test1234"),
    "gitlab": ("byteblaze", "hello1234"),
}

AND = " |AND| "  # between the pages that a task starts on
PLACEHOLDER = re.compile(f"__({'|'.join(SITES).upper()})__")


def fill(value: Any, urls: dict[str, str]) -> Any:
    """Puts the sites' URLs in place of the placeholders in every text of a JSON value.

    Raises ValueError where `urls` lacks a site.

    >>> fill("__SHOPPING_ADMIN__/sales", {"shopping_admin": "http://h:2/admin"})
    'http://h:2/admin/sales'
    """
    if isinstance(value, dict):
        return {key: fill(item, urls) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, urls) for item in value]
    if not isinstance(value, str):
        return value
    missing = {match[1].lower() for match in PLACEHOLDER.finditer(value)} - urls.keys()
    if missing:
        names, served = ", ".join(sorted(missing)), ", ".join(sorted(urls))
        raise ValueError(f"no URL for {names}: this arena serves {served}")
    return PLACEHOLDER.sub(lambda match: urls[match[1].lower()].rstrip("/"), value)
