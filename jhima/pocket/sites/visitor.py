"""What the sites' pages know of their visitor: login, what a form holds, what an address names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from flask import Response, abort, g, make_response, redirect, request

from jhima.pocket.sites.page import HOMES, button, form, page, text

LOGIN_PATHS = {
    "shopping": "/customer/account/login/",
    "shopping_admin": "/admin",
    "reddit": "/login",
    "gitlab": "/users/sign_in",
}


def logged_in() -> bool:
    return (
        g.world.signed_in
        or g.world.sessions.get(request.cookies.get(f"session_{g.site}", "")) == g.site
    )


def login_required(view: Callable) -> Callable:
    """Sends a visitor who is not logged in to the site's login page."""

    @wraps(view)
    def guarded(*args: object, **kwargs: object):
        return view(*args, **kwargs) if logged_in() else redirect(LOGIN_PATHS[g.site], 302)

    return guarded


def login_page(
    user_field, password_field, submit_label: str, error: str = "", **attributes: str
) -> str:
    return page(
        "Sign in",
        *([text(error)] if error else []),
        form(LOGIN_PATHS[g.site], user_field, password_field, button(submit_label, **attributes)),
    )


def try_login(show: Callable[[str], str]) -> Response:
    """Handles a login form's POST (fields `user` and `password`); `show(error)` renders the form again."""
    token = g.world.log_in(g.site, request.form.get("user", ""), request.form.get("password", ""))
    if token is None:
        return make_response(show("Wrong name or password"), 401)
    response = redirect(HOMES[g.site], 302)
    response.set_cookie(f"session_{g.site}", token, httponly=True, samesite="Lax")
    return response


def find(mapping: dict, key: object):
    """The item, or a 404 page."""
    if key not in mapping:
        abort(404)
    return mapping[key]


def typed(name: str, limit: int = 200) -> str:
    """What the visitor typed into the form's field `name`, trimmed and cut to `limit` characters."""
    return request.form.get(name, "").strip()[:limit]


def done() -> str:
    """The short word of confirmation that the last form's redirect carried here (?done=Saved)."""
    return request.args.get("done", "")[:20]


def here() -> str:
    """The address of this page on its own port; Flask's request.path carries the site's prefix."""
    return request.path.removeprefix(f"/{g.site}")
