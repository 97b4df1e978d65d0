"""Sites: what sites.json can say of one, WebArena's six as defaults, and the placeholders of their
URLs in task files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jhima.browser.lease import LoginForm

if TYPE_CHECKING:  # the pocket server, which reads ACCOUNTS here, starts without torch
    from jhima.episodes import Task

Reset = list[str] | dict[str, str]  # a command's words, or an endpoint's object


@dataclass(frozen=True)
class Site:
    """One site of sites.json; the fields are the keys of its object there.

    url: its first page. login: how to log in (None: nobody has to). account: user, password.
    headers: sent with every request, and its login instead of the form. health: a text that its
    first page shows when it works. hosts: further addresses that its pages fetch from. changes:
    whether tasks change it. reset: what makes it as new (None: the replica's).
    """

    url: str = ""
    login: LoginForm | None = None
    account: tuple[str, str] | None = field(default=None, repr=False)
    headers: dict[str, str] | None = field(default=None, repr=False)
    health: str = ""
    hosts: tuple[str, ...] = ()
    changes: bool = True
    reset: Reset | None = None


# WebArena's sites with their public accounts. A health text is what the first page says; an error
# page, or another server at the port, does not. Magento's administration has no page for its form,
# but shows it at every address.
DEFAULTS = {
    "shopping": Site(
        login=LoginForm(
            path="/customer/account/login/",
            user="label=Email",
            password="label=Password",
            button="button=Sign In",
            inside="/wishlist/",
        ),
        account=("emma.lopez@gmail.com", "Password.123"),
        health="One Stop Market",
    ),
    "shopping_admin": Site(
        login=LoginForm(
            user="[placeholder='user name']",
            password="[placeholder=password]",
            button="button=Sign in",
        ),
        account=("admin", "admin1234"),
        health="Magento",
    ),
    "reddit": Site(
        login=LoginForm(
            path="/login",
            user="label=Username",
            password="label=Password",
            button="button=Log in",
            inside="/user/{user}/account",
        ),
        account=("MarvelsGrantMan136", "test1234"),
        health="Postmill",
    ),
    "gitlab": Site(
        login=LoginForm(
            path="/users/sign_in",
            user="[data-testid=username-field]",
            password="[data-testid=password-field]",
            button="[data-testid=sign-in-button]",
            inside="/-/profile",
        ),
        account=("byteblaze", "hello1234"),
        health="GitLab",
    ),
    "map": Site(health="OpenStreetMap", changes=False),
    "wikipedia": Site(health="Wikipedia", changes=False),
}
SITES = tuple(DEFAULTS)
# The pocket sites have the same forms and accounts: one login code serves both.
LOGIN_FORMS = {name: site.login for name, site in DEFAULTS.items() if site.login}
ACCOUNTS = {name: site.account for name, site in DEFAULTS.items() if site.account}

NAME = re.compile("[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
AND = " |AND| "  # between the pages that a task starts on
PLACEHOLDER = re.compile("__([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)__")


def placeholders(value: Any) -> set[str]:
    """The names of sites that stand as placeholders in a JSON value, WebArena's or another's."""
    return {match[1].lower() for match in PLACEHOLDER.finditer(json.dumps(value))}


def fill(value: Any, urls: dict[str, str]) -> Any:
    """Puts the sites' URLs in place of the placeholders in every text of a JSON value.

    Raises ValueError where `urls` lacks one of WebArena's sites; other words in such dress stay.

    >>> fill("__SHOPPING_ADMIN__/sales", {"shopping_admin": "http://h:2/admin"})
    'http://h:2/admin/sales'
    """
    if isinstance(value, dict):
        return {key: fill(item, urls) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, urls) for item in value]
    if not isinstance(value, str):
        return value
    missing = placeholders(value) & set(SITES) - urls.keys()
    if missing:
        names, served = ", ".join(sorted(missing)), ", ".join(sorted(urls))
        raise ValueError(f"no URL for {names}: this arena serves {served}")
    return PLACEHOLDER.sub(lambda m: urls.get(m[1].lower(), m[0]).rstrip("/"), value)


def needed(task: Task) -> frozenset[str]:
    """The sites that playing and scoring a task takes."""
    told = json.dumps([task.start_url, task.eval])
    names = set(task.sites) | placeholders(told) & set(SITES)
    if "func:shopping_get_latest" in told or "func:shopping_get_sku" in told:
        names.add("shopping")  # whose REST API these read
    return frozenset(names)


# ---- tasks with several sites ----

HOMEPAGE = "http://homepage.com"  # under this name upstream tells agents of its list of sites


def has_to_find(sites: tuple[str, ...], start_url: str) -> bool:
    """Whether a task needs a site that it does not start on, so that it has to be told of it."""
    return not set(sites) <= placeholders(start_url)


def told(intent: str, sites: tuple[str, ...], start_url: str) -> str:
    """The intent, with where the sites are listed if the task has to find one (38 of
    webarena-train's): upstream's prompts name its homepage, too."""
    if len(sites) < 2 or not has_to_find(sites, start_url):
        return intent
    return f"{intent}\n(Links to the sites {', '.join(sites)} are at {HOMEPAGE} .)"


def homepage(task: Task, urls: dict[str, str]) -> str:
    """What HOMEPAGE shows for a task that was told of it: a page of links, as a URL; else ""."""
    if len(task.sites) < 2 or not has_to_find(task.sites, task.start_url):
        return ""
    page = "<title>Sites</title><h1>Sites</h1>"
    for site in task.sites:
        url = escape(urls[site])
        page += f'<p><a href="{url}">{site}: {url}</a>'
    return "data:text/html," + quote(page)
