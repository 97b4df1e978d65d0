"""A stub of WebArena's shop over HTTP, which a test breaks at will: login form, orders, REST
API, reset.
"""

import json
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from serving import Server

FORM = """<form method=post action=/customer/account/login/><label>Email <input name=user></label>
<label>Password <input name=password type=password></label><button>Sign In</button></form>"""
HOME = """<h1>One Stop Market</h1><form method=post action=/order><input name=item id=item>\
<button id=buy>Buy</button></form>
<a id=account href=/account>account</a> <a id=out href=/customer/account/logout/>sign out</a>
<form method=post action=/graphql><input name=query value="{products}"><button id=look>\
Look</button></form>"""


class Shop(Server):
    """State: `orders`, `sessions`, `resets`. Switches: `status` of every page, `content` of the
    first one. `seen`: (method, path) of every request. `header`: the value of X-Login that
    logs in.
    """

    def __init__(self, port: int = 0, header: str = "") -> None:
        self.orders: list[str] = ["first"]
        self.sessions: set[str] = set()
        self.status, self.seen, self.resets, self.port, self.header = 200, [], 0, port, header
        self.content = "One Stop Market"

    def answer(self, method, path, headers, body):
        path, cookies = urlsplit(path).path, SimpleCookie(headers.get("Cookie", ""))
        self.seen.append((method, path))
        cookie = cookies["PHPSESSID"].value if "PHPSESSID" in cookies else ""
        inside = cookie in self.sessions or bool(
            self.header and headers.get("X-Login") == self.header
        )
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        to_form = (302, {"Location": "/customer/account/login/"}, "")
        if path == "/reset":
            self.orders, self.resets = ["first"], self.resets + 1
            return 200, {}, "done"
        if self.status != 200:
            return self.status, {}, "sorry"
        if path == "/customer/account/login/" and method == "POST":
            if (form.get("user"), form.get("password")) != ("emma.lopez@gmail.com", "Password.123"):
                return 200, {}, "<p>wrong</p>" + FORM
            sid = f"s{len(self.seen)}"
            self.sessions.add(sid)
            return 302, {"Location": "/", "Set-Cookie": f"PHPSESSID={sid}; Path=/; HttpOnly"}, ""
        if path == "/customer/account/login/":
            return 200, {}, FORM
        if path == "/customer/account/logout/":
            self.sessions.discard(cookie)
            return 302, {"Location": "/customer/account/login/"}, ""
        if path.startswith("/rest/"):
            newest = {"items": [{"entity_id": len(self.orders)}]}
            return (
                200,
                {"Content-Type": "application/json"},
                json.dumps("token" if "token" in path else newest),
            )
        if path == "/":
            return 200, {}, HOME.replace("One Stop Market", self.content)
        if not inside:
            return to_form
        if path == "/order":
            self.orders.append(form.get("item", ""))
            return 302, {"Location": f"/sales/order/view/order_id/{len(self.orders)}/"}, ""
        if path.startswith("/sales/order/view/order_id/"):
            return (
                200,
                {},
                f"<p class=order-details-items>{self.orders[int(path.split('/')[-2]) - 1]}</p>",
            )
        return 200, {}, f"<p>{path}</p><a id=account href=/account>account</a>"
