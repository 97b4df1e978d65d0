"""The functions that task files name as `func:...`.

A call is parsed and looked up in a table; nothing is evaluated as Python. Names (their spelling
too) and meanings are those of WebArena and WebArena-Lite-v2, with three differences. In the
latter the evaluator cannot reach the names, so the 13 tasks that use them never score. A site
that fails here is an EnvironmentFailure, where upstream makes it an empty string and so a reward
of 0. And what is an object upstream, which no rule could read, is JSON text. Tasks cannot call
what upstream's evaluators call themselves: its LLM judges, and shopping_get_auth_token, whose
token would stand in the episode's report.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request

from playwright.async_api import Page

from jhima.browser.fetch import fetch
from jhima.browser.lease import Lease
from jhima.failures import EnvironmentFailure, within
from jhima.webarena.matching import OR
from jhima.webarena.sites import ACCOUNTS

_PAGE_FUNCTIONS = Path(__file__).with_name("page_functions.js").read_text("utf-8")

# ---- func:... ----


def parse_call(text: str) -> tuple[str, tuple[str, ...]]:
    """The helper's name and arguments in `func:name('literal', __page__)`.

    Raises ValueError for anything but one call of a known helper with string literals, and
    `__page__` exactly where the helper takes a page.

    >>> parse_call("func:gitlab_get_project_memeber_role(__page__, 'vinta')")
    ('gitlab_get_project_memeber_role', ('__page__', 'vinta'))
    """
    try:
        call = ast.parse(text.removeprefix("func:").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        raise ValueError("expected one function call after func:")
    name = call.func.id
    if name not in HELPERS:
        known = "a function of jhima/webarena/task_functions.py"
        raise ValueError(f"expected {known}, got {name[:80]!r}")
    parameters = list(inspect.signature(HELPERS[name]).parameters)
    if not _takes_page(name):
        parameters = parameters[1:]  # the shop is no argument of the call
    arguments = [_argument(node, parameter) for node, parameter in zip(call.args, parameters)]
    if len(call.args) != len(parameters) or None in arguments:
        written = [
            "__page__" if parameter == "page" else f"'{parameter}'" for parameter in parameters
        ]
        raise ValueError(f"expected {name}({', '.join(written)})")
    return name, tuple(arguments)


def _takes_page(name: str) -> bool:
    return next(iter(inspect.signature(HELPERS[name]).parameters)) == "page"


def _argument(node: ast.expr, parameter: str) -> str | None:
    """The text of an argument, or None if it is not what the parameter takes."""
    if parameter == "page":
        return "__page__" if isinstance(node, ast.Name) and node.id == "__page__" else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


async def call_helper(text: str, lease: Lease, page: Page, last_url: str, seconds: float) -> str:
    """Runs `func:...`. `page` stands for __page__; `last_url`, where the agent ended, for
    '__last_url__'.

    Returns "" where the site or page has no such thing; raises EnvironmentFailure where it cannot
    tell.
    """
    name, arguments = parse_call(text)
    if _takes_page(name):
        source, arguments = OpenPage(page, seconds), arguments[1:]
    else:
        source = Shop(lease, seconds)
    arguments = [last_url if argument == "__last_url__" else argument for argument in arguments]
    try:
        result = await HELPERS[name](source, *arguments)
        return "" if result is None else str(result)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        problem = f"{name}: a reply of another shape than Magento's: {error!r}"
        raise EnvironmentFailure("site", problem) from None


@dataclass(frozen=True)
class OpenPage:
    """An open page, read within `seconds`."""

    page: Page
    seconds: float

    async def read(self, function: str, argument: object = None) -> Any:
        """Calls one of page_functions.js in the page."""
        script = f"argument => ({_PAGE_FUNCTIONS}).{function}(argument)"
        reading = self.page.evaluate(script, argument)
        return await within(self.seconds, reading, f"reading the page ({function})")


@dataclass(frozen=True)
class Shop:
    """Magento's REST API, read as the shop's administrator, each reply within `seconds`."""

    lease: Lease
    seconds: float

    @property
    def url(self) -> str:
        return self.lease.urls["shopping"].rstrip("/")

    async def get(self, path: str) -> Any:
        """The JSON at `path` of the shop; None where there is no such thing."""
        # Also on a replica without the administration's own site.
        default = ACCOUNTS["shopping_admin"]
        user, password = self.lease.accounts.get("shopping_admin", default)
        login = json.dumps({"username": user, "password": password}).encode()
        token = await self._request("/rest/default/V1/integration/admin/token", {}, login)
        return await self._request(path, {"Authorization": f"Bearer {token}"})

    async def _request(self, path: str, headers: dict, body: bytes | None = None) -> Any:
        url, json_type = self.url + path, "application/json"
        headers = self.lease.headers | headers | {"Content-Type": json_type, "Accept": json_type}
        status, reply = await fetch(Request(url, body, headers), self.seconds)
        if status == 404:
            return None
        if status >= 400:
            kind = "login" if status in (401, 403) else "site"
            raise EnvironmentFailure(kind, f"{url}: HTTP {status}")
        try:
            return json.loads(reply)
        except (ValueError, RecursionError) as error:
            raise EnvironmentFailure("site", f"{url}: {error}") from None

    async def latest_review(self, sku: str) -> dict:
        """Magento lists reviews in the order they were written."""
        reviews = await self.get(f"/rest/V1/products/{quote(sku, safe='')}/reviews")
        return reviews[-1] if reviews else {}


# ---- shopping: the REST API ----


async def shopping_get_latest_order_url(shop: Shop) -> str:
    """The customer's page of the shop's newest order.

    "Newest" is of the whole shop: on a replica that rollouts share it may be a neighbour's order.
    """
    query = urlencode(
        {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": 1,
        }
    )
    orders = (await shop.get(f"/rest/V1/orders?{query}"))["items"]
    if not orders:
        return ""
    return f"{shop.url}/sales/order/view/order_id/{int(orders[0]['entity_id'])}/"


async def shopping_get_sku_latest_review_author(shop: Shop, sku: str) -> str:
    return (await shop.latest_review(sku)).get("nickname", "")


async def shopping_get_sku_latest_review_rating(shop: Shop, sku: str) -> str:
    """In percent: four stars are "80"."""
    review = await shop.latest_review(sku)
    return review["ratings"][0]["percent"] if review else ""


async def shopping_get_sku_latest_review_text(shop: Shop, sku: str) -> str:
    return (await shop.latest_review(sku)).get("detail", "")


async def shopping_get_sku_latest_review_title(shop: Shop, sku: str) -> str:
    return (await shop.latest_review(sku)).get("title", "")


async def shopping_get_sku_product_page_url(shop: Shop, sku: str) -> str:
    product = await shop.get(f"/rest/V1/products/{quote(sku, safe='')}")
    for attribute in product["custom_attributes"] if product else ():
        if attribute["attribute_code"] == "url_key":
            return f"{shop.url}/{attribute['value']}.html"
    return ""


# ---- shopping: an order's or a product's page ----


async def shopping_get_all_product_order(page: OpenPage) -> str:
    """A JSON list of what was ordered."""
    return _json(await page.read("order"))


async def shopping_get_order_product_name_list(page: OpenPage) -> str:
    return OR.join(item["name"] for item in await page.read("order"))


async def shopping_get_order_product_quantity(page: OpenPage, sku: str) -> str:
    """How many were ordered of the first product that is one of `sku`; "0" where none was."""
    for item in await page.read("order"):
        if item["sku"] in sku.split(OR):
            return item["qty"]
    return "0"


async def shopping_get_order_product_option(page: OpenPage, sku: str, option: str) -> str:
    for item in await page.read("order"):
        if item["sku"] == sku:
            return item["options"].get(option, "")
    return ""


async def shopping_get_product_attributes(page: OpenPage, attribute: str) -> str:
    """The values of the details whose label holds one of `attribute`, joined with commas."""
    return await page.read("details", attribute.lower().split(OR.lower()))


async def shopping_get_product_price(page: OpenPage) -> str:
    """Without currency and thousands; "0" where no price is shown."""
    text = await page.read("text", ".product-info-price .price-box .price")
    return _first_match(r"\d+(?:\.\d+)?", text.replace(",", ""))


async def shopping_get_num_reviews(page: OpenPage) -> str:
    return _first_match(r"\d+", await page.read("text", "#tab-label-reviews-title"))


async def shopping_get_rating_as_percentage(page: OpenPage) -> str:
    return _first_match(r"\d+", await page.read("rating"))


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[0] if match else "0"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if value is not None else ""


# ---- any site ----


async def get_query_text(page: OpenPage, selector: str) -> str:
    return await page.read("text", selector)


async def get_query_text_lowercase(page: OpenPage, selector: str) -> str:
    return (await page.read("text", selector)).lower()


# ---- reddit and gitlab ----


async def reddit_get_post_url(_shop: Shop, url: str) -> str:
    """The post that `url` lies in (/f/FORUM/ID/...), whatever follows the id; else `url` itself."""
    post = re.match(r"https?://[^/]+/f/[^/?#]+/\d+(?=[/?#]|$)", url)
    return f"{post[0]}/" if post else url


async def reddit_get_post_comment_tree(page: OpenPage) -> str:
    """The post as JSON: username, content, net_score, time, and its comments as `children`."""
    return (await page.read("comments", ""))["tree"]


async def reddit_get_latest_comment_obj_by_username(page: OpenPage, username: str) -> str:
    """A user's newest comment as JSON: username, content, net_score and time."""
    return _json((await page.read("comments", username))["newest"])


