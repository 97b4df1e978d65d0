"""What the sites' pages know of their visitor: login, what a form holds, what an address names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from flask import Blueprint, Response, abort, g, make_response, redirect, request
from markupsafe import Markup

from jhima.pocket.sites.page import HOMES, form, page, text, when

GET_AND_POST = ["GET", "POST"]  # of an address that shows a form and takes what is filled in
LOGIN_PATHS = {
    "shopping": "/customer/account/login/",
    "shopping_admin": "/admin",
    "reddit": "/login",
    "gitlab": "/users/sign_in",
}

Item = TypeVar("Item")


# ---- login ----


def logged_in() -> bool:
    token = request.cookies.get(f"session_{g.site}", "")
    return g.world.signed_in or g.world.sessions.get(token) == g.site


def require_login(site: Blueprint) -> None:
    """All pages of the site but its `login` send a visitor who is not logged in to that page."""

    @site.before_request
    def guard() -> Response | None:
        if logged_in() or request.endpoint == f"{site.name}.login":
            return None
        return redirect(LOGIN_PATHS[g.site], 302)


def login_page(*rows: Markup) -> str | Response:
    """The login form of these rows, and its POST: the fields are named `user` and `password`."""
    if request.method != "POST":
        return _login_form(rows)
    token = g.world.log_in(g.site, request.form.get("user", ""), request.form.get("password", ""))
    if token is None:
        return make_response(_login_form(rows, "Wrong name or password"), 401)
    response = redirect(HOMES[g.site], 302)
    response.set_cookie(f"session_{g.site}", token, httponly=True, samesite="Lax")
    return response


def _login_form(rows: Iterable[Markup], error: str = "") -> str:
    return page("Sign in", *when(error, text(error)), form(LOGIN_PATHS[g.site], *rows))


# ---- forms and addresses ----


def typed(name: str, limit: int = 200) -> str:
    """What the visitor typed into the field `name`, trimmed and cut to `limit` characters."""
    return request.form.get(name, "").strip()[:limit]


def one_of(name: str, values: Iterable[str], default: str) -> str:
    """The value that the visitor chose in the radio group `name`, or the default for any other."""
    return typed(name) if typed(name) in values else default


def go_to(path: str, done: str = "") -> Response:
    """Leads on after a form was sent; the next page shows the word `done` beside its heading."""
    return redirect(f"{path}?done={done}" if done else path, 303)


def find(mapping: dict[object, Item], key: object) -> Item:
    """The item, or a 404 page."""
    if key not in mapping:
        abort(404)
    return mapping[key]


def here() -> str:
    """The address of this page on its own port; Flask's request.path carries the site's prefix."""
    return request.path.removeprefix(f"/{g.site}")