async def reddit_get_latest_comment_content_by_username(page: OpenPage, username: str) -> str:
    return ((await page.read("comments", username))["newest"] or {}).get("content", "")


async def reddit_get_parent_comment_obj_of_latest_comment_by_username(
    page: OpenPage, username: str
) -> str:
    """What a user's newest comment answers, a comment or the post, as JSON."""
    return _json((await page.read("comments", username))["parent"])


async def reddit_get_parent_comment_username_of_latest_comment_by_username(
    page: OpenPage, username: str
) -> str:
    return ((await page.read("comments", username))["parent"] or {}).get("username", "")


async def gitlab_get_project_memeber_role(page: OpenPage, account_name: str) -> str:
    """The role that a project's member page shows beside @account_name.

    Upstream pairs the n-th account with the n-th role of the page; here both are from one row.
    """
    return await page.read("role", account_name)


# fmt: off
_HELPERS = (
    shopping_get_latest_order_url, shopping_get_sku_latest_review_author,
    shopping_get_sku_latest_review_rating, shopping_get_sku_latest_review_text,
    shopping_get_sku_latest_review_title, shopping_get_sku_product_page_url,
    shopping_get_all_product_order, shopping_get_order_product_name_list,
    shopping_get_order_product_quantity, shopping_get_order_product_option,
    shopping_get_product_attributes, shopping_get_product_price, shopping_get_num_reviews,
    shopping_get_rating_as_percentage, get_query_text, get_query_text_lowercase,
    reddit_get_post_url, reddit_get_post_comment_tree, reddit_get_latest_comment_obj_by_username,
    reddit_get_latest_comment_content_by_username,
    reddit_get_parent_comment_obj_of_latest_comment_by_username,
    reddit_get_parent_comment_username_of_latest_comment_by_username,
    gitlab_get_project_memeber_role,
)
# fmt: on
HELPERS = {helper.__name__: helper for helper in _HELPERS}
